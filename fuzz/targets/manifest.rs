//! Target: manifests of plugins without native code, together with the rules and the kernel of the example.
#![no_main]

use meganeura_fuzz::{target, text};
use meganeura_plugin_data::{Manifest, Plugin};

const ROUTER: &str = include_str!("../../plugins/examples/router/plugin.toml");

fn seeds() -> Vec<Vec<u8>> {
    vec![ROUTER.into()]
}

target!(seeds: seeds, change: text::change, |data| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(manifest) = Manifest::parse(text)
        && manifest.files().is_ok()
    {
        // Rules may run for seconds: another target covers them.
        let files = [
            ("router.egg", ""),
            ("choose.wgsl", include_str!("../../plugins/examples/router/choose.wgsl")),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let _ = Plugin::new(&manifest, &files.into());
    }
});
