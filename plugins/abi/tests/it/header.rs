//! Tests of the C header: the committed file matches the types, and compilers accept it.

use std::path::Path;
use std::process::Command;

use meganeura_plugin_abi::header;

#[test]
fn the_committed_header_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/meganeura_plugin.h");
    let committed = std::fs::read_to_string(path).expect("there is a header");
    assert!(
        committed == header(),
        "write it anew: cargo run -p meganeura-plugin-abi --example header > plugins/abi/include/meganeura_plugin.h"
    );
}

/// A header that compiles has the layout of the Rust types, because it asserts the sizes and offsets of all fields.
#[test]
fn c_and_cpp_compilers_take_it() {
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, file, standard) in [
        ("cc", "t.c", "-std=c11"),
        ("cc", "t.c", "-std=c99"),
        ("c++", "t.cpp", "-std=c++17"),
    ] {
        let path = folder.path().join(file);
        std::fs::write(&path, "#include \"meganeura_plugin.h\"\n").expect("written");
        let output = Command::new(compiler)
            .args([
                standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
                "-I",
            ])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .arg(&path)
            .output()
            .expect("there is a compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
