//! Tests of plugin kernels. Before a device uses a kernel, the kernel runs on it, and its results are compared with
//! its operator's definition.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use meganeura_core::backend::shader::shader_kernel;
use meganeura_core::backend::{KernelDesc, SharedBuffers};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::plan::try_compile;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{Evaluation, Extent, call_operands, evaluate, extent, operand_name};
use meganeura_core::{DType, Error, ExecutionPlan, Result};

use super::custom::{AcceptedKernel, CustomKernels, NamedDevice, refuse, tell};
use super::device::Host;
use super::dispatch::{F16Storage, KernelOptions};
use super::draft::LaunchPlan;
use super::once::{Word, run_once};
use crate::{Compiled, CustomKernel, Features, Launch};

/// Maximum cost of evaluating the definition for a call of the test.
const MAX_EXTENT: Extent = Extent {
    elements: 1 << 22,
    work: 1 << 26,
};
/// Maximum number of calls of the test.
const MAX_CALLS: usize = 40;

/// Test results of a device.
#[derive(Default)]
pub(super) struct TrialResults {
    /// Result of each test, by kernel content: the accepted kernel, or the reason why it is disabled.
    known: Mutex<BTreeMap<String, Result<Arc<AcceptedKernel>>>>,
}

impl TrialResults {
    /// Returns the custom kernel of an operator if it passes its test on the device. The first query runs the test.
    pub(super) fn kernel(&self, device: &dyn Host, op: &str) -> Option<Arc<AcceptedKernel>> {
        let kernel = shader_kernel(op)?;
        let content = kernel.content();
        // A panic cannot leave the map half changed.
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&content) {
            return known.clone().ok();
        }
        let kernel = AcceptedKernel::new(kernel, device.shader_device());
        let accepted = match test(device, &kernel) {
            Ok(()) => Ok(kernel),
            Err(error) => Err(tell(named(device), &kernel, &error)),
        };
        lock().insert(content, accepted.clone());
        accepted.ok()
    }

    /// Returns the reason why the custom kernel of an operator is disabled for all or some calls, if it was tested.
    pub(super) fn refusal(&self, op: &str) -> Option<Error> {
        let content = shader_kernel(op)?.content();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&content)? {
            Ok(accepted) => accepted.refusal().cloned(),
            Err(problem) => Some(problem.clone()),
        }
    }

    /// Returns the kernels for the operators of a plan.
    pub(super) fn of_plan(&self, device: &dyn Host, plan: &ExecutionPlan) -> CustomKernels {
        let mut custom = CustomKernels::new();
        for dispatch in &plan.dispatches {
            let name = &dispatch.kernel.name;
            if !custom.contains_key(name)
                && let Some(kernel) = self.kernel(device, name)
            {
                custom.insert(name.clone(), kernel);
            }
        }
        custom
    }

    /// Returns true if the driver accepts a kernel for a call. Otherwise the kernel is disabled for this call.
    pub(super) fn takes(&self, device: &dyn Host, kernel: &AcceptedKernel, compiled: &Compiled) -> bool {
        let name = kernel.op().get().name();
        let own = compiled.launches.iter().filter(|launch| launch.is_custom());
        let own: Vec<(&str, &Launch)> = own.map(|launch| (name, launch)).collect();
        match device.prepare(&own) {
            Ok(()) => true,
            Err(refused) => {
                refuse(named(device), kernel, refused.source, &refused.error);
                false
            }
        }
    }
}

fn named(device: &dyn Host) -> NamedDevice<'_> {
    NamedDevice {
        backend: device.backend(),
        name: device.name(),
    }
}

/// A call of the test, and its results on the device.
struct TestedCall {
    sample: Sample,
    /// Values of the operands.
    operands: Vec<Vec<f64>>,
    results: Vec<Value>,
}

/// Runs a kernel with random shapes, and compares the results with the definition of its operator.
///
/// # Errors
/// The driver rejects the kernel, the error of a result exceeds the rounding error, or the definition cannot be
/// evaluated for any of the shapes.
fn test(device: &dyn Host, kernel: &Arc<AcceptedKernel>) -> Result<()> {
    let mut graph = Graph::new();
    let mut feeds = HashMap::new();
    let mut rng = SplitMix64::new(23);
    let mut tested: Vec<TestedCall> = Vec::new();
    let mut too_large = None;
    let samples = kernel.op().samples(&mut Sizes::new(29));
    for sample in samples.into_iter().filter(|s| applies(kernel, s)).take(MAX_CALLS) {
        // The check comes before allocations of this size.
        if let Err(error) = definition(device, kernel.op(), &sample).and_then(|(g, _)| extent(&g, MAX_EXTENT)) {
            too_large = Some(error);
            continue;
        }
        let mut test = TestedCall {
            operands: sample.inputs.iter().map(|input| input.values(&mut rng)).collect(),
            results: Vec::new(),
            sample,
        };
        let mut operands: Vec<Value> = Vec::new();
        for (number, (input, values)) in test.sample.inputs.iter().zip(&test.operands).enumerate() {
            let name = format!("x{}.{number}", tested.len());
            operands.push(graph.input_typed(&name, &input.shape, input.dtype).into());
            feeds.insert(name, values.clone());
        }
        let node = graph.call(kernel.op(), test.sample.attrs.clone(), operands);
        test.results = graph.values(node).collect();
        tested.push(test);
    }
    if tested.is_empty() {
        let why = too_large.map_or(String::new(), |error| format!(": {error}"));
        let why = format!("no shapes were found to test it with{why}");
        return Err(Error::backend(device.backend(), why));
    }
    graph.set_outputs(tested.iter().flat_map(|t| t.results.clone()).collect());
    let custom = CustomKernels::from([(kernel.op().name().to_owned(), kernel.clone())]);
    let found = run(device, &graph, &feeds, &custom)?;
    let mut found = found.iter();
    tested
        .iter()
        .try_for_each(|test| compare(device, test, &expected(device, kernel.op(), test)?, &mut found))
}

/// Returns a graph with only one call of the test, and the results of the call.
fn definition(device: &dyn Host, op: OpRef, sample: &Sample) -> Result<(Graph, Vec<Value>)> {
    let types = sample.input_types().map_err(|e| Error::backend(device.backend(), e))?;
    let (mut graph, operands) = call_operands(&types);
    let node = graph.call(op, sample.attrs.clone(), operands);
    let results: Vec<Value> = graph.values(node).collect();
    graph.set_outputs(results.clone());
    Ok((graph, results))
}

/// Returns the expected results.
fn expected(device: &dyn Host, op: OpRef, test: &TestedCall) -> Result<(Evaluation, Vec<Value>)> {
    let (graph, results) = definition(device, op, &test.sample)?;
    let feeds = test.operands.iter().enumerate();
    let feeds = feeds.map(|(i, values)| (operand_name(i), values.clone())).collect();
    Ok((evaluate(&graph, &feeds)?, results))
}

/// Returns true if the kernel supports a call of the test.
fn applies(kernel: &AcceptedKernel, sample: &Sample) -> bool {
    let Ok(inputs) = sample.input_types() else {
        return false;
    };
    let call = Call {
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &[],
    };
    let Ok(outputs) = kernel.op().infer(&call) else {
        return false;
    };
    let desc = KernelDesc {
        name: kernel.op().get().name(),
        version: kernel.op().version(),
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    outputs.iter().any(|ty| ty.numel() > 0) && kernel.shader(&desc).is_ok()
}

/// Runs a graph once on the device, and returns the words of all outputs.
fn run(
    device: &dyn Host,
    graph: &Graph,
    feeds: &HashMap<String, Vec<f64>>,
    custom: &CustomKernels,
) -> Result<Vec<Vec<Word>>> {
    // Compiling a plan for the device would query the kernel that is being tested.
    let plan = try_compile(graph)?;
    let with = KernelOptions {
        backend: device.backend(),
        library: None,
        coop: None,
        features: Features::default(),
        custom,
        choices: None,
        f16_storage: F16Storage::No,
    };
    let mut executable = device.executable(&plan, LaunchPlan::of(&plan, &with)?, &SharedBuffers::new())?;
    // The outputs are filled with NaN, so that elements that a kernel skips cannot be correct by chance.
    for buffer in &plan.output_buffers {
        executable.write(*buffer, 0, &vec![0xff; plan.buffers[buffer.index()]])?;
    }
    let dtypes: HashMap<&str, DType> = plan
        .input_buffers
        .iter()
        .map(|(name, buffer)| (name.as_str(), plan.buffer_types[buffer.index()].dtype))
        .collect();
    run_once(&mut *executable, &plan, |name| {
        let word = |v: &f64| match dtypes[name] {
            DType::U32 => (*v as u32).to_le_bytes(),
            DType::I32 => (*v as i32).to_le_bytes(),
            _ => (*v as f32).to_le_bytes(),
        };
        feeds[name].iter().map(word).collect()
    })
}

fn compare<'a>(
    device: &dyn Host,
    test: &TestedCall,
    (expected, results): &(Evaluation, Vec<Value>),
    found: &mut impl Iterator<Item = &'a Vec<Word>>,
) -> Result<()> {
    for (port, &result) in results.iter().enumerate() {
        let (Some(expected), Some(found)) = (expected.get(result), found.next()) else {
            return Err(Error::backend(device.backend(), "it has no result"));
        };
        let number = |word: &Word| match expected.ty.dtype {
            DType::U32 => f64::from(u32::from_le_bytes(*word)),
            DType::I32 => f64::from(i32::from_le_bytes(*word)),
            _ => f64::from(f32::from_le_bytes(*word)),
        };
        // Values beyond the range of the dtype are infinite on the device.
        let rounded = |v: f64| {
            if expected.ty.dtype.is_float() {
                f64::from(v as f32)
            } else {
                v
            }
        };
        let finite = expected.data.iter().filter(|&&v| rounded(v).is_finite());
        let scale = finite.fold(0.0, |m: f64, v| m.max(v.abs()));
        let close = if expected.ty.dtype.is_float() {
            test.sample.tolerance * scale.max(0.01)
        } else {
            0.0
        };
        for (at, (want, word)) in expected.data.iter().zip(found).enumerate() {
            let (got, want) = (number(word), &rounded(*want));
            let same = got == *want || (got - want).abs() <= close || (got.is_nan() && want.is_nan());
            if !same {
                let label = &test.sample.label;
                return Err(Error::backend(
                    device.backend(),
                    format!("called with {label}, element {at} of result {port} is {got}, expected {want}"),
                ));
            }
        }
    }
    Ok(())
}
