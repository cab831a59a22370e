use super::*;

const FILE: KernelFile = KernelFile {
    name: "example",
    text: "\
// An example.
enable f16;

alias Element = f32;
const TILES: u32 = 1u;
const STEP: u32 = TILES * 4u;
const SCALE: f32 = 1.0;
const THREADS: u32 = 64u;
const i: u32 = 0u; // index of repeats
const j: u32 = 0u;

var<storage, read> a: array<vec4<Element>>;
var<storage, read_write> out: array<Element>;
var<workgroup> unused: array<u32, 4>;

// What is read.
fn load(k: u32) -> Element {
    return a[k].x; // } {
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    // @repeat i < TILES, j < 2
    var sum_i_j = load(i * STEP + j);
    // @end
    // @if TILES == 1
    out[local] = sum_0_0 * SCALE;
    // @else
    out[local] = max_f32(sum_0_0, sum_1_1) * SCALE;
    // @end
}
",
};

#[test]
fn directives_constants_and_bodies_are_followed() {
    let template = Template::new(FILE).size("TILES", 2).value("SCALE", "2.5");
    let plain = template.expand().expect("an expansion");
    assert_eq!(plain.threads, 64);
    for line in [
        "const STEP: u32 = 8u;",
        "var sum_1_0 = load(1u * STEP + 0u);",
        "const SCALE: f32 = 2.5;",
        "fn max_f32(",
    ] {
        assert!(plain.text.contains(line), "{line} in\n{}", plain.text);
    }
    assert!(!plain.text.contains("unused") && !plain.text.contains("* SCALE;\n    // @"));
    let names: Vec<(&str, &str, bool)> = plain.buffers.iter().map(|b| (b.name, &*b.element, b.writes)).collect();
    assert_eq!(names, [("a", "vec4<Element>", false), ("out", "Element", true)]);

    let template = template
        .alias("Element", "f16")
        .returns("load", "let x = b0[k];\n", "x");
    let replaced = template.expand().expect("an expansion");
    assert!(
        replaced
            .text
            .contains("fn load(k: u32) -> Element {\nlet x = b0[k];\nreturn x;\n}"),
        "{}",
        replaced.text
    );
    assert!(replaced.text.contains("alias Element = f16;"));
    assert_eq!(
        replaced.buffers.len(),
        1,
        "nothing reads the default's buffer:\n{}",
        replaced.text
    );
    assert_eq!(replaced.enables, ["f16"]);
}

#[test]
fn errors_name_the_kernel_and_the_name() {
    let unknown = |template: Template| template.expand().expect_err("an unknown name");
    for (template, expected) in [
        (
            Template::new(FILE).size("TILE", 2),
            "kernels/example.wgsl: there is no constant 'TILE'",
        ),
        (
            Template::new(FILE).alias("Type", "f16"),
            "kernels/example.wgsl: there is no alias 'Type' to replace",
        ),
        (
            Template::new(FILE).body("store", ""),
            "kernels/example.wgsl: there is no function 'store' to replace",
        ),
        (
            Template::new(FILE).with("const STEP: u32 = 1u;"),
            "kernels/example.wgsl: there are two items 'STEP'",
        ),
    ] {
        assert_eq!(unknown(template), expected);
    }
    let file = |text: &'static str| Template::new(KernelFile { name: "x", text });
    for (text, expected) in [
        ("// @repeat i < 2", "has no '@end'"),
        ("// @end", "'@end' stands alone"),
        ("// @for i\n// @end", "'@for' stands alone, or is no directive"),
        ("// @if N\n// @end", "'N' has no value"),
        ("const N: u32 = 1u - 2u;", "1 - 2 has no value"),
        ("fn main() {\n", "does not end"),
        ("let x = 1;", "begins no item"),
        ("", "there is no entry point"),
        ("@compute @workgroup_size(1)\nfn main() {\n}", "does not say"),
        (
            "const N: u32 = 1000u;\n// @repeat a < N, b < N\nx\n// @end",
            "becomes too long",
        ),
    ] {
        let error = unknown(file(text));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn expressions_have_values() {
    let values = HashMap::from([("N".to_owned(), 12), ("M".to_owned(), 5)]);
    let value = |text: &str| expression::evaluate(text, &values);
    for (text, expected) in [
        ("N / M * 2u + 1", 5),
        ("(N + M) % 4 == 1 && !(N < M)", 1),
        ("min(N, M) + max(N, 20u)", 25),
        ("N != 12u || false", 0),
        ("true", 1),
        ("N >= 12 && M <= 4", 0),
    ] {
        assert_eq!(value(text), Ok(expected), "{text}");
    }
    for text in ["", "N +", "K", "1 2", "(N", "N / 0", "0 - 1", "min(N M)"] {
        assert!(value(text).is_err(), "{text}");
    }
}
