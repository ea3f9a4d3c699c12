//! The work that sessions hand to workers: a sort of task per stage, with the names of G12.

use std::time::Duration;

use schemars::{JsonSchema, Schema, schema_for};
use serde_json::Value;
use towpath::retry::RetryPolicy;
use towpath::{TaskFact, TaskType};

use crate::draft::Brief;
use crate::stage::Stage;

/// How capabilities are done.
#[derive(Debug, Clone, PartialEq)]
pub struct CapabilityPolicy {
    /// How long one attempt may take.
    pub time_limit: Duration,
    /// The pauses before further attempts.
    pub retries: Vec<Duration>,
    /// How long a worker may be silent before another takes over.
    pub heartbeat: Duration,
}

impl Default for CapabilityPolicy {
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(120),
            retries: [1, 5, 15].map(Duration::from_secs).to_vec(),
            heartbeat: Duration::from_secs(30),
        }
    }
}

/// The name of the capability that writes a stage's entity.
pub fn name_of(entity: Stage) -> &'static str {
    match entity {
        Stage::Concept => "Outliner.Concept",
        Stage::Theme => "Outliner.Theme",
        Stage::World => "Worldbuilder.World",
        Stage::Character => "Character.Design",
        Stage::Plot => "Plot.Structure",
        Stage::Details => "Writer.Content",
    }
}

/// What a capability of this name writes.
pub fn entity_of(task_type: &str) -> Option<Stage> {
    Stage::ALL.into_iter().find(|stage| name_of(*stage) == task_type)
}

/// The sort of task that writes an entity. Its facts are named after it.
pub fn task_type(entity: Stage, policy: &CapabilityPolicy) -> TaskType {
    let name = name_of(entity);
    TaskType::named(name)
        .retries(RetryPolicy::Fixed(policy.retries.clone()))
        .time_limit(policy.time_limit)
        .heartbeat(policy.heartbeat)
        .requested(format!("{name}.GenerationRequested"))
        .answered(format!("{name}.Generated"))
        .failed(format!("{name}.GenerationFailed"))
        .fact(TaskFact::TimedOut, format!("{name}.GenerationExpired"))
        .fact(TaskFact::Canceled, format!("{name}.GenerationCanceled"))
}

/// Every fact of a capability with the JSON Schema of its payload.
pub fn schemas() -> Vec<(String, Schema)> {
    let facts = [
        (TaskFact::Requested, schema_for!(GenerationRequested)),
        (TaskFact::Answered, schema_for!(Generated)),
        (TaskFact::Failed, schema_for!(GenerationFailed)),
        (TaskFact::TimedOut, schema_for!(GenerationFailed)),
        (TaskFact::Canceled, schema_for!(GenerationCanceled)),
    ];
    let policy = CapabilityPolicy::default();
    let of = |entity| {
        let declared = task_type(entity, &policy);
        let named = |(fact, schema): &(TaskFact, Schema)| {
            declared.event_type(*fact).map(|name| (name.as_str().to_owned(), schema.clone()))
        };
        facts.iter().filter_map(named).collect::<Vec<_>>()
    };
    Stage::ALL.into_iter().flat_map(of).collect()
}

/// What every fact of a capability says of its task. Towpath itself writes these facts (`towpath::TaskSaid`), of which only
/// an application knows what the worker is told: so the payloads stand here once more, and a test holds facts against them.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "it is there for its schema")]
struct OfTask {
    /// Which task.
    #[schemars(extend("format" = "uuid"))]
    task_id: String,
    /// The capability.
    task_type: String,
    /// Which request it answers, within its subject: `concept/3`.
    key: Option<String>,
    /// What it is for: the process of a session.
    subject: Option<Subject>,
}

/// An aggregate.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it is there for its schema")]
struct Subject {
    /// What sort of aggregate.
    kind: String,
    /// Which one.
    id: String,
}

/// `<Capability>.GenerationRequested`
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it is there for its schema")]
struct GenerationRequested {
    #[serde(flatten)]
    of: OfTask,
    /// What the writer gets.
    payload: Brief,
}

/// `<Capability>.Generated`
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it is there for its schema")]
struct Generated {
    #[serde(flatten)]
    of: OfTask,
    /// What was written: `{title, text}`. A worker elsewhere may have answered anything; what is no draft is not proposed.
    result: Option<Value>,
}

/// `<Capability>.GenerationFailed`, `<Capability>.GenerationExpired`
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "it is there for its schema")]
struct GenerationFailed {
    #[serde(flatten)]
    of: OfTask,
    /// A stable code.
    reason: String,
    /// A text for people.
    message: String,
    /// How often it was tried again.
    retry_count: u64,
}

/// `<Capability>.GenerationCanceled`
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it is there for its schema")]
struct GenerationCanceled {
    #[serde(flatten)]
    of: OfTask,
    /// Why it was called off: a stable code.
    reason: Option<String>,
}
