//! The committed header is the one of these types, and compilers take it.

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

/// The header asserts sizes and places of all fields itself, so whatever compiles has the layout of the Rust types.
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
