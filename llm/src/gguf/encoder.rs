//! Encoders of the BERT family in GGUF files (architecture `bert`) and their WordPiece vocabularies.
//!
//! Keys, defaults and names of tensors come from llama.cpp's `conversion/bert.py` and `src/llama-vocab.cpp`. Its converter removes
//! the rows before the first position of a text from the positions of RoBERTa. Therefore RoBERTa and DistilBERT load as BERT.

use std::borrow::Cow;

use meganeura_core::Result;
use serde_json::{Value as Json, json};

use super::tokenizer::{ADDED, BertPieces, CONTROL, Conversion, Mark, ModelKind, UNKNOWN, Vocabulary};
use super::{Gguf, names};
use crate::pooling::Pooling;
use crate::tensors::element::Element;

/// Prefix of tokens that begin a word. Files have it instead of the prefix `##` of tokens that continue a word.
const WORD: &str = "\u{2581}";
const CONTINUES: &str = "##";

impl Gguf {
    /// Returns true if the file contains an encoder.
    pub(crate) fn is_encoder(&self) -> bool {
        self.architecture().is_ok_and(|name| name == names::ENCODER)
    }

    /// Returns the text of the `config.json` that describes the encoder. Files do not contain the activation; it is `gelu`,
    /// as in nearly all models of the family.
    ///
    /// # Errors
    /// [`Error::File`](meganeura_core::Error::File): missing keys or tensors, or tensors of unknown types.
    pub(crate) fn encoder_config(&self) -> Result<String> {
        if let Some((name, info)) = self.tensors.iter().find(|(_, info)| info.element.is_none()) {
            let what = format!("the tensor '{name}' of type {}", info.stored);
            return Err(self.unsupported(what, &format!("use a file in {}", Element::KNOWN)));
        }
        if self.flag(&self.own("attention.causal")?)?.unwrap_or(false) {
            return Err(self.unsupported("an encoder with causal attention", "use another model"));
        }
        let [vocab, _] = self.matrix(names::EMBEDDING)?;
        let [positions, _] = self.matrix(names::POSITIONS)?;
        let token_types = match self.tensors.get(names::TOKEN_TYPES).map(|info| info.shape.as_slice()) {
            None => 0,
            Some(&[types, _]) => types,
            Some(_) => 1,
        };
        let fields = json!({
            "model_type": "bert",
            "vocab_size": vocab,
            "hidden_size": self.needed("embedding_length")?,
            "intermediate_size": self.needed("feed_forward_length")?,
            "num_hidden_layers": self.needed("block_count")?,
            "num_attention_heads": self.needed("attention.head_count")?,
            "max_position_embeddings": positions,
            "type_vocab_size": token_types,
            "layer_norm_eps": self.needed_float("attention.layer_norm_epsilon")?,
            "hidden_act": "gelu",
        });
        Ok(fields.to_string())
    }

    /// Returns the maximum number of tokens of a text, if the file contains it.
    pub(crate) fn encoder_context(&self) -> Result<Option<u64>> {
        self.own_count("context_length")
    }

    /// Returns the pooling, if the file contains one.
    ///
    /// # Errors
    /// [`Error::File`](meganeura_core::Error::File): a pooling that is not supported.
    pub(crate) fn pooling(&self) -> Result<Option<Pooling>> {
        let key = self.own("pooling_type")?;
        let name = match self.count(&key)? {
            None | Some(0) => return Ok(None),
            Some(1) => return Ok(Some(Pooling::Mean)),
            Some(2) => return Ok(Some(Pooling::Cls)),
            Some(3) => "the last token".to_owned(),
            Some(4) => "a score of two texts (a reranker)".to_owned(),
            Some(other) => format!("the unknown type {other}"),
        };
        let remedy = "use a model with the pooling mean or cls";
        Err(self.unsupported(format!("a pooling by {name} ('{key}')"), remedy))
    }

    /// Returns the `tokenizer.json` of a WordPiece vocabulary.
    pub(super) fn word_pieces(&self) -> Result<String> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let stored = self.vocabulary()?;
        let is_special = |id: usize| matches!(stored.kind(id), Some(UNKNOWN | CONTROL));
        let first = match self.mark("bos")? {
            Some(mark) => Some(mark),
            None => self.mark("cls")?,
        };
        let needed = |mark: Option<Mark>, name: &str| {
            mark.ok_or_else(|| self.damaged(format!("it has no token '{}'", key(&format!("{name}_token_id")))))
        };
        let first = needed(first, "bos")?;
        let last = needed(self.mark("seperator")?, "seperator")?;
        let unknown = needed(self.mark("unknown")?, "unknown")?;
        let own = [&first, &last, &unknown].map(|mark| mark.id as usize);
        let tokens = stored
            .tokens
            .iter()
            .enumerate()
            .map(|(id, token)| match token.strip_prefix(WORD) {
                _ if is_special(id) || own.contains(&id) => Cow::Borrowed(token.as_ref()),
                Some(word) => Cow::Borrowed(word),
                None => Cow::Owned(format!("{CONTINUES}{token}")),
            });
        let vocabulary = Vocabulary {
            tokens: tokens.collect(),
            kinds: stored.kinds.clone(),
        };
        let lowercase = self.flag(&key("normalizer.lowercase"))?.unwrap_or(true);
        let strip_accents = self.flag(&key("normalizer.strip_accents"))?.unwrap_or(lowercase);
        let around = Conversion {
            normalizer: json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": strip_accents, "lowercase": lowercase }),
            pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
            decoder: json!({ "type": "WordPiece", "prefix": CONTINUES, "cleanup": true }),
        };
        let model = BertPieces {
            kind: "WordPiece",
            vocab: vocabulary.places(),
            unk_token: &unknown.text,
            continuing_subword_prefix: CONTINUES,
            max_input_chars_per_word: 100,
        };
        let post_processor: Json = super::tokenizer::template(Some(first), Some(last));
        let added = vocabulary.added(&[UNKNOWN, CONTROL, ADDED]);
        self.describe(added, around, post_processor, ModelKind::WordPiece(model))
    }
}
