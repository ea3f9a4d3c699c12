//! Which messages of a topic a queue takes: Kafka itself does not route, so receivers do, by RabbitMQ's rules.

use towpath_core::ports::broker::ExchangeKind;

/// Whether a routing key fits what a queue is bound by.
pub(super) fn fits(kind: ExchangeKind, bound_by: &str, routing_key: &str) -> bool {
    match kind {
        ExchangeKind::Fanout => true,
        ExchangeKind::Direct => bound_by == routing_key,
        ExchangeKind::Topic => words_fit(&words(bound_by), &words(routing_key)),
    }
}

/// An empty key has no words, not one that is empty.
fn words(key: &str) -> Vec<&str> {
    if key.is_empty() { Vec::new() } else { key.split('.').collect() }
}

/// `*` stands for one word, `#` for any number of them. Every place of the pattern is compared with every place of the
/// key at most once, so no pattern can make it slow.
fn words_fit(pattern: &[&str], key: &[&str]) -> bool {
    // Which beginnings of the key the beginning of the pattern fits.
    let mut fits = vec![false; key.len() + 1];
    fits[0] = true;
    for word in pattern {
        if *word == "#" {
            let mut reached = false;
            for fit in &mut fits {
                reached |= *fit;
                *fit = reached;
            }
            continue;
        }
        for place in (1..fits.len()).rev() {
            fits[place] = fits[place - 1] && (*word == "*" || *word == key[place - 1]);
        }
        fits[0] = false;
    }
    fits[key.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_on_rabbitmq() {
        for (pattern, key, expected) in [
            ("order.placed", "order.placed", true),
            ("order.placed", "order.paid", false),
            ("order.*", "order.placed", true),
            ("order.*", "order", false),
            ("order.*", "order.placed.twice", false),
            ("order.#", "order", true),
            ("order.#", "order.placed.twice", true),
            ("order.#", "orders.placed", false),
            ("#", "", true),
            ("*", "", false),
            ("", "", true),
            ("", "order", false),
            ("#.placed", "order.line.placed", true),
            ("#.placed", "order.line.paid", false),
            ("*.#.*", "order", false),
            ("*.#.*", "order.placed", true),
            ("#.line.#", "order.line.added.twice", true),
            ("order.*.#", "order", false),
        ] {
            assert_eq!(fits(ExchangeKind::Topic, pattern, key), expected, "{pattern} and {key}");
        }
        assert!(fits(ExchangeKind::Direct, "order.*", "order.*"));
        assert!(!fits(ExchangeKind::Direct, "order.*", "order.paid"));
        assert!(fits(ExchangeKind::Fanout, "", "anything"));
    }

    #[test]
    fn no_pattern_is_slow() {
        let pattern = vec!["#"; 10_000].join(".a.");
        assert!(!fits(ExchangeKind::Topic, &pattern, &vec!["a"; 200].join(".")));
    }
}
