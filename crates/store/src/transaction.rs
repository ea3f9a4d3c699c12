//! Open transactions: ours, and the caller's own.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, HandlerName};
use towpath_core::ports::operations::{OperationAnswer, OperationClaim};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{Append, Appended, InboxMark, NewTimer, StoreResult, StoreTx};
use uuid::Uuid;

use std::sync::Arc;

use crate::lent::{Care, Lent, Limits};
use crate::ops;
use crate::sql::{Session, classify};

/// A transaction of the store's own, open on one of the three databases. Dropped without a commit, it is rolled back.
pub struct SqlTransaction {
    pub(crate) inner: Inner,
    pub(crate) probe: Arc<dyn Probe>,
}

pub(crate) enum Inner {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Lent<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(Lent<sqlx::MySql>),
}

impl SqlTransaction {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let probe = self.probe.as_ref();
        match &mut self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => Session::sqlite(&mut *transaction, probe, Care::of_a_file(false)),
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => {
                let (connection, care) = lent.parts();
                Session::postgres(connection, probe, care)
            }
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => {
                let (connection, care) = lent.parts();
                Session::mysql(connection, probe, care)
            }
        }
    }

    pub(crate) async fn commit(self) -> StoreResult<()> {
        self.probe.before("commit");
        match self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => {
                transaction.commit().await.map_err(|error| classify("commit", error).into())
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => lent.commit().await,
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => lent.commit().await,
        }
    }

    pub(crate) async fn rollback(self) -> StoreResult<()> {
        self.probe.before("rollback");
        match self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => {
                transaction.rollback().await.map_err(|error| classify("rollback", error).into())
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => lent.rollback().await,
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => lent.rollback().await,
        }
    }
}

#[async_trait]
impl StoreTx for SqlTransaction {
    async fn append(&mut self, append: &Append) -> StoreResult<Appended> {
        ops::append::append_tx(&mut self.session(), append).await
    }

    async fn mark_inbox(
        &mut self,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark> {
        ops::inbox::mark(&mut self.session(), event_id, handler, now).await
    }

    async fn schedule_timer(&mut self, timer: &NewTimer) -> StoreResult<()> {
        ops::timers::schedule(&mut self.session(), timer).await
    }

    async fn cancel_timer(&mut self, timer_id: Uuid, now: DateTime<Utc>) -> StoreResult<bool> {
        ops::timers::cancel(&mut self.session(), timer_id, now).await
    }

    async fn answer_operation(
        &mut self,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        ops::operations::answer(&mut self.session(), claim, answer, now).await
    }

    async fn commit(self: Box<Self>) -> StoreResult<()> {
        SqlTransaction::commit(*self).await
    }

    async fn rollback(self: Box<Self>) -> StoreResult<()> {
        SqlTransaction::rollback(*self).await
    }
}

/// A sqlx transaction (or connection) of the application's own, which Towpath's writes can join.
///
/// Implemented for the three databases' connections; a `&mut sqlx::Transaction<'_, Postgres>` dereferences to
/// one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that Towpath can join",
    note = "pass `&mut *transaction` of a sqlx transaction on SQLite, PostgreSQL or MySQL"
)]
pub trait JoinTransaction: sealed::AsSession + Send {}

impl<T: sealed::AsSession + Send> JoinTransaction for T {}

pub(crate) mod sealed {
    use super::{Limits, Probe, Session};

    pub trait AsSession {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
        fn as_session<'c>(&'c mut self, probe: &'c dyn Probe, limits: Limits) -> Session<'c>;
    }
}

macro_rules! joins {
    ($feature:literal, $database:ty, $connection:ty, $session:ident) => {
        #[cfg(feature = $feature)]
        impl sealed::AsSession for $connection {
            #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
            fn as_session<'c>(&'c mut self, probe: &'c dyn Probe, limits: Limits) -> Session<'c> {
                Session::$session(self, probe, Care::of_a_guest(limits))
            }
        }

        #[cfg(feature = $feature)]
        impl sealed::AsSession for sqlx::Transaction<'_, $database> {
            #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
            fn as_session<'c>(&'c mut self, probe: &'c dyn Probe, limits: Limits) -> Session<'c> {
                Session::$session(&mut *self, probe, Care::of_a_guest(limits))
            }
        }
    };
}

joins!("sqlite", sqlx::Sqlite, sqlx::SqliteConnection, sqlite);
joins!("postgres", sqlx::Postgres, sqlx::PgConnection, postgres);
joins!("mysql", sqlx::MySql, sqlx::MySqlConnection, mysql);
