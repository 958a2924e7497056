//! `cargo xtask static`: one `hansa` that needs nothing of the machine it runs on.
//!
//! The C library is linked in, and names are looked up in Rust (`crates/transfer/src/names.rs`). Any
//! x86-64 or AArch64 Linux runs it: login nodes, compute nodes, containers of another distribution. Never here: a
//! second compiler or another target than this machine's own, which would need downloads.

use anyhow::Context as _;
use xshell::{Shell, cmd};

const RUSTFLAGS: &str = "-C target-feature=+crt-static";
const BINARY_VARIABLE: &str = "HANSA_STATIC_BINARY";

/// Builds it, and tries it in a bare root directory where this user may have one.
///
/// # Errors
/// If it cannot be built, is not static after all, or a test fails.
pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let target = host(sh)?;
    {
        // Flags for one target only: build scripts and procedural macros cannot be static.
        let _flags = sh.push_env("RUSTFLAGS", RUSTFLAGS);
        cmd!(
            sh,
            "cargo build --release --target {target} --package hansa"
        )
        .run()?;
    }
    let binary = sh
        .current_dir()
        .join(format!("target/{target}/release/hansa"));
    let bytes = std::fs::read(&binary).with_context(|| format!("read {}", binary.display()))?;
    anyhow::ensure!(
        asks_for_no_loader(&bytes) == Some(true),
        "{} is not static; is a static C library installed (libc6-dev, glibc-static)?",
        binary.display()
    );
    cmd!(sh, "cargo test --workspace --test static_e2e")
        .env(BINARY_VARIABLE, &binary)
        .run()?;
    let mebibytes = bytes.len() >> 20;
    println!("{} ({mebibytes} MiB) is static", binary.display());
    Ok(())
}

/// This machine's own target.
fn host(sh: &Shell) -> anyhow::Result<String> {
    let version = cmd!(sh, "rustc -vV").quiet().read()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("find the host in `rustc -vV`")?.to_owned())
}

/// Whether a 64-bit ELF file has no `PT_INTERP`, the program header that names a dynamic loader; `None` if it is
/// no such file.
fn asks_for_no_loader(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if elf.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    let offset = u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?);
    let offset = usize::try_from(offset).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    for header in 0..count {
        let at = offset.checked_add(header * size)?;
        let kind = u32::from_le_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?);
        if kind == PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_that_asks_for_a_loader_is_told_from_one_that_does_not() {
        // This test's own program is dynamic.
        let mut elf = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(asks_for_no_loader(&elf), Some(false));
        elf[56..58].fill(0);
        assert_eq!(asks_for_no_loader(&elf), Some(true));
        assert_eq!(asks_for_no_loader(b"#!/bin/sh"), None);
        assert_eq!(asks_for_no_loader(&elf[..40]), None);
    }
}
