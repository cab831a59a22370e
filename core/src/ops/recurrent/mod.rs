//! Recurrent layers: all steps of a sequence in one operator.
//!
//! The contribution of the inputs to the gates is an operand, computed for all steps at once by an
//! ordinary matmul, which other rules, quantisation and gradients already support. The operator
//! adds the contribution of the state. Its ports are the state after each step and the activations
//! that the backward pass needs, so the gradients of both kinds of weights are ordinary matmuls,
//! too.
//!
//! Sequences that end earlier keep their state from then on. To set later steps to zero, mask the
//! result with [`Graph::sequence_mask`].

mod gru;
mod lstm;
mod rnn;

pub(super) use gru::{Gru, GruGrad};
pub(super) use lstm::{Lstm, LstmGrad};
pub(super) use rnn::{Rnn, RnnGrad};

use super::sample::{Fill, SampleInput, Sizes};
use super::{Call, Cost, expect_float};
use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};

/// Maximum number of steps that are expanded into nodes if a device has no kernel.
pub(super) const MAX_UNROLLED_STEPS: usize = 512;

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dims {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) hidden: usize,
}

impl Dims {
    /// Reads the sizes from a tensor `[steps, batch, blocks * hidden]` and a weight
    /// `[rows * hidden, hidden]`.
    fn of(call: &Call, [sequence, weight]: [usize; 2], what: &str, blocks: usize, rows: usize) -> Result<Self, String> {
        let (sequence, weight) = (&call.inputs[sequence], &call.inputs[weight]);
        expect_float(call, 0, "the operands")?;
        let &[steps, batch, width] = sequence.shape.dims() else {
            return Err(format!(
                "the {what} must be [steps, batch, {blocks} * hidden], not {sequence}"
            ));
        };
        let hidden = width / blocks;
        if steps == 0 || hidden == 0 || width != blocks * hidden {
            return Err(format!(
                "the {what} must be [steps, batch, {blocks} * hidden] with at least one step, not {sequence}"
            ));
        }
        if weight.shape.dims() != [rows * hidden, hidden] {
            return Err(format!(
                "the recurrent weight is {weight}, but {what} {sequence} need [{rows} * hidden, hidden] = [{}, {hidden}]",
                rows * hidden
            ));
        }
        Ok(Dims { steps, batch, hidden })
    }

    fn state(&self) -> [usize; 2] {
        [self.batch, self.hidden]
    }

    fn sequence(&self, blocks: usize) -> [usize; 3] {
        [self.steps, self.batch, blocks * self.hidden]
    }

    /// Returns the indices of the steps, in the order of the updates of the state.
    fn order(&self, reverse: bool) -> Vec<usize> {
        if reverse {
            (0..self.steps).rev().collect()
        } else {
            (0..self.steps).collect()
        }
    }

    /// Returns an error if the sequence is too long to be expanded.
    fn expect_short(&self, name: &str) -> Result<(), String> {
        if self.steps <= MAX_UNROLLED_STEPS {
            return Ok(());
        }
        Err(format!(
            "{name} has {} steps, and without a kernel for it at most {MAX_UNROLLED_STEPS} are expanded into a graph; \
             divide the sequence, or run it on a device with a kernel (the CPU has one for f32)",
            self.steps
        ))
    }
}

/// Returns an error unless the operand has this shape and the type of operand 0.
fn expect_operand(call: &Call, operand: usize, what: &str, dims: &[usize]) -> Result<(), String> {
    let ty = &call.inputs[operand];
    let dtype = call.inputs[0].dtype;
    if ty.shape.dims() == dims && ty.dtype == dtype {
        Ok(())
    } else {
        Err(format!("the {what} is {ty}, but must be {dtype} {dims:?}"))
    }
}

/// Returns the number of operands without the lengths, which are an optional last operand.
fn without_lengths(call: &Call, dims: &Dims) -> Result<usize, String> {
    let count = call.inputs.len();
    let Some(last) = call.inputs.last().filter(|ty| ty.dtype.is_integer()) else {
        return Ok(count);
    };
    match last.dtype {
        DType::U32 | DType::I32 if last.shape.dims() == [dims.batch] => Ok(count - 1),
        _ => Err(format!(
            "the lengths are {last}, but there is one for each sequence of the batch: u32 or i32 [{}]",
            dims.batch
        )),
    }
}

/// Returns the lengths among the operands of a call: the optional last operand, the only one of
/// integers.
fn lengths_of(g: &Graph, operands: &[Value]) -> Option<Value> {
    let last = operands.last().copied()?;
    g.dtype(last).is_integer().then_some(last)
}

/// Returns a mask `[batch, 1]` of the sequences that are longer than `step`; `None` without lengths.
fn going(g: &mut Graph, lengths: Option<Value>, dims: &Dims, step: usize) -> Option<Value> {
    let lengths = lengths?;
    let number = g.scalar_of(g.dtype(lengths), step as f64);
    let going = g.greater_than(lengths, number);
    Some(g.reshape(going, &[dims.batch, 1]).into())
}

/// Selects `there` for sequences that `going` marks (all if it is `None`), else `ended`.
fn choose(g: &mut Graph, going: Option<Value>, there: Value, ended: Value) -> Value {
    going.map_or(there, |going| g.select(going, there, ended).into())
}

/// Selects `there` for sequences that `going` marks (all if it is `None`), else zeros.
fn or_zero(g: &mut Graph, going: Option<Value>, there: Value) -> Value {
    let zero = g.scalar_of(g.dtype(there), 0.0).into();
    choose(g, going, there, zero)
}

/// Returns the tensor `[batch, width]` of one step of `[steps, batch, width]`.
fn step_of(g: &mut Graph, x: Value, step: usize) -> Value {
    let dims = g.shape(x).to_vec();
    let one = g.slice_axis(x, 0, step, step + 1);
    g.reshape(one, dims.get(1..).unwrap_or(&[])).into()
}

/// Splits the last axis into `N` blocks of equal size.
fn blocks<const N: usize>(g: &mut Graph, x: Value) -> [Value; N] {
    let axis = g.shape(x).len() as i32 - 1;
    let width = g.shape(x).last().copied().unwrap_or(0) / N;
    std::array::from_fn(|i| g.slice_axis(x, axis, i * width, (i + 1) * width).into())
}

/// Stacks steps, in the order of time, into one tensor.
fn stack(g: &mut Graph, steps: &[Option<Value>]) -> Result<Value, String> {
    let steps: Option<Vec<Value>> = steps.iter().copied().collect();
    let steps = steps.ok_or("a step is missing")?;
    let parts: Vec<Value> = steps
        .into_iter()
        .map(|x| {
            let dims = [&[1], g.shape(x)].concat();
            g.reshape(x, &dims).into()
        })
        .collect();
    Ok(match parts.as_slice() {
        [one] => *one,
        parts => g.concat(parts, 0).into(),
    })
}

/// Returns the state before each step, from the states after each step and the initial state.
fn states_before(g: &mut Graph, after: Value, initial: Value, reverse: bool) -> Value {
    let steps = g.shape(after).first().copied().unwrap_or(0);
    let dims = [&[1], g.shape(initial)].concat();
    let first = g.reshape(initial, &dims).into();
    if steps <= 1 {
        return first;
    }
    let parts = if !reverse {
        [first, g.slice_axis(after, 0, 0, steps - 1).into()]
    } else {
        [g.slice_axis(after, 0, 1, steps).into(), first]
    };
    g.concat(&parts, 0).into()
}

/// Computes `dy^T x` over all steps: the gradient of a weight `[rows, columns]` that each step
/// multiplies by.
fn weight_gradient(g: &mut Graph, dy: Value, x: Value) -> Value {
    let [dy, x] = [dy, x].map(|v| {
        let dims = g.shape(v).to_vec();
        let width = dims.last().copied().unwrap_or(0);
        let rows: usize = dims.iter().rev().skip(1).product();
        g.reshape(v, &[rows, width])
    });
    g.matmul_at(dy, x).into()
}

/// Computes `y (1 - y)`: the derivative of a sigmoid whose result is `y`.
fn sigmoid_slope(g: &mut Graph, y: Value) -> Value {
    let square = g.square(y);
    g.sub(y, square).into()
}

/// Computes `1 - y^2`: the derivative of a tanh whose result is `y`.
fn tanh_slope(g: &mut Graph, y: Value) -> Value {
    let one = g.scalar_of(g.dtype(y), 1.0);
    let square = g.square(y);
    g.sub(one, square).into()
}

/// Returns the sizes of sample cases, whether the sequence is reversed, and the type of the lengths, if there are any.
fn cases(sizes: &mut Sizes) -> Vec<(Dims, bool, Option<DType>)> {
    let dims = |steps, batch, hidden| Dims { steps, batch, hidden };
    vec![
        (dims(1, 1, 1), false, None),
        (dims(3, 2, 4), true, None),
        (dims(4, 1, 17), false, None),
        (dims(5, 3, 5), false, Some(DType::U32)),
        (dims(4, 3, 3), true, Some(DType::I32)),
        (dims(3, 21, 33), true, Some(DType::U32)),
        (dims(6, 1, 64), true, None),
        (dims(2, 5, 96), false, None),
        // Large enough that kernels divide the steps differently; the units are not a multiple of a
        // tile.
        (dims(3, 2, 264), false, Some(DType::U32)),
        (dims(sizes.dim(5), sizes.dim(9), sizes.dim(20)), false, None),
    ]
}

fn label((dims, reverse, lengths): &(Dims, bool, Option<DType>)) -> String {
    let Dims { steps, batch, hidden } = dims;
    let direction = if *reverse { "backwards" } else { "forwards" };
    let lengths = lengths.map_or(String::new(), |dtype| format!(", lengths in {dtype}"));
    format!("{steps} steps of {batch} with {hidden} hidden, {direction}{lengths}")
}

/// Returns a sample weight with numbers so small that the state does not saturate.
fn weight_input(rows: usize, hidden: usize) -> SampleInput {
    let bound = 1.0 / (hidden as f64).sqrt();
    SampleInput::range(&[rows * hidden, hidden], -bound, bound)
}

fn lengths_input(dims: &Dims, dtype: DType) -> SampleInput {
    SampleInput::filled(dtype, &[dims.batch], Fill::Below(dims.steps as u32 + 2))
}

/// Appends the optional `lengths` to the operands of a call.
fn with_lengths(mut operands: Vec<Value>, lengths: Option<Value>) -> Vec<Value> {
    operands.extend(lengths);
    operands
}

/// Counts the products with operand `weight` in each step, and `element_flops` operations on each
/// element of the state.
fn cost_of(call: &Call, dims: Result<Dims, String>, weight: usize, element_flops: u64) -> Cost {
    let flops = dims.map_or(0, |dims| {
        let rows = (dims.steps * dims.batch) as u64;
        rows * (2 * call.inputs[weight].numel() as u64 + element_flops * dims.hidden as u64)
    });
    Cost {
        flops,
        ..Cost::streaming(call, 0)
    }
}

impl Graph {
    /// Returns a mask of the valid steps of sequences with these lengths `[batch]` (`u32` or
    /// `i32`): `u32 [steps, batch, 1]`, 1 if the index of the step is below the length, else 0. It
    /// broadcasts against `[steps, batch, features]`.
    #[track_caller]
    pub fn sequence_mask(&mut self, lengths: impl Into<Value>, steps: usize) -> NodeId {
        let lengths = lengths.into();
        self.at_caller(|g| {
            let batch = g.shape(lengths).iter().product();
            let numbers = g.constant_u32((0..steps).map(|step| step as u32).collect(), &[steps, 1, 1]);
            let numbers = g.cast(numbers, g.dtype(lengths));
            let lengths = g.reshape(lengths, &[1, batch, 1]);
            g.greater_than(lengths, numbers)
        })
    }
}
