//! Channels: paused with who and why (S2), removed softly, unique among the living (S3).

use chrono::{DateTime, Utc};
use towpath_core::ids::{ActorId, AggregateKey, ChannelName, Position};
use towpath_core::ports::store::{
    ChannelRow, Disabled, LeaseGrant, Parked, ParkedAggregate, Store, StoreError, StoreResult, TrackerPlace,
};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{assert_refused, hold, hold_new_lease};
use super::facts::{instance, moment, new_channel, new_lease, new_order};
use super::waiting::{all_at_once, taking_turns};

/// The living channels are listed by name, as they were added.
pub async fn channels_are_listed_by_name(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    assert_eq!(store.channels().await.expect("channels"), []);
    let mut rows: Vec<ChannelRow> = ["mail", "audit", "ledger"]
        .into_iter()
        .zip(0..)
        .map(|(name, position)| ChannelRow {
            channel_id: Uuid::now_v7(),
            name: ChannelName::new(name).expect("a valid name"),
            position,
            reset_count: 0,
            disabled: None,
        })
        .collect();
    for row in &rows {
        store.add_channel(row.channel_id, &row.name, row.position, moment(1)).await.expect("add");
    }
    rows.sort_by(|left, right| left.name.cmp(&right.name));
    assert_eq!(store.channels().await.expect("channels"), rows);
}

/// A paused channel says since when, by whom and why; resuming forgets it. Other channels are not concerned.
pub async fn a_paused_channel_says_who_and_why(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (name, other) = (new_channel(), new_channel());
    add(&*store, &name).await.expect("add");
    add(&*store, &other).await.expect("add");
    let full = Disabled {
        at: moment(5),
        by_id: Some(ActorId::new("Zoë 🦆").expect("a valid id")),
        reason: "broker-moves".to_owned(),
        message: Some("Until \"Monday\"; 100% sure.".to_owned()),
    };
    let bare = Disabled { at: moment(6), by_id: None, reason: "automatic".to_owned(), message: None };
    for disabled in [Some(full), Some(bare), None] {
        store.disable_channel(&name, disabled.as_ref()).await.expect("pause or resume");
        assert_eq!(find(&*store, &name).await.expect("it lives").disabled, disabled);
        assert_eq!(find(&*store, &other).await.expect("it lives").disabled, None);
    }
    store.disable_channel(&name, None).await.expect("resuming what runs changes nothing");
}

/// A living name is taken; a removed one is free again, and its successor begins anew.
pub async fn a_removed_channel_frees_its_name(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let name = new_channel();
    let by = ActorId::new("operator-1").expect("a valid id");
    for round in 0..3 {
        let channel_id = add(&*store, &name).await.expect("the name is free");
        match add(&*store, &name).await {
            Err(StoreError::NameTaken { name: taken, .. }) => assert_eq!(taken, name.as_str()),
            other => panic!("expected NameTaken, got {other:?}"),
        }
        let living = find(&*store, &name).await.expect("it lives");
        assert_eq!((living.channel_id, living.disabled), (channel_id, None), "round {round}");
        let disabled = Disabled { at: moment(2), by_id: None, reason: "old".to_owned(), message: None };
        store.disable_channel(&name, Some(&disabled)).await.expect("pause");
        store.remove_channel(&name, Some(&by), "not needed", moment(3)).await.expect("remove");
        assert_eq!(find(&*store, &name).await, None);
    }
}

/// What does not exist, or no longer does, is missing.
pub async fn a_missing_channel_is_said_to_be_missing(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (never, gone) = (new_channel(), new_channel());
    add(&*store, &gone).await.expect("add");
    store.remove_channel(&gone, None, "not needed", moment(2)).await.expect("remove");
    let disabled = Disabled { at: moment(2), by_id: None, reason: "why".to_owned(), message: None };
    for name in [&never, &gone] {
        for change in [Some(&disabled), None] {
            let answer = store.disable_channel(name, change).await;
            assert_refused!(answer, StoreError::Missing { .. }, "pausing or resuming");
        }
        let answer = store.remove_channel(name, None, "again", moment(3)).await;
        assert_refused!(answer, StoreError::Missing { .. }, "removing");
    }
}

/// A tracker's position moves only from where its holder believes it to be, and only under the newest lease. An operator
/// may set it anywhere; the tracker then finds out.
pub async fn a_position_moves_from_where_it_was_and_under_its_lease(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (name, lease) = (new_channel(), new_lease());
    let earlier = hold(&*store, &lease, &instance("one")).await;
    add(&*store, &name).await.expect("add");
    let position = async || find(&*store, &name).await.expect("it lives").position;
    let id = find(&*store, &name).await.expect("it lives").channel_id;
    let at = |position, reset_count| TrackerPlace { position, reset_count };
    assert!(advance(&*store, &earlier, id, at(0, 0), 5).await.expect("advance"));
    assert!(!advance(&*store, &earlier, id, at(0, 0), 9).await.expect("advance"), "it is not at 0");
    assert_eq!(position().await, 5);
    store.reset_channel(&name, 2).await.expect("reset");
    assert!(!advance(&*store, &earlier, id, at(5, 0), 6).await.expect("advance"), "it was set back");
    store.reset_channel(&name, 2).await.expect("reset");
    let moved = advance(&*store, &earlier, id, at(2, 1), 6).await.expect("advance");
    assert!(!moved, "it was set to where it is, and that counts");
    let later = hold(&*store, &lease, &instance("one")).await;
    let late = advance(&*store, &earlier, id, at(2, 2), 7).await;
    assert_refused!(late, StoreError::Fenced { .. }, "advancing under a lost lease");
    assert_eq!(position().await, 2);
    assert!(advance(&*store, &later, id, at(2, 2), 3).await.expect("advance"));
    store.remove_channel(&name, None, "not needed", moment(3)).await.expect("remove");
    assert!(!advance(&*store, &later, id, at(3, 2), 4).await.expect("advance"), "a removed one stays");
    add(&*store, &name).await.expect("another one of the same name");
    assert!(!advance(&*store, &later, id, at(0, 0), 4).await.expect("advance"), "the new one is another");
    assert_eq!(position().await, 0);
    store.remove_channel(&name, None, "not needed either", moment(4)).await.expect("remove");
    assert_refused!(
        store.reset_channel(&name, 1).await,
        StoreError::Missing { .. },
        "resetting what is gone"
    );
}

/// Eight instances add the same name at the same moment: one does.
pub async fn one_of_eight_adds_of_a_name_wins(fixture: &impl StoreFixture) {
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(fixture.store().await);
    }
    for round in 0..5 {
        let name = new_channel();
        let adds = stores.iter().cloned().map(|store| {
            let name = name.clone();
            async move { taking_turns(|| add(&*store, &name)).await }
        });
        let mut added = Vec::new();
        for answer in all_at_once(adds).await {
            match answer {
                Ok(channel_id) => added.push(channel_id),
                Err(StoreError::NameTaken { .. }) => {}
                Err(other) => panic!("round {round}: {other:?}"),
            }
        }
        assert_eq!(added.len(), 1, "round {round}");
        assert_eq!(find(&*stores[0], &name).await.map(|row| row.channel_id), Some(added[0]));
    }
}

async fn add(store: &dyn Store, name: &ChannelName) -> Result<Uuid, StoreError> {
    let channel_id = Uuid::now_v7();
    store.add_channel(channel_id, name, 0, moment(1)).await.map(|()| channel_id)
}

async fn advance(
    store: &dyn Store,
    lease: &LeaseGrant,
    channel_id: Uuid,
    from: TrackerPlace,
    to: Position,
) -> StoreResult<bool> {
    store.park_in_channel(lease, channel_id, from, to, &[], &[]).await
}

async fn find(store: &dyn Store, name: &ChannelName) -> Option<ChannelRow> {
    let mut living: Vec<_> = store.channels().await.expect("channels");
    living.retain(|row| row.name == *name);
    assert!(living.len() <= 1, "one name, two living channels");
    living.pop()
}

/// What a tracker leaves behind is written with its position or not at all, and counts until the channel is set.
pub async fn what_a_channel_leaves_behind_moves_with_its_position(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (name, channel_id) = (new_channel(), Uuid::now_v7());
    store.add_channel(channel_id, &name, 0, moment(0)).await.expect("add");
    let lease = hold_new_lease(&*store).await;
    let (one, two) = (new_order(), new_order());
    let place = |position, reset_count| TrackerPlace { position, reset_count };
    let both = [parked(&one, Some(moment(5))), parked(&two, None)];
    let moved = store.park_in_channel(&lease, channel_id, place(7, 0), 9, &both, &[]).await.expect("park");
    assert!(!moved, "it is elsewhere");
    assert_eq!(store.parked_in_channel(channel_id, 0, Parked::All).await.expect("parked"), []);
    assert!(store.park_in_channel(&lease, channel_id, place(0, 0), 9, &both, &[]).await.expect("park"));
    let mut expected = both.to_vec();
    expected.sort_by_key(|one| one.aggregate.to_string());
    assert_eq!(store.parked_in_channel(channel_id, 0, Parked::All).await.expect("parked"), expected);

    // One is tried again without moving on, the other was given up until an operator decides.
    let again = ParkedAggregate { version: 4, attempts: 2, ..parked(&one, Some(moment(8))) };
    let changed = std::slice::from_ref(&again);
    assert!(store.park_in_channel(&lease, channel_id, place(9, 0), 9, changed, &[]).await.expect("park"));
    assert_eq!(store.reopen_parked(&name, moment(6)).await.expect("reopen"), 1);
    let now = store.parked_in_channel(channel_id, 0, Parked::All).await.expect("parked");
    assert!(now.contains(&again));
    assert!(now.iter().any(|other| (other.due_at, other.attempts) == (Some(moment(6)), 0)));
    let opened = std::slice::from_ref(&one);
    assert!(store.park_in_channel(&lease, channel_id, place(9, 0), 12, &[], opened).await.expect("open"));
    assert_eq!(store.parked_in_channel(channel_id, 0, Parked::All).await.expect("parked").len(), 1);
    store.reset_channel(&name, 0).await.expect("reset");
    assert_eq!(
        store.parked_in_channel(channel_id, 1, Parked::All).await.expect("parked"),
        [],
        "it begins anew"
    );
}

fn parked(aggregate: &AggregateKey, due_at: Option<DateTime<Utc>>) -> ParkedAggregate {
    ParkedAggregate {
        aggregate: aggregate.clone(),
        version: 3,
        attempts: 1,
        due_at,
        reason: "broker-refused".to_owned(),
        message: "It is too large.".to_owned(),
        parked_at: moment(1),
    }
}

/// However many wait: a tracker asks for some that are due, the longest due first, and for those whose events it has read.
pub async fn those_that_are_due_are_asked_for_and_those_that_are_met(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (channel_id, other_id) = (Uuid::now_v7(), Uuid::now_v7());
    let orders: Vec<AggregateKey> = (0..6).map(|_| new_order()).collect();
    let due = [Some(7), Some(5), None, Some(6), Some(9), Some(4)];
    let waiting: Vec<ParkedAggregate> =
        orders.iter().zip(due).map(|(order, due)| parked(order, due.map(moment))).collect();
    for id in [channel_id, other_id] {
        store.add_channel(id, &new_channel(), 0, moment(0)).await.expect("add");
        let from = TrackerPlace { position: 0, reset_count: 0 };
        let here = if id == channel_id { &waiting[..] } else { &waiting[..1] };
        assert!(store.park_in_channel(&lease, id, from, 1, here, &[]).await.expect("park"));
    }
    let ask = async |which: Parked<'_>| {
        let found = store.parked_in_channel(channel_id, 0, which).await.expect("parked");
        found.into_iter().map(|one| one.aggregate).collect::<Vec<_>>()
    };
    let is_due = ask(Parked::Due { now: moment(7), limit: 3 }).await;
    assert_eq!(is_due, [5, 1, 3].map(|number| orders[number].clone()));
    let is_due = ask(Parked::Due { now: moment(7), limit: 10 }).await;
    assert_eq!(is_due, [5, 1, 3, 0].map(|number| orders[number].clone()));
    let elsewhere = AggregateKey::from_stored("parcel", orders[0].id.as_str());
    let asked = [new_order(), orders[2].clone(), elsewhere, orders[4].clone()];
    let mut met = ask(Parked::Among(&asked)).await;
    met.sort_by_key(|order| orders.iter().position(|other| other == order));
    assert_eq!(met, [orders[2].clone(), orders[4].clone()]);
    assert_eq!(ask(Parked::Among(&[])).await, []);
}

/// Whoever sets or removes a channel has decided about what it has left behind: nothing of it stays to be walked over.
pub async fn what_is_left_behind_goes_with_its_channel(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for removes in [false, true] {
        let (name, channel_id) = (new_channel(), Uuid::now_v7());
        store.add_channel(channel_id, &name, 0, moment(0)).await.expect("add");
        let from = TrackerPlace { position: 0, reset_count: 0 };
        let waiting = [parked(&new_order(), None)];
        assert!(store.park_in_channel(&lease, channel_id, from, 1, &waiting, &[]).await.expect("park"));
        match removes {
            true => store.remove_channel(&name, None, "not needed", moment(2)).await.expect("remove"),
            false => store.reset_channel(&name, 0).await.expect("reset"),
        }
        for reset_count in 0..2 {
            let left = store.parked_in_channel(channel_id, reset_count, Parked::All).await.expect("parked");
            assert_eq!(left, [], "removed: {removes}");
        }
    }
}
