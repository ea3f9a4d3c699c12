//! Those that wait to be looked at, each once and in which order. Pure.

use std::collections::{HashMap, VecDeque};

/// What waits to be looked at, each once. What somebody has just asked for, or was told of, goes first.
pub(super) struct Waiting<R> {
    first: VecDeque<(String, R)>,
    row: VecDeque<(String, R)>,
    /// Which ones, and whether they go first.
    keys: HashMap<String, bool>,
}

impl<R> Waiting<R> {
    pub(super) fn new() -> Self {
        Self { first: VecDeque::new(), row: VecDeque::new(), keys: HashMap::new() }
    }

    /// Puts it behind all others, unless it waits already.
    pub(super) fn push_back(&mut self, key: String, resource: R) {
        if !self.keys.contains_key(&key) {
            self.keys.insert(key.clone(), false);
            self.row.push_back((key, resource));
        }
    }

    /// Puts it before those that nobody has asked for.
    pub(super) fn push_first(&mut self, key: String, resource: R) {
        let waited = self.keys.insert(key.clone(), true);
        if waited == Some(false) {
            // There is a page of them at most.
            self.row.retain(|(waiting, _)| *waiting != key);
        }
        if waited != Some(true) {
            self.first.push_back((key, resource));
        }
    }

    pub(super) fn pop(&mut self) -> Option<(String, R)> {
        let next = self.first.pop_front().or_else(|| self.row.pop_front())?;
        self.keys.remove(&next.0);
        Some(next)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// As it was listed.
    pub(super) fn get(&self, key: &str) -> Option<&R> {
        let row = match self.keys.get(key)? {
            true => &self.first,
            false => &self.row,
        };
        row.iter().find(|(waiting, _)| waiting == key).map(|(_, resource)| resource)
    }

    /// Ends the wait of all; answers who would have gone first.
    pub(super) fn clear(&mut self) -> Vec<String> {
        self.row.clear();
        self.keys.clear();
        self.first.drain(..).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(mut waiting: Waiting<u32>) -> Vec<(String, u32)> {
        std::iter::from_fn(|| waiting.pop()).collect()
    }

    fn pairs(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
        expected.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect()
    }

    #[test]
    fn what_was_asked_for_goes_first_and_nothing_goes_twice() {
        let mut waiting = Waiting::new();
        waiting.push_back("a".to_owned(), 1);
        waiting.push_back("b".to_owned(), 2);
        waiting.push_back("b".to_owned(), 3);
        waiting.push_first("b".to_owned(), 4);
        waiting.push_first("c".to_owned(), 5);
        waiting.push_first("c".to_owned(), 6);
        waiting.push_back("c".to_owned(), 7);
        assert_eq!((waiting.get("a"), waiting.get("b"), waiting.get("d")), (Some(&1), Some(&4), None));
        assert_eq!(order(waiting), pairs(&[("b", 4), ("c", 5), ("a", 1)]));
    }

    #[test]
    fn what_had_its_turn_may_wait_again() {
        let mut waiting = Waiting::new();
        waiting.push_back("a".to_owned(), 1);
        waiting.push_first("a".to_owned(), 2);
        assert_eq!(waiting.pop(), Some(("a".to_owned(), 2)));
        assert!(waiting.is_empty(), "its place behind counts no more");
        waiting.push_back("a".to_owned(), 3);
        assert_eq!(order(waiting).last(), Some(&("a".to_owned(), 3)));
    }

    #[test]
    fn a_wait_that_ends_says_who_was_asked_for() {
        let mut waiting = Waiting::new();
        waiting.push_back("a".to_owned(), 1);
        waiting.push_first("b".to_owned(), 2);
        assert_eq!(waiting.clear(), ["b"]);
        assert!(waiting.is_empty() && waiting.pop().is_none());
    }
}
