//! A WGSL module in the making: what it binds, and what it is put together from.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::SHADER_BUFFERS;
use meganeura_core::ops::Call;
use meganeura_core::plan::BufferRef;

use super::coop::CoopConfig;
use super::library::library;
use super::scalar::{literal, wgsl_type};
use super::variants::{Choices, Class};
use crate::brought::Accepted;

/// Most buffers of a kernel, one less than of which Vulkan devices commonly have sixteen.
const MOST_BINDINGS: usize = 15;
/// Scalars of the session that are part of a launch; those beyond are in memory.
pub(crate) const INLINE_SCALARS: usize = 16;
/// The type of WGSL for half precision, and the extension that it takes.
pub(crate) const HALF: &str = "f16";
/// The extension of WGSL for matrix units.
pub(crate) const COOP: &str = "wgpu_cooperative_matrix";
/// Largest number of workgroups along an axis that every device has.
const MOST_GROUPS: usize = 65_535;

/// Where data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    /// A buffer of the plan.
    Buffer(BufferRef),
    /// Scratch of the dispatch, by number.
    Scratch(usize),
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Every element has these bits, known when the kernel is made.
    Constant(u32),
    /// A scalar of the session, at this place of their list.
    Scalar(usize),
    Memory(Memory),
}

/// A variable of a module that the executor binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Binding {
    Memory(Memory),
    /// The same, of a module that others made.
    Given(Memory),
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
pub(crate) struct Launch {
    pub(crate) source: String,
    pub(crate) bindings: Vec<Binding>,
    /// Tables of constants that it binds.
    pub(crate) tables: Vec<Arc<[u32]>>,
    pub(crate) groups: [u32; 3],
    /// Whether it uses matrix units.
    pub(crate) coop: bool,
    /// The class of calls for which its way was [chosen](Choices), if it was.
    pub(crate) chosen: Option<Arc<Class>>,
}

/// Where the code of a workgroup begins.
const MAIN: &str = "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {\n";

impl Launch {
    /// Makes the code differ from that of other numbers, which are not 0, by what never happens: a launch has one layer of
    /// workgroups.
    pub(crate) fn differ(&mut self, number: usize) {
        let never = format!("{MAIN}if (group.z == {number}u) {{\nreturn;\n}}\n");
        self.source = self.source.replacen(MAIN, &never, 1);
    }
}

/// What a dispatch is compiled to: launches one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) launches: Vec<Launch>,
    /// Bytes of each scratch buffer.
    pub(crate) scratch: Vec<usize>,
    /// Operands of which it reads nothing but elements that it rounds to `f16`.
    pub(crate) rounded: Vec<usize>,
}

/// What a kernel is compiled from.
pub(crate) struct CompileCx<'a> {
    pub(crate) kernel: KernelDesc<'a>,
    pub(crate) inputs: Vec<Source>,
    pub(crate) outputs: Vec<Memory>,
    /// Whether nothing may be written after a fault.
    pub(crate) guarded: bool,
    /// A word; where it is not 0, nothing may be written.
    pub(crate) skip_if: Option<BufferRef>,
    /// Whether the host has looked at the indices among the operands.
    pub(crate) fed: bool,
    /// The matrix units that products may use.
    pub(crate) coop: Option<CoopConfig>,
    /// Ways to compute calls, where others than the usual ones may be better.
    pub(crate) choices: Option<&'a dyn Choices>,
    /// The kernel that others brought for the operator.
    pub(crate) brought: Option<&'a Accepted>,
    /// Scratch buffers of the dispatch that are not the kernel's own.
    pub(crate) first_scratch: usize,
    /// Buffers of `f32` that are in `f16` in memory.
    pub(crate) narrow: Option<&'a HashSet<BufferRef>>,
}

impl Launch {
    /// Whether it is a kernel that others brought.
    pub(crate) fn is_brought(&self) -> bool {
        self.bindings.iter().any(|b| matches!(b, Binding::Given(_)))
    }

    /// Whether it may report a fault.
    pub(crate) fn reports(&self) -> bool {
        self.bindings.contains(&Binding::Fault)
    }
}

impl<'a> CompileCx<'a> {
    /// Every operand and result in a buffer of its own: the kernel that needs the most.
    pub(crate) fn apart(kernel: KernelDesc<'a>) -> Self {
        let inputs = kernel.inputs.len();
        let buffer = |i: usize| Memory::Buffer(BufferRef(i as u32));
        CompileCx {
            inputs: (0..inputs).map(|i| Source::Memory(buffer(i))).collect(),
            outputs: (inputs..inputs + kernel.outputs.len()).map(buffer).collect(),
            guarded: false,
            skip_if: None,
            fed: false,
            coop: None,
            choices: None,
            brought: None,
            first_scratch: 0,
            narrow: None,
            kernel,
        }
    }

    /// A kernel that does a part of this one's work, under the same conditions. Its own scratch buffers begin at
    /// `first_scratch`.
    pub(crate) fn part<'b>(
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
            guarded: self.guarded,
            skip_if: self.skip_if,
            fed: self.fed,
            coop: self.coop,
            choices: self.choices,
            brought: None,
            first_scratch,
            narrow: self.narrow,
        }
    }

    /// The call, as shape rules see it.
    pub(crate) fn call(&self) -> Call<'_> {
        Call {
            attrs: self.kernel.attrs,
            inputs: self.kernel.inputs,
            outputs: self.kernel.outputs,
        }
    }

    /// A scratch buffer of the kernel's own.
    pub(crate) fn scratch(&self, number: usize) -> Memory {
        Memory::Scratch(self.first_scratch + number)
    }

    /// The dtype in memory of what a kernel sees as elements of a dtype.
    pub(crate) fn stored_dtype(&self, memory: Memory, dtype: DType) -> DType {
        match (memory, self.narrow) {
            (Memory::Buffer(buffer), Some(narrow)) if narrow.contains(&buffer) => DType::F16,
            _ => dtype,
        }
    }

    /// The dtype of a result in memory.
    pub(crate) fn stored_output(&self, output: usize) -> DType {
        self.stored_dtype(self.outputs[output], self.kernel.outputs[output].dtype)
    }

    /// The memory of an operand that is nowhere else and not overwritten.
    pub(crate) fn memory_of(&self, operand: usize) -> Option<Memory> {
        match self.inputs[operand] {
            Source::Memory(memory) if !self.is_overwritten(operand) => Some(memory),
            _ => None,
        }
    }

    /// The [memory](CompileCx::memory_of) of an operand, and its dtype there.
    fn stored_input(&self, operand: usize) -> Option<(Memory, DType)> {
        let memory = self.memory_of(operand)?;
        Some((memory, self.stored_dtype(memory, self.kernel.inputs[operand].dtype)))
    }

    /// Whether an operand can be read by vectors of four elements.
    pub(crate) fn has_vectors(&self, operand: usize) -> bool {
        self.memory_of(operand).is_some() && self.kernel.inputs[operand].dtype.is_float()
    }

    /// Whether some operand is overwritten.
    pub(crate) fn overwrites(&self) -> bool {
        (0..self.inputs.len()).any(|operand| self.is_overwritten(operand))
    }

    /// Whether an operand is overwritten.
    pub(crate) fn is_overwritten(&self, operand: usize) -> bool {
        match self.inputs[operand] {
            Source::Memory(memory) => self.outputs.contains(&memory),
            _ => false,
        }
    }
}

struct Slot {
    binding: Binding,
    /// Declaration without the access.
    declared: String,
    element: &'static str,
    writes: bool,
}

/// The module of one launch.
pub(crate) struct Module<'a> {
    cx: &'a CompileCx<'a>,
    slots: Vec<Slot>,
    tables: Vec<Arc<[u32]>>,
    /// Extensions of the language that it needs.
    enabled: Vec<&'static str>,
    /// Declarations of the module beside its bindings.
    pub(crate) items: String,
}

impl<'a> Module<'a> {
    pub(crate) fn new(cx: &'a CompileCx<'a>) -> Self {
        Module {
            cx,
            slots: Vec::new(),
            tables: Vec::new(),
            enabled: Vec::new(),
            items: String::new(),
        }
    }

    /// Uses an extension of the language.
    pub(crate) fn enable(&mut self, extension: &'static str) {
        if !self.enabled.contains(&extension) {
            self.enabled.push(extension);
        }
    }

    /// Name of the variable for a binding.
    fn slot(&mut self, binding: Binding, element: &'static str, writes: bool) -> String {
        let known = |s: &Slot| s.binding == binding && s.element == element;
        let at = match self.slots.iter().position(known) {
            Some(at) => at,
            None => {
                let declared = match binding {
                    Binding::Memory(_) | Binding::Given(_) | Binding::Table(_) => {
                        format!("{}: array<{element}>", NAMES[self.slots.len() % NAMES.len()])
                    }
                    Binding::InlineScalars => format!("inline_scalars: array<vec4<u32>, {}>", INLINE_SCALARS / 4),
                    Binding::Scalars => "scalars: array<u32>".to_owned(),
                    Binding::Fault => "fault: array<atomic<u32>>".to_owned(),
                    Binding::Guard => "guard: array<u32>".to_owned(),
                    Binding::Reporter => "reporter: u32".to_owned(),
                };
                self.slots.push(Slot {
                    binding,
                    declared,
                    element,
                    writes,
                });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[at];
        slot.writes |= writes;
        slot.declared.split(':').next().unwrap_or_default().to_owned()
    }

    /// Storage of memory as an array of elements of a dtype; halves are pairs in words.
    pub(crate) fn array(&mut self, memory: Memory, dtype: DType, writes: bool) -> String {
        let element = match dtype {
            DType::F16 | DType::BF16 => "u32",
            other => wgsl_type(other),
        };
        self.slot(Binding::Memory(memory), element, writes)
    }

    /// Scratch as numbers that threads change at the same time.
    pub(crate) fn atomics(&mut self, memory: Memory) -> String {
        self.slot(Binding::Memory(memory), "atomic<u32>", true)
    }

    /// A table of constants.
    pub(crate) fn table(&mut self, words: &Arc<[u32]>, dtype: DType) -> String {
        let number = match self.tables.iter().position(|t| t == words) {
            Some(number) => number,
            None => {
                self.tables.push(words.clone());
                self.tables.len() - 1
            }
        };
        self.slot(Binding::Table(number), wgsl_type(dtype), false)
    }

    /// What is compiled.
    pub(crate) fn cx(&self) -> &'a CompileCx<'a> {
        self.cx
    }

    /// An element of an operand, as computed with.
    pub(crate) fn load(&mut self, operand: usize, index: &str) -> String {
        let dtype = self.cx.kernel.inputs[operand].dtype;
        match self.cx.inputs[operand] {
            Source::Constant(bits) => literal(dtype, bits),
            Source::Scalar(place) => {
                let word = match place < INLINE_SCALARS {
                    true => {
                        let name = self.slot(Binding::InlineScalars, "u32", false);
                        format!("{name}[{}u][{}u]", place / 4, place % 4)
                    }
                    false => format!("{}[{place}u]", self.slot(Binding::Scalars, "u32", false)),
                };
                match dtype {
                    DType::U32 => word,
                    // The half is the lower one of its word.
                    DType::F16 | DType::BF16 => format!("{dtype}_to_f32({word} & 0xffffu)"),
                    _ => format!("bitcast<{}>({word})", wgsl_type(dtype)),
                }
            }
            Source::Memory(memory) => {
                let dtype = self.cx.stored_dtype(memory, dtype);
                if dtype == DType::F16 && self.enabled.contains(&HALF) {
                    return format!("f32({}[{index}])", self.slot(Binding::Memory(memory), HALF, false));
                }
                let name = self.array(memory, dtype, false);
                match dtype {
                    DType::F16 | DType::BF16 => {
                        let half = format!("(({name}[({index}) >> 1u] >> ((({index}) & 1u) * 16u)) & 0xffffu)");
                        format!("{dtype}_to_f32{half}")
                    }
                    _ => format!("{name}[{index}]"),
                }
            }
        }
    }

    /// Four elements of a float operand, from one whose number is four times `index`; `None` for one without memory of
    /// its own, or a dtype without such vectors. Operands of which a kernel also reads single elements are bound twice.
    pub(crate) fn load_vector(&mut self, operand: usize, index: &str) -> Option<String> {
        if let Some(halves) = self.load_halves(operand, index) {
            return Some(format!("vec4<f32>({halves})"));
        }
        let (memory, dtype) = self.cx.stored_input(operand)?;
        let memory = Binding::Memory(memory);
        match dtype {
            DType::F32 => Some(format!("{}[{index}]", self.slot(memory, "vec4<f32>", false))),
            dtype @ (DType::F16 | DType::BF16) => {
                let pairs = self.slot(memory, "vec2<u32>", false);
                Some(format!("{dtype}_to_f32x4({pairs}[{index}])"))
            }
            _ => None,
        }
    }

    /// The same of an operand that is in `f16` in memory, as halves; `None` for another, or without [`HALF`].
    pub(crate) fn load_halves(&mut self, operand: usize, index: &str) -> Option<String> {
        let (memory, dtype) = self.cx.stored_input(operand)?;
        (dtype == DType::F16 && self.enabled.contains(&HALF))
            .then(|| format!("{}[{index}]", self.slot(Binding::Memory(memory), "vec4<f16>", false)))
    }

    /// A statement that stores an element of a result whose dtype is not of half precision.
    pub(crate) fn store(&mut self, output: usize, index: &str, value: &str) -> String {
        let (memory, dtype) = (self.cx.outputs[output], self.cx.kernel.outputs[output].dtype);
        if self.cx.stored_output(output) != dtype {
            self.enable(HALF);
            let name = self.slot(Binding::Memory(memory), HALF, true);
            return format!("{name}[{index}] = {HALF}({value});\n");
        }
        let name = self.array(memory, dtype, true);
        format!("{name}[{index}] = {value};\n")
    }

    /// A statement that stores four elements of a result of `f32`, from one on whose number is four times `index`; `None` for
    /// one of another dtype.
    pub(crate) fn store_vector(&mut self, output: usize, index: &str, value: &str) -> Option<String> {
        let (memory, dtype) = (self.cx.outputs[output], self.cx.kernel.outputs[output].dtype);
        let element = match (dtype, self.cx.stored_output(output)) {
            (DType::F32, DType::F32) => "vec4<f32>",
            (DType::F32, DType::F16) => {
                self.enable(HALF);
                "vec4<f16>"
            }
            _ => return None,
        };
        let name = self.slot(Binding::Memory(memory), element, true);
        Some(format!("{name}[{index}] = {element}({value});\n"))
    }

    /// A scratch buffer as vectors of four elements.
    pub(crate) fn scratch_vectors(&mut self, memory: Memory) -> String {
        self.slot(Binding::Memory(memory), "vec4<f32>", true)
    }

    /// An index below `rows`: the expression's, or 0 after a report.
    pub(crate) fn checked_index(&mut self, index: &str, rows: usize) -> String {
        self.slot(Binding::Fault, "atomic", true);
        self.slot(Binding::Reporter, "u32", false);
        format!("checked_index({index}, {rows}u)")
    }

    /// Puts a module together whose `code` is run for each number `i` below `count`.
    ///
    /// # Errors
    /// As [`Module::finish`].
    pub(crate) fn finish_elements(self, code: &str, count: usize) -> Result<Launch, String> {
        const THREADS: usize = 256;
        let body = format!("let i = group_number * {THREADS}u + local;\nif (i >= {count}u) {{\nreturn;\n}}\n{code}");
        self.finish(&body, THREADS, count.div_ceil(THREADS))
    }

    /// Puts the module together. `body` is the code of a workgroup of `threads`; it may use `group_number`, below
    /// `groups`, and `local`, the number of the thread.
    ///
    /// # Errors
    /// When there are too many bindings or workgroups.
    pub(crate) fn finish(mut self, body: &str, threads: usize, groups: usize) -> Result<Launch, String> {
        let mut guards = Vec::new();
        if self.cx.guarded {
            guards.push(self.slot(Binding::Guard, "u32", false));
        }
        if let Some(buffer) = self.cx.skip_if {
            guards.push(self.slot(Binding::Memory(Memory::Buffer(buffer)), "u32", false));
        }
        if self.slots.len() > MOST_BINDINGS {
            return Err(format!(
                "it has {} operands and results, more than a kernel binds",
                self.slots.len()
            ));
        }
        let [x, y] = fold(groups)?;
        let mut main = format!("@compute @workgroup_size({threads})\n{MAIN}");
        for guard in guards {
            let _ = writeln!(main, "if ({guard}[0] != 0u) {{\nreturn;\n}}");
        }
        match y {
            1 => main.push_str("let group_number = group.x;\n"),
            _ => {
                let _ = writeln!(main, "let group_number = group.y * {x}u + group.x;");
                if x * y != groups {
                    let _ = writeln!(main, "if (group_number >= {groups}u) {{\nreturn;\n}}");
                }
            }
        }
        main.push_str(body);
        main.push_str("}\n");
        let mut declarations = String::new();
        for slot in &self.slots {
            let space = match (slot.binding, slot.writes) {
                (Binding::Reporter | Binding::InlineScalars, _) => "uniform",
                (_, true) => "storage, read_write",
                (_, false) => "storage, read",
            };
            let _ = writeln!(declarations, "var<{space}> {};", slot.declared);
        }
        let code = format!("{}{main}", self.items);
        let enabled: String = self.enabled.iter().map(|name| format!("enable {name};\n")).collect();
        Ok(Launch {
            source: format!("{enabled}{declarations}{}{code}", library(&code)),
            bindings: self.slots.iter().map(|s| s.binding).collect(),
            tables: self.tables,
            groups: [x as u32, y as u32, 1],
            coop: self.enabled.contains(&COOP),
            chosen: None,
        })
    }
}

/// Names of the buffers of a kernel in the order of their use.
const NAMES: [&str; 16] = [
    "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12", "b13", "b14", "b15",
];

/// The variable of binding `i`.
pub(crate) fn variable_name(i: usize, binding: Binding) -> &'static str {
    match binding {
        Binding::Memory(_) | Binding::Table(_) => NAMES[i % NAMES.len()],
        Binding::Given(_) => SHADER_BUFFERS[i % SHADER_BUFFERS.len()],
        Binding::InlineScalars => "inline_scalars",
        Binding::Scalars => "scalars",
        Binding::Fault => "fault",
        Binding::Guard => "guard",
        Binding::Reporter => "reporter",
    }
}

/// Workgroups in two dimensions, as few more as possible.
fn fold(groups: usize) -> Result<[usize; 2], String> {
    if groups <= MOST_GROUPS {
        return Ok([groups, 1]);
    }
    let y = groups.div_ceil(MOST_GROUPS);
    if y > MOST_GROUPS {
        return Err(format!("it needs {groups} workgroups, more than a device launches"));
    }
    Ok([groups.div_ceil(y), y])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_grids_are_folded() {
        assert_eq!(fold(65_535), Ok([65_535, 1]));
        assert_eq!(fold(65_536), Ok([32_768, 2]));
        let [x, y] = fold(1_000_000).expect("it fits");
        assert!(x <= MOST_GROUPS && x * y >= 1_000_000);
        assert!(fold(usize::MAX / 2).is_err());
    }
}
