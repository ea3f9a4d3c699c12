//! Handlers that take values of the application's own types.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::delivery::{Broker, Stage, effects_of};
use support::{Order, OrderCommand, OrderEvent, eventually, eventually_within};
use towpath::channel::Channel;
use towpath::format::Formats;
use towpath::ids::{AggregateKey, EventId};
use towpath::letters::LetterFilter;
use towpath::ports::broker::Destination;
use towpath::ports::store::{Append, StoreError};
use towpath::prelude::*;
use towpath::{Change, Towpath, Tx, uuid::Uuid};

on_every_pair!(
    what_a_handler_appends_goes_on_through_other_channels,
    an_append_is_handed_over_whole_and_once_whatever_comes_again,
    facts_are_read_before_the_handler_runs_and_what_cannot_be_read_is_dead,
    a_handler_answers_what_comes_next,
);

/// What a handler takes of several aggregates' events: it knows one of them.
#[derive(Serialize, Deserialize, Event)]
enum Taken {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
}

/// Another form than that in which they come.
#[derive(Serialize, Deserialize, Event)]
enum Misread {
    #[serde(rename = "order.placed")]
    Placed { count: u32 },
}

async fn record(fact: Fact<Taken>, mut tx: Tx) -> Result<(), HandlerError> {
    let Taken::Placed { sku } = &fact.event;
    tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[sku, "record"]).await?;
    Ok(())
}

async fn facts_are_read_before_the_handler_runs_and_what_cannot_be_read_is_dead(stage: &Stage) {
    let app = stage
        .app([
            Consumer::of(stage.channel()).events().each("record", record),
            Consumer::of(stage.channel()).only(["order.placed"]).events().each(
                "broken",
                async |fact: Fact<Misread>, _| {
                    let Misread::Placed { count } = fact.event;
                    assert_eq!(count, 0, "it cannot be read");
                    Ok(())
                },
            ),
        ])
        .await;
    app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() }).await.unwrap();
    app.send::<Order>("order-1", OrderCommand::Note).await.unwrap();
    eventually("the effect", || async { (effects_of(&app, "record").await == 1).then_some(()) }).await;
    let dead = eventually("the dead", || async {
        let dead = app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap();
        (dead.len() == 2).then_some(dead)
    })
    .await;
    let mut reasons: Vec<(&str, &str)> = dead
        .iter()
        .map(|dead| (dead.letter.handler.as_ref().unwrap().as_str(), dead.status_reason.as_deref().unwrap()))
        .collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [("broken", "invalid-payload"), ("record", "unknown-event")]);
    app.stop().await;
}

/// On one thread: nobody lets go of what is kept between the end of the handler and the look whether it was given back.
async fn a_handler_answers_what_comes_next(stage: &Stage) {
    let stage = stage.again();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::spawn_blocking(move || runtime.block_on(answers_what_comes_next(&stage))).await.unwrap();
}

async fn answers_what_comes_next(stage: &Stage) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let app = stage
        .app([
            Consumer::of(stage.channel()).events().each("broken", async |_: Fact<Taken>, mut tx| {
                tx.execute("INSERT INTO effects (event_id, handler) VALUES ('it', 'broken')", &[]).await?;
                Ok(Next::dead("never", "not even once"))
            }),
            Consumer::of(stage.channel()).events().each("strict", move |_: Fact<Taken>, tx: Tx| {
                keep.lock().unwrap().push(tx);
                async { Ok(()) }
            }),
        ])
        .await;
    app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() }).await.unwrap();
    let dead = eventually("the dead", || async {
        // What is kept holds the only connection that writes, on SQLite.
        kept.lock().unwrap().clear();
        let dead = app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap();
        (dead.len() == 2).then_some(dead)
    })
    .await;
    let mut reasons: Vec<_> = dead.iter().map(|dead| dead.status_reason.clone().unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["never", "transaction-lost"]);
    assert_eq!(effects_of(&app, "broken").await, 0, "what was rolled back has no effect");
    app.stop().await;
}

/// For hundreds of deliveries, on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(180);

/// A shelf, on which things are put.
#[derive(Default, Serialize, Deserialize)]
struct Shelf;

#[derive(Serialize, Deserialize, Command)]
enum ShelfCommand {
    #[serde(rename = "shelf.fill")]
    Fill { things: u32 },
}

#[derive(Serialize, Deserialize, Event)]
enum ShelfEvent {
    #[serde(rename = "order.shelved")]
    Filled { thing: u32 },
    #[serde(rename = "order.loaded")]
    Loaded { load: String },
    #[serde(rename = "shelf.emptied")]
    Emptied,
}

impl Aggregate for Shelf {
    const KIND: &'static str = "shelf";
    type Command = ShelfCommand;
    type Event = ShelfEvent;
    type Refusal = Infallible;

    fn decide(
        &self,
        ShelfCommand::Fill { things }: ShelfCommand,
        _: &Context,
    ) -> Result<Vec<ShelfEvent>, Infallible> {
        Ok(filled(things).collect())
    }

    fn evolve(self, _: &ShelfEvent) -> Self {
        self
    }
}

fn filled(things: u32) -> impl Iterator<Item = ShelfEvent> {
    (1..=things).map(|thing| ShelfEvent::Filled { thing })
}

async fn append(app: &Towpath, id: &str, events: impl IntoIterator<Item = ShelfEvent>) {
    let facts = Append::of::<Shelf>(id).events(events);
    let facts = Mutex::new(Some(facts));
    app.transact(async |mut tx| {
        let facts = facts.lock().unwrap().take().unwrap();
        tx.append(facts).await?;
        Ok::<_, StoreError>(())
    })
    .await
    .unwrap();
}

/// Writes down a change by its shelf and its versions, and that all of its facts are there in order.
async fn write_down(change: Change<ShelfEvent>, mut tx: Tx) -> Result<(), HandlerError> {
    let versions: Vec<u64> =
        change.facts.iter().map(|fact| fact.envelope.aggregate_version.unwrap()).collect();
    assert!(versions.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{versions:?}");
    let shelf = change.facts[0].aggregate_id().unwrap();
    let row = format!("{shelf} {}-{}", versions[0], versions[versions.len() - 1]);
    tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&row, "change"]).await?;
    Ok(())
}

async fn changes(app: &Towpath) -> BTreeMap<String, usize> {
    let mut changes = BTreeMap::new();
    for (change, _) in support::delivery::rows(app).await {
        *changes.entry(change).or_default() += 1;
    }
    changes
}

async fn an_append_is_handed_over_whole_and_once_whatever_comes_again(stage: &Stage) {
    let failed = Arc::new(AtomicBool::new(false));
    let consumer = |name: &str| {
        let failed = Arc::clone(&failed);
        let source = Consumer::of(stage.channel());
        let source = if name == "strict" { source.in_order() } else { source };
        source.events().changes(name, move |change: Change<ShelfEvent>, tx| {
            let is_first = change.facts.len() == 500 && !failed.swap(true, Ordering::SeqCst);
            async move {
                write_down(change, tx).await?;
                // It has written what it was to write, and none of it counts.
                if is_first { Err(HandlerError::transient("once", "fails once")) } else { Ok(()) }
            }
        })
    };
    let builder = stage.builder().topology(stage.topology(false)).aggregate::<Shelf>();
    let builder = builder.consumer(consumer("record")).consumer(consumer("strict"));
    let app = builder.start().await.unwrap();
    support::delivery::make_table(&app).await;
    append(&app, "shelf-1", filled(1)).await;
    app.send::<Shelf>("shelf-1", ShelfCommand::Fill { things: 3 }).await.unwrap();
    append(&app, "shelf-1", filled(500)).await;
    append(&app, "shelf-2", filled(3)).await;
    let mut expected: BTreeMap<String, usize> =
        ["shelf-1 1-1", "shelf-1 2-4", "shelf-1 5-504", "shelf-2 1-3"]
            .map(|change| (change.to_owned(), 2))
            .into();
    let all = || async { (changes(&app).await.len() == expected.len()).then_some(()) };
    eventually_within("all changes", LONG, all).await;
    stage.everything_again(&app).await;
    append(&app, "shelf-2", filled(2)).await;
    expected.insert("shelf-2 4-5".to_owned(), 2);
    eventually_within("what came last", LONG, || async {
        (changes(&app).await.values().sum::<usize>() >= 10).then_some(())
    })
    .await;
    // Whatever came again came before the last ones, which are handled in order.
    assert_eq!(changes(&app).await, expected);
    assert!(failed.load(Ordering::SeqCst));
    assert!(app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap().is_empty());
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_change_that_cannot_be_handed_over_whole_is_dead_and_the_next_one_is_not() {
    let stage = Stage::new("sqlite", Broker::Local).await;
    let consumer = Consumer::of(stage.channel()).events().changes("record", write_down);
    let app = stage.builder().aggregate::<Shelf>().consumer(consumer).start().await.unwrap();
    support::delivery::make_table(&app).await;
    let load = "x".repeat(3 << 20);
    append(&app, "large", (0..6).map(|_| ShelfEvent::Loaded { load: load.clone() })).await;
    append(&app, "small", filled(2)).await;
    eventually("the small one", || async { (changes(&app).await.len() == 1).then_some(()) }).await;
    // A fact of somebody else's log.
    let key = AggregateKey::new("shelf", "small").unwrap();
    let mut foreign = app.events_of(&key, 0, 1).await.unwrap().remove(0).envelope;
    foreign.event_id = EventId(Uuid::now_v7());
    let destination =
        Destination { exchange: stage.channel().to_owned(), routing_key: "order.shelved".to_owned() };
    let channel = Channel::named(stage.channel(), ["*"]).unwrap();
    stage.publish(&[Formats::default().message(&channel, &foreign, destination).unwrap()]).await;
    let dead = eventually("the dead", || async {
        let dead = app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap();
        (dead.len() == 2).then_some(dead)
    })
    .await;
    let mut reasons: Vec<_> = dead.iter().map(|dead| dead.status_reason.clone().unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["change-too-large", "not-in-the-log"], "one letter for each change");
    assert_eq!(changes(&app).await, [("small 1-2".to_owned(), 1)].into());
    app.stop().await;
}

/// From channel to channel: an order empties its shelf, and the empty shelf is noted on the order.
async fn what_a_handler_appends_goes_on_through_other_channels(stage: &Stage) {
    async fn empty(fact: Fact<OrderEvent>, mut tx: Tx) -> Result<(), HandlerError> {
        let id = fact.aggregate_id().unwrap_or_default();
        tx.append(Append::of::<Shelf>(id).events([ShelfEvent::Emptied])).await?;
        Ok(())
    }
    async fn note(fact: Fact<ShelfEvent>, mut tx: Tx) -> Result<(), HandlerError> {
        let id = fact.aggregate_id().unwrap_or_default();
        tx.append(Append::of::<Order>(id).events([OrderEvent::Noted])).await?;
        Ok(())
    }
    async fn end(fact: Fact<OrderEvent>, mut tx: Tx) -> Result<(), HandlerError> {
        let flow = fact.envelope.correlation_id.map(|id| id.to_string()).unwrap_or_default();
        tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, 'end')", &[&flow]).await?;
        Ok(())
    }
    let next = format!("{}-next", stage.channel());
    let shelves = Channel::named(&next, ["shelf.*"]).map(|channel| channel.to_exchange(stage.channel()));
    let app = stage
        .builder()
        .topology(stage.topology(false))
        .aggregate::<Shelf>()
        .channel(shelves)
        .consumer(Consumer::of(stage.channel()).only(["order.placed"]).events().each("record", empty))
        .consumer(Consumer::of(next).only(["shelf.*"]).events().each("follow", note))
        .consumer(Consumer::of(stage.channel()).only(["order.noted"]).events().each("strict", end))
        .start()
        .await
        .unwrap();
    support::delivery::make_table(&app).await;
    let place = app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() });
    let placed = place.in_flow("flow-of-three").await.unwrap();
    let ended =
        eventually("the end", || async { support::delivery::rows(&app).await.pop().map(|(flow, _)| flow) })
            .await;
    assert_eq!(ended, "flow-of-three");
    let (flow, report) = app.flow(&placed.correlation_id, &[]).await.unwrap();
    let types: Vec<_> = flow.events.iter().map(|event| event.envelope.event_type.to_string()).collect();
    assert_eq!(types, ["order.placed", "shelf.emptied", "order.noted"]);
    assert!(report.whole, "{report:?}");
    app.stop().await;
}
