//! What can be configured: the `[market]` section of the server's file.

use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use towpath::retry::{RetryPolicy, duration_text, duration_texts};
use towpath::{Application, Builder, ChannelPolicy};

use crate::Market;

/// How the market works. The defaults are the contract's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, remote = "Self")]
#[allow(missing_docs, reason = "the types say it")]
pub struct Settings {
    pub order: OrderSettings,
    pub outbox: OutboxSettings,
    pub consumer: ConsumerSettings,
    pub alarm: AlarmSettings,
}

/// What holds for orders.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OrderSettings {
    /// Whether a step needs somebody who does it ([`Market::acting`]).
    pub actor_required: bool,
    /// When one is closed that nobody pays.
    pub timeout: TimeoutSettings,
}

/// When an order is closed that nobody pays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TimeoutSettings {
    /// How long it may stay unpaid.
    #[serde(
        rename = "pending-minutes",
        serialize_with = "duration_text::serialize",
        deserialize_with = "minutes"
    )]
    pub pending: Duration,
    /// How often unpaid orders are looked for without the broker.
    #[serde(with = "duration_text")]
    pub scan: Duration,
    /// Whether they are looked for at all.
    pub scan_enabled: bool,
    /// How many of them are read at a time.
    pub scan_batch: u32,
}

impl Default for TimeoutSettings {
    fn default() -> Self {
        let [pending, scan] = [15 * 60, 60].map(Duration::from_secs);
        Self { pending, scan, scan_enabled: true, scan_batch: 200 }
    }
}

/// How events are published. Each row for itself: the contract says which rows are due by their own status and time, and a
/// failed one holds none back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OutboxSettings {
    /// How many rows are taken at a time.
    pub batch: u32,
    /// How often the outbox is looked at without being woken.
    #[serde(with = "duration_text")]
    pub scan: Duration,
    /// After which delays a failed row is tried again; then it is given up.
    #[serde(with = "duration_texts")]
    pub retries: Vec<Duration>,
    /// Whether a broker that is away uses up attempts.
    pub counts_absence: bool,
    /// How long a batch waits for the broker's confirms.
    #[serde(skip)]
    pub patience: Duration,
}

impl Default for OutboxSettings {
    fn default() -> Self {
        let retries = [5, 30, 120].map(Duration::from_secs).into();
        let patience = ChannelPolicy::default().patience;
        Self { batch: 200, scan: Duration::from_secs(5), retries, counts_absence: false, patience }
    }
}

impl OutboxSettings {
    pub(crate) fn policy(&self) -> ChannelPolicy {
        let Self { batch, scan, retries, counts_absence, patience } = self.clone();
        let retries = RetryPolicy::Fixed(retries);
        ChannelPolicy {
            batch,
            scan,
            retries,
            in_order: false,
            patience,
            counts_absence,
            largest_message: None,
        }
    }
}

/// How messages are handled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConsumerSettings {
    /// How many deliveries are fetched ahead.
    pub prefetch: u16,
    /// How many of a queue are handled at a time.
    pub concurrency: usize,
    /// The failure of a delivery that is the last.
    pub attempts: u32,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self { prefetch: 20, concurrency: 4, attempts: 5 }
    }
}

/// When people are told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlarmSettings {
    /// How much a queue may hold before an alarm is raised.
    pub queue_depth: u64,
    /// How often the queues are looked at.
    #[serde(with = "duration_text")]
    pub queue_scan: Duration,
}

impl Default for AlarmSettings {
    fn default() -> Self {
        Self { queue_depth: 1000, queue_scan: Duration::from_secs(30) }
    }
}

/// Until Towpath runs, the market is how it is to work.
impl Application for Settings {
    const NAME: &'static str = "market";

    fn install(&self, builder: Builder) -> Builder {
        Market::install(builder, self)
    }
}

// What was read is checked as a whole.
impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = Self::deserialize(deserializer)?;
        settings.check().map_err(de::Error::custom)?;
        Ok(settings)
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// The longest time that an order may stay unpaid: RabbitMQ keeps a TTL in 32 bits of milliseconds.
const LONGEST_PENDING: Duration = Duration::from_secs(49 * 86_400);

impl Settings {
    /// What cannot work, in words.
    fn check(&self) -> Result<(), String> {
        let Self { order: OrderSettings { timeout, .. }, outbox, consumer, alarm } = self;
        if timeout.pending < Duration::from_millis(1) || timeout.pending > LONGEST_PENDING {
            return Err("order.timeout.pending-minutes is not between a millisecond and 49 days".to_owned());
        }
        let zeroes = [
            ("order.timeout.scan", timeout.scan.is_zero()),
            ("order.timeout.scan-batch", timeout.scan_batch == 0),
            ("outbox.batch", outbox.batch == 0),
            ("outbox.scan", outbox.scan.is_zero()),
            ("consumer.prefetch", consumer.prefetch == 0),
            ("consumer.concurrency", consumer.concurrency == 0),
            ("consumer.attempts", consumer.attempts == 0),
            ("alarm.queue-scan", alarm.queue_scan.is_zero()),
        ];
        if let Some((key, _)) = zeroes.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(format!("{key} is 0"));
        }
        outbox.policy().retries.check().map_err(|error| error.to_string())
    }
}

/// Minutes, whole or not; or a duration in words, for less than a minute.
fn minutes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Either;
    impl Visitor<'_> for Either {
        type Value = Duration;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("minutes such as 15 or 0.5, or a duration such as \"30s\"")
        }

        fn visit_i64<E: de::Error>(self, minutes: i64) -> Result<Duration, E> {
            let seconds = u64::try_from(minutes).ok().and_then(|minutes| minutes.checked_mul(60));
            let invalid = || E::invalid_value(de::Unexpected::Signed(minutes), &self);
            seconds.map(Duration::from_secs).ok_or_else(invalid)
        }

        fn visit_f64<E: de::Error>(self, minutes: f64) -> Result<Duration, E> {
            let duration = Duration::try_from_secs_f64(minutes * 60.0);
            duration.map_err(|_| E::invalid_value(de::Unexpected::Float(minutes), &self))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            duration_text::parse(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Either)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn an_empty_section_is_the_contract() {
        let settings = read("").unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(settings.order.timeout.pending, Duration::from_secs(900));
        let outbox = settings.outbox.policy();
        assert_eq!(
            (settings.consumer.prefetch, outbox.batch, outbox.scan),
            (20, 200, Duration::from_secs(5))
        );
        assert!(!outbox.in_order, "a row is due by its own status and time");
        let delays: Vec<_> = (1..=4).map(|failures| outbox.retries.next_delay(failures, 0.0)).collect();
        assert_eq!(
            delays,
            [Some(5), Some(30), Some(120), None].map(|seconds| seconds.map(Duration::from_secs))
        );
        assert_eq!(settings.alarm.queue_depth, 1000);
        assert!(read("outbox.counts-absence = true").unwrap().outbox.policy().counts_absence);
        let wants_actors = read("order.actor-required = true").unwrap().order.actor_required;
        assert!(!settings.order.actor_required && wants_actors);
    }

    #[test]
    fn the_time_to_pay_goes_down_to_seconds() {
        for (written, seconds) in [("15", 900.0), ("0.05", 3.0), ("\"30s\"", 30.0), ("\"1m30s\"", 90.0)] {
            let settings = read(&format!("order.timeout.pending-minutes = {written}")).unwrap();
            let pending = settings.order.timeout.pending;
            assert!((pending.as_secs_f64() - seconds).abs() < 1e-6, "{written}: {pending:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_its_key() {
        for (text, told) in [
            ("order.timeout.pending-minutes = 0", "pending-minutes"),
            ("order.timeout.pending-minutes = -1", "minutes such as"),
            ("order.timeout.pending-minutes = \"soon\"", "soon"),
            ("order.timeout.pending-minuts = 1", "pending-minuts"),
            ("outbox.batch = 0", "outbox.batch"),
            ("consumer.prefetch = 0", "consumer.prefetch"),
            ("alarm.queue-scan = \"0s\"", "alarm.queue-scan"),
            ("orders = 1", "orders"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
