//! `towpath outbox`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::shown::{cell, fields, more, table};
use super::{Client, Connection, agreed, query};
use crate::cli::{Failure, output};

/// Events on their way to a channel.
#[derive(Subcommand)]
pub(crate) enum Outbox {
    /// By number
    Ls {
        #[command(flatten)]
        connection: Connection,
        /// Only those in this status: NEW, RETRY, SENT, FAILED or SKIPPED
        #[arg(long)]
        status: Option<String>,
        /// Only those of this channel
        #[arg(long)]
        channel: Option<String>,
        /// Only what is behind this number
        #[arg(long, value_name = "N")]
        after: Option<u64>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// All that is known of one
    Show {
        #[command(flatten)]
        connection: Connection,
        /// The row's number
        id: u64,
    },
    /// Put rows back that were given up: those that are named, or all that fit
    Retry(Retry),
    /// Go on without a row that has failed at least once: it is never published, and what waits behind it follows
    Skip {
        #[command(flatten)]
        connection: Connection,
        /// The row's number
        id: u64,
        /// Why, for those who find the row later
        #[arg(long)]
        reason: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Put rows back that were given up.
#[derive(Args)]
pub(crate) struct Retry {
    #[command(flatten)]
    connection: Connection,
    /// The numbers of rows; without, all that fit what else is said
    ids: Vec<u64>,
    /// All that were given up in this channel
    #[arg(long, conflicts_with = "ids")]
    channel: Option<String>,
    /// All that were given up for this reason
    #[arg(long, conflicts_with = "ids")]
    reason: Option<String>,
    /// All with an event of this type
    #[arg(long, conflicts_with = "ids")]
    event_type: Option<String>,
    /// All that were given up
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Also those that were perhaps published so long ago that inboxes do not remember
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Outbox {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Ls { connection, status, channel, after, limit } => {
                let client = Client::new(&connection)?;
                let parts = query(&[
                    ("status", status),
                    ("channel", channel),
                    ("after", after.map(|after| after.to_string())),
                    ("limit", Some(limit.to_string())),
                ]);
                let answer = client.get(&["api", "outbox"], &parts).await?;
                client.show(&answer, |listed| {
                    rows(&listed["rows"]);
                    more(listed, listed["rows"].as_array().map_or(0, Vec::len), limit);
                });
            }
            Self::Show { connection, id } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "outbox", &id.to_string()], &[]).await?;
                client.show(&answer, fields);
            }
            Self::Retry(retry) => retry.run().await?,
            Self::Skip { connection, id, reason, yes } => {
                let client = Client::new(&connection)?;
                agreed(&format!("Never publish row {id}?"), yes)?;
                let body = json!({ "reason": reason });
                let answer = client.post(&["api", "outbox", &id.to_string(), "skip"], &body).await?;
                client.show(&answer, |row| output::line(&format!("{id} is {}", cell(&row["status"]))));
            }
        }
        Ok(())
    }
}

impl Retry {
    async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let has_filter = self.channel.is_some() || self.reason.is_some() || self.event_type.is_some();
        if self.ids.is_empty() && !has_filter && !self.all {
            return Err(Failure::usage("say which: numbers, --channel, --reason, --event-type, or --all"));
        }
        for id in &self.ids {
            let body = json!({ "force": self.force });
            let answer = client.post(&["api", "outbox", &id.to_string(), "retry"], &body).await?;
            client.show(&answer, |row| output::line(&format!("{id} is {}", cell(&row["status"]))));
        }
        if !self.ids.is_empty() {
            return Ok(());
        }
        let mut body = json!({ "force": self.force, "dryRun": true });
        for (name, value) in
            [("channel", &self.channel), ("reason", &self.reason), ("eventType", &self.event_type)]
        {
            if let Some(value) = value {
                body[name] = Value::String(value.clone());
            }
        }
        let counted = client.post(&["api", "outbox", "retry"], &body).await?;
        let count = counted.value["count"].as_u64().unwrap_or(0);
        if count == 0 {
            client.show(&counted, |_| output::note("nothing that was given up fits"));
            return Ok(());
        }
        agreed(&format!("Put {count} rows back?"), self.yes)?;
        body["dryRun"] = Value::Bool(false);
        body["expected"] = json!(count);
        let answer = client.post(&["api", "outbox", "retry"], &body).await?;
        client.show(&answer, |done| output::line(&format!("{} were put back", cell(&done["retried"]))));
        Ok(())
    }
}

fn rows(rows: &Value) {
    table(
        rows,
        &[
            ("ROW", "outboxId"),
            ("CHANNEL", "channel"),
            ("STATUS", "status"),
            ("REASON", "statusReason"),
            ("RETRIES", "retryCount"),
            ("TYPE", "eventType"),
            ("KIND", "aggregate.kind"),
            ("AGGREGATE", "aggregate.id"),
            ("VERSION", "aggregateVersion"),
            ("CHANGED", "statusChangedAt"),
        ],
    );
}
