//! Tests that the kernels of representative calls are translated and, if NVRTC is available, compiled.

use std::collections::BTreeMap;
use std::time::Instant;

use meganeura_cuda::{Bounds, CudaSource, Options, WriteError, read, write};

use meganeura_shaders::Launch;

use crate::{calls, nvrtc};

/// Returns the WGSL source of each kernel by its name.
pub(crate) fn texts() -> BTreeMap<String, String> {
    let of_kernel = |(kernel, launches): (&str, BTreeMap<String, Launch>)| {
        let named = |(name, launch): (String, Launch)| (format!("{kernel}.{name}"), launch.source);
        launches.into_iter().map(named).collect::<Vec<_>>()
    };
    calls::launches().into_iter().flat_map(of_kernel).collect()
}

fn written(text: &str, bounds: Bounds) -> Result<CudaSource, WriteError> {
    let (module, info) = read(text).unwrap_or_else(|error| panic!("{error}"));
    let options = Options {
        bounds,
        ..Options::default()
    };
    write(&module, &info, "main", &options)
}

/// Returns two maps by kernel name: the translated sources, and the reasons why kernels were rejected.
fn all(bounds: Bounds) -> (BTreeMap<String, CudaSource>, BTreeMap<String, String>) {
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
        "matmul_coop.coop8-add",
        "matmul_coop.coop8-epilogue",
        "matmul_coop.coop8-f16",
        "matmul_coop.coop8-halves",
        "matmul_coop.coop8-plain",
        "matmul_coop.coop8-transposed-a",
        "matmul_coop.coop8-transposed-b",
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
        // Each index of a run-time sized buffer must be checked.
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
