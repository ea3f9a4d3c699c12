//! The market's own tables: what another program has under the same name, and how they are read when there are many rows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Pair, Stage, settings};
use towpath::Coded as _;
use towpath_market::{Page, ProductFilter};

on_every_pair!(
    a_table_of_somebody_else_stops_the_start_and_is_not_touched,
    an_outbox_of_somebody_else_stops_the_start_and_is_not_touched,
    later_versions_are_added_to_the_first,
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
async fn later_versions_are_added_to_the_first(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    shop.stop().await;
    let indexes = [
        ("orders", "orders_status"),
        ("orders", "orders_seller"),
        ("products", "products_seller"),
        ("products", "products_status_price"),
        ("notifications", "notifications_recipient_event"),
    ];
    for (table, index) in indexes {
        let of_table =
            if stage.pair == Pair::MariaDbRabbitMq { format!(" ON {table}") } else { String::new() };
        stage.command(&format!("DROP INDEX {index}{of_table}")).await;
    }
    for sql in [
        "CREATE INDEX notifications_recipient ON notifications (recipient_id, created_at)",
        "ALTER TABLE orders DROP COLUMN correlation_id",
        "ALTER TABLE orders DROP COLUMN last_event_id",
        "ALTER TABLE orders DROP COLUMN timeout_event_id",
        "DROP TABLE inventory_orders",
        "DROP TABLE product_words",
        "DELETE FROM market_migrations WHERE version > 1",
    ] {
        stage.command(sql).await;
    }
    let shop = stage.open().await;
    assert_eq!(shop.market.order(order.order_id).await.unwrap().order_no, order.order_no);
    // What was offered before is found by its words, and what was ordered before goes on.
    let filter = ProductFilter { text: Some("bicycle".to_owned()), ..ProductFilter::default() };
    let found = shop.market.products(&filter, Page::default()).await.unwrap();
    assert_eq!(found.iter().map(|product| product.product_id).collect::<Vec<_>>(), [order.product_id]);
    shop.market.pay(order.order_id, None).await.unwrap();
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
            "SELECT * FROM orders WHERE order_id > 0 AND seller_id = 77 ORDER BY order_id LIMIT 500",
            &["orders_seller"],
        ),
        (
            "SELECT * FROM orders WHERE order_id > 0 AND seller_id = 77 AND status = 'pending' ORDER BY order_id LIMIT 500",
            &["orders_seller"],
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
            "SELECT * FROM products WHERE product_id > 0 AND seller_id = 77 ORDER BY product_id LIMIT 500",
            &["products_seller"],
        ),
        (
            "SELECT * FROM products WHERE product_id > 0 AND seller_id = 77 AND status = 'on_sale' \
             AND price_cents >= 50 AND price_cents <= 200 ORDER BY product_id LIMIT 500",
            &["products_seller"],
        ),
        (
            "SELECT * FROM products WHERE product_id > 0 AND status IN ('on_sale', 'sold', 'withdrawn') \
             AND price_cents <= 1 ORDER BY product_id LIMIT 500",
            &["products_status_price"],
        ),
        (
            "SELECT * FROM products WHERE product_id > 0 AND status = 'on_sale' AND price_cents <= 1 \
             ORDER BY product_id LIMIT 500",
            &["products_status_price"],
        ),
        (
            "SELECT * FROM product_words w JOIN products p ON p.product_id = w.product_id WHERE w.word = 'red' \
             AND EXISTS (SELECT 1 FROM product_words o WHERE o.word = 'thing' AND o.product_id = w.product_id) \
             AND w.product_id > 0 AND p.status = 'on_sale' AND p.price_cents <= 200 ORDER BY w.product_id LIMIT 500",
            &["product_words_pkey", "PRIMARY"],
        ),
        (
            "SELECT * FROM notifications WHERE recipient_id = 77 AND event_id > '' ORDER BY event_id LIMIT 500",
            &["notifications_recipient_event"],
        ),
        (
            "SELECT * FROM notifications WHERE order_id = 77 ORDER BY created_at, recipient_id",
            &["notifications_order"],
        ),
    ];
    // As the market says it there.
    let said = |question: &str, indexes: &[&str]| match indexes {
        _ if pair != Pair::MariaDbRabbitMq => question.to_owned(),
        [index @ ("orders_status" | "orders_seller")] => {
            question.replace("FROM orders ", &format!("FROM orders FORCE INDEX ({index}) "))
        }
        [index @ ("products_status" | "products_seller")] => {
            question.replace("FROM products ", &format!("FROM products FORCE INDEX ({index}) "))
        }
        [index @ "notifications_recipient_event"] => {
            question.replace("FROM notifications ", &format!("FROM notifications FORCE INDEX ({index}) "))
        }
        _ => question.replace("product_words w JOIN", "product_words w STRAIGHT_JOIN"),
    };
    questions.into_iter().map(|(question, indexes)| (said(question, indexes), indexes)).collect()
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
            "INSERT INTO orders ({ORDER}) SELECT n, n::text, n, n % 5000, n % 1000, 1, 100, 100, \
             CASE WHEN n % 100 = 0 THEN 'pending' ELSE 'completed' END, {moment}, {moment} \
             FROM generate_series(1, {many}) n; \
             INSERT INTO products (product_id, seller_id, title, price_cents, status, status_changed_at, create_time) \
             SELECT n, n % 1000, 'A thing', 100, CASE WHEN n % 100 = 0 THEN 'on_sale' ELSE 'sold' END, {moment}, {moment} \
             FROM generate_series(1, {many}) n; \
             INSERT INTO notifications (event_id, recipient_id, order_id, status, created_at) \
             SELECT n::text, n % 1000, n, 'shipped', {moment} FROM generate_series(1, {many}) n; \
             INSERT INTO product_words (word, product_id) SELECT 'thing', n FROM generate_series(1, {many}) n; \
             INSERT INTO product_words (word, product_id) SELECT 'red', n * 500 FROM generate_series(1, {many} / 500) n; \
             ANALYZE orders; ANALYZE products; ANALYZE notifications; ANALYZE product_words"
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
            "INSERT INTO orders ({ORDER}) SELECT seq, seq, seq, seq % 5000, seq % 1000, 1, 100, 100, \
             IF(seq % 100 = 0, 'pending', 'completed'), {moment}, {moment} FROM seq_1_to_{many}"
        ),
        format!(
            "INSERT INTO products (product_id, seller_id, title, price_cents, status, status_changed_at, create_time) \
             SELECT seq, seq % 1000, 'A thing', 100, IF(seq % 100 = 0, 'on_sale', 'sold'), {moment}, {moment} \
             FROM seq_1_to_{many}"
        ),
        format!(
            "INSERT INTO notifications (event_id, recipient_id, order_id, status, created_at) \
             SELECT seq, seq % 1000, seq, 'shipped', {moment} FROM seq_1_to_{many}"
        ),
        format!("INSERT INTO product_words (word, product_id) SELECT 'thing', seq FROM seq_1_to_{many}"),
        format!(
            "INSERT INTO product_words (word, product_id) SELECT 'red', seq * 500 FROM seq_1_to_{}",
            many / 500
        ),
        "ANALYZE TABLE orders, products, notifications, product_words".to_owned(),
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
