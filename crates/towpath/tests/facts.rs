//! Handlers that take values of the application's own types.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::{Arc, Mutex};

use support::delivery::{Broker, Stage, effects_of};
use support::{Order, OrderCommand, eventually};
use towpath::Tx;
use towpath::letters::LetterFilter;
use towpath::prelude::*;

on_every_pair!(
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
                "misread",
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
    assert_eq!(reasons, [("misread", "invalid-payload"), ("record", "unknown-event")]);
    app.stop().await;
}

async fn a_handler_answers_what_comes_next(stage: &Stage) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let app = stage
        .app([
            Consumer::of(stage.channel()).events().each("never", async |_: Fact<Taken>, mut tx| {
                tx.execute("INSERT INTO effects (event_id, handler) VALUES ('it', 'never')", &[]).await?;
                Ok(Next::dead("never", "not even once"))
            }),
            Consumer::of(stage.channel()).events().each("keeps", move |_: Fact<Taken>, tx: Tx| {
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
    assert_eq!(effects_of(&app, "never").await, 0, "what was rolled back has no effect");
    app.stop().await;
}
