//! Tables of an application by versions: brought to today's from wherever a database is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use support::Fresh;
use support::delivery::execute;
use towpath::ports::store::StoreError;
use towpath::tables::Step::{AddColumns, AddIndex, Create, DropIndex, Run, Sql};
use towpath::tables::{OwnTables, Row, Version, Versions};
use towpath::{Coded as _, StartError, Towpath};

on_every_database!(
    a_fresh_database_gets_all_versions_once,
    an_older_database_is_brought_to_today,
    many_that_start_at_once_take_turns,
    a_version_that_failed_is_applied_by_the_next_start,
    a_table_that_was_never_recorded_is_somebody_elses_unless_a_start_was_cut_short,
    what_could_never_be_applied_is_refused_before_anything_is_made,
);

/// As it was first made.
mod first {
    use towpath::tables::Row;

    #[derive(Row)]
    #[row(table = "people", index(people_town(town)))]
    pub(crate) struct Person {
        #[row(key)]
        pub(crate) person_id: i64,
        #[row(name = 64)]
        pub(crate) town: String,
    }
}

/// As it is today.
#[derive(Debug, PartialEq, Row)]
#[row(table = "people", index(people_town_name(town, name)))]
struct Person {
    #[row(key)]
    person_id: i64,
    #[row(name = 64)]
    town: String,
    #[row(name = 64)]
    name: Option<String>,
    #[row(count)]
    visits: i64,
}

#[derive(Debug, Row)]
#[row(table = "greetings", append_only)]
struct Greeting {
    #[row(key)]
    greeting_id: i64,
    text: String,
}

const FIRST: &[Version] = &[Version(1, &[Create(first::Person::TABLE)])];

const TODAY: &[Version] = &[
    Version(1, &[Create(Person::TABLE)]),
    Version(
        2,
        &[
            AddColumns(Person::TABLE, &["name", "visits"]),
            AddIndex(Person::TABLE, "people_town_name"),
            DropIndex(Person::TABLE, "people_town"),
            Create(Greeting::TABLE),
            Run(|tables| Box::pin(greet(tables))),
        ],
    ),
    Version(
        3,
        &[Sql {
            sqlite: "UPDATE people SET name = 'sqlite'",
            postgres: "UPDATE people SET name = 'postgres'",
            mysql: "UPDATE people SET name = 'mysql'",
        }],
    ),
];

async fn greet(tables: &mut OwnTables<'_>) -> Result<(), StoreError> {
    tables.insert(&Greeting { greeting_id: 1, text: "hello".to_owned() }).await.map(|_| ())
}

async fn start(fresh: &Fresh, versions: &'static [Version]) -> Result<Towpath, StartError> {
    fresh.builder().without_workers().versions(Versions::of("town", versions)).start().await
}

async fn applied(app: &Towpath) -> Vec<i64> {
    let sql = "SELECT version FROM town_migrations ORDER BY version";
    let rows = app.store().own_rows("test.versions", sql, Vec::new()).await.unwrap();
    rows.iter().map(|row| row.long("version").unwrap()).collect()
}

async fn a_fresh_database_gets_all_versions_once(fresh: &Fresh) {
    for _ in 0..2 {
        let app = start(fresh, TODAY).await.unwrap();
        assert_eq!(applied(&app).await, [1, 2, 3]);
        assert_eq!(app.find::<Greeting>(&1).await.unwrap().unwrap().text, "hello");
        app.stop().await;
    }
    // An older build starts beside it, and leaves it as it is.
    let app = start(fresh, FIRST).await.unwrap();
    assert_eq!(applied(&app).await, [1, 2, 3]);
    app.stop().await;
}

async fn an_older_database_is_brought_to_today(fresh: &Fresh) {
    let app = start(fresh, FIRST).await.unwrap();
    let person = first::Person { person_id: 1, town: "Basel".to_owned() };
    app.transact(async |mut tx| tx.insert(&person).await).await.unwrap();
    app.stop().await;
    let app = start(fresh, TODAY).await.unwrap();
    assert_eq!(applied(&app).await, [1, 2, 3]);
    let found = app.find::<Person>(&1).await.unwrap().unwrap();
    assert_eq!((found.town.as_str(), found.visits), ("Basel", 0));
    let database = found.name.unwrap();
    assert!(fresh.url().starts_with(&database), "{database} for {}", fresh.url());
    // The index that is not there any more can be made anew, the one that is cannot.
    let transaction = app.transact(async |mut tx| {
        tx.own_tables().plain("test.index", "CREATE INDEX people_town ON people (town)").await
    });
    transaction.await.unwrap();
    let twice = app.transact(async |mut tx| {
        tx.own_tables().plain("test.index", "CREATE INDEX people_town_name ON people (town)").await
    });
    assert_eq!(twice.await.unwrap_err().code(), "store-refused");
    app.stop().await;
}

async fn many_that_start_at_once_take_turns(fresh: &Fresh) {
    start(fresh, FIRST).await.unwrap().stop().await;
    let starting = (0..4).map(|_| {
        let fresh = Fresh::shared(fresh);
        tokio::spawn(async move { start(&fresh, TODAY).await.unwrap().stop().await })
    });
    for one in starting.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let app = start(fresh, TODAY).await.unwrap();
    assert_eq!(applied(&app).await, [1, 2, 3]);
    app.stop().await;
}

/// By database: they run in one process.
static FAILS: [AtomicBool; 3] = [AtomicBool::new(true), AtomicBool::new(true), AtomicBool::new(true)];

async fn fail_once(tables: &mut OwnTables<'_>) -> Result<(), StoreError> {
    greet(tables).await?;
    let of = format!("{:?}", tables.dialect());
    let at = ["Sqlite", "Postgres", "MySql"].iter().position(|name| *name == of).unwrap();
    match FAILS[at].swap(false, Ordering::Relaxed) {
        true => Err(StoreError::Missing { what: "luck", name: "none".to_owned() }),
        false => Ok(()),
    }
}

async fn a_version_that_failed_is_applied_by_the_next_start(fresh: &Fresh) {
    const FAILING: &[Version] = &[
        Version(1, &[Create(Person::TABLE)]),
        Version(2, &[Create(Greeting::TABLE), Run(|tables| Box::pin(fail_once(tables)))]),
    ];
    start(fresh, &FAILING[..1]).await.unwrap().stop().await;
    assert_eq!(start(fresh, FAILING).await.err().unwrap().code(), "missing");
    let app = start(fresh, FAILING).await.unwrap();
    assert_eq!(applied(&app).await, [1, 2]);
    assert!(app.find::<Greeting>(&1).await.unwrap().is_some());
    app.stop().await;
}

async fn a_table_that_was_never_recorded_is_somebody_elses_unless_a_start_was_cut_short(fresh: &Fresh) {
    let app = start(fresh, FIRST).await.unwrap();
    let commits_each_step = app.store().mysql_pool().is_some();
    execute(&app, "DELETE FROM town_migrations").await;
    app.stop().await;
    match start(fresh, TODAY).await {
        // Where each step is committed for itself it is left from the first version, and the later columns are added.
        Ok(app) => {
            assert!(commits_each_step);
            assert_eq!(applied(&app).await, [1, 2, 3]);
            app.stop().await;
        }
        Err(refused) => {
            assert!(!commits_each_step, "{}", refused.report());
            assert_eq!(refused.code(), "foreign-table");
            assert!(refused.report().contains("person_id, town;"), "{}", refused.report());
        }
    }
}

async fn what_could_never_be_applied_is_refused_before_anything_is_made(fresh: &Fresh) {
    let misnamed: [&'static [Version]; 3] = [
        &[Version(1, &[Create(Person::TABLE), AddIndex(Person::TABLE, "people_towns")])],
        &[Version(1, &[Create(Person::TABLE)]), Version(2, &[AddColumns(Person::TABLE, &["town"])])],
        &[Version(2, &[Create(Person::TABLE)])],
    ];
    let reasons =
        ["no index people_towns", "no town that older rows", "version 2 stands where version 1 should"];
    for (versions, reason) in misnamed.into_iter().zip(reasons) {
        let refused = start(fresh, versions).await.err().unwrap();
        assert!(refused.report().contains(reason), "{}", refused.report());
    }
    let app = start(fresh, TODAY).await.unwrap();
    assert_eq!(applied(&app).await, [1, 2, 3]);
    app.stop().await;
}
