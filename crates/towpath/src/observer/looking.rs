//! The loop of an observer: lists, looks, sends, notes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::store::{LeaseGrant, StoreError, StoreResult};
use towpath_core::retry::ErrorClass;
use towpath_core::time::doubled;
use towpath_store::SqlStore;

use super::standing::{Platform, Standings};
use super::watching::{HINTS_AT_ONCE, Heard, Watching};
use super::{Decision, ExternalResources, Looked, ObserveError, ObserverPolicy, ObserverWake};
use crate::bus::{Bus, SendError, with_causes};
use crate::holding::{self, Held, Keeper, while_held};
use crate::send::Send;
use crate::service::Stopping;

/// The code of the log line, and of the standing, of a platform that does not answer.
const PLATFORM_DOWN: &str = "observer-platform-down";

/// How long a resource is left alone that could not be looked at. Twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// After how many looks without an answer it is said that a resource cannot be looked at.
const SAID_AFTER: u32 = 3;

/// How long it takes until a platform that did not answer is asked again. Twice as long each time.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(200);

/// The longest that a platform that is away is not asked whether it is back.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_secs(2);

/// What an observer works with.
pub(crate) struct Eyes {
    pub(crate) name: String,
    pub(crate) bus: Bus,
    pub(crate) store: SqlStore,
    /// Wakes the command runner of this process.
    pub(crate) instance: InstanceId,
    pub(crate) lease: Duration,
    pub(crate) standings: Standings,
}

/// Runs an observer until it is told to stop.
pub(super) async fn run<R: ExternalResources>(
    eyes: Arc<Eyes>,
    resources: Arc<R>,
    policy: ObserverPolicy,
    wake: ObserverWake,
    stopping: Stopping,
) {
    let (publish, held) = watch::channel(None);
    let keeper = Keeper {
        store: eyes.bus.store.clone(),
        name: LeaseName::from_stored(format!("observer/{}", eyes.name)),
        instance: eyes.instance.clone(),
        lease: eyes.lease,
    };
    let mut looking = Looking::new(Arc::clone(&eyes), resources, policy, held);
    tokio::select! {
        () = holding::keep(&keeper, &publish) => {}
        () = looking.run(wake, stopping) => {}
    }
    // No look goes on without the lease.
    looking.in_flight.shutdown().await;
    holding::give_back(&keeper, &publish).await;
}

pub(super) fn store_failed(eyes: &Eyes, what: &str, error: &StoreError) {
    let (observer, code, cause) = (&eyes.name, error.code(), with_causes(error));
    tracing::warn!(observer, code, cause, "an observer could not {what}");
}

/// A look that has ended: the key, and what came of it.
type Look<R> = (String, Ended<R>);

enum Ended<R> {
    Looked(Looked<R>),
    /// It did not come to that: our own store failed, which says nothing about the platform.
    NotBegun(Looked<R>),
    /// It is not to be looked at any more.
    Gone,
    /// The lease may be somebody else's by now.
    Lost,
}

/// A scan that may have more pages.
struct Scan<R> {
    /// When it began. What is noted meanwhile lies behind that, so no scan meets a resource twice.
    began_at: DateTime<Utc>,
    /// The last resource of the last page.
    after: Option<R>,
}

/// A resource that could not be looked at.
struct Failing<R> {
    /// As it was when it failed.
    resource: R,
    /// Why, and whether that was said.
    code: String,
    said: bool,
    times: u32,
    not_before: Instant,
}

struct Looking<R: ExternalResources> {
    eyes: Arc<Eyes>,
    resources: Arc<R>,
    policy: ObserverPolicy,
    held: watch::Receiver<Option<Held>>,
    /// Under which it looks.
    grant: Option<LeaseGrant>,
    /// When the next scan begins.
    scan_at: Instant,
    /// Somebody has just asked for something: it does not wait behind what a scan has found.
    woken: bool,
    scanning: Option<Scan<R::Resource>>,
    waiting: Waiting<R::Resource>,
    /// Those that failed the last time: they have a row of their own, so that nobody waits behind them.
    waiting_again: Waiting<R::Resource>,
    /// Those that are looked at, as they were listed.
    in_hand: HashMap<String, R::Resource>,
    /// Those in hand that failed the last time.
    again_in_hand: HashSet<String>,
    /// Keys that were hinted at while they were in hand: looked at once more.
    hinted: HashSet<String>,
    /// Hints that the store had no answer to.
    missed: HashSet<String>,
    failing: HashMap<String, Failing<R::Resource>>,
    /// Tasks of their own: a look may hold a connection that this loop waits for.
    in_flight: JoinSet<Look<R::Resource>>,
    hints: Watching<R>,
    health: Health,
}

/// Resources that wait to be looked at, each once. Those that somebody has just asked for, or was told of, go first.
struct Waiting<R> {
    first: VecDeque<(String, R)>,
    row: VecDeque<(String, R)>,
    /// Which ones, and whether they go first.
    keys: HashMap<String, bool>,
}

impl<R> Waiting<R> {
    fn new() -> Self {
        Self { first: VecDeque::new(), row: VecDeque::new(), keys: HashMap::new() }
    }

    fn push_back(&mut self, key: String, resource: R) {
        if !self.keys.contains_key(&key) {
            self.keys.insert(key.clone(), false);
            self.row.push_back((key, resource));
        }
    }

    /// Puts it before those that were not hinted at. What waits behind already is passed over when its turn comes.
    fn push_first(&mut self, key: String, resource: R) {
        if self.keys.insert(key.clone(), true) != Some(true) {
            self.first.push_back((key, resource));
        }
    }

    fn pop(&mut self) -> Option<(String, R)> {
        if let Some((key, resource)) = self.first.pop_front() {
            self.keys.remove(&key);
            return Some((key, resource));
        }
        loop {
            let (key, resource) = self.row.pop_front()?;
            // Another of the same name went before it.
            if self.keys.get(&key) == Some(&false) {
                self.keys.remove(&key);
                return Some((key, resource));
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// As it was listed.
    fn get(&self, key: &str) -> Option<&R> {
        let row = match self.keys.get(key)? {
            true => &self.first,
            false => &self.row,
        };
        row.iter().find(|(waiting, _)| waiting == key).map(|(_, resource)| resource)
    }

    /// Ends the wait of all; answers who would have gone first.
    fn clear(&mut self) -> Vec<String> {
        self.row.clear();
        self.keys.clear();
        self.first.drain(..).map(|(key, _)| key).collect()
    }
}

/// Whether the platform answers.
struct Health {
    /// When it is asked next, if there is a reason to ask.
    ask_at: Option<Instant>,
    asking: Option<BoxFuture<'static, Result<(), ObserveError>>>,
    /// Questions in a row without an answer.
    unanswered: u32,
    down: bool,
    /// What was found, and has not been told to the application.
    untold: Option<Platform>,
    /// Whether the application knows that it answers.
    told_up: bool,
}

impl Health {
    /// It is asked at the start, also when nothing is due: somebody may wait for the end of an alert.
    fn new() -> Self {
        Self {
            ask_at: Some(Instant::now()),
            asking: None,
            unanswered: 0,
            down: false,
            untold: None,
            told_up: false,
        }
    }

    /// There is a reason to ask. Who is asked already, or will be, is not asked sooner.
    fn ask_soon(&mut self) {
        if self.asking.is_none() && self.ask_at.is_none() {
            self.ask_at = Some(Instant::now());
        }
    }

    /// Waits for the moment to ask, or for the answer.
    async fn next(&mut self) -> Option<Result<(), ObserveError>> {
        if let Some(asking) = &mut self.asking {
            let answer = asking.await;
            self.asking = None;
            return Some(answer);
        }
        match self.ask_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        None
    }
}

impl<R: ExternalResources> Looking<R> {
    fn new(
        eyes: Arc<Eyes>,
        resources: Arc<R>,
        policy: ObserverPolicy,
        held: watch::Receiver<Option<Held>>,
    ) -> Self {
        let hints = Watching::new(Arc::clone(&resources), policy.timeout, policy.longest_pause);
        eyes.standings.begin(&eyes.name);
        Self {
            eyes,
            resources,
            policy,
            held,
            grant: None,
            scan_at: Instant::now(),
            woken: false,
            scanning: None,
            waiting: Waiting::new(),
            waiting_again: Waiting::new(),
            in_hand: HashMap::new(),
            again_in_hand: HashSet::new(),
            hinted: HashSet::new(),
            missed: HashSet::new(),
            failing: HashMap::new(),
            in_flight: JoinSet::new(),
            hints,
            health: Health::new(),
        }
    }

    async fn run(&mut self, wake: ObserverWake, mut stopping: Stopping) {
        loop {
            self.mind_the_lease();
            let looks = self.grant.is_some();
            if looks {
                self.tell_of_the_platform().await;
                self.begin_looks().await;
            }
            let next = self.next_moment();
            tokio::select! {
                () = stopping.asked() => break,
                changed = self.held.changed() => if changed.is_err() { break },
                () = tokio::time::sleep_until(next), if looks => {}
                () = wake.0.woken() => self.woken = true,
                Some(first) = self.in_flight.join_next(), if !self.in_flight.is_empty() => {
                    self.end_looks(first).await;
                }
                heard = self.hints.next(), if looks => match heard {
                    Heard::Hints(names) => self.look_at_named(names).await,
                    // Where nothing is due, nobody else would notice that the platform is away.
                    Heard::End => self.health.ask_soon(),
                },
                answer = self.health.next(), if looks => self.heard_of_platform(answer),
            }
        }
    }

    /// When something is to be done without anybody saying so.
    fn next_moment(&self) -> Instant {
        // Pages that are waited for are asked for when a look has ended; a platform that is away is asked by itself.
        if self.health.down || (self.scanning.is_some() && !self.in_flight.is_empty()) {
            return Instant::now() + self.policy.poll;
        }
        self.scan_at.max(Instant::now())
    }

    /// Begins or ends to look with the lease. Who has it not looks at nothing.
    fn mind_the_lease(&mut self) {
        let grant = self
            .held
            .borrow_and_update()
            .as_ref()
            .filter(|held| held.is_sure())
            .map(|held| held.grant.clone());
        if grant == self.grant {
            return;
        }
        // Another epoch: what was known of the platform and of failures is somebody else's knowledge by now. What was hinted
        // at is kept: nobody tells of it a second time, and to look once more does no harm.
        self.missed.extend(self.waiting.clear());
        self.missed.extend(self.waiting_again.clear());
        self.missed.extend(self.hinted.drain());
        self.failing.clear();
        self.scanning = None;
        self.scan_at = Instant::now();
        self.health = Health::new();
        if grant.is_none() {
            let policy = &self.policy;
            self.hints = Watching::new(Arc::clone(&self.resources), policy.timeout, policy.longest_pause);
        }
        self.grant = grant;
        let looking = self.grant.is_some();
        self.eyes.standings.change(&self.eyes.name, |standing| {
            standing.looking = looking;
            standing.failing = 0;
        });
        self.eyes.standings.platform_is(&self.eyes.name, Platform::Unknown);
    }

    /// Begins as many looks as may run, and asks for more resources when none wait.
    async fn begin_looks(&mut self) {
        // Of a platform that is away nothing can be seen. What is due is due still when it is back.
        if self.health.down {
            return;
        }
        // What another instance was asked for is found by a look of the poll, also in the middle of a long scan.
        let overdue = self.scanning.is_some() && self.scan_at <= Instant::now();
        let woken = std::mem::take(&mut self.woken) || overdue;
        if woken || (self.scan_at <= Instant::now() && self.scanning.is_none()) {
            let began_at = self.eyes.bus.clock.now();
            self.scanning = Some(Scan { began_at, after: None });
            self.scan_at = Instant::now() + self.policy.poll;
            // What has not been listed for so long is not looked at any more.
            let (now, longest) = (Instant::now(), self.policy.longest_pause + self.policy.poll);
            self.failing.retain(|_, failing| failing.not_before + 2 * longest > now);
            let missed: Vec<String> = self.missed.drain().collect();
            if !missed.is_empty() {
                self.look_at_named(missed).await;
            }
            self.eyes.standings.change(&self.eyes.name, |standing| standing.scanned_at = Some(began_at));
        }
        let most = self.policy.concurrency.max(1);
        let page = self.policy.page.max(1);
        if woken {
            // As many as can be looked at: the next that is asked for does not wait behind a page of these.
            let few = u32::try_from(most).unwrap_or(page).min(page);
            self.next_page(few, true).await;
        }
        while self.in_flight.len().saturating_sub(self.again_in_hand.len()) < most {
            match self.waiting.pop() {
                Some((key, resource)) => drop(self.look(key, resource)),
                None if self.next_page(page, false).await => {}
                None => break,
            }
        }
        while self.again_in_hand.len() < most.div_ceil(4) {
            let Some((key, resource)) = self.waiting_again.pop() else { break };
            if self.look(key.clone(), resource) {
                self.again_in_hand.insert(key);
            }
        }
    }

    /// Asks for the next page of the scan, and puts what is not known yet where it belongs; answers whether there may be
    /// something to look at.
    async fn next_page(&mut self, limit: u32, first: bool) -> bool {
        let Some(Scan { began_at, after }) = self.scanning.take() else { return false };
        match self.resources.due(&self.eyes.store, began_at, after.as_ref(), limit).await {
            Ok(page) => {
                let full = page.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
                if full {
                    self.scanning = Some(Scan { began_at, after: page.last().cloned() });
                }
                for resource in page {
                    let key = self.resources.key(&resource);
                    let anew = |known: &R::Resource| self.resources.is_wanted_anew(known, &resource);
                    // It was due when the look at it began, and is until that has ended; or it waits already.
                    let known = self.in_hand.get(&key).or_else(|| self.waiting.get(&key));
                    if known.is_some_and(|known| !anew(known)) {
                        continue;
                    }
                    match self.failing.get(&key) {
                        None if first => self.waiting.push_first(key, resource),
                        None => self.waiting.push_back(key, resource),
                        Some(failing) if anew(&failing.resource) => {
                            self.waiting_again.push_first(key, resource);
                        }
                        Some(failing) if failing.not_before <= Instant::now() => {
                            self.waiting_again.push_back(key, resource);
                        }
                        // Left alone for a while.
                        Some(_) => {}
                    }
                }
                full || !self.waiting.is_empty()
            }
            Err(error) => {
                store_failed(&self.eyes, "ask what is due", &error);
                self.scan_at = Instant::now() + self.policy.poll.min(Duration::from_secs(2));
                false
            }
        }
    }

    /// Begins a look, unless one at the same is under way: then there is another afterwards. Answers whether it began.
    fn look(&mut self, key: String, resource: R::Resource) -> bool {
        let Some(grant) = self.grant.clone() else { return false };
        if self.in_hand.contains_key(&key) {
            self.hinted.insert(key);
            return false;
        }
        self.in_hand.insert(key.clone(), resource.clone());
        let (eyes, resources, timeout) =
            (Arc::clone(&self.eyes), Arc::clone(&self.resources), self.policy.timeout);
        let held = self.held.clone();
        self.in_flight.spawn(async move {
            let looking = look_once(&eyes, resources.as_ref(), &resource, timeout, &grant);
            let looking = while_held(held, &grant, AssertUnwindSafe(looking).catch_unwind());
            let ended = match looking.await {
                None => Ended::Lost,
                Some(Ok(ended)) => ended,
                Some(Err(_)) => {
                    let failure = ObserveError::of_resource("observer-panicked", "the look panicked");
                    ended(&eyes, resource, Some(failure))
                }
            };
            (key, ended)
        });
        true
    }

    /// Notes what has ended, all of it together.
    async fn end_looks(&mut self, first: Result<Look<R::Resource>, JoinError>) {
        let mut ended = Vec::new();
        let mut next = Some(first);
        while let Some(look) = next {
            // Panics are caught inside, and nobody aborts a look but the end of this loop.
            ended.extend(look.ok());
            next = self.in_flight.try_join_next();
        }
        let mut looked = Vec::with_capacity(ended.len());
        let mut hinted = Vec::new();
        for (key, look) in ended {
            self.in_hand.remove(&key);
            self.again_in_hand.remove(&key);
            match look {
                Ended::Looked(mut look) => {
                    self.heard(look.failure.as_ref());
                    look.pause = self.pause_after(&key, &look);
                    looked.push(look);
                }
                Ended::NotBegun(mut look) => {
                    look.pause = self.pause_after(&key, &look);
                    looked.push(look);
                }
                Ended::Gone => drop(self.failing.remove(&key)),
                Ended::Lost => drop(self.missed.insert(key.clone())),
            }
            if self.hinted.remove(&key) {
                hinted.push(key);
            }
        }
        let failing = self.failing.len();
        self.eyes.standings.change(&self.eyes.name, |standing| standing.failing = failing);
        if !looked.is_empty()
            && let Err(error) = self.resources.note(&self.eyes.store, &looked).await
        {
            // What was due is due as before, and looked at again. What was hinted at may not have been.
            store_failed(&self.eyes, "note what it has looked at", &error);
            let failed = looked.iter().filter(|look| look.failure.is_some());
            self.missed.extend(failed.map(|look| self.resources.key(&look.resource)));
        }
        if !hinted.is_empty() {
            self.look_at_named(hinted).await;
        }
    }

    /// What a look says about the platform.
    fn heard(&mut self, failure: Option<&ObserveError>) {
        let answered = failure.is_none_or(|failure| !failure.unanswered);
        if answered && !self.health.down {
            // An answer about one resource, be it a bad one, is an answer.
            (self.health.unanswered, self.health.ask_at, self.health.asking) = (0, None, None);
            self.is_up();
        }
        if !answered {
            self.health.ask_soon();
        }
    }

    /// For how long a resource is left alone after a look.
    fn pause_after(&mut self, key: &str, look: &Looked<R::Resource>) -> Duration {
        let failure = look.failure.as_ref();
        let eyes = Arc::clone(&self.eyes);
        eyes.standings.looked(&eyes.name, failure.is_none());
        let Some(failure) = failure else {
            if self.failing.remove(key).is_some_and(|failing| failing.said) {
                tracing::info!(observer = eyes.name, key, "a resource can be looked at again");
            }
            return Duration::ZERO;
        };
        let now = Instant::now();
        let failing = self.failing.entry(key.to_owned()).or_insert_with(|| Failing {
            resource: look.resource.clone(),
            code: failure.code.clone(),
            said: false,
            times: 0,
            not_before: now,
        });
        failing.resource = look.resource.clone();
        if failing.code != failure.code {
            failing.code = failure.code.clone();
            // Who does not answer does so in more than one way.
            failing.said &= failure.unanswered;
        }
        let pause = doubled(FIRST_PAUSE, failing.times, self.policy.longest_pause);
        let pause = pause.max(failure.retry_after.unwrap_or_default());
        failing.times = failing.times.saturating_add(1);
        failing.not_before = now + pause;
        let times = failing.times;
        let (observer, code, cause) = (&eyes.name, &failure.code, &failure.message);
        // A no is said at once, and once. That nobody answers, or not now, may pass.
        let may_pass = failure.unanswered || failure.retry_after.is_some();
        if !failing.said && (!may_pass || times >= SAID_AFTER) {
            failing.said = true;
            tracing::warn!(observer, key, code, cause, "a resource cannot be looked at, or not be changed");
        } else {
            tracing::debug!(observer, key, code, cause, times, "a look failed");
        }
        // Not later than the pause says; and what has come due meanwhile is found as well.
        self.scan_at = self.scan_at.min(now + pause);
        pause
    }

    /// Asks the platform, or takes its answer in.
    fn heard_of_platform(&mut self, answer: Option<Result<(), ObserveError>>) {
        let Some(answer) = answer else {
            let (resources, timeout) = (Arc::clone(&self.resources), self.policy.timeout);
            self.health.ask_at = None;
            self.health.asking = Some(
                async move {
                    let asking = AssertUnwindSafe(resources.reachable()).catch_unwind();
                    match tokio::time::timeout(timeout, asking).await {
                        Ok(Ok(answer)) => answer,
                        Ok(Err(_)) => {
                            Err(ObserveError::unanswered("observer-panicked", "asking the platform panicked"))
                        }
                        Err(_) => Err(ObserveError::timed_out(timeout)),
                    }
                }
                .boxed(),
            );
            return;
        };
        match answer {
            Ok(()) => {
                self.health.unanswered = 0;
                if std::mem::take(&mut self.health.down) {
                    tracing::info!(observer = self.eyes.name, "the platform answers again");
                    self.scan_at = Instant::now();
                    // They failed because it was away.
                    self.failing.clear();
                    self.health.told_up = false;
                }
                self.is_up();
            }
            Err(failure) => self.is_silent(&failure),
        }
    }

    fn is_up(&mut self) {
        if !self.health.told_up {
            self.health.told_up = true;
            self.health.untold = Some(Platform::Up);
            self.eyes.standings.platform_is(&self.eyes.name, Platform::Up);
        }
    }

    fn is_silent(&mut self, failure: &ObserveError) {
        let asked = self.health.unanswered;
        self.health.unanswered = asked.saturating_add(1);
        self.health.ask_at = Some(Instant::now() + doubled(FIRST_PROBE_PAUSE, asked, LONGEST_PROBE_PAUSE));
        if self.health.down || self.health.unanswered < self.policy.down_after.max(1) {
            return;
        }
        self.health.down = true;
        // What a scan has found is found again; what was hinted at may not be due for long.
        self.missed.extend(self.waiting.clear());
        self.missed.extend(self.waiting_again.clear());
        self.scanning = None;
        let (code, message) = (failure.code.clone(), failure.message.clone());
        tracing::error!(
            observer = self.eyes.name,
            code = PLATFORM_DOWN,
            reason = code,
            cause = message,
            "the platform does not answer; nothing is concluded about any resource"
        );
        let down = Platform::Down { since: self.eyes.bus.clock.now(), code, message };
        self.health.untold = Some(down.clone());
        self.eyes.standings.platform_is(&self.eyes.name, down);
    }

    /// Tells the application what was found of the platform, until it has taken it.
    async fn tell_of_the_platform(&mut self) {
        let Some(grant) = self.grant.clone() else { return };
        let Some(platform) = self.health.untold.take() else { return };
        match tell(&self.eyes, self.resources.as_ref(), &grant, &platform).await {
            // Somebody else looks by now, and tells what it finds itself.
            Ok(()) | Err(StoreError::Fenced { .. }) => {}
            Err(error) => {
                store_failed(&self.eyes, "tell whether the platform answers", &error);
                self.health.untold = Some(platform);
            }
        }
    }

    async fn look_at_named(&mut self, names: Vec<String>) {
        if self.health.down {
            self.missed.extend(names);
            return;
        }
        // What was missed while the platform was away may be more than a statement can name.
        for names in names.chunks(HINTS_AT_ONCE) {
            match self.resources.named(&self.eyes.store, names).await {
                Ok(resources) => self.put_first(resources),
                Err(error) => {
                    store_failed(&self.eyes, "find what it was hinted at", &error);
                    // What was hinted at may not be due for long: it is not forgotten.
                    self.missed.extend(names.iter().cloned());
                }
            }
        }
    }

    fn put_first(&mut self, resources: Vec<R::Resource>) {
        for resource in resources {
            let key = self.resources.key(&resource);
            if self.in_hand.contains_key(&key) {
                self.hinted.insert(key);
            } else if self.failing.contains_key(&key) {
                self.waiting_again.push_first(key, resource);
            } else {
                self.waiting.push_first(key, resource);
            }
        }
    }
}

/// Tells the application of the platform, if this instance is still the one that looks.
async fn tell<R: ExternalResources>(
    eyes: &Eyes,
    resources: &R,
    grant: &LeaseGrant,
    platform: &Platform,
) -> StoreResult<()> {
    let mut transaction = eyes.store.open_transaction_under(grant).await?;
    let told = resources.platform_is(&mut transaction.own_tables(), platform).await;
    match told {
        Ok(()) => transaction.finish().await,
        Err(error) => {
            let _ = transaction.abandon().await;
            Err(error)
        }
    }
}

fn ended<R>(eyes: &Eyes, resource: R, failure: Option<ObserveError>) -> Ended<R> {
    Ended::Looked(Looked { resource, at: eyes.bus.clock.now(), failure, pause: Duration::ZERO })
}

/// Looks, decides, sends.
async fn look_once<R: ExternalResources>(
    eyes: &Eyes,
    resources: &R,
    listed: &R::Resource,
    timeout: Duration,
    grant: &LeaseGrant,
) -> Ended<R::Resource> {
    let resource = match resources.current(&eyes.store, listed).await {
        Ok(Some(resource)) => resource,
        Ok(None) => return Ended::Gone,
        Err(error) => {
            store_failed(eyes, "begin a look", &error);
            let failure =
                Some(ObserveError::of_resource(error.code(), "the store did not say what is wanted"));
            let (resource, at) = (listed.clone(), eyes.bus.clock.now());
            return Ended::NotBegun(Looked { resource, at, failure, pause: Duration::ZERO });
        }
    };
    let began_at = eyes.bus.clock.now();
    let evidence = match tokio::time::timeout(timeout, resources.observe(&resource)).await {
        Ok(Ok(evidence)) => evidence,
        Ok(Err(failure)) => return ended(eyes, resource, Some(failure)),
        Err(_) => return ended(eyes, resource, Some(ObserveError::timed_out(timeout))),
    };
    let mut failure = resources.missing(&evidence);
    for decision in resources.decide(&resource, evidence, began_at) {
        match send(eyes, grant, decision).await {
            Ok(()) => {}
            Err(Unsent::Fenced) => return Ended::Lost,
            Err(Unsent::Failed(not_sent)) => {
                failure = Some(not_sent);
                break;
            }
        }
    }
    ended(eyes, resource, failure)
}

/// Why a command was not sent.
enum Unsent {
    /// Somebody else holds the lease.
    Fenced,
    Failed(ObserveError),
}

async fn send(eyes: &Eyes, grant: &LeaseGrant, decision: Decision) -> Result<(), Unsent> {
    let Decision { kind, aggregate_id, command_type, payload, command_id, cause } = decision;
    let aggregate = format!("{kind}/{aggregate_id}");
    let mut send =
        Send::new(&eyes.bus, command_type.clone(), Some(kind.to_owned()), aggregate_id, Ok(payload))
            .under(grant.clone());
    if let Some(id) = command_id {
        send = send.once(id);
    }
    if let Some(cause) = cause {
        send = send.in_flow(cause.correlation_id).caused_by(cause.causation_id);
    }
    match send.await {
        Ok(_) => Ok(()),
        // What was seen is no longer of interest: the aggregate has moved on since it was listed.
        Err(SendError::Refused { class, code, message }) if class != ErrorClass::Transient => {
            tracing::debug!(observer = eyes.name, aggregate, command_type, code, message, "refused");
            Ok(())
        }
        Err(SendError::IllegalTransition(error)) => {
            tracing::debug!(observer = eyes.name, aggregate, command_type, %error, "refused");
            Ok(())
        }
        Err(SendError::Store(StoreError::Fenced { .. })) => {
            tracing::info!(observer = eyes.name, aggregate, command_type, "somebody else looks by now");
            Err(Unsent::Fenced)
        }
        Err(error) => {
            let message = with_causes(&error);
            let code = error.code().to_owned();
            tracing::warn!(
                observer = eyes.name,
                aggregate,
                command_type,
                code,
                cause = message,
                "what follows from a look could not be sent"
            );
            let message = "what follows from a look could not be sent; the log says why";
            Err(Unsent::Failed(ObserveError::of_resource(code, message)))
        }
    }
}
