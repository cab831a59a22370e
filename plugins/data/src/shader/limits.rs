//! Loops that are not seen to end count what a thread does in them. Where that is too much, the loop is left, and this is
//! reported, so that the step is an error.

use meganeura_core::backend::shader::ENDED_LOOP;
use naga::{
    AddressSpace, Arena, ArraySize, BinaryOperator, Block, Expression, GlobalVariable, Handle, Literal, Module, Scalar,
    Span, Statement, StorageAccess, Type, TypeInner,
};

use super::check::statements;
use super::rewrite::emit;
use super::work::Work;

/// What a thread may do in loops that are not seen to end, of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Statements and expressions that it may evaluate.
    pub(super) parts: u32,
    /// Rounds that it may make.
    pub(super) rounds: Option<u32>,
}

impl Limit {
    /// What a round counts, in which so many parts are evaluated.
    fn weight(&self, parts: u64) -> u32 {
        let share = self.rounds.map_or(0, |rounds| self.parts.div_ceil(rounds.max(1)));
        u32::try_from(parts).unwrap_or(u32::MAX).max(share)
    }
}

/// The variables that a kernel reports with.
#[derive(Clone, Copy)]
pub(super) struct Report {
    /// `array<atomic<u32>>`, the words of all that report.
    pub(super) fault: Handle<GlobalVariable>,
    /// Number of this one among them.
    pub(super) reporter: Handle<GlobalVariable>,
}

/// What counts rounds.
pub(super) struct Counters {
    pub(super) report: Report,
    /// What a thread has evaluated in its loops.
    alone: Handle<GlobalVariable>,
    /// The same, of loops with barriers: all threads do the same in these, so they leave them together.
    together: Handle<GlobalVariable>,
    limit: Limit,
}

impl Counters {
    /// Variables to count with, if there are loops that are not seen to end.
    pub(super) fn new(module: &mut Module, work: &Work, limit: Limit) -> Option<Self> {
        has_counted(module, work).then(|| Counters {
            alone: count(module, "evaluated"),
            together: count(module, "evaluated_together"),
            report: report(module),
            limit,
        })
    }

    /// The beginning of a round in which so many parts are evaluated.
    pub(super) fn count_round(&self, expressions: &mut Arena<Expression>, parts: u64, together: bool) -> Block {
        let mut append = |expression| expressions.append(expression, Span::UNDEFINED);
        let pointer = append(Expression::GlobalVariable(match together {
            true => self.together,
            false => self.alone,
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

    /// Reports, and leaves the loop.
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

/// Whether a module has loops that are not seen to end.
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

/// The type of words.
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

/// A variable of each thread.
fn count(module: &mut Module, name: &str) -> Handle<GlobalVariable> {
    let ty = word(module);
    variable(module, name, AddressSpace::Private, ty)
}

/// What a report is written to; whoever renames the module's variables names these last.
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
