//! `towpath market products`, `orders` and `notifications`.

use clap::Args;

use super::shown::{more, table};
use super::{Client, Connection, query};
use crate::cli::Failure;

/// Which part of a listing.
#[derive(Args)]
struct Part {
    /// Only what is behind this one
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

/// Products, by their numbers.
#[derive(Args)]
pub(crate) struct MarketProducts {
    #[command(flatten)]
    connection: Connection,
    /// on_sale, sold or withdrawn
    #[arg(long)]
    status: Option<String>,
    /// Only of this seller
    #[arg(long, value_name = "ID")]
    seller: Option<i64>,
    /// Only with all of these words in the title
    #[arg(long)]
    text: Option<String>,
    /// Only for at least so much
    #[arg(long, value_name = "AMOUNT")]
    min_price: Option<String>,
    /// Only for at most so much
    #[arg(long, value_name = "AMOUNT")]
    max_price: Option<String>,
    #[command(flatten)]
    part: Part,
}

/// Orders, by their numbers.
#[derive(Args)]
pub(crate) struct MarketOrders {
    #[command(flatten)]
    connection: Connection,
    /// pending, paid, shipped, completed or cancelled
    #[arg(long)]
    status: Option<String>,
    /// Only of this buyer
    #[arg(long, value_name = "ID")]
    buyer: Option<i64>,
    /// Only from this seller
    #[arg(long, value_name = "ID")]
    seller: Option<i64>,
    #[command(flatten)]
    part: Part,
}

/// What somebody was told about orders.
#[derive(Args)]
pub(crate) struct MarketNotifications {
    #[command(flatten)]
    connection: Connection,
    /// Who was told
    recipient: i64,
    #[command(flatten)]
    part: Part,
}

impl MarketProducts {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = vec![
            ("status", self.status),
            ("sellerId", self.seller.map(|id| id.to_string())),
            ("text", self.text),
            ("minPrice", self.min_price),
            ("maxPrice", self.max_price),
        ];
        let columns = [
            ("PRODUCT", "productId"),
            ("STATUS", "status"),
            ("PRICE", "price"),
            ("SELLER", "sellerId"),
            ("TITLE", "title"),
        ];
        list(&self.connection, "products", asked, self.part, &columns).await
    }
}

impl MarketOrders {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = vec![
            ("status", self.status),
            ("buyerId", self.buyer.map(|id| id.to_string())),
            ("sellerId", self.seller.map(|id| id.to_string())),
        ];
        let columns = [
            ("ORDER", "orderId"),
            ("STATUS", "status"),
            ("AMOUNT", "totalAmount"),
            ("PRODUCT", "productId"),
            ("BUYER", "buyerId"),
            ("SELLER", "sellerId"),
            ("PLACED", "createTime"),
            ("PAY BY", "payBy"),
            ("POSSIBLE", "possible"),
        ];
        list(&self.connection, "orders", asked, self.part, &columns).await
    }
}

impl MarketNotifications {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = vec![("recipientId", Some(self.recipient.to_string()))];
        let columns =
            [("TOLD", "createdAt"), ("ORDER", "orderId"), ("STATUS", "status"), ("EVENT", "eventId")];
        list(&self.connection, "notifications", asked, self.part, &columns).await
    }
}

async fn list(
    connection: &Connection,
    what: &'static str,
    mut asked: Vec<(&'static str, Option<String>)>,
    part: Part,
    columns: &[(&str, &str)],
) -> Result<(), Failure> {
    let client = Client::new(connection)?;
    asked.extend([("after", part.after), ("limit", Some(part.limit.to_string()))]);
    let answer = client.get(&["api", "market", what], &query(&asked)).await?;
    client.show(&answer, |listed| {
        table(&listed[what], columns);
        more(listed, listed[what].as_array().map_or(0, Vec::len), part.limit);
    });
    Ok(())
}
