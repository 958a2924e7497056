//! Uploads: while the bytes of an announced contribution arrive, neither its lease nor the round's
//! grace ends; but only for twice the time that they should take.

use super::{Answer, Effect, Machine};
use crate::{Event, Refusal, RefusedBecause, Reply, RunSpec, Stage, State};
use hansa_base::{Bytes, ContributionNo, Hash, MonoMs, ReplicaKey};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where nothing was measured before, this part of the upload itself tells how fast the link is.
const MEASURED_PART: u64 = 8;

/// An upload that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Upload {
    /// When it was first watched.
    begun: MonoMs,
    /// How much was there at the first report.
    had: Option<Bytes>,
    /// When it is refused.
    ends: MonoMs,
    /// Whether that follows from a measured goodput.
    measured: bool,
}

impl Upload {
    fn new(spec: &RunSpec, state: &State, no: ContributionNo, now: MonoMs) -> Option<Self> {
        let contribution = state.contributions.get(&no)?;
        let pace = state.replica(contribution.key)?.pace;
        let goodput = pace.and_then(|pace| pace.upload_bytes_per_s);
        let bytes = contribution.parts.bytes;
        let budget = goodput.map_or(spec.timing.ttl_max, |rate| budget(spec, bytes, rate as f64));
        Some(Self {
            begun: now,
            had: None,
            ends: now.after(budget),
            measured: goodput.is_some(),
        })
    }

    /// When it is refused.
    pub fn ends(&self) -> MonoMs {
        self.ends
    }

    fn advance(&mut self, spec: &RunSpec, now: MonoMs, there: Bytes, all: Bytes) {
        let had = *self.had.get_or_insert(there);
        let (came, took_s) = (
            there.0.saturating_sub(had.0),
            now.since(self.begun).as_secs_f64(),
        );
        let enough = came > 0 && came.saturating_mul(MEASURED_PART) >= all.0;
        if !self.measured && enough && took_s > 0.0 {
            self.ends = self.begun.after(budget(spec, all, came as f64 / took_s));
            self.measured = true;
        }
    }
}

/// Twice what so many bytes take, and never less than the shortest lease.
fn budget(spec: &RunSpec, bytes: Bytes, bytes_per_s: f64) -> Duration {
    let expected_s = bytes.0 as f64 / bytes_per_s.max(1.0);
    let longest_s = 366.0 * 86_400.0;
    Duration::from_secs_f64((2.0 * expected_s).min(longest_s)).max(spec.timing.ttl_min)
}

/// The uploads of a replayed state, watched from now on.
pub(super) fn uploads(
    spec: &RunSpec,
    state: &State,
    now: MonoMs,
) -> BTreeMap<ContributionNo, Upload> {
    let open = state.contributions.iter();
    let open = open.filter(|(_, c)| c.stage == Stage::Announced);
    open.filter_map(|(no, _)| Some((*no, Upload::new(spec, state, *no, now)?)))
        .collect()
}

impl Machine {
    /// Begins to watch the upload that a replica has announced, if it is not watched yet.
    pub(super) fn watch_upload(&mut self, now: MonoMs, key: ReplicaKey) {
        let announced = self.state.announced_by(key).map(|(no, _)| no);
        if let Some(no) = announced.filter(|no| !self.clocks.uploads.contains_key(no))
            && let Some(upload) = Upload::new(&self.spec, &self.state, no, now)
        {
            self.clocks.uploads.insert(no, upload);
        }
    }

    pub(super) fn upload_progress(&mut self, now: MonoMs, id: Hash, bytes: Bytes) -> Answer {
        let Some((no, contribution)) = self.state.contribution(id) else {
            return Err(Refusal::UnknownContribution(id));
        };
        if contribution.stage == Stage::Staged {
            return Ok(Reply::Done);
        }
        let (key, all) = (contribution.key, contribution.parts.bytes);
        if let Some(upload) = self.clocks.uploads.get_mut(&no) {
            upload.advance(&self.spec, now, bytes, all);
        }
        self.clocks.heard(&self.spec, key, now);
        self.renew(now, key);
        Ok(Reply::Done)
    }

    /// Refuses what takes too long. Its positions stay with the lease.
    pub(super) fn expire_uploads(&mut self, now: MonoMs) -> Result<(), Refusal> {
        let contributions = &self.state.contributions;
        let open = |no: &ContributionNo| {
            let contribution = contributions.get(no);
            contribution.is_some_and(|c| c.stage == Stage::Announced)
        };
        self.clocks.uploads.retain(|no, _| open(no));
        let uploads = self.clocks.uploads.iter();
        let over = uploads.filter(|(_, upload)| upload.ends <= now);
        let over: Vec<ContributionNo> = over.map(|(no, _)| *no).collect();
        for no in over {
            let id = self.state.contributions.get(&no).map(|c| c.id);
            let because = RefusedBecause::TooSlow;
            self.emit(Event::Refused { no, because })?;
            self.clocks.uploads.remove(&no);
            self.effects.extend(id.map(Effect::DropUpload));
        }
        Ok(())
    }
}
