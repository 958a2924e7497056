//! What Hansa's heavy steps cost, beside what the hardware allows.
//!
//! A figure alone says little: machines differ, and others work on them. So every measurement here is a
//! pair, the step and its floor, taken in turns in one run; what counts is the ratio. Steps run in
//! processes of their own, so that their peak memory is theirs. Never here: printing, and real runs.

pub mod exchange;
pub mod floor;
pub mod measure;
pub mod merge;
pub mod model;
pub mod process;
