//! Single calls in Meganeura and candle, and in frameworks of Python.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{Device as CandleDevice, Tensor as Candle};
use meganeura::backend::Device;
use meganeura::build::build_on;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::ops::Conv2dOptions;
use meganeura::{Graph, Mode, select};

use crate::contest::{Contest, Peer, Result};
use crate::problem::{Kind, Operand, Problem};
use crate::{Setup, python};

/// How far from the first contestant's result others may be, relative to its largest number.
const SAME: f32 = 1e-4;
/// Of layer norms.
const EPS: f32 = 1e-5;

/// A work whose result is read only where somebody asks for it.
pub(crate) struct Reading<F>(F);

impl<F: FnMut(bool) -> Result<Vec<f32>>> Reading<F> {
    /// `work` is told whether its result is wanted.
    pub(crate) fn new(work: F) -> Self {
        Reading(work)
    }
}

impl<F: FnMut(bool) -> Result<Vec<f32>>> Peer for Reading<F> {
    fn result(&mut self) -> Result<Vec<f32>> {
        (self.0)(true)
    }

    fn time(&mut self, times: u32) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..times {
            (self.0)(false)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(times))
    }
}

/// All contestants for a problem. Frameworks that lack something are named and left out.
pub(crate) fn contest(problem: &Problem, setup: &Setup) -> Result<Contest<'static>> {
    let mut contest = Contest::new(problem.name);
    contest.add(
        "meganeura cpu",
        0.0,
        meganeura(problem, Arc::new(CpuDevice::new(setup.threads)))?,
    );
    for selector in &setup.devices {
        let config = Config::load()?;
        let device = select::select(Some(selector), &config)?.open(&config)?;
        contest.add(format!("meganeura {selector}"), SAME, meganeura(problem, device)?);
    }
    if setup.wants("candle") {
        contest.add("candle", SAME, candle(problem)?);
    }
    python::add(&mut contest, setup, python::OF_CALLS, SAME, &problem.handout());
    Ok(contest)
}

fn meganeura(problem: &Problem, device: Arc<dyn Device>) -> Result<Box<dyn Peer>> {
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
    let (mut session, _) = build_on(&g, device, Mode::Inference, None)?;
    for operand in &problem.operands[1..] {
        session.try_set_parameter(&operand.name, &operand.data)?;
    }
    session.try_set_input("x", &problem.operands[0].data)?;
    let len = g.ty(y).map_or(0, |ty| ty.numel());
    Ok(Box::new(Reading(move |read| {
        session.try_step()?;
        session.try_wait()?;
        Ok(if read {
            session.try_read_output(len)?
        } else {
            Vec::new()
        })
    })))
}

fn candle(problem: &Problem) -> Result<Box<dyn Peer>> {
    let tensor = |o: &Operand| Candle::from_vec(o.data.clone(), o.shape.clone(), &CandleDevice::Cpu);
    let t = problem
        .operands
        .iter()
        .map(tensor)
        .collect::<candle_core::Result<Vec<_>>>()?;
    let kind = problem.kind;
    Ok(Box::new(Reading(move |read| {
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
