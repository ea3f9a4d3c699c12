//! MariaDB from Debian's package, durable as it comes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::Failure;
use crate::services::home::Home;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};

/// The server behind TOWPATH_TEST_MYSQL_URL.
pub(super) struct Mariadb;

const PORT: u16 = 7306;
const SERVER_PROGRAM: &str = "/usr/sbin/mariadbd";
const INSTALL_PROGRAM: &str = "/usr/bin/mariadb-install-db";
const CLIENT_PROGRAM: &str = "/usr/bin/mariadb";

/// Above the defaults because many tests run at once, each with its own pool. Everything about
/// durability stays as it comes.
const SETTINGS: &[&str] = &[
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--max-connections=400",
    "--innodb-buffer-pool-size=256M",
    "--character-set-server=utf8mb4",
    "--max-allowed-packet=64M",
];

/// Run at every start. Without name resolution `localhost` only means the socket, so whoever comes over
/// TCP needs an account of this name. One statement a line, as the server wants it.
const INITIAL_STATEMENTS: &str = "\
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '';
GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
";

impl Server for Mariadb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn title(&self) -> &'static str {
        "MariaDB"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["mariadb-server"]
    }

    fn user(&self) -> &'static str {
        "mysql"
    }

    fn main_process_name(&self) -> &'static str {
        "mariadbd"
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }

    fn addresses(&self) -> Vec<Address> {
        let url = format!("mysql://root@127.0.0.1:{PORT}/mysql");
        vec![Address { variable: "TOWPATH_TEST_MYSQL_URL", url }]
    }

    fn ports(&self) -> &'static [u16] {
        &[PORT]
    }

    fn longest_start(&self) -> Duration {
        Duration::from_secs(90)
    }

    fn is_installed(&self) -> bool {
        [SERVER_PROGRAM, INSTALL_PROGRAM, CLIENT_PROGRAM].iter().all(|program| Path::new(program).exists())
    }

    fn version(&self) -> Option<String> {
        let output = Command::new(SERVER_PROGRAM).args(["--no-defaults", "--version"]).output().ok()?;
        version_in(&String::from_utf8_lossy(&output.stdout))
    }

    fn answers(&self) -> bool {
        // A query and not `mariadb-admin ping`, which also succeeds when access is denied.
        let mut probe = Command::new(CLIENT_PROGRAM);
        probe.args([
            "--no-defaults",
            "--protocol=tcp",
            "--host=127.0.0.1",
            "--user=root",
            "--connect-timeout=3",
        ]);
        probe.arg(format!("--port={PORT}")).args(["--execute=SELECT 1", "mysql"]);
        probe.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    }

    fn prepare(&self, home: &Home, progress: &Progress) -> Result<(), Failure> {
        home.write(&initial_statements_file(home), INITIAL_STATEMENTS)?;
        let temporary = temporary_folder(home);
        if !temporary.exists() {
            let mut make = home.command("mkdir");
            make.arg(&temporary);
            home.run(make)?;
        }
        let data = data_folder(home);
        if data.exists() {
            return Ok(());
        }
        progress.step(self.name(), "creating an empty database");
        // Made under another name first: an interrupted installation must not look like a database.
        let unfinished = home.folder().join("data.unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)
                .map_err(Failure::while_trying(format!("remove {}", unfinished.display())))?;
        }
        let mut install = home.command(INSTALL_PROGRAM);
        // `--no-defaults` counts only in the first place.
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg(format!("--datadir={}", unfinished.display()));
        home.run(install)?;
        fs::rename(&unfinished, &data).map_err(Failure::while_trying(format!("make {}", data.display())))
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let run_folder = home.run_folder();
        let mut mariadbd = home.daemon(SERVER_PROGRAM);
        mariadbd.arg("--no-defaults").args(SETTINGS).arg(format!("--port={PORT}"));
        for (option, path) in [
            ("datadir", data_folder(home)),
            ("tmpdir", temporary_folder(home)),
            ("socket", run_folder.join("mariadb.sock")),
            ("pid-file", run_folder.join("mariadb.pid")),
            ("log-error", home.log_file()),
            ("init-file", initial_statements_file(home)),
        ] {
            mariadbd.arg(format!("--{option}={}", path.display()));
        }
        Ok(mariadbd)
    }
}

fn data_folder(home: &Home) -> PathBuf {
    home.folder().join("data")
}

fn temporary_folder(home: &Home) -> PathBuf {
    home.folder().join("temporary")
}

fn initial_statements_file(home: &Home) -> PathBuf {
    home.folder().join("initial-statements.sql")
}

fn version_in(said: &str) -> Option<String> {
    // /usr/sbin/mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64 (Debian 12)
    let (_, after) = said.split_once("Ver ")?;
    after.split(['-', ' ']).next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn the_version_is_found_in_what_the_server_says() {
        let said =
            "/usr/sbin/mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(version_in(said).as_deref(), Some("10.11.14"));
        assert_eq!(version_in("nothing"), None);
    }
}
