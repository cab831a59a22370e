//! One step of a recurrent layer for one row of a batch, after the multiplication of the state by the weight.

use super::kernels as k;
use super::level::{Isa, Level, multiversion};

multiversion! {
    /// Replaces the four gates of an LSTM by their activations. `cell` and `hidden` become the state after the step.
    pub(crate) fn lstm_cell(gates: [&mut [f32]; 4], before: &[f32], cell: &mut [f32], hidden: &mut [f32]) = lstm_cell_body;
}

multiversion! {
    /// Adds the gradient of the gates' activations to `dgates`, and turns the sum into the gradient of the gates.
    /// `saved` contains the activations, the cell after the step and the cell before the step. `dc` becomes the
    /// gradient of the cell before the step.
    pub(crate) fn lstm_cell_grad(saved: [&[f32]; 3], dh: &[f32], dc: &mut [f32], dgates: &mut [f32]) = lstm_cell_grad_body;
}

multiversion! {
    /// Replaces the gates r and z of a GRU by their activations.
    pub(crate) fn sigmoid_in_place(x: &mut [f32]) = sigmoid_body;
}

multiversion! {
    /// Computes `n = tanh(own + r q)`, and the new state `n + z (before - n)`. The blocks are r, z, n, q.
    pub(crate) fn gru_linear(own: &[f32], before: &[f32], blocks: &mut [f32], hidden: &mut [f32]) = gru_linear_body;
}

multiversion! {
    /// Computes `n = tanh(n + bias)`, and the new state `n + z (before - n)`. The blocks are r, z, n, q.
    pub(crate) fn gru_reset(bias: &[f32], before: &[f32], blocks: &mut [f32], hidden: &mut [f32]) = gru_reset_body;
}

multiversion! {
    /// Adds the gradients of z and n to the blocks r, z, n of `dgates`; they follow from the gradient `d` of the
    /// state. Then turns z and n into gradients of the gates; block r is not changed. `saved` contains the
    /// activations and the state before the step. `kept` becomes the part of the gradient that passes directly to the
    /// state before the step.
    pub(crate) fn gru_grad(saved: [&[f32]; 2], d: &[f32], dgates: &mut [f32], kept: &mut [f32]) = gru_grad_body;
}

multiversion! {
    /// Adds `a b` to the gradient `dr` of the activation of a reset gate, and turns the sum into the gradient of the
    /// gate.
    pub(crate) fn reset_grad(r: &[f32], a: &[f32], b: &[f32], dr: &mut [f32]) = reset_grad_body;
}

multiversion! {
    /// Adds `a b` to `out`.
    pub(crate) fn add_product(a: &[f32], b: &[f32], out: &mut [f32]) = add_product_body;
}

multiversion! {
    /// Computes the gradient of `x` from the gradient `d` of `y = tanh(x)`.
    pub(crate) fn tanh_grad(y: &[f32], d: &[f32], dx: &mut [f32]) = tanh_grad_body;
}

multiversion! {
    /// Computes the gradient of `x` from the gradient `d` of `y = max(0, x)`.
    pub(crate) fn relu_grad(y: &[f32], d: &[f32], dx: &mut [f32]) = relu_grad_body;
}

/// Returns the four blocks of a row. The compiler can infer that their lengths are equal.
#[inline(always)]
fn four(x: &[f32], len: usize) -> [&[f32]; 4] {
    [0, 1, 2, 3].map(|i| &x[i * len..(i + 1) * len])
}

#[inline(always)]
fn four_mut(x: &mut [f32], len: usize) -> [&mut [f32]; 4] {
    let (a, x) = x.split_at_mut(len);
    let (b, x) = x.split_at_mut(len);
    let (c, x) = x.split_at_mut(len);
    [a, b, c, &mut x[..len]]
}

#[inline(always)]
fn lstm_cell_body<const FMA: bool>(gates: [&mut [f32]; 4], before: &[f32], cell: &mut [f32], hidden: &mut [f32]) {
    let len = cell.len();
    let [i, f, g, o] = gates.map(|gate| &mut gate[..len]);
    let (before, hidden) = (&before[..len], &mut hidden[..len]);
    for n in 0..len {
        i[n] = k::sigmoid::<FMA>(i[n]);
        f[n] = k::sigmoid::<FMA>(f[n]);
        g[n] = k::tanh::<FMA>(g[n]);
        o[n] = k::sigmoid::<FMA>(o[n]);
        let c = k::mul_add::<FMA>(f[n], before[n], i[n] * g[n]);
        cell[n] = c;
        hidden[n] = o[n] * k::tanh::<FMA>(c);
    }
}

/// Returns the gradient of the argument of a sigmoid, given the gradient `d` of the sigmoid's value `y`.
#[inline(always)]
fn through_sigmoid(d: f32, y: f32) -> f32 {
    d * (y * (1.0 - y))
}

/// Returns the gradient of the argument of a tanh, given the gradient `d` of the value `y` of the tanh.
#[inline(always)]
fn through_tanh<const FMA: bool>(d: f32, y: f32) -> f32 {
    d * k::mul_add::<FMA>(-y, y, 1.0)
}

#[inline(always)]
fn lstm_cell_grad_body<const FMA: bool>(
    [activations, cell, before]: [&[f32]; 3],
    dh: &[f32],
    dc: &mut [f32],
    dgates: &mut [f32],
) {
    let len = dc.len();
    let [i, f, g, o] = four(activations, len);
    let [di, df, dg, d_o] = four_mut(dgates, len);
    let (cell, before, dh) = (&cell[..len], &before[..len], &dh[..len]);
    for n in 0..len {
        let shown = k::tanh::<FMA>(cell[n]);
        let d = dc[n] + through_tanh::<FMA>(dh[n] * o[n], shown);
        di[n] = through_sigmoid(k::mul_add::<FMA>(d, g[n], di[n]), i[n]);
        df[n] = through_sigmoid(k::mul_add::<FMA>(d, before[n], df[n]), f[n]);
        dg[n] = through_tanh::<FMA>(k::mul_add::<FMA>(d, i[n], dg[n]), g[n]);
        d_o[n] = through_sigmoid(k::mul_add::<FMA>(dh[n], shown, d_o[n]), o[n]);
        dc[n] = d * f[n];
    }
}

#[inline(always)]
fn sigmoid_body<const FMA: bool>(x: &mut [f32]) {
    for x in x {
        *x = k::sigmoid::<FMA>(*x);
    }
}

#[inline(always)]
fn gru_linear_body<const FMA: bool>(own: &[f32], before: &[f32], blocks: &mut [f32], hidden: &mut [f32]) {
    let len = hidden.len();
    let [r, z, n, q] = four_mut(blocks, len);
    let (own, before) = (&own[..len], &before[..len]);
    for at in 0..len {
        n[at] = k::tanh::<FMA>(k::mul_add::<FMA>(r[at], q[at], own[at]));
        hidden[at] = k::mul_add::<FMA>(z[at], before[at] - n[at], n[at]);
    }
}

#[inline(always)]
fn gru_reset_body<const FMA: bool>(bias: &[f32], before: &[f32], blocks: &mut [f32], hidden: &mut [f32]) {
    let len = hidden.len();
    let [_, z, n, _] = four_mut(blocks, len);
    let (bias, before) = (&bias[..len], &before[..len]);
    for at in 0..len {
        n[at] = k::tanh::<FMA>(n[at] + bias[at]);
        hidden[at] = k::mul_add::<FMA>(z[at], before[at] - n[at], n[at]);
    }
}

#[inline(always)]
fn gru_grad_body<const FMA: bool>([activations, before]: [&[f32]; 2], d: &[f32], dgates: &mut [f32], kept: &mut [f32]) {
    let len = kept.len();
    let [_, z, n, _] = four(activations, len);
    let (before, d) = (&before[..len], &d[..len]);
    let (_, dgates) = dgates.split_at_mut(len);
    let (dz, dn) = dgates.split_at_mut(len);
    let dn = &mut dn[..len];
    for at in 0..len {
        dz[at] = through_sigmoid(k::mul_add::<FMA>(d[at], before[at] - n[at], dz[at]), z[at]);
        dn[at] = through_tanh::<FMA>(k::mul_add::<FMA>(d[at], 1.0 - z[at], dn[at]), n[at]);
        kept[at] = d[at] * z[at];
    }
}

#[inline(always)]
fn reset_grad_body<const FMA: bool>(r: &[f32], a: &[f32], b: &[f32], dr: &mut [f32]) {
    for (((dr, &r), &a), &b) in dr.iter_mut().zip(r).zip(a).zip(b) {
        *dr = through_sigmoid(k::mul_add::<FMA>(a, b, *dr), r);
    }
}

#[inline(always)]
fn add_product_body<const FMA: bool>(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = k::mul_add::<FMA>(a, b, *out);
    }
}

#[inline(always)]
fn tanh_grad_body<const FMA: bool>(y: &[f32], d: &[f32], dx: &mut [f32]) {
    for ((dx, &y), &d) in dx.iter_mut().zip(y).zip(d) {
        *dx = through_tanh::<FMA>(d, y);
    }
}

#[inline(always)]
fn relu_grad_body<const FMA: bool>(y: &[f32], d: &[f32], dx: &mut [f32]) {
    for ((dx, &y), &d) in dx.iter_mut().zip(y).zip(d) {
        *dx = if y > 0.0 { d } else { 0.0 };
    }
}
