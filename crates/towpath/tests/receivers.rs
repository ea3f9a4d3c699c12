//! Receivers that record (channel, message id): messages in any order, messages again, and messages again after the records
//! were cleaned up. And messages that are too large to be kept.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::delivery::{Broker, Stage, effects};
use support::{Order, OrderCommand, eventually, eventually_within};
use towpath::letters::{Letter, LetterFilter};
use towpath::ports::broker::{Destination, Message};
use towpath::retry::RetryPolicy;
use towpath::{
    Afterwards, Consumer, ConsumerPolicy, Delivery, HandlerError, LettersError, Next, StoreOptions, Towpath,
    sqlx,
};

on_every_pair!(
    messages_out_of_order_are_no_duplicates_and_duplicates_are_found,
    what_comes_again_after_a_clean_up_is_found_inside_the_horizon_only,
);

/// A message of somebody who writes no events: all there is to know it by is its id.
fn plain(stage: &Stage, message_id: &str) -> Message {
    Message {
        destination: Destination { exchange: stage.channel().to_owned(), routing_key: "parcel.sent".into() },
        message_id: message_id.to_owned(),
        message_type: "parcel.sent".into(),
        key: String::new(),
        occurred_at: chrono::Utc::now(),
        content_type: "text/plain".into(),
        headers: Vec::new(),
        body: format!("{{\"number\":{message_id}}}").into_bytes(),
    }
}

type Seen = Arc<Mutex<Vec<u64>>>;

/// Writes one row per message and remembers the order.
fn recording(stage: &Stage, seen: &Seen) -> Consumer {
    let seen = Arc::clone(seen);
    Consumer::of(stage.channel()).by_message_id().each("record", move |mut delivery: Delivery| {
        let seen = Arc::clone(&seen);
        async move {
            assert_eq!(delivery.event.event_type.as_str(), "parcel.sent");
            let payload: serde_json::Value = delivery.payload()?;
            let number = payload["number"].as_u64().unwrap();
            let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
            delivery.tx.execute(sql, &[&number.to_string(), "record"]).await?;
            seen.lock().unwrap().push(number);
            Ok(delivery.handled())
        }
    })
}

async fn until(app: &Towpath, count: usize) {
    let all = || async { (effects(app).await.len() >= count).then_some(()) };
    eventually_within("all effects", Duration::from_secs(20), all).await;
}

async fn messages_out_of_order_are_no_duplicates_and_duplicates_are_found(stage: &Stage) {
    let seen = Seen::default();
    let app = stage.app([recording(stage, &seen)]).await;
    let ids = ["40", "7", "39", "1", "38", "8", "2"];
    for id in ids {
        stage.publish(&[plain(stage, id)]).await;
    }
    until(&app, ids.len()).await;
    // All of it again, the other way round, and one that is new.
    for id in ids.iter().rev() {
        stage.publish(&[plain(stage, id)]).await;
    }
    stage.publish(&[plain(stage, "3")]).await;
    until(&app, ids.len() + 1).await;
    app.stop().await;
    let mut numbers = seen.lock().unwrap().clone();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 7, 8, 38, 39, 40], "each once");
}

async fn what_comes_again_after_a_clean_up_is_found_inside_the_horizon_only(stage: &Stage) {
    const DAY: Duration = Duration::from_secs(86_400);
    let seen = Seen::default();
    let app = stage
        .builder()
        .topology(stage.topology(false))
        .horizon(7 * DAY)
        .clean_every(Duration::from_millis(50))
        .consumer(recording(stage, &seen))
        .start()
        .await
        .unwrap();
    support::delivery::make_table(&app).await;
    stage.publish(&[plain(stage, "1"), plain(stage, "2")]).await;
    until(&app, 2).await;
    // The first was handled six days ago, the second eight.
    for (number, days) in [("1", 6), ("2", 8)] {
        let key = towpath::message_key(stage.channel(), number);
        let handled_at = chrono::Utc::now() - days * DAY;
        let sql = "UPDATE inbox SET status_changed_at = ? WHERE event_id = ?";
        let values = vec![handled_at.into(), key.0.into()];
        assert_eq!(app.store().own_execute("test.age", sql, values).await.unwrap(), 1);
    }
    eventually("the old record is gone", || async {
        let sql = "SELECT handler FROM inbox";
        (app.store().own_rows("test.left", sql, Vec::new()).await.unwrap().len() == 1).then_some(())
    })
    .await;
    stage.publish(&[plain(stage, "1"), plain(stage, "2"), plain(stage, "3")]).await;
    eventually("what is not known any more is handled again", || async {
        let seen = seen.lock().unwrap();
        (seen.iter().filter(|number| **number != 1).count() == 3).then_some(())
    })
    .await;
    until(&app, 3).await;
    app.stop().await;
    let mut numbers = seen.lock().unwrap().clone();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 2, 3], "inside the horizon once, outside again");
}

/// What the databases take differs: MariaDB has a limit for a statement.
mod large {
    use super::*;

    on_pairs_with_dead_letters!(a_message_that_the_database_cannot_keep_ends_with_size_and_hash);

    async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
        let id = delivery.event.event_id.to_string();
        let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
        delivery.tx.execute(sql, &[&id, "record"]).await?;
        Ok(delivery.handled())
    }

    async fn dead(app: &Towpath, count: usize) -> Vec<Letter> {
        eventually_within("dead letters", Duration::from_secs(60), || async {
            let dead = app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap();
            (dead.len() >= count).then_some(dead)
        })
        .await
    }

    fn bytes(stage: &Stage, size: usize) -> Message {
        Message { body: vec![0xFF; size], message_id: "large".to_owned(), ..plain(stage, "1") }
    }

    async fn a_message_that_the_database_cannot_keep_ends_with_size_and_hash(stage: &Stage) {
        // In base64 it is more than 16 MiB.
        const SIZE: usize = 13 << 20;
        let policy = ConsumerPolicy {
            immediate_retries: 0,
            afterwards: Afterwards::SetAside(RetryPolicy::Fixed(vec![Duration::from_millis(20); 2])),
            ..ConsumerPolicy::default()
        };
        let consumer = Consumer::of(stage.channel()).with(policy).each("record", record);
        let app = stage.app([consumer]).await;
        stage.publish(&[bytes(stage, SIZE)]).await;
        let letter = dead(&app, 1).await.remove(0);
        let fits = app.store().mysql_pool().is_none() || packet(&app).await > (18 << 20);
        assert_eq!(letter.body_kept, fits);
        if fits {
            assert_eq!(letter.letter.message.body.len(), SIZE);
        } else {
            let body: serde_json::Value = serde_json::from_slice(&letter.letter.message.body).unwrap();
            assert_eq!(body["bytes"], SIZE);
            assert_eq!(body["sha256"].as_str().unwrap().len(), 64);
            assert_eq!(letter.letter.message.message_id.as_deref(), Some("large"));
            let refused = app.dead_letters().replay(letter.letter_id, false).await.unwrap_err();
            assert!(matches!(refused, LettersError::WithoutBody { .. }), "{refused}");
            let preview = app.dead_letters().preview(LetterFilter::default()).await.unwrap();
            assert_eq!(app.dead_letters().replay_all(&preview, false).await.unwrap().without_body, 1);
            // Given its body again, it is a letter like any other.
            app.dead_letters().edit(letter.letter_id, b"{}").await.unwrap();
            assert!(app.dead_letters().get(letter.letter_id).await.unwrap().body_kept);
        }
        // And it is in nobody's way.
        app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() }).await.unwrap();
        eventually("the next one", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
        app.stop().await;
    }

    async fn packet(app: &Towpath) -> i64 {
        let pool = app.store().mysql_pool().unwrap();
        sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS SIGNED)").fetch_one(pool).await.unwrap()
    }

    mod that_can_be_read {
        use super::*;

        on_every_pair!(@broker rabbitmq, RabbitMq, a_large_event_that_fails_is_given_up_at_once_where_it_cannot_be_set_aside);

        async fn a_large_event_that_fails_is_given_up_at_once_where_it_cannot_be_set_aside(stage: &Stage) {
            let policy = ConsumerPolicy {
                immediate_retries: 0,
                afterwards: Afterwards::SetAside(RetryPolicy::Fixed(vec![Duration::from_millis(20); 2])),
                ..ConsumerPolicy::default()
            };
            let fails = |delivery: Delivery| async move {
                drop(delivery);
                Err(HandlerError::transient("not-today", "never works"))
            };
            let options = StoreOptions { max_connections: 4, ..StoreOptions::default() };
            let consumer = Consumer::of(stage.channel()).with(policy).each("broken", fails);
            let app = stage.app_with_connections(options, [consumer]).await;
            let event_id = uuid::Uuid::now_v7();
            let body = format!(
                r#"{{"eventId":"{event_id}","eventType":"ORDER_PAID","aggregateType":"Order","aggregateId":7,"occurredAt":"2026-02-04T10:30:00Z","traceId":"t","payload":{{"text":"{}"}}}}"#,
                "x".repeat(17 << 20)
            );
            let message = Message {
                message_id: event_id.to_string(),
                content_type: "application/json".into(),
                body: body.clone().into_bytes(),
                ..plain(stage, "1")
            };
            stage.publish(&[message]).await;
            let letter = dead(&app, 1).await.remove(0);
            if letter.body_kept {
                assert_eq!((letter.retry_count, letter.letter.message.body), (3, body.into_bytes()));
            } else {
                assert_eq!(letter.retry_count, 1, "what cannot be set aside is not tried again");
                assert_eq!(letter.status_reason.as_deref(), Some("letter-too-large"));
                assert!(letter.status_message.unwrap().contains("never works"));
            }
            app.stop().await;
        }
    }
}
