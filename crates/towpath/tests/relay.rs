//! The relay on each database, to a real RabbitMQ: committed events arrive, in order, and nothing is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use support::place::{Inbox, Place, facts_in, place, versions};
use support::probe::{Gate, ProbeAt};
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::{AggregateKey, ChannelName, LeaseName};
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::Broker;
use towpath::ports::store::{
    ClaimRoom, FailedFilter, Inspection as _, OutboxClaim, OutboxOutcome, OutboxResult,
};
use towpath::retry::RetryPolicy;
use towpath::{Channel, ChannelPolicy, Coded as _, StoreOptions, Towpath};
use towpath_testkit::CountingProbe;

on_every_database!(
    committed_events_arrive_in_order_and_are_marked_sent,
    an_unroutable_event_parks_its_aggregate_only_and_goes_on_when_reopened,
    two_instances_share_the_partitions_and_one_takes_over_all,
    channels_whose_names_begin_alike_have_all_partitions_each,
    a_poisoned_aggregate_with_a_long_queue_keeps_nobody_waiting,
    rows_that_fail_together_are_written_together,
    a_broker_that_is_away_holds_nothing_up_and_loses_nothing,
    what_never_left_uses_up_no_attempt,
    a_partition_that_was_taken_over_takes_only_its_own_results_with_it,
    sharing_out_anew_publishes_nothing_twice,
    a_partition_with_rows_in_flight_is_not_given_away,
    an_operator_finds_what_was_given_up_and_sends_it_again,
    what_may_have_been_published_long_ago_is_put_back_by_force_only,
    what_was_sent_long_ago_is_cleaned_up,
);

async fn committed_events_arrive_in_order_and_are_marked_sent(fresh: &Fresh) {
    let place_of_test = Place::new();
    let app = place_of_test.app(fresh).start().await.unwrap();
    let inbox = place_of_test.receive().await;
    let mut committed = Vec::new();
    for round in 0..5 {
        for id in ["o-1", "o-2", "o-3"] {
            let command =
                if round == 0 { OrderCommand::Place { sku: "book".into() } } else { OrderCommand::Note };
            committed.extend(app.send::<Order>(id, command).await.unwrap().events);
        }
    }
    let received = inbox.take(15).await;
    assert!(
        versions(&received).values().all(|versions| *versions == [1, 2, 3, 4, 5]),
        "{:?}",
        versions(&received)
    );
    for event in &committed {
        let message =
            received.iter().find(|message| message.message_id == Some(event.event_id.to_string())).unwrap();
        assert_eq!(message.message_type.as_deref(), Some(event.event_type.as_str()));
        assert_eq!(serde_json::from_slice::<towpath::EventEnvelope>(&message.body).unwrap(), *event);
    }
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 15).then_some(()) })
        .await;
    app.stop().await;
}

async fn an_unroutable_event_parks_its_aggregate_only_and_goes_on_when_reopened(fresh: &Fresh) {
    let place_of_test = Place::new();
    // Nothing is bound: what the first order says goes nowhere.
    let app = place_of_test.app_unbound(fresh, Place::policy()).start().await.unwrap();
    place(&app, "stuck").await;
    app.send::<Order>("stuck", OrderCommand::Note).await.unwrap();
    eventually("it is given up", || async {
        (facts_in(&app, OutboxStatus::Failed).await == 1).then_some(())
    })
    .await;
    assert_eq!(facts_in(&app, OutboxStatus::New).await, 1, "the one behind it was not tried");
    let head =
        app.events_of(&towpath::ids::AggregateKey::new("order", "stuck").unwrap(), 0, 1).await.unwrap();
    let row = app.store().outbox_of(head[0].envelope.event_id).await.unwrap();
    let row = row.iter().find(|row| row.channel.as_str() == "facts").unwrap();
    assert_eq!((row.status_reason.as_deref(), row.retry_count), (Some("unroutable"), 3));

    // Now the queue is bound. Another order goes out; the stuck one waits for an operator.
    let inbox = place_of_test.receive().await;
    place_of_test.broker().declare(&place_of_test.topology(true)).await.unwrap();
    place(&app, "free").await;
    assert_eq!(versions(&inbox.take(1).await).keys().collect::<Vec<_>>(), ["free"]);
    app.store().reopen_outbox(&[row.outbox_id], chrono::Utc::now()).await.unwrap();
    assert_eq!(versions(&inbox.take(2).await)["stuck"], [1, 2]);
    app.stop().await;
}

/// The versions that came, by aggregate, each where it came first, until there are so many.
async fn firsts(inbox: &Inbox, count: usize) -> BTreeMap<String, Vec<u64>> {
    let mut firsts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    while firsts.values().map(Vec::len).sum::<usize>() < count {
        for (id, versions) in versions(&inbox.take(1).await) {
            let seen = firsts.entry(id).or_default();
            seen.extend(versions.into_iter().filter(|version| !seen.contains(version)).collect::<Vec<_>>());
        }
    }
    firsts
}

/// How many partitions an instance holds.
async fn held_by(app: &Towpath) -> usize {
    let leases = app.store().leases("partition/").await.unwrap();
    leases.iter().filter(|lease| lease.live && lease.holder == *app.instance()).count()
}

/// The id of an order whose lane lies in a partition.
fn order_in_partition(wanted: u16) -> String {
    let mut ids = (0..).map(|number| format!("o-{number}"));
    ids.find(|id| AggregateKey::new("order", id).unwrap().lane().partition() == wanted).unwrap()
}

async fn two_instances_share_the_partitions_and_one_takes_over_all(fresh: &Fresh) {
    let place_of_test = Place::new();
    let first = place_of_test.app(fresh).start().await.unwrap();
    let second = place_of_test.app(fresh).start().await.unwrap();
    let inbox = place_of_test.receive().await;
    eventually("a fair share each", || async {
        (held_by(&first).await == 32 && held_by(&second).await == 32).then_some(())
    })
    .await;
    for number in 0..40 {
        place(&first, &format!("o-{number}")).await;
    }
    // Whoever relays them, all come; twice, where somebody was slow and the other has taken over.
    let mut came = BTreeSet::new();
    while came.len() < 40 {
        came.extend(versions(&inbox.take(1).await).into_keys());
    }
    first.stop().await;
    eventually("the other has all", || async { (held_by(&second).await == 64).then_some(()) }).await;
    for number in 40..60 {
        place(&second, &format!("o-{number}")).await;
    }
    while came.len() < 60 {
        came.extend(versions(&inbox.take(1).await).into_keys());
    }
    second.stop().await;
}

async fn channels_whose_names_begin_alike_have_all_partitions_each(fresh: &Fresh) {
    // As long as names may be: the lease that says who relays what has both in it.
    let (short, long) = ("e".repeat(32), format!("{}/{}", "e".repeat(32), "u".repeat(31)));
    let channel = |name: &str| Channel::named(name, ["order.*"]).map(Channel::published);
    // The longer name first: its lease is there when the shorter one's are counted.
    let app = fresh.builder().channel(channel(&long)).channel(channel(&short)).instance(&"i".repeat(64));
    let app = app.start().await.unwrap();
    eventually("both have all", || async { (held_by(&app).await == 128).then_some(()) }).await;
    app.stop().await;
}

async fn a_poisoned_aggregate_with_a_long_queue_keeps_nobody_waiting(fresh: &Fresh) {
    let place_of_test = Place::new();
    let writing = place_of_test.app(fresh).without_workers().start().await.unwrap();
    let (poisoned, beside) = (order_in_partition(0), order_in_partition(1));
    place(&writing, &poisoned).await;
    place(&writing, &beside).await;
    let facts = ChannelName::new("facts").unwrap();
    let lease = LeaseName::new("partition/facts/00").unwrap();
    let store = writing.store();
    let grant =
        store.acquire_lease(&lease, writing.instance(), Duration::from_secs(60)).await.unwrap().unwrap();
    let claim = OutboxClaim {
        channel: &facts,
        partitions: &[0],
        limit: 1,
        now: chrono::Utc::now(),
        room: ClaimRoom::UNLIMITED,
    };
    let head = store.claim_outbox(&claim).await.unwrap().remove(0);
    let outcome = OutboxOutcome::Failed { reason: "poisoned".to_owned(), message: String::new(), park: true };
    let (outbox_id, event_id, lane) = (head.outbox_id, head.event.event_id, head.lane);
    let results = [OutboxResult { outbox_id, event_id, lane, outcome }];
    store.record_outbox(std::slice::from_ref(&grant), &facts, chrono::Utc::now(), &results).await.unwrap();
    store.release_lease(&grant).await.unwrap();
    for _ in 1..20 {
        for id in [&poisoned, &poisoned, &poisoned, &beside] {
            writing.send::<Order>(id, OrderCommand::Note).await.unwrap();
        }
    }

    // Each look sees many rows that wait and few that do not. Who rests after one of them rests for a minute.
    let policy = ChannelPolicy { batch: 10, scan: Duration::from_secs(60), ..Place::policy() };
    let inbox = place_of_test.receive().await;
    let relaying = place_of_test.app_with(fresh, policy).start().await.unwrap();
    let received = versions(&inbox.take(20).await);
    assert_eq!(received[&beside], (1..=20).collect::<Vec<u64>>());
    assert_eq!(received.len(), 1, "the poisoned one waits for an operator");
    relaying.stop().await;
    writing.stop().await;
}

async fn rows_that_fail_together_are_written_together(fresh: &Fresh) {
    let place_of_test = Place::new();
    let writing = place_of_test.app_unbound(fresh, Place::policy()).without_workers().start().await.unwrap();
    for number in 0..40 {
        place(&writing, &format!("o-{number}")).await;
    }
    let statements = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: statements.clone(), ..StoreOptions::default() };
    let minutes = Duration::from_secs(600);
    let retries =
        RetryPolicy::Exponential { first: minutes, factor: 1.0, cap: minutes, attempts: 5, jitter: 0.5 };
    let policy = ChannelPolicy { retries, scan: Duration::from_secs(60), ..Place::policy() };
    let relaying = place_of_test.app_unbound(fresh, policy).store_options(options).start().await.unwrap();
    eventually("all are to be tried again", || async {
        (facts_in(&writing, OutboxStatus::Retry).await == 40).then_some(())
    })
    .await;
    let written = statements.take().iter().filter(|name| **name == "outbox.record").count();
    assert!(written <= 8, "a statement for each batch of a shaft, not {written}");
    relaying.stop().await;
    writing.stop().await;
}

async fn a_broker_that_is_away_holds_nothing_up_and_loses_nothing(fresh: &Fresh) {
    let direct = Place::new();
    let (place_of_test, proxy) = direct.behind_a_proxy().await;
    let policy = ChannelPolicy {
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(100); 100]),
        patience: Duration::from_millis(500),
        ..Place::policy()
    };
    let looks = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: looks.clone(), ..StoreOptions::default() };
    let app = place_of_test.app_with(fresh, policy).store_options(options).start().await.unwrap();
    let inbox = direct.receive().await;
    // The line is open and known to be good: what is sent on it then may or may not arrive.
    place(&app, "o-0").await;
    eventually("it is SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 1).then_some(()) })
        .await;

    proxy.hold_everything();
    for number in 1..6 {
        place(&app, &format!("o-{number}")).await;
        app.send::<Order>(format!("o-{number}"), OrderCommand::Note).await.unwrap();
    }
    looks.take();
    let mut seen = 0;
    eventually("publishing is being tried", || {
        seen += looks.take().iter().filter(|name| **name == "outbox.look").count();
        async move { (seen > 12).then_some(()) }
    })
    .await;
    assert_eq!(
        facts_in(&app, OutboxStatus::New).await,
        10,
        "that nothing is confirmed is no fault of theirs"
    );
    proxy.cut();
    proxy.heal();
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 11).then_some(()) })
        .await;
    // What was on its way when the line was cut may come twice; the first of each comes in order.
    let mut came = firsts(&inbox, 11).await;
    assert_eq!(came.remove("o-0"), Some(vec![1]));
    assert!(came.values().all(|versions| *versions == [1, 2]), "{came:?}");
    app.stop().await;
}

async fn what_never_left_uses_up_no_attempt(fresh: &Fresh) {
    let direct = Place::new();
    let (place_of_test, proxy) = direct.behind_a_proxy().await;
    let looks = Arc::new(CountingProbe::new());
    // Only who was woken looks, and who was sent away looks again.
    let (patience, scan) = (Duration::from_millis(500), Duration::from_secs(60));
    let retries = RetryPolicy::Fixed(vec![Duration::ZERO; 100]);
    let policy = ChannelPolicy { patience, scan, retries, ..Place::policy() };
    let options = StoreOptions { probe: looks.clone(), ..StoreOptions::default() };
    let app = place_of_test.app_with(fresh, policy).store_options(options).start().await.unwrap();
    let inbox = direct.receive().await;

    // Nothing has been published yet, so there is no line on which something could be under way.
    proxy.hold_everything();
    proxy.cut();
    for number in 0..3 {
        place(&app, &format!("o-{number}")).await;
        app.send::<Order>(format!("o-{number}"), OrderCommand::Note).await.unwrap();
    }
    looks.take();
    let mut seen = 0;
    // A row that used up an attempt would be one to be tried again.
    eventually("many attempts", || {
        seen += looks.take().iter().filter(|name| **name == "outbox.look").count();
        async move { (seen > 12).then_some(()) }
    })
    .await;
    assert_eq!(facts_in(&app, OutboxStatus::New).await, 6, "nothing has happened to any row");
    for number in 0..3 {
        let key = AggregateKey::new("order", format!("o-{number}")).unwrap();
        for event in app.events_of(&key, 0, 10).await.unwrap() {
            let rows = app.store().outbox_of(event.envelope.event_id).await.unwrap();
            assert!(rows.iter().all(|row| row.retry_count == 0), "{rows:?}");
        }
    }
    proxy.cut();
    proxy.heal();
    // From here on they leave, and what is confirmed late comes twice.
    let came = firsts(&inbox, 6).await;
    assert!(came.values().all(|versions| *versions == [1, 2]), "{came:?}");
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 6).then_some(()) })
        .await;
    app.stop().await;
}

async fn a_partition_that_was_taken_over_takes_only_its_own_results_with_it(fresh: &Fresh) {
    let place_of_test = Place::new();
    let gate = Gate::default();
    let probe = Arc::new(ProbeAt::new("outbox.look", gate.clone()));
    let policy = ChannelPolicy { scan: Duration::from_secs(60), ..Place::policy() };
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let builder = place_of_test.app_with(fresh, policy).store_options(options);
    let app = builder.start().await.unwrap();
    let inbox = place_of_test.receive().await;
    let other = place_of_test.app(fresh).without_workers().start().await.unwrap();
    let (taken_over, kept) = (order_in_partition(0), order_in_partition(1));

    place(&other, &kept).await;
    probe.arm(1);
    // Wakes the relay, which then stands still between reading what it holds and reading the rows.
    place(&app, &taken_over).await;
    gate.reached().await;
    let lease = LeaseName::new("partition/facts/00").unwrap();
    let grant =
        other.store().acquire_lease(&lease, app.instance(), Duration::from_millis(600)).await.unwrap();
    assert!(grant.is_some(), "a higher epoch");
    gate.open();

    let received = versions(&inbox.take(3).await);
    assert_eq!(received[&taken_over], [1, 1], "what could not be recorded goes out again");
    assert_eq!(received[&kept], [1], "what could be recorded does not");
    eventually("both are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 2).then_some(()) })
        .await;
    app.stop().await;
    other.stop().await;
}

fn patient() -> ChannelPolicy {
    ChannelPolicy { patience: Duration::from_secs(60), ..Place::policy() }
}

async fn sharing_out_anew_publishes_nothing_twice(fresh: &Fresh) {
    let place_of_test = Place::new();
    // Long enough that no lease runs out on a busy machine, and no patience: what is taken over then, or confirmed later, may go
    // out again.
    let builder = || place_of_test.app_with(fresh, patient()).lease(Duration::from_secs(15));
    let first = builder().start().await.unwrap();
    let inbox = place_of_test.receive().await;
    let writer = {
        let first = first.clone();
        tokio::spawn(async move {
            for number in 0..300 {
                place(&first, &format!("o-{number}")).await;
            }
        })
    };
    let mut received = inbox.take(20).await;
    let second = builder().start().await.unwrap();
    let third = builder().start().await.unwrap();
    writer.await.unwrap();
    eventually("the third has its share", || async { (held_by(&third).await >= 20).then_some(()) }).await;
    received.extend(inbox.take(280).await);
    eventually("all are SENT", || async {
        (facts_in(&first, OutboxStatus::Sent).await == 300).then_some(())
    })
    .await;
    // The last one comes behind everything that was published twice.
    place(&first, "last").await;
    received.extend(inbox.take(1).await);
    let versions = versions(&received);
    assert_eq!(versions.len(), 301, "each once");
    assert!(versions.contains_key("last"));
    for app in [first, second, third] {
        app.stop().await;
    }
}

async fn a_partition_with_rows_in_flight_is_not_given_away(fresh: &Fresh) {
    let direct = Place::new();
    let (place_of_test, proxy) = direct.behind_a_proxy().await;
    // Nothing runs out while its confirm is held back.
    let instance = |place: &Place| place.app_with(fresh, patient()).lease(Duration::from_secs(9)).start();
    let first = instance(&place_of_test).await.unwrap();
    let inbox = direct.receive().await;
    place(&first, "before").await;
    inbox.take(1).await;
    eventually("it is SENT", || async { (facts_in(&first, OutboxStatus::Sent).await == 1).then_some(()) })
        .await;

    // The broker has the message, and its confirm does not come back. Of two instances the second gets the partition.
    let (in_flight, beside) = (order_in_partition(15), order_in_partition(14));
    proxy.hold_answers();
    place(&first, &in_flight).await;
    let mut received = inbox.take(1).await;
    let second = instance(&direct).await.unwrap();
    eventually("the second has the others", || async { (held_by(&second).await >= 31).then_some(()) }).await;
    // A look of the second that sees this one would see the other one first.
    place(&second, &beside).await;
    received.extend(inbox.take(1).await);
    proxy.heal();
    eventually("all are SENT", || async { (facts_in(&first, OutboxStatus::Sent).await == 3).then_some(()) })
        .await;
    eventually("then it is given away", || async { (held_by(&second).await == 32).then_some(()) }).await;
    place(&second, "last").await;
    received.extend(inbox.take(1).await);
    let ids: Vec<String> = versions(&received).into_keys().collect();
    assert!(received.len() == 3 && ids.len() == 3, "{ids:?}");
    first.stop().await;
    second.stop().await;
}

async fn an_operator_finds_what_was_given_up_and_sends_it_again(fresh: &Fresh) {
    let place_of_test = Place::new();
    // Nothing is bound: everything is given up. Only who is woken looks again.
    let policy = ChannelPolicy {
        retries: RetryPolicy::Fixed(Vec::new()),
        scan: Duration::from_secs(60),
        ..Place::policy()
    };
    let app = place_of_test.app_unbound(fresh, policy).start().await.unwrap();
    for number in 0..5 {
        place(&app, &format!("o-{number}")).await;
    }
    let facts = FailedFilter { channel: Some(ChannelName::new("facts").unwrap()), ..FailedFilter::default() };
    let outbox = app.outbox();
    eventually("all are given up", || async { (outbox.count(&facts).await.unwrap() == 5).then_some(()) })
        .await;
    let failed = outbox.failed(&facts, 0, 10).await.unwrap();
    assert_eq!(failed.len(), 5);
    assert!(failed.iter().all(|failed| failed.row.status_reason.as_deref() == Some("unroutable")));

    let inbox = place_of_test.receive().await;
    place_of_test.broker().declare(&place_of_test.topology(true)).await.unwrap();
    assert_eq!(outbox.retry(&[failed[0].row.outbox_id]).await.unwrap(), 1);
    assert_eq!(inbox.take(1).await[0].message_id, Some(failed[0].event.event_id.to_string()));
    let refused = FailedFilter { reason: Some("broker-refused".to_owned()), ..facts.clone() };
    assert_eq!(outbox.retry_where(&refused).await.unwrap(), 0, "the filter counts");
    assert_eq!(outbox.retry_where(&facts).await.unwrap(), 4);
    assert_eq!(versions(&inbox.take(4).await).len(), 4);
    assert_eq!(outbox.count(&facts).await.unwrap(), 0);
    app.stop().await;
}

async fn what_may_have_been_published_long_ago_is_put_back_by_force_only(fresh: &Fresh) {
    let place_of_test = Place::new();
    let policy = ChannelPolicy {
        retries: RetryPolicy::Fixed(Vec::new()),
        scan: Duration::from_secs(60),
        ..Place::policy()
    };
    let builder = place_of_test.app_unbound(fresh, policy);
    let app = builder.horizon(Duration::from_millis(1)).start().await.unwrap();
    for id in ["returned", "unsure"] {
        place(&app, id).await;
    }
    let facts = FailedFilter { channel: Some(ChannelName::new("facts").unwrap()), ..FailedFilter::default() };
    let outbox = app.outbox();
    eventually("both are given up", || async { (outbox.count(&facts).await.unwrap() == 2).then_some(()) })
        .await;
    let failed = outbox.failed(&facts, 0, 10).await.unwrap();
    let [returned, unsure] = ["returned", "unsure"].map(|id| {
        let found = failed.iter().find(|failed| failed.event.aggregate.id.as_str() == id);
        found.unwrap().row.outbox_id
    });
    // As if the broker had taken it and the confirmation had been lost.
    let sql = format!("UPDATE event_outbox SET status_reason = 'not-confirmed' WHERE outbox_id = {unsure}");
    execute(&app, sql).await;

    let refused = outbox.retry(&[unsure]).await.unwrap_err();
    assert_eq!(refused.code(), "beyond-horizon");
    let refused = outbox.retry_where(&facts).await.unwrap_err();
    assert_eq!(refused.code(), "beyond-horizon");
    assert_eq!(outbox.count(&facts).await.unwrap(), 2, "nothing was put back");
    let inbox = place_of_test.receive().await;
    place_of_test.broker().declare(&place_of_test.topology(true)).await.unwrap();
    // The last attempt was given back by the broker; of one before it, nobody can tell.
    assert_eq!(outbox.retry(&[returned]).await.unwrap_err().code(), "beyond-horizon");
    let returned_only = FailedFilter { reason: Some("unroutable".to_owned()), ..facts.clone() };
    assert_eq!(outbox.retry_where(&returned_only).await.unwrap_err().code(), "beyond-horizon");
    assert_eq!(outbox.retry_by_force(&[returned]).await.unwrap(), 1);
    assert_eq!(outbox.retry_where_by_force(&facts).await.unwrap(), 1);
    assert_eq!(versions(&inbox.take(2).await).len(), 2);
    app.stop().await;
}

async fn execute(app: &Towpath, sql: String) {
    let store = app.store();
    let sql = || towpath::sqlx::AssertSqlSafe(sql.clone());
    if let Some(pool) = store.postgres_pool() {
        towpath::sqlx::query(sql()).execute(pool).await.unwrap();
    } else if let Some(pool) = store.mysql_pool() {
        towpath::sqlx::query(sql()).execute(pool).await.unwrap();
    } else if let Some(pool) = store.sqlite_pool() {
        towpath::sqlx::query(sql()).execute(pool).await.unwrap();
    }
}

async fn what_was_sent_long_ago_is_cleaned_up(fresh: &Fresh) {
    let place_of_test = Place::new();
    let builder = place_of_test.app(fresh).clean_every(Duration::from_millis(50));
    let app = builder.keep_sent(Duration::from_secs(3600)).start().await.unwrap();
    let inbox = place_of_test.receive().await;
    place(&app, "o-1").await;
    inbox.take(1).await;
    eventually("it is SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 1).then_some(()) })
        .await;
    assert_eq!(app.horizon(), Duration::from_secs(7 * 86_400));
    let app = {
        app.stop().await;
        let builder = place_of_test.app(fresh).clean_every(Duration::from_millis(50));
        builder.keep_sent(Duration::ZERO).start().await.unwrap()
    };
    eventually("it is deleted", || async { (facts_in(&app, OutboxStatus::Sent).await == 0).then_some(()) })
        .await;
    // The channel without a target only collects: its row was not sent and stays.
    let collected = app.store().outbox_counts(&ChannelName::new("orders").unwrap()).await.unwrap();
    assert_eq!(collected.of(OutboxStatus::New), 1);
    app.stop().await;
}
