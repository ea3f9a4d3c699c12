//! Tasks over HTTP: operators look at them and act, workers outside of the process do them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use std::time::Duration;

use parcels::{Answer, Server};
use serde_json::{Value, json};
use towpath::ids::AggregateKey;
use towpath::ports::store::StoreError;
use towpath::retry::RetryPolicy;
use towpath::{TaskType, Towpath};

/// Not a test: the server process that the others start. It declares what is done elsewhere.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    let Ok(arguments) = std::env::var("SERVER_OF_A_TEST_ARGUMENTS") else { return };
    let arguments = arguments.split('\n').map(std::ffi::OsString::from);
    let _ = towpath_server::run(arguments, |builder| builder.task_type(weigh()));
    std::process::exit(0);
}

/// One that fails is not tried again before the test has ended.
fn weigh() -> TaskType {
    TaskType::named("Scales.Weigh")
        .retries(RetryPolicy::Fixed(vec![Duration::from_secs(3600); 3]))
        .requested("scales.asked")
        .answered("scales.weighed")
        .failed("scales.broken")
}

/// A server, and another process on its store that starts tasks for parcels.
struct Started {
    server: Server,
    runtime: tokio::runtime::Runtime,
    app: Towpath,
    _folder: tempfile::TempDir,
}

impl Started {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite://{}", folder.path().join("tasks.db").display());
        let server = Server::of_carrier_with(&[&["--store", &store], arguments].concat());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let builder = Towpath::builder().store(&store).without_workers().task_type(weigh());
        let app = runtime.block_on(builder.start()).unwrap();
        Self { server, runtime, app, _folder: folder }
    }

    fn start(&self, parcel: &str) -> String {
        let (of, subject) = (weigh(), AggregateKey::new("parcel", parcel).unwrap());
        let started = self.app.transact(async |mut tx| {
            let started = tx.start_task(&of, &json!({ "parcel": parcel })).subject(&subject).await?;
            Ok::<_, StoreError>(started.task_id.to_string())
        });
        self.runtime.block_on(started).unwrap()
    }

    fn claim(&self, wait: &str) -> Vec<Value> {
        let asked = json!({ "types": ["Scales.Weigh"], "worker": "py-1", "limit": 5, "wait": wait });
        let answer = self.server.post("/api/tasks/claim", &asked.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["tasks"].as_array().unwrap().clone()
    }

    fn post(&self, task_id: &str, what: &str, body: Value) -> Answer {
        self.server.post(&format!("/api/tasks/{task_id}/{what}"), &body.to_string())
    }

    /// The status of the task in an answer that is fine.
    fn status(&self, task_id: &str, what: &str, body: Value) -> String {
        let answer = self.post(task_id, what, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["status"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_worker_outside_takes_tasks_is_heard_and_answers() {
    let here = Started::new();
    assert_eq!(here.claim("0s"), Vec::<Value>::new());
    let task_id = here.start("p-1");
    let claimed = here.claim("20s");
    let [claimed] = &claimed[..] else { panic!("{claimed:?}") };
    let task = &claimed["task"];
    assert_eq!((task["taskId"].as_str(), task["status"].as_str()), (Some(task_id.as_str()), Some("running")));
    assert_eq!((&task["payload"]["parcel"], &task["worker"]), (&json!("p-1"), &json!("py-1")));
    assert_eq!(claimed["heartbeatMillis"], 10_000);
    let token = claimed["token"].clone();
    let heard = here.post(&task_id, "heartbeat", json!({ "token": token }));
    assert_eq!((heard.status, heard.json()), (200, json!({ "isCanceled": false })));
    assert_eq!(here.post(&task_id, "heartbeat", json!({ "token": "7" })).code(), "task-lost");
    assert_eq!(here.post(&task_id, "result", json!({ "result": 1 })).code(), "task-not-queued");
    assert_eq!(here.post(&task_id, "result", json!({ "token": "none", "result": 1 })).code(), "task-lost");
    for _ in 0..2 {
        // The answer is kept to the letter, and said again it is no loss.
        let body = format!(r#"{{"token":{token},"result":{{"weight":88.50}}}}"#);
        let answer = here.server.post(&format!("/api/tasks/{task_id}/result"), &body);
        assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("succeeded")), "{answer:?}");
        let shown = here.server.get(&format!("/api/tasks/{task_id}"));
        assert!(shown.body.contains(r#""result":{"weight":88.50}"#), "{shown:?}");
    }
    let other = here.post(&task_id, "result", json!({ "token": token, "result": 2 }));
    assert_eq!(other.code(), "task-lost", "it was answered in another way");
    // Without a token, the first answer wins.
    let task_id = here.start("p-2");
    assert_eq!(here.status(&task_id, "result", json!({})), "succeeded");
    assert_eq!(here.post(&task_id, "result", json!({})).code(), "task-not-queued");
    let task_id = here.start("p-3");
    let failure = json!({ "code": "no-scales", "message": "they are gone" });
    assert_eq!(here.status(&task_id, "failure", failure.clone()), "pending", "its policy tries again");
    // A token is of one task.
    let other_id = here.start("p-5");
    assert_eq!(here.claim("0s").len(), 1);
    assert_eq!(here.post(&other_id, "result", json!({ "token": token })).code(), "task-lost");
    // That it failed counts, whatever else is said.
    let task_id = here.start("p-6");
    for code in ["", " ", &"c".repeat(129)] {
        assert_eq!(here.post(&task_id, "failure", json!({ "code": code })).code(), "invalid-payload");
        let refused = here.post(&task_id, "cancel", json!({ "reason": code })).status;
        assert_eq!(refused, 422, "{code:?}");
    }
    assert_eq!(here.status(&task_id, "failure", json!({ "error": { "line": 7 } })), "pending");
    let shown = here.server.get(&format!("/api/tasks/{task_id}")).json();
    assert_eq!(shown["errorCode"], "worker-failed");
    let task_id = here.start("p-4");
    let for_good = json!({ "code": "no-scales", "retry": false });
    assert_eq!(here.status(&task_id, "failure", for_good), "failed");
    assert_eq!(here.post(&uuid::Uuid::nil().to_string(), "failure", failure.clone()).code(), "task-unknown");
    assert_eq!(here.post("p-4", "failure", failure).code(), "not-found");
    for (asked, code) in [
        (json!({ "types": ["Nobody.Does"], "worker": "py-1" }), "task-type-unknown"),
        (json!({ "types": ["Scales.Weigh"], "worker": "" }), "invalid-id"),
        (json!({ "types": [], "worker": "py-1" }), "malformed"),
        (json!({ "types": ["Scales.Weigh"], "worker": "py-1", "wait": "long" }), "malformed"),
    ] {
        assert_eq!(here.server.post("/api/tasks/claim", &asked.to_string()).code(), code, "{asked}");
    }
    // Answers are in the record of who did what; that somebody lives and has nothing to do is not.
    let facts = here
        .server
        .until("/api/events?limit=1000", |events| events.to_string().contains("/api/tasks/{id}/failure"));
    let facts = facts.to_string();
    assert!(facts.contains("scales.weighed") && facts.contains("/api/tasks/{id}/result"), "{facts}");
    assert!(!facts.contains("/api/tasks/claim") && !facts.contains("heartbeat"), "{facts}");
}

/// Half of the places is for those who do something: who comes to wait when the other half waits is answered at once.
#[test]
fn who_waits_for_tasks_leaves_room_for_those_who_have_some() {
    let here = Started::with(&["--limits-concurrent-requests", "4"]);
    std::thread::scope(|scope| {
        let (send, answers) = std::sync::mpsc::channel();
        for _ in 0..3 {
            let (send, here) = (send.clone(), &here);
            scope.spawn(move || send.send(here.claim("20s")).unwrap());
        }
        assert_eq!(answers.recv().unwrap(), Vec::<Value>::new(), "two wait");
        assert_eq!(here.server.get("/api/tasks").status, 200);
        for parcel in ["p-1", "p-2"] {
            here.start(parcel);
            assert_eq!(answers.recv().unwrap().len(), 1, "one of them waited for it");
        }
    });
}

#[test]
fn operators_look_at_tasks_try_them_again_and_call_them_off() {
    let here = Started::new();
    let ids = ["p-1", "p-2", "p-3"].map(|parcel| here.start(parcel));
    let listed = |query: &str| {
        let page = here.server.get(&format!("/api/tasks?{query}")).json();
        let ids =
            page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>(), page["next"].as_str().map(str::to_owned))
    };
    for state in ["", "state=queued&"] {
        let (first, next) = listed(&format!("{state}limit=2"));
        assert_eq!(first, [ids[2].as_str(), &ids[1]]);
        assert_eq!(listed(&format!("{state}limit=2&after={}", next.unwrap())), (vec![ids[0].clone()], None));
    }
    assert_eq!(listed("subjectKind=parcel&subjectId=p-2&type=Scales.Weigh").0, [ids[1].as_str()]);
    assert_eq!((listed("state=running").0.len(), listed("type=Nobody.Does").0.len()), (0, 0));
    for (query, status) in [("subjectKind=parcel", 422), ("after=there", 404), ("state=away", 400)] {
        assert_eq!(here.server.get(&format!("/api/tasks?{query}")).status, status, "{query}");
    }
    let shown = here.server.get(&format!("/api/tasks/{}", ids[0])).json();
    assert_eq!((&shown["subject"]["id"], &shown["payload"]["parcel"]), (&json!("p-1"), &json!("p-1")));
    assert_eq!(here.server.get("/api/tasks/none").code(), "not-found");

    let said = |arguments: &[&str]| {
        let output = here.server.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let canceled = said(&["tasks", "cancel", &ids[0], "--reason", "not-wanted"]);
    assert_eq!(canceled.trim_end(), format!("{} is canceled", ids[0]));
    assert_eq!(here.post(&ids[0], "cancel", json!({ "reason": "not-wanted" })).code(), "task-ended");
    assert_eq!(here.post(&ids[0], "cancel", json!({ "reason": " " })).code(), "reason-missing");
    assert!(said(&["tasks", "ls", "--state", "canceled"]).contains("not-wanted"));
    assert!(said(&["tasks", "show", &ids[0]]).contains("parcel"));
    assert_eq!(said(&["tasks", "retry", &ids[0]]).trim_end(), format!("{} is queued", ids[0]));
    assert_eq!(here.post(&ids[0], "retry", json!({})).code(), "task-not-failed");
    assert!(said(&["tasks", "ls", "--subject", "parcel/p-3"]).contains(&ids[2]));
    // One that runs is called off when its worker hears of it.
    let claimed = here.claim("20s");
    let token =
        &claimed.iter().find(|claimed| claimed["task"]["taskId"] == ids[1].as_str()).unwrap()["token"];
    let asked = said(&["tasks", "cancel", &ids[1], "--reason", "not-wanted"]);
    assert_eq!(asked.trim_end(), format!("{} is running, and is to be called off", ids[1]));
    assert_eq!(
        here.post(&ids[1], "heartbeat", json!({ "token": token })).json(),
        json!({ "isCanceled": true })
    );
    let stopped = json!({ "token": token, "code": "stopped" });
    assert_eq!(here.status(&ids[1], "failure", stopped), "canceled");
}
