//! `hansa restore`: a data directory from a backup.

use crate::ui;
use crate::ui::{note, out};
use clap::Args;
use hansa_coordinator::restore;
use std::path::PathBuf;

/// `hansa restore`.
#[derive(Args)]
pub struct Arguments {
    /// The directory that `hansa backup` wrote.
    backup: PathBuf,
    /// The data directory to make; new or empty.
    #[arg(long)]
    to: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Restores.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let restored = restore(&arguments.backup, &arguments.to)?;
    if arguments.json {
        return ui::print_json(&restored);
    }
    out!(
        "run {:?} at generation {}, {} windows committed, in timeline {}",
        restored.run,
        restored.generation,
        ui::count(restored.committed),
        restored.timeline,
    );
    let to = arguments.to.display();
    note!("never serve the directory that it was a copy of again: replicas follow this one");
    note!("to go on: hansa serve RECIPE --data {to}");
    Ok(())
}
