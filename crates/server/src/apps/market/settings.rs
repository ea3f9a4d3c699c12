//! The section `[market]` of the configuration.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use towpath::BrokerUrl;
use towpath::retry::{RetryPolicy, duration_text};
use towpath_market::Settings;

use crate::Failure;

/// The `[market]` section of a file.
#[derive(Debug, Clone, Default)]
pub struct MarketSection {
    /// Whether somebody has said that it is to run, or not to.
    enabled: Option<bool>,
    pub(super) settings: Settings,
}

impl<'de> Deserialize<'de> for MarketSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut section = toml::Table::deserialize(deserializer)?;
        let enabled = match section.remove("enabled") {
            None => None,
            Some(toml::Value::Boolean(enabled)) => Some(enabled),
            Some(other) => {
                return Err(D::Error::custom(format!("market.enabled is {other}; write true or false")));
            }
        };
        let settings = toml::Value::Table(section).try_into().map_err(D::Error::custom)?;
        Ok(Self { enabled, settings })
    }
}

impl Serialize for MarketSection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.effective().serialize(serializer)
    }
}

impl MarketSection {
    /// The section as it holds, by the names of the file.
    fn effective(&self) -> toml::Table {
        let settings = &self.settings;
        let duration = |duration| toml::Value::from(duration_text::format(duration));
        let number = |number: u64| toml::Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let mut timeout = toml::Table::new();
        timeout.insert("pending-minutes".to_owned(), duration(settings.pending));
        timeout.insert("scan".to_owned(), duration(settings.scan));
        timeout.insert("scan-enabled".to_owned(), settings.scan_enabled.into());
        timeout.insert("scan-batch".to_owned(), number(settings.scan_batch.into()));
        let mut outbox = toml::Table::new();
        outbox.insert("batch".to_owned(), number(settings.outbox.batch.into()));
        outbox.insert("scan".to_owned(), duration(settings.outbox.scan));
        if let RetryPolicy::Fixed(delays) = &settings.outbox.retries {
            let delays = delays.iter().copied().map(duration).collect();
            outbox.insert("retries".to_owned(), toml::Value::Array(delays));
        }
        outbox.insert("counts-absence".to_owned(), settings.outbox.counts_absence.into());
        let mut consumer = toml::Table::new();
        consumer.insert("prefetch".to_owned(), number(settings.prefetch.into()));
        consumer.insert("concurrency".to_owned(), number(settings.concurrency as u64));
        consumer.insert("attempts".to_owned(), number(settings.attempts.into()));
        let mut alarm = toml::Table::new();
        alarm.insert("queue-depth".to_owned(), number(settings.queue_depth));
        alarm.insert("queue-scan".to_owned(), duration(settings.queue_scan));
        let order = toml::Table::from_iter([
            ("actor-required".to_owned(), settings.actor_required.into()),
            ("timeout".to_owned(), toml::Value::Table(timeout)),
        ]);
        let mut section = toml::Table::new();
        section.insert("enabled".to_owned(), self.enabled.unwrap_or(true).into());
        for (name, table) in [("order", order), ("outbox", outbox), ("consumer", consumer), ("alarm", alarm)]
        {
            section.insert(name.to_owned(), table.into());
        }
        section
    }

    /// The market's settings if it is to run on this broker. Its contract is about queues with a time to live and
    /// dead-letter exchanges, which Kafka does not have: there it only runs by mistake, and that is refused.
    pub(super) fn on(self, broker: &BrokerUrl) -> Result<Option<Settings>, Failure> {
        match (broker, self.enabled) {
            (BrokerUrl::Kafka { .. }, Some(true)) => Err(Failure::usage(
                "market.enabled is true, and the market needs queues with delays and dead letters, which Kafka does \
                 not have; use local: or amqp://, or write enabled = false",
            )),
            (BrokerUrl::Kafka { .. }, _) | (_, Some(false)) => Ok(None),
            (BrokerUrl::Local | BrokerUrl::Amqp { .. }, _) => Ok(Some(self.settings)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<MarketSection, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn the_section_is_read_and_what_is_wrong_is_named() {
        let read_well = read("enabled = true\norder.timeout.pending-minutes = 0.05").unwrap();
        assert_eq!(read_well.settings.pending, Duration::from_secs(3));
        assert!(read("enabled = 1").unwrap_err().contains("market.enabled"));
        assert!(read("order.timeout.pendin-minutes = 1").unwrap_err().contains("pendin-minutes"));
    }

    #[test]
    fn it_runs_unless_told_otherwise_and_never_on_kafka() {
        let kafka = BrokerUrl::Kafka { url: "kafka://localhost:9092".to_owned() };
        assert!(read("").unwrap().on(&BrokerUrl::Local).ok().unwrap().is_some());
        assert!(read("enabled = false").unwrap().on(&BrokerUrl::Local).ok().unwrap().is_none());
        assert!(read("").unwrap().on(&kafka).ok().unwrap().is_none());
        assert!(read("enabled = true").unwrap().on(&kafka).err().unwrap().message.contains("Kafka"));
    }
}
