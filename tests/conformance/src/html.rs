//! HTML page of a report.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::report::{CaseResult, Outcome, Report};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;width:100%}h1,h3,pre{overflow-wrap:anywhere}th,td{padding:.2rem .6rem;text-align:left;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}pre{white-space:pre-wrap;background:#f6f6f6;padding:.6rem}
.bad{color:#a00000;font-weight:600}.good{color:#006000;font-weight:600}.known{color:#7a5000}
@media(prefers-color-scheme:dark){body{background:#161616;color:#eee}pre{background:#222}th,td{border-color:#444}
.bad{color:#ff8080}.good{color:#80e080}.known{color:#e0b060}}";

impl Report {
    /// Returns the report as an HTML page without external references: the summary, the groups, expected failures by
    /// reason, and failures with their messages.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        // Writing to a text does not fail.
        let _ = self.write_html(&mut page);
        page
    }

    fn write_html(&self, page: &mut String) -> fmt::Result {
        let title = escaped(&format!(
            "Conformance of {} in {} precision",
            self.device, self.precision
        ));
        let (word, class) = if self.is_ok() {
            ("passes", "good")
        } else {
            ("FAILS", "bad")
        };
        writeln!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n<h1>{title}</h1>\n\
             <p><span class=\"{class}\">{word}</span>: {} cases passed, {} failed, {} filtered out, in {:.1} s.</p>",
            self.passed(),
            self.failed(),
            self.skipped(),
            self.elapsed.as_secs_f64()
        )?;
        self.write_groups(page)?;
        self.write_expected(page)?;
        let failures: Vec<&CaseResult> = self.failures().collect();
        if !failures.is_empty() {
            writeln!(page, "<h2>Failures</h2>")?;
        }
        for case in failures {
            let (id, text) = (escaped(&case.id), escaped(case.outcome.detail()));
            let word = case.outcome.word();
            writeln!(
                page,
                "<h3>{id} <span class=\"bad\">{word}</span></h3>\n<pre>{text}</pre>"
            )?;
        }
        writeln!(page, "</html>")
    }

    fn write_groups(&self, page: &mut String) -> fmt::Result {
        let mut groups: BTreeMap<&str, (usize, usize, usize, f64)> = BTreeMap::new();
        for case in &self.cases {
            let (cases, failed, expected, worst) = groups.entry(case.group()).or_default();
            *cases += 1;
            *failed += usize::from(case.outcome.is_failure());
            match case.outcome {
                Outcome::ExpectedFailure { .. } => *expected += 1,
                Outcome::Pass { error } if case.tolerance > 0.0 => *worst = worst.max(error / case.tolerance),
                _ => {}
            }
        }
        writeln!(
            page,
            "<h2>Groups</h2>\n<table>\n<tr><th>group<th class=\"n\">cases<th class=\"n\">failed\
             <th class=\"n\">expected to fail<th class=\"n\">worst error / accepted</tr>"
        )?;
        for (group, (cases, failed, expected, worst)) in groups {
            let class = if failed > 0 { " class=\"bad\"" } else { "" };
            writeln!(
                page,
                "<tr{class}><td>{}<td class=\"n\">{cases}<td class=\"n\">{failed}<td class=\"n\">{expected}\
                 <td class=\"n\">{:.1} %</tr>",
                escaped(group),
                100.0 * worst
            )?;
        }
        writeln!(page, "</table>")
    }

    fn write_expected(&self, page: &mut String) -> fmt::Result {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for case in &self.cases {
            if let Outcome::ExpectedFailure { reason, .. } = &case.outcome {
                reasons.entry(reason).or_default().push(&case.id);
            }
        }
        if !reasons.is_empty() {
            writeln!(page, "<h2>Expected failures</h2>\n<table>")?;
            for (reason, cases) in &reasons {
                let list = escaped(&cases.join(", "));
                let (reason, count) = (escaped(reason), cases.len());
                writeln!(
                    page,
                    "<tr><td class=\"known\">{reason}<td><details><summary>{count} cases</summary>{list}</details></tr>"
                )?;
            }
            writeln!(page, "</table>")?;
        }
        Ok(())
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
