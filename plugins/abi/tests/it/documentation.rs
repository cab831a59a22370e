//! Test that the C code of `docs/plugin-abi.md` compiles.

use std::path::Path;
use std::process::Command;

#[test]
fn examples_in_c_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/plugin-abi.md")).expect("there is a page");
    let examples: Vec<&str> = page
        .split("```c\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert_eq!(examples.len(), 1);
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("example.c");
    std::fs::write(&source, examples.concat()).expect("written");
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wno-missing-field-initializers",
            "-Werror",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .arg(root.join("include"))
        .arg(&source)
        .arg("-o")
        .arg(folder.path().join("example.so"))
        .output()
        .expect("there is a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
