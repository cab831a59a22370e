//! Branches and loops.

use meganeura_core::graph::Value;

use super::slice::empty_data;
use super::{OnnxOp, op};
use crate::import::{Call, Operand};
use crate::report::DEPENDS_ON_DATA;
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;

/// Maximum number of rounds of a loop that is unrolled.
const MAX_ROUNDS: usize = 256;

pub(super) const OPS: &[OnnxOp] = &[
    op("If", 1, branch).partly("branches of different shapes under a condition that depends on the data of an input"),
    op("Loop", 1, repeat)
        .taking_sequences()
        .partly("a number of rounds that depends on the data of an input, or is over 256"),
    op("OptionalGetElement", 18, |c| Ok(vec![c.operand(0)?.clone()]))
        .taking_sequences()
        .partly("optional values"),
    op("OptionalHasElement", 18, has_element)
        .taking_sequences()
        .partly("optional values"),
    op("Scan", 8, scan).partly("more than 256 rounds, sequences of different lengths"),
];

/// Returns true if the operand is present.
fn has_element(call: &mut Call) -> Built {
    let there = Tensor::integers(crate::ElementType::Bool, &[], vec![call.has_input(0).into()]);
    Ok(vec![call.known_result(0, there)])
}

fn branch(call: &mut Call) -> Built {
    let (then, otherwise) = (call.subgraph("then_branch")?, call.subgraph("else_branch")?);
    if let Some(condition) = call.determined(0) {
        return match condition.to_i64().first() {
            Some(0) => call.body(otherwise, "else", Vec::new()),
            Some(_) => call.body(then, "then", Vec::new()),
            None => Err("its condition has no elements".into()),
        };
    }
    let condition = call.value(0)?;
    let condition = call.graph().reshape(condition, &[]);
    // Often only one branch fits the shapes of the inputs, and the value of an input selects it.
    let opposite = call.graph().logical_not(condition).into();
    let both = (
        call.branch(then, "then", condition.into()),
        call.branch(otherwise, "else", opposite),
    );
    let (Ok(a), Ok(b)) = both else {
        return Err(format!(
            "its condition {DEPENDS_ON_DATA}, so both branches are needed, but one cannot be imported"
        ));
    };
    let mut results = Vec::new();
    for (a, b) in a.iter().zip(&b) {
        if a.dims != b.dims || a.element != b.element {
            return Err(format!(
                "its condition {DEPENDS_ON_DATA}, but the branches return {}{:?} and {}{:?}",
                a.element, a.dims, b.element, b.dims
            ));
        }
        let (left, right) = (call.value_of(a)?, call.value_of(b)?);
        let y = call.graph().select(condition, left, right);
        results.push(call.result(y, a.element));
    }
    Ok(results)
}

/// Returns the stacked result `i` of a loop without rounds: size 0 along `axis`, and the other sizes of `one`, the
/// result of a single round.
fn empty(call: &Call, i: usize, one: &Operand, axis: usize) -> Operand {
    let mut dims = one.dims.clone();
    dims.insert(axis.min(dims.len()), 0);
    call.known_result(i, Tensor::new(one.element, &dims, empty_data(one.element)))
}

/// Stacks the results of all rounds along a new axis.
fn stacked(call: &mut Call, rounds: &[Operand], axis: usize, reverse: bool) -> Result<Operand, String> {
    let first = rounds
        .first()
        .ok_or("a loop without iterations has no results to stack")?;
    let element = first.element;
    let mut parts: Vec<Value> = Vec::new();
    for round in rounds {
        if round.dims != first.dims {
            return Err("a stacked result changes its shape between iterations".into());
        }
        let value = call.value_of(round)?;
        let mut dims = round.dims.clone();
        dims.insert(axis.min(dims.len()), 1);
        parts.push(call.graph().reshape(value, &dims).into());
    }
    if reverse {
        parts.reverse();
    }
    let y = call.graph().concat(&parts, axis as i32);
    Ok(call.result(y, element))
}

/// Unrolls a loop whose number of rounds is determined at import: the condition after each round must not depend on a
/// step.
fn repeat(call: &mut Call) -> Built {
    let body = call.subgraph("body")?;
    let limit = if call.has_input(0) {
        call.known_scalar(0, "the number of rounds")?
            .map(|n| n.max(0.0) as usize)
    } else {
        None
    };
    let mut going = if call.has_input(1) {
        call.known_scalar(1, "the condition")?.is_none_or(|c| c != 0.0)
    } else {
        true
    };
    let mut carried: Vec<Operand> = Vec::new();
    for i in 2..call.arity() {
        carried.push(call.operand(i)?.clone());
    }
    let collected = body
        .output
        .len()
        .checked_sub(1 + carried.len())
        .ok_or("its body returns too few values")?;
    let mut rounds: Vec<Vec<Operand>> = vec![Vec::new(); collected];
    let mut round = 0;
    while going && limit.is_none_or(|limit| round < limit) {
        if round >= MAX_ROUNDS {
            return Err(format!("more than {MAX_ROUNDS} iterations are not unrolled"));
        }
        let prefix = format!("round{round}");
        let number = Operand::known(Tensor::scalar_i64(round as i64), format!("{prefix}.number"), false);
        let condition = Tensor::integers(crate::ElementType::Bool, &[], vec![1]);
        let condition = Operand::known(condition, format!("{prefix}.condition"), false);
        let inputs = [vec![number, condition], carried.clone()].concat();
        let results = call.body(body, &prefix, inputs)?;
        let mut results = results.into_iter();
        let next = results.next().ok_or("its body returns no condition")?;
        going = match next.determined() {
            Some(tensor) => tensor.to_i64().first() != Some(&0),
            None if limit.is_some() && !call.has_input(1) => true,
            None => return Err(format!("its loop condition {DEPENDS_ON_DATA}")),
        };
        carried = results.by_ref().take(carried.len()).collect();
        for (list, result) in rounds.iter_mut().zip(results) {
            list.push(result);
        }
        round += 1;
    }
    if round == 0 && collected > 0 {
        // Imports one round, whose results are unused, to get the types and shapes.
        let number = Operand::known(Tensor::scalar_i64(0), "round0.number".into(), false);
        let condition = Tensor::integers(crate::ElementType::Bool, &[], vec![1]);
        let condition = Operand::known(condition, "round0.condition".into(), false);
        let results = call.body(body, "round0", [vec![number, condition], carried.clone()].concat())?;
        let first = 1 + carried.len();
        let mut outputs = carried;
        for one in &results[first..] {
            outputs.push(empty(call, outputs.len(), one, 0));
        }
        return Ok(outputs);
    }
    let mut outputs = carried;
    for list in &rounds {
        outputs.push(stacked(call, list, 0, false)?);
    }
    Ok(outputs)
}

fn flags(call: &Call, name: &str, count: usize) -> Result<Vec<i64>, String> {
    let list = call.ints(name)?.unwrap_or_else(|| vec![0; count]);
    if list.len() == count {
        Ok(list)
    } else {
        Err(format!("{name} has {} entries instead of {count}", list.len()))
    }
}

/// Imports version 8 of Scan: a loop over axis 1 for each element of axis 0, with the lengths as the first operand.
fn scan_of_batch(call: &mut Call) -> Built {
    let body = call.subgraph("body")?;
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)?).unwrap_or(0);
    let states = call.arity().checked_sub(1 + scanned);
    let states = states.ok_or("it has fewer operands than num_scan_inputs")?;
    let collected = body.output.len().checked_sub(states);
    let collected = collected.ok_or("its body returns too few values")?;
    let directions = flags(call, "directions", scanned)?;
    if call.has_input(0) || scanned == 0 {
        return Err("sequences of different lengths are not supported".into());
    }
    let mut operands = Vec::new();
    for i in 1..call.arity() {
        operands.push(call.operand(i)?.clone());
    }
    let last = &operands[states].dims;
    let [batch, count] = [0, 1].map(|i| last.get(i).copied().unwrap_or(0));
    let fits = operands
        .iter()
        .enumerate()
        .all(|(i, o)| o.dims.first() == Some(&batch) && (i < states || o.dims.get(1) == Some(&count)));
    if !fits || batch == 0 || count == 0 || batch.saturating_mul(count) > MAX_ROUNDS {
        let types = call.types();
        return Err(format!(
            "operands {types} do not fit, or need more than {MAX_ROUNDS} rounds"
        ));
    }
    let mut all: Vec<Vec<Operand>> = vec![Vec::new(); states + collected];
    for b in 0..batch {
        let mut carried = Vec::new();
        for operand in &operands[..states] {
            carried.push(element_of(call, operand, &[b])?);
        }
        let mut rounds: Vec<Vec<Operand>> = vec![Vec::new(); collected];
        for round in 0..count {
            let mut inputs = carried.clone();
            for (operand, direction) in operands[states..].iter().zip(&directions) {
                let at = if *direction != 0 { count - 1 - round } else { round };
                inputs.push(element_of(call, operand, &[b, at])?);
            }
            let mut results = call.body(body, &format!("batch{b}.round{round}"), inputs)?.into_iter();
            carried = results.by_ref().take(states).collect();
            for (list, result) in rounds.iter_mut().zip(results) {
                list.push(result);
            }
        }
        for list in &rounds {
            carried.push(stacked(call, list, 0, false)?);
        }
        for (list, result) in all.iter_mut().zip(carried) {
            list.push(result);
        }
    }
    let mut outputs = Vec::new();
    for list in &all {
        outputs.push(stacked(call, list, 0, false)?);
    }
    Ok(outputs)
}

/// Returns the element of an operand at these positions of its first axes.
fn element_of(call: &mut Call, operand: &Operand, at: &[usize]) -> Result<Operand, String> {
    let value = call.value_of(operand)?;
    let mut part = value;
    for (axis, &i) in at.iter().enumerate() {
        part = call.graph().slice_axis(part, axis as i32, i, i + 1).into();
    }
    let part = call.graph().reshape(part, &operand.dims[at.len()..]);
    Ok(call.result(part, operand.element))
}

/// Unrolls a loop over the elements of an axis.
fn scan(call: &mut Call) -> Built {
    if call.opset < 9 {
        return scan_of_batch(call);
    }
    let body = call.subgraph("body")?;
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)?).map_err(|_| "num_scan_inputs is negative")?;
    let states = call
        .arity()
        .checked_sub(scanned)
        .ok_or("it has fewer operands than num_scan_inputs")?;
    let collected = body
        .output
        .len()
        .checked_sub(states)
        .ok_or("its body returns too few values")?;
    let (axes, directions) = (
        flags(call, "scan_input_axes", scanned)?,
        flags(call, "scan_input_directions", scanned)?,
    );
    let (out_axes, out_directions) = (
        flags(call, "scan_output_axes", collected)?,
        flags(call, "scan_output_directions", collected)?,
    );
    let mut carried = Vec::new();
    for i in 0..states {
        carried.push(call.operand(i)?.clone());
    }
    let mut sources = Vec::new();
    let mut count = None;
    for (i, axis) in axes.iter().enumerate() {
        let operand = call.operand(states + i)?.clone();
        let axis = call.axis(*axis, operand.dims.len())?;
        if count
            .replace(operand.dims[axis])
            .is_some_and(|n| n != operand.dims[axis])
        {
            return Err("its operands differ in length".into());
        }
        sources.push((operand, axis));
    }
    let count = count.unwrap_or(0);
    if count > MAX_ROUNDS {
        return Err(format!(
            "{count} rounds are more than the {MAX_ROUNDS} that are unrolled"
        ));
    }
    if count == 0 {
        let mut inputs = carried.clone();
        for (operand, axis) in &sources {
            let mut dims = operand.dims.clone();
            dims.remove(*axis);
            let zero = call.scalar(operand.element, 0.0);
            let part = call.graph().expand(zero, &dims);
            inputs.push(call.result(part, operand.element));
        }
        // Imports one round, whose results are unused, to get the types and shapes.
        let results = call.body(body, "round0", inputs)?;
        let mut outputs = carried;
        for (i, one) in results[states..].iter().enumerate() {
            let axis = call.axis(out_axes[i], one.dims.len() + 1)?;
            outputs.push(empty(call, states + i, one, axis));
        }
        return Ok(outputs);
    }
    let mut rounds: Vec<Vec<Operand>> = vec![Vec::new(); collected];
    for round in 0..count {
        let mut inputs = carried.clone();
        for ((operand, axis), direction) in sources.iter().zip(&directions) {
            let at = if *direction != 0 { count - 1 - round } else { round };
            let value = call.value_of(operand)?;
            let graph = call.graph();
            let part = graph.slice_axis(value, *axis as i32, at, at + 1);
            let mut dims = operand.dims.clone();
            dims.remove(*axis);
            let part = graph.reshape(part, &dims);
            inputs.push(call.result(part, operand.element));
        }
        let mut results = call.body(body, &format!("round{round}"), inputs)?.into_iter();
        carried = results.by_ref().take(states).collect();
        for (list, result) in rounds.iter_mut().zip(results) {
            list.push(result);
        }
    }
    let mut outputs = carried;
    for (i, list) in rounds.iter().enumerate() {
        let rank = list.first().map_or(0, |o| o.dims.len());
        let axis = call.axis(out_axes[i], rank + 1)?;
        outputs.push(stacked(call, list, axis, out_directions[i] != 0)?);
    }
    Ok(outputs)
}
