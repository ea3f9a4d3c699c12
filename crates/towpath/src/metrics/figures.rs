//! Figures at one moment, by name: what conditions of alerts are about.

use std::collections::BTreeMap;

use super::table::Metric;

/// One value, and by what it is told apart from others of its name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// By what it is told apart.
    pub labels: BTreeMap<String, String>,
    /// How much.
    pub value: f64,
}

/// What is known at one moment. A name that is here without a value is known to have none: there is no queue, or nothing has
/// happened. Of a name that is not here nothing is known.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures(BTreeMap<String, Vec<Sample>>);

impl Figures {
    /// Says that a name is known, whether or not there is a value.
    pub fn know(&mut self, name: &str) {
        self.0.entry(name.to_owned()).or_default();
    }

    /// Adds a value.
    pub fn add(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.0.entry(name.to_owned()).or_default().push(Sample { labels, value });
    }

    /// All values of a name; none if nothing is known of it.
    pub fn of(&self, name: &str) -> Option<&[Sample]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Takes in what somebody else knows.
    pub fn extend(&mut self, other: Self) {
        for (name, samples) in other.0 {
            self.0.entry(name).or_default().extend(samples);
        }
    }

    /// Sets a gauge, and keeps what it was set to.
    pub(super) fn set(&mut self, metric: &Metric, labels: &[&str], value: f64) {
        metric.gauge(labels).set(value);
        let labels: Vec<(&str, &str)> = metric.labels.iter().copied().zip(labels.iter().copied()).collect();
        self.add(metric.name, &labels, value);
    }
}
