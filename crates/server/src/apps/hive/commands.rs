//! `towpath hive`.

use clap::Subcommand;
use towpath::SqlStore;

use super::settings::HiveSection;
use crate::cli::client::{show_page, shown};
use crate::plugin::CommandLine;
use crate::{Client, Connection, Failure, ServeFlags, output};

/// What `towpath hive` can do.
#[derive(Subcommand)]
#[allow(missing_docs, reason = "the fields are flags, and say so where their name does not")]
pub enum HiveCommand {
    /// Make the read models anew from the log; the server may run meanwhile
    Rebuild(ServeFlags),
    /// What an operator should know of: outages of the platform and deletions that take too long, the last one first
    Alerts {
        #[command(flatten)]
        connection: Connection,
    },
    /// The specifications that a service has had
    Specs {
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
    },
    /// Who asked for what, the last request first
    Audit {
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
    },
    /// The namespaces that services were asked for in
    Namespaces {
        #[command(flatten)]
        connection: Connection,
        /// Only those behind this one
        #[arg(long, value_name = "NAMESPACE")]
        after: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// Facts on their way to hive's channels; what was given up is DEAD
    Outbox {
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
    },
}

/// Headings, and what stands under them.
const ALERTS: [(&str, &str); 6] = [
    ("ALERT", "alert"),
    ("SERVICE", "serviceId"),
    ("RAISED", "raisedAt"),
    ("CLEARED", "clearedAt"),
    ("CODE", "code"),
    ("MESSAGE", "message"),
];
const SPECS: [(&str, &str); 7] = [
    ("VERSION", "specVersion"),
    ("IMAGE", "image"),
    ("MIN", "minScale"),
    ("MAX", "maxScale"),
    ("CONCURRENCY", "concurrency"),
    ("KEPT", "persistedAt"),
    ("HASH", "specHash"),
];
const AUDIT: [(&str, &str); 5] = [
    ("REQUESTED", "requestedAt"),
    ("ACTION", "action"),
    ("SERVICE", "serviceId"),
    ("BY", "requestedBy"),
    ("EVENT", "eventId"),
];
const NAMESPACES: [(&str, &str); 3] =
    [("NAMESPACE", "namespace"), ("PRESENT", "present"), ("SINCE", "validatedAt")];
const OUTBOX: [(&str, &str); 8] = [
    ("ROW", "outboxId"),
    ("CHANNEL", "channel"),
    ("STATUS", "status"),
    ("REASON", "statusReason"),
    ("RETRIES", "retryCount"),
    ("TYPE", "eventType"),
    ("ABOUT", "about"),
    ("CHANGED", "statusChangedAt"),
];

impl HiveCommand {
    pub(super) async fn run(self, line: &CommandLine<'_, HiveSection>) -> Result<(), Failure> {
        let number = |after: Option<u64>| after.map(|after| after.to_string());
        match self {
            Self::Rebuild(flags) => rebuild(flags, line).await,
            Self::Alerts { connection } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "hive", "alerts"], &[]).await?;
                client.show(&answer, |listed| shown::table(&listed["alerts"], &ALERTS));
                Ok(())
            }
            Self::Specs { connection, id, after, limit } => {
                let (path, asked) = (["api", "hive", "services", &id, "specs"], [("after", number(after))]);
                show_page(&connection, &path, &asked, "specs", &SPECS, limit).await
            }
            Self::Audit { connection, service, after, limit } => {
                let asked = [("service", service), ("after", after)];
                show_page(&connection, &["api", "hive", "audit"], &asked, "audit", &AUDIT, limit).await
            }
            Self::Namespaces { connection, after, limit } => {
                let (path, asked) = (["api", "hive", "namespaces"], [("after", after)]);
                show_page(&connection, &path, &asked, "namespaces", &NAMESPACES, limit).await
            }
            Self::Outbox { connection, status, after, limit } => {
                let asked = [("status", status), ("after", number(after))];
                show_page(&connection, &["api", "hive", "outbox"], &asked, "rows", &OUTBOX, limit).await
            }
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
