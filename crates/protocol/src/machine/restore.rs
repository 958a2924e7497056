//! A restored copy begins its own timeline: who was at work when the backup was made works elsewhere,
//! or not at all.

use super::{Answer, Machine};
use crate::{Event, FreedCause, LeftReason, Refusal, Reply};
use hansa_base::{MonoMs, ReplicaKey, Timeline};

impl Machine {
    /// Gives up everybody, with what was leased and announced; what is staged is durable and stays.
    pub(super) fn restored(&mut self, now: MonoMs, timeline: Timeline) -> Answer {
        let ours = self.state.lineage.current();
        if timeline <= ours {
            let what = format!("a restore needs a later timeline than {ours}, not {timeline}");
            return Err(Refusal::Broken(what));
        }
        let live: Vec<ReplicaKey> = self.state.live().map(|(key, _)| key).collect();
        let (reason, cause) = (LeftReason::Restored, FreedCause::Restored);
        live.into_iter()
            .try_for_each(|key| self.leave(key, reason, cause))?;
        self.emit(Event::Restored { timeline })?;
        self.close_if_due(now)?;
        Ok(Reply::Done)
    }
}
