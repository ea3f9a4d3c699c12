//! The loop of an observer: lists, looks, sends, notes.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::observations::{Listed, NotedLook, ScanPlace};
use towpath_core::ports::store::{LeaseGrant, StoreError, StoreResult, StoreTx as _};
use towpath_core::retry::{Coded as _, ErrorClass};
use towpath_store::SqlStore;

use super::failing::{Consequence, Failing, Turn};
use super::health::{Change, Health, Question};
use super::status::{ObserverStatuses, Platform};
use super::waiting::Waiting;
use super::watching::{HINTS_AT_ONCE, Heard, Watching};
use super::{Decision, ExternalResources, Looked, ObserveError, ObserverPolicy, ObserverWake};
use crate::bus::{Bus, SendError, with_causes};
use crate::holding::{self, Held, Keeper, while_held};
use crate::send::Send;
use crate::service::Stopping;

/// The code of the log line, and of the status, of a platform that does not answer.
const PLATFORM_DOWN: &str = "observer-platform-down";

/// What an observer works with.
pub(crate) struct ObserverContext {
    pub(crate) name: String,
    pub(crate) bus: Bus,
    pub(crate) store: SqlStore,
    pub(crate) instance: InstanceId,
    pub(crate) lease: Duration,
    pub(crate) statuses: ObserverStatuses,
}

/// Runs an observer until it is told to stop.
pub(super) async fn run<R: ExternalResources>(
    context: Arc<ObserverContext>,
    resources: Arc<R>,
    policy: ObserverPolicy,
    wake: ObserverWake,
    stopping: Stopping,
) {
    let (publish, held) = watch::channel(None);
    let keeper = Keeper {
        store: context.bus.store.clone(),
        name: LeaseName::from_stored(format!("observer/{}", context.name)),
        instance: context.instance.clone(),
        lease: context.lease,
    };
    let mut looking = Looking::new(Arc::clone(&context), resources, policy, held);
    tokio::select! {
        () = holding::keep(&keeper, &publish) => {}
        () = looking.run(wake, stopping) => {}
    }
    // No look goes on without the lease.
    looking.in_flight.shutdown().await;
    holding::give_back(&keeper, &publish).await;
}

pub(super) fn store_failed(context: &ObserverContext, what: &str, error: &StoreError) {
    let (observer, code, cause) = (&context.name, error.code(), with_causes(error));
    tracing::warn!(observer, code, cause, "an observer could not {what}");
}

/// A look that has ended: at what, and what came of it.
type EndedLook<R> = (Listed, Ended<R>);

enum Ended<R> {
    /// It came to its end, or says why not.
    Looked(Looked<R>),
    /// It did not come to an answer of the platform's, because of ourselves: our store failed, or the look panicked.
    Broken(ObserveError),
    /// It is not to be looked at any more, or not now.
    Gone,
    /// The lease may be somebody else's by now.
    Lost,
}

/// How far a scan is that may have more pages.
enum Scan {
    Begins,
    GoesOn(ScanPlace),
}

struct Looking<R: ExternalResources> {
    context: Arc<ObserverContext>,
    resources: Arc<R>,
    policy: ObserverPolicy,
    held: watch::Receiver<Option<Held>>,
    /// Under which it looks.
    grant: Option<LeaseGrant>,
    /// When the next scan begins.
    scan_at: Instant,
    /// Somebody has just asked for something: it does not wait behind what a scan has found.
    woken: bool,
    scanning: Option<Scan>,
    waiting: Waiting<Listed>,
    /// Those that failed the last time: they have a row of their own, so that nobody waits behind them.
    waiting_again: Waiting<Listed>,
    /// Those that are looked at, as they were listed.
    in_hand: HashMap<String, Listed>,
    /// Those in hand that failed the last time.
    again_in_hand: HashSet<String>,
    /// Keys that were hinted at while they were in hand: looked at once more.
    hinted: HashSet<String>,
    /// Hints that the store had no answer to.
    missed: HashSet<String>,
    failing: Failing<Listed>,
    /// Tasks of their own: a look may hold a connection that this loop waits for.
    in_flight: JoinSet<EndedLook<R::Resource>>,
    hints: Watching<R>,
    health: Health,
    /// The question whether the platform is there, while it is open.
    asking: Option<BoxFuture<'static, Result<(), ObserveError>>>,
}

impl<R: ExternalResources> Looking<R> {
    fn new(
        context: Arc<ObserverContext>,
        resources: Arc<R>,
        policy: ObserverPolicy,
        held: watch::Receiver<Option<Held>>,
    ) -> Self {
        let hints = Watching::new(Arc::clone(&resources), policy.timeout, policy.longest_pause);
        let health = Health::new(Instant::now(), policy.down_after);
        let failing = Failing::new(policy.longest_pause);
        context.statuses.begin(&context.name);
        Self {
            context,
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
            failing,
            in_flight: JoinSet::new(),
            hints,
            health,
            asking: None,
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
                    Heard::End => self.health.ask_soon(Instant::now()),
                },
                answer = answer_or_moment(&mut self.asking, self.health.question()), if looks => {
                    self.heard_of_platform(answer);
                }
            }
        }
    }

    /// When something is to be done without anybody saying so.
    fn next_moment(&self) -> Instant {
        // Pages that are waited for are asked for when a look has ended; a platform that is away is asked by itself.
        if self.health.is_down() || (self.scanning.is_some() && !self.in_flight.is_empty()) {
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
        self.health = Health::new(Instant::now(), self.policy.down_after);
        self.asking = None;
        if grant.is_none() {
            let policy = &self.policy;
            self.hints = Watching::new(Arc::clone(&self.resources), policy.timeout, policy.longest_pause);
        }
        self.grant = grant;
        let looking = self.grant.is_some();
        self.context.statuses.change(&self.context.name, |status| {
            status.looking = looking;
            status.failing = 0;
        });
        self.context.statuses.platform_is(&self.context.name, Platform::Unknown);
    }

    /// Begins as many looks as may run, and asks for more resources when none wait.
    async fn begin_looks(&mut self) {
        // Of a platform that is away nothing can be seen. What is due is due still when it is back.
        if self.health.is_down() {
            return;
        }
        // What another instance was asked for is found by a look of the poll, also in the middle of a long scan.
        let overdue = self.scanning.is_some() && self.scan_at <= Instant::now();
        let woken = std::mem::take(&mut self.woken) || overdue;
        if woken || (self.scan_at <= Instant::now() && self.scanning.is_none()) {
            self.scanning = Some(Scan::Begins);
            self.scan_at = Instant::now() + self.policy.poll;
            // What has not been listed for so long is not looked at any more.
            let (now, longest) = (Instant::now(), self.policy.longest_pause + self.policy.poll);
            self.failing.forget(now, 2 * longest);
            let missed: Vec<String> = self.missed.drain().collect();
            if !missed.is_empty() {
                self.look_at_named(missed).await;
            }
            let began_at = Some(self.context.bus.clock.now());
            self.context.statuses.change(&self.context.name, |status| status.scanned_at = began_at);
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
                Some((key, listed)) => drop(self.look(key, listed)),
                None if self.next_page(page, false).await => {}
                None => break,
            }
        }
        while self.again_in_hand.len() < most.div_ceil(4) {
            let Some((key, listed)) = self.waiting_again.pop() else { break };
            if self.look(key.clone(), listed) {
                self.again_in_hand.insert(key);
            }
        }
    }

    /// Asks for the next page of the scan, and puts what is not known yet where it belongs; answers whether there may be
    /// something to look at.
    async fn next_page(&mut self, limit: u32, first: bool) -> bool {
        let place = match self.scanning.take() {
            None => return false,
            Some(Scan::Begins) => None,
            Some(Scan::GoesOn(place)) => Some(place),
        };
        match self.context.store.due_subjects(&self.context.name, place.as_ref(), limit).await {
            Ok(page) => {
                let is_full = page.next.is_some();
                self.scanning = page.next.map(Scan::GoesOn);
                for listed in page.listed {
                    self.put_in_its_place(listed, first);
                }
                is_full || !self.waiting.is_empty()
            }
            Err(error) => {
                store_failed(&self.context, "ask what is due", &error);
                self.scan_at = Instant::now() + self.policy.poll.min(Duration::from_secs(2));
                false
            }
        }
    }

    fn put_in_its_place(&mut self, listed: Listed, first: bool) {
        let key = listed.hint.clone();
        let anew = |known: &Listed| known.subject_id == listed.subject_id && known.version < listed.version;
        // It was due when the look at it began, and is until that has ended; or it waits already.
        let known = self.in_hand.get(&key).or_else(|| self.waiting.get(&key));
        if known.is_some_and(|known| !anew(known)) {
            return;
        }
        match self.failing.turn(&key, Instant::now(), anew) {
            Turn::Sound if first => self.waiting.push_first(key, listed),
            Turn::Sound => self.waiting.push_back(key, listed),
            Turn::Anew => self.waiting_again.push_first(key, listed),
            Turn::Again => self.waiting_again.push_back(key, listed),
            Turn::LeftAlone => {}
        }
    }

    /// Begins a look, unless one at the same is under way: then there is another afterwards. Answers whether it began.
    fn look(&mut self, key: String, listed: Listed) -> bool {
        let Some(grant) = self.grant.clone() else { return false };
        if self.in_hand.contains_key(&key) {
            self.hinted.insert(key);
            return false;
        }
        self.in_hand.insert(key, listed.clone());
        let (context, resources, timeout) =
            (Arc::clone(&self.context), Arc::clone(&self.resources), self.policy.timeout);
        let held = self.held.clone();
        self.in_flight.spawn(async move {
            let looking = look_once(&context, resources.as_ref(), &listed, timeout, &grant);
            let looking = while_held(held, &grant, AssertUnwindSafe(looking).catch_unwind());
            let ended = match looking.await {
                None => Ended::Lost,
                Some(Ok(ended)) => ended,
                Some(Err(_)) => {
                    Ended::Broken(ObserveError::of_resource("observer-panicked", "the look panicked"))
                }
            };
            (listed, ended)
        });
        true
    }

    /// Notes what has ended, all of it together.
    async fn end_looks(&mut self, first: Result<EndedLook<R::Resource>, JoinError>) {
        let (mut noted, mut looked, mut failed, mut hinted) = (vec![], vec![], vec![], vec![]);
        let mut next = Some(first);
        while let Some(look) = next {
            next = self.in_flight.try_join_next();
            // Panics are caught inside, and nobody aborts a look but the end of this loop.
            let Ok((listed, ended)) = look else { continue };
            let key = listed.hint.clone();
            self.in_hand.remove(&key);
            self.again_in_hand.remove(&key);
            if self.hinted.remove(&key) {
                hinted.push(key.clone());
            }
            match ended {
                Ended::Looked(mut look) => {
                    self.heard(look.failure.as_ref());
                    let listed = Listed { version: look.version, ..listed };
                    look.again_after = self.pause_after(&listed, look.failure.as_ref(), look.again_after);
                    failed.extend(look.failure.is_some().then_some(key));
                    noted.push(note_of(listed, look.again_after, look.failure.as_ref()));
                    looked.push(look);
                }
                Ended::Broken(error) => {
                    let pause = self.pause_after(&listed, Some(&error), Duration::ZERO);
                    failed.push(key);
                    noted.push(note_of(listed, pause, Some(&error)));
                }
                Ended::Gone => drop(self.failing.ended(&key)),
                Ended::Lost => drop(self.missed.insert(key)),
            }
        }
        let failing = self.failing.len();
        self.context.statuses.change(&self.context.name, |status| status.failing = failing);
        if !noted.is_empty() && !self.note(&noted, &looked).await {
            // What was due is due as before, and looked at again. What was hinted at may not have been.
            self.missed.extend(failed);
        }
        // Not later than a pause says, which has begun when it was noted; what has come due meanwhile is found as well.
        let pauses = noted.iter().filter(|note| note.failure.is_some()).map(|note| note.again_after);
        if let Some(soonest) = pauses.min() {
            self.scan_at = self.scan_at.min(Instant::now() + soonest);
        }
        if !hinted.is_empty() {
            self.look_at_named(hinted).await;
        }
    }

    /// Answers whether it could be noted.
    async fn note(&mut self, noted: &[NotedLook], looked: &[Looked<R::Resource>]) -> bool {
        let Some(grant) = &self.grant else { return false };
        let ObserverContext { store, name, .. } = self.context.as_ref();
        let outcome = match store.note_looks(grant, name, noted).await {
            Ok(()) => self.resources.noted(store, looked).await,
            Err(error) => Err(error),
        };
        outcome.inspect_err(|error| store_failed(&self.context, "note what it has looked at", error)).is_ok()
    }

    /// What a look says about the platform.
    fn heard(&mut self, failure: Option<&ObserveError>) {
        let change = self.health.looked(failure, Instant::now());
        if self.health.question() != Question::Open {
            self.asking = None;
        }
        self.platform_has_changed(change);
    }

    /// After how long it is looked at next, if a look that came to its end says so much.
    fn pause_after(&mut self, listed: &Listed, failure: Option<&ObserveError>, next: Duration) -> Duration {
        let (observer, key) = (&self.context.name, &listed.hint);
        self.context.statuses.looked(observer, failure.is_none());
        let Some(failure) = failure else {
            if self.failing.ended(key) {
                tracing::info!(observer, key, "a resource can be looked at again");
            }
            return next;
        };
        let now = Instant::now();
        let Consequence { pause, times, is_news } = self.failing.failed(key, listed.clone(), failure, now);
        let (code, cause) = (&failure.code, &failure.message);
        match is_news {
            true => tracing::warn!(
                observer,
                key,
                code,
                cause,
                "a resource cannot be looked at, or not be changed"
            ),
            false => tracing::debug!(observer, key, code, cause, times, "a look failed"),
        }
        pause
    }

    /// Asks the platform, or takes its answer in.
    fn heard_of_platform(&mut self, answer: Option<Result<(), ObserveError>>) {
        let Some(answer) = answer else {
            self.health.asked();
            self.asking = Some(is_there(Arc::clone(&self.resources), self.policy.timeout).boxed());
            return;
        };
        let change = self.health.answered(answer, Instant::now(), self.context.bus.clock.now());
        self.platform_has_changed(change);
    }

    fn platform_has_changed(&mut self, change: Change) {
        let observer = &self.context.name;
        match change {
            Change::Nothing => {}
            Change::Up { was_down } => {
                self.context.statuses.platform_is(observer, Platform::Up);
                if was_down {
                    tracing::info!(observer, "the platform answers again");
                    self.scan_at = Instant::now();
                    // They failed because it was away.
                    self.failing.clear();
                }
            }
            Change::Down(down) => {
                if let Platform::Down { code: reason, message: cause, .. } = &down {
                    let code = PLATFORM_DOWN;
                    tracing::error!(
                        observer,
                        code,
                        reason,
                        cause,
                        "the platform does not answer; nothing is concluded about any resource"
                    );
                }
                self.context.statuses.platform_is(observer, down);
                // What a scan has found is found again; what was hinted at may not be due for long.
                self.missed.extend(self.waiting.clear());
                self.missed.extend(self.waiting_again.clear());
                self.scanning = None;
            }
        }
    }

    /// Tells the application what was found of the platform, until it has taken it.
    async fn tell_of_the_platform(&mut self) {
        let Some(grant) = self.grant.clone() else { return };
        let Some(platform) = self.health.take_untold() else { return };
        match tell(&self.context, self.resources.as_ref(), &grant, &platform).await {
            // Somebody else looks by now, and tells what it finds itself.
            Ok(()) | Err(StoreError::Fenced { .. }) => {}
            Err(error) => {
                store_failed(&self.context, "tell whether the platform answers", &error);
                self.health.put_back(platform);
            }
        }
    }

    async fn look_at_named(&mut self, names: Vec<String>) {
        if self.health.is_down() {
            self.missed.extend(names);
            return;
        }
        // What was missed while the platform was away may be more than a statement can name.
        for names in names.chunks(HINTS_AT_ONCE) {
            match self.context.store.hinted_subjects(&self.context.name, names).await {
                Ok(listed) => self.put_first(listed),
                Err(error) => {
                    store_failed(&self.context, "find what it was hinted at", &error);
                    // What was hinted at may not be due for long: it is not forgotten.
                    self.missed.extend(names.iter().cloned());
                }
            }
        }
    }

    fn put_first(&mut self, all: Vec<Listed>) {
        for listed in all {
            let key = listed.hint.clone();
            if self.in_hand.contains_key(&key) {
                self.hinted.insert(key);
            } else if self.failing.contains(&key) {
                self.waiting_again.push_first(key, listed);
            } else {
                self.waiting.push_first(key, listed);
            }
        }
    }
}

fn note_of(listed: Listed, again_after: Duration, failure: Option<&ObserveError>) -> NotedLook {
    let failure = failure.map(|failure| (failure.code.clone(), failure.message.clone()));
    NotedLook { subject_id: listed.subject_id, version: listed.version, again_after, failure }
}

/// Waits for the answer of a platform that was asked, or for the moment to ask it.
async fn answer_or_moment(
    asking: &mut Option<BoxFuture<'static, Result<(), ObserveError>>>,
    question: Question,
) -> Option<Result<(), ObserveError>> {
    if let Some(open) = asking {
        let answer = open.await;
        *asking = None;
        return Some(answer);
    }
    match question {
        Question::At(at) => tokio::time::sleep_until(at).await,
        Question::None | Question::Open => std::future::pending().await,
    }
    None
}

/// Asks whether the platform is there.
async fn is_there<R: ExternalResources>(resources: Arc<R>, timeout: Duration) -> Result<(), ObserveError> {
    let asking = AssertUnwindSafe(resources.reachable()).catch_unwind();
    match tokio::time::timeout(timeout, asking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(ObserveError::unanswered("observer-panicked", "asking the platform panicked")),
        Err(_) => Err(ObserveError::timed_out(timeout)),
    }
}

/// Tells the application of the platform, if this instance is still the one that looks.
async fn tell<R: ExternalResources>(
    context: &ObserverContext,
    resources: &R,
    grant: &LeaseGrant,
    platform: &Platform,
) -> StoreResult<()> {
    let mut transaction = context.store.open_transaction_under(grant).await?;
    let now = context.bus.clock.now();
    let told = match resources.platform_is(&mut transaction.own_tables(), platform, now).await {
        // Nothing could come about meanwhile.
        Ok(true) => transaction.wait_anew(&context.name).await,
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    match told {
        Ok(()) => transaction.finish().await,
        Err(error) => {
            let _ = transaction.abandon().await;
            Err(error)
        }
    }
}

/// Looks, decides, sends.
async fn look_once<R: ExternalResources>(
    context: &ObserverContext,
    resources: &R,
    listed: &Listed,
    timeout: Duration,
    grant: &LeaseGrant,
) -> Ended<R::Resource> {
    let (resource, version) = match begin(context, resources, listed).await {
        Ok(Some(begun)) => begun,
        Ok(None) => return Ended::Gone,
        Err(error) => {
            store_failed(context, "begin a look", &error);
            let message = "the store did not say what is wanted";
            return Ended::Broken(ObserveError::of_resource(error.code(), message));
        }
    };
    let began_at = context.bus.clock.now();
    let failure = match tokio::time::timeout(timeout, resources.observe(&resource)).await {
        Ok(Ok(evidence)) => {
            let missing = resources.missing(&evidence);
            match send_all(context, grant, resources.decide(&resource, evidence, began_at)).await {
                Ok(()) => missing,
                Err(Unsent::Fenced) => return Ended::Lost,
                Err(Unsent::Failed(not_sent)) => Some(not_sent),
            }
        }
        Ok(Err(failure)) => Some(failure),
        Err(_) => Some(ObserveError::timed_out(timeout)),
    };
    let again_after = resources.look_again_after(&resource);
    Ended::Looked(Looked { resource, version, at: context.bus.clock.now(), failure, again_after })
}

/// What is looked at, as it is when the look begins, and its version; none when it is not to be looked at.
async fn begin<R: ExternalResources>(
    context: &ObserverContext,
    resources: &R,
    listed: &Listed,
) -> StoreResult<Option<(R::Resource, u64)>> {
    let watched = context.store.begin_look(&context.name, &listed.subject_id).await?;
    // Half of a change has become known since it was listed: it is due again with the other half.
    let Some(watched) = watched.filter(|watched| listed.is_held || !watched.is_held) else {
        return Ok(None);
    };
    let version = watched.version;
    let resource = resources.resource(&context.store, watched).await?;
    Ok(resource.map(|resource| (resource, version)))
}

async fn send_all(
    context: &ObserverContext,
    grant: &LeaseGrant,
    decisions: Vec<Decision>,
) -> Result<(), Unsent> {
    for decision in decisions {
        send(context, grant, decision).await?;
    }
    Ok(())
}

/// Why a command was not sent.
enum Unsent {
    /// Somebody else holds the lease.
    Fenced,
    Failed(ObserveError),
}

async fn send(context: &ObserverContext, grant: &LeaseGrant, decision: Decision) -> Result<(), Unsent> {
    let Decision { kind, aggregate_id, command_type, payload, command_id, cause } = decision;
    let aggregate = format!("{kind}/{aggregate_id}");
    let mut send =
        Send::new(&context.bus, command_type.clone(), Some(kind.to_owned()), aggregate_id, Ok(payload))
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
            tracing::debug!(observer = context.name, aggregate, command_type, code, message, "refused");
            Ok(())
        }
        Err(SendError::IllegalTransition(error)) => {
            tracing::debug!(observer = context.name, aggregate, command_type, %error, "refused");
            Ok(())
        }
        Err(SendError::Store(StoreError::Fenced { .. })) => {
            tracing::info!(observer = context.name, aggregate, command_type, "somebody else looks by now");
            Err(Unsent::Fenced)
        }
        Err(error) => {
            let message = with_causes(&error);
            let code = error.code().to_owned();
            tracing::warn!(
                observer = context.name,
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
