//! `hansa token`: who may talk to a coordinator.

use crate::credentials::Credentials;
use crate::status::Listening;
use crate::ui::{note, out};
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use hansa_base::SiteName;
use hansa_coordinator::{Scope, issue_token};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The operator's credentials in a data directory.
pub const OPERATOR_FILE: &str = "operator.toml";

/// What to do with tokens.
#[derive(Subcommand)]
pub enum Command {
    /// Make a token for a site and write it to a file that the site's jobs read.
    Add(AddArguments),
}

/// `hansa token add`.
#[derive(Args)]
pub struct AddArguments {
    /// The site; its token acts for its replicas only.
    site: SiteName,
    /// The coordinator's data directory.
    #[arg(long)]
    data: PathBuf,
    /// The file to write [default: SITE.token.toml].
    #[arg(long, short)]
    out: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(command: Command) -> anyhow::Result<()> {
    let Command::Add(arguments) = command;
    let (site, data) = (arguments.site, arguments.data);
    let out = arguments
        .out
        .unwrap_or_else(|| PathBuf::from(format!("{site}.token.toml")));
    if !data.is_dir() {
        bail!(
            "{} is no data directory: start `hansa serve` with it first",
            data.display()
        );
    }
    issue(&data, &Scope::Site(site.clone()), &out)?;
    note!("copy the file to {site} and name it with --token-file; keep it secret");
    out!("{}", out.display());
    Ok(())
}

/// Makes a token and writes it with the coordinator's fingerprint to `out`.
pub fn issue(data: &Path, scope: &Scope, out: &Path) -> anyhow::Result<()> {
    if out.exists() {
        bail!("{} exists: remove it, or name another file", out.display());
    }
    let fingerprint = Listening::load(data)?.fingerprint;
    let token = issue_token(data, scope)?;
    let text =
        toml::to_string(&Credentials { token, fingerprint }).context("write a token file")?;
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let file = options.open(out).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    file.with_context(|| format!("write {}", out.display()))
}
