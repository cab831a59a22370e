//! Tests of language models token by token, in chunks and as a whole.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::ops::RopeScaling;
use meganeura_core::{Graph, Session};
use meganeura_cpu::CpuDevice;
use meganeura_nn::layers::{Activation, LongRope, QkNorm, QueryGrowth};
use meganeura_nn::models::{
    EARLIER_ROWS, KV_POS, LOGITS_ROW, LayerSet, LlamaConfig, LogitsOf, MoeConfig, NormPlacement, Routing,
    ShortConvLayers, TOKENS,
};

const VOCAB: usize = 23;
const CAPACITY: usize = 20;
const PROMPT: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];

/// Returns a model of each kind of attention.
fn models() -> Vec<(&'static str, LlamaConfig)> {
    let small = LlamaConfig {
        dim: 24,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        hidden: 31,
        ..LlamaConfig::small(VOCAB)
    };
    vec![
        ("plain", small),
        (
            "window, biases",
            LlamaConfig {
                window: Some(4),
                qkv_bias: true,
                attention_out_bias: true,
                mlp_bias: true,
                tied_embeddings: false,
                ..small
            },
        ),
        (
            "norms of heads, scaled positions",
            LlamaConfig {
                head_dim: Some(10),
                qk_norm: QkNorm::PerHead,
                rope_scaling: RopeScaling::Linear { factor: 2.0 },
                ..small
            },
        ),
        (
            "a window in one layer, factors, bounds, norms on both sides",
            LlamaConfig {
                window: Some(4),
                full_attention_layers: [1].into_iter().collect(),
                rope_local_theta: Some(100.0),
                rope_scaling: RopeScaling::Linear { factor: 4.0 },
                attention_scale: Some(0.7),
                attention_softcap: Some(1.5),
                logit_softcap: Some(2.0),
                activation: Activation::GeluTanh,
                norms: NormPlacement::PreAndPost,
                zero_centered_norms: true,
                qk_norm: QkNorm::PerHead,
                embedding_multiplier: Some(5.0),
                ..small
            },
        ),
        (
            "norms behind, and of all heads, a layer without positions, a part rotated",
            LlamaConfig {
                norms: NormPlacement::Post,
                qk_norm: QkNorm::AllHeads,
                nope_layers: [0].into_iter().collect(),
                rotary_dim: Some(4),
                longrope: LongRope::new(&[1.0, 3.0], &[1.0, 3.0], 4, 1.2),
                residual_multiplier: Some(0.5),
                logits_scaling: Some(0.3),
                ..small
            },
        ),
        (
            "sinks, experts with biases and limited gates",
            LlamaConfig {
                attention_sinks: true,
                gate_limit: Some(0.4),
                window: Some(3),
                full_attention_layers: [1].into_iter().collect(),
                moe: Some(MoeConfig {
                    experts: 4,
                    experts_per_token: 2,
                    hidden: 12,
                    normalize: true,
                    routing: Routing::Softmax,
                    shared_hidden: None,
                    biases: true,
                    dense_layers: LayerSet::NONE,
                }),
                ..small
            },
        ),
        (
            "a short convolution",
            LlamaConfig {
                short_conv: Some(ShortConvLayers {
                    layers: [0].into_iter().collect(),
                    taps: 4,
                    bias: true,
                }),
                ..small
            },
        ),
        (
            "growing queries, experts chosen by sigmoids",
            LlamaConfig {
                query_growth: Some(QueryGrowth { beta: 0.8, context: 2 }),
                moe: Some(MoeConfig {
                    experts: 5,
                    experts_per_token: 2,
                    hidden: 12,
                    normalize: true,
                    routing: Routing::Sigmoid,
                    shared_hidden: Some(9),
                    biases: false,
                    dense_layers: [0].into_iter().collect(),
                }),
                routed_scaling: Some(1.7),
                ..small
            },
        ),
    ]
}

/// Sets the rows of earlier tokens for rows from position `start` on, if the model has short convolutions.
fn set_earlier(session: &mut Session, config: &LlamaConfig, start: usize, rows: usize) {
    let lags = config.earlier_rows();
    if lags > 0 {
        let earlier = (start..start + rows).flat_map(|at| (1..=lags).map(move |lag| at.saturating_sub(lag) as u32));
        session.set_input_u32(EARLIER_ROWS, &earlier.collect::<Vec<_>>());
    }
}

fn session(graph: &Graph) -> Session {
    let (mut session, _) = Builder::on(Arc::new(CpuDevice::new(2)))
        .inference()
        .build(graph)
        .expect("a session");
    session.initialize_parameters(7);
    // Biases and scales have equal initial values.
    for view in session.plan().parameters() {
        if !view.name.starts_with("kv_cache") && view.ty.shape.rank() == 1 {
            let values: Vec<f32> = (0..view.ty.numel()).map(|i| 0.5 + (i * 7 % 11) as f32 / 11.0).collect();
            session.set_parameter(&view.name, &values);
        }
    }
    session
}

/// Returns the logits of every position, without a cache.
fn whole(config: &LlamaConfig, tokens: &[u32]) -> Vec<f32> {
    let mut g = Graph::new();
    let input = g.input_u32(TOKENS, &[tokens.len()]);
    let logits = config.build(&mut g, "").forward(&mut g, input);
    g.set_outputs(vec![logits]);
    let mut session = session(&g);
    session.set_input_u32(TOKENS, tokens);
    session.step();
    session.read_output(tokens.len() * VOCAB)
}

fn close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let size = expected.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    assert!(size > 0.01, "{what}: nothing to compare");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= 1e-4 * size, "{what} [{i}]: {f}, not {e}");
    }
}

#[test]
fn decoding_agrees_with_the_whole() {
    for (name, config) in models() {
        let expected = whole(&config, &PROMPT);
        let mut one = session(&config.decode_graph(&[], 1, CAPACITY, LogitsOf::AllRows));
        for (i, &token) in PROMPT.iter().enumerate() {
            one.set_input_u32(TOKENS, &[token]);
            one.set_input_u32(KV_POS, &[i as u32]);
            set_earlier(&mut one, &config, i, 1);
            one.step();
            close(name, &one.read_output(VOCAB), &expected[i * VOCAB..][..VOCAB]);
        }
        // Chunks; the last one is padded with a token that no row sees.
        let mut pieces = session(&config.decode_graph(&[], 5, CAPACITY, LogitsOf::OneRow));
        for (start, count) in [(0, 5), (5, 4)] {
            let mut tokens = PROMPT[start..start + count].to_vec();
            tokens.resize(5, 0);
            pieces.set_input_u32(TOKENS, &tokens);
            pieces.set_input_u32(KV_POS, &[start as u32]);
            set_earlier(&mut pieces, &config, start, 5);
            pieces.set_input_u32(LOGITS_ROW, &[count as u32 - 1]);
            pieces.step();
            let last = start + count - 1;
            close(name, &pieces.read_output(VOCAB), &expected[last * VOCAB..][..VOCAB]);
        }
    }
}

#[test]
fn a_prompt_is_read_at_once_and_gone_on_with() {
    for (name, config) in models() {
        let expected = whole(&config, &PROMPT);
        let (prompt, rest) = PROMPT.split_at(6);
        let mut prefill = session(&config.prefill_graph(prompt.len()));
        prefill.set_input_u32(TOKENS, prompt);
        prefill.step();
        close(name, &prefill.read_output(VOCAB), &expected[5 * VOCAB..][..VOCAB]);
        let mut decode = session(&config.decode_graph(&[], 1, CAPACITY, LogitsOf::AllRows));
        let caches = (0..config.layers).flat_map(|layer| config.cache_names(layer));
        for (i, cache) in caches.enumerate() {
            let width = if cache.ends_with("conv") {
                config.dim
            } else {
                config.kv_width()
            };
            // Unwritten rows are never read.
            let mut rows = vec![f32::NAN; CAPACITY * width];
            prefill.read_output_by_index(1 + i, &mut rows[..prompt.len() * width]);
            decode.upload_param(&cache, &rows);
        }
        for (i, &token) in (prompt.len()..).zip(rest) {
            decode.set_input_u32(TOKENS, &[token]);
            decode.set_input_u32(KV_POS, &[i as u32]);
            set_earlier(&mut decode, &config, i, 1);
            decode.step();
            close(name, &decode.read_output(VOCAB), &expected[i * VOCAB..][..VOCAB]);
        }
    }
}

#[test]
fn sequences_are_at_positions_of_their_own() {
    let (name, config) = models().remove(0);
    let sequences: [&[u32]; 2] = [&PROMPT[..7], &[8, 8, 0]];
    let mut batch = session(&config.decode_graph(&[2], 1, CAPACITY, LogitsOf::AllRows));
    let expected = sequences.map(|tokens| whole(&config, tokens));
    // The second sequence begins later.
    for step in 0..7 {
        let at = [step, step.max(4) - 4];
        batch.set_input_u32(TOKENS, &[sequences[0][at[0]], sequences[1][at[1]]]);
        batch.set_input_u32(KV_POS, &at.map(|at| at as u32));
        batch.step();
        let logits = batch.read_output(2 * VOCAB);
        for (i, (expected, at)) in expected.iter().zip(at).enumerate() {
            if i == 0 || step >= 4 {
                close(name, &logits[i * VOCAB..][..VOCAB], &expected[at * VOCAB..][..VOCAB]);
            }
        }
    }
}

#[test]
fn a_full_cache_is_an_error() {
    let (_, config) = models().remove(0);
    let mut session = session(&config.decode_graph(&[], 1, 4, LogitsOf::AllRows));
    session.set_input_u32(TOKENS, &[1]);
    session.set_input_u32(KV_POS, &[4]);
    let error = session.try_step().expect_err("no room").to_string();
    assert!(
        error.contains("index 4 is out of range") && error.contains("4 rows"),
        "{error}"
    );
}
