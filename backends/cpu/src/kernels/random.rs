//! Kernels of counter-based random bits, and of dropout.

use meganeura_core::ops::{drop_threshold, random_word};

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, chunk, chunks, f32_or_integers};
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.random_bits",
        supports: f32_or_integers,
        compile: random_bits,
    },
    KernelDef {
        name: "core.dropout",
        supports: f32_or_integers,
        compile: dropout,
    },
];

/// Approximate time of a random word, in nanoseconds.
const NANOS_PER_WORD: u64 = 2;

fn random_bits(cx: &CompileCx) -> Result<Compiled, String> {
    let uid = cx.attrs().size("uid")? as u32;
    let (seed, step, out) = (cx.input::<u32>(0), cx.input::<u32>(1), cx.output::<u32>(0));
    Ok(Compiled::one(Task {
        tasks: chunks(out.len()),
        nanos: out.len() as u64 * NANOS_PER_WORD,
        body: move |task: usize, _: &RunCx| {
            let range = chunk(out.len(), task);
            // SAFETY: only this task writes its chunk. The operands are scalars of one element in other buffers.
            let (seed, step, out) = unsafe { (seed.all()[0], step.all()[0], out.slice_mut(range.clone())) };
            for (o, i) in out.iter_mut().zip(range) {
                *o = random_word(seed, uid, step, i as u32);
            }
        },
    }))
}

/// The parameters of a dropout: `seed`, `uid` and `step` determine the random words.
#[derive(Clone, Copy)]
pub(super) struct Chances {
    pub(super) seed: u32,
    pub(super) uid: u32,
    pub(super) step: u32,
    /// Exclusive upper bound of the random words that set an element to zero.
    pub(super) threshold: u32,
    /// Factor of the elements that are kept.
    pub(super) scale: f32,
}

multiversion! {
    /// Copies each element, multiplied by the scale, or writes 0 at random. `first` is the index of the first
    /// element.
    pub(super) fn drop_some(x: &[f32], chances: Chances, first: u32, out: &mut [f32]) = drop_some_body;
}

#[inline(always)]
fn drop_some_body<const FMA: bool>(x: &[f32], chances: Chances, first: u32, out: &mut [f32]) {
    let Chances { seed, uid, step, .. } = chances;
    for (i, (o, &x)) in (0u32..).zip(out.iter_mut().zip(x)) {
        let dropped = random_word(seed, uid, step, first.wrapping_add(i)) < chances.threshold;
        *o = if dropped { 0.0 } else { x * chances.scale };
    }
}

fn dropout(cx: &CompileCx) -> Result<Compiled, String> {
    let p = cx.attrs().float("p")?;
    let uid = cx.attrs().size("uid")? as u32;
    let threshold = drop_threshold(p);
    let scale = (1.0 / (1.0 - p)) as f32;
    let (x, seed, step, out) = (
        cx.input::<f32>(0),
        cx.input::<u32>(1),
        cx.input::<u32>(2),
        cx.output::<f32>(0),
    );
    let level = cx.level;
    Ok(Compiled::one(Task {
        tasks: chunks(out.len()),
        nanos: out.len() as u64 * NANOS_PER_WORD,
        body: move |task: usize, _: &RunCx| {
            let range = chunk(out.len(), task);
            // SAFETY: only this task writes its chunk, and the operands are in other buffers.
            let (x, out) = unsafe { (x.slice(range.clone()), out.slice_mut(range.clone())) };
            // SAFETY: the scalars are in other buffers than the result, and have one element.
            let (seed, step) = unsafe { (seed.all()[0], step.all()[0]) };
            let chances = Chances {
                seed,
                uid,
                step,
                threshold,
                scale,
            };
            drop_some(level, x, chances, range.start as u32, out);
        },
    }))
}
