//! Tokenizers of GGUF files, converted to `tokenizer.json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use meganeura_core::Result;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::model::without;
use super::pre_tokenizers::PreTokenizer;
use super::{Gguf, List, Value, names, pieces};

/// Kinds of tokens, by the numbers of the format: the unknown token, control tokens that are not
/// shown, added words, and bytes.
pub(super) const UNKNOWN: u8 = 2;
pub(super) const CONTROL: u8 = 3;
pub(super) const ADDED: u8 = 4;
pub(super) const BYTE: u8 = 6;
pub(super) const REMEDY: &str = "put the tokenizer.json of the model into the folder of the file";

/// A token with a special purpose.
pub(crate) struct Mark {
    pub(super) id: u64,
    pub(crate) text: String,
}

/// The tokens of a file and their kinds.
pub(super) struct Vocabulary<'a> {
    pub(super) tokens: Vec<Cow<'a, str>>,
    pub(super) kinds: Vec<u8>,
}

/// A `tokenizer.json`. It is written directly from the lists of the file, because a tree of values
/// would take a multiple of their memory.
#[derive(Serialize)]
pub(super) struct Description<'a> {
    version: &'static str,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: ModelKind<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: usize,
    content: &'a str,
    special: bool,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ModelKind<'a> {
    PairMerges(Model<'a>),
    WordPiece(BertPieces<'a>),
}

/// A WordPiece model: at each position of a word, the longest matching token is used.
#[derive(Serialize)]
pub(super) struct BertPieces<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) vocab: BTreeMap<&'a str, usize>,
    pub(super) unk_token: &'a str,
    pub(super) continuing_subword_prefix: &'static str,
    pub(super) max_input_chars_per_word: usize,
}

#[derive(Serialize)]
pub(super) struct Model<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) vocab: BTreeMap<&'a str, usize>,
    pub(super) merges: Vec<Merge<'a>>,
    pub(super) ignore_merges: bool,
    pub(super) byte_fallback: bool,
    pub(super) unk_token: Option<&'a str>,
    pub(super) fuse_unk: bool,
}

/// Two tokens that become one: separated by a space, or as a pair.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Merge<'a> {
    Text(&'a str),
    Pair(&'a str, &'a str),
}

/// The conversion of text to the model's input, and of tokens to text.
pub(super) struct Conversion {
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) decoder: Json,
}

impl Gguf {
    fn list(&self, key: &str) -> Result<Option<&List>> {
        self.typed(key, "no list", |value| match value {
            Value::List(list) => Some(list),
            _ => None,
        })
    }

    fn texts(&self, key: &str) -> Result<impl Iterator<Item = Cow<'_, str>>> {
        let list = self.list(key)?;
        let list = list.ok_or_else(|| without(self, &format!("list '{key}'"), REMEDY))?;
        let texts = list.texts(&self.map);
        texts.ok_or_else(|| self.damaged(format!("'{key}' is not a list of texts")))
    }

    /// Returns the list of a key, which must have one entry for each token; `of` converts it. Returns `None` if the
    /// file lacks the key.
    pub(super) fn of_tokens<'a, T>(
        &'a self,
        key: &str,
        tokens: usize,
        of: impl Fn(&List, &'a [u8]) -> Option<Vec<T>>,
    ) -> Result<Option<Vec<T>>> {
        let Some(list) = self.list(key)? else {
            return Ok(None);
        };
        if list.len() != tokens {
            return Err(self.damaged(format!("'{key}' has {} entries, expected {tokens}", list.len())));
        }
        let found = of(list, &self.map);
        found
            .map(Some)
            .ok_or_else(|| self.damaged(format!("'{key}' is a list of another type")))
    }

    pub(super) fn vocabulary(&self) -> Result<Vocabulary<'_>> {
        let tokens: Vec<Cow<str>> = self.texts("tokenizer.ggml.tokens")?.collect();
        let kinds = self.of_tokens("tokenizer.ggml.token_type", tokens.len(), |list, file| {
            // Unknown kinds are treated as plain tokens.
            Some(list.ints(file)?.map(|kind| u8::try_from(kind).unwrap_or(0)).collect())
        })?;
        Ok(Vocabulary {
            tokens,
            kinds: kinds.unwrap_or_default(),
        })
    }

    fn tokenizer_kind(&self) -> Result<Option<&str>> {
        self.text("tokenizer.ggml.model")
    }

    /// Returns the ID of a special token: that of the file, or the default of SentencePiece and WordPiece vocabularies.
    pub(super) fn mark_id(&self, name: &str) -> Result<Option<u64>> {
        let usual = match (self.tokenizer_kind()?, name) {
            (Some(pieces::KIND), "bos") => Some(1),
            (Some(pieces::KIND), "eos") => Some(2),
            (Some(names::WORD_PIECES), "cls") => Some(101),
            (Some(names::WORD_PIECES), "seperator") => Some(102),
            (Some(names::WORD_PIECES), "unknown") => Some(100),
            _ => None,
        };
        Ok(self.token_id(name)?.or(usual))
    }

    /// Returns the ID of a special token that the file contains.
    ///
    /// # Errors
    /// [`Error::File`](meganeura_core::Error::File): an ID that is not in the vocabulary.
    fn token_id(&self, name: &str) -> Result<Option<u64>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = self.typed(&key, "no token ID", |value| match *value {
            Value::Int(id) => Some(id),
            _ => None,
        })?;
        let (Some(id), Some(tokens)) = (id, self.vocabulary_size()?) else {
            return Ok(id.and_then(|id| u64::try_from(id).ok()));
        };
        match u64::try_from(id) {
            Ok(id) if id < tokens as u64 => Ok(Some(id)),
            _ => Err(self.damaged(format!(
                "'{key}' is {id}: expected the ID of one of the {tokens} tokens of the vocabulary"
            ))),
        }
    }

    /// Returns the number of tokens in the vocabulary. Without a vocabulary, this is the number of embeddings.
    fn vocabulary_size(&self) -> Result<Option<usize>> {
        if let Some(tokens) = self.list("tokenizer.ggml.tokens")? {
            return Ok(Some(tokens.len()));
        }
        let table = self.tensors.get(names::EMBEDDING);
        Ok(table.and_then(|info| info.shape.first()).copied())
    }

    /// Checks the IDs of all special tokens.
    ///
    /// # Errors
    /// As [`Gguf::token_id`].
    pub(super) fn check_token_ids(&self) -> Result<()> {
        const NAMES: [&str; 9] = [
            "bos",
            "eos",
            "eot",
            "eom",
            "unknown",
            "padding",
            "cls",
            "seperator",
            "mask",
        ];
        NAMES.iter().try_for_each(|name| self.token_id(name).map(drop))
    }

    /// Returns a special token, if the vocabulary has it.
    pub(crate) fn mark(&self, name: &str) -> Result<Option<Mark>> {
        let (Some(id), Some(tokens)) = (self.mark_id(name)?, self.list("tokenizer.ggml.tokens")?) else {
            return Ok(None);
        };
        let place = usize::try_from(id).ok().filter(|&place| place < tokens.len());
        let text = place.and_then(|place| tokens.texts(&self.map)?.nth(place));
        Ok(text.map(|text| Mark {
            id,
            text: text.into_owned(),
        }))
    }

    /// Returns the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::File`](meganeura_core::Error::File): no tokenizer, or one of a kind that is not supported.
    pub(crate) fn tokenizer(&self) -> Result<String> {
        self.check_token_ids()?;
        match self.tokenizer_kind()? {
            Some("gpt2") => self.byte_pairs(),
            Some(pieces::KIND) => self.pieces(),
            Some(names::WORD_PIECES) => self.word_pieces(),
            Some(other) => Err(self.unsupported(format!("a tokenizer of the kind '{other}'"), REMEDY)),
            None => Err(without(self, "tokenizer", REMEDY)),
        }
    }

    /// Checks that there is a tokenizer of a supported kind, without reading it.
    ///
    /// # Errors
    /// As [`Gguf::tokenizer`].
    pub(crate) fn check_tokenizer(&self) -> Result<()> {
        self.check_token_ids()?;
        match self.tokenizer_kind()? {
            Some("gpt2") => self.pre_tokenizer().map(drop),
            Some(pieces::KIND | names::WORD_PIECES) => Ok(()),
            // Called for its error.
            _ => self.tokenizer().map(drop),
        }
    }

    /// Returns the pre-tokenizer of byte pairs.
    fn pre_tokenizer(&self) -> Result<&'static PreTokenizer> {
        const KEY: &str = "tokenizer.ggml.pre";
        let name = self.text(KEY)?.unwrap_or("default");
        PreTokenizer::of(name).ok_or_else(|| self.unsupported(format!("the pre-tokenizer '{name}' ('{KEY}')"), REMEDY))
    }

    /// Returns the `tokenizer.json` of byte pairs, merged in the order of a list.
    fn byte_pairs(&self) -> Result<String> {
        let pre_tokenizer = self.pre_tokenizer()?;
        let vocabulary = self.vocabulary()?;
        let merges: Vec<Cow<str>> = self.texts("tokenizer.ggml.merges")?.collect();
        let around = Conversion {
            normalizer: Json::Null,
            pre_tokenizer: pre_tokenizer.json(),
            decoder: json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }),
        };
        let model = Model {
            kind: "BPE",
            vocab: vocabulary.places(),
            merges: merges.iter().map(|merge| Merge::Text(merge)).collect(),
            ignore_merges: pre_tokenizer.ignore_merges,
            byte_fallback: false,
            unk_token: None,
            fuse_unk: false,
        };
        let marks = [pre_tokenizer.add_bos, false];
        let added = vocabulary.added(&[CONTROL, ADDED]);
        self.describe(added, around, self.marks(marks)?, ModelKind::PairMerges(model))
    }

    pub(super) fn describe(
        &self,
        added_tokens: AddedTokens,
        around: Conversion,
        post_processor: Json,
        model: ModelKind,
    ) -> Result<String> {
        let description = Description {
            version: "1.0",
            added_tokens: added_tokens.0,
            normalizer: around.normalizer,
            pre_tokenizer: around.pre_tokenizer,
            post_processor,
            decoder: around.decoder,
            model,
        };
        serde_json::to_string(&description).map_err(|e| self.damaged(e))
    }

    /// Returns the post-processor that adds special tokens around every text, as the file specifies
    /// or by default.
    pub(super) fn marks(&self, usual: [bool; 2]) -> Result<Json> {
        let asked = |name: &str, usual: bool| -> Result<Option<Mark>> {
            let key = format!("tokenizer.ggml.add_{name}_token");
            if !self.flag(&key)?.unwrap_or(usual) {
                return Ok(None);
            }
            let Some(mark) = self.mark(name)? else {
                let message =
                    format!("texts get a '{name}' token, but 'tokenizer.ggml.{name}_token_id' is not a token");
                return Err(self.damaged(message));
            };
            Ok(Some(mark))
        };
        Ok(template(asked("bos", usual[0])?, asked("eos", usual[1])?))
    }
}

/// Returns the post-processor that adds the special tokens `first` and `last` around every text.
pub(super) fn template(first: Option<Mark>, last: Option<Mark>) -> Json {
    let mut marks = Map::new();
    let mut piece = |mark: Option<Mark>| {
        mark.map(|Mark { id, text }| {
            marks.insert(text.clone(), json!({ "id": text, "ids": [id], "tokens": [text] }));
            json!({ "SpecialToken": { "id": text, "type_id": 0 } })
        })
    };
    let (first, last) = (piece(first), piece(last));
    if marks.is_empty() {
        return Json::Null;
    }
    let around = |names: &[&str]| -> Vec<Json> {
        let texts = names
            .iter()
            .map(|name| json!({ "Sequence": { "id": name, "type_id": 0 } }));
        first.iter().cloned().chain(texts).chain(last.clone()).collect()
    };
    json!({ "type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]), "special_tokens": marks })
}

/// Tokens that are searched in a text before all other steps.
pub(super) struct AddedTokens<'a>(Vec<AddedToken<'a>>);

impl Vocabulary<'_> {
    /// Returns the index of each token.
    pub(super) fn places(&self) -> BTreeMap<&str, usize> {
        let places = self.tokens.iter().enumerate();
        places.map(|(id, token)| (token.as_ref(), id)).collect()
    }

    /// Returns the kind of a token; `None` in files without kinds, whose tokens are all plain.
    pub(super) fn kind(&self, id: usize) -> Option<u8> {
        self.kinds.get(id).copied()
    }

    /// Returns the tokens of these kinds. Only added words are shown in text.
    pub(super) fn added(&self, kinds: &[u8]) -> AddedTokens<'_> {
        let all = self.tokens.iter().enumerate();
        let added = all.filter_map(|(id, token)| {
            let kind = self.kind(id).filter(|kind| kinds.contains(kind))?;
            Some(AddedToken {
                id,
                content: token,
                special: kind != ADDED,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
            })
        });
        AddedTokens(added.collect())
    }
}
