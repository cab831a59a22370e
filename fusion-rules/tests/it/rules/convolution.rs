//! Tests of convolutions and matmuls followed by scales of their channels.

use meganeura_compiler::rewrite::Pass::{Backward, Inference};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::Conv2dOptions;

use super::of;

/// Normalises `x` by statistics that are parameters and states.
fn normalised(g: &mut Graph, x: Value) -> Value {
    let channels = [g.shape(x)[1]];
    let [weight, bias] = ["weight", "bias"].map(|name| g.parameter(name, &channels));
    let mean = g.state("mean", &channels);
    // A variance must be positive, so it is the square of a parameter.
    let var = g.parameter("var", &channels);
    let var = g.square(var);
    g.batch_norm_inference(x, weight, bias, mean, var, 0.01).into()
}

fn options(groups: u32) -> Conv2dOptions {
    Conv2dOptions {
        stride: [2, 1],
        padding: [1, 0],
        groups,
        ..Conv2dOptions::default()
    }
}

#[test]
fn batch_norms_go_into_the_weights_of_convolutions() {
    for (groups, inner) in [(1, 4), (2, 2), (4, 1)] {
        let r = of(Inference, |g| {
            let x = g.input("x", &[2, 4, 7, 6]);
            let w = g.parameter("w", &[8, inner, 3, 2]);
            let y = g.conv2d(x, w, options(groups));
            normalised(g, y.into())
        });
        r.fires("BatchNorm(Conv)→Conv+bias").has("core.batch_norm_inference", 0);
    }
}

#[test]
fn a_bias_of_the_convolution_is_scaled_too() {
    let r = of(Inference, |g| {
        let x = g.input("x", &[2, 3, 7, 6]);
        let (w, b) = (g.parameter("w", &[5, 3, 3, 2]), g.parameter("b", &[5]));
        let y = g.conv2d(x, w, options(1));
        let y = g.channel_bias_add(y, b);
        normalised(g, y.into())
    });
    r.fires("BatchNorm(Conv+bias)→Conv+bias")
        .has("core.batch_norm_inference", 0);
}

#[test]
fn batch_norms_go_into_the_weights_of_transposed_convolutions() {
    let r = of(Inference, |g| {
        let x = g.input("x", &[2, 5, 4, 4]);
        let w = g.parameter("w", &[5, 3, 3, 2]);
        let y = g.conv2d_input_grad(x, w, [7, 5], options(1));
        normalised(g, y.into())
    });
    r.fires("BatchNorm(ConvTranspose)→ConvTranspose+bias")
        .has("core.batch_norm_inference", 0);
}

#[test]
fn batch_norms_go_into_the_weights_of_matmuls() {
    for bias in [false, true] {
        let r = of(Inference, |g| {
            let x = g.input("x", &[6, 5]);
            let (w, b) = (g.parameter("w", &[5, 4]), g.parameter("b", &[4]));
            let mut y = g.matmul(x, w);
            if bias {
                y = g.add(y, b);
            }
            normalised(g, y.into())
        });
        r.fires(if bias {
            "BatchNorm(MatMul+bias)→MatMul+bias"
        } else {
            "BatchNorm(MatMul)→MatMul+bias"
        })
        .has("core.batch_norm_inference", 0);
    }
}

#[test]
fn factors_of_channels_go_into_the_weights() {
    for shape in [vec![5, 1, 1], vec![1, 5, 1, 1]] {
        let scaled = |g: &mut Graph| {
            let x = g.input("x", &[2, 3, 7, 6]);
            let (w, s) = (g.parameter("w", &[5, 3, 3, 2]), g.parameter("s", &shape));
            let y = g.conv2d(x, w, options(1));
            g.mul(y, s).into()
        };
        of(Inference, scaled).fires("Conv*scale→Conv");
        // In training, the smaller operand is scaled in each step.
        of(Backward, scaled).spares("Conv*scale→Conv");
    }
    // A factor for each row is not a factor for each channel.
    let r = of(Inference, |g| {
        let x = g.input("x", &[2, 3, 7, 5]);
        let (w, s) = (g.parameter("w", &[4, 3, 1, 1]), g.parameter("s", &[7, 1]));
        let y = g.conv2d(x, w, Conv2dOptions::default());
        g.mul(y, s).into()
    });
    r.spares("Conv*scale→Conv");
}

/// Normalisation weights that are computed in each step are not folded into a convolution, because that would cost
/// more.
#[test]
fn statistics_of_the_step_are_not_folded() {
    let r = of(Inference, |g| {
        let x = g.input("x", &[2, 3, 7, 6]);
        let w = g.input("w", &[512, 3, 3, 3]);
        let y = g.conv2d(x, w, Conv2dOptions::default());
        normalised(g, y.into())
    });
    r.has("core.batch_norm_inference", 1);
}
