//! The requests that hive makes of a Kubernetes API server, each with its time-out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, GetParams, ListParams, Patch, PatchParams};
use kube::api::{ApiResource, PartialObjectMeta, Preconditions, PropagationPolicy};
use kube::client::Body;
use kube::core::request::{Error as RequestError, Request as Requests};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::faults::Fault;
use super::reading::{KnativeResource, RevisionList, RevisionResource};
use super::settings::KubernetesSettings;
use super::writing;
use crate::gateway::Apply;
use crate::spec::ResourceName;

/// The group of Knative's resources.
pub(super) const GROUP: &str = "serving.knative.dev";
/// Its version.
pub(super) const VERSION: &str = "v1";
/// The kind of resource that hive makes, as paths and answers name it.
pub(super) const SERVICES: &str = "services";
/// Namespaces, as paths and answers name them.
pub(super) const NAMESPACES: &str = "namespaces";

/// The label by which Knative marks the revisions of a service.
const REVISIONS_SERVICE_LABEL: &str = "serving.knative.dev/service";

/// How many revisions are read at most. Knative itself keeps a few dozen.
const MOST_REVISIONS: u32 = 500;

/// Makes requests.
#[derive(Clone)]
pub(super) struct Calls {
    client: Client,
    settings: KubernetesSettings,
    /// Until when the server is left alone, because it has said so. All calls keep to it.
    rests_until: Arc<Mutex<Option<Instant>>>,
}

impl Calls {
    pub(super) fn new(client: Client, settings: KubernetesSettings) -> Self {
        Self { client, settings, rests_until: Arc::default() }
    }

    /// What the names of our field managers begin with. It names this installation of hive.
    pub(super) fn field_manager(&self) -> &str {
        &self.settings.field_manager
    }

    pub(super) fn call_timeout(&self) -> Duration {
        self.settings.call_timeout
    }

    pub(super) fn watch_timeout(&self) -> Duration {
        self.settings.watch_timeout
    }

    /// A service.
    pub(super) async fn service(&self, resource: &ResourceName) -> Result<KnativeResource, Fault> {
        let request = in_namespace(resource, SERVICES)?.get(&resource.name, &GetParams::default());
        self.read(request).await
    }

    /// The revisions of a service, oldest first.
    pub(super) async fn revisions_of(&self, resource: &ResourceName) -> Result<Vec<RevisionResource>, Fault> {
        let selector = format!("{REVISIONS_SERVICE_LABEL}={}", resource.name);
        let parameters = ListParams::default().labels(&selector).limit(MOST_REVISIONS);
        let list: RevisionList = self.read(in_namespace(resource, "revisions")?.list(&parameters)).await?;
        Ok(list.oldest_first())
    }

    /// Applies a specification on the server's side. With a resource that was seen, only to that very one.
    pub(super) async fn apply(
        &self,
        apply: &Apply,
        seen: Option<&KnativeResource>,
        force: bool,
    ) -> Result<KnativeResource, Fault> {
        let parameters = PatchParams { force, ..self.patching(apply) };
        let wanted = Patch::Apply(writing::wanted(apply, self.field_manager(), seen, force));
        let resource = &apply.resource;
        let request = in_namespace(resource, SERVICES)?.patch(&resource.name, &parameters, &wanted);
        self.read(request).await
    }

    /// Removes the fields that somebody else has set and that are not wanted.
    pub(super) async fn remove_unwanted(
        &self,
        apply: &Apply,
        seen: &KnativeResource,
    ) -> Result<KnativeResource, Fault> {
        let resource = &apply.resource;
        let removed = Patch::Merge(writing::without(seen, &apply.spec));
        let request =
            in_namespace(resource, SERVICES)?.patch(&resource.name, &self.patching(apply), &removed);
        self.read(request).await
    }

    /// A manager per service: what another service made a moment ago is then a conflict, and not ours to change.
    fn patching(&self, apply: &Apply) -> PatchParams {
        let manager = format!("{}/{}", self.settings.field_manager, writing::label_of(&apply.service_id));
        PatchParams::apply(&manager).validation_strict()
    }

    /// Deletes a service after everything that it owns.
    pub(super) async fn delete(&self, resource: &ResourceName, uid: Option<&str>) -> Result<(), Fault> {
        let parameters = DeleteParams {
            // The resource is there for as long as something of it runs, so that "it is gone" is true of all of it.
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        let request = in_namespace(resource, SERVICES)?.delete(&resource.name, &parameters);
        self.call(request).await.map(|_| ())
    }

    /// A namespace, if it is there.
    pub(super) async fn namespace(&self, namespace: &str) -> Result<(), Fault> {
        check_name(namespace)?;
        let request = Requests::new(format!("/api/v1/{NAMESPACES}")).get(namespace, &GetParams::default());
        self.call(request).await.map(|_| ())
    }

    /// Any one service: the least that needs all that a look needs. A server tells its version also when it has lost what it
    /// keeps everything in.
    pub(super) async fn any_service(&self) -> Result<(), Fault> {
        let path = match &self.settings.namespace {
            Some(namespace) => {
                check_name(namespace)?;
                format!("/apis/{GROUP}/{VERSION}/{NAMESPACES}/{namespace}/{SERVICES}")
            }
            None => format!("/apis/{GROUP}/{VERSION}/{SERVICES}"),
        };
        let request = Requests::new(path).list(&ListParams::default().limit(1));
        self.call(request).await.map(|_| ())
    }

    /// The services to watch, without what is in them.
    pub(super) fn watched(&self) -> Api<PartialObjectMeta<DynamicObject>> {
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: VERSION.to_owned(),
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "Service".to_owned(),
            plural: SERVICES.to_owned(),
        };
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Makes a request and reads its answer. Not by the client's own means: those write an answer that they cannot read into
    /// the log, and the environment of a container may hold secrets.
    async fn read<T: DeserializeOwned>(
        &self,
        request: Result<Request<Vec<u8>>, RequestError>,
    ) -> Result<T, Fault> {
        let body = self.call(request).await?;
        serde_json::from_slice(&body).map_err(|error| Fault::Silent {
            message: format!("an answer cannot be read at line {}, column {}", error.line(), error.column()),
        })
    }

    async fn call(&self, request: Result<Request<Vec<u8>>, RequestError>) -> Result<Vec<u8>, Fault> {
        let request = request.map_err(|error| Fault::NotSent { message: error.to_string() })?;
        let after = self.settings.call_timeout;
        if let Some(retry_after) = self.rests_for() {
            return Err(Fault::Busy { retry_after });
        }
        let answering = async {
            let answer = self.client.send(request.map(Body::from)).await.map_err(Fault::of_client)?;
            let code = answer.status();
            let retry_after = answer.headers().get(http::header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let body = answer.into_body().collect_bytes().await.map_err(Fault::of_client)?;
            match code.is_success() {
                true => Ok(body.to_vec()),
                false => Err(Fault::answered(code.as_u16(), retry_after.as_deref(), &body)),
            }
        };
        let answer = tokio::time::timeout(after, answering).await.unwrap_or(Err(Fault::TimedOut { after }));
        if let Err(Fault::Busy { retry_after }) = &answer {
            let mut rests_until = self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
            *rests_until = (*rests_until).max(Some(Instant::now() + *retry_after));
        }
        answer
    }

    /// For how long the server is still to be left alone.
    fn rests_for(&self) -> Option<Duration> {
        let rests_until = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        rests_until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }
}

fn in_namespace(resource: &ResourceName, kind: &str) -> Result<Requests, Fault> {
    check_name(&resource.namespace)?;
    check_name(&resource.name)?;
    let namespace = &resource.namespace;
    Ok(Requests::new(format!("/apis/{GROUP}/{VERSION}/{NAMESPACES}/{namespace}/{kind}")))
}

/// Names stand in paths. What is checked where a user asks is checked again here, where another character would lead to
/// another resource.
fn check_name(name: &str) -> Result<(), Fault> {
    let is_plain = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-' | '.');
    if name.is_empty() || name.len() > 253 || !name.chars().all(is_plain) || name.starts_with('.') {
        return Err(Fault::NotSent { message: format!("{name:?} is no name of a resource") });
    }
    Ok(())
}
