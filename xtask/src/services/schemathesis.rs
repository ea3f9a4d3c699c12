//! Schemathesis, which calls the HTTP API as its OpenAPI document describes it and holds the answers against it. It is
//! installed once into a private Python environment.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::services::home::indented_tail;
use crate::services::installation::{install_packages, is_on_path};
use crate::services::progress::Progress;

/// The variable by which tests find it.
pub(super) const VARIABLE: &str = "TOWPATH_TEST_SCHEMATHESIS";

const VERSION: &str = "4.32.5";

/// Where it is, after it was installed if it was not there.
pub(super) fn install(data_root: &Path, progress: &Progress) -> Result<PathBuf, Failure> {
    if let Some(given) = env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
        return Ok(PathBuf::from(given));
    }
    let folder = folder_in(data_root);
    if let Some(program) = installed(data_root) {
        return Ok(program);
    }
    if !is_on_path("python3") || !has_venv() {
        install_packages(&["python3", "python3-venv"], data_root, progress)?;
    }
    progress.step("schemathesis", &format!("installing {VERSION} from PyPI, once"));
    let log = data_root.join("schemathesis-install.log");
    fs::write(&log, "").map_err(Failure::while_trying(format!("write {}", log.display())))?;
    // What an interrupted installation has left may be of any sort.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Failure::while_trying(format!("remove {}", folder.display())))?;
    }
    let python = folder.join("bin/python");
    let package = format!("schemathesis=={VERSION}");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&folder);
    let mut fill = Command::new(&python);
    fill.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", &package]);
    for (mut command, what) in [(make, "make a Python environment"), (fill, "install schemathesis")] {
        run(&mut command, what, &log)?;
    }
    let complete = folder.join("complete");
    fs::write(&complete, VERSION).map_err(Failure::while_trying(format!("write {}", complete.display())))?;
    progress.step("schemathesis", "installed");
    Ok(program_in(&folder))
}

/// Where it is, if it is there.
pub(super) fn installed(data_root: &Path) -> Option<PathBuf> {
    let folder = folder_in(data_root);
    let program = program_in(&folder);
    (folder.join("complete").exists() && program.exists()).then_some(program)
}

fn folder_in(data_root: &Path) -> PathBuf {
    data_root.join("cache").join(format!("schemathesis-{VERSION}"))
}

fn program_in(folder: &Path) -> PathBuf {
    folder.join("bin/schemathesis")
}

fn has_venv() -> bool {
    let mut command = Command::new("python3");
    command
        .args(["-c", "import ensurepip, venv"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(command: &mut Command, what: &str, log: &Path) -> Result<(), Failure> {
    let attempt = format!("{what}, with its words in {}", log.display());
    let output = File::options().append(true).open(log).map_err(Failure::while_trying(&attempt))?;
    let errors = output.try_clone().map_err(Failure::while_trying(&attempt))?;
    let status = command.stdin(Stdio::null()).stdout(output).stderr(errors).status();
    let status = status.map_err(Failure::while_trying(&attempt))?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read(log).unwrap_or_default();
    let tail = indented_tail(&String::from_utf8_lossy(&said));
    Err(Failure::new(format!("cannot {what} ({status}); the end of {}:\n{tail}", log.display()))
        .next_step(format!("set {VARIABLE} to a schemathesis {VERSION} that is installed elsewhere")))
}
