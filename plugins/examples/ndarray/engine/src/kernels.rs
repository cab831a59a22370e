//! Execution of a dispatch: arithmetic, reductions and products are here, other kernels in their own modules.

use meganeura_plugin_abi::view::{DType, DispatchView, Value};
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayD, ArrayViewD, Axis, IxDyn, Zip};

use crate::tensor::{Data, Element, elements, view};
use crate::{indexed, moves, windows};

/// Operators with a kernel in this module; `true` if the kernel supports integers.
const KERNELS: &[(&str, bool)] = &[
    ("core.log2", false),
    ("core.exp2", false),
    ("core.sin", false),
    ("core.reciprocal", false),
    ("core.sqrt", false),
    ("core.pow", false),
    ("core.add", true),
    ("core.mul", true),
    ("core.mod", true),
    ("core.div", true),
    ("core.less_than", true),
    ("core.equal", true),
    ("core.select", true),
    ("core.cast", true),
    ("core.bit_and", true),
    ("core.shift_left", true),
    ("core.shift_right", true),
    ("core.sum", true),
    ("core.max_reduce", true),
    ("core.matmul", false),
    ("core.reshape", true),
    ("core.stop_gradient", true),
    ("core.assign", true),
    ("core.permute", true),
    ("core.expand", true),
    ("core.slice", true),
    ("core.pad", true),
    ("core.concat", true),
    ("core.gather", true),
    ("core.scatter_add", true),
    ("core.scatter", true),
    ("core.take_along_axis", true),
    ("core.put_along_axis", true),
    ("core.argmax", true),
    ("core.top_k", true),
    ("core.random_bits", true),
    ("core.conv2d", false),
    ("core.conv2d_input_grad", false),
    ("core.conv2d_weight_grad", false),
    ("core.max_pool2d", false),
    ("core.avg_pool2d", false),
    ("core.avg_pool2d_grad", false),
];

/// Returns an error with the reason if there is no kernel for a call.
pub fn supports(call: &DispatchView) -> Result<(), String> {
    if !KERNELS.iter().any(|(name, _)| *name == call.kernel) || call.version != 1 {
        return Err(format!("ndarray has no {} of version {}", call.kernel, call.version));
    }
    // Conversions and operators that only move elements also support two-byte types.
    let moves_only = moves::is_move(&call.kernel) || call.kernel == "core.cast";
    let mut operands = call.inputs.iter().chain(&call.outputs);
    if !moves_only && operands.any(|o| matches!(o.dtype, DType::F16 | DType::BF16)) {
        return Err("ndarray computes in f32".into());
    }
    Ok(())
}

/// Context of a kernel: operands by index, and attributes.
pub struct Cx<'a> {
    pub dispatch: &'a DispatchView,
    buffers: &'a [Data],
}

impl<'a> Cx<'a> {
    pub fn data(&self, i: usize) -> &'a Data {
        &self.buffers[self.dispatch.inputs[i].buffer as usize]
    }

    /// Returns operand `i` as an array.
    pub fn array<T: Element>(&self, i: usize) -> Result<ArrayViewD<'a, T>, String> {
        view(T::of(self.data(i))?, &self.dispatch.inputs[i])
    }

    pub fn ints(&self, name: &str) -> Result<Vec<i64>, String> {
        let found = self.dispatch.ints(name);
        found
            .map(<[i64]>::to_vec)
            .ok_or_else(|| format!("there is no attribute {name}"))
    }

    pub fn int(&self, name: &str) -> Result<i64, String> {
        self.dispatch
            .int(name)
            .ok_or_else(|| format!("there is no attribute {name}"))
    }

    /// Returns the attribute `axis` as an index, for a tensor with `rank` axes.
    pub fn axis(&self, rank: usize) -> Result<usize, String> {
        let axis = self.int("axis")?;
        Ok(if axis < 0 { axis + rank as i64 } else { axis } as usize)
    }

    pub fn dims(&self) -> IxDyn {
        IxDyn(&self.dispatch.outputs[0].dims)
    }
}

/// Runs a dispatch and returns the elements of its results.
pub fn run(dispatch: &DispatchView, buffers: &[Data]) -> Result<Vec<Data>, String> {
    let cx = Cx { dispatch, buffers };
    let one = |data: Data| vec![data];
    Ok(match dispatch.kernel.as_str() {
        "core.select" => one(select(&cx)?),
        "core.cast" => one(cast(&cx)?),
        "core.sum" => one(sum(&cx)?),
        "core.max_reduce" => one(max_reduce(&cx)?),
        "core.matmul" => one(matmul(&cx)?),
        "core.log2" | "core.exp2" | "core.sin" | "core.reciprocal" | "core.sqrt" => one(unary(&cx)?),
        kernel if moves::is_move(kernel) => one(moves::run(&cx)?),
        kernel if windows::is_window(kernel) => windows::run(&cx)?,
        kernel if indexed::is_indexed(kernel) => indexed::run(&cx)?,
        _ => one(binary(&cx)?),
    })
}

fn unary(cx: &Cx) -> Result<Data, String> {
    let f: fn(f32) -> f32 = match cx.dispatch.kernel.as_str() {
        "core.log2" => f32::log2,
        "core.exp2" => f32::exp2,
        "core.sin" => |v| f64::from(v).sin() as f32,
        "core.reciprocal" => f32::recip,
        _ => f32::sqrt,
    };
    Ok(Data::F32(elements(cx.array::<f32>(0)?.mapv(f))))
}

/// Combines two arrays of broadcastable shapes, element by element.
fn zip<T: Copy, R: Copy + Default>(
    a: &ArrayViewD<T>,
    b: &ArrayViewD<T>,
    dims: IxDyn,
    f: impl Fn(T, T) -> R,
) -> Result<Vec<R>, String> {
    const SHAPES: &str = "shapes that do not broadcast";
    let (a, b) = (
        a.broadcast(dims.clone()).ok_or(SHAPES)?,
        b.broadcast(dims.clone()).ok_or(SHAPES)?,
    );
    let mut out = ArrayD::default(dims);
    Zip::from(&mut out).and(a).and(b).for_each(|out, a, b| *out = f(*a, *b));
    Ok(elements(out))
}

fn binary(cx: &Cx) -> Result<Data, String> {
    let (kernel, dims) = (cx.dispatch.kernel.as_str(), cx.dims());
    let [x, y] = &cx.dispatch.inputs[..] else {
        return Err("it takes two operands".into());
    };
    match (cx.data(0), cx.data(1)) {
        (Data::F32(a), Data::F32(b)) => {
            let (a, b) = (view(a, x)?, view(b, y)?);
            let f: fn(f32, f32) -> f32 = match kernel {
                "core.less_than" => return Ok(Data::U32(zip(&a, &b, dims, |a, b| u32::from(a < b))?)),
                "core.equal" => return Ok(Data::U32(zip(&a, &b, dims, |a, b| u32::from(a == b))?)),
                "core.add" => |a, b| a + b,
                "core.mul" => |a, b| a * b,
                "core.div" => |a, b| a / b,
                "core.pow" => f32::powf,
                "core.mod" => modulo,
                other => return Err(format!("{other} takes integers")),
            };
            Ok(Data::F32(zip(&a, &b, dims, f)?))
        }
        (Data::U32(a), Data::U32(b)) => {
            let (a, b) = (view(a, x)?, view(b, y)?);
            let f: fn(u32, u32) -> u32 = match kernel {
                "core.less_than" => |a, b| u32::from(a < b),
                "core.equal" => |a, b| u32::from(a == b),
                "core.add" => u32::wrapping_add,
                "core.mul" => u32::wrapping_mul,
                "core.div" => |a, b| a.checked_div(b).unwrap_or(0),
                "core.mod" => |a, b| a.checked_rem(b).unwrap_or(0),
                "core.bit_and" => |a, b| a & b,
                "core.shift_left" => |a, b| a.checked_shl(b).unwrap_or(0),
                "core.shift_right" => |a, b| a.checked_shr(b).unwrap_or(0),
                other => return Err(format!("{other} takes floats")),
            };
            Ok(Data::U32(zip(&a, &b, dims, f)?))
        }
        (Data::I32(a), Data::I32(b)) => {
            let (a, b) = (view(a, x)?, view(b, y)?);
            let f: fn(i32, i32) -> i32 = match kernel {
                "core.less_than" => return Ok(Data::U32(zip(&a, &b, dims, |a, b| u32::from(a < b))?)),
                "core.equal" => return Ok(Data::U32(zip(&a, &b, dims, |a, b| u32::from(a == b))?)),
                "core.add" => i32::wrapping_add,
                "core.mul" => i32::wrapping_mul,
                "core.div" => |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
                "core.mod" => |a, b| {
                    if b == 0 {
                        0
                    } else {
                        (i64::from(a).rem_euclid(b.into()) + fix(a, b)) as i32
                    }
                },
                "core.bit_and" => |a, b| a & b,
                other => return Err(format!("{other} does not take i32")),
            };
            Ok(Data::I32(zip(&a, &b, dims, f)?))
        }
        _ => Err("its operands have different types".into()),
    }
}

/// Returns the number to add to a Euclidean remainder to give it the sign of the divisor.
fn fix(a: i32, b: i32) -> i64 {
    if b < 0 && i64::from(a).rem_euclid(b.into()) != 0 {
        b.into()
    } else {
        0
    }
}

fn modulo(a: f32, b: f32) -> f32 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

fn select(cx: &Cx) -> Result<Data, String> {
    fn choose<T: Element>(cx: &Cx) -> Result<Vec<T>, String> {
        const SHAPES: &str = "shapes that do not broadcast";
        let (dims, condition) = (cx.dims(), cx.array::<u32>(0)?);
        let (a, b) = (cx.array::<T>(1)?, cx.array::<T>(2)?);
        let condition = condition.broadcast(dims.clone()).ok_or(SHAPES)?;
        let (a, b) = (
            a.broadcast(dims.clone()).ok_or(SHAPES)?,
            b.broadcast(dims.clone()).ok_or(SHAPES)?,
        );
        let mut out = ArrayD::default(dims);
        let zipped = Zip::from(&mut out).and(condition).and(a).and(b);
        zipped.for_each(|out, c, a, b| *out = if *c != 0 { *a } else { *b });
        Ok(elements(out))
    }
    Ok(match cx.data(1) {
        Data::F32(_) => Data::F32(choose(cx)?),
        Data::U32(_) => Data::U32(choose(cx)?),
        Data::I32(_) => Data::I32(choose(cx)?),
        Data::Half(_) => return Err("ndarray computes in f32".into()),
    })
}

fn cast(cx: &Cx) -> Result<Data, String> {
    use half::{bf16, f16};
    let Some(Value::DType(to)) = cx.dispatch.attribute("to") else {
        return Err("there is no attribute to".into());
    };
    let (from, count) = (cx.dispatch.inputs[0].dtype, cx.dispatch.inputs[0].elements());
    let halves = |v: &[f32]| -> Data {
        let bf = *to == DType::BF16;
        Data::Half(
            v.iter()
                .map(|&v| {
                    if bf {
                        bf16::from_f32(v).to_bits()
                    } else {
                        f16::from_f32(v).to_bits()
                    }
                })
                .collect(),
        )
    };
    let of_floats = |v: &[f32]| match to {
        DType::F32 => Data::F32(v.to_vec()),
        DType::U32 => Data::U32(v.iter().map(|&v| v as u32).collect()),
        DType::I32 => Data::I32(v.iter().map(|&v| v as i32).collect()),
        DType::F16 | DType::BF16 => halves(v),
    };
    // Integers are rounded once.
    let of_integers = |v: &mut dyn Iterator<Item = i64>| match to {
        DType::F32 => Data::F32(v.map(|v| v as f32).collect()),
        DType::U32 => Data::U32(v.map(|v| v as u32).collect()),
        DType::I32 => Data::I32(v.map(|v| v as i32).collect()),
        DType::F16 => Data::Half(v.map(|v| f16::from_f64(v as f64).to_bits()).collect()),
        DType::BF16 => Data::Half(v.map(|v| bf16::from_f64(v as f64).to_bits()).collect()),
    };
    Ok(match cx.data(0) {
        Data::F32(v) => of_floats(&v[..count]),
        Data::U32(v) => of_integers(&mut v[..count].iter().map(|&v| v.into())),
        Data::I32(v) => of_integers(&mut v[..count].iter().map(|&v| v.into())),
        Data::Half(v) if from == DType::BF16 => of_floats(
            &v[..count]
                .iter()
                .map(|&b| bf16::from_bits(b).to_f32())
                .collect::<Vec<_>>(),
        ),
        Data::Half(v) => of_floats(
            &v[..count]
                .iter()
                .map(|&b| f16::from_bits(b).to_f32())
                .collect::<Vec<_>>(),
        ),
    })
}

/// Reduces the axes of the call, starting with the last one.
fn reduce<T: Copy>(cx: &Cx, mut x: ArrayD<T>, first: T, f: impl Fn(&T, &T) -> T) -> Result<Vec<T>, String> {
    let rank = x.ndim();
    let mut axes: Vec<usize> = cx
        .ints("axes")?
        .iter()
        .map(|&a| if a < 0 { a + rank as i64 } else { a } as usize)
        .collect();
    if axes.is_empty() {
        axes = (0..rank).collect();
    }
    axes.sort_unstable();
    for axis in axes.into_iter().rev() {
        x = x.fold_axis(Axis(axis), first, &f);
    }
    Ok(elements(x))
}

fn sum(cx: &Cx) -> Result<Data, String> {
    let x = &cx.dispatch.inputs[0];
    Ok(match cx.data(0) {
        // Long sums are accumulated in double precision.
        Data::F32(v) => {
            let sums = reduce(cx, view(v, x)?.mapv(f64::from), 0.0, |a, b| a + b)?;
            Data::F32(sums.into_iter().map(|v| v as f32).collect())
        }
        Data::U32(v) => Data::U32(reduce(cx, view(v, x)?.to_owned(), 0, |a, b| a.wrapping_add(*b))?),
        Data::I32(v) => Data::I32(reduce(cx, view(v, x)?.to_owned(), 0, |a, b| a.wrapping_add(*b))?),
        Data::Half(_) => return Err("ndarray computes in f32".into()),
    })
}

fn max_reduce(cx: &Cx) -> Result<Data, String> {
    let x = &cx.dispatch.inputs[0];
    let larger = |a: &f32, b: &f32| if a.is_nan() || *a > *b { *a } else { *b };
    Ok(match cx.data(0) {
        Data::F32(v) => Data::F32(reduce(cx, view(v, x)?.to_owned(), f32::NEG_INFINITY, larger)?),
        Data::U32(v) => Data::U32(reduce(cx, view(v, x)?.to_owned(), u32::MIN, |a, b| *a.max(b))?),
        Data::I32(v) => Data::I32(reduce(cx, view(v, x)?.to_owned(), i32::MIN, |a, b| *a.max(b))?),
        Data::Half(_) => return Err("ndarray computes in f32".into()),
    })
}

fn matmul(cx: &Cx) -> Result<Data, String> {
    const SHAPES: &str = "shapes that do not fit";
    let (mut a, mut b) = (cx.array::<f32>(0)?, cx.array::<f32>(1)?);
    for (name, x) in [("transpose_a", &mut a), ("transpose_b", &mut b)] {
        if cx.dispatch.flag(name) == Some(true) {
            let rank = x.ndim();
            x.swap_axes(rank - 2, rank - 1);
        }
    }
    let dims = &cx.dispatch.outputs[0].dims;
    let (batch, [m, n]) = dims.split_at(dims.len() - 2) else {
        return Err(SHAPES.into());
    };
    let k = a.shape()[a.ndim() - 1];
    let wide = |rows: usize, columns: usize| IxDyn(&[batch, &[rows, columns]].concat());
    let (a, b) = (
        a.broadcast(wide(*m, k)).ok_or(SHAPES)?,
        b.broadcast(wide(k, *n)).ok_or(SHAPES)?,
    );
    let mut out = Vec::with_capacity(dims.iter().product());
    for index in ndarray::indices(batch) {
        let mut pair = (a.view(), b.view());
        for i in 0..batch.len() {
            pair = (
                pair.0.index_axis_move(Axis(0), index[i]),
                pair.1.index_axis_move(Axis(0), index[i]),
            );
        }
        let matrix = |x: ArrayViewD<'_, f32>| x.into_dimensionality::<ndarray::Ix2>().map(|x| x.to_owned());
        let mut product = Array2::zeros((*m, *n));
        match (matrix(pair.0), matrix(pair.1)) {
            (Ok(a), Ok(b)) => general_mat_mul(1.0, &a, &b, 0.0, &mut product),
            _ => return Err(SHAPES.into()),
        }
        out.extend(product.iter());
    }
    Ok(Data::F32(out))
}
