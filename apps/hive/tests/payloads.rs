//! What is emitted is what the registry publishes (H9): every payload of a whole life is held against the schema of its type.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use towpath_hive::gateway::simulated::{Fates, SimulatedSettings};
use towpath_hive::schemas::event_types;
use towpath_hive::service::{DeleteAsked, Service, ServiceAsked, ServiceCommand, ServiceStatus, UpdateAsked};
use towpath_hive::spec::EnvValue;

use support::{Running, at_once, resource, settings};

/// Event types that a whole life does not emit, each with the reason. There are none.
const NOT_EMITTED: [&str; 0] = [];

/// The published schemas, by event type, in a form that takes no property which they do not name.
struct Published {
    schemas: boon::Schemas,
    by_type: BTreeMap<&'static str, boon::SchemaIndex>,
    /// The properties that each type cannot do without.
    required: BTreeMap<&'static str, Vec<String>>,
}

impl Published {
    fn read() -> Self {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        // Dates are dates, not texts of any sort.
        compiler.enable_format_assertions();
        let (mut by_type, mut required) = (BTreeMap::new(), BTreeMap::new());
        for event_type in event_types() {
            let mut schema = Value::from(event_type.schema);
            let names = schema["required"].as_array().cloned().unwrap_or_default();
            let names = names.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            required.insert(event_type.name, names);
            // As it is published it is valid itself, and then it is without what it does not name.
            let published = format!("https://hive.test/published/{}", event_type.name);
            compiler.add_resource(&published, schema.clone()).unwrap();
            compiler.compile(&published, &mut schemas).unwrap_or_else(|error| panic!("{error:#}"));
            assert!(close(&mut schema) > 0, "{} names no properties: {schema}", event_type.name);
            let closed = format!("https://hive.test/closed/{}", event_type.name);
            compiler.add_resource(&closed, schema).unwrap();
            let index = compiler.compile(&closed, &mut schemas).unwrap_or_else(|error| panic!("{error:#}"));
            by_type.insert(event_type.name, index);
        }
        Self { schemas, by_type, required }
    }

    fn takes(&self, event_type: &str, payload: &Value) -> Result<(), String> {
        let index = self.by_type.get(event_type).ok_or_else(|| format!("{event_type} is not registered"))?;
        self.schemas.validate(payload, *index).map_err(|error| format!("{event_type} {payload}: {error:#}"))
    }
}

/// Makes every schema of an object refuse what it does not name; answers how many there are.
fn close(schema: &mut Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let below: usize = fields.values_mut().map(close).sum();
            let names_properties = fields.get("properties").is_some_and(Value::is_object);
            if names_properties {
                fields.insert("unevaluatedProperties".to_owned(), json!(false));
            }
            below + usize::from(names_properties)
        }
        Value::Array(items) => items.iter_mut().map(close).sum(),
        _ => 0,
    }
}

/// A payload, broken in one place in every way: a property too many, and a value of another type.
fn broken(payload: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    let mut places = vec![String::new()];
    while let Some(place) = places.pop() {
        let mut change = |what: &str, change: &dyn Fn(&mut Value)| {
            let mut changed = payload.clone();
            change(changed.pointer_mut(&place).unwrap());
            all.push((format!("{what} at {place:?}"), changed));
        };
        match payload.pointer(&place).unwrap() {
            Value::Object(fields) => {
                change("one too many", &|value| value["madeUp"] = json!(7));
                change("no object", &|value| *value = json!(7));
                places.extend(fields.keys().map(|name| format!("{place}/{name}")));
            }
            Value::Array(items) => {
                change("no list", &|value| *value = json!({ "madeUp": 7 }));
                places.extend((0..items.len()).map(|at| format!("{place}/{at}")));
            }
            _ => change("another type", &|value| *value = json!({ "madeUp": 7 })),
        }
    }
    all
}

/// Every event type happens: a service that fails, is updated, replaced by force, refreshed, deleted by hand and deleted, and
/// one that the platform refuses.
async fn live(running: &Running) {
    // The seed decides: the first generation of this name fails, and the second does not.
    let (name, id) = ("cart-6", "shop.cart-6");
    let asked = ServiceAsked {
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        image: "registry.example/cart:1".to_owned(),
        env: [("A".to_owned(), "1".into()), ("TOKEN".to_owned(), EnvValue::from_secret("tokens", "cart"))]
            .into(),
        min_scale: Some(1),
        max_scale: Some(3),
        concurrency: Some(50),
        ..ServiceAsked::default()
    };
    let send = async |id: &str, command: ServiceCommand| {
        running.app.send::<Service>(id, command).by("somebody").await.unwrap();
    };
    let updated = |version: u32, force_replace: bool| {
        let image = format!("registry.example/cart:{version}");
        ServiceCommand::Update(UpdateAsked { image, force_replace, ..UpdateAsked::default() })
    };
    send(id, ServiceCommand::Create(asked.clone())).await;
    running.reaches(id, ServiceStatus::Failed).await;
    send(id, updated(2, false)).await;
    running.reaches(id, ServiceStatus::Ready).await;
    running.quiet().await;
    send(id, ServiceCommand::Refresh {}).await;
    running.quiet().await;
    running.cluster.delete_by_hand(&resource(name)).unwrap();
    running.quiet().await;
    send(id, updated(2, true)).await;
    // Whatever comes of it.
    running.quiet().await;
    send(id, ServiceCommand::Delete(DeleteAsked::default())).await;
    running.reaches(id, ServiceStatus::Deleted).await;

    let refused = ServiceAsked { namespace: "nowhere".to_owned(), ..asked };
    send("nowhere.cart-6", ServiceCommand::Create(refused)).await;
    running.reaches("nowhere.cart-6", ServiceStatus::Failed).await;
    running.quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payload_that_is_emitted_fits_its_published_schema() {
    let fates = Fates { failing_percent: 50, ..at_once().fates };
    let missing_namespaces = ["nowhere".to_owned()].into();
    let cluster = SimulatedSettings { fates, missing_namespaces, ..at_once() };
    let running = Running::with("sqlite", "local", settings(), cluster, |builder| builder).await;
    live(&running).await;
    let store = running.app.store();
    let head = store.backlog(&[], chrono::Utc::now()).await.unwrap().log.head;
    let facts = store.events_between(1, head).await.unwrap();
    running.app.stop().await;

    let published = Published::read();
    let (mut emitted, mut refused) = (BTreeSet::new(), 0);
    for fact in &facts {
        let event_type = fact.envelope.event_type.as_str();
        let payload: Value = serde_json::from_str(fact.envelope.payload.as_text()).unwrap();
        published.takes(event_type, &payload).unwrap_or_else(|error| panic!("{error}"));
        // Whatever is wrong with it would have been found.
        for (what, payload) in broken(&payload) {
            assert!(published.takes(event_type, &payload).is_err(), "{event_type}, {what}: {payload}");
            refused += 1;
        }
        for name in &published.required[event_type] {
            let mut payload = payload.clone();
            payload.as_object_mut().unwrap().remove(name).unwrap();
            assert!(published.takes(event_type, &payload).is_err(), "{event_type} without {name}");
            refused += 1;
        }
        emitted.insert(event_type.to_owned());
    }
    assert!(refused > 10 * facts.len(), "{refused} broken payloads of {} facts", facts.len());

    // Each type has happened, or it is said why not.
    let registered: BTreeSet<String> = published.by_type.keys().map(|name| (*name).to_owned()).collect();
    emitted.extend(NOT_EMITTED.map(str::to_owned));
    assert_eq!((emitted, registered.len()), (registered, 23));
}

#[test]
fn a_payload_that_no_service_emits_is_refused() {
    let published = Published::read();
    let requested = json!({ "resource": { "namespace": "shop", "name": "cart" }, "requestedBy": "somebody" });
    assert_eq!(published.takes("service.creation.requested", &requested), Ok(()));
    for wrong in [
        json!({}),
        json!(null),
        json!({ "resource": "shop/cart" }),
        json!({ "resource": { "namespace": "shop" } }),
        json!({ "resource": { "namespace": "shop", "name": 7 } }),
        json!({ "resource": { "namespace": "shop", "name": "cart", "uid": "u" } }),
        json!({ "resource": { "namespace": "shop", "name": "cart" }, "requested_by": "somebody" }),
    ] {
        assert!(published.takes("service.creation.requested", &wrong).is_err(), "{wrong}");
    }
    let deleted = json!({ "observedAt": "2026-01-26T17:08:51Z" });
    assert_eq!(published.takes("service.deleted", &deleted), Ok(()));
    assert!(published.takes("service.deleted", &json!({ "observedAt": "yesterday" })).is_err());
    assert!(published.takes("service.vanished", &json!({})).is_err(), "nobody has registered it");
}
