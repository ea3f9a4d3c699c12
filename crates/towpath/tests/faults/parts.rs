//! The parts of a run, each a process of its own: this test binary, started again as a writer or as a worker.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath::ids::TaskId;
use towpath::ports::broker::{Exchange, ExchangeKind, Topology};
use towpath::ports::store::StoreError;
use towpath::retry::RetryPolicy;
use towpath::{
    Afterwards, Aggregate, Answer, Attempt, Batch, Builder, Channel, ChannelPolicy, Consumer, ConsumerPolicy,
    Context, DeadTo, Delivery, HandlerError, IncomingEvent, Next, Start, StoreOptions, TaskType, Towpath, Tx,
    Worker,
};

/// Tells this test binary that it is a part of a run.
pub(crate) const ROLE: &str = "TOWPATH_FAULT_ROLE";

/// How long an instance may be silent before others take over, in these runs.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// How many aggregates the writers write to.
const PARCELS: u64 = 12;

/// Handlers fail for good with what is about this one.
pub(crate) const POISON: &str = "parcel-poison";

/// How many rows a shaft takes at a time: as many can go out again when its process dies.
pub(crate) const BATCH: u32 = 10;

/// How long a statement may take in these runs before its connection is given up.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(4);

/// How often a handler is tried again.
const ATTEMPTS: u32 = 20;

/// A thing that is told facts, each with a text of its own.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Parcel {
    facts: u64,
}

#[derive(Serialize, Deserialize, towpath::Command)]
pub(crate) enum ParcelCommand {
    #[serde(rename = "parcel.note")]
    Note { text: String },
    /// By a timer.
    #[serde(rename = "parcel.remind")]
    Remind { text: String },
    /// Leads to a fact that no queue wants.
    #[serde(rename = "parcel.lose")]
    Lose,
}

#[derive(Serialize, Deserialize, towpath::Event)]
pub(crate) enum ParcelEvent {
    #[serde(rename = "parcel.noted")]
    Noted { text: String },
    #[serde(rename = "parcel.reminded")]
    Reminded { text: String },
    #[serde(rename = "parcel.lost")]
    Lost,
}

impl Aggregate for Parcel {
    const KIND: &'static str = "parcel";
    type Command = ParcelCommand;
    type Event = ParcelEvent;
    type Refusal = std::convert::Infallible;

    fn decide(&self, command: ParcelCommand, _: &Context) -> Result<Vec<ParcelEvent>, Self::Refusal> {
        Ok(vec![match command {
            ParcelCommand::Note { text } => ParcelEvent::Noted { text },
            ParcelCommand::Remind { text } => ParcelEvent::Reminded { text },
            ParcelCommand::Lose => ParcelEvent::Lost,
        }])
    }

    fn evolve(self, _: &ParcelEvent) -> Self {
        Self { facts: self.facts + 1 }
    }
}

async fn ask_to_weigh(app: &Towpath, number: u64) -> Result<TaskId, StoreError> {
    let of = weigh();
    app.transact(async |mut tx| Ok(tx.start_task(&of, &number).await?.task_id)).await
}

/// What a part is told.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Part {
    pub(crate) role: String,
    pub(crate) instance: String,
    pub(crate) store: String,
    pub(crate) broker: String,
    pub(crate) channel: String,
    pub(crate) ledger: PathBuf,
    /// How many facts each task of a writer writes, if not as many as it can.
    pub(crate) facts: Option<u64>,
    /// Whether the broker has dead-letter queues of its own.
    pub(crate) dead_letters: bool,
}

/// A line of a writer's ledger: what it was told is committed.
#[derive(Serialize, Deserialize)]
pub(crate) enum Line {
    Fact { aggregate: String, version: u64, text: String },
    Timer { text: String },
    Task { task_id: TaskId },
}

impl Line {
    /// In one go: a kill leaves whole lines.
    pub(crate) fn write(&self, ledger: &mut File) {
        let line = serde_json::to_string(self).unwrap() + "\n";
        ledger.write_all(line.as_bytes()).unwrap();
    }
}

/// Work that takes a moment, and whose worker is taken to be gone when it was silent for a second. An attempt that a kill has ended
/// counts: there are more than a run has kills.
pub(crate) fn weigh() -> TaskType {
    TaskType::named("Scales.Weigh")
        .retries(RetryPolicy::Fixed(vec![Duration::from_millis(30); 500]))
        .heartbeat(Duration::from_secs(1))
        .requested("parcel.weighing.asked")
        .answered("parcel.weighing.done")
        .failed("parcel.weighing.failed")
}

/// Weighs parcels, and fails at each third first attempt.
struct Scales;

impl Worker for Scales {
    fn task(&self) -> TaskType {
        weigh()
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        let number: u64 = attempt.read()?;
        tokio::time::sleep(Duration::from_millis(20 + number % 7 * 20)).await;
        if number.is_multiple_of(3) && attempt.task.retry_count == 0 {
            return Err(HandlerError::transient("scales-broken", "try again"));
        }
        Answer::of(&number)
    }
}

impl Part {
    /// The channel that follows the log.
    pub(crate) fn tracked(&self) -> String {
        tracked(&self.channel)
    }

    pub(crate) fn builder(&self) -> Builder {
        let policy = ChannelPolicy {
            batch: BATCH,
            scan: Duration::from_millis(50),
            retries: RetryPolicy::Fixed(vec![Duration::from_millis(50); 40]),
            patience: Duration::from_millis(1500),
            ..ChannelPolicy::default()
        };
        let facts = Channel::named(&self.channel, ["parcel.noted", "parcel.reminded"]);
        let log = Channel::named(self.tracked(), ["parcel.noted", "parcel.reminded"]);
        let nowhere = ChannelPolicy {
            retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 2]),
            ..policy.clone()
        };
        // Nothing is bound to this key.
        let lost = Channel::named(format!("{}-nowhere", self.channel), ["parcel.lost"]);
        let lost =
            lost.map(|channel| channel.to(format!("{}.nowhere", self.channel), "no.such.key").with(nowhere));
        let options = StoreOptions {
            acquire_timeout: Duration::from_secs(2),
            statement_timeout: STATEMENT_TIMEOUT,
            idle_transaction_timeout: STATEMENT_TIMEOUT,
            ..StoreOptions::default()
        };
        Towpath::builder()
            .store(&self.store)
            .broker(&self.broker)
            .instance(&self.instance)
            .aggregate::<Parcel>()
            .channel(facts.map(|channel| channel.published().with(policy.clone())))
            .channel(log.map(|channel| channel.published().tracking(Start::First).with(policy)))
            .channel(lost)
            .store_options(options)
            .scan(Duration::from_millis(50))
            .lease(LEASE)
    }

    /// Does what this part is there for, until it is killed.
    pub(crate) async fn play(&self) {
        match self.role.as_str() {
            "writer" => self.write().await,
            "errands" => self.work(crate::errands::builder(self)).await,
            _ => self.work(self.builder().worker(Scales, 2)).await,
        }
    }

    /// Sends commands and schedules timers, and notes each that was confirmed.
    async fn write(&self) {
        let app = patiently(|| self.builder().without_workers().start()).await;
        let mut ledger = self.open_ledger();
        let (lines, mut noted) = tokio::sync::mpsc::unbounded_channel::<Line>();
        for lane in 0..4_u64 {
            let (app, lines, instance, facts) =
                (app.clone(), lines.clone(), self.instance.clone(), self.facts);
            tokio::spawn(async move {
                for number in 0..facts.unwrap_or(u64::MAX) {
                    let aggregate = format!("parcel-{}", (number * 4 + lane) % PARCELS);
                    let text = format!("{instance}/{}/{lane}/{number}", std::process::id());
                    if number % 20 == 7 {
                        remind(&app, lane, &text).await;
                        lines.send(Line::Timer { text: text.clone() }).unwrap();
                    }
                    if facts.is_none() && number % 5 == 3 {
                        let task_id = patiently(|| ask_to_weigh(&app, number)).await;
                        lines.send(Line::Task { task_id }).unwrap();
                    }
                    // The same id again, until it is clear.
                    let receipt = patiently(|| {
                        app.send::<Parcel>(&aggregate, ParcelCommand::Note { text: text.clone() }).once(&text)
                    });
                    let version = receipt.await.aggregate_version;
                    lines.send(Line::Fact { aggregate, version, text }).unwrap();
                    // Load, and not as much as the machine can bear: five handlers take each fact.
                    tokio::time::sleep(Duration::from_millis(40)).await;
                }
            });
        }
        drop(lines);
        while let Some(line) = noted.recv().await {
            line.write(&mut ledger);
        }
        std::future::pending::<()>().await;
    }

    pub(crate) fn open_ledger(&self) -> File {
        OpenOptions::new().append(true).create(true).open(&self.ledger).unwrap()
    }

    /// What relays and consumes, and does what is added.
    pub(crate) async fn work(&self, builder: Builder) {
        let topology = Topology {
            exchanges: vec![Exchange {
                name: format!("{}.nowhere", self.channel),
                kind: ExchangeKind::Topic,
            }],
            ..Topology::default()
        };
        let mut builder = builder.topology(topology);
        for consumer in self.consumers() {
            builder = builder.consumer(consumer);
        }
        // Something may be down at the moment: then the run starts this part again.
        let _app = match builder.start().await {
            Ok(app) => app,
            Err(error) => {
                eprintln!("a worker could not start: {}", error.report());
                std::process::exit(3);
            }
        };
        std::future::pending::<()>().await;
    }

    /// One of each kind. Each fails now and then, on its own facts.
    fn consumers(&self) -> Vec<Consumer> {
        // An attempt that a kill has ended counts, and the first of a queue is under way in many of them: there are more
        // attempts than a run has kills that could meet one delivery.
        let aside = ConsumerPolicy {
            immediate_retries: 1,
            afterwards: Afterwards::SetAside(RetryPolicy::Fixed(vec![
                Duration::from_millis(30);
                usize::try_from(ATTEMPTS).unwrap()
            ])),
            ..ConsumerPolicy::default()
        };
        let each = |consumer: towpath::ConsumerOf, handler: &'static str, fails_at: u64| {
            let instance = self.instance.clone();
            consumer.each(handler, move |delivery| note_one(delivery, handler, fails_at, instance.clone()))
        };
        let of_channel = |policy: &ConsumerPolicy| Consumer::of(&self.channel).with(policy.clone());
        let instance = self.instance.clone();
        let mut consumers = vec![
            each(of_channel(&aside).in_order(), "ordered", 3),
            each(of_channel(&aside), "loose", 5),
            each(Consumer::of(self.tracked()).with(aside.clone()), "tracked", 11),
            of_channel(&aside).batches("batch", 20, move |batch| note_all(batch, instance.clone())),
        ];
        if self.dead_letters {
            let requeued = ConsumerPolicy {
                immediate_retries: 0,
                afterwards: Afterwards::Requeue { at_most: ATTEMPTS },
                dead: DeadTo::Broker,
                ..ConsumerPolicy::default()
            };
            consumers.push(each(of_channel(&requeued), "requeued", 7));
        }
        consumers
    }
}

/// The channel that follows the log, beside one that has outbox rows.
pub(crate) fn tracked(channel: &str) -> String {
    format!("{channel}-log")
}

/// The handlers of a worker.
pub(crate) fn handlers(dead_letters: bool) -> Vec<&'static str> {
    let mut handlers = vec!["ordered", "loose", "tracked", "batch"];
    handlers.extend(dead_letters.then_some("requeued"));
    handlers
}

/// Schedules a timer, until it is clear that it is: by its id it is one, however often it is asked for.
async fn remind(app: &Towpath, lane: u64, text: &str) {
    let timer_id = uuid::Uuid::now_v7();
    patiently(|| async {
        if app.find_timer(timer_id).await.map_err(towpath::SendError::Store)?.is_some() {
            return Ok(());
        }
        let command = ParcelCommand::Remind { text: text.to_owned() };
        let timer = app.timer::<Parcel>(format!("reminded-{lane}"), command).identified(timer_id);
        timer.after(Duration::from_millis(300)).await.map(drop)
    })
    .await;
}

async fn note_one(
    mut delivery: Delivery,
    handler: &'static str,
    fails_at: u64,
    instance: String,
) -> Result<Next, HandlerError> {
    let event = delivery.event.clone();
    fail_now_and_then(&event, delivery.attempt, fails_at)?;
    note(&mut delivery.tx, handler, &event, &instance).await?;
    Ok(delivery.handled())
}

async fn note_all(mut batch: Batch, instance: String) -> Result<Next, HandlerError> {
    for delivered in &batch.deliveries {
        fail_now_and_then(&delivered.event, delivered.attempt, 13)?;
        note(&mut batch.tx, "batch", &delivered.event, &instance).await?;
    }
    Ok(batch.handled())
}

/// Some facts of every run: each aggregate gets that far in the first moments.
fn fail_now_and_then(event: &IncomingEvent, attempt: u32, at: u64) -> Result<(), HandlerError> {
    if event.aggregate.as_ref().is_some_and(|aggregate| aggregate.id.as_str() == POISON) {
        return Err(HandlerError::transient("poisoned", "on purpose"));
    }
    let version = event.aggregate_version.unwrap();
    assert!(version % 37 != at || attempt > 1, "a bug in a handler, on purpose");
    Ok(())
}

async fn note(tx: &mut Tx, handler: &str, event: &IncomingEvent, instance: &str) -> Result<(), HandlerError> {
    let aggregate = event.aggregate.as_ref().unwrap().id.to_string();
    let version = format!("{:09}", event.aggregate_version.unwrap());
    let content = event.payload.as_text().to_owned();
    let sql = "INSERT INTO noted_effects (handler, aggregate_id, version, content, instance) VALUES (?, ?, ?, ?, ?)";
    tx.execute(sql, &[handler, &aggregate, &version, &content, instance]).await?;
    Ok(())
}

/// Asks again until there is an answer.
pub(crate) async fn patiently<T, E: std::fmt::Debug, F: IntoFuture<Output = Result<T, E>>>(
    mut ask: impl FnMut() -> F,
) -> T {
    let begun = std::time::Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if begun.elapsed() > Duration::from_secs(90) => panic!("{error:?}"),
            // Not at once: what is away would be asked a thousand times a second.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
