//! Once only, over HTTP: clients repeat what they ask for under the same Idempotency-Key until they are answered, while
//! the server is killed again and again. Nothing is lost, nothing is done twice; and keys are their owners' own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stdout, reason = "a test tells what it measured")]

mod driver;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver::{Answer, Server, ask, eventually, new_key, towpath};
use serde_json::{Value, json};
use towpath::Scratch;

/// A claim of a killed server lasts as long as a request may take: here not long, because clients wait for it.
const CONFIG: &str = "[limits]\nrequest-timeout = \"2s\"\n[hive.simulated]\nsettles-after = \"1ms\"\n";

fn start(folder: &Arc<tempfile::TempDir>, store: &str, config: &str) -> Server {
    let mut command = towpath();
    command.args(["--listen", "127.0.0.1:0", "--store", store]).env("TOWPATH_LOG_FILTER", "warn");
    Server::spawn(command, Arc::clone(folder), config)
}

fn on_scratch(variable: &str, test: impl Fn(&str)) {
    let url = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let scratch = runtime.block_on(Scratch::make(&url)).unwrap();
    test(scratch.url());
    runtime.block_on(scratch.remove()).unwrap();
}

#[test]
fn a_killed_server_does_each_change_once_on_sqlite() {
    kill_under_load("sqlite://once.db");
}

#[test]
fn a_killed_server_does_each_change_once_on_postgres() {
    on_scratch("TOWPATH_TEST_POSTGRES_URL", kill_under_load);
}

#[test]
fn a_killed_server_does_each_change_once_on_mariadb() {
    on_scratch("TOWPATH_TEST_MYSQL_URL", kill_under_load);
}

/// A client that repeats what it asks for until it is answered.
struct Client {
    address: Arc<Mutex<String>>,
    key: String,
    /// How many answers came from the record.
    repeated: Arc<AtomicU64>,
}

impl Client {
    fn post(&self, path: &str, key: &str, body: &Value) -> Value {
        let headers = [("X-Api-Key", self.key.as_str()), ("Idempotency-Key", key)];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let deadline = Instant::now() + driver::PATIENCE;
        loop {
            let at = self.address.lock().unwrap().clone();
            match ask(&at, "POST", path, &headers, &body) {
                Ok(answer) if [200, 201].contains(&answer.status) => {
                    let replayed = answer.headers.contains_key("idempotency-replayed");
                    self.repeated.fetch_add(u64::from(replayed), Ordering::SeqCst);
                    return answer.json();
                }
                // Answers that say "again". Any other refusal would mean that it was tried twice.
                Ok(answer) if is_passing(&answer) => std::thread::sleep(Duration::from_millis(50)),
                Ok(answer) => panic!("{path} {key}: {answer:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            assert!(Instant::now() < deadline, "{path} {key} is never answered");
        }
    }
}

fn is_passing(answer: &Answer) -> bool {
    let code = answer.json()["code"].as_str().unwrap_or_default().to_owned();
    [503, 504].contains(&answer.status) || (answer.status == 409 && code == "still-processing")
}

/// What one round of a client was answered.
struct Done {
    number: u64,
    product: i64,
    order: i64,
    service: String,
    command: String,
}

fn kill_under_load(store: &str) {
    const CLIENTS: u64 = 6;
    const KILLS: u64 = 3;
    let key = new_key("bob", "operator");
    let config = format!("{CONFIG}{}", key.toml);
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut server = start(&folder, store, &config);
    let address = Arc::new(Mutex::new(server.address.clone()));
    let (stop, next, repeated) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (stop, next) = (Arc::clone(&stop), Arc::clone(&next));
            let client = Client {
                address: Arc::clone(&address),
                key: key.key.clone(),
                repeated: Arc::clone(&repeated),
            };
            std::thread::spawn(move || {
                let mut done = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    done.push(round(&client, next.fetch_add(1, Ordering::SeqCst)));
                }
                done
            })
        })
        .collect();
    for _ in 0..KILLS {
        let reached = next.load(Ordering::SeqCst) + 2 * CLIENTS;
        eventually("clients go on", || (next.load(Ordering::SeqCst) >= reached).then_some(()));
        server.kill();
        server = start(&folder, store, &config);
        *address.lock().unwrap() = server.address.clone();
    }
    stop.store(true, Ordering::SeqCst);
    let done: Vec<Done> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    let done: BTreeMap<u64, Done> = done.into_iter().map(|done| (done.number, done)).collect();
    let sent = next.load(Ordering::SeqCst) - 1;
    assert_eq!(done.keys().copied().collect::<Vec<_>>(), (1..=sent).collect::<Vec<_>>());

    // What the killed servers have recorded is answered by this one, and done no second time.
    let before = repeated.load(Ordering::SeqCst);
    let client = Client { address, key: key.key.clone(), repeated: Arc::clone(&repeated) };
    let first = &done[&1];
    let again = round(&client, 1);
    assert_eq!((again.product, again.order), (first.product, first.order));
    assert_eq!((&again.service, &again.command), (&first.service, &first.command));
    assert_eq!(repeated.load(Ordering::SeqCst), before + 4, "all four come from the record");

    let by = [("X-Api-Key", key.key.as_str())];
    // Each product, order and service is there once, and it is the one that was answered.
    let products = all(&server, &by, "/api/market/products", "products", "productId");
    let found: Vec<(String, i64)> =
        products.iter().map(|row| (text(row, "title"), row["productId"].as_i64().unwrap())).collect();
    assert_same(found, done.values().map(|done| (format!("thing {}", done.number), done.product)));
    let orders = all(&server, &by, "/api/market/orders", "orders", "orderId");
    let found: Vec<(i64, i64, String)> = orders
        .iter()
        .map(|row| (row["buyerId"].as_i64().unwrap(), row["orderId"].as_i64().unwrap(), text(row, "status")))
        .collect();
    assert_same(found, done.values().map(|done| (done.number as i64, done.order, "paid".to_owned())));
    for done in done.values() {
        let service = server.get(&format!("/api/hive/services/{}", done.service), &by);
        assert_eq!(service.status, 200, "{service:?}");
        assert_eq!(service.json()["id"], format!("shop.s{}", done.number));
        let record = server.get(&format!("/api/commands/{}", done.command), &by).json();
        assert_eq!(
            (&record["status"], &record["aggregate"]["id"]),
            (&json!("COMPLETED"), &json!(done.service))
        );
    }
    // One fact each: that an order was placed, that it was paid, that a service was asked for.
    let facts = eventually("all facts have their positions", || {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        for fact in all_facts(&server, &by) {
            *counts.entry((text(&fact, "type"), text(&fact, "aggregateId"))).or_default() += 1;
        }
        let kinds = counts.keys().filter(|(kind, _)| kind == "service.creation.requested").count() as u64;
        let orders = counts.keys().filter(|(kind, _)| kind == "ORDER_PAID").count() as u64;
        (kinds == sent && orders == sent).then_some(counts)
    });
    for (fact, count) in &facts {
        let once = ["ORDER_CREATED", "ORDER_PAID", "service.creation.requested"].contains(&fact.0.as_str());
        assert!(!once || *count == 1, "{fact:?} happened {count} times");
    }
    println!("{sent} rounds, {KILLS} kills, {} answered from the record", repeated.load(Ordering::SeqCst));
}

/// Offers a product, orders it, pays for it, and asks for a service.
fn round(client: &Client, number: u64) -> Done {
    let offered = json!({ "sellerId": 1_000_007, "title": format!("thing {number}"), "price": 12.50 });
    let product = client.post("/api/market/products", &format!("offer-{number}"), &offered);
    let product = product["productId"].as_i64().unwrap();
    let placed = json!({ "productId": product, "buyerId": number });
    let order = client.post("/api/market/orders", &format!("order-{number}"), &placed);
    let order = order["orderId"].as_i64().unwrap();
    let paid =
        client.post(&format!("/api/market/orders/{order}/pay"), &format!("pay-{number}"), &Value::Null);
    assert_eq!(paid["status"], "paid", "{paid}");
    let asked = json!({ "name": format!("s{number}"), "namespace": "shop", "image": "a/b:1" });
    let service = client.post("/api/hive/services", &format!("service-{number}"), &asked);
    Done { number, product, order, service: text(&service, "id"), command: text(&service, "commandId") }
}

fn text(row: &Value, name: &str) -> String {
    row[name].as_str().unwrap_or_else(|| panic!("no {name} in {row}")).to_owned()
}

fn assert_same<T: Ord + std::fmt::Debug>(mut found: Vec<T>, expected: impl Iterator<Item = T>) {
    let mut expected: Vec<T> = expected.collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// Reads like a client that comes back when it is told to.
fn read(server: &Server, by: &[(&str, &str)], path: &str) -> Value {
    for _ in 0..50 {
        let answer = server.get(path, by);
        match answer.status {
            200 => return answer.json(),
            429 | 503 | 504 => std::thread::sleep(Duration::from_millis(200)),
            _ => panic!("{path}: {answer:?}"),
        }
    }
    panic!("{path}: it stays away")
}

fn all(server: &Server, by: &[(&str, &str)], path: &str, list: &str, id: &str) -> Vec<Value> {
    let (mut rows, mut after) = (Vec::new(), 0);
    loop {
        let page = read(server, by, &format!("{path}?after={after}&limit=500"));
        let page = page[list].as_array().unwrap().clone();
        let Some(last) = page.last() else { return rows };
        after = last[id].as_i64().unwrap();
        rows.extend(page);
    }
}

fn all_facts(server: &Server, by: &[(&str, &str)]) -> Vec<Value> {
    let (mut facts, mut after) = (Vec::new(), 0);
    loop {
        let page = read(server, by, &format!("/api/events?after={after}&limit=500"));
        let page = page["events"].as_array().unwrap().clone();
        let Some(last) = page.last() else { return facts };
        after = last["position"].as_u64().unwrap();
        facts.extend(page);
    }
}

#[test]
fn two_who_choose_the_same_key_do_not_meet() {
    let (ann, bob) = (new_key("ann", "operator"), new_key("bob", "operator"));
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let server = start(&folder, "sqlite://keys.db", &format!("{CONFIG}{}{}", ann.toml, bob.toml));
    let post = |who: &str, path: &str, key: &str, body: &Value| {
        server.ask("POST", path, &[("X-Api-Key", who), ("Idempotency-Key", key)], &body.to_string())
    };
    // The same key for different things: each has its own.
    let service = |name: &str| json!({ "name": name, "namespace": "shop", "image": "a/b:1" });
    let hers = post(&ann.key, "/api/hive/services", "k", &service("hers"));
    let his = post(&bob.key, "/api/hive/services", "k", &service("his"));
    assert_eq!((hers.status, his.status), (201, 201), "{hers:?} {his:?}");
    assert_eq!((&hers.json()["id"], &his.json()["id"]), (&json!("shop.hers"), &json!("shop.his")));
    assert_eq!(hers.json()["commandId"], "k");
    assert_ne!(his.json()["commandId"], "k");
    for (who, name, first) in [(&ann, "hers", &hers), (&bob, "his", &his)] {
        let again = post(&who.key, "/api/hive/services", "k", &service(name));
        assert_eq!((again.status, &again.body), (200, &first.body), "{again:?}");
    }
    // And for the same thing: the second one is no repeat of the first.
    let refresh =
        |id: &str| json!({ "type": "Command.Hive.Service.Refresh", "aggregateId": id, "payload": {} });
    let hers = post(&ann.key, "/api/commands", "r", &refresh("shop.hers"));
    let his = post(&bob.key, "/api/commands", "r", &refresh("shop.hers"));
    assert_eq!((hers.status, his.status), (201, 201), "{hers:?} {his:?}");
    assert_ne!(hers.json()["commandId"], his.json()["commandId"]);
    for (who, first) in [(&ann, &hers), (&bob, &his)] {
        let again = post(&who.key, "/api/commands", "r", &refresh("shop.hers"));
        assert_eq!((again.status, &again.body), (200, &first.body));
    }
    // An id that is given as such is everybody's, and is taken.
    let mut named = refresh("shop.hers");
    named["commandId"] = json!("r");
    let by_bob = server.ask("POST", "/api/commands", &[("X-Api-Key", &bob.key)], &named.to_string());
    assert_eq!((by_bob.status, by_bob.code().as_str()), (409, "command-id-reused"));
    // The market's keys are the owners' as well.
    let offered = json!({ "sellerId": 7, "title": "a lamp", "price": 5.00 });
    let hers = post(&ann.key, "/api/market/products", "k-market", &offered);
    let his = post(&bob.key, "/api/market/products", "k-market", &offered);
    assert_eq!((hers.status, his.status), (201, 201));
    assert_ne!(hers.json()["productId"], his.json()["productId"]);
    let again = post(&ann.key, "/api/market/products", "k-market", &offered);
    assert_eq!((again.status, &again.body), (200, &hers.body));
    let other = post(&ann.key, "/api/market/products", "k-market", &json!({ "sellerId": 8 }));
    assert_eq!((other.status, other.code().as_str()), (409, "key-reused"));
}
