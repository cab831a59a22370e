//! Search for the first NaN or infinity in a step.

use std::fmt;
use std::ops::ControlFlow;

use half::{bf16, f16};

use super::Session;
use super::levels::{Level, Stage};
use crate::dtype::DType;
use crate::error::{Result, TensorKind, unwrap_report};
use crate::plan::{BufferRef, Dispatch, Operand, Segment};

/// Kind of a non-finite value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Not a number.
    NaN,
    /// Plus or minus infinity.
    Infinity,
}

/// The first result of a step that introduces a NaN or an infinity: a NaN although no operand has one, or an infinity
/// although all operands are finite.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// Name of the call: name or number of its node, and the operator. For a tensor that existed before the step, its
    /// name.
    pub name: String,
    /// File and line of the program that made the call; `None` if unknown, and for a tensor that existed before the step.
    pub source: Option<String>,
    /// Part of the step.
    pub stage: Stage,
    /// Index of the result.
    pub result: usize,
    /// Kind of the value.
    pub defect: Defect,
    /// Index of the first non-finite element, in row-major order.
    pub index: usize,
    /// Number of non-finite elements.
    pub count: usize,
    /// Number of elements.
    pub len: usize,
    /// Smallest and largest finite element of each float operand; `None` if none is finite, or the
    /// type is not a float.
    pub operands: Vec<Option<(f32, f32)>>,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.defect {
            Defect::NaN => "NaN",
            Defect::Infinity => "infinity",
        };
        let NonFinite {
            name,
            index,
            count,
            len,
            stage,
            ..
        } = self;
        write!(
            f,
            "{name}: {what} at element {index} ({count} of {len} elements), {stage}"
        )?;
        if let Some(source) = &self.source {
            write!(f, ", from {source}")?;
        }
        for (i, range) in self.operands.iter().enumerate() {
            match range {
                Some((low, high)) => write!(f, "\n  operand {i} lies in {low:e} ..= {high:e}")?,
                None => write!(f, "\n  operand {i} has no finite numbers")?,
            }
        }
        Ok(())
    }
}

/// The non-finite values in a buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Contents {
    nan: Option<usize>,
    infinite: Option<usize>,
    /// Number of elements that are not finite.
    count: usize,
    len: usize,
    range: Option<(f32, f32)>,
}

impl Contents {
    fn of(dtype: DType, bytes: &[u8]) -> Contents {
        let mut contents = Contents::default();
        let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
        match dtype {
            DType::F32 => {
                let words = bytes.chunks_exact(4);
                contents.note(words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            }
            DType::F16 => contents.note(pairs().map(|b| f16::from_le_bytes(b).to_f32())),
            DType::BF16 => contents.note(pairs().map(|b| bf16::from_le_bytes(b).to_f32())),
            DType::U32 | DType::I32 => {}
        }
        contents
    }

    fn note(&mut self, values: impl Iterator<Item = f32>) {
        for (i, v) in values.enumerate() {
            self.len = i + 1;
            if v.is_finite() {
                let (low, high) = self.range.unwrap_or((v, v));
                self.range = Some((low.min(v), high.max(v)));
                continue;
            }
            self.count += 1;
            let first = if v.is_nan() { &mut self.nan } else { &mut self.infinite };
            first.get_or_insert(i);
        }
    }
}

impl Session {
    /// Runs a step, one level after the other, and inspects every result. Returns the first one
    /// that introduced a NaN or an infinity into the step, or `None`.
    ///
    /// Without such a result, the step is an ordinary one. If one is found, the step is rolled back: parameters, states
    /// and counters are unchanged.
    ///
    /// It runs on a copy of the session's memory in which no buffers share memory, so it needs memory for this copy,
    /// and takes many times as long.
    ///
    /// # Errors
    /// Those of [`Session::try_step`]; not enough memory.
    pub fn try_step_debug(&mut self) -> Result<Option<NonFinite>> {
        let mut hunt = NonFiniteSearch::default();
        self.step_by_levels(&mut |level| hunt.look(level))?;
        Ok(hunt.found)
    }

    /// Calls [`Session::try_step_debug`], and panics on errors.
    #[track_caller]
    pub fn step_debug(&mut self) -> Option<NonFinite> {
        unwrap_report(self.try_step_debug())
    }
}

/// A search for the first non-finite value, with the non-finite values of all buffers so far.
#[derive(Default)]
struct NonFiniteSearch {
    contents: Vec<Contents>,
    found: Option<NonFinite>,
}

impl NonFiniteSearch {
    fn look(&mut self, level: &mut Level) -> Result<ControlFlow<()>> {
        self.found = match level.segment {
            Some(segment) => self.level(level, segment)?,
            None => self.leaves(level)?,
        };
        Ok(match self.found {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    }

    fn read(level: &mut Level, buffer: BufferRef) -> Result<Contents> {
        let dtype = level.plan.buffer_types[buffer.index()].dtype;
        if dtype.is_integer() {
            Ok(Contents::default())
        } else {
            Ok(Contents::of(dtype, &level.read(buffer)?))
        }
    }

    /// Inspects the leaves before the step. An infinity is a defect only in parameters: masks, and states that store a
    /// minimum, may be infinite.
    fn leaves(&mut self, level: &mut Level) -> Result<Option<NonFinite>> {
        let plan = level.plan;
        self.contents = vec![Contents::default(); plan.buffers.len()];
        for (buffer, bytes) in plan.constants() {
            self.contents[buffer.index()] = Contents::of(plan.buffer_types[buffer.index()].dtype, &bytes);
        }
        let inputs = plan.input_buffers.iter().map(|(n, b)| (TensorKind::Input, n, *b));
        let parameters = plan.param_buffers.iter().map(|(n, b)| (TensorKind::Parameter, n, *b));
        let states = plan
            .state_buffers
            .iter()
            .map(|s| (TensorKind::State, &s.name, s.buffer));
        for (kind, name, buffer) in inputs.chain(parameters).chain(states) {
            let contents = NonFiniteSearch::read(level, buffer)?;
            self.contents[buffer.index()] = contents;
            let nan = contents.nan.map(|i| (Defect::NaN, i));
            let infinite = contents.infinite.filter(|_| kind == TensorKind::Parameter);
            if let Some((defect, index)) = nan.or(infinite.map(|i| (Defect::Infinity, i))) {
                return Ok(Some(NonFinite {
                    name: name.clone(),
                    source: None,
                    stage: Stage::Before(kind),
                    result: 0,
                    defect,
                    index,
                    count: contents.count,
                    len: contents.len,
                    operands: Vec::new(),
                }));
            }
        }
        Ok(None)
    }

    /// Inspects the results of a level, in the order of its dispatches.
    fn level(&mut self, level: &mut Level, segment: &Segment) -> Result<Option<NonFinite>> {
        let plan = level.plan;
        for i in segment.range() {
            let dispatch = &plan.dispatches[i];
            let operands: Vec<Contents> = dispatch
                .inputs
                .iter()
                .map(|o| self.contents[o.buffer.index()])
                .collect();
            for (result, output) in dispatch.outputs.iter().enumerate() {
                let contents = NonFiniteSearch::read(level, output.buffer)?;
                self.contents[output.buffer.index()] = contents;
                if let Some((defect, index)) = made(&operands, &contents) {
                    return Ok(Some(NonFinite {
                        name: dispatch.label.clone(),
                        source: plan.source_of(dispatch).map(ToString::to_string),
                        stage: level.stage(i),
                        result,
                        defect,
                        index,
                        count: contents.count,
                        len: contents.len,
                        operands: ranges(dispatch, &operands),
                    }));
                }
            }
        }
        Ok(None)
    }
}

/// Returns the defect that a call introduced into its result, and the index of the first such element.
fn made(operands: &[Contents], result: &Contents) -> Option<(Defect, usize)> {
    let had_nan = operands.iter().any(|o| o.nan.is_some());
    let had_any = operands.iter().any(|o| o.count > 0);
    match (result.nan, result.infinite) {
        (Some(index), _) if !had_nan => Some((Defect::NaN, index)),
        (_, Some(index)) if !had_any => Some((Defect::Infinity, index)),
        _ => None,
    }
}

/// Returns the ranges of the finite elements of the float operands.
fn ranges(dispatch: &Dispatch, operands: &[Contents]) -> Vec<Option<(f32, f32)>> {
    let floats = |(operand, _): &(&Operand, &Contents)| operand.ty.dtype.is_float();
    let pairs = dispatch.inputs.iter().zip(operands).filter(floats);
    pairs.map(|(_, contents)| contents.range).collect()
}
