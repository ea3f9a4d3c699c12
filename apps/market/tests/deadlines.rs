//! Orders that are not paid in time: closed by the message from the delay queue, by the job, or by both, once; and never
//! when they were paid.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stdout, reason = "who runs it by hand sees how it went")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{Stage, eventually, pending, with_the_job};
use towpath::Coded as _;
use towpath::ids::AggregateKey;
use towpath::letters::LetterFilter;
use towpath_market::{MarketError, OrderStatus, ProductStatus};

on_every_pair!(
    the_message_alone_closes_an_order,
    the_job_alone_closes_an_order,
    both_together_close_each_order_once,
    a_paid_order_is_never_closed,
    a_message_that_is_too_early_comes_again_in_time,
    a_message_that_was_too_early_and_then_fails_ends_in_the_dead_letter_queue,
    pay_and_timeout_race_a_thousand_times_and_never_both_win,
    pay_and_the_timeout_message_race_a_thousand_times_and_never_both_win,
    the_job_ends_between_two_orders_when_it_is_stopped,
    a_cancelled_order_frees_its_product_and_counts,
    a_timeout_message_that_was_given_up_goes_back_to_its_own_queue,
);

async fn the_message_alone_closes_an_order(stage: &Stage) {
    let shop = stage.open_with(pending(Duration::from_millis(400))).await;
    let order = shop.order().await;
    shop.seen.until("order.timeout", "handled", 1).await;
    let order = shop.market.order(order.order_id).await.unwrap();
    assert_eq!((order.status, order.cancel_reason.as_deref()), (OrderStatus::Cancelled, Some("timeout")));
    let late = order.cancel_time.unwrap() - order.create_time;
    assert!(late >= chrono::Duration::milliseconds(400), "closed after {late}");
    shop.stop().await;
}

async fn the_job_alone_closes_an_order(stage: &Stage) {
    let mut settings = with_the_job(Duration::from_millis(300), Duration::from_millis(50));
    settings.order.timeout.scan_batch = 2;
    let shop = stage.open_without_a_broker(settings).await;
    let market = &shop.market;
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
    shop.stop().await;
}

async fn both_together_close_each_order_once(stage: &Stage) {
    let settings = with_the_job(Duration::from_millis(700), Duration::from_millis(10));
    let shop = stage.open_with(settings).await;
    let mut orders = Vec::new();
    for _ in 0..20 {
        orders.push(shop.order().await);
    }
    shop.seen.until("order.timeout", "handled", 20).await;
    eventually("all closed", || async {
        let filter =
            towpath_market::OrderFilter { status: Some(OrderStatus::Cancelled), ..Default::default() };
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
    let settings = pending(Duration::from_millis(700));
    // Nobody closes it before it is paid, however long that takes.
    let till = stage.open_without_workers_with(settings.clone()).await;
    let order = till.order().await;
    till.market.pay(order.order_id, None).await.unwrap();
    let shop = stage.open_with(settings).await;
    shop.seen.until("order.timeout", "handled", 1).await;
    assert_eq!(shop.market.close_overdue().await.unwrap(), 0);
    assert_eq!(shop.market.order(order.order_id).await.unwrap().status, OrderStatus::Paid);
    assert_eq!(shop.market.product(order.product_id).await.unwrap().status, ProductStatus::Sold);
    till.stop().await;
    shop.stop().await;
}

async fn a_message_that_is_too_early_comes_again_in_time(stage: &Stage) {
    let shop = stage.open_with(pending(Duration::from_secs(4))).await;
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

async fn a_message_that_was_too_early_and_then_fails_ends_in_the_dead_letter_queue(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    let event_id = uuid::Uuid::now_v7().to_string();
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"ORDER_TIMEOUT","aggregateType":"Order","aggregateId":{},"occurredAt":"2026-02-04T10:30:00Z","traceId":"t","payload":{{"orderId":{},"orderNo":"{}","createTime":"2026-02-04T10:30:00Z"}}}}"#,
        order.order_id, order.order_id, order.order_no
    );
    stage.publish("order.timeout.queue", &event_id, &body).await;
    let filter = LetterFilter { queue: Some("order.timeout.queue".to_owned()), ..LetterFilter::default() };
    eventually("it was too early", || async {
        let letters = shop.app.dead_letters().list(&filter, 0, 10).await.unwrap();
        letters.iter().any(|one| one.status_reason.as_deref() == Some("market-too-early")).then_some(())
    })
    .await;
    // When it comes again, an hour later as far as anybody can tell, it cannot be handled.
    stage.command("ALTER TABLE buyer_credit RENAME TO buyer_credit_elsewhere").await;
    for (table, column) in [("orders", "create_time"), ("dead_letters", "due_at")] {
        let earlier = stage.an_hour_before(column);
        stage.command(&format!("UPDATE {table} SET {column} = {earlier}")).await;
    }
    let dead = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    assert_eq!(dead.letter.message.message_id.as_deref(), Some(event_id.as_str()));
    assert_eq!(dead.status_reason.as_deref(), Some("rejected"), "the broker has it from its consumer");
    assert_eq!(dead.letter.message.body, body.as_bytes());
    let attempts = shop.market.settings().consumer.attempts as usize;
    assert_eq!(shop.seen.count("order.timeout", "retried"), attempts - 1, "as often as any other");
    assert_eq!(shop.app.dead_letters().list(&filter, 0, 10).await.unwrap(), [], "nothing is left aside");
    stage.command("ALTER TABLE buyer_credit_elsewhere RENAME TO buyer_credit").await;
    shop.app.dead_letters().replay(dead.letter_id, false).await.unwrap();
    shop.seen.until("order.timeout", "handled", 1).await;
    assert_eq!(shop.market.order(order.order_id).await.unwrap().cancel_reason.as_deref(), Some("timeout"));
    shop.stop().await;
}

/// Each round an order is paid and closed at the same moment. Exactly one wins, and everything says the same about it. Who
/// won is held back a little the next time, so that it stays a race however fast either of them is.
async fn pay_and_timeout_race_a_thousand_times_and_never_both_win(stage: &Stage) {
    const ROUNDS: usize = 1000;
    const SHIFT: i64 = 100;
    let shop = stage.open_without_workers().await;
    // So short that every order is overdue at once.
    let settings = pending(Duration::from_nanos(1));
    let market = towpath_market::Market::open(&shop.app, settings);
    let (mut paid, mut closed) = (0, 0);
    // Microseconds for which the payment is held back; the closing, if it is less than nothing.
    let mut held_back: i64 = 0;
    for round in 0..ROUNDS {
        let product = market.offer(10002, "A bicycle", "88.50".parse().unwrap()).await.unwrap();
        let order = market.place(product.product_id, 10001).await.unwrap();
        let (payer, closer) = (market.clone(), market.clone());
        let begun = Instant::now();
        let pay = tokio::spawn(async move {
            let_pass(begun, held_back).await;
            payer.pay(order.order_id, None).await
        });
        let close = tokio::spawn(async move {
            let_pass(begun, -held_back).await;
            closer.close_overdue().await
        });
        let (pay, close) = (pay.await.unwrap(), close.await.unwrap().unwrap());
        let now = market.order(order.order_id).await.unwrap();
        match pay {
            Ok(answer) => {
                assert_eq!(
                    (now.status, close, now.cancel_time),
                    (OrderStatus::Paid, 0, None),
                    "round {round}"
                );
                assert_eq!(answer, now, "what was answered is what is so");
                paid += 1;
                held_back += SHIFT;
            }
            Err(MarketError::WrongStatus { .. }) => {
                assert_eq!(
                    (now.status, close, now.pay_time),
                    (OrderStatus::Cancelled, 1, None),
                    "round {round}"
                );
                closed += 1;
                held_back -= SHIFT;
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
    println!("{:?}: {paid} paid, {closed} closed", stage.pair);
    assert!(paid > ROUNDS / 10 && closed > ROUNDS / 10, "no race: {paid} paid, {closed} closed");
    let credit = market.credit(10001).await.unwrap();
    assert_eq!(credit.map_or(0, |credit| credit.timeout_count), i64::try_from(closed).unwrap());
    shop.stop().await;
}

/// Lets so many microseconds pass since a moment, more exactly than a timer would.
async fn let_pass(since: Instant, microseconds: i64) {
    let long = Duration::from_micros(u64::try_from(microseconds).unwrap_or(0));
    while since.elapsed() < long {
        tokio::task::yield_now().await;
    }
}

/// The same with the message from the delay queue on the other side: orders are paid at about the moment at which their
/// message comes out of it, later each time a payment was first, and sooner when it was second.
async fn pay_and_the_timeout_message_race_a_thousand_times_and_never_both_win(stage: &Stage) {
    const BUYERS: usize = 25;
    const ROUNDS: usize = 40;
    const SHIFT: i64 = 1000;
    let time_to_pay = Duration::from_millis(500);
    let shop = stage.open_with(pending(time_to_pay)).await;
    let moment = Arc::new(AtomicI64::new(i64::try_from(time_to_pay.as_micros()).unwrap()));
    let (paid, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|number| {
            let (market, moment) = (shop.market.clone(), Arc::clone(&moment));
            let (paid, closed) = (Arc::clone(&paid), Arc::clone(&closed));
            tokio::spawn(async move {
                let mut ended = Vec::new();
                for _ in 0..ROUNDS {
                    let product = market.offer(10002, "A bicycle", "88.50".parse().unwrap()).await.unwrap();
                    let buyer = 20_000 + i64::try_from(number).unwrap();
                    let order = market.place(product.product_id, buyer).await.unwrap();
                    let after = Duration::from_micros(moment.load(Ordering::SeqCst).try_into().unwrap_or(0));
                    tokio::time::sleep(after).await;
                    match market.pay(order.order_id, None).await {
                        Ok(_) => {
                            paid.fetch_add(1, Ordering::SeqCst);
                            moment.fetch_add(SHIFT, Ordering::SeqCst);
                            ended.push((order, OrderStatus::Paid));
                        }
                        Err(MarketError::WrongStatus { status: OrderStatus::Cancelled, .. }) => {
                            closed.fetch_add(1, Ordering::SeqCst);
                            moment.fetch_sub(SHIFT, Ordering::SeqCst);
                            ended.push((order, OrderStatus::Cancelled));
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
                ended
            })
        })
        .collect();
    let mut ended = Vec::new();
    for buyer in buyers {
        ended.extend(buyer.await.unwrap());
    }
    let (paid, closed) = (paid.load(Ordering::SeqCst), closed.load(Ordering::SeqCst));
    println!("{:?}: {paid} paid, {closed} closed by the message", stage.pair);
    assert_eq!((paid + closed, ended.len()), (BUYERS * ROUNDS, BUYERS * ROUNDS));
    assert!(paid > 100 && closed > 100, "no race: {paid} paid, {closed} closed");
    // The message of each order has come, and found it paid or closed it.
    shop.seen.until("order.timeout", "handled", BUYERS * ROUNDS).await;
    shop.seen.until("order.fulfillment", "handled", paid).await;
    for (order, told) in ended {
        let now = shop.market.order(order.order_id).await.unwrap();
        assert_eq!(now.status, told, "what the buyer was told");
        assert_eq!(
            (now.pay_time.is_some(), now.cancel_time.is_some()),
            (told == OrderStatus::Paid, told != OrderStatus::Paid)
        );
        let expected = if told == OrderStatus::Paid { ProductStatus::Sold } else { ProductStatus::OnSale };
        assert_eq!(shop.market.product(order.product_id).await.unwrap().status, expected);
        let key = AggregateKey::new("Order", order.order_id.to_string()).unwrap();
        assert_eq!(
            shop.app.events_of(&key, 0, 10).await.unwrap().len(),
            3,
            "placed, its timeout, and one end"
        );
    }
    assert_eq!(shop.seen.count("order.fulfillment", "handled"), paid);
    assert!(shop.dead().await.is_empty());
    shop.stop().await;
}

async fn the_job_ends_between_two_orders_when_it_is_stopped(stage: &Stage) {
    const ORDERS: usize = 300;
    let till = stage.open_without_workers().await;
    for _ in 0..ORDERS {
        till.order().await;
    }
    let closed = || async {
        let filter =
            towpath_market::OrderFilter { status: Some(OrderStatus::Cancelled), ..Default::default() };
        let page = towpath_market::Page { limit: 500, ..Default::default() };
        till.market.orders(&filter, page).await.unwrap().len()
    };
    let settings = with_the_job(Duration::from_nanos(1), Duration::from_millis(1));
    let shop = stage.open_without_a_broker(settings).await;
    eventually("it is at it", || async { (closed().await > 0).then_some(()) }).await;
    let cut_off = shop.app.stop_within(Duration::from_secs(30)).await;
    assert!(!cut_off.iter().any(|name| name.starts_with("job")), "it ends by itself: {cut_off:?}");
    let when_stopped = closed().await;
    assert!(when_stopped < ORDERS, "it closed all {ORDERS} before it stopped");
    assert_eq!(closed().await, when_stopped, "what is stopped stays stopped");
    till.stop().await;
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
    // Long enough that a busy machine handles a message in less.
    let settings = pending(Duration::from_secs(8));
    let till = stage.open_without_workers_with(settings.clone()).await;
    let order = till.order().await;
    stage.command("ALTER TABLE buyer_credit RENAME TO buyer_credit_elsewhere").await;
    let shop = stage.open_with(settings.clone()).await;
    let letter = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    // It died twice: its time ran out in the delay queue, and then the consumer did not want it.
    assert_eq!(letter.status_reason.as_deref(), Some("rejected"));
    stage.command("ALTER TABLE buyer_credit_elsewhere RENAME TO buyer_credit").await;
    let replayed = std::time::Instant::now();
    shop.app.dead_letters().replay(letter.letter_id, false).await.unwrap();
    shop.seen.until("order.timeout", "handled", 1).await;
    assert!(replayed.elapsed() < settings.order.timeout.pending, "it does not wait once more");
    assert_eq!(shop.market.order(order.order_id).await.unwrap().cancel_reason.as_deref(), Some("timeout"));
    till.stop().await;
    shop.stop().await;
}
