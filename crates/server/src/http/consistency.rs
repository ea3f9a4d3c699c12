//! Consistency over HTTP: asking for a check, seeing how far it is, and repairing what it has found.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::Towpath;
use towpath::checker::{Check, CheckAsked, DEFAULT_WINDOW, Plan, PlanStep, RepairAsked, StepOutcome, Totals};
use towpath::consistency::{Finding, FindingCode, FindingRow, NotChecked, Severity};
use towpath::ports::store::{CheckStatus, PastConsumer};
use towpath::retry::duration_text;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::App;
use super::extract::{OptionalJsonBody, Path, Query};
use super::problem::{AfterDone as _, Problem};
use super::wire::one_of;

/// How long it is waited for the end of a check before it is left to the background.
const PATIENCE: Duration = Duration::from_secs(5);

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check)).routes(routes!(show)).routes(routes!(repair))
}

/// What is to be checked.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = CheckAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    /// How far back: `24h` where nothing is said. Gaps in versions are looked for everywhere.
    #[schema(example = "24h")]
    window: Option<String>,
    /// Only what has these codes; everything, where nothing is said.
    #[serde(default)]
    #[schema(schema_with = codes)]
    scope: Vec<FindingCode>,
}

/// The codes that findings can have.
fn code() -> utoipa::openapi::schema::Object {
    one_of(FindingCode::ALL.iter().map(|code| code.as_str()))
}

fn codes() -> utoipa::openapi::schema::Array {
    utoipa::openapi::schema::ArrayBuilder::new().items(code()).build()
}

fn check_status() -> utoipa::openapi::schema::Object {
    one_of(CheckStatus::ALL.iter().map(|status| status.as_str()))
}

/// Checks whether everything is where it belongs
///
/// It is done in the background, one check at a time over all servers. One that does not end within some seconds is answered with 202;
/// where to look for it is in the header `Location`.
#[utoipa::path(
    post,
    path = "/api/consistency/check",
    tag = "consistency",
    operation_id = "checkConsistency",
    request_body(content = Option<Asked>),
    responses(
        (status = 200, description = "The check has ended.", body = Shown),
        (status = 202, description = "It is under way.", body = Shown),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "The window is no time."),
    )
)]
async fn check(
    State(app): State<Towpath>,
    OptionalJsonBody(asked): OptionalJsonBody<Asked>,
) -> Result<Response, Problem> {
    let window = match asked.window.as_deref().map(duration_text::parse) {
        None => DEFAULT_WINDOW,
        Some(Ok(window)) => window,
        Some(Err(error)) => {
            let detail = format!("{error}. Write a time such as 24h, 30m or 7d.");
            let title = "the window is no time";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-window", title, detail));
        }
    };
    let checker = app.checker();
    let check_id = checker.begin(&CheckAsked { window, scope: asked.scope }).await?;
    if let Some(check) = checker.wait(check_id, PATIENCE).await.after_it_was_done()? {
        return Ok(Json(Shown::from(&check)).into_response());
    }
    let check = found(&app, check_id).await.after_it_was_done()?;
    let mut response = (StatusCode::ACCEPTED, Json(Shown::from(&check))).into_response();
    if let Ok(place) = HeaderValue::from_str(&format!("/api/consistency/checks/{check_id}")) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// A check, and what it has found so far
#[utoipa::path(
    get,
    path = "/api/consistency/checks/{id}",
    tag = "consistency",
    operation_id = "showCheck",
    params(("id" = Uuid, Path, description = "The check's id.")),
    responses(
        (status = 200, description = "The check.", body = Shown),
        (status = 404, description = "There is no such check."),
    )
)]
async fn show(State(app): State<Towpath>, Path(id): Path<Uuid>) -> Result<Response, Problem> {
    Ok(Json(Shown::from(&found(&app, id).await?)).into_response())
}

async fn found(app: &Towpath, id: Uuid) -> Result<Check, Problem> {
    let check = app.checker().find(id).await?;
    check.ok_or_else(|| Problem::not_found(format!("there is no check {id}")))
}

/// Whether it is done.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RepairQuery {
    /// Do it. Otherwise it is only said what would be done.
    #[serde(default)]
    #[param(required = false)]
    apply: bool,
}

/// What is to be repaired.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = RepairAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Repairs {
    /// What this check has found; the last one that ended, where nothing is said.
    check_id: Option<Uuid>,
    /// Only what has these codes; everything, where nothing is said.
    #[serde(default)]
    #[schema(schema_with = codes)]
    codes: Vec<FindingCode>,
}

/// Says what would be done about what a check has found, or does it
///
/// Each step is looked at again in the transaction that does it, and is a fact. One that fails stops no other. At most 500 steps are
/// done at a time; `more` says whether there are others.
#[utoipa::path(
    post,
    path = "/api/consistency/repair",
    tag = "consistency",
    operation_id = "repairConsistency",
    params(RepairQuery),
    request_body(content = Option<Repairs>),
    responses(
        (status = 200, description = "The plan, with what became of each step.", body = PlanShown),
        (status = 404, description = "There is no such check, or none has ended."),
        (status = 409, description = "The check has not come to its end."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn repair(
    State(app): State<Towpath>,
    Query(how): Query<RepairQuery>,
    OptionalJsonBody(asked): OptionalJsonBody<Repairs>,
) -> Result<Response, Problem> {
    let asked = RepairAsked { check_id: asked.check_id, codes: asked.codes };
    let plan = app.checker().repair(&asked, how.apply).await?;
    Ok(Json(PlanShown::from(&plan)).into_response())
}

/// A check, and what it has found.
#[derive(Serialize, ToSchema)]
#[schema(as = Check)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    check_id: Uuid,
    #[schema(schema_with = check_status)]
    status: &'static str,
    /// How far back it looks.
    #[schema(example = "24h")]
    window: String,
    since: DateTime<Utc>,
    started_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    totals: TotalsShown,
    findings: Vec<FindingShown<'a>>,
    not_checked: Vec<NotCheckedShown<'a>>,
    /// Whether it came to its end and found nothing.
    clean: bool,
    progress: ProgressShown,
    /// Why it was given up.
    failure: Option<FailureShown<'a>>,
}

/// How many were looked at.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckTotals)]
struct TotalsShown {
    total_commands: u64,
    total_events: u64,
}

/// How many parts of a check are done.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckProgress)]
struct ProgressShown {
    done: usize,
    of: usize,
}

/// Why a check was given up.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckFailure)]
struct FailureShown<'a> {
    /// A stable code.
    code: &'a str,
    /// A text for people.
    message: &'a str,
}

/// All that is wrong in one way.
#[derive(Serialize, ToSchema)]
#[schema(as = Finding)]
struct FindingShown<'a> {
    #[schema(schema_with = code)]
    code: FindingCode,
    #[schema(value_type = String, example = "critical")]
    severity: Severity,
    count: u64,
    /// The first hundred.
    rows: Vec<RowShown<'a>>,
    cause: &'static str,
    repair: &'static str,
}

/// One row that is not as it should be.
#[derive(Serialize, ToSchema)]
#[schema(as = FindingRow)]
struct RowShown<'a> {
    /// What it is about.
    target: &'a str,
    /// What else is known of it.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    details: &'a std::collections::BTreeMap<String, String>,
}

/// What was not checked.
#[derive(Serialize, ToSchema)]
#[schema(as = NotChecked)]
struct NotCheckedShown<'a> {
    what: &'a str,
    why: &'a str,
}

/// What would be done, or was.
#[derive(Serialize, ToSchema)]
#[schema(as = RepairPlan)]
#[serde(rename_all = "camelCase")]
struct PlanShown<'a> {
    plan_id: Uuid,
    check_id: Uuid,
    applied: bool,
    steps: Vec<StepShown<'a>>,
    /// Whether there is more than fits into one plan.
    more: bool,
}

/// One step.
#[derive(Serialize, ToSchema)]
#[schema(as = RepairStep)]
#[serde(rename_all = "camelCase")]
struct StepShown<'a> {
    #[schema(schema_with = code)]
    code: FindingCode,
    target: &'a str,
    action: &'a str,
    /// Who has had this event or later ones of its aggregate.
    consumers_past: Vec<PastShown<'a>>,
    #[schema(schema_with = step_outcome)]
    outcome: StepOutcome,
    /// A text for people.
    message: &'a str,
}

/// What can become of a step.
fn step_outcome() -> utoipa::openapi::schema::Object {
    one_of(["planned", "done", "notNeeded", "failed", "byHand"])
}

/// A consumer that is past an event.
#[derive(Serialize, ToSchema)]
#[schema(as = PastConsumer)]
struct PastShown<'a> {
    handler: &'a str,
    /// The last version that it has handled.
    version: u64,
}

impl<'a> From<&'a Check> for Shown<'a> {
    fn from(check: &'a Check) -> Self {
        let Totals { total_commands, total_events } = check.totals;
        let (done, of) = check.progress;
        Self {
            check_id: check.check_id,
            status: check.status.as_str(),
            window: window_text(check.window),
            since: check.since,
            started_at: check.started_at,
            finished_at: check.finished_at,
            totals: TotalsShown { total_commands, total_events },
            findings: check.findings.0.iter().map(FindingShown::from).collect(),
            not_checked: check.not_checked.iter().map(NotCheckedShown::from).collect(),
            clean: check.is_clean(),
            progress: ProgressShown { done, of },
            failure: check.failure.as_ref().map(|(code, message)| FailureShown { code, message }),
        }
    }
}

/// Whole hours as hours, as windows are asked for: `24h` and not `1d`.
fn window_text(window: Duration) -> String {
    match window.as_secs() {
        seconds if seconds > 0 && seconds % 3_600 == 0 && window.subsec_nanos() == 0 => {
            format!("{}h", seconds / 3_600)
        }
        _ => duration_text::format(window),
    }
}

impl<'a> From<&'a Finding> for FindingShown<'a> {
    fn from(finding: &'a Finding) -> Self {
        let Finding { code, count, rows } = finding;
        let rows = rows.iter().map(|FindingRow { target, details }| RowShown { target, details }).collect();
        Self {
            code: *code,
            severity: code.severity(),
            count: *count,
            rows,
            cause: code.cause(),
            repair: code.repair(),
        }
    }
}

impl<'a> From<&'a NotChecked> for NotCheckedShown<'a> {
    fn from(NotChecked { what, why }: &'a NotChecked) -> Self {
        Self { what, why }
    }
}

impl<'a> From<&'a Plan> for PlanShown<'a> {
    fn from(plan: &'a Plan) -> Self {
        Self {
            plan_id: plan.plan_id,
            check_id: plan.check_id,
            applied: plan.applied,
            steps: plan.steps.iter().map(StepShown::from).collect(),
            more: plan.more,
        }
    }
}

impl<'a> From<&'a PlanStep> for StepShown<'a> {
    fn from(step: &'a PlanStep) -> Self {
        let past = step.consumers_past.iter();
        Self {
            code: step.code,
            target: &step.target,
            action: &step.action,
            consumers_past: past
                .map(|PastConsumer { handler, version }| PastShown { handler, version: *version })
                .collect(),
            outcome: step.outcome,
            message: &step.message,
        }
    }
}
