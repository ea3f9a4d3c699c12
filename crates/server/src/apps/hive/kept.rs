//! What hive keeps besides its services: specifications, who asked for what, namespaces, and facts on their way.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::OutboxFilter;
use towpath::ids::{ChannelName, EventId};
use towpath::lifecycle::OutboxStatus;
use towpath::ports::store::FailedRow;
use towpath_hive::spec::EnvValue;
use towpath_hive::tables::{AuditRow, NamespaceRow, SpecRow};
use utoipa::{IntoParams, ToSchema};

use super::Serving;
use super::routes::{Behind, ByName, broken};
use super::shown::{env_for, env_shown};
use crate::http::extract::SoughtText;
use crate::http::memory::{Memory, PAGE_BYTES};
use crate::http::wire::one_of;
use crate::kit::{next, number, page_limit, usually};
use crate::{Caller, Path, Problem, Query};

/// A specification that a service has had.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveSpec)]
pub(super) struct SpecShown {
    spec_version: u64,
    spec_hash: String,
    image: String,
    #[schema(schema_with = env_shown)]
    env: BTreeMap<String, Option<EnvValue>>,
    min_scale: Option<u32>,
    max_scale: Option<u32>,
    concurrency: Option<u32>,
    /// The mark of a replacement that was forced.
    replacement: Option<String>,
    persisted_at: DateTime<Utc>,
}

/// Specifications, by their versions.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveSpecs)]
pub(super) struct Specs {
    specs: Vec<SpecShown>,
    /// What to ask for after this page; none at the end.
    next: Option<u64>,
}

/// Lists the specifications that a service has had
///
/// They are kept by a consumer, a moment after they were accepted. A viewer sees the names of variables that are written
/// out, and not their values.
#[utoipa::path(
    get, path = "/api/hive/services/{id}/specs", tag = "hive", operation_id = "listSpecs",
    params(("id" = String, Path, description = "The service's id."), Behind),
    responses((status = 200, description = "By version, the first one first.", body = Specs), (status = 404, description = "There is no such service."))
)]
pub(super) async fn specs(
    State(app): State<Serving>,
    memory: Memory,
    caller: Caller,
    Path(id): Path<String>,
    Query(behind): Query<Behind>,
) -> Result<Response, Problem> {
    app.exists(&id).await?;
    let room = memory.room(2 * PAGE_BYTES).await?;
    let listed = app.hive.specs(app.towpath.store(), &id, behind.after, behind.limit, PAGE_BYTES).await;
    let page = listed.map_err(broken)?;
    let next = page.next(|last| last.spec_version);
    let shown = |row: SpecRow| {
        let SpecRow { spec_version, spec_hash, spec, persisted_at, .. } = row;
        let spec = spec.into_value();
        SpecShown {
            spec_version,
            spec_hash,
            image: spec.image,
            env: env_for(&caller, spec.env),
            min_scale: spec.min_scale,
            max_scale: spec.max_scale,
            concurrency: spec.concurrency,
            replacement: spec.replacement,
            persisted_at,
        }
    };
    room.json(&Specs { specs: page.map(shown).rows, next })
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditAsked {
    /// Only what was asked of this service.
    #[param(value_type = Option<String>)]
    service: Option<SoughtText>,
    /// The `next` of the page before.
    #[param(value_type = Option<String>)]
    after: Option<SoughtText>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    limit: u32,
}

/// Who asked for what, and when.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveAudited)]
pub(super) struct AuditedShown {
    /// The fact that says so.
    event_id: String,
    service_id: String,
    /// `create`, `update` or `delete`.
    action: String,
    /// Null where that is not known.
    requested_by: Option<String>,
    requested_at: DateTime<Utc>,
}

/// Requests, the last one first.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveAudit)]
pub(super) struct Audit {
    audit: Vec<AuditedShown>,
    /// What to give as `after` to read on; none at the end.
    next: Option<String>,
}

/// Lists who asked for what
///
/// The last request first; of one service or of all. They are kept by a consumer, a moment after they were accepted.
#[utoipa::path(
    get, path = "/api/hive/audit", tag = "hive", operation_id = "hiveAudit",
    params(AuditAsked),
    responses((status = 200, description = "A page.", body = Audit))
)]
pub(super) async fn audit(
    State(app): State<Serving>,
    Query(asked): Query<AuditAsked>,
) -> Result<Response, Problem> {
    let AuditAsked { service, after, limit } = asked;
    let (service, before) = (service.map(String::from), after.map(String::from));
    let before = before.as_deref().filter(|before| !before.is_empty());
    let page = app.hive.audit(app.towpath.store(), service.as_deref(), before, limit).await?;
    let next = page.next(|last| last.event_id.clone());
    let shown = |AuditRow { event_id, service_id, action, requested_by, requested_at }| AuditedShown {
        event_id,
        service_id,
        action,
        requested_by,
        requested_at,
    };
    Ok(Json(Audit { audit: page.map(shown).rows, next }).into_response())
}

/// A namespace of the platform.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveNamespace)]
pub(super) struct NamespaceShown {
    namespace: String,
    /// Whether it was there when something was last applied in it.
    present: bool,
    /// Since when that is known.
    validated_at: DateTime<Utc>,
}

/// Namespaces, by name.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveNamespaces)]
pub(super) struct Namespaces {
    namespaces: Vec<NamespaceShown>,
    /// What to ask for after this page; none at the end.
    next: Option<String>,
}

/// Lists the namespaces that services were asked for in
#[utoipa::path(
    get, path = "/api/hive/namespaces", tag = "hive", operation_id = "hiveNamespaces",
    params(ByName),
    responses((status = 200, description = "A page.", body = Namespaces))
)]
pub(super) async fn namespaces(
    State(app): State<Serving>,
    Query(asked): Query<ByName>,
) -> Result<Response, Problem> {
    let ByName { after, limit } = asked;
    let after = after.map(String::from).unwrap_or_default();
    let page = app.hive.namespaces(app.towpath.store(), &after, limit).await?;
    let next = page.next(|last| last.namespace.clone());
    let shown = |NamespaceRow { namespace, present, validated_at, .. }| NamespaceShown {
        namespace,
        present,
        validated_at,
    };
    Ok(Json(Namespaces { namespaces: page.map(shown).rows, next }).into_response())
}

/// Where a fact is on its way, in the words of hive's source: what was given up is DEAD there.
const WORDS: [(OutboxStatus, &str); 4] = [
    (OutboxStatus::New, "NEW"),
    (OutboxStatus::Retry, "RETRY"),
    (OutboxStatus::Sent, "SENT"),
    (OutboxStatus::Failed, "DEAD"),
];

fn words() -> utoipa::openapi::schema::Object {
    one_of(WORDS.map(|(_, word)| word))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutboxAsked {
    /// Only those in this status.
    #[param(schema_with = words)]
    status: Option<String>,
    /// Only what is behind this number; 0 begins at the first.
    #[serde(default, deserialize_with = "number")]
    #[param(required = false, minimum = 0, maximum = 9007199254740991_i64)]
    after: u64,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    limit: u32,
}

/// A fact of hive on its way to a channel.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveOutboxRow)]
pub(super) struct OutboxRowShown {
    outbox_id: u64,
    #[schema(value_type = String)]
    channel: ChannelName,
    #[schema(schema_with = words)]
    status: &'static str,
    status_changed_at: DateTime<Utc>,
    /// A stable code.
    status_reason: Option<String>,
    /// A text for people.
    status_message: Option<String>,
    /// Failures so far.
    retry_count: u32,
    next_retry_at: Option<DateTime<Utc>>,
    #[schema(value_type = uuid::Uuid)]
    event_id: EventId,
    event_type: String,
    /// The service, or the namespace, that it is about.
    about: String,
}

/// Facts of hive on their way, by number.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveOutbox)]
pub(super) struct OutboxRows {
    rows: Vec<OutboxRowShown>,
    /// What to ask for after this page; none at the end.
    next: Option<u64>,
}

/// Lists hive's facts on their way to its channels
///
/// In the words of hive's source: a fact that was given up after its attempts is DEAD, which is FAILED in the outbox as a
/// whole (`GET /api/outbox`). It is put back by `POST /api/outbox/{id}/retry`.
#[utoipa::path(
    get, path = "/api/hive/outbox", tag = "hive", operation_id = "hiveOutbox",
    params(OutboxAsked),
    responses((status = 200, description = "A page.", body = OutboxRows))
)]
pub(super) async fn outbox(
    State(app): State<Serving>,
    Query(asked): Query<OutboxAsked>,
) -> Result<Response, Problem> {
    let OutboxAsked { status, after, limit } = asked;
    let status = match status.as_deref() {
        None => None,
        Some(asked) => {
            let known = WORDS.into_iter().find(|(_, word)| *word == asked);
            let (status, _) = known.ok_or_else(|| {
                let words = WORDS.map(|(_, word)| word).join(", ");
                Problem::malformed(format!("status is {asked:?}; there are {words}"), "Write ?status=DEAD.")
            })?;
            Some(status)
        }
    };
    let mut found = Vec::new();
    for channel in app.hive.channels() {
        let filter = OutboxFilter { channel: Some(ChannelName::from_stored(channel)), status };
        found.extend(app.towpath.store().outbox_rows(&filter, after, limit).await?);
    }
    found.sort_by_key(|row| row.row.outbox_id);
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let rows: Vec<OutboxRowShown> = found.into_iter().map(OutboxRowShown::from).collect();
    let next = next(&rows, limit, |last| last.outbox_id);
    Ok(Json(OutboxRows { rows, next }).into_response())
}

impl From<FailedRow> for OutboxRowShown {
    fn from(FailedRow { row, event }: FailedRow) -> Self {
        let word = WORDS.into_iter().find(|(status, _)| *status == row.status);
        Self {
            outbox_id: row.outbox_id,
            channel: row.channel,
            status: word.map_or("", |(_, word)| word),
            status_changed_at: row.status_changed_at,
            status_reason: row.status_reason,
            status_message: row.status_message,
            retry_count: row.retry_count,
            next_retry_at: row.next_retry_at,
            event_id: row.event_id,
            event_type: event.event_type.to_string(),
            about: event.aggregate.id.to_string(),
        }
    }
}
