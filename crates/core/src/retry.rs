//! Whether a failure is tried again, and when: decided by the class of the error and a policy that is data.
//!
//! Nothing here reads a message text, a clock or a random number. The class comes from the error's type, and the
//! caller hands in the random number that spreads the retries.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What sort of failure it was. It decides whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorClass {
    /// Something was unreachable or too slow; the same try may succeed later.
    Transient,
    /// Somebody else changed the same thing first; a fresh try sees the change.
    Conflict,
    /// The payload cannot be read.
    InvalidPayload,
    /// The payload was read and breaks a rule.
    Validation,
    /// The aggregate does not exist.
    NotFound,
    /// The caller may not do this.
    Denied,
    /// Broken in a way that no retry mends.
    Unrecoverable,
}

/// An error of ours: programs compare its code, retry decisions ask its class, people are told what to do. Nobody reads the
/// text but people.
pub trait Coded: std::error::Error {
    /// A stable code; each has a section in the documentation.
    fn code(&self) -> &'static str;

    /// How a retry decision sees it.
    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }

    /// What a person can do about it.
    fn next_step(&self) -> &'static str;
}

/// When a failed try is repeated, and when to give up.
///
/// As TOML: `retry = { fixed = ["5s", "30s", "2m"] }`, or
/// `retry = { exponential = { first = "1s", factor = 2.0, cap = "5m", attempts = 10, jitter = 0.2 } }`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenPolicy", into = "WrittenPolicy")]
pub enum RetryPolicy {
    /// One retry after each of these delays, then give up. An empty list never retries.
    Fixed(Vec<Duration>),
    /// Delays that grow by a factor up to a cap.
    Exponential {
        /// The delay after the first failure.
        first: Duration,
        /// By how much each delay exceeds the one before; 1 or more.
        factor: f64,
        /// The longest delay.
        cap: Duration,
        /// How many tries there are in all, the first one included.
        attempts: u32,
        /// Which fraction of a delay is random, 0 to 1. Jitter only shortens, so that the cap holds and the
        /// instances that have reached the cap do not all wake up at it together.
        jitter: f64,
    },
}

/// Why the numbers of a policy make no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidPolicy {
    /// Delays would shrink.
    #[error("a retry policy has the factor {factor}; write 1 or more")]
    Factor {
        /// The factor given.
        factor: f64,
    },
    /// More or less than the whole delay would be random.
    #[error("a retry policy has the jitter {jitter}; write a fraction from 0 to 1")]
    Jitter {
        /// The jitter given.
        jitter: f64,
    },
    /// The first delay would already exceed the cap.
    #[error(
        "a retry policy has the first delay {} above its cap {}; write a cap of at least the first delay",
        duration_text::format(*first),
        duration_text::format(*cap)
    )]
    Cap {
        /// The first delay given.
        first: Duration,
        /// The cap given.
        cap: Duration,
    },
    /// Not even the first try would be made.
    #[error("a retry policy has 0 attempts; write 1 for no retry at all")]
    Attempts,
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Try again after this long.
    RetryAfter(Duration),
    /// Do not try again.
    GiveUp(GiveUpReason),
}

/// Why there is no further try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GiveUpReason {
    /// Trying again cannot help.
    #[error("the failure is not retryable ({})", class.code())]
    NotRetryable {
        /// What sort of failure it was.
        class: ErrorClass,
    },
    /// The policy has no further try.
    #[error("all {failures} tries that the policy allows have failed")]
    Exhausted {
        /// How many tries have failed.
        failures: u32,
    },
}

impl ErrorClass {
    /// Every class, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Transient,
        Self::Conflict,
        Self::InvalidPayload,
        Self::Validation,
        Self::NotFound,
        Self::Denied,
        Self::Unrecoverable,
    ];

    /// Whether trying again can help.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Transient | Self::Conflict => true,
            Self::InvalidPayload | Self::Validation | Self::NotFound | Self::Denied | Self::Unrecoverable => {
                false
            }
        }
    }

    /// The stable code that is stored as a reason and sent to clients.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Conflict => "conflict",
            Self::InvalidPayload => "invalid-payload",
            Self::Validation => "validation",
            Self::NotFound => "not-found",
            Self::Denied => "denied",
            Self::Unrecoverable => "unrecoverable",
        }
    }
}

impl GiveUpReason {
    /// The stable code that is stored as a reason.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotRetryable { class } => class.code(),
            Self::Exhausted { .. } => "retries-exhausted",
        }
    }
}

impl RetryPolicy {
    /// What commands have when nothing is said: three retries after 1, 5 and 15 s.
    pub fn for_commands() -> Self {
        Self::Fixed([1, 5, 15].map(Duration::from_secs).into())
    }

    /// What channels have when nothing is said: exponential, ten tries in all.
    pub fn for_channels() -> Self {
        Self::Exponential {
            first: Duration::from_secs(2),
            factor: 2.0,
            cap: Duration::from_secs(300),
            attempts: 10,
            jitter: 0.2,
        }
    }

    /// What deliveries have when nothing is said: after 5 s, 30 s and 2 min, then give up.
    pub fn for_deliveries() -> Self {
        Self::Fixed([5, 30, 120].map(Duration::from_secs).into())
    }

    /// Whether the numbers make sense. Policies that are read from a file have passed this.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        let Self::Exponential { first, factor, cap, attempts, jitter } = *self else { return Ok(()) };
        if !(factor >= 1.0 && factor.is_finite()) {
            return Err(InvalidPolicy::Factor { factor });
        }
        if !(0.0..=1.0).contains(&jitter) {
            return Err(InvalidPolicy::Jitter { jitter });
        }
        if first > cap {
            return Err(InvalidPolicy::Cap { first, cap });
        }
        if attempts == 0 {
            return Err(InvalidPolicy::Attempts);
        }
        Ok(())
    }

    /// How long to wait before the next try, or `None` to give up.
    ///
    /// `failures_so_far` counts the tries that have failed, the one just now included; with 0 nothing has failed
    /// and nothing is waited for. `unit_random` is a number from 0 to 1 that the caller draws.
    pub fn next_delay(&self, failures_so_far: u32, unit_random: f64) -> Option<Duration> {
        let Some(retry) = failures_so_far.checked_sub(1) else { return Some(Duration::ZERO) };
        match *self {
            Self::Fixed(ref delays) => delays.get(usize::try_from(retry).ok()?).copied(),
            Self::Exponential { attempts, .. } if failures_so_far >= attempts => None,
            Self::Exponential { first, factor, cap, jitter, .. } => {
                // A policy built in code may not have been checked, so no number may lead to a panic here.
                // `max` turns a factor that is not a number into 1.
                let grown = scaled(first, factor.max(1.0).powf(f64::from(retry)), cap);
                let shortened_by = fraction(jitter) * fraction(unit_random);
                Some(scaled(grown, 1.0 - shortened_by, cap))
            }
        }
    }

    /// What to do after a failure of this class; see [`RetryPolicy::next_delay`] for the numbers.
    pub fn decide(&self, class: ErrorClass, failures_so_far: u32, unit_random: f64) -> RetryDecision {
        if !class.is_retryable() {
            return RetryDecision::GiveUp(GiveUpReason::NotRetryable { class });
        }
        match self.next_delay(failures_so_far, unit_random) {
            Some(delay) => RetryDecision::RetryAfter(delay),
            None => RetryDecision::GiveUp(GiveUpReason::Exhausted { failures: failures_so_far }),
        }
    }
}

/// Durations as people write them: `500ms`, `5s`, `2m`, `1m30s`, `24h`.
///
/// Usable as `#[serde(with = "duration_text")]`. What is printed is exact and is read back as the same duration.
pub mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// A text that is no duration.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    #[error(
        "{given:?} is no duration; write whole numbers with the units d, h, m, s, ms, us, ns, the largest first: \
         500ms, 5s, 1m30s, 24h"
    )]
    pub struct InvalidDuration {
        /// The text given.
        pub given: String,
    }

    /// The units with their length in nanoseconds, the largest first.
    const UNITS: [(&str, u128); 7] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ];

    /// Reads a duration.
    pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
        parse_parts(text).ok_or_else(|| InvalidDuration { given: text.to_owned() })
    }

    /// Prints a duration.
    pub fn format(duration: Duration) -> String {
        let mut rest = duration.as_nanos();
        let mut text = String::new();
        for (unit, length) in UNITS {
            let count = rest / length;
            rest %= length;
            if count > 0 {
                text.push_str(&count.to_string());
                text.push_str(unit);
            }
        }
        if text.is_empty() { "0s".to_owned() } else { text }
    }

    /// Writes a duration as its text.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format(*duration))
    }

    /// Reads a duration from its text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }

    fn parse_parts(text: &str) -> Option<Duration> {
        let mut total = Duration::ZERO;
        let mut rest = text;
        // Each unit at most once and in order, so that a duration has few spellings and no surprising ones.
        let mut units = UNITS.iter();
        while !rest.is_empty() {
            let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
            let (number, tail) = rest.split_at(digits);
            let (name, tail) =
                tail.split_at(tail.find(|letter: char| letter.is_ascii_digit()).unwrap_or(tail.len()));
            let (_, length) = units.find(|(unit, _)| *unit == name)?;
            let nanos = number.parse::<u64>().ok().map(u128::from)?.checked_mul(*length)?;
            let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
            let below_a_second = u32::try_from(nanos % 1_000_000_000).ok()?;
            total = total.checked_add(Duration::new(seconds, below_a_second))?;
            rest = tail;
        }
        (!text.is_empty()).then_some(total)
    }
}

/// Durations as a list of texts, for `#[serde(with = "duration_texts")]`.
pub mod duration_texts {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{WrittenDuration, duration_text};

    /// Writes durations as their texts.
    pub fn serialize<S: Serializer>(durations: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(durations.iter().map(|duration| duration_text::format(*duration)))
    }

    /// Reads durations from their texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
        let written = Vec::<WrittenDuration>::deserialize(deserializer)?;
        Ok(written.into_iter().map(|duration| duration.0).collect())
    }
}

/// A policy as it stands in a file: durations are texts, and nothing is checked yet.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum WrittenPolicy {
    Fixed(Vec<WrittenDuration>),
    Exponential {
        first: WrittenDuration,
        factor: f64,
        cap: WrittenDuration,
        attempts: u32,
        #[serde(default)]
        jitter: f64,
    },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
struct WrittenDuration(#[serde(with = "duration_text")] Duration);

impl TryFrom<WrittenPolicy> for RetryPolicy {
    type Error = InvalidPolicy;

    fn try_from(written: WrittenPolicy) -> Result<Self, InvalidPolicy> {
        let policy = match written {
            WrittenPolicy::Fixed(delays) => Self::Fixed(delays.into_iter().map(|delay| delay.0).collect()),
            WrittenPolicy::Exponential { first, factor, cap, attempts, jitter } => {
                Self::Exponential { first: first.0, factor, cap: cap.0, attempts, jitter }
            }
        };
        policy.check().map(|()| policy)
    }
}

impl From<RetryPolicy> for WrittenPolicy {
    fn from(policy: RetryPolicy) -> Self {
        match policy {
            RetryPolicy::Fixed(delays) => Self::Fixed(delays.into_iter().map(WrittenDuration).collect()),
            RetryPolicy::Exponential { first, factor, cap, attempts, jitter } => Self::Exponential {
                first: WrittenDuration(first),
                factor,
                cap: WrittenDuration(cap),
                attempts,
                jitter,
            },
        }
    }
}

/// `duration * by`, at most `cap`. `by` is not negative.
fn scaled(duration: Duration, by: f64, cap: Duration) -> Duration {
    // Times one is exact; going through floating point would lose nanoseconds of a long duration.
    if by == 1.0 || duration.is_zero() {
        return duration.min(cap);
    }
    Duration::try_from_secs_f64(duration.as_secs_f64() * by).unwrap_or(cap).min(cap)
}

fn fraction(number: f64) -> f64 {
    if number.is_nan() { 0.0 } else { number.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn delays(policy: &RetryPolicy) -> Vec<u64> {
        (1..).map_while(|failures| policy.next_delay(failures, 0.0)).map(|delay| delay.as_secs()).collect()
    }

    #[test]
    fn durations_are_a_list_of_texts() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Section(#[serde(with = "duration_texts")] Vec<Duration>);
        let section = Section(vec![Duration::from_secs(90), Duration::from_millis(5)]);
        assert_eq!(serde_json::to_string(&section).unwrap(), r#"["1m30s","5ms"]"#);
        assert_eq!(serde_json::from_str::<Section>(r#"["1m30s","5ms"]"#).unwrap(), section);
        let refused = serde_json::from_str::<Section>(r#"["1m30s","soon"]"#).unwrap_err();
        assert!(refused.to_string().contains("soon"), "{refused}");
    }

    #[test]
    fn the_usual_policies() {
        assert_eq!(delays(&RetryPolicy::for_commands()), [1, 5, 15]);
        assert_eq!(delays(&RetryPolicy::for_channels()), [2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(delays(&RetryPolicy::for_deliveries()), [5, 30, 120]);
    }

    #[test]
    fn what_no_retry_mends_is_given_up_at_once() {
        let policy = RetryPolicy::for_commands();
        for class in ErrorClass::ALL {
            let decision = policy.decide(class, 1, 0.5);
            match class {
                ErrorClass::Transient | ErrorClass::Conflict => {
                    assert_eq!(decision, RetryDecision::RetryAfter(Duration::from_secs(1)));
                }
                _ => assert_eq!(decision, RetryDecision::GiveUp(GiveUpReason::NotRetryable { class })),
            }
        }
        let last = policy.decide(ErrorClass::Transient, 4, 0.5);
        assert_eq!(last, RetryDecision::GiveUp(GiveUpReason::Exhausted { failures: 4 }));
    }

    #[test]
    fn codes_are_what_serde_writes() {
        for class in ErrorClass::ALL {
            assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{}\"", class.code()));
        }
    }

    #[test]
    fn policies_are_written_as_people_write_them() {
        let json = |policy: &RetryPolicy| serde_json::to_string(policy).unwrap();
        assert_eq!(json(&RetryPolicy::for_deliveries()), r#"{"fixed":["5s","30s","2m"]}"#);
        assert_eq!(
            json(&RetryPolicy::for_channels()),
            r#"{"exponential":{"first":"2s","factor":2.0,"cap":"5m","attempts":10,"jitter":0.2}}"#
        );
        for policy in
            [RetryPolicy::for_deliveries(), RetryPolicy::for_channels(), RetryPolicy::Fixed(Vec::new())]
        {
            assert_eq!(serde_json::from_str::<RetryPolicy>(&json(&policy)).unwrap(), policy);
        }
    }

    #[test]
    fn senseless_policies_are_refused_with_what_to_write() {
        let refused = |factor: f64, cap: &str, attempts: u32, jitter: f64| {
            let written = serde_json::json!({
                "exponential": {"first": "1s", "factor": factor, "cap": cap, "attempts": attempts, "jitter": jitter}
            });
            serde_json::from_value::<RetryPolicy>(written).unwrap_err().to_string()
        };
        assert_eq!(refused(0.5, "1m", 3, 0.0), "a retry policy has the factor 0.5; write 1 or more");
        assert_eq!(
            refused(2.0, "1m", 3, 1.5),
            "a retry policy has the jitter 1.5; write a fraction from 0 to 1"
        );
        assert_eq!(refused(2.0, "1m", 0, 0.0), "a retry policy has 0 attempts; write 1 for no retry at all");
        assert_eq!(
            refused(2.0, "500ms", 3, 0.0),
            "a retry policy has the first delay 1s above its cap 500ms; write a cap of at least the first delay"
        );
        assert!(refused(2.0, "soon", 3, 0.0).contains("\"soon\" is no duration"));
        let misspelt = r#"{"exponential":{"first":"1s","factor":2,"cap":"1m","attempts":3,"jiter":0.1}}"#;
        assert!(serde_json::from_str::<RetryPolicy>(misspelt).unwrap_err().to_string().contains("jiter"));
    }

    #[test]
    fn durations_as_people_write_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("24h", 86_400_000),
            ("0s", 0),
        ] {
            assert_eq!(duration_text::parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        assert_eq!(duration_text::format(Duration::from_millis(90_500)), "1m30s500ms");
        assert_eq!(duration_text::format(Duration::from_secs(86_400)), "1d");
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "-5s",
            "1.5s",
            "30s1m",
            "1s1s",
            "5sec",
            "99999999999999999999s",
            "+5s",
            "٥s",
            "1d ",
        ] {
            assert!(duration_text::parse(text).is_err(), "{text:?}");
        }
        assert!(duration_text::parse(&format!("{}d", u64::MAX)).is_err(), "more than a duration holds");
    }

    fn exponential() -> impl Strategy<Value = RetryPolicy> {
        (0_u64..100_000, 1.0..10.0_f64, 0_u64..1_000_000, 1_u32..50, 0.0..=1.0_f64).prop_map(
            |(first, factor, above_first, attempts, jitter)| RetryPolicy::Exponential {
                first: Duration::from_millis(first),
                factor,
                cap: Duration::from_millis(first + above_first),
                attempts,
                jitter,
            },
        )
    }

    proptest! {
        #[test]
        fn the_number_of_retries_is_exact(policy in exponential(), random in 0.0..=1.0_f64) {
            let RetryPolicy::Exponential { attempts, .. } = policy else { unreachable!() };
            for failures in 1..attempts {
                prop_assert!(policy.next_delay(failures, random).is_some());
            }
            for failures in attempts..attempts + 3 {
                prop_assert_eq!(policy.next_delay(failures, random), None);
            }
        }

        #[test]
        fn a_fixed_policy_gives_its_delays_in_turn(millis in proptest::collection::vec(0_u64..100_000, 0..10)) {
            let delays: Vec<_> = millis.into_iter().map(Duration::from_millis).collect();
            let policy = RetryPolicy::Fixed(delays.clone());
            let given: Vec<_> = (1..).map_while(|failures| policy.next_delay(failures, 0.5)).collect();
            prop_assert_eq!(given, delays);
        }

        #[test]
        fn the_cap_holds_with_jitter(policy in exponential(), failures in 0_u32..60, random in 0.0..=1.0_f64) {
            let RetryPolicy::Exponential { cap, jitter, .. } = policy else { unreachable!() };
            if let Some(delay) = policy.next_delay(failures, random) {
                prop_assert!(delay <= cap);
                let unshortened = policy.next_delay(failures, 0.0).unwrap();
                prop_assert!(delay <= unshortened);
                // A microsecond of slack for the rounding of floating point.
                prop_assert!(delay + Duration::from_micros(1) >= unshortened.mul_f64(1.0 - jitter));
            }
        }

        #[test]
        fn delays_never_shrink_without_jitter(policy in exponential()) {
            let delays: Vec<_> = (1..).map_while(|failures| policy.next_delay(failures, 0.0)).collect();
            prop_assert!(delays.is_sorted(), "{delays:?}");
        }

        #[test]
        fn unchecked_numbers_do_no_harm(
            first in any::<Duration>(),
            cap in any::<Duration>(),
            factor in any::<f64>(),
            jitter in any::<f64>(),
            random in any::<f64>(),
            failures in any::<u32>(),
        ) {
            let policy = RetryPolicy::Exponential { first, factor, cap, attempts: u32::MAX, jitter };
            if let Some(delay) = policy.next_delay(failures, random) {
                prop_assert!(delay <= cap);
            }
        }

        #[test]
        fn a_printed_duration_is_read_back(duration in any::<Duration>()) {
            prop_assert_eq!(duration_text::parse(&duration_text::format(duration)).unwrap(), duration);
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), near in "[0-9dhmsun]{0,12}") {
            let _ = (duration_text::parse(&text), duration_text::parse(&near));
        }
    }
}
