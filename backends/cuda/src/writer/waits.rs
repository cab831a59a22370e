//! Selection of the statement before which a kernel waits for earlier launches: its first one, or one that it marks.
//! Before this statement, it may load buffers that no earlier launch writes.

use std::collections::HashSet;

use naga::valid::{FunctionInfo, GlobalUse, ModuleInfo};
use naga::{EntryPoint, Expression, GlobalVariable, Handle, Module, Statement};

use super::context::is_buffer;

/// Name of the function that marks the position of the wait. It does nothing in WGSL, because other devices do not
/// begin launches early.
pub(super) const MARKER: &str = "await_earlier_launches";

/// Returns `true` if a module marks the position of the wait. Only then, the code depends on which buffers are
/// unwritten.
pub(crate) fn waits_late(source: &str) -> bool {
    source.contains(MARKER)
}

/// Returns the buffers that are read before the marker. Returns `None` unless the marker is in the outermost block of
/// the entry point, and the code before it only computes and reads.
pub(super) fn early_reads(
    module: &Module,
    info: &ModuleInfo,
    entry: &EntryPoint,
) -> Option<HashSet<Handle<GlobalVariable>>> {
    let mut reads = HashSet::new();
    let used = |info: &FunctionInfo| {
        let globals = module.global_variables.iter();
        let buffers = globals.filter(|(handle, variable)| is_buffer(variable.space) && !info[*handle].is_empty());
        buffers.map(|(handle, _)| (handle, info[handle])).collect::<Vec<_>>()
    };
    for statement in entry.function.body.iter() {
        match statement {
            Statement::Call { function, .. } => {
                if module.functions[*function].name.as_deref() == Some(MARKER) {
                    return Some(reads);
                }
                for (handle, what) in used(&info[*function]) {
                    if what.contains(GlobalUse::WRITE) {
                        return None;
                    }
                    reads.insert(handle);
                }
            }
            Statement::Emit(range) => {
                let loads = range
                    .clone()
                    .filter_map(|handle| match entry.function.expressions[handle] {
                        Expression::Load { pointer } => root(entry, pointer),
                        _ => None,
                    });
                reads.extend(loads.filter(|&handle| is_buffer(module.global_variables[handle].space)));
            }
            // This stores to a variable of the function.
            Statement::Store { pointer, .. } if root(entry, *pointer).is_none() => {}
            _ => return None,
        }
    }
    None
}

/// Returns the module's variable that a pointer points into, or `None` for other memory.
fn root(entry: &EntryPoint, mut pointer: Handle<Expression>) -> Option<Handle<GlobalVariable>> {
    loop {
        match entry.function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
            Expression::GlobalVariable(handle) => return Some(handle),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Call, Options, write, write_merged};
    use crate::wgsl::read;

    /// Returns the source of a kernel that reads `w` before it waits and `x` after it. `first` contains additional
    /// statements for the start.
    fn module(first: &str) -> String {
        format!(
            "var<storage, read> w: array<f32>;\nvar<storage, read> x: array<f32>;\nvar<storage, read_write> y: array<f32>;\n\
             fn load(i: u32) -> f32 {{ return w[i]; }}\nfn await_earlier_launches() {{}}\n\
             @compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n{first}\
             let i = id.x;\nvar sum = 0.0;\nlet own = load(i) + w[i + 1u];\nsum = own;\nawait_earlier_launches();\n\
             y[i] = sum * x[i];\n}}"
        )
    }

    fn options(unwritten: &[&str]) -> Options {
        Options {
            programmatic: true,
            unwritten: unwritten.iter().map(|&name| name.into()).collect(),
            ..Options::default()
        }
    }

    /// Returns the translated source without the prelude.
    fn written(text: &str, unwritten: &[&str]) -> String {
        let (module, info) = read(text).expect("valid");
        let source = write(&module, &info, "main", &options(unwritten))
            .expect("a kernel")
            .source;
        source
            .split_once("namespace kernel {")
            .expect("the kernel")
            .1
            .to_owned()
    }

    /// Returns `true` if the kernel waits before all other work.
    fn waits_first(source: &str) -> bool {
        let kernel = source.split_once("__global__").expect("a kernel").1;
        kernel
            .split_once(") {")
            .expect("its body")
            .1
            .trim_start()
            .starts_with("wgsl::wait_for_earlier_launches();")
    }

    #[test]
    fn what_nobody_writes_is_read_before_the_wait() {
        let late = written(&module(""), &["w"]);
        assert!(!waits_first(&late), "{late}");
        assert_eq!(late.matches("wait_for_earlier_launches").count(), 1, "{late}");
        // With `__restrict__`, the compiler would move loads of constant data after the wait.
        assert!(
            late.contains("const f32* w") && late.contains("const f32* __restrict__ x"),
            "{late}"
        );
        let waits = late.find("wait_for_earlier_launches").expect("a wait");
        let marker = late.find("void await_earlier_launches").expect("the marker");
        assert!(
            marker < waits && waits < late.find("__global__").expect("a kernel"),
            "{late}"
        );
    }

    #[test]
    fn all_else_waits_first() {
        for (first, unwritten) in [
            ("", &["x"][..]),
            ("if (x[0] != 0.0) { return; }\n", &["w", "x"]),
            ("y[0] = 0.0;\n", &["w", "x"]),
            ("let other = x[0];\n", &["w"]),
        ] {
            let source = written(&module(first), unwritten);
            assert!(waits_first(&source), "{first}{unwritten:?}: {source}");
            assert_eq!(source.matches("wait_for_earlier_launches").count(), 1, "{source}");
            assert!(!source.contains("const f32* w"), "{source}");
        }
        let unmarked = module("").replace("await_earlier_launches", "other");
        assert!(waits_first(&written(&unmarked, &["w"])));
    }

    #[test]
    fn parts_of_a_kernel_wait_each_for_itself() {
        let (marked, plain) = (module(""), module("").replace("await_earlier_launches();\n", ""));
        let modules = [&marked, &plain].map(|text| read(text).expect("valid"));
        let options = options(&["w"]);
        let modules: Vec<_> = modules.iter().map(|(module, info)| (module, info, &options)).collect();
        let call = |module| Call {
            module,
            blocks: [2, 1, 1],
            entry: "main",
        };
        let source = write_merged(&modules, &[call(0), call(1), call(0)])
            .expect("a kernel")
            .source;
        let parts = source.split_once("namespace part_0").expect("parts").1;
        assert_eq!(parts.matches("wait_for_earlier_launches").count(), 2, "{parts}");
        let kernel = parts.split_once("__global__").expect("a kernel").1;
        assert!(!kernel.contains("wait_for_earlier_launches"), "{kernel}");
    }
}
