//! Tests of encoder blocks, position embeddings and masks of attention layers on the CPU, against their parts.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::graph::Value;
use meganeura_core::{Graph, Mode, NodeId, Session};
use meganeura_cpu::CpuDevice;
use meganeura_nn::layers::{
    Activation, EncoderBlockConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PositionEmbedding,
    SelfAttentionConfig,
};

const DIM: usize = 8;

fn session(g: &Graph) -> Session {
    let device = Arc::new(CpuDevice::new(2));
    let (mut session, _) = Builder::on(device).mode(Mode::Inference).build(g).expect("a session");
    session.initialize_parameters(7);
    session
}

fn inputs(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 % 23) as f32 - 11.0) / 7.0).collect()
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() < 1e-5, "{i}: {a} {b}");
    }
}

#[test]
fn a_block_is_its_parts_in_their_order() {
    for norm_first in [false, true] {
        let mut g = Graph::new();
        let x = g.input("x", &[2, 5, DIM]);
        let block = EncoderBlockConfig::new(DIM, 2, 16)
            .norm_first(norm_first)
            .build(&mut g, "b");
        let y = block.forward(&mut g, x);
        assert_eq!(g.shape(y), [2, 5, DIM]);
        g.set_outputs(vec![y]);
        // The same parameters by hand, under the same names.
        let mut h = Graph::new();
        let x = h.input("x", &[2, 5, DIM]);
        let attention = SelfAttentionConfig::new(DIM, 2).bias(true).build(&mut h, "b.attention");
        let [norm1, norm2] = ["b.norm1", "b.norm2"].map(|n| LayerNorm::new(&mut h, n, DIM));
        let [fc1, fc2] = [("b.fc1", DIM, 16), ("b.fc2", 16, DIM)].map(|(n, i, o)| Linear::new(&mut h, n, i, o));
        let norm =
            |h: &mut Graph, layer: &LayerNorm, x: NodeId, wanted: bool| if wanted { layer.forward(h, x) } else { x };
        let z = norm(&mut h, &norm1, x, norm_first);
        let z = attention.forward(&mut h, z);
        let z = h.add(x, z);
        let x = norm(&mut h, &norm1, z, !norm_first);
        let z = norm(&mut h, &norm2, x, norm_first);
        let z = fc1.forward(&mut h, z);
        let z = h.gelu_erf(z);
        let z = fc2.forward(&mut h, z);
        let z = h.add(x, z);
        let z = norm(&mut h, &norm2, z, !norm_first);
        h.set_outputs(vec![z]);
        let (mut block, mut parts) = (session(&g), session(&h));
        parts.try_copy_weights_from(&mut block).expect("the same names");
        let [a, b] = [&mut block, &mut parts].map(|s| {
            s.set_input("x", &inputs(2 * 5 * DIM));
            s.step();
            s.read_output(2 * 5 * DIM)
        });
        close(&a, &b);
        assert!(a.iter().any(|v| v.abs() > 0.1), "{a:?}");
    }
}

/// Padding does not change the results for real rows: a block on a padded sequence equals the block on the unpadded
/// one.
#[test]
fn padding_changes_nothing_of_the_real_rows() {
    let model = |rows: usize, padded: bool| {
        let mut g = Graph::new();
        let x = g.input("x", &[1, rows, DIM]);
        let block = EncoderBlockConfig::new(DIM, 2, 16).build(&mut g, "b");
        let y = if padded {
            let real = g.input_u32("real", &[1, rows]);
            let mask = g.key_padding_mask(real);
            block.forward_masked(&mut g, x, mask)
        } else {
            block.forward(&mut g, x)
        };
        g.set_outputs(vec![y]);
        session(&g)
    };
    let (mut alone, mut padded) = (model(3, false), model(6, true));
    let mut x = inputs(6 * DIM);
    alone.set_input("x", &x[..3 * DIM]);
    alone.step();
    let expected = alone.read_output(3 * DIM);
    // For any padding.
    for filler in [0.0, 100.0] {
        x[3 * DIM..].fill(filler);
        padded.set_input("x", &x);
        padded.set_input_u32("real", &[1, 1, 1, 0, 0, 0]);
        padded.step();
        close(&padded.read_output(6 * DIM)[..3 * DIM], &expected);
    }
    padded.set_input_u32("real", &[1; 6]);
    padded.step();
    let seen = padded.read_output(6 * DIM);
    assert!(
        seen[..3 * DIM].iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-3),
        "the mask does something"
    );
}

#[test]
fn a_causal_mask_by_hand_is_the_causal_layer() {
    let model = |causal: bool| {
        let mut g = Graph::new();
        let x = g.input("x", &[2, 4, DIM]);
        let layer = SelfAttentionConfig::new(DIM, 4)
            .kv_heads(2)
            .causal(causal)
            .build(&mut g, "a");
        let y = if causal {
            layer.forward(&mut g, x)
        } else {
            let seen = (0..16).map(|i| u32::from(i % 4 <= i / 4)).collect();
            let mask = g.constant_u32(seen, &[4, 4]);
            layer.forward_masked(&mut g, x, mask)
        };
        g.set_outputs(vec![y]);
        let mut s = session(&g);
        s.set_input("x", &inputs(2 * 4 * DIM));
        s.step();
        s.read_output(2 * 4 * DIM)
    };
    close(&model(false), &model(true));
}

#[test]
fn positions_are_added_to_their_rows() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3, 2]);
    let layer = PositionEmbedding::new(&mut g, "p", 4, 2);
    let y = layer.forward(&mut g, x);
    g.set_outputs(vec![y]);
    let mut s = session(&g);
    s.set_parameter_array("p.weight", &[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    s.set_input(
        "x",
        &[0.0, 10.0, 0.0, 10.0, 0.0, 10.0, 20.0, 30.0, 20.0, 30.0, 20.0, 30.0],
    );
    s.step();
    let expected = [1.0, 12.0, 3.0, 14.0, 5.0, 16.0, 21.0, 32.0, 23.0, 34.0, 25.0, 36.0];
    assert_eq!(s.read_output(12), expected);
}

/// A model of a block, positions and a mask can memorize labels.
#[test]
fn a_masked_encoder_trains() {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 4, DIM]);
    let real = g.input_u32("real", &[8, 4]);
    let mask = g.key_padding_mask(real);
    let y = PositionEmbedding::new(&mut g, "p", 4, DIM).forward(&mut g, x);
    let block = EncoderBlockConfig::new(DIM, 2, 16)
        .norm_first(true)
        .dropout(0.1)
        .build(&mut g, "b");
    let y = block.forward_masked(&mut g, y, mask);
    let y = LayerNormConfig::new(DIM).build(&mut g, "n").forward(&mut g, y);
    let y = g.mean(y, &[1], false);
    let y = LinearConfig::new(DIM, 2).build(&mut g, "head").forward(&mut g, y);
    let labels = g.input_u32("labels", &[8]);
    let loss = g.cross_entropy_loss(y, labels);
    g.set_outputs(vec![loss]);
    let (mut s, _) = Builder::on(Arc::new(CpuDevice::new(2))).build(&g).expect("a session");
    s.initialize_parameters(3);
    s.set_adam(1e-2, 0.9, 0.999, 1e-8);
    s.set_input("x", &inputs(8 * 4 * DIM));
    // One sequence consists only of padding, which must not give NaN.
    let mut real = [1; 32];
    real[12..16].fill(0);
    s.set_input_u32("real", &real);
    s.set_input_u32("labels", &[0, 1, 0, 1, 1, 0, 1, 0]);
    let mut losses = Vec::new();
    for _ in 0..60 {
        s.step();
        losses.push(s.read_loss());
    }
    assert!(losses[0].is_finite() && losses[59] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn wrong_settings_and_operands_are_errors_at_the_callers_line() {
    type Build = fn(&mut Graph) -> Value;
    let cases: [(&[&str], Build); 8] = [
        (&["encoder_block 'b'", "dim is 9", "heads = 2"], |g| {
            EncoderBlockConfig::new(9, 2, 16).build(g, "b");
            g.scalar(0.0).into()
        }),
        (&["encoder_block 'b'", "hidden is 0"], |g| {
            EncoderBlockConfig::new(8, 2, 0).build(g, "b");
            g.scalar(0.0).into()
        }),
        (&["encoder_block 'b'", "dropout is 1", "below 1"], |g| {
            EncoderBlockConfig::new(8, 2, 4).dropout(1.0).build(g, "b");
            g.scalar(0.0).into()
        }),
        (&["encoder_block 'b'", "eps is NaN"], |g| {
            EncoderBlockConfig::new(8, 2, 4)
                .activation(Activation::Relu)
                .eps(f32::NAN)
                .build(g, "b");
            g.scalar(0.0).into()
        }),
        (&["position_embedding 'p'", "positions is 0"], |g| {
            PositionEmbedding::new(g, "p", 0, 4);
            g.scalar(0.0).into()
        }),
        (
            &["position_embedding 'p' (4 positions of 2 features)", "5 rows of 2"],
            |g| {
                let x = g.input("x", &[5, 2]);
                PositionEmbedding::new(g, "p", 4, 2).forward(g, x).into()
            },
        ),
        (&["position_embedding 'p'", "3 rows of 7"], |g| {
            let x = g.input("x", &[3, 7]);
            PositionEmbedding::new(g, "p", 4, 2).forward(g, x).into()
        }),
        (&["self_attention 'b.attention'", "does not broadcast"], |g| {
            let x = g.input("x", &[2, 3, 8]);
            let mask = g.input("mask", &[2, 3]);
            EncoderBlockConfig::new(8, 2, 4)
                .build(g, "b")
                .forward_masked(g, x, mask)
                .into()
        }),
    ];
    for (words, build) in cases {
        let mut g = Graph::new();
        build(&mut g);
        let error = g.errors().first().expect("an error").to_string();
        assert!(error.contains("encoder.rs:") && !error.contains("nn/src"), "{error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
