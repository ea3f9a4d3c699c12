//! Acts that many cases need and that must succeed.

use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{AggregateKey, ChannelName, InstanceId, Lane, LeaseName, Version};
use towpath_core::ports::store::{
    Append, Appended, ClaimRoom, LeaseGrant, NewTimer, OutboxClaim, OutboxItem, OutboxOutcome, OutboxResult,
    Store, StoreResult,
};

use super::facts::{instance, new_lease};

/// Longer than any case runs.
pub const LONG: Duration = Duration::from_secs(3600);

/// Checks that something was refused in one of the expected ways, and shows what came instead.
macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?, $what:expr) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            Err(other) => panic!("{}: expected {}, got {other:?}", $what, stringify!($pattern)),
            Ok(_) => panic!("{}: expected {}, but it was done", $what, stringify!($pattern)),
        }
    };
}
pub(crate) use assert_refused;

/// Appends in a transaction of its own.
pub async fn append(store: &dyn Store, append: &Append) -> Version {
    try_append(store, append).await.expect("an append that must succeed").version
}

/// Appends in a transaction of its own, and answers as the store did.
pub async fn try_append(store: &dyn Store, append: &Append) -> StoreResult<Appended> {
    let mut tx = store.begin().await?;
    match tx.append(append).await {
        Ok(appended) => tx.commit().await.map(|()| appended),
        Err(error) => {
            tx.rollback().await?;
            Err(error)
        }
    }
}

/// Schedules timers in a transaction of their own.
pub async fn schedule(store: &dyn Store, timers: &[NewTimer]) {
    let mut tx = store.begin().await.expect("begin");
    for timer in timers {
        tx.schedule(timer).await.expect("schedule a timer");
    }
    tx.commit().await.expect("commit");
}

/// Takes a lease of its own for a long time.
pub async fn hold_new_lease(store: &dyn Store) -> LeaseGrant {
    hold(store, &new_lease(), &instance("holder")).await
}

/// Takes a lease that must be free, for a long time.
pub async fn hold(store: &dyn Store, lease: &LeaseName, holder: &InstanceId) -> LeaseGrant {
    store.acquire_lease(lease, holder, LONG).await.expect("acquire a lease").expect("the lease is free")
}

/// A grant that has been taken over by another holder, and the grant of that other.
pub async fn stale_and_fresh(store: &dyn Store) -> (LeaseGrant, LeaseGrant) {
    let lease = new_lease();
    let stale = store
        .acquire_lease(&lease, &instance("sleeper"), Duration::ZERO)
        .await
        .expect("acquire a lease")
        .expect("the lease is free");
    let fresh = hold(store, &lease, &instance("successor")).await;
    (stale, fresh)
}

/// Gives positions to everything that has none, looking from the beginning; answers how many.
pub async fn sequence_all(store: &dyn Store, lease: &LeaseGrant) -> u64 {
    let mut total = 0;
    loop {
        let sequenced = store.sequence(lease, 100).await.expect("sequence");
        total += sequenced.count;
        if sequenced.count == 0 {
            return total;
        }
    }
}

/// The whole log. Its positions must be 1, 2, 3 and so on.
pub async fn whole_log(store: &dyn Store) -> Vec<RecordedEvent> {
    let head = store.head().await.expect("head");
    let log = store.events_between(1, head).await.expect("read the log");
    let positions: Vec<_> = log.iter().map(|event| event.position.unwrap_or(0)).collect();
    assert_eq!(positions, (1..=head).collect::<Vec<_>>(), "positions are 1, 2, 3 and so on, up to the head");
    log
}

/// The versions of an aggregate's events, as the store lists them.
pub async fn versions_of(store: &dyn Store, aggregate: &AggregateKey) -> Vec<Version> {
    let events = store.events_of(aggregate, 0, 100_000).await.expect("read events");
    events.iter().map(|event| event.envelope.aggregate_version).collect()
}

/// All partitions.
pub fn all_partitions() -> Vec<u16> {
    (0..Lane::PARTITIONS).collect()
}

/// Everything of a channel that is due.
pub async fn claim(store: &dyn Store, channel: &ChannelName, now: DateTime<Utc>) -> Vec<OutboxItem> {
    let partitions = all_partitions();
    let claim =
        OutboxClaim { channel, partitions: &partitions, limit: 10_000, now, room: ClaimRoom::UNLIMITED };
    store.claim_outbox(&claim).await.expect("claim outbox rows")
}

/// The versions of the claimed events, in the order of the claim.
pub fn versions(items: &[OutboxItem]) -> Vec<Version> {
    items.iter().map(|item| item.event.aggregate_version).collect()
}

/// The result of one claimed row.
pub fn result(item: &OutboxItem, outcome: OutboxOutcome) -> OutboxResult {
    OutboxResult { outbox_id: item.outbox_id, event_id: item.event.event_id, lane: item.lane, outcome }
}

/// Try again then.
pub fn retry(at: DateTime<Utc>, park: bool) -> OutboxOutcome {
    OutboxOutcome::Retry {
        at,
        reason: "broker-unreachable".to_owned(),
        message: "Nobody answers on port 5672. 🦆".to_owned(),
        park,
    }
}

/// Given up.
pub fn given_up(park: bool) -> OutboxOutcome {
    OutboxOutcome::Failed {
        reason: "no-route".to_owned(),
        message: "The broker returned it.".to_owned(),
        park,
    }
}

/// Records results under one lease.
pub async fn record(
    store: &dyn Store,
    lease: &LeaseGrant,
    channel: &ChannelName,
    now: DateTime<Utc>,
    results: &[OutboxResult],
) {
    store
        .record_outbox(std::slice::from_ref(lease), channel, now, results)
        .await
        .expect("record outbox results");
}

/// Records all of these as sent.
pub async fn record_sent(
    store: &dyn Store,
    lease: &LeaseGrant,
    channel: &ChannelName,
    now: DateTime<Utc>,
    items: &[OutboxItem],
) {
    let results: Vec<_> = items.iter().map(|item| result(item, OutboxOutcome::Sent)).collect();
    record(store, lease, channel, now, &results).await;
}

/// Delivers a channel until nothing is due any more; answers the items in the order in which they were sent.
pub async fn drain(
    store: &dyn Store,
    lease: &LeaseGrant,
    channel: &ChannelName,
    now: DateTime<Utc>,
) -> Vec<OutboxItem> {
    let mut sent = Vec::new();
    loop {
        let items = claim(store, channel, now).await;
        if items.is_empty() {
            return sent;
        }
        record_sent(store, lease, channel, now, &items).await;
        sent.extend(items);
    }
}

/// Delivers and gives positions again and again for a while: what an adapter remembers from look to look has time to
/// form, and would show itself in what it then does not see.
pub async fn drain_for_a_while(
    store: &dyn Store,
    lease: &LeaseGrant,
    channel: &ChannelName,
    now: DateTime<Utc>,
) -> Vec<OutboxItem> {
    let mut sent = drain(store, lease, channel, now).await;
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(600) {
        sent.extend(drain(store, lease, channel, now).await);
        sequence_all(store, lease).await;
    }
    sent
}
