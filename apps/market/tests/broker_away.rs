//! The broker goes away while people order: they go on, nothing is lost, and the backlog drains when it is back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::time::{Duration, Instant};

use support::{Pair, Shop, Stage, eventually, settings};
use towpath_market::{Order, OrderStatus, Settings};
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

/// The broker's own server is stopped and started again. Without a server of the tests' own there is nothing to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_go_on_while_rabbitmq_is_stopped() {
    if std::env::var("TOWPATH_TEST_XTASK").is_err() {
        return;
    }
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    let shop = stage.open_with(with_the_contracts_delays()).await;
    let mut orders = vec![shop.order().await];
    sent(&stage).await;
    services("down").await;
    orders.extend(order_meanwhile(&shop, away()).await);
    let waiting = stage.outbox().await;
    assert!(waiting.iter().any(|(_, status, _)| status == "NEW"), "what was not tried is NEW");
    assert!(waiting.iter().all(|(_, status, _)| status != "FAILED"), "an absence gives nothing up");
    services("up").await;
    all_arrived(&stage, &shop, &orders, 1).await;
    shop.stop().await;
}

/// Stops or starts our own RabbitMQ. The variables that name servers are taken away: those would not be ours.
async fn services(action: &'static str) {
    let done = tokio::task::spawn_blocking(move || {
        let mut xtask = std::process::Command::new(support::variable("TOWPATH_TEST_XTASK"));
        xtask.args(["services", action, "rabbitmq"]);
        for name in ["TOWPATH_TEST_AMQP_URL", "TOWPATH_TEST_AMQP_MANAGEMENT_URL"] {
            xtask.env_remove(name);
        }
        xtask.output()
    });
    let output = done.await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The contract's delays between attempts: what fails on the way stays RETRY long enough to be seen.
fn with_the_contracts_delays() -> Settings {
    let outbox =
        towpath::ChannelPolicy { patience: Duration::from_secs(2), ..towpath::ChannelPolicy::market() };
    Settings { outbox, ..settings() }
}

async fn orders_go_on(pair: Pair) {
    let stage = Stage::new(pair).await;
    let (before, rest) = stage.broker_url.split_once('@').unwrap();
    let (server, vhost) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(server).await;
    let url = format!("{before}@{}/{vhost}", proxy.address());
    let shop = stage.try_open(&url, with_the_contracts_delays()).await.unwrap();
    let mut orders = vec![shop.order().await];
    sent(&stage).await;

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
    orders.extend(order_meanwhile(&shop, away()).await);
    let waiting = stage.outbox().await;
    assert!(waiting.iter().any(|(_, status, _)| status == "NEW"), "what was not tried is NEW");
    assert!(waiting.iter().all(|(_, status, _)| status != "FAILED"), "an absence gives nothing up");

    proxy.heal();
    proxy.cut();
    all_arrived(&stage, &shop, &orders, 2).await;
    shop.stop().await;
}

/// Waits until everything is SENT; answers how many rows there are.
async fn sent(stage: &Stage) -> usize {
    let waiting = async {
        loop {
            let rows = stage.outbox().await;
            if rows.iter().all(|(_, status, _)| status == "SENT") {
                return rows.len();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(180), waiting).await.expect("the backlog drains")
}

/// People order, pay and ship, for so long.
async fn order_meanwhile(shop: &Shop, long: Duration) -> Vec<Order> {
    let (begun, mut orders) = (Instant::now(), Vec::new());
    while begun.elapsed() < long {
        let order = shop.order().await;
        shop.market.pay(order.order_id, None).await.unwrap();
        shop.market.ship(order.order_id).await.unwrap();
        orders.push(order);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    orders
}

/// Everything about these orders arrives, once. The first few of them were only placed; the others were paid and shipped.
async fn all_arrived(stage: &Stage, shop: &Shop, orders: &[Order], only_placed: usize) {
    let (count, moved) = (orders.len(), orders.len() - only_placed);
    assert_eq!(sent(stage).await, count * 2 + moved * 2);
    shop.seen.until("inventory.update", "handled", count).await;
    shop.seen.until("order.status.sync", "handled", moved).await;
    assert_eq!(shop.seen.count("inventory.update", "handled"), count, "each once");
    for order in &orders[only_placed..] {
        assert_eq!(shop.market.order(order.order_id).await.unwrap().status, OrderStatus::Shipped);
        assert_eq!(shop.market.notifications(order.order_id).await.unwrap().len(), 1);
        assert_eq!(shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count, 1);
    }
    assert!(shop.dead().await.is_empty());
}
