//! Operands and results of the calls of a trial, as a model has them.

use std::collections::HashSet;
use std::rc::Rc;

use meganeura_core::backend::{Executable, StepArgs, StepStats, Ticket};
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan};
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Result};

use crate::executable::BladeExecutable;

/// Most indices that are spread evenly.
const FEW_INDICES: usize = 16;

/// How a model has an operand of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Tensors of this size that a step goes through before it comes to the same one again. Of what calls compute for each
    /// other it is one: that is written shortly before it is read, and may be in a cache.
    pub(super) copies: usize,
    /// Whether it is in `f16` in memory if the kernel rounds it to that in any case.
    pub(super) f16_storage: bool,
}

impl Held {
    /// A tensor of the type that it has.
    pub(super) const ONE: Held = Held {
        copies: 1,
        f16_storage: false,
    };
}

/// How a model has the operands and results of a call.
pub(super) struct Operands {
    pub(super) held: Vec<Held>,
    /// Whether each result is in `f16` in memory.
    pub(super) f16_results: Vec<bool>,
}

impl Operands {
    /// As a plan has those of a call, whose lasting data this is, and which has those buffers in `f16`.
    pub(super) fn of(dispatch: &Dispatch, lasting: &Lasting, f16_storage: &HashSet<BufferRef>) -> Self {
        let held = dispatch.inputs.iter().map(|operand| Held {
            copies: match lasting.buffers.contains(&operand.buffer) {
                true => (lasting.bytes / operand.ty.bytes().max(1)).max(1),
                false => 1,
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

    /// One tensor of the type that it has for each.
    pub(super) fn plain(dispatch: &Dispatch) -> Self {
        Operands {
            held: vec![Held::ONE; dispatch.inputs.len()],
            f16_results: vec![false; dispatch.outputs.len()],
        }
    }
}

/// Parameters and states of a plan.
pub(super) struct Lasting {
    buffers: HashSet<BufferRef>,
    bytes: usize,
}

impl Lasting {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let buffers: HashSet<BufferRef> = plan.persistent().collect();
        let bytes = buffers.iter().map(|buffer| plan.buffers[buffer.index()]).sum();
        Lasting { buffers, bytes }
    }
}

/// An input of a trial.
pub(super) struct Datum {
    pub(super) buffer: BufferRef,
    /// Its elements, shared by those that have the same.
    pub(super) contents: Rc<Contents>,
    /// Whether it may be in `f16` though its type is `f32`.
    pub(super) f16_storage: bool,
}

/// Elements of an input.
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    /// Elements of `f32` in `f16`; else nothing.
    pub(super) halves: Vec<u8>,
}

/// The name of a call's operand.
pub(super) fn name(call: usize, operand: usize) -> String {
    format!("x{call}.{operand}")
}

/// What the operands of all calls are filled with: quarters from -1 to 1, which are exact in half precision, and whose
/// products are sums without rounding; indices within their bounds, other integers of any bits. A few indices, such as the
/// places of sequences in a cache, are spread evenly: they decide how much there is to do.
pub(super) fn data_of(dispatch: &Dispatch, plan: &ExecutionPlan, held: &[Held], calls: usize) -> Vec<Datum> {
    let mut rng = SplitMix64::new(41);
    let indices = dispatch.index_operand();
    let mut all = Vec::new();
    for (i, operand) in dispatch.inputs.iter().enumerate() {
        let bound = indices.filter(|(index, _)| *index == i).map(|(_, bound)| bound);
        let count = operand.ty.numel();
        let held = held.get(i).copied().unwrap_or(Held::ONE);
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

/// An executable that has some results in `f16` where its plan has `f32`, as if they were in `f32`.
pub(super) struct Widened<'a> {
    pub(super) executable: &'a mut BladeExecutable,
    pub(super) f16_storage: &'a HashSet<BufferRef>,
}

impl Executable for Widened<'_> {
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

/// So many quarters as they are stored.
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
        let (lasting, f16_storage) = (
            Lasting::of(&plan),
            HashSet::from([plan.dispatches[0].outputs[0].buffer]),
        );
        let of = |number: usize| Operands::of(&plan.dispatches[number], &lasting, &f16_storage);
        let held = |number: usize| of(number).held;
        // Twice 2,048 bytes and 64.
        let weights = Held { copies: 2, ..Held::ONE };
        assert_eq!(held(0), [Held::ONE, weights]);
        let computed = Held {
            f16_storage: true,
            ..Held::ONE
        };
        assert_eq!(held(1), [computed, weights]);
        assert_eq!(held(2)[1].copies, 4160 / 64);
        assert_eq!([0, 1].map(|number| of(number).f16_results), [[true], [false]]);
    }
}
