//! The text of representative kernels, which lies in `shaders/snapshots/`: a change of the generators shows what it does to
//! kernels. `MEGANEURA_UPDATE_SNAPSHOTS=1 cargo test -p meganeura-shaders --test snapshots` writes all files anew.

mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use meganeura_shaders::{KERNEL_FILES, Launch};
use naga::AddressSpace;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// Names of files and launches: the kernel's name, that of the call, and a number where the call launches a kernel several times.
fn snapshots() -> BTreeMap<String, Launch> {
    let mut all = BTreeMap::new();
    for (name, launches) in calls::all() {
        for launch in launches {
            let free = |name: &String| !all.contains_key(name);
            let mut names = (1..).map(|number| match number {
                1 => format!("{}.{name}.wgsl", launch.kernel),
                _ => format!("{}.{name}.{number}.wgsl", launch.kernel),
            });
            let name = names.find(free).expect("numbers do not end");
            all.insert(name, launch);
        }
    }
    all
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots")
}

/// Names of the files that are there.
fn files() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder()) else {
        return BTreeSet::new();
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

/// Where a text differs from the one of a file: the number of the line, and both lines.
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
        for (name, launch) in &snapshots {
            fs::write(folder().join(name), &launch.source).expect("a snapshot");
        }
        return;
    }
    let stale = stale.map(|name| format!("{name}: no call makes it"));
    let changed = snapshots.iter().filter_map(|(name, launch)| {
        let Ok(file) = fs::read_to_string(folder().join(name)) else {
            return Some(format!("{name}: there is no file"));
        };
        let file = file.replace("\r\n", "\n");
        (file != launch.source).then(|| format!("{name}: {}", difference(&file, &launch.source)))
    });
    let wrong: Vec<String> = stale.chain(changed).collect();
    assert!(wrong.is_empty(), "{}\nIf this is meant: {UPDATE}", wrong.join("\n"));
}

#[test]
fn every_kernel_file_has_a_snapshot() {
    let used: BTreeSet<&str> = snapshots().values().map(|launch| launch.kernel).collect();
    for kernel in KERNEL_FILES.iter().map(|file| file.name) {
        assert!(used.contains(kernel), "no snapshot shows {kernel}");
    }
}

#[test]
fn snapshots_translate() {
    for (name, launch) in snapshots() {
        translate(&name, &launch);
    }
}

/// Translates to the languages of Vulkan and Metal.
fn translate(name: &str, launch: &Launch) {
    let parsed = naga::front::wgsl::parse_str(&launch.source);
    let mut module = parsed.unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&launch.source)));
    // Hosts bind by name.
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
