//! The tables of integer operators, and their builder methods.

use super::integer::{IntBinary, IntUnary};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::OpRef;

/// All operators with two operands.
pub(super) static BINARY: &[IntBinary] = &[
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    SHIFT_LEFT,
    SHIFT_RIGHT,
    LOGICAL_AND,
    LOGICAL_OR,
    LOGICAL_XOR,
];

/// All operators with one operand.
pub(super) static UNARY: &[IntUnary] = &[BIT_NOT, LOGICAL_NOT];

/// Returns a scalar of the dtype of `like` with all bits set.
fn all_ones(g: &mut Graph, like: Value) -> NodeId {
    match g.dtype(like) {
        DType::U32 => g.scalar_of(DType::U32, f64::from(u32::MAX)),
        dtype => g.scalar_of(dtype, -1.0),
    }
}

/// Returns 1 where `x` is not 0.
fn truth(g: &mut Graph, x: Value) -> NodeId {
    let zero = g.scalar_of(DType::U32, 0.0);
    g.not_equal(x, zero)
}

const BIT_AND: IntBinary = IntBinary {
    name: "core.bit_and",
    formula: "the bits that are set in both a and b",
    reference: |a, b| a & b,
    signed: true,
    decompose: None,
    second_below: u32::MAX,
};

const BIT_OR: IntBinary = IntBinary {
    name: "core.bit_or",
    formula: "the bits that are set in a or b",
    reference: |a, b| a | b,
    signed: true,
    decompose: Some(|g, a, b| {
        // Addition counts the common bits twice.
        let sum = g.add(a, b);
        let common = g.bit_and(a, b);
        g.sub(sum, common).into()
    }),
    second_below: u32::MAX,
};

const BIT_XOR: IntBinary = IntBinary {
    name: "core.bit_xor",
    formula: "the bits in which a and b differ",
    reference: |a, b| a ^ b,
    signed: true,
    decompose: Some(|g, a, b| {
        let either = g.bit_or(a, b);
        let both = g.bit_and(a, b);
        g.sub(either, both).into()
    }),
    second_below: u32::MAX,
};

const SHIFT_LEFT: IntBinary = IntBinary {
    name: "core.shift_left",
    formula: "a 2^b without the bits above the word: 0 for b >= 32",
    reference: |a, b| a.checked_shl(b).unwrap_or(0),
    signed: false,
    decompose: None,
    second_below: 40,
};

const SHIFT_RIGHT: IntBinary = IntBinary {
    name: "core.shift_right",
    formula: "floor(a / 2^b): 0 for b >= 32",
    reference: |a, b| a.checked_shr(b).unwrap_or(0),
    signed: false,
    decompose: None,
    second_below: 40,
};

const LOGICAL_AND: IntBinary = IntBinary {
    name: "core.logical_and",
    formula: "1 where neither a nor b is 0, else 0",
    reference: |a, b| u32::from(a != 0 && b != 0),
    signed: false,
    decompose: Some(|g, a, b| {
        let (a, b) = (truth(g, a), truth(g, b));
        g.mul(a, b).into()
    }),
    second_below: 2,
};

const LOGICAL_OR: IntBinary = IntBinary {
    name: "core.logical_or",
    formula: "0 where both a and b are 0, else 1",
    reference: |a, b| u32::from(a != 0 || b != 0),
    signed: false,
    decompose: Some(|g, a, b| {
        let (a, b) = (truth(g, a), truth(g, b));
        g.maximum(a, b).into()
    }),
    second_below: 2,
};

const LOGICAL_XOR: IntBinary = IntBinary {
    name: "core.logical_xor",
    formula: "1 where exactly one of a and b is 0, else 0",
    reference: |a, b| u32::from((a != 0) != (b != 0)),
    signed: false,
    decompose: Some(|g, a, b| {
        let (a, b) = (truth(g, a), truth(g, b));
        g.not_equal(a, b).into()
    }),
    second_below: 2,
};

const BIT_NOT: IntUnary = IntUnary {
    name: "core.bit_not",
    formula: "every bit of x the other way",
    reference: |x| !x,
    signed: true,
    decompose: |g, x| {
        // Subtraction from a word of ones never borrows, so it inverts every bit.
        let ones = all_ones(g, x);
        g.sub(ones, x).into()
    },
};

const LOGICAL_NOT: IntUnary = IntUnary {
    name: "core.logical_not",
    formula: "1 where x is 0, else 0",
    reference: |x| u32::from(x == 0),
    signed: false,
    decompose: |g, x| {
        let zero = g.scalar_of(DType::U32, 0.0);
        g.equal(x, zero).into()
    },
};

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($ty:ident $row:ident, $($operand:ident),*);)*) => {
        impl Graph {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&mut self, $($operand: impl Into<Value>),*) -> NodeId {
                static ROW: $ty = $row;
                self.call(OpRef::new(&ROW), Attrs::new(), vec![$($operand.into()),*])
            })*
        }
    };
}

builders! {
    /// Computes the bits set in both operands; `u32` or `i32`, with NumPy broadcasting.
    bit_and(IntBinary BIT_AND, a, b);
    /// Computes the bits set in at least one operand; `u32` or `i32`, with NumPy broadcasting.
    bit_or(IntBinary BIT_OR, a, b);
    /// Computes the exclusive or of the bits; `u32` or `i32`, with NumPy broadcasting.
    bit_xor(IntBinary BIT_XOR, a, b);
    /// Shifts the bits of `a` (`u32`) left by `b`: 0 if `b` is 32 or more; with NumPy broadcasting.
    shift_left(IntBinary SHIFT_LEFT, a, b);
    /// Shifts the bits of `a` (`u32`) right by `b`: 0 if `b` is 32 or more; with NumPy broadcasting.
    shift_right(IntBinary SHIFT_RIGHT, a, b);
    /// Returns 1 if both operands (`u32`) are nonzero, else 0; with NumPy broadcasting.
    logical_and(IntBinary LOGICAL_AND, a, b);
    /// Returns 1 if at least one operand (`u32`) is nonzero, else 0; with NumPy broadcasting.
    logical_or(IntBinary LOGICAL_OR, a, b);
    /// Returns 1 if exactly one operand (`u32`) is nonzero, else 0; with NumPy broadcasting.
    logical_xor(IntBinary LOGICAL_XOR, a, b);
    /// Computes the complement of all bits; `u32` or `i32`.
    bit_not(IntUnary BIT_NOT, x);
    /// Returns 1 where `x` (`u32`) is 0, else 0.
    logical_not(IntUnary LOGICAL_NOT, x);
}
