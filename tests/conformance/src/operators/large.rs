//! Cases of matmuls with the dimensions of large language models: kernels choose other algorithms for them than for the
//! small samples.

use meganeura_core::attrs::Attrs;
use meganeura_core::ops::sample::{Fill, Sample, SampleInput};
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, registry};

use crate::case::{Case, SharedDevice};
use crate::options::Options;

/// Rows, summed dimension and columns of the matmuls. 14,336 is the hidden size of a model of 8B parameters, and
/// 128,256 its vocabulary. Matmuls of at least 64 rows are large enough for a library.
const SHAPES: [[usize; 3]; 8] = [
    [1, 14_336, 150],
    [3, 14_336, 150],
    [1, 4096, 1030],
    [8, 2048, 1100],
    [16, 2048, 1030],
    [64, 1024, 520],
    [128, 2048, 512],
    [1, 32, 128_256],
];

fn samples() -> Vec<(&'static str, Sample)> {
    let mut samples = Vec::new();
    for [m, k, n] in SHAPES {
        let x = SampleInput::f32(&[m, k]);
        let label = |of: &str| format!("[{m}, {k}] by [{n}, {k}] of {of}");
        for format in BlockFormat::ALL {
            let blocks = k / BLOCK;
            let words = SampleInput::below(&[n, blocks * format.words()], u32::MAX as usize);
            let scales = SampleInput::filled(DType::F16, &[n, blocks * format.scales()], Fill::Below(60));
            let inputs = vec![x.clone(), words, scales];
            let sample = Sample::new(label(&format!("{format:?}")), inputs, Attrs::new());
            samples.push(("core.quantized_matmul", sample));
        }
        let halves = SampleInput::filled(DType::F16, &[n, k], Fill::Below(200));
        let sample = Sample::new(label("f16"), vec![x.clone(), halves], Attrs::new());
        samples.push(("core.quantized_matmul", sample));
        let attrs = Attrs::new().with("transpose_a", false).with("transpose_b", true);
        let sample = Sample::new(label("f32"), vec![x, SampleInput::f32(&[n, k])], attrs.clone());
        samples.push(("core.matmul", sample));
        let operands = vec![
            SampleInput::f32(&[m, k]),
            SampleInput::f32(&[n, k]),
            SampleInput::f32(&[m, n]),
        ];
        samples.push(("core.matmul_add", Sample::new(label("f32"), operands, attrs.clone())));
        // Gradients of weights: both operands have the summed dimension first.
        let attrs = Attrs::new().with("transpose_a", true).with("transpose_b", false);
        let operands = vec![SampleInput::f32(&[k, m]), SampleInput::f32(&[k, n])];
        let sample = Sample::new(format!("[{k}, {m}] transposed by [{k}, {n}] of f32"), operands, attrs);
        samples.push(("core.matmul", sample));
    }
    // Sampling from the vocabulary of a language model.
    for (top_k, top_p) in [(50.0, 1.0), (0.0, 0.9), (5000.0, 0.5)] {
        let column = |dtype, value| SampleInput::filled(dtype, &[2, 1], Fill::Constant(value));
        let operands = vec![
            SampleInput::f32(&[2, 128_256]),
            column(DType::F32, 0.8),
            column(DType::U32, top_k),
            column(DType::F32, top_p),
            column(DType::F32, 0.0),
        ];
        // Rounded sums may select a neighbour.
        let sample = Sample {
            tolerance: 1e-3,
            ..Sample::new(
                format!("[2, 128256], top-k {top_k}, top-p {top_p}"),
                operands,
                Attrs::new(),
            )
        };
        samples.push(("core.sampling_threshold", sample));
    }
    samples.extend(long_caches());
    // Large updates in place use vectors.
    let scalar = |value: f64| SampleInput::range(&[], value, value);
    let shape = [1024, 516];
    let state = || SampleInput::f32(&shape).state();
    let sgd = vec![state(), SampleInput::f32(&shape), scalar(0.1), scalar(0.01)];
    samples.push(("optim.sgd", Sample::new("[1024, 516]", sgd, Attrs::new())));
    let mut adam = vec![
        state(),
        SampleInput::f32(&shape),
        state(),
        SampleInput::range(&shape, 0.1, 2.0).state(),
    ];
    adam.extend([0.01, 0.9, 0.999, 1e-8, 0.01, 0.271, 0.003].map(scalar));
    let attrs = Attrs::new().with("decoupled", true);
    samples.push(("optim.adam", Sample::new("[1024, 516]", adam, attrs)));
    samples
}

/// Returns calls of attention to caches with more keys than a workgroup reads for several heads together: keys and values in
/// `f32`, in `f16`, and as 8-bit integers.
fn long_caches() -> Vec<(&'static str, Sample)> {
    // Sequences, rows of queries, capacity, heads, key-value heads, width, and window.
    let whole = [
        [1, 1, 2300, 4, 1, 64, 0],
        [2, 3, 1700, 6, 3, 128, 0],
        [1, 2, 1900, 16, 4, 80, 1700],
        [1, 1, 1100, 12, 2, 128, 0],
        [1, 1, 600, 4, 2, 256, 0],
    ];
    // Rows of queries, blocks of a sequence, blocks, heads, key-value heads, width, and window; blocks have 16 rows.
    let paged = [[3, 130, 140, 4, 1, 64, 0], [2, 80, 85, 12, 3, 128, 1100]];
    let mut samples = Vec::new();
    for storage in [Some(DType::F32), Some(DType::F16), None] {
        for [sequences, rows, capacity, heads, kv_heads, width, window] in whole {
            let [keys, values] = [0; 2].map(|_| cache(storage, &[sequences, capacity], kv_heads * width));
            let mut inputs = vec![
                SampleInput::f32(&[sequences, rows, heads * width]),
                keys[0].clone(),
                values[0].clone(),
                SampleInput::below(&[sequences], capacity + 1 - rows),
            ];
            inputs.extend(keys.into_iter().skip(1).chain(values.into_iter().skip(1)));
            let label = format!("{sequences}x{rows} of {capacity} rows, {heads} on {kv_heads} of {width}, {storage:?}");
            let attrs = attention([heads, kv_heads, width, window], storage);
            samples.push(("core.cached_attention", Sample::new(label, inputs, attrs)));
        }
        for [rows, len, blocks, heads, kv_heads, width, window] in paged {
            let [keys, values] = [0; 2].map(|_| cache(storage, &[blocks, 16], kv_heads * width));
            let mut inputs = vec![
                SampleInput::f32(&[rows, heads * width]),
                keys[0].clone(),
                values[0].clone(),
                SampleInput::below(&[rows], 16 * len),
                SampleInput::below(&[rows, len], blocks),
            ];
            inputs.extend(keys.into_iter().skip(1).chain(values.into_iter().skip(1)));
            let label = format!("{rows} of {len} blocks, {heads} on {kv_heads} of {width}, {storage:?}");
            let attrs = attention([heads, kv_heads, width, window], storage);
            samples.push(("core.paged_attention", Sample::new(label, inputs, attrs)));
        }
    }
    samples
}

/// Returns a cache of a type, or words and scales of a quantized cache.
fn cache(storage: Option<DType>, rows: &[usize], width: usize) -> Vec<SampleInput> {
    let of_row = |count: usize| [rows, &[count]].concat();
    match storage {
        Some(DType::F16) => vec![SampleInput::filled(DType::F16, &of_row(width), Fill::Below(5))],
        Some(dtype) => vec![SampleInput::filled(dtype, &of_row(width), Fill::Range(-2.0, 2.0))],
        None => vec![
            SampleInput::below(&of_row(width / 4), u32::MAX as usize),
            SampleInput::filled(DType::F16, &of_row(width / BLOCK), Fill::Below(5)),
        ],
    }
}

/// Returns the attributes of attention. Numbers of a quantized cache are up to 512, so the factor of the scores is small.
fn attention([heads, kv_heads, width, window]: [usize; 4], storage: Option<DType>) -> Attrs {
    let scale = storage.map_or(1e-4, |_| 0.05);
    Attrs::new()
        .with("num_heads", heads as i64)
        .with("num_kv_heads", kv_heads as i64)
        .with("head_dim", width as i64)
        .with("window", window as i64)
        .with("scale", scale)
}

pub(crate) fn cases(options: &Options) -> Vec<Case> {
    let case = |(name, sample): (&'static str, Sample)| {
        let op = registry::ops().into_iter().find(|op| op.name() == name)?;
        let built = super::build(op, &sample, 1, DType::F32);
        // A few of these cases cover more than many small ones.
        if super::work(&built.graph) > 5 * options.max_work {
            return None;
        }
        let tolerance = sample.tolerance;
        let run = move |device: &SharedDevice| super::forward(device, op, &built, tolerance);
        Some(Case::new(format!("{name}/large/{}", sample.label), run))
    };
    samples().into_iter().filter_map(case).collect()
}
