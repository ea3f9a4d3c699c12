//! `towpath config`: what the server would run with, as TOML, secrets hidden, with where each value comes from.

use towpath::channel::{Channel, RoutingKey, Start};
use towpath::retry::{RetryPolicy, duration_text};
use towpath::{BrokerUrl, StoreUrl};

use super::config::{Config, Section, ServeFlags};
use super::{Failure, output};
use crate::plugin::erased::Applications;
use crate::shown_url::without_secrets;

/// Shows it.
pub(crate) fn show(flags: ServeFlags, applications: &Applications) -> Result<(), Failure> {
    output::line(shown(&flags.config(applications)?)?.trim_end());
    Ok(())
}

pub(crate) fn shown(config: &Config) -> Result<String, Failure> {
    let sources = config.sources;
    let mut text = String::new();
    let mut line = |key: &str, value: &str, source: &dyn std::fmt::Display| {
        text.push_str(&format!("{key} = {} # {source}\n", written(value)));
    };
    line("listen", &config.listen.to_string(), &sources.listen);
    // These show themselves without passwords. What is no such URL may be anything, a password among it.
    let store =
        StoreUrl::parse(&config.store).map_or("(no URL of a store)".to_owned(), |url| url.to_string());
    line("store", &store, &sources.store);
    let broker =
        BrokerUrl::parse(&config.broker).map_or("(no URL of a broker)".to_owned(), |url| url.to_string());
    line("broker", &broker, &sources.broker);
    let mut table = "";
    for (key, value, source) in config.settings.iter() {
        // The keys follow as a list of their own, wherever they came from.
        let Some((in_table, name)) = key.rsplit_once('.').filter(|_| key != "access.keys") else { continue };
        if in_table != table {
            text.push_str(&format!("\n[{in_table}]\n"));
            table = in_table;
        }
        if value.is_empty() {
            text.push_str(&format!("# {name} is not set\n"));
        } else {
            text.push_str(&format!("{name} = {} # {source}\n", written(&without_secrets(value))));
        }
    }
    for key in &config.keys {
        let (name, role) = (written(key.name.as_str()), key.role.as_str());
        text.push_str(&format!(
            "\n[[access.key]] # {}\nname = {name}\nrole = \"{role}\"\nhash = \"(hidden)\"\n",
            sources.keys
        ));
    }
    for Section { name, settings, written } in &config.sections {
        let holds = settings.shown();
        let holds = holds.map_err(|error| Failure::usage(format!("[{name}] cannot be shown: {error}")))?;
        section(&mut text, name, &holds, Some(written));
    }
    for channel in &config.channels.channels {
        text.push_str("\n[[channel]] # file\n");
        for (key, value) in of_channel(channel) {
            text.push_str(&format!("{key} = {value}\n"));
        }
    }
    let topology = &config.written_topology;
    if !topology.is_empty() {
        section(&mut text, "topology", topology, Some(topology));
    }
    Ok(text)
}

/// A section as it holds, and of each value whether the file has it.
fn section(text: &mut String, name: &str, holds: &toml::Table, in_file: Option<&toml::Table>) {
    text.push_str(&format!("\n[{name}]\n"));
    let (tables, values): (Vec<_>, Vec<_>) = holds.iter().partition(|(_, value)| value.is_table());
    for (key, value) in values {
        let source = if in_file.is_some_and(|file| file.contains_key(key)) { "file" } else { "default" };
        text.push_str(&format!("{key} = {} # {source}\n", without_secrets_in(value)));
    }
    for (key, value) in tables {
        let inner = in_file.and_then(|file| file.get(key)).and_then(toml::Value::as_table);
        if let toml::Value::Table(table) = value {
            section(text, &format!("{name}.{key}"), table, inner);
        }
    }
}

/// A value, its URLs without who logs in and without what their queries hold.
fn without_secrets_in(value: &toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) if text.contains("://") => toml::Value::String(without_secrets(text)),
        toml::Value::Array(all) => toml::Value::Array(all.iter().map(without_secrets_in).collect()),
        value => value.clone(),
    }
}

/// A channel by the keys of the file, defaults included.
fn of_channel(channel: &Channel) -> Vec<(&'static str, String)> {
    let text = |value: &str| toml::Value::from(value).to_string();
    let duration = |value| text(&duration_text::format(value));
    let events = channel.event_types.iter().map(|glob| toml::Value::from(glob.as_str())).collect();
    let events = toml::Value::Array(events);
    let mut shown = vec![("name", text(channel.name.as_str())), ("events", events.to_string())];
    if let Some(target) = &channel.target {
        shown.push(("exchange", text(&target.exchange)));
        if let RoutingKey::Fixed(key) = &target.routing_key {
            shown.push(("routing-key", text(key)));
        }
    }
    shown.push(("format", text(&channel.format)));
    shown.extend(channel.source.as_deref().map(|source| ("source", text(source))));
    let policy = &channel.policy;
    shown.push(("batch", policy.batch.to_string()));
    shown.push(("scan", duration(policy.scan)));
    match &policy.retries {
        RetryPolicy::Fixed(delays) => {
            let delays =
                delays.iter().map(|delay| toml::Value::from(duration_text::format(*delay))).collect();
            shown.push(("retries", toml::Value::Array(delays).to_string()));
        }
        RetryPolicy::Exponential { first, factor, cap, attempts, jitter } => {
            let (first, cap) = (duration(*first), duration(*cap));
            let growing =
                format!("{{ first = {first}, factor = {factor:?}, cap = {cap}, jitter = {jitter:?} }}");
            shown.push(("retries", growing));
            shown.push(("attempts", attempts.to_string()));
        }
    }
    shown.push(("ordering", text(if policy.in_order { "aggregate" } else { "none" })));
    shown.push(("patience", duration(policy.patience)));
    if let Some(start) = channel.tracking {
        shown.push((
            "start",
            match start {
                Start::First => text("first"),
                Start::Now => text("now"),
                Start::At(position) => position.to_string(),
            },
        ));
    }
    shown
}

/// A value as TOML: numbers as they are, everything else as a text.
fn written(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(number) => number.to_string(),
        Err(_) => toml::Value::String(value.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ServeFlags,
    }

    #[test]
    fn what_is_shown_is_toml_without_secrets_and_says_where_it_comes_from() {
        let hash = format!("sha256:{}", "ab".repeat(32));
        let keys = format!("ci:operator:{hash}");
        let arguments = [
            "towpath",
            "--store",
            "postgres://me:s3cret@db/towpath",
            "--access-keys",
            &keys,
            "--access-jwt-issuer",
            "https://id.example",
            "--access-jwt-audience",
            "towpath",
            "--access-jwt-jwks",
            "https://me:s3cret@id.example/keys",
            "--limits-headers",
            "7",
        ];
        let config = Line::parse_from(arguments).flags.config(&[]).ok().unwrap();
        let text = shown(&config).ok().unwrap();
        assert!(!text.contains("s3cret") && !text.contains("abab"), "{text}");
        assert!(text.contains("headers = 7 # flag") && text.contains("burst = 10000 # default"), "{text}");
        assert!(text.contains("jwks = \"https://id.example/keys\" # flag"), "{text}");
        let read: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(read["access"]["key"][0]["name"].as_str(), Some("ci"));
        assert_eq!(read["limits"]["headers"].as_integer(), Some(7));
    }

    #[test]
    fn an_applications_section_is_shown_without_secrets() {
        let holds = "url = \"https://me:s3cret@host/v1?key=s3cret\"\n\
                     [worker]\nhosts = [\"http://me:s3cret@one\", \"two\"]\n";
        let (mut text, holds) = (String::new(), toml::from_str(holds).unwrap());
        section(&mut text, "library", &holds, Some(&holds));
        assert!(!text.contains("s3cret"), "{text}");
        let read: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(read["library"]["url"].as_str(), Some("https://host/v1?…"));
        assert_eq!(read["library"]["worker"]["hosts"][1].as_str(), Some("two"));
    }
}
