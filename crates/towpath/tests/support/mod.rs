//! What the tests of the command bus share: a small shop and a fresh database on each server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(dead_code, unreachable_pub, reason = "not every test file uses all of it")]

#[macro_use]
pub mod delivery;
pub mod peer;
pub mod place;
pub mod probe;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath::retry::{ErrorClass, RetryPolicy};
use towpath::{Aggregate, Builder, Channel, Command, Context, Event, Machine, Refusal, Scratch, Towpath};

/// An order, the usual one.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub sku: Option<String>,
    pub notes: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
pub enum OrderCommand {
    #[serde(rename = "order.place")]
    #[command(gives = OrderEvent::PLACED)]
    Place { sku: String },
    #[serde(rename = "order.note")]
    #[command(gives = OrderEvent::NOTED)]
    Note,
    /// Decides that nothing happens.
    #[serde(rename = "order.glance")]
    Glance,
    #[serde(rename = "order.ship")]
    #[command(gives = OrderEvent::SHIPPED)]
    Ship,
    /// Says no for a reason that may pass.
    #[serde(rename = "order.dawdle")]
    Dawdle,
    /// A bug.
    #[serde(rename = "order.break")]
    Break,
    /// Produces an event that the machine does not allow in this state.
    #[serde(rename = "order.jump")]
    Jump,
}

#[derive(Debug, Serialize, Deserialize, Event)]
pub enum OrderEvent {
    #[serde(rename = "order.placed")]
    Placed { sku: String },
    #[serde(rename = "order.noted")]
    Noted,
    #[serde(rename = "order.shipped")]
    Shipped,
    /// A fact that `evolve` cannot bear: a bug there.
    #[serde(rename = "order.cursed")]
    Cursed,
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum OrderRefusal {
    #[error("the order was placed already")]
    AlreadyPlaced,
    #[error("there is nothing to ship")]
    NothingToShip,
    #[error("not now")]
    NotNow,
}

impl Refusal for OrderRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::AlreadyPlaced => "already-placed",
            Self::NothingToShip => "nothing-to-ship",
            Self::NotNow => "not-now",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::NotNow => ErrorClass::Transient,
            Self::NothingToShip => ErrorClass::NotFound,
            Self::AlreadyPlaced => ErrorClass::Validation,
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
            OrderCommand::Note => Ok(vec![OrderEvent::Noted]),
            OrderCommand::Glance => Ok(vec![]),
            OrderCommand::Ship if self.sku.is_none() => Err(OrderRefusal::NothingToShip),
            OrderCommand::Ship | OrderCommand::Jump => Ok(vec![OrderEvent::Shipped]),
            OrderCommand::Dawdle => Err(OrderRefusal::NotNow),
            OrderCommand::Break => panic!("a bug in decide, on purpose"),
        }
    }

    fn evolve(self, event: &OrderEvent) -> Self {
        match event {
            OrderEvent::Placed { sku } => Order { sku: Some(sku.clone()), ..self },
            OrderEvent::Noted => Order { notes: self.notes + 1, ..self },
            OrderEvent::Shipped => self,
            OrderEvent::Cursed => panic!("a bug in evolve, on purpose"),
        }
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("order")
                .starts(OrderEvent::PLACED, "placed")
                .state("placed")
                .terminal("shipped")
                .transition("placed", OrderEvent::SHIPPED, "shipped")
                .stays(OrderEvent::NOTED)
                .stays(OrderEvent::CURSED),
        )
    }
}

/// A scratch database that is removed with the test.
pub struct Fresh {
    scratch: Option<Scratch>,
    url: String,
}

impl Fresh {
    pub async fn on(server: &str) -> Self {
        let scratch = Scratch::make(&server_url(server)).await.expect("a scratch database");
        Self { url: scratch.url().to_owned(), scratch: Some(scratch) }
    }

    /// A SQLite file in a folder of the test's own.
    pub async fn in_folder(folder: &std::path::Path) -> Self {
        let scratch = Scratch::make(&format!("sqlite://{}", folder.join("towpath.db").display())).await;
        let scratch = scratch.expect("a scratch database");
        Self { url: scratch.url().to_owned(), scratch: Some(scratch) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same database; it is removed with the other one.
    pub fn shared(other: &Self) -> Self {
        Self::at(other.url())
    }

    /// The database that somebody else has made, and removes.
    pub fn at(url: &str) -> Self {
        Self { scratch: None, url: url.to_owned() }
    }

    /// The same schema of PostgreSQL with others behind it.
    pub fn in_schemas(mut self, schemas: &str) -> Self {
        let (server, _) = self.url.split_once("options[search_path]=").expect("a schema of PostgreSQL");
        self.url = format!("{server}options[search_path]={schemas}");
        self
    }

    /// A builder on this database, with retries and scans that suit a test.
    pub fn builder(&self) -> Builder {
        Towpath::builder()
            .store(self.url())
            .aggregate::<Order>()
            .channel(Channel::named("orders", ["order.*"]))
            .scan(Duration::from_millis(20))
            .command_retries(RetryPolicy::Fixed(vec![Duration::from_millis(30); 3]))
    }

    pub async fn app(&self) -> Towpath {
        self.builder().start().await.expect("start")
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some(scratch) = self.scratch.take() else { return };
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = runtime.block_on(scratch.remove());
        });
        let _ = cleaner.join();
    }
}

fn server_url(server: &str) -> String {
    let variable = match server {
        "sqlite" => return format!("sqlite://{}", std::env::temp_dir().join("towpath.db").display()),
        "postgres" => "TOWPATH_TEST_POSTGRES_URL",
        _ => "TOWPATH_TEST_MYSQL_URL",
    };
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services env)\"` first"
        )
    })
}

/// Waits until a question is answered with `Some`, for at most a minute: what is waited for may be far down a chain, on a slow machine.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    eventually_within(what, Duration::from_secs(60), ask).await
}

/// Waits until a question is answered with `Some`.
pub async fn eventually_within<T, F: Future<Output = Option<T>>>(
    what: &str,
    within: Duration,
    mut ask: impl FnMut() -> F,
) -> T {
    let waiting = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(within, waiting).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come about within {within:?}"),
    }
}

/// Makes a test of each function, on each database.
#[macro_export]
macro_rules! on_every_database {
    ($($case:ident),+ $(,)?) => {
        on_every_database!(@database sqlite, $($case),+);
        on_every_database!(@database postgres, $($case),+);
        on_every_database!(@database mysql, $($case),+);
    };
    (@database $database:ident, $($case:ident),+) => {
        mod $database {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    let fresh = super::support::Fresh::on(stringify!($database)).await;
                    super::$case(&fresh).await;
                }
            )+
        }
    };
}
