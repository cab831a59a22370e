//! Operands and results of the calls of a trial. They have the same properties as in a model.

use std::collections::HashSet;
use std::rc::Rc;

use meganeura_core::backend::{Executable, StepArgs, StepStats, Ticket};
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan};
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Result};

use crate::executable::BladeExecutable;

/// Maximum number of indices that are spread evenly over their range.
const FEW_INDICES: usize = 16;

/// The properties of an operand in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperandProperties {
    /// Number of tensors of this size that a step reads before it reads the same tensor again. It is 1 for results of
    /// other calls. They are written shortly before they are read and may be in a cache.
    pub(super) copies: usize,
    /// `true` if the model stores the operand in `f16`. A trial does so only if the kernel rounds it to `f16` anyway.
    pub(super) f16_storage: bool,
}

impl OperandProperties {
    /// Properties of an operand that is a single tensor and has its declared dtype.
    pub(super) const ONE: OperandProperties = OperandProperties {
        copies: 1,
        f16_storage: false,
    };
}

/// The properties of all operands and results of a call in a model.
pub(super) struct Operands {
    pub(super) held: Vec<OperandProperties>,
    /// `true` for each result that is stored in `f16`.
    pub(super) f16_results: Vec<bool>,
}

impl Operands {
    /// Returns the properties of a call of a plan, given the persistent data of the plan and its buffers in `f16`.
    pub(super) fn of(dispatch: &Dispatch, persistent: &Persistent, f16_storage: &HashSet<BufferRef>) -> Self {
        let held = dispatch.inputs.iter().map(|operand| OperandProperties {
            copies: if persistent.buffers.contains(&operand.buffer) {
                (persistent.bytes / operand.ty.bytes().max(1)).max(1)
            } else {
                1
            },
            f16_storage: f16_storage.contains(&operand.buffer),
        });
        Operands {
            held: held.collect(),
            f16_results: dispatch
                .outputs
                .iter()
                .map(|o| f16_storage.contains(&o.buffer))
                .collect(),
        }
    }

    /// Returns properties for which each operand is a single tensor with its declared dtype.
    pub(super) fn plain(dispatch: &Dispatch) -> Self {
        Operands {
            held: vec![OperandProperties::ONE; dispatch.inputs.len()],
            f16_results: vec![false; dispatch.outputs.len()],
        }
    }
}

/// The parameters and states of a plan.
pub(super) struct Persistent {
    buffers: HashSet<BufferRef>,
    bytes: usize,
}

impl Persistent {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let buffers: HashSet<BufferRef> = plan.persistent().collect();
        let bytes = buffers.iter().map(|buffer| plan.buffers[buffer.index()]).sum();
        Persistent { buffers, bytes }
    }
}

/// The data of one input of a trial.
pub(super) struct Datum {
    pub(super) buffer: BufferRef,
    /// Elements of the input, shared between inputs with equal contents.
    pub(super) contents: Rc<Contents>,
    /// `true` if the input may be stored in `f16` although its dtype is `f32`.
    pub(super) f16_storage: bool,
}

/// The elements of an input.
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    /// Elements converted from `f32` to `f16`; empty for other dtypes.
    pub(super) halves: Vec<u8>,
}

/// Returns the name of the graph input for an operand of a call.
pub(super) fn name(call: usize, operand: usize) -> String {
    format!("x{call}.{operand}")
}

/// Returns the contents of the operands of all calls. Floats are multiples of 1/4 from -1 to 1: they are exact in
/// half precision, and sums of their products need no rounding. Indices are within their bounds, and other integers
/// have random bits. If there are few indices, such as the positions of sequences in a cache, they are spread evenly,
/// because they determine the amount of work.
pub(super) fn data_of(
    dispatch: &Dispatch,
    plan: &ExecutionPlan,
    held: &[OperandProperties],
    calls: usize,
) -> Vec<Datum> {
    let mut rng = SplitMix64::new(41);
    let indices = dispatch.index_operand();
    let mut all = Vec::new();
    for (i, operand) in dispatch.inputs.iter().enumerate() {
        let bound = indices.filter(|(index, _)| *index == i).map(|(_, bound)| bound);
        let count = operand.ty.numel();
        let held = held.get(i).copied().unwrap_or(OperandProperties::ONE);
        let f16_storage = held.f16_storage && operand.ty.dtype == DType::F32;
        let (mut bytes, mut halves) = (Vec::new(), Vec::new());
        for at in 0..count {
            match (operand.ty.dtype.is_float(), bound) {
                (true, _) => {
                    let number = rng.below(9) as i32 - 4;
                    bytes.extend(quarters(operand.ty.dtype, number));
                    if f16_storage {
                        halves.extend(quarters(DType::F16, number));
                    }
                }
                (false, Some(bound)) if count <= FEW_INDICES => {
                    bytes.extend((((2 * at + 1) * bound / (2 * count)) as u32).to_le_bytes());
                }
                (false, Some(bound)) => bytes.extend((rng.below(bound.max(1)) as u32).to_le_bytes()),
                (false, None) => bytes.extend((rng.next_u64() as u32).to_le_bytes()),
            }
        }
        let contents = Rc::new(Contents { bytes, halves });
        for call in 0..calls.min(held.copies) {
            let wanted = name(call, i);
            let buffers = plan.input_buffers.iter().filter(|(name, _)| *name == wanted);
            all.extend(buffers.map(|(_, buffer)| Datum {
                buffer: *buffer,
                contents: contents.clone(),
                f16_storage,
            }));
        }
    }
    all
}

/// An executable that stores some results in `f16` although its plan declares them as `f32`. Reads convert them.
pub(super) struct WidenedExecutable<'a> {
    pub(super) executable: &'a mut BladeExecutable,
    pub(super) f16_storage: &'a HashSet<BufferRef>,
}

impl Executable for WidenedExecutable<'_> {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.f16_storage.contains(&buffer) {
            return self.executable.write(buffer, offset, bytes);
        }
        let numbers = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let halves: Vec<u8> = numbers.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect();
        self.executable.write(buffer, offset / 2, &halves)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if !self.f16_storage.contains(&buffer) {
            return self.executable.read(buffer, offset, bytes);
        }
        let mut halves = vec![0; bytes.len() / 2];
        self.executable.read(buffer, offset / 2, &mut halves)?;
        for (wide, half) in bytes.chunks_exact_mut(4).zip(halves.chunks_exact(2)) {
            wide.copy_from_slice(&half::f16::from_le_bytes([half[0], half[1]]).to_f32().to_le_bytes());
        }
        Ok(())
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        self.executable.run(args)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        self.executable.wait(ticket)
    }
}

/// Returns `count` / 4 in the storage format of the dtype.
fn quarters(dtype: DType, count: i32) -> Vec<u8> {
    let value = 0.25 * count as f32;
    match dtype {
        DType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use meganeura_core::Graph;
    use meganeura_core::plan::try_compile;

    use super::*;

    #[test]
    fn weights_have_copies_and_what_is_computed_has_one() {
        let mut g = Graph::new();
        let x = g.input("x", &[8, 16]);
        let (first, second, small) = (
            g.parameter("first", &[16, 32]),
            g.parameter("second", &[32, 16]),
            g.parameter("small", &[16]),
        );
        let hidden = g.matmul(x, first);
        let y = g.matmul(hidden, second);
        let y = g.add(y, small);
        g.set_outputs(vec![y]);
        let mut plan = try_compile(&g).expect("a plan");
        plan.place_buffers(None).expect("places");
        let (persistent, f16_storage) = (
            Persistent::of(&plan),
            HashSet::from([plan.dispatches[0].outputs[0].buffer]),
        );
        let of = |number: usize| Operands::of(&plan.dispatches[number], &persistent, &f16_storage);
        let held = |number: usize| of(number).held;
        // Two tensors of 2,048 bytes, and one of 64 bytes.
        let weights = OperandProperties {
            copies: 2,
            ..OperandProperties::ONE
        };
        assert_eq!(held(0), [OperandProperties::ONE, weights]);
        let computed = OperandProperties {
            f16_storage: true,
            ..OperandProperties::ONE
        };
        assert_eq!(held(1), [computed, weights]);
        assert_eq!(held(2)[1].copies, 4160 / 64);
        assert_eq!([0, 1].map(|number| of(number).f16_results), [[true], [false]]);
    }
}
