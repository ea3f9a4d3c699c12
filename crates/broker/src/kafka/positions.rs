//! Where a group begins to read a partition: purely.
//!
//! Kafka forgets: a group's positions when it has had no member for a while (a week, unless the broker is told otherwise), and
//! messages when they are old. Left to itself a client then reads everything again, or goes on behind what it has not read,
//! and tells nobody.

/// What is known of a partition and of a group's position in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Everything before it is done, if the group has a position.
    pub(super) committed: Option<i64>,
    /// The first message that is there, and the end.
    pub(super) first: i64,
    pub(super) end: i64,
    /// The first message that inboxes still remember, or the end.
    pub(super) remembered: i64,
}

/// Where to begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Where the group was.
    At(i64),
    /// At the first message, as nothing is known of what was read; so many are there.
    First { messages: i64 },
}

/// Where a group begins; `always` begins without a position however old what is there.
///
/// # Errors
/// Why nobody but a person can say: messages would be left out, or have their effects twice.
pub(super) fn begin(known: Known, always: bool) -> Result<Begin, String> {
    let Known { committed, first, end, remembered } = known;
    match committed {
        Some(at) if at < first => Err(format!(
            "it has read up to {at}, and the broker has deleted what was there up to {first}: {} messages that nobody has read",
            first - at
        )),
        Some(at) if at <= end => Ok(Begin::At(at)),
        // A position beyond the end belongs to a topic that is no more, or that has lost its end.
        _ if always || remembered <= first => Ok(Begin::First { messages: end - first }),
        _ => Err(format!(
            "it has no position, and {} messages are older than inboxes remember: who has handled them before would handle \
             them again",
            remembered.min(end) - first
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(committed: Option<i64>, first: i64, end: i64, remembered: i64) -> Known {
        Known { committed, first, end, remembered }
    }

    #[test]
    fn a_group_goes_on_where_it_was() {
        for at in [10, 15, 20] {
            assert_eq!(begin(known(Some(at), 10, 20, 20), false), Ok(Begin::At(at)));
        }
    }

    #[test]
    fn without_a_position_it_begins_at_the_first_if_inboxes_remember_all_of_it() {
        assert_eq!(begin(known(None, 10, 20, 10), false), Ok(Begin::First { messages: 10 }));
        assert_eq!(begin(known(None, 20, 20, 20), false), Ok(Begin::First { messages: 0 }));
        // The topic was made anew.
        assert_eq!(begin(known(Some(30), 0, 5, 0), false), Ok(Begin::First { messages: 5 }));
    }

    #[test]
    fn what_would_be_left_out_or_done_twice_is_told() {
        assert!(
            begin(known(Some(5), 10, 20, 10), false).unwrap_err().contains("5 messages that nobody has read")
        );
        assert!(begin(known(Some(5), 10, 20, 10), true).is_err());
        assert!(begin(known(None, 10, 20, 15), false).unwrap_err().contains("5 messages are older"));
        assert!(begin(known(Some(30), 10, 20, 20), false).unwrap_err().contains("10 messages are older"));
        assert_eq!(begin(known(None, 10, 20, 15), true), Ok(Begin::First { messages: 10 }));
    }
}
