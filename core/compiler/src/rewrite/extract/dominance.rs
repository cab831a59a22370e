//! Dominance: drops a choice that another choice of its class can replace in every solution,
//! without a cycle and without additional cost.
//!
//! Let a solution use choice `a` of class `c`, and let `b` be another choice. Replacing `a` by `b`
//! adds at most the cost of `b` and of computing, separately, the children of `b` that are neither paid
//! nor children of `a`. It saves at least the cost of `a` and of the children that only `c` can use. It
//! creates no cycle if the children of `b` that are not children of `a` cannot reach `c` at all: they are
//! in another group of the walk. And it uses no class that excludes another, unless the solution
//! already uses it. By induction over the groups from the roots down, this holds for all choices
//! dropped in one pass, although the bounds were computed before the pass: a replacement adds only
//! classes in groups below, where further replacements follow; classes once forced stay in the
//! solution, because only unpaid ones are counted as saved.
//!
//! The pass goes from the roots down. The last remaining choice of a forced class becomes forced
//! immediately, so that one pass can settle a whole chain of classes that depend on each other.

use super::flat::NONE;
use super::forced::MustSets;
use super::reduce::Reducer;

/// Maximum number of choices of a class, the cheapest ones, that each choice is compared with. It limits the time for
/// classes with many choices.
const COMPARED: usize = 64;

/// Bounds of the cost that a class adds to a solution.
struct Bounds {
    /// For each class, an upper bound: the cost of computing it without sharing; `u64::MAX` if no way was found.
    most: Vec<u64>,
    /// For each class, a lower bound: the cost that is saved if the class is not needed.
    least: Vec<u64>,
    /// `true` for each class with only one possible user.
    own: Vec<bool>,
}

impl Reducer<'_> {
    /// Drops dominated choices, and forces the classes that are then needed. Returns whether anything changed.
    pub(super) fn dominate(&mut self, must: &MustSets) -> bool {
        let bounds = self.bounds();
        let mut changed = false;
        let (mut choices, mut cheapest) = (Vec::new(), Vec::new());
        for i in (0..self.r.walk.order.len()).rev() {
            let c = self.r.walk.order[i];
            if self.r.count[c as usize] < 2 {
                continue;
            }
            choices.clear();
            choices.extend(self.alive(c));
            cheapest.clone_from(&choices);
            cheapest.sort_by_key(|&k: &usize| self.flat.cost[k]);
            cheapest.truncate(COMPARED);
            for &a in choices.iter().rev() {
                if !self.meter.tick(cheapest.len()) {
                    return changed;
                }
                let dominates = |&b: &usize| b != a && self.r.alive[b] && self.dominates(&bounds, c, b, a);
                if cheapest.iter().any(dominates) {
                    self.kill(a);
                    changed = true;
                }
            }
            if self.r.forced[c as usize] && self.r.count[c as usize] == 1 {
                self.spread(vec![c], Some(must));
            }
        }
        changed
    }

    /// Returns `true` if choice `b` can replace choice `a` of class `c`.
    fn dominates(&self, bounds: &Bounds, c: u32, b: usize, a: usize) -> bool {
        let (kids_a, kids_b) = (self.flat.children(a), self.flat.children(b));
        let group = self.r.walk.group[c as usize];
        let mut extra = self.flat.cost[b];
        for &x in kids_b.iter().filter(|x| kids_a.binary_search(x).is_err()) {
            if self.r.walk.group[x as usize] == group {
                return false;
            }
            if !self.r.paid[x as usize] {
                extra = extra.saturating_add(bounds.most[x as usize]);
            }
        }
        let mut saved = self.flat.cost[a];
        for &x in kids_a.iter().filter(|x| kids_b.binary_search(x).is_err()) {
            if !self.r.paid[x as usize] && bounds.own[x as usize] {
                saved = saved.saturating_add(bounds.least[x as usize]);
            }
        }
        extra < u64::MAX && extra <= saved
    }

    /// Computes the bounds, children first. For the upper bound, back edges count as impossible, so that the computation
    /// that it describes is acyclic; for the lower bound, they count as free.
    fn bounds(&mut self) -> Bounds {
        let n = self.flat.len();
        let mut user = vec![NONE; n];
        let mut own = vec![true; n];
        for &c in &self.r.walk.order {
            for &x in self.alive(c).flat_map(|k| self.flat.children(k)) {
                let seen = &mut user[x as usize];
                own[x as usize] &= *seen == NONE || *seen == c;
                *seen = c;
            }
        }
        let (mut most, mut least) = (vec![u64::MAX; n], vec![0; n]);
        for &c in &self.r.walk.order {
            if self.r.paid[c as usize] {
                continue;
            }
            let (mut upper, mut lower) = (u64::MAX, u64::MAX);
            for k in self.alive(c) {
                let (mut with, mut without) = (self.flat.cost[k], self.flat.cost[k]);
                for &x in self.flat.children(k).iter().filter(|x| !self.r.paid[**x as usize]) {
                    with = with.saturating_add(most[x as usize]);
                    if own[x as usize] {
                        without = without.saturating_add(least[x as usize]);
                    }
                }
                upper = upper.min(with);
                lower = lower.min(without);
            }
            if !self.flat.is_exclusive[c as usize] {
                most[c as usize] = upper;
            }
            least[c as usize] = lower;
        }
        Bounds { most, least, own }
    }
}
