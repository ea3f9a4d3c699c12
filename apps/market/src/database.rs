//! What the market's statements have in common.

use chrono::{DateTime, Utc};
use towpath::ports::clock::Clock;
use towpath::ports::store::StoreError;
use towpath::tables::Dialect;
pub(crate) use towpath::tables::{OwnTables, Value};

/// Values for a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$(crate::database::Value::from($value)),*] };
}
pub(crate) use values;

/// What time it is by the database, for whatever is compared with what other hosts have written: their clocks may differ by
/// days. SQLite has the host's own clock.
pub(crate) async fn now(tables: &mut OwnTables<'_>, host: &dyn Clock) -> Result<DateTime<Utc>, StoreError> {
    let sql = match tables.dialect() {
        Dialect::Sqlite => return Ok(host.now()),
        Dialect::Postgres => "SELECT clock_timestamp() AS moment",
        Dialect::MySql => "SELECT UTC_TIMESTAMP(6) AS moment",
    };
    let row = tables.row("market.now", sql, Vec::new()).await?;
    row.ok_or_else(|| corrupt("the time", "nothing was answered"))?.time("moment")
}

/// A stored value that cannot be what was written.
pub(crate) fn corrupt(what: &str, why: impl ToString) -> StoreError {
    StoreError::Corrupt { what: what.to_owned(), source: why.to_string().into() }
}
