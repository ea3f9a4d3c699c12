//! A RabbitMQ cluster of three nodes, of which one after the other is killed while we publish: what was confirmed is there.
//!
//! The nodes are started and killed by the program that `TOWPATH_TEST_XTASK` names (`cargo xtask test` sets it); without,
//! there is nobody to do it, and the test ends early.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use towpath_broker::{BrokerUrl, RabbitMq};
use towpath_core::ports::broker::{
    Argument, Binding, Broker, Destination, Exchange, ExchangeKind, Message, Published, Queue, Topology,
};
use towpath_testkit::broker::acts::{message, subscribe, take};
use towpath_testkit::store::waiting::eventually;

/// How many messages are published at a time, and how many are to be confirmed before the next thing happens.
const BATCH: usize = 20;
const ENOUGH: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_confirmed_survives_the_death_of_the_queues_leader() {
    let Some(cluster) = Cluster::start().await else { return };
    let name = format!("towpath-test.{}", uuid::Uuid::now_v7());
    // The leader of a queue is on the node that it was declared on: the second.
    let declaring = connect(&cluster.url_of(1));
    declaring.declare(&topology(&name)).await.unwrap();
    declaring.close().await;

    let publisher = Publisher::start(connect(&cluster.url), &name);
    publisher.confirms_more("before anything is killed").await;
    // Our connection is to the first node, and stays.
    cluster.tell("kill", "rabbitmq-cluster-2").await;
    publisher.confirms_more("without the queue's leader").await;
    cluster.tell("up", "rabbitmq-cluster-2").await;
    // Our connection goes with its node.
    cluster.tell("kill", "rabbitmq-cluster-1").await;
    publisher.confirms_more("without the node that we were connected to").await;
    let confirmed = publisher.stop().await;

    let receiving = connect(&cluster.url);
    let deliveries = subscribe(&*receiving, &name, 100).await;
    let mut missing = confirmed.clone();
    while !missing.is_empty() {
        // It gives up when nothing comes any more.
        let received = take(&*deliveries, 1).await.remove(0);
        missing.remove(&received.message_id.unwrap());
    }
    println!("{} messages were confirmed, and all of them arrived", confirmed.len());
}

fn topology(name: &str) -> Topology {
    let text = |name: &str, value: &str| (name.to_owned(), Argument::Text(value.to_owned()));
    Topology {
        exchanges: vec![Exchange { name: name.to_owned(), kind: ExchangeKind::Topic }],
        queues: vec![Queue {
            name: name.to_owned(),
            arguments: vec![text("x-queue-type", "quorum"), text("x-queue-leader-locator", "client-local")],
        }],
        bindings: vec![Binding {
            queue: name.to_owned(),
            exchange: name.to_owned(),
            routing_key: "#".to_owned(),
        }],
    }
}

fn connect(url: &str) -> Arc<dyn Broker> {
    Arc::new(RabbitMq::connect(&BrokerUrl::parse(url).unwrap()).unwrap())
}

/// Publishes without end, and notes what was confirmed.
struct Publisher {
    confirmed: Arc<Mutex<BTreeSet<String>>>,
    stopping: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Publisher {
    fn start(broker: Arc<dyn Broker>, exchange: &str) -> Self {
        let (confirmed, stopping) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
        let destination = Destination { exchange: exchange.to_owned(), routing_key: "k".to_owned() };
        let (noted, told) = (Arc::clone(&confirmed), Arc::clone(&stopping));
        let task = tokio::spawn(async move {
            while !told.load(Ordering::SeqCst) {
                let messages: Vec<Message> = (0..BATCH).map(|_| message(&destination, "x")).collect();
                let outcomes = broker.publish(&messages, Duration::from_secs(5)).await;
                let mut noted = noted.lock().unwrap();
                for (message, outcome) in messages.into_iter().zip(outcomes) {
                    if outcome == Published::Confirmed {
                        noted.insert(message.message_id);
                    }
                }
            }
        });
        Self { confirmed, stopping, task }
    }

    async fn confirms_more(&self, when: &str) {
        let before = self.confirmed.lock().unwrap().len();
        let enough = || async { (self.confirmed.lock().unwrap().len() >= before + ENOUGH).then_some(()) };
        eventually(when, enough).await;
    }

    async fn stop(self) -> BTreeSet<String> {
        self.stopping.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
        let confirmed = self.confirmed.lock().unwrap();
        confirmed.clone()
    }
}

/// The three nodes, stopped with the test.
struct Cluster {
    program: String,
    url: String,
}

impl Cluster {
    async fn start() -> Option<Self> {
        const VARIABLE: &str = "TOWPATH_TEST_AMQP_CLUSTER_URL";
        let program = towpath_testkit::under_control("TOWPATH_TEST_XTASK")?;
        let mut cluster = Self { program, url: String::new() };
        cluster.tell("up", "rabbitmq-cluster").await;
        let told = cluster.tell("env", "rabbitmq-cluster").await;
        let url = told.lines().find_map(|line| line.strip_prefix(&format!("export {VARIABLE}=")));
        url.expect("the cluster's URL").clone_into(&mut cluster.url);
        Some(cluster)
    }

    /// One node alone, counted from none.
    fn url_of(&self, node: usize) -> String {
        let (user, rest) = self.url.rsplit_once('@').unwrap();
        let (hosts, path) = rest.split_once('/').unwrap();
        format!("{user}@{}/{path}", hosts.split(',').nth(node).unwrap())
    }

    async fn tell(&self, what: &'static str, server: &'static str) -> String {
        let program = self.program.clone();
        let telling = tokio::task::spawn_blocking(move || {
            Command::new(program).args(["services", what, server]).output().unwrap()
        });
        let output = telling.await.unwrap();
        assert!(output.status.success(), "{what} {server}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What is left of it is stopped by the next run.
        let _ = Command::new(&self.program).args(["services", "down", "rabbitmq-cluster"]).output();
    }
}
