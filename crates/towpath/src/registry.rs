//! The registry: which aggregates there are, who decides which command, and where events go.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use towpath_broker::Formats;
use towpath_core::aggregate::Aggregate;
use towpath_core::causes::with_causes;
use towpath_core::decider::{Decider, RegistrationFlaw, StoredEvent, TypedDecider};
use towpath_core::format::Format;
use towpath_core::ids::{AggregateKind, ChannelName};
use towpath_core::incoming::IncomingEvent;
use towpath_core::machine::{CheckedMachine, Step};
use towpath_core::name::CommandName;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::store::{
    AggregateRow, Append, AppendRules, DeadlineChange, NewEvent, NewTimer, Routing, Snapshot, StateChange,
    StoreError, StoreResult,
};
use towpath_core::route::{Route, Routes};
use towpath_core::task::TaskType;
use towpath_core::time::later;

use crate::carrying::{Carrying, TooLarge};
use crate::entity::{Entity, RegisteredEntity};
use crate::tasks::TASK_KIND;

/// How long an aggregate with this folded state may stay where it is.
type Stay = Box<dyn Fn(&Payload) -> Result<Duration, InvalidPayload> + Send + Sync>;

/// Everything that was registered. Complete before the first command, and never changed after.
#[derive(Default)]
pub struct Registry {
    by_kind: HashMap<String, Arc<dyn Decider>>,
    /// Rows of applications' own, by kind.
    entities: BTreeMap<String, RegisteredEntity>,
    by_command: HashMap<String, Arc<dyn Decider>>,
    /// By the events that deadlines append.
    by_deadline: HashMap<String, Arc<dyn Decider>>,
    /// How long an aggregate may stay in a state, by kind and state, where the application says it.
    stays: HashMap<(String, String), Stay>,
    events: HashSet<String>,
    /// Kinds that are confidential although nobody decides them here.
    confidential: HashSet<String>,
    routes: Routes,
    carrying: Carrying,
    formats: Formats,
    tasks: BTreeMap<String, TaskType>,
}

impl Registry {
    /// Registers an aggregate: its names, pairings and machine are checked here.
    ///
    /// # Errors
    /// All that is wrong with it, at once. Nothing of it is registered then.
    pub fn register<A: Aggregate>(&mut self) -> Result<(), Vec<RegistrationFlaw>> {
        let decider: Arc<dyn Decider> = Arc::new(TypedDecider::<A>::register()?);
        let kind = decider.kind().as_str().to_owned();
        let twice = |what, name: &str| RegistrationFlaw::Twice { what, name: name.to_owned() };
        let mut flaws = Vec::new();
        if self.has_kind(&kind) {
            flaws.push(twice("aggregate", &kind));
        }
        // A command name alone must say who decides it: that is all an HTTP client sends.
        let commands = decider.commands().iter().map(|command| command.as_str());
        let known = commands.filter(|name| self.by_command.contains_key(*name));
        flaws.extend(known.map(|name| twice("command", name)));
        // An event's name says how to read it, so it has one owner.
        let events = decider.events().iter().map(|event| event.as_str());
        let known = events.filter(|name| self.events.contains(*name));
        flaws.extend(known.map(|name| twice("event", name)));
        if !flaws.is_empty() {
            return Err(flaws);
        }
        for warning in decider.warnings() {
            tracing::warn!(kind, %warning, "an aggregate has a name that reads oddly");
        }
        for command in decider.commands() {
            self.by_command.insert(command.as_str().to_owned(), decider.clone());
        }
        let states = decider.machine().map(|machine| machine.states()).unwrap_or_default();
        for deadline in states.iter().filter_map(|state| state.deadline.as_ref()) {
            if deadline.command.is_none() {
                self.by_deadline.insert(deadline.event.clone(), decider.clone());
            }
        }
        self.events.extend(decider.events().iter().map(|event| event.as_str().to_owned()));
        self.by_kind.insert(kind, decider);
        Ok(())
    }

    /// Says how long an aggregate may stay in a state.
    pub(crate) fn stay<A: Aggregate>(
        &mut self,
        state: &str,
        stay: impl Fn(&A) -> Duration + Send + Sync + 'static,
    ) {
        let stay = move |folded: &Payload| Ok(stay(&folded.read::<A>(A::KIND)?));
        self.stays.insert((A::KIND.to_owned(), state.to_owned()), Box::new(stay));
    }

    /// Times that were given for states without a deadline.
    pub(crate) fn flaws_of_stays(&self) -> Vec<RegistrationFlaw> {
        let has_deadline = |kind: &str, state: &str| {
            let machine = self.by_kind.get(kind).and_then(|decider| decider.machine());
            machine.is_some_and(|machine| machine.deadline_of(state).is_some())
        };
        let flawed = self.stays.keys().filter(|(kind, state)| !has_deadline(kind, state));
        let flaws = flawed
            .map(|(kind, state)| RegistrationFlaw::NoDeadline { kind: kind.clone(), state: state.clone() });
        flaws.collect()
    }

    /// Registers an entity: its names and its machine are checked here.
    ///
    /// # Errors
    /// All that is wrong with it, at once. Nothing of it is registered then.
    pub fn register_entity<E: Entity>(&mut self) -> Result<(), Vec<RegistrationFlaw>> {
        let entity = RegisteredEntity::of::<E>()?;
        let twice = |what, name: &str| RegistrationFlaw::Twice { what, name: name.to_owned() };
        let mut flaws = Vec::new();
        if self.has_kind(E::KIND) {
            flaws.push(twice("entity", E::KIND));
        }
        let names = entity.events().iter().map(|event| event.as_str());
        flaws.extend(names.filter(|name| self.events.contains(*name)).map(|name| twice("event", name)));
        if !flaws.is_empty() {
            return Err(flaws);
        }
        self.events.extend(entity.events().iter().map(|event| event.as_str().to_owned()));
        self.entities.insert(E::KIND.to_owned(), entity);
        Ok(())
    }

    fn has_kind(&self, kind: &str) -> bool {
        self.by_kind.contains_key(kind) || self.entities.contains_key(kind)
    }

    /// Adds a route.
    pub fn route(&mut self, route: Route) {
        self.routes.add(route);
    }

    /// Registers a format that channels and consumers can name.
    ///
    /// # Errors
    /// Another one has the name.
    pub fn format(&mut self, format: impl Format) -> Result<(), RegistrationFlaw> {
        let name = format.name();
        if self.formats.has(name) {
            return Err(RegistrationFlaw::Twice { what: "format", name: name.to_owned() });
        }
        self.formats = std::mem::take(&mut self.formats).with(format);
        Ok(())
    }

    /// The formats that are registered.
    pub fn formats(&self) -> &Formats {
        &self.formats
    }

    /// Declares a sort of work.
    ///
    /// # Errors
    /// Another one of its name is declared.
    pub fn task(&mut self, of: TaskType) -> Result<(), RegistrationFlaw> {
        let name = of.name().to_owned();
        match self.tasks.insert(name.clone(), of.clone()) {
            Some(other) if other != of => Err(RegistrationFlaw::Twice { what: "task type", name }),
            _ => Ok(()),
        }
    }

    /// Facts of tasks are of a kind of their own, which no other aggregate can have then.
    pub(crate) fn flaw_of_tasks(&self) -> Option<RegistrationFlaw> {
        let is_taken = self.tasks.values().any(TaskType::has_facts) && self.has_kind(TASK_KIND);
        is_taken.then(|| RegistrationFlaw::Twice { what: "aggregate", name: TASK_KIND.to_owned() })
    }

    /// The sort of work of that name.
    pub fn task_type(&self, name: &str) -> Option<&TaskType> {
        self.tasks.get(name)
    }

    /// The sorts of work that are declared, by name.
    pub fn task_types(&self) -> impl Iterator<Item = &TaskType> {
        self.tasks.values()
    }

    /// Takes a kind for confidential, whether or not it is registered here.
    pub(crate) fn withhold(&mut self, kind: &str) {
        self.confidential.insert(kind.to_owned());
    }

    /// Whether the payloads of a kind are withheld from viewers: its aggregate declares it, or
    /// [`Builder::confidential`](crate::Builder::confidential) does.
    pub fn is_confidential(&self, kind: &str) -> bool {
        self.confidential.contains(kind)
            || self.by_kind.get(kind).is_some_and(|decider| decider.is_confidential())
    }

    /// What the channels can carry.
    pub(crate) fn carry(&mut self, carrying: Carrying) {
        self.carrying = carrying;
    }

    /// Refuses the first event that is too large for a channel that takes it.
    pub(crate) fn check_size(&self, events: &[NewEvent]) -> Result<(), TooLarge> {
        self.carrying.check(events)
    }

    /// The decider of a command, by the command's name.
    pub fn decider_of_command(&self, command: &str) -> Option<&Arc<dyn Decider>> {
        self.by_command.get(command)
    }

    /// The decider whose machine has a deadline that appends this event. Only a timer asks for that.
    pub(crate) fn decider_of_deadline(&self, event: &str) -> Option<&Arc<dyn Decider>> {
        self.by_deadline.get(event)
    }

    /// What can be decided here: the commands, and the events of deadlines.
    pub fn command_types(&self) -> Vec<&str> {
        self.by_command.keys().chain(self.by_deadline.keys()).map(String::as_str).collect()
    }

    /// Where an event goes.
    pub(crate) fn routing_of(&self, event_type: &str) -> Routing {
        let channels = self.routes.channels_for(event_type);
        if channels.is_empty() { Routing::Nowhere } else { Routing::To(channels) }
    }

    /// The channels that an event goes to.
    pub(crate) fn channels_of<'e>(&self, event: &'e NewEvent) -> Cow<'e, [ChannelName]> {
        match &event.channels {
            Routing::ByType => Cow::Owned(self.routes.channels_for(event.event_type.as_str())),
            named => Cow::Borrowed(named.channels()),
        }
    }

    /// The decider of a kind of aggregate.
    pub fn decider_of_kind(&self, kind: &str) -> Option<&Arc<dyn Decider>> {
        self.by_kind.get(kind)
    }

    /// The payload of an event in the form of today, if it says its own and its aggregate is registered here.
    pub(crate) fn in_form_of_today<'e>(
        &self,
        event: &'e IncomingEvent,
    ) -> Result<Cow<'e, Payload>, InvalidPayload> {
        let kind = event.aggregate.as_ref().map(|aggregate| aggregate.kind.as_str());
        match (kind.and_then(|kind| self.by_kind.get(kind)), event.schema_version) {
            (Some(decider), Some(schema_version)) => decider.in_form_of_today(StoredEvent {
                name: event.event_type.as_str(),
                schema_version,
                payload: &event.payload,
            }),
            _ => Ok(Cow::Borrowed(&event.payload)),
        }
    }

    /// All deciders, by kind.
    pub fn deciders(&self) -> impl Iterator<Item = &Arc<dyn Decider>> {
        let mut kinds: Vec<_> = self.by_kind.iter().collect();
        kinds.sort_by_key(|(kind, _)| kind.as_str());
        kinds.into_iter().map(|(_, decider)| decider)
    }

    /// The entity of a kind.
    pub fn entity_of_kind(&self, kind: &str) -> Option<&RegisteredEntity> {
        self.entities.get(kind)
    }

    /// All entities, by kind.
    pub fn entities(&self) -> impl Iterator<Item = &RegisteredEntity> {
        self.entities.values()
    }

    /// The machine of a kind, of an aggregate or of an entity.
    pub fn machine_of_kind(&self, kind: &str) -> Option<&CheckedMachine> {
        let of_entity = self.entities.get(kind).map(RegisteredEntity::machine);
        of_entity.or_else(|| self.by_kind.get(kind)?.machine())
    }

    /// The routes.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }
}

impl Registry {
    /// What a change means for the machine's deadlines: that of the first state it leaves ends, that of the last state it
    /// enters begins. States in between are left as soon as they are entered.
    pub(crate) fn deadline_change(&self, decider: &dyn Decider, append: &Append) -> DeadlineChange {
        let deadline = |state: &str| decider.machine()?.deadline_of(state);
        let changes = &append.state_changes;
        let left = changes.first().and_then(|change| change.from.as_deref());
        let enters = changes.last().and_then(|change| {
            let deadline = deadline(&change.to)?;
            let entered_by = append.events.get(change.event_index)?.event_id;
            let stay = self.stay_of(append, &change.to).unwrap_or(deadline.after);
            let due_at = later(append.context.occurred_at, stay);
            let command = CommandName::from_stored(deadline.sends());
            Some(NewTimer::of_deadline(
                entered_by,
                due_at,
                command,
                append.aggregate.clone(),
                &append.context,
            ))
        });
        DeadlineChange { leaves: left.and_then(deadline).is_some(), enters }
    }

    /// How long the aggregate may stay in a state that it enters, if the application says so and its folded state is known.
    /// Where that fails the machine's own time holds: a state that must not last for ever does not, for a bug there.
    fn stay_of(&self, append: &Append, state: &str) -> Option<Duration> {
        let (kind, snapshot) = (append.aggregate.kind.as_str(), append.snapshot.as_ref()?);
        let stay = self.stays.get(&(kind.to_owned(), state.to_owned()))?;
        let cause = match catch_unwind(AssertUnwindSafe(|| stay(&snapshot.data))) {
            Ok(Ok(stay)) => return Some(stay),
            Ok(Err(error)) => with_causes(&error),
            Err(_) => "it panicked".to_owned(),
        };
        tracing::error!(aggregate = %append.aggregate, state, cause, "the time of a deadline is not known; the machine's holds");
        None
    }
}

impl AppendRules for Registry {
    fn concern(&self, kind: &AggregateKind) -> bool {
        self.by_kind.contains_key(kind.as_str())
    }

    fn complete(&self, append: &Append, current: Option<&AggregateRow>) -> StoreResult<Append> {
        self.check_size(&append.events).map_err(|too_large| StoreError::ForbiddenEvent {
            aggregate: append.aggregate.clone(),
            event: too_large.event_type.clone(),
            code: "event-too-large",
            source: too_large.into(),
        })?;
        let mut complete = append.clone();
        for event in &mut complete.events {
            if event.channels == Routing::ByType {
                event.channels = self.routing_of(event.event_type.as_str());
            }
        }
        let Some(decider) = self.by_kind.get(append.aggregate.kind.as_str()) else { return Ok(complete) };
        let decider = decider.as_ref();
        check_events(decider, &complete)?;
        // A row that was written without its state cannot be asked; what is appended to it is folded when it is next read.
        let is_whole = current.is_none_or(|row| row.state.is_some() || decider.machine().is_none());
        if is_whole {
            let state = current.and_then(|row| row.state.clone());
            complete.state_changes = state_changes(decider, &complete, state)?;
        }
        if complete.snapshot.is_none() {
            complete.snapshot = folded(decider, &complete, current)?;
        }
        if is_whole {
            complete.deadline = self.deadline_change(decider, &complete);
        }
        Ok(complete)
    }
}

fn forbidden(
    append: &Append,
    event: &NewEvent,
    code: &'static str,
    source: impl Into<towpath_core::ports::store::BoxError>,
) -> StoreError {
    StoreError::ForbiddenEvent {
        aggregate: append.aggregate.clone(),
        event: event.event_type.to_string(),
        code,
        source: source.into(),
    }
}

/// Refuses events that the aggregate does not have.
fn check_events(decider: &dyn Decider, append: &Append) -> StoreResult<()> {
    let unknown = append.events.iter().find(|event| !decider.events().contains(&event.event_type));
    match unknown {
        None => Ok(()),
        Some(event) => {
            let why = format!("{} has no such event", decider.kind());
            Err(forbidden(append, event, "unknown-event", why))
        }
    }
}

/// The steps of the machine that the events are, from a state on. Reasons that the append gives are kept.
fn state_changes(
    decider: &dyn Decider,
    append: &Append,
    mut state: Option<String>,
) -> StoreResult<Vec<StateChange>> {
    let Some(machine) = decider.machine() else { return Ok(append.state_changes.clone()) };
    let mut changes = Vec::new();
    for (event_index, event) in append.events.iter().enumerate() {
        let name = event.event_type.as_str();
        let step = machine.step(state.as_deref(), name);
        match step.map_err(|illegal| forbidden(append, event, "illegal-transition", illegal))? {
            Step::Stays => {}
            Step::Moves { to } => {
                let given = append.state_changes.iter().find(|change| change.event_index == event_index);
                let from = state.replace(to.to_owned());
                changes.push(StateChange {
                    from,
                    to: to.to_owned(),
                    reason: given.map_or(Some(name.to_owned()), |change| change.reason.clone()),
                    message: given.and_then(|change| change.message.clone()),
                    event_index,
                });
            }
        }
    }
    Ok(changes)
}

/// The folded state after the events, if the one before them is there in the form of this build.
fn folded(
    decider: &dyn Decider,
    append: &Append,
    current: Option<&AggregateRow>,
) -> StoreResult<Option<Snapshot>> {
    let version = decider.snapshot_version();
    let before = match current {
        None => None,
        Some(row) => match &row.snapshot {
            Some(snapshot) if snapshot.version == version => Some(&snapshot.data),
            _ => return Ok(None),
        },
    };
    let events: Vec<StoredEvent<'_>> = append.events.iter().map(StoredEvent::from).collect();
    let folding = catch_unwind(AssertUnwindSafe(|| decider.fold(before, &events)));
    let refused = |why: towpath_core::ports::store::BoxError| match append.events.first() {
        Some(event) => Err(forbidden(append, event, "invalid-payload", why)),
        None => Ok(None),
    };
    match folding {
        Ok(Ok(data)) => Ok(Some(Snapshot { data, version })),
        Ok(Err(error)) => refused(error.into()),
        Err(_) => refused("folding it panicked".into()),
    }
}
