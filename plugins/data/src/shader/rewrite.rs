//! Rewriting of a kernel: afterwards every access stays within its variable, every loop ends, and no stale memory is
//! read.
//!
//! The bounds checks of naga (`proc::BoundsCheckPolicies`) apply only in its backends, and use the
//! buffer's run-time length. Here, buffers are slices of larger ones, so the shader would see the
//! length of the rest; and the code that compiles the kernel chooses the policies. Therefore, the
//! bounds become part of the module: every index is clamped to the last one, loops that cannot be
//! proven to end count their work, and workgroup memory begins with zeros.

use std::collections::HashMap;

use super::limits;
use super::uniform::has_barrier;
use super::work::{UpperBounds, Work};
use super::zeros;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    Arena, ArraySize, Block, Expression, Function, GlobalVariable, Handle, Literal, MathFunction, Module, Range,
    ScalarKind, Span, Statement, SwitchCase, Type, TypeInner, UniqueArena, VectorSize,
};

/// Number of elements of each buffer's array.
pub(super) type Lengths = HashMap<Handle<GlobalVariable>, u32>;

/// Rewrites a valid and checked module. When a thread exceeds its limit of work, it leaves the loops that cannot be
/// proven to end, and reports a fault. Returns the variables for reports, if there are such loops.
///
/// # Errors
/// An unsupported expression or statement.
pub(super) fn rewrite(
    module: &mut Module,
    info: &ModuleInfo,
    lengths: &Lengths,
    work: &Work,
    limit: limits::Limit,
) -> Result<Option<limits::Report>, String> {
    let counters = limits::Counters::new(module, work, limit);
    let cx = Context {
        types: &module.types,
        lengths,
        work,
        counters: counters.as_ref(),
    };
    for (handle, function) in module.functions.iter_mut() {
        *function = cx.function(function, &info[handle])?;
    }
    for (number, entry) in module.entry_points.iter_mut().enumerate() {
        entry.function = cx.function(&entry.function, info.get_entry_point(number))?;
    }
    zeros::begin_with_zeros(module);
    Ok(counters.map(|c| c.report))
}

struct Context<'a> {
    types: &'a UniqueArena<Type>,
    lengths: &'a Lengths,
    work: &'a Work,
    counters: Option<&'a limits::Counters>,
}

/// New expression that replaces an expression.
struct Replacement {
    handle: Handle<Expression>,
    /// Expressions that must be evaluated (emitted) for it, including itself, unless it is a constant or similar.
    evaluated: Vec<Handle<Expression>>,
}

impl Context<'_> {
    fn function(&self, old: &Function, info: &FunctionInfo) -> Result<Function, String> {
        let mut making = FunctionRewriter {
            cx: self,
            old,
            info,
            largest: self.work.largest(old),
            expressions: Arena::new(),
            new: Vec::with_capacity(old.expressions.len()),
        };
        for (_, expression) in old.expressions.iter() {
            let new = making.expression(expression)?;
            making.new.push(new);
        }
        let mut function = Function {
            local_variables: old.local_variables.clone(),
            ..old.clone()
        };
        for (_, local) in function.local_variables.iter_mut() {
            local.init = local.init.map(|h| making.at(h));
        }
        function.named_expressions = old
            .named_expressions
            .iter()
            .map(|(&h, name)| (making.at(h), name.clone()))
            .collect();
        function.body = making.block(&old.body)?;
        function.expressions = making.expressions;
        Ok(function)
    }
}

struct FunctionRewriter<'a> {
    cx: &'a Context<'a>,
    old: &'a Function,
    info: &'a FunctionInfo,
    largest: UpperBounds,
    expressions: Arena<Expression>,
    /// Replacement of each original expression.
    new: Vec<Replacement>,
}

impl FunctionRewriter<'_> {
    fn at(&self, old: Handle<Expression>) -> Handle<Expression> {
        self.new[old.index()].handle
    }

    fn maybe(&self, old: Option<Handle<Expression>>) -> Option<Handle<Expression>> {
        old.map(|h| self.at(h))
    }

    fn append(&mut self, expression: Expression) -> Handle<Expression> {
        self.expressions.append(expression, Span::UNDEFINED)
    }

    fn number(&mut self, value: u32) -> Handle<Expression> {
        self.append(Expression::Literal(Literal::U32(value)))
    }

    fn ty(&self, old: Handle<Expression>) -> &TypeInner {
        self.info[old].ty.inner_with(self.cx.types)
    }

    /// Returns the number of elements of the buffer that a pointer to a whole array refers to.
    fn length_of_buffer(&self, pointer: Handle<Expression>) -> Result<u32, String> {
        match self.old.expressions[pointer] {
            Expression::GlobalVariable(variable) => {
                let length = self.cx.lengths.get(&variable).copied();
                length.ok_or_else(|| "it uses a buffer that it does not declare".into())
            }
            _ => Err("it accesses the array of a buffer through something other than the buffer's variable".into()),
        }
    }

    /// Returns the number of elements of an indexed value.
    fn length(&self, base: Handle<Expression>) -> Result<u32, String> {
        let of = |inner: &TypeInner| match *inner {
            TypeInner::Array { size, .. } => match size {
                ArraySize::Constant(length) => Ok(length.get()),
                ArraySize::Dynamic => self.length_of_buffer(base),
                ArraySize::Pending(_) => Err("an array has a length that is not a constant".into()),
            },
            TypeInner::Vector { size, .. } => Ok(size as u32),
            TypeInner::Matrix { columns, .. } => Ok(columns as u32),
            ref other => Err(format!("it indexes {other:?}")),
        };
        match *self.ty(base) {
            TypeInner::Pointer { base, .. } => of(&self.cx.types[base].inner),
            TypeInner::ValuePointer { size: Some(size), .. } => Ok(VectorSize::into(size)),
            ref inner => of(inner),
        }
    }

    fn expression(&mut self, old: &Expression) -> Result<Replacement, String> {
        let mut evaluated = Vec::new();
        let expression = match *old {
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::ZeroValue(_)
            | Expression::FunctionArgument(_)
            | Expression::GlobalVariable(_)
            | Expression::LocalVariable(_)
            // Evaluated by the call.
            | Expression::CallResult(_) => {
                let handle = self.append(old.clone());
                return Ok(Replacement { handle, evaluated });
            }
            Expression::ArrayLength(array) => {
                let length = self.length_of_buffer(array)?;
                let handle = self.number(length);
                return Ok(Replacement { handle, evaluated });
            }
            Expression::Access { base, index } => {
                let last = self.length(base)?.saturating_sub(1);
                let index = self.bounded(index, last, &mut evaluated)?;
                Expression::Access {
                    base: self.at(base),
                    index,
                }
            }
            Expression::AccessIndex { base, index } => {
                let is_buffer = matches!(*self.ty(base), TypeInner::Pointer { base, .. }
                    if matches!(self.cx.types[base].inner, TypeInner::Array { size: ArraySize::Dynamic, .. }));
                let index = if is_buffer {
index.min(self.length(base)?.saturating_sub(1))
} else {
// A constant index that is too large for any other type would be invalid.
index
};
                Expression::AccessIndex {
                    base: self.at(base),
                    index,
                }
            }
            _ => self.computed(old)?,
        };
        let handle = self.append(expression);
        evaluated.push(handle);
        Ok(Replacement { handle, evaluated })
    }

    /// Rewrites an expression that creates no pointer. It accesses memory only through pointers that are already
    /// rewritten.
    fn computed(&mut self, old: &Expression) -> Result<Expression, String> {
        Ok(match *old {
            Expression::Compose { ty, ref components } => Expression::Compose {
                ty,
                components: components.iter().map(|&h| self.at(h)).collect(),
            },
            Expression::Splat { size, value } => Expression::Splat {
                size,
                value: self.at(value),
            },
            Expression::Swizzle { size, vector, pattern } => Expression::Swizzle {
                size,
                vector: self.at(vector),
                pattern,
            },
            Expression::Load { pointer } => Expression::Load {
                pointer: self.at(pointer),
            },
            Expression::Unary { op, expr } => Expression::Unary {
                op,
                expr: self.at(expr),
            },
            Expression::Binary { op, left, right } => Expression::Binary {
                op,
                left: self.at(left),
                right: self.at(right),
            },
            Expression::Select {
                condition,
                accept,
                reject,
            } => Expression::Select {
                condition: self.at(condition),
                accept: self.at(accept),
                reject: self.at(reject),
            },
            Expression::Relational { fun, argument } => Expression::Relational {
                fun,
                argument: self.at(argument),
            },
            Expression::Math {
                fun,
                arg,
                arg1,
                arg2,
                arg3,
            } => Expression::Math {
                fun,
                arg: self.at(arg),
                arg1: self.maybe(arg1),
                arg2: self.maybe(arg2),
                arg3: self.maybe(arg3),
            },
            Expression::As { expr, kind, convert } => Expression::As {
                expr: self.at(expr),
                kind,
                convert,
            },
            ref other => {
                return Err(format!(
                    "it uses a feature that kernels must not use here: {}",
                    kind(other)
                ));
            }
        })
    }

    /// Returns an index clamped to the last element.
    fn bounded(
        &mut self,
        index: Handle<Expression>,
        last: u32,
        evaluated: &mut Vec<Handle<Expression>>,
    ) -> Result<Handle<Expression>, String> {
        let mut number = self.at(index);
        match self.ty(index).scalar_kind() {
            Some(ScalarKind::Uint) => {}
            // Negative indices become large.
            Some(ScalarKind::Sint) => {
                number = self.append(Expression::As {
                    expr: number,
                    kind: ScalarKind::Uint,
                    convert: None,
                });
                evaluated.push(number);
            }
            other => return Err(format!("an index is {other:?}")),
        }
        let last = self.number(last);
        let least = self.append(Expression::Math {
            fun: MathFunction::Min,
            arg: number,
            arg1: Some(last),
            arg2: None,
            arg3: None,
        });
        evaluated.push(least);
        Ok(least)
    }

    fn block(&mut self, old: &Block) -> Result<Block, String> {
        let mut block = Block::with_capacity(old.len());
        for statement in old.iter() {
            self.statement(statement, &mut block)?;
        }
        Ok(block)
    }

    fn statement(&mut self, old: &Statement, block: &mut Block) -> Result<(), String> {
        let statement = match *old {
            Statement::Emit(ref range) => {
                let all: Vec<Handle<Expression>> = range
                    .clone()
                    .flat_map(|h| self.new[h.index()].evaluated.clone())
                    .collect();
                emit(&all, block);
                return Ok(());
            }
            Statement::Block(ref inner) => Statement::Block(self.block(inner)?),
            Statement::If {
                condition,
                ref accept,
                ref reject,
            } => Statement::If {
                condition: self.at(condition),
                accept: self.block(accept)?,
                reject: self.block(reject)?,
            },
            Statement::Switch { selector, ref cases } => {
                let case = |case: &SwitchCase| {
                    Ok(SwitchCase {
                        body: self.block(&case.body)?,
                        ..case.clone()
                    })
                };
                let cases: Result<_, String> = cases.iter().map(case).collect();
                Statement::Switch {
                    selector: self.at(selector),
                    cases: cases?,
                }
            }
            Statement::Loop {
                ref body,
                ref continuing,
                break_if,
            } => {
                let mut counted = self.counted(body, continuing);
                counted.append(&mut self.block(body)?);
                Statement::Loop {
                    body: counted,
                    continuing: self.block(continuing)?,
                    break_if: self.maybe(break_if),
                }
            }
            Statement::Break | Statement::Continue | Statement::ControlBarrier(_) => old.clone(),
            Statement::Return { value } => Statement::Return {
                value: self.maybe(value),
            },
            Statement::Store { pointer, value } => Statement::Store {
                pointer: self.at(pointer),
                value: self.at(value),
            },
            Statement::Call {
                function,
                ref arguments,
                result,
            } => Statement::Call {
                function,
                arguments: arguments.iter().map(|&h| self.at(h)).collect(),
                result: self.maybe(result),
            },
            ref other => {
                return Err(format!(
                    "it contains a statement that kernels must not contain here: {}",
                    kind(other)
                ));
            }
        };
        block.push(statement, Span::UNDEFINED);
        Ok(())
    }

    /// Returns the statements that count an iteration, for the beginning of a loop's body.
    fn counted(&mut self, body: &Block, continuing: &Block) -> Block {
        let work = self.cx.work;
        let seen = work.rounds(self.old, &self.largest, body, continuing).is_some();
        match self.cx.counters.filter(|_| !seen) {
            None => Block::new(),
            Some(counters) => {
                let parts = work.round(self.old, &self.largest, body, continuing).parts;
                let together = has_barrier(body) || has_barrier(continuing);
                counters.count_round(&mut self.expressions, parts, together)
            }
        }
    }
}

/// Returns the name of an enum variant, for messages.
fn kind(of: &impl std::fmt::Debug) -> String {
    let text = format!("{of:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

/// Adds statements that evaluate these expressions, whose handles need not be consecutive.
pub(super) fn emit(all: &[Handle<Expression>], block: &mut Block) {
    let mut rest = all;
    while let Some(&first) = rest.first() {
        let follows = |i: &usize| rest[*i].index() == rest[*i - 1].index() + 1;
        let count = 1 + (1..rest.len()).take_while(follows).count();
        let range = Range::new_from_bounds(first, rest[count - 1]);
        block.push(Statement::Emit(range), Span::UNDEFINED);
        rest = &rest[count..];
    }
}
