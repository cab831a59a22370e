//! Conversion of SentencePiece vocabularies to byte pair encoding.
//!
//! SentencePiece begins with single characters. Of all adjacent pairs whose concatenation is a piece (a token of the
//! vocabulary), it joins the pair with the highest score first, and the leftmost one of equal scores. This is byte pair
//! encoding (Sennrich et al., 2016) with a merge for every way to split a piece into two, ordered by the piece's score.
//! Characters that are not pieces are replaced by their bytes.
//!
//! All ways to split one piece have the same score, so SentencePiece takes the leftmost pair, while merges have a fixed
//! order. A test below searches for vocabularies and texts with different results, and finds none.

use std::collections::BTreeMap;

use meganeura_core::Result;
use serde_json::{Value as Json, json};

use super::Gguf;
use super::model::without;
use super::tokenizer::{ADDED, BYTE, CONTROL, Conversion, Merge, Model, ModelKind, REMEDY, UNKNOWN, Vocabulary};

/// Name of this kind of vocabulary in `tokenizer.ggml.model`.
pub(super) const KIND: &str = "llama";
/// The character that replaces a space.
const SPACE: &str = "\u{2581}";
/// Maximum total size of merges, as a multiple of the size of all pieces. Merges of published models have about twice
/// the length of their pieces; a hostile vocabulary could have any multiple.
const MAX: usize = 64;
/// Maximum bytes of a piece. Published models have at most a few dozen.
const MAX_LENGTH: usize = 1024;

impl Gguf {
    /// Returns the `tokenizer.json` of a SentencePiece vocabulary.
    pub(super) fn pieces(&self) -> Result<String> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let changed = self.flag(&key("remove_extra_whitespaces"))?.unwrap_or(false)
            || self.values.contains_key(&key("precompiled_charsmap"));
        if changed {
            return Err(self.unsupported("a tokenizer that changes the characters of texts", REMEDY));
        }
        let vocabulary = self.vocabulary()?;
        let scores = self.of_tokens(&key("scores"), vocabulary.tokens.len(), |list, file| {
            Some(list.floats(file)?.collect::<Vec<f64>>())
        })?;
        let scores = scores.ok_or_else(|| without(self, &format!("list '{}'", key("scores")), REMEDY))?;
        let merges = merges(&vocabulary, &scores).map_err(|message| self.unsupported(message, REMEDY))?;
        let unknown = (0..vocabulary.tokens.len()).find(|&id| vocabulary.kind(id) == Some(UNKNOWN));
        let model = Model {
            kind: "BPE",
            vocab: vocabulary.places(),
            merges,
            ignore_merges: false,
            byte_fallback: vocabulary.kinds.contains(&BYTE),
            unk_token: unknown.map(|id| vocabulary.tokens[id].as_ref()),
            fuse_unk: true,
        };
        let around = around(self.flag(&key("add_space_prefix"))?.unwrap_or(true));
        let added = vocabulary.added(&[UNKNOWN, CONTROL, ADDED]);
        self.describe(added, around, self.marks([true, false])?, ModelKind::PairMerges(model))
    }
}

/// Returns the normalizer and decoder of the tokenizer. They replace spaces by a character of pieces. With
/// `first_space`, encoding adds a space before the text, and decoding removes it.
fn around(first_space: bool) -> Conversion {
    let replaced = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut normalizers = vec![replaced(" ", SPACE)];
    let mut decoders = vec![
        replaced(SPACE, " "),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if first_space {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Conversion {
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Json::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
    }
}

/// A way to split a piece into two.
struct PieceDivision<'a> {
    score: f64,
    id: usize,
    halves: [&'a str; 2],
}

/// Returns the merges in the order of their application.
///
/// # Errors
/// A text that continues a sentence after "has", for vocabularies without an equivalent order of merges: scores that
/// are NaN, equal scores of two pieces that merges can produce, or pieces with characters that are not pieces
/// themselves.
fn merges<'a>(vocabulary: &'a Vocabulary, scores: &[f64]) -> Result<Vec<Merge<'a>>, String> {
    let plain = |id: usize| !matches!(vocabulary.kind(id), Some(UNKNOWN | CONTROL | ADDED | BYTE));
    let tokens = vocabulary.tokens.iter().enumerate();
    let pieces: BTreeMap<&str, usize> = (tokens.filter(|(id, _)| plain(*id)))
        .map(|(id, token)| (token.as_ref(), id))
        .collect();
    let room = pieces
        .keys()
        .map(|piece| piece.len())
        .sum::<usize>()
        .saturating_mul(MAX);
    let (mut cuts, mut bytes) = (Vec::new(), 0);
    for (&piece, &id) in &pieces {
        let score = scores[id];
        if !score.is_finite() {
            return Err(format!("a score of the piece '{piece}' that is not a number"));
        }
        if piece.len() > MAX_LENGTH {
            return Err(format!("a piece of {} bytes", piece.len()));
        }
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            match [left, right].map(|half| pieces.contains_key(half)) {
                [true, true] => {}
                // A single character is kept until it is joined to a neighbour.
                [l, r] if [(l, left), (r, right)].iter().all(|(is, half)| *is || is_single(half)) => {
                    return Err(format!("a piece '{piece}' with a character that is not a piece itself"));
                }
                _ => continue,
            }
            bytes += piece.len();
            if bytes > room {
                return Err("pieces with too many ways to merge".into());
            }
            let halves = [left, right];
            cuts.push(PieceDivision { score, id, halves });
        }
    }
    let order = |cut: &PieceDivision| std::cmp::Reverse(cut.halves[0].len());
    cuts.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| order(a).cmp(&order(b))));
    let mut neighbours = cuts.iter().zip(cuts.iter().skip(1));
    if let Some((a, b)) = neighbours.find(|(a, b)| a.score == b.score && a.id != b.id) {
        let [a, b] = [a, b].map(|cut| cut.halves.concat());
        return Err(format!("the same score for the pieces '{a}' and '{b}'"));
    }
    let pair = |PieceDivision {
                    halves: [left, right], ..
                }: PieceDivision<'a>| Merge::Pair(left, right);
    Ok(cuts.into_iter().map(pair).collect())
}

fn is_single(text: &str) -> bool {
    text.chars().nth(1).is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use meganeura_core::random::SplitMix64;

    use super::*;

    fn of(pieces: &[(&str, f64, u8)]) -> Result<Vec<String>, String> {
        let vocabulary = Vocabulary {
            tokens: pieces.iter().map(|(text, ..)| (*text).into()).collect(),
            kinds: pieces.iter().map(|(.., kind)| *kind).collect(),
        };
        let scores: Vec<f64> = pieces.iter().map(|(_, score, _)| *score).collect();
        let merges = merges(&vocabulary, &scores)?;
        let text = |merge: &Merge| match merge {
            Merge::Pair(a, b) => format!("{a}+{b}"),
            Merge::Text(text) => (*text).to_owned(),
        };
        Ok(merges.iter().map(text).collect())
    }

    #[test]
    fn merges_are_ordered_by_scores() {
        let pieces = [
            ("<unk>", 0.0, UNKNOWN),
            ("<a>", 0.0, CONTROL),
            ("<0x0A>", 0.0, BYTE),
            ("aba", -3.0, 1),
            ("ab", -2.0, 1),
            ("ba", -4.0, 1),
            ("é", -7.0, 1),
            ("aé", -1.0, 1),
            ("a", -5.0, 1),
            ("b", -6.0, 1),
            ("ab<a>", -9.0, 1),
        ];
        let wanted = ["a+é", "a+b", "ab+a", "a+ba", "b+a"];
        assert_eq!(of(&pieces).expect("merges"), wanted);
    }

    #[test]
    fn what_scores_do_not_order_is_an_error() {
        let plain = |pieces: &[(&'static str, f64)]| of(&pieces.iter().map(|&(p, s)| (p, s, 1)).collect::<Vec<_>>());
        for (pieces, said) in [
            (&[("a", 0.0), ("b", 0.0), ("ab", -1.0), ("ba", -1.0)][..], "same score"),
            (&[("a", 0.0), ("ab", -1.0)], "'ab' with a character"),
            (&[("ab", -1.0)], "'ab' with a character"),
            (&[("a", 0.0), ("b", 0.0), ("ab", f64::NAN)], "not a number"),
        ] {
            let error = plain(pieces).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
        // Pieces that no merge creates may have any scores.
        assert_eq!(plain(&[("a", 0.0), ("b", 0.0), ("c", 0.0)]), Ok(Vec::new()));
        let texts: Vec<String> = (1..600).map(|n| "a".repeat(n)).collect();
        let many: Vec<(&str, f64, u8)> = texts.iter().map(|t| (t.as_str(), -(t.len() as f64), 1)).collect();
        assert!(of(&many).expect_err("many").contains("too many ways"));
    }

    /// Joins adjacent parts, the pair with the highest `value` first and the leftmost of equal ones, until no pair has
    /// a value.
    fn joined<T: PartialOrd>(text: &str, value: impl Fn(&str, &str) -> Option<T>) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let mut best: Option<(usize, T)> = None;
            for (i, pair) in parts.windows(2).enumerate() {
                let Some(own) = value(&pair[0], &pair[1]) else { continue };
                if best.as_ref().is_none_or(|(_, most)| own > *most) {
                    best = Some((i, own));
                }
            }
            let Some((i, _)) = best else { return parts };
            let right = parts.remove(i + 1);
            parts[i].push_str(&right);
        }
    }

    #[test]
    fn merges_give_the_pieces_that_scores_give() {
        let mut rng = SplitMix64::new(7);
        let text = |rng: &mut SplitMix64, len: usize| -> String {
            (0..len).map(|_| if rng.below(2) == 0 { 'a' } else { 'b' }).collect()
        };
        let mut longest = 0;
        for round in 0..2000 {
            let mut pieces = vec![String::from("a"), String::from("b")];
            for _ in 0..3 + rng.below(16) {
                // Half of the vocabularies could result from training: each piece consists of two earlier ones.
                let piece = match round % 2 {
                    0 => {
                        let len = 2 + rng.below(4);
                        text(&mut rng, len)
                    }
                    _ => pieces[rng.below(pieces.len())].clone() + &pieces[rng.below(pieces.len())],
                };
                if piece.len() <= 6 && !pieces.contains(&piece) {
                    pieces.push(piece);
                }
            }
            let scores: Vec<f64> = (0..pieces.len()).map(|i| -(i as f64)).collect();
            let vocabulary = Vocabulary {
                tokens: pieces.iter().map(|piece| piece.as_str().into()).collect(),
                kinds: Vec::new(),
            };
            let merges = merges(&vocabulary, &scores).expect("merges").into_iter().enumerate();
            let ranks: HashMap<[&str; 2], usize> = merges
                .filter_map(|(rank, merge)| match merge {
                    Merge::Pair(left, right) => Some(([left, right], rank)),
                    Merge::Text(_) => None,
                })
                .collect();
            for _ in 0..20 {
                let len = 1 + rng.below(12);
                let text = text(&mut rng, len);
                let by_scores = joined(&text, |left, right| {
                    let whole = [left, right].concat();
                    let place = pieces.iter().position(|piece| *piece == whole)?;
                    Some(scores[place])
                });
                let by_merges = joined(&text, |left, right| {
                    ranks.get(&[left, right]).map(|&rank| std::cmp::Reverse(rank))
                });
                assert_eq!(by_scores, by_merges, "{text} of {pieces:?}");
                longest = longest.max(by_scores.iter().map(String::len).max().unwrap_or(0));
            }
        }
        assert_eq!(longest, 6);
    }
}
