//! The market's transactions when others are in the way, or the database's answer is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Pair, Stage, eventually, settings};
use towpath::Towpath;
use towpath::ids::AggregateKey;
use towpath_market::{Market, OrderStatus};
use towpath_testkit::broker::TcpProxy;

on_every_pair!(a_step_answers_what_its_transaction_wrote,);

async fn a_step_answers_what_its_transaction_wrote(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    let id = order.order_id;
    for (status, answer) in [
        (OrderStatus::Paid, shop.market.pay(id, None).await.unwrap()),
        (OrderStatus::Shipped, shop.market.ship(id).await.unwrap()),
        (OrderStatus::Completed, shop.market.complete(id).await.unwrap()),
    ] {
        assert_eq!(answer.status, status);
    }
    let now = shop.market.order(id).await.unwrap();
    assert!(now.pay_time.is_some() && now.ship_time.is_some() && now.complete_time.is_some());
    let other = shop.order().await;
    let cancelled = shop.market.cancel(other.order_id, Some("changed my mind")).await.unwrap();
    assert_eq!(cancelled, shop.market.order(other.order_id).await.unwrap());
    let third = shop.order().await;
    let paid = shop.market.pay(third.order_id, None).await.unwrap();
    assert_eq!(paid, shop.market.order(third.order_id).await.unwrap());
    shop.stop().await;
}

/// The commit of a step makes the orders unreadable: only who reads after the commit finds that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_step_that_was_done_says_so_when_nothing_can_be_read_after_it() {
    let stage = Stage::new(Pair::PostgresRabbitMq).await;
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    stage
        .command(
            "CREATE FUNCTION hide() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN ALTER TABLE orders RENAME TO orders_elsewhere; RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER hide AFTER INSERT ON domain_events DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION hide()",
        )
        .await;
    let paid = shop.market.pay(order.order_id, None).await.unwrap();
    assert_eq!(paid.status, OrderStatus::Paid);
    assert!(shop.market.order(order.order_id).await.is_err(), "it can indeed not be read");
    stage.command("ALTER TABLE orders_elsewhere RENAME TO orders").await;
    assert_eq!(shop.market.order(order.order_id).await.unwrap(), paid);
    shop.stop().await;
}

/// Makes the first commit that touches an order take its time; the second one does not.
const SLOW_FIRST_COMMIT: &str = "CREATE SEQUENCE commits; \
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
    $$ BEGIN IF nextval('commits') = 1 THEN PERFORM pg_sleep(3); END IF; RETURN NULL; END $$; \
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON orders DEFERRABLE INITIALLY DEFERRED \
    FOR EACH ROW EXECUTE FUNCTION slow()";

/// The process of the database that is at that commit.
async fn committing(stage: &Stage) -> String {
    let sql = "SELECT CAST(a.pid AS text) FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid \
        WHERE a.wait_event = 'PgSleep' AND a.query ILIKE 'commit%' AND l.relation = 'orders'::regclass LIMIT 1";
    eventually("a commit under way", || async { stage.plain(sql).await.pop() }).await[0].clone()
}

/// The market on a database that is reached through a proxy, without workers.
async fn through(stage: &Stage, proxy: &TcpProxy) -> (Towpath, Market) {
    let (before, rest) = stage.store_url.split_once('@').unwrap();
    let (_, path) = rest.split_once('/').unwrap();
    let url = format!("{before}@{}/{path}", proxy.address());
    let settings = settings();
    let builder = Towpath::builder().store(&url).broker(&stage.broker_url).without_workers();
    let app = Market::install(builder, &settings).start().await.unwrap();
    let market = Market::open(&app, settings);
    (app, market)
}

fn server_of(url: &str) -> &str {
    url.split_once('@').unwrap().1.split('/').next().unwrap()
}

/// The connection is lost while the commit is under way; the commit itself goes on. It is found to be done.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_whose_answer_is_lost_is_found_in_the_log() {
    let stage = Stage::new(Pair::PostgresRabbitMq).await;
    let proxy = TcpProxy::to(server_of(&stage.store_url)).await;
    let (app, market) = through(&stage, &proxy).await;
    let product = market.offer(10002, "A bicycle", "88.50".parse().unwrap()).await.unwrap();
    stage.command(SLOW_FIRST_COMMIT).await;
    let placing = tokio::spawn({
        let market = market.clone();
        async move { market.place(product.product_id, 10001).await }
    });
    committing(&stage).await;
    proxy.cut();
    let order = placing.await.unwrap().unwrap();
    assert_eq!(market.orders(&Default::default(), Default::default()).await.unwrap().len(), 1);
    // The same for a step of it.
    stage.command("ALTER SEQUENCE commits RESTART").await;
    let paying = tokio::spawn({
        let market = market.clone();
        async move { market.pay(order.order_id, None).await }
    });
    committing(&stage).await;
    proxy.cut();
    let paid = paying.await.unwrap().unwrap();
    assert_eq!(paid, market.order(order.order_id).await.unwrap());
    assert_eq!(once_each(&app, order.order_id).await, ["ORDER_CREATED", "ORDER_TIMEOUT", "ORDER_PAID"]);
    assert_eq!(stage.outbox_of("ORDER_PAID").await, ["NEW"]);
    app.stop().await;
}

/// The database ends the session while the commit is under way: nothing was done, and it is done anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_that_was_lost_with_its_session_is_done_anew() {
    let stage = Stage::new(Pair::PostgresRabbitMq).await;
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    stage.command(SLOW_FIRST_COMMIT).await;
    let paying = tokio::spawn({
        let market = shop.market.clone();
        async move { market.pay(order.order_id, None).await }
    });
    let pid = committing(&stage).await;
    stage.plain(&format!("SELECT CAST(pg_terminate_backend({pid}) AS text)")).await;
    let paid = paying.await.unwrap().unwrap();
    assert_eq!(paid, shop.market.order(order.order_id).await.unwrap());
    assert_eq!(once_each(&shop.app, order.order_id).await, ["ORDER_CREATED", "ORDER_TIMEOUT", "ORDER_PAID"]);
    shop.stop().await;
}

async fn once_each(app: &Towpath, order_id: i64) -> Vec<String> {
    let key = AggregateKey::new("Order", order_id.to_string()).unwrap();
    let events = app.events_of(&key, 0, 10).await.unwrap();
    events.into_iter().map(|event| event.envelope.event_type.to_string()).collect()
}

/// More deadlocks in a row than a message has attempts.
const DEADLOCKS: u32 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deadlocks_are_no_failures_of_a_message_on_postgres() {
    let stage = Stage::new(Pair::PostgresRabbitMq).await;
    let trigger = format!(
        "CREATE SEQUENCE tries; CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN IF nextval('tries') <= {DEADLOCKS} THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40P01'; END IF; \
         RETURN NEW; END $$; \
         CREATE TRIGGER lose BEFORE UPDATE ON inventory FOR EACH ROW EXECUTE FUNCTION lose()"
    );
    deadlocks_are_no_failures(&stage, &[&trigger]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deadlocks_are_no_failures_of_a_message_on_mariadb() {
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    let trigger = format!(
        "CREATE TRIGGER lose BEFORE UPDATE ON inventory FOR EACH ROW \
         IF NEXTVAL(tries) <= {DEADLOCKS} THEN \
         SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'lost'; END IF"
    );
    deadlocks_are_no_failures(&stage, &["CREATE SEQUENCE tries NOCACHE", &trigger]).await;
}

async fn deadlocks_are_no_failures(stage: &Stage, trigger: &[&str]) {
    let shop = stage.open().await;
    for statement in trigger {
        stage.command(statement).await;
    }
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    assert_eq!(shop.seen.count("inventory.update", "retried"), 0);
    assert_eq!(shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count, 1);
    assert!(shop.dead().await.is_empty());
    shop.stop().await;
}
