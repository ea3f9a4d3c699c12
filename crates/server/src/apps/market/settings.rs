//! The section `[market]` of the configuration.

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use towpath::BrokerUrl;
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

/// As it holds, by the names of the file.
impl Serialize for MarketSection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut section = toml::Table::new();
        section.insert("enabled".to_owned(), self.enabled.unwrap_or(true).into());
        section.extend(toml::Table::try_from(&self.settings).map_err(S::Error::custom)?);
        section.serialize(serializer)
    }
}

impl MarketSection {
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
        assert_eq!(read_well.settings.order.timeout.pending, Duration::from_secs(3));
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
