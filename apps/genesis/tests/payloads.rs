//! What happens is what is published: every payload of a whole life is held against the schema of its type, and the facts
//! of capabilities go out on their channel as they were written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use towpath::ids::{AggregateKey, TaskId};
use towpath::lifecycle::TaskState;
use towpath::{
    Aggregate as _, Answer, Consumer, Delivery, HandlerError, Payload, RecordedEvent, TASK_KIND, Task,
};
use towpath_genesis::capability::{CapabilityPolicy, name_of, task_type};
use towpath_genesis::process::{Writing, schemas};
use towpath_genesis::session::Session;
use towpath_genesis::stage::Stage;
use towpath_genesis::{answers, subject};

use support::{Running, confirm, eventually, request};

/// The published schemas, by event type, in a form that takes no property which they do not name.
struct Published {
    schemas: boon::Schemas,
    by_type: BTreeMap<String, boon::SchemaIndex>,
    /// The properties that each type cannot do without.
    required: BTreeMap<String, Vec<String>>,
}

impl Published {
    fn read() -> Self {
        let (mut compiled, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        // An id is one, not a text of any sort.
        compiler.enable_format_assertions();
        let (mut by_type, mut required) = (BTreeMap::new(), BTreeMap::new());
        for (name, schema) in schemas() {
            let mut schema = Value::from(schema);
            let names = schema["required"].as_array().cloned().unwrap_or_default();
            let names = names.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            required.insert(name.clone(), names);
            // As it is published it is valid itself, and then it is without what it does not name.
            let published = format!("https://genesis.test/published/{name}");
            compiler.add_resource(&published, schema.clone()).unwrap();
            compiler.compile(&published, &mut compiled).unwrap_or_else(|error| panic!("{error:#}"));
            close(&mut schema);
            // A payload that says nothing names no properties.
            schema["unevaluatedProperties"] = json!(false);
            let closed = format!("https://genesis.test/closed/{name}");
            compiler.add_resource(&closed, schema).unwrap();
            let index = compiler.compile(&closed, &mut compiled).unwrap_or_else(|error| panic!("{error:#}"));
            assert_eq!(by_type.insert(name.clone(), index), None, "{name} is there twice");
        }
        Self { schemas: compiled, by_type, required }
    }

    fn takes(&self, event_type: &str, payload: &Value) -> Result<(), String> {
        let index = self.by_type.get(event_type).ok_or_else(|| format!("{event_type} is not published"))?;
        self.schemas.validate(payload, *index).map_err(|error| format!("{event_type} {payload}: {error:#}"))
    }
}

/// Makes every schema of an object refuse what it does not name.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("properties").is_some_and(Value::is_object) {
                fields.insert("unevaluatedProperties".to_owned(), json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
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
            // A worker answers whatever it likes.
            _ if place == "/result" => {}
            // A user likes whatever there is.
            Value::Object(_) if place.ends_with("/preferences") => {
                change("no object", &|value| *value = json!(7));
            }
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

/// The user of a session, who is the worker, too: so nothing happens before it is wanted.
struct Life<'r> {
    running: &'r Running,
    id: &'static str,
}

impl Life<'_> {
    /// Asks for an entity, and waits for its task.
    async fn ask(&self, entity: Stage) -> Task {
        let Self { running, id } = self;
        running.done(id, request(entity)).await;
        let asked = running.session(id).await.entries[&entity].open.unwrap();
        eventually("there is a task", || async {
            let tasks = running.genesis.tasks(&running.app, id, 100).await.unwrap();
            tasks.into_iter().find(|task| answers(task, entity, asked) && task.status == TaskState::Queued)
        })
        .await
    }

    async fn answer(&self, task: TaskId, result: Value) {
        let answer = Ok(Answer::with(Payload::from_value(&result).unwrap()));
        self.running.app.answer_task(task, None, "elsewhere", answer).await.unwrap();
    }

    async fn failure(&self, reason: &str) {
        eventually(reason, || async {
            let failure = self.running.process(self.id).await.failure;
            failure.filter(|failure| failure.reason == reason)
        })
        .await;
    }

    /// Somebody takes the task, lives, and does not answer in time.
    async fn expire(&self, entity: Stage) {
        let Self { running, id } = self;
        loop {
            self.ask(entity).await;
            let types = [name_of(entity)];
            let taken = running.app.claim_tasks(&types, "slow", 1, Duration::from_secs(60)).await.unwrap();
            let claim = taken[0].claim();
            let failure = eventually("it took too long", || async {
                // It is somebody else's when its time is over.
                let _ = running.app.beat_task(claim).await;
                running.process(id).await.failure
            })
            .await;
            // On a machine that stood still meanwhile, who lives is taken for lost: then it is asked again.
            if failure.reason == "time-limit" {
                return;
            }
        }
    }

    /// All that can become of a task, and then its entity is confirmed while it is written once more.
    async fn through(&self, entity: Stage) {
        let Self { running, id } = self;
        self.expire(entity).await;
        let task = self.ask(entity).await.task.task_id;
        let no_idea = Err(HandlerError::unrecoverable("no-idea", "nothing came to mind"));
        running.app.answer_task(task, None, "elsewhere", no_idea).await.unwrap();
        self.failure("no-idea").await;
        self.answer(self.ask(entity).await.task.task_id, json!(7)).await;
        self.failure("genesis-draft").await;
        let superseded = self.ask(entity).await.task.task_id;
        self.answer(self.ask(entity).await.task.task_id, json!({ "title": "A", "text": "B" })).await;
        running.proposed(id, entity).await;
        let unwanted = self.ask(entity).await.task.task_id;
        running.done(id, confirm(entity)).await;
        for task in [superseded, unwanted] {
            eventually("it is called off", || async {
                let task = running.app.task(task).await.unwrap()?;
                (task.status == TaskState::Canceled).then_some(())
            })
            .await;
        }
    }

    /// An answer that the process did not ask for.
    async fn foreign(&self) {
        let Self { running, id } = self;
        let open = self.ask(Stage::Concept).await.task.task_id;
        let brief: Value = running.app.task(open).await.unwrap().unwrap().task.payload.read("").unwrap();
        let (of, subject) = (task_type(Stage::Concept, &policy()), subject(id).unwrap());
        let started = running.app.transact(async |mut tx| {
            let task = tx.start_task(&of, &brief).subject(&subject).unique("mine").await?;
            Ok::<_, towpath::ports::store::StoreError>(task)
        });
        self.answer(started.await.unwrap().task_id, json!({ "text": "foreign" })).await;
        eventually("it is recorded", || async { (running.process(id).await.discarded == 1).then_some(()) })
            .await;
    }

    async fn ended(&self) {
        eventually("the process ends", || async {
            let view = self.running.app.load::<Writing>(self.id).await.unwrap()?;
            (view.state.as_deref() == Some("ended")).then_some(())
        })
        .await;
    }
}

/// Only who takes a task before it is answered is short of time: nobody here but who is slow.
fn policy() -> CapabilityPolicy {
    let (time_limit, heartbeat) = (Duration::from_millis(1), Duration::from_secs(1));
    CapabilityPolicy { time_limit, retries: Vec::new(), heartbeat }
}

/// Every event type happens.
async fn live(running: &Running) {
    let life = Life { running, id: "s-1" };
    running.start("s-1").await;
    life.foreign().await;
    for entity in Stage::ALL {
        life.through(entity).await;
        let change = match entity {
            Stage::Theme => "Theme.Revise",
            Stage::World => "World.Update",
            Stage::Character => "Character.Update",
            Stage::Plot => "Plot.Update",
            Stage::Concept | Stage::Details => "",
        };
        if !change.is_empty() {
            running.send("s-1", change, json!({ "text": "darker" })).await.unwrap();
        }
        if entity == Stage::Character {
            let relations = json!([{ "from": "Ilse", "to": "Wren", "relation": "rival" }]);
            let network = json!({ "relations": relations });
            running.send("s-1", "CharacterNetwork.Create", network).await.unwrap();
        }
        running.done("s-1", "Stage.Complete").await;
    }
    running.done("s-1", "Branch.Create").await;
    running.done("s-1", "Finish").await;
    life.ended().await;
    running.start("s-2").await;
    running.send("s-2", "Fail", json!({ "message": "enough" })).await.unwrap();
    Life { running, id: "s-2" }.ended().await;
}

/// All facts of both sessions and of the branch, of their processes and of their tasks.
async fn facts(running: &Running) -> Vec<RecordedEvent> {
    let branch = running.session("s-1").await.branches[0].session_id.clone();
    eventually("the process of the branch begins", || async {
        running.app.load::<Writing>(branch.as_str()).await.unwrap()
    })
    .await;
    let mut facts = Vec::new();
    for id in ["s-1", "s-2", &branch] {
        let tasks = running.genesis.tasks(&running.app, id, 100).await.unwrap();
        let tasks = tasks.into_iter().map(|task| (TASK_KIND, task.task.task_id.to_string()));
        for (kind, id) in
            [Session::KIND, Writing::KIND].map(|kind| (kind, id.to_owned())).into_iter().chain(tasks)
        {
            let key = AggregateKey::new(kind, id).unwrap();
            facts.extend(running.app.events_of(&key, 0, 1000).await.unwrap());
        }
    }
    facts
}

/// What came on a channel: the payload by the fact's id.
type Heard = Arc<Mutex<BTreeMap<String, String>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payload_fits_its_published_schema_and_those_of_capabilities_go_out() {
    let heard = Heard::default();
    let hears = Arc::clone(&heard);
    let listener = Consumer::of("genesis.process").each("listener", move |delivery: Delivery| {
        let (id, payload) = (delivery.event.event_id, delivery.event.payload.as_text().to_owned());
        let of = delivery.event.aggregate.as_ref();
        if of.is_some_and(|aggregate| aggregate.kind.as_str() == TASK_KIND) {
            hears.lock().unwrap().insert(id.to_string(), payload);
        }
        async move { Ok(delivery.handled()) }
    });
    let running = Running::with("sqlite", policy(), false, |builder| builder.consumer(listener)).await;
    live(&running).await;
    let facts = facts(&running).await;

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
    assert!(refused > 5 * facts.len(), "{refused} broken payloads of {} facts", facts.len());
    // 28 of sessions, 7 of processes, 5 of each capability: each has happened.
    let registered: BTreeSet<String> = published.by_type.keys().cloned().collect();
    assert_eq!((emitted, registered.len()), (registered, 65));

    let of_tasks = facts.iter().filter(|fact| fact.envelope.aggregate.kind.as_str() == TASK_KIND);
    let of_tasks: BTreeMap<String, String> = of_tasks
        .map(|fact| (fact.envelope.event_id.to_string(), fact.envelope.payload.as_text().to_owned()))
        .collect();
    assert!(of_tasks.len() >= 6 * 12, "{} facts of tasks", of_tasks.len());
    eventually("every fact of a capability goes out", || async {
        (heard.lock().unwrap().len() >= of_tasks.len()).then_some(())
    })
    .await;
    assert_eq!(*heard.lock().unwrap(), of_tasks, "these facts and no others, as they were written");
    running.stop().await;
}
