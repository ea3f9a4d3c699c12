//! Which part of a listing is asked for.

use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;

/// How many things an answer holds at most.
const MOST: u32 = 1000;

/// How many it holds when nothing is said.
const USUALLY: u32 = 100;

/// The largest number that every reader of JSON holds exactly.
const LARGEST: u64 = (1 << 53) - 1;

/// Which part of a numbered listing is asked for.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Range {
    /// Only what is behind this number; 0 begins at the first.
    #[serde(default, deserialize_with = "number")]
    #[param(required = false, minimum = 0, maximum = 9007199254740991_i64)]
    pub(crate) after: u64,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: u32,
}

/// How many when nothing is said.
pub fn usually() -> u32 {
    USUALLY
}

/// Reads how many are asked for.
pub(crate) fn limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    limit_up_to(deserializer, MOST)
}

/// The same where an answer holds fewer.
fn limit_up_to<'de, D: Deserializer<'de>>(deserializer: D, most: u32) -> Result<u32, D::Error> {
    let limit = u32::deserialize(deserializer)?;
    match (1..=most).contains(&limit) {
        true => Ok(limit),
        false => Err(serde::de::Error::custom(format!("limit is {limit}; ask for 1 to {most}"))),
    }
}

/// The largest page of an application's listings.
const MOST_OF_AN_APPLICATION: u32 = 500;

/// The same for listings of applications.
pub fn page_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    limit_up_to(deserializer, MOST_OF_AN_APPLICATION)
}

/// Behind what the next page begins. A page that is not full is the last.
pub fn next<T, K>(page: &[T], limit: u32, key: impl FnOnce(&T) -> K) -> Option<K> {
    page.last().filter(|_| u32::try_from(page.len()).is_ok_and(|rows| rows >= limit)).map(key)
}

/// Reads a number that every reader of JSON holds exactly.
pub fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    match number {
        0..=LARGEST => Ok(number),
        _ => Err(serde::de::Error::custom(format!("{number} is too large; at most {LARGEST} is understood"))),
    }
}

/// A number in a path.
#[derive(Deserialize)]
pub(crate) struct Number(#[serde(deserialize_with = "number")] pub(crate) u64);

/// Reads a whole number in a body. JSON does not tell `5` from `5.0`.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else { return Ok(None) };
    match as_whole_number(&number) {
        Some(number) => Ok(Some(number)),
        None => Err(serde::de::Error::custom(format!("{number} is no whole number from 0 to {LARGEST}"))),
    }
}

/// A number that is whole, however it is written.
pub(crate) fn as_whole_number(number: &serde_json::Number) -> Option<u64> {
    let written_with_a_point = || {
        let number =
            number.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=9.1e15).contains(number))?;
        format!("{number:.0}").parse().ok()
    };
    number.as_u64().or_else(written_with_a_point).filter(|number| *number <= LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let read = |text: &str| as_whole_number(&serde_json::from_str(text).unwrap());
        assert_eq!((read("5"), read("5.0"), read("5e2")), (Some(5), Some(5), Some(500)));
        assert_eq!(read("9007199254740991"), Some(LARGEST));
        for none in ["9007199254740992", "-1", "5.5", "1e300", "18446744073709551615"] {
            assert_eq!(read(none), None, "{none}");
        }
    }
}
