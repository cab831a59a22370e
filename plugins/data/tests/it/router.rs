//! Test of the plugin `plugins/examples/router`, loaded like any plugin.

use std::collections::BTreeMap;
use std::path::Path;

use meganeura_compiler::rewrite::rule_sets;
use meganeura_core::ops::sample::Sizes;
use meganeura_core::registry;
use meganeura_plugin_data::{Manifest, Plugin};

fn router() -> (Manifest, BTreeMap<String, String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/router");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it is there");
    let manifest = Manifest::parse(&read("plugin.toml")).expect("a manifest");
    let files = manifest.files().expect("files");
    let files = files.iter().map(|name| ((*name).to_owned(), read(name))).collect();
    (manifest, files)
}

#[test]
fn it_passes_its_checks_and_is_registered_once() {
    let (manifest, files) = router();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["choose.wgsl", "router.egg"]);
    let brings = Plugin::new(&manifest, &files)
        .expect("it is fine")
        .register()
        .expect("free names");
    assert_eq!(brings.ops, ["router.choose"]);
    assert_eq!(brings.rules.len(), 2);
    assert_eq!(brings.kernels, ["router.choose"]);
    let op = registry::op("router.choose").expect("registered");
    assert_eq!(op.get().ports(), ["weights", "experts_of"]);
    let samples = op.samples(&mut Sizes::new(1));
    let has_kernel = samples.iter().filter(|s| s.inputs[0].shape.last() <= Some(&64)).count();
    assert!(
        has_kernel >= 8 && samples.len() < 17,
        "{has_kernel} of {}",
        samples.len()
    );
    let sets = rule_sets();
    assert!(sets.iter().any(|s| s.set.namespace == "router" && s.rules.len() == 2));

    let error = Plugin::new(&manifest, &files).err().expect("it is there already");
    assert!(error.message.contains("'router.*' exist already"), "{error}");
}
