//! The loop of an observer: lists, looks, sends, notes.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::store::{LeaseGrant, StoreError, StoreResult};
use towpath_core::retry::ErrorClass;
use towpath_store::SqlStore;

use super::standing::{Platform, Standings};
use super::{
    Decision, ExternalResources, Hints, Looked, ObserveError, ObserverPolicy, ObserverWake, TIMED_OUT,
};
use crate::bus::{Bus, SendError, with_causes};
use crate::send::Send;
use crate::service::{Stopping, Wake};

/// The code of the log line, and of the standing, of a platform that does not answer.
const PLATFORM_DOWN: &str = "observer-platform-down";

/// How long the platform is left alone after hints have ended or could not be had.
const PAUSE_BEFORE_WATCHING: Duration = Duration::from_secs(1);

/// How many hints are taken together.
const HINTS_AT_ONCE: usize = 200;

/// What an observer works with.
pub(crate) struct Eyes {
    pub(crate) name: String,
    pub(crate) bus: Bus,
    pub(crate) store: SqlStore,
    /// Wakes the command runner of this process.
    pub(crate) runner: Wake,
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
    mut stopping: Stopping,
) {
    let mut looking = Looking::new(eyes, resources, policy);
    let mut renew_at = Instant::now();
    loop {
        if Instant::now() >= renew_at {
            looking.keep_lease().await;
            renew_at = Instant::now() + looking.eyes.lease / 3;
        }
        looking.begin_looks().await;
        let next = looking.next_moment().min(renew_at);
        tokio::select! {
            () = stopping.asked() => break,
            () = tokio::time::sleep_until(next) => {}
            () = wake.0.woken() => looking.scan_at = Instant::now(),
            Some(first) = looking.in_flight.join_next(), if !looking.in_flight.is_empty() => {
                looking.end_looks(first).await;
            }
            hints = looking.hints.next() => looking.hinted(hints).await,
        }
    }
    looking.let_go().await;
}

/// A look that has ended: the key, and what came of it.
type Look<R> = (String, Looked<R>);

/// A scan that may have more pages.
struct Scan<R> {
    /// When it began. What is noted meanwhile lies behind that, so no scan meets a resource twice.
    began_at: DateTime<Utc>,
    /// The last resource of the last page.
    after: Option<R>,
}

struct Looking<R: ExternalResources> {
    eyes: Arc<Eyes>,
    resources: Arc<R>,
    policy: ObserverPolicy,
    grant: Option<LeaseGrant>,
    /// When the next scan begins.
    scan_at: Instant,
    scanning: Option<Scan<R::Resource>>,
    waiting: VecDeque<R::Resource>,
    in_hand: HashSet<String>,
    /// Keys that were hinted at while they were in hand: looked at once more.
    again: HashSet<String>,
    /// Tasks of their own: a look may hold a connection that this loop waits for.
    in_flight: JoinSet<Look<R::Resource>>,
    hints: Watching,
    /// Looks that found the platform away since the last one with an answer.
    silent: u32,
    /// The resources whose looks ran out of time since then: one alone may just be slow.
    timed_out: HashSet<String>,
    down: bool,
    /// Failed looks in a row: the next scan comes later each time.
    failing: u32,
}

impl<R: ExternalResources> Looking<R> {
    fn new(eyes: Arc<Eyes>, resources: Arc<R>, policy: ObserverPolicy) -> Self {
        let watching = Watching::starting_with(first_watch(&resources, Duration::ZERO));
        Self {
            eyes,
            resources,
            policy,
            grant: None,
            scan_at: Instant::now(),
            scanning: None,
            waiting: VecDeque::new(),
            in_hand: HashSet::new(),
            again: HashSet::new(),
            in_flight: JoinSet::new(),
            hints: watching,
            silent: 0,
            timed_out: HashSet::new(),
            down: false,
            failing: 0,
        }
    }

    /// When something is to be done without anybody saying so.
    fn next_moment(&self) -> Instant {
        // Pages that are waited for are asked for when a look has ended.
        if self.scanning.is_some() && !self.in_flight.is_empty() {
            return Instant::now() + self.policy.interval;
        }
        self.scan_at.max(Instant::now())
    }

    /// Takes or renews the lease. Who has it not looks at nothing.
    async fn keep_lease(&mut self) {
        let store = &self.eyes.bus.store;
        let lease = self.eyes.lease;
        let kept: StoreResult<Option<LeaseGrant>> = async {
            if let Some(grant) = &self.grant
                && let Some(renewed) = store.renew_leases(std::slice::from_ref(grant), lease).await?.pop()
            {
                return Ok(Some(renewed));
            }
            let name = LeaseName::from_stored(format!("observer/{}", self.eyes.name));
            store.acquire_lease(&name, &self.eyes.instance, lease).await
        }
        .await;
        match kept {
            Ok(grant) => self.hold(grant),
            // What this instance sees is true whoever holds the lease: looks may go on until it is known to be lost.
            Err(error) => self.store_failed("keep its lease", &error),
        }
    }

    fn hold(&mut self, grant: Option<LeaseGrant>) {
        if grant.is_some() && self.grant.is_none() {
            self.scan_at = Instant::now();
        }
        if grant.is_none() {
            self.waiting.clear();
            self.scanning = None;
        }
        self.grant = grant;
        let looking = self.grant.is_some();
        self.eyes.standings.change(&self.eyes.name, |standing| standing.looking = looking);
    }

    async fn let_go(&mut self) {
        if let Some(grant) = self.grant.take()
            && let Err(error) = self.eyes.bus.store.release_leases(&[grant]).await
        {
            self.store_failed("give its lease back", &error);
        }
    }

    fn store_failed(&self, what: &str, error: &StoreError) {
        let (observer, code, cause) = (&self.eyes.name, error.code(), with_causes(error));
        tracing::warn!(observer, code, cause, "an observer could not {what}");
    }

    /// Begins as many looks as may run, and asks for more resources when none wait.
    async fn begin_looks(&mut self) {
        if self.grant.is_none() {
            // Nothing before the next try for the lease.
            self.scan_at = self.scan_at.max(Instant::now() + self.eyes.lease / 3);
            return;
        }
        if self.scan_at <= Instant::now() && self.scanning.is_none() {
            let now = self.eyes.bus.clock.now();
            self.scanning = Some(Scan { began_at: now, after: None });
            self.scan_at = Instant::now() + self.policy.interval;
            self.eyes.standings.change(&self.eyes.name, |standing| standing.scanned_at = Some(now));
        }
        // A platform that is down is asked by one look at a time, until it answers.
        let most = if self.down { 1 } else { self.policy.concurrency.max(1) };
        while self.in_flight.len() < most {
            let Some(resource) = self.waiting.pop_front() else {
                match self.next_page().await {
                    true => continue,
                    false => return,
                }
            };
            let key = self.resources.key(&resource);
            if self.in_hand.insert(key.clone()) {
                self.look(key, resource);
            } else {
                // What is being looked at as it was before: once more afterwards, as it is now.
                self.again.insert(key);
            }
        }
    }

    /// Asks for the next page of the scan; answers whether there is one.
    async fn next_page(&mut self) -> bool {
        let Some(Scan { began_at, after }) = self.scanning.take() else { return false };
        let limit = self.policy.page.max(1);
        match self.resources.due(&self.eyes.store, began_at, after.as_ref(), limit).await {
            Ok(page) => {
                if page.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                    self.scanning = Some(Scan { began_at, after: page.last().cloned() });
                }
                self.waiting.extend(page);
                !self.waiting.is_empty()
            }
            Err(error) => {
                self.store_failed("ask what is due", &error);
                self.scan_at = Instant::now() + self.policy.interval.min(Duration::from_secs(2));
                false
            }
        }
    }

    fn look(&mut self, key: String, resource: R::Resource) {
        let (eyes, resources, timeout) =
            (Arc::clone(&self.eyes), Arc::clone(&self.resources), self.policy.timeout);
        self.in_flight.spawn(async move {
            let looking = look_once(&eyes, resources.as_ref(), &resource, timeout);
            let failure = match AssertUnwindSafe(looking).catch_unwind().await {
                Ok(looked) => looked.err(),
                Err(_) => Some(ObserveError::of_resource("observer-panicked", "the look panicked")),
            };
            (key, Looked { resource, at: eyes.bus.clock.now(), failure })
        });
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
            self.heard(&key, look.failure.as_ref());
            if self.again.remove(&key) {
                hinted.push(key);
            }
            looked.push(look);
        }
        if let Err(error) = self.resources.note(&self.eyes.store, &looked).await {
            // They are due as before, and looked at again.
            self.store_failed("note what it has looked at", &error);
        }
        if !hinted.is_empty() {
            self.look_at_named(hinted).await;
        }
    }

    /// Keeps count of whether the platform answers.
    fn heard(&mut self, key: &str, failure: Option<&ObserveError>) {
        let eyes = Arc::clone(&self.eyes);
        eyes.standings.change(&eyes.name, |standing| {
            standing.looks += 1;
            standing.failures += u64::from(failure.is_some());
        });
        if failure.is_some() {
            // Soon again, and later each time: what is due is due until it was seen.
            self.failing = (self.failing + 1).min(10);
            let pause = Duration::from_millis(500).saturating_mul(1 << self.failing);
            self.scan_at = self.scan_at.min(Instant::now() + pause);
        } else {
            self.failing = 0;
        }
        let failure = match failure {
            Some(failure) if failure.platform => {
                self.silent = self.silent.saturating_add(1);
                failure
            }
            Some(failure) if failure.code == TIMED_OUT => {
                self.timed_out.insert(key.to_owned());
                failure
            }
            // An answer about one resource, be it a bad one, is an answer.
            Some(_) | None => {
                self.silent = 0;
                self.timed_out.clear();
                if std::mem::take(&mut self.down) {
                    tracing::info!(observer = eyes.name, "the platform answers again");
                    self.scan_at = Instant::now();
                }
                eyes.standings.change(&eyes.name, |standing| standing.platform = Platform::Up);
                return;
            }
        };
        let enough = self.policy.down_after.max(1);
        let silent =
            self.silent >= enough || self.timed_out.len() >= usize::try_from(enough).unwrap_or(usize::MAX);
        if !self.down && !silent {
            return;
        }
        self.wait_for_platform();
        if std::mem::replace(&mut self.down, true) {
            return;
        }
        let (code, message) = (failure.code.clone(), failure.message.clone());
        tracing::error!(
            observer = eyes.name,
            code = PLATFORM_DOWN,
            reason = code,
            cause = message,
            "the platform does not answer; nothing is concluded about any resource"
        );
        let since = eyes.bus.clock.now();
        eyes.standings.change(&eyes.name, |standing| {
            standing.platform = Platform::Down { since, code, message };
        });
    }

    /// Leaves the platform alone for a moment. What was about to be looked at is due still.
    fn wait_for_platform(&mut self) {
        self.waiting.clear();
        self.scanning = None;
        self.scan_at = Instant::now() + self.policy.interval.min(Duration::from_secs(2));
    }

    /// Takes in hints, or waits for others when they have ended.
    async fn hinted(&mut self, hints: Watched) {
        match hints {
            Watched::Names(names) if self.grant.is_some() => self.look_at_named(names).await,
            Watched::Names(_) => {}
            Watched::Ended => {
                self.hints = Watching::starting_with(first_watch(&self.resources, PAUSE_BEFORE_WATCHING));
                // What happened while nobody watched is found by looking.
                self.scan_at = self.scan_at.min(Instant::now() + PAUSE_BEFORE_WATCHING);
            }
            Watched::Never => self.hints = Watching::never(),
        }
    }

    async fn look_at_named(&mut self, names: Vec<String>) {
        if self.down {
            return;
        }
        match self.resources.named(&self.eyes.store, &names).await {
            Ok(resources) => {
                for resource in resources {
                    let key = self.resources.key(&resource);
                    if self.in_hand.contains(&key) {
                        self.again.insert(key);
                    } else {
                        self.waiting.push_front(resource);
                    }
                }
            }
            Err(error) => self.store_failed("find what it was hinted at", &error),
        }
    }
}

/// Looks, decides, sends.
async fn look_once<R: ExternalResources>(
    eyes: &Eyes,
    resources: &R,
    resource: &R::Resource,
    timeout: Duration,
) -> Result<(), ObserveError> {
    let evidence = match tokio::time::timeout(timeout, resources.observe(resource)).await {
        Ok(evidence) => evidence?,
        Err(_) => return Err(ObserveError::timed_out(timeout)),
    };
    for decision in resources.decide(resource, evidence, eyes.bus.clock.now()) {
        send(eyes, decision).await?;
    }
    Ok(())
}

async fn send(eyes: &Eyes, decision: Decision) -> Result<(), ObserveError> {
    let Decision { kind, aggregate_id, command_type, payload, command_id, cause } = decision;
    let aggregate = format!("{kind}/{aggregate_id}");
    let (bus, runner) = (&eyes.bus, &eyes.runner);
    let mut send =
        Send::new(bus, runner, command_type.clone(), Some(kind.to_owned()), aggregate_id, Ok(payload));
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
            Err(ObserveError::of_resource(code, message))
        }
    }
}

/// Hints as they come, and the wait for them.
enum Watching {
    Starting(BoxFuture<'static, Option<Option<Hints>>>),
    Running(futures_util::stream::ReadyChunks<Hints>),
    Never,
}

enum Watched {
    Names(Vec<String>),
    Ended,
    Never,
}

/// Asks for hints, after a pause. `None`: they could not be had; `Some(None)`: there are none.
fn first_watch<R: ExternalResources>(
    resources: &Arc<R>,
    pause: Duration,
) -> BoxFuture<'static, Option<Option<Hints>>> {
    let resources = Arc::clone(resources);
    async move {
        tokio::time::sleep(pause).await;
        resources.watch().await.ok()
    }
    .boxed()
}

impl Watching {
    fn starting_with(start: BoxFuture<'static, Option<Option<Hints>>>) -> Self {
        Self::Starting(start)
    }

    fn never() -> Self {
        Self::Never
    }

    /// The next hints. Dropping the wait loses none.
    async fn next(&mut self) -> Watched {
        loop {
            match self {
                Self::Starting(start) => match start.await {
                    None => return Watched::Ended,
                    Some(None) => return Watched::Never,
                    Some(Some(hints)) => *self = Self::Running(hints.ready_chunks(HINTS_AT_ONCE)),
                },
                Self::Running(hints) => {
                    return match hints.next().await {
                        Some(names) => Watched::Names(names),
                        None => Watched::Ended,
                    };
                }
                Self::Never => std::future::pending().await,
            }
        }
    }
}
