//! A call that has several ways, run in one and another.

use std::cell::Cell;
use std::time::{Duration, Instant};

use meganeura_core::backend::{Device as _, Executable as _, StepArgs};
use meganeura_core::calibration::warm_up;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, try_compile};
use meganeura_core::precision::Precision;
use meganeura_core::random::SplitMix64;
use meganeura_core::replay::{ReplayOptions, replay_on_executables};
use meganeura_core::{DType, Error, Result, registry};

use super::contest::Subject;
use crate::brought::Brought;
use crate::device::BladeDevice;
use crate::executable::BladeExecutable;
use crate::gpu::NAME;
use crate::kernels::coop::CoopConfig;
use crate::kernels::variants::{Choices, Class};
use crate::program::With;

/// Bytes that calls of a plan go over, so that what a call reads is not in a cache since the last time; fewer of devices that
/// are emulated.
const BYTES: usize = 256 << 20;
const BYTES_EMULATED: usize = 4 << 20;
/// Most calls of a plan.
const MOST_CALLS: usize = 16;
/// Most indices that are spread evenly.
const FEW_INDICES: usize = 16;
/// Length of a batch of warming up from which on it is long enough, and most times of the plan that are tried.
const SHORT_BATCH: Duration = Duration::from_millis(10);
const MOST_TIMES: u32 = 512;

/// Some equal calls one after the other, each with operands of its own.
pub(super) struct Trial<'a> {
    device: &'a BladeDevice,
    class: &'a Class,
    ways: &'a [String],
    coop: Option<CoopConfig>,
    plan: ExecutionPlan,
    calls: u32,
    /// Contents of the inputs.
    data: Vec<(BufferRef, Vec<u8>)>,
    until: Instant,
}

impl<'a> Trial<'a> {
    /// Calls as that of a dispatch, in ways that there are for a class.
    ///
    /// # Errors
    /// A call that cannot stand alone.
    pub(super) fn new(
        device: &'a BladeDevice,
        dispatch: &Dispatch,
        precision: Precision,
        class: &'a Class,
        ways: &'a [String],
        until: Instant,
    ) -> Result<Self> {
        let bytes: usize = dispatch
            .inputs
            .iter()
            .chain(&dispatch.outputs)
            .map(|o| o.ty.bytes())
            .sum();
        let all = if device.is_software() { BYTES_EMULATED } else { BYTES };
        let calls = (all / bytes.max(1)).clamp(1, MOST_CALLS);
        let plan = plan_of(device, dispatch, precision, calls)?;
        let data = data_of(dispatch, &plan, calls);
        Ok(Trial {
            device,
            class,
            ways,
            coop: device.coop_at(precision),
            plan,
            calls: calls as u32,
            data,
            until,
        })
    }

    /// An executable with its operands, none of whose results is a number yet.
    pub(super) fn executable(&self, way: &str) -> Result<BladeExecutable> {
        let usual = way == self.ways[0];
        let forced = Forced::new(self.class, (!usual).then_some(way), self.plan.precision);
        let with = With {
            coop: self.coop,
            brought: &Brought::new(),
            choices: Some(&forced),
            narrows: false,
        };
        let made = BladeExecutable::new(self.device, &self.plan, &with);
        let mut executable = made.map_err(Error::from)?;
        if !(usual || forced.used.get()) {
            return Err(Error::backend(NAME, "no kernel can be made"));
        }
        for (buffer, bytes) in &self.data {
            executable.write(*buffer, 0, bytes)?;
        }
        for buffer in &self.plan.output_buffers {
            executable.write(*buffer, 0, &vec![0xff; self.plan.buffers[buffer.index()]])?;
        }
        Ok(executable)
    }

    /// Gives an executable other operands, as a way that computes something else would have.
    #[cfg(test)]
    pub(super) fn spoil(&self, executable: &mut BladeExecutable) -> Result<()> {
        let (buffer, bytes) = &self.data[0];
        let mut others = bytes.clone();
        others.rotate_left(4);
        executable.write(*buffer, 0, &others)
    }
}

impl Subject for Trial<'_> {
    type Ready = BladeExecutable;

    fn ways(&self) -> &[String] {
        self.ways
    }

    fn prepare(&self, way: &str) -> Result<BladeExecutable> {
        self.executable(way)
    }

    fn difference(&self, usual: &mut BladeExecutable, other: &mut BladeExecutable) -> Result<Option<String>> {
        let replay = replay_on_executables(&self.plan, [usual, other], &ReplayOptions::default())?;
        Ok(replay.divergence.map(|divergence| {
            let [usual, other] = divergence.values;
            format!(
                "its results are wrong: element {} of result {} is {other}, not {usual}, of {}",
                divergence.element, divergence.result, divergence.title
            )
        }))
    }

    fn time(&self, ready: &mut BladeExecutable, times: u32) -> Result<f64> {
        let segments = vec![0; times as usize];
        let start = Instant::now();
        let ticket = ready.run(&StepArgs {
            segments: &segments,
            scalars: &[],
        })?;
        ready.wait(ticket)?;
        Ok(start.elapsed().as_secs_f64() / f64::from(times * self.calls))
    }

    fn warm_up(&self, ready: &mut BladeExecutable) -> Result<()> {
        // Processors that emulate a GPU are busy in any case.
        if self.device.is_software() {
            return Ok(());
        }
        let mut times = 1;
        warm_up(|| {
            let took = Duration::from_secs_f64(self.time(ready, times)? * f64::from(times * self.calls));
            if took < SHORT_BATCH && times < MOST_TIMES {
                times *= 2;
            }
            Ok(took)
        })
        .map(drop)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// The way of one class; other classes have their usual ones.
pub(super) struct Forced<'a> {
    class: &'a Class,
    way: Option<&'a str>,
    precision: Precision,
    /// Whether a kernel was made in that way.
    used: Cell<bool>,
}

impl<'a> Forced<'a> {
    pub(super) fn new(class: &'a Class, way: Option<&'a str>, precision: Precision) -> Self {
        Forced {
            class,
            way,
            precision,
            used: Cell::new(false),
        }
    }
}

impl Choices for Forced<'_> {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn choose(&self, class: &Class, _: &dyn Fn() -> Vec<String>) -> Option<String> {
        let way = self.way.filter(|_| class.name == self.class.name)?;
        self.used.set(true);
        Some(way.to_owned())
    }

    fn missing(&self, _: &Class, _: &str) {
        self.used.set(false);
    }
}

/// A plan of calls like that of a dispatch, which wait for each other.
fn plan_of(device: &BladeDevice, dispatch: &Dispatch, precision: Precision, calls: usize) -> Result<ExecutionPlan> {
    let alone = |why: &str| Error::backend(NAME, format!("{}: {why}", dispatch.label));
    let op = registry::op(&dispatch.kernel.name).ok_or_else(|| alone("its operator is not known"))?;
    let mut graph = Graph::new();
    let mut results: Vec<Value> = Vec::new();
    for call in 0..calls {
        let operands = dispatch.inputs.iter().enumerate().map(|(i, operand)| {
            let input = graph.input_typed(&name(call, i), &operand.ty.shape, operand.ty.dtype);
            input.into()
        });
        let operands: Vec<Value> = operands.collect();
        let node = graph.call(op, dispatch.attrs.clone(), operands);
        results.extend(graph.values(node));
    }
    graph.set_outputs(results);
    let mut plan = try_compile(&graph)?;
    if plan.dispatches.len() != calls || plan.dispatches[0].types() != dispatch.types() {
        return Err(alone("the call means something else alone"));
    }
    plan.precision = precision;
    for (level, dispatch) in (0..).zip(&mut plan.dispatches) {
        dispatch.level = level;
        // Whether it does is decided by its way.
        dispatch.use_coop = true;
    }
    plan.place_buffers(device.capabilities().max_buffer_bytes)?;
    plan.verify()?;
    Ok(plan)
}

/// The name of a call's operand.
fn name(call: usize, operand: usize) -> String {
    format!("x{call}.{operand}")
}

/// What the operands of all calls are filled with: quarters from -1 to 1, which are exact in half precision, and whose
/// products are sums without rounding; indices within their bounds, other integers of any bits. A few indices, such as the
/// places of sequences in a cache, are spread evenly: they decide how much there is to do.
fn data_of(dispatch: &Dispatch, plan: &ExecutionPlan, calls: usize) -> Vec<(BufferRef, Vec<u8>)> {
    let mut rng = SplitMix64::new(41);
    let indices = dispatch.index_operand();
    let mut all = Vec::new();
    for (i, operand) in dispatch.inputs.iter().enumerate() {
        let bound = indices.filter(|(index, _)| *index == i).map(|(_, bound)| bound);
        let count = operand.ty.numel();
        let mut word = |at: usize| match (operand.ty.dtype.is_float(), bound) {
            (true, _) => quarters(operand.ty.dtype, rng.below(9) as i32 - 4),
            (false, Some(bound)) if count <= FEW_INDICES => {
                (((2 * at + 1) * bound / (2 * count)) as u32).to_le_bytes().to_vec()
            }
            (false, Some(bound)) => (rng.below(bound.max(1)) as u32).to_le_bytes().to_vec(),
            (false, None) => (rng.next_u64() as u32).to_le_bytes().to_vec(),
        };
        let bytes: Vec<u8> = (0..count).flat_map(&mut word).collect();
        for call in 0..calls {
            let wanted = name(call, i);
            let buffers = plan.input_buffers.iter().filter(|(name, _)| *name == wanted);
            all.extend(buffers.map(|(_, buffer)| (*buffer, bytes.clone())));
        }
    }
    all
}

/// So many quarters, four at most, as they are stored.
fn quarters(dtype: DType, count: i32) -> Vec<u8> {
    let value = 0.25 * count as f32;
    match dtype {
        DType::F16 => {
            const BITS: [u16; 5] = [0, 0x3400, 0x3800, 0x3a00, 0x3c00];
            let sign = if count < 0 { 0x8000 } else { 0 };
            (BITS[count.unsigned_abs() as usize % BITS.len()] | sign)
                .to_le_bytes()
                .to_vec()
        }
        DType::BF16 => ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_stored_as_they_are() {
        for count in -4..=4 {
            let value = 0.25 * count as f32;
            let stored = |dtype| quarters(dtype, count);
            assert_eq!(stored(DType::F32), value.to_le_bytes());
            assert_eq!(stored(DType::F16), half::f16::from_f32(value).to_le_bytes());
            assert_eq!(stored(DType::BF16), half::bf16::from_f32(value).to_le_bytes());
        }
    }
}
