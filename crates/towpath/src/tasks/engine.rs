//! Takes tasks and does them.
//!
//! It takes as many as it has room for, when it is woken by a commit, here or elsewhere, and now and then by itself. Each
//! attempt runs by itself until it ends, or until it is stopped: its task is called off, took too long, is somebody
//! else's by now, or is given back because Towpath stops.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;
use towpath_core::ids::TaskId;
use towpath_core::payload::Payload;
use towpath_core::ports::store::{StoreError, Task, TaskClaim, TaskEnd, WantedTasks};
use towpath_core::retry::Coded as _;
use towpath_core::task::TaskType;

use super::{Answer, Attempt, Registered, facts};
use crate::bus::{random_unit, with_causes};
use crate::consumer::{HandlerError, panic_message};
use crate::metrics::table;
use crate::service::{Service, Stopping, Wake, rest};
use crate::towpath::Towpath;

/// How many tasks are let go at their time, or taken over, in one go.
const AT_A_TIME: u32 = 1000;

/// So many ends may wait to be written, and so many bytes of them; then no more tasks are taken.
const UNWRITTEN: usize = 256;
const UNWRITTEN_BYTES: usize = 16 << 20;

/// How long it rests at least before it looks again for tasks whose time has come, when others have them in hand.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// So many tasks of a type are taken ahead of the room for them at most, and for so long: then others may have them.
const MOST_AHEAD: usize = 128;
const LONGEST_AHEAD: Duration = Duration::from_millis(250);

/// What does tasks in this process.
pub(crate) struct Engine {
    pub(super) app: Towpath,
    workers: Vec<Place>,
    /// Tasks that are ours, until their end is written.
    held: Mutex<HashMap<TaskId, Held>>,
    /// Attempts whose end is not written yet: they stand here until it is.
    ended: Mutex<Vec<Arc<Ended>>>,
    /// There is one.
    pub(super) has_ended: Wake,
    /// There is room for another.
    has_room: Wake,
    /// A task was taken whose worker must say sooner that it lives.
    pub(super) beats_sooner: Wake,
    /// Whether tasks may have been taken that are not known here: the answer to a claim was lost, or nobody waited for it.
    is_unsure: AtomicBool,
    breaks: Mutex<Breaks>,
}

/// When the database did not answer what it was asked here. While it does not, nobody can say that he lives: who is to be taken
/// over must have had the time for it.
struct Breaks {
    /// When it answered last.
    answered_at: Instant,
    /// Since when it has not.
    open_since: Option<Instant>,
    /// Those that are over: when each ended, and how long it was. A later one that is as long stands for those before it.
    over: Vec<(Instant, Duration)>,
}

impl Breaks {
    /// Before it began, nobody was heard here.
    fn begin(now: Instant) -> Self {
        Self { answered_at: now, open_since: None, over: vec![(now, Duration::MAX)] }
    }

    fn note_silence(&mut self) {
        self.open_since.get_or_insert(self.answered_at);
    }

    /// Notes an answer. One that comes too late was a break, too.
    fn note_answer(&mut self, asked_at: Instant, now: Instant, patience: Duration) {
        let late = (now - asked_at >= patience).then_some(asked_at);
        if let Some(since) = self.open_since.take().or(late) {
            let lasted = now - since;
            self.over.retain(|(_, length)| *length > lasted);
            self.over.push((now, lasted));
        }
        self.answered_at = now;
    }

    /// Whether whoever says every third of this time that he lives could have been heard for so long: a shorter break keeps nobody
    /// from it.
    fn are_past(&self, now: Instant, time: Duration) -> bool {
        let matters = |length: Duration| length >= time / 3;
        !self.open_since.is_some_and(|since| matters(now - since))
            && self.over.iter().all(|(ended, length)| !matters(*length) || now - *ended >= time)
    }
}

/// A worker, and its room.
struct Place {
    worker: Registered,
    room: Arc<Semaphore>,
    ahead: Ahead,
}

/// How many tasks are taken ahead of the room for them. Where tasks are short, as many end while others are taken, and whoever took them only
/// then would have its workers wait for each claim; where they are long, none do.
#[derive(Default)]
struct Ahead {
    /// So many may wait for room.
    most: AtomicUsize,
    /// So many do.
    waiting: AtomicUsize,
    /// So many have ended, ever.
    ended: AtomicUsize,
}

impl Place {
    fn does(&self, task: &Task) -> bool {
        self.worker.of.name() == task.task.task_type.as_str()
    }
}

impl Ahead {
    /// How many to take, with so much room.
    fn wanted(&self, room: usize) -> usize {
        let (most, waiting) = (self.most.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed));
        let wanted = (room + most).saturating_sub(waiting);
        // Not one by one: what waits lasts for a while.
        if room == 0 && wanted * 2 < most { 0 } else { wanted }
    }

    /// So many had ended when tasks began to be taken.
    fn learn(&self, ended_before: usize, concurrency: u32) {
        let ended = self.ended.load(Ordering::Relaxed).wrapping_sub(ended_before);
        let less = self.most.load(Ordering::Relaxed) / 2;
        let bound = usize::try_from(concurrency).unwrap_or(usize::MAX).saturating_mul(4).min(MOST_AHEAD);
        self.most.store(less.max(ended * 2).min(bound), Ordering::Relaxed);
    }
}

/// So many, or a little less. A claim of each size is a statement of its own that each connection prepares.
fn of_few_sizes(wanted: usize) -> u32 {
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).min(AT_A_TIME);
    // 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on.
    wanted.checked_ilog2().map_or(0, |exponent| wanted & (0b11 << exponent >> 1))
}

/// A task that is ours.
struct Held {
    /// Without its payload, which may be large.
    task: Task,
    /// Stops the attempt; none once it was.
    stop: Option<oneshot::Sender<Stop>>,
}

/// Why an attempt is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Canceled,
    /// It is somebody else's.
    Lost,
    GivenBack,
}

/// An attempt that has ended.
pub(super) struct Ended {
    /// Without its payload.
    pub(super) task: Task,
    pub(super) end: TaskEnd,
    /// Whether it is written alone, because it could not be with others.
    pub(super) is_alone: AtomicBool,
}

impl Ended {
    pub(super) fn new(task: Task, end: TaskEnd) -> Self {
        Self { task, end, is_alone: AtomicBool::new(false) }
    }
}

/// Starts to take tasks and to do them.
pub(crate) fn work(engine: Arc<Engine>, scan: Duration) -> Service {
    Service::keep_running("tasks", move |stopping| {
        let engine = Arc::clone(&engine);
        async move {
            tokio::join!(engine.take(scan, stopping.clone()), engine.mind(scan, stopping));
            // What runs may end by itself. What does not is given back by the keeper.
            for place in &engine.workers {
                let _ = place.room.acquire_many(place.worker.concurrency).await;
            }
        }
    })
}

impl Engine {
    /// None, where no task type is declared. Who does none here looks after those that workers elsewhere do.
    pub(crate) fn of(app: &Towpath, workers: Vec<Registered>) -> Option<Arc<Self>> {
        app.registry().task_types().next()?;
        let places = workers.into_iter().map(|worker| Place {
            room: Arc::new(Semaphore::new(
                usize::try_from(worker.concurrency).unwrap_or(Semaphore::MAX_PERMITS),
            )),
            worker,
            ahead: Ahead::default(),
        });
        Some(Arc::new(Self {
            app: app.clone(),
            workers: places.collect(),
            held: Mutex::default(),
            ended: Mutex::default(),
            has_ended: Wake::default(),
            has_room: Wake::default(),
            beats_sooner: Wake::default(),
            is_unsure: AtomicBool::new(false),
            breaks: Mutex::new(Breaks::begin(Instant::now())),
        }))
    }

    /// How often a worker says that it lives, so that it is heard in time although one is lost.
    pub(super) fn beat_every(&self) -> Duration {
        let declared = self.app.registry().task_types().map(TaskType::silence).min();
        // A task lives by what it was started with, which may be another declaration.
        let held = self.held().values().map(|held| held.task.task.heartbeat).min();
        let shortest = declared.into_iter().chain(held).min().unwrap_or_default();
        shortest.max(TaskType::SHORTEST_HEARTBEAT) / 3
    }

    /// Asks the database what tells whether it is there.
    pub(super) async fn ask<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked_at = Instant::now();
        let answer = asking.await;
        let mut breaks = self.breaks();
        match &answer {
            Err(StoreError::Unavailable(_) | StoreError::TooSlow { .. }) => breaks.note_silence(),
            // Until then each worker has said once more that it lives.
            _ => breaks.note_answer(asked_at, Instant::now(), 2 * self.beat_every()),
        }
        answer
    }

    fn breaks(&self) -> MutexGuard<'_, Breaks> {
        self.breaks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is looked after here: also types that are done by workers elsewhere, who cannot look after each other.
    pub(super) fn types(&self) -> impl Iterator<Item = &str> {
        self.app.registry().task_types().map(TaskType::name)
    }

    pub(super) fn declared(&self, task: &Task) -> Option<&TaskType> {
        self.app.registry().task_type(task.task.task_type.as_str())
    }

    async fn take(self: &Arc<Self>, scan: Duration, mut stopping: Stopping) {
        let wakes = &self.app.bus.wakes;
        // Whether there may be something to take.
        let mut look = true;
        while !stopping.is_asked() {
            let wanted: Vec<WantedTasks<'_>> = self.wanted();
            if look && !wanted.is_empty() {
                let ended = self.workers.iter().map(|place| place.ahead.ended.load(Ordering::Relaxed));
                let ended: Vec<_> = ended.collect();
                look = match self.claim(&wanted).await {
                    Ok(tasks) => {
                        let has_taken = !tasks.is_empty();
                        for (place, ended) in self.workers.iter().zip(ended) {
                            place.ahead.learn(ended, place.worker.concurrency);
                        }
                        tasks.into_iter().for_each(|task| self.begin(task));
                        has_taken
                    }
                    Err(error) => {
                        failed("could not take tasks", &error);
                        rest(&Wake::default(), scan, &mut stopping).await;
                        true
                    }
                };
                continue;
            }
            tokio::select! {
                () = stopping.asked() => return,
                () = wakes.tasks.woken() => look = true,
                () = self.has_room.woken() => look = true,
                () = tokio::time::sleep(scan) => look = true,
            }
        }
    }

    /// Takes tasks; those first, that an earlier claim has taken and nobody here has heard of, may be taken again.
    async fn claim(&self, wanted: &[WantedTasks<'_>]) -> Result<Vec<Task>, StoreError> {
        self.return_unseen().await?;
        // If nobody waits for the answer, it stays so.
        self.is_unsure.store(true, Ordering::Relaxed);
        let claimed = self.app.store().claim_tasks(wanted, self.app.instance.as_str()).await;
        if matches!(claimed, Ok(_) | Err(StoreError::Contention(_))) {
            self.is_unsure.store(false, Ordering::Relaxed);
        }
        claimed
    }

    /// Gives back what was taken by a claim whose answer nobody has heard. Nothing of it was begun.
    pub(super) async fn return_unseen(&self) -> Result<(), StoreError> {
        if !self.is_unsure.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ended = self.ended().iter().map(|ended| ended.task.task.task_id).collect::<Vec<_>>();
        let held = self.claims().into_iter().map(|claim| claim.task_id);
        let seen: Vec<TaskId> = ended.into_iter().chain(held).collect();
        let count = self.app.store().return_unseen_tasks(self.app.instance.as_str(), &seen).await?;
        if count > 0 {
            tracing::warn!(count, "tasks were taken and nobody heard of it; they are given back");
        }
        self.is_unsure.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn wanted(&self) -> Vec<WantedTasks<'_>> {
        // What cannot be written must not pile up here, while others could do it.
        if self.has_much_to_write() {
            return Vec::new();
        }
        let places = self.workers.iter().map(|place| WantedTasks {
            task_type: place.worker.of.name(),
            limit: of_few_sizes(place.ahead.wanted(place.room.available_permits())),
        });
        places.filter(|wanted| wanted.limit > 0).collect()
    }

    fn has_much_to_write(&self) -> bool {
        let ended = self.ended();
        let bytes = ended.iter().map(|ended| match &ended.end {
            TaskEnd::Succeeded { result: Some(result) } => result.as_text().len(),
            _ => 0,
        });
        ended.len() >= UNWRITTEN || bytes.sum::<usize>() >= UNWRITTEN_BYTES
    }

    /// Begins an attempt.
    fn begin(self: &Arc<Self>, mut task: Task) {
        let Some(which) = self.workers.iter().position(|place| place.does(&task)) else { return };
        let (stop, stopped) = oneshot::channel();
        let payload = std::mem::replace(&mut task.task.payload, Payload::empty());
        let (known, silence) = (task.clone(), task.task.heartbeat);
        task.task.payload = payload;
        let held = Held { task: known.clone(), stop: Some(stop) };
        // An attempt of ours that was taken to be lost is.
        if let Some(before) = self.held().insert(task.task.task_id, held) {
            before.stop.map(|stop| stop.send(Stop::Lost));
        }
        let place = &self.workers[which];
        if silence < place.worker.of.silence() {
            self.beats_sooner.wake();
        }
        place.ahead.waiting.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(Arc::clone(self).attempt(which, (task, known), stopped));
    }

    /// With what is known of the task while its end waits to be written, beside the task itself.
    async fn attempt(
        self: Arc<Self>,
        which: usize,
        (task, known): (Task, Task),
        mut stopped: oneshot::Receiver<Stop>,
    ) {
        let Place { worker, room, ahead } = &self.workers[which];
        let room = room_for(room, &mut stopped).await;
        ahead.waiting.fetch_sub(1, Ordering::Relaxed);
        let room = match room {
            Ok(room) => room,
            Err(stop) => {
                // It would be so with the next ones, too.
                ahead.most.store(0, Ordering::Relaxed);
                return self.end_or_forget(worker, known, stop);
            }
        };
        let attempt = Attempt { task, app: self.app.clone() };
        let running = async {
            match run(worker, attempt, stopped).await {
                Ran::Stopped(stop) => Err(stop),
                Ran::Answered(Answer(end)) => Ok(end),
                Ran::Failed(error) => Ok(after(&worker.of, &known, &error)),
                Ran::TooLong => Ok(worker.of.after_time_limit(known.retry_count, random_unit())),
            }
        };
        // Whatever panics: the call, the attempt, what it leaves behind when it is stopped, or its error when it is described.
        let end = AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|panic| {
            let error = HandlerError::transient("worker-panicked", panic_message(panic.as_ref()));
            Ok(after(&worker.of, &known, &error))
        });
        match end {
            Ok(end) => self.end(Ended::new(known, end)),
            Err(stop) => self.end_or_forget(worker, known, stop),
        }
        ahead.ended.fetch_add(1, Ordering::Relaxed);
        drop(room);
        self.has_room.wake();
    }

    /// Ends an attempt that was stopped, if it is still ours.
    fn end_or_forget(&self, worker: &Registered, task: Task, stop: Stop) {
        match stop {
            Stop::Canceled => self.end(Ended::new(task, TaskEnd::Canceled)),
            Stop::GivenBack => self.end(Ended::new(task, TaskEnd::GivenBack)),
            Stop::Lost => {
                self.forget(task.claim());
                table::TASK_ATTEMPTS.counter(&[worker.of.name(), "lost"]).increment(1);
            }
        }
    }

    /// Lets tasks be taken whose time has come, and takes over from workers that are silent.
    async fn mind(&self, scan: Duration, mut stopping: Stopping) {
        let mut looked_at = None::<Instant>;
        while !stopping.is_asked() {
            let pause = match self.ask(self.app.store().promote_tasks(AT_A_TIME)).await {
                Ok(promoted) => {
                    if promoted.count > 0 {
                        self.app.bus.wakes.tasks.wake();
                    }
                    let pause = promoted.next_in.unwrap_or(scan).min(scan);
                    if promoted.count > 0 { pause } else { pause.max(SHORTEST_PAUSE) }
                }
                Err(error) => {
                    failed("could not let tasks be taken at their time", &error);
                    scan
                }
            };
            if looked_at.is_none_or(|looked| looked.elapsed() >= self.beat_every()) {
                looked_at = Some(Instant::now());
                if let Err(error) = self.take_over().await {
                    failed("could not look for workers that are silent", &error);
                }
            }
            rest(&self.app.bus.wakes.task_times, pause, &mut stopping).await;
        }
    }

    async fn take_over(&self) -> Result<(), StoreError> {
        // After an outage our own would be overdue, too, though they live; and so would those of others, who are given time.
        self.beat().await?;
        let types: Vec<&str> = {
            let (now, breaks) = (Instant::now(), self.breaks());
            let types = self.app.registry().task_types().filter(|of| breaks.are_past(now, of.silence()));
            types.map(TaskType::name).collect()
        };
        let living: Vec<TaskId> = self.claims().into_iter().map(|claim| claim.task_id).collect();
        let (store, worker) = (self.app.store(), self.app.instance.as_str());
        for task in self.ask(store.take_over_tasks(&types, worker, &living, AT_A_TIME)).await? {
            let Some(of) = self.declared(&task) else { continue };
            tracing::warn!(task_id = %task.task.task_id, task_type = of.name(), reason = task.status_reason, "took a task over");
            let end = match task.status_reason.as_deref() {
                _ if task.cancel_requested_at.is_some() => TaskEnd::Canceled,
                Some(TaskEnd::TIME_LIMIT) => of.after_time_limit(task.retry_count, random_unit()),
                _ => after(
                    of,
                    &task,
                    &HandlerError::transient(TaskEnd::WORKER_LOST, "its worker was silent for too long"),
                ),
            };
            self.stop_other_than(task.claim());
            self.end(Ended::new(task, end));
        }
        Ok(())
    }

    /// Leaves an end to the keeper. Of one task the newest counts: the end of an attempt from which it was taken over does not.
    fn end(&self, ended: Ended) {
        let TaskClaim { task_id, epoch } = ended.task.claim();
        let mut all = self.ended();
        let is_other = |other: &Arc<Ended>| other.task.task.task_id != task_id;
        if all.iter().all(|other| is_other(other) || other.task.epoch < epoch) {
            all.retain(is_other);
            all.push(Arc::new(ended));
        }
        drop(all);
        self.has_ended.wake();
    }

    /// Stops an attempt, if it runs.
    pub(super) fn stop(&self, claim: TaskClaim, why: Stop) {
        self.stop_if(claim.task_id, why, |epoch| epoch == claim.epoch);
    }

    /// Stops the attempt that was made before this claim, if it runs.
    fn stop_other_than(&self, claim: TaskClaim) {
        self.stop_if(claim.task_id, Stop::Lost, |epoch| epoch != claim.epoch);
    }

    fn stop_if(&self, task_id: TaskId, why: Stop, of: impl Fn(u64) -> bool) {
        let mut held = self.held();
        let stop =
            held.get_mut(&task_id).filter(|held| of(held.task.epoch)).and_then(|held| held.stop.take());
        stop.map(|stop| stop.send(why));
    }

    /// There is room in what waits to be written.
    pub(super) fn has_written(&self) {
        self.has_room.wake();
    }

    /// The task is not ours any more, and whatever came of it is written or counts for nothing.
    pub(super) fn forget(&self, claim: TaskClaim) {
        self.ended().retain(|ended| ended.task.claim() != claim);
        let mut held = self.held();
        if held.get(&claim.task_id).is_some_and(|held| held.task.epoch == claim.epoch) {
            held.remove(&claim.task_id);
        }
    }

    /// Lets the end of a task be written behind all others.
    pub(super) fn put_last(&self, one: &Arc<Ended>) {
        let mut all = self.ended();
        if let Some(at) = all.iter().position(|other| Arc::ptr_eq(one, other)) {
            let one = all.remove(at);
            all.push(one);
        }
    }

    /// What is ours and has not ended.
    pub(super) fn unended(&self) -> Vec<Task> {
        let mut tasks: Vec<Task> = self.held().values().map(|held| held.task.clone()).collect();
        let ended = self.ended();
        tasks.retain(|task| ended.iter().all(|ended| ended.task.claim() != task.claim()));
        tasks
    }

    /// What is ours.
    pub(super) fn claims(&self) -> Vec<TaskClaim> {
        self.held().values().map(|held| held.task.claim()).collect()
    }

    fn held(&self) -> MutexGuard<'_, HashMap<TaskId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, Vec<Arc<Ended>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an attempt ended.
enum Ran {
    Answered(Answer),
    Failed(HandlerError),
    TooLong,
    Stopped(Stop),
}

async fn run(worker: &Registered, attempt: Attempt, stopped: oneshot::Receiver<Stop>) -> Ran {
    if attempt.task.cancel_requested_at.is_some() {
        return Ran::Stopped(Stop::Canceled);
    }
    let limit = attempt.task.task.time_limit;
    let running = async {
        match (worker.run)(attempt).await {
            Ok(answer) => Ran::Answered(answer),
            Err(error) => Ran::Failed(error),
        }
    };
    let too_long = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        // Nobody can stop what nobody holds.
        stop = stopped => Ran::Stopped(stop.unwrap_or(Stop::Lost)),
        ran = running => ran,
        () = too_long => Ran::TooLong,
    }
}

/// Waits for room, though not for long: what was taken ahead of it may be done elsewhere.
async fn room_for(
    room: &Arc<Semaphore>,
    stopped: &mut oneshot::Receiver<Stop>,
) -> Result<OwnedSemaphorePermit, Stop> {
    tokio::select! {
        biased;
        stop = stopped => Err(stop.unwrap_or(Stop::Lost)),
        room = Arc::clone(room).acquire_owned() => room.map_err(|_| Stop::GivenBack),
        () = tokio::time::sleep(LONGEST_AHEAD) => Err(Stop::GivenBack),
    }
}

/// How an attempt ends that failed.
pub(crate) fn after(of: &TaskType, task: &Task, error: &HandlerError) -> TaskEnd {
    let code = facts::cut(error.code(), facts::MOST_OF_A_CODE);
    let message = facts::cut(&error.message(), facts::MOST_OF_A_MESSAGE);
    // Its text may be what somebody has sent: it is kept in the row, and not logged.
    tracing::info!(task_id = %task.task.task_id, task_type = of.name(), code, "an attempt at a task failed");
    of.after_failure(error.class(), code, message, task.retry_count, random_unit())
}

pub(super) fn failed(what: &str, error: &StoreError) {
    tracing::warn!(code = error.code(), cause = with_causes(error), "{what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_tasks_are_short_as_many_are_taken_ahead_as_end_meanwhile() {
        let ahead = Ahead::default();
        assert_eq!((ahead.wanted(8), ahead.wanted(0)), (8, 0), "nobody knows yet how long they take");
        ahead.ended.store(6, Ordering::Relaxed);
        ahead.learn(0, 8);
        assert_eq!((ahead.wanted(8), ahead.wanted(0)), (20, 12));
        ahead.waiting.store(8, Ordering::Relaxed);
        assert_eq!(ahead.wanted(0), 0, "most of them wait");
        assert_eq!(ahead.wanted(1), 5, "somebody has nothing to do");
        ahead.ended.store(1000, Ordering::Relaxed);
        ahead.learn(0, 8);
        assert_eq!(ahead.most.load(Ordering::Relaxed), 32, "never more than workers do in a while");
        // Long ones: none end while others are taken.
        for most in [16, 8, 4, 2, 1, 0] {
            ahead.learn(1000, 8);
            assert_eq!(ahead.most.load(Ordering::Relaxed), most);
        }
    }

    #[test]
    fn claims_have_few_sizes() {
        let sizes: std::collections::BTreeSet<u32> = (0..5000).map(of_few_sizes).collect();
        assert!(sizes.iter().take(10).eq(&[0, 1, 2, 3, 4, 6, 8, 12, 16, 24]), "{sizes:?}");
        assert!((1..1000).all(|wanted| of_few_sizes(wanted) as usize <= wanted
            && of_few_sizes(wanted) as usize * 3 >= wanted * 2));
        assert_eq!(of_few_sizes(5000), 768);
    }

    #[test]
    fn who_could_not_be_heard_is_given_time() {
        let (begun, second, hour) = (Instant::now(), Duration::from_secs(1), Duration::from_secs(3600));
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut breaks = Breaks::begin(begun);
        assert!(
            breaks.are_past(at(0), Duration::ZERO) && !breaks.are_past(at(3599), hour),
            "it has just begun"
        );
        breaks.note_answer(at(3600), at(3600), 10 * second);
        assert!(breaks.are_past(at(3600), hour), "it goes on");
        // A short break: those who live by seconds could not be heard, others could.
        breaks.note_silence();
        breaks.note_answer(at(3602), at(3602), 10 * second);
        assert!(breaks.are_past(at(3602), hour) && !breaks.are_past(at(3602), 6 * second));
        breaks.note_answer(at(3610), at(5600), 10 * second);
        assert!(!breaks.are_past(at(9199), hour), "who answers late was away");
        assert!(breaks.are_past(at(9200), hour));
        breaks.note_answer(at(10_000), at(10_000), 10 * second);
        breaks.note_silence();
        breaks.note_silence();
        assert!(breaks.are_past(at(10_001), hour) && !breaks.are_past(at(11_200), hour), "it is not over");
        breaks.note_answer(at(12_000), at(12_000), 10 * second);
        assert!(!breaks.are_past(at(15_599), hour) && breaks.are_past(at(15_599), hour / 2));
        assert!(breaks.are_past(at(15_600), hour), "all have had their time by now");
        assert_eq!(breaks.over.len(), 2, "a later one that is as long stands for those before it");
    }
}
