//! The machine is the source's table, and whatever it does not list is refused and changes nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use chrono::Utc;
use towpath::ids::AggregateKey;
use towpath::machine::Transition;
use towpath::{Aggregate, Coded as _, Command as _, SendError};
use towpath_hive::gateway::{Condition, ConditionStatus};
use towpath_hive::knative::KnativeService;
use towpath_hive::namespace::Namespace;
use towpath_hive::record::ServiceRecord;
use towpath_hive::schemas::event_types;
use towpath_hive::service::{
    ApplyOutcome, ApplyResult, ConvergenceExpired, DeleteAsked, Service, ServiceCommand, ServiceStatus,
    Snapshot, TakeObservation,
};
use towpath_hive::spec::SpecHash;

use ServiceStatus::{Creating, Deleted, Deleting, Failed, Ready, Updating};
use support::{Running, asked, settings, update};

/// The source's table: from, to, and the event of the table that says so.
const TABLE: [(Option<ServiceStatus>, &str, ServiceStatus); 10] = [
    (None, "service.creation.requested", Creating),
    (Some(Ready), "service.update.requested", Updating),
    (Some(Failed), "service.update.requested", Updating),
    (Some(Ready), "service.deletion.requested", Deleting),
    (Some(Failed), "service.deletion.requested", Deleting),
    (Some(Creating), "service.ready", Ready),
    (Some(Updating), "service.ready", Ready),
    (Some(Creating), "service.failed", Failed),
    (Some(Updating), "service.failed", Failed),
    (Some(Deleting), "service.deleted", Deleted),
];

#[tokio::test]
async fn the_machine_is_the_table() {
    let mut registry = towpath::Registry::default();
    registry.register::<Service>().unwrap();
    registry.register::<KnativeService>().unwrap();
    registry.register::<ServiceRecord>().unwrap();
    registry.register::<Namespace>().unwrap();
    let machine = registry.decider_of_kind(Service::KIND).unwrap().machine().unwrap().clone();
    let expected: Vec<Transition> = TABLE
        .iter()
        .map(|(from, event, to)| Transition {
            from: from.map(|from| from.as_str().to_owned()),
            event: (*event).to_owned(),
            to: to.as_str().to_owned(),
        })
        .collect();
    assert_eq!(machine.transitions(), expected);
    let states: Vec<&str> = machine.states().iter().map(|state| state.name.as_str()).collect();
    assert_eq!(states, ServiceStatus::ALL.map(ServiceStatus::as_str));
    let drawn = machine.to_mermaid();
    for (from, event, to) in TABLE {
        let from = from.map_or("[*]", ServiceStatus::as_str);
        let line = format!("{from} --> {} : {event}", to.as_str());
        assert!(drawn.contains(&line), "{line} is not in\n{drawn}");
    }
    // The registry (H9): exactly the events that the aggregates emit, each with a schema of an object.
    let mut emitted: Vec<String> =
        registry.deciders().flat_map(|decider| decider.events().iter().map(ToString::to_string)).collect();
    let types = event_types();
    let mut registered: Vec<String> = types.iter().map(|event_type| event_type.name.to_owned()).collect();
    emitted.sort();
    registered.sort();
    assert_eq!(emitted, registered);
    assert_eq!(registered.len(), 23);
    for event_type in types {
        assert_eq!(event_type.schema.get("type").unwrap(), "object", "{}", event_type.name);
    }
}

/// A command and its result (G1): declared, held at registration, and true of every decision.
#[test]
fn every_command_that_always_has_a_result_is_paired_with_it() {
    let mut registry = towpath::Registry::default();
    registry.register::<Service>().unwrap();
    registry.register::<KnativeService>().unwrap();
    registry.register::<ServiceRecord>().unwrap();
    registry.register::<Namespace>().unwrap();
    let mut paired: Vec<(String, Option<String>)> = Vec::new();
    for decider in registry.deciders() {
        for command in decider.commands() {
            let result = decider.result_event(command.as_str()).map(ToString::to_string);
            if let Some(event) = &result {
                assert!(decider.events().iter().any(|known| known.as_str() == event), "{command} {event}");
            }
            paired.push((command.to_string(), result));
        }
    }
    paired.sort();
    let expected = [
        // What was seen may be nothing new, and then leads to nothing.
        ("Command.Hive.KnativeService.Observe", None),
        ("Command.Hive.Namespace.Validate", None),
        ("Command.Hive.Record.Audit", Some("service.audit.recorded")),
        ("Command.Hive.Record.Persist", Some("service.persisted")),
        // The service may have gone on, and then it leads to nothing.
        ("Command.Hive.Service.Apply.Record", None),
        ("Command.Hive.Service.Convergence.Expire", None),
        ("Command.Hive.Service.Create", Some("service.creation.requested")),
        ("Command.Hive.Service.Delete", Some("service.deletion.requested")),
        ("Command.Hive.Service.Deletion.Confirm", Some("service.deleted")),
        ("Command.Hive.Service.Observation.Take", None),
        ("Command.Hive.Service.Refresh", Some("service.snapshot.updated")),
        ("Command.Hive.Service.Update", Some("service.update.requested")),
    ];
    let expected: Vec<(String, Option<String>)> =
        expected.map(|(command, event)| (command.to_owned(), event.map(str::to_owned))).into();
    assert_eq!(paired, expected);
}

/// What is tried in every state.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trigger {
    Create,
    Update,
    Delete,
    Refresh,
    SeenReady,
    SeenFailing,
    SeenOther,
    SeenVanished,
    SeenOverdue,
    SeenForEarlier,
    SeenGone,
    Applied,
    AppliedEarlier,
    Refused,
    RefusedEarlier,
    Expired,
    ExpiredEarlier,
}

const TRIGGERS: [Trigger; 17] = [
    Trigger::Create,
    Trigger::Update,
    Trigger::Delete,
    Trigger::Refresh,
    Trigger::SeenReady,
    Trigger::SeenFailing,
    Trigger::SeenOther,
    Trigger::SeenVanished,
    Trigger::SeenOverdue,
    Trigger::SeenForEarlier,
    Trigger::SeenGone,
    Trigger::Applied,
    Trigger::AppliedEarlier,
    Trigger::Refused,
    Trigger::RefusedEarlier,
    Trigger::Expired,
    Trigger::ExpiredEarlier,
];

/// What must follow.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// These events, and this status.
    Events(&'static [&'static str], ServiceStatus),
    /// Nothing, because it is of no interest any more.
    Nothing,
    /// No, with this code.
    No(&'static str),
}

const CREATED: &[&str] =
    &["service.creation.requested", "service.spec.accepted", "service.spec.apply.started"];
const UPDATED: &[&str] = &["service.update.requested", "service.spec.accepted", "service.spec.apply.started"];
const DELETED: &[&str] = &["service.deletion.requested", "service.deletion.marked"];
const CONFIRMED: &[&str] = &["service.snapshot.updated", "service.convergence.confirmed", "service.ready"];
const CONFIRMED_UPDATE: &[&str] =
    &["service.snapshot.updated", "service.convergence.confirmed", "service.ready", "service.updated"];
const NOT_CONFIRMED: &[&str] = &["service.snapshot.updated", "service.convergence.failed", "service.failed"];
const REFRESHED: &[&str] = &["service.snapshot.updated"];
const PURGED: &[&str] = &["service.snapshot.updated", "service.external.purged"];
const GONE: &[&str] = &["service.snapshot.updated", "service.deleted"];
const APPLIED: &[&str] = &["service.spec.applied"];
const REFUSED: &[&str] = &["service.creation.failed", "service.failed"];

const ILLEGAL: Outcome = Outcome::No("illegal-transition");

fn expected(state: Option<ServiceStatus>, trigger: Trigger) -> Outcome {
    use Outcome::{Events, No, Nothing};
    let Some(state) = state else {
        return match trigger {
            Trigger::Create => Events(CREATED, Creating),
            _ => No("service-not-found"),
        };
    };
    match (trigger, state) {
        (Trigger::Create, _) => ILLEGAL,
        (Trigger::Update, Ready | Failed) => Events(UPDATED, Updating),
        (Trigger::Update, _) => ILLEGAL,
        (Trigger::Delete, Ready | Failed) => Events(DELETED, Deleting),
        (Trigger::Delete, _) => ILLEGAL,
        (Trigger::Refresh, state) => Events(REFRESHED, state),
        // What is seen of a service that is gone is of no interest.
        // Before the first observation none is overdue.
        (Trigger::SeenOverdue, Creating) => Events(CONFIRMED, Ready),
        (
            Trigger::SeenOverdue
            | Trigger::AppliedEarlier
            | Trigger::RefusedEarlier
            | Trigger::ExpiredEarlier,
            _,
        ) => Nothing,
        (
            Trigger::SeenReady
            | Trigger::SeenFailing
            | Trigger::SeenOther
            | Trigger::SeenVanished
            | Trigger::SeenForEarlier,
            Deleted,
        ) => Nothing,
        // Of a service that is to be gone, that is told otherwise.
        (Trigger::SeenVanished, Deleting) => Nothing,
        // Before the first look nothing was there that could vanish.
        (Trigger::SeenVanished, Creating) => Events(REFRESHED, Creating),
        (Trigger::SeenVanished, state) => Events(PURGED, state),
        (Trigger::SeenReady, Creating) => Events(CONFIRMED, Ready),
        (Trigger::SeenReady, Updating) => Events(CONFIRMED_UPDATE, Ready),
        (Trigger::SeenFailing, Creating | Updating) => Events(NOT_CONFIRMED, Failed),
        (Trigger::SeenReady | Trigger::SeenFailing | Trigger::SeenOther | Trigger::SeenForEarlier, state) => {
            Events(REFRESHED, state)
        }
        (Trigger::SeenGone, Deleting) => Events(GONE, Deleted),
        (Trigger::SeenGone, _) => ILLEGAL,
        (Trigger::Applied, state @ (Creating | Updating)) => Events(APPLIED, state),
        (Trigger::Refused, Creating | Updating) => Events(REFUSED, Failed),
        (Trigger::Expired, Creating | Updating) => Events(NOT_CONFIRMED, Failed),
        (Trigger::Applied | Trigger::Refused | Trigger::Expired, _) => Nothing,
    }
}

/// Where a service is brought before it is tried, and by which triggers.
const WAYS: [(Option<ServiceStatus>, &[Trigger]); 7] = [
    (None, &[]),
    (Some(Creating), &[Trigger::Create]),
    (Some(Ready), &[Trigger::Create, Trigger::SeenReady]),
    (Some(Failed), &[Trigger::Create, Trigger::SeenFailing]),
    (Some(Updating), &[Trigger::Create, Trigger::SeenReady, Trigger::Update]),
    (Some(Deleting), &[Trigger::Create, Trigger::SeenReady, Trigger::Delete]),
    (Some(Deleted), &[Trigger::Create, Trigger::SeenReady, Trigger::Delete, Trigger::SeenGone]),
];

fn snapshot(ready: Option<bool>, present: bool, hash: Option<SpecHash>) -> Snapshot {
    let status = match ready {
        Some(true) => ConditionStatus::True,
        Some(false) => ConditionStatus::False,
        None => ConditionStatus::Unknown,
    };
    Snapshot {
        observed_at: Utc::now(),
        present,
        ready,
        observed_spec_hash: hash,
        hash_match: false,
        generation: present.then_some(1),
        ready_condition: Condition::of(status),
        configurations_ready: Condition::of(status),
        routes_ready: Condition::of(status),
        latest_created_revision: None,
        latest_ready_revision: None,
        traffic: Vec::new(),
        url: None,
        consecutive_failures: u32::from(ready == Some(false)),
    }
}

async fn pull(running: &Running, id: &str, trigger: Trigger) -> Result<towpath::Receipt, SendError> {
    let known = running.app.load::<Service>(id).await?.map(|view| view.value).unwrap_or_default();
    let hash = known.desired_spec_hash.clone();
    let take = |snapshot| {
        let (observation, spec_version) = (known.observation + 1, known.spec_version);
        let taken = TakeObservation { snapshot, observation, spec_version, failure_threshold: 1 };
        ServiceCommand::TakeObservation(taken)
    };
    let outcome = |result, behind| {
        let (spec_hash, spec_version) = (hash.clone(), known.spec_version.saturating_sub(behind));
        ServiceCommand::RecordApply(ApplyOutcome { spec_hash, spec_version, result })
    };
    let expired = |behind| {
        let spec_version = known.spec_version.saturating_sub(behind);
        ServiceCommand::ExpireConvergence(ConvergenceExpired { spec_version, message: "too long".to_owned() })
    };
    let applied = ApplyResult::Applied { generation: 1, changed: true };
    let refused = ApplyResult::Refused { reason: "no".to_owned(), message: "no".to_owned() };
    let ready = || snapshot(Some(true), true, Some(hash.clone()));
    let command = match trigger {
        Trigger::Create => ServiceCommand::Create(asked(id)),
        Trigger::Update => update("registry.example/cart:2"),
        Trigger::Delete => ServiceCommand::Delete(DeleteAsked::default()),
        Trigger::Refresh => ServiceCommand::Refresh {},
        Trigger::SeenReady => take(ready()),
        Trigger::SeenVanished => take(snapshot(None, false, None)),
        // Seen before what is known, and taken in after it.
        Trigger::SeenOverdue => ServiceCommand::TakeObservation(TakeObservation {
            snapshot: ready(),
            observation: known.observation,
            spec_version: known.spec_version,
            failure_threshold: 1,
        }),
        // The same hash may have been asked for before: what was seen then says nothing about this time.
        Trigger::SeenForEarlier => ServiceCommand::TakeObservation(TakeObservation {
            snapshot: ready(),
            observation: known.observation + 1,
            spec_version: known.spec_version.saturating_sub(1),
            failure_threshold: 1,
        }),
        Trigger::SeenFailing => take(snapshot(Some(false), true, Some(hash.clone()))),
        Trigger::SeenOther => take(snapshot(Some(true), true, Some(SpecHash::from_stored("other")))),
        Trigger::SeenGone => ServiceCommand::ConfirmDeletion { snapshot: snapshot(None, false, None) },
        Trigger::Applied => outcome(applied, 0),
        Trigger::AppliedEarlier => outcome(applied, 1),
        Trigger::Refused => outcome(refused, 0),
        Trigger::RefusedEarlier => outcome(refused, 1),
        Trigger::Expired => expired(0),
        Trigger::ExpiredEarlier => expired(1),
    };
    running.send(id, command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_trigger_is_tried_in_every_state() {
    // Nobody else acts: no consumers, no observer.
    let cluster = support::at_once();
    let running =
        Running::with("sqlite", "local", settings(), cluster, |builder| builder.without_workers()).await;
    for (state, way) in WAYS {
        for trigger in TRIGGERS {
            let place = state.map_or("none", ServiceStatus::as_str).to_lowercase();
            let id = format!("{place}-{trigger:?}").to_lowercase();
            for step in way {
                pull(&running, &id, *step).await.unwrap_or_else(|error| panic!("{id}: {step:?}: {error}"));
            }
            let (before, known) = (running.names(&id).await, running.app.load::<Service>(&id).await.unwrap());
            assert_eq!(known.as_ref().and_then(|view| view.value.status), state, "{id}");
            let answer = pull(&running, &id, trigger).await;
            let after = running.names(&id).await;
            let view = running.app.load::<Service>(&id).await.unwrap();
            match expected(state, trigger) {
                Outcome::Events(names, status) => {
                    let receipt = answer.unwrap_or_else(|error| panic!("{id}: {error}"));
                    assert_eq!(after[before.len()..], *names, "{id}");
                    // Its declared result is among them.
                    let record = running.app.command(&receipt.command_id).await.unwrap().unwrap();
                    let command = record.command.command_type.to_string();
                    if let Some((_, result)) = ServiceCommand::PAIRS.iter().find(|(name, _)| *name == command)
                    {
                        assert!(names.contains(result), "{id}: {command} leads to {result}");
                    }
                    let view = view.unwrap();
                    assert_eq!(
                        (view.value.status, view.state.as_deref()),
                        (Some(status), Some(status.as_str()))
                    );
                }
                Outcome::Nothing => {
                    answer.unwrap_or_else(|error| panic!("{id}: {error}"));
                    assert_eq!((after, view), (before, known), "{id}");
                }
                Outcome::No(code) => {
                    let error = answer.expect_err(&id);
                    assert_eq!(error.code(), code, "{id}: {error}");
                    assert_eq!((after, view), (before, known), "{id}");
                    if let SendError::IllegalTransition(illegal) = error {
                        let ways_out: Vec<&str> = TABLE
                            .iter()
                            .filter(|(from, ..)| *from == state)
                            .map(|(_, event, _)| *event)
                            .collect();
                        assert_eq!(illegal.possible, ways_out, "{id}");
                    }
                }
            }
        }
    }
    let key = AggregateKey::new(Service::KIND, "deleted-create").unwrap();
    let history = running.app.history_of(&key, 0, 10).await.unwrap();
    assert_eq!(history.len(), 4, "CREATING, READY, DELETING, DELETED");
    running.app.stop().await;
}
