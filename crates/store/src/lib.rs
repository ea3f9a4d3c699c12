//! Towpath's store: one contract ([`towpath_core::ports::store::Store`]), three databases.
//!
//! All SQL on Towpath's own tables lives in this crate. Reading order: [`url`](StoreUrl) (which database), `schema` (the
//! tables as data), `dialect` (what databases say differently), `sql` (running a statement), `rows` (values to
//! columns and back), `pools` (connections), [`SqlStore`], and `ops`, the contract topic by topic, written once.
//!
//! An application with tables of its own joins its own sqlx transaction:
//!
//! ```no_run
//! # use towpath_core::ports::store::StoreTx as _;
//! # async fn example(store: &towpath_store::SqlStore, facts: towpath_core::ports::store::Append) -> Result<(), Box<dyn std::error::Error>> {
//! let mut transaction = store.postgres_pool().ok_or("not PostgreSQL")?.begin().await?;
//! sqlx::query("UPDATE products SET status = 'sold' WHERE id = 7 AND status = 'on_sale'").execute(&mut *transaction).await?;
//! let mut joined = store.join(transaction);
//! joined.append(&facts).await?;
//! joined.finish().await?; // the product and the facts, or neither
//! # Ok(()) }
//! ```

#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(
        unused,
        reason = "what only another database needs; the build with all of them tells what nobody needs"
    )
)]

mod bounded;
mod connections;
mod dialect;
mod floors;
mod lent;
mod migrate;
mod migrations;
mod ops;
mod own_tables;
mod pools;
mod projections;
mod rows;
mod schema;
mod scratch;
mod sql;
mod store;
mod transaction;
mod url;
mod views;

pub use connections::Connections;
pub use dialect::Dialect;
pub use lent::Ended;
pub use ops::inbox::message_key;
pub use own_tables::{
    ColumnValue, Conditions, Json, Listing, OwnConnection, OwnTables, Page, Record, Row, Run, Step,
    StoredName, Version, Versions,
};
pub use pools::StoreOptions;
pub use projections::{Owned, Owner};
pub use schema::{Column, ColumnKind, Index, Table};
pub use scratch::Scratch;
pub use sql::{Value, fault, gives_way, is_unique_violation};
pub use sqlx;
pub use store::SqlStore;
pub use transaction::{JoinTransaction, SqlTransaction, Unfinished};
pub use url::StoreUrl;
pub use views::{Shows, SqlView, ViewRows, ViewType};
