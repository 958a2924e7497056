//! `hansa backup`: a copy of a run that it can go on from, made while it is served.

use crate::ui;
use crate::ui::{note, out};
use clap::Args;
use hansa_coordinator::backup;
use serde_json::json;
use std::path::PathBuf;

/// `hansa backup`.
#[derive(Args)]
pub struct Arguments {
    /// The coordinator's data directory; the coordinator may be running.
    data: PathBuf,
    /// The directory for the backup: a new one, or one with an earlier backup of this run, of which
    /// only what changed is copied. It holds tokens and the server's key: keep it as secret.
    #[arg(long)]
    to: PathBuf,
    /// Print what is in it as JSON.
    #[arg(long)]
    json: bool,
}

/// Makes the backup.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (list, copied_bytes) = backup(&arguments.data, &arguments.to)?;
    if arguments.json {
        return ui::print_json(&json!({ "backup": list, "copied_bytes": copied_bytes }));
    }
    out!(
        "run {:?} at generation {}: {} records, {} windows committed, {} of weights ({} copied)",
        list.run,
        list.generation,
        ui::count(list.records),
        ui::count(list.committed),
        ui::bytes(list.blob_bytes),
        ui::bytes(copied_bytes),
    );
    let to = arguments.to.display();
    note!("to go on from it: hansa restore {to} --to NEW_DATA_DIR, then hansa serve");
    Ok(())
}
