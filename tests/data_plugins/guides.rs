//! Tests that the files in the guides load and are valid. The Rust code in them is compiled as documentation.

use std::path::Path;

use meganeura::attrs::Attrs;
use meganeura::plugins::open_data;
use meganeura::rewrite::RuleSet;
use meganeura::rewrite::verify::{VerifyOptions, verify_rule_set};
use meganeura::{Graph, registry};

use super::{folder, write};

/// Returns the code blocks of a page: the text after the three backticks, and the contents.
fn blocks(page: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let parts: Vec<&str> = text.split("```").collect();
    let inside = parts.iter().skip(1).step_by(2);
    inside
        .filter_map(|block| block.split_once('\n'))
        .map(|(info, text)| (info.to_owned(), text.to_owned()))
        .collect()
}

#[test]
fn the_plugin_of_the_guide_loads() {
    let blocks = blocks("write-a-data-plugin.md");
    let files: Vec<(&str, &str)> = blocks
        .iter()
        .filter_map(|(info, text)| Some((info.split_once(' ')?.1, text.as_str())))
        .collect();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["plugin.toml", "caps.egg", "soft_cap.wgsl"]);
    let place = folder();
    let report = open_data(&write(place.path(), &files), None).expect("the guide is right");
    let brings = report.brings.expect("it brings something");
    assert_eq!(brings.ops, ["caps.soft_cap"]);
    assert_eq!((brings.rules.len(), brings.kernels.len()), (1, 1));

    let op = registry::op("caps.soft_cap").expect("registered");
    let mut g = Graph::new();
    let logits = g.input("logits", &[4, 1000]);
    let y = g.call(op, Attrs::new().with("cap", 30.0), vec![logits.into()]);
    g.set_outputs(vec![y]);
    g.verify().expect("a call as in the guide");
}

#[test]
fn rules_of_the_guide_hold_but_for_the_one_that_does_not() {
    let blocks = blocks("write-a-fusion-rule.md");
    let rules: Vec<&(String, String)> = blocks.iter().filter(|(info, _)| info.starts_with("egg")).collect();
    assert_eq!(rules.len(), 3);
    for (info, text) in rules {
        let set = RuleSet {
            rules: text.clone().into(),
            ..RuleSet::new("guide", 1, "")
        };
        for verdict in verify_rule_set(&set, &VerifyOptions::default()).expect("they are read") {
            assert_eq!(verdict.is_sound(), info != "egg wrong", "{verdict}");
        }
    }
}
