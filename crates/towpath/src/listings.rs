//! What operators look through: commands, aggregates, channels, consumers, and what an id belongs to.

use serde::Serialize;
use towpath_core::channel::Channel;
use towpath_core::flow::{FlowCommand, FlowEvent, FlowNode, arrange_flow};
use towpath_core::ids::{AggregateId, AggregateKey, AggregateKind, ChannelName, CommandId, CorrelationId};
use towpath_core::lifecycle::CommandStatus;
use towpath_core::ports::store::{AggregateRow, Backlog, CommandRecord, Flow, FoundAs, StoreError};

use crate::consumer::{Identity, Source, Wired};
use crate::towpath::Towpath;

/// A consumer as it was registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerView {
    /// Its handler's name: with the event id it is the key of the inbox.
    pub handler: String,
    /// The queue it takes from.
    pub queue: String,
    /// The channel whose events it takes; `None` for one that reads a queue of somebody else's.
    pub channel: Option<String>,
    /// Which events: any of these patterns. None stands for all.
    pub event_types: Vec<String>,
    /// Whether events of one aggregate are handled in their order.
    pub in_order: bool,
    /// How many handlers run at a time.
    pub concurrency: usize,
    /// Whether its inbox remembers messages, and not events.
    pub(crate) is_by_message: bool,
}

impl ConsumerView {
    pub(crate) fn of(wired: &Wired) -> Self {
        let consumer = &wired.consumer;
        Self {
            handler: wired.handler.to_string(),
            queue: wired.queue.clone(),
            channel: match &consumer.source {
                Source::Channel(channel) => Some(channel.clone()),
                Source::Queue(_) => None,
            },
            event_types: consumer.event_types.iter().map(|glob| glob.as_str().to_owned()).collect(),
            in_order: consumer.policy.in_order,
            concurrency: consumer.policy.concurrency,
            is_by_message: consumer.identity == Identity::Message,
        }
    }
}

/// What an id turned out to be, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// What it is the id of.
    pub found_as: FoundAs,
    /// The flows it belongs to, the last first. An aggregate takes part in many.
    pub flows: Vec<CorrelationId>,
}

impl Towpath {
    /// Commands, the last received first: the next `limit` behind one of them.
    ///
    /// # Errors
    /// `missing` when there is no such command to go on behind.
    pub async fn commands(
        &self,
        status: Option<CommandStatus>,
        behind: Option<&CommandId>,
        limit: u32,
    ) -> Result<Vec<CommandRecord>, StoreError> {
        self.store().commands(status, behind, limit).await
    }

    /// Aggregates of a kind, by id: the next `limit` behind one of them. Their snapshots are not read: see
    /// [`aggregate`](Self::aggregate).
    pub async fn aggregates(
        &self,
        kind: &AggregateKind,
        after: Option<&AggregateId>,
        limit: u32,
    ) -> Result<Vec<AggregateRow>, StoreError> {
        self.store().aggregates(kind, after, limit).await
    }

    /// Finds out what an id is the id of: a command, an event, a flow, or an aggregate. An aggregate of a kind that is not
    /// registered here is named `KIND/ID`.
    pub async fn trace(&self, id: &str) -> Result<Option<Trace>, StoreError> {
        let mut keys: Vec<AggregateKey> = Vec::new();
        for decider in self.registry().deciders() {
            keys.extend(AggregateKey::new(decider.kind().as_str(), id).ok());
        }
        for entity in self.registry().entities() {
            keys.extend(AggregateKey::new(entity.kind().as_str(), id).ok());
        }
        keys.extend(id.split_once('/').and_then(|(kind, id)| AggregateKey::new(kind, id).ok()));
        let found = self.store().trace(id, &keys).await?;
        // The nearest thing that the id can mean.
        let Some(found_as) = found.iter().map(|(found_as, _)| *found_as).min() else { return Ok(None) };
        let flows = found.into_iter().filter(|(other, _)| *other == found_as).map(|(_, flow)| flow);
        Ok(Some(Trace { found_as, flows: flows.collect() }))
    }

    /// What waits, is at work or was given up: commands, timers, the outbox of [`outbox_channels`](Self::outbox_channels),
    /// letters.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        let channels: Vec<ChannelName> = self.relayed.iter().map(|channel| channel.name.clone()).collect();
        self.store().backlog(&channels, self.bus.clock.now()).await
    }

    /// The channels whose events get outbox rows as they are written. Those that follow the log are
    /// [`channels`](Self::channels).
    pub fn outbox_channels(&self) -> &[Channel] {
        &self.relayed
    }

    /// The consumers of this process.
    pub fn consumers(&self) -> &[ConsumerView] {
        &self.consumers
    }
}

/// The commands and events of a flow as its links see them.
pub(crate) fn links(flow: &Flow) -> (Vec<FlowCommand>, Vec<FlowEvent>) {
    let command = |record: &CommandRecord| FlowCommand {
        command_id: record.command.command_id.to_string(),
        command_type: record.command.command_type.to_string(),
        causation_id: record.command.context.causation_id.as_ref().map(ToString::to_string),
    };
    let event = |event: &towpath_core::envelope::RecordedEvent| FlowEvent {
        event_id: event.envelope.event_id.to_string(),
        event_type: event.envelope.event_type.to_string(),
        causation_id: event.envelope.causation_id.as_ref().map(ToString::to_string),
    };
    (flow.commands.iter().map(command).collect(), flow.events.iter().map(event).collect())
}

/// How many commands and how many events of a flow are read.
pub(crate) const LARGEST_FLOW: u32 = 10_000;

/// Leaves so many commands and events of a flow, and says so if there were more.
pub(crate) fn cut(flow: &mut Flow, most: usize) {
    flow.truncated = flow.commands.len() > most || flow.events.len() > most;
    flow.commands.truncate(most);
    flow.events.truncate(most);
}

/// Arranges a flow as a forest: everything once, each directly followed by what it caused.
pub fn arranged(flow: &Flow) -> Vec<FlowNode> {
    let (commands, events) = links(flow);
    arrange_flow(&commands, &events)
}
