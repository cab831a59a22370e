//! Options of a run, and expected failures.

use std::ops::Range;
use std::path::Path;

use meganeura_core::error::{Error, Result};
use meganeura_core::files::{MAX_SETTINGS, read_text_limited};
use meganeura_core::precision::Precision;
use serde::Deserialize;

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Compares every operator with the oracle.
    Operators,
    /// Whole training steps.
    Training,
    /// Guarantees of a session beyond the values of operators.
    Semantics,
    /// Behaviour in case of errors.
    Errors,
}

impl Section {
    /// All sections, in the order of execution.
    pub const ALL: [Section; 4] = [
        Section::Operators,
        Section::Training,
        Section::Semantics,
        Section::Errors,
    ];
}

/// Options of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Only cases whose id contains this text.
    pub filter: Option<String>,
    /// Sections to run.
    pub sections: Vec<Section>,
    /// Seeds of the operators' samples; each gives other shapes and values.
    pub seeds: Range<u64>,
    /// Maximum number of operations in all calls of an operator case, because the oracle is slow.
    pub max_work: u64,
    /// Precision of all plans. In [`Precision::Mixed`] a run fails if no dispatch used cooperative matrices.
    pub precision: Precision,
    /// Number of cases that run at the same time, each on a thread. This helps if compiling kernels
    /// takes longer than running them. The report is the same; but if a case loses the device, the
    /// cases that run at the same time fail as well.
    pub jobs: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            filter: None,
            sections: Section::ALL.to_vec(),
            seeds: 0..3,
            max_work: 4_000_000,
            precision: Precision::F32,
            jobs: 1,
        }
    }
}

impl Options {
    /// Returns true if a run with these options covers every case.
    pub(crate) fn is_complete(&self) -> bool {
        self.filter.is_none() && Section::ALL.iter().all(|s| self.sections.contains(s))
    }
}

/// A set of cases that a device is known to fail. A case that passes nevertheless is a failure, so
/// that outdated entries are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedFailure {
    pattern: String,
    reason: String,
}

impl ExpectedFailure {
    /// Creates an entry for cases whose whole id matches the pattern, in which `*` matches any
    /// text.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if the pattern or the reason is empty.
    pub fn new(pattern: impl Into<String>, reason: impl Into<String>) -> Result<Self> {
        let (pattern, reason) = (pattern.into(), reason.into());
        if pattern.trim().is_empty() || reason.trim().is_empty() {
            return Err(Error::misuse(
                format!("the expected failure '{pattern}' has no pattern or no reason"),
                "say which cases fail and why",
            ));
        }
        Ok(ExpectedFailure { pattern, reason })
    }

    /// Reads a list of expected failures from a TOML file: entries `[[expected]]` with the pattern `cases`, and
    /// `reason`.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read; [`Error::InvalidUse`] for an entry without a pattern or reason.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct List {
            expected: Vec<Entry>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            cases: String,
            reason: String,
        }
        const REMEDY: &str = "write entries [[expected]] with cases = \"PATTERN\" and reason = \"WHY\"";
        let text = read_text_limited(path, MAX_SETTINGS);
        let text = text.map_err(|e| Error::file(path, format!("cannot be read: {e}"), "check the path"))?;
        let list: List = toml::from_str(&text)
            .map_err(|e| Error::file(path, format!("is no list of expected failures: {e}"), REMEDY))?;
        let entries = list.expected.into_iter();
        entries.map(|e| ExpectedFailure::new(e.cases, e.reason)).collect()
    }

    /// Returns the pattern.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns the reason of the failures.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns true if a case matches.
    pub fn matches(&self, id: &str) -> bool {
        matches(&self.pattern, id)
    }
}

/// Returns true if a pattern, in which `*` matches any text, matches the whole text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    let ends = text.char_indices().map(|(i, _)| i).chain([text.len()]);
    ends.into_iter().any(|i| matches(rest, &text[i..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_ids() {
        assert!(matches("core.add/*", "core.add/forward/[3]"));
        assert!(matches("*/forward/*", "core.add/forward/[3]"));
        assert!(!matches("core.add", "core.add/forward/[3]"));
        assert!(matches("a*b*", "a--b"));
        assert!(!matches("a*b", "a--bc"));
    }

    #[test]
    fn expected_failures_need_a_reason() {
        assert!(ExpectedFailure::new("core.add/*", " ").is_err());
        assert!(ExpectedFailure::new("core.add/*", "slow").is_ok());
    }
}
