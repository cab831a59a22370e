//! Conversions between element types.

use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::fold::MAX_FOLDED;
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::read::{STRING, StringList};
use crate::small::SmallFloat;
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

/// Returns the type of the attribute `to`.
fn target(call: &Call) -> Result<ElementType, String> {
    ElementType::from_number(call.int("to", 0)?)
}

pub(super) fn cast(call: &mut Call) -> Built {
    if call.int("to", 0)? == i64::from(STRING) {
        return to_strings(call);
    }
    let to = target(call)?;
    if let Some(strings) = call.strings(0).cloned() {
        return from_strings(call, &strings, to);
    }
    cast_to(call, to)
}

pub(super) fn cast_like(call: &mut Call) -> Built {
    let to = call.element(1)?;
    cast_to(call, to)
}

pub(super) fn fold_cast(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x)] = operands else { return Ok(None) };
    if x.element() == ElementType::Text || call.int("to", 0)? == i64::from(STRING) {
        return Ok(None);
    }
    let to = target(call)?;
    // Known tensors saturate.
    if call.int("saturate", 1)? == 0 && SmallFloat::of(to).is_some() {
        Ok(None)
    } else {
        Ok(Some(vec![x.cast(to)]))
    }
}

pub(super) fn fold_cast_like(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x), Some(like)] = operands else {
        return Ok(None);
    };
    if call.int("saturate", 1)? == 0 && SmallFloat::of(like.element()).is_some() {
        Ok(None)
    } else {
        Ok(Some(vec![x.cast(like.element())]))
    }
}

/// Maximum number of integers that are converted to strings.
const MAX_STRINGS: i64 = 1 << 16;

/// Converts numbers to strings: constants, and integers with a small range.
fn to_strings(call: &mut Call) -> Built {
    if call.element(0)? == ElementType::Text {
        return Ok(vec![call.operand(0)?.clone()]);
    }
    let element = call.element(0)?;
    if element == ElementType::Bool {
        return Err("expected numbers, found bool: its conversion to strings is not supported".into());
    }
    if let Some(tensor) = call.determined(0).filter(|tensor| tensor.len() <= MAX_FOLDED) {
        let mut list = StringList::default();
        let places = match tensor.ints() {
            Some(data) => data.iter().map(|v| list.index(&v.to_string())).collect(),
            // The shortest text of an `f32` differs from that of the same number as `f64`.
            None if element == ElementType::F64 => tensor.to_f64().iter().map(|v| list.index(&v.to_string())).collect(),
            None => tensor.to_f32().iter().map(|v| list.index(&v.to_string())).collect(),
        };
        let places = Tensor::integers(ElementType::Text, tensor.dims(), places);
        let result = call.known_result(0, places);
        return Ok(vec![result.with_strings(Arc::new(list.strings))]);
    }
    let (low, high) = match call.range(0) {
        Some((low, high)) if high.saturating_sub(low) < MAX_STRINGS && low <= high => (low, high),
        _ => {
            return Err(format!(
                "expected constants or integers of a small range, found computed {element}: strings are not supported \
                 as the result of a step"
            ));
        }
    };
    let x = call.value(0)?;
    let x = call.as_element(x, ElementType::I32);
    let low_value = call.scalar(ElementType::I32, low as f64);
    let places = call.graph().sub(x, low_value);
    let strings = (low..=high).map(|v| v.to_string()).collect();
    Ok(vec![call.string_result(places, strings)])
}

/// Converts strings to numbers: the number of each string of the list is computed at import.
fn from_strings(call: &mut Call, strings: &[String], to: ElementType) -> Built {
    let wrong = |text: &String| format!("expected a number as {to}, found the string {text:?}");
    let table = if to.is_float() {
        let numbers = strings
            .iter()
            .map(|text| text.trim().parse::<f64>().map_err(|_| wrong(text)));
        Tensor::floats(to, &[strings.len()], numbers.collect::<Result<_, _>>()?)
    } else {
        let number = |text: &String| {
            let whole = text.trim().parse::<i64>().ok();
            let number = whole.or_else(|| text.trim().parse::<f64>().ok().map(|v| v as i64));
            number.ok_or_else(|| wrong(text))
        };
        let numbers = strings.iter().map(number).collect::<Result<_, _>>()?;
        Tensor::integers(to, &[strings.len()], numbers)
    };
    if let Some(places) = call.determined(0) {
        let dims = places.dims().to_vec();
        let picked = table.pick(&dims, places.to_i64().into_iter().map(|place| place as usize));
        return Ok(vec![call.known_result(0, picked)]);
    }
    let at = call.value(0)?;
    let table = table.to_constant()?;
    let graph = call.graph();
    let table = graph.constant_data(table, &[strings.len()]);
    let at = graph.cast(at, DType::U32);
    let y = graph.gather(table, at);
    call.one(y, to)
}

fn cast_to(call: &mut Call, to: ElementType) -> Built {
    let from = call.element(0)?;
    let x = call.value(0)?;
    let y = match SmallFloat::of(to) {
        Some(small) if from != to => {
            let saturate = call.int("saturate", 1)? != 0;
            super::small::rounded(call, x, small, saturate)
        }
        _ => convert(call, x, from, to),
    };
    guard_cast(call, x, y, to)?;
    call.one(y, to)
}

/// Guards the conversion `y` of operand 0 to 64-bit integers. NaN is not checked: it may become any integer.
fn guard_cast(call: &mut Call, x: Value, y: Value, to: ElementType) -> Result<(), String> {
    let (Some((low, high)), 64) = (to.graph_range(), to.bits()) else {
        return Ok(());
    };
    let flag = match call.range(0) {
        Some((least, most)) if least >= low && most <= high => return Ok(()),
        // Only the signedness can differ: a value that does not fit changes its sign with the same bits.
        Some(_) => {
            let signed = call.as_element(y, ElementType::I64);
            let zero = call.scalar(ElementType::I64, 0.0);
            call.graph().less_than(signed, zero)
        }
        None => {
            // Numbers between -1 and 0 are truncated to 0. `f32` has no number between -2^31 - 1 and -2^31.
            let x = call.as_f32(x);
            let least = call.scalar(ElementType::F32, if low == 0 { -1.0 } else { low as f64 });
            let most = call.scalar(ElementType::F32, high as f64 + 1.0);
            let graph = call.graph();
            let below = match low {
                0 => graph.less_equal(x, least),
                _ => graph.less_than(x, least),
            };
            let above = graph.greater_equal(x, most);
            graph.logical_or(below, above)
        }
    };
    call.guard(flag, y, to);
    Ok(())
}

/// Converts a value to another element type: floats to integers truncate, integers wrap, and every value except 0 is true.
pub(super) fn convert(call: &mut Call, x: Value, from: ElementType, to: ElementType) -> Value {
    if from == to {
        return x;
    }
    if let Some(small) = SmallFloat::of(to) {
        return super::small::rounded(call, x, small, true);
    }
    if to == ElementType::Bool {
        let zero = call.scalar(from, 0.0);
        return call.graph().not_equal(x, zero).into();
    }
    if to.is_float() || (to.bits() >= 32 && !(from.is_float() && to.dtype() == DType::U32)) {
        return call.as_element(x, to);
    }
    if from.is_float() && to.bits() >= 32 {
        return call.graph().cast(x, DType::U32).into();
    }
    // Floats are converted through the signed type, so that negative values wrap.
    let x = if from.is_float() {
        call.graph().cast(x, DType::I32).into()
    } else {
        x
    };
    let x = call.as_element(x, to);
    call.wrap(x, to)
}
