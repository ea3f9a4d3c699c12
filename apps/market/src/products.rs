//! Products: offered, changed, withdrawn, taken and given back.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use towpath::Tx;
use towpath::ports::store::StoreError;
use towpath::tables::Row;

use crate::database::{OwnTables, Value, values};
use crate::events::{self, ProductEvent, Step};
use crate::model::{Order, Product, ProductFilter, ProductStatus, ProductWord};
use crate::money::Money;
use crate::orders::is_refusal;
use crate::words;

/// Offers a product.
pub(crate) async fn insert(tx: &mut Tx, product: &Product, step: &Step) -> Result<(), StoreError> {
    let offered = ProductEvent::Offered { seller_id: product.seller_id, price: product.price };
    tx.begin_state(product, offered).within(events::of_product(product, step)?).await?;
    tx.put(&words_of(product.product_id, &product.title)).await
}

/// Products behind a number, of which a filter is so. `sought` are the words of its text; with none of them, all titles do.
pub(crate) async fn list(
    tables: &mut OwnTables<'_>,
    filter: &ProductFilter,
    sought: &BTreeSet<String>,
    after: i64,
    limit: u32,
) -> Result<Vec<Product>, StoreError> {
    let dialect = tables.dialect();
    let has_price = filter.min_price.is_some() || filter.max_price.is_some();
    let mut sought = sought.iter();
    let (mut conditions, mut values): (Vec<String>, Vec<Value<'_>>) = (Vec::new(), Vec::new());
    let (from, number) = match sought.next() {
        // Along the index of the first word; the others are looked up for each that has it.
        Some(first) => {
            conditions.push("w.word = ?".to_owned());
            values.push(first.as_str().into());
            let from =
                format!("product_words w {} products p ON p.product_id = w.product_id", dialect.first_then());
            (from, "w.product_id")
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
            (format!("products p{by_index}"), "p.product_id")
        }
    };
    for word in sought {
        let among = "SELECT 1 FROM product_words o WHERE o.word = ? AND o.product_id = w.product_id";
        conditions.push(format!("EXISTS ({among})"));
        values.push(word.as_str().into());
    }
    conditions.push(format!("{number} > ?"));
    values.push(after.into());
    if let Some(seller_id) = filter.seller_id {
        conditions.push("p.seller_id = ?".to_owned());
        values.push(seller_id.into());
    }
    if let Some(status) = filter.status {
        conditions.push("p.status = ?".to_owned());
        values.push(status.as_str().into());
    } else if has_price {
        // The index of prices is by status: all of them are three short looks.
        conditions.push(format!("p.status IN ({})", vec!["?"; ProductStatus::ALL.len()].join(", ")));
        values.extend(ProductStatus::ALL.iter().map(|status| Value::from(status.as_str())));
    }
    if let Some(price) = filter.min_price {
        conditions.push("p.price_cents >= ?".to_owned());
        values.push(price.cents().into());
    }
    if let Some(price) = filter.max_price {
        conditions.push("p.price_cents <= ?".to_owned());
        values.push(price.cents().into());
    }
    values.push(i64::from(limit).into());
    let (columns, conditions) = (Product::TABLE.listed("p."), conditions.join(" AND "));
    let sql = format!("SELECT {columns} FROM {from} WHERE {conditions} ORDER BY {number} LIMIT ?");
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
        .only_if("price_cents = ?", order.price.cents())
        .within(events::of_product(product, step)?);
    happened(taken.await)
}

/// Gives a product back that an order had: sold to on_sale. What is known about its availability follows at once, as no
/// message tells of it.
pub(crate) async fn release(tx: &mut Tx, order: &Order, step: &Step) -> Result<bool, StoreError> {
    let Some(product) = tx.lock::<Product>(&order.product_id).await? else { return Ok(false) };
    let returned = tx
        .change_state(&product, ProductEvent::Returned { order_id: order.order_id })
        .within(events::of_product(&product, step)?);
    let released = happened(returned.await)?;
    if released {
        set_available(&mut tx.own_tables(), product.product_id, true, step.now).await?;
    }
    Ok(released)
}

/// Takes a product off the market: on_sale to withdrawn. Its availability follows at once, as above.
pub(crate) async fn withdraw(tx: &mut Tx, product_id: i64, step: &Step) -> Result<(), StoreError> {
    let Some(product) = tx.lock::<Product>(&product_id).await? else { return Ok(()) };
    let withdrawing =
        tx.change_state(&product, ProductEvent::Withdrawn {}).within(events::of_product(&product, step)?);
    if happened(withdrawing.await)? {
        set_available(&mut tx.own_tables(), product_id, false, step.now).await?;
    }
    Ok(())
}

/// Whether a product was where it would have to be.
fn happened(changed: Result<Product, StoreError>) -> Result<bool, StoreError> {
    match changed {
        Err(error) if is_refusal(&error) => Ok(false),
        changed => changed.map(|_| true),
    }
}

/// Says anew what a product is and what it costs, while it is on sale: what an order has is never changed under it.
pub(crate) async fn change(
    tables: &mut OwnTables<'_>,
    product_id: i64,
    title: Option<&str>,
    price: Option<Money>,
) -> Result<bool, StoreError> {
    let (mut changes, mut values): (Vec<&str>, Vec<Value<'_>>) = (Vec::new(), Vec::new());
    if let Some(title) = title {
        changes.push("title = ?");
        values.push(title.into());
    }
    if let Some(price) = price {
        changes.push("price_cents = ?");
        values.push(price.cents().into());
    }
    values.push(product_id.into());
    values.push(ProductStatus::OnSale.as_str().into());
    let sql = format!("UPDATE products SET {} WHERE product_id = ? AND status = ?", changes.join(", "));
    if tables.execute("market.change-product", &sql, values).await? != 1 {
        return Ok(false);
    }
    if let Some(title) = title {
        let sql = "DELETE FROM product_words WHERE product_id = ?";
        tables.execute("market.forget-words", sql, values![product_id]).await?;
        tables.put_rows(&words_of(product_id, title)).await?;
    }
    Ok(true)
}

/// The words of a title, as they are kept.
pub(crate) fn words_of(product_id: i64, title: &str) -> Vec<ProductWord> {
    words::of_title(title).into_iter().map(|word| ProductWord { word, product_id }).collect()
}

async fn set_available(
    tables: &mut OwnTables<'_>,
    product_id: i64,
    is_available: bool,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let sql = "UPDATE inventory SET available = ?, updated_at = ? WHERE product_id = ?";
    let values = values![i64::from(is_available), now, product_id];
    tables.execute("market.available", sql, values).await.map(|_| ())
}
