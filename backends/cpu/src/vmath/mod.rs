//! Vectorised elementwise math over contiguous slices.
//!
//! The inner loops are plain Rust over branch-free scalar kernels, which LLVM
//! vectorises. Each is compiled for the baseline and, on x86-64, again for AVX2
//! with FMA and for AVX-512; [`detect`] finds the widest [`Level`] once and the
//! caller passes it on.
//!
//! # Guarantees
//!
//! * An element's result depends on its operands and the level only: not on
//!   alignment, on its position, or on how a slice is cut into calls. Between
//!   levels the last bits may differ, since a fused multiply-add rounds once.
//!   (Which NaN bits come out is not specified.)
//! * NaN in gives NaN out, also through [`Unary::Relu`], [`Unary::Clamp`],
//!   [`Binary::Min`] and [`Binary::Max`]. The exceptions are those of `powf`:
//!   `pow(x, 0)` and `pow(1, y)` are 1.
//! * Overflow gives infinity and underflow is gradual, through subnormals to 0,
//!   provided that the thread's floating-point environment is the default one.
//!
//! # Accuracy
//!
//! Maximum error relative to f64 references, in units in the last place of the true result, over
//! some 4 million arguments spread over the whole finite range (`tests/accuracy.rs`, which asserts
//! bounds a little above). The polynomials are fitted by `scripts/fit_vmath.py`.
//!
//! | function | baseline | AVX2 + FMA |
//! | --- | --- | --- |
//! | Exp | 0.97 | 1.01 |
//! | Exp2 | 1.19 | 0.95 |
//! | Log | 0.77 | 0.77 |
//! | Log2 | 1.17 | 1.12 |
//! | Sin (all finite arguments) | 1.89 | 1.78 |
//! | Cos (all finite arguments) | 1.97 | 1.84 |
//! | Expm1 | 1.53 | 1.44 |
//! | Log1p | 1.44 | 1.44 |
//! | Tanh | 2.51 | 2.51 |
//! | Erf | 1.15 | 1.13 |
//! | Sigmoid | 2.34 | 2.34 |
//! | Softplus | 2.77 | 2.77 |
//! | Rsqrt | 1.48 | 1.48 |
//! | Pow | 0.50 | 0.50 |
//! | Silu, `x > -87` | 3.08 | 3.08 |
//! | Silu, `x <= -87` | 1.3e-43 absolute | 1.2e-43 absolute |
//! | GeluErf, `x > -12` | 5.20 | 5.20 |
//! | GeluErf, `x <= -12` | 3.6e-39 absolute | 4.9e-39 absolute |
//! | GeluTanh, `x > -1` | 2.85 | 2.85 |
//! | GeluTanh, `x <= -1` | 4.7e-8 absolute | 4.7e-8 absolute |
//!
//! Neg, Abs, Square, Sqrt, Reciprocal, Relu, LeakyRelu, Clamp, Sign, Floor, Ceil,
//! Round, Add, Sub, Mul, Div, Min, Max and Mod are exact or correctly rounded;
//! Rsqrt rounds twice, HardSigmoid and HardSwish a few times, and Elu once more
//! than Expm1.

mod binary;
mod bits;
mod coeffs;
mod gated;
mod int;
mod kernels;
mod level;
mod operand;
mod recurrent;
mod reduce;
mod softmax;
#[cfg(test)]
mod tests;
mod unary;
mod wide;

pub(crate) use binary::{Binary, Compare, binary, compare, select};
pub(crate) use bits::{Bits, bits};
pub(crate) use gated::{geglu, geglu_grad, swiglu, swiglu_grad};
pub(crate) use int::{Int, IntBinary, binary_int, compare_int};
pub(crate) use kernels::{exp, exp_nonpositive, log, mul_add};
pub(crate) use level::{Isa, Level, detect, multiversion};
pub(crate) use operand::{Element, Operand};
pub(crate) use recurrent::{
    add_product, gru_grad, gru_linear, gru_reset, lstm_cell, lstm_cell_grad, relu_grad, reset_grad, sigmoid_in_place,
    tanh_grad,
};
pub(crate) use reduce::{
    add_assign, max, max_assign, min, min_assign, mul_assign, product, row_sums, sum, sum_exp_sub,
};
pub(crate) use softmax::{
    exp_columns, greatest_assign, greatest_lane, log_softmax_row, log_sum_exp, softmax_row, total, weighted_loss,
};
pub(crate) use unary::{Unary, unary, unary_in_place};
