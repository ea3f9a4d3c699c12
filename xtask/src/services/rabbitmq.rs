//! RabbitMQ from Debian's package, as a node of its own beside whatever else runs on the machine; and what all nodes that
//! tests use have in common.

mod cluster;
mod newer;

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

pub(super) use cluster::{CLUSTER, CLUSTER_NODES};
pub(super) use newer::Rabbitmq4;

/// The broker behind TOWPATH_TEST_AMQP_URL.
pub(super) struct Rabbitmq;

/// What tells one node from another.
struct Node {
    /// As Erlang knows it.
    name: &'static str,
    amqp_port: u16,
    management_port: u16,
    /// Where it tells its numbers, if it does.
    prometheus_port: Option<u16>,
    /// Erlang's port mapper. A private one, because that of the machine's own broker would be shared.
    mapper_port: u16,
    /// Must be chosen: its default is the AMQP port plus 20000, which can be too large for a port.
    distribution_port: u16,
}

const NODE: Node = Node {
    name: "towpath@localhost",
    amqp_port: 7672,
    management_port: 7673,
    prometheus_port: Some(7674),
    mapper_port: 7675,
    distribution_port: 7676,
};

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
        MAIN_PROCESS
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }

    fn companions(&self) -> &'static [&'static str] {
        COMPANIONS
    }

    fn addresses(&self) -> Vec<Address> {
        vec![
            Address { variable: "TOWPATH_TEST_AMQP_URL", url: NODE.url() },
            Address {
                variable: "TOWPATH_TEST_AMQP_MANAGEMENT_URL",
                url: format!("http://guest:guest@127.0.0.1:{}", NODE.management_port),
            },
        ]
    }

    fn ports(&self) -> &'static [u16] {
        // The port mapper's is not among them: it outlives its node, and the next one uses it.
        &[7672, 7673, 7674, 7676]
    }

    fn longest_start(&self) -> Duration {
        LONGEST_START
    }

    fn is_installed(&self) -> bool {
        newest_release(Path::new("/")).is_some()
    }

    fn version(&self) -> Option<String> {
        newest_release(Path::new("/")).map(|(version, _)| version)
    }

    fn answers(&self) -> bool {
        NODE.answers()
    }

    fn prepare(&self, home: &Home, _progress: &Progress) -> Result<(), Failure> {
        NODE.prepare(home, &["rabbitmq_management", "rabbitmq_prometheus"], "")
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        // The script itself and not /usr/sbin/rabbitmq-server, which would change the user again.
        let mut rabbitmq = home.daemon(packaged_program()?);
        NODE.set_up(&mut rabbitmq, home, "");
        Ok(rabbitmq)
    }
}

/// Runs the broker's own tool on our node.
pub(super) fn control(home: &Home, arguments: &[String]) -> Result<(), Failure> {
    NODE.control(home.command(packaged_program()?.with_file_name(TOOL)), home, arguments)
}

/// The same on our node of the newer release.
pub(super) fn control_newer(home: &Home, arguments: &[String]) -> Result<(), Failure> {
    newer::control(home, arguments)
}

const MAIN_PROCESS: &str = "beam.smp";
const COMPANIONS: &[&str] = &["epmd"];
const TOOL: &str = "rabbitmqctl";
/// 10 to 20 seconds on an idle machine.
const LONGEST_START: Duration = Duration::from_secs(180);

impl Node {
    fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.amqp_port)
    }

    fn answers(&self) -> bool {
        // The management interface is up before the broker listens, so it is asked about the listener.
        let path = format!("/api/health/checks/port-listener/{}", self.amqp_port);
        management_status(self.management_port, &path).is_ok_and(|status| status == "200")
    }

    /// Writes the node's files; `more` is added to its configuration.
    fn prepare(&self, home: &Home, plugins: &[&str], more: &str) -> Result<(), Failure> {
        let mut configuration =
            format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {}\n", self.management_port);
        if let Some(port) = self.prometheus_port {
            configuration += &format!("prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {port}\n");
        }
        home.write(&configuration_file(home), &(configuration + more))?;
        home.write(&plugins_file(home), &format!("[{}].\n", plugins.join(",")))?;
        // An empty one of our own keeps the script from reading the machine's in /etc.
        home.write(&environment_file(home), "")
    }

    /// Tells the server's script which node it is; `more` goes to Erlang.
    fn set_up(&self, server: &mut Command, home: &Home, more: &str) {
        server
            .env("RABBITMQ_NODENAME", self.name)
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.amqp_port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution_port.to_string())
            .env("ERL_EPMD_PORT", self.mapper_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", home.folder().join(DATA))
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
                format!(
                    "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {{127,0,0,1}} {more}"
                ),
            );
    }

    /// Runs the broker's own tool, which was found by whoever calls.
    fn control(&self, mut tool: Command, home: &Home, arguments: &[String]) -> Result<(), Failure> {
        tool.args(["-n", self.name]).args(arguments);
        tool.env("ERL_EPMD_PORT", self.mapper_port.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", environment_file(home));
        let status = tool.status().map_err(Failure::while_trying("run rabbitmqctl"))?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("rabbitmqctl failed ({status})"))) }
    }
}

/// The folder of a node's messages.
const DATA: &str = "data";

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
fn management_status(port: u16, path: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
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

fn packaged_program() -> Result<PathBuf, Failure> {
    let release = newest_release(Path::new("/"));
    release.map(|(_, program)| program).ok_or_else(|| Failure::new("RabbitMQ is not installed"))
}

/// The newest release below a root of the file system: its version, and the script that starts it.
fn newest_release(root: &Path) -> Option<(String, PathBuf)> {
    let releases = fs::read_dir(root.join("usr/lib/rabbitmq/lib")).ok()?.flatten();
    releases
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.strip_prefix("rabbitmq_server-")?.to_owned();
            Some((version, entry.path().join("sbin/rabbitmq-server")))
        })
        .filter(|(_, program)| program.exists())
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_used_twice() {
        let servers = [&Rabbitmq as &dyn Server, &Rabbitmq4].into_iter().chain(CLUSTER_NODES.iter().copied());
        let mut ports: Vec<u16> = servers.flat_map(|server| server.ports()).copied().collect();
        ports.extend([NODE.mapper_port, newer::NODE.mapper_port, cluster::MAPPER_PORT]);
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
    }
}
