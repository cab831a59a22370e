//! Text to tokens and back.

use std::path::Path;

use meganeura_core::{Error, Result};

use crate::config::ModelConfig;
use crate::damaged;

/// A tokenizer as `tokenizer.json` describes it.
#[derive(Clone, Debug)]
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads `tokenizer.json` of a folder.
    ///
    /// # Errors
    /// [`Error::File`]: no such file, or one that describes no tokenizer.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let text = crate::read_text(&path)?;
        let inner = text.parse::<tokenizers::Tokenizer>().map_err(|e| damaged(&path, e))?;
        Ok(Tokenizer(inner))
    }

    /// The tokens of a text, with those that the tokenizer puts around every text.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encoded(text, true)
    }

    /// The tokens of a text and no others: for text that holds its own marks, such as a [chat](crate::chat)'s.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encoded(text, false)
    }

    fn encoded(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        let encoding = self.0.encode(text, marks);
        let encoding = encoding.map_err(|e| Error::misuse(format!("the text has no tokens: {e}"), ""))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of some tokens, without marks.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = self.0.decode(tokens, true);
        text.map_err(|e| Error::misuse(format!("the tokens have no text: {e}"), ""))
    }

    /// The number behind the largest token.
    pub fn vocab(&self) -> usize {
        let largest = self.0.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// Whether the model has all of the tokenizer's tokens. It may have more, which stand for nothing.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with both sizes.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        let (own, model) = (self.vocab(), config.network.vocab);
        match own <= model {
            true => Ok(()),
            false => Err(Error::misuse(
                format!("the tokenizer has {own} tokens, the model only {model}"),
                "use the tokenizer.json that belongs to the model",
            )),
        }
    }

    /// The token of a mark, such as `<|im_end|>`.
    pub fn token(&self, mark: &str) -> Option<u32> {
        self.0.token_to_id(mark)
    }

    /// Text piece by piece.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream {
            tokenizer: self,
            tokens: Vec::new(),
            shown: 0,
        }
    }
}

/// Text of tokens that come one by one: a character of several tokens appears with its last one.
#[derive(Clone, Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Those since the last place where text was complete.
    tokens: Vec<u32>,
    /// How many of them have been shown.
    shown: usize,
}

impl TextStream<'_> {
    /// The text that a token completes, which may be none.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.shown])?;
        self.tokens.push(token);
        let all = self.tokenizer.decode(&self.tokens)?;
        // What an incomplete character is replaced by.
        if all.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        let new = all.get(before.len()..).unwrap_or_default().to_owned();
        // A tokenizer may treat the first token of a text in its own way, so the latest ones stay.
        self.tokens.drain(..self.shown);
        self.shown = self.tokens.len();
        Ok(new)
    }

    /// What is left of a character that never came to its end.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.shown])?;
        let all = self.tokenizer.decode(&self.tokens)?;
        Ok(all.get(before.len()..).unwrap_or_default().to_owned())
    }
}
