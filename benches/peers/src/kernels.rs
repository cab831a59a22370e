//! Comparison of single calls.

use candle_core::{Device as CandleDevice, Tensor as Candle};
use meganeura::ops::Conv2dOptions;
use meganeura::{Graph, Mode, Session};
use serde_json::Value;

use crate::comparison::{Comparison, Peer, ReadsBack, Result};
use crate::onnx::Model;
use crate::problem::{Handout, Kind, Operand, Problem};
#[cfg(feature = "burn")]
use crate::with_burn;
#[cfg(feature = "tract")]
use crate::with_tract;
use crate::{Entrant, Setup, python};

/// Maximum difference from the first candidate's result, relative to its largest number.
const SAME: f32 = 1e-4;
/// Epsilon of layer norms.
pub(crate) const EPS: f32 = 1e-5;

/// Returns all candidates for a problem. Frameworks without support are listed as skipped.
pub(crate) fn comparison(problem: &Problem, setup: &Setup) -> Result<Comparison<'static>> {
    let mut comparison = Comparison::new(problem.name);
    for entrant in setup.meganeura(SAME)? {
        comparison.add(entrant.name.clone(), entrant.tolerance, meganeura(problem, entrant)?);
    }
    if setup.wants("candle") {
        comparison.add("candle", SAME, candle(problem)?);
    }
    #[cfg(feature = "burn")]
    with_burn::add(&mut comparison, setup, SAME, |device| with_burn::call(problem, device));
    let model = Model::of(problem);
    #[cfg(feature = "tract")]
    with_tract::add(&mut comparison, setup, SAME, &model, &problem.operands[0]);
    let handout = Handout {
        kind: format!("{:?}", problem.kind),
        operands: &problem.operands,
        settings: Value::Null,
        onnx: Some(model.bytes()),
    };
    python::add(&mut comparison, setup, python::OF_CALLS, SAME, &handout);
    Ok(comparison)
}

fn meganeura(problem: &Problem, entrant: Entrant) -> Result<Box<dyn Peer>> {
    let mut g = Graph::new();
    let node = |o: &Operand| match o.name.as_str() {
        "x" => g.input("x", &o.shape),
        name => g.parameter(name, &o.shape),
    };
    let nodes: Vec<_> = problem.operands.iter().map(node).collect();
    let x = nodes[0];
    let y = match problem.kind {
        Kind::Matmul => g.matmul(x, nodes[1]),
        Kind::Mlp => {
            let h = g.matmul(x, nodes[1]);
            let h = g.relu(h);
            g.matmul(h, nodes[2])
        }
        Kind::Softmax => g.softmax(x, -1),
        Kind::LayerNorm => g.layer_norm(x, nodes[1], nodes[2], EPS),
        Kind::Gelu => g.gelu_erf(x),
        Kind::Conv => {
            let options = Conv2dOptions {
                padding: [1, 1],
                ..Conv2dOptions::default()
            };
            g.conv2d(x, nodes[1], options)
        }
    };
    g.set_outputs(vec![y]);
    let mut session = entrant.build(&g, Mode::Inference, None)?;
    for operand in &problem.operands[1..] {
        session.try_set_parameter(&operand.name, &operand.data)?;
    }
    session.try_set_input("x", &problem.operands[0].data)?;
    let len = g.ty(y).map_or(0, |ty| ty.numel());
    Ok(reading(session, len))
}

/// Creates a candidate from an inference session whose inputs are set, with an output of `len` numbers.
pub(crate) fn reading(mut session: Session, len: usize) -> Box<dyn Peer> {
    Box::new(ReadsBack::new(move |read| {
        session.try_step()?;
        session.try_wait()?;
        Ok(if read {
            session.try_read_output(len)?
        } else {
            Vec::new()
        })
    }))
}

fn candle(problem: &Problem) -> Result<Box<dyn Peer>> {
    let tensor = |o: &Operand| Candle::from_vec(o.data.clone(), o.shape.clone(), &CandleDevice::Cpu);
    let t = problem
        .operands
        .iter()
        .map(tensor)
        .collect::<candle_core::Result<Vec<_>>>()?;
    let kind = problem.kind;
    Ok(Box::new(ReadsBack::new(move |read| {
        let y = match kind {
            Kind::Matmul => t[0].matmul(&t[1])?,
            Kind::Mlp => t[0].matmul(&t[1])?.relu()?.matmul(&t[2])?,
            Kind::Softmax => candle_nn::ops::softmax_last_dim(&t[0])?,
            Kind::LayerNorm => candle_nn::ops::layer_norm(&t[0], &t[1], &t[2], EPS)?,
            Kind::Gelu => t[0].gelu_erf()?,
            Kind::Conv => t[0].conv2d(&t[1], 1, 1, 1, 1)?,
        };
        Ok(if read { y.flatten_all()?.to_vec1()? } else { Vec::new() })
    })))
}
