//! GPU kernels: WGSL for each dispatch of a plan, its shapes as constants, for any GPU interface that takes WGSL or SPIR-V.
//!
//! A kernel is made from a call ([`CompileCx`]) by [`compile`]; what a host has to provide is in [`Launch`] and [`Compiled`].
//!
//! A dispatch is taken apart ([`body`]) until all calls are ones that are known here, each in one place: elementwise
//! operators ([`scalar`]), views ([`view`]), operators that pick elements ([`pull`]), reductions ([`rows`]), and matrix
//! products and convolutions ([`matmul`], [`conv`], both by [`tiled`], on matrix units by [`coop`], of few rows by
//! [`vectors`]; [`sums`] is what is done with their results). Of several ways to compute a call, [`variants`]
//! chooses one. So a norm, a loss or an update needs no kernel of its own: what it is taken apart to is
//! computed in one launch, or in the few that [`stages`] cuts it to. Operators that do not fit this have a table of their own ([`alone`]),
//! [`attention`] has kernels that keep its scores out of memory, key-value caches a file of theirs ([`cache`]), and what
//! others bring for their operators comes before all ([`custom`]).
//!
//! The kernels of representative calls lie in `snapshots/`, to be read and to show what a change does to them.

mod alone;
mod attention;
mod body;
mod cache;
mod conv;
pub mod coop;
mod custom;
mod emit;
mod files;
mod fold;
mod generate;
mod kernel;
mod lanes;
mod library;
mod matmul;
mod module;
mod place;
mod pointwise;
mod pull;
mod rows;
mod scalar;
mod scatter;
mod schedule;
mod stages;
mod sums;
mod template;
mod tiled;
mod validate;
pub mod variants;
mod vectors;
mod view;

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::Call;
use meganeura_core::{DType, TensorType};

use body::Body;
pub use custom::CustomKernel;
pub use files::KERNEL_FILES;
pub use generate::{Limits, candidates, generate};
pub use kernel::{Binding, CompileCx, Compiled, INLINE_SCALARS, Launch, Memory, Source};
pub use schedule::Schedule;
pub use template::KernelFile;
pub use validate::validate;

/// What a call is to the generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// An element of the result depends on the operands' elements at its place.
    Pointwise,
    /// Operand 0's elements at other places.
    View,
    /// Elements of the operands, chosen one by one.
    Pull,
    /// Operand 0 folded over axes.
    Reduction,
    /// A matrix product or a convolution.
    Product,
}

/// Dtypes of operands. Half precision is computed in `f32`, and rounded where a result is stored.
pub const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];

/// The role of an operator, if it has one.
fn role(name: &str, call: &Call) -> Result<Option<Role>, String> {
    if view::is_known(name) {
        return Ok(Some(Role::View));
    }
    if pull::is_known(name, call) {
        return Ok(Some(Role::Pull));
    }
    if rows::is_known(name) {
        return Ok(Some(Role::Reduction));
    }
    if matmul::is_known(name) || conv::is_known(name) {
        return match call.inputs.iter().find(|t| scalar::wgsl_type(t.dtype) != "f32") {
            None => Ok(Some(Role::Product)),
            Some(ty) => Err(format!("there is no product of {ty}")),
        };
    }
    Ok(scalar::is_known(name, call)?.then_some(Role::Pointwise))
}

/// Elements of a value, whether it is kept in memory or not, are numbered in 32 bits.
fn check_count(ty: &TensorType) -> Result<(), String> {
    match i32::try_from(ty.numel()) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{ty} has more elements than a kernel can number")),
    }
}

/// Compiles a dispatch.
///
/// # Errors
/// The reason why there is no kernel for it.
pub fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    for ty in cx.kernel.inputs.iter().chain(cx.kernel.outputs) {
        if !DTYPES.contains(&ty.dtype) {
            return Err(format!("there are no kernels of {}", ty.dtype));
        }
        check_count(ty)?;
    }
    for special in [custom::compile, alone::compile, attention::compile, cache::compile] {
        if let Some(compiled) = special(cx)? {
            return Ok(compiled);
        }
    }
    compile_apart(cx)
}

/// Compiles a dispatch to kernels for the calls that it is taken apart to.
fn compile_apart(cx: &CompileCx) -> Result<Compiled, String> {
    let body = Body::of(&cx.kernel)?;
    body.nodes.iter().try_for_each(|node| check_count(&node.ty))?;
    match compile_body(&body, cx) {
        Ok(compiled) => Ok(compiled),
        // One that is not to be cut is refused for the first reason.
        Err(reason) => stages::compile(&body, cx).map_err(|cut| match body.calls(Role::Product).is_empty() {
            true if body.calls(Role::Reduction).is_empty() => reason,
            _ => format!("{reason}; in several kernels: {cut}"),
        }),
    }
}

/// Compiles a body to one kernel, or to one whose parts a second puts together.
fn compile_body(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
    let (products, reductions) = (body.calls(Role::Product), body.calls(Role::Reduction));
    match (&products[..], &reductions[..]) {
        ([], []) => pointwise::compile(body, cx),
        ([], _) => rows::compile(body, cx),
        (&[product], _) if body.is_call(product, matmul::is_known) => matmul::compile(body, product, cx),
        (&[product], []) => conv::compile(body, product, cx),
        _ => Err("it has a product together with another one or with a reduction".into()),
    }
}

/// The kernel for a call on a device whose buffers have at most so many bytes, and for whose operator a kernel may have been
/// brought.
///
/// # Errors
/// The reason why there is none.
pub fn supports(kernel: &KernelDesc, most_bytes: u64, custom: Option<&dyn CustomKernel>) -> Result<Compiled, String> {
    let compiled = compile(&CompileCx {
        custom,
        ..CompileCx::standalone(*kernel)
    })?;
    check_scratch(compiled, most_bytes)
}

/// Refuses kernels whose scratch buffers are too large.
fn check_scratch(compiled: Compiled, most_bytes: u64) -> Result<Compiled, String> {
    match compiled.scratch.iter().max() {
        Some(&bytes) if bytes as u64 > most_bytes => Err(format!(
            "it takes {bytes} bytes of scratch memory, but the device's largest buffer has {most_bytes}"
        )),
        _ => Ok(compiled),
    }
}

#[cfg(test)]
mod tests;
