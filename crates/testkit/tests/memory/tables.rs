//! The tables, and the questions that are asked of several of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use chrono::{DateTime, Utc};
use towpath_core::envelope::{EventEnvelope, RecordedEvent};
use towpath_core::ids::{
    AggregateKey, ChannelName, CommandId, EventId, HandlerName, InstanceId, Lane, LeaseName, Position,
    TenantId,
};
use towpath_core::lifecycle::TaskState;
use towpath_core::ports::operations::OperationKey;
use towpath_core::ports::store::{
    AggregateRow, ChannelRow, Claim, CommandRecord, InboxEntry, LeaseGrant, NewTimer, OutboxRow,
    ParkedAggregate, StateEvent, StoreError, StoreResult, Timer,
};
use uuid::Uuid;

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) schema: u32,
    /// Broken: only the epoch of a lease counts.
    pub(crate) any_holder: bool,
    pub(crate) aggregates: BTreeMap<AggregateKey, AggregateRow>,
    pub(crate) events: BTreeMap<AggregateKey, Vec<EventEnvelope>>,
    pub(crate) event_ids: BTreeMap<EventId, EventEnvelope>,
    pub(crate) pending: BTreeMap<u64, EventId>,
    pub(crate) taken_up_to: u64,
    pub(crate) positions: Vec<Option<EventId>>,
    pub(crate) history: BTreeMap<AggregateKey, Vec<StateEvent>>,
    pub(crate) outbox: BTreeMap<u64, OutboxRow>,
    pub(crate) sent_up_to: u64,
    pub(crate) parked: BTreeMap<(ChannelName, Lane), u64>,
    pub(crate) commands: BTreeMap<CommandId, CommandRecord>,
    pub(crate) leases: BTreeMap<LeaseName, Lease>,
    pub(crate) inbox: BTreeMap<(EventId, HandlerName), InboxEntry>,
    pub(crate) handled_at: BTreeMap<(EventId, HandlerName), DateTime<Utc>>,
    pub(crate) timers: BTreeMap<Uuid, TimerRow>,
    pub(crate) units: BTreeSet<Uuid>,
    pub(crate) channels: Vec<ChannelRow>,
    pub(crate) left_behind: Vec<(Uuid, u64, ParkedAggregate)>,
    pub(crate) removed: BTreeSet<ChannelName>,
    pub(crate) operations: BTreeMap<OperationKey, super::operations::Operation>,
    pub(crate) statuses: BTreeSet<(TenantId, String)>,
}

pub(crate) struct Lease {
    pub(crate) holder: Option<InstanceId>,
    pub(crate) epoch: u64,
    pub(crate) until: Instant,
}

pub(crate) struct TimerRow {
    pub(crate) timer: Timer,
    pub(crate) due_at: chrono::DateTime<chrono::Utc>,
    pub(crate) claim: Option<Claim>,
}

impl TimerRow {
    /// A timer that begins.
    pub(crate) fn new(timer: NewTimer) -> Self {
        let due_at = timer.due_at;
        let state = TaskState::Pending;
        let timer = Timer { timer, state, retry_count: 0, error_code: None, error_message: None };
        Self { timer, due_at, claim: None }
    }
}

impl Tables {
    pub(crate) fn check_lease(&self, grant: &LeaseGrant) -> StoreResult<()> {
        match self.leases.get(&grant.lease) {
            Some(lease) if lease.epoch == grant.epoch && self.is_holder(lease, grant) => Ok(()),
            _ => Err(StoreError::Fenced { lease: grant.lease.clone(), epoch: grant.epoch }),
        }
    }

    /// Whether nobody else has it. One that was given back is still its last holder's.
    fn is_holder(&self, lease: &Lease, grant: &LeaseGrant) -> bool {
        self.any_holder || lease.holder.as_ref().is_none_or(|holder| *holder == grant.holder)
    }

    pub(crate) fn holder_lives(&self, claim: &Claim) -> bool {
        let lease = self.leases.get(&claim.lease);
        lease.is_some_and(|lease| {
            lease.epoch == claim.epoch && lease.holder.is_some() && lease.until > Instant::now()
        })
    }

    pub(crate) fn position_of(&self, event_id: EventId) -> Option<Position> {
        let index = self.positions.iter().position(|positioned| *positioned == Some(event_id))?;
        Some(index as Position + 1)
    }

    pub(crate) fn recorded(&self, envelope: &EventEnvelope) -> RecordedEvent {
        RecordedEvent { position: self.position_of(envelope.event_id), envelope: envelope.clone() }
    }
}
