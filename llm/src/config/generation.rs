//! `generation_config.json` and the end tokens of a checkpoint.

use std::collections::HashMap;
use std::path::Path;

use meganeura_core::Result;
use serde::Deserialize;
use serde_json::Value;

use super::raw::Ids;
use super::{ModelConfig, damaged};
use crate::files::read_text;
use crate::sampling::Sampling;

/// Recommended sampling values of a checkpoint. A server uses them for fields that are missing in a
/// request.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub struct SamplingDefaults {
    /// `false` asks for the most likely token.
    pub do_sample: Option<bool>,
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`]; 0 for all tokens.
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Returns the values as options of a sampler; a temperature of 1 if nothing is recommended, as
    /// in OpenAI's API.
    pub fn sampling(&self) -> Sampling {
        let none = Sampling::default();
        let temperature = match self.do_sample {
            Some(false) => 0.0,
            _ => self.temperature.unwrap_or(1.0),
        };
        Sampling {
            temperature,
            top_k: self.top_k.filter(|&k| k > 0),
            top_p: self.top_p.filter(|&p| p < 1.0),
            min_p: self.min_p.filter(|&p| p > 0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(none.repetition_penalty),
            ..none
        }
    }
}

#[derive(Deserialize)]
struct GenerationFile {
    #[serde(default)]
    eos_token_id: Ids,
    #[serde(flatten)]
    sampling: SamplingDefaults,
}

#[derive(Default, Deserialize)]
struct TokenizerSettings {
    #[serde(default)]
    eos_token: Value,
    #[serde(default)]
    added_tokens_decoder: HashMap<String, NamedValue>,
}

/// Contents of a tokenizer file; only the added tokens are read.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<NamedValue>,
}

#[derive(Deserialize)]
struct NamedValue {
    #[serde(default)]
    id: Option<u32>,
    content: String,
}

impl ModelConfig {
    /// Reads `generation_config.json` and the end token of `tokenizer_config.json` in a folder. Text ends with any token that
    /// one of the files names as the end.
    pub(super) fn read_generation(&mut self, folder: &Path) -> Result<()> {
        self.check_stop(&folder.join("config.json"))?;
        let path = folder.join("generation_config.json");
        if path.exists() {
            let file: GenerationFile = serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
            file.sampling.sampling().check().map_err(|e| damaged(&path, e))?;
            self.sampling = file.sampling;
            self.add_stop(file.eos_token_id.list());
            self.check_stop(&path)?;
        }
        let path = folder.join("tokenizer_config.json");
        if path.exists() {
            let settings: TokenizerSettings =
                serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
            self.add_stop(end_token(settings, folder)?);
            self.check_stop(&path)?;
        }
        Ok(())
    }

    fn add_stop(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            if !self.stop.contains(&id) {
                self.stop.push(id);
            }
        }
    }

    fn check_stop(&self, path: &Path) -> Result<()> {
        let vocab = self.network.vocab;
        match self.stop.iter().find(|&&id| id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(damaged(
                path,
                format!("eos_token_id: expected a token below vocab_size {vocab}, found {id}"),
            )),
        }
    }
}

/// Returns the id of the end token that a tokenizer specifies by its spelling.
fn end_token(settings: TokenizerSettings, folder: &Path) -> Result<Option<u32>> {
    let spelling = match &settings.eos_token {
        Value::String(text) => text,
        other => match other["content"].as_str() {
            Some(text) => text,
            None => return Ok(None),
        },
    };
    let known = settings.added_tokens_decoder.iter();
    let known = known.filter(|(_, token)| token.content == *spelling);
    if let Some(id) = known.filter_map(|(id, _)| id.parse().ok()).next() {
        return Ok(Some(id));
    }
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        return Ok(None);
    }
    let file: TokenizerFile = serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
    let token = file.added_tokens.into_iter().find(|token| token.content == *spelling);
    Ok(token.and_then(|token| token.id))
}
