//! Units of work: what is written in one transaction, and how somebody finds out who did not see the answer to its commit.

use std::sync::Arc;

use towpath_core::lifecycle::CommandStatus;
use towpath_core::ports::store::{InspectedStore, StoreResult};
use uuid::Uuid;

use super::StoreFixture;
use super::facts::{new_order, place};
use super::waiting::{answer_of, fair_chance, taking_turns};

/// A unit that has committed is known from then on; one that was rolled back never was.
pub async fn a_unit_is_noted_by_its_commit(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let unit_id = Uuid::now_v7();
    for _ in 0..2 {
        let tx = store.begin_unit(unit_id).await.expect("note it").expect("it was rolled back before");
        tx.rollback().await.expect("roll back");
    }
    assert!(note(&*store, unit_id).await.expect("note it"));
    assert!(!note(&*store, unit_id).await.expect("note it again"), "it has committed");
    assert!(note(&*store, Uuid::now_v7()).await.expect("note another"));
}

/// Whoever asks while the first is open waits for it, and is answered by how it ended.
pub async fn a_unit_that_is_open_is_waited_for(fixture: &impl StoreFixture) {
    // Opened before the first transaction begins: where one writes at a time, starting is writing too.
    let (store, other) = (fixture.store().await, fixture.store().await);
    for commits in [true, false] {
        let unit_id = Uuid::now_v7();
        let first = store.begin_unit(unit_id).await.expect("note it").expect("it is new");
        let second = {
            let other = Arc::clone(&other);
            tokio::spawn(async move { taking_turns(|| note(&*other, unit_id)).await.expect("note it") })
        };
        assert!(!fair_chance(&second).await, "the second answered before the first had ended");
        if commits {
            first.commit().await.expect("commit");
        } else {
            first.rollback().await.expect("roll back");
        }
        assert_eq!(answer_of(second).await, !commits);
    }
}

/// A command that is sent in a transaction is there with its commit, and once.
pub async fn a_command_is_sent_with_its_transaction(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let command = place(&new_order());
    let mut tx = store.begin().await.expect("begin");
    assert!(tx.send(&command).await.expect("send"));
    tx.rollback().await.expect("roll back");
    assert_eq!(store.command(&command.command_id).await.expect("command"), None);
    for is_new in [true, false] {
        let mut tx = store.begin().await.expect("begin");
        assert_eq!(tx.send(&command).await.expect("send"), is_new);
        tx.commit().await.expect("commit");
    }
    let record = store.command(&command.command_id).await.expect("command").expect("it is recorded");
    assert_eq!((record.status, &record.command), (CommandStatus::Pending, &command));
}

async fn note(store: &dyn InspectedStore, unit_id: Uuid) -> StoreResult<bool> {
    let Some(tx) = store.begin_unit(unit_id).await? else { return Ok(false) };
    tx.commit().await?;
    Ok(true)
}
