//! The broker goes away while people order: they go on, nothing is lost, and the backlog drains when it is back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stdout, reason = "who runs it by hand sees how it went")]

mod support;

use std::time::{Duration, Instant};

use support::log::Log;
use support::{Pair, Shop, Stage, eventually, pending, settings};
use towpath_market::topology::CONSUMERS;
use towpath_market::{EventType, Order, OrderStatus, OutboxSettings, Settings, ShipmentStatus};
use towpath_testkit::broker::TcpProxy;

/// How long the broker is away, in seconds: longest where it is stopped. TOWPATH_TEST_BROKER_AWAY is for all of them.
fn away(unless_told: u64) -> Duration {
    let seconds = std::env::var("TOWPATH_TEST_BROKER_AWAY").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(unless_told))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_go_on_while_rabbitmq_is_away_on_mariadb() {
    orders_go_on(Pair::MariaDbRabbitMq, away(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_go_on_while_rabbitmq_is_away_on_postgres() {
    orders_go_on(Pair::PostgresRabbitMq, away(10)).await;
}

/// The broker's own server is stopped and started again. Without a server of the tests' own there is nothing to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_go_on_while_rabbitmq_is_stopped() {
    if towpath_testkit::under_control("TOWPATH_TEST_XTASK").is_none() {
        return;
    }
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    let shop = stage.open_with(with_the_contracts_delays()).await;
    let mut orders = vec![shop.order().await];
    sent(&stage).await;
    services("down").await;
    orders.extend(order_meanwhile(&shop, away(20)).await);
    nothing_is_given_up(&stage).await;
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
    // So short that the message about an order that nobody pays comes while the test looks.
    let mut settings = pending(PENDING);
    settings.outbox = OutboxSettings { patience: Duration::from_secs(2), ..OutboxSettings::default() };
    settings
}

/// Fewer bytes than a message has, and more than a heartbeat.
const A_MESSAGE: u64 = 300;

/// How long an order may stay unpaid.
const PENDING: Duration = Duration::from_secs(5);

async fn orders_go_on(pair: Pair, away: Duration) {
    let stage = Stage::new(pair).await;
    let (before, rest) = stage.broker_url.split_once('@').unwrap();
    let (server, vhost) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(server).await;
    let url = format!("{before}@{}/{vhost}", proxy.address());
    let shop = stage.try_open(&url, with_the_contracts_delays()).await.unwrap();
    let mut orders = vec![shop.order().await];
    sent(&stage).await;

    // Answers are held back first: what is on its way then is published and not confirmed. While nothing is confirmed that
    // says nothing of the row.
    proxy.hold_answers();
    let before = proxy.seen().to_server;
    orders.push(shop.order().await);
    proxy.until(|seen| seen.to_server > before + A_MESSAGE).await;
    proxy.hold_everything();
    proxy.cut();
    orders.extend(order_meanwhile(&shop, away).await);
    nothing_is_given_up(&stage).await;

    proxy.heal();
    proxy.cut();
    all_arrived(&stage, &shop, &orders, 2).await;
    shop.stop().await;
}

/// Section 7 to the letter, by the switch: without the broker each attempt counts, after the third delay a row is FAILED with
/// its reason and alarm, and somebody puts it back.
async fn each_attempt_counts(pair: Pair) {
    let stage = Stage::new(pair).await;
    let log = Log::of_this_process();
    let (before, rest) = stage.broker_url.split_once('@').unwrap();
    let (server, vhost) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(server).await;
    let url = format!("{before}@{}/{vhost}", proxy.address());
    let mut settings = settings();
    settings.outbox.counts_absence = true;
    settings.outbox.patience = Duration::from_secs(1);
    let shop = stage.try_open(&url, settings).await.unwrap();
    proxy.hold_everything();
    proxy.cut();
    let order = shop.order().await;
    eventually("FAILED", || async {
        let rows = stage.outbox().await;
        rows.iter().all(|(_, status, failures)| status == "FAILED" && *failures == 4).then_some(())
    })
    .await;
    let filter = towpath::ports::store::FailedFilter::default();
    let failed = shop.app.outbox().failed(&filter, 0, 10).await.unwrap();
    assert_eq!(failed.len(), 2, "ORDER_CREATED and ORDER_TIMEOUT");
    for failed in &failed {
        assert!(failed.row.status_reason.is_some(), "with its reason: {failed:?}");
        let event_id = failed.row.event_id.to_string();
        let alarms = eventually("the alarm", || async {
            let alarms = log.lines(Some("market-publishing-failed"), &event_id);
            (!alarms.is_empty()).then_some(alarms)
        })
        .await;
        assert_eq!(alarms.len(), 1, "{alarms:?}");
        assert_eq!(alarms[0]["message"], "消息发送失败");
    }
    // Business goes on meanwhile, and what is put back goes out.
    shop.market.pay(order.order_id, None).await.unwrap();
    proxy.heal();
    proxy.cut();
    eventually("SENT", || async {
        shop.app.outbox().retry_where(&filter).await.unwrap();
        let rows = stage.outbox().await;
        rows.iter().all(|(_, status, _)| status == "SENT").then_some(())
    })
    .await;
    shop.seen.until("order.fulfillment", "handled", 1).await;
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_attempt_counts_without_rabbitmq_when_it_is_switched_on_on_mariadb() {
    each_attempt_counts(Pair::MariaDbRabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_attempt_counts_without_rabbitmq_when_it_is_switched_on_on_postgres() {
    each_attempt_counts(Pair::PostgresRabbitMq).await;
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

/// What waits for the broker is NEW, whatever its type.
async fn nothing_is_given_up(stage: &Stage) {
    let rows = stage.outbox().await;
    for event_type in EventType::ALL {
        let waiting =
            rows.iter().filter(|(of, status, _)| of == event_type.as_str() && status == "NEW").count();
        assert!(waiting > 0, "what was not tried is NEW: {}", event_type.as_str());
    }
    assert!(rows.iter().all(|(_, status, _)| status != "FAILED"), "an absence gives nothing up");
}

/// People order, pay, get it shipped and complete it, for so long; every third order is never paid.
async fn order_meanwhile(shop: &Shop, long: Duration) -> Vec<Order> {
    let (begun, mut orders) = (Instant::now(), Vec::new());
    while begun.elapsed() < long {
        let order = shop.order().await;
        if orders.len() % 3 != 2 {
            shop.market.pay(order.order_id, None).await.unwrap();
            shop.market.ship(order.order_id).await.unwrap();
            shop.market.complete(order.order_id).await.unwrap();
        }
        orders.push(order);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    orders
}

/// Everything about these orders arrives and has its effect, once, whatever its type. The first few of them were only
/// placed.
async fn all_arrived(stage: &Stage, shop: &Shop, orders: &[Order], only_placed: usize) {
    let (meanwhile, all) = (orders.len() - only_placed, orders.len());
    let unpaid = meanwhile / 3;
    let completed = meanwhile - unpaid;
    assert_eq!(sent(stage).await, all * 2 + completed * 3);
    let by_type = |event_type: EventType| match event_type {
        EventType::OrderCreated | EventType::OrderTimeout => all,
        EventType::OrderPaid => completed,
        EventType::OrderStatusChanged => completed * 2,
    };
    for (handler, _, event_type) in CONSUMERS {
        shop.seen.until(handler, "handled", by_type(event_type)).await;
        assert_eq!(shop.seen.count(handler, "handled"), by_type(event_type), "{handler}: each once");
        assert_eq!(stage.outbox_of(event_type.as_str()).await.len(), by_type(event_type));
    }
    for (index, order) in orders.iter().enumerate() {
        let now = shop.market.order(order.order_id).await.unwrap();
        assert_eq!(shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count, 1);
        let told = shop.market.notifications(order.order_id).await.unwrap().len();
        if index < only_placed || (index - only_placed) % 3 == 2 {
            assert_eq!((now.status, now.cancel_reason.as_deref()), (OrderStatus::Cancelled, Some("timeout")));
            assert_eq!(told, 0);
        } else {
            assert_eq!(now.status, OrderStatus::Completed);
            assert_eq!(told, 3, "shipped: the buyer; completed: both");
            let shipment = shop.market.shipment(order.order_id).await.unwrap().unwrap();
            assert_eq!(shipment.status, ShipmentStatus::Delivered);
        }
    }
    println!(
        "{:?}: {all} orders, {completed} completed, {} unpaid, all arrived",
        stage.pair,
        all - completed
    );
    assert!(shop.dead().await.is_empty());
}
