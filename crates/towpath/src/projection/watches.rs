//! What observers look at because of facts: as facts find and leave it, written together with the rows.
//!
//! What is said lives here through all pages of an aggregate, and is written once. So an aggregate that is made anew replaces
//! what is wanted of its subject in one step, and what is known of earlier looks, and since when a goal is waited for, stays.

use std::collections::{BTreeMap, BTreeSet};

use towpath_core::ports::store::{Look, StoreResult, StoreTx as _, Watch};
use towpath_store::SqlTransaction;

/// Subjects by their observers and ids. A subject belongs to the aggregate of its id.
#[derive(Debug, Clone, Default)]
pub(super) struct Watches(BTreeMap<&'static str, BTreeMap<String, Subject>>);

/// A subject, and what facts have said of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Subject {
    /// The version that is stored; none if it is not watched.
    stored: Option<u64>,
    said: Said,
    /// It was not watched for a while: what is known of it is over.
    is_forgotten: bool,
    /// Somebody has asked since the stored version.
    is_asked: bool,
    /// It is to be looked at now since the stored version.
    is_urgent: bool,
    /// What was waited for since the stored version.
    goals: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
enum Said {
    /// That nobody looks at it; or nothing yet, where facts are taken from the first on.
    #[default]
    Nothing,
    /// Nothing new: this is wanted.
    AsStored(String),
    Watch(Watch),
}

impl Watches {
    /// Reads and locks the subjects of these aggregates that are not here yet: a statement per observer.
    pub(super) async fn load(
        &mut self,
        sql: &mut SqlTransaction,
        observers: &'static [&'static str],
        ids: &BTreeSet<String>,
    ) -> StoreResult<()> {
        for observer in observers {
            let subjects = self.0.entry(observer).or_default();
            let missing: Vec<String> = ids.iter().filter(|id| !subjects.contains_key(*id)).cloned().collect();
            if missing.is_empty() {
                continue;
            }
            for watched in sql.watched(observer, &missing).await? {
                let (stored, said) = (Some(watched.version), Said::AsStored(watched.wanted));
                subjects.insert(watched.subject_id, Subject { stored, said, ..Subject::default() });
            }
            for id in missing {
                subjects.entry(id).or_default();
            }
        }
        Ok(())
    }

    /// The facts of these aggregates are taken from the first on: what they do not say is not watched any more.
    pub(super) async fn begin_anew(
        &mut self,
        sql: &mut SqlTransaction,
        observers: &'static [&'static str],
        ids: &BTreeSet<String>,
    ) -> StoreResult<()> {
        self.load(sql, observers, ids).await?;
        for subjects in self.0.values_mut() {
            for (_, subject) in subjects.iter_mut().filter(|(id, _)| ids.contains(*id)) {
                *subject = Subject { stored: subject.stored, ..Subject::default() };
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, observer: &str, id: &str) -> Option<&Subject> {
        self.0.get(observer)?.get(id)
    }

    pub(super) fn get_mut(&mut self, observer: &str, id: &str) -> Option<&mut Subject> {
        self.0.get_mut(observer)?.get_mut(id)
    }

    /// Writes what was said: a few statements per observer. Answers which observers are to look now.
    pub(super) async fn write(self, sql: &mut SqlTransaction) -> StoreResult<Vec<&'static str>> {
        let mut urgent = Vec::new();
        for (observer, subjects) in self.0 {
            let (mut gone, mut meanwhile, mut said) = (Vec::new(), Vec::new(), Vec::new());
            if subjects.values().any(|subject| subject.is_urgent) {
                urgent.push(observer);
            }
            for (id, subject) in subjects {
                gone.extend(subject.is_to_go().then_some(id));
                meanwhile.extend(subject.meanwhile());
                if let Said::Watch(watch) = subject.said {
                    said.push(watch);
                }
            }
            sql.unwatch(observer, &gone).await?;
            sql.watch(observer, &meanwhile).await?;
            sql.watch(observer, &said).await?;
        }
        Ok(urgent)
    }
}

impl Subject {
    /// What is wanted of it.
    pub(super) fn wanted(&self) -> Option<&str> {
        match &self.said {
            Said::Nothing => None,
            Said::AsStored(wanted) => Some(wanted),
            Said::Watch(watch) => Some(&watch.wanted),
        }
    }

    pub(super) fn watch(&mut self, watch: Watch) {
        // What was said up to the stored version has had its effect.
        if self.stored.is_none_or(|stored| watch.version > stored) {
            self.is_asked |= watch.look == Look::UntilSeen;
            self.is_urgent |= matches!(watch.look, Look::AtOnce | Look::UntilSeen);
            self.goals.insert(watch.goal.clone());
        }
        self.said = Said::Watch(watch);
    }

    pub(super) fn unwatch(&mut self) {
        *self = Self { stored: self.stored, is_forgotten: true, ..Self::default() };
    }

    /// Whether what is stored goes, for good or before it is written anew.
    fn is_to_go(&self) -> bool {
        let Some(stored) = self.stored else { return false };
        match &self.said {
            Said::Nothing => true,
            Said::AsStored(_) => false,
            // One that is newer than the facts was written by somebody else, and would stay.
            Said::Watch(watch) => self.is_forgotten || stored > watch.version,
        }
    }

    /// What the last watch does not say of those before it: that somebody has asked, and that something else was waited for.
    fn meanwhile(&self) -> Option<Watch> {
        let Said::Watch(last) = &self.said else { return None };
        let is_asked = self.is_asked && last.look != Look::UntilSeen;
        let other = self.goals.iter().find(|goal| **goal != last.goal);
        if !is_asked && other.is_none() {
            return None;
        }
        let look = if self.is_asked { Look::UntilSeen } else { last.look };
        Some(Watch { look, goal: other.unwrap_or(&last.goal).clone(), ..last.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn watch(version: u64, goal: &str, look: Look) -> Watch {
        let text = |text: &str| text.to_owned();
        Watch { subject_id: text("a"), hint: text("a"), version, wanted: text("{}"), goal: text(goal), look }
    }

    fn after(stored: Option<u64>, said: &[Watch]) -> Subject {
        let mut subject = Subject { stored, ..Subject::default() };
        said.iter().cloned().for_each(|watch| subject.watch(watch));
        subject
    }

    #[test]
    fn what_was_asked_for_meanwhile_is_said_before_the_last() {
        let held = Look::Held(Duration::from_secs(1));
        let subject = after(Some(3), &[watch(4, "", Look::UntilSeen), watch(5, "", held)]);
        assert_eq!(subject.meanwhile(), Some(watch(5, "", Look::UntilSeen)));
        assert!(subject.is_urgent && !subject.is_to_go());
        assert_eq!(after(Some(3), &[watch(4, "", Look::UntilSeen)]).meanwhile(), None);
        let known = after(Some(5), &[watch(4, "", Look::UntilSeen), watch(5, "", held)]);
        assert!(known.meanwhile().is_none() && !known.is_urgent, "it has had its effect");
    }

    #[test]
    fn a_goal_that_was_left_meanwhile_is_waited_for_anew() {
        let to = |version, goal| watch(version, goal, Look::AtNextScan);
        let subject = after(Some(3), &[to(4, "READY"), to(5, ""), to(6, "READY")]);
        assert_eq!(subject.meanwhile(), Some(to(6, "")));
        assert_eq!(after(Some(3), &[to(4, "READY"), to(5, "READY")]).meanwhile(), None);
        // Made anew: what is stored has seen these already.
        assert_eq!(after(Some(6), &[to(4, "READY"), to(5, ""), to(6, "READY")]).meanwhile(), None);
    }

    #[test]
    fn what_facts_do_not_speak_of_goes() {
        assert!(after(Some(3), &[]).is_to_go());
        assert!(!after(None, &[]).is_to_go());
        assert!(after(Some(9), &[watch(4, "", Look::AtOnce)]).is_to_go(), "no fact has said that");
        let mut left = after(Some(3), &[watch(4, "", Look::UntilSeen)]);
        left.unwatch();
        assert!(left.is_to_go() && !left.is_urgent);
        left.watch(watch(5, "", Look::AtNextScan));
        assert!(left.is_to_go() && left.meanwhile().is_none(), "it begins anew");
    }
}
