//! The rules of the market: who may do what, what a product is sold for, and how products are found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use support::{Shop, Stage, settings};
use towpath::Coded as _;
use towpath_market::{
    Market, MarketError, Money, Order, OrderFilter, OrderStatus, Page, Product, ProductFilter, ProductStatus,
};

on_every_pair!(
    nobody_buys_from_himself,
    a_step_is_for_the_buyer_or_for_the_seller,
    a_market_that_wants_actors_takes_no_step_without_one,
    a_product_is_sold_for_the_price_it_has,
    what_is_sold_is_neither_changed_nor_withdrawn,
    a_withdrawn_product_stays_withdrawn,
    products_are_found_by_seller_text_and_price,
    orders_are_found_by_their_seller,
    people_read_what_they_were_told,
    an_order_says_what_can_be_done_and_until_when,
);

const BUYER: i64 = 10001;
const SELLER: i64 = 10002;
const STRANGER: i64 = 7;

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

async fn nobody_buys_from_himself(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let product = shop.product().await;
    let refused = shop.market.place(product.product_id, SELLER).await.unwrap_err();
    assert!(matches!(refused, MarketError::OwnProduct(_)), "{refused}");
    assert_eq!(shop.market.product(product.product_id).await.unwrap(), product, "nothing has changed");
    assert!(stage.outbox().await.is_empty());
    shop.market.place(product.product_id, BUYER).await.unwrap();
    shop.stop().await;
}

/// A step, done by somebody.
async fn step(market: &Market, name: &str, order: &Order, actor: Option<i64>) -> Result<Order, MarketError> {
    let market = market.acting(actor);
    match name {
        "pay" => market.pay(order.order_id, None).await,
        "ship" => market.ship(order.order_id).await,
        "complete" => market.complete(order.order_id).await,
        _ => market.cancel(order.order_id, None).await,
    }
}

async fn a_step_is_for_the_buyer_or_for_the_seller(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let (order, other) = (shop.order().await, shop.order().await);
    for (name, order, may) in [
        ("pay", &order, BUYER),
        ("ship", &order, SELLER),
        ("complete", &order, BUYER),
        ("cancel", &other, BUYER),
    ] {
        for stranger in [BUYER, SELLER, STRANGER].into_iter().filter(|actor| *actor != may) {
            let before = shop.market.order(order.order_id).await.unwrap();
            let refused = step(&shop.market, name, order, Some(stranger)).await.unwrap_err();
            assert_eq!(refused.code(), "market-not-yours", "{name} by {stranger}: {refused}");
            assert_eq!(shop.market.order(order.order_id).await.unwrap(), before);
        }
        step(&shop.market, name, order, Some(may)).await.unwrap();
    }
    let product = shop.product().await.product_id;
    for stranger in [BUYER, STRANGER] {
        let market = shop.market.acting(Some(stranger));
        assert_eq!(market.withdraw(product).await.unwrap_err().code(), "market-not-yours");
        let refused = market.change(product, None, Some(money("1.00"))).await.unwrap_err();
        assert_eq!(refused.code(), "market-not-yours");
    }
    shop.market.acting(Some(SELLER)).withdraw(product).await.unwrap();
    shop.stop().await;
}

async fn a_market_that_wants_actors_takes_no_step_without_one(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let mut wants_actors = settings();
    wants_actors.order.actor_required = true;
    let strict = Market::open(&shop.app, wants_actors);
    let (order, other) = (shop.order().await, shop.order().await);
    for (name, order, may) in [
        ("pay", &order, BUYER),
        ("ship", &order, SELLER),
        ("complete", &order, BUYER),
        ("cancel", &other, BUYER),
    ] {
        let refused = step(&strict, name, order, None).await.unwrap_err();
        assert!(refused.code() == "market-invalid" && refused.to_string().contains("actorId"), "{refused}");
        step(&strict, name, order, Some(may)).await.unwrap();
    }
    let product = shop.product().await.product_id;
    assert_eq!(strict.withdraw(product).await.unwrap_err().code(), "market-invalid");
    assert_eq!(strict.change(product, Some("x"), None).await.unwrap_err().code(), "market-invalid");
    shop.stop().await;
}

/// A price that changes while somebody orders: the order has the one or the other, and it is the product's.
async fn a_product_is_sold_for_the_price_it_has(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let prices = [money("10.00"), money("20.00")];
    let mut sold_for = Vec::new();
    for _ in 0..30 {
        let product = shop.market.offer(SELLER, "A thing", prices[0]).await.unwrap().product_id;
        let (market, seller) = (shop.market.clone(), shop.market.clone());
        let changing = tokio::spawn(async move { seller.change(product, None, Some(prices[1])).await });
        let order = market.place(product, BUYER).await.unwrap();
        match changing.await.unwrap() {
            Ok(_) | Err(MarketError::NotOnSale(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let product = market.product(product).await.unwrap();
        assert_eq!((order.price, order.total_amount), (product.price, product.price));
        sold_for.push(order.price);
    }
    assert!(sold_for.iter().all(|price| prices.contains(price)), "{sold_for:?}");
    // Who says what he was told pays that, or nothing.
    let product = shop.market.offer(SELLER, "A thing", prices[0]).await.unwrap().product_id;
    shop.market.change(product, None, Some(prices[1])).await.unwrap();
    let refused = shop.market.place_for(product, BUYER, Some(prices[0])).await.unwrap_err();
    assert_eq!(refused.code(), "product-price-changed");
    let order = shop.market.place_for(product, BUYER, Some(prices[1])).await.unwrap();
    assert_eq!(order.total_amount, prices[1]);
    shop.stop().await;
}

async fn what_is_sold_is_neither_changed_nor_withdrawn(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    let before = shop.market.product(order.product_id).await.unwrap();
    let changed = shop.market.change(order.product_id, Some("Another thing"), None).await.unwrap_err();
    let withdrawn = shop.market.withdraw(order.product_id).await.unwrap_err();
    for refused in [changed, withdrawn] {
        assert_eq!(refused.code(), "product-not-on-sale", "{refused}");
    }
    assert_eq!(shop.market.product(order.product_id).await.unwrap(), before);
    assert!(found(&shop, |filter| filter.text = Some("another".to_owned())).await.is_empty());
    // Given back, it can be both.
    shop.market.cancel(order.order_id, None).await.unwrap();
    shop.market.change(order.product_id, Some("Another thing"), None).await.unwrap();
    shop.market.withdraw(order.product_id).await.unwrap();
    for nothing in [shop.market.change(999_999, Some("x"), None).await, shop.market.withdraw(999_999).await] {
        assert_eq!(nothing.unwrap_err().code(), "product-unknown");
    }
    shop.stop().await;
}

async fn a_withdrawn_product_stays_withdrawn(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    shop.market.cancel(order.order_id, None).await.unwrap();
    let product = shop.market.withdraw(order.product_id).await.unwrap();
    assert_eq!(product.status, ProductStatus::Withdrawn);
    assert!(!shop.market.inventory(order.product_id).await.unwrap().unwrap().is_available);
    // Twice is once: who asks again, because an answer was lost, is told the same.
    assert_eq!(shop.market.withdraw(order.product_id).await.unwrap(), product);
    for refused in [
        shop.market.place(order.product_id, BUYER).await.map(|_| ()),
        shop.market.change(order.product_id, Some("x"), None).await.map(|_| ()),
    ] {
        assert_eq!(refused.unwrap_err().code(), "product-not-on-sale");
    }
    shop.stop().await;
}

async fn found(shop: &Shop, say: impl FnOnce(&mut ProductFilter)) -> Vec<i64> {
    let mut filter = ProductFilter::default();
    say(&mut filter);
    let products = shop.market.products(&filter, Page::default()).await.unwrap();
    products.iter().map(|product| product.product_id).collect()
}

async fn products_are_found_by_seller_text_and_price(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let offer = async |seller: i64, title: &str, price: &str| -> Product {
        shop.market.offer(seller, title, money(price)).await.unwrap()
    };
    let red = offer(1, "A RED bicycle", "88.50").await.product_id;
    let blue = offer(1, "Blue bicycle & bell", "88.51").await.product_id;
    let bell = offer(2, "二手自行车铃", "3.00").await.product_id;
    let quoted = offer(2, "50%_off' -- \\", "0.01").await.product_id;
    let text = async |text: &str| found(&shop, |filter| filter.text = Some(text.to_owned())).await;
    assert_eq!(text("bicycle").await, [red, blue]);
    assert_eq!(text("red, bicycle!").await, [red]);
    assert_eq!(text("BELL blue").await, [blue]);
    assert_eq!(text("自行车").await, [bell]);
    assert_eq!(text("50 off").await, [quoted]);
    assert!(text("bicycles").await.is_empty() && text("车自").await.is_empty());
    assert_eq!(found(&shop, |filter| filter.seller_id = Some(1)).await, [red, blue]);
    assert_eq!(found(&shop, |filter| filter.max_price = Some(money("88.50"))).await, [red, bell, quoted]);
    assert_eq!(found(&shop, |filter| filter.min_price = Some(money("88.51"))).await, [blue]);
    let of_two = found(&shop, |filter| {
        filter.seller_id = Some(1);
        filter.text = Some("bicycle".to_owned());
        filter.status = Some(ProductStatus::OnSale);
        filter.max_price = Some(money("88.50"));
    });
    assert_eq!(of_two.await, [red]);
    // Page by page, and by the words that a title has now.
    let filter = ProductFilter { text: Some("bicycle".to_owned()), ..ProductFilter::default() };
    let page = Page { after: red, limit: 1 };
    assert_eq!(shop.market.products(&filter, page).await.unwrap()[0].product_id, blue);
    shop.market.change(red, Some("A tricycle"), None).await.unwrap();
    assert_eq!((text("bicycle").await, text("tricycle").await), (vec![blue], vec![red]));
    for nothing in ["", " ,;", "a b c d e f g h i j k l m n o p q r s t u"] {
        let filter = ProductFilter { text: Some(nothing.to_owned()), ..ProductFilter::default() };
        let refused = shop.market.products(&filter, Page::default()).await.unwrap_err();
        assert_eq!(refused.code(), "market-invalid", "{nothing:?}");
    }
    // A title may have nothing that is a word.
    let mute = offer(3, "!!!", "1.00").await.product_id;
    assert_eq!(found(&shop, |filter| filter.seller_id = Some(3)).await, [mute]);
    shop.stop().await;
}

async fn orders_are_found_by_their_seller(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let mut orders = Vec::new();
    for (seller, buyer) in [(1, 11), (2, 11), (1, 12), (1, 11)] {
        let product = shop.market.offer(seller, "A thing", money("1.00")).await.unwrap();
        orders.push(shop.market.place(product.product_id, buyer).await.unwrap().order_id);
    }
    shop.market.pay(orders[3], None).await.unwrap();
    let listed = async |filter: OrderFilter| -> Vec<i64> {
        let listed = shop.market.orders(&filter, Page::default()).await.unwrap();
        listed.iter().map(|order| order.order_id).collect()
    };
    let of = |seller_id| OrderFilter { seller_id: Some(seller_id), ..OrderFilter::default() };
    assert_eq!(listed(of(1)).await, [orders[0], orders[2], orders[3]]);
    assert_eq!(listed(of(2)).await, [orders[1]]);
    assert_eq!(listed(OrderFilter { buyer_id: Some(11), ..of(1) }).await, [orders[0], orders[3]]);
    let paid = OrderFilter { status: Some(OrderStatus::Paid), ..of(1) };
    assert_eq!(listed(paid).await, [orders[3]]);
    shop.stop().await;
}

async fn people_read_what_they_were_told(stage: &Stage) {
    let shop = stage.open().await;
    let mut orders = Vec::new();
    for _ in 0..3 {
        let order = shop.order().await;
        shop.market.pay(order.order_id, None).await.unwrap();
        shop.market.ship(order.order_id).await.unwrap();
        orders.push(order.order_id);
    }
    shop.market.complete(orders[0]).await.unwrap();
    shop.seen.until("order.status.sync", "handled", 4).await;
    let mut told = Vec::new();
    let mut after = None;
    loop {
        let page = shop.market.notifications_of(BUYER, after, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.event_id.parse().unwrap());
        told.extend(page.into_iter().map(|one| (one.order_id, one.status)));
    }
    let shipped = orders.iter().map(|order| (*order, OrderStatus::Shipped));
    let expected: Vec<_> = shipped.chain([(orders[0], OrderStatus::Completed)]).collect();
    assert_eq!(told, expected, "in the order of the events");
    let sellers = shop.market.notifications_of(SELLER, None, 100).await.unwrap();
    assert_eq!(sellers.len(), 1);
    assert!(shop.market.notifications_of(STRANGER, None, 100).await.unwrap().is_empty());
    shop.stop().await;
}

async fn an_order_says_what_can_be_done_and_until_when(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let quarter = Duration::from_secs(900);
    let order = shop.order().await;
    assert_eq!(order.pay_by(quarter), Some(order.create_time + chrono::Duration::minutes(15)));
    let mut seen = vec![order.status.possible()];
    for name in ["pay", "ship", "complete"] {
        let moved = step(&shop.market, name, &order, None).await.unwrap();
        assert_eq!(moved.pay_by(quarter), None);
        // What is possible is so, and nothing else.
        for other in ["pay", "cancel", "ship", "complete"] {
            if !moved.status.possible().contains(&other) {
                let refused = step(&shop.market, other, &order, None).await.unwrap_err();
                assert_eq!(refused.code(), "order-wrong-status", "{other}: {refused}");
            }
        }
        seen.push(moved.status.possible());
    }
    assert_eq!(seen, [&["pay", "cancel"][..], &["ship"], &["complete"], &[]]);
    shop.stop().await;
}
