//! What can be configured: the `[market]` section of the server's file.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use towpath::ports::clock::Clock;
use towpath::retry::{RetryPolicy, duration_text};
use towpath::{Application, Builder, ChannelPolicy, SystemClock};

use crate::Market;

/// How the market works. The defaults are the contract's.
#[derive(Clone)]
pub struct Settings {
    /// How long an order may stay unpaid (`order.timeout.pending-minutes`).
    pub pending: Duration,
    /// How often unpaid orders are looked for without the broker.
    pub scan: Duration,
    /// Whether they are looked for at all.
    pub scan_enabled: bool,
    /// How many of them are read at a time.
    pub scan_batch: u32,
    /// How events are published.
    pub outbox: ChannelPolicy,
    /// How many deliveries are fetched ahead.
    pub prefetch: u16,
    /// How many of a queue are handled at a time.
    pub concurrency: usize,
    /// The failure of a delivery that is the last.
    pub attempts: u32,
    /// How much a queue may hold before an alarm is raised.
    pub queue_depth: u64,
    /// How often the queues are looked at.
    pub queue_scan: Duration,
    /// Whether a step needs somebody who does it ([`Market::acting`](crate::Market::acting)).
    pub actor_required: bool,
    /// The host's clock. It is only asked on SQLite: on a server the database's own time counts, because other hosts
    /// compare what is written.
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pending: Duration::from_secs(15 * 60),
            scan: Duration::from_secs(60),
            scan_enabled: true,
            scan_batch: 200,
            outbox: outbox(),
            prefetch: 20,
            concurrency: 4,
            attempts: 5,
            queue_depth: 1000,
            queue_scan: Duration::from_secs(30),
            actor_required: false,
            clock: Arc::new(SystemClock),
        }
    }
}

/// O4: 200 at a time, every 5 s, again after 5 s, 30 s and 2 minutes, then given up. Each row for itself: the contract says
/// which rows are due by their own status and time, and a failed one holds none back.
fn outbox() -> ChannelPolicy {
    ChannelPolicy {
        batch: 200,
        scan: Duration::from_secs(5),
        retries: RetryPolicy::Fixed([5, 30, 120].map(Duration::from_secs).into()),
        in_order: false,
        ..ChannelPolicy::default()
    }
}

/// Until Towpath runs, the market is how it is to work.
impl Application for Settings {
    const NAME: &'static str = "market";

    fn install(&self, builder: Builder) -> Builder {
        Market::install(builder, self)
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("pending", &self.pending)
            .field("scan", &self.scan)
            .field("scan_enabled", &self.scan_enabled)
            .finish_non_exhaustive()
    }
}

/// As it stands in a file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Written {
    #[serde(default)]
    order: WrittenOrder,
    #[serde(default)]
    outbox: WrittenOutbox,
    #[serde(default)]
    consumer: WrittenConsumer,
    #[serde(default)]
    alarm: WrittenAlarm,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenOrder {
    actor_required: Option<bool>,
    #[serde(default)]
    timeout: WrittenTimeout,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenTimeout {
    pending_minutes: Option<Minutes>,
    scan: Option<WrittenDuration>,
    scan_enabled: Option<bool>,
    scan_batch: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenOutbox {
    batch: Option<u32>,
    scan: Option<WrittenDuration>,
    retries: Option<Vec<WrittenDuration>>,
    counts_absence: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenConsumer {
    prefetch: Option<u16>,
    concurrency: Option<usize>,
    attempts: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenAlarm {
    queue_depth: Option<u64>,
    queue_scan: Option<WrittenDuration>,
}

#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct WrittenDuration(#[serde(with = "duration_text")] Duration);

/// Minutes, whole or not; or a duration in words, for less than a minute.
#[derive(Debug)]
struct Minutes(Duration);

impl<'de> Deserialize<'de> for Minutes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Minutes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("minutes such as 15 or 0.5, or a duration such as \"30s\"")
            }

            fn visit_i64<E: de::Error>(self, minutes: i64) -> Result<Minutes, E> {
                let seconds = u64::try_from(minutes).ok().and_then(|minutes| minutes.checked_mul(60));
                seconds
                    .map(|seconds| Minutes(Duration::from_secs(seconds)))
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(minutes), &self))
            }

            fn visit_f64<E: de::Error>(self, minutes: f64) -> Result<Minutes, E> {
                let duration = Duration::try_from_secs_f64(minutes * 60.0);
                duration.map(Minutes).map_err(|_| E::invalid_value(de::Unexpected::Float(minutes), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Minutes, E> {
                duration_text::parse(text).map(Minutes).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { order: WrittenOrder { actor_required, timeout }, outbox, consumer, alarm } =
            Written::deserialize(deserializer)?;
        let usual = Self::default();
        let mut settings = Self {
            pending: timeout.pending_minutes.map_or(usual.pending, |minutes| minutes.0),
            scan: timeout.scan.map_or(usual.scan, |scan| scan.0),
            scan_enabled: timeout.scan_enabled.unwrap_or(usual.scan_enabled),
            scan_batch: timeout.scan_batch.unwrap_or(usual.scan_batch),
            prefetch: consumer.prefetch.unwrap_or(usual.prefetch),
            concurrency: consumer.concurrency.unwrap_or(usual.concurrency),
            attempts: consumer.attempts.unwrap_or(usual.attempts),
            queue_depth: alarm.queue_depth.unwrap_or(usual.queue_depth),
            queue_scan: alarm.queue_scan.map_or(usual.queue_scan, |scan| scan.0),
            actor_required: actor_required.unwrap_or(usual.actor_required),
            ..usual
        };
        if let Some(batch) = outbox.batch {
            settings.outbox.batch = batch;
        }
        if let Some(WrittenDuration(scan)) = outbox.scan {
            settings.outbox.scan = scan;
        }
        if let Some(counts_absence) = outbox.counts_absence {
            settings.outbox.counts_absence = counts_absence;
        }
        if let Some(retries) = outbox.retries {
            let delays = retries.into_iter().map(|delay| delay.0).collect();
            settings.outbox.retries = towpath::retry::RetryPolicy::Fixed(delays);
            settings.outbox.retries.check().map_err(de::Error::custom)?;
        }
        settings.check().map_err(de::Error::custom)?;
        Ok(settings)
    }
}

/// The longest time that an order may stay unpaid: RabbitMQ keeps a TTL in 32 bits of milliseconds.
const LONGEST_PENDING: Duration = Duration::from_secs(49 * 86_400);

impl Settings {
    /// What cannot work, in words.
    fn check(&self) -> Result<(), String> {
        if self.pending < Duration::from_millis(1) || self.pending > LONGEST_PENDING {
            return Err("order.timeout.pending-minutes is not between a millisecond and 49 days".to_owned());
        }
        for (key, is_zero) in [
            ("order.timeout.scan", self.scan.is_zero()),
            ("order.timeout.scan-batch", self.scan_batch == 0),
            ("outbox.batch", self.outbox.batch == 0),
            ("outbox.scan", self.outbox.scan.is_zero()),
            ("consumer.prefetch", self.prefetch == 0),
            ("consumer.concurrency", self.concurrency == 0),
            ("consumer.attempts", self.attempts == 0),
            ("alarm.queue-scan", self.queue_scan.is_zero()),
        ] {
            if is_zero {
                return Err(format!("{key} is 0"));
            }
        }
        Ok(())
    }
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
        assert_eq!(settings.pending, Duration::from_secs(900));
        let outbox = settings.outbox;
        assert_eq!((settings.prefetch, outbox.batch, outbox.scan), (20, 200, Duration::from_secs(5)));
        assert!(!outbox.in_order, "a row is due by its own status and time");
        let delays: Vec<_> = (1..=4).map(|failures| outbox.retries.next_delay(failures, 0.0)).collect();
        assert_eq!(
            delays,
            [Some(5), Some(30), Some(120), None].map(|seconds| seconds.map(Duration::from_secs))
        );
        assert_eq!(settings.queue_depth, 1000);
        assert!(read("outbox.counts-absence = true").unwrap().outbox.counts_absence);
        assert!(!settings.actor_required && read("order.actor-required = true").unwrap().actor_required);
    }

    #[test]
    fn the_time_to_pay_goes_down_to_seconds() {
        for (written, seconds) in [("15", 900.0), ("0.05", 3.0), ("\"30s\"", 30.0), ("\"1m30s\"", 90.0)] {
            let settings = read(&format!("order.timeout.pending-minutes = {written}")).unwrap();
            assert!(
                (settings.pending.as_secs_f64() - seconds).abs() < 1e-6,
                "{written}: {:?}",
                settings.pending
            );
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
