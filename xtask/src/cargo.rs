//! Calls cargo the way a developer's shell would, from inside a `cargo run`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// A cargo command that runs in the repository's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(repository_root());
    // `cargo run` describes the package xtask to us in these variables. Build scripts that watch them
    // (ring's does) would otherwise be rebuilt whenever a plain `cargo build` and `cargo xtask` alternate.
    for (name, _) in env::vars_os() {
        if describes_the_running_package(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs cargo with its output on the terminal; the answer is whether it succeeded.
pub(crate) fn succeeds(mut command: Command) -> Result<bool, Failure> {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let line = format!("cargo {}", arguments.join(" "));
    eprintln!("xtask: {line}");
    let status = command.status().map_err(Failure::while_trying(format!("run `{line}`")))?;
    Ok(status.success())
}

/// Runs cargo and returns what it wrote to stdout.
pub(crate) fn output_of(mut command: Command) -> Result<String, Failure> {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let line = format!("cargo {}", arguments.join(" "));
    let output =
        command.stdin(Stdio::null()).output().map_err(Failure::while_trying(format!("run `{line}`")))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::new(format!("`{line}` failed:\n{}", complaint.trim_end())));
    }
    String::from_utf8(output.stdout).map_err(Failure::while_trying(format!("read the output of `{line}`")))
}

/// The folder that holds the workspace's Cargo.toml.
pub(crate) fn repository_root() -> PathBuf {
    // A binary that was copied together with its target folder has the old place compiled in,
    // so what `cargo run` says now goes first.
    let manifest_folder = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.ends_with("xtask"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest_folder.parent().map(Path::to_path_buf).unwrap_or(manifest_folder)
}

fn describes_the_running_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_")
        || [
            "CARGO_MANIFEST_DIR",
            "CARGO_MANIFEST_PATH",
            "CARGO_CRATE_NAME",
            "CARGO_BIN_NAME",
            "CARGO_PRIMARY_PACKAGE",
            "OUT_DIR",
        ]
        .contains(&variable)
}

#[cfg(test)]
mod tests {
    use super::describes_the_running_package;

    #[test]
    fn only_the_package_description_is_taken_out_of_the_environment() {
        for taken in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "OUT_DIR"] {
            assert!(describes_the_running_package(taken), "{taken}");
        }
        for kept in ["CARGO_TARGET_DIR", "CARGO_HOME", "CARGO_TERM_COLOR", "RUSTFLAGS"] {
            assert!(!describes_the_running_package(kept), "{kept}");
        }
    }
}
