//! The columns of soft deletion (S3) and of tasks (S5), read back by a plain client: what they hold after each step, and
//! what the database says of their types.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod fixtures;

use fixtures::Fresh;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use towpath_core::ids::ActorId;
use towpath_core::ports::store::TimerOutcome;
use towpath_store::{SqlStore, StoreUrl};
use towpath_testkit::store::StoreFixture as _;
use towpath_testkit::store::acts::{hold_new_lease, schedule};
use towpath_testkit::store::facts::{moment, new_channel, new_order, timer};
use uuid::Uuid;

on_every_database!(
    a_removed_channel_keeps_when_by_whom_and_why,
    a_timer_keeps_when_it_ran_how_it_ended_and_how_often_it_failed,
    failures_of_a_task_are_counted_in_64_bits_from_nothing,
    an_index_of_a_later_version_is_added_where_it_is_missing,
);

/// The first row of an answer, as texts; nothing is an empty text.
async fn row(fresh: &Fresh, sql: &str) -> Vec<String> {
    let sql = AssertSqlSafe(sql.to_owned());
    macro_rules! read {
        ($connection:ty) => {{
            let mut connection = <$connection>::connect(&fresh.url()).await.unwrap();
            let row = sqlx::query(sql).fetch_one(&mut connection).await.unwrap();
            (0..row.len()).map(|at| row.get::<Option<String>, _>(at).unwrap_or_default()).collect()
        }};
    }
    match StoreUrl::parse(&fresh.url()).unwrap() {
        StoreUrl::Sqlite { .. } => read!(sqlx::SqliteConnection),
        StoreUrl::Postgres { .. } => read!(sqlx::PgConnection),
        StoreUrl::MySql { .. } => read!(sqlx::MySqlConnection),
    }
}

/// How a database says things.
struct Words {
    is_mysql: bool,
    is_postgres: bool,
}

impl Words {
    fn of(fresh: &Fresh) -> Self {
        let url = StoreUrl::parse(&fresh.url()).unwrap();
        Self {
            is_mysql: matches!(url, StoreUrl::MySql { .. }),
            is_postgres: matches!(url, StoreUrl::Postgres { .. }),
        }
    }

    /// A moment as whole seconds since 1970, as a text.
    fn seconds(&self, column: &str) -> String {
        if self.is_mysql {
            format!("CAST(CAST(UNIX_TIMESTAMP({column}) AS SIGNED) AS CHAR)")
        } else if self.is_postgres {
            format!("CAST(CAST(EXTRACT(EPOCH FROM {column}) AS bigint) AS text)")
        } else {
            format!("CAST({column} / 1000000 AS text)")
        }
    }

    fn text(&self, column: &str) -> String {
        format!("CAST({column} AS {})", if self.is_mysql { "CHAR" } else { "text" })
    }

    /// Asks for the type of a column, whether it may be null, and its default.
    fn declaration(&self, table: &str, column: &str) -> String {
        if self.is_mysql {
            format!(
                "SELECT data_type, is_nullable, column_default FROM information_schema.columns \
                 WHERE table_schema = DATABASE() AND table_name = '{table}' AND column_name = '{column}'"
            )
        } else if self.is_postgres {
            format!(
                "SELECT CAST(data_type AS text), CAST(is_nullable AS text), CAST(column_default AS text) \
                 FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = '{table}' \
                 AND column_name = '{column}'"
            )
        } else {
            format!(
                "SELECT type, CAST(\"notnull\" AS text), dflt_value FROM pragma_table_info('{table}') \
                 WHERE name = '{column}'"
            )
        }
    }

    fn uuid(&self, id: Uuid) -> String {
        if self.is_postgres { format!("'{id}'") } else { format!("X'{}'", id.simple()) }
    }
}

fn at(seconds: u64) -> String {
    moment(seconds).timestamp().to_string()
}

async fn a_removed_channel_keeps_when_by_whom_and_why(fresh: &Fresh) {
    let store = fresh.store().await;
    let (words, name, channel_id) = (Words::of(fresh), new_channel(), Uuid::now_v7());
    store.add_channel(channel_id, &name, 0, moment(1)).await.unwrap();
    let read = async || {
        let (when, id) = (words.seconds("deleted_at"), words.uuid(channel_id));
        let sql =
            format!("SELECT {when}, deleted_by_id, deleted_reason FROM channels WHERE channel_id = {id}");
        row(fresh, &sql).await
    };
    assert_eq!(read().await, ["", "", ""], "it lives");
    let by = ActorId::new("operator-1").unwrap();
    store.remove_channel(&name, Some(&by), "not-needed", moment(3)).await.unwrap();
    assert_eq!(read().await, [at(3).as_str(), "operator-1", "not-needed"]);
    // Whoever has the name next changes nothing of it: the row is not deleted, and not used again.
    store.add_channel(Uuid::now_v7(), &name, 0, moment(4)).await.unwrap();
    assert_eq!(read().await, [at(3).as_str(), "operator-1", "not-needed"]);
    let sql = format!("SELECT {} FROM channels WHERE name = '{name}'", words.text("COUNT(*)"));
    assert_eq!(row(fresh, &sql).await, ["2"]);
}

async fn a_timer_keeps_when_it_ran_how_it_ended_and_how_often_it_failed(fresh: &Fresh) {
    let store = fresh.store().await;
    let words = Words::of(fresh);
    let lease = hold_new_lease(&*store).await;
    let read = async |id: Uuid| {
        let columns = [
            "state".to_owned(),
            words.seconds("state_changed_at"),
            words.seconds("started_at"),
            words.seconds("finished_at"),
            words.seconds("failed_at"),
            "error_code".to_owned(),
            "error_message".to_owned(),
            words.text("retry_count"),
        ];
        let sql = format!("SELECT {} FROM timers WHERE timer_id = {}", columns.join(", "), words.uuid(id));
        row(fresh, &sql).await
    };
    let [wins, loses, leaves] = [1, 2, 1_000].map(|due| timer(&new_order(), moment(due)));
    schedule(&*store, &[wins.clone(), loses.clone(), leaves.clone()]).await;
    for timer in [&wins, &loses, &leaves] {
        assert_eq!(read(timer.timer_id).await, ["pending", &at(0), "", "", "", "", "", "0"]);
    }
    store.claim_timers(&lease, &["order.cancel"], moment(2), 10).await.unwrap();
    assert_eq!(read(wins.timer_id).await, ["running", &at(2), &at(2), "", "", "", "", "0"]);
    let failed = |retry_at| TimerOutcome::Failed {
        error_code: "bus-full".to_owned(),
        error_message: "The bus is full.".to_owned(),
        retry_at,
    };
    for id in [wins.timer_id, loses.timer_id] {
        store.finish_timer(&lease, id, &failed(Some(moment(10))), moment(3)).await.unwrap();
    }
    let [state, changed, started, finished, rest @ ..] = &read(wins.timer_id).await[..] else {
        panic!("eight columns")
    };
    assert!(["pending", "queued"].contains(&state.as_str()), "{state}");
    assert_eq!([changed, started, finished], [&at(3), &at(2), ""], "it has not ended");
    assert_eq!(rest, [at(3).as_str(), "bus-full", "The bus is full.", "1"]);
    store.claim_timers(&lease, &["order.cancel"], moment(10), 10).await.unwrap();
    store.finish_timer(&lease, wins.timer_id, &TimerOutcome::Succeeded, moment(11)).await.unwrap();
    store.finish_timer(&lease, loses.timer_id, &failed(None), moment(12)).await.unwrap();
    let won = read(wins.timer_id).await;
    assert_eq!(won[..4], ["succeeded", &at(11), &at(10), &at(11)]);
    assert_eq!(won[7], "1", "what failed before is remembered");
    assert_eq!(
        read(loses.timer_id).await,
        ["failed", &at(12), &at(10), &at(12), &at(12), "bus-full", "The bus is full.", "1"]
    );
    let mut tx = store.begin().await.unwrap();
    assert!(tx.cancel(leaves.timer_id, moment(13)).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(read(leaves.timer_id).await, ["canceled", &at(13), "", &at(13), "", "", "", "0"]);
}

/// S5: 64 bits, not null, 0 unless something else is said.
async fn failures_of_a_task_are_counted_in_64_bits_from_nothing(fresh: &Fresh) {
    fresh.store().await;
    let words = Words::of(fresh);
    for table in ["timers", "task_box"] {
        // SQLite's integers have 64 bits.
        let expected =
            if words.is_mysql || words.is_postgres { ["bigint", "NO", "0"] } else { ["INTEGER", "1", "0"] };
        assert_eq!(row(fresh, &words.declaration(table, "retry_count")).await, expected, "{table}");
    }
    let [_, nullable, default] = &row(fresh, &words.declaration("task_box", "status")).await[..] else {
        panic!("three columns")
    };
    assert!(
        ["NO", "1"].contains(&nullable.as_str()) && default.starts_with("'pending'"),
        "{nullable} {default}"
    );
}

/// A database of version 1 gets what version 2 has; one that has it already keeps it.
async fn an_index_of_a_later_version_is_added_where_it_is_missing(fresh: &Fresh) {
    let store = SqlStore::connect(&fresh.url()).await.unwrap();
    assert_eq!(store.migrate().await.unwrap(), [1, 2, 3, 4, 5, 6, 7]);
    let index = match Words::of(fresh).is_mysql {
        true => "DROP INDEX channel_parked_due ON channel_parked",
        false => "DROP INDEX channel_parked_due",
    };
    for is_there in [true, false] {
        if !is_there {
            store.own_execute("test.drop", index, Vec::new()).await.unwrap();
        }
        for table in [
            "units_of_work",
            "projections",
            "observations",
            "task_box",
            "task_schedules",
            "process_inputs",
            "process_timers",
            "process_undos",
            "consistency_checks",
            "channel_starts",
            "open_alerts",
            "alert_changes",
            "alert_runs",
            "alert_silences",
        ] {
            let later = format!("DROP TABLE {table}");
            store.own_execute("test.later", &later, Vec::new()).await.unwrap();
        }
        let forget = "DELETE FROM towpath_migrations WHERE version >= 2";
        store.own_execute("test.forget", forget, Vec::new()).await.unwrap();
        assert_eq!(store.migrate().await.unwrap(), [2, 3, 4, 5, 6, 7], "there: {is_there}");
    }
    store.own_execute("test.drop", index, Vec::new()).await.expect("it is there again");
}
