//! Tests of replaying one plan on two devices: the first dispatch with different results is reported.

use std::sync::Arc;

use meganeura_conformance::{Hook, ReferenceBackend};
use meganeura_core::Graph;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::error::Error;
use meganeura_core::plan::{Dispatch, ExecutionPlan, compile_for};
use meganeura_core::precision::Precision;
use meganeura_core::replay::{ReplayOptions, replay_on_two};

fn plan() -> ExecutionPlan {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[5]);
    let table = g.parameter("table", &[7, 3]);
    let x = g.embedding(ids, table);
    let w = g.parameter("w", &[3, 4]);
    let y = g.matmul(x, w);
    let y = g.tanh(y);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let graph = try_differentiate(&g).expect("it has a gradient");
    compile_for(&graph, &*ReferenceBackend::new().device()).expect("it has all kernels")
}

#[test]
fn equal_devices_agree() {
    let (plan, device) = (plan(), ReferenceBackend::new().device());
    let replay = replay_on_two(&plan, [&device, &device], &ReplayOptions::default()).expect("it runs");
    assert_eq!(replay.compared, plan.dispatches.len());
    assert_eq!((replay.divergence, replay.worst.map(|w| w.0)), (None, Some(0.0)));
}

#[test]
fn the_first_difference_is_named() {
    let (plan, right) = (plan(), ReferenceBackend::new().device());
    let wrong = |factor: f64| {
        let hook: Hook = Arc::new(move |dispatch: &Dispatch, outcome| {
            let mut tensors = outcome?;
            if dispatch.kernel.name == "core.tanh" {
                tensors[0].data[3] *= factor;
            }
            Ok(tensors)
        });
        ReferenceBackend::new().with_hook(hook).device()
    };
    let options = ReplayOptions::default();
    let replay = replay_on_two(&plan, [&right, &wrong(1.01)], &options).expect("it runs");
    let found = replay.divergence.expect("they differ");
    assert_eq!(
        (&*plan.dispatches[found.dispatch].kernel.name, found.element),
        ("core.tanh", 3)
    );
    assert!((found.values[1] / found.values[0] - 1.01).abs() < 1e-4, "{found}");
    assert!(
        found.to_string().contains("core.tanh") && found.to_string().contains("element 3"),
        "{found}"
    );
    // Rounding to half precision is only accepted of cooperative matrices in mixed precision.
    let mut mixed = plan.clone();
    mixed.dispatches.iter_mut().for_each(|d| d.use_coop = true);
    let agree = |plan: &ExecutionPlan| {
        replay_on_two(plan, [&right, &wrong(1.001)], &options)
            .expect("it runs")
            .divergence
            .is_none()
    };
    assert!(!agree(&mixed));
    mixed.precision = Precision::Mixed;
    assert!(agree(&mixed));
    // Within the tolerance, they agree, and later errors do not accumulate.
    let replay = replay_on_two(&plan, [&right, &wrong(1.000_001)], &options).expect("it runs");
    let (ratio, dispatch) = replay.worst.expect("something was compared");
    assert!(replay.divergence.is_none() && ratio > 0.0 && ratio < 1.0);
    assert_eq!(plan.dispatches[dispatch].kernel.name, "core.tanh");
}

#[test]
fn a_device_without_a_kernel_is_named() {
    let (plan, right) = (plan(), ReferenceBackend::new().device());
    let few = ReferenceBackend::new().primitives_only().device();
    let error = replay_on_two(&plan, [&right, &few], &ReplayOptions::default()).expect_err("it lacks kernels");
    assert!(matches!(error, Error::MissingKernels { .. }), "{error}");
}
