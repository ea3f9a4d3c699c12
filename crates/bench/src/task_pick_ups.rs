//! How soon an idle worker begins: tasks that are started one by one, by the process that does them and by another instance on the
//! same database.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;
use towpath::{Answer, Attempt, HandlerError, Scratch, SqlStore, TaskType, Towpath, Worker};

use crate::Failure;
use crate::tasks::{Job, STANDING, STUCK, TaskFlags, enqueue, job, start};

/// So many do not count: connections are made, statements prepared.
const WARM_UP: usize = 10;

/// How long a worker has nothing to do before the next task is started, its last one being finished.
const IDLE: Duration = Duration::from_millis(10);

/// No more are started after this long: where the database carries no notices, another instance's task is found by looking.
const PATIENCE: Duration = Duration::from_secs(60);

/// From the answer to the commit to the worker, in milliseconds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PickUps {
    /// Started by the process that does them.
    pick_up_millis: PickUp,
    /// Started by another instance on the same database.
    pick_up_from_elsewhere_millis: PickUp,
}

#[derive(Serialize)]
struct PickUp {
    p50: f64,
    p99: f64,
    tasks: usize,
}

impl fmt::Display for PickUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PickUps { pick_up_millis: here, pick_up_from_elsewhere_millis: elsewhere } = self;
        writeln!(f, "  an idle worker begins a task of its own process after     {here}")?;
        write!(f, "  an idle worker begins a task of another instance after    {elsewhere}")
    }
}

impl fmt::Display for PickUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PickUp { p50, p99, tasks } = self;
        write!(f, "{p50:>7.2} ms (p99 {p99:.2} ms, {tasks} tasks)")
    }
}

/// Tells when it begins.
struct Telling(mpsc::UnboundedSender<Instant>);

impl Worker for Telling {
    fn task(&self) -> TaskType {
        job()
    }

    async fn run(&self, _: Attempt) -> Result<Answer, HandlerError> {
        let _ = self.0.send(Instant::now());
        Ok(Answer::done())
    }
}

/// Measures both.
pub(crate) async fn pick_ups(
    scratch: &Scratch,
    store: &SqlStore,
    flags: &TaskFlags,
) -> Result<PickUps, Failure> {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let app = start(scratch, flags, |builder| builder.worker(Telling(begun), flags.workers)).await?;
    let here = pick_up(&app, &mut begins, store, flags).await?;
    let other = start(scratch, flags, |builder| builder.task_type(job())).await?;
    let elsewhere = pick_up(&other, &mut begins, store, flags).await?;
    other.stop().await;
    app.stop().await;
    Ok(PickUps { pick_up_millis: here, pick_up_from_elsewhere_millis: elsewhere })
}

/// How soon tasks begin that are started here.
async fn pick_up(
    starting: &Towpath,
    begins: &mut mpsc::UnboundedReceiver<Instant>,
    store: &SqlStore,
    flags: &TaskFlags,
) -> Result<PickUp, Failure> {
    let (mut millis, since) = (Vec::new(), Instant::now());
    for which in 0..WARM_UP + flags.pick_ups.max(1) {
        until_idle(store).await?;
        enqueue(starting, Job::numbered(0)).await?;
        let committed = Instant::now();
        let Ok(Some(begun)) = tokio::time::timeout(STUCK, begins.recv()).await else {
            return Err(Failure::unreachable("a task was never begun"));
        };
        if which >= WARM_UP {
            // A worker may begin before this task has looked at its clock.
            millis.push(begun.saturating_duration_since(committed).as_secs_f64() * 1000.0);
            if since.elapsed() > PATIENCE {
                break;
            }
        }
    }
    millis.sort_by(f64::total_cmp);
    let at = |hundredths: usize| millis.get(millis.len() * hundredths / 100).copied().unwrap_or_default();
    Ok(PickUp { p50: at(50), p99: at(99), tasks: millis.len() })
}

/// Waits until nothing is to be done, and a little longer.
async fn until_idle(store: &SqlStore) -> Result<(), Failure> {
    let since = Instant::now();
    while STANDING.open(store).await? > 0 {
        if since.elapsed() > STUCK {
            return Err(Failure::unreachable("a task was never finished"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(IDLE).await;
    Ok(())
}
