//! Tests of the channels-last layout: converted graphs have the same values, and graphs are converted if that is faster
//! on the device.

use std::collections::HashMap;

use meganeura_compiler::optimize::{OptimizeReport, optimize_for};
use meganeura_compiler::rewrite::{Pass, Request, RewriteConfig, SimulatedDevice, Target};
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::backend::{CostModel, KernelDesc};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::{Conv2dOptions, Pool2dOptions};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;

/// A device on which convolutions with channels first are many times slower.
struct ChannelsLast;

impl Target for ChannelsLast {
    fn cost_model(&self) -> CostModel {
        SimulatedDevice::discrete_gpu().0
    }

    fn launches(&self, _: &KernelDesc) -> Option<u32> {
        Some(1)
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        let is_slow = kernel.name.starts_with("core.conv2d") && !kernel.name.contains("nhwc");
        if is_slow { 1e-6 } else { 1.0 }
    }
}

fn optimized(graph: &Graph, target: &dyn Target, pass: Pass, channels_last: bool) -> (Graph, OptimizeReport) {
    let config = RewriteConfig {
        enabled: false,
        channels_last,
        ..RewriteConfig::default()
    };
    let request = Request {
        pass,
        target,
        config: &config,
        group_of: &|_| 0,
    };
    optimize_for(graph, &request).expect("it optimizes")
}

/// Returns the names of the calls, including those of programs.
fn calls(graph: &Graph) -> Vec<&'static str> {
    let mut names = Vec::new();
    for (op, attrs) in graph.nodes().iter().filter_map(|n| n.op()) {
        match attrs.program("program") {
            Ok(program) => names.extend(program.steps().iter().map(|step| step.op.name())),
            Err(_) => names.push(op.name()),
        }
    }
    names
}

fn count(graph: &Graph, name: &str) -> usize {
    calls(graph).iter().filter(|call| **call == name).count()
}

/// A random network on images, and its inputs.
struct Network {
    graph: Graph,
    feeds: HashMap<String, Vec<f64>>,
    rng: SplitMix64,
}

impl Network {
    fn fill(&mut self, name: &str, shape: &[usize]) {
        let values = (0..shape.iter().product::<usize>()).map(|_| 2.0 * self.rng.unit() - 1.0);
        let values: Vec<f64> = values.collect();
        self.feeds.insert(name.to_owned(), values);
    }

    fn parameter(&mut self, shape: &[usize]) -> Value {
        let name = format!("p{}", self.feeds.len());
        self.fill(&name, shape);
        self.graph.parameter(&name, shape).into()
    }

    fn below(&mut self, end: usize) -> usize {
        (self.rng.next_u64() % end as u64) as usize
    }

    fn conv(&mut self, x: Value, outputs: usize, kernel: usize, stride: u32, groups: usize) -> Value {
        let inputs = self.graph.shape(x)[1];
        let w = self.parameter(&[outputs, inputs / groups, kernel, kernel]);
        let options = Conv2dOptions {
            stride: [stride; 2],
            padding: [kernel as u32 / 2; 2],
            groups: groups as u32,
            ..Conv2dOptions::default()
        };
        self.graph.conv2d(x, w, options).into()
    }

    fn layer(&mut self, x: Value, is_training: bool) -> Value {
        let &[_, c, h, w] = self.graph.shape(x) else {
            panic!("an image");
        };
        let windows = Pool2dOptions {
            kernel: [3, 3],
            stride: [1, 1],
            padding: [1, 1],
        };
        match self.below(12) {
            0 => self.conv(x, 4, 3, 1, 1),
            1 => self.conv(x, 8, 1, 1, 1),
            2 => self.conv(x, 5, 3, 2, 1),
            3 => self.conv(x, c, 3, 1, c),
            4 => {
                let bias = self.parameter(&[c, 1, 1]);
                let y = self.graph.add(x, bias);
                self.graph.relu(y).into()
            }
            5 => {
                let y = self.conv(x, c, 3, 1, 1);
                self.graph.add(y, x).into()
            }
            6 => self.graph.max_pool2d(x, windows).into(),
            7 => self.graph.avg_pool2d(x, windows).into(),
            8 => {
                let pooled = self.graph.mean(x, &[2, 3], true);
                let gate = self.graph.sigmoid(pooled);
                self.graph.mul(x, gate).into()
            }
            9 => {
                let [weight, bias, mean, variance] = [(); 4].map(|()| self.parameter(&[c]));
                let variance = self.graph.square(variance);
                if is_training {
                    // Written statistics are not compared here.
                    let names = ["mean", "var"].map(|n| format!("{n}{}", self.feeds.len()));
                    for name in &names {
                        self.fill(name, &[c]);
                    }
                    let [mean, variance] = names.map(|name| self.graph.state(&name, &[c]));
                    self.graph.batch_norm(x, weight, bias, mean, variance, 0.1, 1e-3).into()
                } else {
                    self.graph
                        .batch_norm_inference(x, weight, bias, mean, variance, 1e-3)
                        .into()
                }
            }
            10 => {
                let y = self.graph.tanh(x);
                self.graph.concat(&[x, y.into()], 1).into()
            }
            _ => {
                let one = self.graph.sum(x, &[1], true);
                let wide = self.graph.expand(one, &[self.graph.shape(x)[0], c, h, w]);
                self.graph.sub(x, wide).into()
            }
        }
    }
}

fn network(seed: u64, is_training: bool) -> Network {
    let mut n = Network {
        graph: Graph::new(),
        feeds: HashMap::new(),
        rng: SplitMix64::new(seed),
    };
    let channels = [1, 3, 4, 6][n.below(4)];
    let shape = [2, channels, 6, 5];
    n.fill("x", &shape);
    let mut x: Value = n.graph.input("x", &shape).into();
    x = n.conv(x, 4, 3, 1, 1);
    for _ in 0..6 {
        x = n.layer(x, is_training);
    }
    let flat = n.graph.mean(x, &[2, 3], false);
    let loss = n.graph.mean(flat, &[], false);
    n.graph.set_outputs(if is_training {
        vec![loss.into()]
    } else {
        vec![x, flat.into()]
    });
    n.graph.verify().expect("a graph");
    n
}

fn agrees(network: &Network, graph: &Graph, new: &Graph, case: u64) {
    let want = evaluate(graph, &network.feeds).expect("an evaluation");
    let got = evaluate(new, &network.feeds).expect("an evaluation");
    let gradients = |g: &Graph| g.gradients().iter().map(|&(_, value)| value).collect::<Vec<_>>();
    let pairs = graph.outputs().iter().copied().zip(new.outputs().iter().copied());
    let pairs = pairs.chain(gradients(graph).into_iter().zip(gradients(new)));
    for (a, b) in pairs {
        let (a, b) = (want.get(a).expect("a value"), got.get(b).expect("a value"));
        assert_eq!(a.ty, b.ty, "case {case}");
        for (x, y) in a.data.iter().zip(&b.data) {
            assert!((x - y).abs() <= 1e-8 * x.abs().max(1.0), "case {case}: {x} and {y}");
        }
    }
}

#[test]
fn random_networks_mean_what_they_meant() {
    let mut converted = 0;
    for case in 0..120 {
        let network = network(case, false);
        let (new, report) = optimized(&network.graph, &ChannelsLast, Pass::Inference, true);
        assert_eq!(
            report.images_channels_last,
            calls(&new).iter().any(|c| c.contains("nhwc")),
            "case {case}"
        );
        converted += usize::from(report.images_channels_last);
        agrees(&network, &network.graph, &new, case);
    }
    assert!(converted > 100, "only {converted}");
}

#[test]
fn random_gradients_mean_what_they_meant() {
    let mut kinds = [0; 3];
    for case in 0..80 {
        let network = network(1000 + case, true);
        let graph = try_differentiate(&network.graph).expect("gradients");
        let (new, _) = optimized(&graph, &ChannelsLast, Pass::Backward, true);
        let names = [
            "core.conv2d_nhwc",
            "core.conv2d_nhwc_input_grad",
            "core.conv2d_nhwc_weight_grad",
        ];
        for (kind, name) in kinds.iter_mut().zip(names) {
            *kind += count(&new, name);
        }
        agrees(&network, &graph, &new, case);
    }
    assert!(kinds.iter().all(|&count| count > 30), "{kinds:?}");
}

#[test]
fn a_block_is_converted_at_its_ends_alone() {
    let mut n = Network {
        graph: Graph::new(),
        feeds: HashMap::new(),
        rng: SplitMix64::new(1),
    };
    let x: Value = n.graph.input("x", &[2, 64, 16, 16]).into();
    let mut y = n.conv(x, 64, 3, 1, 1);
    for _ in 0..3 {
        let z = n.conv(y, 16, 1, 1, 1);
        let bias = n.parameter(&[16, 1, 1]);
        let z = n.graph.add(z, bias);
        let z = n.graph.relu(z);
        let z = n.conv(z.into(), 64, 3, 1, 1);
        let z = n.graph.add(z, y);
        y = n.graph.relu(z).into();
    }
    n.graph.set_outputs(vec![y]);
    let (new, report) = optimized(&n.graph, &ChannelsLast, Pass::Inference, true);
    assert!(
        report.images_channels_last && report.to_string().contains("channels last"),
        "{report}"
    );
    // Those of weights of 3x3 kernels are computed once.
    let of_step = new.invariant_nodes().expect("no cycle");
    let permutes = |node: &meganeura_core::graph::Node| match node.op() {
        Some((op, attrs)) => match attrs.program("program") {
            Ok(program) => program.steps().iter().any(|step| step.op.name() == "core.permute"),
            Err(_) => op.name() == "core.permute",
        },
        None => false,
    };
    let moved = new
        .nodes()
        .iter()
        .zip(of_step)
        .filter(|(node, once)| !once && permutes(node))
        .count();
    assert!(moved <= 2, "{moved} calls of a step permute: {:?}", calls(&new));
    assert_eq!(count(&new, "core.conv2d"), 0);
    assert_eq!(count(&new, "core.matmul"), 3);
}

#[test]
fn the_device_and_the_configuration_decide() {
    let network = network(3, false);
    let (even, report) = optimized(&network.graph, &SimulatedDevice::discrete_gpu(), Pass::Inference, true);
    assert!(
        !report.images_channels_last && !report.to_string().contains("channels last"),
        "{report}"
    );
    assert_eq!(
        count(&even, "core.conv2d_nhwc"),
        0,
        "permutations cost, and gain nothing"
    );
    let (off, _) = optimized(&network.graph, &ChannelsLast, Pass::Inference, false);
    assert_eq!(count(&off, "core.conv2d_nhwc"), 0);
}
