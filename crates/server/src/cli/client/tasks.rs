//! `towpath tasks`.

use clap::Subcommand;
use serde_json::json;

use super::shown::{cell, fields};
use super::{Client, Connection, show_page};
use crate::cli::{Failure, output};

/// Work that is done by workers.
#[derive(Subcommand)]
pub(crate) enum Tasks {
    /// The last first
    Ls {
        #[command(flatten)]
        connection: Connection,
        /// Only those that are pending, queued, running, succeeded, failed, canceled, timeout or skipped
        #[arg(long)]
        state: Option<String>,
        /// Only those of this type
        #[arg(long = "type", value_name = "TYPE")]
        task_type: Option<String>,
        /// Only those for this aggregate
        #[arg(long, value_name = "KIND/ID")]
        subject: Option<String>,
        /// Only what is behind this: what the page before said
        #[arg(long)]
        after: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// All that is known of one
    Show {
        #[command(flatten)]
        connection: Connection,
        /// The task's id
        id: String,
    },
    /// Let tasks be taken again that failed, took too long or were called off
    Retry {
        #[command(flatten)]
        connection: Connection,
        /// The ids of tasks
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Call tasks off: those that wait at once, those that run when their workers hear of it
    Cancel {
        #[command(flatten)]
        connection: Connection,
        /// The ids of tasks
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why: a stable code, such as not-wanted
        #[arg(long)]
        reason: String,
    },
}

impl Tasks {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Ls { connection, state, task_type, subject, after, limit } => {
                let subject = subject.map(|subject| match subject.split_once('/') {
                    Some((kind, id)) => Ok((kind.to_owned(), id.to_owned())),
                    None => Err(Failure::usage(format!("--subject {subject:?}: write KIND/ID"))),
                });
                let (kind, id) = subject.transpose()?.unzip();
                let asked = [
                    ("state", state),
                    ("type", task_type),
                    ("subjectKind", kind),
                    ("subjectId", id),
                    ("after", after),
                ];
                let columns = [
                    ("TASK", "taskId"),
                    ("TYPE", "type"),
                    ("STATUS", "status"),
                    ("REASON", "statusReason"),
                    ("ERROR", "errorCode"),
                    ("RETRIES", "retryCount"),
                    ("WORKER", "worker"),
                    ("KIND", "subject.kind"),
                    ("SUBJECT", "subject.id"),
                    ("CHANGED", "statusChangedAt"),
                ];
                show_page(&connection, &["api", "tasks"], &asked, "tasks", &columns, limit).await
            }
            Self::Show { connection, id } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "tasks", &id], &[]).await?;
                client.show(&answer, fields);
                Ok(())
            }
            Self::Retry { connection, ids } => each(&connection, &ids, "retry", &json!({})).await,
            Self::Cancel { connection, ids, reason } => {
                each(&connection, &ids, "cancel", &json!({ "reason": reason })).await
            }
        }
    }
}

async fn each(
    connection: &Connection,
    ids: &[String],
    what: &str,
    body: &serde_json::Value,
) -> Result<(), Failure> {
    let client = Client::new(connection)?;
    for id in ids {
        let answer = client.post(&["api", "tasks", id, what], body).await?;
        client.show(&answer, |task| {
            let asked = if task["cancelRequestedAt"].is_null() { "" } else { ", and is to be called off" };
            output::line(&format!("{id} is {}{asked}", cell(&task["status"])));
        });
    }
    Ok(())
}
