//! Sequences inside a model: lists with known lengths and positions, which exist only during an import.

use meganeura_core::graph::Value;

use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::read::dimensions;
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;

/// Maximum length of a sequence.
const MAX_LENGTH: usize = 256;

const POSITION: &str = "positions that depend on the data of an input";

pub(super) const OPS: &[OnnxOp] = &[
    op("ConcatFromSequence", 11, concat_from_sequence).taking_sequences(),
    op("SequenceAt", 11, sequence_at).taking_sequences().partly(POSITION),
    op("SequenceConstruct", 11, sequence_construct).partly("more than 256 values"),
    op("SequenceEmpty", 11, sequence_empty),
    op("SequenceErase", 11, sequence_erase)
        .taking_sequences()
        .partly(POSITION),
    op("SequenceInsert", 11, sequence_insert)
        .taking_sequences()
        .partly(POSITION),
    op("SequenceLength", 11, sequence_length).taking_sequences(),
    op("SequenceMap", 17, sequence_map).taking_sequences(),
    op("SplitToSequence", 11, split_to_sequence)
        .partly("sizes that depend on the data of an input, more than 256 parts"),
];

/// Returns the values of the sequence in operand 0.
fn values(call: &Call) -> Result<Vec<Operand>, String> {
    let values = call.operand(0)?.values();
    Ok(values.ok_or("operand 0 is not a sequence")?.to_vec())
}

fn list(element: ElementType, values: Vec<Operand>) -> Built {
    match values.len() {
        0..=MAX_LENGTH => Ok(vec![Operand::list(element, values)]),
        length => Err(format!("a sequence of {length} values is too long")),
    }
}

/// Returns a non-negative position in a sequence of this length; the default is the last one.
fn position(call: &Call, i: usize, length: usize) -> Result<usize, String> {
    let Some(at) = call.known_scalar(i, "the position")? else {
        return length.checked_sub(1).ok_or_else(|| "the sequence is empty".into());
    };
    call.axis(at as i64, length)
        .map_err(|_| format!("position {at} does not exist in a sequence of {length}"))
}

fn sequence_empty(call: &mut Call) -> Built {
    let element = ElementType::from_number(call.int("dtype", 1)?)?;
    list(element, Vec::new())
}

fn sequence_construct(call: &mut Call) -> Built {
    let mut found = Vec::new();
    for i in 0..call.arity() {
        found.push(call.operand(i)?.clone());
    }
    list(call.element(0)?, found)
}

fn sequence_at(call: &mut Call) -> Built {
    let values = values(call)?;
    let at = position(call, 1, values.len())?;
    Ok(vec![values[at].clone()])
}

fn sequence_erase(call: &mut Call) -> Built {
    let mut values = values(call)?;
    values.remove(position(call, 1, values.len())?);
    list(call.element(0)?, values)
}

fn sequence_insert(call: &mut Call) -> Built {
    let mut values = values(call)?;
    let value = call.operand(1)?.clone();
    if value.values().is_some() {
        return Err("sequences of sequences are not supported".into());
    }
    // The position after the last element is also valid, if it is counted from the front.
    let at = match call.known_scalar(2, "the position")? {
        Some(at) if at != values.len() as f64 => position(call, 2, values.len())?,
        _ => values.len(),
    };
    let element = value.element;
    values.insert(at, value);
    list(element, values)
}

fn sequence_length(call: &mut Call) -> Built {
    let length = Tensor::scalar_i64(values(call)?.len() as i64);
    Ok(vec![call.known_result(0, length)])
}

fn concat_from_sequence(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let values = values(call)?;
    let first = values.first().ok_or("an empty sequence has no shape")?;
    let new = call.int("new_axis", 0)? != 0;
    let axis = call.int("axis", 0)?;
    let axis = call.axis(axis, first.dims.len() + usize::from(new))?;
    let mut parts: Vec<Value> = Vec::new();
    for value in &values {
        let part = call.value_of(value)?;
        parts.push(if !new {
            part
        } else {
            let mut dims = value.dims.clone();
            dims.insert(axis.min(dims.len()), 1);
            call.graph().reshape(part, &dims).into()
        });
    }
    let y = call.graph().concat(&parts, axis as i32);
    call.one(y, element)
}

/// Splits a tensor: into single elements of an axis, or into parts of the sizes in an operand.
fn split_to_sequence(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let size = dims[axis];
    let too_many = || format!("an axis of {size} elements is split into too many parts");
    let sizes = match call.known_ints(1, "the sizes")? {
        None => match size {
            0..=MAX_LENGTH => vec![1; size],
            _ => return Err(too_many()),
        },
        Some(list) if call.dims(1)?.is_empty() => {
            let each = list.first().and_then(|&n| usize::try_from(n).ok()).filter(|&n| n > 0);
            let each = each.ok_or("the size of a part is not positive")?;
            let count = size.div_ceil(each);
            if count > MAX_LENGTH {
                return Err(too_many());
            }
            (0..count).map(|i| each.min(size - i * each)).collect()
        }
        Some(list) => dimensions(&list)?,
    };
    if sizes.len() > MAX_LENGTH || sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(size) {
        return Err(format!("{} parts do not add up to {size}", sizes.len()));
    }
    let squeezed = call.int("keepdims", 1)? == 0 && !call.has_input(1);
    let x = call.value(0)?;
    let (mut parts, mut start) = (Vec::new(), 0);
    for size in sizes {
        let graph = call.graph();
        let mut part = graph.slice_axis(x, axis as i32, start, start + size);
        if squeezed {
            let mut dims = dims.clone();
            dims.remove(axis);
            part = graph.reshape(part, &dims);
        }
        parts.push(call.result(part, element));
        start += size;
    }
    list(element, parts)
}

/// Applies a body to each value of a sequence, together with values of other sequences, or tensors that are the same for all.
fn sequence_map(call: &mut Call) -> Built {
    let body = call.subgraph("body")?;
    let count = values(call)?.len();
    let mut given = Vec::new();
    for i in 0..call.arity() {
        given.push(call.operand(i)?.clone());
    }
    let mut results: Vec<Vec<Operand>> = vec![Vec::new(); body.output.len()];
    for i in 0..count {
        let mut inputs = Vec::new();
        for operand in &given {
            inputs.push(match operand.values() {
                None => operand.clone(),
                Some(values) => values.get(i).ok_or("its sequences differ in length")?.clone(),
            });
        }
        let found = call.body(body, &format!("value{i}"), inputs)?;
        for (list, value) in results.iter_mut().zip(found) {
            list.push(value);
        }
    }
    let mut lists = Vec::new();
    for values in results {
        let element = values.first().map_or(ElementType::F32, |value| value.element);
        lists.extend(list(element, values)?);
    }
    Ok(lists)
}
