//! The replica's half.

mod api;
mod local;

pub use api::{
    Action, Call, CallFailed, CallNo, ExitReason, Input, Moments, Notice, TrainOrder, Void,
};
pub use local::{Found, LocalState, RegistrationRecord};
