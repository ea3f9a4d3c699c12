//! Every command of G12 in every state of a session: allowed, or refused with what is possible; and the names to the letter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use towpath::{Aggregate, Command as _, Context, Event as _, from_variant};
use towpath_genesis::draft::Draft;
use towpath_genesis::session::{
    Action, Propose, Session, SessionCommand, SessionEvent, SessionRefusal, Started, Status,
};
use towpath_genesis::stage::Stage;
use towpath_testkit::{VirtualClock, given};

/// What users may send, by where a session is: with nothing asked for yet, asked, proposed and confirmed.
const POSSIBLE: [(&str, &str); 26] = [
    ("concept", "Seed.Request Fail Branch.Create"),
    ("concept asked", "Seed.Request Fail Branch.Create"),
    ("concept proposed", "Seed.Request Concept.Confirm Fail Branch.Create"),
    ("concept confirmed", "Stage.Complete Fail Branch.Create"),
    ("theme", "Theme.Request Fail Branch.Create"),
    ("theme asked", "Theme.Request Fail Branch.Create"),
    ("theme proposed", "Theme.Request Theme.Confirm Fail Branch.Create"),
    ("theme confirmed", "Theme.Revise Stage.Complete Fail Branch.Create"),
    ("world", "Theme.Revise World.Request Fail Branch.Create"),
    ("world asked", "Theme.Revise World.Request Fail Branch.Create"),
    ("world proposed", "Theme.Revise World.Request World.Confirm Fail Branch.Create"),
    ("world confirmed", "Theme.Revise World.Update Stage.Complete Fail Branch.Create"),
    ("character", "Theme.Revise World.Update Character.Request Fail Branch.Create"),
    ("character asked", "Theme.Revise World.Update Character.Request Fail Branch.Create"),
    (
        "character proposed",
        "Theme.Revise World.Update Character.Request Character.Confirm Fail Branch.Create",
    ),
    (
        "character confirmed",
        "Theme.Revise World.Update Character.Update CharacterNetwork.Create Stage.Complete Fail Branch.Create",
    ),
    ("plot", "Theme.Revise World.Update Character.Update Plot.Request Fail Branch.Create"),
    ("plot asked", "Theme.Revise World.Update Character.Update Plot.Request Fail Branch.Create"),
    (
        "plot proposed",
        "Theme.Revise World.Update Character.Update Plot.Request Plot.Confirm Fail Branch.Create",
    ),
    (
        "plot confirmed",
        "Theme.Revise World.Update Character.Update Plot.Update Stage.Complete Fail Branch.Create",
    ),
    ("details", "Details.Request Fail Branch.Create"),
    ("details asked", "Details.Request Fail Branch.Create"),
    ("details proposed", "Details.Request Details.Confirm Fail Branch.Create"),
    ("details confirmed", "Stage.Complete Finish Fail Branch.Create"),
    ("finished", "Branch.Create"),
    ("failed", "Branch.Create"),
];

/// The commands of G12 and their results.
const PAIRS: [(&str, &str); 22] = [
    ("Start", "Started"),
    ("Seed.Request", "SeedRequested"),
    ("Concept.Confirm", "ConceptConfirmed"),
    ("Stage.Complete", "StageCompleted"),
    ("Theme.Request", "Theme.Requested"),
    ("Theme.Confirm", "Theme.Confirmed"),
    ("Theme.Revise", "Theme.Revised"),
    ("World.Request", "World.Requested"),
    ("World.Confirm", "World.Confirmed"),
    ("World.Update", "World.Updated"),
    ("Character.Request", "Character.Requested"),
    ("Character.Confirm", "Character.Confirmed"),
    ("Character.Update", "Character.Updated"),
    ("CharacterNetwork.Create", "CharacterNetwork.Created"),
    ("Plot.Request", "Plot.Requested"),
    ("Plot.Confirm", "Plot.Confirmed"),
    ("Plot.Update", "Plot.Updated"),
    ("Details.Request", "Details.Requested"),
    ("Details.Confirm", "Details.Confirmed"),
    ("Finish", "Finished"),
    ("Fail", "Failed"),
    ("Branch.Create", "BranchCreated"),
];

fn draft(text: &str) -> Draft {
    Draft { title: format!("On {text}"), text: text.to_owned() }
}

fn command(name: &str, payload: Value) -> SessionCommand {
    let payload = towpath::Payload::from_value(&payload).unwrap();
    from_variant(&format!("{}{name}", SessionCommand::PREFIX), &payload).unwrap()
}

/// A command with a payload that can be used.
fn sample(name: &str) -> SessionCommand {
    let payload = match name {
        "Start" => json!({ "userId": "user-7", "initialInput": "a ferry" }),
        "CharacterNetwork.Create" => {
            json!({ "relations": [{ "from": "Ilse", "to": "Wren", "relation": "rival" }] })
        }
        name if name.ends_with(".Revise") || name.ends_with(".Update") => json!({ "text": "another one" }),
        _ => json!({}),
    };
    command(name, payload)
}

/// A session and its past.
#[derive(Clone, Default)]
struct Past {
    session: Session,
    events: Vec<SessionEvent>,
}

impl Past {
    fn decide(&self, command: SessionCommand) -> Result<Vec<SessionEvent>, SessionRefusal> {
        let (now, version) = (VirtualClock::start(), self.events.len() as u64);
        self.session.decide(command, &Context { now, version, actor_id: None, tenant_id: None })
    }

    fn then(mut self, command: SessionCommand) -> Self {
        for event in self.decide(command).unwrap_or_else(|refusal| panic!("{refusal}")) {
            self.session = self.session.evolve(&event);
            self.events.push(event);
        }
        self
    }

    fn answered(self, entity: Stage, text: &str) -> Self {
        let request = self.session.entries[&entity].open.unwrap();
        self.then(SessionCommand::propose(entity, Propose { request, draft: draft(text) }))
    }

    /// A session that has just come to a state of the table.
    fn at(state: &str) -> Self {
        let mut past = Self::default().then(sample("Start"));
        for stage in Stage::ALL {
            let capital = match stage {
                Stage::Concept => "Concept",
                Stage::Theme => "Theme",
                Stage::World => "World",
                Stage::Character => "Character",
                Stage::Plot => "Plot",
                Stage::Details => "Details",
            };
            let request = if stage == Stage::Concept { "Seed" } else { capital };
            let name = stage.as_str();
            if state == name {
                return past;
            }
            past = past.then(sample(&format!("{request}.Request")));
            if state == format!("{name} asked") {
                return past;
            }
            past = past.answered(stage, name);
            if state == format!("{name} proposed") {
                return past;
            }
            past = past.then(sample(&format!("{capital}.Confirm")));
            if state == format!("{name} confirmed") {
                return past;
            }
            if state == "failed" {
                return past.then(sample("Fail"));
            }
            past = past.then(sample(if stage == Stage::Details { "Finish" } else { "Stage.Complete" }));
        }
        assert_eq!(state, "finished");
        past
    }
}

#[test]
fn every_command_in_every_state_is_allowed_or_refused_with_what_is_possible() {
    for (state, possible) in POSSIBLE {
        let past = Past::at(state);
        let full: Vec<String> =
            possible.split(' ').map(|name| format!("{}{name}", SessionCommand::PREFIX)).collect();
        assert_eq!(past.session.possible(), full, "{state}");
        for (name, _) in PAIRS {
            let asked = past.decide(sample(name));
            match (possible.split(' ').any(|one| one == name), asked) {
                // What the session allows, its machine allows, too.
                (true, Ok(events)) => {
                    assert_eq!(events.len(), 1, "{state}: {name}");
                    given::<Session>(past.events.clone()).when(sample(name)).then(events);
                }
                (false, Err(refusal)) => {
                    let command = sample(name).name();
                    let at = past.session.status.unwrap().as_str();
                    let possible = past.session.possible();
                    assert_eq!(refusal, SessionRefusal::NotPossible { command, at, possible }, "{state}");
                    assert!(full.iter().all(|one| refusal.to_string().contains(one)), "{refusal}");
                }
                (_, answer) => panic!("{state}: {name} gives {answer:?}"),
            }
        }
    }
    // Before there is one, it can be started, and nothing else can be found.
    let nothing = Past::default();
    assert_eq!(nothing.session.possible(), [SessionCommand::START]);
    for (name, _) in PAIRS.iter().skip(1) {
        assert_eq!(nothing.decide(sample(name)), Err(SessionRefusal::NotFound), "{name}");
    }
}

#[test]
fn the_names_are_those_of_the_source_and_every_command_is_paired() {
    let full = |(command, event): (&str, &str)| {
        (format!("{}{command}", SessionCommand::PREFIX), format!("Genesis.Session.{event}"))
    };
    let expected: BTreeSet<(String, String)> = PAIRS.map(full).into();
    let declared: BTreeSet<(String, String)> =
        SessionCommand::PAIRS.iter().map(|(command, event)| ((*command).into(), (*event).into())).collect();
    assert_eq!(declared, expected);
    // What is not paired is internal; each command has its place in the table of actions.
    let paired: Vec<&str> = SessionCommand::PAIRS.iter().map(|(command, _)| *command).collect();
    for name in SessionCommand::NAMES {
        assert_ne!(paired.contains(name), SessionCommand::INTERNAL.contains(name), "{name}");
        assert!(SessionCommand::action_of(name).is_some(), "{name}");
    }
    // Beside the results of commands: what answers lead to.
    let results: BTreeSet<&str> = SessionCommand::PAIRS.iter().map(|(_, event)| *event).collect();
    let others: Vec<&str> =
        SessionEvent::NAMES.iter().copied().filter(|name| !results.contains(name)).collect();
    let proposed =
        ["ConceptProposed", "Theme.Proposed", "World.Proposed", "Character.Proposed", "Plot.Proposed"];
    let proposed = proposed.into_iter().chain(["Details.Generated"]);
    assert_eq!(others, proposed.map(|name| format!("Genesis.Session.{name}")).collect::<Vec<_>>());
    assert_eq!(SessionEvent::schemas().len(), SessionEvent::NAMES.len());
}

#[test]
fn asking_again_supersedes_and_a_late_answer_gives_nothing() {
    let past = Past::at("theme asked");
    let first = past.session.entries[&Stage::Theme].open.unwrap();
    let past = past.then(command("Theme.Request", json!({ "instructions": "lighter" })));
    let entry = &past.session.entries[&Stage::Theme];
    let second = entry.open.unwrap();
    assert!(second > first && entry.asks == 2);
    let answer = |entity, request| SessionCommand::propose(entity, Propose { request, draft: draft("x") });
    // Late, of another stage, of nobody's request: nothing, and no harm.
    for (entity, request) in [(Stage::Theme, first), (Stage::Theme, second + 1), (Stage::World, second)] {
        assert_eq!(past.decide(answer(entity, request)), Ok(Vec::new()));
    }
    let past = past.answered(Stage::Theme, "lighter");
    assert_eq!(past.decide(answer(Stage::Theme, second)), Ok(Vec::new()), "doubled");
    // Nobody confirms what they have not seen.
    let other = past.decide(command("Theme.Confirm", json!({ "request": first })));
    assert_eq!(other, Err(SessionRefusal::OtherProposal { is: second, expected: first }));
    let past = past.then(command("Theme.Confirm", json!({ "request": second })));
    assert_eq!(past.session.confirmed(Stage::Theme), Some(&draft("lighter")));
    // After the end, too.
    for state in ["finished", "failed"] {
        assert_eq!(Past::at(state).decide(answer(Stage::Details, 1)), Ok(Vec::new()), "{state}");
    }
}

#[test]
fn a_change_keeps_the_title_unless_it_brings_one() {
    let past = Past::at("world").then(command("Theme.Revise", json!({ "text": "darker" })));
    let theme = past.session.confirmed(Stage::Theme).unwrap().clone();
    assert_eq!(theme, Draft { title: "On theme".to_owned(), text: "darker".to_owned() });
    let past = past.then(command("Theme.Revise", json!({ "title": "Night", "text": "darker" })));
    assert_eq!(past.session.confirmed(Stage::Theme).unwrap().title, "Night");
    // The writer of the next stage gets what holds now.
    let events = past.decide(sample("World.Request")).unwrap();
    let SessionEvent::WorldRequested(asked) = &events[0] else { panic!("{events:?}") };
    assert_eq!(asked.brief.confirmed[&Stage::Theme].title, "Night");
    assert_eq!(asked.brief.confirmed.len(), 2);
}

/// G12 says no more of payloads than what they are for: nothing is as good as `{}`, and what else is said is heeded.
#[test]
fn payloads_may_say_nothing_or_more_than_is_known() {
    for (state, possible) in POSSIBLE {
        for name in possible.split(' ') {
            let events = Past::at(state).decide(command(name, json!({}))).unwrap();
            assert_eq!(events.len(), 1, "{state}: {name}");
        }
    }
    let past = Past::at("world").then(command("Theme.Revise", json!({ "feedback": "darker" })));
    assert_eq!(past.session.confirmed(Stage::Theme).unwrap().text, "feedback: darker");
    let past = past.then(command("Theme.Revise", json!({})));
    assert_eq!(past.session.confirmed(Stage::Theme).unwrap().text, "feedback: darker");
    let events = past.decide(command("World.Request", json!({ "size": 7 }))).unwrap();
    let SessionEvent::WorldRequested(asked) = &events[0] else { panic!("{events:?}") };
    assert_eq!(asked.brief.instructions.as_deref(), Some("size: 7"));
    // The last stage can be completed once, and finished either way.
    let complete = Past::at("details confirmed").then(sample("Stage.Complete"));
    assert!(complete.decide(sample("Stage.Complete")).is_err());
    assert!(complete.decide(sample("Finish")).is_ok());
}

#[test]
fn a_branch_begins_with_what_was_confirmed_before_its_stage() {
    let parent = Past::at("character confirmed");
    let parent = parent.then(sample("CharacterNetwork.Create")).then(sample("Stage.Complete"));
    for number in 0..=4 {
        let events = parent.decide(command("Branch.Create", json!({ "stage": number }))).unwrap();
        let SessionEvent::BranchCreated(created) = &events[0] else { panic!("{events:?}") };
        let expected: Vec<Stage> = Stage::ALL.into_iter().take(number).collect();
        assert_eq!(created.begins_with.confirmed.keys().copied().collect::<Vec<_>>(), expected);
        assert_eq!(created.begins_with.network.is_some(), number == 4);
        let begin = SessionCommand::StartBranch(towpath_genesis::session::StartBranch {
            stage: created.stage,
            begins_with: created.begins_with.clone(),
        });
        let begun = Past::default().decide(begin.clone()).unwrap();
        given::<Session>([]).when(begin).then(begun).state_is(Stage::ALL[number].as_str());
    }
    let refused = |payload| parent.decide(command("Branch.Create", payload));
    for payload in [json!({ "stage": 5 }), json!({ "stage": 200 }), json!({ "stage": "night" })] {
        assert!(matches!(refused(payload.clone()), Err(SessionRefusal::Invalid(_))), "{payload}");
    }
    // Of the present stage, under an id of its own.
    let events = parent.decide(sample("Branch.Create")).unwrap();
    let branched = parent.clone().then(sample("Branch.Create")).then(sample("Branch.Create"));
    let ids: BTreeSet<&String> = branched.session.branches.iter().map(|branch| &branch.session_id).collect();
    assert_eq!(ids.len(), 2, "{events:?}");
    assert!(branched.session.branches.iter().all(|branch| branch.stage == Stage::Plot));
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let nothing = Past::default();
    for (field, value) in [
        ("userId", json!(" ")),
        ("userId", json!("u".repeat(129))),
        ("initialInput", json!("")),
        ("initialInput", json!("a\u{0}b")),
        ("initialInput", json!("a".repeat((16 << 10) + 1))),
        ("novelId", json!("")),
        ("preferences", json!({ "tone": "x".repeat(16 << 10) })),
    ] {
        let mut payload = json!({ "userId": "user-7", "initialInput": "a ferry" });
        payload[field] = value;
        let refused = nothing.decide(command("Start", payload));
        assert!(matches!(&refused, Err(SessionRefusal::Invalid(why)) if why.contains(field)), "{refused:?}");
    }
    let text = "x".repeat((64 << 10) + 1);
    let at = Past::at("character confirmed");
    let relation = json!({ "from": "a".repeat(500), "to": "b", "relation": "c" });
    assert_eq!(at.decide(command("Stage.Complete", json!({ "stage": "character" }))).unwrap().len(), 1);
    for asked in [
        command("Theme.Revise", json!({ "text": text })),
        command("World.Update", json!({ "text": "" })),
        command("Stage.Complete", json!({ "stage": 2 })),
        command("CharacterNetwork.Create", json!({ "relations": vec![relation.clone(); 131] })),
        command("Fail", json!({ "reason": "" })),
    ] {
        assert!(matches!(at.decide(asked), Err(SessionRefusal::Invalid(_))));
    }
    let asked = Past::at("theme").decide(command("Theme.Request", json!({ "instructions": text })));
    assert!(matches!(asked, Err(SessionRefusal::Invalid(_))));
}

#[test]
fn states_and_texts_are_stored_as_they_are_named() {
    for status in Status::all() {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        assert_eq!(serde_json::from_value::<Status>(json!(status.as_str())).unwrap(), status);
    }
    for (number, stage) in (0..).zip(Stage::ALL) {
        assert_eq!((stage.number(), Stage::numbered(number)), (number, Some(stage)));
        assert_eq!(Stage::named(stage.as_str()), Some(stage));
        assert!(!Past::at("finished").session.allows(Action::Request(stage)));
    }
    let started = Started { user_id: "user-7".to_owned(), ..Started::default() };
    let text = serde_json::to_string(&started).unwrap();
    assert_eq!(text, r#"{"userId":"user-7","initialInput":"","preferences":{}}"#);
}
