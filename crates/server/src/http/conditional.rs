//! Conditional requests: strong tags of contents, and what a client says it has.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

/// The strong tag of a body: a digest of the very bytes that are sent.
///
/// Not an id and a count, nor the id of a log: a database that was restored from a backup has the same ids and then goes
/// on differently, and what a cache kept from before would be taken for what is there now. Only the content says that it
/// is the same.
pub(super) fn tag_of(body: &[u8]) -> String {
    let mut tag = Tag::default();
    tag.add(body);
    tag.text()
}

/// The tag of a body that comes in pieces.
#[derive(Default)]
pub(super) struct Tag(Sha256);

impl Tag {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn text(self) -> String {
        let half: String = self.0.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{half}\"")
    }
}

/// Whether the client has this already. Tags are compared weakly, as RFC 9110 asks for `If-None-Match`: a proxy that
/// compresses makes a strong tag weak.
pub(super) fn is_known(asked: &HeaderMap, tag: &str) -> bool {
    asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|list| {
        let list = list.trim();
        list == "*" || tags(list).any(|given| given == tag)
    })
}

/// What `If-Match` names.
#[derive(Debug, PartialEq, Eq)]
pub enum Tags<'t> {
    /// Whatever there is.
    Any,
    /// What has one of these, without their quotes. Weak tags are not among them: for a change only the very same will do.
    These(Vec<&'t str>),
}

/// Reads an `If-Match`; `None` if it is none. A list of weak tags alone has one that nothing has.
pub fn strong_tags(list: &str) -> Option<Tags<'_>> {
    let list = list.trim();
    if list == "*" {
        return Some(Tags::Any);
    }
    let mut found = Vec::new();
    let mut rest = list;
    loop {
        let (weak, quoted) = match rest.strip_prefix("W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let (tag, behind) = quoted.strip_prefix('"')?.split_once('"')?;
        found.push(if weak { "" } else { tag });
        let behind = behind.trim_start();
        if behind.is_empty() {
            return Some(Tags::These(found));
        }
        rest = behind.strip_prefix(',')?.trim_start();
    }
}

/// The tags of a list, each with its quotes and without `W/`. Tags may hold commas, so the list is not split at them.
fn tags(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let begin = rest.find('"')?;
        let end = begin + 1 + rest.get(begin + 1..)?.find('"')?;
        let tag = rest.get(begin..=end);
        rest = rest.get(end + 1..).unwrap_or_default();
        tag
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn knows(lists: &[&str], tag: &str) -> bool {
        let mut headers = HeaderMap::new();
        for list in lists {
            headers.append(header::IF_NONE_MATCH, HeaderValue::from_str(list).unwrap());
        }
        is_known(&headers, tag)
    }

    #[test]
    fn a_tag_is_found_among_others_weak_or_strong_and_over_several_lines() {
        for lists in [
            &["\"a\""][..],
            &["W/\"a\""],
            &["\"1,20\", \"a\""],
            &["\"b\",W/\"c\" , W/\"a\""],
            &["\"b\"", "\"a\""],
            &["*"],
            &["  *  "],
        ] {
            assert!(knows(lists, "\"a\""), "{lists:?}");
        }
        for lists in [&[][..], &["\"b\""], &["a"], &["\"ab\""], &["\"a"], &["\""], &["W/"], &["\"x\"a\"y\""]]
        {
            assert!(!knows(lists, "\"a\""), "{lists:?}");
        }
    }

    #[test]
    fn a_change_names_strong_tags() {
        for (list, tags) in [
            ("\"1\"", vec!["1"]),
            (" \"1\" ,\"a,b\" ", vec!["1", "a,b"]),
            ("W/\"1\", \"2\"", vec!["", "2"]),
            ("\"\"", vec![""]),
        ] {
            assert_eq!(strong_tags(list), Some(Tags::These(tags)), "{list}");
        }
        assert_eq!(strong_tags(" * "), Some(Tags::Any));
        for list in ["", "1", "\"1", "\"1\" \"2\"", "\"1\",", "*, \"1\"", "w/\"1\""] {
            assert_eq!(strong_tags(list), None, "{list}");
        }
    }

    #[test]
    fn another_content_has_another_tag() {
        assert_eq!(tag_of(b"one"), tag_of(b"one"));
        assert_ne!(tag_of(b"one"), tag_of(b"two"));
        assert!(tag_of(b"").starts_with('"') && tag_of(b"").len() == 34);
    }
}
