//! Tests of the semantics of graphs, plans and sessions beyond the values of single operators.

use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::plan::BufferRef;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, DType, Error, ExecutionPlan, Graph, Session, Sgd, compile, optimize};

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

fn training(graph: &Graph) -> Session {
    Builder::on(device()).build(graph).expect("builds").0
}

fn inference(graph: &Graph) -> Session {
    Builder::on(device()).inference().build(graph).expect("builds").0
}

/// Returns a plan with one slice.
fn slice_plan() -> ExecutionPlan {
    let mut g = Graph::new();
    let x = g.input("x", &[8]);
    let y = g.slice(x, &[1], &[4]);
    g.set_outputs(vec![y]);
    compile::compile(&g)
}

fn refused(plan: ExecutionPlan, expected: &str) {
    let error = Session::on(device(), plan).map(|_| ()).expect_err(expected);
    assert!(matches!(error, Error::InvalidPlan { .. }), "{error:?}");
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn a_plan_that_lies_is_refused_before_it_runs() {
    assert!(Session::on(device(), slice_plan()).is_ok());
    for starts in [1i64 << 40, 16, -1] {
        let mut plan = slice_plan();
        let d = &mut plan.dispatches[0];
        d.attrs = d.attrs.clone().with("starts", vec![starts]);
        refused(plan, "range");
    }
    let mut plan = slice_plan();
    plan.dispatches[0].kernel.name = "core.nothing".into();
    refused(plan, "no operator 'core.nothing'");
    let mut plan = slice_plan();
    plan.dispatches[0].kernel.version = 9;
    refused(plan, "version 9");
    let mut plan = slice_plan();
    plan.dispatches[0].outputs[0].buffer = plan.dispatches[0].inputs[0].buffer;
    refused(plan, "overwrites its operand");
    let mut plan = slice_plan();
    plan.dispatches[0].inputs.clear();
    refused(plan, "takes 1 operands");
    let mut plan = slice_plan();
    plan.loss_buffer = Some(BufferRef(99));
    refused(plan, "buffer b99 does not exist");
    let mut plan = slice_plan();
    plan.buffers[0] = 4;
    refused(plan, "but f32[8] takes 32");
    let mut plan = slice_plan();
    plan.version += 1;
    refused(plan, "format version");
}

#[test]
fn a_bad_id_leaves_the_parameters_alone() {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2]);
    let table = g.parameter("table", &[4, 3]);
    let w = g.parameter("w", &[3, 1]);
    let e = g.embedding(ids, table);
    let y = g.matmul(e, w);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let mut s = training(&g);
    s.set_parameter("table", &[0.5; 12]);
    s.set_parameter("w", &[1.0, 2.0, 3.0]);
    s.set_learning_rate(0.1);
    s.set_input_u32("ids", &[0, 9]);
    assert!(matches!(
        s.try_step(),
        Err(Error::IndexOutOfRange { index: 9, rows: 4, .. })
    ));
    assert_eq!(s.read_parameter("w"), [1.0, 2.0, 3.0]);
    assert_eq!(s.read_parameter("table"), [0.5; 12]);
    s.set_input_u32("ids", &[0, 3]);
    s.step();
    assert_eq!(s.read_loss(), 3.0);
    assert_ne!(s.read_parameter("w"), [1.0, 2.0, 3.0]);
}

#[test]
fn one_state_cannot_stand_for_two() {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 3]);
    let (w, b) = (g.parameter("w", &[3]), g.parameter("b", &[3]));
    let s = g.state("s", &[3]);
    let y = g.batch_norm(x, w, b, s, s, 0.1, 1e-5);
    g.set_outputs(vec![y]);
    let error = g.verify().expect_err("one state twice");
    assert!(error.to_string().contains("own state"), "{error}");
}

#[test]
fn an_output_shows_the_step_not_the_update_after_it() {
    let mut g = Graph::new();
    let p = g.parameter("p", &[1]);
    let half = g.scalar(0.5);
    let halved = g.mul(p, half);
    let a = g.assign(p, halved);
    let loss = g.sum_all(a);
    g.set_outputs(vec![loss, a]);
    let mut s = training(&g);
    s.set_parameter("p", &[2.0]);
    s.set_learning_rate(0.1);
    s.step();
    let mut out = [0.0];
    s.read_output_by_index(1, &mut out);
    assert_eq!(out, [1.0]);
    assert_eq!(s.read_loss(), 1.0);
}

#[test]
fn building_on_an_optimized_graph_sees_its_writes() {
    let add = |g: &mut Graph, x| {
        let s = g.leaf_named("s").expect("the state");
        let sum = g.add(s, x);
        g.assign(s, sum)
    };
    let mut g = Graph::new();
    let x = g.input("x", &[1]);
    let s = g.state("s", &[1]);
    add(&mut g, x);
    g.set_outputs(vec![s]);
    let mut g = optimize::optimize(&g);
    let x = g.leaf_named("x").expect("the input");
    add(&mut g, x);
    let s = g.leaf_named("s").expect("the state");
    g.set_outputs(vec![s]);
    let mut session = inference(&g);
    session.set_input("x", &[1.0]);
    session.step();
    assert_eq!(session.read_output(1), [2.0]);
    assert_eq!(session.read_state("s"), [2.0]);
}

#[test]
fn inference_keeps_writes_of_other_operators() {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 2]);
    let (w, b) = (g.parameter("w", &[2]), g.parameter("b", &[2]));
    let (m, v) = (g.state("m", &[2]), g.state_filled("v", &[2], 1.0));
    let mean = g.mean(x, &[0], false);
    g.assign(m, mean);
    let y = g.batch_norm(x, w, b, m, v, 0.1, 1e-5);
    g.set_outputs(vec![y]);
    let mut s = inference(&g);
    s.set_parameter("w", &[1.0; 2]);
    s.set_input("x", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    s.step();
    assert_eq!(s.read_state("m"), [4.0, 5.0]);
    assert_eq!(s.read_state("v"), [1.0, 1.0], "batch norm writes nothing in inference");
}

#[test]
fn weights_are_copied_without_the_moments() {
    let mut g = Graph::new();
    let w = g.parameter("w", &[2]);
    let loss = g.sum_all(w);
    g.set_outputs(vec![loss]);
    let (mut a, mut b) = (training(&g), training(&g));
    for s in [&mut a, &mut b] {
        s.set_optimizer(Adam::new(0.1));
    }
    a.step();
    b.try_copy_weights_from(&mut a).expect("the same model");
    assert_eq!(b.read_parameter("w"), a.read_parameter("w"));
    assert_eq!(b.read_state("optimizer.m.w"), [0.0, 0.0]);
}

#[test]
fn a_power_of_zero_has_no_slope() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    g.require_grad(x);
    let zero = g.scalar(0.0);
    let y = g.pow(x, zero);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let mut s = training(&g);
    s.set_input("x", &[0.0, 2.0, 1.0]);
    s.step();
    assert_eq!(s.read_grad("x"), [0.0; 3]);
}

#[test]
fn scalars_must_be_set_and_fit_their_type() {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let t = g.scalar_input("temperature", DType::F32);
    let y = g.div(x, t);
    g.set_outputs(vec![y]);
    assert_ne!(g.scalar_input("temperature", DType::U32), t);
    assert!(g.verify().is_err(), "one name, two types");

    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let t = g.scalar_input("temperature", DType::F32);
    let y = g.div(x, t);
    g.set_outputs(vec![y]);
    let mut s = inference(&g);
    s.set_input("x", &[1.0, 2.0]);
    assert!(s.try_step().expect_err("not set").to_string().contains("'temperature'"));
    assert!(
        s.try_set_scalar("temp", 1.0)
            .expect_err("unknown")
            .to_string()
            .contains("scalar")
    );
    s.set_scalar("temperature", 2.0);
    s.step();
    assert_eq!(s.read_output(2), [0.5, 1.0]);
}

#[test]
fn names_of_the_optimizer_are_reserved() {
    let mut g = Graph::new();
    let w = g.parameter("w", &[2]);
    let k = g.scalar_input("optimizer.lr", DType::F32);
    let y = g.mul(w, k);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let error = training(&g).try_set_learning_rate(0.1).expect_err("the name is taken");
    assert!(
        error.to_string().contains("optimizer.lr") && error.to_string().contains("reserved"),
        "{error}"
    );
}

#[test]
fn scalars_of_the_optimizer_are_its_own() {
    let mut g = Graph::new();
    let w = g.parameter("w", &[1]);
    let loss = g.sum_all(w);
    g.set_outputs(vec![loss]);
    let mut s = training(&g);
    s.set_learning_rate(0.5);
    let error = s.try_set_scalar("optimizer.lr", 0.0).expect_err("not the user's");
    assert!(error.to_string().contains("adjust_learning_rate"), "{error}");
    s.step();
    assert_eq!(s.read_parameter("w"), [-0.5]);
}

#[test]
fn a_wrong_rate_changes_nothing() {
    let mut g = Graph::new();
    let w = g.parameter("w", &[1]);
    let loss = g.sum_all(w);
    g.set_outputs(vec![loss]);
    let mut s = training(&g);
    s.set_optimizer(Sgd::new(0.5));
    assert!(s.try_adjust_learning_rate(f32::NAN).is_err());
    s.step();
    assert_eq!(s.read_parameter("w"), [-0.5]);
}

#[test]
fn inputs_that_nothing_reads_need_no_data() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let labels = g.input_u32("labels", &[2]);
    let w = g.parameter("w", &[3, 4]);
    let logits = g.matmul(x, w);
    g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![logits]);
    let mut s = inference(&g);
    s.set_input("x", &[1.0; 6]);
    s.step();
    s.set_input_u32("labels", &[0, 1]);
    s.step();
}

#[test]
fn results_exist_only_after_a_step_and_belong_to_it() {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let w = g.parameter("w", &[2]);
    let y = g.mul(x, w);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss, x]);
    let mut s = training(&g);
    assert!(s.try_read_loss().is_err() && s.try_read_grad("w").is_err());
    assert!(s.try_read_output_bytes(1).is_err());
    s.set_input("x", &[1.0, 2.0]);
    s.step();
    s.set_input("x", &[9.0, 9.0]);
    let mut out = [0.0; 2];
    s.read_output_by_index(1, &mut out);
    assert_eq!(out, [1.0, 2.0], "of the step, not of the next one");
    assert_eq!(s.read_grad("w"), [1.0, 2.0]);
}

#[test]
fn a_name_survives_merging_with_an_unnamed_equal() {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let a = g.relu(x);
    let b = g.relu(x);
    g.named(b, "blk.out");
    let y = g.add(a, b);
    g.set_outputs(vec![y]);
    let plan = compile::compile(&optimize::optimize(&g));
    assert!(
        plan.dispatches.iter().any(|d| d.label == "blk.out (core.relu)"),
        "{plan}"
    );
}

#[test]
fn many_parameters_compile_in_reasonable_time() {
    let mut g = Graph::new();
    let mut sum = g.scalar(0.0);
    for i in 0..1500 {
        let w = g.parameter(&format!("w{i}"), &[1]);
        let y = g.sum_all(w);
        sum = g.add(sum, y);
    }
    g.set_outputs(vec![sum]);
    // Quadratic work would take minutes here, so the test needs no clock.
    let mut s = training(&g);
    s.set_optimizer(Adam::new(0.1));
    s.step();
    assert!((s.read_parameter("w1499")[0] + 0.1).abs() < 1e-5);
}

#[test]
fn half_precision_losses_can_be_read() {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let y = g.cast(x, DType::BF16);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let mut s = inference(&g);
    s.set_input("x", &[1.5, 2.0]);
    s.step();
    assert_eq!(s.read_loss(), 3.5);
}

#[test]
fn clamp_refuses_limits_in_the_wrong_order() {
    for (low, high) in [(1.0, -1.0), (f32::NAN, 1.0), (0.0, f32::NAN)] {
        let mut g = Graph::new();
        let x = g.input("x", &[2]);
        let y = g.clamp(x, low, high);
        g.set_outputs(vec![y]);
        assert!(
            g.verify().expect_err("limits").to_string().contains("low"),
            "{low} {high}"
        );
    }
}

#[test]
fn profiling_names_and_times_the_passes() {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 16]);
    let w = g.parameter("w", &[16, 4]);
    let y = g.matmul(x, w);
    let y = g.tanh(y);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    // Without rewriting: a rewritten graph would need only one pass.
    let plain = RewriteConfig::off();
    let built = Builder::on(device()).rewrite(plain.clone()).build(&g);
    let mut s = built.expect("builds").0;
    s.set_input("x", &[0.5; 128]);
    s.step();
    assert!(s.take_timings().rows.is_empty(), "nothing is measured unless asked for");
    s.set_profiling(true);
    s.initialize_parameters(0);
    s.set_optimizer(Sgd::new(0.1));
    for _ in 0..3 {
        s.step();
    }
    let timings = s.take_timings();
    let tanh = timings
        .rows
        .iter()
        .find(|r| r.label.contains("core.tanh"))
        .expect("a pass of its own");
    assert_eq!(tanh.count, 3);
    assert!(timings.rows.iter().any(|r| r.label.contains("optim.sgd")), "{timings}");
    assert!(s.take_timings().rows.is_empty(), "taken");
    s.dump_gpu_timings();
}

#[test]
fn profiles_say_what_is_in_a_fused_pass() {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 16]);
    let y = g.tanh(x);
    let y = g.exp(y);
    let y = g.mul(y, x);
    g.set_outputs(vec![y]);
    let mut s = inference(&g);
    s.set_input("x", &[0.5; 128]);
    s.set_profiling(true);
    s.step();
    let timings = s.take_timings();
    assert_eq!(timings.rows[0].label, "core.fused[tanh, exp, mul]", "{timings}");
    let label = &s.plan().dispatches[0].label;
    assert!(label.ends_with("(core.fused[tanh, exp, mul])"), "{label}");
}

#[test]
fn plans_list_the_log_sum_exp_of_attention_alone() {
    let mut g = Graph::new();
    let [q, k, v] = ["q", "k", "v"].map(|name| g.parameter(name, &[4, 8]));
    let attended = g.causal_attention(q, k, v, 2, 2, 4);
    let labels = g.input_u32("labels", &[4]);
    let loss = g.cross_entropy_loss(attended, labels);
    g.set_outputs(vec![loss]);
    let (plan, _) = Builder::on(device()).plan(&g).expect("a plan");
    let [(_, buffer)] = plan.lse_buffers[..] else {
        panic!("{:?}", plan.lse_buffers);
    };
    // The log-sum-exp has the shape [heads, rows].
    assert_eq!(plan.buffers[buffer.index()], 4 * 2 * 4);
}
