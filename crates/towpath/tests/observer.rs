//! Observers: what is due is looked at, what follows is sent, and nobody holds up the others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use towpath::observer::{
    Decision, ExternalResources, Hints, Look, Looks, ObserveError, Observer, ObserverPolicy, ObserverWake,
    Platform, Watch, Watched,
};
use towpath::ports::store::{StoreError, StoreResult};
use towpath::tables::{OwnTables, Value};
use towpath::{SqlStore, StoreOptions, Towpath};
use towpath_testkit::CountingProbe;

use support::{Fresh, Order, OrderCommand, eventually};

/// How a resource answers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    There,
    Never,
    Panic,
    /// No answer, about this one.
    Away,
    /// An answer: not before an hour.
    Busy,
    /// An answer, when somebody lets it through: one look for a permit.
    Held,
}

/// Resources in memory, each looked at once unless something else is said.
#[derive(Clone)]
struct Shelf {
    /// How often something was wanted.
    versions: Arc<AtomicU64>,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    hints: Arc<Mutex<Option<tokio::sync::mpsc::UnboundedReceiver<String>>>>,
    /// How often each was looked at.
    looks: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Whether nobody answers.
    away: Arc<AtomicBool>,
    /// What the application was told of the platform.
    told: Arc<Mutex<Vec<Platform>>>,
    gate: Arc<tokio::sync::Semaphore>,
    /// What stays due whether it was seen or not.
    always: Arc<Mutex<BTreeSet<String>>>,
    /// What is not to be looked at any more when its turn comes.
    withdrawn: Arc<Mutex<BTreeSet<String>>>,
    /// How many hints were given.
    given: Arc<AtomicUsize>,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            versions: Arc::default(),
            answers: Arc::default(),
            hints: Arc::default(),
            looks: Arc::default(),
            away: Arc::default(),
            told: Arc::default(),
            gate: Arc::new(tokio::sync::Semaphore::new(0)),
            always: Arc::default(),
            withdrawn: Arc::default(),
            given: Arc::default(),
        }
    }
}

impl Shelf {
    /// Wants it to be looked at now.
    async fn put(&self, app: &Towpath, name: &str, answer: Answer) {
        self.put_all(app, &[name.to_owned()], answer, Look::AtOnce).await;
    }

    async fn put_all(&self, app: &Towpath, names: &[String], answer: Answer, look: Look) {
        let version = self.versions.fetch_add(1, Ordering::SeqCst) + 1;
        let mut watches = Vec::new();
        for name in names {
            self.answers.lock().unwrap().insert(name.clone(), answer);
            let (subject_id, hint) = (name.clone(), name.clone());
            let (wanted, goal) = ("{}".to_owned(), String::new());
            watches.push(Watch { subject_id, hint, version, wanted, goal, look });
        }
        let watched = app.transact(async |mut tx| {
            tx.watch("shelf", &watches).await?;
            Ok::<_, StoreError>(())
        });
        watched.await.unwrap();
    }

    fn looked(&self, name: &str) -> u32 {
        self.looks.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

impl ExternalResources for Shelf {
    type Resource = String;
    type Evidence = ();

    async fn resource(&self, _: &SqlStore, watched: Watched) -> StoreResult<Option<String>> {
        let withdrawn = self.withdrawn.lock().unwrap().contains(&watched.subject_id);
        Ok((!withdrawn).then_some(watched.subject_id))
    }

    async fn observe(&self, name: &String) -> Result<(), ObserveError> {
        *self.looks.lock().unwrap().entry(name.clone()).or_default() += 1;
        let answer = self.answers.lock().unwrap().get(name).copied();
        self.reachable().await?;
        match answer {
            Some(Answer::There) => Ok(()),
            Some(Answer::Never) => std::future::pending().await,
            Some(Answer::Panic) => panic!("on purpose"),
            Some(Answer::Held) => {
                self.gate.acquire().await.unwrap().forget();
                Ok(())
            }
            Some(Answer::Busy) => Err(ObserveError::later("busy", "not now", Duration::from_secs(3600))),
            Some(Answer::Away) | None => Err(ObserveError::unanswered("away", "nobody is there")),
        }
    }

    async fn reachable(&self) -> Result<(), ObserveError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(ObserveError::unanswered("away", "nobody is there")),
            false => Ok(()),
        }
    }

    async fn platform_is(
        &self,
        _: &mut OwnTables<'_>,
        platform: &Platform,
        _: DateTime<Utc>,
    ) -> StoreResult<bool> {
        self.told.lock().unwrap().push(platform.clone());
        Ok(true)
    }

    fn decide(&self, name: &String, (): (), _: DateTime<Utc>) -> Vec<Decision> {
        let place = OrderCommand::Place { sku: name.clone() };
        vec![Decision::of::<Order>(name, &place).unwrap().once(format!("seen/{name}"))]
    }

    fn look_again_after(&self, name: &String) -> Duration {
        match self.always.lock().unwrap().contains(name) {
            true => Duration::from_millis(1),
            false => Duration::from_secs(3600),
        }
    }

    async fn watch(&self) -> Result<Option<Hints>, ObserveError> {
        let hints = self.hints.lock().unwrap().take();
        let given = self.given.clone();
        Ok(hints.map(|mut hints| -> Hints {
            Box::pin(futures_util::stream::poll_fn(move |context| {
                let hint = hints.poll_recv(context);
                if matches!(hint, std::task::Poll::Ready(Some(_))) {
                    given.fetch_add(1, Ordering::SeqCst);
                }
                hint
            }))
        }))
    }
}

fn policy() -> ObserverPolicy {
    ObserverPolicy {
        poll: Duration::from_millis(100),
        concurrency: 2,
        timeout: Duration::from_secs(1),
        // Several pages, also of few.
        page: 3,
        down_after: 3,
        longest_pause: Duration::from_secs(4),
    }
}

async fn start(fresh: &Fresh, shelf: &Shelf, policy: ObserverPolicy) -> (Towpath, ObserverWake) {
    let wake = ObserverWake::default();
    let observer = Observer::named("shelf", shelf.clone(), policy, wake.clone());
    (fresh.builder().observer(observer).start().await.unwrap(), wake)
}

/// What is known of the looks at one.
async fn looks_at(app: &Towpath, name: &str) -> Looks {
    app.store().looks_at("shelf", name).await.unwrap().unwrap()
}

async fn was_seen(app: &Towpath, name: &str) {
    eventually(&format!("{name} is seen"), || async { app.load::<Order>(name).await.unwrap() }).await;
}

async fn what_is_due_is_looked_at_and_what_follows_is_sent(fresh: &Fresh) {
    let shelf = Shelf::default();
    let names: Vec<String> = (0..10).map(|number| format!("book-{number}")).collect();
    let (app, _) = start(fresh, &shelf, ObserverPolicy { poll: Duration::from_secs(3600), ..policy() }).await;
    shelf.put_all(&app, &names, Answer::There, Look::AtOnce).await;
    for name in &names {
        was_seen(&app, name).await;
        eventually("it is noted", || async { looks_at(&app, name).await.looked_at }).await;
    }
    // Nobody scans by itself in the time of this test: the commit has woken it.
    shelf.put(&app, "late", Answer::There).await;
    was_seen(&app, "late").await;
    // It is counted before it is noted.
    eventually("it is noted", || async { looks_at(&app, "late").await.looked_at }).await;
    let status = app.observers().remove(0);
    assert_eq!((status.looks, status.failures, status.looking), (11, 0, true));
    app.stop().await;
}

async fn one_that_hangs_or_panics_holds_up_nobody(fresh: &Fresh) {
    let shelf = Shelf::default();
    let (app, _) = start(fresh, &shelf, policy()).await;
    shelf.put(&app, "a-hanging", Answer::Never).await;
    shelf.put(&app, "b-panicking", Answer::Panic).await;
    for number in 0..10 {
        let name = format!("book-{number}");
        shelf.put(&app, &name, Answer::There).await;
        was_seen(&app, &name).await;
    }
    let status = app.observers().remove(0);
    assert!(status.failures > 0 && status.platform == Platform::Up, "{status:?}");
    assert!(app.load::<Order>("a-hanging").await.unwrap().is_none());
    // What was wrong with them goes away, and they are seen.
    shelf.put(&app, "a-hanging", Answer::There).await;
    shelf.put(&app, "b-panicking", Answer::There).await;
    was_seen(&app, "a-hanging").await;
    was_seen(&app, "b-panicking").await;
    app.stop().await;
}

async fn one_that_does_not_answer_is_its_own_affair(fresh: &Fresh) {
    let shelf = Shelf::default();
    // More of them than look at a time, and before all others.
    let away: Vec<String> = (0..10).map(|number| format!("a-{number}")).collect();
    let (app, _) = start(fresh, &shelf, policy()).await;
    shelf.put_all(&app, &away, Answer::Away, Look::AtOnce).await;
    for number in 0..20 {
        let name = format!("book-{number}");
        shelf.put(&app, &name, Answer::There).await;
        was_seen(&app, &name).await;
    }
    // Left alone for longer each time: for a half second, then one, then two.
    shelf.always.lock().unwrap().insert("steady".to_owned());
    shelf.put(&app, "steady", Answer::There).await;
    eventually("some time", || async { (shelf.looked("steady") >= 30).then_some(()) }).await;
    let status = app.observers().remove(0);
    assert_eq!((status.platform, status.failing), (Platform::Up, 10));
    for name in &away {
        let (looked, steady) = (shelf.looked(name), shelf.looked("steady"));
        assert!(
            (1..=steady / 2).contains(&looked),
            "{name} {looked} times, and the steady one {steady} times"
        );
    }
    assert_eq!(*shelf.told.lock().unwrap(), [Platform::Up], "told once, and nothing else");
    let failing = looks_at(&app, "a-0").await.failure.unwrap();
    assert!((failing.code.as_str(), failing.times > 1) == ("away", true), "{failing:?}");
    shelf.put_all(&app, &away, Answer::There, Look::AtOnce).await;
    for name in &away {
        was_seen(&app, name).await;
    }
    eventually("it is over", || async { looks_at(&app, "a-0").await.failure.is_none().then_some(()) }).await;
    app.stop().await;
}

/// Who says when to come back is there, and is left alone until then, unless something new is wanted.
async fn one_that_is_busy_is_left_alone_for_as_long_as_it_says(fresh: &Fresh) {
    let shelf = Shelf::default();
    shelf.always.lock().unwrap().insert("steady".to_owned());
    let (app, _) = start(fresh, &shelf, policy()).await;
    shelf.put(&app, "busy", Answer::Busy).await;
    shelf.put(&app, "steady", Answer::There).await;
    eventually("it is asked", || async { (shelf.looked("busy") == 1).then_some(()) }).await;
    // Without that it is asked again after half a second, and the next one after a second.
    let later = shelf.looked("steady") + 60;
    eventually("some time", || async { (shelf.looked("steady") >= later).then_some(()) }).await;
    assert_eq!(shelf.looked("busy"), 1);
    let status = app.observers().remove(0);
    assert_eq!((status.platform, status.failing), (Platform::Up, 1));
    assert_eq!(*shelf.told.lock().unwrap(), [Platform::Up], "it is no outage");
    shelf.put(&app, "busy", Answer::There).await;
    was_seen(&app, "busy").await;
    app.stop().await;
}

async fn a_platform_that_is_away_is_told_once_and_comes_back(fresh: &Fresh) {
    let shelf = Shelf::default();
    let (app, _) = start(fresh, &shelf, policy()).await;
    eventually("it is up", || async {
        (app.observers().into_iter().next()?.platform == Platform::Up).then_some(())
    })
    .await;
    shelf.away.store(true, Ordering::SeqCst);
    // One resource is enough to notice.
    shelf.put(&app, "book", Answer::There).await;
    eventually("it is told", || async {
        let status = app.observers().into_iter().next()?;
        matches!(status.platform, Platform::Down { .. }).then_some(())
    })
    .await;
    let looked = shelf.looked("book");
    let more: Vec<String> = (0..5).map(|number| format!("book-{number}")).collect();
    shelf.put_all(&app, &more, Answer::There, Look::AtOnce).await;
    assert!(app.load::<Order>("book").await.unwrap().is_none());
    shelf.away.store(false, Ordering::SeqCst);
    for name in ["book", "book-0", "book-1", "book-2", "book-3", "book-4"] {
        was_seen(&app, name).await;
    }
    assert!(shelf.looked("book") <= looked + 2, "nobody looks while it is away");
    assert_eq!(app.observers().remove(0).platform, Platform::Up);
    let told = shelf.told.lock().unwrap().clone();
    assert!(
        matches!(told.as_slice(), [Platform::Up, Platform::Down { code, .. }, Platform::Up] if code == "away"),
        "{told:?}"
    );
    app.stop().await;
}

async fn what_is_seen_after_the_lease_was_lost_has_no_effect(fresh: &Fresh) {
    let shelf = Shelf::default();
    let observer = Observer::named("shelf", shelf.clone(), policy(), ObserverWake::default());
    // Long enough that it does not notice by itself.
    let app = fresh.builder().lease(Duration::from_secs(60)).observer(observer).start().await.unwrap();
    shelf.put(&app, "book", Answer::Held).await;
    eventually("it looks", || async { (shelf.looked("book") > 0).then_some(()) }).await;
    let sql = "SELECT holder_id FROM leases WHERE lease_name = 'observer/shelf'";
    let rows = app.store().own_rows("test.holder", sql, Vec::new()).await.unwrap();
    let holder = rows[0].text("holder_id").unwrap();
    let sql = "UPDATE leases SET holder_id = 'other', epoch = epoch + 1 WHERE lease_name = 'observer/shelf'";
    assert_eq!(app.store().own_execute("test.take", sql, Vec::new()).await.unwrap(), 1);
    shelf.gate.add_permits(1_000);
    // It would send again and again: each is refused, and none recorded for later.
    eventually("it is refused", || async { (shelf.looked("book") > 1).then_some(()) }).await;
    assert!(app.load::<Order>("book").await.unwrap().is_none());
    let sql = "SELECT command_id FROM command_box";
    assert!(app.store().own_rows("test.commands", sql, Vec::new()).await.unwrap().is_empty());
    let sql = format!(
        "UPDATE leases SET holder_id = '{holder}', epoch = epoch - 1 WHERE lease_name = 'observer/shelf'"
    );
    app.store().own_execute("test.give", &sql, Vec::new()).await.unwrap();
    was_seen(&app, "book").await;
    app.stop().await;
}

async fn what_is_found_of_the_platform_after_the_lease_was_lost_is_not_told(fresh: &Fresh) {
    let shelf = Shelf::default();
    let observer = Observer::named("shelf", shelf.clone(), policy(), ObserverWake::default());
    // Long enough that it does not notice by itself.
    let app = fresh.builder().lease(Duration::from_secs(60)).observer(observer).start().await.unwrap();
    eventually("it is up", || async { (*shelf.told.lock().unwrap() == [Platform::Up]).then_some(()) }).await;
    let sql = "UPDATE leases SET holder_id = 'other', epoch = epoch + 1 WHERE lease_name = 'observer/shelf'";
    assert_eq!(app.store().own_execute("test.take", sql, Vec::new()).await.unwrap(), 1);
    shelf.away.store(true, Ordering::SeqCst);
    shelf.put(&app, "book", Answer::There).await;
    is_away(&app).await;
    // When it is found to be back, it has been tried to tell that it was away.
    shelf.away.store(false, Ordering::SeqCst);
    eventually("it is back", || async {
        (app.observers().into_iter().next()?.platform == Platform::Up).then_some(())
    })
    .await;
    assert_eq!(*shelf.told.lock().unwrap(), [Platform::Up]);
    app.stop().await;
}

/// Nobody scans by itself in the time of a test, and no look times out.
fn patient() -> ObserverPolicy {
    ObserverPolicy { timeout: Duration::from_secs(60), poll: Duration::from_secs(3600), ..policy() }
}

async fn all_were_seen(app: &Towpath, books: u32) {
    for number in 0..books {
        was_seen(app, &format!("book-{number}")).await;
    }
}

/// In the middle of a long scan one more is put there, before all others as what is to be done at once: it is looked at next.
async fn the_new_one_is_next(fresh: &Fresh, policy: ObserverPolicy, ask: impl FnOnce(&ObserverWake)) {
    let shelf = Shelf::default();
    // Pages of three, two looks at a time, and none of them ends.
    let books: Vec<String> = (0..30).map(|number| format!("book-{number}")).collect();
    let (app, wake) = start(fresh, &shelf, policy).await;
    shelf.put_all(&app, &books, Answer::Held, Look::AtOnce).await;
    let begun = || shelf.looks.lock().unwrap().len();
    eventually("it looks", || async { (begun() == 2).then_some(()) }).await;
    shelf.put_all(&app, &["a-new-one".to_owned()], Answer::There, Look::AtNextScan).await;
    let scanned_at = || app.observers().remove(0).scanned_at;
    let before = scanned_at();
    ask(&wake);
    eventually("it scans", || async { (scanned_at() != before).then_some(()) }).await;
    // One look ends, and the next is at what was asked for, although others were listed long before.
    shelf.gate.add_permits(1);
    eventually("it is looked at", || async { (shelf.looked("a-new-one") > 0).then_some(()) }).await;
    assert!(begun() <= 4, "{} of 31 were looked at", begun());
    shelf.gate.add_permits(1_000);
    all_were_seen(&app, 30).await;
    app.stop().await;
}

async fn what_is_asked_for_does_not_wait_behind_a_long_scan(fresh: &Fresh) {
    the_new_one_is_next(fresh, patient(), ObserverWake::wake).await;
}

async fn what_another_instance_was_asked_for_does_not_wait_behind_a_long_scan(fresh: &Fresh) {
    // Nobody wakes this one: it asks by itself.
    the_new_one_is_next(fresh, ObserverPolicy { poll: policy().poll, ..patient() }, |_| {}).await;
}

type Hint = tokio::sync::mpsc::UnboundedSender<String>;

fn with_hints() -> (Shelf, Hint) {
    let shelf = Shelf::default();
    let (hint, hints) = tokio::sync::mpsc::unbounded_channel();
    *shelf.hints.lock().unwrap() = Some(hints);
    (shelf, hint)
}

/// Not due in the time of a test.
fn much_later() -> Look {
    Look::At(Utc::now() + TimeDelta::days(400))
}

/// Ten are hinted at and none is due: two are looked at, and the others wait.
async fn ten_are_hinted_at(app: &Towpath, shelf: &Shelf, hint: &Hint) {
    let names: Vec<String> = (0..10).map(|number| format!("book-{number}")).collect();
    shelf.put_all(app, &names, Answer::Held, much_later()).await;
    names.into_iter().for_each(|name| hint.send(name).unwrap());
    let begun = || shelf.looks.lock().unwrap().len();
    eventually("two are looked at", || async { (begun() == 2).then_some(()) }).await;
    eventually("all are given", || async { (shelf.given.load(Ordering::SeqCst) == 10).then_some(()) }).await;
}

async fn hints_are_not_forgotten_when_the_lease_is_lost(fresh: &Fresh) {
    let (shelf, hint) = with_hints();
    let observer = Observer::named("shelf", shelf.clone(), patient(), ObserverWake::default());
    let app = fresh.builder().lease(Duration::from_secs(6)).observer(observer).start().await.unwrap();
    ten_are_hinted_at(&app, &shelf, &hint).await;
    // Somebody else has it until that was noticed, and then nobody.
    let hour = TimeDelta::hours(1);
    let sql = "UPDATE leases SET holder_id = 'other', epoch = epoch + 1, expires_at = ? \
         WHERE lease_name = 'observer/shelf'";
    let until = vec![Value::from(Utc::now() + hour)];
    assert_eq!(app.store().own_execute("test.take", sql, until).await.unwrap(), 1);
    eventually("it looks no more", || async { (!app.observers().remove(0).looking).then_some(()) }).await;
    let sql = "UPDATE leases SET expires_at = ? WHERE lease_name = 'observer/shelf'";
    let until = vec![Value::from(Utc::now() - hour)];
    assert_eq!(app.store().own_execute("test.leave", sql, until).await.unwrap(), 1);
    shelf.gate.add_permits(1_000);
    all_were_seen(&app, 10).await;
    app.stop().await;
}

async fn hints_are_not_forgotten_when_the_platform_goes_away(fresh: &Fresh) {
    let (shelf, hint) = with_hints();
    let (app, _) = start(fresh, &shelf, patient()).await;
    eventually("it is up", || async {
        (app.observers().into_iter().next()?.platform == Platform::Up).then_some(())
    })
    .await;
    ten_are_hinted_at(&app, &shelf, &hint).await;
    shelf.away.store(true, Ordering::SeqCst);
    // The end of hints is a reason to ask.
    drop(hint);
    is_away(&app).await;
    assert_eq!(shelf.looks.lock().unwrap().len(), 2);
    shelf.gate.add_permits(1_000);
    shelf.away.store(false, Ordering::SeqCst);
    all_were_seen(&app, 10).await;
    app.stop().await;
}

async fn what_is_withdrawn_is_not_looked_at(fresh: &Fresh) {
    let shelf = Shelf::default();
    shelf.withdrawn.lock().unwrap().insert("a-book".to_owned());
    shelf.always.lock().unwrap().insert("other".to_owned());
    let (app, _) = start(fresh, &shelf, policy()).await;
    shelf.put(&app, "a-book", Answer::There).await;
    shelf.put(&app, "other", Answer::There).await;
    eventually("some scans", || async { (shelf.looked("other") > 3).then_some(()) }).await;
    assert_eq!(shelf.looked("a-book"), 0);
    app.stop().await;
}

async fn a_hint_is_looked_at_between_scans(fresh: &Fresh) {
    let (shelf, hint) = with_hints();
    let (app, _) = start(fresh, &shelf, ObserverPolicy { poll: Duration::from_secs(3600), ..policy() }).await;
    shelf.put_all(&app, &["hinted".to_owned()], Answer::There, much_later()).await;
    hint.send("hinted".to_owned()).unwrap();
    was_seen(&app, "hinted").await;
    app.stop().await;
}

async fn is_away(app: &Towpath) {
    eventually("it is told", || async {
        let status = app.observers().into_iter().next()?;
        matches!(status.platform, Platform::Down { .. }).then_some(())
    })
    .await;
}

async fn the_end_of_hints_is_a_reason_to_ask_the_platform(fresh: &Fresh) {
    let (shelf, hint) = with_hints();
    let (app, _) = start(fresh, &shelf, ObserverPolicy { poll: Duration::from_secs(3600), ..policy() }).await;
    eventually("it is up", || async {
        (app.observers().into_iter().next()?.platform == Platform::Up).then_some(())
    })
    .await;
    // Nothing is due, and nobody looks.
    shelf.away.store(true, Ordering::SeqCst);
    drop(hint);
    is_away(&app).await;
    assert!(shelf.looks.lock().unwrap().is_empty());
    app.stop().await;
}

async fn hints_that_were_missed_are_asked_for_in_parts(fresh: &Fresh) {
    let (shelf, hint) = with_hints();
    let probe = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let observer = Observer::named("shelf", shelf.clone(), policy(), ObserverWake::default());
    let app = fresh.builder().store_options(options).observer(observer).start().await.unwrap();
    let asked = || probe.take().into_iter().filter(|name| *name == "observations.hinted").count();
    shelf.away.store(true, Ordering::SeqCst);
    shelf.put(&app, "book", Answer::There).await;
    is_away(&app).await;
    (0..500).for_each(|number| hint.send(format!("book-{number}")).unwrap());
    eventually("all are given", || async { (shelf.given.load(Ordering::SeqCst) == 500).then_some(()) }).await;
    assert_eq!(asked(), 0, "nobody asks while it is away");
    // Due only because of its hint: it was not forgotten among the others.
    shelf.put_all(&app, &["book-499".to_owned()], Answer::There, much_later()).await;
    shelf.away.store(false, Ordering::SeqCst);
    was_seen(&app, "book-499").await;
    was_seen(&app, "book").await;
    assert_eq!(asked(), 3, "at most 200 in a statement");
    app.stop().await;
}

async fn one_that_fails_is_looked_at_when_something_new_is_wanted_of_it(fresh: &Fresh) {
    let shelf = Shelf::default();
    let (app, _) = start(fresh, &shelf, policy()).await;
    shelf.put(&app, "book", Answer::Busy).await;
    // By then it is left alone for an hour.
    eventually("it has failed", || async { looks_at(&app, "book").await.failure }).await;
    shelf.put(&app, "book", Answer::There).await;
    was_seen(&app, "book").await;
    app.stop().await;
}

on_every_database!(
    what_is_due_is_looked_at_and_what_follows_is_sent,
    one_that_hangs_or_panics_holds_up_nobody,
    one_that_does_not_answer_is_its_own_affair,
    one_that_is_busy_is_left_alone_for_as_long_as_it_says,
    a_platform_that_is_away_is_told_once_and_comes_back,
    what_is_seen_after_the_lease_was_lost_has_no_effect,
    what_is_found_of_the_platform_after_the_lease_was_lost_is_not_told,
    what_is_asked_for_does_not_wait_behind_a_long_scan,
    what_another_instance_was_asked_for_does_not_wait_behind_a_long_scan,
    hints_are_not_forgotten_when_the_lease_is_lost,
    hints_are_not_forgotten_when_the_platform_goes_away,
    what_is_withdrawn_is_not_looked_at,
    a_hint_is_looked_at_between_scans,
    the_end_of_hints_is_a_reason_to_ask_the_platform,
    hints_that_were_missed_are_asked_for_in_parts,
    one_that_fails_is_looked_at_when_something_new_is_wanted_of_it,
);
