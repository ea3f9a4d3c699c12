//! The notification log (N2 to N4): the log of facts cut into pages of a fixed size. Nothing of a page is stored.
//!
//! A page is known by the positions it spans, `low,high`. Positions are gapless and only committed facts have one, so a
//! page that lies behind the head is full and never changes again: it is archived. The page that holds the head, or
//! comes right after a full one when nothing has happened yet, is the current one.

use std::fmt;
use std::num::NonZeroU64;

use crate::ids::Position;

/// How many notifications a page has, unless configured. Fixed for the life of a log: page ids depend on it.
pub const PAGE_SIZE: NonZeroU64 = NonZeroU64::new(20).unwrap();

/// How many it has at most: a page is read and sent as a whole.
pub const LARGEST_PAGE_SIZE: NonZeroU64 = NonZeroU64::new(1000).unwrap();

/// The positions that a page spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageId {
    /// The first.
    pub low: Position,
    /// The last, whether or not it has happened yet.
    pub high: Position,
}

/// A page as it is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Which.
    pub id: PageId,
    /// The one after it, if it has begun.
    pub next: Option<PageId>,
    /// The one before it.
    pub previous: Option<PageId>,
    /// Full, and passed by the log: it never changes again.
    pub archived: bool,
    /// The last position given when it was looked at.
    pub head: Position,
}

/// A text that is no page id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a notification log: two positions with a comma between them, such as 1,20")]
pub struct InvalidPageId(pub String);

impl PageId {
    /// Reads `low,high`.
    pub fn parse(text: &str) -> Result<Self, InvalidPageId> {
        let invalid = || InvalidPageId(text.chars().take(100).collect());
        let number = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
            digits.parse::<Position>().ok().filter(|_| plain)
        };
        let (low, high) = text.split_once(',').ok_or_else(invalid)?;
        match (number(low), number(high)) {
            (Some(low), Some(high)) if low <= high => Ok(Self { low, high }),
            _ => Err(invalid()),
        }
    }

    /// The page that holds a position.
    fn holding(position: Position, size: NonZeroU64) -> Self {
        let size = size.get();
        let low = (position.max(1) - 1) / size * size + 1;
        Self { low, high: low.saturating_add(size - 1) }
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.low, self.high)
    }
}

impl Page {
    /// The current page: the one that holds the last position given, or the first when nothing has happened.
    pub fn current(head: Position, size: NonZeroU64) -> Self {
        Self::at(PageId::holding(head, size), head, size)
    }

    /// A page by its id; `None` when there is no such page (yet).
    pub fn of(id: PageId, head: Position, size: NonZeroU64) -> Option<Self> {
        let exists = PageId::holding(id.low, size) == id && id.low <= head.max(1);
        exists.then(|| Self::at(id, head, size))
    }

    fn at(id: PageId, head: Position, size: NonZeroU64) -> Self {
        let page = |low| PageId::holding(low, size);
        Self {
            id,
            next: (id.high < head).then(|| page(id.high + 1)),
            previous: (id.low > 1).then(|| page(id.low - 1)),
            archived: id.high < head,
            head,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(text: &str) -> PageId {
        PageId::parse(text).unwrap()
    }

    #[test]
    fn the_current_page_is_computed_as_the_source_does() {
        for (head, current, archived) in [
            (0, "1,20", false),
            (1, "1,20", false),
            (20, "1,20", false),
            (21, "21,40", false),
            (65, "61,80", false),
        ] {
            let page = Page::current(head, PAGE_SIZE);
            assert_eq!((page.id.to_string().as_str(), page.archived), (current, archived), "head {head}");
            assert_eq!(page.next, None);
        }
    }

    #[test]
    fn a_page_is_archived_once_the_log_has_passed_it() {
        let page = |head| Page::of(id("21,40"), head, PAGE_SIZE);
        assert_eq!(page(20), None);
        assert!(!page(21).unwrap().archived && !page(40).unwrap().archived);
        let archived = page(41).unwrap();
        assert!(archived.archived);
        assert_eq!((archived.previous, archived.next), (Some(id("1,20")), Some(id("41,60"))));
    }

    #[test]
    fn what_is_no_page_is_told_apart_from_one_that_does_not_exist() {
        for text in
            ["", "1", "1-20", "0,19", "a,b", "1,", ",20", "20,1", "01,20", "+1,20", "1,20,40", " 1,20"]
        {
            assert!(PageId::parse(text).is_err(), "{text:?}");
        }
        for text in ["1,21", "2,21", "101,120", "1,19"] {
            assert_eq!(Page::of(id(text), 65, PAGE_SIZE), None, "{text}");
        }
        assert!(PageId::parse("99999999999999999999999,1").is_err());
        assert_eq!(Page::of(PageId { low: u64::MAX, high: u64::MAX }, 65, PAGE_SIZE), None);
    }

    proptest! {
        #[test]
        fn walking_back_from_the_current_page_meets_every_position_once(head in 0_u64..500, size in 1_u64..50) {
            let size = NonZeroU64::new(size).unwrap();
            let mut page = Page::current(head, size);
            let mut seen = Vec::new();
            loop {
                seen.extend((page.id.low..=page.id.high.min(head)).rev());
                match page.previous {
                    Some(previous) => {
                        let before = Page::of(previous, head, size).unwrap();
                        prop_assert_eq!(before.next, Some(page.id));
                        prop_assert!(before.archived);
                        page = before;
                    }
                    None => break,
                }
            }
            seen.reverse();
            prop_assert_eq!(seen, (1..=head).collect::<Vec<_>>());
        }
    }
}
