//! Pages for who looks through a table: so many rows, and so many bytes.

use towpath_core::ports::store::StoreResult;

use super::typed::column_of;
use super::{Conditions, OwnTables, Row};
use crate::bounded::how_many_fit;
use crate::schema::ColumnKind;
use crate::sql::Value;
use crate::store::SqlStore;

/// Which rows are shown, in which order and how many.
#[derive(Debug, Clone)]
pub struct Listing<'v> {
    order: &'static str,
    last_first: bool,
    only: Vec<(&'static str, Value<'v>)>,
    behind: Option<Value<'v>>,
    rows: u32,
    bytes: Option<u64>,
}

/// Rows, and whether there may be more behind them.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<R> {
    /// The rows.
    pub rows: Vec<R>,
    /// Whether there may be more.
    pub more: bool,
}

impl<'v> Listing<'v> {
    /// At most so many rows in the order of a column, which tells apart what is listed. An index should have that order.
    pub fn by(order: &'static str, rows: u32) -> Self {
        Self { order, last_first: false, only: Vec::new(), behind: None, rows, bytes: None }
    }

    /// The other way round.
    pub fn last_first(self) -> Self {
        Self { last_first: true, ..self }
    }

    /// Only rows with this value in a column, if one is given.
    pub fn only(mut self, column: &'static str, value: Option<impl Into<Value<'v>>>) -> Self {
        self.only.extend(value.map(|value| (column, value.into())));
        self
    }

    /// Only what comes behind the last row of the page before, if there was one: named by its value in the column of the order.
    pub fn behind(self, last: Option<impl Into<Value<'v>>>) -> Self {
        Self { behind: last.map(Into::into), ..self }
    }

    /// As many of them as have so many bytes together in columns without a limit of their own, and at least one.
    pub fn within(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }
}

impl<R> Page<R> {
    /// The same rows in another form.
    pub fn map<T>(self, form: impl FnMut(R) -> T) -> Page<T> {
        Page { rows: self.rows.into_iter().map(form).collect(), more: self.more }
    }

    /// What the next page is behind; none at the end.
    pub fn next<K>(&self, key: impl FnOnce(&R) -> K) -> Option<K> {
        self.rows.last().filter(|_| self.more).map(key)
    }
}

impl OwnTables<'_> {
    /// A page of a table: one statement, and one before it that weighs the rows where their bytes are limited.
    pub async fn page<R: Row>(&mut self, name: &'static str, listing: Listing<'_>) -> StoreResult<Page<R>> {
        let Listing { order, last_first, only, behind, rows: limit, bytes } = listing;
        let (compared, direction) = if last_first { ("<", "DESC") } else { (">", "ASC") };
        let table = R::TABLE;
        column_of(table, order, name)?;
        let mut chosen = Conditions::default();
        for (column, value) in only {
            column_of(table, column, name)?;
            chosen = chosen.and(format!("{column} = ?"), value);
        }
        let chosen = chosen.and_some(&format!("{order} {compared} ?"), behind);
        let end = format!("ORDER BY {order} {direction} LIMIT ?");
        let unlimited = |kind| matches!(kind, ColumnKind::Text | ColumnKind::Json | ColumnKind::Bytes);
        let columns = table.columns.iter().filter(|column| unlimited(column.kind));
        let sizes: Vec<String> =
            columns.map(|column| format!("COALESCE(OCTET_LENGTH({}), 0)", column.name)).collect();
        let (mut fit, mut found) = (usize::try_from(limit).unwrap_or(usize::MAX), None);
        if let (Some(bytes), false) = (bytes, sizes.is_empty()) {
            let (sum, cast) = (sizes.join(" + "), self.dialect().integer_cast());
            let (chosen, values) = chosen.clone().then(&end, limit);
            let sql = format!("SELECT CAST({sum} AS {cast}) AS bytes FROM {} {chosen}", table.name);
            let weighed = self.rows(name, &sql, values).await?;
            let sizes = weighed.iter().map(|row| row.count("bytes")).collect::<StoreResult<Vec<u64>>>()?;
            (fit, found) = (how_many_fit(sizes.iter().copied(), bytes), Some(sizes.len()));
        }
        // Rows may come between the two statements: where all have fitted, one more is asked for, to know of it.
        let spare = usize::from(found == Some(fit) && u32::try_from(fit).is_ok_and(|fit| fit < limit));
        let (chosen, values) = chosen.then(&end, u64::try_from(fit + spare).unwrap_or(u64::MAX));
        let mut rows: Vec<R> = self.rows_of(name, &chosen, values).await?;
        let came = spare == 1 && rows.len() > fit;
        let found = found.unwrap_or(rows.len());
        rows.truncate(fit.max(1));
        let is_full = u32::try_from(found).is_ok_and(|found| found == limit);
        Ok(Page { rows, more: came || fit < found || is_full })
    }
}

impl SqlStore {
    /// A page of an application's table, on a connection for what people look through: see
    /// [`open_listing`](Self::open_listing).
    pub async fn page<R: Row>(&self, name: &'static str, listing: Listing<'_>) -> StoreResult<Page<R>> {
        self.open_listing().await?.own_tables().page(name, listing).await
    }
}
