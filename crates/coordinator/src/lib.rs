//! The server: executes what the protocol decides.

pub mod merge;
