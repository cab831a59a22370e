//! Tests of kernels that other crates register: their results, rejected kernels, and unsupported types.
// This is a separate binary, because its operators and kernels are registered for the whole process.

mod common;

use std::sync::Arc;

use common::{check, sample};
use meganeura_core::attrs::{AttrKind, Attrs};
use meganeura_core::backend::Device;
use meganeura_core::graph::Graph;
use meganeura_core::ops::sample::{SampleInput, Sizes};
use meganeura_core::ops::{Composite, OpRef, Operator};
use meganeura_core::plan::compile_for;
use meganeura_core::{DType, Session, register_op, registry};
use meganeura_cpu::{CpuDevice, CpuKernel, register_kernel, registered_kernels};

static BLEND: Composite = Composite::new("linked.blend", 2, "k a + (1 - k) b", |g, x, attrs| {
    let k = attrs.float("k")? as f32;
    let (k, rest) = (g.scalar(k), g.scalar(1.0 - k));
    let (a, b) = (g.mul(x[0], k), g.mul(x[1], rest));
    Ok(vec![g.add(a, b).into()])
})
.with_attributes(&[("k", AttrKind::Float)], |sizes| {
    let long = 16 * 1024;
    // Empty, scalar and odd sizes, and sizes near the boundaries between pieces.
    [
        vec![0],
        vec![],
        vec![1],
        sizes.shape(3, 40),
        vec![long],
        vec![2 * long + 1, 1],
        vec![7, long - 1],
    ]
    .iter()
    .map(|s| sample(vec![SampleInput::f32(s); 2], Attrs::new().with("k", 0.25)))
    .collect()
});
register_op!(BLEND);
register_kernel!(
    CpuKernel::elementwise("linked.blend", 2, |attrs, x, out| {
        let k = attrs.float("k").unwrap_or(f64::NAN) as f32;
        for ((out, a), b) in out.iter_mut().zip(x[0]).zip(x[1]) {
            *out = k * a + (1.0 - k) * b;
        }
    })
    .with_nanos_per_element(2.0)
);

// The first three of these kernels are rejected, and so is the second kernel of `linked.twice`.
register_kernel!(CpuKernel::elementwise("core.relu", 1, |_, _, _| ()));
register_kernel!(CpuKernel::elementwise("linked.nothing", 0, |_, _, _| ()));
register_kernel!(CpuKernel::elementwise("linked.many", 9, |_, _, _| ()));
register_kernel!(CpuKernel::elementwise("linked.twice", 1, |_, _, _| ()));
register_kernel!(CpuKernel::elementwise("linked.twice", 2, |_, _, _| ()));

static LATE: Composite = Composite::new("late.double", 1, "2 x", |g, x, _| Ok(vec![g.add(x[0], x[0]).into()]));
static FAULTY: Composite = Composite::new("late.faulty", 1, "x", |g, x, _| Ok(vec![g.neg(x[0]).into()]));

register_op!(LATE);
register_op!(FAULTY);

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

/// Returns the names of the kernels in the plan of a call on inputs of these types, and a session of the plan.
fn planned(op: &'static Composite, attrs: Attrs, inputs: &[(&[usize], DType)]) -> (Vec<String>, Session) {
    let mut g = Graph::new();
    let operands = inputs.iter().enumerate().map(|(i, (shape, dtype))| {
        let name = format!("x{i}");
        g.input_typed(&name, shape, *dtype).into()
    });
    let operands = operands.collect();
    let y = g.call(OpRef::new(op), attrs, operands);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &*device()).expect("a plan");
    let names = plan.dispatches.iter().map(|d| d.kernel.name.to_string()).collect();
    (names, Session::on(device(), plan).expect("a session"))
}

#[test]
fn a_linked_kernel_computes_what_the_decomposition_says() {
    for seed in 0..4 {
        for sample in BLEND.samples(&mut Sizes::new(seed)) {
            check("linked.blend", &sample, seed);
        }
    }
}

#[test]
fn rejected_kernels_are_listed() {
    let problems: Vec<String> = registry::problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    for (name, why) in [
        ("core.relu", "already"),
        ("linked.twice", "second"),
        ("linked.nothing", "0 operands"),
        ("linked.many", "9 operands"),
    ] {
        let found = problems.iter().any(|p| p.contains(name) && p.contains(why));
        assert!(found, "{name}: {problems:#?}");
    }
    let kernels = registered_kernels();
    assert!(kernels.contains(&"linked.blend") && kernels.contains(&"linked.twice"));
    assert!(!kernels.contains(&"linked.nothing") && !kernels.contains(&"core.relu"));
}

#[test]
fn calls_that_do_not_fit_are_decomposed() {
    let attrs = Attrs::new().with("k", 0.5);
    // The second operand is a row that is broadcast.
    let (names, mut session) = planned(&BLEND, attrs, &[(&[2, 3], DType::F32), (&[3], DType::F32)]);
    assert!(
        names.len() > 1 && !names.contains(&"linked.blend".to_owned()),
        "{names:?}"
    );
    session.set_input("x0", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    session.set_input("x1", &[10.0, 20.0, 30.0]);
    session.step();
    assert_eq!(session.read_output(6), [5.5, 11.0, 16.5, 7.0, 12.5, 18.0]);
}

#[test]
fn kernels_are_registered_while_the_program_runs() {
    let (names, _) = planned(&LATE, Attrs::new(), &[(&[5], DType::F32)]);
    assert_ne!(names, ["late.double"]);
    let kernel = CpuKernel::elementwise("late.double", 1, |_, x, out| {
        out.iter_mut().zip(x[0]).for_each(|(out, x)| *out = 2.0 * x);
    });
    meganeura_cpu::register_kernel(kernel).expect("a free name");
    let (names, mut session) = planned(&LATE, Attrs::new(), &[(&[5], DType::F32)]);
    assert_eq!(names, ["late.double"]);
    session.set_input("x0", &[1.0, -2.0, 0.0, 4.5, 1e30]);
    session.step();
    assert_eq!(session.read_output(5), [2.0, -4.0, 0.0, 9.0, 2e30]);
    let again = meganeura_cpu::register_kernel(kernel)
        .expect_err("it is taken")
        .to_string();
    assert!(again.contains("late.double") && again.contains("second"), "{again}");
    for operands in [0, 9] {
        let kernel = CpuKernel::elementwise("late.many", operands, |_, _, _| ());
        meganeura_cpu::register_kernel(kernel).expect_err("too few or too many");
    }
}

#[test]
fn a_kernel_that_panics_is_an_error_of_the_step() {
    let kernel = CpuKernel::elementwise("late.faulty", 1, |_, x, _| {
        assert!(x[0].is_empty(), "a fault of the kernel")
    });
    meganeura_cpu::register_kernel(kernel).expect("a free name");
    let (_, mut session) = planned(&FAULTY, Attrs::new(), &[(&[2], DType::F32)]);
    session.set_input("x0", &[1.0, 2.0]);
    let error = session.try_step().expect_err("it panics").to_string();
    assert!(error.contains("panicked"), "{error}");
}
