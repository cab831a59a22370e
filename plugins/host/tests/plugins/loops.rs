//! Tests that the kernels of the C example are correct when called through the plugin interface.

use std::sync::Arc;

use super::common::{compile, device, repository};
use meganeura_conformance::{ExpectedFailure, Options, run_with};
use meganeura_core::backend::Backend;
use meganeura_plugin_host::open_backend;

fn loops(folder: &tempfile::TempDir) -> Arc<dyn Backend> {
    let (source, file) = (
        repository("plugins/examples/c-loops/loops.c"),
        folder.path().join("libloops.so"),
    );
    let options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"].map(String::from);
    compile(&source, &repository("plugins/abi/include"), &options, &file);
    open_backend(&file, None).expect("it loads")
}

#[test]
fn it_passes_conformance_but_for_what_it_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = repository("plugins/examples/c-loops/expected-failures.toml");
    let expected = ExpectedFailure::read(&list).expect("it has reasons");
    let options = Options {
        seeds: 0..1,
        // The oracle is slow.
        max_work: 50_000,
        ..Options::default()
    };
    let report = run_with(
        device(&loops(&folder)).expect("it opens"),
        &options,
        &expected,
        &mut |_| {},
    );
    assert!(report.is_ok(), "{report}");
    assert!(report.passed() > 1500, "{report}");
}
