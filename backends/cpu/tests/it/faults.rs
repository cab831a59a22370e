//! Tests of calls at the limits that operators accept, and of steps that fail.

use std::sync::Arc;

use crate::common;
use meganeura_compiler::builder::Builder;
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::{Backend, Device, KernelDesc, Support};
use meganeura_core::config::Config;
use meganeura_core::ops::sample::{Fill, Sample, SampleInput, Sizes};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::plan::{compile_for, try_compile};
use meganeura_core::{DType, Error, Graph, Session, reference, registry};
use meganeura_cpu::{CpuBackend, CpuDevice};

use crate::common::{check, sample};

fn device(threads: usize) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(threads))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

// ---- indices outside of a table ---------------------------------------------------------------------

/// Returns a session of an embedding (two ids in a table of four rows), a layer and a mean. A state that is written
/// after them counts the steps.
fn embedding_model() -> Session {
    let mut graph = Graph::new();
    let ids = graph.input_u32("ids", &[2]);
    let table = graph.parameter("table", &[4, 3]);
    let weight = graph.parameter("weight", &[3, 5]);
    let rows = graph.gather(table, ids);
    let y = graph.matmul(rows, weight);
    let loss = graph.mean_all(y);
    let last = graph.state("last", &[]);
    graph.assign(last, loss);
    graph.set_outputs(vec![loss]);
    let (mut session, _) = Builder::on(device(2)).build(&graph).expect("a session");
    session.set_learning_rate(0.5);
    session.set_parameter("table", &[0.5; 12]);
    session.set_parameter("weight", &[0.25; 15]);
    session
}

#[test]
fn a_bad_id_changes_no_parameter() {
    let mut session = embedding_model();
    session.set_input_u32("ids", &[0, 1]);
    session.step();
    let state = |session: &mut Session| {
        let parameters = ["table", "weight"].map(|name| bits(&session.read_parameter(name)));
        (parameters, bits(&session.read_state("last")))
    };
    let before = state(&mut session);
    session.set_input_u32("ids", &[0, 9]);
    for _ in 0..2 {
        match session.try_step() {
            Err(Error::IndexOutOfRange { index: 9, rows: 4, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(state(&mut session), before);
    }
    // After the failure, the next valid step has the same results as in a session without a failure.
    let mut other = embedding_model();
    for ids in [[0, 1], [2, 3]] {
        other.set_input_u32("ids", &ids);
        other.step();
    }
    session.set_input_u32("ids", &[2, 3]);
    session.step();
    assert_eq!(state(&mut session), state(&mut other));
    assert_ne!(state(&mut session), before);
}

#[test]
fn a_bad_row_of_scatter_add_stops_the_step() {
    let mut graph = Graph::new();
    let ids = graph.input_u32("ids", &[3]);
    let updates = graph.input("updates", &[3, 2]);
    let sum = graph.scatter_add(updates, ids, 4);
    let state = graph.state("state", &[4, 2]);
    graph.assign(state, sum);
    graph.set_outputs(vec![sum]);
    let device = device(2);
    let plan = compile_for(&graph, &*device).expect("a plan");
    let mut session = Session::on(device, plan).expect("a session");
    session.try_set_state("state", &[7.0; 8]).expect("a state");
    session.set_input("updates", &[1.0; 6]);
    session.set_input_u32("ids", &[0, 4, 1]);
    match session.try_step() {
        Err(Error::IndexOutOfRange { index: 4, rows: 4, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(session.read_state("state"), [7.0; 8]);
    session.set_input_u32("ids", &[0, 3, 0]);
    session.step();
    assert_eq!(session.read_state("state"), [2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
}

// ---- tensors without elements -----------------------------------------------------------------------

/// Returns the sample with every dimension of size `size` set to zero, in one operand or in all.
fn emptied(sample: &Sample, size: usize, operand: Option<usize>) -> Sample {
    let mut sample = sample.clone();
    for (i, input) in sample.inputs.iter_mut().enumerate() {
        if operand.is_none_or(|o| o == i) {
            input.shape.iter_mut().filter(|d| **d == size).for_each(|d| *d = 0);
        }
    }
    let shapes: Vec<_> = sample.inputs.iter().map(|i| &i.shape).collect();
    sample.label = format!("{shapes:?} {}", sample.attrs);
    sample
}

/// Returns true if the operator accepts the call, the result is defined, and the device has a kernel for it.
fn possible(op: OpRef, sample: &Sample, device: &CpuDevice) -> bool {
    let inputs = sample.input_types().expect("shapes");
    let call = Call {
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &[],
    };
    let Ok(outputs) = op.infer(&call) else { return false };
    // Any index into an empty table is out of range.
    if let Some((operand, 0)) = op.index_bound(&call)
        && inputs[operand].numel() > 0
    {
        return false;
    }
    let desc = KernelDesc {
        name: op.name(),
        version: op.version(),
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    matches!(device.supports(&desc), Support::Yes)
}

/// Returns the sample with indices that are in range even if an emptied operand has fewer elements.
fn bounded(op: OpRef, mut sample: Sample) -> Sample {
    let inputs = sample.input_types().expect("shapes");
    let call = Call {
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &[],
    };
    if let Some((operand, bound)) = op.index_bound(&call)
        && let Fill::Below(below) = &mut sample.inputs[operand].fill
    {
        *below = (*below).min(bound as u32).max(1);
    }
    sample
}

/// Checks every second operator, beginning with `first`. At least `wanted` of them must accept tensors without
/// elements.
fn takes_tensors_without_elements(first: usize, wanted: usize) {
    let device = CpuDevice::new(1);
    let mut empty_calls = Vec::new();
    for op in registry::ops().into_iter().skip(first).step_by(2) {
        let mut count = 0;
        for sample in (0..3).flat_map(|seed| op.samples(&mut Sizes::new(seed))) {
            let mut sizes: Vec<usize> = sample.inputs.iter().flat_map(|i| i.shape.iter().copied()).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let operands = (0..sample.inputs.len()).map(Some);
            for operand in operands.chain([None]) {
                for &size in &sizes {
                    let empty = emptied(&sample, size, operand);
                    if possible(op, &empty, &device) {
                        check(op.name(), &bounded(op, empty), 1);
                        count += 1;
                    }
                }
            }
        }
        empty_calls.push((op.name(), count));
    }
    let covered = empty_calls.iter().filter(|(_, calls)| *calls > 0).count();
    assert!(
        covered > wanted,
        "{covered} operators take empty tensors: {empty_calls:?}"
    );
}

#[test]
fn every_kernel_takes_tensors_without_elements() {
    takes_tensors_without_elements(0, 30);
}

#[test]
fn every_other_kernel_takes_tensors_without_elements() {
    takes_tensors_without_elements(1, 30);
}

/// Operators accept attributes that specify a shape without elements.
#[test]
fn shapes_without_elements() {
    for dtype in [DType::F32, DType::F16, DType::U32] {
        let input = |shape: &[usize]| SampleInput::filled(dtype, shape, Fill::Below(5));
        let lists = |starts: [i64; 2], ends: [i64; 2]| {
            Attrs::new()
                .with("starts", starts.to_vec())
                .with("ends", ends.to_vec())
                .with("steps", vec![1i64, 2])
        };
        check("core.slice", &sample(vec![input(&[3, 5])], lists([3, 0], [3, 5])), 1);
        check("core.slice", &sample(vec![input(&[3, 5])], lists([0, 2], [3, 2])), 1);
        check("core.slice", &sample(vec![input(&[0, 5])], lists([0, 0], [0, 5])), 1);
        for (from, to) in [(vec![], vec![0]), (vec![1, 3], vec![0, 3]), (vec![3, 1], vec![2, 3, 0])] {
            let attrs = Attrs::new().with("shape", &to[..]);
            check("core.expand", &sample(vec![input(&from)], attrs), 1);
        }
        let widths = |name, value: i64| (name, vec![value; 2]);
        let mut attrs = Attrs::new().with("value", 2.0);
        for (name, value) in [widths("low", 1), widths("high", 2), widths("interior", 3)] {
            attrs = attrs.with(name, value);
        }
        check("core.pad", &sample(vec![input(&[0, 2])], attrs.clone()), 1);
        check("core.pad", &sample(vec![input(&[0, 0])], attrs), 1);
    }
    let scalars = vec![SampleInput::below(&[], 5); 2];
    let attrs = Attrs::new().with("shape", vec![3i64, 0]).with("uid", 1i64);
    check("core.random_bits", &sample(scalars, attrs), 1);
    let rows = vec![SampleInput::below(&[0], 1), SampleInput::f32(&[0, 3])];
    check(
        "core.scatter_add",
        &sample(rows, Attrs::new().with("rows", 4i64).with("axis", 0i64)),
        1,
    );
}

#[test]
fn reductions_of_nothing() {
    for dtype in [DType::F32, DType::U32, DType::I32] {
        for (shape, axes) in [
            (vec![0], vec![0]),
            (vec![3, 0], vec![1]),
            (vec![3, 0], vec![0]),
            (vec![0, 3], vec![0]),
            (vec![2, 0, 3], vec![0, 2]),
            (vec![2, 0, 3], vec![1]),
            (vec![2, 0, 3], vec![]),
            (vec![0, 4, 0, 5], vec![1, 3]),
        ] {
            for name in ["core.sum", "core.max_reduce", "core.mean"] {
                let input = SampleInput::filled(dtype, &shape, Fill::Below(5));
                let attrs = Attrs::new().with("axes", axes.clone()).with("keep_dims", false);
                let sample = sample(vec![input], attrs);
                if possible(common::op(name), &sample, &CpuDevice::new(1)) {
                    check(name, &sample, 1);
                }
            }
        }
    }
}

// ---- many dimensions --------------------------------------------------------------------------------

#[test]
fn twelve_dimensions() {
    let full = [2, 3, 2, 1, 2, 3, 2, 2, 3, 2, 1, 2];
    // Alternating axes of size 1 prevent neighbouring axes from being merged.
    let part = |odd: usize| -> Vec<usize> {
        let sizes = full.iter().enumerate();
        sizes.map(|(axis, &d)| if axis % 2 == odd { d } else { 1 }).collect()
    };
    let (even, odd) = (SampleInput::f32(&part(0)), SampleInput::f32(&part(1)));
    for name in ["core.add", "core.less_than", "core.max"] {
        check(name, &sample(vec![even.clone(), odd.clone()], Attrs::new()), 1);
    }
    let condition = SampleInput::below(&full, 2);
    check(
        "core.select",
        &sample(vec![condition, even.clone(), odd], Attrs::new()),
        1,
    );
    check(
        "core.expand",
        &sample(vec![even], Attrs::new().with("shape", &full[..])),
        1,
    );
    let whole = SampleInput::f32(&full);
    for axes in [
        [11i64, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
        [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10],
        [6, 0, 8, 2, 10, 4, 1, 11, 3, 9, 5, 7],
    ] {
        check(
            "core.permute",
            &sample(vec![whole.clone()], Attrs::new().with("axes", axes.to_vec())),
            1,
        );
    }
    for axes in [vec![0i64, 2, 4, 6, 8, 10], vec![1, 3, 5, 7, 9, 11], vec![5], vec![]] {
        for name in ["core.sum", "core.max_reduce", "core.mean"] {
            let attrs = Attrs::new().with("axes", axes.clone()).with("keep_dims", true);
            check(name, &sample(vec![whole.clone()], attrs), 1);
        }
        let integers = SampleInput::below(&full, 9);
        let attrs = Attrs::new().with("axes", axes).with("keep_dims", false);
        check("core.sum", &sample(vec![integers], attrs), 1);
    }
    let starts: Vec<i64> = full.iter().map(|&d| i64::from(d == 3)).collect();
    let ends: Vec<i64> = full.iter().map(|&d| d.min(2) as i64).collect();
    let attrs = Attrs::new()
        .with("starts", starts)
        .with("ends", ends)
        .with("steps", vec![1i64; 12]);
    check("core.slice", &sample(vec![whole.clone()], attrs), 1);
    let small = SampleInput::f32(&[2, 1, 2, 1, 2, 1, 2, 2, 1, 2, 1, 2]);
    let attrs = Attrs::new()
        .with("low", vec![0i64, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0])
        .with("high", vec![1i64, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1])
        .with("interior", vec![0i64, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0])
        .with("value", 0.5);
    check("core.pad", &sample(vec![small], attrs), 1);
    let attrs = Attrs::new().with("axis", 5i64);
    check("core.concat", &sample(vec![whole.clone(), whole], attrs), 1);
}

/// Long rows are cut into tasks correctly, even if no divisor of their length gives equal pieces.
#[test]
fn long_rows_are_cut() {
    let prime = 1_000_003;
    let x = SampleInput::f32(&[]);
    check(
        "core.expand",
        &sample(vec![x], Attrs::new().with("shape", &[prime][..])),
        1,
    );
    let attrs = Attrs::new()
        .with("starts", vec![2i64])
        .with("ends", &[prime][..])
        .with("steps", vec![3i64]);
    check("core.slice", &sample(vec![SampleInput::f32(&[prime])], attrs), 1);
    let parts = [100_003, 7].map(|len| SampleInput::f32(&[len])).to_vec();
    check("core.concat", &sample(parts, Attrs::new().with("axis", 0i64)), 1);
}

/// Any step is valid if at most one element is taken along the axis.
#[test]
fn steps_beyond_all_bounds() {
    let attrs = Attrs::new()
        .with("starts", vec![1i64, 0])
        .with("ends", vec![3i64, 5])
        .with("steps", vec![i64::MAX, 2]);
    check("core.slice", &sample(vec![SampleInput::f32(&[4, 5])], attrs), 1);
    let attrs = Attrs::new()
        .with("low", vec![1i64, 0])
        .with("high", vec![0i64, 0])
        .with("interior", vec![i64::MAX, 1])
        .with("value", 2.0);
    check("core.pad", &sample(vec![SampleInput::f32(&[1, 5])], attrs), 1);
}

// ---- buffers that operands share --------------------------------------------------------------------

/// Batch norm is correct if its operand, weight and bias are the running statistics that the call replaces.
#[test]
fn batch_norm_of_its_own_statistics() {
    let c = 700;
    let mut graph = Graph::new();
    let mean = graph.state("mean", &[c]);
    let variance = graph.state("variance", &[c]);
    let x = graph.reshape(mean, &[1, c]);
    let attrs = Attrs::new().with("eps", 1e-3).with("momentum", 0.25);
    let operands = [x, variance, mean, mean, variance].map(Into::into).to_vec();
    let y = graph.call(common::op("core.batch_norm"), attrs, operands);
    graph.set_outputs(vec![graph.port(y, 0), graph.port(y, 1), graph.port(y, 2)]);
    let values: Vec<f32> = (0..c).map(|i| i as f32 / 64.0 + 0.5).collect();
    let wide: Vec<f64> = values.iter().copied().map(f64::from).collect();
    let feeds = [("mean".to_owned(), wide.clone()), ("variance".to_owned(), wide)].into();
    let want = reference::evaluate(&graph, &feeds).expect("an evaluation");
    for threads in [1, 3] {
        let device = device(threads);
        let plan = compile_for(&graph, &*device).expect("a plan");
        let norm = plan.dispatches.iter().find(|d| d.kernel.name == "core.batch_norm");
        let norm = norm.expect("a normalisation");
        assert_eq!(norm.inputs[0].buffer, norm.outputs[1].buffer, "in place");
        let mut session = Session::on(device, plan).expect("a session");
        for name in ["mean", "variance"] {
            session.try_set_state(name, &values).expect("a state");
        }
        session.step();
        for (port, &value) in graph.outputs().iter().enumerate() {
            let mut got = vec![0.0; c];
            session.read_output_by_index(port, &mut got);
            for (got, want) in got.iter().zip(&want.get(value).expect("a result").data) {
                assert!((f64::from(*got) - want).abs() < 1e-4, "port {port}: {got}, not {want}");
            }
        }
    }
}

/// A plan is rejected if its learning rate is an element of the parameter, because tasks would see it change.
#[test]
fn a_rate_within_the_parameter_is_refused() {
    let mut graph = Graph::new();
    let p = graph.state("p", &[100_000]);
    let g = graph.input("g", &[100_000]);
    let [lr, decay] = ["lr", "decay"].map(|s| graph.input(s, &[]));
    let new = graph.sgd_update([p.into(), g.into()], [lr, decay]);
    graph.set_outputs(vec![new]);
    let device = device(2);
    let mut plan = compile_for(&graph, &*device).expect("a plan");
    assert!(device.compile(&plan).is_ok());
    let update = plan.dispatches.iter_mut().find(|d| d.kernel.name == "optim.sgd");
    let update = update.expect("an update");
    update.inputs[2].buffer = update.inputs[0].buffer;
    assert!(device.compile(&plan).is_err());
}

/// A plan for a device with more kernels is rejected, because this device would misinterpret the elements.
#[test]
fn a_plan_with_unsupported_types_is_refused() {
    let mut graph = Graph::new();
    let x = graph.input_typed("x", &[64], DType::F16);
    let y = graph.exp(x);
    graph.set_outputs(vec![y]);
    let plan = try_compile(&graph).expect("a plan");
    assert!(plan.verify().is_ok());
    let error = device(1).compile(&plan).err().expect("an error");
    assert!(error.to_string().contains("f16"), "{error}");
}

// ---- sessions that share threads --------------------------------------------------------------------

#[test]
fn sessions_on_two_threads_share_a_pool() {
    let config = Config::default();
    let devices = [0; 2].map(|index| CpuBackend.open(index, &config).expect("a device"));
    let run = |device: &Arc<dyn Device>, scale: f32| -> Vec<u32> {
        let mut graph = Graph::new();
        let x = graph.input("x", &[200, 300]);
        let w = graph.parameter("w", &[300, 100]);
        let y = graph.matmul(x, w);
        let y = graph.tanh(y);
        let loss = graph.mean_all(y);
        graph.set_outputs(vec![loss]);
        let (mut session, _) = Builder::on(device.clone()).build(&graph).expect("a session");
        session.set_learning_rate(scale);
        session.initialize_parameters(3);
        session.set_parameter("w", &vec![scale / 100.0; 30_000]);
        session.set_input("x", &vec![scale; 60_000]);
        (0..100).for_each(|_| session.step());
        bits(&session.read_parameter("w"))
    };
    let alone = [run(&devices[0], 0.5), run(&devices[1], 0.25)];
    let together = std::thread::scope(|scope| {
        let threads = [(0, 0.5), (1, 0.25)].map(|(d, scale)| {
            let device = &devices[d];
            scope.spawn(move || run(device, scale))
        });
        threads.map(|thread| thread.join().expect("a thread"))
    });
    assert_eq!(alone, together);
}
