//! Sample cases: calls with concrete operands with which every backend is tested.

use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::quantization::BLOCK;
use crate::random::SplitMix64;
use crate::shape::{Shape, TensorType};

/// Values of one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Uniform in the range, but at a minimum distance from zero and from integers, so that finite differences do not
    /// cross a kink or a step there.
    Range(f64, f64),
    /// Integers in `0..bound`.
    Below(u32),
    /// Odd integers in `-bound..=bound`; the bound is odd.
    Odd(u32),
    /// Zeros and ones.
    Mask,
    /// Rows of non-negative numbers that sum to one along the last axis.
    Probabilities,
    /// All different, at least 0.01 apart, in random order: for operators with ties at equal values.
    Distinct,
    /// Every element the same.
    Constant(f64),
}

/// One operand of a sample case.
#[derive(Clone, Debug)]
pub struct SampleInput {
    /// Element type of the operand.
    pub dtype: DType,
    /// Shape of the operand.
    pub shape: Vec<usize>,
    /// Values of the operand.
    pub fill: Fill,
    /// `true` if the operand must be a state (for operators that write it).
    pub state: bool,
}

/// One call of an operator.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Short description.
    pub label: String,
    /// Operands.
    pub inputs: Vec<SampleInput>,
    /// Attributes.
    pub attrs: Attrs,
    /// Largest accepted relative error of an `f32` kernel against the `f64` definition, relative to
    /// the largest magnitude in the result.
    pub tolerance: f64,
}

impl Sample {
    /// Creates a case with the default tolerance of `1e-5`.
    pub fn new(label: impl Into<String>, inputs: Vec<SampleInput>, attrs: Attrs) -> Self {
        Sample {
            label: label.into(),
            inputs,
            attrs,
            tolerance: 1e-5,
        }
    }

    /// Sets the tolerance for results that are rounded to the type of a cache.
    pub(super) fn written_to_cache(mut self, dtype: DType) -> Self {
        if dtype == DType::F16 {
            // Half a unit in the last place of 11 bits.
            self.tolerance = self.tolerance.max(2f64.powi(-11));
        }
        self
    }

    /// Replaces the plain caches of a call of attention, operands 1 and 2, by quantized ones. Their numbers are up to 512,
    /// so the factor of the scores is small.
    pub(super) fn with_quantized_caches(mut self) -> Self {
        self.label += ", quantized";
        for operand in [1, 2] {
            let shape = &self.inputs[operand].shape;
            let (width, rows) = shape.split_last().map_or((0, &[][..]), |(width, rows)| (*width, rows));
            let of_row = |count: usize| [rows, &[count]].concat();
            let words = SampleInput::below(&of_row(width / 4), u32::MAX as usize);
            let scales = SampleInput::filled(DType::F16, &of_row(width / BLOCK), Fill::Below(5));
            self.inputs[operand] = words;
            self.inputs.push(scales);
        }
        self.attrs = self.attrs.with("scale", 1e-4);
        self
    }

    /// Adds sinks to a call of attention to a cache, as the last operand.
    pub(super) fn with_sinks(mut self) -> Self {
        self.label += ", sinks";
        let heads = self.attrs.size("num_heads").unwrap_or(1);
        self.inputs.push(SampleInput::range(&[heads], -2.0, 3.0));
        self
    }

    /// Inserts an operand after the first.
    pub(super) fn with_second(mut self, operand: SampleInput) -> Self {
        self.inputs.insert(1, operand);
        self
    }

    /// Returns the types of the operands.
    ///
    /// # Errors
    /// A shape with too many elements.
    pub fn input_types(&self) -> Result<Vec<TensorType>, String> {
        self.inputs.iter().map(SampleInput::ty).collect()
    }
}

impl SampleInput {
    /// Creates an `f32` operand with values in `[-2, 2]`.
    pub fn f32(shape: &[usize]) -> Self {
        SampleInput::range(shape, -2.0, 2.0)
    }

    /// Creates an `f32` operand with values in a range.
    pub fn range(shape: &[usize], low: f64, high: f64) -> Self {
        SampleInput::filled(DType::F32, shape, Fill::Range(low, high))
    }

    /// Creates a `u32` operand with values in `0..bound`.
    pub fn below(shape: &[usize], bound: usize) -> Self {
        SampleInput::filled(DType::U32, shape, Fill::Below(bound as u32))
    }

    /// Creates a KV cache, with numbers that are exact in its type.
    pub(super) fn cache(dtype: DType, shape: &[usize]) -> Self {
        match dtype {
            DType::F16 => SampleInput::filled(dtype, shape, Fill::Below(5)),
            _ => SampleInput::f32(shape),
        }
    }

    /// Returns `true` if its rows have an even number of elements, as a cache of `f16` requires.
    pub(super) fn has_pairs(&self) -> bool {
        self.shape.last().is_some_and(|width| width.is_multiple_of(2))
    }

    /// Creates any operand.
    pub fn filled(dtype: DType, shape: &[usize], fill: Fill) -> Self {
        SampleInput {
            dtype,
            shape: shape.to_vec(),
            fill,
            state: false,
        }
    }

    /// Returns the operand's type.
    ///
    /// # Errors
    /// A shape with too many elements.
    pub fn ty(&self) -> Result<TensorType, String> {
        Ok(TensorType::new(self.dtype, Shape::new(&self.shape)?))
    }

    /// Adds the operand to a graph as an input, or, if the operator writes it, as a state (`f32`)
    /// or a parameter (other types).
    #[track_caller]
    pub fn leaf(&self, g: &mut Graph, name: &str, dtype: DType) -> NodeId {
        match (self.state, self.dtype) {
            (false, _) => g.input_typed(name, &self.shape, dtype),
            (true, DType::F32) => g.state(name, &self.shape),
            (true, own) => g.parameter_typed(name, &self.shape, own),
        }
    }

    /// Turns the operand into a state.
    #[must_use]
    pub fn state(mut self) -> Self {
        self.state = true;
        self
    }

    /// Draws the values of the operand; equal states of the generator give equal values.
    pub fn values(&self, rng: &mut SplitMix64) -> Vec<f64> {
        let len: usize = self.shape.iter().product();
        match self.fill {
            Fill::Range(low, high) => (0..len)
                .map(|_| {
                    let mut v = low + (high - low) * rng.unit();
                    // f32 grid, so that kernels and references see the same number.
                    if (v - v.round()).abs() < 0.02 {
                        v += 0.04 * (high - low).min(1.0);
                    }
                    f64::from(v.clamp(low.min(v), high.max(v)) as f32)
                })
                .collect(),
            Fill::Below(bound) => (0..len).map(|_| rng.below(bound as usize) as f64).collect(),
            Fill::Odd(bound) => {
                let integer = |_| 2.0 * rng.below(bound as usize + 1) as f64 - f64::from(bound);
                (0..len).map(integer).collect()
            }
            Fill::Mask => (0..len).map(|_| rng.below(2) as f64).collect(),
            Fill::Constant(c) => vec![c; len],
            Fill::Probabilities => probabilities(len, self.shape.last().copied().unwrap_or(1), rng),
            Fill::Distinct => distinct(len, rng),
        }
    }
}

fn probabilities(len: usize, row: usize, rng: &mut SplitMix64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..len).map(|_| 0.05 + rng.unit()).collect();
    for row in values.chunks_mut(row.max(1)) {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = f64::from((*v / sum) as f32));
    }
    values
}

fn distinct(len: usize, rng: &mut SplitMix64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..len)
        .map(|i| f64::from((0.01 * (i as f64 - len as f64 / 2.0) + 0.003) as f32))
        .collect();
    for i in (1..len).rev() {
        values.swap(i, rng.below(i + 1));
    }
    values
}

/// Source of dimensions for sample cases; it often draws 1, odd numbers, primes and sizes larger than a tile.
#[derive(Clone, Debug)]
pub struct Sizes {
    rng: SplitMix64,
}

impl Sizes {
    /// Creates a stream of sizes.
    pub fn new(seed: u64) -> Self {
        Sizes {
            rng: SplitMix64::new(seed ^ 0x5153_e5a1),
        }
    }

    /// Draws a dimension in `1..=max`.
    pub fn dim(&mut self, max: usize) -> usize {
        const INTERESTING: [usize; 12] = [1, 2, 3, 5, 7, 8, 13, 17, 31, 33, 64, 67];
        let fitting = INTERESTING.iter().filter(|&&d| d <= max).count();
        if fitting > 0 && self.rng.below(3) > 0 {
            INTERESTING[self.rng.below(fitting)]
        } else {
            1 + self.rng.below(max)
        }
    }

    /// Draws a number in `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound)
    }

    /// Draws a shape of that rank.
    pub fn shape(&mut self, rank: usize, max: usize) -> Vec<usize> {
        (0..rank).map(|_| self.dim(max)).collect()
    }
}
