//! `towpath alerts`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use towpath::alerts::{RuleTests, Rules};
use towpath::retry::duration_text;

use super::shown::{cell, table};
use super::{Client, Connection, query, show_page};
use crate::cli::{Failure, output, told};

/// Alerts: what fires, what became of it, silences and rules.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Alerts {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Subcommand)]
enum What {
    /// What fires, waits, is silenced or missing
    Ls {
        #[command(flatten)]
        connection: Connection,
    },
    /// What became of alerts, the last change first
    History {
        #[command(flatten)]
        connection: Connection,
        /// Only those of this rule
        #[arg(long)]
        rule: Option<String>,
        /// Only what is behind this: what the page before said
        #[arg(long, value_name = "N")]
        after: Option<u64>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// Tell nobody of some alerts for a while; without matchers, list silences
    Silence {
        #[command(flatten)]
        connection: Connection,
        /// Labels that fit: NAME=VALUE, NAME!=VALUE, NAME=~REGEX or NAME!~REGEX
        matchers: Vec<String>,
        /// For how long
        #[arg(long = "for", value_name = "TIME", default_value = "1h")]
        lasting: String,
        /// Why, for people
        #[arg(long, default_value = "")]
        reason: String,
        /// End this silence before its time
        #[arg(long, value_name = "ID", conflicts_with_all = ["matchers", "reason"])]
        end: Option<String>,
    },
    /// Try rules on made-up figures, in promtool's format; or only read a file of rules
    Test {
        /// A file of tests, or of rules
        #[arg(value_name = "RULES.yaml")]
        files: Vec<PathBuf>,
    },
    /// Write the rules as Prometheus reads them
    Export {
        /// A file of rules; without one, the default rules
        #[arg(value_name = "RULES.yaml")]
        file: Option<PathBuf>,
    },
}

impl Alerts {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self.what {
            None => list(&self.connection).await,
            Some(What::Ls { connection }) => list(&connection).await,
            Some(What::History { connection, rule, after, limit }) => {
                let asked = [("rule", rule), ("after", after.map(|after| after.to_string()))];
                let columns = [
                    ("CHANGE", "changeId"),
                    ("RULE", "rule"),
                    ("FROM", "fromStatus"),
                    ("STATUS", "status"),
                    ("REASON", "statusReason"),
                    ("VALUE", "value"),
                    ("MESSAGE", "message"),
                    ("CHANGED", "statusChangedAt"),
                ];
                show_page(&connection, &["api", "alerts", "history"], &asked, "changes", &columns, limit)
                    .await
            }
            Some(What::Silence { connection, end: Some(id), .. }) => {
                let client = Client::new(&connection)?;
                let answer = client.delete(&["api", "alerts", "silences", &id]).await?;
                client.show(&answer, |_| output::line(&format!("{id} is over")));
                Ok(())
            }
            Some(What::Silence { connection, matchers, .. }) if matchers.is_empty() => {
                let client = Client::new(&connection)?;
                let answer = client.get(&["api", "alerts", "silences"], &query(&[])).await?;
                client.show(&answer, |listed| silences(&listed["silences"]));
                Ok(())
            }
            Some(What::Silence { connection, matchers, lasting, reason, .. }) => {
                silence(&connection, &matchers, &lasting, &reason).await
            }
            Some(What::Test { files }) => test(&files),
            Some(What::Export { file }) => export(file.as_deref()),
        }
    }
}

async fn list(connection: &Connection) -> Result<(), Failure> {
    let client = Client::new(connection)?;
    let answer = client.get(&["api", "alerts"], &[]).await?;
    client.show(&answer, |listed| {
        let open: Vec<Value> = ["firing", "silenced", "pending", "missing"]
            .iter()
            .flat_map(|status| listed[*status].as_array().cloned().unwrap_or_default())
            .collect();
        let columns = [
            ("STATUS", "status"),
            ("SEVERITY", "severity"),
            ("RULE", "rule"),
            ("VALUE", "value"),
            ("MESSAGE", "message"),
            ("SINCE", "statusChangedAt"),
        ];
        table(&Value::Array(open), &columns);
        let rules = listed["rules"].as_array().map_or(0, Vec::len);
        output::note(&format!("{rules} rules, last looked at {}", cell(&listed["evaluatedAt"])));
        if listed["leftOut"].as_u64().unwrap_or(0) > 0 {
            output::note(&format!("{} more hold and are not kept", cell(&listed["leftOut"])));
        }
    });
    Ok(())
}

async fn silence(
    connection: &Connection,
    matchers: &[String],
    lasting: &str,
    reason: &str,
) -> Result<(), Failure> {
    let lasting: Duration = duration_text::parse(lasting)
        .map_err(|error| Failure::usage(format!("--for {lasting:?}: {error}")))?;
    let matchers = matchers.iter().map(|text| matcher(text)).collect::<Result<Vec<Value>, Failure>>()?;
    let body = json!({ "matchers": matchers, "reason": reason, "endsAt": Utc::now() + lasting });
    let client = Client::new(connection)?;
    let answer = client.post(&["api", "alerts", "silences"], &body).await?;
    client.show(&answer, |made| {
        output::line(&format!("{} until {}", cell(&made["silenceId"]), cell(&made["endsAt"])));
    });
    Ok(())
}

fn matcher(text: &str) -> Result<Value, Failure> {
    for (operator, is_regex, is_equal) in
        [("!~", true, false), ("=~", true, true), ("!=", false, false), ("=", false, true)]
    {
        if let Some((name, value)) = text.split_once(operator)
            && !name.contains(['=', '!', '~'])
        {
            return Ok(json!({ "name": name, "value": value, "isRegex": is_regex, "isEqual": is_equal }));
        }
    }
    Err(Failure::usage(format!("{text:?} is no matcher; write alertname=queue_deep or queue=~\"mail.*\"")))
}

fn silences(silences: &Value) {
    let columns = [
        ("SILENCE", "silenceId"),
        ("ACTIVE", "isActive"),
        ("AUTHOR", "authorId"),
        ("REASON", "reason"),
        ("MATCHERS", "matchers"),
        ("UNTIL", "endsAt"),
    ];
    table(silences, &columns);
}

fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("the file {} cannot be read: {error}", file.display())))
}

/// Runs tests; a file without tests is read as rules.
fn test(files: &[PathBuf]) -> Result<(), Failure> {
    if files.is_empty() {
        return Err(Failure::usage("name a file of tests, or of rules"));
    }
    let mut failed = 0;
    for file in files {
        let text = read(file)?;
        let shown = file.display();
        if !text.lines().any(|line| line.starts_with("tests:")) {
            let rules = Rules::from_yaml(&text).map_err(|error| Failure::usage(told(&error)))?;
            output::line(&format!("{shown}: {} rules can be used, defaults included", rules.iter().count()));
            continue;
        }
        let beside = file.parent().unwrap_or(Path::new("."));
        let tests = RuleTests::read(&text, |name| {
            let path = beside.join(name);
            std::fs::read_to_string(&path)
                .map_err(|error| format!("{} cannot be read: {error}", path.display()))
        });
        let tests = tests.map_err(|error| Failure::usage(told(&error)))?;
        let failures = tests.run().map_err(|error| Failure::usage(told(&error)))?;
        for failure in &failures {
            output::line(&failure.to_string());
        }
        failed += failures.len();
        output::line(&format!(
            "{shown}: {} of {} are as expected",
            tests.count() - failures.len(),
            tests.count()
        ));
    }
    if failed > 0 { Err(Failure::no(format!("{failed} are not as expected"))) } else { Ok(()) }
}

fn export(file: Option<&Path>) -> Result<(), Failure> {
    let rules = match file {
        Some(file) => Rules::from_yaml(&read(file)?),
        None => Rules::defaults(),
    };
    let exported =
        rules.and_then(|rules| rules.for_prometheus()).map_err(|error| Failure::usage(told(&error)))?;
    output::line(exported.trim_end());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_are_read() {
        let read = |text: &str| {
            let one = matcher(text).ok().unwrap();
            (one["name"].clone(), one["value"].clone(), one["isRegex"] == true, one["isEqual"] == true)
        };
        assert_eq!(read("a=b"), (json!("a"), json!("b"), false, true));
        assert_eq!(read("a!=b=c"), (json!("a"), json!("b=c"), false, false));
        assert_eq!(read("a=~b|!=c"), (json!("a"), json!("b|!=c"), true, true));
        assert_eq!(read("a!~b"), (json!("a"), json!("b"), true, false));
        assert!(matcher("a").is_err());
    }
}
