//! A Python with pika: the client in another language that reads what Towpath publishes.
//!
//! It is no server, and it is not the machine's Python that is changed: a virtual environment of our own holds it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::services::installation::{install_packages, is_on_path};
use crate::services::progress::Progress;

/// By which tests find the interpreter.
pub(super) const VARIABLE: &str = "TOWPATH_TEST_PYTHON";

const PIKA: &str = "1.3.2";

/// The interpreter, if it is there already: the one that the environment names, or our own.
pub(super) fn interpreter(data_root: &Path) -> Option<String> {
    if let Some(given) = env::var(VARIABLE).ok().filter(|given| !given.is_empty()) {
        return Some(given);
    }
    let own = environment_in(data_root).join("bin/python");
    has_pika(&own).then(|| own.display().to_string())
}

/// The same, made if it is missing.
pub(super) fn prepare(data_root: &Path, progress: &Progress) -> Result<String, Failure> {
    if let Some(interpreter) = interpreter(data_root) {
        return Ok(interpreter);
    }
    let folder = environment_in(data_root);
    progress.step("python", &format!("making an environment with pika {PIKA} once"));
    if !is_on_path("python3") || make_environment(&folder).is_err() {
        // Debian's Python comes without what makes environments.
        install_packages(&["python3", "python3-venv"], data_root, progress)?;
        make_environment(&folder)?;
    }
    let wanted = format!("pika=={PIKA}");
    let python = folder.join("bin/python");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", &wanted]))?;
    if has_pika(&python) {
        Ok(python.display().to_string())
    } else {
        Err(no_pika("it was installed and cannot be used"))
    }
}

fn make_environment(folder: &Path) -> Result<(), Failure> {
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| no_pika(&error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(no_pika(String::from_utf8_lossy(&output.stderr).trim_end()))
}

fn no_pika(cause: &str) -> Failure {
    Failure::new(format!("there is no Python with pika {PIKA}: {cause}"))
        .next_step(format!("set {VARIABLE} to an interpreter that has it"))
}

fn has_pika(python: &Path) -> bool {
    let mut import = Command::new(python);
    import.args(["-c", "import pika"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success())
}

/// One folder per version: a new version is made beside the old one.
fn environment_in(data_root: &Path) -> PathBuf {
    data_root.join("cache").join(format!("python-pika-{PIKA}"))
}
