//! Numbers for products and orders: taken from the database in blocks, given out one by one.
//!
//! A number is known before anything is written with it, on every database alike. A process that ends leaves the rest of
//! its block unused: numbers are unique, not gapless.

use std::collections::HashMap;
use std::ops::Range;

use tokio::sync::Mutex;
use towpath::Towpath;
use towpath::tables::Row;

use crate::database::corrupt;
use crate::error::MarketError;

/// How many are taken at a time.
const BLOCK: i64 = 100;

/// What is numbered; the key of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Numbered {
    Orders,
    Products,
}

impl Numbered {
    fn key(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Products => "products",
        }
    }
}

/// The next number of a kind.
#[derive(Row)]
#[row(table = "market_numbers")]
pub(crate) struct Number {
    #[row(key, name = 64)]
    kind: String,
    next_number: i64,
}

impl Number {
    /// What numbers begin with. The contract's example is order 900001.
    pub(crate) fn first_ones() -> [Self; 2] {
        let first = |of: Numbered, next_number| Self { kind: of.key().to_owned(), next_number };
        [first(Numbered::Orders, 900_001), first(Numbered::Products, 1)]
    }
}

/// What is left of this process's blocks.
#[derive(Default)]
pub(crate) struct Numbers(Mutex<HashMap<Numbered, Range<i64>>>);

impl Numbers {
    pub(crate) async fn next(&self, app: &Towpath, of: Numbered) -> Result<i64, MarketError> {
        let mut blocks = self.0.lock().await;
        let block = blocks.entry(of).or_insert(0..0);
        if let Some(number) = block.next() {
            return Ok(number);
        }
        let mut taken = take_block(app, of).await?;
        let number = taken.next().ok_or_else(|| corrupt("market_numbers", "an empty block"))?;
        *block = taken;
        Ok(number)
    }
}

async fn take_block(app: &Towpath, of: Numbered) -> Result<Range<i64>, MarketError> {
    let kind = of.key().to_owned();
    app.transact(async |mut tx| {
        let end = tx.add::<Number>(&kind, "next_number", BLOCK).await?;
        // Numbers begin with 1 or more: this row was not there, and what it would give was given before.
        if end == BLOCK {
            return Err(corrupt("market_numbers", "the row is missing").into());
        }
        Ok(end - BLOCK..end)
    })
    .await
}
