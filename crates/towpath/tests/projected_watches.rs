//! What projections let observers look at: said with the rows, kept through what is made anew, ended with the facts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use support::{Fresh, Order, OrderCommand, OrderEvent, eventually};
use towpath::observer::{
    Decision, ExternalResources, Look, ObserveError, Observer, ObserverPolicy, ObserverWake, Watch, Watched,
};
use towpath::ports::store::{Append, StoreError, StoreResult, StoreTx as _};
use towpath::projection::{Fact, OwnedTable, Rows};
use towpath::{HandlerError, Projection, Projections, SqlStore, Towpath};

on_every_database!(
    what_facts_say_is_looked_at_until_they_end_it,
    what_is_made_anew_keeps_what_is_known_of_it,
    what_nobody_speaks_of_is_not_looked_at,
    what_was_asked_for_is_not_lost_among_later_facts,
    what_is_to_be_looked_at_now_wakes_the_observer,
    an_observer_belongs_to_one_projection,
);

const PACKER: &str = "packer";

/// An order is looked at until it was shipped. A third of its facts say that nothing is waited for.
struct Packing;

impl Projection for Packing {
    const NAME: &'static str = "packing";
    const VERSION: u32 = 1;
    const KIND: &'static str = "order";
    type Event = OrderEvent;

    fn tables() -> &'static [OwnedTable] {
        &[]
    }

    fn watches() -> &'static [&'static str] {
        &[PACKER]
    }

    fn project(&self, fact: &Fact<OrderEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let id = fact.aggregate_id.as_str();
        let known: u64 = match rows.watched(PACKER, id)? {
            Some(wanted) => serde_json::from_str(wanted)?,
            None => 0,
        };
        let look = match &fact.event {
            OrderEvent::Shipped => return rows.unwatch(PACKER, id),
            OrderEvent::Placed { sku } if sku == "urgent" => Look::AtOnce,
            OrderEvent::Placed { sku } if sku == "asked" => Look::UntilSeen,
            _ => Look::At(fact.occurred_at + TimeDelta::days(400)),
        };
        rows.watch(PACKER, watch(id, fact.version, &(known + 1).to_string(), look))
    }
}

fn watch(id: &str, version: u64, wanted: &str, look: Look) -> Watch {
    let goal = if version % 3 == 2 { "" } else { "packed" };
    Watch {
        subject_id: id.to_owned(),
        hint: id.to_owned(),
        version,
        wanted: wanted.to_owned(),
        goal: goal.to_owned(),
        look,
    }
}

fn packing() -> Projections {
    Projections::of("orders", "packing").with(Packing)
}

async fn idle(fresh: &Fresh) -> Towpath {
    fresh.builder().without_workers().start().await.unwrap()
}

async fn place(app: &Towpath, id: &str, sku: &str, notes: usize) {
    app.send::<Order>(id, OrderCommand::Place { sku: sku.to_owned() }).await.unwrap();
    note(app, id, notes).await;
}

async fn note(app: &Towpath, id: &str, notes: usize) {
    if notes > 0 {
        let noted = || Append::of::<Order>(id).events((0..notes).map(|_| OrderEvent::Noted));
        let appended = app.transact(async |mut tx| {
            tx.append(noted()).await?;
            Ok::<_, StoreError>(())
        });
        appended.await.unwrap();
    }
}

async fn rebuild(store: &SqlStore) {
    let rebuilt = packing().rebuild(store).await.unwrap();
    assert_eq!(rebuilt.failed, 0, "{:?}", rebuilt.failures);
}

/// As it is stored, whoever looks.
async fn watched(store: &SqlStore, id: &str) -> Option<Watched> {
    let mut tx = store.open_transaction().await.unwrap();
    let found = tx.watched(PACKER, &[id.to_owned()]).await.unwrap().pop();
    tx.abandon().await.unwrap();
    found
}

async fn says(store: &SqlStore, id: &str) -> Option<(u64, u64)> {
    let watched = watched(store, id).await?;
    Some((watched.version, watched.wanted.parse().unwrap()))
}

async fn what_facts_say_is_looked_at_until_they_end_it(fresh: &Fresh) {
    let app = fresh.builder().projections(packing()).start().await.unwrap();
    for id in ["o-1", "o-2"] {
        place(&app, id, "book", 3).await;
        eventually("it is looked at", || async {
            (says(app.store(), id).await == Some((4, 4))).then_some(())
        })
        .await;
    }
    app.send::<Order>("o-1", OrderCommand::Ship).await.unwrap();
    note(&app, "o-2", 1).await;
    eventually("one of them is not", || async {
        let said = (says(app.store(), "o-1").await, says(app.store(), "o-2").await);
        (said == (None, Some((5, 5)))).then_some(())
    })
    .await;
    app.stop().await;
}

async fn what_is_made_anew_keeps_what_is_known_of_it(fresh: &Fresh) {
    let app = idle(fresh).await;
    let store = app.store();
    place(&app, "o-1", "book", 3).await;
    rebuild(store).await;
    let begun = store.begin_look(PACKER, "o-1").await.unwrap().unwrap().goal_begun_at;
    assert!(begun.is_some());
    let sql = "UPDATE observations SET wanted = '99', looked_at = goal_begun_at";
    store.own_execute("test.spoil", sql, Vec::new()).await.unwrap();
    rebuild(store).await;
    assert_eq!(says(store, "o-1").await, Some((4, 4)));
    assert_eq!(watched(store, "o-1").await.unwrap().goal_begun_at, begun);
    assert_eq!(store.looks_at(PACKER, "o-1").await.unwrap().unwrap().looked_at, begun);

    // Facts of more than a page, among which nothing is waited for now and then: nobody has seen them yet.
    note(&app, "o-1", 602).await;
    rebuild(store).await;
    assert_eq!(says(store, "o-1").await, Some((606, 606)));
    assert_eq!(watched(store, "o-1").await.unwrap().goal_begun_at, None);
    let begun = store.begin_look(PACKER, "o-1").await.unwrap().unwrap().goal_begun_at;
    rebuild(store).await;
    assert_eq!(says(store, "o-1").await, Some((606, 606)));
    assert_eq!(watched(store, "o-1").await.unwrap().goal_begun_at, begun);
    app.stop().await;
}

async fn what_nobody_speaks_of_is_not_looked_at(fresh: &Fresh) {
    let app = idle(fresh).await;
    let store = app.store();
    place(&app, "shipped", "book", 0).await;
    app.send::<Order>("shipped", OrderCommand::Ship).await.unwrap();
    place(&app, "newer", "book", 0).await;
    let mut tx = store.open_transaction().await.unwrap();
    // As an older version of the projection, or somebody by hand, has left them.
    let strays = ["shipped", "newer", "nobody"].map(|id| watch(id, 9, "1", Look::AtOnce));
    tx.watch(PACKER, &strays).await.unwrap();
    tx.watch("another", &strays).await.unwrap();
    tx.finish().await.unwrap();
    rebuild(store).await;
    assert_eq!(watched(store, "shipped").await, None);
    assert_eq!(watched(store, "nobody").await, None);
    assert_eq!(says(store, "newer").await, Some((1, 1)));
    assert_eq!(store.due_subjects("another", None, 10).await.unwrap().listed.len(), 3);
    app.stop().await;
}

async fn what_was_asked_for_is_not_lost_among_later_facts(fresh: &Fresh) {
    let app = idle(fresh).await;
    let store = app.store();
    for (id, sku) in [("o-2", "asked"), ("o-1", "urgent")] {
        place(&app, id, sku, 2).await;
    }
    rebuild(store).await;
    // All are looked at after a rebuild, and before all others what was asked for.
    let due = store.due_subjects(PACKER, None, 10).await.unwrap().listed;
    assert_eq!(due.iter().map(|listed| listed.subject_id.as_str()).collect::<Vec<_>>(), ["o-2", "o-1"]);
    app.stop().await;
}

/// Notes what it has looked at.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Vec<String>>>);

impl ExternalResources for Shelf {
    type Resource = String;
    type Evidence = ();

    async fn resource(&self, _: &SqlStore, watched: Watched) -> StoreResult<Option<String>> {
        Ok(Some(watched.subject_id))
    }

    async fn observe(&self, id: &String) -> Result<(), ObserveError> {
        self.0.lock().unwrap().push(id.clone());
        Ok(())
    }

    async fn reachable(&self) -> Result<(), ObserveError> {
        Ok(())
    }

    fn decide(&self, _: &String, (): (), _: DateTime<Utc>) -> Vec<Decision> {
        Vec::new()
    }

    fn look_again_after(&self, _: &String) -> Duration {
        Duration::from_secs(3600)
    }
}

async fn what_is_to_be_looked_at_now_wakes_the_observer(fresh: &Fresh) {
    let shelf = Shelf::default();
    let rarely = ObserverPolicy { poll: Duration::from_secs(3600), ..ObserverPolicy::default() };
    let observer = Observer::named(PACKER, shelf.clone(), rarely, ObserverWake::default());
    let app = fresh.builder().projections(packing()).observer(observer).start().await.unwrap();
    eventually("it has found nothing", || async { app.observers().first()?.scanned_at.map(drop) }).await;
    for id in ["o-1", "o-2"] {
        place(&app, id, "urgent", 0).await;
        eventually("it was looked at", || async {
            shelf.0.lock().unwrap().contains(&id.to_owned()).then_some(())
        })
        .await;
    }
    app.stop().await;
}

/// Speaks of what it does not name, or of what another one names.
struct Meddling<const NAMED: bool>;

impl<const NAMED: bool> Projection for Meddling<NAMED> {
    const NAME: &'static str = "meddling";
    const VERSION: u32 = 1;
    const KIND: &'static str = "order";
    type Event = OrderEvent;

    fn tables() -> &'static [OwnedTable] {
        &[]
    }

    fn watches() -> &'static [&'static str] {
        if NAMED { &[PACKER] } else { &[] }
    }

    fn project(&self, fact: &Fact<OrderEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        rows.watch(PACKER, watch(fact.aggregate_id.as_str(), fact.version, "1", Look::AtOnce))
    }
}

async fn an_observer_belongs_to_one_projection(fresh: &Fresh) {
    let both = packing().with(Meddling::<true>);
    let refused = fresh.builder().projections(both).start().await.err().expect("a refusal").to_string();
    assert!(refused.contains("another one says what packer looks at"), "{refused}");
    let app = idle(fresh).await;
    place(&app, "o-1", "book", 0).await;
    let rebuilt = Projections::of("orders", "meddling").with(Meddling::<false>).rebuild(app.store()).await;
    let failures = rebuilt.unwrap().failures;
    assert_eq!(failures[0].error.code(), "row-not-asked-for");
    assert_eq!(watched(app.store(), "o-1").await, None);
    app.stop().await;
}
