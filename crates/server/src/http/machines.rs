//! State machines over HTTP: as data, and drawn.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use towpath::Towpath;
use towpath::machine::CheckedMachine;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::extract::{Path, Query};
use super::problem::Problem;
use super::wire::one_of;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show))
}

/// The aggregates that are registered here, with their machines
#[utoipa::path(
    get,
    path = "/api/machines",
    tag = "machines",
    operation_id = "listMachines",
    responses((status = 200, description = "The machines.", body = MachineList))
)]
async fn list(State(app): State<Towpath>) -> Response {
    let aggregates = app.registry().deciders().map(|decider| Registered {
        kind: decider.kind().as_str(),
        commands: decider.commands().iter().map(|command| command.as_str()).collect(),
        events: decider.events().iter().map(|event| event.as_str()).collect(),
        machine: decider.machine().map(MachineShown::from),
    });
    let entities = app.registry().entities().map(|entity| Registered {
        kind: entity.kind().as_str(),
        commands: Vec::new(),
        events: entity.events().iter().map(|event| event.as_str()).collect(),
        machine: Some(entity.machine().into()),
    });
    let mut machines: Vec<_> = aggregates.chain(entities).collect();
    machines.sort_by_key(|registered| registered.kind);
    Json(MachineList { machines }).into_response()
}

/// How a machine is to be shown.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct As {
    /// As data, as a Mermaid diagram, or drawn; as data if nothing is said.
    #[serde(default)]
    #[param(required = false, schema_with = formats)]
    format: Format,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Json,
    Mermaid,
    Svg,
}

fn formats() -> utoipa::openapi::schema::Object {
    one_of(["json", "mermaid", "svg"])
}

/// The machine of a kind of aggregate
#[utoipa::path(
    get,
    path = "/api/machines/{kind}",
    tag = "machines",
    operation_id = "showMachine",
    params(("kind" = String, Path, description = "What sort of aggregate."), As),
    responses(
        (status = 200, description = "The machine.", content(
            (MachineShown = "application/json"),
            (String = "text/plain"),
            (String = "image/svg+xml"),
        )),
        (status = 404, description = "No such aggregate is registered here, or it has no machine."),
    )
)]
async fn show(
    State(app): State<Towpath>,
    Path(kind): Path<String>,
    Query(shown): Query<As>,
) -> Result<Response, Problem> {
    let machine = app.registry().machine_of_kind(&kind);
    let machine = machine.ok_or_else(|| Problem::not_found(format!("there is no machine of {kind}")))?;
    Ok(match shown.format {
        Format::Json => Json(MachineShown::from(machine)).into_response(),
        Format::Mermaid => {
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], machine.to_mermaid()).into_response()
        }
        Format::Svg => ([(header::CONTENT_TYPE, "image/svg+xml")], machine.to_svg()).into_response(),
    })
}

/// The aggregates that are registered here.
#[derive(Serialize, ToSchema)]
#[schema(as = Machines)]
struct MachineList<'a> {
    machines: Vec<Registered<'a>>,
}

/// An aggregate that is registered here.
#[derive(Serialize, ToSchema)]
struct Registered<'a> {
    kind: &'a str,
    commands: Vec<&'a str>,
    events: Vec<&'a str>,
    /// Nothing for one without.
    machine: Option<MachineShown<'a>>,
}

/// A state machine.
#[derive(Serialize, ToSchema)]
#[schema(as = Machine)]
struct MachineShown<'a> {
    name: &'a str,
    states: Vec<StateShown<'a>>,
    transitions: Vec<TransitionShown<'a>>,
    /// Events that change no state.
    stays: Vec<StayShown<'a>>,
}

/// A state.
#[derive(Serialize, ToSchema)]
#[schema(as = MachineState)]
#[serde(rename_all = "camelCase")]
struct StateShown<'a> {
    name: &'a str,
    /// Whether nothing leads out of it.
    terminal: bool,
    /// What the aggregate waits for while it is here.
    waits_for: Option<&'a str>,
    deadline: Option<DeadlineShown<'a>>,
}

/// What ends a waiting that nothing else ended.
#[derive(Serialize, ToSchema)]
#[schema(as = MachineDeadline)]
#[serde(rename_all = "camelCase")]
struct DeadlineShown<'a> {
    /// After so long.
    after_seconds: f64,
    /// The event that then leads out of the state.
    event: &'a str,
    /// The command that a timer sends.
    command: Option<&'a str>,
}

/// An event that leads from one state to another.
#[derive(Serialize, ToSchema)]
#[schema(as = MachineTransition)]
struct TransitionShown<'a> {
    /// Nothing for an aggregate that does not exist yet.
    from: Option<&'a str>,
    event: &'a str,
    to: &'a str,
}

/// An event that changes no state.
#[derive(Serialize, ToSchema)]
#[schema(as = MachineStay)]
struct StayShown<'a> {
    event: &'a str,
    /// The state in which it may happen; nothing for any.
    state: Option<&'a str>,
}

impl<'a> From<&'a CheckedMachine> for MachineShown<'a> {
    fn from(machine: &'a CheckedMachine) -> Self {
        let states = machine.states().iter().map(|state| StateShown {
            name: &state.name,
            terminal: state.terminal,
            waits_for: state.waits_for.as_deref(),
            deadline: state.deadline.as_ref().map(|deadline| DeadlineShown {
                after_seconds: deadline.after.as_secs_f64(),
                event: &deadline.event,
                command: deadline.command.as_deref(),
            }),
        });
        let transitions = machine.transitions().iter().map(|step| TransitionShown {
            from: step.from.as_deref(),
            event: &step.event,
            to: &step.to,
        });
        let stays = machine.stays().iter();
        let stays = stays.map(|stay| StayShown { event: &stay.event, state: stay.state.as_deref() });
        Self {
            name: machine.name(),
            states: states.collect(),
            transitions: transitions.collect(),
            stays: stays.collect(),
        }
    }
}
