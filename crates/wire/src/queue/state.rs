//! Mirrors of the queue's durable state, for snapshots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hansa_base::{ReplicaName, SiteName};
use hansa_queue::{
    Adopted, Budget, BudgetState, Decision, GpuS, Held, How, Intent, IntentId, Intention, Job,
    JobId, JobReport, Joined, Lease, LeaseNo, Line, Outcome, PartitionReport, PauseWhy, Paused,
    ProbeReport, Probed, Raw, Release, ReservationReport, ShapeName, Site, SiteProfile, Slot,
    State, Tail, UnixS, UsageReport,
};

use super::QUEUE_JOURNAL_VERSION;
use crate::journal::JournalError;
use crate::mirror::{mirror_enum, mirror_struct};
use crate::{decode, encode};

/// A snapshot's bytes, in [`QUEUE_JOURNAL_VERSION`].
#[must_use]
pub fn encode_queue_snapshot(state: &State) -> Vec<u8> {
    encode(state)
}

/// Reads a snapshot; never panics, whatever the bytes.
///
/// # Errors
/// If another version wrote it, or it is damaged.
pub fn decode_queue_snapshot(version: u32, bytes: &[u8]) -> Result<State, JournalError> {
    if version != QUEUE_JOURNAL_VERSION {
        return Err(JournalError::OtherVersion(version));
    }
    Ok(decode(bytes)?)
}

mirror_struct!(
    StateJson = State {
        next_intent: IntentId,
        sites: BTreeMap<SiteName, Site>,
        intents: BTreeMap<IntentId, Intent>,
        plan: Option<Adopted>,
    }
);
mirror_struct!(SiteJson = Site {
    lease: Option<Lease>,
    last_lease: LeaseNo,
    profile: Option<SiteProfile>,
    profiled: Option<UnixS>,
    spools: Vec<(Line, u64)>,
    paused: Option<Paused>,
    slots: BTreeMap<ReplicaName, Slot>,
    probes: BTreeMap<ShapeName, VecDeque<Probed>>,
    usage: BTreeMap<Line, (UnixS, UsageReport)>,
    partitions: BTreeMap<Line, (UnixS, PartitionReport)>,
    reservations: BTreeMap<Line, ReservationReport>,
    budget: BudgetState,
    joined: VecDeque<(ShapeName, Joined)>,
    excluded: BTreeMap<Line, UnixS>,
    troubles: BTreeMap<Line, (UnixS, Line)>,
    quick_failures: u32,
    strays: BTreeSet<JobId>,
    decisions: VecDeque<Decision>,
});
mirror_struct!(
    LeaseJson = Lease {
        no: LeaseNo,
        holder: Line,
        since: UnixS,
    }
);
mirror_struct!(
    PausedJson = Paused {
        why: PauseWhy,
        since: UnixS,
    } later { also: PauseWhy }
);
mirror_struct!(
    ProbedJson = Probed {
        at: UnixS,
        probe: ProbeReport,
        usage_permille: Option<u64>,
    }
);
mirror_struct!(
    BudgetStateJson = BudgetState {
        said: Budget,
        said_at: UnixS,
        source: Line,
        spent: BTreeMap<UnixS, GpuS>,
    }
);
mirror_struct!(
    SlotJson = Slot {
        links: u32,
        failures: u32,
        wait: Option<(UnixS, Line)>,
        held: Option<Held>,
    }
);
mirror_struct!(
    DecisionJson = Decision {
        at: UnixS,
        replica: Option<ReplicaName>,
        text: Line,
    }
);
mirror_struct!(IntentJson = Intent {
    intention: Intention,
    made: UnixS,
    delivered: Option<LeaseNo>,
    tried: bool,
    withdraw: Option<Line>,
    cancel: Option<Line>,
    release: Release,
    job: Option<Job>,
    unwanted: Vec<JobId>,
    outcome: Option<(UnixS, Outcome)>,
    tail: Tail,
} later { recall: Line });
mirror_enum!(ReleaseJson = Release {
    unit No
    unit Ordered
    unit Done
});
mirror_enum!(TailJson = Tail {
    tuple Got(text: Raw)
    unit No
    unit Ordered
});
mirror_struct!(JobJson = Job {
    id: JobId,
    how: How,
    submitted: UnixS,
    report: Option<JobReport>,
    heard: UnixS,
    gone: bool,
    cancelled: bool,
    joined: bool,
});
