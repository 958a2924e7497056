//! `hansa site new`: a commented profile to fill in.

use crate::ui::note;
use anyhow::{Context as _, bail};
use clap::Args;
use hansa_base::SiteName;
use std::io::Write as _;
use std::path::PathBuf;

/// `hansa site new`.
#[derive(Args)]
pub struct Arguments {
    /// The site's name in the run, as in `hansa token add`.
    site: SiteName,
    /// Where to write it [default: SITE.toml].
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Writes the profile; never over another one.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let site = &arguments.site;
    let default = || PathBuf::from(format!("{site}.toml"));
    let path = arguments.out.clone().unwrap_or_else(default);
    let shown = path.display();
    let mut file = match std::fs::File::create_new(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{shown} is there already; give --out another name")
        }
        Err(error) => return Err(error).with_context(|| format!("create {shown}")),
    };
    let text = hansa_site::profile::commented(site.as_str());
    file.write_all(text.as_bytes())
        .with_context(|| format!("write {shown}"))?;
    note!("{shown} is written: fill it in, then `hansa site check {shown}`");
    Ok(())
}
