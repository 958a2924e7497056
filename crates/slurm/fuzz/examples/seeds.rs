//! Writes what fuzzing starts from into `corpus/`: `cargo run --example seeds`.
//!
//! The samples of the crate's tests, and outputs that sites printed if the folder named by `HANSA_TEST_DATA`
//! has any. Never here: what a site printed that is not ours to publish; `corpus/` is not committed.

use std::path::Path;
use std::{fs, io};

use hansa_slurm::json::Kind;
use hansa_slurm_fuzz::samples::samples;

/// libFuzzer's own limit on an input is set to this, too.
const LENGTH_MAX: usize = 8192;

/// How the names of recorded outputs begin.
const RECORDED: &[(&str, Kind)] = &[
    ("testonly", Kind::TestOnly),
    ("submit", Kind::Submit),
    ("sbatch", Kind::Submit),
    ("sacct", Kind::Sacct),
    ("sample-sacct", Kind::Sacct),
    ("squeue", Kind::Squeue),
    ("scontrol-show-partition", Kind::Partition),
    ("sample-scontrol-output", Kind::Partition),
    ("scontrol-show-reservation", Kind::Reservation),
    ("scontrol-show-config", Kind::Config),
];

fn main() -> io::Result<()> {
    for (index, (kind, _, text)) in samples().into_iter().enumerate() {
        write(kind, &format!("sample-{index}"), text.as_bytes())?;
    }
    if let Some(folder) = std::env::var_os("HANSA_TEST_DATA") {
        for under in ["slurm-captures", "slurm-fixtures/gcm-meta"] {
            copy(&Path::new(&folder).join(under))?;
        }
    }
    Ok(())
}

fn copy(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some((_, kind)) = RECORDED.iter().find(|(begin, _)| name.starts_with(begin)) {
            write(*kind, &name, &fs::read(&path)?)?;
        }
    }
    Ok(())
}

fn write(kind: Kind, name: &str, bytes: &[u8]) -> io::Result<()> {
    let target = kind.as_str().replace('-', "_");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), &bytes[..bytes.len().min(LENGTH_MAX)])
}
