//! The frozen tables (O9), read by a plain client: names, types and values.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Pair, Stage, eventually};

on_every_pair!(the_outbox_is_read_under_its_frozen_names, the_log_is_read_under_its_frozen_names,);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_columns_have_the_frozen_types_on_mariadb() {
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    stage.open_without_workers().await.stop().await;
    let columns = |table: &str| {
        let sql = match table {
            "outbox_events" => {
                "SELECT column_name, data_type, CAST(COALESCE(character_maximum_length, 0) AS CHAR) \
                 FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'outbox_events' \
                 ORDER BY ordinal_position"
            }
            _ => {
                "SELECT column_name, data_type, CAST(COALESCE(character_maximum_length, 0) AS CHAR) \
                 FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'event_consume_log' \
                 ORDER BY ordinal_position"
            }
        };
        stage.plain(sql)
    };
    let found: Vec<String> = columns("outbox_events").await.iter().map(|row| described(row)).collect();
    assert_eq!(
        found,
        [
            "id bigint",
            "event_id varchar(64)",
            "event_type varchar",
            "aggregate_type varchar(64)",
            "aggregate_id bigint",
            "payload text",
            "status varchar(16)",
            "retry_count int",
            "next_retry_time datetime",
            "create_time datetime",
            "update_time datetime",
        ]
    );
    let found: Vec<String> = columns("event_consume_log").await.iter().map(|row| described(row)).collect();
    assert_eq!(
        found,
        [
            "id bigint",
            "event_id varchar(64)",
            "event_type varchar",
            "consumer varchar(64)",
            "consume_time datetime"
        ]
    );
}

/// A column and its type. Our own names of events may be longer than the contract's, and a view has no shorter type for
/// the same column; its values are no longer.
fn described(row: &[String]) -> String {
    let (name, kind, length) = (row[0].as_str(), row[1].as_str(), row[2].as_str());
    match (name, kind) {
        ("event_type", kind) => format!("{name} {kind}"),
        (_, "varchar") => format!("{name} varchar({length})"),
        (_, "longtext") => format!("{name} text"),
        (_, kind) => format!("{name} {kind}"),
    }
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
    assert_eq!((row[6].as_str(), row[7].as_str(), row[8].as_str()), ("NEW", "0", ""));
    let at = order.create_time.format("%Y-%m-%d %H:%M:%S").to_string();
    assert_eq!((row[9].as_str(), row[10].as_str()), (at.as_str(), at.as_str()), "in UTC, in whole seconds");
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
