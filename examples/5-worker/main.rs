//! A worker: drawings are asked for in a transaction, and made by a worker that fails the first time.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use towpath::ids::{AggregateKey, TaskId};
use towpath::ports::store::StoreError;
use towpath::retry::RetryPolicy;
use towpath::{Answer, Attempt, HandlerError, TASK_KIND, TaskType, Towpath, Worker};

/// What sort of work it is. Its beginning and its end are facts, because they have names.
fn drawing() -> TaskType {
    TaskType::named("Painter.Drawing")
        .retries(RetryPolicy::Fixed(vec![Duration::from_millis(50)]))
        .time_limit(Duration::from_secs(10))
        .requested("Painter.Drawing.Requested")
        .answered("Painter.Drawing.Drawn")
}

struct Painter;

impl Worker for Painter {
    fn task(&self) -> TaskType {
        drawing()
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        let bird: String = attempt.read()?;
        match attempt.task.retry_count {
            0 => Err(HandlerError::transient("no-ink", "the ink is out")),
            _ => Answer::of(&format!("a {bird}, in ink")),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SQLite and the in-process broker, or whatever TOWPATH_STORE and TOWPATH_BROKER name.
    let app = Towpath::from_env().begins_flow("Painter.Drawing.Requested").worker(Painter, 2).start().await?;

    // Asked for twice at once, it is one task: the first is still open.
    let (first, second) = app
        .transact(async |mut tx| {
            let first = tx.start_task(&drawing(), "duck").unique("duck").await?;
            let second = tx.start_task(&drawing(), "duck").unique("duck").await?;
            Ok::<_, StoreError>((first, second))
        })
        .await?;
    println!("the same task: {}", first.task_id == second.task_id && !second.is_new);

    let task = ended(&app, first.task_id).await?;
    println!("{} after {} retry: {}", task.status, task.retry_count, task.error_message.unwrap_or_default());
    println!("it came to {}", task.result.as_ref().map_or("nothing", |result| result.as_text()));
    let aggregate = AggregateKey::new(TASK_KIND, first.task_id.to_string())?;
    for fact in app.events_of(&aggregate, 0, 10).await? {
        println!("fact {}: {}", fact.envelope.aggregate_version, fact.envelope.event_type);
    }
    app.stop().await;
    Ok(())
}

/// Waits for the end of a task.
async fn ended(app: &Towpath, task_id: TaskId) -> Result<towpath::Task, Box<dyn std::error::Error>> {
    loop {
        match app.task(task_id).await? {
            Some(task) if task.finished_at.is_some() => return Ok(task),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
