//! The market's own tables: what another program has under the same name, and how they are read when there are many rows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Pair, Stage, settings};

on_every_pair!(
    a_table_of_somebody_else_stops_the_start_and_is_not_touched,
    an_outbox_of_somebody_else_stops_the_start_and_is_not_touched,
    the_second_version_is_added_to_the_first,
);

async fn a_table_of_somebody_else_stops_the_start_and_is_not_touched(stage: &Stage) {
    stage.command("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT)").await;
    stage.command("INSERT INTO orders (id, customer) VALUES (7, 8)").await;
    refused(stage, "orders", "customer, id").await;
    let sql = format!("SELECT {} FROM orders", stage.as_text("customer"));
    assert_eq!(stage.plain(&sql).await, [["8"]]);
    // With the name free again it starts.
    stage.command("DROP TABLE orders").await;
    stage.open_without_workers().await.stop().await;
}

async fn an_outbox_of_somebody_else_stops_the_start_and_is_not_touched(stage: &Stage) {
    stage.command("CREATE TABLE outbox_events (id BIGINT NOT NULL PRIMARY KEY)").await;
    stage.command("INSERT INTO outbox_events (id) VALUES (7)").await;
    refused(stage, "outbox_events", "view").await;
    let sql = format!("SELECT {} FROM outbox_events", stage.as_text("id"));
    assert_eq!(stage.plain(&sql).await, [["7"]]);
}

async fn refused(stage: &Stage, table: &str, told: &str) {
    let refused = stage.try_open(&stage.broker_url, settings()).await.err().expect("a refusal");
    assert_eq!(refused.code(), "foreign-table", "{}", refused.report());
    let report = refused.report();
    assert!(report.contains(&format!("table {table}")) && report.contains(told), "{report}");
    assert!(refused.next_step().contains("database of its own"), "{}", refused.next_step());
}

/// A database that an earlier build has left.
async fn the_second_version_is_added_to_the_first(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    shop.stop().await;
    let drop = if stage.pair == Pair::MariaDbRabbitMq {
        "DROP INDEX orders_status ON orders"
    } else {
        "DROP INDEX orders_status"
    };
    for sql in [drop, "DROP TABLE inventory_orders", "DELETE FROM market_migrations WHERE version = 2"] {
        stage.command(sql).await;
    }
    let shop = stage.open().await;
    assert_eq!(shop.market.order(order.order_id).await.unwrap().order_no, order.order_no);
    let next = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    assert_eq!(shop.market.inventory(next.product_id).await.unwrap().unwrap().order_count, 1);
    shop.stop().await;
}

/// How many orders; TOWPATH_TEST_MARKET_ORDERS makes it more.
fn many() -> u64 {
    let number = std::env::var("TOWPATH_TEST_MARKET_ORDERS").ok().and_then(|text| text.parse().ok());
    number.unwrap_or(100_000)
}

/// The job's and the listings' statements, with the index that each is to use. One order in a hundred is pending. On MariaDB
/// listings by status name their index, as the market does there.
fn questions(pair: Pair) -> Vec<(String, &'static [&'static str])> {
    let questions: Vec<(&str, &[&str])> = vec![
        (
            "SELECT * FROM orders WHERE status = 'pending' AND create_time <= '2026-02-04 00:00:00' \
             ORDER BY create_time, order_id LIMIT 200",
            &["orders_status_time"],
        ),
        (
            "SELECT * FROM orders WHERE order_id > 0 AND status = 'pending' ORDER BY order_id LIMIT 500",
            &["orders_status"],
        ),
        (
            "SELECT * FROM orders WHERE order_id > 0 AND buyer_id = 77 ORDER BY order_id LIMIT 500",
            &["orders_buyer"],
        ),
        (
            "SELECT * FROM orders WHERE order_id > 0 AND buyer_id = 77 AND status = 'pending' ORDER BY order_id LIMIT 500",
            &["orders_buyer", "orders_status"],
        ),
        (
            "SELECT * FROM orders WHERE order_id > 50000 ORDER BY order_id LIMIT 500",
            &["orders_pkey", "PRIMARY"],
        ),
        ("SELECT COUNT(*) FROM orders WHERE buyer_id = 77", &["orders_buyer"]),
        (
            "SELECT * FROM products WHERE status = 'on_sale' AND product_id > 0 ORDER BY product_id LIMIT 500",
            &["products_status"],
        ),
        (
            "SELECT * FROM notifications WHERE order_id = 77 ORDER BY created_at, recipient_id",
            &["notifications_order"],
        ),
    ];
    let named = |question: &str, table: &str, index: &str| {
        question.replace(&format!("FROM {table} "), &format!("FROM {table} FORCE INDEX ({index}) "))
    };
    questions
        .into_iter()
        .map(|(question, indexes)| match indexes {
            ["orders_status"] if pair == Pair::MariaDbRabbitMq => {
                (named(question, "orders", "orders_status"), indexes)
            }
            ["products_status"] if pair == Pair::MariaDbRabbitMq => {
                (named(question, "products", "products_status"), indexes)
            }
            _ => (question.to_owned(), indexes),
        })
        .collect()
}

const ORDER: &str = "order_id, order_no, product_id, buyer_id, seller_id, quantity, price_cents, total_cents, status, \
    status_changed_at, create_time";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_job_and_the_listings_go_by_indexes_on_postgres() {
    let stage = Stage::new(Pair::PostgresRabbitMq).await;
    stage.open_without_workers().await.stop().await;
    let many = many();
    let moment = "timestamptz '2026-01-01 00:00:00Z' + n * interval '1 second'";
    stage
        .command(&format!(
            "INSERT INTO orders ({ORDER}) SELECT n, n::text, n, n % 5000, 1, 1, 100, 100, \
             CASE WHEN n % 100 = 0 THEN 'pending' ELSE 'completed' END, {moment}, {moment} \
             FROM generate_series(1, {many}) n; \
             INSERT INTO products (product_id, seller_id, title, price_cents, status, status_changed_at, create_time) \
             SELECT n, 1, 'A thing', 100, CASE WHEN n % 100 = 0 THEN 'on_sale' ELSE 'sold' END, {moment}, {moment} \
             FROM generate_series(1, {many}) n; \
             INSERT INTO notifications (event_id, recipient_id, order_id, status, created_at) \
             SELECT n::text, 1, n, 'shipped', {moment} FROM generate_series(1, {many}) n; \
             ANALYZE orders; ANALYZE products; ANALYZE notifications"
        ))
        .await;
    for (question, indexes) in questions(stage.pair) {
        let plan: Vec<String> =
            stage.plain(&format!("EXPLAIN {question}")).await.into_iter().map(|row| row[0].clone()).collect();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan"), "{question}\n{plan}");
        assert!(
            indexes
                .iter()
                .any(|index| plan.contains(&format!("{index} ")) || plan.contains(&format!("on {index}"))),
            "{question}\n{plan}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_job_and_the_listings_go_by_indexes_on_mariadb() {
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    stage.open_without_workers().await.stop().await;
    let many = many();
    let moment = "TIMESTAMP'2026-01-01 00:00:00' + INTERVAL seq SECOND";
    for sql in [
        format!(
            "INSERT INTO orders ({ORDER}) SELECT seq, seq, seq, seq % 5000, 1, 1, 100, 100, \
             IF(seq % 100 = 0, 'pending', 'completed'), {moment}, {moment} FROM seq_1_to_{many}"
        ),
        format!(
            "INSERT INTO products (product_id, seller_id, title, price_cents, status, status_changed_at, create_time) \
             SELECT seq, 1, 'A thing', 100, IF(seq % 100 = 0, 'on_sale', 'sold'), {moment}, {moment} \
             FROM seq_1_to_{many}"
        ),
        format!(
            "INSERT INTO notifications (event_id, recipient_id, order_id, status, created_at) \
             SELECT seq, 1, seq, 'shipped', {moment} FROM seq_1_to_{many}"
        ),
        "ANALYZE TABLE orders, products, notifications".to_owned(),
    ] {
        stage.command(&sql).await;
    }
    for (question, indexes) in questions(stage.pair) {
        let sql = format!("EXPLAIN FORMAT=JSON {question}");
        let plan = stage.plain(&sql).await.remove(0).remove(0);
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let key = find(&plan, "key").and_then(|key| key.as_str().map(str::to_owned)).unwrap_or_default();
        assert!(indexes.contains(&key.as_str()), "{question}\n{plan:#}");
        assert_ne!(
            find(&plan, "access_type").and_then(serde_json::Value::as_str),
            Some("ALL"),
            "{question}\n{plan:#}"
        );
    }
}

/// The first value of a name, however deep.
fn find<'v>(value: &'v serde_json::Value, name: &str) -> Option<&'v serde_json::Value> {
    match value {
        serde_json::Value::Object(fields) => {
            fields.get(name).or_else(|| fields.values().find_map(|inner| find(inner, name)))
        }
        serde_json::Value::Array(values) => values.iter().find_map(|inner| find(inner, name)),
        _ => None,
    }
}
