//! Tests of faulty plugins: each is refused with the cause, and nothing of it is registered.

use std::collections::BTreeMap;

use meganeura_compiler::rewrite::rule_sets;
use meganeura_core::registry;
use meganeura_plugin_data::{Fault, Manifest, Plugin};

/// Manifest of the operator `twice`, in which tests replace parts.
const TWICE: &str = r#"
[[op]]
name = "twice"
formula = "2 x"
inputs = [{ name = "x", shape = ["..."] }]
outputs = [{ name = "y", shape = ["..."] }]
let = { y = "(core.mul x 2)" }
"#;

fn head(name: &str) -> String {
    format!("format = 1\nname = \"{name}\"\nversion = \"1.0\"\n")
}

fn make(text: &str) -> Result<Plugin, Fault> {
    Plugin::new(&Manifest::parse(text)?, &BTreeMap::new())
}

/// Checks that the plugin is refused with a message that contains these words, and registers nothing.
fn refused(name: &str, text: &str, words: &[&str]) {
    let fault = match make(text) {
        Err(fault) => fault.message,
        Ok(_) => panic!("this is let through: {text}"),
    };
    for word in words {
        assert!(fault.contains(word), "{name}: '{word}' in: {fault}");
    }
    assert!(
        registry::ops()
            .iter()
            .all(|op| !op.name().starts_with(&format!("{name}.")))
    );
    assert!(rule_sets().iter().all(|set| set.set.namespace != name));
}

#[test]
fn what_they_are_made_from_is_fine() {
    let text = head("fine") + TWICE;
    let brings = make(&text).expect("fine").register().expect("free");
    assert_eq!(brings.ops, ["fine.twice"]);
    assert!(registry::op("fine.twice").is_some());
    refused_again(&text);
}

fn refused_again(text: &str) {
    let fault = make(text).err().expect("its names are taken");
    assert!(fault.message.contains("'fine.*' exist already"), "{fault}");
}

#[test]
fn manifests_that_say_something_else_are_refused() {
    let twice = |from: &str, to: &str| {
        assert!(TWICE.contains(from), "{from}");
        head("odd") + &TWICE.replace(from, to)
    };
    let cases: Vec<(String, &str)> = vec![
        ("format = 1".into(), "cannot be read"),
        (head("odd").replace("format = 1", "format = 2"), "has the format 2"),
        (head("odd").replace("odd", "../odd"), "is called '../odd'"),
        (head("odd") + "colour = 3\n", "cannot be read"),
        (head("odd"), "neither operators nor rules"),
        (head("core") + TWICE, "'core.*' exist already"),
        (twice("name = \"twice\"", "name = \"if-then\""), "is called 'if-then'"),
        (
            twice("core.mul x 2", "core.mull x 2"),
            "'core.mull', which is no operator",
        ),
        (twice("core.mul x 2", "core.mul x z"), "'z' is neither a value"),
        (twice("core.mul x 2", "core.mul x 2 3"), "operands"),
        (twice("(core.mul x 2)", "(core.mul x 2"), "not closed"),
        (twice("{ y =", "{ z ="), "does not define the result 'y'"),
        (
            twice("(core.mul x 2)", "(core.mul x a)\", a = \"(core.neg y)"),
            "in a cycle: a, y",
        ),
        // Element types and shapes that differ from the declared ones.
        (twice("core.mul x 2", "core.greater_than x 2"), "makes 'y' u32"),
        (
            twice("y\", shape", "y\", dtype = \"u32\", shape"),
            "but it is declared to be u32",
        ),
        (twice("(core.mul x 2)", "(core.sum \\\"[0]\\\" false x)"), "called with"),
        (
            twice("y\", shape = [\"...\"]", "y\", shape = [\"n\"]"),
            "'n' is neither a size",
        ),
        (
            twice(
                "[\"...\"] }]\nout",
                "[\"...\", \"n\", \"(* 2 n)\", \"(- n 9999)\"] }]\nout",
            ),
            "no shapes were found",
        ),
        (
            twice("x\", shape", "x\", dtype = \"f64\", shape"),
            "no element type 'f64'",
        ),
        (
            head("odd") + TWICE + &TWICE.replace("core.mul", "core.div"),
            "two of its operators have one name",
        ),
        (
            head("odd")
                + &TWICE.replace("core.mul x 2", "odd.thrice x")
                + &TWICE.replace("twice", "thrice").replace("core.mul x 2", "odd.twice x"),
            "depend on each other in a cycle: odd.twice, odd.thrice",
        ),
        (twice("core.mul x 2", "odd.twice x"), "in a cycle: odd.twice"),
        (twice("core.mul x 2", "core.assign x x"), "which writes an operand"),
    ];
    for (text, words) in cases {
        refused("odd", &text, &[words]);
    }
}

#[test]
fn bombs_are_refused_before_they_go_off() {
    let many = |text: &str, n: usize| {
        (0..n)
            .map(|i| text.replace("twice", &format!("twice{i}")))
            .collect::<String>()
    };
    let steps: String = (0..100).map(|i| format!("a{i} = \"(core.neg x)\", ")).collect();
    let doubling: String = (1..60)
        .map(|i| format!("a{i} = \"(core.concat/2 0 a{0} a{0})\", ", i - 1))
        .collect();
    let attribute = "{ name = \"k\", kind = \"ints\", default = [NUMBERS] }".replace("NUMBERS", &"1, ".repeat(1000));
    // Each operator calls the previous one four times.
    let level = |i: usize| {
        let calls = (0..4).fold("x".to_owned(), |x, _| format!("(bomb.f{} {x})", i - 1));
        TWICE
            .replace("twice", &format!("f{i}"))
            .replace("(core.mul x 2)", &calls)
    };
    let work = r#"
[[op]]
name = "work"
formula = "much"
inputs = [{ name = "x", shape = [] }]
outputs = [{ name = "y", shape = [] }]
[op.let]
long = '(core.expand "[256, 256]" x)'
a = "(core.matmul false false long long)"
b = "(core.matmul false false a long)"
c = "(core.matmul false false b long)"
y = '(core.sum "[0, 1]" false c)'
"#;
    let levels: String = (1..20).map(level).collect();
    // Each operator calls the previous one.
    let chain: String = (1..60)
        .map(|i| {
            let call = format!("(bomb.f{} x)", i - 1);
            TWICE
                .replace("twice", &format!("f{i}"))
                .replace("(core.mul x 2)", &call)
        })
        .collect();
    let cases = [
        (
            head("bomb") + &TWICE.replace("twice", "f0") + &chain,
            "9 deep; expected at most 8",
        ),
        (
            head("bomb") + &TWICE.replace("twice", "f0") + &levels,
            "it expands to 1024 calls",
        ),
        (head("bomb") + work, "far more than go with 2 elements"),
        (head("bomb") + &" ".repeat(300_000), "bytes; 262144 are allowed"),
        (head("bomb") + &many(TWICE, 100), "100 operators; 64 are allowed"),
        (
            head("bomb") + &TWICE.replace("{ y", &format!("{{ {steps}y")),
            "101 named values",
        ),
        (head("bomb") + "x = " + &"[".repeat(100_000), "cannot be read"),
        (
            head("bomb")
                + &TWICE.replace(
                    "core.mul x 2",
                    &format!("{}x{}", "core.neg (".repeat(50), ")".repeat(50)),
                ),
            "nested deeper",
        ),
        (
            head("bomb")
                + &TWICE
                    .replace("{ y", &format!("{{ a0 = \"x\", {doubling} y"))
                    .replace("(core.mul x 2)", "a59")
                    .replace("[\"...\"]", "[\"n\"]"),
            "far larger than operands",
        ),
        (
            head("bomb") + &TWICE.replace("formula", &format!("attributes = [{attribute}]\nformula")),
            "too large",
        ),
        (
            head("bomb") + &TWICE.replace("formula = \"2 x", &format!("formula = \"{}", "x".repeat(5000))),
            "one line of up to",
        ),
        (
            head("bomb") + &TWICE.replace("[\"...\"]", &format!("[{}]", "\"a\", ".repeat(50))),
            "50 axes; 8 are allowed",
        ),
    ];
    for (text, words) in cases {
        refused("bomb", &text, &[words]);
    }
}

#[test]
fn rules_that_do_not_hold_are_refused() {
    let with = |rules: &str| format!("{}rules_text = '''\n{rules}\n'''\n{TWICE}", head("unsound"));
    let cases = [
        (
            with("(rewrite (core.add x x) (unsound.twice (core.neg x)) :ruleset always :name \"wrong\")"),
            "wrong: wrong",
        ),
        // The sum may be larger than x.
        (
            with("(rewrite (core.add x y) (unsound.twice x) :when ((= (type x) (type y))) :name \"other\")"),
            "other: wrong",
        ),
        (
            with("(rewrite (core.neg x) (core.transpose x) :name \"shape\")"),
            "unsound",
        ),
        (with("(rewrite (core.neg x)"), "rule set 'unsound'"),
        (
            with("(include \"/etc/passwd\")"),
            "only define, rewrite, birewrite, rule",
        ),
        (with("(rewrite (nowhere.op x) x :name \"a\")"), "nowhere.op"),
        (
            with("(rewrite (core.relu x) (unsound.twice x) :when ((= (rank (type x)) 99)) :name \"never\")"),
            "untested",
        ),
    ];
    for (text, words) in cases {
        refused("unsound", &text, &[words]);
    }
}

/// Returns a manifest of the operator `twice` with a kernel.
fn kernel(body: &str) -> String {
    let text = format!(
        "@group(0) @binding(0) var<storage> x: array<f32>;\n\
         @group(0) @binding(1) var<storage, read_write> y: array<f32>;\n{body}"
    );
    format!(
        "{}{TWICE}\n[op.wgsl]\ngroups = [1]\ntext = '''\n{text}\n'''\n",
        head("kernel")
    )
}

/// Line numbers match the author's file. The constants and comments before a line do not change them.
#[test]
fn errors_of_kernels_have_their_file_and_line() {
    let lines = "/* two\nlines */ @group(0) @binding(0) var<storage> x: array<f32>;\n\
                 @group(0) @binding(1) var<storage, read_write> y: array<f32>;\n\
                 // a comment\n@compute @workgroup_size(64)\n\
                 fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n  y[id.x] = WRONG;\n}\n";
    for (wrong, what) in [("q[id.x]", "not WGSL"), ("true", "not"), ("sqrt(1u)", "not")] {
        let text = lines.replace("WRONG", wrong);
        let inline = format!(
            "{}{TWICE}\n[op.wgsl]\ngroups = [1]\ntext = \'\'\'\n{text}\'\'\'\n",
            head("placed")
        );
        refused(
            "placed",
            &inline,
            &["the text of its kernel: its kernel is", what, "at line 7, 'y[id.x] = "],
        );
        let of_file = format!(
            "{}{TWICE}\n[op.wgsl]\ngroups = [1]\nfile = \"twice.wgsl\"\n",
            head("placed")
        );
        let manifest = Manifest::parse(&of_file).expect("a manifest");
        let files = BTreeMap::from([("twice.wgsl".to_owned(), text)]);
        let error = Plugin::new(&manifest, &files).err().expect("refused").to_string();
        assert!(
            error.contains("twice.wgsl: its kernel is") && error.contains("at line 7"),
            "{error}"
        );
    }
}

const MAIN: &str = "@compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) id: vec3<u32>)";

#[test]
fn kernels_that_cannot_be_checked_are_refused() {
    let main = |body: &str| kernel(&format!("{MAIN} {{\n{body}\n}}"));
    make(&main("y[id.x] = 2.0 * x[id.x];")).expect("this one can");
    let groups = |text: &str| main("y[id.x] = x[id.x];").replace("groups = [1]", text);
    let cases = [
        (main("y[id.x] = "), "not WGSL"),
        (main("y[id.x] = true;"), "not WGSL"),
        (main("var a = array<f32, 4>(); y[id.x] = a[7];"), "kernel is not"),
        (main("y[id.x] = q[id.x];"), "not WGSL"),
        (main("let a = x[id.x];"), "does not write the result 'y'"),
        (
            kernel(&format!(
                "@group(0) @binding(2) var<storage> z: array<f32>;\n{MAIN} {{ y[0] = z[0]; }}"
            )),
            "'z', which is neither an operand",
        ),
        (
            main("x[0] = 1.0; y[0] = 1.0;").replace("var<storage> x", "var<storage, read_write> x"),
            "may write its operand 'x'",
        ),
        (
            main("y[id.x] = 1u;").replace("y: array<f32>", "y: array<u32>"),
            "another type than f32",
        ),
        (
            main("y[id.x] = 1.0; if (id.x < 3u) { workgroupBarrier(); }"),
            "a barrier is in a branch",
        ),
        // Threads that write the same value to different parts of a variable make it non-uniform.
        (
            main(
                "var m = array<u32, 2>(); m[id.x & 1u] = 5u; let w = m; y[id.x] = 1.0; \
                 for (var k = 0u; k < w[0]; k += 1u) { workgroupBarrier(); }",
            ),
            "a barrier is in a branch",
        ),
        (
            kernel(&format!(
                "fn f(p: ptr<function, f32>) {{ *p = 1.0; }}\n{MAIN} {{ var a = 0.0; f(&a); y[0] = a; }}"
            )),
            "takes a pointer",
        ),
        (
            kernel(&format!("enable f16;\n{MAIN} {{ y[0] = f32(f16(1.0)); }}")),
            "kernel",
        ),
        (
            kernel(&format!("const a = array<f32, 99999999>();\n{MAIN} {{ y[0] = a[3]; }}")),
            "length of an array",
        ),
        (
            main(&format!("y[0] = {}x[0]{};", "(".repeat(300), ")".repeat(300))),
            "nested deeper",
        ),
        (
            main(&format!("y[0] = x[0]{};", " + x[0]".repeat(3000))),
            "operators and brackets",
        ),
        (main(&"y[0] = 1.0;\n".repeat(12_000)), "more than 20000 statements"),
        (groups("groups = []"), "no 'groups'"),
        (groups("groups = [0]"), "1 to 65535 workgroups"),
        (groups("groups = [\"(* numel 99999)\"]"), "1 to 65535 workgroups"),
        (groups("groups = [60000, 60000]"), "are allowed"),
        (groups("groups = [\"(sin 3)\"]"), "has no value"),
        (groups("file = \"k.wgsl\"\ngroups = [1]"), "either a 'file' or a 'text'"),
    ];
    for (text, words) in cases {
        refused("kernel", &text, &[words]);
    }
}

#[test]
fn names_of_files_lead_nowhere_else() {
    for name in [
        "/etc/rules.egg",
        "../rules.egg",
        "a/../../rules.egg",
        "rules.txt",
        ".egg",
        "a//b.egg",
        "a\\\\b.egg",
    ] {
        let text = format!("{}rules = \"{name}\"\n", head("paths"));
        let fault = Manifest::parse(&text)
            .and_then(|m| m.files().map(|f| f.len()))
            .expect_err(name);
        assert!(fault.message.contains("within its folder"), "{name}: {fault}");
    }
    refused(
        "paths",
        &(head("paths") + "rules = \"r.egg\"\n"),
        &["'r.egg' does not exist"],
    );
}
