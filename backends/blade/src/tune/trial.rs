//! A call that has several variants, run in one and another.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use meganeura_core::backend::{Executable as _, StepArgs};
use meganeura_core::calibration::warm_up;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, try_compile};
use meganeura_core::precision::Precision;
use meganeura_core::replay::{ReplayOptions, replay_on_executables};
use meganeura_core::{Error, Result, registry};

use super::comparison::Subject;
use super::operands::{Datum, Held, Operands, Widened, data_of, name};
use crate::executable::BladeExecutable;
use crate::gpu::NAME;
use crate::handle::Handle;
use meganeura_shaders::Schedule;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{self, CustomKernels, Draft, F16Storage, With};
use meganeura_shaders::{Class, ScheduleChooser};

/// Most bytes of the calls of a plan, which are so many that what a call reads of its own is not in a cache since the last
/// time; fewer of devices that are emulated.
const BYTES: usize = 256 << 20;
const BYTES_EMULATED: usize = 4 << 20;
/// Most calls of a plan.
const MAX_CALLS: usize = 16;
/// Codes of equal calls, in turns, on devices that are not emulated: in a step, other kernels run between two calls, and what a
/// processor keeps of a kernel's code may be gone. On an H200, code that is not there costs some microseconds a call, more for
/// long code, of which a call that only follows its like would show nothing.
const CODES: usize = 8;
/// Length of a batch of warming up from which on it is long enough, and most times of the plan that are tried.
const SHORT_BATCH: Duration = Duration::from_millis(10);
const MAX_TIMES: u32 = 512;

/// Some equal calls one after the other, with operands as a model has them.
pub(super) struct Trial<'a> {
    device: &'a Handle,
    class: &'a Class,
    variants: &'a [String],
    coop: Option<CoopConfig>,
    plan: ExecutionPlan,
    calls: u32,
    /// The inputs.
    data: Vec<Datum>,
    /// Results that are in `f16` though their type is `f32`.
    f16_results: HashSet<BufferRef>,
    /// Different codes of equal calls.
    pub(super) codes: usize,
    until: Instant,
}

impl<'a> Trial<'a> {
    /// Calls as that of a dispatch, with operands as a model has them, in variants that there are for a class.
    ///
    /// # Errors
    /// A call that cannot stand alone.
    pub(super) fn new(
        device: &'a Handle,
        dispatch: &Dispatch,
        operands: &Operands,
        (precision, coop): (Precision, Option<CoopConfig>),
        (class, variants): (&'a Class, &'a [String]),
        until: Instant,
    ) -> Result<Self> {
        let bytes: usize = dispatch
            .inputs
            .iter()
            .chain(&dispatch.outputs)
            .map(|o| o.ty.bytes())
            .sum();
        let all = if device.is_software() { BYTES_EMULATED } else { BYTES };
        let calls = (all / bytes.max(1)).clamp(1, MAX_CALLS);
        let Operands { held, f16_results } = operands;
        let plan = plan_of(device, dispatch, held, precision, calls)?;
        let data = data_of(dispatch, &plan, held, calls);
        let results = plan.dispatches.iter().flat_map(|d| d.outputs.iter().zip(f16_results));
        let f16_results = results
            .filter(|(_, f16_storage)| **f16_storage)
            .map(|(result, _)| result.buffer)
            .collect();
        Ok(Trial {
            device,
            class,
            variants,
            coop,
            plan,
            calls: calls as u32,
            data,
            f16_results,
            codes: if device.is_software() { 1 } else { CODES },
            until,
        })
    }

    /// An executable with its operands, none of whose results is a number yet.
    pub(super) fn executable(&self, variant: &str) -> Result<BladeExecutable> {
        let usual = variant == self.variants[0];
        let forced = Forced::new(self.class, (!usual).then_some(variant), self.plan.precision);
        let custom = CustomKernels::new();
        let with = With {
            backend: NAME,
            library: None,
            coop: self.coop,
            features: self.device.features(),
            custom: &custom,
            choices: Some(&forced),
            f16_storage: F16Storage::No,
        };
        let mut f16_storage = self.f16_storage(&with)?;
        f16_storage.extend(&self.f16_results);
        let with = With {
            f16_storage: F16Storage::Given(&f16_storage),
            ..with
        };
        let mut draft = Draft::of(&self.plan, &with)?;
        draft.differ(self.codes);
        let made = BladeExecutable::of(self.device, &self.plan, draft);
        let mut executable = made.map_err(Error::from)?;
        if !(usual || forced.used.get()) {
            return Err(Error::backend(NAME, "no kernel can be made"));
        }
        for datum in &self.data {
            let bytes = match f16_storage.contains(&datum.buffer) {
                true => &datum.contents.halves,
                false => &datum.contents.bytes,
            };
            executable.write(datum.buffer, 0, bytes)?;
        }
        for buffer in &self.plan.output_buffers {
            executable.write(*buffer, 0, &vec![0xff; self.plan.buffers[buffer.index()]])?;
        }
        Ok(executable)
    }

    /// Which inputs are in `f16`: of those that are so in the model, all that every kernel rounds.
    fn f16_storage(&self, with: &With) -> Result<HashSet<BufferRef>> {
        let f16_storage = self
            .data
            .iter()
            .filter(|datum| datum.f16_storage)
            .map(|datum| datum.buffer);
        let mut f16_storage: HashSet<BufferRef> = f16_storage.collect();
        if f16_storage.is_empty() {
            return Ok(f16_storage);
        }
        let kernels = host::facts_of(&self.plan, with)?;
        for (dispatch, kernels) in self.plan.dispatches.iter().zip(&kernels) {
            let inputs = dispatch.inputs.iter().enumerate();
            inputs
                .filter(|(i, _)| !kernels.rounded.contains(i))
                .for_each(|(_, operand)| _ = f16_storage.remove(&operand.buffer));
        }
        Ok(f16_storage)
    }

    /// The first call's first result after a step, as numbers.
    #[cfg(test)]
    pub(super) fn outputs(&self, executable: &mut BladeExecutable) -> Result<Vec<f32>> {
        self.time(executable, 1)?;
        let result = &self.plan.dispatches[0].outputs[0];
        let mut bytes = vec![0; result.ty.bytes()];
        let f16_storage = &self.f16_results;
        Widened {
            executable,
            f16_storage,
        }
        .read(result.buffer, 0, &mut bytes)?;
        let words = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(words.collect())
    }

    /// Gives an executable other operands, as a variant that computes something else would have.
    #[cfg(test)]
    pub(super) fn spoil(&self, executable: &mut BladeExecutable) -> Result<()> {
        let datum = &self.data[0];
        let mut others = datum.contents.bytes.clone();
        others.rotate_left(4);
        executable.write(datum.buffer, 0, &others)
    }
}

impl Subject for Trial<'_> {
    type Ready = BladeExecutable;

    fn variants(&self) -> &[String] {
        self.variants
    }

    fn prepare(&self, variant: &str) -> Result<BladeExecutable> {
        self.executable(variant)
    }

    fn difference(&self, usual: &mut BladeExecutable, other: &mut BladeExecutable) -> Result<Option<String>> {
        let f16_storage = &self.f16_results;
        let [mut usual, mut other] = [usual, other].map(|executable| Widened {
            executable,
            f16_storage,
        });
        let replay = replay_on_executables(&self.plan, [&mut usual, &mut other], &ReplayOptions::default())?;
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
            if took < SHORT_BATCH && times < MAX_TIMES {
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

/// The variant of one class; other classes have their usual ones.
pub(super) struct Forced<'a> {
    class: &'a Class,
    variant: Option<&'a str>,
    precision: Precision,
    /// Whether a kernel was made in that variant.
    used: Cell<bool>,
}

impl<'a> Forced<'a> {
    pub(super) fn new(class: &'a Class, variant: Option<&'a str>, precision: Precision) -> Self {
        Forced {
            class,
            variant,
            precision,
            used: Cell::new(false),
        }
    }
}

impl ScheduleChooser for Forced<'_> {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn choose(&self, class: &Class, _: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        let variant = self.variant.filter(|_| class.name == self.class.name)?;
        let schedule = variant.parse().ok()?;
        self.used.set(true);
        Some(schedule)
    }

    fn missing(&self, _: &Class, _: &Schedule) {
        self.used.set(false);
    }
}

/// A plan of calls like that of a dispatch, which wait for each other.
fn plan_of(
    device: &Handle,
    dispatch: &Dispatch,
    held: &[Held],
    precision: Precision,
    calls: usize,
) -> Result<ExecutionPlan> {
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
    // Equal calls of equal operands would have been merged, so they become equal here.
    let named: HashMap<&str, BufferRef> = plan
        .input_buffers
        .iter()
        .map(|(name, buffer)| (&**name, *buffer))
        .collect();
    let mut same: HashMap<BufferRef, BufferRef> = HashMap::new();
    for (i, held) in held.iter().enumerate() {
        for call in held.copies..calls {
            let [own, first] = [call, call % held.copies].map(|call| named.get(&*name(call, i)));
            same.extend(own.copied().zip(first.copied()));
        }
    }
    for operand in plan.dispatches.iter_mut().flat_map(|dispatch| &mut dispatch.inputs) {
        operand.buffer = same.get(&operand.buffer).copied().unwrap_or(operand.buffer);
    }
    for (level, dispatch) in (0..).zip(&mut plan.dispatches) {
        dispatch.level = level;
        // Whether it does is decided by its variant.
        dispatch.use_coop = true;
    }
    plan.place_buffers(device.capabilities().max_buffer_bytes)?;
    plan.verify()?;
    Ok(plan)
}
