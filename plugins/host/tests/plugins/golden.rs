//! Test that a plugin built for the first version of the interface loads and computes.

use super::common::{compile, device, repository};
use meganeura_core::config::Config;
use meganeura_core::plan::compile_for;
use meganeura_core::{Graph, Session};
use meganeura_plugin_host::open_backend;

#[test]
fn a_plugin_of_the_first_version_computes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (golden, file) = (repository("plugins/abi/golden/1.0"), folder.path().join("libnegate.so"));
    compile(
        &golden.join("negate.c"),
        &golden,
        &["-Wall".into(), "-Werror".into()],
        &file,
    );
    let backend = open_backend(&file, None).expect("it loads");
    assert_eq!(backend.info().version, "1.0.0");
    let found = backend.devices(&Config::default()).expect("it has a device");
    assert_eq!((found[0].numeric_id, &*found[0].name), (Some(17), "negation"));
    let device = device(&backend).expect("it opens");
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &*device).expect("it has the kernel");
    let mut session = Session::on(device.clone(), plan).expect("it compiles");
    for step in 1..4 {
        let k = step as f32;
        session.set_input("x", &[k, -2.0 * k, 0.5]);
        session.step();
        assert_eq!(session.read_output(3), [-k, 2.0 * k, -0.5]);
    }
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.sin(x);
    g.set_outputs(vec![y]);
    let error = compile_for(&g, &*device)
        .expect_err("it has no such kernel")
        .to_string();
    assert!(
        error.contains("it only negates f32") && error.contains("core.sin"),
        "{error}"
    );
}
