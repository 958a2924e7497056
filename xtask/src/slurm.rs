//! Slurm's daemons for tests that start real clusters.
//!
//! Where the folder of test data has a script that installs them, it is run; it does nothing where they are.
//! Without it, nothing happens and the tests say that they skip. Never here: a reason for `ci` to fail, as
//! packages need root and a network.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

const DATA_VARIABLE: &str = "HANSA_TEST_DATA";
const INSTALLER: &str = "tools/install-slurm.sh";
const INSTALL_MAX_S: &str = "600";

/// The script to install with, if there is one.
pub fn installer() -> Option<PathBuf> {
    let data = std::env::var_os(DATA_VARIABLE)?;
    let script = Path::new(&data).join(INSTALLER);
    script.is_file().then_some(script)
}

/// What a person types to do it.
pub fn line(script: &Path) -> String {
    format!("timeout {INSTALL_MAX_S} bash {}", script.display())
}

/// Installs what is missing.
///
/// # Errors
/// If it cannot be installed.
pub fn install(sh: &Shell, script: &Path) -> anyhow::Result<()> {
    Ok(cmd!(sh, "timeout {INSTALL_MAX_S} bash {script}")
        .quiet()
        .run()?)
}
