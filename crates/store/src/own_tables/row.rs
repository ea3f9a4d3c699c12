//! Rows of an application's own tables as its own structs.

use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_core::ports::store::StoreResult;
pub use towpath_macros::{Row, StoredName};
use uuid::Uuid;

use super::Record;
use crate::schema::{Column, ColumnKind, Table};
use crate::sql::{Value, unreadable};

/// A struct that is a row of a table. Derive it: the struct is the only place where the table's columns are declared.
///
/// ```ignore
/// #[derive(Row)]
/// #[row(table = "orders", index(orders_buyer(buyer_id, order_id)))]
/// struct Order {
///     #[row(key)]
///     order_id: i64,
///     #[row(name = 64)]
///     status: String,
///     buyer_id: i64,
///     paid_at: Option<DateTime<Utc>>,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a row of a table",
    note = "write `#[derive(Row)]` and `#[row(table = \"...\")]` on the struct, and `#[row(key)]` on its key"
)]
pub trait Row: Sized + Send + Sync {
    /// The table.
    const TABLE: &'static Table;

    /// The column that says which state the row is in, if one does.
    const STATE: Option<&'static str> = None;

    /// What tells its rows apart: one value, or a tuple of them.
    type Key: Sync;

    /// A key's values, in the order of the table's key.
    fn key_values(key: &Self::Key) -> Vec<Value<'_>>;

    /// Its values, in the order of the table's columns.
    fn values(&self) -> Vec<Value<'_>>;

    /// The row that was read.
    ///
    /// # Errors
    /// A column is missing, or holds what the field cannot be.
    fn read(record: &Record) -> StoreResult<Self>;
}

/// What can stand in a column. Types of an application's own implement it by those below.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand in a column",
    note = "implement `ColumnValue` for it: its kind, how it is written, and how it is read"
)]
pub trait ColumnValue: Sized {
    /// What the column holds.
    const KIND: ColumnKind;

    /// Whether it may be null.
    const NULLABLE: bool = false;

    /// The value for a statement.
    fn write(&self) -> Value<'_>;

    /// The value of a row that was read.
    ///
    /// # Errors
    /// What stands there cannot be this.
    fn read(record: &Record, column: &str) -> StoreResult<Self>;
}

impl Column {
    /// The column for values of this type.
    pub const fn of<T: ColumnValue>(name: &'static str) -> Self {
        Self { name, kind: T::KIND, nullable: T::NULLABLE, default: None }
    }

    /// The same column, with another type of the database's for the same values.
    pub const fn kind(self, kind: ColumnKind) -> Self {
        Self { kind, ..self }
    }
}

macro_rules! column_values {
    ($($type:ty: $kind:ident, $write:expr, $read:expr;)+) => { $(
        impl ColumnValue for $type {
            const KIND: ColumnKind = ColumnKind::$kind;

            fn write(&self) -> Value<'_> {
                let write: for<'v> fn(&'v $type) -> Value<'v> = $write;
                write(self)
            }

            fn read(record: &Record, column: &str) -> StoreResult<Self> {
                let read: fn(&Record, &str) -> StoreResult<$type> = $read;
                read(record, column)
            }
        }
    )+ };
}

column_values! {
    String: Text, |text| text.as_str().into(), Record::text;
    i64: Long, |number| (*number).into(), Record::long;
    u64: Long, |number| (*number).into(), Record::count;
    u32: Long, |number| (*number).into(), |record, column| {
        u32::try_from(record.long(column)?).map_err(|error| unreadable(column, error))
    };
    bool: Long, |flag| i64::from(*flag).into(), |record, column| Ok(record.long(column)? != 0);
    Uuid: Uuid, |id| (*id).into(), Record::uuid;
    DateTime<Utc>: Time, |moment| (*moment).into(), Record::time;
    Vec<u8>: Bytes, |bytes| bytes.as_slice().into(), Record::bytes;
}

impl<T: ColumnValue> ColumnValue for Option<T> {
    const KIND: ColumnKind = T::KIND;
    const NULLABLE: bool = true;

    fn write(&self) -> Value<'_> {
        match self {
            Some(value) => value.write(),
            None => null(T::KIND),
        }
    }

    fn read(record: &Record, column: &str) -> StoreResult<Self> {
        if record.is_null(column)? { Ok(None) } else { T::read(record, column).map(Some) }
    }
}

/// A value that is kept as JSON, with its text: what was read is written back to the letter.
#[derive(Debug, Clone, PartialEq)]
pub struct Json<T> {
    value: T,
    text: String,
}

impl<T> Json<T> {
    /// The value, to be kept.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn of(value: T) -> serde_json::Result<Self>
    where
        T: Serialize,
    {
        Ok(Self { text: serde_json::to_string(&value)?, value })
    }

    /// The JSON.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }
}

impl<T> Deref for Json<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: DeserializeOwned> ColumnValue for Json<T> {
    const KIND: ColumnKind = ColumnKind::Json;

    fn write(&self) -> Value<'_> {
        self.text.as_str().into()
    }

    fn read(record: &Record, column: &str) -> StoreResult<Self> {
        let text = record.text(column)?;
        let value = serde_json::from_str(&text).map_err(|error| unreadable(column, error))?;
        Ok(Self { value, text })
    }
}

/// PostgreSQL asks for the type of what is not there, too.
fn null(kind: ColumnKind) -> Value<'static> {
    match kind {
        ColumnKind::Name(_) | ColumnKind::Text | ColumnKind::Json => Value::Text(None),
        ColumnKind::Bytes => Value::Bytes(None),
        ColumnKind::Uuid => Value::Uuid(None),
        ColumnKind::Time => Value::Time(None),
        ColumnKind::Long | ColumnKind::Int | ColumnKind::Count | ColumnKind::AutoId => Value::Long(None),
    }
}
