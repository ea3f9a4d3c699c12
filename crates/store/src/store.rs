//! The store over a pool of connections: which operation runs in which transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{
    ActorId, AggregateKey, ChannelName, CommandId, CorrelationId, EventId, HandlerName, InstanceId,
    LeaseName, Position, TenantId, Version,
};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::broker::Topology;
use towpath_core::ports::operations::{OperationAnswer, OperationClaim};
use towpath_core::ports::probe::{NoProbe, Probe};
use towpath_core::ports::queues::{
    Ending, Layout, Parcel, PutError, QueueDepth, Queues, Receiver, TakenMessage,
};
use towpath_core::ports::store::{
    Append, Appended, ChannelRow, Cleaned, CommandRecord, CommandResult, CommandSession, CompletedCommand,
    Counts, Disabled, FailedCommand, FailedFilter, FailedRow, Flow, Found, InboxEntry, InboxFailure,
    InboxMark, LeaseGrant, LeaseStanding, Loaded, NewCommand, NewTimer, OutboxClaim, OutboxItem,
    OutboxResult, OutboxRow, Sequenced, StateEvent, Store, StoreError, StorePromises, StoreResult, StoreTx,
    Timer, TimerOutcome, TrackerPlace,
};
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::floors::{Floors, Place};
use crate::ops;
use crate::sql::{Session, classify};
use crate::transaction::{Inner, JoinTransaction, SqlTransaction};
use crate::url::StoreUrl;

/// A store on SQLite, PostgreSQL or MySQL/MariaDB. Clones share their connections.
#[derive(Clone)]
pub struct SqlStore {
    pool: Pool,
    probe: Arc<dyn Probe>,
    floors: Floors,
}

/// How to connect.
#[derive(Clone)]
pub struct StoreOptions {
    /// How many connections at most. SQLite writes on one and reads on the others.
    pub max_connections: u32,
    /// How long to wait for a connection before the store counts as unavailable.
    pub acquire_timeout: Duration,
    /// Sees every statement.
    pub probe: Arc<dyn Probe>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { max_connections: 10, acquire_timeout: Duration::from_secs(5), probe: Arc::new(NoProbe) }
    }
}

#[derive(Clone)]
pub(crate) enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite { writer: sqlx::SqlitePool, readers: sqlx::SqlitePool },
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

impl SqlStore {
    /// Connects with the default options.
    pub async fn connect(url: &str) -> StoreResult<Self> {
        Self::connect_with(&StoreUrl::parse(url)?, StoreOptions::default()).await
    }

    /// Connects. The database must exist, except for SQLite, where the file and its folder are made.
    pub async fn connect_with(url: &StoreUrl, options: StoreOptions) -> StoreResult<Self> {
        let pool = match url {
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => connect_sqlite_patiently(path, &options).await?,
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url } => connect_postgres(url, &options).await?,
            #[cfg(feature = "mysql")]
            StoreUrl::MySql { url } => connect_mysql(url, &options).await?,
            #[allow(unreachable_patterns, reason = "reachable when a database is not built in")]
            other => return Err(StoreError::BadUrl(format!("this build cannot open {other}"))),
        };
        Ok(Self { pool, probe: options.probe, floors: Floors::default() })
    }

    /// The same connections, with another probe.
    pub fn with_probe(&self, probe: Arc<dyn Probe>) -> Self {
        Self { pool: self.pool.clone(), probe, floors: self.floors.clone() }
    }

    /// Appends facts inside the application's own transaction: they commit with its own changes or not at all.
    ///
    /// # Guarantees
    /// Versions of the aggregate stay unique and gapless; the events get outbox rows and, after the commit,
    /// positions, exactly as those of commands do.
    ///
    /// # Errors
    /// `VersionConflict` and `DuplicateEvent`: nothing of this append was written; roll the transaction back.
    pub async fn append_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        append: &Append,
    ) -> StoreResult<Appended> {
        ops::append::append_tx(&mut transaction.as_session(self.probe.as_ref()), append).await
    }

    /// Writes the answer of a claimed operation inside the application's own transaction, which has its effect.
    ///
    /// # Errors
    /// `Fenced` when the claim was lost: roll the transaction back, somebody else does it.
    pub async fn answer_operation_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        ops::operations::answer(&mut transaction.as_session(self.probe.as_ref()), claim, answer, now).await
    }

    /// Marks a delivery as handled inside the application's own transaction.
    pub async fn mark_inbox_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark> {
        ops::inbox::mark(&mut transaction.as_session(self.probe.as_ref()), event_id, handler, now).await
    }

    /// Schedules a timer inside the application's own transaction.
    pub async fn schedule_timer_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        timer: &NewTimer,
    ) -> StoreResult<()> {
        ops::timers::schedule(&mut transaction.as_session(self.probe.as_ref()), timer).await
    }

    /// Cancels a timer inside the application's own transaction.
    pub async fn cancel_timer_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        timer_id: Uuid,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        ops::timers::cancel(&mut transaction.as_session(self.probe.as_ref()), timer_id, now).await
    }

    /// The pool, for the application's own tables: the one connection that writes. Whoever holds a transaction of it
    /// must not await a command meanwhile: that would wait for the same connection.
    #[cfg(feature = "sqlite")]
    pub fn sqlite_pool(&self) -> Option<&sqlx::SqlitePool> {
        match &self.pool {
            Pool::Sqlite { writer, .. } => Some(writer),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The pool, for the application's own tables.
    #[cfg(feature = "postgres")]
    pub fn postgres_pool(&self) -> Option<&sqlx::PgPool> {
        match &self.pool {
            Pool::Postgres(pool) => Some(pool),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The pool, for the application's own tables.
    #[cfg(feature = "mysql")]
    pub fn mysql_pool(&self) -> Option<&sqlx::MySqlPool> {
        match &self.pool {
            Pool::MySql(pool) => Some(pool),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// Closes all connections and waits until they are closed.
    pub async fn close(&self) {
        match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.close().await,
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => pool.close().await,
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn floors(&self) -> &Floors {
        &self.floors
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { .. } => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Pool::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Pool::MySql(_) => Dialect::MySql,
        }
    }

    /// A connection for reading and for single statements that commit themselves.
    pub(crate) async fn connection(&self, purpose: Purpose) -> StoreResult<OpenConnection> {
        let inner = match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, readers } => {
                let pool = if purpose == Purpose::Read { readers } else { writer };
                pool.acquire().await.map(InnerConnection::Sqlite)
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.acquire().await.map(InnerConnection::Postgres),
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => pool.acquire().await.map(InnerConnection::MySql),
        };
        let _ = purpose;
        Ok(OpenConnection {
            inner: inner.map_err(|error| classify("connect", error))?,
            probe: self.probe.clone(),
        })
    }

    /// Notes that rows of a place were taken, and lets its floor rise.
    async fn taken(&self, place: &Place, rows: u64) {
        if !self.dialect().keeps_floors() || !self.floors.is_time(place, rows) {
            return;
        }
        let raised = async {
            let mut connection = self.connection(Purpose::Read).await?;
            self.floors.raise(&mut connection.session(), place).await
        };
        // A floor saves work and nothing depends on it. What is wrong with the database the next look will say.
        let _ = raised.await;
        self.floors.asked(place);
    }

    pub(crate) async fn transaction(&self) -> StoreResult<SqlTransaction> {
        self.probe.before("begin");
        let inner = match &self.pool {
            // A write transaction from its first statement: one that begins by reading and then wants to write
            // would have to give up when another was quicker.
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, .. } => writer.begin_with("BEGIN IMMEDIATE").await.map(Inner::Sqlite),
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.begin().await.map(Inner::Postgres),
            // sqlx notes that a MySQL transaction is open only when BEGIN was answered: a caller that is dropped
            // while it waits would give the connection back with a transaction open on it. In a task of its own
            // the call runs to its end, and what it opened is rolled back.
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => {
                let pool = pool.clone();
                match tokio::spawn(async move { pool.begin().await }).await {
                    Ok(begun) => begun.map(Inner::MySql),
                    Err(error) => return Err(StoreError::Unavailable(error.into())),
                }
            }
        };
        Ok(SqlTransaction {
            inner: inner.map_err(|error| classify("begin", error))?,
            probe: self.probe.clone(),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

pub(crate) struct OpenConnection {
    inner: InnerConnection,
    probe: Arc<dyn Probe>,
}

enum InnerConnection {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::pool::PoolConnection<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(sqlx::pool::PoolConnection<sqlx::MySql>),
}

impl OpenConnection {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let probe = self.probe.as_ref();
        match &mut self.inner {
            #[cfg(feature = "sqlite")]
            InnerConnection::Sqlite(connection) => Session::sqlite(&mut *connection, probe),
            #[cfg(feature = "postgres")]
            InnerConnection::Postgres(connection) => Session::postgres(&mut *connection, probe),
            #[cfg(feature = "mysql")]
            InnerConnection::MySql(connection) => Session::mysql(&mut *connection, probe),
        }
    }
}

/// Runs an operation on a connection for reading.
macro_rules! reading {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection(Purpose::Read).await?;
        $operation(&mut connection.session() $(, $argument)*).await
    }};
}

pub(crate) use reading;

/// Runs an operation that is one statement, and so its own transaction.
macro_rules! writing_once {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection(Purpose::Write).await?;
        $operation(&mut connection.session() $(, $argument)*).await
    }};
}

pub(crate) use writing_once;

/// Runs an operation in a transaction; on an error it is rolled back.
macro_rules! transacting {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut transaction = $store.transaction().await?;
        match $operation(&mut transaction.session() $(, $argument)*).await {
            Ok(answer) => {
                transaction.commit().await?;
                Ok(answer)
            }
            Err(error) => {
                // What matters is why it failed; a connection that cannot even roll back is closed by the pool.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }};
}

pub(crate) use transacting;

#[async_trait]
impl Store for SqlStore {
    fn promises(&self) -> StorePromises {
        match self.dialect() {
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => StorePromises {
                database: "SQLite",
                concurrent_writers: false,
                many_hosts: false,
                single_statement_write: false,
                partial_unique_index: true,
                notifies: false,
            },
            #[cfg(feature = "postgres")]
            Dialect::Postgres => StorePromises {
                database: "PostgreSQL",
                concurrent_writers: true,
                many_hosts: true,
                single_statement_write: true,
                partial_unique_index: true,
                notifies: true,
            },
            #[cfg(feature = "mysql")]
            Dialect::MySql => StorePromises {
                database: "MariaDB/MySQL",
                concurrent_writers: true,
                many_hosts: true,
                single_statement_write: false,
                partial_unique_index: false,
                notifies: false,
            },
        }
    }

    async fn migrate(&self) -> StoreResult<Vec<u32>> {
        // Mostly there is nothing to do, and then no lock is needed: an instance can start beside a long writer.
        match self.ready().await {
            Err(StoreError::NotMigrated { .. }) => {}
            ready => return ready.map(|()| Vec::new()),
        }
        if self.dialect().transactional_ddl() {
            let mut transaction = self.transaction().await?;
            if let Some(lock) = self.dialect().migration_lock() {
                transaction.session().plain("migrate.lock", lock).await?;
            }
            let applied = crate::migrate::apply(&mut transaction.session()).await?;
            transaction.commit().await?;
            return Ok(applied);
        }
        // MySQL's named lock belongs to the connection and is freed when that ends, even by a kill.
        let mut connection = self.connection(Purpose::Write).await?;
        let mut session = connection.session();
        let lock = "SELECT GET_LOCK(CONCAT('towpath.', MD5(DATABASE())), 60) AS granted";
        let granted = session.row("migrate.lock", lock, Vec::new()).await?;
        if granted.map(|row| row.long_or_null("granted")).transpose()?.flatten() != Some(1) {
            return Err(StoreError::Contention("another instance has been migrating for a minute".into()));
        }
        let applied = crate::migrate::apply(&mut session).await;
        session.plain("migrate.unlock", "DO RELEASE_LOCK(CONCAT('towpath.', MD5(DATABASE())))").await?;
        applied
    }

    async fn ready(&self) -> StoreResult<()> {
        reading!(self, crate::migrate::check)
    }

    async fn begin(&self) -> StoreResult<Box<dyn StoreTx>> {
        Ok(Box::new(self.transaction().await?))
    }

    async fn load(&self, aggregate: &AggregateKey, command: Option<&CommandId>) -> StoreResult<Loaded> {
        reading!(self, ops::reads::load, aggregate, command)
    }

    async fn command_session(&self) -> StoreResult<Box<dyn CommandSession>> {
        Ok(Box::new(SqlCommandSession { store: self.clone(), connection: None }))
    }

    async fn complete_command(&self, completed: &CompletedCommand) -> StoreResult<CommandResult> {
        match (&completed.found, &completed.append) {
            _ if completed.fence.is_some() => transacting!(self, ops::commands::complete_fenced, completed),
            (Found::Nowhere, None) => writing_once!(self, ops::commands::complete_new, completed),
            (Found::Nowhere, Some(facts)) if ops::append::is_one_statement(self.dialect(), facts) => {
                writing_once!(self, ops::commands::complete_new, completed)
            }
            (Found::Nowhere, Some(_)) => transacting!(self, ops::commands::complete_new, completed),
            (Found::Failed { .. } | Found::Claimed(_), _) => {
                transacting!(self, ops::commands::complete_found, completed)
            }
        }
    }

    async fn fail_command(&self, failed: &FailedCommand) -> StoreResult<()> {
        match failed.found {
            Found::Claimed(_) => transacting!(self, ops::commands::fail, failed),
            Found::Nowhere | Found::Failed { .. } => writing_once!(self, ops::commands::fail, failed),
        }
    }

    async fn accept_command(&self, command: &NewCommand) -> StoreResult<Option<CommandRecord>> {
        match writing_once!(self, ops::commands::accept, command) {
            Ok(()) => Ok(None),
            Err(StoreError::DuplicateCommand(id)) => self.command(&id).await,
            Err(error) => Err(error),
        }
    }

    async fn requeue_command(
        &self,
        command_id: &CommandId,
        retry_count: u32,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        writing_once!(self, ops::commands::requeue, command_id, retry_count, now)
    }

    async fn claim_commands(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<CommandRecord>> {
        transacting!(self, ops::commands::claim, lease, command_types, now, limit)
    }

    async fn return_commands(
        &self,
        grant: &LeaseGrant,
        command_ids: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        writing_once!(self, ops::commands::give_back, grant, command_ids, now)
    }

    async fn return_unseen_commands(
        &self,
        grant: &LeaseGrant,
        seen: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        writing_once!(self, ops::commands::give_back_unseen, grant, seen, now)
    }

    async fn recover_commands(&self, now: DateTime<Utc>, most: u32) -> StoreResult<u64> {
        transacting!(self, ops::commands::recover, now, most)
    }

    async fn command(&self, command_id: &CommandId) -> StoreResult<Option<CommandRecord>> {
        reading!(self, ops::commands::find, command_id)
    }

    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>> {
        reading!(self, ops::commands::counts)
    }

    async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, ops::reads::events_of, aggregate, after, limit)
    }

    async fn history_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<StateEvent>> {
        reading!(self, ops::reads::history_of, aggregate, after, limit)
    }

    async fn last_state_change(&self, aggregate: &AggregateKey) -> StoreResult<Option<StateEvent>> {
        reading!(self, ops::reads::last_state_change, aggregate)
    }

    async fn flow(&self, correlation: &CorrelationId, limit: u32) -> StoreResult<Flow> {
        reading!(self, ops::reads::flow, correlation, limit)
    }

    async fn set_status(
        &self,
        aggregate: &AggregateKey,
        status: &str,
        reason: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        writing_once!(self, ops::reads::set_status, aggregate, status, reason, now)
    }

    async fn add_status_value(&self, tenant: &TenantId, value: &str) -> StoreResult<()> {
        writing_once!(self, ops::reads::add_status_value, tenant, value)
    }

    async fn sequence(&self, lease: &LeaseGrant, limit: u32) -> StoreResult<Sequenced> {
        let sequenced = transacting!(self, ops::log::sequence, lease, limit, &self.floors)?;
        self.taken(&Place::Pending, sequenced.count).await;
        Ok(sequenced)
    }

    async fn head(&self) -> StoreResult<Position> {
        reading!(self, ops::log::head)
    }

    async fn events_between(&self, low: Position, high: Position) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, ops::log::events_between, low, high)
    }

    async fn claim_outbox(&self, claim: &OutboxClaim<'_>) -> StoreResult<Vec<OutboxItem>> {
        // Only what one look has seen at once: rows of several looks could pass each other.
        loop {
            let look = reading!(self, ops::outbox::look, claim, &self.floors)?;
            let set_aside = if look.behind.is_empty() {
                0
            } else {
                transacting!(self, ops::outbox::park_behind, claim, &look.behind)?
            };
            // With nothing ready and nothing set aside the next look would see the same.
            if !look.ready.is_empty() || set_aside == 0 {
                self.taken(&Place::Outbox(claim.channel.clone()), look.ready.len() as u64).await;
                return Ok(look.ready);
            }
        }
    }

    async fn record_outbox(
        &self,
        leases: &[LeaseGrant],
        channel: &ChannelName,
        now: DateTime<Utc>,
        results: &[OutboxResult],
    ) -> StoreResult<()> {
        transacting!(self, ops::outbox::record, leases, channel, now, results)
    }

    async fn reopen_outbox(&self, outbox_ids: &[u64], now: DateTime<Utc>) -> StoreResult<u64> {
        transacting!(self, ops::outbox::reopen, outbox_ids, now)
    }

    async fn failed_outbox(
        &self,
        filter: &FailedFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<FailedRow>> {
        reading!(self, ops::failed::list, filter, after, limit)
    }

    async fn count_failed(&self, filter: &FailedFilter) -> StoreResult<u64> {
        reading!(self, ops::failed::count, filter)
    }

    async fn reopen_failed(&self, filter: &FailedFilter, limit: u32, now: DateTime<Utc>) -> StoreResult<u64> {
        transacting!(self, ops::failed::reopen_some, filter, limit, now)
    }

    async fn clean_outbox(
        &self,
        lease: &LeaseGrant,
        sent_before: DateTime<Utc>,
        after: u64,
        limit: u32,
    ) -> StoreResult<Cleaned<u64>> {
        transacting!(self, ops::cleaning::outbox, lease, sent_before, after, limit)
    }

    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
        reading!(self, ops::outbox::of_event, event_id)
    }

    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>> {
        reading!(self, ops::outbox::counts, channel)
    }

    async fn acquire_lease(
        &self,
        lease: &LeaseName,
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Option<LeaseGrant>> {
        transacting!(self, ops::leases::acquire, lease, holder, for_)
    }

    async fn acquire_leases(
        &self,
        leases: &[LeaseName],
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Vec<LeaseGrant>> {
        transacting!(self, ops::leases::acquire_all, leases, holder, for_)
    }

    async fn renew_leases(&self, grants: &[LeaseGrant], for_: Duration) -> StoreResult<Vec<LeaseGrant>> {
        transacting!(self, ops::leases::renew_all, grants, for_)
    }

    async fn leases(&self, prefix: &str) -> StoreResult<Vec<LeaseStanding>> {
        reading!(self, ops::leases::list, prefix)
    }

    async fn renew_lease(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<()> {
        writing_once!(self, ops::leases::renew, grant, for_)
    }

    async fn release_lease(&self, grant: &LeaseGrant) -> StoreResult<()> {
        writing_once!(self, ops::leases::release, grant)
    }

    async fn release_leases(&self, grants: &[LeaseGrant]) -> StoreResult<()> {
        transacting!(self, ops::leases::release_all, grants)
    }

    async fn fail_delivery(&self, failure: &InboxFailure<'_>) -> StoreResult<u32> {
        transacting!(self, ops::inbox::fail, failure)
    }

    async fn clean_inbox(
        &self,
        lease: &LeaseGrant,
        handled_before: DateTime<Utc>,
        after: Option<EventId>,
        limit: u32,
    ) -> StoreResult<Cleaned<EventId>> {
        transacting!(self, ops::cleaning::inbox, lease, handled_before, after, limit)
    }

    async fn inbox_entry(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<Option<InboxEntry>> {
        reading!(self, ops::inbox::find, event_id, handler)
    }

    async fn claim_timers(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<Timer>> {
        transacting!(self, ops::timers::claim, lease, command_types, now, limit)
    }

    async fn return_unseen_timers(
        &self,
        grant: &LeaseGrant,
        seen: &[Uuid],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        writing_once!(self, ops::timers::give_back_unseen, grant, seen, now)
    }

    async fn finish_timer(
        &self,
        lease: &LeaseGrant,
        timer_id: Uuid,
        outcome: &TimerOutcome,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        transacting!(self, ops::timers::finish, lease, timer_id, outcome, now)
    }

    async fn waiting_timers(&self, command_types: Option<&[&str]>, limit: u32) -> StoreResult<Vec<Timer>> {
        reading!(self, ops::timers::waiting, command_types, limit)
    }

    async fn timer(&self, timer_id: Uuid) -> StoreResult<Option<Timer>> {
        reading!(self, ops::timers::find, timer_id)
    }

    async fn add_channel(
        &self,
        channel_id: Uuid,
        name: &ChannelName,
        position: Position,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        writing_once!(self, ops::channels::add, channel_id, name, position, now)
    }

    async fn disable_channel(&self, name: &ChannelName, disabled: Option<&Disabled>) -> StoreResult<()> {
        writing_once!(self, ops::channels::disable, name, disabled)
    }

    async fn remove_channel(
        &self,
        name: &ChannelName,
        by: Option<&ActorId>,
        reason: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        writing_once!(self, ops::channels::remove, name, by, reason, now)
    }

    async fn advance_channel(
        &self,
        lease: &LeaseGrant,
        channel_id: Uuid,
        from: TrackerPlace,
        to: Position,
    ) -> StoreResult<bool> {
        transacting!(self, ops::channels::advance, lease, channel_id, from, to)
    }

    async fn reset_channel(&self, name: &ChannelName, position: Position) -> StoreResult<()> {
        writing_once!(self, ops::channels::reset, name, position)
    }

    async fn channels(&self) -> StoreResult<Vec<ChannelRow>> {
        reading!(self, ops::channels::list)
    }
}

/// Keeps the connection that loaded for the write, where one statement writes everything. Elsewhere the write needs
/// a transaction, which takes a connection of its own (on SQLite the one that writes).
struct SqlCommandSession {
    store: SqlStore,
    connection: Option<OpenConnection>,
}

#[async_trait]
impl CommandSession for SqlCommandSession {
    async fn load(&mut self, aggregate: &AggregateKey, command: &CommandId) -> StoreResult<Loaded> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.store.connection(Purpose::Read).await?,
        };
        let loaded = ops::reads::load(&mut connection.session(), aggregate, Some(command)).await?;
        if self.store.dialect().nests_writes() {
            self.connection = Some(connection);
        }
        Ok(loaded)
    }

    fn release(&mut self) {
        self.connection = None;
    }

    async fn complete(&mut self, completed: &CompletedCommand) -> StoreResult<CommandResult> {
        let one_statement = matches!((&completed.found, &completed.append), (Found::Nowhere, Some(facts))
            if ops::append::is_one_statement(self.store.dialect(), facts) && completed.fence.is_none());
        match self.connection.take().filter(|_| one_statement) {
            Some(mut connection) => {
                let result = ops::commands::complete_new(&mut connection.session(), completed).await;
                self.connection = Some(connection);
                result
            }
            None => self.store.complete_command(completed).await,
        }
    }
}

#[async_trait]
impl Queues for SqlStore {
    async fn layout(&self) -> StoreResult<Layout> {
        reading!(self, ops::queues::layout)
    }

    async fn extend_layout(&self, revision: u64, additions: &Topology) -> StoreResult<bool> {
        transacting!(self, ops::queues::extend_layout, revision, additions)
    }

    async fn put_messages(&self, revision: u64, parcels: &[Parcel<'_>]) -> Result<bool, PutError> {
        let mut transaction = self.transaction().await.map_err(PutError::NotWritten)?;
        match ops::queues::put(&mut transaction.session(), revision, parcels).await {
            Ok(true) => match transaction.commit().await {
                Ok(()) => Ok(true),
                // By its meaning: all of it was rolled back.
                Err(error @ StoreError::Contention(_)) => Err(PutError::NotWritten(error)),
                Err(error) => Err(PutError::Unknown(error)),
            },
            Ok(false) => {
                let _ = transaction.rollback().await;
                Ok(false)
            }
            Err(error) => {
                let _ = transaction.rollback().await;
                Err(PutError::NotWritten(error))
            }
        }
    }

    async fn begin_receiving(&self, lease: &LeaseName, for_: Duration) -> StoreResult<LeaseGrant> {
        transacting!(self, ops::queues::begin_receiving, lease, for_)
    }

    async fn keep_receiving(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<bool> {
        writing_once!(self, ops::queues::keep_receiving, grant, for_)
    }

    async fn end_receiving(&self, receiver: &Receiver) -> StoreResult<()> {
        transacting!(self, ops::queues::end_receiving, receiver)
    }

    async fn take_messages(&self, receiver: &Receiver, limit: u32) -> StoreResult<Vec<TakenMessage>> {
        // Mostly there is nothing: then one read is all it costs.
        let waiting = reading!(self, ops::queues::look, &receiver.queue)?;
        if !waiting.ready && !waiting.due {
            return Ok(Vec::new());
        }
        transacting!(self, ops::queues::take, receiver, waiting, limit)
    }

    async fn end_messages(&self, grant: &LeaseGrant, endings: &[Ending]) -> StoreResult<()> {
        if ops::queues::is_one_statement(endings) {
            return writing_once!(self, ops::queues::end, grant, endings);
        }
        transacting!(self, ops::queues::end, grant, endings)
    }

    async fn recover_messages(&self) -> StoreResult<u64> {
        let mut all = 0;
        loop {
            let recovered = transacting!(self, ops::queues::recover)?;
            all += recovered;
            if !ops::queues::may_be_more(recovered) {
                break;
            }
        }
        writing_once!(self, ops::queues::forget_receivers)?;
        Ok(all)
    }

    async fn queue_depth(&self, queue: &str) -> StoreResult<QueueDepth> {
        reading!(self, ops::queues::depth, queue)
    }

    async fn queue_depths(&self, queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>> {
        reading!(self, ops::queues::depths, queues)
    }
}

/// Two processes that open a new file at once both switch it to WAL, and SQLite does not let the second wait: it is
/// told "locked" and has to try again.
#[cfg(feature = "sqlite")]
async fn connect_sqlite_patiently(path: &str, options: &StoreOptions) -> StoreResult<Pool> {
    let deadline = tokio::time::Instant::now() + options.acquire_timeout;
    loop {
        match connect_sqlite(path, options).await {
            Err(StoreError::Contention(_)) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            connected => return connected,
        }
    }
}

#[cfg(feature = "sqlite")]
async fn connect_sqlite(path: &str, options: &StoreOptions) -> StoreResult<Pool> {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

    if let Some(folder) = std::path::Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).map_err(|error| StoreError::Unavailable(error.into()))?;
    }
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // In WAL mode NORMAL could lose the last commits in a power cut: a fact that was answered must stay.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(options.acquire_timeout);
    // SQLite has one writer at a time. One connection that writes makes writers queue fairly in this process
    // instead of polling the file for its lock.
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(options.acquire_timeout.max(Duration::from_secs(30)))
        .test_before_acquire(false)
        .connect_with(connect.clone())
        .await
        .map_err(|error| classify("connect", error))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(options.max_connections.max(2) - 1)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .connect_with(connect)
        .await
        .map_err(|error| classify("connect", error))?;
    Ok(Pool::Sqlite { writer, readers })
}

/// How long a statement waits for a lock on PostgreSQL.
#[cfg(feature = "postgres")]
const LOCK_TIMEOUT_MILLIS: &str = "5000";

/// How long a transaction may sleep on PostgreSQL.
#[cfg(feature = "postgres")]
const IDLE_TRANSACTION_MILLIS: &str = "60000";

#[cfg(feature = "postgres")]
async fn connect_postgres(url: &str, options: &StoreOptions) -> StoreResult<Pool> {
    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    let connect: PgConnectOptions =
        url.parse().map_err(|error: sqlx::Error| StoreError::BadUrl(error.to_string()))?;
    let pool = PgPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        // A dead connection shows itself at its first statement, which is answered as "unavailable" and may be
        // repeated; asking every time would cost a round trip per command.
        .test_before_acquire(false)
        // Whoever waits for a lock longer than this gives way and is run again, and whoever sleeps inside a transaction
        // is thrown out of it: neither may stall the others for ever.
        .connect_with(connect.application_name("towpath").options([
            ("lock_timeout", LOCK_TIMEOUT_MILLIS),
            ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_MILLIS),
        ]))
        .await
        .map_err(|error| classify("connect", error))?;
    Ok(Pool::Postgres(pool))
}

#[cfg(feature = "mysql")]
async fn connect_mysql(url: &str, options: &StoreOptions) -> StoreResult<Pool> {
    use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

    let connect: MySqlConnectOptions =
        url.parse().map_err(|error: sqlx::Error| StoreError::BadUrl(error.to_string()))?;
    let pool = MySqlPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move {
                // Gap locks of the default level would make unrelated writers wait for each other and deadlock;
                // nothing here depends on them.
                // Strict mode refuses what a column cannot hold instead of cutting it off silently.
                sqlx::raw_sql(
                    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                     SET SESSION innodb_lock_wait_timeout = 5; \
                     SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",
                )
                .execute(&mut *connection)
                .await?;
                // MariaDB throws out whoever sleeps inside a transaction; MySQL does not know the variable.
                let _ = sqlx::raw_sql("SET SESSION idle_transaction_timeout = 60").execute(connection).await;
                Ok(())
            })
        })
        .connect_with(connect.charset("utf8mb4"))
        .await
        .map_err(|error| classify("connect", error))?;
    Ok(Pool::MySql(pool))
}
