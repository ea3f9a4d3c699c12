//! Units of work: each writes its id, and so whoever did not see the answer to its commit can find out.

use uuid::Uuid;

use towpath_core::ports::store::StoreResult;

use crate::dialect::Dialect;
use crate::sql::{Session, SqlFault, values};

fn note_sql(dialect: Dialect, unit_id: &str) -> String {
    format!("INSERT INTO units_of_work (unit_id, begun_at) VALUES ({unit_id}, {})", dialect.now())
}

/// Opens a transaction and notes the unit as the first thing in it, where a text may have several statements. Whoever is noted
/// already is refused by the key.
#[cfg(feature = "postgres")]
pub(crate) fn begin_sql(unit_id: Uuid) -> String {
    format!("BEGIN; {}", note_sql(Dialect::Postgres, &format!("'{unit_id}'")))
}

/// Notes the unit. `false` when it has committed before; one that is open is waited for. Runs in a transaction.
pub(crate) async fn begin(session: &mut Session<'_>, unit_id: Uuid) -> StoreResult<bool> {
    let dialect = session.dialect();
    let sql = format!("{} {}", note_sql(dialect, "?"), dialect.ignoring_duplicates());
    match session.execute("unit.begin", &sql, values![unit_id]).await {
        Ok(noted) => Ok(noted == 1),
        Err(SqlFault::Unique { .. }) => Ok(false),
        Err(fault) => Err(fault.into()),
    }
}

/// Whether the unit is still noted: a statement that failed may have undone the transaction.
pub(crate) async fn stands(session: &mut Session<'_>, unit_id: Uuid) -> StoreResult<bool> {
    let sql = "SELECT 1 AS stands FROM units_of_work WHERE unit_id = ?";
    Ok(session.row("unit.stands", sql, values![unit_id]).await?.is_some())
}
