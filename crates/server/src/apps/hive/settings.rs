//! The section `[hive]` of the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath::retry::{RetryPolicy, duration_text};
use towpath::{ChannelPolicy, StoreUrl};
use towpath_hive::gateway::ServingGateway;
use towpath_hive::gateway::simulated::{Fates, SimulatedCluster, SimulatedSettings};
use towpath_hive::{Hive, HiveSettings};

use super::kubernetes::KubernetesSection;
use crate::Failure;

/// How much of a request's time is kept, at most, for what is done before and after a wait: recording what was asked for,
/// and reading what has become of it. Of a short time it is a fifth.
const BESIDE_THE_WAIT: Duration = Duration::from_secs(5);

/// The longest `hive.channel`: a channel's name has 64 characters, and the longest of hive's ends with `.requested`.
const LONGEST_CHANNEL: usize = 54;

/// How long somebody can be kept waiting in a request that may take so long.
fn longest_wait(request_timeout: Duration) -> Duration {
    request_timeout - BESIDE_THE_WAIT.min(request_timeout / 5)
}

/// The `[hive]` section of a file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct HiveSection {
    /// Whether it runs.
    enabled: bool,
    /// Which platform: `simulated` or `kubernetes`.
    gateway: Gateway,
    /// How many looks at the platform run at a time.
    concurrency: usize,
    /// How often the instance that looks asks what has become due.
    #[serde(with = "duration_text")]
    poll: Duration,
    /// How long one look may take.
    #[serde(with = "duration_text")]
    timeout: Duration,
    /// How long a caller with `wait` is kept at most. What is not written gives way to what a request may take.
    #[serde(with = "optional_duration_text")]
    wait_at_most: Option<Duration>,
    /// What its channels are called, and so its exchanges or topics.
    channel: String,
    outbox: OutboxSection,
    pub(super) service: ServiceSection,
    simulated: SimulatedSection,
    kubernetes: KubernetesSection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Gateway {
    Simulated,
    Kubernetes,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct ServiceSection {
    /// How long a service may be CREATING or UPDATING.
    #[serde(with = "duration_text")]
    converges_within: Duration,
    /// How long a service may be DELETING before that is told.
    #[serde(with = "duration_text")]
    deleted_within: Duration,
    /// Whether a READY service is brought back to what was asked for.
    correct_drift: bool,
    pub(super) observation: ObservationSection,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct OutboxSection {
    publisher: PublisherSection,
}

/// How hive's facts are published. The source names the delay; the others are those of a `[[channel]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct PublisherSection {
    #[serde(rename = "fixedDelayMs")]
    fixed_delay_ms: u64,
    batch: u32,
    attempts: u32,
    retries: RetriesSection,
}

/// The delays between attempts.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RetriesSection {
    #[serde(with = "duration_text")]
    first: Duration,
    factor: f64,
    #[serde(with = "duration_text")]
    cap: Duration,
    jitter: f64,
}

/// The names are the source's.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct ObservationSection {
    interval_ms: u64,
    #[serde(with = "duration_text")]
    pub(super) ready_stale_duration: Duration,
    failure_threshold: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct SimulatedSection {
    seed: u64,
    #[serde(with = "duration_text")]
    settles_after: Duration,
    #[serde(with = "duration_text")]
    settles_within: Duration,
    #[serde(with = "duration_text")]
    deleted_after: Duration,
    refused_percent: u8,
    failing_percent: u8,
    vanishing_percent: u8,
    #[serde(with = "duration_text")]
    vanishes_within: Duration,
    #[serde(with = "duration_text")]
    call_delay: Duration,
    unavailable_percent: u8,
    missing_namespaces: Vec<String>,
    file: Option<PathBuf>,
    watched: bool,
}

impl Default for HiveSection {
    fn default() -> Self {
        let HiveSettings { concurrency, poll, timeout, channel, .. } = HiveSettings::default();
        Self {
            enabled: true,
            gateway: Gateway::Simulated,
            concurrency,
            poll,
            timeout,
            wait_at_most: None,
            channel,
            outbox: OutboxSection::default(),
            service: ServiceSection::default(),
            simulated: SimulatedSection::default(),
            kubernetes: KubernetesSection::default(),
        }
    }
}

impl Default for ServiceSection {
    fn default() -> Self {
        let HiveSettings { converges_within, deleted_within, correct_drift, .. } = HiveSettings::default();
        Self { converges_within, deleted_within, correct_drift, observation: ObservationSection::default() }
    }
}

impl Default for ObservationSection {
    fn default() -> Self {
        let HiveSettings { interval, ready_stale, failure_threshold, .. } = HiveSettings::default();
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        Self { interval_ms, ready_stale_duration: ready_stale, failure_threshold }
    }
}

impl Default for PublisherSection {
    /// H12, in the words of a file. A test holds that it is what hive does without one.
    fn default() -> Self {
        Self { fixed_delay_ms: 2000, batch: 200, attempts: 10, retries: RetriesSection::default() }
    }
}

impl Default for RetriesSection {
    fn default() -> Self {
        Self { first: Duration::from_secs(2), factor: 2.0, cap: Duration::from_secs(300), jitter: 0.2 }
    }
}

impl Default for SimulatedSection {
    fn default() -> Self {
        let SimulatedSettings { seed, fates, call_delay, unavailable_percent, watched, .. } =
            SimulatedSettings::default();
        Self {
            seed,
            settles_after: fates.settles_after,
            settles_within: fates.settles_within,
            deleted_after: fates.deleted_after,
            refused_percent: fates.refused_percent,
            failing_percent: fates.failing_percent,
            vanishing_percent: fates.vanishing_percent,
            vanishes_within: fates.vanishes_within,
            call_delay,
            unavailable_percent,
            missing_namespaces: Vec::new(),
            file: None,
            watched,
        }
    }
}

impl HiveSection {
    /// For a server whose requests may take so long.
    pub(super) fn checked(self, request_timeout: Duration) -> Result<Self, Failure> {
        let longest = longest_wait(request_timeout);
        if let Some(asked) = self.wait_at_most.filter(|asked| *asked > longest) {
            let text = duration_text::format;
            let (asked, longest, limit) = (text(asked), text(longest), text(request_timeout));
            return Err(Failure::usage(format!(
                "hive.wait-at-most is {asked}, and requests end after {limit}: who waits so long would be told that \
                 nobody knows whether it was done\nWrite at most {longest}, or raise limits.request-timeout."
            )));
        }
        let usually = HiveSettings::default().wait_at_most.min(longest);
        let config = Self { wait_at_most: self.wait_at_most.or(Some(usually)), ..self };
        let percent = [
            ("refused-percent", config.simulated.refused_percent),
            ("failing-percent", config.simulated.failing_percent),
            ("vanishing-percent", config.simulated.vanishing_percent),
            ("unavailable-percent", config.simulated.unavailable_percent),
        ];
        if let Some((name, given)) = percent.into_iter().find(|(_, given)| *given > 100) {
            return Err(Failure::usage(format!("hive.simulated.{name} is {given}; write 0 to 100")));
        }
        if config.service.observation.interval_ms == 0 {
            return Err(Failure::usage("hive.service.observation.interval-ms is 0; write 1 or more"));
        }
        if config.poll.is_zero() {
            return Err(Failure::usage("hive.poll is 0; write 1ms or more"));
        }
        config.check_channel()?;
        config.outbox.publisher.check()?;
        config.kubernetes.check()?;
        Ok(config)
    }

    /// Refuses a name that a broker would refuse, or under which the channels could not be told from those of another hive.
    fn check_channel(&self) -> Result<(), Failure> {
        let channel = &self.channel;
        let fits = |one: u8| one.is_ascii_alphanumeric() || b"._-".contains(&one);
        if !(1..=LONGEST_CHANNEL).contains(&channel.len()) || !channel.bytes().all(fits) {
            return Err(Failure::usage(format!(
                "hive.channel is {channel:?}; write 1 to {LONGEST_CHANNEL} letters, digits, dots, _ and -"
            )));
        }
        if let Some(end) = [".observed", ".requested"].into_iter().find(|end| channel.ends_with(end)) {
            return Err(Failure::usage(format!(
                "hive.channel is {channel:?}; a hive without {end} at the end of its name has a channel of that name"
            )));
        }
        Ok(())
    }

    fn settings(&self) -> HiveSettings {
        HiveSettings {
            interval: Duration::from_millis(self.service.observation.interval_ms),
            ready_stale: self.service.observation.ready_stale_duration,
            failure_threshold: self.service.observation.failure_threshold,
            converges_within: self.service.converges_within,
            deleted_within: self.service.deleted_within,
            correct_drift: self.service.correct_drift,
            concurrency: self.concurrency,
            poll: self.poll,
            timeout: self.timeout,
            wait_at_most: self.wait_at_most.unwrap_or(HiveSettings::default().wait_at_most),
            channel: self.channel.clone(),
            publishing: self.outbox.publisher.policy(),
        }
    }

    /// Hive, if it is to run. A simulated cluster is kept in a file beside the store, so that it is there after a restart.
    pub(super) async fn open(self, store: &StoreUrl) -> Result<Option<Hive>, Failure> {
        if !self.enabled {
            return Ok(None);
        }
        let settings = self.settings();
        let gateway: Arc<dyn ServingGateway> = match self.gateway {
            Gateway::Simulated => {
                let file = self.simulated.file.clone().unwrap_or_else(|| beside(store));
                let cluster = SimulatedCluster::new(self.simulated.settings(file.clone()));
                Arc::new(cluster.map_err(|error| {
                    let file = file.display();
                    Failure::usage(format!("the simulated cluster cannot be kept in {file}: {error}"))
                })?)
            }
            Gateway::Kubernetes => self.kubernetes.gateway().await?,
        };
        Ok(Some(Hive::new(settings, gateway)))
    }
}

impl PublisherSection {
    fn policy(&self) -> ChannelPolicy {
        let RetriesSection { first, factor, cap, jitter } = self.retries;
        ChannelPolicy {
            scan: Duration::from_millis(self.fixed_delay_ms),
            batch: self.batch,
            retries: RetryPolicy::Exponential { first, factor, cap, attempts: self.attempts, jitter },
            ..HiveSettings::default().publishing
        }
    }

    fn check(&self) -> Result<(), Failure> {
        for (name, is_zero) in [("fixedDelayMs", self.fixed_delay_ms == 0), ("batch", self.batch == 0)] {
            if is_zero {
                return Err(Failure::usage(format!("hive.outbox.publisher.{name} is 0; write 1 or more")));
            }
        }
        let checked = self.policy().retries.check();
        checked.map_err(|error| Failure::usage(format!("[hive.outbox.publisher]: {error}")))
    }
}

impl SimulatedSection {
    fn settings(self, file: PathBuf) -> SimulatedSettings {
        SimulatedSettings {
            seed: self.seed,
            fates: Fates {
                settles_after: self.settles_after,
                settles_within: self.settles_within,
                deleted_after: self.deleted_after,
                refused_percent: self.refused_percent,
                failing_percent: self.failing_percent,
                vanishing_percent: self.vanishing_percent,
                vanishes_within: self.vanishes_within,
            },
            call_delay: self.call_delay,
            unavailable_percent: self.unavailable_percent,
            missing_namespaces: self.missing_namespaces.into_iter().collect(),
            file: Some(file),
            watched: self.watched,
        }
    }
}

/// A duration that may be missing.
mod optional_duration_text {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        given: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match given {
            Some(duration) => duration_text::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        duration_text::deserialize(deserializer).map(Some)
    }
}

/// Where a simulated cluster is kept when nothing is said.
fn beside(store: &StoreUrl) -> PathBuf {
    match store {
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite { path } => PathBuf::from(path).with_extension("cluster.jsonl"),
        #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
        _ => PathBuf::from("data/towpath.cluster.jsonl"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HiveSection, String> {
        read_within(text, Duration::from_secs(30))
    }

    fn read_within(text: &str, request_timeout: Duration) -> Result<HiveSection, String> {
        let section: HiveSection = toml::from_str(text).map_err(|error| error.to_string())?;
        section.checked(request_timeout).map_err(|failure| failure.message)
    }

    #[test]
    fn the_section_is_read_by_the_names_of_the_source() {
        let text = "service.observation.interval-ms = 500\nservice.observation.ready-stale-duration = \"1m\"\n\
                    [simulated]\nseed = 7\nfailing-percent = 20\nsettles-within = \"3s\"\n";
        let config = read(text).unwrap();
        assert_eq!(config.service.observation.interval_ms, 500);
        assert_eq!(config.service.observation.ready_stale_duration, Duration::from_secs(60));
        assert_eq!((config.simulated.seed, config.simulated.failing_percent), (7, 20));
        let defaults = read("").unwrap().service.observation;
        assert_eq!((defaults.interval_ms, defaults.failure_threshold), (60_000, 1));
        assert_eq!(defaults.ready_stale_duration, Duration::from_secs(900));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(read("service.observation.interval = 1").unwrap_err().contains("interval"));
        assert!(read("gateway = \"cloud\"").unwrap_err().contains("cloud"));
        assert!(read("simulated.failing-percent = 101").unwrap_err().contains("failing-percent"));
        assert!(read("service.observation.interval-ms = 0").unwrap_err().contains("interval-ms"));
        assert!(read("poll = \"0s\"").unwrap_err().contains("hive.poll"));
        for channel in ["", "two words", "café", &"c".repeat(55), "a.observed", "a.requested"] {
            let said = read(&format!("channel = \"{channel}\"")).unwrap_err();
            assert!(said.contains("hive.channel"), "{said}");
        }
        for (wrong, named) in [
            ("fixedDelayMs = 0", "fixedDelayMs"),
            ("batch = 0", "batch"),
            ("attempts = 0", "0 attempts"),
            ("retries.factor = 0.5", "factor"),
            ("retries.first = \"1h\"", "cap"),
            ("fixedDelay = 1", "fixedDelay"),
        ] {
            let said = read(&format!("[outbox.publisher]\n{wrong}\n")).unwrap_err();
            assert!(said.contains(named), "{wrong}: {said}");
        }
    }

    #[test]
    fn without_a_file_it_is_what_hive_does_by_itself() {
        assert_eq!(read("").unwrap().settings(), HiveSettings::default());
    }

    #[test]
    fn the_document_shows_what_holds_without_a_file() {
        let document = include_str!("../../../../../docs/hive.md");
        let example = document.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let mut whole: toml::Table = toml::from_str(example).unwrap();
        let Some(toml::Value::Table(section)) = whole.remove("hive") else { panic!("{example}") };
        assert_eq!(read(&section.to_string()), read(""));
    }

    #[test]
    fn how_and_under_which_name_facts_are_published_can_be_said() {
        let text = "channel = \"hive-of-the-shop\"\n[outbox.publisher]\nfixedDelayMs = 250\nbatch = 7\nattempts = 3\n\
                    retries = { first = \"1s\", factor = 3.0, cap = \"1m\" }\n";
        let settings = read(text).unwrap().settings();
        assert_eq!(settings.channel, "hive-of-the-shop");
        let (first, cap) = (Duration::from_secs(1), Duration::from_secs(60));
        let retries = RetryPolicy::Exponential { first, factor: 3.0, cap, attempts: 3, jitter: 0.2 };
        let expected = ChannelPolicy {
            scan: Duration::from_millis(250),
            batch: 7,
            retries,
            ..HiveSettings::default().publishing
        };
        assert_eq!(settings.publishing, expected);
        let longest = "c".repeat(LONGEST_CHANNEL);
        let settings = read(&format!("channel = \"{longest}\"")).unwrap().settings();
        assert!(towpath::Channel::named(format!("{}.requested", settings.channel), ["*"]).is_ok());
    }

    #[test]
    fn nobody_is_kept_waiting_longer_than_a_request_may_take() {
        let seconds = Duration::from_secs;
        let wait = |text: &str, request| {
            read_within(text, seconds(request)).map(|config| config.wait_at_most.unwrap())
        };
        assert_eq!((wait("", 30), wait("", 600)), (Ok(seconds(20)), Ok(seconds(20))));
        assert_eq!((wait("", 10), wait("", 5)), (Ok(seconds(8)), Ok(seconds(4))), "the default gives way");
        assert_eq!(wait("wait-at-most = \"25s\"", 30), Ok(seconds(25)));
        let said = wait("wait-at-most = \"26s\"", 30).unwrap_err();
        for told in ["hive.wait-at-most is 26s", "end after 30s", "at most 25s", "limits.request-timeout"] {
            assert!(said.contains(told), "{said}");
        }
        assert_eq!(wait("wait-at-most = \"26s\"", 60), Ok(seconds(26)));
        // What holds can be written down, and then holds as well.
        let shown = duration_text::format(wait("", 7).unwrap());
        assert_eq!(wait(&format!("wait-at-most = \"{shown}\""), 7), wait("", 7));
    }
}
