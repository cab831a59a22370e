//! Test that the page of tested pairs names existing tests.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Areas of the page, with their folders.
const AREAS: [(&str, &str); 13] = [
    ("cli", "cli/tests/it"),
    ("llm", "llm/tests/it"),
    ("serve", "serve/tests/it"),
    ("nn", "nn/tests/it"),
    ("nn-long", "nn/tests/long"),
    ("root", "tests/it"),
    ("onnx", "formats/onnx/tests/it"),
    ("mpi", "plugins/mpi/tests"),
    ("conformance", "tests/conformance/tests/it"),
    ("cpu", "backends/cpu/tests/it"),
    ("blade", "backends/blade/tests/it"),
    ("coop", "backends/blade/tests/coop"),
    ("cuda", "backends/cuda/tests/it"),
];

/// Returns true if a source file declares a test function with this name.
fn has_test(source: &str, name: &str) -> bool {
    let declaration = format!("fn {name}()");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_declaration = |line: &&str| line.starts_with(&declaration);
    let Some(place) = lines.iter().position(is_declaration) else {
        return false;
    };
    // Only other attributes and comments are between.
    let before = lines[..place].iter().rev();
    let mut attributes = before.take_while(|line| line.starts_with('#') || line.starts_with("//"));
    attributes.any(|line| *line == "#[test]")
}

#[test]
fn every_documented_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/tested-pairs.md")).expect("the page");
    for (area, folder) in AREAS {
        let row = format!("| `{area}` | `{folder}` |");
        assert!(page.contains(&row), "the page has no row {row}");
    }
    let quoted = page.split('`').skip(1).step_by(2);
    let names: HashSet<&str> = quoted.filter(|text| text.contains("::")).collect();
    let mut missing = Vec::new();
    for name in &names {
        if *name == "AREA:FILE::TEST" {
            continue;
        }
        let is_there = || {
            let (area, rest) = name.split_once(':')?;
            let (file, test) = rest.rsplit_once("::")?;
            let (_, folder) = AREAS.iter().find(|(own, _)| *own == area)?;
            let source = fs::read_to_string(root.join(folder).join(format!("{file}.rs"))).ok()?;
            has_test(&source, test).then_some(())
        };
        if is_there().is_none() {
            missing.push(*name);
        }
    }
    missing.sort_unstable();
    assert!(names.len() > 100, "only {} tests", names.len());
    assert!(
        missing.is_empty(),
        "docs/tested-pairs.md names tests that do not exist: {missing:#?}"
    );
}
