//! Workloads of each suite.

mod contraction;
mod kernels;
mod models;
mod sessions;

use super::{Sizes, Suite, Workload};
use meganeura::Adam;

/// Returns the update of measured training steps: AdamW with a rate of 1e-4 and a weight decay of 0.05.
pub fn adamw() -> Adam {
    Adam::adamw(1e-4, 0.05)
}

/// Returns the workloads of a suite, for devices of a class. Workloads of the same size have the same name in every class.
pub fn workloads(suite: Suite, sizes: Sizes) -> Vec<Workload> {
    match suite {
        Suite::Matmul => contraction::matmul(sizes),
        Suite::Attention => contraction::attention(sizes),
        Suite::Conv => contraction::conv(sizes),
        Suite::Pointwise => kernels::pointwise(sizes),
        Suite::Norm => kernels::norm(sizes),
        Suite::Optimizer => kernels::optimizer(sizes),
        Suite::Models => models::models(sizes),
        Suite::Session => sessions::session(sizes),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Task;

    #[test]
    fn every_work_is_a_graph_with_a_name_of_its_own() {
        for suite in Suite::ALL {
            for sizes in [Sizes::Small, Sizes::Medium, Sizes::Large] {
                let workloads = workloads(suite, sizes);
                assert!(workloads.len() >= 3, "{suite}, {sizes}");
                let names: HashSet<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
                assert_eq!(names.len(), workloads.len(), "{suite}, {sizes}");
                assert!(workloads.iter().all(|workload| workload.suite == suite));
                let series: HashSet<(&str, u64)> = workloads
                    .iter()
                    .filter_map(|workload| workload.series.as_ref().map(|s| (s.name.as_str(), s.size)))
                    .collect();
                let in_series = workloads.iter().filter(|workload| workload.series.is_some()).count();
                assert_eq!(series.len(), in_series, "{suite}, {sizes}: one place in a series");
                // Parameters are not filled, so large ones cost nothing here.
                for workload in &workloads {
                    workload
                        .graph()
                        .verify()
                        .unwrap_or_else(|e| panic!("{}: {e}", workload.name));
                    assert!(workload.update.is_none() || workload.mode == meganeura::Mode::Training);
                }
                let steps = workloads.iter().filter(|workload| workload.task == Task::Step).count();
                assert_eq!(steps == workloads.len(), suite != Suite::Session);
            }
        }
    }
}
