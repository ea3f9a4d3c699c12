//! Three nodes of Debian's RabbitMQ that form a cluster, for tests that kill one of them. They are started when they are
//! named, and forget everything when they are stopped.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{COMPANIONS, DATA, LONGEST_START, MAIN_PROCESS, Node, newest_release, packaged_program};
use crate::failure::Failure;
use crate::services::home::Home;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};

/// All of them, by one name.
pub(in crate::services) const CLUSTER: &str = "rabbitmq-cluster";

/// The servers behind TOWPATH_TEST_AMQP_CLUSTER_URL.
pub(in crate::services) const CLUSTER_NODES: &[&dyn Server] = &[
    &Member {
        name: "rabbitmq-cluster-1",
        ports: &[7712, 7713, 7716],
        node: member("towpath1@localhost", 7710),
    },
    &Member {
        name: "rabbitmq-cluster-2",
        ports: &[7722, 7723, 7726],
        node: member("towpath2@localhost", 7720),
    },
    &Member {
        name: "rabbitmq-cluster-3",
        ports: &[7732, 7733, 7736],
        node: member("towpath3@localhost", 7730),
    },
];

/// One for all three.
pub(super) const MAPPER_PORT: u16 = 7715;

struct Member {
    name: &'static str,
    ports: &'static [u16],
    node: Node,
}

const fn member(name: &'static str, ports_from: u16) -> Node {
    Node {
        name,
        amqp_port: ports_from + 2,
        management_port: ports_from + 3,
        prometheus_port: None,
        mapper_port: MAPPER_PORT,
        distribution_port: ports_from + 6,
    }
}

/// Nodes that do not know the same word do not talk to each other. It keeps others out of nothing: all of it is on loopback.
const COOKIE: &str = "-setcookie towpathtests";

const FORMATION: &str = "\
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = towpath1@localhost
cluster_formation.classic_config.nodes.2 = towpath2@localhost
cluster_formation.classic_config.nodes.3 = towpath3@localhost
";

impl Server for Member {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        "a node of the RabbitMQ cluster"
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
        let url = "amqp://guest:guest@127.0.0.1:7712,127.0.0.1:7722,127.0.0.1:7732/%2f".to_owned();
        vec![Address { variable: "TOWPATH_TEST_AMQP_CLUSTER_URL", url }]
    }

    fn ports(&self) -> &'static [u16] {
        self.ports
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
        self.node.answers()
    }

    fn prepare(&self, home: &Home, _progress: &Progress) -> Result<(), Failure> {
        self.node.prepare(home, &["rabbitmq_management"], FORMATION)
    }

    fn forgets(&self) -> Option<&'static str> {
        Some(DATA)
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let mut rabbitmq = home.daemon(packaged_program()?);
        self.node.set_up(&mut rabbitmq, home, COOKIE);
        Ok(rabbitmq)
    }
}
