//! The market's own tables (O9), with the views over Towpath's.
//!
//! Written once: `{long}`, `{time}`, `{name}` and `{text}` become each database's own types. A version is applied as a
//! whole, under a lock, and is recorded last. The names of tables are frozen and common ones: what somebody else has under
//! one of them is never touched, and stops the start.

use chrono::{DateTime, Utc};
use towpath::SqlStore;
use towpath::ports::store::StoreError;

use towpath::tables::Dialect;

use crate::database::{OwnTables, values};
use crate::products;
use crate::views;

/// One table.
struct Table {
    name: &'static str,
    columns: &'static str,
    /// Name, columns and whether it is unique.
    indexes: &'static [(&'static str, &'static str, bool)],
}

/// The tables of version 1.
const VERSION_1: &[Table] = &[
    Table {
        name: "market_numbers",
        columns: "kind {name} NOT NULL PRIMARY KEY, next_number {long} NOT NULL",
        indexes: &[],
    },
    Table {
        name: "products",
        columns: "product_id {long} NOT NULL PRIMARY KEY, seller_id {long} NOT NULL, title {text} NOT NULL, \
            price_cents {long} NOT NULL, status {name} NOT NULL, status_changed_at {time} NOT NULL, \
            create_time {time} NOT NULL",
        indexes: &[("products_status", "status, product_id", false)],
    },
    Table {
        name: "orders",
        columns: "order_id {long} NOT NULL PRIMARY KEY, order_no {name} NOT NULL, product_id {long} NOT NULL, \
            buyer_id {long} NOT NULL, seller_id {long} NOT NULL, quantity {long} NOT NULL, \
            price_cents {long} NOT NULL, total_cents {long} NOT NULL, status {name} NOT NULL, \
            status_changed_at {time} NOT NULL, cancel_reason {name}, create_time {time} NOT NULL, pay_time {time}, \
            ship_time {time}, complete_time {time}, cancel_time {time}",
        indexes: &[
            ("orders_order_no", "order_no", true),
            // What the job looks for: unpaid orders, the oldest first.
            ("orders_status_time", "status, create_time", false),
            ("orders_buyer", "buyer_id, order_id", false),
            ("orders_product", "product_id, order_id", false),
        ],
    },
    Table {
        name: "shipments",
        columns: "order_id {long} NOT NULL PRIMARY KEY, status {name} NOT NULL, status_changed_at {time} NOT NULL, \
            created_at {time} NOT NULL",
        indexes: &[],
    },
    Table {
        name: "notifications",
        columns: "event_id {name} NOT NULL, recipient_id {long} NOT NULL, order_id {long} NOT NULL, \
            status {name} NOT NULL, created_at {time} NOT NULL, PRIMARY KEY (event_id, recipient_id)",
        indexes: &[
            ("notifications_order", "order_id, created_at", false),
            ("notifications_recipient", "recipient_id, created_at", false),
        ],
    },
    Table {
        name: "buyer_credit",
        columns: "buyer_id {long} NOT NULL PRIMARY KEY, completed_count {long} NOT NULL, \
            cancelled_count {long} NOT NULL, timeout_count {long} NOT NULL, score {long} NOT NULL, \
            updated_at {time} NOT NULL",
        indexes: &[],
    },
    Table {
        name: "inventory",
        columns: "product_id {long} NOT NULL PRIMARY KEY, available {long} NOT NULL, order_count {long} NOT NULL, \
            last_order_id {long} NOT NULL, updated_at {time} NOT NULL",
        indexes: &[],
    },
];

/// The tables of version 2.
const VERSION_2: &[Table] = &[Table {
    // Which orders the inventory has counted.
    name: "inventory_orders",
    columns: "order_id {long} NOT NULL PRIMARY KEY, product_id {long} NOT NULL, counted_at {time} NOT NULL",
    indexes: &[],
}];

/// Indexes that version 2 adds to what was there: table, name and columns.
const INDEXES_2: &[(&str, &str, &str)] = &[
    // The orders in a status, page by page.
    ("orders", "orders_status", "status, order_id"),
];

/// The tables of version 3.
const VERSION_3: &[Table] = &[Table {
    // The words of titles, by which products are found.
    name: "product_words",
    columns: "word {name} NOT NULL, product_id {long} NOT NULL, PRIMARY KEY (word, product_id)",
    indexes: &[("product_words_product", "product_id", false)],
}];

/// Columns that version 3 adds to orders: the flow of an order, and the facts that are causes of later ones.
const COLUMNS_3: [&str; 3] = ["correlation_id", "last_event_id", "timeout_event_id"];

/// Indexes that version 3 adds.
const INDEXES_3: &[(&str, &str, &str)] = &[
    ("orders", "orders_seller", "seller_id, order_id"),
    ("products", "products_seller", "seller_id, product_id"),
    // What somebody was told, page by page.
    ("notifications", "notifications_recipient_event", "recipient_id, event_id"),
];

/// Indexes that version 4 adds.
const INDEXES_4: &[(&str, &str, &str)] = &[
    // What there is for a price: without it, a price that hardly anything has is looked for in all products.
    ("products", "products_status_price", "status, price_cents, product_id"),
];

/// An index that version 3 replaces: table and name.
const REPLACED_3: (&str, &str) = ("notifications", "notifications_recipient");

/// What numbers begin with. The contract's example is order 900001.
const FIRST_NUMBERS: [(&str, i64); 2] = [("orders", 900_001), ("products", 1)];

/// Makes what is missing. Can be run again, and by several instances at a time.
pub(crate) async fn migrate(store: &SqlStore) -> Result<(), StoreError> {
    // On PostgreSQL and SQLite the whole version is one transaction. MySQL commits each statement that makes a table, so
    // each of them can be repeated.
    let mut transaction = store.open_transaction().await?;
    let mut session = transaction.own_tables().without_limit();
    lock(&mut session).await?;
    let made = make(&mut session).await;
    if session.dialect() == Dialect::MySql {
        session.plain("market.unlock", "DO RELEASE_LOCK(CONCAT('market.', MD5(DATABASE())))").await?;
    }
    made?;
    transaction.finish().await?;
    store.create_views(&views::views()).await
}

async fn lock(session: &mut OwnTables<'_>) -> Result<(), StoreError> {
    match session.dialect() {
        // Its write transaction is the lock.
        Dialect::Sqlite => Ok(()),
        Dialect::Postgres => {
            let sql = "SET LOCAL lock_timeout = 0; \
                SELECT pg_advisory_xact_lock(hashtextextended('market.' || current_schema(), 0))";
            session.plain("market.lock", sql).await
        }
        Dialect::MySql => {
            let sql = "SELECT GET_LOCK(CONCAT('market.', MD5(DATABASE())), 60) AS granted";
            let granted = session.row("market.lock", sql, Vec::new()).await?;
            match granted.map(|row| row.long_or_null("granted")).transpose()?.flatten() {
                Some(1) => Ok(()),
                _ => Err(StoreError::Contention("another instance has been migrating for a minute".into())),
            }
        }
    }
}

async fn make(session: &mut OwnTables<'_>) -> Result<(), StoreError> {
    let kind = session.dialect();
    refuse_foreign_views(session).await?;
    let versions = "CREATE TABLE IF NOT EXISTS market_migrations (version {long} NOT NULL PRIMARY KEY, applied_at {time} NOT NULL)";
    session.plain("market.versions", &typed(kind, versions)).await?;
    let found = session
        .row("market.version", "SELECT MAX(version) AS version FROM market_migrations", Vec::new())
        .await?;
    let found = found.map(|row| row.long_or_null("version")).transpose()?.flatten().unwrap_or(0);
    if found < 1 {
        create(session, VERSION_1).await?;
        for (number_of, first) in FIRST_NUMBERS {
            let sql = kind.insert_unless_there("market_numbers (kind, next_number) VALUES (?, ?)");
            session.execute("market.number", &sql, values![number_of, first]).await?;
        }
        record(session, 1).await?;
    }
    if found < 2 {
        create(session, VERSION_2).await?;
        add_indexes(session, INDEXES_2).await?;
        record(session, 2).await?;
    }
    if found < 3 {
        create(session, VERSION_3).await?;
        let there = columns_of(session, "orders").await?;
        for column in COLUMNS_3.into_iter().filter(|column| !there.iter().any(|found| found == column)) {
            let sql = typed(kind, &format!("ALTER TABLE orders ADD COLUMN {column} {{name}}"));
            session.plain("market.column", &sql).await?;
        }
        add_indexes(session, INDEXES_3).await?;
        drop_index(session, REPLACED_3).await?;
        note_all_words(session).await?;
        record(session, 3).await?;
    }
    if found < 4 {
        add_indexes(session, INDEXES_4).await?;
        record(session, 4).await?;
    }
    Ok(())
}

async fn add_indexes(session: &mut OwnTables<'_>, indexes: &[(&str, &str, &str)]) -> Result<(), StoreError> {
    for (table, index, over) in indexes {
        // MySQL commits each statement and cannot say "if not exists" of an index.
        if session.dialect() == Dialect::MySql && has_index(session, table, index).await? {
            continue;
        }
        session.plain("market.index", &format!("CREATE INDEX {index} ON {table} ({over})")).await?;
    }
    Ok(())
}

async fn drop_index(session: &mut OwnTables<'_>, (table, index): (&str, &str)) -> Result<(), StoreError> {
    let sql = match session.dialect() {
        Dialect::Sqlite | Dialect::Postgres => format!("DROP INDEX IF EXISTS {index}"),
        Dialect::MySql if has_index(session, table, index).await? => format!("DROP INDEX {index} ON {table}"),
        Dialect::MySql => return Ok(()),
    };
    session.plain("market.index", &sql).await
}

/// Keeps the words of products that were offered before words were kept.
async fn note_all_words(session: &mut OwnTables<'_>) -> Result<(), StoreError> {
    let mut after = 0;
    loop {
        let sql = "SELECT product_id, title FROM products WHERE product_id > ? ORDER BY product_id LIMIT 500";
        let rows = session.rows("market.titles", sql, values![after]).await?;
        for row in &rows {
            after = row.long("product_id")?;
            products::note_words(session, after, &row.text("title")?).await?;
        }
        if rows.is_empty() {
            return Ok(());
        }
    }
}

async fn create(session: &mut OwnTables<'_>, tables: &[Table]) -> Result<(), StoreError> {
    let kind = session.dialect();
    for table in tables {
        refuse_foreign(session, table).await?;
    }
    for table in tables {
        for statement in statements(kind, table) {
            session.plain("market.table", &statement).await?;
        }
    }
    Ok(())
}

async fn record(session: &mut OwnTables<'_>, version: i64) -> Result<(), StoreError> {
    let now: DateTime<Utc> = Utc::now();
    let sql = "INSERT INTO market_migrations (version, applied_at) VALUES (?, ?)";
    session.execute("market.migrated", sql, values![version, now]).await.map(|_| ())
}

/// Refuses to share a table with somebody else. One that is there before the market has recorded its version is either
/// left from a start that was cut short, and has our columns, or it is not ours.
async fn refuse_foreign(session: &mut OwnTables<'_>, table: &Table) -> Result<(), StoreError> {
    let found = columns_of(session, table.name).await?;
    let ours = column_names(table.columns);
    if found.is_empty() || found == ours {
        return Ok(());
    }
    let why = format!("it has the columns {}; the market's own has {}", found.join(", "), ours.join(", "));
    Err(StoreError::ForeignTable { table: table.name.to_owned(), why })
}

/// The same for the frozen views: a table of that name is somebody's own outbox.
async fn refuse_foreign_views(session: &mut OwnTables<'_>) -> Result<(), StoreError> {
    let sql = match session.dialect() {
        Dialect::Sqlite => "SELECT 1 AS one FROM sqlite_master WHERE type = 'table' AND name = ?",
        Dialect::Postgres => {
            "SELECT 1 AS one FROM information_schema.tables WHERE table_schema = current_schema() \
             AND table_type = 'BASE TABLE' AND table_name = ?"
        }
        Dialect::MySql => {
            "SELECT 1 AS one FROM information_schema.tables WHERE table_schema = DATABASE() \
             AND table_type = 'BASE TABLE' AND table_name = ?"
        }
    };
    for view in [views::OUTBOX_EVENTS, views::EVENT_CONSUME_LOG] {
        if session.row("market.look-for-table", sql, values![view]).await?.is_some() {
            let why = "the market shows its own rows in a view of that name".to_owned();
            return Err(StoreError::ForeignTable { table: view.to_owned(), why });
        }
    }
    Ok(())
}

/// The columns of a table, in the order of their names; none, if there is no such table.
async fn columns_of(session: &mut OwnTables<'_>, table: &str) -> Result<Vec<String>, StoreError> {
    let sql = match session.dialect() {
        Dialect::Sqlite => "SELECT name AS column_name FROM pragma_table_info(?)",
        Dialect::Postgres => {
            "SELECT CAST(column_name AS text) AS column_name FROM information_schema.columns \
             WHERE table_schema = current_schema() AND table_name = ?"
        }
        Dialect::MySql => {
            "SELECT column_name AS column_name FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = ?"
        }
    };
    let rows = session.rows("market.look-for-columns", sql, values![table]).await?;
    let mut columns: Vec<String> = rows
        .iter()
        .map(|row| row.text("column_name").map(|name| name.to_lowercase()))
        .collect::<Result<_, _>>()?;
    columns.sort_unstable();
    Ok(columns)
}

/// The names in a list of columns, in the order of their names.
fn column_names(columns: &str) -> Vec<String> {
    let parts = columns.split(", ").map(|column| column.split_whitespace().next().unwrap_or_default());
    // What is left is a key over several columns: it begins in upper case, and goes on with a name that was there.
    let mut names: Vec<String> = parts
        .filter(|name| name.starts_with(|first: char| first.is_lowercase()) && !name.ends_with(')'))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names
}

async fn has_index(session: &mut OwnTables<'_>, table: &str, index: &str) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS one FROM information_schema.statistics WHERE table_schema = DATABASE() \
        AND table_name = ? AND index_name = ? LIMIT 1";
    Ok(session.row("market.look-for-index", sql, values![table, index]).await?.is_some())
}

fn statements(kind: Dialect, table: &Table) -> Vec<String> {
    let columns = typed(kind, table.columns);
    let name = table.name;
    if kind == Dialect::MySql {
        // With its indexes in one statement a table is there or not.
        let indexes: String = table
            .indexes
            .iter()
            .map(|(index, over, unique)| {
                format!(", {} {index} ({over})", if *unique { "UNIQUE KEY" } else { "KEY" })
            })
            .collect();
        return vec![format!(
            "CREATE TABLE IF NOT EXISTS {name} ({columns}{indexes}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 \
             COLLATE utf8mb4_bin"
        )];
    }
    let tail = if kind == Dialect::Sqlite { " STRICT" } else { "" };
    let table_statement = format!("CREATE TABLE {name} ({columns}){tail}");
    let indexes = table.indexes.iter().map(|(index, over, unique)| {
        format!("CREATE {}INDEX {index} ON {name} ({over})", if *unique { "UNIQUE " } else { "" })
    });
    std::iter::once(table_statement).chain(indexes).collect()
}

fn typed(kind: Dialect, sql: &str) -> String {
    let (long, time, name, text) = match kind {
        Dialect::Sqlite => ("INTEGER", "INTEGER", "TEXT", "TEXT"),
        Dialect::Postgres => ("bigint", "timestamptz", "text COLLATE \"C\"", "text"),
        Dialect::MySql => ("BIGINT", "DATETIME(6)", "VARCHAR(64)", "TEXT"),
    };
    sql.replace("{long}", long).replace("{time}", time).replace("{name}", name).replace("{text}", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_a_declaration_are_found_by_their_names() {
        let notifications = VERSION_1.iter().find(|table| table.name == "notifications").unwrap();
        assert_eq!(
            column_names(notifications.columns),
            ["created_at", "event_id", "order_id", "recipient_id", "status"]
        );
        assert_eq!(column_names(VERSION_1[0].columns), ["kind", "next_number"]);
    }
}
