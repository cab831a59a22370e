//! Tests of sessions that share weights, and of models that several threads run with inputs of any size.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::plans::LimitedCpu;
use meganeura::backend::Device;
use meganeura::config::{Config, RewriteConfig};
use meganeura::cpu::CpuDevice;
use meganeura::ops::Conv2dOptions;
use meganeura::{Builder, Error, Graph, InferenceModel, InputShapes, Result, Session, SharedWeights, Tensor, select};

/// Number of bytes of the largest weight of [`network`].
const LARGEST: usize = 4 * 432 * 256;

/// Returns a network with values that are prepared from weights (the convolution and its batch norm become one), and
/// matrices that the CPU stores in another order.
fn network(batch: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[batch, 3, 9, 8]);
    let w = g.parameter("conv", &[6, 3, 3, 3]);
    let (scale, shift) = (g.parameter("scale", &[6]), g.parameter("shift", &[6]));
    let (mean, var) = (g.state("mean", &[6]), g.state_filled("var", &[6], 1.0));
    let padded = Conv2dOptions {
        padding: [1, 1],
        ..Conv2dOptions::default()
    };
    let y = g.conv2d(x, w, padded);
    let y = g.batch_norm(y, scale, shift, mean, var, 0.1, 1e-3);
    let y = g.relu(y);
    let y = g.reshape(y, &[batch, 432]);
    let (w1, b1) = (g.parameter("w1", &[432, 256]), g.parameter("b1", &[256]));
    let y = g.matmul(y, w1);
    let y = g.bias_add(y, b1);
    let y = g.silu(y);
    let w2 = g.parameter("w2", &[256, 10]);
    let y = g.matmul(y, w2);
    let y = g.softmax(y, -1);
    g.set_outputs(vec![y]);
    g
}

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let word = |i: usize| {
        (i as u32 + 1)
            .wrapping_mul(2_654_435_761)
            .wrapping_add(seed.wrapping_mul(40_503))
    };
    let number = |i| (word(i) >> 8) as f32 / (1 << 24) as f32 - 0.5;
    (0..len).map(number).collect()
}

/// Sets the weights of [`network`].
fn set(session: &mut Session) -> Result<()> {
    let views = session.plan().parameters().into_iter();
    let lens: Vec<(String, usize)> = views.map(|view| (view.name, view.ty.numel())).collect();
    for (seed, (name, len)) in (1..).zip(lens) {
        let scale = if name == "scale" { 2.0 } else { 0.3 };
        let data: Vec<f32> = numbers(len, seed).iter().map(|v| v * scale).collect();
        session.try_set_parameter(&name, &data)?;
    }
    session.try_set_state("mean", &numbers(6, 90))?;
    session.try_set_state("var", &[0.5, 1.0, 1.5, 2.0, 0.7, 0.9])
}

fn x(batch: usize) -> Vec<f32> {
    numbers(batch * 216, batch as u32)
}

fn output(session: &mut Session, batch: usize) -> Vec<f32> {
    session.set_input("x", &x(batch));
    session.step();
    session.read_output(batch * 10)
}

fn own(device: &Arc<dyn Device>, batch: usize) -> Session {
    let builder = Builder::on(device.clone()).inference();
    let (mut session, _) = builder.build(&network(batch)).expect("a session");
    set(&mut session).expect("all weights");
    session
}

fn sharing(weights: &SharedWeights, batch: usize) -> Session {
    let builder = Builder::new().weights(weights).inference();
    builder.build(&network(batch)).expect("a session").0
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

/// Returns the CPU and, if there is one, the first Vulkan or Metal device.
fn devices() -> Vec<Arc<dyn Device>> {
    let config = Config::default();
    let gpu = select::select(Some("blade"), &config).ok();
    assert!(
        gpu.is_some() || std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() != Ok("1"),
        "no Vulkan device"
    );
    let gpu = gpu.map(|gpu| gpu.open(&config).expect("it opens"));
    std::iter::once(cpu()).chain(gpu).collect()
}

#[test]
fn sessions_of_other_batch_sizes_use_the_same_weights() {
    for device in devices() {
        let mut first = own(&device, 2);
        let before = output(&mut first, 2);
        let weights = first.share_weights().expect("supported");
        assert!(weights.bytes() > LARGEST, "{weights:?}");
        assert_eq!(output(&mut first, 2), before);
        for batch in [1, 3, 8] {
            let (mut alone, mut shared) = (own(&device, batch), sharing(&weights, batch));
            assert_eq!(shared.unshared().count(), 0);
            assert_eq!(output(&mut shared, batch), output(&mut alone, batch), "{batch}");
            let bytes = |session: &Session| session.plan().memory_forecast().planned;
            assert!(bytes(&shared) + LARGEST < bytes(&alone), "{batch}");
            // The values that were prepared for the first session are there.
            assert_eq!(shared.plan().prepared_dispatches().count(), 0);
            assert_eq!(
                shared.read_parameter("w1"),
                alone.read_parameter("w1"),
                "stored in the same order"
            );
        }
        // The memory lasts as long as a session uses it.
        let mut last = sharing(&weights, 4);
        drop((first, weights));
        assert_eq!(output(&mut last, 4), output(&mut own(&device, 4), 4));
    }
}

#[test]
fn shared_weights_do_not_change() {
    for device in devices() {
        let mut first = own(&device, 1);
        let weights = first.share_weights().expect("supported");
        let mut second = sharing(&weights, 2);
        for session in [&mut first, &mut second] {
            let error = session.try_set_parameter("b1", &[0.0; 256]).expect_err("shared");
            assert!(error.to_string().contains("shared with other sessions"), "{error}");
            assert!(session.try_set_state("mean", &[0.0; 6]).is_err());
            assert!(session.try_initialize_parameters(1).is_err());
            assert!(session.shares_parameter("w1"));
        }
        assert_eq!(output(&mut second, 2), output(&mut own(&device, 2), 2));
    }
}

#[test]
fn what_cannot_share_says_why() {
    let mut g = network(1);
    let loss = g.mean_all(g.outputs()[0]);
    g.set_outputs(vec![loss]);
    let (mut training, _) = Builder::on(cpu())
        .optimizer(meganeura::Sgd::new(0.1))
        .build(&g)
        .expect("built");
    let error = training.share_weights().expect_err("it trains").to_string();
    assert!(error.contains("changes") && error.contains("inference"), "{error}");

    let weights = own(&cpu(), 1).share_weights().expect("supported");
    let error = Builder::new()
        .weights(&weights)
        .build(&g)
        .expect_err("training")
        .to_string();
    assert!(error.contains("cannot train"), "{error}");
    let error = Builder::on(cpu()).inference().weights(&weights).build(&network(1));
    assert!(
        error
            .expect_err("another device")
            .to_string()
            .contains("another device")
    );

    let limited = LimitedCpu::device(None, None);
    let error = own(&limited, 1)
        .share_weights()
        .expect_err("a device without sharing")
        .to_string();
    assert!(error.contains("does not share memory"), "{error}");
}

/// If a plan packs weights differently, the session has to get them in another way.
#[test]
fn other_forms_of_weights_are_copied() {
    let gated = |batch: usize| {
        let mut g = Graph::new();
        let x = g.input("x", &[batch, 16]);
        let (gate, up) = (g.parameter("gate", &[16, 32]), g.parameter("up", &[16, 32]));
        let (a, b) = (g.matmul(x, gate), g.matmul(x, up));
        let y = g.swiglu(a, b);
        g.set_outputs(vec![y]);
        g
    };
    let device = cpu();
    let (mut first, _) = Builder::on(device.clone()).inference().build(&gated(1)).expect("built");
    first.set_parameter("gate", &numbers(512, 1));
    first.set_parameter("up", &numbers(512, 2));
    assert_eq!(first.plan().derived_params.len(), 1, "both are packed");
    let weights = first.share_weights().expect("supported");
    let unpacked = RewriteConfig {
        disable: vec!["packing".into(), "swiglu".into()],
        ..RewriteConfig::default()
    };
    let builder = Builder::on(device).inference().weights(&weights).rewrite(unpacked);
    let (mut second, _) = builder.build(&gated(2)).expect("built");
    assert_eq!(second.unshared().collect::<Vec<_>>(), ["gate", "up"]);
    second.set_input("x", &numbers(32, 3));
    let error = second.try_step().expect_err("no weights").to_string();
    assert!(error.contains("'gate'") && error.contains("'up'"), "{error}");
    second.copy_unshared(&mut first).expect("the same names");
    second.step();
    assert_eq!(second.read_parameter("up"), numbers(512, 2));
    assert!(second.read_output(64).iter().any(|v| *v != 0.0));
}

fn cached() -> Graph {
    let mut g = Graph::new();
    let (x, at) = (g.input("x", &[1, 4]), g.input_u32("at", &[1]));
    let cache = g.state("cache", &[8, 4]);
    let w = g.parameter("w", &[4, 4]);
    let row = g.matmul(x, w);
    let cache = g.cache_write(row, cache, at);
    let sum = g.sum_all(cache);
    g.set_outputs(vec![sum]);
    g
}

/// States that steps write, such as caches, belong to each session.
#[test]
fn caches_are_not_shared() {
    for device in devices() {
        let builder = Builder::on(device.clone()).inference();
        let (mut first, _) = builder.clone().build(&cached()).expect("built");
        first.set_parameter("w", &numbers(16, 5));
        let weights = first.share_weights().expect("supported");
        let (mut second, _) = builder.weights(&weights).build(&cached()).expect("built");
        let sum = |session: &mut Session, at: u32| {
            session.set_input("x", &[1.0, 2.0, 3.0, 4.0]);
            session.set_input_u32("at", &[at]);
            session.step();
            session.read_output(1)[0]
        };
        let one = sum(&mut first, 0);
        assert!((sum(&mut first, 1) - 2.0 * one).abs() < 1e-5);
        assert_eq!(sum(&mut second, 5), one);
    }
}

/// A run of a model must not depend on what another run left in its context.
#[test]
fn graphs_with_caches_are_no_models() {
    let error = InferenceModel::of_graph(Builder::on(cpu()), &cached(), |_| Ok(())).expect_err("a cache");
    assert!(error.to_string().contains("changes the state 'cache'"), "{error}");
}

fn model(device: &Arc<dyn Device>) -> InferenceModel {
    let make = |shapes: &InputShapes| Ok(network(shapes.dim("x", 0)?));
    InferenceModel::new(Builder::on(device.clone()), &[("x", &[1, 3, 9, 8])], make, set).expect("a model")
}

fn input(batch: usize) -> Tensor {
    Tensor::f32(&[batch, 3, 9, 8], &x(batch)).expect("small")
}

#[test]
fn many_threads_run_a_model_with_inputs_of_all_sizes() {
    let without_sharing = LimitedCpu::device(None, None);
    for device in devices().into_iter().chain([without_sharing]) {
        let expected: HashMap<usize, Vec<f32>> = (1..5)
            .map(|batch| (batch, output(&mut own(&device, batch), batch)))
            .collect();
        let model = model(&device);
        thread::scope(|scope| {
            for start in 0..8 {
                let (model, expected) = (model.clone(), &expected);
                scope.spawn(move || {
                    for round in 0..6 {
                        let batch = 1 + (start + round) % 4;
                        let results = model.run(&[("x", &input(batch))]).expect("it runs");
                        assert_eq!(results[0].ty().shape.dims(), [batch, 10]);
                        assert_eq!(results[0].to_f32(), expected[&batch]);
                    }
                });
            }
        });
        assert!((1..=16).contains(&model.contexts()));
    }
}

#[test]
fn wrong_inputs_of_a_model_are_refused() {
    let model = model(&cpu());
    let error = |inputs: &[(&str, &Tensor)]| model.run(inputs).expect_err("refused");
    assert!(matches!(error(&[("y", &input(1))]), Error::InputNotSet { .. }));
    assert!(matches!(error(&[]), Error::InputNotSet { .. }));
    let narrow = Tensor::f32(&[1, 3, 9, 7], &[0.0; 189]).expect("small");
    let text = error(&[("x", &narrow)]).to_string();
    assert!(text.contains("[1, 3, 9, 8]") && text.contains("[1, 3, 9, 7]"), "{text}");
    let ids = Tensor::u32(&[1, 3, 9, 8], &[0; 216]).expect("small");
    assert!(matches!(error(&[("x", &ids)]), Error::WrongDType { .. }));
    assert!(matches!(
        error(&[("x", &input(1)), ("z", &input(1))]),
        Error::UnknownTensor { .. }
    ));
    let flat = Tensor::f32(&[], &[0.0]).expect("small");
    assert!(error(&[("x", &flat)]).to_string().contains("no axis 0"));
    // The model still runs.
    model.run(&[("x", &input(2))]).expect("it runs");
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

#[test]
fn runs_are_futures() {
    let device = cpu();
    let model = model(&device);
    let runs: Vec<_> = (1..6)
        .map(|batch| model.run_async(vec![("x".to_owned(), input(batch))]))
        .collect();
    for (batch, run) in (1..).zip(runs) {
        let results = block_on(run).expect("it runs");
        assert_eq!(results[0].to_f32(), output(&mut own(&device, batch), batch));
    }
    let error = block_on(model.run_async(Vec::new())).expect_err("no input");
    assert!(matches!(error, Error::InputNotSet { .. }));
}

/// Each shape has a plan file of its own.
#[test]
fn plans_of_all_shapes_are_cached_in_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let builder = Builder::on(cpu()).cache(folder.path().join("net.plan"));
    let make = |shapes: &InputShapes| Ok(network(shapes.dim("x", 0)?));
    let model = InferenceModel::new(builder, &[("x", &[1, 3, 9, 8])], make, set).expect("a model");
    for batch in [1, 2, 3, 2] {
        model.run(&[("x", &input(batch))]).expect("it runs");
    }
    let files = crate::common::files(folder.path());
    assert_eq!(files.len(), 3, "{files:?}");
    assert!(
        files
            .iter()
            .all(|name| name.starts_with("net-") && name.ends_with(".plan"))
    );
}
