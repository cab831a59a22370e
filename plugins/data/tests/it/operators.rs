//! Tests of a plugin's operators in the core: sample calls, shapes, attributes, indices.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::ops::sample::Sizes;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Graph, Shape, TensorType, registry};
use meganeura_plugin_data::{Fault, Manifest, Plugin};

fn make(name: &str, ops: &str) -> Result<Plugin, Fault> {
    let text = format!("format = 1\nname = \"{name}\"\nversion = \"1\"\n{ops}");
    Plugin::new(&Manifest::parse(&text)?, &BTreeMap::new())
}

/// Registers a plugin with one operator.
fn op(name: &str, ops: &str) -> OpRef {
    let plugin = make(name, ops).unwrap_or_else(|fault| panic!("{fault}"));
    let brings = plugin.register().expect("free names");
    registry::op(&brings.ops[0]).expect("registered")
}

fn refused(ops: &str, words: &str) {
    let fault = make("refused", ops)
        .err()
        .unwrap_or_else(|| panic!("{ops} is let through"));
    assert!(fault.message.contains(words), "'{words}' in: {fault}");
}

fn f32_type(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, Shape::new(dims).expect("a shape"))
}

/// Returns the operator's result on numbers.
fn computed(op: OpRef, attrs: Attrs, operands: &[(&[usize], Vec<f64>)]) -> Vec<f64> {
    let mut g = Graph::new();
    let mut feeds = HashMap::new();
    let mut inputs = Vec::new();
    for (i, (shape, values)) in operands.iter().enumerate() {
        let name = format!("x{i}");
        inputs.push(g.input(&name, shape).into());
        feeds.insert(name, values.clone());
    }
    let y = g.call(op, attrs, inputs);
    g.set_outputs(vec![y]);
    evaluate(&g, &feeds)
        .expect("it is right")
        .get(y)
        .expect("a value")
        .data
        .clone()
}

#[test]
fn samples_have_all_attributes_and_sizes_for_which_there_is_a_kernel() {
    let op = op(
        "sampled",
        r#"
[[op]]
name = "scale"
formula = "a b x"
attributes = [
    { name = "a", kind = "int", default = 1, samples = [2, 3] },
    { name = "b", kind = "int", default = 4, samples = [5, 6] },
    { name = "negative", kind = "bool", default = false, samples = [true] },
]
inputs = [{ name = "x", dtype = "f32", shape = ["m", "n"] }]
outputs = [{ name = "y", dtype = "f32", shape = ["m", "n"] }]
let = { y = "(core.mul x (f32 (* a b)))" }
[op.wgsl]
groups = ["m"]
where = ["(= (% n 512) 0)", "(> a 1)"]
text = '''
var<storage> x: array<f32>;
var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) row: vec3<u32>, @builtin(local_invocation_index) i: u32) {
    for (var k = i; k < n; k += 64u) { y[row.x * n + k] = x[row.x * n + k] * f32(a * b); }
}
'''
"#,
    );
    let samples = op.samples(&mut Sizes::new(3));
    let pairs: BTreeSet<(i64, i64, bool)> = samples
        .iter()
        .map(|s| {
            let int = |name| s.attrs.int(name).expect("an attribute");
            (int("a"), int("b"), s.attrs.bool("negative").expect("an attribute"))
        })
        .collect();
    assert_eq!(pairs.len(), 18, "every combination: {pairs:?}");
    let for_kernel = |s: &&meganeura_core::ops::sample::Sample| {
        s.inputs[0].shape[1].is_multiple_of(512) && s.attrs.int("a").is_ok_and(|a| a > 1)
    };
    let for_kernel = samples.iter().filter(for_kernel).count();
    assert!(for_kernel >= 4, "{for_kernel} of {}", samples.len());
    assert!(samples.iter().all(|s| !s.label.is_empty()));
}

#[test]
fn a_kernel_for_sizes_that_nothing_has_is_refused() {
    refused(
        r#"
[[op]]
name = "f"
formula = "x"
inputs = [{ name = "x", dtype = "f32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "f32", shape = ["n"] }]
let = { y = "(core.neg x)" }
[op.wgsl]
groups = [1]
where = ["(< n 1)"]
text = "var<storage, read_write> y: array<f32>; @compute @workgroup_size(1) fn main() { y[0] = 1.0; }"
"#,
        "its kernel is not for these sizes",
    );
}

/// Devices evaluate samples in the program that uses the plugin, so operators without small samples
/// are rejected.
#[test]
fn operators_that_are_too_large_to_be_tried_are_refused() {
    let with = |last: &str| {
        format!(
            "[[op]]\nname = \"f\"\nformula = \"much\"\ninputs = [{{ name = \"x\", shape = [256, 256] }}]\n\
             outputs = [{{ name = \"y\", shape = [256, 256] }}]\n[op.let]\n{last}\n"
        )
    };
    make("fine", &with("y = '(core.neg x)'")).expect("this is small");
    let much = "long = '(core.expand \"[40, 256, 256]\" x)'\ny = '(core.sum \"[0]\" false long)'";
    refused(&with(much), "too large to be tried");
    refused(&with("y = '(core.matmul false false x x)'"), "too large to be tried");
    // The size is detected without computing the scores.
    let rows = "[[op]]\nname = \"f\"\nformula = \"much\"\ninputs = [{ name = \"x\", shape = [65536, 1] }]\n\
                outputs = [{ name = \"y\", shape = [65536, 1] }]\n\
                let = { y = '(core.attention 1 1 1 true 0 1.0 x x x)' }\n";
    let attention = registry::op("core.attention").expect("there is one");
    let spelled: Vec<String> = attention
        .attributes()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let fault = make("refused", rows).err().map(|f| f.message).unwrap_or_default();
    assert!(fault.contains("too large to be tried"), "{spelled:?}: {fault}");
}

#[test]
fn names_of_sizes_may_come_after_what_depends_on_them() {
    let op = op(
        "later",
        "[[op]]\nname = \"f\"\nformula = \"the first of each pair, plus z\"\n\
         inputs = [{ name = \"x\", shape = [\"(* 2 n)\"] }, { name = \"z\", shape = [\"n\"] }]\n\
         outputs = [{ name = \"y\", shape = [\"n\"] }]\n\
         let = { y = '(core.add (core.sum \"[1]\" false (core.reshape \"[n, 2]\" x)) z)' }\n",
    );
    let found = computed(
        op,
        Attrs::new(),
        &[(&[4], vec![1.0, 2.0, 3.0, 4.0]), (&[2], vec![10.0, 20.0])],
    );
    assert_eq!(found, [13.0, 27.0]);
    let wrong = op.infer(&Call {
        attrs: &Attrs::new(),
        inputs: &[f32_type(&[5]), f32_type(&[2])],
        outputs: &[],
    });
    assert!(wrong.is_err_and(|e| e.contains("'(* 2 n)' is 4")));
}

#[test]
fn attributes_and_numbers_are_arithmetic_of_sizes() {
    let op = op(
        "counted",
        r#"
[[op]]
name = "f"
formula = "(x + (r - 1)) / (slope / 2), the last axis turned around"
attributes = [
    { name = "r", kind = "int", default = 2, samples = [3] },
    { name = "slope", kind = "float", default = 4.0 },
]
inputs = [{ name = "x", shape = ["m", "n"] }]
outputs = [{ name = "y", shape = ["m", "n"] }]
[op.let]
moved = "(core.add x (- r 1))"
scaled = "(core.div moved (/ slope 2))"
y = '(core.sum "[2]" false (core.reshape "[m, (* 1 n), 1]" (core.leaky_relu (- (/ slope slope) 0.5) scaled)))'
"#,
    );
    let attrs = Attrs::new().with("r", 3).with("slope", 4.0);
    let found = computed(op, attrs, &[(&[1, 2], vec![2.0, -6.0])]);
    assert_eq!(found, [2.0, -1.0]);
    let whole = "[[op]]\nname = \"f\"\nformula = \"a part\"\nattributes = [{ name = \"k\", kind = \"int\", default = 1 }]\n\
                 inputs = [{ name = \"x\", shape = [\"n\"] }]\noutputs = [{ name = \"y\", shape = [\"k\"] }]\n\
                 where = [\"(<= 1 k)\", \"(<= k n)\"]\n[op.let]\n\
                 best = '(core.top_k (+ k 0) (- k k) x)'\ny = '(Get 0 best)'\n";
    make("whole", whole).expect("arithmetic of an integer attribute");
    refused(&whole.replace("(- k k)", "(- k)"), "has no value");
    refused(&whole.replace("(- k k)", "(/ k 0)"), "has no value");
}

#[test]
fn indices_keep_their_bound() {
    let look_up = |below: &str, table: &str| {
        format!(
            "[[op]]\nname = \"f\"\nformula = \"rows of a table\"\n\
             inputs = [{{ name = \"ids\", dtype = \"u32\", shape = [\"m\"]{below} }}, {{ name = \"t\", shape = [\"n\", 3] }}]\n\
             outputs = [{{ name = \"y\", shape = [\"m\", 3] }}]\nlet = {{ y = '(core.gather 0 {table} t)' }}\n"
        )
    };
    let call = |op: OpRef| {
        let ids = TensorType::new(DType::U32, Shape::new(&[5]).expect("a shape"));
        let attrs = Attrs::new();
        op.index_bound(&Call {
            attrs: &attrs,
            inputs: &[ids, f32_type(&[7, 3])],
            outputs: &[],
        })
    };
    assert_eq!(call(op("rows", &look_up(", below = \"n\"", "ids"))), Some((0, 7)));
    // In another shape, and without a bound in the manifest.
    let reshaped = op(
        "reshaped",
        &look_up("", "(core.reshape \"[m]\" (core.reshape \"[m, 1]\" ids))"),
    );
    assert_eq!(call(reshaped), Some((0, 7)));
    // A computed value is not an operand.
    let computed = look_up(", below = 1", "(core.mul ids (u32 0))");
    assert_eq!(call(op("computed", &computed)), None);
    refused(&look_up(", below = \"(+ n 1)\"", "ids"), "uses it as an index below");
}

#[test]
fn operators_of_other_plugins_are_told_apart_from_none() {
    let one = "[[op]]\nname = \"f\"\nformula = \"-x\"\ninputs = [{ name = \"x\", shape = [\"...\"] }]\n\
               outputs = [{ name = \"y\", shape = [\"...\"] }]\nlet = { y = '(core.neg x)' }\n";
    op("other", one);
    refused(
        &one.replace("core.neg", "other.f"),
        "'other.f', an operator of another plugin",
    );
    refused(
        &one.replace("core.neg", "nowhere.f"),
        "'nowhere.f', which is no operator",
    );
}

#[test]
fn what_a_kernel_only_reads_is_not_written() {
    refused(
        "[[op]]\nname = \"f\"\nformula = \"x\"\ninputs = [{ name = \"x\", dtype = \"f32\", shape = [\"n\"] }]\n\
         outputs = [{ name = \"y\", dtype = \"f32\", shape = [\"n\"] }, { name = \"z\", dtype = \"f32\", shape = [\"n\"] }]\n\
         let = { y = '(core.neg x)', z = '(core.neg x)' }\n[op.wgsl]\ngroups = [1]\ntext = '''\n\
         var<storage, read_write> y: array<f32>;\nvar<storage, read_write> z: array<f32>;\n\
         @compute @workgroup_size(1) fn main() { y[0] = z[0]; }\n'''\n",
        "does not write the result 'z'",
    );
}

#[test]
fn attributes_of_samples_are_what_manifests_say() {
    let op = op(
        "listed",
        "[[op]]\nname = \"f\"\nformula = \"-x\"\n\
         attributes = [{ name = \"a\", kind = \"ints\", default = [1, 2], samples = [[3]] }]\n\
         inputs = [{ name = \"x\", shape = [\"...\"] }]\noutputs = [{ name = \"y\", shape = [\"...\"] }]\n\
         let = { y = '(core.neg x)' }\n",
    );
    let samples = op.samples(&mut Sizes::new(1));
    let first = samples[0].attrs.get("a");
    assert_eq!(first, Some(&Attr::Ints(vec![1, 2])));
    assert!(samples.iter().any(|s| s.attrs.get("a") == Some(&Attr::Ints(vec![3]))));
}
