//! Tests of tuning with the operands of a plan in mixed precision.

use std::time::Duration;

use meganeura_blade::BladeBackend;
use meganeura_core::backend::Backend as _;
use meganeura_core::backend::{Tune, TuneOptions};
use meganeura_core::config::Config;
use meganeura_core::graph::Graph;
use meganeura_core::plan::compile_at;
use meganeura_core::precision::Precision;

use crate::devices;

/// Variants with and without cooperative matrices agree. The second matmul reads the result of the first one in `f16`
/// if it uses cooperative matrices, else in `f32`.
#[test]
fn ways_on_and_off_matrix_units_agree() {
    if devices().is_empty() {
        return;
    }
    let config: Config = toml::from_str("[backend.blade]\ncoop_min_workgroups = 0").expect("a configuration");
    let listed = BladeBackend.devices(&config).expect("a listing");
    let usable = listed.iter().find(|d| d.rejected.is_none()).expect("a device");
    let device = BladeBackend.open_device(usable.index, &config).expect("it opens");
    let mut g = Graph::new();
    let (x, first, second) = (
        g.input("x", &[33, 70]),
        g.parameter("first", &[70, 52]),
        g.parameter("second", &[52, 20]),
    );
    let hidden = g.matmul(x, first);
    let y = g.matmul(hidden, second);
    g.set_outputs(vec![y]);
    let plan = compile_at(&g, &*device, Precision::Mixed).expect("a plan");
    let options = TuneOptions {
        time: Duration::from_secs(20),
        keep: false,
    };
    let all = device
        .tune(&[plan], &options, &mut |_, _, _| {})
        .expect("it is measured");
    assert_eq!(all.len(), 2);
    for tuned in all {
        assert!(tuned.default.starts_with("matmul_coop"), "{tuned:?}");
        assert_eq!(tuned.skipped, None, "{tuned:?}");
        assert!(tuned.timed > 0, "{tuned:?}");
        assert!(!tuned.refused.iter().any(|refusal| refusal.wrong), "{tuned:?}");
    }
}
