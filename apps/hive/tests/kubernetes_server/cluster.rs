//! A real API server with Knative's kinds of resources, and a small controller that plays Knative on it.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use towpath_hive::gateway::kubernetes::{Credentials, KubernetesGateway, KubernetesSettings};
use towpath_hive::spec::ResourceName;

use crate::support::eventually;

/// The server, and a namespace of the test's own. Namespaces are no resources there: a new name is enough.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    kubeconfig: PathBuf,
}

impl Cluster {
    pub(crate) async fn reach() -> Self {
        let url = std::env::var("TOWPATH_TEST_KUBECONFIG")
            .expect("TOWPATH_TEST_KUBECONFIG is not set: run `cargo xtask test --kube`");
        let kubeconfig = PathBuf::from(url.strip_prefix("file://").expect("a file:// URL"));
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let namespace = format!("test-{}", uuid::Uuid::new_v4().simple());
        let cluster = Self { client, namespace, kubeconfig };
        cluster.install("Service", "services", service_schema()).await;
        let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        cluster.install("Revision", "revisions", anything).await;
        cluster
    }

    pub(crate) async fn gateway(&self) -> KubernetesGateway {
        self.gateway_of(&KubernetesSettings::default().field_manager).await
    }

    /// As another installation of hive has it.
    pub(crate) async fn gateway_of(&self, installation: &str) -> KubernetesGateway {
        let settings = KubernetesSettings {
            credentials: Credentials::Kubeconfig { path: self.kubeconfig.clone(), context: None },
            field_manager: installation.to_owned(),
            ..KubernetesSettings::default()
        };
        KubernetesGateway::connect(settings).await.unwrap()
    }

    pub(crate) fn resource(&self, name: &str) -> ResourceName {
        ResourceName::new(&self.namespace, name)
    }

    pub(crate) fn services(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind("Service", "services"))
    }

    pub(crate) fn revisions(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind("Revision", "revisions"))
    }

    /// Somebody edits a resource with a tool of their own.
    pub(crate) async fn edit(&self, name: &str, change: Value) {
        let by_hand =
            PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
        self.services().patch(name, &by_hand, &Patch::Merge(change)).await.unwrap();
    }

    /// Plays Knative in this namespace until it is dropped.
    pub(crate) fn controller(&self) -> Controller {
        let (services, revisions) = (self.services(), self.revisions());
        Controller(tokio::spawn(async move {
            let mut events = watcher::watcher(services.clone(), watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event {
                    reconcile(&services, &revisions, &object).await;
                }
            }
        }))
    }

    /// Makes the server serve a kind of resource. All tests do it, at the same time; the effect is one.
    async fn install(&self, kind_name: &str, plural: &str, spec: Value) {
        let definitions = ApiResource {
            group: "apiextensions.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "apiextensions.k8s.io/v1".to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            plural: "customresourcedefinitions".to_owned(),
        };
        let definitions: Api<DynamicObject> = Api::all_with(self.client.clone(), &definitions);
        let name = format!("{plural}.serving.knative.dev");
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": name },
            "spec": {
                "group": "serving.knative.dev",
                "scope": "Namespaced",
                "names": { "kind": kind_name, "plural": plural, "singular": kind_name.to_lowercase() },
                "versions": [{
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                        "spec": spec,
                        "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    } } },
                }],
            },
        });
        let apply = PatchParams::apply("towpath-tests").force();
        definitions.patch(&name, &apply, &Patch::Apply(&definition)).await.unwrap();
        eventually("the kind of resource is served", || async {
            let served: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind(kind_name, plural));
            served.list(&Default::default()).await.ok()
        })
        .await;
    }
}

/// The controller's task.
pub(crate) struct Controller(JoinHandle<()>);

impl Drop for Controller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What Knative does about a service, by its image: one that contains `broken` does not start, one that contains `slow`
/// takes for ever. A resource that is being deleted has nothing left to wait for.
async fn reconcile(services: &Api<DynamicObject>, revisions: &Api<DynamicObject>, object: &DynamicObject) {
    let name = object.name_any();
    if object.metadata.deletion_timestamp.is_some() {
        // The part of the garbage collector: the dependents are gone, so the resource may go.
        for revision in revisions_of(revisions, &name).await {
            let _ = revisions.delete(&revision, &DeleteParams::default()).await;
        }
        let released = json!({ "metadata": { "finalizers": null } });
        let _ = services.patch(&name, &PatchParams::default(), &Patch::Merge(&released)).await;
        return;
    }
    let generation = object.metadata.generation.unwrap_or_default();
    if object.data["status"]["observedGeneration"] == json!(generation) {
        return;
    }
    let template = &object.data["spec"]["template"];
    let image = template["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
    let revision = format!("{name}-{generation:05}");
    let made = json!({
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Revision",
        "metadata": {
            "name": revision,
            "labels": { "serving.knative.dev/service": name },
            "annotations": template["metadata"]["annotations"],
        },
        "spec": template["spec"],
    });
    let apply = PatchParams::apply("knative").force();
    let _ = revisions.patch(&revision, &apply, &Patch::Apply(&made)).await;
    let (ready, reason) = match image {
        image if image.contains("broken") => ("False", "RevisionFailed"),
        image if image.contains("slow") => ("Unknown", "Deploying"),
        _ => ("True", ""),
    };
    let condition =
        |kind: &str| json!({ "type": kind, "status": ready, "reason": reason, "message": "played" });
    let mut status = json!({
        "observedGeneration": generation,
        "conditions": [condition("ConfigurationsReady"), condition("Ready"), condition("RoutesReady")],
        "latestCreatedRevisionName": revision,
    });
    if ready == "True" {
        status["latestReadyRevisionName"] = json!(revision);
        let all_to_the_latest = || vec![json!({ "percent": 100, "latestRevision": true })];
        let mut targets =
            object.data["spec"]["traffic"].as_array().cloned().unwrap_or_else(all_to_the_latest);
        for target in &mut targets {
            if target["latestRevision"] == true {
                target["revisionName"] = json!(revision);
            }
        }
        status["traffic"] = json!(targets);
        status["url"] = json!(format!("http://{name}.example.com"));
    }
    let status = json!({ "status": status });
    let _ = services.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
}

async fn revisions_of(revisions: &Api<DynamicObject>, service: &str) -> Vec<String> {
    let selector = format!("serving.knative.dev/service={service}");
    let listed = revisions.list(&kube::api::ListParams::default().labels(&selector)).await;
    listed.map(|list| list.items.iter().map(|revision| revision.name_any()).collect()).unwrap_or_default()
}

pub(crate) fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: "serving.knative.dev".to_owned(),
        version: "v1".to_owned(),
        api_version: "serving.knative.dev/v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// The part of Knative's own schema that hive writes or reads, with defaults that Knative fills in: on a cluster its webhook
/// does, here the schema does. The list of containers is one value, as it is there, and a volume that nothing mounts is refused.
fn service_schema() -> Value {
    const MOUNTED: &str = "!has(self.volumes) || self.volumes.all(volume, self.containers.exists(container, \
                           has(container.volumeMounts) && container.volumeMounts.exists(mount, mount.name == volume.name)))";
    let text = json!({ "type": "string" });
    let entry = json!({
        "type": "object",
        "required": ["name"],
        "properties": { "name": text, "value": text, "valueFrom": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
    });
    let anything = json!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    // Rules are only taken for lists and names whose lengths are bounded.
    let named = json!({ "type": "array", "maxItems": 8, "items": {
        "type": "object",
        "required": ["name"],
        "properties": { "name": { "type": "string", "maxLength": 63 } },
        "x-kubernetes-preserve-unknown-fields": true,
    } });
    let container = json!({ "type": "object", "properties": {
        "name": text,
        "image": { "type": "string", "minLength": 1 },
        "args": { "type": "array", "items": text },
        "command": { "type": "array", "items": text },
        "workingDir": text,
        "envFrom": anything,
        "volumeMounts": named,
        "ports": anything,
        "env": { "type": "array", "items": entry, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] },
    } });
    let pod = json!({ "type": "object", "properties": {
        "containerConcurrency": { "type": "integer", "format": "int64", "default": 0 },
        "timeoutSeconds": { "type": "integer", "format": "int64", "default": 300 },
        "containers": { "type": "array", "maxItems": 8, "items": container },
        "initContainers": anything,
        "volumes": named,
    }, "x-kubernetes-validations": [{ "rule": MOUNTED, "message": "a volume is not mounted" }] });
    let metadata = json!({ "type": "object", "properties": {
        "annotations": { "type": "object", "additionalProperties": text },
    } });
    json!({ "type": "object", "properties": {
        "template": { "type": "object", "properties": { "metadata": metadata, "spec": pod } },
        "traffic": anything,
    } })
}

/// How long a change may take to be told.
pub(crate) const SOON: Duration = Duration::from_secs(20);
