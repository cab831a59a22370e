//! Snapshots of representative kernels in `shaders/snapshots/`. They show the effect of a change of the generators on
//! the kernels.
//!
//! The shortest variant of each kernel file is stored as a whole (`KERNEL.CALL.wgsl`). For each other variant,
//! `KERNEL.variants.txt` lists only the replaced constants, aliases, functions and insertions that differ from those
//! of the stored one. `MEGANEURA_UPDATE_SNAPSHOTS=1 cargo test -p meganeura-shaders --test snapshots` rewrites all
//! files.

mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use meganeura_shaders::{KERNEL_FILES, Launch};
use naga::AddressSpace;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Returns the snapshots by their file names.
fn snapshots() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for (kernel, launches) in calls::launches() {
        let whole = launches
            .iter()
            .min_by_key(|(name, launch)| (launch.source.len(), *name));
        let (whole, base) = whole.expect("a kernel has a launch");
        files.insert(format!("{kernel}.{whole}.wgsl"), base.source.clone());
        let others = launches.iter().filter(|(name, _)| *name != whole);
        let others: Vec<String> = others.map(|(name, launch)| variant(name, launch, base)).collect();
        if !others.is_empty() {
            files.insert(format!("{kernel}.variants.txt"), others.join("\n"));
        }
    }
    files
}

/// Describes a variant by its differences from the variant `base`.
fn variant(name: &str, launch: &Launch, base: &Launch) -> String {
    let parts = |launch: &Launch| {
        let replacements = launch.replacements.as_ref().expect("the kernel has a file");
        replacements.parts(&launch.source)
    };
    let (own, base) = (parts(launch), parts(base));
    let mut text = format!("== {name}\nbuffers: {}\n", launch.names.join(", "));
    let differ = own.iter().filter(|(part, value)| base.get(*part) != Some(value));
    let (constants, others): (Vec<_>, Vec<_>) = differ.partition(|(part, _)| part.starts_with("constant "));
    let constants: Vec<String> = constants
        .iter()
        .map(|(part, value)| format!("{} = {value}", part.trim_start_matches("constant ")))
        .collect();
    if !constants.is_empty() {
        text += &format!("constants: {}\n", constants.join(", "));
    }
    for (part, value) in others {
        let lines: String = value.lines().map(|line| format!("    {line}\n")).collect();
        text += &format!("{part}:\n{lines}");
    }
    let missing: Vec<&str> = base
        .keys()
        .filter(|part| !own.contains_key(*part))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        text += &format!("not replaced: {}\n", missing.join(", "));
    }
    text
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots")
}

/// Returns the names of the stored files.
fn files() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder()) else {
        return BTreeSet::new();
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

/// Describes the first difference between a file and a text: the line number, and both lines.
fn difference(file: &str, text: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (file.lines().collect(), text.lines().collect());
    let at = (0..old.len().max(new.len())).find(|&i| old.get(i) != new.get(i));
    let at = at.unwrap_or_default();
    let line = |lines: &[&str]| lines.get(at).map_or("(the end)", |line| *line).to_owned();
    format!("line {}\n  file: {}\n  now:  {}", at + 1, line(&old), line(&new))
}

#[test]
fn kernels_are_what_the_snapshots_show() {
    const UPDATE: &str = "MEGANEURA_UPDATE_SNAPSHOTS=1 cargo test -p meganeura-shaders --test snapshots";
    let snapshots = snapshots();
    let stale = files().into_iter().filter(|name| !snapshots.contains_key(name));
    if std::env::var_os("MEGANEURA_UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(folder()).expect("the folder");
        for name in stale {
            fs::remove_file(folder().join(name)).expect("a stale snapshot");
        }
        for (name, text) in &snapshots {
            fs::write(folder().join(name), text).expect("a snapshot");
        }
        return;
    }
    let stale = stale.map(|name| format!("{name}: no call makes it"));
    let changed = snapshots.iter().filter_map(|(name, text)| {
        let Ok(file) = fs::read_to_string(folder().join(name)) else {
            return Some(format!("{name}: there is no file"));
        };
        let file = file.replace("\r\n", "\n");
        (file != *text).then(|| format!("{name}: {}", difference(&file, text)))
    });
    let wrong: Vec<String> = stale.chain(changed).collect();
    assert!(wrong.is_empty(), "{}\nIf this is meant: {UPDATE}", wrong.join("\n"));
}

#[test]
fn every_kernel_file_has_a_snapshot() {
    let used: BTreeSet<&str> = calls::launches().into_keys().collect();
    for kernel in KERNEL_FILES.iter().map(|file| file.name) {
        assert!(used.contains(kernel), "no snapshot shows {kernel}");
    }
}

#[test]
fn kernels_translate() {
    for (kernel, launches) in calls::launches() {
        for (name, launch) in launches {
            translate(&format!("{kernel}.{name}"), &launch);
        }
    }
}

/// Translates a kernel to the languages of Vulkan and Metal.
fn translate(name: &str, launch: &Launch) {
    let parsed = naga::front::wgsl::parse_str(&launch.source);
    let mut module = parsed.unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&launch.source)));
    // Bindings are added here, because hosts bind variables by name.
    for (binding, (_, variable)) in (0..).zip(module.global_variables.iter_mut()) {
        if matches!(variable.space, AddressSpace::Storage { .. } | AddressSpace::Uniform) {
            variable.binding = Some(naga::ResourceBinding { group: 0, binding });
        }
    }
    let capabilities = Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
    let valid = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = valid.unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&launch.source)));
    let options = naga::back::spv::Options {
        lang_version: (1, 3),
        ..naga::back::spv::Options::default()
    };
    let spv = naga::back::spv::write_vec(&module, &info, &options, None);
    assert!(spv.is_ok_and(|words| !words.is_empty()), "{name} as SPIR-V");
    let options = naga::back::msl::Options {
        fake_missing_bindings: true,
        lang_version: (2, 4),
        ..naga::back::msl::Options::default()
    };
    let pipeline = naga::back::msl::PipelineOptions::default();
    let msl = naga::back::msl::write_string(&module, &info, &options, &pipeline);
    assert!(msl.is_ok(), "{name} as MSL: {:?}", msl.err());
}
