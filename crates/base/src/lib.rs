//! Ids, counts, byte sizes, durations, retry policy: newtypes, nothing else.
//!
//! A run is passed from hand to hand as plain numbers and strings (positions, generations, names);
//! the types here keep them apart. Never here: I/O, clocks, randomness, serialisation.

mod count;
mod hash;
mod name;
mod retry;
mod time;

pub use count::{
    Bytes, ContributionNo, Epoch, Generation, Incarnation, LeaseId, Position, ReplicaKey, Steps,
    Timeline, Tokens, Windows,
};
pub use hash::{Hash, ParseHashError};
pub use name::{NameError, ReplicaId, ReplicaName, SiteName};
pub use retry::RetryPolicy;
pub use time::{MonoMs, WallS};
