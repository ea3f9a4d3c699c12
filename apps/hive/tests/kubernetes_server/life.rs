//! Hive as a whole on a real API server: from the request to the deletion, with what people do by hand between them.

use std::sync::Arc;
use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::json;
use towpath::Towpath;
use towpath::retry::RetryPolicy;
use towpath_hive::Hive;
use towpath_hive::service::{DeleteAsked, Service, ServiceAsked, ServiceCommand, ServiceStatus, UpdateAsked};

use crate::cluster::Cluster;
use crate::support::{Fresh, eventually, settings, update};

struct Life {
    app: Towpath,
    id: String,
    _store: Fresh,
}

impl Life {
    /// Hive on a cluster, and the request for a service `cart` there.
    async fn begin(cluster: &Cluster, interval: Duration) -> Self {
        let store = Fresh::on("sqlite").await;
        let settings = towpath_hive::HiveSettings { interval, ..settings() };
        let hive = Hive::new(settings, Arc::new(cluster.gateway().await));
        let builder = Towpath::builder()
            .store(store.url())
            .broker("local:")
            .scan(Duration::from_millis(50))
            .command_retries(RetryPolicy::Fixed(vec![Duration::from_millis(30); 3]));
        let app = hive.install(builder).start().await.expect("start");
        let life = Self { app, id: format!("{}.cart", cluster.namespace), _store: store };
        let asked = ServiceAsked {
            name: "cart".to_owned(),
            namespace: cluster.namespace.clone(),
            image: "registry.example/cart:1".to_owned(),
            ..ServiceAsked::default()
        };
        // The server of these tests serves no namespaces: that is not known then, and keeps nothing back.
        life.send(ServiceCommand::Create(asked)).await;
        life
    }

    async fn service(&self) -> Service {
        self.app.load::<Service>(&self.id).await.unwrap().expect("it exists").value
    }

    async fn send(&self, command: ServiceCommand) {
        self.app.send::<Service>(&self.id, command).await.expect("accepted");
    }

    async fn reaches(&self, status: ServiceStatus) -> Service {
        self.is(&format!("it becomes {}", status.as_str()), |service| service.status == Some(status)).await
    }

    async fn is(&self, what: &str, holds: impl Fn(&Service) -> bool) -> Service {
        eventually(what, || async {
            let service = self.service().await;
            holds(&service).then_some(service)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_whole_life_on_kubernetes() {
    let cluster = Cluster::reach().await;
    let _knative = cluster.controller();
    // The scan is a minute away: what happens within seconds was told by the watch.
    let life = Life::begin(&cluster, Duration::from_secs(60)).await;
    let ready = life.reaches(ServiceStatus::Ready).await;
    assert_eq!(ready.snapshot.unwrap().latest_ready_revision.as_deref(), Some("cart-00001"));

    life.send(update("registry.example/cart:2")).await;
    let updated = life.reaches(ServiceStatus::Ready).await;
    assert_eq!(updated.snapshot.unwrap().latest_ready_revision.as_deref(), Some("cart-00002"));

    life.send(update("registry.example/broken:1")).await;
    let failed = life.reaches(ServiceStatus::Failed).await;
    assert_eq!(failed.failure.unwrap().reason, "RevisionFailed");
    life.send(update("registry.example/cart:3")).await;
    life.reaches(ServiceStatus::Ready).await;

    // Somebody edits it by hand: seen and recorded, and not undone. An update does not take it over, a forced one does.
    let mine = json!([{ "image": "registry.example/mine:1" }]);
    cluster.edit("cart", json!({ "spec": { "template": { "spec": { "containers": mine } } } })).await;
    let drifted = life.is("the drift is seen", |service| {
        service.snapshot.as_ref().is_some_and(|seen| seen.present && !seen.hash_match)
    });
    assert_eq!(drifted.await.status, Some(ServiceStatus::Ready));
    life.send(update("registry.example/cart:4")).await;
    let refused = life.reaches(ServiceStatus::Failed).await;
    assert_eq!(refused.failure.unwrap().reason, "gateway-conflict");
    let forced = UpdateAsked {
        image: "registry.example/cart:4".to_owned(),
        force_replace: true,
        ..UpdateAsked::default()
    };
    life.send(ServiceCommand::Update(forced.clone())).await;
    life.reaches(ServiceStatus::Ready).await;

    // Somebody sends all requests to an earlier revision: an update is not READY while they go there.
    let pinned = json!([{ "revisionName": "cart-00001", "percent": 100 }]);
    cluster.edit("cart", json!({ "spec": { "traffic": pinned } })).await;
    life.is("the pinned route is seen", |service| {
        service.snapshot.as_ref().is_some_and(|seen| seen.present && !seen.hash_match)
    })
    .await;
    life.send(update("registry.example/cart:5")).await;
    let refused = life.reaches(ServiceStatus::Failed).await;
    assert_eq!(refused.failure.unwrap().reason, "gateway-conflict");
    life.send(ServiceCommand::Update(forced)).await;
    life.reaches(ServiceStatus::Ready).await;

    // Somebody deletes it by hand: seen and recorded, and an update brings it back.
    cluster.services().delete("cart", &DeleteParams::default()).await.unwrap();
    life.is("its absence is seen", |service| service.snapshot.as_ref().is_some_and(|seen| !seen.present))
        .await;
    life.send(update("registry.example/cart:5")).await;
    life.is("it is back", |service| {
        service.status == Some(ServiceStatus::Ready)
            && service.snapshot.as_ref().is_some_and(|seen| seen.present)
    })
    .await;

    life.send(ServiceCommand::Delete(DeleteAsked::default())).await;
    let deleted = life.reaches(ServiceStatus::Deleted).await;
    assert!(!deleted.snapshot.unwrap().present);
    assert!(cluster.services().get_opt("cart").await.unwrap().is_none());
    life.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_service_that_lost_its_label_is_deleted_all_the_same() {
    let cluster = Cluster::reach().await;
    let _knative = cluster.controller();
    // What has no label is not watched, so the scan finds it.
    let life = Life::begin(&cluster, Duration::from_millis(200)).await;
    life.reaches(ServiceStatus::Ready).await;
    cluster.edit("cart", json!({ "metadata": { "labels": { "towpath.dev/service-id": null } } })).await;
    life.send(ServiceCommand::Delete(DeleteAsked::default())).await;
    let deleted = life.reaches(ServiceStatus::Deleted).await;
    assert!(!deleted.snapshot.unwrap().present);
    assert!(cluster.services().get_opt("cart").await.unwrap().is_none(), "it still runs");
    life.app.stop().await;
}
