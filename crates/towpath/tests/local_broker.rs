//! The broker contract on the in-process broker, over each database, and what is its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::Fresh;
use towpath::ports::broker::Broker;
use towpath::ports::store::Store;
use towpath::{LocalBroker, LocalOptions, SqlStore, StoreOptions, StoreUrl};
use towpath_testkit::broker::BrokerFixture;
use uuid::Uuid;

mod conformance_on_sqlite {
    towpath_testkit::broker_conformance!(super::LocalFixture::on("sqlite").await);
}

mod conformance_on_postgres {
    towpath_testkit::broker_conformance!(super::LocalFixture::on("postgres").await);
}

mod conformance_on_mysql {
    towpath_testkit::broker_conformance!(super::LocalFixture::on("mysql").await);
}

/// Every handle has connections of its own, as in another process.
struct LocalFixture(Fresh);

impl LocalFixture {
    async fn on(server: &str) -> Self {
        let fresh = Fresh::on(server).await;
        connect(fresh.url()).await.migrate().await.unwrap();
        Self(fresh)
    }
}

async fn connect(url: &str) -> SqlStore {
    let options = StoreOptions { max_connections: 4, ..StoreOptions::default() };
    SqlStore::connect_with(&StoreUrl::parse(url).unwrap(), options).await.unwrap()
}

#[async_trait::async_trait]
impl BrokerFixture for LocalFixture {
    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(LocalBroker::over(Arc::new(connect(self.0.url()).await), LocalOptions::default()))
    }

    fn fresh_name(&self, what: &str) -> String {
        format!("test.{}.{what}", Uuid::now_v7())
    }
}
