//! The transaction: one name for each thing that can be done in it, wherever it is open.
//!
//! It is the same in a unit of work ([`Towpath::transact`]), in a handler, and around the application's own sqlx transaction
//! ([`Towpath::join`]).

mod processes;
mod states;
mod tasks;

pub(crate) use processes::LockedProcess;
pub use states::{BeginState, ChangeState};
pub use tasks::StartTask;

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::{Mutex, OwnedMutexGuard};
use towpath_core::aggregate::Aggregate;
use towpath_core::append::IntoAppend;
use towpath_core::envelope::{ChangeContext, RecordedEvent};
use towpath_core::ids::{AggregateKey, CausationId, CommandId, CorrelationId, EventId, HandlerName, Version};
use towpath_core::incoming::IncomingEvent;
use towpath_core::name::CommandName;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::operations::OperationAnswer;
use towpath_core::ports::store::{
    Append, AppendRules, Appended, BoxError, InboxMark, NewCommand, NewTimer, StoreError, StoreTx as _,
};
use towpath_core::retry::Coded as _;
use towpath_core::to_variant;
use towpath_store::{JoinTransaction, OwnTables, SqlTransaction, Value, sqlx};
use uuid::Uuid;

use crate::bus::Bus;
use crate::circumstances::Circumstances;
use crate::committed::Committed;
use crate::consumer::HandlerError;
use crate::observer::{Look, ObserverWake, Watch, Watched};
use crate::operations::claim_to_answer;
use crate::towpath::Towpath;

/// So many bytes of payload a change may have that is handed over whole.
const LARGEST_CHANGE: u64 = 16 * 1024 * 1024;

/// An open transaction. What is done in it commits together, or none of it has happened.
pub struct Tx(Held);

/// Whose it is while it is used.
enum Held {
    /// Its own.
    Own(Box<Open>),
    /// That of a unit of work or of a delivery, which has it back when this is dropped.
    Lent(OwnedMutexGuard<Open>),
}

/// Who lends a transaction out, to one at a time.
#[derive(Clone)]
pub(crate) struct Lender(Arc<Mutex<Open>>);

impl Lender {
    pub(crate) fn new(open: Open) -> Self {
        Self(Arc::new(Mutex::new(open)))
    }

    /// # Errors
    /// `TransactionLost`: whoever had it last has kept it.
    pub(crate) fn lend(&self) -> Result<Tx, StoreError> {
        let guard = Arc::clone(&self.0).try_lock_owned().map_err(|_| kept())?;
        Ok(Tx(Held::Lent(guard)))
    }

    /// # Errors
    /// `TransactionLost`: whoever had it last has kept it.
    pub(crate) fn take_back(self) -> Result<Open, StoreError> {
        Ok(Arc::into_inner(self.0).ok_or_else(kept)?.into_inner())
    }
}

fn kept() -> StoreError {
    StoreError::TransactionLost("it is kept beyond what it was for".to_owned())
}

/// What an open transaction is made of.
pub(crate) struct Open {
    pub(crate) sql: SqlTransaction,
    bus: Bus,
    origin: Origin,
    cause: Option<Cause>,
    /// How many commands were sent because of each fact; numbers their ids.
    sent: HashMap<Option<EventId>, u32>,
    committed: Committed,
    /// Something failed that may be half done: it must not be committed.
    spoilt: Option<String>,
    /// Something is under way. Dropped meanwhile, it is half done.
    is_under_way: bool,
    /// A row is written whose fact is not appended yet.
    is_without_fact: bool,
}

/// What the transaction is for. Ids of commands come from it.
pub(crate) enum Origin {
    Handler(HandlerName),
    Unit(Uuid),
    /// The application's own.
    Joined,
}

/// The fact that the next changes follow from.
struct Cause {
    event_id: EventId,
    context: ChangeContext,
}

/// A connection of another database was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is not on {asked}")]
pub struct WrongDatabase {
    asked: &'static str,
}

impl Open {
    pub(crate) fn new(sql: SqlTransaction, bus: &Bus, origin: Origin) -> Self {
        Self {
            sql,
            bus: bus.clone(),
            origin,
            cause: None,
            sent: HashMap::new(),
            committed: Committed::default(),
            spoilt: None,
            is_under_way: false,
            is_without_fact: false,
        }
    }

    pub(crate) fn of_handler(sql: SqlTransaction, bus: &Bus, handler: &HandlerName) -> Self {
        Self::new(sql, bus, Origin::Handler(handler.clone()))
    }

    /// Commits a handler's, if it and the mark of this delivery still stand; then wakes whom it concerns. Answers the next
    /// transaction, where one is open already.
    pub(crate) async fn commit_marked(
        self,
        marked: Option<EventId>,
        handler: &HandlerName,
    ) -> Result<Option<SqlTransaction>, StoreError> {
        if self.is_left_halfway() {
            return Err(StoreError::TransactionLost(LEFT_HALFWAY.to_owned()));
        }
        let bus = self.bus.clone();
        let (sql, committed) = self.into_parts();
        let next = match marked {
            Some(event_id) => sql.finish_marked(event_id, handler).await?,
            None => {
                sql.finish().await?;
                None
            }
        };
        bus.committed(&committed);
        Ok(next)
    }

    /// The transaction and what to wake after its commit.
    pub(crate) fn into_parts(self) -> (SqlTransaction, Committed) {
        (self.sql, self.committed)
    }

    /// Why it cannot be committed, if it cannot.
    pub(crate) fn spoilt(&self) -> Option<&str> {
        if self.is_left_halfway() { Some(LEFT_HALFWAY) } else { self.spoilt.as_deref() }
    }

    fn is_left_halfway(&self) -> bool {
        self.is_under_way || self.is_without_fact
    }

    /// Begins with something that is half done when it is dropped; [`noted`](Self::noted) ends it. What was left halfway
    /// before stays so: nobody knows whether the database has done it.
    fn begin(&mut self) -> Result<(), StoreError> {
        if self.is_under_way {
            return Err(StoreError::TransactionLost(LEFT_HALFWAY.to_owned()));
        }
        self.is_under_way = true;
        Ok(())
    }

    /// Ends when the connection is lost as far as anybody knows.
    pub(crate) fn connection_lost(&self) -> impl Future<Output = StoreError> + Send + use<> {
        self.sql.lost()
    }

    /// Remembers a failure that may be half done.
    fn noted<T>(&mut self, name: &str, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        self.is_under_way = false;
        if let Err(error) = &outcome {
            self.spoilt.get_or_insert_with(|| format!("{name} has failed in it ({})", error.code()));
        }
        outcome
    }

    /// The circumstances of what happens here now.
    fn context(&self) -> ChangeContext {
        let now = self.bus.clock.now();
        let mut context = match &self.cause {
            Some(cause) => ChangeContext { occurred_at: now, ..cause.context.clone() },
            None => ChangeContext::new(now, CorrelationId::of_new_flow(Uuid::now_v7())),
        };
        Circumstances::current().complete(&mut context);
        context
    }

    /// An id for the next command: the same again when a handler is given the same fact again.
    fn next_command_id(&mut self) -> Result<CommandId, StoreError> {
        let cause = self.cause.as_ref().map(|cause| cause.event_id);
        let number = self.sent.entry(cause).or_default();
        *number += 1;
        let number = *number;
        let id = match (&self.origin, cause) {
            (Origin::Handler(handler), Some(event_id)) => format!("{event_id}/{handler}/{number}"),
            (Origin::Unit(unit_id), _) => format!("{unit_id}/{}", self.sent.values().sum::<u32>()),
            (Origin::Handler(_) | Origin::Joined, _) => Uuid::now_v7().to_string(),
        };
        CommandId::new(id).map_err(|error| invalid("invalid-id", error.into()))
    }
}

const LEFT_HALFWAY: &str = "something in it was left halfway";

pub(crate) fn invalid(code: &'static str, source: BoxError) -> StoreError {
    StoreError::InvalidChange { code, source }
}

impl Tx {
    fn open(&self) -> &Open {
        match &self.0 {
            Held::Own(open) => open,
            Held::Lent(open) => open,
        }
    }

    fn open_mut(&mut self) -> &mut Open {
        match &mut self.0 {
            Held::Own(open) => open,
            Held::Lent(open) => open,
        }
    }

    /// The store's own side of it.
    pub(crate) fn sql(&mut self) -> &mut SqlTransaction {
        &mut self.open_mut().sql
    }

    /// The time by which everything is decided here: the database's, unless a clock was given.
    pub fn now(&self) -> DateTime<Utc> {
        self.open().bus.clock.now()
    }

    /// The connection, on PostgreSQL. A statement on it that nobody answers ends with the handler's attempt or the unit's
    /// round, once others of the store have waited in vain as well; in a joined transaction nobody ends it. What a statement says that fails here should go through [`fault`](Self::fault).
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Result<&mut sqlx::PgConnection, WrongDatabase> {
        self.sql().postgres().ok_or(WrongDatabase { asked: "PostgreSQL" })
    }

    /// The connection, on SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Result<&mut sqlx::SqliteConnection, WrongDatabase> {
        self.sql().sqlite().ok_or(WrongDatabase { asked: "SQLite" })
    }

    /// The connection, on MySQL and MariaDB. A statement on it that nobody answers ends with the handler's attempt, as on
    /// PostgreSQL.
    #[cfg(feature = "mysql")]
    pub fn mysql(&mut self) -> Result<&mut sqlx::MySqlConnection, WrongDatabase> {
        self.sql().mysql().ok_or(WrongDatabase { asked: "MySQL" })
    }

    /// What an error of a statement on the raw connection means; the transaction knows of it then, and a unit of work is run
    /// again if others were quicker.
    pub fn fault(&mut self, name: &'static str, error: sqlx::Error) -> StoreError {
        let fault = towpath_store::fault(name, error);
        self.sql().note(&fault);
        fault
    }

    /// Runs one statement without parameters' types being known: each `?` takes one of the texts. The statement must
    /// mean the same on the database in use; for anything else ask for the connection.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] also when the database does not answer within the time limit of statements: the
    /// connection is given up then, and the transaction with it.
    pub async fn execute(&mut self, sql: &'static str, texts: &[&str]) -> Result<u64, StoreError> {
        let values = texts.iter().map(|text| Value::from(*text)).collect();
        self.own_tables().execute("tx.execute", sql, values).await
    }

    /// Statements on the application's own tables, on any of the databases.
    pub fn own_tables(&mut self) -> OwnTables<'_> {
        self.sql().own_tables()
    }

    /// Says what is wanted of subjects that an observer looks at, or replaces it where that is older; see [`Watch`]. An
    /// observer of this process that is to look now is woken by the commit, one elsewhere finds it at its next scan.
    pub async fn watch(&mut self, observer: &str, watches: &[Watch]) -> Result<(), StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.watch(observer, watches).await;
        open.noted("a watch", outcome)?;
        if watches.iter().any(|watch| matches!(watch.look, Look::AtOnce | Look::UntilSeen)) {
            open.committed.and(Committed::watched(observer));
        }
        Ok(())
    }

    /// Lets an observer look at subjects no more.
    pub async fn unwatch(&mut self, observer: &str, subjects: &[String]) -> Result<(), StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.unwatch(observer, subjects).await;
        open.noted("a watch", outcome)
    }

    /// What is wanted of subjects that are watched; nobody else changes it before this ends.
    pub async fn watched(&mut self, observer: &str, subjects: &[String]) -> Result<Vec<Watched>, StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.watched(observer, subjects).await;
        open.noted("a watch", outcome)
    }

    /// Tells of this, too, once it has committed.
    pub(crate) fn committing(&mut self, more: Committed) {
        self.open_mut().committed.and(more);
    }

    /// Wakes an observer of this process once this has committed.
    pub fn wake_after_commit(&mut self, observer: &ObserverWake) {
        self.open_mut().committed.and(Committed::observed(observer.clone()));
    }

    /// The committed facts of an aggregate behind a version, in order: for a handler that was given one before those that
    /// it follows. Not part of the transaction.
    pub async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.open().bus.store.events_of(aggregate, after, limit).await
    }

    /// All facts that were appended with this one, in order.
    ///
    /// # Errors
    /// Unrecoverable: it is not in the log here (`not-in-the-log`), or they have more bytes together than are read at a time
    /// (`change-too-large`).
    pub(crate) async fn appended_with(
        &mut self,
        event_id: EventId,
    ) -> Result<Vec<RecordedEvent>, HandlerError> {
        let Some(together) = self.sql().facts_of_append(event_id).await? else {
            let message = format!(
                "{event_id} is not in the log of this store, so what was appended with it is not known"
            );
            return Err(HandlerError::unrecoverable("not-in-the-log", message));
        };
        let facts = self.sql().facts_within(&together, LARGEST_CHANGE).await?;
        let bytes = facts.iter().map(|fact| fact.envelope.payload.as_text().len() as u64).sum::<u64>();
        if (facts.len() as u64) < together.count() || bytes > LARGEST_CHANGE {
            let message =
                format!("the {} facts have more than {LARGEST_CHANGE} bytes together", together.count());
            return Err(HandlerError::unrecoverable("change-too-large", message));
        }
        Ok(facts)
    }

    /// The payload of an event in the form of today, as far as its aggregate is known here.
    pub(crate) fn in_form_of_today<'e>(
        &self,
        event: &'e IncomingEvent,
    ) -> Result<Cow<'e, Payload>, InvalidPayload> {
        self.open().bus.registry.in_form_of_today(event)
    }

    /// What is appended and sent from here on follows from this fact. A handler of single deliveries begins so.
    pub fn because_of(&mut self, event: &IncomingEvent) -> &mut Self {
        let open = self.open_mut();
        let correlation_id = match &event.correlation_id {
            Some(correlation_id) => correlation_id.clone(),
            None => CorrelationId::of_new_flow(Uuid::now_v7()),
        };
        let mut context = ChangeContext::new(open.bus.clock.now(), correlation_id);
        context.causation_id = Some(CausationId::from_stored(event.event_id.to_string()));
        context.trace_id.clone_from(&event.trace_id);
        open.cause = Some(Cause { event_id: event.event_id, context });
        self
    }

    /// Appends facts: typed ones ([`Append::of`]), or an [`Append`] as it is. For a kind of aggregate that is registered,
    /// its machine is asked, and its state, history, deadline and folded state follow.
    ///
    /// # Guarantees
    /// Versions of the aggregate stay unique and gapless; the events get outbox rows and, after the commit, positions,
    /// exactly as those of commands do.
    ///
    /// # Errors
    /// `ForbiddenEvent` for what the aggregate cannot have now; `VersionConflict`, `DuplicateEvent`. A unit of work and a
    /// joined transaction cannot be committed then; a handler must return the error.
    pub async fn append(&mut self, facts: impl IntoAppend) -> Result<Appended, StoreError> {
        let registry = self.open().bus.registry.clone();
        self.append_by(facts, registry.as_ref()).await
    }

    async fn append_by(
        &mut self,
        facts: impl IntoAppend,
        rules: &dyn AppendRules,
    ) -> Result<Appended, StoreError> {
        let open = self.open_mut();
        let append = facts.into_append(open.context())?;
        let registry = open.bus.registry.clone();
        open.begin()?;
        let outcome = open.sql.append_by(rules, &append).await;
        let (appended, written) = open.noted("an append", outcome)?;
        open.committed.and(Committed::of(&written, &registry));
        Ok(appended)
    }

    /// Appends facts of another log as they are there: what has happened there is not judged here.
    #[cfg_attr(not(feature = "follow"), allow(dead_code, reason = "only a follower has another log"))]
    pub(crate) async fn append_as_it_is(&mut self, append: &Append) -> Result<Appended, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.append(append).await;
        let appended = open.noted("an append", outcome)?;
        open.committed.and(Committed::of(append, &open.bus.registry));
        Ok(appended)
    }

    /// Records a command. It commits with the rest and is then run by a worker. In a handler its id comes from the fact and
    /// the handler, so that it is one command however often the fact is delivered.
    ///
    /// # Errors
    /// `InvalidChange` for an id or a payload that is none.
    pub async fn send<A: Aggregate>(
        &mut self,
        aggregate_id: impl AsRef<str>,
        command: A::Command,
    ) -> Result<(), StoreError> {
        let (name, payload) =
            to_variant(&command).map_err(|error| invalid("invalid-payload", error.into()))?;
        let aggregate =
            AggregateKey::new(A::KIND, aggregate_id).map_err(|error| invalid("invalid-id", error.into()))?;
        self.send_command(aggregate, CommandName::from_stored(name), payload).await?;
        Ok(())
    }

    /// Records a command; answers its id.
    async fn send_command(
        &mut self,
        aggregate: AggregateKey,
        command_type: CommandName,
        payload: Payload,
    ) -> Result<CommandId, StoreError> {
        let open = self.open_mut();
        let command_id = open.next_command_id()?;
        let context = open.context();
        let command = NewCommand { command_id, command_type, aggregate, payload, context };
        // Dropped halfway and sent again, it would be two commands.
        open.begin()?;
        let outcome = open.sql.send(&command).await;
        open.noted("a command", outcome)?;
        open.committed.and(Committed::command());
        Ok(command.command_id)
    }

    /// Schedules a timer.
    pub async fn schedule(&mut self, timer: &NewTimer) -> Result<(), StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.schedule(timer).await;
        open.noted("a timer", outcome)?;
        open.committed.and(Committed::timer(timer.due_at));
        Ok(())
    }

    /// Cancels a timer that has not begun; answers whether it did.
    pub async fn cancel(&mut self, timer_id: Uuid) -> Result<bool, StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.cancel(timer_id, open.bus.clock.now()).await;
        open.noted("a timer", outcome)
    }

    /// Marks a delivery as handled, unless it is already: for whoever receives messages without a consumer.
    pub async fn mark(&mut self, event_id: EventId, handler: &HandlerName) -> Result<InboxMark, StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.mark(event_id, handler, open.bus.clock.now()).await;
        open.noted("a mark", outcome)
    }

    /// Writes the answer of the operation that runs ([`Operations::run`](crate::Operations::run)). Outside of an operation
    /// it does nothing, so that one function serves both.
    ///
    /// # Guarantees
    /// When the transaction commits, whoever asks again under the same key gets this answer and no second effect,
    /// whatever becomes of this process. When it does not, neither has happened.
    ///
    /// # Errors
    /// `Fenced` when the operation was taken over meanwhile: somebody else does it.
    pub async fn answer(&mut self, answer: &OperationAnswer) -> Result<(), StoreError> {
        let Some(claim) = claim_to_answer() else { return Ok(()) };
        let open = self.open_mut();
        let outcome = open.sql.answer(&claim, answer, open.bus.clock.now()).await;
        open.noted("an answer", outcome)
    }
}

/// The application's own transaction, with everything that can be done in a [`Tx`].
pub struct Joined(Tx);

impl Deref for Joined {
    type Target = Tx;

    fn deref(&self) -> &Tx {
        &self.0
    }
}

impl DerefMut for Joined {
    fn deref_mut(&mut self) -> &mut Tx {
        &mut self.0
    }
}

impl Joined {
    /// Makes all of it true; what was appended, sent and scheduled goes on at once.
    ///
    /// # Errors
    /// `TransactionLost` when a statement failed in it, or something may be half done. `Unavailable`: whether it was
    /// committed is not known; unlike [`Towpath::transact`], nobody finds out here.
    pub async fn commit(self) -> Result<(), StoreError> {
        let Held::Own(open) = self.0.0 else { return Err(StoreError::Nested) };
        if let Some(why) = open.spoilt() {
            return Err(StoreError::TransactionLost(why.to_owned()));
        }
        let bus = open.bus.clone();
        let (sql, committed) = open.into_parts();
        let outcome = sql.finish_joined().await;
        if matches!(outcome, Ok(()) | Err(StoreError::Unavailable(_))) {
            bus.committed(&committed);
        }
        outcome
    }

    /// Makes none of it true.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let Held::Own(open) = self.0.0 else { return Err(StoreError::Nested) };
        open.into_parts().0.abandon().await
    }
}

#[cfg(feature = "alerts")]
impl Tx {
    /// Writes alerts as they are now.
    pub(crate) async fn note_alerts(
        &mut self,
        notes: &[towpath_core::ports::store::AlertNote],
        run: &towpath_core::ports::store::AlertRun,
    ) -> Result<(), StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = match open.sql.note_alerts(notes).await {
            Ok(()) => open.sql.note_alert_run(run).await,
            Err(error) => Err(error),
        };
        open.noted("an alert", outcome)
    }
}

impl Towpath {
    /// A transaction of the store's, with everything that can be done in a [`Tx`].
    #[cfg(feature = "alerts")]
    pub(crate) fn within(&self, sql: SqlTransaction) -> Joined {
        Joined(Tx(Held::Own(Box::new(Open::new(sql, &self.bus, Origin::Joined)))))
    }

    /// Joins the application's own sqlx transaction, which is moved in: what is appended, sent, scheduled and answered here
    /// commits with the application's own changes, or none of it has happened. Dropped, it is rolled back.
    pub fn join(&self, transaction: impl JoinTransaction) -> Joined {
        let sql = self.store().join(transaction);
        Joined(Tx(Held::Own(Box::new(Open::new(sql, &self.bus, Origin::Joined)))))
    }
}
