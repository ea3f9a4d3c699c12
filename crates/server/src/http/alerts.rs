//! Alerts over HTTP: what fires, what became of it, and silences.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::Towpath;
use towpath::alerts::{Rule, SilenceAsked};
use towpath::lifecycle::AlertStatus;
use towpath::ports::store::alerts::{Alert, NotedChange, Silence, SilenceMatcher};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::App;
use super::access::Caller;
use super::extract::{JsonBody, Path, Query, SoughtText};
use super::problem::Problem;
use super::range::{limit, number, usually};
use super::wire::one_of;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(history))
        .routes(routes!(silences))
        .routes(routes!(add_silence))
        .routes(routes!(end_silence))
}

/// The rules, and the alerts that are open
///
/// One instance looks at the rules and writes down what it found; whoever is asked says the same. `evaluatedAt` says when it last
/// looked.
#[utoipa::path(
    get,
    path = "/api/alerts",
    tag = "alerts",
    operation_id = "listAlerts",
    responses((status = 200, description = "The rules and the alerts.", body = AlertsShown))
)]
async fn list(State(app): State<Towpath>) -> Result<Json<AlertsShown>, Problem> {
    let alerts = app.alerts();
    let (open, run) = alerts.open().await?;
    let failures = run.as_ref().map(|run| run.failures.clone()).unwrap_or_default();
    let in_status = |status| -> Vec<AlertShown> {
        open.iter().filter(|alert| alert.status == status).map(AlertShown::of).collect()
    };
    Ok(Json(AlertsShown {
        rules: alerts
            .rules()
            .map(|rules| rules.iter().map(|rule| RuleShown::of(rule, &failures)).collect())
            .unwrap_or_default(),
        firing: in_status(AlertStatus::Firing),
        pending: in_status(AlertStatus::Pending),
        silenced: in_status(AlertStatus::Silenced),
        missing: in_status(AlertStatus::Missing),
        left_out: run.as_ref().map_or(0, |run| run.left_out),
        evaluated_at: run.as_ref().map(|run| run.evaluated_at),
        evaluated_by: run.map(|run| run.evaluated_by_id),
    }))
}

/// Which changes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// Only those of this rule.
    #[param(value_type = Option<String>)]
    rule: Option<SoughtText>,
    /// Only what happened before this change: the `next` of the page before; 0 begins at the last.
    #[serde(default, deserialize_with = "number")]
    #[param(required = false, minimum = 0, maximum = 9007199254740991_i64)]
    after: u64,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// What became of alerts, the last change first
///
/// `next` is what to give as `after` to read on.
#[utoipa::path(
    get,
    path = "/api/alerts/history",
    tag = "alerts",
    operation_id = "alertHistory",
    params(HistoryQuery),
    responses((status = 200, description = "The changes.", body = HistoryShown))
)]
async fn history(
    State(app): State<Towpath>,
    Query(which): Query<HistoryQuery>,
) -> Result<Json<HistoryShown>, Problem> {
    let rule = which.rule.map(String::from);
    let before = Some(which.after).filter(|after| *after > 0);
    let changes = app.alerts().history(rule.as_deref(), before, which.limit).await?;
    let next = changes.last().map_or(which.after, |change| change.change_id);
    Ok(Json(HistoryShown { changes: changes.iter().map(ChangeShown::of).collect(), next }))
}

/// Silences that are not over
#[utoipa::path(
    get,
    path = "/api/alerts/silences",
    tag = "alerts",
    operation_id = "listSilences",
    responses((status = 200, description = "The silences.", body = SilencesShown))
)]
async fn silences(State(app): State<Towpath>) -> Result<Json<SilencesShown>, Problem> {
    let (now, silences) = (app.now(), app.alerts().silences().await?);
    Ok(Json(SilencesShown { silences: silences.iter().map(|one| SilenceShown::of(one, now)).collect() }))
}

/// A silence that is asked for.
#[derive(Deserialize, ToSchema)]
#[schema(as = SilenceAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    /// All of them must fit.
    matchers: Vec<MatcherShown>,
    /// Why, for people.
    #[schema(value_type = String, min_length = 1)]
    reason: SoughtText,
    /// From when on; from now, if nothing is said.
    starts_at: Option<DateTime<Utc>>,
    /// Until when.
    ends_at: DateTime<Utc>,
}

/// Silences alerts for a while
///
/// Alerts that fit are still looked at and shown, and nobody is told of them. Who asks is the author.
#[utoipa::path(
    post,
    path = "/api/alerts/silences",
    tag = "alerts",
    operation_id = "addSilence",
    request_body = Asked,
    responses(
        (status = 201, description = "It was made.", body = SilenceShown),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "It would fit everything, is over, or has no reason."),
    )
)]
async fn add_silence(
    State(app): State<Towpath>,
    caller: Caller,
    JsonBody(asked): JsonBody<Asked>,
) -> Result<Response, Problem> {
    let matchers = asked.matchers.into_iter().map(|matcher| SilenceMatcher {
        name: matcher.name,
        value: matcher.value,
        is_regex: matcher.is_regex,
        is_equal: matcher.is_equal,
    });
    let asked = SilenceAsked {
        matchers: matchers.collect(),
        author: caller.name.to_string(),
        reason: asked.reason.into(),
        starts_at: asked.starts_at,
        ends_at: asked.ends_at,
    };
    let made = app.alerts().add_silence(asked).await?;
    Ok((StatusCode::CREATED, Json(SilenceShown::of(&made, app.now()))).into_response())
}

/// Ends a silence before its time
#[utoipa::path(
    delete,
    path = "/api/alerts/silences/{id}",
    tag = "alerts",
    operation_id = "endSilence",
    params(("id" = Uuid, Path, description = "The silence's id.")),
    responses(
        (status = 204, description = "It was ended."),
        (status = 404, description = "There is no such silence."),
        (status = 409, description = "It is over."),
    )
)]
async fn end_silence(
    State(app): State<Towpath>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<Response, Problem> {
    if app.alerts().silence(id).await?.is_none() {
        return Err(Problem::not_found(format!("there is no silence {id}")));
    }
    if !app.alerts().end_silence(id, caller.name.as_str()).await? {
        let detail = "It has no effect any more; nothing has to be done.";
        return Err(Problem::new(StatusCode::CONFLICT, "silence-over", "the silence is over", detail));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The rules, and the alerts that are open.
#[derive(Serialize, ToSchema)]
#[schema(as = Alerts)]
#[serde(rename_all = "camelCase")]
struct AlertsShown {
    /// Rules that this server looks at, by name.
    rules: Vec<RuleShown>,
    /// Somebody should look.
    firing: Vec<AlertShown>,
    /// Their conditions hold, and not yet for as long as their rules want.
    pending: Vec<AlertShown>,
    /// They fire, and nobody is told.
    silenced: Vec<AlertShown>,
    /// Their figures are not there: whether they hold is not known.
    missing: Vec<AlertShown>,
    /// Values for which a condition holds and which are no alerts because there are too many.
    left_out: u64,
    /// When the rules were last looked at; null if they never were.
    evaluated_at: Option<DateTime<Utc>>,
    /// By which instance.
    evaluated_by: Option<String>,
}

/// A rule.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertRule)]
#[serde(rename_all = "camelCase")]
struct RuleShown {
    name: String,
    condition: String,
    severity: String,
    message: String,
    /// For how many seconds the condition must hold.
    for_seconds: f64,
    /// For how many seconds it goes on firing after that.
    keep_firing_for_seconds: f64,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// Whether it is one of those that every server has.
    is_default: bool,
    /// Why it could not be looked at.
    failure: Option<String>,
}

impl RuleShown {
    fn of(rule: &Rule, failures: &BTreeMap<String, String>) -> Self {
        let texts = |templates: &BTreeMap<String, towpath::alerts::Template>| {
            templates.iter().map(|(name, template)| (name.clone(), template.text().to_owned())).collect()
        };
        Self {
            name: rule.name.clone(),
            condition: rule.condition.text().to_owned(),
            severity: rule.severity.clone(),
            message: rule.message.text().to_owned(),
            for_seconds: rule.lasting.as_secs_f64(),
            keep_firing_for_seconds: rule.keep_firing_for.as_secs_f64(),
            labels: texts(&rule.labels),
            annotations: texts(&rule.annotations),
            is_default: rule.is_default,
            failure: failures.get(&rule.name).cloned(),
        }
    }
}

/// Where an alert can be.
fn alert_status() -> utoipa::openapi::schema::Object {
    one_of(AlertStatus::ALL.iter().map(|status| status.as_str()))
}

/// An alert.
#[derive(Serialize, ToSchema)]
#[schema(as = Alert)]
#[serde(rename_all = "camelCase")]
struct AlertShown {
    alert_id: String,
    rule: String,
    severity: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// For people.
    message: String,
    /// The value when it was last looked at; null if it was none.
    value: Option<f64>,
    #[schema(schema_with = alert_status)]
    status: AlertStatus,
    status_changed_at: DateTime<Utc>,
    /// A stable code.
    status_reason: Option<String>,
    /// A text for people.
    status_message: Option<String>,
    /// Since when its condition holds.
    started_at: DateTime<Utc>,
    /// When it first fired, whether or not anybody was told.
    fired_at: Option<DateTime<Utc>>,
    /// The silence that it is under.
    silence_id: Option<Uuid>,
}

impl AlertShown {
    fn of(alert: &Alert) -> Self {
        let alert = alert.clone();
        Self {
            alert_id: alert.alert_id,
            rule: alert.rule,
            severity: alert.severity,
            labels: alert.labels,
            annotations: alert.annotations,
            message: alert.message,
            value: Some(alert.value).filter(|value| value.is_finite()),
            status: alert.status,
            status_changed_at: alert.status_changed_at,
            status_reason: alert.status_reason,
            status_message: alert.status_message,
            started_at: alert.started_at,
            fired_at: alert.fired_at,
            silence_id: alert.silence_id,
        }
    }
}

/// What became of alerts.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertHistory)]
struct HistoryShown {
    changes: Vec<ChangeShown>,
    /// What to give as `after` to read on.
    next: u64,
}

/// A change of an alert.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertChange)]
#[serde(rename_all = "camelCase")]
struct ChangeShown {
    change_id: u64,
    /// Null for an alert that was new.
    #[schema(schema_with = alert_status)]
    from_status: Option<AlertStatus>,
    /// The alert after it.
    #[serde(flatten)]
    alert: AlertShown,
}

impl ChangeShown {
    fn of(change: &NotedChange) -> Self {
        Self {
            change_id: change.change_id,
            from_status: change.from_status,
            alert: AlertShown::of(&change.alert),
        }
    }
}

/// Silences.
#[derive(Serialize, ToSchema)]
#[schema(as = Silences)]
struct SilencesShown {
    silences: Vec<SilenceShown>,
}

/// A part of a label that a silence is about.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SilenceMatcher)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MatcherShown {
    /// The label: `alertname`, `severity`, or one that alerts have.
    #[schema(min_length = 1)]
    name: String,
    value: String,
    /// Whether the value is a regular expression, which must fit the whole.
    #[serde(default)]
    is_regex: bool,
    /// Whether it must be so, or must not.
    #[serde(default = "yes")]
    is_equal: bool,
}

fn yes() -> bool {
    true
}

/// That nobody is told of some alerts for a while.
#[derive(Serialize, ToSchema)]
#[schema(as = Silence)]
#[serde(rename_all = "camelCase")]
struct SilenceShown {
    silence_id: Uuid,
    matchers: Vec<MatcherShown>,
    author_id: String,
    reason: String,
    starts_at: DateTime<Utc>,
    ends_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
    /// When somebody ended it before its time.
    ended_at: Option<DateTime<Utc>>,
    ended_by_id: Option<String>,
    /// Whether it holds now.
    is_active: bool,
}

impl SilenceShown {
    fn of(silence: &Silence, now: DateTime<Utc>) -> Self {
        let Silence { silence: made, ended_at, ended_by_id } = silence.clone();
        let matchers = made.matchers.into_iter().map(|matcher| MatcherShown {
            name: matcher.name,
            value: matcher.value,
            is_regex: matcher.is_regex,
            is_equal: matcher.is_equal,
        });
        Self {
            silence_id: made.silence_id,
            matchers: matchers.collect(),
            author_id: made.author_id,
            reason: made.reason,
            starts_at: made.starts_at,
            ends_at: made.ends_at,
            created_at: made.created_at,
            ended_at,
            ended_by_id,
            is_active: silence.is_active(now),
        }
    }
}
