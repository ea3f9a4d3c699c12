//! Which message of a batch a returned message is, and what may be concluded when not every answer has come.
//!
//! RabbitMQ sends a message that no queue wants back *before* it confirms it. lapin hands each returned message out
//! with whatever confirm it completes next, which need not be the same message's: several are confirmed at once, in
//! the order of a hash map. So returns are matched by what they say about themselves.
//!
//! There is a second edge to it: when a batch is given up half way, a message may be confirmed while its return still
//! waits inside lapin for a later confirm to carry it. See [`verdicts`].

use std::collections::{HashMap, VecDeque};

use towpath_core::ports::broker::{Message, Published};

/// What the broker answered about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Ack,
    Nack,
    /// Nothing, yet or ever.
    None,
}

/// A message that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) message_id: Option<String>,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) reason: String,
}

/// One verdict for each message; `None` for those whose fate is not known.
///
/// # Guarantees
/// A message that came back is never called confirmed. lapin queues returns in the order in which they came, and each
/// confirm takes the oldest. Returns come in the order of publishing. So if every return seen belongs to a message
/// whose answer is seen too, none is left behind for any answered message; and if one is seen whose own answer is
/// not, then some answered message published after it may have left its return in the queue: those are not known.
pub(super) fn verdicts(
    messages: &[&Message],
    answers: &[Answer],
    returns: &[Return],
) -> Vec<Option<Published>> {
    let mut reasons: Vec<Option<&str>> = vec![None; messages.len()];
    let mut unanswered_from = messages.len();
    if !returns.is_empty() {
        let mut places: HashMap<(&str, &str, &str), VecDeque<usize>> = HashMap::new();
        for (place, message) in messages.iter().enumerate() {
            let to = &message.destination;
            places.entry((&message.message_id, &to.exchange, &to.routing_key)).or_default().push_back(place);
        }
        for returned in returns {
            let id = returned.message_id.as_deref().unwrap_or_default();
            let place = places
                .get_mut(&(id, returned.exchange.as_str(), returned.routing_key.as_str()))
                .and_then(VecDeque::pop_front);
            match place {
                Some(place) => {
                    reasons[place] = Some(&returned.reason);
                    if answers[place] == Answer::None {
                        unanswered_from = unanswered_from.min(place);
                    }
                }
                // Not one of ours, which cannot be: the channel is. Then any of them may be the one.
                None => unanswered_from = 0,
            }
        }
    }
    let verdict = |place: usize| match (reasons[place], answers[place]) {
        (Some(reason), _) => Some(Published::Unroutable { reason: reason.to_owned() }),
        (None, Answer::Nack) => {
            Some(Published::NotTaken { reason: "the broker could not store it".to_owned() })
        }
        (None, Answer::Ack) if place < unanswered_from => Some(Published::Confirmed),
        (None, Answer::Ack | Answer::None) => None,
    };
    (0..messages.len()).map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use towpath_core::ports::broker::Destination;

    use super::*;

    fn message(id: &str) -> Message {
        Message {
            destination: Destination { exchange: "e".into(), routing_key: "k".into() },
            message_id: id.into(),
            message_type: String::new(),
            key: String::new(),
            occurred_at: DateTime::UNIX_EPOCH,
            content_type: String::new(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    fn returned(id: &str) -> Return {
        Return {
            message_id: Some(id.into()),
            exchange: "e".into(),
            routing_key: "k".into(),
            reason: "NO_ROUTE".into(),
        }
    }

    fn judge(ids: &[&str], answers: &[Answer], returns: &[Return]) -> String {
        let messages: Vec<Message> = ids.iter().map(|id| message(id)).collect();
        let messages: Vec<&Message> = messages.iter().collect();
        let letter = |verdict: &Option<Published>| match verdict {
            Some(Published::Confirmed) => 'c',
            Some(Published::Unroutable { .. }) => 'u',
            Some(Published::Refused { .. } | Published::NotTaken { .. }) => 'r',
            Some(Published::Unknown { .. } | Published::NotSent { .. }) => '!',
            None => '?',
        };
        verdicts(&messages, answers, returns).iter().map(letter).collect()
    }

    #[test]
    fn a_return_is_matched_by_its_id_whatever_confirm_brought_it() {
        use Answer::{Ack, Nack, None};
        assert_eq!(judge(&["a", "b", "c"], &[Ack, Ack, Ack], &[returned("b")]), "cuc");
        assert_eq!(judge(&["a", "b", "c"], &[Ack, Nack, Ack], &[]), "crc");
        assert_eq!(judge(&["a", "a", "c"], &[Ack, Ack, Ack], &[returned("a"), returned("a")]), "uuc");
        assert_eq!(judge(&["a", "b", "c"], &[Ack, None, None], &[]), "c??");
    }

    #[test]
    fn a_confirm_whose_return_may_still_be_under_way_is_not_believed() {
        use Answer::{Ack, None};
        // b and c came back; c's confirm took b's return, and c's own waits for b's confirm.
        assert_eq!(judge(&["a", "b", "c"], &[Ack, None, Ack], &[returned("b")]), "cu?");
        assert_eq!(judge(&["a", "b"], &[Ack, Ack], &[returned("unheard of")]), "??");
    }
}
