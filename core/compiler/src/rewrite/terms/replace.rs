//! Replacement of terms, with a journal for undo.

use super::{Key, Refusal, TermId, Terms};

/// Information for undoing one change.
pub(super) enum UndoRecord {
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

/// State at the start of a transaction.
pub(in crate::rewrite) struct Mark {
    journal: usize,
    touched: usize,
    total: u128,
}

impl Terms<'_> {
    /// Starts a transaction that can be undone.
    pub(in crate::rewrite) fn mark(&self) -> Mark {
        Mark {
            journal: self.journal.len(),
            touched: self.touched.len(),
            total: self.total,
        }
    }

    /// Accepts all changes since the start of the transaction.
    pub(in crate::rewrite) fn commit(&mut self) {
        self.journal.clear();
    }

    /// Returns the terms that were created, changed or got other users since the last call.
    pub(in crate::rewrite) fn take_touched(&mut self) -> Vec<TermId> {
        std::mem::take(&mut self.touched)
    }

    /// Undoes all changes since `mark`.
    pub(in crate::rewrite) fn undo(&mut self, mark: &Mark) {
        while self.journal.len() > mark.journal {
            let Some(undo) = self.journal.pop() else { break };
            match undo {
                UndoRecord::Created => {
                    if let Some(term) = self.terms.pop() {
                        for (i, child) in term.children.iter().enumerate() {
                            if !term.children[..i].contains(child) {
                                self.terms[child.index()].parents.pop();
                            }
                        }
                        self.index.remove(&(term.label, term.children));
                    }
                }
                UndoRecord::Refs(id, refs) => self.terms[id.index()].refs = refs,
                UndoRecord::Roots(id, roots) => self.terms[id.index()].roots = roots,
                UndoRecord::Children(id, children) => self.terms[id.index()].children = children,
                UndoRecord::IndexRemoved(key, id) => {
                    self.index.insert(key, id);
                }
                UndoRecord::IndexInserted(key) => {
                    self.index.remove(&key);
                }
                UndoRecord::ParentsTaken(id, parents) => self.terms[id.index()].parents = parents,
                UndoRecord::ParentPushed(id) => {
                    self.terms[id.index()].parents.pop();
                }
                UndoRecord::Forwarded(id) => self.terms[id.index()].forward = None,
                UndoRecord::Level(id, level) => self.terms[id.index()].level = level,
                UndoRecord::Cost(id, cost) => self.terms[id.index()].cost = cost,
            }
        }
        self.touched.truncate(mark.touched);
        self.total = mark.total;
    }

    /// Adds uses to a term. If it had none, its operands get a use, too.
    pub(super) fn acquire(&mut self, id: TermId, uses: u32) {
        let mut stack = vec![(id, uses)];
        while let Some((id, uses)) = stack.pop() {
            let refs = self.terms[id.index()].refs;
            self.journal.push(UndoRecord::Refs(id, refs));
            self.touched.push(id);
            let term = &mut self.terms[id.index()];
            term.refs += uses;
            if refs == 0 {
                self.total += u128::from(term.cost);
                stack.extend(term.children.iter().map(|&c| (c, 1)));
            }
        }
    }

    /// Removes uses from a term. If none remains, its operands lose a use, too.
    fn release(&mut self, id: TermId, uses: u32) {
        let mut stack = vec![(id, uses)];
        while let Some((id, uses)) = stack.pop() {
            let refs = self.terms[id.index()].refs;
            self.journal.push(UndoRecord::Refs(id, refs));
            self.touched.push(id);
            let term = &mut self.terms[id.index()];
            term.refs = refs.saturating_sub(uses);
            if term.refs == 0 {
                self.total = self.total.saturating_sub(u128::from(term.cost));
                stack.extend(term.children.iter().map(|&c| (c, 1)));
            }
        }
    }

    /// Replaces `old` by `new` in all users, and merges users that have become equal.
    ///
    /// # Errors
    /// [`Refusal::IllTyped`] if the types differ, [`Refusal::Impossible`] if `new` needs `old`. The
    /// caller must then call [`Terms::undo`].
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
            self.journal.push(UndoRecord::Forwarded(old));
            let parents = std::mem::take(&mut self.terms[old.index()].parents);
            self.journal.push(UndoRecord::ParentsTaken(old, parents.clone()));
            for user in parents {
                if self.terms[user.index()].forward.is_none() {
                    self.replace_operand(user, old, new, &mut pending);
                }
            }
            let roots = self.terms[old.index()].roots;
            if roots > 0 {
                let others = self.terms[new.index()].roots;
                self.journal.push(UndoRecord::Roots(old, roots));
                self.journal.push(UndoRecord::Roots(new, others));
                self.terms[old.index()].roots = 0;
                self.terms[new.index()].roots = others + roots;
                self.acquire(new, roots);
                self.release(old, roots);
            }
        }
        Ok(())
    }

    fn replace_operand(&mut self, user: TermId, old: TermId, new: TermId, pending: &mut Vec<(TermId, TermId)>) {
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
            self.journal.push(UndoRecord::IndexRemoved(old_key, user));
        }
        self.touched.push(user);
        self.terms[user.index()].children.clone_from(&after);
        self.journal.push(UndoRecord::Children(user, before));
        self.terms[new.index()].parents.push(user);
        self.journal.push(UndoRecord::ParentPushed(new));
        if self.is_needed(user) {
            self.acquire(new, uses);
            self.release(old, uses);
        }
        self.raise(user);
        self.update_cost(user);
        let new_key = (label, after);
        match self.index.get(&new_key) {
            Some(&equal) => pending.push((user, equal)),
            None => {
                self.index.insert(new_key.clone(), user);
                self.journal.push(UndoRecord::IndexInserted(new_key));
            }
        }
    }

    fn update_cost(&mut self, id: TermId) {
        let (before, after) = (self.terms[id.index()].cost, self.cost_of(id));
        if before != after {
            self.journal.push(UndoRecord::Cost(id, before));
            self.terms[id.index()].cost = after;
            if self.is_needed(id) {
                self.total = self.total.saturating_sub(u128::from(before)) + u128::from(after);
            }
        }
    }

    /// Restores the invariant that users have a greater level than their operands.
    fn raise(&mut self, id: TermId) {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let term = &self.terms[id.index()];
            let least = term.children.iter().map(|c| self.terms[c.index()].level + 1).max();
            let least = least.unwrap_or(0);
            if term.level < least {
                self.journal.push(UndoRecord::Level(id, term.level));
                stack.extend(&term.parents);
                self.terms[id.index()].level = least;
            }
        }
    }

    /// Returns `true` if `from` depends on `to`.
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
