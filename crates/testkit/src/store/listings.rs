//! What operators look through: page by page, in one order, and nothing of others.

use towpath_core::ids::CommandId;
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::store::{
    CommandRecord, FailedRow, Found, FoundAs, NewCommand, OutboxFilter, StoreError,
};

use super::StoreFixture;
use super::acts::{append, assert_refused, claim, given_up, hold_new_lease, record, record_sent, result};
use super::facts::{
    OrderFacts, completed, context, failed, moment, new_channel, new_command_id, new_order, order, place,
};

/// Commands are listed by when they came, the last one first, by status or all of them; a page goes on behind a command.
pub async fn commands_are_listed_the_last_one_first(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let commands: Vec<NewCommand> = [3, 2, 2, 1]
        .into_iter()
        .map(|at| NewCommand { context: context(moment(at)), ..place(&new_order()) })
        .collect();
    store.accept_command(&commands[3]).await.expect("accept");
    store.accept_command(&commands[1]).await.expect("accept");
    store.complete_command(&completed(&commands[2], Found::Nowhere, None)).await.expect("complete");
    store.fail_command(&failed(&commands[0], Found::Nowhere, 1, None)).await.expect("fail");
    // Of those that came at once, the ids decide.
    let mut expected = vec![&commands[0], &commands[1], &commands[2], &commands[3]];
    expected[1..3].sort_by(|one, other| other.command_id.as_str().cmp(one.command_id.as_str()));
    let expected: Vec<&CommandId> = expected.into_iter().map(|command| &command.command_id).collect();

    let all = store.commands(None, None, 10).await.expect("commands");
    assert_eq!(ids(&all), expected);
    for behind in 0..expected.len() {
        let page = store.commands(None, Some(expected[behind]), 2).await.expect("commands");
        assert_eq!(ids(&page), expected[behind + 1..].iter().take(2).copied().collect::<Vec<_>>());
    }
    let by_status = [
        (CommandStatus::Pending, vec![&commands[1], &commands[3]]),
        (CommandStatus::Completed, vec![&commands[2]]),
        (CommandStatus::Failed, vec![&commands[0]]),
        (CommandStatus::Processing, vec![]),
    ];
    for (status, expected) in by_status {
        let found = store.commands(Some(status), None, 10).await.expect("commands");
        let expected: Vec<_> = expected.iter().map(|command| &command.command_id).collect();
        assert_eq!(ids(&found), expected, "{status:?}");
    }
    let missing = store.commands(None, Some(&new_command_id()), 10).await;
    assert_refused!(missing, StoreError::Missing { .. }, "going on behind a command that is not there");
}

/// Outbox rows are listed by number, by channel, by status or both, with their facts; payloads are read one by one.
pub async fn outbox_rows_are_listed_by_channel_and_status(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (mail, bills) = (new_channel(), new_channel());
    for channels in [vec![mail.clone()], vec![mail.clone(), bills.clone()], vec![mail.clone()]] {
        append(&*store, &OrderFacts::of_new_order().placed().routed(&channels).append()).await;
    }
    let waiting = claim(&*store, &mail, moment(1)).await;
    record_sent(&*store, &lease, &mail, moment(2), &waiting[..1]).await;
    record(&*store, &lease, &mail, moment(2), &[result(&waiting[1], given_up(false))]).await;

    let list = async |channel: Option<&_>, status, after, limit| {
        let filter = OutboxFilter { channel: channel.cloned(), status };
        store.outbox_rows(&filter, after, limit).await.expect("outbox rows")
    };
    let all = list(None, None, 0, 10).await;
    assert_eq!(all.len(), 4);
    assert!(all.is_sorted_by_key(|row| row.row.outbox_id), "by number");
    assert!(all.iter().all(|row| row.event.payload.as_text() == "null"), "without payloads");
    let numbers = |rows: &[FailedRow]| rows.iter().map(|row| row.row.outbox_id).collect::<Vec<_>>();
    let of = |channel: &_| {
        all.iter().filter(|row| row.row.channel == *channel).map(|row| row.row.outbox_id).collect::<Vec<_>>()
    };
    let of_mail = of(&mail);
    assert_eq!(numbers(&list(Some(&mail), None, 0, 10).await), of_mail);
    assert_eq!(numbers(&list(Some(&bills), None, 0, 10).await), of(&bills));
    assert_eq!(numbers(&list(Some(&mail), None, of_mail[0], 1).await), of_mail[1..2], "one behind the first");
    let by_status = [OutboxStatus::Sent, OutboxStatus::Failed, OutboxStatus::New];
    for (status, number) in by_status.into_iter().zip(&of_mail) {
        assert_eq!(numbers(&list(Some(&mail), Some(status), 0, 10).await), [*number], "{status:?}");
        let everywhere = numbers(&list(None, Some(status), 0, 10).await);
        let expected = if status == OutboxStatus::New { 2 } else { 1 };
        assert_eq!((everywhere.len(), everywhere.contains(number)), (expected, true), "{status:?}");
    }
    let one = store.outbox_row(of_mail[1]).await.expect("read").expect("it is there");
    assert_eq!((one.row.status, &one.event), (OutboxStatus::Failed, &waiting[1].event), "with its payload");
    assert_eq!(store.outbox_row(u64::MAX / 2).await.expect("read"), None);
}

/// Aggregates of a kind are listed by id, behind one of them.
pub async fn aggregates_are_listed_by_id(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let orders = ["order-1", "order-2", "order-3"].map(order);
    for order in [&orders[1], &orders[0], &orders[2]] {
        append(&*store, &OrderFacts::about(order, 0).placed().append()).await;
    }
    let kind = &orders[0].kind;
    let all = store.aggregates(kind, None, 10).await.expect("aggregates");
    assert_eq!(all.iter().map(|row| row.aggregate.clone()).collect::<Vec<_>>(), orders);
    assert!(all.iter().all(|row| row.snapshot.is_none()), "without their folded states");
    let page = store.aggregates(kind, Some(&orders[0].id), 1).await.expect("aggregates");
    assert_eq!(page, all[1..2]);
    let other = towpath_core::ids::AggregateKind::new("parcel").expect("a kind");
    assert_eq!(store.aggregates(&other, None, 10).await.expect("aggregates"), []);
}

/// Whatever an id is the id of, the flows it belongs to are found.
pub async fn an_id_is_traced_to_its_flows(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (one, other) = (place(&new_order()), place(&new_order()));
    let mut event_ids = Vec::new();
    for command in [&one, &other] {
        let facts =
            OrderFacts::about(&command.aggregate, 0).placed().in_context(command.context.clone()).append();
        event_ids.push(facts.events[0].event_id);
        store.complete_command(&completed(command, Found::Nowhere, Some(facts))).await.expect("complete");
    }
    let flow = &one.context.correlation_id;
    let asked = [
        (one.command_id.as_str().to_owned(), FoundAs::Command),
        (flow.as_str().to_owned(), FoundAs::Flow),
        (event_ids[0].0.to_string(), FoundAs::Event),
    ];
    for (id, found_as) in asked {
        let found = store.trace(&id, &[]).await.expect("trace");
        assert_eq!(found, [(found_as, flow.clone())], "{id}");
    }
    let aggregates = [one.aggregate.clone()];
    let found = store.trace(one.aggregate.id.as_str(), &aggregates).await.expect("trace");
    assert_eq!(found, [(FoundAs::Aggregate, flow.clone())]);
    assert_eq!(store.trace("nobody", &[]).await.expect("trace"), []);
}

fn ids(commands: &[CommandRecord]) -> Vec<&CommandId> {
    commands.iter().map(|record| &record.command.command_id).collect()
}
