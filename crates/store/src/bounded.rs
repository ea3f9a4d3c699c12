//! Reading by size: a page that is only counted may have a thousand of the largest payloads.

/// How many of the first ones have so many bytes together; one, if there is any, however large it is.
pub(crate) fn how_many_fit(sizes: impl IntoIterator<Item = u64>, bytes: u64) -> usize {
    let mut total = 0_u64;
    let fits = |(number, size): &(usize, u64)| {
        total = total.saturating_add(*size);
        *number == 0 || total <= bytes
    };
    sizes.into_iter().enumerate().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::how_many_fit;

    #[test]
    fn as_many_as_fit_and_at_least_one() {
        assert_eq!(how_many_fit([], 10), 0);
        assert_eq!(how_many_fit([11, 1], 10), 1);
        assert_eq!(how_many_fit([4, 6, 1], 10), 2);
        assert_eq!(how_many_fit([4, 7, 1], 10), 1);
        assert_eq!(how_many_fit([0, 0, 0], 0), 3);
        assert_eq!(how_many_fit([u64::MAX, u64::MAX], u64::MAX), 2);
    }
}
