//! `hansa slurm parse`: times without a zone are in this machine's.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const PROBE: &str = "sbatch: Job 7 to start at 2026-11-29T15:25:44 using 8 processors on nodes nid1 in partition gpu\n";

fn parse(zone: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hansa"));
    command
        .args(["slurm", "parse", "test-only"])
        .args(more)
        .env("TZ", zone);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
    // Whoever is refused before reads nothing.
    let _ = child.stdin.take().unwrap().write_all(PROBE.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_zone_is_what_tz_says_and_one_that_is_none_is_an_error() {
    let told = ["--now", "2026-11-29T15:00:00+02:00[Europe/Helsinki]"];
    let start = |output: Output| -> serde_json::Value {
        assert!(output.status.success(), "{output:?}");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        said["start"]["unix_s"].clone()
    };
    let there = start(parse("UTC", &told));
    assert_eq!(there, 1_795_958_744);
    assert_eq!(start(parse("Europe/Helsinki", &[])), there);
    assert_ne!(start(parse("UTC", &[])), there);
    let refused = parse("Nonsense", &[]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && said.contains("set TZ"),
        "{said}"
    );
}
