//! Routes: which channels an event goes to, decided when it is written.

use crate::ids::ChannelName;

/// A pattern over event types: `*` stands for any run of characters, everything else for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// A pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole text fits.
    pub fn matches(&self, text: &str) -> bool {
        let mut pieces = self.0.split('*');
        // `split` always yields a first piece; without a star it is the whole pattern.
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut pieces: Vec<&str> = pieces.collect();
        let Some(last) = pieces.pop() else { return rest.is_empty() };
        for piece in pieces {
            match rest.find(piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

/// A channel and the event types it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub channel: ChannelName,
    /// What: any of these patterns.
    pub event_types: Vec<Glob>,
}

/// All routes of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Adds a route. Routes to the same channel add up.
    pub fn add(&mut self, route: Route) {
        self.0.push(route);
    }

    /// The channels that take an event type, each once.
    pub fn channels_for(&self, event_type: &str) -> Vec<ChannelName> {
        let mut channels: Vec<ChannelName> = Vec::new();
        for route in &self.0 {
            let takes = route.event_types.iter().any(|glob| glob.matches(event_type));
            if takes && !channels.contains(&route.channel) {
                channels.push(route.channel.clone());
            }
        }
        channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_stand_for_any_run() {
        let fits = |pattern: &str, text: &str| Glob::new(pattern).matches(text);
        assert!(fits("*", "") && fits("*", "order.placed") && fits("order.*", "order.placed"));
        assert!(
            fits("*.placed", "order.placed")
                && fits("Genesis.*.Requested", "Genesis.Session.Theme.Requested")
        );
        assert!(fits("order.placed", "order.placed") && fits("a*b*c", "aXbbYc"));
        assert!(!fits("order.*", "orders.placed") && !fits("order.placed", "order.placed.twice"));
        assert!(!fits("ab*ba", "aba"), "the two ends must not share characters");
        assert!(!fits("", "x") && fits("", ""));
    }

    #[test]
    fn a_channel_gets_an_event_once() {
        let mut routes = Routes::default();
        let all = ChannelName::new("all").unwrap();
        routes.add(Route { channel: all.clone(), event_types: vec![Glob::new("*"), Glob::new("order.*")] });
        routes.add(Route { channel: all.clone(), event_types: vec![Glob::new("order.*")] });
        assert_eq!(routes.channels_for("order.placed"), [all]);
    }

    proptest! {
        #[test]
        fn a_pattern_without_stars_is_itself(text in "[a-z.]{0,12}", other in "[a-z.]{0,12}") {
            prop_assert_eq!(Glob::new(&text).matches(&other), text == other);
        }

        #[test]
        fn both_ends_of_a_star_are_kept(head in "[a-c]{0,4}", middle in "[a-c]{0,6}", tail in "[a-c]{0,4}") {
            let glob = Glob::new(format!("{head}*{tail}"));
            let text = format!("{head}{middle}{tail}");
            prop_assert!(glob.matches(&text));
        }
    }
}
