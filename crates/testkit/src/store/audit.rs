//! The auditor: is what the store shows a picture of something that can have happened?
//!
//! A [`Picture`] is plain data, read through the port. [`Picture::flaws`] knows nothing of any store, so that the
//! auditor itself is tested: the tests below break a sound picture in every way it claims to see.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{
    AggregateKey, CausationId, ChannelName, CommandId, EventId, HandlerName, Position, Version,
};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus, TaskState};
use towpath_core::ports::store::{
    AggregateRow, Append, CommandRecord, CompletedCommand, InboxEntry, InspectedStore, OutboxRow, StateEvent,
    Timer,
};
use uuid::Uuid;

use super::facts::folded;
use crate::difference::difference;

/// Reads a picture and finds nothing wrong with it.
///
/// # Panics
/// When there are flaws, with all of them.
pub async fn check_invariants(store: &dyn InspectedStore, scope: &Scope) -> Picture {
    let picture = Picture::read(store, scope).await;
    assert_sound("the picture", &picture.flaws());
    picture
}

/// Reads a picture of work that is done: sound, and nothing is waiting any more.
///
/// # Panics
/// When there are flaws or something is left to do, with all of it.
pub async fn check_finished(store: &dyn InspectedStore, scope: &Scope) -> Picture {
    let picture = Picture::read(store, scope).await;
    let flaws: Vec<_> = picture.flaws().into_iter().chain(picture.unfinished()).collect();
    assert_sound("the finished picture", &flaws);
    picture
}

/// What a picture shows. The port has no listings of everything, so a case says what it knows of.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// These aggregates, with their events and history.
    pub aggregates: BTreeSet<AggregateKey>,
    /// These commands, recorded or not.
    pub commands: BTreeSet<CommandId>,
    /// The outbox rows of these events, recorded or not, with the channels that route them.
    pub routes: BTreeMap<EventId, BTreeSet<ChannelName>>,
    /// These timers.
    pub timers: BTreeSet<Uuid>,
    /// These deliveries.
    pub deliveries: BTreeSet<(EventId, HandlerName)>,
}

impl Scope {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An append too.
    pub fn append(mut self, append: &Append) -> Self {
        self.aggregates.insert(append.aggregate.clone());
        for event in &append.events {
            self.routes.insert(event.event_id, event.channels.channels().iter().cloned().collect());
        }
        self
    }

    /// A command and its effect too.
    pub fn command(mut self, completed: &CompletedCommand) -> Self {
        self.commands.insert(completed.command.command_id.clone());
        self.aggregates.insert(completed.command.aggregate.clone());
        match &completed.append {
            Some(append) => self.append(append),
            None => self,
        }
    }
}

/// Everything that the store shows of a [`Scope`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picture {
    /// The last position given.
    pub head: Position,
    /// All events with a position.
    pub log: Vec<RecordedEvent>,
    /// What is known of each aggregate.
    pub aggregates: BTreeMap<AggregateKey, AggregatePicture>,
    /// The commands that are recorded.
    pub commands: BTreeMap<CommandId, CommandRecord>,
    /// How many commands are in each status, of all.
    pub command_counts: BTreeMap<CommandStatus, u64>,
    /// The outbox rows of each event.
    pub outbox: BTreeMap<EventId, Vec<OutboxRow>>,
    /// How many outbox rows are in each status, of all, per channel.
    pub outbox_counts: BTreeMap<ChannelName, BTreeMap<OutboxStatus, u64>>,
    /// Which channels route each event: known from the plan, not read.
    pub routes: BTreeMap<EventId, BTreeSet<ChannelName>>,
    /// The timers that exist.
    pub timers: BTreeMap<Uuid, Timer>,
    /// The deliveries that are recorded.
    pub deliveries: BTreeMap<(EventId, HandlerName), InboxEntry>,
}

/// One aggregate in a [`Picture`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AggregatePicture {
    /// Its row.
    pub row: Option<AggregateRow>,
    /// Its events.
    pub events: Vec<RecordedEvent>,
    /// Its history.
    pub history: Vec<StateEvent>,
}

impl Picture {
    /// Reads everything in the scope.
    pub async fn read(store: &dyn InspectedStore, scope: &Scope) -> Self {
        const ALL: u32 = 100_000;
        let head = store.head().await.expect("head");
        let log = store.events_between(1, head).await.expect("events_between");
        let command_counts = store.command_counts().await.expect("command_counts");
        let mut picture = Self {
            head,
            log,
            command_counts: command_counts.by_status.into_iter().filter(|(_, count)| *count > 0).collect(),
            routes: scope.routes.clone(),
            ..Self::default()
        };
        for key in &scope.aggregates {
            let aggregate = AggregatePicture {
                row: store.load(key, None).await.expect("load").aggregate,
                events: store.events_of(key, 0, ALL).await.expect("events_of"),
                history: store.history_of(key, 0, ALL).await.expect("history_of"),
            };
            picture.aggregates.insert(key.clone(), aggregate);
        }
        for command_id in &scope.commands {
            if let Some(record) = store.command(command_id).await.expect("command") {
                picture.commands.insert(command_id.clone(), record);
            }
        }
        for (event_id, channels) in &scope.routes {
            let mut rows = store.outbox_of(*event_id).await.expect("outbox_of");
            rows.sort_by(|left, right| left.channel.cmp(&right.channel));
            picture.outbox.insert(*event_id, rows);
            for channel in channels {
                if !picture.outbox_counts.contains_key(channel) {
                    let counts = store.outbox_counts(channel).await.expect("outbox_counts");
                    let counts = counts.by_status.into_iter().filter(|(_, count)| *count > 0).collect();
                    picture.outbox_counts.insert(channel.clone(), counts);
                }
            }
        }
        for timer_id in &scope.timers {
            if let Some(timer) = store.timer(*timer_id).await.expect("timer") {
                picture.timers.insert(*timer_id, timer);
            }
        }
        for (event_id, handler) in &scope.deliveries {
            if let Some(entry) = store.inbox_entry(*event_id, handler).await.expect("inbox_entry") {
                picture.deliveries.insert((*event_id, handler.clone()), entry);
            }
        }
        picture
    }

    /// Everything in it that cannot be, whatever was going on when it was taken.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        for (key, aggregate) in &self.aggregates {
            self.audit_aggregate(key, aggregate, &mut flaws);
        }
        self.audit_log(&mut flaws);
        self.audit_commands(&mut flaws);
        self.audit_outbox(&mut flaws);
        flaws
    }

    /// Everything in it that still waits for something.
    pub fn unfinished(&self) -> Vec<Flaw> {
        let mut left = Vec::new();
        for event in self.events() {
            if event.position.is_none() {
                left.push(Flaw::NoPosition(event.envelope.event_id));
            }
        }
        for record in self.commands.values().filter(|record| record.status != CommandStatus::Completed) {
            left.push(Flaw::CommandLeft(record.command.command_id.clone(), record.status));
        }
        for row in self.outbox.values().flatten().filter(|row| row.status != OutboxStatus::Sent) {
            left.push(Flaw::NotSent(row.event_id, row.channel.clone(), row.status));
        }
        for timer in self.timers.values() {
            if !matches!(timer.state, TaskState::Succeeded | TaskState::Canceled) {
                left.push(Flaw::TimerLeft(timer.timer.timer_id, timer.state));
            }
        }
        left
    }

    /// The same as another one.
    ///
    /// # Panics
    /// When it is not, with the lines that differ.
    #[track_caller]
    pub fn assert_unchanged_since(&self, before: &Self, what: &str) {
        assert!(
            self == before,
            "{what} changed something (- before, + after):\n{}",
            difference(&format!("{before:#?}"), &format!("{self:#?}"))
        );
    }

    fn events(&self) -> impl Iterator<Item = &RecordedEvent> {
        self.aggregates.values().flat_map(|aggregate| &aggregate.events)
    }

    fn audit_aggregate(&self, key: &AggregateKey, aggregate: &AggregatePicture, flaws: &mut Vec<Flaw>) {
        for (event, version) in aggregate.events.iter().zip(1..) {
            if event.envelope.aggregate_version != version {
                flaws.push(Flaw::VersionGap(key.clone(), version, event.envelope.aggregate_version));
                break;
            }
        }
        let count = aggregate.events.len() as Version;
        let version = aggregate.row.as_ref().map_or(0, |row| row.version);
        if version != count {
            flaws.push(Flaw::WrongVersion(key.clone(), version, count));
        }
        let snapshot = aggregate.row.as_ref().and_then(|row| row.snapshot.as_ref());
        if let (Some(snapshot), Some(last)) = (snapshot, aggregate.events.last())
            && snapshot.data != folded(count, last.envelope.event_id)
        {
            flaws.push(Flaw::WrongSnapshot(key.clone()));
        }
        let mut state = None;
        for step in &aggregate.history {
            let event = aggregate.events.iter().find(|event| event.envelope.event_id == step.event_id);
            let version = event.map(|event| event.envelope.aggregate_version);
            if step.from_state.as_ref() != state || version != Some(step.aggregate_version) {
                flaws.push(Flaw::BrokenHistory(key.clone(), step.aggregate_version));
            }
            state = Some(&step.to_state);
        }
        if aggregate.row.as_ref().and_then(|row| row.state.as_ref()) != state {
            flaws.push(Flaw::WrongState(key.clone()));
        }
    }

    fn audit_log(&self, flaws: &mut Vec<Flaw>) {
        let mut versions: BTreeMap<&AggregateKey, Version> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (event, position) in self.log.iter().zip(1..) {
            if event.position != Some(position) {
                flaws.push(Flaw::PositionGap(position, event.position));
                break;
            }
            if !seen.insert(event.envelope.event_id) {
                flaws.push(Flaw::TwicePositioned(event.envelope.event_id));
            }
            // Gapless per aggregate too: an event that got its position before an earlier one of its aggregate
            // would be read before it by every follower of the log.
            let version = versions.entry(&event.envelope.aggregate).or_default();
            if event.envelope.aggregate_version != *version + 1 {
                flaws.push(Flaw::LogOutOfOrder(event.envelope.event_id));
            }
            *version = event.envelope.aggregate_version;
        }
        if self.log.len() as Position != self.head {
            flaws.push(Flaw::WrongHead(self.head, self.log.len() as Position));
        }
        let positions: BTreeMap<_, _> =
            self.log.iter().map(|event| (event.envelope.event_id, event.position)).collect();
        for event in self.events() {
            let in_log = positions.get(&event.envelope.event_id).copied().flatten();
            if in_log != event.position {
                flaws.push(Flaw::PositionDiffers(event.envelope.event_id, event.position, in_log));
            }
        }
    }

    fn audit_commands(&self, flaws: &mut Vec<Flaw>) {
        for record in self.commands.values() {
            let command_id = &record.command.command_id;
            let caused_by = Some(CausationId::from(command_id));
            let caused: Vec<_> =
                self.events().filter(|event| event.envelope.causation_id == caused_by).collect();
            let last = caused.last().map(|event| event.envelope.aggregate_version);
            match (record.status, record.result) {
                (CommandStatus::Completed, Some(result)) => {
                    let right = result.event_count as usize == caused.len()
                        && last.is_none_or(|last| last == result.aggregate_version);
                    if !right {
                        flaws.push(Flaw::WrongEffect(command_id.clone(), result.event_count, caused.len()));
                    }
                }
                (CommandStatus::Completed, None) => flaws.push(Flaw::NoResult(command_id.clone())),
                (_, Some(_)) => flaws.push(Flaw::ResultTooEarly(command_id.clone(), record.status)),
                (_, None) if !caused.is_empty() => {
                    flaws.push(Flaw::EffectTooEarly(command_id.clone(), record.status));
                }
                (_, None) => {}
            }
            if (record.status == CommandStatus::Processing) != record.claim.is_some() {
                flaws.push(Flaw::WrongClaim(command_id.clone(), record.status));
            }
        }
        let facts = self.events().map(|event| CausationId::from(event.envelope.event_id));
        let recorded: BTreeSet<_> = self.commands.keys().map(CausationId::from).chain(facts).collect();
        let known: BTreeSet<_> =
            self.events().filter_map(|event| event.envelope.causation_id.as_ref()).collect();
        for orphan in known.into_iter().filter(|cause| !recorded.contains(*cause)) {
            flaws.push(Flaw::EffectOfNothing(orphan.clone()));
        }
    }

    fn audit_outbox(&self, flaws: &mut Vec<Flaw>) {
        let recorded: BTreeSet<_> = self.events().map(|event| event.envelope.event_id).collect();
        for (event_id, channels) in &self.routes {
            let rows = self.outbox.get(event_id).map_or(&[][..], Vec::as_slice);
            if !recorded.contains(event_id) {
                if !rows.is_empty() {
                    flaws.push(Flaw::OutboxOfNothing(*event_id));
                }
                continue;
            }
            for channel in channels {
                match rows.iter().filter(|row| row.channel == *channel).count() {
                    1 => {}
                    count => flaws.push(Flaw::OutboxRows(*event_id, channel.clone(), count)),
                }
            }
            for row in rows.iter().filter(|row| !channels.contains(&row.channel)) {
                flaws.push(Flaw::NotRouted(*event_id, row.channel.clone()));
            }
        }
        for aggregate in self.aggregates.values() {
            let mut waiting = BTreeSet::new();
            for event in &aggregate.events {
                for row in self.outbox.get(&event.envelope.event_id).into_iter().flatten() {
                    if row.status != OutboxStatus::Sent {
                        waiting.insert(&row.channel);
                    } else if waiting.contains(&row.channel) {
                        flaws.push(Flaw::Overtaken(event.envelope.event_id, row.channel.clone()));
                    }
                }
            }
        }
    }
}

/// Something in a picture that cannot be, or that is not done yet.
#[derive(Debug, Clone, PartialEq)]
pub enum Flaw {
    /// An aggregate's events are not 1, 2, 3 and so on: the version wanted and found.
    VersionGap(AggregateKey, Version, Version),
    /// The row's version is not the number of events.
    WrongVersion(AggregateKey, Version, Version),
    /// The snapshot is not what the events fold to.
    WrongSnapshot(AggregateKey),
    /// A row of the history does not follow the one before it, or does not belong to its event.
    BrokenHistory(AggregateKey, Version),
    /// The row's state is not where its history ends.
    WrongState(AggregateKey),
    /// The position wanted and found.
    PositionGap(Position, Option<Position>),
    /// An event is in the log twice.
    TwicePositioned(EventId),
    /// An event is in the log before an earlier one of its aggregate, or without it.
    LogOutOfOrder(EventId),
    /// The head is not the number of events in the log.
    WrongHead(Position, Position),
    /// The aggregate's list and the log disagree.
    PositionDiffers(EventId, Option<Position>, Option<Position>),
    /// A completed command has more or fewer events than it says, or others.
    WrongEffect(CommandId, u32, usize),
    /// A completed command has no result.
    NoResult(CommandId),
    /// A command that is not completed has a result.
    ResultTooEarly(CommandId, CommandStatus),
    /// A command that is not completed has events.
    EffectTooEarly(CommandId, CommandStatus),
    /// A command is processed by nobody, or held by somebody who does not process it.
    WrongClaim(CommandId, CommandStatus),
    /// Events were caused by a command or event that is not recorded.
    EffectOfNothing(CausationId),
    /// There are outbox rows of an event that does not exist.
    OutboxOfNothing(EventId),
    /// An event has no outbox row for a channel that routes it, or several.
    OutboxRows(EventId, ChannelName, usize),
    /// An event has an outbox row for a channel that does not route it.
    NotRouted(EventId, ChannelName),
    /// An event was sent before an earlier one of its aggregate.
    Overtaken(EventId, ChannelName),
    /// Not done yet: an event without a position.
    NoPosition(EventId),
    /// Not done yet: a command.
    CommandLeft(CommandId, CommandStatus),
    /// Not done yet: an outbox row.
    NotSent(EventId, ChannelName, OutboxStatus),
    /// Not done yet: a timer.
    TimerLeft(Uuid, TaskState),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VersionGap(key, wanted, found) => {
                write!(f, "{key} has version {found} where {wanted} belongs")
            }
            Self::WrongVersion(key, row, events) => {
                write!(f, "{key} says version {row} and has {events} events")
            }
            Self::WrongSnapshot(key) => write!(f, "the snapshot of {key} is not what its events fold to"),
            Self::BrokenHistory(key, version) => {
                write!(f, "the history of {key} is broken at version {version}")
            }
            Self::WrongState(key) => write!(f, "{key} is not in the state where its history ends"),
            Self::PositionGap(wanted, found) => {
                write!(f, "the log has position {found:?} where {wanted} belongs")
            }
            Self::TwicePositioned(event) => write!(f, "event {event} is in the log twice"),
            Self::LogOutOfOrder(event) => {
                write!(f, "event {event} is in the log before an earlier one of its aggregate")
            }
            Self::WrongHead(head, count) => write!(f, "the head is {head} and the log has {count} events"),
            Self::PositionDiffers(event, own, log) => {
                write!(f, "event {event} says position {own:?}, the log says {log:?}")
            }
            Self::WrongEffect(command, said, found) => {
                write!(f, "command {command} says it led to {said} events; {found} are there, or others")
            }
            Self::NoResult(command) => write!(f, "command {command} is completed without a result"),
            Self::ResultTooEarly(command, status) => {
                write!(f, "command {command} is {status} and has a result")
            }
            Self::EffectTooEarly(command, status) => {
                write!(f, "command {command} is {status} and has events")
            }
            Self::WrongClaim(command, status) => {
                write!(f, "command {command} is {status}, and its claim does not fit")
            }
            Self::EffectOfNothing(cause) => write!(f, "events were caused by {cause}, which is not recorded"),
            Self::OutboxOfNothing(event) => {
                write!(f, "there are outbox rows of event {event}, which does not exist")
            }
            Self::OutboxRows(event, channel, count) => {
                write!(f, "event {event} has {count} outbox rows for {channel}, not 1")
            }
            Self::NotRouted(event, channel) => {
                write!(f, "event {event} has an outbox row for {channel} without a route")
            }
            Self::Overtaken(event, channel) => {
                write!(f, "event {event} was sent to {channel} before an earlier one of its aggregate")
            }
            Self::NoPosition(event) => write!(f, "event {event} has no position"),
            Self::CommandLeft(command, status) => write!(f, "command {command} is still {status}"),
            Self::NotSent(event, channel, status) => {
                write!(f, "event {event} is still {status} on {channel}")
            }
            Self::TimerLeft(timer, state) => write!(f, "timer {timer} is still {state}"),
        }
    }
}

#[track_caller]
fn assert_sound(what: &str, flaws: &[Flaw]) {
    let lines: Vec<_> = flaws.iter().map(|flaw| format!("- {flaw}")).collect();
    assert!(flaws.is_empty(), "{what} has {} flaws:\n{}", flaws.len(), lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::super::facts::{
        OrderFacts, completed, envelopes, moment, new_channel, new_order, place, timer,
    };
    use super::*;
    use towpath_core::ids::Position;
    use towpath_core::ports::store::{Claim, CommandResult, Found};

    /// Two orders: one placed and paid by a command, all of it positioned and sent; one noted by a handler of the
    /// first one's event, positioned and sent too.
    fn sound() -> Picture {
        let channel = new_channel();
        let command = place(&new_order());
        let facts =
            OrderFacts::about(&command.aggregate, 0).placed().paid().routed(std::slice::from_ref(&channel));
        let effect = facts.caused_by(&command).append();
        let mut reaction = OrderFacts::about(&new_order(), 0).noted("seen").routed(&[channel]).append();
        reaction.context.causation_id = Some(CausationId::from(effect.events[0].event_id));
        let done = completed(&command, Found::Nowhere, Some(effect.clone()));
        let scope = Scope::new().command(&done).append(&reaction);

        let mut picture = Picture { routes: scope.routes, ..Picture::default() };
        for append in [&effect, &reaction] {
            add(&mut picture, append);
        }
        let record = CommandRecord {
            command: command.clone(),
            status: CommandStatus::Completed,
            status_changed_at: moment(1),
            status_reason: None,
            status_message: None,
            retry_count: 0,
            next_retry_at: None,
            claim: None,
            started_at: None,
            finished_at: None,
            result: Some(CommandResult { aggregate_version: 2, event_count: 2 }),
        };
        picture.commands.insert(command.command_id, record);
        let fired = timer(&command.aggregate, moment(1));
        let fired = Timer {
            timer: fired,
            state: TaskState::Succeeded,
            retry_count: 0,
            error_code: None,
            error_message: None,
        };
        picture.timers.insert(fired.timer.timer_id, fired);
        picture
    }

    fn add(picture: &mut Picture, append: &Append) {
        let mut aggregate = AggregatePicture::default();
        for envelope in envelopes(append, 1) {
            picture.head += 1;
            let event = RecordedEvent { position: Some(picture.head), envelope };
            picture.log.push(event.clone());
            aggregate.events.push(event);
        }
        for change in &append.state_changes {
            let event = &aggregate.events[change.event_index].envelope;
            aggregate.history.push(StateEvent {
                aggregate: append.aggregate.clone(),
                aggregate_version: event.aggregate_version,
                event_id: event.event_id,
                from_state: change.from.clone(),
                to_state: change.to.clone(),
                reason: None,
                message: None,
                actor_id: None,
                request_id: None,
                trace_id: None,
                created_at: moment(0),
            });
        }
        aggregate.row = Some(AggregateRow {
            aggregate: append.aggregate.clone(),
            version: aggregate.events.len() as Version,
            snapshot: append.snapshot.clone(),
            state: append.state_changes.last().map(|change| change.to.clone()),
            state_changed_at: None,
            state_reason: None,
            state_message: None,
            status: None,
            tenant_id: None,
            created_at: moment(0),
            updated_at: moment(0),
        });
        for (event, outbox_id) in append.events.iter().zip(1..) {
            let row = OutboxRow {
                outbox_id,
                channel: event.channels.channels()[0].clone(),
                event_id: event.event_id,
                lane: append.aggregate.lane(),
                status: OutboxStatus::Sent,
                status_changed_at: moment(0),
                status_reason: None,
                status_message: None,
                retry_count: 0,
                next_retry_at: None,
                parked_at: None,
            };
            picture.outbox.insert(event.event_id, vec![row]);
        }
        picture.aggregates.insert(append.aggregate.clone(), aggregate);
    }

    /// The order with two events, its row, its events.
    fn order(picture: &mut Picture) -> &mut AggregatePicture {
        picture.aggregates.values_mut().find(|aggregate| aggregate.events.len() == 2).unwrap()
    }

    fn command(picture: &mut Picture) -> &mut CommandRecord {
        picture.commands.values_mut().next().unwrap()
    }

    fn outbox(picture: &mut Picture, position: usize) -> &mut Vec<OutboxRow> {
        let event_id = picture.log[position].envelope.event_id;
        picture.outbox.get_mut(&event_id).unwrap()
    }

    #[track_caller]
    fn complains(break_it: impl Fn(&mut Picture), about: impl Fn(&Flaw) -> bool) {
        let mut picture = sound();
        break_it(&mut picture);
        let found: Vec<_> = picture.flaws().into_iter().chain(picture.unfinished()).collect();
        assert!(found.iter().any(about), "the auditor did not see it; it saw {found:?}");
        assert!(found.iter().all(|flaw| !flaw.to_string().is_empty()));
    }

    #[test]
    fn a_sound_picture_has_no_flaws() {
        let picture = sound();
        assert_eq!((picture.flaws(), picture.unfinished()), (vec![], vec![]));
        assert_eq!((Picture::default().flaws(), Picture::default().unfinished()), (vec![], vec![]));
    }

    #[test]
    fn it_sees_broken_aggregates() {
        complains(
            |p| order(p).events[1].envelope.aggregate_version = 3,
            |f| matches!(f, Flaw::VersionGap(_, 2, 3)),
        );
        complains(
            |p| order(p).row.as_mut().unwrap().version = 3,
            |f| matches!(f, Flaw::WrongVersion(_, 3, 2)),
        );
        complains(|p| order(p).row = None, |f| matches!(f, Flaw::WrongVersion(_, 0, 2)));
        complains(|p| drop(order(p).events.pop()), |f| matches!(f, Flaw::WrongVersion(_, 2, 1)));
        complains(
            |p| {
                order(p).row.as_mut().unwrap().snapshot.as_mut().unwrap().data =
                    towpath_core::Payload::empty()
            },
            |f| matches!(f, Flaw::WrongSnapshot(_)),
        );
        complains(|p| drop(order(p).history.remove(0)), |f| matches!(f, Flaw::BrokenHistory(_, 2)));
        complains(|p| order(p).history[1].aggregate_version = 1, |f| matches!(f, Flaw::BrokenHistory(..)));
        complains(|p| drop(order(p).history.pop()), |f| matches!(f, Flaw::WrongState(_)));
    }

    #[test]
    fn it_sees_a_broken_log() {
        complains(|p| drop(p.log.remove(0)), |f| matches!(f, Flaw::PositionGap(1, Some(2))));
        complains(|p| p.log[1] = p.log[0].clone(), |f| matches!(f, Flaw::PositionGap(2, Some(1))));
        complains(
            |p| p.log[1] = RecordedEvent { position: Some(2), ..p.log[0].clone() },
            |f| matches!(f, Flaw::TwicePositioned(_)),
        );
        complains(|p| swap_in_log(p, 0, 1), |f| matches!(f, Flaw::LogOutOfOrder(_)));
        complains(|p| swap_in_log(p, 0, 1), |f| matches!(f, Flaw::PositionDiffers(_, Some(1), Some(2))));
        complains(|p| p.head = 4, |f| matches!(f, Flaw::WrongHead(4, 3)));
        complains(
            |p| order(p).events[0].position = None,
            |f| matches!(f, Flaw::PositionDiffers(_, None, Some(1))),
        );
    }

    fn swap_in_log(picture: &mut Picture, first: usize, second: usize) {
        picture.log.swap(first, second);
        for (event, position) in picture.log.iter_mut().zip(1 as Position..) {
            event.position = Some(position);
        }
    }

    #[test]
    fn it_sees_broken_commands() {
        complains(
            |p| command(p).result = Some(CommandResult { aggregate_version: 2, event_count: 1 }),
            |f| matches!(f, Flaw::WrongEffect(_, 1, 2)),
        );
        complains(
            |p| command(p).result = Some(CommandResult { aggregate_version: 1, event_count: 2 }),
            |f| matches!(f, Flaw::WrongEffect(..)),
        );
        complains(|p| command(p).result = None, |f| matches!(f, Flaw::NoResult(_)));
        complains(|p| command(p).status = CommandStatus::Failed, |f| matches!(f, Flaw::ResultTooEarly(..)));
        complains(
            |p| (command(p).status, command(p).result) = (CommandStatus::Pending, None),
            |f| matches!(f, Flaw::EffectTooEarly(..)),
        );
        complains(|p| command(p).status = CommandStatus::Processing, |f| matches!(f, Flaw::WrongClaim(..)));
        let claim = Claim { lease: super::super::facts::new_lease(), epoch: 1 };
        complains(|p| command(p).claim = Some(claim.clone()), |f| matches!(f, Flaw::WrongClaim(..)));
        complains(|p| p.commands.clear(), |f| matches!(f, Flaw::EffectOfNothing(_)));
    }

    #[test]
    fn it_sees_a_broken_outbox() {
        complains(|p| outbox(p, 0).clear(), |f| matches!(f, Flaw::OutboxRows(_, _, 0)));
        complains(
            |p| {
                let row = outbox(p, 0)[0].clone();
                outbox(p, 0).push(row);
            },
            |f| matches!(f, Flaw::OutboxRows(_, _, 2)),
        );
        complains(|p| outbox(p, 0)[0].channel = new_channel(), |f| matches!(f, Flaw::NotRouted(..)));
        complains(|p| outbox(p, 0)[0].status = OutboxStatus::Retry, |f| matches!(f, Flaw::Overtaken(..)));
        complains(|p| p.aggregates.clear(), |f| matches!(f, Flaw::OutboxOfNothing(_)));
    }

    #[test]
    fn it_sees_what_is_left_to_do() {
        complains(|p| order(p).events[1].position = None, |f| matches!(f, Flaw::NoPosition(_)));
        complains(|p| command(p).status = CommandStatus::Failed, |f| matches!(f, Flaw::CommandLeft(..)));
        complains(|p| outbox(p, 2)[0].status = OutboxStatus::New, |f| matches!(f, Flaw::NotSent(..)));
        complains(
            |p| p.timers.values_mut().next().unwrap().state = TaskState::Running,
            |f| matches!(f, Flaw::TimerLeft(..)),
        );
    }

    #[test]
    fn a_changed_picture_is_shown_line_by_line() {
        let (before, mut after) = (sound(), Picture::default());
        after.head = 1;
        let panic = std::panic::catch_unwind(|| after.assert_unchanged_since(&before, "it")).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("- ") && message.contains("+     head: 1,"), "{message}");
    }
}
