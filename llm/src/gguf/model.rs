//! Conversion of the metadata of a GGUF file to the text of an equivalent `config.json`.

use meganeura_core::{Error, Result};
use serde_json::{Value as Json, json};

use super::{Gguf, names};
use crate::tensors::element::Element;

/// Supported architectures.
const ARCHITECTURES: &[&str] = &[
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "qwen2moe", "qwen3moe", "olmoe",
    "smollm3", "granite", "gpt-oss", "lfm2",
];

impl Gguf {
    /// Returns the architecture; its keys begin with the same text.
    pub(crate) fn architecture(&self) -> Result<&str> {
        Ok(self.text("general.architecture")?.unwrap_or(""))
    }

    /// Returns the full name of a key that begins with the architecture.
    pub(super) fn own(&self, key: &str) -> Result<String> {
        Ok(format!("{}.{key}", self.architecture()?))
    }

    pub(super) fn own_count(&self, key: &str) -> Result<Option<u64>> {
        self.count(&self.own(key)?)
    }

    pub(super) fn needed(&self, key: &str) -> Result<u64> {
        let key = self.own(key)?;
        let count = self.count(&key)?.filter(|&count| count > 0);
        count.ok_or_else(|| self.damaged(format!("it has no positive number '{key}'")))
    }

    /// Returns the value of a required key of the architecture.
    pub(super) fn needed_float(&self, key: &str) -> Result<f64> {
        let key = self.own(key)?;
        let number = self.float(&key)?;
        number.ok_or_else(|| self.damaged(format!("it has no number '{key}'")))
    }

    /// Returns the number of query heads, and of key-value heads.
    fn heads(&self) -> Result<[u64; 2]> {
        let heads = self.needed("attention.head_count")?;
        if let Some(of_layers) = self.kv_heads_of_layers()? {
            let most = of_layers.iter().copied().max().unwrap_or(0);
            return match u64::try_from(most) {
                Ok(most @ 1..) if of_layers.iter().all(|&count| count == 0 || count as u64 == most) => {
                    Ok([heads, most])
                }
                _ => Err(self.unsupported("layers with different numbers of key-value heads", "use another model")),
            };
        }
        let kv_heads = match self.own_count("attention.head_count_kv")? {
            None => heads,
            Some(_) => self.needed("attention.head_count_kv")?,
        };
        Ok([heads, kv_heads])
    }

    /// Returns the number of key-value heads of each layer, for an architecture with layers that have no attention: they
    /// have 0.
    fn kv_heads_of_layers(&self) -> Result<Option<Vec<i64>>> {
        if self.architecture()? != "lfm2" {
            return Ok(None);
        }
        let key = self.own("attention.head_count_kv")?;
        let blocks = usize::try_from(self.needed("block_count")?).unwrap_or(usize::MAX);
        let counts = self.of_tokens(&key, blocks, |list, file| Some(list.ints(file)?.collect()))?;
        counts
            .map(Some)
            .ok_or_else(|| self.damaged(format!("it has no list '{key}'")))
    }

    /// Returns the index of the first layer with attention.
    fn first_attention(&self) -> Result<usize> {
        let of_layers = self.kv_heads_of_layers()?;
        let first = of_layers.map(|counts| counts.iter().position(|&count| count > 0));
        Ok(first.flatten().unwrap_or(0))
    }

    /// Returns the numbers of query heads and key heads if rotary embeddings (RoPE) rotate pairs of adjacent rows of a
    /// head. In llama.cpp, this is so for llama, SmolLM3 and Granite. Returns `None` for other architectures: they pair
    /// each row of the first half of a head with a row of the second half.
    pub(super) fn paired_heads(&self) -> Result<Option<[usize; 2]>> {
        match self.architecture()? {
            "llama" | "smollm3" | "granite" => Ok(Some(self.heads()?.map(|count| count as usize))),
            _ => Ok(None),
        }
    }

    /// Returns rows and columns of a matrix.
    pub(super) fn matrix(&self, name: &str) -> Result<[usize; 2]> {
        match self.tensors.get(name).map(|info| info.shape.as_slice()) {
            Some(&[rows, columns]) => Ok([rows, columns]),
            _ => Err(self.damaged(format!("it has no matrix '{name}'"))),
        }
    }

    /// Returns the text of an equivalent `config.json`, for a model of a supported architecture.
    ///
    /// # Errors
    /// [`Error::File`]: an architecture or an option that is not supported, numbers that are
    /// missing or do not match the tensors.
    pub(crate) fn config(&self) -> Result<String> {
        let architecture = self.architecture()?;
        if !ARCHITECTURES.contains(&architecture) {
            let what = format!("a model of architecture '{architecture}'");
            return Err(self.unsupported(what, &format!("supported are {}", ARCHITECTURES.join(", "))));
        }
        let dim = self.needed("embedding_length")?;
        let [heads, kv_heads] = self.heads()?;
        let rotated = self.own_count("rope.dimension_count")?;
        let head_dim = self.own_count("attention.key_length")?.unwrap_or(dim / heads);
        if self
            .own_count("attention.value_length")?
            .is_some_and(|width| width != head_dim)
        {
            return Err(self.unsupported("values with another head size than keys", "use another model"));
        }
        // 0 also means the usual scale of scores.
        let usual = (head_dim as f64).sqrt().recip();
        let scale = self.float(&self.own("attention.scale")?)?.filter(|&scale| scale != 0.0);
        if architecture != "granite" && scale.is_some_and(|scale| (scale / usual - 1.0).abs() > 1e-5) {
            return Err(self.unsupported("a scale of attention's scores", "use another model"));
        }
        let experts = self.experts()?;
        if architecture != "phi3" && rotated.is_some_and(|rotated| rotated != head_dim) {
            return Err(self.unsupported("heads with partial rotation", "use another model"));
        }
        if self.tensors.contains_key(names::LONG_FACTORS) {
            let what = format!("rotary positions of type 'longrope' ('{}')", names::LONG_FACTORS);
            return Err(self.unsupported(what, "use a model without this context extension"));
        }
        // Sizes of unsupported types are unknown, so they were not compared with the file's.
        if let Some((name, info)) = self.tensors.iter().find(|(_, info)| info.element.is_none()) {
            let what = format!("the tensor '{name}' of type {}", info.stored);
            return Err(self.unsupported(what, &format!("use a file in {}", Element::KNOWN)));
        }
        let [vocab, _] = self.matrix(names::EMBEDDING)?;
        self.check_sizes(dim, [heads, kv_heads].map(|heads| heads.saturating_mul(head_dim)))?;
        let has = |name: &str| self.tensors.contains_key(name);
        let window = self.own_count("attention.sliding_window")?.filter(|&window| window > 0);
        let family = match (architecture, window) {
            ("llama", _) if experts.is_some() => "mixtral",
            ("llama", Some(_)) => "mistral",
            ("qwen2moe", _) => "qwen2_moe",
            ("qwen3moe", _) => "qwen3_moe",
            ("gemma3", _) => "gemma3_text",
            ("gpt-oss", _) => "gpt_oss",
            // In llama.cpp, every fourth layer has no window.
            ("olmo2", Some(_)) => "olmo3",
            (family, _) => family,
        };
        self.check_token_ids()?;
        let mut stop = Vec::new();
        for mark in ["eos", "eot", "eom"] {
            stop.extend(self.mark_id(mark)?.filter(|id| !stop.contains(id)));
        }
        let mut fields = json!({
            "model_type": family,
            "vocab_size": vocab,
            "hidden_size": dim,
            "intermediate_size": self.needed("feed_forward_length")?,
            "num_hidden_layers": self.needed("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": self.needed("context_length")?,
            "rms_norm_eps": self.needed_float("attention.layer_norm_rms_epsilon")?,
            "rope_theta": self.theta()?,
            "rope_parameters": self.rope(head_dim)?,
            "tie_word_embeddings": !has(names::HEAD),
            "attention_bias": has("blk.0.attn_output.bias"),
            "mlp_bias": has("blk.0.ffn_down.bias"),
            "sliding_window": window,
            "eos_token_id": stop,
        });
        let others = match architecture {
            "gemma2" | "gemma3" => self.of_gemma(dim, heads, head_dim)?,
            "granite" => self.of_granite(scale.unwrap_or(usual))?,
            "lfm2" => self.of_lfm2()?,
            // Adds half a feature, because the fraction of a head is truncated to whole features.
            _ if experts.is_some() => experts.unwrap_or_default(),
            "phi3" => rotated.filter(|&rotated| rotated != head_dim).map_or(
                json!({}),
                |rotated| json!({ "partial_rotary_factor": (rotated as f64 + 0.5) / head_dim as f64 }),
            ),
            _ => json!({}),
        };
        if let (Some(fields), Json::Object(others)) = (fields.as_object_mut(), others) {
            fields.extend(others);
        }
        Ok(fields.to_string())
    }

    /// Returns the fields that only a `config.json` of LFM2 has.
    fn of_lfm2(&self) -> Result<Json> {
        let kinds = self.kv_heads_of_layers()?.unwrap_or_default();
        let kinds = kinds
            .iter()
            .map(|&count| if count > 0 { "full_attention" } else { "conv" });
        Ok(json!({
            "layer_types": kinds.collect::<Vec<_>>(),
            "conv_L_cache": self.needed("shortconv.l_cache")?,
            // The size in the file is the adjusted one.
            "block_auto_adjust_ff_dim": false,
        }))
    }

    /// Returns the fields that only a `config.json` of Granite has. `scale` is the scale of attention scores.
    fn of_granite(&self, scale: f64) -> Result<Json> {
        let mut fields = json!({ "attention_multiplier": scale });
        for (name, key) in [
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ] {
            // llama.cpp reads 0 as a missing scale.
            if let Some(number) = self.float(&self.own(key)?)?.filter(|&number| number != 0.0) {
                fields[name] = json!(number);
            }
        }
        Ok(fields)
    }

    /// Returns the additional fields of a `config.json` of Gemma 2 or 3. Missing values have the
    /// defaults of llama.cpp.
    fn of_gemma(&self, dim: u64, heads: u64, head_dim: u64) -> Result<Json> {
        let blocks = self.needed("block_count")?;
        let is_third = self.architecture()? == "gemma3";
        // The models with 27 billion weights divide by the root of `dim / heads`. Only their number of blocks
        // identifies them.
        let of_27b = if is_third { 62 } else { 46 };
        let scalar = if blocks == of_27b { dim / heads } else { head_dim };
        let mut fields = json!({ "query_pre_attn_scalar": scalar });
        for (name, key) in [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("rope_local_base_freq", "rope.freq_base_swa"),
        ] {
            if let Some(number) = self.float(&self.own(key)?)? {
                fields[name] = json!(number);
            }
        }
        if is_third {
            let every = self.own_count("attention.sliding_window_pattern")?;
            if let Some(every) = every {
                fields["sliding_window_pattern"] = json!(every);
            }
        } else if self.own_count("attention.sliding_window")?.is_none() {
            fields["sliding_window"] = json!(4096);
        }
        Ok(fields)
    }

    /// Returns the fields of a mixture of experts in a `config.json`, if the model is one. The sizes of experts come
    /// from the tensors of the first block, and the metadata have to agree. Files do not specify if the weights of the
    /// selected experts are normalized to the sum 1, so this follows from the family.
    fn experts(&self) -> Result<Option<Json>> {
        const WITH_EXPERTS: [&str; 5] = ["llama", "qwen2moe", "qwen3moe", "olmoe", "gpt-oss"];
        let architecture = self.architecture()?;
        let Some(count) = self.own_count("expert_count")?.filter(|&count| count > 0) else {
            return match architecture {
                "llama" => Ok(None),
                _ if WITH_EXPERTS.contains(&architecture) => Err(self.damaged("its number of experts is missing")),
                _ => Ok(None),
            };
        };
        if !WITH_EXPERTS.contains(&architecture) {
            let what = format!("a mixture of experts of the architecture '{architecture}'");
            return Err(self.unsupported(what, &format!("supported are {}", WITH_EXPERTS.join(", "))));
        }
        let (used, dim) = (self.needed("expert_used_count")?, self.needed("embedding_length")?);
        let shape_of = |name: &str| self.tensors.get(name).map(|info| info.shape.as_slice());
        let shape = |name: &str| {
            let one = |expert| names::of_one_expert(name, expert);
            let sizes = match (shape_of(name), shape_of(&one(0))) {
                (Some(&[experts, rows, columns]), _) => [experts, rows, columns],
                (None, Some(&[rows, columns])) => {
                    let is_there = |expert: &usize| self.tensors.contains_key(&one(*expert));
                    [(0..).take_while(is_there).count(), rows, columns]
                }
                _ => return Err(self.damaged(format!("it has no matrices of experts '{name}'"))),
            };
            Ok(sizes.map(|size| size as u64))
        };
        let [_, hidden, _] = shape(names::EXPERTS[0])?;
        let across = [count, hidden, dim];
        for (name, wanted) in names::EXPERTS.into_iter().zip([across, across, [count, dim, hidden]]) {
            let found = shape(name)?;
            if found != wanted {
                return Err(self.damaged(format!(
                    "'{name}': expected {wanted:?} from the metadata, found {found:?}"
                )));
            }
        }
        // 0 means the usual setting: shares of a softmax, unchanged. Files of gpt-oss may specify a softmax of the chosen experts.
        const OF_CHOSEN: f64 = 3.0;
        for key in ["expert_weights_scale", "expert_gating_func"] {
            let given = self.float(&self.own(key)?)?;
            let is_of_chosen = given == Some(OF_CHOSEN) && architecture == "gpt-oss" && key == "expert_gating_func";
            if given.is_some_and(|given| given != 0.0 && given != 1.0) && !is_of_chosen {
                return Err(self.unsupported(
                    format!("an unsupported routing of experts ('{key}')"),
                    "use another model",
                ));
            }
        }
        let mut fields = json!({
            "num_experts": count,
            "num_experts_per_tok": used,
            "moe_intermediate_size": hidden,
            "norm_topk_prob": architecture == "qwen3moe",
        });
        if !architecture.starts_with("qwen") {
            // These families have one size for all.
            fields["intermediate_size"] = json!(hidden);
        }
        if architecture == "qwen2moe" {
            let [shared, _] = self.matrix("blk.0.ffn_gate_shexp.weight")?;
            fields["shared_expert_intermediate_size"] = json!(shared);
        }
        Ok(Some(fields))
    }

    /// Checks sizes against the first block's tensors, and that there are tensors for every block:
    /// a graph is built from these numbers.
    fn check_sizes(&self, dim: u64, [queries, keys]: [u64; 2]) -> Result<()> {
        let blocks = self.needed("block_count")?;
        if blocks > self.tensors.len() as u64 {
            return Err(self.damaged(format!(
                "it declares {blocks} blocks, but has only {} tensors",
                self.tensors.len()
            )));
        }
        let hidden = self.needed("feed_forward_length")?;
        let fused = [(
            "blk.0.attn_qkv.weight",
            [queries.saturating_add(keys.saturating_mul(2)), dim],
        )];
        let attention = self.first_attention()?;
        let [q, k] = ["q", "k"].map(|which| format!("blk.{attention}.attn_{which}.weight"));
        let separate = [(q.as_str(), [queries, dim]), (k.as_str(), [keys, dim])];
        let projections: &[(&str, [u64; 2])] = match self.architecture()? {
            "phi3" => &fused,
            _ => &separate,
        };
        let down = [("blk.0.ffn_down.weight", [dim, hidden])];
        // The tensors of experts have been compared already.
        let of_experts = [names::EXPERTS[2].to_owned(), names::of_one_expert(names::EXPERTS[2], 0)];
        let has_experts = of_experts.iter().any(|name| self.tensors.contains_key(name));
        let down = down.iter().filter(|_| !has_experts);
        for &(name, wanted) in projections.iter().chain(down) {
            let found = self.matrix(name)?.map(|size| size as u64);
            if found != wanted {
                return Err(self.damaged(format!(
                    "'{name}': expected {wanted:?} from the metadata, found {found:?}"
                )));
            }
        }
        Ok(())
    }
}

/// Creates the error for a missing part of a file.
pub(super) fn without(file: &Gguf, what: &str, remedy: &str) -> Error {
    Error::file(&file.path, format!("has no {what}"), remedy)
}
