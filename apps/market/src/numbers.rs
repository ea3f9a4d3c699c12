//! Numbers for products and orders: taken from the database in blocks, given out one by one.
//!
//! A number is known before anything is written with it, on every database alike. A process that ends leaves the rest of
//! its block unused: numbers are unique, not gapless.

use std::collections::HashMap;
use std::ops::Range;

use tokio::sync::Mutex;
use towpath::Towpath;

use crate::database::{corrupt, values};
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
    app.transact(async |mut tx| {
        let session = &mut tx.own_tables();
        let sql = "UPDATE market_numbers SET next_number = next_number + ? WHERE kind = ?";
        session.execute("market.take-block", sql, values![BLOCK, of.key()]).await?;
        let sql = "SELECT next_number FROM market_numbers WHERE kind = ?";
        let row = session.row("market.read-block", sql, values![of.key()]).await?;
        let end = row.ok_or_else(|| corrupt("market_numbers", "the row is missing"))?.long("next_number")?;
        Ok(end - BLOCK..end)
    })
    .await
}
