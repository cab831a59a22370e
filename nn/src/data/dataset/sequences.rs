//! Examples for language models whose loss counts only some tokens, such as the answers of conversations.

use super::{Dataset, check_labels};
use crate::data::DataError;

/// Tokens of an example for a language model.
#[derive(Clone, Copy, Debug)]
pub struct TokenSequence<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// True for each token whose prediction the loss counts.
    pub is_scored: &'a [bool],
}

/// Returns the feature of a token. The loss counts the prediction of the token after it if `is_scored` is true.
fn feature(token: u32, is_scored: bool) -> f32 {
    // `f32` holds all tokens below 2^24 exactly.
    let token = token as f32;
    if is_scored { token } else { -1.0 - token }
}

/// Returns the token of a feature, and whether the loss counts the prediction after it.
pub(crate) fn token_of(feature: f32) -> (u32, bool) {
    if feature < 0.0 {
        ((-1.0 - feature) as u32, false)
    } else {
        (feature as u32, true)
    }
}

impl Dataset {
    /// Creates examples of `rows` tokens from sequences, for
    /// [`weighted_language_model`](crate::models::weighted_language_model). The label of an example is the token after it.
    ///
    /// Sequences with fewer than `rows + 1` tokens are padded with `padding`. The loss does not count the padding. Sequences with
    /// more tokens are truncated. Sequences without counted tokens are skipped.
    ///
    /// # Errors
    ///
    /// [`DataError::Empty`] if no sequence is left, or for 0 `rows`; [`DataError::LabelOutOfRange`] for a token that is not
    /// below `vocab`, with the number of its sequence as the row; [`DataError::NoClasses`] for a `vocab` of 0 or beyond 2^24;
    /// [`DataError::OutOfMemory`].
    ///
    /// # Panics
    ///
    /// If a sequence's `tokens` and `is_scored` differ in length.
    pub fn from_sequences<'a>(
        name: impl Into<String>,
        sequences: impl IntoIterator<Item = TokenSequence<'a>>,
        rows: usize,
        padding: u32,
        vocab: usize,
    ) -> Result<Self, DataError> {
        const EXACT: usize = 1 << f32::MANTISSA_DIGITS;
        let name = name.into();
        let vocab = if vocab > EXACT { 0 } else { vocab };
        if rows == 0 {
            return Err(DataError::Empty { name });
        }
        check_labels(&name, &[padding], vocab)?;
        let (mut features, mut labels) = (Vec::new(), Vec::new());
        for (number, TokenSequence { tokens, is_scored }) in sequences.into_iter().enumerate() {
            assert_eq!(tokens.len(), is_scored.len(), "sequence {number}");
            if let Some(&label) = tokens.iter().find(|&&token| token as usize >= vocab) {
                return Err(DataError::LabelOutOfRange {
                    name,
                    row: number,
                    label,
                    classes: vocab,
                });
            }
            // The first token is not predicted.
            if !is_scored.iter().take(rows + 1).skip(1).any(|&is_scored| is_scored) {
                continue;
            }
            if features.try_reserve(rows).is_err() {
                return Err(DataError::OutOfMemory {
                    name,
                    rows: labels.len() + 1,
                    columns: rows,
                });
            }
            let token = |at: usize| tokens.get(at).copied().unwrap_or(padding);
            let is_scored = |at: usize| is_scored.get(at).copied().unwrap_or(false);
            features.extend((0..rows).map(|at| feature(token(at), is_scored(at + 1))));
            labels.push(token(rows));
        }
        Dataset::new(name, features, vec![rows], labels, vocab)
    }

    /// Returns true if the data have tokens whose predictions the loss does not count
    /// ([`from_sequences`](Self::from_sequences)).
    pub(crate) fn has_uncounted_tokens(&self) -> bool {
        self.features.iter().any(|&feature| feature < 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_cut_and_filled_up() {
        let sequence = |tokens: &'static [u32], is_scored: &'static [bool]| TokenSequence { tokens, is_scored };
        let data = Dataset::from_sequences(
            "a",
            [
                sequence(&[1, 2, 3], &[false, true, true]),
                sequence(&[4, 5, 6, 7, 8], &[false, false, true, true, true]),
                // Nothing is counted in the first four tokens.
                sequence(&[4, 5, 6, 7, 8], &[true, false, false, false, true]),
            ],
            3,
            9,
            10,
        )
        .expect("examples");
        let tokens: Vec<(u32, bool)> = data.features().iter().map(|&feature| token_of(feature)).collect();
        assert_eq!(tokens[..3], [(1, true), (2, true), (3, false)]);
        assert_eq!(tokens[3..], [(4, false), (5, true), (6, true)]);
        assert_eq!(data.labels(), [9, 7]);
        assert!(data.has_uncounted_tokens());
        assert!(matches!(
            Dataset::from_sequences("a", [sequence(&[12, 1], &[true, true])], 3, 0, 10),
            Err(DataError::LabelOutOfRange {
                row: 0,
                label: 12,
                classes: 10,
                ..
            })
        ));
        assert!(matches!(
            Dataset::from_sequences("a", [sequence(&[1], &[true])], 3, 0, 10),
            Err(DataError::Empty { .. })
        ));
    }

    #[test]
    fn all_tokens_have_exact_features() {
        for token in [0, 1, 128_255, (1 << 24) - 1] {
            for is_scored in [true, false] {
                assert_eq!(token_of(feature(token, is_scored)), (token, is_scored));
            }
        }
    }
}
