//! A consumer: each order that is placed takes a book from the stock, once, whatever is delivered again.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::convert::Infallible;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath::letters::LetterFilter;
use towpath::{
    Aggregate, Channel, Command, Consumer, Context, Delivery, Event, HandlerError, Next, Refusal, Towpath,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SQLite and the in-process broker, or whatever TOWPATH_STORE and TOWPATH_BROKER name.
    let app = Towpath::from_env()
        .aggregate::<Order>()
        .aggregate::<Stock>()
        .channel(Channel::named("orders", ["order.*"]))
        .consumer(Consumer::of("orders").in_order().each("stock", take_from_stock))
        .start()
        .await?;
    app.send::<Stock>("book", StockCommand::Receive { count: 5 }).await?;

    for (order, sku) in [("order-1", "book"), ("order-2", "boock"), ("order-3", "book")] {
        app.send::<Order>(order, OrderCommand::Place { sku: sku.to_owned() }).once(order).await?;
    }
    println!("three orders are placed");
    println!("{} books are left", left(&app, 3).await?);

    // The second one went nowhere: it waits for somebody to look at it.
    let letters = app.dead_letters();
    let dead = loop {
        match letters.list(&LetterFilter::dead(), 0, 10).await?.pop() {
            Some(letter) => break letter,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    println!(
        "one delivery is dead: {} for {}, {}: {}",
        dead.letter.message.message_type.as_deref().unwrap_or_default(),
        dead.letter.handler.as_ref().map(ToString::to_string).unwrap_or_default(),
        dead.status_reason.as_deref().unwrap_or_default(),
        dead.status_message.as_deref().unwrap_or_default(),
    );
    let body = String::from_utf8_lossy(&dead.letter.message.body).replace("boock", "book");
    letters.edit(dead.letter_id, body.as_bytes()).await?;
    letters.replay(dead.letter_id, false).await?;
    println!("corrected and replayed: {} books are left", left(&app, 2).await?);
    println!("it is now {}", letters.get(dead.letter_id).await?.status);

    app.stop().await;
    Ok(())
}

/// Runs once for each fact. What it does in its transaction commits together with the mark that it was handled.
async fn take_from_stock(mut delivery: Delivery) -> Result<Next, HandlerError> {
    // A fact that cannot be read is dead at once; no number of attempts would help.
    let OrderEvent::Placed { sku } = delivery.read::<Order>()?;
    if sku != "book" {
        return Ok(delivery.dead("no-such-sku", format!("nothing in stock is called {sku}")));
    }
    // A command that follows from the fact: recorded in this transaction, run after its commit.
    delivery.send::<Stock>(&sku, StockCommand::Take).await?;
    Ok(delivery.handled())
}

/// Waits until so many are left.
async fn left(app: &Towpath, expected: u32) -> Result<u32, Box<dyn std::error::Error>> {
    loop {
        let stock = app.load::<Stock>("book").await?.ok_or("there is no stock")?;
        if stock.value.count <= expected {
            return Ok(stock.value.count);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Order {
    sku: Option<String>,
}

#[derive(Serialize, Deserialize, Command)]
enum OrderCommand {
    #[serde(rename = "order.place")]
    Place { sku: String },
}

#[derive(Serialize, Deserialize, Event)]
enum OrderEvent {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
}

impl Aggregate for Order {
    const KIND: &'static str = "order";
    type Command = OrderCommand;
    type Event = OrderEvent;
    type Refusal = Infallible;

    fn decide(&self, command: OrderCommand, _: &Context) -> Result<Vec<OrderEvent>, Infallible> {
        let OrderCommand::Place { sku } = command;
        Ok(vec![OrderEvent::Placed { sku }])
    }

    fn evolve(self, event: &OrderEvent) -> Self {
        let OrderEvent::Placed { sku } = event;
        Order { sku: Some(sku.clone()) }
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Stock {
    count: u32,
}

#[derive(Serialize, Deserialize, Command)]
enum StockCommand {
    #[serde(rename = "stock.receive")]
    #[command(gives = StockEvent::RECEIVED)]
    Receive { count: u32 },
    #[serde(rename = "stock.take")]
    #[command(gives = StockEvent::TAKEN)]
    Take,
}

#[derive(Serialize, Deserialize, Event)]
enum StockEvent {
    #[serde(rename = "stock.received")]
    Received { count: u32 },
    #[serde(rename = "stock.taken")]
    Taken,
}

#[derive(Debug, thiserror::Error)]
enum StockRefusal {
    #[error("nothing is left")]
    Empty,
}

impl Refusal for StockRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
        }
    }
}

impl Aggregate for Stock {
    const KIND: &'static str = "stock";
    type Command = StockCommand;
    type Event = StockEvent;
    type Refusal = StockRefusal;

    fn decide(&self, command: StockCommand, _: &Context) -> Result<Vec<StockEvent>, StockRefusal> {
        match command {
            StockCommand::Receive { count } => Ok(vec![StockEvent::Received { count }]),
            StockCommand::Take if self.count == 0 => Err(StockRefusal::Empty),
            StockCommand::Take => Ok(vec![StockEvent::Taken]),
        }
    }

    fn evolve(self, event: &StockEvent) -> Self {
        match event {
            StockEvent::Received { count } => Stock { count: self.count + count },
            StockEvent::Taken => Stock { count: self.count.saturating_sub(1) },
        }
    }
}
