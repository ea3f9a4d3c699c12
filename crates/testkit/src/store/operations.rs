//! Operations: the same name gives the same answer and no second effect, whoever dies in between.

use std::time::Duration;

use towpath_core::ids::{ActorId, OperationName, RequestId, TraceId};
use towpath_core::ports::operations::{
    BeginOutcome, NewOperation, OperationAnswer, OperationClaim, OperationEnd, OperationKey,
};
use towpath_core::ports::store::{InspectedStore, StoreError};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{LONG, hold_new_lease, stale_and_fresh, versions_of};
use super::facts::{OrderFacts, moment};
use super::waiting::{all_at_once, taking_turns};

/// An answer is given again to the letter; the fact about the operation is there once, with it.
pub async fn an_answered_operation_answers_the_same_again(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    let claim = begin(&*store, &asked, LONG).await;
    assert_eq!((claim.operation_id, claim.epoch), (asked.operation_id, 1));
    assert_eq!(stand(&*store, &asked).await, BeginOutcome::Running);
    let facts = OrderFacts::of_new_order().placed().append();
    let answer = answer(201, b"{\"price\": 88.50}\0\xff");
    let ended = store.end_operation(&claim, OperationEnd::Answered(&answer), Some(&facts), moment(1)).await;
    assert!(ended.expect("end it"));
    let again = NewOperation { operation_id: Uuid::now_v7(), ..asked.clone() };
    assert_eq!(stand(&*store, &again).await, BeginOutcome::Answered(answer.clone()));
    let twice = store.end_operation(&claim, OperationEnd::Answered(&answer), None, moment(2)).await;
    assert!(!twice.expect("end it again"), "an operation ends once");
    assert_eq!(versions_of(&*store, &facts.aggregate).await, [1]);
    assert_eq!(store.lost_operations(10).await.expect("look for lost ones"), []);
}

/// Another request under a name that is taken is told so, while the first runs and after it was answered.
pub async fn a_name_belongs_to_one_request(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    let other = NewOperation { fingerprint: "f".repeat(64), ..operation("key-1") };
    let claim = begin(&*store, &asked, LONG).await;
    assert_eq!(stand(&*store, &other).await, BeginOutcome::Different);
    let answer = answer(200, b"");
    store.end_operation(&claim, OperationEnd::Answered(&answer), None, moment(1)).await.expect("end it");
    assert_eq!(stand(&*store, &other).await, BeginOutcome::Different);
    let others = OperationKey { actor: ActorId::new("someone else").expect("an actor"), ..asked.key.clone() };
    begin(&*store, &NewOperation { key: others, ..other }, LONG).await;
}

/// One that was not ended in its time is taken over; who held it before can no longer end it, and writes nothing.
pub async fn an_operation_of_a_dead_process_is_taken_over_and_fenced(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    let sleeper = begin(&*store, &asked, Duration::ZERO).await;
    let lost = store.lost_operations(10).await.expect("look for lost ones");
    assert_eq!((lost.len(), &lost[0].operation, &lost[0].claim), (1, &asked, &sleeper));
    let request_id = Some(RequestId::new("again").expect("a request id"));
    let again = NewOperation { operation_id: Uuid::now_v7(), request_id, ..asked.clone() };
    let successor = begin(&*store, &again, LONG).await;
    assert_eq!((successor.operation_id, successor.epoch), (asked.operation_id, 2));
    let facts = OrderFacts::of_new_order().placed().append();
    let answer = answer(200, b"late");
    for end in [OperationEnd::Answered(&answer), OperationEnd::Forgotten] {
        let ended = store.end_operation(&sleeper, end, Some(&facts), moment(1)).await.expect("ask to end it");
        assert!(!ended, "{end:?} by who has lost it");
    }
    assert_eq!(versions_of(&*store, &facts.aggregate).await, [0_u64; 0]);
    assert_eq!(stand(&*store, &asked).await, BeginOutcome::Running);
    let ended =
        store.end_operation(&successor, OperationEnd::Answered(&answer), Some(&facts), moment(1)).await;
    assert!(ended.expect("end it"));
}

/// A failover has lost that an operation was taken over: the next who takes it over is given the same number, and only that
/// one ends it.
pub async fn an_operation_taken_over_twice_in_one_epoch_has_one_holder(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    begin(&*store, &asked, Duration::ZERO).await;
    let again = || NewOperation { operation_id: Uuid::now_v7(), ..asked.clone() };
    let forgotten = begin(&*store, &again(), Duration::ZERO).await;
    fixture.come_back_from_an_older_copy().await;
    let holder = begin(&*store, &again(), LONG).await;
    assert_eq!(forgotten.epoch, holder.epoch);
    let answer = answer(200, b"");
    for end in [OperationEnd::Answered(&answer), OperationEnd::Forgotten] {
        let ended = store.end_operation(&forgotten, end, None, moment(1)).await.expect("ask to end it");
        assert!(!ended, "{end:?} by who has lost it");
    }
    assert!(
        store.end_operation(&holder, OperationEnd::Answered(&answer), None, moment(1)).await.expect("end it")
    );
}

/// An answer that is written in the transaction of its effect is there when that commits, and from then on for ever: it
/// is given to who asks again although nobody has ended the operation, and is not forgotten. Nobody writes one who has
/// lost the operation.
pub async fn an_answer_is_written_with_its_effect_or_not_at_all(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    let sleeper = begin(&*store, &asked, Duration::ZERO).await;
    let claim = begin(&*store, &asked, Duration::ZERO).await;
    let answer = answer(201, b"{\"order\": 7}");
    let mut late = store.begin().await.expect("begin a transaction");
    let fenced = late.answer(&sleeper, &answer, moment(1)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?} for who has lost it");
    late.rollback().await.expect("roll back");
    let mut undone = store.begin().await.expect("begin a transaction");
    undone.answer(&claim, &answer, moment(1)).await.expect("write the answer");
    undone.rollback().await.expect("roll back");
    assert_eq!(store.answered_operation(&claim).await.expect("look for the answer"), None);
    let facts = OrderFacts::of_new_order().placed().append();
    let mut effect = store.begin().await.expect("begin a transaction");
    effect.append(&facts).await.expect("append the effect");
    effect.answer(&claim, &answer, moment(1)).await.expect("write the answer");
    effect.commit().await.expect("commit");
    // The process dies here. Whoever asks again is answered, although the time of the claim is over.
    assert_eq!(stand(&*store, &asked).await, BeginOutcome::Answered(answer.clone()));
    assert_eq!(store.answered_operation(&claim).await.expect("look for the answer").as_ref(), Some(&answer));
    let lost = store.lost_operations(10).await.expect("look for lost ones");
    assert_eq!((lost.len(), lost[0].answered), (1, Some(201)));
    let other = OperationAnswer { status: 500, ..answer.clone() };
    for end in [OperationEnd::Forgotten, OperationEnd::Answered(&other)] {
        let ended = store.end_operation(&claim, end, None, moment(2)).await.expect("ask to end it");
        assert!(!ended, "{end:?} although it has its answer");
    }
    assert!(store.end_operation(&claim, OperationEnd::Kept, None, moment(2)).await.expect("end it"));
    assert_eq!(stand(&*store, &asked).await, BeginOutcome::Answered(answer));
    assert_eq!(store.lost_operations(10).await.expect("look for lost ones"), []);
}

/// A name that was forgotten is free; an earlier holder has no power over who took it since.
pub async fn a_forgotten_operation_can_be_begun_anew(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    let first = begin(&*store, &asked, LONG).await;
    assert!(store.end_operation(&first, OperationEnd::Forgotten, None, moment(1)).await.expect("forget it"));
    let second = begin(&*store, &NewOperation { operation_id: Uuid::now_v7(), ..asked.clone() }, LONG).await;
    assert_eq!(second.epoch, 1, "a name that was forgotten counts anew");
    let stolen = store.end_operation(&first, OperationEnd::Forgotten, None, moment(1)).await;
    assert!(!stolen.expect("forget it again"), "the id tells the two apart");
}

/// Eight that ask at once: one begins, the others are told that it runs.
pub async fn one_of_eight_twins_begins(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let asked = operation("key-1");
    let twins = (0..8).map(|_| {
        let (store, twin) =
            (std::sync::Arc::clone(&store), NewOperation { operation_id: Uuid::now_v7(), ..asked.clone() });
        async move { taking_turns(|| store.begin_operation(&twin, LONG)).await.expect("ask") }
    });
    let standings = all_at_once(twins).await;
    let begun = standings.iter().filter(|standing| matches!(standing, BeginOutcome::Begun(_))).count();
    let running = standings.iter().filter(|standing| **standing == BeginOutcome::Running).count();
    assert_eq!((begun, running), (1, 7), "{standings:?}");
}

/// What was answered long ago is deleted, by who holds the lease; what runs stays.
pub async fn operations_answered_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for (name, at) in [("old", 1), ("older", 0), ("new", 100)] {
        let claim = begin(&*store, &operation(name), LONG).await;
        let answer = answer(200, b"");
        store.end_operation(&claim, OperationEnd::Answered(&answer), None, moment(at)).await.expect("end it");
    }
    begin(&*store, &operation("running"), Duration::ZERO).await;
    let (stale, _) = stale_and_fresh(&*store).await;
    assert!(store.clean_operations(&stale, moment(50), 10).await.is_err(), "a stale holder cleans nothing");
    let mut deleted = Vec::new();
    for _ in 0..3 {
        deleted.push(store.clean_operations(&lease, moment(50), 1).await.expect("clean"));
    }
    assert_eq!(deleted, [1, 1, 0]);
    assert!(matches!(stand(&*store, &operation("new")).await, BeginOutcome::Answered(_)));
    assert_eq!(store.lost_operations(10).await.expect("look for lost ones").len(), 1);
}

fn operation(name: &str) -> NewOperation {
    NewOperation {
        key: OperationKey {
            actor: ActorId::new("Zoë 🦆").expect("an actor"),
            name: OperationName::new(name).expect("a name"),
        },
        operation_id: Uuid::now_v7(),
        fingerprint: "0".repeat(64),
        role: "operator".to_owned(),
        action: "POST /api/things/{id}".to_owned(),
        target: "/api/things/7".to_owned(),
        request_id: Some(RequestId::new("request-9").expect("a request id")),
        trace_id: Some(TraceId::new("4bf92f3577b34da6a3ce929d0e0e4736").expect("a trace id")),
        asked_at: moment(0),
    }
}

fn answer(status: u16, body: &[u8]) -> OperationAnswer {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    OperationAnswer { status, headers, body: body.to_vec() }
}

async fn begin(store: &dyn InspectedStore, operation: &NewOperation, for_: Duration) -> OperationClaim {
    match store.begin_operation(operation, for_).await.expect("begin an operation") {
        BeginOutcome::Begun(claim) => claim,
        other => panic!("expected to begin, and it stands {other:?}"),
    }
}

async fn stand(store: &dyn InspectedStore, operation: &NewOperation) -> BeginOutcome {
    store.begin_operation(operation, LONG).await.expect("ask for an operation")
}
