//! Builder of a WGSL module: its bindings, declarations and code.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use meganeura_core::DType;

use super::files;
use super::kernel::{Binding, CompileCx, INLINE_SCALARS, Launch, MAX_BINDINGS, Memory, NAMES, Source};
use super::scalar::{literal, wgsl_type};
use super::template::{Expanded, Template, WORKGROUP, names};

/// The WGSL type of half precision, and the name of its extension.
pub(crate) const F16: &str = "f16";

/// Returns the WGSL type of one, two or four words.
pub(crate) fn words(count: usize) -> &'static str {
    match count {
        1 => "u32",
        2 => "vec2<u32>",
        _ => "vec4<u32>",
    }
}
/// The WGSL extension for cooperative matrices.
pub(crate) const COOP: &str = "wgpu_cooperative_matrix";
/// Maximum number of workgroups along an axis that every device supports.
const MAX_GROUPS: usize = 65_535;

struct Slot {
    binding: Binding,
    name: &'static str,
    /// WGSL type of the variable.
    ty: String,
    element: &'static str,
    writes: bool,
}

/// The module of one launch.
pub(crate) struct Module<'a> {
    cx: &'a CompileCx<'a>,
    slots: Vec<Slot>,
    tables: Vec<Arc<[u32]>>,
    /// Buffers that the kernel file declares, and the memory that they are bound to.
    bound: Vec<(&'static str, Memory)>,
    /// WGSL extensions that the module needs.
    enabled: Vec<&'static str>,
    /// Declarations of the module other than its bindings.
    pub(crate) items: String,
}

impl<'a> Module<'a> {
    pub(crate) fn new(cx: &'a CompileCx<'a>) -> Self {
        Module {
            cx,
            slots: Vec::new(),
            tables: Vec::new(),
            bound: Vec::new(),
            enabled: Vec::new(),
            items: String::new(),
        }
    }

    /// Adds declarations, unless the module already has them.
    pub(crate) fn declare(&mut self, declarations: &str) {
        if !self.items.contains(declarations) {
            self.items.push_str(declarations);
        }
    }

    /// Enables a WGSL extension.
    pub(crate) fn enable(&mut self, extension: &'static str) {
        if !self.enabled.contains(&extension) {
            self.enabled.push(extension);
        }
    }

    /// Returns the name of the variable for a binding.
    fn slot(&mut self, binding: Binding, element: &'static str, writes: bool) -> String {
        let known = |s: &Slot| s.binding == binding && s.element == element;
        let at = match self.slots.iter().position(known) {
            Some(at) => at,
            None => {
                let is_free = |name: &&&str| self.slots.iter().all(|slot| slot.name != **name);
                let own: &'static str = NAMES.iter().find(is_free).unwrap_or(&NAMES[0]);
                let (name, ty) = match binding {
                    Binding::Memory(_) | Binding::Custom(_) | Binding::Table(_) => (own, format!("array<{element}>")),
                    Binding::InlineScalars => ("inline_scalars", format!("array<vec4<u32>, {}>", INLINE_SCALARS / 4)),
                    Binding::Scalars => ("scalars", "array<u32>".to_owned()),
                    Binding::Fault => ("fault", "array<atomic<u32>>".to_owned()),
                    Binding::Guard => ("guard", "array<u32>".to_owned()),
                    Binding::Reporter => ("reporter", "u32".to_owned()),
                };
                self.slots.push(Slot {
                    binding,
                    name,
                    ty,
                    element,
                    writes,
                });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[at];
        slot.writes |= writes;
        slot.name.to_owned()
    }

    /// Binds memory as an array of elements of a dtype, and returns the name of the variable. In half precision, an
    /// array element is a word with two elements.
    pub(crate) fn array(&mut self, memory: Memory, dtype: DType, writes: bool) -> String {
        let element = match dtype {
            DType::F16 | DType::BF16 => "u32",
            other => wgsl_type(other),
        };
        self.slot(Binding::Memory(memory), element, writes)
    }

    /// Binds a table of constants, and returns the name of the variable.
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

    /// Returns the input of the kernel generation.
    pub(crate) fn cx(&self) -> &'a CompileCx<'a> {
        self.cx
    }

    /// Returns true if the kernel may use the device's conversion of `f16`: it is exact, or the kernel rounds to
    /// `f16` anyway.
    fn converts_f16(&mut self) -> bool {
        if self.cx.features.exact_f16 {
            self.enable(F16);
        }
        self.enabled.contains(&F16)
    }

    /// Returns an element of an operand, in the type of its computation.
    pub(crate) fn load(&mut self, operand: usize, index: &str) -> String {
        let dtype = self.cx.kernel.inputs[operand].dtype;
        match self.cx.inputs[operand] {
            Source::Constant(bits) => literal(dtype, bits),
            Source::Scalar(location) => {
                let word = if location < INLINE_SCALARS {
                    let name = self.slot(Binding::InlineScalars, "u32", false);
                    format!("{name}[{}u][{}u]", location / 4, location % 4)
                } else {
                    format!("{}[{location}u]", self.slot(Binding::Scalars, "u32", false))
                };
                match dtype {
                    DType::U32 => word,
                    // The lower half of the word contains the number.
                    DType::F16 | DType::BF16 => format!("{dtype}_to_f32({word} & 0xffffu)"),
                    _ => format!("bitcast<{}>({word})", wgsl_type(dtype)),
                }
            }
            Source::Memory(memory) => {
                let dtype = self.cx.stored_dtype(memory, dtype);
                if dtype == DType::F16 && self.converts_f16() {
                    return format!("f32({}[{index}])", self.slot(Binding::Memory(memory), F16, false));
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

    /// Returns four elements of a float operand. The first one has the index `4 * index`. Returns `None` if the
    /// operand is not in a buffer, or if there are no such vectors of its dtype. If a kernel also reads single
    /// elements of the operand, the operand is bound twice.
    pub(crate) fn load_vector(&mut self, operand: usize, index: &str) -> Option<String> {
        if let Some(halves) = self.load_f16(operand, index) {
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

    /// Returns four elements like `load_vector`, but only of `f32`, and also of an operand that the kernel
    /// overwrites. The kernel may read only elements that the same thread writes.
    pub(crate) fn load_own_vector(&mut self, operand: usize, index: &str) -> Option<String> {
        let Source::Memory(memory) = self.cx.inputs[operand] else {
            return None;
        };
        let dtype = self.cx.stored_dtype(memory, self.cx.kernel.inputs[operand].dtype);
        (dtype == DType::F32).then(|| format!("{}[{index}]", self.slot(Binding::Memory(memory), "vec4<f32>", false)))
    }

    /// Returns `count` adjacent words of an operand. The first one has the index `count * index`. Returns `None` if
    /// the operand is not in a buffer.
    pub(crate) fn load_words(&mut self, operand: usize, count: usize, index: &str) -> Option<String> {
        let memory = self.cx.memory_of(operand)?;
        Some(format!(
            "{}[{index}]",
            self.slot(Binding::Memory(memory), words(count), false)
        ))
    }

    /// Returns four elements like `load_vector`, but as `vec4<f16>` without conversion. Returns `None` if the operand
    /// is not stored as `f16`, or the module does not support [`F16`].
    pub(crate) fn load_f16(&mut self, operand: usize, index: &str) -> Option<String> {
        let (memory, dtype) = self.cx.stored_input(operand)?;
        (dtype == DType::F16 && self.converts_f16())
            .then(|| format!("{}[{index}]", self.slot(Binding::Memory(memory), "vec4<f16>", false)))
    }

    /// Returns a statement that stores an element of a result. The dtype of the result must not be half precision.
    pub(crate) fn store(&mut self, output: usize, index: &str, value: &str) -> String {
        let (memory, dtype) = (self.cx.outputs[output], self.cx.kernel.outputs[output].dtype);
        if self.cx.stored_output(output) != dtype {
            self.enable(F16);
            let name = self.slot(Binding::Memory(memory), F16, true);
            return format!("{name}[{index}] = {F16}({value});\n");
        }
        let name = self.array(memory, dtype, true);
        format!("{name}[{index}] = {value};\n")
    }

    /// Returns a statement that stores four elements of an `f32` result. The first one has the index `4 * index`.
    /// Returns `None` for other dtypes.
    pub(crate) fn store_vector(&mut self, output: usize, index: &str, value: &str) -> Option<String> {
        let (memory, dtype) = (self.cx.outputs[output], self.cx.kernel.outputs[output].dtype);
        let element = match (dtype, self.cx.stored_output(output)) {
            (DType::F32, DType::F32) => "vec4<f32>",
            (DType::F32, DType::F16) => {
                self.enable(F16);
                "vec4<f16>"
            }
            _ => return None,
        };
        let name = self.slot(Binding::Memory(memory), element, true);
        Some(format!("{name}[{index}] = {element}({value});\n"))
    }

    /// Binds a scratch buffer as an array of `vec4<f32>`, and returns the name of the variable.
    pub(crate) fn scratch_vectors(&mut self, memory: Memory) -> String {
        self.slot(Binding::Memory(memory), "vec4<f32>", true)
    }

    /// Binds a scratch buffer as an array of `vec4<u32>`, and returns the name of the variable.
    pub(crate) fn scratch_words(&mut self, memory: Memory) -> String {
        self.slot(Binding::Memory(memory), words(4), true)
    }

    /// Binds a scratch buffer as an array of `vec4<f16>`, and returns the name of the variable.
    pub(crate) fn scratch_halves(&mut self, memory: Memory) -> String {
        self.enable(F16);
        self.slot(Binding::Memory(memory), "vec4<f16>", true)
    }

    /// Binds the buffers that the module needs to report faults.
    pub(crate) fn uses_faults(&mut self) {
        self.slot(Binding::Fault, "atomic", true);
        self.slot(Binding::Reporter, "u32", false);
    }

    /// Returns an index below `rows`: the value of the expression, or 0 if it is out of range. Such a value is
    /// reported as a fault.
    pub(crate) fn checked_index(&mut self, index: &str, rows: usize) -> String {
        self.uses_faults();
        format!("checked_index({index}, {rows}u)")
    }

    /// Creates the launch of a module that runs `code` for each number `i` below `count`.
    ///
    /// # Errors
    /// As [`Module::finish_template`].
    pub(crate) fn finish_elements(self, code: String, count: usize) -> Result<Launch, String> {
        self.finish_template_elements(Template::new(files::POINTWISE).insert("elements", code), count)
    }

    /// Binds a buffer that the kernel file declares.
    pub(crate) fn bind(&mut self, name: &'static str, memory: Memory) {
        self.bound.push((name, memory));
    }

    /// Creates the launch of a module from a kernel file, with `groups` workgroups.
    ///
    /// # Errors
    /// There are too many bindings or workgroups, the [`Template`] cannot be expanded, or one of its buffers is not
    /// [bound](Module::bind).
    pub(crate) fn finish_template(self, template: Template, groups: usize) -> Result<Launch, String> {
        let template = template.with(&self.items);
        let expanded = template.expand()?;
        let launch = self.finish_expanded(&expanded, groups)?;
        Ok(launch.of_template(template))
    }

    /// Creates the launch of a module from a kernel file, with one thread for each of `count` elements.
    ///
    /// # Errors
    /// As [`Module::finish_template`].
    pub(crate) fn finish_template_elements(self, template: Template, count: usize) -> Result<Launch, String> {
        let template = template.size("COUNT", count).with(&self.items);
        let expanded = template.expand()?;
        let launch = self.finish_expanded(&expanded, count.div_ceil(expanded.threads.max(1)))?;
        Ok(launch.of_template(template))
    }

    fn finish_expanded(mut self, expanded: &Expanded, groups: usize) -> Result<Launch, String> {
        // Remove bindings that are read only by unused default functions or unreachable code.
        let names: HashSet<&str> = names(&expanded.text).into_iter().collect();
        self.slots.retain(|slot| names.contains(slot.name));
        for buffer in &expanded.buffers {
            let memory = self.bound.iter().find(|(name, _)| *name == buffer.name);
            let (_, memory) = memory.ok_or_else(|| format!("the buffer '{}' is not bound", buffer.name))?;
            self.slots.push(Slot {
                binding: Binding::Memory(*memory),
                name: buffer.name,
                ty: format!("array<{}>", buffer.element),
                // The kernel file reads the slot by this name. A unique name separates it from other slots of the
                // same memory.
                element: buffer.name,
                writes: buffer.writes,
            });
        }
        let (begin, workgroups) = self.begin(groups)?;
        for extension in [F16, COOP] {
            if expanded.enables.contains(&extension) {
                self.enable(extension);
            }
        }
        let text = expanded.text.replacen(WORKGROUP, begin.trim_end(), 1);
        self.launch(expanded.kernel, &text, workgroups)
    }

    /// Returns the first statements of a workgroup, and the numbers of workgroups to launch. The statements check
    /// whether to skip the launch, and compute the index of the workgroup.
    fn begin(&mut self, groups: usize) -> Result<(String, [u32; 3]), String> {
        let skip = self.cx.skip_if.map(|buffer| Binding::Memory(Memory::Buffer(buffer)));
        let skip = skip.map(|binding| self.slot(binding, "u32", false));
        if self.slots.len() > MAX_BINDINGS {
            return Err(format!(
                "it has {} operands and results, more than a kernel binds",
                self.slots.len()
            ));
        }
        let [x, y] = fold(groups)?;
        let mut begin = String::new();
        if let Some(skip) = skip {
            let _ = writeln!(begin, "if ({skip}[0] != 0u) {{\nreturn;\n}}");
        }
        match y {
            1 => begin.push_str("let group_number = group.x;\n"),
            _ => {
                let _ = writeln!(begin, "let group_number = group.y * {x}u + group.x;");
                if x * y != groups {
                    let _ = writeln!(begin, "if (group_number >= {groups}u) {{\nreturn;\n}}");
                }
            }
        }
        Ok((begin, [x as u32, y as u32, 1]))
    }

    /// Creates the launch of a module. `code` contains all declarations except the bindings.
    fn launch(self, kernel: &'static str, code: &str, groups: [u32; 3]) -> Result<Launch, String> {
        let mut source: String = self.enabled.iter().map(|name| format!("enable {name};\n")).collect();
        for slot in &self.slots {
            let space = match (slot.binding, slot.writes) {
                (Binding::Reporter | Binding::InlineScalars, _) => "uniform",
                (_, true) => "storage, read_write",
                (_, false) => "storage, read",
            };
            let _ = writeln!(source, "var<{space}> {}: {};", slot.name, slot.ty);
        }
        source.push_str(code);
        Ok(Launch {
            kernel,
            source: indented(&source),
            bindings: self.slots.iter().map(|s| s.binding).collect(),
            names: self.slots.iter().map(|s| s.name).collect(),
            tables: self.tables,
            groups,
            coop: self.enabled.contains(&COOP),
            library: None,
            schedule: None,
            chosen: None,
            replacements: None,
        })
    }
}

/// Indents lines according to the enclosing brackets.
fn indented(code: &str) -> String {
    let mut out = String::with_capacity(code.len() * 5 / 4);
    let mut depth = 0_usize;
    for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let closes = usize::from(line.starts_with(['}', ')']));
        out.extend(std::iter::repeat_n("    ", depth.saturating_sub(closes)));
        out.extend([line, "\n"]);
        let text = line.split("//").next().unwrap_or_default();
        let count = |brackets: [char; 2]| text.matches(brackets).count();
        depth = (depth + count(['{', '('])).saturating_sub(count(['}', ')']));
    }
    out
}

/// Splits a number of workgroups into two dimensions, with as few additional workgroups as possible.
fn fold(groups: usize) -> Result<[usize; 2], String> {
    if groups <= MAX_GROUPS {
        return Ok([groups, 1]);
    }
    let y = groups.div_ceil(MAX_GROUPS);
    if y > MAX_GROUPS {
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
        assert!(x <= MAX_GROUPS && x * y >= 1_000_000);
        assert!(fold(usize::MAX / 2).is_err());
    }
}
