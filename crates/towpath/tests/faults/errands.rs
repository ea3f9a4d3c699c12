//! A process under faults: begun by a parcel, done by a worker, undone again. Whatever is killed, each step happens once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use towpath::ids::AggregateKey;
use towpath::retry::RetryPolicy;
use towpath::{
    Afterwards, Aggregate, Answer, Attempt, Builder, Channel, ChannelPolicy, Consumer, ConsumerPolicy,
    Context, Correlation, Event, HandlerError, Machine, NoCommands, Reaction, Seen, TaskSaid, TaskType,
    Worker,
};

use crate::parts::{Line, Parcel, ParcelCommand, Part, patiently};
use crate::run::{Process, Run};

#[derive(Default, Serialize, Deserialize)]
struct Errand;

#[derive(Serialize, Deserialize, Event)]
enum ErrandEvent {
    #[serde(rename = "errand.begun")]
    Begun,
    #[serde(rename = "errand.done")]
    Done,
    #[serde(rename = "errand.undone")]
    Undone,
}

#[derive(Serialize, Deserialize, Event)]
enum ErrandInput {
    #[serde(rename = "parcel.noted")]
    Noted { text: String },
    #[serde(rename = "Errand.Task.Done")]
    Done(TaskSaid),
    #[serde(rename = "Towpath.Compensation.Completed")]
    Undone(TaskSaid),
}

impl Aggregate for Errand {
    const KIND: &'static str = "errand";
    type Command = NoCommands;
    type Event = ErrandEvent;
    type Refusal = std::convert::Infallible;

    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<ErrandEvent>, Self::Refusal> {
        match command {}
    }

    fn evolve(self, _: &ErrandEvent) -> Self {
        self
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("errand")
                .starts(ErrandEvent::BEGUN, "begun")
                .state("begun")
                .state("done")
                .terminal("undone")
                .transition("begun", ErrandEvent::DONE, "done")
                .transition("done", ErrandEvent::UNDONE, "undone"),
        )
    }
}

impl towpath::Process for Errand {
    type Input = ErrandInput;

    fn correlate(input: &Seen<ErrandInput>) -> Correlation {
        match &input.event {
            ErrandInput::Noted { text } if text.starts_with("errand/") => {
                Correlation::Starts(input.aggregate_id().to_owned())
            }
            ErrandInput::Noted { .. } => Correlation::Ignored,
            ErrandInput::Done(said) | ErrandInput::Undone(said) => Correlation::of_task::<Errand>(said),
        }
    }

    fn react(&self, input: Seen<ErrandInput>, _: &Context) -> Reaction<Self> {
        let tell = |text: &str| ParcelCommand::Remind { text: text.to_owned() };
        match input.event {
            ErrandInput::Noted { .. } => {
                let id = input.aggregate_id();
                Reaction::of([ErrandEvent::Begun])
                    .send::<Parcel>(id, tell("sent"))
                    .undone_by::<Parcel>(id, tell("undone"))
                    .start_task(&task(), "errand", "go")
            }
            ErrandInput::Done(_) => Reaction::of([ErrandEvent::Done]).compensate(),
            ErrandInput::Undone(_) => Reaction::of([ErrandEvent::Undone]),
        }
    }
}

/// What is said of the two tasks of an errand, each once: the second undoes what was done.
pub(crate) const SAID_OF_TASKS: [[&str; 2]; 2] = [
    ["Errand.Task.Requested", "Errand.Task.Done"],
    ["Towpath.Compensation.Requested", "Towpath.Compensation.Completed"],
];

pub(crate) fn task() -> TaskType {
    let [[requested, done], _] = SAID_OF_TASKS;
    TaskType::named("Errand.Task")
        .retries(RetryPolicy::Fixed(vec![Duration::from_millis(50); 40]))
        .heartbeat(Duration::from_secs(1))
        .requested(requested)
        .answered(done)
}

struct Runner;

impl Worker for Runner {
    fn task(&self) -> TaskType {
        task()
    }

    async fn run(&self, _: Attempt) -> Result<Answer, HandlerError> {
        // Long enough for faults to meet it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(Answer::done())
    }
}

/// What a part is made of that runs errands.
pub(crate) fn builder(part: &Part) -> Builder {
    let errands = format!("{}-errands", part.channel);
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(50); 40]),
        patience: Duration::from_millis(1500),
        ..ChannelPolicy::default()
    };
    // More attempts than there are kills that could meet one delivery.
    let aside = ConsumerPolicy {
        afterwards: Afterwards::SetAside(RetryPolicy::Fixed(vec![Duration::from_millis(30); 40])),
        ..ConsumerPolicy::default()
    };
    let channel = Channel::named(&errands, ErrandInput::NAMES.iter().copied());
    part.builder()
        .channel(channel.map(|channel| channel.published().with(policy)))
        .process_from::<Errand>(Consumer::of(errands).with(aside))
        .worker(Runner, 2)
}

/// Begins errands for as long as something goes on, and notes each that was confirmed, as a writer does. Answers how many.
pub(crate) async fn begin_during(run: &Run, goes_on: impl Future<Output = ()>) -> usize {
    const LEAST: usize = 30;
    let part = run.part("once", 0);
    let app = patiently(|| builder(&part).without_workers().start()).await;
    let (mut ledger, is_over) = (part.open_ledger(), AtomicBool::new(false));
    let begin = async {
        let mut count = 0;
        while count < LEAST || !is_over.load(Ordering::Relaxed) {
            let (aggregate, text) = (format!("errand-{count}"), format!("errand/{count}"));
            let note = || ParcelCommand::Note { text: text.clone() };
            let receipt = patiently(|| app.send::<Parcel>(&aggregate, note()).once(&text)).await;
            Line::Fact { aggregate, version: receipt.aggregate_version, text }.write(&mut ledger);
            count += 1;
            crate::a_while(run, 80, 140).await;
        }
        count
    };
    let until = async {
        goes_on.await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (count, ()) = tokio::join!(begin, until);
    app.stop().await;
    count
}

/// Lets so many errands come to their end, and audits.
pub(crate) async fn end(run: &Run, mut workers: Vec<Process>, count: usize) {
    for number in 0..count {
        ended(run, &mut workers, &format!("errand-{number}")).await;
    }
    run.settle(&mut workers).await;
    let counted = run.audit().await;
    let found = (counted.noted, counted.facts, counted.told_tasks);
    assert_eq!(found, (count, count * 3, count * 2), "seed {}", run.seed);
}

/// Waits for the end of an errand, and looks whether each step was taken once.
async fn ended(run: &Run, workers: &mut [Process], id: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let names = async |kind: &str| {
        let key = AggregateKey::new(kind, id).unwrap();
        let events = patiently(|| run.watch.events_of(&key, 0, 100)).await;
        events.into_iter().map(|event| event.envelope).collect::<Vec<_>>()
    };
    loop {
        let happened: Vec<String> =
            names("errand").await.iter().map(|event| event.event_type.to_string()).collect();
        if happened == [ErrandEvent::BEGUN, ErrandEvent::DONE, ErrandEvent::UNDONE] {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "seed {}: {id} has come to {happened:?}; logs are in {}",
            run.seed,
            run.folder.display()
        );
        run.revive(workers);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told: Vec<String> =
        names("parcel").await.iter().map(|event| event.payload.as_text().to_owned()).collect();
    let [noted, sent, undone] = &told[..] else { panic!("seed {}: {id} was told {told:?}", run.seed) };
    assert!(noted.contains("errand/") && sent.contains("sent") && undone.contains("undone"), "{told:?}");
}
