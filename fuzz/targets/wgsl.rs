//! Target: WGSL kernels of plugins without native code.
#![no_main]

use std::sync::OnceLock;

use meganeura_fuzz::{seed, target, text};
use meganeura_plugin_data::{Manifest, Plugin};

fn seeds() -> Vec<Vec<u8>> {
    vec![seed!("plugins/examples/router/choose.wgsl")]
}

fn manifest() -> &'static Manifest {
    static MANIFEST: OnceLock<Manifest> = OnceLock::new();
    MANIFEST.get_or_init(|| {
        let text = include_str!("../../plugins/examples/router/plugin.toml");
        Manifest::parse(text).expect("the example")
    })
}

target!(seeds: seeds, change: text::change, |data| {
    if let Ok(text) = std::str::from_utf8(data) {
        let files = [("router.egg", ""), ("choose.wgsl", text)];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let _ = Plugin::new(manifest(), &files.into());
    }
});
