//! Handles that the services hold: made at the start, so that counting looks nothing up.

use std::collections::HashMap;
use std::time::Duration;

use towpath_core::ports::broker::{Published, Settlement};

use super::facade::{Counter, Histogram};
use super::table;
use crate::bus::{Receipt, SendError};
use crate::operations::Outcome;
use crate::registry::Registry;

/// What the command bus and the sequencer count.
pub(crate) struct Meters {
    commands: HashMap<String, CommandMeters>,
    events: HashMap<String, Counter>,
    pub(crate) unknown_commands: Counter,
    pub(crate) positioned: Counter,
    operations: [(Outcome, Counter); 4],
}

/// What is counted of one type of command.
pub(crate) struct CommandMeters {
    completed: Counter,
    replayed: Counter,
    refused: Counter,
    failed: Counter,
    busy: Counter,
    unanswered: Counter,
    duration: Histogram,
    pub(crate) retries: Counter,
    pub(crate) conflicts: Counter,
}

impl Meters {
    pub(crate) fn of(registry: &Registry) -> Self {
        table::ALL.iter().for_each(super::Metric::describe);
        let commands = registry.command_types().into_iter();
        let of_entities = registry.entities().flat_map(|entity| entity.events());
        let events = registry.deciders().flat_map(|decider| decider.events()).chain(of_entities);
        Self {
            commands: commands.map(|name| (name.to_owned(), CommandMeters::of(name))).collect(),
            events: events
                .map(|event| (event.as_str().to_owned(), table::EVENTS.counter(&[event.as_str()])))
                .collect(),
            unknown_commands: table::COMMANDS_UNKNOWN.counter(&[]),
            positioned: table::LOG_POSITIONED.counter(&[]),
            operations: Outcome::ALL.map(|(outcome, name)| (outcome, table::OPERATIONS.counter(&[name]))),
        }
    }

    /// Counts operations that ended so.
    pub(crate) fn operation(&self, outcome: Outcome) -> &Counter {
        let counter = self.operations.iter().find(|(known, _)| *known == outcome);
        counter.map_or(&self.operations[0].1, |(_, counter)| counter)
    }

    pub(crate) fn command(&self, name: &str) -> Option<&CommandMeters> {
        self.commands.get(name)
    }

    /// Counts events that are committed.
    pub(crate) fn committed<'n>(&self, event_types: impl Iterator<Item = &'n str>) {
        for name in event_types {
            // What no aggregate has registered has no label of its own.
            if let Some(counter) = self.events.get(name) {
                counter.increment(1);
            }
        }
    }
}

impl CommandMeters {
    fn of(name: &str) -> Self {
        let answered = |status| table::COMMANDS.counter(&[name, status]);
        Self {
            completed: answered("completed"),
            replayed: answered("replayed"),
            refused: answered("refused"),
            failed: answered("failed"),
            busy: answered("busy"),
            unanswered: answered("unanswered"),
            duration: table::COMMAND_DURATION.histogram(&[name]),
            retries: table::COMMAND_RETRIES.counter(&[name]),
            conflicts: table::COMMAND_CONFLICTS.counter(&[name]),
        }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, answer: &Result<Receipt, SendError>, took: Duration) {
        self.duration.record(took.as_secs_f64());
        let counter = match answer {
            Ok(receipt) if receipt.replayed => &self.replayed,
            Ok(_) => &self.completed,
            Err(SendError::StillProcessing(_) | SendError::IdReused(_)) => &self.busy,
            Err(SendError::Store(_) | SendError::Stopped) => &self.unanswered,
            Err(
                SendError::Failed { .. }
                | SendError::Panicked { .. }
                | SendError::Undecidable { .. }
                | SendError::UnreadableState { .. },
            ) => &self.failed,
            Err(
                SendError::Refused { .. }
                | SendError::IllegalTransition(_)
                | SendError::VersionMismatch { .. }
                | SendError::NoLongerWaiting(_)
                | SendError::TooLarge { .. }
                | SendError::InvalidPayload { .. }
                | SendError::InvalidId(_)
                | SendError::UnknownCommand(_)
                | SendError::InternalCommand(_)
                | SendError::UnknownAggregate(_)
                | SendError::ExpectingLater,
            ) => &self.refused,
        };
        counter.increment(1);
    }
}

/// What is counted of one channel.
pub(crate) struct ChannelMeters {
    confirmed: Counter,
    returned: Counter,
    refused: Counter,
    unknown: Counter,
    not_sent: Counter,
    delay: Histogram,
    pub(crate) retries: Counter,
    pub(crate) given_up: Counter,
}

impl ChannelMeters {
    pub(crate) fn of(channel: &str) -> Self {
        let published = |outcome| table::PUBLISHED.counter(&[channel, outcome]);
        Self {
            confirmed: published("confirmed"),
            returned: published("returned"),
            refused: published("refused"),
            unknown: published("unknown"),
            not_sent: published("not-sent"),
            delay: table::PUBLISH_DELAY.histogram(&[channel]),
            retries: table::PUBLISH_RETRIES.counter(&[channel]),
            given_up: table::PUBLISH_GIVEN_UP.counter(&[channel]),
        }
    }

    /// Counts how attempts to publish ended.
    pub(crate) fn published(&self, answers: &[Published]) {
        let mut confirmed = 0;
        for answer in answers {
            match answer {
                Published::Confirmed => confirmed += 1,
                Published::Unroutable { .. } => self.returned.increment(1),
                Published::Refused { .. } | Published::NotTaken { .. } => self.refused.increment(1),
                Published::Unknown { .. } => self.unknown.increment(1),
                Published::NotSent { .. } => self.not_sent.increment(1),
            }
        }
        if confirmed > 0 {
            self.confirmed.increment(confirmed);
        }
    }

    /// Measures how long an event took to be confirmed. One of another host's clock may seem to come from the future.
    pub(crate) fn delayed(&self, delay: chrono::Duration) {
        self.delay.record(delay.to_std().unwrap_or_default().as_secs_f64());
    }
}

/// What is counted of one consumer.
pub(crate) struct ConsumerMeters {
    pub(crate) received: Counter,
    acknowledged: Counter,
    requeued: Counter,
    rejected: Counter,
    at_once: Counter,
    later: Counter,
    back: Counter,
    dead: Counter,
    duration: Histogram,
    pub(crate) handled: Counter,
    pub(crate) duplicates: Counter,
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another attempt, at once.
    AtOnce,
    /// It is set aside.
    Later,
    /// It goes back to the broker.
    Requeued,
    /// It is given up.
    Dead,
}

impl ConsumerMeters {
    pub(crate) fn of(queue: &str, consumer: &str) -> Self {
        let settled = |settlement| table::SETTLED.counter(&[queue, consumer, settlement]);
        let failed = |next| table::HANDLER_FAILURES.counter(&[queue, consumer, next]);
        let inbox = |result| table::INBOX.counter(&[consumer, result]);
        Self {
            received: table::RECEIVED.counter(&[queue, consumer]),
            acknowledged: settled("ack"),
            requeued: settled("requeue"),
            rejected: settled("reject"),
            at_once: failed("at-once"),
            later: failed("later"),
            back: failed("requeue"),
            dead: failed("dead"),
            duration: table::HANDLER_DURATION.histogram(&[queue, consumer]),
            handled: inbox("handled"),
            duplicates: inbox("duplicate"),
        }
    }

    /// Counts messages that were settled.
    pub(crate) fn settled(&self, settlement: Settlement, count: usize) {
        let counter = match settlement {
            Settlement::Acknowledge => &self.acknowledged,
            Settlement::Requeue => &self.requeued,
            Settlement::Reject => &self.rejected,
        };
        counter.increment(count as u64);
    }

    /// Counts a failed attempt.
    pub(crate) fn failed(&self, next: Next) {
        let counter = match next {
            Next::AtOnce => &self.at_once,
            Next::Later => &self.later,
            Next::Requeued => &self.back,
            Next::Dead => &self.dead,
        };
        counter.increment(1);
    }

    /// Measures a run of the handler.
    pub(crate) fn ran(&self, took: Duration) {
        self.duration.record(took.as_secs_f64());
    }
}
