//! `towpath check` and `towpath repair`.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::shown::cell;
use super::{Answer, Client, Connection};
use crate::cli::{Failure, output};

/// How long it is waited between two looks at a check that is under way.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// How many characters a progress bar has.
const WIDTH: u64 = 30;

/// Check whether everything is where it belongs.
#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    connection: Connection,
    /// How far back to look
    #[arg(long, default_value = "24h", value_name = "TIME")]
    window: String,
    /// Only for this code; may be given more than once
    #[arg(long = "code", value_name = "CODE")]
    codes: Vec<String>,
}

/// Say what would be done about what the last check has found, or do it.
#[derive(Args)]
pub(crate) struct Repair {
    #[command(flatten)]
    connection: Connection,
    /// Do it
    #[arg(long)]
    apply: bool,
    /// What this check has found, in place of the last one
    #[arg(long = "check", value_name = "ID")]
    check_id: Option<String>,
    /// Only for this code; may be given more than once
    #[arg(long = "code", value_name = "CODE")]
    codes: Vec<String>,
}

impl Check {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let body = json!({ "window": self.window, "scope": self.codes });
        let mut answer = client.post(&["api", "consistency", "check"], &body).await?;
        let id = cell(&answer.value["checkId"]);
        while !is_over(&answer) {
            draw(&answer.value["progress"]);
            tokio::time::sleep(BETWEEN_LOOKS).await;
            answer = client.get(&["api", "consistency", "checks", &id], &[]).await?;
        }
        wipe();
        client.show(&answer, told);
        if let Some(code) = answer.value["failure"]["code"].as_str() {
            let message = cell(&answer.value["failure"]["message"]);
            return Err(Failure::unreachable(format!("the check was given up: {message} [{code}]")));
        }
        match answer.value["clean"].as_bool() {
            Some(true) => Ok(()),
            _ => {
                Err(Failure::no("something is not where it belongs; `towpath repair` says what can be done"))
            }
        }
    }
}

fn is_over(answer: &Answer) -> bool {
    !matches!(answer.value["status"].as_str(), Some("PENDING" | "RUNNING"))
}

/// A bar, for who looks at it.
fn draw(progress: &Value) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let (done, of) = (progress["done"].as_u64().unwrap_or(0), progress["of"].as_u64().unwrap_or(1).max(1));
    let filled = usize::try_from(done * WIDTH / of).unwrap_or(0);
    let empty = usize::try_from(WIDTH).unwrap_or(0).saturating_sub(filled);
    output::ask(&format!("\r[{}{}] {done} of {of}", "#".repeat(filled), ".".repeat(empty)));
}

fn wipe() {
    if std::io::stderr().is_terminal() {
        output::ask("\r\u{1b}[K");
    }
}

fn told(check: &Value) {
    let list = |name: &str| check[name].as_array().cloned().unwrap_or_default();
    for finding in list("findings") {
        let (code, count) = (cell(&finding["code"]), cell(&finding["count"]));
        output::line(&format!("{code} ({}): {count}", cell(&finding["severity"])));
        output::line(&format!("  {}", cell(&finding["cause"])));
        output::line(&format!("  Repair: {}", cell(&finding["repair"])));
        for row in finding["rows"].as_array().iter().flat_map(|rows| rows.iter().take(10)) {
            output::line(&format!("  - {}", cell(&row["target"])));
        }
        if finding["count"].as_u64().unwrap_or(0) > 10 {
            output::line("  - … (--json shows a hundred)");
        }
    }
    for not in list("notChecked") {
        output::note(&format!("not checked: {}: {}", cell(&not["what"]), cell(&not["why"])));
    }
    let totals = &check["totals"];
    let clean = if check["clean"] == true { "clean" } else { "not clean" };
    output::line(&format!(
        "{clean}: {} commands and {} events of the last {}",
        cell(&totals["total_commands"]),
        cell(&totals["total_events"]),
        cell(&check["window"])
    ));
}

impl Repair {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let mut body = json!({ "codes": self.codes });
        if let Some(id) = &self.check_id {
            body["checkId"] = Value::String(id.clone());
        }
        let apply = [("apply", self.apply.to_string())];
        loop {
            let answer = client.post_with(&["api", "consistency", "repair"], &apply, &body).await?;
            client.show(&answer, steps);
            let outcomes = || answer.value["steps"].as_array().into_iter().flatten();
            let count = |outcome: &str| outcomes().filter(|step| step["outcome"] == outcome).count();
            if count("failed") > 0 {
                return Err(Failure::no("not everything could be repaired"));
            }
            // What is left after that is only seen in the next round; without a step that was done it would be the same.
            if !(self.apply && answer.value["more"] == true && count("done") > 0) {
                return Ok(());
            }
        }
    }
}

fn steps(plan: &Value) {
    let steps = plan["steps"].as_array().cloned().unwrap_or_default();
    if steps.is_empty() {
        output::note("nothing is to be repaired");
    }
    for step in steps {
        let text = match step["message"].as_str() {
            Some("") | None => cell(&step["action"]),
            Some(message) => message.to_owned(),
        };
        let (outcome, code, target) = (cell(&step["outcome"]), cell(&step["code"]), cell(&step["target"]));
        output::line(&format!("{outcome} {code} {target}: {text}"));
        let past = step["consumersPast"].as_array().cloned().unwrap_or_default();
        let past: Vec<String> = past
            .iter()
            .map(|one| format!("{} (version {})", cell(&one["handler"]), cell(&one["version"])))
            .collect();
        if !past.is_empty() {
            output::line(&format!("  already past it: {}", past.join(", ")));
        }
    }
    if plan["more"] == true {
        output::note("there is more than fits into one plan");
    }
    if plan["applied"] == false {
        output::note("nothing was done; --apply does it");
    }
}
