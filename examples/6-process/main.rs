//! A process: an order is shipped when it is placed, and its delivery ends when it is shipped.

#![allow(clippy::print_stdout, reason = "an example prints")]

use towpath::ids::AggregateKey;
use towpath::prelude::*;
use towpath::{Correlation, NoCommands, Process, Reaction, Seen};

#[derive(Default, Serialize, Deserialize)]
struct Order;
#[derive(Serialize, Deserialize, Command)]
#[rustfmt::skip]
enum OrderCommand { #[serde(rename = "order.place")] Place, #[serde(rename = "order.ship")] Ship }

#[derive(Serialize, Deserialize, Event)]
#[rustfmt::skip]
enum OrderEvent { #[serde(rename = "order.placed")] Placed, #[serde(rename = "order.shipped")] Shipped }

impl Aggregate for Order {
    const KIND: &'static str = "order";
    type Command = OrderCommand;
    type Event = OrderEvent;
    type Refusal = Refused;
    fn decide(&self, command: OrderCommand, _: &Context) -> Result<Vec<OrderEvent>, Refused> {
        let place = matches!(command, OrderCommand::Place);
        Ok(vec![if place { OrderEvent::Placed } else { OrderEvent::Shipped }])
    }
    fn evolve(self, _: &OrderEvent) -> Self {
        self
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Delivery;
#[derive(Serialize, Deserialize, Event)]
#[rustfmt::skip]
enum DeliveryEvent { #[serde(rename = "delivery.begun")] Begun, #[serde(rename = "delivery.ended")] Ended }

impl Aggregate for Delivery {
    const KIND: &'static str = "delivery";
    type Command = NoCommands;
    type Event = DeliveryEvent;
    type Refusal = Refused;
    fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<DeliveryEvent>, Refused> {
        match command {}
    }
    fn evolve(self, _: &DeliveryEvent) -> Self {
        self
    }
}

impl Process for Delivery {
    type Input = OrderEvent;
    fn correlate(seen: &Seen<OrderEvent>) -> Correlation {
        Correlation::Starts(seen.aggregate_id().to_owned())
    }
    fn react(&self, seen: Seen<OrderEvent>, _: &Context) -> Reaction<Self> {
        let id = seen.aggregate_id();
        match seen.event {
            OrderEvent::Placed => Reaction::of([DeliveryEvent::Begun]).send::<Order>(id, OrderCommand::Ship),
            OrderEvent::Shipped => Reaction::of([DeliveryEvent::Ended]),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Towpath::from_env().aggregate::<Order>().process::<Delivery>().start().await?;
    app.send::<Order>("7", OrderCommand::Place).once("cart-7").await?;
    let delivery = AggregateKey::new("delivery", "7")?;
    while app.events_of(&delivery, 0, 10).await?.len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for took in app.process_inputs(&delivery, None, 10).await? {
        println!("{}: {}", took.event_type, took.outcome.as_str());
    }
    app.stop().await;
    Ok(())
}
