//! Towpath's brokers. Towpath's own wire formats live here; an application brings its own.
//!
//! - [`BrokerUrl`]: which broker a URL means, and what to write instead when it is wrong.
//! - [`Formats`]: an event as a message, in Towpath's format, CloudEvents or an application's own, and back.
//! - [`local`]: in this process, through the store.
//! - `rabbitmq`: RabbitMQ by AMQP 0-9-1, behind the feature `rabbitmq` (on by default).
//! - `kafka`: Kafka, behind the feature `kafka` (off by default: it compiles a C library).

mod deadline;
mod format;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod local;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
mod said;
mod url;

pub use format::{EVENT_ID_HEADER, Formats};
#[cfg(feature = "kafka")]
pub use kafka::Kafka;
pub use local::{LocalBroker, LocalOptions};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::RabbitMq;
pub use url::{BadBrokerUrl, BrokerUrl};
