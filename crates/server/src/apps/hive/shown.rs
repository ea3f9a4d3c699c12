//! A service as it is shown: to whom, and in which words.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use towpath::observer::{LookFailure, Looks};
use towpath_hive::ServiceView;
use towpath_hive::gateway::{Condition, ConditionStatus};
use towpath_hive::service::{ServiceStatus, Snapshot};
use towpath_hive::spec::EnvValue;
use towpath_hive::targets::DELETION_DEADLINE;
use utoipa::ToSchema;
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, OneOfBuilder, Schema, Type};

use crate::http::wire::one_of;
use crate::{Caller, Role};

/// A service as it is. `image`, `env`, `minScale`, `maxScale` and `concurrency` are what is asked for: what an update
/// replaces.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveService)]
pub(super) struct ServiceBody {
    id: String,
    name: String,
    namespace: String,
    status: Option<&'static str>,
    /// Why it is FAILED, or DELETING for too long: a code.
    status_reason: Option<String>,
    /// The same as a text for people.
    status_message: Option<String>,
    desired_spec_hash: String,
    observed_spec_hash: Option<String>,
    /// Whether what was last seen on the platform is ready.
    ready: bool,
    /// What the platform said when it was last seen, in its own words; none when it is not there.
    conditions: Vec<ConditionShown>,
    /// Whether the resource was there when it was last looked for; null before the first look.
    present: Option<bool>,
    /// Whether it runs something else than what was asked for, although it is READY.
    drifted: bool,
    version: u64,
    /// Which of its specifications it has: its `ETag`, and what `If-Match` of an update or a delete names.
    pub(super) spec_version: u64,
    image: String,
    #[schema(schema_with = env_shown)]
    env: BTreeMap<String, Option<EnvValue>>,
    min_scale: Option<u32>,
    max_scale: Option<u32>,
    concurrency: Option<u32>,
    url: Option<String>,
    latest_ready_revision: Option<String>,
    observed_at: Option<DateTime<Utc>>,
    /// The last specification that was seen to run; 0 for none.
    converged_spec_version: u64,
    /// The last specification that was seen not to run; 0 for none.
    failed_spec_version: u64,
    /// When the resource was seen to be gone although nobody had asked for that; null when it was there since.
    purged_at: Option<DateTime<Utc>>,
    /// When it was last looked at, whether or not anything was new. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    looked_at: Option<DateTime<Utc>>,
    /// Why it could not be looked at since, or why something could not be done to it; not there when all is well, and not
    /// in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailureShown>,
    /// The command that was just carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    command_id: Option<String>,
}

/// A condition of the resource, as Knative defines it.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveCondition)]
struct ConditionShown {
    #[schema(schema_with = condition_types)]
    r#type: &'static str,
    #[schema(schema_with = condition_statuses)]
    status: &'static str,
    /// A code of the platform's.
    reason: Option<String>,
    /// A text for people.
    message: Option<String>,
}

/// Why something could not be done.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveLookFailure)]
struct FailureShown {
    /// A stable code.
    code: String,
    /// A text for people.
    message: String,
    /// Since when it fails.
    since: DateTime<Utc>,
    /// When it failed last.
    failed_at: DateTime<Utc>,
}

impl From<LookFailure> for FailureShown {
    fn from(LookFailure { code, message, since, failed_at, times: _ }: LookFailure) -> Self {
        Self { code, message, since, failed_at }
    }
}

const CONDITIONS: [&str; 3] = ["Ready", "ConfigurationsReady", "RoutesReady"];

fn condition_types() -> Object {
    one_of(CONDITIONS)
}

fn condition_statuses() -> Object {
    one_of(["True", "False", "Unknown"])
}

/// What a variable may be in a request.
pub(super) fn env_asked() -> Object {
    let most = 256;
    let values = OneOfBuilder::new().item(text()).item(reference());
    environment("Each variable is a text, or refers to a key of a secret.", values)
        .max_properties(Some(most))
        .build()
}

/// What a variable may be in an answer.
pub(super) fn env_shown() -> Object {
    let hidden = ObjectBuilder::new().schema_type(Type::Null);
    let values = OneOfBuilder::new().item(text()).item(reference()).item(hidden);
    environment("To a viewer, a variable that is written out is null.", values).build()
}

fn environment(description: &str, values: OneOfBuilder) -> ObjectBuilder {
    ObjectBuilder::new()
        .description(Some(description))
        .additional_properties(Some(Schema::OneOf(values.build())))
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// A reference to a key of a secret.
fn reference() -> ObjectBuilder {
    let closed =
        || ObjectBuilder::new().additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
    let secret = closed()
        .property("secret", text().min_length(Some(1)).max_length(Some(253)))
        .property("key", text().min_length(Some(1)).max_length(Some(253)))
        .required("secret")
        .required("key");
    closed().property("valueFrom", secret).required("valueFrom")
}

/// The environment as somebody may see it. A reference says where a value is, and not what it is.
pub(super) fn env_for(
    caller: &Caller,
    env: BTreeMap<String, EnvValue>,
) -> BTreeMap<String, Option<EnvValue>> {
    let sees_values = caller.role > Role::Viewer;
    let shown = |value: EnvValue| match value {
        EnvValue::Plain(_) if !sees_values => None,
        value => Some(value),
    };
    env.into_iter().map(|(name, value)| (name, shown(value))).collect()
}

fn conditions_of(snapshot: &Snapshot) -> Vec<ConditionShown> {
    if !snapshot.present {
        return Vec::new();
    }
    let seen = [&snapshot.ready_condition, &snapshot.configurations_ready, &snapshot.routes_ready];
    let shown = CONDITIONS.into_iter().zip(seen).map(|(name, condition)| {
        let Condition { status, reason, message } = condition.clone();
        let status = match status {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        };
        ConditionShown { r#type: name, status, reason, message }
    });
    shown.collect()
}

impl ServiceBody {
    pub(super) fn of(view: ServiceView, caller: &Caller) -> Self {
        let ServiceView { service_id, version, service } = view;
        let snapshot = service.snapshot.as_ref();
        let ready_status = service.status == Some(ServiceStatus::Ready);
        Self {
            id: service_id,
            status: service.status.map(|status| status.as_str()),
            status_reason: service.failure.as_ref().map(|failure| failure.reason.clone()),
            status_message: service.failure.as_ref().map(|failure| failure.message.clone()),
            desired_spec_hash: service.desired_spec_hash.to_string(),
            observed_spec_hash: snapshot
                .and_then(|snapshot| snapshot.observed_spec_hash.as_ref())
                .map(ToString::to_string),
            ready: snapshot.and_then(|snapshot| snapshot.ready).unwrap_or(false),
            conditions: snapshot.map(conditions_of).unwrap_or_default(),
            present: snapshot.map(|snapshot| snapshot.present),
            drifted: ready_status
                && snapshot.is_some_and(|snapshot| {
                    snapshot.observed_spec_hash.as_ref() != Some(&service.desired_spec_hash)
                }),
            version,
            spec_version: service.spec_version,
            min_scale: service.spec.min_scale,
            max_scale: service.spec.max_scale,
            concurrency: service.spec.concurrency,
            url: snapshot.and_then(|snapshot| snapshot.url.clone()),
            latest_ready_revision: snapshot.and_then(|snapshot| snapshot.latest_ready_revision.clone()),
            observed_at: snapshot.map(|snapshot| snapshot.observed_at),
            converged_spec_version: service.converged_spec_version,
            failed_spec_version: service.failed_spec_version,
            purged_at: service.purged_at,
            name: service.resource.name,
            namespace: service.resource.namespace,
            image: service.spec.image,
            env: env_for(caller, service.spec.env),
            looked_at: None,
            last_failure: None,
            command_id: None,
        }
    }

    /// With what is known of the looks at it, and the command that was just carried out.
    pub(super) fn with(mut self, looks: Looks, command_id: Option<String>) -> Self {
        let Looks { looked_at, failure } = looks;
        (self.looked_at, self.command_id) = (looked_at, command_id);
        // No fact says so: it is still DELETING, and nothing else can become of it.
        if let Some(failure) = failure.as_ref().filter(|failure| failure.code == DELETION_DEADLINE)
            && self.status == Some(ServiceStatus::Deleting.as_str())
        {
            self.status_reason = Some(failure.code.clone());
            self.status_message = Some(failure.message.clone());
        }
        self.last_failure = failure.map(FailureShown::from);
        self
    }
}
