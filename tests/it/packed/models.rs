//! Models that concatenate parameters, and their sessions with and without packing.

use std::sync::Arc;

use meganeura::autodiff::try_differentiate;
use meganeura::backend::Device;
use meganeura::cpu::CpuDevice;
use meganeura::plan::compile_for;
use meganeura::random::SplitMix64;
use meganeura::rewrite::pack_parameters;
use meganeura::{Graph, Init, NodeId, Session};

pub(crate) const BATCH: usize = 4;
const OUTPUTS: usize = 2;

/// Model with two layers. The first layer's matrix consists of weights `p0`, `p1` ... of these shapes, concatenated
/// along `axis`, and its bias of `b0` and `b1`. The second layer's matrix is `out.weight`.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) shapes: Vec<Vec<usize>>,
    pub(crate) axis: i32,
    /// True if `p1` is also used elsewhere.
    pub(crate) tied: bool,
    /// True if the concatenated weights are not trained.
    pub(crate) frozen: bool,
    /// True if the first layer is a gated unit.
    pub(crate) gated: bool,
}

impl Model {
    pub(crate) fn new(shapes: &[&[usize]], axis: i32) -> Self {
        Model {
            shapes: shapes.iter().map(|s| s.to_vec()).collect(),
            axis,
            tied: false,
            frozen: false,
            gated: false,
        }
    }

    /// Returns models of all kinds: axes, ranks, numbers of sources, odd sizes.
    pub(crate) fn all() -> Vec<Model> {
        let two = Model::new(&[&[7, 3], &[7, 3]], 1);
        vec![
            Model {
                gated: true,
                ..two.clone()
            },
            Model { tied: true, ..two },
            Model::new(&[&[1, 5], &[3, 5], &[2, 5]], 0),
            Model::new(&[&[11, 1], &[11, 2], &[11, 5]], 1),
            Model::new(&[&[2, 3, 5], &[2, 3, 2]], -1),
            Model::new(&[&[2, 3, 4], &[2, 1, 4], &[2, 2, 4]], 1),
            Model {
                frozen: true,
                ..Model::new(&[&[5, 3], &[5, 1]], 1)
            },
        ]
    }

    fn first_layer(&self, g: &mut Graph) -> (Vec<NodeId>, NodeId) {
        let parameter = |g: &mut Graph, name: String, shape: &[usize]| {
            let id = g.parameter_with(&name, shape, Init::Uniform { bound: 0.5 });
            g.trainable(id, !self.frozen)
        };
        let sources: Vec<NodeId> = self
            .shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| parameter(g, format!("p{i}"), shape))
            .collect();
        let joined = g.concat(&sources, self.axis);
        let shape = g.shape(joined).to_vec();
        let columns = shape[shape.len() - 1];
        let rows = shape.iter().product::<usize>() / columns;
        let matrix = g.reshape(joined, &[rows, columns]);
        let x = g.input("x", &[BATCH, rows]);
        let h = g.matmul(x, matrix);
        let b0 = g.parameter_with("b0", &[1], Init::Constant(0.25));
        let b1 = g.parameter_with("b1", &[columns - 1], Init::Normal { std: 0.5 });
        let bias = g.concat(&[b0, b1], 0);
        (sources, g.bias_add(h, bias))
    }

    pub(crate) fn graph(&self) -> Graph {
        let mut g = Graph::new();
        let (sources, h) = self.first_layer(&mut g);
        let h = if self.gated { g.swiglu_concat(h) } else { g.tanh(h) };
        let width = g.shape(h)[1];
        let w = g.parameter_with("out.weight", &[width, OUTPUTS], Init::Uniform { bound: 1.0 });
        let y = g.matmul(h, w);
        let target = g.input("target", &[BATCH, OUTPUTS]);
        let mut loss = g.mse_loss(y, target);
        if self.tied {
            let square = g.mul(sources[1], sources[1]);
            let mean = g.mean_all(square);
            loss = g.add(loss, mean);
        }
        g.set_outputs(vec![loss]);
        g.verify().expect("a valid graph");
        g
    }

    /// Returns the names of the concatenated weights.
    pub(crate) fn sources(&self) -> Vec<String> {
        (0..self.shapes.len()).map(|i| format!("p{i}")).collect()
    }
}

/// Time at which parameters are packed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Packed {
    Never,
    BeforeAutodiff,
    AfterAutodiff,
}

pub(crate) fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(1))
}

pub(crate) fn pack(graph: &Graph) -> Graph {
    pack_parameters(graph, &|_| 0).expect("packs")
}

/// Creates a training session with initialised parameters.
pub(crate) fn session(graph: &Graph, packed: Packed) -> Session {
    let full = match packed {
        Packed::Never => try_differentiate(graph),
        Packed::BeforeAutodiff => try_differentiate(&pack(graph)),
        Packed::AfterAutodiff => try_differentiate(graph).map(|full| pack(&full)),
    };
    let plan = compile_for(&full.expect("differentiates"), &*device()).expect("compiles");
    let stored = plan.derived_params.len();
    assert_eq!(stored > 0, packed != Packed::Never, "{stored} packed parameters");
    let mut session = Session::on(device(), plan).expect("opens");
    session.initialize_parameters(11);
    session
}

/// Sets the inputs of step `step`.
pub(crate) fn feed(session: &mut Session, step: u64) {
    let inputs = session.plan().input_buffers.clone();
    for (name, buffer) in inputs {
        let len = session.plan().buffer_types[buffer.index()].numel();
        let mut rng = SplitMix64::new(step * 2 + u64::from(name == "x"));
        let values: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
        session.set_input(&name, &values);
    }
}

/// Returns the user-visible names of parameters, gradients and states.
pub(crate) fn names(session: &Session) -> [Vec<String>; 3] {
    let plan = session.plan();
    [plan.parameters(), plan.gradients(), plan.states()].map(|views| {
        let mut names: Vec<String> = views.into_iter().map(|v| v.name).collect();
        names.sort();
        names
    })
}

/// Returns all named tensors of a session.
pub(crate) fn contents(session: &mut Session) -> Vec<(String, Vec<f32>)> {
    let [parameters, gradients, states] = names(session);
    let mut all = vec![("loss".to_owned(), vec![session.read_loss()])];
    for name in parameters {
        let values = session.read_parameter(&name);
        all.push((name, values));
    }
    for name in gradients {
        let values = session.read_grad(&name);
        all.push((format!("{name}.grad"), values));
    }
    // Only packed parameters have copies of sources during an update.
    for name in states.into_iter().filter(|n| !n.starts_with("optimizer.unpacked.")) {
        let values = session.read_state(&name);
        all.push((name, values));
    }
    all
}

/// Checks that both sessions have the same tensors, equal to `limit` relative to the largest element (0: equal).
pub(crate) fn check_equal(a: &mut Session, b: &mut Session, limit: f32, what: &str) {
    let (a, b) = (contents(a), contents(b));
    let list = |all: &[(String, Vec<f32>)]| all.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(list(&a), list(&b), "{what}");
    for ((name, a), (_, b)) in a.iter().zip(&b) {
        assert_eq!(a.len(), b.len(), "{what}: {name}");
        let scale = a.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            assert!(
                x.is_finite() && (x - y).abs() <= limit * scale,
                "{what}: {name}[{i}] is {x} unpacked, {y} packed"
            );
        }
    }
}
