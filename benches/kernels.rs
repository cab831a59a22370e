//! Benchmarks of one kernel of every family against its roofline: the time in which the same CPU copies the bytes that the kernel
//! must read and write, or computes the same number of operations in a large matmul, whichever is longer.
//!
//! The line after each case contains the roofline's share of the kernel's time: 1 is the limit of the hardware.
//! `cargo bench -p meganeura-bench --bench kernels -- norm` runs the cases whose names contain `norm`.

mod common;

use std::time::Duration;

use common::{Candidate, Race, THREADS, copy, cpu, inference, noise, product};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use meganeura::attrs::Attrs;
use meganeura::builder::Builder;
use meganeura::cpu::pool::ThreadPool;
use meganeura::graph::{NodeKind, Value};
use meganeura::ops::Call;
use meganeura::{DType, Graph, Session, registry};

/// A call of one operator.
struct Case {
    name: &'static str,
    op: &'static str,
    attrs: Attrs,
    inputs: Vec<Vec<usize>>,
    /// Exclusive upper bound of the entries of integer operands.
    bound: u32,
}

fn case(name: &'static str, op: &'static str, inputs: &[&[usize]]) -> Case {
    Case {
        name,
        op,
        attrs: Attrs::new(),
        inputs: inputs.iter().map(|s| s.to_vec()).collect(),
        bound: 2,
    }
}

impl Case {
    fn with(mut self, name: &'static str, value: impl Into<meganeura::attrs::Attr>) -> Self {
        self.attrs = self.attrs.with(name, value);
        self
    }

    fn below(mut self, bound: u32) -> Self {
        self.bound = bound;
        self
    }
}

/// Sizes of a streaming case: 32 MiB, more than the last-level cache.
const LONG: &[usize] = &[8192, 1024];

fn pointwise() -> Vec<Case> {
    let unary = |name, op| case(name, op, &[LONG]);
    vec![
        unary("pointwise/relu", "core.relu"),
        unary("pointwise/exp", "core.exp"),
        unary("pointwise/tanh", "core.tanh"),
        unary("pointwise/gelu_erf", "core.gelu_erf"),
        unary("pointwise/silu", "core.silu"),
        unary("pointwise/floor", "core.floor"),
        case("pointwise/add", "core.add", &[LONG, LONG]),
        case("pointwise/add row", "core.add", &[LONG, &LONG[1..]]),
        case("pointwise/swiglu", "core.swiglu", &[LONG, LONG]),
    ]
}

fn norms() -> Vec<Case> {
    let (rows, columns): (&[usize], &[usize]) = (&[8192, 1], &[1024]);
    let image: &[usize] = &[32, 64, 64, 64];
    let channels: &[usize] = &[64];
    vec![
        case("norm/layer_norm", "core.layer_norm", &[LONG, columns, columns]).with("eps", 1e-5),
        case("norm/rms_norm", "core.rms_norm", &[LONG, columns]).with("eps", 1e-5),
        case(
            "norm/batch_norm_inference",
            "core.batch_norm_inference",
            &[image, channels, channels, channels, channels],
        )
        .with("eps", 1e-5),
        case("norm/group_norm", "core.group_norm", &[image, channels, channels])
            .with("groups", 8i64)
            .with("eps", 1e-5),
        case(
            "norm/layer_norm_grad",
            "core.layer_norm_grad",
            &[LONG, columns, rows, rows, LONG],
        ),
        case("norm/softmax", "core.softmax", &[LONG]).with("axis", -1i64),
        case("norm/cross_entropy_ids", "core.cross_entropy_ids", &[LONG, &LONG[..1]]).below(1024),
        case(
            "norm/cross_entropy_ids_grad",
            "core.cross_entropy_ids_grad",
            &[LONG, &LONG[..1], &LONG[..1], &[]],
        )
        .below(1024),
    ]
}

fn reductions() -> Vec<Case> {
    let sum = |name, axes: Vec<i64>| {
        let sum = case(name, "core.sum", &[LONG]);
        sum.with("axes", axes).with("keep_dims", false)
    };
    vec![
        sum("reduce/sum all", vec![]),
        sum("reduce/sum rows", vec![1]),
        sum("reduce/sum columns", vec![0]),
        case("reduce/cumsum", "core.cumsum", &[LONG])
            .with("axis", 1i64)
            .with("exclusive", false)
            .with("reverse", false),
        case("reduce/argmax", "core.argmax", &[LONG]).with("axis", 1i64),
    ]
}

fn movement() -> Vec<Case> {
    vec![
        case("move/transpose", "core.permute", &[LONG]).with("axes", vec![1i64, 0]),
        case("move/gather rows", "core.gather", &[&[8192], &[49152, 576]])
            .with("axis", 0i64)
            .below(49152),
        case("move/scatter_add rows", "core.scatter_add", &[&[8192], &[8192, 576]])
            .with("rows", 16384i64)
            .with("axis", 0i64)
            .below(16384),
        case("move/rope", "core.rope", &[&[8192, 576]])
            .with("theta", 1e4)
            .with("offset", 0i64)
            .with("head_dim", 64i64)
            .with("inverse", false),
        case(
            "move/upsample_nearest2d",
            "core.upsample_nearest2d",
            &[&[16, 64, 32, 32]],
        )
        .with("output_size", vec![64i64, 64]),
    ]
}

fn windows() -> Vec<Case> {
    let image: &[usize] = &[4, 64, 56, 56];
    let weight: &[usize] = &[64, 64, 3, 3];
    let conv = |c: Case| {
        c.with("stride", vec![1i64, 1])
            .with("padding", vec![1i64, 1])
            .with("dilation", vec![1i64, 1])
    };
    let pool = |c: Case| {
        c.with("kernel", vec![2i64, 2])
            .with("stride", vec![2i64, 2])
            .with("padding", vec![0i64, 0])
    };
    let pooled: &[usize] = &[32, 64, 64, 64];
    vec![
        conv(case("conv/3x3 64 to 64 at 56x56", "core.conv2d", &[image, weight])).with("groups", 1i64),
        conv(case(
            "conv/its input gradient",
            "core.conv2d_input_grad",
            &[image, weight],
        ))
        .with("groups", 1i64)
        .with("input_size", vec![56i64, 56]),
        conv(case(
            "conv/its weight gradient",
            "core.conv2d_weight_grad",
            &[image, image],
        ))
        .with("groups", 1i64)
        .with("kernel_size", vec![3i64, 3]),
        conv(case("conv/depthwise 3x3", "core.conv2d", &[image, &[64, 1, 3, 3]])).with("groups", 64i64),
        pool(case("pool/max 2x2", "core.max_pool2d", &[pooled])),
        pool(case("pool/average 2x2", "core.avg_pool2d", &[pooled])),
    ]
}

/// Creates a session of the call with its inputs set. Also returns the cost of the call.
fn session(case: &Case) -> (Session, meganeura::ops::Cost) {
    let op = registry::op(case.op).unwrap_or_else(|| panic!("no operator {}", case.op));
    // The samples contain the types of the operands.
    let samples = op.samples(&mut meganeura::ops::sample::Sizes::new(0));
    let sample = samples.first().unwrap_or_else(|| panic!("{} has no samples", case.op));
    let mut g = Graph::new();
    let operands: Vec<_> = case
        .inputs
        .iter()
        .zip(&sample.inputs)
        .enumerate()
        .map(|(i, (shape, of))| g.input_typed(&format!("x{i}"), shape, of.dtype))
        .collect();
    let call = g.call(op, case.attrs.clone(), operands.iter().map(Value::from).collect());
    g.set_outputs(vec![call]);
    let types: Vec<_> = operands.iter().filter_map(|&o| g.ty(o).cloned()).collect();
    let cost = op.cost(&Call {
        attrs: &case.attrs,
        inputs: &types,
        outputs: &g.nodes()[call.index()].outputs,
    });
    let mut session = match Builder::on(cpu()).build(&g) {
        Ok((session, _)) => session,
        Err(_) => inference(&g),
    };
    for node in g.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Input)) {
        let name = node.name.as_deref().unwrap_or_default();
        let len = node.outputs[0].numel();
        if node.outputs[0].dtype == DType::U32 {
            let ids: Vec<u32> = (0..len as u32)
                .map(|i| i.wrapping_mul(2_654_435_761) % case.bound)
                .collect();
            session.set_input_u32(name, &ids);
        } else {
            // Positive, because some are variances.
            let values: Vec<f32> = noise(len).iter().map(|v| v.abs() + 0.1).collect();
            session.set_input(name, &values);
        }
    }
    (session, cost)
}

/// Number of rows of the square matmul whose rate is the reference.
const SIDE: usize = 768;

fn run(criterion: &mut Criterion, cases: Vec<Case>) {
    let pool = ThreadPool::new(THREADS);
    for case in cases {
        let (mut kernel, cost) = session(&case);
        // A copy reads and writes.
        let half = cost.bytes as usize / 8;
        let (from, mut to) = (noise(half), vec![0.0; half]);
        let mut product = product(SIDE);
        let candidates: Vec<Candidate> = vec![
            ("kernel", Box::new(move || kernel.step())),
            ("copy", Box::new(|| copy(&pool, &from, &mut to))),
            ("product", Box::new(move || product.step())),
        ];
        let mut race = Race::new(candidates, 2);
        let mut group = criterion.benchmark_group("kernels/cpu");
        group.bench_function(BenchmarkId::from_parameter(case.name), |b| {
            b.iter_custom(|turns| race.run(0, turns));
        });
        group.finish();
        let rate = 2.0 * (SIDE * SIDE * SIDE) as f64 / race.seconds(2);
        let arithmetic = cost.flops as f64 / rate;
        println!(
            "{}: {:.2} ms, {:.1} GB/s, {:.1} GFLOP/s; of the copy's bandwidth {:.2}, of the matmul rate {:.2}",
            case.name,
            race.seconds(0) * 1e3,
            cost.bytes as f64 / race.seconds(0) * 1e-9,
            cost.flops as f64 / race.seconds(0) * 1e-9,
            race.ratio(1),
            arithmetic / race.seconds(0),
        );
    }
}

fn families(criterion: &mut Criterion) {
    for cases in [pointwise(), norms(), reductions(), movement(), windows()] {
        run(criterion, wanted(cases));
    }
}

/// Returns the selected cases, so that sessions of other cases are not built.
fn wanted(mut cases: Vec<Case>) -> Vec<Case> {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    cases.retain(|c| filters.is_empty() || filters.iter().any(|f| c.name.contains(f.as_str())));
    cases
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(1));
    targets = families
}
criterion_main!(benches);
