//! The tables, and the questions that are asked of several of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use towpath_core::envelope::{EventEnvelope, RecordedEvent};
use towpath_core::ids::{
    AggregateKey, ChannelName, CommandId, EventId, HandlerName, InstanceId, Lane, LeaseName, Position,
    TenantId,
};
use towpath_core::ports::store::{
    AggregateRow, ChannelRow, CommandRecord, InboxEntry, LeaseGrant, OutboxRow, StateEvent, StoreError,
    StoreResult, Timer,
};
use uuid::Uuid;

#[derive(Default)]
pub struct Tables {
    pub schema: u32,
    pub aggregates: BTreeMap<AggregateKey, AggregateRow>,
    pub events: BTreeMap<AggregateKey, Vec<EventEnvelope>>,
    pub event_ids: BTreeMap<EventId, EventEnvelope>,
    pub pending: BTreeMap<u64, EventId>,
    pub taken_up_to: u64,
    pub positions: Vec<Option<EventId>>,
    pub history: BTreeMap<AggregateKey, Vec<StateEvent>>,
    pub outbox: BTreeMap<u64, OutboxRow>,
    pub sent_up_to: u64,
    pub parked: BTreeMap<(ChannelName, Lane), u64>,
    pub commands: BTreeMap<CommandId, CommandRecord>,
    pub leases: BTreeMap<LeaseName, Lease>,
    pub inbox: BTreeMap<(EventId, HandlerName), InboxEntry>,
    pub timers: BTreeMap<Uuid, TimerRow>,
    pub channels: Vec<ChannelRow>,
    pub removed: BTreeSet<ChannelName>,
    pub statuses: BTreeSet<(TenantId, String)>,
}

pub struct Lease {
    pub holder: Option<InstanceId>,
    pub epoch: u64,
    pub until: Instant,
}

pub struct TimerRow {
    pub timer: Timer,
    pub due_at: chrono::DateTime<chrono::Utc>,
    pub claim: Option<LeaseGrant>,
}

impl Tables {
    pub fn check_lease(&self, grant: &LeaseGrant) -> StoreResult<()> {
        match self.leases.get(&grant.lease) {
            Some(lease) if lease.epoch == grant.epoch => Ok(()),
            _ => Err(StoreError::Fenced { lease: grant.lease.clone(), epoch: grant.epoch }),
        }
    }

    pub fn holder_lives(&self, grant: &LeaseGrant) -> bool {
        let lease = self.leases.get(&grant.lease);
        lease.is_some_and(|lease| {
            lease.epoch == grant.epoch && lease.holder.is_some() && lease.until > Instant::now()
        })
    }

    pub fn position_of(&self, event_id: EventId) -> Option<Position> {
        let index = self.positions.iter().position(|positioned| *positioned == Some(event_id))?;
        Some(index as Position + 1)
    }

    pub fn recorded(&self, envelope: &EventEnvelope) -> RecordedEvent {
        RecordedEvent { position: self.position_of(envelope.event_id), envelope: envelope.clone() }
    }
}
