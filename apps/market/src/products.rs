//! Products: offered, changed, withdrawn, taken and given back.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use towpath::ports::store::StoreError;

use crate::database::{OwnTables, Value, values};
use crate::model::{PRODUCT, Product, ProductFilter, ProductStatus};
use crate::money::Money;
use crate::words;

pub(crate) async fn insert(session: &mut OwnTables<'_>, product: &Product) -> Result<(), StoreError> {
    let sql = format!("INSERT INTO products ({PRODUCT}) VALUES (?, ?, ?, ?, ?, ?, ?)");
    let values = values![
        product.product_id,
        product.seller_id,
        product.title.as_str(),
        product.price.cents(),
        product.status.as_str(),
        product.status_changed_at,
        product.create_time,
    ];
    session.execute("market.offer", &sql, values).await?;
    note_words(session, product.product_id, &product.title).await
}

pub(crate) async fn find(
    session: &mut OwnTables<'_>,
    product_id: i64,
) -> Result<Option<Product>, StoreError> {
    let sql = format!("SELECT {PRODUCT} FROM products WHERE product_id = ?");
    let row = session.row("market.product", &sql, values![product_id]).await?;
    row.as_ref().map(Product::read).transpose()
}

/// Products behind a number, of which a filter is so. `sought` are the words of its text; with none of them, all titles do.
pub(crate) async fn list(
    session: &mut OwnTables<'_>,
    filter: &ProductFilter,
    sought: &BTreeSet<String>,
    after: i64,
    limit: u32,
) -> Result<Vec<Product>, StoreError> {
    let dialect = session.dialect();
    let has_price = filter.min_price.is_some() || filter.max_price.is_some();
    let columns = PRODUCT.split(", ").map(|column| format!("p.{column}")).collect::<Vec<_>>().join(", ");
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
    let sql =
        format!("SELECT {columns} FROM {from} WHERE {} ORDER BY {number} LIMIT ?", conditions.join(" AND "));
    session.rows("market.products", &sql, values).await?.iter().map(Product::read).collect()
}

/// Takes a product for an order: on_sale to sold, for the price that the order has. One row is the only proof that it was
/// taken.
pub(crate) async fn take(
    session: &mut OwnTables<'_>,
    product_id: i64,
    price: Money,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE products SET status = ?, status_changed_at = ? WHERE product_id = ? AND status = ? \
        AND price_cents = ?";
    let (from, to) = (ProductStatus::OnSale.as_str(), ProductStatus::Sold.as_str());
    let values = values![to, now, product_id, from, price.cents()];
    Ok(session.execute("market.product-step", sql, values).await? == 1)
}

/// Gives a product back that an order had: sold to on_sale. What is known about its availability follows at once, as no
/// message tells of it.
pub(crate) async fn release(
    session: &mut OwnTables<'_>,
    product_id: i64,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let released = step(session, product_id, ProductStatus::Sold, ProductStatus::OnSale, now).await?;
    if released {
        set_available(session, product_id, true, now).await?;
    }
    Ok(released)
}

/// Takes a product off the market: on_sale to withdrawn. Its availability follows at once, as above.
pub(crate) async fn withdraw(
    session: &mut OwnTables<'_>,
    product_id: i64,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let withdrawn = step(session, product_id, ProductStatus::OnSale, ProductStatus::Withdrawn, now).await?;
    if withdrawn {
        set_available(session, product_id, false, now).await?;
    }
    Ok(withdrawn)
}

/// Says anew what a product is and what it costs, while it is on sale: what an order has is never changed under it.
pub(crate) async fn change(
    session: &mut OwnTables<'_>,
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
    if session.execute("market.change-product", &sql, values).await? != 1 {
        return Ok(false);
    }
    if let Some(title) = title {
        let sql = "DELETE FROM product_words WHERE product_id = ?";
        session.execute("market.forget-words", sql, values![product_id]).await?;
        note_words(session, product_id, title).await?;
    }
    Ok(true)
}

/// Keeps the words of a title.
pub(crate) async fn note_words(
    session: &mut OwnTables<'_>,
    product_id: i64,
    title: &str,
) -> Result<(), StoreError> {
    let words = words::of_title(title);
    if words.is_empty() {
        return Ok(());
    }
    let rows = vec!["(?, ?)"; words.len()].join(", ");
    let values: Vec<Value<'_>> =
        words.iter().flat_map(|word| [Value::from(word.as_str()), Value::from(product_id)]).collect();
    // An earlier start may have begun with it, on the database that commits each step of a migration.
    let sql =
        session.dialect().insert_unless_there(&format!("product_words (word, product_id) VALUES {rows}"));
    session.execute("market.words", &sql, values).await.map(|_| ())
}

async fn set_available(
    session: &mut OwnTables<'_>,
    product_id: i64,
    is_available: bool,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let sql = "UPDATE inventory SET available = ?, updated_at = ? WHERE product_id = ?";
    let values = values![i64::from(is_available), now, product_id];
    session.execute("market.available", sql, values).await.map(|_| ())
}

async fn step(
    session: &mut OwnTables<'_>,
    product_id: i64,
    from: ProductStatus,
    to: ProductStatus,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE products SET status = ?, status_changed_at = ? WHERE product_id = ? AND status = ?";
    let values = values![to.as_str(), now, product_id, from.as_str()];
    Ok(session.execute("market.product-step", sql, values).await? == 1)
}
