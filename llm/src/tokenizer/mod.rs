//! Text to tokens and back.

mod spelling;
mod vet;

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use meganeura_core::{Error, Result};
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::config::ModelConfig;
use crate::files::damaged;
use crate::gguf::{self, Gguf};

/// The mark that tokenizers of [`Tokenizer::train`] have.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// A tokenizer as `tokenizer.json` describes it, without the padding and truncation that the file may set: the tokens of a
/// text are those of all of it and no others. Transformers leave both out by default, too.
#[derive(Clone, Debug)]
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads `tokenizer.json` of a folder. Of a GGUF file it takes the file's own tokenizer, pairs of bytes or pieces of
    /// SentencePiece, where that is one that is known, else a `tokenizer.json` in the file's folder.
    ///
    /// # Errors
    /// [`Error::File`]: no such file, or one that describes no tokenizer, or none that is known.
    pub fn open(folder: &Path) -> Result<Self> {
        let (path, text) = match gguf::is_one(folder) {
            true => {
                let beside = folder.with_file_name("tokenizer.json");
                match Gguf::open(folder)?.tokenizer() {
                    Err(_) if beside.exists() => return Tokenizer::read(&beside),
                    text => (folder, text?),
                }
            }
            false => return Tokenizer::read(&folder.join("tokenizer.json")),
        };
        Tokenizer::parse(path, &text)
    }

    /// Reads a file in the format of `tokenizer.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn read(path: &Path) -> Result<Self> {
        Tokenizer::parse(path, &crate::files::read_text(path)?)
    }

    /// What a file has said.
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let text = vet::vet(text).map_err(|e| damaged(path, e))?;
        let inner = contained(|| text.parse::<tokenizers::Tokenizer>());
        Ok(Tokenizer(inner.map_err(|e| damaged(path, e))?))
    }

    /// Learns a tokenizer of so many tokens from a text: byte pair encoding (Sennrich et al., 2016) of bytes, with the mark
    /// [`END_OF_TEXT`] as token 0. Small texts may give fewer tokens.
    ///
    /// # Errors
    /// Fewer tokens than bytes and the mark take, or more than 2^20; what the tokenizer says.
    pub fn train(text: &str, vocab: usize) -> Result<Self> {
        const MIN_VOCABULARY: usize = 257;
        // The largest of published models have a quarter of that. Memory is taken for as many.
        const MAX_VOCABULARY: usize = 1 << 20;
        if vocab < MIN_VOCABULARY {
            return Err(Error::misuse(
                format!("a vocabulary of {vocab} tokens has no room for every byte"),
                format!("use at least {MIN_VOCABULARY}"),
            ));
        }
        if vocab > MAX_VOCABULARY {
            return Err(Error::misuse(
                format!("a vocabulary of {vocab} tokens is too large"),
                format!("use at most {MAX_VOCABULARY}"),
            ));
        }
        let mut trainer = TrainerWrapper::BpeTrainer(
            BpeTrainer::builder()
                .vocab_size(vocab)
                .show_progress(false)
                .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
                .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
                .build(),
        );
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        inner
            .with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)))
            .with_decoder(Some(ByteLevel::default()));
        let trained = inner.train(&mut trainer, without_long_words(text));
        trained.map_err(|e| Error::misuse(format!("no tokenizer can be learnt from the text: {e}"), ""))?;
        Ok(Tokenizer(inner))
    }

    /// The text of its `tokenizer.json`, without padding and truncation.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn to_json(&self) -> Result<String> {
        let text = self.0.to_string(true);
        text.map_err(|e| Error::misuse(format!("the tokenizer cannot be written: {e}"), ""))
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
        let encoding = contained(|| self.0.encode(text, marks));
        let encoding = encoding.map_err(|e| Error::misuse(format!("the text has no tokens: {e}"), ""))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of some tokens, without marks.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = contained(|| self.0.decode(tokens, true));
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

    /// What each token stands for, from token 0 on.
    pub fn token_bytes(&self) -> Vec<TokenBytes> {
        let spelling = spelling::Spelling::of(&self.0);
        let added = self.0.get_added_tokens_decoder();
        let bytes = |id: u32| match (added.get(&id), self.0.id_to_token(id)) {
            (Some(token), _) if token.special => TokenBytes::Special(token.content.clone()),
            (Some(token), _) => TokenBytes::Text(token.content.clone().into_bytes()),
            (None, Some(name)) => TokenBytes::Text(spelling.bytes(&name)),
            (None, None) => TokenBytes::None,
        };
        (0..self.vocab() as u32).map(bytes).collect()
    }

    /// Text piece by piece.
    pub fn stream(&self) -> TextStream<&Self> {
        TextStream::new(self)
    }
}

/// What a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenBytes {
    /// Nothing: no token has the number.
    None,
    /// Some bytes of a text, which need not be whole characters.
    Text(Vec<u8>),
    /// A mark, by its name, that no text has.
    Special(String),
}

/// A text in parts, cut within words of more than so many bytes and nowhere else: the time that it takes to learn from a word grows
/// with the square of its length.
fn without_long_words(text: &str) -> impl Iterator<Item = &str> + Send {
    const LONG: usize = 1000;
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut word = 0;
        let cut = rest.char_indices().find(|&(at, c)| {
            if c.is_whitespace() {
                word = at + c.len_utf8();
            }
            at >= word + LONG
        });
        let (part, after) = rest.split_at(cut.map_or(rest.len(), |(at, _)| at));
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// What the library says, also where it panics: its tokenizers are of untrusted files.
fn contained<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizer is none that works: the library failed on it".into()),
    }
}

/// Text of tokens that come one by one: a character of several tokens appears with its last one.
#[derive(Clone, Debug)]
pub struct TextStream<T> {
    tokenizer: T,
    /// Those since the last place where text was complete.
    tokens: Vec<u32>,
    /// How many of them have been shown.
    shown: usize,
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// Of a tokenizer, by a reference or an [`Arc`](std::sync::Arc).
    pub fn new(tokenizer: T) -> Self {
        TextStream {
            tokenizer,
            tokens: Vec::new(),
            shown: 0,
        }
    }

    /// Of a text that goes on behind these tokens. Tokenizers of SentencePiece leave the first space of a text out, which is
    /// part of what goes on.
    pub fn behind(tokenizer: T, tokens: &[u32]) -> Self {
        const ENOUGH: usize = 4;
        let tokens = tokens[tokens.len().saturating_sub(ENOUGH)..].to_vec();
        TextStream {
            tokenizer,
            shown: tokens.len(),
            tokens,
        }
    }

    /// The text that a token completes, which may be none.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.shown])?;
        self.tokens.push(token);
        let all = self.tokenizer.decode(&self.tokens)?;
        // What an incomplete character is replaced by; none has more bytes than this, and so no more tokens.
        const MOST: usize = 4;
        if all.ends_with('\u{fffd}') && self.tokens.len() - self.shown < MOST {
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
