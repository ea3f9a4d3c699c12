//! What the three databases say differently, in one place.

use std::borrow::Cow;

use crate::schema::{Column, ColumnKind, Index, Only, Table};
use crate::sql::Value;
use crate::views::ViewType;
use uuid::Uuid;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres,
    /// MySQL and MariaDB.
    #[cfg(feature = "mysql")]
    MySql,
}

/// What stands in the SQL for each database, in the order SQLite, PostgreSQL, MySQL.
macro_rules! say {
    ($dialect:expr, $sqlite:expr, $postgres:expr, $mysql:expr) => {
        match $dialect {
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => $sqlite,
            #[cfg(feature = "postgres")]
            Dialect::Postgres => $postgres,
            #[cfg(feature = "mysql")]
            Dialect::MySql => $mysql,
        }
    };
}

impl Dialect {
    /// The database's own clock. Leases live by it, so that hosts whose clocks disagree do not.
    pub(crate) fn now(self) -> &'static str {
        say!(self, "CAST(unixepoch('subsec') * 1000000 AS INTEGER)", "clock_timestamp()", "UTC_TIMESTAMP(6)")
    }

    /// The same, standing still for the length of a statement: only so can PostgreSQL look it up in an index.
    pub(crate) fn now_of_statement(self) -> &'static str {
        say!(self, self.now(), "statement_timestamp()", self.now())
    }

    /// The database's clock plus a number of microseconds that is bound as a parameter.
    pub(crate) fn now_plus_parameter(self) -> &'static str {
        say!(
            self,
            "(CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?)",
            "(clock_timestamp() + CAST(? AS bigint) * interval '1 microsecond')",
            "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL ? MICROSECOND)"
        )
    }

    /// The database's clock plus a number of microseconds that stands in the row.
    pub(crate) fn now_plus(self, micros: &str) -> String {
        self.now_plus_parameter().replace('?', micros)
    }

    /// From one moment to a later one, in microseconds.
    pub(crate) fn micros_between(self, earlier: &str, later: &str) -> String {
        say!(
            self,
            format!("({later} - {earlier})"),
            format!("CAST(EXTRACT(EPOCH FROM ({later} - {earlier})) * 1000000 AS bigint)"),
            format!("TIMESTAMPDIFF(MICROSECOND, {earlier}, {later})")
        )
    }

    /// The condition that a lease has not run out. One that was renewed in what is the future now is of a time before the
    /// database's clock was set back: a holder that lives renews it, and one that is gone would have it for the difference.
    pub(crate) fn lease_lives(self) -> String {
        let (now, soon) = (
            self.now(),
            say!(
                self,
                "(CAST(unixepoch('subsec') * 1000000 AS INTEGER) + 60000000)",
                "(clock_timestamp() + interval '1 minute')",
                "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL 1 MINUTE)"
            ),
        );
        format!("leases.expires_at > {now} AND leases.renewed_at <= {soon}")
    }

    /// The statement that takes so many leases, each given by its name, its holder and for how many microseconds: those
    /// that nobody has, that have run out, or that are the holder's own.
    pub(crate) fn take_leases(self, count: usize) -> String {
        let (now, until) = (self.now(), self.now_plus_parameter());
        let row = format!("(?, ?, 1, {now}, {now}, {until})");
        let assigned = ["acquired_at", "holder_id", "renewed_at", "expires_at"];
        let may_be_taken =
            format!("NOT ({}) OR leases.holder_id = {}", self.lease_lives(), self.inserted("holder_id"));
        let (assignments, condition) = if say!(self, false, false, true) {
            // Without a condition for the whole row. Each assignment sees those before it: the times that the condition is
            // about come last, when the holder is changed and it holds all the same.
            let taken = |column: &str, value: String| {
                format!("{column} = CASE WHEN {may_be_taken} THEN {value} ELSE leases.{column} END")
            };
            let mut all = vec![taken("epoch", "leases.epoch + 1".to_owned())];
            all.extend(assigned.iter().map(|column| taken(column, self.inserted(column))));
            (all.join(", "), String::new())
        } else {
            let mut all = vec!["epoch = leases.epoch + 1".to_owned()];
            all.extend(assigned.iter().map(|column| format!("{column} = {}", self.inserted(column))));
            (all.join(", "), format!(" WHERE {may_be_taken}"))
        };
        format!(
            "INSERT INTO leases (lease_name, holder_id, epoch, acquired_at, renewed_at, expires_at) VALUES {} \
             {} {assignments}{condition}",
            vec![row.as_str(); count].join(", "),
            self.on_conflict("lease_name")
        )
    }

    /// Locks the rows read. SQLite's write transaction has locked everything already.
    pub(crate) fn for_update(self) -> &'static str {
        say!(self, "", "FOR UPDATE", "FOR UPDATE")
    }

    /// Locks the rows read and passes over those that others hold.
    pub(crate) fn for_update_skip_locked(self) -> &'static str {
        say!(self, "", "FOR UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED")
    }

    /// Keeps the rows read from changing until the transaction ends. MariaDB has no FOR SHARE.
    pub(crate) fn for_share(self) -> &'static str {
        say!(self, "", "FOR SHARE", "LOCK IN SHARE MODE")
    }

    /// The first column of a partial index and what else must be said so that the index is used.
    pub(crate) fn partial(self, index: &Index, alias: &str) -> (String, String) {
        let first = index.columns[0];
        match index.only {
            Only::Where { condition, mysql_column } => say!(
                self,
                (format!("{alias}{first}"), format!(" AND {}", qualify(condition, alias))),
                (format!("{alias}{first}"), format!(" AND {}", qualify(condition, alias))),
                (format!("{alias}{mysql_column}"), String::new())
            ),
            Only::All | Only::FirstNotNull => (format!("{alias}{first}"), String::new()),
        }
    }

    /// `column` is exactly a parameter, which may stand there twice; and what stands before the other columns in the order.
    /// Said so that an index which begins with the column is used for the order of its other columns.
    ///
    /// With a plain equality PostgreSQL drops the column from the order, and then rather reads the primary key or the
    /// whole table until it comes across a row that fits. MariaDB sorts everything when the column is in the order.
    pub(crate) fn pinned(self, column: &str) -> (String, String) {
        say!(
            self,
            (format!("{column} = ?"), format!("{column}, ")),
            (format!("{column} BETWEEN ? AND ?"), format!("{column}, ")),
            (format!("{column} = ?"), String::new())
        )
    }

    /// The same for a walk: a range of the next column follows, and the look begins there. With a plain equality MariaDB
    /// reads everything that has it from the beginning.
    pub(crate) fn pinned_for_a_walk(self, column: &str) -> (String, String) {
        say!(
            self,
            self.pinned(column),
            self.pinned(column),
            (format!("{column} >= ? AND {column} <= ?"), format!("{column}, "))
        )
    }

    /// Compares a key of several columns with as many parameters, by `>` or `<=`; says which of the parameters stand where.
    /// MySQL reads an index only for a comparison that is taken apart.
    pub(crate) fn compared(self, columns: &[String], than: &str) -> (String, Vec<usize>) {
        let marks = vec!["?"; columns.len()].join(", ");
        let whole = || (format!("({}) {than} ({marks})", columns.join(", ")), (0..columns.len()).collect());
        say!(self, whole(), whole(), compared_apart(columns, than))
    }

    /// The head of an upsert's second half.
    pub(crate) fn on_conflict(self, key: &str) -> String {
        say!(
            self,
            format!("ON CONFLICT ({key}) DO UPDATE SET"),
            format!("ON CONFLICT ({key}) DO UPDATE SET"),
            "ON DUPLICATE KEY UPDATE".to_owned()
        )
    }

    /// In an upsert's second half: the value that was to be inserted.
    pub(crate) fn inserted(self, column: &str) -> String {
        say!(self, format!("excluded.{column}"), format!("excluded.{column}"), format!("VALUES({column})"))
    }

    /// The same, if the number in the column `version` is not lower than the one that is there; otherwise what is there.
    pub(crate) fn inserted_if_newer(self, table: &str, column: &str, version: Option<&str>) -> String {
        let inserted = self.inserted(column);
        let Some(version) = version else { return inserted };
        // In PostgreSQL a bare name could be of either row.
        let newer = format!("{} >= {table}.{version}", self.inserted(version));
        format!("CASE WHEN {newer} THEN {inserted} ELSE {table}.{column} END")
    }

    /// `column` is in a set that is one parameter; none where sets cannot be bound.
    pub(crate) fn one_of_parameter(self, column: &str) -> Option<String> {
        say!(
            self,
            None,
            Some(format!("{column} = ANY(?)")),
            Some(format!("{column} IN (SELECT chosen.chosen_key FROM {} AS chosen)", mysql_set()))
        )
    }

    /// A set of numbers as that parameter.
    pub(crate) fn set_parameter(self, numbers: Vec<i64>) -> Value<'static> {
        if say!(self, false, true, false) {
            return Value::Longs(numbers);
        }
        let list: Vec<String> = numbers.iter().map(i64::to_string).collect();
        Value::from(format!("[{}]", list.join(",")))
    }

    /// The condition that a column is one of a set of ids that is one parameter. No index serves it everywhere: it is for
    /// rows that are chosen by something else.
    pub(crate) fn one_of_ids(self, column: &str, ids: &[Uuid]) -> (String, Value<'static>) {
        let listed = || {
            let list: Vec<String> = ids.iter().map(|id| format!("{:X}", id.simple())).collect();
            Value::from(list.join(","))
        };
        say!(
            self,
            (format!("instr(?, hex({column})) > 0"), listed()),
            (format!("{column} = ANY(?)"), Value::Uuids(ids.to_vec())),
            (format!("LOCATE(HEX({column}), ?) > 0"), listed())
        )
    }

    /// What each of these ids has, as a value: NULL for those that are not among them. `mark` says what becomes of a value, which
    /// stands in it as `?`. The values are texts or numbers, all of one sort.
    pub(crate) fn by_id<'v>(
        self,
        column: &str,
        each: Vec<(Uuid, Value<'v>)>,
        mark: &str,
        values: &mut Vec<Value<'v>>,
    ) -> String {
        if each.is_empty() {
            return "NULL".to_owned();
        }
        // As two parameters, where sets can be bound: then the text is the same for any number of them.
        if say!(self, false, true, false) {
            let (ids, each): (Vec<Uuid>, Vec<Value<'v>>) = each.into_iter().unzip();
            let (sort, each) = set_of(each);
            values.extend([each, Value::Uuids(ids)]);
            return mark.replace('?', &format!("(?::{sort}[])[array_position(?::uuid[], {column})]"));
        }
        let cases = vec![format!(" WHEN ? THEN {mark}"); each.len()].concat();
        values.extend(each.into_iter().flat_map(|(id, value)| [Value::from(id), value]));
        format!("CASE {column}{cases} END")
    }

    /// A set of ids that is one parameter, as a table in its order; none where sets of ids cannot be bound.
    pub(crate) fn unnested_uuids(self) -> Option<&'static str> {
        say!(self, None, Some("unnest(?::uuid[])"), None)
    }

    /// A table joined behind a set of its keys; none where the planner looks keys up by itself.
    pub(crate) fn key_table(self, table: &str, key: &str) -> Option<String> {
        say!(
            self,
            None,
            None,
            Some(format!(
                "{} AS chosen STRAIGHT_JOIN {table} ON {table}.{key} = chosen.chosen_key",
                mysql_set()
            ))
        )
    }

    /// A set of numbers that is one parameter, as a table `asked` with the column `number`; none where sets cannot be bound.
    pub(crate) fn number_table(self) -> Option<&'static str> {
        say!(
            self,
            None,
            Some("unnest(?::bigint[]) AS asked (number)"),
            Some("JSON_TABLE(?, '$[*]' COLUMNS (number BIGINT PATH '$')) AS asked")
        )
    }

    /// Asks how many bytes one statement may have, as `most`; none where that is more than anybody sends.
    pub(crate) fn largest_statement(self) -> Option<&'static str> {
        say!(self, None, None, Some("SELECT CAST(@@max_allowed_packet AS SIGNED) AS most"))
    }

    /// The type name that makes a parameter a 64-bit number in an expression.
    pub(crate) fn integer_cast(self) -> &'static str {
        say!(self, "INTEGER", "bigint", "SIGNED")
    }

    /// Finds a table by its name in the current schema.
    pub(crate) fn table_exists(self) -> &'static str {
        say!(
            self,
            "SELECT 1 AS one FROM sqlite_master WHERE type = 'table' AND name = ?",
            "SELECT 1 AS one FROM pg_tables WHERE tablename = ? AND schemaname = current_schema()",
            "SELECT 1 AS one FROM information_schema.tables WHERE table_name = ? AND table_schema = DATABASE() \
             AND table_type <> 'VIEW'"
        )
    }

    /// The names of the columns of a table in the current schema, as `column_name`.
    pub(crate) fn columns_of_table(self) -> &'static str {
        say!(
            self,
            "SELECT name AS column_name FROM pragma_table_info(?)",
            "SELECT CAST(column_name AS text) AS column_name FROM information_schema.columns \
             WHERE table_name = ? AND table_schema = current_schema()",
            "SELECT column_name AS column_name FROM information_schema.columns \
             WHERE table_name = ? AND table_schema = DATABASE()"
        )
    }

    /// Finds an index by its table and its name in the current schema.
    pub(crate) fn index_exists(self) -> &'static str {
        say!(
            self,
            "SELECT 1 AS one FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND name = ?",
            "SELECT 1 AS one FROM pg_indexes WHERE tablename = ? AND indexname = ? AND schemaname = current_schema()",
            "SELECT 1 AS one FROM information_schema.statistics WHERE table_name = ? AND index_name = ? \
             AND table_schema = DATABASE() LIMIT 1"
        )
    }

    /// Whether a view can be replaced in one statement.
    pub(crate) fn replaces_views(self) -> bool {
        say!(self, false, true, true)
    }

    /// A text inside of SQL, where no parameter can stand.
    pub(crate) fn literal(self, text: &str) -> String {
        let quoted = text.replace('\'', "''");
        format!("'{}'", say!(self, quoted, quoted, quoted.replace('\\', "\\\\")))
    }

    /// A UUID as people write it.
    pub(crate) fn uuid_text(self, column: &str) -> String {
        let hex = |hex: &str| {
            let parts = [(1, 8), (9, 4), (13, 4), (17, 4), (21, 12)];
            parts.map(|(start, length)| format!("SUBSTR({hex}, {start}, {length})"))
        };
        say!(
            self,
            hex(&format!("LOWER(HEX({column}))")).join(" || '-' || "),
            format!("CAST({column} AS varchar(64))"),
            format!("CAST(CONCAT_WS('-', {}) AS CHAR(64))", hex(&format!("LOWER(HEX({column}))")).join(", "))
        )
    }

    /// A number for a UUID that stays the same: 62 of its random bits. SQLite cannot read hexadecimal digits; there it is
    /// the row's place among the others.
    pub(crate) fn number_of_uuid(self, column: &str) -> String {
        say!(
            self,
            format!("ROW_NUMBER() OVER (ORDER BY {column})"),
            format!(
                "(('x' || SUBSTR(REPLACE(CAST({column} AS text), '-', ''), 17))::bit(64)::bigint & 4611686018427387903)"
            ),
            format!(
                "CAST(CAST(CONV(SUBSTR(HEX({column}), 17), 16, 10) AS UNSIGNED) & 4611686018427387903 AS SIGNED)"
            )
        )
    }

    /// A moment in whole seconds, as a column of SQL's own type for it.
    pub(crate) fn date_time(self, column: &str) -> String {
        say!(
            self,
            format!("datetime({column} / 1000000, 'unixepoch')"),
            format!("CAST(date_trunc('second', {column} AT TIME ZONE 'UTC') AS timestamp(0))"),
            // A cast would round up into the future.
            format!("CAST(DATE_FORMAT({column}, '%Y-%m-%d %H:%i:%s') AS DATETIME)")
        )
    }

    /// A column of a view in a type that its application has declared.
    pub(crate) fn typed(self, kind: ViewType, expression: &str) -> String {
        let _ = kind;
        say!(self, expression.to_owned(), expression.to_owned(), kind.on_mysql(expression))
    }

    /// Whether tables can be made inside a transaction.
    pub(crate) fn transactional_ddl(self) -> bool {
        say!(self, true, true, false)
    }

    /// Makes instances that migrate at the same time take turns, inside the migration's transaction. SQLite's write
    /// transaction does that by itself.
    pub(crate) fn migration_lock(self) -> Option<&'static str> {
        say!(
            self,
            None,
            Some(
                "SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(hashtextextended('towpath_migrate.' || current_schema(), 0))"
            ),
            None
        )
    }

    /// The same for the tables of an application, which do not wait for ours.
    pub(crate) fn named_lock(self, name: &str) -> Option<String> {
        let lock = || {
            format!(
                "SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(hashtextextended('{name}.' || current_schema(), 0))"
            )
        };
        say!(self, None, Some(lock()), None)
    }

    /// Makes the table of the versions of an application, unless it is there.
    pub(crate) fn versions_table(self, name: &str) -> String {
        let (long, time) = (self.column_type(ColumnKind::Long), self.column_type(ColumnKind::Time));
        format!(
            "CREATE TABLE IF NOT EXISTS {name}_migrations \
             (version {long} NOT NULL PRIMARY KEY, applied_at {time} NOT NULL)"
        )
    }

    /// The one that is for this database.
    pub(crate) fn own_words<'t>(self, sqlite: &'t str, postgres: &'t str, mysql: &'t str) -> &'t str {
        let _ = (sqlite, postgres, mysql);
        say!(self, sqlite, postgres, mysql)
    }

    /// Lets an insert of an existing key do nothing, where an error would end the transaction. MySQL's goes on, and
    /// the caller sees the error.
    pub(crate) fn ignoring_duplicates(self) -> &'static str {
        say!(self, "ON CONFLICT DO NOTHING", "ON CONFLICT DO NOTHING", "")
    }

    /// Stands behind an insert whose row gives way to one that has a key of it. The answer is read from the row that is there.
    pub(crate) fn unless_a_key_is_taken(self, table: &Table) -> String {
        say!(
            self,
            "ON CONFLICT DO NOTHING".to_owned(),
            "ON CONFLICT DO NOTHING".to_owned(),
            self.otherwise_hold(table)
        )
    }

    /// Stands at the end of a SELECT that locks the rows it reads. SQLite's write transaction has locked everything
    /// already.
    pub fn locking(self) -> &'static str {
        say!(self, "", " FOR UPDATE", " FOR UPDATE")
    }

    /// Stands behind a table that is to be read by one index. MySQL takes a small LIMIT for a reason to go through the
    /// primary key and look at every row until it has found enough; with few to find that is all of them. The others know
    /// better.
    pub fn by_index(self, index: &str) -> String {
        say!(self, String::new(), String::new(), format!(" FORCE INDEX ({index})"))
    }

    /// Joins two tables so that the first one is read first: its index is the way to what is sought. PostgreSQL finds that
    /// out by itself.
    pub fn first_then(self) -> &'static str {
        say!(self, "CROSS JOIN", "JOIN", "STRAIGHT_JOIN")
    }

    /// An insert of what stands behind INTO that changes nothing where the key is there already.
    pub fn insert_unless_there(self, into: &str) -> String {
        say!(
            self,
            format!("INSERT INTO {into} ON CONFLICT DO NOTHING"),
            format!("INSERT INTO {into} ON CONFLICT DO NOTHING"),
            format!("INSERT IGNORE INTO {into}")
        )
    }

    /// Stands behind an insert that does nothing where the key of its row is there. MySQL cannot be told which key: it fails.
    pub(crate) fn otherwise_nothing(self, table: &Table) -> String {
        let nothing = || format!("ON CONFLICT ({}) DO NOTHING", table.primary_key.join(", "));
        say!(self, nothing(), nothing(), String::new())
    }

    /// The same where the row is wanted next: MySQL takes it for this transaction alone.
    pub(crate) fn otherwise_hold(self, table: &Table) -> String {
        let held = || table.primary_key.first().map(|key| format!("{key} = {}.{key}", table.name));
        say!(
            self,
            self.otherwise_nothing(table),
            self.otherwise_nothing(table),
            format!("ON DUPLICATE KEY UPDATE {}", held().unwrap_or_default())
        )
    }

    /// Whether a statement that fails ends its transaction, whatever it was.
    pub(crate) fn ends_transactions_by_errors(self) -> bool {
        say!(self, false, true, false)
    }

    /// Whether an UPDATE can answer the rows that it changed.
    pub(crate) fn returns_updated(self) -> bool {
        say!(self, true, true, false)
    }

    /// Whether an upsert that changes nothing reports no row. MySQL reports found rows, so its answer is ambiguous.
    pub(crate) fn reports_upserts_plainly(self) -> bool {
        say!(self, true, true, false)
    }

    /// Whether looks begin at a floor; see `floors.rs`.
    pub(crate) fn keeps_floors(self) -> bool {
        say!(self, false, true, false)
    }

    /// Whether a data-changing statement can stand inside another one.
    pub(crate) fn nests_writes(self) -> bool {
        say!(self, false, true, false)
    }

    /// The statement that creates a table with its indexes. More than one statement where indexes are apart.
    pub(crate) fn create_table(self, table: &Table) -> Vec<String> {
        let mut lines: Vec<String> = table.columns.iter().map(|column| self.column_line(column)).collect();
        let auto_id = table.columns.iter().any(|column| column.kind == ColumnKind::AutoId);
        // SQLite counts up only a column that is declared INTEGER PRIMARY KEY in its own line.
        if !say!(self, auto_id, false, false) {
            lines.push(format!("PRIMARY KEY ({})", table.primary_key.join(", ")));
        }
        if let Some(key) = table.foreign_key {
            lines.push(format!(
                "FOREIGN KEY ({}) REFERENCES {} ({})",
                key.columns.join(", "),
                key.table,
                key.references.join(", ")
            ));
        }
        // MySQL commits each statement on its own: a table with its indexes in one statement is there or not.
        if say!(self, false, false, true) {
            for index in table.indexes {
                lines.extend(mysql_index_lines(self, table, index));
            }
        }
        let tail = say!(
            self,
            " STRICT",
            if table.hot { " WITH (fillfactor = 70)" } else { "" },
            " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        );
        // Only where a step may have to be repeated: elsewhere a table of that name is somebody else's, and taking it for
        // ours would be worse than refusing.
        let if_not_exists = say!(self, "", "", "IF NOT EXISTS ");
        let mut statements =
            vec![format!("CREATE TABLE {if_not_exists}{} (\n  {}\n){tail}", table.name, lines.join(",\n  "))];
        if !say!(self, false, false, true) {
            statements.extend(table.indexes.iter().map(|index| self.create_index(table, index)));
        }
        statements
    }

    /// The statement that adds an index to a table.
    pub(crate) fn create_index(self, table: &Table, index: &Index) -> String {
        if say!(self, false, false, true) {
            let added = mysql_index_lines(self, table, index).into_iter().map(|line| format!("ADD {line}"));
            return format!("ALTER TABLE {} {}", table.name, added.collect::<Vec<_>>().join(", "));
        }
        let unique = if index.unique { "UNIQUE " } else { "" };
        let condition = match index.only {
            Only::All => String::new(),
            Only::FirstNotNull => format!(" WHERE {} IS NOT NULL", index.columns[0]),
            Only::Where { condition, .. } => format!(" WHERE {condition}"),
        };
        format!(
            "CREATE {unique}INDEX {} ON {} ({}){condition}",
            index.name,
            table.name,
            index.columns.join(", ")
        )
    }

    /// The statement that takes an index from a table.
    pub(crate) fn drop_index(self, table: &Table, index: &str) -> String {
        let of_table = say!(self, String::new(), String::new(), format!(" ON {}", table.name));
        format!("DROP INDEX {index}{of_table}")
    }

    /// The statement that adds a column to a table.
    pub(crate) fn add_column(self, table: &Table, column: &Column) -> String {
        format!("ALTER TABLE {} ADD COLUMN {}", table.name, self.column_line(column))
    }

    /// Turns `?` into the placeholders of the database.
    pub(crate) fn placeholders(self, sql: &str) -> String {
        if !say!(self, false, true, false) {
            return sql.to_owned();
        }
        let mut numbered = String::with_capacity(sql.len() + 16);
        let mut number = 0_u32;
        for character in sql.chars() {
            if character == '?' {
                number += 1;
                numbered.push('$');
                numbered.push_str(&number.to_string());
            } else {
                numbered.push(character);
            }
        }
        numbered
    }

    fn column_line(self, column: &Column) -> String {
        if column.kind == ColumnKind::AutoId {
            return say!(
                self,
                format!("{} INTEGER PRIMARY KEY AUTOINCREMENT", column.name),
                format!("{} bigint GENERATED ALWAYS AS IDENTITY", column.name),
                format!("{} BIGINT NOT NULL AUTO_INCREMENT", column.name)
            );
        }
        let null = match column.kind {
            ColumnKind::Count => " NOT NULL DEFAULT 0",
            _ if column.nullable => "",
            _ => " NOT NULL",
        };
        let default = column.default.map(|text| format!(" DEFAULT {}", self.literal(text)));
        format!("{} {}{null}{}", column.name, self.column_type(column.kind), default.unwrap_or_default())
    }

    fn column_type(self, kind: ColumnKind) -> String {
        match kind {
            ColumnKind::Name(length) => {
                // Byte order everywhere: names are identities, not words, and comparing bytes is what costs least.
                say!(self, "TEXT".to_owned(), "text COLLATE \"C\"".to_owned(), format!("VARCHAR({length})"))
            }
            ColumnKind::Text => say!(self, "TEXT", "text", "TEXT").to_owned(),
            ColumnKind::Json => say!(self, "TEXT", "text", "LONGTEXT").to_owned(),
            ColumnKind::Bytes => say!(self, "BLOB", "bytea", "LONGBLOB").to_owned(),
            ColumnKind::Uuid => say!(self, "BLOB", "uuid", "BINARY(16)").to_owned(),
            ColumnKind::Time => say!(self, "INTEGER", "timestamptz", "DATETIME(6)").to_owned(),
            ColumnKind::Long | ColumnKind::Count | ColumnKind::AutoId => {
                say!(self, "INTEGER", "bigint", "BIGINT").to_owned()
            }
            ColumnKind::Int => say!(self, "INTEGER", "integer", "INT").to_owned(),
        }
    }
}

/// Values of one sort as one set, with the name that PostgreSQL has for it.
fn set_of(values: Vec<Value<'_>>) -> (&'static str, Value<'_>) {
    let numbers: Option<Vec<i64>> =
        values.iter().map(|value| if let Value::Long(number) = value { *number } else { None }).collect();
    if let Some(numbers) = numbers {
        return ("bigint", Value::Longs(numbers));
    }
    let texts = values.into_iter().map(|value| match value {
        Value::Text(Some(text)) => text,
        _ => Cow::default(),
    });
    ("text", Value::Texts(texts.collect()))
}

/// `a > ? OR (a = ? AND b > ?)`, and which parameters those are.
#[cfg(feature = "mysql")]
fn compared_apart(columns: &[String], than: &str) -> (String, Vec<usize>) {
    let (mut ways, mut which) = (Vec::new(), Vec::new());
    for (at, column) in columns.iter().enumerate() {
        let mut parts: Vec<String> = columns.iter().take(at).map(|before| format!("{before} = ?")).collect();
        let sign = if at + 1 == columns.len() { than } else { than.trim_end_matches('=') };
        parts.push(format!("{column} {sign} ?"));
        ways.push(format!("({})", parts.join(" AND ")));
        which.extend(0..=at);
    }
    (format!("({})", ways.join(" OR ")), which)
}

/// A JSON list as a table of numbers.
fn mysql_set() -> &'static str {
    "JSON_TABLE(?, '$[*]' COLUMNS (chosen_key BIGINT PATH '$'))"
}

/// MySQL's form of an index: inside the table's statement, over a generated column if it is partial.
fn mysql_index_lines(dialect: Dialect, table: &Table, index: &Index) -> Vec<String> {
    let mut lines = Vec::new();
    let mut columns: Vec<&str> = index.columns.to_vec();
    if let Only::Where { condition, mysql_column } = index.only {
        let first = index.columns[0];
        if let Some(column) = table.columns.iter().find(|column| column.name == first) {
            lines.push(format!(
                "{mysql_column} {} AS (CASE WHEN {condition} THEN {first} END) VIRTUAL",
                dialect.column_type(column.kind)
            ));
        }
        columns[0] = mysql_column;
    }
    let kind = if index.unique { "UNIQUE KEY" } else { "KEY" };
    lines.push(format!("{kind} {} ({})", index.name, columns.join(", ")));
    lines
}

/// Puts the table's alias before the column names of a condition from `schema.rs`.
fn qualify(condition: &str, alias: &str) -> String {
    const COLUMNS: [&str; 7] =
        ["status", "parked_at", "state", "deleted_at", "claimed_by_id", "available_at", "unique_key"];
    COLUMNS.iter().fold(condition.to_owned(), |text, column| {
        text.split(' ')
            .map(|word| if word == *column { format!("{alias}{word}") } else { word.to_owned() })
            .collect::<Vec<_>>()
            .join(" ")
    })
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;
    use crate::schema::{CHANNELS, OUTBOX_READY};

    #[test]
    fn postgres_numbers_its_placeholders() {
        assert_eq!(Dialect::Postgres.placeholders("a = ? AND b = ?"), "a = $1 AND b = $2");
        assert_eq!(Dialect::MySql.placeholders("a = ?"), "a = ?");
    }

    #[test]
    fn a_key_of_several_columns_is_compared_as_one() {
        let columns = ["a".to_owned(), "b".to_owned()];
        assert_eq!(Dialect::Postgres.compared(&columns, ">"), ("(a, b) > (?, ?)".to_owned(), vec![0, 1]));
        let apart = ("((a > ?) OR (a = ? AND b > ?))".to_owned(), vec![0, 0, 1]);
        assert_eq!(Dialect::MySql.compared(&columns, ">"), apart);
        let apart = ("((a < ?) OR (a = ? AND b <= ?))".to_owned(), vec![0, 0, 1]);
        assert_eq!(Dialect::MySql.compared(&columns, "<="), apart);
    }

    #[test]
    fn uniqueness_among_the_living_is_partial_or_generated() {
        let postgres = Dialect::Postgres.create_table(&CHANNELS).join(";");
        assert!(
            postgres
                .contains("UNIQUE INDEX channels_living_name ON channels (name) WHERE deleted_at IS NULL")
        );
        let mysql = Dialect::MySql.create_table(&CHANNELS).join(";");
        assert!(
            mysql.contains("living_name VARCHAR(64) AS (CASE WHEN deleted_at IS NULL THEN name END) VIRTUAL")
        );
        assert!(mysql.contains("UNIQUE KEY channels_living_name (living_name)"));
    }

    #[test]
    fn a_partial_index_is_asked_by_its_own_condition() {
        let ready = OUTBOX_READY;
        let (column, condition) = Dialect::Postgres.partial(ready, "o.");
        assert_eq!(
            format!("{column} = ?{condition}"),
            "o.channel = ? AND o.status IN ('NEW', 'RETRY') AND o.parked_at IS NULL"
        );
        assert_eq!(Dialect::MySql.partial(ready, "o."), ("o.ready_channel".to_owned(), String::new()));
    }
}
