//! Output that keeps to a JSON schema or a grammar, by `llguidance`.

use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use meganeura_core::{Error, Result};
use meganeura_llm::Tokenizer;
use meganeura_llm::engine::Constraint;
use meganeura_llm::tokenizer::TokenBytes;
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// What output has to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Grammar {
    /// Any JSON object.
    Object,
    /// JSON that a schema describes.
    Schema(Value),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
}

/// Makes constraints for the tokens of a model. The table of tokens is made when the first one is asked for.
pub(crate) struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab: usize,
    /// Tokens that end texts.
    ends: Arc<[u32]>,
    factory: OnceLock<std::result::Result<ParserFactory, String>>,
}

impl Grammars {
    /// For a model of so many tokens, some of which end texts.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocab: usize, ends: &[u32]) -> Self {
        Grammars {
            tokenizer,
            vocab,
            ends: ends.into(),
            factory: OnceLock::new(),
        }
    }

    /// Reads a grammar; the first one also makes the table of tokens.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with what is wrong with the schema or grammar; a model whose tokens are no text.
    pub(crate) fn read(&self, grammar: &Grammar) -> Result<Compiled> {
        if let Grammar::Lark(text) = grammar {
            check_source(text)?;
        }
        let factory = self.factory.get_or_init(|| self.make());
        let factory = factory.as_ref().map_err(|message| {
            Error::misuse(
                format!("the model's tokens cannot be constrained: {message}"),
                "leave response_format, grammar and required tools out",
            )
        })?;
        let refuse = |e: &dyn std::fmt::Display| {
            Error::misuse(
                format!("the schema or grammar cannot be used: {e}"),
                "see https://github.com/guidance-ai/llguidance for what is supported",
            )
        };
        let top = match grammar {
            Grammar::Object => TopLevelGrammar::from_json_schema(with_space(json!({"type": "object"}))),
            Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(with_space(schema.clone())),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let matcher = Matcher::new(factory.create_parser(top));
        match matcher.get_error() {
            Some(error) => Err(refuse(&error)),
            None => Ok(Compiled {
                matcher,
                ends: self.ends.clone(),
            }),
        }
    }

    fn make(&self) -> std::result::Result<ParserFactory, String> {
        let end = *self.ends.first().ok_or("it has no token that ends texts")?;
        let mut words: Vec<Vec<u8>> = self.tokenizer.token_bytes().into_iter().map(word).collect();
        words.resize(self.vocab.max(words.len()), Vec::new());
        let info = TokRxInfo::new(words.len() as u32, end);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| e.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// White space between two parts of JSON: blanks, or a line break or two with an indentation.
const SPACE: &str = r"[\x20\x09]{1,8}|[\x20\x09]{0,8}(\r?\n){1,2}[\x20\x09]{0,64}";

/// A schema with bounds for white space, which small models write without end otherwise. One that has options of its own keeps
/// them, and one that is no object allows everything or nothing.
fn with_space(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        let options = fields.entry("x-guidance").or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut()
            && !options.contains_key("whitespace_flexible")
        {
            options.entry("whitespace_pattern").or_insert_with(|| SPACE.into());
        }
    }
    schema
}

/// A token as the table has it: special ones behind a mark, so that no text is one.
fn word(token: TokenBytes) -> Vec<u8> {
    match token {
        TokenBytes::None => Vec::new(),
        TokenBytes::Text(bytes) => bytes,
        TokenBytes::Special(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], name.as_bytes()].concat(),
    }
}

/// A grammar that was read.
pub(crate) struct Compiled {
    matcher: Matcher,
    ends: Arc<[u32]>,
}

impl Compiled {
    /// A constraint for one sequence.
    pub(crate) fn constraint(&self) -> Box<dyn Constraint> {
        Box::new(ByGrammar {
            matcher: self.matcher.deep_clone(),
            ends: self.ends.clone(),
        })
    }
}

/// Refuses grammars that would take the parser more than it has: it has no limits of its own for what is in parentheses.
fn check_source(text: &str) -> Result<()> {
    const MAX_BYTES: usize = 64 << 10;
    const MAX_DEPTH: usize = 64;
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if text.len() > MAX_BYTES || deepest > MAX_DEPTH {
        return Err(Error::misuse(
            format!(
                "the grammar has {} bytes and {deepest} parentheses in each other; at most {MAX_BYTES} and {MAX_DEPTH} are read",
                text.len()
            ),
            "use a simpler grammar",
        ));
    }
    Ok(())
}

struct ByGrammar {
    matcher: Matcher,
    ends: Arc<[u32]>,
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::misuse(
        format!("the grammar cannot be followed any further: {error}"),
        "use a simpler schema or grammar",
    )
}

impl Constraint for ByGrammar {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| failed(&e))?;
        // Where the text may end, it may by any token that ends texts.
        let may_end = self.ends.first().is_some_and(|&end| mask.is_allowed(end));
        for (token, logit) in (0u32..).zip(logits) {
            let is_allowed = mask.is_allowed(token) || (may_end && self.ends.contains(&token));
            if !is_allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<bool> {
        self.matcher.consume_token(token).map_err(|e| failed(&e))?;
        Ok(self.matcher.is_stopped())
    }
}
