//! The market over HTTP: products and orders. Amounts are JSON numbers with two decimals, and exact.

mod wire;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::de::DeserializeOwned;
use towpath::ports::operations::OperationAnswer;
use towpath::retry::ErrorClass;
use towpath_market::{Done, Market, MarketError, OrderFilter, Page};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::wire::{
    Cancellation, Offered, Payment, Placed, ShownCredit, ShownNotification, ShownOrder, ShownOrders,
    ShownProduct, ShownProducts, ShownShipment, WhichOrders, WhichProducts,
};
use super::App;
use super::operations::of_answer;
use super::problem::Problem;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(offer, list_products))
        .routes(routes!(show_product))
        .routes(routes!(place, list_orders))
        .routes(routes!(show_order))
        .routes(routes!(pay))
        .routes(routes!(ship))
        .routes(routes!(complete))
        .routes(routes!(cancel))
        .routes(routes!(show_credit))
}

/// The largest page of a listing.
const LARGEST_PAGE: u32 = 500;

type Body = Result<Bytes, BytesRejection>;
type Id = Result<Path<i64>, PathRejection>;

/// Offer a product
#[utoipa::path(post, path = "/api/market/products", tag = "market", operation_id = "offerProduct",
    request_body = Offered, responses(
        (status = 201, description = "It is on sale.", body = ShownProduct),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn offer(State(market): State<Option<Market>>, body: Body) -> Result<Response, Problem> {
    let offered: Offered = read(body)?;
    let product = open_for_change(market)?.offer(offered.seller_id, &offered.title, offered.price).await?;
    answered(Done::Offered(&product))
}

/// Products, by their numbers
#[utoipa::path(get, path = "/api/market/products", tag = "market", operation_id = "listProducts",
    params(WhichProducts), responses((status = 200, description = "The products.", body = ShownProducts)))]
async fn list_products(
    State(market): State<Option<Market>>,
    which: Result<Query<WhichProducts>, QueryRejection>,
) -> Result<Json<ShownProducts>, Problem> {
    let which = query(which)?;
    let page = page(which.after, which.limit)?;
    let products = open(market)?.products(which.status, page).await?;
    let next = next(products.last().map(|product| product.product_id), products.len(), page);
    let products = products.into_iter().map(|product| ShownProduct::of(product, None)).collect();
    Ok(Json(ShownProducts { products, next }))
}

/// A product
#[utoipa::path(get, path = "/api/market/products/{id}", tag = "market", operation_id = "showProduct",
    params(("id" = i64, Path, description = "Its number.")), responses(
        (status = 200, description = "The product.", body = ShownProduct),
        (status = 404, description = "There is none."),
    ))]
async fn show_product(State(market): State<Option<Market>>, id: Id) -> Result<Json<ShownProduct>, Problem> {
    let (market, id) = (open(market)?, number(id)?);
    let product = market.product(id).await?;
    Ok(Json(ShownProduct::of(product, market.inventory(id).await?)))
}

/// Order a product
///
/// Of all who order one product at a time exactly one succeeds; the others get 409.
#[utoipa::path(post, path = "/api/market/orders", tag = "market", operation_id = "placeOrder",
    request_body = Placed, responses(
        (status = 201, description = "It is placed, and waits for its payment.", body = ShownOrder),
        (status = 404, description = "There is no such product."),
        (status = 409, description = "The product is not on sale."),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn place(State(market): State<Option<Market>>, body: Body) -> Result<Response, Problem> {
    let placed: Placed = read(body)?;
    let order = open_for_change(market)?.place(placed.product_id, placed.buyer_id).await?;
    answered(Done::Placed(&order))
}

/// Orders, by their numbers
#[utoipa::path(get, path = "/api/market/orders", tag = "market", operation_id = "listOrders",
    params(WhichOrders), responses((status = 200, description = "The orders.", body = ShownOrders)))]
async fn list_orders(
    State(market): State<Option<Market>>,
    which: Result<Query<WhichOrders>, QueryRejection>,
) -> Result<Json<ShownOrders>, Problem> {
    let which = query(which)?;
    let page = page(which.after, which.limit)?;
    let filter = OrderFilter { status: which.status, buyer_id: which.buyer_id };
    let orders = open(market)?.orders(&filter, page).await?;
    let next = next(orders.last().map(|order| order.order_id), orders.len(), page);
    Ok(Json(ShownOrders { orders: orders.into_iter().map(ShownOrder::of).collect(), next }))
}

/// An order, its shipment and what was told about it
#[utoipa::path(get, path = "/api/market/orders/{id}", tag = "market", operation_id = "showOrder",
    params(("id" = i64, Path, description = "Its number.")), responses(
        (status = 200, description = "The order.", body = ShownOrder),
        (status = 404, description = "There is none."),
    ))]
async fn show_order(State(market): State<Option<Market>>, id: Id) -> Result<Json<ShownOrder>, Problem> {
    let (market, id) = (open(market)?, number(id)?);
    let mut shown = ShownOrder::of(market.order(id).await?);
    shown.shipment = market.shipment(id).await?.map(ShownShipment::of);
    let told = market.notifications(id).await?;
    shown.notifications = Some(told.into_iter().map(ShownNotification::of).collect());
    Ok(Json(shown))
}

/// Pay an order
#[utoipa::path(post, path = "/api/market/orders/{id}/pay", tag = "market", operation_id = "payOrder",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Payment>, description = "Nothing, or the amount."), responses(
        (status = 200, description = "It is paid.", body = ShownOrder),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not pending."),
        (status = 422, description = "The amount is not the order's."),
    ))]
async fn pay(State(market): State<Option<Market>>, id: Id, body: Body) -> Result<Response, Problem> {
    let payment: Payment = read_if_any(body)?;
    let order = open_for_change(market)?.pay(number(id)?, payment.amount).await?;
    answered(Done::Moved(&order))
}

/// Ship a paid order
#[utoipa::path(post, path = "/api/market/orders/{id}/ship", tag = "market", operation_id = "shipOrder",
    params(("id" = i64, Path, description = "Its number.")), responses(
        (status = 200, description = "It is on its way.", body = ShownOrder),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not paid, or has left already."),
    ))]
async fn ship(State(market): State<Option<Market>>, id: Id) -> Result<Response, Problem> {
    let order = open_for_change(market)?.ship(number(id)?).await?;
    answered(Done::Moved(&order))
}

/// Complete a shipped order
#[utoipa::path(post, path = "/api/market/orders/{id}/complete", tag = "market", operation_id = "completeOrder",
    params(("id" = i64, Path, description = "Its number.")), responses(
        (status = 200, description = "It has arrived.", body = ShownOrder),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not shipped, or has arrived already."),
    ))]
async fn complete(State(market): State<Option<Market>>, id: Id) -> Result<Response, Problem> {
    let order = open_for_change(market)?.complete(number(id)?).await?;
    answered(Done::Moved(&order))
}

/// Cancel an order that was not paid
///
/// Its product is on sale again.
#[utoipa::path(post, path = "/api/market/orders/{id}/cancel", tag = "market", operation_id = "cancelOrder",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Cancellation>, description = "Nothing, or why."), responses(
        (status = 200, description = "Nothing comes of it.", body = ShownOrder),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not pending."),
        (status = 422, description = "The reason cannot be used."),
    ))]
async fn cancel(State(market): State<Option<Market>>, id: Id, body: Body) -> Result<Response, Problem> {
    let cancellation: Cancellation = read_if_any(body)?;
    let order = open_for_change(market)?.cancel(number(id)?, cancellation.reason.as_deref()).await?;
    answered(Done::Moved(&order))
}

/// How a buyer's orders ended
#[utoipa::path(get, path = "/api/market/buyers/{id}", tag = "market", operation_id = "showBuyer",
    params(("id" = i64, Path, description = "The buyer's number.")), responses(
        (status = 200, description = "The counts.", body = ShownCredit),
        (status = 404, description = "No order of this buyer has ended."),
    ))]
async fn show_credit(State(market): State<Option<Market>>, id: Id) -> Result<Json<ShownCredit>, Problem> {
    let id = number(id)?;
    let credit = open(market)?.credit(id).await?;
    let credit = credit.ok_or_else(|| Problem::not_found(format!("no order of buyer {id} has ended")))?;
    Ok(Json(ShownCredit {
        buyer_id: credit.buyer_id,
        completed_count: credit.completed_count,
        cancelled_count: credit.cancelled_count,
        timeout_count: credit.timeout_count,
        score: credit.score,
    }))
}

impl From<MarketError> for Problem {
    fn from(error: MarketError) -> Self {
        let error = match error {
            MarketError::Store(error) => return Self::from(error),
            other => other,
        };
        let status = match error.class() {
            ErrorClass::NotFound => StatusCode::NOT_FOUND,
            ErrorClass::Conflict => StatusCode::CONFLICT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.code(), error.to_string(), error.next_step())
    }
}

/// What a change is answered with. The market writes it in the change's own transaction, so that there is no moment at
/// which the one is done and the other not known.
fn answer(done: Done<'_>) -> Result<OperationAnswer, serde_json::Error> {
    let (status, body) = match done {
        Done::Offered(product) => {
            (StatusCode::CREATED, serde_json::to_vec(&ShownProduct::of(product.clone(), None))?)
        }
        Done::Placed(order) => (StatusCode::CREATED, serde_json::to_vec(&ShownOrder::of(order.clone()))?),
        Done::Moved(order) => (StatusCode::OK, serde_json::to_vec(&ShownOrder::of(order.clone()))?),
    };
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Ok(OperationAnswer { status: status.as_u16(), headers, body })
}

fn answered(done: Done<'_>) -> Result<Response, Problem> {
    answer(done).map(of_answer).map_err(|error| Problem::internal(&error))
}

fn open_for_change(market: Option<Market>) -> Result<Market, Problem> {
    Ok(open(market)?.answering(answer))
}

fn open(market: Option<Market>) -> Result<Market, Problem> {
    market.ok_or_else(|| {
        let detail = "Set market.enabled in the configuration; on Kafka it cannot run.";
        Problem::new(
            StatusCode::NOT_FOUND,
            "market-disabled",
            "the market does not run on this server",
            detail,
        )
    })
}

fn read<T: DeserializeOwned>(body: Body) -> Result<T, Problem> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = "Nothing in the market needs so much.";
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "the request is too large", detail)
        }
        _ => Problem::malformed("the request cannot be read", rejection.body_text()),
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        if error.is_data() {
            let detail = "Correct the field that is named.";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "market-invalid", error.to_string(), detail)
        } else {
            Problem::malformed(format!("the body is not JSON: {error}"), "Send a JSON object.")
        }
    })
}

/// The same, where no body says as much as an empty object.
fn read_if_any<T: DeserializeOwned + Default>(body: Body) -> Result<T, Problem> {
    match &body {
        Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => Ok(T::default()),
        _ => read(body),
    }
}

fn number(id: Id) -> Result<i64, Problem> {
    id.map(|Path(id)| id).map_err(|rejection| Problem::malformed(rejection.body_text(), "Ids are numbers."))
}

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let detail = "The parameters are status, after and limit; orders have buyerId, too.";
    query.map(|Query(query)| query).map_err(|rejection| Problem::malformed(rejection.body_text(), detail))
}

fn page(after: Option<i64>, limit: Option<u32>) -> Result<Page, Problem> {
    let usual = Page::default();
    let (after, limit) = (after.unwrap_or(usual.after), limit.unwrap_or(usual.limit));
    if (1..=LARGEST_PAGE).contains(&limit) {
        Ok(Page { after, limit })
    } else {
        Err(Problem::malformed("limit is out of range", format!("Ask for 1 to {LARGEST_PAGE}.")))
    }
}

/// Behind what the next page begins. A page that is not full is the last.
fn next(last: Option<i64>, count: usize, page: Page) -> Option<i64> {
    last.filter(|_| u32::try_from(count).is_ok_and(|count| count == page.limit))
}
