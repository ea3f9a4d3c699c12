//! `towpath channels`, `towpath consumers`.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::shown::{cell, fields, table};
use super::{Client, Connection, agreed};
use crate::cli::{Failure, output};

/// Where events go, and how far that is.
#[derive(Subcommand)]
pub(crate) enum Channels {
    /// All of them
    Ls {
        #[command(flatten)]
        connection: Connection,
    },
    /// All that is known of one
    Show {
        #[command(flatten)]
        connection: Connection,
        /// The channel's name
        name: String,
    },
    /// Add one that follows the log
    Add {
        #[command(flatten)]
        connection: Connection,
        /// The channel's name
        name: String,
        /// Which events (`*` stands for any run of characters); may be given more than once
        #[arg(long = "events", value_name = "GLOB", required = true)]
        events: Vec<String>,
        /// The exchange (on Kafka: the topic)
        #[arg(long)]
        exchange: String,
        /// Always this key; without, the event's type
        #[arg(long)]
        routing_key: Option<String>,
        /// towpath, cloud-events, or one that an application brings
        #[arg(long, default_value = "towpath")]
        format: String,
        /// Where it begins: first, now, or a position
        #[arg(long, default_value = "now", value_parser = start)]
        start: Value,
    },
    /// Set one back, or forward
    Reset {
        #[command(flatten)]
        connection: Connection,
        /// The channel's name
        name: String,
        /// Where it goes on: first, now, or a position
        #[arg(long, value_parser = start)]
        to: Value,
        /// Also if it would publish again what is older than inboxes remember
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Pause one that follows the log
    Pause {
        #[command(flatten)]
        connection: Connection,
        /// The channel's name
        name: String,
        /// Why, as a short code
        #[arg(long)]
        reason: Option<String>,
    },
    /// Let one go on
    Resume {
        #[command(flatten)]
        connection: Connection,
        /// The channel's name
        name: String,
    },
    /// Remove one that follows the log
    Remove {
        #[command(flatten)]
        connection: Connection,
        /// The channel's name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Reads `first`, `now`, or a position.
fn start(text: &str) -> Result<Value, String> {
    match text {
        "first" | "now" => Ok(Value::String(text.to_owned())),
        _ => match text.parse::<u64>() {
            Ok(position @ 1..) => Ok(json!(position)),
            _ => Err("write first, now, or a position from 1 on".to_owned()),
        },
    }
}

impl Channels {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let path = |name: &str, action: &str| {
            ["api".to_owned(), "channels".to_owned(), name.to_owned(), action.to_owned()]
        };
        let (connection, name, action, body) = match self {
            Self::Ls { connection } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "channels"], &[]).await?;
                client.show(&answer, |listed| {
                    output::note(&format!("the log is at {}", cell(&listed["head"])));
                    table(
                        &listed["channels"],
                        &[
                            ("CHANNEL", "name"),
                            ("KIND", "kind"),
                            ("EVENTS", "events"),
                            ("EXCHANGE", "exchange"),
                            ("POSITION", "position"),
                            ("LAG", "lag"),
                            ("PENDING", "pending"),
                            ("PARKED", "parked"),
                            ("FAILED", "failed"),
                            ("PAUSED", "paused.reason"),
                        ],
                    );
                });
                return Ok(());
            }
            Self::Show { connection, name } => {
                return one(&connection, "channels", "name", &name).await;
            }
            Self::Add { connection, name, events, exchange, routing_key, format, start } => {
                let client = Client::new(&connection)?;
                let mut body = json!({
                    "name": name, "events": events, "exchange": exchange, "format": format, "start": start,
                });
                if let Some(key) = routing_key {
                    body["routingKey"] = Value::String(key);
                }
                let answer = client.post(&["api", "channels"], &body).await?;
                client.show(&answer, fields);
                return Ok(());
            }
            Self::Remove { connection, name, yes } => {
                let client = Client::new(&connection)?;
                agreed(&format!("Remove the channel {name}?"), yes)?;
                client.ask(Method::DELETE, &["api", "channels", &name], &[], None).await?;
                output::note(&format!("{name} was removed"));
                return Ok(());
            }
            Self::Reset { connection, name, to, force, yes } => {
                let what = format!(
                    "Let the channel {name} go on at {}? It may publish again, or pass over.",
                    cell(&to)
                );
                agreed(&what, yes)?;
                (connection, name, "reset", json!({ "start": to, "force": force }))
            }
            Self::Pause { connection, name, reason } => {
                let body = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
                (connection, name, "pause", body)
            }
            Self::Resume { connection, name } => (connection, name, "resume", json!({})),
        };
        let client = Client::new(&connection)?;
        let path = path(&name, action);
        let answer = client.post(&path.each_ref().map(String::as_str), &body).await?;
        client.show(&answer, fields);
        Ok(())
    }
}

/// Who handles events.
#[derive(Subcommand)]
pub(crate) enum Consumers {
    /// All of them
    Ls {
        #[command(flatten)]
        connection: Connection,
    },
    /// All that is known of one
    Show {
        #[command(flatten)]
        connection: Connection,
        /// Its handler's name
        name: String,
    },
}

impl Consumers {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Ls { connection } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "consumers"], &[]).await?;
                client.show(&answer, |listed| {
                    table(
                        &listed["consumers"],
                        &[
                            ("HANDLER", "handler"),
                            ("QUEUE", "queue"),
                            ("CHANNEL", "channel"),
                            ("EVENTS", "eventTypes"),
                            ("IN ORDER", "inOrder"),
                            ("AT A TIME", "concurrency"),
                            ("RETRY", "retry"),
                            ("BEHIND", "behind"),
                            ("DEAD", "dead"),
                        ],
                    );
                });
                Ok(())
            }
            Self::Show { connection, name } => one(&connection, "consumers", "handler", &name).await,
        }
    }
}

/// Shows one of a listing that is short enough to be fetched as a whole.
async fn one(connection: &Connection, listing: &str, field: &str, name: &str) -> Result<(), Failure> {
    let client = Client::new(connection)?;
    let answer = client.get(&["api", listing], &[]).await?;
    let found = answer.value[listing].as_array().into_iter().flatten().find(|one| one[field] == name);
    let found = found.ok_or_else(|| Failure::no(format!("there is no {name} among the {listing}")))?;
    if client.json {
        output::line(&found.to_string())
    } else {
        fields(found)
    }
    Ok(())
}
