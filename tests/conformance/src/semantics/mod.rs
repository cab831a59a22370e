//! What a session promises beyond the values of operators.

mod caches;
mod limits;
mod order;
mod paged;
mod sessions;
mod shapes;
mod steps;

use meganeura_core::graph::Graph;

use crate::harness::{Feeds, open, run_once};
use crate::runner::{Case, CaseRun, Check, SharedDevice, ensure};

pub(crate) fn cases() -> Vec<Case> {
    [
        caches::cases(),
        limits::cases(),
        order::cases(),
        paged::cases(),
        shapes::cases(),
        steps::cases(),
        sessions::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A case of this section.
fn case(id: &str, run: fn(&SharedDevice) -> CaseRun) -> Case {
    Case::new(format!("semantics/{id}"), run)
}

fn feeds<const N: usize>(pairs: [(&str, &[f64]); N]) -> Feeds {
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_vec())).collect()
}

/// Exact contents, for cases whose numbers are small integers.
fn same(what: &str, found: &[f64], expected: &[f64]) -> CaseRun {
    ensure!(found == expected, "{what} is {found:?} instead of {expected:?}");
    Ok(Check::default())
}

fn same_f32(what: &str, found: &[f32], expected: &[f32]) -> CaseRun {
    ensure!(found == expected, "{what} is {found:?} instead of {expected:?}");
    Ok(Check::default())
}

/// Runs a graph once in a new session and compares all outputs exactly.
fn outputs(device: &SharedDevice, graph: &Graph, feeds: &Feeds, expected: &[&[f64]]) -> CaseRun {
    let mut session = open(device, graph)?;
    let found = run_once(&mut session, graph, feeds)?;
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        same(&format!("output {i}"), found, expected)?;
    }
    Ok(Check::default())
}
