//! The server: executes what the protocol decides.
