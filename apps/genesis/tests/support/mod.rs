//! What genesis' tests share: a database of the test's own, an author that does as it is told, and a session's user.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use towpath::flow::FlowReport;
use towpath::ports::store::Flow;
use towpath::{Builder, HandlerError, Receipt, Scratch, SendError, Towpath};
use towpath_genesis::author::{Author, EmbeddedAuthor};
use towpath_genesis::capability::CapabilityPolicy;
use towpath_genesis::draft::{Brief, Draft};
use towpath_genesis::process::Writing;
use towpath_genesis::session::{Session, SessionCommand};
use towpath_genesis::stage::Stage;
use towpath_genesis::{Genesis, GenesisSettings};

/// Makes a test of each function on every database.
#[macro_export]
macro_rules! on_every_database {
    ($($test:ident),+ $(,)?) => {
        mod sqlite { $(#[tokio::test] async fn $test() { super::$test("sqlite").await; })+ }
        mod postgres { $(#[tokio::test] async fn $test() { super::$test("postgres").await; })+ }
        mod mariadb { $(#[tokio::test] async fn $test() { super::$test("mariadb").await; })+ }
    };
}

/// How long something is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an author does next; then it writes as the embedded one does.
pub enum Does {
    Fails(&'static str),
    /// It says nothing, ever.
    Hangs,
}

#[derive(Clone, Default)]
pub struct Scripted(pub Arc<Mutex<VecDeque<Does>>>);

#[async_trait]
impl Author for Scripted {
    async fn write(&self, brief: &Brief) -> Result<Draft, HandlerError> {
        let next = self.0.lock().unwrap().pop_front();
        match next {
            Some(Does::Fails(code)) => Err(HandlerError::transient(code, "it was told to fail")),
            Some(Does::Hangs) => std::future::pending().await,
            None => EmbeddedAuthor.write(brief).await,
        }
    }
}

/// A genesis that runs.
pub struct Running {
    pub app: Towpath,
    pub genesis: Genesis,
    pub script: Scripted,
    scratch: Option<Scratch>,
}

impl Running {
    pub async fn on(database: &str, policy: CapabilityPolicy, has_author: bool) -> Self {
        Self::with(database, policy, has_author, |builder| builder).await
    }

    /// The same with what else is to run beside genesis.
    pub async fn with(
        database: &str,
        policy: CapabilityPolicy,
        has_author: bool,
        more: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        // `TOWPATH_LOG=info` shows what went on when a test fails.
        if let Ok(filter) = std::env::var("TOWPATH_LOG") {
            let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        }
        let server = match database {
            "sqlite" => format!("sqlite://{}", std::env::temp_dir().join("towpath.db").display()),
            "postgres" => std::env::var("TOWPATH_TEST_POSTGRES_URL").expect("TOWPATH_TEST_POSTGRES_URL"),
            _ => std::env::var("TOWPATH_TEST_MYSQL_URL").expect("TOWPATH_TEST_MYSQL_URL"),
        };
        let scratch = Scratch::make(&server).await.expect("a scratch database");
        let script = Scripted::default();
        let author: Option<Arc<dyn Author>> = has_author.then(|| Arc::new(script.clone()) as _);
        let settings = GenesisSettings { capabilities: policy, ..GenesisSettings::default() };
        let genesis = Genesis::new(settings, author);
        let builder =
            Towpath::builder().store(scratch.url()).broker("local:").scan(Duration::from_millis(50));
        let app = more(genesis.install(builder)).start().await.expect("start");
        Self { app, genesis, script, scratch: Some(scratch) }
    }

    pub async fn start(&self, id: &str) {
        let start = json!({ "userId": "user-7", "initialInput": "a ferry that never lands" });
        self.app.send_named(SessionCommand::START, id, start.to_string()).await.expect("started");
    }

    /// Sends a command as the server does: in the session's flow.
    pub async fn send(&self, id: &str, name: &str, payload: Value) -> Result<Receipt, SendError> {
        let begun = self.genesis.fact(&self.app, id, 1).await.unwrap().expect("it has begun").envelope;
        let name = format!("{}{name}", SessionCommand::PREFIX);
        self.app.send_named(name, id, payload.to_string()).because_of(&begun).await
    }

    pub async fn done(&self, id: &str, name: &str) {
        self.send(id, name, json!({})).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub async fn session(&self, id: &str) -> Session {
        self.app.load::<Session>(id).await.unwrap().expect("there is a session").value
    }

    pub async fn process(&self, id: &str) -> Writing {
        self.app.load::<Writing>(id).await.unwrap().expect("there is a process").value
    }

    /// Waits until something is proposed.
    pub async fn proposed(&self, id: &str, entity: Stage) -> Draft {
        eventually(&format!("{} is proposed", entity.as_str()), || async {
            let entry = self.session(id).await.entries.remove(&entity)?;
            entry.proposal.filter(|_| entry.open.is_none()).map(|proposal| proposal.draft)
        })
        .await
    }

    /// From the beginning of a stage to that of the next.
    pub async fn through(&self, id: &str, entity: Stage) -> Draft {
        self.done(id, request(entity)).await;
        let draft = self.proposed(id, entity).await;
        self.done(id, confirm(entity)).await;
        self.done(id, if entity == Stage::Details { "Finish" } else { "Stage.Complete" }).await;
        draft
    }

    pub async fn flow(&self, id: &str) -> (Flow, FlowReport) {
        let begun = self.genesis.fact(&self.app, id, 1).await.unwrap().unwrap().envelope;
        self.app.flow(&begun.correlation_id, &[]).await.unwrap()
    }

    pub async fn stop(mut self) {
        self.app.stop().await;
        self.scratch.take().unwrap().remove().await.unwrap();
    }
}

/// Tried again soon.
pub fn soon() -> CapabilityPolicy {
    let retries = vec![Duration::from_millis(20); 3];
    CapabilityPolicy { retries, ..CapabilityPolicy::default() }
}

pub fn request(entity: Stage) -> &'static str {
    match entity {
        Stage::Concept => "Seed.Request",
        Stage::Theme => "Theme.Request",
        Stage::World => "World.Request",
        Stage::Character => "Character.Request",
        Stage::Plot => "Plot.Request",
        Stage::Details => "Details.Request",
    }
}

pub fn confirm(entity: Stage) -> &'static str {
    match entity {
        Stage::Concept => "Concept.Confirm",
        Stage::Theme => "Theme.Confirm",
        Stage::World => "World.Confirm",
        Stage::Character => "Character.Confirm",
        Stage::Plot => "Plot.Confirm",
        Stage::Details => "Details.Confirm",
    }
}

/// Waits until a question is answered with `Some`.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come about"),
    }
}
