//! `towpath aggregates`.

use clap::Subcommand;

use super::shown::fields;
use super::{Client, Connection, show_page};
use crate::cli::Failure;

/// Aggregates as they are now.
#[derive(Subcommand)]
pub(crate) enum Aggregates {
    /// Those of a kind, by id
    Ls {
        #[command(flatten)]
        connection: Connection,
        /// What sort of aggregate; `towpath machines` lists them
        kind: String,
        /// Only what is behind this id
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// All that is known of one
    Show {
        #[command(flatten)]
        connection: Connection,
        /// What sort of aggregate
        kind: String,
        /// Which one
        id: String,
    },
}

impl Aggregates {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Ls { connection, kind, after, limit } => {
                let columns = [
                    ("AGGREGATE", "id"),
                    ("VERSION", "version"),
                    ("STATE", "state"),
                    ("STATUS", "status"),
                    ("CREATED", "createdAt"),
                    ("UPDATED", "updatedAt"),
                ];
                let path = ["api", "aggregates", &kind];
                show_page(&connection, &path, &[("after", after)], "aggregates", &columns, limit).await?;
            }
            Self::Show { connection, kind, id } => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "aggregates", &kind, &id], &[]).await?;
                client.show(&answer, fields);
            }
        }
        Ok(())
    }
}
