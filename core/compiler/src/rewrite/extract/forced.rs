//! Forced classes: what every solution uses.
//!
//! A class must use itself and, over its choices, the intersection of what the kids of each must use. The sets are
//! kept short: of each, the [`NEAREST`] classes, for a part of a must set is as true as the whole of it, and what
//! forces the next class is near. As soon as a class is forced, those above it no longer look past it, so rounds
//! find the rest.

use super::flat::{Flat, NONE};
use super::reduce::Reducer;

/// Classes kept of each must set.
const NEAREST: usize = 64;

/// For each class some of the classes that a solution with it must use.
pub(super) struct MustSets {
    /// Positions in the walk, descending within each set.
    members: Vec<u32>,
    /// Where the set of a class lies in `members`.
    span: Vec<(u32, u32)>,
    /// Whether choices were dropped that need their own class.
    pub dropped: bool,
}

impl MustSets {
    /// Computes the sets, kids first. Across an edge that goes back only the kid itself counts, and of a paid kid
    /// too: what it needs is forced anyway. Drops the choices whose kids must use the class itself.
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

    /// What the kids of a choice of the class at `position` must use, descending.
    fn union(&self, reducer: &Reducer<'_>, choice: usize, position: u32, union: &mut Vec<u32>) {
        union.clear();
        for &x in reducer.flat.kids(choice) {
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
    /// Forces what forced classes need. Whether a class became forced.
    pub(super) fn propagate(&mut self, must: Option<&MustSets>) -> bool {
        let forced = (0..self.flat.len() as u32).filter(|&c| self.r.forced[c as usize]);
        self.spread(forced.collect(), must)
    }

    /// Forces what some forced classes need: the kids of an only choice, and their must set. Whether a class became
    /// forced.
    pub(super) fn spread(&mut self, mut queue: Vec<u32>, must: Option<&MustSets>) -> bool {
        let known = queue.len();
        let mut next = 0;
        while next < queue.len() {
            let c = queue[next];
            next += 1;
            if self.r.count[c as usize] == 1 {
                let only = self.flat.choices(c).find(|&k| self.r.alive[k]);
                let flat: &Flat = self.flat;
                for &x in only.map_or(&[][..], |k| flat.kids(k)) {
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
