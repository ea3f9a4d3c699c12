//! The market over HTTP: products and orders. Amounts are JSON numbers with two decimals, and exact.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::de::DeserializeOwned;
use towpath::ports::operations::OperationAnswer;
use towpath_market::{Done, Market, MarketError, Order, OrderFilter, Page, Product, ProductFilter, Settings};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::wire::{
    Actor, Cancellation, Changed, Offered, Payment, Placed, ShownCredit, ShownNotification,
    ShownNotifications, ShownOrder, ShownOrders, ShownProduct, ShownProducts, ShownShipment,
    WhichNotifications, WhichOrders, WhichProducts,
};
use crate::http::operations::of_answer;
use crate::kit::next;
use crate::{Path, Problem, Query, RawBody};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<Market> {
    OpenApiRouter::new()
        .routes(routes!(offer, list_products))
        .routes(routes!(show_product, change_product))
        .routes(routes!(withdraw))
        .routes(routes!(place, list_orders))
        .routes(routes!(show_order))
        .routes(routes!(pay))
        .routes(routes!(ship))
        .routes(routes!(complete))
        .routes(routes!(cancel))
        .routes(routes!(show_credit))
        .routes(routes!(list_notifications))
}

/// Offer a product
#[utoipa::path(post, path = "/api/market/products", tag = "market", operation_id = "offerProduct",
    request_body = Offered, responses(
        (status = 201, description = "It is on sale.", body = ShownProduct),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn offer(State(market): State<Market>, body: RawBody) -> Result<Response, Problem> {
    let offered: Offered = read(&body)?;
    let product = market.offer(offered.seller_id, &offered.title, offered.price).await?;
    answered(&market, Done::Offered(&product))
}

/// Products, by their numbers
///
/// A text is looked for by its words: letters and digits in a row, whatever their case. Writing without spaces between words
/// is found by any part of it.
#[utoipa::path(get, path = "/api/market/products", tag = "market", operation_id = "listProducts",
    params(WhichProducts), responses(
        (status = 200, description = "The products.", body = ShownProducts),
        (status = 422, description = "The text has no words, or too many."),
    ))]
async fn list_products(
    State(market): State<Market>,
    Query(which): Query<WhichProducts>,
) -> Result<Json<ShownProducts>, Problem> {
    let page = page(which.after, which.limit);
    let filter = ProductFilter {
        status: which.status,
        seller_id: which.seller_id,
        text: which.text,
        min_price: which.min_price,
        max_price: which.max_price,
    };
    let products = market.products(&filter, page).await?;
    let next = next(&products, page.limit, |last| last.product_id);
    let products = products.into_iter().map(|product| ShownProduct::of(product, None)).collect();
    Ok(Json(ShownProducts { products, next }))
}

/// A product
#[utoipa::path(get, path = "/api/market/products/{id}", tag = "market", operation_id = "showProduct",
    params(("id" = i64, Path, description = "Its number.")), responses(
        (status = 200, description = "The product.", body = ShownProduct),
        (status = 404, description = "There is none."),
    ))]
async fn show_product(
    State(market): State<Market>,
    Path(id): Path<i64>,
) -> Result<Json<ShownProduct>, Problem> {
    let product = market.product(id).await?;
    Ok(Json(ShownProduct::of(product, market.inventory(id).await?)))
}

/// Change a product that is on sale
///
/// What was ordered before keeps its price.
#[utoipa::path(patch, path = "/api/market/products/{id}", tag = "market", operation_id = "changeProduct",
    params(("id" = i64, Path, description = "Its number.")), request_body = Changed, responses(
        (status = 200, description = "The product as it is now.", body = ShownProduct),
        (status = 403, description = "It is for its seller to change."),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not on sale."),
        (status = 422, description = "A field cannot be used, or there is none."),
    ))]
async fn change_product(
    State(market): State<Market>,
    Path(id): Path<i64>,
    body: RawBody,
) -> Result<Response, Problem> {
    let changed: Changed = read(&body)?;
    let market = market.acting(changed.actor_id);
    let product = market.change(id, changed.title.as_deref(), changed.price).await?;
    answered(&market, Done::Changed(&product))
}

/// Withdraw a product that is on sale
#[utoipa::path(post, path = "/api/market/products/{id}/withdraw", tag = "market", operation_id = "withdrawProduct",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Actor>, description = "Nothing, or who withdraws it."), responses(
        (status = 200, description = "It is withdrawn.", body = ShownProduct),
        (status = 403, description = "It is for its seller to withdraw."),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is sold."),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn withdraw(
    State(market): State<Market>,
    Path(id): Path<i64>,
    body: RawBody,
) -> Result<Response, Problem> {
    let market = acting(&market, &body)?;
    let product = market.withdraw(id).await?;
    answered(&market, Done::Changed(&product))
}

/// Order a product
///
/// Of all who order one product at a time exactly one succeeds; the others get 409. Nobody orders what is their own.
#[utoipa::path(post, path = "/api/market/orders", tag = "market", operation_id = "placeOrder",
    request_body = Placed, responses(
        (status = 201, description = "It is placed, and waits for its payment.", body = ShownOrder),
        (status = 404, description = "There is no such product."),
        (status = 409, description = "The product is not on sale, or costs something else by now."),
        (status = 422, description = "A field cannot be used, or the product is the buyer's own."),
    ))]
async fn place(State(market): State<Market>, body: RawBody) -> Result<Response, Problem> {
    let placed: Placed = read(&body)?;
    let order = market.place_for(placed.product_id, placed.buyer_id, placed.price).await?;
    answered(&market, Done::Placed(&order))
}

/// Orders, by their numbers
#[utoipa::path(get, path = "/api/market/orders", tag = "market", operation_id = "listOrders",
    params(WhichOrders), responses((status = 200, description = "The orders.", body = ShownOrders)))]
async fn list_orders(
    State(market): State<Market>,
    Query(which): Query<WhichOrders>,
) -> Result<Json<ShownOrders>, Problem> {
    let page = page(which.after, which.limit);
    let filter = OrderFilter { status: which.status, buyer_id: which.buyer_id, seller_id: which.seller_id };
    let orders = market.orders(&filter, page).await?;
    let next = next(&orders, page.limit, |last| last.order_id);
    let orders = orders.into_iter().map(|order| ShownOrder::of(order, market.settings())).collect();
    Ok(Json(ShownOrders { orders, next }))
}

/// An order, its shipment and what was told about it
#[utoipa::path(get, path = "/api/market/orders/{id}", tag = "market", operation_id = "showOrder",
    params(("id" = i64, Path, description = "Its number.")), responses(
        (status = 200, description = "The order.", body = ShownOrder),
        (status = 404, description = "There is none."),
    ))]
async fn show_order(State(market): State<Market>, Path(id): Path<i64>) -> Result<Json<ShownOrder>, Problem> {
    let mut shown = ShownOrder::of(market.order(id).await?, market.settings());
    shown.shipment = market.shipment(id).await?.map(ShownShipment::of);
    let told = market.notifications(id).await?;
    shown.notifications = Some(told.into_iter().map(ShownNotification::of).collect());
    Ok(Json(shown))
}

/// Pay an order
#[utoipa::path(post, path = "/api/market/orders/{id}/pay", tag = "market", operation_id = "payOrder",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Payment>, description = "Nothing, or the amount and who pays."), responses(
        (status = 200, description = "It is paid.", body = ShownOrder),
        (status = 403, description = "It is for the buyer to pay."),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not pending."),
        (status = 422, description = "The amount is not the order's, or a field cannot be used."),
    ))]
async fn pay(State(market): State<Market>, Path(id): Path<i64>, body: RawBody) -> Result<Response, Problem> {
    let payment: Payment = read_if_any(&body)?;
    let market = market.acting(payment.actor_id);
    let order = market.pay(id, payment.amount).await?;
    answered(&market, Done::Moved(&order))
}

/// Ship a paid order
#[utoipa::path(post, path = "/api/market/orders/{id}/ship", tag = "market", operation_id = "shipOrder",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Actor>, description = "Nothing, or who ships it."), responses(
        (status = 200, description = "It is on its way.", body = ShownOrder),
        (status = 403, description = "It is for the seller to ship."),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not paid, or has left already."),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn ship(State(market): State<Market>, Path(id): Path<i64>, body: RawBody) -> Result<Response, Problem> {
    let market = acting(&market, &body)?;
    let order = market.ship(id).await?;
    answered(&market, Done::Moved(&order))
}

/// Complete a shipped order
#[utoipa::path(post, path = "/api/market/orders/{id}/complete", tag = "market", operation_id = "completeOrder",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Actor>, description = "Nothing, or who completes it."), responses(
        (status = 200, description = "It has arrived.", body = ShownOrder),
        (status = 403, description = "It is for the buyer to complete."),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not shipped, or has arrived already."),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn complete(
    State(market): State<Market>,
    Path(id): Path<i64>,
    body: RawBody,
) -> Result<Response, Problem> {
    let market = acting(&market, &body)?;
    let order = market.complete(id).await?;
    answered(&market, Done::Moved(&order))
}

/// Cancel an order that was not paid
///
/// Its product is on sale again.
#[utoipa::path(post, path = "/api/market/orders/{id}/cancel", tag = "market", operation_id = "cancelOrder",
    params(("id" = i64, Path, description = "Its number.")),
    request_body(content = Option<Cancellation>, description = "Nothing, or why and by whom."), responses(
        (status = 200, description = "Nothing comes of it.", body = ShownOrder),
        (status = 403, description = "It is for the buyer to cancel."),
        (status = 404, description = "There is none."),
        (status = 409, description = "It is not pending."),
        (status = 422, description = "A field cannot be used."),
    ))]
async fn cancel(
    State(market): State<Market>,
    Path(id): Path<i64>,
    body: RawBody,
) -> Result<Response, Problem> {
    let cancellation: Cancellation = read_if_any(&body)?;
    let market = market.acting(cancellation.actor_id);
    let order = market.cancel(id, cancellation.reason.as_deref()).await?;
    answered(&market, Done::Moved(&order))
}

/// How a buyer's orders ended
#[utoipa::path(get, path = "/api/market/buyers/{id}", tag = "market", operation_id = "showBuyer",
    params(("id" = i64, Path, description = "The buyer's number.")), responses(
        (status = 200, description = "The counts.", body = ShownCredit),
        (status = 404, description = "No order of this buyer has ended."),
    ))]
async fn show_credit(
    State(market): State<Market>,
    Path(id): Path<i64>,
) -> Result<Json<ShownCredit>, Problem> {
    let credit = market.credit(id).await?;
    let credit = credit.ok_or_else(|| Problem::not_found(format!("no order of buyer {id} has ended")))?;
    Ok(Json(ShownCredit {
        buyer_id: credit.buyer_id,
        completed_count: credit.completed_count,
        cancelled_count: credit.cancelled_count,
        timeout_count: credit.timeout_count,
        score: credit.score,
    }))
}

/// What somebody was told about orders
///
/// The oldest first, by the events that led to it.
#[utoipa::path(get, path = "/api/market/notifications", tag = "market", operation_id = "listMarketNotifications",
    params(WhichNotifications),
    responses((status = 200, description = "What they were told.", body = ShownNotifications)))]
async fn list_notifications(
    State(market): State<Market>,
    Query(which): Query<WhichNotifications>,
) -> Result<Json<ShownNotifications>, Problem> {
    let told = market.notifications_of(which.recipient_id, which.after, which.limit).await?;
    let next = next(&told, which.limit, |last| last.event_id.clone());
    let notifications = told.into_iter().map(ShownNotification::of).collect();
    Ok(Json(ShownNotifications { notifications, next }))
}

impl From<MarketError> for Problem {
    fn from(error: MarketError) -> Self {
        match error {
            MarketError::Store(error) => error.into(),
            other => Self::of(&other),
        }
    }
}

/// What a change is answered with. The market writes it in the change's own transaction, so that there is no moment at
/// which the one is done and the other not known.
pub(super) fn answer(done: Done<'_>, settings: &Settings) -> Result<OperationAnswer, serde_json::Error> {
    let order = |order: &Order| serde_json::to_vec(&ShownOrder::of(order.clone(), settings));
    let product = |product: &Product| serde_json::to_vec(&ShownProduct::of(product.clone(), None));
    let (status, body) = match done {
        Done::Offered(offered) => (StatusCode::CREATED, product(offered)?),
        Done::Changed(changed) => (StatusCode::OK, product(changed)?),
        Done::Placed(placed) => (StatusCode::CREATED, order(placed)?),
        Done::Moved(moved) => (StatusCode::OK, order(moved)?),
    };
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Ok(OperationAnswer { status: status.as_u16(), headers, body })
}

fn answered(market: &Market, done: Done<'_>) -> Result<Response, Problem> {
    answer(done, market.settings()).map(of_answer).map_err(|error| Problem::internal(&error))
}

/// The market for what the one does whom the body names, if it names anybody.
fn acting(market: &Market, body: &RawBody) -> Result<Market, Problem> {
    let Actor { actor_id } = read_if_any(body)?;
    Ok(market.acting(actor_id))
}

fn read<T: DeserializeOwned>(body: &RawBody) -> Result<T, Problem> {
    body.object(|error| {
        if error.is_data() {
            let detail = "Correct the field that is named.";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "market-invalid", error.to_string(), detail)
        } else {
            Problem::malformed(format!("the body is not JSON: {error}"), "Send a JSON object.")
        }
    })
}

/// The same, where no body says as much as an empty object.
fn read_if_any<T: DeserializeOwned + Default>(body: &RawBody) -> Result<T, Problem> {
    if body.is_blank() { Ok(T::default()) } else { read(body) }
}

fn page(after: Option<i64>, limit: u32) -> Page {
    Page { after: after.unwrap_or_default(), limit }
}
