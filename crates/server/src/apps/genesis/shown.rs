//! A session as it is shown.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use towpath::lifecycle::TaskState;
use towpath::{Task, View};
use towpath_genesis::SessionRow;
use towpath_genesis::draft::{Draft, Relation};
use towpath_genesis::process::GenerationFailed;
use towpath_genesis::session::{Session, Status};
use towpath_genesis::stage::Stage;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

use crate::http::wire::one_of;

/// What is known of the work for a session.
#[derive(Default)]
pub(super) struct Work {
    /// Its tasks, the last first.
    pub(super) tasks: Vec<Task>,
    /// Why the open request has no answer.
    pub(super) failure: Option<GenerationFailed>,
}

/// A session as it is now.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisSession)]
pub(super) struct SessionBody {
    session_id: String,
    novel_id: String,
    user_id: String,
    /// 0 to 5: concept, theme, world, character, plot, details.
    #[schema(minimum = 0, maximum = 5)]
    stage: u8,
    #[schema(schema_with = status)]
    status: &'static str,
    /// Why it failed: a code.
    status_reason: Option<String>,
    /// The same as a text for people.
    status_message: Option<String>,
    version: u64,
    initial_input: String,
    #[schema(value_type = Object)]
    preferences: Map<String, Value>,
    concept: Option<EntityBody>,
    theme: Option<EntityBody>,
    world: Option<EntityBody>,
    character: Option<EntityBody>,
    /// Who is what to whom.
    #[schema(value_type = Option<Vec<Object>>)]
    character_network: Option<Vec<Relation>>,
    plot: Option<EntityBody>,
    details: Option<EntityBody>,
    /// What waits for its answer, or has got none.
    open_requests: Vec<OpenRequest>,
    /// What it is a branch of.
    branch_of: Option<BranchOfBody>,
    /// What was made of it.
    branches: Vec<BranchBody>,
    /// The flow that all of it belongs to.
    correlation_id: Option<String>,
    /// The commands that can be sent now.
    possible: Vec<&'static str>,
}

/// An entity: what was proposed last, or what holds. There is none while it is written for the first time.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisEntity)]
pub(super) struct EntityBody {
    /// Whether it is confirmed; what is not is a proposal.
    confirmed: bool,
    /// What holds, or what is proposed.
    title: String,
    text: String,
    /// The request that the proposal answers: what a confirmation may name.
    request: Option<u64>,
}

/// A request without an answer.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisOpenRequest)]
pub(super) struct OpenRequest {
    #[schema(schema_with = entity)]
    entity: &'static str,
    request: u64,
    /// The task that is to answer it; null for the moment before there is one.
    task: Option<String>,
    /// The task's state.
    state: &'static str,
    retry_count: u64,
    /// Why its last attempt failed: a code.
    error_code: Option<String>,
    /// The same as a text for people.
    error_message: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisBranchOf)]
struct BranchOfBody {
    session_id: String,
    version: u64,
    stage: u8,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisBranch)]
struct BranchBody {
    session_id: String,
    stage: u8,
}

/// A session in a list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisSessionListed)]
pub(super) struct SessionLine {
    session_id: String,
    novel_id: String,
    user_id: String,
    #[schema(minimum = 0, maximum = 5)]
    stage: u64,
    #[schema(schema_with = status)]
    status: String,
    version: u64,
    branch_of: Option<String>,
    correlation_id: Option<String>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

pub(super) fn status() -> utoipa::openapi::schema::Object {
    one_of(Status::all().map(Status::as_str))
}

pub(super) fn initial_input() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(16384));
    OneOfBuilder::new().item(text).item(ObjectBuilder::new().schema_type(Type::Object)).into()
}

pub(super) fn entity() -> utoipa::openapi::schema::Object {
    one_of(Stage::ALL.map(Stage::as_str))
}

impl SessionBody {
    /// A session, the flow that it belongs to, and what is known of its work.
    pub(super) fn of(
        session_id: &str,
        view: View<Session>,
        correlation_id: Option<String>,
        work: &Work,
    ) -> Self {
        let (session, version) = (view.value, view.version);
        let open_requests = session.entries.iter().filter_map(|(entity, entry)| {
            let request = entry.open?;
            Some(OpenRequest::of(*entity, request, work))
        });
        let (open_requests, possible) = (open_requests.collect(), session.possible());
        let mut entries = session.entries;
        let mut entity = |of: Stage| entries.remove(&of).and_then(EntityBody::of);
        Self {
            session_id: session_id.to_owned(),
            novel_id: session.novel_id.unwrap_or_else(|| session_id.to_owned()),
            user_id: session.user_id,
            stage: session.stage.number(),
            status: session.status.map_or("", Status::as_str),
            status_reason: session.failure.as_ref().map(|failed| failed.reason.clone()),
            status_message: session.failure.and_then(|failed| failed.message),
            version,
            initial_input: session.initial_input,
            preferences: session.preferences,
            concept: entity(Stage::Concept),
            theme: entity(Stage::Theme),
            world: entity(Stage::World),
            character: entity(Stage::Character),
            character_network: session.network,
            plot: entity(Stage::Plot),
            details: entity(Stage::Details),
            open_requests,
            branch_of: session.branch_of.map(|of| BranchOfBody {
                session_id: of.session_id,
                version: of.version,
                stage: of.stage.number(),
            }),
            branches: session
                .branches
                .into_iter()
                .map(|branch| BranchBody { session_id: branch.session_id, stage: branch.stage.number() })
                .collect(),
            correlation_id,
            possible,
        }
    }
}

impl EntityBody {
    fn of(entry: towpath_genesis::session::Entry) -> Option<Self> {
        let request = entry.proposal.as_ref().map(|proposal| proposal.request);
        let confirmed = entry.confirmed.is_some();
        let Draft { title, text } = entry.confirmed.or(entry.proposal.map(|proposal| proposal.draft))?;
        Some(Self { confirmed, title, text, request })
    }
}

impl OpenRequest {
    fn of(entity: Stage, request: u64, work: &Work) -> Self {
        let task = work.tasks.iter().find(|task| towpath_genesis::answers(task, entity, request));
        // A task may be done and its answer of no use, or be cleaned away by now: the process knows what came of it.
        let ended = |task: &Task| task.status == TaskState::Succeeded;
        let failure = work.failure.as_ref().filter(|failure| failure.request == request);
        let failure = failure.filter(|_| task.is_none_or(ended));
        let state = if failure.is_some() { TaskState::Failed } else { TaskState::Pending };
        let (error_code, error_message) = match failure {
            Some(failure) => (Some(failure.reason.clone()), Some(failure.message.clone())),
            None => {
                task.map(|task| (task.error_code.clone(), task.error_message.clone())).unwrap_or_default()
            }
        };
        Self {
            entity: entity.as_str(),
            request,
            task: task.map(|task| task.task.task_id.to_string()),
            state: task.filter(|_| failure.is_none()).map_or(state, |task| task.status).as_str(),
            retry_count: task.map_or(0, |task| task.retry_count),
            error_code,
            error_message,
        }
    }
}

impl SessionLine {
    pub(super) fn of(row: SessionRow) -> Self {
        Self {
            novel_id: row.novel_id.unwrap_or_else(|| row.session_id.clone()),
            session_id: row.session_id,
            user_id: row.user_id,
            stage: row.stage,
            status: row.status,
            version: row.version,
            branch_of: row.branch_of,
            correlation_id: row.correlation_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}
