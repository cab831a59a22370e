//! Workloads of memory-bound calls: elementwise calls, reductions, normalisations, optimizers.

use crate::{Sizes, Suite, Workload};
use meganeura::{Adam, Graph, Mode, NodeId, Sgd, Update};

fn streaming(name: &str, shape: [usize; 2], build: impl Fn(&mut Graph, NodeId) -> NodeId + 'static) -> Workload {
    let [rows, columns] = shape;
    Workload::inference(Suite::Pointwise, format!("{name}, {rows}x{columns}"), move |g| {
        let x = g.input("x", &shape);
        build(g, x)
    })
}

pub(super) fn pointwise(sizes: Sizes) -> Vec<Workload> {
    let lengths: &[u32] = sizes.pick(&[10, 14, 18], &[10, 14, 18, 20, 23], &[14, 18, 20, 22, 24, 26]);
    let mut workloads: Vec<Workload> = lengths
        .iter()
        .map(|&log| {
            let length = 1usize << log;
            Workload::inference(Suite::Pointwise, format!("relu of {length}"), move |g| {
                let x = g.input("x", &[length]);
                g.relu(x)
            })
            .in_series("relu", "numbers", length)
        })
        .collect();
    let shape = sizes.pick([256, 128], [8192, 1024], [16384, 4096]);
    let [rows, columns] = shape;
    workloads.extend([
        streaming("add a row", shape, move |g, x| {
            let row = g.input("row", &[columns]);
            g.add(x, row)
        }),
        streaming("add", shape, move |g, x| {
            let other = g.input("y", &shape);
            g.add(x, other)
        }),
        streaming("exp", shape, |g, x| g.exp(x)),
        streaming("gelu", shape, |g, x| g.gelu_erf(x)),
        streaming("swiglu", shape, move |g, x| {
            let up = g.input("up", &shape);
            g.swiglu(x, up)
        }),
        // One kernel with fusion, five without.
        streaming("relu(tanh(2 x + y)) y", shape, move |g, x| {
            let y = g.input("y", &shape);
            let two = g.add(x, x);
            let sum = g.add(two, y);
            let t = g.tanh(sum);
            let r = g.relu(t);
            g.mul(r, y)
        }),
        streaming("sum of all", shape, |g, x| g.sum_all(x)),
        streaming("sum of rows", shape, |g, x| g.sum(x, &[1], false)),
        streaming("sum of columns", shape, |g, x| g.sum(x, &[0], false)),
        streaming("transposition", shape, |g, x| g.transpose(x)),
    ]);
    workloads.push(
        Workload::inference(
            Suite::Pointwise,
            format!("{rows} rows of a table {rows}x{columns}"),
            move |g| {
                let table = g.input("table", &shape);
                let rows = g.input_u32("rows", &[rows]);
                g.gather(table, rows)
            },
        )
        .with_classes(rows as u32),
    );
    workloads
}

pub(super) fn norm(sizes: Sizes) -> Vec<Workload> {
    let shape = sizes.pick([128, 128], [8192, 1024], [16384, 4096]);
    let [rows, columns] = shape;
    let of = |name: &str, build: fn(&mut Graph, NodeId, usize) -> NodeId| {
        Workload::inference(Suite::Norm, format!("{name}, {rows}x{columns}"), move |g| {
            let x = g.input("x", &shape);
            build(g, x, columns)
        })
    };
    let mut workloads = vec![
        of("layer norm", |g, x, n| {
            let (weight, bias) = (g.parameter("weight", &[n]), g.parameter("bias", &[n]));
            g.layer_norm(x, weight, bias, 1e-5)
        }),
        of("rms norm", |g, x, n| {
            let weight = g.parameter("weight", &[n]);
            g.rms_norm(x, weight, 1e-5)
        }),
        of("log softmax", |g, x, _| g.log_softmax(x, -1)),
    ];
    let columns_of: &[usize] = sizes.pick(&[64, 256], &[128, 1024, 8192], &[256, 1024, 4096, 16384, 65536]);
    let numbers = rows * columns;
    workloads.extend(columns_of.iter().map(|&columns| {
        let shape = [numbers / columns, columns];
        Workload::inference(Suite::Norm, format!("softmax, {}x{columns}", shape[0]), move |g| {
            let x = g.input("x", &shape);
            g.softmax(x, -1)
        })
        .in_series("softmax of rows", "columns", columns)
    }));
    let image = sizes.pick([1, 8, 8, 8], [8, 64, 64, 64], [32, 64, 64, 64]);
    let [images, channels, side, _] = image;
    workloads.push(Workload::inference(
        Suite::Norm,
        format!("group norm, 8 groups, {images}x{channels}x{side}x{side}"),
        move |g| {
            let x = g.input("x", &image);
            let (weight, bias) = (g.parameter("weight", &[channels]), g.parameter("bias", &[channels]));
            g.group_norm(x, weight, bias, 8, 1e-5)
        },
    ));
    workloads.push(Workload::gradient(
        Suite::Norm,
        format!("layer norm with gradients, {rows}x{columns}"),
        move |g| {
            let x = g.parameter("x", &shape);
            let (weight, bias) = (g.parameter("weight", &[columns]), g.parameter("bias", &[columns]));
            let y = g.layer_norm(x, weight, bias, 1e-5);
            g.mul(y, y)
        },
    ));
    workloads.push(
        Workload::of(
            Suite::Norm,
            format!("cross-entropy with gradients, {rows}x{columns}"),
            Mode::Training,
            move || {
                let mut g = Graph::new();
                let logits = g.parameter("logits", &shape);
                let labels = g.input_u32("labels", &[rows]);
                let loss = g.cross_entropy_loss(logits, labels);
                g.set_outputs(vec![loss]);
                g
            },
        )
        .with_classes(columns as u32),
    );
    workloads
}

pub(super) fn optimizer(sizes: Sizes) -> Vec<Workload> {
    let length = sizes.pick(1usize << 14, 1 << 22, 1 << 26);
    let rules: [(&str, Update); 3] = [
        ("sgd", Sgd::new(1e-3).into()),
        ("adam", Adam::new(1e-3).into()),
        ("adamw", Adam::adamw(1e-3, 0.01).into()),
    ];
    // The gradient is one additional read, of a product of two vectors.
    let workloads = rules.into_iter().map(|(name, update)| {
        Workload::gradient(Suite::Optimizer, format!("{name}, {length} parameters"), move |g| {
            let w = g.parameter("w", &[length]);
            let x = g.input("x", &[length]);
            g.mul(w, x)
        })
        .updating(update)
    });
    workloads.collect()
}
