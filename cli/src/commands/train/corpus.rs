//! Training data of `train text`: a text, or JSON objects with conversations, completions or documents.

use std::error::Error;
use std::path::Path;

use clap::ValueEnum;
use meganeura::files::read_within_memory;
use meganeura::llm::examples::{ExampleRecords, LossOn, TrainingExample, pack};
use meganeura::llm::{ChatTemplate, Tokenizer};
use meganeura::nn::data::{Dataset, TokenSequence};

/// Format of the training data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DataFormat {
    /// JSON if the file begins with an object or a list of objects, else text.
    #[default]
    Auto,
    /// One text.
    Text,
    /// JSON objects, one per line or in a list.
    Json,
}

/// Tokens that the loss counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum CountedTokens {
    /// Answers in conversations and completions; all tokens of documents.
    #[default]
    Answers,
    /// All tokens.
    All,
}

/// Contents of a data file.
pub(super) enum Source {
    Text(String),
    Json(ExampleRecords),
}

/// Tokenized training data.
pub(super) struct Corpus {
    pub(super) train: Dataset,
    pub(super) test: Option<Dataset>,
    /// Tokens of an example.
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// Tokens that the loss counts.
    pub(super) counted: usize,
    /// Description of the file, for people.
    pub(super) about: String,
    /// True if the loss does not count all tokens of the data set.
    pub(super) is_weighted: bool,
}

/// Settings for the tokenization of a [`Source`].
pub(super) struct Tokenization<'a> {
    pub(super) path: &'a Path,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) template: Option<&'a ChatTemplate>,
    pub(super) stop: &'a [u32],
    pub(super) vocab: usize,
    /// Maximum number of tokens of an example.
    pub(super) context: usize,
    /// Requested number of tokens of an example.
    pub(super) rows: Option<usize>,
    pub(super) test_fraction: f64,
    pub(super) counted: CountedTokens,
    /// True if short examples of JSON data are joined.
    pub(super) pack: bool,
}

type CorpusResult<T> = Result<T, Box<dyn Error>>;

impl Source {
    /// Reads a file.
    pub(super) fn read(path: &Path, format: DataFormat) -> CorpusResult<Self> {
        let bytes =
            read_within_memory(path).map_err(|e| format!("{}: the text cannot be read: {e}", path.display()))?;
        let text = String::from_utf8(bytes);
        let text = text.map_err(|e| format!("{}: the text is not UTF-8: {e}", path.display()))?;
        let is_json = match format {
            DataFormat::Auto => is_json(path, &text),
            DataFormat::Text => false,
            DataFormat::Json => true,
        };
        Ok(if is_json {
            Source::Json(ExampleRecords::parse(path, &text)?)
        } else {
            Source::Text(text)
        })
    }

    /// Returns the text for the training of a tokenizer.
    pub(super) fn text(&self) -> String {
        match self {
            Source::Text(text) => text.clone(),
            Source::Json(records) => records.texts(),
        }
    }
}

/// Returns true if a file contains JSON objects, by its name or its first line.
fn is_json(path: &Path, text: &str) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if extension.is_some_and(|extension| ["jsonl", "ndjson", "json"].contains(&extension.to_lowercase().as_str())) {
        return true;
    }
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    first.trim_start().starts_with('{') && serde_json::from_str::<serde_json::Value>(first).is_ok()
}

impl Tokenization<'_> {
    /// Tokenizes a source, and splits it into training and test examples.
    pub(super) fn corpus(&self, source: &Source) -> CorpusResult<Corpus> {
        if !(0.0..1.0).contains(&self.test_fraction) {
            let found = self.test_fraction;
            return Err(format!("--test-fraction: expected a number from 0 to below 1, found {found}").into());
        }
        match self.rows {
            Some(0) => return Err("--seq: expected at least 1, found 0".into()),
            Some(rows) if rows > self.context => {
                let context = self.context;
                return Err(
                    format!("--seq {rows} exceeds the {context} positions of the model; use a lower --seq").into(),
                );
            }
            _ => {}
        }
        match source {
            Source::Text(text) => self.of_text(text),
            Source::Json(records) => self.of_records(records),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn name_of_test(&self) -> String {
        format!("the end of {}", self.path.display())
    }

    /// Cuts a text into overlapping examples and, if there are enough tokens, test examples at its end.
    fn of_text(&self, text: &str) -> CorpusResult<Corpus> {
        const USUAL: usize = 64;
        if self.counted == CountedTokens::All {
            return Err("--loss-on is for JSON data; the loss counts all tokens of a text".into());
        }
        if self.pack {
            return Err("--pack is for JSON data; the examples of a text are full".into());
        }
        let rows = self.rows.unwrap_or(USUAL.min(self.context));
        let tokens = self.tokenizer.encode_plain(text)?;
        let held = (tokens.len() as f64 * self.test_fraction) as usize;
        let (train, test) = tokens.split_at(tokens.len() - if held > rows { held } else { 0 });
        let test = if test.is_empty() {
            None
        } else {
            Some(Dataset::from_tokens(self.name_of_test(), test, rows, rows, self.vocab)?)
        };
        // Examples overlap, so that the model sees each token at several positions.
        const OVERLAPPING: usize = 4;
        let stride = (rows / OVERLAPPING).max(1);
        Ok(Corpus {
            train: Dataset::from_tokens(self.name(), train, rows, stride, self.vocab)?,
            test,
            rows,
            tokens: tokens.len(),
            counted: tokens.len(),
            about: format!("{} tokens of text", tokens.len()),
            is_weighted: false,
        })
    }

    /// Makes one example of each conversation, completion or document. The last ones are for testing.
    fn of_records(&self, records: &ExampleRecords) -> CorpusResult<Corpus> {
        /// Granularity of the default length of an example, and its maximum.
        const STEP: usize = 16;
        const MOST: usize = 2048;
        let loss_on = match self.counted {
            CountedTokens::Answers => LossOn::Answers,
            CountedTokens::All => LossOn::All,
        };
        let examples = records.tokenize(self.tokenizer, self.template, self.stop, loss_on)?;
        let longest = examples.iter().flatten().map(|example| example.tokens.len()).max();
        let rows = match self.rows {
            Some(rows) => rows,
            None if self.pack => MOST.min(self.context),
            // The last token is a label only.
            None => (longest.unwrap_or(0).saturating_sub(1))
                .next_multiple_of(STEP)
                .clamp(1, MOST.min(self.context)),
        };
        let held = (examples.len() as f64 * self.test_fraction) as usize;
        let (train, test) = examples.split_at(examples.len() - held);
        let packed = self.pack.then(|| vec![pack(train.iter().flatten().cloned(), rows)]);
        let data = |name: String, examples: &[Vec<TrainingExample>]| {
            let sequences = examples.iter().flatten().map(|example| TokenSequence {
                tokens: &example.tokens,
                is_scored: &example.is_scored,
            });
            let padding = self.stop.first().copied().unwrap_or(0);
            Dataset::from_sequences(name, sequences, rows, padding, self.vocab)
        };
        let sum = |count: fn(&TrainingExample) -> usize| examples.iter().flatten().map(count).sum::<usize>();
        let tokens = sum(|example| example.tokens.len());
        let counted = sum(|example| example.is_scored.iter().skip(1).filter(|&&is_scored| is_scored).count());
        let cut = examples
            .iter()
            .flatten()
            .filter(|example| example.tokens.len() > rows + 1)
            .count();
        let mut about = format!(
            "{} objects with {}: {tokens} tokens, {counted} of them in the loss",
            records.len(),
            records.format().fields().join(" and "),
        );
        if cut > 0 {
            about += &format!("; {cut} examples are cut off after {rows} tokens (--seq)");
        }
        if let Some([sequences]) = packed.as_deref() {
            let filled: usize = sequences.iter().map(|sequence| sequence.tokens.len().min(rows)).sum();
            let share = 100.0 * filled as f64 / (rows * sequences.len()).max(1) as f64;
            about += &format!(
                "; packed into {} sequences of {rows}, {share:.0} % full",
                sequences.len()
            );
        }
        let unused = records.unused_fields();
        if !unused.is_empty() {
            about += &format!("; not used: {}", unused.join(", "));
        }
        Ok(Corpus {
            train: data(self.name(), packed.as_deref().unwrap_or(train))?,
            test: if test.is_empty() {
                None
            } else {
                Some(data(self.name_of_test(), test)?)
            },
            rows,
            tokens,
            counted,
            about,
            is_weighted: true,
        })
    }
}
