//! Operations that nobody ends are recorded by whoever lives, and answers are kept for their time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Fresh, eventually};
use towpath::ids::{ActorId, AggregateKey, OperationName};
use towpath::ports::operations::{BeginOutcome, NewOperation, OperationAnswer, OperationEnd, OperationKey};
use towpath::{OPERATION_KIND, OPERATION_PERFORMED, Outcome, StoreOptions};
use towpath_testkit::CountingProbe;
use uuid::Uuid;

on_every_database!(
    what_a_dead_process_left_behind_is_recorded_as_unknown,
    answers_are_kept_for_their_time_and_then_forgotten,
);

fn operation(name: &str) -> NewOperation {
    NewOperation {
        key: OperationKey { actor: ActorId::new("ann").unwrap(), name: OperationName::new(name).unwrap() },
        operation_id: Uuid::now_v7(),
        fingerprint: "f".to_owned(),
        role: "operator".to_owned(),
        action: "POST /api/things/{id}".to_owned(),
        target: "/api/things/7".to_owned(),
        request_id: None,
        trace_id: None,
        asked_at: chrono::Utc::now(),
    }
}

async fn what_a_dead_process_left_behind_is_recorded_as_unknown(fresh: &Fresh) {
    let app = fresh.builder().lease(Duration::from_millis(300)).start().await.unwrap();
    let lost = operation("lost");
    let begun = app.operations().begin(&lost, Duration::ZERO).await.unwrap();
    assert!(matches!(begun, BeginOutcome::Begun(_)));
    let key = AggregateKey::new(OPERATION_KIND, lost.operation_id.to_string()).unwrap();
    let events = eventually("it is recorded", || async {
        let events = app.events_of(&key, 0, 10).await.unwrap();
        (!events.is_empty()).then_some(events)
    })
    .await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].envelope.event_type.as_str(), OPERATION_PERFORMED);
    assert_eq!(events[0].envelope.actor_id.as_ref().unwrap().as_str(), "ann");
    assert!(events[0].envelope.payload.as_text().contains(r#""outcome":"unknown""#));
    app.stop().await;
}

async fn answers_are_kept_for_their_time_and_then_forgotten(fresh: &Fresh) {
    let statements = Arc::new(CountingProbe::new());
    let keeping = |time: Duration| {
        let options = StoreOptions { probe: statements.clone(), ..StoreOptions::default() };
        let builder = fresh.builder().store_options(options).lease(Duration::from_millis(300));
        builder.keep_operations(time).start()
    };
    let long = Duration::from_secs(3600);
    let app = keeping(long).await.unwrap();
    let asked = operation("kept");
    let BeginOutcome::Begun(claim) = app.operations().begin(&asked, long).await.unwrap() else {
        panic!("it is new")
    };
    let answer = OperationAnswer { status: 200, headers: vec![], body: b"yes".to_vec() };
    let end = OperationEnd::Answered(&answer);
    assert!(app.operations().end(&asked, &claim, end, Outcome::Done, Some(200)).await.unwrap());
    // When a second look begins, one is over that could have deleted it.
    statements.take();
    let mut cleaned = 0;
    eventually("what is older is forgotten", || {
        cleaned += statements.take().iter().filter(|name| **name == "operation.clean_page").count();
        async move { (cleaned > 1).then_some(()) }
    })
    .await;
    let again = app.operations().begin(&asked, long).await.unwrap();
    assert_eq!(again, BeginOutcome::Answered(answer));
    app.stop().await;
    let app = keeping(Duration::ZERO).await.unwrap();
    eventually("its answer is forgotten", || async {
        let standing = app.operations().begin(&operation("kept"), long).await.unwrap();
        matches!(standing, BeginOutcome::Begun(_)).then_some(())
    })
    .await;
    app.stop().await;
}
