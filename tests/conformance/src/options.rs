//! What to run, and what is known to fail.

use std::ops::Range;
use std::path::Path;

use meganeura_core::error::{Error, Result};
use meganeura_core::files::{MAX_SETTINGS, read_text_limited};
use meganeura_core::precision::Precision;
use serde::Deserialize;

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Every operator against the oracle.
    Operators,
    /// Whole training steps.
    Training,
    /// What a session promises beyond the values of operators.
    Semantics,
    /// What happens when something is wrong.
    Errors,
}

impl Section {
    /// All sections, in the order in which they run.
    pub const ALL: [Section; 4] = [
        Section::Operators,
        Section::Training,
        Section::Semantics,
        Section::Errors,
    ];
}

/// Choices of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Only cases whose id contains this text.
    pub filter: Option<String>,
    /// Sections to run.
    pub sections: Vec<Section>,
    /// Seeds of the operators' samples; each gives other shapes and values.
    pub seeds: Range<u64>,
    /// Largest work of an operator case, in operations of all its calls: the oracle is slow.
    pub max_work: u64,
    /// Precision of all plans. In [`Precision::Mixed`] a run fails if no dispatch used cooperative matrices.
    pub precision: Precision,
    /// Cases that run at the same time, each on a thread. It pays where making kernels takes longer than running them. The report is
    /// the same; a case that loses the device makes those fail that run beside it.
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
    /// Whether a run with these options sees every case.
    pub(crate) fn is_complete(&self) -> bool {
        self.filter.is_none() && Section::ALL.iter().all(|s| self.sections.contains(s))
    }
}

/// Cases that a device is known to fail. One that passes nevertheless is a failure, so that the list does not
/// outlive its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedFailure {
    pattern: String,
    reason: String,
}

impl ExpectedFailure {
    /// Cases whose whole id matches the pattern, in which `*` stands for any text.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] when the pattern or the reason is empty.
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

    /// A list from a TOML file, of entries `[[expected]]` with `cases`, a pattern, and `reason`.
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

    /// The pattern.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Why the cases fail.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether a case is meant.
    pub fn matches(&self, id: &str) -> bool {
        matches(&self.pattern, id)
    }
}

/// Matches a whole text against a pattern with `*`.
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
