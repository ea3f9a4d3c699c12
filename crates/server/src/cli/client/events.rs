//! `towpath events tail`, `towpath log`.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use towpath::Glob;

use super::shown::{cell, table};
use super::{Client, Connection};
use crate::cli::{Failure, output};

/// How many events are fetched at a time.
const PAGE: u64 = 500;

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(500);

/// Events in the order of the log.
#[derive(Subcommand)]
pub(crate) enum Events {
    /// Show events as they come, until it is stopped
    Tail {
        #[command(flatten)]
        connection: Connection,
        /// Begin with the event at this position; without, with what comes from now on
        #[arg(long, value_name = "N")]
        from: Option<u64>,
        /// Only events whose type fits this pattern (`*` stands for any run of characters)
        #[arg(long = "type", value_name = "GLOB")]
        event_type: Option<String>,
    },
}

impl Events {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let Self::Tail { connection, from, event_type } = self;
        let client = Client::new(&connection)?;
        let wanted = event_type.map(Glob::new);
        let mut after = match from {
            Some(position) => position.saturating_sub(1),
            None => head(&client).await?,
        };
        loop {
            let range = [("after", after.to_string()), ("limit", PAGE.to_string())];
            let page = client.get(&["api", "events"], &range).await?;
            let events = page.value["events"].as_array().map(Vec::as_slice).unwrap_or_default();
            for event in events {
                let name = event["type"].as_str().unwrap_or_default();
                if wanted.as_ref().is_none_or(|wanted| wanted.matches(name)) {
                    output::line(&line(event, client.json));
                }
            }
            after = page.value["next"].as_u64().unwrap_or(after);
            if (events.len() as u64) < PAGE {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The last position there is.
async fn head(client: &Client) -> Result<u64, Failure> {
    let channels = client.get(&["api", "channels"], &[]).await?;
    Ok(channels.value["head"].as_u64().unwrap_or(0))
}

fn line(event: &Value, json: bool) -> String {
    if json {
        return event.to_string();
    }
    format!(
        "{:>8} {} {}/{} v{} {} {}",
        cell(&event["position"]),
        cell(&event["occurredAt"]),
        cell(&event["aggregateKind"]),
        cell(&event["aggregateId"]),
        cell(&event["aggregateVersion"]),
        cell(&event["type"]),
        event["payload"]
    )
}

/// A page of the notification log.
#[derive(Args)]
pub(crate) struct Log {
    #[command(flatten)]
    connection: Connection,
    /// Which page; the current one if nothing is said
    #[arg(value_name = "LOW,HIGH")]
    page: Option<String>,
}

impl Log {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let mut path = vec!["notifications"];
        path.extend(self.page.as_deref());
        let answer = client.get(&path, &[]).await?;
        client.show(&answer, |log| {
            let archived = if log["archived"] == true { "archived" } else { "current" };
            let (previous, next) = (cell(&log["previousId"]), cell(&log["nextId"]));
            output::note(&format!("{} ({archived}), previous {previous}, next {next}", cell(&log["id"])));
            table(
                &log["notifications"],
                &[
                    ("NOTIFICATION", "notificationId"),
                    ("TYPE", "type"),
                    ("KIND", "event.aggregate.kind"),
                    ("AGGREGATE", "event.aggregate.id"),
                    ("VERSION", "event.aggregateVersion"),
                    ("OCCURRED", "occurredOn"),
                ],
            );
        });
        Ok(())
    }
}
