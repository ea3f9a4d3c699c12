//! Products: offered, taken, given back.

use chrono::{DateTime, Utc};
use towpath::ports::store::StoreError;

use crate::database::{Session, values};
use crate::model::{PRODUCT, Product, ProductStatus};

pub(crate) async fn insert(session: &mut Session<'_>, product: &Product) -> Result<(), StoreError> {
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
    session.execute("market.offer", &sql, values).await.map(|_| ())
}

pub(crate) async fn find(session: &mut Session<'_>, product_id: i64) -> Result<Option<Product>, StoreError> {
    let sql = format!("SELECT {PRODUCT} FROM products WHERE product_id = ?");
    let row = session.row("market.product", &sql, values![product_id]).await?;
    row.as_ref().map(Product::read).transpose()
}

pub(crate) async fn list(
    session: &mut Session<'_>,
    status: Option<ProductStatus>,
    after: i64,
    limit: u32,
) -> Result<Vec<Product>, StoreError> {
    let rows = match status {
        None => {
            let sql =
                format!("SELECT {PRODUCT} FROM products WHERE product_id > ? ORDER BY product_id LIMIT ?");
            session.rows("market.products", &sql, values![after, i64::from(limit)]).await?
        }
        Some(status) => {
            let sql = format!(
                "SELECT {PRODUCT} FROM products{} WHERE status = ? AND product_id > ? ORDER BY product_id LIMIT ?",
                session.kind().by_index("products_status")
            );
            session.rows("market.products", &sql, values![status.as_str(), after, i64::from(limit)]).await?
        }
    };
    rows.iter().map(Product::read).collect()
}

/// Takes a product for an order: on_sale to sold. One row is the only proof that it was taken.
pub(crate) async fn take(
    session: &mut Session<'_>,
    product_id: i64,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    step(session, product_id, ProductStatus::OnSale, ProductStatus::Sold, now).await
}

/// Gives a product back that an order had: sold to on_sale. What is known about its availability follows at once, as no
/// message tells of it.
pub(crate) async fn release(
    session: &mut Session<'_>,
    product_id: i64,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let released = step(session, product_id, ProductStatus::Sold, ProductStatus::OnSale, now).await?;
    if released {
        let sql = "UPDATE inventory SET available = 1, updated_at = ? WHERE product_id = ?";
        session.execute("market.available", sql, values![now, product_id]).await?;
    }
    Ok(released)
}

async fn step(
    session: &mut Session<'_>,
    product_id: i64,
    from: ProductStatus,
    to: ProductStatus,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE products SET status = ?, status_changed_at = ? WHERE product_id = ? AND status = ?";
    let values = values![to.as_str(), now, product_id, from.as_str()];
    Ok(session.execute("market.product-step", sql, values).await? == 1)
}
