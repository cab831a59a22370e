//! Translation of operators, conversions and comparisons.

use naga::{BinaryOperator, Expression, Handle, Literal, RelationalFunction, ScalarKind, TypeInner, UnaryOperator};

use super::body::Body;
use super::context::Part;
use super::error::{Result, WriteError};

/// Returns the C++ operator, and the name of the prelude's function for types that do not have this operator.
fn operator(op: BinaryOperator) -> (&'static str, &'static str) {
    match op {
        BinaryOperator::Add => ("+", "add"),
        BinaryOperator::Subtract => ("-", "sub"),
        BinaryOperator::Multiply => ("*", "mul"),
        BinaryOperator::Divide => ("/", "div"),
        BinaryOperator::Modulo => ("%", "rem"),
        BinaryOperator::Equal => ("==", "equal"),
        BinaryOperator::NotEqual => ("!=", "not_equal"),
        BinaryOperator::Less => ("<", "less"),
        BinaryOperator::LessEqual => ("<=", "less_equal"),
        BinaryOperator::Greater => (">", "greater"),
        BinaryOperator::GreaterEqual => (">=", "greater_equal"),
        BinaryOperator::And => ("&", "bit_and"),
        BinaryOperator::ExclusiveOr => ("^", "bit_xor"),
        BinaryOperator::InclusiveOr => ("|", "bit_or"),
        BinaryOperator::LogicalAnd => ("&&", "bit_and"),
        BinaryOperator::LogicalOr => ("||", "bit_or"),
        BinaryOperator::ShiftLeft => ("<<", "shl"),
        BinaryOperator::ShiftRight => (">>", "shr"),
    }
}

impl Body<'_> {
    pub(super) fn unary(&self, op: UnaryOperator, operand: Handle<Expression>) -> Result<String> {
        let value = self.value(operand)?;
        let scalar = self.single(operand);
        Ok(match op {
            UnaryOperator::Negate if scalar == Some((ScalarKind::Float, 4)) => format!("(-{value})"),
            UnaryOperator::Negate => format!("wgsl::neg({value})"),
            UnaryOperator::LogicalNot if scalar.is_some() => format!("(!{value})"),
            UnaryOperator::LogicalNot => format!("wgsl::logical_not({value})"),
            UnaryOperator::BitwiseNot if scalar.is_some() => format!("(~{value})"),
            UnaryOperator::BitwiseNot => format!("wgsl::bit_not({value})"),
        })
    }

    pub(super) fn binary(
        &self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<String> {
        let (symbol, function) = operator(op);
        let (a, b) = (self.value(left)?, self.value(right)?);
        Ok(if self.has_operator(op, left, right) {
            format!("({a} {symbol} {b})")
        } else {
            format!("wgsl::{function}({a}, {b})")
        })
    }

    /// Returns `true` if the C++ operator has the same result as the WGSL operator for these operands.
    fn has_operator(&self, op: BinaryOperator, left: Handle<Expression>, right: Handle<Expression>) -> bool {
        use BinaryOperator as Op;
        // Only scalars have C++ operators. Half-precision numbers are a structure.
        let (Some((kind, width)), Some(_)) = (self.single(left), self.single(right)) else {
            return false;
        };
        let by = self.number(right);
        match (op, kind) {
            (_, ScalarKind::Float) if width != 4 => false,
            (Op::Modulo, ScalarKind::Float) => false,
            (Op::Add | Op::Subtract | Op::Multiply, ScalarKind::Sint) => false,
            // The divisor is a constant without special cases.
            (Op::Divide | Op::Modulo, ScalarKind::Uint) => by.is_some_and(|by| by != 0),
            (Op::Divide | Op::Modulo, ScalarKind::Sint) => by.is_some_and(|by| by > 0),
            (Op::ShiftLeft, ScalarKind::Sint) => false,
            (Op::ShiftLeft | Op::ShiftRight, _) => by.is_some_and(|by| (0..32).contains(&by)),
            (Op::And | Op::InclusiveOr | Op::ExclusiveOr, ScalarKind::Bool) => false,
            _ => true,
        }
    }

    /// Returns the kind and the width of a scalar, or `None` for other types.
    fn single(&self, handle: Handle<Expression>) -> Option<(ScalarKind, u8)> {
        match *self.inner(handle) {
            TypeInner::Scalar(scalar) => Some((scalar.kind, scalar.width)),
            _ => None,
        }
    }

    /// Returns the value of a constant integer.
    pub(super) fn number(&self, handle: Handle<Expression>) -> Option<i64> {
        let literal = |expression: &Expression| match *expression {
            Expression::Literal(Literal::U32(value)) => Some(i64::from(value)),
            Expression::Literal(Literal::I32(value)) => Some(i64::from(value)),
            _ => None,
        };
        match *self.function.expressions.try_get(handle).ok()? {
            Expression::Constant(constant) => {
                let init = self.cx.module.constants[constant].init;
                literal(self.cx.module.global_expressions.try_get(init).ok()?)
            }
            ref other => literal(other),
        }
    }

    pub(super) fn select(
        &self,
        condition: Handle<Expression>,
        accept: Handle<Expression>,
        reject: Handle<Expression>,
    ) -> Result<String> {
        let (c, a, b) = (self.value(condition)?, self.value(accept)?, self.value(reject)?);
        Ok(match self.single(condition) {
            Some(_) => format!("({c} ? {a} : {b})"),
            None => format!("wgsl::select({c}, {a}, {b})"),
        })
    }

    pub(super) fn relational(&self, fun: RelationalFunction, argument: Handle<Expression>) -> Result<String> {
        let name = match fun {
            RelationalFunction::All => "all",
            RelationalFunction::Any => "any",
            RelationalFunction::IsNan => "is_nan",
            RelationalFunction::IsInf => "is_inf",
        };
        Ok(format!("wgsl::{name}({})", self.value(argument)?))
    }

    /// Returns the C++ code of a value as another type, either converted or with the same bits.
    pub(super) fn convert(&self, operand: Handle<Expression>, kind: ScalarKind, convert: Option<u8>) -> Result<String> {
        let from = match *self.inner(operand) {
            TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => scalar,
            ref other => return Err(WriteError::unsupported(format!("conversions of the type {other:?}"))),
        };
        let width = convert.unwrap_or(from.width);
        let to = self.cx.scalar(naga::Scalar { kind, width })?;
        if to == "f16" || self.cx.scalar(from)? == "f16" {
            self.cx.needs(Part::Half);
        }
        let how = if convert.is_some() { "to" } else { "bits" };
        Ok(format!("wgsl::{how}_{to}({})", self.value(operand)?))
    }
}
