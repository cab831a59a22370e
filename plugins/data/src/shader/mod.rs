//! WGSL kernels of plugins: they are parsed, checked, and rewritten so that they access only their buffers.

mod check;
mod limits;
mod rewrite;
#[cfg(test)]
mod tests;
mod text;
mod uniform;
mod work;
mod zeros;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{
    SHADER_BUFFERS, SHADER_FAULT, SHADER_REPORTER, Shader, ShaderBuffer, ShaderDevice, ShaderKernel,
};
use meganeura_core::ops::{OpRef, Operator as _};
use meganeura_core::{DType, TensorType};
use naga::back::wgsl::{WriterFlags, write_string};
use naga::compact::{KeepUnused, compact};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, GlobalVariable, Handle, Module, ScalarKind};

use crate::definition::Bound;
use crate::manifest::{MAX_VALUES, WgslEntry};
use crate::operator::DataOp;
use crate::size::Sizes;
use crate::term::{Term, shortened};
use check::Buffer;
use limits::{Limit, Report};
use work::{Cost, Work};

/// Maximum number of workgroups along an axis, which every device supports.
const MAX_GROUPS: i64 = 65_535;
/// Maximum number of workgroups per element of operands and results, and a constant that is allowed in addition.
const GROUPS_OF_ELEMENT: i64 = 4;
const ANY_GROUPS: i64 = 64;
/// Maximum number of statements and expressions ("parts") that all threads evaluate: per operation of the decomposition
/// and per element of operands and results, a constant in addition, and an absolute maximum.
const PARTS_OF_OPERATION: u64 = 4096;
const ANY_PARTS: u64 = 1 << 28;
const MAX_PARTS: u64 = 1 << 46;
/// Maximum number of parts that one thread evaluates.
const PARTS_OF_THREAD: u64 = 1 << 26;
/// Maximum number of cached kernels.
const MAX_REMEMBERED: usize = 64;
/// Stack size of the thread that runs naga, which recurses on nested input.
const STACK: usize = 32 << 20;

type KernelKey = (Attrs, Vec<TensorType>, Vec<TensorType>, ShaderDevice);
type Answer = Result<Shader, String>;

/// Kernel of a plugin's operator.
pub(crate) struct DataShader {
    op: &'static DataOp,
    /// Name and version of the plugin.
    origin: String,
    content: String,
    text: String,
    /// File name of the WGSL text, or a description if the manifest contains it, for messages.
    place: String,
    groups: Vec<Term>,
    conditions: Vec<Term>,
    /// Cache of kernels, because the same calls are queried repeatedly.
    known: Mutex<HashMap<KernelKey, Answer>>,
}

impl DataShader {
    /// Creates the kernel of an operator from its WGSL text.
    ///
    /// # Errors
    /// An error that does not depend on sizes.
    pub(crate) fn new(
        op: &'static DataOp,
        origin: &str,
        content: &str,
        entry: &WgslEntry,
        files: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let groups: Result<_, String> = entry.groups.iter().map(crate::manifest::Axis::term).collect();
        let conditions: Result<_, String> = entry.conditions.iter().map(|c| Term::parse(c)).collect();
        let tensors = op.definition.inputs.len() + op.definition.outputs.len();
        if tensors > SHADER_BUFFERS.len() {
            let most = SHADER_BUFFERS.len();
            return Err(format!(
                "it has {tensors} operands and results; expected at most {most}"
            ));
        }
        let place = entry.place();
        let text = text::prepare(entry.text(files)?).map_err(|e| format!("{place}: {e}"))?;
        Ok(DataShader {
            op,
            origin: origin.to_owned(),
            content: content.to_owned(),
            text,
            place,
            groups: groups?,
            conditions: conditions?,
            known: Mutex::default(),
        })
    }

    /// Generates the kernel of a call for a device.
    fn make(&self, kernel: &KernelDesc, device: &ShaderDevice) -> Answer {
        let bound = self.op.definition.bind(kernel.attrs, kernel.inputs)?;
        let checked = self.op.checked(kernel.attrs, kernel.inputs)?;
        if checked.indices.len() > 1 {
            return Err("it has several operands with indices, but only one can be checked".into());
        }
        if bound.outputs != kernel.outputs {
            return Err("the results are not those of the operator".into());
        }
        bound
            .sizes
            .check(&self.conditions)
            .map_err(|e| format!("its kernel is not for these sizes: {e}"))?;
        let all = kernel.inputs.iter().chain(kernel.outputs);
        let elements = all.clone().map(TensorType::numel).fold(0, usize::saturating_add);
        let groups = groups(&self.groups, &bound.sizes, elements)?;
        let allowed = WorkLimits {
            groups: groups.iter().map(|&n| u64::from(n)).product(),
            parts: parts(checked.flops, elements as u64),
            rounds: device.most_rounds,
        };
        let text = format!("{}{}", constants(&bound, kernel.attrs)?, self.text);
        let tensors = self.tensors(all.cloned().collect());
        let translated = on_large_stack(move || translate(&text, &tensors, &allowed));
        let translated = translated.map_err(|e| format!("{}: {e}", self.place))?;
        Ok(Shader {
            source: translated.source,
            buffers: translated.buffers,
            reports: translated.reports,
            groups,
        })
    }

    fn tensors(&self, types: Vec<TensorType>) -> Vec<Tensor> {
        let definition = &self.op.definition;
        let operands = definition
            .inputs
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name, ShaderBuffer::Operand(i)));
        let results = definition
            .outputs
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name, ShaderBuffer::Result(i)));
        let all = operands.chain(results).zip(types);
        all.map(|((name, buffer), ty)| Tensor { name, buffer, ty }).collect()
    }
}

impl ShaderKernel for DataShader {
    fn op(&self) -> OpRef {
        OpRef::new(self.op)
    }

    fn origin(&self) -> String {
        self.origin.clone()
    }

    fn content(&self) -> String {
        format!("{} {}", self.op.name(), self.content)
    }

    fn shader(&self, kernel: &KernelDesc, device: &ShaderDevice) -> Answer {
        let (inputs, outputs) = (kernel.inputs.to_vec(), kernel.outputs.to_vec());
        let asked = (kernel.attrs.clone(), inputs, outputs, *device);
        // A panic cannot leave the map half changed.
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = lock().get(&asked) {
            return answer.clone();
        }
        let answer = self.make(kernel, device);
        let mut known = lock();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(asked, answer.clone());
        answer
    }
}

/// Converts kernels to the type of the registry.
pub(crate) fn registered(shaders: Vec<DataShader>) -> Vec<Arc<dyn ShaderKernel>> {
    shaders
        .into_iter()
        .map(|s| Arc::new(s) as Arc<dyn ShaderKernel>)
        .collect()
}

struct Tensor {
    name: &'static str,
    buffer: ShaderBuffer,
    ty: TensorType,
}

/// Limits of the work of a dispatch.
struct WorkLimits {
    /// Number of workgroups.
    groups: u64,
    /// Maximum number of parts that all threads evaluate.
    parts: u64,
    /// Maximum number of iterations before the device ends all loops of threads that run in lockstep.
    rounds: Option<u32>,
}

impl WorkLimits {
    /// Returns the maximum number of parts that one thread evaluates.
    fn of_thread(&self, threads_of_group: u32) -> u64 {
        let threads = self.groups.saturating_mul(u64::from(threads_of_group)).max(1);
        (self.parts / threads).min(PARTS_OF_THREAD)
    }
}

/// Returns the maximum number of parts that all threads evaluate, for these numbers of operations and elements.
fn parts(flops: u64, elements: u64) -> u64 {
    let own = flops.saturating_add(elements).saturating_mul(PARTS_OF_OPERATION);
    own.saturating_add(ANY_PARTS).min(MAX_PARTS)
}

/// Returns the number of workgroups along each axis, for a call with `elements` elements.
fn groups(terms: &[Term], sizes: &Sizes, elements: usize) -> Result<[u32; 3], String> {
    let mut groups = [1u32; 3];
    let mut all = 1i64;
    for (to, term) in groups.iter_mut().zip(terms) {
        let count = sizes.value(term)?;
        if !(1..=MAX_GROUPS).contains(&count) {
            return Err(format!(
                "'{term}' is {count}; there are 1 to {MAX_GROUPS} workgroups along an axis"
            ));
        }
        all *= count;
        *to = count as u32;
    }
    let allowed = i64::try_from(elements).unwrap_or(i64::MAX);
    let allowed = allowed.saturating_mul(GROUPS_OF_ELEMENT).saturating_add(ANY_GROUPS);
    if all <= allowed {
        Ok(groups)
    } else {
        Err(format!(
            "it has {all} workgroups; with {elements} elements, {allowed} are allowed"
        ))
    }
}

/// Returns the sizes and attributes of a call as WGSL constants. All are on the first line of the kernel, so that line
/// numbers in messages match the file.
fn constants(bound: &Bound, attrs: &Attrs) -> Result<String, String> {
    let mut text = String::new();
    for (name, &value) in &bound.sizes.by_name {
        // Attributes have their own line below.
        if attrs.get(name).is_none() {
            let value = u32::try_from(value).map_err(|_| format!("'{name}' is too large for a kernel"))?;
            let _ = write!(text, "const {name}: u32 = {value}u; ");
        }
    }
    for (name, attr) in attrs.iter() {
        let int = |v: &i64| i32::try_from(*v).map_err(|_| format!("the attribute '{name}' is too large for a kernel"));
        let _ = match attr {
            Attr::Int(v) => write!(text, "const {name}: i32 = i32({}); ", int(v)?),
            Attr::Float(v) => write!(text, "const {name}: f32 = {:?}f; ", *v as f32),
            Attr::Bool(v) => write!(text, "const {name}: bool = {v};"),
            Attr::Ints(v) if !v.is_empty() && v.len() <= MAX_VALUES => {
                let list: Result<Vec<String>, String> = v.iter().map(|v| Ok(format!("i32({})", int(v)?))).collect();
                let (n, list) = (v.len(), list?.join(", "));
                write!(text, "const {name}: array<i32, {n}> = array<i32, {n}>({list}); ")
            }
            _ => Ok(()),
        };
    }
    Ok(text)
}

/// Runs deeply recursive work on a thread with a large stack. A panic becomes an error.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let worker = worker.map_err(|e| format!("no thread could be started: {e}"))?;
        worker
            .join()
            .unwrap_or_else(|_| Err("reading the kernel panicked".into()))
    })
}

/// Kernel in the form that executors expect.
struct TranslatedKernel {
    source: String,
    buffers: Vec<ShaderBuffer>,
    reports: bool,
}

/// Parses, checks and rewrites a kernel, and converts it back to WGSL.
fn translate(text: &str, tensors: &[Tensor], allowed: &WorkLimits) -> Result<TranslatedKernel, String> {
    let mut module = naga::front::wgsl::parse_str(text).map_err(|e| {
        let place = e.location(text).map(|l| place_of(text, l.line_number));
        format!("its kernel is not WGSL: {}{}", e.message(), place.unwrap_or_default())
    })?;
    validate(&module, text)?;
    compact(&mut module, KeepUnused::No);
    let info = validate(&module, text)?;
    let found = check::check(&module, &info).map_err(|e| format!("its kernel is rejected: {e}"))?;
    let mut lengths = rewrite::Lengths::new();
    let (mut used, mut written) = (Vec::new(), Vec::new());
    for buffer in found {
        let tensor = matching(&buffer, tensors)?;
        lengths.insert(buffer.variable, length(&buffer, tensor)?);
        used.push((buffer.variable, tensor.buffer));
        if buffer.is_written {
            written.push(tensor.buffer);
        }
    }
    let results = tensors.iter().filter(|t| matches!(t.buffer, ShaderBuffer::Result(_)));
    for result in results {
        if !written.contains(&result.buffer) {
            return Err(format!("its kernel does not write the result '{}'", result.name));
        }
    }
    let refused = |e| format!("its kernel is rejected: {e}");
    let (work, limit) = work_of(&module, allowed).map_err(refused)?;
    let report = rewrite::rewrite(&mut module, &info, &lengths, &work, limit).map_err(refused)?;
    rename(&mut module, &used, report);
    let info = validate(&module, text)?;
    let source = write_string(&module, &info, WriterFlags::empty()).map_err(|e| format!("its kernel: {e}"))?;
    check_written(&source, used.len(), report.is_some())?;
    Ok(TranslatedKernel {
        source,
        buffers: used.into_iter().map(|(_, buffer)| buffer).collect(),
        reports: report.is_some(),
    })
}

/// Returns the work of a module, and the limits of a thread's work in loops that cannot be proven to end.
fn work_of(module: &Module, allowed: &WorkLimits) -> Result<(Work, Limit), String> {
    /// Maximum number of threads that a processor runs in lockstep. In the worst case, each iteration has only one
    /// active thread.
    const IN_STEP: u64 = 8;
    let entry = module.entry_points.first().ok_or("it has no entry point")?;
    let threads = entry.workgroup_size.iter().product();
    let (parts, rounds) = (allowed.of_thread(threads), allowed.rounds.map(u64::from));
    // Half is for loops that provably end, and a quarter for either kind of counted loops.
    let most = Cost {
        parts: parts / 2,
        rounds: rounds.map_or(u64::MAX, |rounds| rounds / 2),
    };
    let cleared = zeros::rounds(module, threads);
    let work = Work::of(
        module,
        &Cost {
            rounds: most.rounds.saturating_sub(cleared),
            ..most
        },
    );
    let done = work.thread().parts;
    if done > most.parts {
        return Err(format!(
            "each of its threads evaluates {done} statements and expressions; with so many workgroups, for what the \
             decomposition does, {} are allowed",
            most.parts
        ));
    }
    let limit = Limit {
        parts: (parts / 4) as u32,
        rounds: rounds.map(|rounds| (rounds / 4 / IN_STEP) as u32),
    };
    Ok((work, limit))
}

/// Returns a location for messages: the line number, and the text of the line.
fn place_of(text: &str, line: u32) -> String {
    let found = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
    // The line of constants comes before the first line; it is not the author's.
    match line {
        0 | 1 => format!(" at line {line}"),
        _ => format!(" at line {line}, '{}'", shortened(found.trim())),
    }
}

/// Validates a module that was parsed from a text.
fn validate(module: &Module, source: &str) -> Result<ModuleInfo, String> {
    // The executor binds variables by their names.
    let flags = ValidationFlags::all() ^ ValidationFlags::BINDINGS;
    let validated = Validator::new(flags, Capabilities::empty()).validate(module);
    validated.map_err(|e| {
        let mut text = e.as_inner().to_string();
        let mut cause = std::error::Error::source(e.as_inner());
        while let Some(inner) = cause {
            let _ = write!(text, ": {inner}");
            cause = inner.source();
        }
        // Handles that were created while rewriting have no position.
        let place = e.location(source).filter(|l| l.line_number > 0);
        let place = place.map_or_else(String::new, |l| place_of(source, l.line_number));
        format!("its kernel is not valid: {text}{place}")
    })
}

/// Returns the operand or result that has the name of a buffer.
fn matching<'a>(buffer: &Buffer, tensors: &'a [Tensor]) -> Result<&'a Tensor, String> {
    let Some(tensor) = tensors.iter().find(|t| t.name == buffer.name) else {
        return Err(format!(
            "its kernel has a buffer '{}', which is neither an operand nor a result",
            buffer.name
        ));
    };
    let reads = matches!(tensor.buffer, ShaderBuffer::Operand(_));
    if reads && buffer.writes {
        return Err(format!(
            "its kernel may write its operand '{}'; declare it as var<storage>",
            buffer.name
        ));
    }
    let kind = match tensor.ty.dtype {
        DType::F32 => ScalarKind::Float,
        DType::U32 => ScalarKind::Uint,
        DType::I32 => ScalarKind::Sint,
        other => return Err(format!("its kernel is for '{}' of 32 bits, not {other}", buffer.name)),
    };
    if kind == buffer.kind {
        Ok(tensor)
    } else {
        Err(format!(
            "its kernel has '{}' as another type than {}",
            buffer.name, tensor.ty.dtype
        ))
    }
}

/// Returns the number of elements of a buffer's array.
fn length(buffer: &Buffer, tensor: &Tensor) -> Result<u32, String> {
    let numel = u32::try_from(tensor.ty.numel()).ok().filter(|&n| n <= i32::MAX as u32);
    let numel = numel.ok_or_else(|| format!("'{}' has more elements than a kernel can number", tensor.name))?;
    if numel == 0 {
        return Err(format!("'{}' has no elements", tensor.name));
    }
    match numel % buffer.lanes {
        0 => Ok(numel / buffer.lanes),
        _ => Err(format!(
            "'{}' has {numel} elements, which is not a multiple of {}",
            tensor.name, buffer.lanes
        )),
    }
}

/// Gives buffers the names that executors expect, makes these names unique, and renames the entry point.
fn rename(module: &mut Module, used: &[(Handle<GlobalVariable>, ShaderBuffer)], report: Option<Report>) {
    let taken = |name: &Option<String>| {
        name.as_ref().is_some_and(|name| {
            let name = name.trim_matches('_');
            ["buffer", "main", SHADER_FAULT, SHADER_REPORTER]
                .iter()
                .any(|own| name.starts_with(own))
        })
    };
    let clear = |name: &mut Option<String>| {
        if taken(name) {
            *name = None;
        }
    };
    module.constants.iter_mut().for_each(|(_, c)| clear(&mut c.name));
    module.global_variables.iter_mut().for_each(|(_, v)| clear(&mut v.name));
    let functions = module.functions.iter_mut().map(|(_, f)| f);
    for function in functions.chain(module.entry_points.iter_mut().map(|e| &mut e.function)) {
        clear(&mut function.name);
        function.arguments.iter_mut().for_each(|a| clear(&mut a.name));
        function
            .local_variables
            .iter_mut()
            .for_each(|(_, l)| clear(&mut l.name));
        function.named_expressions.retain(|_, name| !taken(&Some(name.clone())));
    }
    let types: Vec<_> = module
        .types
        .iter()
        .filter(|(_, t)| taken(&t.name))
        .map(|(h, t)| (h, t.clone()))
        .collect();
    for (handle, ty) in types {
        module.types.replace(handle, naga::Type { name: None, ..ty });
    }
    for entry in &mut module.entry_points {
        entry.name = "main".into();
    }
    for ((variable, _), name) in used.iter().zip(SHADER_BUFFERS) {
        let variable = module.global_variables.get_mut(*variable);
        variable.name = Some(name.into());
        variable.binding = None;
    }
    if let Some(report) = report {
        module.global_variables.get_mut(report.fault).name = Some(SHADER_FAULT.into());
        module.global_variables.get_mut(report.reporter).name = Some(SHADER_REPORTER.into());
    }
}

/// Parses the generated text again, as a check: the names that the executor binds must exist, and no other name may
/// need a binding.
fn check_written(source: &str, buffers: usize, reports: bool) -> Result<(), String> {
    let module =
        naga::front::wgsl::parse_str(source).map_err(|e| format!("its kernel cannot be written: {}", e.message()))?;
    validate(&module, source)?;
    let is_bound = |v: &GlobalVariable| {
        let own = matches!(v.space, AddressSpace::WorkGroup | AddressSpace::Private);
        !own
    };
    let variables = module.global_variables.iter().filter(|(_, v)| is_bound(v));
    let mut names: Vec<&str> = variables.filter_map(|(_, v)| v.name.as_deref()).collect();
    names.sort_unstable();
    let reporting = [SHADER_FAULT, SHADER_REPORTER];
    let mut expected = SHADER_BUFFERS[..buffers].to_vec();
    expected.extend(reporting.iter().filter(|_| reports));
    let entry = module.entry_points.first().map(|e| e.name.as_str());
    if names == expected && entry == Some("main") {
        Ok(())
    } else {
        Err("its kernel cannot be written with the names of its buffers".into())
    }
}
