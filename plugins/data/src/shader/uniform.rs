//! Uniformity analysis: barriers are allowed only where all threads of a workgroup arrive together.
//!
//! The analysis is conservative. Numbers are uniform if they come from constants, the workgroup's
//! index, and variables that only get uniform numbers while all threads are together. A loop keeps
//! threads together if it contains a barrier, so that rewriting counts its iterations separately,
//! and if only uniform conditions leave it.

use std::collections::HashSet;

use naga::{Barrier, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Statement};

use super::check::statements;

/// Returns `true` if a block contains a barrier, directly or in a nested block.
pub(super) fn has_barrier(block: &Block) -> bool {
    let mut found = false;
    statements(block, &mut |s| found |= matches!(s, Statement::ControlBarrier(_)));
    found
}

/// Checks the barriers of an entry point.
///
/// # Errors
/// A barrier that some threads may not reach.
pub(super) fn check(entry: &Function) -> Result<(), String> {
    if !has_barrier(&entry.body) {
        return Ok(());
    }
    let mut same: HashSet<Handle<LocalVariable>> = entry.local_variables.iter().map(|(h, _)| h).collect();
    loop {
        let before = same.len();
        let mut threads = Threads {
            entry,
            same: &same,
            differ: Vec::new(),
            fault: None,
            returned: false,
        };
        threads.block(&entry.body, true);
        let (differ, fault) = (threads.differ, threads.fault);
        same.retain(|local| !differ.contains(local));
        if same.len() == before {
            return fault.map_or(Ok(()), Err);
        }
    }
}

struct Threads<'a> {
    entry: &'a Function,
    /// Variables that were not found to differ between threads so far.
    same: &'a HashSet<Handle<LocalVariable>>,
    /// Variables that the analysis found to be not uniform.
    differ: Vec<Handle<LocalVariable>>,
    /// Error of the first misplaced barrier.
    fault: Option<String>,
    /// `true` if some thread may have returned.
    returned: bool,
}

impl Threads<'_> {
    /// Returns `true` if an expression has the same value in all threads.
    fn is_same(&self, handle: Handle<Expression>) -> bool {
        match self.entry.expressions[handle] {
            Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_) => true,
            Expression::FunctionArgument(i) => {
                let argument = self.entry.arguments.get(i as usize);
                let binding = argument.and_then(|a| a.binding.as_ref());
                matches!(
                    binding,
                    Some(Binding::BuiltIn(BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups))
                )
            }
            Expression::Load { pointer } => match self.entry.expressions[pointer] {
                Expression::LocalVariable(local) => self.same.contains(&local),
                _ => false,
            },
            Expression::AccessIndex { base, .. } => !self.is_pointer(base) && self.is_same(base),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => self.is_same(expr),
            Expression::Splat { value, .. } => self.is_same(value),
            Expression::Binary { left, right, .. } => self.is_same(left) && self.is_same(right),
            Expression::Math {
                arg, arg1, arg2, arg3, ..
            } => self.is_same(arg) && [arg1, arg2, arg3].into_iter().flatten().all(|a| self.is_same(a)),
            _ => false,
        }
    }

    fn is_pointer(&self, handle: Handle<Expression>) -> bool {
        match self.entry.expressions[handle] {
            Expression::LocalVariable(_) | Expression::GlobalVariable(_) => true,
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.is_pointer(base),
            _ => false,
        }
    }

    /// Returns the variable of a pointer.
    fn local(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.entry.expressions[pointer] {
            Expression::LocalVariable(local) => Some(local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.local(base),
            _ => None,
        }
    }

    /// Returns `true` if a pointer refers to the same part of a variable in all threads.
    fn is_same_part(&self, pointer: Handle<Expression>) -> bool {
        match self.entry.expressions[pointer] {
            Expression::Access { base, index } => self.is_same(index) && self.is_same_part(base),
            Expression::AccessIndex { base, .. } => self.is_same_part(base),
            _ => true,
        }
    }

    /// Visits a block; `together` is true if all threads arrive at its beginning together.
    fn block(&mut self, block: &Block, together: bool) {
        for statement in block.iter() {
            self.statement(statement, together && !self.returned);
        }
    }

    fn statement(&mut self, statement: &Statement, together: bool) {
        match statement {
            Statement::ControlBarrier(kind) => {
                let known = Barrier::WORK_GROUP.union(Barrier::STORAGE).contains(*kind);
                let fault = match (known, self.returned, together) {
                    (false, ..) => "it has a barrier of another kind than workgroupBarrier() and storageBarrier()",
                    (_, true, _) => "threads may return before a barrier that other threads wait for",
                    (.., false) => "a barrier is in a branch or loop that not all threads may reach",
                    (true, false, true) => return,
                };
                self.fault.get_or_insert_with(|| fault.to_owned());
            }
            Statement::Store { pointer, value } => {
                if let Some(local) = self.local(*pointer)
                    && !(together && self.is_same(*value) && self.is_same_part(*pointer))
                {
                    self.differ.push(local);
                }
            }
            Statement::Return { .. } => self.returned |= !together,
            Statement::Block(inner) => self.block(inner, together),
            Statement::If {
                condition,
                accept,
                reject,
            } => {
                let together = together && self.is_same(*condition);
                self.block(accept, together);
                self.block(reject, together);
            }
            Statement::Switch { selector, cases } => {
                let together = together && self.is_same(*selector);
                cases.iter().for_each(|case| self.block(&case.body, together));
            }
            Statement::Loop {
                body,
                continuing,
                break_if,
            } => {
                let leaves = break_if.is_none_or(|condition| self.is_same(condition));
                // A loop without a barrier may end early for some threads, when they reach their
                // limit.
                let stays = leaves && (has_barrier(body) || has_barrier(continuing)) && self.left_together(body);
                // A thread that returns in one iteration is missing in the next.
                let mut returns = false;
                statements(body, &mut |s| returns |= matches!(s, Statement::Return { .. }));
                self.block(body, together && stays && !returns);
                self.block(continuing, together && stays && !returns);
            }
            _ => {}
        }
    }

    /// Returns `true` if all threads leave a loop, or an iteration, at the same time.
    fn left_together(&self, block: &Block) -> bool {
        let leaves = |block: &Block| {
            let mut found = false;
            statements(block, &mut |s| {
                found |= matches!(s, Statement::Break | Statement::Continue)
            });
            found
        };
        block.iter().all(|statement| match statement {
            Statement::Block(inner) => self.left_together(inner),
            Statement::If {
                condition,
                accept,
                reject,
            } if self.is_same(*condition) => self.left_together(accept) && self.left_together(reject),
            // Leaving an inner loop or a switch also counts, which is stricter than necessary.
            Statement::If { accept, reject, .. } => !leaves(accept) && !leaves(reject),
            Statement::Switch { selector, cases } => {
                self.is_same(*selector) || cases.iter().all(|case| !leaves(&case.body))
            }
            // Leaving a nested loop stays within the outer one.
            _ => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(body: &str) -> Result<(), String> {
        let text = format!(
            "const n = 300u;\nvar<workgroup> s: array<f32, 64>;\nvar<storage> x: array<f32>;\n\
             @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32, \
             @builtin(workgroup_id) group: vec3<u32>) {{\n{body}\n}}"
        );
        let module = naga::front::wgsl::parse_str(&text).expect("it is WGSL");
        check(&module.entry_points[0].function)
    }

    #[test]
    fn barriers_stand_where_all_threads_come() {
        for body in [
            "s[i] = 1.0; workgroupBarrier(); s[i] = s[63u - i];",
            "for (var half = 32u; half > 0u; half /= 2u) { if (i < half) { s[i] += s[i + half]; } workgroupBarrier(); }",
            "for (var k = 0u; k < n; k += 64u) { if (k > 9u) { s[i] = x[k + i]; } workgroupBarrier(); \
             for (var j = 0u; j < i; j += 1u) { s[i] += 1.0; } workgroupBarrier(); }",
            "if (group.x > 3u) { workgroupBarrier(); }",
            "var k = 0u; loop { if (k > group.y) { break; } workgroupBarrier(); k += 1u; }",
            "if (group.x > 3u) { return; } workgroupBarrier();",
        ] {
            assert_eq!(checked(body), Ok(()), "{body}");
        }
    }

    #[test]
    fn and_nowhere_else() {
        for body in [
            "if (i < 3u) { workgroupBarrier(); }",
            "if (x[0] < 3.0) { workgroupBarrier(); }",
            "for (var k = i; k < n; k += 64u) { workgroupBarrier(); }",
            "for (var k = 0u; k < i; k += 1u) { workgroupBarrier(); }",
            "for (var k = 0u; k < n; k += 1u) { if (i == k) { break; } workgroupBarrier(); }",
            "for (var k = 0u; k < n; k += 1u) { if (i == k) { continue; } workgroupBarrier(); }",
            "for (var k = 0u; k < n; k += 1u) { workgroupBarrier(); if (i == k) { return; } }",
            "if (i == 3u) { return; } workgroupBarrier();",
            // The end of the first loop may differ between threads.
            "var m = 0u; for (var k = 0u; k < n; k += 1u) { m += 1u; } for (var k = 0u; k < m; k += 1u) { workgroupBarrier(); }",
            "var m = 0u; if (i > 3u) { m = 5u; } for (var k = 0u; k < m; k += 1u) { workgroupBarrier(); }",
            "var m = array<u32, 2>(); m[0] = i; for (var k = 0u; k < m[0]; k += 1u) { workgroupBarrier(); }",
            "var m = 9u; for (var k = 0u; k < n; k += 1u) { workgroupBarrier(); if (k > m) { break; } m = i; }",
            "switch i { case 3u: { workgroupBarrier(); } default: { } }",
        ] {
            assert!(checked(body).is_err(), "{body}");
        }
    }
}
