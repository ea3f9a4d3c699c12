//! A workload that touches every write of the port, and that can be run again after it was cut off anywhere.
//!
//! It does what the runtime does: everything is asked for by ids that are known beforehand, and what is recorded
//! already is not done again. Its ids follow from its seed, so that another process can go on with it and the
//! auditor knows what must be there in the end.

use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{
    ActorId, AggregateKey, CausationId, ChannelName, CommandId, EventId, HandlerName, InstanceId, LeaseName,
    OperationName, Version,
};
use towpath_core::lifecycle::{CommandStatus, TaskState};
use towpath_core::name::CommandName;
use towpath_core::ports::operations::{
    BeginOutcome, NewOperation, OperationAnswer, OperationEnd, OperationKey,
};
use towpath_core::ports::store::{
    Append, ClaimRoom, CommandRecord, CompletedCommand, Found, InboxFailure, InboxMark, InspectedStore,
    LeaseGrant, NewCommand, NewTimer, OutboxClaim, OutboxOutcome, StoreError, StoreResult, TimerOutcome,
    TrackerPlace,
};
use uuid::{Builder, Uuid};

use super::acts::{LONG, all_partitions, result, retry};
use super::audit::{Scope, check_finished, check_invariants};
use super::facts::COMMAND_TYPES;
use super::facts::{OrderFacts, completed, failed, handler, instance, moment, order, place, timer};
use super::waiting::POLL;

/// A workload; see the module.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: String,
    worker: InstanceId,
    ledger: ChannelName,
    mail: ChannelName,
}

impl Workload {
    /// The workload of a seed.
    pub fn new(seed: &str) -> Self {
        Self {
            seed: seed.to_owned(),
            worker: instance("worker"),
            ledger: ChannelName::new("ledger").expect("a valid channel name"),
            mail: ChannelName::new("mail").expect("a valid channel name"),
        }
    }

    /// Runs it, or the rest of it.
    pub async fn run(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let commands = self.acquire(store, "commands").await?;
        store.recover_commands(now(), 100).await?;
        for number in 0..3 {
            store.accept_command(&self.accepted(number)).await?;
        }
        self.work_off_commands(store, &commands).await?;
        self.send_directly(store).await?;
        self.send_again_after_failure(store).await?;
        self.consume(store).await?;
        self.fire_timers(store).await?;
        self.operate(store).await?;
        self.give_positions(store).await?;
        for channel in [&self.ledger, &self.mail] {
            self.relay(store, channel).await?;
        }
        self.track(store).await?;
        store.release_lease(&commands).await
    }

    /// Checks what must hold wherever the workload was cut off.
    pub async fn check_cut_off(&self, store: &dyn InspectedStore) {
        check_invariants(store, &self.scope()).await;
    }

    /// Checks what must hold once it has run to its end, however often it was begun.
    pub async fn check_done(&self, store: &dyn InspectedStore) {
        let picture = check_finished(store, &self.scope()).await;
        for (number, expected) in [(0, 3), (1, 3), (2, 2), (3, 1)] {
            let found = picture.aggregates[&self.order(number)].events.len();
            assert_eq!(found, expected, "order {number}: every effect once, none twice, none lost");
        }
        assert_eq!(picture.commands.len(), 6, "every command is recorded");
        assert_eq!(picture.timers[&self.timer_id("fired")].state, TaskState::Succeeded);
        assert_eq!(picture.timers[&self.timer_id("called off")].state, TaskState::Canceled);
        assert_eq!(picture.timers[&self.deadline_id()].state, TaskState::Canceled, "its state was left");
        let place = tracked(store, &self.tracker()).await.expect("channels").expect("it is registered");
        assert!(place.position > 0, "the log was followed");
    }

    /// The commands of the command box: one has an effect, one fails before it has one, one changes nothing.
    async fn work_off_commands(&self, store: &dyn InspectedStore, lease: &LeaseGrant) -> StoreResult<()> {
        loop {
            let claimed = store.claim_commands(lease, COMMAND_TYPES, now(), 2).await?;
            if claimed.is_empty() {
                if self.are_worked_off(store).await? {
                    return Ok(());
                }
                // A claim passes over what is locked, and a server takes a moment to notice that a process is gone.
                tokio::time::sleep(POLL).await;
                store.recover_commands(now(), 100).await?;
            }
            for record in claimed {
                self.work_off(store, lease, &record).await?;
            }
        }
    }

    async fn are_worked_off(&self, store: &dyn InspectedStore) -> StoreResult<bool> {
        for number in 0..3 {
            let command = self.accepted(number);
            let record = store.load(&command.aggregate, Some(&command.command_id)).await?.command;
            if record.is_none_or(|record| record.status != CommandStatus::Completed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn work_off(
        &self,
        store: &dyn InspectedStore,
        lease: &LeaseGrant,
        record: &CommandRecord,
    ) -> StoreResult<()> {
        let found = Found::Claimed(lease.clone());
        let command = &record.command;
        if self.is_accepted(1, command) && record.retry_count == 0 {
            return store.fail_command(&failed(command, found, 1, Some(now()))).await;
        }
        let version = self.version(store, &command.aggregate).await?;
        let completed = if self.is_accepted(2, command) {
            CompletedCommand { decided_on: version, ..completed(command, found, None) }
        } else {
            self.effect(command, found, version)
        };
        store.complete_command(&completed).await.map(drop)
    }

    /// A command that is recorded together with its effect.
    async fn send_directly(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        self.send(store, &self.command("direct", 0)).await
    }

    /// A command that fails for good and is sent again by its sender.
    async fn send_again_after_failure(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let command = self.command("sent again", 2);
        if store.load(&command.aggregate, Some(&command.command_id)).await?.command.is_none() {
            store.fail_command(&failed(&command, Found::Nowhere, 0, None)).await?;
        }
        self.send(store, &command).await
    }

    async fn send(&self, store: &dyn InspectedStore, command: &NewCommand) -> StoreResult<()> {
        let loaded = store.load(&command.aggregate, Some(&command.command_id)).await?;
        let version = loaded.aggregate.map_or(0, |row| row.version);
        let found = match loaded.command {
            Some(record) if record.status == CommandStatus::Completed => return Ok(()),
            Some(record) => Found::Failed { retry_count: record.retry_count },
            None => Found::Nowhere,
        };
        store.complete_command(&self.effect(command, found, version)).await.map(drop)
    }

    /// An operation that whoever goes on takes over at once, and whose fact commits with its answer.
    async fn operate(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let answer = OperationAnswer { status: 200, headers: Vec::new(), body: b"done".to_vec() };
        match store.begin_operation(&self.operation(), Duration::ZERO).await? {
            BeginOutcome::Begun(claim) => {
                let end = OperationEnd::Answered(&answer);
                let ended = store.end_operation(&claim, end, Some(&self.operations_append()), now()).await?;
                assert!(ended, "nobody else took it over");
            }
            standing => assert_eq!(standing, BeginOutcome::Answered(answer)),
        }
        Ok(())
    }

    fn operation(&self) -> NewOperation {
        NewOperation {
            key: OperationKey {
                actor: ActorId::new("operator").expect("a valid actor id"),
                name: OperationName::new(&self.seed).expect("a valid operation name"),
            },
            operation_id: self.uuid("operation"),
            fingerprint: "f".to_owned(),
            role: "operator".to_owned(),
            action: "POST /api/orders/{id}".to_owned(),
            target: "/api/orders/3".to_owned(),
            request_id: None,
            trace_id: None,
            asked_at: now(),
        }
    }

    /// What commits with the operation's answer.
    fn operations_append(&self) -> Append {
        let facts = OrderFacts::about(&self.order(3), 0).noted("operated");
        let facts = facts.routed(&[self.ledger.clone(), self.mail.clone()]);
        self.with_known_ids(facts.in_context(self.accepted(0).context), "operated")
    }

    /// A delivery that fails once, and is then handled: the mark, the handler's facts and its timers in one
    /// transaction. One of the timers is called off later.
    async fn consume(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let (event_id, handler) = self.delivery();
        if store.inbox_entry(event_id, &handler).await?.is_none() {
            let failure = InboxFailure {
                event_id,
                handler: &handler,
                reason: "not-yet",
                message: "Try again.",
                failed_at: now(),
                dead: false,
            };
            store.count_failure(&failure).await?;
        }
        let append = self.handlers_append(self.version(store, &self.order(1)).await?);
        let mut tx = store.begin().await?;
        match tx.mark(event_id, &handler, now()).await? {
            InboxMark::First => {
                tx.append(&append).await?;
                tx.schedule(&self.timer("fired")).await?;
                tx.schedule(&self.timer("called off")).await?;
                tx.commit().await?;
            }
            InboxMark::Duplicate | InboxMark::Dead => tx.rollback().await?,
        }
        let mut tx = store.begin().await?;
        tx.cancel(self.timer_id("called off"), now()).await?;
        tx.commit().await
    }

    async fn fire_timers(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let lease = self.acquire(store, "timers").await?;
        for due in store.claim_timers(&lease, &["order.cancel"], now(), 10).await? {
            self.send(store, &self.command("by timer", 1)).await?;
            store.finish_timer(&lease, due.timer.timer_id, &TimerOutcome::Succeeded, now()).await?;
        }
        Ok(())
    }

    async fn give_positions(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let lease = self.acquire(store, "sequencer").await?;
        while store.sequence(&lease, 3).await?.count > 0 {}
        Ok(())
    }

    /// Publishes a channel. On `mail` the first fact of every order fails once and parks its lane.
    async fn relay(&self, store: &dyn InspectedStore, channel: &ChannelName) -> StoreResult<()> {
        let lease = self.acquire(store, "relay").await?;
        let partitions = all_partitions();
        loop {
            let claim = OutboxClaim {
                channel,
                partitions: &partitions,
                limit: 4,
                now: now(),
                room: ClaimRoom::UNLIMITED,
            };
            let items = store.claim_outbox(&claim).await?;
            if items.is_empty() {
                return Ok(());
            }
            let mut parked = Vec::new();
            let mut results = Vec::new();
            for item in &items {
                if parked.contains(&item.lane) {
                    continue;
                }
                if *channel == self.mail && item.event.aggregate_version == 1 && item.retry_count == 0 {
                    parked.push(item.lane);
                    results.push(result(item, retry(now(), true)));
                } else {
                    results.push(result(item, OutboxOutcome::Sent));
                }
            }
            store.record_outbox(std::slice::from_ref(&lease), channel, now(), &results).await?;
        }
    }

    async fn acquire(&self, store: &dyn InspectedStore, what: &str) -> StoreResult<LeaseGrant> {
        let lease = LeaseName::new(what).expect("a valid lease name");
        // The same holder as the one that was cut off: what it held is free at once, without waiting for its end.
        let grant = store.acquire_lease(&lease, &self.worker, LONG).await?;
        grant.ok_or_else(|| StoreError::Missing { what: "free lease", name: what.to_owned() })
    }

    async fn version(&self, store: &dyn InspectedStore, order: &AggregateKey) -> StoreResult<Version> {
        Ok(store.load(order, None).await?.aggregate.map_or(0, |row| row.version))
    }

    fn order(&self, number: usize) -> AggregateKey {
        order(format!("order-{}-{number}", self.seed))
    }

    fn command(&self, name: &str, order: usize) -> NewCommand {
        let command = place(&self.order(order));
        let command_id = CommandId::new(format!("{name}-{}", self.seed)).expect("a valid command id");
        let correlation_id = format!("flow-{}", self.seed);
        let correlation_id = correlation_id.as_str().try_into().expect("a valid correlation id");
        let context = ChangeContext { correlation_id, ..command.context.clone() };
        NewCommand { command_id, context, ..command }
    }

    fn accepted(&self, number: usize) -> NewCommand {
        self.command(&format!("accepted-{number}"), number)
    }

    fn is_accepted(&self, number: usize, command: &NewCommand) -> bool {
        command.command_id == self.accepted(number).command_id
    }

    /// What a command leads to. The first command of an order places it; one command has two facts.
    fn effect(&self, command: &NewCommand, found: Found, version: Version) -> CompletedCommand {
        let append = self.append_of(command, version);
        completed(command, found, Some(append))
    }

    fn append_of(&self, command: &NewCommand, version: Version) -> Append {
        let mut facts = OrderFacts::about(&command.aggregate, version);
        if self.is_accepted(0, command) || command.command_id == self.command("sent again", 2).command_id {
            facts = facts.placed().routed(&[self.ledger.clone(), self.mail.clone()]);
            facts = facts.paid().routed(std::slice::from_ref(&self.mail));
        } else if self.is_accepted(1, command) {
            facts = facts.placed().routed(&[self.ledger.clone(), self.mail.clone()]);
        } else if self.is_by_timer(command) {
            facts = facts.paid().routed(std::slice::from_ref(&self.mail));
        } else {
            facts = facts.noted(command.command_id.as_str()).routed(std::slice::from_ref(&self.mail));
        }
        let mut append = self.with_known_ids(facts.caused_by(command), command.command_id.as_str());
        if self.is_accepted(1, command) {
            append.deadline.enters = Some(self.deadline(&append));
        }
        append.deadline.leaves = self.is_by_timer(command);
        append
    }

    fn is_by_timer(&self, command: &NewCommand) -> bool {
        command.command_id == self.command("by timer", 1).command_id
    }

    /// The deadline of the state `placed`, which is left before it is due.
    fn deadline(&self, append: &Append) -> NewTimer {
        let cancel = CommandName::infer("order.cancel").expect("a valid command name");
        let due_at = now() + Duration::from_secs(3600);
        NewTimer::of_deadline(
            append.events[0].event_id,
            due_at,
            cancel,
            append.aggregate.clone(),
            &append.context,
        )
    }

    /// The timer of that deadline.
    fn deadline_id(&self) -> Uuid {
        self.event_id(self.accepted(1).command_id.as_str(), 0).0
    }

    /// Follows the log to its head.
    async fn track(&self, store: &dyn InspectedStore) -> StoreResult<()> {
        let lease = self.acquire(store, "tracker").await?;
        let name = self.tracker();
        match store.add_channel(self.uuid("tracker"), &name, 0, now()).await {
            Ok(()) | Err(StoreError::NameTaken { .. }) => {}
            Err(error) => return Err(error),
        }
        let Some(from) = tracked(store, &name).await? else { return Ok(()) };
        let head = store.head().await?;
        store.park_in_channel(&lease, self.uuid("tracker"), from, head, &[], &[]).await.map(drop)
    }

    fn tracker(&self) -> ChannelName {
        ChannelName::new(format!("log-{}", self.seed)).expect("a valid channel name")
    }

    fn handlers_append(&self, version: Version) -> Append {
        let (event_id, _) = self.delivery();
        let mut context = self.accepted(0).context;
        context.causation_id = Some(CausationId::from(event_id));
        let facts = OrderFacts::about(&self.order(1), version).noted("handled");
        let facts = facts.routed(&[self.ledger.clone(), self.mail.clone()]);
        self.with_known_ids(facts.in_context(context), "handled")
    }

    /// Gives the facts ids that follow from the seed, and the snapshot that follows from those.
    fn with_known_ids(&self, facts: OrderFacts, what: &str) -> Append {
        facts.with_event_ids(|index| self.event_id(what, index)).append()
    }

    fn event_id(&self, what: &str, index: usize) -> EventId {
        EventId(self.uuid(&format!("{what}/{index}")))
    }

    fn delivery(&self) -> (EventId, HandlerName) {
        (self.event_id(self.accepted(0).command_id.as_str(), 0), handler("note-it"))
    }

    fn timer_id(&self, name: &str) -> Uuid {
        self.uuid(name)
    }

    fn timer(&self, name: &str) -> NewTimer {
        NewTimer { timer_id: self.timer_id(name), due_at: now(), ..timer(&self.order(1), now()) }
    }

    /// A UUIDv7 that follows from the seed and a name.
    fn uuid(&self, name: &str) -> Uuid {
        let first = order(format!("{}/{name}", self.seed)).lane().0;
        let second = order(format!("{name}/{}", self.seed)).lane().0;
        let mut bytes = [0_u8; 10];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes()[..2]);
        let millis = u64::try_from(now().timestamp_millis()).expect("the virtual clock is behind 1970");
        Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    fn scope(&self) -> Scope {
        let commands = [
            self.accepted(0),
            self.accepted(1),
            self.command("direct", 0),
            self.command("sent again", 2),
            self.command("by timer", 1),
        ];
        // The version does not matter here: the scope takes ids and routes only.
        let mut scope = commands
            .iter()
            .fold(Scope::new(), |scope, command| scope.command(&self.effect(command, Found::Nowhere, 0)));
        scope = scope.append(&self.handlers_append(0)).append(&self.operations_append());
        scope.commands.insert(self.accepted(2).command_id);
        scope.timers.extend([self.timer_id("fired"), self.timer_id("called off"), self.deadline_id()]);
        scope.deliveries.insert(self.delivery());
        scope
    }
}

async fn tracked(store: &dyn InspectedStore, name: &ChannelName) -> StoreResult<Option<TrackerPlace>> {
    let channels = store.channels().await?;
    Ok(channels.into_iter().find(|row| row.name == *name).map(|row| row.place()))
}

/// The one moment at which the workload happens: everything it postpones is due at once.
fn now() -> DateTime<Utc> {
    moment(0) + Duration::from_secs(60)
}
