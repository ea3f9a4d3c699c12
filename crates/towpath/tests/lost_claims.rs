//! A claim whose answer was lost may have been made all the same: what it took must not stay claimed for as long as the
//! instance lives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::probe::{Action, ProbeAt};
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::CommandId;
use towpath::lifecycle::{CommandStatus, TaskState};
use towpath::ports::store::{HeldLease, LeaseGrant, WantedTasks};
use towpath::retry::RetryPolicy;
use towpath::{Answer, Attempt, HandlerError, StoreOptions, TaskType, Towpath, Worker};
use towpath_testkit::VirtualClock;
use towpath_testkit::broker::TcpProxy;

on_every_database!(
    commands_are_put_back_when_the_runner_has_panicked,
    timers_wait_again_when_their_service_has_panicked,
    tasks_are_taken_again_when_their_service_has_panicked,
);

// SQLite has no server that could go away.
mod away {
    use super::support;

    on_every_database!(@database postgres, commands_are_put_back_after_a_lost_line, timers_wait_again_after_a_lost_line,
        tasks_are_taken_again_after_a_lost_line);
    on_every_database!(@database mysql, commands_are_put_back_after_a_lost_line, timers_wait_again_after_a_lost_line,
        tasks_are_taken_again_after_a_lost_line);

    use super::{
        commands_are_put_back_after_a_lost_line, tasks_are_taken_again_after_a_lost_line,
        timers_wait_again_after_a_lost_line,
    };
}

const DAY: Duration = Duration::from_secs(86_400);

async fn started(
    fresh: &Fresh,
    url: &str,
    statement: &'static str,
    action: impl Action,
) -> (Towpath, Arc<VirtualClock>, Arc<ProbeAt>) {
    let clock = Arc::new(VirtualClock::new());
    let probe = Arc::new(ProbeAt::new(statement, action));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let builder = fresh.builder().store(url).clock(clock.clone()).store_options(options);
    (builder.start().await.unwrap(), clock, probe)
}

/// What the services of an instance claim under.
async fn grant_of(app: &Towpath) -> LeaseGrant {
    let leases = app.store().leases(&format!("instance/{}", app.instance())).await.unwrap();
    let HeldLease { lease, holder, epoch, .. } = leases[0].clone();
    LeaseGrant { lease, holder, epoch }
}

async fn commands_are_put_back_when_the_runner_has_panicked(fresh: &Fresh) {
    commands_are_put_back(fresh, fresh.url(), || panic!("a bug of ours, on purpose")).await;
}

async fn timers_wait_again_when_their_service_has_panicked(fresh: &Fresh) {
    timers_wait_again(fresh, fresh.url(), || panic!("a bug of ours, on purpose")).await;
}

async fn tasks_are_taken_again_when_their_service_has_panicked(fresh: &Fresh) {
    tasks_are_taken_again(fresh, fresh.url(), || panic!("a bug of ours, on purpose")).await;
}

async fn tasks_are_taken_again_after_a_lost_line(fresh: &Fresh) {
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    tasks_are_taken_again(fresh, &url, move || proxy.cut()).await;
}

async fn commands_are_put_back_after_a_lost_line(fresh: &Fresh) {
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    commands_are_put_back(fresh, &url, move || proxy.cut()).await;
}

async fn timers_wait_again_after_a_lost_line(fresh: &Fresh) {
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    timers_wait_again(fresh, &url, move || proxy.cut()).await;
}

async fn commands_are_put_back(fresh: &Fresh, url: &str, disturb: impl Action) {
    let (app, _, probe) = started(fresh, url, "commands.due", disturb).await;
    // Claimed under the instance's grant, and its runner does not know. Another instance has written it, for tomorrow.
    let other = fresh.builder().without_workers().start().await.unwrap();
    let tomorrow = Arc::new(VirtualClock::new());
    tomorrow.advance(DAY);
    let writing = fresh.builder().without_workers().clock(tomorrow.clone()).start().await.unwrap();
    let placing = OrderCommand::Place { sku: "book".to_owned() };
    writing.send::<Order>("o-1", placing).once("c-1").later().await.unwrap();
    let now = towpath::ports::clock::Clock::now(&*tomorrow);
    let grant = grant_of(&app).await;
    // A look of the runner passes with locks, over which a claim steps.
    eventually("it is claimed", || async {
        let claimed = other.store().claim_commands(&grant, &["order.place"], now, 10).await.unwrap();
        (claimed.len() == 1).then_some(())
    })
    .await;

    probe.arm(1);
    let id = CommandId::new("c-1").unwrap();
    eventually("it is run", || async {
        let record = other.command(&id).await.unwrap().unwrap();
        (record.status == CommandStatus::Completed).then_some(())
    })
    .await;
    assert!(probe.is_spent());
    for app in [app, other, writing] {
        app.stop().await;
    }
}

async fn timers_wait_again(fresh: &Fresh, url: &str, disturb: impl Action) {
    let (app, clock, probe) = started(fresh, url, "timers.due", disturb).await;
    let other = fresh.builder().without_workers().start().await.unwrap();
    let placing = OrderCommand::Place { sku: "book".to_owned() };
    let timer_id = app.timer::<Order>("o-1", placing).after(DAY).await.unwrap();
    let tomorrow = towpath::ports::clock::Clock::now(&*clock) + DAY;
    let grant = grant_of(&app).await;
    // A look of the service passes with locks, over which a claim steps.
    eventually("it is claimed", || async {
        let claimed = other.store().claim_timers(&grant, &["order.place"], tomorrow, 10).await.unwrap();
        (claimed.len() == 1).then_some(())
    })
    .await;

    probe.arm(1);
    let state = async || other.find_timer(timer_id).await.unwrap().unwrap().state;
    eventually("it waits again", || async { (state().await == TaskState::Queued).then_some(()) }).await;
    assert!(probe.is_spent());
    clock.advance(DAY);
    eventually("it fires", || async { (state().await == TaskState::Succeeded).then_some(()) }).await;
    app.stop().await;
    other.stop().await;
}

/// Does its task, which may be tried once.
struct Draws;

impl Worker for Draws {
    fn task(&self) -> TaskType {
        TaskType::named("Painter.Draw").retries(RetryPolicy::Fixed(Vec::new())).heartbeat(DAY)
    }

    async fn run(&self, _: Attempt) -> Result<Answer, HandlerError> {
        Ok(Answer::done())
    }
}

async fn tasks_are_taken_again(fresh: &Fresh, url: &str, disturb: impl Action) {
    let (of, painter) = (Draws.task(), "painter-1");
    let other = fresh.builder().task_type(of.clone()).without_workers().start().await.unwrap();
    let start = async |what: &str| {
        let started = other.transact(async |mut tx| tx.start_task(&of, what).await);
        started.await.unwrap().task_id
    };
    // Taken for the instance, which does not know.
    let duck = start("duck").await;
    let wanted = [WantedTasks { task_type: of.name(), limit: 1 }];
    assert_eq!(other.store().claim_tasks(&wanted, painter).await.unwrap().len(), 1);
    let goose = start("goose").await;

    let probe = Arc::new(ProbeAt::new("tasks.claim", disturb));
    probe.arm(1);
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let builder = fresh.builder().store(url).instance(painter).store_options(options).worker(Draws, 2);
    let app = builder.start().await.unwrap();
    for task_id in [duck, goose] {
        let task = eventually("it is done", || async {
            other.task(task_id).await.unwrap().filter(|task| task.status == TaskState::Succeeded)
        });
        assert_eq!(task.await.retry_count, 0, "no attempt was counted");
    }
    assert!(probe.is_spent());
    app.stop().await;
    other.stop().await;
}
