//! The market on this server: its section of the configuration, and `towpath market`.

use clap::Subcommand;
use towpath::BrokerUrl;
use towpath::retry::{RetryPolicy, duration_text};
use towpath_market::{Settings, topology};

use super::client::{MarketNotifications, MarketOrders, MarketProducts};
use super::config::ServeFlags;
use super::{Failure, output};

/// What `towpath market` can do.
#[derive(Subcommand)]
pub(crate) enum MarketCommand {
    /// Print the exchanges, queues and bindings that the market declares on its broker
    Topology {
        #[command(flatten)]
        flags: ServeFlags,

        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Products, by their numbers
    Products(MarketProducts),
    /// Orders, by their numbers
    Orders(MarketOrders),
    /// What somebody was told about orders
    Notifications(MarketNotifications),
}

/// The `[market]` section of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct MarketConfig {
    /// Whether somebody has said that it is to run, or not to.
    enabled: Option<bool>,
    settings: Settings,
}

impl MarketConfig {
    /// Reads the section.
    pub(crate) fn read(mut section: toml::Table) -> Result<Self, Failure> {
        let enabled = match section.remove("enabled") {
            None => None,
            Some(toml::Value::Boolean(enabled)) => Some(enabled),
            Some(other) => {
                return Err(Failure::usage(format!("market.enabled is {other}; write true or false")));
            }
        };
        let settings = toml::Value::Table(section).try_into().map_err(|error: toml::de::Error| {
            Failure::usage(format!("[market] in the configuration file is wrong: {error}"))
        })?;
        Ok(Self { enabled, settings })
    }

    /// The section as it holds, by the names of the file.
    pub(super) fn effective(&self) -> toml::Table {
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
    pub(crate) fn on(self, broker: &BrokerUrl) -> Result<Option<Settings>, Failure> {
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

/// Runs `towpath market`.
pub(crate) async fn run(command: MarketCommand) -> Result<(), Failure> {
    let (flags, json) = match command {
        MarketCommand::Topology { flags, json } => (flags, json),
        MarketCommand::Products(products) => return products.run().await,
        MarketCommand::Orders(orders) => return orders.run().await,
        MarketCommand::Notifications(notifications) => return notifications.run().await,
    };
    let topology = topology::topology(flags.config()?.market.settings.pending);
    if json {
        let text = serde_json::to_string_pretty(&topology)
            .map_err(|error| Failure::usage(format!("the topology cannot be written: {error}")))?;
        output::line(&text);
    } else {
        output::line(&topology::described(&topology));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<MarketConfig, String> {
        MarketConfig::read(toml::from_str(text).unwrap()).map_err(|failure| failure.message)
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
