//! What a reduced problem falls apart into: sets of open classes that share nothing but what is paid.

use super::flat::{Flat, NONE};
use super::reduce::Reduction;

/// A part to be solved on its own, numbered in a way that equal parts share.
pub(super) struct Component {
    /// The part. Its classes and choices are called by their numbers in the whole.
    pub flat: Flat,
    /// Class in the whole, for each class here.
    pub classes: Vec<u32>,
    /// No solution of it costs less.
    pub lower: u64,
}

/// Sets of classes, as a forest.
struct UnionFind(Vec<u32>);

impl UnionFind {
    fn find(&mut self, mut a: u32) -> u32 {
        while self.0[a as usize] != a {
            self.0[a as usize] = self.0[self.0[a as usize] as usize];
            a = self.0[a as usize];
        }
        a
    }

    fn union(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a as usize] = b;
    }
}

/// Takes a reduced problem apart.
pub(super) struct Splitter<'a> {
    flat: &'a Flat,
    r: &'a Reduction,
    /// Component of each class; [`NONE`] for classes that are not open.
    component: Vec<u32>,
    /// Number of each class within its component.
    local: Vec<u32>,
    /// A number for each open class that equal structures below it share.
    colour: Vec<u64>,
    /// Components of which cycles through paid classes are to be seen.
    conduits: Vec<bool>,
}

/// Mixes two numbers into one.
fn mix(a: u64, b: u64) -> u64 {
    meganeura_core::random::mix(a.rotate_left(5) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Splits a reduced problem into components. `joined` names sets of open classes that belong together because
/// their components made a cycle; there, paths through paid classes become kids, so that the cycle is seen.
pub(super) fn split(flat: &Flat, r: &Reduction, joined: &[Vec<u32>]) -> Vec<Component> {
    let n = flat.len();
    let mut s = Splitter {
        flat,
        r,
        component: vec![NONE; n],
        local: vec![NONE; n],
        colour: vec![0; n],
        conduits: Vec::new(),
    };
    let members = s.members(joined);
    s.paint();
    members.iter().map(|m| s.build(m)).collect()
}

impl Splitter<'_> {
    /// Whether a class is to be decided: a forced one with several choices, or one that nobody paid for.
    fn open(&self, class: u32) -> bool {
        let c = class as usize;
        !self.r.paid[c] || (self.r.forced[c] && self.r.count[c] > 1)
    }

    fn alive(&self, class: u32) -> impl Iterator<Item = usize> + '_ {
        self.flat.choices(class).filter(|&k| self.r.alive[k])
    }

    /// Finds the components, in the order of the walk.
    fn members(&mut self, joined: &[Vec<u32>]) -> Vec<Vec<u32>> {
        let (flat, r) = (self.flat, self.r);
        let mut sets = UnionFind((0..flat.len() as u32).collect());
        let open: Vec<u32> = r.walk.order.iter().copied().filter(|&c| self.open(c)).collect();
        for &c in &open {
            for &x in self.alive(c).flat_map(|k| flat.kids(k)) {
                if !r.paid[x as usize] {
                    sets.union(c, x);
                }
            }
        }
        let undecided = |c: &u32| r.walk.position[*c as usize] != NONE && !r.paid[*c as usize];
        for set in &flat.exclusive {
            let mut members = set.iter().copied().filter(undecided);
            if let Some(first) = members.next() {
                members.for_each(|c| sets.union(first, c));
            }
        }
        for set in joined {
            set.windows(2).for_each(|p| sets.union(p[0], p[1]));
        }
        let mut number = vec![NONE; flat.len()];
        let mut members: Vec<Vec<u32>> = Vec::new();
        for &c in &open {
            let set = sets.find(c) as usize;
            if number[set] == NONE {
                number[set] = members.len() as u32;
                members.push(Vec::new());
            }
            self.component[c as usize] = number[set];
            members[number[set] as usize].push(c);
        }
        self.conduits = vec![false; members.len()];
        for &c in joined.iter().flatten() {
            if let Some(conduits) = self.conduits.get_mut(self.component[c as usize] as usize) {
                *conduits = true;
            }
        }
        members
    }

    /// Colours the open classes, kids first.
    fn paint(&mut self) {
        for &c in &self.r.walk.order {
            if self.component[c as usize] == NONE {
                continue;
            }
            let seed = 1 + u64::from(self.r.forced[c as usize]);
            let colour = self.alive(c).fold(seed, |sum, k| sum.wrapping_add(self.shade(k)));
            self.colour[c as usize] = mix(colour, seed);
        }
    }

    /// A number for a choice that equal structures below it share. Does not look past paid classes: what is
    /// below them differs from layer to layer and belongs to other components.
    fn shade(&self, choice: usize) -> u64 {
        let kids = self.flat.kids(choice).iter().filter(|x| !self.r.paid[**x as usize]);
        let kids = kids.fold(0u64, |sum, &x| sum.wrapping_add(self.colour[x as usize]));
        mix(mix(self.flat.cost[choice], u64::from(self.flat.label[choice])), kids)
    }

    /// Builds a component: roots first, then as they are met.
    fn build(&mut self, members: &[u32]) -> Component {
        let key = |s: &Self, c: u32| (s.colour[c as usize], s.r.walk.position[c as usize]);
        let component = self.component[members[0] as usize];
        let mut roots: Vec<u32> = members.to_vec();
        roots.retain(|&c| self.r.forced[c as usize]);
        roots.sort_by_key(|&c| key(self, c));
        let mut stack: Vec<u32> = roots.iter().rev().copied().collect();
        let mut classes = Vec::with_capacity(members.len());
        let mut choices: Vec<Vec<usize>> = Vec::with_capacity(members.len());
        while let Some(c) = stack.pop() {
            if self.local[c as usize] != NONE {
                continue;
            }
            self.local[c as usize] = classes.len() as u32;
            classes.push(c);
            let mut alive: Vec<usize> = self.alive(c).collect();
            alive.sort_by_cached_key(|&k| (self.flat.cost[k], self.flat.label[k], self.shade(k)));
            for &k in alive.iter().rev() {
                let kids = self.flat.kids(k).iter().copied();
                let mut kids: Vec<u32> = kids.filter(|&x| self.component[x as usize] == component).collect();
                kids.retain(|&x| self.local[x as usize] == NONE);
                kids.sort_by_key(|&x| std::cmp::Reverse(key(self, x)));
                stack.extend(kids);
            }
            choices.push(alive);
        }
        let mut flat = Flat::new();
        let mut seen = Vec::new();
        for alive in &choices {
            for &k in alive {
                let kids = self.local_kids(k, component, &mut seen);
                flat.push_choice(self.flat.cost[k], self.flat.label[k], k as u32, &kids);
            }
            flat.close_class();
        }
        let roots = roots.iter().map(|&c| self.local[c as usize]).collect();
        flat.close(roots, self.local_sets(component));
        let lower = lower(&flat);
        Component { flat, classes, lower }
    }

    /// Kids of a choice within its component; where conduits matter, also those behind paid classes that are left
    /// with one choice. `seen` is scratch.
    fn local_kids(&self, choice: usize, component: u32, seen: &mut Vec<u32>) -> Vec<u32> {
        let mut kids = Vec::new();
        seen.clear();
        seen.extend_from_slice(self.flat.kids(choice));
        let conduits = self.conduits[component as usize];
        let group = self.r.walk.group[self.flat.class_of[choice] as usize];
        let mut met = std::collections::HashSet::new();
        while let Some(x) = seen.pop() {
            if self.component[x as usize] == component {
                kids.push(self.local[x as usize]);
            } else if conduits
                && self.r.walk.group[x as usize] == group
                && self.r.count[x as usize] == 1
                && met.insert(x)
            {
                seen.extend(self.alive(x).flat_map(|k| self.flat.kids(k)));
            }
        }
        kids.sort_unstable();
        kids.dedup();
        kids
    }

    /// The exclusive sets among the classes of a component.
    fn local_sets(&self, component: u32) -> Vec<Vec<u32>> {
        let mut sets: Vec<Vec<u32>> = Vec::new();
        for set in &self.flat.exclusive {
            let inside = set.iter().filter(|c| self.component[**c as usize] == component);
            let mut inside: Vec<u32> = inside.map(|&c| self.local[c as usize]).collect();
            inside.sort_unstable();
            if inside.len() > 1 {
                sets.push(inside);
            }
        }
        sets.sort();
        sets.dedup();
        sets
    }
}

/// A lower bound on the cost of a problem. A class counts its cheapest choice with, for each kid that is not
/// wanted anyway, that kid's bound in as many equal parts as the kid has possible users. Summed over what a
/// solution uses, the parts of a kid never exceed its bound, so the bounds of the roots never exceed the cost.
pub(super) fn lower(flat: &Flat) -> u64 {
    let n = flat.len();
    let mut share = vec![0u64; n];
    let mut users = vec![0u64; n];
    let mut last = vec![NONE; n];
    let mut root = vec![false; n];
    for &c in &flat.roots {
        root[c as usize] = true;
    }
    for c in 0..n as u32 {
        for &x in flat.choices(c).flat_map(|k| flat.kids(k)) {
            if last[x as usize] != c {
                last[x as usize] = c;
                users[x as usize] += 1;
            }
        }
    }
    let mut total = 0u64;
    for c in (0..n as u32).rev() {
        let cost = |k: usize| {
            let kids = flat.kids(k).iter();
            kids.fold(flat.cost[k], |sum, &x| sum.saturating_add(share[x as usize]))
        };
        let bound = flat.choices(c).map(cost).min().unwrap_or(0);
        if root[c as usize] {
            total = total.saturating_add(bound);
        } else {
            share[c as usize] = bound / users[c as usize].max(1);
        }
    }
    total
}

/// What makes two components the same problem.
pub(super) fn signature(flat: &Flat) -> Vec<u64> {
    let mut key = vec![flat.len() as u64, flat.roots.len() as u64];
    key.extend(flat.roots.iter().map(|&c| u64::from(c)));
    for c in 0..flat.len() as u32 {
        key.push(flat.choices(c).len() as u64);
        for k in flat.choices(c) {
            key.push(flat.cost[k]);
            key.push(flat.kids(k).len() as u64);
            key.extend(flat.kids(k).iter().map(|&x| u64::from(x)));
        }
    }
    for set in &flat.exclusive {
        key.push(set.len() as u64);
        key.extend(set.iter().map(|&x| u64::from(x)));
    }
    key
}
