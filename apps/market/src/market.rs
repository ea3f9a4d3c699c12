//! The market's handle: what a shop does.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath::ids::{CorrelationId, EventId, TraceId};
use towpath::ports::broker::BrokerError;
use towpath::ports::operations::OperationAnswer;
use towpath::ports::store::StoreError;
use towpath::{Builder, Circumstances, DeadLetterQueue, Event as _, Towpath, Tx};
use uuid::Uuid;

use crate::alarms::Alarms;
use crate::consumers;
use crate::database::{corrupt, now, values};
use crate::deadlines::Deadlines;
use crate::depth::Depth;
use crate::envelope::{FORMAT_NAME, MarketEnvelope};
use crate::error::MarketError;
use crate::events::{OrderEvent, ProductEvent, Step};
use crate::model::{
    BuyerCredit, Inventory, Notification, Order, OrderFilter, OrderStatus, Product, ProductFilter,
    ProductStatus, Shipment,
};
use crate::money::Money;
use crate::numbers::{Numbered, Numbers};
use crate::orders;
use crate::products;
use crate::settings::Settings;
use crate::{tables, topology, words};

/// The longest title, in characters.
const LONGEST_TITLE: usize = 200;
/// The longest reason of a cancellation, in characters.
const LONGEST_REASON: usize = 64;
/// How many numbers are tried for one order.
const MOST_NUMBERS: u32 = 5;
/// How often an order is placed anew whose product has changed its price meanwhile.
const MOST_PRICES: u32 = 5;
/// How many words may be looked for at a time.
const MOST_WORDS: usize = 20;
/// The most that one page of a listing has.
const LARGEST_PAGE: u32 = 500;

/// A running market. Clones share it.
#[derive(Clone)]
pub struct Market {
    shared: Arc<Shared>,
    trace_id: Option<TraceId>,
    answers: Option<Answers>,
    actor_id: Option<i64>,
}

/// What was just done, in the transaction that does it.
#[derive(Debug, Clone, Copy)]
pub enum Done<'a> {
    /// A product was offered.
    Offered(&'a Product),
    /// A product was changed or withdrawn.
    Changed(&'a Product),
    /// An order was placed.
    Placed(&'a Order),
    /// An order was paid, shipped, completed or cancelled.
    Moved(&'a Order),
}

/// How what was done is answered to whoever asked from outside.
pub type Answers = fn(Done<'_>, &Settings) -> Result<OperationAnswer, serde_json::Error>;

struct Shared {
    app: Towpath,
    settings: Settings,
    numbers: Numbers,
    deadlines: Deadlines,
    depth: Depth,
}

/// Which part of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Behind this number.
    pub after: i64,
    /// At most so many; 500 are the most.
    pub limit: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: 0, limit: 100 }
    }
}

impl Market {
    /// Adds the market to what Towpath is made of: its topology, channels, consumers and tables.
    pub fn install(builder: Builder, settings: &Settings) -> Builder {
        let channels = topology::channels(&settings.outbox);
        let builder = channels.into_iter().fold(builder, Builder::channel);
        let roots = [OrderEvent::CREATED].iter().chain(ProductEvent::NAMES);
        let builder = roots.fold(builder, |builder, name| builder.begins_flow(*name));
        consumers::consumers(settings)
            .into_iter()
            .fold(builder, Builder::consumer)
            .topology(topology::topology(settings.pending))
            .format(MarketEnvelope)
            .dead_letter_queue(DeadLetterQueue::from(topology::DEAD_LETTER_QUEUE).in_format(FORMAT_NAME))
            .watch(Arc::new(Alarms::default()))
            .entity::<Order>()
            .entity::<Product>()
            .versions(tables::versions())
    }

    /// Opens the market on a Towpath that it was installed into, and begins to look for orders whose time is over and for
    /// queues that are too deep.
    pub fn open(app: &Towpath, settings: Settings) -> Self {
        let deadlines = Deadlines::watch(app, &settings);
        let depth = Depth::watch(app, &settings);
        let shared = Shared { app: app.clone(), settings, numbers: Numbers::default(), deadlines, depth };
        Self { shared: Arc::new(shared), trace_id: None, answers: None, actor_id: None }
    }

    /// The same market, whose next facts belong to a trace.
    pub fn traced(&self, trace_id: TraceId) -> Self {
        Self { trace_id: Some(trace_id), ..self.clone() }
    }

    /// The same market, for a server that runs changes once per key: what is done commits together with its answer
    /// ([`Tx::answer`]), so that who asks again is answered and nothing is done twice.
    pub fn answering(&self, answers: Answers) -> Self {
        Self { answers: Some(answers), ..self.clone() }
    }

    /// The same market, for what somebody does: a step that is not theirs is refused. The buyer pays, cancels and completes;
    /// the seller ships, changes and withdraws. Without an actor nothing is checked, unless the settings want one.
    pub fn acting(&self, actor_id: Option<i64>) -> Self {
        Self { actor_id, ..self.clone() }
    }

    /// How it works.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Stops looking for orders whose time is over, and at the queues. What has not ended after 30 seconds is cut off. Stop
    /// it before Towpath.
    pub async fn stop(&self) {
        self.stop_within(Duration::from_secs(30)).await;
    }

    /// Stops, with another patience for what has begun. Answers whether everything ended by itself.
    pub async fn stop_within(&self, patience: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + patience;
        let Shared { deadlines, depth, .. } = &*self.shared;
        let (closed, looked) = tokio::join!(deadlines.stop_by(deadline), depth.stop_by(deadline));
        closed && looked
    }

    /// Offers a product.
    pub async fn offer(&self, seller_id: i64, title: &str, price: Money) -> Result<Product, MarketError> {
        check_person("sellerId", seller_id)?;
        let title = checked_title(title)?;
        check_price(price)?;
        let app = &self.shared.app;
        let product_id = self.shared.numbers.next(app, Numbered::Products).await?;
        let trace_id = self.trace();
        app.transact(async |mut tx| {
            let step = self.step(&mut tx, &trace_id, EventId(Uuid::now_v7())).await?;
            let now = step.now;
            let product = Product {
                product_id,
                seller_id,
                title: title.to_owned(),
                price,
                status: ProductStatus::OnSale,
                status_changed_at: now,
                create_time: now,
            };
            products::insert(&mut tx, &product, &step).await?;
            self.answer(&mut tx, Done::Offered(&product)).await?;
            Ok(product)
        })
        .await
    }

    /// Says anew what a product is, or what it costs, while it is on sale. What was ordered before keeps its price.
    ///
    /// # Errors
    /// `NotOnSale` for what is sold or withdrawn.
    pub async fn change(
        &self,
        product_id: i64,
        title: Option<&str>,
        price: Option<Money>,
    ) -> Result<Product, MarketError> {
        let title = title.map(checked_title).transpose()?;
        price.map_or(Ok(()), check_price)?;
        if title.is_none() && price.is_none() {
            return Err(MarketError::invalid("title", "say a title, or a price, or both"));
        }
        let product = self.product(product_id).await?;
        self.check_actor("change a product", "its seller", product.seller_id)?;
        let work = async |mut tx: Tx| {
            if !products::change(&mut tx.own_tables(), product_id, title, price).await? {
                return Err(MarketError::NotOnSale(product_id));
            }
            self.changed(&mut tx, product_id).await
        };
        self.shared.app.transact(work).await
    }

    /// Takes a product off the market, while it is on sale. Withdrawn twice is withdrawn.
    ///
    /// # Errors
    /// `NotOnSale` for what is sold.
    pub async fn withdraw(&self, product_id: i64) -> Result<Product, MarketError> {
        let product = self.product(product_id).await?;
        self.check_actor("withdraw a product", "its seller", product.seller_id)?;
        let trace_id = self.trace();
        let work = async |mut tx: Tx| {
            let step = self.step(&mut tx, &trace_id, EventId(Uuid::now_v7())).await?;
            products::withdraw(&mut tx, product_id, &step).await?;
            let product = self.changed(&mut tx, product_id).await?;
            match product.status {
                ProductStatus::Withdrawn => Ok(product),
                _ => Err(MarketError::NotOnSale(product_id)),
            }
        };
        self.shared.app.transact(work).await
    }

    /// Orders a product, for what it costs.
    ///
    /// # Guarantees
    /// Of all who order one product at a time exactly one succeeds. The order, the product and the facts commit
    /// together.
    ///
    /// # Errors
    /// `NotOnSale` for all others; `OwnProduct` for its seller.
    pub async fn place(&self, product_id: i64, buyer_id: i64) -> Result<Order, MarketError> {
        self.place_for(product_id, buyer_id, None).await
    }

    /// Orders a product, if it still costs what the buyer was told.
    ///
    /// # Errors
    /// As those of [`place`](Market::place), and `PriceChanged`.
    pub async fn place_for(
        &self,
        product_id: i64,
        buyer_id: i64,
        told: Option<Money>,
    ) -> Result<Order, MarketError> {
        check_person("buyerId", buyer_id)?;
        let app = &self.shared.app;
        let (trace_id, quantity) = (self.trace(), 1);
        let (mut numbers_tried, mut prices_tried) = (0, 0);
        // Looked at without a lock first: most of those who are late are told so here. Its price may still change, and the
        // product is only taken for the one that was read.
        let mut product = self.product_on_sale(product_id, buyer_id, told).await?;
        loop {
            let order_id = self.shared.numbers.next(app, Numbered::Orders).await?;
            let total_amount =
                product.price.times(quantity).map_err(|error| corrupt("price_cents", error))?;
            let (event_id, timeout_event_id) = (EventId(Uuid::now_v7()), EventId(Uuid::now_v7()));
            let flow = CorrelationId::of_new_flow(Uuid::now_v7());
            let placing = app.transact(async |mut tx| {
                let now = self.now(&mut tx).await?;
                let order = Order {
                    order_id,
                    order_no: order_no(now, order_id),
                    product_id,
                    buyer_id,
                    seller_id: product.seller_id,
                    quantity,
                    price: product.price,
                    total_amount,
                    status: OrderStatus::Pending,
                    status_changed_at: now,
                    cancel_reason: None,
                    create_time: now,
                    pay_time: None,
                    ship_time: None,
                    complete_time: None,
                    cancel_time: None,
                    correlation_id: Some(flow.to_string()),
                    last_event_id: None,
                    timeout_event_id: None,
                };
                let step = Step { now, trace_id: trace_id.clone(), event_id };
                let order = orders::place(&mut tx, &product, order, &step, timeout_event_id).await?;
                self.answer(&mut tx, Done::Placed(&order)).await?;
                Ok(order)
            });
            match placing.await {
                // Another instance has numbered an order alike in this second: the next number will do.
                Err(error) if is_taken(&error) && numbers_tried < MOST_NUMBERS => numbers_tried += 1,
                // Sold, or for another price now.
                Err(MarketError::NotOnSale(_)) if prices_tried < MOST_PRICES => {
                    prices_tried += 1;
                    let now = self.product_on_sale(product_id, buyer_id, told).await?;
                    if now.price == product.price {
                        return Err(MarketError::NotOnSale(product_id));
                    }
                    product = now;
                }
                placed => return placed,
            }
        }
    }

    /// Pays an order. An amount that is given must be the order's.
    ///
    /// # Guarantees
    /// For this and the other steps of an order: the answer is what the step's own transaction wrote. After the commit
    /// nothing is read that could fail, and a commit whose answer was lost is looked for in the log.
    pub async fn pay(&self, order_id: i64, amount: Option<Money>) -> Result<Order, MarketError> {
        let order = self.order(order_id).await?;
        self.check_actor("pay", "the buyer", order.buyer_id)?;
        if let Some(amount) = amount.filter(|amount| *amount != order.total_amount) {
            let why = format!("{amount} is not the {} of the order", order.total_amount);
            return Err(MarketError::invalid("amount", why));
        }
        let (trace_id, event_id) = (self.trace(), EventId(Uuid::now_v7()));
        let work = async |mut tx: Tx| {
            let step = self.step(&mut tx, &trace_id, event_id).await?;
            let order = orders::pay(&mut tx, &order, &step).await?;
            self.moved(&mut tx, order).await
        };
        self.shared.app.transact(work).await
    }

    /// Ships a paid order.
    pub async fn ship(&self, order_id: i64) -> Result<Order, MarketError> {
        let order = self.order(order_id).await?;
        self.check_actor("ship", "the seller", order.seller_id)?;
        let (trace_id, event_id) = (self.trace(), EventId(Uuid::now_v7()));
        let work = async |mut tx: Tx| {
            let step = self.step(&mut tx, &trace_id, event_id).await?;
            let order = orders::ship(&mut tx, &order, &step).await?;
            self.moved(&mut tx, order).await
        };
        self.shared.app.transact(work).await
    }

    /// Completes a shipped order.
    pub async fn complete(&self, order_id: i64) -> Result<Order, MarketError> {
        let order = self.order(order_id).await?;
        self.check_actor("complete", "the buyer", order.buyer_id)?;
        let (trace_id, event_id) = (self.trace(), EventId(Uuid::now_v7()));
        let work = async |mut tx: Tx| {
            let step = self.step(&mut tx, &trace_id, event_id).await?;
            let order = orders::complete(&mut tx, &order, &step).await?;
            self.moved(&mut tx, order).await
        };
        self.shared.app.transact(work).await
    }

    /// Cancels an order that was not paid; its product is on sale again.
    pub async fn cancel(&self, order_id: i64, reason: Option<&str>) -> Result<Order, MarketError> {
        let reason = reason.unwrap_or("buyer").trim();
        let is_text = !reason.chars().any(char::is_control) && !reason.is_empty();
        if !is_text || reason.chars().count() > LONGEST_REASON {
            let why = format!("it has from 1 to {LONGEST_REASON} characters that can be printed");
            return Err(MarketError::invalid("reason", why));
        }
        if reason == orders::TIMEOUT_REASON {
            return Err(MarketError::invalid("reason", "a timeout is not for people to say"));
        }
        let order = self.order(order_id).await?;
        self.check_actor("cancel", "the buyer", order.buyer_id)?;
        let (trace_id, event_id) = (self.trace(), EventId(Uuid::now_v7()));
        let work = async |mut tx: Tx| {
            let step = self.step(&mut tx, &trace_id, event_id).await?;
            let order = orders::cancel(&mut tx, &order, reason, &step).await?;
            self.moved(&mut tx, order).await
        };
        self.shared.app.transact(work).await
    }

    /// The queues that hold more than they should ([`Settings::queue_depth`]), with how much they hold. The job looks by
    /// itself and raises an alarm.
    ///
    /// The delay queue is not among them: what waits there is no backlog.
    pub async fn deep_queues(&self) -> Result<Vec<(&'static str, u64)>, BrokerError> {
        crate::depth::deep_queues(&self.shared.app, self.shared.settings.queue_depth).await
    }

    /// Closes all orders whose time to pay is over; answers how many. The job does this by itself.
    pub async fn close_overdue(&self) -> Result<u64, MarketError> {
        let Shared { app, settings, deadlines, .. } = &*self.shared;
        crate::deadlines::close_overdue(app, settings, &deadlines.stopping()).await
    }

    /// A product.
    pub async fn product(&self, product_id: i64) -> Result<Product, MarketError> {
        let found = self.shared.app.find(&product_id).await?;
        found.ok_or(MarketError::UnknownProduct(product_id))
    }

    /// Products behind a number.
    pub async fn products(&self, filter: &ProductFilter, page: Page) -> Result<Vec<Product>, MarketError> {
        let text = filter.text.as_deref();
        let sought = text.map(words::sought).unwrap_or_default();
        let is_long = text.is_some_and(|text| text.chars().count() > LONGEST_TITLE);
        if is_long || text.is_some() && !(1..=MOST_WORDS).contains(&sought.len()) {
            let why = format!("it has from 1 to {MOST_WORDS} words, and at most {LONGEST_TITLE} characters");
            return Err(MarketError::invalid("text", why));
        }
        let mut connection = self.shared.app.listing().await?;
        let limit = page.limit.min(LARGEST_PAGE);
        Ok(products::list(&mut connection.own_tables(), filter, &sought, page.after, limit).await?)
    }

    /// An order.
    pub async fn order(&self, order_id: i64) -> Result<Order, MarketError> {
        let found = self.shared.app.find(&order_id).await?;
        found.ok_or(MarketError::UnknownOrder(order_id))
    }

    /// Orders behind a number.
    pub async fn orders(&self, filter: &OrderFilter, page: Page) -> Result<Vec<Order>, MarketError> {
        let mut connection = self.shared.app.listing().await?;
        let limit = page.limit.min(LARGEST_PAGE);
        Ok(orders::list(&mut connection.own_tables(), filter, page.after, limit).await?)
    }

    /// The shipment of an order, if it has begun.
    pub async fn shipment(&self, order_id: i64) -> Result<Option<Shipment>, MarketError> {
        Ok(self.shared.app.find(&order_id).await?)
    }

    /// What buyer and seller were told about an order.
    pub async fn notifications(&self, order_id: i64) -> Result<Vec<Notification>, MarketError> {
        let chosen = "WHERE order_id = ? ORDER BY created_at, recipient_id";
        Ok(self.shared.app.rows("market.notifications", chosen, values![order_id]).await?)
    }

    /// What somebody was told, behind an event; in the order of the events' ids.
    pub async fn notifications_of(
        &self,
        recipient_id: i64,
        after: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Notification>, MarketError> {
        let after = after.map(|event_id| event_id.to_string()).unwrap_or_default();
        let mut connection = self.shared.app.listing().await?;
        let tables = &mut connection.own_tables();
        let chosen = format!(
            "{} WHERE recipient_id = ? AND event_id > ? ORDER BY event_id LIMIT ?",
            tables.dialect().by_index("notifications_recipient_event")
        );
        let values = values![recipient_id, after, limit.min(LARGEST_PAGE)];
        Ok(tables.rows_of("market.notifications-of", &chosen, values).await?)
    }

    /// How a buyer's orders ended, if any has.
    pub async fn credit(&self, buyer_id: i64) -> Result<Option<BuyerCredit>, MarketError> {
        Ok(self.shared.app.find(&buyer_id).await?)
    }

    /// What the inventory knows about a product.
    pub async fn inventory(&self, product_id: i64) -> Result<Option<Inventory>, MarketError> {
        Ok(self.shared.app.find(&product_id).await?)
    }

    /// What an order is after a step, as the step's own statement has answered it: what is answered is what commits, and
    /// nothing that can fail stands between the commit and the answer.
    async fn moved(&self, tx: &mut Tx, order: Order) -> Result<Order, MarketError> {
        self.answer(tx, Done::Moved(&order)).await?;
        Ok(order)
    }

    /// What a product is after a change, read in the change's own transaction.
    async fn changed(&self, tx: &mut Tx, product_id: i64) -> Result<Product, MarketError> {
        let product: Option<Product> = tx.find(&product_id).await?;
        let product = product.ok_or(MarketError::UnknownProduct(product_id))?;
        self.answer(tx, Done::Changed(&product)).await?;
        Ok(product)
    }

    /// A product that somebody may order, if it costs what they were told.
    async fn product_on_sale(
        &self,
        product_id: i64,
        buyer_id: i64,
        told: Option<Money>,
    ) -> Result<Product, MarketError> {
        let product = self.product(product_id).await?;
        if product.seller_id == buyer_id {
            return Err(MarketError::OwnProduct(product_id));
        }
        if product.status != ProductStatus::OnSale {
            return Err(MarketError::NotOnSale(product_id));
        }
        match told {
            Some(told) if told != product.price => {
                Err(MarketError::PriceChanged { product_id, price: product.price })
            }
            _ => Ok(product),
        }
    }

    /// Refuses what is for somebody else to do.
    fn check_actor(&self, step: &'static str, role: &'static str, allowed: i64) -> Result<(), MarketError> {
        match self.actor_id {
            Some(actor_id) if actor_id != allowed => {
                Err(MarketError::NotYours { actor_id, step, role, allowed })
            }
            None if self.shared.settings.actor_required => {
                Err(MarketError::invalid("actorId", format!("it is needed to {step}, which is for {role}")))
            }
            _ => Ok(()),
        }
    }

    /// Lets the answer commit with what was done.
    async fn answer(&self, tx: &mut Tx, done: Done<'_>) -> Result<(), StoreError> {
        let Some(answers) = self.answers else { return Ok(()) };
        let answer = answers(done, &self.shared.settings).map_err(|error| corrupt("the answer", error))?;
        tx.answer(&answer).await
    }

    async fn now(&self, tx: &mut Tx) -> Result<DateTime<Utc>, StoreError> {
        now(&mut tx.own_tables(), &*self.shared.settings.clock).await
    }

    async fn step(&self, tx: &mut Tx, trace_id: &TraceId, event_id: EventId) -> Result<Step, StoreError> {
        Ok(Step { now: self.now(tx).await?, trace_id: trace_id.clone(), event_id })
    }

    fn trace(&self) -> TraceId {
        let trace_id = self.trace_id.clone().or_else(|| Circumstances::current().trace_id);
        trace_id.unwrap_or_else(new_trace)
    }
}

/// A trace for what nobody has traced.
pub(crate) fn new_trace() -> TraceId {
    TraceId::from_stored(format!("trace-{}", Uuid::now_v7().simple()))
}

fn check_person(field: &'static str, id: i64) -> Result<(), MarketError> {
    if id > 0 { Ok(()) } else { Err(MarketError::invalid(field, "it is a number from 1 on")) }
}

fn checked_title(title: &str) -> Result<&str, MarketError> {
    let title = title.trim();
    if title.is_empty() || title.chars().count() > LONGEST_TITLE || title.chars().any(char::is_control) {
        let why = format!("it has from 1 to {LONGEST_TITLE} characters that can be printed");
        return Err(MarketError::invalid("title", why));
    }
    Ok(title)
}

fn check_price(price: Money) -> Result<(), MarketError> {
    if price.is_zero() { Err(MarketError::invalid("price", "it is more than nothing")) } else { Ok(()) }
}

/// Whether a row of that key was there already.
fn is_taken(error: &MarketError) -> bool {
    matches!(error, MarketError::Store(error) if towpath::is_unique_violation(error))
}

/// The second of the order and the end of its number: 18 digits, as the contract's example has them.
fn order_no(now: DateTime<Utc>, order_id: i64) -> String {
    format!("{}{:04}", now.format("%Y%m%d%H%M%S"), order_id.rem_euclid(10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_number_is_eighteen_digits() {
        let now = "2026-02-04T10:30:00.9Z".parse().unwrap();
        assert_eq!(order_no(now, 901_234), "202602041030001234");
        assert_eq!(order_no(now, 900_001), "202602041030000001");
    }
}
