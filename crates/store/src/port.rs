//! The ports that the store serves: each method is one operation, and says whether it reads, is one statement, or needs a
//! transaction.

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
use towpath_core::ports::queues::{
    Ending, Layout, Parcel, PutError, QueueDepth, Queues, Receiver, TakenMessage,
};
use towpath_core::ports::store::{
    ChannelRow, CommandRecord, CommandResult, CommandSession, CompletedCommand, Counts, Disabled,
    FailedCommand, FailedFilter, FailedRow, Flow, Found, InboxEntry, InboxFailure, LeaseGrant, LeaseStanding,
    Loaded, NewCommand, OutboxClaim, OutboxItem, OutboxResult, OutboxRow, Parked, ParkedAggregate, Sequenced,
    StateEvent, Store, StoreError, StorePromises, StoreResult, StoreTx, Timer, TimerOutcome, TrackerPlace,
};
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::floors::Place;
use crate::ops;
use crate::store::{OpenConnection, Purpose, SqlStore, listing, reading, transacting, writing_once};

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
                transaction.session().without_limit().plain("migrate.lock", lock).await?;
            }
            let applied = crate::migrate::apply(&mut transaction.session().without_limit()).await?;
            transaction.commit().await?;
            return Ok(applied);
        }
        // MySQL's named lock belongs to the connection and is freed when that ends, even by a kill.
        let mut connection = self.connection(Purpose::Write).await?;
        let mut session = connection.session().without_limit();
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

    async fn now(&self) -> StoreResult<DateTime<Utc>> {
        reading!(self, ops::leases::now)
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

    async fn clean_commands(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::cleaning::commands, lease, ended_before, limit)
    }

    async fn command(&self, command_id: &CommandId) -> StoreResult<Option<CommandRecord>> {
        reading!(self, ops::commands::find, command_id)
    }

    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>> {
        listing!(self, ops::commands::counts)
    }

    async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, ops::reads::events_of, aggregate, after, limit)
    }

    async fn events_of_within(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, ops::reads::events_of_within, aggregate, after, limit, bytes)
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
        listing!(self, ops::reads::flow, correlation, limit)
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
        let sequenced = transacting!(self, ops::log::sequence, lease, limit, self.floors())?;
        self.taken(&Place::Pending, sequenced.count).await;
        Ok(sequenced)
    }

    async fn head(&self) -> StoreResult<Position> {
        reading!(self, ops::log::head)
    }

    async fn events_between(&self, low: Position, high: Position) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, ops::log::events_between, low, high)
    }

    async fn events_within(
        &self,
        low: Position,
        high: Position,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, ops::log::events_within, low, high, bytes)
    }

    async fn claim_outbox(&self, claim: &OutboxClaim<'_>) -> StoreResult<Vec<OutboxItem>> {
        // Only what one look has seen at once: rows of several looks could pass each other.
        loop {
            let look = reading!(self, ops::outbox::look, claim, self.floors())?;
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

    async fn skip_outbox(&self, outbox_id: u64, reason: &str, now: DateTime<Utc>) -> StoreResult<bool> {
        transacting!(self, ops::outbox::skip, outbox_id, reason, now)
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
        listing!(self, ops::failed::list, filter, after, limit)
    }

    async fn count_failed(&self, filter: &FailedFilter) -> StoreResult<u64> {
        listing!(self, ops::failed::count, filter)
    }

    async fn reopen_failed(&self, filter: &FailedFilter, limit: u32, now: DateTime<Utc>) -> StoreResult<u64> {
        transacting!(self, ops::failed::reopen_some, filter, limit, now)
    }

    async fn clean_outbox(
        &self,
        lease: &LeaseGrant,
        sent_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::cleaning::outbox, lease, sent_before, limit, self.walked())
    }

    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
        reading!(self, ops::outbox::of_event, event_id)
    }

    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>> {
        listing!(self, ops::outbox::counts, channel)
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
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::cleaning::inbox, lease, handled_before, limit)
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
        transacting!(self, ops::channels::remove, name, by, reason, now)
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

    async fn park_in_channel(
        &self,
        lease: &LeaseGrant,
        channel_id: Uuid,
        from: TrackerPlace,
        to: Position,
        parked: &[ParkedAggregate],
        opened: &[AggregateKey],
    ) -> StoreResult<bool> {
        transacting!(self, ops::channels::park, lease, channel_id, from, to, parked, opened)
    }

    async fn parked_in_channel(
        &self,
        channel_id: Uuid,
        reset_count: u64,
        which: Parked<'_>,
    ) -> StoreResult<Vec<ParkedAggregate>> {
        reading!(self, ops::channels::parked, channel_id, reset_count, which)
    }

    async fn reopen_parked(&self, name: &ChannelName, now: DateTime<Utc>) -> StoreResult<u64> {
        writing_once!(self, ops::channels::reopen_parked, name, now)
    }

    async fn reset_channel(&self, name: &ChannelName, position: Position) -> StoreResult<()> {
        transacting!(self, ops::channels::reset, name, position)
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

    async fn take_messages(
        &self,
        receiver: &Receiver,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<TakenMessage>> {
        // Mostly there is nothing: then one read is all it costs.
        let waiting = reading!(self, ops::queues::look, &receiver.queue)?;
        if !waiting.ready && !waiting.due {
            return Ok(Vec::new());
        }
        transacting!(self, ops::queues::take, receiver, waiting, limit, bytes)
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
        listing!(self, ops::queues::depth, queue)
    }

    async fn queue_depths(&self, queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>> {
        listing!(self, ops::queues::depths, queues)
    }
}
