//! The market from the outside: the binary, spoken to over HTTP, with many buyers at once and with a kill in between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[allow(dead_code, unreachable_pub, reason = "the market's own tests use the rest of it")]
#[path = "../../../apps/market/tests/support/management.rs"]
mod management;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use management::VirtualHost;
use serde_json::{Value, json};
use towpath::Scratch;

const BUYERS: i64 = 64;
const PRODUCTS: usize = 100;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services env)\"` first")
    })
}

/// A database and a broker of a test's own.
struct Stage {
    runtime: tokio::runtime::Runtime,
    scratch: Option<Scratch>,
    host: Option<VirtualHost>,
    store: String,
    broker: String,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(server: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (url, host) = match server {
            "sqlite" => (format!("sqlite://{}", folder.path().join("towpath.db").display()), None),
            other => {
                let name =
                    if other == "mariadb" { "TOWPATH_TEST_MYSQL_URL" } else { "TOWPATH_TEST_POSTGRES_URL" };
                (variable(name), Some(runtime.block_on(VirtualHost::make())))
            }
        };
        let scratch = runtime.block_on(Scratch::make(&url)).expect("a scratch database");
        let broker = host.as_ref().map_or_else(|| "local:".to_owned(), |host| host.url.clone());
        Self { runtime, store: scratch.url().to_owned(), scratch: Some(scratch), host, broker, folder }
    }

    /// Starts the server on a free port and waits until it says where it listens.
    fn serve(&self) -> Server {
        let config = self.folder.path().join("towpath.toml");
        std::fs::write(&config, "[market]\nenabled = true\norder.timeout.pending-minutes = 15\n").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_towpath"))
            .args(["serve", "--listen", "127.0.0.1:0", "--store", &self.store, "--broker", &self.broker])
            .arg("--config")
            .arg(&config)
            .env("TOWPATH_LOG", "warn")
            // No alert becomes a fact among those that a test counts.
            .env("TOWPATH_ALERTS_EVERY", "1d")
            .current_dir(self.folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines
            .find_map(|line| Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned()))
            .expect("the server says where it listens");
        // Whoever does not read its log lets it wait for ever.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let (scratch, host) = (self.scratch.take(), self.host.take());
        self.runtime.block_on(async {
            if let Some(host) = host {
                host.remove().await;
            }
            if let Some(scratch) = scratch {
                let _ = scratch.remove().await;
            }
        });
    }
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// `kill -9`.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn client(&self) -> Client {
        Client { address: Arc::new(Mutex::new(self.address.clone())), stream: None }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client that keeps its connection.
struct Client {
    address: Arc<Mutex<String>>,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    fn ask(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.try_ask(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Asks until there is an answer: the server may be about to be started again.
    fn ask_patiently(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            match self.try_ask(method, path, body) {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(Instant::now() < deadline, "{method} {path}: {error}");
                    self.stream = None;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    fn try_ask(&mut self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = self.text(method, path, &body)?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// The status and the body as it stands on the wire.
    fn text(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        if self.stream.is_none() {
            let address = self.address.lock().unwrap().clone();
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(request.as_bytes())?;
        let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(gone());
        }
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(gone)?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            if stream.read_line(&mut header)? == 0 {
                return Err(gone());
            }
            let header = header.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| gone())?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Everything of a listing, page by page.
    fn all(&mut self, what: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/api/market/{what}?after={after}&limit=70");
            let (status, page) = self.ask("GET", &path, &Value::Null);
            assert_eq!(status, 200);
            all.extend(page[what].as_array().unwrap().iter().cloned());
            match page["next"].as_i64() {
                Some(next) => after = next,
                None => return all,
            }
        }
    }
}

/// An amount in hundredths.
fn cents(amount: &Value) -> i64 {
    (amount.as_f64().unwrap() * 100.0).round() as i64
}

fn offer(client: &mut Client) -> Vec<i64> {
    (0..PRODUCTS)
        .map(|number| {
            let body = format!(r#"{{"sellerId":9000,"title":"Thing {number}","price":{}.37}}"#, number + 1);
            let (status, product) = client.text("POST", "/api/market/products", &body).unwrap();
            let product: Value = serde_json::from_str(&product).unwrap();
            assert_eq!(status, 201, "{product}");
            assert_eq!(product["status"], "on_sale");
            product["productId"].as_i64().unwrap()
        })
        .collect()
}

/// Every buyer tries every product. Answers how often each product was sold, as the buyers were told.
fn race(
    address: &Arc<Mutex<String>>,
    products: &[i64],
    sold: &Arc<AtomicUsize>,
) -> (BTreeMap<i64, Vec<i64>>, usize) {
    let buyers: Vec<_> = (1..=BUYERS)
        .map(|buyer| {
            let (address, products, sold) = (Arc::clone(address), products.to_vec(), Arc::clone(sold));
            std::thread::spawn(move || {
                let mut client = Client { address, stream: None };
                let (mut bought, mut late) = (Vec::new(), 0);
                for product in products {
                    let body = json!({ "productId": product, "buyerId": buyer });
                    match client.ask_patiently("POST", "/api/market/orders", &body) {
                        (201, order) => {
                            sold.fetch_add(1, Ordering::SeqCst);
                            bought.push((product, order["orderId"].as_i64().unwrap()));
                        }
                        (409, problem) => {
                            assert_eq!(problem["code"], "product-not-on-sale", "{problem}");
                            late += 1;
                        }
                        (status, problem) => panic!("buyer {buyer}, product {product}: {status} {problem}"),
                    }
                }
                (bought, late)
            })
        })
        .collect();
    let (mut by_product, mut late): (BTreeMap<i64, Vec<i64>>, usize) = Default::default();
    for buyer in buyers {
        let (bought, told_late) = buyer.join().expect("a buyer");
        late += told_late;
        for (product, order) in bought {
            by_product.entry(product).or_default().push(order);
        }
    }
    (by_product, late)
}

/// Each product has one order, and money and stock add up.
fn adds_up(client: &mut Client, told: &BTreeMap<i64, Vec<i64>>) {
    let (products, orders) = (client.all("products"), client.all("orders"));
    assert_eq!((products.len(), orders.len()), (PRODUCTS, PRODUCTS), "one order for each product");
    let mut by_product: BTreeMap<i64, &Value> = BTreeMap::new();
    for order in &orders {
        assert_eq!(order["status"], "pending");
        let twice = by_product.insert(order["productId"].as_i64().unwrap(), order);
        assert!(twice.is_none(), "sold twice: {order}");
    }
    for product in &products {
        let order = by_product[&product["productId"].as_i64().unwrap()];
        assert_eq!(product["status"], "sold");
        assert_eq!(cents(&product["price"]), cents(&order["totalAmount"]));
    }
    let (asked, owed) = (
        products.iter().map(|product| cents(&product["price"])).sum::<i64>(),
        orders.iter().map(|order| cents(&order["totalAmount"])).sum::<i64>(),
    );
    let expected: i64 = (0..PRODUCTS as i64).map(|number| 137 + number * 100).sum();
    assert_eq!((asked, owed), (expected, expected));
    for (product, orders) in told {
        assert_eq!(orders.len(), 1, "two buyers were told that they have product {product}");
        assert_eq!(by_product[product]["orderId"], orders[0], "who was told so has it");
    }
    // What follows from the messages is there for each of them, once.
    let deadline = Instant::now() + Duration::from_secs(120);
    for product in by_product.keys() {
        loop {
            let (_, shown) = client.ask("GET", &format!("/api/market/products/{product}"), &Value::Null);
            if shown["inventory"]["orderCount"] == 1 {
                assert_eq!(shown["inventory"]["available"], false);
                break;
            }
            assert!(Instant::now() < deadline, "the inventory of product {product}: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn sixty_four_buyers_race(server: &str) {
    let stage = Stage::new(server);
    let server = stage.serve();
    let mut client = server.client();
    let products = offer(&mut client);
    let (told, late) = race(&client.address, &products, &Arc::default());
    assert_eq!(told.len(), PRODUCTS);
    assert_eq!(late, PRODUCTS * (BUYERS as usize - 1), "409 for all the others");
    // Nobody has asked on this connection for the length of the race: the server has closed it.
    client.stream = None;
    adds_up(&mut client, &told);
}

fn sixty_four_buyers_race_and_the_server_is_killed(server: &str) {
    let stage = Stage::new(server);
    let mut server = stage.serve();
    let mut client = server.client();
    let products = offer(&mut client);
    let (address, sold) = (Arc::clone(&client.address), Arc::<AtomicUsize>::default());
    let racing = {
        let (address, sold) = (Arc::clone(&address), Arc::clone(&sold));
        std::thread::spawn(move || race(&address, &products, &sold))
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while sold.load(Ordering::SeqCst) < PRODUCTS / 3 {
        assert!(Instant::now() < deadline, "the race does not get going");
        std::thread::yield_now();
    }
    server.kill();
    let in_the_middle = sold.load(Ordering::SeqCst);
    assert!(in_the_middle < PRODUCTS, "the kill came too late to matter");
    let server = stage.serve();
    address.lock().unwrap().clone_from(&server.address);
    // An order may be placed whose buyer was never told: the answer died with the server.
    let (told, _) = racing.join().expect("the race");
    client.stream = None;
    adds_up(&mut client, &told);
}

macro_rules! on_every_pair {
    ($($case:ident),+) => {
        mod mariadb_rabbitmq { $( #[test] fn $case() { super::$case("mariadb"); } )+ }
        mod postgres_rabbitmq { $( #[test] fn $case() { super::$case("postgres"); } )+ }
        mod sqlite_local { $( #[test] fn $case() { super::$case("sqlite"); } )+ }
    };
}
on_every_pair!(
    sixty_four_buyers_race,
    sixty_four_buyers_race_and_the_server_is_killed,
    orders_are_placed_and_moved_on_over_http,
    the_rules_of_the_market_hold_over_http,
    products_are_found_changed_and_withdrawn_over_http,
    the_flow_of_an_order_is_whole_over_http
);

fn orders_are_placed_and_moved_on_over_http(server: &str) {
    let stage = Stage::new(server);
    let server = stage.serve();
    let mut client = server.client();
    let (status, text) = client
        .text("POST", "/api/market/products", r#"{"sellerId":10002,"title":"A bicycle","price":88.5}"#)
        .unwrap();
    assert_eq!(status, 201);
    assert!(text.contains(r#""price":88.50"#), "two decimals on the wire: {text}");
    let product: Value = serde_json::from_str(&text).unwrap();
    let product = product["productId"].as_i64().unwrap();
    let order = json!({ "productId": product, "buyerId": 10001 });
    let (status, placed) = client.ask("POST", "/api/market/orders", &order);
    assert_eq!(status, 201);
    assert_eq!((placed["status"].as_str(), placed["orderNo"].as_str().unwrap().len()), (Some("pending"), 18));
    let id = placed["orderId"].as_i64().unwrap();
    let (status, problem) = client.ask("POST", "/api/market/orders", &order);
    assert_eq!((status, problem["code"].as_str()), (409, Some("product-not-on-sale")));

    let mut step =
        |step: &str, body: Value| client.ask("POST", &format!("/api/market/orders/{id}/{step}"), &body);
    assert_eq!(step("ship", Value::Null).0, 409, "not before it is paid");
    assert_eq!(step("pay", json!({ "amount": 88.51 })).0, 422);
    assert_eq!(step("cancel", json!({ "reason": "timeout" })).0, 422);
    let (status, paid) = step("pay", json!({ "amount": 88.50 }));
    assert_eq!((status, paid["status"].as_str()), (200, Some("paid")));
    assert_eq!(step("pay", Value::Null).0, 409, "once");
    assert_eq!(step("cancel", Value::Null).0, 409, "not after it is paid");
    assert_eq!(step("ship", Value::Null).1["status"], "shipped");
    assert_eq!(step("complete", Value::Null).1["status"], "completed");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, shown) = client.ask("GET", &format!("/api/market/orders/{id}"), &Value::Null);
        if shown["shipment"]["status"] == "delivered" && shown["notifications"].as_array().unwrap().len() == 3
        {
            break;
        }
        assert!(Instant::now() < deadline, "{shown}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (_, buyer) = client.ask("GET", "/api/market/buyers/10001", &Value::Null);
    assert_eq!(buyer["completedCount"], 1);
    // The facts are in the log, as all facts are.
    let (_, history) = client.ask("GET", &format!("/api/aggregates/Order/{id}/history"), &Value::Null);
    assert!(history.to_string().contains("completed"), "{history}");

    for (method, path, body, expected) in [
        ("POST", "/api/market/products", r#"{"sellerId":1,"title":"x","price":0}"#, 422),
        ("POST", "/api/market/products", r#"{"sellerId":1,"title":"x","price":1.001}"#, 422),
        ("POST", "/api/market/products", r#"{"sellerId":1,"title":"x","price":"1.00"}"#, 422),
        ("POST", "/api/market/products", r#"{"sellerId":1,"title":"","price":1}"#, 422),
        ("POST", "/api/market/products", r#"{"sellerId":0,"title":"x","price":1}"#, 422),
        ("POST", "/api/market/products", r#"{"title":"x","price":1}"#, 422),
        ("POST", "/api/market/products", "{", 400),
        ("POST", "/api/market/orders", r#"{"productId":999999,"buyerId":1}"#, 404),
        ("POST", "/api/market/orders", r#"{"productId":"1","buyerId":1}"#, 422),
        ("POST", "/api/market/orders/1/pay", "", 404),
        ("POST", "/api/market/orders/x/pay", "", 400),
        ("GET", "/api/market/orders/1", "", 404),
        ("GET", "/api/market/orders?limit=0", "", 400),
        ("GET", "/api/market/orders?limit=501", "", 400),
        ("GET", "/api/market/orders?status=lost", "", 400),
        ("GET", "/api/market/products/1000000", "", 404),
    ] {
        let (status, text) = client.text(method, path, body).unwrap();
        assert_eq!(status, expected, "{method} {path} {body}: {text}");
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert!(problem["code"].is_string(), "{text}");
    }
    let (_, mine) = client.ask("GET", "/api/market/orders?buyerId=10001&status=completed", &Value::Null);
    assert_eq!((mine["orders"].as_array().unwrap().len(), mine["next"].is_null()), (1, true));
    let (_, none) = client.ask("GET", "/api/market/products?status=on_sale", &Value::Null);
    assert!(none["products"].as_array().unwrap().is_empty());
}

/// Asks, and holds the answer against a status and a code.
fn refused(client: &mut Client, method: &str, path: &str, body: &str, status: u16, code: &str) -> Value {
    let (found, text) = client.text(method, path, body).unwrap();
    let problem: Value = serde_json::from_str(&text).unwrap_or_default();
    assert_eq!((found, problem["code"].as_str()), (status, Some(code)), "{method} {path} {body}: {text}");
    problem
}

fn new_product(client: &mut Client, seller: i64, title: &str, price: &str) -> i64 {
    let body = format!(r#"{{"sellerId":{seller},"title":"{title}","price":{price}}}"#);
    let (status, text) = client.text("POST", "/api/market/products", &body).unwrap();
    assert_eq!(status, 201, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["productId"].as_i64().unwrap()
}

fn new_order(client: &mut Client, product: i64, buyer: i64) -> i64 {
    let (status, order) =
        client.ask("POST", "/api/market/orders", &json!({ "productId": product, "buyerId": buyer }));
    assert_eq!(status, 201, "{order}");
    assert_eq!(order["possible"], json!(["pay", "cancel"]), "{order}");
    let moment = |name: &str| order[name].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert_eq!(moment("payBy") - moment("createTime"), chrono::Duration::minutes(15));
    order["orderId"].as_i64().unwrap()
}

fn the_rules_of_the_market_hold_over_http(server: &str) {
    let stage = Stage::new(server);
    let server = stage.serve();
    let client = &mut server.client();
    let product = new_product(client, 10002, "A bicycle", "88.50");
    // Nobody buys from himself.
    let own = format!(r#"{{"productId":{product},"buyerId":10002}}"#);
    refused(client, "POST", "/api/market/orders", &own, 422, "product-own");
    // What the buyer saw must still be so, where it is told.
    let dearer = format!(r#"{{"productId":{product},"buyerId":10001,"price":88.49}}"#);
    refused(client, "POST", "/api/market/orders", &dearer, 409, "product-price-changed");
    let order = new_order(client, product, 10001);
    let path = |step: &str| format!("/api/market/orders/{order}/{step}");

    // Fields that nobody knows are named.
    for (path, body, field) in [
        (
            "/api/market/products".to_owned(),
            r#"{"sellerId":1,"title":"x","price":1,"colour":"red"}"#,
            "colour",
        ),
        ("/api/market/orders".to_owned(), r#"{"productId":1,"buyerId":1,"quantity":2}"#, "quantity"),
        (path("pay"), r#"{"amout":88.50}"#, "amout"),
        // The fields without their names.
        (path("pay"), "[88.50, null]", "sequence"),
        (path("cancel"), "[null, null]", "sequence"),
        (path("ship"), r#"{"parcel":"x"}"#, "parcel"),
        (path("complete"), r#"{"stars":5}"#, "stars"),
        (path("cancel"), r#"{"raeson":"x"}"#, "raeson"),
    ] {
        let problem = refused(client, "POST", &path, body, 422, "market-invalid");
        assert!(problem.to_string().contains(field), "{problem}");
    }

    // Each step is somebody's: the buyer pays, cancels and completes, the seller ships.
    let mut step = |name: &str, actor: i64, possible: Value| {
        for stranger in [10001, 10002, 7].into_iter().filter(|one| *one != actor) {
            let body = format!(r#"{{"actorId":{stranger}}}"#);
            refused(client, "POST", &path(name), &body, 403, "market-not-yours");
        }
        let (status, moved) = client.ask("POST", &path(name), &json!({ "actorId": actor }));
        assert_eq!((status, &moved["possible"], &moved["payBy"]), (200, &possible, &Value::Null), "{moved}");
    };
    step("pay", 10001, json!(["ship"]));
    step("ship", 10002, json!(["complete"]));
    step("complete", 10001, json!([]));
    let again = new_product(client, 10002, "A bell", "3.00");
    let other = new_order(client, again, 10001);
    let cancel = format!("/api/market/orders/{other}/cancel");
    refused(client, "POST", &cancel, r#"{"actorId":10002}"#, 403, "market-not-yours");
    let (status, cancelled) = client.ask("POST", &cancel, &json!({ "actorId": 10001, "reason": "too late" }));
    assert_eq!((status, cancelled["status"].as_str()), (200, Some("cancelled")));
    assert_eq!((&cancelled["possible"], &cancelled["payBy"]), (&json!([]), &Value::Null));

    // What a person was told, page by page.
    let deadline = Instant::now() + Duration::from_secs(30);
    let told = loop {
        let (status, told) = client.ask("GET", "/api/market/notifications?recipientId=10001", &Value::Null);
        assert_eq!(status, 200, "{told}");
        if told["notifications"].as_array().unwrap().len() == 2 {
            break told;
        }
        assert!(Instant::now() < deadline, "{told}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let statuses: Vec<_> =
        told["notifications"].as_array().unwrap().iter().map(|one| one["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["shipped", "completed"]);
    assert!(told["notifications"].as_array().unwrap().iter().all(|one| one["orderId"] == order));
    let page = "/api/market/notifications?recipientId=10001&limit=1";
    let (_, first) = client.ask("GET", page, &Value::Null);
    let next = first["next"].as_str().unwrap();
    let (_, second) = client.ask("GET", &format!("{page}&after={next}"), &Value::Null);
    assert_eq!(second["notifications"][0]["status"], "completed");
    let (_, sellers) = client.ask("GET", "/api/market/notifications?recipientId=10002", &Value::Null);
    assert_eq!(sellers["notifications"].as_array().unwrap().len(), 1, "{sellers}");
    refused(client, "GET", "/api/market/notifications", "", 400, "malformed");
}

fn products_are_found_changed_and_withdrawn_over_http(server: &str) {
    let stage = Stage::new(server);
    let server = stage.serve();
    let client = &mut server.client();
    let bicycle = new_product(client, 1, "Red bicycle, 28 inches", "88.50");
    let tricycle = new_product(client, 2, "Red tricycle", "40.00");
    let bell = new_product(client, 1, "\u{81ea}\u{884c}\u{8f66}\u{94c3}", "3.00");
    let found = |client: &mut Client, asked: &str| -> Vec<i64> {
        let (status, page) = client.ask("GET", &format!("/api/market/products?{asked}"), &Value::Null);
        assert_eq!(status, 200, "{asked}: {page}");
        let ids = page["products"].as_array().unwrap().iter();
        ids.map(|product| product["productId"].as_i64().unwrap()).collect()
    };
    assert_eq!(found(client, "sellerId=1"), [bicycle, bell]);
    assert_eq!(found(client, "text=RED"), [bicycle, tricycle]);
    assert_eq!(found(client, "text=bicycle+red"), [bicycle]);
    // In writing without spaces, whatever part of it.
    assert_eq!(found(client, "text=%E8%87%AA%E8%A1%8C%E8%BD%A6"), [bell]);
    assert_eq!(found(client, "text=yellow"), Vec::<i64>::new());
    assert_eq!(found(client, "minPrice=3.01&maxPrice=88.50"), [bicycle, tricycle]);
    assert_eq!(found(client, "minPrice=3&maxPrice=3.00&status=on_sale"), [bell]);
    assert_eq!(found(client, "text=red&sellerId=2&maxPrice=50&status=on_sale"), [tricycle]);
    assert_eq!(found(client, &format!("text=red&after={bicycle}")), [tricycle]);
    assert_eq!(found(client, "minPrice=50&maxPrice=40"), Vec::<i64>::new());
    for text in ["%2C%2C", &"a".repeat(201)] {
        refused(client, "GET", &format!("/api/market/products?text={text}"), "", 422, "market-invalid");
    }
    for wrong in ["minPrice=1.001", "maxPrice=x", "colour=red"] {
        let path = format!("/api/market/products?{wrong}");
        refused(client, "GET", &path, "", 400, "malformed");
    }

    let path = format!("/api/market/products/{bicycle}");
    refused(client, "PATCH", &path, r#"{"title":"Mine","actorId":2}"#, 403, "market-not-yours");
    refused(client, "PATCH", &path, r#"{"status":"sold"}"#, 422, "market-invalid");
    refused(client, "PATCH", &path, r#"{"price":0}"#, 422, "market-invalid");
    refused(client, "PATCH", &path, "{}", 422, "market-invalid");
    let (status, text) =
        client.text("PATCH", &path, r#"{"title":"Blue bicycle","price":70,"actorId":1}"#).unwrap();
    assert_eq!(status, 200, "{text}");
    assert!(text.contains(r#""price":70.00"#) && text.contains("Blue bicycle"), "{text}");
    assert_eq!(found(client, "text=red"), [tricycle]);
    assert_eq!(found(client, "text=blue"), [bicycle]);
    // It is sold for what it costs now.
    let order = new_order(client, bicycle, 9);
    let (_, shown) = client.ask("GET", &format!("/api/market/orders/{order}"), &Value::Null);
    assert_eq!(cents(&shown["totalAmount"]), 7000);
    refused(client, "PATCH", &path, r#"{"price":1}"#, 409, "product-not-on-sale");
    refused(client, "POST", &format!("{path}/withdraw"), "", 409, "product-not-on-sale");

    let path = format!("/api/market/products/{tricycle}/withdraw");
    refused(client, "POST", &path, r#"{"actorId":1}"#, 403, "market-not-yours");
    let (status, withdrawn) = client.ask("POST", &path, &Value::Null);
    assert_eq!((status, withdrawn["status"].as_str()), (200, Some("withdrawn")));
    let order = format!(r#"{{"productId":{tricycle},"buyerId":9}}"#);
    refused(client, "POST", "/api/market/orders", &order, 409, "product-not-on-sale");
    assert_eq!(found(client, "status=withdrawn"), [tricycle]);
    refused(client, "POST", "/api/market/products/99999/withdraw", "", 404, "product-unknown");
    let (_, sold) = client.ask("GET", "/api/market/orders?sellerId=1", &Value::Null);
    assert_eq!(sold["orders"].as_array().unwrap().len(), 1);
    let (_, none) = client.ask("GET", "/api/market/orders?sellerId=2", &Value::Null);
    assert!(none["orders"].as_array().unwrap().is_empty());
}

fn the_flow_of_an_order_is_whole_over_http(server: &str) {
    let stage = Stage::new(server);
    let server = stage.serve();
    let client = &mut server.client();
    let product = new_product(client, 10002, "A bicycle", "88.50");
    let order = new_order(client, product, 10001);
    assert_eq!(client.ask("POST", &format!("/api/market/orders/{order}/pay"), &Value::Null).0, 200);
    let (status, traced) = client.ask("GET", &format!("/api/trace?id=Order/{order}"), &Value::Null);
    assert_eq!(status, 200, "{traced}");
    let [flow] = &traced["correlationIds"].as_array().unwrap()[..] else { panic!("one flow: {traced}") };
    let flow = flow.as_str().unwrap();
    assert!(flow.starts_with("flow-"), "{flow}");
    let (status, shown) = client.ask("GET", &format!("/api/flows/{flow}"), &Value::Null);
    assert_eq!((status, &shown["whole"]), (200, &json!(true)), "{shown}");
    assert_eq!(shown["events"].as_array().unwrap().len(), 3);
    // The machines are shown like any other, and say what can come next.
    let (_, machines) = client.ask("GET", "/api/machines", &Value::Null);
    let kinds: Vec<&str> =
        machines["machines"].as_array().unwrap().iter().filter_map(|one| one["kind"].as_str()).collect();
    assert!(kinds.contains(&"Order") && kinds.contains(&"Product"), "{kinds:?}");
    let (_, shown) = client.ask("GET", &format!("/api/aggregates/Order/{order}"), &Value::Null);
    let next = json!([{"event": "ORDER_STATUS_CHANGED", "to": "shipped"}]);
    assert_eq!((&shown["state"], &shown["possibleNext"]), (&json!("paid"), &next), "{shown}");
    let (_, sold) = client.ask("GET", &format!("/api/aggregates/Product/{product}/history"), &Value::Null);
    assert!(sold.to_string().contains(r#""sold""#), "{sold}");
}

#[test]
fn the_topology_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("towpath.toml");
    std::fs::write(&config, "[market]\norder.timeout.pending-minutes = 0.5\n").unwrap();
    let print = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_towpath"))
            .args(["market", "topology", "--config"])
            .arg(&config)
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = print(&[]);
    assert!(text.contains("queue     order.timeout.delay.queue  (x-message-ttl = 30000,"), "{text}");
    assert!(text.contains("binding   order.events.exchange  --order.dlq-->  order.dlq.queue"), "{text}");
    let json: Value = serde_json::from_str(&print(&["--json"])).unwrap();
    assert_eq!(json["queues"].as_array().unwrap().len(), 6);
}
