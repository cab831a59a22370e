//! Charts of the HTML page.

use super::html::escaped;
use super::svg::{LogAxis, Svg};
use crate::{Bound, Measurement, Record, Suite, metric};
use meganeura::precision::Precision;

/// Number of colours.
const COLOURS: usize = 8;

/// Maximum share of peak that a bar can show.
pub(super) const MAX_SHARE: f64 = 1.5;

/// Returns the position of a share of peak, in percent of the chart's width.
fn along(share: f64) -> f64 {
    100.0 * share.clamp(0.0, MAX_SHARE) / MAX_SHARE
}

/// Device in a precision; each has one colour in the charts.
#[derive(Clone, PartialEq)]
pub(super) struct Subject {
    pub(super) device: String,
    pub(super) precision: Precision,
}

impl Subject {
    fn of(measurement: &Measurement) -> Self {
        Subject {
            device: measurement.device.clone(),
            precision: measurement.precision,
        }
    }
}

/// Record to draw, and its devices in the order of their colours.
pub(super) struct Charts<'a> {
    record: &'a Record,
    pub(super) subjects: Vec<Subject>,
}

impl<'a> Charts<'a> {
    pub(super) fn new(record: &'a Record) -> Self {
        let mut subjects: Vec<Subject> = Vec::new();
        for subject in record.results.iter().map(Subject::of) {
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        Charts { record, subjects }
    }

    /// Returns the CSS class of a device's colour.
    pub(super) fn colour(&self, subject: &Subject) -> String {
        let at = self.subjects.iter().position(|s| s == subject).unwrap_or(0);
        format!("c{}", at % COLOURS)
    }

    fn colour_of(&self, measurement: &Measurement) -> String {
        self.colour(&Subject::of(measurement))
    }

    /// Returns bars with the share of peak of each workload of a suite, as HTML; empty if no workload has a roofline
    /// bound.
    pub(super) fn bars(&self, suite: Suite) -> String {
        let of_suite = |m: &&Measurement| m.suite == suite && m.roofline.is_some();
        let results: Vec<&Measurement> = self.record.results.iter().filter(of_suite).collect();
        let mut names: Vec<&str> = results.iter().map(|m| m.workload.as_str()).collect();
        names.dedup();
        if names.is_empty() {
            return String::new();
        }
        let shows = format!("Share of peak of the workloads of the suite {suite}");
        let mut html = format!("<div class=\"shares\" role=\"group\" aria-label=\"{shows}\">\n");
        let ticks: String = [(0.0, "0"), (0.5, "50 %"), (1.0, "limit")]
            .map(|(share, label)| format!("<span style=\"left:{:.1}%\">{label}</span>", along(share)))
            .concat();
        html += &format!("<div class=\"axis\">{ticks}</div>\n");
        for name in names {
            let own = results.iter().filter(|m| m.workload == name);
            let bars: String = own.map(|m| self.bar(m)).collect();
            html += &format!(
                "<div class=\"work\"><span class=\"name\">{}</span>{bars}</div>\n",
                escaped(name)
            );
        }
        html + "</div>"
    }

    /// Returns one bar and its numbers as HTML, with marks if the share exceeds 1, or is too large for the chart.
    fn bar(&self, m: &Measurement) -> String {
        let share = m.share().unwrap_or(0.0);
        let beyond = if share > 1.0 {
            let class = if share > MAX_SHARE { "beyond clipped" } else { "beyond" };
            let width = along(share) - along(1.0);
            format!(
                "<i class=\"{class}\" style=\"left:{:.1}%;width:{width:.1}%\"></i>",
                along(1.0)
            )
        } else {
            String::new()
        };
        format!(
            "<span class=\"track {}\" title=\"{}\"><i class=\"bar\" style=\"width:{:.1}%\"></i>{beyond}</span>\
             <span class=\"value\">{:.0} %, {}s</span>",
            self.colour_of(m),
            escaped(&described(m)).replace('"', "&quot;"),
            along(share.min(1.0)),
            share * 100.0,
            metric(m.seconds.median)
        )
    }

    /// Draws FLOP/s over FLOP/byte, under the roofline of a device (Williams, Waterman and Patterson, 2009).
    pub(super) fn roofline(&self, device: &str) -> String {
        let Some(peak_rates) = self.record.device(device).map(|d| d.peak_rates) else {
            return String::new();
        };
        let on = |m: &&Measurement| m.device == device && m.roofline.is_some() && m.cost.flops > 0;
        let results: Vec<&Measurement> = self.record.results.iter().filter(on).collect();
        if results.is_empty() {
            return String::new();
        }
        let mut svg = Svg::new([480.0, 320.0], &format!("Roofline of {device}"));
        let intensities = results.iter().map(|m| m.cost.intensity());
        let x = LogAxis::around(intensities, [60.0, 460.0]);
        let [low, high] = x.ends();
        let roof = |intensity: f64, rate: f64| (intensity * peak_rates.bytes_per_second).min(rate);
        let highest = peak_rates
            .product_rate(Precision::Mixed)
            .min(high * peak_rates.bytes_per_second);
        let rates = results.iter().filter_map(|m| m.flops_per_second());
        let y = LogAxis::around(rates.chain([highest, roof(low, f64::INFINITY)]), [270.0, 30.0]);
        svg.axes(&x, &y, ["FLOP/byte", "FLOP/s"]);
        for subject in self.subjects.iter().filter(|s| s.device == device) {
            let rate = peak_rates.product_rate(subject.precision);
            let ridge = (rate / peak_rates.bytes_per_second).clamp(low, high);
            let points = [low, ridge, high].map(|i| [x.at(i), y.at(roof(i, rate))]);
            svg.path(&format!("roof {}", self.colour(subject)), &points);
        }
        for m in results {
            if let Some(rate) = m.flops_per_second() {
                let place = [x.at(m.cost.intensity()), y.at(rate)];
                svg.dot(&format!("dot {}", self.colour_of(m)), place, &described(m));
            }
        }
        svg.finish()
    }

    /// Returns the names of the series, in order.
    pub(super) fn series(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.record.results.iter().filter_map(|m| m.series.as_ref()) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }

    /// Draws the results of a series over the size.
    pub(super) fn scaling(&self, name: &str) -> String {
        let of = |m: &&Measurement| m.series.as_ref().is_some_and(|s| s.name == name);
        let results: Vec<&Measurement> = self.record.results.iter().filter(of).collect();
        let sized = |m: &Measurement| m.series.as_ref().map_or(0.0, |s| s.size as f64);
        let Some(largest) = results.iter().max_by(|a, b| sized(a).total_cmp(&sized(b))) else {
            return String::new();
        };
        // The bound of the largest workload determines the unit of the series.
        type Value = fn(&Measurement) -> f64;
        let (unit, value): (&str, Value) = match (largest.roofline.map(|f| f.bound), largest.cost.bytes) {
            (Some(Bound::Arithmetic), _) => ("FLOP/s", |m| m.flops_per_second().unwrap_or(0.0)),
            (Some(Bound::Memory), _) | (None, 1..) => ("B/s", |m| m.bytes_per_second().unwrap_or(0.0)),
            _ => ("seconds", |m| m.seconds.median),
        };
        let mut svg = Svg::new([480.0, 320.0], &format!("{name}: {unit} by size"));
        let x = LogAxis::around(results.iter().map(|m| sized(m)), [60.0, 460.0]);
        let limit = |m: &Measurement| {
            let roofline = m.roofline.map(|roofline| roofline.seconds)?;
            let limited = Measurement {
                seconds: crate::Distribution {
                    median: roofline,
                    ..m.seconds
                },
                ..m.clone()
            };
            Some(value(&limited))
        };
        let limits = results.iter().filter_map(|m| limit(m));
        let y = LogAxis::around(results.iter().map(|m| value(m)).chain(limits), [270.0, 30.0]);
        let counted = largest.series.as_ref().map_or("", |s| s.unit.as_str());
        svg.axes(&x, &y, [counted, unit]);
        for subject in &self.subjects {
            let mut own: Vec<&&Measurement> = results.iter().filter(|m| Subject::of(m) == *subject).collect();
            own.sort_by(|a, b| sized(a).total_cmp(&sized(b)));
            let colour = self.colour(subject);
            let at = |m: &Measurement, value: f64| [x.at(sized(m)), y.at(value)];
            let roofs: Vec<[f64; 2]> = own.iter().filter_map(|m| limit(m).map(|v| at(m, v))).collect();
            if roofs.len() > 1 {
                svg.path(&format!("roof {colour}"), &roofs);
            }
            let points: Vec<[f64; 2]> = own.iter().map(|m| at(m, value(m))).collect();
            if points.len() > 1 {
                svg.path(&format!("line {colour}"), &points);
            }
            for (m, point) in own.iter().zip(points) {
                svg.dot(&format!("dot {colour}"), point, &described(m));
            }
        }
        svg.finish()
    }
}

/// Returns the tooltip of a result.
fn described(m: &Measurement) -> String {
    let mut parts = vec![
        format!("{}, {} in {}", m.workload, m.device, m.precision),
        format!("{}s, ± {:.0} %", metric(m.seconds.median), m.seconds.scatter() * 100.0),
    ];
    parts.extend(m.flops_per_second().map(|rate| format!("{}FLOP/s", metric(rate))));
    parts.extend(m.bytes_per_second().map(|rate| format!("{}B/s", metric(rate))));
    parts.extend(
        m.roofline
            .map(|roofline| format!("roofline bound {}s ({})", metric(roofline.seconds), roofline.bound)),
    );
    parts.join("; ")
}
