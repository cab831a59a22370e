//! Calls whose kernels are stored as snapshots. Tests of backends translate these kernels to other languages.

use std::collections::{BTreeMap, HashSet};

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::sample::{Fill, Sample, SampleInput, Sizes};
use meganeura_core::plan::BufferRef;
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph, TensorType, Value, registry};
use meganeura_shaders::coop::{CoopConfig, MIN_COOP_WORKGROUPS};
use meganeura_shaders::{CompileCx, Features, Launch, Limits, Memory, compile, generate};

/// Number of rows of a matmul whose operand is computed when it is loaded.
const FEW_ROWS: usize = 1;

/// A call with its operands, and the device for which it is compiled.
struct Call {
    op: &'static str,
    attrs: Attrs,
    /// Shape and dtype of each operand, and true if the operand is a state.
    operands: Vec<(Vec<usize>, DType, bool)>,
    coop: Option<CoopConfig>,
    features: Features,
    /// Indices of the `f32` operands that are stored as `f16`.
    halves: &'static [u32],
    /// Indices of the operands that the results overwrite, in the order of the results.
    overwritten: Vec<u32>,
    /// Schedule other than the default one, as text.
    schedule: Option<&'static str>,
}

impl Call {
    fn new(op: &'static str, attrs: Attrs, shapes: &[&[usize]]) -> Self {
        let operand = |shape: &&[usize]| (shape.to_vec(), DType::F32, false);
        Call {
            op,
            attrs,
            operands: shapes.iter().map(operand).collect(),
            coop: None,
            features: Features::default(),
            halves: &[],
            overwritten: Vec::new(),
            schedule: None,
        }
    }

    /// Creates the call of the first sample of an operator.
    fn sample(op: &'static str) -> Self {
        Call::sample_where(op, |_| true)
    }

    /// Creates the call of an operator's first sample that has an `f16` cache.
    fn sample_with_half_cache(op: &'static str) -> Self {
        Call::sample_where(op, |sample| {
            sample.inputs.get(1).is_some_and(|cache| cache.dtype == DType::F16)
        })
    }

    fn sample_where(op: &'static str, fits: impl Fn(&Sample) -> bool) -> Self {
        let samples = registry::op(op).expect("an operator").samples(&mut Sizes::new(0));
        let sample = samples.iter().find(|sample| fits(sample)).expect("a sample");
        let operands = sample.inputs.iter().map(|x| (x.shape.clone(), x.dtype, x.state));
        Call {
            operands: operands.collect(),
            ..Call::new(op, sample.attrs.clone(), &[])
        }
    }

    fn on(mut self, coop: Option<CoopConfig>) -> Self {
        self.coop = coop;
        self
    }

    /// Selects a device with subgroups of 32 threads and exact conversions of `f16`.
    fn with_features(mut self) -> Self {
        self.features = Features {
            subgroup_size: Some(32),
            exact_f16: true,
            workgroup_bytes: 48 << 10,
        };
        self
    }

    fn halves(mut self, operands: &'static [u32]) -> Self {
        self.halves = operands;
        self
    }

    fn over(mut self, operand: u32) -> Self {
        self.overwritten.push(operand);
        self
    }

    /// Sets the schedule, and selects a device without optional features.
    fn by(mut self, schedule: &'static str) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Sets the dtype of all operands.
    fn of(mut self, dtype: DType) -> Self {
        self.operands.iter_mut().for_each(|operand| operand.1 = dtype);
        self
    }

    /// Sets the dtype of these operands to the dtype of indices.
    fn indices(mut self, operands: &[usize]) -> Self {
        for &operand in operands {
            self.operands[operand].1 = DType::U32;
        }
        self
    }

    fn launches(&self) -> Vec<Launch> {
        let mut graph = Graph::new();
        let operands = self.operands.iter().enumerate();
        let inputs: Vec<Value> = operands
            .map(|(i, (shape, dtype, state))| {
                let operand = SampleInput::filled(*dtype, shape, Fill::Constant(0.0));
                let operand = if *state { operand.state() } else { operand };
                operand.leaf(&mut graph, &format!("x{i}"), *dtype).into()
            })
            .collect();
        let types: Vec<_> = inputs.iter().filter_map(|&x| graph.ty(x).cloned()).collect();
        let op = registry::op(self.op).expect("an operator");
        let call = graph.call(op, self.attrs.clone(), inputs);
        assert!(graph.errors().is_empty(), "{}: {:?}", self.op, graph.errors());
        // Matmuls in half precision have `f32` results. Written caches keep their dtype.
        let has_half_cache = self
            .operands
            .iter()
            .any(|(_, dtype, state)| *state && *dtype == DType::F16);
        let wide = |ty: &TensorType| match ty.dtype {
            DType::F16 if !has_half_cache => TensorType::f32(ty.shape.clone()),
            _ => ty.clone(),
        };
        let outputs: Vec<TensorType> = graph.nodes()[call.index()].outputs.iter().map(wide).collect();
        let halves: HashSet<BufferRef> = self.halves.iter().map(|&i| BufferRef(i)).collect();
        let mut cx = CompileCx {
            coop: self.coop,
            features: self.features,
            f16_storage: Some(&halves),
            ..CompileCx::standalone(KernelDesc {
                name: self.op,
                version: op.version(),
                attrs: &self.attrs,
                inputs: &types,
                outputs: &outputs,
            })
        };
        if !self.overwritten.is_empty() {
            let over = self.overwritten.iter();
            cx.outputs = over.map(|&operand| Memory::Buffer(BufferRef(operand))).collect();
        }
        let schedule = self.schedule.map(|text| text.parse().expect("a schedule"));
        let made = match &schedule {
            Some(_) => generate(&cx.kernel, schedule.as_ref(), &Limits::default()),
            None => compile(&cx),
        };
        let made = made.unwrap_or_else(|why| panic!("{}: {why}", self.op));
        made.launches
    }
}

/// Creates the attributes of a fused program from calls. Each call has an operator, attributes and operands.
fn program(operands: usize, calls: &[(&str, Attrs, &[Slot])]) -> Attrs {
    let step = |(name, attrs, inputs): &(&str, Attrs, &[Slot])| Step {
        op: registry::op(name).expect("an operator"),
        attrs: attrs.clone(),
        inputs: inputs.to_vec(),
    };
    let last = Slot::Step(calls.len() as u32 - 1);
    let program = Program::new(operands, calls.iter().map(step).collect(), vec![last]);
    Attrs::new().with("program", program.expect("a program"))
}

/// Returns a configuration of cooperative matrices with `f16` operands, given the tile size and the subgroup size.
fn units(tile_size: u32, subgroup_size: u32) -> Option<CoopConfig> {
    Some(CoopConfig {
        tile_size,
        use_f16_input: true,
        subgroup_size,
        min_workgroups: MIN_COOP_WORKGROUPS,
        max_resident_workgroups: 0,
        wide_rows: false,
    })
}

/// Returns all launches by kernel and name. The name is that of the call, with a number if the call launches a kernel
/// several times.
pub(crate) fn launches() -> BTreeMap<&'static str, BTreeMap<String, Launch>> {
    let mut all: BTreeMap<&str, BTreeMap<String, Launch>> = BTreeMap::new();
    for (call, launches) in named_launches() {
        for launch in launches {
            let of_kernel = all.entry(launch.kernel).or_default();
            let mut names = (1..).map(|number| match number {
                1 => call.to_string(),
                _ => format!("{call}.{number}"),
            });
            let name = names
                .find(|name| !of_kernel.contains_key(name))
                .expect("numbers do not end");
            of_kernel.insert(name, launch);
        }
    }
    all
}

/// Returns the launches of all calls, with the names of the calls.
fn named_launches() -> Vec<(String, Vec<Launch>)> {
    let mut all: Vec<(String, Call)> = Vec::new();
    all.extend(elementwise());
    let kinds = [
        ("small", None, [5, 7, 3], false),
        ("few", None, [3, 1101, 130], false),
        ("one", None, [1, 576, 960], false),
        ("one-wide", None, [1, 576, 960], true),
        ("tiled", None, [200, 96, 120], false),
        ("coop16", units(16, 32), [768, 96, 512], false),
        ("coop8", units(8, 32), [768, 96, 512], false),
    ];
    for (kind, coop, sizes, turned) in kinds {
        let calls = products(sizes, turned).into_iter();
        all.extend(calls.map(|(name, call)| (format!("{kind}-{name}"), call.on(coop))));
    }
    let matmul = |[m, k, n]: [usize; 3]| Call::new("core.matmul", transposed(false, false), &[&[m, k], &[k, n]]);
    all.push(("split-k".into(), matmul([64, 10_496, 64])));
    all.push(("coop16-split-k".into(), matmul([16, 10_496, 256]).on(units(16, 32))));
    all.push(("one-subgroups".into(), matmul_bt([1, 576, 960]).with_features()));
    all.push(("one-large".into(), matmul_bt([1, 4096, 28_672]).with_features()));
    all.push(("four-large".into(), matmul_bt([4, 14_336, 4096]).with_features()));
    all.push(("four-subgroups".into(), matmul_bt([4, 576, 4096]).with_features()));
    for format in BlockFormat::ALL {
        let name = |kind: &str| format!("{kind}-{}", format!("{format:?}").to_lowercase().replace('_', "-"));
        all.push((name("one"), packed([1, 576, 960], format)));
        all.push((name("tiled"), packed([200, 96, 1200], format)));
        all.push((name("coop16"), packed([16, 576, 1536], format).on(units(16, 32))));
        // All other formats load weights in the same way for any number of rows.
        if matches!(format, BlockFormat::Q8_0 | BlockFormat::Q4_0 | BlockFormat::Q6) {
            all.push((name("three"), packed([3, 576, 960], format).with_features()));
            all.push((name("one-long"), packed([1, 8192, 192], format).with_features()));
            all.push((name("one-large"), packed([1, 4096, 28_672], format).with_features()));
        }
    }
    all.push(("cached-attention".into(), cached_attention(64, 4096)));
    all.push(("narrow-cached-attention".into(), cached_attention(6, 512)));
    all.push(("paged-attention".into(), paged_attention(8, 64)));
    all.push(("narrow-paged-attention".into(), paged_attention(8, 6)));
    all.push(("paged-prefill".into(), paged_attention(512, 64).on(units(16, 32))));
    for (kind, coop) in [("plain", None), ("coop16", units(16, 32))] {
        let calls = convolutions().into_iter().chain(attention());
        all.extend(calls.map(|(name, call)| (format!("{kind}-{name}"), call.on(coop))));
    }
    all.extend(others().into_iter().map(|(name, call)| (name.to_owned(), call)));
    all.into_iter().map(|(name, call)| (name, call.launches())).collect()
}

/// Creates a matmul whose right operand is transposed.
fn matmul_bt([m, k, n]: [usize; 3]) -> Call {
    Call::new("core.matmul", transposed(false, true), &[&[m, k], &[n, k]])
}

/// Creates a matmul with packed weights.
fn packed([m, k, n]: [usize; 3], format: BlockFormat) -> Call {
    let blocks = k / BLOCK;
    let (rows, words, scales) = ([m, k], [n, blocks * format.words()], [n, blocks * format.scales()]);
    let mut call = Call::new("core.quantized_matmul", Attrs::new(), &[&rows, &words, &scales]).indices(&[1]);
    call.operands[2].1 = DType::F16;
    call
}

fn transposed(a: bool, b: bool) -> Attrs {
    Attrs::new().with("transpose_a", a).with("transpose_b", b)
}

/// Returns fused programs, reductions, and one call that is split into stages.
fn elementwise() -> Vec<(String, Call)> {
    let (a, b, c) = (Slot::Operand(0), Slot::Operand(1), Slot::Operand(2));
    let none = Attrs::new;
    let fused = program(
        3,
        &[
            ("core.mul", none(), &[a, b]),
            ("core.add", none(), &[Slot::Step(0), c]),
            ("core.gelu_tanh", none(), &[Slot::Step(1)]),
        ],
    );
    let shapes: [&[usize]; 3] = [&[30, 40], &[30, 40], &[40]];
    let softmax = |shape: &[usize]| Call::new("core.softmax", none().with("axis", -1i64), &[shape]);
    let sum = none().with("axes", vec![0i64, 1]).with("keep_dims", false);
    [
        ("fused", Call::new("core.fused", fused.clone(), &shapes)),
        ("fused-halves", Call::new("core.fused", fused, &shapes).halves(&[0, 3])),
        ("softmax", softmax(&[64, 1000])),
        ("softmax-long", softmax(&[4, 50_000])),
        (
            "softmax-rows-first",
            Call::new("core.softmax", none().with("axis", 0i64), &[&[100, 256]]),
        ),
        (
            "rms-norm",
            Call::new("core.rms_norm", none().with("eps", 1e-5), &[&[128, 576], &[576]]),
        ),
        ("sum-in-parts", Call::new("core.sum", sum, &[&[512, 4096]])),
        (
            "rms-norm-matmul",
            Call::new(
                "core.rms_norm_matmul",
                none().with("eps", 1e-5),
                &[&[1, 576], &[576], &[576, 960]],
            ),
        ),
        ("rms-norm-grad", Call::sample("core.rms_norm_grad")),
    ]
    .into_iter()
    .map(|(name, call)| (name.to_owned(), call))
    .collect()
}

/// Returns matmuls of a matrix of `m` rows and `k` columns with a matrix of `n` columns. The second matrix is stored
/// transposed if `turned`.
fn products([m, k, n]: [usize; 3], turned: bool) -> Vec<(&'static str, Call)> {
    let (a, b, c) = (Slot::Operand(0), Slot::Operand(1), Slot::Operand(2));
    let (none, step) = (Attrs::new, Slot::Step);
    let b_shape = if turned { [n, k] } else { [k, n] };
    let (plain, shapes): (_, [&[usize]; 2]) = (transposed(false, turned), [&[m, k], &b_shape]);
    let prologue = program(
        2,
        &[
            ("core.silu", none(), &[a]),
            ("core.matmul", plain.clone(), &[step(0), b]),
        ],
    );
    let epilogue = program(
        3,
        &[
            ("core.matmul", plain.clone(), &[a, b]),
            ("core.add", none(), &[step(0), c]),
            ("core.relu", none(), &[step(1)]),
        ],
    );
    let with_bias: [&[usize]; 3] = [&[m, k], &b_shape, &[n]];
    let matmul = |attrs: Attrs, shapes: &[&[usize]]| Call::new("core.matmul", attrs, shapes);
    let mut all = vec![
        ("plain", matmul(plain.clone(), &shapes)),
        ("transposed-a", matmul(transposed(true, turned), &[&[k, m], &b_shape])),
        ("halves", matmul(plain.clone(), &shapes).halves(&[0, 1])),
        ("f16", matmul(plain.clone(), &shapes).of(DType::F16)),
        ("epilogue", Call::new("core.fused", epilogue, &with_bias)),
        ("add", Call::new("core.matmul_add", plain, &with_bias)),
    ];
    // If `turned`, other snapshots contain the layout that is not transposed.
    if !turned {
        all.push(("transposed-b", matmul(transposed(false, true), &[&[m, k], &[n, k]])));
    }
    // Only matmuls of few rows compute an operand when they load it.
    if m <= FEW_ROWS {
        all.push(("prologue", Call::new("core.fused", prologue, &shapes)));
    }
    all
}

/// Returns a convolution and its gradients, for images with channels first and last.
fn convolutions() -> Vec<(&'static str, Call)> {
    let pair = |value: i64| vec![value, value];
    let window = Attrs::new()
        .with("stride", pair(1))
        .with("padding", pair(1))
        .with("dilation", pair(1))
        .with("groups", 1i64);
    let (x, w, y): (&[usize], &[usize], &[usize]) = (&[4, 24, 40, 40], &[72, 24, 3, 3], &[4, 72, 40, 40]);
    let input = window.clone().with("input_size", pair(40));
    let weight = window.clone().with("kernel_size", pair(3));
    // Channels last.
    let (x_last, w_last, y_last): (&[usize], &[usize], &[usize]) =
        (&[4, 40, 40, 24], &[3, 3, 24, 72], &[4, 40, 40, 72]);
    let (window_last, input_last, weight_last) = (window.clone(), input.clone(), weight.clone());
    vec![
        (
            "conv-nhwc",
            Call::new("core.conv2d_nhwc", window_last, &[x_last, w_last]),
        ),
        (
            "conv-nhwc-input-grad",
            Call::new("core.conv2d_nhwc_input_grad", input_last, &[y_last, w_last]),
        ),
        (
            "conv-nhwc-weight-grad",
            Call::new("core.conv2d_nhwc_weight_grad", weight_last, &[x_last, y_last]),
        ),
        ("conv", Call::new("core.conv2d", window, &[x, w])),
        ("conv-input-grad", Call::new("core.conv2d_input_grad", input, &[y, w])),
        (
            "conv-weight-grad",
            Call::new("core.conv2d_weight_grad", weight, &[x, y]),
        ),
    ]
}

/// Returns calls of attention, forward and backward.
fn attention() -> Vec<(&'static str, Call)> {
    let attrs = Attrs::new()
        .with("num_heads", 4usize)
        .with("num_kv_heads", 2usize)
        .with("head_dim", 64usize)
        .with("causal", true)
        .with("window", 0i64)
        .with("scale", 0.125);
    let (q, kv, rows): (&[usize], &[usize], &[usize]) = (&[300, 256], &[310, 128], &[4, 300]);
    vec![
        ("attention", Call::new("core.attention", attrs.clone(), &[q, kv, kv])),
        (
            "attention-grad",
            Call::new("core.attention_grad", attrs, &[q, kv, kv, rows, rows, q]),
        ),
    ]
}

/// Creates the call of attention of one query to a cache of `rows` rows, with heads of `head_dim` elements. In a long
/// cache, workgroups share the keys of a query. If heads consist of whole vectors, threads share each key.
fn cached_attention(head_dim: usize, rows: usize) -> Call {
    let cached = Attrs::new()
        .with("num_heads", 4usize)
        .with("num_kv_heads", 2usize)
        .with("head_dim", head_dim)
        .with("window", 0i64)
        .with("scale", 0.125);
    let (q, kv) = ([1, 1, 4 * head_dim], [1, rows, 2 * head_dim]);
    let cache: [&[usize]; 4] = [&q, &kv, &kv, &[1]];
    Call::new("core.cached_attention", cached, &cache).indices(&[3])
}

/// Creates the call of attention of `rows` tokens to paged caches.
fn paged_attention(rows: usize, head_dim: usize) -> Call {
    let attrs = Attrs::new()
        .with("num_heads", 4usize)
        .with("num_kv_heads", 2usize)
        .with("head_dim", head_dim)
        .with("window", 0i64)
        .with("scale", 0.125);
    let (q, kv) = ([rows, 4 * head_dim], [64, 16, 2 * head_dim]);
    let operands: [&[usize]; 5] = [&q, &kv, &kv, &[rows], &[rows, 32]];
    Call::new("core.paged_attention", attrs, &operands).indices(&[3, 4])
}

/// Returns a call of attention to a cache with so many keys that a workgroup computes several heads.
fn long_cache() -> Call {
    let attrs = Attrs::new()
        .with("num_heads", 8i64)
        .with("num_kv_heads", 2i64)
        .with("head_dim", 64i64)
        .with("window", 0i64)
        .with("scale", 0.125);
    let kv = [4096, 2 * 64];
    let operands: [&[usize]; 4] = [&[1, 8 * 64], &kv, &kv, &[1]];
    Call::new("core.cached_attention", attrs, &operands).indices(&[3])
}

/// Returns calls of operators with separate kernel files.
fn others() -> Vec<(&'static str, Call)> {
    let scatter = |rows: usize| {
        let attrs = Attrs::new().with("axis", 0i64).with("rows", 50i64);
        Call::new("core.scatter_add", attrs, &[&[rows], &[rows, 3]]).indices(&[0])
    };
    let experts = |rows: usize, transpose_b: bool| {
        let weight: [usize; 3] = if transpose_b { [6, 20, 36] } else { [6, 36, 20] };
        let attrs = Attrs::new().with("transpose_b", transpose_b);
        Call::new("core.expert_matmul", attrs, &[&[rows, 36], &[rows], &weight]).indices(&[1])
    };
    vec![
        ("cache-write", Call::sample("core.cache_write").over(1)),
        ("rope-cache-write", Call::sample("core.rope_cache_write").over(1)),
        ("paged-cache-write", Call::sample("core.paged_cache_write").over(1)),
        (
            "cache-write-f16",
            Call::sample_with_half_cache("core.cache_write").over(1),
        ),
        (
            "rope-cache-write-f16",
            Call::sample_with_half_cache("core.rope_cache_write").over(1),
        ),
        (
            "paged-cache-write-f16",
            Call::sample_with_half_cache("core.paged_cache_write").over(1),
        ),
        (
            "fused-cache-write",
            Call::sample_where("core.fused_cache_write", |sample| sample.label.contains("heads of 16")).over(0),
        ),
        (
            "fused-paged-cache-write-f16",
            Call::sample_where("core.fused_cache_write", |sample| {
                sample.label.contains("heads of 32") && sample.label.ends_with("f16")
            })
            .over(0),
        ),
        (
            "cached-attention-f16",
            Call::sample_with_half_cache("core.cached_attention"),
        ),
        (
            "paged-attention-f16",
            Call::sample_with_half_cache("core.paged_attention"),
        ),
        (
            "quantized-cache-write",
            Call::sample("core.quantized_cache_write").over(1).over(2),
        ),
        ("long-cached-attention", long_cache()),
        (
            "cached-attention-q8",
            Call::sample_where("core.cached_attention", |sample| sample.inputs.len() == 6),
        ),
        (
            "paged-attention-q8",
            Call::sample_where("core.paged_attention", |sample| sample.inputs.len() == 7),
        ),
        ("argmax", Call::sample("core.argmax")),
        (
            "argmax-in-parts",
            Call::new("core.argmax", Attrs::new().with("axis", 1i64), &[&[4, 100_000]]).by("arg_reduce.v1 split=16"),
        ),
        ("cumsum", Call::sample("core.cumsum")),
        ("decision-trees", Call::sample("core.decision_trees")),
        ("sampling-threshold", Call::sample("core.sampling_threshold")),
        ("top-k", Call::sample("core.top_k")),
        ("avg-pool", Call::sample("core.avg_pool2d")),
        ("avg-pool-grad", Call::sample("core.avg_pool2d_grad")),
        ("max-pool", Call::sample("core.max_pool2d")),
        ("max-pool-nhwc", Call::sample("core.max_pool2d_nhwc")),
        (
            "max-pool-channels",
            Call::sample_where("core.max_pool2d_nhwc", |sample| {
                sample.inputs[0].shape[3].is_multiple_of(4)
            }),
        ),
        ("few-rows", scatter(32)),
        ("many-rows", scatter(33)),
        ("put", Call::sample("core.put_along_axis")),
        ("few-expert-rows", experts(8, true)),
        ("many-expert-rows", experts(200, true)),
        ("many-expert-rows-transposed", experts(200, false)),
        ("expert-weight-grad", {
            let attrs = Attrs::new().with("experts", 6i64);
            Call::new("core.expert_matmul_weight_grad", attrs, &[&[40, 20], &[40], &[40, 36]]).indices(&[1])
        }),
    ]
}
