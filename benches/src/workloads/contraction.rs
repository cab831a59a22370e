//! Workloads of matmuls, attention and convolutions. They are compute-bound at large sizes.

use crate::{Sizes, Suite, Workload};
use meganeura::DType;
use meganeura::ops::{AttentionOptions, Conv2dOptions, Pool2dOptions};

/// Creates a matmul of `[m, k]` and `[k, n]`. With one row it has only one precision, because mixed precision rounds
/// nothing there.
fn product([m, n, k]: [usize; 3]) -> Workload {
    let workload = Workload::inference(Suite::Matmul, format!("matmul {m}x{n}x{k}"), move |g| {
        let (a, b) = (g.input("a", &[m, k]), g.input("b", &[k, n]));
        g.matmul(a, b)
    });
    if m == 1 {
        workload
    } else {
        workload.in_both_precisions()
    }
}

pub(super) fn matmul(sizes: Sizes) -> Vec<Workload> {
    let edges: &[usize] = sizes.pick(
        &[32, 64, 128, 256],
        &[64, 128, 256, 512, 1024, 2048],
        &[128, 256, 512, 1024, 2048, 4096, 8192],
    );
    let mut workloads: Vec<Workload> = edges
        .iter()
        .map(|&n| product([n, n, n]).in_series("square matmuls", "rows", n))
        .collect();
    let edge = sizes.pick(128, 512, 2048);
    workloads.push(
        Workload::inference(
            Suite::Matmul,
            format!("matmul {edge}x{edge}x{edge}, A transposed"),
            move |g| {
                let (a, b) = (g.input("a", &[edge, edge]), g.input("b", &[edge, edge]));
                g.matmul_at(a, b)
            },
        )
        .in_both_precisions(),
    );
    workloads.push(
        Workload::inference(
            Suite::Matmul,
            format!("matmul {edge}x{edge}x{edge}, B transposed"),
            move |g| {
                let (a, b) = (g.input("a", &[edge, edge]), g.input("b", &[edge, edge]));
                g.matmul_bt(a, b)
            },
        )
        .in_both_precisions(),
    );
    workloads.push(
        Workload::inference(
            Suite::Matmul,
            format!("matmul {edge}x{edge}x{edge}, operands in f16"),
            move |g| {
                let [a, b] = ["a", "b"].map(|name| {
                    let halves = g.input_typed(name, &[edge, edge], DType::F16);
                    g.cast(halves, DType::F32)
                });
                g.matmul(a, b)
            },
        )
        .in_both_precisions(),
    );
    // Few rows of a language model, few results of long sums, and a narrow classifier.
    let shapes: &[[usize; 3]] = sizes.pick(
        &[[16, 192, 96], [32, 32, 1024]],
        &[[128, 1536, 576], [64, 64, 16384], [32, 10, 1024]],
        &[[128, 1536, 576], [512, 8192, 2048], [64, 64, 65536], [32, 10, 1024]],
    );
    workloads.extend(shapes.iter().map(|&shape| product(shape)));
    let lengths: &[usize] = sizes.pick(&[256, 512], &[512, 1024, 2048, 4096], &[1024, 2048, 4096, 8192, 16384]);
    workloads.extend(
        lengths
            .iter()
            .map(|&n| product([1, n, n]).in_series("one row by a square matrix", "columns", n)),
    );
    let columns = sizes.pick(512, 4096, 8192);
    workloads.push(Workload::inference(
        Suite::Matmul,
        format!("matmul 1x{columns}x{columns}, B transposed"),
        move |g| {
            let (a, b) = (g.input("a", &[1, columns]), g.input("b", &[columns, columns]));
            g.matmul_bt(a, b)
        },
    ));
    workloads
}

pub(super) fn attention(sizes: Sizes) -> Vec<Workload> {
    let (heads, width) = sizes.pick((2, 32), (8, 64), (16, 64));
    let dim = heads as usize * width as usize;
    let causal = move |rows: usize| {
        Workload::inference(
            Suite::Attention,
            format!("causal, {heads} heads of {width}, {rows} rows"),
            move |g| {
                let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, &[rows, dim]));
                g.causal_attention(q, k, v, heads, heads, width)
            },
        )
        .in_both_precisions()
        .in_series("causal attention", "rows", rows)
    };
    let lengths: &[usize] = sizes.pick(
        &[32, 64, 128],
        &[128, 256, 512, 1024, 2048],
        &[256, 512, 1024, 2048, 4096, 8192],
    );
    let mut workloads: Vec<Workload> = lengths.iter().map(|&rows| causal(rows)).collect();
    let rows = sizes.pick(64, 512, 2048);
    let shared = heads / 2;
    workloads.push(
        Workload::inference(
            Suite::Attention,
            format!("full, {heads} heads of {width}, {rows} rows"),
            move |g| {
                let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, &[rows, dim]));
                g.attention(q, k, v, AttentionOptions::new(heads, heads, width))
            },
        )
        .in_both_precisions(),
    );
    workloads.push(
        Workload::inference(
            Suite::Attention,
            format!("causal, {heads} heads of {width} on {shared} of keys, {rows} rows"),
            move |g| {
                let q = g.input("q", &[rows, dim]);
                let [k, v] = ["k", "v"].map(|name| g.input(name, &[rows, dim / 2]));
                g.causal_attention(q, k, v, heads, shared, width)
            },
        )
        .in_both_precisions(),
    );
    workloads.push(
        Workload::gradient(
            Suite::Attention,
            format!("causal with gradients, {heads} heads of {width}, {rows} rows"),
            move |g| {
                let [q, k, v] = ["q", "k", "v"].map(|name| g.parameter(name, &[rows, dim]));
                let y = g.causal_attention(q, k, v, heads, heads, width);
                g.mul(y, y)
            },
        )
        .in_both_precisions(),
    );
    let cached: &[usize] = sizes.pick(&[64, 256], &[256, 1024, 4096], &[512, 2048, 8192]);
    workloads.extend(cached.iter().map(|&capacity| {
        Workload::inference(
            Suite::Attention,
            format!("one token to {capacity} cached, {heads} heads of {width} on {shared} of keys"),
            move |g| {
                let q = g.input("q", &[1, dim]);
                let [k, v] = ["k", "v"].map(|name| g.input(name, &[capacity, dim / 2]));
                let position = g.input_u32("position", &[1]);
                g.cached_attention_with(q, k, v, position, AttentionOptions::new(heads, shared, width))
            },
        )
        .with_fixed("position", capacity as u32 - 1)
        .in_series("one token to a cache", "cached rows", capacity)
    }));
    workloads
}

/// Sizes of a convolution: channels in and out, side of the images, side of the kernel, stride.
#[derive(Clone, Copy)]
struct Shape {
    channels: [usize; 2],
    side: usize,
    kernel: usize,
    stride: u32,
}

impl Shape {
    fn options(self) -> Conv2dOptions {
        let padding = (self.kernel / 2) as u32;
        Conv2dOptions {
            stride: [self.stride; 2],
            padding: [padding; 2],
            ..Conv2dOptions::default()
        }
    }

    fn name(self, batch: usize) -> String {
        let Shape {
            channels: [inputs, outputs],
            side,
            kernel,
            stride,
        } = self;
        let stride = if stride == 1 {
            String::new()
        } else {
            format!(", stride {stride}")
        };
        format!("{kernel}x{kernel}{stride}, {inputs} to {outputs} channels, {batch} of {side}x{side}")
    }

    fn images(self, batch: usize) -> [usize; 4] {
        [batch, self.channels[0], self.side, self.side]
    }

    fn weights(self) -> [usize; 4] {
        [self.channels[1], self.channels[0], self.kernel, self.kernel]
    }
}

pub(super) fn conv(sizes: Sizes) -> Vec<Workload> {
    let shape = |channels, side, kernel, stride| Shape {
        channels,
        side,
        kernel,
        stride,
    };
    let middle = sizes.pick(
        shape([8, 8], 14, 3, 1),
        shape([64, 64], 56, 3, 1),
        shape([64, 64], 56, 3, 1),
    );
    let others: &[Shape] = &sizes.pick(
        [shape([16, 8], 14, 1, 1), shape([3, 8], 28, 7, 2)],
        [shape([256, 64], 56, 1, 1), shape([3, 64], 224, 7, 2)],
        [shape([256, 64], 56, 1, 1), shape([3, 64], 224, 7, 2)],
    );
    let forward = |shape: Shape, batch: usize| {
        Workload::inference(Suite::Conv, shape.name(batch), move |g| {
            let (x, w) = (g.input("x", &shape.images(batch)), g.input("w", &shape.weights()));
            g.conv2d(x, w, shape.options())
        })
        .in_both_precisions()
    };
    let batches: &[usize] = sizes.pick(&[1, 2, 4], &[1, 2, 4, 8], &[1, 4, 16, 64]);
    let mut workloads: Vec<Workload> = batches
        .iter()
        .map(|&batch| forward(middle, batch).in_series("3x3 convolution", "images", batch))
        .collect();
    let batch = sizes.pick(1, 4, 32);
    workloads.extend(others.iter().map(|&shape| forward(shape, batch)));
    workloads.push(
        Workload::gradient(
            Suite::Conv,
            format!("{} with gradients", middle.name(batch)),
            move |g| {
                let (x, w) = (
                    g.parameter("x", &middle.images(batch)),
                    g.parameter("w", &middle.weights()),
                );
                let y = g.conv2d(x, w, middle.options());
                g.mul(y, y)
            },
        )
        .in_both_precisions(),
    );
    let (channels, side) = sizes.pick((8, 14), (64, 56), (64, 56));
    workloads.push(Workload::inference(
        Suite::Conv,
        format!("depthwise 3x3, {channels} channels, {batch} of {side}x{side}"),
        move |g| {
            let x = g.input("x", &[batch, channels, side, side]);
            let w = g.input("w", &[channels, 1, 3, 3]);
            g.depthwise_conv2d(x, w, [1, 1], [1, 1], [1, 1])
        },
    ));
    workloads.push(Workload::inference(
        Suite::Conv,
        format!("max pool 2x2, {channels} channels, {batch} of {side}x{side}"),
        move |g| {
            let x = g.input("x", &[batch, channels, side, side]);
            g.max_pool2d(x, Pool2dOptions::square(2))
        },
    ));
    workloads
}
