//! SVG drawings as text.

use std::fmt::Write;

use super::html::escaped;
use crate::metric;

/// Logarithmic axis that ends at powers of ten.
pub(super) struct LogAxis {
    /// Decimal exponents of its ends.
    exponents: [i32; 2],
    /// Pixel positions of the ends.
    pixels: [f64; 2],
}

impl LogAxis {
    /// Creates an axis for all values above 0; from 1 to 10 if there are none.
    pub(super) fn around(values: impl Iterator<Item = f64>, pixels: [f64; 2]) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|v| v.is_finite() && *v > 0.0) {
            (low, high) = (low.min(value.log10()), high.max(value.log10()));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let (first, last) = ((low + 1e-9).floor() as i32, (high - 1e-9).ceil() as i32);
        LogAxis {
            exponents: [first, last.max(first + 1)],
            pixels,
        }
    }

    /// Returns the pixel position of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let [first, last] = self.exponents.map(f64::from);
        let part = (value.max(f64::MIN_POSITIVE).log10() - first) / (last - first);
        self.pixels[0] + part * (self.pixels[1] - self.pixels[0])
    }

    /// Returns the pixel positions of its ends.
    pub(super) fn ends(&self) -> [f64; 2] {
        self.exponents.map(|e| 10f64.powi(e))
    }

    /// Returns the powers of ten between its ends.
    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> {
        let [first, last] = self.exponents;
        (first..=last).map(|e| 10f64.powi(e))
    }
}

/// Formats a number without trailing zeros, for the ends of axes. Small numbers have no prefix: 10 m would be read as metres.
fn tick(value: f64) -> String {
    if (1e-3..1.0).contains(&value) {
        // Powers of ten may be inexact in the last digit.
        return format!("{value:.3}").trim_end_matches('0').to_owned();
    }
    let text = metric(value);
    match text.split_once(' ') {
        Some((number, prefix)) if number.contains('.') => {
            format!("{} {prefix}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// SVG drawing.
pub(super) struct Svg {
    text: String,
}

impl Svg {
    /// Creates an empty drawing of a size; `shows` is its text alternative.
    pub(super) fn new([width, height]: [f64; 2], shows: &str) -> Self {
        let shows = escaped(shows).replace('"', "&quot;");
        Svg {
            text: format!(r#"<svg viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{shows}">"#),
        }
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{element}");
    }

    pub(super) fn dot(&mut self, class: &str, [x, y]: [f64; 2], tip: &str) {
        let tip = escaped(tip);
        self.push(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="4.5"><title>{tip}</title></circle>"#
        ));
    }

    pub(super) fn path(&mut self, class: &str, points: &[[f64; 2]]) {
        let steps: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1} {y:.1}")).collect();
        self.push(format_args!(r#"<path class="{class}" d="M{}"/>"#, steps.join(" L")));
    }

    /// Adds text at a position, with the anchor `start`, `middle` or `end`.
    pub(super) fn text(&mut self, class: &str, anchor: &str, [x, y]: [f64; 2], text: &str) {
        let text = escaped(text);
        self.push(format_args!(
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        ));
    }

    /// Draws the lines, numbers and names of both axes.
    pub(super) fn axes(&mut self, x: &LogAxis, y: &LogAxis, names: [&str; 2]) {
        let ([left, right], [bottom, top]) = (x.pixels, y.pixels);
        // Prevents overlapping numbers on a long axis.
        let every = |axis: &LogAxis| {
            (axis.exponents[1] - axis.exponents[0])
                .unsigned_abs()
                .div_ceil(9)
                .max(1) as usize
        };
        for value in x.ticks().step_by(every(x)) {
            self.path("grid", &[[x.at(value), bottom], [x.at(value), top]]);
            self.text("faint", "middle", [x.at(value), bottom + 18.0], &tick(value));
        }
        for value in y.ticks().step_by(every(y)) {
            self.path("grid", &[[left, y.at(value)], [right, y.at(value)]]);
            self.text("faint", "end", [left - 6.0, y.at(value) + 4.0], &tick(value));
        }
        self.text("faint", "end", [right, bottom + 36.0], names[0]);
        self.text("faint", "start", [8.0, top - 16.0], names[1]);
    }

    /// Returns the drawing as an SVG element.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>");
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_axes_are_short() {
        assert_eq!(tick(1e4), "10 k");
        assert_eq!(tick(100.0), "100 ");
        assert_eq!([tick(0.1), tick(0.001)], ["0.1", "0.001"]);
    }

    #[test]
    fn an_axis_has_room_for_its_values() {
        let axis = LogAxis::around([3.0, 4000.0, f64::NAN, 0.0].into_iter(), [100.0, 500.0]);
        assert_eq!(axis.ends(), [1.0, 1e4]);
        assert_eq!((axis.at(1.0), axis.at(1e4), axis.at(100.0)), (100.0, 500.0, 300.0));
        assert_eq!(LogAxis::around([10.0].into_iter(), [0.0, 1.0]).ends(), [10.0, 100.0]);
        assert_eq!(LogAxis::around([].into_iter(), [0.0, 1.0]).ticks().count(), 2);
    }
}
