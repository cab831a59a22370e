//! TODO
use super::OnnxOp;
pub(super) const OPS: &[OnnxOp] = &[];
