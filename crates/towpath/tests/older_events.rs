//! Facts outlive the form in which they were written: a later build reads them in its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use support::{Fresh, eventually};
use towpath::ids::AggregateKey;
use towpath::prelude::*;
use towpath::{InvalidPayload, Payload, serde_json};

on_every_database!(
    a_later_build_folds_facts_of_an_older_form,
    a_later_build_hands_facts_of_an_older_form_to_its_handlers_in_its_own,
);

#[derive(Serialize, Deserialize, Command)]
enum TillCommand {
    #[serde(rename = "till.pay")]
    Pay { amount: u64 },
}

/// The first build counts whole euros.
#[derive(Default, Serialize, Deserialize)]
struct Till {
    euros: u64,
}

#[derive(Serialize, Deserialize, Event)]
enum TillEvent {
    #[serde(rename = "till.paid")]
    Paid { euros: u64 },
}

impl Aggregate for Till {
    const KIND: &'static str = "till";
    type Command = TillCommand;
    type Event = TillEvent;
    type Refusal = Infallible;

    fn decide(
        &self,
        TillCommand::Pay { amount }: TillCommand,
        _: &Context,
    ) -> Result<Vec<TillEvent>, Infallible> {
        Ok(vec![TillEvent::Paid { euros: amount }])
    }

    fn evolve(self, TillEvent::Paid { euros }: &TillEvent) -> Self {
        Self { euros: self.euros + euros }
    }
}

/// A later one counts cents.
#[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
struct LaterTill {
    cents: u64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(version = 2, upcast = in_cents)]
enum LaterTillEvent {
    #[serde(rename = "till.paid")]
    Paid { cents: u64 },
}

fn in_cents(name: &str, _: u16, payload: Payload) -> Result<Payload, InvalidPayload> {
    let older: Till = payload.read(name)?;
    Payload::from_value(&serde_json::json!({ "cents": older.euros * 100 }))
}

impl Aggregate for LaterTill {
    const KIND: &'static str = "till";
    const SNAPSHOT_VERSION: u16 = 2;
    type Command = TillCommand;
    type Event = LaterTillEvent;
    type Refusal = Infallible;

    fn decide(
        &self,
        TillCommand::Pay { amount }: TillCommand,
        _: &Context,
    ) -> Result<Vec<LaterTillEvent>, Infallible> {
        Ok(vec![LaterTillEvent::Paid { cents: amount }])
    }

    fn evolve(self, LaterTillEvent::Paid { cents }: &LaterTillEvent) -> Self {
        Self { cents: self.cents + cents }
    }
}

async fn a_later_build_folds_facts_of_an_older_form(fresh: &Fresh) {
    let app = fresh.builder().aggregate::<Till>().start().await.unwrap();
    for amount in [3, 4] {
        app.send::<Till>("till-1", TillCommand::Pay { amount }).await.unwrap();
    }
    app.stop().await;

    let app = fresh.builder().aggregate::<LaterTill>().start().await.unwrap();
    assert_eq!(app.load::<LaterTill>("till-1").await.unwrap().unwrap().value, LaterTill { cents: 700 });
    app.send::<LaterTill>("till-1", TillCommand::Pay { amount: 50 }).await.unwrap();
    assert_eq!(app.load::<LaterTill>("till-1").await.unwrap().unwrap().value, LaterTill { cents: 750 });
    let events = app.events_of(&AggregateKey::new("till", "till-1").unwrap(), 0, 10).await.unwrap();
    let versions: Vec<u16> = events.iter().map(|event| event.envelope.schema_version).collect();
    assert_eq!(versions, [1, 1, 2], "what was written stays as it was written");
    app.stop().await;
}

async fn a_later_build_hands_facts_of_an_older_form_to_its_handlers_in_its_own(fresh: &Fresh) {
    let tills = || Channel::named("tills", ["till.*"]).map(|channel| channel.to_exchange("tills"));
    // It publishes nothing, so that the later build does.
    let app = fresh.builder().aggregate::<Till>().channel(tills()).without_workers().start().await.unwrap();
    app.send::<Till>("till-1", TillCommand::Pay { amount: 3 }).await.unwrap();
    app.stop().await;

    let handed: [Arc<Mutex<Vec<u64>>>; 3] = Default::default();
    let [by_event, by_payload, by_type] = handed.clone();
    let in_order = || Consumer::of("tills").in_order();
    let consumers = [
        in_order().each("by-event", move |delivery: Delivery| {
            let LaterTillEvent::Paid { cents } = delivery.read::<LaterTill>().unwrap();
            by_event.lock().unwrap().push(cents);
            async { Ok(delivery.handled()) }
        }),
        in_order().each("by-payload", move |delivery: Delivery| {
            let LaterTill { cents } = delivery.payload().unwrap();
            by_payload.lock().unwrap().push(cents);
            async { Ok(delivery.handled()) }
        }),
        in_order().events().each("by-type", move |fact: Fact<LaterTillEvent>, _| {
            let LaterTillEvent::Paid { cents } = fact.event;
            by_type.lock().unwrap().push(cents);
            async { Ok(()) }
        }),
    ];
    let builder = fresh.builder().aggregate::<LaterTill>().channel(tills());
    let app =
        consumers.into_iter().fold(builder, |builder, one| builder.consumer(one)).start().await.unwrap();
    app.send::<LaterTill>("till-1", TillCommand::Pay { amount: 50 }).await.unwrap();
    for handed in handed {
        eventually("both facts are handed over", async || (handed.lock().unwrap().len() == 2).then_some(()))
            .await;
        assert_eq!(*handed.lock().unwrap(), [300, 50]);
    }
    app.stop().await;
}
