//! Moments and pauses: one rule for what is too far away to be written down.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::envelope::to_stored_precision;

/// The last moment that all databases can store, in seconds.
const LAST_MOMENT: i64 = 253_370_764_800;

/// A moment so much later, or the last one that can be stored.
pub fn later(moment: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    let last = DateTime::from_timestamp(LAST_MOMENT, 0).unwrap_or(moment);
    let later = TimeDelta::from_std(by).ok().and_then(|by| moment.checked_add_signed(by));
    to_stored_precision(later.unwrap_or(last).min(last))
}

/// A moment so much earlier; none if that is before time began.
pub fn earlier(moment: DateTime<Utc>, by: Duration) -> Option<DateTime<Utc>> {
    moment.checked_sub_signed(TimeDelta::from_std(by).ok()?)
}

/// How long it is from one moment to another that is later; nothing if it is not.
pub fn between(earlier: DateTime<Utc>, later: DateTime<Utc>) -> Duration {
    (later - earlier).to_std().unwrap_or_default()
}

/// A pause, doubled so many times, and no longer than that.
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(20)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_too_far_away_is_the_last_that_can_be_stored() {
        let now = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        assert_eq!(later(now, Duration::from_secs(60)).timestamp(), 1_700_000_060);
        for far in [Duration::MAX, Duration::from_secs(u64::from(u32::MAX) * 100)] {
            assert_eq!(later(now, far).to_rfc3339(), "9999-01-01T00:00:00+00:00");
        }
        assert_eq!(earlier(now, Duration::from_secs(60)).unwrap().timestamp(), 1_699_999_940);
        assert_eq!(earlier(now, Duration::MAX), None);
        assert_eq!(between(now, later(now, Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(between(later(now, Duration::from_secs(7)), now), Duration::ZERO);
    }

    #[test]
    fn a_pause_is_doubled_and_bounded() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(2));
        let pauses = [0, 1, 5, 6, u32::MAX].map(|times| doubled(first, times, longest).as_millis());
        assert_eq!(pauses, [50, 100, 1_600, 2_000, 2_000]);
    }
}
