//! What becomes of alerts when a rule is looked at. Pure: figures, what was before, silences and a moment in; changes out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};
use towpath_core::lifecycle::{AlertStatus, AlertStep, IllegalStep};
use towpath_core::ports::store::{Alert, AlertNote, Silence};
use towpath_core::time::between;

use super::condition::{Element, Labels, Looked};
use super::rules::{Rule, Rules};
use super::silences::Fits;
use crate::metrics::Figures;

/// How many alerts of a rule there may be: those with the first labels. What is beyond is counted.
pub const MOST_OF_A_RULE: usize = 500;

/// How many alerts there may be of all rules together.
pub const MOST_ALERTS: usize = 10_000;

/// How long an alert that has fired waits for its figure before it is forgotten.
const MISSED_FOR: Duration = Duration::from_secs(3_600 * 24 * 7);

/// Why an alert is where it is, as a stable code.
pub mod reasons {
    /// Its condition holds.
    pub const HOLDS: &str = "condition-holds";
    /// It has held for as long as the rule wants.
    pub const LASTED: &str = "condition-lasted";
    /// It holds no longer.
    pub const OVER: &str = "condition-over";
    /// It did not last as long as the rule wants.
    pub const DID_NOT_LAST: &str = "did-not-last";
    /// Its figure is not there.
    pub const MISSING: &str = "figure-missing";
    /// Its figure is there again.
    pub const BACK: &str = "figure-back";
    /// Its figure did not come back for long.
    pub const FORGOTTEN: &str = "figure-forgotten";
    /// A silence fits it.
    pub const SILENCED: &str = "silenced";
    /// The silence is over.
    pub const SILENCE_OVER: &str = "silence-over";
    /// There is no such rule any more.
    pub const RULE_GONE: &str = "rule-gone";
}

/// What came of a look at all rules.
#[derive(Debug, Default, PartialEq)]
pub struct Evaluated {
    /// What is to be written.
    pub notes: Vec<AlertNote>,
    /// Values for which a condition held and which are no alerts because there are too many.
    pub left_out: u64,
    /// Rules that could not be looked at, and why.
    pub failures: BTreeMap<String, String>,
}

/// Looks at all rules.
pub fn evaluate(
    rules: &Rules,
    figures: &Figures,
    open: &[Alert],
    silences: &[Silence],
    now: DateTime<Utc>,
) -> Evaluated {
    let mut evaluated = Evaluated::default();
    let active: Vec<Fits<'_>> =
        silences.iter().filter(|silence| silence.is_active(now)).map(Fits::of).collect();
    let mut room = MOST_ALERTS.saturating_sub(open.len());
    let mut by_rule: BTreeMap<&str, Vec<&Alert>> = BTreeMap::new();
    for alert in open {
        by_rule.entry(&alert.rule).or_default().push(alert);
    }
    for rule in rules.iter() {
        let before = by_rule.remove(rule.name.as_str()).unwrap_or_default();
        match rule.condition.look(figures) {
            // What could not be looked at stays as it was.
            Err(error) => drop(evaluated.failures.insert(rule.name.clone(), error.to_string())),
            Ok(looked) => {
                Round { rule, silences: &active, now }.run(looked, &before, &mut room, &mut evaluated);
            }
        }
    }
    for alert in by_rule.into_values().flatten() {
        let gone = Next { step: Some(AlertStep::Resolve), reason: reasons::RULE_GONE, message: None };
        evaluated.notes.extend(changed(alert.clone(), Some(alert), gone, now));
    }
    evaluated
}

/// One rule, looked at.
struct Round<'r> {
    rule: &'r Rule,
    silences: &'r [Fits<'r>],
    now: DateTime<Utc>,
}

/// What happens to an alert.
struct Next {
    /// Nothing when it stays where it is.
    step: Option<AlertStep>,
    reason: &'static str,
    message: Option<String>,
}

impl Round<'_> {
    fn run(&self, looked: Looked, before: &[&Alert], room: &mut usize, evaluated: &mut Evaluated) {
        let mut old: BTreeMap<&str, &Alert> =
            before.iter().map(|alert| (alert.alert_id.as_str(), *alert)).collect();
        let labelled = looked.elements.iter().map(|element| {
            let labels = self.rule.labels_of(&element.labels, element.value);
            (id_of(&labels), labels, element)
        });
        let labelled: Vec<_> = labelled.collect();
        let ids: BTreeSet<&str> = labelled.iter().map(|(alert_id, ..)| alert_id.as_str()).collect();
        if ids.len() < labelled.len() {
            let why = "the rule's labels take the place of those that tell its series apart";
            evaluated.failures.insert(self.rule.name.clone(), why.to_owned());
            return;
        }
        let mut count = 0;
        for (alert_id, labels, element) in labelled {
            let known = old.remove(alert_id.as_str());
            match (element.holds, known) {
                (true, known) => {
                    // Those that are there already go on, however many there are.
                    if known.is_none() {
                        if count >= MOST_OF_A_RULE || *room == 0 {
                            evaluated.left_out += 1;
                            continue;
                        }
                        *room -= 1;
                    }
                    count += 1;
                    evaluated.notes.extend(self.holding(alert_id, labels, element, known));
                }
                // With the other side of an `and` or an `or` it might hold.
                (false, Some(known)) if !looked.unknown.is_empty() => {
                    evaluated.notes.extend(self.missing(known, &looked));
                }
                (false, Some(known)) => evaluated.notes.extend(self.over(known, element.value)),
                (false, None) => {}
            }
        }
        for alert in old.into_values() {
            evaluated.notes.extend(self.missing(alert, &looked));
        }
        let nothing = looked.elements.is_empty() && before.is_empty() && *room > 0;
        if nothing && !looked.unknown.is_empty() {
            evaluated.notes.push(self.unknown(&looked));
        }
    }

    /// Its condition holds.
    fn holding(
        &self,
        alert_id: String,
        labels: Labels,
        element: &Element,
        known: Option<&Alert>,
    ) -> Option<AlertNote> {
        let now = self.now;
        let began_anew =
            known.is_none_or(|alert| alert.status == AlertStatus::Missing && alert.fired_at.is_none());
        let started_at = known.filter(|_| !began_anew).map_or(now, |alert| alert.started_at.min(now));
        let fired_before = known.is_some_and(|alert| alert.fired_at.is_some());
        let fires = fired_before || between(started_at, now) >= self.rule.lasting;
        let silence = self.silences.iter().find(|silence| silence.fits(&labels));
        let was = known.map(|alert| alert.status);
        let next = match (fires, silence) {
            (true, Some(silence)) => Next {
                step: (was != Some(AlertStatus::Silenced)).then_some(AlertStep::Silence),
                reason: reasons::SILENCED,
                message: Some(silence.told()),
            },
            (true, None) => Next {
                step: (was != Some(AlertStatus::Firing)).then_some(AlertStep::Fire),
                reason: match was {
                    Some(AlertStatus::Silenced) => reasons::SILENCE_OVER,
                    Some(AlertStatus::Missing) => reasons::BACK,
                    _ if self.rule.lasting.is_zero() => reasons::HOLDS,
                    _ => reasons::LASTED,
                },
                message: None,
            },
            (false, _) => Next {
                step: (was != Some(AlertStatus::Pending)).then_some(AlertStep::Begin),
                reason: reasons::HOLDS,
                message: None,
            },
        };
        let alert = Alert {
            alert_id,
            rule: self.rule.name.clone(),
            severity: self.rule.severity.clone(),
            annotations: self
                .rule
                .annotations
                .iter()
                .map(|(name, text)| (name.clone(), text.filled(&element.labels, element.value)))
                .collect(),
            message: self.rule.message.filled(&element.labels, element.value),
            value: element.value,
            status: was.unwrap_or(AlertStatus::Missing),
            status_changed_at: known.map_or(now, |alert| alert.status_changed_at),
            status_reason: known.and_then(|alert| alert.status_reason.clone()),
            status_message: known.and_then(|alert| alert.status_message.clone()),
            started_at,
            fired_at: known.and_then(|alert| alert.fired_at).or(fires.then_some(now)),
            held_at: now,
            silence_id: silence.filter(|_| fires).map(|silence| silence.id()),
            labels,
        };
        changed(alert, known, next, now)
    }

    /// Its figure is there, and its condition does not hold.
    fn over(&self, alert: &Alert, value: f64) -> Option<AlertNote> {
        let has_fired = alert.fired_at.is_some();
        let lingers = has_fired
            && alert.status != AlertStatus::Missing
            // What held in what is the future now was written before the database's clock was set back.
            && alert.held_at <= self.now
            && between(alert.held_at, self.now) < self.rule.keep_firing_for;
        if lingers {
            return None;
        }
        let reason = match (alert.status, has_fired) {
            (AlertStatus::Pending, _) => reasons::DID_NOT_LAST,
            (AlertStatus::Missing, false) => reasons::BACK,
            _ => reasons::OVER,
        };
        let next = Next { step: Some(AlertStep::Resolve), reason, message: None };
        changed(Alert { value, ..alert.clone() }, Some(alert), next, self.now)
    }

    /// Its figure is not there: whether its condition holds is not known, and so it is not over.
    fn missing(&self, alert: &Alert, looked: &Looked) -> Option<AlertNote> {
        let is_missing = alert.status == AlertStatus::Missing;
        let next = match alert.fired_at {
            // Nobody was told of it, and there is nothing of the sort any more.
            None if is_missing && looked.unknown.is_empty() => {
                Next { step: Some(AlertStep::Resolve), reason: reasons::BACK, message: None }
            }
            Some(_) if is_missing && between(alert.status_changed_at, self.now) >= MISSED_FOR => {
                Next { step: Some(AlertStep::Resolve), reason: reasons::FORGOTTEN, message: None }
            }
            _ if is_missing => return None,
            _ => Next {
                step: Some(AlertStep::Lose),
                reason: reasons::MISSING,
                message: Some(self.missed(looked)),
            },
        };
        changed(alert.clone(), Some(alert), next, self.now)
    }

    /// Nothing is known of what the rule is about.
    fn unknown(&self, looked: &Looked) -> AlertNote {
        let (labels, now) = (self.rule.labels_of(&Labels::new(), f64::NAN), self.now);
        let alert = Alert {
            alert_id: id_of(&labels),
            rule: self.rule.name.clone(),
            severity: self.rule.severity.clone(),
            labels,
            annotations: BTreeMap::new(),
            message: self.rule.message.filled(&Labels::new(), f64::NAN),
            value: f64::NAN,
            status: AlertStatus::Missing,
            status_changed_at: now,
            status_reason: Some(reasons::MISSING.to_owned()),
            status_message: Some(self.missed(looked)),
            started_at: now,
            fired_at: None,
            held_at: now,
            silence_id: None,
        };
        AlertNote { alert, changed_from: Some(None) }
    }

    fn missed(&self, looked: &Looked) -> String {
        match looked.unknown.is_empty() {
            false => {
                let names: Vec<&str> = looked.unknown.iter().map(String::as_str).collect();
                format!("nothing is known of {}", names.join(", "))
            }
            true => format!("{} gives no value for these labels any more", self.rule.condition.text()),
        }
    }
}

/// The alert after a step; nothing if there is nothing to be written.
fn changed(alert: Alert, known: Option<&Alert>, next: Next, now: DateTime<Utc>) -> Option<AlertNote> {
    let Next { step, reason, message } = next;
    let Some(step) = step else {
        // Only what somebody reads is worth a write: the value, and when it last held where that counts.
        let is_same = known.is_some_and(|known| {
            known.value.to_bits() == alert.value.to_bits()
                && known.silence_id == alert.silence_id
                && known.started_at == alert.started_at
                && known.held_at <= alert.held_at
                && between(known.held_at, alert.held_at) < HELD_PRECISION
        });
        return (!is_same).then_some(AlertNote { alert, changed_from: None });
    };
    let from = known.map(|alert| alert.status);
    let status = after(from, step).ok()?;
    let alert = Alert {
        status,
        status_changed_at: now,
        status_reason: Some(reason.to_owned()),
        status_message: message,
        ..alert
    };
    Some(AlertNote { alert, changed_from: Some(from) })
}

/// How exactly it is kept when a condition last held, while nothing else changes.
const HELD_PRECISION: Duration = Duration::from_secs(10);

/// The status after a step; one that was not there begins.
fn after(from: Option<AlertStatus>, step: AlertStep) -> Result<AlertStatus, IllegalStep> {
    match from {
        Some(status) => status.next(step),
        // What is new could be anything but over.
        None => AlertStatus::Missing.next(step),
    }
}

/// The same for the same labels, whoever looks.
pub(super) fn id_of(labels: &Labels) -> String {
    let mut hash = Sha256::new();
    for text in labels.iter().flat_map(|(name, value)| [name, value]) {
        // With its length, so that texts cannot run into each other.
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
