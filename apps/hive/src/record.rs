//! What is kept about services beside their state: every specification, and who asked for what (H10).

use std::convert::Infallible;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath::{Aggregate, Command, Context, Event};

use crate::spec::{ServiceSpec, SpecHash};

/// The records of one service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    /// The last specification that was kept.
    pub spec_version: u64,
    /// How much was asked of the service.
    pub audited: u64,
}

/// What may be asked of the records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Command)]
pub enum RecordCommand {
    /// Keep a specification.
    #[serde(rename = "Command.Hive.Record.Persist")]
    #[command(internal, gives = RecordEvent::PERSISTED)]
    Persist(ServicePersisted),
    /// Keep who asked for what.
    #[serde(rename = "Command.Hive.Record.Audit")]
    #[command(internal, gives = RecordEvent::AUDITED)]
    Audit(ServiceAudited),
}

/// What was kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(schemas)]
pub enum RecordEvent {
    /// A specification.
    #[serde(rename = "service.persisted")]
    Persisted(ServicePersisted),
    /// Who asked for what.
    #[serde(rename = "service.audit.recorded")]
    Audited(ServiceAudited),
}

/// `service.persisted`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePersisted {
    /// The service.
    pub service_id: String,
    /// The specification.
    pub spec: ServiceSpec,
    /// Its hash.
    pub spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
}

/// `service.audit.recorded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAudited {
    /// The service.
    pub service_id: String,
    /// What was asked: `create`, `update` or `delete`.
    pub action: String,
    /// The fact that says so.
    pub event_id: String,
    /// Who asked, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// When.
    pub requested_at: DateTime<Utc>,
}

impl Aggregate for ServiceRecord {
    const KIND: &'static str = "service-record";
    /// A specification has the values of variables in it.
    const CONFIDENTIAL: bool = true;
    type Command = RecordCommand;
    type Event = RecordEvent;
    type Refusal = Infallible;

    fn decide(&self, command: RecordCommand, _: &Context) -> Result<Vec<RecordEvent>, Infallible> {
        Ok(match command {
            RecordCommand::Persist(persisted) => vec![RecordEvent::Persisted(persisted)],
            RecordCommand::Audit(audited) => vec![RecordEvent::Audited(audited)],
        })
    }

    fn evolve(mut self, event: &RecordEvent) -> Self {
        match event {
            RecordEvent::Persisted(persisted) => {
                self.spec_version = self.spec_version.max(persisted.spec_version);
            }
            RecordEvent::Audited(_) => self.audited += 1,
        }
        self
    }
}
