//! `scontrol show config`: see the library.
#![no_main]

use hansa_slurm::json::Kind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hansa_slurm_fuzz::judge(Kind::Config, bytes));
