//! Inputs and outputs of kernel generation: the context of a dispatch, and the kernels with all information that a
//! host needs.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::Shader;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::plan::BufferRef;

use super::library_calls::{DeviceLibrary, LibraryCall};
use super::limits::{CoopConfig, Features};
use super::schedule::{Class, ScheduleChooser};
use super::template::{Replacements, Template};

/// Maximum number of buffers of a kernel, one less than the common limit of sixteen of Vulkan devices.
pub(crate) const MAX_BINDINGS: usize = 15;
/// Maximum number of session scalars that are passed inline in a launch. Further scalars are in memory.
pub const INLINE_SCALARS: usize = 16;
/// Location of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A buffer of the plan.
    Buffer(BufferRef),
    /// Scratch buffer of the dispatch, by index.
    Scratch(usize),
}

/// Source of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A number that all elements have, as bits. The generated code contains the number.
    Constant(u32),
    /// Scalar of the session, by index.
    Scalar(usize),
    /// Memory that contains the elements.
    Memory(Memory),
}

/// An object that the executor binds to a variable of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// Buffer of the plan, or scratch.
    Memory(Memory),
    /// Buffer of the plan, or scratch, in a custom kernel.
    Custom(Memory),
    /// A table of constants of the launch.
    Table(usize),
    /// First scalars of the session. They are a part of the launch.
    InlineScalars,
    /// Scalars of the session in memory.
    Scalars,
    /// Fault report that the kernel may write to.
    Fault,
    /// Fault report that the kernel reads to check whether a fault occurred.
    Guard,
    /// Index of the dispatch among the dispatches that report faults.
    Reporter,
}

/// A launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name of the kernel file, or of the generated kernel, such as "pointwise" or "reduce".
    pub kernel: &'static str,
    /// WGSL module. Its entry point is `main`.
    pub source: String,
    /// Objects that the host binds to the variables of the module.
    pub bindings: Vec<Binding>,
    /// Names of the variables, in the same order.
    pub names: Vec<&'static str>,
    /// Tables of constants that the launch binds.
    pub tables: Vec<Arc<[u32]>>,
    /// Number of workgroups along each axis.
    pub groups: [u32; 3],
    /// True if the launch uses cooperative matrices.
    pub coop: bool,
    /// The call, if a library of the device computes it instead of a module. [`LibraryCall`] describes the bindings.
    pub library: Option<LibraryCall>,
    /// Schedule of the part of the call that this launch computes, if there are several schedules.
    pub schedule: Option<Arc<str>>,
    /// Class of the call if its schedule was [chosen](ScheduleChooser) for the class; `None` for the default schedule.
    pub chosen: Option<Arc<Class>>,
    /// Replacements in the kernel file, if the module comes from a kernel file.
    pub replacements: Option<Replacements>,
}

/// Start of the main function of a kernel.
pub(crate) const MAIN: &str =
    "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {\n";

impl Launch {
    /// Sets the template that the module was expanded from.
    pub(crate) fn of_template(mut self, template: Template) -> Self {
        self.replacements = Some(Replacements::new(template));
        self
    }

    /// Makes the launch write nothing after a fault was reported. Each workgroup checks the report first.
    ///
    /// # Errors
    /// The launch has a custom kernel, or already has the maximum number of bindings.
    pub fn guard(&mut self) -> Result<(), String> {
        const GUARD: &str = "guard";
        let (Some(main), false) = (self.source.find(MAIN), self.is_custom()) else {
            return Err("a custom kernel does not look for faults before it writes".into());
        };
        if self.bindings.len() >= MAX_BINDINGS {
            return Err(format!(
                "it has {} operands and results, and cannot look for faults as well",
                self.bindings.len()
            ));
        }
        let looks = format!("    if ({GUARD}[0] != 0u) {{\n        return;\n    }}\n");
        self.source.insert_str(main + MAIN.len(), &looks);
        // Extensions come before all declarations.
        let enables = self.source.lines().take_while(|line| line.starts_with("enable "));
        let declarations: usize = enables.map(|line| line.len() + 1).sum();
        self.source
            .insert_str(declarations, &format!("var<storage, read> {GUARD}: array<u32>;\n"));
        self.bindings.push(Binding::Guard);
        self.names.push(GUARD);
        Ok(())
    }

    /// Makes the source text of the launch differ from the texts for other numbers. Adds a condition with `number`
    /// that is never true, because a launch has only one layer of workgroups. `number` must not be 0.
    pub fn differ(&mut self, number: usize) {
        let never = format!("{MAIN}if (group.z == {number}u) {{\nreturn;\n}}\n");
        self.source = self.source.replacen(MAIN, &never, 1);
    }
}

/// Result of compiling a dispatch: consecutive launches.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Launches in order. A launch may read the results of earlier ones.
    pub launches: Vec<Launch>,
    /// Size of each scratch buffer in bytes.
    pub scratch: Vec<usize>,
    /// Operands whose elements the launches always round to `f16` when they read them.
    pub rounded: Vec<usize>,
    /// Operands that are only added to the result, or from which its elements are selected. If the result is stored as
    /// `f16`, they may be, too: the result is rounded anyway.
    pub rounded_with_result: Vec<usize>,
    /// True if the elements of the only result are rounded to `f16` before they are stored.
    pub has_rounded_result: bool,
}

impl From<Launch> for Compiled {
    /// Creates the result with a single launch and no scratch.
    fn from(launch: Launch) -> Self {
        Compiled {
            launches: vec![launch],
            ..Compiled::default()
        }
    }
}

/// A custom kernel that a device has accepted for an operator.
pub trait CustomKernel {
    /// Returns the operator of the kernel.
    fn op(&self) -> OpRef;

    /// Returns the kernel of a call.
    ///
    /// # Errors
    /// The call is not supported; the text contains the reason.
    fn shader(&self, kernel: &KernelDesc) -> Result<Shader, String>;
}

/// The input for the generation of a dispatch's kernels.
pub struct CompileCx<'a> {
    /// Call of the dispatch.
    pub kernel: KernelDesc<'a>,
    /// Sources of the operands.
    pub inputs: Vec<Source>,
    /// Destinations of the results.
    pub outputs: Vec<Memory>,
    /// Buffer with one word: if it is not 0, the kernels must not write.
    pub skip_if: Option<BufferRef>,
    /// True if the host has validated the indices in the operands.
    pub host_validated: bool,
    /// The cooperative matrices that products may use.
    pub coop: Option<CoopConfig>,
    /// Other device features that kernels may use.
    pub features: Features,
    /// A library that may compute matmuls and convolutions.
    pub library: Option<&'a dyn DeviceLibrary>,
    /// Chooser of schedules that may be faster than the default ones.
    pub choices: Option<&'a dyn ScheduleChooser>,
    /// The registered kernel of the operator.
    pub custom: Option<&'a dyn CustomKernel>,
    /// Number of scratch buffers of the dispatch that belong to other kernels.
    pub first_scratch: usize,
    /// The `f32` buffers that are stored as `f16`.
    pub f16_storage: Option<&'a HashSet<BufferRef>>,
}

impl Launch {
    /// Returns true if the launch runs a registered (custom) kernel.
    pub fn is_custom(&self) -> bool {
        self.bindings.iter().any(|b| matches!(b, Binding::Custom(_)))
    }

    /// Returns true if the launch may report a fault.
    pub fn reports(&self) -> bool {
        self.bindings.contains(&Binding::Fault)
    }
}

impl<'a> CompileCx<'a> {
    /// Creates the input of a standalone kernel. Every operand and result has a separate buffer, so this kernel needs
    /// the largest number of bindings.
    pub fn standalone(kernel: KernelDesc<'a>) -> Self {
        let inputs = kernel.inputs.len();
        let buffer = |i: usize| Memory::Buffer(BufferRef(i as u32));
        CompileCx {
            inputs: (0..inputs).map(|i| Source::Memory(buffer(i))).collect(),
            outputs: (inputs..inputs + kernel.outputs.len()).map(buffer).collect(),
            skip_if: None,
            host_validated: false,
            coop: None,
            features: Features::default(),
            library: None,
            choices: None,
            custom: None,
            first_scratch: 0,
            f16_storage: None,
            kernel,
        }
    }

    /// Creates the input for a kernel that computes a part of this dispatch, with the same options. Its scratch
    /// buffers begin at `first_scratch`.
    pub fn part<'b>(
        &'b self,
        kernel: KernelDesc<'b>,
        inputs: Vec<Source>,
        outputs: Vec<Memory>,
        first_scratch: usize,
    ) -> CompileCx<'b> {
        CompileCx {
            kernel,
            inputs,
            outputs,
            skip_if: self.skip_if,
            host_validated: self.host_validated,
            coop: self.coop,
            features: self.features,
            library: self.library,
            choices: self.choices,
            custom: None,
            first_scratch,
            f16_storage: self.f16_storage,
        }
    }

    /// Returns the call in the form that shape rules require.
    pub fn call(&self) -> Call<'_> {
        Call {
            attrs: self.kernel.attrs,
            inputs: self.kernel.inputs,
            outputs: self.kernel.outputs,
        }
    }

    /// Returns scratch buffer `number` of this kernel.
    pub fn scratch(&self, number: usize) -> Memory {
        Memory::Scratch(self.first_scratch + number)
    }

    /// Returns the dtype with which elements are stored in memory, if they have the dtype `dtype` in the kernel.
    pub fn stored_dtype(&self, memory: Memory, dtype: DType) -> DType {
        match (memory, self.f16_storage) {
            (Memory::Buffer(buffer), Some(f16_storage)) if f16_storage.contains(&buffer) => DType::F16,
            _ => dtype,
        }
    }

    /// Returns the storage dtype of a result.
    pub fn stored_output(&self, output: usize) -> DType {
        self.stored_dtype(self.outputs[output], self.kernel.outputs[output].dtype)
    }

    /// Returns the memory of an operand. Returns `None` if the operand is not in a buffer or is overwritten.
    pub fn memory_of(&self, operand: usize) -> Option<Memory> {
        match self.inputs[operand] {
            Source::Memory(memory) if !self.is_overwritten(operand) => Some(memory),
            _ => None,
        }
    }

    /// Returns the [memory](CompileCx::memory_of) of an operand, and its storage dtype.
    pub(crate) fn stored_input(&self, operand: usize) -> Option<(Memory, DType)> {
        let memory = self.memory_of(operand)?;
        Some((memory, self.stored_dtype(memory, self.kernel.inputs[operand].dtype)))
    }

    /// Returns true if an operand can be read in vectors of four elements.
    pub fn has_vectors(&self, operand: usize) -> bool {
        self.memory_of(operand).is_some() && self.kernel.inputs[operand].dtype.is_float()
    }

    /// Returns true if any operand is overwritten.
    pub fn overwrites(&self) -> bool {
        (0..self.inputs.len()).any(|operand| self.is_overwritten(operand))
    }

    /// Returns true if a result overwrites the operand.
    pub fn is_overwritten(&self, operand: usize) -> bool {
        match self.inputs[operand] {
            Source::Memory(memory) => self.outputs.contains(&memory),
            _ => false,
        }
    }
}

/// Names of the buffers of a kernel, in the order of their first use.
pub(crate) const NAMES: [&str; 16] = [
    "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12", "b13", "b14", "b15",
];
