//! `towpath config`: what the server would run with, as TOML, secrets hidden, with where each value comes from.

use towpath::{BrokerUrl, StoreUrl};

use super::config::{Config, ServeFlags};
use super::{Failure, output};

/// Shows it.
pub(crate) fn show(flags: ServeFlags) -> Result<(), Failure> {
    output::line(shown(&flags.config()?).trim_end());
    Ok(())
}

fn shown(config: &Config) -> String {
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
            text.push_str(&format!("{name} = {} # {source}\n", written(&without_password(value))));
        }
    }
    for key in &config.keys {
        let (name, role) = (written(key.name.as_str()), key.role.as_str());
        text.push_str(&format!(
            "\n[[access.key]] # {}\nname = {name}\nrole = \"{role}\"\nhash = \"(hidden)\"\n",
            sources.keys
        ));
    }
    for channel in &config.channels.channels {
        text.push_str(&format!("\n[[channel]] # file\nname = {}\n", written(channel.name.as_str())));
    }
    text
}

/// A value as TOML: numbers as they are, everything else as a text.
fn written(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(number) => number.to_string(),
        Err(_) => toml::Value::String(value.to_owned()).to_string(),
    }
}

/// A URL without who logs in.
fn without_password(value: &str) -> String {
    match value.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => value.to_owned(),
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
        let config = Line::parse_from(arguments).flags.config().ok().unwrap();
        let text = shown(&config);
        assert!(!text.contains("s3cret") && !text.contains("abab"), "{text}");
        assert!(text.contains("headers = 7 # flag") && text.contains("burst = 10000 # default"), "{text}");
        assert!(text.contains("jwks = \"https://id.example/keys\" # flag"), "{text}");
        let read: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(read["access"]["key"][0]["name"].as_str(), Some("ci"));
        assert_eq!(read["limits"]["headers"].as_integer(), Some(7));
    }
}
