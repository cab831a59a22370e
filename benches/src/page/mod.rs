//! HTML page of a record: one file without scripts and external references.

mod charts;
pub mod html;
mod svg;

use std::fmt::Write;

use super::{Measurement, Record, RecordComparison, Suite, Verdict, metric};
use charts::Charts;
use html::{STYLE, escaped};

impl Record {
    /// Returns the record as HTML: shares of peak, rooflines, series by size, all numbers, and the devices; with a comparison,
    /// also the changes.
    pub fn html(&self, comparison: Option<&RecordComparison>) -> String {
        let charts = Charts::new(self);
        let mut page = Page::default();
        page.key(&charts);
        page.section(
            "shares",
            "Share of peak",
            "A bar is roofline bound / time. The bound is the larger of FLOPs / matmul rate and bytes / copy rate, plus launch \
             cost. Kernels whose data stay in a cache can exceed the limit (100 %), and so can those that only read.",
        );
        page.marks(&self.results);
        for suite in Suite::ALL {
            let bars = charts.bars(suite);
            if !bars.is_empty() {
                page.push(format_args!("<h3>{suite}</h3>\n{bars}"));
            }
        }
        page.section(
            "roofline",
            "Rooflines",
            "Each dot is a workload; the lines are the measured copy and matmul rates.",
        );
        let rooflines = self
            .devices
            .iter()
            .map(|d| (format!("{}: {}", d.selector, d.name), charts.roofline(&d.selector)));
        page.figures(rooflines);
        page.section("scaling", "By size", "Dashed lines are roofline bounds.");
        let series = charts.series();
        page.figures(series.iter().map(|name| ((*name).to_owned(), charts.scaling(name))));
        page.section(
            "numbers",
            "All numbers",
            "Medians; ± is half of the range from the 10th to the 90th percentile.",
        );
        page.results(self, comparison);
        page.section("environment", "Devices", "");
        page.environment(self, comparison);
        let title = format!("Benchmarks: {} workloads, Meganeura {}", self.sizes, self.meganeura);
        let style = format!("{STYLE}{}", include_str!("bench.css"));
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{style}</style>\n</head>\n<body>\n<header><h1>{title}</h1>\n<nav>{}</nav></header>\n<main>\n{}</main>\n\
             </body>\n</html>\n",
            page.links, page.body
        )
    }
}

/// HTML page while it is written.
#[derive(Default)]
struct Page {
    links: String,
    body: String,
}

impl Page {
    fn push(&mut self, text: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{text}");
    }

    fn section(&mut self, id: &str, title: &str, hint: &str) {
        let _ = write!(self.links, "<a href=\"#{id}\">{title}</a>");
        self.push(format_args!("<h2 id=\"{id}\">{title}</h2>"));
        if !hint.is_empty() {
            self.push(format_args!("<p class=\"hint\">{hint}</p>"));
        }
    }

    fn key(&mut self, charts: &Charts) {
        let entries = charts.subjects.iter().map(|subject| {
            let colour = charts.colour(subject);
            let device = escaped(&subject.device);
            format!("<span><i class=\"{colour}\"></i>{device}, {}</span>", subject.precision)
        });
        let entries: String = entries.collect();
        self.push(format_args!("<div class=\"key\">{entries}</div>"));
    }

    /// Adds a legend of the marks that bars have, if there are any.
    fn marks(&mut self, results: &[Measurement]) {
        let highest = results.iter().filter_map(Measurement::share).fold(0.0, f64::max);
        let beyond = "<span class=\"meaning\"><i class=\"beyond\"></i>beyond the limit: data in a cache or only read, or a limit measured under load</span>";
        let clipped = "<span class=\"meaning\"><b>»</b>longer than drawn; the number is exact</span>";
        let entries = match highest {
            share if share > charts::MAX_SHARE => [beyond, clipped].concat(),
            share if share > 1.0 => beyond.to_owned(),
            _ => return,
        };
        self.push(format_args!("<div class=\"key\">{entries}</div>"));
    }

    fn figures(&mut self, figures: impl Iterator<Item = (String, String)>) {
        self.push(format_args!("<div class=\"charts\">"));
        for (caption, drawing) in figures.filter(|(_, drawing)| !drawing.is_empty()) {
            let caption = escaped(&caption);
            self.push(format_args!(
                "<figure><figcaption>{caption}</figcaption>{drawing}</figure>"
            ));
        }
        self.push(format_args!("</div>"));
    }

    fn row(&mut self, cell: &str, texts: &[String]) {
        let cells: String = texts.iter().map(|t| format!("<{cell}>{t}</{cell}>")).collect();
        self.push(format_args!("<tr>{cells}</tr>"));
    }

    fn results(&mut self, record: &Record, comparison: Option<&RecordComparison>) {
        let mut head = COLUMNS.to_vec();
        if comparison.is_some() {
            head.push("time / time before");
        }
        // Wide tables scroll separately, and the names of workloads stay visible.
        self.push(format_args!("<div class=\"scroll\"><table class=\"numbers\">"));
        let cell = |tag: &str, column: usize, text: &str| {
            let class = match column {
                0 => "name",
                1 | 2 | BOUND => "text",
                _ => "number",
            };
            format!("<{tag} class=\"{class}\">{}</{tag}>", escaped(text))
        };
        let row = |tag: &str, texts: &[&str]| -> String {
            let texts = texts.iter().enumerate();
            texts.map(|(column, text)| cell(tag, column, text)).collect()
        };
        self.push(format_args!("<tr>{}</tr>", row("th", &head)));
        let mut suite = None;
        for m in &record.results {
            if suite.replace(m.suite) != Some(m.suite) {
                let rest = head.len() - 1;
                self.push(format_args!(
                    "<tr class=\"suite\"><th class=\"name\">{}</th><th colspan=\"{rest}\"></th></tr>",
                    m.suite
                ));
            }
            let texts = cells(m);
            let cells = row("td", &texts.iter().map(String::as_str).collect::<Vec<_>>());
            let change = comparison.map_or(String::new(), |c| match c.change(m) {
                None => "<td>new</td>".into(),
                Some(change) => {
                    let class = match change.verdict {
                        Verdict::Faster => "faster",
                        Verdict::Slower => "slower",
                        Verdict::Same => "same",
                    };
                    format!("<td class=\"{class}\">{:.2}</td>", change.ratio())
                }
            });
            self.push(format_args!("<tr>{cells}{change}</tr>"));
        }
        self.push(format_args!("</table></div>"));
        if !record.skipped.is_empty() {
            self.push(format_args!("<h3>Skipped</h3>\n<table>"));
            for l in &record.skipped {
                let texts = [
                    l.suite.to_string(),
                    l.workload.clone(),
                    l.device.clone(),
                    l.reason.clone(),
                ];
                self.row("td", &texts.map(|text| escaped(&text)));
            }
            self.push(format_args!("</table>"));
        }
    }

    fn environment(&mut self, record: &Record, comparison: Option<&RecordComparison>) {
        self.push(format_args!("<table>"));
        let threads = format!("{}, {} threads", record.system, record.host_threads);
        self.row("td", &["host".to_owned(), escaped(&threads), String::new()]);
        for d in &record.devices {
            let mut about = format!("{} ({})", d.name, d.kind);
            let driver = d.driver.iter().map(|driver| format!(", {driver}"));
            let plugin = d.plugin_sha256.iter().map(|sum| format!(", plugin sha256 {sum}"));
            about.extend(driver.chain(plugin));
            let peak_rates = d.peak_rates.to_string();
            self.row("td", &[&d.selector, &about, &peak_rates].map(|text| escaped(text)));
        }
        self.push(format_args!("</table>"));
        for c in comparison.iter().flat_map(|c| &c.peak_rates) {
            let replaced = c
                .replaced
                .iter()
                .map(|[then, now]| format!(" The device was {then} and is {now}."));
            let text = format!(
                "{}, now / before: copy rate {:.2}, matmul rate {:.2}, launch cost {:.2}.{}",
                c.device,
                c.copies,
                c.matmuls,
                c.launches,
                replaced.collect::<String>()
            );
            self.push(format_args!("<p>{}</p>", escaped(&text)));
        }
    }
}

/// Headers of the table of results.
const COLUMNS: [&str; 12] = [
    "workload",
    "device",
    "precision",
    "time",
    "±",
    "synchronized",
    "max rel. error",
    "FLOP/s",
    "B/s",
    "roofline bound",
    "share of peak",
    "bound",
];

/// Index of the column with the limiting resource. Like the first three columns, it contains text.
const BOUND: usize = COLUMNS.len() - 1;

/// Returns the cells of a result in the table.
fn cells(m: &Measurement) -> Vec<String> {
    let seconds = |value: f64| format!("{}s", metric(value));
    let or_none = |value: Option<String>| value.unwrap_or_default();
    vec![
        m.workload.clone(),
        m.device.clone(),
        m.precision.to_string(),
        seconds(m.seconds.median),
        format!("{:.1} %", m.seconds.scatter() * 100.0),
        or_none(m.synchronized_seconds.map(seconds)),
        or_none(m.difference.map(|off| format!("{off:.0e}"))),
        or_none(m.flops_per_second().map(metric)),
        or_none(m.bytes_per_second().map(metric)),
        or_none(m.roofline.map(|roofline| seconds(roofline.seconds))),
        or_none(m.share().map(|share| format!("{:.0} %", share * 100.0))),
        or_none(m.roofline.map(|roofline| roofline.bound.to_string())),
    ]
}
