//! Orders of a second-hand market: products, orders, payments, shipments and their deadlines.
//!
//! The market keeps tables of its own and writes them in its own transactions; the facts that follow are appended in the
//! same transaction and travel over a topology, in an envelope and with delays that another team has frozen. It uses
//! Towpath's public API only.
//!
//! ```no_run
//! use towpath::Towpath;
//! use towpath_market::{Market, Settings};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings::default();
//! let app = Market::install(Towpath::from_env(), &settings).start().await?;
//! let market = Market::open(&app, settings);
//! let product = market.offer(10002, "A bicycle", "88.50".parse()?).await?;
//! let order = market.place(product.product_id, 10001).await?;
//! market.pay(order.order_id, None).await?;
//! app.stop().await;
//! # Ok(()) }
//! ```
//!
//! Reading order: `topology` (names, queues and bindings), `envelope` and `events` (what messages say), `tables` and `views` (what is kept), `step` and `orders`
//! (the steps of an order, each one conditional update), `market` (the handle), `consumers` and `deadlines` (what
//! happens by itself), `alarms` and `depth` (what people are told).

mod alarms;
mod consumers;
mod deadlines;
mod depth;
mod envelope;
mod error;
mod events;
mod market;
mod model;
mod money;
mod orders;
mod products;
mod settings;
mod step;
mod tables;
pub mod texts;
pub mod topology;
mod views;
mod words;

pub use envelope::{FORMAT_NAME, MarketEnvelope};
pub use error::MarketError;
pub use events::{EventType, OrderEvent, ProductEvent};
pub use market::{Answers, Done, Market, Page};
pub use model::{
    BuyerCredit, Inventory, Notification, Order, OrderFilter, OrderStatus, Product, ProductFilter,
    ProductStatus, Shipment, ShipmentStatus,
};
pub use money::{InvalidMoney, Money};
pub use settings::{
    AlarmSettings, ConsumerSettings, OrderSettings, OutboxSettings, Settings, TimeoutSettings,
};
