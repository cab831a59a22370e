//! Translation of a naga module to CUDA C++.
//!
//! A source consists of the module and of the parts of the prelude (`prelude/`) that it needs. The prelude implements
//! WGSL's types, operators and functions in C++. The module consists of structures, constants, shared memory,
//! functions, and the kernel.
//!
//! | file | content |
//! | --- | --- |
//! | `options` | options and results |
//! | `context`, `uses`, `names` | information about a module during translation |
//! | `types`, `constants`, `globals`, `functions` | declarations |
//! | `body`, `statements` | bodies of functions |
//! | `expressions`, `operators`, `math`, `places` | values, and their memory locations |
//! | `sync`, `matrices` | cooperation of threads |
//! | `merged` | several kernels as one |
//! | `natives` | functions that become instructions |
//! | `waits` | the statement before which a kernel waits for earlier launches |

mod body;
mod constants;
mod context;
mod error;
mod expressions;
mod functions;
mod globals;
mod math;
mod matrices;
mod merged;
mod names;
mod natives;
mod operators;
mod options;
mod places;
mod statements;
mod sync;
mod types;
mod uses;
mod waits;

use naga::back::pipeline_constants::process_overrides;
use naga::valid::ModuleInfo;
use naga::{Module, ShaderStage};

use self::context::{Context, Part};
use self::error::Result;
use self::uses::Uses;

pub use self::error::WriteError;
pub use self::merged::{Call, MergedKernel, write_merged};
pub use self::options::{Binding, Bounds, CudaSource, Options};
pub(crate) use self::waits::waits_late;

/// C++ name of the kernel. Functions of the module have other names.
const ENTRY: &str = "kernel_main";

/// Parts of the prelude in order, each with the features that need it. Parts without features are in every source.
const PRELUDE: &[(&str, &[Part])] = &[
    (include_str!("prelude/base.cuh"), &[]),
    (include_str!("prelude/numbers.cuh"), &[]),
    (include_str!("prelude/half.cuh"), &[Part::Half]),
    (include_str!("prelude/atomics.cuh"), &[Part::Atomics]),
    (include_str!("prelude/subgroup.cuh"), &[Part::Subgroup]),
    (include_str!("prelude/matrix.cuh"), &[Part::Matrix]),
    (include_str!("prelude/launch.cuh"), &[Part::Launch]),
    (include_str!("prelude/natives.cuh"), &[Part::Natives]),
];

/// Translates an entry point of a valid module, and everything that it uses, to CUDA C++. `info` is the validator's
/// result for `module`.
///
/// # Errors
/// There is no such entry point, or it uses features that are not supported in CUDA.
pub fn write(module: &Module, info: &ModuleInfo, entry: &str, options: &Options) -> Result<CudaSource> {
    let unit = unit(module, info, entry, options, false)?;
    let source = format!("{}{}", prelude(&unit.needed), in_namespace(&unit.needed, &unit.items));
    Ok(CudaSource {
        source,
        entry: ENTRY.to_owned(),
        threads: unit.threads,
        shared_bytes: unit.shared_bytes,
        bindings: unit.bindings,
    })
}

/// The parts of a source: the kernel with everything that it uses, and the features of the prelude that it needs.
struct Unit {
    items: String,
    needed: Vec<Part>,
    threads: [u32; 3],
    shared_bytes: u32,
    bindings: Vec<Binding>,
    /// Declarations of the kernel's parameters.
    parameters: Vec<String>,
}

fn unit(module: &Module, info: &ModuleInfo, entry: &str, options: &Options, is_part: bool) -> Result<Unit> {
    let is_entry = |point: &naga::EntryPoint| point.name == entry && point.stage == ShaderStage::Compute;
    if !module.entry_points.iter().any(is_entry) {
        return Err(WriteError::NoEntryPoint(entry.to_owned()));
    }
    let values = options
        .overrides
        .iter()
        .map(|(name, value)| (name.clone(), *value))
        .collect();
    let replaced = process_overrides(module, info, Some((ShaderStage::Compute, entry)), &values);
    let (module, info) = replaced.map_err(|error| WriteError::Override(error.to_string()))?;
    let number = module.entry_points.iter().position(is_entry);
    let Some((number, point)) = number.and_then(|number| Some((number, module.entry_points.get(number)?))) else {
        return Err(WriteError::NoEntryPoint(entry.to_owned()));
    };
    let entry_info = info.get_entry_point(number);

    let early = waits::early_reads(&module, &info, point).filter(|reads| {
        let is_unwritten = |name: &String| options.unwritten.contains(name);
        let mut names = reads.iter().map(|&read| module.global_variables[read].name.as_ref());
        options.programmatic && names.all(|name| name.is_some_and(is_unwritten))
    });
    let cx = Context::new(&module, &info, entry_info, options, early, is_part);
    let uses = Uses::of(&module, &point.function, entry_info);
    let mut items = String::new();
    items.push_str(&cx.declare_structs(&uses.types)?);
    items.push_str(&cx.declare_constants(&uses.constants)?);
    let (shared, shared_bytes) = cx.declare_shared(entry_info)?;
    items.push_str(&shared);
    // naga lists functions after the functions that they call, as C++ requires.
    for (handle, _) in module
        .functions
        .iter()
        .filter(|(handle, _)| uses.functions.contains(handle))
    {
        items.push_str(&cx.function(handle)?);
    }
    items.push_str(&cx.kernel(point, entry_info, ENTRY)?);
    let all = [
        Part::Half,
        Part::Atomics,
        Part::Subgroup,
        Part::Matrix,
        Part::Launch,
        Part::Natives,
    ];
    Ok(Unit {
        items,
        needed: all.into_iter().filter(|part| cx.is_needed(*part)).collect(),
        threads: point.workgroup_size,
        shared_bytes,
        bindings: cx.bindings(entry_info)?,
        parameters: cx.global_parameters(entry_info, true)?,
    })
}

/// Returns the prelude with only the needed parts.
fn prelude(needed: &[Part]) -> String {
    let is_used = |parts: &[Part]| parts.is_empty() || parts.iter().any(|part| needed.contains(part));
    PRELUDE
        .iter()
        .filter(|(_, parts)| is_used(parts))
        .map(|(text, _)| *text)
        .collect()
}

/// Wraps declarations in the namespace of the kernel.
fn in_namespace(needed: &[Part], items: &str) -> String {
    let mut source = String::from("namespace kernel {\n");
    let mut types = vec!["u32", "i32", "f32", "f16", "vec", "array", "padded"];
    if needed.contains(&Part::Matrix) {
        types.extend(["matrix_a", "matrix_b", "matrix_c"]);
    }
    for ty in types {
        source.push_str(&format!("using wgsl::{ty};\n"));
    }
    source.push_str(items);
    source.push_str("} // namespace kernel\n");
    source
}
