//! Open transactions: ours, and the caller's own.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, HandlerName};
use towpath_core::ports::operations::{OperationAnswer, OperationClaim};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    Append, Appended, InboxMark, NewCommand, NewTimer, StoreError, StoreResult, StoreTx,
};
use uuid::Uuid;

use std::sync::Arc;

use crate::dialect::Dialect;
use crate::lent::{Care, Ended, Lent, Limits};
use crate::ops;
use crate::sql::{Session, classify};

/// A transaction of the store's own, open on one of the three databases. Dropped without a commit, it is rolled back.
pub struct SqlTransaction {
    pub(crate) inner: Inner,
    pub(crate) probe: Arc<dyn Probe>,
    /// For the statements of a guest.
    pub(crate) limits: Limits,
    /// Somebody else has run statements here, and we have not seen how they ended.
    pub(crate) was_handed_out: bool,
    /// It has ended before its commit.
    pub(crate) ended: Option<Ended>,
}

pub(crate) enum Inner {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Lent<sqlx::Postgres>),
    #[cfg(feature = "postgres")]
    PostgresGuest(sqlx::Transaction<'static, sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(Lent<sqlx::MySql>),
    #[cfg(feature = "mysql")]
    MySqlGuest(sqlx::Transaction<'static, sqlx::MySql>),
}

impl SqlTransaction {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let (probe, ended) = (self.probe.as_ref(), &mut self.ended);
        match &mut self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => {
                let care = Care::of_a_file(false).noting(ended, Dialect::Sqlite);
                Session::sqlite(&mut *transaction, probe, care)
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => {
                let (connection, care) = lent.parts();
                Session::postgres(connection, probe, care.noting(ended, Dialect::Postgres))
            }
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(guest) => {
                let care = Care::of_a_guest(self.limits.clone()).noting(ended, Dialect::Postgres);
                Session::postgres(&mut *guest, probe, care)
            }
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => {
                let (connection, care) = lent.parts();
                Session::mysql(connection, probe, care.noting(ended, Dialect::MySql))
            }
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(guest) => {
                let care = Care::of_a_guest(self.limits.clone()).noting(ended, Dialect::MySql);
                Session::mysql(&mut *guest, probe, care)
            }
        }
    }

    /// How it has ended already, if it has: then it cannot be committed.
    pub fn ended_by(&self) -> Option<Ended> {
        self.ended
    }

    /// Notes an error of a statement that somebody else ran on the connection.
    pub fn note(&mut self, error: &StoreError) {
        let dialect = self.session().dialect();
        self.ended = self.ended.or_else(|| Ended::by(error, dialect));
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
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("commit", guest.commit()).await?)
            }
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("commit", guest.commit()).await?)
            }
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
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("rollback", guest.rollback()).await?)
            }
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("rollback", guest.rollback()).await?)
            }
        }
    }
}

#[async_trait]
impl StoreTx for SqlTransaction {
    async fn append(&mut self, append: &Append) -> StoreResult<Appended> {
        ops::append::append_tx(&mut self.session(), append).await
    }

    async fn mark(
        &mut self,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark> {
        ops::inbox::mark(&mut self.session(), event_id, handler, now).await
    }

    async fn schedule(&mut self, timer: &NewTimer) -> StoreResult<()> {
        ops::timers::schedule(&mut self.session(), timer).await
    }

    async fn cancel(&mut self, timer_id: Uuid, now: DateTime<Utc>) -> StoreResult<bool> {
        ops::timers::cancel(&mut self.session(), timer_id, now).await
    }

    async fn answer(
        &mut self,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        ops::operations::answer(&mut self.session(), claim, answer, now).await
    }

    async fn send(&mut self, command: &NewCommand) -> StoreResult<bool> {
        ops::commands::accept_once(&mut self.session(), command).await
    }

    async fn begin_unit(&mut self, unit_id: Uuid) -> StoreResult<bool> {
        ops::units::begin(&mut self.session(), unit_id).await
    }

    async fn commit(self: Box<Self>) -> StoreResult<()> {
        SqlTransaction::commit(*self).await
    }

    async fn rollback(self: Box<Self>) -> StoreResult<()> {
        SqlTransaction::rollback(*self).await
    }
}

/// A sqlx transaction of the application's own, which is moved in: Towpath's writes join it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that Towpath can join",
    note = "pass a `sqlx::Transaction<'static, _>` on SQLite, PostgreSQL or MySQL, as a pool's `begin()` gives it"
)]
pub trait JoinTransaction: sealed::IntoInner {}

impl<T: sealed::IntoInner> JoinTransaction for T {}

pub(crate) mod sealed {
    use super::Inner;

    pub trait IntoInner {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
        fn into_inner(self) -> Inner;
    }
}

macro_rules! joins {
    ($feature:literal, $database:ty, $variant:ident) => {
        #[cfg(feature = $feature)]
        impl sealed::IntoInner for sqlx::Transaction<'static, $database> {
            #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
            fn into_inner(self) -> Inner {
                Inner::$variant(self)
            }
        }
    };
}

joins!("sqlite", sqlx::Sqlite, Sqlite);
joins!("postgres", sqlx::Postgres, PostgresGuest);
joins!("mysql", sqlx::MySql, MySqlGuest);
