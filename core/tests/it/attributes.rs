//! Tests that declared attributes match the attributes of calls.

use meganeura_core::ops::sample::Sizes;
use meganeura_core::registry;

#[test]
fn every_sample_has_the_declared_attributes_in_order() {
    for op in registry::ops() {
        let declared = op.attributes();
        for sample in op.samples(&mut Sizes::new(3)) {
            let found: Vec<_> = sample.attrs.iter().map(|(name, value)| (name, value.kind())).collect();
            assert_eq!(found, declared, "{}, {}", op.name(), sample.label);
        }
    }
}
