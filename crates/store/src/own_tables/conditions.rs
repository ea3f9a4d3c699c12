//! Conditions of a statement on the application's own tables.

use crate::sql::Value;

/// What rows must be like: conditions that all have to hold, each with its values. What a listing is asked for is put
/// together so, and nothing of it stands in the text of a statement.
///
/// ```
/// # use towpath_store::Conditions;
/// let (buyer_id, seller_id) = (Some(7_i64), None::<i64>);
/// let chosen = Conditions::of("order_id > ?", 900_i64).and_some("buyer_id = ?", buyer_id);
/// let (text, values) = chosen.and_some("seller_id = ?", seller_id).then("ORDER BY order_id LIMIT ?", 100_u32);
/// assert_eq!(text, "WHERE (order_id > ?) AND (buyer_id = ?) ORDER BY order_id LIMIT ?");
/// assert_eq!(values.len(), 3);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Conditions<'v> {
    texts: Vec<String>,
    values: Vec<Value<'v>>,
}

impl<'v> Conditions<'v> {
    /// The first condition, with one `?`.
    pub fn of(condition: impl Into<String>, value: impl Into<Value<'v>>) -> Self {
        Self::default().and(condition, value)
    }

    /// Another one.
    pub fn and(mut self, condition: impl Into<String>, value: impl Into<Value<'v>>) -> Self {
        // One with OR must not reach over its neighbours.
        self.texts.push(format!("({})", condition.into()));
        self.values.push(value.into());
        self
    }

    /// Another one, if there is a value for it.
    pub fn and_some(self, condition: &str, value: Option<impl Into<Value<'v>>>) -> Self {
        match value {
            Some(value) => self.and(condition, value),
            None => self,
        }
    }

    /// A column has one of these values. Of none of them nothing is.
    pub fn and_one_of<V: Into<Value<'v>>>(
        mut self,
        column: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let before = self.values.len();
        self.values.extend(values.into_iter().map(Into::into));
        let places = vec!["?"; self.values.len() - before].join(", ");
        self.texts.push(if places.is_empty() {
            "1 = 0".to_owned()
        } else {
            format!("{column} IN ({places})")
        });
        self
    }

    /// The text from `WHERE` on, with what stands behind the conditions and has one `?`; and all values.
    pub fn then(mut self, end: &str, value: impl Into<Value<'v>>) -> (String, Vec<Value<'v>>) {
        let all = if self.texts.is_empty() { "1 = 1".to_owned() } else { self.texts.join(" AND ") };
        self.values.push(value.into());
        (format!("WHERE {all} {end}"), self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_the_order_of_their_places() {
        let chosen =
            Conditions::of("a = ?", 1_i64).and_one_of("b", ["x", "y"]).and_some("c = ?", None::<i64>);
        let (text, values) = chosen.and("d > ?", "z").then("LIMIT ?", 5_u32);
        assert_eq!(text, "WHERE (a = ?) AND b IN (?, ?) AND (d > ?) LIMIT ?");
        let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        let expected = [1_i64.into(), "x".into(), "y".into(), "z".into(), Value::from(5_u32)];
        assert_eq!(values, expected.map(|value: Value<'_>| format!("{value:?}")));
    }

    #[test]
    fn one_of_nothing_is_nothing_and_no_condition_is_everything() {
        let nothing = Conditions::default().and_one_of("a", Vec::<i64>::new());
        assert_eq!(nothing.then("LIMIT ?", 1_i64).0, "WHERE 1 = 0 LIMIT ?");
        assert_eq!(Conditions::default().then("LIMIT ?", 1_i64).0, "WHERE 1 = 1 LIMIT ?");
    }
}
