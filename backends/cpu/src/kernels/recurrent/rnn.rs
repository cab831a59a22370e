//! Kernels of plain recurrent layers, forward and backward.

use std::ops::Range;

use super::{Lengths, Products, Scratch, Sizes, Spec, row};
use crate::gemm::Addend;
use crate::kernel::{CompileCx, Compiled, RunCx};
use crate::memory::View;
use crate::vmath::{self, Unary};

pub(super) fn forward(cx: &CompileCx) -> Result<Compiled, String> {
    let [gates, weight, h]: [View<f32>; 3] = [0, 1, 2].map(|i| cx.input(i));
    let hidden: View<f32> = cx.output(0);
    let (lengths, level) = (Lengths::of(cx), cx.level);
    let activation = if cx.attrs().bool("relu")? {
        Unary::Relu
    } else {
        Unary::Tanh
    };
    let sizes = Sizes::new(cx, &cx.output_type(0).shape)?;
    let width = sizes.hidden;
    let mut products = Products::new(sizes, weight);
    let product = products.add(Spec {
        rows: 0..width,
        transposed: true,
        from: width,
        to: width,
        accumulate: false,
    });
    let body = move |rows: Range<usize>, _: &RunCx, scratch: &Scratch| {
        for (t, before) in sizes.order() {
            let first = sizes.row(t, rows.start, 1).start;
            // SAFETY: only this task writes these rows of the result, and it reads its own values of the previous
            // step. No task writes operands.
            unsafe {
                let addend = Addend {
                    start: gates.as_ptr().add(first),
                    row: width,
                };
                let state = sizes.state(hidden, h, before, rows.start);
                product.run(rows.len(), state, hidden.as_ptr().add(first), addend, scratch);
                for b in rows.clone() {
                    let now = hidden.slice_mut(sizes.row(t, b, 1));
                    if lengths.reach(b, t) {
                        vmath::unary_in_place(activation, level, now);
                    } else {
                        now.copy_from_slice(row(sizes.state(hidden, h, before, b), width));
                    }
                }
            }
        }
    };
    Ok(products.compile(0, body))
}

pub(super) fn backward(cx: &CompileCx) -> Result<Compiled, String> {
    let [weight, hidden, dhidden]: [View<f32>; 3] = [0, 1, 2].map(|i| cx.input(i));
    let [dgates, dh]: [View<f32>; 2] = [0, 1].map(|i| cx.output(i));
    let (lengths, level) = (Lengths::of(cx), cx.level);
    let through = if cx.attrs().bool("relu")? {
        vmath::relu_grad
    } else {
        vmath::tanh_grad
    };
    let sizes = Sizes::new(cx, &cx.input_type(1).shape)?;
    let width = sizes.hidden;
    let mut products = Products::new(sizes, weight);
    let product = products.add(Spec {
        rows: 0..width,
        transposed: false,
        from: width,
        to: width,
        accumulate: false,
    });
    let body = move |rows: Range<usize>, _: &RunCx, scratch: &Scratch| {
        // SAFETY: only this task writes these rows of the results and its scratch, which has the size of one state.
        // No task writes operands.
        unsafe {
            // The gradient of the state, which each step updates, and a copy of it for the sequences that have ended.
            let dh = dh.slice_mut(rows.start * width..rows.end * width);
            let kept = scratch.part(0, rows.len() * width);
            dh.fill(0.0);
            for (t, _) in sizes.order().rev() {
                for (n, b) in rows.clone().enumerate() {
                    let now = sizes.row(t, b, 1);
                    let own = n * width..(n + 1) * width;
                    let (dh, kept) = (&mut dh[own.clone()], &mut kept[own]);
                    vmath::add_assign(level, dh, dhidden.slice(now.clone()));
                    let dgates = dgates.slice_mut(now.clone());
                    if lengths.reach(b, t) {
                        through(level, hidden.slice(now), dh, dgates);
                        kept.fill(0.0);
                    } else {
                        dgates.fill(0.0);
                        kept.copy_from_slice(dh);
                    }
                }
                let addend = if lengths.are_given() {
                    Addend {
                        start: kept.as_ptr(),
                        row: width,
                    }
                } else {
                    Addend::NONE
                };
                let from = dgates.as_ptr().add(sizes.row(t, rows.start, 1).start);
                product.run(rows.len(), from, dh.as_mut_ptr(), addend, scratch);
            }
        }
    };
    Ok(products.compile(width, body))
}
