//! Helpers that run graphs in sessions and convert their values.

use std::collections::HashMap;

use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeKind};
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::plan::compile_for;
use meganeura_core::random::SplitMix64;
use meganeura_core::shape::TensorType;
use meganeura_core::{DType, Session};

use crate::case::SharedDevice;
use crate::storage::{decode, encode, narrow};

/// Contents of inputs, parameters and states (leaves of a graph), by name.
pub(crate) type Feeds = HashMap<String, Vec<f64>>;

/// Compiles a graph for a device and opens a session.
pub(crate) fn open(device: &SharedDevice, graph: &Graph) -> Result<Session> {
    Session::on(device.clone(), compile_for(graph, &**device)?)
}

/// Sets every leaf of a graph that is in `feeds`.
pub(crate) fn feed(session: &mut Session, graph: &Graph, feeds: &Feeds) -> Result<()> {
    for node in graph.nodes() {
        let Some(name) = node.name.as_deref() else { continue };
        let (Some(values), Some(ty)) = (feeds.get(name), node.outputs.first()) else {
            continue;
        };
        match &node.kind {
            NodeKind::Input => set_input(session, name, ty, values)?,
            NodeKind::Parameter { .. } => session.try_set_parameter_bytes(name, &encode(ty.dtype, values)?)?,
            NodeKind::State { .. } => session.try_set_state(name, &narrow(values))?,
            NodeKind::Scalar if !values.is_empty() => session.try_set_scalar(name, values[0])?,
            _ => {}
        }
    }
    Ok(())
}

fn set_input(session: &mut Session, name: &str, ty: &TensorType, values: &[f64]) -> Result<()> {
    match ty.dtype {
        DType::F32 => session.try_set_input(name, &narrow(values)),
        DType::U32 => {
            let words: Vec<u32> = values.iter().map(|&v| v as u32).collect();
            session.try_set_input_u32(name, &words)
        }
        dtype => session.try_set_input_bytes(name, &encode(dtype, values)?),
    }
}

/// Reads an output of any type.
pub(crate) fn output(session: &mut Session, index: usize) -> Result<Vec<f64>> {
    let bytes = session.try_read_output_bytes(index)?;
    let dtype = session.plan().output_types.get(index).map_or(DType::F32, |t| t.dtype);
    decode(dtype, &bytes)
}

/// Feeds, runs one step, waits, and reads all outputs.
pub(crate) fn run_once(session: &mut Session, graph: &Graph, feeds: &Feeds) -> Result<Vec<Vec<f64>>> {
    feed(session, graph, feeds)?;
    session.try_step()?;
    session.try_wait()?;
    (0..graph.outputs().len()).map(|i| output(session, i)).collect()
}

/// Returns numbers in `[-2, 2]` that are the same at every call.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f64> {
    SampleInput::f32(&[count]).values(&mut SplitMix64::new(seed))
}
