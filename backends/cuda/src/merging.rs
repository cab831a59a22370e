//! Merging of the launches of a phase into fewer kernels. A launch takes about a microsecond, as long as a small
//! kernel.

use std::collections::HashMap;

use meganeura_shaders::{Binding, Launch};
use naga::AddressSpace;

use crate::program::Numbered;
use crate::wgsl::read;

/// Maximum number of launches that are merged into a kernel.
const MAX_LAUNCHES: usize = 32;
/// Maximum number of bytes of a kernel's parameters: the limit of every driver, minus a reserve for parameters that
/// are not counted.
const MAX_PARAMETER_BYTES: usize = 3_800;
/// Maximum size of the workgroup memory of a kernel in bytes.
const MAX_SHARED: u32 = 48 * 1024;
/// Number of blocks per multiprocessor that merged launches with different modules may have in total. All parts of a
/// merged kernel use the number of registers of its largest part, so fewer blocks of the other parts fit on a
/// multiprocessor.
const SMALL: u32 = 4;

/// Properties of a WGSL module on which merging depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    threads: [u32; 3],
    shared_bytes: u32,
}

/// Launches that are merged into one kernel.
struct Batch<'a> {
    launches: Vec<Numbered<'a>>,
    facts: Facts,
    /// Size of the workgroup memory of all distinct modules in bytes.
    shared_bytes: u32,
    blocks: u64,
    parameter_bytes: usize,
    /// `true` if all launches have the same module.
    is_same: bool,
}

/// Merging decisions for the phases of a plan.
pub(crate) struct MergeDecisions {
    /// Maximum total number of blocks of merged launches with different modules.
    most_blocks: u64,
    /// Properties of modules by source; `None` for modules that cannot be merged.
    known: HashMap<String, Option<Facts>>,
}

impl MergeDecisions {
    /// Creates an object that decides for a device with this number of multiprocessors.
    pub(crate) fn new(multiprocessors: u32) -> Self {
        MergeDecisions {
            most_blocks: u64::from(SMALL * multiprocessors),
            known: HashMap::new(),
        }
    }

    /// Divides the launches of a phase into groups. Each group is merged into one kernel.
    pub(crate) fn batches<'a>(&mut self, phase: Vec<Numbered<'a>>) -> Vec<Vec<Numbered<'a>>> {
        if phase.len() == 1 {
            return vec![phase];
        }
        let (mut open, mut alone): (Vec<Batch>, Vec<Vec<Numbered>>) = (Vec::new(), Vec::new());
        for (number, launch) in phase {
            let Some(facts) = self.facts(launch) else {
                alone.push(vec![(number, launch)]);
                continue;
            };
            let one = Batch::of((number, launch), facts);
            match open.iter_mut().find(|batch| batch.takes(&one, self.most_blocks)) {
                Some(batch) => batch.add(one),
                None => open.push(one),
            }
        }
        open.into_iter().map(|batch| batch.launches).chain(alone).collect()
    }

    /// Returns the properties of a launch's module, or `None` if it cannot be merged.
    fn facts(&mut self, launch: &Launch) -> Option<Facts> {
        if launch.library.is_some() || launch.is_custom() || launch.groups.contains(&0) {
            return None;
        }
        if let Some(known) = self.known.get(&launch.source) {
            return *known;
        }
        let facts = facts(&launch.source);
        self.known.insert(launch.source.clone(), facts);
        facts
    }
}

fn facts(source: &str) -> Option<Facts> {
    let (module, _) = read(source).ok()?;
    let entry = module.entry_points.first()?;
    let shared = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let bytes = shared.map(|(_, variable)| {
        let size = module.types[variable.ty].inner.size(module.to_ctx());
        size.next_multiple_of(32)
    });
    Some(Facts {
        threads: entry.workgroup_size,
        shared_bytes: bytes.sum(),
    })
}

impl<'a> Batch<'a> {
    fn of(launch: Numbered<'a>, facts: Facts) -> Self {
        // Each binding has a pointer. A binding of a custom kernel also has a length.
        let bytes = |binding: &Binding| match binding {
            Binding::Custom(_) => 16,
            _ => 8,
        };
        Batch {
            facts,
            shared_bytes: facts.shared_bytes,
            blocks: launch.1.groups.iter().map(|&n| u64::from(n)).product(),
            parameter_bytes: launch.1.bindings.iter().map(bytes).sum(),
            is_same: true,
            launches: vec![launch],
        }
    }

    /// Returns `true` if another batch can be merged into this one.
    fn takes(&self, other: &Batch, most_blocks: u64) -> bool {
        let is_same = self.is_same && self.launches[0].1.source == other.launches[0].1.source;
        let blocks = self.blocks + other.blocks;
        self.facts.threads == other.facts.threads
            && self.launches.len() < MAX_LAUNCHES
            && self.parameter_bytes + other.parameter_bytes <= MAX_PARAMETER_BYTES
            && (self.has(other) || self.shared_bytes + other.shared_bytes <= MAX_SHARED)
            && blocks <= u64::from(i32::MAX as u32)
            && (is_same || blocks <= most_blocks)
    }

    /// Returns `true` if this batch already contains the module of another batch.
    fn has(&self, other: &Batch) -> bool {
        self.launches
            .iter()
            .any(|(_, launch)| launch.source == other.launches[0].1.source)
    }

    fn add(&mut self, other: Batch<'a>) {
        let has = self.has(&other);
        self.is_same &= self.launches[0].1.source == other.launches[0].1.source;
        if !has {
            self.shared_bytes += other.shared_bytes;
        }
        self.blocks += other.blocks;
        self.parameter_bytes += other.parameter_bytes;
        self.launches.extend(other.launches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(source: &str, groups: u32, bindings: usize) -> Launch {
        Launch {
            kernel: "pointwise",
            source: source.to_owned(),
            bindings: vec![Binding::Scalars; bindings],
            names: vec!["b0"; bindings],
            tables: Vec::new(),
            groups: [groups, 1, 1],
            coop: false,
            library: None,
            schedule: None,
            chosen: None,
            replacements: None,
        }
    }

    fn module(threads: u32, shared: u32, value: u32) -> String {
        format!(
            "var<storage, read_write> b0: array<u32>;\nvar<workgroup> w: array<u32, {shared}>;\n\
             @compute @workgroup_size({threads})\n\
             fn main(@builtin(local_invocation_index) i: u32) {{ w[i] = i; b0[i] = w[0] + {value}u; }}"
        )
    }

    #[test]
    fn small_launches_of_blocks_of_one_size_become_one_kernel() {
        let (a, b, c) = (module(64, 8, 1), module(64, 8, 2), module(128, 8, 3));
        let launches = [
            launch(&a, 10, 2),
            launch(&b, 10, 2),
            launch(&c, 10, 2),
            launch(&a, 10, 2),
            launch(&a, 1000, 2),
            launch(&b, 0, 2),
        ];
        let phase: Vec<Numbered> = launches.iter().enumerate().collect();
        let numbers = |batches: Vec<Vec<Numbered>>| -> Vec<Vec<usize>> {
            let numbers = batches
                .iter()
                .map(|batch| batch.iter().map(|(number, _)| *number).collect());
            numbers.collect()
        };
        // The large launch is not merged, because the other launches have two modules. The launch without blocks
        // stays separate, because it is not executed.
        let found = numbers(MergeDecisions::new(10).batches(phase));
        assert_eq!(found, [vec![0, 1, 3], vec![2], vec![4], vec![5]]);
        // Launches of the same module may have any number of blocks. Each kernel has at most 32 launches.
        let many: Vec<Launch> = (0..70).map(|_| launch(&a, 100, 3)).collect();
        let found = numbers(MergeDecisions::new(10).batches(many.iter().enumerate().collect()));
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [32, 32, 6]);
    }

    #[test]
    fn parts_have_room_for_their_memory_and_parameters() {
        let (a, b) = (module(64, 6_000, 1), module(64, 7_000, 2));
        let launches = [launch(&a, 1, 2), launch(&b, 1, 2), launch(&a, 1, 2)];
        let found = MergeDecisions::new(10).batches(launches.iter().enumerate().collect());
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        let wide = [launch(&a, 1, 300), launch(&a, 1, 300)];
        let found = MergeDecisions::new(10).batches(wide.iter().enumerate().collect());
        assert_eq!(found.len(), 2);
    }
}
