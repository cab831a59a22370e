//! Tests of metadata, and of the defaults for missing metadata.

use meganeura_core::ops::RopeScaling;
use meganeura_llm::{ModelConfig, Tokenizer};

use super::files::{TEXT, file, fixture, replaced, says, text, with_count, with_kind, with_value};

const UINT16: u32 = 2;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT: u32 = 6;
const BOOL: u32 = 7;
const ARRAY: u32 = 9;

fn config(bytes: &[u8]) -> ModelConfig {
    let (_folder, path) = file(bytes);
    ModelConfig::open(&path).expect("a configuration")
}

#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let (_folder, path) = file(bytes);
    says(ModelConfig::open(&path), parts);
}

#[test]
fn numbers_of_either_type() {
    let whole = fixture("llama_f32");
    let eps = "llama.attention.layer_norm_rms_epsilon";
    assert_eq!(config(&whole).network.eps, 1e-5);
    let as_int = with_kind(&with_count(&whole, eps, 1), eps, INT32);
    assert_eq!(config(&as_int).network.eps, 1.0);
    let theta = "llama.rope.freq_base";
    assert_eq!(config(&whole).network.rope_theta, 20_000.0);
    let as_int = with_kind(&with_count(&whole, theta, 500_000), theta, INT32);
    assert_eq!(config(&as_int).network.rope_theta, 500_000.0);
}

#[test]
fn what_is_not_there_is_usual_or_an_error() {
    let whole = fixture("llama_f32");
    // Without the base, which files may omit.
    let other = config(&replaced(&whole, "llama.rope.freq_base", "llama.rope.freq_bass"));
    assert_eq!(other.network.rope_theta, 10_000.0);
    for (key, said) in [
        ("llama.attention.layer_norm_rms_epsilon", "it has no number"),
        ("llama.context_length", "it has no positive number"),
        ("llama.block_count", "it has no positive number"),
    ] {
        let other = format!("{}?", &key[..key.len() - 1]);
        refused(&replaced(&whole, key, &other), &[said, key]);
    }
    refused(
        &with_kind(
            &with_count(&whole, "llama.rope.freq_base", u32::MAX),
            "llama.rope.freq_base",
            INT32,
        ),
        &["rope_theta is -1"],
    );
    let shared = replaced(&whole, "llama.attention.head_count_kv", "llama.attention.head_count_ks");
    let shared = with_value(&shared, "llama.attention.head_count_kv", TEXT, &text("two"));
    refused(
        &shared,
        &["'llama.attention.head_count_kv' is not a non-negative whole number"],
    );
}

#[test]
fn scaled_positions() {
    let whole = fixture("llama_f32");
    let with = |key: &str, factor: f32| with_value(&whole, key, FLOAT, &factor.to_le_bytes());
    let scaling = |bytes: &[u8]| config(bytes).network.rope_scaling;
    assert_eq!(scaling(&whole), RopeScaling::None);
    let linear = RopeScaling::Linear { factor: 4.0 };
    let older = with("llama.rope.scale_linear", 4.0);
    assert_eq!(scaling(&older), linear);
    let newer = with("llama.rope.scaling.factor", 4.0);
    assert_eq!(scaling(&newer), linear);
    for none in [0.0, 1.0] {
        assert_eq!(scaling(&with("llama.rope.scale_linear", none)), RopeScaling::None);
    }
    let of = |bytes: &[u8], kind: &str| with_value(bytes, "llama.rope.scaling.type", TEXT, &text(kind));
    assert_eq!(scaling(&of(&older, "linear")), linear);
    assert_eq!(scaling(&of(&older, "none")), RopeScaling::None);
    refused(&of(&newer, "ntk"), &["positions of type 'ntk'"]);
}

/// `attn_factor` is multiplied by the usual factor of scores, as in llama.cpp.
#[test]
fn positions_of_type_yarn() {
    let whole = fixture("llama_f32");
    let number = |bytes: &[u8], key: &str, value: f32| with_value(bytes, key, FLOAT, &value.to_le_bytes());
    let mut yarn = with_value(&whole, "llama.rope.scaling.type", TEXT, &text("yarn"));
    yarn = number(&yarn, "llama.rope.scaling.factor", 4.0);
    yarn = with_value(
        &yarn,
        "llama.rope.scaling.original_context_length",
        UINT32,
        &16_u32.to_le_bytes(),
    );
    let rope = config(&yarn).network.longrope.expect("factors");
    let usual = 0.1 * 4_f32.ln() + 1.0;
    assert!((rope.magnitude() - usual).abs() < 1e-6);
    let theta = config(&yarn).network.rope_theta;
    let speeds = rope.speeds(theta, 64);
    let plain = |i: usize| f64::from(theta).powf(-(i as f64) / speeds.len() as f64);
    let last = speeds.len() - 1;
    assert_eq!(speeds[0], plain(0));
    assert!((speeds[last] / plain(last) - 0.25).abs() < 1e-6, "{speeds:?}");
    let own = number(&yarn, "llama.rope.scaling.attn_factor", 2.0);
    let magnitude = config(&own).network.longrope.expect("factors").magnitude();
    assert!((magnitude - 2.0 * usual).abs() < 1e-6, "{magnitude}");
    let longer = with_value(
        &number(
            &with_value(&whole, "llama.rope.scaling.type", TEXT, &text("yarn")),
            "llama.rope.scaling.factor",
            4.0,
        ),
        "llama.rope.scaling.original_context_length",
        UINT32,
        &4096_u32.to_le_bytes(),
    );
    let fast = number(&longer, "llama.rope.scaling.yarn_beta_fast", 2.0);
    assert_ne!(config(&fast).network.longrope, config(&longer).network.longrope);
    refused(
        &number(&yarn, "llama.rope.scaling.yarn_log_multiplier", 0.1),
        &["a multiplier of its logarithm"],
    );
}

#[test]
fn models_that_are_not_supported_are_told() {
    let whole = fixture("llama_f32");
    let part = |count: u16| with_value(&whole, "split.count", UINT16, &count.to_le_bytes());
    assert_eq!(config(&part(1)).network.layers, 1);
    refused(&part(3), &["one of 3 parts of a model", "NAME-00001-of-00003.gguf"]);
    let with = |key: &str, kind: u32, value: [u8; 4]| with_value(&whole, key, kind, &value);
    let scale = |scale: f32| with("llama.attention.scale", FLOAT, scale.to_le_bytes());
    // Heads have 16 elements.
    for usual in [0.25, 0.0] {
        assert_eq!(config(&scale(usual)).network.heads, 4);
    }
    refused(&scale(0.5), &["a scale of attention's scores"]);
    let width = |width: i32| with("llama.attention.value_length", INT32, width.to_le_bytes());
    assert_eq!(config(&width(16)).network.heads, 4);
    refused(&width(8), &["values with another head size"]);
    let experts = with_value(&whole, "llama.expert_count", UINT16, &8u16.to_le_bytes());
    refused(&experts, &["no positive number 'llama.expert_used_count'"]);
    let experts = with_value(&experts, "llama.expert_used_count", UINT16, &2u16.to_le_bytes());
    refused(&experts, &["no matrices of experts 'blk.0.ffn_gate_exps.weight'"]);
    // More experts than there are tensors.
    let whole = fixture("mixtral_q8_0");
    let experts = with_count(&whole, "llama.expert_count", 8);
    refused(&experts, &["blk.0.ffn_gate_exps.weight", "[4, 32, 64]", "[8, 32, 64]"]);
    let experts = with_count(&whole, "llama.expert_used_count", 5);
    refused(&experts, &["experts_per_token is 5"]);
    let scale = with_value(&whole, "llama.expert_weights_scale", FLOAT, &2.5f32.to_le_bytes());
    refused(&scale, &["an unsupported routing of experts"]);
    let whole = fixture("qwen3_q4_0");
    let experts = with_value(&whole, "qwen3.expert_count", UINT16, &8u16.to_le_bytes());
    refused(&experts, &["a mixture of experts of the architecture 'qwen3'"]);
}

#[test]
fn marks_around_texts() {
    let whole = fixture("llama_f32");
    let flag = |bytes: &[u8], name: &str, value: bool| {
        with_value(
            bytes,
            &format!("tokenizer.ggml.add_{name}_token"),
            BOOL,
            &[value.into()],
        )
    };
    let tokens = |bytes: &[u8]| {
        let (_folder, path) = file(bytes);
        let tokenizer = Tokenizer::open(&path).expect("a tokenizer");
        tokenizer.encode("hi").expect("tokens")
    };
    let plain = tokens(&whole);
    assert!(!plain.contains(&0) && !plain.contains(&2));
    let begun = [&[0], plain.as_slice()].concat();
    assert_eq!(tokens(&flag(&whole, "bos", true)), begun);
    assert_eq!(tokens(&flag(&whole, "bos", false)), plain);
    assert_eq!(tokens(&flag(&whole, "eos", true)), [plain.as_slice(), &[2]].concat());
    // Files of Llama 3 usually do not contain this; programs use it by default.
    let pre = "tokenizer.ggml.pre";
    let llama3 = with_value(
        &replaced(&whole, pre, "tokenizer.ggml.old"),
        pre,
        TEXT,
        &text("llama-bpe"),
    );
    assert_eq!(tokens(&llama3), begun);
    assert_eq!(tokens(&flag(&llama3, "bos", false)), plain);
    let (_folder, path) = file(&with_value(
        &whole,
        "tokenizer.ggml.add_bos_token",
        INT32,
        &[1, 0, 0, 0],
    ));
    says(
        Tokenizer::open(&path),
        &["'tokenizer.ggml.add_bos_token' is neither yes nor no"],
    );
}

/// Special tokens outside of the vocabulary, which has 320 tokens, are an error.
#[test]
fn special_tokens_are_in_the_vocabulary() {
    let whole = fixture("llama3_q8_0");
    for name in ["bos", "eos", "eot", "eom", "unknown", "padding"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let with = |id: u32| match name {
            "bos" | "eos" => with_count(&whole, &key, id),
            _ => with_value(&whole, &key, UINT32, &id.to_le_bytes()),
        };
        for id in [320, u32::MAX] {
            let bytes = with(id);
            let stated = format!("'{key}' is {id}");
            refused(&bytes, &[&stated, "320 tokens"]);
            let (_folder, path) = file(&bytes);
            says(Tokenizer::open(&path), &[&stated, "320 tokens"]);
        }
        assert_eq!(config(&with(319)).context, 128);
    }
    let negative = with_kind(
        &with_count(&whole, "tokenizer.ggml.eos_token_id", u32::MAX),
        "tokenizer.ggml.eos_token_id",
        INT32,
    );
    refused(&negative, &["'tokenizer.ggml.eos_token_id' is -1", "320 tokens"]);
    // A file may have no end token.
    let without = replaced(&whole, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eos_token_no");
    assert!(config(&without).stop.is_empty());
}

#[test]
fn a_text_ends_at_any_of_the_end_tokens() {
    let mut bytes = fixture("llama3_q8_0");
    for (name, id) in [("eot", 7u32), ("eom", 9), ("padding", 11)] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        bytes = with_value(&bytes, &key, UINT32, &id.to_le_bytes());
    }
    assert_eq!(config(&bytes).stop, [2, 7, 9]);
}

#[test]
fn lists_of_lists_of_unknown_keys_are_skipped() {
    let list = |kind: u32, value: &[u8]| [&kind.to_le_bytes()[..], &1u64.to_le_bytes(), value].concat();
    let number = list(INT32, &1i32.to_le_bytes());
    let texts = list(TEXT, &text("a"));
    // [[1], ["a"]]
    let lists = [&ARRAY.to_le_bytes()[..], &2u64.to_le_bytes(), &number, &texts].concat();
    let whole = fixture("llama3_q8_0");
    assert_eq!(config(&with_value(&whole, "x.y", ARRAY, &lists)).stop, [2]);
    // A key that is used.
    let other = replaced(&whole, "tokenizer.ggml.token_type", "tokenizer.ggml.token_typo");
    let other = with_value(&other, "tokenizer.ggml.token_type", ARRAY, &lists);
    let (_folder, path) = file(&other);
    says(Tokenizer::open(&path), &["tokenizer.ggml.token_type"]);
}

#[test]
fn factors_of_positions_are_the_rule_of_a_configuration() {
    let whole = fixture("llama3_q8_0");
    let text = r#"{"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true, "rms_norm_eps": 1e-5,
        "rope_theta": 20000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}"#;
    let stated = ModelConfig::parse(text, "config.json".as_ref()).expect("a configuration");
    assert_eq!(config(&whole).network, stated.network);
    // Scaled twice: no file does this.
    let twice = with_value(&whole, "llama.rope.scaling.factor", FLOAT, &2.0f32.to_le_bytes());
    refused(&twice, &["by a factor and by frequencies"]);
    // A frequency that is scaled less than higher ones.
    let is_eight = |b: &[u8]| (f32::from_le_bytes(b.try_into().expect("four bytes")) - 8.0).abs() < 1e-4;
    let at = whole.windows(16).position(|w| w.chunks(4).all(is_eight));
    let at = at.expect("the factors") + 12;
    let mut other = whole.clone();
    other[at..at + 4].copy_from_slice(&1.0f32.to_le_bytes());
    refused(&other, &["of another kind than Llama 3.1's"]);
    // The first dimension of a tensor comes after its name and the number of dimensions.
    let other = with_count(&whole, "rope_freqs.weight", 8);
    refused(&other, &["a number for each pair of a head"]);
}
