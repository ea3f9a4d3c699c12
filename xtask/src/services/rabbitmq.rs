//! RabbitMQ from Debian's package, as a node of its own beside whatever else runs on the machine.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::failure::Failure;
use crate::services::home::Home;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};

/// The broker behind TOWPATH_TEST_AMQP_URL.
pub(super) struct Rabbitmq;

const NODE: &str = "towpath@localhost";
const AMQP_PORT: u16 = 7672;
const MANAGEMENT_PORT: u16 = 7673;
const PROMETHEUS_PORT: u16 = 7674;
/// Erlang's port mapper. A private one, because that of the machine's own broker would be shared.
const PORT_MAPPER_PORT: u16 = 7675;
/// Must be chosen: its default is the AMQP port plus 20000, which can be too large for a port.
const DISTRIBUTION_PORT: u16 = 7676;

impl Server for Rabbitmq {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn title(&self) -> &'static str {
        "RabbitMQ"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["rabbitmq-server"]
    }

    fn user(&self) -> &'static str {
        "rabbitmq"
    }

    fn main_process_name(&self) -> &'static str {
        "beam.smp"
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }

    fn companions(&self) -> &'static [&'static str] {
        &["epmd"]
    }

    fn addresses(&self) -> Vec<Address> {
        vec![
            Address {
                variable: "TOWPATH_TEST_AMQP_URL",
                url: format!("amqp://guest:guest@127.0.0.1:{AMQP_PORT}/%2f"),
            },
            Address {
                variable: "TOWPATH_TEST_AMQP_MANAGEMENT_URL",
                url: format!("http://guest:guest@127.0.0.1:{MANAGEMENT_PORT}"),
            },
        ]
    }

    fn ports(&self) -> &'static [u16] {
        // The port mapper's is not among them: it outlives its node, and the next one uses it.
        &[AMQP_PORT, MANAGEMENT_PORT, PROMETHEUS_PORT, DISTRIBUTION_PORT]
    }

    fn longest_start(&self) -> Duration {
        // 10 to 20 seconds on an idle machine.
        Duration::from_secs(180)
    }

    fn is_installed(&self) -> bool {
        newest_release().is_some()
    }

    fn version(&self) -> Option<String> {
        newest_release().map(|(version, _)| version)
    }

    fn answers(&self) -> bool {
        // The management interface is up before the broker listens, so it is asked about the listener.
        let path = format!("/api/health/checks/port-listener/{AMQP_PORT}");
        management_status(&path).is_ok_and(|status| status == "200")
    }

    fn prepare(&self, home: &Home, _progress: &Progress) -> Result<(), Failure> {
        home.write(&configuration_file(home), &configuration())?;
        home.write(&plugins_file(home), "[rabbitmq_management,rabbitmq_prometheus].\n")?;
        // An empty one of our own keeps the script from reading the machine's in /etc.
        home.write(&environment_file(home), "")
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let (_, program) = newest_release().ok_or_else(|| Failure::new("RabbitMQ is not installed"))?;
        // The script itself and not /usr/sbin/rabbitmq-server, which would change the user again.
        let mut rabbitmq = home.daemon(program);
        rabbitmq
            .env("RABBITMQ_NODENAME", NODE)
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", AMQP_PORT.to_string())
            .env("RABBITMQ_DIST_PORT", DISTRIBUTION_PORT.to_string())
            .env("ERL_EPMD_PORT", PORT_MAPPER_PORT.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", home.folder().join("data"))
            .env("RABBITMQ_LOG_BASE", home.log_folder())
            // To stdout, which is the log file that a failed start shows.
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_PID_FILE", home.run_folder().join("rabbitmq.pid"))
            .env("RABBITMQ_CONFIG_FILE", configuration_file(home))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins_file(home))
            .env("RABBITMQ_CONF_ENV_FILE", environment_file(home))
            // Waiting threads sleep instead of spinning: the tests need the processors.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}",
            );
        Ok(rabbitmq)
    }
}

/// Runs the broker's own tool on our node.
pub(super) fn control(home: &Home, arguments: &[String]) -> Result<(), Failure> {
    let (_, server) = newest_release().ok_or_else(|| Failure::new("RabbitMQ is not installed"))?;
    let mut tool = home.command(server.with_file_name("rabbitmqctl"));
    tool.args(["-n", NODE]).args(arguments);
    tool.env("ERL_EPMD_PORT", PORT_MAPPER_PORT.to_string())
        .env("RABBITMQ_CONF_ENV_FILE", environment_file(home));
    let status = tool.status().map_err(Failure::while_trying("run rabbitmqctl"))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("rabbitmqctl failed ({status})"))) }
}

fn configuration() -> String {
    format!(
        "management.tcp.ip = 127.0.0.1\n\
         management.tcp.port = {MANAGEMENT_PORT}\n\
         prometheus.tcp.ip = 127.0.0.1\n\
         prometheus.tcp.port = {PROMETHEUS_PORT}\n"
    )
}

fn configuration_file(home: &Home) -> PathBuf {
    home.folder().join("rabbitmq.conf")
}

fn plugins_file(home: &Home) -> PathBuf {
    home.folder().join("enabled_plugins")
}

fn environment_file(home: &Home) -> PathBuf {
    home.folder().join("rabbitmq-env.conf")
}

/// The status code that the management interface answers to a GET.
fn management_status(path: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, MANAGEMENT_PORT));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // guest:guest in base64.
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer)?;
    let status = String::from_utf8_lossy(&answer).split_whitespace().nth(1).unwrap_or_default().to_owned();
    Ok(status)
}

fn newest_release() -> Option<(String, PathBuf)> {
    let releases = fs::read_dir(Path::new("/usr/lib/rabbitmq/lib")).ok()?.flatten();
    releases
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.strip_prefix("rabbitmq_server-")?.to_owned();
            Some((version, entry.path().join("sbin/rabbitmq-server")))
        })
        .filter(|(_, program)| program.exists())
        .max()
}
