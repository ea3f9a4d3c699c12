//! Texts of the platform, as every database can keep them.

/// The most characters of a text for people.
const LONGEST_TEXT: usize = 4000;
/// The most characters of a code.
const LONGEST_CODE: usize = 128;

/// A text for people: without control characters (PostgreSQL has no NUL) and not longer than a column (MySQL's TEXT) or a
/// reader can bear.
pub(crate) fn readable(text: &str) -> String {
    let mut letters = text.chars().map(|letter| match letter {
        '\n' | '\t' => letter,
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    });
    let mut kept: String = letters.by_ref().take(LONGEST_TEXT).collect();
    if letters.next().is_some() {
        kept.push('…');
    }
    kept
}

/// A code or a name, cut to what its column holds.
pub(crate) fn code(text: &str) -> String {
    readable(text).chars().take(LONGEST_CODE).collect()
}
