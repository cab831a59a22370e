//! Kernels of parameter updates: one pass over a parameter, its gradient and its moments, in place.

use meganeura_core::loss_scaling::MAX_SCALE;

use crate::kernel::{CHUNK, CompileCx, Compiled, KernelDef, RunCx, Task, chunk, chunks, f32_only, stream_nanos};
use crate::memory::View;
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "optim.accumulate",
        supports: f32_only,
        compile: |cx| update(cx, accumulate),
    },
    KernelDef {
        name: "optim.loss_scale",
        supports: f32_only,
        compile: |cx| update(cx, loss_scale_rule),
    },
    KernelDef {
        name: "optim.sgd",
        supports: f32_only,
        compile: |cx| update(cx, sgd),
    },
    KernelDef {
        name: "optim.momentum",
        supports: f32_only,
        compile: |cx| {
            if cx.attrs().bool("nesterov")? {
                update(cx, nesterov)
            } else {
                update(cx, momentum)
            }
        },
    },
    KernelDef {
        name: "optim.adam",
        supports: f32_only,
        compile: |cx| {
            if cx.attrs().bool("decoupled")? {
                update(cx, adamw)
            } else {
                update(cx, adam)
            }
        },
    },
];

/// Updates the loss scale. Its states and scalars have one element each. They are passed like the tensors and
/// hyper-parameters of other updates.
fn loss_scale_rule(_: Level, tensors: [&mut [f32]; 4], found: &[f32], [interval]: [f32; 1]) {
    let [scale, inverse, good, skipped] = tensors.map(|t| &mut t[0]);
    let change = |up: &mut f32, down: &mut f32| {
        *up = (*up * 2.0).min(MAX_SCALE);
        *down = (*down * 0.5).max(1.0 / MAX_SCALE);
    };
    if found[0] != 0.0 {
        (*good, *skipped) = (0.0, *skipped + 1.0);
        if interval != 0.0 {
            change(inverse, scale);
        }
        return;
    }
    *good += 1.0;
    if *good >= interval {
        *good = 0.0;
        if interval != 0.0 {
            change(scale, inverse);
        }
    }
}

/// Function that updates `T` tensors (the parameter first), given a gradient and `S` scalars.
type Rule<const T: usize, const S: usize> = fn(Level, [&mut [f32]; T], &[f32], [f32; S]);

/// Compiles an update. The operands are the parameter, the gradient, further tensors and the scalars. The results are
/// the updated tensors.
fn update<const T: usize, const S: usize>(cx: &CompileCx, rule: Rule<T, S>) -> Result<Compiled, String> {
    let operand = |tensor: usize| if tensor == 0 { 0 } else { tensor + 1 };
    let old: [View<f32>; T] = std::array::from_fn(|t| cx.input(operand(t)));
    let new: [View<f32>; T] = std::array::from_fn(|t| cx.output(t));
    let in_place: [bool; T] = std::array::from_fn(|t| cx.input_buffer(operand(t)) == cx.output_buffer(t));
    let (grad, level) = (cx.input::<f32>(1), cx.level);
    let scalars: [View<f32>; S] = std::array::from_fn(|s| cx.input(T + 1 + s));
    let written = |operand: usize| (0..T).any(|t| cx.output_buffer(t) == cx.input_buffer(operand));
    // A gradient that shares a buffer with a written tensor is copied before the tensor changes.
    let copy_grad = written(1);
    if chunks(grad.len()) > 1 && (T + 1..T + 1 + S).any(written) {
        return Err("a hyper-parameter is part of a tensor that the update changes".into());
    }
    let task = Task {
        tasks: chunks(grad.len()),
        nanos: stream_nanos(4 * (2 * T + 1) * grad.len()),
        body: move |task: usize, cx: &RunCx| {
            let range = chunk(grad.len(), task);
            // SAFETY: no other dispatch writes scalars meanwhile. This dispatch writes them only if it has a single
            // task, which has no reference to a written tensor yet.
            let scalars = scalars.map(|s| unsafe { s.slice(0..1)[0] });
            for t in (0..T).filter(|&t| !in_place[t]) {
                // SAFETY: a result that is not computed in place shares no buffer with an operand, and only this task
                // accesses its range.
                unsafe {
                    new[t]
                        .slice_mut(range.clone())
                        .copy_from_slice(old[t].slice(range.clone()))
                }
            }
            // SAFETY: the results are different buffers. Only this task accesses these elements of the results, and
            // of the operands that share a buffer with them. The gradient shares no buffer with them, or is copied to
            // scratch of `CHUNK` elements before they are borrowed.
            let (tensors, grad) = unsafe {
                let mut own = grad.slice(range.clone());
                if copy_grad {
                    let copy = std::slice::from_raw_parts_mut(cx.private, own.len());
                    copy.copy_from_slice(own);
                    own = copy;
                }
                (new.map(|n| n.slice_mut(range.clone())), own)
            };
            rule(level, tensors, grad, scalars);
        },
    };
    Ok(Compiled {
        phases: vec![Box::new(task)],
        shared: 0,
        private: if copy_grad { CHUNK } else { 0 },
    })
}

multiversion! {
    fn accumulate(tensors: [&mut [f32]; 1], grad: &[f32], scalars: [f32; 2]) = accumulate_body;
}
multiversion! {
    fn sgd(tensors: [&mut [f32]; 1], grad: &[f32], scalars: [f32; 2]) = sgd_body;
}
multiversion! {
    fn momentum(tensors: [&mut [f32]; 2], grad: &[f32], scalars: [f32; 3]) = momentum_body;
}
multiversion! {
    fn nesterov(tensors: [&mut [f32]; 2], grad: &[f32], scalars: [f32; 3]) = nesterov_body;
}
multiversion! {
    fn adam(tensors: [&mut [f32]; 3], grad: &[f32], scalars: [f32; 7]) = adam_body;
}
multiversion! {
    fn adamw(tensors: [&mut [f32]; 3], grad: &[f32], scalars: [f32; 7]) = adamw_body;
}

// None of these functions uses fused multiply-add: updates are the same on every processor.

#[inline(always)]
fn momentum_body<const FMA: bool>(tensors: [&mut [f32]; 2], grad: &[f32], scalars: [f32; 3]) {
    momentum_rule::<false>(tensors, grad, scalars);
}

#[inline(always)]
fn nesterov_body<const FMA: bool>(tensors: [&mut [f32]; 2], grad: &[f32], scalars: [f32; 3]) {
    momentum_rule::<true>(tensors, grad, scalars);
}

#[inline(always)]
fn adam_body<const FMA: bool>(tensors: [&mut [f32]; 3], grad: &[f32], scalars: [f32; 7]) {
    adam_rule::<false>(tensors, grad, scalars);
}

#[inline(always)]
fn adamw_body<const FMA: bool>(tensors: [&mut [f32]; 3], grad: &[f32], scalars: [f32; 7]) {
    adam_rule::<true>(tensors, grad, scalars);
}

#[inline(always)]
fn accumulate_body<const FMA: bool>([sum]: [&mut [f32]; 1], grad: &[f32], [scale, keep]: [f32; 2]) {
    if keep == 0.0 {
        for (sum, &g) in sum.iter_mut().zip(grad) {
            *sum = g * scale;
        }
    } else {
        for (sum, &g) in sum.iter_mut().zip(grad) {
            *sum += g * scale;
        }
    }
}

#[inline(always)]
fn sgd_body<const FMA: bool>([p]: [&mut [f32]; 1], grad: &[f32], [lr, decay]: [f32; 2]) {
    for (p, &g) in p.iter_mut().zip(grad) {
        *p -= lr * (g + *p * decay);
    }
}

#[inline(always)]
fn momentum_rule<const NESTEROV: bool>([p, v]: [&mut [f32]; 2], grad: &[f32], [lr, decay, momentum]: [f32; 3]) {
    for ((p, v), &g) in p.iter_mut().zip(v).zip(grad) {
        let g = g + *p * decay;
        *v = *v * momentum + g;
        let direction = if NESTEROV { g + *v * momentum } else { *v };
        *p -= lr * direction;
    }
}

#[inline(always)]
fn adam_rule<const DECOUPLED: bool>(
    [p, m, v]: [&mut [f32]; 3],
    grad: &[f32],
    [lr, b1, b2, eps, decay, c1, c2]: [f32; 7],
) {
    let (rest1, rest2) = (1.0 - b1, 1.0 - b2);
    // The reciprocals are computed once. The remaining square root and division are the slowest operations here.
    let (unbias1, unbias2) = (1.0 / c1, 1.0 / c2);
    for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(grad) {
        let decayed = *p * decay;
        let g = if DECOUPLED { g } else { g + decayed };
        *m = *m * b1 + g * rest1;
        *v = *v * b2 + g * g * rest2;
        let direction = *m * unbias1 / ((*v * unbias2).sqrt() + eps);
        let direction = if DECOUPLED { direction + decayed } else { direction };
        *p -= lr * direction;
    }
}
