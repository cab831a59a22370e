//! The kernels of `shaders/snapshots`, each of which is written; and compiled, where there is NVRTC.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use meganeura_cuda::{Bounds, Options, WriteError, Written, read, write};

use crate::nvrtc;

/// The snapshots by name.
fn texts() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shaders/snapshots");
    let entries = fs::read_dir(folder).expect("the folder of snapshots");
    let text = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(path).expect("a snapshot"))
    };
    entries.map(text).collect()
}

fn written(text: &str, bounds: Bounds) -> Result<Written, WriteError> {
    let (module, info) = read(text).unwrap_or_else(|error| panic!("{error}"));
    let options = Options {
        bounds,
        ..Options::default()
    };
    write(&module, &info, "main", &options)
}

/// What is written, and what is refused and why.
fn all(bounds: Bounds) -> (BTreeMap<String, Written>, BTreeMap<String, String>) {
    let (mut done, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for (name, text) in texts() {
        match written(&text, bounds) {
            Ok(written) => _ = done.insert(name, written),
            Err(error) => _ = refused.insert(name, error.to_string()),
        }
    }
    (done, refused)
}

#[test]
fn all_are_written_but_those_with_small_matrices() {
    let (done, refused) = all(Bounds::Unchecked);
    let names: Vec<&str> = refused.keys().map(String::as_str).collect();
    let expected = [
        "matmul_coop.coop8-add.wgsl",
        "matmul_coop.coop8-epilogue.wgsl",
        "matmul_coop.coop8-f16.wgsl",
        "matmul_coop.coop8-halves.wgsl",
        "matmul_coop.coop8-plain.wgsl",
        "matmul_coop.coop8-transposed-a.wgsl",
        "matmul_coop.coop8-transposed-b.wgsl",
    ];
    assert_eq!(names, expected, "{refused:#?}");
    for (name, why) in &refused {
        assert!(why.contains("cooperative matrices coop_mat8x8<"), "{name}: {why}");
    }
    assert!(done.len() >= 92, "{}", done.len());
    for (name, written) in &done {
        assert!(written.shared_bytes <= 48 * 1024, "{name}");
        assert!(!written.bindings.is_empty(), "{name}");
        let parameters = written
            .bindings
            .iter()
            .map(|b| 1 + usize::from(b.has_length))
            .sum::<usize>();
        let kernel = written
            .source
            .split("extern \"C\" __global__")
            .nth(1)
            .expect("a kernel");
        let head = kernel.split(") {").next().expect("its parameters");
        assert_eq!(head.matches(",\n").count() + 1, parameters, "{name}: {head}");
        assert!(!written.source.contains("#include"), "{name}");
    }
}

#[test]
fn all_but_those_with_matrices_stay_within_bounds() {
    let (done, refused) = all(Bounds::Restrict);
    for (name, why) in &refused {
        assert!(why.contains("cooperative matrices"), "{name}: {why}");
    }
    let matrices = texts()
        .into_iter()
        .filter(|(_, text)| text.contains("enable wgpu_cooperative_matrix"));
    let with_matrices: Vec<String> = matrices.map(|(name, _)| name).collect();
    assert_eq!(refused.into_keys().collect::<Vec<_>>(), with_matrices);
    for (name, written) in &done {
        // Each index of a buffer that is an array of as many elements as there is memory.
        let kernel = written.source.split("namespace kernel {").nth(1).expect("the module");
        for binding in written.bindings.iter().filter(|binding| binding.has_length) {
            let open = format!("{}[", binding.name);
            for place in kernel.match_indices(&open).map(|(place, _)| place) {
                let before = kernel[..place].chars().next_back();
                let is_name = before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
                let rest = &kernel[place + open.len()..];
                assert!(is_name || rest.starts_with("wgsl::within("), "{name}: {open}{rest:.60}");
            }
        }
    }
}

#[test]
fn nvrtc_compiles_all() {
    let Some(nvrtc) = nvrtc::find() else { return };
    let (unchecked, _) = all(Bounds::Unchecked);
    let (restricted, _) = all(Bounds::Restrict);
    let (major, minor) = nvrtc.version();
    for architecture in ["sm_80", "sm_90"] {
        let (mut count, mut failed) = (0, Vec::new());
        let (started, mut slowest) = (Instant::now(), (0, String::new()));
        for (bounds, kernels) in [("unchecked", &unchecked), ("restricted", &restricted)] {
            for (name, written) in kernels {
                let begun = Instant::now();
                count += 1;
                if let Err(log) = nvrtc.compile(&written.source, architecture) {
                    failed.push(format!("{name}, {bounds}: {log}"));
                }
                slowest = slowest.max((begun.elapsed().as_millis(), name.clone()));
            }
        }
        let each = started.elapsed().as_millis() / count.max(1);
        println!(
            "NVRTC {major}.{minor} compiled {} of {count} kernels for {architecture}: {each} ms each, at most {} ms ({})",
            count as usize - failed.len(),
            slowest.0,
            slowest.1
        );
        assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
    }
}
