//! Tests of shared objects as plugins.

use std::path::{Path, PathBuf};

use super::{json_lines, meganeura, run};
use compile::{compile, set_mode};

#[path = "../../../plugins/host/tests/plugins/compile.rs"]
mod compile;

/// Builds the example in C in a separate folder.
fn loops(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = folder.join("libloops.so");
    let source = root.join("plugins/examples/c-loops/loops.c");
    compile(&source, &root.join("plugins/abi/include"), &["-O2".into()], &file);
    file
}

#[test]
fn a_plugin_is_listed_selected_and_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = loops(folder.path());
    let with = |args: &[&str]| {
        let mut command = meganeura(args);
        command.env("MEGANEURA_PLUGINS", &file).current_dir(folder.path());
        run(&mut command)
    };
    let (output, out, err) = with(&["plugins", "--json"]);
    assert!(output.status.success(), "{err}");
    let lines = json_lines(&out);
    let plugin = lines.iter().find(|l| l["kind"] == "plugin").expect("it is listed");
    assert_eq!((&plugin["name"], &plugin["abi"]), (&"loops".into(), &"1.0".into()));
    assert!(
        plugin["loaded"] == true && plugin["sha256"].as_str().is_some_and(|s| s.len() == 64),
        "{plugin}"
    );
    let backend = lines.iter().find(|l| l["kind"] == "backend" && l["name"] == "loops");
    assert!(
        backend.is_some_and(|b| b["origin"].to_string().contains("libloops.so")),
        "{out}"
    );

    let (output, out, err) = with(&["train", "digits", "--epochs", "1", "--device", "loops", "--json"]);
    assert!(output.status.success(), "{err}");
    let last = json_lines(&out).pop().expect("a summary");
    assert!(
        last["device"] == "loops:0" && last["test_accuracy"].as_f64().is_some_and(|a| a > 0.8),
        "{last}"
    );

    let args = [
        "conformance",
        "--device",
        "loops",
        "--filter",
        "core.matmul/",
        "--seeds",
        "1",
        "--html",
        "report.html",
    ];
    let (output, _, err) = with(&args);
    assert!(output.status.success(), "{err}");
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a page");
    assert!(page.contains("loops:0") && page.contains("core.matmul"), "{page}");

    let explain = ["explain", "mlp", "--train", "--device", "loops", "--cache", "plan.ron"];
    let (output, _, err) = with(&explain);
    assert!(output.status.success(), "{err}");
    let diff = ["diff", "--plan", "plan.ron", "--device", "loops", "--device", "cpu"];
    let (output, out, err) = with(&diff);
    assert!(
        output.status.success() && out.contains("loops:0 and cpu agree on all"),
        "{out}{err}"
    );
    let strict = [&diff[..], &["--tolerance", "1e-12", "--json"]].concat();
    let (output, out, err) = with(&strict);
    assert!(!output.status.success(), "{err}");
    let found = json_lines(&out).pop().expect("an object");
    assert!(found["divergence"]["kernel"].is_string(), "{found}");
}

/// Builds a plugin in C that misbehaves.
fn hostile(folder: &Path, case: u32) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = folder.join(format!("libhostile{case}.so"));
    let options = [format!("-DCASE={case}"), "-DNAME=hostile".into()];
    let source = root.join("plugins/host/tests/plugins/hostile.c");
    compile(&source, &root.join("plugins/abi/include"), &options, &file);
    file
}

#[test]
fn plugins_that_end_their_process_are_refused_and_the_program_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        (40, "as if all were well"),
        (42, "signal: 6"),
        // The plugin is loaded when devices are listed.
        (43, "as if all were well"),
        (44, "signal: 6"),
        (45, "as if all were well"),
        (46, "the process that tried it"),
    ];
    for (case, words) in cases {
        let file = hostile(folder.path(), case);
        let mut command = meganeura(&["train", "digits", "--epochs", "1", "--device", "cpu", "--json"]);
        let (output, out, err) = run(command.env("MEGANEURA_PLUGINS", &file).current_dir(folder.path()));
        assert!(output.status.success(), "case {case}: {err}");
        assert!(
            json_lines(&out)
                .pop()
                .is_some_and(|last| last["test_accuracy"].is_f64()),
            "case {case}: {out}"
        );
        let mut command = meganeura(&["plugins", "--json"]);
        let (output, out, _) = run(command.env("MEGANEURA_PLUGINS", &file).current_dir(folder.path()));
        let lines = json_lines(&out);
        let plugin = lines.iter().find(|l| l["kind"] == "plugin").expect("it is listed");
        assert!(
            !output.status.success() && plugin["refused"].to_string().contains(words),
            "{plugin}"
        );
        assert_eq!(plugin["name"], "hostile");
        if case == 45 {
            let mut command = meganeura(&["devices", "--strict-plugins"]);
            let (output, out, err) = run(command.env("MEGANEURA_PLUGINS", &file));
            assert!(!output.status.success() && err.contains(words), "{out}{err}");
            let mut command = meganeura(&["train", "digits", "--epochs", "1", "--device", "hostile", "--out", "m"]);
            let (output, _, err) = run(command.env("MEGANEURA_PLUGINS", &file).current_dir(folder.path()));
            assert!(!output.status.success() && err.contains(words), "{err}");
        }
    }
}

#[test]
fn plugins_without_native_code_are_tried_within_the_limits_of_the_shell() {
    let folder = tempfile::tempdir().expect("a folder");
    let plugin = folder.path().join("odd.toml");
    std::fs::write(&plugin, "name = \"odd\"\n").expect("written");
    set_mode(&plugin, 0o644);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -t 100; ulimit -v 8000000; exec \"$0\" plugins --json"]);
    shell
        .arg(env!("CARGO_BIN_EXE_meganeura"))
        .env("MEGANEURA_PLUGINS", &plugin);
    let (_, out, err) = run(&mut shell);
    assert!(!out.contains("could not be started"), "{out}{err}");
    assert!(json_lines(&out).iter().any(|l| l["kind"] == "plugin"), "{out}{err}");
}

#[test]
fn what_is_refused_is_named_where_it_is_missed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = loops(folder.path());
    let config = folder.path().join("meganeura.toml");
    let text = format!("[plugins]\nload = [{file:?}]\nallow_sha256 = ['00']\n");
    std::fs::write(&config, text).expect("written");
    // A file in the current folder is not loaded, because it may come from anyone.
    let (output, _, err) = run(meganeura(&["devices"]).current_dir(folder.path()));
    assert!(!output.status.success());
    assert!(
        err.contains("must not load plugins") && err.contains("MEGANEURA_CONFIG"),
        "{err}"
    );
    let in_folder = |args: &[&str]| run(meganeura(args).env("MEGANEURA_CONFIG", &config));
    let (output, out, _) = in_folder(&["plugins"]);
    assert!(!output.status.success());
    assert!(out.contains("refused") && out.contains("is not on the list"), "{out}");
    let (output, _, err) = in_folder(&["train", "digits", "--device", "loops"]);
    assert!(!output.status.success(), "{err}");
    assert!(
        err.contains("the backend 'loops' was not loaded: its SHA-256 sum"),
        "{err}"
    );
}

#[test]
fn a_plugin_without_native_code_is_listed_beside_one_that_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let router = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/examples/router");
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "format = 1\nname = \"broken\"\nversion = \"1\"\n").expect("written");
    set_mode(&broken, 0o644);
    let paths = std::env::join_paths([&broken, &router]).expect("paths");
    let with = |args: &[&str]| run(meganeura(args).env("MEGANEURA_PLUGINS", &paths));
    let (output, out, err) = with(&["plugins", "--json"]);
    assert!(!output.status.success(), "one is refused: {err}");
    let lines = json_lines(&out);
    let plugin = |name: &str| lines.iter().find(|l| l["kind"] == "plugin" && l["name"] == name);
    let refused = plugin("broken").expect("it is listed");
    assert!(
        refused["loaded"] == false && refused["refused"].to_string().contains("neither operators nor rules"),
        "{refused}"
    );
    let loaded = plugin("router").expect("it is listed");
    assert!(loaded["loaded"] == true && loaded["version"] == "0.1.0", "{loaded}");
    assert_eq!(loaded["brings"]["kernels"][0], "router.choose");
    let op = lines.iter().find(|l| l["kind"] == "op" && l["name"] == "router.choose");
    assert!(op.is_some_and(|op| op["origin"] == "plugin router 0.1.0"), "{op:?}");

    let (_, out, _) = with(&["plugins"]);
    assert!(
        out.contains("operators: router.choose; rules: Softmax+TopK→Choose"),
        "{out}"
    );
    let (output, out, err) = with(&["plugins", "verify", "router"]);
    assert!(
        output.status.success() && out.contains("2 rules, 0 failures"),
        "{out}{err}"
    );
    for (path, code, words) in [
        (&router, 0, "router.choose"),
        (&broken, 1, "neither operators nor rules"),
    ] {
        let path = path.to_str().expect("a path in UTF-8");
        let (output, out, err) = run(&mut meganeura(&["plugins", "check", path]));
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert!(format!("{out}{err}").contains(words), "{out}{err}");
    }
    let args = [
        "conformance",
        "--device",
        "cpu",
        "--filter",
        "router.choose/",
        "--seeds",
        "1",
    ];
    let (output, out, err) = with(&args);
    assert!(output.status.success(), "{out}{err}");
}

/// The process that tests the second plugin loads the first one before it.
#[test]
fn a_plugin_may_have_rules_for_operators_of_one_before_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, rules: &str, body: &str| {
        let path = folder.path().join(format!("{name}.toml"));
        let text = format!(
            "format = 1\nname = \"{name}\"\nversion = \"1\"\n{rules}[[op]]\nname = \"twice\"\nformula = \"2 x\"\n\
             inputs = [{{ name = \"x\", shape = [\"...\"] }}]\noutputs = [{{ name = \"y\", shape = [\"...\"] }}]\n\
             let = {{ y = \"{body}\" }}\n"
        );
        std::fs::write(&path, text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&path, mode).expect("it is ours");
        path
    };
    let first = write("first", "", "(core.mul x 2)");
    let rule = "rules_text = '(rewrite (first.twice x) (second.twice x) :ruleset always :name \"Twice→Twice\")'\n";
    let second = write("second", rule, "(core.add x x)");
    let loaded = |paths: &[&std::path::PathBuf]| {
        let paths = std::env::join_paths(paths).expect("paths");
        let (_, out, err) = run(meganeura(&["plugins", "--json"]).env("MEGANEURA_PLUGINS", paths));
        let lines = json_lines(&out);
        let mut found = lines
            .into_iter()
            .filter(|l| l["kind"] == "plugin" && l["name"] == "second");
        found.next_back().unwrap_or_else(|| panic!("{err}"))
    };
    let both = loaded(&[&first, &second]);
    assert!(
        both["loaded"] == true && both["brings"]["rules"][0] == "Twice→Twice",
        "{both}"
    );
    let alone = loaded(&[&second]);
    assert!(
        alone["loaded"] == false && alone["refused"].to_string().contains("first.twice"),
        "{alone}"
    );
    let [first, second] = [&first, &second].map(|path| path.to_str().expect("a path in UTF-8"));
    let (output, out, err) = run(&mut meganeura(&["plugins", "check", "--after", first, second]));
    assert!(output.status.success() && out.contains("second.twice"), "{out}{err}");
    let (output, _, err) = run(&mut meganeura(&["plugins", "check", "--after", "/nowhere", second]));
    assert!(!output.status.success() && err.contains("/nowhere"), "{err}");
}

#[test]
fn diff_wants_a_plan_and_two_devices() {
    for (args, words) in [
        (vec!["diff", "--device", "cpu", "--device", "cpu"], "--plan"),
        (vec!["diff", "--plan", "x.ron"], "--device"),
        (vec!["diff", "--plan", "x.ron", "--device", "cpu"], "two devices"),
        (
            vec!["diff", "--plan", "absent.ron", "--device", "cpu", "--device", "cpu"],
            "does not exist",
        ),
        (
            vec!["diff", "--plan", "Cargo.toml", "--device", "cpu", "--device", "cpu"],
            "not a file of a plan",
        ),
    ] {
        let (output, _, err) = run(meganeura(&args).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")));
        assert!(!output.status.success() && err.contains(words), "{args:?}: {err}");
    }
}
