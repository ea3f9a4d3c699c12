//! Products: offered, changed, withdrawn, taken and given back.

use std::collections::BTreeSet;

use towpath::Tx;
use towpath::ports::store::StoreError;
use towpath::tables::{Conditions, OwnTables, Row, Value};

use crate::events::ProductEvent;
use crate::market::Page;
use crate::model::{Order, Product, ProductFilter, ProductStatus, ProductWord};
use crate::money::Money;
use crate::orders::happened;
use crate::step::Step;
use crate::words;

/// Offers a product.
pub(crate) async fn insert(tx: &mut Tx, product: &Product, step: &Step) -> Result<(), StoreError> {
    let offered = ProductEvent::Offered { seller_id: product.seller_id, price: product.price };
    tx.begin_state(product, offered).within(step.of_product(product)?).await?;
    tx.put(&words_of(product.product_id, &product.title)).await
}

/// A page of the products of which a filter is so. `sought` are the words of its text; with none of them, all titles do.
pub(crate) async fn list(
    tables: &mut OwnTables<'_>,
    filter: &ProductFilter,
    sought: &BTreeSet<String>,
    page: Page,
) -> Result<Vec<Product>, StoreError> {
    let dialect = tables.dialect();
    let has_price = filter.min_price.is_some() || filter.max_price.is_some();
    let mut sought = sought.iter().map(String::as_str);
    let (from, number, mut chosen) = match sought.next() {
        // Along the index of the first word; the others are looked up for each that has it.
        Some(first) => {
            let then = dialect.first_then();
            let from = format!("product_words w {then} products p ON p.product_id = w.product_id");
            (from, "w.product_id", Conditions::of("w.word = ?", first))
        }
        None => {
            let by_index = match filter {
                ProductFilter { seller_id: Some(_), .. } => dialect.by_index("products_seller"),
                // How many a price leaves is known to the database alone.
                ProductFilter { status: Some(_), .. } if has_price => {
                    dialect.by_index("products_status, products_status_price")
                }
                ProductFilter { status: Some(_), .. } => dialect.by_index("products_status"),
                _ => String::new(),
            };
            (format!("products p{by_index}"), "p.product_id", Conditions::default())
        }
    };
    for word in sought {
        let among = "SELECT 1 FROM product_words o WHERE o.word = ? AND o.product_id = w.product_id";
        chosen = chosen.and(format!("EXISTS ({among})"), word);
    }
    if filter.status.is_none() && has_price {
        // The index of prices is by status: all of them are three short looks.
        chosen = chosen.and_one_of("p.status", ProductStatus::ALL);
    }
    let (chosen, values) = chosen
        .and(format!("{number} > ?"), page.after)
        .and_some("p.seller_id = ?", filter.seller_id)
        .and_some("p.status = ?", filter.status)
        .and_some("p.price_cents >= ?", filter.min_price)
        .and_some("p.price_cents <= ?", filter.max_price)
        .then(&format!("ORDER BY {number} LIMIT ?"), page.limit());
    let sql = format!("SELECT {} FROM {from} {chosen}", Product::TABLE.listed("p."));
    tables.query("market.products", &sql, values).await
}

/// Takes a product for an order: on_sale to sold, for the price that the order has. One row is the only proof that it was
/// taken.
pub(crate) async fn take(
    tx: &mut Tx,
    product: &Product,
    order: &Order,
    step: &Step,
) -> Result<bool, StoreError> {
    let taken = tx
        .change_state(product, ProductEvent::Sold { order_id: order.order_id })
        .only_if("price_cents = ?", order.price)
        .within(step.of_product(product)?);
    happened(taken.await)
}

/// Gives a product back that an order had: sold to on_sale.
pub(crate) async fn release(tx: &mut Tx, order: &Order, step: &Step) -> Result<bool, StoreError> {
    move_on(tx, order.product_id, ProductEvent::Returned { order_id: order.order_id }, step).await
}

/// Takes a product off the market: on_sale to withdrawn.
pub(crate) async fn withdraw(tx: &mut Tx, product_id: i64, step: &Step) -> Result<bool, StoreError> {
    move_on(tx, product_id, ProductEvent::Withdrawn {}, step).await
}

/// What is known about its availability follows at once, as no message tells of it.
async fn move_on(tx: &mut Tx, product_id: i64, event: ProductEvent, step: &Step) -> Result<bool, StoreError> {
    let Some(product) = tx.lock::<Product>(&product_id).await? else { return Ok(false) };
    let is_available = matches!(event, ProductEvent::Returned { .. });
    let moved = tx.change_state(&product, event).within(step.of_product(&product)?);
    if !happened(moved.await)? {
        return Ok(false);
    }
    let sql = "UPDATE inventory SET available = ?, updated_at = ? WHERE product_id = ?";
    let values = vec![i64::from(is_available).into(), step.now.into(), product_id.into()];
    tx.own_tables().execute("market.available", sql, values).await?;
    Ok(true)
}

/// Says anew what a product is and what it costs, while it is on sale: what an order has is never changed under it.
pub(crate) async fn change(
    tables: &mut OwnTables<'_>,
    product: &Product,
    title: Option<&str>,
    price: Option<Money>,
) -> Result<Option<Product>, StoreError> {
    let title_set = title.map(|title| ("title", Value::from(title)));
    let set = title_set.into_iter().chain(price.map(|price| ("price_cents", price.into()))).collect();
    let on_sale = vec![("status = ?", ProductStatus::OnSale.into())];
    let changed = tables.update(product, set, on_sale).await?;
    if let (Some(title), Some(_)) = (title, &changed) {
        let sql = "DELETE FROM product_words WHERE product_id = ?";
        tables.execute("market.forget-words", sql, vec![product.product_id.into()]).await?;
        tables.put_rows(&words_of(product.product_id, title)).await?;
    }
    Ok(changed)
}

/// The words of a title, as they are kept.
pub(crate) fn words_of(product_id: i64, title: &str) -> Vec<ProductWord> {
    words::of_title(title).into_iter().map(|word| ProductWord { word, product_id }).collect()
}
