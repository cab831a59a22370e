//! Kernels that convert between element types.

use half::{bf16, f16};
use meganeura_core::DType;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, any_dtype, chunk, chunks, stream_nanos};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.cast",
    supports: any_dtype,
    compile,
}];

/// A storage type. Its values are converted by way of types that represent all of them exactly.
trait Storage: Copy + Send + Sync + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(v: f32) -> Self;
}

impl Storage for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(v: f32) -> Self {
        v
    }
}

impl Storage for f16 {
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(v: f32) -> Self {
        f16::from_f32(v)
    }
}

impl Storage for bf16 {
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(v: f32) -> Self {
        bf16::from_f32(v)
    }
}

// Conversions of integers to f32 round to nearest. Conversions from f32 truncate and saturate.
impl Storage for u32 {
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn from_f32(v: f32) -> Self {
        v as u32
    }
}

impl Storage for i32 {
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn from_f32(v: f32) -> Self {
        v as i32
    }
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    match cx.input_type(0).dtype {
        DType::F32 => from::<f32>(cx),
        DType::F16 => from::<f16>(cx),
        DType::BF16 => from::<bf16>(cx),
        DType::U32 => from::<u32>(cx),
        DType::I32 => from::<i32>(cx),
        other => Err(format!("{other} has no cast")),
    }
}

fn from<S: Storage>(cx: &CompileCx) -> Result<Compiled, String> {
    match (cx.input_type(0).dtype, cx.output_type(0).dtype) {
        // The words stay the same: integers wrap, and equal types are copied.
        (DType::U32 | DType::I32, DType::U32 | DType::I32) | (DType::F32, DType::F32) => convert::<u32, u32>(cx, |v| v),
        (_, DType::F32) => convert::<S, f32>(cx, S::to_f32),
        (_, DType::F16) => convert::<S, f16>(cx, |v| f16::from_f32(v.to_f32())),
        (_, DType::BF16) => convert::<S, bf16>(cx, |v| bf16::from_f32(v.to_f32())),
        (_, DType::U32) => convert::<S, u32>(cx, |v| u32::from_f32(v.to_f32())),
        (_, DType::I32) => convert::<S, i32>(cx, |v| i32::from_f32(v.to_f32())),
        (_, other) => Err(format!("{other} has no cast")),
    }
}

fn convert<S: Storage, T: Storage>(cx: &CompileCx, f: fn(S) -> T) -> Result<Compiled, String> {
    let (x, y) = (cx.input::<S>(0), cx.output::<T>(0));
    let bytes = x.len() * (size_of::<S>() + size_of::<T>());
    Ok(Compiled::one(Task {
        tasks: chunks(y.len()),
        nanos: stream_nanos(bytes).max(y.len() as u64 / 2),
        body: move |task: usize, _: &RunCx| {
            let range = chunk(y.len(), task);
            // SAFETY: only this task writes its chunk, and the operand is in another buffer.
            let (x, y) = unsafe { (x.slice(range.clone()), y.slice_mut(range)) };
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x));
        },
    }))
}
