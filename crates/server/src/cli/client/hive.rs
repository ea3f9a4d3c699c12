//! `towpath hive alerts`.

use clap::Args;

use super::shown::table;
use super::{Client, Connection};
use crate::cli::Failure;

/// What an operator should know of the platform.
#[derive(Args)]
pub(crate) struct HiveAlerts {
    #[command(flatten)]
    connection: Connection,
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
