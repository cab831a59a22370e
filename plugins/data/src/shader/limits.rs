//! Counters for loops that cannot be proven to end. If a thread does too much work in them, it leaves the loop, and the
//! step fails with a fault.

use meganeura_core::backend::shader::ENDED_LOOP;
use naga::{
    AddressSpace, Arena, ArraySize, BinaryOperator, Block, Expression, GlobalVariable, Handle, Literal, Module, Scalar,
    Span, Statement, StorageAccess, Type, TypeInner,
};

use super::check::statements;
use super::rewrite::emit;
use super::work::Work;

/// Limits of a thread's work in loops that cannot be proven to end, for each of the two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Maximum number of statements and expressions ("parts") that the loops evaluate.
    pub(super) parts: u32,
    /// Maximum number of loop iterations.
    pub(super) rounds: Option<u32>,
}

impl Limit {
    /// Returns the amount by which an iteration that evaluates `parts` parts increases the counter.
    fn weight(&self, parts: u64) -> u32 {
        let share = self.rounds.map_or(0, |rounds| self.parts.div_ceil(rounds.max(1)));
        u32::try_from(parts).unwrap_or(u32::MAX).max(share)
    }
}

/// Global variables that a kernel uses to report faults.
#[derive(Clone, Copy)]
pub(super) struct Report {
    /// Buffer `array<atomic<u32>>` with the fault words of all dispatches that report.
    pub(super) fault: Handle<GlobalVariable>,
    /// Index of this dispatch among the dispatches that report.
    pub(super) reporter: Handle<GlobalVariable>,
}

/// Counters of the work in loops that cannot be proven to end.
pub(super) struct Counters {
    pub(super) report: Report,
    /// Counter for loops without barriers, which each thread may leave separately.
    alone: Handle<GlobalVariable>,
    /// Counter for loops with barriers: all threads do the same work in them, so they leave them together.
    together: Handle<GlobalVariable>,
    limit: Limit,
}

impl Counters {
    /// Adds the counter variables, if there are loops that cannot be proven to end.
    pub(super) fn new(module: &mut Module, work: &Work, limit: Limit) -> Option<Self> {
        has_counted(module, work).then(|| Counters {
            alone: count(module, "evaluated"),
            together: count(module, "evaluated_together"),
            report: report(module),
            limit,
        })
    }

    /// Returns the statements at the beginning of an iteration that evaluates `parts` parts: they count it, and leave
    /// the loop beyond the limit.
    pub(super) fn count_round(&self, expressions: &mut Arena<Expression>, parts: u64, together: bool) -> Block {
        let mut append = |expression| expressions.append(expression, Span::UNDEFINED);
        let pointer = append(Expression::GlobalVariable(if together {
            self.together
        } else {
            self.alone
        }));
        let [weight, most] = [self.limit.weight(parts), self.limit.parts].map(|n| append(literal(n)));
        let before = append(Expression::Load { pointer });
        let over = append(Expression::Binary {
            op: BinaryOperator::GreaterEqual,
            left: before,
            right: most,
        });
        let mut block = Block::new();
        emit(&[before, over], &mut block);
        let leave = Statement::If {
            condition: over,
            accept: self.leave(expressions),
            reject: Block::new(),
        };
        block.push(leave, Span::UNDEFINED);
        let after = expressions.append(
            Expression::Binary {
                op: BinaryOperator::Add,
                left: before,
                right: weight,
            },
            Span::UNDEFINED,
        );
        emit(&[after], &mut block);
        block.push(Statement::Store { pointer, value: after }, Span::UNDEFINED);
        block
    }

    /// Returns statements that report a fault and leave the loop.
    fn leave(&self, expressions: &mut Arena<Expression>) -> Block {
        let mut append = |expression| expressions.append(expression, Span::UNDEFINED);
        let fault = append(Expression::GlobalVariable(self.report.fault));
        let reporter = append(Expression::GlobalVariable(self.report.reporter));
        let [one, two, ended] = [1, 2, ENDED_LOOP].map(|n| append(literal(n)));
        let any = append(Expression::AccessIndex { base: fault, index: 0 });
        let number = append(Expression::Load { pointer: reporter });
        let binary = |op, left, right| Expression::Binary { op, left, right };
        let twice = append(binary(BinaryOperator::Multiply, number, two));
        let place = append(binary(BinaryOperator::Add, twice, one));
        let own = append(Expression::Access {
            base: fault,
            index: place,
        });
        let mut block = Block::new();
        emit(&[any, number, twice, place, own], &mut block);
        for (pointer, value) in [(any, one), (own, ended)] {
            block.push(Statement::Store { pointer, value }, Span::UNDEFINED);
        }
        block.push(Statement::Break, Span::UNDEFINED);
        block
    }
}

/// Returns `true` if a module has loops that cannot be proven to end.
fn has_counted(module: &Module, work: &Work) -> bool {
    let functions = module.functions.iter().map(|(_, f)| f);
    let mut all = functions.chain(module.entry_points.iter().map(|e| &e.function));
    all.any(|function| {
        let largest = work.largest(function);
        let mut found = false;
        statements(&function.body, &mut |s| {
            if let Statement::Loop { body, continuing, .. } = s {
                found |= work.rounds(function, &largest, body, continuing).is_none();
            }
        });
        found
    })
}

fn literal(value: u32) -> Expression {
    Expression::Literal(Literal::U32(value))
}

/// Returns the type `u32`, adding it to the module if necessary.
pub(super) fn word(module: &mut Module) -> Handle<Type> {
    unnamed(module, TypeInner::Scalar(Scalar::U32))
}

fn unnamed(module: &mut Module, inner: TypeInner) -> Handle<Type> {
    module.types.insert(Type { name: None, inner }, Span::UNDEFINED)
}

fn variable(module: &mut Module, name: &str, space: AddressSpace, ty: Handle<Type>) -> Handle<GlobalVariable> {
    let variable = GlobalVariable {
        name: Some(name.into()),
        space,
        binding: None,
        ty,
        init: None,
        memory_decorations: Default::default(),
    };
    module.global_variables.append(variable, Span::UNDEFINED)
}

/// Adds a private variable of type `u32`.
fn count(module: &mut Module, name: &str) -> Handle<GlobalVariable> {
    let ty = word(module);
    variable(module, name, AddressSpace::Private, ty)
}

/// Adds the variables for fault reports. Code that renames the module's variables must name these last.
fn report(module: &mut Module) -> Report {
    let number = word(module);
    let atomic = unnamed(module, TypeInner::Atomic(Scalar::U32));
    let words = unnamed(
        module,
        TypeInner::Array {
            base: atomic,
            size: ArraySize::Dynamic,
            stride: 4,
        },
    );
    let access = StorageAccess::LOAD | StorageAccess::STORE;
    Report {
        fault: variable(module, "reported", AddressSpace::Storage { access }, words),
        reporter: variable(module, "reported_by", AddressSpace::Uniform, number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_count_what_is_done_in_them() {
        let any = Limit {
            parts: 1000,
            rounds: None,
        };
        assert_eq!((any.weight(7), any.weight(u64::MAX)), (7, u32::MAX));
        let few = Limit {
            rounds: Some(30),
            ..any
        };
        assert_eq!((few.weight(7), few.weight(70)), (34, 70));
        let none = Limit { rounds: Some(0), ..any };
        assert_eq!(none.weight(7), 1000);
    }
}
