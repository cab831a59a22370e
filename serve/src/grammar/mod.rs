//! Output that follows a JSON schema or a grammar, by `llguidance`.

mod check;
mod masks;

use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
pub(crate) use masks::MaskPool;
use masks::{GrammarConstraint, Spent};
use meganeura_core::{Error, Result};
use meganeura_llm::Tokenizer;
use meganeura_llm::engine::Constraint;
use meganeura_llm::tokenizer::TokenBytes;
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Form that output must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Grammar {
    /// Any JSON object.
    Object,
    /// JSON that a schema describes.
    Schema(Value),
    /// Text that a grammar in llguidance's dialect of Lark describes.
    Lark(String),
    /// Text that a regular expression matches as a whole.
    Regex(String),
}

/// Makes constraints for the tokens of a model. The table of tokens is made when the first one is asked for.
pub(crate) struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab: usize,
    /// Tokens that end texts.
    ends: Arc<[u32]>,
    factory: OnceLock<std::result::Result<ParserFactory, String>>,
    pool: Arc<MaskPool>,
}

/// Maximum number of states of the lexer of one request, of about 2 kB each. A large schema takes some thousands.
const MAX_LEXER_STATES: usize = 25_000;

/// Bytes of the stack of a thread that compiles a grammar.
const STACK: usize = 256 << 20;

impl Grammars {
    /// Creates the compiler for a model with `vocab` tokens; `ends` are those that end texts. Masks are computed by `pool`.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocab: usize, ends: &[u32], pool: MaskPool) -> Self {
        Grammars {
            pool: Arc::new(pool),
            tokenizer,
            vocab,
            ends: ends.into(),
            factory: OnceLock::new(),
        }
    }

    /// Compiles a grammar; the first one also makes the table of tokens.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with what is wrong with the schema or grammar, or the limit that it exceeds; a model whose tokens
    /// are no text.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<Compiled> {
        match grammar {
            Grammar::Object => {}
            Grammar::Schema(schema) => check::schema(schema)?,
            Grammar::Lark(text) => check::source(text)?,
            // A regular expression has no intersections.
            Grammar::Regex(text) => check::source(&text.replace('&', " "))?,
        }
        // The compiler recurses: it gets a stack that is large enough for all that the limits allow.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, || self.compile_here(grammar));
            let thread =
                thread.map_err(|e| Error::misuse(format!("no thread can be started for the grammar: {e}"), ""))?;
            let panicked = || Error::misuse("the grammar cannot be compiled: the compiler failed on it", "");
            thread.join().unwrap_or_else(|_| Err(panicked()))
        })
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<Compiled> {
        let factory = self.factory.get_or_init(|| self.make());
        let factory = factory.as_ref().map_err(|message| {
            Error::misuse(
                format!("the model's tokens cannot be constrained: {message}"),
                "leave response_format, grammar and required tools out",
            )
        })?;
        let top = match grammar {
            Grammar::Object => TopLevelGrammar::from_json_schema(with_space(json!({"type": "object"}))),
            Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(with_space(schema.clone())),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Grammar::Regex(text) => TopLevelGrammar::from_regex(text),
        };
        let matcher = Matcher::new(factory.create_parser(top));
        if let Some(error) = matcher.get_error() {
            let error: String = error.chars().take(300).collect();
            return Err(Error::misuse(
                format!("the schema or grammar cannot be used: {error}"),
                "see https://github.com/guidance-ai/llguidance for what is supported",
            ));
        }
        Ok(Compiled {
            matcher,
            pool: self.pool.clone(),
            spent: Spent::default(),
            ends: self.ends.clone(),
        })
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
        factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
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

/// A compiled grammar.
pub(crate) struct Compiled {
    matcher: Matcher,
    pool: Arc<MaskPool>,
    spent: Spent,
    ends: Arc<[u32]>,
}

impl Compiled {
    /// A constraint for one sequence. All sequences of a request share the time that their masks may take.
    pub(crate) fn constraint(&self) -> Box<dyn Constraint> {
        Box::new(GrammarConstraint::new(
            self.pool.clone(),
            // The sequences share the tables of the lexer, which take megabytes for a large grammar.
            self.matcher.clone(),
            self.spent.clone(),
            self.ends.clone(),
        ))
    }
}
