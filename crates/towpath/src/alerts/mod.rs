//! Alerts: rules that are looked at again and again, and what becomes of those that hold.
//!
//! Reading order: `condition` (what a rule asks of the figures), `template` (what it says), `rules` (YAML), `silences`, `evaluation` (what
//! becomes of alerts when a rule is looked at: pure), `testing` (rules are tried on figures of a test), `engine` (one instance looks and
//! writes), `webhook` (who is told over HTTP), `view` (for operators).

mod condition;
mod engine;
mod evaluation;
mod rules;
mod silences;
mod template;
mod testing;
mod view;
mod webhook;

pub use condition::{BadCondition, Condition, Element, Labels, Looked};
pub(crate) use engine::start;
pub use evaluation::{Evaluated, MOST_ALERTS, MOST_OF_A_RULE, evaluate, reasons};
pub use rules::{ALERT_NAME, BadRules, Rule, Rules, SEVERITY};
pub use silences::{BadSilence, MOST_MATCHERS, MOST_SILENCES, check};
pub use template::{BadTemplate, Template};
pub use testing::{BadTest, RuleTests, TestFailure};
pub use view::{Alerting, AlertsOf, SilenceAsked, SilenceError};
pub(crate) use webhook::TOGETHER;
pub use webhook::{BadWebhook, Webhook};

/// The aggregates that rules are whose alerts are facts.
pub const ALERT_KIND: &str = "alert";

/// The fact that alerts of a rule fire.
pub const ALERT_FIRED: &str = "towpath.alert.fired";

/// The fact that alerts of a rule that have fired are over.
pub const ALERT_RESOLVED: &str = "towpath.alert.resolved";

/// The fact that the figures are gone of alerts of a rule that have fired.
pub const ALERT_MISSING: &str = "towpath.alert.missing";

#[cfg(test)]
mod tests {
    use towpath_core::name::EventName;

    use super::*;

    #[test]
    fn the_stored_names_follow_the_rules() {
        for name in [ALERT_FIRED, ALERT_RESOLVED, ALERT_MISSING] {
            assert_eq!(EventName::infer(name).unwrap().as_str(), name);
        }
    }
}
