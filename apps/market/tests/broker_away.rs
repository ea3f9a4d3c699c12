//! The broker goes away while people order: they go on, nothing is lost, and the backlog drains when it is back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::time::{Duration, Instant};

use support::{Pair, Stage, eventually, settings};
use towpath_market::{OrderStatus, Settings};
use towpath_testkit::broker::TcpProxy;

/// How long the broker is away, in seconds; TOWPATH_TEST_BROKER_AWAY makes it longer.
fn away() -> Duration {
    let seconds = std::env::var("TOWPATH_TEST_BROKER_AWAY").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(10))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_go_on_while_rabbitmq_is_away_on_mariadb() {
    orders_go_on(Pair::MariaDbRabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_go_on_while_rabbitmq_is_away_on_postgres() {
    orders_go_on(Pair::PostgresRabbitMq).await;
}

async fn orders_go_on(pair: Pair) {
    let stage = Stage::new(pair).await;
    let (before, rest) = stage.broker_url.split_once('@').unwrap();
    let (server, vhost) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(server).await;
    let url = format!("{before}@{}/{vhost}", proxy.address());
    // The contract's delays between attempts: what fails on the way stays RETRY long enough to be seen.
    let outbox =
        towpath::ChannelPolicy { patience: Duration::from_secs(2), ..towpath::ChannelPolicy::market() };
    let settings = Settings { outbox, ..settings() };
    let shop = stage.try_open(&url, settings).await.unwrap();
    let mut orders = vec![shop.order().await];
    eventually("SENT before", || async {
        stage.outbox().await.iter().all(|(_, status, _)| status == "SENT").then_some(())
    })
    .await;

    // Answers are held back first: what is on its way then is published and not confirmed, which is a failure (RETRY).
    proxy.hold_answers();
    orders.push(shop.order().await);
    eventually("RETRY", || async {
        stage
            .outbox()
            .await
            .iter()
            .any(|(_, status, failures)| status == "RETRY" && *failures >= 1)
            .then_some(())
    })
    .await;
    proxy.hold_everything();
    proxy.cut();
    let gone = Instant::now();
    while gone.elapsed() < away() {
        let order = shop.order().await;
        shop.market.pay(order.order_id, None).await.unwrap();
        shop.market.ship(order.order_id).await.unwrap();
        orders.push(order);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let waiting = stage.outbox().await;
    assert!(waiting.iter().any(|(_, status, _)| status == "NEW"), "what was not tried is NEW");
    assert!(waiting.iter().all(|(_, status, _)| status != "FAILED"), "an absence gives nothing up");

    proxy.heal();
    proxy.cut();
    let count = orders.len();
    let begun = Instant::now();
    let sent = async {
        loop {
            let rows = stage.outbox().await;
            if rows.iter().all(|(_, status, _)| status == "SENT") {
                return rows.len();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let rows = tokio::time::timeout(Duration::from_secs(120), sent).await.expect("the backlog drains");
    // Two for each order, and two more for each that was paid and shipped.
    assert_eq!(rows, count * 2 + (count - 2) * 2);
    shop.seen.until("inventory.update", "handled", count).await;
    shop.seen.until("order.status.sync", "handled", count - 2).await;
    assert_eq!(shop.seen.count("inventory.update", "handled"), count, "each once");
    for order in &orders[2..] {
        assert_eq!(shop.market.order(order.order_id).await.unwrap().status, OrderStatus::Shipped);
        assert_eq!(shop.market.notifications(order.order_id).await.unwrap().len(), 1);
        assert_eq!(shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count, 1);
    }
    assert!(shop.dead().await.is_empty());
    tracing::info!(orders = count, rows, drained_after = ?begun.elapsed(), "the broker was away");
    shop.stop().await;
}
