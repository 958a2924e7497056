//! `cargo xtask`: the one way to check this repository, for people and for machines.
//!
//! What a machine runs before code is merged is what a developer runs at the desk; a rule that
//! nothing runs is fiction. This program only reads tracked files: it never reformats, fixes or
//! regenerates anything behind a developer's back. All it writes lies under `target/`.

mod ci;
mod portable;
mod setup;
mod slurm;
mod tidy;
mod torch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use xshell::Shell;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Check this repository.")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check: format, tidy, dependency policy, clippy, docs, tests.
    Ci {
        /// Only what is worth running before each commit; prints what it leaves out.
        #[arg(long)]
        fast: bool,
        /// First install the tools that are missing, as on a fresh machine.
        #[arg(long)]
        setup: bool,
    },
    /// Run only the tidy checks (a second or two).
    Tidy,
    /// Build a static `hansa` that runs on any Linux of this architecture, and try it in a bare root directory.
    Static,
    /// Install the tools that `ci` needs into `target/tools`.
    Setup,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not returned from main: a person wants the message, never a backtrace.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let sh = shell()?;
    match options.command {
        Command::Ci { fast, setup } => {
            if setup {
                setup::run(&sh)?;
            }
            ci::run(
                &sh,
                if fast {
                    ci::Extent::Fast
                } else {
                    ci::Extent::Full
                },
            )
        }
        Command::Tidy => tidy::run(&sh),
        Command::Static => portable::run(&sh),
        Command::Setup => setup::run(&sh),
    }
}

/// A shell at the root of the repository whose children see the tools of `setup` and none of the
/// variables that `cargo run` set for this program: some build scripts watch those, and would
/// rebuild on every change between `cargo test` and `cargo xtask`.
fn shell() -> anyhow::Result<Shell> {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest_dir
        .parent()
        .context("find the repository: run this as `cargo xtask`")?;
    let sh = Shell::new().context("open a shell")?;
    sh.change_dir(root);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let with_tools =
        std::iter::once(root.join(setup::TOOLS_BIN)).chain(std::env::split_paths(&path));
    sh.set_var(
        "PATH",
        std::env::join_paths(with_tools).context("extend PATH")?,
    );
    Ok(sh)
}

/// Variables that `cargo run` sets for the program it runs.
fn set_by_cargo_run() -> impl Iterator<Item = std::ffi::OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || name == "CARGO_CRATE_NAME"
            || name == "CARGO_BIN_NAME"
    })
}
