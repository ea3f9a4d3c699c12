//! Orders that are not paid in time: closed by the message from the delay queue, by the job, or by both, once; and never
//! when they were paid.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use support::{Stage, eventually, settings};
use towpath::ids::AggregateKey;
use towpath_market::{MarketError, OrderStatus, ProductStatus, Settings};

on_every_pair!(
    the_message_alone_closes_an_order,
    the_job_alone_closes_an_order,
    both_together_close_each_order_once,
    a_paid_order_is_never_closed,
    a_message_that_is_too_early_comes_again_in_time,
    pay_and_timeout_race_a_thousand_times_and_never_both_win,
    a_cancelled_order_frees_its_product_and_counts,
    a_timeout_message_that_was_given_up_goes_back_to_its_own_queue,
);

async fn the_message_alone_closes_an_order(stage: &Stage) {
    let shop = stage.open_with(Settings { pending: Duration::from_millis(400), ..settings() }).await;
    let order = shop.order().await;
    shop.seen.until("order.timeout", "handled", 1).await;
    let order = shop.market.order(order.order_id).await.unwrap();
    assert_eq!((order.status, order.cancel_reason.as_deref()), (OrderStatus::Cancelled, Some("timeout")));
    let late = order.cancel_time.unwrap() - order.create_time;
    assert!(late >= chrono::Duration::milliseconds(400), "closed after {late}");
    shop.stop().await;
}

async fn the_job_alone_closes_an_order(stage: &Stage) {
    // Nothing is published or handled: the broker might as well be away.
    let shop = stage.open_without_workers().await;
    let settings = Settings {
        pending: Duration::from_millis(300),
        scan: Duration::from_millis(50),
        scan_enabled: true,
        scan_batch: 2,
        ..settings()
    };
    let market = towpath_market::Market::open(&shop.app, settings);
    let mut orders = Vec::new();
    for _ in 0..5 {
        orders.push(shop.order().await);
    }
    for order in &orders {
        eventually("closed by the job", || async {
            let order = market.order(order.order_id).await.unwrap();
            (order.cancel_reason.as_deref() == Some("timeout")).then_some(())
        })
        .await;
        assert_eq!(market.product(order.product_id).await.unwrap().status, ProductStatus::OnSale);
    }
    assert_eq!(market.credit(10001).await.unwrap().unwrap().timeout_count, 5);
    market.stop().await;
    shop.stop().await;
}

async fn both_together_close_each_order_once(stage: &Stage) {
    let settings = Settings {
        pending: Duration::from_millis(700),
        scan: Duration::from_millis(10),
        scan_enabled: true,
        ..settings()
    };
    let shop = stage.open_with(settings).await;
    let mut orders = Vec::new();
    for _ in 0..20 {
        orders.push(shop.order().await);
    }
    shop.seen.until("order.timeout", "handled", 20).await;
    eventually("all closed", || async {
        let filter = towpath_market::OrderFilter { status: Some(OrderStatus::Cancelled), buyer_id: None };
        let closed = shop.market.orders(&filter, Default::default()).await.unwrap();
        (closed.len() == 20).then_some(())
    })
    .await;
    for order in &orders {
        let key = AggregateKey::new("Order", order.order_id.to_string()).unwrap();
        let events = shop.app.events_of(&key, 0, 10).await.unwrap();
        let closed = events.iter().filter(|one| one.envelope.event_type.as_str() == "market.order.cancelled");
        assert_eq!(closed.count(), 1, "order {} was closed once", order.order_id);
    }
    assert_eq!(shop.market.credit(10001).await.unwrap().unwrap().timeout_count, 20);
    shop.stop().await;
}

async fn a_paid_order_is_never_closed(stage: &Stage) {
    let settings = Settings { pending: Duration::from_millis(700), ..settings() };
    let shop = stage.open_with(settings).await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("order.timeout", "handled", 1).await;
    assert_eq!(shop.market.close_overdue().await.unwrap(), 0);
    assert_eq!(shop.market.order(order.order_id).await.unwrap().status, OrderStatus::Paid);
    assert_eq!(shop.market.product(order.product_id).await.unwrap().status, ProductStatus::Sold);
    shop.stop().await;
}

async fn a_message_that_is_too_early_comes_again_in_time(stage: &Stage) {
    let shop = stage.open_with(Settings { pending: Duration::from_secs(4), ..settings() }).await;
    let order = shop.order().await;
    let event_id = uuid::Uuid::now_v7();
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"ORDER_TIMEOUT","aggregateType":"Order","aggregateId":{},"occurredAt":"2026-02-04T10:30:00Z","traceId":"t","payload":{{"orderId":{},"orderNo":"{}","createTime":"2026-02-04T10:30:00Z"}}}}"#,
        order.order_id, order.order_id, order.order_no
    );
    // What the message says about the time does not count: the order's own row does.
    stage.publish("order.timeout.queue", &event_id.to_string(), &body).await;
    let closed = eventually("closed", || async {
        let order = shop.market.order(order.order_id).await.unwrap();
        order.cancel_time
    })
    .await;
    assert!(closed - order.create_time >= chrono::Duration::seconds(4));
    // By one of the two; the other finds nothing to do.
    shop.seen.until("order.timeout", "handled", 2).await;
    assert!(shop.dead().await.is_empty());
    shop.stop().await;
}

/// Each round an order is paid and closed at the same moment. Exactly one wins, and everything says the same about it.
async fn pay_and_timeout_race_a_thousand_times_and_never_both_win(stage: &Stage) {
    const ROUNDS: usize = 1000;
    let shop = stage.open_without_workers().await;
    // So short that every order is overdue at once.
    let settings = Settings { pending: Duration::from_nanos(1), scan_enabled: false, ..settings() };
    let market = towpath_market::Market::open(&shop.app, settings);
    let (mut paid, mut closed) = (0, 0);
    for round in 0..ROUNDS {
        let product = market.offer(10002, "A bicycle", "88.50".parse().unwrap()).await.unwrap();
        let order = market.place(product.product_id, 10001).await.unwrap();
        let (payer, closer) = (market.clone(), market.clone());
        // Who begins changes with the rounds.
        let pay = tokio::spawn(async move {
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            payer.pay(order.order_id, None).await
        });
        let close = tokio::spawn(async move { closer.close_overdue().await });
        let (pay, close) = (pay.await.unwrap(), close.await.unwrap().unwrap());
        let now = market.order(order.order_id).await.unwrap();
        match pay {
            Ok(_) => {
                assert_eq!(
                    (now.status, close, now.cancel_time),
                    (OrderStatus::Paid, 0, None),
                    "round {round}"
                );
                paid += 1;
            }
            Err(MarketError::WrongStatus { .. }) => {
                assert_eq!(
                    (now.status, close, now.pay_time),
                    (OrderStatus::Cancelled, 1, None),
                    "round {round}"
                );
                closed += 1;
            }
            Err(error) => panic!("round {round}: {error:?}"),
        }
        let expected =
            if now.status == OrderStatus::Paid { ProductStatus::Sold } else { ProductStatus::OnSale };
        assert_eq!(market.product(product.product_id).await.unwrap().status, expected);
        let key = AggregateKey::new("Order", order.order_id.to_string()).unwrap();
        let events = shop.app.events_of(&key, 0, 10).await.unwrap();
        assert_eq!(events.len(), 3, "placed, its timeout, and one end");
    }
    assert_eq!(paid + closed, ROUNDS);
    let credit = market.credit(10001).await.unwrap();
    assert_eq!(credit.map_or(0, |credit| credit.timeout_count), i64::try_from(closed).unwrap());
    tracing::info!(paid, closed, "the race is over");
    shop.stop().await;
}

async fn a_cancelled_order_frees_its_product_and_counts(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    let cancelled = shop.market.cancel(order.order_id, None).await.unwrap();
    assert_eq!(
        (cancelled.status, cancelled.cancel_reason.as_deref()),
        (OrderStatus::Cancelled, Some("buyer"))
    );
    assert!(shop.market.inventory(order.product_id).await.unwrap().unwrap().is_available);
    let credit = shop.market.credit(10001).await.unwrap().unwrap();
    assert_eq!((credit.cancelled_count, credit.timeout_count, credit.score), (1, 0, 95));
    for refused in [
        shop.market.cancel(order.order_id, None).await,
        shop.market.pay(order.order_id, None).await,
        shop.market.ship(order.order_id).await,
        shop.market.complete(order.order_id).await,
    ] {
        assert_eq!(refused.unwrap_err().code(), "order-wrong-status");
    }
    let again = shop.market.place(order.product_id, 10003).await.unwrap();
    assert_eq!(shop.market.order(again.order_id).await.unwrap().status, OrderStatus::Pending);
    shop.stop().await;
}

async fn a_timeout_message_that_was_given_up_goes_back_to_its_own_queue(stage: &Stage) {
    let shop = stage.open_with(Settings { pending: Duration::from_secs(3), ..settings() }).await;
    let order = shop.order().await;
    stage.plain("ALTER TABLE buyer_credit RENAME TO buyer_credit_elsewhere").await;
    let letter = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    // It died twice: its time ran out in the delay queue, and then the consumer did not want it.
    assert_eq!(letter.status_reason.as_deref(), Some("rejected"));
    stage.plain("ALTER TABLE buyer_credit_elsewhere RENAME TO buyer_credit").await;
    let replayed = std::time::Instant::now();
    shop.app.dead_letters().replay(letter.letter_id, false).await.unwrap();
    shop.seen.until("order.timeout", "handled", 1).await;
    assert!(replayed.elapsed() < Duration::from_secs(3), "it does not wait once more");
    assert_eq!(shop.market.order(order.order_id).await.unwrap().cancel_reason.as_deref(), Some("timeout"));
    shop.stop().await;
}
