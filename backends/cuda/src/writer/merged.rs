//! Merging of several independent kernels into one kernel. Each part has its own blocks. A launch takes as long as a
//! small kernel.

use std::fmt::Write as _;

use naga::Module;
use naga::valid::ModuleInfo;

use super::context::Part;
use super::error::{Result, WriteError};
use super::options::{Binding, Options};
use super::{ENTRY, in_namespace, prelude, unit};

/// Maximum size of the shared memory of a kernel in bytes.
const MAX_SHARED: u32 = 48 * 1024;

/// A call of a kernel that becomes a part of a merged kernel.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Index of the kernel's module.
    pub module: usize,
    /// Number of blocks along each axis.
    pub blocks: [u32; 3],
    /// Name of the kernel's entry point.
    pub entry: &'a str,
}

/// Several kernels merged into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedKernel {
    /// Self-contained CUDA C++ source.
    pub source: String,
    /// Unmangled name of the `__global__` function.
    pub entry: String,
    /// Number of threads in a block along each axis.
    pub threads: [u32; 3],
    /// Number of blocks, all of them along the first axis.
    pub blocks: u32,
    /// Parameters in order, call after call. Each is the index of its call and the binding.
    pub bindings: Vec<(usize, Binding)>,
}

/// Translates calls of kernels to one kernel. Each module comes with its validation info and options. All kernels
/// must have the same block size along each axis.
///
/// # Errors
/// As [`write`](super::write); blocks of different sizes, too much shared memory, or too many blocks.
pub fn write_merged(modules: &[(&Module, &ModuleInfo, &Options)], calls: &[Call]) -> Result<MergedKernel> {
    let mut units = Vec::with_capacity(modules.len());
    for (number, (module, info, options)) in modules.iter().enumerate() {
        let call = calls.iter().find(|call| call.module == number);
        let call = call.ok_or_else(|| WriteError::invalid("a module that is not called"))?;
        units.push(unit(module, info, call.entry, options, true)?);
    }
    let Some(first) = units.first() else {
        return Err(WriteError::invalid("a kernel of no parts"));
    };
    let threads = first.threads;
    if units.iter().any(|unit| unit.threads != threads) {
        return Err(WriteError::unsupported("parts whose blocks have different sizes"));
    }
    let shared: u32 = units.iter().map(|unit| unit.shared_bytes).sum();
    if shared > MAX_SHARED {
        return Err(WriteError::unsupported(format!(
            "parts with {shared} bytes of shared memory"
        )));
    }
    let needed: Vec<Part> = units.iter().flat_map(|unit| unit.needed.iter().copied()).collect();
    let mut source = prelude(&needed);
    for (number, unit) in units.iter().enumerate() {
        let _ = write!(
            source,
            "namespace part_{number} {{\n{}}}\n",
            in_namespace(&needed, &unit.items)
        );
    }
    let (mut parameters, mut bindings, mut body) = (Vec::new(), Vec::new(), String::new());
    body.push_str("const u32 block = blockIdx.x;\n");
    let mut end = 0_u32;
    for (number, call) in calls.iter().enumerate() {
        let Some(unit) = units.get(call.module) else {
            return Err(WriteError::invalid("a call of a module that does not exist"));
        };
        let mut arguments = Vec::with_capacity(unit.parameters.len() + 2);
        for (at, parameter) in unit.parameters.iter().enumerate() {
            // In a declaration, the name follows the type.
            let Some((ty, _)) = parameter.rsplit_once(' ') else {
                return Err(WriteError::invalid("a parameter without a type"));
            };
            let name = format!("c{number}_{at}");
            parameters.push(format!("\n    {ty} {name}"));
            arguments.push(name);
        }
        bindings.extend(unit.bindings.iter().map(|binding| (number, binding.clone())));
        let [x, y, z] = call.blocks;
        let count = x.checked_mul(y).and_then(|xy| xy.checked_mul(z));
        let begin = end;
        let too_many = || WriteError::unsupported("more blocks than can be counted");
        end = count.and_then(|count| end.checked_add(count)).ok_or_else(too_many)?;
        arguments.push(match (y, z) {
            (1, 1) => format!("wgsl::blocks{{block - {begin}u, 0u, 0u}}"),
            _ => format!(
                "wgsl::blocks{{(block - {begin}u) % {x}u, (block - {begin}u) / {x}u % {y}u, (block - {begin}u) / {}u}}",
                x * y
            ),
        });
        arguments.push(format!("wgsl::blocks{{{x}u, {y}u, {z}u}}"));
        let _ = write!(
            body,
            "if (block < {end}u) {{\npart_{}::kernel::{ENTRY}({});\nreturn;\n}}\n",
            call.module,
            arguments.join(", ")
        );
    }
    let count: u32 = threads.iter().product();
    let global = format!(
        "extern \"C\" __global__ void __launch_bounds__({count}) {ENTRY}({}) {{\n{body}}}\n",
        parameters.join(",")
    );
    source.push_str(&in_namespace(&needed, &global));
    Ok(MergedKernel {
        source,
        entry: ENTRY.to_owned(),
        threads,
        blocks: end,
        bindings,
    })
}
