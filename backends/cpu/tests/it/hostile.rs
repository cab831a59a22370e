//! Tests of randomly changed calls that are still accepted. Kernels agree with the definitions, for several numbers
//! of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{check, op, sample};
use crate::mutation::mutated;
use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::backend::{Device, KernelDesc, Support};
use meganeura_core::ops::sample::{Fill, Sample, SampleInput, Sizes};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Shape, TensorType, registry};
use meganeura_cpu::CpuDevice;

/// Returns true if the call is accepted, is small, and has a kernel. Reduces indices so that they are in range.
fn runnable(op: OpRef, sample: &mut Sample, device: &CpuDevice) -> bool {
    let Ok(inputs) = sample.input_types() else {
        return false;
    };
    if op.arity().check(inputs.len()).is_err() || op.writes().iter().any(|&(o, _)| !sample.inputs[o].state) {
        return false;
    }
    let call = Call {
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &[],
    };
    let Ok(outputs) = op.infer(&call) else { return false };
    let large = |t: &TensorType| t.numel() > 20_000 || t.shape.iter().any(|&d| d > 1 << 16);
    if inputs.iter().chain(&outputs).any(large) {
        return false;
    }
    if op
        .cost(&Call {
            outputs: &outputs,
            ..call
        })
        .flops
        > 2_000_000
    {
        return false;
    }
    if let Some((operand, bound)) = op.index_bound(&call) {
        if bound == 0 && inputs[operand].numel() > 0 {
            return false;
        }
        sample.inputs[operand].fill = Fill::Below(bound as u32);
    }
    // Every type can represent these numbers exactly.
    let mut operands = sample.inputs.iter_mut();
    for input in operands
        .by_ref()
        .filter(|i| i.dtype != DType::F32 && i.dtype != DType::U32)
    {
        input.fill = Fill::Below(5);
    }
    let half = |t: &TensorType| matches!(t.dtype, DType::F16 | DType::BF16);
    if inputs.iter().chain(&outputs).any(half) {
        sample.tolerance = 0.02;
    }
    let unfit = |attr: &Attr| matches!(attr, Attr::Float(v) if v.abs() > 1e30 || (*v != 0.0 && v.abs() < 1e-30));
    if sample.attrs.iter().any(|(_, attr)| unfit(attr)) {
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

#[test]
fn accepted_calls_run_as_defined() {
    let rounds: usize = std::env::var("HOSTILE_ROUNDS")
        .ok()
        .and_then(|r| r.parse().ok())
        .unwrap_or(6);
    let device = CpuDevice::new(1);
    let (mut failures, mut count) = (Vec::new(), 0);
    for op in registry::ops() {
        let mut rng = SplitMix64::new(23);
        let mut own = 0;
        for sample in op.samples(&mut Sizes::new(2)) {
            for _ in 0..rounds {
                let mut sample = mutated(&sample, &mut rng);
                if !runnable(op, &mut sample, &device) {
                    continue;
                }
                count += 1;
                if catch_unwind(AssertUnwindSafe(|| check(op.name(), &sample, 3))).is_err() && own < 6 {
                    own += 1;
                    failures.push(format!("{} {}", op.name(), sample.label));
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(count > 200, "only {count}");
}

fn pool(kernel: [i64; 2], stride: [i64; 2], padding: [i64; 2]) -> Attrs {
    Attrs::new()
        .with("kernel", kernel.to_vec())
        .with("stride", stride.to_vec())
        .with("padding", padding.to_vec())
}

#[test]
fn pools_with_one_window_take_any_stride() {
    for name in ["core.max_pool2d", "core.avg_pool2d"] {
        for stride in [[i64::MAX, 1], [1, i64::MAX], [i64::MAX; 2]] {
            let x = SampleInput::f32(&[2, 3, 5, 5]);
            check(name, &sample(vec![x], pool([5, 5], stride, [0, 0])), 1);
        }
    }
}

/// Convolutions with a single window accept strides far beyond the padded image.
#[test]
fn convolutions_with_one_window_take_any_stride() {
    let attrs = |stride: [u32; 2]| {
        Attrs::new()
            .with("stride", stride)
            .with("padding", [1u32, 0])
            .with("dilation", [1u32, 1])
    };
    for stride in [[u32::MAX, 1], [1, u32::MAX], [u32::MAX; 2]] {
        for groups in [1usize, 2] {
            let attrs = attrs(stride).with("groups", groups);
            let x = SampleInput::f32(&[1, 2, 2, 4]);
            let w = SampleInput::f32(&[2, 2 / groups, 3, 4]);
            check("core.conv2d", &sample(vec![x, w], attrs), 1);
        }
    }
}

/// Windows that padding makes larger than any memory are rejected, and no memory is reserved for them.
#[test]
fn windows_beyond_memory_are_refused() {
    for name in ["core.max_pool2d", "core.avg_pool2d"] {
        let shape = Shape::new(&[1, 1, 3, 3]).expect("a shape");
        let call = |attrs: &Attrs| {
            let inputs = [TensorType::f32(shape.clone())];
            op(name).infer(&Call {
                attrs,
                inputs: &inputs,
                outputs: &[],
            })
        };
        let message = call(&pool([1 << 40, 1], [1, 1], [1 << 39, 0])).expect_err("too large");
        assert!(message.contains("far larger than the image"), "{message}");
        assert!(call(&pool([9, 1], [1, 1], [3, 0])).is_ok());
    }
}
