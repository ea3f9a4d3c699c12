//! Consistency: what a check looks for, what it has found, and what a repair does about it.
//!
//! A finding is told by its code, which is stored and sent and never changes. What the code means, how bad it is and what is
//! done about it stand here, once.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// How many rows of a finding are told, besides how many there are.
pub const MOST_ROWS: usize = 100;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something waits that nobody takes, or is told wrongly.
    Warning,
    /// A fact, or a part of one, is not where it belongs.
    Critical,
}

/// What a repair can do about a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// It is put right, and nothing can be worse after it: a schedule may do it, too.
    Safe,
    /// It is put right when somebody says so.
    OnRequest,
    /// Nobody but a person knows what is right.
    ByHand,
}

/// Declares the codes.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:literal, $severity:ident, $remedy:ident, $cause:literal, $repair:literal;)+) => {
        /// What can be wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum FindingCode {
            $($(#[$doc])* $code,)+
        }

        impl FindingCode {
            /// All of them, in the order in which they are looked for.
            pub const ALL: &'static [Self] = &[$(Self::$code),+];

            /// The text that is stored and sent.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $text,)+ }
            }

            /// How bad it is.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$code => Severity::$severity,)+ }
            }

            /// What a repair can do about it.
            pub const fn remedy(self) -> Remedy {
                match self { $(Self::$code => Remedy::$remedy,)+ }
            }

            /// What it means, in words.
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$code => $cause,)+ }
            }

            /// What is done about it, in words.
            pub const fn repair(self) -> &'static str {
                match self { $(Self::$code => $repair,)+ }
            }
        }
    };
}

codes! {
    /// Completed commands without the event that is declared as their result.
    OrphanedCommands = "orphaned_commands", Critical, OnRequest,
        "The command is COMPLETED, but the event that is declared as its result is not there.",
        "Put it back to PENDING, unless its effect is already in the state.";
    /// Events without a row in the outbox of a channel that takes them.
    MissingOutboxEvents = "missing_outbox_events", Critical, OnRequest,
        "A channel takes this type of event, but the event has no row in the outbox and none that can have been cleaned up.",
        "Put the row back; the relay publishes it.";
    /// Events and causes that do not fit together.
    BrokenCausation = "broken_causation", Warning, ByHand,
        "The event names a cause that is not in its flow, that comes after it, or none although its type begins no flow.",
        "None: what caused a fact is a fact. Look at the flow, and at who wrote the event.";
    /// Aggregates whose versions do not begin with 1, have a hole, or do not end with that of their row.
    AggregateVersionGaps = "aggregate_version_gaps", Critical, ByHand,
        "The versions of the aggregate's events do not begin with 1, have a hole, or do not end with the version of its row.",
        "None: a fact that is gone cannot be made up. Bring it back from a backup, or from who has received it.";
    /// Facts that are neither in the log nor on their way there.
    EventsWithoutPosition = "events_without_position", Critical, OnRequest,
        "The event has no position in the log, and does not wait for one: nobody who follows the log will ever see it.",
        "Let it wait for a position; the sequencer gives it the next one.";
    /// Positions that are missing in the log, or have no event.
    PositionGaps = "position_gaps", Critical, ByHand,
        "The log has no event at this position, or the position before it is missing, or it lies behind the head.",
        "None: positions that others have seen do not change. Bring the rows back from a backup.";
    /// Outbox rows whose event does not exist.
    OutboxWithoutEvent = "outbox_without_event", Critical, ByHand,
        "The outbox row names an event that does not exist, so it is never published and waits for ever.",
        "None: bring the event back from a backup, or go on without the row.";
    /// Inbox rows whose event does not exist.
    InboxWithoutEvent = "inbox_without_event", Warning, ByHand,
        "A handler has handled an event of one of our own channels that does not exist: the database is older than what was delivered.",
        "None: find out whether a backup was restored, and bring back the events since then.";
    /// Lanes that wait for a row that is not there, or is through.
    ParkedWithoutHead = "parked_without_head", Critical, Safe,
        "The lane waits for an outbox row that does not exist or is through, so nothing in it is ever published.",
        "Let the lane go on.";
    /// Channels that are ahead of the log.
    TrackersAhead = "trackers_ahead", Critical, ByHand,
        "The channel has published positions that the log does not have: the database is older than what was published.",
        "Find out which events are gone. Then set the channel back to where the log ends (`towpath channels reset`).";
    /// Projections that are ahead of their aggregate.
    ProjectionsAhead = "projections_ahead", Warning, ByHand,
        "The rows of the aggregate are made from more events than it has.",
        "Have the projection made anew, after the events are back.";
    /// Commands that nobody works on.
    AbandonedCommands = "abandoned_commands", Warning, Safe,
        "The command is PROCESSING, but nobody has it, or who has it is gone, and no running instance has taken it up.",
        "Put it back to PENDING.";
    /// Timers that nobody fires.
    AbandonedTimers = "abandoned_timers", Warning, ByHand,
        "The timer is running, but nobody has it, or who has it is gone, and no running instance has taken it up.",
        "Start an instance that knows the timer's command: it takes it over.";
    /// Tasks that nobody does.
    AbandonedTasks = "abandoned_tasks", Warning, ByHand,
        "The task is running, but its worker has been silent for longer than it may be, and no running instance has taken it over.",
        "Start an instance that knows the type of the task: it takes it over.";
    /// Aggregates whose row is not what their history says.
    HistoryDiffers = "history_differs", Critical, ByHand,
        "The state of the aggregate's row is not the one that its history ends with, or a change does not begin where the one before it ended.",
        "None: compare the history with the events, and find out who has written to the tables.";
    /// Aggregates whose row is not what folding their events gives.
    StateDiffers = "state_differs", Critical, ByHand,
        "Folding the aggregate's events gives another state than its row has.",
        "None: find out whether `evolve` was changed without a new SNAPSHOT_VERSION. With a new one, all are folded anew.";
}

/// A text that is no code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is nothing that is looked for; that is {}", FindingCode::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>().join(", "))]
pub struct UnknownCode {
    /// The text.
    pub given: String,
}

impl FromStr for FindingCode {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let found = Self::ALL.iter().copied().find(|code| code.as_str() == text);
        found.ok_or_else(|| UnknownCode { given: text.to_owned() })
    }
}

impl fmt::Display for FindingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for FindingCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FindingCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One row that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingRow {
    /// What it is about: an id, or several with `/` between them.
    pub target: String,
    /// What else is known of it.
    pub details: BTreeMap<String, String>,
}

/// All that is wrong in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// In which.
    pub code: FindingCode,
    /// How many rows.
    pub count: u64,
    /// Some of them.
    pub rows: Vec<FindingRow>,
}

/// What a check has found so far, by code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// One row more.
    pub fn add(&mut self, code: FindingCode, row: FindingRow) {
        let at = match self.0.iter().position(|finding| finding.code == code) {
            Some(at) => at,
            None => {
                let at = self.0.iter().take_while(|finding| finding.code < code).count();
                self.0.insert(at, Finding { code, count: 0, rows: Vec::new() });
                at
            }
        };
        let Some(finding) = self.0.get_mut(at) else { return };
        finding.count += 1;
        if finding.rows.len() < MOST_ROWS {
            finding.rows.push(row);
        }
    }

    /// How many rows are wrong in this way.
    pub fn count(&self, code: FindingCode) -> u64 {
        self.0.iter().find(|finding| finding.code == code).map_or(0, |finding| finding.count)
    }
}

/// What stands for the types that a channel takes, to see when they change. It is stored.
pub fn fingerprint<'p>(patterns: impl IntoIterator<Item = &'p str>) -> String {
    let mut patterns: Vec<&str> = patterns.into_iter().collect();
    patterns.sort_unstable();
    let digest = Sha256::digest(patterns.join("\n"));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// What was not checked, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotChecked {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_contracts() {
        let texts: Vec<&str> = FindingCode::ALL.iter().map(|code| code.as_str()).collect();
        let expected = [
            "orphaned_commands",
            "missing_outbox_events",
            "broken_causation",
            "aggregate_version_gaps",
            "events_without_position",
            "position_gaps",
            "outbox_without_event",
            "inbox_without_event",
            "parked_without_head",
            "trackers_ahead",
            "projections_ahead",
            "abandoned_commands",
            "abandoned_timers",
            "abandoned_tasks",
            "history_differs",
            "state_differs",
        ];
        assert_eq!(texts, expected);
        for code in FindingCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        assert!("nothing".parse::<FindingCode>().is_err());
    }

    #[test]
    fn the_fingerprint_is_of_the_patterns_and_not_of_their_order() {
        assert_eq!(fingerprint(["a.*", "b"]), fingerprint(["b", "a.*"]));
        assert_ne!(fingerprint(["a.*", "b"]), fingerprint(["a.*"]));
        assert_eq!(fingerprint(["order.*"]), "bacc3b7f0351b055922c2af3cb2eeb98", "it is stored");
    }

    #[test]
    fn findings_keep_a_count_and_some_rows_in_the_order_of_the_codes() {
        let mut findings = Findings::default();
        let row = |number: usize| FindingRow { target: number.to_string(), details: BTreeMap::new() };
        findings.add(FindingCode::PositionGaps, row(0));
        for number in 0..MOST_ROWS + 5 {
            findings.add(FindingCode::OrphanedCommands, row(number));
        }
        assert_eq!(findings.0[0].code, FindingCode::OrphanedCommands);
        assert_eq!(findings.0[0].rows.len(), MOST_ROWS);
        assert_eq!(findings.count(FindingCode::OrphanedCommands), MOST_ROWS as u64 + 5);
        assert_eq!(findings.count(FindingCode::PositionGaps), 1);
        assert_eq!(findings.count(FindingCode::BrokenCausation), 0);
    }
}
