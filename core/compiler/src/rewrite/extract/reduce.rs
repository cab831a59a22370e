//! Reductions without a search: rounds of forcing and dominance until nothing changes.

use super::flat::FlatClasses;
use super::forced::MustSets;
use super::meter::Meter;
use super::walk::{Walk, walk};

/// Result of the reductions: there is an optimal solution that uses only the choices still alive,
/// and every solution uses the forced classes.
pub(super) struct Reduction {
    /// `true` for each choice that may still be used (that is alive).
    pub alive: Vec<bool>,
    /// Number of alive choices of each class.
    pub count: Vec<u32>,
    /// `true` for each class that every solution uses.
    pub forced: Vec<bool>,
    /// `true` for each class whose use adds no cost: it is forced, free, or has one choice of no
    /// cost on such classes.
    pub paid: Vec<bool>,
    /// `true` for each class that costs nothing, because a choice of no cost needs only classes that cost nothing.
    pub free: Vec<bool>,
    /// Reachable classes, except for free ones.
    pub walk: Walk,
    /// Number of rounds of reduction.
    pub rounds: u32,
}

/// The state of the rounds.
pub(super) struct Reducer<'a> {
    pub flat: &'a FlatClasses,
    pub meter: &'a mut Meter,
    pub r: Reduction,
    /// Classes that must not be used, because a forced class excludes them.
    pub banned: Vec<bool>,
    /// `true` if a class was banned or lost its last choice, so that other classes may have become impossible to
    /// compute.
    pub unsettled: bool,
}

/// Reduces a problem, in at most `rounds` rounds; `None` if no solution exists. An exhausted budget
/// only means fewer reductions.
pub(super) fn reduce(flat: &FlatClasses, rounds: u32, meter: &mut Meter) -> Option<Reduction> {
    let n = flat.len();
    let mut reducer = Reducer {
        flat,
        meter,
        r: Reduction {
            alive: vec![true; flat.cost.len()],
            count: vec![0; n],
            forced: vec![false; n],
            paid: vec![false; n],
            free: vec![false; n],
            walk: Walk::default(),
            rounds: 0,
        },
        banned: vec![false; n],
        unsettled: false,
    };
    for &root in &flat.roots {
        reducer.force(root);
    }
    if !reducer.settle() {
        return None;
    }
    reducer.free();
    let mut last = false;
    loop {
        if reducer.unsettled && !reducer.settle() {
            return None;
        }
        reducer.r.walk = walk(flat, &reducer.r.alive, &reducer.r.free);
        reducer.propagate(None);
        if reducer.exclude()? {
            continue;
        }
        if last {
            return Some(reducer.r);
        }
        let changed = reducer.round();
        reducer.r.rounds += 1;
        last = !changed || reducer.r.rounds >= rounds || reducer.meter.spent;
    }
}

impl Reducer<'_> {
    /// Runs one round. Returns whether it changed anything.
    fn round(&mut self) -> bool {
        let must = MustSets::of(self);
        let mut changed = must.dropped;
        changed |= self.propagate(Some(&must));
        if self.unsettled {
            return true;
        }
        changed |= self.dominate(&must);
        changed | self.gratis()
    }

    /// Marks a class as used by every solution.
    pub(super) fn force(&mut self, class: u32) {
        self.r.forced[class as usize] = true;
        self.r.paid[class as usize] = true;
    }

    /// Drops a choice.
    pub(super) fn kill(&mut self, choice: usize) {
        let c = self.flat.class_of[choice] as usize;
        self.r.alive[choice] = false;
        self.r.count[c] -= 1;
        self.unsettled |= self.r.count[c] == 0;
    }

    /// Iterates over the choices of a class that are alive.
    pub(super) fn alive(&self, class: u32) -> impl Iterator<Item = usize> + '_ {
        self.flat.choices(class).filter(|&k| self.r.alive[k])
    }

    /// Drops choices that cannot be computed from the leaves up. Returns `false` if a needed class cannot be computed
    /// any more.
    fn settle(&mut self) -> bool {
        self.unsettled = false;
        let grounded = self.flat.ground(&mut self.r.alive, &self.banned);
        self.r.count.fill(0);
        for (k, _) in self.r.alive.iter().enumerate().filter(|(_, a)| **a) {
            self.r.count[self.flat.class_of[k] as usize] += 1;
        }
        let forced = self.r.forced.iter().enumerate();
        forced.filter(|(_, f)| **f).all(|(c, _)| grounded[c])
    }

    /// Finds the free classes and selects their choice of no cost. In any solution, they can be computed like this
    /// without a cycle and without cost. Classes that exclude each other are never free.
    fn free(&mut self) {
        let flat = self.flat;
        let (first, users) = flat.users();
        let mut missing: Vec<u32> = (0..flat.cost.len()).map(|k| flat.children(k).len() as u32).collect();
        let mut queue: Vec<usize> = (0..flat.cost.len()).filter(|&k| missing[k] == 0).collect();
        let mut next = 0;
        while next < queue.len() {
            let k = queue[next];
            next += 1;
            let c = flat.class_of[k];
            let usable = self.r.alive[k] && flat.cost[k] == 0;
            if !usable || self.r.free[c as usize] || flat.is_exclusive[c as usize] {
                continue;
            }
            self.r.free[c as usize] = true;
            self.r.paid[c as usize] = true;
            for other in flat.choices(c) {
                self.r.alive[other] = other == k;
            }
            self.r.count[c as usize] = 1;
            for &user in &users[first[c as usize] as usize..first[c as usize + 1] as usize] {
                missing[user as usize] -= 1;
                if missing[user as usize] == 0 {
                    queue.push(user as usize);
                }
            }
        }
    }

    /// Bans the classes that forced classes exclude. Returns whether any were banned; `None` if
    /// forced classes exclude each other.
    fn exclude(&mut self) -> Option<bool> {
        let mut changed = false;
        for set in &self.flat.exclusive {
            let mut forced = set.iter().filter(|c| self.r.forced[**c as usize]);
            let Some(&used) = forced.next() else { continue };
            if forced.next().is_some() {
                return None;
            }
            for &c in set.iter().filter(|c| **c != used) {
                changed |= !self.banned[c as usize];
                self.banned[c as usize] = true;
            }
        }
        self.unsettled |= changed;
        Some(changed)
    }

    /// Finds classes whose only remaining choice costs nothing and needs only paid classes: using them adds no cost, so
    /// they are paid.
    fn gratis(&mut self) -> bool {
        let mut changed = false;
        for i in 0..self.r.walk.order.len() {
            let c = self.r.walk.order[i];
            if self.r.paid[c as usize]
                || self.r.count[c as usize] != 1
                || self.flat.is_exclusive[c as usize]
                || self.r.walk.cyclic(c)
            {
                continue;
            }
            let gratis = self.alive(c).all(|k| {
                let paid = |x: &u32| self.r.paid[*x as usize];
                self.flat.cost[k] == 0 && self.flat.children(k).iter().all(paid)
            });
            self.r.paid[c as usize] |= gratis;
            changed |= gratis;
        }
        changed
    }
}
