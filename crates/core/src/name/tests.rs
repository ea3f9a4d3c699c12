//! The names of the sources under their rules, and words in and out of tense.

use super::tense::*;
use super::*;
use proptest::prelude::*;

const GENESIS_COMMANDS: &[&str] = &[
    "Command.Genesis.Session.Start",
    "Command.Genesis.Session.Seed.Request",
    "Command.Genesis.Session.Concept.Confirm",
    "Command.Genesis.Session.Stage.Complete",
    "Command.Genesis.Session.Theme.Request",
    "Command.Genesis.Session.Theme.Revise",
    "Command.Genesis.Session.Theme.Confirm",
    "Command.Genesis.Session.World.Request",
    "Command.Genesis.Session.World.Update",
    "Command.Genesis.Session.World.Confirm",
    "Command.Genesis.Session.Character.Request",
    "Command.Genesis.Session.Character.Update",
    "Command.Genesis.Session.Character.Confirm",
    "Command.Genesis.Session.CharacterNetwork.Create",
    "Command.Genesis.Session.Plot.Request",
    "Command.Genesis.Session.Plot.Update",
    "Command.Genesis.Session.Plot.Confirm",
    "Command.Genesis.Session.Details.Request",
    "Command.Genesis.Session.Details.Confirm",
    "Command.Genesis.Session.Finish",
    "Command.Genesis.Session.Fail",
    "Command.Genesis.Session.Branch.Create",
];

const GENESIS_EVENTS: &[&str] = &[
    "Genesis.Session.Started",
    "Genesis.Session.SeedRequested",
    "Genesis.Session.ConceptProposed",
    "Genesis.Session.ConceptConfirmed",
    "Genesis.Session.StageCompleted",
    "Genesis.Session.Theme.Requested",
    "Genesis.Session.Theme.Proposed",
    "Genesis.Session.Theme.Revised",
    "Genesis.Session.Theme.Confirmed",
    "Genesis.Session.World.Requested",
    "Genesis.Session.World.Proposed",
    "Genesis.Session.World.Updated",
    "Genesis.Session.World.Confirmed",
    "Genesis.Session.Character.Requested",
    "Genesis.Session.Character.Proposed",
    "Genesis.Session.Character.Updated",
    "Genesis.Session.Character.Confirmed",
    "Genesis.Session.CharacterNetwork.Created",
    "Genesis.Session.Plot.Requested",
    "Genesis.Session.Plot.Proposed",
    "Genesis.Session.Plot.Updated",
    "Genesis.Session.Plot.Confirmed",
    "Genesis.Session.Details.Requested",
    "Genesis.Session.Details.Generated",
    "Genesis.Session.Details.Confirmed",
    "Genesis.Session.Finished",
    "Genesis.Session.Failed",
    "Genesis.Session.BranchCreated",
    "Outliner.Concept.GenerationRequested",
    "Outliner.Concept.Generated",
    "Outliner.Theme.GenerationRequested",
    "Outliner.Theme.Generated",
    "Worldbuilder.World.GenerationRequested",
    "Worldbuilder.World.Generated",
    "Character.Design.GenerationRequested",
    "Character.Design.Generated",
    "Plot.Structure.GenerationRequested",
    "Plot.Structure.Generated",
    "Writer.Content.GenerationRequested",
    "Writer.Content.Generated",
];

const HIVE_EVENTS: &[&str] = &[
    "service.creation.requested",
    "service.spec.accepted",
    "service.spec.apply.started",
    "service.update.requested",
    "service.deletion.requested",
    "service.deletion.marked",
    "service.snapshot.updated",
    "service.convergence.confirmed",
    "service.convergence.failed",
    "service.ready",
    "service.failed",
    "service.deleted",
    "service.updated",
    "service.spec.applied",
    "service.external.purged",
    "service.persisted",
    "service.creation.failed",
    "service.audit.recorded",
];

const HIVE_OBSERVATIONS: &[&str] = &[
    "NamespaceValidated",
    "RevisionCreated",
    "RouteAligned",
    "KnativeServiceObserved",
    "KnativeServiceDeletedObserved",
];

const MARKET_EVENTS: &[&str] = &["ORDER_CREATED", "ORDER_PAID", "ORDER_STATUS_CHANGED", "ORDER_TIMEOUT"];

/// One style, each name in its tense, with the words that sources use beside that.
fn only(style: EventStyle) -> NameRule {
    NameRule { events: Vec::leak(vec![style]), ..strict() }
}

fn strict() -> NameRule {
    NameRule::TENSED.with_facts(&["ready", "timeout"])
}

fn event_in(rule: NameRule, name: &str) -> Result<EventName, InvalidName> {
    rule.event(name, &mut Vec::new())
}

fn command_in(rule: NameRule, name: &str) -> Result<CommandName, InvalidName> {
    rule.command(name, &mut Vec::new())
}

fn command(name: &str) -> CommandName {
    CommandName::infer(name).unwrap()
}

fn event(name: &str) -> EventName {
    EventName::infer(name).unwrap()
}

#[test]
fn every_event_of_the_sources_fits_its_own_style_and_no_other() {
    let tables = [
        (EventStyle::DottedPascal, GENESIS_EVENTS),
        (EventStyle::DottedLower, HIVE_EVENTS),
        (EventStyle::Pascal, HIVE_OBSERVATIONS),
        (EventStyle::UpperSnake, MARKET_EVENTS),
    ];
    for (own, names) in tables {
        for name in names {
            for style in EventStyle::ALL {
                let parsed = event_in(only(style), name);
                assert_eq!(parsed.is_ok(), style == own, "{name} under {style:?}: {parsed:?}");
            }
            assert_eq!(EventName::infer(name).unwrap().as_str(), *name);
            assert_eq!(event_in(NameRule::DOTTED, name).is_ok(), own == EventStyle::DottedPascal, "{name}");
        }
    }
}

#[test]
fn every_command_of_the_sources_is_accepted() {
    let hive = ["Create", "Update", "Delete", "Refresh"].map(|verb| format!("Command.Hive.Service.{verb}"));
    let shop = ["Command.Shop.Order.Place".to_owned(), "Command.Shop.Order.CheckOut".to_owned()];
    for name in GENESIS_COMMANDS.iter().map(|name| (*name).to_owned()).chain(hive).chain(shop) {
        assert_eq!(command_in(NameRule::DOTTED, &name).unwrap().as_str(), name);
    }
    for name in ["order.place", "order.payment.confirm", "cart.check-out", "user.set", "stock.split"] {
        assert_eq!(command_in(NameRule::TENSED, name).unwrap().as_str(), name);
        assert!(command_in(NameRule::DOTTED, name).is_err(), "{name}");
    }
}

#[test]
fn bad_event_names_are_refused_with_what_to_write() {
    let refused = |name: &str, style| event_in(only(style), name).unwrap_err().to_string();
    let dotted = EventStyle::DottedPascal;
    assert_eq!(
        refused("GenesisSessionStarted", dotted),
        "`GenesisSessionStarted` is not spelled as a name is; write \
         <Domain>.<Aggregate>[.<Entity>].<PastTense> (`Shop.Order.Placed`)"
    );
    assert_eq!(
        refused("Genesis.Session.Start", dotted),
        "`Genesis.Session.Start` is an event and `Start` is not in the past tense; write what has \
         happened, as in `Shop.Order.Placed`, or declare the word (`NameRule::with_facts`)"
    );
    assert_eq!(
        refused("Command.Genesis.Session.Started", dotted),
        "`Command.Genesis.Session.Started` begins with `Command.`, which marks commands; write the event without it"
    );
    for (name, style) in [
        ("Genesis.Started", dotted),
        ("Genesis.Session.Theme.Draft.Requested", dotted),
        ("Genesis.Session.Seed", dotted),
        ("Genesis..Started", dotted),
        ("Genesis.session.Started", dotted),
        ("Genesis.Session.Started ", dotted),
        ("Genesis.Séance.Started", dotted),
        ("service.Ready", EventStyle::DottedLower),
        ("service..ready", EventStyle::DottedLower),
        ("service.-ready", EventStyle::DottedLower),
        ("service.late", EventStyle::DottedLower),
        ("service.apply", EventStyle::DottedLower),
        (".placed", EventStyle::DottedLower),
        ("RouteLate", EventStyle::Pascal),
        ("routeAligned", EventStyle::Pascal),
        ("Route_Aligned", EventStyle::Pascal),
        ("ORDER_SHIP", EventStyle::UpperSnake),
        ("ORDER__CREATED", EventStyle::UpperSnake),
        ("ORDER_created", EventStyle::UpperSnake),
    ] {
        assert!(event_in(only(style), name).is_err(), "{name} under {style:?}");
        assert!(event_in(strict(), name).is_err(), "{name}");
    }
    for name in [
        "Genesis..Started",
        "service.Ready",
        "service.-ready",
        ".placed",
        "ORDER__CREATED",
        "Placed",
        "placed",
    ] {
        let refusal = EventName::infer(name).unwrap_err();
        assert!(
            matches!(refusal, InvalidName::WrongSpelling { .. }),
            "spelling is a must under any rule: {refusal}"
        );
    }
}

#[test]
fn what_seems_out_of_tense_is_a_warning_unless_the_rule_says_more() {
    let mut warnings = Vec::new();
    assert!(NameRule::ANY.event("book.overdue", &mut warnings).is_ok());
    assert!(
        matches!(warnings.as_slice(), [InvalidName::NotPastTense { word, .. }] if word == "overdue"),
        "{warnings:?}"
    );
    warnings.clear();
    assert!(NameRule::ANY.command("book.lending", &mut warnings).is_ok());
    assert!(matches!(warnings.as_slice(), [InvalidName::NotImperative { .. }]), "{warnings:?}");
    warnings.clear();
    assert!(NameRule::ANY.command("book.mark-lost", &mut warnings).is_ok(), "the verb stands first");
    assert!(NameRule::ANY.with_facts(&["overdue"]).event("book.overdue", &mut warnings).is_ok());
    assert!(NameRule::TENSED.with_facts(&["overdue"]).event("book.overdue", &mut warnings).is_ok());
    assert!(
        NameRule::TENSED.with_verbs(&[("shrive", "shriven")]).event("soul.shriven", &mut warnings).is_ok()
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(event_in(NameRule::TENSED, "book.overdue").is_err());
    assert!(event_in(NameRule::TENSED, "soul.shriven").is_err());
}

#[test]
fn bad_command_names_are_refused_with_what_to_write() {
    let refused = |name: &str| command_in(NameRule::TENSED, name).unwrap_err().to_string();
    assert_eq!(
        refused("StartGenesisSession"),
        "`StartGenesisSession` is not spelled as a name is; write \
         Command.<Domain>.<Aggregate>[.<Entity>].<Imperative> (`Command.Shop.Order.Place`), \
         or two or more lower-case segments joined by dots (`order.place`)"
    );
    assert_eq!(
        refused("Command.Genesis.Session.Started"),
        "`Command.Genesis.Session.Started` is a command and `Started` is not an imperative; \
         write what is asked for, as in `Command.Shop.Order.Payment.Confirm`"
    );
    assert_eq!(
        refused("order.confirm-payment"),
        "`order.confirm-payment` is a command and its last segment `confirm-payment` is more than a verb; \
         put what the verb acts on into a segment of its own, as in `order.payment.confirm`"
    );
    for name in [
        "Genesis.Session.Start",
        "Command.Session.Start",
        "Command.Genesis.Session.Theme.Draft.Request",
        "Command.Genesis.Session.ThemeRequest",
        "Command.Genesis.Session.Starting",
        "Command.Genesis.Session.Sent",
        "command.genesis.Session.Start",
        "order.placed",
        "order.checked-out",
        "ORDER_CREATE",
    ] {
        assert!(command_in(NameRule::TENSED, name).is_err(), "{name}");
    }
}

#[test]
fn length_is_limited_in_bytes() {
    let name = |bytes: usize| format!("{}.placed", "a".repeat(bytes - ".placed".len()));
    assert!(EventName::infer(&name(MAX_NAME_BYTES)).is_ok());
    assert!(matches!(EventName::infer(&name(MAX_NAME_BYTES + 1)), Err(InvalidName::TooLong { .. })));
    assert!(matches!(EventName::infer(""), Err(InvalidName::Empty { .. })));
    assert!(matches!(CommandName::infer(""), Err(InvalidName::Empty { .. })));
}

#[test]
fn stored_names_are_read_back_without_a_check() {
    let name: EventName = serde_json::from_str(r#""whatever it was""#).unwrap();
    assert_eq!(name.as_str(), "whatever it was");
    assert_eq!(serde_json::to_string(&name).unwrap(), r#""whatever it was""#);
}

#[test]
fn the_past_tense_of_verbs() {
    let english = Tense::ENGLISH;
    for (verb, past) in [
        ("Start", "Started"),
        ("Request", "Requested"),
        ("Confirm", "Confirmed"),
        ("Complete", "Completed"),
        ("Revise", "Revised"),
        ("Update", "Updated"),
        ("Create", "Created"),
        ("Finish", "Finished"),
        ("Fail", "Failed"),
        ("Propose", "Proposed"),
        ("Generate", "Generated"),
        ("Send", "Sent"),
        ("Begin", "Begun"),
        ("Make", "Made"),
        ("Hold", "Held"),
        ("Pay", "Paid"),
        ("Build", "Built"),
        ("Set", "Set"),
        ("Put", "Put"),
        ("Split", "Split"),
        ("Reset", "Reset"),
        ("Resend", "Resent"),
        ("Withdraw", "Withdrawn"),
        ("Override", "Overridden"),
        ("Undo", "Undone"),
        ("Relay", "Relayed"),
        ("Replay", "Replayed"),
        ("Ship", "Shipped"),
        ("Drop", "Dropped"),
        ("Plan", "Planned"),
        ("Cancel", "Cancelled"),
        ("Submit", "Submitted"),
        ("Refer", "Referred"),
        ("Render", "Rendered"),
        ("Edit", "Edited"),
        ("Open", "Opened"),
        ("Deliver", "Delivered"),
        ("Equip", "Equipped"),
        ("Quiz", "Quizzed"),
        ("Fix", "Fixed"),
        ("Allow", "Allowed"),
        ("Load", "Loaded"),
        ("Retry", "Retried"),
        ("Apply", "Applied"),
        ("Deploy", "Deployed"),
        ("Queue", "Queued"),
        ("Agree", "Agreed"),
        ("Veto", "Vetoed"),
        ("Sync", "Synced"),
        ("Mimic", "Mimicked"),
        ("Seed", "Seeded"),
        ("Embed", "Embedded"),
        ("Proceed", "Proceeded"),
        ("CheckOut", "CheckedOut"),
        ("sign-up", "signed-up"),
        ("ROLL_BACK", "ROLLED_BACK"),
        ("ship", "shipped"),
        ("PAY", "PAID"),
        ("SeedRequest", "SeedRequested"),
        ("order.place", "order.placed"),
    ] {
        assert!(english.is_past_of(&VerbPhrase::of(verb), &VerbPhrase::of(past)), "{verb}, {past}");
        assert!(english.is_fact(past), "{past}");
        assert!(english.is_imperative(&VerbPhrase::of(verb).verb.to_ascii_lowercase()), "{verb}");
    }
}

#[test]
fn what_merely_looks_like_a_past_tense_is_none() {
    for word in
        ["Seed", "Feed", "Proceed", "Need", "Bed", "Red", "Embed", "Hundred", "Ready", "Place", "", "ed"]
    {
        assert!(!Tense::ENGLISH.is_fact(word), "{word}");
    }
    for word in ["Agreed", "Freed", "Canceled", "Fed", "Led", "TimedOut", "Overwritten", "Began"] {
        assert!(Tense::ENGLISH.is_fact(word), "{word}");
    }
}

#[test]
fn commands_pair_with_the_events_that_answer_them() {
    for (asked, answered) in [
        ("Command.Genesis.Session.Start", "Genesis.Session.Started"),
        ("Command.Genesis.Session.Seed.Request", "Genesis.Session.SeedRequested"),
        ("Command.Genesis.Session.Concept.Confirm", "Genesis.Session.ConceptConfirmed"),
        ("Command.Genesis.Session.Stage.Complete", "Genesis.Session.StageCompleted"),
        ("Command.Genesis.Session.Branch.Create", "Genesis.Session.BranchCreated"),
        ("Command.Genesis.Session.Theme.Request", "Genesis.Session.Theme.Requested"),
        ("Command.Genesis.Session.CharacterNetwork.Create", "Genesis.Session.CharacterNetwork.Created"),
        ("Command.Shop.Order.Place", "order.placed"),
        ("Command.Shop.Order.Cancel", "order.cancelled"),
        ("Command.Shop.Order.Cancel", "order.canceled"),
        ("Command.Shop.Cart.CheckOut", "cart.checked-out"),
        ("Command.Market.Order.Pay", "ORDER_PAID"),
        ("order.place", "order.placed"),
        ("order.place", "OrderPlaced"),
    ] {
        NameRule::TENSED.check_pair(&command(asked), &event(answered)).unwrap();
    }
}

#[test]
fn every_genesis_command_has_one_answer_among_the_events() {
    for asked in GENESIS_COMMANDS {
        let answers: Vec<_> = GENESIS_EVENTS
            .iter()
            .filter(|name| NameRule::DOTTED.check_pair(&command(asked), &event(name)).is_ok())
            .collect();
        // A command without an entity cannot tell whose verb an event carries; only Start, Finish and Fail are
        // such, and nothing else starts, finishes or fails.
        assert_eq!(answers.len(), 1, "{asked}: {answers:?}");
    }
}

#[test]
fn a_wrong_pair_is_refused_with_what_is_wrong() {
    let refused =
        |asked, answered| NameRule::TENSED.check_pair(&command(asked), &event(answered)).unwrap_err();
    let start = "Command.Genesis.Session.Start";
    assert!(matches!(refused(start, "Genesis.Session.Finished"), PairingMismatch::OtherVerb { .. }));
    assert!(matches!(refused(start, "Genesis.Draft.Started"), PairingMismatch::OtherAggregate { .. }));
    assert!(matches!(refused(start, "Market.Session.Started"), PairingMismatch::OtherAggregate { .. }));
    let theme = "Command.Genesis.Session.Theme.Request";
    assert!(matches!(refused(theme, "Genesis.Session.World.Requested"), PairingMismatch::OtherEntity { .. }));
    assert!(matches!(refused(theme, "Genesis.Session.SeedRequested"), PairingMismatch::OtherEntity { .. }));
    assert!(matches!(refused(theme, "Genesis.Session.Requested"), PairingMismatch::OtherEntity { .. }));
    assert_eq!(
        refused("Command.Shop.Order.Ship", "ORDER_PAID").to_string(),
        "`Command.Shop.Order.Ship` cannot result in `ORDER_PAID`: an event that answers it ends in the past tense of `Ship`"
    );
    assert!(matches!(refused("cart.check-out", "cart.checked-in"), PairingMismatch::OtherVerb { .. }));
    assert!(matches!(refused("cart.check", "cart.checked-out"), PairingMismatch::OtherVerb { .. }));
}

#[test]
fn pairs_that_follow_no_rule_are_taken_where_tense_is_no_must() {
    let (create, requested) = (command("Command.Hive.Service.Create"), event("service.creation.requested"));
    assert!(NameRule::TENSED.check_pair(&create, &requested).is_err());
    assert!(NameRule::ANY.check_pair(&create, &requested).is_ok());
}

proptest! {
    #[test]
    fn no_text_fits_two_styles(text in "[A-Za-z0-9._-]{1,24}") {
        let fitting = EventStyle::ALL.iter().filter(|style| style.spells(&text)).count();
        prop_assert!(fitting <= 1, "{text} fits {fitting} styles");
        let fitting = CommandStyle::ALL.iter().filter(|style| style.spells(&text)).count();
        prop_assert!(fitting <= 1, "{text} fits {fitting} styles");
    }

    #[test]
    fn any_text_is_answered_without_a_panic(text in any::<String>(), other in "\\PC{0,12}") {
        let _ = (EventName::infer(&text), CommandName::infer(&text));
        let (command, event) = (CommandName::from_stored(&text), EventName::from_stored(&other));
        let _ = NameRule::TENSED.check_pair(&command, &event);
        let _ = (event_in(NameRule::TENSED, &text), command_in(NameRule::TENSED, &text));
    }

    #[test]
    fn no_name_is_a_command_and_an_event(segments in proptest::collection::vec("[a-z]{1,8}", 2..4)) {
        let name = segments.join(".");
        let its_own_past = irregular_forms(last_segment(&name)).is_some();
        let both = event_in(NameRule::TENSED, &name).is_ok() && command_in(NameRule::TENSED, &name).is_ok();
        prop_assert!(its_own_past || !both);
    }

    #[test]
    fn the_past_tense_of_a_regular_verb_is_recognised(verb in "[a-z]{1,4}[aeiou][a-z]{1,4}") {
        prop_assume!(Tense::ENGLISH.is_imperative(&verb) && irregular_forms(&verb).is_none() && !verb.ends_with('e'));
        let command = command_in(NameRule::TENSED, &format!("order.{verb}")).unwrap();
        let event = event_in(NameRule::TENSED, &format!("order.{verb}ed")).unwrap();
        prop_assert!(NameRule::TENSED.check_pair(&command, &event).is_ok());
    }
}
