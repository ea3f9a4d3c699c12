//! Rows of an application's own tables: what is written is read, on every database alike.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use chrono::{DateTime, Utc};
use support::Fresh;
use towpath::ports::store::{StoreError, StoreResult};
use towpath::tables::{ColumnKind, ColumnValue, Record, Row, Value};
use towpath::{Towpath, chrono};
use uuid::Uuid;

on_every_database!(
    a_row_comes_back_as_it_was_written,
    a_row_without_anything_comes_back_without_it,
    a_row_is_inserted_once_and_another_with_its_number_is_refused,
    what_is_put_replaces_and_what_is_older_stays,
    a_table_that_is_all_key_is_written_twice_without_harm,
    numbers_that_many_add_at_once_are_all_counted,
    a_row_is_locked_or_written_by_one_of_many,
    rows_are_chosen_by_what_stands_behind_their_table,
    what_is_no_column_is_refused_before_the_database_sees_it,
    what_is_rolled_back_was_never_there,
);

/// A colour by its name: a type of the application's own.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Colour {
    Red,
    Green,
}

impl ColumnValue for Colour {
    const KIND: ColumnKind = ColumnKind::Name(16);

    fn write(&self) -> Value<'_> {
        if *self == Self::Red { "red".into() } else { "green".into() }
    }

    fn read(record: &Record, column: &str) -> StoreResult<Self> {
        let named =
            |name: &str| [("red", Self::Red), ("green", Self::Green)].into_iter().find(|one| one.0 == name);
        record.named(column, |name| named(name).map(|found| found.1))
    }
}

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "bicycles", unique(bicycles_frame_no(frame_no)), index(bicycles_colour(colour, bicycle_id)))]
struct Bicycle {
    #[row(key)]
    bicycle_id: i64,
    #[row(name = 32)]
    frame_no: String,
    colour: Colour,
    #[row(column = "price_cents")]
    price: u64,
    is_sold: bool,
    label: Uuid,
    note: Option<String>,
    #[row(json)]
    parts: Option<String>,
    repaint: Option<Colour>,
    owner_id: Option<i64>,
    seal: Option<Uuid>,
    picture: Option<Vec<u8>>,
    sold_at: Option<DateTime<Utc>>,
    made_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "bicycle_words", append_only)]
struct Word {
    #[row(key, name = 64)]
    word: String,
    #[row(key)]
    bicycle_id: i64,
}

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "tills")]
struct Till {
    #[row(key, name = 16)]
    town: String,
    #[row(key)]
    till_id: u32,
    #[row(count)]
    coins: i64,
    #[row(count)]
    notes: i64,
    closed_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "shown")]
struct Shown {
    #[row(key)]
    shown_id: i64,
    version: i64,
    text: String,
}

async fn app(fresh: &Fresh) -> Towpath {
    let tables = [*Bicycle::TABLE, *Word::TABLE, *Till::TABLE, *Shown::TABLE];
    fresh.builder().tables(&tables).without_workers().start().await.unwrap()
}

fn bicycle(bicycle_id: i64) -> Bicycle {
    Bicycle {
        bicycle_id,
        frame_no: format!("F-{bicycle_id}"),
        colour: Colour::Red,
        price: 8850,
        is_sold: false,
        label: Uuid::from_u128(7),
        note: None,
        parts: None,
        repaint: None,
        owner_id: None,
        seal: None,
        picture: None,
        sold_at: None,
        made_at: "2026-02-04T10:30:00.123456Z".parse().unwrap(),
    }
}

async fn insert(app: &Towpath, row: &impl Row) -> Result<bool, StoreError> {
    app.transact(async |mut tx| tx.insert(row).await).await
}

async fn a_row_comes_back_as_it_was_written(fresh: &Fresh) {
    let app = app(fresh).await;
    let whole = Bicycle {
        price: u64::try_from(i64::MAX).unwrap(),
        is_sold: true,
        note: Some("schön, 自転車 \u{1F6B2} 'quoted' \\ ? $1".to_owned()),
        parts: Some(r#"{"bell": 88.50}"#.to_owned()),
        repaint: Some(Colour::Green),
        owner_id: Some(-5),
        seal: Some(Uuid::from_u128(u128::MAX)),
        picture: Some(vec![0, 255, 39, 0]),
        sold_at: Some("1969-12-31T23:59:59.999999Z".parse().unwrap()),
        // Finer than what is kept: microseconds.
        made_at: "2026-02-04T10:30:00.123456789Z".parse().unwrap(),
        ..bicycle(1)
    };
    assert!(insert(&app, &whole).await.unwrap());
    let kept = Bicycle { made_at: "2026-02-04T10:30:00.123456Z".parse().unwrap(), ..whole };
    assert_eq!(app.find::<Bicycle>(&1).await.unwrap().as_ref(), Some(&kept));
    assert_eq!(app.find::<Bicycle>(&2).await.unwrap(), None);
    let empty = Bicycle { note: Some(String::new()), picture: Some(Vec::new()), ..bicycle(2) };
    insert(&app, &empty).await.unwrap();
    assert_eq!(app.find(&2).await.unwrap(), Some(empty), "nothing in it is not the same as null");
    let far = Bicycle { sold_at: Some("2345-06-07T08:09:10.000001Z".parse().unwrap()), ..bicycle(3) };
    insert(&app, &far).await.unwrap();
    assert_eq!(app.find(&3).await.unwrap(), Some(far));
    app.stop().await;
}

async fn a_row_without_anything_comes_back_without_it(fresh: &Fresh) {
    let app = app(fresh).await;
    insert(&app, &bicycle(1)).await.unwrap();
    assert_eq!(app.find(&1).await.unwrap(), Some(bicycle(1)));
    let sql = "SELECT bicycle_id FROM bicycles WHERE note IS NULL AND parts IS NULL AND repaint IS NULL \
        AND owner_id IS NULL AND seal IS NULL AND picture IS NULL AND sold_at IS NULL";
    assert_eq!(app.store().own_rows("test.nulls", sql, Vec::new()).await.unwrap().len(), 1);
    // What cannot be null is not taken for something else.
    let unreadable = app.query::<Bicycle>(
        "test.strange",
        "SELECT bicycle_id, frame_no, 'blue' AS colour, price_cents, is_sold, label, note, parts, repaint, owner_id, \
         seal, picture, sold_at, made_at FROM bicycles",
        Vec::new(),
    );
    assert_eq!(unreadable.await.unwrap_err().code(), "corrupt");
    app.stop().await;
}

async fn a_row_is_inserted_once_and_another_with_its_number_is_refused(fresh: &Fresh) {
    let app = app(fresh).await;
    let racing = (0..8_i64).map(|owner| {
        let app = app.clone();
        tokio::spawn(async move { insert(&app, &Bicycle { owner_id: Some(owner), ..bicycle(1) }).await })
    });
    let mut first = 0;
    for one in racing.collect::<Vec<_>>() {
        first += i32::from(one.await.unwrap().unwrap());
    }
    assert_eq!(first, 1);
    let same_number = Bicycle { frame_no: "F-1".to_owned(), ..bicycle(2) };
    let refused = insert(&app, &same_number).await.unwrap_err();
    assert!(towpath::is_unique_violation(&refused), "{refused:?}");
    let gone = app.transact(async |mut tx| {
        let first = tx.delete::<Bicycle>(&1).await?;
        Ok::<_, StoreError>((first, tx.delete::<Bicycle>(&1).await?))
    });
    assert_eq!(gone.await.unwrap(), (true, false));
    assert!(insert(&app, &same_number).await.unwrap(), "the number is free again");
    app.stop().await;
}

async fn what_is_put_replaces_and_what_is_older_stays(fresh: &Fresh) {
    let app = app(fresh).await;
    let shown = |shown_id, version, text: &str| Shown { shown_id, version, text: text.to_owned() };
    let put = async |rows: Vec<Shown>, newer: bool| {
        let rows = &rows;
        let putting = app.transact(async |mut tx| match newer {
            true => tx.put_newer(rows, "version").await,
            false => tx.put(rows).await,
        });
        putting.await.unwrap();
        app.rows::<Shown>("test.shown", "ORDER BY shown_id", Vec::new()).await.unwrap()
    };
    assert_eq!(put(Vec::new(), false).await, []);
    put(vec![shown(1, 5, "a"), shown(2, 5, "b")], true).await;
    let after = put(vec![shown(1, 4, "older"), shown(2, 6, "newer"), shown(3, 1, "new")], true).await;
    assert_eq!(after, [shown(1, 5, "a"), shown(2, 6, "newer"), shown(3, 1, "new")]);
    let after = put(vec![shown(2, 1, "whatever it was")], false).await;
    assert_eq!(after[1], shown(2, 1, "whatever it was"));
    // More than one statement takes.
    let many: Vec<Shown> = (1..=20_000).map(|number| shown(number, 9, "many")).collect();
    assert_eq!(put(many, true).await.len(), 20_000);
    app.stop().await;
}

async fn a_table_that_is_all_key_is_written_twice_without_harm(fresh: &Fresh) {
    let app = app(fresh).await;
    let words = ["red", "Red", "rot"].map(|word| Word { word: word.to_owned(), bicycle_id: 1 });
    for _ in 0..2 {
        app.transact(async |mut tx| tx.put(&words).await).await.unwrap();
    }
    assert!(!insert(&app, &words[0]).await.unwrap());
    assert!(insert(&app, &Word { bicycle_id: 2, ..words[0].clone() }).await.unwrap());
    let key = ("Red".to_owned(), 1);
    assert_eq!(app.find::<Word>(&key).await.unwrap().as_ref(), Some(&words[1]), "byte for byte");
    assert!(app.transact(async |mut tx| tx.delete::<Word>(&key).await).await.unwrap());
    assert_eq!(app.rows::<Word>("test.words", "ORDER BY word", Vec::new()).await.unwrap().len(), 3);
    app.stop().await;
}

async fn numbers_that_many_add_at_once_are_all_counted(fresh: &Fresh) {
    let app = app(fresh).await;
    let key = || ("Basel".to_owned(), 3);
    let adding = (0..8_i64).map(|_| {
        let app = app.clone();
        tokio::spawn(async move {
            let mut last = 0;
            for _ in 0..5 {
                last = app.transact(async |mut tx| tx.add::<Till>(&key(), "coins", 2).await).await.unwrap();
            }
            last
        })
    });
    let mut most = 0;
    for one in adding.collect::<Vec<_>>() {
        most = most.max(one.await.unwrap());
    }
    assert_eq!(most, 80, "whoever was last was answered all of it");
    let notes = app.transact(async |mut tx| {
        tx.add::<Till>(&key(), "notes", 1).await?;
        tx.add::<Till>(&key(), "notes", -3).await
    });
    assert_eq!(notes.await.unwrap(), -2);
    let till = app.find::<Till>(&key()).await.unwrap().unwrap();
    assert_eq!((till.coins, till.notes, till.closed_at), (80, -2, None));
    app.stop().await;
}

async fn a_row_is_locked_or_written_by_one_of_many(fresh: &Fresh) {
    let app = app(fresh).await;
    let counting = (0..8_i64).map(|number| {
        let app = app.clone();
        tokio::spawn(async move {
            // Whoever is first writes the row; all of them count on it, one after the other.
            let counted = app.transact(async |mut tx| {
                let first = Bicycle { owner_id: Some(number), price: 0, ..bicycle(1) };
                let held = tx.lock_or_insert(&first).await?;
                tx.put(&[Bicycle { price: held.price + 1, ..held }]).await
            });
            counted.await.unwrap();
        })
    });
    for one in counting.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert_eq!(app.find::<Bicycle>(&1).await.unwrap().unwrap().price, 8);
    // The number of another row: nothing is locked in its place.
    let stray = Bicycle { frame_no: "F-1".to_owned(), ..bicycle(2) };
    let refused = app.transact(async |mut tx| tx.lock_or_insert(&stray).await).await.unwrap_err();
    assert_eq!(refused.code(), "store-refused", "{refused:?}");
    app.stop().await;
}

async fn rows_are_chosen_by_what_stands_behind_their_table(fresh: &Fresh) {
    let app = app(fresh).await;
    let all: Vec<Bicycle> = (1..=4)
        .map(|id| Bicycle { colour: [Colour::Red, Colour::Green][(id % 2) as usize], ..bicycle(id) })
        .collect();
    app.transact(async |mut tx| tx.put(&all).await).await.unwrap();
    let chosen = "WHERE colour = ? AND bicycle_id > ? ORDER BY bicycle_id LIMIT ?";
    let values = || vec![Colour::Green.write(), 0_i64.into(), 1_i64.into()];
    assert_eq!(app.rows::<Bicycle>("test.green", chosen, values()).await.unwrap(), all[..1]);
    let listed =
        app.listing().await.unwrap().own_tables().rows_of::<Bicycle>("test.green", chosen, values()).await;
    assert_eq!(listed.unwrap(), all[..1]);
    let sql = format!("SELECT {} FROM bicycles b WHERE b.bicycle_id = ?", Bicycle::TABLE.listed("b."));
    let found = app.transact(async |mut tx| {
        let found = tx.query::<Bicycle>("test.one", &sql, vec![2_i64.into()]).await?;
        Ok::<_, StoreError>((found, tx.rows::<Bicycle>("test.all", "", Vec::new()).await?.len()))
    });
    assert_eq!(found.await.unwrap(), (vec![all[1].clone()], 4));
    app.stop().await;
}

async fn what_is_no_column_is_refused_before_the_database_sees_it(fresh: &Fresh) {
    let app = app(fresh).await;
    let key = ("Basel".to_owned(), 1);
    let refused = app.transact(async |mut tx| tx.add::<Till>(&key, "coins = 0, notes", 1).await).await;
    let refused = refused.unwrap_err();
    assert!(towpath::with_causes(&refused).contains("tills has no column coins = 0, notes"), "{refused:?}");
    // A row that could not be begun by its number alone.
    let refused = app.transact(async |mut tx| tx.add::<Shown>(&1, "version", 1).await).await.unwrap_err();
    assert!(towpath::with_causes(&refused).contains("text needs a value"), "{refused:?}");
    let refused = app.transact(async |mut tx| tx.put_newer::<Shown>(&[], "versions").await).await;
    assert_eq!(refused.unwrap_err().code(), "store-refused");
    app.stop().await;
}

async fn what_is_rolled_back_was_never_there(fresh: &Fresh) {
    let app = app(fresh).await;
    let undone = app.transact(async |mut tx| {
        assert!(tx.insert(&bicycle(1)).await?);
        assert!(!tx.insert(&bicycle(1)).await?, "its own, too");
        tx.add::<Till>(&("Basel".to_owned(), 1), "coins", 1).await?;
        assert_eq!(tx.lock::<Bicycle>(&1).await?, Some(bicycle(1)));
        Err::<(), _>(StoreError::Missing { what: "reason", name: "none".to_owned() })
    });
    assert_eq!(undone.await.unwrap_err().code(), "missing");
    assert_eq!(app.find::<Bicycle>(&1).await.unwrap(), None);
    assert!(app.rows::<Till>("test.tills", "", Vec::new()).await.unwrap().is_empty());
    app.stop().await;
}
