//! One way to run a statement on three databases: values in, rows out, faults classified by type.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Row as _, ValueRef as _};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::StoreError;
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::lent::Care;

/// A value on its way into a statement. Nulls keep their type, which PostgreSQL asks for.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// A text.
    Text(Option<Cow<'a, str>>),
    /// A number.
    Long(Option<i64>),
    /// An id.
    Uuid(Option<Uuid>),
    /// A moment.
    Time(Option<DateTime<Utc>>),
    /// Bytes of any sort.
    Bytes(Option<&'a [u8]>),
    /// A set of numbers. Only PostgreSQL binds one; see `Session::one_of`.
    Longs(Vec<i64>),
    /// A set of ids. Only PostgreSQL binds one.
    Uuids(Vec<Uuid>),
    /// A set of texts. Only PostgreSQL binds one.
    Texts(Vec<Cow<'a, str>>),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(text)))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text.map(Cow::Borrowed))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Some(Cow::Owned(text)))
    }
}

impl From<Option<String>> for Value<'_> {
    fn from(text: Option<String>) -> Self {
        Self::Text(text.map(Cow::Owned))
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Long(Some(number))
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        // Versions, positions and ids count up from 1 by ones: they do not reach 2^63.
        Self::Long(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Long(Some(i64::from(number)))
    }
}

impl From<u16> for Value<'_> {
    fn from(number: u16) -> Self {
        Self::Long(Some(i64::from(number)))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Long(number)
    }
}

impl From<Uuid> for Value<'_> {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(Some(uuid))
    }
}

impl From<Option<Uuid>> for Value<'_> {
    fn from(uuid: Option<Uuid>) -> Self {
        Self::Uuid(uuid)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(Some(bytes))
    }
}

impl From<DateTime<Utc>> for Value<'_> {
    fn from(moment: DateTime<Utc>) -> Self {
        Self::Time(Some(moment))
    }
}

impl From<Option<DateTime<Utc>>> for Value<'_> {
    fn from(moment: Option<DateTime<Utc>>) -> Self {
        Self::Time(moment)
    }
}

/// How many values one statement may bind: SQLite takes 32,766, PostgreSQL and MySQL 65,535. For an append it is
/// about 1,000 events with a channel each.
pub(crate) const MAX_VALUES: usize = 32_000;

impl Value<'_> {
    /// The same without what it borrows from; none for bytes and sets, which cannot be kept.
    pub fn kept(self) -> Option<Value<'static>> {
        Some(match self {
            Self::Text(text) => text.map(Cow::into_owned).into(),
            Self::Long(number) => Value::Long(number),
            Self::Uuid(id) => Value::Uuid(id),
            Self::Time(moment) => Value::Time(moment),
            Self::Bytes(_) | Self::Longs(_) | Self::Uuids(_) | Self::Texts(_) => return None,
        })
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(
            self,
            Self::Text(None) | Self::Long(None) | Self::Uuid(None) | Self::Time(None) | Self::Bytes(None)
        )
    }

    /// How many bytes of a statement it takes, roughly.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.as_ref().map_or(0, |text| text.len()),
            Self::Bytes(bytes) => bytes.map_or(0, <[u8]>::len),
            Self::Long(_) | Self::Uuid(_) | Self::Time(_) => 16,
            Self::Longs(numbers) => numbers.len() * 8,
            Self::Uuids(ids) => ids.len() * 16,
            Self::Texts(texts) => texts.iter().map(|text| text.len() + 4).sum(),
        }
    }
}

/// Values of different Rust types, as one list.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::Value::from($value)),*] };
}
pub(crate) use values;

/// A text for people, as every database can keep it: without control characters (PostgreSQL has no NUL) and not
/// longer than a column (MySQL's TEXT) or a reader can bear. It may quote what somebody sent.
pub(crate) fn readable(text: &str) -> String {
    const MOST_CHARACTERS: usize = 4000;
    let cleaned = text.chars().map(|character| match character {
        '\n' | '\t' => character,
        character if character.is_control() => char::REPLACEMENT_CHARACTER,
        character => character,
    });
    let mut kept: String = cleaned.take(MOST_CHARACTERS).collect();
    if kept.len() < text.len() && text.chars().nth(MOST_CHARACTERS).is_some() {
        kept.push('…');
    }
    kept
}

/// A stable code, cut to what its column holds. Codes are short; only one made from input could be longer.
pub(crate) fn code(text: &str) -> String {
    readable(text).chars().take(128).collect()
}

/// How a statement failed: the two ways that operations expect, and all others.
#[derive(Debug)]
pub(crate) enum SqlFault {
    /// A unique key exists already; PostgreSQL says which.
    Unique { constraint: Option<String>, error: StoreError },
    /// A foreign key points nowhere.
    ForeignKey(StoreError),
    /// Anything else, classified.
    Other(StoreError),
}

impl SqlFault {
    /// The error.
    pub(crate) fn error(&self) -> &StoreError {
        match self {
            Self::Unique { error, .. } | Self::ForeignKey(error) | Self::Other(error) => error,
        }
    }
}

impl From<SqlFault> for StoreError {
    fn from(fault: SqlFault) -> Self {
        match fault {
            SqlFault::Unique { error, .. } | SqlFault::ForeignKey(error) | SqlFault::Other(error) => error,
        }
    }
}

/// A connection to run statements on; inside a transaction or not is the owner's business.
pub(crate) enum Connection<'c> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut sqlx::SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(&'c mut sqlx::PgConnection),
    #[cfg(feature = "mysql")]
    MySql(&'c mut sqlx::MySqlConnection),
}

/// Runs statements and tells the probe of each.
pub(crate) struct Session<'c> {
    pub(crate) connection: Connection<'c>,
    pub(crate) probe: &'c dyn Probe,
    pub(crate) care: Care<'c>,
}

/// How a statement names rows that were chosen by key. See [`Session::choose`].
pub(crate) struct Chosen {
    /// What stands behind UPDATE or FROM.
    pub(crate) target: String,
    /// The head of a DELETE.
    pub(crate) delete: String,
    /// What stands behind WHERE.
    pub(crate) condition: String,
}

/// A row that was read.
pub(crate) enum Row {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::sqlite::SqliteRow),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::postgres::PgRow),
    #[cfg(feature = "mysql")]
    MySql(sqlx::mysql::MySqlRow),
}

macro_rules! bind_all {
    ($sql:expr, $values:expr, $time:expr, $longs:expr, $uuids:expr, $texts:expr) => {{
        // A long text has a list written into it and will not come again: it must not push others out of the
        // connection's cache of prepared statements.
        let kept = $sql.0.len() < 4096;
        let mut query = sqlx::query($sql).persistent(kept);
        for value in &$values {
            query = match value {
                Value::Text(text) => query.bind(text.as_deref()),
                Value::Long(number) => query.bind(*number),
                Value::Uuid(uuid) => query.bind(*uuid),
                Value::Time(moment) => query.bind(moment.map($time)),
                Value::Bytes(bytes) => query.bind(*bytes),
                Value::Longs(numbers) => query.bind($longs(numbers)),
                Value::Uuids(ids) => query.bind($uuids(ids)),
                Value::Texts(texts) => query.bind($texts(texts)),
            };
        }
        query
    }};
}

/// Where sets are written into the text, none is ever bound; this keeps the match complete.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
fn never_bound<T>(_set: &[T]) -> Option<i64> {
    None
}

#[cfg(feature = "postgres")]
fn borrowed<'t>(texts: &'t [Cow<'_, str>]) -> Vec<&'t str> {
    texts.iter().map(AsRef::as_ref).collect()
}

/// Without its zone, which is always UTC, it is sent as a DATETIME. As a TIMESTAMP it would become NULL before 1970, and on
/// older servers after 2038.
#[cfg(feature = "mysql")]
fn naive(moment: DateTime<Utc>) -> chrono::NaiveDateTime {
    moment.naive_utc()
}

impl<'c> Session<'c> {
    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite(
        connection: &'c mut sqlx::SqliteConnection,
        probe: &'c dyn Probe,
        care: Care<'c>,
    ) -> Self {
        Self { connection: Connection::Sqlite(connection), probe, care }
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(
        connection: &'c mut sqlx::PgConnection,
        probe: &'c dyn Probe,
        care: Care<'c>,
    ) -> Self {
        Self { connection: Connection::Postgres(connection), probe, care }
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn mysql(
        connection: &'c mut sqlx::MySqlConnection,
        probe: &'c dyn Probe,
        care: Care<'c>,
    ) -> Self {
        Self { connection: Connection::MySql(connection), probe, care }
    }

    /// The same without a time limit: for what may take as long as it takes.
    pub(crate) fn without_limit(self) -> Self {
        Self { care: self.care.without_limit(), ..self }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(_) => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Connection::MySql(_) => Dialect::MySql,
        }
    }

    /// `column` is one of these numbers. The set is one parameter (SQLite, which has no sets, gets digits in the text),
    /// so that the text and its prepared statement stay the same for sets of any size. Its placeholder stands where
    /// the condition stands: values before it must be bound first.
    pub(crate) fn one_of(&self, column: &str, numbers: Vec<i64>, values: &mut Vec<Value<'_>>) -> String {
        let dialect = self.dialect();
        if let Some(condition) = dialect.one_of_parameter(column) {
            values.push(dialect.set_parameter(numbers));
            return condition;
        }
        let list: Vec<String> = numbers.iter().map(i64::to_string).collect();
        if list.is_empty() { "1 = 0".to_owned() } else { format!("{column} IN ({})", list.join(",")) }
    }

    /// A set of numbers as a table `asked` with the column `number`, in the same way.
    pub(crate) fn numbers(&self, numbers: Vec<i64>, values: &mut Vec<Value<'_>>) -> String {
        let dialect = self.dialect();
        if let Some(table) = dialect.number_table() {
            values.push(dialect.set_parameter(numbers));
            return table.to_owned();
        }
        let list: Vec<String> = numbers.iter().map(|number| format!("({number})")).collect();
        format!("(SELECT column1 AS number FROM (VALUES {})) AS asked", list.join(","))
    }

    /// Rows of a table chosen by a set of keys, for the FROM of a SELECT. The values of what stands before it must be
    /// bound first.
    ///
    /// On a small table MySQL would rather read all of it than look keys up, and so wait for rows that others have
    /// inserted and not committed. There the keys are a table of their own that is read first, and each row is
    /// looked up by its key.
    pub(crate) fn choose_from(
        &self,
        table: &'static str,
        key: &'static str,
        keys: Vec<i64>,
        values: &mut Vec<Value<'_>>,
    ) -> Chosen {
        let dialect = self.dialect();
        if let Some(target) = dialect.key_table(table, key) {
            values.push(dialect.set_parameter(keys));
            return Chosen {
                delete: format!("DELETE {table} FROM {target}"),
                target,
                condition: "1 = 1".to_owned(),
            };
        }
        Chosen {
            target: table.to_owned(),
            delete: format!("DELETE FROM {table}"),
            condition: self.one_of(key, keys, values),
        }
    }

    /// The same for an UPDATE, whose table stands before the values it sets. Those must be bound already.
    pub(crate) fn choose_for_update(
        &self,
        table: &'static str,
        key: &'static str,
        keys: Vec<i64>,
        values: &mut Vec<Value<'_>>,
    ) -> Chosen {
        let mut chosen_values = Vec::new();
        let chosen = self.choose_from(table, key, keys, &mut chosen_values);
        let at = if self.dialect().key_table(table, key).is_some() { 0 } else { values.len() };
        values.splice(at..at, chosen_values);
        chosen
    }

    /// Tells the probe of a statement written with `?`, and answers what is sent.
    fn announced(&self, name: &'static str, sql: &str) -> AssertSqlSafe<String> {
        self.probe.before(name);
        let instead = self.probe.instead(name, sql);
        AssertSqlSafe(self.dialect().placeholders(instead.as_deref().unwrap_or(sql)))
    }

    /// Runs a statement written with `?` and answers how many rows it touched.
    pub(crate) async fn execute(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<u64, SqlFault> {
        let sql = self.announced(name, sql);
        let Self { connection, care, .. } = self;
        let running = async {
            match connection {
                #[cfg(feature = "sqlite")]
                Connection::Sqlite(connection) => {
                    let query = bind_all!(
                        sql,
                        values,
                        |moment| moment.timestamp_micros(),
                        never_bound,
                        never_bound,
                        never_bound
                    );
                    query.execute(&mut **connection).await.map(|done| done.rows_affected())
                }
                #[cfg(feature = "postgres")]
                Connection::Postgres(connection) => {
                    let query =
                        bind_all!(sql, values, |moment| moment, Vec::as_slice, Vec::as_slice, borrowed);
                    query.execute(&mut **connection).await.map(|done| done.rows_affected())
                }
                #[cfg(feature = "mysql")]
                Connection::MySql(connection) => {
                    let query = bind_all!(sql, values, naive, never_bound, never_bound, never_bound);
                    query.execute(&mut **connection).await.map(|done| done.rows_affected())
                }
            }
        };
        care.run(name, running).await
    }

    /// Runs an UPDATE and answers the changed rows as they are then, in no order. Where an UPDATE answers none they are read
    /// `from` their table.
    pub(crate) async fn updated(
        &mut self,
        name: &'static str,
        (update, values): (String, Vec<Value<'_>>),
        columns: &str,
        (from, keys): (String, Vec<Value<'_>>),
    ) -> Result<Vec<Row>, SqlFault> {
        if self.dialect().returns_updated() {
            return self.rows(name, &format!("{update} RETURNING {columns}"), values).await;
        }
        self.execute(name, &update, values).await?;
        self.rows(name, &format!("SELECT {columns} FROM {from}"), keys).await
    }

    /// Runs a statement written with `?` and answers its rows.
    pub(crate) async fn rows(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<Row>, SqlFault> {
        let sql = self.announced(name, sql);
        let Self { connection, care, .. } = self;
        let running = async {
            match connection {
                #[cfg(feature = "sqlite")]
                Connection::Sqlite(connection) => {
                    let query = bind_all!(
                        sql,
                        values,
                        |moment| moment.timestamp_micros(),
                        never_bound,
                        never_bound,
                        never_bound
                    );
                    query
                        .fetch_all(&mut **connection)
                        .await
                        .map(|rows| rows.into_iter().map(Row::Sqlite).collect())
                }
                #[cfg(feature = "postgres")]
                Connection::Postgres(connection) => {
                    let query =
                        bind_all!(sql, values, |moment| moment, Vec::as_slice, Vec::as_slice, borrowed);
                    query
                        .fetch_all(&mut **connection)
                        .await
                        .map(|rows| rows.into_iter().map(Row::Postgres).collect())
                }
                #[cfg(feature = "mysql")]
                Connection::MySql(connection) => {
                    let query = bind_all!(sql, values, naive, never_bound, never_bound, never_bound);
                    query
                        .fetch_all(&mut **connection)
                        .await
                        .map(|rows| rows.into_iter().map(Row::MySql).collect())
                }
            }
        };
        care.run(name, running).await
    }

    /// The first row, if there is one.
    pub(crate) async fn row(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Option<Row>, SqlFault> {
        Ok(self.rows(name, sql, values).await?.into_iter().next())
    }

    /// Runs text without parameters, outside of prepared statements: DDL and transaction control.
    pub(crate) async fn plain(&mut self, name: &'static str, sql: &str) -> Result<(), SqlFault> {
        self.probe.before(name);
        let query = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let Self { connection, care, .. } = self;
        let running = async {
            match connection {
                #[cfg(feature = "sqlite")]
                Connection::Sqlite(connection) => query.execute(&mut **connection).await.map(|_| ()),
                #[cfg(feature = "postgres")]
                Connection::Postgres(connection) => query.execute(&mut **connection).await.map(|_| ()),
                #[cfg(feature = "mysql")]
                Connection::MySql(connection) => query.execute(&mut **connection).await.map(|_| ()),
            }
        };
        care.run(name, running).await
    }
}

/// A number of PostgreSQL, of four or of eight bytes.
#[cfg(feature = "postgres")]
struct AnyWidth(i64);

#[cfg(feature = "postgres")]
impl sqlx::Type<sqlx::Postgres> for AnyWidth {
    fn type_info() -> sqlx::postgres::PgTypeInfo {
        <i64 as sqlx::Type<sqlx::Postgres>>::type_info()
    }

    fn compatible(info: &sqlx::postgres::PgTypeInfo) -> bool {
        <i64 as sqlx::Type<sqlx::Postgres>>::compatible(info)
            || <i32 as sqlx::Type<sqlx::Postgres>>::compatible(info)
    }
}

#[cfg(feature = "postgres")]
impl<'r> sqlx::Decode<'r, sqlx::Postgres> for AnyWidth {
    fn decode(value: sqlx::postgres::PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
        if <i64 as sqlx::Type<sqlx::Postgres>>::compatible(&value.type_info()) {
            <i64 as sqlx::Decode<sqlx::Postgres>>::decode(value).map(Self)
        } else {
            <i32 as sqlx::Decode<sqlx::Postgres>>::decode(value).map(|number| Self(i64::from(number)))
        }
    }
}

macro_rules! get {
    ($self:expr, $column:expr, $type:ty) => {
        match $self {
            #[cfg(feature = "sqlite")]
            Row::Sqlite(row) => row.try_get::<$type, _>($column),
            #[cfg(feature = "postgres")]
            Row::Postgres(row) => row.try_get::<$type, _>($column),
            #[cfg(feature = "mysql")]
            Row::MySql(row) => row.try_get::<$type, _>($column),
        }
    };
}

impl Row {
    pub(crate) fn text(&self, column: &str) -> Result<String, StoreError> {
        get!(self, column, String).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn text_or_null(&self, column: &str) -> Result<Option<String>, StoreError> {
        get!(self, column, Option<String>).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn bytes(&self, column: &str) -> Result<Vec<u8>, StoreError> {
        get!(self, column, Vec<u8>).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn uuid(&self, column: &str) -> Result<Uuid, StoreError> {
        get!(self, column, Uuid).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn uuid_or_null(&self, column: &str) -> Result<Option<Uuid>, StoreError> {
        get!(self, column, Option<Uuid>).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn long(&self, column: &str) -> Result<i64, StoreError> {
        self.long_or_null(column)?.ok_or_else(|| unexpected_null(column))
    }

    pub(crate) fn long_or_null(&self, column: &str) -> Result<Option<i64>, StoreError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(row) => row.try_get::<Option<i64>, _>(column),
            // PostgreSQL's driver reads a number only as its own width.
            #[cfg(feature = "postgres")]
            Self::Postgres(row) => {
                row.try_get::<Option<AnyWidth>, _>(column).map(|number| number.map(|AnyWidth(number)| number))
            }
            #[cfg(feature = "mysql")]
            Self::MySql(row) => row.try_get::<Option<i64>, _>(column),
        }
        .map_err(|error| unreadable(column, error))
    }

    /// A number that cannot be negative: a version, a position, a count.
    pub(crate) fn count(&self, column: &str) -> Result<u64, StoreError> {
        let number = self.long(column)?;
        u64::try_from(number).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn is_null(&self, column: &str) -> Result<bool, StoreError> {
        let found = match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(row) => row.try_get_raw(column).map(|value| value.is_null()),
            #[cfg(feature = "postgres")]
            Self::Postgres(row) => row.try_get_raw(column).map(|value| value.is_null()),
            #[cfg(feature = "mysql")]
            Self::MySql(row) => row.try_get_raw(column).map(|value| value.is_null()),
        };
        found.map_err(|error| unreadable(column, error))
    }

    /// A small number that cannot be negative.
    pub(crate) fn small(&self, column: &str) -> Result<u32, StoreError> {
        let number = self.long(column)?;
        u32::try_from(number).map_err(|error| unreadable(column, error))
    }

    pub(crate) fn time(&self, column: &str) -> Result<DateTime<Utc>, StoreError> {
        self.time_or_null(column)?.ok_or_else(|| unexpected_null(column))
    }

    pub(crate) fn time_or_null(&self, column: &str) -> Result<Option<DateTime<Utc>>, StoreError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(row) => row.try_get::<Option<i64>, _>(column).map(|micros| {
                micros
                    .map(|micros| DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC))
            }),
            #[cfg(feature = "postgres")]
            Self::Postgres(row) => row.try_get::<Option<DateTime<Utc>>, _>(column),
            #[cfg(feature = "mysql")]
            Self::MySql(row) => row.try_get::<Option<DateTime<Utc>>, _>(column),
        }
        .map_err(|error| unreadable(column, error))
    }
}

/// A stored value that cannot be what was written.
pub(crate) fn unreadable(what: &str, source: impl Into<towpath_core::ports::store::BoxError>) -> StoreError {
    StoreError::corrupt(what, source)
}

pub(crate) fn unexpected_null(column: &str) -> StoreError {
    unreadable(column, "it is null")
}

/// What an error of the driver means, by its type and code: for an application that runs statements of its own.
pub fn fault(statement: &'static str, error: sqlx::Error) -> StoreError {
    classify(statement, error).into()
}

/// Whether an error is that a row of the same key is there already.
pub fn is_unique_violation(error: &StoreError) -> bool {
    let StoreError::Refused { source, .. } = error else { return false };
    let error = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
    error.is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

/// Whether an error of the driver is that its transaction gave way to another one.
pub fn gives_way(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| matches!(fault_kind(error), FaultKind::Contention))
}

/// Sorts a driver's error into what a caller can do about it, by its codes and never by its text.
pub(crate) fn classify(statement: &'static str, error: sqlx::Error) -> SqlFault {
    let sqlx::Error::Database(database) = &error else {
        return SqlFault::Other(match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed => StoreError::Unavailable(error.into()),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => unreadable(statement, error),
            other => StoreError::Refused { statement, source: other.into() },
        });
    };
    let refused = |error: sqlx::Error| StoreError::Refused { statement, source: error.into() };
    if database.is_unique_violation() {
        let constraint = database.constraint().map(str::to_owned);
        return SqlFault::Unique { constraint, error: refused(error) };
    }
    if database.is_foreign_key_violation() {
        return SqlFault::ForeignKey(refused(error));
    }
    SqlFault::Other(match fault_kind(database.as_ref()) {
        FaultKind::Contention => StoreError::Contention(error.into()),
        FaultKind::Unavailable => StoreError::Unavailable(error.into()),
        FaultKind::Full => StoreError::Full(error.into()),
        FaultKind::Unstorable => StoreError::Unstorable(error.into()),
        FaultKind::NoSuchTable => {
            StoreError::NotMigrated { found: 0, needed: crate::migrations::newest_version() }
        }
        FaultKind::Other => refused(error),
    })
}

/// Whether the server has ended a statement because its time was over.
pub(crate) fn cut_off(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    #[cfg(feature = "postgres")]
    if database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
        return database.code().as_deref() == Some("57014");
    }
    #[cfg(feature = "mysql")]
    if let Some(mysql) = database.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return matches!(mysql.number(), 1317 | 1969 | 3024);
    }
    // SQLite's "interrupted".
    database.code().as_deref() == Some("9")
}

enum FaultKind {
    Contention,
    Unavailable,
    Full,
    Unstorable,
    NoSuchTable,
    Other,
}

fn fault_kind(error: &dyn sqlx::error::DatabaseError) -> FaultKind {
    #[cfg(feature = "postgres")]
    if error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
        return match error.code().as_deref().unwrap_or_default() {
            // serialization_failure, deadlock_detected, lock_not_available
            "40001" | "40P01" | "55P03" => FaultKind::Contention,
            // disk_full, out_of_memory
            "53100" | "53200" => FaultKind::Full,
            // query_canceled (statement_timeout), statement_completion_unknown
            "57014" | "40003" => FaultKind::Contention,
            // too_many_connections, admin_shutdown, crash_shutdown, cannot_connect_now, idle session and idle
            // transaction timeouts, read-only standby
            "53300" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25006" => FaultKind::Unavailable,
            "42P01" => FaultKind::NoSuchTable,
            // character_not_in_repertoire, untranslatable_character: a NUL
            "22021" | "22P05" => FaultKind::Unstorable,
            code if code.starts_with("08") => FaultKind::Unavailable,
            _ => FaultKind::Other,
        };
    }
    #[cfg(feature = "mysql")]
    if let Some(mysql) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return match mysql.number() {
            // deadlock, lock wait timeout, record changed since last read, query interrupted or timed out
            1213 | 1205 | 1206 | 1020 | 1317 | 1969 | 3024 | 3101 => FaultKind::Contention,
            // table full, disk full, cannot write
            1114 | 1021 | 3 => FaultKind::Full,
            // too many connections, cluster not ready, shutdown, network errors, connection killed, gone away, idle
            // connection closed, read-only
            1040 | 1047 | 1053 | 1158..=1161 | 1203 | 1290 | 1836 | 1927 | 2006 | 2013 | 4031 => {
                FaultKind::Unavailable
            }
            1146 => FaultKind::NoSuchTable,
            _ => FaultKind::Other,
        };
    }
    #[cfg(feature = "sqlite")]
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        let code: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or_default();
        // The low byte is the primary code: 5 busy, 6 locked, 13 full, 10 I/O error, 14 cannot open.
        return match code & 0xff {
            5 | 6 => FaultKind::Contention,
            13 => FaultKind::Full,
            10 | 14 => FaultKind::Unavailable,
            // SQLite has no code for a missing table; `ready` and `migrate` look at the version instead.
            _ => FaultKind::Other,
        };
    }
    let _ = error;
    FaultKind::Other
}
