//! `towpath aggregates`.

use clap::Subcommand;

use super::shown::{fields, more, table};
use super::{Client, Connection, query};
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
                let client = Client::new(&connection)?;
                let parts = query(&[("after", after), ("limit", Some(limit.to_string()))]);
                let answer = client.get(&["api", "aggregates", &kind], &parts).await?;
                client.show(&answer, |listed| {
                    table(
                        &listed["aggregates"],
                        &[
                            ("AGGREGATE", "id"),
                            ("VERSION", "version"),
                            ("STATE", "state"),
                            ("STATUS", "status"),
                            ("CREATED", "createdAt"),
                            ("UPDATED", "updatedAt"),
                        ],
                    );
                    more(listed, listed["aggregates"].as_array().map_or(0, Vec::len), limit);
                });
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
