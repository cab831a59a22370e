//! Checks of the invariants of ARCHITECTURE.md.

mod circles;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum number of files that depend on each other in a circle. More files cannot be understood or changed one by
/// one.
const MAX_CIRCLE: usize = 8;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder exists") {
            let path = entry.expect("readable").path();
            if path.is_dir() && path.file_name().is_none_or(|n| n != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no sources");
    found.sort();
    found
}

/// Returns the text of a file up to its unit tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("readable");
    let is_module = |place: &usize| {
        let rest = text[*place..].trim_start_matches("#[cfg(test)]").trim_start();
        let line = rest.lines().next().unwrap_or_default();
        line.starts_with("mod ") && line.ends_with('{')
    };
    let tests = text.match_indices("#[cfg(test)]").map(|(place, _)| place);
    let end = tests.into_iter().find(is_module).unwrap_or(text.len());
    text[..end].to_owned()
}

fn dependencies(package: &str) -> String {
    tree(package, &[])
}

/// Returns the dependencies of a package, or the output of `cargo tree` with other options.
fn tree(package: &str, options: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "-p",
            package,
        ])
        .args(options)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_core_depends_on_no_gpu_crate_and_no_backend() {
    let tree = dependencies("meganeura-core");
    for banned in [
        "blade",
        "ash",
        "wgpu",
        "naga",
        "metal",
        "vulkan",
        "cuda",
        "meganeura-cpu",
        "meganeura-nn",
        "meganeura-compiler",
        "egglog",
        "libloading",
    ] {
        let found = tree.lines().find(|l| l.starts_with(banned));
        assert!(found.is_none(), "{found:?}");
    }
    assert!(tree.contains("inventory"), "the tree is the real one");
}

#[test]
fn backends_know_the_core_only() {
    for backend in ["meganeura-blade", "meganeura-cpu", "meganeura-cuda"] {
        let tree = dependencies(backend);
        let own: Vec<&str> = tree.lines().filter(|l| l.starts_with("meganeura")).collect();
        let known = [backend, "meganeura-core", "meganeura-shaders"];
        assert!(own.iter().all(|l| known.iter().any(|k| l.starts_with(k))), "{own:?}");
    }
}

#[test]
fn kernels_know_no_gpu_interface() {
    let tree = dependencies("meganeura-shaders");
    for banned in ["blade", "ash", "wgpu", "metal", "cuda", "meganeura-cpu", "egui"] {
        let found = tree.lines().find(|l| l.starts_with(banned));
        assert!(found.is_none(), "{found:?}");
    }
    assert!(tree.lines().any(|l| l.starts_with("naga")), "the tree is the real one");
    // Only the kernel crate contains the text of kernels.
    let mut backends = sources("backends/blade/src");
    backends.extend(sources("backends/cuda/src"));
    for file in backends {
        // Documentation may contain some.
        let code = code(&file);
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = ["workgroupBarrier", "@compute", "var<storage", "vec4<f32>"];
        let found = lines.find(|line| words.iter().any(|word| line.contains(word)));
        assert!(found.is_none(), "{} contains {found:?}", file.display());
    }
}

#[test]
fn plugins_need_nothing_of_the_host() {
    let tree = dependencies("meganeura-plugin-abi");
    assert_eq!(tree.lines().count(), 1, "{tree}");
    let tree = dependencies("meganeura-plugin-data");
    let own: Vec<&str> = tree.lines().filter(|l| l.starts_with("meganeura")).collect();
    let known = ["meganeura-core", "meganeura-compiler", "meganeura-plugin-data"];
    assert!(own.iter().all(|l| known.iter().any(|k| l.starts_with(k))), "{own:?}");
    // Kernels are text, so checking them needs no driver.
    let driver = tree.lines().find(|l| l.starts_with("blade") || l.starts_with("ash"));
    assert!(driver.is_none(), "{driver:?}");
    // Neither the core nor a backend loads plugins; the facade links the loader.
    let tree = dependencies("meganeura-plugin-host");
    let own: Vec<&str> = tree.lines().filter(|l| l.starts_with("meganeura")).collect();
    let known = [
        "meganeura-core",
        "meganeura-compiler",
        "meganeura-plugin-abi",
        "meganeura-plugin-data",
        "meganeura-plugin-host",
    ];
    assert!(own.iter().all(|l| known.iter().any(|k| l.starts_with(k))), "{own:?}");
}

/// Users of the library do not build dependencies that only programs, benchmarks and tests need.
#[test]
fn the_library_needs_nothing_of_programs() {
    let all = dependencies("meganeura");
    for banned in [
        "env_logger",
        "indicatif",
        "criterion",
        "meganeura-conformance",
        "meganeura-bench",
    ] {
        let found = all.lines().find(|l| l.starts_with(banned));
        assert!(found.is_none(), "{found:?}");
    }
    assert!(all.contains("meganeura-llm"), "the tree is the real one");
    // Reports of egglog derive one of its traits with any features; no crate of this workspace needs it.
    let of_clap = tree("meganeura", &["--invert", "clap", "--depth", "1"]);
    let others: Vec<&str> = of_clap.lines().filter(|l| !l.starts_with("clap ")).collect();
    assert!(others.iter().all(|l| l.starts_with("egglog")), "{others:?}");
}

#[test]
fn layers_and_models_bring_no_tokenizer() {
    let tree = dependencies("meganeura-nn");
    let banned = ["tokenizers", "minijinja", "memmap2", "meganeura-llm"];
    let found = tree.lines().find(|l| banned.iter().any(|b| l.starts_with(b)));
    assert!(found.is_none(), "{found:?}");
}

/// Returns the code of a crate's files without tests, by module.
fn texts(folder: &str) -> BTreeMap<circles::Module, String> {
    let mut texts = BTreeMap::new();
    for file in sources(folder) {
        let path = file.strip_prefix(root().join(folder)).expect("it is in the folder");
        let path = path.to_string_lossy().replace('\\', "/");
        let is_test = path
            .split('/')
            .any(|part| part == "tests" || part.ends_with("tests.rs"));
        if !is_test {
            texts.insert(circles::module_of(&path), code(&file));
        }
    }
    texts
}

/// Layers of the core, from modules that depend on no other layer to modules that depend on all. Modules of one layer
/// may refer to each other. Graphs contain operators, whose decompositions build graphs and are evaluated by the
/// oracle, and rule sets add operators; a plan is compiled for a device, which runs plans.
const CORE_LAYERS: &[&[&str]] = &[
    &["dtype"],
    &["shape"],
    &["error"],
    &[
        "files",
        "pattern",
        "parallel",
        "random",
        "mode",
        "storage",
        "memory_budget",
        "quantization",
        "loss_scaling",
        "precision",
        "host_memory",
    ],
    &["init"],
    &["attrs", "graph", "program", "ops", "reference", "rule_set"],
    &["statistics", "autodiff", "kernel"],
    &["cost", "config"],
    &["plan", "backend"],
    &["profiler", "registry"],
    &["cache", "fallback", "debug", "calibration", "distributed"],
    &["select"],
    &["session"],
    &["replay"],
];

/// Layers of the compiler.
const COMPILER_LAYERS: &[&[&str]] = &[
    &["rewrite", "cluster", "channels_last"],
    &["optimize", "compile", "link"],
    &["builder"],
    &["model"],
    &["measure"],
];

/// Layers of the CPU backend: helpers of kernels, the kernel interface, the kernels, and their execution.
const CPU_LAYERS: &[&[&str]] = &[
    &["few_bits"],
    &["faults", "memory", "share", "simd", "vmath"],
    &["prefetch"],
    &["pool"],
    &["arena", "order", "transfer"],
    &["gemm"],
    &["kernel"],
    &["kernels"],
    &["executor"],
    &["backend"],
];

/// Layers of language models: files, their contents, a model with its weights, text.
const LLM_LAYERS: &[&[&str]] = &[
    &[
        "files",
        "large_stack",
        "pooling",
        "processor_time",
        "softmax",
        "special",
    ],
    &["template"],
    &["sampling", "tensors"],
    &["adapters", "gguf"],
    &["checkpoint", "config", "chat", "plans"],
    &["embedder", "engine", "generator", "hub", "saving", "tokenizer"],
    &["examples", "library"],
];

fn assert_layers(folder: &str, layers: &[&[&str]], at_least: usize) {
    let texts = texts(folder);
    let layer = |module: &str| layers.iter().position(|layer| layer.contains(&module));
    let mut seen = 0;
    for (file, named) in circles::named(&texts) {
        let Some(own) = file.first() else { continue };
        let own_layer = layer(own).unwrap_or_else(|| panic!("{folder}/{own} has no layer: add it to the list"));
        for other in named.iter().filter_map(|module| module.first()) {
            seen += 1;
            let other_layer = layer(other).unwrap_or_else(|| panic!("{folder}/{other} has no layer"));
            assert!(
                own == other || other_layer <= own_layer,
                "{folder}/{} names {other}, which is of a higher layer",
                file.join("/")
            );
        }
    }
    assert!(seen > at_least, "{seen} paths");
}

#[test]
fn modules_know_those_beneath_them_only() {
    assert_layers("core/src", CORE_LAYERS, 300);
    assert_layers("core/compiler/src", COMPILER_LAYERS, 50);
    assert_layers("backends/cpu/src", CPU_LAYERS, 250);
    assert_layers("llm/src", LLM_LAYERS, 40);
}

#[test]
fn files_name_each_other_in_small_circles_only() {
    for folder in [
        "backends/blade/src",
        "backends/cpu/src",
        "backends/cuda/src",
        "benches/src",
        "cli/src",
        "core/compiler/src",
        "core/src",
        "formats/onnx/src",
        "fusion-rules/src",
        "llm/src",
        "nn/src",
        "plugins/abi/src",
        "plugins/data/src",
        "plugins/host/src",
        "plugins/mpi/src",
        "serve/src",
        "shaders/src",
        "tests/conformance/src",
    ] {
        for circle in circles::circles(&texts(folder)) {
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            assert!(
                circle.len() <= MAX_CIRCLE,
                "{} files of {folder} name each other in a circle: {}",
                circle.len(),
                names.join(", ")
            );
        }
    }
}

#[test]
fn passes_name_no_operator() {
    let mut files = sources("core/src");
    files.extend(sources("core/compiler/src"));
    let ops = root().join("core/src/ops");
    let is_test = |f: &std::path::PathBuf| f.file_stem().is_some_and(|n| n.to_string_lossy().ends_with("tests"));
    files.retain(|f| !f.starts_with(&ops));
    for backend in ["backends/blade/src", "backends/cpu/src", "backends/cuda/src"] {
        let kernels = root().join(backend).join("kernels");
        files.extend(sources(backend).into_iter().filter(|f| !f.starts_with(&kernels)));
    }
    files.retain(|f| !is_test(f));
    assert!(files.len() > 20);
    for file in files {
        let code = code(&file);
        // Documentation may name an operator; a string literal in code is a dependency on it.
        let named = code
            .lines()
            .filter(|l| !l.trim_start().starts_with("//"))
            .find(|l| l.contains("\"core.") || l.contains("\"optim."));
        assert!(named.is_none(), "{}: {named:?}", file.display());
    }
}

#[test]
fn every_operator_has_its_line_in_the_table_and_its_documentation() {
    let ops = meganeura::registry::ops();
    assert!(ops.len() > 60, "{}", ops.len());
    for op in ops {
        assert!(op.name().contains('.'), "{} has no namespace", op.name());
        assert!(
            !op.doc().formula.is_empty() && !op.doc().source.is_empty(),
            "{}",
            op.name()
        );
    }
}

#[test]
fn files_stay_readable() {
    // Tables may be longer.
    let exempt = ["unary_table.rs"];
    for folder in [
        "core",
        "backends",
        "cli",
        "fusion-rules",
        "llm",
        "nn",
        "plugins",
        "shaders",
        "src",
        "tests",
        "benches",
        "examples",
    ] {
        for file in sources(folder) {
            let lines = fs::read_to_string(&file).expect("readable").lines().count();
            let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            assert!(
                lines <= 600 || exempt.contains(&name),
                "{} has {lines} lines",
                file.display()
            );
        }
    }
}

#[test]
fn no_unfinished_code() {
    for folder in [
        "core/src",
        "core/compiler/src",
        "backends",
        "benches/src",
        "cli/src",
        "llm/src",
        "nn/src",
        "plugins",
        "shaders",
        "src",
        "tests/conformance/src",
    ] {
        for file in sources(folder) {
            let code = code(&file);
            for word in ["todo!(", "unimplemented!(", "FIXME", "XXX"] {
                assert!(!code.contains(word), "{} contains {word}", file.display());
            }
        }
    }
}

#[test]
fn every_variable_has_its_line_in_the_page_of_settings() {
    let page = fs::read_to_string(root().join("docs/settings.md")).expect("readable");
    let mut count = 0;
    for folder in [
        "core/src",
        "core/compiler/src",
        "backends/cpu/src",
        "backends/blade/src",
        "backends/cuda/src",
        "benches/src",
        "cli/src",
        "plugins/host/src",
        "shaders/src",
        "src",
    ] {
        for file in sources(folder) {
            let text = code(&file);
            let names = text
                .split("\"MEGANEURA_")
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            for name in names {
                let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
                assert!(
                    !is_name || page.contains(&format!("| `MEGANEURA_{name}` |")),
                    "docs/settings.md lacks MEGANEURA_{name} of {}",
                    file.display()
                );
                count += usize::from(is_name);
            }
        }
    }
    assert!(count >= 7, "{count}");
}

/// Returns the repository paths in the text of a page, and the files that it links to.
fn named_paths(page: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(page).expect("readable");
    let folders = fs::read_dir(root()).expect("readable").flatten();
    // Excludes build folders, which may not exist yet.
    let folders = folders
        .filter(|f| f.path().is_dir() && f.file_name() != "target")
        .map(|f| format!("{}/", f.file_name().to_string_lossy()));
    let folders: Vec<String> = folders.collect();
    let words = text.split(|c: char| c.is_whitespace() || "`()[]\"',;|=:#".contains(c));
    let words = words.map(|word| word.trim_end_matches('.'));
    // Patterns match several paths.
    let paths = words.filter(|w| folders.iter().any(|f| w.starts_with(f)) && !w.contains(['*', '{', '<', '$']));
    let links = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next());
    let links = links.filter(|link| !link.is_empty() && !link.contains(':'));
    let beside = page.parent().expect("it is in a folder");
    let links = links.map(|link| beside.join(link));
    paths.map(|path| root().join(path)).chain(links).collect()
}

#[test]
fn pages_name_files_that_are_there() {
    // Files of the crates that readers of the guides create.
    let theirs = ["tests/sum.rs", "tests/conformance.rs", "src/main.rs"].map(|path| root().join(path));
    let docs = fs::read_dir(root().join("docs")).expect("readable").flatten();
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.path()).collect();
    pages.extend(["README.md", "ARCHITECTURE.md"].map(|page| root().join(page)));
    let mut count = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|e| e == "md")) {
        for path in named_paths(page).into_iter().filter(|path| !theirs.contains(path)) {
            // Modules are named without the extension of their file.
            let is_there = path.exists() || path.with_extension("rs").exists();
            assert!(is_there, "{} names {}", page.display(), path.display());
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}
