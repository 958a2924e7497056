//! The tools that `ci` needs and that rustup does not bring.
//!
//! A fresh machine has a Rust toolchain, a C compiler and perhaps Python. Tools go to
//! `target/tools`, never into the user's own cargo or Python, and only when they are missing. A
//! prebuilt binary pinned by hash is taken where there is one; otherwise the tool is built.

use anyhow::Context as _;
use xshell::{Shell, cmd};

/// Where tools land, relative to the root of the repository.
pub const TOOLS_BIN: &str = "target/tools/bin";
const TOOLS: &str = "target/tools";
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Installs what is missing; says what it does.
pub fn run(sh: &Shell) -> anyhow::Result<()> {
    if has_cargo_deny(sh) {
        println!("setup: cargo-deny is there");
        return Ok(());
    }
    println!("setup: installing cargo-deny {CARGO_DENY_VERSION} into {TOOLS}");
    if let Err(error) = install_prebuilt(sh) {
        println!("setup: no prebuilt cargo-deny ({error}); building it, which takes minutes");
        build(sh)?;
    }
    anyhow::ensure!(
        has_cargo_deny(sh),
        "cargo-deny was installed into {TOOLS_BIN} but does not run: try `{TOOLS_BIN}/cargo-deny \
         --version` by hand"
    );
    Ok(())
}

/// Whether `cargo deny` runs.
pub fn has_cargo_deny(sh: &Shell) -> bool {
    cmd!(sh, "cargo deny --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok()
}

fn install_prebuilt(sh: &Shell) -> anyhow::Result<()> {
    // `--target` keeps pip out of the system's Python, which Debian forbids it to touch.
    cmd!(
        sh,
        "python3 -m pip install --quiet --root-user-action ignore --disable-pip-version-check --no-input --upgrade
         --target {TOOLS} --no-deps --only-binary :all: --require-hashes -r xtask/tools.txt"
    )
    .quiet()
    .run()
    .context("install with pip")
}

fn build(sh: &Shell) -> anyhow::Result<()> {
    cmd!(
        sh,
        "cargo install --locked --root {TOOLS} --version {CARGO_DENY_VERSION} cargo-deny"
    )
    .run()
    .context("build cargo-deny: is crates.io reachable?")
}
