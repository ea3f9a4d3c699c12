//! Projections over HTTP: how far each is, and what fails.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::Serialize;
use towpath::Towpath;
use towpath::ids::AggregateKind;
use towpath::projection::{ProjectionFailure, ProjectionStatus};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::problem::Problem;
use super::wire::Sight;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// The projections of this server, and how far they are
///
/// It counts: for people, not for programs that ask all the time.
#[utoipa::path(
    get,
    path = "/api/projections",
    tag = "projections",
    operation_id = "listProjections",
    responses((status = 200, description = "The projections.", body = ProjectionList))
)]
async fn list(State(app): State<Towpath>, caller: Caller) -> Result<Json<ProjectionList>, Problem> {
    let sight = Sight::of(&app, caller.role);
    let projections =
        app.projections().await?.into_iter().map(|status| ProjectionShown::of(status, &sight)).collect();
    Ok(Json(ProjectionList { projections }))
}

/// The projections of this server.
#[derive(Serialize, ToSchema)]
#[schema(as = Projections)]
struct ProjectionList {
    projections: Vec<ProjectionShown>,
}

/// A projection, and how far it is.
#[derive(Serialize, ToSchema)]
#[schema(as = Projection)]
#[serde(rename_all = "camelCase")]
struct ProjectionShown {
    name: &'static str,
    /// Which version this server has.
    version: u32,
    /// The kind of aggregate whose facts these are.
    kind: &'static str,
    /// Whether all aggregates that were there when this version began have been made by it, or by a newer one.
    made: bool,
    /// How many aggregates of the kind there are.
    aggregates: u64,
    /// How many of them have rows that this version has made.
    current: u64,
    /// What does not go on: the first hundred.
    failures: Vec<Failure>,
}

/// An aggregate whose rows do not go on.
#[derive(Serialize, ToSchema)]
#[schema(as = ProjectionFailure)]
#[serde(rename_all = "camelCase")]
struct Failure {
    id: String,
    /// Its last fact that is in the rows.
    version: u64,
    /// A stable code.
    reason: String,
    /// A text for people. It may quote a payload: of what is confidential, viewers do not see it.
    message: Option<String>,
    failed_at: DateTime<Utc>,
}

impl ProjectionShown {
    fn of(status: ProjectionStatus, sight: &Sight) -> Self {
        let made = status.is_made();
        let ProjectionStatus { name, version, kind, progress } = status;
        let is_withheld = sight.withholds(&AggregateKind::from_stored(kind)).is_some();
        let failures = progress.failures.into_iter().map(|failure| {
            let ProjectionFailure { aggregate_id, version, reason, message, failed_at } = failure;
            let message = Some(message).filter(|_| !is_withheld);
            Failure { id: aggregate_id, version, reason, message, failed_at }
        });
        let (aggregates, current, failures) = (progress.aggregates, progress.current, failures.collect());
        Self { name, version, kind, made, aggregates, current, failures }
    }
}
