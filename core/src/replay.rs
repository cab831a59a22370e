//! Replay of a plan on two devices with the same data, to find the first dispatch on which they
//! differ.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Device, Executable, StepArgs};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::memory::check_fit;
use crate::plan::{BufferRef, Dispatch, ExecutionPlan, Operand};
use crate::precision::Precision;
use crate::random::SplitMix64;
use crate::session::check_kernels;
use crate::storage::decode;

/// Options of [`replay_on_two`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Maximum accepted difference of floats, relative to the largest magnitude in a result (at
    /// least 0.01), times `sqrt(1 + w / 64)`, where `w` is the number of operations per element.
    /// The limit is never below the rounding error of storing results in 16 bits, or of rounding
    /// operands for the cooperative matrices of a plan in mixed precision.
    pub tolerance: f64,
    /// Seed of random inputs and parameters.
    pub seed: u64,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        ReplayOptions {
            tolerance: 1e-5,
            seed: 0,
        }
    }
}

/// A difference between two devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Index of the dispatch in the plan.
    pub dispatch: usize,
    /// Title of the kernel.
    pub title: String,
    /// Provenance label.
    pub label: String,
    /// Source line of the call, if the plan contains it.
    pub source: Option<String>,
    /// Index of the result.
    pub result: usize,
    /// Index of the element that differs most.
    pub element: usize,
    /// The values of both devices.
    pub values: [f64; 2],
    /// Accepted difference.
    pub limit: f64,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.values;
        write!(f, "dispatch {}, {} for {}", self.dispatch, self.title, self.label)?;
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        let (result, element) = (self.result, self.element);
        write!(
            f,
            ": element {element} of result {result} is {a} and {b}; the tolerance is {:.3e}",
            self.limit
        )
    }
}

/// Result of a replay without errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// Number of dispatches that were compared.
    pub compared: usize,
    /// The largest accepted difference as a fraction of its limit, and the index of its dispatch.
    pub worst: Option<(f64, usize)>,
    /// The first dispatch whose difference exceeds the limit; later levels were not run.
    pub divergence: Option<Divergence>,
}

/// Replays a step of a plan on two devices, level by level, with the same random inputs and parameters, and compares
/// the results of each dispatch. Both devices continue with the results of the first device, so differences do not
/// accumulate.
///
/// # Errors
/// Kernels or memory that a device lacks; a step that fails.
pub fn replay_on_two(plan: &ExecutionPlan, devices: [&Arc<dyn Device>; 2], options: &ReplayOptions) -> Result<Replay> {
    plan.verify()?;
    let (plan, _) = plan.by_levels();
    let mut executables = Vec::with_capacity(2);
    for device in devices {
        check_kernels(&**device, &plan)?;
        check_fit(&plan, 0, device.capabilities())?;
        executables.push(device.compile(&plan)?);
    }
    let [a, b] = &mut executables[..] else {
        return Err(Error::plan("expected two devices"));
    };
    fill(&plan, [&mut **a, &mut **b], options.seed)?;
    replay_on_executables(&plan, [&mut **a, &mut **b], options)
}

/// Replays a step of a plan on two executables that already have the same inputs and parameters, and compares the
/// results of each dispatch, segment by segment. Both continue with the results of the first executable.
///
/// Results that later dispatches of their segment overwrite cannot be compared, so buffers of the
/// plan must not share memory.
///
/// # Errors
/// A step that fails.
pub fn replay_on_executables(
    plan: &ExecutionPlan,
    [a, b]: [&mut dyn Executable; 2],
    options: &ReplayOptions,
) -> Result<Replay> {
    let scalars = scalars(plan);
    let mut replay = Replay::default();
    for (number, segment) in plan.segments.iter().enumerate() {
        for executable in [&mut *a, &mut *b] {
            let args = StepArgs {
                segments: &[number],
                scalars: &scalars,
            };
            let ticket = executable.run(&args)?;
            executable.wait(ticket)?;
        }
        for index in segment.range() {
            let dispatch = &plan.dispatches[index];
            replay.compared += 1;
            for (result, operand) in dispatch.outputs.iter().enumerate() {
                let bytes = read(a, operand)?;
                let found = [
                    decode(operand.ty.dtype, &bytes),
                    decode(operand.ty.dtype, &read(b, operand)?),
                ];
                let limit = limit(plan, dispatch, operand, options);
                let Some(worst) = compare(&found, operand.ty.dtype, limit) else {
                    continue;
                };
                if worst.ratio > 1.0 {
                    replay.divergence = Some(Divergence {
                        dispatch: index,
                        title: dispatch.title(),
                        label: dispatch.label.clone(),
                        source: plan.source_of(dispatch).map(ToString::to_string),
                        result,
                        element: worst.element,
                        values: [found[0][worst.element], found[1][worst.element]],
                        limit: worst.limit,
                    });
                    return Ok(replay);
                }
                if replay.worst.is_none_or(|(ratio, _)| worst.ratio > ratio) {
                    replay.worst = Some((worst.ratio, index));
                }
                b.write(operand.buffer, 0, &bytes)?;
            }
        }
    }
    Ok(replay)
}

fn read(executable: &mut dyn Executable, operand: &Operand) -> Result<Vec<u8>> {
    let mut bytes = vec![0; operand.ty.bytes()];
    executable.read(operand.buffer, 0, &mut bytes)?;
    Ok(bytes)
}

/// Writes the same parameters and inputs to both devices. States have their initial values.
fn fill(plan: &ExecutionPlan, mut executables: [&mut dyn Executable; 2], seed: u64) -> Result<()> {
    let mut rng = SplitMix64::new(seed);
    let mut both = |buffer: BufferRef, bytes: &[u8]| executables.iter_mut().try_for_each(|e| e.write(buffer, 0, bytes));
    let bounds = index_bounds(plan);
    for (is_input, list) in [(false, &plan.param_buffers), (true, &plan.input_buffers)] {
        for (_, buffer) in list {
            let ty = &plan.buffer_types[buffer.index()];
            let bound = bounds[buffer.index()];
            let values = (0..ty.numel()).map(|_| match (ty.dtype.is_float(), is_input) {
                (true, true) => rng.unit(),
                (true, false) => 0.25 * rng.normal(),
                (false, _) => rng.below(bound.max(1)) as f64,
            });
            let width = ty.dtype.block().bytes;
            let stored = values.flat_map(|v| crate::storage::scalar_bytes(ty.dtype, v).into_iter().take(width));
            both(*buffer, &stored.collect::<Vec<u8>>())?;
        }
    }
    Ok(())
}

/// Returns the exclusive upper bound of the random integers for each buffer: the bound of indices, or 2.
fn index_bounds(plan: &ExecutionPlan) -> Vec<usize> {
    let mut bounds = vec![usize::MAX; plan.buffers.len()];
    for dispatch in &plan.dispatches {
        if let Some((operand, rows)) = dispatch.index_operand() {
            let bound = &mut bounds[dispatch.inputs[operand].buffer.index()];
            *bound = rows.min(*bound);
        }
    }
    bounds
        .into_iter()
        .map(|b| if b == usize::MAX { 2 } else { b })
        .collect()
}

/// Returns the value of each scalar: 0.01 for floats, such as the learning rate, and 1 for integers.
fn scalars(plan: &ExecutionPlan) -> Vec<(BufferRef, [u8; 4])> {
    let value = |dtype: DType| if dtype.is_float() { 0.01 } else { 1.0 };
    let scalar = |buffer: &BufferRef| {
        let dtype = plan.buffer_types[buffer.index()].dtype;
        (*buffer, crate::storage::scalar_bytes(dtype, value(dtype)))
    };
    plan.scalar_buffers.iter().map(|(_, buffer)| scalar(buffer)).collect()
}

/// Maximum relative error of sums of products whose operands are rounded to `f16`, each by 2^-11. It is larger than
/// typical errors, because a sum of a few terms may almost cancel.
const ROUNDED_OPERANDS: f64 = 1.0 / 256.0;

/// Returns the accepted error of a result, relative to its largest magnitude.
fn limit(plan: &ExecutionPlan, dispatch: &Dispatch, operand: &Operand, options: &ReplayOptions) -> f64 {
    let inputs: usize = dispatch.inputs.iter().map(|o| o.ty.numel()).max().unwrap_or(0);
    let per_element = inputs as f64 / operand.ty.numel().max(1) as f64;
    let flops = crate::registry::op(&dispatch.kernel.name).map_or(0.0, |op| {
        let types = dispatch.types();
        op.get().cost(&dispatch.kernel_desc(&types).call()).flops as f64 / operand.ty.numel().max(1) as f64
    });
    let rounding = match operand.ty.dtype {
        DType::F16 => 2f64.powi(-9),
        DType::BF16 => 2f64.powi(-6),
        _ if dispatch.use_coop && plan.precision == Precision::Mixed => ROUNDED_OPERANDS,
        _ => 0.0,
    };
    (options.tolerance * (1.0 + flops.max(per_element) / 64.0).sqrt()).max(rounding)
}

struct Worst {
    ratio: f64,
    element: usize,
    limit: f64,
}

/// Returns the element that differs most; `None` for a result without elements.
fn compare([a, b]: &[Vec<f64>; 2], dtype: DType, limit: f64) -> Option<Worst> {
    let scale = a
        .iter()
        .filter(|v| v.is_finite())
        .fold(0.01, |scale: f64, v| scale.max(v.abs()));
    let limit = if dtype.is_float() { limit * scale } else { 0.0 };
    let ratios = a
        .iter()
        .zip(b)
        .map(|(a, b)| match (a == b || (a.is_nan() && b.is_nan()), (a - b).abs()) {
            (true, _) => 0.0,
            (false, difference) if difference.is_finite() && limit > 0.0 => difference / limit,
            _ => f64::INFINITY,
        });
    let (element, ratio) = ratios.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some(Worst { ratio, element, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(a: &[f64], b: &[f64], dtype: DType) -> (usize, f64) {
        let worst = compare(&[a.to_vec(), b.to_vec()], dtype, 0.1).expect("it has elements");
        (worst.element, worst.ratio)
    }

    #[test]
    fn differences_are_parts_of_what_is_accepted() {
        assert_eq!(ratio(&[1.0, 2.0], &[1.0, 2.1], DType::F32).0, 1);
        assert!((ratio(&[1.0, 2.0], &[1.0, 2.1], DType::F32).1 - 0.5).abs() < 1e-9);
        assert_eq!(
            ratio(&[f64::NAN, f64::INFINITY], &[f64::NAN, f64::INFINITY], DType::F32).1,
            0.0
        );
        assert_eq!(
            ratio(&[1.0, f64::INFINITY], &[1.0, 1.0], DType::F32),
            (1, f64::INFINITY)
        );
        assert_eq!(ratio(&[f64::NAN], &[1.0], DType::F32).1, f64::INFINITY);
        assert_eq!(ratio(&[3.0], &[4.0], DType::U32).1, f64::INFINITY, "integers are equal");
        assert!(compare(&[vec![], vec![]], DType::F32, 0.1).is_none());
    }
}
