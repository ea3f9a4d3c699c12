//! Commands and events as an application declares them: enums whose variants carry their stored names.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;
pub use towpath_macros::{Command, Event};

use crate::payload::{InvalidPayload, Payload};
use crate::variant::from_variant;

/// What may have happened to an aggregate. Derive it: each variant says its stored name once.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use towpath_core::Event;
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(crate = "towpath_core")]
/// enum DoorEvent {
///     #[serde(rename = "door.opened")]
///     Opened,
/// }
///
/// assert_eq!(DoorEvent::OPENED, "door.opened");
/// assert_eq!(DoorEvent::Opened.name(), DoorEvent::OPENED);
/// ```
///
/// A variant without a name does not compile:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// # use towpath_core::Event;
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(crate = "towpath_core")]
/// enum DoorEvent { Opened }
/// ```
///
/// When the form of a payload changes, raise the version and say how an older one is read. Names never change.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use towpath_core::{Event, InvalidPayload, Payload};
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(crate = "towpath_core", version = 2, upcast = in_cents)]
/// enum TillEvent {
///     #[serde(rename = "till.paid")]
///     Paid { cents: u64 },
/// }
///
/// /// The first version had whole euros.
/// fn in_cents(_name: &str, _version: u16, payload: Payload) -> Result<Payload, InvalidPayload> {
///     #[derive(Deserialize)]
///     struct Paid { euros: u64 }
///     let Paid { euros } = payload.read("till.paid of version 1")?;
///     Payload::from_value(&serde_json::json!({ "cents": euros * 100 }))
/// }
///
/// let stored = Payload::from_text(r#"{"euros":5}"#)?;
/// let TillEvent::Paid { cents } = TillEvent::from_stored(TillEvent::PAID, 1, &stored)?;
/// assert_eq!(cents, 500);
/// # Ok::<(), InvalidPayload>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say the stored names of its events",
    note = "write #[derive(Serialize, Deserialize, Event)] on the enum, and #[serde(rename = \"order.placed\")] on each variant"
)]
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stored names of all variants.
    const NAMES: &'static [&'static str];

    /// The schema version that is written into new events.
    const VERSION: u16 = 1;

    /// The stored name of this one.
    fn name(&self) -> &'static str;

    /// Brings the payload of an event with an older schema version into the form of this one.
    fn upcast(_name: &str, _schema_version: u16, payload: Payload) -> Result<Payload, InvalidPayload> {
        Ok(payload)
    }

    /// The payload of an event as it was stored, in the form of today.
    fn in_form_of_today<'p>(
        name: &str,
        schema_version: u16,
        payload: &'p Payload,
    ) -> Result<Cow<'p, Payload>, InvalidPayload> {
        if schema_version < Self::VERSION {
            return Self::upcast(name, schema_version, payload.clone()).map(Cow::Owned);
        }
        Ok(Cow::Borrowed(payload))
    }

    /// Reads an event as it was stored, under whichever version that was.
    fn from_stored(name: &str, schema_version: u16, payload: &Payload) -> Result<Self, InvalidPayload> {
        from_variant(name, Self::in_form_of_today(name, schema_version, payload)?.as_ref())
    }
}

/// What may be asked of an aggregate. Derive it: each variant says its stored name once, and what it gives.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use towpath_core::{Command, Event};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(crate = "towpath_core")]
/// enum DoorEvent {
///     #[serde(rename = "door.opened")]
///     Opened,
/// }
///
/// #[derive(Serialize, Deserialize, Command)]
/// #[command(crate = "towpath_core")]
/// enum DoorCommand {
///     #[serde(rename = "door.open")]
///     #[command(gives = DoorEvent::OPENED)]
///     Open,
///     #[serde(rename = "door.check")]
///     #[command(internal)]
///     Check,
/// }
///
/// assert_eq!(DoorCommand::PAIRS, [("door.open", "door.opened")]);
/// assert_eq!(DoorCommand::INTERNAL, [DoorCommand::CHECK]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say the stored names of its commands",
    note = "write #[derive(Serialize, Deserialize, Command)] on the enum, and #[serde(rename = \"order.place\")] on each variant"
)]
pub trait Command: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stored names of all variants.
    const NAMES: &'static [&'static str];

    /// Commands and the event that each gives whenever it completes, by their stored names. It is used to find completed
    /// commands whose event is missing.
    const PAIRS: &'static [(&'static str, &'static str)] = &[];

    /// Commands that only the application's own parts send: who comes from outside with such a name is refused.
    const INTERNAL: &'static [&'static str] = &[];

    /// The stored name of this one.
    fn name(&self) -> &'static str;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variant::to_variant;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
    #[event(crate = "crate", version = 3, upcast = older)]
    enum Sample {
        #[serde(rename = "order.placed")]
        Placed { sku: String, count: u32 },
        #[serde(rename = "order.shipped")]
        Shipped,
        #[serde(rename = "order.noted")]
        NotedDown(String),
    }

    fn older(name: &str, version: u16, payload: Payload) -> Result<Payload, InvalidPayload> {
        match (name, version) {
            (Sample::PLACED, 1) => Payload::from_text(r#"{"sku":"one","count":1}"#),
            (Sample::PLACED, 2) => Payload::from_text(r#"{"sku":"two","count":2}"#),
            _ => Ok(payload),
        }
    }

    #[test]
    fn the_names_are_those_that_serde_writes() {
        let samples = [
            Sample::Placed { sku: "book".into(), count: 1 },
            Sample::Shipped,
            Sample::NotedDown("late".into()),
        ];
        for (sample, name) in samples.iter().zip(Sample::NAMES) {
            assert_eq!((to_variant(sample).unwrap().0.as_str(), sample.name()), (*name, *name));
        }
        assert_eq!(Sample::NAMES, [Sample::PLACED, Sample::SHIPPED, Sample::NOTED_DOWN]);
    }

    #[test]
    fn only_what_is_older_is_upcast_and_each_version_is_told() {
        let stored = Payload::from_text(r#"{"sku":"three","count":3}"#).unwrap();
        for (version, sku) in [(1, "one"), (2, "two"), (3, "three"), (4, "three")] {
            let read = Sample::from_stored(Sample::PLACED, version, &stored).unwrap();
            assert!(matches!(read, Sample::Placed { sku: read, .. } if read == sku), "version {version}");
        }
    }
}
