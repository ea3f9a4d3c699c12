//! `towpath hive`: what is asked of a running server.

use clap::Args;

use super::shown::{more, table};
use super::{Client, Connection, query};
use crate::cli::Failure;

/// What an operator should know of.
#[derive(Args)]
pub(crate) struct HiveAlerts {
    #[command(flatten)]
    connection: Connection,
}

/// The specifications that a service has had.
#[derive(Args)]
pub(crate) struct HiveSpecs {
    #[command(flatten)]
    connection: Connection,
    /// The service's id
    id: String,
    /// Only those behind this version
    #[arg(long, value_name = "VERSION")]
    after: Option<u64>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

/// Who asked for what.
#[derive(Args)]
pub(crate) struct HiveAudit {
    #[command(flatten)]
    connection: Connection,
    /// Only what was asked of this service
    #[arg(long, value_name = "ID")]
    service: Option<String>,
    /// Only what was asked before this one
    #[arg(long, value_name = "EVENT")]
    after: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

/// The namespaces that services were asked for in.
#[derive(Args)]
pub(crate) struct HiveNamespaces {
    #[command(flatten)]
    connection: Connection,
    /// Only those behind this one
    #[arg(long, value_name = "NAMESPACE")]
    after: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

/// Facts on their way.
#[derive(Args)]
pub(crate) struct HiveOutbox {
    #[command(flatten)]
    connection: Connection,
    /// Only those in this status: NEW, RETRY, SENT or DEAD
    #[arg(long)]
    status: Option<String>,
    /// Only what is behind this number
    #[arg(long, value_name = "N")]
    after: Option<u64>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

impl HiveAlerts {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let answer = client.get(&["api", "hive", "alerts"], &[]).await?;
        client.show(&answer, |listed| {
            table(
                &listed["alerts"],
                &[
                    ("ALERT", "alert"),
                    ("SERVICE", "serviceId"),
                    ("RAISED", "raisedAt"),
                    ("CLEARED", "clearedAt"),
                    ("CODE", "code"),
                    ("MESSAGE", "message"),
                ],
            );
        });
        Ok(())
    }
}

impl HiveSpecs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = query(&[
            ("after", self.after.map(|after| after.to_string())),
            ("limit", Some(self.limit.to_string())),
        ]);
        let path = ["api", "hive", "services", &self.id, "specs"];
        let columns = [
            ("VERSION", "specVersion"),
            ("IMAGE", "image"),
            ("MIN", "minScale"),
            ("MAX", "maxScale"),
            ("CONCURRENCY", "concurrency"),
            ("KEPT", "persistedAt"),
            ("HASH", "specHash"),
        ];
        listed(&self.connection, &path, &asked, "specs", &columns, self.limit).await
    }
}

impl HiveAudit {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = query(&[
            ("service", self.service),
            ("after", self.after),
            ("limit", Some(self.limit.to_string())),
        ]);
        let columns = [
            ("REQUESTED", "requestedAt"),
            ("ACTION", "action"),
            ("SERVICE", "serviceId"),
            ("BY", "requestedBy"),
            ("EVENT", "eventId"),
        ];
        listed(&self.connection, &["api", "hive", "audit"], &asked, "audit", &columns, self.limit).await
    }
}

impl HiveNamespaces {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = query(&[("after", self.after), ("limit", Some(self.limit.to_string()))]);
        let columns = [("NAMESPACE", "namespace"), ("PRESENT", "present"), ("SINCE", "validatedAt")];
        let path = ["api", "hive", "namespaces"];
        listed(&self.connection, &path, &asked, "namespaces", &columns, self.limit).await
    }
}

impl HiveOutbox {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let asked = query(&[
            ("status", self.status),
            ("after", self.after.map(|after| after.to_string())),
            ("limit", Some(self.limit.to_string())),
        ]);
        let columns = [
            ("ROW", "outboxId"),
            ("CHANNEL", "channel"),
            ("STATUS", "status"),
            ("REASON", "statusReason"),
            ("RETRIES", "retryCount"),
            ("TYPE", "eventType"),
            ("ABOUT", "about"),
            ("CHANGED", "statusChangedAt"),
        ];
        listed(&self.connection, &["api", "hive", "outbox"], &asked, "rows", &columns, self.limit).await
    }
}

/// Asks for a page and shows it as a table.
async fn listed(
    connection: &Connection,
    path: &[&str],
    asked: &[(&str, String)],
    list: &str,
    columns: &[(&str, &str)],
    limit: u32,
) -> Result<(), Failure> {
    let client = Client::new(connection)?;
    let answer = client.get(path, asked).await?;
    client.show(&answer, |page| {
        table(&page[list], columns);
        more(page, page[list].as_array().map_or(0, Vec::len), limit);
    });
    Ok(())
}
