//! Observers: what is due is looked at, what follows is sent, and nobody holds up the others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath::observer::{
    Decision, ExternalResources, Hints, Looked, ObserveError, Observer, ObserverPolicy, ObserverWake,
    Platform,
};
use towpath::ports::store::StoreResult;
use towpath::{SqlStore, Towpath};

use support::{Fresh, Order, OrderCommand, eventually};

/// How a resource answers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    There,
    Never,
    Panic,
    Away,
}

/// Resources in memory: each is due until it was seen.
#[derive(Clone, Default)]
struct Shelf {
    due: Arc<Mutex<BTreeSet<String>>>,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    hints: Arc<Mutex<Option<tokio::sync::mpsc::UnboundedReceiver<String>>>>,
}

impl Shelf {
    fn put(&self, name: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(name.to_owned(), answer);
        self.due.lock().unwrap().insert(name.to_owned());
    }
}

impl ExternalResources for Shelf {
    type Resource = String;
    type Evidence = ();

    fn key(&self, name: &String) -> String {
        name.clone()
    }

    async fn due(
        &self,
        _: &SqlStore,
        _: DateTime<Utc>,
        after: Option<&String>,
        limit: u32,
    ) -> StoreResult<Vec<String>> {
        let due = self.due.lock().unwrap();
        let behind = due.iter().filter(|name| after.is_none_or(|after| *name > after));
        Ok(behind.take(limit as usize).cloned().collect())
    }

    async fn named(&self, _: &SqlStore, hints: &[String]) -> StoreResult<Vec<String>> {
        Ok(hints.to_vec())
    }

    async fn observe(&self, name: &String) -> Result<(), ObserveError> {
        let answer = self.answers.lock().unwrap().get(name).copied();
        match answer {
            Some(Answer::There) => Ok(()),
            Some(Answer::Never) => std::future::pending().await,
            Some(Answer::Panic) => panic!("on purpose"),
            Some(Answer::Away) | None => Err(ObserveError::of_platform("away", "nobody is there")),
        }
    }

    fn decide(&self, name: &String, (): (), _: DateTime<Utc>) -> Vec<Decision> {
        let place = OrderCommand::Place { sku: name.clone() };
        vec![Decision::of::<Order>(name, &place).unwrap().once(format!("seen/{name}"))]
    }

    async fn note(&self, _: &SqlStore, looked: &[Looked<String>]) -> StoreResult<()> {
        let mut due = self.due.lock().unwrap();
        for look in looked.iter().filter(|look| look.failure.is_none()) {
            due.remove(&look.resource);
        }
        Ok(())
    }

    async fn watch(&self) -> Result<Option<Hints>, ObserveError> {
        let hints = self.hints.lock().unwrap().take();
        Ok(hints.map(|mut hints| -> Hints {
            Box::pin(futures_util::stream::poll_fn(move |context| hints.poll_recv(context)))
        }))
    }
}

fn policy() -> ObserverPolicy {
    ObserverPolicy {
        interval: Duration::from_millis(100),
        concurrency: 2,
        timeout: Duration::from_secs(1),
        // Several pages, also of few.
        page: 3,
        down_after: 3,
    }
}

async fn start(fresh: &Fresh, shelf: &Shelf, policy: ObserverPolicy) -> (Towpath, ObserverWake) {
    let wake = ObserverWake::default();
    let observer = Observer::named("shelf", shelf.clone(), policy, wake.clone());
    (fresh.builder().observer(observer).start().await.unwrap(), wake)
}

async fn was_seen(app: &Towpath, name: &str) {
    eventually(&format!("{name} is seen"), || async { app.load::<Order>(name).await.unwrap() }).await;
}

async fn what_is_due_is_looked_at_and_what_follows_is_sent(fresh: &Fresh) {
    let shelf = Shelf::default();
    let names: Vec<String> = (0..10).map(|number| format!("book-{number}")).collect();
    names.iter().for_each(|name| shelf.put(name, Answer::There));
    let (app, wake) =
        start(fresh, &shelf, ObserverPolicy { interval: Duration::from_secs(3600), ..policy() }).await;
    for name in &names {
        was_seen(&app, name).await;
    }
    eventually("all are noted", || async { shelf.due.lock().unwrap().is_empty().then_some(()) }).await;
    shelf.put("late", Answer::There);
    wake.wake();
    was_seen(&app, "late").await;
    let standing = app.observers().remove(0);
    assert_eq!((standing.looks, standing.failures, standing.looking), (11, 0, true));
    app.stop().await;
}

async fn one_that_hangs_or_panics_holds_up_nobody(fresh: &Fresh) {
    let shelf = Shelf::default();
    shelf.put("a-hanging", Answer::Never);
    shelf.put("b-panicking", Answer::Panic);
    let (app, _) = start(fresh, &shelf, policy()).await;
    for number in 0..10 {
        let name = format!("book-{number}");
        shelf.put(&name, Answer::There);
        was_seen(&app, &name).await;
    }
    let standing = app.observers().remove(0);
    assert!(standing.failures > 0 && standing.platform == Platform::Up, "{standing:?}");
    assert!(app.load::<Order>("a-hanging").await.unwrap().is_none());
    // What was wrong with them goes away, and they are seen.
    shelf.put("a-hanging", Answer::There);
    shelf.put("b-panicking", Answer::There);
    was_seen(&app, "a-hanging").await;
    was_seen(&app, "b-panicking").await;
    app.stop().await;
}

async fn a_platform_that_is_away_is_told_and_comes_back(fresh: &Fresh) {
    let shelf = Shelf::default();
    let names: Vec<String> = (0..5).map(|number| format!("book-{number}")).collect();
    names.iter().for_each(|name| shelf.put(name, Answer::Away));
    let (app, _) = start(fresh, &shelf, policy()).await;
    eventually("it is told", || async {
        let standing = app.observers().into_iter().next()?;
        matches!(standing.platform, Platform::Down { .. }).then_some(())
    })
    .await;
    assert!(app.load::<Order>("book-0").await.unwrap().is_none());
    names.iter().for_each(|name| shelf.put(name, Answer::There));
    for name in &names {
        was_seen(&app, name).await;
    }
    assert_eq!(app.observers().remove(0).platform, Platform::Up);
    app.stop().await;
}

async fn a_hint_is_looked_at_between_scans(fresh: &Fresh) {
    let shelf = Shelf::default();
    let (hint, hints) = tokio::sync::mpsc::unbounded_channel();
    *shelf.hints.lock().unwrap() = Some(hints);
    let (app, _) =
        start(fresh, &shelf, ObserverPolicy { interval: Duration::from_secs(3600), ..policy() }).await;
    shelf.answers.lock().unwrap().insert("hinted".to_owned(), Answer::There);
    hint.send("hinted".to_owned()).unwrap();
    was_seen(&app, "hinted").await;
    app.stop().await;
}

on_every_database!(
    what_is_due_is_looked_at_and_what_follows_is_sent,
    one_that_hangs_or_panics_holds_up_nobody,
    a_platform_that_is_away_is_told_and_comes_back,
    a_hint_is_looked_at_between_scans,
);
