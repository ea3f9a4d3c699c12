//! The auditor of deliveries: it counts on its own, from a ledger that the product never sees.
//!
//! A writer notes each fact it was told is committed. A handler notes each effect, numbered in the order in which the
//! effects were made. A queue of the test's own keeps every message that went out. Whatever was killed, cut or restarted
//! in between: what was noted is in the log, what is in the log took effect once, unchanged and in order, nothing else
//! did, and no more went out twice than the faults explain.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A fact: which one, and what it says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    /// The aggregate.
    pub aggregate: String,
    /// The version it made.
    pub version: u64,
    /// What it says: its payload, or anything that changes when the payload does.
    pub content: String,
}

/// An effect that a handler made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Rises with the order in which effects were made.
    pub number: u64,
    /// The fact as the handler got it.
    pub fact: Fact,
}

/// Whether the order of effects counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Per aggregate, in the order of versions.
    Kept,
    /// Any order will do.
    Free,
}

/// What the auditor found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Complaint {
    /// A committed fact without an effect, or that was never published.
    Lost {
        /// The aggregate.
        aggregate: String,
        /// The version.
        version: u64,
    },
    /// A fact with more than one effect.
    Doubled {
        /// The aggregate.
        aggregate: String,
        /// The version.
        version: u64,
        /// How many effects it has.
        times: usize,
    },
    /// A fact whose effect was made, or that was first published, before an earlier one.
    OutOfOrder {
        /// The aggregate.
        aggregate: String,
        /// The later version, which came first.
        version: u64,
        /// The earlier version, which came after it.
        overtook: u64,
    },
    /// Something that is not in the log.
    Phantom {
        /// The aggregate.
        aggregate: String,
        /// The version.
        version: u64,
    },
    /// A fact that says something else than the log does.
    Changed {
        /// The aggregate.
        aggregate: String,
        /// The version.
        version: u64,
    },
    /// The same version twice, in the log or among what writers were told: two commits claim one place.
    Contradiction {
        /// The aggregate.
        aggregate: String,
        /// The version.
        version: u64,
    },
    /// A timer that never fired.
    TimerLost {
        /// What it was to say.
        timer: String,
    },
    /// A timer that fired more than once.
    TimerDoubled {
        /// What it says.
        timer: String,
        /// How often it fired.
        times: usize,
    },
    /// More was published again than the faults of the run explain.
    PublishedAgain {
        /// How many messages were repetitions.
        times: u64,
        /// How many the faults explain.
        explained: u64,
    },
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { aggregate, version } => write!(f, "{aggregate} {version} did not arrive"),
            Self::Doubled { aggregate, version, times } => {
                write!(f, "{aggregate} {version} had {times} effects")
            }
            Self::OutOfOrder { aggregate, version, overtook } => {
                write!(f, "{aggregate} {version} came before {overtook}")
            }
            Self::Phantom { aggregate, version } => {
                write!(f, "{aggregate} {version} arrived and was never committed")
            }
            Self::Changed { aggregate, version } => {
                write!(f, "{aggregate} {version} arrived with another content")
            }
            Self::Contradiction { aggregate, version } => {
                write!(f, "{aggregate} {version} was committed twice")
            }
            Self::TimerLost { timer } => write!(f, "timer {timer} never fired"),
            Self::TimerDoubled { timer, times } => write!(f, "timer {timer} fired {times} times"),
            Self::PublishedAgain { times, explained } => {
                write!(f, "{times} messages went out again, and the faults explain {explained}")
            }
        }
    }
}

type Key<'a> = (&'a str, u64);

impl Fact {
    fn key(&self) -> Key<'_> {
        (&self.aggregate, self.version)
    }
}

/// Compares what writers were told is committed with the log: all of it is there, as it was written, and each aggregate
/// has its versions from 1 on without a hole. The log may have more: a writer may be killed before it hears of a commit.
pub fn audit_log(noted: &[Fact], log: &[Fact]) -> Vec<Complaint> {
    let mut complaints = BTreeSet::new();
    let committed = by_key(log, &mut complaints);
    for (key, noted) in by_key(noted, &mut complaints) {
        complaints.extend(differs(key, noted, &committed, |(aggregate, version)| Complaint::Lost {
            aggregate: aggregate.to_owned(),
            version,
        }));
    }
    let mut next: BTreeMap<&str, u64> = BTreeMap::new();
    for (aggregate, version) in committed.into_keys() {
        let expected = next.entry(aggregate).or_insert(1);
        for missing in *expected..version {
            complaints.insert(Complaint::Lost { aggregate: aggregate.to_owned(), version: missing });
        }
        *expected = version + 1;
    }
    complaints.into_iter().collect()
}

/// Compares the log with what took effect at one handler: every fact once, unchanged, and nothing else; also the last
/// ones, of which perhaps no writer heard.
pub fn audit_effects(log: &[Fact], effects: &[Effect], order: Order) -> Vec<Complaint> {
    let mut complaints = BTreeSet::new();
    let committed = by_key(log, &mut complaints);
    let mut times: BTreeMap<Key<'_>, usize> = BTreeMap::new();
    let mut made: Vec<&Effect> = effects.iter().collect();
    made.sort_by_key(|effect| effect.number);
    for Effect { fact, .. } in &made {
        *times.entry(fact.key()).or_default() += 1;
        complaints.extend(differs(fact.key(), &fact.content, &committed, phantom));
    }
    for (&(aggregate, version), &times) in times.iter().filter(|(_, times)| **times > 1) {
        complaints.insert(Complaint::Doubled { aggregate: aggregate.to_owned(), version, times });
    }
    complaints.extend(lost(&committed, |key| times.contains_key(key)));
    if order == Order::Kept {
        complaints.extend(overtaken(made.iter().map(|effect| effect.fact.key())));
    }
    complaints.into_iter().collect()
}

/// Compares the log with all messages that went out on a channel, in the order of their arrival. Each fact went out at
/// least once and unchanged, the first time in order, and nothing else did. A message that went out again is harmless,
/// and still each needs a reason: `explained` says how many the faults of the run can have caused.
pub fn audit_published(log: &[Fact], published: &[Fact], order: Order, explained: u64) -> Vec<Complaint> {
    let mut complaints = BTreeSet::new();
    let committed = by_key(log, &mut complaints);
    let mut seen: BTreeSet<Key<'_>> = BTreeSet::new();
    let mut firsts = Vec::new();
    let mut times = 0;
    for fact in published {
        complaints.extend(differs(fact.key(), &fact.content, &committed, phantom));
        if seen.insert(fact.key()) {
            firsts.push(fact.key());
        } else {
            times += 1;
        }
    }
    complaints.extend(lost(&committed, |key| seen.contains(key)));
    if order == Order::Kept {
        complaints.extend(overtaken(firsts.into_iter()));
    }
    if times > explained {
        complaints.insert(Complaint::PublishedAgain { times, explained });
    }
    complaints.into_iter().collect()
}

/// Compares the timers that were scheduled with those that fired: each once. One that nobody noted may fire as well: who
/// scheduled it may have been killed before it heard of the commit.
pub fn audit_timers(scheduled: &[String], fired: &[String]) -> Vec<Complaint> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for timer in fired {
        *times.entry(timer).or_default() += 1;
    }
    let lost = scheduled.iter().filter(|timer| !times.contains_key(timer.as_str()));
    let lost = lost.map(|timer| Complaint::TimerLost { timer: timer.clone() });
    let doubled = times.iter().filter(|(_, times)| **times > 1);
    let doubled =
        doubled.map(|(timer, times)| Complaint::TimerDoubled { timer: (*timer).to_owned(), times: *times });
    lost.chain(doubled).collect()
}

/// Facts by their place; two that claim one are complained of.
fn by_key<'f>(facts: &'f [Fact], complaints: &mut BTreeSet<Complaint>) -> BTreeMap<Key<'f>, &'f str> {
    let mut by_key = BTreeMap::new();
    for fact in facts {
        if by_key.insert(fact.key(), fact.content.as_str()).is_some() {
            let (aggregate, version) = (fact.aggregate.clone(), fact.version);
            complaints.insert(Complaint::Contradiction { aggregate, version });
        }
    }
    by_key
}

/// What is wrong with a fact that came, held against the log.
fn differs(
    key: Key<'_>,
    content: &str,
    committed: &BTreeMap<Key<'_>, &str>,
    missing: impl Fn(Key<'_>) -> Complaint,
) -> Option<Complaint> {
    match committed.get(&key) {
        None => Some(missing(key)),
        Some(committed) if *committed == content => None,
        Some(_) => Some(Complaint::Changed { aggregate: key.0.to_owned(), version: key.1 }),
    }
}

fn phantom((aggregate, version): Key<'_>) -> Complaint {
    Complaint::Phantom { aggregate: aggregate.to_owned(), version }
}

fn lost<'f>(
    committed: &BTreeMap<Key<'f>, &str>,
    arrived: impl Fn(&Key<'f>) -> bool,
) -> impl Iterator<Item = Complaint> {
    let missing = committed.keys().filter(move |key| !arrived(key));
    missing
        .map(|(aggregate, version)| Complaint::Lost { aggregate: (*aggregate).to_owned(), version: *version })
}

/// Those of one aggregate that came before an earlier one.
fn overtaken<'f>(arrived: impl Iterator<Item = Key<'f>>) -> Vec<Complaint> {
    let mut before: BTreeMap<&str, u64> = BTreeMap::new();
    let mut complaints = Vec::new();
    for (aggregate, version) in arrived {
        if let Some(last) = before.insert(aggregate, version)
            && version < last
        {
            let aggregate = aggregate.to_owned();
            complaints.push(Complaint::OutOfOrder { aggregate, version: last, overtook: version });
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(count: u64) -> Vec<Fact> {
        let fact = |aggregate: &str, version| Fact {
            aggregate: aggregate.to_owned(),
            version,
            content: format!("{aggregate}/{version}"),
        };
        (1..=count).flat_map(|version| ["a", "b"].map(|aggregate| fact(aggregate, version))).collect()
    }

    fn effects(facts: &[Fact]) -> Vec<Effect> {
        let numbered = facts.iter().enumerate();
        numbered.map(|(place, fact)| Effect { number: place as u64 * 10, fact: fact.clone() }).collect()
    }

    fn lost(fact: &Fact) -> Complaint {
        Complaint::Lost { aggregate: fact.aggregate.clone(), version: fact.version }
    }

    fn changed(fact: &Fact) -> Complaint {
        Complaint::Changed { aggregate: fact.aggregate.clone(), version: fact.version }
    }

    #[test]
    fn it_is_content_with_what_is_right() {
        let log = facts(50);
        for order in [Order::Kept, Order::Free] {
            assert_eq!(audit_effects(&log, &effects(&log), order), []);
            assert_eq!(audit_published(&log, &log, order, 0), []);
        }
        assert_eq!(audit_log(&log, &log), []);
        // The writer was killed before it could note the last ones.
        assert_eq!(audit_log(&log[..97], &log), []);
        assert_eq!(audit_effects(&[], &[], Order::Kept), []);
    }

    #[test]
    fn it_complains_of_what_a_writer_was_told_and_the_log_does_not_have() {
        let noted = facts(20);
        // The last of each aggregate: an earlier one is a hole as well, and found the same way.
        for place in 0..noted.len() {
            let mut log = noted.clone();
            let gone = log.remove(place);
            assert_eq!(audit_log(&noted, &log), [lost(&gone)], "{place}");
        }
        let mut log = noted.clone();
        log[7].content.push('!');
        assert_eq!(audit_log(&noted, &log), [changed(&log[7])]);
    }

    #[test]
    fn it_complains_of_a_hole_in_the_log_of_which_nobody_was_told() {
        let mut log = facts(20);
        let gone = log.remove(10);
        assert_eq!(audit_log(&[], &log), [lost(&gone)]);
    }

    #[test]
    fn it_complains_of_every_dropped_fact_the_last_ones_too() {
        let log = facts(20);
        for place in 0..log.len() {
            let mut made = effects(&log);
            let gone = made.remove(place).fact;
            assert_eq!(audit_effects(&log, &made, Order::Kept), [lost(&gone)]);
            let mut published = log.clone();
            published.remove(place);
            assert_eq!(audit_published(&log, &published, Order::Kept, 0), [lost(&gone)]);
        }
    }

    #[test]
    fn it_complains_of_every_doubled_effect() {
        let log = facts(20);
        for place in 0..log.len() {
            let mut made = effects(&log);
            made.push(Effect { number: made[place].number + 1, fact: log[place].clone() });
            let Fact { aggregate, version, .. } = log[place].clone();
            let doubled = Complaint::Doubled { aggregate, version, times: 2 };
            for order in [Order::Kept, Order::Free] {
                assert_eq!(audit_effects(&log, &made, order), std::slice::from_ref(&doubled));
            }
        }
    }

    #[test]
    fn it_complains_of_every_phantom() {
        let log = facts(20);
        for phantom in [("a", 21), ("c", 1), ("a", 0)] {
            let fact = Fact { aggregate: phantom.0.to_owned(), version: phantom.1, content: String::new() };
            let complaint = Complaint::Phantom { aggregate: phantom.0.to_owned(), version: phantom.1 };
            let mut made = effects(&log);
            let number = if phantom.1 == 0 { 0 } else { 1_000 };
            made.insert(0, Effect { number, fact: fact.clone() });
            assert_eq!(audit_effects(&log, &made, Order::Kept), std::slice::from_ref(&complaint));
            let published: Vec<Fact> = if phantom.1 == 0 {
                [fact].into_iter().chain(log.clone()).collect()
            } else {
                log.iter().cloned().chain([fact]).collect()
            };
            assert_eq!(audit_published(&log, &published, Order::Kept, 0), [complaint]);
        }
    }

    #[test]
    fn it_complains_of_every_changed_content() {
        let log = facts(20);
        for place in 0..log.len() {
            let mut other = log.clone();
            other[place].content = "something else".to_owned();
            assert_eq!(audit_effects(&log, &effects(&other), Order::Kept), [changed(&log[place])]);
            assert_eq!(audit_published(&log, &other, Order::Kept, 0), [changed(&log[place])]);
        }
    }

    #[test]
    fn it_complains_of_every_swapped_pair_of_one_aggregate_and_of_no_other() {
        let log = facts(20);
        for place in 0..log.len() - 2 {
            let mut swapped = log.clone();
            swapped.swap(place, place + 2);
            let found = audit_effects(&log, &effects(&swapped), Order::Kept);
            assert!(matches!(found[..], [Complaint::OutOfOrder { .. }]), "{place}");
            assert_eq!(audit_effects(&log, &effects(&swapped), Order::Free), []);
            let found = audit_published(&log, &swapped, Order::Kept, 0);
            assert!(matches!(found[..], [Complaint::OutOfOrder { .. }]), "{place}");
            // Neighbours belong to different aggregates: their order says nothing.
            let mut harmless = log.clone();
            harmless.swap(place, place + 1);
            assert_eq!(audit_effects(&log, &effects(&harmless), Order::Kept), []);
        }
    }

    #[test]
    fn it_complains_of_a_version_that_was_committed_twice() {
        let mut twice = facts(3);
        twice.push(twice[4].clone());
        let contradiction = Complaint::Contradiction { aggregate: "a".into(), version: 3 };
        assert_eq!(audit_log(&twice, &facts(3)), std::slice::from_ref(&contradiction));
        assert_eq!(audit_log(&[], &twice), [contradiction]);
    }

    #[test]
    fn it_complains_when_more_goes_out_again_than_the_faults_explain() {
        let log = facts(20);
        // What was repeated comes again later, in any order.
        let published: Vec<Fact> = log.iter().chain(&log[..6]).cloned().collect();
        assert_eq!(audit_published(&log, &published, Order::Kept, 6), []);
        let again = Complaint::PublishedAgain { times: 6, explained: 5 };
        assert_eq!(audit_published(&log, &published, Order::Kept, 5), [again]);
    }

    #[test]
    fn it_complains_of_every_timer_that_did_not_fire_once() {
        let timers = ["one", "two", "three"].map(str::to_owned);
        assert_eq!(audit_timers(&timers, &timers), []);
        assert_eq!(audit_timers(&timers[..2], &timers), [], "its writer was killed before it could note it");
        for place in 0..timers.len() {
            let mut fired = timers.to_vec();
            let timer = fired.remove(place);
            assert_eq!(audit_timers(&timers, &fired), [Complaint::TimerLost { timer: timer.clone() }]);
            fired.extend([timer.clone(), timer.clone()]);
            assert_eq!(audit_timers(&timers, &fired), [Complaint::TimerDoubled { timer, times: 2 }]);
        }
    }
}
