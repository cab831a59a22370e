//! Several kernels that do not depend on each other as one, each of which computes in blocks of its own: a launch costs as much as a
//! small kernel takes.

use std::fmt::Write as _;

use naga::Module;
use naga::valid::ModuleInfo;

use super::context::Part;
use super::error::{Result, WriteError};
use super::options::{Binding, Options};
use super::{ENTRY, in_namespace, prelude, unit};

/// Shared memory that a kernel may declare.
const MAX_SHARED: u32 = 48 * 1024;

/// A kernel that becomes a part of one.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Which of the modules it is.
    pub module: usize,
    /// Its blocks along each axis.
    pub blocks: [u32; 3],
    /// Name of its entry point.
    pub entry: &'a str,
}

/// Several kernels as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The source, which includes nothing.
    pub source: String,
    /// Name of the `__global__` function, which C++ does not change.
    pub entry: String,
    /// Threads of a block along each axis.
    pub threads: [u32; 3],
    /// Blocks, all along the first axis.
    pub blocks: u32,
    /// The parameters in their order, those of one call after those of another, each with the number of its call.
    pub bindings: Vec<(usize, Binding)>,
}

/// Writes calls of kernels, whose modules come with their options, as one kernel. All have blocks of as many threads along each axis.
///
/// # Errors
/// As [`write`](super::write); blocks of different sizes, more shared memory than there is, or more blocks than can be counted.
pub fn write_merged(modules: &[(&Module, &ModuleInfo, &Options)], calls: &[Call]) -> Result<Merged> {
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
            return Err(WriteError::invalid("a call of a module that is not there"));
        };
        let mut arguments = Vec::with_capacity(unit.parameters.len() + 2);
        for (at, parameter) in unit.parameters.iter().enumerate() {
            // The name comes last in a declaration.
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
    Ok(Merged {
        source,
        entry: ENTRY.to_owned(),
        threads,
        blocks: end,
        bindings,
    })
}
