//! Undoing what a process did: one command after the other, the last first. What is still to come is called off before that.
//!
//! The commands have ids that were given when the process said what would undo it. So however often the task is tried, each
//! is one command.

use std::time::Duration;

use serde::Serialize;
use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{AggregateKey, CommandId};
use towpath_core::lifecycle::{CommandStatus, TaskState};
use towpath_core::ports::store::{NewCommand, NewTask, Processes as _, Undo, Undoes};
use towpath_core::process::Outgoing;
use towpath_core::retry::RetryPolicy;
use towpath_core::task::TaskType;

use crate::bus::Incoming;
use crate::consumer::HandlerError;
use crate::tasks::{Answer, Attempt, Worker};
use crate::timers::command_of_timer;
use crate::towpath::Towpath;

/// How the names of its facts begin.
pub(crate) const FACTS: &str = "Towpath.Compensation.";

/// The work of undoing what a process of a kind did: it is done where that kind is registered. Its subject is the process.
pub(crate) fn compensation(kind: &str) -> TaskType {
    let retries = RetryPolicy::Exponential {
        first: Duration::from_millis(200),
        factor: 2.0,
        cap: Duration::from_secs(300),
        // About a day: what is to be undone may still be going on for long.
        attempts: 300,
        jitter: 0.2,
    };
    TaskType::named(format!("towpath.compensate.{kind}"))
        .retries(retries)
        // It is quick, and does no harm twice: who is silent is not waited for.
        .heartbeat(Duration::from_secs(5))
        .requested("Towpath.Compensation.Requested")
        .answered("Towpath.Compensation.Completed")
        .failed("Towpath.Compensation.Failed")
}

/// Undoes what processes of a kind did.
pub(crate) struct Compensator(pub(crate) &'static str);

/// Why a task is called off.
const CALLED_OFF: &str = "compensating";

/// What came of it.
#[derive(Default, Serialize)]
struct Undone {
    /// So many commands were sent by this attempt.
    sent: u64,
    /// For so many there was nothing to undo.
    skipped: u64,
}

impl Worker for Compensator {
    fn task(&self) -> TaskType {
        compensation(self.0)
    }

    async fn run(&self, Attempt { task, app }: Attempt) -> Result<Answer, HandlerError> {
        let without = || HandlerError::unrecoverable("missing", "the task names no process");
        let process: &AggregateKey = task.task.subject.as_ref().ok_or_else(without)?;
        // All of it before anything is undone, which may take long.
        let mut before = None;
        while let Some(Undo { undo_id, undo }) = app.store().next_undo(process, before).await? {
            call_off(&app, undo.undoes.as_ref()).await?;
            before = Some(undo_id);
        }
        let mut undone = Undone::default();
        while let Some(Undo { undo_id, undo }) = app.store().next_undo(process, None).await? {
            if was_done(&app, undo.undoes.as_ref()).await? {
                send(&app, &task.task, undo.command_id, undo.command).await?;
                undone.sent += 1;
            } else {
                undone.skipped += 1;
            }
            app.store().note_undone(undo_id, app.now()).await?;
        }
        Answer::of(&undone)
    }
}

/// Calls off what has not happened yet. A command that was sent is on its way.
async fn call_off(app: &Towpath, undoes: Option<&Undoes>) -> Result<(), HandlerError> {
    match undoes {
        Some(Undoes::Timer(timer_id)) => drop(app.cancel_timer(*timer_id).await?),
        Some(Undoes::Task(task_id)) => drop(app.cancel_task(*task_id, CALLED_OFF).await?),
        Some(Undoes::Command(_)) | None => {}
    }
    Ok(())
}

/// Whether there is something to undo. What nobody remembers ended long ago, and may have been done.
async fn was_done(app: &Towpath, undoes: Option<&Undoes>) -> Result<bool, HandlerError> {
    match undoes {
        None => Ok(true),
        Some(Undoes::Command(command_id)) => Ok(was_completed(app, command_id).await?.unwrap_or(true)),
        Some(Undoes::Timer(timer_id)) => {
            // Before its command: that may be sent as long as the timer has not ended.
            let state = app.find_timer(*timer_id).await?.map(|timer| timer.state);
            if state.is_some_and(is_to_come) {
                return Err(not_ended(&format!("timer {timer_id}")));
            }
            let sent = was_completed(app, &command_of_timer(*timer_id)).await?;
            Ok(sent.unwrap_or(matches!(state, None | Some(TaskState::Succeeded))))
        }
        // What a worker has begun may have been done in part, however it ended.
        Some(Undoes::Task(task_id)) => match app.task(*task_id).await? {
            None => Ok(true),
            Some(task) if is_to_come(task.status) => Err(not_ended(&format!("task {task_id}"))),
            Some(task) => Ok(task.epoch > 0),
        },
    }
}

fn is_to_come(state: TaskState) -> bool {
    matches!(state, TaskState::Pending | TaskState::Queued | TaskState::Running)
}

/// Whether a command had its effect, and was not refused; nothing, if nobody remembers it.
async fn was_completed(app: &Towpath, command_id: &CommandId) -> Result<Option<bool>, HandlerError> {
    let Some(record) = app.command(command_id).await? else { return Ok(None) };
    match record.status {
        CommandStatus::Completed => Ok(Some(true)),
        CommandStatus::Failed if record.next_retry_at.is_none() => Ok(Some(false)),
        CommandStatus::Failed | CommandStatus::Pending | CommandStatus::Processing => {
            Err(not_ended(&format!("command {command_id}")))
        }
    }
}

fn not_ended(what: &str) -> HandlerError {
    HandlerError::transient("still-processing", format!("{what} has not ended, and so cannot be undone yet"))
}

/// Sends a command and waits for its end.
async fn send(
    app: &Towpath,
    task: &NewTask,
    command_id: CommandId,
    command: Outgoing,
) -> Result<(), HandlerError> {
    let mut context = ChangeContext::new(app.now(), task.correlation_id.clone());
    context.causation_id.clone_from(&task.causation_id);
    context.trace_id.clone_from(&task.trace_id);
    let Outgoing { aggregate, command_type, payload } = command;
    let command = NewCommand { command_id, command_type, aggregate, payload, context };
    let incoming = Incoming { command, expected_version: None, claim: None, still_in: None, fence: None };
    app.bus.run(incoming).await?;
    Ok(())
}
