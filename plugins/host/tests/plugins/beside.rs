//! Tests of plugins that are linked with a library in their folder.

use std::fs;
use std::path::{Path, PathBuf};

use super::common::{Folder, assert_names, compile_hostile, refusal, set_mode};
use meganeura_core::Result;
use meganeura_core::config::Config;
use meganeura_core::files::sha256;
use meganeura_plugin_host::open_backend;

/// Builds a library with a function that returns this word.
fn helper(to: &Path, word: &str) {
    compile_hostile(&[format!("-DMAKE_HELPER={word}")], to);
}

/// Builds a plugin that is linked with `libNAME.so`, which the system searches for in `look_in`.
fn plugin(folder: &Folder, name: &str, library: &Path, look_in: &[&str]) -> PathBuf {
    let link = look_in.iter().map(|path| format!("-Wl,-rpath,{path}"));
    let place = library.parent().expect("a folder").display();
    let stem = library.file_name().and_then(|n| n.to_str()).expect("a name");
    let own = [
        "-DHELPER".into(),
        "-Wl,--no-as-needed".into(),
        format!("-L{place}"),
        format!("-l:{stem}"),
    ];
    let options: Vec<String> = own.into_iter().chain(link).collect();
    folder.build(0, name, &options)
}

/// Returns the name of the first device, which comes from the library.
fn device_name(plugin: &Path, allow: Option<&[String]>) -> Result<String> {
    let backend = open_backend(plugin, allow)?;
    Ok(backend.devices(&Config::default())?.remove(0).name)
}

#[test]
fn they_are_found_relative_to_the_plugin() {
    let folder = Folder::new();
    fs::create_dir(folder.path("lib")).expect("made");
    for (name, place, look_in) in [
        ("same", "libsame-helper.so", &["$ORIGIN"][..]),
        ("below", "lib/libbelow-helper.so", &["${ORIGIN}/lib"]),
        (
            "second",
            "lib/libsecond-helper.so",
            &["$ORIGIN", "$ORIGIN/lib", "/usr/lib"],
        ),
        ("older", "libolder-helper.so", &["$ORIGIN,--disable-new-dtags"]),
    ] {
        let library = folder.path(place);
        helper(&library, &format!("helper_of_{name}"));
        let file = plugin(&folder, name, &library, look_in);
        let found = device_name(&file, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found, format!("helper_of_{name}"));
        // Also through a link from another folder: the location of the file itself counts.
        let elsewhere = Folder::new();
        std::os::unix::fs::symlink(&file, elsewhere.path("link.so")).expect("linked");
        assert_eq!(device_name(&elsewhere.path("link.so"), None).expect("it loads"), found);
    }
}

#[test]
fn they_are_held_to_the_same_rules() {
    let folder = Folder::new();
    let library = folder.path("librights-helper.so");
    helper(&library, "right");
    let file = plugin(&folder, "rights", &library, &["$ORIGIN"]);
    set_mode(&library, 0o777);
    let words = [
        "librights-helper.so, which it is linked with",
        "can be written by others",
    ];
    assert_names(&refusal(&file), "rights", &words);
    set_mode(&library, 0o755);

    let sum = |path: &Path| sha256([&fs::read(path).expect("readable")[..]]);
    let error = device_name(&file, Some(&[sum(&file)]))
        .expect_err("one of two sums")
        .to_string();
    assert_names(
        &error,
        "rights",
        &["librights-helper.so", "is not on the list", &sum(&library)],
    );
    let both = [sum(&file), sum(&library)];
    assert_eq!(device_name(&file, Some(&both)).expect("both sums"), "right");
}

#[test]
fn folders_that_depend_on_where_the_program_runs_are_refused() {
    let folder = Folder::new();
    let library = folder.path("libcwd-helper.so");
    helper(&library, "cwd");
    for (name, look_in) in [("dot", "."), ("inner", "$ORIGIN:lib"), ("token", "$ORIGIN/$LIB")] {
        let file = plugin(&folder, name, &library, &[look_in]);
        let words = ["it searches for libraries in", "$ORIGIN"];
        assert_names(&refusal(&file), name, &words);
    }
}

#[test]
fn one_that_is_missing_is_named() {
    let folder = Folder::new();
    let library = folder.path("libabsent-helper.so");
    helper(&library, "absent");
    let file = plugin(&folder, "lacking", &library, &["$ORIGIN"]);
    fs::remove_file(&library).expect("removed");
    assert_names(
        &refusal(&file),
        "lacking",
        &["the system cannot load it", "libabsent-helper.so"],
    );
    // The same file loads as soon as the library exists.
    helper(&library, "present");
    assert_eq!(device_name(&file, None).expect("it is there"), "present");
}
