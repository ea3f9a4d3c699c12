//! The rows that facts change: those that were asked for, and what becomes of them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use towpath_core::ports::store::{StoreError, StoreResult, Watch};
use towpath_store::{SqlTransaction, Table, Value};
use uuid::Uuid;

use super::engine::OUT_OF_ORDER;
use super::watches::Watches;
use crate::consumer::HandlerError;

/// The code of a row or subject that nobody has looked for.
const NOT_ASKED_FOR: &str = "row-not-asked-for";

/// What tells a row apart: its table, and a value for each column of the primary key.
#[derive(Debug, Clone)]
pub struct RowKey {
    table: &'static Table,
    parts: Vec<Part>,
}

/// A value of a key, which can be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Text(String),
    Long(i64),
    Uuid(Uuid),
    Time(DateTime<Utc>),
    /// What cannot be in a key: the database refuses it.
    None,
}

/// Rows as facts find and leave them. Written together when all facts of a step are through.
#[derive(Debug, Default)]
pub struct Rows {
    tables: BTreeMap<&'static str, InTable>,
    statements: Vec<(&'static str, &'static str, Vec<Value<'static>>)>,
    pub(super) watches: Watches,
    is_lost: bool,
}

#[derive(Debug)]
struct InTable {
    table: &'static Table,
    rows: BTreeMap<Vec<Part>, Slot>,
}

/// A row, and whether it is there as it is here.
#[derive(Debug)]
struct Slot {
    values: Option<Vec<Value<'static>>>,
    is_changed: bool,
}

/// A row that is there.
#[derive(Debug, Clone, Copy)]
pub struct RowRef<'r> {
    table: &'static Table,
    values: &'r [Value<'static>],
}

impl RowKey {
    /// A key of a table, with its values in the order of the primary key.
    pub fn of<const N: usize>(table: &'static Table, values: [Value<'_>; N]) -> Self {
        Self { table, parts: values.iter().map(Part::of).collect() }
    }
}

impl Part {
    fn of(value: &Value<'_>) -> Self {
        match value {
            Value::Text(Some(text)) => Self::Text(text.clone().into_owned()),
            Value::Long(Some(number)) => Self::Long(*number),
            Value::Uuid(Some(id)) => Self::Uuid(*id),
            Value::Time(Some(moment)) => Self::Time(*moment),
            _ => Self::None,
        }
    }

    fn value(&self) -> Value<'static> {
        match self {
            Self::Text(text) => text.clone().into(),
            Self::Long(number) => (*number).into(),
            Self::Uuid(id) => (*id).into(),
            Self::Time(moment) => (*moment).into(),
            Self::None => Value::Text(None),
        }
    }
}

impl Rows {
    pub(super) fn with(watches: Watches) -> Self {
        Self { watches, ..Self::default() }
    }

    /// A row that the fact's keys name; none if there is none.
    ///
    /// # Errors
    /// `row-not-asked-for`: the fact's keys do not name it, so that nobody has looked whether it is there.
    pub fn get(&self, key: &RowKey) -> Result<Option<RowRef<'_>>, HandlerError> {
        let slot = self.tables.get(key.table.name()).and_then(|in_table| in_table.rows.get(&key.parts));
        let Some(slot) = slot else {
            let message = format!("a row of {} was read whose key was not given", key.table.name());
            return Err(HandlerError::unrecoverable(NOT_ASKED_FOR, message));
        };
        Ok(slot.values.as_deref().map(|values| RowRef { table: key.table, values }))
    }

    /// Writes a whole row, with a value per column in the order of the declaration, in the place of one with the same key.
    ///
    /// # Errors
    /// There are more or fewer values than columns.
    pub fn put(&mut self, table: &'static Table, values: Vec<Value<'static>>) -> Result<(), HandlerError> {
        let (name, wanted, given) = (table.name(), table.columns().count(), values.len());
        if wanted != given {
            let what = format!("a row of {name} has {wanted} values, and {given} were given");
            return Err(StoreError::Refused { statement: "projection.put", source: what.into() }.into());
        }
        self.change(table, key_of(table, &values), Some(values));
        Ok(())
    }

    /// Deletes a row, if it is there.
    pub fn delete(&mut self, key: RowKey) {
        self.change(key.table, key.parts, None);
    }

    /// What an observer looks at because of an aggregate: what is wanted there, as it is; none if nobody looks.
    ///
    /// # Errors
    /// This, and the next two: `row-not-asked-for` where [`watches`](super::Projection::watches) does not name the observer, or
    /// no fact is about an aggregate of that id.
    pub fn watched(&self, observer: &str, aggregate_id: &str) -> Result<Option<&str>, HandlerError> {
        let subject = self.watches.get(observer, aggregate_id);
        Ok(subject.ok_or_else(|| not_asked_for(observer, aggregate_id))?.wanted())
    }

    /// Lets an observer look at what an aggregate is about; the subject has the aggregate's id, and the version is the fact's.
    /// Where it is to look now, the commit wakes it.
    pub fn watch(&mut self, observer: &str, watch: Watch) -> Result<(), HandlerError> {
        let id = &watch.subject_id;
        let subject = self.watches.get_mut(observer, id).ok_or_else(|| not_asked_for(observer, id))?;
        subject.watch(watch);
        Ok(())
    }

    /// Lets an observer look no more at what an aggregate is about.
    pub fn unwatch(&mut self, observer: &str, aggregate_id: &str) -> Result<(), HandlerError> {
        let subject = self.watches.get_mut(observer, aggregate_id);
        subject.ok_or_else(|| not_asked_for(observer, aggregate_id))?.unwatch();
        Ok(())
    }

    /// Runs a statement when the rows are written: for what follows in tables that are not the projection's. It must be able to
    /// run again. `name` is what the probe and errors call it.
    pub fn then(&mut self, name: &'static str, sql: &'static str, values: Vec<Value<'static>>) {
        self.statements.push((name, sql, values));
    }

    /// What to answer where a row is missing that earlier facts of the aggregate have made: somebody has taken it away. The
    /// aggregate is made anew, then, from all of its facts.
    pub fn lost(&mut self, key: &RowKey) -> HandlerError {
        self.is_lost = true;
        let message = format!("a row of {} is gone that earlier facts have made", key.table.name());
        HandlerError::unrecoverable(OUT_OF_ORDER, message)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn change(&mut self, table: &'static Table, parts: Vec<Part>, values: Option<Vec<Value<'static>>>) {
        self.in_table(table).rows.insert(parts, Slot { values, is_changed: true });
    }

    fn in_table(&mut self, table: &'static Table) -> &mut InTable {
        self.tables.entry(table.name()).or_insert_with(|| InTable { table, rows: BTreeMap::new() })
    }

    /// Reads and locks these rows: a statement per table.
    pub(super) async fn load(&mut self, sql: &mut SqlTransaction, keys: Vec<RowKey>) -> StoreResult<()> {
        for RowKey { table, parts } in keys {
            let missing = Slot { values: None, is_changed: false };
            self.in_table(table).rows.entry(parts).or_insert(missing);
        }
        for InTable { table, rows } in self.tables.values_mut() {
            let keys: Vec<Vec<Value<'static>>> =
                rows.keys().map(|parts| parts.iter().map(Part::value).collect()).collect();
            for values in sql.rows_by_key(table, &keys).await? {
                rows.insert(key_of(table, &values), Slot { values: Some(values), is_changed: false });
            }
        }
        Ok(())
    }

    /// Writes what has changed but for what is watched: a statement per table, and those that follow.
    pub(super) async fn write(self, sql: &mut SqlTransaction) -> StoreResult<()> {
        for InTable { table, rows } in self.tables.into_values() {
            let (mut put, mut gone) = (Vec::new(), Vec::new());
            for (parts, slot) in rows.into_iter().filter(|(_, slot)| slot.is_changed) {
                match slot.values {
                    Some(values) => put.push(values),
                    None => gone.push(parts.iter().map(Part::value).collect()),
                }
            }
            if !put.is_empty() {
                sql.own_tables().put("projection.put", table, put).await?;
            }
            sql.delete_by_key(table, &gone).await?;
        }
        for (name, statement, values) in self.statements {
            sql.own_tables().execute(name, statement, values).await?;
        }
        Ok(())
    }
}

fn not_asked_for(observer: &str, id: &str) -> HandlerError {
    let message = format!("what {observer} looks at was to be {id}, and that was not given");
    HandlerError::unrecoverable(NOT_ASKED_FOR, message)
}

/// The key in a whole row.
fn key_of(table: &Table, values: &[Value<'_>]) -> Vec<Part> {
    let value = |key: &&str| table.columns().zip(values).find(|(column, _)| column == key);
    table.primary_key().iter().filter_map(value).map(|(_, value)| Part::of(value)).collect()
}

impl RowRef<'_> {
    fn value(&self, column: &str) -> StoreResult<&Value<'static>> {
        let found = self.table.columns().zip(self.values).find(|(name, _)| *name == column);
        found.map(|(_, value)| value).ok_or_else(|| self.is_not(column, "a column"))
    }

    fn is_not(&self, column: &str, what: &str) -> StoreError {
        let what = format!("{}.{column} is not {what}", self.table.name());
        StoreError::Corrupt { what: self.table.name().to_owned(), source: what.into() }
    }

    /// A text or null.
    ///
    /// # Errors
    /// This and the others: there is no such column, it is null, or it is of another type.
    pub fn text_or_null(&self, column: &str) -> StoreResult<Option<&str>> {
        match self.value(column)? {
            Value::Text(text) => Ok(text.as_deref()),
            _ => Err(self.is_not(column, "a text")),
        }
    }

    /// A text.
    pub fn text(&self, column: &str) -> StoreResult<&str> {
        self.text_or_null(column)?.ok_or_else(|| self.is_not(column, "there"))
    }

    /// A number or null.
    pub fn long_or_null(&self, column: &str) -> StoreResult<Option<i64>> {
        match self.value(column)? {
            Value::Long(number) => Ok(*number),
            _ => Err(self.is_not(column, "a number")),
        }
    }

    /// A number that cannot be negative.
    pub fn count(&self, column: &str) -> StoreResult<u64> {
        let number = self.long_or_null(column)?.and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.is_not(column, "a count"))
    }

    /// A moment or null.
    pub fn time_or_null(&self, column: &str) -> StoreResult<Option<DateTime<Utc>>> {
        match self.value(column)? {
            Value::Time(moment) => Ok(*moment),
            _ => Err(self.is_not(column, "a moment")),
        }
    }

    /// A moment.
    pub fn time(&self, column: &str) -> StoreResult<DateTime<Utc>> {
        self.time_or_null(column)?.ok_or_else(|| self.is_not(column, "there"))
    }
}
