//! Fourier transforms, as products with matrices of cosines and sines.

use meganeura_core::graph::Value;

use super::{OnnxOp, limits, op};
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("DFT", 17, dft)
        .partly("a length or axis that depends on the data of an input, transforms of more than about 2900"),
    op("STFT", 17, stft).partly("frames that depend on the data of an input, or are longer than about 2900"),
];

/// Kind of the transform.
#[derive(Clone, Copy)]
struct Kind {
    length: usize,
    inverse: bool,
    /// True if the output (with `inverse`, the input) is only half of the spectrum of real numbers.
    onesided: bool,
}

impl Kind {
    fn half(&self) -> usize {
        self.length / 2 + 1
    }

    /// Returns the number of input and output elements.
    fn sizes(&self) -> (usize, usize) {
        match (self.onesided, self.inverse) {
            (false, _) => (self.length, self.length),
            (true, false) => (self.length, self.half()),
            (true, true) => (self.half(), self.length),
        }
    }

    /// Returns the matrix `[from * parts_in, to * parts_out]`; complex numbers are pairs.
    fn matrix(&self, parts_in: usize, parts_out: usize) -> Result<Vec<f32>, String> {
        let (from, to) = self.sizes();
        let (rows, columns) = (from.saturating_mul(parts_in), to.saturating_mul(parts_out));
        if rows.saturating_mul(columns) > limits::MAX_ELEMENTS {
            return Err(format!("a transform of {} elements is too long", self.length));
        }
        // Multiples of a right angle are exact, so that terms that cancel become 0.
        let circle: Vec<(f64, f64)> = (0..self.length)
            .map(|i| {
                let angle = 2.0 * std::f64::consts::PI * i as f64 / self.length as f64;
                let exact = |v: f64| if v.abs() < 1e-12 { 0.0 } else { v };
                (exact(angle.cos()), exact(angle.sin()))
            })
            .collect();
        let mut data = vec![0.0; rows * columns];
        for i in 0..from {
            // An element of the half spectrum also represents its mirror element, except at the ends.
            let twice = self.onesided && self.inverse && i != 0 && 2 * i != self.length;
            let weight = if twice { 2.0 } else { 1.0 };
            for k in 0..to {
                let (cos, sin) = circle[i * k % self.length];
                let sin = if self.inverse { sin } else { -sin };
                // (a + b i)(cos + i sin)
                let parts = [[cos, sin], [-sin, cos]];
                for (p, row) in parts.iter().enumerate().take(parts_in) {
                    for (q, value) in row.iter().enumerate().take(parts_out) {
                        data[(i * parts_in + p) * columns + k * parts_out + q] = (weight * value) as f32;
                    }
                }
            }
        }
        Ok(data)
    }
}

/// Transforms a value along an axis. Its last axis contains the real part, or the real and imaginary parts.
fn transformed(call: &mut Call, x: Value, axis: usize, kind: Kind) -> Result<Value, String> {
    let mut dims = call.graph().shape(x).to_vec();
    let rank = dims.len();
    let parts_in = dims.last().copied().unwrap_or(0);
    if axis + 1 >= rank || !(1..=2).contains(&parts_in) || kind.length == 0 || dims.contains(&0) {
        return Err(format!(
            "operands {} cannot be transformed along axis {axis}",
            call.types()
        ));
    }
    if kind.onesided && (kind.inverse != (parts_in == 2)) {
        return Err("half of a spectrum is defined for real signals only".into());
    }
    let parts_out = if kind.onesided && kind.inverse { 1 } else { 2 };
    let (from, to) = kind.sizes();
    let matrix = kind.matrix(parts_in, parts_out)?;
    let graph = call.graph();
    // Truncates, or pads with zeros.
    let mut x = x;
    if dims[axis] > from {
        x = graph.slice_axis(x, axis as i32, 0, from).into();
    } else if dims[axis] < from {
        let mut high = vec![0; rank];
        high[axis] = from - dims[axis];
        x = graph.pad(x, &vec![0; rank], &high, 0.0).into();
    }
    let mut order: Vec<i32> = (0..rank as i32).filter(|&i| i as usize != axis).collect();
    order.insert(rank - 2, axis as i32);
    let moved = graph.permute(x, &order);
    dims.remove(axis);
    dims.pop();
    let rows: usize = dims.iter().product();
    let moved = graph.reshape(moved, &[rows, from * parts_in]);
    let matrix = graph.constant(matrix, &[from * parts_in, to * parts_out]);
    let mut y = graph.matmul(moved, matrix);
    if kind.inverse {
        let factor = graph.scalar(1.0 / kind.length as f32);
        y = graph.mul(y, factor);
    }
    let y = graph.reshape(y, &[dims.as_slice(), &[to, parts_out]].concat());
    // Moves the axis back to its position.
    let mut order: Vec<i32> = (0..rank as i32).filter(|&i| i as usize != rank - 2).collect();
    order.insert(axis, rank as i32 - 2);
    Ok(graph.permute(y, &order).into())
}

fn dft(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let axis = if call.opset < 20 {
        call.int("axis", 1)?
    } else {
        call.known_scalar(2, "the axis")?.unwrap_or(-2.0) as i64
    };
    let axis = call.axis(axis, dims.len())?;
    let (inverse, onesided) = (call.int("inverse", 0)? != 0, call.int("onesided", 0)? != 0);
    let length = match call.known_scalar(1, "the length")? {
        Some(length) if (1.0..=limits::MAX_ELEMENTS as f64).contains(&length) => length as usize,
        Some(length) => return Err(format!("a transform of {length} elements is not supported")),
        None if inverse && onesided => 2 * dims[axis].saturating_sub(1).min(limits::MAX_ELEMENTS),
        None => dims[axis],
    };
    let x = call.value(0)?;
    let x = call.as_f32(x);
    let kind = Kind {
        length,
        inverse,
        onesided,
    };
    let y = transformed(call, x, axis, kind)?;
    let y = call.as_element(y, element);
    call.one(y, element)
}

/// Transforms frames of a signal.
fn stft(call: &mut Call) -> Built {
    let (mut dims, element) = (call.dims(0)?, call.element(0)?);
    let mut x = call.value(0)?;
    // Real signals may lack the last axis.
    if dims.len() == 2 {
        dims.push(1);
        x = call.graph().reshape(x, &dims).into();
    }
    let [_, size, _] = dims.as_slice() else {
        return Err(format!("expected [batch, length, parts], found {dims:?}"));
    };
    let size = *size;
    let step = call.known_scalar(1, "the step")?.ok_or("the step is missing")?;
    let window_dims = if call.has_input(2) { Some(call.dims(2)?) } else { None };
    let length = match (call.known_scalar(3, "the length")?, &window_dims) {
        (Some(length), _) => length as usize,
        (None, Some(window)) => window.iter().product(),
        (None, None) => size,
    };
    if step < 1.0 || length == 0 || length > size || window_dims.is_some_and(|w| w != [length]) {
        let types = call.types();
        return Err(format!("operands {types} do not fit frames of {length} every {step}"));
    }
    let step = step as usize;
    let frames = (size - length) / step + 1;
    if frames.saturating_mul(length) > limits::MAX_ELEMENTS || size > u32::MAX as usize {
        return Err(format!("{frames} frames of {length} are too many"));
    }
    let places = (0..frames).flat_map(|f| (0..length).map(move |i| (f * step + i) as u32));
    let places = places.collect();
    let x = call.as_f32(x);
    let graph = call.graph();
    let places = graph.constant_u32(places, &[frames, length]);
    let mut framed: Value = graph.gather_axis(x, places, 1).into();
    if let Some(window) = call.optional(2)? {
        let window = call.as_f32(window);
        let graph = call.graph();
        let window = graph.reshape(window, &[length, 1]);
        framed = graph.mul(framed, window).into();
    }
    let kind = Kind {
        length,
        inverse: false,
        onesided: call.int("onesided", 1)? != 0,
    };
    let y = transformed(call, framed, 2, kind)?;
    let y = call.as_element(y, element);
    call.one(y, element)
}
