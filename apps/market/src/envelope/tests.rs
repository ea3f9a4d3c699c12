//! The envelope, written and read.

use chrono::DateTime;
use proptest::prelude::*;
use towpath::Coded as _;
use towpath::format::Formats;
use towpath::ids::CorrelationId;
use towpath::ports::broker::{DeliveryTag, Destination};

use super::*;

fn order_created() -> EventEnvelope {
    EventEnvelope {
        event_id: EventId("0197c0de-0000-7000-8000-000000000001".parse().unwrap()),
        event_type: EventName::from_stored("ORDER_CREATED"),
        schema_version: 1,
        aggregate: AggregateKey::new("Order", "900001").unwrap(),
        aggregate_version: 3,
        occurred_at: "2026-02-04T10:30:00.123456Z".parse().unwrap(),
        correlation_id: CorrelationId::new("flow-1").unwrap(),
        causation_id: None,
        trace_id: Some(TraceId::new("trace-xxx").unwrap()),
        actor_id: None,
        tenant_id: None,
        payload: Payload::from_text(r#"{ "orderId":900001, "totalAmount":88.50 }"#).unwrap(),
    }
}

fn written(event: &EventEnvelope) -> Result<String, FormatError> {
    let channel = Channel::named("orders", ["*"]).unwrap();
    Ok(String::from_utf8(MarketEnvelope.write(event, &channel)?.body).unwrap())
}

/// A message as people send it, read by a consumer that names the format.
fn read_of(content_type: Option<&str>, body: impl Into<Vec<u8>>) -> Result<IncomingEvent, FormatError> {
    let received = Received {
        tag: DeliveryTag(1),
        queue: "q".into(),
        message_id: None,
        message_type: None,
        occurred_at: None,
        key: None,
        content_type: content_type.map(str::to_owned),
        destination: Destination { exchange: "orders".into(), routing_key: "k".into() },
        headers: Vec::new().into(),
        redelivered: false,
        body: body.into(),
    };
    Formats::default().with(MarketEnvelope).read(&received, Some(FORMAT_NAME))
}

/// What is wrong with a body, as code and field.
fn flaw(body: &str) -> (&'static str, &'static str) {
    let error = read_of(Some(CONTENT_TYPE), body).unwrap_err();
    match error {
        FormatError::MissingField { field, .. } | FormatError::BadField { field, .. } => {
            (error.code(), field)
        }
        _ => (error.code(), ""),
    }
}

#[test]
fn the_envelope_is_the_contract_to_the_letter() {
    let written = written(&order_created()).unwrap();
    let expected = concat!(
        r#"{"eventId":"0197c0de-0000-7000-8000-000000000001","eventType":"ORDER_CREATED","aggregateType":"Order","#,
        r#""aggregateId":900001,"occurredAt":"2026-02-04T10:30:00Z","traceId":"trace-xxx","#,
        r#""payload":{ "orderId":900001, "totalAmount":88.50 }}"#
    );
    assert_eq!(written, expected);
    let read = read_of(Some("application/json"), written.clone()).unwrap();
    assert_eq!(read.aggregate, Some(AggregateKey::new("Order", "900001").unwrap()));
    assert_eq!(read.payload, order_created().payload);
    assert_eq!(read.occurred_at, Some("2026-02-04T10:30:00Z".parse().unwrap()));
    assert_eq!(read.trace_id, order_created().trace_id);
    assert_eq!(read_of(None, written.clone()).unwrap(), read, "without a content type the body decides");
    assert_eq!(read_of(Some("text/plain"), written).unwrap_err().code(), "format-unknown");
}

#[test]
fn only_an_id_that_is_the_same_as_a_number_becomes_one() {
    for (id, number_or_text) in [
        ("0", "0"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "\"9223372036854775808\""),
        ("007", "\"007\""),
        ("-5", "\"-5\""),
        ("+5", "\"+5\""),
        ("order-7", "\"order-7\""),
    ] {
        let event = EventEnvelope { aggregate: AggregateKey::new("Order", id).unwrap(), ..order_created() };
        let body = written(&event).unwrap();
        assert!(body.contains(&format!(r#""aggregateId":{number_or_text},"#)), "{body}");
        assert_eq!(read_of(Some(CONTENT_TYPE), body).unwrap().aggregate, Some(event.aggregate));
    }
}

#[test]
fn each_field_that_is_missing_or_wrong_is_named() {
    let whole = written(&order_created()).unwrap();
    let fields = ["eventId", "eventType", "aggregateType", "aggregateId", "occurredAt", "traceId", "payload"];
    for field in fields {
        let renamed = whole.replace(&format!("\"{field}\""), "\"other\"");
        assert_eq!(flaw(&renamed), ("format-missing-field", field));
    }
    for (right, wrong, field) in [
        ("0197c0de-0000-7000-8000-000000000001", "order-7", "eventId"),
        ("\"ORDER_CREATED\"", "\"\"", "eventType"),
        ("\"Order\"", "\" Order\"", "aggregateType"),
        ("900001,\"occ", "9.5,\"occ", "aggregateId"),
        ("2026-02-04T10:30:00Z", "yesterday", "occurredAt"),
        ("\"trace-xxx\"", "7", "traceId"),
    ] {
        assert_eq!(flaw(&whole.replace(right, wrong)), ("format-bad-field", field));
    }
    for body in ["", "[]", "7", "{", "\u{0}"] {
        assert_eq!(flaw(body).0, "format-not-an-object");
    }
}

#[test]
fn a_year_of_five_digits_cannot_be_written() {
    let occurred_at = DateTime::from_timestamp(253_402_300_800, 0).unwrap();
    let error = written(&EventEnvelope { occurred_at, ..order_created() }).unwrap_err();
    assert_eq!(error.code(), "format-unwritable");
}

#[test]
fn what_has_no_trace_is_told_by_its_flow_or_by_itself() {
    let trace_of = |flow: &str| {
        let correlation_id = CorrelationId::new(flow).unwrap();
        let event = EventEnvelope { trace_id: None, correlation_id, ..order_created() };
        read_of(None, written(&event).unwrap()).unwrap().trace_id.unwrap().to_string()
    };
    assert_eq!(trace_of("flow-1"), "flow-1");
    assert_eq!(trace_of(&"long".repeat(30)), order_created().event_id.to_string());
}

fn names(most: usize) -> impl Strategy<Value = String> {
    proptest::string::string_regex(&format!("\\PC{{1,{most}}}"))
        .unwrap()
        .prop_map(|text| text.trim().to_owned())
        .prop_filter("an identity", |text| TraceId::new(text).is_ok())
}

proptest! {
    #[test]
    fn the_envelope_gives_back_all_it_can_hold(
        id in any::<u128>(),
        kind in names(64),
        aggregate_id in names(64),
        trace in proptest::option::of(names(64)),
        // From 1900 to 9999.
        seconds in -2_208_988_800_i64..253_402_300_800,
        text in any::<String>(),
    ) {
        let event = EventEnvelope {
            event_id: EventId(uuid::Uuid::from_u128(id)),
            aggregate: AggregateKey::new(kind, aggregate_id).unwrap(),
            trace_id: trace.map(|trace| TraceId::new(trace).unwrap()),
            occurred_at: DateTime::from_timestamp(seconds, 0).unwrap(),
            payload: Payload::from_text(serde_json::to_string(&text).unwrap()).unwrap(),
            ..order_created()
        };
        let back = read_of(Some(CONTENT_TYPE), written(&event).unwrap()).unwrap();
        prop_assert_eq!(back.event_id, event.event_id);
        prop_assert_eq!(back.event_type, event.event_type);
        prop_assert_eq!(back.aggregate, Some(event.aggregate));
        prop_assert_eq!(back.payload, event.payload);
        prop_assert_eq!(back.occurred_at, Some(event.occurred_at));
    }

    #[test]
    fn no_body_makes_the_reader_panic(body in any::<Vec<u8>>(), text in "\\PC{0,80}") {
        let _ = read_of(None, text);
        prop_assert!(read_of(None, body).is_err());
    }
}
