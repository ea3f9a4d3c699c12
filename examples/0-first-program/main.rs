//! The shortest whole program: an order, which knows what was ordered, is placed and may then be shipped.

use towpath::prelude::*;

#[derive(Default, Serialize, Deserialize)]
struct Order(Option<String>);

#[derive(Serialize, Deserialize, Command)]
enum OrderCommand {
    #[serde(rename = "order.place")]
    Place { sku: String },
    #[serde(rename = "order.ship")]
    Ship,
}

#[derive(Serialize, Deserialize, Event)]
enum OrderEvent {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
    #[serde(rename = "order.shipped")]
    Shipped,
}

impl Aggregate for Order {
    const KIND: &'static str = "order";
    type Command = OrderCommand;
    type Event = OrderEvent;
    type Refusal = Refused;

    fn decide(&self, command: OrderCommand, _: &Context) -> Result<Vec<OrderEvent>, Refused> {
        match command {
            OrderCommand::Place { sku } => Ok(vec![OrderEvent::Placed { sku }]),
            OrderCommand::Ship if self.0.is_none() => Err(Refused::new("nothing-to-ship", "order first")),
            OrderCommand::Ship => Ok(vec![OrderEvent::Shipped]),
        }
    }

    fn evolve(self, event: &OrderEvent) -> Self {
        if let OrderEvent::Placed { sku } = event { Order(Some(sku.clone())) } else { self }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Towpath::from_env().aggregate::<Order>().start().await?;
    let sent = app.send::<Order>("order-7", OrderCommand::Place { sku: "tea".into() }).once("cart-7").await?;
    assert_eq!(sent.aggregate_version, 1);
    app.stop().await;
    Ok(())
}
