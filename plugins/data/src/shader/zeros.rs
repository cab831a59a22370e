//! Initialization of workgroup memory with zeros, which WGSL requires. Executors leave stale data of other kernels
//! there. A kernel must not read them, and results must not depend on them.

use naga::{
    AddressSpace, Arena, ArraySize, Barrier, BinaryOperator, Binding, Block, BuiltIn, Expression, Function,
    FunctionArgument, GlobalVariable, Handle, Literal, LocalVariable, MathFunction, Module, Span, Statement, Type,
    TypeInner, UniqueArena,
};

use super::limits::word;
use super::rewrite::emit;

/// Returns the number of loop iterations that each of `threads` threads needs to fill the workgroup memory.
pub(super) fn rounds(module: &Module, threads: u32) -> u64 {
    let shared = module.global_variables.iter();
    let shared = shared.filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let rounds = shared.map(|(_, v)| match module.types[v.ty].inner {
        TypeInner::Array {
            size: ArraySize::Constant(len),
            ..
        } => 1 + u64::from(len.get().div_ceil(threads.max(1))),
        _ => 0,
    });
    rounds.sum()
}

/// Adds code to the entry point: the threads of a workgroup first fill its memory with zeros.
pub(super) fn begin_with_zeros(module: &mut Module) {
    let shared = module.global_variables.iter();
    let shared = shared.filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let shared: Vec<(Handle<GlobalVariable>, Handle<Type>)> = shared.map(|(h, v)| (h, v.ty)).collect();
    if shared.is_empty() {
        return;
    }
    let word = word(module);
    for entry in &mut module.entry_points {
        let threads = entry.workgroup_size.iter().product();
        let mut filling = ZeroFiller {
            types: &module.types,
            word,
            threads,
            thread: thread(&mut entry.function, word),
            function: &mut entry.function,
            block: Block::new(),
        };
        shared.iter().for_each(|&(variable, ty)| filling.fill(variable, ty));
        let mut block = filling.block;
        push(&mut block, Statement::ControlBarrier(Barrier::WORK_GROUP));
        block.append(&mut entry.function.body);
        entry.function.body = block;
    }
}

fn push(block: &mut Block, statement: Statement) {
    block.push(statement, Span::UNDEFINED);
}

/// Returns the argument of an entry point that contains the thread's index in its workgroup. Adds the argument if
/// necessary.
fn thread(function: &mut Function, word: Handle<Type>) -> Handle<Expression> {
    let binding = Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex));
    let known = function.arguments.iter().position(|a| a.binding == binding);
    let number = known.unwrap_or_else(|| {
        function.arguments.push(FunctionArgument {
            name: None,
            ty: word,
            binding,
        });
        function.arguments.len() - 1
    });
    append(&mut function.expressions, Expression::FunctionArgument(number as u32))
}

fn append(expressions: &mut Arena<Expression>, expression: Expression) -> Handle<Expression> {
    expressions.append(expression, Span::UNDEFINED)
}

struct ZeroFiller<'a> {
    types: &'a UniqueArena<Type>,
    word: Handle<Type>,
    threads: u32,
    thread: Handle<Expression>,
    function: &'a mut Function,
    block: Block,
}

impl ZeroFiller<'_> {
    fn append(&mut self, expression: Expression) -> Handle<Expression> {
        append(&mut self.function.expressions, expression)
    }

    fn number(&mut self, value: u32) -> Handle<Expression> {
        self.append(Expression::Literal(Literal::U32(value)))
    }

    fn binary(
        &mut self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Handle<Expression> {
        self.append(Expression::Binary { op, left, right })
    }

    fn fill(&mut self, variable: Handle<GlobalVariable>, ty: Handle<Type>) {
        match self.types[ty].inner {
            TypeInner::Array {
                base,
                size: ArraySize::Constant(len),
                ..
            } => self.fill_array(variable, base, len.get()),
            _ => self.fill_one(variable, ty),
        }
    }

    /// Adds statements that fill a variable, in the first thread.
    fn fill_one(&mut self, variable: Handle<GlobalVariable>, ty: Handle<Type>) {
        let pointer = self.append(Expression::GlobalVariable(variable));
        let value = self.append(Expression::ZeroValue(ty));
        let zero = self.number(0);
        let is_first = self.binary(BinaryOperator::Equal, self.thread, zero);
        emit(&[is_first], &mut self.block);
        let store = Statement::If {
            condition: is_first,
            accept: Block::from_vec(vec![Statement::Store { pointer, value }]),
            reject: Block::new(),
        };
        push(&mut self.block, store);
    }

    /// Adds statements that fill an array in all threads, each beginning at its index.
    fn fill_array(&mut self, variable: Handle<GlobalVariable>, base: Handle<Type>, len: u32) {
        let local = LocalVariable {
            name: Some("cleared".into()),
            ty: self.word,
            init: None,
        };
        let local = self.function.local_variables.append(local, Span::UNDEFINED);
        let [counter, array, zero] = [
            Expression::LocalVariable(local),
            Expression::GlobalVariable(variable),
            Expression::ZeroValue(base),
        ]
        .map(|e| self.append(e));
        let [length, last, step] = [len, len - 1, self.threads].map(|n| self.number(n));
        push(
            &mut self.block,
            Statement::Store {
                pointer: counter,
                value: self.thread,
            },
        );

        let at = self.append(Expression::Load { pointer: counter });
        let done = self.binary(BinaryOperator::GreaterEqual, at, length);
        let mut body = Block::new();
        emit(&[at, done], &mut body);
        let leave = Statement::If {
            condition: done,
            accept: Block::from_vec(vec![Statement::Break]),
            reject: Block::new(),
        };
        push(&mut body, leave);
        // Clamped like all other indices.
        let within = self.append(Expression::Math {
            fun: MathFunction::Min,
            arg: at,
            arg1: Some(last),
            arg2: None,
            arg3: None,
        });
        let pointer = self.append(Expression::Access {
            base: array,
            index: within,
        });
        emit(&[within, pointer], &mut body);
        push(&mut body, Statement::Store { pointer, value: zero });

        let before = self.append(Expression::Load { pointer: counter });
        let after = self.binary(BinaryOperator::Add, before, step);
        let mut continuing = Block::new();
        emit(&[before, after], &mut continuing);
        push(
            &mut continuing,
            Statement::Store {
                pointer: counter,
                value: after,
            },
        );
        let fill = Statement::Loop {
            body,
            continuing,
            break_if: None,
        };
        push(&mut self.block, fill);
    }
}
