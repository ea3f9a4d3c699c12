//! The meaning of the store contract, as cases that every adapter runs.
//!
//! An adapter describes itself with a [`StoreFixture`] and writes one line in a test file:
//!
//! ```ignore
//! towpath_testkit::store_conformance!(SqliteFixture::fresh().await);
//!
//! #[test]
//! fn kill_child() {
//!     towpath_testkit::store::kill::child_main(|url, probe| async move { connect(&url, probe).await });
//! }
//! ```
//!
//! Each case then is a test of its own, named like the case, on a fresh database. A case that needs a promise the
//! adapter does not make ([`StorePromises`](towpath_core::ports::store::StorePromises)) checks what holds instead.
//!
//! No case sleeps: they wait on conditions with a deadline. A bug that is fixed in one adapter becomes a case here.

pub mod acts;
pub mod appends;
pub mod audit;
pub mod channels;
pub mod commands;
pub mod facts;
pub mod idle;
pub mod inbox;
pub mod kill;
pub mod late_commits;
pub mod leases;
pub mod migrations;
pub mod outbox;
pub mod payloads;
pub mod races;
pub mod reads;
pub mod round_trips;
pub mod sequencing;
pub mod statuses;
pub mod timers;
pub mod waiting;
pub mod workload;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_core::ports::probe::{NoProbe, Probe};
use towpath_core::ports::store::Store;

pub use kill::KillChild;

/// One fresh, empty database, and how to reach it. Every case gets a fixture of its own; dropping it may remove
/// the database.
#[async_trait]
pub trait StoreFixture: Send + Sync {
    /// Opens a new, independent connection pool to this fixture's database, without migrating it. Every
    /// statement of the store must go through the probe.
    ///
    /// Cases open up to ten of these at once and leave most of them idle: pools should open connections lazily,
    /// and allow at least four each.
    async fn connect(&self, probe: Arc<dyn Probe>) -> Arc<dyn Store>;

    /// Opens a database session that is not the store's, begins a transaction, reads from Towpath's tables in it
    /// (from `domain_events`, `event_outbox` and `leases` at least), and leaves it open until the answer is
    /// dropped: a forgotten console, a slow report, a dump.
    async fn idle_in_transaction(&self) -> Box<dyn Send>;

    /// Makes the migrated database look as if a newer Towpath had migrated it.
    async fn pretend_newer_schema(&self);

    /// How another process reaches the database, for the case that kills it. `None` only for stores that live in
    /// this process: those are stopped by a panic instead.
    fn kill_child(&self) -> Option<KillChild>;

    /// A migrated store with a connection pool of its own.
    async fn store(&self) -> Arc<dyn Store> {
        let store = self.connect(Arc::new(NoProbe)).await;
        store.migrate().await.expect("migrate");
        store
    }

    /// A migrated store whose statements a probe sees; it has not seen those of the migration.
    async fn store_with_probe(&self, probe: Arc<dyn Probe>) -> Arc<dyn Store> {
        self.store().await;
        self.connect(probe).await
    }
}

/// Runs one case with a deadline, so that a lock that is never released fails one test and does not hang them all.
pub async fn run_case(name: &str, case: impl Future<Output = ()>) {
    const DEADLINE: Duration = Duration::from_secs(300);
    if tokio::time::timeout(DEADLINE, case).await.is_err() {
        panic!("{name} did not end within {DEADLINE:?}: something waits for a lock or a connection for ever");
    }
}

/// Expands to one test per case of the suite. The expression makes a fresh [`StoreFixture`]; it is evaluated in an
/// async function, once per test. The crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_conformance {
    ($fixture:expr) => {
        $crate::for_each_store_case!($crate::store_conformance_test, $fixture);
    };
}

/// One test of [`store_conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! store_conformance_test {
    ($module:ident, $case:ident, $fixture:expr) => {
        #[::tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $case() {
            let fixture = $fixture;
            let case = $crate::store::$module::$case(&fixture);
            $crate::store::run_case(stringify!($case), case).await;
        }
    };
}

/// The cases, by module. A test below compares this list with the source: no case can be forgotten.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_store_case {
    ($($callback:ident)::+, $fixture:expr) => { compile_error!("callbacks are written $crate::name"); };
}
