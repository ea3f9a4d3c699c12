//! Consumers on each database and broker: each fact has its effect once, failures end where they should.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::delivery::{Broker, Stage, effects, effects_of, make_table};
use support::{Order, OrderCommand, OrderEvent, eventually, eventually_within};
use towpath::letters::{LetterFilter, SetAside};
use towpath::lifecycle::LetterStatus;
use towpath::ports::broker::{Destination, Message};
use towpath::ports::store::StoreError;
use towpath::retry::RetryPolicy;
use towpath::{
    Afterwards, Batch, Consumer, ConsumerPolicy, DeadTo, Delivery, HandlerError, LettersError, Next,
    StoreOptions, Towpath,
};
use towpath_testkit::CountingProbe;

on_every_pair!(
    a_fact_has_its_effect_once_however_often_it_is_delivered,
    handlers_of_one_fact_do_not_depend_on_each_other,
    a_failing_delivery_is_tried_again_then_set_aside_then_dead_and_can_be_replayed,
    an_unrecoverable_error_is_dead_at_once,
    a_panic_is_a_failure_of_that_delivery_and_nothing_else,
    with_order_a_failing_delivery_holds_its_own_aggregate_back_and_no_other,
    a_batch_commits_together_and_falls_apart_when_one_fails,
    a_command_that_follows_commits_with_the_handler,
    a_message_that_is_no_event_is_dead_with_all_its_properties,
    a_dead_letter_is_edited_and_replayed_or_discarded,
    bulk_actions_touch_what_their_preview_counted,
    a_handler_can_ask_to_be_called_later,
    a_transaction_that_gives_way_is_run_again_and_not_counted,
    an_sql_error_that_a_handler_swallows_is_not_taken_for_success,
    a_panic_before_the_future_is_a_failure_like_any_other,
    an_unreadable_letter_that_is_replayed_is_dead_again_and_one,
    order_is_kept_for_senders_that_give_no_key,
    a_watcher_that_panics_changes_nothing,
    what_waits_behind_nothing_goes_on,
    workers_do_not_wait_for_each_others_connections,
);

/// Quick retries, for tests.
fn quick() -> ConsumerPolicy {
    ConsumerPolicy {
        immediate_retries: 1,
        afterwards: Afterwards::SetAside(RetryPolicy::Fixed(vec![Duration::from_millis(20); 2])),
        ..ConsumerPolicy::default()
    }
}

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".into() }).await.unwrap();
}

async fn note(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Note).await.unwrap();
}

/// Writes one row per call.
async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let id = delivery.event.event_id.to_string();
    delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "record"]).await?;
    Ok(delivery.handled())
}

async fn a_fact_has_its_effect_once_however_often_it_is_delivered(stage: &Stage) {
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", record)]).await;
    for number in 0..20 {
        place(&app, &format!("order-{number}")).await;
    }
    eventually("twenty effects", || async { (effects(&app).await.len() == 20).then_some(()) }).await;
    // Everything once more, behind the relay's back.
    let events = stage.everything_again(&app).await;
    assert_eq!(events, 20);
    place(&app, "order-last").await;
    eventually("the last effect", || async { (effects(&app).await.len() >= 21).then_some(()) }).await;
    let counted = effects(&app).await;
    assert_eq!(counted.len(), 21);
    assert!(counted.values().all(|count| *count == 1), "{counted:?}");
    app.stop().await;
}

/// More workers than connections, all of them busy: settling needs a connection, too, where the broker is in the store.
async fn workers_do_not_wait_for_each_others_connections(stage: &Stage) {
    const FACTS: u32 = 150;
    let handled = Arc::new(AtomicU32::new(0));
    let consumers = ["one", "two", "three"].map(|name| {
        let handled = Arc::clone(&handled);
        Consumer::of(stage.channel()).with(quick()).each(name, move |delivery: Delivery| {
            handled.fetch_add(1, Ordering::SeqCst);
            async move { Ok(delivery.handled()) }
        })
    });
    // Who waits for a connection here waits for ever.
    let few = StoreOptions {
        max_connections: 4,
        acquire_timeout: Duration::from_secs(3600),
        ..StoreOptions::default()
    };
    let app = stage.app_with_connections(few, consumers).await;
    futures_util::future::join_all((0..FACTS).map(|number| {
        let app = app.clone();
        async move { place(&app, &format!("order-{number}")).await }
    }))
    .await;
    let all = || async { (handled.load(Ordering::SeqCst) >= 3 * FACTS).then_some(()) };
    eventually_within("all are handled", Duration::from_secs(60), all).await;
    app.stop().await;
}

async fn handlers_of_one_fact_do_not_depend_on_each_other(stage: &Stage) {
    let fails = |delivery: Delivery| async move {
        drop(delivery);
        Err(HandlerError::transient("not-today", "never works"))
    };
    let app = stage
        .app([
            Consumer::of(stage.channel()).with(quick()).each("record", record),
            Consumer::of(stage.channel()).with(quick()).each("broken", fails),
        ])
        .await;
    place(&app, "order-1").await;
    eventually("the effect of one", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
    let dead = dead_letters(&app, 1).await;
    assert_eq!(dead[0].letter.handler.as_ref().unwrap().as_str(), "broken");
    assert_eq!(dead[0].status_reason.as_deref(), Some("not-today"));
    app.stop().await;
}

async fn dead_letters(app: &Towpath, count: usize) -> Vec<towpath::letters::Letter> {
    eventually("dead letters", || async {
        let dead = app.dead_letters().list(&LetterFilter::dead(), 0, 100).await.unwrap();
        (dead.len() >= count).then_some(dead)
    })
    .await
}

async fn a_failing_delivery_is_tried_again_then_set_aside_then_dead_and_can_be_replayed(stage: &Stage) {
    let (broken, attempts) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let (broken, attempts) = (Arc::clone(&broken), Arc::clone(&attempts));
        move |delivery: Delivery| {
            let (broken, attempts) = (Arc::clone(&broken), Arc::clone(&attempts));
            async move {
                attempts.lock().unwrap().push(delivery.attempt);
                if broken.load(Ordering::SeqCst) {
                    // What it has written before is rolled back.
                    let mut delivery = delivery;
                    let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
                    delivery.tx.execute(sql, &["half", "half"]).await?;
                    return Err(HandlerError::transient("not-yet", "the other side is down"));
                }
                record(delivery).await
            }
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", handler)]).await;
    place(&app, "order-1").await;
    let dead = dead_letters(&app, 1).await;
    // Once, at once again, and twice when it was due.
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3, 4]);
    assert_eq!((dead[0].status, dead[0].retry_count), (LetterStatus::Dead, 4));
    assert_eq!(dead[0].status_message.as_deref(), Some("the other side is down"));
    assert_eq!(dead[0].letter.message.message_type.as_deref(), Some("order.placed"));
    assert_eq!(effects(&app).await.len(), 0, "every attempt was rolled back");

    broken.store(false, Ordering::SeqCst);
    let letters = app.dead_letters();
    letters.replay(dead[0].letter_id, false).await.unwrap();
    eventually("the effect", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
    let replayed = eventually("the letter's end", || async {
        let letter = app.dead_letters().get(dead[0].letter_id).await.unwrap();
        (letter.status == LetterStatus::Replayed).then_some(letter)
    })
    .await;
    assert!(replayed.replayed_at.is_some() && replayed.due_at.is_none());
    let again = letters.replay(dead[0].letter_id, false).await.unwrap_err();
    assert!(matches!(again, LettersError::NotDead { status: LetterStatus::Replayed, .. }), "{again}");
    assert_eq!(effects(&app).await.values().sum::<u32>(), 1);
    app.stop().await;
}

async fn an_unrecoverable_error_is_dead_at_once(stage: &Stage) {
    let attempts = Arc::new(AtomicU32::new(0));
    let handler = {
        let attempts = Arc::clone(&attempts);
        move |delivery: Delivery| {
            attempts.fetch_add(1, Ordering::SeqCst);
            async move {
                match delivery.event.event_type.as_str() {
                    "order.placed" => Ok(delivery.dead("unknown-customer", "nobody knows them")),
                    // Not what the payload holds.
                    _ => {
                        let _: Vec<u64> = delivery.payload()?;
                        Ok(delivery.handled())
                    }
                }
            }
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("strict", handler)]).await;
    place(&app, "order-1").await;
    note(&app, "order-1").await;
    let dead = dead_letters(&app, 2).await;
    let mut reasons: Vec<_> = dead.iter().map(|letter| letter.status_reason.clone().unwrap()).collect();
    reasons.sort();
    assert_eq!(reasons, ["invalid-payload", "unknown-customer"]);
    assert_eq!(attempts.load(Ordering::SeqCst), 2, "neither was tried again");
    app.stop().await;
}

async fn a_panic_is_a_failure_of_that_delivery_and_nothing_else(stage: &Stage) {
    let handler = |delivery: Delivery| async move {
        let id = delivery.event.aggregate.as_ref().unwrap().id.to_string();
        assert_ne!(id, "order-bad", "a bug in a handler, on purpose");
        record(delivery).await
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", handler)]).await;
    for id in ["order-1", "order-bad", "order-2", "order-3"] {
        place(&app, id).await;
    }
    let dead = dead_letters(&app, 1).await;
    assert_eq!(dead[0].status_reason.as_deref(), Some("handler-panicked"));
    assert!(dead[0].status_message.as_deref().unwrap().contains("on purpose"));
    eventually("the others", || async { (effects(&app).await.len() == 3).then_some(()) }).await;
    app.stop().await;
}

async fn with_order_a_failing_delivery_holds_its_own_aggregate_back_and_no_other(stage: &Stage) {
    let (broken, seen) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let (broken, seen) = (Arc::clone(&broken), Arc::clone(&seen));
        move |delivery: Delivery| {
            let (broken, seen) = (Arc::clone(&broken), Arc::clone(&seen));
            async move {
                let id = delivery.event.aggregate.as_ref().unwrap().id.to_string();
                let version = delivery.event.aggregate_version.unwrap();
                if id == "order-bad" && version == 2 && broken.load(Ordering::SeqCst) {
                    return Err(HandlerError::transient("not-yet", "waits for someone"));
                }
                seen.lock().unwrap().push((id, version));
                record(delivery).await
            }
        }
    };
    let consumer = Consumer::of(stage.channel()).with(quick()).in_order().each("record", handler);
    let app = stage.app([consumer]).await;
    for id in ["order-bad", "order-good"] {
        place(&app, id).await;
        for _ in 0..4 {
            note(&app, id).await;
        }
    }
    // The good one goes through; of the bad one only what came before the failure.
    eventually("six effects", || async { (effects(&app).await.len() == 6).then_some(()) }).await;
    let dead = dead_letters(&app, 1).await;
    let behind = eventually("three waiting", || async {
        let filter = LetterFilter { status: Some(LetterStatus::Behind), ..LetterFilter::default() };
        let behind = app.dead_letters().list(&filter, 0, 10).await.unwrap();
        (behind.len() == 3).then_some(behind)
    })
    .await;
    assert!(behind.iter().all(|letter| letter.letter.lane == dead[0].letter.lane));
    broken.store(false, Ordering::SeqCst);
    app.dead_letters().replay(dead[0].letter_id, false).await.unwrap();
    eventually("all effects", || async { (effects(&app).await.len() == 10).then_some(()) }).await;
    let mut versions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (id, version) in seen.lock().unwrap().iter() {
        versions.entry(id.clone()).or_default().push(*version);
    }
    assert_eq!(versions["order-bad"], [1, 2, 3, 4, 5]);
    assert_eq!(versions["order-good"], [1, 2, 3, 4, 5]);
    let open = LetterFilter { status: Some(LetterStatus::Behind), ..LetterFilter::default() };
    assert_eq!(app.dead_letters().list(&open, 0, 10).await.unwrap(), []);
    note(&app, "order-bad").await;
    eventually("the lane is free again", || async { (effects(&app).await.len() == 11).then_some(()) }).await;
    app.stop().await;
}

async fn a_batch_commits_together_and_falls_apart_when_one_fails(stage: &Stage) {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let sizes = Arc::clone(&sizes);
        move |batch: Batch| {
            let sizes = Arc::clone(&sizes);
            async move {
                let mut batch = batch;
                sizes.lock().unwrap().push(batch.deliveries.len());
                for delivered in &batch.deliveries {
                    let id = delivered.event.event_id.to_string();
                    let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
                    batch.tx.execute(sql, &[&id, "batch"]).await?;
                }
                let is_bad = |aggregate: &towpath::ids::AggregateKey| aggregate.id.as_str() == "order-13";
                if batch.deliveries.iter().any(|one| one.event.aggregate.as_ref().is_some_and(is_bad)) {
                    return Err(HandlerError::unrecoverable("unlucky", "thirteen"));
                }
                Ok(batch.handled())
            }
        }
    };
    let policy = ConsumerPolicy { concurrency: 1, ..quick() };
    let app = stage.app([Consumer::of(stage.channel()).with(policy).batches("batch", 10, handler)]).await;
    for number in 0..40 {
        place(&app, &format!("order-{number}")).await;
    }
    eventually("all but one", || async { (effects(&app).await.len() >= 39).then_some(()) }).await;
    let dead = dead_letters(&app, 1).await;
    assert_eq!(dead[0].status_reason.as_deref(), Some("unlucky"));
    let counted = effects(&app).await;
    assert_eq!(counted.len(), 39);
    assert!(counted.values().all(|count| *count == 1), "{counted:?}");
    let sizes = sizes.lock().unwrap().clone();
    assert!(sizes.iter().all(|size| *size <= 10));
    assert!(sizes.iter().any(|size| *size > 1), "nothing was handled together: {sizes:?}");
    app.stop().await;
}

async fn a_command_that_follows_commits_with_the_handler(stage: &Stage) {
    let attempts = Arc::new(AtomicU32::new(0));
    let handler = {
        let attempts = Arc::clone(&attempts);
        move |delivery: Delivery| {
            let attempt = attempts.fetch_add(1, Ordering::SeqCst);
            async move {
                let mut delivery = delivery;
                let OrderEvent::Placed { .. } = delivery.read::<Order>()? else {
                    return Ok(delivery.handled());
                };
                let id = delivery.event.aggregate.as_ref().unwrap().id.to_string();
                delivery.send::<Order>(&id, OrderCommand::Note).await?;
                if attempt == 0 {
                    return Err(HandlerError::transient("not-yet", "and the command is taken back"));
                }
                Ok(delivery.handled())
            }
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("follow", handler)]).await;
    let placed = app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() }).await.unwrap();
    let order = eventually("the note", || async {
        let order = app.load::<Order>("order-1").await.unwrap().unwrap();
        (order.value.notes > 0).then_some(order)
    })
    .await;
    assert_eq!((order.value.notes, order.version), (1, 2));
    // The note belongs to the flow of the placing, and says what caused it.
    let (flow, report) = app.flow(&placed.correlation_id, &[]).await.unwrap();
    assert_eq!((flow.commands.len(), flow.events.len()), (2, 2));
    assert!(report.whole, "{report:?}");
    app.stop().await;
}

async fn a_message_that_is_no_event_is_dead_with_all_its_properties(stage: &Stage) {
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", record)]).await;
    let message = Message {
        destination: Destination { exchange: stage.channel().to_owned(), routing_key: "order.odd".into() },
        message_id: "not-a-uuid".into(),
        message_type: "order.odd".into(),
        key: "order/odd".into(),
        occurred_at: chrono::Utc::now(),
        content_type: "text/plain".into(),
        headers: vec![("x-sender".into(), "elsewhere".into())],
        body: vec![0, 159, 146, 150],
    };
    stage.publish(&[message]).await;
    let dead = dead_letters(&app, 1).await;
    let found = &dead[0].letter;
    assert_eq!((found.event_id, found.message.body.as_slice()), (None, &[0, 159, 146, 150][..]));
    assert_eq!(found.message.message_id.as_deref(), Some("not-a-uuid"));
    assert_eq!(found.message.content_type.as_deref(), Some("text/plain"));
    assert!(found.message.headers.contains(&("x-sender".to_owned(), "elsewhere".to_owned())));
    place(&app, "order-1").await;
    eventually("the next one", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
    app.stop().await;
}

async fn a_dead_letter_is_edited_and_replayed_or_discarded(stage: &Stage) {
    let handler = |delivery: Delivery| async move {
        match delivery.read::<Order>()? {
            OrderEvent::Placed { sku } if sku == "book" => record(delivery).await,
            _ => Ok(delivery.dead("no-such-book", "it is not in the catalogue")),
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", handler)]).await;
    for id in ["order-1", "order-2"] {
        app.send::<Order>(id, OrderCommand::Place { sku: "boock".into() }).await.unwrap();
    }
    let dead = dead_letters(&app, 2).await;
    let letters = app.dead_letters().by(towpath::ids::ActorId::new("ada").unwrap());
    let body = String::from_utf8(dead[0].letter.message.body.clone()).unwrap();
    letters.edit(dead[0].letter_id, body.replace("boock", "book").as_bytes()).await.unwrap();
    let edited = letters.get(dead[0].letter_id).await.unwrap();
    assert_eq!(edited.original_body.as_deref(), Some(body.as_bytes()));
    assert_eq!(edited.changed_by_id.as_ref().unwrap().as_str(), "ada");
    // In a listing there are no bodies, but it is still told which was edited.
    let short = app.store().letters_in_short(&towpath::letters::LetterFilter::dead(), 0, 10).await.unwrap();
    assert_eq!(
        short.iter().map(|letter| letter.letter_id).collect::<Vec<_>>(),
        [dead[0].letter_id, dead[1].letter_id]
    );
    assert!(
        short.iter().all(|one| one.letter.message.body.is_empty() && one.letter.message.headers.is_empty())
    );
    assert_eq!((short[0].original_body.as_deref(), short[1].original_body.as_deref()), (Some(&[][..]), None));
    letters.replay(dead[0].letter_id, false).await.unwrap();
    eventually("the effect", || async { (effects(&app).await.len() == 1).then_some(()) }).await;

    letters.discard(dead[1].letter_id, Some("nobody misses it")).await.unwrap();
    let discarded = letters.get(dead[1].letter_id).await.unwrap();
    assert_eq!(discarded.status, LetterStatus::Discarded);
    assert_eq!(discarded.status_message.as_deref(), Some("nobody misses it"));
    assert!(matches!(
        letters.discard(dead[1].letter_id, None).await.unwrap_err(),
        LettersError::NotDead { status: LetterStatus::Discarded, .. }
    ));
    // A handler that was at it at the same moment does not bring it back.
    let late = SetAside {
        letter_id: Some(dead[1].letter_id),
        held_until: None,
        letter: dead[1].letter.clone(),
        due_at: Some(chrono::Utc::now()),
        reason: "too-late".to_owned(),
        message: String::new(),
        retry_count: 2,
        now: chrono::Utc::now(),
    };
    app.store().set_aside(&late).await.unwrap();
    assert_eq!(letters.get(dead[1].letter_id).await.unwrap().status, LetterStatus::Discarded);
    assert!(matches!(letters.get(987_654).await.unwrap_err(), LettersError::Unknown(987_654)));
    app.stop().await;
}

async fn bulk_actions_touch_what_their_preview_counted(stage: &Stage) {
    let broken = Arc::new(AtomicBool::new(true));
    let handler = {
        let broken = Arc::clone(&broken);
        move |delivery: Delivery| {
            let broken = Arc::clone(&broken);
            async move {
                if broken.load(Ordering::SeqCst) {
                    let reason = delivery.event.event_type.to_string();
                    return Ok(delivery.dead(reason, "on purpose"));
                }
                record(delivery).await
            }
        }
    };
    let statements = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: statements.clone(), ..StoreOptions::default() };
    let consumer = Consumer::of(stage.channel()).with(quick()).each("record", handler);
    let app = stage.app_with_connections(options, [consumer]).await;
    make_table(&app).await;
    for number in 0..6 {
        place(&app, &format!("order-{number}")).await;
    }
    note(&app, "order-0").await;
    dead_letters(&app, 7).await;
    let letters = app.dead_letters();
    let groups = letters.groups(&LetterFilter::dead()).await.unwrap();
    let summary: Vec<_> =
        groups.iter().map(|group| (group.reason.as_deref().unwrap(), group.count)).collect();
    assert_eq!(summary, [("order.placed", 6), ("order.noted", 1)]);

    let placed = LetterFilter { reason: Some("order.placed".into()), ..LetterFilter::default() };
    let preview = letters.preview(placed).await.unwrap();
    assert_eq!(preview.count, 6);
    // One more of the same kind comes after the preview.
    place(&app, "order-late").await;
    dead_letters(&app, 8).await;
    broken.store(false, Ordering::SeqCst);
    statements.take();
    let report = letters.replay_all(&preview, false).await.unwrap();
    assert_eq!((report.to_handlers, report.changed_meanwhile, report.beyond_horizon), (6, 0, 0));
    eventually("six effects", || async { (effects(&app).await.len() == 6).then_some(()) }).await;
    let rest = letters.preview(LetterFilter::default()).await.unwrap();
    assert_eq!(rest.count, 2, "the note and the late one");
    assert_eq!(letters.discard_all(&rest, Some("enough")).await.unwrap(), 2);
    let whole: Vec<_> = statements.take().into_iter().filter(|name| *name == "letters.list").collect();
    assert!(whole.is_empty(), "a page of letters is never read with its bodies");
    assert_eq!(letters.preview(LetterFilter::default()).await.unwrap().count, 0);
    assert_eq!(effects(&app).await.len(), 6);
    app.stop().await;
}

async fn a_handler_can_ask_to_be_called_later(stage: &Stage) {
    let calls = Arc::new(AtomicU32::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |delivery: Delivery| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                if call < 6 {
                    return Ok(delivery.retry_after(Duration::from_millis(10), "too-early", "not yet"));
                }
                assert_eq!(delivery.attempt, 1, "asking for later is no failure");
                record(delivery).await
            }
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", handler)]).await;
    place(&app, "order-1").await;
    eventually("the effect", || async { (effects_of(&app, "record").await == 1).then_some(()) }).await;
    assert_eq!(calls.load(Ordering::SeqCst), 7);
    let all = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
    assert_eq!(all, [], "it leaves no letter behind");
    app.stop().await;
}

async fn a_transaction_that_gives_way_is_run_again_and_not_counted(stage: &Stage) {
    let calls = Arc::new(AtomicU32::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |mut delivery: Delivery| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                assert_eq!(delivery.attempt, 1, "giving way is no failure");
                if call < 12 {
                    // What it has written before is rolled back.
                    let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
                    delivery.tx.execute(sql, &["half", "half"]).await?;
                    return Err(StoreError::Contention("a deadlock".into()).into());
                }
                record(delivery).await
            }
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", handler)]).await;
    place(&app, "order-1").await;
    eventually("the effect", || async { (effects_of(&app, "record").await == 1).then_some(()) }).await;
    assert_eq!(calls.load(Ordering::SeqCst), 13);
    assert_eq!(effects(&app).await.len(), 1, "every attempt before was rolled back");
    app.stop().await;
}

async fn an_sql_error_that_a_handler_swallows_is_not_taken_for_success(stage: &Stage) {
    let broken = Arc::new(AtomicBool::new(true));
    let handler = {
        let broken = Arc::clone(&broken);
        move |mut delivery: Delivery| {
            let broken = broken.swap(false, Ordering::SeqCst);
            async move {
                if broken {
                    // PostgreSQL undoes the whole transaction over this; the others only the statement.
                    let _ = delivery.tx.execute("INSERT INTO no_such_table (a) VALUES (?)", &["x"]).await;
                }
                let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
                let id = delivery.event.event_id.to_string();
                let _ = delivery.tx.execute(sql, &[&id, "record"]).await;
                Ok(delivery.handled())
            }
        }
    };
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", handler)]).await;
    place(&app, "order-1").await;
    eventually("the effect", || async { (effects_of(&app, "record").await == 1).then_some(()) }).await;
    place(&app, "order-2").await;
    eventually("the next effect", || async { (effects_of(&app, "record").await == 2).then_some(()) }).await;
    app.stop().await;
}

async fn a_panic_before_the_future_is_a_failure_like_any_other(stage: &Stage) {
    let handler = |batch: Batch| {
        assert!(batch.deliveries.len() > 100, "a bug before the future, on purpose");
        async move { Ok(batch.handled()) }
    };
    let policy = ConsumerPolicy { concurrency: 2, ..quick() };
    let consumer = Consumer::of(stage.channel()).with(policy).batches("batch", 5, handler);
    let app = stage.app([consumer]).await;
    for number in 0..6 {
        place(&app, &format!("order-{number}")).await;
    }
    // More than there are workers: none of them has ended.
    let dead = dead_letters(&app, 6).await;
    assert!(
        dead.iter().all(|letter| letter.status_reason.as_deref() == Some("handler-panicked")),
        "{dead:?}"
    );
    app.stop().await;
}

async fn an_unreadable_letter_that_is_replayed_is_dead_again_and_one(stage: &Stage) {
    let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", record)]).await;
    let event_id = uuid::Uuid::now_v7();
    let message = Message {
        destination: Destination { exchange: stage.channel().to_owned(), routing_key: "order.odd".into() },
        message_id: event_id.to_string(),
        message_type: "order.odd".into(),
        key: "order/odd".into(),
        occurred_at: chrono::Utc::now(),
        content_type: "application/cloudevents+json".into(),
        headers: Vec::new(),
        body: b"{\"id\":".to_vec(),
    };
    stage.publish(&[message]).await;
    let dead = dead_letters(&app, 1).await;
    let letters = app.dead_letters();
    letters.replay(dead[0].letter_id, false).await.unwrap();
    eventually("its second death", || async {
        let letter = app.dead_letters().get(dead[0].letter_id).await.unwrap();
        (letter.status == LetterStatus::Dead && letter.replayed_at.is_some()).then_some(())
    })
    .await;
    assert_eq!(letters.list(&LetterFilter::default(), 0, 10).await.unwrap().len(), 1, "no second letter");
    // Edited into something readable, it is handled, whatever event it names now.
    let body = format!(
        r#"{{"specversion":"1.0","id":"{}","source":"/towpath/Order","type":"ORDER_PAID","subject":"7","time":"2026-02-04T10:30:00Z","traceid":"t","data":{{}}}}"#,
        uuid::Uuid::now_v7()
    );
    letters.edit(dead[0].letter_id, body.as_bytes()).await.unwrap();
    letters.replay(dead[0].letter_id, false).await.unwrap();
    eventually("the effect", || async { (effects_of(&app, "record").await == 1).then_some(()) }).await;
    app.stop().await;
}

async fn order_is_kept_for_senders_that_give_no_key(stage: &Stage) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        move |delivery: Delivery| {
            let seen = Arc::clone(&seen);
            async move {
                let number: u32 = delivery.payload()?;
                // The earlier, the slower: were they handled at once, they would end the other way round.
                tokio::time::sleep(Duration::from_millis(u64::from(20 - number))).await;
                seen.lock().unwrap().push(number);
                record(delivery).await
            }
        }
    };
    let consumer = Consumer::of(stage.channel()).with(quick()).in_order().each("record", handler);
    let app = stage.app([consumer]).await;
    let message = |number: u32| {
        Message {
        destination: Destination { exchange: stage.channel().to_owned(), routing_key: "paid".into() },
        message_id: uuid::Uuid::now_v7().to_string(),
        message_type: "ORDER_PAID".into(),
        key: String::new(),
        occurred_at: chrono::Utc::now(),
        content_type: "application/cloudevents+json".into(),
        headers: Vec::new(),
        body: format!(
            r#"{{"specversion":"1.0","id":"{}","source":"/towpath/Order","type":"ORDER_PAID","subject":"7","time":"2026-02-04T10:30:00Z","traceid":"t","data":{number}}}"#,
            uuid::Uuid::now_v7()
        )
        .into_bytes(),
    }
    };
    stage.publish(&(0..20).map(message).collect::<Vec<_>>()).await;
    eventually("twenty effects", || async { (effects(&app).await.len() == 20).then_some(()) }).await;
    assert_eq!(*seen.lock().unwrap(), (0..20).collect::<Vec<_>>());
    app.stop().await;
}

struct Panics;

impl towpath::Watch for Panics {
    fn published(&self, _: &towpath::Publishing<'_>) {
        panic!("a bug in a watcher, on purpose");
    }

    fn delivered(&self, _: &towpath::Delivering<'_>) {
        panic!("a bug in a watcher, on purpose");
    }
}

async fn a_watcher_that_panics_changes_nothing(stage: &Stage) {
    let consumer = Consumer::of(stage.channel()).with(quick()).each("record", record);
    let app = stage.app_watched_by(Arc::new(Panics), [consumer]).await;
    for number in 0..20 {
        place(&app, &format!("order-{number}")).await;
    }
    eventually("twenty effects", || async { (effects(&app).await.len() == 20).then_some(()) }).await;
    eventually("all are SENT", || async {
        let channel = towpath::ids::ChannelName::new(stage.channel()).unwrap();
        let counts = towpath::ports::store::Inspection::outbox_counts(app.store(), &channel).await.unwrap();
        (counts.of(towpath::lifecycle::OutboxStatus::Sent) == 20).then_some(())
    })
    .await;
    assert!(effects(&app).await.values().all(|count| *count == 1));
    app.stop().await;
}

/// Who was to let the next one go on has died in between, or has not seen it.
async fn what_waits_behind_nothing_goes_on(stage: &Stage) {
    let handler = |delivery: Delivery| async move {
        match delivery.event.aggregate_version {
            Some(1) => Ok(delivery.dead("no", "never")),
            _ => record(delivery).await,
        }
    };
    let consumer = Consumer::of(stage.channel()).with(quick()).in_order().each("record", handler);
    let app = stage.app([consumer]).await;
    place(&app, "order-1").await;
    dead_letters(&app, 1).await;
    note(&app, "order-1").await;
    eventually("one waits behind it", || async {
        let all = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
        all.iter().any(|letter| letter.status == LetterStatus::Behind).then_some(())
    })
    .await;
    assert_eq!(effects(&app).await.len(), 0);
    let gone = "DELETE FROM dead_letters WHERE status = 'DEAD'";
    assert_eq!(app.store().own_execute("test.gone", gone, Vec::new()).await.unwrap(), 1);
    eventually("it goes on", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
    app.stop().await;
}

/// RabbitMQ takes any number of seconds for a time.
mod odd_times {
    use super::*;

    on_every_pair!(@broker rabbitmq, RabbitMq, a_time_that_no_database_can_keep_stops_nobody);

    async fn a_time_that_no_database_can_keep_stops_nobody(stage: &Stage) {
        let app = stage.app([Consumer::of(stage.channel()).with(quick()).each("record", record)]).await;
        let message = Message {
            destination: Destination {
                exchange: stage.channel().to_owned(),
                routing_key: "order.odd".into(),
            },
            message_id: "milliseconds".into(),
            message_type: "order.odd".into(),
            key: "order/odd".into(),
            // Milliseconds, taken for seconds.
            occurred_at: chrono::DateTime::from_timestamp(1_794_757_000_000, 0).unwrap(),
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: b"no event".to_vec(),
        };
        stage.publish(&[message]).await;
        let dead = dead_letters(&app, 1).await;
        assert_eq!(dead[0].letter.message.occurred_at, None);
        app.stop().await;
    }
}

/// What follows needs a broker with dead-letter queues of its own.
mod broker_dead_letters {
    use super::*;

    on_pairs_with_dead_letters!(
        messages_with_one_id_that_say_different_things_are_two_letters,
        what_the_broker_gives_up_is_read_in_with_its_headers_and_can_go_back,
        a_letter_beyond_the_horizon_is_refused_unless_forced,
    );

    fn by_the_book() -> ConsumerPolicy {
        ConsumerPolicy {
            immediate_retries: 0,
            afterwards: Afterwards::Requeue { at_most: 3 },
            dead: DeadTo::Broker,
            prefetch: 20,
            ..ConsumerPolicy::default()
        }
    }

    async fn what_the_broker_gives_up_is_read_in_with_its_headers_and_can_go_back(stage: &Stage) {
        let (broken, attempts) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
        let handler = {
            let (broken, attempts) = (Arc::clone(&broken), Arc::clone(&attempts));
            move |delivery: Delivery| {
                attempts.fetch_add(1, Ordering::SeqCst);
                let broken = Arc::clone(&broken);
                async move {
                    if broken.load(Ordering::SeqCst) {
                        return Err(HandlerError::transient("not-yet", "on purpose"));
                    }
                    record(delivery).await
                }
            }
        };
        let consumer = Consumer::of(stage.channel()).with(by_the_book()).each("record", handler);
        let app = stage.app_with_dead_letter_queue([consumer]).await;
        place(&app, "order-1").await;
        let dead = dead_letters(&app, 1).await;
        assert_eq!(attempts.load(Ordering::SeqCst), 3, "requeued up to the threshold");
        let found = &dead[0].letter;
        assert_eq!(found.handler, None, "nobody's in particular");
        assert_eq!(dead[0].status_reason.as_deref(), Some("rejected"));
        let aggregate = ("towpath-aggregate-id".to_owned(), "order-1".to_owned());
        assert!(found.message.headers.contains(&aggregate), "{:?}", found.message.headers);
        // It has all its attempts again.
        app.dead_letters().replay(dead[0].letter_id, false).await.unwrap();
        let dead = dead_letters(&app, 1).await;
        assert_eq!(attempts.load(Ordering::SeqCst), 6, "requeued up to the threshold again");
        broken.store(false, Ordering::SeqCst);
        app.dead_letters().replay(dead[0].letter_id, false).await.unwrap();
        eventually("the effect", || async { (effects_of(&app, "record").await == 1).then_some(()) }).await;
        let replayed = app.dead_letters().get(dead[0].letter_id).await.unwrap();
        assert_eq!(replayed.status, LetterStatus::Replayed);
        app.stop().await;
    }

    async fn messages_with_one_id_that_say_different_things_are_two_letters(stage: &Stage) {
        let consumer = Consumer::of(stage.channel()).with(by_the_book()).each("record", record);
        let app = stage.app_with_dead_letter_queue([consumer]).await;
        let message = |body: &str| Message {
            destination: Destination { exchange: stage.channel().to_owned(), routing_key: "odd".into() },
            message_id: "by hand".into(),
            message_type: "odd".into(),
            key: String::new(),
            occurred_at: chrono::Utc::now(),
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: body.as_bytes().to_vec(),
        };
        stage.publish(&[message("one"), message("two")]).await;
        let mut bodies: Vec<Vec<u8>> =
            dead_letters(&app, 2).await.into_iter().map(|letter| letter.letter.message.body).collect();
        bodies.sort();
        assert_eq!(bodies, [b"one", b"two"]);
        app.stop().await;
    }

    async fn a_letter_beyond_the_horizon_is_refused_unless_forced(stage: &Stage) {
        let handler = |delivery: Delivery| async move { Ok(delivery.dead("no", "never")) };
        let consumer = Consumer::of(stage.channel()).with(by_the_book()).each("record", handler);
        let app = stage.app_with_dead_letter_queue([consumer]).await;
        let event_id = uuid::Uuid::now_v7();
        let long_ago = chrono::Utc::now() - chrono::Duration::days(30);
        let body = format!(
            r#"{{"specversion":"1.0","id":"{event_id}","source":"/towpath/Order","type":"ORDER_PAID","subject":"7","time":"{}","traceid":"t","data":{{}}}}"#,
            long_ago.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
        );
        let message = Message {
            destination: Destination { exchange: stage.channel().to_owned(), routing_key: "old".into() },
            message_id: event_id.to_string(),
            message_type: "ORDER_PAID".into(),
            key: "Order/7".into(),
            occurred_at: long_ago,
            content_type: "application/cloudevents+json".into(),
            headers: Vec::new(),
            body: body.into_bytes(),
        };
        stage.publish(&[message]).await;
        let dead = dead_letters(&app, 1).await;
        let letters = app.dead_letters();
        let refused = letters.replay(dead[0].letter_id, false).await.unwrap_err();
        assert!(matches!(refused, LettersError::BeyondHorizon { .. }), "{refused}");
        let preview = letters.preview(LetterFilter::default()).await.unwrap();
        assert_eq!(letters.replay_all(&preview, false).await.unwrap().beyond_horizon, 1);
        assert_eq!(letters.replay_all(&preview, true).await.unwrap().to_broker, 1);
        // It is given up again, which is another death of the same message.
        let both = eventually("the second death", || async {
            let all = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
            (all.len() == 2).then_some(all)
        })
        .await;
        assert_eq!(both[0].letter.message.body, both[1].letter.message.body, "with its body");
        app.stop().await;
    }
}
