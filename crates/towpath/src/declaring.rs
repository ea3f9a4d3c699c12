//! What must exist on the broker is declared before anything is published or received.
//!
//! A broker that is away when an instance starts is no reason not to start: commands are taken, their events wait, and the
//! topology is declared as soon as the broker answers. It is declared again on every new connection, because a broker
//! that comes back may have forgotten it, and when nothing finds its place any more, because somebody may have removed
//! something.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use towpath_core::ports::broker::{Broker, BrokerError, BrokerResult, Topology};
use towpath_core::retry::Coded as _;

use crate::bus::with_causes;
use crate::service::{Backoff, Service, Stopping, Wake, rest};

/// How long a start waits for the broker. What is wrong with the topology is found by then, unless the broker is away.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// How often somebody looks.
#[derive(Clone, Copy)]
struct Pace {
    /// Whether there is a new connection.
    connections: Duration,
    /// Whether a topology that was refused is taken now: somebody has to change something first.
    refused: Duration,
}

/// How long a declaration is trusted when nothing finds its place.
const TRUSTED: Duration = Duration::from_secs(60);

const PACE: Pace = Pace { connections: Duration::from_secs(1), refused: Duration::from_secs(30) };

/// The topology of an instance, and whether the broker has it. Clones share it.
#[derive(Clone)]
pub(crate) struct Declaration(Arc<Shared>);

struct Shared {
    broker: Arc<dyn Broker>,
    topology: Topology,
    standing: watch::Sender<Progress>,
    wake: Wake,
}

#[derive(Default)]
struct Progress {
    /// Whether it has been declared since this instance started.
    declared: bool,
    /// The connections that the broker had when it last answered.
    answered_at: Option<u64>,
    /// When it last said yes.
    declared_at: Option<Instant>,
    /// What it answered, if not yes.
    refusal: Option<BrokerError>,
}

impl Declaration {
    /// Declares, and does not mind a broker that is away.
    ///
    /// # Errors
    /// What a broker that answers says against the topology.
    pub(crate) async fn begin(broker: Arc<dyn Broker>, topology: Topology) -> BrokerResult<Self> {
        let (standing, wake) = (watch::Sender::default(), Wake::default());
        let declaration = Self(Arc::new(Shared { broker, topology, standing, wake }));
        match tokio::time::timeout(START_PATIENCE, declaration.declare()).await {
            Ok(Ok(())) => {}
            Ok(Err(error @ BrokerError::Unavailable(_))) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "starting without the broker: events wait, and its topology is declared when it answers"
                );
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                tracing::warn!(
                    code = "broker-unavailable",
                    cause = "it does not answer",
                    "starting without the broker: events wait, and its topology is declared when it answers"
                );
            }
        }
        Ok(declaration)
    }

    /// Goes on declaring while the instance runs.
    pub(crate) fn keep(&self) -> Service {
        self.keep_at(PACE)
    }

    fn keep_at(&self, pace: Pace) -> Service {
        let declaration = self.clone();
        Service::keep_running("topology", move |stopping| declaration.clone().run(pace, stopping))
    }

    /// Waits until it is declared; whether it is, for somebody who may be told to stop meanwhile.
    pub(crate) async fn done(&self, stopping: &mut Stopping) -> bool {
        let mut standing = self.0.standing.subscribe();
        let declared = async {
            if standing.wait_for(|standing| standing.declared).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = declared => true,
            () = stopping.asked() => false,
        }
    }

    /// Whether the broker has answered for the topology on the connections it has now. Until it has, a message that it
    /// finds no place for says nothing about the message.
    pub(crate) fn is_current(&self) -> bool {
        self.0.standing.borrow().answered_at == Some(self.0.broker.connections())
    }

    /// Asks for a new declaration because nothing finds its place, unless the last one is fresh. True if it is not: until it
    /// is, what finds no place says nothing about the message.
    pub(crate) fn doubt(&self) -> bool {
        self.doubt_after(TRUSTED)
    }

    fn doubt_after(&self, trusted: Duration) -> bool {
        let mut doubted = false;
        self.0.standing.send_if_modified(|standing| {
            doubted = standing.declared_at.is_some_and(|at| at.elapsed() >= trusted);
            if doubted {
                (standing.answered_at, standing.declared_at) = (None, None);
            }
            false
        });
        if doubted {
            self.hurry();
        }
        doubted
    }

    /// Asks for a declaration now if there are new connections.
    pub(crate) fn hurry(&self) {
        self.0.wake.wake();
    }

    /// Whether the broker has the topology.
    ///
    /// # Errors
    /// What it said against it, or that it has not answered yet.
    pub(crate) fn check(&self) -> BrokerResult<()> {
        let standing = self.0.standing.borrow();
        match &standing.refusal {
            _ if standing.declared => Ok(()),
            Some(refusal) => Err(refusal.repeated()),
            None => Err(BrokerError::Unavailable("its topology is not declared yet".into())),
        }
    }

    async fn run(self, pace: Pace, mut stopping: Stopping) {
        let mut backoff = Backoff::default();
        while !stopping.is_asked() {
            let mut pause = pace.connections;
            // What was refused may have been put right meanwhile.
            if !self.is_current() || self.0.standing.borrow().refusal.is_some() {
                let declared = tokio::select! {
                    () = stopping.asked() => return,
                    declared = self.declare() => declared,
                };
                pause = match declared {
                    Ok(()) => pace.connections,
                    Err(BrokerError::Unavailable(_)) => backoff.next(),
                    Err(_) => pace.refused,
                };
            } else {
                backoff = Backoff::default();
            }
            rest(&self.0.wake, pause, &mut stopping).await;
        }
    }

    async fn declare(&self) -> BrokerResult<()> {
        let Shared { broker, topology, standing, .. } = &*self.0;
        // Read before: a connection that is made meanwhile may be to a broker that knows nothing.
        let connections = broker.connections();
        let answer = broker.declare(topology).await;
        match &answer {
            Ok(()) => {
                let mut first = false;
                standing.send_if_modified(|standing| {
                    first = !standing.declared;
                    let is_news = first || standing.answered_at.is_none();
                    *standing = Progress {
                        declared: true,
                        answered_at: Some(connections),
                        declared_at: Some(Instant::now()),
                        refusal: None,
                    };
                    is_news
                });
                if first {
                    tracing::info!("the broker has the topology");
                }
            }
            Err(BrokerError::Unavailable(_)) => {}
            Err(error) => {
                tracing::error!(
                    code = error.code(),
                    cause = with_causes(error),
                    next_step = error.next_step(),
                    "the broker refuses the topology"
                );
                standing.send_if_modified(|standing| {
                    standing.answered_at = Some(connections);
                    standing.refusal = Some(error.repeated());
                    false
                });
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use towpath_core::ports::broker::{
        BrokerPromises, Deliveries, Message, Published, QueueStatus, Subscription,
    };

    use super::*;

    /// A broker whose connections and answers a test decides.
    struct Scripted {
        connections: AtomicU64,
        answer: Mutex<fn() -> BrokerResult<()>>,
        declared: watch::Sender<u64>,
    }

    #[async_trait]
    impl Broker for Scripted {
        fn promises(&self) -> BrokerPromises {
            towpath_broker::local::PROMISES
        }

        fn connections(&self) -> u64 {
            self.connections.load(Ordering::SeqCst)
        }

        async fn ready(&self) -> BrokerResult<()> {
            Ok(())
        }

        async fn declare(&self, _: &Topology) -> BrokerResult<()> {
            self.declared.send_modify(|declared| *declared += 1);
            let answer = *self.answer.lock().unwrap();
            answer()
        }

        async fn publish(&self, messages: &[Message], _: Duration) -> Vec<Published> {
            vec![Published::Confirmed; messages.len()]
        }

        async fn subscribe(&self, _: &Subscription) -> BrokerResult<Box<dyn Deliveries>> {
            away().map(|()| unreachable!())
        }

        async fn queue_status(&self, _: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
            Ok(Vec::new())
        }

        async fn close(&self) {}
    }

    fn yes() -> BrokerResult<()> {
        Ok(())
    }

    fn away() -> BrokerResult<()> {
        Err(BrokerError::Unavailable("nobody listens".into()))
    }

    fn no() -> BrokerResult<()> {
        Err(BrokerError::Mismatch { what: "queue", name: "q".to_owned(), difference: "durable".to_owned() })
    }

    fn scripted(answer: fn() -> BrokerResult<()>) -> Arc<Scripted> {
        let (connections, answer) = (AtomicU64::new(1), Mutex::new(answer));
        Arc::new(Scripted { connections, answer, declared: watch::Sender::new(0) })
    }

    const OFTEN: Pace = Pace { connections: Duration::from_millis(2), refused: Duration::from_millis(5) };

    async fn until(broker: &Scripted, declared: u64) {
        let reached =
            async { broker.declared.subscribe().wait_for(|so_far| *so_far >= declared).await.is_ok() };
        assert!(tokio::time::timeout(Duration::from_secs(10), reached).await.expect("it is declared"));
    }

    #[tokio::test]
    async fn it_is_declared_again_on_a_new_connection() {
        let broker = scripted(yes);
        let declaration = Declaration::begin(broker.clone(), Topology::default()).await.unwrap();
        assert!(declaration.is_current());
        let mut service = declaration.keep_at(OFTEN);
        for connection in 2..5 {
            broker.connections.store(connection, Ordering::SeqCst);
            until(&broker, connection).await;
        }
        service.stop().await;
        assert_eq!(*broker.declared.borrow(), 4, "once for each");
        assert!(declaration.is_current());
        broker.connections.store(5, Ordering::SeqCst);
        assert!(!declaration.is_current(), "a broker that comes back may have forgotten it");
    }

    #[tokio::test]
    async fn it_is_declared_again_when_nothing_finds_its_place() {
        let broker = scripted(yes);
        let declaration = Declaration::begin(broker.clone(), Topology::default()).await.unwrap();
        assert!(!declaration.doubt(), "it was declared a moment ago");
        assert!(declaration.is_current());
        assert!(declaration.doubt_after(Duration::ZERO));
        assert!(!declaration.is_current(), "until it is declared again");
        assert!(!declaration.doubt_after(Duration::ZERO), "once is enough");
        let mut service = declaration.keep_at(OFTEN);
        until(&broker, 2).await;
        let mut standing = declaration.0.standing.subscribe();
        let declared = standing.wait_for(|standing| standing.answered_at.is_some());
        drop(tokio::time::timeout(Duration::from_secs(10), declared).await.expect("it is").unwrap());
        service.stop().await;
        assert!(declaration.is_current());
    }

    #[tokio::test]
    async fn what_is_refused_later_is_told_and_tried_again() {
        let broker = scripted(away);
        let declaration = Declaration::begin(broker.clone(), Topology::default()).await.unwrap();
        assert_eq!(declaration.check().unwrap_err().code(), "broker-unavailable");
        *broker.answer.lock().unwrap() = no;
        let mut service = declaration.keep_at(OFTEN);
        until(&broker, 3).await;
        assert_eq!(declaration.check().unwrap_err().code(), "topology-mismatch");
        *broker.answer.lock().unwrap() = yes;
        let mut running = Service::start("waiting", |mut stopping| {
            let declaration = declaration.clone();
            async move { assert!(declaration.done(&mut stopping).await) }
        });
        let mut standing = declaration.0.standing.subscribe();
        let declared = standing.wait_for(|standing| standing.declared);
        let declared = tokio::time::timeout(Duration::from_secs(10), declared).await.expect("it is declared");
        drop(declared.unwrap());
        declaration.check().unwrap();
        running.stop().await;
        service.stop().await;
    }

    #[tokio::test]
    async fn what_is_refused_at_the_start_stops_it_and_silence_does_not() {
        let refused = Declaration::begin(scripted(no), Topology::default()).await.err().unwrap();
        assert_eq!(refused.code(), "topology-mismatch");
        assert!(Declaration::begin(scripted(away), Topology::default()).await.is_ok());
    }
}
