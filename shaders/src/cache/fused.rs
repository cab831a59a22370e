//! A projection whose epilogue writes its rows into a cache. Rows of keys are rotated first.

use std::fmt::Write as _;

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{FUSED, FusedWriteDims};

use super::super::body::{Body, Id};
use super::super::emit::Emitter;
use super::super::epilogue::Epilogue;
use super::super::kernel::{CompileCx, Compiled};
use super::super::location::{self, Base};
use super::super::roles::{Role, is_matmul};
use super::super::{matmul, neighbours, vectors};
use super::{copied, has_pairs, store_one, store_pair};

/// Index of the operand that is written, and of the operand with the positions.
const CACHE: usize = 0;
const PLACES: usize = 1;

/// Compiles one launch for a call whose matmul has few rows. If the cache is not written in place, a launch that
/// copies the cache comes first.
///
/// # Errors
/// No kernel supports the call. Such a call is not decomposed here, because separate kernels are equally fast.
pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let (dims, _) = FusedWriteDims::of(&cx.call())?;
    let kernel = KernelDesc {
        name: FUSED.name(),
        version: FUSED.version(),
        ..cx.kernel
    };
    let rows_cx = cx.part(kernel, cx.inputs.clone(), cx.outputs.clone(), cx.first_scratch);
    let body = Body::of(&kernel)?;
    let (&[id], &[rows]) = (&body.calls(Role::Contraction)[..], &body.results[..]) else {
        return Err("the program is not one projection".into());
    };
    if !body.is_call(id, is_matmul) || body.ty(rows).numel() != body.ty(id).numel() {
        return Err("the program is not one matmul, and what follows for each element".into());
    }
    let half = neighbours::rotated_half(&kernel)?;
    let product = matmul::product(&body, id, &rows_cx)?;
    let launch = vectors::compile_shared(&body, id, &rows_cx, &product, half, |e| epilogue(e, rows, &dims))?;
    let mut launches: Vec<_> = copied(cx, CACHE, 0)?.into_iter().collect();
    launches.push(launch);
    Ok(Compiled {
        launches,
        ..Compiled::default()
    })
}

/// Returns the epilogue that stores element `i` of the rows in the cache. In half precision, each element with an
/// even index is stored together with the next element.
fn epilogue(e: &mut Emitter, rows: Id, dims: &FusedWriteDims) -> Result<Epilogue, String> {
    let shape = e.body.ty(rows).shape.clone();
    let has_pairs = has_pairs(e.cx);
    let mut code = String::new();
    if has_pairs {
        code.push_str("if ((i & 1u) != 0u) {\n    return;\n}\nlet next = i + 1u;\n");
    }
    code.push_str(&place(e, dims));
    let names = if has_pairs {
        &[("i", "first"), ("next", "second")][..]
    } else {
        &[("i", "value")]
    };
    for &(number, name) in names {
        let base = Base::new(number, shape.numel());
        let (computes, value) = e.writing_block(&base, |e| e.value(rows, &location::split(&base, 1, &shape)))?;
        let _ = writeln!(code, "{computes}let {name} = {value};");
    }
    code.push_str(&if has_pairs {
        store_pair(&mut e.module)
    } else {
        store_one(&mut e.module)
    });
    Ok(Epilogue::of_one(code))
}

/// Returns statements that compute `at`, the index of element `i` in the cache. They return from the function if the
/// element is not written.
fn place(e: &mut Emitter, dims: &FusedWriteDims) -> String {
    match dims {
        FusedWriteDims::Whole(dims) => {
            let (written, capacity, width) = (dims.rows * dims.width, dims.capacity, dims.width);
            let given = e.module.load(PLACES, "sequence");
            let position = e.module.checked_index("given", dims.bound());
            format!(
                "let sequence = i / {written}u;\nlet given = {given};\nlet position = {position};\n\
                 if (given != position) {{\n    return;\n}}\n\
                 let at = (sequence * {capacity}u + position) * {width}u + i % {written}u;\n"
            )
        }
        FusedWriteDims::Paged(dims) => {
            let (rows, width, slots) = (dims.rows, dims.width, dims.slots);
            let [given, other] = ["row", "later"].map(|row| e.module.load(PLACES, row));
            let slot = e.module.checked_index("given", dims.bound());
            // If several rows have the same slot, the last of these rows is written.
            format!(
                "let row = i / {width}u;\nlet given = {given};\nlet slot = {slot};\n\
                 var is_written = given == slot && slot < {slots}u;\n\
                 for (var later = row + 1u; later < {rows}u; later += 1u) {{\n    \
                 is_written = is_written && {other} != given;\n}}\n\
                 if (!is_written) {{\n    return;\n}}\nlet at = slot * {width}u + i % {width}u;\n"
            )
        }
    }
}
