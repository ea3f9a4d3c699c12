//! What observers look at: due by the database's time, replaced by what is newer, noted by who has the lease.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use towpath_core::ports::store::{
    Adopted, DuePage, InspectedStore, LeaseGrant, Listed, Look, LookFailure, Looks, NotedLook, Store, Watch,
    Watched,
};

use super::StoreFixture;
use super::acts::{hold_new_lease, stale_and_fresh};
use super::waiting::{all_at_once, eventually};

const OBSERVER: &str = "shelf";
const HOUR: Duration = Duration::from_secs(3600);

fn watch(subject_id: &str, version: u64, look: Look) -> Watch {
    Watch {
        subject_id: subject_id.to_owned(),
        hint: format!("hint-{subject_id}"),
        version,
        wanted: format!("{{\"version\":{version}}}"),
        goal: String::new(),
        look,
    }
}

fn seen(subject_id: &str, version: u64, again_after: Duration) -> NotedLook {
    NotedLook { subject_id: subject_id.to_owned(), version, again_after, failure: None }
}

fn failed(subject_id: &str, version: u64, again_after: Duration, code: &str) -> NotedLook {
    let failure = Some((code.to_owned(), format!("{code} of {subject_id}")));
    NotedLook { failure, ..seen(subject_id, version, again_after) }
}

/// A store with what is watched in it.
async fn watching(fixture: &impl StoreFixture, watches: &[Watch]) -> Arc<dyn InspectedStore> {
    let store = fixture.store().await;
    put(&*store, watches).await;
    store
}

async fn put(store: &dyn Store, watches: &[Watch]) {
    let mut tx = store.begin().await.expect("begin");
    tx.watch(OBSERVER, watches).await.expect("watch");
    tx.commit().await.expect("commit");
}

async fn due(store: &dyn Store) -> Vec<Listed> {
    store.due_subjects(OBSERVER, None, 100).await.expect("what is due").listed
}

async fn due_ids(store: &dyn Store) -> Vec<String> {
    due(store).await.into_iter().map(|listed| listed.subject_id).collect()
}

async fn begin(store: &dyn Store, subject_id: &str) -> Watched {
    store.begin_look(OBSERVER, subject_id).await.expect("begin a look").expect("it is watched")
}

async fn note(store: &dyn Store, lease: &LeaseGrant, looks: &[NotedLook]) {
    store.note_looks(lease, OBSERVER, looks).await.expect("note");
}

async fn looks(store: &dyn Store, subject_id: &str) -> Looks {
    store.looks_at(OBSERVER, subject_id).await.expect("ask").expect("it is watched")
}

/// What is said in a transaction that is rolled back was never said.
pub async fn what_is_watched_lives_and_dies_with_its_transaction(fixture: &impl StoreFixture) {
    let store = watching(fixture, &[watch("a", 1, Look::AtOnce)]).await;
    let mut undone = store.begin().await.expect("begin");
    undone.watch(OBSERVER, &[watch("b", 1, Look::AtOnce)]).await.expect("watch");
    undone.unwatch(OBSERVER, &["a".to_owned()]).await.expect("unwatch");
    undone.rollback().await.expect("roll back");
    assert_eq!(due_ids(&*store).await, ["a"]);
    let mut gone = store.begin().await.expect("begin");
    gone.unwatch(OBSERVER, &["a".to_owned(), "nobody".to_owned()]).await.expect("unwatch");
    gone.commit().await.expect("commit");
    assert_eq!(store.begin_look(OBSERVER, "a").await.expect("begin a look"), None);
    assert_eq!(store.looks_at(OBSERVER, "a").await.expect("ask"), None);
}

/// Pages go by the due time and meet each subject once, although what they list is noted meanwhile.
pub async fn what_is_due_is_listed_in_order_and_once(fixture: &impl StoreFixture) {
    let long_ago = |days| Look::At(DateTime::UNIX_EPOCH + TimeDelta::days(days));
    let mut watches = vec![
        watch("late", 1, long_ago(2)),
        watch("early", 1, long_ago(1)),
        watch("future", 1, Look::At(Utc::now() + TimeDelta::days(400))),
        watch("held", 1, Look::Held(HOUR)),
    ];
    watches.extend((0..5).map(|number| watch(&format!("now-{number}"), 1, Look::AtNextScan)));
    let store = watching(fixture, &watches).await;
    let lease = hold_new_lease(&*store).await;
    let expected = ["now-0", "now-1", "now-2", "now-3", "now-4", "early", "late"];
    for limit in [1, 2, 7, 8] {
        let (mut met, mut place) = (Vec::new(), None);
        loop {
            let page = store.due_subjects(OBSERVER, place.as_ref(), limit).await.expect("a page");
            for listed in &page.listed {
                // Due again in a moment, and so after the beginning of this scan; SQLite counts milliseconds.
                note(&*store, &lease, &[seen(&listed.subject_id, 1, Duration::from_millis(1))]).await;
            }
            met.extend(page.listed.into_iter().map(|listed| listed.subject_id));
            place = page.next;
            if place.is_none() {
                break;
            }
        }
        assert_eq!(met, expected, "{limit} at a time");
        put(&*store, &watches).await;
    }
    let page = store.due_subjects("nobody", None, 10).await.expect("a page");
    assert_eq!(page, DuePage::default());
}

/// The same subject of two observers is two.
pub async fn observers_do_not_see_each_others_subjects(fixture: &impl StoreFixture) {
    let store = watching(fixture, &[watch("a", 1, Look::AtOnce), watch("b", 1, Look::AtOnce)]).await;
    let lease = hold_new_lease(&*store).await;
    let mut tx = store.begin().await.expect("begin");
    let other = Watch { goal: "READY".to_owned(), ..watch("a", 7, Look::AtOnce) };
    tx.watch("other", &[other]).await.expect("watch");
    tx.commit().await.expect("commit");
    store.note_looks(&lease, "other", &[failed("a", 7, HOUR, "away")]).await.expect("note");
    store.begin_look("other", "a").await.expect("begin a look");
    assert_eq!(due_ids(&*store).await, ["a", "b"]);
    assert_eq!(looks(&*store, "a").await, Looks::default());
    assert_eq!(store.hinted_subjects("other", &["hint-b".to_owned()]).await.expect("ask"), []);
    let mut tx = store.begin().await.expect("begin");
    tx.unwatch(OBSERVER, &["a".to_owned()]).await.expect("unwatch");
    tx.wait_anew(OBSERVER).await.expect("wait anew");
    tx.look_at_all(OBSERVER).await.expect("look at all");
    tx.commit().await.expect("commit");
    let left = store.begin_look("other", "a").await.expect("begin a look").expect("it is watched");
    assert!(left.version == 7 && left.goal_begun_at.is_some_and(|begun| begun < left.now), "{left:?}");
    assert_eq!(store.due_subjects("other", None, 10).await.expect("ask").listed, []);
}

/// Facts that are taken in late do not undo newer ones; the same again is taken.
pub async fn what_is_older_replaces_nothing(fixture: &impl StoreFixture) {
    let newer = Watch { goal: "READY".to_owned(), ..watch("a", 5, Look::Held(HOUR)) };
    let store = watching(fixture, std::slice::from_ref(&newer)).await;
    let begun = begin(&*store, "a").await;
    put(&*store, &[Watch { hint: "old".to_owned(), ..watch("a", 4, Look::UntilSeen) }]).await;
    assert_eq!(due(&*store).await, []);
    let known = begin(&*store, "a").await;
    assert_eq!(Watched { now: begun.now, ..known }, begun);
    assert_eq!((begun.wanted.as_str(), begun.hint.as_str()), (newer.wanted.as_str(), "hint-a"));
    for (version, wanted) in [(5, "\"again\""), (6, "\"newest\"")] {
        let wanted = wanted.to_owned();
        put(&*store, &[Watch { wanted: wanted.clone(), ..watch("a", version, Look::AtOnce) }]).await;
        assert_eq!((due_ids(&*store).await, begin(&*store, "a").await.wanted), (vec!["a".into()], wanted));
    }
    let mut tx = store.begin().await.expect("begin");
    let locked = tx.watched(OBSERVER, &["a".to_owned(), "nobody".to_owned()]).await.expect("read");
    tx.rollback().await.expect("roll back");
    assert_eq!(locked.iter().map(|it| (it.subject_id.as_str(), it.version)).collect::<Vec<_>>(), [("a", 6)]);
}

/// While more is on its way, neither a scan nor a hint leads to a look.
pub async fn what_is_held_is_found_by_no_hint(fixture: &impl StoreFixture) {
    let later = Look::At(Utc::now() + TimeDelta::days(400));
    let store = watching(fixture, &[watch("held", 1, Look::Held(HOUR)), watch("later", 1, later)]).await;
    let hints = ["hint-held".to_owned(), "hint-later".to_owned(), "hint-nobody".to_owned()];
    let found = store.hinted_subjects(OBSERVER, &hints).await.expect("ask");
    assert_eq!(found.iter().map(|it| it.subject_id.as_str()).collect::<Vec<_>>(), ["later"]);
    assert_eq!(due(&*store).await, []);
    assert!(begin(&*store, "held").await.is_held);
    // A failed look does not make it due before the rest has come.
    let lease = hold_new_lease(&*store).await;
    put(&*store, &[watch("held", 2, Look::Held(HOUR))]).await;
    note(&*store, &lease, &[failed("held", 1, Duration::ZERO, "away")]).await;
    assert_eq!(due(&*store).await, []);
    put(&*store, &[watch("held", 3, Look::AtNextScan)]).await;
    assert_eq!(due_ids(&*store).await, ["held"]);
    assert_eq!(store.hinted_subjects(OBSERVER, &hints).await.expect("ask").len(), 2);
    // What is held too long is looked at all the same.
    put(&*store, &[watch("held", 4, Look::Held(Duration::ZERO))]).await;
    assert!(due(&*store).await.iter().all(|listed| listed.is_held && listed.subject_id == "held"));
    assert_eq!(due(&*store).await.len(), 1);
}

/// Somebody has asked: facts that say that all is well do not end that, and a look does.
pub async fn what_was_asked_for_stays_due_until_it_is_seen(fixture: &impl StoreFixture) {
    let later = Look::At(Utc::now() + TimeDelta::days(400));
    let store = watching(fixture, &[watch("asked", 1, Look::UntilSeen), watch("not", 1, Look::AtOnce)]).await;
    let lease = hold_new_lease(&*store).await;
    put(&*store, &[watch("asked", 2, Look::Held(HOUR)), watch("not", 2, later)]).await;
    assert_eq!(due(&*store).await, [], "more is on its way");
    put(&*store, &[watch("asked", 3, later), watch("not", 3, later)]).await;
    assert_eq!(due_ids(&*store).await, ["asked"]);
    note(&*store, &lease, &[failed("asked", 3, Duration::ZERO, "away")]).await;
    put(&*store, &[watch("asked", 4, later)]).await;
    assert_eq!(due_ids(&*store).await, ["asked"], "it was not seen");
    note(&*store, &lease, &[seen("asked", 4, HOUR)]).await;
    put(&*store, &[watch("asked", 5, later)]).await;
    assert_eq!(due(&*store).await, []);
}

/// Waits until it is later. SQLite tells the time by milliseconds.
async fn time_goes_on(store: &dyn Store, than: DateTime<Utc>) {
    let later = async || (store.now().await.expect("the time") > than).then_some(());
    eventually("time goes on", later).await;
}

/// The wait begins with the first look, lasts while the goal is the same, and begins anew when that is said.
pub async fn a_goal_is_waited_for_from_the_first_look_on(fixture: &impl StoreFixture) {
    let with = |version, goal: &str| Watch { goal: goal.to_owned(), ..watch("a", version, Look::AtOnce) };
    let store = watching(fixture, &[with(1, "READY")]).await;
    let locked = async || {
        let mut tx = store.begin().await.expect("begin");
        let watched = tx.watched(OBSERVER, &["a".to_owned()]).await.expect("read").remove(0);
        tx.rollback().await.expect("roll back");
        watched
    };
    assert_eq!(locked().await.goal_begun_at, None, "nobody has looked");
    let first = begin(&*store, "a").await;
    assert_eq!(first.goal_begun_at, Some(first.now));
    time_goes_on(&*store, first.now).await;
    put(&*store, &[with(2, "READY")]).await;
    let again = begin(&*store, "a").await;
    assert_eq!(again.goal_begun_at, first.goal_begun_at);
    assert!(again.now > first.now);
    put(&*store, &[with(3, "GONE")]).await;
    let other = begin(&*store, "a").await;
    assert_eq!((other.goal.as_str(), other.goal_begun_at), ("GONE", Some(other.now)));
    let mut tx = store.begin().await.expect("begin");
    tx.wait_anew(OBSERVER).await.expect("wait anew");
    tx.commit().await.expect("commit");
    assert_eq!(locked().await.goal_begun_at, None);
    let anew = begin(&*store, "a").await;
    assert_eq!(anew.goal_begun_at, Some(anew.now));
    put(&*store, &[with(4, "")]).await;
    assert_eq!(begin(&*store, "a").await.goal_begun_at, None, "nothing is waited for");
}

/// Each look has its own pause; all are noted together.
pub async fn a_look_that_ended_says_when_the_next_is_due(fixture: &impl StoreFixture) {
    let watches: Vec<Watch> =
        (0..150).map(|number| watch(&format!("{number:03}"), 1, Look::AtOnce)).collect();
    let store = watching(fixture, &watches).await;
    let lease = hold_new_lease(&*store).await;
    let pause = |number: usize| if number.is_multiple_of(3) { Duration::ZERO } else { HOUR };
    let noted: Vec<NotedLook> = (0..150_usize)
        .map(|number| match number.is_multiple_of(2) {
            true => seen(&format!("{number:03}"), 1, pause(number)),
            false => failed(&format!("{number:03}"), 1, pause(number), "away"),
        })
        .collect();
    let before = store.now().await.expect("the time");
    note(&*store, &lease, &noted).await;
    note(&*store, &lease, &[]).await;
    // As good as never, and no moment that a database cannot write down.
    note(&*store, &lease, &[seen("001", 1, Duration::MAX), failed("004", 1, Duration::MAX, "away")]).await;
    put(&*store, &[watch("007", 1, Look::Held(Duration::MAX))]).await;
    let listed = due(&*store).await;
    let ids: Vec<&str> = listed.iter().map(|listed| listed.subject_id.as_str()).collect();
    let mut expected: Vec<String> = (0..150).step_by(3).map(|number| format!("{number:03}")).collect();
    expected.sort_by_key(|id| ids.iter().position(|listed| listed == id));
    assert_eq!(ids, expected);
    assert!(listed.iter().all(|listed| listed.due_at >= before), "by the database's time");
    let (even, odd) = (looks(&*store, "002").await, looks(&*store, "005").await);
    assert!(even.looked_at.is_some_and(|at| at >= before) && even.failure.is_none(), "{even:?}");
    assert!(odd.looked_at.is_none() && odd.failure.is_some(), "{odd:?}");
}

/// What is wanted since a look began is due as it says; a look that failed lets nothing wait for longer than its pause.
pub async fn a_look_at_something_older_moves_nothing_newer(fixture: &impl StoreFixture) {
    let later = Look::At(Utc::now() + TimeDelta::days(400));
    let store = watching(fixture, &[watch("now", 2, Look::AtOnce), watch("later", 2, later)]).await;
    let lease = hold_new_lease(&*store).await;
    note(&*store, &lease, &[seen("now", 1, HOUR), seen("later", 1, Duration::ZERO)]).await;
    assert_eq!(due_ids(&*store).await, ["now"]);
    assert!(looks(&*store, "later").await.looked_at.is_some(), "it was looked at all the same");
    note(&*store, &lease, &[failed("now", 1, HOUR, "away"), failed("later", 1, Duration::ZERO, "away")])
        .await;
    assert_eq!(due_ids(&*store).await, ["now", "later"]);
}

/// What fails since long fails since then, also for another reason; a look that comes to its end ends it.
pub async fn a_failure_is_kept_until_a_look_comes_to_its_end(fixture: &impl StoreFixture) {
    let store = watching(fixture, &[watch("a", 1, Look::AtOnce), watch("b", 1, Look::AtOnce)]).await;
    let lease = hold_new_lease(&*store).await;
    note(&*store, &lease, &[failed("a", 1, HOUR, "away"), failed("b", 1, HOUR, "forbidden")]).await;
    let first = looks(&*store, "a").await.failure.expect("it fails");
    assert_eq!((first.code.as_str(), first.message.as_str(), first.times), ("away", "away of a", 1));
    assert_eq!(first.since, first.failed_at);
    assert_eq!(looks(&*store, "b").await.failure.expect("it fails").message, "forbidden of b");
    put(&*store, &[watch("a", 2, Look::AtOnce)]).await;
    time_goes_on(&*store, first.failed_at).await;
    note(&*store, &lease, &[failed("a", 1, HOUR, "busy")]).await;
    let again = looks(&*store, "a").await.failure.expect("it fails");
    let expected = LookFailure {
        code: "busy".to_owned(),
        message: "busy of a".to_owned(),
        since: first.since,
        failed_at: again.failed_at,
        times: 2,
    };
    assert_eq!(again, expected);
    assert!(again.failed_at > first.failed_at);
    note(&*store, &lease, &[seen("a", 1, HOUR), failed("gone", 1, HOUR, "away")]).await;
    let over = looks(&*store, "a").await;
    assert!(over.failure.is_none() && over.looked_at >= Some(again.failed_at), "{over:?}");
    assert_eq!(store.looks_at(OBSERVER, "gone").await.expect("ask"), None);
    // What is too long for its column, or no text at all, is shortened and not refused.
    let odd = NotedLook { failure: Some(("c".repeat(500), "a\0b".repeat(50_000))), ..seen("a", 2, HOUR) };
    note(&*store, &lease, &[odd]).await;
    let shortened = looks(&*store, "a").await.failure.expect("it fails");
    assert_eq!((shortened.code.len(), shortened.message.contains('\0'), shortened.times), (128, false, 1));
}

/// A process that was paused beyond its lease says nothing about what others look at.
pub async fn who_has_lost_the_lease_notes_nothing(fixture: &impl StoreFixture) {
    let store = watching(fixture, &[watch("a", 1, Look::UntilSeen)]).await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    note(&*store, &stale, &[seen("a", 1, HOUR)]).await;
    note(&*store, &stale, &[failed("a", 1, HOUR, "away")]).await;
    assert_eq!((due_ids(&*store).await, looks(&*store, "a").await), (vec!["a".into()], Looks::default()));
    note(&*store, &fresh, &[seen("a", 1, HOUR)]).await;
    assert_eq!(due(&*store).await, []);
}

/// After a rebuild everything is looked at: what was asked for first, and what is half known when the rest has come.
pub async fn all_are_due_again_after_what_was_asked_for(fixture: &impl StoreFixture) {
    let later = Look::At(Utc::now() + TimeDelta::days(400));
    let watches = [watch("a", 1, later), watch("b", 1, Look::AtOnce), watch("c", 1, Look::Held(HOUR))];
    let store = watching(fixture, &watches).await;
    let mut tx = store.begin().await.expect("begin");
    tx.look_at_all(OBSERVER).await.expect("look at all");
    tx.commit().await.expect("commit");
    assert_eq!(due_ids(&*store).await, ["b", "a"]);
}

/// What another table has known of a subject is kept; what is known here already is not undone.
pub async fn what_was_watched_elsewhere_is_adopted_with_what_is_known(fixture: &impl StoreFixture) {
    let at = |days| DateTime::UNIX_EPOCH + TimeDelta::days(days);
    let adopted = |subject_id: &str| Adopted {
        watch: Watch { goal: "READY".to_owned(), ..watch(subject_id, 3, Look::At(at(1))) },
        goal_begun_at: Some(at(2)),
        looks: Looks {
            looked_at: Some(at(3)),
            failure: Some(LookFailure {
                code: "away".to_owned(),
                message: "nobody is there".to_owned(),
                since: at(4),
                failed_at: at(5),
                times: 6,
            }),
        },
    };
    let known = Watch { goal: "READY".to_owned(), ..watch("known", 4, Look::AtOnce) };
    let store = watching(fixture, &[known]).await;
    let begun = begin(&*store, "known").await;
    let all = [adopted("new"), adopted("known")];
    for _ in 0..2 {
        let mut tx = store.begin().await.expect("begin");
        tx.adopt(OBSERVER, &all).await.expect("adopt");
        tx.commit().await.expect("commit");
    }
    let new = begin(&*store, "new").await;
    assert_eq!((new.version, new.goal_begun_at), (3, Some(at(2))));
    assert_eq!(looks(&*store, "new").await, all[0].looks);
    let due_at: Vec<_> = due(&*store).await.into_iter().map(|it| (it.subject_id, it.due_at)).collect();
    assert_eq!(due_at, [("known".to_owned(), at(0)), ("new".to_owned(), at(1))]);
    let known = begin(&*store, "known").await;
    assert_eq!(Watched { now: begun.now, ..known }, begun);
    assert_eq!(looks(&*store, "known").await, Looks::default());
}

/// More than one statement may carry, and what is not read with a listing.
pub async fn texts_of_any_size_are_kept_to_the_letter(fixture: &impl StoreFixture) {
    let wanted = |number: usize| format!("{{\"n\": {number}.50, \"text\": \"{}\"}}", "ä".repeat(300_000));
    let mut watches: Vec<Watch> = (0..20)
        .map(|number| Watch {
            wanted: wanted(number),
            ..watch(&format!("large-{number:02}"), 1, Look::AtOnce)
        })
        .collect();
    watches.extend((0..3_000).map(|number| watch(&format!("small-{number}"), 1, Look::AtOnce)));
    let store = watching(fixture, &watches).await;
    put(&*store, &watches).await;
    assert_eq!(begin(&*store, "large-07").await.wanted, wanted(7));
    let page = store.due_subjects(OBSERVER, None, 10_000).await.expect("a page");
    assert_eq!((page.listed.len(), page.next), (3_020, None));
    let subjects: Vec<String> = watches.into_iter().map(|watch| watch.subject_id).collect();
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.watched(OBSERVER, &subjects[18..]).await.expect("read").len(), 3_002);
    tx.unwatch(OBSERVER, &subjects).await.expect("unwatch");
    tx.commit().await.expect("commit");
    assert_eq!(due(&*store).await, []);
}

/// Eight take facts of one subject in at once, in any order: the newest is what is left.
pub async fn writers_of_one_subject_leave_the_newest(fixture: &impl StoreFixture) {
    let mut writers = Vec::new();
    for version in 1..=8 {
        let store = fixture.store().await;
        writers.push(async move {
            for subject in ["a", "b"] {
                put(&*store, &[watch(subject, version, Look::AtOnce)]).await;
            }
        });
    }
    all_at_once(writers).await;
    let store = fixture.store().await;
    for subject in ["a", "b"] {
        let left = begin(&*store, subject).await;
        assert_eq!((left.version, left.wanted.as_str()), (8, "{\"version\":8}"));
    }
}
