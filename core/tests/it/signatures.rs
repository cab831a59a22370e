//! Tests that the reference of each operator names a method of `Graph` with its parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meganeura_core::ops::document;
use meganeura_core::registry;

/// Operators without a builder method: only rules, derivatives and optimizers create them.
const WITHOUT: [&str; 35] = [
    "core.add_layer_norm",
    "core.add_rms_norm",
    "core.attention_grad",
    "core.avg_pool2d_grad",
    "core.avg_pool2d_nhwc",
    "core.avg_pool2d_nhwc_grad",
    "core.batch_norm_grad",
    "core.conv2d_nhwc",
    "core.conv2d_nhwc_input_grad",
    "core.conv2d_nhwc_weight_grad",
    "core.cross_entropy_grad",
    "core.cross_entropy_ids_grad",
    "core.expert_matmul_weight_grad",
    "core.fused",
    "core.fused_cache_write",
    "core.geglu_grad",
    "core.group_norm_grad",
    "core.group_norm_silu",
    "core.gru_grad",
    "core.layer_norm_grad",
    "core.layer_norm_grad_add",
    "core.lstm_grad",
    "core.max_pool2d_grad",
    "core.max_pool2d_nhwc",
    "core.quantized_matmul_add",
    "core.rms_norm_grad",
    "core.rms_norm_grad_add",
    "core.rms_norm_matmul",
    "core.rms_norm_quantized_matmul",
    "core.rnn_grad",
    "core.rope_cache_write",
    "core.swiglu_concat_grad",
    "core.swiglu_grad",
    "core.upsample_bilinear2d_grad",
    "core.upsample_nearest2d_grad",
];

/// Collects the texts of all files of operators.
fn sources(folder: &Path, texts: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("the folder of operators") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, texts)
        } else {
            texts.push(std::fs::read_to_string(&path).expect("text"))
        }
    }
}

/// Splits a list at top-level commas.
fn parts(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in list.char_indices() {
        match c {
            '[' | '(' | '<' => depth += 1,
            ']' | ')' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

/// Returns the parameter names of each method of the graph, including methods that macros generate.
fn methods() -> BTreeMap<String, Vec<String>> {
    let mut texts = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops"), &mut texts);
    let mut methods = BTreeMap::new();
    for text in &texts {
        for (at, _) in text.match_indices("    pub fn ") {
            let rest = &text[at + "    pub fn ".len()..];
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let list = rest.split(" -> ").next().unwrap_or_default();
            let Some((_, list)) = list.split_once("&mut self") else {
                continue;
            };
            let Some(list) = list.trim_end().strip_suffix(')') else {
                continue;
            };
            let list = list.trim_start_matches(',');
            let names = parts(list).into_iter().map(|p| match p.strip_prefix('[') {
                Some(pattern) => format!("[{}]", pattern.split(']').next().unwrap_or_default()),
                None => p.split(':').next().unwrap_or_default().trim().to_owned(),
            });
            methods.insert(name, names.collect());
        }
        // Rows of tables: `softplus(SOFTPLUS);`, `clamp(CLAMP, low, high);`.
        let table = text
            .split("\nbuilders! {\n")
            .nth(1)
            .and_then(|t| t.split("\n}\n").next());
        // A table with separate operands in each row, a table with two operands, or another table.
        let first = match text.contains("macro_rules! builders") {
            true if text.contains("$operand") => "",
            true if text.contains("a: impl Into") => "a, b",
            _ => "x",
        };
        for line in table
            .unwrap_or_default()
            .lines()
            .map(str::trim)
            .filter(|l| l.ends_with(");"))
        {
            let Some((name, rest)) = line.split_once('(') else {
                continue;
            };
            let own = parts(rest.trim_end_matches(");")).into_iter().skip(1);
            let names = parts(first).into_iter().chain(own).map(str::to_owned);
            methods.insert(name.to_owned(), names.collect());
        }
    }
    methods
}

#[test]
fn every_operator_names_an_existing_method_with_its_parameters() {
    let methods = methods();
    assert!(methods.len() > 120, "{}", methods.len());
    let mut without = BTreeSet::new();
    for op in registry::ops() {
        let signature = op.signature();
        if signature.is_empty() {
            without.insert(op.name());
            continue;
        }
        let call = signature.strip_prefix("g.").and_then(|s| s.strip_suffix(')'));
        let (name, list) = call
            .and_then(|c| c.split_once('('))
            .unwrap_or_else(|| panic!("{}: {signature}", op.name()));
        let Some(found) = methods.get(name) else {
            panic!("{}: there is no method '{name}'", op.name());
        };
        assert_eq!(&parts(list), found, "{}: {signature}", op.name());
    }
    assert_eq!(without, BTreeSet::from(WITHOUT));
}

#[test]
fn the_reference_shows_the_call() {
    let section = |name: &str| document::section(registry::op(name).expect("an operator"));
    assert!(
        section("core.mse").contains("- **Call:** `g.mse_loss(prediction, target)`"),
        "{}",
        section("core.mse")
    );
    assert!(
        section("core.clamp").contains("`g.clamp(x, low, high)`"),
        "{}",
        section("core.clamp")
    );
    assert!(
        section("core.swiglu").contains("`g.swiglu(gate, up)`"),
        "{}",
        section("core.swiglu")
    );
    let internal = section("core.attention_grad");
    assert!(
        internal.contains("no method") && internal.contains("registry::op(\"core.attention_grad\")"),
        "{internal}"
    );
}
