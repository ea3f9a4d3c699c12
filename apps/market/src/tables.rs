//! The market's own tables (O9), by versions, with the views over Towpath's.
//!
//! The names of tables are frozen and common ones: what somebody else has under one of them is never touched, and stops the
//! start.

use towpath::ports::store::StoreError;
use towpath::tables::Step::{AddColumns, AddIndex, Create, DropIndex, Run};
use towpath::tables::{OwnTables, Row, Version, Versions};

use crate::model::{
    BuyerCredit, CountedOrder, Inventory, Notification, Number, Order, Product, ProductWord, Shipment,
};
use crate::{products, views};

/// All versions, and the views.
pub(crate) fn versions() -> Versions {
    Versions::of("market", VERSIONS).views(views::views())
}

const VERSIONS: &[Version] = &[
    Version(
        1,
        &[
            Create(Number::TABLE),
            Create(Product::TABLE),
            Create(Order::TABLE),
            Create(Shipment::TABLE),
            Create(Notification::TABLE),
            Create(BuyerCredit::TABLE),
            Create(Inventory::TABLE),
            Run(|tables| Box::pin(begin_to_number(tables))),
        ],
    ),
    Version(2, &[Create(CountedOrder::TABLE), AddIndex(Order::TABLE, "orders_status")]),
    Version(
        3,
        &[
            Create(ProductWord::TABLE),
            // The flow of an order, and the facts that are causes of later ones.
            AddColumns(Order::TABLE, &["correlation_id", "last_event_id", "timeout_event_id"]),
            AddIndex(Order::TABLE, "orders_seller"),
            AddIndex(Product::TABLE, "products_seller"),
            AddIndex(Notification::TABLE, "notifications_recipient_event"),
            DropIndex(Notification::TABLE, "notifications_recipient"),
            Run(|tables| Box::pin(note_all_words(tables))),
        ],
    ),
    Version(4, &[AddIndex(Product::TABLE, "products_status_price")]),
];

/// The contract's example is order 900001.
async fn begin_to_number(tables: &mut OwnTables<'_>) -> Result<(), StoreError> {
    for (kind, next_number) in [("orders", 900_001), ("products", 1)] {
        tables.insert(&Number { kind: kind.to_owned(), next_number }).await?;
    }
    Ok(())
}

/// Keeps the words of products that were offered before words were kept.
async fn note_all_words(tables: &mut OwnTables<'_>) -> Result<(), StoreError> {
    let mut after = 0;
    loop {
        // By the columns of this version: later ones are not there yet.
        let sql = "SELECT product_id, title FROM products WHERE product_id > ? ORDER BY product_id LIMIT 500";
        let rows = tables.rows("market.titles", sql, vec![after.into()]).await?;
        let mut words = Vec::new();
        for row in &rows {
            after = row.long("product_id")?;
            words.extend(products::words_of(after, &row.text("title")?));
        }
        if rows.is_empty() {
            return Ok(());
        }
        tables.put_rows(&words).await?;
    }
}
