//! Rows of an application's own tables: what is written is read, on every database alike.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use chrono::{DateTime, Utc};
use support::Fresh;
use towpath::ports::store::StoreError;
use towpath::tables::{Json, Listing, Numbers, Row, StoredName};
use towpath::{Coded as _, Towpath, chrono};
use uuid::Uuid;

on_every_database!(
    a_row_comes_back_as_it_was_written,
    a_row_without_anything_comes_back_without_it,
    a_row_is_inserted_once_and_another_with_its_number_is_refused,
    what_is_put_replaces_and_what_is_older_stays,
    a_table_that_is_all_key_is_written_twice_without_harm,
    numbers_that_many_add_at_once_are_all_counted,
    numbers_are_given_once_whoever_takes_them,
    a_name_that_nobody_has_is_no_colour,
    a_row_is_locked_or_written_by_one_of_many,
    rows_are_chosen_by_what_stands_behind_their_table,
    what_is_no_column_is_refused_before_the_database_sees_it,
    what_is_rolled_back_was_never_there,
    a_page_ends_by_rows_or_by_bytes_and_says_whether_there_is_more,
    json_is_read_as_its_type_and_written_back_to_the_letter,
);

/// A colour by its name: a type of the application's own.
#[derive(Debug, Clone, Copy, PartialEq, StoredName)]
enum Colour {
    #[serde(rename = "red")]
    Red,
    #[serde(rename = "green")]
    Green,
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

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "counters")]
struct Counter {
    #[row(key, name = 16)]
    kind: String,
    next_number: i64,
}

#[derive(Debug, Clone, PartialEq, Row)]
#[row(table = "baskets")]
struct Basket {
    #[row(key)]
    basket_id: i64,
    prices: Json<Vec<f64>>,
    spare: Option<Json<Vec<f64>>>,
}

async fn app(fresh: &Fresh) -> Towpath {
    let tables =
        [*Bicycle::TABLE, *Word::TABLE, *Till::TABLE, *Shown::TABLE, *Counter::TABLE, *Basket::TABLE];
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

/// Two processes, as far as the numbers can tell: each has blocks of its own.
async fn numbers_are_given_once_whoever_takes_them(fresh: &Fresh) {
    let app = app(fresh).await;
    let kind = || "orders".to_owned();
    insert(&app, &Counter { kind: kind(), next_number: 901 }).await.unwrap();
    let (one, other) = (Numbers::<Counter>::of("next_number", 3), Numbers::<Counter>::of("next_number", 3));
    let mut given = Vec::new();
    for _ in 0..4 {
        given.push(one.next(&app, &kind()).await.unwrap());
        given.push(other.next(&app, &kind()).await.unwrap());
    }
    assert_eq!(given[..4], [901, 904, 902, 905], "from blocks of three");
    given.sort_unstable();
    assert!(given.windows(2).all(|pair| pair[0] < pair[1]), "each once: {given:?}");
    let nobodys = one.next(&app, &"products".to_owned()).await.unwrap_err();
    assert_eq!(nobodys.code(), "corrupt", "a row that is made anew would begin anew");
    assert_eq!(app.find::<Counter>(&"products".to_owned()).await.unwrap(), None);
    app.stop().await;
}

async fn a_name_that_nobody_has_is_no_colour(fresh: &Fresh) {
    assert_eq!(Colour::ALL.map(Colour::as_str), ["red", "green"]);
    assert_eq!((Colour::named("green"), Colour::named("Green")), (Some(Colour::Green), None));
    let app = app(fresh).await;
    insert(&app, &bicycle(1)).await.unwrap();
    let painted = app.transact(async |mut tx| {
        let sql = "UPDATE bicycles SET repaint = ?";
        tx.own_tables().execute("paint", sql, vec![Colour::Green.into()]).await
    });
    assert_eq!(painted.await.unwrap(), 1);
    assert_eq!(app.find::<Bicycle>(&1).await.unwrap().unwrap().repaint, Some(Colour::Green));
    app.transact(async |mut tx| tx.execute("UPDATE bicycles SET colour = ?", &["mauve"]).await)
        .await
        .unwrap();
    assert_eq!(app.find::<Bicycle>(&1).await.unwrap_err().code(), "corrupt");
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
    let values = || vec![Colour::Green.into(), 0_i64.into(), 1_i64.into()];
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

async fn a_page_ends_by_rows_or_by_bytes_and_says_whether_there_is_more(fresh: &Fresh) {
    let app = app(fresh).await;
    // Fifty letters of two bytes each.
    let all: Vec<Shown> =
        (1..=5).map(|id| Shown { shown_id: id, version: id % 2, text: "ä".repeat(50) }).collect();
    app.transact(async |mut tx| tx.put(&all).await).await.unwrap();
    let page = async |listing: Listing<'static>| {
        let page = app.page::<Shown>("test.page", listing).await.unwrap();
        let next = page.next(|last| last.shown_id);
        (page.map(|row| row.shown_id).rows, next)
    };
    let by = |rows| Listing::by("shown_id", rows);
    assert_eq!(page(by(9)).await, (vec![1, 2, 3, 4, 5], None));
    assert_eq!(page(by(5)).await, (vec![1, 2, 3, 4, 5], Some(5)), "there may be more");
    assert_eq!(page(by(2).behind(Some(1_i64))).await, (vec![2, 3], Some(3)));
    assert_eq!(page(by(9).behind(Some(4_i64)).last_first()).await, (vec![3, 2, 1], None));
    assert_eq!(page(by(9).only("version", Some(1_i64)).behind(None::<i64>)).await, (vec![1, 3, 5], None));
    assert_eq!(page(by(9).within(250)).await, (vec![1, 2], Some(2)), "bytes, not letters");
    assert_eq!(page(by(9).within(1)).await, (vec![1], Some(1)), "one at least");
    assert_eq!(page(by(9).within(500)).await, (vec![1, 2, 3, 4, 5], None));
    assert_eq!(page(by(5).within(500)).await, (vec![1, 2, 3, 4, 5], Some(5)));
    assert_eq!(page(by(9).behind(Some(5_i64)).within(1)).await, (vec![], None));
    for wrong in [by(1).only("shown_id = 1 OR 1", Some(1_i64)), Listing::by("shown_id; --", 1)] {
        let refused = app.page::<Shown>("test.page", wrong).await.unwrap_err();
        assert_eq!(refused.code(), "store-refused", "{refused:?}");
    }
    app.stop().await;
}

async fn json_is_read_as_its_type_and_written_back_to_the_letter(fresh: &Fresh) {
    let app = app(fresh).await;
    let basket = Basket { basket_id: 1, prices: Json::of(vec![1.5, 2.0]).unwrap(), spare: None };
    assert!(insert(&app, &basket).await.unwrap());
    assert_eq!(app.find::<Basket>(&1).await.unwrap(), Some(basket));
    // As another program has written it.
    let sql = "UPDATE baskets SET prices = '[ 88.50 ]', spare = '[]'";
    app.store().own_execute("test.other", sql, Vec::new()).await.unwrap();
    let found = app.find::<Basket>(&1).await.unwrap().unwrap();
    assert_eq!((found.prices.as_slice(), found.spare.as_ref().unwrap().len()), ([88.5].as_slice(), 0));
    app.transact(async |mut tx| tx.put(std::slice::from_ref(&found)).await).await.unwrap();
    let kept = app.find::<Basket>(&1).await.unwrap().unwrap();
    assert_eq!(kept.prices.text(), "[ 88.50 ]");
    assert_eq!(kept.prices.into_value(), [88.5]);
    app.store().own_execute("test.other", "UPDATE baskets SET prices = '{}'", Vec::new()).await.unwrap();
    assert_eq!(app.find::<Basket>(&1).await.unwrap_err().code(), "corrupt");
    app.stop().await;
}
