//! Alerts are kept as they are, and what became of each.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use towpath_core::lifecycle::AlertStatus;
use towpath_core::ports::store::{
    Alert, AlertNote, AlertRun, NewSilence, NotedChange, Silence, SilenceMatcher, Store, StoreError,
};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{hold_new_lease, stale_and_fresh};
use super::facts::moment;

fn alert(rule: &str, queue: &str, status: AlertStatus, at: DateTime<Utc>) -> Alert {
    let labels = BTreeMap::from([("queue".to_owned(), queue.to_owned())]);
    Alert {
        alert_id: format!("{rule}/{queue}"),
        rule: rule.to_owned(),
        severity: "warning".to_owned(),
        annotations: BTreeMap::from([("summary".to_owned(), "待处理命令数量过多 \"100%\" 🦆".to_owned())]),
        labels,
        message: "待处理命令数量过多".to_owned(),
        value: 0.1 + 0.2,
        status,
        status_changed_at: at,
        status_reason: Some("condition-holds".to_owned()),
        status_message: Some("It has lasted.".to_owned()),
        started_at: moment(1),
        fired_at: (status == AlertStatus::Firing).then_some(at),
        held_at: at,
        silence_id: None,
    }
}

fn noted(alert: Alert, from: Option<AlertStatus>) -> AlertNote {
    AlertNote { alert, changed_from: Some(from) }
}

async fn note(store: &dyn Store, notes: &[AlertNote]) {
    let mut tx = store.begin().await.expect("begin");
    tx.note_alerts(notes).await.expect("note");
    tx.commit().await.expect("commit");
}

/// An alert is there to the letter until it is over, and changes in its place; with its transaction or not at all.
pub async fn alerts_are_written_as_they_are_now(fixture: &impl StoreFixture) {
    use AlertStatus::*;
    let store = fixture.store().await;
    let (mail, bills) =
        (alert("deep", "mail", Pending, moment(2)), alert("deep", "bills", Pending, moment(2)));
    let undone = [noted(mail.clone(), None)];
    let mut tx = store.begin().await.expect("begin");
    tx.note_alerts(&undone).await.expect("note");
    tx.rollback().await.expect("roll back");
    assert_eq!(store.open_alerts(10).await.expect("open"), []);

    note(&*store, &[noted(mail.clone(), None), noted(bills.clone(), None)]).await;
    assert_eq!(store.open_alerts(10).await.expect("open"), [bills.clone(), mail.clone()]);
    assert_eq!(store.open_alerts(1).await.expect("open"), std::slice::from_ref(&bills));

    let mut fired = alert("deep", "mail", Firing, moment(3));
    fired.value = f64::INFINITY;
    fired.silence_id = Some(Uuid::now_v7());
    note(&*store, &[noted(fired.clone(), Some(Pending))]).await;
    assert_eq!(store.open_alerts(10).await.expect("open"), [bills.clone(), fired.clone()]);

    // A value that has changed is no change of the alert.
    let still = AlertNote { alert: Alert { value: -7.5e300, ..fired.clone() }, changed_from: None };
    note(&*store, std::slice::from_ref(&still)).await;
    assert_eq!(store.open_alerts(10).await.expect("open"), [bills.clone(), still.alert]);

    note(&*store, &[noted(alert("deep", "mail", Resolved, moment(4)), Some(Firing))]).await;
    assert_eq!(store.open_alerts(10).await.expect("open"), [bills]);
    let changes = store.alert_history(None, None, 10).await.expect("history");
    let said: Vec<_> = changes.iter().map(|change| (change.from_status, change.alert.status)).collect();
    assert_eq!(said, [(Some(Firing), Resolved), (Some(Pending), Firing), (None, Pending), (None, Pending)]);
}

/// The history is read back from the last change on, of all rules or of one.
pub async fn changes_of_alerts_are_listed_the_last_first(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for number in 0..5 {
        for rule in ["deep", "dead"] {
            let queue = format!("queue-{number}");
            note(&*store, &[noted(alert(rule, &queue, AlertStatus::Firing, moment(number)), None)]).await;
        }
    }
    let queues = |changes: Vec<NotedChange>| -> Vec<String> {
        changes.into_iter().map(|change| change.alert.alert_id).collect()
    };
    let first = store.alert_history(Some("deep"), None, 2).await.expect("history");
    let before = first[1].change_id;
    assert_eq!(queues(first), ["deep/queue-4", "deep/queue-3"]);
    let second = store.alert_history(Some("deep"), Some(before), 2).await.expect("history");
    assert_eq!(queues(second), ["deep/queue-2", "deep/queue-1"]);
    let all = store.alert_history(None, Some(before), 2).await.expect("history");
    assert_eq!(queues(all), ["dead/queue-2", "deep/queue-2"]);
    assert_eq!(store.alert_history(Some("nothing"), None, 2).await.expect("history"), []);
}

fn silence(from: u64, to: u64) -> NewSilence {
    NewSilence {
        silence_id: Uuid::now_v7(),
        matchers: vec![
            SilenceMatcher { name: "rule".into(), value: "dee.".into(), is_regex: true, is_equal: true },
            SilenceMatcher { name: "queue".into(), value: "mail".into(), is_regex: false, is_equal: false },
        ],
        author_id: "anna".to_owned(),
        reason: "The warehouse moves. 100% \"planned\" 🦆".to_owned(),
        starts_at: moment(from),
        ends_at: moment(to),
        created_at: moment(0),
    }
}

/// A silence is over at its end, or when somebody ends it, once.
pub async fn silences_end_in_time_or_by_hand(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (short, long) = (silence(10, 20), silence(10, 100));
    for silence in [&short, &long] {
        store.add_silence(silence).await.expect("add");
    }
    let as_made =
        |silence: &NewSilence| Silence { silence: silence.clone(), ended_at: None, ended_by_id: None };
    let after = async |seconds| store.silences(moment(seconds), 10).await.expect("silences");
    assert_eq!(after(5).await, [as_made(&long), as_made(&short)]);
    assert_eq!(after(20).await, [as_made(&long)]);
    assert_eq!(store.silences(moment(5), 1).await.expect("silences"), [as_made(&long)]);
    assert_eq!(store.silence(short.silence_id).await.expect("silence"), Some(as_made(&short)));
    assert_eq!(store.silence(Uuid::now_v7()).await.expect("silence"), None);
    let active = |silence: &Silence, at| silence.is_active(moment(at));
    assert_eq!([9, 10, 19, 20].map(|at| active(&as_made(&short), at)), [false, true, true, false]);

    assert!(!store.end_silence(short.silence_id, "otto", moment(20)).await.expect("end"), "it is over");
    assert!(store.end_silence(long.silence_id, "otto", moment(30)).await.expect("end"));
    assert!(!store.end_silence(long.silence_id, "anna", moment(31)).await.expect("end"), "it was ended");
    let ended = store.silence(long.silence_id).await.expect("silence").expect("it is there");
    assert_eq!((ended.ended_at, ended.ended_by_id.as_deref()), (Some(moment(30)), Some("otto")));
    assert!(!active(&ended, 40));
    assert_eq!(store.silence(short.silence_id).await.expect("silence"), Some(as_made(&short)));
}

/// Who has lost the lease notes nothing; and who looked last is known.
pub async fn alerts_are_noted_under_the_newest_lease(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    assert_eq!(store.alert_run().await.expect("run"), None);
    let (stale, fresh) = stale_and_fresh(&*store).await;
    assert!(matches!(store.begin_under(&stale).await, Err(StoreError::Fenced { .. })));
    for (by, at) in [("one", 1), ("another", 2)] {
        let failures = BTreeMap::from([("deep".to_owned(), "there are two values".to_owned())]);
        let run =
            AlertRun { evaluated_at: moment(at), evaluated_by_id: by.to_owned(), left_out: at, failures };
        let mut tx = store.begin_under(&fresh).await.expect("begin");
        tx.note_alert_run(&run).await.expect("note");
        tx.commit().await.expect("commit");
        assert_eq!(store.alert_run().await.expect("run"), Some(run));
    }
}

/// What happened long ago is forgotten; what is open is not.
pub async fn alerts_of_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for at in [1, 2, 50] {
        note(&*store, &[noted(alert("deep", "mail", AlertStatus::Firing, moment(at)), None)]).await;
    }
    store.add_silence(&silence(1, 5)).await.expect("add");
    store.add_silence(&silence(1, 60)).await.expect("add");
    let (stale, _) = stale_and_fresh(&*store).await;
    assert!(matches!(store.clean_alerts(&stale, moment(10), 10).await, Err(StoreError::Fenced { .. })));
    assert_eq!(store.clean_alerts(&lease, moment(10), 10).await.expect("clean"), 3);
    assert_eq!(store.clean_alerts(&lease, moment(10), 10).await.expect("clean"), 0);
    assert_eq!(store.open_alerts(10).await.expect("open").len(), 1);
    assert_eq!(store.alert_history(None, None, 10).await.expect("history").len(), 1);
    assert_eq!(store.silences(moment(0), 10).await.expect("silences").len(), 1);
}
