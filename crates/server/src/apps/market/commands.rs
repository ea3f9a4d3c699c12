//! `towpath market`.

use clap::{Args, Subcommand};
use towpath_market::topology;

use super::settings::MarketSection;
use crate::cli::client::show_page;
use crate::plugin::CommandLine;
use crate::{Connection, Failure, ServeFlags, output};

/// What `towpath market` can do.
#[derive(Subcommand)]
pub enum MarketCommand {
    /// Print the exchanges, queues and bindings that the market declares on its broker
    Topology {
        #[command(flatten)]
        flags: ServeFlags,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Products, by their numbers
    Products(Products),
    /// Orders, by their numbers
    Orders(Orders),
    /// What somebody was told about orders
    Notifications(Notifications),
}

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
pub struct Products {
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
pub struct Orders {
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
pub struct Notifications {
    #[command(flatten)]
    connection: Connection,
    /// Who was told
    recipient: i64,
    #[command(flatten)]
    part: Part,
}

impl MarketCommand {
    pub(super) async fn run(self, line: &CommandLine<'_, MarketSection>) -> Result<(), Failure> {
        match self {
            Self::Topology { flags, json } => show_topology(flags, json, line),
            Self::Products(products) => products.run().await,
            Self::Orders(orders) => orders.run().await,
            Self::Notifications(notifications) => notifications.run().await,
        }
    }
}

fn show_topology(
    flags: ServeFlags,
    json: bool,
    line: &CommandLine<'_, MarketSection>,
) -> Result<(), Failure> {
    let topology = topology::topology(line.configured(flags)?.settings.settings.order.timeout.pending);
    if json {
        let text = serde_json::to_string_pretty(&topology)
            .map_err(|error| Failure::usage(format!("the topology cannot be written: {error}")))?;
        output::line(&text);
    } else {
        output::line(&topology.to_string());
    }
    Ok(())
}

impl Products {
    async fn run(self) -> Result<(), Failure> {
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

impl Orders {
    async fn run(self) -> Result<(), Failure> {
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

impl Notifications {
    async fn run(self) -> Result<(), Failure> {
        let asked = vec![("recipientId", Some(self.recipient.to_string()))];
        let columns =
            [("TOLD", "createdAt"), ("ORDER", "orderId"), ("STATUS", "status"), ("EVENT", "eventId")];
        list(&self.connection, "notifications", asked, self.part, &columns).await
    }
}

async fn list(
    connection: &Connection,
    what: &str,
    mut asked: Vec<(&'static str, Option<String>)>,
    part: Part,
    columns: &[(&str, &str)],
) -> Result<(), Failure> {
    asked.push(("after", part.after));
    show_page(connection, &["api", "market", what], &asked, what, columns, part.limit).await
}
