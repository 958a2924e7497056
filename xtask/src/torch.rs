//! PyTorch and torchtitan for the tests that need them.
//!
//! Whoever has a Python with PyTorch names it in `HANSA_TORCH_PYTHON`. Where the folder of test data
//! has a script that installs it instead, a virtual environment is made under `target/torch`, once.
//! Without either, nothing happens and the test says that it skips. Never here: a reason for `ci` to
//! fail, as the registry of another language may be away.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xshell::{Shell, cmd};

/// Names the interpreter for tests.
pub const PYTHON_VARIABLE: &str = "HANSA_TORCH_PYTHON";
const DATA_VARIABLE: &str = "HANSA_TEST_DATA";
const INSTALLER: &str = "tools/install-torch.sh";
const VENV: &str = "target/torch";
const TRANSFORMERS: &str = "transformers==5.24.0";
/// Half a gigabyte comes from the network.
const INSTALL_MAX_S: &str = "1200";

/// The script to install with, if that is to be done.
pub fn installer() -> Option<PathBuf> {
    installer_of(
        std::env::var_os(DATA_VARIABLE),
        std::env::var_os(PYTHON_VARIABLE),
    )
}

fn installer_of(data: Option<OsString>, python: Option<OsString>) -> Option<PathBuf> {
    if python.is_some() {
        return None;
    }
    let script = Path::new(&data?).join(INSTALLER);
    script.is_file().then_some(script)
}

/// What a person types to do it.
pub fn lines(script: &Path) -> [String; 2] {
    [
        format!(
            "timeout {INSTALL_MAX_S} bash {} {VENV} titan",
            script.display()
        ),
        format!(
            "timeout {INSTALL_MAX_S} {VENV}/bin/uv pip install -q --python {VENV}/bin/python {TRANSFORMERS}"
        ),
    ]
}

/// Installs what is missing, and names the interpreter to the steps that follow.
///
/// # Errors
/// If it cannot be installed; nothing is named then.
pub fn install(sh: &Shell, script: &Path) -> anyhow::Result<()> {
    let python = sh.current_dir().join(VENV).join("bin/python");
    if !works(sh, &python) {
        for line in lines(script) {
            let (program, arguments) = line.split_once(' ').context("a line of two words")?;
            let arguments = arguments.split(' ');
            cmd!(sh, "{program} {arguments...}").quiet().run()?;
        }
        anyhow::ensure!(
            works(sh, &python),
            "{} was installed and does not work",
            python.display()
        );
    }
    sh.set_var(PYTHON_VARIABLE, python);
    Ok(())
}

fn works(sh: &Shell, python: &Path) -> bool {
    let (_, version) = TRANSFORMERS.split_once("==").unwrap_or_default();
    let check = format!(
        "import torch, torchtitan, transformers; assert transformers.__version__ == '{version}'"
    );
    python.is_file()
        && cmd!(sh, "{python} -c {check}")
            .quiet()
            .ignore_stdout()
            .ignore_stderr()
            .run()
            .is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn it_is_installed_only_where_a_script_is_and_nobody_names_another() {
        // Any folder with such a file will do, and one without it.
        let name = format!("hansa-xtask-torch-{}", std::process::id());
        let data = std::env::temp_dir().join(name);
        std::fs::create_dir_all(data.join("tools")).unwrap();
        let given = || Some(data.clone().into_os_string());
        assert_eq!(installer_of(given(), None), None);
        let script = data.join(INSTALLER);
        std::fs::write(&script, "exit 1").unwrap();
        assert_eq!(installer_of(given(), None), Some(script.clone()));
        assert_eq!(installer_of(given(), Some("python3".into())), None);
        assert_eq!(installer_of(None, None), None);

        let sh = Shell::new().unwrap();
        sh.change_dir(&data);
        // CI itself may have named one.
        let before = sh.var_os(PYTHON_VARIABLE);
        assert!(install(&sh, &script).is_err());
        assert_eq!(sh.var_os(PYTHON_VARIABLE), before);
        std::fs::remove_dir_all(&data).unwrap();
    }
}
