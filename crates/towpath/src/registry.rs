//! The registry: which aggregates there are, who decides which command, and where events go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use towpath_core::aggregate::Aggregate;
use towpath_core::decider::{Decider, RegistrationFlaw, TypedDecider};
use towpath_core::route::{Route, Routes};

/// Everything that was registered. Complete before the first command, and never changed after.
#[derive(Default)]
pub struct Registry {
    by_kind: HashMap<String, Arc<dyn Decider>>,
    by_command: HashMap<String, Arc<dyn Decider>>,
    events: HashSet<String>,
    routes: Routes,
}

impl Registry {
    /// Registers an aggregate: its names, pairings and machine are checked here.
    pub fn register<A: Aggregate>(&mut self) -> Result<(), RegistrationFlaw> {
        let decider: Arc<dyn Decider> = Arc::new(TypedDecider::<A>::register()?);
        let kind = decider.kind().as_str().to_owned();
        if self.by_kind.contains_key(&kind) {
            return Err(RegistrationFlaw::Twice { what: "aggregate", name: kind });
        }
        for command in decider.commands() {
            // A command name alone must say who decides it: that is all an HTTP client sends.
            if self.by_command.insert(command.as_str().to_owned(), decider.clone()).is_some() {
                return Err(RegistrationFlaw::Twice { what: "command", name: command.to_string() });
            }
        }
        for event in decider.events() {
            // An event's name says how to read it, so it has one owner.
            if !self.events.insert(event.as_str().to_owned()) {
                return Err(RegistrationFlaw::Twice { what: "event", name: event.to_string() });
            }
        }
        self.by_kind.insert(kind, decider);
        Ok(())
    }

    /// Adds a route.
    pub fn route(&mut self, route: Route) {
        self.routes.add(route);
    }

    /// The decider of a command, by the command's name.
    pub fn decider_of_command(&self, command: &str) -> Option<&Arc<dyn Decider>> {
        self.by_command.get(command)
    }

    /// The commands that can be decided here.
    pub fn command_types(&self) -> Vec<&str> {
        self.by_command.keys().map(String::as_str).collect()
    }

    /// The decider of a kind of aggregate.
    pub fn decider_of_kind(&self, kind: &str) -> Option<&Arc<dyn Decider>> {
        self.by_kind.get(kind)
    }

    /// All deciders, by kind.
    pub fn deciders(&self) -> impl Iterator<Item = &Arc<dyn Decider>> {
        let mut kinds: Vec<_> = self.by_kind.iter().collect();
        kinds.sort_by_key(|(kind, _)| kind.as_str());
        kinds.into_iter().map(|(_, decider)| decider)
    }

    /// The routes.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }
}
