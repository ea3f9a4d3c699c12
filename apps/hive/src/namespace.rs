//! Namespaces of the platform: whether each is there (H10).

use std::convert::Infallible;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath::{Aggregate, Command, Context, Event};

/// A namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Whether it was there when it was last asked for.
    pub exists: Option<bool>,
}

/// What may be asked of a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Command)]
pub enum NamespaceCommand {
    /// The platform was asked whether it is there.
    #[serde(rename = "Command.Hive.Namespace.Validate")]
    #[command(internal)]
    Validate(NamespaceValidated),
}

/// What happened to a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(schemas)]
pub enum NamespaceEvent {
    /// It is known whether it is there, and that was not known or is new.
    #[serde(rename = "NamespaceValidated")]
    Validated(NamespaceValidated),
}

/// `NamespaceValidated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceValidated {
    /// Its name.
    pub namespace: String,
    /// Whether it is there.
    pub exists: bool,
    /// When that was seen.
    pub validated_at: DateTime<Utc>,
}

impl Aggregate for Namespace {
    const KIND: &'static str = "namespace";
    type Command = NamespaceCommand;
    type Event = NamespaceEvent;
    type Refusal = Infallible;

    fn decide(&self, command: NamespaceCommand, _: &Context) -> Result<Vec<NamespaceEvent>, Infallible> {
        let NamespaceCommand::Validate(validated) = command;
        if self.exists == Some(validated.exists) {
            return Ok(Vec::new());
        }
        Ok(vec![NamespaceEvent::Validated(validated)])
    }

    fn evolve(self, event: &NamespaceEvent) -> Self {
        let NamespaceEvent::Validated(validated) = event;
        Namespace { exists: Some(validated.exists) }
    }
}
