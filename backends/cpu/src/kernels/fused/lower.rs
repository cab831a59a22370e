//! From a program to instructions on short buffers.

use std::collections::HashMap;

use meganeura_core::TensorType;
use meganeura_core::program::{Program, Slot, Step};

use super::layout::{Access, Map, Stop, broadcast, is_whole, permute, regroup};
use super::scalar::{MOST_OPERANDS, Scalar};

/// Most operands that are read, each through one access.
pub(super) const MOST_LOADS: usize = 24;
/// Most instructions.
const MOST_INSTRUCTIONS: usize = 64;
/// Most times that the analysis begins anew.
const MOST_SPLITS: usize = 32;

/// A value that instructions read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Src {
    /// An entry of [`Lowered::loads`].
    Load(usize),
    /// The result of an instruction.
    Of(usize),
}

/// What is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// An operand of the call.
    Operand(usize),
    /// The result of the product that the program begins with.
    Product,
}

/// An operand read through one access.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) origin: Origin,
    pub(super) map: Map,
}

/// One elementwise function.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) scalar: Scalar,
    /// The first `count` are meant.
    pub(super) inputs: [Src; MOST_OPERANDS],
    pub(super) count: usize,
    /// Whether one element stands for all.
    pub(super) one: bool,
}

/// A result.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Number of the result.
    pub(super) result: usize,
    pub(super) from: Src,
    pub(super) map: Map,
}

/// A program as instructions over a domain.
#[derive(Clone, Debug)]
pub(super) struct Lowered {
    /// Elements of the domain.
    pub(super) len: usize,
    pub(super) loads: Vec<Load>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) stores: Vec<Store>,
    /// What is folded, if the program ends in a reduction.
    pub(super) folded: Option<Src>,
}

/// A program whose types are known.
pub(super) struct Typed<'a> {
    pub(super) program: &'a Program,
    pub(super) operands: &'a [TensorType],
    pub(super) steps: Vec<TensorType>,
}

impl<'a> Typed<'a> {
    pub(super) fn new(program: &'a Program, operands: &'a [TensorType]) -> Result<Self, String> {
        Ok(Typed {
            steps: program.infer(operands)?,
            program,
            operands,
        })
    }

    pub(super) fn ty(&self, slot: Slot) -> &TensorType {
        self.program.type_of(slot, self.operands, &self.steps)
    }
}

/// Lowers a program. `product` is a step that something else has computed; `folded` a value that a reduction
/// folds, whose type is the domain's. Results that are `product` or the reduction's are left out.
pub(super) fn lower(typed: &Typed, product: Option<usize>, folded: Option<(Slot, usize)>) -> Result<Lowered, String> {
    let mut results: Vec<(usize, Slot)> = typed.program.results().iter().copied().enumerate().collect();
    let elsewhere = [product, folded.map(|(_, reduction)| reduction)];
    results.retain(|(_, slot)| !elsewhere.iter().flatten().any(|&s| *slot == Slot::Step(s as u32)));
    let domain = match (folded, product, results.first()) {
        (Some((slot, _)), ..) | (None, None, Some(&(_, slot))) => typed.ty(slot),
        (None, Some(step), _) => &typed.steps[step],
        (None, None, None) => return Err("it has no result".into()),
    };
    let mut factors: Vec<usize> = domain.shape.iter().copied().filter(|&d| d != 1).collect();
    for _ in 0..MOST_SPLITS {
        let mut lowering = Lowering {
            typed,
            factors: &factors,
            product,
            loads: Vec::new(),
            loaded: HashMap::new(),
            instructions: Vec::new(),
            computed: HashMap::new(),
            accesses: HashMap::new(),
        };
        match lowering.all(&results, folded.map(|(slot, _)| slot)) {
            Ok((stores, folded)) => {
                return Ok(Lowered {
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
    typed: &'a Typed<'a>,
    factors: &'a [usize],
    product: Option<usize>,
    loads: Vec<Load>,
    loaded: HashMap<(Origin, Access), usize>,
    instructions: Vec<Instruction>,
    computed: HashMap<(u32, Access), usize>,
    /// An access of each step that goes over the whole domain.
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

    /// A value with an element for each of the domain, in the order that it has been computed in already, or in
    /// the domain's own.
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
            Slot::Step(i) if self.product == Some(i as usize) => return self.load(Origin::Product, slot, access),
            Slot::Step(i) => i,
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
        if origin == Origin::Product && !map.is_dense() && !map.is_one() {
            return Stop::no("the elements of a product are used in its own order");
        }
        let next = self.loads.len();
        let at = *self.loaded.entry((origin, access)).or_insert(next);
        if at == next {
            self.loads.push(Load { origin, map });
        }
        if self.loads.len() > MOST_LOADS {
            return Stop::no("it has too many operands");
        }
        Ok(Src::Load(at))
    }

    /// Operand and access of a step that only rearranges.
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
        let types = typed.program.inputs_of(step, typed.operands, &typed.steps);
        let scalar = Scalar::of(step.op.name(), &step.attrs, &types, &typed.steps[index as usize]).map_err(Stop::No)?;
        if step.inputs.is_empty() || step.inputs.len() > MOST_OPERANDS {
            return Stop::no("a step has too many operands");
        }
        let in_order = || access.iter().flatten().copied().eq(0..self.factors.len());
        if scalar.counts() && !in_order() {
            return Stop::no("numbered elements are not in order");
        }
        let mut inputs = [Src::Load(0); MOST_OPERANDS];
        for ((input, &slot), ty) in inputs.iter_mut().zip(&step.inputs).zip(&types) {
            *input = self.value(slot, broadcast(access, &ty.shape))?;
        }
        if self.instructions.len() == MOST_INSTRUCTIONS {
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
