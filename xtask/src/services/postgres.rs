//! PostgreSQL from Debian's package, durable as it comes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::Failure;
use crate::services::home::Home;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};

/// The server behind TOWPATH_TEST_POSTGRES_URL.
pub(super) struct Postgres;

const PORT: u16 = 7432;

/// Above the defaults because many tests run at once, each with its own pool; logical decoding is on
/// because it cannot be switched on without a restart. Everything about durability stays as it comes.
const SETTINGS: &[&str] =
    &["listen_addresses=127.0.0.1", "max_connections=400", "shared_buffers=256MB", "wal_level=logical"];

impl Server for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn title(&self) -> &'static str {
        "PostgreSQL"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["postgresql"]
    }

    fn user(&self) -> &'static str {
        "postgres"
    }

    fn main_process_name(&self) -> &'static str {
        "postgres"
    }

    fn stop_signal(&self) -> &'static str {
        // TERM would wait for every client to leave.
        "INT"
    }

    fn addresses(&self) -> Vec<Address> {
        let url = format!("postgres://postgres@127.0.0.1:{PORT}/postgres");
        vec![Address { variable: "TOWPATH_TEST_POSTGRES_URL", url }]
    }

    fn ports(&self) -> &'static [u16] {
        &[PORT]
    }

    fn longest_start(&self) -> Duration {
        // Boots in under a second, but may have the log of a killed run to replay.
        Duration::from_secs(90)
    }

    fn is_installed(&self) -> bool {
        newest_release().is_some()
    }

    fn version(&self) -> Option<String> {
        let (_, programs) = newest_release()?;
        let output = Command::new(programs.join("postgres")).arg("--version").output().ok()?;
        // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
        String::from_utf8_lossy(&output.stdout).split_whitespace().nth(2).map(str::to_owned)
    }

    fn answers(&self) -> bool {
        let Some((_, programs)) = newest_release() else {
            return false;
        };
        let mut probe = Command::new(programs.join("pg_isready"));
        probe.args(["-h", "127.0.0.1", "-p", &PORT.to_string(), "-U", "postgres", "-t", "3"]);
        probe.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    }

    fn prepare(&self, home: &Home, progress: &Progress) -> Result<(), Failure> {
        let (release, programs) = installed_release()?;
        let data = data_folder(home, release);
        if data.join("PG_VERSION").exists() {
            return remove_misleading_lock(&data);
        }
        progress.step(self.name(), "creating an empty database");
        // Made under another name first: an interrupted initdb must not look like a database.
        let unfinished = data.with_extension("unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)
                .map_err(Failure::while_trying(format!("remove {}", unfinished.display())))?;
        }
        let mut initdb = home.command(programs.join("initdb"));
        initdb.arg("-D").arg(&unfinished);
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]);
        home.run(initdb)?;
        fs::rename(&unfinished, &data).map_err(Failure::while_trying(format!("make {}", data.display())))
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let (release, programs) = installed_release()?;
        let mut postgres = home.daemon(programs.join("postgres"));
        postgres.arg("-D").arg(data_folder(home, release));
        postgres.arg("-p").arg(PORT.to_string()).arg("-k").arg(home.run_folder());
        for setting in SETTINGS {
            postgres.arg("-c").arg(setting);
        }
        Ok(postgres)
    }
}

/// The data of one major release cannot be opened by another, so each has its own.
fn data_folder(home: &Home, release: u32) -> PathBuf {
    home.folder().join(format!("data-{release}"))
}

/// PostgreSQL removes the lock file of a killed run by itself, unless the number in it belongs to a process:
/// a zombie that nobody has asked for yet, or a stranger that got the number later. None of our processes
/// lives in this folder when we get here, so such a lock protects nothing.
fn remove_misleading_lock(data: &Path) -> Result<(), Failure> {
    let lock_file = data.join("postmaster.pid");
    let Ok(content) = fs::read_to_string(&lock_file) else {
        return Ok(());
    };
    let owner = content.lines().next().unwrap_or_default().trim();
    if Path::new("/proc").join(owner).exists() {
        fs::remove_file(&lock_file)
            .map_err(Failure::while_trying(format!("remove {}", lock_file.display())))?;
    }
    Ok(())
}

fn installed_release() -> Result<(u32, PathBuf), Failure> {
    newest_release().ok_or_else(|| Failure::new("PostgreSQL is not installed"))
}

fn newest_release() -> Option<(u32, PathBuf)> {
    let releases = fs::read_dir(Path::new("/usr/lib/postgresql")).ok()?.flatten();
    releases
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
        })
        // The client's package alone makes the folder, too.
        .filter(|(_, programs)| programs.join("initdb").exists() && programs.join("pg_isready").exists())
        .max()
}
