//! What a session's process does with each fact, without a store: given its past, when this comes, then that follows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use serde_json::{Value, json};
use towpath::ids::{AggregateKey, TaskId, TaskTypeName};
use towpath::{Aggregate as _, Reaction, Seen, TASK_KIND, TaskSaid, TaskType};
use towpath_genesis::capability::{CapabilityPolicy, name_of, task_type};
use towpath_genesis::draft::{Brief, Draft};
use towpath_genesis::process::{
    AnswerDiscarded, Asked, GenerationFailed, ProcessEnded, ProcessStarted, Writing, WritingEvent,
    WritingInput, subject,
};
use towpath_genesis::session::{
    EntityConfirmed, EntityRequested, Failed, Finished, Propose, Session, SessionCommand, SessionEvent,
    Started,
};
use towpath_genesis::stage::Stage;
use towpath_testkit::{GivenProcess, given_process, seen};

const SESSION: &str = "s-1";
const TASK: TaskId = TaskId(uuid::Uuid::from_u128(3));

/// A fact of the session. The process reads it by its name, so what it does not know by that name fails here.
fn session_said(event: &SessionEvent) -> Seen<WritingInput> {
    let event = serde_json::to_value(event).unwrap();
    seen(Session::KIND, SESSION, serde_json::from_value(event).unwrap())
}

/// A fact of a task, by the end of its name.
fn task_said(end: &str, said: &TaskSaid<Value>) -> Seen<WritingInput> {
    let name = format!("{}.{end}", said.task_type.as_str());
    seen(TASK_KIND, &said.task_id.to_string(), serde_json::from_value(json!({ (name): said })).unwrap())
}

/// The task for a request of the session, and nothing of what came of it.
fn task_of(entity: Stage, request: u64) -> TaskSaid<Value> {
    TaskSaid {
        task_id: TASK,
        task_type: TaskTypeName::new(name_of(entity)).unwrap(),
        key: Some(task_name(entity, request)),
        subject: Some(subject(SESSION).unwrap()),
        payload: None,
        result: None,
        reason: None,
        message: None,
        retry_count: None,
    }
}

fn generated(task: TaskSaid<Value>) -> Seen<WritingInput> {
    task_said("Generated", &TaskSaid { result: Some(json!({ "title": "A", "text": "B" })), ..task })
}

fn task_name(entity: Stage, request: u64) -> String {
    format!("{}/{request}", entity.as_str())
}

fn capability(entity: Stage) -> TaskType {
    task_type(entity, &CapabilityPolicy::default())
}

fn brief(entity: Stage) -> Brief {
    Brief {
        entity,
        ask: 1,
        initial_input: "a ferry".to_owned(),
        preferences: serde_json::Map::new(),
        confirmed: Default::default(),
        network: Vec::new(),
        instructions: Some("darker".to_owned()),
    }
}

fn requested(entity: Stage, request: u64) -> Seen<WritingInput> {
    session_said(&SessionEvent::requested(EntityRequested { request, brief: brief(entity) }))
}

fn confirmed(entity: Stage, request: u64) -> Seen<WritingInput> {
    let draft = Draft { title: "A".to_owned(), text: "B".to_owned() };
    session_said(&SessionEvent::confirmed(EntityConfirmed { entity, request, draft }))
}

fn begun() -> WritingEvent {
    WritingEvent::Started(ProcessStarted {})
}

fn asked(entity: Stage, request: u64) -> WritingEvent {
    WritingEvent::GenerationRequested(Asked { entity, request })
}

/// A process that waits for the answer to a request.
fn waiting(entity: Stage, request: u64) -> GivenProcess<Writing> {
    given_process([begun(), asked(entity, request)])
}

fn accepted(entity: Stage, request: u64) -> Reaction<Writing> {
    let draft = Draft { title: "A".to_owned(), text: "B".to_owned() };
    let command = SessionCommand::propose(entity, Propose { request, draft });
    Reaction::of([WritingEvent::AnswerAccepted(Asked { entity, request })]).send::<Session>(SESSION, command)
}

fn discarded() -> Reaction<Writing> {
    Reaction::of([WritingEvent::AnswerDiscarded(AnswerDiscarded { task: TASK.to_string() })])
}

fn failed(entity: Stage, request: u64, reason: &str, message: &str) -> WritingEvent {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    WritingEvent::GenerationFailed(GenerationFailed { entity, request, reason, message })
}

#[test]
fn it_begins_with_its_session_once() {
    let started = || session_said(&SessionEvent::Started(Started::default()));
    given_process::<Writing>([])
        .when(started())
        .is_for(SESSION)
        .then(Reaction::of([begun()]))
        .state_is("running");
    given_process::<Writing>([begun()]).when(started()).then(Reaction::nothing()).state_is("running");
    // What comes before it is not lost.
    given_process::<Writing>([]).when(requested(Stage::Concept, 2)).waits();
    given_process::<Writing>([]).when(generated(task_of(Stage::Concept, 2))).waits();
}

#[test]
fn a_request_starts_the_task_of_its_stage() {
    for entity in Stage::ALL {
        given_process::<Writing>([begun()])
            .when(requested(entity, 7))
            .is_for(SESSION)
            .then(Reaction::of([asked(entity, 7)]).start_task(
                &capability(entity),
                task_name(entity, 7),
                &brief(entity),
            ))
            .state_is("running");
    }
}

#[test]
fn asking_again_calls_off_what_is_open() {
    let entity = Stage::Theme;
    let again = Reaction::of([asked(entity, 9)])
        .cancel_task(&capability(entity), task_name(entity, 7), "superseded")
        .start_task(&capability(entity), task_name(entity, 9), &brief(entity));
    waiting(entity, 7).when(requested(entity, 9)).then(again).state_is("running");
    // One that is delivered again, and an earlier one that comes behind a later one.
    for request in [7, 5] {
        waiting(entity, 7).when(requested(entity, request)).then(Reaction::nothing()).state_is("running");
    }
}

#[test]
fn the_answer_to_the_open_request_is_proposed() {
    for entity in Stage::ALL {
        waiting(entity, 7)
            .when(generated(task_of(entity, 7)))
            .is_for(SESSION)
            .then(accepted(entity, 7))
            .state_is("running");
    }
    let text = TaskSaid { result: Some(json!("B")), ..task_of(Stage::Concept, 2) };
    let draft = Draft { title: String::new(), text: "B".to_owned() };
    let command = SessionCommand::ProposeConcept(Propose { request: 2, draft });
    let event = WritingEvent::AnswerAccepted(Asked { entity: Stage::Concept, request: 2 });
    waiting(Stage::Concept, 2)
        .when(task_said("Generated", &text))
        .then(Reaction::of([event]).send::<Session>(SESSION, command))
        .state_is("running");
}

#[test]
fn a_late_or_doubled_answer_is_recorded_and_nothing_else() {
    let entity = Stage::World;
    let taken = WritingEvent::AnswerAccepted(Asked { entity, request: 7 });
    let dropped = WritingEvent::GenerationDropped(Asked { entity, request: 7 });
    let pasts = [
        // It was superseded by another request.
        vec![begun(), asked(entity, 7), asked(entity, 9)],
        // It was said before.
        vec![begun(), asked(entity, 7), taken],
        // What holds is confirmed by now.
        vec![begun(), asked(entity, 7), dropped],
        // Nobody has asked.
        vec![begun()],
    ];
    for past in pasts {
        given_process::<Writing>(past)
            .when(generated(task_of(entity, 7)))
            .is_for(SESSION)
            .then(discarded())
            .state_is("running");
    }
    // How a task ended that nobody waits for is in its own facts.
    for end in ["GenerationFailed", "GenerationExpired", "GenerationCanceled"] {
        waiting(entity, 9)
            .when(task_said(end, &task_of(entity, 7)))
            .then(Reaction::nothing())
            .state_is("running");
    }
}

#[test]
fn a_foreign_answer_is_recorded_or_somebody_elses() {
    let entity = Stage::Concept;
    // For this process, by another name, without one, or by another capability.
    let other_name = TaskSaid { key: Some("mine".to_owned()), ..task_of(entity, 2) };
    let no_name = TaskSaid { key: None, ..task_of(entity, 2) };
    let other_sort = TaskSaid { key: Some(task_name(entity, 2)), ..task_of(Stage::Plot, 2) };
    for task in [other_name, no_name, other_sort] {
        waiting(entity, 2).when(generated(task)).is_for(SESSION).then(discarded()).state_is("running");
    }
    // For nobody, or for something that is no process of genesis.
    let others = Some(AggregateKey::new("errand", SESSION).unwrap());
    for subject in [None, others] {
        let task = TaskSaid { subject, ..task_of(entity, 2) };
        waiting(entity, 2).when(task_said("GenerationFailed", &task)).is_ignored();
        waiting(entity, 2).when(generated(task)).is_ignored();
    }
    // Another session's is that one's.
    let task = TaskSaid { subject: Some(subject("s-2").unwrap()), ..task_of(entity, 2) };
    let _ = given_process::<Writing>([]).when(generated(task)).is_for("s-2");
}

#[test]
fn a_failure_and_a_time_out_are_kept_and_the_request_stays_open() {
    let entity = Stage::Plot;
    for (end, reason) in [
        ("GenerationFailed", "no-idea"),
        ("GenerationExpired", "time-limit"),
        // Somebody else has called it off.
        ("GenerationCanceled", "not-wanted"),
    ] {
        let said = TaskSaid {
            reason: Some(reason.to_owned()),
            message: Some("nothing came".to_owned()),
            retry_count: Some(3),
            ..task_of(entity, 7)
        };
        let failure = failed(entity, 7, reason, "nothing came");
        waiting(entity, 7)
            .when(task_said(end, &said))
            .is_for(SESSION)
            .then(Reaction::of([failure.clone()]))
            .state_is("running");
        // Its task is done again, or the user asks again.
        let past = [begun(), asked(entity, 7), failure];
        given_process::<Writing>(past.clone())
            .when(generated(task_of(entity, 7)))
            .then(accepted(entity, 7))
            .state_is("running");
        let again = Reaction::of([asked(entity, 9)])
            .cancel_task(&capability(entity), task_name(entity, 7), "superseded")
            .start_task(&capability(entity), task_name(entity, 9), &brief(entity));
        given_process::<Writing>(past).when(requested(entity, 9)).then(again).state_is("running");
    }
    // A text for people may be of any length.
    let long = TaskSaid { message: Some("ä".repeat(5000)), ..task_of(entity, 7) };
    waiting(entity, 7)
        .when(task_said("GenerationFailed", &long))
        .then(Reaction::of([failed(entity, 7, "", &"ä".repeat(2000))]))
        .state_is("running");
}

#[test]
fn an_answer_that_is_no_draft_is_a_failure() {
    for (result, flaw) in [
        (Some(json!(7)), "it is neither a text nor an object"),
        (Some(json!({ "text": " " })), "text is empty"),
        (None, "it is neither a text nor an object"),
    ] {
        let said = TaskSaid { result, ..task_of(Stage::Concept, 2) };
        waiting(Stage::Concept, 2)
            .when(task_said("Generated", &said))
            .then(Reaction::of([failed(Stage::Concept, 2, "genesis-draft", flaw)]))
            .state_is("running");
    }
}

#[test]
fn what_is_confirmed_is_not_written_any_more() {
    let entity = Stage::Character;
    let dropped = Reaction::of([WritingEvent::GenerationDropped(Asked { entity, request: 9 })]).cancel_task(
        &capability(entity),
        task_name(entity, 9),
        "confirmed",
    );
    waiting(entity, 9).when(confirmed(entity, 7)).is_for(SESSION).then(dropped).state_is("running");
    // Nothing is open, or something else by now.
    given_process::<Writing>([begun()])
        .when(confirmed(entity, 7))
        .then(Reaction::nothing())
        .state_is("running");
    waiting(Stage::Plot, 9).when(confirmed(entity, 7)).then(Reaction::nothing()).state_is("running");
}

#[test]
fn it_ends_with_its_session_and_then_nothing_follows() {
    let ended = || WritingEvent::Ended(ProcessEnded {});
    let gave_up = Failed { reason: "given-up".to_owned(), message: None };
    for end in [SessionEvent::Finished(Finished {}), SessionEvent::Failed(gave_up)] {
        given_process::<Writing>([begun()])
            .when(session_said(&end))
            .is_for(SESSION)
            .then(Reaction::of([ended()]))
            .state_is("ended");
        let entity = Stage::World;
        let called_off =
            Reaction::of([ended()]).cancel_task(&capability(entity), task_name(entity, 7), "session-ended");
        waiting(entity, 7).when(session_said(&end)).then(called_off).state_is("ended");
    }
    let over = || given_process::<Writing>([begun(), asked(Stage::World, 7), ended()]);
    over().when(generated(task_of(Stage::World, 7))).is_after_the_end();
    over().when(requested(Stage::World, 9)).is_after_the_end();
}
