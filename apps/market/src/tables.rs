//! The market's own tables, and the views that the contract wants to read (O9).
//!
//! Written once: `{long}`, `{time}`, `{name}` and `{text}` become each database's own types. A version is applied as a
//! whole, under a lock, and is recorded last.

use chrono::{DateTime, Utc};
use towpath::SqlStore;
use towpath::ports::store::StoreError;

use crate::database::{Kind, Session, Transaction, values};
use crate::topology::{channel_names, handler_names};

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

/// What numbers begin with. The contract's example is order 900001.
const FIRST_NUMBERS: [(&str, i64); 2] = [("orders", 900_001), ("products", 1)];

/// Makes what is missing. Can be run again, and by several instances at a time.
pub(crate) async fn migrate(store: &SqlStore) -> Result<(), StoreError> {
    let kind = Kind::of(store);
    // On PostgreSQL and SQLite the whole version is one transaction. MySQL commits each statement that makes a table, so
    // each of them can be repeated.
    let mut transaction = Transaction::begin(store).await?;
    let mut session = transaction.session();
    lock(&mut session).await?;
    let made = make(&mut session).await;
    if kind == Kind::MySql {
        session.plain("market.unlock", "DO RELEASE_LOCK(CONCAT('market.', MD5(DATABASE())))").await?;
    }
    made?;
    transaction.commit().await?;
    store.create_frozen_views(&channel_names(), &handler_names()).await
}

async fn lock(session: &mut Session<'_>) -> Result<(), StoreError> {
    match session.kind() {
        // Its write transaction is the lock.
        Kind::Sqlite => Ok(()),
        Kind::Postgres => {
            let sql = "SET LOCAL lock_timeout = 0; \
                SELECT pg_advisory_xact_lock(hashtextextended('market.' || current_schema(), 0))";
            session.plain("market.lock", sql).await
        }
        Kind::MySql => {
            let sql = "SELECT GET_LOCK(CONCAT('market.', MD5(DATABASE())), 60) AS granted";
            let granted = session.row("market.lock", sql, &[]).await?;
            match granted.map(|row| row.long_or_null("granted")).transpose()?.flatten() {
                Some(1) => Ok(()),
                _ => Err(StoreError::Contention("another instance has been migrating for a minute".into())),
            }
        }
    }
}

async fn make(session: &mut Session<'_>) -> Result<(), StoreError> {
    let kind = session.kind();
    let versions = "CREATE TABLE IF NOT EXISTS market_migrations (version {long} NOT NULL PRIMARY KEY, applied_at {time} NOT NULL)";
    session.plain("market.versions", &typed(kind, versions)).await?;
    let found =
        session.row("market.version", "SELECT MAX(version) AS version FROM market_migrations", &[]).await?;
    if found.map(|row| row.long_or_null("version")).transpose()?.flatten().is_some() {
        return Ok(());
    }
    for table in VERSION_1 {
        for statement in statements(kind, table) {
            session.plain("market.table", &statement).await?;
        }
    }
    for (number_of, first) in FIRST_NUMBERS {
        let sql = kind.insert_unless_there("market_numbers (kind, next_number) VALUES (?, ?)");
        session.execute("market.number", &sql, values![number_of, first]).await?;
    }
    let now: DateTime<Utc> = Utc::now();
    let sql = "INSERT INTO market_migrations (version, applied_at) VALUES (1, ?)";
    session.execute("market.migrated", sql, values![now]).await?;
    Ok(())
}

fn statements(kind: Kind, table: &Table) -> Vec<String> {
    let columns = typed(kind, table.columns);
    let name = table.name;
    if kind == Kind::MySql {
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
    let tail = if kind == Kind::Sqlite { " STRICT" } else { "" };
    let table_statement = format!("CREATE TABLE {name} ({columns}){tail}");
    let indexes = table.indexes.iter().map(|(index, over, unique)| {
        format!("CREATE {}INDEX {index} ON {name} ({over})", if *unique { "UNIQUE " } else { "" })
    });
    std::iter::once(table_statement).chain(indexes).collect()
}

fn typed(kind: Kind, sql: &str) -> String {
    let (long, time, name, text) = match kind {
        Kind::Sqlite => ("INTEGER", "INTEGER", "TEXT", "TEXT"),
        Kind::Postgres => ("bigint", "timestamptz", "text COLLATE \"C\"", "text"),
        Kind::MySql => ("BIGINT", "DATETIME(6)", "VARCHAR(64)", "TEXT"),
    };
    sql.replace("{long}", long).replace("{time}", time).replace("{name}", name).replace("{text}", text)
}
