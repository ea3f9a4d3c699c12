//! `towpath hive`.

use clap::{Args, Subcommand};
use towpath::SqlStore;

use super::settings::HiveSection;
use crate::cli::client::{show_page, shown};
use crate::plugin::CommandLine;
use crate::{Client, Connection, Failure, ServeFlags, output};

/// What `towpath hive` can do.
#[derive(Subcommand)]
pub enum HiveCommand {
    /// Make the read models anew from the log; the server may run meanwhile
    Rebuild(ServeFlags),
    /// What an operator should know of: outages of the platform and deletions that take too long, the last one first
    Alerts(Alerts),
    /// The specifications that a service has had
    Specs(Specs),
    /// Who asked for what, the last request first
    Audit(Audit),
    /// The namespaces that services were asked for in
    Namespaces(Namespaces),
    /// Facts on their way to hive's channels; what was given up is DEAD
    Outbox(Outbox),
}

/// What an operator should know of.
#[derive(Args)]
pub struct Alerts {
    #[command(flatten)]
    connection: Connection,
}

/// The specifications that a service has had.
#[derive(Args)]
pub struct Specs {
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
pub struct Audit {
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
pub struct Namespaces {
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
pub struct Outbox {
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

impl HiveCommand {
    pub(super) async fn run(self, line: &CommandLine<'_, HiveSection>) -> Result<(), Failure> {
        match self {
            Self::Rebuild(flags) => rebuild(flags, line).await,
            Self::Alerts(alerts) => alerts.run().await,
            Self::Specs(specs) => specs.run().await,
            Self::Audit(audit) => audit.run().await,
            Self::Namespaces(namespaces) => namespaces.run().await,
            Self::Outbox(outbox) => outbox.run().await,
        }
    }
}

async fn rebuild(flags: ServeFlags, line: &CommandLine<'_, HiveSection>) -> Result<(), Failure> {
    let configured = line.configured(flags)?;
    let stale = configured.settings.service.observation.ready_stale_duration;
    let store = SqlStore::connect(&configured.store).await?;
    let rebuilt = towpath_hive::rebuild(&store, stale).await;
    store.close().await;
    let rebuilt = rebuilt.map_err(|error| {
        Failure::unreachable(format!(
            "the rebuild did not come to its end, run it again: {error} [{}]",
            error.code()
        ))
    })?;
    output::line(&format!("{} services, made anew from {} facts", rebuilt.services, rebuilt.facts));
    Ok(())
}

impl Alerts {
    async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let answer = client.get(&["api", "hive", "alerts"], &[]).await?;
        client.show(&answer, |listed| {
            shown::table(
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

impl Specs {
    async fn run(self) -> Result<(), Failure> {
        let asked = [("after", self.after.map(|after| after.to_string()))];
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
        show_page(&self.connection, &path, &asked, "specs", &columns, self.limit).await
    }
}

impl Audit {
    async fn run(self) -> Result<(), Failure> {
        let asked = [("service", self.service), ("after", self.after)];
        let columns = [
            ("REQUESTED", "requestedAt"),
            ("ACTION", "action"),
            ("SERVICE", "serviceId"),
            ("BY", "requestedBy"),
            ("EVENT", "eventId"),
        ];
        show_page(&self.connection, &["api", "hive", "audit"], &asked, "audit", &columns, self.limit).await
    }
}

impl Namespaces {
    async fn run(self) -> Result<(), Failure> {
        let asked = [("after", self.after)];
        let columns = [("NAMESPACE", "namespace"), ("PRESENT", "present"), ("SINCE", "validatedAt")];
        let path = ["api", "hive", "namespaces"];
        show_page(&self.connection, &path, &asked, "namespaces", &columns, self.limit).await
    }
}

impl Outbox {
    async fn run(self) -> Result<(), Failure> {
        let asked = [("status", self.status), ("after", self.after.map(|after| after.to_string()))];
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
        show_page(&self.connection, &["api", "hive", "outbox"], &asked, "rows", &columns, self.limit).await
    }
}
