//! Operators that change shapes and the order of elements, without arithmetic on them.

use super::fold::{self, MAX_FOLDED, indices, strides};
use super::{OnnxOp, limits, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::read::{STRING, dimensions};
use crate::tensor::{Tensor, element_count};

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

pub(super) const KNOWN_SHAPE: &str = "a shape that depends on the data of an input";

pub(super) const OPS: &[OnnxOp] = &[
    op("Concat", 1, concat).folding(fold_concat),
    op("Constant", 1, constant).partly("sparse tensors"),
    op("ConstantOfShape", 9, constant_of_shape).partly(KNOWN_SHAPE),
    op("DepthToSpace", 1, depth_to_space),
    op("Dropout", 1, dropout).partly("training mode"),
    op("Expand", 8, expand).folding(fold_expand).partly(KNOWN_SHAPE),
    op("EyeLike", 9, eye_like),
    op("Flatten", 1, flatten).taking_strings(),
    op("Range", 11, range).partly("bounds that depend on the data of an input"),
    op("Reshape", 5, reshape)
        .folding(fold_reshape)
        .partly(KNOWN_SHAPE)
        .taking_strings(),
    op("ReverseSequence", 10, reverse_sequence).partly("lengths that depend on the data of an input"),
    op("Shape", 1, shape).taking_strings(),
    op("Size", 1, size).taking_strings(),
    op("SpaceToDepth", 1, space_to_depth),
    op("Squeeze", 1, squeeze).folding(fold_squeeze).taking_strings(),
    op("Tile", 6, tile)
        .folding(fold_tile)
        .partly("repeats that depend on the data of an input"),
    op("Transpose", 1, transpose).folding(fold_transpose).taking_strings(),
    op("Trilu", 14, trilu).partly("a diagonal that depends on the data of an input"),
    op("Unsqueeze", 1, unsqueeze).folding(fold_unsqueeze).taking_strings(),
];

/// Reshapes operand `i`; a known tensor stays known.
fn reshaped(call: &mut Call, i: usize, dims: &[usize]) -> Built {
    let element = call.element(i)?;
    let x = call.value(i)?;
    let y = call.graph().reshape(x, dims);
    call.one(y, element)
}

fn fold_to(x: &Tensor, dims: &[usize]) -> Folded {
    if element_count(dims) == Some(x.len()) {
        Ok(Some(vec![x.reshaped(dims)]))
    } else {
        Err(format!("{:?} cannot have the shape {dims:?}", x.dims()))
    }
}

/// Returns the target shape of Reshape: 0 copies a size, and -1 is inferred.
fn target_shape(call: &Call, from: &[usize], wanted: &[i64]) -> Result<Vec<usize>, String> {
    let keep_zeros = call.int("allowzero", 0)? != 0;
    let mut dims = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (i, &size) in wanted.iter().enumerate() {
        dims.push(match size {
            0 if !keep_zeros => *from
                .get(i)
                .ok_or_else(|| format!("shape {wanted:?} copies dimension {i} of {from:?}"))?,
            -1 if open.replace(i).is_some() => return Err(format!("shape {wanted:?} has more than one -1")),
            -1 => 1,
            size => usize::try_from(size).map_err(|_| format!("shape {wanted:?} has a negative size"))?,
        });
    }
    if let Some(open) = open {
        let total: usize = from.iter().product();
        let known = element_count(&dims).filter(|&n| n > 0 && total.is_multiple_of(n));
        dims[open] = total / known.ok_or_else(|| format!("{from:?} cannot have the shape {wanted:?}"))?;
    }
    Ok(dims)
}

fn reshape(call: &mut Call) -> Built {
    let wanted = call.known_ints(1, "the shape")?.ok_or("the shape is missing")?;
    let dims = target_shape(call, &call.dims(0)?, &wanted)?;
    reshaped(call, 0, &dims)
}

fn fold_reshape(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x), Some(shape)] = operands else {
        return Ok(None);
    };
    fold_to(x, &target_shape(call, x.dims(), &shape.to_i64())?)
}

fn flatten(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let axis = call.int("axis", 1)?;
    let axis = if axis == dims.len() as i64 {
        dims.len()
    } else {
        call.axis(axis, dims.len())?
    };
    let (rows, columns) = (dims[..axis].iter().product(), dims[axis..].iter().product());
    reshaped(call, 0, &[rows, columns])
}

/// Removes the axes of size 1 at these positions, or all axes of size 1.
fn squeezed(dims: &[usize], axes: Option<&[i64]>) -> Result<Vec<usize>, String> {
    let Some(axes) = axes else {
        return Ok(dims.iter().copied().filter(|&d| d != 1).collect());
    };
    let mut gone = vec![false; dims.len()];
    for &axis in axes {
        let axis = crate::import::normalize_axis(axis, dims.len())?;
        if dims[axis] != 1 {
            return Err(format!("axis {axis} of {dims:?}: expected size 1"));
        }
        gone[axis] = true;
    }
    Ok(dims
        .iter()
        .zip(&gone)
        .filter(|(_, gone)| !**gone)
        .map(|(&d, _)| d)
        .collect())
}

fn squeeze(call: &mut Call) -> Built {
    let axes = call.attribute_or_operand("axes", 1)?;
    let dims = squeezed(&call.dims(0)?, axes.as_deref())?;
    reshaped(call, 0, &dims)
}

fn fold_squeeze(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let Some(Some(x)) = operands.first() else {
        return Ok(None);
    };
    let axes = call.attribute_or_operand("axes", 1)?;
    fold_to(x, &squeezed(x.dims(), axes.as_deref())?)
}

/// Inserts axes of size 1; their positions refer to the result.
fn unsqueezed(dims: &[usize], axes: &[i64]) -> Result<Vec<usize>, String> {
    let rank = dims.len() + axes.len();
    if rank > limits::MAX_RANK {
        return Err(format!(
            "{rank} axes are more than the {} that a tensor may have",
            limits::MAX_RANK
        ));
    }
    let mut new = vec![false; rank];
    for &axis in axes {
        let axis = crate::import::normalize_axis(axis, rank)?;
        if std::mem::replace(&mut new[axis], true) {
            return Err(format!("axes {axes:?} name one twice"));
        }
    }
    let mut old = dims.iter();
    Ok(new
        .iter()
        .map(|&new| if new { 1 } else { old.next().copied().unwrap_or(1) })
        .collect())
}

fn unsqueeze(call: &mut Call) -> Built {
    let axes = call.attribute_or_operand("axes", 1)?.ok_or("the axes are missing")?;
    let dims = unsqueezed(&call.dims(0)?, &axes)?;
    reshaped(call, 0, &dims)
}

fn fold_unsqueeze(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let Some(Some(x)) = operands.first() else {
        return Ok(None);
    };
    let axes = call.attribute_or_operand("axes", 1)?.ok_or("the axes are missing")?;
    fold_to(x, &unsqueezed(x.dims(), &axes)?)
}

fn permutation(call: &Call, rank: usize) -> Result<Vec<usize>, String> {
    let Some(perm) = call.ints("perm")? else {
        return Ok((0..rank).rev().collect());
    };
    let mut seen = vec![false; rank];
    let valid = perm.len() == rank
        && perm
            .iter()
            .all(|&p| usize::try_from(p).is_ok_and(|p| p < rank && !std::mem::replace(&mut seen[p], true)));
    if valid {
        Ok(perm.iter().map(|&p| p as usize).collect())
    } else {
        Err(format!("perm = {perm:?} is not a permutation of {rank} axes"))
    }
}

fn transpose(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let axes: Vec<i32> = permutation(call, call.dims(0)?.len())?
        .iter()
        .map(|&p| p as i32)
        .collect();
    let y = call.graph().permute(x, &axes);
    call.one(y, element)
}

fn fold_transpose(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x)] = operands else { return Ok(None) };
    let perm = permutation(call, x.dims().len())?;
    let dims: Vec<usize> = perm.iter().map(|&p| x.dims()[p]).collect();
    let from = strides(x.dims());
    let positions = indices(&dims).map(|index| index.iter().zip(&perm).map(|(i, &p)| i * from[p]).sum());
    Ok(Some(vec![x.pick(&dims, positions)]))
}

fn shape(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let rank = dims.len() as i64;
    let clamp = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (clamp(call.int("start", 0)?), clamp(call.int("end", rank)?));
    let sizes: Vec<i64> = dims.get(start..end).unwrap_or(&[]).iter().map(|&d| d as i64).collect();
    Ok(vec![call.known_result(0, Tensor::i64(&[sizes.len()], sizes))])
}

fn size(call: &mut Call) -> Built {
    let count = call.operand(0)?.elements() as i64;
    Ok(vec![call.known_result(0, Tensor::scalar_i64(count))])
}

fn constant(call: &mut Call) -> Built {
    let attributes = call.attributes();
    let tensor = if let Some(proto) = attributes.tensor("value")? {
        if proto.data_type == STRING {
            return call.read_strings(proto);
        }
        call.read(proto)?
    } else if let Some(value) = attributes.float("value_float")? {
        Tensor::f32(&[], vec![value])
    } else if let Some(value) = attributes.int("value_int")? {
        Tensor::scalar_i64(value)
    } else if let Some(values) = attributes.floats("value_floats")? {
        Tensor::f32(&[values.len()], values.to_vec())
    } else if let Some(values) = attributes.ints("value_ints")? {
        Tensor::i64(&[values.len()], values.to_vec())
    } else if let Some(text) = attributes.string("value_string")? {
        return Ok(vec![call.known_strings(&[], &[text])]);
    } else if let Some(texts) = attributes.strings("value_strings")? {
        return Ok(vec![call.known_strings(&[texts.len()], &texts)]);
    } else {
        return Err("it has no tensor, numbers or strings as value".into());
    };
    Ok(vec![call.known_result(0, tensor)])
}

/// Returns a tensor of a shape that is filled with one value. A small one is computed at import.
fn filled(call: &mut Call, value: &Tensor, dims: &[usize]) -> Built {
    if let Some(tensor) = fold::expand(value, dims) {
        return Ok(vec![call.known_result(0, tensor)]);
    }
    let element = value.element();
    let scalar = call.scalar(element, value.to_f64()[0]);
    let y = call.graph().expand(scalar, dims);
    call.one(y, element)
}

fn constant_of_shape(call: &mut Call) -> Built {
    let wanted = call.known_ints(0, "the shape")?.ok_or("the shape is missing")?;
    let dims = dimensions(&wanted)?;
    let value = match call.attributes().tensor("value")? {
        Some(proto) => call.read(proto)?,
        None => Tensor::f32(&[1], vec![0.0]),
    };
    if value.len() != 1 {
        return Err(format!("its value has {} elements instead of one", value.len()));
    }
    filled(call, &value.reshaped(&[]), &dims)
}

fn expand(call: &mut Call) -> Built {
    let wanted = call.known_ints(1, "the shape")?.ok_or("the shape is missing")?;
    let dims = fold::broadcast(&[&call.dims(0)?, &dimensions(&wanted)?])?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let y = call.graph().expand(x, &dims);
    call.one(y, element)
}

fn fold_expand(_: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x), Some(shape)] = operands else {
        return Ok(None);
    };
    let dims = fold::broadcast(&[x.dims(), &dimensions(&shape.to_i64())?])?;
    Ok(fold::expand(x, &dims).map(|t| vec![t]))
}

fn tile(call: &mut Call) -> Built {
    let repeats = call.known_ints(1, "the repeats")?.ok_or("the repeats are missing")?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let repeats = dimensions(&repeats)?;
    let y = call.graph().tile(x, &repeats);
    call.one(y, element)
}

fn fold_tile(_: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x), Some(repeats)] = operands else {
        return Ok(None);
    };
    let repeats = dimensions(&repeats.to_i64())?;
    if repeats.len() != x.dims().len() {
        return Err(format!("{} repeats for {} dimensions", repeats.len(), x.dims().len()));
    }
    let dims: Option<Vec<usize>> = x.dims().iter().zip(&repeats).map(|(&d, &r)| d.checked_mul(r)).collect();
    let Some(dims) = dims.filter(|d| element_count(d).is_some_and(|n| n <= MAX_FOLDED)) else {
        return Ok(None);
    };
    let from = strides(x.dims());
    let positions =
        indices(&dims).map(|index| index.iter().zip(x.dims()).zip(&from).map(|((i, d), s)| i % d * s).sum());
    Ok(Some(vec![x.pick(&dims, positions)]))
}

fn concat(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let axis = call.axis(call.int("axis", 1)?, call.dims(0)?.len())?;
    let mut parts = Vec::new();
    for i in 0..call.arity() {
        // Exporters concatenate caches that are empty at first.
        if call.dims(i)?.get(axis) != Some(&0) {
            parts.push(call.value(i)?);
        }
    }
    let y = match parts.as_slice() {
        [] => call.value(0)?,
        [one] => *one,
        parts => call.graph().concat(parts, axis as i32).into(),
    };
    call.one(y, element)
}

fn fold_concat(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let tensors: Option<Vec<&Tensor>> = operands.iter().copied().collect();
    let Some(tensors) = tensors else { return Ok(None) };
    let Some(first) = tensors.first() else { return Ok(None) };
    let axis = call.axis(call.int("axis", 1)?, first.dims().len())?;
    let mut dims = first.dims().to_vec();
    dims[axis] = 0;
    for tensor in &tensors {
        let mut other = tensor.dims().to_vec();
        if other.len() != dims.len() || tensor.element() != first.element() {
            return Err(format!("operands {} cannot be joined", call.types()));
        }
        dims[axis] += std::mem::take(&mut other[axis]);
        let same = other.iter().enumerate().all(|(i, &d)| i == axis || d == dims[i]);
        if !same {
            return Err(format!("operands {} cannot be joined", call.types()));
        }
    }
    if element_count(&dims).is_none_or(|n| n > MAX_FOLDED) {
        return Ok(None);
    }
    // Finds the operand, and the position in it, of a position along the axis.
    let pick = |index: &[usize]| -> (usize, usize) {
        let mut along = index[axis];
        for (part, tensor) in tensors.iter().enumerate() {
            if along < tensor.dims()[axis] {
                let steps = strides(tensor.dims());
                let at = index.iter().zip(&steps).enumerate();
                return (
                    part,
                    at.map(|(i, (&x, s))| if i == axis { along * s } else { x * s }).sum(),
                );
            }
            along -= tensor.dims()[axis];
        }
        (0, 0)
    };
    let places: Vec<(usize, usize)> = indices(&dims).map(|index| pick(&index)).collect();
    let element = first.element();
    Ok(Some(vec![if element.is_float() {
        let data: Vec<Vec<f64>> = tensors.iter().map(|t| t.to_f64()).collect();
        Tensor::floats(
            element,
            &dims,
            places.iter().map(|&(part, at)| data[part][at]).collect(),
        )
    } else {
        let data: Vec<Vec<i64>> = tensors.iter().map(|t| t.to_i64()).collect();
        Tensor::integers(
            element,
            &dims,
            places.iter().map(|&(part, at)| data[part][at]).collect(),
        )
    }]))
}

/// Builds a range of numbers, whose bounds must be known at import.
fn range(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let bound = |i: usize, what: &str| call.known_scalar(i, what)?.ok_or_else(|| format!("{what} is missing"));
    let (start, limit, step) = (bound(0, "the start")?, bound(1, "the limit")?, bound(2, "the step")?);
    let count = ((limit - start) / step).ceil().max(0.0);
    if step == 0.0 || !count.is_finite() || count > limits::MAX_ELEMENTS as f64 {
        return Err(format!(
            "a range from {start} to {limit} by {step} has too many elements"
        ));
    }
    let values = (0..count as usize).map(|i| start + i as f64 * step);
    let tensor = if element.is_float() {
        Tensor::floats(element, &[count as usize], values.collect())
    } else {
        Tensor::integers(element, &[count as usize], values.map(|v| v as i64).collect())
    };
    Ok(vec![call.known_result(0, tensor)])
}

fn eye_like(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = match call.attributes().int("dtype")? {
        Some(number) => ElementType::from_number(number)?,
        None => call.element(0)?,
    };
    let [rows, columns] = dims.as_slice() else {
        return Err(format!("expected a matrix, found {dims:?}"));
    };
    limits::elements(&dims, "a matrix")?;
    let k = call.int("k", 0)?;
    let ones = (0..*rows as i64).flat_map(|i| (0..*columns as i64).map(move |j| i64::from(j - i == k)));
    let tensor = if element.is_float() {
        Tensor::floats(element, &dims, ones.map(|v| v as f64).collect())
    } else {
        Tensor::integers(element, &dims, ones.collect())
    };
    Ok(vec![call.known_result(0, tensor)])
}

fn dropout(call: &mut Call) -> Built {
    let training = if call.opset < 7 {
        call.int("is_test", 0)? == 0 && call.float("ratio", 0.5)? != 0.0
    } else {
        call.known_scalar(2, "the training mode")?.unwrap_or(0.0) != 0.0
    };
    if training && call.known_scalar(1, "the ratio")?.unwrap_or(0.5) != 0.0 {
        return Err("dropping elements (training_mode) is not supported".into());
    }
    let x = call.operand(0)?.clone();
    let mask = filled_mask(call, &x.dims)?;
    Ok(vec![x, mask])
}

/// Returns the mask of a Dropout that drops nothing.
fn filled_mask(call: &mut Call, dims: &[usize]) -> Result<Operand, String> {
    if !call.wants(1) {
        return Ok(call.known_result(1, Tensor::integers(ElementType::Bool, &[], vec![1])));
    }
    let one = call.scalar(ElementType::Bool, 1.0);
    let ones = call.graph().expand(one, dims);
    Ok(call.result(ones, ElementType::Bool))
}

fn trilu(call: &mut Call) -> Built {
    let (x, element) = (call.value(0)?, call.element(0)?);
    let diagonal = call.known_scalar(1, "the diagonal")?.unwrap_or(0.0);
    let diagonal = diagonal.clamp(-1e9, 1e9) as i32;
    let y = if call.int("upper", 1)? != 0 {
        call.graph().triu(x, diagonal)
    } else {
        call.graph().tril(x, diagonal)
    };
    call.one(y, element)
}

/// Returns batch, channels, height and width of operand `i`, which must have four axes.
fn image(call: &Call, i: usize) -> Result<[usize; 4], String> {
    let dims = call.dims(i)?;
    <[usize; 4]>::try_from(dims.as_slice()).map_err(|_| {
        format!(
            "expected [batch, channels, height, width], found \
        {dims:?}"
        )
    })
}

/// Maximum side of a block, so that its area does not overflow.
const MAX_BLOCK: usize = 1 << 16;

fn block_size(call: &Call) -> Result<usize, String> {
    let size = call.int("blocksize", 0)?;
    usize::try_from(size)
        .ok()
        .filter(|s| (1..=MAX_BLOCK).contains(s))
        .ok_or_else(|| format!("blocksize: expected 1 to {MAX_BLOCK}, found {size}"))
}

fn depth_to_space(call: &mut Call) -> Built {
    let [n, c, h, w] = image(call, 0)?;
    let b = block_size(call)?;
    if !c.is_multiple_of(b * b) {
        return Err(format!("{c} channels are not a multiple of {b} x {b}"));
    }
    let (x, element) = (call.value(0)?, call.element(0)?);
    let (split, order): ([usize; 6], [i32; 6]) = match &*call.string("mode", "DCR")? {
        "DCR" => ([n, b, b, c / (b * b), h, w], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, c / (b * b), b, b, h, w], [0, 1, 4, 2, 5, 3]),
        other => return Err(format!("mode `{other}` is neither DCR nor CRD")),
    };
    let graph = call.graph();
    let blocks = graph.reshape(x, &split);
    let placed = graph.permute(blocks, &order);
    let y = graph.reshape(placed, &[n, c / (b * b), h.saturating_mul(b), w.saturating_mul(b)]);
    call.one(y, element)
}

fn space_to_depth(call: &mut Call) -> Built {
    let [n, c, h, w] = image(call, 0)?;
    let b = block_size(call)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(format!("{h} x {w} is not a multiple of {b}"));
    }
    let (x, element) = (call.value(0)?, call.element(0)?);
    let order: &[i32] = match &*call.string("mode", "DCR")? {
        "DCR" => &[0, 3, 5, 1, 2, 4],
        "CRD" => &[0, 1, 3, 5, 2, 4],
        other => return Err(format!("mode `{other}` is neither DCR nor CRD")),
    };
    let graph = call.graph();
    let blocks = graph.reshape(x, &[n, c, h / b, b, w / b, b]);
    let placed = graph.permute(blocks, order);
    let y = graph.reshape(placed, &[n, c.saturating_mul(b * b), h / b, w / b]);
    call.one(y, element)
}

fn reverse_sequence(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let lengths = call.known_ints(1, "the lengths")?.ok_or("the lengths are missing")?;
    let (batch, time) = (
        call.axis(call.int("batch_axis", 1)?, dims.len())?,
        call.axis(call.int("time_axis", 0)?, dims.len())?,
    );
    if batch == time || lengths.len() != dims[batch] {
        return Err(format!("{} lengths for a batch of {}", lengths.len(), dims[batch]));
    }
    if let Some(length) = lengths
        .iter()
        .find(|&&length| length < 0 || length as usize > dims[time])
    {
        return Err(format!("a length of {length} of {} elements", dims[time]));
    }
    limits::elements(&dims, "a tensor")?;
    let sources: Vec<u32> = indices(&dims)
        .map(|index| {
            let (length, at) = (lengths[index[batch]] as usize, index[time]);
            (if at < length { length - 1 - at } else { at }) as u32
        })
        .collect();
    let x = call.value(0)?;
    let graph = call.graph();
    let sources = graph.constant_u32(sources, &dims);
    let y = graph.take_along_axis(x, sources, time as i32);
    call.one(y, element)
}
