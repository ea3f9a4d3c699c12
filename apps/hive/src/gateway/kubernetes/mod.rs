//! A real Kubernetes cluster with Knative Serving.
//!
//! What hive wants is applied on the server's side under a field manager of its own, so that the server itself knows which
//! fields are whose: an edit by hand of one of ours is a conflict, and a field that somebody else added is left alone.
//! Every decision comes from a status code or a field of an answer, never from a text.

mod calls;
mod faults;
mod reading;
mod settings;
mod watching;
mod writing;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub use self::settings::{ConnectError, Credentials, KubernetesSettings};

use self::calls::Calls;
use self::faults::Fault;
use self::reading::{KnativeResource, Owner, RevisionResource};
use self::watching::KnownVersions;
use super::{Applied, Apply, Deletion, GatewayError, Observed, ServingGateway};
use crate::spec::ResourceName;

/// How often a call begins anew because the resource was made, deleted or replaced between two of its requests.
const ROUNDS: u32 = 3;

/// A cluster. Clones share its connections.
#[derive(Clone)]
pub struct KubernetesGateway {
    calls: Calls,
    known: Arc<KnownVersions>,
}

impl KubernetesGateway {
    /// A cluster, by its credentials. Nothing is asked of it yet.
    ///
    /// # Errors
    /// There are no usable credentials.
    pub async fn connect(settings: KubernetesSettings) -> Result<Self, ConnectError> {
        let client = settings.client().await?;
        Ok(Self { calls: Calls::new(client, settings), known: Arc::default() })
    }

    /// Applies. By force, fields that somebody else has set and that are not wanted go, too: an apply only changes those
    /// that it names.
    async fn apply_once(
        &self,
        apply: &Apply,
        seen: Option<&KnativeResource>,
        force: bool,
    ) -> Result<KnativeResource, Fault> {
        let applied = self.calls.apply(apply, seen, force).await?;
        match force && !applied.is_what_is_wanted(apply, self.calls.field_manager()) {
            true => self.calls.remove_unwanted(apply, &applied).await,
            false => Ok(applied),
        }
    }

    /// The revisions of a service. Where they are not served, or may not be read, those that its status names.
    async fn revisions(
        &self,
        resource: &ResourceName,
        found: &KnativeResource,
    ) -> Result<Vec<RevisionResource>, GatewayError> {
        match self.calls.revisions_of(resource).await {
            Ok(listed) => Ok(found.with_revisions_of_status(listed)),
            Err(Fault::Answered { code: 403 | 404, .. }) => Ok(found.with_revisions_of_status(Vec::new())),
            Err(fault) => Err(fault.about(resource)),
        }
    }

    /// The resource, if the platform has it. A kind of resource that it does not have is an error.
    async fn find(&self, resource: &ResourceName) -> Result<Option<KnativeResource>, GatewayError> {
        match self.calls.service(resource).await {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.says_there_is_no_service(resource) => Ok(None),
            Err(fault) => Err(fault.about(resource)),
        }
    }
}

#[async_trait]
impl ServingGateway for KubernetesGateway {
    async fn apply(&self, apply: &Apply) -> Result<Applied, GatewayError> {
        let resource = &apply.resource;
        for _ in 0..ROUNDS {
            let found = self.find(resource).await?;
            if let Some(found) = &found {
                if found.is_being_deleted() {
                    return Err(GatewayError::Unavailable {
                        message: format!("{resource} is still being deleted"),
                    });
                }
                let owner = found.owner(self.calls.field_manager());
                if owner != Owner::Nobody && owner != Owner::Service(&apply.service_id) {
                    let by = owner.to_string();
                    return Err(GatewayError::Conflict { resource: resource.clone(), by });
                }
                if found.carries(apply, self.calls.field_manager()) {
                    return Ok(Applied { generation: found.generation(), changed: false });
                }
            }
            // Where nothing is, there is nothing to take over. What somebody makes meanwhile is looked at first.
            let force = apply.force && found.is_some();
            match self.apply_once(apply, found.as_ref(), force).await {
                Ok(applied) if applied.is_what_is_wanted(apply, self.calls.field_manager()) => {
                    let before = found.as_ref().map(KnativeResource::generation);
                    let generation = applied.generation();
                    return Ok(Applied { generation, changed: before != Some(generation) });
                }
                // Applied, and somebody else's fields make something else of it.
                Ok(applied) => {
                    let by = applied.other_managers(self.calls.field_manager());
                    return Err(GatewayError::Conflict { resource: resource.clone(), by });
                }
                Err(fault) if fault.is_about_another_one() => {}
                Err(fault) => match fault.other_managers() {
                    // There was nothing when it was looked at: whose it is, the next look shows.
                    Some(_) if found.is_none() => {}
                    Some(by) => return Err(GatewayError::Conflict { resource: resource.clone(), by }),
                    None => return Err(fault.about(resource)),
                },
            }
        }
        Err(changes_too_fast(resource))
    }

    async fn observe(&self, resource: &ResourceName) -> Result<Observed, GatewayError> {
        let Some(found) = self.find(resource).await? else { return Ok(Observed::NotFound) };
        let revisions = self.revisions(resource, &found).await?;
        Ok(Observed::Found(Box::new(found.seen(revisions, self.calls.field_manager()))))
    }

    async fn delete(&self, service_id: &str, resource: &ResourceName) -> Result<Deletion, GatewayError> {
        for _ in 0..ROUNDS {
            let Some(found) = self.find(resource).await? else { return Ok(Deletion::NotFound) };
            // What does not say whose it is is not ours either: somebody made it by hand.
            if found.owner(self.calls.field_manager()) != Owner::Service(service_id) {
                return Ok(Deletion::NotFound);
            }
            if found.is_being_deleted() {
                return Ok(Deletion::Accepted);
            }
            match self.calls.delete(resource, found.uid()).await {
                Ok(()) => return Ok(Deletion::Accepted),
                Err(fault) if fault.says_there_is_no_service(resource) => return Ok(Deletion::NotFound),
                // Another one of the same name: it is looked at first.
                Err(fault) if fault.is_about_another_one() => {}
                Err(fault) => return Err(fault.about(resource)),
            }
        }
        Err(changes_too_fast(resource))
    }

    async fn namespace_exists(&self, namespace: &str) -> Result<bool, GatewayError> {
        match self.calls.namespace(namespace).await {
            Ok(()) => Ok(true),
            Err(fault) if fault.says_there_is_no_namespace(namespace) => Ok(false),
            Err(fault) => Err(fault.about_namespaces()),
        }
    }

    async fn reachable(&self) -> Result<(), GatewayError> {
        match self.calls.any_service().await.map_err(Fault::about_the_server) {
            // It has answered, be it that it does not tell everybody, or has no such thing.
            Ok(()) => Ok(()),
            Err(error) if !error.is_passing() => Ok(()),
            // A server that says when to come back is there.
            Err(GatewayError::Busy { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn watch(&self) -> Result<Option<BoxStream<'static, ResourceName>>, GatewayError> {
        watching::watch(&self.calls, self.known.clone()).await.map(Some)
    }
}

fn changes_too_fast(resource: &ResourceName) -> GatewayError {
    GatewayError::Unavailable {
        message: format!("{resource} was replaced {ROUNDS} times while it was changed"),
    }
}
