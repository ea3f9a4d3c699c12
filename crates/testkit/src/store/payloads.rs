//! Texts survive to the letter: payloads, ids and names.

use towpath_core::ids::{AggregateId, ChannelName, CommandId, CorrelationId, HandlerName, LeaseName};
use towpath_core::payload::Payload;
use towpath_core::ports::store::{
    Expected, Found, InboxMark, InspectedStore, NewCommand, NewTimer, Snapshot,
};

use super::StoreFixture;
use super::acts::{append, claim, hold, schedule, versions_of};
use super::facts::{
    OrderFacts, completed, instance, moment, new_channel, new_event_id, new_order, order, payload, place,
    timer,
};

/// JSON that databases, drivers and trees like to change: it comes back as it was, from everywhere.
pub async fn payloads_survive_to_the_letter(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let deepest = format!("{}{}", "[".repeat(Payload::MAX_DEPTH), "]".repeat(Payload::MAX_DEPTH));
    let texts = [
        r#"{"amount":88.50,"zero":0.0,"minus":-0,"exponent":1E+2}"#,
        "123456789012345678901234567890.123456789012345678901234567890",
        "[1e400, -1e-400, 1e308, 0.1e1]",
        r#"{"a":1,"a":2,"A":3}"#,
        "{ \"a\" :\t1 ,\n\r\n  \"b\":[ ] }",
        r#""\u0000 and \u0001 and \u007f""#,
        r#""\ud800 alone, \ud83e\udd86 a pair, \udfff alone""#,
        "\"🦆 👩‍👩‍👧‍👦 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u{10ffff} \u{fffe} \u{2028} \u{feff} é e\u{301}\"",
        r#""'; DROP TABLE domain_events; -- \\ \" %s %% ? $1 :name \/ \b\f""#,
        "null",
        "true",
        "\"\"",
        "[]",
        deepest.as_str(),
    ];
    for text in texts {
        survives(&*store, text).await;
    }
}

/// A mebibyte in every place at once, and the largest payload of all in an event.
pub async fn large_payloads_survive(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let mebibyte = format!("\"{}\"", "🦆x\\n'".repeat(1024 * 1024 / 8));
    assert!((1024 * 1024..1_200_000).contains(&mebibyte.len()), "{}", mebibyte.len());
    survives(&*store, &mebibyte).await;

    let largest = format!("\"{}\"", "x".repeat(Payload::MAX_BYTES - 2));
    let facts = OrderFacts::of_new_order().fact("order.noted", &largest).append();
    append(&*store, &facts).await;
    let events = store.events_of(&facts.aggregate, 0, 10).await.expect("events_of");
    assert!(events[0].envelope.payload.as_text() == largest, "the largest payload came back changed");
}

/// Ids that a database with a friendly collation takes for the same are different aggregates.
pub async fn aggregate_ids_are_compared_to_the_letter(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let longest = "🦆".repeat(AggregateId::MAX_CHARACTERS);
    let mut ids = LOOKALIKES.to_vec();
    ids.push(&longest);
    for id in &ids {
        let facts = OrderFacts::about(&order(id), 0).noted(id).append();
        assert_eq!(append(&*store, &facts).await, 1, "{id:?} is an order of its own");
    }
    for id in &ids {
        let key = order(id);
        let loaded = store.load(&key, None).await.expect("load").aggregate.expect("it exists");
        assert_eq!(loaded.aggregate, key);
        let events = store.events_of(&key, 0, 10).await.expect("events_of");
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].envelope.aggregate, key);
        assert_eq!(events[0].envelope.payload, Payload::from_value(id).expect("a text"));
    }
    let upper = towpath_core::AggregateKey::new("Order", LOOKALIKES[0]).expect("a valid key");
    assert_eq!(store.load(&upper, None).await.expect("load").aggregate, None, "kinds are compared so too");
}

/// The same for every other name that is a key.
pub async fn names_are_compared_to_the_letter(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let event_id = new_event_id();
    let mut commands = Vec::new();
    for (index, text) in LOOKALIKES.iter().enumerate() {
        let command = NewCommand { command_id: CommandId::new(text).expect("an id"), ..place(&new_order()) };
        assert_eq!(store.accept_command(&command).await.expect("accept"), None, "command {text:?} is new");
        commands.push(command);

        let holder = instance(format!("holder-{index}"));
        hold(&*store, &LeaseName::new(text).expect("a name"), &holder).await;

        let mut tx = store.begin().await.expect("begin");
        let handler = HandlerName::new(text).expect("a name");
        assert_eq!(tx.mark(event_id, &handler, moment(1)).await.expect("mark"), InboxMark::First, "{text:?}");
        tx.commit().await.expect("commit");

        let channel = ChannelName::new(text).expect("a name");
        let channel_id = uuid::Uuid::now_v7();
        store.add_channel(channel_id, &channel, 0, moment(1)).await.expect("a channel of its own");
        let facts = OrderFacts::of_new_order().noted(text).routed(std::slice::from_ref(&channel));
        let mut facts = facts.append();
        facts.context.correlation_id = CorrelationId::new(text).expect("an id");
        append(&*store, &facts).await;
    }
    for (text, command) in LOOKALIKES.iter().zip(&commands) {
        let record = store.command(&command.command_id).await.expect("command").expect("recorded");
        assert_eq!(record.command, *command);
        let items = claim(&*store, &ChannelName::new(text).expect("a name"), moment(9)).await;
        assert_eq!(items.len(), 1, "channel {text:?} has its own rows");
        assert_eq!(items[0].event.payload, Payload::from_value(text).expect("a text"));
        let flow = store.flow(&CorrelationId::new(text).expect("an id"), 10).await.expect("flow");
        assert_eq!(flow.events.len(), 1, "flow {text:?} has its own events");
    }
}

/// Texts that look alike to some collation or that some quoting breaks.
const LOOKALIKES: &[&str] = &[
    "Order-1",
    "order-1",
    "ORDER-1",
    "order-1'",
    "order-1\"",
    "order-1\\",
    "order-1%",
    "order_1",
    "order%1",
    "order-1;--",
    "örder-1",
    "o\u{308}rder-1",
    "straße",
    "strasse",
    "é",
    "e",
    "e\u{301}",
    "ı",
    "i",
    "I",
    "İ",
    "🦆",
    "🦢",
    "１",
    "1",
    "01",
    "1.0",
    "NULL",
    "a b",
    "a  b",
];

/// Sends one JSON text through an event, a command, a snapshot and a timer, and reads it from every place.
async fn survives(store: &dyn InspectedStore, text: &str) {
    let channel = new_channel();
    let command = NewCommand { payload: payload(text), ..place(&new_order()) };
    let facts = OrderFacts::about(&command.aggregate, 0).fact("order.noted", text).caused_by(&command);
    let mut append = facts.routed(std::slice::from_ref(&channel)).append();
    append.snapshot = Some(Snapshot { data: payload(text), version: 9 });
    assert_eq!(append.expected, Expected::New);
    let event_id = append.events[0].event_id;
    let completed = completed(&command, Found::Nowhere, Some(append));
    store.complete_command(&completed).await.unwrap_or_else(|error| panic!("{}: {error:?}", shown(text)));
    let later = NewTimer { payload: payload(text), ..timer(&command.aggregate, moment(1)) };
    schedule(store, std::slice::from_ref(&later)).await;

    let loaded = store.load(&command.aggregate, Some(&command.command_id)).await.expect("load");
    let snapshot = loaded.aggregate.and_then(|row| row.snapshot).expect("a snapshot");
    let record = loaded.command.expect("the command");
    let events = store.events_of(&command.aggregate, 0, 10).await.expect("events_of");
    let items = claim(store, &channel, moment(1)).await;
    let timer = store.timer(later.timer_id).await.expect("timer").expect("the timer");
    assert_eq!((events.len(), items.len(), snapshot.version), (1, 1, 9));
    assert_eq!((events[0].envelope.event_id, items[0].event.event_id), (event_id, event_id));
    assert_eq!(versions_of(store, &command.aggregate).await, [1]);
    for (place, found) in [
        ("snapshot", &snapshot.data),
        ("command", &record.command.payload),
        ("event", &events[0].envelope.payload),
        ("outbox item", &items[0].event.payload),
        ("timer", &timer.timer.payload),
    ] {
        assert!(found.as_text() == text, "{place}: {} came back as {}", shown(text), shown(found.as_text()));
    }
}

/// Enough of a text to recognise it.
fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}
