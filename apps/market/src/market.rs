//! The market's handle: what a shop does.

use std::sync::Arc;

use towpath::ports::broker::BrokerError;
use towpath::ports::operations::OperationAnswer;
use towpath::ports::store::StoreError;
use towpath::tables::Numbers;
use towpath::{Builder, DeadLetterQueue, Event as _, Job, Towpath, Tx};
use uuid::Uuid;

use crate::alarms::Alarms;
use crate::envelope::{FORMAT_NAME, MarketEnvelope};
use crate::error::MarketError;
use crate::events::{OrderEvent, ProductEvent};
use crate::model::{
    BuyerCredit, Inventory, Notification, Number, Order, OrderFilter, OrderStatus, Product, ProductFilter,
    ProductStatus, SELLER, Shipment,
};
use crate::money::Money;
use crate::settings::Settings;
use crate::step::Step;
use crate::{consumers, deadlines, depth, orders, products, tables, topology, words};

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
/// How many numbers are taken from the database at a time.
const NUMBERS: u32 = 100;

/// A running market. Clones share it.
#[derive(Clone)]
pub struct Market {
    shared: Arc<Shared>,
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
    numbers: Numbers<Number>,
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

impl Page {
    pub(crate) fn limit(self) -> u32 {
        self.limit.min(LARGEST_PAGE)
    }
}

impl Market {
    /// Adds the market to what Towpath is made of: its topology, channels, consumers, jobs and tables.
    pub fn install(builder: Builder, settings: &Settings) -> Builder {
        let channels = topology::channels(&settings.outbox.policy());
        let builder = channels.into_iter().fold(builder, Builder::channel);
        let builder = consumers::consumers(settings).into_iter().fold(builder, Builder::consumer);
        let roots = [OrderEvent::CREATED].iter().chain(ProductEvent::NAMES);
        let builder = roots.fold(builder, |builder, name| builder.begins_flow(*name));
        let jobs = deadlines::job(settings).into_iter().chain([Self::look_at_queues(settings)]);
        jobs.fold(builder, Builder::job)
            .topology(topology::topology(settings.order.timeout.pending))
            .format(MarketEnvelope)
            .dead_letter_queue(DeadLetterQueue::from(topology::DEAD_LETTER_QUEUE).in_format(FORMAT_NAME))
            .watch(Arc::new(Alarms::default()))
            .entity::<Order>()
            .entity::<Product>()
            .versions(tables::versions())
    }

    /// The job that raises an alarm when a queue holds too much, for a process that does nothing else; the market has it
    /// already.
    pub fn look_at_queues(settings: &Settings) -> Job {
        depth::job(settings)
    }

    /// Opens the market on a Towpath that it was installed into.
    pub fn open(app: &Towpath, settings: Settings) -> Self {
        let numbers = Numbers::of("next_number", NUMBERS);
        let shared = Arc::new(Shared { app: app.clone(), settings, numbers });
        Self { shared, answers: None, actor_id: None }
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

    /// Offers a product.
    pub async fn offer(&self, seller_id: i64, title: &str, price: Money) -> Result<Product, MarketError> {
        check_person("sellerId", seller_id)?;
        let title = printable("title", title, LONGEST_TITLE)?;
        check_price(price)?;
        let product_id = self.number("products").await?;
        let work = async |mut tx: Tx| {
            let step = Step::begin(&mut tx).await?;
            let product = Product {
                product_id,
                seller_id,
                title: title.to_owned(),
                price,
                status: ProductStatus::OnSale,
                status_changed_at: step.now,
                create_time: step.now,
            };
            products::insert(&mut tx, &product, &step).await?;
            self.answer(&mut tx, Done::Offered(&product)).await?;
            Ok(product)
        };
        self.shared.app.transact(work).await
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
        let title = title.map(|title| printable("title", title, LONGEST_TITLE)).transpose()?;
        price.map_or(Ok(()), check_price)?;
        if title.is_none() && price.is_none() {
            return Err(MarketError::invalid("title", "say a title, or a price, or both"));
        }
        let product = self.product(product_id).await?;
        self.check_actor("change a product", "its seller", product.seller_id)?;
        let work = async |mut tx: Tx| {
            let changed = products::change(&mut tx.own_tables(), &product, title, price).await?;
            let product = changed.ok_or(MarketError::NotOnSale(product_id))?;
            self.answer(&mut tx, Done::Changed(&product)).await?;
            Ok(product)
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
        let work = async |mut tx: Tx| {
            let step = Step::begin(&mut tx).await?;
            products::withdraw(&mut tx, product_id, &step).await?;
            let product: Option<Product> = tx.find(&product_id).await?;
            let product = product.ok_or(MarketError::UnknownProduct(product_id))?;
            if product.status != ProductStatus::Withdrawn {
                return Err(MarketError::NotOnSale(product_id));
            }
            self.answer(&mut tx, Done::Changed(&product)).await?;
            Ok(product)
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
        let (mut numbers_tried, mut prices_tried) = (0, 0);
        // Looked at without a lock first: most of those who are late are told so here. Its price may still change, and the
        // product is only taken for the one that was read.
        let mut product = self.product_on_sale(product_id, buyer_id, told).await?;
        loop {
            let order_id = self.number("orders").await?;
            let placing = self.shared.app.transact(async |mut tx| {
                let step = Step::begin(&mut tx).await?;
                let order = Order::placed(order_id, &product, buyer_id, step.now);
                let order = order.map_err(|error| StoreError::corrupt("price_cents", error))?;
                let order = orders::place(&mut tx, &product, order, &step).await?;
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
        self.advance(order_id, OrderStatus::Paid, amount, "").await
    }

    /// Ships a paid order.
    pub async fn ship(&self, order_id: i64) -> Result<Order, MarketError> {
        self.advance(order_id, OrderStatus::Shipped, None, "").await
    }

    /// Completes a shipped order.
    pub async fn complete(&self, order_id: i64) -> Result<Order, MarketError> {
        self.advance(order_id, OrderStatus::Completed, None, "").await
    }

    /// Cancels an order that was not paid; its product is on sale again.
    pub async fn cancel(&self, order_id: i64, reason: Option<&str>) -> Result<Order, MarketError> {
        let reason = printable("reason", reason.unwrap_or("buyer"), LONGEST_REASON)?;
        if reason == orders::TIMEOUT_REASON {
            return Err(MarketError::invalid("reason", "a timeout is not for people to say"));
        }
        self.advance(order_id, OrderStatus::Cancelled, None, reason).await
    }

    async fn advance(
        &self,
        order_id: i64,
        to: OrderStatus,
        amount: Option<Money>,
        reason: &str,
    ) -> Result<Order, MarketError> {
        let (order, way) = (self.order(order_id).await?, to.way());
        let allowed = if way.role == SELLER { order.seller_id } else { order.buyer_id };
        self.check_actor(way.name, way.role, allowed)?;
        if let Some(amount) = amount.filter(|amount| *amount != order.total_amount) {
            let why = format!("{amount} is not the {} of the order", order.total_amount);
            return Err(MarketError::invalid("amount", why));
        }
        let work = async |mut tx: Tx| {
            let step = Step::begin(&mut tx).await?;
            // As the step's own statement has answered it: what is answered is what commits.
            let order = orders::advance(&mut tx, &order, to, reason, &step).await?;
            self.answer(&mut tx, Done::Moved(&order)).await?;
            Ok(order)
        };
        self.shared.app.transact(work).await
    }

    /// The queues that hold more than they should ([`Settings::alarm`]), with how much they hold. A job looks by itself and
    /// raises an alarm.
    ///
    /// The delay queue is not among them: what waits there is no backlog.
    pub async fn deep_queues(&self) -> Result<Vec<(&'static str, u64)>, BrokerError> {
        depth::deep_queues(&self.shared.app, self.settings().alarm.queue_depth).await
    }

    /// Closes all orders whose time to pay is over; answers how many. A job does this by itself.
    pub async fn close_overdue(&self) -> Result<u64, MarketError> {
        let (app, timeout) = (&self.shared.app, &self.settings().order.timeout);
        Ok(deadlines::close_overdue(app, timeout, || false).await?)
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
        Ok(products::list(&mut connection.own_tables(), filter, &sought, page).await?)
    }

    /// An order.
    pub async fn order(&self, order_id: i64) -> Result<Order, MarketError> {
        let found = self.shared.app.find(&order_id).await?;
        found.ok_or(MarketError::UnknownOrder(order_id))
    }

    /// Orders behind a number.
    pub async fn orders(&self, filter: &OrderFilter, page: Page) -> Result<Vec<Order>, MarketError> {
        let mut connection = self.shared.app.listing().await?;
        Ok(orders::list(&mut connection.own_tables(), filter, page).await?)
    }

    /// The shipment of an order, if it has begun.
    pub async fn shipment(&self, order_id: i64) -> Result<Option<Shipment>, MarketError> {
        Ok(self.shared.app.find(&order_id).await?)
    }

    /// What buyer and seller were told about an order.
    pub async fn notifications(&self, order_id: i64) -> Result<Vec<Notification>, MarketError> {
        let chosen = "WHERE order_id = ? ORDER BY created_at, recipient_id";
        Ok(self.shared.app.rows("market.notifications", chosen, vec![order_id.into()]).await?)
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
        let values = vec![recipient_id.into(), after.into(), limit.min(LARGEST_PAGE).into()];
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

    /// A product that somebody may order, if it costs what they were told.
    async fn product_on_sale(
        &self,
        product_id: i64,
        buyer_id: i64,
        told: Option<Money>,
    ) -> Result<Product, MarketError> {
        let product = self.product(product_id).await?;
        let price = product.price;
        match product {
            _ if product.seller_id == buyer_id => Err(MarketError::OwnProduct(product_id)),
            _ if product.status != ProductStatus::OnSale => Err(MarketError::NotOnSale(product_id)),
            _ if told.is_some_and(|told| told != price) => {
                Err(MarketError::PriceChanged { product_id, price })
            }
            product => Ok(product),
        }
    }

    /// Refuses what is for somebody else to do.
    fn check_actor(&self, step: &'static str, role: &'static str, allowed: i64) -> Result<(), MarketError> {
        match self.actor_id {
            Some(actor_id) if actor_id != allowed => {
                Err(MarketError::NotYours { actor_id, step, role, allowed })
            }
            None if self.settings().order.actor_required => {
                Err(MarketError::invalid("actorId", format!("it is needed to {step}, which is for {role}")))
            }
            _ => Ok(()),
        }
    }

    /// Lets the answer commit with what was done.
    async fn answer(&self, tx: &mut Tx, done: Done<'_>) -> Result<(), StoreError> {
        let Some(answers) = self.answers else { return Ok(()) };
        let answer = answers(done, self.settings());
        tx.answer(&answer.map_err(|error| StoreError::corrupt("the answer", error))?).await
    }

    async fn number(&self, kind: &str) -> Result<i64, StoreError> {
        self.shared.numbers.next(&self.shared.app, &kind.to_owned()).await
    }
}

fn check_person(field: &'static str, id: i64) -> Result<(), MarketError> {
    if id > 0 { Ok(()) } else { Err(MarketError::invalid(field, "it is a number from 1 on")) }
}

fn check_price(price: Money) -> Result<(), MarketError> {
    if price.is_zero() { Err(MarketError::invalid("price", "it is more than nothing")) } else { Ok(()) }
}

fn printable<'t>(field: &'static str, text: &'t str, longest: usize) -> Result<&'t str, MarketError> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > longest || text.chars().any(char::is_control) {
        let why = format!("it has from 1 to {longest} characters that can be printed");
        return Err(MarketError::invalid(field, why));
    }
    Ok(text)
}

/// Whether a row of that key was there already.
fn is_taken(error: &MarketError) -> bool {
    match error {
        MarketError::Store(StoreError::ForbiddenEvent { code, .. }) => *code == "illegal-transition",
        MarketError::Store(error) => towpath::is_unique_violation(error),
        _ => false,
    }
}
