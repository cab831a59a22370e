//! Trials: plans of several equal calls that use a given variant.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use meganeura_core::backend::{Executable as _, SharedBuffers, StepArgs};
use meganeura_core::calibration::warm_up;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, try_compile};
use meganeura_core::precision::Precision;
use meganeura_core::replay::{ReplayOptions, replay_on_executables};
use meganeura_core::{Error, Result, registry};

use super::comparison::Subject;
use super::operands::{Datum, OperandProperties, Operands, WidenedExecutable, data_of, name};
use crate::executable::{self, BladeExecutable};
use crate::gpu::NAME;
use crate::handle::Handle;
use meganeura_shaders::Schedule;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{self, CustomKernels, F16Storage, KernelOptions, LaunchPlan};
use meganeura_shaders::{Class, ScheduleChooser};

/// Maximum number of operand bytes of the calls of a plan. It is so large that operands are evicted from caches
/// before they are read again. On emulated devices, the limit is lower.
const BYTES: usize = 256 << 20;
const BYTES_EMULATED: usize = 4 << 20;
/// Maximum number of calls in a plan.
const MAX_CALLS: usize = 16;
/// Number of different kernels (with equal results) that the calls of a plan use in turns, on devices that are not
/// emulated.
///
/// In a step of a model, other kernels run between two calls, and may evict a kernel from the instruction cache. On
/// an H200, reloading the code takes some microseconds per call, and more for long code. Repeated calls of a single
/// kernel would not show this time.
const CODES: usize = 8;
/// Minimum duration of a warm-up batch, and maximum number of repetitions of the plan in it.
const SHORT_BATCH: Duration = Duration::from_millis(10);
const MAX_TIMES: u32 = 512;

/// Several equal calls in sequence, with operands as in a model.
pub(super) struct Trial<'a> {
    device: &'a Handle,
    class: &'a Class,
    variants: &'a [String],
    coop: Option<CoopConfig>,
    plan: ExecutionPlan,
    calls: u32,
    /// Data of the inputs.
    data: Vec<Datum>,
    /// Results that are stored in `f16` although their dtype is `f32`.
    f16_results: HashSet<BufferRef>,
    /// Number of different kernels that the calls use in turns.
    pub(super) codes: usize,
    until: Instant,
}

impl<'a> Trial<'a> {
    /// Creates several calls like that of a dispatch, with operands as in a model, for the variants of a class.
    ///
    /// # Errors
    /// The call cannot run separately.
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

    /// Creates an executable for a variant, and writes its operands. All results are initially NaN.
    pub(super) fn executable(&self, variant: &str) -> Result<BladeExecutable> {
        let usual = variant == self.variants[0];
        let forced = ForcedVariant::new(self.class, (!usual).then_some(variant), self.plan.precision);
        let custom = CustomKernels::new();
        let with = KernelOptions {
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
        let with = KernelOptions {
            f16_storage: F16Storage::Given(&f16_storage),
            ..with
        };
        let mut draft = LaunchPlan::of(&self.plan, &with)?;
        draft.differ(self.codes);
        let made = executable::open(self.device, &self.plan, draft, &SharedBuffers::new());
        let mut executable = made.map_err(Error::from)?;
        if !(usual || forced.used.get()) {
            return Err(Error::backend(NAME, "no kernel can be generated"));
        }
        for datum in &self.data {
            let bytes = if f16_storage.contains(&datum.buffer) {
                &datum.contents.halves
            } else {
                &datum.contents.bytes
            };
            executable.write(datum.buffer, 0, bytes)?;
        }
        for buffer in &self.plan.output_buffers {
            executable.write(*buffer, 0, &vec![0xff; self.plan.buffers[buffer.index()]])?;
        }
        Ok(executable)
    }

    /// Returns the inputs to store in `f16`. The model must store them in `f16`, and every kernel must round them.
    fn f16_storage(&self, with: &KernelOptions) -> Result<HashSet<BufferRef>> {
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

    /// Returns the first result of the first call after a step, as `f32`.
    #[cfg(test)]
    pub(super) fn outputs(&self, executable: &mut BladeExecutable) -> Result<Vec<f32>> {
        self.time(executable, 1)?;
        let result = &self.plan.dispatches[0].outputs[0];
        let mut bytes = vec![0; result.ty.bytes()];
        let f16_storage = &self.f16_results;
        WidenedExecutable {
            executable,
            f16_storage,
        }
        .read(result.buffer, 0, &mut bytes)?;
        let words = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(words.collect())
    }

    /// Changes the operands of an executable. This simulates a variant with wrong results.
    #[cfg(test)]
    pub(super) fn spoil(&self, executable: &mut BladeExecutable) -> Result<()> {
        let datum = &self.data[0];
        let mut others = datum.contents.bytes.clone();
        others.rotate_left(4);
        executable.write(datum.buffer, 0, &others)
    }
}

impl Subject for Trial<'_> {
    type Prepared = BladeExecutable;

    fn variants(&self) -> &[String] {
        self.variants
    }

    fn prepare(&self, variant: &str) -> Result<BladeExecutable> {
        self.executable(variant)
    }

    fn difference(&self, usual: &mut BladeExecutable, other: &mut BladeExecutable) -> Result<Option<String>> {
        let f16_storage = &self.f16_results;
        let [mut usual, mut other] = [usual, other].map(|executable| WidenedExecutable {
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
        // Processors that emulate a GPU need no warm-up.
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

/// A selector that forces the variant of one class. Other classes use their default variants.
pub(super) struct ForcedVariant<'a> {
    class: &'a Class,
    variant: Option<&'a str>,
    precision: Precision,
    /// `true` if a kernel was generated in the forced variant.
    used: Cell<bool>,
}

impl<'a> ForcedVariant<'a> {
    pub(super) fn new(class: &'a Class, variant: Option<&'a str>, precision: Precision) -> Self {
        ForcedVariant {
            class,
            variant,
            precision,
            used: Cell::new(false),
        }
    }
}

impl ScheduleChooser for ForcedVariant<'_> {
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

/// Returns a plan of calls like that of a dispatch. Each call depends on the previous one.
fn plan_of(
    device: &Handle,
    dispatch: &Dispatch,
    held: &[OperandProperties],
    precision: Precision,
    calls: usize,
) -> Result<ExecutionPlan> {
    let alone = |why: &str| Error::backend(NAME, format!("{}: {why}", dispatch.label));
    let op = registry::op(&dispatch.kernel.name).ok_or_else(|| alone("its operator is not registered"))?;
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
        return Err(alone("compiled by itself, the call has other types"));
    }
    plan.precision = precision;
    // Equal calls with equal operands would have been merged, so the operands become equal only here.
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
        // The variant decides whether the call uses cooperative matrices.
        dispatch.use_coop = true;
    }
    plan.place_buffers(device.capabilities().max_buffer_bytes)?;
    plan.verify()?;
    Ok(plan)
}
