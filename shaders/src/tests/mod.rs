//! Tests of every kernel of every operator's samples, without a device. The kernels are valid and can be translated.

mod coop;
mod library;
mod projections;

use std::collections::HashSet;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::ops::{AttentionOptions, OpRef};
use meganeura_core::plan::BufferRef;
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::{DType, Graph, Shape, TensorType, registry};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::ScheduleChooser;
use super::coop::CoopConfig;
use super::{Binding, CompileCx, Compiled, Launch, Memory, compile, supports};

/// Returns the types of a sample's operands and results. Floats have the dtype `float`.
fn types(op: OpRef, sample: &Sample, float: DType) -> Option<(Vec<TensorType>, Vec<TensorType>)> {
    let mut graph = Graph::new();
    let operand = |dtype: DType| if dtype == DType::F32 { float } else { dtype };
    let inputs: Vec<_> = sample
        .inputs
        .iter()
        .enumerate()
        .map(|(i, x)| x.leaf(&mut graph, &format!("x{i}"), operand(x.dtype)).into())
        .collect();
    let types = sample
        .inputs
        .iter()
        .zip(&inputs)
        .filter_map(|(_, &x)| graph.ty(x).cloned())
        .collect();
    let call = graph.call(op, sample.attrs.clone(), inputs);
    graph
        .errors()
        .is_empty()
        .then(|| (types, graph.nodes()[call.index()].outputs.clone()))
}

/// Returns the launches of the samples of all operators.
fn launches() -> Vec<(String, Launch)> {
    launches_with(None)
}

/// Returns the launches of the samples of all operators, with cooperative matrices if `coop` contains a
/// configuration.
fn launches_with(coop: Option<CoopConfig>) -> Vec<(String, Launch)> {
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    for op in registry::ops() {
        for (sample, float) in op
            .samples(&mut Sizes::new(0))
            .iter()
            .flat_map(|s| [(s, DType::F32), (s, DType::F16)])
        {
            let Some((inputs, outputs)) = types(op, sample, float) else {
                continue;
            };
            let kernel = KernelDesc {
                name: op.name(),
                version: op.version(),
                attrs: &sample.attrs,
                inputs: &inputs,
                outputs: &outputs,
            };
            let cx = CompileCx {
                coop,
                ..CompileCx::standalone(kernel)
            };
            for mut launch in compile(&cx).map(|c| c.launches).unwrap_or_default() {
                let label = format!("{} {}", op.name(), sample.label);
                if seen.insert(launch.source.clone()) {
                    all.push((label.clone(), launch.clone()));
                    if launch.guard().is_ok() {
                        all.push((label, launch));
                    }
                }
            }
        }
    }
    all
}

/// Parses a kernel, binds its variables, and validates it with only these capabilities.
fn validated(label: &str, launch: &Launch, capabilities: Capabilities) -> (naga::Module, naga::valid::ModuleInfo) {
    let fail = |what: &str| -> ! { panic!("{label}: {what}\n{}", launch.source) };
    let mut module = match naga::front::wgsl::parse_str(&launch.source) {
        Ok(module) => module,
        Err(e) => fail(&e.emit_to_string(&launch.source)),
    };
    for (binding, (_, variable)) in (0u32..).zip(
        module
            .global_variables
            .iter_mut()
            .filter(|(_, v)| !matches!(v.space, naga::AddressSpace::WorkGroup | naga::AddressSpace::Private)),
    ) {
        variable.binding = Some(naga::ResourceBinding { group: 0, binding });
    }
    match Validator::new(ValidationFlags::all(), capabilities).validate(&module) {
        Ok(info) => (module, info),
        Err(e) => fail(&format!("{e:?}")),
    }
}

#[test]
fn every_kernel_is_valid_and_translates() {
    let launches = launches();
    assert!(launches.len() > 500, "{}", launches.len());
    // The kernels require only capabilities that every device has.
    for (label, launch) in &launches {
        translate(label, launch, Capabilities::empty());
    }
}

/// Translates a kernel to the languages of Vulkan and Metal.
fn translate(label: &str, launch: &Launch, capabilities: Capabilities) {
    let (module, info) = validated(label, launch, capabilities);
    let options = naga::back::spv::Options {
        lang_version: (1, 3),
        ..naga::back::spv::Options::default()
    };
    let spv = naga::back::spv::write_vec(&module, &info, &options, None);
    assert!(
        spv.is_ok_and(|words| !words.is_empty()),
        "{label} as SPIR-V\n{}",
        launch.source
    );
    let options = naga::back::msl::Options {
        fake_missing_bindings: true,
        lang_version: (2, 4),
        ..naga::back::msl::Options::default()
    };
    let pipeline = naga::back::msl::PipelineOptions::default();
    let msl = naga::back::msl::write_string(&module, &info, &options, &pipeline);
    assert!(msl.is_ok(), "{label} as MSL: {:?}\n{}", msl.err(), launch.source);
}

#[test]
fn equal_kernels_can_have_different_codes() {
    for (label, launch) in launches() {
        let mut sources = vec![launch.source.clone()];
        for number in 1..3 {
            let mut own = launch.clone();
            own.differ(number);
            assert!(!sources.contains(&own.source), "{label}");
            translate(&label, &own, Capabilities::empty());
            sources.push(own.source);
        }
    }
}

#[test]
fn no_kernel_asks_for_the_length_of_its_memory() {
    // `arrayLength` would include other buffers in the same slab.
    for (label, launch) in launches() {
        assert!(!launch.source.contains("arrayLength"), "{label}");
    }
}

#[test]
fn variables_are_bound_by_the_names_that_they_have() {
    for (label, launch) in launches() {
        for (name, binding) in launch.names.iter().zip(&launch.bindings) {
            let declared = launch.source.contains(&format!("> {name}: "));
            assert!(declared, "{label}: {name} of {binding:?} in\n{}", launch.source);
        }
    }
}

#[test]
fn guarded_kernels_look_before_they_do_anything() {
    let ty = [TensorType::f32(meganeura_core::Shape::new(&[70]).expect("a shape"))];
    let inputs = [ty[0].clone(), ty[0].clone()];
    let (name, attrs) = ("core.add", Attrs::new());
    let cx = CompileCx {
        skip_if: Some(BufferRef(9)),
        ..CompileCx::standalone(KernelDesc {
            name,
            version: 1,
            attrs: &attrs,
            inputs: &inputs,
            outputs: &ty,
        })
    };
    let mut made = compile(&cx).expect("a kernel");
    made.launches[0].guard().expect("a guard");
    let Launch {
        bindings,
        names,
        source,
        ..
    } = &made.launches[0];
    let load = source.find("b0[i]");
    for binding in [Binding::Guard, Binding::Memory(Memory::Buffer(BufferRef(9)))] {
        let at = bindings.iter().position(|b| *b == binding).expect("a binding");
        let guard = source.find(&format!("if ({}[0] != 0u)", names[at]));
        assert!(guard.is_some() && guard < load, "{binding:?} in {source}");
    }
}

/// Returns the maximum number of launches of the samples of an operator.
fn most_launches(name: &str) -> usize {
    let op = registry::op(name).expect("an operator");
    let counts = op.samples(&mut Sizes::new(0)).into_iter().filter_map(|sample| {
        let (inputs, outputs) = types(op, &sample, DType::F32)?;
        let cx = CompileCx::standalone(KernelDesc {
            name,
            version: op.version(),
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &outputs,
        });
        Some(compile(&cx).expect("a kernel").launches.len())
    });
    counts.max().expect("samples")
}

#[test]
fn losses_norms_and_attention_take_few_kernels() {
    for (name, most) in [
        ("core.softmax", 1),
        ("core.layer_norm", 1),
        ("core.cross_entropy", 2),
        ("core.rms_norm_grad", 3),
        ("core.layer_norm_grad", 3),
        ("core.rms_norm_matmul", 2),
        ("core.attention", 1),
        ("core.attention_grad", 3),
        ("optim.adam", 1),
    ] {
        let found = most_launches(name);
        assert!(found <= most, "{name} takes {found} launches");
    }
}

/// Creates a program from calls. Each call has an operator, attributes and operands.
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

fn tensor(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).expect("a shape"))
}

fn matmul() -> Attrs {
    Attrs::new().with("transpose_a", false).with("transpose_b", false)
}

/// Compiles a program.
fn compile_program(attrs: &Attrs, inputs: &[TensorType], output: TensorType) -> Result<Vec<Launch>, String> {
    let outputs = [output];
    let cx = CompileCx::standalone(KernelDesc {
        name: "core.fused",
        version: 1,
        attrs,
        inputs,
        outputs: &outputs,
    });
    compile(&cx).map(|made| made.launches)
}

#[test]
fn parts_of_half_precision_are_valid() {
    let sum = Attrs::new().with("axes", vec![0i64]).with("keep_dims", false);
    let cast = ("core.cast", Attrs::new().with("to", DType::F32), &[Slot::Step(0)][..]);
    let sum = program(1, &[("core.sum", sum, &[Slot::Operand(0)]), cast.clone()]);
    let operands = [Slot::Operand(0), Slot::Operand(1)];
    let product = program(2, &[("core.matmul", matmul(), &operands), cast]);
    for dtype in [DType::F16, DType::BF16] {
        let factors = [tensor(dtype, &[20, 4001]), tensor(dtype, &[4001, 24])];
        let made = [
            compile_program(&sum, &[tensor(dtype, &[300_001])], tensor(DType::F32, &[])),
            compile_program(&product, &factors, tensor(DType::F32, &[20, 24])),
        ];
        for launches in made {
            let launches = launches.expect("kernels");
            assert_eq!(launches.len(), 2, "it is cut into parts");
            for launch in &launches {
                validated("in parts", launch, Capabilities::empty());
            }
        }
    }
}

#[test]
fn what_a_dispatch_computes_on_the_way_is_counted() {
    // The first matmul has more elements than can be indexed with 32 bits.
    let first = [Slot::Operand(0), Slot::Operand(1)];
    let second = [Slot::Step(0), Slot::Operand(0)];
    let calls: [(&str, Attrs, &[Slot]); 2] = [("core.matmul", matmul(), &first), ("core.matmul", matmul(), &second)];
    let [tall, wide] = [[70_000, 16], [16, 70_000]].map(|dims| tensor(DType::F32, &dims));
    let made = compile_program(&program(2, &calls), &[tall.clone(), wide], tall);
    let reason = made.expect_err("too many elements");
    assert!(
        reason.contains("f32[70000, 70000] has more elements than a kernel can number"),
        "{reason}"
    );
}

/// Returns the attributes, operands and results of an attention, given the numbers of queries and keys, and the
/// number of heads, of key-value heads, and the head size.
fn attention(
    gradient: bool,
    [rows_q, rows_k]: [usize; 2],
    [heads, kv_heads, width]: [usize; 3],
) -> (Attrs, Vec<TensorType>, Vec<TensorType>) {
    let attrs = Attrs::new()
        .with("num_heads", heads)
        .with("num_kv_heads", kv_heads)
        .with("head_dim", width)
        .with("causal", true)
        .with("window", 0i64)
        .with("scale", 0.125);
    let q = tensor(DType::F32, &[rows_q, heads * width]);
    let kv = tensor(DType::F32, &[rows_k, kv_heads * width]);
    let rows = tensor(DType::F32, &[heads, rows_q]);
    let operands = vec![q.clone(), kv.clone(), kv.clone()];
    if gradient {
        (
            attrs,
            [operands, vec![rows.clone(), rows, q.clone()]].concat(),
            vec![q, kv.clone(), kv],
        )
    } else {
        (attrs, operands, vec![q, rows])
    }
}

/// Compiles an attention, with or without cooperative matrices, in the variants that the chooser selects.
fn try_attention(
    gradient: bool,
    rows: [usize; 2],
    heads: [usize; 3],
    coop: Option<CoopConfig>,
    choices: Option<&dyn ScheduleChooser>,
) -> Result<Compiled, String> {
    let (attrs, inputs, outputs) = attention(gradient, rows, heads);
    let name = if gradient {
        "core.attention_grad"
    } else {
        "core.attention"
    };
    compile(&CompileCx {
        coop,
        choices,
        ..CompileCx::standalone(KernelDesc {
            name,
            version: 1,
            attrs: &attrs,
            inputs: &inputs,
            outputs: &outputs,
        })
    })
}

/// Compiles an attention in the default variant.
fn compile_attention(gradient: bool, rows: [usize; 2], heads: [usize; 3], coop: Option<CoopConfig>) -> Compiled {
    try_attention(gradient, rows, heads, coop, None).expect("kernels")
}

#[test]
fn attention_of_all_widths_is_valid_and_translates() {
    for heads in [[2, 1, 3], [3, 3, 20], [64, 32, 64], [4, 1, 128], [1, 1, 256]] {
        for gradient in [false, true] {
            for launch in compile_attention(gradient, [300, 310], heads, None).launches {
                let label = format!("attention {gradient} of heads {heads:?}");
                translate(&label, &launch, Capabilities::empty());
            }
        }
    }
}

/// The forward pass needs no scratch. The backward pass stores one number for each element of the keys and values of
/// each query head.
#[test]
fn what_attention_keeps_grows_with_the_rows_only() {
    for gradient in [false, true] {
        let bytes = |rows: usize| -> usize {
            let made = compile_attention(gradient, [rows, rows], [4, 2, 32], None);
            made.scratch.iter().sum()
        };
        assert_eq!(bytes(4096), 2 * bytes(2048));
        assert_eq!(bytes(2048), if gradient { 2 * 4 * 2048 * 4 * 32 } else { 0 });
    }
}

#[test]
fn what_a_dispatch_keeps_on_the_way_fits_into_a_buffer() {
    // Attention of few queries to many keys is decomposed.
    let (attrs, inputs, outputs) = attention(false, [4, 2_500], [1, 1, 16]);
    let kernel = KernelDesc {
        name: "core.attention",
        version: 1,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    assert!(supports(&kernel, 1 << 20, None).is_ok_and(|compiled| compiled.launches.len() > 1));
    let reason = supports(&kernel, 39_999, None).expect_err("the scores");
    assert!(reason.contains("it needs 40000 bytes of scratch memory"), "{reason}");
}

#[test]
fn sums_of_many_elements_have_kernels() {
    let reduction = |shape: &[usize]| {
        let axes: Vec<i64> = (0..shape.len() as i64).collect();
        let attrs = Attrs::new().with("axes", axes).with("keep_dims", false);
        let [from, to] = [shape, &[]].map(|dims| tensor(DType::F32, dims));
        let kernel = KernelDesc {
            name: "core.sum",
            version: 1,
            attrs: &attrs,
            inputs: &[from],
            outputs: &[to],
        };
        supports(&kernel, u64::MAX, None).map(|compiled| compiled.launches.len())
    };
    // The logits of a language model have this size.
    assert_eq!(reduction(&[512, 49_152]), Ok(2), "parts, and what puts them together");
    let reason = reduction(&[1 << 16, 1 << 16]).expect_err("too many elements");
    assert!(reason.contains("can number"), "{reason}");
}

/// Returns the number of launches of a call.
fn launches_of(build: impl FnOnce(&mut Graph) -> meganeura_core::NodeId) -> u32 {
    each_launch(build).len() as u32
}

/// Returns the launches of a call. Operands and results are `f32`, except for indices.
fn each_launch(build: impl FnOnce(&mut Graph) -> meganeura_core::NodeId) -> Vec<Launch> {
    let mut g = Graph::new();
    let y = build(&mut g);
    let node = &g.nodes()[y.index()];
    let (op, attrs) = node.op().expect("a call");
    let inputs: Vec<TensorType> = node.inputs.iter().filter_map(|&v| g.ty(v).cloned()).collect();
    let kernel = KernelDesc {
        name: op.name(),
        version: op.version(),
        attrs,
        inputs: &inputs,
        outputs: &node.outputs,
    };
    supports(&kernel, u64::MAX, None).expect("a kernel").launches
}

/// Workgroups share the keys of a query, and another launch combines their results.
#[test]
fn keys_of_long_caches_are_shared() {
    let cached = |sequences: usize, capacity: usize, window: Option<u32>| {
        each_launch(|g| {
            let q = g.input("q", &[sequences, 1, 9 * 64]);
            let [k, v] = ["k", "v"].map(|name| g.input(name, &[sequences, capacity, 3 * 64]));
            let positions = g.input_u32("positions", &[sequences]);
            let options = AttentionOptions {
                window,
                ..AttentionOptions::new(9, 3, 64)
            };
            g.cached_attention_with(q, k, v, positions, options)
        })
    };
    let groups = |launches: &[Launch]| launches.iter().map(|l| l.groups[0] * l.groups[1]).collect::<Vec<_>>();
    assert_eq!(groups(&cached(1, 2047, None)), [9]);
    assert_eq!(groups(&cached(1, 8192, Some(500))), [9]);
    assert_eq!(groups(&cached(30, 8192, None)), [270], "enough without");
    for (sequences, capacity, window, shared) in [(1, 2048, None, 16), (1, 8192, None, 29), (16, 8192, Some(3000), 2)] {
        let launches = cached(sequences, capacity, window);
        let queries = 9 * sequences;
        let joining = (queries * 64 / 4).div_ceil(256);
        assert_eq!(groups(&launches), [queries * shared, joining].map(|n| n as u32));
        for launch in launches {
            translate("core.cached_attention", &launch, Capabilities::empty());
        }
    }
}

#[test]
fn scatters_of_many_updates_make_lists() {
    let scatter = |count: usize| {
        launches_of(|g| {
            let (ids, updates) = (g.input_u32("ids", &[count]), g.input("updates", &[count, 3]));
            g.scatter_add(updates, ids, 50)
        })
    };
    assert_eq!([scatter(32), scatter(33)], [1, 3]);
    assert_eq!(most_launches("core.put_along_axis"), 1);
}

#[test]
fn tables_of_constants_are_bound() {
    let rope = |rows: usize| {
        launches_of(|g| {
            let x = g.input("x", &[rows, 32]);
            g.rope(x, 1e4, 8)
        })
    };
    assert_eq!([1, 7].map(rope), [1, 1]);
}

/// One launch rotates a part of a larger result in place.
#[test]
fn rows_are_turned_where_they_are() {
    let part = Attrs::new()
        .with("axis", -1i64)
        .with("start", 8i64)
        .with("length", 32i64);
    let turned = Attrs::new()
        .with("theta", 1e4f32)
        .with("offset", 0i64)
        .with("head_dim", 8i64)
        .with("inverse", false);
    let attrs = program(
        1,
        &[
            ("core.narrow", part, &[Slot::Operand(0)]),
            ("core.rope", turned, &[Slot::Step(0)]),
        ],
    );
    for rows in [1, 7] {
        let launches = launches_of(|g| {
            let x = g.input("x", &[rows, 48]);
            let op = registry::op("core.fused").expect("an operator");
            g.call(op, attrs.clone(), vec![x.into()])
        });
        assert_eq!(launches, 1, "{rows} rows");
    }
}

#[test]
fn a_norm_and_a_product_of_one_row_are_one_launch() {
    let launches = |rows: usize| {
        launches_of(|g| {
            let inputs = [("x", vec![rows, 576]), ("weight", vec![576]), ("w", vec![576, 960])];
            let inputs = inputs.map(|(name, shape)| g.input(name, &shape).into()).to_vec();
            let op = registry::op("core.rms_norm_matmul");
            g.call(op.expect("an operator"), Attrs::new().with("eps", 1e-5), inputs)
        })
    };
    assert_eq!([1, 2].map(launches), [1, 2]);
}
