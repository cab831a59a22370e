//! An extraction problem in flat arrays, for the whole problem and for its parts.

use std::ops::Range;

use super::extraction::ExtractError;
use crate::rewrite::problem::Problem;

/// Marker for a missing class, choice or position.
pub(super) const NONE: u32 = u32::MAX;

/// A problem with consecutively numbered classes and choices. The choices of a class are contiguous, and so are the
/// children (operand classes) of a choice.
#[derive(Clone, Default)]
pub(super) struct FlatClasses {
    /// Index of the first choice of each class, followed by the number of choices.
    first: Vec<u32>,
    /// Cost of each choice.
    pub cost: Vec<u64>,
    /// Label of each choice: equal for equal operators with equal attributes.
    pub label: Vec<u32>,
    /// Index of each choice in the problem that this one was derived from.
    pub origin: Vec<u32>,
    /// Class of each choice.
    pub class_of: Vec<u32>,
    /// Index in `children` of the first child of each choice, followed by the number of children.
    first_kid: Vec<u32>,
    /// Classes that each choice needs: in ascending order, each once.
    children: Vec<u32>,
    /// Classes that a solution must compute, each once.
    pub roots: Vec<u32>,
    /// Sets of classes of which at most one may be used.
    pub exclusive: Vec<Vec<u32>>,
    /// `true` for each class in such a set.
    pub is_exclusive: Vec<bool>,
}

impl FlatClasses {
    /// Creates an empty problem. Classes are then added in order, each after its choices.
    pub(super) fn new() -> Self {
        FlatClasses {
            first: vec![0],
            first_kid: vec![0],
            ..FlatClasses::default()
        }
    }

    /// Adds a choice to the class that [`FlatClasses::close_class`] ends next.
    pub(super) fn push_choice(&mut self, cost: u64, label: u32, origin: u32, children: &[u32]) {
        self.cost.push(cost);
        self.label.push(label);
        self.origin.push(origin);
        self.class_of.push(self.first.len() as u32 - 1);
        self.children.extend_from_slice(children);
        self.first_kid.push(self.children.len() as u32);
    }

    /// Ends a class.
    pub(super) fn close_class(&mut self) {
        self.first.push(self.cost.len() as u32);
    }

    /// Sets roots and exclusive sets, after all classes were added.
    pub(super) fn close(&mut self, mut roots: Vec<u32>, exclusive: Vec<Vec<u32>>) {
        roots.sort_unstable();
        roots.dedup();
        self.roots = roots;
        self.is_exclusive = vec![false; self.len()];
        for &c in exclusive.iter().flatten() {
            self.is_exclusive[c as usize] = true;
        }
        self.exclusive = exclusive;
    }

    /// Returns the number of classes.
    pub(super) fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the choices of a class.
    pub(super) fn choices(&self, class: u32) -> Range<usize> {
        self.first[class as usize] as usize..self.first[class as usize + 1] as usize
    }

    /// Returns the classes that a choice needs.
    pub(super) fn children(&self, choice: usize) -> &[u32] {
        &self.children[self.first_kid[choice] as usize..self.first_kid[choice + 1] as usize]
    }

    /// Copies a problem to flat arrays, without choices that no solution can use: choices that need
    /// their own class, and choices that cost `u64::MAX`.
    ///
    /// # Errors
    /// [`ExtractError::Malformed`] if a class index is out of range, or there are too many classes.
    pub(super) fn from_problem(problem: &Problem) -> Result<Self, ExtractError> {
        let n = problem.classes.len();
        let edges = |c: &crate::rewrite::problem::Choice| c.children.len() + 1;
        let size: usize = problem.classes.iter().flatten().map(edges).sum();
        if n.max(size) >= NONE as usize {
            return Err(ExtractError::Malformed(format!(
                "{n} classes with {size} operands are too many"
            )));
        }
        let check = |class: u32, what: &dyn Fn() -> String| {
            let bad = || ExtractError::Malformed(format!("{} names class {class} of {n}", what()));
            if (class as usize) < n { Ok(class) } else { Err(bad()) }
        };
        let mut flat = FlatClasses::new();
        let mut children = Vec::new();
        for (class, choices) in problem.classes.iter().enumerate() {
            for (k, choice) in choices.iter().enumerate() {
                for &x in &choice.children {
                    check(x, &|| format!("choice {k} of class {class}"))?;
                }
                children.clear();
                children.extend_from_slice(&choice.children);
                children.sort_unstable();
                children.dedup();
                if choice.cost < u64::MAX && children.binary_search(&(class as u32)).is_err() {
                    flat.push_choice(choice.cost, choice.label, k as u32, &children);
                }
            }
            flat.close_class();
        }
        for &root in &problem.roots {
            check(root, &|| "a root".into())?;
        }
        let mut exclusive = Vec::new();
        for set in &problem.exclusive {
            for &c in set {
                check(c, &|| "an exclusive set".into())?;
            }
            let mut set = set.clone();
            set.sort_unstable();
            set.dedup();
            if set.len() > 1 {
                exclusive.push(set);
            }
        }
        flat.close(problem.roots.clone(), exclusive);
        Ok(flat)
    }

    /// Returns the same problem restricted to the choices that `keep` accepts, optionally with
    /// another root. The origin of each choice is its index here.
    pub(super) fn restricted(&self, keep: impl Fn(usize) -> bool, root: Option<u32>) -> Self {
        let mut part = FlatClasses::new();
        for class in 0..self.len() as u32 {
            for k in self.choices(class).filter(|&k| keep(k)) {
                part.push_choice(self.cost[k], self.label[k], k as u32, self.children(k));
            }
            part.close_class();
        }
        let roots = self.roots.iter().copied().chain(root).collect();
        part.close(roots, self.exclusive.clone());
        part
    }

    /// Returns the choices that need each class, as the offset of each class's first user and a list of all users.
    pub(super) fn users(&self) -> (Vec<u32>, Vec<u32>) {
        let mut first = vec![0u32; self.len() + 1];
        for &x in &self.children {
            first[x as usize + 1] += 1;
        }
        for i in 0..self.len() {
            first[i + 1] += first[i];
        }
        let mut next = first.clone();
        let mut users = vec![0u32; self.children.len()];
        for k in 0..self.cost.len() {
            for &x in self.children(k) {
                users[next[x as usize] as usize] = k as u32;
                next[x as usize] += 1;
            }
        }
        (first, users)
    }

    /// Removes choices from `alive` that can never be computed from the leaves up. Returns for each class whether it
    /// can be computed. Takes linear time.
    pub(super) fn ground(&self, alive: &mut [bool], banned: &[bool]) -> Vec<bool> {
        let (first, users) = self.users();
        let mut missing: Vec<u32> = (0..self.cost.len()).map(|k| self.children(k).len() as u32).collect();
        let mut grounded = vec![false; self.len()];
        let mut queue: Vec<u32> = Vec::new();
        let reach = |k: usize, grounded: &mut Vec<bool>, queue: &mut Vec<u32>| {
            let c = self.class_of[k];
            if !grounded[c as usize] && !banned[c as usize] {
                grounded[c as usize] = true;
                queue.push(c);
            }
        };
        for k in (0..self.cost.len()).filter(|&k| alive[k] && missing[k] == 0) {
            reach(k, &mut grounded, &mut queue);
        }
        while let Some(c) = queue.pop() {
            for &k in &users[first[c as usize] as usize..first[c as usize + 1] as usize] {
                missing[k as usize] -= 1;
                if missing[k as usize] == 0 && alive[k as usize] {
                    reach(k as usize, &mut grounded, &mut queue);
                }
            }
        }
        for k in 0..self.cost.len() {
            alive[k] &= missing[k] == 0 && !banned[self.class_of[k] as usize];
        }
        grounded
    }
}
