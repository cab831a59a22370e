//! Translation of functions and of the kernel.

use naga::valid::FunctionInfo;
use naga::{Binding, BuiltIn, EntryPoint, Expression, Function, Handle, TypeInner};

use super::body::Body;
use super::context::{Context, Part};
use super::error::{Result, WriteError};
use super::natives::native;
use super::waits::MARKER;

/// Number of threads in a warp. A warp implements a subgroup.
const WARP: u32 = 32;
/// Type of the block index and of the number of blocks, if the kernel is a part of a merged kernel.
const BLOCKS: &str = "wgsl::blocks";
/// Names of the block index and of the number of blocks. They contain two underscores, so no WGSL name can equal
/// them.
const PART_BLOCK: &str = "part__block";
const PART_BLOCKS: &str = "part__blocks";
/// Maximum number of threads in a block.
const MAX_THREADS: u32 = 1024;

impl Context<'_> {
    /// Returns the C++ code of a function that the kernel calls.
    pub(super) fn function(&self, handle: Handle<Function>) -> Result<String> {
        let (function, info) = (&self.module.functions[handle], &self.info[handle]);
        let name = self.function_name(handle)?;
        let mut body = Body::new(self, function, info);
        let mut parameters = self.global_parameters(info, false)?;
        for (argument, name) in function.arguments.iter().zip(&body.arguments) {
            parameters.push(format!("{} {name}", self.type_name(argument.ty)?));
        }
        let result = match &function.result {
            Some(result) => self.type_name(result.ty)?,
            None => "void".to_owned(),
        };
        if self.early.is_some() && function.name.as_deref() == Some(MARKER) {
            self.wait(&mut body);
        }
        match native(function.name.as_deref()).filter(|_| self.natives) {
            Some(native) => {
                self.needs(Part::Half);
                self.needs(Part::Natives);
                let arguments = body.arguments.join(", ");
                body.line(&format!("return wgsl::{native}({arguments});"));
            }
            None => {
                body.declare_locals()?;
                body.block(&function.body)?;
            }
        }
        let parameters = parameters.join(", ");
        Ok(format!(
            "static __device__ __forceinline__ {result} {name}({parameters}) {{\n{}}}\n",
            body.text
        ))
    }

    /// Returns the C++ code of the kernel. A part of a merged kernel is a function that receives its block index and
    /// number of blocks.
    pub(super) fn kernel(&self, entry: &EntryPoint, info: &FunctionInfo, name: &str) -> Result<String> {
        let threads = threads(entry)?;
        let mut body = Body::new(self, &entry.function, info);
        if self.programmatic && self.early.is_none() {
            self.wait(&mut body);
        }
        for number in 0..entry.function.arguments.len() {
            body.declare_argument(number, entry.workgroup_size)?;
        }
        for declaration in self.declare_private(info)? {
            body.line(&declaration);
        }
        body.declare_locals()?;
        body.block(&entry.function.body)?;
        let parameters = self.global_parameters(info, true)?;
        let parameters = parameters.iter().map(|parameter| format!("\n    {parameter}"));
        let mut parameters: Vec<String> = parameters.collect();
        if self.is_part {
            parameters.push(format!(
                "\n    const {BLOCKS} {PART_BLOCK}, const {BLOCKS} {PART_BLOCKS}"
            ));
            let parameters = parameters.join(",");
            return Ok(format!(
                "static __device__ __forceinline__ void {name}({parameters}) {{\n{}}}\n",
                body.text
            ));
        }
        let parameters = parameters.join(",");
        Ok(format!(
            "extern \"C\" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{\n{}}}\n",
            body.text
        ))
    }

    fn wait(&self, body: &mut Body) {
        self.needs(Part::Launch);
        body.line("wgsl::wait_for_earlier_launches();");
    }

    fn function_name(&self, handle: Handle<Function>) -> Result<&str> {
        let name = self.functions.get(&handle).map(String::as_str);
        name.ok_or_else(|| WriteError::invalid("a function that does not exist"))
    }
}

/// Returns the total number of threads in a block.
fn threads(entry: &EntryPoint) -> Result<u32> {
    let sizes = entry.workgroup_size.iter();
    let threads = sizes.fold(1_u32, |all, size| all.saturating_mul(*size));
    match threads {
        1..=MAX_THREADS => Ok(threads),
        _ => Err(WriteError::unsupported(format!(
            "workgroups of {threads} threads; there are {MAX_THREADS} at most"
        ))),
    }
}

/// Returns the CUDA expression for a built-in value of an entry point.
fn builtin(built_in: BuiltIn, size: [u32; 3], is_part: bool) -> Result<String> {
    let [x, y, z] = size;
    let threads = x.saturating_mul(y).saturating_mul(z);
    // Dimensions of size 1 are omitted for readability: their index is 0.
    let local = match (y, z) {
        (1, 1) => "threadIdx.x".to_owned(),
        (_, 1) => format!("(threadIdx.y * {x}u + threadIdx.x)"),
        _ => format!("((threadIdx.z * {y}u + threadIdx.y) * {x}u + threadIdx.x)"),
    };
    let (block, blocks) = if is_part {
        (PART_BLOCK, PART_BLOCKS)
    } else {
        ("blockIdx", "gridDim")
    };
    let three = |of: &dyn Fn(&str) -> String| format!("vec<u32, 3>{{{{{}, {}, {}}}}}", of("x"), of("y"), of("z"));
    Ok(match built_in {
        BuiltIn::GlobalInvocationId => {
            let size = |axis: &str| match axis {
                "x" => x,
                "y" => y,
                _ => z,
            };
            three(&|axis| format!("{block}.{axis} * {}u + threadIdx.{axis}", size(axis)))
        }
        BuiltIn::LocalInvocationId => three(&|axis| format!("threadIdx.{axis}")),
        BuiltIn::LocalInvocationIndex => local,
        BuiltIn::WorkGroupId => three(&|axis| format!("{block}.{axis}")),
        BuiltIn::WorkGroupSize => format!("vec<u32, 3>{{{{{x}u, {y}u, {z}u}}}}"),
        BuiltIn::NumWorkGroups => three(&|axis| format!("{blocks}.{axis}")),
        BuiltIn::NumSubgroups => format!("{}u", threads.div_ceil(WARP)),
        BuiltIn::SubgroupId => format!("{local} / {WARP}u"),
        BuiltIn::SubgroupSize => format!("{WARP}u"),
        BuiltIn::SubgroupInvocationId => format!("{local} % {WARP}u"),
        other => return Err(WriteError::unsupported(format!("the built-in value {other:?}"))),
    })
}

impl Body<'_> {
    fn declare_locals(&mut self) -> Result<()> {
        for (handle, local) in self.function.local_variables.iter() {
            let (ty, name) = (self.cx.type_name(local.ty)?, self.local_name(handle)?);
            let value = match local.init {
                Some(init) => self.value(init)?,
                None => format!("{ty}{{}}"),
            };
            self.line(&format!("{ty} {name} = {value};"));
        }
        Ok(())
    }

    /// Declares an argument of the entry point: a built-in value, or a structure of them.
    fn declare_argument(&mut self, number: usize, size: [u32; 3]) -> Result<()> {
        let (Some(argument), Some(name)) = (self.function.arguments.get(number), self.arguments.get(number)) else {
            return Err(WriteError::invalid("an argument that the entry point does not have"));
        };
        let of_binding = |binding: &Option<Binding>| match binding {
            Some(Binding::BuiltIn(built_in)) => builtin(*built_in, size, self.cx.is_part),
            _ => Err(WriteError::unsupported(
                "arguments of entry points that are not built-in values",
            )),
        };
        let ty = self.cx.type_name(argument.ty)?;
        let value = match (&argument.binding, self.cx.inner(argument.ty)) {
            (None, TypeInner::Struct { members, .. }) => {
                let values: Result<Vec<String>> = members.iter().map(|member| of_binding(&member.binding)).collect();
                format!("WGSL_make_{ty}({})", values?.join(", "))
            }
            (binding, _) => of_binding(binding)?,
        };
        let line = format!("const {ty} {name} = {value};");
        self.line(&line);
        Ok(())
    }

    /// Returns the C++ code of a call of a function of the module. The module's variables that the function uses are
    /// passed as arguments.
    pub(super) fn call(&self, function: Handle<Function>, arguments: &[Handle<Expression>]) -> Result<String> {
        let mut given = self.cx.global_arguments(&self.cx.info[function])?;
        for argument in arguments {
            given.push(match self.inner(*argument).pointer_space() {
                Some(_) => self.address(*argument)?,
                None => self.value(*argument)?,
            });
        }
        Ok(format!(
            "kernel::{}({})",
            self.cx.function_name(function)?,
            given.join(", ")
        ))
    }
}
