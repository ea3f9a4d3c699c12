//! The market's requests and answers as they stand on the wire.

use chrono::{DateTime, Utc};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use towpath_market::{
    Inventory, Money, Notification, Order, OrderStatus, Product, ProductStatus, Settings, Shipment,
};
use utoipa::openapi::schema::{Array, ArrayBuilder, Object};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::http::wire::one_of;
use crate::kit::{page_limit, usually};

fn product_status() -> Object {
    one_of(ProductStatus::ALL.iter().map(|status| status.as_str()))
}

fn order_status() -> Object {
    one_of(OrderStatus::ALL.iter().map(|status| status.as_str()))
}

fn steps() -> Array {
    ArrayBuilder::new().items(one_of(["pay", "cancel", "ship", "complete"])).build()
}

/// Reads an amount that stands in a query: there, everything is a text.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Money>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

/// A product to be offered.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Offered {
    #[schema(minimum = 1)]
    pub(super) seller_id: i64,
    #[schema(min_length = 1, max_length = 200)]
    pub(super) title: String,
    #[schema(value_type = f64, minimum = 0.01, example = 88.50)]
    pub(super) price: Money,
}

/// What is to be different about a product: at least one of title and price.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ProductChange)]
pub(super) struct Changed {
    #[schema(min_length = 1, max_length = 200)]
    pub(super) title: Option<String>,
    #[schema(value_type = Option<f64>, minimum = 0.01, example = 70.00)]
    pub(super) price: Option<Money>,
    /// Who changes it: must be the seller, if it is given.
    pub(super) actor_id: Option<i64>,
}

/// Who does something.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = MarketActor)]
pub(super) struct Actor {
    /// Must be who the step is for, if it is given: the buyer pays, cancels and completes, the seller ships and withdraws.
    pub(super) actor_id: Option<i64>,
}

/// An order to be placed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Placed {
    pub(super) product_id: i64,
    #[schema(minimum = 1)]
    pub(super) buyer_id: i64,
    /// What the buyer was told that it costs; if it is given and not so any more, nothing is ordered.
    #[schema(value_type = Option<f64>)]
    pub(super) price: Option<Money>,
}

/// A payment.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Payment {
    /// Must be the order's total, if it is given.
    #[schema(value_type = Option<f64>)]
    pub(super) amount: Option<Money>,
    /// Who pays: must be the buyer, if it is given.
    pub(super) actor_id: Option<i64>,
}

/// A cancellation.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Cancellation {
    /// Why; `buyer` if nothing is said.
    #[schema(max_length = 64)]
    pub(super) reason: Option<String>,
    /// Who cancels: must be the buyer, if it is given.
    pub(super) actor_id: Option<i64>,
}

/// A product as it is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Product)]
pub(super) struct ShownProduct {
    pub(super) product_id: i64,
    pub(super) seller_id: i64,
    pub(super) title: String,
    #[schema(value_type = f64)]
    pub(super) price: Money,
    #[schema(schema_with = product_status)]
    pub(super) status: ProductStatus,
    pub(super) status_changed_at: DateTime<Utc>,
    pub(super) create_time: DateTime<Utc>,
    /// What the inventory knows, a moment later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inventory: Option<ShownInventory>,
}

/// What the inventory knows about a product.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Inventory)]
pub(super) struct ShownInventory {
    pub(super) available: bool,
    pub(super) order_count: i64,
    pub(super) last_order_id: i64,
}

/// An order as it is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Order)]
pub(super) struct ShownOrder {
    pub(super) order_id: i64,
    pub(super) order_no: String,
    pub(super) product_id: i64,
    pub(super) buyer_id: i64,
    pub(super) seller_id: i64,
    pub(super) quantity: i64,
    #[schema(value_type = f64)]
    pub(super) price: Money,
    #[schema(value_type = f64)]
    pub(super) total_amount: Money,
    #[schema(schema_with = order_status)]
    pub(super) status: OrderStatus,
    pub(super) cancel_reason: Option<String>,
    pub(super) create_time: DateTime<Utc>,
    pub(super) pay_time: Option<DateTime<Utc>>,
    pub(super) ship_time: Option<DateTime<Utc>>,
    pub(super) complete_time: Option<DateTime<Utc>>,
    pub(super) cancel_time: Option<DateTime<Utc>>,
    /// Until when it is to be paid; nothing, unless it waits for that. Later it is cancelled.
    pub(super) pay_by: Option<DateTime<Utc>>,
    /// The steps that are possible now.
    #[schema(schema_with = steps)]
    pub(super) possible: Vec<&'static str>,
    /// The flow of all its facts.
    pub(super) correlation_id: Option<String>,
    /// Its way to the buyer, once it has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shipment: Option<ShownShipment>,
    /// What buyer and seller were told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) notifications: Option<Vec<ShownNotification>>,
}

/// The way of an order.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Shipment)]
pub(super) struct ShownShipment {
    pub(super) status: &'static str,
    pub(super) status_changed_at: DateTime<Utc>,
}

/// Something that somebody was told.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MarketNotification)]
pub(super) struct ShownNotification {
    pub(super) event_id: String,
    pub(super) recipient_id: i64,
    pub(super) order_id: i64,
    pub(super) status: &'static str,
    pub(super) created_at: DateTime<Utc>,
}

/// How a buyer's orders ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BuyerCredit)]
pub(super) struct ShownCredit {
    pub(super) buyer_id: i64,
    pub(super) completed_count: i64,
    pub(super) cancelled_count: i64,
    pub(super) timeout_count: i64,
    pub(super) score: i64,
}

/// Products.
#[derive(Serialize, ToSchema)]
#[schema(as = Products)]
pub(super) struct ShownProducts {
    pub(super) products: Vec<ShownProduct>,
    /// What to give as `after` to read on; nothing on the last page.
    pub(super) next: Option<i64>,
}

/// Orders.
#[derive(Serialize, ToSchema)]
#[schema(as = Orders)]
pub(super) struct ShownOrders {
    pub(super) orders: Vec<ShownOrder>,
    /// What to give as `after` to read on; nothing on the last page.
    pub(super) next: Option<i64>,
}

/// What somebody was told.
#[derive(Serialize, ToSchema)]
#[schema(as = MarketNotifications)]
pub(super) struct ShownNotifications {
    pub(super) notifications: Vec<ShownNotification>,
    /// What to give as `after` to read on; nothing on the last page.
    pub(super) next: Option<String>,
}

/// Which notifications.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichNotifications {
    /// Of whom.
    pub(super) recipient_id: i64,
    /// Only behind this event.
    pub(super) after: Option<Uuid>,
    /// At most so many: 100, if nothing is said.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    pub(super) limit: u32,
}

/// Which products.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichProducts {
    /// Only those in this status.
    #[param(schema_with = product_status)]
    pub(super) status: Option<ProductStatus>,
    /// Only of this seller.
    pub(super) seller_id: Option<i64>,
    /// Only with all of these words in the title, however they are written.
    #[param(min_length = 1, max_length = 200)]
    pub(super) text: Option<String>,
    /// Only for at least so much.
    #[serde(default, deserialize_with = "amount")]
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,9}([.][0-9]{1,2})?$", example = "10.00")]
    pub(super) min_price: Option<Money>,
    /// Only for at most so much.
    #[serde(default, deserialize_with = "amount")]
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,9}([.][0-9]{1,2})?$", example = "88.50")]
    pub(super) max_price: Option<Money>,
    /// Only behind this number.
    pub(super) after: Option<i64>,
    /// At most so many: 100, if nothing is said.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    pub(super) limit: u32,
}

/// Which orders.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichOrders {
    /// Only those in this status.
    #[param(schema_with = order_status)]
    pub(super) status: Option<OrderStatus>,
    /// Only of this buyer.
    pub(super) buyer_id: Option<i64>,
    /// Only of this seller.
    pub(super) seller_id: Option<i64>,
    /// Only behind this number.
    pub(super) after: Option<i64>,
    /// At most so many: 100, if nothing is said.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    pub(super) limit: u32,
}

impl ShownProduct {
    pub(super) fn of(product: Product, inventory: Option<Inventory>) -> Self {
        Self {
            product_id: product.product_id,
            seller_id: product.seller_id,
            title: product.title,
            price: product.price,
            status: product.status,
            status_changed_at: product.status_changed_at,
            create_time: product.create_time,
            inventory: inventory.map(|inventory| ShownInventory {
                available: inventory.is_available,
                order_count: inventory.order_count,
                last_order_id: inventory.last_order_id,
            }),
        }
    }
}

impl ShownOrder {
    pub(super) fn of(order: Order, settings: &Settings) -> Self {
        Self {
            pay_by: order.pay_by(settings.order.timeout.pending),
            possible: order.status.possible(),
            correlation_id: order.correlation_id,
            order_id: order.order_id,
            order_no: order.order_no,
            product_id: order.product_id,
            buyer_id: order.buyer_id,
            seller_id: order.seller_id,
            quantity: order.quantity,
            price: order.price,
            total_amount: order.total_amount,
            status: order.status,
            cancel_reason: order.cancel_reason,
            create_time: order.create_time,
            pay_time: order.pay_time,
            ship_time: order.ship_time,
            complete_time: order.complete_time,
            cancel_time: order.cancel_time,
            shipment: None,
            notifications: None,
        }
    }
}

impl ShownShipment {
    pub(super) fn of(shipment: Shipment) -> Self {
        Self { status: shipment.status.as_str(), status_changed_at: shipment.status_changed_at }
    }
}

impl ShownNotification {
    pub(super) fn of(told: Notification) -> Self {
        Self {
            event_id: told.event_id,
            recipient_id: told.recipient_id,
            order_id: told.order_id,
            status: told.status.as_str(),
            created_at: told.created_at,
        }
    }
}
