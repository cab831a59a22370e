//! Table of functions that write operators of a graph as ONNX nodes; operators without a row are decomposed.

use meganeura_core::DType;

use super::{ExportCall, Writer, element_of, float, int, ints, string};
use crate::element::ElementType;

/// Function that writes a call and returns the names of its results; `None` if this call must be decomposed.
type Row = fn(&mut Writer, &ExportCall) -> Result<Option<Vec<String>>, String>;

/// Returns the row of an operator.
pub(super) fn find(name: &str) -> Option<Row> {
    ROWS.iter().find(|(row, _)| *row == name).map(|(_, row)| *row)
}

type RowResult = Result<Option<Vec<String>>, String>;

const ROWS: &[(&str, Row)] = &[
    ("core.abs", |w, c| same(w, c, "Abs")),
    ("core.add", |w, c| same(w, c, "Add")),
    ("core.argmax", |w, c| arg(w, c, "ArgMax")),
    ("core.argmin", |w, c| arg(w, c, "ArgMin")),
    ("core.avg_pool2d", avg_pool),
    ("core.batch_norm_inference", batch_norm),
    ("core.bit_and", |w, c| same(w, c, "BitwiseAnd")),
    ("core.bit_not", |w, c| same(w, c, "BitwiseNot")),
    ("core.bit_or", |w, c| same(w, c, "BitwiseOr")),
    ("core.bit_xor", |w, c| same(w, c, "BitwiseXor")),
    ("core.cast", cast),
    ("core.ceil", |w, c| same(w, c, "Ceil")),
    ("core.clamp", clamp),
    ("core.concat", |w, c| {
        let axis = int("axis", c.attrs.int("axis")?);
        let names: Vec<&str> = c.inputs.iter().map(|o| o.name).collect();
        one(w.call("Concat", &names, vec![axis]))
    }),
    ("core.conv2d", conv2d),
    ("core.conv_transpose2d", conv_transpose2d),
    ("core.cos", |w, c| same(w, c, "Cos")),
    // Integer division by 0 is 0 here, but undefined in a file.
    ("core.div", |w, c| same(w, c, "Div")),
    ("core.dropout", |w, c| same(w, c, "Identity")),
    ("core.elu", |w, c| with(w, c, "Elu", &["alpha"])),
    ("core.equal", |w, c| compare(w, c, "Equal")),
    ("core.erf", |w, c| same(w, c, "Erf")),
    ("core.exp", |w, c| same(w, c, "Exp")),
    ("core.exp2", |w, c| {
        let factor = w.number(c.outputs[0].dtype, std::f64::consts::LN_2);
        let x = w.call("Mul", &[c.inputs[0].name, &factor], Vec::new());
        one(w.call("Exp", &[&x], Vec::new()))
    }),
    ("core.expand", |w, c| {
        let shape = w.int_list(c.attrs.ints("shape")?);
        one(w.call("Expand", &[c.inputs[0].name, &shape], Vec::new()))
    }),
    ("core.floor", |w, c| same(w, c, "Floor")),
    ("core.gather", |w, c| {
        let at = w.cast(c.inputs[0].name, ElementType::I64);
        let axis = int("axis", c.attrs.int("axis")?);
        one(w.call("Gather", &[c.inputs[1].name, &at], vec![axis]))
    }),
    ("core.gelu_erf", |w, c| same(w, c, "Gelu")),
    ("core.gelu_tanh", |w, c| {
        one(w.call("Gelu", &[c.inputs[0].name], vec![string("approximate", "tanh")]))
    }),
    ("core.greater_equal", |w, c| compare(w, c, "GreaterOrEqual")),
    ("core.greater_than", |w, c| compare(w, c, "Greater")),
    ("core.hard_sigmoid", |w, c| {
        let attributes = vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)];
        one(w.call("HardSigmoid", &[c.inputs[0].name], attributes))
    }),
    ("core.hard_swish", |w, c| same(w, c, "HardSwish")),
    ("core.layer_norm", layer_norm),
    ("core.leaky_relu", |w, c| {
        let alpha = float("alpha", c.attrs.float("negative_slope")?);
        one(w.call("LeakyRelu", &[c.inputs[0].name], vec![alpha]))
    }),
    ("core.less_equal", |w, c| compare(w, c, "LessOrEqual")),
    ("core.less_than", |w, c| compare(w, c, "Less")),
    ("core.log", |w, c| same(w, c, "Log")),
    ("core.log2", |w, c| {
        let factor = w.number(c.outputs[0].dtype, std::f64::consts::LOG2_E);
        let log = w.call("Log", &[c.inputs[0].name], Vec::new());
        one(w.call("Mul", &[&log, &factor], Vec::new()))
    }),
    ("core.log_softmax", |w, c| softmax(w, c, "LogSoftmax")),
    ("core.matmul", matmul),
    ("core.max", |w, c| same(w, c, "Max")),
    ("core.max_pool2d", max_pool),
    ("core.max_reduce", |w, c| reduce(w, c, "ReduceMax")),
    ("core.mean", |w, c| reduce(w, c, "ReduceMean")),
    ("core.min", |w, c| same(w, c, "Min")),
    ("core.min_reduce", |w, c| reduce(w, c, "ReduceMin")),
    ("core.mod", modulo),
    ("core.mul", |w, c| same(w, c, "Mul")),
    ("core.neg", |w, c| same(w, c, "Neg")),
    ("core.pad", pad),
    ("core.permute", |w, c| {
        let perm = ints("perm", c.attrs.ints("axes")?.iter().copied());
        one(w.call("Transpose", &[c.inputs[0].name], vec![perm]))
    }),
    ("core.pow", |w, c| same(w, c, "Pow")),
    ("core.prod", |w, c| reduce(w, c, "ReduceProd")),
    ("core.reciprocal", |w, c| same(w, c, "Reciprocal")),
    ("core.relu", |w, c| same(w, c, "Relu")),
    ("core.reshape", |w, c| {
        let shape = w.int_list(c.attrs.ints("shape")?);
        one(w.call("Reshape", &[c.inputs[0].name, &shape], vec![int("allowzero", 1)]))
    }),
    ("core.round", |w, c| same(w, c, "Round")),
    ("core.scatter", scatter),
    ("core.scatter_add", scatter_add),
    ("core.select", |w, c| {
        let condition = w.cast(c.inputs[0].name, ElementType::Bool);
        one(w.call("Where", &[&condition, c.inputs[1].name, c.inputs[2].name], Vec::new()))
    }),
    ("core.shift_left", |w, c| {
        one(w.call(
            "BitShift",
            &[c.inputs[0].name, c.inputs[1].name],
            vec![string("direction", "LEFT")],
        ))
    }),
    ("core.shift_right", |w, c| {
        one(w.call(
            "BitShift",
            &[c.inputs[0].name, c.inputs[1].name],
            vec![string("direction", "RIGHT")],
        ))
    }),
    ("core.sigmoid", |w, c| same(w, c, "Sigmoid")),
    ("core.sign", |w, c| same(w, c, "Sign")),
    ("core.sin", |w, c| same(w, c, "Sin")),
    ("core.slice", slice),
    ("core.softmax", |w, c| softmax(w, c, "Softmax")),
    ("core.softplus", |w, c| same(w, c, "Softplus")),
    ("core.sqrt", |w, c| same(w, c, "Sqrt")),
    ("core.stop_gradient", |w, c| same(w, c, "Identity")),
    ("core.sub", |w, c| same(w, c, "Sub")),
    ("core.sum", |w, c| reduce(w, c, "ReduceSum")),
    ("core.take_along_axis", |w, c| {
        let at = w.cast(c.inputs[1].name, ElementType::I64);
        let axis = int("axis", c.attrs.int("axis")?);
        one(w.call("GatherElements", &[c.inputs[0].name, &at], vec![axis]))
    }),
    ("core.tanh", |w, c| same(w, c, "Tanh")),
    ("core.top_k", |w, c| {
        let k = w.int_list(&[c.attrs.int("k")?]);
        let (values, at) = (w.fresh(), w.fresh());
        w.node(
            "TopK",
            &[c.inputs[0].name, &k],
            &[&values, &at],
            vec![int("axis", c.attrs.int("axis")?)],
        );
        let at = w.cast(&at, ElementType::U32);
        Ok(Some(vec![values, at]))
    }),
];

fn one(name: String) -> RowResult {
    Ok(Some(vec![name]))
}

/// Writes a node with the same operands and no attributes.
fn same(w: &mut Writer, c: &ExportCall, op: &str) -> RowResult {
    let names: Vec<&str> = c.inputs.iter().map(|o| o.name).collect();
    one(w.call(op, &names, Vec::new()))
}

/// Writes a node of type `op` with the operands of the call, and those of its float attributes that `names` lists.
fn with(w: &mut Writer, c: &ExportCall, op: &str, names: &[&str]) -> RowResult {
    let attributes: Result<Vec<_>, String> = names.iter().map(|name| Ok(float(name, c.attrs.float(name)?))).collect();
    let inputs: Vec<&str> = c.inputs.iter().map(|o| o.name).collect();
    one(w.call(op, &inputs, attributes?))
}

/// Writes a comparison and a cast of its booleans to `uint32`, the type in a graph.
fn compare(w: &mut Writer, c: &ExportCall, op: &str) -> RowResult {
    let y = w.call(op, &[c.inputs[0].name, c.inputs[1].name], Vec::new());
    one(w.cast(&y, ElementType::U32))
}

fn arg(w: &mut Writer, c: &ExportCall, op: &str) -> RowResult {
    let attributes = vec![int("axis", c.attrs.int("axis")?), int("keepdims", 0)];
    let at = w.call(op, &[c.inputs[0].name], attributes);
    one(w.cast(&at, ElementType::U32))
}

fn modulo(w: &mut Writer, c: &ExportCall) -> RowResult {
    let [a, b] = [c.inputs[0].name, c.inputs[1].name];
    if !c.outputs[0].dtype.is_float() {
        return same(w, c, "Mod");
    }
    // a - b floor(a / b): the result of the ONNX operator for floats has the sign of a.
    let quotient = w.call("Div", &[a, b], Vec::new());
    let whole = w.call("Floor", &[&quotient], Vec::new());
    let part = w.call("Mul", &[b, &whole], Vec::new());
    one(w.call("Sub", &[a, &part], Vec::new()))
}

fn cast(w: &mut Writer, c: &ExportCall) -> RowResult {
    let to = element_of(c.attrs.dtype("to")?);
    let from = c.inputs[0].ty.dtype;
    if from.is_float() && !to.is_float() {
        // Conversions of floats to integers saturate, and NaN becomes 0; both are undefined in a file.
        let (low, high): (f64, f64) = match to {
            ElementType::U32 => (0.0, 4_294_967_040.0),
            _ => (-2_147_483_648.0, 2_147_483_520.0),
        };
        let x = match from {
            DType::F32 => c.inputs[0].name.to_owned(),
            _ => w.cast(c.inputs[0].name, ElementType::F32),
        };
        let (low, high) = (w.number(DType::F32, low), w.number(DType::F32, high));
        let clipped = w.call("Clip", &[&x, &low, &high], Vec::new());
        let nan = w.call("IsNaN", &[&x], Vec::new());
        let zero = w.number(DType::F32, 0.0);
        let kept = w.call("Where", &[&nan, &zero, &clipped], Vec::new());
        return one(w.cast(&kept, to));
    }
    one(w.cast(c.inputs[0].name, to))
}

fn clamp(w: &mut Writer, c: &ExportCall) -> RowResult {
    let dtype = c.outputs[0].dtype;
    let low = w.number(dtype, c.attrs.float("low")?);
    let high = w.number(dtype, c.attrs.float("high")?);
    one(w.call("Clip", &[c.inputs[0].name, &low, &high], Vec::new()))
}

fn reduce(w: &mut Writer, c: &ExportCall, op: &str) -> RowResult {
    let mut axes = c.attrs.ints("axes")?.to_vec();
    let rank = c.inputs[0].ty.shape.rank() as i64;
    if axes.is_empty() {
        axes = (0..rank).collect();
    }
    let keep = int("keepdims", c.attrs.bool("keep_dims")?.into());
    if axes.is_empty() {
        return one(w.call("Identity", &[c.inputs[0].name], Vec::new()));
    }
    let axes = w.int_list(&axes);
    one(w.call(op, &[c.inputs[0].name, &axes], vec![keep]))
}

fn softmax(w: &mut Writer, c: &ExportCall, op: &str) -> RowResult {
    let axis = int("axis", c.attrs.int("axis")?);
    one(w.call(op, &[c.inputs[0].name], vec![axis]))
}

/// Adds a transposition of the last two axes.
fn swapped(w: &mut Writer, name: &str, rank: usize) -> String {
    let mut perm: Vec<i64> = (0..rank as i64).collect();
    perm.swap(rank - 1, rank - 2);
    w.call("Transpose", &[name], vec![ints("perm", perm)])
}

fn matmul(w: &mut Writer, c: &ExportCall) -> RowResult {
    let (a, b) = (c.inputs[0], c.inputs[1]);
    let a_name = if c.attrs.bool("transpose_a")? {
        swapped(w, a.name, a.ty.shape.rank())
    } else {
        a.name.to_owned()
    };
    let b_name = if c.attrs.bool("transpose_b")? {
        swapped(w, b.name, b.ty.shape.rank())
    } else {
        b.name.to_owned()
    };
    one(w.call("MatMul", &[&a_name, &b_name], Vec::new()))
}

/// Returns the attribute `padding`, repeated for both sides of each axis.
fn both_sides(c: &ExportCall) -> Result<Vec<i64>, String> {
    let padding = c.attrs.ints("padding")?;
    Ok([padding, padding].concat())
}

fn conv2d(w: &mut Writer, c: &ExportCall) -> RowResult {
    let attributes = vec![
        ints("strides", c.attrs.ints("stride")?.iter().copied()),
        ints("pads", both_sides(c)?),
        ints("dilations", c.attrs.ints("dilation")?.iter().copied()),
        int("group", c.attrs.int("groups")?),
    ];
    one(w.call("Conv", &[c.inputs[0].name, c.inputs[1].name], attributes))
}

fn conv_transpose2d(w: &mut Writer, c: &ExportCall) -> RowResult {
    let attributes = vec![
        ints("strides", c.attrs.ints("stride")?.iter().copied()),
        ints("pads", both_sides(c)?),
        ints("dilations", c.attrs.ints("dilation")?.iter().copied()),
        int("group", c.attrs.int("groups")?),
        ints("output_padding", c.attrs.ints("output_padding")?.iter().copied()),
    ];
    one(w.call("ConvTranspose", &[c.inputs[0].name, c.inputs[1].name], attributes))
}

fn avg_pool(w: &mut Writer, c: &ExportCall) -> RowResult {
    let attributes = vec![
        ints("kernel_shape", c.attrs.ints("kernel")?.iter().copied()),
        ints("strides", c.attrs.ints("stride")?.iter().copied()),
        ints("pads", both_sides(c)?),
        int("count_include_pad", 1),
    ];
    one(w.call("AveragePool", &[c.inputs[0].name], attributes))
}

fn max_pool(w: &mut Writer, c: &ExportCall) -> RowResult {
    let attributes = vec![
        ints("kernel_shape", c.attrs.ints("kernel")?.iter().copied()),
        ints("strides", c.attrs.ints("stride")?.iter().copied()),
        ints("pads", both_sides(c)?),
    ];
    let (y, at) = (w.fresh(), w.fresh());
    w.node("MaxPool", &[c.inputs[0].name], &[&y, &at], attributes);
    let at = w.cast(&at, ElementType::U32);
    Ok(Some(vec![y, at]))
}

fn batch_norm(w: &mut Writer, c: &ExportCall) -> RowResult {
    let names: Vec<&str> = c.inputs.iter().map(|o| o.name).collect();
    one(w.call(
        "BatchNormalization",
        &names,
        vec![float("epsilon", c.attrs.float("eps")?)],
    ))
}

fn layer_norm(w: &mut Writer, c: &ExportCall) -> RowResult {
    if c.outputs[0].dtype != DType::F32 {
        return Ok(None);
    }
    let names: Vec<&str> = c.inputs.iter().map(|o| o.name).collect();
    let results = [w.fresh(), w.fresh(), w.fresh()];
    let outputs: Vec<&str> = results.iter().map(String::as_str).collect();
    let attributes = vec![int("axis", -1), float("epsilon", c.attrs.float("eps")?)];
    w.node("LayerNormalization", &names, &outputs, attributes);
    Ok(Some(results.to_vec()))
}

fn pad(w: &mut Writer, c: &ExportCall) -> RowResult {
    let (low, high, interior) = (c.attrs.ints("low")?, c.attrs.ints("high")?, c.attrs.ints("interior")?);
    let dims = c.inputs[0].ty.shape.dims();
    let dtype = c.inputs[0].ty.dtype;
    let mut name = c.inputs[0].name.to_owned();
    if interior.iter().any(|&i| i != 0) {
        // Interior padding: each element becomes a row, which is padded, and the end is removed.
        let mut sizes: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        for (axis, &between) in interior.iter().enumerate().filter(|(_, i)| **i != 0) {
            let mut split = sizes.clone();
            split.insert(axis + 1, 1);
            let split_list = w.int_list(&split);
            let rows = w.call("Reshape", &[&name, &split_list], Vec::new());
            let mut pads = vec![0; 2 * split.len()];
            pads[split.len() + axis + 1] = between;
            let value = w.number(dtype, c.attrs.float("value")?);
            let pads = w.int_list(&pads);
            let padded = w.call("Pad", &[&rows, &pads, &value], Vec::new());
            let long = sizes[axis] * (between + 1);
            sizes[axis] = long;
            let joined = w.int_list(&sizes);
            let joined = w.call("Reshape", &[&padded, &joined], Vec::new());
            sizes[axis] = (long - between).max(0);
            let (start, end, at) = (w.int_list(&[0]), w.int_list(&[sizes[axis]]), w.int_list(&[axis as i64]));
            name = w.call("Slice", &[&joined, &start, &end, &at], Vec::new());
        }
    }
    if low.iter().chain(high).all(|&p| p == 0) {
        return one(w.call("Identity", &[&name], Vec::new()));
    }
    let value = w.number(dtype, c.attrs.float("value")?);
    let pads = w.int_list(&[low, high].concat());
    one(w.call("Pad", &[&name, &pads, &value], Vec::new()))
}

fn slice(w: &mut Writer, c: &ExportCall) -> RowResult {
    let (starts, ends, steps) = (c.attrs.ints("starts")?, c.attrs.ints("ends")?, c.attrs.ints("steps")?);
    let axes: Vec<i64> = (0..starts.len() as i64).collect();
    if axes.is_empty() {
        return one(w.call("Identity", &[c.inputs[0].name], Vec::new()));
    }
    let lists = [
        w.int_list(starts),
        w.int_list(ends),
        w.int_list(&axes),
        w.int_list(steps),
    ];
    one(w.call(
        "Slice",
        &[c.inputs[0].name, &lists[0], &lists[1], &lists[2], &lists[3]],
        Vec::new(),
    ))
}

/// Expands indices of an axis to the shape of the updates, by repetition along the other axes.
fn spread(w: &mut Writer, name: &str, count: usize, axis: usize, updates: &[usize]) -> String {
    let at = w.cast(name, ElementType::I64);
    let mut line = vec![1; updates.len()];
    line[axis] = count as i64;
    let line = w.int_list(&line);
    let at = w.call("Reshape", &[&at, &line], Vec::new());
    let shape: Vec<i64> = updates.iter().map(|&d| d as i64).collect();
    let shape = w.int_list(&shape);
    w.call("Expand", &[&at, &shape], Vec::new())
}

fn scatter(w: &mut Writer, c: &ExportCall) -> RowResult {
    let (x, at, updates) = (c.inputs[0], c.inputs[1], c.inputs[2]);
    let axis = c.attrs.int("axis")?;
    let axis = crate::import::normalize_axis(axis, x.ty.shape.rank())?;
    let at = spread(w, at.name, at.ty.numel(), axis, updates.ty.shape.dims());
    one(w.call(
        "ScatterElements",
        &[x.name, &at, updates.name],
        vec![int("axis", axis as i64)],
    ))
}

fn scatter_add(w: &mut Writer, c: &ExportCall) -> RowResult {
    let (at, updates) = (c.inputs[0], c.inputs[1]);
    let axis = crate::import::normalize_axis(c.attrs.int("axis")?, c.outputs[0].shape.rank())?;
    // The axes of the indices are merged into one.
    let dims = updates.ty.shape.dims();
    let behind = axis + at.ty.shape.rank();
    let joined = [&dims[..axis], &[at.ty.numel()], &dims[behind..]].concat();
    let shape: Vec<i64> = joined.iter().map(|&d| d as i64).collect();
    let shape = w.int_list(&shape);
    let values = w.call("Reshape", &[updates.name, &shape], Vec::new());
    let at = spread(w, at.name, at.ty.numel(), axis, &joined);
    let zero = w.number(c.outputs[0].dtype, 0.0);
    let out: Vec<i64> = c.outputs[0].shape.dims().iter().map(|&d| d as i64).collect();
    let out = w.int_list(&out);
    let zeros = w.call("Expand", &[&zero, &out], Vec::new());
    let attributes = vec![int("axis", axis as i64), string("reduction", "add")];
    one(w.call("ScatterElements", &[&zeros, &at, &values], attributes))
}
