//! Steps that meet a fault, and how they are undone.
//!
//! A kernel that finds an index out of range, or one of others that had to be ended, notes it in a few words, which are copied for the host at the end of the
//! step. Kernels that write parameters or states after the last place where a fault can be found look at these words
//! and do nothing if there was one; what is written before is saved when the step begins. The words stay until the host
//! has seen them, so a step that was submitted in the meantime does nothing, either. Then the host restores what was
//! saved, clears the words, and tells the error.

use meganeura_core::Error;
use meganeura_core::backend::shader::ENDED_LOOP;

use super::places::Place;

/// Words of a report for each dispatch that reports: whether it found a fault, and the largest index.
const REPORT_WORDS: usize = 2;

/// A part of memory that is saved, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Where it is.
    pub own: Place,
    /// Where it is saved.
    pub copy: Place,
}

/// A dispatch that may report a fault, and what the error says of it.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Label of the dispatch.
    pub label: String,
    /// Number that indices must be below.
    pub rows: usize,
    /// The plugin that its kernel is from, if it is a custom one.
    pub origin: Option<String>,
}

/// Faults that were found, and what is to be done about them.
#[derive(Default)]
pub struct Faults {
    /// The frame of the step that met one, until it is undone.
    pub to_undo: Option<usize>,
    /// The error that nobody has been told.
    pub untold: Option<Error>,
    /// Steps that were given up.
    pub rolled_back: u64,
}

/// Bytes of the report of so many dispatches: a word that says whether there is anything in it, then a few for each.
pub fn report_bytes(reporters: usize) -> usize {
    match reporters {
        0 => 0,
        _ => 4 * (1 + REPORT_WORDS * reporters),
    }
}

/// The fault of the first dispatch that found one.
pub fn fault_in(report: &[u8], reporters: &[Reporter]) -> Option<Error> {
    let words: Vec<u32> = report
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let (any, found) = words.split_first()?;
    if *any == 0 {
        return None;
    }
    let mut parts = found.chunks_exact(REPORT_WORDS).zip(reporters);
    let (words, reporter) = parts.find(|(words, _)| words[0] != 0)?;
    Some(match (words[0], &reporter.origin) {
        (ENDED_LOOP, Some(origin)) => Error::Plugin {
            plugin: origin.clone(),
            message: format!(
                "its kernel for {} did not end within its limit; the step was rolled back",
                reporter.label
            ),
            remedy: "use smaller shapes, or build without the plugin's rules, and tell its author".into(),
        },
        _ => Error::IndexOutOfRange {
            label: reporter.label.clone(),
            index: words[1],
            rows: reporter.rows,
        },
    })
}

/// Puts parts together that are neighbours both where they are and where they are saved.
pub(super) fn joined(parts: impl Iterator<Item = Saved>) -> Vec<Saved> {
    let mut all: Vec<Saved> = Vec::new();
    for part in parts.filter(|part| part.own.bytes > 0) {
        if let Some(last) = all.last_mut()
            && let (Some(own), Some(copy)) = (last.own.joined(&part.own), last.copy.joined(&part.copy))
        {
            *last = Saved { own, copy };
            continue;
        }
        all.push(part);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_dispatch_that_found_a_fault_is_named() {
        let reporter = |label: &str, rows| Reporter {
            label: label.into(),
            rows,
            origin: (label == "c").then(|| "a plugin".to_owned()),
        };
        let reporters = [reporter("a", 4), reporter("b", 7), reporter("c", 9)];
        let report = |words: [u32; 7]| words.map(u32::to_le_bytes).concat();
        assert!(fault_in(&report([0; 7]), &reporters).is_none());
        let error = fault_in(&report([1, 0, 0, 1, 12, 1, 99]), &reporters).expect("a fault");
        let Error::IndexOutOfRange { label, index, rows } = error else {
            panic!("{error}")
        };
        assert_eq!((label.as_str(), index, rows), ("b", 12, 7));
        let error = fault_in(&report([1, 0, 0, 0, 0, ENDED_LOOP, 0]), &reporters).expect("a fault");
        let text = error.to_string();
        assert!(matches!(error, Error::Plugin { .. }) && text.contains("'a plugin'") && text.contains("for c did not"));
        // The only index into nothing.
        let empty = fault_in(&report([1, 1, 0, 0, 0, 0, 0]), &reporters);
        assert!(matches!(empty, Some(Error::IndexOutOfRange { index: 0, .. })));
    }
}
