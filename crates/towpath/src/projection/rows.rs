//! The rows that facts change: those that were asked for, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use towpath_core::ports::store::{StoreError, StoreResult, Watch};
use towpath_store::{Record, Row, SqlTransaction, Table, Value};
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
    values: Option<Arc<Vec<Value<'static>>>>,
    is_changed: bool,
}

impl RowKey {
    /// The key of a row.
    pub fn of<R: Row>(key: &R::Key) -> Self {
        Self { table: R::TABLE, parts: R::key_values(key).iter().map(Part::of).collect() }
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
    pub fn find<R: Row>(&self, key: &R::Key) -> Result<Option<R>, HandlerError> {
        let RowKey { table, parts } = RowKey::of::<R>(key);
        let slot = self.tables.get(table.name()).and_then(|in_table| in_table.rows.get(&parts));
        let Some(slot) = slot else {
            let message = format!("a row of {} was read whose key was not given", table.name());
            return Err(HandlerError::unrecoverable(NOT_ASKED_FOR, message));
        };
        let record = slot.values.as_ref().map(|values| Record::held(table, Arc::clone(values)));
        Ok(record.map(|record| R::read(&record)).transpose()?)
    }

    /// Writes a row, in the place of one with the same key.
    ///
    /// # Errors
    /// It has bytes: such a row cannot be projected.
    pub fn put<R: Row>(&mut self, row: &R) -> Result<(), HandlerError> {
        let values: Option<Vec<_>> = row.values().into_iter().map(Value::kept).collect();
        let Some(values) = values else {
            let what = format!("rows with bytes cannot be projected: {}", R::TABLE.name());
            return Err(StoreError::Refused { statement: "projection.put", source: what.into() }.into());
        };
        self.change(R::TABLE, key_of(R::TABLE, &values), Some(Arc::new(values)));
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
    pub fn lost<R: Row>(&mut self) -> HandlerError {
        self.is_lost = true;
        let message = format!("a row of {} is gone that earlier facts have made", R::TABLE.name());
        HandlerError::unrecoverable(OUT_OF_ORDER, message)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn change(&mut self, table: &'static Table, parts: Vec<Part>, values: Option<Arc<Vec<Value<'static>>>>) {
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
                let parts = key_of(table, &values);
                rows.insert(parts, Slot { values: Some(Arc::new(values)), is_changed: false });
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
                    Some(values) => put.push(Arc::unwrap_or_clone(values)),
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
