//! How a page is looked at: what the store finds suspicious, with what only this process knows (routes, pairs, machines).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::consistency::{FindingCode, FindingRow, NotChecked, fingerprint};
use towpath_core::ids::{AggregateKey, Position};
use towpath_core::ports::store::{
    AggregateRow, ChannelStart, CheckedEvent, KnownCause, StoreResult, Suspect, Suspicion,
};
use towpath_core::retry::{Coded as _, ErrorClass};
use towpath_core::route::Glob;
use towpath_core::time::{between, earlier, later};
use uuid::Uuid;

use super::stages::Stage;
use crate::bus::FoldError;
use crate::towpath::Towpath;

/// How many rows are looked at together.
const PAGE: u32 = 1_000;

/// How many aggregates are folded together.
const FOLDED_PAGE: u32 = 100;

/// Something that is not as it should be, as far as one look can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) code: FindingCode,
    /// What finds it again.
    pub(super) key: Vec<String>,
    pub(super) row: FindingRow,
    at: Option<DateTime<Utc>>,
}

impl Found {
    fn of(code: FindingCode, suspect: Suspect) -> Self {
        let details = suspect.details.into_iter().map(|(name, value)| (name.to_owned(), value));
        let row = FindingRow { target: suspect.target, details: details.collect() };
        Self { code, key: suspect.key, row, at: suspect.at }
    }

    /// How long it is still too young to be believed.
    fn is_young_for(&self, now: DateTime<Utc>, grace: Duration) -> Duration {
        match self.at {
            Some(at) => between(now, later(at, grace)).min(grace),
            None => grace,
        }
    }

    /// Whether it is so old that inboxes do not remember whether it was handled.
    pub(super) fn is_beyond(&self, now: DateTime<Utc>, horizon: Duration) -> bool {
        earlier(now, horizon).zip(self.at).is_some_and(|(before, at)| at < before)
    }

    pub(super) fn detail(&self, name: &str) -> &str {
        self.row.details.get(name).map_or("", String::as_str)
    }
}

/// What a page has shown.
#[derive(Default)]
pub(super) struct Looked {
    pub(super) found: Vec<Found>,
    /// Where the next page begins; nothing at the end.
    pub(super) next: Option<Vec<String>>,
    pub(super) commands: u64,
    pub(super) events: u64,
    pub(super) not_checked: Vec<NotChecked>,
}

/// Who looks.
pub(super) struct Looker<'a> {
    app: &'a Towpath,
    since: DateTime<Utc>,
    /// Types of commands, and of their results.
    pairs: Vec<(String, String)>,
    /// Kinds whose rules are known here.
    kinds: Vec<String>,
    /// Handlers that get events of our own channels.
    handlers: Vec<String>,
}

impl<'a> Looker<'a> {
    pub(super) fn new(app: &'a Towpath, since: DateTime<Utc>) -> Self {
        let registry = app.registry();
        let mut pairs = Vec::new();
        for decider in registry.deciders() {
            for command in decider.commands() {
                let result = decider.result_event(command.as_str());
                pairs.extend(result.map(|event| (command.to_string(), event.to_string())));
            }
        }
        let kinds = registry.deciders().map(|decider| decider.kind().to_string()).collect();
        // Of others the inbox knows no events.
        let own =
            app.consumers.iter().filter(|consumer| consumer.channel.is_some() && !consumer.is_by_message);
        let handlers = own.map(|consumer| consumer.handler.clone()).collect();
        Self { app, since, pairs, kinds, handlers }
    }

    /// The event that is declared as the result of a command.
    pub(super) fn result_of(&self, command_type: &str) -> Option<&str> {
        self.pairs.iter().find(|(command, _)| command == command_type).map(|(_, event)| event.as_str())
    }

    /// What cannot be told here, whatever is found.
    pub(super) fn not_checked(&self, stage: Stage) -> Vec<NotChecked> {
        let not = |what: &str, why: &str| NotChecked { what: what.to_owned(), why: why.to_owned() };
        match stage {
            Stage::Commands if self.pairs.is_empty() => vec![not(
                "orphaned_commands",
                "no command that is registered here is declared with the event that is its result",
            )],
            Stage::Inbox => vec![not(
                "inbox_without_event of consumers of queues, and of those that go by the message",
                "what comes from a queue of somebody else's need not be an event of this log, and an inbox of messages names none",
            )],
            Stage::Trackers => vec![not(
                "followers ahead of the log that they follow",
                "only the other server knows where its log ends",
            )],
            _ => Vec::new(),
        }
    }

    /// Looks at a page.
    pub(super) async fn look(&self, stage: Stage, behind: Option<&[String]>) -> StoreResult<Looked> {
        match stage {
            Stage::Events => self.look_at_events(behind).await,
            Stage::Folded => self.look_at_states(behind).await,
            _ => {
                let Some(suspicion) = self.suspicion(stage) else { return Ok(Looked::default()) };
                let page = self.app.bus.store.suspects(&suspicion, behind, PAGE).await?;
                let code = self.code_of(stage);
                Ok(Looked {
                    found: page.suspects.into_iter().map(|suspect| Found::of(code, suspect)).collect(),
                    next: page.next,
                    commands: page.counted,
                    ..Looked::default()
                })
            }
        }
    }

    /// Waits until what was found is old enough to be believed.
    pub(super) async fn wait(&self, found: &[Found]) -> StoreResult<()> {
        let grace = self.app.checks.grace;
        let now = self.app.bus.database_time().await?;
        let longest = found.iter().map(|found| found.is_young_for(now, grace)).max();
        tokio::time::sleep(longest.unwrap_or_default()).await;
        Ok(())
    }

    /// Those that are old enough to be believed at once.
    pub(super) async fn believable(&self, found: Vec<Found>) -> StoreResult<Vec<Found>> {
        let (grace, now) = (self.app.checks.grace, self.app.bus.database_time().await?);
        let is_old = |found: &Found| found.at.is_none() || found.is_young_for(now, grace).is_zero();
        Ok(found.into_iter().filter(is_old).collect())
    }

    /// Reads what was found again, and answers what is still so.
    pub(super) async fn confirm(&self, stage: Stage, found: Vec<Found>) -> StoreResult<Vec<Found>> {
        if found.is_empty() {
            return Ok(found);
        }
        let keys: Vec<Vec<String>> = found.iter().map(|found| found.key.clone()).collect();
        match stage {
            Stage::Events => {
                let positions = || keys.iter().filter_map(|key| key.first()?.parse::<Position>().ok());
                let (low, high) = (positions().min().unwrap_or(1), positions().max().unwrap_or(0));
                let events = self.app.bus.store.checked_events(low.saturating_sub(1), high).await?;
                let again = self.judge(&events).await?.found;
                Ok(found.into_iter().filter(|found| again.contains(found)).collect())
            }
            Stage::Folded => {
                let mut still = Vec::new();
                for found in found {
                    let again = self.fold(found.detail("aggregateKind"), found.detail("aggregateId")).await?;
                    still.extend(matches!(again, Folded::Differs(_)).then_some(found));
                }
                Ok(still)
            }
            _ => {
                let Some(suspicion) = self.suspicion(stage) else { return Ok(Vec::new()) };
                let again = self.app.bus.store.suspects_among(&suspicion, &keys).await?;
                let code = self.code_of(stage);
                Ok(again.into_iter().map(|suspect| Found::of(code, suspect)).collect())
            }
        }
    }

    fn code_of(&self, stage: Stage) -> FindingCode {
        stage.codes().first().copied().unwrap_or(FindingCode::AggregateVersionGaps)
    }

    fn suspicion(&self, stage: Stage) -> Option<Suspicion<'_>> {
        let since = self.since;
        Some(match stage {
            Stage::Commands => Suspicion::OrphanedCommands { since, pairs: &self.pairs },
            Stage::Rows => Suspicion::RowsAheadOfEvents,
            Stage::Versions => Suspicion::EventsOutOfLine,
            Stage::Unpositioned => Suspicion::EventsWithoutPosition,
            Stage::Positions => Suspicion::PositionGaps,
            Stage::Head => Suspicion::HeadWithoutPosition,
            Stage::Outbox => Suspicion::OutboxWithoutEvent,
            Stage::Inbox => Suspicion::InboxWithoutEvent { handlers: &self.handlers },
            Stage::Lanes => Suspicion::ParkedWithoutHead,
            Stage::Trackers => Suspicion::TrackersAhead,
            Stage::Projections => Suspicion::ProjectionsAhead,
            Stage::ClaimedCommands => Suspicion::AbandonedCommands,
            Stage::ClaimedTimers => Suspicion::AbandonedTimers,
            Stage::RunningTasks => Suspicion::AbandonedTasks,
            Stage::States => Suspicion::StatesWithoutHistory { since },
            Stage::Histories => Suspicion::BrokenHistories { since },
            Stage::Events | Stage::Folded => return None,
        })
    }
}

/// Events of the window.
impl Looker<'_> {
    async fn look_at_events(&self, behind: Option<&[String]>) -> StoreResult<Looked> {
        let store = &self.app.bus.store;
        let numbers = |key: &[String]| {
            let mut numbers = key.iter().filter_map(|text| text.parse::<Position>().ok());
            numbers.next().zip(numbers.next())
        };
        // What comes while it is checked is for the next check.
        let (low, end) = match behind.and_then(numbers) {
            Some(place) => place,
            None => (store.position_before(self.since).await?, store.head().await?),
        };
        let high = low.saturating_add(u64::from(PAGE)).min(end);
        let events = store.checked_events(low, high).await?;
        let mut looked = self.judge(&events).await?;
        looked.next = (high < end).then(|| vec![high.to_string(), end.to_string()]);
        Ok(looked)
    }

    async fn judge(&self, events: &[CheckedEvent]) -> StoreResult<Looked> {
        let mut looked = Looked::default();
        let now = self.app.bus.database_time().await?;
        let is_inside = |event: &&CheckedEvent| event.occurred_at >= self.since;
        let inside: Vec<&CheckedEvent> = events.iter().filter(is_inside).collect();
        looked.events = inside.len() as u64;
        let (known, unknown): (Vec<_>, Vec<_>) =
            inside.into_iter().partition(|event| self.is_known(&event.aggregate_kind));
        let strangers: BTreeSet<&str> = unknown.iter().map(|event| event.aggregate_kind.as_str()).collect();
        looked.not_checked.extend(strangers.into_iter().map(|kind| NotChecked {
            what: format!("events of the kind {kind}"),
            why: "it is not registered here, so their routes and causes are not known".to_owned(),
        }));
        self.judge_ways(&known, now, &mut looked).await?;
        self.judge_causes(&known, now, &mut looked).await?;
        Ok(looked)
    }

    fn is_known(&self, kind: &str) -> bool {
        let registry = self.app.registry();
        registry.decider_of_kind(kind).is_some() || registry.entity_of_kind(kind).is_some()
    }

    /// Rows that should be in the outbox, and are not.
    async fn judge_ways(
        &self,
        events: &[&CheckedEvent],
        now: DateTime<Utc>,
        looked: &mut Looked,
    ) -> StoreResult<()> {
        let starts = self.starts().await?;
        // What was sent before that may have been cleaned up.
        let cleaned = earlier(now, self.app.checks.keep_sent);
        if let Some(cleaned) = cleaned.filter(|cleaned| *cleaned > self.since) {
            looked.not_checked.push(NotChecked {
                what: "missing_outbox_events of events that are older than outbox rows are kept".to_owned(),
                why: format!("a row that was sent before {} may have been cleaned up", hour_of(cleaned)),
            });
        }
        for event in events {
            if cleaned.is_some_and(|cleaned| event.occurred_at < cleaned) {
                continue;
            }
            for channel in self.app.registry().routes().channels_for(&event.event_type) {
                let name = channel.as_str();
                let took_it = starts.get(name).is_some_and(|start| *start <= event.occurred_at);
                if !took_it || event.channels.iter().any(|has| has == name) {
                    continue;
                }
                let mut found = of_event(FindingCode::MissingOutboxEvents, event);
                found.row.target = format!("{}/{name}", event.event_id);
                found.row.details.insert("channel".to_owned(), name.to_owned());
                looked.found.push(found);
            }
        }
        Ok(())
    }

    /// Since when the channels of this instance take what they take now.
    async fn starts(&self) -> StoreResult<HashMap<String, DateTime<Utc>>> {
        let known = self.app.bus.store.channel_starts().await?;
        let of_today = |start: &&ChannelStart| {
            self.app.relayed.iter().any(|channel| {
                channel.name == start.channel
                    && fingerprint(channel.event_types.iter().map(Glob::as_str)) == start.patterns
            })
        };
        Ok(known.iter().filter(of_today).map(|start| (start.channel.to_string(), start.started_at)).collect())
    }

    /// Causes that are not in the flow, come later, or are missing.
    async fn judge_causes(
        &self,
        events: &[&CheckedEvent],
        now: DateTime<Utc>,
        looked: &mut Looked,
    ) -> StoreResult<()> {
        // Commands and deliveries that ended before that may have been cleaned up.
        let kept = self.app.checks.keep_commands.min(self.app.checks.keep_handled);
        let cleaned = earlier(now, kept);
        let is_young = |event: &&&CheckedEvent| cleaned.is_none_or(|cleaned| event.occurred_at >= cleaned);
        let young: Vec<&CheckedEvent> = events.iter().filter(is_young).copied().collect();
        let ids: BTreeSet<Uuid> = young
            .iter()
            .filter(|event| !event.is_of_command)
            .filter_map(|event| Uuid::parse_str(event.causation_id.as_deref()?).ok())
            .collect();
        let ids: Vec<Uuid> = ids.into_iter().collect();
        let known = self.app.bus.store.known_causes(&ids).await?;
        let known: BTreeMap<String, &KnownCause> =
            known.iter().map(|cause| (cause.id.to_string(), cause)).collect();
        for event in young {
            let problem = match &event.causation_id {
                _ if event.is_of_command => None,
                None => self.must_have_a_cause(event).then_some("it names no cause"),
                Some(cause) => match known.get(cause.to_ascii_lowercase().as_str()) {
                    None => Some("its cause is not in its flow"),
                    Some(KnownCause { event: None, .. }) => None,
                    Some(KnownCause { event: Some((flow, _)), was_delivered, .. })
                        if *flow != event.correlation_id && !was_delivered =>
                    {
                        Some("its cause is in another flow")
                    }
                    Some(KnownCause { event: Some((_, Some(position))), .. })
                        if *position >= event.position =>
                    {
                        Some("its cause comes after it")
                    }
                    Some(_) => None,
                },
            };
            if let Some(problem) = problem {
                let mut found = of_event(FindingCode::BrokenCausation, event);
                found.row.details.insert("problem".to_owned(), problem.to_owned());
                let cause = event.causation_id.clone().unwrap_or_default();
                found.row.details.insert("causationId".to_owned(), cause);
                looked.found.push(found);
            }
        }
        Ok(())
    }

    /// Whether an event without a cause is wrong: its kind has declared which of its events begin flows, and this is none.
    fn must_have_a_cause(&self, event: &CheckedEvent) -> bool {
        let roots = &self.app.root_events;
        let declares = self.app.registry().decider_of_kind(&event.aggregate_kind).is_some_and(|decider| {
            decider.events().iter().any(|name| roots.iter().any(|root| root == name.as_str()))
        });
        declares && !roots.contains(&event.event_type)
    }
}

/// To the hour, so that the same is said on each page.
fn hour_of(moment: DateTime<Utc>) -> String {
    moment.format("%Y-%m-%dT%H:00Z").to_string()
}

fn of_event(code: FindingCode, event: &CheckedEvent) -> Found {
    let details = [
        ("eventId", event.event_id.to_string()),
        ("eventType", event.event_type.clone()),
        ("aggregateKind", event.aggregate_kind.clone()),
        ("aggregateId", event.aggregate_id.clone()),
        ("version", event.aggregate_version.to_string()),
        ("position", event.position.to_string()),
        ("correlationId", event.correlation_id.clone()),
    ];
    let details = details.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Found {
        code,
        key: vec![event.position.to_string()],
        row: FindingRow { target: event.event_id.to_string(), details },
        at: Some(event.occurred_at),
    }
}

/// What folding an aggregate anew has shown.
enum Folded {
    IsSame,
    Differs(&'static str),
    /// It could not be compared.
    Not(String),
}

/// States, and what folding gives.
impl Looker<'_> {
    async fn look_at_states(&self, behind: Option<&[String]>) -> StoreResult<Looked> {
        let changed = Suspicion::ChangedSince { kinds: &self.kinds, since: self.since };
        let page = self.app.bus.store.suspects(&changed, behind, FOLDED_PAGE).await?;
        let mut looked = Looked { next: page.next, ..Looked::default() };
        for suspect in page.suspects {
            let mut found = Found::of(FindingCode::StateDiffers, suspect);
            match self.fold(found.detail("aggregateKind"), found.detail("aggregateId")).await? {
                Folded::IsSame => {}
                Folded::Differs(problem) => {
                    found.row.details.insert("problem".to_owned(), problem.to_owned());
                    looked.found.push(found);
                }
                Folded::Not(why) => {
                    let what = format!("state_differs of {}", found.detail("aggregateKind"));
                    looked.not_checked.push(NotChecked { what, why });
                }
            }
        }
        Ok(looked)
    }

    async fn fold(&self, kind: &str, id: &str) -> StoreResult<Folded> {
        let key = AggregateKey::from_stored(kind, id);
        let Some(decider) = self.app.registry().decider_of_kind(kind) else { return Ok(Folded::IsSame) };
        let Some(row) = self.app.bus.store.load(&key, None).await?.aggregate else {
            return Ok(Folded::IsSame);
        };
        let AggregateRow { snapshot: Some(snapshot), version, state, .. } = row else {
            return Ok(Folded::IsSame);
        };
        // A row of another form is folded anew by who needs it.
        if snapshot.version != decider.snapshot_version() {
            return Ok(Folded::IsSame);
        }
        let (folded, machine_state) = match self.app.bus.fold_anew(decider.as_ref(), &key, version).await {
            Ok(folded) => folded,
            Err(FoldError::Store(error)) if error.class() == ErrorClass::Transient => {
                return Err(error);
            }
            // The text of such an error may quote a payload.
            Err(FoldError::Store(error)) => {
                return Ok(Folded::Not(format!("events of some could not be read [{}]", error.code())));
            }
            Err(FoldError::Decide(_)) => {
                return Ok(Folded::Not(
                    "events of some cannot be folded by what is registered here".to_owned(),
                ));
            }
            Err(FoldError::Panicked) => return Ok(Folded::Not("folding some of them panicked".to_owned())),
        };
        let has_more = || self.app.bus.store.events_of(&key, version, 1);
        if !folded.means_the_same_as(&snapshot.data) {
            // A row that is behind its events is told as a gap: it cannot be said what it should be.
            if !has_more().await?.is_empty() {
                return Ok(Folded::IsSame);
            }
            return Ok(Folded::Differs("its folded state is another one"));
        }
        if decider.machine().is_some() && state.is_some() && state != machine_state {
            return Ok(Folded::Differs("its machine is in another state"));
        }
        Ok(Folded::IsSame)
    }
}
