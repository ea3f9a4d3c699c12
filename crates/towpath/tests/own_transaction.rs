//! An application with tables of its own: its change and the facts commit in its own sqlx transaction, or neither does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Fresh, Order, OrderCommand};
use towpath::ids::{AggregateKey, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::store::{Append, Expected, Inspection as _, NewEvent, Routing, StoreError};
use towpath::sqlx::{self, Executor, Row};
use towpath::{ChangeContext, Coded as _, Payload, Towpath};

on_every_database!(
    the_applications_change_and_the_facts_commit_together,
    a_rollback_takes_both_back,
    a_refused_append_leaves_the_application_free_to_roll_back,
    facts_without_a_command_are_routed_and_folded_as_those_of_commands,
    what_the_machine_forbids_is_refused_without_a_command_too,
    a_statement_that_failed_is_not_passed_over,
);

fn sold(product: &str) -> Append {
    Append {
        aggregate: AggregateKey::new("product", product).unwrap(),
        expected: Expected::Any,
        events: vec![NewEvent {
            event_id: EventId(uuid::Uuid::now_v7()),
            event_type: EventName::from_stored("product.sold"),
            schema_version: 1,
            payload: Payload::from_text(r#"{"price":88.50}"#).unwrap(),
            channels: Routing::ByType,
        }],
        snapshot: None,
        state_changes: vec![],
        deadline: Default::default(),
        context: ChangeContext::new(chrono::Utc::now(), CorrelationId::new("flow-own").unwrap()),
    }
}

/// Runs the same statements on whichever pool the app has: sell the product by a conditional update, append, end.
macro_rules! sell {
    ($pool:expr, $app:expr, $append:expr, $end:ident) => {{
        let mut transaction = $pool.begin().await.unwrap();
        let sold = sqlx::query("UPDATE products SET status = 'sold' WHERE id = 7 AND status = 'on_sale'")
            .execute(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(sold.rows_affected(), 1);
        let mut joined = $app.join(transaction);
        let appended = joined.append($append).await;
        joined.$end().await.unwrap();
        appended
    }};
}

macro_rules! on_its_pool {
    ($app:expr, $pool:ident => $work:expr) => {
        if let Some($pool) = $app.store().postgres_pool() {
            $work
        } else if let Some($pool) = $app.store().mysql_pool() {
            $work
        } else {
            let $pool = $app.store().sqlite_pool().unwrap();
            $work
        }
    };
}

async fn shop(fresh: &Fresh) -> Towpath {
    let app = fresh.builder().without_workers().start().await.unwrap();
    for sql in [
        "CREATE TABLE products (id INT NOT NULL PRIMARY KEY, status VARCHAR(16) NOT NULL)",
        "INSERT INTO products (id, status) VALUES (7, 'on_sale')",
    ] {
        on_its_pool!(app, pool => { pool.execute(sql).await.unwrap(); });
    }
    app
}

async fn status(app: &Towpath) -> String {
    let sql = "SELECT status FROM products WHERE id = 7";
    on_its_pool!(app, pool => pool.fetch_one(sql).await.unwrap().get::<String, _>(0))
}

async fn versions(app: &Towpath) -> (u64, usize) {
    let key = AggregateKey::new("product", "p-7").unwrap();
    let row = app.aggregate(&key).await.unwrap();
    (row.map_or(0, |row| row.version), app.events_of(&key, 0, 10).await.unwrap().len())
}

async fn the_applications_change_and_the_facts_commit_together(fresh: &Fresh) {
    let app = shop(fresh).await;
    let appended = on_its_pool!(app, pool => sell!(pool, app, &sold("p-7"), commit)).unwrap();
    assert_eq!(appended.version, 1);
    assert_eq!((status(&app).await.as_str(), versions(&app).await), ("sold", (1, 1)));
    app.stop().await;
}

async fn a_rollback_takes_both_back(fresh: &Fresh) {
    let app = shop(fresh).await;
    on_its_pool!(app, pool => sell!(pool, app, &sold("p-7"), rollback)).unwrap();
    assert_eq!((status(&app).await.as_str(), versions(&app).await), ("on_sale", (0, 0)));
    app.stop().await;
}

async fn a_refused_append_leaves_the_application_free_to_roll_back(fresh: &Fresh) {
    let app = shop(fresh).await;
    let mut stale = sold("p-7");
    stale.expected = Expected::Exactly(4);
    let refused = on_its_pool!(app, pool => sell!(pool, app, &stale, rollback));
    assert!(matches!(refused, Err(StoreError::VersionConflict { .. })), "{refused:?}");
    assert_eq!((status(&app).await.as_str(), versions(&app).await), ("on_sale", (0, 0)));
    assert_eq!(app.store().head().await.unwrap(), 0);
    app.stop().await;
}

/// On PostgreSQL a failed statement undoes the transaction, and its COMMIT is answered without an error.
async fn a_statement_that_failed_is_not_passed_over(fresh: &Fresh) {
    let app = shop(fresh).await;
    if let Some(pool) = app.store().postgres_pool() {
        for is_raw in [false, true] {
            let mut joined = app.join(pool.begin().await.unwrap());
            joined.append(&sold("p-7")).await.unwrap();
            match is_raw {
                true => drop(sqlx::query("SELECT 1 / 0").execute(joined.postgres().unwrap()).await),
                false => drop(joined.execute("INSERT INTO no_such_table (a) VALUES (?)", &["x"]).await),
            }
            assert_eq!(joined.commit().await.unwrap_err().code(), "transaction-lost");
            assert_eq!(versions(&app).await, (0, 0));
        }
    }
    app.stop().await;
}

/// Facts about an order, which is registered, as an application would append them.
fn about(order: &str, event_types: &[&str]) -> Append {
    let event = |event_type: &&str| NewEvent {
        event_id: EventId(uuid::Uuid::now_v7()),
        event_type: EventName::from_stored(*event_type),
        schema_version: 1,
        payload: Payload::empty(),
        channels: Routing::ByType,
    };
    let aggregate = AggregateKey::new("order", order).unwrap();
    Append { aggregate, events: event_types.iter().map(event).collect(), ..sold("p") }
}

/// Appends in a transaction of its own.
macro_rules! append {
    ($app:expr, $append:expr) => {
        on_its_pool!($app, pool => {
            let mut joined = $app.join(pool.begin().await.unwrap());
            let appended = joined.append($append).await;
            match &appended {
                Ok(_) => joined.commit().await.unwrap(),
                Err(_) => joined.rollback().await.unwrap(),
            }
            appended
        })
    };
}

async fn facts_without_a_command_are_routed_and_folded_as_those_of_commands(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    let noted = about("o-1", &["order.noted", "order.shipped"]);
    assert_eq!(append!(app, &noted).unwrap().version, 3);
    let view = app.load::<Order>("o-1").await.unwrap().unwrap();
    assert_eq!((view.version, view.value.notes, view.state.as_deref()), (3, 1, Some("shipped")));
    let row = app.aggregate(&noted.aggregate).await.unwrap().unwrap();
    assert_eq!(row.snapshot.unwrap().data.as_text(), r#"{"sku":"book","notes":1}"#);
    assert_eq!(row.state.as_deref(), Some("shipped"));
    let history = app.history_of(&noted.aggregate, 0, 10).await.unwrap();
    assert_eq!(history.last().unwrap().to_state, "shipped");
    let rows = app.store().outbox_of(noted.events[1].event_id).await.unwrap();
    assert_eq!(rows.len(), 1, "the channel takes all events of orders");
    // The next command is decided on what is so now.
    let refused = app.send::<Order>("o-1", OrderCommand::Jump).await.unwrap_err();
    assert_eq!(refused.code(), "illegal-transition");
    app.send::<Order>("o-1", OrderCommand::Note).await.unwrap();
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().value.notes, 2);
    // Of a new one, too.
    let placed = NewEvent {
        payload: Payload::from_text(r#"{"sku":"pen"}"#).unwrap(),
        ..about("o-2", &["order.placed"]).events.remove(0)
    };
    let placed = Append { events: vec![placed], ..about("o-2", &[]) };
    append!(app, &placed).unwrap();
    assert_eq!(app.load::<Order>("o-2").await.unwrap().unwrap().value.sku.as_deref(), Some("pen"));
    app.stop().await;
}

async fn what_the_machine_forbids_is_refused_without_a_command_too(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    let placed_again = || about("o-1", &["order.placed"]);
    for (append, code) in [
        (about("o-1", &["order.shipped", "order.shipped"]), "illegal-transition"),
        (placed_again(), "illegal-transition"),
        (about("o-9", &["order.shipped"]), "illegal-transition"),
        (about("o-1", &["order.vanished"]), "unknown-event"),
        (about("o-9", &["order.placed"]), "invalid-payload"),
        (Append { expected: Expected::Exactly(7), ..about("o-1", &["order.noted"]) }, "version-conflict"),
        (Append { expected: Expected::New, ..about("o-1", &["order.noted"]) }, "version-conflict"),
    ] {
        let refused = append!(app, &append).unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
    }
    let view = app.load::<Order>("o-1").await.unwrap().unwrap();
    assert_eq!((view.version, view.state.as_deref()), (1, Some("placed")));
    assert!(app.load::<Order>("o-9").await.unwrap().is_none());
    app.stop().await;
}
