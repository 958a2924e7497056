//! The replica's half.
