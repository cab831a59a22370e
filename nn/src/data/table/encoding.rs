//! Character encodings of tables.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};
use serde::{Serialize, Serializer};

/// Minimum percentage of zeros among the first or the second bytes of pairs for UTF-16 without a byte order mark.
const MIN_ZEROS: usize = 40;

/// A character encoding, with the names of the WHATWG Encoding Standard, such as `utf-8`, `windows-1252` and `shift_jis`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TextEncoding(&'static Encoding);

impl TextEncoding {
    /// UTF-8.
    pub const UTF_8: TextEncoding = TextEncoding(UTF_8);

    /// Returns the name, such as `windows-1252`.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Guesses the encoding of a text from its beginning: by a byte order mark, as UTF-16 if every other byte is often 0, as
    /// UTF-8 if most characters beyond ASCII are valid, else with the detector of Firefox.
    pub(super) fn guess(head: &[u8]) -> Self {
        if let Some((encoding, _)) = Encoding::for_bom(head) {
            return TextEncoding(encoding);
        }
        let (pairs, _) = head.as_chunks::<2>();
        let are_zeros = |place: usize| {
            let zeros = pairs.iter().filter(|pair| pair[place] == 0).count();
            !pairs.is_empty() && zeros * 100 >= pairs.len() * MIN_ZEROS
        };
        match (are_zeros(0), are_zeros(1)) {
            (true, false) => return TextEncoding(UTF_16BE),
            (false, true) => return TextEncoding(UTF_16LE),
            _ => {}
        }
        // The last character may be incomplete.
        let is_utf8 = std::str::from_utf8(head).map_or_else(|e| e.error_len().is_none(), |_| true);
        let (mut valid, mut invalid) = (0, 0);
        for chunk in head.utf8_chunks() {
            valid += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
            invalid += usize::from(!chunk.invalid().is_empty());
        }
        // Damaged UTF-8, and binary data, are not converted: reading them reports the line.
        if is_utf8 || valid > invalid || head.contains(&0) {
            return TextEncoding(UTF_8);
        }
        let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
        detector.feed(head, false);
        let guessed = detector.guess(None, Utf8Detection::Deny);
        // Encodings of Western languages have most characters in common.
        let text = |encoding: &'static Encoding| encoding.decode_without_bom_handling(head).0;
        TextEncoding(if text(guessed) == text(WINDOWS_1252) {
            WINDOWS_1252
        } else {
            guessed
        })
    }

    /// Decodes a text without its byte order mark. Returns an error if it has invalid characters.
    pub(super) fn decode<'t>(self, bytes: &'t [u8]) -> Result<Cow<'t, str>, String> {
        let (text, used, is_damaged) = self.0.decode(bytes);
        if is_damaged {
            return Err(format!(
                "the text is not valid {}; give its encoding, such as `--encoding windows-1252`",
                used.name()
            ));
        }
        Ok(text)
    }
}

impl FromStr for TextEncoding {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Encoding::for_label_no_replacement(name.as_bytes())
            .map(TextEncoding)
            .ok_or_else(|| {
                format!(
                    "expected a character encoding such as utf-8, windows-1252, iso-8859-15 or shift_jis, found '{name}'"
                )
            })
    }
}

impl fmt::Display for TextEncoding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for TextEncoding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for TextEncoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
