//! Analysis of a thread's maximum work in a kernel, counted in evaluated statements and expressions ("parts").
//!
//! Loops that provably end count with all of their iterations: loops over a number that grows by
//! steps up to a bounded one, and loops over a number that is divided until it is zero. Other loops
//! must be counted at run time.

use std::collections::HashMap;

use naga::{
    BinaryOperator, Block, Constant, Expression, Function, Handle, Literal, LocalVariable, MathFunction, Module,
    Scalar, Statement, Type, TypeInner,
};

use super::check::statements;

/// Upper bound of a 32-bit number about which nothing is proven.
const ANY: u64 = u32::MAX as u64;
/// Maximum number of iterations of a loop that divides a 32-bit number by at least two until it is zero.
const HALVINGS: u64 = 33;
/// Number of parts that counting an iteration costs.
const COUNTING: u64 = 4;

/// Result of the analysis of a module.
pub(super) struct Work {
    /// Values of integer constants.
    constants: HashMap<Handle<Constant>, u64>,
    /// Type `u32`, if the module uses it.
    word: Option<Handle<Type>>,
    /// Cost of a call of each function, without iterations that are counted at run time.
    functions: Vec<Cost>,
    /// Cost of a thread, without iterations that are counted at run time.
    thread: Cost,
    /// `true` if loops that provably end are not counted at run time.
    sees_ends: bool,
}

/// Upper bound of work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Number of evaluated statements and expressions.
    pub(super) parts: u64,
    /// Number of loop iterations.
    pub(super) rounds: u64,
}

impl Cost {
    fn parts(parts: u64) -> Self {
        Cost { parts, rounds: 0 }
    }

    fn and(self, other: Cost) -> Self {
        Cost {
            parts: self.parts.saturating_add(other.parts),
            rounds: self.rounds.saturating_add(other.rounds),
        }
    }

    fn times(self, count: u64) -> Self {
        Cost {
            parts: self.parts.saturating_mul(count),
            rounds: self.rounds.saturating_mul(count),
        }
    }

    fn is_within(&self, most: &Cost) -> bool {
        self.parts <= most.parts && self.rounds <= most.rounds
    }
}

/// Upper bound of each expression of a function that has the type `u32`.
pub(super) struct UpperBounds(Vec<u64>);

impl Work {
    /// Computes the work of a valid module. If loops that provably end take more than `most`, they
    /// are also counted at run time, so that a kernel that leaves them early is allowed.
    pub(super) fn of(module: &Module, most: &Cost) -> Self {
        let work = Work::counted(module, true);
        if work.thread.is_within(most) {
            work
        } else {
            Work::counted(module, false)
        }
    }

    fn counted(module: &Module, sees_ends: bool) -> Self {
        let integer = |c: &Constant| match module.global_expressions[c.init] {
            Expression::Literal(literal) => integer(literal),
            _ => None,
        };
        let constants = module.constants.iter().filter_map(|(h, c)| Some((h, integer(c)?)));
        let is_word = |ty: &Type| matches!(ty.inner, TypeInner::Scalar(Scalar::U32));
        let mut work = Work {
            constants: constants.collect(),
            word: module.types.iter().find(|(_, ty)| is_word(ty)).map(|(h, _)| h),
            functions: Vec::new(),
            thread: Cost::default(),
            sees_ends,
        };
        // Functions come before their callers.
        for (_, function) in module.functions.iter() {
            let cost = work.block(function, &work.largest(function), &function.body);
            work.functions.push(cost);
        }
        for entry in &module.entry_points {
            let function = &entry.function;
            work.thread = work.block(function, &work.largest(function), &function.body);
        }
        work
    }

    /// Returns the cost of a thread. It excludes loops that are not proven to end: the kernel counts their iterations at
    /// run time.
    pub(super) fn thread(&self) -> Cost {
        self.thread
    }

    /// Returns the cost of one iteration of a loop. It excludes nested loops that are not proven to end, as
    /// [`thread`](Self::thread) does.
    pub(super) fn round(&self, function: &Function, largest: &UpperBounds, body: &Block, continuing: &Block) -> Cost {
        let own = Cost {
            parts: COUNTING,
            rounds: 1,
        };
        let both = [body, continuing].map(|block| self.block(function, largest, block));
        both.into_iter().fold(own, Cost::and)
    }

    fn block(&self, function: &Function, largest: &UpperBounds, block: &Block) -> Cost {
        let of = |block: &Block| self.block(function, largest, block);
        let one = Cost::parts(1);
        let costs = block.iter().map(|statement| match statement {
            Statement::Emit(range) => Cost::parts(range.clone().count() as u64),
            Statement::Block(inner) => of(inner),
            Statement::If { accept, reject, .. } => one.and(of(accept)).and(of(reject)),
            Statement::Switch { cases, .. } => cases.iter().map(|case| of(&case.body)).fold(one, Cost::and),
            Statement::Loop { body, continuing, .. } => match self.rounds(function, largest, body, continuing) {
                // The last iteration ends at its beginning.
                Some(rounds) => self.round(function, largest, body, continuing).times(rounds + 1),
                None => Cost::parts(COUNTING),
            },
            Statement::Call { function, .. } => {
                let unknown = Cost::parts(u64::MAX);
                one.and(self.functions.get(function.index()).copied().unwrap_or(unknown))
            }
            _ => one,
        });
        costs.fold(Cost::default(), Cost::and)
    }

    /// Returns the maximum number of iterations of a loop, if it provably ends: a comparison at the beginning of each
    /// iteration leaves it, and only the loop's update changes the compared variable.
    pub(super) fn rounds(
        &self,
        function: &Function,
        largest: &UpperBounds,
        body: &Block,
        continuing: &Block,
    ) -> Option<u64> {
        if !self.sees_ends {
            return None;
        }
        let Expression::Binary { op, left, right } = function.expressions[stays_while(body)?] else {
            return None;
        };
        let (variable, op, limit) = match (loaded(function, left), loaded(function, right)) {
            (Some(variable), _) if self.is_word(function, variable) => (variable, op, right),
            (_, Some(variable)) if self.is_word(function, variable) => (variable, turned(op)?, left),
            _ => return None,
        };
        let mut changed = false;
        statements(body, &mut |s| changed |= stores_to(function, s) == Some(variable));
        if changed {
            return None;
        }
        let update = self.update(function, variable, continuing)?;
        let most = largest.0[limit.index()];
        match (update, op) {
            (Update::Grows(step), BinaryOperator::Less) => rounds_up_to(most, step),
            (Update::Grows(step), BinaryOperator::LessEqual) => rounds_up_to(most + 1, step),
            (Update::Shrinks, BinaryOperator::Greater) => Some(HALVINGS),
            (Update::Shrinks, BinaryOperator::NotEqual) if self.exact(function, limit) == Some(0) => Some(HALVINGS),
            (Update::Shrinks, BinaryOperator::GreaterEqual) if self.exact(function, limit)? > 0 => Some(HALVINGS),
            _ => None,
        }
    }

    fn is_word(&self, function: &Function, variable: Handle<LocalVariable>) -> bool {
        self.word == Some(function.local_variables[variable].ty)
    }

    /// Returns the change of a variable at the end of an iteration, if there is exactly one, and it makes the variable
    /// grow or shrink.
    fn update(&self, function: &Function, variable: Handle<LocalVariable>, continuing: &Block) -> Option<Update> {
        let mut stores = Vec::new();
        statements(continuing, &mut |s| {
            if stores_to(function, s) == Some(variable) {
                stores.push(s);
            }
        });
        // An update in a branch may be skipped.
        let own = continuing.iter().find(|s| stores_to(function, s) == Some(variable));
        let (1, Some(Statement::Store { value, .. })) = (stores.len(), own) else {
            return None;
        };
        let Expression::Binary { op, left, right } = function.expressions[*value] else {
            return None;
        };
        let (is_left, is_right) = (
            loaded(function, left) == Some(variable),
            loaded(function, right) == Some(variable),
        );
        match op {
            BinaryOperator::Add if is_left => self.exact(function, right).filter(|&n| n > 0).map(Update::Grows),
            BinaryOperator::Add if is_right => self.exact(function, left).filter(|&n| n > 0).map(Update::Grows),
            BinaryOperator::Divide if is_left => {
                self.exact(function, right).filter(|&n| n > 1).map(|_| Update::Shrinks)
            }
            BinaryOperator::ShiftRight if is_left => {
                let by = self.exact(function, right).filter(|&n| (1..32).contains(&n));
                by.map(|_| Update::Shrinks)
            }
            _ => None,
        }
    }

    /// Returns the value of a constant.
    fn exact(&self, function: &Function, handle: Handle<Expression>) -> Option<u64> {
        match function.expressions[handle] {
            Expression::Literal(literal) => integer(literal),
            Expression::Constant(constant) => self.constants.get(&constant).copied(),
            _ => None,
        }
    }

    /// Returns upper bounds of a function's expressions.
    pub(super) fn largest(&self, function: &Function) -> UpperBounds {
        let mut largest: Vec<u64> = Vec::with_capacity(function.expressions.len());
        // Operands come before their users.
        for (handle, expression) in function.expressions.iter() {
            let of = |h: Handle<Expression>| largest[h.index()];
            let value = match *expression {
                Expression::Literal(_) | Expression::Constant(_) => self.exact(function, handle).unwrap_or(ANY),
                Expression::Binary { op, left, right } => {
                    let (a, b) = (of(left), of(right));
                    match op {
                        BinaryOperator::Add => a + b,
                        BinaryOperator::Multiply => a.saturating_mul(b),
                        BinaryOperator::Divide => a / self.exact(function, right).unwrap_or(1).max(1),
                        // A modulus of zero gives zero.
                        BinaryOperator::Modulo => a.min(b.saturating_sub(1)),
                        BinaryOperator::And => a.min(b),
                        BinaryOperator::ShiftRight => a,
                        _ => ANY,
                    }
                }
                Expression::Math {
                    fun: MathFunction::Min,
                    arg,
                    arg1: Some(other),
                    ..
                } => of(arg).min(of(other)),
                Expression::Math {
                    fun: MathFunction::Max,
                    arg,
                    arg1: Some(other),
                    ..
                } => of(arg).max(of(other)),
                Expression::Select { accept, reject, .. } => of(accept).max(of(reject)),
                _ => ANY,
            };
            // A larger value wraps around to any value.
            largest.push(value.min(ANY));
        }
        UpperBounds(largest)
    }
}

/// Change of a loop variable from one iteration to the next.
enum Update {
    Grows(u64),
    Shrinks,
}

/// Returns the number of iterations while a variable that grows by `step` is below a limit; `None` if it could wrap
/// around.
fn rounds_up_to(limit: u64, step: u64) -> Option<u64> {
    (limit + step <= ANY).then(|| limit.div_ceil(step))
}

fn integer(literal: Literal) -> Option<u64> {
    match literal {
        Literal::U32(v) => Some(u64::from(v)),
        Literal::I32(v) => u64::try_from(v).ok(),
        _ => None,
    }
}

/// Returns the equivalent comparison for swapped operands.
fn turned(op: BinaryOperator) -> Option<BinaryOperator> {
    Some(match op {
        BinaryOperator::Less => BinaryOperator::Greater,
        BinaryOperator::LessEqual => BinaryOperator::GreaterEqual,
        BinaryOperator::Greater => BinaryOperator::Less,
        BinaryOperator::GreaterEqual => BinaryOperator::LessEqual,
        BinaryOperator::NotEqual => BinaryOperator::NotEqual,
        _ => return None,
    })
}

/// Returns the condition for continuing a loop, if its iterations begin with a check.
fn stays_while(body: &Block) -> Option<Handle<Expression>> {
    let first = body.iter().find(|s| !matches!(s, Statement::Emit(_)))?;
    match first {
        Statement::If {
            condition,
            accept,
            reject,
        } if accept.is_empty() && matches!(reject.iter().as_slice(), [Statement::Break]) => Some(*condition),
        _ => None,
    }
}

/// Returns the variable that an expression reads.
fn loaded(function: &Function, handle: Handle<Expression>) -> Option<Handle<LocalVariable>> {
    match function.expressions[handle] {
        Expression::Load { pointer } => local(function, pointer),
        _ => None,
    }
}

fn local(function: &Function, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
    match function.expressions[pointer] {
        Expression::LocalVariable(variable) => Some(variable),
        _ => None,
    }
}

/// Returns the variable that a statement writes. (Functions take no pointers.)
fn stores_to(function: &Function, statement: &Statement) -> Option<Handle<LocalVariable>> {
    match statement {
        Statement::Store { pointer, .. } => local(function, *pointer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the work of a thread, and the number of iterations of the first loop if it provably ends.
    fn work(body: &str) -> (u64, Option<u64>) {
        let text = format!(
            "const n = 100u;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(64)\n\
             fn main(@builtin(local_invocation_index) i: u32) {{\n{body}\n}}"
        );
        let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));
        let work = Work::of(&module, &ANY_COST);
        let function = &module.entry_points[0].function;
        let largest = work.largest(function);
        let mut rounds = None;
        statements(&function.body, &mut |s| {
            if let Statement::Loop { body, continuing, .. } = s {
                rounds = rounds.or(work.rounds(function, &largest, body, continuing));
            }
        });
        (work.thread().parts, rounds)
    }

    const ANY_COST: Cost = Cost {
        parts: u64::MAX,
        rounds: u64::MAX,
    };

    #[test]
    fn loops_with_an_end_are_seen() {
        for (body, rounds) in [
            ("for (var k = 0u; k < n; k += 1u) { y[k] = 1.0; }", 100),
            ("for (var k = i; n > k; k++) { y[k] = 1.0; }", 100),
            ("for (var k = i; k <= n; k += 64u) { y[k] = 1.0; }", 2),
            (
                "let most = min(i * 7u, 30u); for (var k = 0u; k < most * 2u; k = 4u + k) { y[k] = 1.0; }",
                15,
            ),
            (
                "for (var k = 0u; k < i % 9u; k += 1u) { if (y[k] > 0.0) { continue; } y[k] = 1.0; }",
                8,
            ),
            (
                "for (var half = 32u; half > 0u; half /= 2u) { y[half] = 1.0; }",
                HALVINGS,
            ),
            (
                "for (var half = i; half != 0u; half >>= 1u) { y[half] = 1.0; }",
                HALVINGS,
            ),
        ] {
            assert_eq!(work(body).1, Some(rounds), "{body}");
        }
    }

    #[test]
    fn others_are_not() {
        for body in [
            "loop { if (i > 3u) { break; } }",
            "for (var k = 0u; k < i; k += 1u) { y[k] = 1.0; }",
            "for (var k = 0u; k < n; k += 0u) { y[k] = 1.0; }",
            "for (var k = 0u; k < n; k += i) { y[k] = 1.0; }",
            "for (var k = 0u; k < n; k += 1u) { y[k] = 1.0; k = 0u; }",
            "for (var k = 0u; k < n; k += 1u) { if (y[k] > 0.0) { k -= 1u; } }",
            "for (var k = 0u; k < n; k -= 1u) { y[k] = 1.0; }",
            // The variable wraps around before it reaches the limit.
            "for (var k = 0u; k < 4294967295u; k += 2u) { y[k] = 1.0; }",
            "for (var k = 0u; k <= 4294967295u; k += 1u) { y[k] = 1.0; }",
            "for (var k = 0u; k < min(i, 7u) - 9u; k += 1u) { y[k] = 1.0; }",
            "for (var k = 0; k < 9; k += 1) { y[k] = 1.0; }",
            "for (var k = i; k >= 0u; k /= 2u) { y[k] = 1.0; }",
            "for (var k = i; k > 0u; k /= 1u) { y[k] = 1.0; }",
            "for (var k = 0u; k < n; y[k] = 1.0) { }",
            "var m = n; for (var k = 0u; k < m; k += 1u) { m += 1u; }",
            "var k = 0u; while (k < n) { k += 1u; }",
        ] {
            assert_eq!(work(body).1, None, "{body}");
        }
    }

    #[test]
    fn rounds_within_rounds_multiply() {
        let of = |body: &str| work(body).0;
        let one = of("for (var k = 0u; k < 10u; k += 1u) { y[k] = 1.0; }");
        let two = of("for (var j = 0u; j < 10u; j += 1u) { for (var k = 0u; k < 10u; k += 1u) { y[k] = 1.0; } }");
        assert!(one >= 50 && two > 10 * one, "{one} {two}");
        // Loops that are counted at run time are not counted here.
        assert!(of("for (var j = 0u; j < 10u; j += 1u) { loop { if (y[j] > 0.0) { break; } y[j] = 1.0; } }") < two);
        let text = "fn f(a: u32) -> u32 { var s = 0u; for (var k = 0u; k < 50u; k += 1u) { s += a; } return s; }\n\
                    var<storage, read_write> y: array<u32>;\n@compute @workgroup_size(1) fn main() {\n\
                    for (var k = 0u; k < 20u; k += 1u) { y[k] = f(k); }\n}";
        let module = naga::front::wgsl::parse_str(text).expect("it is WGSL");
        let all = Work::of(&module, &ANY_COST).thread();
        assert!(
            all.parts > 20 * 50 && all.rounds > 20 * 50 && all.rounds < 22 * 53,
            "{all:?}"
        );
        // If that is too much, all of them are counted at run time.
        let few = [
            Cost { parts: 500, ..ANY_COST },
            Cost {
                rounds: 500,
                ..ANY_COST
            },
        ];
        for most in few {
            let left = Work::of(&module, &most).thread();
            assert!(left.parts < 100 && left.rounds == 0, "{left:?}");
        }
    }
}
