//! What becomes of a resource: a function of the seed, its name and its generation.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};

/// What may happen, and how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Fates {
    /// The soonest a resource becomes ready, or fails.
    pub settles_after: Duration,
    /// The latest.
    pub settles_within: Duration,
    /// How long it takes until a deleted resource is gone.
    pub deleted_after: Duration,
    /// How many of a hundred specifications are refused for good.
    pub refused_percent: u8,
    /// How many of a hundred do not become ready.
    pub failing_percent: u8,
    /// How many of a hundred that became ready are gone some time later, because somebody deleted them.
    pub vanishing_percent: u8,
    /// When at the latest.
    pub vanishes_within: Duration,
}

impl Default for Fates {
    /// Ready after one to two seconds, gone after one.
    fn default() -> Self {
        Self {
            settles_after: Duration::from_secs(1),
            settles_within: Duration::from_secs(2),
            deleted_after: Duration::from_secs(1),
            refused_percent: 0,
            failing_percent: 0,
            vanishing_percent: 0,
            vanishes_within: Duration::from_secs(10),
        }
    }
}

/// What becomes of one generation of one resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fate {
    pub(super) settles_at: DateTime<Utc>,
    pub(super) fails: bool,
    pub(super) vanishes_at: Option<DateTime<Utc>>,
}

impl Fates {
    /// Whether this specification is refused.
    pub(super) fn refuses(&self, seed: u64, resource: &str, spec_hash: &str) -> bool {
        chance(seed, &["refused", resource, spec_hash]) * 100.0 < f64::from(self.refused_percent)
    }

    /// What becomes of a generation that was applied at this moment.
    pub(super) fn of(&self, seed: u64, resource: &str, generation: i64, applied_at: DateTime<Utc>) -> Fate {
        let generation = generation.to_string();
        let roll = |what: &str| chance(seed, &[what, resource, &generation]);
        let spread = self.settles_within.saturating_sub(self.settles_after);
        let settles_at = later(applied_at, self.settles_after + spread.mul_f64(roll("settles")));
        let fails = roll("fails") * 100.0 < f64::from(self.failing_percent);
        let vanishes = !fails && roll("vanishes") * 100.0 < f64::from(self.vanishing_percent);
        let vanishes_at =
            vanishes.then(|| later(settles_at, self.vanishes_within.mul_f64(roll("vanishes-at"))));
        Fate { settles_at, fails, vanishes_at }
    }
}

/// So much later.
pub(super) fn later(moment: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by).ok().and_then(|by| moment.checked_add_signed(by)).unwrap_or(moment)
}

/// A number from 0 up to 1 that only depends on what is given.
pub(super) fn chance(seed: u64, words: &[&str]) -> f64 {
    let mut digest = Sha256::new();
    digest.update(seed.to_be_bytes());
    for word in words {
        digest.update(word.as_bytes());
        digest.update([0]);
    }
    let bytes = digest.finalize();
    let number = bytes.iter().take(6).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    // 48 bits: every one of them fits into a float.
    number as f64 / (1_u64 << 48) as f64
}
