//! Flows over HTTP: everything with one correlation id, and what an id belongs to.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use towpath::flow::{BrokenLink, FlowKind, FlowNode};
use towpath::ids::CorrelationId;
use towpath::{FoundAs, Towpath};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::commands::CommandBody as Command;
use super::extract::{Path, Query};
use super::memory::Memory;
use super::problem::Problem;
use super::wire::{Event, Sight, one_of};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(flow)).routes(routes!(trace))
}

/// Everything that belongs to a flow
///
/// Its commands and events in the order of time, how they caused each other, and whether that chain is whole.
#[utoipa::path(
    get,
    path = "/api/flows/{correlationId}",
    tag = "flows",
    operation_id = "showFlow",
    params(("correlationId" = String, Path, description = "The flow's id.")),
    responses(
        (status = 200, description = "The flow.", body = FlowBody),
        (status = 404, description = "Nothing has this correlation id."),
    )
)]
async fn flow(
    State(app): State<Towpath>,
    caller: Caller,
    memory: Memory,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = CorrelationId::new(id).map_err(|error| Problem::not_found(error.to_string()))?;
    let room = memory.room(LARGEST).await?;
    let (flow, report) = app.flow(&id, &[]).await?;
    if flow.commands.is_empty() && flow.events.is_empty() {
        return Err(Problem::not_found(format!("there is no flow {id}")));
    }
    let nodes = towpath::arranged(&flow);
    let sight = Sight::of(&app, caller.role);
    let shown = FlowBody {
        correlation_id: &id,
        whole: (!flow.truncated).then_some(report.whole),
        truncated: flow.truncated,
        broken: report.broken.iter().map(Broken::from).collect(),
        orphans: &report.orphans,
        roots: &report.roots,
        cycles: &report.cycles,
        tree: nodes.iter().map(Node::from).collect(),
        commands: flow.commands.iter().map(|command| Command::seen(command, &sight)).collect(),
        events: flow.events.iter().map(|event| Event::seen(event, &sight)).collect(),
        payloads_up_to: flow.payloads_up_to,
    };
    room.json(&shown)
}

/// What a flow takes at most, as it is read and as it is written: its payloads are bounded by the store.
const LARGEST: u64 = 32 << 20;

/// A flow.
#[derive(Serialize, ToSchema)]
#[schema(as = Flow)]
#[serde(rename_all = "camelCase")]
struct FlowBody<'a> {
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
    /// Whether the chain of causes is whole: nothing broken, no orphans, no cycles. Null where the flow is truncated: a
    /// part of it does not tell.
    whole: Option<bool>,
    /// Whether there are more than the 10,000 commands or 10,000 events that are shown at most. What is broken and what
    /// are orphans is told of the shown part.
    truncated: bool,
    /// What names a cause that is not in the flow.
    broken: Vec<Broken<'a>>,
    /// Events that name no cause.
    orphans: &'a [String],
    /// Where it begins.
    roots: &'a [String],
    /// What caused each other in a circle.
    cycles: &'a [Vec<String>],
    /// Everything once, each directly followed by what it caused.
    tree: Vec<Node<'a>>,
    /// In the order of time.
    commands: Vec<Command<'a>>,
    /// In the order of time.
    events: Vec<Event<'a>>,
    /// Payloads with more bytes than this are left out, and are null here: the flow would be too large. Null where all
    /// of them are there.
    payloads_up_to: Option<u64>,
}

/// Something whose cause is not in the flow.
#[derive(Serialize, ToSchema)]
#[schema(as = BrokenLink)]
#[serde(rename_all = "camelCase")]
struct Broken<'a> {
    #[schema(schema_with = node_kind)]
    kind: FlowKind,
    id: &'a str,
    missing_causation_id: &'a str,
}

impl<'a> From<&'a BrokenLink> for Broken<'a> {
    fn from(link: &'a BrokenLink) -> Self {
        Self { kind: link.kind, id: &link.id, missing_causation_id: &link.missing_causation_id }
    }
}

/// A line of the tree.
#[derive(Serialize, ToSchema)]
#[schema(as = FlowNode)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    #[schema(schema_with = node_kind)]
    kind: FlowKind,
    id: &'a str,
    /// The command's or event's type.
    name: &'a str,
    /// How many causes lie above it.
    depth: usize,
    /// Which lines are what it caused.
    children: &'a [usize],
}

impl<'a> From<&'a FlowNode> for Node<'a> {
    fn from(node: &'a FlowNode) -> Self {
        Self { kind: node.kind, id: &node.id, name: &node.name, depth: node.depth, children: &node.children }
    }
}

fn node_kind() -> utoipa::openapi::schema::Object {
    one_of(["command", "event"])
}

/// What is looked for.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Looked {
    /// A command's, an event's, a flow's or an aggregate's id. An aggregate may be written KIND/ID.
    id: String,
}

/// What an id is the id of, and the flows it belongs to
#[utoipa::path(
    get,
    path = "/api/trace",
    tag = "flows",
    operation_id = "trace",
    params(Looked),
    responses(
        (status = 200, description = "What it is.", body = Traced),
        (status = 404, description = "Nothing has this id."),
    )
)]
async fn trace(State(app): State<Towpath>, Query(looked): Query<Looked>) -> Result<Response, Problem> {
    let id = looked.id;
    // No identity has a control character, and not every database can be asked for one.
    let traced = if id.chars().any(char::is_control) { None } else { app.trace(&id).await? };
    let traced = traced.ok_or_else(|| Problem::not_found(format!("nothing has the id {id}")))?;
    let found_as = match traced.found_as {
        FoundAs::Command => "command",
        FoundAs::Event => "event",
        FoundAs::Flow => "flow",
        FoundAs::Aggregate => "aggregate",
    };
    Ok(Json(Traced { id: &id, found_as, correlation_ids: &traced.flows }).into_response())
}

/// What an id is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Traced<'a> {
    id: &'a str,
    #[schema(schema_with = found_as)]
    found_as: &'static str,
    /// The flows it belongs to, the last first.
    #[schema(value_type = Vec<String>)]
    correlation_ids: &'a [CorrelationId],
}

fn found_as() -> utoipa::openapi::schema::Object {
    one_of(["command", "event", "flow", "aggregate"])
}
