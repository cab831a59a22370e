//! Selection of the kernel family that computes a body in one launch.

use super::body::Body;
use super::kernel::{CompileCx, Compiled};
use super::roles::{Role, is_matmul};
use super::{conv, matmul, pointwise, rows};

/// Compiles a body to one kernel, or to one kernel and a second one that combines the parts of the first one.
pub(super) fn compile_body(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
    let (contraction, reductions) = (body.calls(Role::Contraction), body.calls(Role::Reduction));
    match (&contraction[..], &reductions[..]) {
        ([], []) => pointwise::compile(body, cx),
        ([], _) => rows::compile(body, cx),
        (&[product], _) if body.is_call(product, is_matmul) => matmul::compile(body, product, cx),
        (&[product], []) => conv::compile(body, product, cx),
        _ => Err("it has a contraction together with another one or with a reduction".into()),
    }
}
