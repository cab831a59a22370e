//! Arithmetic on tensors that are known at import, mostly for shapes.

use crate::element::ElementType;
use crate::import::Call;
use crate::tensor::{Data, Tensor, element_count};

/// Maximum number of elements of a folded result; larger results are built in the graph.
pub(super) const MAX_FOLDED: usize = 1 << 16;

/// Returns the shape that all of these shapes broadcast to.
pub(super) fn broadcast(shapes: &[&[usize]]) -> Result<Vec<usize>, String> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut result = vec![1; rank];
    for shape in shapes {
        for (size, &s) in result[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*size, s) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *size = b,
                _ => return Err(format!("shapes {shapes:?} do not broadcast")),
            }
        }
    }
    Ok(result)
}

/// Returns row-major strides.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

/// Returns all index tuples of a shape, in row-major order.
pub(super) fn indices(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let dims = dims.to_vec();
    let count = element_count(&dims).unwrap_or(0);
    (0..count).map(move |mut flat| {
        let mut index = vec![0; dims.len()];
        for (at, &size) in index.iter_mut().zip(&dims).rev() {
            *at = flat % size;
            flat /= size;
        }
        index
    })
}

/// Broadcasts `x` to a shape; `None` if the shape is too large.
pub(super) fn expand(x: &Tensor, shape: &[usize]) -> Option<Tensor> {
    if x.dims() == shape {
        return Some(x.clone());
    }
    if element_count(shape)? > MAX_FOLDED {
        return None;
    }
    let skipped = shape.len() - x.dims().len();
    let strides = strides(x.dims());
    let positions = indices(shape).map(|index| {
        let axes = index[skipped..].iter().zip(x.dims()).zip(&strides);
        axes.map(|((&i, &size), stride)| if size == 1 { 0 } else { i * stride })
            .sum()
    });
    Some(x.pick(shape, positions))
}

/// Common element type and shape of broadcast operands, and the broadcast operands.
type BroadcastOperands = (ElementType, Vec<usize>, Vec<Tensor>);

/// Broadcasts operands of one type to one shape; `None` if the shape is too large.
fn aligned(operands: &[Option<&Tensor>]) -> Result<Option<BroadcastOperands>, String> {
    let present: Vec<&Tensor> = operands.iter().filter_map(|t| *t).collect();
    let Some(first) = present.first() else { return Ok(None) };
    let shape = broadcast(&present.iter().map(|t| t.dims()).collect::<Vec<_>>())?;
    let expanded: Option<Vec<Tensor>> = present.iter().map(|t| expand(t, &shape)).collect();
    Ok(expanded.map(|tensors| (first.element(), shape, tensors)))
}

/// Computes `a op b` for integers or floats.
pub(super) fn binary(
    operands: &[Option<&Tensor>],
    of_ints: fn(i64, i64) -> Option<i64>,
    of_floats: fn(f64, f64) -> f64,
) -> Result<Option<Vec<Tensor>>, String> {
    let Some((element, shape, tensors)) = aligned(operands)? else {
        return Ok(None);
    };
    let mut tensors = tensors.into_iter();
    let Some(mut result) = tensors.next() else {
        return Ok(None);
    };
    for other in tensors {
        result = match (&result.data, &other.data) {
            (Data::Int(a), Data::Int(b)) => {
                let values: Option<Vec<i64>> = a.iter().zip(b).map(|(&a, &b)| of_ints(a, b)).collect();
                match values {
                    Some(values) => Tensor::integers(element, &shape, values),
                    None => return Err("arithmetic on shapes overflows or divides by 0".into()),
                }
            }
            _ if element.is_float() => {
                let (a, b) = (result.to_f64(), other.to_f64());
                Tensor::floats(
                    element,
                    &shape,
                    a.iter().zip(&b).map(|(&a, &b)| of_floats(a, b)).collect(),
                )
            }
            _ => return Ok(None),
        };
    }
    Ok(Some(vec![result]))
}

/// Returns true if the node has a version before 7 and an attribute `axis` for the alignment of its second operand.
pub(super) fn names_axis(call: &Call) -> bool {
    call.opset < 7 && call.attributes().has("axis")
}

/// Computes [`binary`] for an operator with an optional axis attribute; not folded if the axis is present.
pub(super) fn pair(
    call: &Call,
    operands: &[Option<&Tensor>],
    of_ints: fn(i64, i64) -> Option<i64>,
    of_floats: fn(f64, f64) -> f64,
) -> Result<Option<Vec<Tensor>>, String> {
    if names_axis(call) {
        Ok(None)
    } else {
        binary(operands, of_ints, of_floats)
    }
}

/// Computes [`compare`] for an operator with an optional axis attribute; not folded if the axis is present.
pub(super) fn compare_pair(
    call: &Call,
    operands: &[Option<&Tensor>],
    of_ints: fn(i64, i64) -> bool,
    of_floats: fn(f64, f64) -> bool,
) -> Result<Option<Vec<Tensor>>, String> {
    if names_axis(call) {
        Ok(None)
    } else {
        compare(operands, of_ints, of_floats)
    }
}

/// Compares two operands by a relation.
pub(super) fn compare(
    operands: &[Option<&Tensor>],
    of_ints: fn(i64, i64) -> bool,
    of_floats: fn(f64, f64) -> bool,
) -> Result<Option<Vec<Tensor>>, String> {
    let Some((_, shape, tensors)) = aligned(operands)? else {
        return Ok(None);
    };
    let [a, b] = tensors.as_slice() else { return Ok(None) };
    let values = match (&a.data, &b.data) {
        (Data::Int(a), Data::Int(b)) => a.iter().zip(b).map(|(&a, &b)| of_ints(a, b).into()).collect(),
        _ => {
            let (a, b) = (a.to_f64(), b.to_f64());
            a.iter().zip(&b).map(|(&a, &b)| of_floats(a, b).into()).collect()
        }
    };
    Ok(Some(vec![Tensor::integers(ElementType::Bool, &shape, values)]))
}

/// Applies a function to each element.
pub(super) fn unary(
    operands: &[Option<&Tensor>],
    of_ints: Option<fn(i64) -> i64>,
    of_floats: fn(f64) -> f64,
) -> Result<Option<Vec<Tensor>>, String> {
    let [Some(x)] = operands else { return Ok(None) };
    Ok(match (&x.data, of_ints) {
        (Data::Int(data), Some(f)) => {
            let data = data.iter().map(|&v| f(v)).collect();
            Some(vec![Tensor::integers(x.element(), x.dims(), data)])
        }
        (Data::Int(_), None) => None,
        _ => {
            let data = x.to_f64().into_iter().map(of_floats).collect();
            Some(vec![Tensor::floats(x.element(), x.dims(), data)])
        }
    })
}

/// Returns the first operand unchanged, if it is known.
pub(super) fn first(_: &Call, operands: &[Option<&Tensor>]) -> Result<Option<Vec<Tensor>>, String> {
    Ok(operands.first().copied().flatten().map(|t| vec![t.clone()]))
}
