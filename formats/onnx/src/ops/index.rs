//! Operators that select elements by indices or conditions.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::fold::{MAX_FOLDED, indices, strides};
use super::{OnnxOp, Overflow, limits, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::{Tensor, element_count};

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

/// Maximum number of pairs of an element and an update that a reduction may compare.
const MAX_PAIRS: usize = 1 << 22;

pub(super) const OPS: &[OnnxOp] = &[
    op("ArgMax", 1, |c| arg_extreme(c, true)),
    op("ArgMin", 1, |c| arg_extreme(c, false)),
    op("Compress", 9, compress).partly("a condition that depends on the data of an input"),
    op("Gather", 1, gather).folding(fold_gather).taking_strings(),
    op("GatherElements", 11, gather_elements).taking_strings(),
    op("GatherND", 11, gather_nd),
    op("NonZero", 9, non_zero)
        .folding(fold_non_zero)
        .partly("operands that are not known when importing"),
    op("OneHot", 9, one_hot).partly("a depth that depends on the data of an input"),
    op("Scatter", 9, scatter_elements).checked(Overflow::Scatter),
    op("ScatterElements", 11, scatter_elements)
        .partly("max, min and mul of many updates of large tensors")
        .checked(Overflow::Scatter),
    op("ScatterND", 11, scatter_nd)
        .partly("max, min and mul of many updates of large tensors")
        .checked(Overflow::Scatter),
    op("TensorScatter", 24, tensor_scatter).partly("positions that depend on the data of an input"),
    op("TopK", 1, top_k).partly("a number that depends on the data of an input"),
];

/// Returns the indices in operand `i`, along an axis of `size` elements, as non-negative numbers of the type that
/// graphs use for indices.
pub(super) fn positions(call: &mut Call, i: usize, size: usize) -> Result<Value, String> {
    if let Some(tensor) = call.tensor(i) {
        let list: Result<Vec<u32>, String> = tensor.to_i64().iter().map(|&at| position(at, size)).collect();
        let dims = tensor.dims().to_vec();
        let list = list?;
        return Ok(call.graph().constant_u32(list, &dims).into());
    }
    let element = call.element(i)?;
    let at = call.value(i)?;
    if !element.is_signed() {
        return Ok(at);
    }
    let (zero, length) = (call.scalar(element, 0.0), call.scalar(element, size as f64));
    let graph = call.graph();
    let negative = graph.less_than(at, zero);
    let from_end = graph.add(at, length);
    let at = graph.select(negative, from_end, at);
    Ok(graph.cast(at, DType::U32).into())
}

fn position(at: i64, size: usize) -> Result<u32, String> {
    let found = if at < 0 { at.saturating_add(size as i64) } else { at };
    match usize::try_from(found) {
        Ok(found) if found < size => Ok(found as u32),
        _ => Err(format!("index {at} does not exist in {size} elements")),
    }
}

fn gather(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let at = positions(call, 1, dims[axis])?;
    let x = call.value(0)?;
    let y = call.graph().gather_axis(x, at, axis as i32);
    call.one(y, element)
}

fn fold_gather(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x), Some(at)] = operands else { return Ok(None) };
    let axis = call.axis(call.int("axis", 0)?, x.dims().len())?;
    let list: Result<Vec<u32>, String> = at.to_i64().iter().map(|&i| position(i, x.dims()[axis])).collect();
    let list = list?;
    let (outer, inner) = (&x.dims()[..axis], &x.dims()[axis + 1..]);
    let dims = [outer, at.dims(), inner].concat();
    if element_count(&dims).is_none_or(|n| n > MAX_FOLDED) {
        return Ok(None);
    }
    let (from, of_list) = (strides(x.dims()), strides(at.dims()));
    let picked = indices(&dims).map(|index| {
        let (head, rest) = index.split_at(axis);
        let (middle, tail) = rest.split_at(at.dims().len());
        let chosen: usize = middle.iter().zip(&of_list).map(|(i, s)| i * s).sum();
        let head: usize = head.iter().zip(&from).map(|(i, s)| i * s).sum();
        let tail: usize = tail.iter().zip(&from[axis + 1..]).map(|(i, s)| i * s).sum();
        head + list[chosen] as usize * from[axis] + tail
    });
    Ok(Some(vec![x.pick(&dims, picked)]))
}

fn gather_elements(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let at = positions(call, 1, dims[axis])?;
    // The graph operator requires the other axes to have the lengths of the indices' axes.
    let wanted = call.dims(1)?;
    if wanted.len() != dims.len() {
        return Err(format!("operands {} differ in rank", call.types()));
    }
    let mut ends = dims.clone();
    for i in (0..dims.len()).filter(|&i| i != axis) {
        ends[i] = wanted[i].min(dims[i]);
    }
    let mut x = call.value(0)?;
    if ends != dims {
        x = call.graph().slice(x, &vec![0; dims.len()], &ends).into();
    }
    let y = call.graph().take_along_axis(x, at, axis as i32);
    call.one(y, element)
}

/// Returns offsets into `x` as a table of rows. The rows consist of the axes that the last axis of the indices does not select.
/// Also returns the number of rows and the shape of a row.
fn row_offsets(call: &mut Call, i: usize, dims: &[usize], batch: usize) -> Result<(Value, usize, Vec<usize>), String> {
    let wanted = call.dims(i)?;
    let depth = *wanted.last().ok_or("the indices have no dimensions")?;
    if depth + batch > dims.len() || wanted.len() <= batch || dims[..batch] != wanted[..batch] {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let chosen = &dims[batch..batch + depth];
    let rows: usize = dims[..batch + depth].iter().product();
    let row = dims[batch + depth..].to_vec();
    let lists = wanted[..wanted.len() - 1].to_vec();
    if let Some(tensor) = call.tensor(i) {
        let data = tensor.to_i64();
        let per_batch: usize = chosen.iter().product();
        let each: usize = lists[batch..].iter().product::<usize>().max(1);
        let mut offsets = Vec::with_capacity(data.len() / depth.max(1));
        for (n, index) in data.chunks(depth.max(1)).enumerate() {
            let mut at = 0;
            for (&k, &size) in index.iter().zip(chosen) {
                at = at * size + position(k, size)? as usize;
            }
            offsets.push((n / each * per_batch + at) as u32);
        }
        if depth == 0 {
            return Err("the indices select no elements".into());
        }
        return Ok((call.graph().constant_u32(offsets, &lists).into(), rows, row));
    }
    if depth == 0 {
        return Err("the indices select no elements".into());
    }
    let element = call.element(i)?;
    let at = call.value(i)?;
    let last = wanted.len() - 1;
    let sizes: Vec<i32> = chosen.iter().map(|&s| s as i32).collect();
    let steps: Vec<i32> = strides(chosen).iter().map(|&s| s as i32).collect();
    let graph = call.graph();
    let at = if element.is_signed() {
        at
    } else {
        graph.cast(at, DType::I32).into()
    };
    let vector = |graph: &mut meganeura_core::Graph, list: &[i32]| {
        let bytes = list.iter().flat_map(|v| v.to_le_bytes()).collect();
        let data = meganeura_core::graph::ConstantData::from_bytes(DType::I32, bytes);
        data.map(|data| graph.constant_data(data, &[list.len()]))
    };
    let (Some(sizes), Some(steps)) = (vector(graph, &sizes), vector(graph, &steps)) else {
        return Err("the indices cannot be created".into());
    };
    let zero = graph.scalar_of(DType::I32, 0.0);
    let negative = graph.less_than(at, zero);
    let from_end = graph.add(at, sizes);
    let at = graph.select(negative, from_end, at);
    let scaled = graph.mul(at, steps);
    let mut offsets: Value = graph.sum(scaled, &[last as i32], false).into();
    if batch > 0 {
        let per_batch: usize = chosen.iter().product();
        let batches: usize = dims[..batch].iter().product();
        let starts: Vec<i32> = (0..batches).map(|b| (b * per_batch) as i32).collect();
        let Some(starts) = vector(graph, &starts) else {
            return Err("the indices cannot be created".into());
        };
        let shape: Vec<usize> = (0..last).map(|i| if i < batch { dims[i] } else { 1 }).collect();
        let starts = graph.reshape(starts, &shape);
        offsets = graph.add(offsets, starts).into();
    }
    Ok((graph.cast(offsets, DType::U32).into(), rows, row))
}

fn gather_nd(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let batch = usize::try_from(call.int("batch_dims", 0)?).map_err(|_| "batch_dims is negative")?;
    let (offsets, rows, row) = row_offsets(call, 1, &dims, batch)?;
    let x = call.value(0)?;
    let graph = call.graph();
    let table = graph.reshape(x, &[&[rows], row.as_slice()].concat());
    let y = graph.gather_axis(table, offsets, 0);
    call.one(y, element)
}

fn scatter_nd(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let reduction = call.string("reduction", "none")?.into_owned();
    let (offsets, rows, row) = row_offsets(call, 1, &dims, 0)?;
    let (x, updates) = (call.value(0)?, call.value(2)?);
    let graph = call.graph();
    let count: usize = graph.shape(offsets).iter().product();
    let offsets = graph.reshape(offsets, &[count]);
    let updates = graph.reshape(updates, &[&[count], row.as_slice()].concat());
    let table = graph.reshape(x, &[&[rows], row.as_slice()].concat());
    let y = match reduction.as_str() {
        "none" => graph.scatter(table, offsets, updates, 0),
        "add" => {
            let sums = graph.scatter_add(updates, offsets, rows);
            graph.add(table, sums)
        }
        other => reduced_scatter(call, table.into(), offsets.into(), updates.into(), other)?,
    };
    let y = call.graph().reshape(y, &dims);
    call.one(y, element)
}

/// Updates the rows of a table by a reduction other than a sum: each row is combined with all updates, and updates of
/// other rows are replaced by values without an effect.
fn reduced_scatter(
    call: &mut Call,
    table: Value,
    at: Value,
    updates: Value,
    reduction: &str,
) -> Result<NodeId, String> {
    let graph = call.graph();
    let (dims, count) = (graph.shape(table).to_vec(), graph.shape(at).iter().product::<usize>());
    let (rows, width) = (
        dims.first().copied().unwrap_or(1),
        dims.iter().skip(1).product::<usize>(),
    );
    if element_count(&[count, rows, width]).is_none_or(|n| n > MAX_PAIRS) {
        return Err(format!(
            "reduction `{reduction}` of {count} updates of {dims:?} is not supported"
        ));
    }
    let dtype = graph.dtype(table);
    let (low, high) = match dtype {
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    let neutral = match reduction {
        "max" => low,
        "min" => high,
        "mul" => 1.0,
        other => return Err(format!("reduction `{other}` is not known")),
    };
    if count == 0 {
        return Ok(graph.reshape(table, &dims));
    }
    let neutral = graph.scalar_of(dtype, neutral);
    let counting = graph.constant_u32((0..rows as u32).collect(), &[1, rows, 1]);
    let at = graph.reshape(at, &[count, 1, 1]);
    let hit = graph.equal(at, counting);
    let updates = graph.reshape(updates, &[count, 1, width]);
    let all = graph.select(hit, updates, neutral);
    let table = graph.reshape(table, &[rows, width]);
    let y = match reduction {
        "max" => {
            let largest = graph.max(all, &[0], false);
            graph.maximum(table, largest)
        }
        "min" => {
            let smallest = graph.min(all, &[0], false);
            graph.minimum(table, smallest)
        }
        _ => {
            let product = graph.prod(all, &[0], false);
            graph.mul(table, product)
        }
    };
    Ok(graph.reshape(y, &dims))
}

fn scatter_elements(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let reduction = call.string("reduction", "none")?.into_owned();
    let at = positions(call, 1, dims[axis])?;
    let wanted = call.dims(1)?;
    if wanted.len() != dims.len()
        || wanted
            .iter()
            .zip(&dims)
            .enumerate()
            .any(|(i, (w, d))| i != axis && w > d)
    {
        return Err(format!("operands {} do not fit", call.types()));
    }
    limits::elements(&wanted, "a list of indices")?;
    // Offset of each update in the flattened result: the offset of its position along the other axes, and the index along the
    // axis.
    let steps = strides(&dims);
    let own: Vec<u32> = indices(&wanted)
        .map(|index| {
            index
                .iter()
                .zip(&steps)
                .enumerate()
                .map(|(i, (&x, &s))| if i == axis { 0 } else { x * s })
                .sum::<usize>() as u32
        })
        .collect();
    let count = own.len();
    let total: usize = dims.iter().product();
    let (x, updates) = (call.value(0)?, call.value(2)?);
    let graph = call.graph();
    let own = graph.constant_u32(own, &wanted);
    let step = graph.scalar_of(DType::U32, steps[axis] as f64);
    let along = graph.mul(at, step);
    let offsets = graph.add(own, along);
    let offsets = graph.reshape(offsets, &[count]);
    let updates = graph.reshape(updates, &[count]);
    let flat = graph.reshape(x, &[total]);
    let y = match reduction.as_str() {
        "none" => graph.scatter(flat, offsets, updates, 0),
        "add" => {
            let sums = graph.scatter_add(updates, offsets, total);
            graph.add(flat, sums)
        }
        other => reduced_scatter(call, flat.into(), offsets.into(), updates.into(), other)?,
    };
    let y = call.graph().reshape(y, &dims);
    call.one(y, element)
}

/// Writes new elements into a cache, at a separate position for each sequence of the batch.
fn tensor_scatter(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let axis = call.axis(call.int("axis", -2)?, dims.len())?;
    let piece = call.dims(1)?;
    if axis == 0 || piece.len() != dims.len() {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let starts = call.known_ints(2, "the positions")?.unwrap_or_else(|| vec![0; dims[0]]);
    let circular = match &*call.string("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(format!("mode `{other}` is neither linear nor circular")),
    };
    if element_count(&piece).is_none_or(|n| n > limits::MAX_ELEMENTS) || starts.len() != dims[0] {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let steps = strides(&dims);
    let mut offsets = Vec::new();
    for index in indices(&piece) {
        let mut at = starts[index[0]].saturating_add(index[axis] as i64);
        if circular {
            at = at.rem_euclid(dims[axis] as i64);
        }
        let along = position(at, dims[axis])? as usize;
        let place = index.iter().zip(&steps).enumerate();
        let offset: usize = place
            .map(|(i, (&x, &s))| if i == axis { along * s } else { x * s })
            .sum();
        offsets.push(offset as u32);
    }
    let (x, updates) = (call.value(0)?, call.value(1)?);
    let total: usize = dims.iter().product();
    let count = offsets.len();
    let graph = call.graph();
    let offsets = graph.constant_u32(offsets, &[count]);
    let (flat, updates) = (graph.reshape(x, &[total]), graph.reshape(updates, &[count]));
    let y = graph.scatter(flat, offsets, updates, 0);
    let y = graph.reshape(y, &dims);
    call.one(y, element)
}

fn arg_extreme(call: &mut Call, largest: bool) -> Built {
    let dims = call.dims(0)?;
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let keep = call.int("keepdims", 1)? != 0;
    let last = call.int("select_last_index", 0)? != 0;
    let mut x = call.value(0)?;
    if last {
        x = call.graph().flip(x, &[axis as i32]).into();
    }
    let graph = call.graph();
    let y = if largest {
        graph.argmax(x, axis as i32)
    } else {
        graph.argmin(x, axis as i32)
    };
    let mut y = graph.cast(y, DType::I32);
    if last {
        let end = graph.scalar_of(DType::I32, dims[axis] as f64 - 1.0);
        y = graph.sub(end, y);
    }
    if keep {
        let mut kept = dims;
        kept[axis] = 1;
        y = graph.reshape(y, &kept);
    }
    call.one(y, ElementType::I64)
}

/// Returns sort keys in reverse order: the largest keys belong to the smallest elements of `x`. NaN gets the smallest
/// key: ONNX Runtime treats it as the largest number.
fn reversed(graph: &mut Graph, x: Value) -> Value {
    let dtype = graph.dtype(x);
    if !dtype.is_float() {
        // The key is -1 - x, which does not overflow for any integer.
        return graph.bit_not(x).into();
    }
    let negative = graph.neg(x);
    // Positive infinity gets the key of the largest finite number. This key is larger than the key of NaN.
    let lowest = match dtype {
        DType::F16 => half::f16::MIN.to_f64(),
        DType::BF16 => half::bf16::MIN.to_f64(),
        _ => f32::MIN.into(),
    };
    let lowest = graph.scalar_of(dtype, lowest);
    let bounded = graph.maximum(negative, lowest);
    let number = graph.equal(x, x);
    let last = graph.scalar_of(dtype, f64::NEG_INFINITY);
    graph.select(number, bounded, last).into()
}

fn top_k(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let k = if call.opset < 10 {
        call.int("k", 0)?
    } else {
        call.known_scalar(1, "the number")?.ok_or("the number is missing")? as i64
    };
    let axis = call.axis(call.int("axis", -1)?, dims.len())?;
    let k = usize::try_from(k).map_err(|_| format!("k = {k} is negative"))?;
    if k > dims[axis] {
        return Err(format!("{k} of {} elements cannot be taken", dims[axis]));
    }
    let largest = call.int("largest", 1)? != 0;
    let x = call.value(0)?;
    let graph = call.graph();
    let keys = if largest { x } else { reversed(graph, x) };
    let top = graph.top_k(keys, axis as i32, k);
    let (mut values, at): (Value, Value) = (graph.port(top, 0), graph.port(top, 1));
    if !largest {
        values = graph.take_along_axis(x, at, axis as i32).into();
    }
    let at = graph.cast(at, DType::I32);
    Ok(vec![call.result(values, element), call.result(at, ElementType::I64)])
}

fn one_hot(call: &mut Call) -> Built {
    let depth = call.known_scalar(1, "the depth")?.ok_or("the depth is missing")?;
    let depth = limits::elements(&[depth as usize], "a list of classes")?;
    let dims = call.dims(0)?;
    let axis = call.axis(call.int("axis", -1)?, dims.len() + 1)?;
    let element = call.element(2)?;
    let from = call.element(0)?;
    let (at, values) = (call.value(0)?, call.value(2)?);
    // Indices outside of the depth give a row of zeros, which the graph's one-hot operator rejects.
    let at = super::cast::convert(call, at, from, ElementType::I32);
    let counting: Vec<i64> = (0..depth as i64).collect();
    let Ok(counting) = Tensor::integers(ElementType::I32, &[depth], counting).to_constant() else {
        return Err("classes cannot be counted".into());
    };
    let graph = call.graph();
    let (size, zero) = (
        graph.scalar_of(DType::I32, depth as f64),
        graph.scalar_of(DType::I32, 0.0),
    );
    let negative = graph.less_than(at, zero);
    let from_end = graph.add(at, size);
    let at = graph.select(negative, from_end, at);
    let counting = graph.constant_data(counting, &[depth]);
    let mut shape = vec![1; dims.len() + 1];
    shape[axis] = depth;
    let counting = graph.reshape(counting, &shape);
    let mut spread = dims.clone();
    spread.insert(axis, 1);
    let at = graph.reshape(at, &spread);
    let hit = graph.equal(at, counting);
    let off = graph.slice(values, &[0], &[1]);
    let on = graph.slice(values, &[1], &[2]);
    let (off, on) = (graph.reshape(off, &[]), graph.reshape(on, &[]));
    let y = graph.select(hit, on, off);
    call.one(y, element)
}

fn compress(call: &mut Call) -> Built {
    let chosen = call.known_ints(1, "the condition")?.ok_or("the condition is missing")?;
    let (mut x, mut dims, element) = (call.value(0)?, call.dims(0)?, call.element(0)?);
    let axis = match call.attributes().int("axis")? {
        Some(axis) => call.axis(axis, dims.len())?,
        None => {
            let total = dims.iter().product();
            dims = vec![total];
            x = call.graph().reshape(x, &dims).into();
            0
        }
    };
    let at = chosen
        .iter()
        .enumerate()
        .filter(|(_, c)| **c != 0)
        .map(|(i, _)| i as u32);
    let at: Vec<u32> = at.filter(|&i| (i as usize) < dims[axis]).collect();
    let count = at.len();
    if count == 0 {
        dims[axis] = 0;
        let empty = Tensor::new(element, &dims, super::slice::empty_data(element));
        return Ok(vec![call.known_result(0, empty)]);
    }
    let graph = call.graph();
    let at = graph.constant_u32(at, &[count]);
    let y = graph.gather_axis(x, at, axis as i32);
    call.one(y, element)
}

fn non_zero(call: &mut Call) -> Built {
    Err(call.not_known(0, "what is not 0"))
}

fn fold_non_zero(_: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x)] = operands else { return Ok(None) };
    let rank = x.dims().len();
    let hits: Vec<Vec<usize>> = indices(x.dims())
        .zip(x.to_f64())
        .filter(|(_, v)| *v != 0.0)
        .map(|(index, _)| index)
        .collect();
    let data = (0..rank)
        .flat_map(|axis| hits.iter().map(move |hit| hit[axis] as i64))
        .collect();
    Ok(Some(vec![Tensor::i64(&[rank, hits.len()], data)]))
}
