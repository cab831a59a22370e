//! Elementwise kernels with broadcasting. Vector functions process rows of contiguous elements.

use meganeura_core::DType;
use meganeura_core::attrs::Attrs;

use super::strided::{Nest, RowDivision, broadcast_strides};
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_only, f32_or_integers, stream_nanos};
use crate::memory::View;
use crate::vmath::{self, Binary, Bits, Compare, Element, Int, IntBinary, Level, Operand, Unary};

// Each macro defines the kernels of a table. It also defines a function that returns the table's entry for an
// operator, which fused kernels use.

macro_rules! unary {
    ($($name:literal => $op:expr),* $(,)?) => {
        /// Kernels of unary float operators.
        pub(super) const UNARY: &[KernelDef] = &[$(KernelDef {
            name: $name,
            supports: f32_only,
            compile: |cx| {
                let make: fn(&Attrs) -> Result<Unary, String> = $op;
                unary(cx, make(cx.attrs())?)
            },
        }),*];

        /// Returns the float function of a unary operator.
        pub(super) fn unary_of(name: &str, attrs: &Attrs) -> Option<Result<Unary, String>> {
            let make: fn(&Attrs) -> Result<Unary, String> = match name {
                $($name => $op,)*
                _ => return None,
            };
            Some(make(attrs))
        }
    };
}

macro_rules! binary {
    ($($name:literal => $float:ident, $int:expr);* $(;)?) => {
        /// Kernels of binary operators, for floats and integers.
        pub(super) const BINARY: &[KernelDef] = &[$(KernelDef {
            name: $name,
            supports: f32_or_integers,
            compile: |cx| binary(cx, Binary::$float, $int),
        }),*];

        /// Returns the float function of a binary operator, and its integer function, if any.
        pub(super) fn binary_of(name: &str) -> Option<(Binary, Option<IntBinary>)> {
            match name {
                $($name => Some((Binary::$float, $int)),)*
                _ => None,
            }
        }
    };
}

macro_rules! compare {
    ($($name:literal => $op:ident),* $(,)?) => {
        /// Kernels of comparisons.
        pub(super) const COMPARE: &[KernelDef] = &[$(KernelDef {
            name: $name,
            supports: f32_or_integers,
            compile: |cx| compare(cx, Compare::$op),
        }),*];

        /// Returns the comparison of an operator.
        pub(super) fn compare_of(name: &str) -> Option<Compare> {
            match name {
                $($name => Some(Compare::$op),)*
                _ => None,
            }
        }
    };
}

macro_rules! bits {
    ($($name:literal => $op:ident, $second:expr);* $(;)?) => {
        /// Kernels of bitwise and logical operators on words.
        pub(super) const BITS: &[KernelDef] = &[$(KernelDef {
            name: $name,
            supports: f32_or_integers,
            compile: |cx| bits(cx, Bits::$op, $second),
        }),*];

        /// Returns the function of an operator on words, and its second operand if it is a constant.
        pub(super) fn bits_of(name: &str) -> Option<(Bits, Option<u32>)> {
            match name {
                $($name => Some((Bits::$op, $second)),)*
                _ => None,
            }
        }
    };
}

fn number(attrs: &Attrs, name: &str) -> Result<f32, String> {
    Ok(attrs.float(name)? as f32)
}

unary! {
    "core.log2" => |_| Ok(Unary::Log2),
    "core.exp2" => |_| Ok(Unary::Exp2),
    "core.sin" => |_| Ok(Unary::Sin),
    "core.reciprocal" => |_| Ok(Unary::Reciprocal),
    "core.sqrt" => |_| Ok(Unary::Sqrt),
    "core.exp" => |_| Ok(Unary::Exp),
    "core.log" => |_| Ok(Unary::Log),
    "core.rsqrt" => |_| Ok(Unary::Rsqrt),
    "core.square" => |_| Ok(Unary::Square),
    "core.tanh" => |_| Ok(Unary::Tanh),
    "core.sigmoid" => |_| Ok(Unary::Sigmoid),
    "core.relu" => |_| Ok(Unary::Relu),
    "core.leaky_relu" => |a| Ok(Unary::LeakyRelu(number(a, "negative_slope")?)),
    "core.softplus" => |_| Ok(Unary::Softplus),
    "core.silu" => |_| Ok(Unary::Silu),
    "core.erf" => |_| Ok(Unary::Erf),
    "core.gelu_tanh" => |_| Ok(Unary::GeluTanh),
    "core.gelu_erf" => |_| Ok(Unary::GeluErf),
    "core.gelu_tanh_derivative" => |_| Ok(Unary::GeluTanhDerivative),
    "core.gelu_erf_derivative" => |_| Ok(Unary::GeluErfDerivative),
    "core.cos" => |_| Ok(Unary::Cos),
    "core.expm1" => |_| Ok(Unary::Expm1),
    "core.log1p" => |_| Ok(Unary::Log1p),
    "core.elu" => |a| Ok(Unary::Elu(number(a, "alpha")?)),
    "core.hard_sigmoid" => |_| Ok(Unary::HardSigmoid),
    "core.hard_swish" => |_| Ok(Unary::HardSwish),
    "core.floor" => |_| Ok(Unary::Floor),
    "core.ceil" => |_| Ok(Unary::Ceil),
    "core.round" => |_| Ok(Unary::Round),
    "core.clamp" => |a| Ok(Unary::Clamp(number(a, "low")?, number(a, "high")?)),
}

/// Kernels of unary operators that also accept `i32`.
pub(super) const SIGNED: &[KernelDef] = &[
    KernelDef {
        name: "core.neg",
        supports: f32_or_integers,
        compile: |cx| signed(cx, Unary::Neg, i32::wrapping_neg),
    },
    KernelDef {
        name: "core.abs",
        supports: f32_or_integers,
        compile: |cx| signed(cx, Unary::Abs, i32::wrapping_abs),
    },
    KernelDef {
        name: "core.sign",
        supports: f32_or_integers,
        compile: |cx| signed(cx, Unary::Sign, i32::signum),
    },
];

binary! {
    "core.add" => Add, Some(IntBinary::Add);
    "core.sub" => Sub, Some(IntBinary::Sub);
    "core.mul" => Mul, Some(IntBinary::Mul);
    "core.div" => Div, Some(IntBinary::Div);
    "core.mod" => Mod, Some(IntBinary::Mod);
    "core.pow" => Pow, None;
    "core.max" => Max, Some(IntBinary::Max);
    "core.min" => Min, Some(IntBinary::Min);
}

bits! {
    "core.bit_and" => And, None;
    "core.bit_or" => Or, None;
    "core.bit_xor" => Xor, None;
    "core.shift_left" => ShiftLeft, None;
    "core.shift_right" => ShiftRight, None;
    "core.logical_and" => LogicalAnd, None;
    "core.logical_or" => LogicalOr, None;
    "core.logical_xor" => LogicalXor, None;
    "core.bit_not" => Xor, Some(u32::MAX);
}

compare! {
    "core.less_than" => Less,
    "core.less_equal" => LessEqual,
    "core.greater_than" => Greater,
    "core.greater_equal" => GreaterEqual,
    "core.equal" => Equal,
    "core.not_equal" => NotEqual,
}

/// Kernel of the logical not.
pub(super) const LOGICAL_NOT: &[KernelDef] = &[KernelDef {
    name: "core.logical_not",
    supports: f32_or_integers,
    compile: logical_not,
}];

/// Kernel of `select`, which selects between two operands.
pub(super) const SELECT: &[KernelDef] = &[KernelDef {
    name: "core.select",
    supports: f32_or_integers,
    compile: |cx| match cx.output_type(0).dtype {
        DType::F32 => select::<f32>(cx),
        DType::U32 => select::<u32>(cx),
        _ => select::<i32>(cx),
    },
}];

fn unary(cx: &CompileCx, op: Unary) -> Result<Compiled, String> {
    let level = cx.level;
    let cost = match op {
        Unary::Neg | Unary::Abs | Unary::Square | Unary::Relu | Unary::LeakyRelu(_) | Unary::Clamp(..) => 1,
        Unary::HardSigmoid | Unary::HardSwish => 1,
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Sign => 1,
        _ => 8,
    };
    rows(cx, cost, [cx.input::<f32>(0)], move |[x], out| match x {
        Operand::Slice(x) => vmath::unary(op, level, x, out),
        Operand::Scalar(x) => {
            out.fill(x);
            vmath::unary_in_place(op, level, out);
        }
    })
}

fn signed(cx: &CompileCx, op: Unary, int: fn(i32) -> i32) -> Result<Compiled, String> {
    if cx.output_type(0).dtype == DType::F32 {
        return unary(cx, op);
    }
    rows(cx, 1, [cx.input::<i32>(0)], move |[x], out: &mut [i32]| match x {
        Operand::Slice(x) => out.iter_mut().zip(x).for_each(|(o, &x)| *o = int(x)),
        Operand::Scalar(x) => out.fill(int(x)),
    })
}

fn binary(cx: &CompileCx, op: Binary, int: Option<IntBinary>) -> Result<Compiled, String> {
    let level = cx.level;
    match (cx.output_type(0).dtype, int) {
        (DType::U32, Some(op)) => binary_int::<u32>(cx, op, level),
        (DType::I32, Some(op)) => binary_int::<i32>(cx, op, level),
        (DType::F32, _) => {
            let operands = [cx.input::<f32>(0), cx.input::<f32>(1)];
            let cost = if matches!(op, Binary::Pow | Binary::Mod) { 24 } else { 1 };
            rows(cx, cost, operands, move |[a, b], out| {
                vmath::binary(op, level, a, b, out)
            })
        }
        (dtype, _) => Err(format!("is not defined on {dtype}")),
    }
}

fn binary_int<T: Int + Send + Sync>(cx: &CompileCx, op: IntBinary, level: Level) -> Result<Compiled, String> {
    let operands = [cx.input::<T>(0), cx.input::<T>(1)];
    rows(cx, 2, operands, move |[a, b], out| {
        vmath::binary_int(op, level, a, b, out)
    })
}

/// Compiles a function of words. Operators with one operand use the constant `second`. Signed integers have the same
/// bits as unsigned ones.
fn bits(cx: &CompileCx, op: Bits, second: Option<u32>) -> Result<Compiled, String> {
    let level = cx.level;
    let a = cx.input::<u32>(0);
    match second {
        Some(b) => rows(cx, 1, [a], move |[a], out| {
            vmath::bits(op, level, a, Operand::Scalar(b), out);
        }),
        None => rows(cx, 1, [a, cx.input::<u32>(1)], move |[a, b], out| {
            vmath::bits(op, level, a, b, out);
        }),
    }
}

/// Compiles a kernel that writes 1 for words that are 0, and 0 for all other words.
fn logical_not(cx: &CompileCx) -> Result<Compiled, String> {
    let level = cx.level;
    rows(cx, 1, [cx.input::<u32>(0)], move |[x], out| {
        vmath::compare_int(Compare::Equal, level, x, Operand::Scalar(0), out);
    })
}

fn compare(cx: &CompileCx, op: Compare) -> Result<Compiled, String> {
    let level = cx.level;
    match cx.input_type(0).dtype {
        DType::F32 => {
            let operands = [cx.input::<f32>(0), cx.input::<f32>(1)];
            rows(cx, 1, operands, move |[a, b], out| vmath::compare(op, level, a, b, out))
        }
        DType::U32 => compare_int::<u32>(cx, op, level),
        _ => compare_int::<i32>(cx, op, level),
    }
}

fn compare_int<T: Int + Send + Sync>(cx: &CompileCx, op: Compare, level: Level) -> Result<Compiled, String> {
    let operands = [cx.input::<T>(0), cx.input::<T>(1)];
    rows(cx, 1, operands, move |[a, b], out| {
        vmath::compare_int(op, level, a, b, out)
    })
}

/// Compiles a kernel that applies `work` to rows of `N` operands of one type.
fn rows<T, U, const N: usize>(
    cx: &CompileCx,
    cost: u64,
    operands: [View<T>; N],
    work: impl Fn([Operand<T>; N], &mut [U]) + Send + Sync + 'static,
) -> Result<Compiled, String>
where
    T: Element + Send + Sync,
    U: Send + Sync + 'static,
{
    let shape = cx.output_type(0).shape.dims();
    let strides = std::array::from_fn(|i| broadcast_strides(&cx.input_type(i).shape, shape));
    let nest: Nest<N> = Nest::collapsed(shape, strides);
    let out = cx.output::<U>(0);
    let split = RowDivision::new(&nest);
    let bytes = size_of::<T>() * operands.iter().map(View::len).sum::<usize>() + size_of::<U>() * out.len();
    Ok(Compiled::one(Task {
        tasks: split.tasks(),
        nanos: stream_nanos(bytes).max(out.len() as u64 * cost / 8),
        body: move |task: usize, _: &RunCx| {
            let (range, piece) = split.part(task);
            nest.for_rows(range, |row, offsets| {
                // SAFETY: only this task accesses these elements of the result, which shares no buffer with an
                // operand. No task writes an operand.
                unsafe {
                    let inputs =
                        std::array::from_fn(|i| row_operand(operands[i], offsets[i], nest.inner_stride(i), &piece));
                    let start = row * nest.inner();
                    work(inputs, out.slice_mut(start + piece.start..start + piece.end));
                }
            });
        },
    }))
}

/// Returns the part `piece` of an operand's row that begins at `offset`. Operands are dense and broadcast, so the
/// innermost stride is 1, or 0 if a single element is repeated.
///
/// # Safety
/// As [`View::slice`].
unsafe fn row_operand<'a, T: Element>(
    view: View<T>,
    offset: isize,
    stride: isize,
    piece: &std::ops::Range<usize>,
) -> Operand<'a, T> {
    let start = offset as usize;
    // SAFETY: forwarded.
    unsafe {
        if stride == 0 {
            Operand::Scalar(view.slice(start..start + 1)[0])
        } else {
            Operand::Slice(view.slice(start + piece.start..start + piece.end))
        }
    }
}

fn select<T: Element + Send + Sync>(cx: &CompileCx) -> Result<Compiled, String> {
    let level = cx.level;
    let shape = cx.output_type(0).shape.dims();
    let strides = std::array::from_fn(|i| broadcast_strides(&cx.input_type(i).shape, shape));
    let nest: Nest<3> = Nest::collapsed(shape, strides);
    let (condition, a, b) = (cx.input::<u32>(0), cx.input::<T>(1), cx.input::<T>(2));
    let out = cx.output::<T>(0);
    let split = RowDivision::new(&nest);
    Ok(Compiled::one(Task {
        tasks: split.tasks(),
        nanos: stream_nanos(4 * (condition.len() + a.len() + b.len() + out.len())),
        body: move |task: usize, _: &RunCx| {
            let (range, piece) = split.part(task);
            nest.for_rows(range, |row, [co, ao, bo]| {
                // SAFETY: as in `rows`.
                unsafe {
                    let c = row_operand(condition, co, nest.inner_stride(0), &piece);
                    let a = row_operand(a, ao, nest.inner_stride(1), &piece);
                    let b = row_operand(b, bo, nest.inner_stride(2), &piece);
                    let start = row * nest.inner();
                    vmath::select(level, c, a, b, out.slice_mut(start + piece.start..start + piece.end));
                }
            });
        },
    }))
}
