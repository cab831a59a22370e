//! Check that a kernel contains only permitted parts.

use std::collections::HashSet;

use super::uniform;
use naga::valid::{FunctionInfo, GlobalUse, ModuleInfo};
use naga::{
    AddressSpace, ArraySize, Binding, Block, BuiltIn, Expression, Function, GlobalVariable, Handle, Module, ScalarKind,
    ShaderStage, Statement, StorageAccess, Type, TypeInner, VectorSize,
};

/// Maximum number of threads of a workgroup.
const MAX_THREADS: u32 = 256;
/// Maximum size of workgroup memory in bytes, which every device supports.
const SHARED_BYTES: u32 = 16 << 10;
/// Maximum size of a thread's private memory, in bytes.
const OWN_BYTES: u32 = 4 << 10;
/// Maximum number of statements and expressions; functions count once per call.
const MAX_PARTS: usize = 20_000;

/// A buffer that a kernel declares.
pub(super) struct Buffer {
    pub(super) variable: Handle<GlobalVariable>,
    pub(super) name: String,
    /// `true` if the declaration allows writes.
    pub(super) writes: bool,
    /// `true` if the kernel writes it.
    pub(super) is_written: bool,
    pub(super) kind: ScalarKind,
    /// Number of components of an element of its array: 1 for scalars, 2 to 4 for vectors.
    pub(super) lanes: u32,
}

/// Checks a valid module, except its individual expressions, and returns its buffers.
///
/// # Errors
/// The forbidden part.
pub(super) fn check(module: &Module, info: &ModuleInfo) -> Result<Vec<Buffer>, String> {
    let [entry] = &module.entry_points[..] else {
        return Err(format!(
            "it has {} entry points instead of one",
            module.entry_points.len()
        ));
    };
    if entry.stage != ShaderStage::Compute || entry.workgroup_size_overrides.is_some() {
        return Err("its entry point is not a compute shader with a constant size".into());
    }
    let threads = entry.workgroup_size.iter().try_fold(1u32, |a, &b| a.checked_mul(b));
    if !threads.is_some_and(|threads| (1..=MAX_THREADS).contains(&threads)) {
        return Err(format!(
            "its workgroups have {:?} threads; {MAX_THREADS} are allowed",
            entry.workgroup_size
        ));
    }
    if !module.overrides.is_empty() {
        return Err("it has overrides; sizes and attributes are constants with their names".into());
    }
    for argument in &entry.function.arguments {
        if !matches!(argument.binding, Some(Binding::BuiltIn(builtin)) if is_known(builtin)) {
            return Err("its entry point has arguments other than ids of threads and workgroups".into());
        }
    }
    let buffers = globals(module, info)?;
    if module
        .types
        .iter()
        .any(|(_, ty)| matches!(ty.inner, TypeInner::Atomic(_)))
    {
        return Err("it has atomics".into());
    }
    parts(module)?;
    for (_, function) in module.functions.iter() {
        for argument in &function.arguments {
            if is_pointer(&module.types[argument.ty].inner) {
                return Err("a function takes a pointer, whose accesses cannot be bounded".into());
            }
        }
        if uniform::has_barrier(&function.body) {
            return Err("a function contains a barrier; move it to the entry point".into());
        }
    }
    memory_of_thread(module, info)?;
    uniform::check(&entry.function)?;
    Ok(buffers)
}

fn is_known(builtin: BuiltIn) -> bool {
    matches!(
        builtin,
        BuiltIn::GlobalInvocationId
            | BuiltIn::LocalInvocationId
            | BuiltIn::LocalInvocationIndex
            | BuiltIn::WorkGroupId
            | BuiltIn::NumWorkGroups
    )
}

fn is_pointer(inner: &TypeInner) -> bool {
    matches!(inner, TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. })
}

fn bytes(module: &Module, ty: Handle<Type>) -> u32 {
    module.types[ty].inner.try_size(module.to_ctx()).unwrap_or(u32::MAX)
}

fn globals(module: &Module, info: &ModuleInfo) -> Result<Vec<Buffer>, String> {
    let (mut shared, mut own) = (0u32, 0u32);
    let mut buffers = Vec::new();
    for (variable, global) in module.global_variables.iter() {
        let name = global.name.clone().unwrap_or_default();
        match global.space {
            AddressSpace::WorkGroup => shared = shared.saturating_add(bytes(module, global.ty)),
            AddressSpace::Private => own = own.saturating_add(bytes(module, global.ty)),
            AddressSpace::Storage { access } => {
                // An unused variable needs no binding.
                let used = info.get_entry_point(0)[variable];
                if used.is_empty() {
                    continue;
                }
                let (kind, lanes) = elements(module, global.ty).ok_or_else(|| {
                    format!(
                        "'{name}' is not an array<T> of f32, u32, i32, or of vectors of two or \
                        four of them"
                    )
                })?;
                if access.intersects(StorageAccess::ATOMIC) {
                    return Err(format!("'{name}' is changed atomically"));
                }
                buffers.push(Buffer {
                    variable,
                    name,
                    writes: access.contains(StorageAccess::STORE),
                    is_written: used.contains(GlobalUse::WRITE),
                    kind,
                    lanes,
                });
            }
            _ => return Err(format!("'{name}' is not a storage, workgroup or private variable")),
        }
    }
    match (shared, own) {
        (shared, _) if shared > SHARED_BYTES => Err(format!(
            "its workgroups share {shared} bytes; {SHARED_BYTES} are allowed"
        )),
        (_, own) if own > OWN_BYTES => Err(format!(
            "its threads have {own} bytes of their own; {OWN_BYTES} are allowed"
        )),
        _ => Ok(buffers),
    }
}

/// Returns the scalar type and the number of components of an array's elements.
fn elements(module: &Module, ty: Handle<Type>) -> Option<(ScalarKind, u32)> {
    let TypeInner::Array {
        base,
        size: ArraySize::Dynamic,
        ..
    } = module.types[ty].inner
    else {
        return None;
    };
    let (scalar, lanes) = match module.types[base].inner {
        TypeInner::Scalar(scalar) => (scalar, 1),
        TypeInner::Vector {
            size: VectorSize::Bi,
            scalar,
        } => (scalar, 2),
        TypeInner::Vector {
            size: VectorSize::Quad,
            scalar,
        } => (scalar, 4),
        _ => return None,
    };
    let known = matches!(scalar.kind, ScalarKind::Float | ScalarKind::Uint | ScalarKind::Sint) && scalar.width == 4;
    known.then_some((scalar.kind, lanes))
}

/// Limits the private memory of a thread: variables, and arrays and structures as values, in all
/// functions that may be on the call stack at the same time.
fn memory_of_thread(module: &Module, info: &ModuleInfo) -> Result<(), String> {
    let mut known: Vec<u32> = Vec::new();
    for (handle, function) in module.functions.iter() {
        known.push(memory(module, function, &info[handle], &known));
    }
    let private = module.global_variables.iter();
    let private = private.filter(|(_, v)| v.space == AddressSpace::Private);
    let private = private.fold(0u32, |sum, (_, v)| sum.saturating_add(bytes(module, v.ty)));
    for (number, entry) in module.entry_points.iter().enumerate() {
        known.push(memory(module, &entry.function, info.get_entry_point(number), &known).saturating_add(private));
    }
    match known.into_iter().max().filter(|&own| own > OWN_BYTES) {
        None => Ok(()),
        Some(own) => Err(format!(
            "its threads have {own} bytes of variables and of arrays and structures that are values; {OWN_BYTES} are allowed"
        )),
    }
}

/// Returns the private bytes of a function, including the largest function that it calls. `known` contains the bytes of
/// the functions before it, which include all called ones.
fn memory(module: &Module, function: &Function, info: &FunctionInfo, known: &[u32]) -> u32 {
    let locals = function.local_variables.iter().map(|(_, local)| local.ty);
    let arguments = function.arguments.iter().map(|argument| argument.ty);
    let is_large = |ty: &Handle<Type>| {
        let inner = &module.types[*ty].inner;
        matches!(inner, TypeInner::Array { .. } | TypeInner::Struct { .. })
    };
    let mut constants = HashSet::new();
    let values = function.expressions.iter().filter_map(|(handle, expression)| {
        let again = match expression {
            Expression::Constant(constant) => !constants.insert(*constant),
            _ => false,
        };
        let ty = info[handle].ty.handle().filter(|_| !again);
        // Variables and buffers are pointers.
        ty.filter(is_large)
    });
    let values: Vec<Handle<Type>> = values.collect();
    let all = locals.chain(arguments.filter(is_large)).chain(values);
    let own = all.fold(0u32, |sum, ty| sum.saturating_add(bytes(module, ty)));
    let mut called = 0;
    statements(&function.body, &mut |statement| {
        if let Statement::Call { function, .. } = statement {
            called = called.max(known.get(function.index()).copied().unwrap_or(u32::MAX));
        }
    });
    own.saturating_add(called)
}

/// Checks the amount of code that a driver has to compile after it inlines all functions.
fn parts(module: &Module) -> Result<(), String> {
    let mut known: Vec<usize> = Vec::new();
    let all = module.functions.iter().map(|(_, f)| f);
    for function in all.chain(module.entry_points.iter().map(|e| &e.function)) {
        let mut count = function.expressions.len();
        statements(&function.body, &mut |statement| {
            count = count.saturating_add(match statement {
                Statement::Call { function, .. } => known.get(function.index()).copied().unwrap_or(MAX_PARTS),
                _ => 1,
            });
        });
        if count > MAX_PARTS {
            return Err(format!(
                "it has more than {MAX_PARTS} statements and expressions, counted where they are called"
            ));
        }
        known.push(count);
    }
    Ok(())
}

/// Calls `visit` with every statement of a block and of its nested blocks.
pub(super) fn statements<'a>(block: &'a Block, visit: &mut impl FnMut(&'a Statement)) {
    for statement in block.iter() {
        visit(statement);
        match statement {
            Statement::Block(inner) => statements(inner, visit),
            Statement::If { accept, reject, .. } => {
                statements(accept, visit);
                statements(reject, visit);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| statements(&case.body, visit)),
            Statement::Loop { body, continuing, .. } => {
                statements(body, visit);
                statements(continuing, visit);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(body: &str) -> Result<Vec<Buffer>, String> {
        let text = format!(
            "@group(0) @binding(0) var<storage> x: array<f32>;\n\
             @group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;\n{body}"
        );
        let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
        let flags = naga::valid::ValidationFlags::all();
        let info = naga::valid::Validator::new(flags, naga::valid::Capabilities::empty()).validate(&module);
        check(&module, &info.map_err(|e| format!("{e:?}"))?)
    }

    const MAIN: &str = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>)";

    #[test]
    fn buffers_are_found() {
        let buffers = checked(&format!("{MAIN} {{ y[id.x] = vec4(x[id.x]); }}")).expect("fine");
        let found: Vec<(&str, bool, u32)> = buffers.iter().map(|b| (b.name.as_str(), b.writes, b.lanes)).collect();
        assert_eq!(found, [("x", false, 1), ("y", true, 4)]);
        assert_eq!(
            checked(&format!("{MAIN} {{ }}")).expect("fine").len(),
            0,
            "none is used"
        );
    }

    #[test]
    fn calls_one_after_the_other_share_their_memory() {
        let text = format!(
            "fn f(i: u32) -> f32 {{ var a: array<f32, 500>; return a[i]; }}\n\
             {MAIN} {{ y[0] = vec4(f(id.x) + f(id.y) + f(id.z)); }}"
        );
        checked(&text).expect("each needs 2000 bytes");
    }

    #[test]
    fn what_cannot_be_bounded_is_refused() {
        let main = |body: &str| format!("{MAIN} {{ {body} }}");
        let many = |n: usize| {
            let mut text = String::from("fn f0(a: f32) -> f32 { return a * a + a; }\n");
            for i in 1..n {
                text += &format!("fn f{i}(a: f32) -> f32 {{ return f{0}(a) + f{0}(a + 1.0); }}\n", i - 1);
            }
            text + &main(&format!("y[0] = vec4(f{}(x[0]));", n - 1))
        };
        let cases = [
            ("@compute @workgroup_size(512) fn main() { }".to_owned(), "threads"),
            ("fn f() { }".to_owned(), "0 entry points"),
            (
                format!("override n: u32 = 3; {}", main("y[0] = vec4(f32(n));")),
                "overrides",
            ),
            (
                format!("var<workgroup> s: array<f32, 5000>; {}", main("s[0] = 1.0;")),
                "share 20000 bytes",
            ),
            (
                format!("var<private> s: array<f32, 5000>; {}", main("s[0] = 1.0;")),
                "20000 bytes of their own",
            ),
            (
                main("var s: array<f32, 2000>; s[id.x] = 1.0;"),
                "8000 bytes of variables",
            ),
            // Arrays that are in no variable.
            (
                main("let a = array<f32, 2000>(); y[0] = vec4(a[id.x]);"),
                "8000 bytes of variables",
            ),
            (
                format!(
                    "fn f(a: array<f32, 600>) -> f32 {{ return a[3]; }} {}",
                    main("var a: array<f32, 600>; y[0] = vec4(f(a));")
                ),
                "bytes of variables",
            ),
            (
                format!(
                    "struct S {{ a: array<f32, 1200> }} fn f() -> S {{ return S(); }} {}",
                    main("y[0] = vec4(f().a[id.x]);")
                ),
                "bytes of variables",
            ),
            // Functions that are on the call stack together: each is within the limit, but not their sum.
            (
                format!(
                    "fn f(i: u32) -> f32 {{ var a: array<f32, 500>; return a[i]; }}\n\
                     fn g(i: u32) -> f32 {{ var a: array<f32, 500>; return a[i] + f(i); }}\n{}",
                    main("var a: array<f32, 500>; y[0] = vec4(a[id.x] + g(id.x));")
                ),
                "6000 bytes of variables",
            ),
            (
                format!(
                    "var<private> p: array<f32, 700>; {}",
                    main("var a: array<f32, 700>; y[0] = vec4(a[id.x] + p[id.x]);")
                ),
                "5600 bytes of variables",
            ),
            (
                format!("var<workgroup> c: atomic<u32>; {}", main("atomicStore(&c, 1u);")),
                "atomics",
            ),
            (many(20), "statements and expressions"),
            (main("if (id.x < 3u) { workgroupBarrier(); }"), "in a branch or loop"),
            (
                main("for (var i = 0u; i < id.x; i++) { workgroupBarrier(); }"),
                "in a branch or loop",
            ),
            (main("if (x[id.x] > 0.0) { return; } workgroupBarrier();"), ""),
            (
                format!("fn f() {{ workgroupBarrier(); }} {}", main("f();")),
                "a function contains a barrier",
            ),
            (
                format!(
                    "fn f(p: ptr<function, array<f32, 4>>) {{ (*p)[9] = 1.0; }} {}",
                    main("var a: array<f32, 4>; f(&a);")
                ),
                "",
            ),
            (
                format!(
                    "@group(0) @binding(2) var<storage, read_write> z: array<atomic<u32>>; {}",
                    main("atomicAdd(&z[0], 1u);")
                ),
                "not an array<T>",
            ),
            (
                format!(
                    "@group(0) @binding(2) var<storage, read_write> z: array<vec3<f32>>; {}",
                    main("z[0].x = 1.0;")
                ),
                "not an array<T>",
            ),
            (
                format!("@group(0) @binding(2) var<uniform> z: vec4<f32>; {}", main("y[0] = z;")),
                "not a storage",
            ),
        ];
        for (text, words) in cases {
            let error = checked(&text).err().unwrap_or_else(|| panic!("{text} is let through"));
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
