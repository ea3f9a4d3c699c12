//! `towpath machines`.

use clap::{Args, ValueEnum};

use super::shown::table;
use super::{Client, Connection};
use crate::cli::{Failure, output};

/// State machines: all of them, or one drawn.
#[derive(Args)]
pub(crate) struct Machines {
    #[command(flatten)]
    connection: Connection,
    /// The kind of aggregate whose machine is shown
    name: Option<String>,
    /// How it is shown
    #[arg(long, value_enum, requires = "name")]
    format: Option<Format>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Mermaid,
    Svg,
    Json,
}

impl Machines {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let Some(name) = &self.name else {
            let answer = client.get(&["api", "machines"], &[]).await?;
            client.show(&answer, |listed| {
                table(
                    &listed["machines"],
                    &[
                        ("KIND", "kind"),
                        ("MACHINE", "machine.name"),
                        ("COMMANDS", "commands"),
                        ("EVENTS", "events"),
                    ],
                );
            });
            return Ok(());
        };
        let format = match self.format {
            Some(Format::Svg) => "svg",
            Some(Format::Json) => "json",
            Some(Format::Mermaid) => "mermaid",
            None if self.connection.json => "json",
            None => "mermaid",
        };
        let answer = client.get(&["api", "machines", name], &[("format", format.to_owned())]).await?;
        output::line(answer.text.trim_end());
        Ok(())
    }
}
