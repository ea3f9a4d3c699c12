//! Formats, written and read.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use proptest::prelude::*;
use towpath_core::format::{CLOUD_EVENTS, TOWPATH};
use towpath_core::ids::{ActorId, AggregateKey, CausationId, CorrelationId, EventId, TenantId, TraceId};
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::broker::DeliveryTag;
use towpath_core::retry::{Coded as _, ErrorClass};

use super::*;

const TRACE_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn order_created() -> EventEnvelope {
    EventEnvelope {
        event_id: EventId("0197c0de-0000-7000-8000-000000000001".parse().unwrap()),
        event_type: EventName::from_stored("ORDER_CREATED"),
        schema_version: 1,
        aggregate: AggregateKey::new("Order", "900001").unwrap(),
        aggregate_version: 3,
        occurred_at: "2026-02-04T10:30:00.123456Z".parse().unwrap(),
        correlation_id: CorrelationId::new("flow-1").unwrap(),
        causation_id: Some(CausationId::new("cart-7").unwrap()),
        trace_id: Some(TraceId::new("trace-xxx").unwrap()),
        actor_id: None,
        tenant_id: None,
        payload: Payload::from_text(r#"{ "orderId":900001, "totalAmount":88.50 }"#).unwrap(),
    }
}

fn arrived(message: Message) -> Received {
    Received {
        tag: DeliveryTag(1),
        queue: "q".into(),
        message_id: Some(message.message_id),
        message_type: Some(message.message_type),
        occurred_at: Some(message.occurred_at),
        key: Some(message.key),
        content_type: Some(message.content_type),
        destination: message.destination,
        headers: message.headers.into(),
        redelivered: false,
        body: message.body,
    }
}

fn channel(format: &str) -> Channel {
    Channel::named("facts", ["*"]).unwrap().in_format(format)
}

fn written_on(channel: &Channel, event: &EventEnvelope) -> Result<Message, FormatError> {
    let destination = Destination { exchange: "facts".into(), routing_key: "k".into() };
    Formats::default().message(channel, event, destination)
}

fn written_as(format: &str, event: &EventEnvelope) -> Message {
    written_on(&channel(format), event).unwrap()
}

fn read(received: &Received) -> Result<IncomingEvent, FormatError> {
    Formats::default().read(received, None)
}

fn text(message: &Message) -> &str {
    std::str::from_utf8(&message.body).unwrap()
}

fn json(content_type: &str, body: &str) -> Received {
    let mut received = arrived(written_as(TOWPATH, &order_created()));
    received.content_type = Some(content_type.into());
    Arc::make_mut(&mut received.headers).clear();
    received.body = body.as_bytes().to_vec();
    received
}

/// An event as it arrives in a format that does not tell the shape of its payload.
fn without_version(event: EventEnvelope) -> IncomingEvent {
    IncomingEvent { schema_version: None, ..IncomingEvent::from(event) }
}

/// What is wrong with a body, as code and field.
fn flaw(content_type: &str, body: &str) -> (&'static str, &'static str) {
    let error = read(&json(content_type, body)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unrecoverable);
    match error {
        FormatError::MissingField { field, .. } | FormatError::BadField { field, .. } => {
            (error.code(), field)
        }
        _ => (error.code(), ""),
    }
}

#[test]
fn towpaths_envelope_tells_everything_and_the_payload_stays_as_it_was() {
    let event = order_created();
    let message = written_as(TOWPATH, &event);
    assert!(
        text(&message).contains(r#""payload":{ "orderId":900001, "totalAmount":88.50 }"#),
        "{}",
        text(&message)
    );
    assert_eq!(serde_json::from_slice::<EventEnvelope>(&message.body).unwrap(), event);
    assert_eq!((message.message_type.as_str(), message.key.as_str()), ("ORDER_CREATED", "Order/900001"));
    assert_eq!(message.message_id, event.event_id.to_string());
    assert_eq!(read(&arrived(message)).unwrap(), IncomingEvent::from(event));
}

#[test]
fn a_cloud_event_is_what_the_specification_says() {
    let event = EventEnvelope { trace_id: Some(TraceId::new(TRACE_PARENT).unwrap()), ..order_created() };
    let message = written_as(CLOUD_EVENTS, &event);
    let expected = concat!(
        r#"{"specversion":"1.0","id":"0197c0de-0000-7000-8000-000000000001","source":"/towpath/Order","#,
        r#""type":"ORDER_CREATED","subject":"900001","time":"2026-02-04T10:30:00.123456Z","#,
        r#""datacontenttype":"application/json","partitionkey":"Order/900001","aggregateversion":3,"#,
        r#""correlationid":"flow-1","causationid":"cart-7","#,
        r#""traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","#,
        r#""data":{ "orderId":900001, "totalAmount":88.50 }}"#
    );
    assert_eq!(text(&message), expected);
    assert_eq!(message.content_type, "application/cloudevents+json");
    assert_eq!(read(&arrived(message)).unwrap(), without_version(event));
}

#[test]
fn a_channels_own_source_is_used_and_the_aggregate_is_still_found() {
    let event =
        EventEnvelope { aggregate: AggregateKey::new("späte Order", "7/8").unwrap(), ..order_created() };
    let message = written_on(&channel(CLOUD_EVENTS).from_source("https://shop.example/"), &event).unwrap();
    assert!(
        text(&message).contains(r#""source":"https://shop.example/sp%C3%A4te%20Order""#),
        "{}",
        text(&message)
    );
    assert_eq!(read(&arrived(message)).unwrap(), without_version(event));
}

#[test]
fn cloud_events_of_others_are_read_in_both_modes() {
    let body = r#"{"specversion":"1.0","id":"0197c0de-0000-7000-8000-000000000001","source":"https://x.example/y",
        "type":"com.example.seen","subject":"a blob","time":"2026-02-04T11:30:00+01:00","data":{"a":1.0}}"#;
    let structured = read(&json("application/cloudevents+json; charset=utf-8", body)).unwrap();
    assert_eq!(structured.aggregate, None);
    assert_eq!(structured.payload.as_text(), r#"{"a":1.0}"#);
    assert_eq!(structured.occurred_at, Some("2026-02-04T10:30:00Z".parse().unwrap()));
    for prefix in ["ce-", "ce_", "cloudEvents:", "cloudEvents_"] {
        let mut binary = json("application/json", r#"{"a":1.0}"#);
        binary.headers = [
            ("specversion", "1.0"),
            ("id", "0197c0de-0000-7000-8000-000000000001"),
            ("source", "https://x.example/y"),
            ("type", "com.example.seen"),
            ("subject", "a blob"),
            ("time", "2026-02-04T11:30:00+01:00"),
        ]
        .map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()))
        .to_vec()
        .into();
        assert_eq!(read(&binary).unwrap(), structured, "{prefix}");
        Arc::make_mut(&mut binary.headers).push((format!("{prefix}aggregateversion"), "5000000000".into()));
        assert_eq!(read(&binary).unwrap().aggregate_version, Some(5_000_000_000));
        Arc::make_mut(&mut binary.headers).retain(|(name, _)| !name.ends_with("source"));
        assert!(matches!(read(&binary), Err(FormatError::MissingField { field: "source", .. })));
    }
}

#[test]
fn a_cloud_event_that_cannot_be_used_names_the_attribute() {
    let whole = text(&written_as(CLOUD_EVENTS, &order_created())).to_owned();
    let content_type = "application/cloudevents+json";
    for field in ["specversion", "id", "source", "type"] {
        let renamed = whole.replace(&format!("\"{field}\""), "\"other\"");
        assert_eq!(flaw(content_type, &renamed), ("format-missing-field", field));
    }
    for (right, wrong, field) in [
        ("\"specversion\":\"1.0\"", "\"specversion\":\"0.3\"", "specversion"),
        ("\"data\"", "\"data_base64\"", "data_base64"),
        ("\"aggregateversion\":3", "\"aggregateversion\":-3", "aggregateversion"),
        ("\"cart-7\"", "7", "causationid"),
    ] {
        assert_eq!(flaw(content_type, &whole.replace(right, wrong)), ("format-bad-field", field));
    }
}

#[test]
fn what_no_format_claims_is_told() {
    assert_eq!(flaw("text/plain", "{}").0, "format-unknown");
    assert_eq!(flaw("application/vnd.towpath.event+json", "{}"), ("format-missing-field", "eventId"));
    assert_eq!(flaw("", "{}").0, "format-unknown");
}

/// Somebody's own format: the body is the event's type.
struct Typed;

impl Format for Typed {
    fn name(&self) -> &'static str {
        "typed"
    }

    fn write(&self, event: &EventEnvelope, _: &Channel) -> Result<Written, FormatError> {
        let body = event.event_type.as_str().as_bytes().to_vec();
        Ok(Written { content_type: "text/x-typed", headers: Vec::new(), body })
    }

    fn recognises(&self, received: &Received) -> bool {
        received.media_type() == "text/x-typed"
    }

    fn read(&self, received: &Received) -> Result<IncomingEvent, FormatError> {
        let event_type = EventName::from_stored(String::from_utf8_lossy(&received.body));
        Ok(IncomingEvent { event_type, ..IncomingEvent::from(order_created()) })
    }
}

#[test]
fn a_format_of_ones_own_is_named_by_channels_and_recognised_in_messages() {
    let formats = Formats::default().with(Typed);
    let destination = Destination { exchange: "facts".into(), routing_key: "k".into() };
    let message = formats.message(&channel("typed"), &order_created(), destination).unwrap();
    assert_eq!((text(&message), message.content_type.as_str()), ("ORDER_CREATED", "text/x-typed"));
    assert_eq!(message.message_id, order_created().event_id.to_string());
    let mut received = arrived(message);
    received.content_type = Some("Text/X-Typed; charset=utf-8".into());
    assert_eq!(formats.read(&received, None).unwrap().event_type.as_str(), "ORDER_CREATED");
    assert_eq!(read(&received).unwrap_err().code(), "format-unknown", "elsewhere nobody knows it");
}

#[test]
fn only_a_message_without_a_content_type_is_read_in_the_format_that_its_consumer_names() {
    let formats = Formats::default().with(Typed);
    let mut received = json("", "ORDER_PAID");
    for content_type in [None, Some(String::new())] {
        received.content_type = content_type;
        assert_eq!(formats.read(&received, None).unwrap_err().code(), "format-unknown");
        assert_eq!(formats.read(&received, Some("typed")).unwrap().event_type.as_str(), "ORDER_PAID");
        assert_eq!(formats.read(&received, Some("typo")).unwrap_err().code(), "format-not-registered");
    }
    received.content_type = Some("text/plain".into());
    assert_eq!(formats.read(&received, Some("typed")).unwrap_err().code(), "format-unknown");
    let own = arrived(written_as(TOWPATH, &order_created()));
    let event = formats.read(&own, Some("typed")).unwrap();
    assert_eq!(event, IncomingEvent::from(order_created()), "what says its format is read in that");
}

#[test]
fn a_name_that_nobody_has_registered_is_told_with_those_there_are() {
    let error = written_on(&channel("typed"), &order_created()).unwrap_err();
    assert_eq!(error.code(), "format-not-registered");
    assert_eq!(error.to_string(), "no format is called \"typed\" here; there are towpath, cloud-events");
}

#[test]
fn a_year_of_five_digits_cannot_be_written_where_rfc_3339_is_wanted() {
    let event = EventEnvelope {
        occurred_at: DateTime::from_timestamp(253_402_300_800, 0).unwrap(),
        ..order_created()
    };
    assert_eq!(written_on(&channel(CLOUD_EVENTS), &event).unwrap_err().code(), "format-unwritable");
    let own = written_as(TOWPATH, &event);
    assert_eq!(read(&arrived(own)).unwrap(), IncomingEvent::from(event));
}

fn safe_text(most: usize) -> impl Strategy<Value = String> {
    proptest::string::string_regex(&format!("\\PC{{1,{most}}}"))
        .unwrap()
        .prop_map(|text| text.trim().to_owned())
        .prop_filter("an identity", |text| CausationId::new(text).is_ok())
}

fn moments() -> impl Strategy<Value = DateTime<Utc>> {
    // From 1900 to 9999, in microseconds.
    (-2_208_988_800_000_000_i64..253_402_300_799_999_999)
        .prop_map(|micros| DateTime::from_timestamp_micros(micros).unwrap())
}

fn payloads() -> impl Strategy<Value = Payload> {
    prop_oneof![
        Just(r#"{"amount":88.50,"amount":1e2}"#.to_owned()),
        Just("null".to_owned()),
        Just("[1,\n 2]".to_owned()),
        Just("123456789012345678901234567890.10".to_owned()),
        Just(format!("{}{}", "[".repeat(127), "]".repeat(127))),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ]
    .prop_map(|text| Payload::from_text(text).unwrap())
}

fn traces() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), Just(Some(TRACE_PARENT.to_owned())), safe_text(64).prop_map(Some)]
}

prop_compose! {
    fn events()(
        id in any::<u128>(),
        event_type in "[A-Za-z._]{1,40}",
        kind in safe_text(64),
        aggregate_id in safe_text(128),
        aggregate_version in any::<u64>(),
        occurred_at in moments(),
        correlation in safe_text(128),
        causation in proptest::option::of(safe_text(128)),
        trace in traces(),
        tenant in proptest::option::of(safe_text(64)),
        payload in payloads(),
    ) -> EventEnvelope {
        EventEnvelope {
            event_id: EventId(uuid::Uuid::from_u128(id)),
            event_type: EventName::from_stored(event_type),
            schema_version: 2,
            aggregate: AggregateKey::new(kind, aggregate_id).unwrap(),
            aggregate_version,
            occurred_at,
            correlation_id: CorrelationId::new(correlation).unwrap(),
            causation_id: causation.map(|id| CausationId::new(id).unwrap()),
            trace_id: trace.map(|id| TraceId::new(id).unwrap()),
            actor_id: tenant.as_ref().map(|id| ActorId::new(id).unwrap()),
            tenant_id: tenant.map(|id| TenantId::new(id).unwrap()),
            payload,
        }
    }
}

proptest! {
    #[test]
    fn towpath_and_cloud_events_give_back_what_they_were_given(event in events()) {
        let own = written_as(TOWPATH, &event);
        prop_assert_eq!(&serde_json::from_slice::<EventEnvelope>(&own.body).unwrap(), &event);
        prop_assert_eq!(read(&arrived(own)).unwrap(), IncomingEvent::from(event.clone()));
        let cloud = written_as(CLOUD_EVENTS, &event);
        prop_assert_eq!(read(&arrived(cloud)).unwrap(), without_version(event));
    }

    #[test]
    fn no_body_makes_a_reader_panic(body in any::<Vec<u8>>(), text in "\\PC{0,80}", pick in 0_usize..4) {
        let content_type =
            ["application/json", "application/cloudevents+json", "application/vnd.towpath.event+json", ""][pick];
        let mut received = json(content_type, &text);
        let _ = read(&received);
        received.body = body;
        prop_assert!(read(&received).is_err());
    }
}

/// A format of an application's own, whose messages are plain JSON, as others' may be.
struct Plain(&'static str);

impl Format for Plain {
    fn name(&self) -> &'static str {
        self.0
    }

    fn write(&self, _: &EventEnvelope, _: &Channel) -> Result<Written, FormatError> {
        panic!("a bug in a format, on purpose")
    }

    fn recognises(&self, received: &Received) -> bool {
        received.media_type() == "application/json"
    }

    fn read(&self, received: &Received) -> Result<IncomingEvent, FormatError> {
        assert!(!received.body.is_empty(), "a bug in a format, on purpose");
        let event_type = EventName::from_stored(format!("read.by.{}", self.0));
        Ok(EventEnvelope { event_type, ..order_created() }.into())
    }
}

#[test]
fn of_several_formats_that_would_take_a_message_the_named_one_does() {
    let formats = Formats::default().with(Plain("first")).with(Plain("second"));
    let plain = || Received {
        content_type: Some("application/json".into()),
        body: b"{}".to_vec(),
        ..arrived(written_as(TOWPATH, &order_created()))
    };
    let reader = |received: &Received, named| {
        formats.read(received, named).map(|event| event.event_type.to_string()).map_err(|error| error.code())
    };
    assert_eq!(reader(&plain(), Some("second")), Ok("read.by.second".to_owned()));
    assert_eq!(reader(&plain(), None), Ok("read.by.first".to_owned()));
    assert_eq!(
        reader(&Received { content_type: None, ..plain() }, Some("second")),
        Ok("read.by.second".to_owned())
    );
    assert_eq!(reader(&Received { content_type: None, ..plain() }, None), Err("format-unknown"));
    // What says that it is ours is ours, whoever is asked.
    let ours = arrived(written_as(TOWPATH, &order_created()));
    assert_eq!(reader(&ours, Some("second")), Ok("ORDER_CREATED".to_owned()));
    assert_eq!(reader(&plain(), Some("third")), Err("format-not-registered"));
}

#[test]
fn a_format_that_panics_is_an_error_like_any_other() {
    let formats = Formats::default().with(Plain("plain"));
    let destination = Destination { exchange: "facts".into(), routing_key: "k".into() };
    let written = formats.message(&channel("plain"), &order_created(), destination);
    assert_eq!(written.unwrap_err().code(), "format-panicked");
    let empty = Received {
        content_type: Some("application/json".into()),
        body: Vec::new(),
        ..arrived(written_as(TOWPATH, &order_created()))
    };
    let read = formats.read(&empty, None).unwrap_err();
    assert_eq!((read.code(), read.class()), ("format-panicked", ErrorClass::Unrecoverable));
}
