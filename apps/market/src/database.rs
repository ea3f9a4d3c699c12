//! Running the market's own SQL, written once for the three databases, in its own transactions or a handler's.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use towpath::Towpath;
use towpath::ports::clock::Clock;
use towpath::ports::store::{Append, StoreError};
use towpath::tables::{Dialect, OwnTables, SqlTransaction};
pub(crate) use towpath::tables::{Record as Row, Value};

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

/// Values for a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$(crate::database::Value::from($value)),*] };
}
pub(crate) use values;

/// Where statements run: a transaction of the market's own or of a handler, or a connection.
pub(crate) struct Session<'c>(OwnTables<'c>);

impl<'c> From<OwnTables<'c>> for Session<'c> {
    fn from(tables: OwnTables<'c>) -> Self {
        Self(tables)
    }
}

impl<'c> Session<'c> {
    pub(crate) fn kind(&self) -> Kind {
        match self.0.dialect() {
            Dialect::Sqlite => Kind::Sqlite,
            Dialect::Postgres => Kind::Postgres,
            Dialect::MySql => Kind::MySql,
        }
    }

    /// What Towpath's own writes join.
    pub(crate) fn tables(&mut self) -> &mut OwnTables<'c> {
        &mut self.0
    }

    /// Runs a statement written with `?`; answers how many rows it touched.
    pub(crate) async fn execute(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<u64, StoreError> {
        self.0.execute(name, sql, values).await
    }

    /// Runs a statement written with `?`; answers its rows.
    pub(crate) async fn rows(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<Row>, StoreError> {
        self.0.rows(name, sql, values).await
    }

    /// The first row, if there is one.
    pub(crate) async fn row(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
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
        let row = self.row("market.now", sql, Vec::new()).await?;
        row.ok_or_else(|| corrupt("the time", "nothing was answered"))?.time("moment")
    }

    /// Runs text without parameters: the making of tables.
    pub(crate) async fn plain(&mut self, name: &'static str, sql: &str) -> Result<(), StoreError> {
        self.0.plain(name, sql).await
    }
}

/// A stored value that cannot be what was written.
pub(crate) fn corrupt(what: &str, why: impl ToString) -> StoreError {
    StoreError::Corrupt { what: what.to_owned(), source: why.to_string().into() }
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
            let begun = app.store().open_transaction().await;
            let ended = match begun {
                Err(error) => crate::database::Ended::Not(crate::error::MarketError::Store(error)),
                Ok(mut transaction) => {
                    let worked: Result<crate::database::Change<_>, crate::error::MarketError> = async {
                        let $session = &mut crate::database::Session::from(transaction.own_tables());
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
    mut transaction: SqlTransaction,
    worked: Result<Change<T>, MarketError>,
) -> Ended<T> {
    let change = match worked {
        Ok(change) => change,
        Err(error) => {
            // What was refused stays refused, whatever the rollback says.
            let _ = transaction.abandon().await;
            return Ended::Not(error);
        }
    };
    for facts in &change.facts {
        if let Err(error) = app.store().append_tx(&mut transaction.own_tables(), facts).await {
            return Ended::Not(error.into());
        }
    }
    match transaction.finish().await {
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
/// the refusal holds. Work without facts is repeated as it is; if that is refused, it is not known.
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
            Ok(None) if is_known => return Some(Err(self.told(error))),
            Ok(None) | Err(_) => {}
        }
        (since.elapsed() > LONGEST_DOUBT).then_some(Err(error))
    }

    /// What a refusal means after a lost answer. Work without facts may be refused because it was done before: then nobody
    /// knows, and who is told of a refusal would do it again.
    fn told(&self, error: MarketError) -> MarketError {
        let has_none = self.lost.iter().any(|change| change.facts.is_empty());
        if !has_none || matches!(error, MarketError::Store(_)) {
            return error;
        }
        let what = format!("the answer to a commit was lost, and it may have been carried out: {error}");
        MarketError::Store(StoreError::Unavailable(what.into()))
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
    fn a_refusal_after_a_lost_answer_without_facts_says_that_it_is_not_known() {
        let refusal = || MarketError::invalid("title", "it is withdrawn");
        let mut doubt = Doubt::default();
        assert_eq!(doubt.told(refusal()).code(), refusal().code());
        doubt.lost.push(Change { answer: (), facts: Vec::new() });
        assert_eq!(doubt.told(refusal()).code(), "store-unavailable");
        let taken = MarketError::Store(StoreError::Contention("deadlock".into()));
        assert_eq!(doubt.told(taken).code(), "contention");
    }

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
