//! Softmax and related operators.

use meganeura_core::graph::{Graph, NodeId, Value};

use super::{OnnxOp, limits, op};
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("Hardmax", 1, |c| over_axis(c, hardmax)),
    op("LogSoftmax", 1, |c| {
        over_axis(c, |g, x, axis| Ok(g.log_softmax(x, axis)))
    }),
    op("LpNormalization", 1, lp_normalization),
    op("Softmax", 1, |c| over_axis(c, |g, x, axis| Ok(g.softmax(x, axis)))),
];

/// Applies a function along one axis. Before version 13, all axes from `axis` on are treated as one axis.
fn over_axis(call: &mut Call, f: fn(&mut Graph, Value, i32) -> Result<NodeId, String>) -> Built {
    let dims = call.dims(0)?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    if dims.contains(&0) {
        return call.one(x, element);
    }
    if dims.is_empty() {
        let graph = call.graph();
        let row = graph.reshape(x, &[1]);
        let y = f(graph, row.into(), 0)?;
        let y = graph.reshape(y, &[]);
        return call.one(y, element);
    }
    if call.opset >= 13 {
        let axis = call.axis(call.int("axis", -1)?, dims.len())?;
        let y = f(call.graph(), x, axis as i32)?;
        return call.one(y, element);
    }
    let axis = call.axis(call.int("axis", 1)?.min(dims.len() as i64 - 1), dims.len())?;
    if axis + 1 == dims.len() {
        let y = f(call.graph(), x, axis as i32)?;
        return call.one(y, element);
    }
    let rows = [dims[..axis].iter().product(), dims[axis..].iter().product()];
    let graph = call.graph();
    let flat = graph.reshape(x, &rows);
    let y = f(graph, flat.into(), 1)?;
    let y = graph.reshape(y, &dims);
    call.one(y, element)
}

/// Returns 1 at the first maximum, 0 elsewhere.
fn hardmax(g: &mut Graph, x: Value, axis: i32) -> Result<NodeId, String> {
    let (shape, dtype) = (g.shape(x).to_vec(), g.dtype(x));
    let size = shape.get(axis as usize).copied().unwrap_or(1);
    let at = g.argmax(x, axis);
    let mut spread = shape.clone();
    if let Some(axis) = spread.get_mut(axis as usize) {
        *axis = 1;
    }
    let at = g.reshape(at, &spread);
    let counting = limits::counting(g, &[size])?;
    let mut line = vec![1; shape.len()];
    if let Some(axis) = line.get_mut(axis as usize) {
        *axis = size;
    }
    let counting = g.reshape(counting, &line);
    let hit = g.equal(at, counting);
    Ok(g.cast(hit, dtype))
}

fn lp_normalization(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let (x, element) = (call.value(0)?, call.element(0)?);
    let axis = call.axis(call.int("axis", -1)?, dims.len())? as i32;
    let p = call.int("p", 2)?;
    let (one, zero) = (call.scalar(element, 1.0), call.scalar(element, 0.0));
    let graph = call.graph();
    let norm = match p {
        1 => {
            let size = graph.abs(x);
            graph.sum(size, &[axis], true)
        }
        2 => {
            let squares = graph.square(x);
            let sum = graph.sum(squares, &[axis], true);
            graph.sqrt(sum)
        }
        p => return Err(format!("p = {p} is neither 1 nor 2")),
    };
    // A row of zeros is unchanged.
    let empty = graph.equal(norm, zero);
    let norm = graph.select(empty, one, norm);
    let y = graph.div(x, norm);
    call.one(y, element)
}
