//! Kernels in WGSL: read, checked, and rewritten so that they reach nothing but their buffers.

mod check;
mod rewrite;
#[cfg(test)]
mod tests;
mod text;
mod uniform;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{SHADER_BUFFERS, Shader, ShaderBuffer, ShaderKernel};
use meganeura_core::ops::{OpRef, Operator as _};
use meganeura_core::{DType, TensorType};
use naga::back::wgsl::{WriterFlags, write_string};
use naga::compact::{KeepUnused, compact};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{GlobalVariable, Handle, Module, ScalarKind};

use crate::definition::Bound;
use crate::manifest::{MOST_VALUES, WgslEntry};
use crate::operator::DataOp;
use crate::size::Sizes;
use crate::term::{Term, shortened};
use check::Buffer;

/// Largest number of workgroups along an axis that every device has.
const MOST_GROUPS: i64 = 65_535;
/// Most workgroups for each element of operands and results, and so many more in any case.
const GROUPS_OF_ELEMENT: i64 = 4;
const ANY_GROUPS: i64 = 64;
/// Rounds that all loops of a thread may make together: for each element of operands and results, in any case, and at most.
const ROUNDS_OF_ELEMENT: usize = 64;
const ANY_ROUNDS: usize = 1 << 16;
const MOST_ROUNDS: usize = 1 << 20;
/// Kernels that are remembered.
const MOST_KNOWN: usize = 64;
/// Bytes of the stack on which naga works: what it reads is nested.
const STACK: usize = 32 << 20;

type Asked = (Attrs, Vec<TensorType>);
type Answer = Result<Shader, String>;

/// The kernel of a plugin's operator.
pub(crate) struct DataShader {
    op: &'static DataOp,
    /// Name and version of the plugin.
    origin: String,
    content: String,
    text: String,
    groups: Vec<Term>,
    conditions: Vec<Term>,
    /// Kernels that were made: the same calls are asked about again and again.
    known: Mutex<HashMap<Asked, Answer>>,
}

impl DataShader {
    /// The kernel that an entry describes, whose text is given.
    ///
    /// # Errors
    /// What is wrong with it whatever the sizes are.
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
                "it has {tensors} operands and results; a kernel has {most} at most"
            ));
        }
        Ok(DataShader {
            op,
            origin: origin.to_owned(),
            content: content.to_owned(),
            text: text::prepare(entry.text(files)?)?,
            groups: groups?,
            conditions: conditions?,
            known: Mutex::default(),
        })
    }

    /// Makes the kernel of a call.
    fn make(&self, kernel: &KernelDesc) -> Answer {
        let bound = self.op.definition.bind(kernel.attrs, kernel.inputs)?;
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
        let rounds = elements.saturating_mul(ROUNDS_OF_ELEMENT).saturating_add(ANY_ROUNDS);
        let rounds = rounds.min(MOST_ROUNDS) as u32;
        let text = format!("{}{}", constants(&bound, kernel.attrs)?, self.text);
        let tensors = self.tensors(all.cloned().collect());
        let (source, buffers) = on_large_stack(move || translate(&text, &tensors, rounds))?;
        Ok(Shader {
            source,
            buffers,
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

    fn shader(&self, kernel: &KernelDesc) -> Answer {
        let asked = (kernel.attrs.clone(), kernel.inputs.to_vec());
        // A panic cannot leave the map half changed.
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = lock().get(&asked) {
            return answer.clone();
        }
        let answer = self.make(kernel);
        let mut known = lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(asked, answer.clone());
        answer
    }
}

/// Kernels as the registry has them.
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

/// Workgroups along each axis, for a call of so many elements.
fn groups(terms: &[Term], sizes: &Sizes, elements: usize) -> Result<[u32; 3], String> {
    let mut groups = [1u32; 3];
    let mut all = 1i64;
    for (to, term) in groups.iter_mut().zip(terms) {
        let count = sizes.value(term)?;
        if !(1..=MOST_GROUPS).contains(&count) {
            return Err(format!(
                "'{term}' is {count}; there are 1 to {MOST_GROUPS} workgroups along an axis"
            ));
        }
        all *= count;
        *to = count as u32;
    }
    let allowed = i64::try_from(elements).unwrap_or(i64::MAX);
    let allowed = allowed.saturating_mul(GROUPS_OF_ELEMENT).saturating_add(ANY_GROUPS);
    match all <= allowed {
        true => Ok(groups),
        false => Err(format!(
            "it has {all} workgroups; with {elements} elements, {allowed} are allowed"
        )),
    }
}

/// Sizes and attributes as constants of the module.
fn constants(bound: &Bound, attrs: &Attrs) -> Result<String, String> {
    let mut text = String::new();
    for (name, &value) in &bound.sizes.by_name {
        // Attributes have their own line below.
        if attrs.get(name).is_none() {
            let value = u32::try_from(value).map_err(|_| format!("'{name}' is too large for a kernel"))?;
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
    }
    for (name, attr) in attrs.iter() {
        let int = |v: &i64| i32::try_from(*v).map_err(|_| format!("the attribute '{name}' is too large for a kernel"));
        let _ = match attr {
            Attr::Int(v) => writeln!(text, "const {name}: i32 = i32({});", int(v)?),
            Attr::Float(v) => writeln!(text, "const {name}: f32 = {:?}f;", *v as f32),
            Attr::Bool(v) => writeln!(text, "const {name}: bool = {v};"),
            Attr::Ints(v) if !v.is_empty() && v.len() <= MOST_VALUES => {
                let list: Result<Vec<String>, String> = v.iter().map(|v| Ok(format!("i32({})", int(v)?))).collect();
                let (n, list) = (v.len(), list?.join(", "));
                writeln!(text, "const {name}: array<i32, {n}> = array<i32, {n}>({list});")
            }
            _ => Ok(()),
        };
    }
    Ok(text)
}

/// Does something that nests deeply, and whose panic is an error.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let worker = worker.map_err(|e| format!("no thread could be started: {e}"))?;
        worker
            .join()
            .unwrap_or_else(|_| Err("reading the kernel panicked".into()))
    })
}

/// Reads, checks, rewrites and writes a kernel whose loops make so many rounds at most.
fn translate(text: &str, tensors: &[Tensor], rounds: u32) -> Result<(String, Vec<ShaderBuffer>), String> {
    let mut module = naga::front::wgsl::parse_str(text).map_err(|e| {
        let place = e.location(text).map(|l| {
            let line = text
                .lines()
                .nth(l.line_number.saturating_sub(1) as usize)
                .unwrap_or_default();
            format!(" at '{}'", shortened(line.trim()))
        });
        format!("its kernel is not WGSL: {}{}", e.message(), place.unwrap_or_default())
    })?;
    validate(&module)?;
    compact(&mut module, KeepUnused::No);
    let info = validate(&module)?;
    let found = check::check(&module, &info).map_err(|e| format!("its kernel is refused: {e}"))?;
    let mut lengths = rewrite::Lengths::new();
    let mut used = Vec::new();
    for buffer in found {
        let tensor = matching(&buffer, tensors)?;
        lengths.insert(buffer.variable, length(&buffer, tensor)?);
        used.push((buffer.variable, tensor.buffer));
    }
    let results = tensors.iter().filter(|t| matches!(t.buffer, ShaderBuffer::Result(_)));
    for result in results {
        if !used.iter().any(|(_, buffer)| *buffer == result.buffer) {
            return Err(format!("its kernel does not write the result '{}'", result.name));
        }
    }
    rewrite::rewrite(&mut module, &info, &lengths, rounds).map_err(|e| format!("its kernel is refused: {e}"))?;
    rename(&mut module, &used);
    let info = validate(&module)?;
    let source = write_string(&module, &info, WriterFlags::empty()).map_err(|e| format!("its kernel: {e}"))?;
    check_written(&source, used.len())?;
    Ok((source, used.into_iter().map(|(_, buffer)| buffer).collect()))
}

fn validate(module: &Module) -> Result<ModuleInfo, String> {
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
        format!("its kernel is not valid: {text}")
    })
}

/// The operand or result that a buffer stands for.
fn matching<'a>(buffer: &Buffer, tensors: &'a [Tensor]) -> Result<&'a Tensor, String> {
    let Some(tensor) = tensors.iter().find(|t| t.name == buffer.name) else {
        return Err(format!(
            "its kernel has a buffer '{}', which is no operand and no result",
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
    match kind == buffer.kind {
        true => Ok(tensor),
        false => Err(format!(
            "its kernel has '{}' as another type than {}",
            buffer.name, tensor.ty.dtype
        )),
    }
}

/// Elements of a buffer's array.
fn length(buffer: &Buffer, tensor: &Tensor) -> Result<u32, String> {
    let numel = u32::try_from(tensor.ty.numel()).ok().filter(|&n| n <= i32::MAX as u32);
    let numel = numel.ok_or_else(|| format!("'{}' has more elements than a kernel can number", tensor.name))?;
    if numel == 0 {
        return Err(format!("'{}' has no elements", tensor.name));
    }
    match numel % buffer.lanes {
        0 => Ok(numel / buffer.lanes),
        _ => Err(format!(
            "'{}' has {numel} elements, which are not {} each",
            tensor.name, buffer.lanes
        )),
    }
}

/// Gives buffers the names that executors know, which nothing else may have, and the entry point its own.
fn rename(module: &mut Module, used: &[(Handle<GlobalVariable>, ShaderBuffer)]) {
    let taken = |name: &Option<String>| {
        name.as_ref().is_some_and(|name| {
            let name = name.trim_matches('_');
            name.starts_with("buffer") || name.starts_with("main")
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
}

/// What was written is read again: the names that the executor binds have to be there, and nothing else to bind.
fn check_written(source: &str, buffers: usize) -> Result<(), String> {
    let module =
        naga::front::wgsl::parse_str(source).map_err(|e| format!("its kernel cannot be written: {}", e.message()))?;
    validate(&module)?;
    let is_buffer = |v: &GlobalVariable| matches!(v.space, naga::AddressSpace::Storage { .. });
    let names = module
        .global_variables
        .iter()
        .filter(|(_, v)| is_buffer(v))
        .map(|(_, v)| v.name.as_deref());
    let mut names: Vec<&str> = names.flatten().collect();
    names.sort_unstable();
    let entry = module.entry_points.first().map(|e| e.name.as_str());
    match names == SHADER_BUFFERS[..buffers] && entry == Some("main") {
        true => Ok(()),
        false => Err("its kernel cannot be written with the names of its buffers".into()),
    }
}
