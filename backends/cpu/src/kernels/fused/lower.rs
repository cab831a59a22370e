//! Lowering of fused programs to elementwise instructions on short buffers.

use std::collections::HashMap;

use meganeura_core::ops::Call;
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::{DType, TensorType};

use super::layout::{Access, Map, Stop, broadcast, is_whole, permute, regroup};
use super::scalar::{MAX_OPERANDS, Scalar};

/// Maximum number of loads. A load is an operand that is read through one access.
pub(super) const MAX_LOADS: usize = 24;
/// Maximum number of instructions.
const MAX_INSTRUCTIONS: usize = 64;
/// Maximum number of times that the analysis restarts with a split factor.
const MAX_SPLITS: usize = 32;

/// A value that instructions read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Src {
    /// Index in [`LoweredProgram::loads`].
    Load(usize),
    /// Result of the instruction with this index.
    Of(usize),
}

/// The source of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// Operand of the call with this index.
    Operand(usize),
    /// Result of the matmul or norm that the program begins with.
    Head,
}

/// An operand read through one access.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) origin: Origin,
    pub(super) map: Map,
}

/// An elementwise function and its operands.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) scalar: Scalar,
    /// Operands. Only the first `count` are used.
    pub(super) inputs: [Src; MAX_OPERANDS],
    pub(super) count: usize,
    /// True if the result is a single element that is broadcast to the whole domain.
    pub(super) one: bool,
}

/// A result and the value that is written to it.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Index of the result.
    pub(super) result: usize,
    pub(super) from: Src,
    pub(super) map: Map,
}

/// A program as elementwise instructions over a domain.
#[derive(Clone, Debug)]
pub(super) struct LoweredProgram {
    /// Number of elements of the domain.
    pub(super) len: usize,
    pub(super) loads: Vec<Load>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) stores: Vec<Store>,
    /// Value that a consumer after the instructions (such as a reduction) reads, if there is one.
    pub(super) folded: Option<Src>,
}

impl LoweredProgram {
    /// Returns true if the value for the consumer is not a single broadcast element.
    pub(super) fn folds_many(&self) -> bool {
        match self.folded {
            Some(Src::Of(i)) => !self.instructions[i].one,
            Some(Src::Load(i)) => !self.loads[i].map.is_one(),
            None => false,
        }
    }

    /// Returns the index of the result that stores the output of step `step`, either permanently or until these
    /// instructions overwrite it.
    pub(super) fn output_of(&self, typed: &TypedProgram, step: usize) -> Result<usize, String> {
        let slots = typed.program.results();
        if let Some(result) = slots.iter().position(|&r| r == Slot::Step(step as u32)) {
            return Ok(result);
        }
        // The output of the step and the final result are stored in the same elements, the output first.
        let in_order = |s: &Store| s.map.is_dense() || self.len == 1;
        let fits = |s: &&Store| in_order(s) && typed.ty(slots[s.result]).dtype == DType::F32;
        let store = self.stores.iter().find(fits);
        Ok(store.ok_or("no dense f32 result can hold the output of a step")?.result)
    }
}

/// A program with the types of all its values.
pub(super) struct TypedProgram<'a> {
    pub(super) program: &'a Program,
    pub(super) operands: &'a [TensorType],
    /// Types of the results of each step.
    pub(super) steps: Vec<Vec<TensorType>>,
}

impl<'a> TypedProgram<'a> {
    pub(super) fn new(program: &'a Program, operands: &'a [TensorType]) -> Result<Self, String> {
        Ok(TypedProgram {
            steps: program.infer(operands)?,
            program,
            operands,
        })
    }

    pub(super) fn ty(&self, slot: Slot) -> &TensorType {
        self.program.type_of(slot, self.operands, &self.steps)
    }

    /// Returns the indices of the results whose slots satisfy `wanted`.
    pub(super) fn results(&self, wanted: impl Fn(Slot) -> bool) -> Vec<usize> {
        let slots = self.program.results();
        (0..slots.len()).filter(|&i| wanted(slots[i])).collect()
    }

    /// Returns true for each step that depends on step `on`, and for `on` itself.
    pub(super) fn dependent(&self, on: usize) -> Vec<bool> {
        let mut depends = vec![false; self.steps.len()];
        depends[on] = true;
        for (at, step) in self.program.steps().iter().enumerate().skip(on + 1) {
            depends[at] = step.inputs.iter().filter_map(|&s| step_of(s)).any(|s| depends[s]);
        }
        depends
    }

    /// Returns the call of a step.
    pub(super) fn call<'b>(&'b self, step: usize, inputs: &'b [TensorType]) -> Call<'b> {
        Call {
            attrs: &self.program.steps()[step].attrs,
            inputs,
            outputs: &self.steps[step],
        }
    }

    /// Returns the operand types of a step.
    pub(super) fn inputs_of(&self, step: usize) -> Vec<TensorType> {
        let step = &self.program.steps()[step];
        self.program.inputs_of(step, self.operands, &self.steps)
    }
}

/// Returns the step that produces a slot, or `None` for an operand.
pub(super) fn step_of(slot: Slot) -> Option<usize> {
    match slot {
        Slot::Operand(_) => None,
        Slot::Step(step) | Slot::Port { step, .. } => Some(step as usize),
    }
}

/// The part of a program that is lowered.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// Indices of the results to compute.
    pub(super) results: Vec<usize>,
    /// Step that is computed separately. The instructions read its result.
    pub(super) head: Option<usize>,
    /// Value for a consumer after the instructions. Its elements form the domain.
    pub(super) folded: Option<Slot>,
}

/// Lowers a part of a program to instructions.
pub(super) fn lower(typed: &TypedProgram, part: &Part) -> Result<LoweredProgram, String> {
    let Part { head, folded, .. } = *part;
    let slots = typed.program.results();
    let results: Vec<(usize, Slot)> = part.results.iter().map(|&i| (i, slots[i])).collect();
    let domain = match (folded, head, results.first()) {
        (Some(slot), ..) | (None, None, Some(&(_, slot))) => typed.ty(slot),
        (None, Some(step), _) => &typed.steps[step][0],
        (None, None, None) => return Err("it has no result".into()),
    };
    let mut factors: Vec<usize> = domain.shape.iter().copied().filter(|&d| d != 1).collect();
    for _ in 0..MAX_SPLITS {
        let mut lowering = Lowering {
            typed,
            factors: &factors,
            head,
            loads: Vec::new(),
            loaded: HashMap::new(),
            instructions: Vec::new(),
            computed: HashMap::new(),
            accesses: HashMap::new(),
        };
        match lowering.all(&results, folded) {
            Ok((stores, folded)) => {
                return Ok(LoweredProgram {
                    len: domain.numel(),
                    loads: lowering.loads,
                    instructions: lowering.instructions,
                    stores,
                    folded,
                });
            }
            Err(Stop::Split(factor, outer)) => {
                let inner = factors[factor] / outer;
                factors.splice(factor..=factor, [outer, inner]);
            }
            Err(Stop::No(reason)) => return Err(reason),
        }
    }
    Err("its reshapes cut axes too often".into())
}

struct Lowering<'a> {
    typed: &'a TypedProgram<'a>,
    factors: &'a [usize],
    head: Option<usize>,
    loads: Vec<Load>,
    loaded: HashMap<(Origin, Access), usize>,
    instructions: Vec<Instruction>,
    computed: HashMap<(u32, Access), usize>,
    /// First access of each slot whose access covers the whole domain.
    accesses: HashMap<Slot, Access>,
}

impl Lowering<'_> {
    fn all(&mut self, results: &[(usize, Slot)], folded: Option<Slot>) -> Result<(Vec<Store>, Option<Src>), Stop> {
        let folded = folded.map(|slot| self.whole(slot)).transpose()?.map(|(src, _)| src);
        let mut stores = Vec::new();
        for &(result, slot) in results {
            let (from, access) = self.whole(slot)?;
            let map = Map::new(self.factors, &access, &self.typed.ty(slot).shape)?;
            stores.push(Store { result, from, map });
        }
        Ok((stores, folded))
    }

    /// Returns a value that has an element for each element of the domain. A value that was already computed keeps
    /// its order; otherwise it has the order of the domain.
    fn whole(&mut self, slot: Slot) -> Result<(Src, Access), Stop> {
        let access = match self.accesses.get(&slot) {
            Some(access) => access.clone(),
            None => {
                let shape = &self.typed.ty(slot).shape;
                if shape.numel() != self.factors.iter().product::<usize>() {
                    return Stop::no("its results have different numbers of elements");
                }
                regroup(self.factors, 0..self.factors.len(), shape)?
            }
        };
        Ok((self.value(slot, access.clone())?, access))
    }

    fn value(&mut self, slot: Slot, access: Access) -> Result<Src, Stop> {
        if is_whole(&access, self.factors) {
            self.accesses.entry(slot).or_insert_with(|| access.clone());
        }
        let index = match slot {
            Slot::Operand(i) => return self.load(Origin::Operand(i as usize), slot, access),
            Slot::Step(i) if self.head == Some(i as usize) => return self.load(Origin::Head, slot, access),
            Slot::Step(i) => i,
            Slot::Port { .. } => return Stop::no("it uses a further result of a step"),
        };
        let step = &self.typed.program.steps()[index as usize];
        if let Some((slot, access)) = self.through_view(step, &access)? {
            return self.value(slot, access);
        }
        let key = (index, access);
        if let Some(&known) = self.computed.get(&key) {
            return Ok(Src::Of(known));
        }
        let at = self.instruction(index, step, &key.1)?;
        self.computed.insert(key, at);
        Ok(Src::Of(at))
    }

    fn load(&mut self, origin: Origin, slot: Slot, access: Access) -> Result<Src, Stop> {
        let map = Map::new(self.factors, &access, &self.typed.ty(slot).shape)?;
        if origin == Origin::Head && !map.is_dense() && !map.is_one() {
            return Stop::no("the elements of a matmul are used in its own order");
        }
        let next = self.loads.len();
        let at = *self.loaded.entry((origin, access)).or_insert(next);
        if at == next {
            self.loads.push(Load { origin, map });
        }
        if self.loads.len() > MAX_LOADS {
            return Stop::no("it has too many operands");
        }
        Ok(Src::Load(at))
    }

    /// Returns the operand of a step that only rearranges elements, and the access of this operand. Returns `None`
    /// for any other step.
    fn through_view(&self, step: &Step, access: &Access) -> Result<Option<(Slot, Access)>, Stop> {
        let Some(&operand) = step.inputs.first() else {
            return Ok(None);
        };
        let shape = &self.typed.ty(operand).shape;
        let inner = match step.op.name() {
            "core.stop_gradient" => access.clone(),
            "core.reshape" => regroup(self.factors, access.iter().flatten().copied(), shape)?,
            "core.expand" => broadcast(access, shape),
            "core.permute" => permute(access, step.attrs.ints("axes").map_err(Stop::No)?, shape)?,
            _ => return Ok(None),
        };
        Ok(Some((operand, inner)))
    }

    fn instruction(&mut self, index: u32, step: &Step, access: &Access) -> Result<usize, Stop> {
        let typed = self.typed;
        let types = typed.inputs_of(index as usize);
        let [result] = &typed.steps[index as usize][..] else {
            return Stop::no("a step has several results");
        };
        let scalar = Scalar::of(step.op.name(), &step.attrs, &types, result).map_err(Stop::No)?;
        if step.inputs.is_empty() || step.inputs.len() > MAX_OPERANDS {
            return Stop::no("a step has too many operands");
        }
        let in_order = || access.iter().flatten().copied().eq(0..self.factors.len());
        if scalar.counts() && !in_order() {
            return Stop::no("numbered elements are not in order");
        }
        let mut inputs = [Src::Load(0); MAX_OPERANDS];
        for ((input, &slot), ty) in inputs.iter_mut().zip(&step.inputs).zip(&types) {
            *input = self.value(slot, broadcast(access, &ty.shape))?;
        }
        if self.instructions.len() == MAX_INSTRUCTIONS {
            return Stop::no("it has too many steps");
        }
        self.instructions.push(Instruction {
            scalar,
            inputs,
            count: step.inputs.len(),
            one: access.iter().all(Vec::is_empty) && !self.factors.is_empty(),
        });
        Ok(self.instructions.len() - 1)
    }
}
