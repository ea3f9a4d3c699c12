//! Sending a command: a small builder that is awaited.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use towpath_core::envelope::{ChangeContext, EventEnvelope};
use towpath_core::ids::{
    ActorId, AggregateKey, CausationId, CommandId, CorrelationId, InvalidId, RequestId, TenantId, TraceId,
    Version,
};
use towpath_core::lifecycle::CommandStatus;
use towpath_core::name::CommandName;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::store::{LeaseGrant, NewCommand};
use uuid::Uuid;

use crate::bus::{Bus, Incoming, Receipt, SendError};
use crate::circumstances::Circumstances;
use crate::committed::Committed;

/// A command about to be sent. Await it for its [`Receipt`].
///
/// # Guarantees
/// One transaction writes the aggregate, its events, its history, the outbox rows and the command's own record, or
/// none of them. With [`once`](Send::once), sending it again gives the same answer and no second effect, whatever
/// happened to the first call.
///
/// # Caveats
/// Without `once` the command gets an id of its own: a caller that did not see the answer cannot ask again.
#[must_use = "a command is sent when it is awaited"]
pub struct Send<'a> {
    bus: &'a Bus,
    command_type: String,
    aggregate_kind: Option<String>,
    aggregate_id: String,
    payload: Result<Payload, InvalidPayload>,
    command_id: Option<String>,
    correlation_id: Option<String>,
    causation_id: Option<String>,
    trace_id: Option<String>,
    request_id: Option<String>,
    actor_id: Option<String>,
    tenant_id: Option<String>,
    expected_version: Option<Version>,
    fence: Option<LeaseGrant>,
}

/// The answer to a command that was accepted for later.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The command.
    pub command_id: CommandId,
    /// Where it is: PENDING, or further if it was accepted before.
    pub status: CommandStatus,
}

impl<'a> Send<'a> {
    pub(crate) fn new(
        bus: &'a Bus,
        command_type: String,
        aggregate_kind: Option<String>,
        aggregate_id: String,
        payload: Result<Payload, InvalidPayload>,
    ) -> Self {
        let around = Circumstances::current();
        Self {
            bus,
            command_type,
            aggregate_kind,
            aggregate_id,
            payload,
            command_id: None,
            correlation_id: None,
            causation_id: None,
            trace_id: around.trace_id.map(String::from),
            request_id: around.request_id.map(String::from),
            actor_id: around.actor_id.map(String::from),
            tenant_id: None,
            expected_version: None,
            fence: None,
        }
    }

    /// Refuse unless this grant is still the newest of its lease, checked in the transaction of the effect.
    pub(crate) fn under(mut self, grant: LeaseGrant) -> Self {
        self.fence = Some(grant);
        self
    }

    /// The identity of the command, chosen by the caller: the same one gives the same answer.
    pub fn once(mut self, command_id: impl Into<String>) -> Self {
        self.command_id = Some(command_id.into());
        self
    }

    /// The fact that this command follows from: it joins that fact's flow.
    pub fn because_of(mut self, event: &EventEnvelope) -> Self {
        self.correlation_id = Some(event.correlation_id.to_string());
        self.causation_id = Some(event.event_id.to_string());
        self.trace_id = event.trace_id.as_ref().map(ToString::to_string).or(self.trace_id);
        self.tenant_id = event.tenant_id.as_ref().map(ToString::to_string).or(self.tenant_id);
        self
    }

    /// The flow to join, for callers that bring their own id.
    pub fn in_flow(mut self, correlation_id: impl Into<String>) -> Self {
        self.correlation_id = Some(correlation_id.into());
        self
    }

    /// What caused it, for callers that bring their own id.
    pub fn caused_by(mut self, causation_id: impl Into<String>) -> Self {
        self.causation_id = Some(causation_id.into());
        self
    }

    /// The trace it belongs to.
    pub fn traced(mut self, trace_id: impl Into<String>) -> Self {
        self.trace_id = Some(trace_id.into());
        self
    }

    /// The request that brought it.
    pub fn by_request(mut self, request_id: impl Into<String>) -> Self {
        self.request_id = Some(request_id.into());
        self
    }

    /// Who asks.
    pub fn by(mut self, actor_id: impl Into<String>) -> Self {
        self.actor_id = Some(actor_id.into());
        self
    }

    /// Whose data it is.
    pub fn for_tenant(mut self, tenant_id: impl Into<String>) -> Self {
        self.tenant_id = Some(tenant_id.into());
        self
    }

    /// Refuse unless the aggregate is at this version (0: unless it does not exist yet).
    pub fn expecting(mut self, version: Version) -> Self {
        self.expected_version = Some(version);
        self
    }

    /// Records the command as PENDING and answers at once; a worker runs it. Once this has answered, the command
    /// is run even if this process ends.
    ///
    /// # Errors
    /// `IdReused` when the id belongs to another command. Accepting the same command again is no error.
    pub async fn later(self) -> Result<Accepted, SendError> {
        let bus = self.bus;
        bus.check_running()?;
        if self.expected_version.is_some() {
            return Err(SendError::ExpectingLater);
        }
        let Incoming { command, .. } = self.incoming()?;
        let name = command.command_type.as_str();
        if bus.registry.decider_of_command(name).is_none() {
            return Err(bus.unknown_command(name));
        }
        let accepted = Accepted { command_id: command.command_id.clone(), status: CommandStatus::Pending };
        match bus.store.accept_command(&command).await {
            Ok(None) => {
                bus.committed(&Committed::command());
                Ok(accepted)
            }
            // Sent again after it failed: it is run again.
            Ok(Some(record)) if command.is_same_as(&record) && record.status == CommandStatus::Failed => {
                let now = bus.clock.now();
                let requeued = bus.store.requeue_command(&command.command_id, record.retry_count, now).await;
                match requeued {
                    Ok(_) => {
                        bus.committed(&Committed::command());
                        Ok(accepted)
                    }
                    Err(error) => Err(SendError::Store(error)),
                }
            }
            Ok(Some(record)) if command.is_same_as(&record) => {
                Ok(Accepted { status: record.status, ..accepted })
            }
            Ok(Some(_)) => Err(SendError::IdReused(command.command_id)),
            Err(error) => Err(SendError::Store(error)),
        }
    }

    /// Checks every identity and completes what was not given.
    fn incoming(self) -> Result<Incoming, SendError> {
        fn optional<T>(
            text: Option<String>,
            make: impl Fn(String) -> Result<T, InvalidId>,
        ) -> Result<Option<T>, InvalidId> {
            text.map(make).transpose()
        }
        let kind = match self.aggregate_kind {
            Some(kind) => kind,
            // By its name alone, it comes from outside.
            None => match self.bus.registry.decider_of_command(&self.command_type) {
                Some(decider) if decider.is_internal(&self.command_type) => {
                    return Err(SendError::InternalCommand(self.command_type));
                }
                Some(decider) => decider.kind().to_string(),
                None => return Err(self.bus.unknown_command(&self.command_type)),
            },
        };
        let payload = self
            .payload
            .map_err(|source| SendError::InvalidPayload { command: self.command_type.clone(), source })?;
        let correlation_id = match self.correlation_id {
            Some(text) => CorrelationId::new(text)?,
            // Version 7: an index over ids that rise with time grows at one end; random ones touch a page each.
            None => CorrelationId::of_new_flow(Uuid::now_v7()),
        };
        let mut context = ChangeContext::new(self.bus.clock.now(), correlation_id);
        context.causation_id = optional(self.causation_id, CausationId::new)?;
        context.trace_id = optional(self.trace_id, TraceId::new)?;
        context.request_id = optional(self.request_id, RequestId::new)?;
        context.actor_id = optional(self.actor_id, ActorId::new)?;
        context.tenant_id = optional(self.tenant_id, TenantId::new)?;
        let command_id = match self.command_id {
            Some(text) => CommandId::new(text)?,
            None => CommandId::from_stored(Uuid::now_v7().to_string()),
        };
        Ok(Incoming {
            command: NewCommand {
                command_id,
                command_type: CommandName::from_stored(&self.command_type),
                aggregate: AggregateKey::new(kind, self.aggregate_id)?,
                payload,
                context,
            },
            expected_version: self.expected_version,
            claim: None,
            still_in: None,
            fence: self.fence,
        })
    }
}

impl<'a> IntoFuture for Send<'a> {
    type Output = Result<Receipt, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + std::marker::Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let bus = self.bus;
            bus.run(self.incoming()?).await
        })
    }
}
