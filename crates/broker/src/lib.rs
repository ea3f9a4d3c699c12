//! Towpath's brokers. All wire formats of the product live here.
//!
//! - [`BrokerUrl`]: which broker a URL means, and what to write instead when it is wrong.
//! - [`envelope_message`]: an event as a message.
//! - `rabbitmq`: RabbitMQ by AMQP 0-9-1, behind the feature `rabbitmq` (on by default).
//! - `kafka`: Kafka, behind the feature `kafka` (off by default: it compiles a C library).

mod format;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
mod said;
mod url;

pub use format::envelope_message;

#[cfg(feature = "kafka")]
pub use kafka::Kafka;
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::RabbitMq;
pub use url::{BadBrokerUrl, BrokerUrl};
