//! `towpath send`, `towpath commands`.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::shown::{cell, fields};
use super::{Client, Connection, show_page, text_or_file};
use crate::cli::{Failure, output};

/// Send a command.
#[derive(Args)]
pub(crate) struct Send {
    #[command(flatten)]
    connection: Connection,
    /// The command's type
    #[arg(value_name = "TYPE")]
    command_type: String,
    /// The aggregate it is for
    #[arg(long, value_name = "ID")]
    aggregate: String,
    /// The command's id: the same one again gives the same answer and no second effect
    #[arg(long, value_name = "COMMAND_ID")]
    id: Option<String>,
    /// What the command wants, as JSON or @FILE
    #[arg(long, value_name = "JSON", default_value = "{}")]
    payload: String,
    /// The flow it belongs to
    #[arg(long, value_name = "ID")]
    correlation: Option<String>,
    /// What caused it
    #[arg(long, value_name = "ID")]
    causation: Option<String>,
}

impl Send {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let payload = text_or_file(&self.payload)?;
        // As it was written: a number must not lose its digits on the way.
        let payload = RawValue::from_string(payload)
            .map_err(|error| Failure::usage(format!("the payload is not JSON: {error}")))?;
        let mut body = json!({ "type": self.command_type, "aggregateId": self.aggregate });
        let given =
            [("commandId", self.id), ("correlationId", self.correlation), ("causationId", self.causation)];
        for (name, value) in given {
            if let Some(value) = value {
                body[name] = Value::String(value);
            }
        }
        let answer = client.send_command(&body, &payload).await?;
        client.show(&answer, |sent| {
            let (id, flow) = (cell(&sent["commandId"]), cell(&sent["correlationId"]));
            output::line(&format!("{id} {} in {flow}", cell(&sent["status"])));
            for event in sent["events"].as_array().into_iter().flatten() {
                let (version, name) = (cell(&event["aggregateVersion"]), cell(&event["eventType"]));
                output::line(&format!("  {version} {name} {}", event["payload"]));
            }
        });
        Ok(())
    }
}

/// Commands, and where they are.
#[derive(Subcommand)]
pub(crate) enum Commands {
    /// The last received first
    Ls {
        #[command(flatten)]
        connection: Connection,
        /// Only those in this status: PENDING, PROCESSING, COMPLETED or FAILED
        #[arg(long)]
        status: Option<String>,
        /// Only what was received before this command
        #[arg(long, value_name = "COMMAND_ID")]
        after: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// All that is known of one
    Show {
        #[command(flatten)]
        connection: Connection,
        /// The command's id
        id: String,
    },
}

impl Commands {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Ls { connection, status, after, limit } => {
                let columns = [
                    ("COMMAND", "commandId"),
                    ("TYPE", "type"),
                    ("KIND", "aggregate.kind"),
                    ("AGGREGATE", "aggregate.id"),
                    ("STATUS", "status"),
                    ("REASON", "statusReason"),
                    ("RETRIES", "retryCount"),
                    ("RECEIVED", "receivedAt"),
                ];
                let asked = [("status", status), ("after", after)];
                show_page(&connection, &["api", "commands"], &asked, "commands", &columns, limit).await?;
            }
            Self::Show { connection, id } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "commands", &id], &[]).await?;
                client.show(&answer, fields);
            }
        }
        Ok(())
    }
}

impl Client {
    async fn send_command(&self, body: &Value, payload: &RawValue) -> Result<super::Answer, Failure> {
        let mut text = body.to_string();
        text.truncate(text.len().saturating_sub(1));
        text.push_str(&format!(",\"payload\":{}}}", payload.get()));
        self.ask(Method::POST, &["api", "commands"], &[], Some(text)).await
    }
}
