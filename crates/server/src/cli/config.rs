//! Configuration: flags win over the environment, the environment over the TOML file, the file over defaults.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use towpath::alerts::{Alerting, BadRules, Rules, Webhook};
use towpath::config::{ChannelEntry, TopologyEntry};
use towpath::notifications::LARGEST_PAGE_SIZE;
use towpath::{Channels, StoreOptions};

use super::settings::{SettingFlags, Settings, Source};
use super::{Failure, told};
use crate::http::access::{ASYMMETRIC, ApiKey, JwtSettings, Role};
use crate::http::limits::LimitSettings;
use crate::http::tls::TlsFiles;
use crate::plugin::erased::{AnySettings, Applications};

const DEFAULT_LISTEN: &str = "127.0.0.1:7400";
const DEFAULT_STORE: &str = "sqlite://data/towpath.db";
const DEFAULT_BROKER: &str = "local:";

/// How long whoever spreads requests has to see that the server stops, where others than this machine are served.
const DRAIN: Duration = Duration::from_secs(5);

/// The flags of `towpath serve`.
#[derive(Args, Clone, Default)]
pub struct ServeFlags {
    /// Where to listen [default: 127.0.0.1:7400]
    #[arg(long, env = "TOWPATH_LISTEN", value_name = "ADDR")]
    listen: Option<String>,

    /// sqlite://PATH, postgres://… or mysql://… [default: sqlite://data/towpath.db]
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,

    /// local: for the in-process broker, amqp://… or kafka://… [default: local:]
    #[arg(long, env = "TOWPATH_BROKER", value_name = "URL", hide_env_values = true)]
    broker: Option<String>,

    /// A TOML file with the same names as the flags, and with channels and topology
    #[arg(long, env = "TOWPATH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: SettingFlags,
}

/// What the server runs with.
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) store: String,
    pub(crate) broker: String,
    pub(crate) database: StoreOptions,
    pub(crate) channels: Channels,
    pub(crate) log_page_size: Option<NonZeroU64>,
    pub(crate) alerts: Alerting,
    pub(crate) keys: Vec<ApiKey>,
    pub(crate) jwt: Option<JwtSettings>,
    pub(crate) limits: LimitSettings,
    pub(crate) idempotency_keys: Duration,
    /// How often consistency is checked without being asked, and how far back.
    pub(crate) checks: Option<(Duration, Duration)>,
    /// Whether what is safe is repaired after that.
    pub(crate) repairs: bool,
    pub(crate) shutdown_timeout: Duration,
    /// How long the server says that it stops before it takes no more connections.
    pub(crate) drain: Duration,
    /// Nothing for plain HTTP.
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) log: LogSettings,
    /// For `towpath config`.
    pub(crate) settings: Settings,
    /// Where the plain values came from.
    pub(crate) sources: Sources,
    /// Of each application.
    pub(crate) sections: Vec<Section>,
    /// As the file has it, for `towpath config`.
    pub(crate) written_topology: toml::Table,
}

/// The section of an application.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) settings: Box<dyn AnySettings>,
    /// As the file has it: what is not there has its default.
    pub(crate) written: toml::Table,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogSettings {
    pub(crate) json: bool,
    pub(crate) filter: String,
}

/// Where the values came from that are no settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sources {
    pub(crate) listen: Source,
    pub(crate) store: Source,
    pub(crate) broker: Source,
    pub(crate) keys: Source,
}

/// What a file may have beside the sections of applications.
pub(crate) const NAMES: [&str; 13] = [
    "listen", "store", "broker", "access", "alerts", "check", "database", "limits", "log", "server", "tls",
    "channel", "topology",
];

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    store: Option<String>,
    broker: Option<String>,
    #[serde(default)]
    access: toml::Table,
    #[serde(default)]
    alerts: toml::Table,
    #[serde(default)]
    check: toml::Table,
    #[serde(default)]
    database: toml::Table,
    #[serde(default)]
    limits: toml::Table,
    #[serde(default)]
    log: toml::Table,
    #[serde(default)]
    server: toml::Table,
    #[serde(default)]
    tls: toml::Table,
    #[serde(default)]
    channel: Vec<ChannelEntry>,
    #[serde(default)]
    topology: TopologyEntry,
}

/// One `[[access.key]]` of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    name: String,
    role: Role,
    hash: String,
}

/// One `[[alerts.webhook]]` of a file. Secrets stand in files of their own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WebhookEntry {
    name: String,
    url: String,
    secret_files: Vec<PathBuf>,
}

impl WebhookEntry {
    fn webhook(self) -> Result<Webhook, Failure> {
        let mut secrets = Vec::with_capacity(self.secret_files.len());
        for (number, file) in self.secret_files.iter().enumerate() {
            // Not by its name: it may be a secret in the wrong place.
            let what = format!("alerts.webhook {}: secret file {}", self.name, number + 1);
            secrets.push(std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("{what} cannot be read: {error}; secret-files are paths"))
            })?);
        }
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        Webhook::new(&self.name, &self.url, &secrets).map_err(|error| Failure::usage(told(&error)))
    }
}

impl ServeFlags {
    /// Puts flags, environment, file and defaults together.
    pub(crate) fn config(mut self, applications: &Applications) -> Result<Config, Failure> {
        // The short name, which is kept for who is used to it.
        self.settings.or_variable("log.filter", "TOWPATH_LOG");
        let Read { mut file, written, topology } = Read::file(self.config.as_deref(), applications)?;
        let written_keys: Option<Vec<KeyEntry>> = match file.access.remove("key") {
            None => None,
            Some(keys) => Some(keys.try_into().map_err(|error: toml::de::Error| {
                Failure::usage(format!("[[access.key]] in the configuration file is wrong: {error}"))
            })?),
        };
        let webhooks: Vec<WebhookEntry> = match file.alerts.remove("webhook") {
            None => Vec::new(),
            // What is written there may be a secret: it is not shown.
            Some(webhooks) => webhooks.try_into().map_err(|_: toml::de::Error| {
                Failure::usage(
                    "[[alerts.webhook]] in the configuration file is wrong; each has a name, a url and \
                     secret-files, a list of paths",
                )
            })?,
        };
        let mut tables = toml::Table::new();
        for (name, table) in [
            ("access", file.access),
            ("check", file.check),
            ("alerts", file.alerts),
            ("database", file.database),
            ("limits", file.limits),
            ("log", file.log),
            ("server", file.server),
            ("tls", file.tls),
        ] {
            tables.insert(name.to_owned(), toml::Value::Table(table));
        }
        let settings = Settings::resolve(&self.settings, &tables)?;
        let given = |id: &str, in_file: bool| {
            let otherwise = if in_file { Source::File } else { Source::Default };
            self.settings.source_of(id).unwrap_or(otherwise)
        };
        let sources = Sources {
            listen: given("listen", file.listen.is_some()),
            store: given("store", file.store.is_some()),
            broker: given("broker", file.broker.is_some()),
            keys: given("access.keys", written_keys.is_some()),
        };
        let keys = match settings.text("access.keys") {
            Some(listed) => listed_keys(listed)?,
            None => written_keys.unwrap_or_default(),
        };
        let listen = self.listen.or(file.listen).unwrap_or_else(|| DEFAULT_LISTEN.to_owned());
        let channels = Channels::of_entries(file.channel, file.topology)
            .map_err(|error| Failure::usage(told(&error)))?;
        let limits = limits(&settings)?;
        let listen: SocketAddr = listen.parse().map_err(|_| {
            Failure::usage(format!(
                "{listen:?} is not an address to listen on; write one such as {DEFAULT_LISTEN}"
            ))
        })?;
        let mut sections = Vec::with_capacity(applications.len());
        for (application, written) in applications.iter().zip(written) {
            let section = whole(application.name(), application.short_sections(), written)?;
            let settings = application.configured(section.clone(), limits.request_timeout)?;
            sections.push(Section { name: application.name(), settings, written: section });
        }
        Ok(Config {
            log_page_size: page_size(&settings)?,
            alerts: alerts(&settings, webhooks)?,
            channels,
            sections,
            written_topology: topology,
            listen,
            store: self.store.or(file.store).unwrap_or_else(|| DEFAULT_STORE.to_owned()),
            broker: self.broker.or(file.broker).unwrap_or_else(|| DEFAULT_BROKER.to_owned()),
            database: database(&settings)?,
            keys: checked_keys(keys)?,
            jwt: jwt(&settings)?,
            limits,
            idempotency_keys: settings.duration("limits.idempotency-keys")?,
            checks: checks(&settings)?,
            repairs: repairs(&settings)?,
            shutdown_timeout: settings.duration("server.shutdown-timeout")?,
            drain: match settings.text("server.drain") {
                Some(_) => settings.duration("server.drain")?,
                // Nobody spreads requests over several instances on one machine's loopback.
                None if listen.ip().is_loopback() => Duration::ZERO,
                None => DRAIN,
            },
            tls: tls(&settings)?,
            log: log(&settings)?,
            settings,
            sources,
        })
    }
}

/// A file that was read.
struct Read {
    file: File,
    /// Of each application: its section, and then its short ones.
    written: Vec<Vec<toml::Table>>,
    topology: toml::Table,
}

/// What is wrong with a file, and where. Not as the error shows itself: it repeats the line, which may hold a password.
struct Wrong {
    message: String,
    at: Option<usize>,
}

impl From<toml::de::Error> for Wrong {
    fn from(error: toml::de::Error) -> Self {
        Self { message: error.message().to_owned(), at: error.span().map(|span| span.start) }
    }
}

impl Read {
    /// Without a file, as of one that is empty.
    fn file(path: Option<&Path>, applications: &Applications) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Self::of("", applications).map_err(|wrong| Failure::usage(wrong.message));
        };
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("the configuration file {shown} cannot be read: {error}"))
        })?;
        Self::of(&text, applications).map_err(|Wrong { message, at }| {
            let line = at
                .and_then(|start| text.get(..start))
                .map_or(String::new(), |before| format!(" in line {}", before.matches('\n').count() + 1));
            Failure::usage(format!("the configuration file {shown} is wrong{line}: {message}"))
        })
    }

    fn of(text: &str, applications: &Applications) -> Result<Self, Wrong> {
        let whole = DeTable::parse(text)?;
        let (span, mut table) = (whole.span(), whole.into_inner());
        let mut written = Vec::with_capacity(applications.len());
        let [first, last] = [&NAMES[..3], &NAMES[3..]];
        let mut names = first.to_vec();
        for application in applications {
            let sections = [&[application.name()], application.short_sections()].concat();
            let tables = sections.iter().map(|name| table_of(table.remove(*name)));
            written.push(tables.collect::<Result<_, _>>()?);
            names.extend(sections);
        }
        names.extend(last);
        if let Some(unknown) = table.keys().find(|key| !names.contains(&key.get_ref().as_ref())) {
            let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let message = format!("unknown field `{}`, expected one of {names}", unknown.get_ref());
            return Err(Wrong { message, at: Some(unknown.span().start) });
        }
        let topology = table_of(table.get("topology").cloned()).unwrap_or_default();
        let file = File::deserialize(toml::de::Deserializer::from(Spanned::new(span, table)))?;
        Ok(Self { file, written, topology })
    }
}

fn table_of(value: Option<Spanned<DeValue<'_>>>) -> Result<toml::Table, toml::de::Error> {
    value.map_or(Ok(toml::Table::new()), |value| {
        toml::Table::deserialize(toml::de::ValueDeserializer::from(value))
    })
}

/// A section with those parts of it that were written without its name.
fn whole(name: &str, short: &[&str], written: Vec<toml::Table>) -> Result<toml::Table, Failure> {
    let mut written = written.into_iter();
    let mut section = written.next().unwrap_or_default();
    for (part, table) in short.iter().zip(written).filter(|(_, table)| !table.is_empty()) {
        if section.insert((*part).to_owned(), toml::Value::Table(table)).is_some() {
            let message = format!("[{part}] and [{name}.{part}] are the same thing; write one of them");
            return Err(Failure::usage(message));
        }
    }
    Ok(section)
}

/// How often consistency is checked, and how far back; nothing for never.
fn checks(settings: &Settings) -> Result<Option<(Duration, Duration)>, Failure> {
    let every = settings.duration("check.every")?;
    let window = settings.duration("check.window")?;
    Ok((!every.is_zero()).then_some((every, window)))
}

/// Whether what is safe is repaired after that.
fn repairs(settings: &Settings) -> Result<bool, Failure> {
    match settings.text("check.repair") {
        Some("safe") => Ok(true),
        Some("none") | None => Ok(false),
        Some(other) => Err(Failure::usage(format!("check.repair is {other:?}; write none or safe"))),
    }
}

/// Which rules are looked at. What is wrong with them is told before anything is touched.
fn alerts(settings: &Settings, webhooks: Vec<WebhookEntry>) -> Result<Alerting, Failure> {
    let wrong = |error: BadRules| Failure::usage(told(&error));
    let rules = match settings.text("alerts.rules") {
        None => Rules::defaults().map_err(wrong)?,
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("alerts.rules: the file {file} cannot be read: {error}"))
            })?;
            Rules::from_yaml(&text).map_err(wrong)?
        }
    };
    let names: BTreeSet<&str> = webhooks.iter().map(|entry| entry.name.as_str()).collect();
    if names.len() < webhooks.len() {
        return Err(Failure::usage("two [[alerts.webhook]] have the same name; give each one of its own"));
    }
    let alerting = Alerting::of(rules).every(settings.patience("alerts.every")?);
    webhooks.into_iter().try_fold(alerting, |alerting, entry| Ok(alerting.webhook(entry.webhook()?)))
}

fn page_size(settings: &Settings) -> Result<Option<NonZeroU64>, Failure> {
    let Some(written) = settings.text("log.page-size") else { return Ok(None) };
    let size = written.parse().ok().filter(|size| *size <= LARGEST_PAGE_SIZE);
    size.map(Some).ok_or_else(|| {
        Failure::usage(format!("log.page-size is {written:?}; write a number from 1 to {LARGEST_PAGE_SIZE}"))
    })
}

/// Keys as one text: `NAME:ROLE:HASH,NAME:ROLE:HASH`.
fn listed_keys(listed: &str) -> Result<Vec<KeyEntry>, Failure> {
    let entry = |text: &str| {
        let (name, rest) = text.trim().split_once(':')?;
        let (role, hash) = rest.split_once(':')?;
        Some(KeyEntry { name: name.to_owned(), role: Role::parse(role)?, hash: hash.to_owned() })
    };
    // What is wrong is not shown: it may be a key in the wrong place.
    let wrong = || Failure::usage("access.keys must be NAME:ROLE:HASH, and more of them behind commas");
    listed.split(',').map(|text| entry(text).ok_or_else(wrong)).collect()
}

fn checked_keys(entries: Vec<KeyEntry>) -> Result<Vec<ApiKey>, Failure> {
    let mut keys: Vec<ApiKey> = Vec::new();
    for KeyEntry { name, role, hash } in entries {
        let key = ApiKey::new(&name, role, &hash).map_err(|error| Failure::usage(error.to_string()))?;
        if keys.iter().any(|other| other.name == key.name) {
            return Err(Failure::usage(format!("there are two access keys with the name {name:?}")));
        }
        keys.push(key);
    }
    Ok(keys)
}

fn jwt(settings: &Settings) -> Result<Option<JwtSettings>, Failure> {
    let parts = ["access.jwt.issuer", "access.jwt.audience", "access.jwt.jwks"].map(|key| settings.text(key));
    let [Some(issuer), Some(audience), Some(jwks)] = parts else {
        if parts.iter().all(Option::is_none) {
            return Ok(None);
        }
        let what = "tokens need all of access.jwt.issuer, access.jwt.audience and access.jwt.jwks";
        return Err(Failure::usage(what));
    };
    let listed = settings.text("access.jwt.algorithms").unwrap_or_default();
    let algorithm = |name: &str| {
        let known = ASYMMETRIC.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm);
        let names = || ASYMMETRIC.map(|(name, _)| name).join(", ");
        known.ok_or_else(|| {
            Failure::usage(format!("access.jwt.algorithms has {name:?}; there are {}", names()))
        })
    };
    Ok(Some(JwtSettings {
        issuer: issuer.to_owned(),
        audience: audience.to_owned(),
        jwks: jwks.to_owned(),
        ca: settings.text("access.jwt.ca").map(PathBuf::from),
        keys_for: settings.patience("access.jwt.keys-for")?,
        role_claim: settings.text("access.jwt.role-claim").unwrap_or("role").to_owned(),
        algorithms: listed.split(',').map(|name| algorithm(name.trim())).collect::<Result<_, _>>()?,
    }))
}

fn database(settings: &Settings) -> Result<StoreOptions, Failure> {
    Ok(StoreOptions {
        max_connections: connections(settings, "database.connections")?,
        acquire_timeout: settings.patience("database.connection-timeout")?,
        statement_timeout: settings.patience("database.statement-timeout")?,
        listing_connections: connections(settings, "database.listing-connections")?,
        listing_timeout: settings.patience("database.listing-timeout")?,
        ..StoreOptions::default()
    })
}

fn connections(settings: &Settings, key: &'static str) -> Result<u32, Failure> {
    let count = settings.count(key)?;
    u32::try_from(count).map_err(|_| Failure::usage(format!("{key} is {count}; no database has so many")))
}

fn tls(settings: &Settings) -> Result<Option<TlsFiles>, Failure> {
    match (settings.text("tls.cert"), settings.text("tls.key")) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.into(), key: key.into() })),
        _ => Err(Failure::usage("HTTPS needs both tls.cert and tls.key")),
    }
}

fn limits(settings: &Settings) -> Result<LimitSettings, Failure> {
    Ok(LimitSettings {
        body_bytes: settings.count("limits.body-bytes")?,
        header_bytes: settings.count("limits.header-bytes")?,
        headers: settings.count("limits.headers")?,
        header_timeout: settings.patience("limits.header-timeout")?,
        request_timeout: settings.patience("limits.request-timeout")?,
        answer_timeout: settings.patience("limits.answer-timeout")?,
        connections: settings.count("limits.connections")?,
        concurrent_requests: settings.count("limits.concurrent-requests")?,
        streams: settings.count("limits.streams")?,
        memory_bytes: settings.count("limits.memory-bytes")? as u64,
        caller_share: settings.percent("limits.caller-share")?,
        requests_per_second: settings.number("limits.requests-per-second")?,
        burst: settings.number("limits.burst")?,
    })
}

fn log(settings: &Settings) -> Result<LogSettings, Failure> {
    let json = match settings.text("log.format") {
        Some("json") => true,
        Some("human") | None => false,
        Some(other) => return Err(Failure::usage(format!("log.format is {other:?}; write human or json"))),
    };
    let filter = settings.text("log.filter").unwrap_or("info").to_owned();
    if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(&filter) {
        return Err(Failure::usage(format!(
            "log.filter is {filter:?}: {error}; write a level (error, warn, info, debug, trace), or levels of parts: \
             info,towpath=debug"
        )));
    }
    Ok(LogSettings { json, filter })
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
    fn a_part_of_a_section_may_stand_without_its_name() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let with_part = |shop, part: &str| whole("shop", &["outbox"], vec![shop, table(part)]);
        let shop = with_part(table("enabled = true"), "publisher.delay = 500").ok().unwrap();
        assert_eq!(shop, table("enabled = true\noutbox.publisher.delay = 500"));
        let twice = with_part(shop, "publisher.delay = 500").err().unwrap();
        assert!(twice.message.contains("[shop.outbox]"), "{}", twice.message);
    }

    #[test]
    fn the_default_is_embedded_and_on_loopback() {
        let config = ServeFlags::default().config(&[]).ok().unwrap();
        assert!(config.listen.ip().is_loopback());
        assert_eq!(
            (config.listen.port(), config.store.as_str(), config.broker.as_str()),
            (7400, DEFAULT_STORE, "local:")
        );
    }

    #[test]
    fn a_file_that_is_wrong_is_told_by_its_line_and_without_what_stands_there() {
        for (text, line) in [
            ("listen = \"127.0.0.1:1\"\nstore = \"postgres://me:s3cret@db/app\n", "line 2"),
            ("stor = \"postgres://me:s3cret@db/app\"\n", "line 1"),
            ("\n\nstore = [\"postgres://me:s3cret@db/app\"]\n", "line 3"),
        ] {
            let (flags, _file) = flags(None, Some(text));
            let said = flags.config(&[]).err().unwrap().message;
            assert!(said.contains(line) && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "listen = \"127.0.0.1:1\"\nstore = \"sqlite://other.db\"\n";
        let (flags, _file) = flags(Some("127.0.0.1:2"), Some(text));
        let config = flags.config(&[]).ok().unwrap();
        assert_eq!((config.listen.port(), config.store.as_str()), (2, "sqlite://other.db"));
    }

    #[test]
    fn the_page_size_of_the_log_is_within_bounds() {
        let size = |written: &str| {
            let (flags, _file) = flags(None, Some(&format!("[log]\npage-size = {written}\n")));
            flags.config(&[]).map(|config| config.log_page_size.map(NonZeroU64::get))
        };
        assert_eq!(size("50").ok(), Some(Some(50)));
        assert_eq!(size("1000").ok(), Some(Some(1000)));
        assert_eq!(ServeFlags::default().config(&[]).ok().unwrap().log_page_size, None);
        for wrong in ["0", "1001", "-1", "\"many\""] {
            assert!(size(wrong).err().unwrap().message.contains("1 to 1000"), "{wrong}");
        }
    }

    #[test]
    fn channels_stand_beside_the_rest() {
        let text = "store = \"sqlite://other.db\"\n[[channel]]\nname = \"a\"\nevents = [\"*\"]\nexchange = \"e\"\n\
            [topology]\nexchanges = [{ name = \"e\", kind = \"topic\" }]\n";
        let (flags_of_one, _file) = flags(None, Some(text));
        let config = flags_of_one.config(&[]).ok().unwrap();
        assert_eq!(config.channels.channels[0].name.as_str(), "a");
        assert_eq!(config.channels.topology.exchanges[0].name, "e");
        let (flags, _file) = flags(None, Some("listen = \"127.0.0.1:1\"\n[[channel]]\nnam = \"a\"\n"));
        let message = flags.config(&[]).err().unwrap().message;
        assert!(message.contains("nam") && message.contains("line 3"), "{message}");
    }

    #[test]
    fn a_misspelt_key_in_the_file_is_refused_by_name() {
        let (flags, _file) = flags(None, Some("lisen = \"127.0.0.1:1\"\n"));
        assert!(flags.config(&[]).err().unwrap().message.contains("lisen"));
    }

    #[test]
    fn keys_are_checked_and_secrets_in_the_wrong_place_are_not_shown() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let entry =
            |name: &str| format!("[[access.key]]\nname = \"{name}\"\nrole = \"viewer\"\nhash = \"{hash}\"\n");
        let (one, _file) = flags(None, Some(&entry("ci")));
        assert_eq!(one.config(&[]).ok().unwrap().keys[0].name.as_str(), "ci");
        let (twice, _file) = flags(None, Some(&format!("{}{}", entry("ci"), entry("ci"))));
        assert!(twice.config(&[]).err().unwrap().message.contains("two access keys"));
        let (misspelt, _file) = flags(None, Some(&entry("ci").replace("hash", "hush")));
        assert!(misspelt.config(&[]).err().unwrap().message.contains("hush"));
        assert_eq!(listed_keys(&format!("a:viewer:{hash},b:admin:{hash}")).ok().unwrap().len(), 2);
        assert!(!listed_keys("tpk_secret").err().unwrap().message.contains("tpk_secret"));
    }

    #[test]
    fn tokens_need_an_issuer_an_audience_and_keys() {
        let (flags, _file) = flags(None, Some("[access.jwt]\nissuer = \"a\"\n"));
        assert!(flags.config(&[]).err().unwrap().message.contains("access.jwt.audience"));
    }

    #[test]
    fn https_needs_a_certificate_and_its_key() {
        for text in ["[tls]\ncert = \"a\"\n", "[tls]\nkey = \"a\"\n"] {
            let (flags, _file) = flags(None, Some(text));
            let said = flags.config(&[]).err().unwrap().message;
            assert!(said.contains("tls.cert") && said.contains("tls.key"), "{said}");
        }
    }

    #[test]
    fn a_server_for_others_says_for_a_while_that_it_stops() {
        let drain = |listen: &str, file: &str| {
            let (flags, _file) = flags(Some(listen), Some(file));
            flags.config(&[]).ok().unwrap().drain
        };
        assert_eq!(drain("127.0.0.1:1", ""), Duration::ZERO);
        assert_eq!(drain("0.0.0.0:1", ""), DRAIN);
        assert_eq!(drain("0.0.0.0:1", "[server]\ndrain = \"0s\"\n"), Duration::ZERO);
    }

    #[test]
    fn shared_secrets_are_no_algorithm() {
        let text = "[access.jwt]\nissuer = \"a\"\naudience = \"b\"\njwks = \"c\"\nalgorithms = [\"HS256\"]\n";
        let (flags, _file) = flags(None, Some(text));
        assert!(flags.config(&[]).err().unwrap().message.contains("HS256"));
    }

    #[test]
    fn a_wrong_address_says_what_to_write() {
        let (flags, _) = flags(Some("localhost"), None);
        assert!(flags.config(&[]).err().unwrap().message.contains("127.0.0.1:7400"));
    }
}
