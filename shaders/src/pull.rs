//! Operators whose result elements are copies of operand elements, or generated numbers such as random bits.

use meganeura_core::ops::Call;

use super::body::Id;
use super::emit::Emitter;
use super::location::{Index, Location, broadcast};
use super::scalar::{literal, number};

/// Returns a variable with the element at a location.
pub(super) fn value(e: &mut Emitter, name: &str, call: &Call, inputs: &[Id], at: &[Index]) -> Result<String, String> {
    match name {
        "core.pad" => pad(e, call, inputs[0], at),
        "core.concat" => concat(e, call, inputs, at),
        "core.gather" => gather(e, call, inputs, at),
        "core.take_along_axis" => take_along_axis(e, call, inputs, at),
        "core.tril" => triangle(e, call, inputs[0], at, "<="),
        "core.triu" => triangle(e, call, inputs[0], at, ">="),
        "core.random_bits" => {
            let uid = call.attrs.size("uid")? as u32;
            let seed = e.value(inputs[0], &broadcast(&[], &call.inputs[0].shape))?;
            let step = e.value(inputs[1], &broadcast(&[], &call.inputs[1].shape))?;
            let number = e.linear(at, &call.outputs[0].shape)?;
            e.bind(&format!("random_word({seed}, {uid}u, {step}, {number})"))
        }
        _ => Err(format!("there is no kernel of {name}")),
    }
}

fn zero(call: &Call) -> String {
    literal(call.outputs[0].dtype, 0)
}

/// Returns an element of the operand if the conditions hold, else `other`. The location must be valid even if the
/// conditions are false. Returns `other` if the operand has no elements.
fn choose(e: &mut Emitter, input: Id, at: &[Index], conditions: &[String], other: &str) -> Result<String, String> {
    if e.body.ty(input).numel() == 0 {
        return Ok(other.to_owned());
    }
    let value = e.value(input, at)?;
    if conditions.is_empty() {
        return Ok(value);
    }
    e.bind(&format!("select({other}, {value}, {})", conditions.join(" && ")))
}

fn pad(e: &mut Emitter, call: &Call, input: Id, at: &[Index]) -> Result<String, String> {
    let attr = |name| call.attrs.ints(name);
    let (low, high, interior) = (attr("low")?, attr("high")?, attr("interior")?);
    let dtype = call.outputs[0].dtype;
    let value = number(dtype, call.attrs.float("value")?);
    let mut inner: Location = Vec::with_capacity(at.len());
    let mut conditions = Vec::new();
    for (axis, &size) in call.inputs[0].shape.iter().enumerate() {
        if (low[axis], high[axis]) == (0, 0) && (interior[axis] == 0 || size <= 1) {
            inner.push(at[axis].clone());
            continue;
        }
        // Indices before the first element wrap around to large numbers.
        let index = e.index(&at[axis])?;
        let mut found = e.bind(&format!("{index} - {}u", low[axis]))?;
        if interior[axis] > 0 && size > 1 {
            let step = interior[axis] + 1;
            let whole = e.bind(&format!("{found} / {step}u"))?;
            conditions.push(format!("{whole} * {step}u == {found}"));
            found = whole;
        }
        conditions.push(format!("{found} < {size}u"));
        let last = size.saturating_sub(1);
        inner.push(Index::text(e.bind(&format!("min({found}, {last}u)"))?));
    }
    choose(e, input, &inner, &conditions, &value)
}

fn concat(e: &mut Emitter, call: &Call, inputs: &[Id], at: &[Index]) -> Result<String, String> {
    let axis = call.outputs[0].shape.axis(call.attrs.int("axis")?)?;
    let index = e.index(&at[axis])?;
    let mut start = 0;
    let mut value = zero(call);
    for (&input, ty) in inputs.iter().zip(call.inputs) {
        let size = ty.shape[axis];
        if size > 0 {
            let mut location = at.to_vec();
            location[axis] = match size {
                1 => Index::Zero,
                _ => Index::text(e.bind(&format!("clamp({index}, {start}u, {}u) - {start}u", start + size - 1))?),
            };
            value = choose(e, input, &location, &[format!("{index} >= {start}u")], &value)?;
        }
        start += size;
    }
    Ok(value)
}

fn gather(e: &mut Emitter, call: &Call, inputs: &[Id], at: &[Index]) -> Result<String, String> {
    let (indices, table) = (&call.inputs[0].shape, &call.inputs[1].shape);
    let axis = table.axis(call.attrs.int("axis")?)?;
    let end = axis + indices.rank();
    let index = e.value(inputs[0], &at[axis..end])?;
    let mut location = at[..axis].to_vec();
    location.push(row(e, &index, table[axis])?);
    location.extend_from_slice(&at[end..]);
    choose(e, inputs[1], &location, &[], &zero(call))
}

fn take_along_axis(e: &mut Emitter, call: &Call, inputs: &[Id], at: &[Index]) -> Result<String, String> {
    let table = &call.inputs[0].shape;
    let axis = table.axis(call.attrs.int("axis")?)?;
    let index = e.value(inputs[1], at)?;
    let mut location = at.to_vec();
    location[axis] = row(e, &index, table[axis])?;
    choose(e, inputs[0], &location, &[], &zero(call))
}

/// Returns a row index that was loaded from memory, after the bounds check.
fn row(e: &mut Emitter, index: &str, rows: usize) -> Result<Index, String> {
    let checked = e.module.checked_index(index, rows);
    Ok(Index::text(e.bind(&checked)?))
}

fn triangle(e: &mut Emitter, call: &Call, input: Id, at: &[Index], compare: &str) -> Result<String, String> {
    let diagonal = call.attrs.int("diagonal")?;
    let [.., row, column] = at else {
        return Err("a matrix has two axes".into());
    };
    let (row, column) = (e.index(row)?, e.index(column)?);
    let limits = i64::from(i32::MIN) / 2..=i64::from(i32::MAX) / 2;
    if !limits.contains(&diagonal) || call.inputs[0].numel() > i32::MAX as usize / 2 {
        return Err("the diagonal is out of range".into());
    }
    let condition = format!("i32({column}) {compare} i32({row}) + ({diagonal})");
    choose(e, input, at, &[condition], &zero(call))
}
