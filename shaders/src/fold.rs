//! WGSL code of reductions: combining two elements, and combining the elements of one thread.

use meganeura_core::DType;

use super::scalar::{literal, of_two};

/// Operation that combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    Sum,
    Product,
    Max,
    Min,
}

impl Fold {
    pub(super) fn of(name: &str) -> Result<Self, String> {
        match name {
            "core.sum" => Ok(Fold::Sum),
            "core.prod" => Ok(Fold::Product),
            "core.max_reduce" => Ok(Fold::Max),
            "core.min_reduce" => Ok(Fold::Min),
            _ => Err(format!("{name} is no reduction")),
        }
    }

    /// Returns the result for no elements: the neutral element.
    pub(super) fn start(self, dtype: DType) -> String {
        let bits = match (self, dtype) {
            (Fold::Sum, _) => 0,
            (Fold::Product, DType::U32 | DType::I32) => 1,
            (Fold::Product, _) => 1f32.to_bits(),
            (Fold::Max, DType::U32) => 0,
            (Fold::Max, DType::I32) => i32::MIN as u32,
            (Fold::Max, _) => f32::NEG_INFINITY.to_bits(),
            (Fold::Min, DType::U32) => u32::MAX,
            (Fold::Min, DType::I32) => i32::MAX as u32,
            (Fold::Min, _) => f32::INFINITY.to_bits(),
        };
        literal(dtype, bits)
    }

    /// Returns the combination of two elements.
    pub(super) fn join(self, dtype: DType, a: &str, b: &str) -> String {
        let operator = match self {
            Fold::Sum => "core.add",
            Fold::Product => "core.mul",
            Fold::Max => "core.max",
            Fold::Min => "core.min",
        };
        of_two(operator, dtype, a, b)
    }

    /// Returns the combination of terms [by pairwise reduction](pairwise).
    pub(super) fn join_all(self, dtype: DType, terms: impl Iterator<Item = String>) -> String {
        pairwise(terms, |a, b| format!("({})", self.join(dtype, a, b)))
    }
}

/// Returns the combination of terms by pairwise reduction, as WGSL. Rounding errors stay small, and the operations
/// form a tree of minimum depth.
pub(super) fn pairwise(terms: impl Iterator<Item = String>, join: impl Fn(&str, &str) -> String) -> String {
    let mut terms: Vec<String> = terms.collect();
    while terms.len() > 1 {
        let pairs = terms.chunks(2).map(|pair| match pair {
            [a, b] => join(a, b),
            _ => pair.concat(),
        });
        terms = pairs.collect();
    }
    terms.concat()
}

/// Returns the sum of two terms, in parentheses.
pub(super) fn sum(a: &str, b: &str) -> String {
    format!("({a} + {b})")
}
