//! The handler's transaction.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use towpath_core::aggregate::Aggregate;
use towpath_core::envelope::{ChangeContext, RecordedEvent};
use towpath_core::ids::{
    AggregateKey, CausationId, CommandId, CorrelationId, EventId, HandlerName, Lane, Version,
};
use towpath_core::incoming::IncomingEvent;
use towpath_core::name::CommandName;
use towpath_core::ports::store::{Append, Appended, NewCommand, NewTimer, StoreError};
use towpath_core::to_variant;
use towpath_store::{OwnTables, SqlTransaction, Value, sqlx};
use uuid::Uuid;

use crate::bus::Bus;
use crate::consumer::HandlerError;
use crate::observer::ObserverWake;
use crate::service::Wake;

/// The transaction in which a handler works. It commits when the handler answers `handled`, together with the mark that
/// the delivery was handled; otherwise nothing in it happened.
pub struct HandlerTx {
    pub(crate) inner: SqlTransaction,
    bus: Bus,
    runner: Wake,
    handler: HandlerName,
    /// Commands recorded so far because of each event; numbers their ids.
    sent: HashMap<EventId, u32>,
    /// Whom to wake after the commit.
    after: Afterwards,
}

#[derive(Default)]
struct Afterwards {
    facts: bool,
    event_types: Vec<String>,
    channels: Vec<(String, Lane)>,
    timer_due_at: Option<DateTime<Utc>>,
    observers: Vec<ObserverWake>,
}

/// A connection of another database was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is not on {asked}")]
pub struct WrongDatabase {
    asked: &'static str,
}

impl HandlerTx {
    pub(crate) fn new(inner: SqlTransaction, bus: &Bus, runner: &Wake, handler: &HandlerName) -> Self {
        Self {
            inner,
            bus: bus.clone(),
            runner: runner.clone(),
            handler: handler.clone(),
            sent: HashMap::new(),
            after: Afterwards::default(),
        }
    }

    /// The connection, on PostgreSQL. A statement on it that nobody answers ends with the handler's attempt, once
    /// others of the store have waited in vain as well.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Result<&mut sqlx::PgConnection, WrongDatabase> {
        self.inner.postgres().ok_or(WrongDatabase { asked: "PostgreSQL" })
    }

    /// The connection, on SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Result<&mut sqlx::SqliteConnection, WrongDatabase> {
        self.inner.sqlite().ok_or(WrongDatabase { asked: "SQLite" })
    }

    /// The connection, on MySQL and MariaDB. A statement on it that nobody answers ends with the handler's attempt, as on
    /// PostgreSQL.
    #[cfg(feature = "mysql")]
    pub fn mysql(&mut self) -> Result<&mut sqlx::MySqlConnection, WrongDatabase> {
        self.inner.mysql().ok_or(WrongDatabase { asked: "MySQL" })
    }

    /// Runs one statement without parameters' types being known: each `?` takes one of the texts. The statement must
    /// mean the same on the database in use; for anything else ask for the connection.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] also when the database does not answer within the time limit of statements: the
    /// connection is given up then, and the transaction with it.
    pub async fn execute(&mut self, sql: &'static str, texts: &[&str]) -> Result<u64, StoreError> {
        let values = texts.iter().map(|text| Value::from(*text)).collect();
        self.inner.own_tables().execute("handler.execute", sql, values).await
    }

    /// Statements on the application's own tables, on any of the databases.
    pub fn own_tables(&mut self) -> OwnTables<'_> {
        self.inner.own_tables()
    }

    /// Wakes an observer of this process once this has committed.
    pub fn wake_after_commit(&mut self, observer: &ObserverWake) {
        self.after.observers.push(observer.clone());
    }

    /// The committed facts of an aggregate behind a version, in order: for a handler that was given one before those that
    /// it follows. Not part of the transaction.
    pub async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.bus.store.events_of(aggregate, after, limit).await
    }

    /// Appends facts. For a kind of aggregate that is registered, its machine is asked, and its state, history, deadline and
    /// folded state follow.
    ///
    /// # Errors
    /// `ForbiddenEvent` for what the aggregate cannot have now; `VersionConflict`, `DuplicateEvent`.
    pub async fn append(&mut self, append: &Append) -> Result<Appended, StoreError> {
        let registry = self.bus.registry.clone();
        let (appended, written) = self.inner.append_by(registry.as_ref(), append).await?;
        self.note(&written);
        if let Some(timer) = &written.deadline.enters {
            self.note_timer(timer.due_at);
        }
        Ok(appended)
    }

    /// Appends facts of another log as they are there: what has happened there is not judged here.
    pub(crate) async fn append_as_it_is(&mut self, append: &Append) -> Result<Appended, StoreError> {
        let appended = self.inner.append_facts(append).await?;
        self.note(append);
        Ok(appended)
    }

    fn note(&mut self, append: &Append) {
        self.after.facts = true;
        self.after.event_types.extend(append.events.iter().map(|event| event.event_type.to_string()));
        let (channels, lane) =
            (append.events.iter().flat_map(|event| event.channels.channels()), append.aggregate.lane());
        self.after.channels.extend(channels.map(|channel| (channel.to_string(), lane)));
    }

    fn note_timer(&mut self, due_at: DateTime<Utc>) {
        let soonest = self.after.timer_due_at.map_or(due_at, |noted| noted.min(due_at));
        self.after.timer_due_at = Some(soonest);
    }

    /// Records a command that follows from a fact. It commits with the rest and is then run by a worker. Its id comes
    /// from the fact and the handler, so that it is one command however often the fact is delivered.
    pub async fn send<A: Aggregate>(
        &mut self,
        because_of: &IncomingEvent,
        aggregate_id: impl AsRef<str>,
        command: A::Command,
    ) -> Result<(), HandlerError> {
        let (name, payload) = to_variant(&command)?;
        let number = self.sent.entry(because_of.event_id).or_default();
        *number += 1;
        let id = format!("{}/{}/{number}", because_of.event_id, self.handler);
        let correlation_id = match &because_of.correlation_id {
            Some(correlation_id) => correlation_id.clone(),
            None => CorrelationId::of_new_flow(Uuid::now_v7()),
        };
        let mut context = ChangeContext::new(self.bus.clock.now(), correlation_id);
        context.causation_id = Some(CausationId::from_stored(because_of.event_id.to_string()));
        context.trace_id.clone_from(&because_of.trace_id);
        let command = NewCommand {
            command_id: CommandId::new(id)?,
            command_type: CommandName::from_stored(name),
            aggregate: AggregateKey::new(A::KIND, aggregate_id)?,
            payload,
            context,
        };
        self.inner.accept_command(&command).await?;
        Ok(())
    }

    /// Schedules a timer.
    pub async fn schedule(&mut self, timer: &NewTimer) -> Result<(), StoreError> {
        self.inner.add_timer(timer).await?;
        self.note_timer(timer.due_at);
        Ok(())
    }

    /// Cancels a timer that has not begun; answers whether it did.
    pub async fn cancel(&mut self, timer_id: Uuid) -> Result<bool, StoreError> {
        let now = self.bus.clock.now();
        self.inner.remove_timer(timer_id, now).await
    }

    /// Commits, if the transaction and the mark of this delivery still stand; then wakes whom it concerns. Answers the
    /// next transaction, where one is open already.
    pub(crate) async fn commit(
        self,
        marked: Option<EventId>,
        handler: &HandlerName,
    ) -> Result<Option<SqlTransaction>, StoreError> {
        let next = match marked {
            Some(event_id) => self.inner.finish_marked(event_id, handler).await?,
            None => {
                self.inner.finish().await?;
                None
            }
        };
        self.bus.meters.committed(self.after.event_types.iter().map(String::as_str));
        if self.after.facts {
            self.bus.committed.wake();
            self.bus.told.wake();
        }
        for (channel, lane) in &self.after.channels {
            self.bus.relays.wake(channel, *lane);
        }
        if let Some(due_at) = self.after.timer_due_at {
            self.bus.timers.scheduled(due_at);
        }
        self.after.observers.iter().for_each(ObserverWake::wake);
        if !self.sent.is_empty() {
            self.runner.wake();
            self.bus.told.wake();
        }
        Ok(next)
    }
}
