//! The command line as a client of a running server: everything it shows and does goes over HTTP.

mod aggregates;
mod alerts;
mod channels;
mod commands;
mod consistency;
mod dead;
mod events;
mod machines;
mod outbox;
pub(crate) mod shown;
mod tasks;
mod trace;

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::{Method, Url};
use serde_json::Value;

use super::{Failure, output};
use crate::shown_url::without_secrets;

/// Where the server is, and how to show what it says.
#[derive(Args, Clone)]
pub struct Connection {
    /// The server
    #[arg(
        long,
        env = "TOWPATH_SERVER",
        default_value = "http://127.0.0.1:7400",
        value_name = "URL",
        hide_env_values = true
    )]
    server: String,

    /// The key to show to the server
    #[arg(long, env = "TOWPATH_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,

    /// Authorities (PEM) that may vouch for the server, in place of the public ones
    #[arg(long, env = "TOWPATH_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Show what the server says, as it says it
    #[arg(long)]
    json: bool,
}

/// What a server is asked for.
#[derive(Subcommand)]
pub(crate) enum Ask {
    /// Send a command
    Send(commands::Send),
    /// Show the flow that a command, event, correlation or aggregate id belongs to, as a tree
    Trace(trace::Trace),
    /// Events in the order of the log
    #[command(subcommand)]
    Events(events::Events),
    /// A page of the notification log: the current one, or LOW,HIGH
    Log(events::Log),
    /// Commands, and where they are
    #[command(subcommand)]
    Commands(commands::Commands),
    /// Events on their way to a channel
    #[command(subcommand)]
    Outbox(outbox::Outbox),
    /// Work that is done by workers
    #[command(subcommand)]
    Tasks(tasks::Tasks),
    /// Deliveries that were given up
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Who handles events
    #[command(subcommand)]
    Consumers(channels::Consumers),
    /// Where events go, and how far that is
    #[command(subcommand)]
    Channels(channels::Channels),
    /// Aggregates as they are now
    #[command(subcommand)]
    Aggregates(aggregates::Aggregates),
    /// What fires, what became of it, silences, and rules
    Alerts(alerts::Alerts),
    /// State machines: all of them, or one drawn
    Machines(machines::Machines),
    /// Check whether everything is where it belongs; exits with 1 if not
    Check(consistency::Check),
    /// Say what would be done about what the last check has found; with --apply, do it
    Repair(consistency::Repair),
}

/// Asks, and shows the answer.
pub(crate) async fn run(ask: Ask) -> Result<(), Failure> {
    match ask {
        Ask::Send(send) => send.run().await,
        Ask::Trace(trace) => trace.run().await,
        Ask::Events(events) => events.run().await,
        Ask::Log(log) => log.run().await,
        Ask::Commands(commands) => commands.run().await,
        Ask::Outbox(outbox) => outbox.run().await,
        Ask::Tasks(tasks) => tasks.run().await,
        Ask::Dead(dead) => dead.run().await,
        Ask::Consumers(consumers) => consumers.run().await,
        Ask::Channels(channels) => channels.run().await,
        Ask::Aggregates(aggregates) => aggregates.run().await,
        Ask::Alerts(alerts) => alerts.run().await,
        Ask::Machines(machines) => machines.run().await,
        Ask::Check(check) => check.run().await,
        Ask::Repair(repair) => repair.run().await,
    }
}

/// A server that is spoken to.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
    json: bool,
}

/// What it said.
pub struct Answer {
    /// To the letter.
    pub text: String,
    /// Read.
    pub value: Value,
}

impl Client {
    /// Nothing is asked yet.
    pub fn new(connection: &Connection) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage(format!(
                "{:?} is not the address of a server; write one such as http://127.0.0.1:7400",
                without_secrets(&connection.server)
            ))
        };
        let base = Url::parse(&connection.server).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong());
        }
        let mut http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .timeout(Duration::from_secs(120))
            .redirect(reqwest::redirect::Policy::none());
        if let Some(file) = &connection.ca {
            http = http.tls_certs_only(authorities(file)?);
        }
        let http = http
            .build()
            .map_err(|error| Failure::unreachable(format!("no connection can be made: {error}")))?;
        Ok(Self { http, base, key: connection.key.clone(), json: connection.json })
    }

    /// Reads something.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Answer, Failure> {
        self.ask(Method::GET, path, query, None).await
    }

    /// Changes something.
    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Answer, Failure> {
        self.ask(Method::POST, path, &[], Some(body.to_string())).await
    }

    /// Changes something in one of several ways.
    async fn post_with(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: &Value,
    ) -> Result<Answer, Failure> {
        self.ask(Method::POST, path, query, Some(body.to_string())).await
    }

    /// Takes something away.
    pub async fn delete(&self, path: &[&str]) -> Result<Answer, Failure> {
        self.ask(Method::DELETE, path, &[], None).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<String>,
    ) -> Result<Answer, Failure> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // What is in an id must not become a part of the path.
            segments.pop_if_empty().extend(path);
        }
        let mut request = self.http.request(method, url);
        if !query.is_empty() {
            request = request.query(query);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let unreachable = |error: reqwest::Error| {
            let error = error.without_url();
            let mut message =
                format!("the server at {} cannot be reached: {error}", without_secrets(self.base.as_str()));
            for cause in towpath::causes(&error) {
                message.push_str(&format!("\n  because: {cause}"));
            }
            message.push_str(
                "\nStart one with `towpath serve`, or say where it is with --server or TOWPATH_SERVER; --ca says which \
                 authority vouches for it.",
            );
            Failure::unreachable(message)
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(Answer { text, value });
        }
        let said = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let message = match value["code"].as_str() {
            Some(code) => format!("{} [{code}]\n{}", said("title"), said("detail")),
            None => {
                let server = without_secrets(self.base.as_str());
                format!("the server at {server} answered {status}, and not as Towpath does")
            }
        };
        match status.as_u16() {
            400 | 405 | 413 | 415 => Err(Failure::usage(message)),
            401..=499 => Err(Failure::no(message)),
            _ => Err(Failure::unreachable(message)),
        }
    }

    /// Shows an answer: to the letter, or as people like to read it.
    pub fn show(&self, answer: &Answer, for_people: impl FnOnce(&Value)) {
        if self.json { output::line(answer.text.trim_end()) } else { for_people(&answer.value) }
    }
}

/// Asks for a page of a listing and shows it as a table. A column is a heading and the way to its value, with dots.
pub(crate) async fn show_page(
    connection: &Connection,
    path: &[&str],
    asked: &[(&'static str, Option<String>)],
    list: &str,
    columns: &[(&str, &str)],
    limit: u32,
) -> Result<(), Failure> {
    let client = Client::new(connection)?;
    let asked = [asked, &[("limit", Some(limit.to_string()))]].concat();
    let answer = client.get(path, &query(&asked)).await?;
    client.show(&answer, |page| {
        shown::table(&page[list], columns);
        shown::more(page, page[list].as_array().map_or(0, Vec::len), limit);
    });
    Ok(())
}

/// The authorities in a file.
fn authorities(file: &Path) -> Result<Vec<reqwest::Certificate>, Failure> {
    let wrong = |what: &str| Failure::usage(format!("--ca: the file {} {what}", file.display()));
    let pem = std::fs::read(file).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    match reqwest::Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(wrong("has no certificates as PEM")),
    }
}

/// Asks whether to go on. Who cannot answer has not agreed.
fn agreed(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    output::ask(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim().to_ascii_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        (Ok(0) | Err(_), _) => {
            let _ = std::io::stderr().write_all(b"\n");
            Err(Failure::no("nothing was done; give --yes where nobody can be asked"))
        }
        _ => Err(Failure::no("nothing was done")),
    }
}

/// A text, or what is in the file that `@FILE` names.
fn text_or_file(given: &str) -> Result<String, Failure> {
    match given.strip_prefix('@') {
        None => Ok(given.to_owned()),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("the file {path} cannot be read: {error}"))),
    }
}

/// What was given, as parts of a query.
fn query(parts: &[(&'static str, Option<String>)]) -> Vec<(&'static str, String)> {
    parts.iter().filter_map(|(name, value)| Some((*name, value.clone()?))).collect()
}
