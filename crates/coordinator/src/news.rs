//! What replicas that wait are woken for.
//!
//! A lease call that would be answered with "wait" is held until there is something to do, or for a
//! while. Waking who waits is a bell, no message: whoever hears it asks the machine again. Never here:
//! what the answer is.

use std::time::Duration;

use hansa_protocol::{Event, LeaseAnswer, Wait};
use tokio::sync::watch;

/// How long a lease call without an answer worth having is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseHold {
    /// At the most; well below the time after which a caller gives a call up. Zero: it is answered at
    /// once.
    pub longest: Duration,
    /// So often the machine is asked again meanwhile: some of what makes a grant possible, such as time
    /// that passes, rings no bell.
    pub look_again: Duration,
}

impl Default for LeaseHold {
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(10),
            look_again: Duration::from_secs(1),
        }
    }
}

/// The deciding thread's end. Dropped, everybody who waits is woken, too.
pub(crate) struct Bell(watch::Sender<()>);

/// A held call's end. Cheap to clone.
pub(crate) type Ear = watch::Receiver<()>;

impl Bell {
    pub fn new() -> (Self, Ear) {
        let (bell, ear) = watch::channel(());
        (Self(bell), ear)
    }

    pub fn ring(&self) {
        self.0.send_replace(());
    }
}

/// Whether this may change what a waiting replica is to do. What happens once for each replica and
/// round is left out: to wake all of them each time would cost their square.
pub(crate) fn is_news(event: &Event) -> bool {
    match event {
        Event::Published { .. }
        | Event::Freed { .. }
        | Event::LetOut { .. }
        | Event::EvaluationLost { .. }
        | Event::EpochStarted { .. }
        | Event::Paused(_)
        | Event::Resumed { .. }
        | Event::Drained { .. }
        | Event::Undrained { .. }
        | Event::Evicted { .. }
        | Event::Stopping { .. }
        | Event::Ending(_)
        | Event::Ended => true,
        Event::Registered { .. }
        | Event::Left { .. }
        | Event::Granted { .. }
        | Event::DrainEnds { .. }
        | Event::Marked { .. }
        | Event::Stolen(_)
        | Event::Revived { .. }
        | Event::Absolved { .. }
        | Event::Quarantined { .. }
        | Event::Planned { .. }
        | Event::Excused { .. }
        | Event::Announced { .. }
        | Event::Refused { .. }
        | Event::Staged { .. }
        | Event::RefusedAgain { .. }
        | Event::Closed(_)
        | Event::Timed { .. }
        | Event::EvaluationAsked { .. }
        | Event::Evaluated { .. }
        | Event::Restored { .. }
        | Event::Readmitted { .. } => false,
    }
}

/// Whether an answer can wait for a better one. People are told of a pause at once.
pub(crate) fn is_held(answer: &LeaseAnswer) -> bool {
    match answer {
        LeaseAnswer::Wait(Wait::Paused(_)) => false,
        LeaseAnswer::Wait(_) => true,
        _ => false,
    }
}
