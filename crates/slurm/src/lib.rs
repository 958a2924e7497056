//! Everything that touches Slurm.
//!
//! [`parse`] reads what its commands print, [`json`] shows what was understood to a person. Both are
//! pure: no process, no clock, no file.

pub mod json;
pub mod parse;
