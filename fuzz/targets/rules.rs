//! Target: texts of rule sets.
#![no_main]

use std::borrow::Cow;

use meganeura_compiler::rewrite::RuleSet;
use meganeura_compiler::rewrite::rule::parse;
use meganeura_fuzz::{seed, target, text};

fn seeds() -> Vec<Vec<u8>> {
    vec![
        seed!("fusion-rules/rules/pooling.egg"),
        seed!("fusion-rules/rules/swiglu.egg"),
        seed!("fusion-rules/rules/convolution.egg"),
        seed!("fusion-rules/rules/parts.egg"),
        seed!("plugins/examples/router/router.egg"),
    ]
}

target!(seeds: seeds, change: text::change, |data| {
    if let Ok(text) = std::str::from_utf8(data) {
        let mut set = RuleSet::new("fuzz", 1, "");
        set.rules = Cow::Owned(text.to_owned());
        let _ = parse(&set);
    }
});
