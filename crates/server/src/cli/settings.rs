//! Settings as data: each has one key, and from it its flag, its variable and its place in the file.
//!
//! `limits.body-bytes` is the flag `--limits-body-bytes`, the variable `TOWPATH_LIMITS_BODY_BYTES` and the key `body-bytes`
//! under `[limits]`. Flags win over the environment, the environment over the file, the file over defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use towpath::retry::duration_text;

use super::Failure;

/// One setting.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    /// Empty for none.
    pub(crate) default: &'static str,
    value: &'static str,
    help: &'static str,
}

const fn setting(
    key: &'static str,
    default: &'static str,
    value: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, default, value, help }
}

/// All settings that are single values.
pub(crate) const SETTINGS: &[Setting] = &[
    setting(
        "access.keys",
        "",
        "KEYS",
        "API keys as NAME:ROLE:HASH, more behind commas, in place of the file's",
    ),
    setting("access.jwt.issuer", "", "TEXT", "Accept tokens of this issuer"),
    setting("access.jwt.audience", "", "TEXT", "… that are meant for this audience"),
    setting("access.jwt.jwks", "", "FILE|URL", "… and signed with one of these keys"),
    setting(
        "access.jwt.ca",
        "",
        "FILE",
        "Authorities (PEM) that may vouch for the server of the keys, in place of the public ones",
    ),
    setting(
        "access.jwt.keys-for",
        "1h",
        "TIME",
        "For how long keys hold that the issuer has not named again",
    ),
    setting(
        "access.jwt.role-claim",
        "role",
        "CLAIM",
        "The claim that holds the role; dots lead into objects",
    ),
    setting(
        "access.jwt.algorithms",
        "RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,EdDSA",
        "LIST",
        "Accepted algorithms",
    ),
    setting("check.every", "0s", "TIME", "How often consistency is checked by itself; 0s is never"),
    setting("check.window", "24h", "TIME", "How far back such a check looks"),
    setting("check.repair", "none", "none|safe", "What is repaired after such a check"),
    setting("alerts.rules", "", "FILE", "Rules of alerts (YAML), beside the default ones or in their place"),
    setting("alerts.every", "15s", "TIME", "How often the rules of alerts are looked at"),
    setting(
        "database.connections",
        "10",
        "N",
        "How many connections to the database there may be, beside those for listings",
    ),
    setting("database.connection-timeout", "5s", "TIME", "How long it is waited for a connection"),
    setting("database.statement-timeout", "30s", "TIME", "How long a statement may go unanswered"),
    setting("database.listing-connections", "3", "N", "How many connections listings and metrics may have"),
    setting("database.listing-timeout", "10s", "TIME", "How long a statement of a listing may take"),
    setting("limits.body-bytes", "5242880", "N", "How large a request's body may be"),
    setting("limits.header-bytes", "16384", "N", "How large a request's headers may be"),
    setting("limits.headers", "64", "N", "How many headers a request may have"),
    setting("limits.header-timeout", "10s", "TIME", "How long the head of a request may take to arrive"),
    setting("limits.request-timeout", "30s", "TIME", "How long a request may take"),
    setting("limits.answer-timeout", "2m", "TIME", "How long the whole of an answer may take to be read"),
    setting("limits.connections", "4096", "N", "How many connections may be open"),
    setting("limits.concurrent-requests", "1024", "N", "How many requests may run at once"),
    setting("limits.streams", "2000", "N", "How many may follow the event stream"),
    setting(
        "limits.memory-bytes",
        "100663296",
        "N",
        "How much of large requests and answers may be in memory at once",
    ),
    setting(
        "limits.caller-share",
        "50",
        "PERCENT",
        "How many hundredths of requests at once, streams and memory one key or token may have",
    ),
    setting(
        "limits.requests-per-second",
        "5000",
        "N",
        "How often one caller may ask in the long run; 0 is no limit",
    ),
    setting("limits.burst", "10000", "N", "How often one caller may ask at once"),
    setting("limits.idempotency-keys", "1d", "TIME", "For how long the answer to an Idempotency-Key is kept"),
    setting("log.format", "human", "human|json", "How log lines are written"),
    setting(
        "log.filter",
        "info",
        "FILTER",
        "What is logged: info, or debug for some parts: info,towpath=debug",
    ),
    setting(
        "log.page-size",
        "",
        "N",
        "How many notifications a page of the notification log has: 20, or what the log was opened with",
    ),
    setting(
        "server.shutdown-timeout",
        "10s",
        "TIME",
        "How long running requests, and then services, may take when the server stops",
    ),
    setting(
        "server.drain",
        "",
        "TIME",
        "How long /readyz says that the server stops before it takes no more connections: 0s on loopback, else 5s",
    ),
    setting(
        "tls.cert",
        "",
        "FILE",
        "Serve HTTPS with this certificate (PEM, with those that lead to its authority)",
    ),
    setting("tls.key", "", "FILE", "… and its private key (PEM)"),
];

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Environment,
    File,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// What flags and environment say; and of all flags, these and others, who said it.
#[derive(Clone, Default)]
pub(crate) struct SettingFlags {
    given: BTreeMap<&'static str, (String, Source)>,
    sources: BTreeMap<String, Source>,
}

impl SettingFlags {
    /// Takes a value from another variable, if neither the flag nor the setting's own variable gives one.
    pub(crate) fn or_variable(&mut self, key: &'static str, variable: &str) {
        if self.given.contains_key(key) {
            return;
        }
        if let Ok(value) = std::env::var(variable)
            && !value.is_empty()
        {
            self.given.insert(key, (value, Source::Environment));
            self.sources.insert(key.to_owned(), Source::Environment);
        }
    }

    /// Where the value of a flag came from, if it was given.
    pub(crate) fn source_of(&self, id: &str) -> Option<Source> {
        self.sources.get(id).copied()
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| {
            let default = if setting.default.is_empty() { "none" } else { setting.default };
            command.arg(
                Arg::new(setting.key)
                    .long(setting.key.replace('.', "-"))
                    .env(variable(setting.key))
                    .hide_env_values(true)
                    .value_name(setting.value)
                    .action(ArgAction::Set)
                    .help(format!("{} [default: {default}]", setting.help))
                    .help_heading("Settings"),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for id in matches.ids() {
            let source = match matches.value_source(id.as_str()) {
                Some(ValueSource::CommandLine) => Source::Flag,
                Some(ValueSource::EnvVariable) => Source::Environment,
                _ => continue,
            };
            self.sources.insert(id.to_string(), source);
            if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == id.as_str())
                && let Some(value) = matches.get_one::<String>(setting.key)
            {
                self.given.insert(setting.key, (value.clone(), source));
            }
        }
        Ok(())
    }
}

/// The variable of a key. clap keeps what it is given, so it is made once and stays.
fn variable(key: &str) -> String {
    format!("TOWPATH_{}", key.to_uppercase().replace(['.', '-'], "_"))
}

/// All settings with their values.
#[derive(Clone)]
pub(crate) struct Settings(BTreeMap<&'static str, (String, Source)>);

impl Settings {
    /// Puts flags, environment, file and defaults together.
    pub(crate) fn resolve(flags: &SettingFlags, file: &toml::Table) -> Result<Self, Failure> {
        let mut found = BTreeMap::new();
        flatten("", file, &mut found)?;
        let mut values = BTreeMap::new();
        for setting in SETTINGS {
            let written = found.remove(setting.key);
            let chosen = match (flags.given.get(setting.key), written) {
                (Some(given), _) => given.clone(),
                (None, Some(written)) => (written, Source::File),
                (None, None) => (setting.default.to_owned(), Source::Default),
            };
            values.insert(setting.key, chosen);
        }
        match found.keys().next() {
            None => Ok(Self(values)),
            Some(unknown) => Err(Failure::usage(format!(
                "the configuration file has {unknown}, which is no setting; `towpath config` shows all of them"
            ))),
        }
    }

    /// All of them, for people.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str, Source)> {
        self.0.iter().map(|(key, (value, source))| (*key, value.as_str(), *source))
    }

    /// A text; none if it is empty.
    pub(crate) fn text(&self, key: &'static str) -> Option<&str> {
        self.0.get(key).map(|(value, _)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// A number.
    pub(crate) fn number<N: std::str::FromStr>(&self, key: &'static str) -> Result<N, Failure> {
        let text = self.text(key).unwrap_or_default();
        text.replace('_', "")
            .parse()
            .map_err(|_| Failure::usage(format!("{key} is {text:?}, which is no number that fits")))
    }

    /// A number that is at least 1: with 0 nothing could be served.
    pub(crate) fn count(&self, key: &'static str) -> Result<usize, Failure> {
        match self.number(key)? {
            0 => Err(Failure::usage(format!("{key} is 0, and then nothing could be served"))),
            count => Ok(count),
        }
    }

    /// A duration that something is waited for: some time, and not for ever.
    pub(crate) fn patience(&self, key: &'static str) -> Result<Duration, Failure> {
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
        match self.duration(key)? {
            duration if duration.is_zero() || duration > LONGEST => {
                Err(Failure::usage(format!("{key} must be more than nothing and at most 1d")))
            }
            duration => Ok(duration),
        }
    }

    /// Hundredths: 1 to 100.
    pub(crate) fn percent(&self, key: &'static str) -> Result<u64, Failure> {
        match self.number(key)? {
            percent @ 1..=100 => Ok(percent),
            other => Err(Failure::usage(format!("{key} is {other}; write a number from 1 to 100"))),
        }
    }

    /// A duration.
    pub(crate) fn duration(&self, key: &'static str) -> Result<Duration, Failure> {
        let text = self.text(key).unwrap_or_default();
        duration_text::parse(text).map_err(|error| Failure::usage(format!("{key}: {error}")))
    }
}

/// The values of nested tables by their whole keys, as texts.
fn flatten(prefix: &str, table: &toml::Table, found: &mut BTreeMap<String, String>) -> Result<(), Failure> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let text = match value {
            toml::Value::Table(inner) => {
                flatten(&key, inner, found)?;
                continue;
            }
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Array(values) if values.iter().all(toml::Value::is_str) => {
                values.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>().join(",")
            }
            other => {
                let kind = other.type_str();
                return Err(Failure::usage(format!("{key} in the configuration file must not be a {kind}")));
            }
        };
        found.insert(key, text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> SettingFlags {
        let command = SettingFlags::augment_args(Command::new("towpath"));
        SettingFlags::from_arg_matches(&command.get_matches_from(arguments)).unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_each_value_knows_where_it_came_from() {
        let file: toml::Table =
            toml::from_str("[limits]\nbody-bytes = 7\nheaders = 9\n[log]\nformat = \"json\"\n").unwrap();
        let flags = parsed(&["towpath", "--limits-body-bytes", "8"]);
        let settings = Settings::resolve(&flags, &file).ok().unwrap();
        let all: Vec<_> = settings.iter().collect();
        assert!(all.contains(&("limits.body-bytes", "8", Source::Flag)));
        assert!(all.contains(&("limits.headers", "9", Source::File)));
        assert!(all.contains(&("log.format", "json", Source::File)));
        assert!(all.contains(&("limits.burst", "10000", Source::Default)));
        assert_eq!(settings.count("limits.body-bytes").ok(), Some(8));
    }

    #[test]
    fn the_page_has_every_setting_with_its_default_and_no_other() {
        /// They have flags of their own.
        const BESIDE: [&str; 3] = ["listen", "store", "broker"];
        let page = include_str!("../../../../docs/configuration.md");
        let rows: BTreeMap<&str, &str> = page
            .lines()
            .skip_while(|line| !line.starts_with("| setting |"))
            .take_while(|line| line.starts_with('|'))
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .filter_map(|(key, rest)| Some((key, rest.split_once(" | ")?.0)))
            .collect();
        for Setting { key, default, .. } in SETTINGS {
            let told = rows.get(key).unwrap_or_else(|| panic!("docs/configuration.md has no row of {key}"));
            // One that is not a fixed value is told in words.
            let is_told = if default.is_empty() || *key == "access.jwt.algorithms" {
                !told.starts_with('`') || told.contains(' ')
            } else {
                *told == format!("`{default}`")
            };
            assert!(is_told, "{key} is {default:?}, and docs/configuration.md says {told}");
        }
        for key in rows.keys() {
            let is_known = BESIDE.contains(key) || SETTINGS.iter().any(|setting| setting.key == *key);
            assert!(is_known, "docs/configuration.md has {key}, which is no setting");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_by_its_whole_name() {
        for (text, name) in [
            ("[limits]\nbody-byte = 7", "limits.body-byte"),
            ("[access.jwt]\nissue = \"a\"", "access.jwt.issue"),
            ("[log]\nformat = 1.5", "log.format"),
        ] {
            let file: toml::Table = toml::from_str(text).unwrap();
            let failure = Settings::resolve(&SettingFlags::default(), &file).err().unwrap();
            assert!(failure.message.contains(name), "{}", failure.message);
        }
    }

    #[test]
    fn nothing_is_waited_for_not_at_all_or_for_ever() {
        for wrong in ["0s", "2d", "99999999999999d", "soon"] {
            let flags = parsed(&["towpath", "--limits-request-timeout", wrong]);
            let settings = Settings::resolve(&flags, &toml::Table::new()).ok().unwrap();
            assert!(settings.patience("limits.request-timeout").is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_default_is_a_value_and_every_variable_has_its_name() {
        let settings = Settings::resolve(&SettingFlags::default(), &toml::Table::new()).ok().unwrap();
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            match setting.value {
                "N" => assert!(settings.number::<u64>(setting.key).is_ok(), "{}", setting.key),
                "TIME" => assert!(settings.duration(setting.key).is_ok(), "{}", setting.key),
                _ => {}
            }
        }
        assert_eq!(variable("limits.body-bytes"), "TOWPATH_LIMITS_BODY_BYTES");
        assert_eq!(variable("log.format"), "TOWPATH_LOG_FORMAT");
    }
}
