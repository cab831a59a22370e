//! Tests of configurations of every family, and of invalid ones.

use std::path::Path;

use meganeura_core::Result;
use meganeura_core::ops::RopeScaling;
use meganeura_nn::layers::{Activation, LongRope, QkNorm};
use meganeura_nn::models::{NormPlacement, Routing};

use super::{ModelConfig, Projections};

const SIZES: &str = r#""vocab_size": 10, "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1"#;

fn parse(fields: &str) -> Result<ModelConfig> {
    ModelConfig::parse(&format!("{{{SIZES}, {fields}}}"), Path::new("config.json"))
}

#[test]
fn older_spellings_of_positions() {
    let old = r#""model_type": "llama", "rope_theta": 5e5, "eos_token_id": [1, 2], "rope_scaling": {"type": "linear",
        "factor": 2.0}"#;
    let config = parse(old).expect("a model");
    assert_eq!(config.network.rope_theta, 5e5);
    assert_eq!(config.network.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    assert_eq!(config.stop, [1, 2]);
    assert!(!config.network.tied_embeddings);
    // As transformers 5 takes them.
    let both = format!(r#"{old}, "rope_parameters": {{"rope_type": "default", "rope_theta": 1e4}}"#);
    let config = parse(&both).expect("a model");
    assert_eq!(config.network.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    let dynamic = r#""model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}"#;
    assert_eq!(parse(dynamic).expect("a model").network.rope_scaling, RopeScaling::None);
}

#[test]
fn yarn_interpolates_slow_pairs() {
    let fields = |options: &str| {
        format!(
            r#""model_type": "llama", "head_dim": 64, "rope_theta": 1e4, "rope_scaling": {{"rope_type": "yarn", {options}}}"#
        )
    };
    let config = parse(&fields(
        r#""factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 2.0"#,
    ));
    let rope = config.expect("a model").network.longrope.expect("factors");
    let plain = |i: usize| 1e4_f64.powf(-(i as f64) / 32.0);
    let speeds = rope.speeds(1e4, 4096);
    // The pairs 0 to 5 turn at least 32 times in the context. The pairs from 18 on turn less than once.
    assert_eq!(speeds[5], plain(5));
    assert!((speeds[18] / plain(18) - 0.25).abs() < 1e-6 && (speeds[31] / plain(31) - 0.25).abs() < 1e-6);
    assert!((0.3..0.9).contains(&(speeds[12] / plain(12))));
    assert_eq!((rope.magnitude(), rope.speeds(1e4, 8)), (2.0, speeds));
    let usual = parse(&fields(r#""factor": 4.0, "original_max_position_embeddings": 1024"#));
    let usual = usual.expect("a model").network.longrope.expect("factors");
    assert!((f64::from(usual.magnitude()) - (0.1 * 4_f64.ln() + 1.0)).abs() < 1e-6);
    for (options, said) in [
        (r#""beta_fast": 32.0"#, "need a factor"),
        (r#""factor": -1.0"#, "the factor -1"),
        (
            r#""factor": 2.0, "original_max_position_embeddings": 0"#,
            "for 0 positions",
        ),
    ] {
        let error = parse(&fields(options)).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn what_is_not_supported_is_listed() {
    for (fields, said) in [
        (r#""model_type": "gpt2""#, "type 'gpt2'"),
        (r#""other": 1"#, "type ''"),
        (r#""model_type": "llama", "hidden_act": "relu2""#, "activation 'relu2'"),
        (
            r#""model_type": "gemma2", "hidden_activation": "mish""#,
            "activation 'mish'",
        ),
        (
            r#""model_type": "llama", "rope_scaling": {"rope_type": "ntk"}"#,
            "'ntk'",
        ),
        (
            r#""model_type": "llama", "partial_rotary_factor": 0.5"#,
            "heads with partial rotation",
        ),
        (
            r#""model_type": "llama", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}"#,
            "'longrope'",
        ),
        (
            r#""model_type": "qwen3", "use_sliding_window": true, "layer_types": ["chunked_attention"]"#,
            "'chunked_attention' (layer_types)",
        ),
        (
            r#""model_type": "gemma3_text", "use_bidirectional_attention": true"#,
            "use_bidirectional_attention",
        ),
        (
            r#""model_type": "gemma3_text", "attn_logit_softcapping": 50.0"#,
            "attn_logit_softcapping",
        ),
        (
            r#""model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}"#,
            "layers with a window",
        ),
        (
            r#""model_type": "olmo2", "rope_parameters": {"sliding_attention": {}}"#,
            "differ by layer",
        ),
        (
            r#""model_type": "gemma3", "text_config": {"model_type": "gemma3n_text"}"#,
            "'gemma3n_text'",
        ),
    ] {
        let error = parse(fields).expect_err(said).to_string();
        assert!(
            error.contains(said) && error.contains("llama, mistral, qwen2, qwen3"),
            "{error}"
        );
    }
}

#[test]
fn broken_files_are_errors() {
    for (text, said) in [
        ("{", "EOF"),
        (r#"{"model_type": "llama"}"#, "hidden_size"),
        (r#"{"model_type": "gemma3"}"#, "text_config"),
        (
            r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1}"#,
            "vocab_size",
        ),
        (r#"{"model_type": "llama", "vocab_size": -1}"#, "-1"),
    ] {
        let error = ModelConfig::parse(text, Path::new("c.json"))
            .expect_err(said)
            .to_string();
        assert!(error.contains(said) && error.contains("c.json"), "{error}");
    }
    let error = parse(r#""model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}"#);
    assert!(error.expect_err("no factors").to_string().contains("low_freq_factor"));
    let error = parse(r#""model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 0.0}"#);
    assert!(error.expect_err("no factor").to_string().contains("positive factor"));
    let llama3 = |low: f64, high: f64, context: u32| {
        parse(&format!(
            r#""model_type": "llama", "rope_scaling": {{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": {low},
            "high_freq_factor": {high}, "original_max_position_embeddings": {context}}}"#
        ))
    };
    assert!(llama3(1.0, 4.0, 8192).is_ok());
    for (low, high, context) in [(4.0, 1.0, 8192), (0.0, 4.0, 8192), (1.0, 4.0, 0)] {
        let error = llama3(low, high, context).expect_err("no rule").to_string();
        assert!(error.contains("of type llama3 with the factors"), "{error}");
    }
}

#[test]
fn sizes_that_no_model_has_are_errors() {
    let whole = r#"{"model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 9,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;
    let path = Path::new("config.json");
    assert!(ModelConfig::parse(whole, path).is_ok());
    for (from, to, said) in [
        ("\"vocab_size\": 10", "\"vocab_size\": 0", "vocab_size is 0"),
        ("layers\": 1", "layers\": 2147483648", "num_hidden_layers is 2147483648"),
        (
            "\"hidden_size\": 8",
            "\"hidden_size\": 18446744073709551615",
            "hidden_size is 18446744073709551615",
        ),
        (
            "attention_heads\": 2",
            "attention_heads\": 0",
            "num_attention_heads is 0",
        ),
        (
            "value_heads\": 1",
            "value_heads\": 3",
            "divisible by the 3 key-value heads, found 2",
        ),
        (
            "head_dim\": 4",
            "head_dim\": 5",
            "expected an even head size for rotary positions, found 5",
        ),
        ("embeddings\": 16", "embeddings\": 0", "max_position_embeddings is 0"),
        ("1e-5", "-1e-5", "rms_norm_eps is -0.00001"),
        ("1e-5", "1e300", "rms_norm_eps is inf"),
        ("1e4", "0", "rope_theta is 0"),
    ] {
        let text = whole.replace(from, to);
        assert_ne!(text, whole, "{from}");
        let error = ModelConfig::parse(&text, path).expect_err(said).to_string();
        assert!(error.contains(said), "{error:?} lacks {said:?}");
    }
}

#[test]
fn what_families_leave_out() {
    let parse = |family: &str, more: &str| {
        let text = format!(
            r#"{{"model_type": "{family}", "vocab_size": 10, "hidden_size": 128, "intermediate_size": 9,
            "num_hidden_layers": 1, "num_attention_heads": 32{more}}}"#
        );
        ModelConfig::parse(&text, Path::new("config.json")).expect("a model")
    };
    for (family, context, kv_heads, head_dim, window) in [
        ("llama", 2048, 32, 4, None),
        ("mistral", 131_072, 8, 4, Some(4096)),
        ("qwen2", 32_768, 32, 4, None),
        ("qwen3", 32_768, 32, 128, None),
    ] {
        let config = parse(family, "");
        let network = config.network;
        let found = (config.context, network.kv_heads, network.head_dim(), network.window);
        assert_eq!(found, (context, kv_heads, head_dim, window), "{family}");
    }
    // A `null` field means none.
    let none = parse("mistral", r#", "sliding_window": null, "num_key_value_heads": null"#).network;
    assert_eq!((none.window, none.kv_heads), (None, 32));
}

/// Returns the layers without a window, the layers without a position embedding, and the window, of a model with this
/// number of layers.
fn layers(family: &str, count: usize, more: &str) -> (Vec<usize>, Vec<usize>, Option<u32>) {
    let text = format!(
        r#"{{"model_type": "{family}", "vocab_size": 10, "hidden_size": 32, "intermediate_size": 9,
        "num_hidden_layers": {count}, "num_attention_heads": 4, "num_key_value_heads": 2{more}}}"#
    );
    let network = ModelConfig::parse(&text, Path::new("config.json"))
        .expect("a model")
        .network;
    let of = |set: meganeura_nn::models::LayerSet| (0..count).filter(|&layer| set.contains(layer)).collect();
    (
        of(network.full_attention_layers),
        of(network.nope_layers),
        network.window,
    )
}

#[test]
fn experts() {
    let parse = |family: &str, more: &str| {
        let text = format!(
            r#"{{"model_type": "{family}", "vocab_size": 10, "hidden_size": 32, "intermediate_size": 9,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2{more}}}"#
        );
        ModelConfig::parse(&text, Path::new("config.json"))
    };
    let moe = |family: &str, more: &str| parse(family, more).expect("a model").network.moe.expect("experts");
    for (family, experts, per_token, hidden, normalize, shared) in [
        ("qwen3_moe", 128, 8, 768, false, None),
        ("qwen2_moe", 60, 4, 1408, false, Some(5632)),
        ("olmoe", 64, 8, 9, false, None),
        ("mixtral", 8, 2, 9, true, None),
    ] {
        let found = moe(family, "");
        let of = (
            found.experts,
            found.experts_per_token,
            found.hidden,
            found.normalize,
            found.shared_hidden,
        );
        assert_eq!(of, (experts, per_token, hidden, normalize, shared), "{family}");
        assert!(found.dense_layers.is_empty(), "{family}");
    }
    let dense = |more: &str| {
        let set = moe("qwen3_moe", more).dense_layers;
        (0..4).filter(|&layer| set.contains(layer)).collect::<Vec<_>>()
    };
    assert_eq!(dense(r#", "mlp_only_layers": [1, 9]"#), [1]);
    assert_eq!(dense(r#", "decoder_sparse_step": 2"#), [0, 2]);
    assert_eq!(
        moe("olmoe", r#", "num_experts": 3, "num_experts_per_tok": 2"#).experts,
        3
    );
    assert_eq!(moe("mixtral", r#", "num_local_experts": 5"#).experts, 5);
    // Other families have no experts, even if their files contain some.
    assert_eq!(
        parse("qwen3", r#", "num_experts": 8"#).expect("a model").network.moe,
        None
    );
    for (family, more, said) in [
        (
            "qwen3_moe",
            r#", "num_experts": 4"#,
            "moe.experts_per_token is 8, and moe.experts 4",
        ),
        ("qwen3_moe", r#", "decoder_sparse_step": 0"#, "decoder_sparse_step is 0"),
        (
            "qwen2_moe",
            r#", "moe_intermediate_size": 0"#,
            "moe_intermediate_size is 0",
        ),
        (
            "qwen2_moe",
            r#", "shared_expert_intermediate_size": 0"#,
            "shared_expert_intermediate_size is 0",
        ),
        ("olmoe", r#", "clip_qkv": 8.0"#, "clip_qkv"),
        ("mixtral", r#", "num_experts_per_tok": 0"#, "num_experts_per_tok is 0"),
    ] {
        let text = parse(family, more).expect_err("refused").to_string();
        assert!(text.contains(said), "{family}: {text}");
    }
}

#[test]
fn layers_that_differ() {
    let none = Vec::new;
    assert_eq!(layers("gemma2", 5, ""), (vec![1, 3], none(), Some(4096)));
    assert_eq!(layers("gemma3_text", 13, ""), (vec![5, 11], none(), Some(4096)));
    let pattern = r#", "sliding_window": 7, "sliding_window_pattern": 2"#;
    assert_eq!(layers("gemma3_text", 4, pattern), (vec![1, 3], none(), Some(7)));
    let types = r#", "layer_types": ["full_attention", "sliding_attention"]"#;
    assert_eq!(layers("gemma3_text", 2, types), (vec![0], none(), Some(4096)));
    let full = r#", "layer_types": ["full_attention", "full_attention"]"#;
    assert_eq!(layers("gemma3_text", 2, full), (none(), none(), None));
    assert_eq!(
        layers("gemma2", 2, r#", "sliding_window": null"#),
        (none(), none(), None)
    );
    assert_eq!(layers("phi3", 2, r#", "sliding_window": 9"#), (none(), none(), Some(9)));
    assert_eq!(layers("phi3", 2, ""), (none(), none(), None));
    assert_eq!(layers("smollm3", 9, ""), (none(), vec![3, 7], None));
    assert_eq!(
        layers("smollm3", 4, r#", "no_rope_layer_interval": 2"#),
        (none(), vec![1, 3], None)
    );
    assert_eq!(
        layers("smollm3", 3, r#", "no_rope_layers": [0, 1, 1]"#),
        (none(), vec![0], None)
    );
    let window = r#", "use_sliding_window": true, "sliding_window": 5, "no_rope_layers": [0, 1, 1]"#;
    assert_eq!(layers("smollm3", 3, window), (vec![1, 2], vec![0], Some(5)));
    let window = r#", "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 2"#;
    assert_eq!(layers("qwen2", 4, window), (vec![0, 1], none(), Some(5)));
    assert_eq!(layers("qwen2", 4, r#", "sliding_window": 5"#), (none(), none(), None));
    for (family, count, more, said) in [
        (
            "gemma2",
            "3",
            r#", "layer_types": ["full_attention"]"#,
            "1 types for 3 layers",
        ),
        ("smollm3", "3", r#", "no_rope_layers": [1]"#, "1 numbers for 3 layers"),
        (
            "smollm3",
            "3",
            r#", "no_rope_layer_interval": 0"#,
            "no_rope_layer_interval is 0",
        ),
        (
            "gemma3_text",
            "3",
            r#", "sliding_window_pattern": 0"#,
            "sliding_window_pattern is 0",
        ),
        ("gemma2", "200", "", "more than 128 layers that differ"),
        ("gemma2", "2000000000", "", "more than 128 layers that differ"),
        (
            "gemma2",
            "2",
            r#", "final_logit_softcapping": 0.0"#,
            "logit_softcap is 0",
        ),
        ("granite", "2", r#", "logits_scaling": -1.0"#, "logits_scaling is -1"),
        ("phi3", "2", r#", "partial_rotary_factor": 0.4"#, "rotary_dim is 3"),
        ("phi3", "2", r#", "rope_scaling": {"type": "su"}"#, "need short_factor"),
        (
            "phi3",
            "2",
            r#", "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0],
            "original_max_position_embeddings": 8}"#,
            "1 short and 2 long factors",
        ),
        (
            "phi3",
            "2",
            r#", "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0],
            "original_max_position_embeddings": 8}"#,
            "1 factors for 4 pairs",
        ),
    ] {
        let text = format!(
            r#"{{"model_type": "{family}", "vocab_size": 10, "hidden_size": 32, "intermediate_size": 9,
            "num_hidden_layers": {count}, "num_attention_heads": 4, "num_key_value_heads": 2{more}}}"#
        );
        let error = ModelConfig::parse(&text, Path::new("config.json"))
            .expect_err(said)
            .to_string();
        assert!(error.contains(said), "{error:?} lacks {said:?}");
    }
}

#[test]
fn what_makes_a_family() {
    let network = |fields: &str| parse(fields).expect("a model").network;
    let gemma = network(
        r#""model_type": "gemma3_text", "query_pre_attn_scalar": 16, "rope_theta": 1e5, "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}"#,
    );
    assert_eq!(
        (gemma.attention_scale, gemma.activation),
        (Some(0.25), Activation::GeluTanh)
    );
    assert_eq!((gemma.rope_theta, gemma.rope_local_theta), (1e5, Some(2e4)));
    assert_eq!(gemma.rope_scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(
        (gemma.qk_norm, gemma.norms),
        (QkNorm::PerHead, NormPlacement::PreAndPost)
    );
    assert!(gemma.zero_centered_norms && gemma.tied_embeddings);
    assert_eq!(
        (gemma.embedding_multiplier, gemma.logit_softcap),
        (Some(8f32.sqrt()), None)
    );
    // Both generations of the format have the same meaning.
    let newer = network(
        r#""model_type": "gemma3_text", "query_pre_attn_scalar": 16, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}"#,
    );
    assert_eq!(newer, gemma);
    let bare = network(r#""model_type": "gemma2""#);
    assert_eq!((bare.attention_softcap, bare.logit_softcap), (Some(50.0), Some(30.0)));
    let unbounded =
        network(r#""model_type": "gemma2", "attn_logit_softcapping": null, "final_logit_softcapping": null"#);
    assert_eq!((unbounded.attention_softcap, unbounded.logit_softcap), (None, None));
    let olmo = network(r#""model_type": "olmo2""#);
    assert_eq!(
        (olmo.qk_norm, olmo.norms, olmo.eps),
        (QkNorm::AllHeads, NormPlacement::Post, 1e-5)
    );
    let phi = parse(r#""model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.5}"#).expect("a model");
    assert_eq!((phi.network.rotary_dim, phi.projections), (Some(2), Projections::Fused));
    // As in files on the Hub: the context of the first training is outside of the factors' object.
    let long = network(
        r#""model_type": "phi3", "max_position_embeddings": 64, "original_max_position_embeddings": 8,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}"#,
    );
    let magnitude = (1.0 + 8f64.ln() / 8f64.ln()).sqrt() as f32;
    assert_eq!(long.longrope, LongRope::new(&[1.0, 2.0], &[4.0, 8.0], 8, magnitude));
}

/// The configuration of a multimodal model may omit sizes of its text part.
#[test]
fn a_text_part_is_read() {
    let text = r#"{"model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152}, "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}}"#;
    let config = ModelConfig::parse(text, Path::new("config.json")).expect("a model");
    let network = config.network;
    assert_eq!((network.vocab, network.heads, network.kv_heads), (262_208, 8, 4));
    assert_eq!(
        (network.head_dim, network.dim, network.window),
        (Some(256), 2560, Some(1024))
    );
    assert_eq!((config.context, config.stop), (131_072, vec![1, 106]));
    assert!(network.full_attention_layers.contains(5) && !network.full_attention_layers.contains(0));
}

/// Fields of the configurations of gpt-oss-20b and LFM2-1.2B.
#[test]
fn published_configurations_of_gpt_oss_and_lfm2() {
    let text = r#"{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_local_experts": 32, "num_experts_per_tok": 4, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn",
        "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "mxfp4"}, "eos_token_id": 200002}"#;
    let config = ModelConfig::parse(text, Path::new("config.json")).expect("a model");
    let network = config.network;
    assert_eq!((network.heads, network.kv_heads, network.head_dim), (64, 8, Some(64)));
    assert_eq!((network.window, network.gate_limit), (Some(128), Some(7.0)));
    assert!(network.attention_sinks && network.qkv_bias && network.attention_out_bias && !network.tied_embeddings);
    assert!(network.full_attention_layers.contains(1) && !network.full_attention_layers.contains(0));
    assert!(network.longrope.is_some());
    let moe = network.moe.expect("experts");
    assert_eq!((moe.experts, moe.experts_per_token, moe.hidden), (32, 4, 2880));
    assert!(moe.biases && moe.normalize && moe.routing == Routing::Softmax);

    let text = r#"{"model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288, "num_hidden_layers": 16, "conv_L_cache": 3,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "norm_eps": 1e-05, "tie_embedding": true, "block_auto_adjust_ff_dim": true}"#;
    let network = ModelConfig::parse(text, Path::new("config.json"))
        .expect("a model")
        .network;
    assert_eq!(
        (network.hidden, network.heads, network.kv_heads, network.vocab),
        (8192, 32, 8, 65_536)
    );
    assert_eq!(
        (network.qk_norm, network.rope_theta, network.eps),
        (QkNorm::PerHead, 1e6, 1e-5)
    );
    let conv = network.short_conv.expect("convolutions");
    let attention: Vec<usize> = (0..16).filter(|&layer| !conv.layers.contains(layer)).collect();
    assert_eq!(
        (attention.as_slice(), conv.taps, conv.bias),
        (&[2, 5, 8, 10, 12, 14][..], 3, false)
    );
    assert_eq!(network.earlier_rows(), 2);

    for (text, words) in [
        (r#""model_type": "gpt_oss", "swiglu_alpha": 2.0"#, "swiglu_alpha"),
        (r#""model_type": "lfm2", "conv_L_cache": 0"#, "conv_L_cache is 0"),
        (r#""model_type": "lfm2", "block_multiple_of": 0"#, "block_multiple_of"),
        (
            r#""model_type": "lfm2", "layer_types": ["conv", "conv"]"#,
            "layer_types has 2 types",
        ),
    ] {
        let error = parse(text).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}
