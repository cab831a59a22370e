//! Forced classes: classes that every solution uses.
//!
//! The must set of a class contains the class itself and the intersection, over its choices, of the
//! union of the children' must sets. Only the [`NEAREST`] classes of each set are kept: a subset of a
//! must set is still valid, and classes that force the next class are near. When a class is forced,
//! classes above it no longer need to look past it, so further rounds find the rest.

use super::flat::{FlatClasses, NONE};
use super::reduce::Reducer;

/// Maximum number of classes that are kept of each must set.
const NEAREST: usize = 64;

/// For each class a subset of the classes that a solution containing it must use.
pub(super) struct MustSets {
    /// Positions in the walk, descending within each set.
    members: Vec<u32>,
    /// Range of each class's set in `members`.
    span: Vec<(u32, u32)>,
    /// `true` if choices were dropped because they need their own class.
    pub dropped: bool,
}

impl MustSets {
    /// Computes the sets, children first. Of a child that is paid or reached by a back edge, only the child itself is included:
    /// everything that a paid child needs is forced anyway. Drops choices whose children must use the class itself.
    pub(super) fn of(reducer: &mut Reducer<'_>) -> Self {
        let n = reducer.flat.len();
        let mut sets = MustSets {
            members: Vec::new(),
            span: vec![(0, 0); n],
            dropped: false,
        };
        let (mut common, mut union) = (Vec::new(), Vec::new());
        for p in 0..reducer.r.walk.order.len() as u32 {
            let c = reducer.r.walk.order[p as usize];
            if reducer.r.paid[c as usize] && reducer.r.count[c as usize] < 2 {
                continue;
            }
            let mut first = true;
            common.clear();
            for k in reducer.flat.choices(c) {
                if !reducer.r.alive[k] {
                    continue;
                }
                sets.union(reducer, k, p, &mut union);
                if !reducer.meter.tick(1 + union.len() / 8) {
                    return sets;
                }
                if union.contains(&p) {
                    reducer.kill(k);
                    sets.dropped = true;
                } else if first {
                    std::mem::swap(&mut common, &mut union);
                    first = false;
                } else {
                    common.retain(|x| union.binary_search_by(|y| x.cmp(y)).is_ok());
                }
            }
            let start = sets.members.len() as u32;
            sets.members.push(p);
            sets.members.extend(common.iter().take(NEAREST - 1));
            sets.span[c as usize] = (start, sets.members.len() as u32);
        }
        sets
    }

    /// Computes the union of the must sets of a choice's children, for the class at `position`, in
    /// descending order.
    fn union(&self, reducer: &Reducer<'_>, choice: usize, position: u32, union: &mut Vec<u32>) {
        union.clear();
        for &x in reducer.flat.children(choice) {
            if reducer.r.free[x as usize] {
                continue;
            }
            let q = reducer.r.walk.position[x as usize];
            if reducer.r.paid[x as usize] || q >= position {
                union.push(q);
            } else {
                let (start, end) = self.span[x as usize];
                union.extend_from_slice(&self.members[start as usize..end as usize]);
            }
        }
        union.sort_unstable_by(|a, b| b.cmp(a));
        union.dedup();
        union.truncate(NEAREST);
    }
}

impl Reducer<'_> {
    /// Forces all classes that forced classes need. Returns whether a class became forced.
    pub(super) fn propagate(&mut self, must: Option<&MustSets>) -> bool {
        let forced = (0..self.flat.len() as u32).filter(|&c| self.r.forced[c as usize]);
        self.spread(forced.collect(), must)
    }

    /// Forces all classes that some forced classes need: their must sets, and the children of classes with only one choice.
    /// Returns whether a class became forced.
    pub(super) fn spread(&mut self, mut queue: Vec<u32>, must: Option<&MustSets>) -> bool {
        let known = queue.len();
        let mut next = 0;
        while next < queue.len() {
            let c = queue[next];
            next += 1;
            if self.r.count[c as usize] == 1 {
                let only = self.flat.choices(c).find(|&k| self.r.alive[k]);
                let flat: &FlatClasses = self.flat;
                for &x in only.map_or(&[][..], |k| flat.children(k)) {
                    self.enqueue(x, &mut queue);
                }
            }
            if let Some(must) = must {
                let (start, end) = must.span[c as usize];
                for &p in &must.members[start as usize..end as usize] {
                    let x = self.r.walk.order[p as usize];
                    self.enqueue(x, &mut queue);
                }
            }
        }
        queue.len() > known
    }

    /// Forces a class that is neither forced nor free.
    fn enqueue(&mut self, class: u32, queue: &mut Vec<u32>) {
        if !self.r.forced[class as usize] && !self.r.free[class as usize] {
            debug_assert_ne!(self.r.walk.position[class as usize], NONE);
            self.force(class);
            queue.push(class);
        }
    }
}
