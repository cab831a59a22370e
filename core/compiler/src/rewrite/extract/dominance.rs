//! Dominance: a choice that another one of its class can replace in every solution, without a cycle and at no
//! more cost, is dropped.
//!
//! Let a solution use choice `a` of class `c`, and let `b` be another choice. Replacing `a` by `b` adds at most
//! the cost of `b` and of computing, each on its own, those kids of `b` that are neither paid nor kids of `a`. It
//! saves at least the cost of `a` and of those kids that only `c` can use. No cycle comes of it when the kids of
//! `b` that are not kids of `a` cannot reach `c` at all: they lie in another group of the walk. And it uses no
//! class that excludes another, unless the solution uses it already. By induction over the groups from the roots
//! down this holds for all choices dropped in one pass together, although the bounds were taken before it: what a
//! replacement adds lies in groups below, and there further replacements follow; classes once forced stay in the
//! solution, for only unpaid ones are counted as saved.
//!
//! The pass goes from the roots down, and what a forced class is left with becomes forced at once, so that one pass
//! can settle a whole chain of classes each of which waits for the one above.

use super::flat::NONE;
use super::forced::MustSets;
use super::reduce::Reducer;

/// Choices of a class that others are compared with, the cheapest: so that a class with very many does no harm.
const COMPARED: usize = 64;

/// Bounds on what a class adds to a solution.
struct Bounds {
    /// Cost of computing a class with nothing shared; `u64::MAX` where no such way was found.
    most: Vec<u64>,
    /// Cost that goes when a class is no longer needed.
    least: Vec<u64>,
    /// Whether a class has one possible user only.
    own: Vec<bool>,
}

impl Reducer<'_> {
    /// Drops dominated choices, and forces what then has to be; whether there were any.
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

    /// Whether choice `b` can replace choice `a` of class `c`.
    fn dominates(&self, bounds: &Bounds, c: u32, b: usize, a: usize) -> bool {
        let (kids_a, kids_b) = (self.flat.kids(a), self.flat.kids(b));
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

    /// Takes the bounds, kids first. Edges that go back count as impossible for the upper bound, which makes what
    /// it stands for free of cycles, and as nothing for the lower one.
    fn bounds(&mut self) -> Bounds {
        let n = self.flat.len();
        let mut user = vec![NONE; n];
        let mut own = vec![true; n];
        for &c in &self.r.walk.order {
            for &x in self.alive(c).flat_map(|k| self.flat.kids(k)) {
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
                for &x in self.flat.kids(k).iter().filter(|x| !self.r.paid[**x as usize]) {
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
