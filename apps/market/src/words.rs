//! The words of a title, by which products are found.
//!
//! A word is a run of letters and digits, in lower case. Writing without spaces between words (Chinese, Japanese, Thai) has
//! its characters one by one and in pairs, so that any part of it is found. Each word is a row, and looking for one is
//! a walk along an index; a search inside of texts would read all of them.

use std::collections::BTreeSet;

/// The longest word that is kept, in characters; what is behind it is not looked at.
const LONGEST: usize = 64;

/// All words of a title.
pub(crate) fn of_title(title: &str) -> BTreeSet<String> {
    words(title, |_| true)
}

/// The words that a title must have to be found by a text.
pub(crate) fn sought(text: &str) -> BTreeSet<String> {
    words(text, |unspaced| unspaced.len() == 1)
}

fn words(text: &str, has_singles: impl Fn(&[char]) -> bool) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for (is_unspaced, run) in runs(text) {
        if !is_unspaced {
            words.insert(run.iter().take(LONGEST).collect());
            continue;
        }
        words.extend(run.windows(2).map(String::from_iter));
        if has_singles(&run) {
            words.extend(run.iter().map(char::to_string));
        }
    }
    words
}

/// What stands together, with whether it is of a writing without spaces.
fn runs(text: &str) -> Vec<(bool, Vec<char>)> {
    let mut runs: Vec<(bool, Vec<char>)> = Vec::new();
    let mut is_going_on = false;
    for character in text.chars().flat_map(char::to_lowercase) {
        let is_unspaced = is_unspaced(character);
        let is_part = is_unspaced || character.is_alphanumeric();
        match runs.last_mut() {
            Some((of, run)) if is_part && is_going_on && *of == is_unspaced => run.push(character),
            _ if is_part => runs.push((is_unspaced, vec![character])),
            _ => {}
        }
        is_going_on = is_part;
    }
    runs
}

/// Whether a character is of a writing that has no spaces between words: Thai to Khmer, kana, and the Han characters.
fn is_unspaced(character: char) -> bool {
    matches!(
        u32::from(character),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF
            | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &BTreeSet<String>) -> Vec<&str> {
        words.iter().map(String::as_str).collect()
    }

    fn finds(text: &str, title: &str) -> bool {
        sought(text).is_subset(&of_title(title))
    }

    #[test]
    fn words_are_letters_and_digits_in_lower_case() {
        assert_eq!(texts(&of_title("Red bicycle, 28\" (RED!)")), ["28", "bicycle", "red"]);
        assert!(of_title(" ,.- ").is_empty() && sought("\u{0}\u{7}").is_empty());
        assert!(finds("BICYCLE red", "Red bicycle") && !finds("cycle", "Red bicycle"));
        let long = "a".repeat(200);
        assert_eq!(of_title(&long).first().map(String::len), Some(LONGEST));
        assert!(finds(&long, &long));
    }

    #[test]
    fn writing_without_spaces_is_found_by_any_part_of_it() {
        assert_eq!(texts(&sought("自行车")), ["自行", "行车"]);
        for part in ["自行车", "行车铃", "车", "铃"] {
            assert!(finds(part, "二手自行车铃 Nr5"), "{part}");
        }
        assert!(finds("nr5 自行", "二手自行车铃 Nr5"));
        assert!(!finds("车行", "二手自行车铃"), "in its order");
    }
}
