//! Queues: a message is where it was put, is with one receiver at a time, and comes back when that one is gone.

use std::time::Duration;

use towpath_core::ids::LeaseName;
use towpath_core::ports::broker::{Binding, Destination, Exchange, ExchangeKind, Message, Queue, Topology};
use towpath_core::ports::queues::{
    Ending, Fate, Parcel, Placement, PutError, QueueDepth, Receiver, TakenMessage,
};
use towpath_core::ports::store::{Store, StoreError};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{LONG, assert_refused};
use super::facts::moment;

/// The topology grows from the revision that was read, or not at all; what was routed by an older one is not put.
pub async fn a_topology_grows_from_the_revision_that_was_read(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let before = store.layout().await.expect("layout");
    assert_eq!(before.topology, Topology::default());
    let topology = topology(&["parcels"]);
    assert!(store.extend_layout(before.revision, &topology).await.expect("extend"));
    assert!(!store.extend_layout(before.revision, &self::topology(&["bills"])).await.expect("extend"));
    let layout = store.layout().await.expect("layout");
    assert_eq!(layout.topology, topology, "to the letter");
    assert!(layout.revision > before.revision);
    assert!(!put(&*store, before.revision, &["parcels"], &["lost"], None).await, "it was routed before");
    assert!(put(&*store, layout.revision, &["parcels"], &["there"], None).await);
    assert_eq!(store.queue_depth("parcels").await.expect("depth").ready, 1);
}

/// A message comes back as it was put, in order, to one receiver at a time; and only that one ends it.
pub async fn a_message_is_with_one_receiver_at_a_time(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let revision = declare(&*store, &["parcels", "bills"]).await;
    put(&*store, revision, &["parcels"], &["one", "two", "three"], None).await;
    put(&*store, revision, &["bills"], &["other"], None).await;
    let (first, second) = (receiver(&*store, false).await, receiver(&*store, false).await);
    let taken = take(&*store, &first, 2).await;
    assert_eq!(bodies(&taken), ["one", "two"]);
    let (message, placement) = (message("one"), placement("parcels", None));
    let found = &taken[0];
    assert_eq!(
        (&found.message_id, &found.message_type, &found.key, &found.content_type, found.occurred_at),
        (
            &message.message_id,
            &message.message_type,
            &message.key,
            &message.content_type,
            message.occurred_at
        )
    );
    assert_eq!((&found.destination, &found.headers), (&placement.destination, &placement.headers));
    assert_eq!(bodies(&take(&*store, &second, 9).await), ["three"]);
    let depths = store.queue_depths(&["bills", "nowhere", "parcels"]).await.expect("depths");
    let ready = QueueDepth { ready: 1, ..QueueDepth::default() };
    assert_eq!(depths, [Some(ready), None, Some(QueueDepth { taken: 3, ..QueueDepth::default() })]);

    end(&*store, &first, &[(&taken[0], Fate::Removed), (&taken[1], Fate::GivenBack)]).await;
    let again = take(&*store, &second, 9).await;
    assert_eq!(
        (bodies(&again), again[0].earlier_deliveries),
        (vec!["two".to_owned()], 1),
        "at its old place"
    );
    assert_eq!(again[0].place, taken[1].place);
    for fate in [Fate::Removed, Fate::GivenBack, Fate::Moved(vec![self::placement("bills", None)])] {
        end(&*store, &first, &[(&taken[1], fate)]).await;
    }
    assert_eq!(store.queue_depth("parcels").await.expect("depth").taken, 2, "the second one has them");
    assert_eq!(store.queue_depth("bills").await.expect("depth"), ready);
    let moved = Fate::Moved(vec![self::placement("bills", None)]);
    end(&*store, &second, &[(&again[0], moved)]).await;
    assert_eq!(store.queue_depth("bills").await.expect("depth").ready, 2);
}

/// A delayed message is not there before its time, and holds nobody up.
pub async fn a_delayed_message_waits_for_its_time(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let revision = declare(&*store, &["parcels"]).await;
    put(&*store, revision, &["parcels"], &["later"], Some(LONG)).await;
    put(&*store, revision, &["parcels"], &["now"], None).await;
    put(&*store, revision, &["parcels"], &["due"], Some(Duration::ZERO)).await;
    let receiver = receiver(&*store, false).await;
    assert_eq!(bodies(&take(&*store, &receiver, 9).await), ["now", "due"]);
    let depth = store.queue_depth("parcels").await.expect("depth");
    assert_eq!((depth.ready, depth.delayed, depth.taken), (0, 1, 2));
}

/// So many bytes of bodies, and at least one message.
pub async fn a_receiver_takes_so_many_bytes_and_at_least_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let revision = declare(&*store, &["parcels"]).await;
    put(&*store, revision, &["parcels"], &["123456", "12", "34", "5"], None).await;
    let receiver = receiver(&*store, false).await;
    for expected in [vec!["123456"], vec!["12", "34"], vec!["5"]] {
        let taken = store.take_messages(&receiver, 9, 4).await.expect("take");
        assert_eq!(bodies(&taken), expected);
    }
}

/// Who has let its lease run out takes nothing more, and what it had comes back; what the living have stays theirs.
pub async fn messages_of_a_receiver_that_is_gone_come_back(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let revision = declare(&*store, &["parcels"]).await;
    put(&*store, revision, &["parcels"], &["one", "two", "three"], None).await;
    let (gone, living) = (receiver(&*store, false).await, receiver(&*store, false).await);
    take(&*store, &gone, 1).await;
    take(&*store, &living, 1).await;
    assert!(store.keep_receiving(&living.grant, LONG).await.expect("keep"));
    assert!(store.keep_receiving(&gone.grant, Duration::ZERO).await.expect("keep"), "it lives until then");
    assert!(!store.keep_receiving(&gone.grant, LONG).await.expect("keep"), "it has run out");
    let refused = store.take_messages(&gone, 9, u64::MAX).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "taking under a lease that has run out");
    assert_eq!(store.recover_messages().await.expect("recover"), 1);
    assert_eq!(store.recover_messages().await.expect("recover"), 0);
    assert_eq!(bodies(&take(&*store, &living, 9).await), ["one", "three"]);
}

/// Who ends gives back all that it has, and nothing of others.
pub async fn a_receiver_that_ends_gives_back_its_own(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let revision = declare(&*store, &["parcels"]).await;
    put(&*store, revision, &["parcels"], &["one", "two", "three"], None).await;
    let (first, second) = (receiver(&*store, false).await, receiver(&*store, false).await);
    take(&*store, &first, 2).await;
    take(&*store, &second, 1).await;
    store.end_receiving(&first).await.expect("end");
    let depth = store.queue_depth("parcels").await.expect("depth");
    assert_eq!((depth.ready, depth.taken), (2, 1));
    let refused = store.take_messages(&first, 9, u64::MAX).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "taking after the end");
}

/// Of those who take alone one does, until it is gone; the next one then begins with what that one had.
pub async fn who_takes_alone_is_followed_by_the_next(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let revision = declare(&*store, &["parcels"]).await;
    put(&*store, revision, &["parcels"], &["one", "two"], None).await;
    let (first, second) = (receiver(&*store, true).await, receiver(&*store, true).await);
    assert_eq!(bodies(&take(&*store, &first, 1).await), ["one"]);
    assert_eq!(take(&*store, &second, 9).await, [], "it is not its turn");
    assert!(store.keep_receiving(&first.grant, Duration::ZERO).await.expect("keep"));
    assert_eq!(bodies(&take(&*store, &second, 9).await), ["one", "two"], "in order");
    store.end_receiving(&second).await.expect("end");
    let third = receiver(&*store, true).await;
    assert_eq!(bodies(&take(&*store, &third, 9).await), ["one", "two"]);
}

async fn declare(store: &dyn Store, queues: &[&str]) -> u64 {
    let revision = store.layout().await.expect("layout").revision;
    assert!(store.extend_layout(revision, &topology(queues)).await.expect("extend"));
    store.layout().await.expect("layout").revision
}

fn topology(queues: &[&str]) -> Topology {
    let exchange = || "orders".to_owned();
    Topology {
        exchanges: vec![Exchange { name: exchange(), kind: ExchangeKind::Topic }],
        queues: queues.iter().map(|name| Queue { name: (*name).to_owned(), arguments: Vec::new() }).collect(),
        bindings: queues
            .iter()
            .map(|queue| Binding {
                queue: (*queue).to_owned(),
                exchange: exchange(),
                routing_key: "order.#".to_owned(),
            })
            .collect(),
    }
}

fn message(body: &str) -> Message {
    Message {
        destination: Destination {
            exchange: "elsewhere".to_owned(),
            routing_key: "does.not.count".to_owned(),
        },
        message_id: format!("message-{body}"),
        message_type: "ORDER_PLACED".to_owned(),
        key: "order-7".to_owned(),
        occurred_at: moment(1),
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        body: body.as_bytes().to_vec(),
    }
}

fn placement(queue: &str, delay: Option<Duration>) -> Placement {
    Placement {
        queue: queue.to_owned(),
        destination: Destination { exchange: "orders".to_owned(), routing_key: "order.placed".to_owned() },
        headers: vec![("x-\"quoted\"".to_owned(), "🦆".to_owned())],
        delay,
    }
}

/// Puts messages with these bodies into each of the queues.
async fn put(
    store: &dyn Store,
    revision: u64,
    queues: &[&str],
    texts: &[&str],
    delay: Option<Duration>,
) -> bool {
    let messages: Vec<Message> = texts.iter().map(|text| message(text)).collect();
    let placements: Vec<Placement> = queues.iter().map(|queue| placement(queue, delay)).collect();
    let parcels: Vec<Parcel<'_>> = messages
        .iter()
        .flat_map(|message| placements.iter().map(move |placement| Parcel { message, placement }))
        .collect();
    match store.put_messages(revision, &parcels).await {
        Ok(put) => put,
        Err(PutError::NotWritten(error) | PutError::Unknown(error)) => panic!("put: {error:?}"),
    }
}

/// A receiver of parcels, under a lease of its own.
async fn receiver(store: &dyn Store, alone: bool) -> Receiver {
    let lease = LeaseName::new(format!("local/{}", Uuid::now_v7())).expect("a lease name");
    let grant = store.begin_receiving(&lease, LONG).await.expect("begin to receive");
    Receiver { queue: "parcels".to_owned(), grant, alone }
}

async fn take(store: &dyn Store, receiver: &Receiver, limit: u32) -> Vec<TakenMessage> {
    store.take_messages(receiver, limit, u64::MAX).await.expect("take")
}

async fn end(store: &dyn Store, receiver: &Receiver, endings: &[(&TakenMessage, Fate)]) {
    let endings: Vec<Ending> =
        endings.iter().map(|(taken, fate)| Ending { place: taken.place, fate: fate.clone() }).collect();
    store.end_messages(&receiver.grant, &endings).await.expect("end");
}

fn bodies(taken: &[TakenMessage]) -> Vec<String> {
    taken.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
}
