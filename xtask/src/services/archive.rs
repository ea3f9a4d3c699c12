//! The archive of packages that this machine is set up with: other releases of Debian are in it, too.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// The keys that Debian signs its archive with.
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether what is downloaded can be checked.
pub(super) fn has_keyring() -> bool {
    Path::new(KEYRING).exists()
}

/// The archive that this machine gets its own packages from. `run` runs a command, for a machine that does not know yet what
/// its archives hold.
pub(super) fn of_this_machine(run: impl FnOnce(Command) -> Result<(), Failure>) -> Result<String, Failure> {
    let known = || -> Result<Option<String>, Failure> {
        let output = Command::new("apt-get")
            .args(["indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)", "Created-By: Packages"])
            .stdin(Stdio::null())
            .output()
            .map_err(Failure::while_trying("run apt-get"))?;
        Ok(debians_own(&String::from_utf8_lossy(&output.stdout)))
    };
    if let Some(archive) = known()? {
        return Ok(archive);
    }
    // One that cannot be reached may be another one.
    let mut update = Command::new("apt-get");
    update.arg("update");
    let updated = run(update);
    known()?.ok_or_else(|| match updated {
        Ok(()) => Failure::new("none of this machine's package archives is Debian's"),
        Err(cause) => cause,
    })
}

fn debians_own(targets: &str) -> Option<String> {
    let archive = targets.lines().find_map(|line| line.strip_suffix(" Debian Debian"))?;
    Some(archive.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_debians_own_and_not_its_security_updates() {
        let targets = "http://archive.example/debian-security/ Debian Debian-Security\n\
                       http://archive.example/other/ Other Debian\n\
                       http://archive.example/debian/ Debian Debian\n";
        assert_eq!(debians_own(targets).as_deref(), Some("http://archive.example/debian"));
        assert_eq!(debians_own(""), None);
    }
}
