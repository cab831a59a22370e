//! Ranges of integer results. Results that always fit into 32 bits by their range are not checked in a step.

use crate::import::Call;

/// Smallest and largest value.
type Range = (i128, i128);

/// Operators whose results contain only elements of the first operand.
const MOVES: [&str; 16] = [
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "ReduceMax",
    "ReduceMin",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "DepthToSpace",
];

/// Returns the exact range of result `i` of a node, or `None` if it is unknown.
pub(crate) fn of(call: &Call, i: usize) -> Option<Range> {
    let (domain, name) = call.operator();
    // The number of a string differs from its index.
    if !domain.is_empty() || (name == "Cast" && call.strings(0).is_some()) {
        return None;
    }
    match (name, i) {
        ("Split", _) => operand(call, 0),
        ("TopK", 1) => index(call, -1),
        (_, 0) => first(call, name),
        _ => None,
    }
}

fn operand(call: &Call, i: usize) -> Option<Range> {
    call.range(i).map(|(low, high)| (low.into(), high.into()))
}

/// Returns the smallest range that contains the ranges of all these operands.
fn hull(call: &Call, operands: impl IntoIterator<Item = usize>) -> Option<Range> {
    let ranges: Option<Vec<Range>> = operands.into_iter().map(|i| operand(call, i)).collect();
    ranges?.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Returns the range of indices along the node's axis.
fn index(call: &Call, default: i64) -> Option<Range> {
    let dims = call.dims(0).ok()?;
    let axis = call.axis(call.int("axis", default).ok()?, dims.len()).ok()?;
    Some((0, dims[axis].saturating_sub(1) as i128))
}

/// Returns the largest magnitude of a number in a range.
fn size((low, high): Range) -> i128 {
    low.abs().max(high.abs())
}

/// Returns the number of elements of the first operand: no sum of the node has more terms.
fn terms(call: &Call) -> Option<i128> {
    Some(call.operand(0).ok()?.elements() as i128)
}

fn first(call: &Call, name: &str) -> Option<Range> {
    if MOVES.contains(&name) {
        return operand(call, 0);
    }
    Some(match name {
        "Abs" => {
            let x = operand(call, 0)?;
            let low = if x.0 <= 0 && x.1 >= 0 {
                0
            } else {
                x.0.abs().min(x.1.abs())
            };
            (low, size(x))
        }
        "Add" => {
            let (a, b) = (operand(call, 0)?, operand(call, 1)?);
            (a.0 + b.0, a.1 + b.1)
        }
        "ArgMax" | "ArgMin" => index(call, 0)?,
        "Cast" | "CastLike" => operand(call, 0)?,
        "Concat" | "Max" | "Min" => hull(call, 0..call.arity())?,
        "CumSum" | "ReduceSum" => {
            let (x, n) = (operand(call, 0)?, terms(call)?);
            (x.0.min(0) * n, x.1.max(0) * n)
        }
        "Div" => {
            let most = size(operand(call, 0)?);
            // Division by at least 1 cannot increase the magnitude, and only -1 negates the smallest number.
            match operand(call, 1)? {
                (low, _) if low >= 1 => operand(call, 0).map(|x| (x.0.min(0), x.1.max(0)))?,
                _ => (-most, most),
            }
        }
        "Mod" => match operand(call, 1)? {
            (low, high) if low >= 1 => match call.int("fmod", 0).ok()? {
                0 => (0, high - 1),
                _ => (1 - high, high - 1),
            },
            _ => return None,
        },
        "Mul" => {
            let (a, b) = (operand(call, 0)?, operand(call, 1)?);
            let all = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
            (*all.iter().min()?, *all.iter().max()?)
        }
        "Neg" => {
            let x = operand(call, 0)?;
            (-x.1, -x.0)
        }
        "ReduceL1" => (0, size(operand(call, 0)?) * terms(call)?),
        "ReduceSumSquare" => (0, size(operand(call, 0)?).pow(2) * terms(call)?),
        "Sign" => (-1, 1),
        "Sub" => {
            let (a, b) = (operand(call, 0)?, operand(call, 1)?);
            (a.0 - b.1, a.1 - b.0)
        }
        "Sum" => {
            let all: Option<Vec<Range>> = (0..call.arity()).map(|i| operand(call, i)).collect();
            all?.into_iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        }
        "Where" => hull(call, [1, 2])?,
        _ => return None,
    })
}
