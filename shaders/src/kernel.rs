//! What a kernel is made from, and what it is once it is made: all that a host has to know.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::Shader;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::plan::BufferRef;

use super::limits::{CoopConfig, Features};
use super::schedule::{Class, ScheduleChooser};

/// Most buffers of a kernel, one less than of which Vulkan devices commonly have sixteen.
pub(crate) const MAX_BINDINGS: usize = 15;
/// Scalars of the session that are part of a launch; those beyond are in memory.
pub const INLINE_SCALARS: usize = 16;
/// Where data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A buffer of the plan.
    Buffer(BufferRef),
    /// Scratch of the dispatch, by number.
    Scratch(usize),
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Every element has these bits, known when the kernel is made.
    Constant(u32),
    /// A scalar of the session, at this location of their list.
    Scalar(usize),
    /// Its elements are here.
    Memory(Memory),
}

/// A variable of a module that the executor binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// Data of the plan or scratch.
    Memory(Memory),
    /// The same, in a custom kernel.
    Custom(Memory),
    /// A table of constants of the launch.
    Table(usize),
    /// The first scalars of the session, as part of the launch.
    InlineScalars,
    /// The scalars of the session in memory.
    Scalars,
    /// Where faults are reported.
    Fault,
    /// The same, to see whether there was one.
    Guard,
    /// Number of the dispatch among those that report.
    Reporter,
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel file that it is made from, or what is generated: "pointwise", "reduce" and others.
    pub kernel: &'static str,
    /// The WGSL module, whose entry point is `main`.
    pub source: String,
    /// What its variables are that the host binds.
    pub bindings: Vec<Binding>,
    /// Names of these variables, in the same order.
    pub names: Vec<&'static str>,
    /// Tables of constants that it binds.
    pub tables: Vec<Arc<[u32]>>,
    /// Workgroups along each axis.
    pub groups: [u32; 3],
    /// Whether it uses cooperative matrices.
    pub coop: bool,
    /// The matmul that it is, if a library of the device computes it: there is no module then, and what is bound is the first
    /// operand, the second one, the result, and the library's workspace.
    pub library: Option<LibraryMatmul>,
    /// How it computes its part of the call, where there are several schedules.
    pub schedule: Option<Arc<str>>,
    /// The class of calls for which that was [chosen](ScheduleChooser), if it is not the default.
    pub chosen: Option<Arc<Class>>,
}

/// Where the code of a workgroup begins.
pub(crate) const MAIN: &str =
    "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {\n";

impl Launch {
    /// Makes it write nothing once a fault was reported: each workgroup looks before it does anything.
    ///
    /// # Errors
    /// A custom kernel, or one that binds too much already.
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

    /// Makes the code differ from that of other numbers, which are not 0, by what never happens: a launch has one layer of
    /// workgroups.
    pub fn differ(&mut self, number: usize) {
        let never = format!("{MAIN}if (group.z == {number}u) {{\nreturn;\n}}\n");
        self.source = self.source.replacen(MAIN, &never, 1);
    }
}

/// What a dispatch is compiled to: launches one after the other.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Launches, each of which may read what those before it wrote.
    pub launches: Vec<Launch>,
    /// Bytes of each scratch buffer.
    pub scratch: Vec<usize>,
    /// Operands of which it reads nothing but elements that it rounds to `f16`.
    pub rounded: Vec<usize>,
}

impl From<Launch> for Compiled {
    /// One launch, which keeps nothing on the variant.
    fn from(launch: Launch) -> Self {
        Compiled {
            launches: vec![launch],
            ..Compiled::default()
        }
    }
}

/// A matmul that a library of the device may compute: `[batch, m, k]` times `[batch, k, n]`, with sums in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryMatmul {
    /// Matrices of a batch.
    pub batch: usize,
    /// Rows of the first operand and of the result.
    pub m: usize,
    /// Columns of the second operand and of the result.
    pub n: usize,
    /// Of the summed dimension.
    pub k: usize,
    /// The operands, both of one type, `f16` or `f32`.
    pub operands: [LibraryOperand; 2],
    /// The result's type, `f16` or `f32`; it lies row by row.
    pub result: DType,
}

/// An operand of such a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryOperand {
    /// Its type, `f16` or `f32`.
    pub dtype: DType,
    /// Whether its matrices are stored transposed: as `[k, m]`, or `[n, k]`.
    pub transposed: bool,
    /// Elements from one matrix of the batch to the next; 0 if all are the same.
    pub stride: usize,
}

/// A library of matmuls.
pub trait MatmulLibrary {
    /// Whether a matmul is given to the library, where operands of so many bytes have to be rounded to `f16` before it, and
    /// with a launch behind it that computes what follows from its result, if there is any.
    fn takes(&self, matmul: &LibraryMatmul, rounded_bytes: usize, is_followed: bool) -> bool;

    /// Bytes of workspace that each of its matmuls gets.
    fn workspace_bytes(&self) -> usize;
}

/// A custom kernel that a device has accepted for an operator.
pub trait CustomKernel {
    /// The operator.
    fn op(&self) -> OpRef;

    /// The kernel of a call.
    ///
    /// # Errors
    /// The reason why there is none.
    fn shader(&self, kernel: &KernelDesc) -> Result<Shader, String>;
}

/// What a kernel is compiled from.
pub struct CompileCx<'a> {
    /// The call.
    pub kernel: KernelDesc<'a>,
    /// Where operands come from.
    pub inputs: Vec<Source>,
    /// Where results go.
    pub outputs: Vec<Memory>,
    /// A word; where it is not 0, nothing may be written.
    pub skip_if: Option<BufferRef>,
    /// Whether the host has looked at the indices among the operands.
    pub host_validated: bool,
    /// The cooperative matrices that products may use.
    pub coop: Option<CoopConfig>,
    /// What else of the device they may use.
    pub features: Features,
    /// A library of matmuls.
    pub library: Option<&'a dyn MatmulLibrary>,
    /// Variants of calls, where others than the default ones may be faster.
    pub choices: Option<&'a dyn ScheduleChooser>,
    /// The kernel that somebody registered for the operator.
    pub custom: Option<&'a dyn CustomKernel>,
    /// Scratch buffers of the dispatch that are not the kernel's own.
    pub first_scratch: usize,
    /// Buffers of `f32` that are in `f16` in memory.
    pub f16_storage: Option<&'a HashSet<BufferRef>>,
}

impl Launch {
    /// Whether it is a kernel that somebody registered.
    pub fn is_custom(&self) -> bool {
        self.bindings.iter().any(|b| matches!(b, Binding::Custom(_)))
    }

    /// Whether it may report a fault.
    pub fn reports(&self) -> bool {
        self.bindings.contains(&Binding::Fault)
    }
}

impl<'a> CompileCx<'a> {
    /// Every operand and result in a buffer of its own: the kernel that needs the most.
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

    /// A kernel that does a part of this one's work, under the same conditions. Its own scratch buffers begin at
    /// `first_scratch`.
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

    /// The call, as shape rules see it.
    pub fn call(&self) -> Call<'_> {
        Call {
            attrs: self.kernel.attrs,
            inputs: self.kernel.inputs,
            outputs: self.kernel.outputs,
        }
    }

    /// A scratch buffer of the kernel's own.
    pub fn scratch(&self, number: usize) -> Memory {
        Memory::Scratch(self.first_scratch + number)
    }

    /// The dtype in memory of what a kernel sees as elements of a dtype.
    pub fn stored_dtype(&self, memory: Memory, dtype: DType) -> DType {
        match (memory, self.f16_storage) {
            (Memory::Buffer(buffer), Some(f16_storage)) if f16_storage.contains(&buffer) => DType::F16,
            _ => dtype,
        }
    }

    /// The dtype of a result in memory.
    pub fn stored_output(&self, output: usize) -> DType {
        self.stored_dtype(self.outputs[output], self.kernel.outputs[output].dtype)
    }

    /// The memory of an operand that is nowhere else and not overwritten.
    pub fn memory_of(&self, operand: usize) -> Option<Memory> {
        match self.inputs[operand] {
            Source::Memory(memory) if !self.is_overwritten(operand) => Some(memory),
            _ => None,
        }
    }

    /// The [memory](CompileCx::memory_of) of an operand, and its dtype there.
    pub(crate) fn stored_input(&self, operand: usize) -> Option<(Memory, DType)> {
        let memory = self.memory_of(operand)?;
        Some((memory, self.stored_dtype(memory, self.kernel.inputs[operand].dtype)))
    }

    /// Whether an operand can be read by vectors of four elements.
    pub fn has_vectors(&self, operand: usize) -> bool {
        self.memory_of(operand).is_some() && self.kernel.inputs[operand].dtype.is_float()
    }

    /// Whether some operand is overwritten.
    pub fn overwrites(&self) -> bool {
        (0..self.inputs.len()).any(|operand| self.is_overwritten(operand))
    }

    /// Whether an operand is overwritten.
    pub fn is_overwritten(&self, operand: usize) -> bool {
        match self.inputs[operand] {
            Source::Memory(memory) => self.outputs.contains(&memory),
            _ => false,
        }
    }
}

/// Names of the buffers of a kernel in the order of their use.
pub(crate) const NAMES: [&str; 16] = [
    "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12", "b13", "b14", "b15",
];
