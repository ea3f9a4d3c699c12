//! The difference of two texts, line by line, for messages that people read.

/// Lines only in `expected` begin with `-`, lines only in `found` with `+`, common ones with a space.
pub(crate) fn difference(expected: &str, found: &str) -> String {
    let expected: Vec<&str> = expected.lines().collect();
    let found: Vec<&str> = found.lines().collect();
    let common = common_lengths(&expected, &found);
    let (mut left, mut right) = (0, 0);
    let mut lines = Vec::new();
    while left < expected.len() || right < found.len() {
        if left < expected.len() && right < found.len() && expected[left] == found[right] {
            lines.push(format!("  {}", expected[left]));
            left += 1;
            right += 1;
        } else if right == found.len()
            || left < expected.len() && common[left + 1][right] >= common[left][right + 1]
        {
            lines.push(format!("- {}", expected[left]));
            left += 1;
        } else {
            lines.push(format!("+ {}", found[right]));
            right += 1;
        }
    }
    lines.join("\n")
}

/// `lengths[i][j]` is how many lines `expected[i..]` and `found[j..]` have in common, in order.
fn common_lengths(expected: &[&str], found: &[&str]) -> Vec<Vec<usize>> {
    let mut lengths = vec![vec![0; found.len() + 1]; expected.len() + 1];
    for left in (0..expected.len()).rev() {
        for right in (0..found.len()).rev() {
            lengths[left][right] = if expected[left] == found[right] {
                lengths[left + 1][right + 1] + 1
            } else {
                lengths[left + 1][right].max(lengths[left][right + 1])
            };
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shows_what_is_missing_and_what_is_too_much() {
        assert_eq!(difference("a\nb\nc", "a\nx\nc\nd"), "  a\n- b\n+ x\n  c\n+ d");
        assert_eq!(difference("", "a"), "+ a");
        assert_eq!(difference("a", ""), "- a");
    }
}
