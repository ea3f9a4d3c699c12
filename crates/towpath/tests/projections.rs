//! Projections: each fact once and in order, made anew beside a running system, and one that fails holds up no other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use support::probe::{Gate, ProbeAt};
use support::{Fresh, Order, OrderCommand, OrderEvent, eventually};
use towpath::chrono::{DateTime, Utc};
use towpath::letters::LetterFilter;
use towpath::ports::store::{Append, StoreError, StoreTx as _};
use towpath::projection::{Fact, OwnedTable, ProjectionStatus, RowKey, Rows};
use towpath::tables::Row;
use towpath::{Builder, Channel, HandlerError, Projection, Projections, SqlStore, Towpath};
use towpath_testkit::CountingProbe;

on_every_database!(
    every_fact_is_projected_once_and_in_order,
    facts_that_are_not_delivered_are_read_from_the_log,
    facts_that_are_known_already_are_skipped,
    a_row_that_somebody_takes_away_comes_back_with_the_next_fact,
    two_instances_and_a_rebuild_at_once_end_as_a_fresh_projection,
    a_rebuild_keeps_what_came_after_it_had_looked,
    a_rebuild_that_ends_anywhere_leaves_each_aggregate_whole,
    a_higher_version_makes_all_anew_and_a_lower_one_leaves_it_alone,
    a_long_aggregate_is_read_by_pages,
    a_fact_that_cannot_be_projected_holds_up_no_other,
    rows_that_nobody_knows_of_are_made_anew_in_the_background,
    more_rows_are_asked_for_than_a_statement_can_name,
    flaws_are_told_at_the_start,
);

/// A row per order: what it has seen, and in which order.
#[derive(Row)]
#[row(table = "order_rows")]
struct OrderRow {
    #[row(key, name = 128)]
    order_id: String,
    facts: u64,
    digest: u64,
    made_by: u32,
    sku: Option<String>,
}

/// A row per note of an order, of which none is read.
#[derive(Row)]
#[row(table = "order_notes")]
struct NoteRow {
    #[row(key, name = 128)]
    order_id: String,
    #[row(key)]
    version: u64,
    made_by: u32,
    noted_at: DateTime<Utc>,
}

/// The projection in one of its versions. The first cannot bear a certain word.
struct Orders<const V: u32>;

impl<const V: u32> Projection for Orders<V> {
    const NAME: &'static str = "orders";
    const VERSION: u32 = V;
    const KIND: &'static str = "order";
    type Event = OrderEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[OwnedTable::of::<OrderRow>("order_id"), OwnedTable::of::<NoteRow>("order_id")] }
    }

    fn keys(&self, fact: &Fact<OrderEvent>) -> Vec<RowKey> {
        let is_slip = matches!(&fact.event, OrderEvent::Placed { sku } if V == 1 && sku == "slip");
        assert!(!is_slip, "a bug in the keys of a projection, on purpose");
        vec![RowKey::of::<OrderRow>(&fact.aggregate_id.to_string())]
    }

    fn project(&self, fact: &Fact<OrderEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let order_id = fact.aggregate_id.to_string();
        let mut row = match rows.find::<OrderRow>(&order_id)? {
            Some(row) => row,
            None if fact.version > 1 => return Err(rows.lost::<OrderRow>()),
            None => OrderRow { order_id: order_id.clone(), facts: 0, digest: 0, made_by: V, sku: None },
        };
        match &fact.event {
            OrderEvent::Placed { sku } if V == 1 && sku == "poison" => {
                return Err(HandlerError::unrecoverable("poison", "it cannot bear that"));
            }
            OrderEvent::Placed { sku } if V == 1 && sku == "bug" => {
                panic!("a bug in a projection, on purpose")
            }
            OrderEvent::Placed { sku } => row.sku = Some(sku.clone()),
            OrderEvent::Noted => {
                let (version, noted_at) = (fact.version, fact.occurred_at);
                rows.put(&NoteRow { order_id, version, made_by: V, noted_at })?;
            }
            OrderEvent::Shipped | OrderEvent::Cursed => {}
        }
        (row.facts, row.digest, row.made_by) = (row.facts + 1, digest_of(row.digest, fact.version), V);
        rows.put(&row)
    }
}

/// Another one for each order of the same versions.
fn digest_of(before: u64, version: u64) -> u64 {
    (before * 31 + version) % 1_000_003
}

fn projections<const V: u32>() -> Projections {
    Projections::of("projected", "order-rows").with(Orders::<V>)
}

fn with<const V: u32>(fresh: &Fresh, event_types: &[&str]) -> Builder {
    Towpath::builder()
        .store(fresh.url())
        .aggregate::<Order>()
        .tables(&[*OrderRow::TABLE, *NoteRow::TABLE])
        .channel(Channel::named("projected", event_types.iter().copied()))
        .projections(projections::<V>())
        .scan(Duration::from_millis(20))
        .lease(Duration::from_secs(2))
}

async fn send(app: &Towpath, id: &str, command: OrderCommand) {
    app.send::<Order>(id, command).await.unwrap();
}

async fn place(app: &Towpath, id: &str, notes: u32) {
    send(app, id, OrderCommand::Place { sku: "book".to_owned() }).await;
    for _ in 0..notes {
        send(app, id, OrderCommand::Note).await;
    }
}

/// Each order's facts, their digest, and by whom its row and its notes were made.
async fn rows(store: &SqlStore) -> BTreeMap<String, (u64, u64, Vec<u64>)> {
    let mut all = BTreeMap::new();
    let sql = "SELECT order_id, facts, digest, made_by FROM order_rows";
    for row in store.own_rows("test.orders", sql, Vec::new()).await.unwrap() {
        let made_by = vec![row.count("made_by").unwrap()];
        let row_of = (row.count("facts").unwrap(), row.count("digest").unwrap(), made_by);
        all.insert(row.text("order_id").unwrap(), row_of);
    }
    let sql = "SELECT order_id, made_by FROM order_notes ORDER BY order_id, version";
    for row in store.own_rows("test.notes", sql, Vec::new()).await.unwrap() {
        let order: &mut (u64, u64, Vec<u64>) = all.entry(row.text("order_id").unwrap()).or_default();
        order.2.push(row.count("made_by").unwrap());
    }
    all
}

/// What a placed order with so many notes looks like.
fn expected(notes: u64, made_by: u64) -> (u64, u64, Vec<u64>) {
    let facts = notes + 1;
    let digest = (1..=facts).fold(0, digest_of);
    (facts, digest, vec![made_by; usize::try_from(facts).unwrap()])
}

async fn becomes(store: &SqlStore, id: &str, wanted: (u64, u64, Vec<u64>)) {
    eventually("the rows are as the facts make them", || async {
        (rows(store).await.get(id) == Some(&wanted)).then_some(())
    })
    .await;
}

async fn status(app: &Towpath) -> ProjectionStatus {
    app.projections().await.unwrap().remove(0)
}

/// Why deliveries were set aside.
async fn letters(app: &Towpath) -> Vec<String> {
    let letters = app.dead_letters().list(&LetterFilter::default(), 0, 100).await.unwrap();
    letters.into_iter().filter_map(|letter| letter.status_reason).collect()
}

async fn is_made(app: &Towpath) -> ProjectionStatus {
    eventually("everything was made", || async { Some(status(app).await).filter(ProjectionStatus::is_made) })
        .await
}

async fn every_fact_is_projected_once_and_in_order(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    let writers = (0..6).map(|number| {
        let app = app.clone();
        tokio::spawn(async move { place(&app, &format!("o-{number}"), 10 + number).await })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    for number in 0..6 {
        becomes(app.store(), &format!("o-{number}"), expected(10 + number, 1)).await;
    }
    let status = is_made(&app).await;
    assert_eq!((status.progress.aggregates, status.progress.current), (6, 6), "{status:?}");
    assert!(letters(&app).await.is_empty());
    app.stop().await;
}

async fn facts_that_are_not_delivered_are_read_from_the_log(fresh: &Fresh) {
    // The channel has none of the others.
    let app = with::<1>(fresh, &["order.shipped"]).start().await.unwrap();
    is_made(&app).await;
    place(&app, "o-1", 3).await;
    send(&app, "o-1", OrderCommand::Ship).await;
    let (facts, digest) = (5, (1..=5).fold(0, digest_of));
    becomes(app.store(), "o-1", (facts, digest, vec![1; 4])).await;
    // Where nothing of an aggregate is delivered, its facts are found when somebody looks: at the latest, by the next start.
    place(&app, "o-2", 2).await;
    app.stop().await;
    let app = with::<1>(fresh, &["order.shipped"]).start().await.unwrap();
    becomes(app.store(), "o-2", expected(2, 1)).await;
    send(&app, "o-2", OrderCommand::Note).await;
    app.stop().await;
    let app = with::<1>(fresh, &["order.shipped"]).start().await.unwrap();
    becomes(app.store(), "o-2", expected(3, 1)).await;
    app.stop().await;
}

async fn a_row_that_somebody_takes_away_comes_back_with_the_next_fact(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    is_made(&app).await;
    for id in ["o-1", "o-2"] {
        place(&app, id, 3).await;
        becomes(app.store(), id, expected(3, 1)).await;
    }
    let sql = "DELETE FROM order_rows WHERE order_id = 'o-1'";
    app.store().own_execute("test.lose", sql, Vec::new()).await.unwrap();
    for id in ["o-1", "o-2"] {
        send(&app, id, OrderCommand::Note).await;
    }
    for id in ["o-1", "o-2"] {
        becomes(app.store(), id, expected(4, 1)).await;
    }
    app.stop().await;
}

async fn facts_that_are_known_already_are_skipped(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).without_workers().start().await.unwrap();
    place(&app, "o-1", 4).await;
    let rebuilt = projections::<1>().rebuild(app.store()).await.unwrap();
    assert_eq!((rebuilt.facts, rebuilt.aggregates["orders"], rebuilt.failed), (5, 1, 0));
    assert_eq!(rows(app.store()).await["o-1"], expected(4, 1));
    app.stop().await;
    // Only now is any of them delivered.
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    send(&app, "o-1", OrderCommand::Note).await;
    becomes(app.store(), "o-1", expected(5, 1)).await;
    app.stop().await;
}

async fn two_instances_and_a_rebuild_at_once_end_as_a_fresh_projection(fresh: &Fresh) {
    const ORDERS_PLACED: u64 = 5;
    let apps = [with::<1>(fresh, &["order.*"]), with::<1>(fresh, &["order.*"])];
    let mut running = Vec::new();
    for app in apps {
        running.push(app.start().await.unwrap());
    }
    let store = running[0].store().clone();
    let over = AtomicBool::new(false);
    let writing = async {
        for notes in 0..12_u64 {
            for number in 0..ORDERS_PLACED {
                let (app, id) = (&running[usize::from(notes % 2 == 0)], format!("o-{number}"));
                match notes {
                    0 => place(app, &id, 0).await,
                    _ => send(app, &id, OrderCommand::Note).await,
                }
            }
        }
        over.store(true, Ordering::SeqCst);
    };
    let rebuilding = async {
        let mut times = 0;
        while !over.load(Ordering::SeqCst) || times < 3 {
            let rebuilt = projections::<1>().rebuild(&store).await.unwrap();
            assert_eq!(rebuilt.failed, 0, "{:?}", rebuilt.failures);
            times += 1;
        }
    };
    tokio::join!(writing, rebuilding);
    for number in 0..ORDERS_PLACED {
        becomes(&store, &format!("o-{number}"), expected(11, 1)).await;
    }
    let before = rows(&store).await;
    for app in &running {
        assert!(letters(app).await.is_empty());
        app.stop().await;
    }
    let store = SqlStore::connect(fresh.url()).await.unwrap();
    for table in ["order_rows", "order_notes", "projections"] {
        store.own_execute("test.wipe", &format!("DELETE FROM {table}"), Vec::new()).await.unwrap();
    }
    projections::<1>().rebuild(&store).await.unwrap();
    assert_eq!(rows(&store).await, before);
    store.close().await;
}

async fn a_rebuild_keeps_what_came_after_it_had_looked(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    is_made(&app).await;
    place(&app, "o-1", 2).await;
    becomes(app.store(), "o-1", expected(2, 1)).await;
    // It has seen three facts, and stands still before it opens its transaction.
    let gate = Gate::default();
    let probe = Arc::new(ProbeAt::new("begin", gate.clone()));
    probe.arm(1);
    let url = fresh.url().to_owned();
    // On a thread of its own: what stands still on one of the others may keep back a task that was about to run there.
    let rebuilding = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = SqlStore::connect(&url).await.unwrap().with_probe(probe);
            let rebuilt = projections::<1>().rebuild(&store).await.unwrap();
            store.close().await;
            rebuilt
        })
    });
    gate.reached().await;
    send(&app, "o-1", OrderCommand::Note).await;
    becomes(app.store(), "o-1", expected(3, 1)).await;
    gate.open();
    assert_eq!(rebuilding.await.unwrap().facts, 4);
    assert_eq!(rows(app.store()).await["o-1"], expected(3, 1));
    app.stop().await;
}

async fn a_rebuild_that_ends_anywhere_leaves_each_aggregate_whole(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).without_workers().start().await.unwrap();
    for id in ["o-1", "o-2", "o-3"] {
        place(&app, id, 2).await;
    }
    let store = app.store();
    projections::<1>().rebuild(store).await.unwrap();
    let mut stops = 0;
    let ended = loop {
        let raised = projections::<2>();
        let mut rebuild = std::pin::pin!(raised.rebuild(store));
        let mut polls = 0;
        // Dropped where it waits.
        let ended = poll_fn(|context| {
            if polls == stops {
                return Poll::Ready(None);
            }
            polls += 1;
            rebuild.as_mut().poll(context).map(Some)
        });
        let ended = ended.await;
        let rows = rows(store).await;
        let old = rows.values().filter(|row| **row == expected(2, 1)).count();
        let new = rows.values().filter(|row| **row == expected(2, 2)).count();
        assert_eq!((old + new, rows.len()), (3, 3), "after {stops} steps: {rows:?}");
        match ended {
            Some(ended) => break ended.unwrap(),
            None => stops += 1,
        }
    };
    assert!(ended.failed == 0 && stops > 5, "it was stopped {stops} times");
    assert!(rows(store).await.values().all(|row| *row == expected(2, 2)));
    app.stop().await;
}

async fn a_higher_version_makes_all_anew_and_a_lower_one_leaves_it_alone(fresh: &Fresh) {
    let ids = ["o-1", "o-2", "o-3", "o-4"];
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    for id in ids {
        place(&app, id, 3).await;
        becomes(app.store(), id, expected(3, 1)).await;
    }
    is_made(&app).await;
    app.stop().await;

    let app = with::<2>(fresh, &["order.*"]).start().await.unwrap();
    // Beside what is going on: this one comes from the consumer, or from the walk.
    send(&app, "o-2", OrderCommand::Note).await;
    let status = is_made(&app).await;
    assert_eq!((status.version, status.progress.current), (2, 4), "{status:?}");
    for (id, notes) in ids.into_iter().zip([3, 4, 3, 3]) {
        becomes(app.store(), id, expected(notes, 2)).await;
    }
    app.stop().await;

    let older = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    assert!(is_made(&older).await.progress.made_by == 2);
    send(&older, "o-1", OrderCommand::Note).await;
    // One that nobody has made yet is not for it either: the newer one would not look for it again.
    place(&older, "o-5", 0).await;
    // A third one may be with them: that of o-2, if the walk was quicker than its delivery.
    let aside = eventually("both are set aside", || async {
        let letters = letters(&older).await;
        assert!(letters.iter().all(|reason| reason == "projection-newer"), "{letters:?}");
        (letters.len() >= 2).then_some(())
    });
    aside.await;
    // Nor does it make them anew by hand.
    let rebuilt = projections::<1>().rebuild(older.store()).await.unwrap();
    assert_eq!((rebuilt.facts, rebuilt.failed), (0, 0), "{rebuilt:?}");
    let left = rows(older.store()).await;
    assert!(left["o-1"] == expected(3, 2) && !left.contains_key("o-5"), "{left:?}");
    older.stop().await;
    let app = with::<2>(fresh, &["order.*"]).start().await.unwrap();
    becomes(app.store(), "o-1", expected(4, 2)).await;
    becomes(app.store(), "o-5", expected(0, 2)).await;
    app.stop().await;
}

async fn a_long_aggregate_is_read_by_pages(fresh: &Fresh) {
    const FACTS: u64 = 20_000;
    let app = Towpath::builder()
        .store(fresh.url())
        .aggregate::<Order>()
        .tables(&[*OrderRow::TABLE, *NoteRow::TABLE])
        .without_workers()
        .start()
        .await
        .unwrap();
    place(&app, "o-1", 0).await;
    let mut noted = FACTS - 1;
    while noted > 0 {
        let some = noted.min(1_000);
        let append = || Append::of::<Order>("o-1").events((0..some).map(|_| OrderEvent::Noted));
        let appended = app.transact(async |mut tx| {
            tx.append(append()).await?;
            Ok::<_, StoreError>(())
        });
        appended.await.unwrap();
        noted -= some;
    }
    let probe = Arc::new(CountingProbe::new());
    let rebuilt = projections::<1>().rebuild(&app.store().with_probe(probe.clone())).await.unwrap();
    assert_eq!(rebuilt.facts, FACTS);
    let statements = probe.take();
    let count = |name: &str| statements.iter().filter(|statement| **statement == name).count();
    // 500 facts at a time, whose rows are read and written once.
    assert_eq!((count("events.of"), count("projection.rows"), count("projection.put")), (40, 40, 80));
    assert_eq!(rows(app.store()).await["o-1"], expected(FACTS - 1, 1));
    app.stop().await;
}

async fn a_fact_that_cannot_be_projected_holds_up_no_other(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    is_made(&app).await;
    let sku = |sku: &str| OrderCommand::Place { sku: sku.to_owned() };
    send(&app, "o-1", sku("poison")).await;
    place(&app, "o-2", 2).await;
    send(&app, "o-1", OrderCommand::Note).await;
    becomes(app.store(), "o-2", expected(2, 1)).await;
    let failures = eventually("it is shown", || async {
        Some(status(&app).await.progress.failures).filter(|failures| failures.len() == 1)
    });
    let failures = failures.await;
    let failure = (failures[0].aggregate_id.as_str(), failures[0].version, failures[0].reason.as_str());
    assert_eq!(failure, ("o-1", 0, "poison"));
    // It is in nobody's way: no letter waits for an operator.
    eventually("all were taken", || async {
        let sql = "SELECT COUNT(*) AS taken FROM inbox WHERE status = 'HANDLED'";
        let taken = app.store().own_rows("test.taken", sql, Vec::new()).await.unwrap();
        (taken[0].count("taken").unwrap() == 5).then_some(())
    })
    .await;
    assert!(letters(&app).await.is_empty());
    app.stop().await;

    // Nor in a rebuild: neither an error nor a panic.
    let app = with::<1>(fresh, &["order.*"]).without_workers().start().await.unwrap();
    send(&app, "o-0", sku("bug")).await;
    send(&app, "o-00", sku("slip")).await;
    let rebuilt = projections::<1>().rebuild(app.store()).await.unwrap();
    let codes: Vec<_> =
        rebuilt.failures.iter().map(|failed| (failed.aggregate_id.as_str(), failed.error.code())).collect();
    let panicked = "handler-panicked";
    assert_eq!(codes, [("o-0", panicked), ("o-00", panicked), ("o-1", "poison")]);
    assert_eq!((rebuilt.failed, rebuilt.aggregates["orders"]), (3, 1));
    assert_eq!(rows(app.store()).await, BTreeMap::from([("o-2".to_owned(), expected(2, 1))]));
    app.stop().await;

    // Put right, it is made by itself.
    let app = with::<2>(fresh, &["order.*"]).start().await.unwrap();
    becomes(app.store(), "o-1", expected(1, 2)).await;
    becomes(app.store(), "o-0", expected(0, 2)).await;
    becomes(app.store(), "o-00", expected(0, 2)).await;
    let status = is_made(&app).await;
    assert!(status.progress.failures.is_empty(), "{status:?}");
    send(&app, "o-1", OrderCommand::Note).await;
    becomes(app.store(), "o-1", expected(2, 2)).await;
    app.stop().await;
}

async fn rows_that_nobody_knows_of_are_made_anew_in_the_background(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    place(&app, "o-1", 2).await;
    becomes(app.store(), "o-1", expected(2, 1)).await;
    app.stop().await;
    // As if another program had made them, and other ones of nobody, more than are looked at together.
    let store = SqlStore::connect(fresh.url()).await.unwrap();
    for sql in ["DELETE FROM projections", "UPDATE order_rows SET digest = 7, made_by = 0"] {
        store.own_execute("test.before", sql, Vec::new()).await.unwrap();
    }
    let mut transaction = store.open_transaction().await.unwrap();
    let stray = |number: u64| {
        vec![format!("n-{number:04}").into(), 0_u64.into(), 0_u64.into(), 0_u64.into(), None::<&str>.into()]
    };
    transaction
        .own_tables()
        .put("test.strays", OrderRow::TABLE, (0..520).map(stray).collect())
        .await
        .unwrap();
    transaction.finish().await.unwrap();
    store.close().await;
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    let status = is_made(&app).await;
    assert_eq!((status.progress.aggregates, status.progress.current), (1, 1), "{status:?}");
    let known = BTreeMap::from([("o-1".to_owned(), expected(2, 1))]);
    assert_eq!(rows(app.store()).await, known);

    // Of a log that was brought back to before their facts: those that the projection knows of are forgotten by hand.
    let mut transaction = app.store().open_transaction().await.unwrap();
    transaction.own_tables().put("test.ghosts", OrderRow::TABLE, vec![stray(3), stray(4)]).await.unwrap();
    let ghosts = [("n-0003".to_owned(), 4), ("n-0004".to_owned(), 1)];
    transaction.note_projected("orders", "order", 1, &ghosts).await.unwrap();
    transaction.finish().await.unwrap();
    assert_eq!(projections::<1>().rebuild(app.store()).await.unwrap().failed, 0);
    assert_eq!((rows(app.store()).await, status_of(&app).await), (known, (1, 1)));
    app.stop().await;
}

async fn status_of(app: &Towpath) -> (u64, u64) {
    let progress = status(app).await.progress;
    (progress.aggregates, progress.current)
}

async fn more_rows_are_asked_for_than_a_statement_can_name(fresh: &Fresh) {
    let app = with::<1>(fresh, &["order.*"]).start().await.unwrap();
    let row = |number: u64| {
        vec![format!("n-{number:04}").into(), 0_u64.into(), 0_u64.into(), 0_u64.into(), None::<&str>.into()]
    };
    let keys: Vec<_> = (0..1_200).map(|number: u64| vec![format!("n-{number:04}").into()]).collect();
    let mut transaction = app.store().open_transaction().await.unwrap();
    transaction.own_tables().put("test.rows", OrderRow::TABLE, (0..1_250).map(row).collect()).await.unwrap();
    assert_eq!(transaction.rows_by_key(OrderRow::TABLE, &keys).await.unwrap().len(), 1_200);
    transaction.delete_by_key(OrderRow::TABLE, &keys).await.unwrap();
    transaction.finish().await.unwrap();
    assert_eq!(rows(app.store()).await.len(), 50, "the others are still there");
    app.stop().await;
}

/// A projection whose table does not name its aggregates.
struct Nameless;

impl Projection for Nameless {
    const NAME: &'static str = "nameless";
    const VERSION: u32 = 1;
    const KIND: &'static str = "order";
    type Event = OrderEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[OwnedTable::of::<OrderRow>("nobody")] }
    }

    fn project(&self, _: &Fact<OrderEvent>, _: &mut Rows) -> Result<(), HandlerError> {
        Ok(())
    }
}

async fn flaws_are_told_at_the_start(fresh: &Fresh) {
    let refused = async |projections: Projections| {
        let builder = fresh.builder().tables(&[*OrderRow::TABLE]).projections(projections);
        builder.start().await.err().expect("a refusal").to_string()
    };
    let twice = Projections::of("orders", "twice").with(Orders::<1>).with(Orders::<2>);
    assert!(refused(twice).await.contains("two projections are called orders"));
    let zero = Projections::of("orders", "zero").with(Orders::<0>);
    assert!(refused(zero).await.contains("version 0"));
    let nameless = Projections::of("orders", "nameless").with(Nameless);
    assert!(refused(nameless).await.contains("order_rows has no column nobody"));
}
