//! Constrained output: text that follows a JSON schema or a grammar. The crate `llguidance` compiles both.

mod check;
mod cost;
mod lexer_cost;
mod mask_pool;
mod masks;
mod merged;
mod numbers;
mod optional;
mod quotes;
mod trial;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::{Logger, ParserFactory, TokenParser};
pub(crate) use mask_pool::MaskPool;
use mask_pool::{CountedGrammar, MaskTime};
use masks::{FirstMask, GrammarConstraint};
use meganeura_core::{Error, Result};
use meganeura_llm::Tokenizer;
use meganeura_llm::engine::Constraint;
use meganeura_llm::large_stack::{self, RESERVE, STACK, StackError};
use meganeura_llm::tokenizer::TokenBytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::preparation::{Abandonment, GrammarLimits, GrammarRoom};
pub use trial::{CHECK_GRAMMARS, check_grammars};
use trial::{TrialRecord, TrialTokens, Trials};

/// Constraint on the form of the output.
#[derive(Clone, Debug, Hash, PartialEq, Serialize, Deserialize)]
pub(crate) enum Grammar {
    /// Any JSON object.
    Object,
    /// JSON that matches a schema.
    Schema(Value),
    /// Text that matches a grammar in llguidance's dialect of Lark.
    Lark(String),
    /// Text that a regular expression matches completely.
    Regex(String),
    /// One of the given texts, at least one of which exists.
    Choice(Vec<String>),
}

/// Grammar in a compact form, for requests that wait and for other processes. Schemas are stored as JSON text.
#[derive(Debug, Hash, PartialEq, Serialize, Deserialize)]
pub(crate) enum PackedGrammar {
    /// The JSON text of a schema.
    Schema(String),
    Other(Grammar),
}

impl Grammar {
    /// Checks how much memory the grammar takes, without the other limits of [`PackedGrammar::check`].
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the limit that it exceeds.
    pub(crate) fn check_size(&self) -> Result<()> {
        check::size(self)
    }

    /// Converts the grammar to its compact form: values of JSON take many times the memory of their text.
    pub(crate) fn packed(self) -> PackedGrammar {
        match self {
            Grammar::Schema(schema) => PackedGrammar::Schema(schema.to_string()),
            other => PackedGrammar::Other(other),
        }
    }
}

impl PackedGrammar {
    /// Returns the number of bytes of the grammar in memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            PackedGrammar::Schema(text) => text.len(),
            PackedGrammar::Other(Grammar::Lark(text) | Grammar::Regex(text)) => text.len(),
            PackedGrammar::Other(Grammar::Choice(texts)) => {
                // A short text takes a block of the allocator.
                let of_text = |text: &String| size_of::<String>() + text.len() + 2 * size_of::<usize>();
                texts.iter().map(of_text).sum()
            }
            PackedGrammar::Other(Grammar::Object | Grammar::Schema(_)) => 0,
        }
    }

    /// Converts the compact form back to the grammar.
    pub(crate) fn unpacked(&self) -> Grammar {
        match self {
            // The text of a value can be parsed; `null` is refused as a schema.
            PackedGrammar::Schema(text) => Grammar::Schema(serde_json::from_str(text).unwrap_or_default()),
            PackedGrammar::Other(grammar) => grammar.clone(),
        }
    }

    /// Checks the grammar's size, which must not exceed the limits.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the limit that it exceeds.
    pub(crate) fn check(&self) -> Result<()> {
        on_large_stack(RESERVE, || check::grammar(&self.unpacked()))
    }

    /// Estimates the time to compile the grammar, as the number of bytes of a usual schema that takes as long. A usual schema
    /// takes about 2 us for each byte; merging its parts and `multipleOf` take longer. Texts of grammars and patterns are denser.
    pub(crate) fn cost(&self) -> usize {
        /// Cost of a grammar with parameters, which may have exponentially many items.
        const PARAMETERS: usize = 32 << 10;
        let more: u64 = match self.unpacked() {
            // An invalid schema is refused when it is compiled.
            Grammar::Schema(schema) => check::schema(&schema).unwrap_or_default(),
            Grammar::Lark(text) if text.contains("::") => return PARAMETERS + 8 * text.len(),
            Grammar::Lark(text) | Grammar::Regex(text) => return 8 * text.len(),
            _ => 0,
        };
        self.bytes()
            .saturating_add(usize::try_from(more.saturating_mul(3) / 10).unwrap_or(usize::MAX))
    }
}

/// Compiler of grammars for the tokens of one model. The table of tokens is built when the first grammar is compiled.
pub(crate) struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab: usize,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
    factory: OnceLock<std::result::Result<ParserFactory, String>>,
    pool: Arc<MaskPool>,
    trials: Trials,
}

impl Grammars {
    /// Creates the compiler for a model with `vocab` tokens; `ends` are the tokens that end texts. Masks are computed by `pool`.
    /// `checker` is the program of [`ServerOptions::grammar_checker`](crate::ServerOptions::grammar_checker).
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        ends: &[u32],
        pool: MaskPool,
        checker: Option<PathBuf>,
    ) -> Self {
        Grammars {
            pool: Arc::new(pool),
            tokenizer,
            vocab,
            ends: ends.into(),
            factory: OnceLock::new(),
            trials: Trials::new(checker),
        }
    }

    /// Counts a request that waits to compile a grammar, until the returned value is dropped.
    pub(crate) fn count(&self) -> CountedGrammar {
        CountedGrammar::new(self.pool.clone())
    }

    /// Returns the results of earlier calls of [`Grammars::try_out`] and [`Grammars::compile`] for the grammar.
    pub(crate) fn known(&self, grammar: &PackedGrammar) -> TrialRecord {
        self.trials.known(grammar)
    }

    /// Compiles a grammar that [`PackedGrammar::check`] accepted in another process, and returns the processor time. Returns `None` if it exceeds the limits there, and soon
    /// after `abandoned` is set.
    ///
    /// # Errors
    /// The errors of [`Grammars::compile`].
    pub(crate) fn try_out(
        &self,
        grammar: &PackedGrammar,
        limits: &GrammarLimits,
        abandoned: &Abandonment,
    ) -> Result<Option<Duration>> {
        if *grammar == PackedGrammar::Other(Grammar::Object) {
            return Ok(Some(Duration::ZERO));
        }
        self.trials.check(grammar, limits, abandoned, || self.trial_tokens())
    }

    /// Returns the tokens that grammars can name.
    fn trial_tokens(&self) -> TrialTokens {
        let special = self.tokenizer.token_bytes().into_iter().map(|token| match token {
            special @ TokenBytes::Special(_) => word(special),
            TokenBytes::None | TokenBytes::Text(_) => Vec::new(),
        });
        let special: Vec<(u32, Vec<u8>)> = (0..).zip(special).filter(|(_, word)| !word.is_empty()).collect();
        TrialTokens {
            count: special.last().map_or(0, |(last, _)| *last as usize + 1).max(self.vocab),
            special,
            end: self.ends.first().copied().unwrap_or_default(),
        }
    }

    /// Compiles a grammar that [`Grammars::try_out`] accepted, and computes its first mask. The first call also creates the table of tokens.
    /// Returns `None` if the mask takes longer than the limit.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the error in the schema or grammar, or the limit that it exceeds; a model whose tokens are no text.
    pub(crate) fn compile(&self, grammar: &PackedGrammar, limits: &GrammarLimits) -> Result<Option<Compiled>> {
        let compiled = on_large_stack(RESERVE, || self.compile_here(&grammar.unpacked(), limits.first_mask))?;
        match &compiled {
            None => self.trials.remember_slow(grammar, limits),
            Some(compiled) => self.trials.watch(grammar, compiled.spent.clone()),
        }
        Ok(compiled)
    }

    fn compile_here(&self, grammar: &Grammar, limit: Duration) -> Result<Option<Compiled>> {
        let factory = self.factory.get_or_init(|| self.make());
        let factory = factory.as_ref().map_err(|message| {
            Error::misuse(
                format!("the model's tokens cannot be constrained: {message}"),
                "leave response_format, grammar and required tools out",
            )
        })?;
        let parser = compile(factory, grammar).map_err(|error| refused(&error))?;
        let spent = MaskTime::default();
        let first = FirstMask::of(parser, limit, &spent)?;
        Ok(first.map(|first| Compiled {
            first,
            pool: self.pool.clone(),
            spent,
            ends: self.ends.clone(),
        }))
    }

    fn make(&self) -> std::result::Result<ParserFactory, String> {
        let end = *self.ends.first().ok_or("it has no token that ends texts")?;
        let mut words: Vec<Vec<u8>> = self.tokenizer.token_bytes().into_iter().map(word).collect();
        words.resize(self.vocab.max(words.len()), Vec::new());
        factory(&words, end)
    }
}

/// Returns a compiler with limits for a table of tokens; `end` is the token that ends texts.
fn factory(words: &[Vec<u8>], end: u32) -> std::result::Result<ParserFactory, String> {
    let info = TokRxInfo::new(words.len() as u32, end);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, words)));
    let mut factory = ParserFactory::new_simple(&env).map_err(|e| e.to_string())?;
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Runs `work` on a thread with a stack for everything that the limits allow, because the checks and the compiler recurse. At least
/// `reserve` bytes of the address space stay free.
fn on_large_stack<T: Send>(reserve: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    large_stack::run("grammar", reserve, work).unwrap_or_else(|error| match error {
        StackError::NoThread => Err(Error::HostMemory {
            what: "a thread that compiles the grammar".into(),
            bytes: STACK,
        }),
        StackError::Panicked => Err(Error::misuse(
            "the grammar cannot be compiled: the compiler failed on it",
            "",
        )),
    })
}

/// Returns the error of a schema or grammar that the compiler refuses.
fn refused(error: &str) -> Error {
    let error = match error.strip_prefix("panic") {
        Some(_) => "the compiler failed on it".to_owned(),
        None => error.chars().take(300).collect(),
    };
    Error::misuse(
        format!("the schema or grammar cannot be used: {error}"),
        "see https://github.com/guidance-ai/llguidance for what is supported",
    )
}

/// Compiles a grammar that is within the limits of [`check`]. Errors are messages of the compiler; see [`refused`].
fn compile(factory: &ParserFactory, grammar: &Grammar) -> std::result::Result<TokenParser, String> {
    let top = match grammar {
        Grammar::Object => TopLevelGrammar::from_json_schema(with_space(json!({"type": "object"}))),
        Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(with_space(schema.clone())),
        Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        Grammar::Regex(text) => TopLevelGrammar::from_regex(text),
        Grammar::Choice(texts) => {
            // JSON texts may contain DEL; literals of a grammar may not.
            let literal = |text: &String| Value::from(text.as_str()).to_string().replace('\u{7f}', r"\u007f");
            let literals: Vec<String> = texts.iter().map(literal).collect();
            TopLevelGrammar::from_lark(format!("start: {}", literals.join(" | ")))
        }
    };
    let read = GrammarInit::Serialized(top).to_internal(Some(factory.tok_env().clone()), factory.limits().clone());
    let (rules, lexer) = read.map_err(|e| e.to_string())?;
    lexer_cost::check(&lexer)?;
    let limits = ParserLimits {
        max_lexer_states: lexer_cost::max_states(&lexer),
        ..factory.limits().clone()
    };
    let parser = factory.create_parser_from_init_ext(
        GrammarInit::Internal(rules, lexer),
        Logger::new(0, 0),
        InferenceCapabilities::default(),
        limits,
    );
    let mut parser = parser.map_err(|e| e.to_string())?;
    if parser.is_fresh() {
        parser.start_without_prompt();
    }
    Ok(parser)
}

/// White space between two tokens of JSON: blanks, or one or two line breaks with an indentation.
const SPACE: &str = r"[\x20\x09]{1,8}|[\x20\x09]{0,8}(\r?\n){1,2}[\x20\x09]{0,64}";

/// Limits white space in the output of a schema, because small models otherwise generate it endlessly. A schema with its own option
/// for white space, and `true` and `false`, are returned unchanged.
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

/// Converts a token for the compiler's table. A special token gets a prefix, so that it differs from any text.
fn word(token: TokenBytes) -> Vec<u8> {
    match token {
        TokenBytes::None => Vec::new(),
        TokenBytes::Text(bytes) => bytes,
        TokenBytes::Special(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], name.as_bytes()].concat(),
    }
}

/// A compiled grammar.
pub(crate) struct Compiled {
    first: FirstMask,
    pool: Arc<MaskPool>,
    spent: MaskTime,
    ends: Arc<[u32]>,
}

impl Compiled {
    /// Creates the constraint of one sequence. All sequences of a request share the maximum time of their masks, and the grammar's
    /// room in memory.
    pub(crate) fn constraint(&self, room: Arc<GrammarRoom>) -> Box<dyn Constraint> {
        Box::new(GrammarConstraint::new(
            self.pool.clone(),
            self.first.answer(),
            self.spent.clone(),
            self.ends.clone(),
            room,
        ))
    }
}
