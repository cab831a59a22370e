//! Decoding of a choice's tokens to text, up to the first stop string.

use std::sync::Arc;

use meganeura_core::Result;
use meganeura_llm::{TextStream, Tokenizer};

/// Text that a new token completes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AddedText {
    /// Text that cannot be part of a stop string any more.
    pub(crate) text: String,
    /// True if a stop string ends the text here.
    pub(crate) ends: bool,
}

/// Stop strings, searched in text that arrives in pieces (Knuth, Morris and Pratt, 1977). The time per byte does not
/// depend on the lengths of the strings.
#[derive(Debug)]
pub(crate) struct StopStrings(Vec<StopString>);

#[derive(Debug)]
struct StopString {
    bytes: Vec<u8>,
    /// For each prefix, the length of its longest proper suffix that is also a prefix of the string.
    borders: Vec<usize>,
}

impl StopStrings {
    pub(crate) fn new(strings: &[String]) -> Self {
        StopStrings(
            strings
                .iter()
                .map(|string| StopString::new(string.as_bytes()))
                .collect(),
        )
    }
}

impl StopString {
    fn new(bytes: &[u8]) -> Self {
        let mut borders = vec![0; bytes.len()];
        let mut matched = 0;
        for at in 1..bytes.len() {
            while matched > 0 && bytes[at] != bytes[matched] {
                matched = borders[matched - 1];
            }
            matched += usize::from(bytes[at] == bytes[matched]);
            borders[at] = matched;
        }
        StopString {
            bytes: bytes.to_vec(),
            borders,
        }
    }

    /// Returns the number of matched bytes after the next byte.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes.get(matched) != Some(&byte) {
            matched = self.borders[matched - 1];
        }
        matched + usize::from(!self.bytes.is_empty() && self.bytes[matched] == byte)
    }
}

/// Text that grows token by token. Its end is withheld while it may be the beginning of a stop string.
pub(crate) struct Text {
    stream: TextStream<Arc<Tokenizer>>,
    stops: Arc<StopStrings>,
    /// Number of matched bytes of each stop string.
    matched: Vec<usize>,
    kept: String,
    /// Number of further tokens during which stop strings are ignored.
    min_tokens: usize,
}

impl Text {
    /// Creates a text that follows the tokens `behind`. Stop strings are ignored within the first `min_tokens` tokens.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, behind: &[u32], stops: Arc<StopStrings>, min_tokens: usize) -> Self {
        Text {
            stream: TextStream::behind(tokenizer, behind),
            matched: vec![0; stops.0.len()],
            stops,
            kept: String::new(),
            min_tokens,
        }
    }

    /// Adds a token and returns the text that it completes.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub(crate) fn push(&mut self, token: u32) -> Result<AddedText> {
        let piece = self.stream.push(token)?;
        if self.min_tokens > 0 {
            self.min_tokens -= 1;
            return Ok(AddedText {
                text: piece,
                ends: false,
            });
        }
        Ok(self.release(&piece))
    }

    /// Returns the withheld rest of the text, after the last token. An incomplete last character becomes U+FFFD, which may
    /// complete a stop string.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub(crate) fn finish(mut self) -> Result<AddedText> {
        let empty = TextStream::new(self.stream.tokenizer().clone());
        let stream = std::mem::replace(&mut self.stream, empty);
        let piece = stream.finish()?;
        let mut added = self.release(&piece);
        if !added.ends {
            added.text += &self.kept;
        }
        Ok(added)
    }

    /// Adds a piece of text. Returns the text up to the first stop string, or up to the possible beginning of one.
    fn release(&mut self, piece: &str) -> AddedText {
        let before = self.kept.len();
        self.kept += piece;
        for (at, byte) in piece.bytes().enumerate() {
            let mut found = 0;
            for (stop, matched) in self.stops.0.iter().zip(&mut self.matched) {
                *matched = stop.step(*matched, byte);
                if *matched == stop.bytes.len() {
                    found = found.max(*matched);
                    *matched = 0;
                }
            }
            if found > 0 {
                // The string may have begun before the text that was kept back, if another one ended there.
                self.kept.truncate((before + at + 1).saturating_sub(found));
                return AddedText {
                    text: std::mem::take(&mut self.kept),
                    ends: true,
                };
            }
        }
        let longest = self.matched.iter().copied().max().unwrap_or(0);
        let rest = self.kept.split_off(self.kept.len().saturating_sub(longest));
        AddedText {
            text: std::mem::replace(&mut self.kept, rest),
            ends: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the released pieces, the withheld text, and true if a stop string was found.
    fn pieces(pieces: &[&str], stops: &[&str]) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let tokenizer = Arc::new(Tokenizer::train("a", 257).expect("trains"));
        let mut text = Text::new(tokenizer, &[], Arc::new(StopStrings::new(&stops)), 0);
        let mut all = Vec::new();
        for piece in pieces {
            let added = text.release(piece);
            all.push(added.text);
            if added.ends {
                return (all, text.kept, true);
            }
        }
        (all, text.kept, false)
    }

    #[test]
    fn the_beginning_of_a_stop_string_is_kept_back() {
        let (all, kept, ends) = pieces(&["ab", "cE", "N", "xEND", "y"], &["END"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("abcENx", "", true));
        assert_eq!(all, ["ab", "c", "", "ENx"]);
        let (all, kept, ends) = pieces(&["é\n", "\n"], &["\n\n", "é\nq"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("é", "", true));
        let (all, kept, ends) = pieces(&["aE"], &["END"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("a", "E", false));
        // The string that is complete first counts, independent of the order; of two that end together, the longer one.
        assert_eq!(pieces(&["one two"], &["two", "one"]).0, [""]);
        assert_eq!(pieces(&["abc"], &["c", "bc"]).0, ["a"]);
        // The prefix of a string may be inside the prefix of another one.
        let (all, kept, ends) = pieces(&["aab", "aac"], &["aabaax", "aac"]);
        assert_eq!((all.concat().as_str(), kept.as_str(), ends), ("aab", "", true));
    }

    #[test]
    fn an_incomplete_character_can_complete_a_stop_string() {
        let tokenizer = Arc::new(Tokenizer::train("a", 257).expect("trains"));
        let token = |byte: &str| tokenizer.encode(byte).expect("a token")[0];
        for (stop, text, ends) in [("a\u{fffd}", "", true), ("b\u{fffd}", "a\u{fffd}", false)] {
            let stops = Arc::new(StopStrings::new(&[stop.to_owned()]));
            let mut found = Text::new(tokenizer.clone(), &[], stops, 0);
            let mut all = found.push(token("a")).expect("text").text;
            // The first byte of `é`.
            all += &found.push(token("é")).expect("text").text;
            let rest = found.finish().expect("text");
            assert_eq!((all + &rest.text, rest.ends), (text.to_owned(), ends), "{stop:?}");
        }
    }

    /// The result does not depend on how a text is split into pieces.
    #[test]
    fn pieces_of_any_length_give_the_same_text() {
        for (text, stops) in [
            ("aaaabaaab", &["aaab"][..]),
            ("abababc", &["ababc", "bb"]),
            ("xéyéé", &["éé"]),
            ("no stop here", &["stops", "hers"]),
        ] {
            let whole = pieces(&[text], stops);
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            for &first in &places {
                for &second in places.iter().filter(|&&at| at >= first) {
                    let parts = [&text[..first], &text[first..second], &text[second..]];
                    let (all, kept, ends) = pieces(&parts, stops);
                    assert_eq!(
                        (all.concat() + &kept, ends),
                        (whole.0.concat() + &whole.1, whole.2),
                        "{parts:?}"
                    );
                }
            }
        }
    }
}
