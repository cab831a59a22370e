//! Kernels of gated recurrent units (GRU), forward and backward.

use std::ops::Range;

use super::{Lengths, Product, Products, Scratch, Sizes, Spec, row};
use crate::gemm::Addend;
use crate::kernel::{CompileCx, Compiled, RunCx};
use crate::memory::View;
use crate::vmath;

pub(super) fn forward(cx: &CompileCx) -> Result<Compiled, String> {
    let [gates, weight, bias, h]: [View<f32>; 4] = [0, 1, 2, 3].map(|i| cx.input(i));
    let [hidden, activations]: [View<f32>; 2] = [0, 1].map(|i| cx.output(i));
    let (lengths, level) = (Lengths::of(cx), cx.level);
    let linear = cx.attrs().bool("linear_before_reset")?;
    let sizes = Sizes::new(cx, &cx.output_type(0).shape)?;
    let width = sizes.hidden;
    let mut products = Products::new(sizes, weight);
    let of_gates = products.add(Spec {
        rows: 0..2 * width,
        transposed: true,
        from: width,
        to: 4 * width,
        accumulate: false,
    });
    // This matmul computes q from the state, or n from q.
    let of_candidate = products.add(Spec {
        rows: 2 * width..3 * width,
        transposed: true,
        from: if linear { width } else { 4 * width },
        to: 4 * width,
        accumulate: false,
    });
    let body = move |rows: Range<usize>, _: &RunCx, scratch: &Scratch| {
        for (t, before) in sizes.order() {
            let state = sizes.state(hidden, h, before, rows.start);
            let own = gates.as_ptr().wrapping_add(sizes.row(t, rows.start, 3).start);
            let all = activations.as_ptr().wrapping_add(sizes.row(t, rows.start, 4).start);
            let (n_block, q_block) = (all.wrapping_add(2 * width), all.wrapping_add(3 * width));
            // SAFETY: only this task writes these rows of the results, and it reads its own earlier values of them.
            // No task writes operands.
            unsafe {
                let addend = |start: *const f32, row: usize| Addend { start, row };
                of_gates.run(rows.len(), state, all, addend(own, 3 * width), scratch);
                for b in rows.clone() {
                    let blocks = activations.slice_mut(sizes.row(t, b, 4));
                    vmath::sigmoid_in_place(level, &mut blocks[..2 * width]);
                    if !linear {
                        let q = &mut blocks[3 * width..];
                        q.fill(0.0);
                        let before = row(sizes.state(hidden, h, before, b), width);
                        let (r, q) = blocks.split_at_mut(3 * width);
                        vmath::add_product(level, &r[..width], before, q);
                    }
                }
                if linear {
                    of_candidate.run(rows.len(), state, q_block, addend(bias.as_ptr(), 0), scratch);
                } else {
                    let own = own.wrapping_add(2 * width);
                    of_candidate.run(rows.len(), q_block, n_block, addend(own, 3 * width), scratch);
                }
                for b in rows.clone() {
                    let blocks = activations.slice_mut(sizes.row(t, b, 4));
                    let hidden_now = hidden.slice_mut(sizes.row(t, b, 1));
                    let before = row(sizes.state(hidden, h, before, b), width);
                    if !lengths.reach(b, t) {
                        blocks.fill(0.0);
                        hidden_now.copy_from_slice(before);
                    } else if linear {
                        let own = &gates.slice(sizes.row(t, b, 3))[2 * width..];
                        vmath::gru_linear(level, own, before, blocks, hidden_now);
                    } else {
                        vmath::gru_reset(level, bias.all(), before, blocks, hidden_now);
                    }
                }
            }
        }
    };
    Ok(products.compile(0, body))
}

/// The matmuls of the backward pass: by the rows of the weight for the gates r and z, and by its rows for n.
struct Backward {
    of_gates: Product,
    of_candidate: Product,
    linear: bool,
}

impl Backward {
    fn new(products: &mut Products, linear: bool) -> Self {
        let width = products.sizes.hidden;
        let of_gates = products.add(Spec {
            rows: 0..2 * width,
            transposed: false,
            from: 3 * width,
            to: width,
            accumulate: false,
        });
        // This matmul computes the gradient of the state from dq, or dq from dn.
        let of_candidate = products.add(Spec {
            rows: 2 * width..3 * width,
            transposed: false,
            from: if linear { width } else { 3 * width },
            to: width,
            accumulate: linear,
        });
        Backward {
            of_gates,
            of_candidate,
            linear,
        }
    }
}

pub(super) fn backward(cx: &CompileCx) -> Result<Compiled, String> {
    let [weight, activations, hidden, h, dhidden]: [View<f32>; 5] = [0, 1, 2, 3, 4].map(|i| cx.input(i));
    let [dgates, dh]: [View<f32>; 2] = [0, 1].map(|i| cx.output(i));
    let (lengths, level) = (Lengths::of(cx), cx.level);
    let operands = cx.call().inputs.len() - usize::from(lengths.are_given());
    let dactivations: Option<View<f32>> = (operands > 5).then(|| cx.input(5));
    let sizes = Sizes::new(cx, &cx.input_type(2).shape)?;
    let width = sizes.hidden;
    let mut products = Products::new(sizes, weight);
    let by = Backward::new(&mut products, cx.attrs().bool("linear_before_reset")?);
    let body = move |rows: Range<usize>, _: &RunCx, scratch: &Scratch| {
        let count = rows.len();
        // SAFETY: only this task writes these rows of the results and its scratch, which has the size of two states.
        // No task writes operands.
        unsafe {
            // The gradient of the state, which each step updates.
            let dh = dh.slice_mut(rows.start * width..rows.end * width);
            let (kept, dq) = (scratch.part(0, count * width), scratch.part(1, count * width));
            dh.fill(0.0);
            for (t, before) in sizes.order().rev() {
                let of_step = dgates.as_ptr().add(sizes.row(t, rows.start, 3).start);
                for (n, b) in rows.clone().enumerate() {
                    let own = n * width..(n + 1) * width;
                    let (dh, kept) = (&mut dh[own.clone()], &mut kept[own]);
                    vmath::add_assign(level, dh, dhidden.slice(sizes.row(t, b, 1)));
                    let dgates = dgates.slice_mut(sizes.row(t, b, 3));
                    if !lengths.reach(b, t) {
                        dgates.fill(0.0);
                        kept.copy_from_slice(dh);
                        continue;
                    }
                    let all = sizes.row(t, b, 4);
                    match dactivations {
                        Some(more) => dgates.copy_from_slice(&more.slice(all.clone())[..3 * width]),
                        None => dgates.fill(0.0),
                    }
                    let before = row(sizes.state(hidden, h, before, b), width);
                    vmath::gru_grad(level, [activations.slice(all), before], dh, dgates, kept);
                }
                if !by.linear {
                    let dn = of_step.wrapping_add(2 * width);
                    by.of_candidate.run(count, dn, dq.as_mut_ptr(), Addend::NONE, scratch);
                }
                for (n, b) in rows.clone().enumerate() {
                    let own = n * width..(n + 1) * width;
                    let (kept, dq) = (&mut kept[own.clone()], &mut dq[own]);
                    if by.linear {
                        dq.fill(0.0);
                    }
                    if !lengths.reach(b, t) {
                        continue;
                    }
                    let all = activations.slice(sizes.row(t, b, 4));
                    let (r, q) = (&all[..width], &all[3 * width..]);
                    let (dr, others) = dgates.slice_mut(sizes.row(t, b, 3)).split_at_mut(width);
                    if let Some(more) = dactivations {
                        vmath::add_assign(level, dq, &more.slice(sizes.row(t, b, 4))[3 * width..]);
                    }
                    if by.linear {
                        let dn = &others[width..];
                        vmath::add_product(level, dn, r, dq);
                        vmath::reset_grad(level, r, dn, q, dr);
                    } else {
                        let before = row(sizes.state(hidden, h, before, b), width);
                        vmath::reset_grad(level, r, dq, before, dr);
                        vmath::add_product(level, dq, r, kept);
                    }
                }
                let addend = Addend {
                    start: kept.as_ptr(),
                    row: width,
                };
                by.of_gates.run(count, of_step, dh.as_mut_ptr(), addend, scratch);
                if by.linear {
                    by.of_candidate
                        .run(count, dq.as_ptr(), dh.as_mut_ptr(), Addend::NONE, scratch);
                }
            }
        }
    };
    Ok(products.compile(2 * width, body))
}
