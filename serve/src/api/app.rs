//! The state that all requests to a text-generating model share.

use std::sync::{Arc, OnceLock};

use meganeura_llm::tokenizer::TokenBytes;
use meganeura_llm::{ChatTemplate, Sampling, SpecialTokens, Tokenizer};

use super::error::ApiError;
use super::site::Site;
use crate::grammar::Grammars;
use crate::worker::Worker;

/// State that all requests to a text-generating model share.
pub(crate) struct App {
    pub(crate) site: Arc<Site>,
    pub(crate) worker: Worker,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) grammars: Grammars,
    /// Bytes of each token, computed for the first request that needs them.
    pub(crate) spelled: OnceLock<Vec<TokenBytes>>,
    /// Number of tokens of the vocabulary.
    pub(crate) vocab: usize,
    /// Tokens that end a text (end-of-sequence tokens).
    pub(crate) stop: Vec<u32>,
    /// Default sampling values, for fields that a request does not contain.
    pub(crate) sampling: Sampling,
    /// Names of the adapters that requests can select.
    pub(crate) adapters: Vec<String>,
    /// Special tokens whose names stay plain text in messages; `None` parses them as special tokens.
    pub(crate) special_tokens: Option<SpecialTokens>,
}

impl App {
    /// Returns the bytes of each token of the vocabulary.
    pub(crate) fn token_bytes(&self) -> &[TokenBytes] {
        self.spelled.get_or_init(|| self.tokenizer.token_bytes())
    }

    /// Decodes tokens to text, including special tokens. Incomplete characters become U+FFFD.
    pub(crate) fn spelled(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            match self.token_bytes().get(token as usize) {
                Some(TokenBytes::Text(text)) => bytes.extend(text),
                Some(TokenBytes::Special(name)) => bytes.extend(name.bytes()),
                Some(TokenBytes::None) | None => {}
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Refuses a text that certainly has too many tokens, before it is tokenized as a whole.
    pub(crate) fn check_length(&self, text: &str) -> Result<(), ApiError> {
        let most = self.site.context;
        let excess = self.tokenizer.end_of_excess(text, most);
        if excess.map_err(|e| ApiError::of_request(&e))?.is_none() {
            return Ok(());
        }
        let message = format!("the prompt has more than {most} tokens, the maximum of a sequence");
        Err(ApiError::bad(message).code("context_length_exceeded"))
    }
}
