//! The results of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use meganeura_core::precision::Precision;
use serde::Serialize;
use serde_json::json;

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The case passed.
    Pass {
        /// Largest error, comparable with the tolerance.
        error: f64,
    },
    /// The case failed.
    Fail {
        /// Message with the found and the expected results.
        message: String,
    },
    /// The device lacks kernels for the operator, and for its decomposition.
    Unsupported {
        /// Error that lists the missing kernels.
        reason: String,
        /// Names of the kernels, each once.
        kernels: Vec<String>,
    },
    /// The case failed, as the list of expected failures predicts.
    ExpectedFailure {
        /// Reason in the list of expected failures.
        reason: String,
        /// Message of the failure.
        message: String,
    },
    /// The case passed, although the list of expected failures contains it.
    UnexpectedPass {
        /// Reason in the list of expected failures.
        reason: String,
    },
}

impl Outcome {
    /// Returns true if the device failed, or the list of expected failures is wrong.
    pub fn is_failure(&self) -> bool {
        match self {
            Outcome::Pass { .. } | Outcome::ExpectedFailure { .. } => false,
            Outcome::Fail { .. } | Outcome::Unsupported { .. } | Outcome::UnexpectedPass { .. } => true,
        }
    }

    /// Returns the outcome as a single word.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Pass { .. } => "pass",
            Outcome::Fail { .. } => "FAIL",
            Outcome::Unsupported { .. } => "UNSUPPORTED",
            Outcome::ExpectedFailure { .. } => "expected failure",
            Outcome::UnexpectedPass { .. } => "UNEXPECTED PASS",
        }
    }

    /// Returns the message, if there is one.
    pub fn detail(&self) -> &str {
        match self {
            Outcome::Pass { .. } => "",
            Outcome::Fail { message } => message,
            Outcome::Unsupported { reason, .. }
            | Outcome::ExpectedFailure { reason, .. }
            | Outcome::UnexpectedPass { reason } => reason,
        }
    }
}

/// Result of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseResult {
    /// Id of the case: `operator/kind/sample`, or `section/subject/variant`.
    pub id: String,
    /// Outcome of the case.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Largest accepted error; 0 if results must be exact.
    pub tolerance: f64,
    /// Duration of the case, including the oracle.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub elapsed: Duration,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl CaseResult {
    /// Returns the operator or section: the id up to its first slash.
    pub fn group(&self) -> &str {
        self.id.split('/').next().unwrap_or(&self.id)
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.outcome.word(), self.id)?;
        match self.outcome.detail() {
            "" => Ok(()),
            detail => write!(f, "\n    {}", detail.replace('\n', "\n    ")),
        }
    }
}

/// Results of all cases of a run. Displays as a table of the groups that failed and a summary; `{:#}` displays all
/// groups and failures.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the device.
    pub device: String,
    /// Precision of all plans.
    pub precision: Precision,
    /// Number of dispatches on cooperative matrices, in all plans that were compiled.
    pub on_tensor_cores: usize,
    /// Cases, in the order of execution.
    pub cases: Vec<CaseResult>,
    /// Number of cases that the filter excluded.
    pub skipped: usize,
    /// Duration of the whole run.
    pub elapsed: Duration,
}

impl Report {
    /// Returns the number of cases that passed.
    pub fn passed(&self) -> usize {
        let passed = |c: &&CaseResult| matches!(c.outcome, Outcome::Pass { .. });
        self.cases.iter().filter(passed).count()
    }

    /// Returns the number of failures, including missing kernels and unexpected passes.
    pub fn failed(&self) -> usize {
        self.failures().count()
    }

    /// Returns the number of cases that the filter excluded.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the failures.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|c| c.outcome.is_failure())
    }

    /// Returns true if at least one case ran and none failed.
    pub fn is_ok(&self) -> bool {
        !self.cases.is_empty() && self.failed() == 0 && !self.lacks_units()
    }

    /// Returns true if the run should test cooperative matrices, but no dispatch used them.
    fn lacks_units(&self) -> bool {
        self.precision == Precision::Mixed && self.on_tensor_cores == 0
    }

    /// Returns one JSON object per line: the cases, then a summary.
    ///
    /// # Errors
    /// The errors of the serialiser, which do not occur for these types.
    pub fn to_json_lines(&self) -> serde_json::Result<String> {
        let mut text = String::new();
        for case in &self.cases {
            text += &serde_json::to_string(case)?;
            text.push('\n');
        }
        let summary = json!({
            "device": self.device,
            "precision": self.precision.to_string(),
            "on_tensor_cores": self.on_tensor_cores,
            "passed": self.passed(),
            "failed": self.failed(),
            "filtered_out": self.skipped,
            "seconds": self.elapsed.as_secs_f64(),
        });
        text += &summary.to_string();
        text.push('\n');
        Ok(text)
    }
}

/// Maximum number of failures of a group that are shown in full. Further ones are usually the same.
const SHOWN: usize = 4;

/// Maximum number of groups of a report that lists all groups, not only groups with failures.
const SMALL: usize = 12;
/// Maximum number of failures in a summary, one for each group.
const FIRST: usize = 10;

impl Report {
    /// Writes the unsupported cases, grouped by their missing kernels.
    fn fmt_missing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kernels: BTreeMap<&str, usize> = BTreeMap::new();
        for case in &self.cases {
            if let Outcome::Unsupported { kernels: names, .. } = &case.outcome {
                names.iter().for_each(|name| *kernels.entry(name).or_default() += 1);
            }
        }
        if kernels.is_empty() {
            return Ok(());
        }
        let mut kernels: Vec<(&str, usize)> = kernels.into_iter().collect();
        kernels.sort_by_key(|(_, cases)| std::cmp::Reverse(*cases));
        let width = kernels.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(14);
        writeln!(f, "\n{:width$}  cases that need it", "missing kernel")?;
        for (name, cases) in kernels {
            writeln!(f, "{name:width$}  {cases}")?;
        }
        Ok(())
    }

    /// Writes the first wrong result of each group.
    fn fmt_first_failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_wrong = |case: &&CaseResult| !matches!(case.outcome, Outcome::Unsupported { .. });
        let mut groups: BTreeMap<&str, Vec<&CaseResult>> = BTreeMap::new();
        for case in self.failures().filter(is_wrong) {
            groups.entry(case.group()).or_default().push(case);
        }
        for (group, cases) in groups.iter().take(FIRST) {
            writeln!(f, "\n{}", cases[0])?;
            if cases.len() > 1 {
                writeln!(
                    f,
                    "    ({} other failures of {group}; --verbose lists them)",
                    cases.len() - 1
                )?;
            }
        }
        match groups.len().saturating_sub(FIRST) {
            0 => Ok(()),
            more => writeln!(f, "\n({more} other groups have failures; --verbose lists them)"),
        }
    }

    fn fmt_failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: BTreeMap<&str, Vec<&CaseResult>> = BTreeMap::new();
        for case in self.failures() {
            groups.entry(case.group()).or_default().push(case);
        }
        for (group, cases) in groups {
            for case in cases.iter().take(SHOWN) {
                writeln!(f, "\n{case}")?;
            }
            for case in cases.iter().skip(SHOWN) {
                writeln!(f, "{} {}", case.outcome.word(), case.id)?;
            }
            if cases.len() > SHOWN {
                let hidden = cases.len() - SHOWN;
                writeln!(
                    f,
                    "    ({hidden} of the failures of {group} without their messages; filter by id to see one)"
                )?;
            }
        }
        Ok(())
    }
}

/// Row of the table.
#[derive(Default)]
struct Row {
    cases: usize,
    failed: usize,
    expected: usize,
    /// Largest error, relative to the tolerance of its case.
    worst: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        for case in &self.cases {
            let row = rows.entry(case.group()).or_default();
            row.cases += 1;
            row.failed += usize::from(case.outcome.is_failure());
            match &case.outcome {
                Outcome::Pass { error } if case.tolerance > 0.0 => row.worst = row.worst.max(error / case.tolerance),
                Outcome::ExpectedFailure { .. } => row.expected += 1,
                _ => {}
            }
        }
        let width = rows.keys().map(|k| k.len()).max().unwrap_or(0).max(5);
        writeln!(f, "conformance of '{}' in {} precision", self.device, self.precision)?;
        writeln!(
            f,
            "{:width$}  {:>5}  {:>16}  status",
            "group", "cases", "worst / accepted"
        )?;
        let (is_long, groups) = (f.alternate(), rows.len());
        let is_listed = |row: &Row| is_long || row.failed + row.expected > 0 || groups <= SMALL;
        for (group, row) in rows.iter().filter(|(_, row)| is_listed(row)) {
            let status = match (row.failed, row.expected) {
                (0, 0) => "ok".to_owned(),
                (0, expected) => format!("ok ({expected} expected to fail)"),
                (failed, _) => format!("{failed} FAILED"),
            };
            writeln!(
                f,
                "{group:width$}  {:>5}  {:>15.1}%  {status}",
                row.cases,
                100.0 * row.worst
            )?;
        }
        let others = rows.values().filter(|row| !is_listed(row)).count();
        if others > 0 {
            writeln!(f, "and {others} groups without a failure (--verbose lists them)")?;
        }
        self.fmt_missing(f)?;
        if f.alternate() {
            self.fmt_failures(f)?
        } else {
            self.fmt_first_failures(f)?
        }
        let (passed, failed) = (self.passed(), self.failed());
        if self.lacks_units() {
            writeln!(
                f,
                "\nFAILED: no dispatch used tensor cores, so mixed precision was not tested"
            )?;
        }
        writeln!(
            f,
            "\n{passed} passed, {failed} failed, {} filtered out in {:.1} s; {} dispatches on tensor cores",
            self.skipped,
            self.elapsed.as_secs_f64(),
            self.on_tensor_cores
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let case = |id: String, outcome| CaseResult {
            id,
            outcome,
            tolerance: 1.0,
            elapsed: Duration::ZERO,
        };
        let missing = |i: usize| Outcome::Unsupported {
            reason: "a long error".into(),
            kernels: match i % 2 {
                0 => vec!["core.matmul".into()],
                _ => vec!["core.conv2d".into(), "core.matmul".into()],
            },
        };
        let unsupported = (0..1000).map(|i| case(format!("core.op{}/forward/{i}", i % 50), missing(i)));
        let wrong = (0..3).map(|i| {
            let message = "expected 1, found 2".into();
            case(format!("core.relu/forward/{i}"), Outcome::Fail { message })
        });
        Report {
            device: "none".into(),
            precision: Precision::F32,
            on_tensor_cores: 0,
            cases: unsupported.chain(wrong).collect(),
            skipped: 0,
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn a_summary_counts_missing_kernels_and_shows_one_failure_of_a_group() {
        let text = report().to_string();
        assert!(text.lines().count() < 100, "{text}");
        let count = |name: &str| {
            let mut lines = text.lines().filter(|line| line.starts_with(name));
            lines
                .next()
                .and_then(|line| line.split_whitespace().last())
                .map(str::to_owned)
        };
        assert_eq!(count("core.matmul"), Some("1000".into()), "{text}");
        assert_eq!(count("core.conv2d"), Some("500".into()), "{text}");
        assert!(
            text.contains("FAIL core.relu/forward/0\n    expected 1, found 2"),
            "{text}"
        );
        assert!(
            text.contains("2 other failures of core.relu") && !text.contains("core.relu/forward/1"),
            "{text}"
        );
        assert!(text.contains("0 passed, 1003 failed"), "{text}");
    }

    #[test]
    fn the_long_form_names_each_failure_once() {
        let report = report();
        let text = format!("{report:#}");
        for case in &report.cases {
            let named = text
                .lines()
                .filter(|line| line.ends_with(&format!(" {}", case.id)))
                .count();
            assert_eq!(named, 1, "{}", case.id);
        }
    }
}
