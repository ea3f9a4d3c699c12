//! A Kafka broker: nisshi, built with cargo, because no package of Debian brings one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cargo::cargo;
use crate::failure::Failure;
use crate::services::data_root;
use crate::services::home::{Home, indented_tail};
use crate::services::installation::is_on_path;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};

/// The broker behind TOWPATH_TEST_KAFKA_URL. It keeps everything in memory: stopped, it forgets.
pub(super) struct Kafka;

const PORT: u16 = 7092;
const VERSION: &str = "0.8.1";

impl Server for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn title(&self) -> &'static str {
        "Kafka (nisshi)"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["cmake", "g++", "make", "protobuf-compiler"]
    }

    fn has_packages(&self) -> bool {
        self.is_installed() || ["cmake", "g++", "make", "protoc"].into_iter().all(is_on_path)
    }

    fn build(&self, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
        let cache = cache_in(data_root);
        let log_path = data_root.join("nisshi-build.log");
        let attempt = format!("build nisshi in {}", cache.display());
        let what = format!(
            "building nisshi {VERSION} once, for 5 to 15 minutes; `tail -f {}` shows how far it is",
            log_path.display()
        );
        progress.step(self.name(), &what);
        fs::create_dir_all(&cache).map_err(Failure::while_trying(&attempt))?;
        let log = File::create(&log_path).map_err(Failure::while_trying(&attempt))?;
        let log_for_errors = log.try_clone().map_err(Failure::while_trying(&attempt))?;
        let intermediate = cache.join("building");
        let status = cargo(&["install", "nisshi", "--version", VERSION, "--locked", "--debug"])
            .args(["--ignore-rust-version", "--no-default-features", "--features", "dynostore", "--root"])
            .arg(&cache)
            // Not the repository's: its settings are not meant for others.
            .current_dir(&cache)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // A folder of its own, so that a build that is interrupted goes on where it was.
            .env("CARGO_TARGET_DIR", &intermediate)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_for_errors)
            .status()
            .map_err(Failure::while_trying(&attempt))?;
        if !status.success() {
            let said = fs::read(&log_path).unwrap_or_default();
            let tail = indented_tail(&String::from_utf8_lossy(&said));
            return Err(Failure::new(format!(
                "nisshi cannot be built ({status}); the end of {}:\n{tail}",
                log_path.display()
            ))
            .next_step("set TOWPATH_TEST_KAFKA_URL to a Kafka broker that tests may use"));
        }
        progress.step(self.name(), "built");
        // A gigabyte that nobody needs any more.
        fs::remove_dir_all(&intermediate)
            .map_err(Failure::while_trying(format!("remove {}", intermediate.display())))
    }

    fn user(&self) -> &'static str {
        // No package creates one for it; this one is on every Debian, with a group of the same name.
        "daemon"
    }

    fn main_process_name(&self) -> &'static str {
        "nisshi"
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }

    fn addresses(&self) -> Vec<Address> {
        let mut addresses =
            vec![Address { variable: "TOWPATH_TEST_KAFKA_URL", url: format!("kafka://127.0.0.1:{PORT}") }];
        if let Some(program) = program() {
            let url = format!("file://{}", program.display());
            addresses.push(Address { variable: "TOWPATH_TEST_KAFKA_PROGRAM", url });
        }
        addresses
    }

    fn ports(&self) -> &'static [u16] {
        &[PORT]
    }

    fn longest_start(&self) -> Duration {
        // A tenth of a second on an idle machine.
        Duration::from_secs(60)
    }

    fn is_installed(&self) -> bool {
        program().is_some_and(|program| program.exists())
    }

    fn version(&self) -> Option<String> {
        self.is_installed().then(|| VERSION.to_owned())
    }

    fn answers(&self) -> bool {
        speaks_kafka().unwrap_or(false)
    }

    fn prepare(&self, _home: &Home, _progress: &Progress) -> Result<(), Failure> {
        Ok(())
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let program = program().ok_or_else(|| Failure::new("nisshi is not built"))?;
        let mut nisshi = home.daemon(program);
        let listener = format!("tcp://127.0.0.1:{PORT}");
        nisshi
            .arg("broker")
            .args(["--listener-url", &listener, "--advertised-listener-url", &listener])
            .args(["--storage-engine", "memory://nisshi/"])
            // By default every new group waits 3 seconds for more members, and every test has a group of its own.
            .args(["--group-initial-rebalance-delay", "100ms"]);
        Ok(nisshi)
    }
}

/// One folder per version: a new version is built beside the old one.
fn cache_in(data_root: &Path) -> PathBuf {
    data_root.join("cache").join(format!("nisshi-{VERSION}"))
}

fn program() -> Option<PathBuf> {
    Some(cache_in(&data_root().ok()?).join("bin/nisshi"))
}

/// Asks for the protocol's versions and looks whether the answer is to that question.
fn speaks_kafka() -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(5);
    const QUESTION: u32 = 0x746f_7770;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // ApiVersions (18), version 0, without a client id.
    let mut request = Vec::from([0, 18, 0, 0]);
    request.extend(QUESTION.to_be_bytes());
    request.extend([0xff, 0xff]);
    let length = u32::try_from(request.len()).unwrap_or_default();
    stream.write_all(&[length.to_be_bytes().to_vec(), request].concat())?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    Ok(answer[4..] == QUESTION.to_be_bytes())
}
