//! Why Towpath did not start.

use towpath_broker::BadBrokerUrl;
use towpath_core::decider::RegistrationFlaw;
use towpath_core::format::FormatError;
use towpath_core::ids::InvalidId;
use towpath_core::ports::broker::BrokerError;
use towpath_core::ports::store::StoreError;
use towpath_core::retry::{Coded, ErrorClass};

use crate::config::BadChannels;
use crate::tracker::ChannelError;

/// Why Towpath did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Aggregates that cannot be registered: all that is wrong with them.
    #[error("aggregates cannot be registered:{}", listed(.0))]
    Registration(Vec<RegistrationFlaw>),
    /// A name that is not valid.
    #[error("a configured name is invalid")]
    InvalidName(#[from] InvalidId),
    /// Channels in a file that are not written as they should be.
    #[error("the channels cannot be read")]
    Channels(#[from] BadChannels),
    /// A channel cannot be followed.
    #[error("a channel cannot be followed")]
    Channel(#[from] ChannelError),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// The broker's URL is wrong.
    #[error("the broker cannot be used")]
    BrokerUrl(#[from] BadBrokerUrl),
    /// A channel or a consumer names a format that is not there.
    #[error("{by} has no format")]
    Format {
        /// Who names it.
        by: String,
        /// Which.
        source: FormatError,
    },
    /// Consumers and channels do not fit together.
    #[error("{0}")]
    Wiring(String),
    /// The broker denies access, or its topology is not what was declared.
    #[error("the broker cannot be used")]
    Broker(#[from] BrokerError),
}

impl StartError {
    /// Everything that is wrong, with causes.
    pub fn report(&self) -> String {
        crate::bus::with_causes(self)
    }
}

impl Coded for StartError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Store(error) => error.class(),
            Self::Broker(error) => error.class(),
            Self::Channel(error) => error.class(),
            Self::BrokerUrl(error) => error.class(),
            Self::Format { source, .. } => source.class(),
            Self::InvalidName(_) => ErrorClass::InvalidPayload,
            Self::Registration(_) | Self::Channels(_) | Self::Wiring(_) => ErrorClass::Validation,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Registration(_) => "registration",
            Self::InvalidName(_) => "invalid-id",
            Self::Channels(error) => error.code(),
            Self::Channel(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::BrokerUrl(error) => error.code(),
            Self::Format { source, .. } => source.code(),
            Self::Wiring(_) => "wiring",
            Self::Broker(error) => error.code(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Registration(_) => "Each flaw names the aggregate and what to write instead.",
            Self::InvalidName(_) => "Correct what the cause names.",
            Self::Channels(error) => error.next_step(),
            Self::Channel(error) => error.next_step(),
            Self::Store(error) => error.next_step(),
            Self::BrokerUrl(error) => error.next_step(),
            Self::Format { source, .. } => source.next_step(),
            Self::Wiring(_) => "Correct what the message names.",
            Self::Broker(error) => error.next_step(),
        }
    }
}

/// A line for each flaw, with its causes.
fn listed(flaws: &[RegistrationFlaw]) -> String {
    flaws.iter().map(|flaw| format!("\n- {}", crate::bus::with_causes(flaw))).collect()
}
