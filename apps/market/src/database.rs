//! Running the market's own SQL, written once for the three databases, in its own transactions or a handler's.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use towpath::ports::clock::Clock;
use towpath::ports::store::{Append, StoreError};
use towpath::sqlx::{self, AssertSqlSafe, Row as _};
use towpath::{HandlerTx, SqlStore, Towpath, WrongDatabase, fault};

use crate::error::MarketError;

/// How often a transaction that lost against others is run again.
const MOST_ROUNDS: u32 = 30;

/// How long it is asked whether a commit was done whose answer was lost.
const LONGEST_DOUBT: Duration = Duration::from_secs(15);

/// More facts than an order ever has.
const MOST_EVENTS: u32 = 100;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

impl Kind {
    pub(crate) fn of(store: &SqlStore) -> Self {
        if store.postgres_pool().is_some() {
            Self::Postgres
        } else if store.mysql_pool().is_some() {
            Self::MySql
        } else {
            Self::Sqlite
        }
    }

    /// Locks the rows that are read. SQLite's write transaction has locked everything already.
    pub(crate) fn for_update(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres | Self::MySql => " FOR UPDATE",
        }
    }

    /// What stands behind a table to be read by one index. MySQL takes a small LIMIT for a reason to go through the primary
    /// key and look at every row until it has found enough; with few in a status that is all of them. The others know better.
    pub(crate) fn by_index(self, index: &str) -> String {
        match self {
            Self::Sqlite | Self::Postgres => String::new(),
            Self::MySql => format!(" FORCE INDEX ({index})"),
        }
    }

    /// Joins two tables so that the first one is read first: its index is the way to what is sought. PostgreSQL finds that
    /// out by itself.
    pub(crate) fn first_then(self) -> &'static str {
        match self {
            Self::Sqlite => "CROSS JOIN",
            Self::Postgres => "JOIN",
            Self::MySql => "STRAIGHT_JOIN",
        }
    }

    /// Lets an insert of an existing key change nothing: what stands before INTO and what stands at the end.
    pub(crate) fn insert_unless_there(self, into: &str) -> String {
        match self {
            Self::Sqlite | Self::Postgres => format!("INSERT INTO {into} ON CONFLICT DO NOTHING"),
            Self::MySql => format!("INSERT IGNORE INTO {into}"),
        }
    }
}

/// A value that stands for a `?`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'v> {
    Long(i64),
    Text(&'v str),
    Time(DateTime<Utc>),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Long(number)
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Self::Text(text)
    }
}

impl From<DateTime<Utc>> for Value<'_> {
    fn from(moment: DateTime<Utc>) -> Self {
        Self::Time(moment)
    }
}

/// Values for a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$(crate::database::Value::from($value)),*] };
}
pub(crate) use values;

/// A connection to run statements on.
pub(crate) enum Session<'c> {
    Sqlite(&'c mut sqlx::SqliteConnection),
    Postgres(&'c mut sqlx::PgConnection),
    MySql(&'c mut sqlx::MySqlConnection),
}

/// A row of an answer.
pub(crate) enum Row {
    Sqlite(sqlx::sqlite::SqliteRow),
    Postgres(sqlx::postgres::PgRow),
    MySql(sqlx::mysql::MySqlRow),
}

macro_rules! bound {
    ($sql:expr, $values:expr, $moment:expr) => {{
        let mut query = sqlx::query(AssertSqlSafe($sql));
        for value in $values {
            query = match *value {
                Value::Long(number) => query.bind(number),
                Value::Text(text) => query.bind(text.to_owned()),
                Value::Time(moment) => query.bind($moment(moment)),
            };
        }
        query
    }};
}

impl Session<'_> {
    /// The connection of a handler's transaction.
    pub(crate) fn of(tx: &mut HandlerTx) -> Result<Session<'_>, WrongDatabase> {
        // Asked twice, because a borrow that may be answered holds on to the end otherwise.
        if tx.postgres().is_ok() {
            return tx.postgres().map(Session::Postgres);
        }
        if tx.mysql().is_ok() {
            return tx.mysql().map(Session::MySql);
        }
        tx.sqlite().map(Session::Sqlite)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Sqlite(_) => Kind::Sqlite,
            Self::Postgres(_) => Kind::Postgres,
            Self::MySql(_) => Kind::MySql,
        }
    }

    /// Runs a statement written with `?`; answers how many rows it touched.
    pub(crate) async fn execute(
        &mut self,
        name: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(connection) => {
                let query = bound!(sql.to_owned(), values, |moment: DateTime<Utc>| moment.timestamp_micros());
                query.execute(&mut **connection).await.map(|done| done.rows_affected())
            }
            Self::Postgres(connection) => {
                let query = bound!(numbered(sql), values, |moment: DateTime<Utc>| moment);
                query.execute(&mut **connection).await.map(|done| done.rows_affected())
            }
            Self::MySql(connection) => {
                let query = bound!(sql.to_owned(), values, |moment: DateTime<Utc>| moment);
                query.execute(&mut **connection).await.map(|done| done.rows_affected())
            }
        }
        .map_err(|error| fault(name, error))
    }

    /// Runs a statement written with `?`; answers its rows.
    pub(crate) async fn rows(
        &mut self,
        name: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        match self {
            Self::Sqlite(connection) => {
                let query = bound!(sql.to_owned(), values, |moment: DateTime<Utc>| moment.timestamp_micros());
                let rows = query.fetch_all(&mut **connection).await;
                rows.map(|rows| rows.into_iter().map(Row::Sqlite).collect())
            }
            Self::Postgres(connection) => {
                let query = bound!(numbered(sql), values, |moment: DateTime<Utc>| moment);
                let rows = query.fetch_all(&mut **connection).await;
                rows.map(|rows| rows.into_iter().map(Row::Postgres).collect())
            }
            Self::MySql(connection) => {
                let query = bound!(sql.to_owned(), values, |moment: DateTime<Utc>| moment);
                let rows = query.fetch_all(&mut **connection).await;
                rows.map(|rows| rows.into_iter().map(Row::MySql).collect())
            }
        }
        .map_err(|error| fault(name, error))
    }

    /// The first row, if there is one.
    pub(crate) async fn row(
        &mut self,
        name: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(name, sql, values).await?.into_iter().next())
    }

    /// What time it is by the database, for whatever is compared with what other hosts have written: their clocks may
    /// differ by days. SQLite has the host's own clock.
    pub(crate) async fn now(&mut self, host: &dyn Clock) -> Result<DateTime<Utc>, StoreError> {
        let sql = match self.kind() {
            Kind::Sqlite => return Ok(host.now()),
            Kind::Postgres => "SELECT clock_timestamp() AS moment",
            Kind::MySql => "SELECT UTC_TIMESTAMP(6) AS moment",
        };
        let row = self.row("market.now", sql, &[]).await?;
        row.ok_or_else(|| corrupt("the time", "nothing was answered"))?.time("moment")
    }

    /// Runs text without parameters: the making of tables.
    pub(crate) async fn plain(&mut self, name: &'static str, sql: &str) -> Result<(), StoreError> {
        let query = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self {
            Self::Sqlite(connection) => query.execute(&mut **connection).await.map(|_| ()),
            Self::Postgres(connection) => query.execute(&mut **connection).await.map(|_| ()),
            Self::MySql(connection) => query.execute(&mut **connection).await.map(|_| ()),
        }
        .map_err(|error| fault(name, error))
    }
}

/// `?` as PostgreSQL numbers them. The statements are ours and have none in texts.
fn numbered(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len() + 16);
    let mut count = 0_u32;
    for character in sql.chars() {
        if character == '?' {
            count += 1;
            text.push('$');
            text.push_str(&count.to_string());
        } else {
            text.push(character);
        }
    }
    text
}

macro_rules! get {
    ($row:expr, $column:expr, $type:ty) => {
        match $row {
            Row::Sqlite(row) => row.try_get::<$type, _>($column),
            Row::Postgres(row) => row.try_get::<$type, _>($column),
            Row::MySql(row) => row.try_get::<$type, _>($column),
        }
    };
}

impl Row {
    pub(crate) fn long(&self, column: &'static str) -> Result<i64, StoreError> {
        get!(self, column, i64).map_err(|error| fault(column, error))
    }

    pub(crate) fn long_or_null(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        get!(self, column, Option<i64>).map_err(|error| fault(column, error))
    }

    pub(crate) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        get!(self, column, String).map_err(|error| fault(column, error))
    }

    pub(crate) fn text_or_null(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        get!(self, column, Option<String>).map_err(|error| fault(column, error))
    }

    pub(crate) fn time(&self, column: &'static str) -> Result<DateTime<Utc>, StoreError> {
        self.time_or_null(column)?.ok_or_else(|| corrupt(column, "it is null"))
    }

    pub(crate) fn time_or_null(&self, column: &'static str) -> Result<Option<DateTime<Utc>>, StoreError> {
        match self {
            Row::Sqlite(row) => row.try_get::<Option<i64>, _>(column).map(|micros| {
                micros
                    .map(|micros| DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC))
            }),
            Row::Postgres(row) => row.try_get::<Option<DateTime<Utc>>, _>(column),
            Row::MySql(row) => row.try_get::<Option<DateTime<Utc>>, _>(column),
        }
        .map_err(|error| fault(column, error))
    }
}

/// A stored value that cannot be what was written.
pub(crate) fn corrupt(what: &str, why: impl ToString) -> StoreError {
    StoreError::Corrupt { what: what.to_owned(), source: why.to_string().into() }
}

/// A transaction of the market's own. Dropped without a commit, it is rolled back.
pub(crate) enum Transaction {
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
}

impl Transaction {
    pub(crate) async fn begin(store: &SqlStore) -> Result<Self, StoreError> {
        // sqlx notes that a transaction is open when BEGIN was answered: a caller that is dropped meanwhile would give the
        // connection back with a transaction open on it. In a task of its own the call ends.
        macro_rules! begun {
            ($pool:expr, $kind:path) => {{
                let pool = $pool.clone();
                let begun = tokio::spawn(async move { pool.begin().await }).await;
                let begun = begun.map_err(|error| StoreError::Unavailable(error.into()))?;
                begun.map($kind).map_err(|error| fault("begin", error))
            }};
        }
        if let Some(pool) = store.postgres_pool() {
            return begun!(pool, Self::Postgres);
        }
        if let Some(pool) = store.mysql_pool() {
            return begun!(pool, Self::MySql);
        }
        match store.sqlite_pool() {
            // A write transaction from its first statement: one that reads first would have to give up later.
            Some(pool) => pool
                .begin_with("BEGIN IMMEDIATE")
                .await
                .map(Self::Sqlite)
                .map_err(|error| fault("begin", error)),
            None => Err(StoreError::Unavailable("the store has no pool".into())),
        }
    }

    pub(crate) fn session(&mut self) -> Session<'_> {
        match self {
            Self::Sqlite(transaction) => Session::Sqlite(transaction),
            Self::Postgres(transaction) => Session::Postgres(transaction),
            Self::MySql(transaction) => Session::MySql(transaction),
        }
    }

    /// Appends facts: they commit with everything else in here.
    pub(crate) async fn append(&mut self, store: &SqlStore, append: &Append) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(transaction) => store.append_tx(transaction, append).await,
            Self::Postgres(transaction) => store.append_tx(transaction, append).await,
            Self::MySql(transaction) => store.append_tx(transaction, append).await,
        }
        .map(|_| ())
    }

    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await,
            Self::Postgres(transaction) => transaction.commit().await,
            Self::MySql(transaction) => transaction.commit().await,
        }
        .map_err(|error| fault("commit", error))
    }

    pub(crate) async fn rollback(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(transaction) => transaction.rollback().await,
            Self::Postgres(transaction) => transaction.rollback().await,
            Self::MySql(transaction) => transaction.rollback().await,
        }
        .map_err(|error| fault("rollback", error))
    }
}

/// What the work of a transaction answers, and the facts that follow from it.
pub(crate) struct Change<T> {
    pub(crate) answer: T,
    /// Of one aggregate, in their order.
    pub(crate) facts: Vec<Append>,
}

/// Runs work and the facts that follow from it in one transaction, and once more when it lost against others.
///
/// A refusal rolls everything back. After the commit the services are told, so that the facts go out at once. A commit
/// whose answer was lost is not taken for either: see [`Doubt`]. A macro, because the future of a closure that borrows a
/// session cannot be told to be `Send`.
macro_rules! in_transaction {
    ($app:expr, |$session:ident| $work:block) => {{
        let app: &towpath::Towpath = $app;
        let mut rounds = 0_u32;
        let mut doubt = crate::database::Doubt::default();
        loop {
            rounds += 1;
            let begun = crate::database::Transaction::begin(app.store()).await;
            let ended = match begun {
                Err(error) => crate::database::Ended::Not(crate::error::MarketError::Store(error)),
                Ok(mut transaction) => {
                    let worked: Result<crate::database::Change<_>, crate::error::MarketError> = async {
                        let $session = &mut transaction.session();
                        $work
                    }
                    .await;
                    crate::database::end(app, transaction, worked).await
                }
            };
            match doubt.resolve(app, ended, rounds).await {
                Some(answer) => break answer,
                None => crate::database::pause(rounds).await,
            }
        }
    }};
}
pub(crate) use in_transaction;

/// How a transaction ended.
pub(crate) enum Ended<T> {
    /// Committed.
    Done(T),
    /// As if it had never been.
    Not(MarketError),
    /// The answer to the commit was lost.
    InDoubt(Box<Change<T>>, MarketError),
}

/// Ends a transaction: with its facts, or as if it had never been.
pub(crate) async fn end<T>(
    app: &Towpath,
    mut transaction: Transaction,
    worked: Result<Change<T>, MarketError>,
) -> Ended<T> {
    let change = match worked {
        Ok(change) => change,
        Err(error) => {
            // What was refused stays refused, whatever the rollback says.
            let _ = transaction.rollback().await;
            return Ended::Not(error);
        }
    };
    for facts in &change.facts {
        if let Err(error) = transaction.append(app.store(), facts).await {
            return Ended::Not(error.into());
        }
    }
    match transaction.commit().await {
        Ok(()) => {
            change.facts.iter().for_each(|facts| app.committed(facts));
            Ended::Done(change.answer)
        }
        Err(error @ StoreError::Unavailable(_)) => Ended::InDoubt(Box::new(change), error.into()),
        Err(error) => Ended::Not(error.into()),
    }
}

/// Commits whose answers were lost.
///
/// The work is run again: its conditional update waits for the rows that the lost transaction holds, so by the time it is
/// refused the lost one has ended, and the log says how. Its facts are there, and it was done; or they are not, and
/// the refusal holds. Work without facts can be repeated as it is.
pub(crate) struct Doubt<T> {
    lost: Vec<Change<T>>,
    since: Option<Instant>,
}

impl<T> Default for Doubt<T> {
    fn default() -> Self {
        Self { lost: Vec::new(), since: None }
    }
}

impl<T> Doubt<T> {
    /// The answer, or nothing: then it is to be run again.
    pub(crate) async fn resolve(
        &mut self,
        app: &Towpath,
        ended: Ended<T>,
        rounds: u32,
    ) -> Option<Result<T, MarketError>> {
        let error = match ended {
            Ended::Done(answer) => return Some(Ok(answer)),
            Ended::Not(error) => error,
            Ended::InDoubt(change, error) => {
                tracing::warn!(
                    code = error.code(),
                    "the answer to a commit was lost; looking whether it was done"
                );
                self.lost.push(*change);
                self.since.get_or_insert_with(Instant::now);
                error
            }
        };
        let Some(since) = self.since else {
            return (!may_try_again(&error, rounds)).then_some(Err(error));
        };
        let is_known =
            !matches!(&error, MarketError::Store(StoreError::Unavailable(_) | StoreError::Contention(_)));
        match self.find_done(app).await {
            Ok(Some(answer)) => return Some(Ok(answer)),
            Ok(None) if is_known => return Some(Err(error)),
            Ok(None) | Err(_) => {}
        }
        (since.elapsed() > LONGEST_DOUBT).then_some(Err(error))
    }

    /// The answer of one whose facts are in the log.
    async fn find_done(&mut self, app: &Towpath) -> Result<Option<T>, StoreError> {
        for index in 0..self.lost.len() {
            let Some(facts) = self.lost.get(index).and_then(|change| change.facts.first()) else { continue };
            let Some(first) = facts.events.first() else { continue };
            let recorded = app.events_of(&facts.aggregate, 0, MOST_EVENTS).await?;
            if recorded.iter().any(|recorded| recorded.envelope.event_id == first.event_id) {
                let done = self.lost.swap_remove(index);
                done.facts.iter().for_each(|facts| app.committed(facts));
                return Ok(Some(done.answer));
            }
        }
        Ok(None)
    }
}

/// Whether it was a deadlock, a lock timeout or a serialization failure (nothing was written then, and the next round may
/// win), and there are rounds left. A version conflict is none of these: an order's number that is taken in the log stays
/// taken, and what is appended to an order that is there asks for no version.
pub(crate) fn may_try_again(error: &MarketError, rounds: u32) -> bool {
    matches!(error, MarketError::Store(StoreError::Contention(_))) && rounds < MOST_ROUNDS
}

/// Waits a little, unevenly, so that those who collided do not collide again.
pub(crate) async fn pause(rounds: u32) {
    let chance = u64::from(uuid::Uuid::new_v4().as_bytes()[0]);
    tokio::time::sleep(Duration::from_micros(chance * 20 * u64::from(rounds.min(20)))).await;
}

#[cfg(test)]
mod tests {
    use towpath::ids::AggregateKey;
    use towpath::ports::store::Expected;

    use super::*;

    #[test]
    fn only_what_may_win_the_next_time_is_tried_again() {
        let lost = MarketError::Store(StoreError::Contention("deadlock".into()));
        assert!(may_try_again(&lost, 1) && !may_try_again(&lost, MOST_ROUNDS));
        let aggregate = AggregateKey::new("Order", "900001").unwrap();
        let taken = StoreError::VersionConflict { aggregate, expected: Expected::New };
        assert!(!may_try_again(&MarketError::Store(taken), 1), "a number that is taken stays taken");
        assert!(!may_try_again(&MarketError::NotOnSale(1), 1));
    }
}
