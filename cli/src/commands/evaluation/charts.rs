//! Charts of the evaluation page, as SVG.

use std::fmt::Write;

use meganeura_bench::html::escaped;

/// Width and height of a chart in pixels.
const SIZE: [f64; 2] = [340.0, 300.0];
/// Space for the labels: left, right, top and bottom.
const MARGINS: [f64; 4] = [52.0, 14.0, 12.0, 44.0];
/// Maximum number of points of a line or of a scatter plot. More would make the page large, and are not visible.
const MAX_POINTS: usize = 400;

/// A chart with linear axes.
pub(super) struct Chart {
    x: [f64; 2],
    y: [f64; 2],
    body: String,
    /// Names of the lines, with the numbers of their colours.
    legend: Vec<(usize, String)>,
}

impl Chart {
    /// Creates a chart whose axes have these names and ranges.
    pub(super) fn new([x_name, y_name]: [&str; 2], x: [f64; 2], y: [f64; 2]) -> Self {
        let mut chart = Chart {
            x: widened(x),
            y: widened(y),
            body: String::new(),
            legend: Vec::new(),
        };
        chart.draw_axes(x_name, y_name);
        chart
    }

    /// Creates a chart of fractions: both axes are from 0 to 1.
    pub(super) fn of_fractions(names: [&str; 2]) -> Self {
        Chart::new(names, [0.0, 1.0], [0.0, 1.0])
    }

    /// Returns the pixel of a point.
    fn at(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let [left, right, top, bottom] = MARGINS;
        let part = |value: f64, [low, high]: [f64; 2]| ((value - low) / (high - low)).clamp(0.0, 1.0);
        [
            left + part(x, self.x) * (SIZE[0] - left - right),
            SIZE[1] - bottom - part(y, self.y) * (SIZE[1] - top - bottom),
        ]
    }

    fn draw_axes(&mut self, x_name: &str, y_name: &str) {
        let [[x0, x1], [y0, y1]] = [self.x, self.y];
        for x in ticks(self.x) {
            let [[px, low], [_, high]] = [self.at([x, y0]), self.at([x, y1])];
            self.add(format_args!(
                "<line class=\"grid\" x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>\
                 <text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                low + 16.0,
                short(x)
            ));
        }
        for y in ticks(self.y) {
            let [[low, py], [high, _]] = [self.at([x0, y]), self.at([x1, y])];
            self.add(format_args!(
                "<line class=\"grid\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{py:.1}\" y2=\"{py:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                low - 6.0,
                py + 4.0,
                short(y)
            ));
        }
        let [width, height] = SIZE;
        self.add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(12 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (width + MARGINS[0]) / 2.0,
            height - 8.0,
            escaped(x_name),
            (height - MARGINS[3]) / 2.0,
            escaped(y_name)
        ));
    }

    /// Draws the diagonal from the lower left to the upper right corner.
    pub(super) fn diagonal(&mut self) {
        let [[x0, x1], [y0, y1]] = [self.x, self.y];
        let [a, b] = [self.at([x0, y0]), self.at([x1, y1])];
        self.add(format_args!(
            "<line class=\"guide\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            a[0], a[1], b[0], b[1]
        ));
    }

    /// Draws a line through points, in the colour with this number; an empty name is not in the legend.
    pub(super) fn line(&mut self, colour: usize, name: &str, points: &[[f64; 2]]) {
        let pixels: Vec<String> = thinned(points)
            .map(|point| {
                let [x, y] = self.at(point);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        self.add(format_args!(
            "<polyline class=\"c{}\" points=\"{}\"/>",
            colour % 8,
            pixels.join(" ")
        ));
        if !name.is_empty() {
            self.legend.push((colour % 8, name.to_owned()));
        }
    }

    /// Draws points.
    pub(super) fn points(&mut self, points: &[[f64; 2]]) {
        let circles: String = thinned(points)
            .map(|point| {
                let [x, y] = self.at(point);
                format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>")
            })
            .collect();
        self.add(format_args!("<g class=\"points\">{circles}</g>"));
    }

    /// Draws bars from 0: start, end and height of each.
    pub(super) fn bars(&mut self, bars: &[(f64, f64, f64)]) {
        for &(start, end, height) in bars {
            let [[left, top], [right, base]] = [self.at([start, height]), self.at([end, 0.0])];
            self.add(format_args!(
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                left + 0.5,
                (right - left - 1.0).max(0.5),
                (base - top).max(0.0)
            ));
        }
    }

    fn add(&mut self, part: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(part);
    }

    /// Returns the chart under a title.
    pub(super) fn finish(self, title: &str) -> String {
        let [width, height] = SIZE;
        let legend: String = self
            .legend
            .iter()
            .map(|(colour, name)| format!("<span class=\"c{colour}\">{}</span>", escaped(name)))
            .collect();
        let title = escaped(title);
        format!(
            "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{}\">{}</svg><div class=\"legend\">{legend}</div></figure>\n",
            title.replace('"', "&quot;"),
            self.body
        )
    }
}

/// Returns the range of some numbers; `[0, 1]` if there are none.
pub(super) fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let ends = values
        .filter(|x| x.is_finite())
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| {
            [low.min(x), high.max(x)]
        });
    if ends[0] <= ends[1] { ends } else { [0.0, 1.0] }
}

/// Returns the range, widened if both ends are equal.
fn widened([low, high]: [f64; 2]) -> [f64; 2] {
    if high > low {
        return [low, high];
    }
    let by = low.abs().max(1.0) * 0.5;
    [low - by, high + by]
}

/// Returns up to six round numbers in a range.
fn ticks([low, high]: [f64; 2]) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|number| number as f64 * step).collect()
}

/// Formats a number with at most four significant digits.
fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs().log10().floor();
    if !(-4.0..6.0).contains(&size) {
        return format!("{value:.1e}");
    }
    let digits = (3.0 - size).clamp(0.0, 7.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Returns at most [`MAX_POINTS`] of the points, with the first and the last one.
fn thinned(points: &[[f64; 2]]) -> impl Iterator<Item = [f64; 2]> {
    let count = points.len().min(MAX_POINTS);
    let last = points.len().saturating_sub(1);
    (0..count).map(move |place| points[last * place / (count - 1).max(1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_within_the_range() {
        assert_eq!(ticks([0.0, 1.0]).len(), 6);
        assert_eq!(ticks([-3.0, 17.0]), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!(short(0.0025), "0.0025");
        assert_eq!(short(1200.0), "1200");
        assert_eq!(short(-2.5e9), "-2.5e9");
    }

    #[test]
    fn charts_have_few_points_and_escaped_names() {
        let points: Vec<[f64; 2]> = (0..5000).map(|i| [f64::from(i), f64::from(i)]).collect();
        let mut chart = Chart::new(["<x>", "y"], [0.0, 5000.0], [0.0, 0.0]);
        chart.points(&points);
        chart.line(0, "a & b", &points[..2]);
        let chart = chart.finish("\"t\"");
        assert_eq!(chart.matches("<circle").count(), MAX_POINTS);
        assert!(chart.contains("&lt;x&gt;") && chart.contains("a &amp; b") && !chart.contains("NaN"));
    }
}
