//! Tests of rewritten kernels.

use meganeura_core::{DType, Shape, TensorType};
use naga::{ArraySize, Expression, Function, Handle, Literal, MathFunction, TypeInner};

use super::*;

const X: usize = 12;
const Y: usize = 20;
/// Limits of one workgroup of 64 threads, each of which may evaluate `PARTS` parts.
const ALLOWED: WorkLimits = WorkLimits {
    groups: 1,
    parts: 64 * PARTS,
    rounds: None,
};
const PARTS: u64 = 4 * 12_345;

fn translated(body: &str) -> Result<String, String> {
    let tensor = |name, buffer, n| Tensor {
        name,
        buffer,
        ty: TensorType::new(DType::F32, Shape::new(&[n]).expect("a shape")),
    };
    let tensors = [
        tensor("x", ShaderBuffer::Operand(0), X),
        tensor("y", ShaderBuffer::Result(0), Y),
    ];
    let text = format!(
        "@group(0) @binding(0) var<storage> x: array<vec4<f32>>;\n\
         @group(0) @binding(1) var<storage, read_write> y: array<f32>;\n{body}"
    );
    let translated = on_large_stack(|| translate(&text::prepare(&text)?, &tensors, &ALLOWED))?;
    assert_eq!(translated.reports, translated.source.contains(SHADER_FAULT));
    Ok(translated.source)
}

const MAIN: &str = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>)";

/// Returns the number of elements of the array, vector or matrix `base`. It uses only the types of the module.
fn length(module: &Module, info: &ModuleInfo, function: &Function, base: Handle<Expression>) -> u32 {
    let info = info.get_entry_point(0);
    let of = |inner: &TypeInner| match *inner {
        TypeInner::Array {
            size: ArraySize::Constant(n),
            ..
        } => n.get(),
        TypeInner::Array { .. } => match function.expressions[base] {
            Expression::GlobalVariable(v) if module.global_variables[v].name.as_deref() == Some("buffer_a") => {
                X as u32 / 4
            }
            Expression::GlobalVariable(_) => Y as u32,
            ref other => panic!("{other:?}"),
        },
        TypeInner::Vector { size, .. } => size as u32,
        TypeInner::Matrix { columns, .. } => columns as u32,
        ref other => panic!("{other:?}"),
    };
    match *info[base].ty.inner_with(&module.types) {
        TypeInner::Pointer { base, .. } => of(&module.types[base].inner),
        TypeInner::ValuePointer { size: Some(size), .. } => size as u32,
        ref inner => of(inner),
    }
}

/// Checks that every index of the entry point is clamped or a constant within bounds. Returns their
/// number.
fn all_bounded(source: &str) -> usize {
    let module = naga::front::wgsl::parse_str(source).expect("it is read again");
    let info = validate(&module, source).expect("it is valid");
    let function = &module.entry_points[0].function;
    let is_fault = |base: Handle<Expression>| match function.expressions[base] {
        Expression::GlobalVariable(v) => module.global_variables[v].name.as_deref() == Some(SHADER_FAULT),
        _ => false,
    };
    let mut seen = 0;
    for (_, expression) in function.expressions.iter() {
        match *expression {
            // The executor provides the fault words.
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } if is_fault(base) => {}
            Expression::Access { base, index } => {
                let Expression::Math {
                    fun: MathFunction::Min,
                    arg1: Some(last),
                    ..
                } = function.expressions[index]
                else {
                    panic!("an index is {:?} in\n{source}", function.expressions[index]);
                };
                let Expression::Literal(Literal::U32(last)) = function.expressions[last] else {
                    panic!("a bound is no number in\n{source}");
                };
                assert_eq!(last + 1, length(&module, &info, function, base), "{source}");
                seen += 1;
            }
            Expression::AccessIndex { base, index } => {
                assert!(index < length(&module, &info, function, base), "{source}");
                seen += 1;
            }
            _ => {}
        }
    }
    seen
}

#[test]
fn every_index_is_bounded() {
    let body = "\
        let i = id.x;\n\
        let s = i32(i) - 5;\n\
        y[i] = x[i].x;\n\
        y[s] = x[s + 100][i];\n\
        y[300] = 1.0;\n\
        x_like[i] = vec4(1.0);\n\
        let p = &x_like[i + 1u];\n\
        (*p)[i] = 2.0;\n\
        (*p).y = 3.0;\n\
        var m: mat3x3<f32>;\n\
        m[i][s] = 1.0;\n\
        var grid: array<array<f32, 3>, 5>;\n\
        grid[i][s] = m[i][i];\n\
        var few = vec3<u32>(i, i, i);\n\
        few[few[i]] = 4u;\n\
        const table = array<f32, 4>(1.0, 2.0, 3.0, 4.0);\n\
        y[arrayLength(&y)] = table[i] + grid[i][s] + shared_one[s];\n\
        for (var k = 0; k < 9; k++) { y[k] = y[k + 1] + f32(arrayLength(&x)); }\n";
    let source = translated(&format!(
        "var<workgroup> x_like: array<vec4<f32>, 7>;\nvar<private> shared_one: array<f32, 1>;\n{MAIN} {{\n{body}\n}}"
    ))
    .expect("it can be bounded");
    assert!(all_bounded(&source) > 20, "{source}");
    assert!(!source.contains("arrayLength"), "{source}");
}

#[test]
fn functions_are_rewritten_as_well() {
    let source = translated(&format!(
        "fn at(i: u32) -> f32 {{ loop {{ if (i > 3u) {{ return y[i]; }} }} return 0.0; }}\n{MAIN} {{ y[id.x] = at(id.x); }}"
    ))
    .expect("it can be bounded");
    assert_eq!(source.matches(&format!("{}u)", Y - 1)).count(), 2, "{source}");
    assert!(
        source.contains("12345u") && source.contains("atomicStore((&fault"),
        "{source}"
    );
}

#[test]
fn loops_that_are_seen_to_end_are_not_counted() {
    let with = |body: &str| translated(&format!("{MAIN} {{ {body} }}")).expect("it can be bounded");
    let seen = with("for (var k = 0u; k < 20u; k += 1u) { y[k] = 1.0; }");
    assert!(!seen.contains("fault") && !seen.contains("evaluated"), "{seen}");
    let counted = with("for (var k = 0u; k < id.x; k += 1u) { y[k] = 1.0; }");
    assert!(counted.contains("fault") && counted.contains("reporter"), "{counted}");
    // The total of all iterations exceeds the limit of a thread.
    let many = "for (var k = 0u; k < 100000u; k += 1u) { if (k > id.x) { break; } y[k] = 1.0; }";
    assert!(with(many).contains("fault"));
}

#[test]
fn what_all_threads_do_is_bounded() {
    let text = |groups: u64, body: &str| {
        let tensor = Tensor {
            name: "y",
            buffer: ShaderBuffer::Result(0),
            ty: TensorType::new(DType::F32, Shape::new(&[Y]).expect("a shape")),
        };
        let text = format!("var<storage, read_write> y: array<f32>;\n{MAIN} {{ {body} }}");
        let allowed = WorkLimits {
            groups,
            parts: parts(40, 40),
            rounds: None,
        };
        translate(&text, &[tensor], &allowed).map(|t| t.source)
    };
    let long = "y[id.x] = f32(id.x) + 1.0; ".repeat(50);
    assert!(text(1, &long).is_ok());
    let error = text(60_000, &long).expect_err("too many threads");
    assert!(
        error.contains("statements and expressions") && error.contains("are allowed"),
        "{error}"
    );
    // With more threads, the limit of each is lower.
    let rounds = |groups| {
        let source = text(groups, "loop { y[id.x] += 1.0; }").expect("it counts");
        let limit = source.split(">= ").nth(1).expect("a limit");
        let digits: String = limit.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number")
    };
    assert!(
        rounds(1) <= PARTS_OF_THREAD && rounds(1) >= 100 * rounds(1000),
        "{} {}",
        rounds(1),
        rounds(1000)
    );
}

/// On a device that ends loops by itself, the kernel leaves its loops earlier, and reports a fault.
#[test]
fn rounds_are_counted_where_devices_leave_loops() {
    let with = |rounds: Option<u32>, body: &str| {
        let tensor = Tensor {
            name: "y",
            buffer: ShaderBuffer::Result(0),
            ty: TensorType::new(DType::F32, Shape::new(&[Y]).expect("a shape")),
        };
        let text = format!("var<storage, read_write> y: array<f32>;\n{MAIN} {{ {body} }}");
        let allowed = WorkLimits { rounds, ..ALLOWED };
        translate(&text, &[tensor], &allowed).expect("it can be bounded").source
    };
    let endless = "loop { y[id.x] += 1.0; }";
    // A quarter of the iterations for these loops, and an eighth of that if threads take turns: 31
    // iterations.
    assert!(with(Some(1000), endless).contains("+ 399u") && !with(None, endless).contains("+ 399u"));
    let long = "for (var k = 0u; k < 600u; k += 1u) { y[id.x] += 1.0; }";
    assert!(with(Some(1000), long).contains("fault") && !with(Some(2000), long).contains("fault"));
}

#[test]
fn shared_memory_begins_with_zeros() {
    let source = translated(&format!(
        "var<workgroup> tile: array<vec2<f32>, 300>;\nvar<workgroup> count: u32;\n{MAIN} {{ y[id.x] = tile[id.x].y + f32(count); }}"
    ))
    .expect("it is fine");
    let barrier = source.find("workgroupBarrier()").expect("a barrier");
    let before = &source[..barrier];
    assert!(
        before.contains("vec2<f32>()") && before.contains("count = u32()") && before.contains("300u"),
        "{source}"
    );
    assert!(
        before.contains("local_invocation_index") && !before.contains("y["),
        "{source}"
    );
    let none = translated(&format!("{MAIN} {{ y[id.x] = 1.0; }}")).expect("it is fine");
    assert!(!none.contains("workgroupBarrier"), "{none}");
}

#[test]
fn names_of_buffers_are_given_once() {
    let source = translated(&format!(
        "struct buffer_a {{ buffer_b: f32 }}\nvar<private> buffer_c: f32;\n\
         fn buffer_b(buffer_a: f32) -> f32 {{ return buffer_a; }}\n\
         {MAIN} {{ var buffer_d: buffer_a; buffer_d.buffer_b = buffer_b(1.0); buffer_c = 2.0;\n\
         y[id.x] = x[0].x + buffer_d.buffer_b + buffer_c; }}"
    ))
    .expect("it is fine");
    assert!(
        source.contains("buffer_a: array<vec4<f32>>") && source.contains("buffer_b: array<f32>"),
        "{source}"
    );
}

#[test]
fn odd_sizes_have_no_kernel_of_vectors() {
    let tensor = Tensor {
        name: "x",
        buffer: ShaderBuffer::Operand(0),
        ty: TensorType::new(DType::F32, Shape::new(&[6]).expect("a shape")),
    };
    let text = format!("var<storage> x: array<vec4<f32>>;\nvar<workgroup> s: f32;\n{MAIN} {{ s = x[id.x].x; }}");
    let error = translate(&text, &[tensor], &ALLOWED).err().expect("6 are not 4 each");
    assert!(error.contains("not a multiple of 4"), "{error}");
}
