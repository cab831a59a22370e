//! Splitting of a reduced problem into components. A component is a set of open (undecided) classes; different
//! components share only paid classes, whose use adds no cost.

use super::flat::{FlatClasses, NONE};
use super::reduce::Reduction;

/// A part of a problem that is solved separately. Its classes are numbered so that equal parts are identical.
pub(super) struct Component {
    /// The part as a problem. The origin of each choice is its index in the whole problem.
    pub flat: FlatClasses,
    /// For each class of the part, its index in the whole problem.
    pub classes: Vec<u32>,
    /// Lower bound of the cost of its solutions.
    pub lower: u64,
}

/// Disjoint sets of classes, as a forest (union-find).
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

/// The state of splitting a reduced problem.
pub(super) struct Splitter<'a> {
    flat: &'a FlatClasses,
    r: &'a Reduction,
    /// Component of each class; [`NONE`] for classes that are not open.
    component: Vec<u32>,
    /// Number of each class within its component.
    local: Vec<u32>,
    /// Hash of each open class ("colour"): equal for classes whose open operands form equal structures.
    colour: Vec<u64>,
    /// For each component, `true` if cycles through paid classes must be detected in it.
    conduits: Vec<bool>,
}

/// Hashes two numbers to one.
fn mix(a: u64, b: u64) -> u64 {
    meganeura_core::random::mix(a.rotate_left(5) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Splits a reduced problem into components. `joined` lists sets of open classes that must be in one component, because
/// their components formed a cycle. In such a component, a class that is reached through paid classes counts as a child
/// (operand class), so that the cycle is detected.
pub(super) fn split(flat: &FlatClasses, r: &Reduction, joined: &[Vec<u32>]) -> Vec<Component> {
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
    s.compute_colours();
    members.iter().map(|m| s.build(m)).collect()
}

impl Splitter<'_> {
    /// Returns `true` if a class is open: it is unpaid, or forced with several choices.
    fn open(&self, class: u32) -> bool {
        let c = class as usize;
        !self.r.paid[c] || (self.r.forced[c] && self.r.count[c] > 1)
    }

    fn alive(&self, class: u32) -> impl Iterator<Item = usize> + '_ {
        self.flat.choices(class).filter(|&k| self.r.alive[k])
    }

    /// Finds the components. Classes and components are in the order of the walk.
    fn members(&mut self, joined: &[Vec<u32>]) -> Vec<Vec<u32>> {
        let (flat, r) = (self.flat, self.r);
        let mut sets = UnionFind((0..flat.len() as u32).collect());
        let open: Vec<u32> = r.walk.order.iter().copied().filter(|&c| self.open(c)).collect();
        for &c in &open {
            for &x in self.alive(c).flat_map(|k| flat.children(k)) {
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

    /// Computes the colours of the open classes, children first.
    fn compute_colours(&mut self) {
        for &c in &self.r.walk.order {
            if self.component[c as usize] == NONE {
                continue;
            }
            let seed = 1 + u64::from(self.r.forced[c as usize]);
            let colour = self.alive(c).fold(seed, |sum, k| sum.wrapping_add(self.choice_hash(k)));
            self.colour[c as usize] = mix(colour, seed);
        }
    }

    /// Computes a hash of a choice that equal structures share. It excludes paid classes: the structures below them
    /// differ from layer to layer and belong to other components.
    fn choice_hash(&self, choice: usize) -> u64 {
        let children = self.flat.children(choice).iter().filter(|x| !self.r.paid[**x as usize]);
        let children = children.fold(0u64, |sum, &x| sum.wrapping_add(self.colour[x as usize]));
        mix(
            mix(self.flat.cost[choice], u64::from(self.flat.label[choice])),
            children,
        )
    }

    /// Builds a component, with the roots first and the other classes in the order of discovery.
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
            alive.sort_by_cached_key(|&k| (self.flat.cost[k], self.flat.label[k], self.choice_hash(k)));
            for &k in alive.iter().rev() {
                let children = self.flat.children(k).iter().copied();
                let mut children: Vec<u32> = children.filter(|&x| self.component[x as usize] == component).collect();
                children.retain(|&x| self.local[x as usize] == NONE);
                children.sort_by_key(|&x| std::cmp::Reverse(key(self, x)));
                stack.extend(children);
            }
            choices.push(alive);
        }
        let mut flat = FlatClasses::new();
        let mut seen = Vec::new();
        for alive in &choices {
            for &k in alive {
                let children = self.local_kids(k, component, &mut seen);
                flat.push_choice(self.flat.cost[k], self.flat.label[k], k as u32, &children);
            }
            flat.close_class();
        }
        let roots = roots.iter().map(|&c| self.local[c as usize]).collect();
        flat.close(roots, self.local_sets(component));
        let lower = lower(&flat);
        Component { flat, classes, lower }
    }

    /// Returns the children of a choice within its component. If the component must detect cycles, it also follows paid
    /// classes with only one remaining choice. `seen` is a reusable buffer.
    fn local_kids(&self, choice: usize, component: u32, seen: &mut Vec<u32>) -> Vec<u32> {
        let mut children = Vec::new();
        seen.clear();
        seen.extend_from_slice(self.flat.children(choice));
        let conduits = self.conduits[component as usize];
        let group = self.r.walk.group[self.flat.class_of[choice] as usize];
        let mut met = std::collections::HashSet::new();
        while let Some(x) = seen.pop() {
            if self.component[x as usize] == component {
                children.push(self.local[x as usize]);
            } else if conduits
                && self.r.walk.group[x as usize] == group
                && self.r.count[x as usize] == 1
                && met.insert(x)
            {
                seen.extend(self.alive(x).flat_map(|k| self.flat.children(k)));
            }
        }
        children.sort_unstable();
        children.dedup();
        children
    }

    /// Returns the exclusive sets among the classes of a component.
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

/// Returns a lower bound of the cost of a problem. The bound of a choice is its cost plus, for each child that is not a
/// root, the child's bound divided by the child's number of possible users; the bound of a class is the minimum over its
/// choices. In a solution, the shares of a child over all its users never exceed its bound. So the sum of the roots'
/// bounds never exceeds the cost.
pub(super) fn lower(flat: &FlatClasses) -> u64 {
    let n = flat.len();
    let mut share = vec![0u64; n];
    let mut users = vec![0u64; n];
    let mut last = vec![NONE; n];
    let mut root = vec![false; n];
    for &c in &flat.roots {
        root[c as usize] = true;
    }
    for c in 0..n as u32 {
        for &x in flat.choices(c).flat_map(|k| flat.children(k)) {
            if last[x as usize] != c {
                last[x as usize] = c;
                users[x as usize] += 1;
            }
        }
    }
    let mut total = 0u64;
    for c in (0..n as u32).rev() {
        let cost = |k: usize| {
            let children = flat.children(k).iter();
            children.fold(flat.cost[k], |sum, &x| sum.saturating_add(share[x as usize]))
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

/// Returns the key by which equal component problems are recognized.
pub(super) fn signature(flat: &FlatClasses) -> Vec<u64> {
    let mut key = vec![flat.len() as u64, flat.roots.len() as u64];
    key.extend(flat.roots.iter().map(|&c| u64::from(c)));
    for c in 0..flat.len() as u32 {
        key.push(flat.choices(c).len() as u64);
        for k in flat.choices(c) {
            key.push(flat.cost[k]);
            key.push(flat.children(k).len() as u64);
            key.extend(flat.children(k).iter().map(|&x| u64::from(x)));
        }
    }
    for set in &flat.exclusive {
        key.push(set.len() as u64);
        key.extend(set.iter().map(|&x| u64::from(x)));
    }
    key
}
