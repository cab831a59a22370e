//! The works of each suite.

mod kernels;
mod models;
mod products;
mod sessions;

use super::{Sizes, Suite, Work};
use crate::Adam;

/// The update of trainings that are measured: AdamW with a rate of 1e-4 and a weight decay of 0.05.
pub fn adamw() -> Adam {
    Adam::adamw(1e-4, 0.05)
}

/// The works of a suite, for devices of a class. Names of works of one size are the same in every class that has it.
pub fn works(suite: Suite, sizes: Sizes) -> Vec<Work> {
    match suite {
        Suite::Matmul => products::matmul(sizes),
        Suite::Attention => products::attention(sizes),
        Suite::Conv => products::conv(sizes),
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
    use crate::bench::Task;

    #[test]
    fn every_work_is_a_graph_with_a_name_of_its_own() {
        for suite in Suite::ALL {
            for sizes in [Sizes::Small, Sizes::Medium, Sizes::Large] {
                let works = works(suite, sizes);
                assert!(works.len() >= 3, "{suite}, {sizes}");
                let names: HashSet<&str> = works.iter().map(|work| work.name.as_str()).collect();
                assert_eq!(names.len(), works.len(), "{suite}, {sizes}");
                assert!(works.iter().all(|work| work.suite == suite));
                let series: HashSet<(&str, u64)> = works
                    .iter()
                    .filter_map(|work| work.series.as_ref().map(|s| (s.name.as_str(), s.size)))
                    .collect();
                let in_series = works.iter().filter(|work| work.series.is_some()).count();
                assert_eq!(series.len(), in_series, "{suite}, {sizes}: one place in a series");
                // Parameters are not filled, so that the large ones cost nothing here.
                for work in &works {
                    work.graph().verify().unwrap_or_else(|e| panic!("{}: {e}", work.name));
                    assert!(work.update.is_none() || work.mode == crate::Mode::Training);
                }
                let steps = works.iter().filter(|work| work.task == Task::Step).count();
                assert_eq!(steps == works.len(), suite != Suite::Session);
            }
        }
    }
}
