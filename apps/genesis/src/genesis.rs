//! Genesis as a part of a Towpath: its aggregate, channels, consumers, table and workers, put together.

use std::sync::Arc;
use std::time::Duration;

use towpath::ids::AggregateKey;
use towpath::ports::store::StoreResult;
use towpath::tables::{Listing, Page};
use towpath::{
    Aggregate as _, Application, Builder, Channel, ChannelChain as _, ChannelPolicy, Consumer, Event as _,
    RecordedEvent, SendError, SqlStore, Task, TaskError, TaskFilter, Towpath, View,
};

use crate::author::{Author, CapabilityWorker};
use crate::branches;
use crate::capability::{CapabilityPolicy, name_of, task_type};
use crate::process::{GenerationFailed, Writing, WritingInput, subject};
use crate::session::{Session, SessionEvent, Status};
use crate::stage::Stage;
use crate::views::{self, SessionRow, TABLES};

/// How genesis works.
#[derive(Debug, Clone, PartialEq)]
pub struct GenesisSettings {
    /// What its channels are called, and so its exchanges or topics.
    pub channel: String,
    /// How its facts are published.
    pub publishing: ChannelPolicy,
    /// How capabilities are done.
    pub capabilities: CapabilityPolicy,
    /// How many of each capability are done at a time in this process.
    pub concurrency: u32,
    /// How long a worker elsewhere that waits for work is kept at most.
    pub wait_at_most: Duration,
}

impl Default for GenesisSettings {
    fn default() -> Self {
        Self {
            channel: "genesis".to_owned(),
            publishing: ChannelPolicy::default(),
            capabilities: CapabilityPolicy::default(),
            concurrency: 4,
            wait_at_most: Duration::from_secs(20),
        }
    }
}

/// Genesis, to be made part of a Towpath.
#[derive(Clone)]
pub struct Genesis {
    settings: GenesisSettings,
    author: Option<Arc<dyn Author>>,
}

impl Application for Genesis {
    const NAME: &'static str = "genesis";

    fn install(&self, builder: Builder) -> Builder {
        Genesis::install(self, builder)
    }
}

impl Genesis {
    /// With an author for what is to be written; without one, workers outside of this process answer.
    pub fn new(settings: GenesisSettings, author: Option<Arc<dyn Author>>) -> Self {
        Self { settings, author }
    }

    /// How it works.
    pub fn settings(&self) -> &GenesisSettings {
        &self.settings
    }

    /// What its facts go out on: those of sessions; and what its processes take of them, with all that capabilities say.
    pub fn channels(&self) -> [String; 2] {
        let facts = &self.settings.channel;
        [facts.clone(), format!("{facts}.process")]
    }

    /// Adds everything that genesis is made of.
    pub fn install(&self, builder: Builder) -> Builder {
        let GenesisSettings { publishing, capabilities: policy, concurrency, .. } = &self.settings;
        let [facts, process] = self.channels();
        let of_sessions = vec!["Genesis.Session.*".to_owned()];
        // Somebody takes what is on it: of a channel that nobody takes from, rows would be kept for ever.
        let of_capabilities = Stage::ALL.map(|stage| format!("{}.*", name_of(stage)));
        let taken = WritingInput::NAMES.iter().map(|name| (*name).to_owned()).chain(of_capabilities);
        let channels = [(&facts, of_sessions), (&process, taken.collect())];
        let builder = channels.into_iter().fold(builder, |builder, (name, event_types)| {
            let event_types = event_types.iter().map(String::as_str);
            builder.channel(Channel::named(name, event_types).with(publishing.clone()))
        });
        let builder = builder
            .aggregate::<Session>()
            .begins_flow(SessionEvent::STARTED)
            .tables(&TABLES)
            .projections(views::projections(&facts))
            .consumer(branches::consumer(&facts))
            .process_from::<Writing>(Consumer::of(process).in_order());
        Stage::ALL.into_iter().fold(builder, |builder, entity| match &self.author {
            Some(author) => {
                let worker = CapabilityWorker { entity, author: Arc::clone(author), policy: policy.clone() };
                builder.worker(worker, *concurrency)
            }
            None => builder.task_type(task_type(entity, policy)),
        })
    }

    /// A session as it is now, from its own facts.
    pub async fn session(&self, app: &Towpath, session_id: &str) -> Result<Option<View<Session>>, SendError> {
        app.load::<Session>(session_id).await
    }

    /// The fact of a session that made this version of it: its flow is that of all.
    pub async fn fact(
        &self,
        app: &Towpath,
        session_id: &str,
        version: u64,
    ) -> Result<Option<RecordedEvent>, SendError> {
        let key = AggregateKey::new(Session::KIND, session_id)?;
        let facts = app.events_of(&key, version.saturating_sub(1), 1).await.map_err(SendError::Store)?;
        Ok(facts.into_iter().next())
    }

    /// The tasks of a session, the last first, without payloads.
    pub async fn tasks(&self, app: &Towpath, session_id: &str, limit: u32) -> Result<Vec<Task>, SendError> {
        let filter = TaskFilter { subject: Some(subject(session_id)?), ..TaskFilter::default() };
        app.tasks(&filter, None, limit).await.map_err(SendError::Store)
    }

    /// Why the open request of a session has no answer, as far as its process knows.
    pub async fn failure(
        &self,
        app: &Towpath,
        session_id: &str,
    ) -> Result<Option<GenerationFailed>, SendError> {
        Ok(app.load::<Writing>(session_id).await?.and_then(|process| process.value.failure))
    }

    /// Tasks of capabilities that may be taken, without payloads: so many of each at most. Where there is none it is waited for one.
    pub async fn waiting_tasks(
        &self,
        app: &Towpath,
        limit: u32,
        wait: Duration,
    ) -> Result<Vec<Task>, TaskError> {
        app.waiting_tasks(&Stage::ALL.map(name_of), limit, wait).await
    }

    /// Sessions, by id, behind one; a moment behind their facts.
    pub async fn sessions(
        &self,
        store: &SqlStore,
        after: &str,
        status: Option<Status>,
        user_id: Option<&str>,
        limit: u32,
    ) -> StoreResult<Page<SessionRow>> {
        let listing = Listing::by("session_id", limit).only("status", status.map(Status::as_str));
        store.page("genesis.sessions", listing.only("user_id", user_id).behind(Some(after))).await
    }
}
