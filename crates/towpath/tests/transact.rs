//! Units of work: together or not at all, again when others were quicker, and known to be done when the answer was lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::task::Poll;

use support::delivery::{execute, make_table, rows};
use support::probe::ProbeAt;
use support::{Fresh, Order, OrderCommand, OrderEvent, eventually};
use towpath::ports::store::{Append, Inspection as _, StoreError};
use towpath::sqlx;
use towpath::tables::Value;
use towpath::{Channel, Coded as _, Consumer, Delivery, HandlerError, Next, StoreOptions, Towpath, Tx};
use towpath_testkit::broker::TcpProxy;

on_every_database!(
    everything_commits_together_or_not_at_all,
    a_unit_that_loses_against_others_is_run_again,
    a_failure_that_is_passed_over_is_not_committed,
    a_transaction_that_is_kept_is_lost,
    a_unit_inside_of_a_unit_is_refused,
    commands_of_one_unit_are_told_apart_whatever_they_follow_from,
    two_first_facts_of_an_aggregate_at_once_are_both_appended,
    an_append_that_is_left_halfway_is_not_committed,
    what_a_handler_appends_belongs_to_the_flow_of_its_fact,
);

const NOTE: &str = "INSERT INTO effects (event_id, handler) VALUES (?, ?)";

async fn everything_commits_together_or_not_at_all(fresh: &Fresh) {
    let app = fresh.app().await;
    make_table(&app).await;
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    let work = async |mut tx: Tx, refuse: bool| {
        tx.execute(NOTE, &["a", "unit"]).await?;
        let noted = Append::of::<Order>("o-1").events([OrderEvent::Noted, OrderEvent::Shipped]);
        tx.append(noted.expecting(1)).await?;
        tx.send::<Order>("o-2", OrderCommand::Place { sku: "pen".to_owned() }).await?;
        if refuse { Err(StoreError::Missing { what: "reason", name: "none".to_owned() }) } else { Ok(7) }
    };
    let refused = app.transact(async |tx| work(tx, true).await).await;
    assert_eq!(refused.unwrap_err().code(), "missing");
    assert!(rows(&app).await.is_empty());
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 1);

    assert_eq!(app.transact(async |tx| work(tx, false).await).await.unwrap(), 7);
    assert_eq!(rows(&app).await.len(), 1);
    let view = app.load::<Order>("o-1").await.unwrap().unwrap();
    assert_eq!((view.version, view.value.notes, view.state.as_deref()), (3, 1, Some("shipped")));
    // The worker was woken: it does not wait for its next look.
    eventually("the command was run", || async { app.load::<Order>("o-2").await.unwrap() }).await;
    let key = towpath::ids::AggregateKey::new("order", "o-1").unwrap();
    let facts = app.events_of(&key, 1, 10).await.unwrap();
    assert_eq!(facts[0].envelope.correlation_id, facts[1].envelope.correlation_id);
    let published = eventually("the facts went out", || async {
        let rows = app.store().outbox_of(facts[1].envelope.event_id).await.unwrap();
        (!rows.is_empty()).then_some(rows)
    });
    assert_eq!(published.await.len(), 1, "the channel takes all events of orders");
    app.stop().await;
}

async fn a_unit_that_loses_against_others_is_run_again(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    execute(&app, "CREATE TABLE tills (till_id INT NOT NULL PRIMARY KEY, amount INT NOT NULL)").await;
    execute(&app, "INSERT INTO tills (till_id, amount) VALUES (1, 0), (2, 0)").await;
    let units = (0..6_i64).map(|number| {
        let app = app.clone();
        tokio::spawn(async move {
            // Each second one takes the rows the other way round.
            let (first, second) = if number % 2 == 0 { (1_i64, 2_i64) } else { (2, 1) };
            let moved = app.transact(async |mut tx| {
                let tills = &mut tx.own_tables();
                for till in [first, second] {
                    let sql = "UPDATE tills SET amount = amount + 1 WHERE till_id = ?";
                    tills.execute("test.add", sql, vec![Value::from(till)]).await?;
                }
                Ok::<_, StoreError>(())
            });
            moved.await
        })
    });
    for unit in units.collect::<Vec<_>>() {
        unit.await.unwrap().unwrap();
    }
    let sql = "SELECT SUM(amount) AS amounts FROM tills WHERE amount = 6";
    let sql = format!("SELECT CAST(amounts AS CHAR(8)) AS amounts FROM ({sql}) t");
    let amounts = app.store().own_rows("test.sum", &sql, Vec::new()).await.unwrap();
    assert_eq!(amounts[0].text("amounts").unwrap().trim(), "12");
    app.stop().await;
}

async fn a_failure_that_is_passed_over_is_not_committed(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    make_table(&app).await;
    // An append is several statements: what failed of it may be half done.
    let lost = app.transact(async |mut tx| {
        tx.execute(NOTE, &["a", "unit"]).await?;
        let stale = Append::of::<Order>("o-1").events([OrderEvent::Noted]).expecting(4);
        assert!(tx.append(stale).await.is_err());
        Ok::<_, StoreError>(())
    });
    assert_eq!(lost.await.unwrap_err().code(), "transaction-lost");
    // A raw statement that failed, and that nobody was told of, has undone the transaction on PostgreSQL only.
    let raw = app.transact(async |mut tx| {
        tx.execute(NOTE, &["b", "unit"]).await?;
        if let Ok(connection) = tx.postgres() {
            let _ = sqlx::query("SELECT 1 / 0").execute(connection).await.unwrap_err();
        }
        Ok::<_, StoreError>(())
    });
    match app.store().postgres_pool() {
        Some(_) => assert_eq!(raw.await.unwrap_err().code(), "transaction-lost"),
        None => raw.await.unwrap(),
    }
    let kept = rows(&app).await;
    assert_eq!(kept.len(), usize::from(app.store().postgres_pool().is_none()), "{kept:?}");
    app.stop().await;
}

async fn a_transaction_that_is_kept_is_lost(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    make_table(&app).await;
    let (keep, kept) = mpsc::channel();
    let lost = app.transact(async |mut tx| {
        tx.execute(NOTE, &["a", "unit"]).await?;
        keep.send(tx).unwrap();
        Ok::<_, StoreError>(())
    });
    assert_eq!(lost.await.unwrap_err().code(), "transaction-lost");
    drop(kept);
    assert!(rows(&app).await.is_empty());
    app.stop().await;
}

async fn a_unit_inside_of_a_unit_is_refused(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    let refused = app.transact(async |_tx| app.transact(async |_tx| Ok::<_, StoreError>(())).await);
    assert_eq!(refused.await.unwrap_err().code(), "nested-transaction");
    let refused = app.transact(async |_tx| {
        let sent = app.send::<Order>("o-1", OrderCommand::Note).await;
        Ok::<_, StoreError>(sent.unwrap_err().code())
    });
    assert_eq!(refused.await.unwrap(), "nested-transaction");
    let refused = app.transact(async |_tx| {
        let timer = app.timer::<Order>("o-1", OrderCommand::Note).await.unwrap_err();
        let canceled = app.cancel_timer(uuid::Uuid::now_v7()).await.unwrap_err();
        Ok::<_, StoreError>((timer.code(), canceled.code()))
    });
    assert_eq!(refused.await.unwrap(), ("nested-transaction", "nested-transaction"));
    app.transact(async |_tx| Ok::<_, StoreError>(())).await.unwrap();
    app.stop().await;
}

async fn commands_of_one_unit_are_told_apart_whatever_they_follow_from(fresh: &Fresh) {
    let app = fresh.app().await;
    let placed = app.send::<Order>("o-0", OrderCommand::Place { sku: "tea".to_owned() }).await.unwrap();
    let cause = towpath::IncomingEvent::from(placed.events[0].clone());
    let sent = app.transact(async |mut tx| {
        for (order, is_caused) in [("o-1", false), ("o-2", true), ("o-3", true)] {
            if is_caused {
                tx.because_of(&cause);
            }
            tx.send::<Order>(order, OrderCommand::Place { sku: order.to_owned() }).await?;
        }
        Ok::<_, StoreError>(())
    });
    sent.await.unwrap();
    for order in ["o-1", "o-2", "o-3"] {
        eventually(order, || async { app.load::<Order>(order).await.unwrap() }).await;
    }
    app.stop().await;
}

async fn two_first_facts_of_an_aggregate_at_once_are_both_appended(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    for round in 0..10 {
        let order = format!("o-{round}");
        let barrier = Arc::new(tokio::sync::Barrier::new(2));
        let units: Vec<_> = (0..2)
            .map(|_| {
                let (app, order, barrier) = (app.clone(), order.clone(), Arc::clone(&barrier));
                tokio::spawn(async move {
                    barrier.wait().await;
                    let unit = app.transact(async |mut tx| {
                        let noted = [OrderEvent::Placed { sku: "tea".to_owned() }];
                        match tx.append(Append::of::<Order>(order.as_str()).events(noted)).await {
                            // The machine lets an order be placed once: whoever is second notes it.
                            Err(error) if error.code() == "illegal-transition" => Ok(false),
                            appended => appended.map(|_| true),
                        }
                    });
                    unit.await
                })
            })
            .collect();
        let mut codes = Vec::new();
        for unit in units {
            codes.push(unit.await.unwrap().map_err(|error| error.code()));
        }
        // Nobody hears of a version that he has not asked for.
        codes.sort();
        assert_eq!(codes, [Ok(true), Err("transaction-lost")], "round {round}");
        assert_eq!(app.load::<Order>(&order).await.unwrap().unwrap().version, 1);
    }
    app.stop().await;
}

async fn an_append_that_is_left_halfway_is_not_committed(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    make_table(&app).await;
    let too_quick = || StoreError::Missing { what: "wait", name: "the answers".to_owned() };
    let left_halfway = async |mut tx: Tx| {
        tx.execute(NOTE, &["a", "unit"]).await?;
        let placed = Append::of::<Order>("o-1").events([OrderEvent::Placed { sku: "tea".to_owned() }]);
        // Polled once: it has sent a statement and waits for the answer, unless the database was quicker.
        let mut appending = Box::pin(tx.append(placed));
        let waits = poll_fn(|context| Poll::Ready(appending.as_mut().poll(context).is_pending())).await;
        drop(appending);
        if !waits {
            return Err(too_quick());
        }
        // What comes afterwards does not make it whole.
        let sent = tx.send::<Order>("o-2", OrderCommand::Place { sku: "pen".to_owned() }).await;
        assert_eq!(sent.unwrap_err().code(), "transaction-lost");
        Ok::<_, StoreError>(())
    };
    let lost = loop {
        let lost = app.transact(async |tx| left_halfway(tx).await).await.unwrap_err();
        if lost.code() != too_quick().code() {
            break lost;
        }
    };
    assert_eq!(lost.code(), "transaction-lost");
    assert!(rows(&app).await.is_empty());
    assert!(app.load::<Order>("o-1").await.unwrap().is_none());
    app.stop().await;
}

async fn what_a_handler_appends_belongs_to_the_flow_of_its_fact(fresh: &Fresh) {
    let note = |mut delivery: Delivery| async move {
        delivery.tx.append(Append::of::<Order>("o-1").events([OrderEvent::Noted])).await?;
        Ok::<Next, HandlerError>(delivery.handled())
    };
    let consumer = Consumer::of("orders").only(["order.placed"]).each("note", note);
    let channel = Channel::named("orders", ["order.*"]).map(Channel::published);
    let app = Towpath::builder()
        .store(fresh.url())
        .aggregate::<Order>()
        .channel(channel)
        .consumer(consumer)
        .start()
        .await
        .unwrap();
    let placed = app.send::<Order>("o-1", OrderCommand::Place { sku: "tea".to_owned() }).await.unwrap();
    let key = towpath::ids::AggregateKey::new("order", "o-1").unwrap();
    let noted =
        eventually("the handler has noted it", || async { app.events_of(&key, 1, 1).await.unwrap().pop() });
    let noted = noted.await.envelope;
    assert_eq!(noted.correlation_id, placed.correlation_id);
    assert_eq!(noted.causation_id.unwrap().to_string(), placed.events[0].event_id.to_string());
    app.stop().await;
}

/// A deadlock ends a transaction; what is passed over and goes on must not be written outside of any.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_follows_a_deadlock_on_mysql() {
    let fresh = Fresh::on("mysql").await;
    let app = fresh.builder().without_workers().start().await.unwrap();
    make_table(&app).await;
    execute(&app, "CREATE TABLE tills (till_id INT NOT NULL PRIMARY KEY, amount INT NOT NULL)").await;
    execute(&app, "INSERT INTO tills (till_id, amount) VALUES (1, 0), (2, 0)").await;
    let runs = Arc::new(AtomicU32::new(0));
    let barrier = Arc::new(tokio::sync::Barrier::new(2));
    let units: Vec<_> = [(1_i64, 2_i64), (2, 1)]
        .into_iter()
        .map(|(first, second)| {
            let (app, runs, barrier) = (app.clone(), Arc::clone(&runs), Arc::clone(&barrier));
            tokio::spawn(async move {
                let unit = app.transact(async |mut tx| {
                    let sql = "UPDATE tills SET amount = amount + 1 WHERE till_id = ?";
                    tx.own_tables().execute("test.first", sql, vec![Value::from(first)]).await?;
                    if runs.fetch_add(1, Ordering::SeqCst) < 2 {
                        barrier.wait().await;
                    }
                    // What it says is passed over.
                    let _ = tx.own_tables().execute("test.second", sql, vec![Value::from(second)]).await;
                    let _ = tx.execute(NOTE, &["a", "unit"]).await;
                    Ok::<_, StoreError>(())
                });
                unit.await
            })
        })
        .collect();
    for unit in units {
        unit.await.unwrap().unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 3, "one of the two lost once");
    assert_eq!(rows(&app).await.len(), 2, "each has noted itself once");
    app.stop().await;
}

/// What happens to a commit under way.
#[derive(Clone, Copy, PartialEq)]
enum Loses {
    /// It arrives, and its answer does not.
    TheAnswer,
    /// It does not arrive.
    TheCommit,
}

/// Runs a unit whose first commit is lost; answers how often its work ran.
async fn with_a_lost_commit(database: &str, loses: Loses) -> u32 {
    let fresh = Fresh::on(database).await;
    let beside = fresh.builder().without_workers().start().await.unwrap();
    make_table(&beside).await;
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    let proxy = Arc::new(proxy);
    let probe = Arc::new(ProbeAt::new("commit", {
        let proxy = Arc::clone(&proxy);
        move || match loses {
            Loses::TheAnswer => proxy.hold_answers(),
            Loses::TheCommit => proxy.hold_everything(),
        }
    }));
    let app = Fresh::at(&url)
        .builder()
        .without_workers()
        .store_options(StoreOptions { probe: probe.clone(), ..StoreOptions::default() })
        .start()
        .await
        .unwrap();
    let runs = AtomicU32::new(0);
    probe.arm(1);
    let unit = app.transact(async |mut tx| {
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        tx.execute(NOTE, &["a", "unit"]).await?;
        tx.append(Append::of::<Order>("o-1").events([OrderEvent::Placed { sku: "book".to_owned() }])).await?;
        Ok::<_, StoreError>(run)
    });
    let losing = async {
        eventually("the commit is under way", || async { probe.is_spent().then_some(()) }).await;
        if loses == Loses::TheAnswer {
            eventually("the commit was done", || async { rows(&beside).await.pop() }).await;
        }
        proxy.cut();
        proxy.heal();
    };
    let (answer, ()) = tokio::join!(unit, losing);
    assert_eq!(
        answer.unwrap(),
        runs.load(Ordering::SeqCst),
        "the answer is the one of the run that was committed"
    );
    assert_eq!(rows(&beside).await.len(), 1);
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 1);
    stop(app, beside).await;
    runs.load(Ordering::SeqCst)
}

async fn stop(app: Towpath, beside: Towpath) {
    app.stop().await;
    beside.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_whose_answer_is_lost_is_found_to_be_done_on_postgres() {
    assert_eq!(with_a_lost_commit("postgres", Loses::TheAnswer).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_whose_answer_is_lost_is_found_to_be_done_on_mysql() {
    assert_eq!(with_a_lost_commit("mysql", Loses::TheAnswer).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_that_does_not_arrive_is_done_anew_on_postgres() {
    assert_eq!(with_a_lost_commit("postgres", Loses::TheCommit).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_that_does_not_arrive_is_done_anew_on_mysql() {
    assert_eq!(with_a_lost_commit("mysql", Loses::TheCommit).await, 2);
}

/// Our tables in a place of their own, the application's in another one of the same server.
async fn in_two_places(database: &str) {
    let (ours, yours) = (Fresh::on(database).await, Fresh::on(database).await);
    let place = |fresh: &Fresh| {
        let name = fresh.url().split(['/', '=', '?', '&']).find(|part| part.starts_with("towpath_scratch_"));
        name.expect("the name of a scratch place").to_owned()
    };
    let (our_place, your_place) = (place(&ours), place(&yours));
    let (fresh, effects) = match database {
        // Yours is found without its name, too.
        "postgres" => (ours.in_schemas(&format!("{our_place},{your_place}")), "effects".to_owned()),
        _ => (ours, format!("{your_place}.effects")),
    };
    let app = fresh.builder().without_workers().start().await.unwrap();
    let make = format!("CREATE TABLE {your_place}.effects (event_id VARCHAR(64) NOT NULL PRIMARY KEY)");
    app.store().own_execute("test.make", &make, Vec::new()).await.unwrap();
    let insert = format!("INSERT INTO {effects} (event_id) VALUES (?)");
    let unit = app.transact(async |mut tx| {
        tx.own_tables().execute("test.insert", &insert, vec![Value::from("a")]).await?;
        tx.append(Append::of::<Order>("o-1").events([OrderEvent::Placed { sku: "book".to_owned() }])).await
    });
    unit.await.unwrap();
    let count = format!("SELECT event_id FROM {your_place}.effects");
    assert_eq!(app.store().own_rows("test.count", &count, Vec::new()).await.unwrap().len(), 1);
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 1);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn our_tables_stand_in_a_schema_of_their_own_on_postgres() {
    in_two_places("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn our_tables_stand_in_a_database_of_their_own_on_mysql() {
    in_two_places("mysql").await;
}
