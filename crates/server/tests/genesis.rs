//! Genesis from the outside: whole sessions over HTTP, with a model that fails and hangs, and with workers elsewhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use driver::{Answer, Server, eventually};
use serde_json::{Value, json};
use towpath::Scratch;

const KEY: &str = "sk-very-secret";
const PREFIX: &str = "Command.Genesis.Session.";

/// What the stages bring forth, in their order.
const ENTITIES: [&str; 6] = ["concept", "theme", "world", "character", "plot", "details"];

/// The commands of G12.
const COMMANDS: [&str; 22] = [
    "Start",
    "Seed.Request",
    "Concept.Confirm",
    "Stage.Complete",
    "Theme.Request",
    "Theme.Confirm",
    "Theme.Revise",
    "World.Request",
    "World.Confirm",
    "World.Update",
    "Character.Request",
    "Character.Confirm",
    "Character.Update",
    "CharacterNetwork.Create",
    "Plot.Request",
    "Plot.Confirm",
    "Plot.Update",
    "Details.Request",
    "Details.Confirm",
    "Finish",
    "Fail",
    "Branch.Create",
];

/// Genesis alone, with nothing said of it: so the embedded author writes.
const EMBEDDED: &str = "[market]\nenabled = false\n[hive]\nenabled = false\n";

/// A model: the world fails twice, the plot hangs for as long as it is asked for the first time.
async fn play(State(asked): State<Arc<Mutex<HashMap<String, u32>>>>, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    let brief: Value = serde_json::from_str(body["messages"][1]["content"].as_str().unwrap()).unwrap();
    let entity = brief["entity"].as_str().unwrap().to_owned();
    let times = {
        let mut asked = asked.lock().unwrap();
        let times = asked.entry(entity.clone()).or_default();
        *times += 1;
        *times
    };
    match entity.as_str() {
        "world" if times <= 2 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "plot" if brief["ask"] == 1 => std::future::pending().await,
        _ => {
            let content = format!("On the {entity}\nWritten from {}.", brief["confirmed"]);
            axum::Json(json!({ "choices": [{ "message": { "content": content } }] })).into_response()
        }
    }
}

/// A user of a server.
struct User<'s> {
    server: &'s Server,
    /// The ids of the commands that were done for them.
    sent: Mutex<Vec<String>>,
}

/// What is in a list under a name.
fn each<'v>(list: &'v Value, name: &str) -> Vec<&'v str> {
    list.as_array().unwrap().iter().map(|one| one[name].as_str().unwrap()).collect()
}

/// The same, where nothing is there twice.
fn set(list: &Value, name: &str) -> BTreeSet<String> {
    let all = each(list, name);
    let once: BTreeSet<String> = all.iter().map(|one| (*one).to_owned()).collect();
    assert_eq!(once.len(), all.len(), "something is there twice: {list}");
    once
}

/// The command that does this to an entity: `Theme.Confirm`.
fn to(entity: &str, what: &str) -> String {
    match (entity, what) {
        ("concept", "Request") => "Seed.Request".to_owned(),
        _ => format!("{}{}.{what}", entity[..1].to_uppercase(), &entity[1..]),
    }
}

/// A payload that a command can use.
fn sample(command: &str) -> Value {
    match command {
        "CharacterNetwork.Create" => {
            json!({ "relations": [{ "from": "Ilse", "to": "Wren", "relation": "rival" }] })
        }
        _ if command.ends_with(".Revise") || command.ends_with(".Update") => json!({ "text": "another" }),
        _ => json!({}),
    }
}

impl<'s> User<'s> {
    fn of(server: &'s Server) -> Self {
        Self { server, sent: Mutex::default() }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.server.ask(method, path, &[], &body)
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    fn start(&self) -> String {
        let body = json!({ "userId": "user-7", "initialInput": "a ferry that never lands" });
        let started = self.ask("POST", "/api/genesis/sessions", &body);
        assert_eq!(started.status, 201, "{started:?}");
        started.json()["sessionId"].as_str().unwrap().to_owned()
    }

    fn session(&self, id: &str) -> Value {
        self.get(&format!("/api/genesis/sessions/{id}"))
    }

    fn send(&self, id: &str, command: &str, payload: Value) -> Answer {
        let body = json!({ "type": command, "payload": payload });
        let answer = self.ask("POST", &format!("/api/genesis/sessions/{id}/commands"), &body);
        if answer.status == 201 {
            self.sent.lock().unwrap().push(answer.json()["commandId"].as_str().unwrap().to_owned());
        }
        answer
    }

    fn done(&self, id: &str, command: &str) -> Value {
        let answer = self.send(id, command, json!({}));
        assert_eq!(answer.status, 201, "{command}: {answer:?}");
        answer.json()
    }

    /// Waits until an entity is proposed; answers the request that it was proposed for.
    fn proposed(&self, id: &str, entity: &str) -> u64 {
        eventually(&format!("{entity} is proposed"), || {
            let session = self.session(id);
            let is_open = !session["openRequests"].as_array().unwrap().is_empty();
            session[entity]["request"].as_u64().filter(|_| !is_open)
        })
    }

    /// Waits until an entity is proposed, and confirms what it has seen.
    fn confirm(&self, id: &str, entity: &str) {
        let request = self.proposed(id, entity);
        let answer = self.send(id, &to(entity, "Confirm"), json!({ "request": request }));
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(self.session(id)[entity]["confirmed"], true);
    }

    /// Makes a branch, and waits until it has begun.
    fn branch(&self, id: &str, asked: Value) -> String {
        let branched = self.send(id, "Branch.Create", asked);
        assert_eq!(branched.status, 201, "{branched:?}");
        let branch = branched.json()["events"][0]["payload"]["sessionId"].as_str().unwrap().to_owned();
        let path = format!("/api/genesis/sessions/{branch}");
        eventually("the branch begins", || {
            (self.ask("GET", &path, &Value::Null).status == 200).then_some(())
        });
        branch
    }

    /// Sends every command that is not possible now, which changes nothing, and then those that are and lead nowhere else.
    fn try_every_command(&self, id: &str) {
        let before = self.session(id);
        let possible: Vec<&str> =
            before["possible"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let (allowed, refused): (Vec<&str>, Vec<&str>) =
            COMMANDS.into_iter().partition(|name| possible.contains(&format!("{PREFIX}{name}").as_str()));
        assert_eq!(allowed.len(), possible.len(), "every one that is possible is one of G12: {possible:?}");
        for command in refused {
            let answer = self.send(id, command, sample(command));
            let said = (answer.status, answer.code());
            let at = &before["status"];
            assert_eq!(said, (409, "genesis-not-possible".to_owned()), "{command} at {at}: {answer:?}");
            let named = possible.iter().all(|name| answer.body.contains(name));
            assert!(named, "{command} at {at}: {answer:?} does not name {possible:?}");
        }
        assert_eq!(self.session(id), before, "what is refused changes nothing");
        for command in allowed.into_iter().filter(|command| sample(command) != json!({})) {
            let answer = self.send(id, command, sample(command));
            assert_eq!(answer.status, 201, "{command} at {}: {answer:?}", before["status"]);
        }
    }

    fn events_of(&self, kind: &str, id: &str) -> Value {
        self.get(&format!("/api/aggregates/{kind}/{id}/events?limit=1000"))["events"].clone()
    }

    /// The flow of a session that has ended. It holds exactly what there is by what others say: commands by their own list and by
    /// their answers, events by the aggregates of each session of the flow, and of its tasks.
    fn whole_flow(&self, id: &str, sessions: &[&str]) -> Value {
        let correlation_id = self.session(id)["correlationId"].clone();
        let path = format!("/api/flows/{}", correlation_id.as_str().unwrap());
        let flow = eventually("the flow is done", || {
            let flow = self.get(&path);
            // What was refused is in it, too.
            let waits = |command: &Value| command["status"] == "PENDING" || command["status"] == "PROCESSING";
            let has_ended = flow["tree"].to_string().contains("Genesis.Process.Ended");
            (has_ended && !flow["commands"].as_array().unwrap().iter().any(waits)).then_some(flow)
        });
        assert_eq!((&flow["whole"], flow["roots"].as_array().unwrap().len()), (&json!(true), 1), "{flow}");
        let in_tree = |kind: &str| {
            let nodes = flow["tree"].as_array().unwrap().iter().filter(|node| node["kind"] == kind);
            set(&nodes.cloned().collect(), "id")
        };

        let listed = self.get("/api/commands?limit=1000");
        assert_eq!(listed["next"], Value::Null, "all commands are on one page");
        let of_flow = listed["commands"].as_array().unwrap().iter();
        let of_flow = of_flow.filter(|command| command["correlationId"] == correlation_id).cloned().collect();
        assert_eq!(in_tree("command"), set(&of_flow, "commandId"));
        let (sent, in_flow) = (self.sent.lock().unwrap(), in_tree("command"));
        assert!(sent.iter().all(|id| in_flow.contains(id)), "{sent:?} are not all in {flow}");

        let mut events = BTreeSet::new();
        for session in sessions {
            events.extend(set(&self.events_of("genesis-session", session), "eventId"));
            events.extend(set(&self.events_of("genesis", session), "eventId"));
            events.extend(self.facts_of_tasks(session));
        }
        assert_eq!(in_tree("event"), events);
        let published = set(&self.get("/api/genesis/event-types")["eventTypes"], "type");
        let names: BTreeSet<String> =
            each(&flow["events"], "type").into_iter().map(ToOwned::to_owned).collect();
        assert!(names.is_subset(&published), "without a schema: {:?}", names.difference(&published));
        flow
    }

    /// The ids of the facts of a session's tasks: that each was asked for, and how it ended.
    fn facts_of_tasks(&self, session: &str) -> BTreeSet<String> {
        let tasks = self.get(&format!("/api/genesis/sessions/{session}/tasks"))["tasks"].clone();
        let facts = tasks.as_array().unwrap().iter().map(|task| {
            let facts = self.events_of("task", task["taskId"].as_str().unwrap());
            let end = match task["status"].as_str().unwrap() {
                "succeeded" => "Generated",
                "timeout" => "GenerationExpired",
                status => panic!("a task of {session} is {status}: {task}"),
            };
            let capability = task["type"].as_str().unwrap();
            let expected = ["GenerationRequested", end].map(|name| format!("{capability}.{name}"));
            assert_eq!(each(&facts, "type"), expected);
            set(&facts, "eventId")
        });
        facts.flatten().collect()
    }

    /// The facts of these sessions' tasks are sent on the channel of processes, and nothing is left to be sent on any.
    fn capabilities_have_their_channel(&self, sessions: &[&str]) {
        let facts: BTreeSet<String> = sessions.iter().flat_map(|id| self.facts_of_tasks(id)).collect();
        eventually("all of it is sent", || {
            let rows = self.get("/api/outbox?limit=1000")["rows"].clone();
            let rows = rows.as_array().unwrap();
            assert!(rows.len() < 1000, "all rows are on one page");
            let is_theirs = |row: &&Value| row["channel"].as_str().unwrap().ends_with(".process");
            let theirs = set(&rows.iter().filter(is_theirs).cloned().collect(), "eventId");
            assert!(facts.is_subset(&theirs), "{facts:?} {theirs:?}");
            rows.iter().all(|row| row["status"] == "SENT").then_some(())
        });
    }
}

/// A server with the model, on these URLs.
fn serve(store: &str, broker: &str, runtime: &tokio::runtime::Runtime) -> Server {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let app = axum::Router::new().route("/v1/chat/completions", post(play)).with_state(Arc::default());
    runtime.spawn(async move { axum::serve(listener, app).await });
    let key_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key_file.path(), format!("{KEY}\n")).unwrap();
    let own_name = &uuid::Uuid::new_v4().simple().to_string()[..16];
    let config = format!(
        "store = \"{store}\"\nbroker = \"{broker}\"\n[market]\nenabled = false\n[hive]\nenabled = false\n\
         [genesis]\nchannel = \"genesis{own_name}\"\n\
         [genesis.tasks]\ntime-limit = \"5s\"\nretries = [\"50ms\", \"50ms\"]\n\
         [genesis.worker]\nurl = \"http://{address}/v1\"\nmodel = \"m-1\"\nkey-file = \"{}\"\n",
        key_file.path().display(),
    );
    // The key is read at the start.
    Server::start(&[], &config)
}

fn a_whole_session(server: &Server) {
    let user = User::of(server);
    let key = [("Idempotency-Key", "begin-1")];
    let body = json!({ "userId": "user-7", "initialInput": "a ferry", "preferences": { "tone": "quiet" } });
    let first = server.ask("POST", "/api/genesis/sessions", &key, &body.to_string());
    let again = server.ask("POST", "/api/genesis/sessions", &key, &body.to_string());
    assert_eq!((first.status, &first.body), (201, &again.body));
    let begun = first.json();
    let id = begun["sessionId"].as_str().unwrap();
    assert_eq!(begun["novelId"], format!("novel-{id}"));
    assert_eq!((&begun["stage"], &begun["status"]), (&json!(0), &json!("concept")));
    let possible = ["Seed.Request", "Fail", "Branch.Create"].map(|name| format!("{PREFIX}{name}"));
    assert_eq!(begun["possible"], json!(possible));
    // What cannot be is refused, with what can.
    let refused = user.send(id, "Theme.Request", json!({}));
    assert_eq!((refused.status, refused.code().as_str()), (409, "genesis-not-possible"));
    assert!(possible.iter().all(|name| refused.body.contains(name)), "{refused:?}");
    let refused = user.send(id, "Concept.Propose", json!({ "request": 1, "draft": { "text": "mine" } }));
    assert_eq!((refused.status, refused.code().as_str()), (403, "internal-command"));
    for (command, payload, status, code) in [
        ("Theme.Sing", json!({}), 422, "genesis-invalid"),
        ("Command.Hive.Service.Refresh", json!({}), 422, "genesis-invalid"),
        ("Seed.Request", json!({ "instructions": 7 }), 422, "invalid-payload"),
    ] {
        let refused = user.send(id, command, payload);
        assert_eq!((refused.status, refused.code().as_str()), (status, code), "{refused:?}");
    }
    assert_eq!(user.send("nobody", "Seed.Request", json!({})).code(), "genesis-session-not-found");

    user.done(id, &format!("{PREFIX}Seed.Request"));
    user.confirm(id, "concept");
    user.done(id, "Stage.Complete");
    user.done(id, "Theme.Request");
    user.confirm(id, "theme");
    user.done(id, "Stage.Complete");
    // It fails twice and then succeeds; meanwhile the theme is revised.
    user.done(id, "World.Request");
    let revised = user.send(id, "Theme.Revise", json!({ "text": "darker" }));
    assert_eq!(revised.json()["events"][0]["eventType"], "Genesis.Session.Theme.Revised", "{revised:?}");
    user.confirm(id, "world");
    let tasks = user.get(&format!("/api/genesis/sessions/{id}/tasks"));
    let world = tasks["tasks"].as_array().unwrap().iter().find(|task| task["type"] == "Worldbuilder.World");
    assert_eq!((&world.unwrap()["status"], &world.unwrap()["retryCount"]), (&json!("succeeded"), &json!(2)));
    user.done(id, "Stage.Complete");
    user.done(id, "Character.Request");
    user.confirm(id, "character");
    let network = json!({ "relations": [{ "from": "Ilse", "to": "Wren", "relation": "rival" }] });
    assert_eq!(user.send(id, "CharacterNetwork.Create", network).status, 201);
    user.done(id, "Stage.Complete");
    // It never answers: the session shows that, and it is asked again.
    user.done(id, "Plot.Request");
    let open = eventually("the time-out is shown", || {
        let open = user.session(id)["openRequests"][0].clone();
        (open["state"] == "timeout").then_some(open)
    });
    assert_eq!((&open["entity"], &open["retryCount"]), (&json!("plot"), &json!(2)), "{open}");
    assert!(open["task"].is_string() && open["errorCode"] == "time-limit", "{open}");
    // A branch, from where the world was to be built.
    let branch = user.branch(id, json!({ "stage": 2 }));
    assert_eq!(user.session(&branch)["status"], "world");
    user.done(&branch, "World.Request");
    user.confirm(&branch, "world");
    let shown = user.session(&branch);
    assert_eq!((&shown["branchOf"]["sessionId"], &shown["theme"]["text"]), (&json!(id), &json!("darker")));
    user.done(id, "Plot.Request");
    user.confirm(id, "plot");
    user.done(id, "Stage.Complete");
    user.done(id, "Details.Request");
    user.confirm(id, "details");
    user.done(id, "Finish");

    let session = user.session(id);
    assert_eq!((&session["status"], &session["stage"]), (&json!("finished"), &json!(5)));
    assert_eq!(session["branches"], json!([{ "sessionId": branch, "stage": 2 }]));
    assert_eq!(session["correlationId"], shown["correlationId"], "one flow");
    let flow = user.whole_flow(id, &[id, &branch]);
    let tree = flow["tree"].as_array().unwrap();
    for name in [
        "Command.Genesis.Session.Branch.Start",
        "Genesis.Session.Theme.Revised",
        "Worldbuilder.World.GenerationRequested",
        "Plot.Structure.GenerationExpired",
        "Plot.Structure.Generated",
        "Genesis.Session.Details.Generated",
    ] {
        assert!(tree.iter().any(|node| node["name"] == name), "{name} is not in {flow}");
    }
    let listed = eventually("the list says so", || {
        let listed = user.get("/api/genesis/sessions?userId=user-7");
        let sessions = listed["sessions"].as_array().unwrap().clone();
        sessions.iter().any(|one| one["status"] == "finished").then_some(sessions)
    });
    assert_eq!(listed.len(), 2, "{listed:?}");
    // Of sessions, of their processes, and of each capability.
    let types = user.get("/api/genesis/event-types");
    assert_eq!(types["eventTypes"].as_array().unwrap().len(), 28 + 7 + 6 * 5);
    user.capabilities_have_their_channel(&[id, &branch]);
    let dead = user.get("/api/dead-letters");
    assert_eq!(dead["letters"], json!([]), "{dead}");
    assert!(!server.log().contains(KEY), "the key is in the log");
}

fn of_the_tests(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"))
}

#[test]
fn a_whole_session_on_the_embedded_default() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    a_whole_session(&serve("sqlite://towpath.db", "local:", &runtime));
}

#[cfg(feature = "kafka")]
#[test]
fn a_whole_session_on_postgres_and_kafka() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = of_the_tests("TOWPATH_TEST_POSTGRES_URL");
    let scratch = runtime.block_on(Scratch::make(&server)).expect("a scratch database");
    let server = serve(scratch.url(), &of_the_tests("TOWPATH_TEST_KAFKA_URL"), &runtime);
    a_whole_session(&server);
    drop(server);
    runtime.block_on(scratch.remove()).unwrap();
}

#[test]
fn a_whole_session_written_by_the_embedded_author() {
    let server = Server::start(&[], EMBEDDED);
    let user = User::of(&server);
    let id = &user.start();
    for entity in ENTITIES {
        user.done(id, &to(entity, "Request"));
        user.confirm(id, entity);
        if entity == "world" {
            assert_eq!(user.send(id, "Theme.Revise", json!({ "text": "darker" })).status, 201);
        }
        if entity != "details" {
            user.done(id, "Stage.Complete");
        }
    }
    let branch = &user.branch(id, json!({ "stage": 0 }));
    let process = |expected: &str| {
        eventually(&format!("the process is {expected}"), || {
            let shown = user.get(&format!("/api/aggregates/genesis/{id}"));
            (shown["state"] == expected).then_some(shown)
        })
    };
    assert_the_process_is_shown_like_an_aggregate(&user, &process("running"));
    user.done(id, "Finish");

    let session = user.session(id);
    assert_eq!((&session["status"], &session["stage"]), (&json!("finished"), &json!(5)));
    // What begins with the same is written the same.
    user.done(branch, "Seed.Request");
    user.proposed(branch, "concept");
    assert_eq!(user.session(branch)["concept"]["text"], session["concept"]["text"]);
    let flow = user.whole_flow(id, &[id, branch]);
    let ended = process("ended");
    assert_eq!(ended["possibleNext"], json!([]), "{ended}");
    let history = user.get(&format!("/api/aggregates/genesis/{id}/history"))["history"].clone();
    let steps: Vec<_> =
        history.as_array().unwrap().iter().map(|step| (&step["fromState"], &step["toState"])).collect();
    let [none, running, ended] = [Value::Null, json!("running"), json!("ended")];
    assert_eq!(steps, [(&none, &running), (&running, &ended)]);
    let in_flow = set(&flow["events"], "eventId");
    assert!(set(&history, "eventId").is_subset(&in_flow), "what changed its state is in the flow");
    user.capabilities_have_their_channel(&[id, branch]);
    assert_eq!(user.get("/api/dead-letters")["letters"], json!([]));
}

/// While it runs: its machine, the state it is in, and what can come next.
fn assert_the_process_is_shown_like_an_aggregate(user: &User<'_>, process: &Value) {
    let machines = user.get("/api/machines")["machines"].clone();
    let registered = machines.as_array().unwrap().iter().find(|one| one["kind"] == "genesis").unwrap();
    assert_eq!((&registered["commands"], registered["events"].as_array().unwrap().len()), (&json!([]), 7));
    let machine = user.get("/api/machines/genesis");
    assert_eq!(registered["machine"], machine);
    let states: Vec<_> = machine["states"]
        .as_array()
        .unwrap()
        .iter()
        .map(|state| (&state["name"], &state["terminal"]))
        .collect();
    assert_eq!(states, [(&json!("running"), &json!(false)), (&json!("ended"), &json!(true))]);
    let transitions = json!([
        { "from": null, "event": "Genesis.Process.Started", "to": "running" },
        { "from": "running", "event": "Genesis.Process.Ended", "to": "ended" },
    ]);
    assert_eq!(machine["transitions"], transitions);
    let drawn = user.server.get("/api/machines/genesis?format=mermaid", &[]);
    assert!(drawn.body.contains("running --> ended"), "{drawn:?}");
    assert_eq!(process["possibleNext"], json!([{ "event": "Genesis.Process.Ended", "to": "ended" }]));
    // Six requests, six answers, and nothing that waits.
    assert_eq!((&process["version"], &process["value"]["open"]), (&json!(13), &Value::Null), "{process}");
}

#[test]
fn every_command_in_every_stage_is_done_or_refused_with_what_is_possible() {
    let server = Server::start(&[], EMBEDDED);
    let user = User::of(&server);
    let id = &user.start();
    for entity in ENTITIES {
        // Nothing is asked for yet; the stage can be left by a failure.
        user.try_every_command(id);
        let branch = &user.branch(id, json!({}));
        user.done(branch, "Fail");
        if entity == "world" {
            assert_eq!(user.session(branch)["possible"], json!([format!("{PREFIX}Branch.Create")]));
            user.try_every_command(branch);
            user.branch(branch, json!({}));
        }
        user.done(id, &to(entity, "Request"));
        user.proposed(id, entity);
        user.try_every_command(id);
        user.done(id, &to(entity, "Request"));
        user.confirm(id, entity);
        user.try_every_command(id);
        user.done(id, "Stage.Complete");
    }
    // The last stage is complete, and it is not finished yet.
    user.try_every_command(id);
    user.done(id, "Finish");
    let session = user.session(id);
    assert_eq!(session["possible"], json!([format!("{PREFIX}Branch.Create")]), "{session}");
    user.try_every_command(id);
    user.branch(id, json!({}));
}

#[test]
fn workers_elsewhere_wait_for_tasks_and_the_first_answer_wins() {
    let config = "[market]\nenabled = false\n[hive]\nenabled = false\n[genesis.worker]\nkind = \"none\"\n\
        [genesis.tasks]\nretries = [\"50ms\"]\n";
    let server = Server::start(&[], config);
    let user = User::of(&server);
    let id = user.start();
    let waits = "/api/genesis/tasks?state=queued&wait=20s";
    assert_eq!(user.get("/api/genesis/tasks?state=queued")["tasks"], json!([]));
    // Who waits is answered when there is something to do.
    let listed = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| user.get(waits));
        user.done(&id, "Seed.Request");
        waiting.join().unwrap()
    });
    let task = listed["tasks"][0].clone();
    assert_eq!((&task["type"], &task["status"]), (&json!("Outliner.Concept"), &json!("queued")), "{listed}");
    assert_eq!(task["payload"]["initialInput"], "a ferry that never lands");
    let path = format!("/api/genesis/tasks/{}", task["taskId"].as_str().unwrap());
    let failure = |retry: bool| {
        let body = json!({ "code": "no-idea", "message": "nothing came to mind", "retry": retry });
        let failed = user.ask("POST", &format!("{path}/failure"), &body);
        assert_eq!(failed.status, 200, "{failed:?}");
        failed.json()
    };
    assert_eq!(failure(true)["retryCount"], 1);
    user.get(waits);
    assert_eq!(failure(false)["status"], "failed");
    let open = user.session(&id)["openRequests"][0].clone();
    assert_eq!((&open["state"], &open["errorCode"]), (&json!("failed"), &json!("no-idea")), "{open}");
    // By hand once more, under its session and no other.
    let task_id = task["taskId"].as_str().unwrap();
    let other = user.start();
    let retry =
        |id: &str| user.ask("POST", &format!("/api/genesis/sessions/{id}/tasks/{task_id}/retry"), &json!({}));
    assert_eq!(retry(&other).status, 404);
    assert_eq!(retry(&id).status, 200);
    let result = |result: Value| user.ask("POST", &format!("{path}/result"), &json!({ "result": result }));
    assert_eq!(result(json!(7)).code(), "genesis-invalid");
    assert_eq!(result(json!({ "text": " " })).code(), "genesis-invalid");
    assert_eq!(result(json!({ "title": "A", "text": "B" })).status, 200);
    assert_eq!(result(json!({ "title": "A", "text": "C" })).status, 409);
    user.confirm(&id, "concept");
    assert_eq!(user.session(&id)["concept"]["text"], "B");
    for (method, path) in [
        ("GET", "/api/genesis/sessions/nobody".to_owned()),
        ("GET", "/api/genesis/sessions/nobody/tasks".to_owned()),
        ("POST", format!("/api/genesis/tasks/{}/failure", uuid::Uuid::now_v7())),
        ("POST", "/api/genesis/sessions/nobody/tasks/1/retry".to_owned()),
    ] {
        let body = if method == "GET" { Value::Null } else { json!({ "code": "x" }) };
        assert_eq!(user.ask(method, &path, &body).status, 404, "{path}");
    }
    let whole = user.get("/api/genesis/tasks?state=queued&wait=0s");
    assert_eq!(whole["tasks"], json!([]));
    assert_eq!(user.ask("GET", "/api/genesis/tasks?state=failed", &Value::Null).status, 400);
    drop(server);
    let server = Server::start(&[], "[genesis]\nenabled = false\n");
    let user = User::of(&server);
    assert_eq!(user.ask("GET", "/api/genesis/sessions", &Value::Null).code(), "genesis-disabled");
    user.get("/api/genesis/event-types");
}
