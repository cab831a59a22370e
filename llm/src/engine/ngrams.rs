//! Draft tokens from earlier text (prompt lookup decoding; Saxena, 2023).

/// Minimum and maximum length of the suffix that is searched in earlier tokens.
const NGRAMS: std::ops::RangeInclusive<usize> = 2..=4;

/// Returns at most `most` tokens that followed the latest earlier occurrence of the longest suffix of `tokens` that
/// occurs earlier.
pub(super) fn lookup(tokens: &[u32], most: usize) -> &[u32] {
    for n in NGRAMS.rev() {
        let Some(start) = tokens.len().checked_sub(n).filter(|&start| start > 0) else {
            continue;
        };
        let end = &tokens[start..];
        let found = tokens[..tokens.len() - 1].windows(n).rposition(|window| window == end);
        if let Some(at) = found {
            let next = at + n;
            return &tokens[next..tokens.len().min(next + most)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_place_of_the_longest_end() {
        assert_eq!(lookup(&[1, 2, 3, 9, 1, 2, 4, 1, 2], 2), [4, 1]);
        // A match of three tokens wins over a later one of two.
        assert_eq!(lookup(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1), [7]);
        assert_eq!(lookup(&[1, 1, 1, 1], 8), [1]);
        assert!(lookup(&[1, 2, 3], 4).is_empty());
        assert!(lookup(&[], 4).is_empty());
    }
}
