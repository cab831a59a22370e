//! The operators of ONNX: one file per family, one function per operator.
//!
//! `operator.rs` describes an operator; `builtin.rs` lists the families.

mod activation;
mod attention;
mod builtin;
mod cast;
mod control;
mod conv;
mod deform;
mod elementwise;
mod features;
mod fold;
mod fourier;
mod group_query;
mod index;
mod int8;
mod known;
mod layout;
mod limits;
mod loss;
mod matmul;
mod microsoft_attention;
mod ml;
mod nbits;
mod norm;
mod operator;
mod pool;
mod power;
mod preview;
mod qlinear;
mod quantized;
mod random;
pub(crate) mod ranges;
mod recurrent;
mod reduce;
mod resize;
mod sample;
mod sequence;
mod signal;
mod slice;
mod small;
mod softmax;
mod state;
mod unpool;
mod window;

pub use operator::{Build, Fold, OnnxOp, Registration, Support, operators};

pub(crate) use operator::{Overflow, find};
use operator::{ms, op};
