//! Gauges that need an answer of the store or the broker: asked when somebody looks, and not more often than every few
//! seconds however often that is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use towpath_core::ids::ChannelName;
use towpath_core::lifecycle::LetterStatus;
use towpath_core::ports::broker::{Broker, BrokerResult, QueueStatus};
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::{Backlog, StoreError, StoreResult};
use towpath_core::retry::Coded as _;
use towpath_core::task::TaskType;
use towpath_core::time::between;
use towpath_store::SqlStore;

use super::facade::Counter;
use super::figures::Figures;
use super::table::{self, Metric};
use crate::bus::with_causes;
use crate::leases::Held;
use crate::observer::ObserverStatuses;
use crate::registry::Registry;
use crate::towpath::Towpath;

/// How old answers may be before they are asked for again.
const FRESH: Duration = Duration::from_secs(5);

/// How long an answer is waited for. Prometheus gives up after ten seconds by default.
const PATIENCE: Duration = Duration::from_secs(3);

/// The consumer of letters that the broker gave up.
const BROKER: &str = "(broker)";

/// What the store is asked for. Where there is nothing of the sort, that is known.
const OF_THE_STORE: [Metric; 12] = [
    table::COMMAND_BOX,
    table::OUTBOX_ROWS,
    table::OUTBOX_LAG,
    table::LOG_HEAD,
    table::LOG_PENDING,
    table::OVERDUE,
    table::TRACKER_POSITION,
    table::TRACKER_LAG,
    table::DEAD_LETTERS,
    table::TIMERS,
    table::TASKS,
    table::TASKS_QUEUED,
];

/// What is asked when somebody looks.
pub(crate) struct Gauges {
    store: SqlStore,
    broker: Arc<dyn Broker>,
    clock: Arc<dyn Clock>,
    registry: Arc<Registry>,
    held: Option<watch::Receiver<Held>>,
    /// Channels of this instance with outbox rows.
    channels: Vec<ChannelName>,
    /// Queues that this instance has declared or takes from.
    queues: Vec<String>,
    /// Observers of this instance.
    observers: ObserverStatuses,
    looked: Mutex<Looked>,
    store_errors: Counter,
    broker_errors: Counter,
}

#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    /// Whose letters were ever seen: they show 0 when there are none any more.
    consumers: BTreeSet<String>,
}

impl Towpath {
    /// Sets the gauges of [`metrics`](crate::metrics): asks the store and the broker, each for three seconds at most, and
    /// not again within five. What does not answer is counted in `towpath_scrape_errors_total`, and its gauges stay as
    /// they were. Call it before the recorder is read.
    pub async fn measure(&self) {
        self.gauges.measure().await;
    }

    /// How much each of these queues holds, as the broker tells it; `None` for one that is not there.
    pub async fn queue_status(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
        if !self.gauges.broker.promises().tells_standing {
            return Ok(vec![None; queues.len()]);
        }
        self.gauges.broker.queue_status(queues).await
    }
}

impl Gauges {
    #[allow(clippy::too_many_arguments, reason = "each is a part of the instance, given once at its start")]
    pub(crate) fn new(
        store: SqlStore,
        broker: Arc<dyn Broker>,
        clock: Arc<dyn Clock>,
        registry: Arc<Registry>,
        held: Option<watch::Receiver<Held>>,
        channels: Vec<ChannelName>,
        queues: BTreeSet<String>,
        consumers: BTreeSet<String>,
        observers: ObserverStatuses,
    ) -> Self {
        let error = |part| table::SCRAPE_ERRORS.counter(&[part]);
        let mut known = consumers;
        known.insert(BROKER.to_owned());
        Self {
            store,
            broker,
            clock,
            registry,
            held,
            channels,
            queues: queues.into_iter().collect(),
            observers,
            looked: Mutex::new(Looked { at: None, consumers: known }),
            store_errors: error("store"),
            broker_errors: error("broker"),
        }
    }

    /// Channels with outbox rows.
    pub(super) fn channels(&self) -> &[ChannelName] {
        &self.channels
    }

    async fn measure(&self) {
        // Whoever comes while somebody asks waits for that answer, and has it.
        let mut looked = self.looked.lock().await;
        self.measure_ourselves();
        if looked.at.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        self.look(&mut looked).await;
    }

    /// The same at once, however fresh the last answers are; answers what was found. What did not answer is not in it.
    pub(super) async fn measure_anew(&self) -> (Figures, Option<Backlog>) {
        let mut looked = self.looked.lock().await;
        self.measure_ourselves();
        self.look(&mut looked).await
    }

    async fn look(&self, looked: &mut Looked) -> (Figures, Option<Backlog>) {
        let consumers = &mut looked.consumers;
        let (store, broker) = tokio::join!(
            tokio::time::timeout(PATIENCE, self.measure_store(consumers)),
            tokio::time::timeout(PATIENCE, self.measure_broker()),
        );
        let mut figures = Figures::default();
        let mut backlog = None;
        match store {
            Ok(Ok((found, counted))) => {
                figures.extend(found);
                backlog = Some(counted);
            }
            Ok(Err(error)) => self.store_failed(&error),
            Err(_) => {
                self.store_errors.increment(1);
                tracing::warn!(patience = ?PATIENCE, "the store was not measured in time");
            }
        }
        match broker {
            Ok(Ok(found)) => figures.extend(found),
            Ok(Err(error)) => {
                self.broker_errors.increment(1);
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not measure the broker"
                );
            }
            Err(_) => {
                self.broker_errors.increment(1);
                tracing::warn!(patience = ?PATIENCE, "the broker was not measured in time");
            }
        }
        looked.at = Some(Instant::now());
        (figures, backlog)
    }

    pub(super) fn store_failed(&self, error: &StoreError) {
        self.store_errors.increment(1);
        tracing::warn!(code = error.code(), cause = with_causes(error), "could not measure the store");
    }

    /// What needs no answer.
    fn measure_ourselves(&self) {
        table::BUILD_INFO.gauge(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        for pool in self.store.connections() {
            table::CONNECTIONS.gauge(&[pool.pool, "idle"]).set(number(pool.idle));
            table::CONNECTIONS.gauge(&[pool.pool, "used"]).set(number(pool.used));
            table::CONNECTIONS_MAX.gauge(&[pool.pool]).set(number(pool.most));
        }
        self.observers.measure();
        let Some(held) = &self.held else { return };
        let held = held.borrow();
        for (lease, grant) in
            [("instance", &held.instance), ("sequencer", &held.sequencer), ("cleaner", &held.cleaner)]
        {
            table::LEASES_HELD.gauge(&[lease]).set(if grant.is_some() { 1.0 } else { 0.0 });
        }
        for (channel, share) in &held.channels {
            table::PARTITIONS_HELD.gauge(&[channel.as_str()]).set(number(share.partitions.len() as u64));
        }
    }

    async fn measure_store(&self, consumers: &mut BTreeSet<String>) -> StoreResult<(Figures, Backlog)> {
        let now = self.clock.now();
        let mut figures = Figures::default();
        for metric in OF_THE_STORE {
            figures.know(metric.name);
        }
        let backlog = self.store.backlog(&self.channels, now).await?;
        let commands = backlog.commands;
        for (status, count) in [
            ("pending", commands.pending),
            ("processing", commands.processing),
            ("retrying", commands.retrying),
            ("failed", commands.failed),
        ] {
            figures.set(&table::COMMAND_BOX, &[status], number(count));
        }
        figures.set(&table::LOG_HEAD, &[], number(backlog.log.head));
        figures.set(&table::LOG_PENDING, &[], number(backlog.log.pending));
        figures.set(&table::TIMERS, &["waiting"], number(backlog.timers.waiting));
        figures.set(&table::TIMERS, &["due"], number(backlog.timers.due));
        let late = |since: Option<_>| since.map_or(0.0, |since| between(since, now).as_secs_f64());
        for (part, since) in [
            ("commands", backlog.commands.due_at),
            ("log", backlog.log.pending_since),
            ("timers", backlog.timers.due_at),
        ] {
            figures.set(&table::OVERDUE, &[part], late(since));
        }
        self.measure_tasks(&mut figures).await?;
        for rows in &backlog.outbox {
            let channel = rows.channel.as_str();
            for (status, count) in
                [("pending", rows.pending), ("parked", rows.parked), ("failed", rows.failed)]
            {
                figures.set(&table::OUTBOX_ROWS, &[channel, status], number(count));
            }
            let age = rows.oldest_at.map(|oldest| between(oldest, now));
            figures.set(&table::OUTBOX_LAG, &[channel], age.unwrap_or_default().as_secs_f64());
        }
        let whose =
            |handler: &Option<_>| handler.as_ref().map_or_else(|| BROKER.to_owned(), ToString::to_string);
        consumers.extend(backlog.letters.iter().map(|letters| whose(&letters.handler)));
        for consumer in consumers.iter() {
            for (status, name) in [
                (LetterStatus::Retry, "retry"),
                (LetterStatus::Behind, "behind"),
                (LetterStatus::Dead, "dead"),
            ] {
                let mut same = backlog.letters.iter();
                let found =
                    same.find(|letters| letters.status == status && whose(&letters.handler) == *consumer);
                let count = found.map_or(0, |letters| letters.count);
                figures.set(&table::DEAD_LETTERS, &[consumer, name], number(count));
            }
        }
        for channel in self.store.channels().await? {
            let name = channel.name.as_str();
            figures.set(&table::TRACKER_POSITION, &[name], number(channel.position));
            let lag = backlog.log.head.saturating_sub(channel.position);
            figures.set(&table::TRACKER_LAG, &[name], number(lag));
        }
        Ok((figures, backlog))
    }

    async fn measure_tasks(&self, figures: &mut Figures) -> StoreResult<()> {
        let types: Vec<&str> = self.registry.task_types().map(TaskType::name).collect();
        if types.is_empty() {
            return Ok(());
        }
        let backlog = self.store.task_backlog(&types).await?;
        for (status, count) in
            [("pending", backlog.pending), ("running", backlog.running), ("failed", backlog.failed)]
        {
            figures.set(&table::TASKS, &[status], number(count));
        }
        for (task_type, count) in types.iter().zip(backlog.queued) {
            figures.set(&table::TASKS_QUEUED, &[task_type], number(count));
        }
        Ok(())
    }

    async fn measure_broker(&self) -> BrokerResult<Figures> {
        let mut figures = Figures::default();
        for metric in [table::QUEUE_MESSAGES, table::QUEUE_CONSUMERS] {
            figures.know(metric.name);
        }
        if self.queues.is_empty() || !self.broker.promises().tells_standing {
            return Ok(figures);
        }
        let names: Vec<&str> = self.queues.iter().map(String::as_str).collect();
        let standings = self.broker.queue_status(&names).await?;
        for (queue, standing) in names.iter().zip(standings) {
            let Some(standing) = standing else { continue };
            for (state, count) in [
                ("ready", Some(standing.ready)),
                ("unsettled", standing.unsettled),
                ("delayed", standing.delayed),
            ] {
                if let Some(count) = count {
                    figures.set(&table::QUEUE_MESSAGES, &[queue, state], number(count));
                }
            }
            if let Some(consumers) = standing.consumers {
                figures.set(&table::QUEUE_CONSUMERS, &[queue], number(consumers));
            }
        }
        Ok(figures)
    }
}

/// A gauge is a float: exact up to 2^53, which no count here reaches.
fn number(count: u64) -> f64 {
    count as f64
}
