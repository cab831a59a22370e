//! Names of tensors in GGUF files and in checkpoints.

/// Tensor with the divisors of the frequencies of rotary positions.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";
/// The table of embeddings.
pub(super) const EMBEDDING: &str = "token_embd.weight";
/// Architecture of encoders.
pub(super) const ENCODER: &str = "bert";
/// Name of WordPiece vocabularies in `tokenizer.ggml.model`.
pub(super) const WORD_PIECES: &str = "bert";
/// Tables of position embeddings and of token-type embeddings, in encoders.
pub(super) const POSITIONS: &str = "position_embd.weight";
pub(super) const TOKEN_TYPES: &str = "token_types.weight";
/// The projection to logits, if it is not the table of embeddings.
pub(super) const HEAD: &str = "output.weight";

/// The matrices of experts of the first block.
pub(super) const EXPERTS: [&str; 3] = [
    "blk.0.ffn_gate_exps.weight",
    "blk.0.ffn_up_exps.weight",
    "blk.0.ffn_down_exps.weight",
];

/// Returns the name of one expert's matrix, by the name of the tensor with all of them: `blk.0.ffn_up.3.weight` for
/// `blk.0.ffn_up_exps.weight`. Some files have separate tensors (files of Mixtral before March 2024).
pub(super) fn of_one_expert(all: &str, expert: usize) -> String {
    all.replace("_exps.", &format!(".{expert}."))
}

/// Tensors with the factors of rotary positions for long and for short contexts.
pub(super) const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Modules of a block, by their names in GGUF files and in checkpoints.
const OF_BLOCKS: [(&str, &str); 23] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("shortconv", "conv"),
];

/// Modules with another name in some architectures.
const EXCEPTIONS: [(&str, &str, &str); 3] = [
    // With an additional norm at the end of the attention.
    ("gemma2", "ffn_norm", "pre_feedforward_layernorm"),
    ("gemma3", "ffn_norm", "pre_feedforward_layernorm"),
    // The gate is its first half.
    ("phi3", "ffn_up", "mlp.gate_up_proj"),
];

/// Returns the name of a module of a block in checkpoints.
fn module_of(architecture: &str, module: &str) -> Option<&'static str> {
    let mut exceptions = EXCEPTIONS.iter();
    let exception = exceptions.find(|(of, own, _)| *of == architecture && *own == module);
    let usual = || {
        OF_BLOCKS
            .iter()
            .find(|(own, _)| *own == module)
            .map(|(_, module)| *module)
    };
    exception.map(|(_, _, module)| *module).or_else(usual)
}

/// Splits the name of a block's tensor into number, module and the rest: `blk.3.attn_q.weight`.
fn of_block(name: &str) -> Option<(&str, &str, &str)> {
    let mut parts = name.strip_prefix("blk.")?.splitn(3, '.');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// Modules of an encoder's block, by their names in GGUF files and in checkpoints.
const OF_ENCODER_BLOCKS: [(&str, &str); 8] = [
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];

/// Returns the name of an encoder's tensor in a checkpoint of BERT.
fn of_encoder(name: &str) -> Option<String> {
    if let Some((number, module, rest)) = of_block(name) {
        let (_, module) = OF_ENCODER_BLOCKS.iter().find(|(own, _)| *own == module)?;
        return Some(format!("encoder.layer.{number}.{module}.{rest}"));
    }
    let (module, kind) = name.split_once('.')?;
    let module = match module {
        "token_embd" => "word_embeddings",
        "position_embd" => "position_embeddings",
        "token_types" => "token_type_embeddings",
        "token_embd_norm" => "LayerNorm",
        _ => return None,
    };
    Some(format!("embeddings.{module}.{kind}"))
}

/// Converts the GGUF name of a tensor to its name in a Hugging Face checkpoint. Names without a counterpart stay unchanged.
pub(super) fn of_checkpoint(architecture: &str, name: &str) -> String {
    if architecture == ENCODER {
        return of_encoder(name).unwrap_or_else(|| name.to_owned());
    }
    match name {
        // In llama.cpp, the last norm of LFM2 has the name of a norm of embeddings.
        "token_embd_norm.weight" if architecture == "lfm2" => return "model.norm.weight".into(),
        EMBEDDING => return "model.embed_tokens.weight".into(),
        HEAD => return "lm_head.weight".into(),
        "output_norm.weight" => return "model.norm.weight".into(),
        _ => {}
    }
    let known = of_block(name).and_then(|(number, module, rest)| {
        if (module, rest) == ("attn_sinks", "weight") {
            return Some(format!("model.layers.{number}.self_attn.sinks"));
        }
        let of_expert = rest
            .split_once('.')
            .filter(|(expert, _)| expert.parse::<usize>().is_ok());
        let module = module_of(architecture, module)?;
        Some(match (of_expert, module.split_once('.')) {
            (Some((expert, rest)), Some(("mlp", matrix))) => {
                format!("model.layers.{number}.mlp.experts.{expert}.{matrix}.{rest}")
            }
            _ => format!("model.layers.{number}.{module}.{rest}"),
        })
    });
    known.unwrap_or_else(|| name.to_owned())
}

/// Returns true if a tensor is a matrix of one row that files store without its first axis.
pub(super) fn is_row(name: &str) -> bool {
    name == TOKEN_TYPES || matches!(of_block(name), Some((_, "ffn_gate_inp_shexp", _)))
}

/// Projections whose rows are stored in pairs in the files of some architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairedProjection {
    Queries,
    Keys,
}

/// Returns the paired projection of a tensor, if it is one.
pub(super) fn paired(name: &str) -> Option<PairedProjection> {
    match of_block(name)? {
        (_, "attn_q", _) => Some(PairedProjection::Queries),
        (_, "attn_k", _) => Some(PairedProjection::Keys),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_blocks_and_others() {
        assert_eq!(
            of_checkpoint("llama", "blk.12.ffn_down.weight"),
            "model.layers.12.mlp.down_proj.weight"
        );
        for (architecture, module) in [
            ("llama", "post_attention_layernorm"),
            ("gemma3", "pre_feedforward_layernorm"),
        ] {
            let name = of_checkpoint(architecture, "blk.1.ffn_norm.weight");
            assert_eq!(name, format!("model.layers.1.{module}.weight"));
        }
        assert_eq!(
            of_checkpoint("qwen2", "blk.0.attn_k.bias"),
            "model.layers.0.self_attn.k_proj.bias"
        );
        assert_eq!(
            of_checkpoint("qwen2moe", "blk.3.ffn_up_exps.weight"),
            "model.layers.3.mlp.experts.up_proj.weight"
        );
        let one = of_one_expert("blk.3.ffn_up_exps.weight", 17);
        assert_eq!(one, "blk.3.ffn_up.17.weight");
        assert_eq!(
            of_checkpoint("llama", &one),
            "model.layers.3.mlp.experts.17.up_proj.weight"
        );
        assert_eq!(
            of_checkpoint("gpt-oss", "blk.2.attn_sinks.weight"),
            "model.layers.2.self_attn.sinks"
        );
        assert_eq!(
            of_checkpoint("lfm2", "blk.1.shortconv.conv.weight"),
            "model.layers.1.conv.conv.weight"
        );
        assert_eq!(of_checkpoint("lfm2", "token_embd_norm.weight"), "model.norm.weight");
        assert_eq!(of_checkpoint("llama", "blk.0.ssm_a"), "blk.0.ssm_a");
        assert_eq!(of_checkpoint("llama", "output.weight"), "lm_head.weight");
        for (name, wanted) in [
            ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
            ("token_types.weight", "embeddings.token_type_embeddings.weight"),
            (
                "blk.3.attn_output_norm.weight",
                "encoder.layer.3.attention.output.LayerNorm.weight",
            ),
            ("cls.weight", "cls.weight"),
        ] {
            assert_eq!(of_checkpoint("bert", name), wanted);
        }
        assert_eq!(paired("blk.1.attn_q.weight"), Some(PairedProjection::Queries));
        assert_eq!(paired("blk.1.attn_q_norm.weight"), None);
    }
}
