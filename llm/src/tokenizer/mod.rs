//! Tokenizers, which convert text to tokens and back.

mod spelling;
mod vet;

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use aho_corasick::{AhoCorasick, MatchKind};
use meganeura_core::{Error, Result};
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::chat::RenderedChat;
use crate::config::ModelConfig;
use crate::files::damaged;
use crate::gguf::{self, Gguf};
use crate::special::SpecialTokens;
use spelling::Spelling;

/// Special token of tokenizers by [`Tokenizer::train`].
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// A tokenizer as `tokenizer.json` describes it, but without the padding and truncation of the
/// file: a text is always converted completely, and nothing is added. Transformers disable both by
/// default, too.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    spelling: Spelling,
    /// Special tokens, for the search in text; `None` if there are none.
    special: Option<Arc<AhoCorasick>>,
    /// Like `inner`, but spellings of special tokens are ordinary text. Created at its first use.
    literal: OnceLock<Box<tokenizers::Tokenizer>>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab", &self.vocab())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a folder. For a GGUF file, it reads the file's own tokenizer (byte
    /// pairs or pieces of SentencePiece) if that is supported, else a `tokenizer.json` in the
    /// file's folder.
    ///
    /// # Errors
    /// [`Error::File`]: a missing file, or one without a supported tokenizer.
    pub fn open(folder: &Path) -> Result<Self> {
        let (path, text) = if gguf::is_one(folder) {
            let beside = folder.with_file_name("tokenizer.json");
            match Gguf::open(folder)?.tokenizer() {
                Err(_) if beside.exists() => return Tokenizer::read(&beside),
                text => (folder, text?),
            }
        } else {
            return Tokenizer::read(&folder.join("tokenizer.json"));
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

    /// Parses the text of a `tokenizer.json`.
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let text = vet::vet(text).map_err(|e| damaged(path, e))?;
        let inner = contained(|| text.parse::<tokenizers::Tokenizer>());
        Ok(Tokenizer::of(inner.map_err(|e| damaged(path, e))?))
    }

    /// Trains a tokenizer with `vocab` tokens on a text: byte pair encoding (Sennrich et al., 2016)
    /// of bytes, with [`END_OF_TEXT`] as token 0. Small texts may result in fewer tokens.
    ///
    /// # Errors
    /// Fewer tokens than bytes and the special token need, or more than 2^20; errors of the
    /// tokenizer.
    pub fn train(text: &str, vocab: usize) -> Result<Self> {
        const MIN_VOCABULARY: usize = 257;
        // Four times the largest of published models; memory is allocated for this number.
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
        trained.map_err(|e| Error::misuse(format!("cannot train a tokenizer on the text: {e}"), ""))?;
        Ok(Tokenizer::of(inner))
    }

    fn of(inner: tokenizers::Tokenizer) -> Self {
        let names = special_spellings(&inner);
        let special = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&names)
            .ok()
            .filter(|_| !names.is_empty());
        Tokenizer {
            spelling: Spelling::of(&inner),
            special: special.map(Arc::new),
            literal: OnceLock::new(),
            inner,
        }
    }

    /// Returns the text of its `tokenizer.json`, without padding and truncation.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn to_json(&self) -> Result<String> {
        let text = self.inner.to_string(true);
        text.map_err(|e| Error::misuse(format!("the tokenizer cannot be written: {e}"), ""))
    }

    /// Returns the tokens of a text, including those that the tokenizer puts around every text.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.encoded(text, true)?;
        // A text that contains the first token itself does not get it twice.
        if let [first, second, ..] = tokens[..]
            && first == second
            && self.is_special(first)
            && self.encoded("", true)?.contains(&first)
        {
            tokens.remove(0);
        }
        Ok(tokens)
    }

    /// Returns the tokens of a text without adding special tokens: for text that contains its own, such as a
    /// [chat](crate::chat).
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encoded(text, false)
    }

    /// Returns a byte offset such that the text before it has more than `max_tokens` tokens; `None` if the text may
    /// have fewer. It tokenizes the text in pieces of up to 64 KiB, because tokenizing a megabyte at once needs
    /// hundreds of megabytes of memory.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn end_of_excess(&self, text: &str, max_tokens: usize) -> Result<Option<usize>> {
        /// Upper estimate of the bytes of a token of ordinary text.
        const TOKEN_BYTES: usize = 16;
        /// Number of tokens of a piece that may differ from those of the whole text.
        const UNCERTAIN: usize = 16;
        let size = max_tokens.saturating_mul(TOKEN_BYTES).clamp(4 << 10, 64 << 10);
        // No token is shorter than a byte.
        if text.len() <= max_tokens {
            return Ok(None);
        }
        let (mut start, mut count) = (0, 0);
        while text.len() - start > size {
            let end = text.floor_char_boundary(start + size);
            // A long word may be a single unknown token: it is cut only if it fills the piece.
            let space = text[start..end].rfind(char::is_whitespace);
            let end = space.filter(|&at| at > 0).map_or(end, |at| start + at);
            count += self.encode_plain(&text[start..end])?.len().saturating_sub(UNCERTAIN);
            if count > max_tokens {
                return Ok(Some(end));
            }
            start = end;
        }
        Ok(None)
    }

    /// Returns the tokens of a rendered conversation. Text of messages never becomes a special token: it is encoded as the
    /// characters that it consists of.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>> {
        let Some(special) = self.special.as_ref().filter(|_| !chat.guards.is_empty()) else {
            return self.encode_plain(&chat.text);
        };
        let text = chat.text.as_str();
        let is_guarded = |start: usize, end: usize| {
            let next = chat.guards.partition_point(|&guard| guard <= start);
            chat.guards.get(next).is_some_and(|&guard| guard < end)
        };
        // Parts between special tokens of the template that contain such spellings are encoded as literal text.
        let mut tokens = Vec::new();
        let (mut encoded, mut part, mut at) = (0, 0, 0);
        loop {
            let found = special.find(aho_corasick::Input::new(text).range(at..));
            let (start, end) = found.map_or((text.len(), text.len()), |found| (found.start(), found.end()));
            if found.is_some() && is_guarded(start, end) {
                at = start + text[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            if is_guarded(part, start) {
                tokens.extend(self.encode_plain(&text[encoded..part])?);
                let guards = chat.guards.iter().filter(|&&guard| part < guard && guard < start);
                self.encode_literal(&text[part..start], guards.map(|guard| guard - part), &mut tokens)?;
                encoded = start;
            }
            if found.is_none() {
                tokens.extend(self.encode_plain(&text[encoded..])?);
                return Ok(tokens);
            }
            (part, at) = (end, end);
        }
    }

    /// Adds the tokens of a text in which nothing is a special token.
    fn encode_literal(&self, text: &str, guards: impl Iterator<Item = usize>, tokens: &mut Vec<u32>) -> Result<()> {
        let literal = self.literal.get_or_init(|| {
            let mut inner = Box::new(self.inner.clone());
            inner.set_encode_special_tokens(true);
            inner
        });
        let encode = |text: &str| {
            let encoding = contained(|| literal.encode(text, false));
            let encoding = encoding.map_err(|e| Error::misuse(format!("cannot tokenize the text: {e}"), ""))?;
            Ok::<_, Error>(encoding.get_ids().to_vec())
        };
        let whole = encode(text)?;
        if !whole.iter().any(|&id| self.is_control(id)) {
            tokens.extend(whole);
            return Ok(());
        }
        // The vocabulary itself has the spelling (SentencePiece), or the token is not declared as special: it is cut.
        let mut start = 0;
        for guard in guards.chain([text.len()]) {
            let part = encode(&text[start..guard])?;
            tokens.extend(part.into_iter().filter(|&id| !self.is_control(id)));
            start = guard;
        }
        Ok(())
    }

    fn encoded(&self, text: &str, adds_special: bool) -> Result<Vec<u32>> {
        let encoding = contained(|| self.inner.encode(text, adds_special));
        let encoding = encoding.map_err(|e| Error::misuse(format!("cannot tokenize the text: {e}"), ""))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns true for a special token, which decoded text does not contain.
    pub fn is_special(&self, token: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&token).is_some_and(|token| token.special)
    }

    /// Returns true for a special token, and for an added token with the spelling of one.
    fn is_control(&self, token: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&token).is_some_and(is_control)
    }

    /// Returns the special tokens, such as `<|im_end|>`, and other added tokens with such a spelling.
    pub fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens::new(special_spellings(&self.inner))
    }

    /// Returns the text of tokens, without special tokens. Incomplete characters become U+FFFD.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        if self.spelling.is_bytes() {
            let mut bytes = Vec::new();
            tokens.iter().for_each(|&token| self.push_bytes(token, &mut bytes));
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        let text = contained(|| self.inner.decode(tokens, true));
        text.map_err(|e| Error::misuse(format!("cannot decode the tokens: {e}"), ""))
    }

    /// Adds the bytes of a token of a byte-level tokenizer. Added tokens decode to their own characters.
    fn push_bytes(&self, token: u32, bytes: &mut Vec<u8>) {
        match self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&token) {
            Some(added) if added.special => {}
            Some(added) => bytes.extend(added.content.as_bytes()),
            None => {
                if let Some(name) = self.inner.id_to_token(token) {
                    bytes.extend(self.spelling.bytes(&name));
                }
            }
        }
    }

    /// Returns true for a token that is a single byte, possibly a part of a character.
    fn is_single_byte(&self, token: u32) -> bool {
        let name = self.inner.id_to_token(token);
        name.is_some_and(|name| self.spelling.is_single_byte(&name))
    }

    /// Returns the largest token plus one.
    pub fn vocab(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// Checks that the model has all of the tokenizer's tokens. Further tokens of the model are
    /// unused.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with both sizes.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        let (own, model) = (self.vocab(), config.network.vocab);
        if own <= model {
            Ok(())
        } else {
            Err(Error::misuse(
                format!("the tokenizer has {own} tokens, the model only {model}"),
                "use the tokenizer.json that belongs to the model",
            ))
        }
    }

    /// Returns the id of a special token by its spelling, such as `<|im_end|>`.
    pub fn token(&self, mark: &str) -> Option<u32> {
        self.inner.token_to_id(mark)
    }

    /// Returns the meaning of each token, from token 0 on.
    pub fn token_bytes(&self) -> Vec<TokenBytes> {
        let added = self.inner.get_added_tokens_decoder();
        let bytes = |id: u32| match (added.get(&id), self.inner.id_to_token(id)) {
            (Some(token), _) if token.special => TokenBytes::Special(token.content.clone()),
            (Some(token), _) => TokenBytes::Text(token.content.clone().into_bytes()),
            (None, Some(name)) => TokenBytes::Text(self.spelling.bytes(&name)),
            (None, None) => TokenBytes::None,
        };
        (0..self.vocab() as u32).map(bytes).collect()
    }

    /// Creates a stream that decodes token by token.
    pub fn stream(&self) -> TextStream<&Self> {
        TextStream::new(self)
    }
}

/// The meaning of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenBytes {
    /// No token has this number.
    None,
    /// Bytes of text; they may contain incomplete characters.
    Text(Vec<u8>),
    /// Special token with this name, which does not occur in decoded text.
    Special(String),
}

/// Splits a text into parts by cutting words of more than `LONG` bytes: the training time of a word
/// grows with the square of its length.
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

/// Returns true for a special token, and for an added token that is spelled like one: some checkpoints do not declare the tokens of
/// roles as special (`<｜User｜>` of DeepSeek-R1).
fn is_control(token: &AddedToken) -> bool {
    let is_between = |start: &str, end: &str| {
        let inner = token
            .content
            .strip_prefix(start)
            .and_then(|rest| rest.strip_suffix(end));
        inner.is_some_and(|inner| !inner.is_empty())
    };
    token.special || is_between("<|", "|>") || is_between("<｜", "｜>")
}

/// Returns the spellings of the special tokens.
fn special_spellings(inner: &tokenizers::Tokenizer) -> Vec<String> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder().values();
    let special = added.filter(|token| is_control(token) && !token.content.is_empty());
    special.map(|token| token.content.clone()).collect()
}

/// Returns the result of a call of the library `tokenizers`, and converts panics to errors, because tokenizer files are
/// untrusted.
fn contained<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizer is invalid: the tokenizers library failed on it".into()),
    }
}

/// Decoder of tokens that arrive one by one. The returned pieces together are the decoded text; a character is returned
/// as soon as its last token has arrived.
#[derive(Clone, Debug)]
pub struct TextStream<T> {
    tokenizer: T,
    state: StreamState,
}

#[derive(Clone, Debug)]
enum StreamState {
    /// Bytes of an incomplete character, for tokenizers that work on bytes.
    Bytes(Vec<u8>),
    /// Latest tokens, and the number of them whose text was already returned (shown). The shown tokens are the context
    /// for decoding the remaining ones.
    Window { tokens: Vec<u32>, shown: usize },
}

/// Shown tokens that a window keeps as context.
const CONTEXT: usize = 4;

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// Creates a stream for a tokenizer, given by a reference or an [`Arc`].
    pub fn new(tokenizer: T) -> Self {
        TextStream::behind(tokenizer, &[])
    }

    /// Creates a stream that continues the text of `tokens`. Tokenizers of SentencePiece drop the first space of a text, which
    /// is part of a continuation.
    pub fn behind(tokenizer: T, tokens: &[u32]) -> Self {
        let state = if tokenizer.spelling.is_bytes() {
            StreamState::Bytes(Vec::new())
        } else {
            let text = tokens.iter().copied().filter(|&token| !tokenizer.is_special(token));
            let text: Vec<u32> = text.collect();
            let tokens = text[text.len().saturating_sub(CONTEXT)..].to_vec();
            StreamState::Window {
                shown: tokens.len(),
                tokens,
            }
        };
        TextStream { tokenizer, state }
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &T {
        &self.tokenizer
    }

    /// Returns the text that a token completes, which may be empty.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        match &mut self.state {
            StreamState::Bytes(bytes) => {
                self.tokenizer.push_bytes(token, bytes);
                Ok(take_complete(bytes))
            }
            // Special tokens have no text, and do not separate the bytes before and after them.
            StreamState::Window { .. } if self.tokenizer.is_special(token) => Ok(String::new()),
            StreamState::Window { tokens, .. } => {
                tokens.push(token);
                // A run of consecutive bytes is decoded as a whole, so the text has to wait for its end.
                if self.tokenizer.is_single_byte(token) {
                    return Ok(String::new());
                }
                self.take_window()
            }
        }
    }

    /// Returns the rest of the text. An incomplete character becomes U+FFFD.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::decode`].
    pub fn finish(mut self) -> Result<String> {
        match &self.state {
            StreamState::Bytes(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            StreamState::Window { .. } => self.take_window(),
        }
    }

    /// Returns the text of the tokens that are not shown yet, and marks them as shown.
    fn take_window(&mut self) -> Result<String> {
        let StreamState::Window { tokens, shown } = &mut self.state else {
            return Ok(String::new());
        };
        let before = self.tokenizer.decode(&tokens[..*shown])?;
        let all = self.tokenizer.decode(tokens)?;
        // The last bytes before may have been an incomplete character, which later ones complete or change.
        let same = before.chars().zip(all.chars()).take_while(|(old, new)| old == new);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        let new = all[same..].to_owned();
        // Decoders treat the first token differently, so it stays the same. A run of bytes is not cut.
        let mut keep = tokens.len().saturating_sub(CONTEXT).max(1);
        while keep > 1 && self.tokenizer.is_single_byte(tokens[keep]) {
            keep -= 1;
        }
        if keep < tokens.len() {
            tokens.drain(1..keep);
        }
        *shown = tokens.len();
        Ok(new)
    }
}

/// Removes and returns the complete characters at the start of `bytes`, with U+FFFD for invalid bytes; an incomplete
/// character remains.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut rest = &bytes[..];
    let mut text = String::new();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text += valid;
                bytes.clear();
                return text;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text += &String::from_utf8_lossy(valid);
                let Some(wrong) = error.error_len() else {
                    *bytes = after.to_vec();
                    return text;
                };
                text.push('\u{fffd}');
                rest = &after[wrong..];
            }
        }
    }
}
