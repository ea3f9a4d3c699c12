//! Rows of the application's own tables: in a transaction, and for who only reads.

use towpath_core::ports::store::StoreError;
use towpath_store::{Listing, OwnConnection, Page, Row, Value};

use crate::towpath::Towpath;
use crate::tx::Tx;

/// Each is one statement, unless it says otherwise, and commits with the rest.
impl Tx {
    /// The row of a key.
    pub async fn find<R: Row>(&mut self, key: &R::Key) -> Result<Option<R>, StoreError> {
        self.own_tables().find(key).await
    }

    /// The same as it is now, and nobody else changes it until the transaction ends.
    pub async fn lock<R: Row>(&mut self, key: &R::Key) -> Result<Option<R>, StoreError> {
        self.own_tables().lock(key).await
    }

    /// The row that has the key of this one, locked as above: the one that is there, or else this one, which is written. Two
    /// statements.
    pub async fn lock_or_insert<R: Row>(&mut self, row: &R) -> Result<R, StoreError> {
        self.own_tables().lock_or_insert(row).await
    }

    /// Writes a new row; false if there is one of its key, which stays as it is.
    ///
    /// # Errors
    /// Another row has a value that must be unique ([`is_unique_violation`](crate::is_unique_violation)): the transaction
    /// cannot be committed then on PostgreSQL.
    pub async fn insert<R: Row>(&mut self, row: &R) -> Result<bool, StoreError> {
        self.own_tables().insert(row).await
    }

    /// Writes rows, and replaces those that have the same keys: in statements of some thousand rows. No key may be among
    /// them twice.
    pub async fn put<R: Row>(&mut self, rows: &[R]) -> Result<(), StoreError> {
        self.own_tables().put_rows(rows).await
    }

    /// The same, but a row that is there with a higher number in the column `version` stays.
    pub async fn put_newer<R: Row>(&mut self, rows: &[R], version: &'static str) -> Result<(), StoreError> {
        self.own_tables().put_newer_rows(rows, version).await
    }

    /// Adds to the number in a column, and answers what it is then. A row that is not there begins with 0: all its other
    /// columns may be null, or are counts. However many add at a time, nothing is lost.
    pub async fn add<R: Row>(&mut self, key: &R::Key, column: &str, by: i64) -> Result<i64, StoreError> {
        self.own_tables().add::<R>(key, column, by).await
    }

    /// Deletes the row of a key; whether there was one.
    pub async fn delete<R: Row>(&mut self, key: &R::Key) -> Result<bool, StoreError> {
        self.own_tables().delete::<R>(key).await
    }

    /// The rows of a table that are chosen by what stands behind its name: `WHERE ... ORDER BY ... LIMIT ?`. `name` is what
    /// errors call the statement.
    pub async fn rows<R: Row>(
        &mut self,
        name: &'static str,
        chosen: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<R>, StoreError> {
        self.own_tables().rows_of(name, chosen, values).await
    }

    /// The rows that a whole statement answers, with all the columns of the table.
    pub async fn query<R: Row>(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<R>, StoreError> {
        self.own_tables().query(name, sql, values).await
    }
}

/// What was committed, read on a connection that is not the one that writes.
impl Towpath {
    /// The row of a key.
    pub async fn find<R: Row>(&self, key: &R::Key) -> Result<Option<R>, StoreError> {
        self.store().open_reading().await?.own_tables().find(key).await
    }

    /// Rows of a table, as [`Tx::rows`] has them. For what people look through, see [`page`](Self::page).
    pub async fn rows<R: Row>(
        &self,
        name: &'static str,
        chosen: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<R>, StoreError> {
        self.store().open_reading().await?.own_tables().rows_of(name, chosen, values).await
    }

    /// The rows that a whole statement answers, as [`Tx::query`] has them.
    pub async fn query<R: Row>(
        &self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<R>, StoreError> {
        self.store().open_reading().await?.own_tables().query(name, sql, values).await
    }

    /// A page for who looks through a table: so many rows, so many bytes, and whether there is more.
    ///
    /// ```ignore
    /// let listing = Listing::by("order_id", 100).only("buyer_id", Some(7_i64)).behind(last).within(1 << 20);
    /// let page = app.page::<Order>("orders.of_buyer", listing).await?;
    /// ```
    ///
    /// # Errors
    /// As [`listing`](Self::listing) has them.
    pub async fn page<R: Row>(
        &self,
        name: &'static str,
        listing: Listing<'_>,
    ) -> Result<Page<R>, StoreError> {
        self.store().page(name, listing).await
    }

    /// A connection for what people look through: however long that takes, no command waits for it.
    ///
    /// # Errors
    /// Of its statements: [`StoreError::TooSlow`], when the database has ended one.
    pub async fn listing(&self) -> Result<OwnConnection, StoreError> {
        self.store().open_listing().await
    }
}
