//! Comparison of results that must be exact.

use meganeura_core::graph::Graph;

use crate::case::{Case, CaseRun, Check, SharedDevice, ensure};
use crate::harness::{Feeds, open, run_once};

/// Creates a case of this section.
pub(super) fn case(id: &str, run: fn(&SharedDevice) -> CaseRun) -> Case {
    Case::new(format!("semantics/{id}"), run)
}

pub(super) fn feeds<const N: usize>(pairs: [(&str, &[f64]); N]) -> Feeds {
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_vec())).collect()
}

/// Compares contents exactly, for cases whose numbers are small integers.
pub(super) fn same(what: &str, found: &[f64], expected: &[f64]) -> CaseRun {
    ensure!(found == expected, "{what} is {found:?} instead of {expected:?}");
    Ok(Check::default())
}

pub(super) fn same_f32(what: &str, found: &[f32], expected: &[f32]) -> CaseRun {
    ensure!(found == expected, "{what} is {found:?} instead of {expected:?}");
    Ok(Check::default())
}

/// Runs a graph once in a new session and compares all outputs exactly.
pub(super) fn outputs(device: &SharedDevice, graph: &Graph, feeds: &Feeds, expected: &[&[f64]]) -> CaseRun {
    let mut session = open(device, graph)?;
    let found = run_once(&mut session, graph, feeds)?;
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        same(&format!("output {i}"), found, expected)?;
    }
    Ok(Check::default())
}
