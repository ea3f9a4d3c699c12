//! The auditor of deliveries: it counts on its own, from a ledger that the product never sees.
//!
//! A writer notes each fact it was told is committed. A handler notes each effect, numbered in the order in which the
//! effects were made. Whatever was killed, cut or restarted in between: every noted fact has one effect, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A fact that a writer was told is committed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Noted {
    /// The aggregate.
    pub aggregate: String,
    /// The version it made.
    pub version: u64,
}

/// An effect that a handler made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Rises with the order in which effects were made.
    pub number: u64,
    /// The aggregate of the fact.
    pub aggregate: String,
    /// The version of the fact.
    pub version: u64,
}

/// What the auditor found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Complaint {
    /// A committed fact without an effect.
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
    /// A fact whose effect was made before that of an earlier one.
    OutOfOrder {
        /// The aggregate.
        aggregate: String,
        /// The later version, whose effect came first.
        version: u64,
        /// The earlier version, whose effect came after it.
        overtook: u64,
    },
    /// The writer noted the same version twice: two commits claim one place.
    Contradiction {
        /// The aggregate.
        aggregate: String,
        /// The version.
        version: u64,
    },
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { aggregate, version } => write!(f, "{aggregate} {version} had no effect"),
            Self::Doubled { aggregate, version, times } => {
                write!(f, "{aggregate} {version} had {times} effects")
            }
            Self::OutOfOrder { aggregate, version, overtook } => {
                write!(f, "{aggregate} {version} took effect before {overtook}")
            }
            Self::Contradiction { aggregate, version } => {
                write!(f, "{aggregate} {version} was committed twice")
            }
        }
    }
}

/// Compares what was committed with what took effect.
///
/// A fact may have an effect that no writer noted: it was committed and its writer was killed before it heard of it. So
/// all versions up to the highest one seen of an aggregate count as committed, noted or not.
pub fn audit(noted: &[Noted], effects: &[Effect]) -> Vec<Complaint> {
    let mut complaints = BTreeSet::new();
    let mut committed: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for Noted { aggregate, version } in noted {
        if !committed.entry(aggregate).or_default().insert(*version) {
            complaints.insert(Complaint::Contradiction { aggregate: aggregate.clone(), version: *version });
        }
    }
    let mut by_aggregate: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
    for effect in effects {
        by_aggregate.entry(&effect.aggregate).or_default().push(effect);
        committed.entry(&effect.aggregate).or_default().insert(effect.version);
    }
    for (aggregate, versions) in committed {
        let mut made = by_aggregate.remove(aggregate).unwrap_or_default();
        made.sort_by_key(|effect| effect.number);
        let highest = versions.last().copied().unwrap_or(0);
        for version in 1..=highest {
            let aggregate = aggregate.to_owned();
            match made.iter().filter(|effect| effect.version == version).count() {
                0 => complaints.insert(Complaint::Lost { aggregate, version }),
                1 => false,
                times => complaints.insert(Complaint::Doubled { aggregate, version, times }),
            };
        }
        for pair in made.windows(2) {
            if let [before, after] = pair
                && after.version < before.version
            {
                complaints.insert(Complaint::OutOfOrder {
                    aggregate: aggregate.to_owned(),
                    version: before.version,
                    overtook: after.version,
                });
            }
        }
    }
    complaints.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(count: u64) -> Vec<Noted> {
        (1..=count)
            .flat_map(|version| ["a", "b"].map(|aggregate| Noted { aggregate: aggregate.into(), version }))
            .collect()
    }

    fn effects(noted: &[Noted]) -> Vec<Effect> {
        let number = |place: usize| place as u64 * 10;
        noted
            .iter()
            .enumerate()
            .map(|(place, noted)| Effect {
                number: number(place),
                aggregate: noted.aggregate.clone(),
                version: noted.version,
            })
            .collect()
    }

    #[test]
    fn it_is_content_with_what_is_right() {
        let noted = noted(50);
        assert_eq!(audit(&noted, &effects(&noted)), []);
        // The writer was killed before it could note the last one.
        assert_eq!(audit(&noted[..98], &effects(&noted)), []);
        assert_eq!(audit(&[], &[]), []);
    }

    #[test]
    fn it_complains_of_every_dropped_fact() {
        let noted = noted(20);
        for place in 0..noted.len() {
            let mut effects = effects(&noted);
            let gone = effects.remove(place);
            let lost = Complaint::Lost { aggregate: gone.aggregate, version: gone.version };
            assert_eq!(audit(&noted, &effects), [lost]);
        }
    }

    #[test]
    fn it_complains_of_every_doubled_effect() {
        let noted = noted(20);
        for place in 0..noted.len() {
            let mut effects = effects(&noted);
            let again = Effect { number: effects[place].number + 1, ..effects[place].clone() };
            effects.push(again.clone());
            let (aggregate, version) = (again.aggregate, again.version);
            assert_eq!(audit(&noted, &effects), [Complaint::Doubled { aggregate, version, times: 2 }]);
        }
    }

    #[test]
    fn it_complains_of_every_swapped_pair_of_one_aggregate_and_of_no_other() {
        let noted = noted(20);
        for place in 0..noted.len() - 2 {
            let mut swapped = effects(&noted);
            let (first, second) = (swapped[place].number, swapped[place + 2].number);
            (swapped[place].number, swapped[place + 2].number) = (second, first);
            assert!(matches!(audit(&noted, &swapped)[..], [Complaint::OutOfOrder { .. }]), "{place}");
            // Neighbours belong to different aggregates: their order says nothing.
            let mut harmless = effects(&noted);
            let (first, second) = (harmless[place].number, harmless[place + 1].number);
            (harmless[place].number, harmless[place + 1].number) = (second, first);
            assert_eq!(audit(&noted, &harmless), []);
        }
    }

    #[test]
    fn it_complains_of_a_version_that_was_committed_twice() {
        let mut twice = noted(3);
        twice.push(twice[4].clone());
        let contradiction = Complaint::Contradiction { aggregate: "a".into(), version: 3 };
        assert_eq!(audit(&twice, &effects(&noted(3))), [contradiction]);
    }
}
