//! Installs the servers that are missing, from Debian's packages or from source, and what our own build needs.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::services::home::{indented_tail, is_root};
use crate::services::progress::Progress;
use crate::services::server::Server;

/// Installs those that are not there. Does nothing, and needs nothing, when all are.
pub(super) fn install_missing(
    servers: &[&dyn Server],
    data_root: &Path,
    progress: &Progress,
) -> Result<(), Failure> {
    // One that answers already needs no programs here: it may run in a container that shares our network.
    let is_missing = |server: &&dyn Server| !server.is_installed() && !server.answers();
    let missing: Vec<&dyn Server> = servers.iter().copied().filter(is_missing).collect();
    let without_packages: Vec<&dyn Server> =
        missing.iter().copied().filter(|server| !server.has_packages()).collect();
    if !without_packages.is_empty() {
        let packages = packages_of(&without_packages);
        install_packages(&packages, data_root, progress)
            .map_err(|cause| cannot_install(&without_packages, &cause.to_string()))?;
    }
    for server in &missing {
        server.build(data_root, progress)?;
    }
    let still_missing: Vec<&dyn Server> =
        missing.into_iter().filter(|server| !server.is_installed()).collect();
    if !still_missing.is_empty() {
        return Err(cannot_install(
            &still_missing,
            "its package is installed, but has not brought its programs",
        ));
    }
    Ok(())
}

/// Makes sure that the programs and headers are there with which our own C dependencies are compiled: librdkafka is
/// configured by a shell script, built by make, and uses OpenSSL for TLS.
pub(super) fn install_build_tools(data_root: &Path, progress: &Progress) -> Result<(), Failure> {
    const TOOLS: &[(&str, &str)] =
        &[("gcc", "gcc"), ("g++", "g++"), ("make", "make"), ("pkg-config", "pkg-config")];
    const HEADERS: &[(&str, &str)] = &[("/usr/include/openssl/ssl.h", "libssl-dev")];
    let missing_tools = TOOLS.iter().filter(|(program, _)| !is_on_path(program));
    let missing_headers = HEADERS.iter().filter(|(header, _)| !Path::new(header).exists());
    let missing: Vec<&str> = missing_tools.chain(missing_headers).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    install_packages(&missing, data_root, progress).map_err(|cause| {
        Failure::new(format!("missing and not installable here: {}: {cause}", missing.join(", "))).next_step(
            "install them: Towpath's features `kafka` and `kafka-tls` compile a C library with them",
        )
    })
}

/// Makes sure of what single tests use: a caching proxy to put before the server, and a library that sets a process' clock.
/// Where one cannot be installed, the tests that need it fail, or outside of continuous integration say that they are left out.
pub(super) fn install_for_single_tests(data_root: &Path, progress: &Progress) {
    let has_proxy = is_on_path("nginx") || Path::new("/usr/sbin/nginx").exists();
    let wanted = [("nginx-light", has_proxy), ("libfaketime", clock_library().is_some())];
    for (package, _) in wanted.into_iter().filter(|(_, is_there)| !is_there) {
        if let Err(cause) = install_packages(&[package], data_root, progress) {
            progress.step(package, &format!("is missing: {cause}"));
        }
    }
}

/// The library by which a test sets the clock of a process, where it is installed.
pub(super) fn clock_library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?;
    let library = |folder: fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    folders.flatten().map(library).find(|library| library.exists())
}

/// Whether a program can be called by its name.
pub(super) fn is_on_path(program: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Installs packages of Debian.
pub(super) fn install_packages(
    packages: &[&str],
    data_root: &Path,
    progress: &Progress,
) -> Result<(), Failure> {
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(Failure::new("this machine has no apt-get"));
    }
    if !is_root() {
        return Err(Failure::new("only root can install packages"));
    }
    let log = data_root.join("apt.log");
    let _no_starts = StartPolicy::forbid()?;
    progress.step("apt", "update");
    // One unreachable archive among several fails the update and may not matter: the installation decides.
    let update = apt_get(&["update"], &log, false);
    progress.step("apt", &format!("install {}", packages.join(" ")));
    // What is there stays as it is: a compiler may be at work.
    let mut arguments = vec!["install", "--yes", "--no-install-recommends", "--no-upgrade"];
    arguments.extend(packages);
    if let Err(cause) = apt_get(&arguments, &log, true) {
        let both = match update {
            Ok(()) => cause.to_string(),
            Err(update_failure) => format!("{update_failure}, and {cause}"),
        };
        let said = fs::read(&log).unwrap_or_default();
        let tail = indented_tail(&String::from_utf8_lossy(&said));
        return Err(Failure::new(format!("{both}; the end of {}:\n{tail}", log.display())));
    }
    progress.step("apt", "installed");
    Ok(())
}

fn packages_of(servers: &[&dyn Server]) -> Vec<&'static str> {
    servers.iter().flat_map(|server| server.packages()).copied().collect()
}

fn cannot_install(missing: &[&dyn Server], cause: &str) -> Failure {
    let titles: Vec<&str> = missing.iter().map(|server| server.title()).collect();
    let variables: Vec<String> = missing
        .iter()
        .flat_map(|server| server.addresses())
        .map(|address| address.variable.to_owned())
        .collect();
    let packages = packages_of(missing);
    Failure::new(format!("missing and not installable here: {}: {cause}", titles.join(", "))).next_step(
        format!(
            "point {} to servers that tests may use, or run this as root on Debian 12 (packages {})",
            variables.join(", "),
            packages.join(", ")
        ),
    )
}

fn apt_get(arguments: &[&str], log: &Path, append: bool) -> Result<(), Failure> {
    let attempt = format!("write {}", log.display());
    let output = File::options()
        .create(true)
        .write(true)
        .append(append)
        .truncate(!append)
        .open(log)
        .map_err(Failure::while_trying(&attempt))?;
    let errors = output.try_clone().map_err(Failure::while_trying(&attempt))?;
    let status = Command::new("apt-get")
        // The first survives a network that stutters, the second another apt-get that is at work.
        .args(["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .map_err(Failure::while_trying("run apt-get"))?;
    let action = arguments.first().copied().unwrap_or_default();
    if status.success() { Ok(()) } else { Err(Failure::new(format!("`apt-get {action}` failed ({status})"))) }
}

/// Keeps packages from starting their servers on the default ports while it lives.
struct StartPolicy {
    /// Set when the file is ours to remove.
    file_to_remove: Option<PathBuf>,
}

impl StartPolicy {
    fn forbid() -> Result<Self, Failure> {
        let path = PathBuf::from("/usr/sbin/policy-rc.d");
        let attempt = format!("write {}", path.display());
        match fs::read(&path) {
            // One that we left behind when we were killed is ours to remove; any other is respected.
            Ok(content) if content == POLICY.as_bytes() => return Ok(Self { file_to_remove: Some(path) }),
            Ok(_) => return Ok(Self { file_to_remove: None }),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(Failure::while_trying(&attempt)(cause)),
        }
        fs::write(&path, POLICY).map_err(Failure::while_trying(&attempt))?;
        let policy = Self { file_to_remove: Some(path.clone()) };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .map_err(Failure::while_trying(&attempt))?;
        Ok(policy)
    }
}

impl Drop for StartPolicy {
    fn drop(&mut self) {
        if let Some(path) = &self.file_to_remove
            && let Err(cause) = fs::remove_file(path)
        {
            eprintln!("xtask: {} should be removed, but: {cause}", path.display());
        }
    }
}

const POLICY: &str = "\
#!/bin/sh
# Written by Towpath's `cargo xtask services up` for the time of an installation: packages start nothing.
exit 101
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{mariadb::Mariadb, rabbitmq::Rabbitmq};

    #[test]
    fn what_cannot_be_installed_is_named_with_the_variables_to_set_instead() {
        let message = cannot_install(&[&Mariadb, &Rabbitmq], "only root can install packages").to_string();
        for expected in [
            "MariaDB",
            "RabbitMQ",
            "only root",
            "TOWPATH_TEST_MYSQL_URL",
            "TOWPATH_TEST_AMQP_URL",
            "TOWPATH_TEST_AMQP_MANAGEMENT_URL",
            "mariadb-server",
        ] {
            assert!(message.contains(expected), "{expected} is not in: {message}");
        }
    }
}
