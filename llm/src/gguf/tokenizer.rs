//! Tokenizers of GGUF files, as `tokenizer.json` describes them.

use meganeura_core::Result;
use serde_json::{Map, Value as Json, json};

use super::model::without;
use super::{Gguf, Value};

/// Marks that are not shown, and words that somebody added.
const CONTROL: i64 = 3;
const ADDED: i64 = 4;
const REMEDY: &str = "put the tokenizer.json of the model into the folder of the file";

/// How text is cut before pairs are merged, by the names that files have for it. Patterns are those of the models' own
/// tokenizers.
fn cutting(name: &str) -> Option<Json> {
    let bytes = |by_words: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": by_words });
    let split = |pattern: &str| {
        let split =
            json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        json!({ "type": "Sequence", "pretokenizers": [split, bytes(false)] })
    };
    Some(match name {
        "default" | "gpt-2" => bytes(true),
        "smollm" => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            json!({ "type": "Sequence", "pretokenizers": [digits, bytes(true)] })
        }
        "llama-bpe" | "llama3" | "llama-v3" => split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        "qwen2" => split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        _ => return None,
    })
}

impl Gguf {
    fn texts(&self, key: &str) -> Result<&[String]> {
        match self.values.get(key) {
            Some(Value::Texts(texts)) => Ok(texts),
            _ => Err(without(self, &format!("list '{key}'"), REMEDY)),
        }
    }

    /// A mark's text.
    pub(crate) fn mark(&self, name: &str) -> Option<&str> {
        let id = self.count(&format!("tokenizer.ggml.{name}_token_id"))?;
        let tokens = self.texts("tokenizer.ggml.tokens").ok()?;
        tokens.get(usize::try_from(id).ok()?).map(String::as_str)
    }

    /// The text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::File`](meganeura_core::Error::File): no tokenizer, or one of a kind that is not supported.
    pub(crate) fn tokenizer(&self) -> Result<String> {
        match self.text("tokenizer.ggml.model") {
            Some("gpt2") => {}
            Some(other) => return Err(self.unsupported(format!("a tokenizer of the kind '{other}'"), REMEDY)),
            None => return Err(without(self, "tokenizer", REMEDY)),
        }
        let cut = self.text("tokenizer.ggml.pre").unwrap_or("default");
        let pre_tokenizer = cutting(cut)
            .ok_or_else(|| self.unsupported(format!("a tokenizer that cuts text as '{cut}' does"), REMEDY))?;
        let tokens = self.texts("tokenizer.ggml.tokens")?;
        let merges = self.texts("tokenizer.ggml.merges")?;
        let kinds = match self.values.get("tokenizer.ggml.token_type") {
            Some(Value::Ints(kinds)) => kinds.as_slice(),
            _ => &[],
        };
        let vocab: Map<String, Json> = (tokens.iter().enumerate())
            .map(|(id, token)| (token.clone(), id.into()))
            .collect();
        let added: Vec<Json> = (tokens.iter().zip(kinds).enumerate())
            .filter(|(_, (_, kind))| matches!(**kind, CONTROL | ADDED))
            .map(|(id, (token, kind))| {
                json!({ "id": id, "content": token, "special": *kind == CONTROL, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false })
            })
            .collect();
        let json = json!({
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.first_mark(),
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "model": { "type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": cut.starts_with("llama") },
        });
        Ok(json.to_string())
    }

    /// What puts the first mark before every text, if the file asks for that.
    fn first_mark(&self) -> Json {
        let asked = matches!(self.values.get("tokenizer.ggml.add_bos_token"), Some(Value::Bool(true)));
        let Some(mark) = self.mark("bos").filter(|_| asked) else {
            return Json::Null;
        };
        let id = self.count("tokenizer.ggml.bos_token_id");
        let first = json!({ "SpecialToken": { "id": mark, "type_id": 0 } });
        let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        let mut marks = Map::new();
        marks.insert(mark.to_owned(), json!({ "id": mark, "ids": [id], "tokens": [mark] }));
        json!({ "type": "TemplateProcessing", "single": [first, text("A")],
            "pair": [first, text("A"), text("B")], "special_tokens": marks })
    }
}
