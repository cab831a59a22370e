//! Cases of failures: each must give a typed error, and the session must stay usable.

use meganeura_core::autodiff::try_differentiate;
use meganeura_core::backend::Executable;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::Graph;
use meganeura_core::plan::optimizer::Update;
use meganeura_core::plan::{BufferRef, ExecutionPlan, compile_for};
use meganeura_core::{Adam, DType, Session};

use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::harness::open;

pub(crate) fn cases() -> Vec<Case> {
    let case = |id: &str, run: fn(&SharedDevice) -> CaseRun| Case::new(format!("errors/{id}"), run);
    vec![
        case("data/wrong length", wrong_length),
        case("data/unknown name", unknown_name),
        case("data/wrong element type", wrong_type),
        case("data/input not set", not_set),
        case("index/gather", |d| index_out_of_range(d, gather())),
        case("index/scatter_add", |d| index_out_of_range(d, scatter())),
        case("index/class ids", |d| index_out_of_range(d, class_ids())),
        case("index/several at once", several_indices),
        case("index/no update after a fault", no_update_after_a_fault),
        case("index/a faulty step changes nothing", faulty_step_changes_nothing),
        case("plan/unknown kernel", unknown_kernel),
        case("plan/unknown kernel at the device", unknown_kernel_at_device),
        case("memory/bounds", bounds),
        case("memory/parts of a buffer", parts),
        case("optimizer/hyper-parameters out of range", hyper_parameters),
    ]
}

/// Checks that a call fails with one kind of error.
macro_rules! expect_error {
    ($result:expr, $kind:pat, $what:expr) => {
        match $result {
            Err($kind) => {}
            Err(other) => return fail(format!("{}: another error: {other}", $what)),
            Ok(_) => return fail(format!("{}: no error", $what)),
        }
    };
}

/// Creates a session that computes `y = x + p`, with unused inputs and an unused state.
fn simple(device: &SharedDevice) -> Result<Session> {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let p = g.parameter("p", &[2]);
    g.input_u32("ids", &[2]);
    g.input_typed("half", &[2], DType::F16);
    g.state("s", &[2]);
    let y = g.add(x, p);
    g.set_outputs(vec![y]);
    open(device, &g)
}

fn wrong_length(device: &SharedDevice) -> CaseRun {
    let mut s = simple(device)?;
    expect_error!(s.try_set_input("x", &[1.0]), Error::WrongLength { .. }, "a short input");
    expect_error!(
        s.try_set_input_u32("ids", &[1; 3]),
        Error::WrongLength { .. },
        "long ids"
    );
    expect_error!(
        s.try_set_input_bytes("half", &[0; 2]),
        Error::WrongLength { .. },
        "few bytes"
    );
    expect_error!(
        s.try_set_parameter("p", &[]),
        Error::WrongLength { .. },
        "no parameter data"
    );
    expect_error!(
        s.try_set_state("s", &[1.0; 3]),
        Error::WrongLength { .. },
        "a long state"
    );
    let mut long = [0.0; 3];
    expect_error!(
        s.try_read_output_by_index(0, &mut long),
        Error::WrongLength { .. },
        "a long output"
    );
    Ok(Check::default())
}

fn unknown_name(device: &SharedDevice) -> CaseRun {
    let mut s = simple(device)?;
    let x = &[1.0, 2.0];
    expect_error!(s.try_set_input("X", x), Error::UnknownTensor { .. }, "an unknown input");
    expect_error!(
        s.try_set_parameter("x", x),
        Error::UnknownTensor { .. },
        "an input as parameter"
    );
    expect_error!(
        s.try_read_parameter("q"),
        Error::UnknownTensor { .. },
        "an unknown parameter"
    );
    expect_error!(
        s.try_read_state("p"),
        Error::UnknownTensor { .. },
        "a parameter as state"
    );
    expect_error!(
        s.try_read_grad("p"),
        Error::UnknownTensor { .. },
        "a gradient without training"
    );
    expect_error!(
        s.try_set_scalar("lr", 1.0),
        Error::UnknownTensor { .. },
        "an unknown scalar"
    );
    expect_error!(
        s.try_read_output_bytes(1),
        Error::UnknownTensor { .. },
        "an unknown output"
    );
    Ok(Check::default())
}

fn wrong_type(device: &SharedDevice) -> CaseRun {
    let mut s = simple(device)?;
    expect_error!(
        s.try_set_input("ids", &[1.0; 2]),
        Error::WrongDType { .. },
        "floats as ids"
    );
    expect_error!(
        s.try_set_input_u32("x", &[1; 2]),
        Error::WrongDType { .. },
        "ids as floats"
    );
    expect_error!(
        s.try_set_input("half", &[1.0; 2]),
        Error::WrongDType { .. },
        "f32 as f16"
    );
    let mut words = [0; 2];
    expect_error!(
        s.try_read_output_u32(0, &mut words),
        Error::WrongDType { .. },
        "a float output as words"
    );
    Ok(Check::default())
}

fn not_set(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let half = g.input_typed("half", &[2], DType::F16);
    g.input("unused", &[2]);
    let x = g.input("x", &[2]);
    let outputs = [g.cast(ids, DType::F32), g.cast(half, DType::F32), g.neg(x)];
    g.set_outputs(outputs.to_vec());
    let mut s = open(device, &g)?;
    s.try_set_input("x", &[1.0, 2.0])?;
    match s.try_step() {
        Err(Error::InputNotSet { names }) => ensure!(names == ["half", "ids"], "the missing inputs are {names:?}"),
        Err(other) => return fail(format!("another error: {other}")),
        Ok(()) => return fail("the step ran without its inputs"),
    }
    s.try_set_input_u32("ids", &[0; 2])?;
    s.try_set_input_bytes("half", &[0; 4])?;
    s.try_step()?;
    s.try_wait()?;
    Ok(Check::default())
}

/// Returns a graph whose `u32` input `ids` of two elements indexes four rows.
fn gather() -> Graph {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let table = g.constant((0..12u8).map(f32::from).collect(), &[4, 3]);
    let y = g.gather(table, ids);
    let y = g.sum_all(y);
    g.set_outputs(vec![y]);
    g
}

fn scatter() -> Graph {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let updates = g.constant((0..6u8).map(f32::from).collect(), &[2, 3]);
    let y = g.scatter_add(updates, ids, 4);
    let y = g.sum_all(y);
    g.set_outputs(vec![y]);
    g
}

fn class_ids() -> Graph {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let logits = g.constant((0..8u8).map(f32::from).collect(), &[2, 4]);
    let loss = g.cross_entropy_loss(logits, ids);
    g.set_outputs(vec![loss]);
    g
}

/// Runs a step, waits for it, and reads an output. Each of these may return the error.
fn step_and_read(session: &mut Session) -> Result<f32> {
    session.try_step()?;
    session.try_wait()?;
    session.try_read_loss()
}

/// Checks that a step with an invalid index fails with an error that contains the index and the number of rows, and
/// does not change the session.
fn index_out_of_range(device: &SharedDevice, graph: Graph) -> CaseRun {
    let mut session = open(device, &graph)?;
    session.try_set_input_u32("ids", &[1, 3])?;
    let good = step_and_read(&mut session)?;
    for bad in [4, u32::MAX] {
        session.try_set_input_u32("ids", &[1, bad])?;
        match step_and_read(&mut session) {
            Err(Error::IndexOutOfRange { index, rows, label }) => {
                ensure!(
                    index == bad && rows == 4,
                    "index {bad} of 4 rows was reported as {index} of {rows}"
                );
                ensure!(!label.is_empty(), "the error names no dispatch");
            }
            Err(other) => return fail(format!("index {bad}: another error: {other}")),
            Ok(value) => return fail(format!("index {bad} of 4 rows gave {value} and no error")),
        }
        session.try_set_input_u32("ids", &[1, 3])?;
        let again = step_and_read(&mut session)?;
        ensure!(
            again == good,
            "after the error the step gives {again} instead of {good}"
        );
    }
    Ok(Check::default())
}

/// Checks that a step with an invalid index does not train on the row that the device reads instead.
fn no_update_after_a_fault(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let table = g.parameter("table", &[4, 3]);
    let rows = g.embedding(ids, table);
    let loss = g.mean_all(rows);
    g.set_outputs(vec![loss]);
    let mut s = open(device, &try_differentiate(&g)?)?;
    let weights: Vec<f32> = (0..12u8).map(f32::from).collect();
    s.try_set_parameter("table", &weights)?;
    s.try_set_learning_rate(0.5)?;
    s.try_set_input_u32("ids", &[0, 9])?;
    let outcome = s.try_step().and_then(|()| s.try_wait().map(|_| ()));
    expect_error!(outcome, Error::IndexOutOfRange { .. }, "an id of 9 for 4 rows");
    ensure!(
        s.try_read_parameter("table")? == weights,
        "the parameter was updated nevertheless"
    );
    s.try_set_input_u32("ids", &[0, 3])?;
    step_and_read(&mut s)?;
    let moved = s.try_read_parameter("table")? != weights;
    ensure!(moved, "the step after the fault changed nothing");
    Ok(Check::default())
}

/// Builds a graph that writes states before, while and after it reads an index.
fn stateful() -> Graph {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let table = g.parameter("table", &[4, 3]);
    let x = g.input("x", &[2, 3]);
    let mut value = x;
    for name in ["first", "second", "third"] {
        let state = g.state(name, &[2, 3]);
        let sum = g.add(state, value);
        value = g.assign(state, sum);
    }
    let zeros = g.input_u32("zeros", &[2]);
    let ids = g.add(ids, zeros);
    let rows = g.embedding(ids, table);
    let product = g.mul(rows, value);
    let last = g.state("last", &[2, 3]);
    let product = g.assign(last, product);
    let loss = g.mean_all(product);
    g.set_outputs(vec![loss]);
    g
}

/// Checks that faulty steps change no parameter, state or counter, whether or not the host waits for them.
fn faulty_step_changes_nothing(device: &SharedDevice) -> CaseRun {
    let graph = try_differentiate(&stateful())?;
    let make = || -> Result<Session> {
        let mut s = open(device, &graph)?;
        s.try_set_optimizer(Update::new(Adam::new(0.1)).accumulate(2))?;
        s.try_set_parameter("table", &[0.5; 12])?;
        s.try_set_input("x", &[1.0, 2.0, 3.0, -1.0, -2.0, -3.0])?;
        s.try_set_input_u32("zeros", &[0; 2])?;
        s.try_set_input_u32("ids", &[0, 3])?;
        Ok(s)
    };
    let (mut good, mut other) = (make()?, make()?);
    for step in 0..5 {
        other.try_set_input_u32("ids", &[0, 9])?;
        let mut outcome = other.try_step();
        other.try_set_input_u32("ids", &[0, 3])?;
        if step % 2 == 1 && outcome.is_ok() {
            // The fault is not detected yet; this step is discarded, too.
            outcome = other.try_step();
        }
        let outcome = outcome.and_then(|()| other.try_wait().map(|_| ()));
        expect_error!(
            outcome,
            Error::IndexOutOfRange { index: 9, .. },
            "an id of 9 for 4 rows"
        );
        let (a, b) = (step_and_read(&mut good)?, step_and_read(&mut other)?);
        ensure!(a == b, "the loss of step {step} is {b} after a fault, and {a} without");
        let (a, b) = (good.progress(), other.progress());
        ensure!(a == b, "the counters are {b:?} after a fault, and {a:?} without");
        for name in ["first", "second", "third", "last"] {
            let same = good.try_read_state(name)? == other.try_read_state(name)?;
            ensure!(same, "state '{name}' differs in step {step}");
        }
        let same = good.try_read_parameter("table")? == other.try_read_parameter("table")?;
        ensure!(same, "the parameter differs in step {step}");
    }
    Ok(Check::default())
}

/// Checks that a step with several invalid indices reports one of them.
fn several_indices(device: &SharedDevice) -> CaseRun {
    let mut session = open(device, &gather())?;
    session.try_set_input_u32("ids", &[9, 7])?;
    match step_and_read(&mut session) {
        Err(Error::IndexOutOfRange { index: 7 | 9, .. }) => Ok(Check::default()),
        Err(other) => fail(format!("another error: {other}")),
        Ok(_) => fail("no error"),
    }
}

/// Returns a plan with a kernel that no device has.
fn strange_plan(device: &SharedDevice) -> Result<ExecutionPlan> {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let mut plan = compile_for(&g, &**device)?;
    for dispatch in &mut plan.dispatches {
        dispatch.kernel.name = "conformance.no_such_kernel".into();
    }
    Ok(plan)
}

fn unknown_kernel(device: &SharedDevice) -> CaseRun {
    match Session::on(device.clone(), strange_plan(device)?) {
        Err(error @ (Error::InvalidPlan { .. } | Error::MissingKernels { .. })) => {
            let named = error.to_string().contains("no_such_kernel");
            ensure!(named, "the error does not name the kernel: {error}");
            Ok(Check::default())
        }
        Err(other) => fail(format!("another error: {other}")),
        Ok(_) => fail("the device claims to support a kernel that does not exist"),
    }
}

fn unknown_kernel_at_device(device: &SharedDevice) -> CaseRun {
    match device.compile(&strange_plan(device)?) {
        Err(_) => Ok(Check::default()),
        Ok(_) => fail("the device compiled a kernel that does not exist"),
    }
}

/// Returns an executable with at least one buffer of 12 bytes: the input.
fn executable(device: &SharedDevice) -> Result<(Box<dyn Executable>, BufferRef, BufferRef)> {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &**device)?;
    let input = plan.input_buffers.first().map_or(BufferRef(0), |b| b.1);
    Ok((device.compile(&plan)?, input, BufferRef(plan.buffers.len() as u32)))
}

fn bounds(device: &SharedDevice) -> CaseRun {
    let (mut e, input, outside) = executable(device)?;
    ensure!(e.write(input, 4, &[0; 12]).is_err(), "a write past the end succeeds");
    ensure!(e.write(input, 16, &[0; 4]).is_err(), "a write behind the end succeeds");
    ensure!(
        e.write(input, u64::MAX, &[0; 4]).is_err(),
        "a write at an absurd offset succeeds"
    );
    ensure!(e.write(outside, 0, &[0; 4]).is_err(), "a write to no buffer succeeds");
    let mut bytes = [0; 16];
    ensure!(e.read(input, 0, &mut bytes).is_err(), "a read past the end succeeds");
    ensure!(e.read(outside, 0, &mut bytes).is_err(), "a read of no buffer succeeds");
    ensure!(e.write(input, 12, &[]).is_ok(), "an empty write at the end fails");
    Ok(Check::default())
}

fn parts(device: &SharedDevice) -> CaseRun {
    let (mut e, input, _) = executable(device)?;
    e.write(input, 0, &[1; 12])?;
    e.write(input, 4, &[2; 4])?;
    let mut all = [0; 12];
    e.read(input, 0, &mut all)?;
    ensure!(all == [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1], "the buffer holds {all:?}");
    let mut part = [0; 8];
    e.read(input, 4, &mut part)?;
    ensure!(part == [2, 2, 2, 2, 1, 1, 1, 1], "its tail reads as {part:?}");
    Ok(Check::default())
}

fn hyper_parameters(device: &SharedDevice) -> CaseRun {
    let mut s = simple(device)?;
    expect_error!(
        s.try_set_learning_rate(f32::NAN),
        Error::InvalidUse { .. },
        "a rate of NaN"
    );
    expect_error!(
        s.try_set_adam(0.1, 1.0, 0.9, 0.1),
        Error::InvalidUse { .. },
        "a decay of one"
    );
    expect_error!(s.try_set_learning_rate(0.1), Error::InvalidUse { .. }, "no gradients");
    Ok(Check::default())
}
