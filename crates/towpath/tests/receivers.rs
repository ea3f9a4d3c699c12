//! Receivers that record (channel, message id): messages in any order, messages again, and messages again after the records
//! were cleaned up. And messages that are too large to be kept.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::delivery::{Broker, Stage, effects};
use support::{Order, OrderCommand, eventually, eventually_within};
use towpath::ids::EventId;
use towpath::letters::{AsideOutcome, LetterFilter, SetAside};
use towpath::ports::broker::{Destination, Message};
use towpath::{Consumer, Delivery, HandlerError, LettersError, Next, Towpath, sqlx};

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

/// MariaDB has a limit for a statement; what the others take is more than any broker carries.
mod large {
    use super::*;

    mod rabbitmq {
        on_every_pair!(@database mysql, RabbitMq, a_message_that_the_database_cannot_keep_ends_with_size_and_hash);
    }

    async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
        let id = delivery.event.event_id.to_string();
        let sql = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";
        delivery.tx.execute(sql, &[&id, "record"]).await?;
        Ok(delivery.handled())
    }

    async fn a_message_that_the_database_cannot_keep_ends_with_size_and_hash(stage: &Stage) {
        let consumer = Consumer::of(stage.channel()).each("record", record);
        let app = stage.app([consumer]).await;
        let pool = app.store().mysql_pool().unwrap();
        let asked = sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS SIGNED)");
        let most: i64 = asked.fetch_one(pool).await.unwrap();
        // In base64 it is more than a statement may be.
        let size = usize::try_from(most).unwrap() / 4 * 3 + (1 << 20);
        let message = Message { body: vec![0xFF; size], message_id: "large".to_owned(), ..plain(stage, "1") };
        stage.publish(&[message]).await;
        let letter = eventually_within("a dead letter", Duration::from_secs(60), || async {
            app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap().into_iter().next()
        })
        .await;
        assert!(!letter.body_kept);
        let body: serde_json::Value = serde_json::from_slice(&letter.letter.message.body).unwrap();
        assert_eq!(body["bytes"], size);
        assert_eq!(body["sha256"].as_str().unwrap().len(), 64);
        assert_eq!(letter.letter.message.message_id.as_deref(), Some("large"));
        let letters = app.dead_letters();
        let refused = letters.replay(letter.letter_id, false).await.unwrap_err();
        assert!(matches!(refused, LettersError::WithoutBody { .. }), "{refused}");
        let preview = letters.preview(LetterFilter::default()).await.unwrap();
        assert_eq!(letters.replay_all(&preview, false).await.unwrap().without_body, 1);

        // One that should be tried again cannot be, either.
        let mut large = letter.letter.clone();
        large.event_id = Some(EventId(uuid::Uuid::now_v7()));
        large.message.body = vec![0xFF; size];
        let aside = SetAside {
            letter_id: None,
            held_until: None,
            letter: large,
            due_at: Some(chrono::Utc::now()),
            reason: "not-today".to_owned(),
            message: "never works".to_owned(),
            retry_count: 1,
            now: chrono::Utc::now(),
        };
        assert_eq!(app.store().set_aside(&aside).await.unwrap(), AsideOutcome::TooLarge);
        let dead = letters.list(&LetterFilter::dead(), letter.letter_id, 10).await.unwrap();
        assert_eq!(dead[0].status_reason.as_deref(), Some("letter-too-large"));
        assert!(dead[0].status_message.as_deref().unwrap().contains("never works"));

        // Given its body again, it is a letter like any other.
        letters.edit(dead[0].letter_id, b"{}").await.unwrap();
        assert!(letters.get(dead[0].letter_id).await.unwrap().body_kept);
        // And none of it is in anybody's way.
        app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() }).await.unwrap();
        eventually("the next one", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
        app.stop().await;
    }
}
