//! `towpath dead`.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::shown::{cell, fields, more, table};
use super::{Client, Connection, agreed, query, text_or_file};
use crate::cli::{Failure, output};

const PATH: &str = "dead-letters";

/// Deliveries that were given up.
#[derive(Subcommand)]
pub(crate) enum Dead {
    /// By number
    Ls {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        which: LetterFlags,
        /// In this status instead: RETRY, BEHIND, DEAD, REPLAYED or DISCARDED
        #[arg(long)]
        status: Option<String>,
        /// By cause, the largest groups first
        #[arg(long)]
        causes: bool,
        /// Only what is behind this number
        #[arg(long, value_name = "N")]
        after: Option<u64>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// All that is known of one, with its message
    Show {
        #[command(flatten)]
        connection: Connection,
        /// The letter's number
        id: u64,
    },
    /// Let letters be tried again: those that are named, or all that fit
    Replay {
        #[command(flatten)]
        many: Many,
        /// Also those that are older than inboxes remember
        #[arg(long)]
        force: bool,
    },
    /// Replace the body of a letter; the first one is kept beside it
    Edit {
        #[command(flatten)]
        connection: Connection,
        /// The letter's number
        id: u64,
        /// The whole body, or @FILE
        #[arg(long, value_name = "TEXT")]
        body: String,
    },
    /// Throw letters away: those that are named, or all that fit
    Discard {
        #[command(flatten)]
        many: Many,
        /// Why, for people
        #[arg(long)]
        message: Option<String>,
    },
}

/// Which letters.
#[derive(Args)]
pub(crate) struct LetterFlags {
    /// Of this handler
    #[arg(long)]
    handler: Option<String>,
    /// From this queue
    #[arg(long)]
    queue: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "TYPE")]
    message_type: Option<String>,
    /// With this reason
    #[arg(long)]
    reason: Option<String>,
}

/// Letters that are named, or all that fit.
#[derive(Args)]
pub(crate) struct Many {
    #[command(flatten)]
    connection: Connection,
    /// The numbers of letters; without, all dead ones that fit what else is said
    ids: Vec<u64>,
    #[command(flatten)]
    which: LetterFlags,
    /// All dead ones
    #[arg(long)]
    all: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl LetterFlags {
    fn parts(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("handler", self.handler.clone()),
            ("queue", self.queue.clone()),
            ("messageType", self.message_type.clone()),
            ("reason", self.reason.clone()),
        ]
    }
}

impl Dead {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Ls { connection, which, status, causes, after, limit } => {
                let client = Client::new(&connection)?;
                let mut parts = which.parts().to_vec();
                parts.push(("status", status));
                if causes {
                    let answer = client.get(&["api", PATH, "causes"], &query(&parts)).await?;
                    client.show(&answer, |listed| by_cause(&listed["causes"]));
                    return Ok(());
                }
                parts.push(("after", after.map(|after| after.to_string())));
                parts.push(("limit", Some(limit.to_string())));
                let answer = client.get(&["api", PATH], &query(&parts)).await?;
                client.show(&answer, |listed| {
                    letters(&listed["letters"]);
                    more(listed, listed["letters"].as_array().map_or(0, Vec::len), limit);
                });
            }
            Self::Show { connection, id } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", PATH, &id.to_string()], &[]).await?;
                client.show(&answer, fields);
            }
            Self::Replay { many, force } => {
                many.act("replay", &[("force", Value::Bool(force))], "Let them be tried again?").await?;
            }
            Self::Edit { connection, id, body } => {
                let client = Client::new(&connection)?;
                let body = json!({ "body": text_or_file(&body)? });
                let path = ["api", PATH, &id.to_string()];
                let answer = client.ask(Method::PUT, &path, &[], Some(body.to_string())).await?;
                client.show(&answer, |_| {
                    output::line(&format!("{id} was edited; replay it with `dead replay {id}`"))
                });
            }
            Self::Discard { many, message } => {
                let message = message.map_or(Value::Null, Value::String);
                many.act("discard", &[("message", message)], "Throw them away?").await?;
            }
        }
        Ok(())
    }
}

impl Many {
    /// Does something to the letters that are named, or counts those that fit, asks, and does it to exactly those.
    async fn act(self, action: &str, how: &[(&str, Value)], question: &str) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let filter = query(&self.which.parts());
        if !self.ids.is_empty() && (self.all || !filter.is_empty()) {
            return Err(Failure::usage("say which by numbers or by what they have in common, not both"));
        }
        if self.ids.is_empty() && filter.is_empty() && !self.all {
            return Err(Failure::usage("say which: numbers, --handler, --queue, --type, --reason, or --all"));
        }
        let mut body = json!({});
        for (name, value) in how {
            body[*name] = value.clone();
        }
        for id in &self.ids {
            let answer = client.post(&["api", PATH, &id.to_string(), action], &body).await?;
            client.show(&answer, |letter| output::line(&format!("{id} is {}", cell(&letter["status"]))));
        }
        if !self.ids.is_empty() {
            return Ok(());
        }
        for (name, value) in filter {
            body[name] = Value::String(value);
        }
        body["dryRun"] = Value::Bool(true);
        let counted = client.post(&["api", PATH, action], &body).await?;
        let count = counted.value["count"].as_u64().unwrap_or(0);
        if count == 0 {
            client.show(&counted, |_| output::note("no dead letter fits"));
            return Ok(());
        }
        if !self.yes {
            by_cause(&counted.value["causes"]);
        }
        agreed(&format!("{count} letters. {question}"), self.yes)?;
        body["dryRun"] = Value::Bool(false);
        // Exactly those that were counted: not what has come since.
        body["upTo"] = counted.value["upTo"].clone();
        body["expected"] = json!(count);
        let answer = client.post(&["api", PATH, action], &body).await?;
        client.show(&answer, |done| match &done["replayed"] {
            Value::Object(_) => fields(&done["replayed"]),
            _ => output::line(&format!("{} were thrown away", cell(&done["discarded"]))),
        });
        Ok(())
    }
}

fn letters(letters: &Value) {
    table(
        letters,
        &[
            ("LETTER", "letterId"),
            ("HANDLER", "handler"),
            ("QUEUE", "queue"),
            ("TYPE", "messageType"),
            ("STATUS", "status"),
            ("REASON", "statusReason"),
            ("RETRIES", "retryCount"),
            ("RECEIVED", "receivedAt"),
        ],
    );
}

fn by_cause(causes: &Value) {
    table(
        causes,
        &[
            ("COUNT", "count"),
            ("HANDLER", "handler"),
            ("QUEUE", "queue"),
            ("TYPE", "messageType"),
            ("REASON", "reason"),
            ("OLDEST", "oldestAt"),
            ("NEWEST", "newestAt"),
        ],
    );
}
