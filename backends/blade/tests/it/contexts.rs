//! Tests of sessions on a context of the host application.

use std::sync::Arc;

use crate::common;
use crate::sessions::{classifier, losses, prepared, training};
use blade_graphics as bg;
use meganeura_blade::{BladeDevice, WithContext};
use meganeura_core::backend::Device;
use meganeura_core::plan::compile_for;
use meganeura_core::{Session, autodiff};

#[test]
fn a_context_of_the_host_is_shared() {
    if common::device().is_none() {
        return;
    }
    // SAFETY: the function is unsafe only because it loads a driver. blade states no other requirement.
    let context = unsafe { bg::Context::init(bg::ContextDesc::default()) }.expect("a context");
    let context = Arc::new(context);
    let device =
        |context: &Arc<bg::Context>| -> Arc<dyn Device> { Arc::new(BladeDevice::from_context(context.clone())) };
    let (a, b) = (device(&context), device(&context));
    let alone = losses(&mut training(&a), 5);
    assert_eq!(alone, losses(&mut training(&b), 5));
    let plan = compile_for(&autodiff::differentiate(&classifier()), &*a).expect("a plan");
    let direct = Session::with_context(context.clone(), plan).expect("a session");
    assert_eq!(alone, losses(&mut prepared(direct), 5));
    drop((a, b));
    assert_eq!(Arc::strong_count(&context), 1, "sessions give the context back");
}
