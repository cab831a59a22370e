//! Angles, windows and transforms of signals.

use meganeura_core::graph::{Graph, NodeId, Value};

use super::{OnnxOp, limits, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::Tensor;

type Built = Result<Vec<Operand>, String>;

pub(super) const OPS: &[OnnxOp] = &[
    op("BlackmanWindow", 17, |c| window(c, &[0.42, -0.5, 0.08])).partly("a size that depends on the data of an input"),
    op("HammingWindow", 17, |c| window(c, &[25.0 / 46.0, -21.0 / 46.0]))
        .partly("a size that depends on the data of an input"),
    op("HannWindow", 17, |c| window(c, &[0.5, -0.5])).partly("a size that depends on the data of an input"),
    op("MelWeightMatrix", 17, mel_weights).partly("sizes that depend on the data of an input"),
];

/// `atan t / t` for 0 <= t <= 1 as a polynomial in t^2, to 2e-8: Abramowitz and Stegun, 4.4.49.
const ATAN: [f64; 9] = [
    1.0,
    -0.333_331_452_8,
    0.199_935_508_5,
    -0.142_088_994_4,
    0.106_562_639_3,
    -0.075_289_640_0,
    0.042_909_613_8,
    -0.016_165_736_7,
    0.002_866_225_7,
];

/// Returns the angle of the point (x, y) with the x axis, between -pi and pi; 0 at the origin.
pub(super) fn angle(g: &mut Graph, y: Value, x: Value) -> NodeId {
    let dtype = g.dtype(y);
    let number = |g: &mut Graph, v: f64| g.scalar_of(dtype, v);
    let (height, width) = (g.abs(y), g.abs(x));
    let (short, long) = (g.minimum(height, width), g.maximum(height, width));
    let (zero, one) = (number(g, 0.0), number(g, 1.0));
    let origin = g.equal(long, zero);
    let long = g.select(origin, one, long);
    let t = g.div(short, long);
    let square = g.square(t);
    let mut sum = number(g, ATAN[8]);
    for &factor in ATAN[..8].iter().rev() {
        let product = g.mul(sum, square);
        let factor = number(g, factor);
        sum = g.add(product, factor);
    }
    let base = g.mul(sum, t);
    let steep = g.greater_than(height, width);
    let quarter = number(g, std::f64::consts::FRAC_PI_2);
    let rest = g.sub(quarter, base);
    let base = g.select(steep, rest, base);
    let left = g.less_than(x, zero);
    let half = number(g, std::f64::consts::PI);
    let rest = g.sub(half, base);
    let base = g.select(left, rest, base);
    let below = g.less_than(y, zero);
    let negative = g.neg(base);
    g.select(below, negative, base)
}

/// Returns the angle whose tangent is x.
pub(super) fn atan(g: &mut Graph, x: Value) -> NodeId {
    let dtype = g.dtype(x);
    let one = g.scalar_of(dtype, 1.0);
    angle(g, x, one.into())
}

/// Builds a sum of cosines: `sum over k of a_k cos(2 pi k n / N)`.
fn window(call: &mut Call, factors: &[f64]) -> Built {
    let element = ElementType::from_number(call.int("output_datatype", 1)?)?;
    let size = call.known_scalar(0, "the size")?.ok_or("the size is missing")?;
    if !(0.0..=limits::MAX_ELEMENTS as f64).contains(&size) {
        return Err(format!("a window of {size} elements cannot be made"));
    }
    let count = size as usize;
    let period = if call.int("periodic", 1)? != 0 {
        size
    } else {
        size - 1.0
    };
    let value = |n: usize| -> f64 {
        let terms = factors.iter().enumerate();
        terms
            .map(|(k, a)| a * (2.0 * std::f64::consts::PI * k as f64 * n as f64 / period).cos())
            .sum()
    };
    let data: Vec<f64> = (0..count).map(value).collect();
    let tensor = if element.is_float() {
        Tensor::floats(element, &[count], data)
    } else {
        Tensor::integers(element, &[count], data.iter().map(|&v| v as i64).collect())
    };
    Ok(vec![call.known_result(0, tensor)])
}

/// Builds triangles on the mel scale over the bins of a spectrum.
fn mel_weights(call: &mut Call) -> Built {
    let element = ElementType::from_number(call.int("output_datatype", 1)?)?;
    let names = [
        "num_mel_bins",
        "dft_length",
        "sample_rate",
        "lower_edge_hertz",
        "upper_edge_hertz",
    ];
    let mut numbers = [0.0; 5];
    for (i, name) in names.iter().enumerate() {
        numbers[i] = call
            .known_scalar(i, name)?
            .ok_or_else(|| format!("{name} is missing"))?;
    }
    let [bins, length, rate, low, high] = numbers;
    if !(1.0..=65536.0).contains(&bins) || !(1.0..=65536.0).contains(&length) || !element.is_float() {
        return Err(format!("{bins} bins of a spectrum of {length} cannot be made"));
    }
    let rows = length as usize / 2 + 1;
    let columns = bins as usize;
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let hertz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let step = (mel(high) - mel(low)) / (bins + 2.0);
    let edge = |i: usize| ((length + 1.0) * hertz(mel(low) + i as f64 * step) / rate).floor();
    let mut data = vec![0.0; limits::elements(&[rows, columns], "a matrix")?];
    for column in 0..columns {
        let (start, center, end) = (edge(column), edge(column + 1), edge(column + 2));
        for row in 0..rows {
            let at = row as f64;
            let value = if at == center && center == start {
                1.0
            } else if (start..=center).contains(&at) && center > start {
                (at - start) / (center - start)
            } else if at > center && at < end && end > center {
                (end - at) / (end - center)
            } else {
                0.0
            };
            data[row * columns + column] = value;
        }
    }
    Ok(vec![
        call.known_result(0, Tensor::floats(element, &[rows, columns], data)),
    ])
}
