//! A first aggregate, a first command: an order is placed, placed again, refused and shipped.

#![allow(clippy::print_stdout, reason = "an example prints")]

use serde::{Deserialize, Serialize};
use towpath::ids::AggregateKey;
use towpath::{Aggregate, Coded as _, Command, Context, Event, Machine, Refusal, Towpath};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SQLite under ./data, or whatever TOWPATH_STORE names.
    let app = Towpath::from_env().aggregate::<Order>().start().await?;

    // The id makes it safe to send: the same command again has the same answer and no second effect.
    let place = || OrderCommand::Place { sku: "book".to_owned() };
    let placed = app.send::<Order>("order-7", place()).once("cart-7").await?;
    println!("placed: {} made version {}", placed.events[0].event_type, placed.aggregate_version);
    let again = app.send::<Order>("order-7", place()).once("cart-7").await?;
    println!(
        "the same command again: the same answer {}, version {}",
        again == placed_again(&placed),
        again.aggregate_version
    );

    // A refusal is an answer: nothing has changed and nothing is broken.
    if let Err(refusal) = app.send::<Order>("order-8", OrderCommand::Ship).once("ship-8").await {
        println!("refused: {refusal} ({})", refusal.code());
    }

    // A command that follows from a fact joins its flow.
    let shipped =
        app.send::<Order>("order-7", OrderCommand::Ship).once("ship-7").because_of(&placed.events[0]).await?;
    println!("shipped: {} made version {}", shipped.events[0].event_type, shipped.aggregate_version);

    let order = app.load::<Order>("order-7").await?.ok_or("order-7 is gone")?;
    println!("order-7 is {}, sku {}", order.state.unwrap_or_default(), order.value.sku.unwrap_or_default());
    for change in app.history_of(&AggregateKey::new("order", "order-7")?, 0, 10).await? {
        println!("  {} -> {}", change.from_state.as_deref().unwrap_or("(nothing)"), change.to_state);
    }
    let (flow, report) = app.flow(&placed.correlation_id, &[]).await?;
    println!(
        "the flow has {} commands and {} events, whole: {}",
        flow.commands.len(),
        flow.events.len(),
        report.whole
    );

    app.stop().await;
    Ok(())
}

/// The first answer as it comes back the second time: only a flag tells that it was recorded before.
fn placed_again(placed: &towpath::Receipt) -> towpath::Receipt {
    towpath::Receipt { replayed: true, ..placed.clone() }
}

/// The state of an order: what its events add up to.
#[derive(Default, Serialize, Deserialize)]
struct Order {
    sku: Option<String>,
}

/// What may be asked of it. The name is what is stored and sent; the variant is yours to rename.
#[derive(Serialize, Deserialize, Command)]
enum OrderCommand {
    #[serde(rename = "order.place")]
    Place { sku: String },
    #[serde(rename = "order.ship")]
    Ship,
}

/// What may have happened to it.
#[derive(Serialize, Deserialize, Event)]
enum OrderEvent {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
    #[serde(rename = "order.shipped")]
    Shipped,
}

/// Why it says no.
#[derive(Debug, PartialEq, thiserror::Error)]
enum OrderRefusal {
    #[error("the order was placed already")]
    AlreadyPlaced,
    #[error("there is nothing to ship")]
    NothingToShip,
}

impl Refusal for OrderRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::AlreadyPlaced => "already-placed",
            Self::NothingToShip => "nothing-to-ship",
        }
    }
}

impl Aggregate for Order {
    const KIND: &'static str = "order";
    type Command = OrderCommand;
    type Event = OrderEvent;
    type Refusal = OrderRefusal;

    fn decide(&self, command: OrderCommand, _: &Context) -> Result<Vec<OrderEvent>, OrderRefusal> {
        match command {
            OrderCommand::Place { .. } if self.sku.is_some() => Err(OrderRefusal::AlreadyPlaced),
            OrderCommand::Place { sku } => Ok(vec![OrderEvent::Placed { sku }]),
            OrderCommand::Ship if self.sku.is_none() => Err(OrderRefusal::NothingToShip),
            OrderCommand::Ship => Ok(vec![OrderEvent::Shipped]),
        }
    }

    fn evolve(self, event: &OrderEvent) -> Self {
        match event {
            OrderEvent::Placed { sku } => Order { sku: Some(sku.clone()) },
            OrderEvent::Shipped => self,
        }
    }

    /// The machine refuses what `decide` forgot to: an order cannot be shipped twice.
    fn machine() -> Option<Machine> {
        Some(
            Machine::named("order")
                .starts(OrderEvent::PLACED, "placed")
                .state("placed")
                .terminal("shipped")
                .transition("placed", OrderEvent::SHIPPED, "shipped"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_testkit::given;

    #[test]
    fn an_order_ships_once_it_is_placed() {
        let placed = || OrderEvent::Placed { sku: "book".to_owned() };
        given::<Order>([placed()]).when(OrderCommand::Ship).then([OrderEvent::Shipped]).state_is("shipped");
        given::<Order>([]).when(OrderCommand::Ship).refused(OrderRefusal::NothingToShip);
        given::<Order>([placed(), OrderEvent::Shipped]).when(OrderCommand::Ship).refused_by_machine();
    }
}
