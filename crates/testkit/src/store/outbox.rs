//! The outbox: per lane in order, and a stuck event parks its lane and nothing else (P2, P3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use towpath_core::ids::{AggregateKey, ChannelName, Lane, Version};
use towpath_core::lifecycle::OutboxStatus;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    ClaimRoom, FailedFilter, InspectedStore, LeaseGrant, OutboxClaim, OutboxItem, OutboxOutcome,
    OutboxResult, OutboxRow, StoreError,
};

use super::StoreFixture;
use super::acts::{
    all_partitions, append, claim, drain, drain_for_a_while, given_up, hold_new_lease, record, record_sent,
    result, retry, try_append, versions,
};
use super::facts::{OrderFacts, envelopes, full_context, moment, new_channel, new_event_id, new_order};
use super::waiting::{all_at_once, answer_of, fair_chance, interleave, taking_turns};
use crate::probe::PauseProbe;

/// An event has a row for each channel that routes it, and none where nothing does.
pub async fn rows_exist_for_routed_channels_only(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (ledger, mail, other) = (new_channel(), new_channel(), new_channel());
    let facts = OrderFacts::of_new_order()
        .placed()
        .routed(&[ledger.clone(), mail.clone()])
        .paid()
        .routed(std::slice::from_ref(&mail))
        .noted("for nobody")
        .append();
    append(&*store, &facts).await;
    assert_eq!(versions(&claim(&*store, &ledger, moment(1)).await), [1]);
    assert_eq!(versions(&claim(&*store, &mail, moment(1)).await), [1, 2]);
    assert_eq!(claim(&*store, &other, moment(1)).await, []);
    let mut rows = Vec::new();
    for event in &facts.events {
        rows.push(store.outbox_of(event.event_id).await.expect("outbox_of").len());
    }
    assert_eq!(rows, [2, 1, 0]);
    assert_eq!(store.outbox_of(new_event_id()).await.expect("outbox_of"), []);
}

/// A claimed row carries the whole fact, and its channel's rows only.
pub async fn a_claimed_row_carries_its_fact(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let channel = new_channel();
    let facts = OrderFacts::of_new_order().placed().paid().routed(std::slice::from_ref(&channel));
    let facts = facts.in_context(full_context(moment(3))).append();
    append(&*store, &facts).await;
    let items = claim(&*store, &channel, moment(1)).await;
    assert_eq!(items.iter().map(|item| item.event.clone()).collect::<Vec<_>>(), envelopes(&facts, 1));
    for item in &items {
        assert_eq!((item.lane, item.retry_count), (facts.aggregate.lane(), 0));
        assert_eq!(item.status, OutboxStatus::New);
        let rows = store.outbox_of(item.event.event_id).await.expect("outbox_of");
        assert_eq!((rows.len(), rows[0].outbox_id), (1, item.outbox_id));
    }
    assert_eq!(claim(&*store, &channel, moment(1)).await, items, "a claim marks nothing");
}

/// A lane that has many rows leaves room for those behind it, and large payloads for none: but one row always comes.
pub async fn a_claim_leaves_room_for_other_lanes_and_takes_so_many_bytes(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (channel, hot, other) = (new_channel(), new_order(), new_order());
    write(&*store, &hot, 0..30, &channel).await;
    write(&*store, &other, 0..2, &channel).await;
    let partitions = all_partitions();
    let from = |room: ClaimRoom| {
        let (store, channel, partitions) = (&store, &channel, &partitions);
        async move {
            let claim = OutboxClaim { channel, partitions, limit: 10, now: moment(1), room };
            store.claim_outbox(&claim).await.expect("claim outbox rows")
        }
    };
    let all = from(ClaimRoom::UNLIMITED).await;
    assert_eq!((of(&all, &hot).len(), of(&all, &other).len()), (10, 0), "it fills a claim");
    let fair = ClaimRoom { per_lane: 4, depth: 100, ..ClaimRoom::UNLIMITED };
    let items = from(fair).await;
    assert_eq!((of(&items, &hot), of(&items, &other)), (vec![1, 2, 3, 4], vec![1, 2]));
    let items = from(ClaimRoom { depth: 0, ..fair }).await;
    assert_eq!((of(&items, &hot), of(&items, &other)), (vec![1, 2, 3, 4], vec![]), "no deeper than it may");

    let size = all[0].event.payload.as_text().len() as u64;
    for (bytes, rows) in [(0, 1), (1, 1), (size, 1), (size + 1, 2), (3 * size, 3)] {
        let items = from(ClaimRoom { bytes, ..ClaimRoom::UNLIMITED }).await;
        assert_eq!(of(&items, &hot), (1..=rows).collect::<Vec<_>>(), "{bytes} bytes of {size} each");
    }
    // Two of four would fill it: the first of each lane goes before the second of any.
    let items = from(ClaimRoom { bytes: size + 1, ..fair }).await;
    assert_eq!((of(&items, &hot), of(&items, &other)), (vec![1], vec![1]), "large ones leave some to others");
    // What waits needs no room.
    let lease = hold_new_lease(&*store).await;
    record(&*store, &lease, &channel, moment(1), &[result(&all[0], given_up(true))]).await;
    let items = from(ClaimRoom { bytes: 1, depth: 100, ..fair }).await;
    assert_eq!((of(&items, &hot), of(&items, &other)), (vec![], vec![1]));
}

/// A database that has lost its last rows gives their numbers to others: what somebody knew of the lost ones says nothing of
/// these.
pub async fn a_result_is_of_its_event_and_of_no_other(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (channel, order) = (new_channel(), new_order());
    write(&*store, &order, 0..2, &channel).await;
    let lease = hold_new_lease(&*store).await;
    let items = claim(&*store, &channel, moment(1)).await;
    for outcome in [OutboxOutcome::Sent, retry(moment(9), true), given_up(true), given_up(false)] {
        let lost = OutboxResult { event_id: new_event_id(), ..result(&items[0], outcome) };
        record(&*store, &lease, &channel, moment(2), &[lost]).await;
        assert_eq!(claim(&*store, &channel, moment(2)).await, items, "nothing has changed");
    }
    record_sent(&*store, &lease, &channel, moment(3), &items).await;
    assert_eq!(claim(&*store, &channel, moment(3)).await, []);
}

/// An operator goes on without a row: what waited behind it follows, and whoever publishes it late parks nothing.
pub async fn a_skipped_row_opens_its_lane_for_good(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (channel, order) = (new_channel(), new_order());
    write(&*store, &order, 0..3, &channel).await;
    let lease = hold_new_lease(&*store).await;
    let items = claim(&*store, &channel, moment(1)).await;
    let skip = |item: &OutboxItem| store.skip_outbox(item.outbox_id, "too large for the broker", moment(3));
    assert!(!skip(&items[0]).await.expect("skip"), "what has not failed is published");
    record(&*store, &lease, &channel, moment(2), &[result(&items[0], given_up(true))]).await;
    assert_eq!(claim(&*store, &channel, moment(2)).await, []);
    assert!(skip(&items[0]).await.expect("skip"));
    assert!(!skip(&items[0]).await.expect("skip"), "once");
    let row = row_of(&*store, &items[0]).await;
    assert_eq!((row.status, row.status_changed_at), (OutboxStatus::Skipped, moment(3)));
    assert_eq!(row.status_reason.as_deref(), Some("skipped"));
    assert_eq!(row.status_message.as_deref(), Some("too large for the broker"));
    assert_eq!(versions(&claim(&*store, &channel, moment(3)).await), [2, 3]);
    // Somebody was still at it.
    record(&*store, &lease, &channel, moment(4), &[result(&items[0], given_up(true))]).await;
    assert_eq!(versions(&claim(&*store, &channel, moment(4)).await), [2, 3]);
    // One that is still to be tried.
    record(&*store, &lease, &channel, moment(4), &[result(&items[1], retry(moment(9), true))]).await;
    assert!(skip(&items[1]).await.expect("skip"));
    assert_eq!(versions(&claim(&*store, &channel, moment(4)).await), [3]);
    assert_eq!(store.reopen_outbox(&[items[0].outbox_id], moment(5)).await.expect("reopen"), 0);
    let failed = FailedFilter { channel: Some(channel.clone()), ..FailedFilter::default() };
    assert_eq!(store.count_failed(&failed).await.expect("count"), 0, "nobody need look at it any more");
}

/// A claim gives rows of its channel and partitions only, at most as many as asked for, and per lane always the
/// earliest ones.
pub async fn a_claim_respects_partitions_and_limit(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (channel, other) = (new_channel(), new_channel());
    for _ in 0..12 {
        let order = new_order();
        for version in 0..3 {
            let facts =
                OrderFacts::about(&order, version).noted("row").routed(&[channel.clone(), other.clone()]);
            append(&*store, &facts.append()).await;
        }
    }
    let mut claimed = 0;
    for partition in 0..Lane::PARTITIONS {
        let items = claim_from(&*store, &channel, &[partition], 100).await;
        assert!(items.iter().all(|item| item.lane.partition() == partition), "only of partition {partition}");
        claimed += items.len();
    }
    assert_eq!(claimed, 36, "the partitions together are everything");
    assert_eq!(claim_from(&*store, &channel, &[], 100).await, [], "no partitions, no rows");

    for limit in [1, 2, 5, 7, 35, 36, 37] {
        let items = claim_from(&*store, &channel, &all_partitions(), limit).await;
        assert!((1..=limit as usize).contains(&items.len()), "{} rows for a limit of {limit}", items.len());
        assert!(limit < 36 || items.len() == 36, "all that is due, when the limit allows it");
        assert_prefixes(&items);
    }
}

/// Of two rows of one lane that fail together the earlier is what the lane waits for; the later one, and all behind it,
/// come after it, whatever its own failure was.
pub async fn two_failures_in_one_lane_keep_their_order(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let order = new_order();
    write(&*store, &order, 0..3, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    for (late, outcome) in [
        (
            3,
            OutboxOutcome::Retry { at: moment(5), reason: "down".into(), message: "down".into(), park: true },
        ),
        (
            9,
            OutboxOutcome::Retry {
                at: moment(50),
                reason: "down".into(),
                message: "down".into(),
                park: true,
            },
        ),
    ] {
        // The second row fails alike in the first round, and with a much later time in the second.
        let first =
            OutboxOutcome::Retry { at: moment(5), reason: "down".into(), message: "down".into(), park: true };
        let results = [result(&items[0], first), result(&items[1], outcome)];
        let recorded =
            store.record_outbox(std::slice::from_ref(&lease), &channel, moment(late), &results).await;
        recorded.expect("record two failures of one lane");
    }
    assert_eq!(versions(&claim(&*store, &channel, moment(4)).await), [0_u64; 0], "nothing passes the first");
    let due = claim(&*store, &channel, moment(10)).await;
    assert_eq!(versions(&due), [1], "only the first is due");
    record_sent(&*store, &lease, &channel, moment(10), &due).await;
    assert_eq!(versions(&claim(&*store, &channel, moment(11)).await), [2, 3], "then the others, in order");
}

/// A failure that is told of a row which was sent meanwhile is not what its lane waits for: nothing would ever open it.
pub async fn a_row_that_was_sent_parks_nothing(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let order = new_order();
    write(&*store, &order, 0..3, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    record_sent(&*store, &lease, &channel, moment(2), &items[..1]).await;
    // The second failed, too: it is what the lane waits for, and not the first.
    let results = [result(&items[0], given_up(true)), result(&items[1], retry(moment(5), true))];
    let recorded = store.record_outbox(std::slice::from_ref(&lease), &channel, moment(3), &results).await;
    recorded.expect("record a failure of a row that was sent");
    assert_eq!(row_of(&*store, &items[0]).await.status, OutboxStatus::Sent);
    assert_eq!(versions(&claim(&*store, &channel, moment(4)).await), [0_u64; 0], "the second is not due");
    let due = claim(&*store, &channel, moment(6)).await;
    assert_eq!(versions(&due), [2], "the second goes first");
    record_sent(&*store, &lease, &channel, moment(6), &due).await;
    assert_eq!(versions(&claim(&*store, &channel, moment(7)).await), [3], "then the last");
}

/// What was sent is not claimed again, and its row says so.
pub async fn sent_rows_are_not_claimed_again(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let order = new_order();
    write(&*store, &order, 0..3, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    assert_eq!(versions(&items), [1, 2, 3]);
    record_sent(&*store, &lease, &channel, moment(2), &items[..2]).await;
    assert_eq!(versions(&claim(&*store, &channel, moment(3)).await), [3]);
    let row = row_of(&*store, &items[0]).await;
    assert_eq!((row.status, row.status_changed_at), (OutboxStatus::Sent, moment(2)));
    assert_eq!(
        store.reopen_outbox(&[items[0].outbox_id], moment(4)).await.expect("reopen"),
        0,
        "only FAILED reopens"
    );
    record_sent(&*store, &lease, &channel, moment(5), &items[2..]).await;
    assert_eq!(claim(&*store, &channel, moment(1_000_000)).await, []);
}

/// A retry that keeps order: later rows of its lane wait, also those that are written later. When it is due it comes
/// alone, as often as it fails; once it is sent the others follow in order. Other lanes do not notice.
pub async fn a_parked_retry_holds_its_lane_until_it_is_sent(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let (stuck, free) = (new_order(), new_order());
    write(&*store, &stuck, 0..3, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    let results = [result(&items[0], OutboxOutcome::Sent), result(&items[1], retry(moment(10), true))];
    record(&*store, &lease, &channel, moment(2), &results).await;

    write(&*store, &stuck, 3..5, &channel).await;
    write(&*store, &free, 0..2, &channel).await;
    let just_before = moment(10) - Duration::from_micros(1);
    let others = claim(&*store, &channel, just_before).await;
    assert!(of(&others, &stuck).is_empty(), "the lane waits, its new rows too");
    assert_eq!(of(&others, &free), [1, 2], "the others go on");
    record_sent(&*store, &lease, &channel, moment(3), &others).await;

    let row = row_of(&*store, &items[1]).await;
    assert_eq!((row.status, row.retry_count, row.next_retry_at), (OutboxStatus::Retry, 1, Some(moment(10))));
    assert_eq!(row.status_reason.as_deref(), Some("broker-unreachable"));
    assert_eq!(row.status_message.as_deref(), Some("Nobody answers on port 5672. 🦆"));
    let behind = row_of(&*store, &items[2]).await;
    assert_eq!(behind.status, OutboxStatus::New);
    assert!(behind.parked_at.is_some(), "a row that waits behind another says so (P9)");

    let due = claim(&*store, &channel, moment(10)).await;
    assert_eq!(versions(&due), [2], "only the one they wait for");
    assert_eq!((due[0].retry_count, due[0].status), (1, OutboxStatus::Retry));
    record(&*store, &lease, &channel, moment(10), &[result(&due[0], retry(moment(20), true))]).await;
    assert_eq!(claim(&*store, &channel, moment(19)).await, [], "it failed again: everything waits on");

    let due = claim(&*store, &channel, moment(20)).await;
    assert_eq!((versions(&due), due[0].retry_count), (vec![2], 2));
    record_sent(&*store, &lease, &channel, moment(20), &due).await;
    let rest = claim(&*store, &channel, moment(20)).await;
    assert_eq!(versions(&rest), [3, 4, 5], "the rest follows in order");
    assert_eq!(row_of(&*store, &rest[0]).await.parked_at, None);
    record_sent(&*store, &lease, &channel, moment(21), &rest).await;
    write(&*store, &stuck, 5..6, &channel).await;
    assert_eq!(versions(&claim(&*store, &channel, moment(22)).await), [6], "the lane is open again");
}

/// A row that was being written while its lane was parked waits like the others.
pub async fn a_row_written_while_its_lane_is_parked_waits_too(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let order = new_order();
    write(&*store, &order, 0..1, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;

    let writer = fixture.store().await;
    let mut tx = writer.begin().await.expect("begin");
    let facts = OrderFacts::about(&order, 1).noted("meanwhile").routed(std::slice::from_ref(&channel));
    tx.append(&facts.append()).await.expect("append");
    let parking = {
        let (store, lease, channel) = (Arc::clone(&store), lease.clone(), channel.clone());
        let results = vec![result(&items[0], retry(moment(10), true))];
        tokio::spawn(async move {
            taking_turns(|| store.record_outbox(std::slice::from_ref(&lease), &channel, moment(2), &results))
                .await
        })
    };
    // An adapter may let the parking wait for the writer, or not: both orders must end the same way.
    fair_chance(&parking).await;
    tx.commit().await.expect("commit");
    answer_of(parking).await.expect("record the retry");

    assert_eq!(claim(&*store, &channel, moment(9)).await, [], "it waits behind the one that failed");
    let due = claim(&*store, &channel, moment(10)).await;
    assert_eq!(versions(&due), [1]);
    record_sent(&*store, &lease, &channel, moment(10), &due).await;
    assert_eq!(versions(&claim(&*store, &channel, moment(10)).await), [2]);
}

/// A row that is written while the row its lane waits for is being sent is not forgotten.
pub async fn a_row_written_while_its_lane_is_unparked_is_not_forgotten(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    for _ in 0..10 {
        let order = new_order();
        write(&*store, &order, 0..1, &channel).await;
        let items = claim(&*store, &channel, moment(1)).await;
        record(&*store, &lease, &channel, moment(1), &[result(&items[0], retry(moment(2), true))]).await;
        let due = claim(&*store, &channel, moment(2)).await;
        let facts = OrderFacts::about(&order, 1).noted("meanwhile").routed(std::slice::from_ref(&channel));
        let (facts, writer) = (facts.append(), fixture.store().await);
        let writing = tokio::spawn(async move {
            taking_turns(|| try_append(&*writer, &facts)).await.expect("append");
        });
        let results = [result(&due[0], OutboxOutcome::Sent)];
        taking_turns(|| store.record_outbox(std::slice::from_ref(&lease), &channel, moment(2), &results))
            .await
            .expect("record");
        answer_of(writing).await;
        let rest = claim(&*store, &channel, moment(3)).await;
        assert_eq!(of(&rest, &order), [2], "it goes out");
        record_sent(&*store, &lease, &channel, moment(3), &rest).await;
    }
}

/// One relay comes across rows behind a parked one while another sends that one, with either of them standing still
/// between any two statements: the rows go out afterwards.
pub async fn rows_set_aside_while_their_lane_opens_are_not_forgotten(fixture: &impl StoreFixture) {
    let (store, lease, _) = open(fixture).await;
    for claimer_pauses in [true, false] {
        for pause_at in 0.. {
            let probe = Arc::new(PauseProbe::new(pause_at));
            let slow = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
            let (order, channel) = (new_order(), new_channel());
            write(&*store, &order, 0..3, &channel).await;
            let items = claim(&*store, &channel, moment(1)).await;
            record(&*store, &lease, &channel, moment(1), &[result(&items[0], retry(moment(3), true))]).await;

            let (claimer, sender) = if claimer_pauses { (&slow, &store) } else { (&store, &slow) };
            let claiming = {
                let (claimer, channel, partitions) = (Arc::clone(claimer), channel.clone(), all_partitions());
                async move {
                    let claim = OutboxClaim {
                        channel: &channel,
                        partitions: &partitions,
                        limit: 10,
                        now: moment(2),
                        room: ClaimRoom::UNLIMITED,
                    };
                    taking_turns(|| claimer.claim_outbox(&claim)).await.map(drop)
                }
            };
            let sending = {
                let (sender, lease, channel) = (Arc::clone(sender), lease.clone(), channel.clone());
                let results = [result(&items[0], OutboxOutcome::Sent)];
                async move {
                    taking_turns(|| {
                        sender.record_outbox(std::slice::from_ref(&lease), &channel, moment(2), &results)
                    })
                    .await
                }
            };
            let (first, second, paused) = if claimer_pauses {
                interleave(&probe, claiming, sending).await
            } else {
                interleave(&probe, sending, claiming).await
            };
            first.expect("the one that stood still");
            second.expect("the one that did not");

            let rest = drain(&*store, &lease, &channel, moment(4)).await;
            let who = if claimer_pauses { "claimer" } else { "sender" };
            assert_eq!(versions(&rest), [2, 3], "the {who} paused before statement {pause_at}");
            if !paused {
                break;
            }
        }
    }
}

/// A retry that does not keep order: later rows pass it, and it comes when it is due.
pub async fn a_retry_without_parking_lets_later_rows_pass(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let order = new_order();
    write(&*store, &order, 0..2, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    record(&*store, &lease, &channel, moment(2), &[result(&items[0], retry(moment(10), false))]).await;
    write(&*store, &order, 2..3, &channel).await;
    let passing = claim(&*store, &channel, moment(9)).await;
    assert_eq!(versions(&passing), [2, 3]);
    record_sent(&*store, &lease, &channel, moment(9), &passing).await;
    let due = claim(&*store, &channel, moment(10)).await;
    assert_eq!((versions(&due), due[0].retry_count), (vec![1], 1));
    record_sent(&*store, &lease, &channel, moment(10), &due).await;
    assert_eq!(claim(&*store, &channel, moment(1_000)).await, []);
}

/// A row that was given up stops its lane until an operator reopens it; then it comes first and alone, with its
/// attempts forgotten, and the rest follows.
pub async fn a_failed_row_parks_its_lane_until_it_is_reopened(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let (stuck, free) = (new_order(), new_order());
    write(&*store, &stuck, 0..3, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    record(&*store, &lease, &channel, moment(1), &[result(&items[0], retry(moment(2), true))]).await;
    let due = claim(&*store, &channel, moment(2)).await;
    record(&*store, &lease, &channel, moment(2), &[result(&due[0], given_up(true))]).await;
    write(&*store, &stuck, 3..4, &channel).await;
    write(&*store, &free, 0..1, &channel).await;
    let others = claim(&*store, &channel, moment(1_000_000)).await;
    assert_eq!(
        (of(&others, &stuck), of(&others, &free)),
        (vec![], vec![1]),
        "the lane stands still, the other not"
    );
    let row = row_of(&*store, &items[0]).await;
    assert_eq!((row.status, row.status_changed_at), (OutboxStatus::Failed, moment(2)));
    assert_eq!(row.status_reason.as_deref(), Some("no-route"));
    record_sent(&*store, &lease, &channel, moment(3), &others).await;

    assert_eq!(store.reopen_outbox(&[items[0].outbox_id], moment(5)).await.expect("reopen"), 1);
    assert_eq!(store.reopen_outbox(&[items[0].outbox_id], moment(5)).await.expect("reopen"), 0, "once");
    let row = row_of(&*store, &items[0]).await;
    assert_eq!((row.status, row.retry_count, row.next_retry_at), (OutboxStatus::Retry, 0, Some(moment(5))));
    let due = claim(&*store, &channel, moment(5)).await;
    assert_eq!((versions(&due), due[0].retry_count), (vec![1], 0));
    record_sent(&*store, &lease, &channel, moment(5), &due).await;
    assert_eq!(versions(&drain(&*store, &lease, &channel, moment(5)).await), [2, 3, 4]);
}

/// A row that was given up without keeping order leaves its lane open, and can be reopened too.
pub async fn a_failed_row_without_parking_lets_its_lane_go_on(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let order = new_order();
    write(&*store, &order, 0..2, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    record(&*store, &lease, &channel, moment(1), &[result(&items[0], given_up(false))]).await;
    assert_eq!(versions(&drain(&*store, &lease, &channel, moment(1_000)).await), [2]);
    assert_eq!(store.reopen_outbox(&[items[0].outbox_id], moment(5)).await.expect("reopen"), 1);
    assert_eq!(versions(&drain(&*store, &lease, &channel, moment(5)).await), [1]);
    assert_eq!(store.reopen_outbox(&[], moment(6)).await.expect("reopen nothing"), 0);
}

/// A row that parked its lane fails again, and this time order need not be kept: whoever waited for it waits no longer.
pub async fn a_parked_row_that_need_not_be_waited_for_opens_its_lane(fixture: &impl StoreFixture) {
    for outcome in [retry(moment(1_000), false), given_up(false)] {
        let (store, lease, channel) = open(fixture).await;
        let order = new_order();
        write(&*store, &order, 0..3, &channel).await;
        let items = claim(&*store, &channel, moment(1)).await;
        record(&*store, &lease, &channel, moment(1), &[result(&items[0], retry(moment(10), true))]).await;
        assert_eq!(claim(&*store, &channel, moment(9)).await, [], "the lane waits");
        let due = claim(&*store, &channel, moment(10)).await;
        assert_eq!(versions(&due), [1]);
        record(&*store, &lease, &channel, moment(10), &[result(&due[0], outcome.clone())]).await;
        write(&*store, &order, 3..4, &channel).await;
        let rest = drain(&*store, &lease, &channel, moment(11)).await;
        assert_eq!(versions(&rest), [2, 3, 4], "{outcome:?}");
    }
}

/// The same aggregate on two channels: a stuck channel does not stop the other.
pub async fn a_parked_lane_is_parked_on_its_channel_only(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let other = new_channel();
    let order = new_order();
    for version in 0..2 {
        let facts = OrderFacts::about(&order, version).noted("row").routed(&[channel.clone(), other.clone()]);
        append(&*store, &facts.append()).await;
    }
    let items = claim(&*store, &channel, moment(1)).await;
    record(&*store, &lease, &channel, moment(1), &[result(&items[0], given_up(true))]).await;
    assert_eq!(claim(&*store, &channel, moment(2)).await, []);
    assert_eq!(versions(&drain(&*store, &lease, &other, moment(2)).await), [1, 2]);
}

/// A hundred aggregates, one of them poisoned: the other ninety-nine drain, in order.
pub async fn one_poisoned_lane_stalls_no_other(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let orders: Vec<_> = (0..100).map(|_| new_order()).collect();
    for order in &orders {
        let facts = (0..3).fold(OrderFacts::about(order, 0), |facts, _| facts.noted("row"));
        append(&*store, &facts.routed(std::slice::from_ref(&channel)).append()).await;
    }
    let poisoned = orders[0].lane();
    let mut sent: BTreeMap<Lane, Vec<Version>> = BTreeMap::new();
    let mut failures = 0;
    loop {
        let items = claim_from(&*store, &channel, &all_partitions(), 50).await;
        if items.is_empty() {
            break;
        }
        let mut results = Vec::new();
        let mut parked = BTreeSet::new();
        for item in &items {
            if item.lane == poisoned {
                if parked.insert(item.lane) {
                    failures += 1;
                    // Due at once, and for ever failing: the worst that can happen to the others.
                    let outcome = if failures < 5 { retry(moment(1), true) } else { given_up(true) };
                    results.push(result(item, outcome));
                }
            } else {
                sent.entry(item.lane).or_default().push(item.event.aggregate_version);
                results.push(result(item, OutboxOutcome::Sent));
            }
        }
        record(&*store, &lease, &channel, moment(1), &results).await;
    }
    assert_eq!(failures, 5);
    assert_eq!(sent.len(), 99, "everyone but the poisoned one");
    assert!(sent.values().all(|versions| *versions == [1, 2, 3]), "each in order and once: {sent:?}");
    let counts = store.outbox_counts(&channel).await.expect("counts");
    assert_eq!((counts.of(OutboxStatus::Sent), counts.of(OutboxStatus::Failed)), (297, 1));
    assert_eq!(counts.of(OutboxStatus::New), 2, "what waits behind it is still there");
}

/// The counts are those of the rows, per channel.
pub async fn outbox_counts_follow_the_statuses(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    assert_eq!(store.outbox_counts(&channel).await.expect("counts").of(OutboxStatus::New), 0);
    for _ in 0..4 {
        write(&*store, &new_order(), 0..1, &channel).await;
    }
    write(&*store, &new_order(), 0..1, &new_channel()).await;
    let items = claim(&*store, &channel, moment(1)).await;
    let results = [
        result(&items[0], OutboxOutcome::Sent),
        result(&items[1], retry(moment(9), true)),
        result(&items[2], given_up(true)),
    ];
    record(&*store, &lease, &channel, moment(1), &results).await;
    let counts = store.outbox_counts(&channel).await.expect("counts");
    for status in [OutboxStatus::New, OutboxStatus::Sent, OutboxStatus::Retry, OutboxStatus::Failed] {
        assert_eq!(counts.of(status), 1, "{status}");
    }
    record(&*store, &lease, &channel, moment(1), &[]).await;
}

/// Recording and reopening under contention, from two instances that hold different partitions, loses nothing.
pub async fn two_relays_with_their_own_partitions_deliver_everything_once(fixture: &impl StoreFixture) {
    let (store, _, channel) = open(fixture).await;
    for _ in 0..40 {
        let facts = OrderFacts::of_new_order().placed().paid().routed(std::slice::from_ref(&channel));
        append(&*store, &facts.append()).await;
    }
    let (low, high): (Vec<u16>, Vec<u16>) =
        all_partitions().into_iter().partition(|partition| *partition < 32);
    let mut relays = Vec::new();
    for partitions in [low, high] {
        let (store, channel) = (fixture.store().await, channel.clone());
        let lease = hold_new_lease(&*store).await;
        relays.push(async move {
            let mut sent: Vec<(Lane, Version)> = Vec::new();
            loop {
                let items = claim_from(&*store, &channel, &partitions, 5).await;
                if items.is_empty() {
                    return sent;
                }
                let results: Vec<_> = items.iter().map(|item| result(item, OutboxOutcome::Sent)).collect();
                let recorded = taking_turns(|| {
                    store.record_outbox(std::slice::from_ref(&lease), &channel, moment(2), &results)
                });
                recorded.await.expect("record");
                sent.extend(items.iter().map(|item| (item.lane, item.event.aggregate_version)));
            }
        });
    }
    let sent = all_at_once(relays).await.concat();
    assert_eq!(sent.len(), 80, "each once");
    let mut lanes: BTreeMap<Lane, Vec<Version>> = BTreeMap::new();
    for (lane, version) in sent {
        lanes.entry(lane).or_default().push(version);
    }
    assert!(lanes.values().all(|versions| *versions == [1, 2]), "each lane in order: {lanes:?}");
}

/// Given-up rows are listed, counted and put back by a filter; what does not fit stays.
pub async fn given_up_rows_are_put_back_by_a_filter(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let elsewhere = new_channel();
    let both = [channel.clone(), elsewhere.clone()];
    append(&*store, &OrderFacts::of_new_order().placed().paid().routed(&both).append()).await;
    append(&*store, &OrderFacts::of_new_order().placed().routed(&both).append()).await;
    for (name, reason, at) in [(&channel, "no-route", 10), (&elsewhere, "refused", 20)] {
        let outcome = OutboxOutcome::Failed {
            reason: reason.to_owned(),
            message: "it said no".to_owned(),
            park: false,
        };
        let items = claim(&*store, name, moment(1)).await;
        let results: Vec<_> = items.iter().map(|item| result(item, outcome.clone())).collect();
        record(&*store, &lease, name, moment(at), &results).await;
    }

    let all = FailedFilter::default();
    let of_channel = FailedFilter { channel: Some(channel.clone()), ..all.clone() };
    let placed_type = store.failed_outbox(&all, 0, 1).await.expect("list")[0].event.event_type.to_string();
    let placed = FailedFilter { event_type: Some(placed_type), ..all.clone() };
    let refused = FailedFilter { reason: Some("refused".to_owned()), ..all.clone() };
    let early = FailedFilter { failed_before: Some(moment(20)), ..all.clone() };
    let late = FailedFilter { failed_since: Some(moment(20)), ..all.clone() };
    let none = FailedFilter { failed_since: Some(moment(20)), ..of_channel.clone() };
    let filters =
        [(&all, 6), (&of_channel, 3), (&placed, 4), (&refused, 3), (&early, 3), (&late, 3), (&none, 0)];
    for (filter, expected) in filters {
        assert_eq!(store.count_failed(filter).await.expect("count"), expected, "{filter:?}");
        let listed = store.failed_outbox(filter, 0, 100).await.expect("list");
        assert_eq!(listed.len() as u64, expected, "{filter:?}");
        assert!(listed.is_sorted_by_key(|failed| failed.row.outbox_id));
        assert!(listed.iter().all(|failed| failed.row.event_id == failed.event.event_id));
    }
    let first = store.failed_outbox(&all, 0, 4).await.expect("list");
    let rest = store.failed_outbox(&all, first[3].row.outbox_id, 4).await.expect("list");
    assert_eq!((first.len(), rest.len()), (4, 2), "a page, and what is behind it");

    assert_eq!(
        store.reopen_failed(&of_channel, 2, moment(30)).await.expect("reopen"),
        2,
        "no more than asked"
    );
    assert_eq!(store.reopen_failed(&of_channel, 2, moment(30)).await.expect("reopen"), 1);
    assert_eq!(store.reopen_failed(&of_channel, 2, moment(30)).await.expect("reopen"), 0);
    assert_eq!(claim(&*store, &channel, moment(30)).await.len(), 3);
    assert_eq!(claim(&*store, &elsewhere, moment(30)).await, [], "the others wait for their operator");
}

/// Clean-up deletes what was sent long enough ago, page by page, and nothing else; not under a stale lease.
pub async fn rows_sent_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    for _ in 0..3 {
        write(&*store, &new_order(), 0..4, &channel).await;
    }
    let items = claim(&*store, &channel, moment(1)).await;
    record_sent(&*store, &lease, &channel, moment(10), &items[..6]).await;
    record_sent(&*store, &lease, &channel, moment(20), &items[6..8]).await;
    record(&*store, &lease, &channel, moment(2), &[result(&items[8], given_up(false))]).await;
    let left = || async { store.outbox_counts(&channel).await.expect("count") };

    let (stale, _) = super::acts::stale_and_fresh(&*store).await;
    let refused = store.clean_outbox(&stale, moment(20), 100).await;
    super::acts::assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    assert_eq!(left().await.of(OutboxStatus::Sent), 8);

    let (mut deleted, mut pages) = (0, 0);
    loop {
        let page = store.clean_outbox(&lease, moment(20), 4).await.expect("clean");
        if page == 0 {
            break;
        }
        (deleted, pages) = (deleted + page, pages + 1);
    }
    assert!(pages >= 2, "a page is no more than was asked for");
    assert_eq!(deleted, 6);
    let counts = left().await;
    assert_eq!(counts.of(OutboxStatus::Sent), 2, "sent too recently");
    assert_eq!((counts.of(OutboxStatus::New), counts.of(OutboxStatus::Failed)), (3, 1), "not sent");
    let unsent = claim(&*store, &channel, moment(30)).await;
    assert_eq!(unsent, items[9..], "what waits still goes out");
}

/// However many rows were given up and wait for an operator: the cleaner comes to those behind them at once.
pub async fn cleaning_does_not_walk_over_what_must_stay(fixture: &impl StoreFixture) {
    let probe = Arc::new(crate::probe::CountingProbe::new());
    let store = fixture.store_with_probe(Arc::clone(&probe) as _).await;
    let (lease, channel) = (hold_new_lease(&*store).await, new_channel());
    write(&*store, &new_order(), 0..64, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    let given_up: Vec<_> = items[..60].iter().map(|item| result(item, given_up(false))).collect();
    record(&*store, &lease, &channel, moment(2), &given_up).await;
    record_sent(&*store, &lease, &channel, moment(3), &items[60..]).await;
    probe.take();
    assert_eq!(store.clean_outbox(&lease, moment(20), 10).await.expect("clean"), 4);
    let statements = probe.take();
    assert!(statements.len() <= 10, "{statements:?}");
    assert_eq!(store.clean_outbox(&lease, moment(20), 10).await.expect("clean"), 0);
    let counts = store.outbox_counts(&channel).await.expect("count");
    assert_eq!((counts.of(OutboxStatus::Sent), counts.of(OutboxStatus::Failed)), (0, 60));
}

/// However many rows were sent long after they were written, and are young: what is old behind them is deleted. Perhaps not
/// in one go.
pub async fn what_was_sent_late_does_not_hide_what_is_old(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    write(&*store, &new_order(), 0..40, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    record_sent(&*store, &lease, &channel, moment(30), &items[..33]).await;
    record_sent(&*store, &lease, &channel, moment(10), &items[33..39]).await;
    let mut deleted = 0;
    for _ in 0..20 {
        deleted += store.clean_outbox(&lease, moment(20), 2).await.expect("clean");
    }
    assert_eq!(deleted, 6);
    let counts = store.outbox_counts(&channel).await.expect("count");
    assert_eq!((counts.of(OutboxStatus::Sent), counts.of(OutboxStatus::New)), (33, 1));
}

/// Rows that waited behind a given-up one for long come back by another instance's doing: everybody finds them, before what
/// was written since.
pub async fn rows_that_come_back_are_found_by_everybody_in_order(fixture: &impl StoreFixture) {
    let (store, lease, channel) = open(fixture).await;
    let other = fixture.store().await;
    let order = new_order();
    write(&*store, &order, 0..3, &channel).await;
    let items = claim(&*store, &channel, moment(1)).await;
    record(&*store, &lease, &channel, moment(1), &[result(&items[0], given_up(true))]).await;
    write(&*store, &new_order(), 0..3, &channel).await;
    assert_eq!(drain_for_a_while(&*store, &lease, &channel, moment(9)).await.len(), 3, "the others go on");

    assert_eq!(other.reopen_outbox(&[items[0].outbox_id], moment(9)).await.expect("reopen"), 1);
    let due = claim(&*store, &channel, moment(10)).await;
    assert_eq!(versions(&due), [1], "what was reopened elsewhere is found here");
    record_sent(&*other, &lease, &channel, moment(10), &due).await;
    write(&*other, &order, 3..4, &channel).await;
    let rest = claim(&*store, &channel, moment(11)).await;
    assert_eq!(versions(&rest), [2, 3, 4], "and what waited behind it, in order");

    // The same without order: nothing is parked, and the row alone comes back.
    record_sent(&*store, &lease, &channel, moment(11), &rest[..2]).await;
    record(&*store, &lease, &channel, moment(11), &[result(&rest[2], given_up(false))]).await;
    assert_eq!(drain_for_a_while(&*store, &lease, &channel, moment(12)).await, []);
    assert_eq!(other.reopen_outbox(&[rest[2].outbox_id], moment(12)).await.expect("reopen"), 1);
    assert_eq!(versions(&claim(&*store, &channel, moment(13)).await), [4]);
}

async fn open(fixture: &impl StoreFixture) -> (Arc<dyn InspectedStore>, LeaseGrant, ChannelName) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    (store, lease, new_channel())
}

/// Appends one event for each of these versions.
async fn write(
    store: &dyn InspectedStore,
    order: &AggregateKey,
    versions: std::ops::Range<Version>,
    channel: &ChannelName,
) {
    for version in versions {
        let facts = OrderFacts::about(order, version).noted("row").routed(std::slice::from_ref(channel));
        append(store, &facts.append()).await;
    }
}

async fn claim_from(
    store: &dyn InspectedStore,
    channel: &ChannelName,
    partitions: &[u16],
    limit: u32,
) -> Vec<OutboxItem> {
    let claim = OutboxClaim { channel, partitions, limit, now: moment(1), room: ClaimRoom::UNLIMITED };
    store.claim_outbox(&claim).await.expect("claim outbox rows")
}

async fn row_of(store: &dyn InspectedStore, item: &OutboxItem) -> OutboxRow {
    let rows = store.outbox_of(item.event.event_id).await.expect("outbox_of");
    rows.into_iter().find(|row| row.outbox_id == item.outbox_id).expect("the row is there")
}

fn of(items: &[OutboxItem], order: &AggregateKey) -> Vec<Version> {
    let of_order = items.iter().filter(|item| item.event.aggregate == *order);
    of_order.map(|item| item.event.aggregate_version).collect()
}

/// Per lane, the items are the next versions without a hole.
fn assert_prefixes(items: &[OutboxItem]) {
    let mut lanes: BTreeMap<Lane, Version> = BTreeMap::new();
    for item in items {
        let version = lanes.entry(item.lane).or_default();
        *version += 1;
        assert_eq!(item.event.aggregate_version, *version, "a row came before an earlier one of its lane");
    }
}
