//! Configuration: flags win over the environment, the environment over the TOML file, the file over defaults.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use towpath::Channels;
use towpath::config::{ChannelEntry, TopologyEntry};

use super::Failure;
use super::market::MarketConfig;

const DEFAULT_LISTEN: &str = "127.0.0.1:7400";
const DEFAULT_STORE: &str = "sqlite://data/towpath.db";
const DEFAULT_BROKER: &str = "local:";

/// The flags of `towpath serve`.
#[derive(Args, Clone, Default)]
pub(crate) struct ServeFlags {
    /// Where to listen [default: 127.0.0.1:7400]
    #[arg(long, env = "TOWPATH_LISTEN", value_name = "ADDR")]
    listen: Option<String>,

    /// sqlite://PATH, postgres://… or mysql://… [default: sqlite://data/towpath.db]
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,

    /// local: for the in-process broker [default: local:]
    #[arg(long, env = "TOWPATH_BROKER", value_name = "URL", hide_env_values = true)]
    broker: Option<String>,

    /// A TOML file with the same names as the flags, and with channels and topology
    #[arg(long, env = "TOWPATH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What the server runs with.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) store: String,
    pub(crate) broker: String,
    pub(crate) channels: Channels,
    pub(crate) market: MarketConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    store: Option<String>,
    broker: Option<String>,
    #[serde(default)]
    market: toml::Table,
    #[serde(default)]
    channel: Vec<ChannelEntry>,
    #[serde(default)]
    topology: TopologyEntry,
}

impl ServeFlags {
    /// Puts flags, environment, file and defaults together.
    pub(crate) fn config(self) -> Result<Config, Failure> {
        let file = match &self.config {
            None => File::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Failure::usage(format!(
                        "the configuration file {} cannot be read: {error}",
                        path.display()
                    ))
                })?;
                toml::from_str(&text).map_err(|error| {
                    Failure::usage(format!("the configuration file {} is wrong: {error}", path.display()))
                })?
            }
        };
        let listen = self.listen.or(file.listen).unwrap_or_else(|| DEFAULT_LISTEN.to_owned());
        let channels = Channels::of_entries(file.channel, file.topology)
            .map_err(|error| Failure::usage(format!("{error} [{}]\n{}", error.code(), error.next_step())))?;
        Ok(Config {
            channels,
            market: MarketConfig::read(file.market)?,
            listen: listen.parse().map_err(|_| {
                Failure::usage(format!(
                    "{listen:?} is not an address to listen on; write one such as {DEFAULT_LISTEN}"
                ))
            })?,
            store: self.store.or(file.store).unwrap_or_else(|| DEFAULT_STORE.to_owned()),
            broker: self.broker.or(file.broker).unwrap_or_else(|| DEFAULT_BROKER.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn flags(listen: Option<&str>, file: Option<&str>) -> (ServeFlags, Option<tempfile::NamedTempFile>) {
        let file = file.map(|text| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file
        });
        let config = file.as_ref().map(|file| file.path().to_owned());
        (ServeFlags { listen: listen.map(str::to_owned), config, ..ServeFlags::default() }, file)
    }

    #[test]
    fn the_default_is_embedded_and_on_loopback() {
        let config = ServeFlags::default().config().ok().unwrap();
        assert!(config.listen.ip().is_loopback());
        assert_eq!(
            (config.listen.port(), config.store.as_str(), config.broker.as_str()),
            (7400, DEFAULT_STORE, "local:")
        );
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "listen = \"127.0.0.1:1\"\nstore = \"sqlite://other.db\"\n";
        let (flags, _file) = flags(Some("127.0.0.1:2"), Some(text));
        let config = flags.config().ok().unwrap();
        assert_eq!((config.listen.port(), config.store.as_str()), (2, "sqlite://other.db"));
    }

    #[test]
    fn channels_stand_beside_the_rest() {
        let text = "store = \"sqlite://other.db\"\n[[channel]]\nname = \"a\"\nevents = [\"*\"]\nexchange = \"e\"\n\
            [topology]\nexchanges = [{ name = \"e\", kind = \"topic\" }]\n";
        let (flags_of_one, _file) = flags(None, Some(text));
        let config = flags_of_one.config().ok().unwrap();
        assert_eq!(config.channels.channels[0].name.as_str(), "a");
        assert_eq!(config.channels.topology.exchanges[0].name, "e");
        let (flags, _file) = flags(None, Some("listen = \"127.0.0.1:1\"\n[[channel]]\nnam = \"a\"\n"));
        let message = flags.config().err().unwrap().message;
        assert!(message.contains("nam") && message.contains("line 3"), "{message}");
    }

    #[test]
    fn a_misspelt_key_in_the_file_is_refused_by_name() {
        let (flags, _file) = flags(None, Some("lisen = \"127.0.0.1:1\"\n"));
        assert!(flags.config().err().unwrap().message.contains("lisen"));
    }

    #[test]
    fn a_wrong_address_says_what_to_write() {
        let (flags, _) = flags(Some("localhost"), None);
        assert!(flags.config().err().unwrap().message.contains("127.0.0.1:7400"));
    }
}
