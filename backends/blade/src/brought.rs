//! Kernels that others bring: each is tried on a device before it is used there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use meganeura_core::backend::shader::{ShaderKernel, shader_kernel};
use meganeura_core::backend::{Executable as _, KernelDesc};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::Call;
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::plan::try_compile;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{Evaluation, evaluate};
use meganeura_core::{DType, Error, ExecutionPlan, Result};

use crate::device::BladeDevice;
use crate::executable::BladeExecutable;
use crate::gpu::NAME;
use crate::once::{Word, run_once};

/// Kernels that plans may use, by the names of their operators.
pub(crate) type Brought = HashMap<String, Arc<dyn ShaderKernel>>;

/// What was tried on a device, by its content: kernels that agree with the definition, and `None` for others.
#[derive(Default)]
pub(crate) struct Tried(Mutex<BTreeMap<String, Option<Arc<dyn ShaderKernel>>>>);

/// Why kernels are not used.
static PROBLEMS: Mutex<Vec<Error>> = Mutex::new(Vec::new());

/// The kernels that are not used on some device, with the reason.
pub(crate) fn problems() -> Vec<Error> {
    PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Tried {
    /// The kernel that was brought for an operator, if it has passed its test on the device, which is made when this is
    /// asked for the first time.
    pub(crate) fn kernel(&self, device: &BladeDevice, op: &str) -> Option<Arc<dyn ShaderKernel>> {
        let kernel = shader_kernel(op)?;
        let content = kernel.content();
        // A panic cannot leave the map half changed.
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&content) {
            return known.clone();
        }
        let accepted = match test(device, &kernel) {
            Ok(()) => Some(kernel),
            Err(error) => {
                refuse(device, &*kernel, &error);
                None
            }
        };
        lock().insert(content, accepted.clone());
        accepted
    }

    /// The kernels for the operators of a plan.
    pub(crate) fn of_plan(&self, device: &BladeDevice, plan: &ExecutionPlan) -> Brought {
        let mut brought = Brought::new();
        for dispatch in &plan.dispatches {
            let name = &dispatch.kernel.name;
            if !brought.contains_key(name)
                && let Some(kernel) = self.kernel(device, name)
            {
                brought.insert(name.clone(), kernel);
            }
        }
        brought
    }
}

fn refuse(device: &BladeDevice, kernel: &dyn ShaderKernel, error: &Error) {
    let problem = Error::Plugin {
        plugin: kernel.origin(),
        message: format!(
            "its kernel for '{}' is not used on {}, where the decomposition runs instead: {error}",
            kernel.op().name(),
            device.name()
        ),
        remedy: "tell its author; results are right without it".into(),
    };
    log::warn!("{problem}");
    PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
}

/// A call of the test, and its results.
struct Tested {
    sample: Sample,
    results: Vec<Value>,
}

/// Runs a kernel on random shapes, and compares with the definition of its operator.
///
/// # Errors
/// A driver that refuses it; a result that is further from the right one than rounding explains.
fn test(device: &BladeDevice, kernel: &Arc<dyn ShaderKernel>) -> Result<()> {
    let mut graph = Graph::new();
    let mut feeds = HashMap::new();
    let mut rng = SplitMix64::new(23);
    let mut tested = Vec::new();
    for sample in kernel.op().samples(&mut Sizes::new(29)) {
        if !applies(&**kernel, &sample) {
            continue;
        }
        let mut operands: Vec<Value> = Vec::new();
        for (number, input) in sample.inputs.iter().enumerate() {
            let name = format!("x{}.{number}", tested.len());
            operands.push(graph.input_typed(&name, &input.shape, input.dtype).into());
            feeds.insert(name, input.values(&mut rng));
        }
        let node = graph.call(kernel.op(), sample.attrs.clone(), operands);
        let results = graph.values(node).collect();
        tested.push(Tested { sample, results });
    }
    if tested.is_empty() {
        return Err(Error::backend(NAME, "no shapes were found to try it with"));
    }
    graph.set_outputs(tested.iter().flat_map(|t| t.results.clone()).collect());
    let brought = Brought::from([(kernel.op().name().to_owned(), kernel.clone())]);
    let found = run(device, &graph, &feeds, &brought)?;
    let expected = evaluate(&graph, &feeds)?;
    let mut found = found.iter();
    for test in &tested {
        compare(test, &expected, &mut found)?;
    }
    Ok(())
}

/// Whether there is a kernel for a call of the test.
fn applies(kernel: &dyn ShaderKernel, sample: &Sample) -> bool {
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

/// The words of all outputs.
fn run(
    device: &BladeDevice,
    graph: &Graph,
    feeds: &HashMap<String, Vec<f64>>,
    brought: &Brought,
) -> Result<Vec<Vec<Word>>> {
    // Compiled for the device, it would ask for the kernel that is being tested.
    let plan = try_compile(graph)?;
    let mut executable = BladeExecutable::new(device, &plan, None, brought)?;
    // What a kernel leaves out is no number that could be right, as it would be elsewhere.
    for buffer in &plan.output_buffers {
        executable.write(*buffer, 0, &vec![0xff; plan.buffers[buffer.index()]])?;
    }
    let dtypes: HashMap<&str, DType> = plan
        .input_buffers
        .iter()
        .map(|(name, buffer)| (name.as_str(), plan.buffer_types[buffer.index()].dtype))
        .collect();
    run_once(&mut executable, &plan, |name| {
        let word = |v: &f64| match dtypes[name] {
            DType::U32 => (*v as u32).to_le_bytes(),
            DType::I32 => (*v as i32).to_le_bytes(),
            _ => (*v as f32).to_le_bytes(),
        };
        feeds[name].iter().map(word).collect()
    })
}

fn compare<'a>(test: &Tested, expected: &Evaluation, found: &mut impl Iterator<Item = &'a Vec<Word>>) -> Result<()> {
    for (port, &result) in test.results.iter().enumerate() {
        let (Some(expected), Some(found)) = (expected.get(result), found.next()) else {
            return Err(Error::backend(NAME, "it has no result"));
        };
        let number = |word: &Word| match expected.ty.dtype {
            DType::U32 => f64::from(u32::from_le_bytes(*word)),
            DType::I32 => f64::from(i32::from_le_bytes(*word)),
            _ => f64::from(f32::from_le_bytes(*word)),
        };
        let finite = expected.data.iter().filter(|v| v.is_finite());
        let scale = finite.fold(0.0, |m: f64, v| m.max(v.abs()));
        let close = match expected.ty.dtype.is_float() {
            true => test.sample.tolerance * scale.max(0.01),
            false => 0.0,
        };
        for (at, (want, word)) in expected.data.iter().zip(found).enumerate() {
            let got = number(word);
            let same = got == *want || (got - want).abs() <= close || (got.is_nan() && want.is_nan());
            if !same {
                let label = &test.sample.label;
                return Err(Error::backend(
                    NAME,
                    format!("called with {label}, element {at} of result {port} is {got}, not {want}"),
                ));
            }
        }
    }
    Ok(())
}
