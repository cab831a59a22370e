//! Normalisation of vectors to length 1: a builder method that calls other operators.

use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};

impl Graph {
    /// Computes `x / max(|x|, eps)` with the Euclidean length `|x|` along an axis (negative ones
    /// count from the end), for any floating-point `x`, to the same shape and dtype: vectors become
    /// as long as 1. PyTorch calls it `normalize`, where `eps` is 1e-12. A vector of zeros stays
    /// zeros, and its gradient is finite. Half precision is computed in `f32`, where elements
    /// beyond 1e19 overflow when they are squared.
    ///
    /// Rejected: an axis out of range; integers; an `eps` that is not finite, or so small that its
    /// square is 0 (1e-19).
    #[track_caller]
    pub fn l2_normalize(&mut self, x: impl Into<Value>, axis: i32, eps: f32) -> NodeId {
        let x = x.into();
        // Take the maximum of the squares: the result is the same, and it has a derivative at 0.
        let least = eps * eps;
        if !(least.is_normal() && eps > 0.0) {
            return self.report(
                "l2_normalize",
                format!("eps is {eps}"),
                "eps is between 1e-18 and 1e18, usually 1e-12",
            );
        }
        let dtype = self.dtype(x);
        if !dtype.is_float() {
            let message = format!("the operand is {dtype}, and a length is a floating-point number");
            return self.report("l2_normalize", message, "cast it to f32");
        }
        self.at_caller(|g| {
            let wide: Value = g.cast(x, DType::F32).into();
            let squares = g.square(wide);
            let sum = g.sum(squares, &[axis], true);
            let least = g.scalar(least);
            let sum = g.maximum(sum, least);
            let factor = g.rsqrt(sum);
            let y = g.mul(wide, factor);
            g.cast(y, dtype)
        })
    }
}
