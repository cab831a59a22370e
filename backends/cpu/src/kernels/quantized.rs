//! Kernels of matmuls with quantised or `f16` weights, and of the expansion of such weights.

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{Call, QuantizedDims};
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, TensorType};

use crate::gemm::{PackedGemm, Rows, Storage};
use crate::kernel::{CompileCx, Compiled, Kernel, KernelDef, OrderFn, RunCx, Task, rows_per_task, stream_nanos};
use crate::memory::View;
use crate::order::Order;
use crate::prefetch::Prefetch;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.dequantize",
        supports: |k| has_halves(&k.inputs[1]),
        compile: dequantize,
    },
    KernelDef {
        name: "core.quantized_matmul",
        supports: |k: &KernelDesc| {
            let call = Call {
                attrs: k.attrs,
                inputs: k.inputs,
                outputs: k.outputs,
            };
            let weight = QuantizedDims::of(&call)?.format.map_or(1, |_| 2);
            has_halves(&k.inputs[weight])
        },
        compile: matmul,
    },
];

/// Storage orders of numbers and scales: the panels with which matmuls are fastest.
pub(super) const ORDER: (&str, OrderFn) = ("core.quantized_matmul", |call, i| {
    let panels = QuantizedDims::of(call)
        .ok()
        .and_then(|d| PackedGemm::panels([d.n, d.k], Storage::Blocks(d.format?)));
    let panels = panels.and_then(|panels| panels.get(i.checked_sub(1)?).copied());
    panels.map_or(Order::Plain, Order::Panels)
});

/// Checks that an operand (`f16` weights, or scales) is `f16`.
fn has_halves(ty: &TensorType) -> Result<(), String> {
    match ty.dtype {
        DType::F16 => Ok(()),
        other => Err(format!("expected weights and scales in f16, found {other}")),
    }
}

/// Expected number of floating-point operations per nanosecond of one thread.
const FLOPS_PER_NANO: u64 = 40;

fn matmul(cx: &CompileCx) -> Result<Compiled, String> {
    let QuantizedDims { m, n, k, format } = QuantizedDims::of(&cx.call())?;
    let storage = format.map_or(Storage::F16, Storage::Blocks);
    // Scales are in panels if the numbers are.
    let gemm = PackedGemm::new([m, n, k], storage, cx.panels(1).is_some());
    let (x, y): (View<f32>, View<f32>) = (cx.input(0), cx.output(0));
    let (numbers, scales): (View<u8>, View<u16>) = match format {
        Some(_) => (cx.input(1), cx.input(2)),
        None => (cx.input(1), cx.input(1)),
    };
    let bytes: usize = cx.call().inputs.iter().map(TensorType::bytes).sum();
    let mut phases: Vec<Box<dyn Kernel>> = Vec::new();
    let (shared, private) = (gemm.shared_len(), gemm.worker_len());
    if gemm.preparations() > 0 {
        let gemm = gemm.clone();
        phases.push(Box::new(Task {
            tasks: gemm.preparations(),
            nanos: stream_nanos(x.len() * size_of::<f32>()),
            // SAFETY: the view has the size of the call. The scratch has the requested size and is aligned, and no
            // other code uses it.
            body: move |task: usize, run: &RunCx| unsafe { gemm.prepare(task, x.as_ptr(), run.shared) },
        }));
    }
    phases.push(Box::new(Matmul {
        nanos: stream_nanos(bytes).max(gemm.flops() / FLOPS_PER_NANO),
        gemm,
        x,
        numbers,
        scales,
        k,
        y,
    }));
    Ok(Compiled {
        phases,
        shared,
        private,
    })
}

/// The phase that multiplies, after the rows have been prepared.
struct Matmul {
    gemm: PackedGemm,
    nanos: u64,
    x: View<f32>,
    numbers: View<u8>,
    scales: View<u16>,
    k: usize,
    y: View<f32>,
}

impl Matmul {
    fn weights(&self) -> Rows {
        Rows {
            numbers: self.numbers.as_ptr(),
            scales: self.scales.as_ptr(),
            k: self.k,
        }
    }
}

impl Kernel for Matmul {
    fn tasks(&self) -> usize {
        self.gemm.tasks()
    }

    fn nanos(&self) -> u64 {
        self.nanos
    }

    unsafe fn run(&self, task: usize, run: &RunCx) {
        let (x, y) = (self.x.as_ptr(), self.y.as_ptr());
        // SAFETY: views of operands have the sizes of the call, and are not written. Each task writes a separate part
        // of the result. The scratch has the requested size, and the previous phase has prepared the shared scratch.
        unsafe { self.gemm.run(task, x, self.weights(), y, [run.shared, run.private]) };
    }

    fn reads(&self, task: usize, prefetch: &mut Prefetch) {
        self.gemm.reads(task, self.weights(), prefetch);
    }
}

fn dequantize(cx: &CompileCx) -> Result<Compiled, String> {
    let (words, scales, y): (View<u8>, View<u16>, View<f32>) = (cx.input(0), cx.input(1), cx.output(0));
    let [of_words, of_scales] = [0, 1].map(|i| cx.input_type(i).numel());
    if of_scales == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    let format = BlockFormat::of(of_words, of_scales).ok_or("no format has this number of words and scales")?;
    let blocks = of_scales / format.scales();
    let per_task = rows_per_task(BLOCK);
    let storage = Storage::Blocks(format);
    let gemm = PackedGemm::new([1, blocks, BLOCK], storage, false);
    Ok(Compiled::one(Task {
        tasks: blocks.div_ceil(per_task),
        nanos: stream_nanos(y.len() * size_of::<f32>()),
        body: move |task: usize, _: &RunCx| {
            let weights = Rows {
                numbers: words.as_ptr(),
                scales: scales.as_ptr(),
                k: BLOCK,
            };
            for block in task * per_task..blocks.min((task + 1) * per_task) {
                // SAFETY: operands and result have this block, and only this task writes it.
                unsafe { gemm.expand(weights, block, y.as_ptr().add(block * BLOCK)) };
            }
        },
    }))
}
