//! Tests of machines: hive's table, every flaw, the drawing, and properties of random machines.

use proptest::prelude::*;

use super::*;

const HIVE_STATES: [&str; 6] = ["CREATING", "UPDATING", "READY", "FAILED", "DELETING", "DELETED"];

const HIVE_MOVES: [&str; 6] = [
    "service.creation.requested",
    "service.update.requested",
    "service.deletion.requested",
    "service.ready",
    "service.failed",
    "service.deleted",
];

const HIVE_STAYS: [&str; 12] = [
    "service.spec.accepted",
    "service.spec.apply.started",
    "service.deletion.marked",
    "service.snapshot.updated",
    "service.convergence.confirmed",
    "service.convergence.failed",
    "service.updated",
    "service.spec.applied",
    "service.external.purged",
    "service.persisted",
    "service.creation.failed",
    "service.audit.recorded",
];

fn hive() -> CheckedMachine {
    let mut machine = Machine::named("service")
        .starts("service.creation.requested", "CREATING")
        .state("CREATING")
        .state("UPDATING")
        .state("READY")
        .state("FAILED")
        .state("DELETING")
        .terminal("DELETED")
        .transition("DELETING", "service.deleted", "DELETED");
    for state in ["READY", "FAILED"] {
        machine = machine.transition(state, "service.update.requested", "UPDATING").transition(
            state,
            "service.deletion.requested",
            "DELETING",
        );
    }
    for state in ["CREATING", "UPDATING"] {
        machine =
            machine.transition(state, "service.ready", "READY").transition(state, "service.failed", "FAILED");
    }
    machine = HIVE_STAYS.into_iter().fold(machine, Machine::stays);
    machine.check(&[&HIVE_MOVES[..], &HIVE_STAYS[..]].concat()).unwrap()
}

/// A small order that waits for its payment; `check` passes.
fn order() -> Machine {
    Machine::named("order")
        .starts("order.placed", "placed")
        .waits("placed", Deadline::after(Duration::from_secs(900), "order.expired"), "the payment")
        .state("paid")
        .terminal("on its way")
        .terminal("expired")
        .transition("placed", "order.paid", "paid")
        .transition("placed", "order.expired", "expired")
        .transition("paid", "order.shipped", "on its way")
        .stays("order.noted")
        .stays_in("paid", "order.packed")
}

const ORDER_EVENTS: [&str; 6] =
    ["order.placed", "order.paid", "order.expired", "order.shipped", "order.noted", "order.packed"];

fn flaws(machine: Machine, emitted: &[&str]) -> Vec<Flaw> {
    machine.check(emitted).unwrap_err().flaws
}

#[test]
fn hive_moves_exactly_as_its_table_says() {
    let machine = hive();
    // H2 to H8, from the requirement and not from the declaration above.
    let table = |from: Option<&str>, event: &str| match (from, event) {
        (None, "service.creation.requested") => Some("CREATING"),
        (Some("READY" | "FAILED"), "service.update.requested") => Some("UPDATING"),
        (Some("READY" | "FAILED"), "service.deletion.requested") => Some("DELETING"),
        (Some("CREATING" | "UPDATING"), "service.ready") => Some("READY"),
        (Some("CREATING" | "UPDATING"), "service.failed") => Some("FAILED"),
        (Some("DELETING"), "service.deleted") => Some("DELETED"),
        _ => None,
    };
    for from in [None].into_iter().chain(HIVE_STATES.map(Some)) {
        for event in HIVE_MOVES {
            let step = machine.step(from, event);
            match table(from, event) {
                Some(to) => assert_eq!(step, Ok(Step::Moves { to }), "{from:?} {event}"),
                None => assert!(step.is_err(), "{from:?} {event}: {step:?}"),
            }
        }
        for event in HIVE_STAYS {
            let step = machine.step(from, event);
            match from {
                Some(_) => assert_eq!(step, Ok(Step::Stays), "{from:?} {event}"),
                None => assert!(step.is_err(), "{event} happened to a service that does not exist"),
            }
        }
        assert!(machine.step(from, "service.invented").is_err());
    }
}

#[test]
fn a_refusal_names_what_is_possible() {
    let machine = hive();
    let refusal = machine.step(Some("READY"), "service.deleted").unwrap_err();
    assert_eq!(refusal.possible, ["service.update.requested", "service.deletion.requested"]);
    assert_eq!(
        refusal.to_string(),
        "service.deleted is not possible for service in state READY; \
         possible next: service.update.requested, service.deletion.requested"
    );
    assert_eq!(
        machine.step(Some("DELETED"), "service.ready").unwrap_err().to_string(),
        "service.ready is not possible for service in state DELETED; nothing leads out of there"
    );
    assert_eq!(
        machine.step(None, "service.ready").unwrap_err().to_string(),
        "service.ready is not possible for service before it exists; possible next: service.creation.requested"
    );
    assert!(machine.step(Some("FORGOTTEN"), "service.snapshot.updated").is_err(), "no such state");
}

#[test]
fn a_checked_machine_answers_about_itself() {
    let machine = order().check(&ORDER_EVENTS).unwrap();
    assert_eq!(machine.name(), "order");
    assert!(
        machine.is_terminal("expired") && !machine.is_terminal("paid") && !machine.is_terminal("unknown")
    );
    assert_eq!(machine.deadline_of("placed").unwrap().event, "order.expired");
    assert_eq!(machine.deadline_of("paid"), None);
    let next: Vec<_> = machine.possible_next(Some("placed")).into_iter().map(|way| way.to).collect();
    assert_eq!(next, ["paid", "expired"]);
    assert_eq!(machine.step(Some("paid"), "order.packed"), Ok(Step::Stays));
    assert!(machine.step(Some("placed"), "order.packed").is_err(), "packing is for paid orders");
}

#[test]
fn a_transition_wins_over_an_event_that_stays_elsewhere() {
    let machine = order().stays("order.paid").check(&ORDER_EVENTS).unwrap();
    assert_eq!(machine.step(Some("placed"), "order.paid"), Ok(Step::Moves { to: "paid" }));
    assert_eq!(machine.step(Some("paid"), "order.paid"), Ok(Step::Stays));
}

#[test]
fn a_transition_to_its_own_state_stays_and_a_repeated_one_counts_once() {
    let machine = order()
        .transition("paid", "order.packed", "paid")
        .transition("paid", "order.shipped", "on its way")
        .check(&ORDER_EVENTS)
        .unwrap();
    assert_eq!(machine.step(Some("paid"), "order.packed"), Ok(Step::Stays));
    assert_eq!(machine.transitions().len(), 4);
    assert_eq!(machine.stays().len(), 2);
}

#[test]
fn each_flaw_is_found() {
    let text = |text: &str| text.to_owned();
    let cases = [
        (
            Machine::named("m").state("a").terminal("b").transition("a", "order.paid", "b"),
            vec!["order.paid"],
            Flaw::NoStart,
        ),
        (order().state("paid"), ORDER_EVENTS.to_vec(), Flaw::DuplicateState { state: text("paid") }),
        (
            order().transition("paid", "order.noted", "packd"),
            ORDER_EVENTS.to_vec(),
            Flaw::UndeclaredState { state: text("packd"), event: text("order.noted") },
        ),
        (
            order().stays_in("payd", "order.packed"),
            ORDER_EVENTS.to_vec(),
            Flaw::UndeclaredState { state: text("payd"), event: text("order.packed") },
        ),
        (order().terminal("lost"), ORDER_EVENTS.to_vec(), Flaw::UnreachableState { state: text("lost") }),
        (
            order().state("held").transition("paid", "order.noted", "held").stays_in("held", "order.packed"),
            ORDER_EVENTS.to_vec(),
            Flaw::DeadEnd { state: text("held") },
        ),
        (
            order().transition("expired", "order.paid", "paid"),
            ORDER_EVENTS.to_vec(),
            Flaw::TerminalWithWayOut { state: text("expired"), event: text("order.paid") },
        ),
        (
            order().stays("order.dreamt"),
            ORDER_EVENTS.to_vec(),
            Flaw::NobodyEmits { event: text("order.dreamt") },
        ),
        (
            order(),
            [&ORDER_EVENTS[..], &["order.weighed"]].concat(),
            Flaw::NotMentioned { event: text("order.weighed") },
        ),
        (
            order().waits("held", None, "the bank").transition("paid", "order.noted", "held").transition(
                "held",
                "order.shipped",
                "on its way",
            ),
            ORDER_EVENTS.to_vec(),
            Flaw::WaitsWithoutDeadline { state: text("held"), waits_for: text("the bank") },
        ),
        (
            order()
                .waits("held", Deadline::after(Duration::from_secs(1), "order.expired"), "the bank")
                .transition("paid", "order.noted", "held")
                .transition("held", "order.shipped", "on its way"),
            ORDER_EVENTS.to_vec(),
            Flaw::DeadlineLeadsNowhere { state: text("held"), event: text("order.expired") },
        ),
        (
            order().transition("placed", "order.paid", "expired"),
            ORDER_EVENTS.to_vec(),
            Flaw::Ambiguous {
                from: Some(text("placed")),
                event: text("order.paid"),
                first: text("paid"),
                second: text("expired"),
            },
        ),
        (
            order().starts("order.placed", "paid"),
            ORDER_EVENTS.to_vec(),
            Flaw::Ambiguous {
                from: None,
                event: text("order.placed"),
                first: text("placed"),
                second: text("paid"),
            },
        ),
        (
            order().stays_in("placed", "order.paid"),
            ORDER_EVENTS.to_vec(),
            Flaw::Ambiguous {
                from: Some(text("placed")),
                event: text("order.paid"),
                first: text("paid"),
                second: text("placed"),
            },
        ),
    ];
    for (machine, emitted, flaw) in cases {
        let found = flaws(machine, &emitted);
        assert!(found.contains(&flaw), "{flaw:?} not in {found:?}");
        assert_eq!(found.len(), 1, "{flaw:?} brought others with it: {found:?}");
    }
}

#[test]
fn all_flaws_are_reported_at_once() {
    let machine = Machine::named("order").starts("order.placed", "placed").state("placed").terminal("lost");
    let error = machine.check(&["order.placed", "order.paid"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\
the state machine order has 3 flaws:
- state placed has no way out; declare a transition from it, or declare it terminal
- state lost cannot be reached; declare a transition to it, or remove it
- order.paid is emitted and not mentioned; declare its transition, or stays(\"order.paid\") if it changes no state"
    );
}

#[test]
fn the_drawing_is_the_same_to_the_letter() {
    let machine = order().check(&ORDER_EVENTS).unwrap();
    assert_eq!(
        machine.to_mermaid(),
        "\
stateDiagram-v2
    state \"on its way\" as state_3
    [*] --> placed : order.placed
    placed --> paid : order.paid
    placed --> expired : order.expired
    paid --> state_3 : order.shipped
    state_3 --> [*]
    expired --> [*]
    note right of placed : waits for the payment, after 15m order.expired
"
    );
}

#[test]
fn what_mermaid_would_misread_gets_an_alias_or_an_escape() {
    let machine = Machine::named("odd")
        .starts("a:b;c", "Note")
        .state("Note")
        .state("state_1")
        .terminal("in-flight \"now\"")
        .transition("Note", "x\ny", "state_1")
        .transition("state_1", "z", "in-flight \"now\"")
        .check(&["a:b;c", "x\ny", "z"])
        .unwrap();
    assert_eq!(
        machine.to_mermaid(),
        "\
stateDiagram-v2
    state \"Note\" as state_1_
    state \"in-flight #34;now#34;\" as state_3
    [*] --> state_1_ : a#58;b#59;c
    state_1_ --> state_1 : x y
    state_1 --> state_3 : z
    state_3 --> [*]
"
    );
}

#[test]
fn the_json_of_a_machine() {
    let deadline = Deadline::after(Duration::from_secs(90), "b").by_command("do.b");
    let machine = Machine::named("m")
        .starts("a", "one")
        .waits("one", deadline, "luck")
        .terminal("two")
        .transition("one", "b", "two")
        .stays("c")
        .check(&["a", "b", "c"])
        .unwrap();
    assert_eq!(
        serde_json::to_value(&machine).unwrap(),
        serde_json::json!({
            "name": "m",
            "states": [
                {
                    "name": "one",
                    "terminal": false,
                    "waitsFor": "luck",
                    "deadline": {"after": "1m30s", "event": "b", "command": "do.b"},
                },
                {"name": "two", "terminal": true},
            ],
            "transitions": [
                {"from": null, "event": "a", "to": "one"},
                {"from": "one", "event": "b", "to": "two"},
            ],
            "stays": [{"event": "c", "state": null}],
        })
    );
}

/// Any declaration over a few states and events. Many have flaws.
fn any_machine() -> impl Strategy<Value = Machine> {
    let edges = proptest::collection::vec((0..6_usize, 0..5_usize, 0..6_usize), 0..12);
    let stays = proptest::collection::vec((proptest::option::of(0..6_usize), 0..5_usize), 0..4);
    (1..6_usize, edges, stays, any::<u8>()).prop_map(|(size, edges, stays, terminals)| {
        let mut machine = Machine::named("any").starts("e0", "s0");
        for state in 0..size {
            let name = format!("s{state}");
            machine = if terminals >> state & 1 == 1 { machine.terminal(name) } else { machine.state(name) };
        }
        for (from, event, to) in edges {
            machine = machine.transition(format!("s{from}"), format!("e{event}"), format!("s{to}"));
        }
        for (state, event) in stays {
            let event = format!("e{event}");
            machine = match state {
                Some(state) => machine.stays_in(format!("s{state}"), event),
                None => machine.stays(event),
            };
        }
        machine
    })
}

/// A declaration without flaws by construction: a tree from the start, and further edges with events of their own.
fn sound_machine() -> impl Strategy<Value = Machine> {
    let parents = proptest::collection::vec(any::<prop::sample::Index>(), 0..8);
    let edges = proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..8);
    (parents, edges, 0..3_usize).prop_map(|(parents, edges, stays)| {
        let size = parents.len() + 1;
        let tree = parents.iter().enumerate().map(|(at, parent)| (parent.index(at + 1), at + 1));
        let further = edges.iter().map(|(from, to)| (from.index(size), to.index(size)));
        let edges: Vec<(usize, usize)> = tree.chain(further).collect();
        let mut machine = Machine::named("sound").starts("begun", "s0");
        for state in 0..size {
            let has_way_out = edges.iter().any(|(from, to)| *from == state && from != to);
            let name = format!("s{state}");
            machine = if has_way_out { machine.state(name) } else { machine.terminal(name) };
        }
        for (number, (from, to)) in edges.iter().enumerate() {
            machine = machine.transition(format!("s{from}"), format!("e{number}"), format!("s{to}"));
        }
        (0..stays).fold(machine, |machine, number| machine.stays(format!("noted{number}")))
    })
}

fn mentioned(machine: &Machine) -> Vec<String> {
    let moved = machine.transitions.iter().map(|way| way.event.clone());
    moved.chain(machine.stays.iter().map(|stay| stay.event.clone())).collect()
}

fn check_against_own_events(machine: Machine) -> Result<CheckedMachine, MachineFlaws> {
    let events = mentioned(&machine);
    machine.check(&events.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What every machine that passed its check promises.
fn keeps_its_promises(machine: &CheckedMachine) -> Result<(), TestCaseError> {
    let declared: HashSet<&str> = machine.states().iter().map(|state| state.name.as_str()).collect();
    let mut reached: HashSet<String> = HashSet::new();
    let mut to_visit: Vec<Option<String>> = vec![None];
    while let Some(from) = to_visit.pop() {
        for way in machine.possible_next(from.as_deref()) {
            prop_assert_eq!(machine.step(from.as_deref(), &way.event), Ok(Step::Moves { to: &way.to }));
            if reached.insert(way.to.clone()) {
                to_visit.push(Some(way.to));
            }
        }
    }
    prop_assert_eq!(reached.iter().map(String::as_str).collect::<HashSet<_>>(), declared.clone());

    let events = machine
        .transitions()
        .iter()
        .map(|way| &way.event)
        .chain(machine.stays().iter().map(|stay| &stay.event));
    for event in events {
        for from in [None].into_iter().chain(declared.iter().copied().map(Some)) {
            let next: Vec<_> =
                machine.possible_next(from).into_iter().filter(|way| way.event == *event).collect();
            match machine.step(from, event) {
                Ok(Step::Moves { to }) => {
                    prop_assert!(declared.contains(to));
                    prop_assert!(from.is_none_or(|from| from != to && !machine.is_terminal(from)));
                    prop_assert_eq!(next.iter().map(|way| way.to.as_str()).collect::<Vec<_>>(), [to]);
                }
                Ok(Step::Stays) => prop_assert!(from.is_some() && next.is_empty()),
                Err(refusal) => {
                    prop_assert!(next.is_empty());
                    prop_assert!(!refusal.possible.contains(event));
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_sound_machine_passes_and_keeps_its_promises(machine in sound_machine()) {
        let checked = check_against_own_events(machine);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
        keeps_its_promises(&checked.unwrap())?;
    }

    #[test]
    fn whatever_passes_the_check_keeps_its_promises(machine in any_machine()) {
        match check_against_own_events(machine) {
            Ok(checked) => keeps_its_promises(&checked)?,
            Err(error) => prop_assert!(!error.flaws.is_empty()),
        }
    }
}

#[test]
fn several_states_are_taken_each_by_itself() {
    let machine = Machine::named("parcel")
        .state("packed")
        .state("sent")
        .terminal("lost")
        .starts("parcel.packed", "packed")
        .transition("packed", "parcel.sent", "sent")
        .transitions(["packed", "sent"], "parcel.lost", "lost")
        .stay_in(&["packed", "sent"], &["parcel.weighed", "parcel.seen"])
        .check(&["parcel.packed", "parcel.sent", "parcel.lost", "parcel.weighed", "parcel.seen"])
        .unwrap();
    for state in ["packed", "sent"] {
        assert_eq!(machine.step(Some(state), "parcel.lost"), Ok(Step::Moves { to: "lost" }));
        assert_eq!(machine.step(Some(state), "parcel.weighed"), Ok(Step::Stays));
        assert_eq!(machine.step(Some(state), "parcel.seen"), Ok(Step::Stays));
    }
    assert!(machine.step(Some("lost"), "parcel.seen").is_err());
}
