//! Listings that take too long: nobody else waits for them, and they end. And no statement waits for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use support::{Pair, Stage, eventually, settings};
use towpath::ports::store::StoreError;
use towpath::{Coded as _, StoreOptions, Towpath};
use towpath_market::{MarketError, OrderStatus, Page, ProductFilter};

on_every_pair!(slow_listings_end_and_make_no_command_wait, a_step_waits_for_no_answer_for_ever);

/// More than there are connections for commands.
const LISTINGS: usize = 4;

fn few_connections() -> StoreOptions {
    StoreOptions {
        max_connections: 3,
        listing_connections: 2,
        listing_timeout: Duration::from_secs(2),
        ..StoreOptions::default()
    }
}

/// Makes whoever reads products wait for a minute or longer.
async fn slow_down_products(stage: &Stage) {
    let slow = match stage.pair {
        Pair::PostgresRabbitMq => "SELECT kept.* FROM products_kept kept, pg_sleep(60)",
        Pair::MariaDbRabbitMq => "SELECT * FROM products_kept WHERE SLEEP(60) = 0",
        Pair::SqliteLocal => {
            "SELECT kept.* FROM products_kept kept WHERE 0 < (WITH RECURSIVE n(i) AS \
             (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n)"
        }
    };
    stage.command("ALTER TABLE products RENAME TO products_kept").await;
    stage.command(&format!("CREATE VIEW products AS {slow}")).await;
}

async fn slow_listings_end_and_make_no_command_wait(stage: &Stage) {
    let shop = stage.open_with_store(few_connections()).await;
    let order = shop.order().await;
    slow_down_products(stage).await;
    let listings: Vec<_> = (0..LISTINGS)
        .map(|_| {
            let market = shop.market.clone();
            tokio::spawn(async move { market.products(&ProductFilter::default(), Page::default()).await })
        })
        .collect();
    eventually("all connections for listings are in use", || async {
        let pools = shop.app.store().connections();
        pools.iter().any(|pool| pool.pool == "listings" && pool.used == pool.most).then_some(())
    })
    .await;
    assert_eq!(shop.market.order(order.order_id).await.unwrap().status, OrderStatus::Pending);
    assert_eq!(shop.market.pay(order.order_id, None).await.unwrap().status, OrderStatus::Paid);
    assert!(!listings.iter().all(tokio::task::JoinHandle::is_finished), "the order was paid meanwhile");
    for listing in listings {
        let refused = listing.await.unwrap().expect_err("it takes a minute");
        assert!(matches!(&refused, MarketError::Store(StoreError::TooSlow { .. })), "{refused:?}");
        assert_eq!(refused.code(), "too-slow");
    }
    shop.stop().await;
}

/// Somebody holds the row of an order: the step that waits for it is answered when the time of a statement is over.
async fn a_step_waits_for_no_answer_for_ever(stage: &Stage) {
    // There nobody is gone without a word, and who waits to write waits for a second at a time.
    if stage.is_local() {
        return;
    }
    // Who holds it has all the time, also to place the order and to pay it: only the step that is refused has little.
    let hour = Duration::from_secs(3600);
    let options = StoreOptions { idle_transaction_timeout: hour, ..StoreOptions::default() };
    let patient = Towpath::builder().store_options(options);
    let holder = stage.open_without_workers_by(patient, settings()).await;
    let order = holder.order().await;
    // Less than the five seconds after which the database answers by itself that others are in the way.
    let limits = StoreOptions { statement_timeout: Duration::from_secs(3), ..few_connections() };
    let shop = stage.open_with_store(limits).await;
    let mut held = holder.app.store().open_transaction().await.unwrap();
    let sql = "SELECT order_id FROM orders WHERE order_id = ?";
    held.own_tables().locked_rows("test.hold", sql, vec![order.order_id.into()]).await.unwrap();
    let paying = tokio::time::timeout(Duration::from_secs(180), shop.market.pay(order.order_id, None));
    let refused = paying.await.expect("an answer").expect_err("somebody holds the order");
    assert!(matches!(&refused, MarketError::Store(StoreError::Unavailable(_))), "{refused:?}");
    held.abandon().await.unwrap();
    assert_eq!(holder.market.pay(order.order_id, None).await.unwrap().status, OrderStatus::Paid);
    eventually("who was refused has a connection again", || async {
        let order = shop.market.order(order.order_id).await.ok()?;
        (order.status == OrderStatus::Paid).then_some(())
    })
    .await;
    holder.stop().await;
    shop.stop().await;
}
