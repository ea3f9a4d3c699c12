//! Money: an exact amount with two decimals, a JSON number on the wire.

use std::fmt;
use std::str::FromStr;

use rust_decimal::Decimal;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use towpath::ports::store::{StoreError, StoreResult};
use towpath::tables::{ColumnKind, ColumnValue, Record, Value};

/// An amount of money: at least 0.00, with exactly two decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money(Decimal);

/// What is not an amount of money.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMoney {
    /// Not a number.
    #[error("{0:?} is not a number")]
    NotANumber(String),
    /// More than two decimals.
    #[error("{0} has more than two decimals")]
    TooFine(String),
    /// Less than nothing, or more than 9999999999.99.
    #[error("{0} is not between 0.00 and 9999999999.99")]
    OutOfRange(String),
}

impl Money {
    /// The largest amount, in hundredths.
    const MOST_CENTS: i64 = 999_999_999_999;

    /// An amount in hundredths, as it is stored.
    pub fn from_cents(cents: i64) -> Result<Self, InvalidMoney> {
        if (0..=Self::MOST_CENTS).contains(&cents) {
            Ok(Self(Decimal::new(cents, 2)))
        } else {
            Err(InvalidMoney::OutOfRange(Decimal::new(cents, 2).to_string()))
        }
    }

    /// In hundredths.
    pub fn cents(self) -> i64 {
        // It has two decimals, and a mantissa that fits.
        i64::try_from(self.0.mantissa()).unwrap_or(Self::MOST_CENTS)
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// So many times as much.
    pub fn times(self, quantity: i64) -> Result<Self, InvalidMoney> {
        let too_much = || InvalidMoney::OutOfRange(format!("{self} times {quantity}"));
        Self::from_cents(self.cents().checked_mul(quantity).ok_or_else(too_much)?)
    }
}

impl FromStr for Money {
    type Err = InvalidMoney;

    fn from_str(text: &str) -> Result<Self, InvalidMoney> {
        // JSON allows 8.85e1, people do not write it; both are exact. The library would round what stands before the e.
        let digits = text.split(['e', 'E']).next().unwrap_or_default();
        let exact = Decimal::from_str_exact(digits);
        let parsed = if digits.len() == text.len() {
            exact
        } else {
            exact.and_then(|_| Decimal::from_scientific(text))
        };
        let mut amount = parsed.map_err(|_| InvalidMoney::NotANumber(text.to_owned()))?;
        if amount.normalize().scale() > 2 {
            return Err(InvalidMoney::TooFine(text.to_owned()));
        }
        let most = Decimal::new(Self::MOST_CENTS, 2);
        if amount < Decimal::ZERO || amount > most {
            return Err(InvalidMoney::OutOfRange(text.to_owned()));
        }
        amount.rescale(2);
        Ok(Self(amount.abs()))
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// Kept in hundredths: every database adds and compares them exactly.
impl ColumnValue for Money {
    const KIND: ColumnKind = ColumnKind::Long;

    fn write(&self) -> Value<'_> {
        self.cents().into()
    }

    fn read(record: &Record, column: &str) -> StoreResult<Self> {
        Self::from_cents(record.long(column)?).map_err(|error| StoreError::corrupt(column, error))
    }
}

impl From<Money> for Value<'_> {
    fn from(money: Money) -> Self {
        money.cents().into()
    }
}

// A float would lose what a decimal keeps: the text of the number is written and read as it is.
impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = RawValue::from_string(self.to_string()).map_err(serde::ser::Error::custom)?;
        number.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Box::<RawValue>::deserialize(deserializer)?;
        number.get().parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_decimals_stand_on_the_wire_and_nothing_is_rounded() {
        for (given, written) in
            [("88.50", "88.50"), ("88.5", "88.50"), ("88", "88.00"), ("0.07", "0.07"), ("8.85e1", "88.50")]
        {
            let money: Money = serde_json::from_str(given).unwrap();
            assert_eq!(serde_json::to_string(&money).unwrap(), written);
        }
        // As a float, a third of these would be another amount.
        for cents in [1, 29, 57, 1_001, 999_999_999_999] {
            let money = Money::from_cents(cents).unwrap();
            let read: Money = serde_json::from_str(&serde_json::to_string(&money).unwrap()).unwrap();
            assert_eq!(read.cents(), cents);
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in [
            "-0.01",
            "0.001",
            "1e20",
            "\"88.50\"",
            "null",
            "true",
            "10000000000.00",
            "88.4999999999999999999999999999999e0",
        ] {
            assert!(serde_json::from_str::<Money>(text).is_err(), "{text}");
        }
        assert!(Money::from_cents(-1).is_err());
        assert!("88,50".parse::<Money>().is_err());
    }
}
