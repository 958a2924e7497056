//! Mirrors of what a replica keeps on its own disk.

use hansa_base::{Epoch, Hash, Incarnation, LeaseId, ReplicaId, Steps, Windows};
use hansa_protocol::replica::{LocalState, RegistrationRecord};
use hansa_protocol::{Caller, ContributionParts, GenerationInfo};

use crate::mirror::mirror_struct;

mirror_struct!(RegistrationRecordJson = RegistrationRecord {
    run: Hash,
    replica: ReplicaId,
    held: Option<Caller>,
    token: Option<Hash>,
    nonce: Option<Hash>,
});
mirror_struct!(LocalStateJson = LocalState {
    run: Hash,
    replica: ReplicaId,
    incarnation: Incarnation,
    base: GenerationInfo,
    lease: LeaseId,
    epoch: Epoch,
    front: Windows,
    cursor: Windows,
    steps: Steps,
    contribution: Option<ContributionParts>,
} check |state| {
    let right = state.front <= state.cursor;
    right.then_some(()).ok_or("the cursor lies before the front")
});
