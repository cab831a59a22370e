//! stub
use crate::runner::Case;
pub(crate) fn cases() -> Vec<Case> { Vec::new() }
