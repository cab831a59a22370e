//! Replacing terms, with a journal by which it is taken back.

use super::{Key, Refusal, TermId, Terms};

/// What takes one change back.
pub(super) enum Undo {
    Created,
    Refs(TermId, u32),
    Roots(TermId, u32),
    Children(TermId, Vec<TermId>),
    IndexRemoved(Key, TermId),
    IndexInserted(Key),
    ParentsTaken(TermId, Vec<TermId>),
    ParentPushed(TermId),
    Forwarded(TermId),
    Level(TermId, u32),
    Cost(TermId, u64),
}

/// Where a transaction began.
pub(in crate::rewrite) struct Mark {
    journal: usize,
    touched: usize,
    total: u128,
}

impl Terms<'_> {
    /// Begins changes that may be taken back.
    pub(in crate::rewrite) fn mark(&self) -> Mark {
        Mark {
            journal: self.journal.len(),
            touched: self.touched.len(),
            total: self.total,
        }
    }

    /// Accepts all changes.
    pub(in crate::rewrite) fn commit(&mut self) {
        self.journal.clear();
    }

    /// Terms that were made, changed or used otherwise since this was last asked.
    pub(in crate::rewrite) fn take_touched(&mut self) -> Vec<TermId> {
        std::mem::take(&mut self.touched)
    }

    /// Takes back what was changed since `mark`.
    pub(in crate::rewrite) fn undo(&mut self, mark: &Mark) {
        while self.journal.len() > mark.journal {
            let Some(undo) = self.journal.pop() else { break };
            match undo {
                Undo::Created => {
                    if let Some(term) = self.terms.pop() {
                        for (i, child) in term.children.iter().enumerate() {
                            if !term.children[..i].contains(child) {
                                self.terms[child.index()].parents.pop();
                            }
                        }
                        self.index.remove(&(term.label, term.children));
                    }
                }
                Undo::Refs(id, refs) => self.terms[id.index()].refs = refs,
                Undo::Roots(id, roots) => self.terms[id.index()].roots = roots,
                Undo::Children(id, children) => self.terms[id.index()].children = children,
                Undo::IndexRemoved(key, id) => {
                    self.index.insert(key, id);
                }
                Undo::IndexInserted(key) => {
                    self.index.remove(&key);
                }
                Undo::ParentsTaken(id, parents) => self.terms[id.index()].parents = parents,
                Undo::ParentPushed(id) => {
                    self.terms[id.index()].parents.pop();
                }
                Undo::Forwarded(id) => self.terms[id.index()].forward = None,
                Undo::Level(id, level) => self.terms[id.index()].level = level,
                Undo::Cost(id, cost) => self.terms[id.index()].cost = cost,
            }
        }
        self.touched.truncate(mark.touched);
        self.total = mark.total;
    }

    /// Adds uses of a term, and of what it needs when it had none.
    pub(super) fn acquire(&mut self, id: TermId, uses: u32) {
        let mut stack = vec![(id, uses)];
        while let Some((id, uses)) = stack.pop() {
            let refs = self.terms[id.index()].refs;
            self.journal.push(Undo::Refs(id, refs));
            self.touched.push(id);
            let term = &mut self.terms[id.index()];
            term.refs += uses;
            if refs == 0 {
                self.total += u128::from(term.cost);
                stack.extend(term.children.iter().map(|&c| (c, 1)));
            }
        }
    }

    /// Takes uses away, and those of its operands when none is left.
    fn release(&mut self, id: TermId, uses: u32) {
        let mut stack = vec![(id, uses)];
        while let Some((id, uses)) = stack.pop() {
            let refs = self.terms[id.index()].refs;
            self.journal.push(Undo::Refs(id, refs));
            self.touched.push(id);
            let term = &mut self.terms[id.index()];
            term.refs = refs.saturating_sub(uses);
            if term.refs == 0 {
                self.total = self.total.saturating_sub(u128::from(term.cost));
                stack.extend(term.children.iter().map(|&c| (c, 1)));
            }
        }
    }

    /// Puts `new` in the place of `old` everywhere, and merges users that have become equal.
    ///
    /// # Errors
    /// [`Refusal::IllTyped`] when the types differ, [`Refusal::Impossible`] when `new` needs `old`. The caller then
    /// has to [`Terms::undo`].
    pub(in crate::rewrite) fn replace(&mut self, old: TermId, new: TermId) -> Result<(), Refusal> {
        let mut pending = vec![(old, new)];
        while let Some((old, new)) = pending.pop() {
            let (old, new) = (self.find(old), self.find(new));
            if old == new {
                continue;
            }
            if self.terms[old.index()].types != self.terms[new.index()].types {
                let list = |id| self.types(id).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("{} would replace {}", list(new), list(old));
                return Err(Refusal::IllTyped(message));
            }
            if self.reaches(new, old) {
                return Err(Refusal::Impossible);
            }
            self.terms[old.index()].forward = Some(new);
            self.journal.push(Undo::Forwarded(old));
            let parents = std::mem::take(&mut self.terms[old.index()].parents);
            self.journal.push(Undo::ParentsTaken(old, parents.clone()));
            for user in parents {
                if self.terms[user.index()].forward.is_none() {
                    self.repoint(user, old, new, &mut pending);
                }
            }
            let roots = self.terms[old.index()].roots;
            if roots > 0 {
                let others = self.terms[new.index()].roots;
                self.journal.push(Undo::Roots(old, roots));
                self.journal.push(Undo::Roots(new, others));
                self.terms[old.index()].roots = 0;
                self.terms[new.index()].roots = others + roots;
                self.acquire(new, roots);
                self.release(old, roots);
            }
        }
        Ok(())
    }

    fn repoint(&mut self, user: TermId, old: TermId, new: TermId, pending: &mut Vec<(TermId, TermId)>) {
        let term = &self.terms[user.index()];
        let uses = term.children.iter().filter(|&&c| c == old).count() as u32;
        if uses == 0 {
            return;
        }
        let (label, before) = (term.label, term.children.clone());
        let after: Vec<TermId> = before.iter().map(|&c| if c == old { new } else { c }).collect();
        let old_key = (label, before.clone());
        if self.index.get(&old_key) == Some(&user) {
            self.index.remove(&old_key);
            self.journal.push(Undo::IndexRemoved(old_key, user));
        }
        self.touched.push(user);
        self.terms[user.index()].children.clone_from(&after);
        self.journal.push(Undo::Children(user, before));
        self.terms[new.index()].parents.push(user);
        self.journal.push(Undo::ParentPushed(new));
        if self.is_needed(user) {
            self.acquire(new, uses);
            self.release(old, uses);
        }
        self.raise(user);
        self.renew_cost(user);
        let new_key = (label, after);
        match self.index.get(&new_key) {
            Some(&equal) => pending.push((user, equal)),
            None => {
                self.index.insert(new_key.clone(), user);
                self.journal.push(Undo::IndexInserted(new_key));
            }
        }
    }

    fn renew_cost(&mut self, id: TermId) {
        let (before, after) = (self.terms[id.index()].cost, self.cost_of(id));
        if before != after {
            self.journal.push(Undo::Cost(id, before));
            self.terms[id.index()].cost = after;
            if self.is_needed(id) {
                self.total = self.total.saturating_sub(u128::from(before)) + u128::from(after);
            }
        }
    }

    /// Restores that users have a greater level than their operands.
    fn raise(&mut self, id: TermId) {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let term = &self.terms[id.index()];
            let least = term.children.iter().map(|c| self.terms[c.index()].level + 1).max();
            let least = least.unwrap_or(0);
            if term.level < least {
                self.journal.push(Undo::Level(id, term.level));
                stack.extend(&term.parents);
                self.terms[id.index()].level = least;
            }
        }
    }

    /// Whether `from` needs `to`.
    fn reaches(&self, from: TermId, to: TermId) -> bool {
        let floor = self.level(to);
        let mut seen = std::collections::HashSet::new();
        let mut stack = vec![from];
        while let Some(id) = stack.pop() {
            if id == to {
                return true;
            }
            if self.level(id) > floor && seen.insert(id) {
                stack.extend(self.children(id));
            }
        }
        false
    }
}
