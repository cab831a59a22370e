//! Kernels of long short-term memory (LSTM), forward and backward.

use std::ops::Range;
use std::sync::Arc;

use super::{Lengths, Product, Products, Scratch, Sizes, Spec, row};
use crate::gemm::Addend;
use crate::kernel::{CompileCx, Compiled, RunCx};
use crate::memory::View;
use crate::vmath;

pub(super) fn forward(cx: &CompileCx) -> Result<Compiled, String> {
    let [gates, weight, h, c]: [View<f32>; 4] = [0, 1, 2, 3].map(|i| cx.input(i));
    let [hidden, cell, activations]: [View<f32>; 3] = [0, 1, 2].map(|i| cx.output(i));
    let (lengths, level) = (Lengths::of(cx), cx.level);
    let sizes = Sizes::new(cx, &cx.output_type(0).shape)?;
    let width = sizes.hidden;
    let mut products = Products::new(sizes, weight);
    if let Some(parts) = sizes.units(weight.len()) {
        return Ok(by_units(cx, products, parts));
    }
    let product = products.add(Spec {
        rows: 0..4 * width,
        transposed: true,
        from: width,
        to: 4 * width,
        accumulate: false,
    });
    let body = move |rows: Range<usize>, _: &RunCx, scratch: &Scratch| {
        for (t, before) in sizes.order() {
            let first = sizes.row(t, rows.start, 4).start;
            // SAFETY: only this task writes these rows of the results, and it reads its own values of the previous
            // step. No task writes operands.
            unsafe {
                let addend = Addend {
                    start: gates.as_ptr().add(first),
                    row: 4 * width,
                };
                let state = sizes.state(hidden, h, before, rows.start);
                product.run(rows.len(), state, activations.as_ptr().add(first), addend, scratch);
                for b in rows.clone() {
                    let now = sizes.row(t, b, 1);
                    let all = activations.slice_mut(sizes.row(t, b, 4));
                    let (hidden_now, cell_now) = (hidden.slice_mut(now.clone()), cell.slice_mut(now));
                    let cell_before = row(sizes.state(cell, c, before, b), width);
                    if lengths.reach(b, t) {
                        let (if_gates, go_gates) = all.split_at_mut(2 * width);
                        let (i, f) = if_gates.split_at_mut(width);
                        let (g, o) = go_gates.split_at_mut(width);
                        vmath::lstm_cell(level, [i, f, g, o], cell_before, cell_now, hidden_now);
                    } else {
                        all.fill(0.0);
                        cell_now.copy_from_slice(cell_before);
                        hidden_now.copy_from_slice(row(sizes.state(hidden, h, before, b), width));
                    }
                }
            }
        }
    };
    Ok(products.compile(0, body))
}

/// Compiles the forward pass with a phase for each step. Each task of a phase computes one range of the hidden units.
fn by_units(cx: &CompileCx, mut products: Products, parts: Vec<Range<usize>>) -> Compiled {
    let [gates, _, h, c]: [View<f32>; 4] = [0, 1, 2, 3].map(|i| cx.input(i));
    let [hidden, cell, activations]: [View<f32>; 3] = [0, 1, 2].map(|i| cx.output(i));
    let (lengths, level, sizes) = (Lengths::of(cx), cx.level, products.sizes);
    let width = sizes.hidden;
    let by_block: Vec<[Product; 4]> = parts
        .iter()
        .map(|units| {
            [0, 1, 2, 3].map(|block| {
                products.add(Spec {
                    rows: block * width + units.start..block * width + units.end,
                    transposed: true,
                    from: width,
                    to: 4 * width,
                    accumulate: false,
                })
            })
        })
        .collect();
    let (count, parts) = (parts.len(), Arc::new((parts, by_block)));
    let body = move |t: usize, before: Option<usize>, part: usize, scratch: &Scratch| {
        let (units, products) = (&parts.0[part], &parts.1[part]);
        // SAFETY: only this task writes these units of the step. It reads the states of the previous step, whose
        // phase has ended. No task writes operands.
        unsafe {
            for (block, product) in products.iter().enumerate() {
                let first = sizes.row(t, 0, 4).start + block * width + units.start;
                let addend = Addend {
                    start: gates.as_ptr().add(first),
                    row: 4 * width,
                };
                let state = sizes.state(hidden, h, before, 0);
                product.run(sizes.batch, state, activations.as_ptr().add(first), addend, scratch);
            }
            for b in 0..sizes.batch {
                let (all, now) = (sizes.row(t, b, 4).start, sizes.row(t, b, 1).start);
                let own = now + units.start..now + units.end;
                let (hidden_now, cell_now) = (hidden.slice_mut(own.clone()), cell.slice_mut(own));
                let blocks = [0, 1, 2, 3].map(|block| {
                    let start = all + block * width;
                    activations.slice_mut(start + units.start..start + units.end)
                });
                let cell_before = &row(sizes.state(cell, c, before, b), width)[units.clone()];
                if lengths.reach(b, t) {
                    vmath::lstm_cell(level, blocks, cell_before, cell_now, hidden_now);
                } else {
                    blocks.into_iter().for_each(|block| block.fill(0.0));
                    cell_now.copy_from_slice(cell_before);
                    hidden_now.copy_from_slice(&row(sizes.state(hidden, h, before, b), width)[units.clone()]);
                }
            }
        }
    };
    products.compile_steps(count, body)
}

pub(super) fn backward(cx: &CompileCx) -> Result<Compiled, String> {
    let [weight, activations, cell, c, dhidden, dcell]: [View<f32>; 6] = [0, 1, 2, 3, 4, 5].map(|i| cx.input(i));
    let [dgates, dh, dc]: [View<f32>; 3] = [0, 1, 2].map(|i| cx.output(i));
    let (lengths, level) = (Lengths::of(cx), cx.level);
    let operands = cx.call().inputs.len() - usize::from(lengths.are_given());
    let dactivations: Option<View<f32>> = (operands > 6).then(|| cx.input(6));
    let sizes = Sizes::new(cx, &cx.input_type(2).shape)?;
    let width = sizes.hidden;
    let mut products = Products::new(sizes, weight);
    let product = products.add(Spec {
        rows: 0..4 * width,
        transposed: false,
        from: 4 * width,
        to: width,
        accumulate: false,
    });
    let body = move |rows: Range<usize>, _: &RunCx, scratch: &Scratch| {
        let state = rows.start * width..rows.end * width;
        // SAFETY: only this task writes these rows of the results and its scratch, which has the size of one state.
        // No task writes operands.
        unsafe {
            // The gradients of the state, which each step updates.
            let (dh, dc) = (dh.slice_mut(state.clone()), dc.slice_mut(state.clone()));
            let kept = scratch.part(0, rows.len() * width);
            dh.fill(0.0);
            dc.fill(0.0);
            for (t, before) in sizes.order().rev() {
                for (n, b) in rows.clone().enumerate() {
                    let now = sizes.row(t, b, 1);
                    let own = n * width..(n + 1) * width;
                    let (dh, dc, kept) = (&mut dh[own.clone()], &mut dc[own.clone()], &mut kept[own]);
                    vmath::add_assign(level, dh, dhidden.slice(now.clone()));
                    vmath::add_assign(level, dc, dcell.slice(now.clone()));
                    let gates = sizes.row(t, b, 4);
                    let dgates = dgates.slice_mut(gates.clone());
                    if !lengths.reach(b, t) {
                        dgates.fill(0.0);
                        kept.copy_from_slice(dh);
                        continue;
                    }
                    match dactivations {
                        Some(more) => dgates.copy_from_slice(more.slice(gates.clone())),
                        None => dgates.fill(0.0),
                    }
                    kept.fill(0.0);
                    let cell_before = row(sizes.state(cell, c, before, b), width);
                    let saved = [activations.slice(gates), cell.slice(now), cell_before];
                    vmath::lstm_cell_grad(level, saved, dh, dc, dgates);
                }
                let addend = if lengths.are_given() {
                    Addend {
                        start: kept.as_ptr(),
                        row: width,
                    }
                } else {
                    Addend::NONE
                };
                let from = dgates.as_ptr().add(sizes.row(t, rows.start, 4).start);
                product.run(rows.len(), from, dh.as_mut_ptr(), addend, scratch);
            }
        }
    };
    Ok(products.compile(width, body))
}
