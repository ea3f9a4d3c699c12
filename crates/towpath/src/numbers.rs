//! Numbers for rows of the application's own: taken from the database in blocks, given out one by one.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use tokio::sync::Mutex;
use towpath_core::ports::store::StoreError;
use towpath_store::Row;

use crate::towpath::Towpath;
use crate::transact::refuse_inside;

/// Numbers from a column of a row, which holds the next one. A number is known before anything is written with it, on every
/// database alike.
///
/// ```ignore
/// let numbers = Numbers::<Counter>::of("next_number", 100);
/// let order_id = numbers.next(&app, &"orders".to_owned()).await?;
/// ```
///
/// # Guarantees
/// No number is given twice, however many processes take them.
///
/// # Caveats
/// They are not gapless: a process that ends leaves the rest of its blocks unused, and a transaction that is rolled back the
/// number it has taken. After a backup was restored, processes that run on may give numbers again: start them anew. Take a
/// number before the transaction that uses it, not in one, and not in a handler: on SQLite it would wait for itself.
pub struct Numbers<R: Row> {
    column: &'static str,
    block: i64,
    left: Mutex<HashMap<R::Key, Range<i64>>>,
}

impl<R: Row> Numbers<R>
where
    R::Key: Clone + Eq + Hash + Send,
{
    /// Numbers from this column, so many taken at a time.
    pub fn of(column: &'static str, block: u32) -> Self {
        Self { column, block: i64::from(block.max(1)), left: Mutex::default() }
    }

    /// The next number of a row.
    ///
    /// # Errors
    /// `Nested` inside of a unit of work; `Corrupt`: the row is not there. It must have begun with 1 or more: one that is made anew would give numbers again.
    pub async fn next(&self, app: &Towpath, key: &R::Key) -> Result<i64, StoreError> {
        refuse_inside()?;
        let mut left = self.left.lock().await;
        if let Some(number) = left.get_mut(key).and_then(Iterator::next) {
            return Ok(number);
        }
        let end = app
            .transact(async |mut tx| match tx.add::<R>(key, self.column, self.block).await? {
                end if end > self.block => Ok(end),
                _ => Err(StoreError::corrupt(R::TABLE.name(), "the row is missing")),
            })
            .await?;
        let first = end - self.block;
        left.insert(key.clone(), first + 1..end);
        Ok(first)
    }
}
