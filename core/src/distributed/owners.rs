//! Assignment of parameters to ranks for updates with sharded optimizer states (ZeRO stage 1).

use std::collections::HashMap;

use crate::plan::{BufferRef, ExecutionPlan};

/// The owner of each trained parameter: the rank that stores its moments and computes its update.
///
/// Parameters are not split: in order of decreasing size, each goes to the rank with the smallest load so far. So rules
/// that need the whole parameter work, and a state is on one rank, with the same shape as in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    of: HashMap<BufferRef, usize>,
    loads: Vec<usize>,
}

impl Owners {
    /// Divides the trained parameters of a plan between `ranks` ranks, identically on every rank.
    pub fn of(plan: &ExecutionPlan, ranks: usize) -> Self {
        // Parameters that share a gradient get the same owner, as the gradient is reduced to one
        // rank.
        let mut parts: Vec<(BufferRef, usize, Vec<BufferRef>)> = Vec::new();
        let mut places: HashMap<BufferRef, usize> = HashMap::new();
        for &(parameter, gradient) in &plan.param_grad_pairs {
            let at = *places.entry(gradient).or_insert_with(|| {
                parts.push((gradient, 0, Vec::new()));
                parts.len() - 1
            });
            parts[at].1 += plan.buffer_types[parameter.index()].numel();
            parts[at].2.push(parameter);
        }
        // A stable sort: parts of equal size stay in the plan's order.
        parts.sort_by_key(|(_, elements, _)| std::cmp::Reverse(*elements));
        let mut owners = Owners {
            of: HashMap::new(),
            loads: vec![0; ranks.max(1)],
        };
        for (_, elements, parameters) in parts {
            let least = owners.loads.iter().enumerate().min_by_key(|(_, load)| **load);
            let rank = least.map_or(0, |(rank, _)| rank);
            owners.loads[rank] += elements;
            owners
                .of
                .extend(parameters.into_iter().map(|parameter| (parameter, rank)));
        }
        owners
    }

    /// Returns the owner of a parameter; `None` for a buffer that is not a trained parameter.
    pub fn owner(&self, parameter: BufferRef) -> Option<usize> {
        self.of.get(&parameter).copied()
    }

    /// Returns the number of elements that each rank updates.
    pub fn loads(&self) -> &[usize] {
        &self.loads
    }
}
