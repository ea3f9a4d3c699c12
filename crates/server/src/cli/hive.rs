//! Hive on this server: its section of the configuration, and `towpath hive`.

mod kubernetes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use towpath::retry::duration_text;
use towpath::{SqlStore, StoreUrl};
use towpath_hive::gateway::ServingGateway;
use towpath_hive::gateway::simulated::{Fates, SimulatedCluster, SimulatedSettings};
use towpath_hive::{Hive, HiveSettings};

use self::kubernetes::KubernetesSection;
use super::client::HiveAlerts;
use super::config::ServeFlags;
use super::migrate::failure;
use super::{Failure, output};

/// What `towpath hive` can do.
#[derive(Subcommand)]
pub(crate) enum HiveCommand {
    /// Make the read models anew from the log; the server may run meanwhile
    Rebuild(ServeFlags),
    /// What an operator should know of the platform: its outages, the last one first
    Alerts(HiveAlerts),
}

/// The `[hive]` section of a file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct HiveConfig {
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
    /// How long a caller with `wait` is kept at most.
    #[serde(with = "duration_text")]
    wait_at_most: Duration,
    service: ServiceSection,
    simulated: SimulatedSection,
    kubernetes: KubernetesSection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Gateway {
    Simulated,
    Kubernetes,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct ServiceSection {
    observation: ObservationSection,
}

/// The names are the source's.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct ObservationSection {
    interval_ms: u64,
    #[serde(with = "duration_text")]
    ready_stale_duration: Duration,
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

impl Default for HiveConfig {
    fn default() -> Self {
        let HiveSettings { concurrency, poll, timeout, wait_at_most, .. } = HiveSettings::default();
        Self {
            enabled: true,
            gateway: Gateway::Simulated,
            concurrency,
            poll,
            timeout,
            wait_at_most,
            service: ServiceSection::default(),
            simulated: SimulatedSection::default(),
            kubernetes: KubernetesSection::default(),
        }
    }
}

impl Default for ObservationSection {
    fn default() -> Self {
        let HiveSettings { interval, ready_stale, failure_threshold, .. } = HiveSettings::default();
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        Self { interval_ms, ready_stale_duration: ready_stale, failure_threshold }
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

impl HiveConfig {
    /// Reads the section.
    pub(crate) fn read(section: toml::Table) -> Result<Self, Failure> {
        let config: Self = toml::Value::Table(section).try_into().map_err(|error: toml::de::Error| {
            Failure::usage(format!("[hive] in the configuration file is wrong: {error}"))
        })?;
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
        config.kubernetes.check()?;
        Ok(config)
    }

    /// Hive, if it is to run. A simulated cluster is kept in a file beside the store, so that it is there after a restart.
    pub(crate) async fn open(self, store: &StoreUrl) -> Result<Option<Hive>, Failure> {
        if !self.enabled {
            return Ok(None);
        }
        let settings = HiveSettings {
            interval: Duration::from_millis(self.service.observation.interval_ms),
            ready_stale: self.service.observation.ready_stale_duration,
            failure_threshold: self.service.observation.failure_threshold,
            concurrency: self.concurrency,
            poll: self.poll,
            timeout: self.timeout,
            wait_at_most: self.wait_at_most,
            ..HiveSettings::default()
        };
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

/// Where a simulated cluster is kept when nothing is said.
fn beside(store: &StoreUrl) -> PathBuf {
    match store {
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite { path } => PathBuf::from(path).with_extension("cluster.jsonl"),
        #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
        _ => PathBuf::from("data/towpath.cluster.jsonl"),
    }
}

/// Runs `towpath hive`.
pub(crate) async fn run(command: HiveCommand) -> Result<(), Failure> {
    let flags = match command {
        HiveCommand::Rebuild(flags) => flags,
        HiveCommand::Alerts(alerts) => return alerts.run().await,
    };
    let config = flags.config()?;
    let stale = config.hive.service.observation.ready_stale_duration;
    let store = SqlStore::connect(&config.store).await.map_err(|error| failure(&error))?;
    let rebuilt = towpath_hive::rebuild(&store, stale).await;
    store.close().await;
    let rebuilt = rebuilt.map_err(|error| {
        Failure::unreachable(format!("the read models stay as they were: {error} [{}]", error.code()))
    })?;
    output::line(&format!("{} services, made anew from {} facts", rebuilt.services, rebuilt.facts));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HiveConfig, String> {
        HiveConfig::read(toml::from_str(text).unwrap()).map_err(|failure| failure.message)
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
    }
}
