//! Conversion of token names to bytes.

use std::collections::HashMap;

/// The encoding of bytes in the names of tokens.
#[derive(Clone)]
pub(super) struct Spelling {
    /// True if the decoder only joins the bytes of tokens.
    is_bytes: bool,
    /// Map from characters to bytes, in byte-level tokenizers.
    bytes: Option<HashMap<char, u8>>,
    /// Character that replaces a space, in SentencePiece tokenizers. `fallback` is true if names such as `<0x0A>` are
    /// bytes.
    space: Option<char>,
    fallback: bool,
}

impl Spelling {
    /// Determines the encoding from the decoder.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        let mut spelling = Spelling {
            is_bytes: false,
            bytes: None,
            space: None,
            fallback: false,
        };
        if let Some(decoder) = tokenizer.get_decoder()
            && let Ok(json) = serde_json::to_value(decoder)
        {
            spelling.read(&json);
            let parts = json["decoders"].as_array().map_or(1, Vec::len);
            spelling.is_bytes = spelling.bytes.is_some() && parts == 1;
        }
        spelling
    }

    /// Returns true if decoding only joins the bytes of tokens.
    pub(super) fn is_bytes(&self) -> bool {
        self.is_bytes
    }

    /// Returns true for names of single bytes, such as `<0x0A>`.
    pub(super) fn is_single_byte(&self, name: &str) -> bool {
        let byte = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        self.fallback && byte.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
    }

    fn read(&mut self, decoder: &serde_json::Value) {
        match decoder["type"].as_str() {
            Some("Sequence") => {
                let parts = decoder["decoders"].as_array();
                parts.into_iter().flatten().for_each(|part| self.read(part));
            }
            Some("ByteLevel") => self.bytes = Some(byte_characters()),
            Some("ByteFallback") => self.fallback = true,
            Some("Metaspace") => self.space = decoder["replacement"].as_str().and_then(|s| s.chars().next()),
            Some("Replace") if decoder["content"] == " " => {
                self.space = decoder["pattern"]["String"].as_str().and_then(|s| s.chars().next());
            }
            _ => {}
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        if let Some(bytes) = &self.bytes {
            let known: Option<Vec<u8>> = name.chars().map(|c| bytes.get(&c).copied()).collect();
            return known.unwrap_or_else(|| name.as_bytes().to_vec());
        }
        let byte = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let Some(byte) = byte
            .filter(|_| self.fallback)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            return vec![byte];
        }
        match self.space {
            Some(space) => name.replace(space, " ").into_bytes(),
            None => name.as_bytes().to_vec(),
        }
    }
}

/// Returns the map from characters to bytes of byte-level tokenizers: printable bytes are themselves, the remaining
/// ones become the characters from 256 on, in order (Radford et al., GPT-2, 2019).
fn byte_characters() -> HashMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let character = |byte: u8| {
        if is_printable(byte) {
            return (char::from(byte), byte);
        }
        let c = char::from_u32(next).unwrap_or_default();
        next += 1;
        (c, byte)
    };
    (0..=255).map(character).collect()
}
