//! The frozen tables (O9), read by a plain client: names, types and values.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;

use support::{Pair, Stage, eventually};
use towpath_testkit::VirtualClock;

on_every_pair!(
    the_outbox_is_read_under_its_frozen_names,
    the_log_is_read_under_its_frozen_names,
    the_contracts_own_condition_finds_what_is_to_be_sent,
    a_row_that_waits_holds_back_none_behind_it,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_columns_have_the_frozen_types_on_mariadb() {
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    stage.open_without_workers().await.stop().await;
    // Section 14 to the letter. Of a view, information_schema tells no keys; those are on the tables beneath it.
    let expected = [
        ("outbox_events", "id", "bigint", "", "NO", ""),
        ("outbox_events", "event_id", "varchar", "64", "NO", ""),
        ("outbox_events", "event_type", "varchar", "64", "NO", ""),
        ("outbox_events", "aggregate_type", "varchar", "64", "NO", ""),
        ("outbox_events", "aggregate_id", "bigint", "", "NO", ""),
        ("outbox_events", "payload", "text", "65535", "NO", ""),
        ("outbox_events", "status", "varchar", "16", "NO", ""),
        ("outbox_events", "retry_count", "int", "", "NO", ""),
        ("outbox_events", "next_retry_time", "datetime", "", "YES", "0"),
        ("outbox_events", "create_time", "datetime", "", "NO", "0"),
        ("outbox_events", "update_time", "datetime", "", "NO", "0"),
        ("event_consume_log", "id", "bigint", "", "NO", ""),
        ("event_consume_log", "event_id", "varchar", "64", "NO", ""),
        ("event_consume_log", "event_type", "varchar", "64", "NO", ""),
        ("event_consume_log", "consumer", "varchar", "64", "NO", ""),
        ("event_consume_log", "consume_time", "datetime", "", "NO", "0"),
    ];
    let found = stage
        .plain(
            "SELECT table_name, column_name, data_type, CAST(character_maximum_length AS CHAR), is_nullable, \
             CAST(datetime_precision AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() \
             AND table_name IN ('outbox_events', 'event_consume_log') ORDER BY table_name DESC, ordinal_position",
        )
        .await;
    let expected: Vec<Vec<String>> = expected
        .iter()
        .map(|(table, column, kind, length, null, digits)| {
            [table, column, kind, length, null, digits].map(ToString::to_string).to_vec()
        })
        .collect();
    assert_eq!(found, expected);
}

/// The condition of the contract's own dispatcher (7.2), run by a plain client, finds what is to be sent.
async fn the_contracts_own_condition_finds_what_is_to_be_sent(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    shop.order().await;
    let now = match stage.pair {
        Pair::MariaDbRabbitMq => "UTC_TIMESTAMP()",
        Pair::PostgresRabbitMq => "CAST(now() AT TIME ZONE 'UTC' AS timestamp)",
        Pair::SqliteLocal => "datetime('now')",
    };
    let sql = format!(
        "SELECT event_type FROM outbox_events WHERE status IN ('NEW', 'RETRY') AND next_retry_time <= {now} \
         ORDER BY id LIMIT 200"
    );
    assert_eq!(stage.plain(&sql).await, [["ORDER_CREATED"], ["ORDER_TIMEOUT"]]);
    shop.stop().await;
    let shop = stage.open().await;
    eventually("SENT", || async { stage.plain(&sql).await.is_empty().then_some(()) }).await;
    shop.stop().await;
}

/// By the same condition each row is due for itself: one that failed holds back none behind it of the same order.
async fn a_row_that_waits_holds_back_none_behind_it(stage: &Stage) {
    let clock = Arc::new(VirtualClock::at(chrono::Utc::now()));
    let shop = stage.open_at(&clock).await;
    stage.unbind("order.status.sync.queue", "order.status.changed").await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    let retry = || ("ORDER_STATUS_CHANGED".to_owned(), "RETRY".to_owned(), 1);
    let changed = || async {
        let rows = stage.outbox().await;
        rows.into_iter().filter(|(event_type, ..)| event_type == "ORDER_STATUS_CHANGED").collect::<Vec<_>>()
    };
    eventually("the first waits", || async { (changed().await == [retry()]).then_some(()) }).await;
    // The clock stands still: the first one stays where it is.
    shop.market.complete(order.order_id).await.unwrap();
    eventually("the second was tried", || async { (changed().await == [retry(), retry()]).then_some(()) })
        .await;
    shop.stop().await;
}

async fn the_outbox_is_read_under_its_frozen_names(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    let sql = match stage.pair {
        Pair::MariaDbRabbitMq => {
            "SELECT CAST(id AS CHAR), event_id, event_type, aggregate_type, CAST(aggregate_id AS CHAR), payload, status, \
             CAST(retry_count AS CHAR), CAST(next_retry_time AS CHAR), CAST(create_time AS CHAR), \
             CAST(update_time AS CHAR) FROM outbox_events ORDER BY id"
        }
        _ => {
            "SELECT CAST(id AS text), CAST(event_id AS text), event_type, aggregate_type, CAST(aggregate_id AS text), \
             payload, status, CAST(retry_count AS text), CAST(next_retry_time AS text), CAST(create_time AS text), \
             CAST(update_time AS text) FROM outbox_events ORDER BY id"
        }
    };
    let rows = stage.plain(sql).await;
    assert_eq!(rows.len(), 2);
    let row = &rows[0];
    assert!(row[0].parse::<i64>().unwrap() > 0);
    assert!(uuid::Uuid::parse_str(&row[1]).is_ok(), "{}", row[1]);
    assert_eq!(row[2..5], ["ORDER_CREATED".to_owned(), "Order".to_owned(), order.order_id.to_string()]);
    let payload: serde_json::Value = serde_json::from_str(&row[5]).unwrap();
    assert_eq!(payload["orderNo"], order.order_no.as_str());
    assert_eq!((row[6].as_str(), row[7].as_str()), ("NEW", "0"));
    let at = order.create_time.format("%Y-%m-%d %H:%M:%S").to_string();
    assert_eq!(row[8..11], [at.clone(), at.clone(), at], "due at once; in UTC, in whole seconds");
    assert_eq!(rows[1][2], "ORDER_TIMEOUT");
    shop.stop().await;
}

async fn the_log_is_read_under_its_frozen_names(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    let sql = match stage.pair {
        Pair::MariaDbRabbitMq => {
            "SELECT CAST(id AS CHAR), event_id, event_type, consumer, CAST(consume_time AS CHAR) \
             FROM event_consume_log ORDER BY consumer"
        }
        _ => {
            "SELECT CAST(id AS text), CAST(event_id AS text), CAST(event_type AS text), consumer, \
             CAST(consume_time AS text) FROM event_consume_log ORDER BY consumer"
        }
    };
    let rows = eventually("three lines", || async {
        let rows = stage.plain(sql).await;
        (rows.len() == 3).then_some(rows)
    })
    .await;
    let found: Vec<(&str, &str)> = rows.iter().map(|row| (row[2].as_str(), row[3].as_str())).collect();
    assert_eq!(
        found,
        [
            ("ORDER_CREATED", "inventory.update"),
            ("ORDER_PAID", "order.fulfillment"),
            ("ORDER_STATUS_CHANGED", "order.status.sync"),
        ]
    );
    let mut ids: Vec<i64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == 3 && ids[0] > 0, "{ids:?}");
    assert!(rows.iter().all(|row| row[4].len() == "2026-02-04 10:30:00".len()), "{rows:?}");
    shop.stop().await;
}
