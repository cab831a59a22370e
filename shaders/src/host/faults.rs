//! Detection of steps with a fault, and their rollback.
//!
//! A kernel reports a fault if it finds an index out of range, or if a loop of a custom kernel was terminated. It
//! sets a few words. They are copied to the host at the end of the step. Kernels that write parameters or states
//! after the last possible fault check these words, and do nothing after a fault. Data that are written earlier are
//! saved when the step begins. The words stay set until the host has read them, so a step that was submitted in the
//! meantime does nothing either. Then the host restores the saved data, clears the words, and returns the error.

use meganeura_core::Error;
use meganeura_core::backend::shader::ENDED_LOOP;

use super::places::BufferLocation;

/// Number of words of a report for each dispatch that can report: a flag, and the largest index out of range.
const REPORT_WORDS: usize = 2;

/// A part of memory that is saved, and its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRange {
    /// Location of the data.
    pub own: BufferLocation,
    /// Location of the backup copy.
    pub copy: BufferLocation,
}

/// A dispatch that can report a fault, with the information for the error message.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Label of the dispatch.
    pub label: String,
    /// Exclusive upper bound of the indices.
    pub rows: usize,
    /// Plugin of the kernel, if it is a custom kernel.
    pub origin: Option<String>,
}

/// Faults that have not been handled yet.
#[derive(Default)]
pub(super) struct Faults {
    /// Frame of the step with a fault, until this step is rolled back.
    pub to_undo: Option<usize>,
    /// Error that has not been returned to the caller yet.
    pub(super) untold: Option<Error>,
    /// Number of steps that were rolled back.
    pub rolled_back: u64,
}

/// Returns the size in bytes of the report of `reporters` dispatches: a flag word, then a few words for each
/// dispatch.
pub(super) fn report_bytes(reporters: usize) -> usize {
    match reporters {
        0 => 0,
        _ => 4 * (1 + REPORT_WORDS * reporters),
    }
}

/// Returns the fault of the first dispatch that found a fault.
pub(super) fn fault_in(report: &[u8], reporters: &[Reporter]) -> Option<Error> {
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
            remedy: "use smaller shapes, or build without the plugin's rules, and report this to its author".into(),
        },
        _ => Error::IndexOutOfRange {
            label: reporter.label.clone(),
            index: words[1],
            rows: reporter.rows,
        },
    })
}

/// Merges parts that are adjacent in their location and in their backup.
pub(super) fn joined(parts: impl Iterator<Item = SavedRange>) -> Vec<SavedRange> {
    let mut all: Vec<SavedRange> = Vec::new();
    for part in parts.filter(|part| part.own.bytes > 0) {
        if let Some(last) = all.last_mut()
            && let (Some(own), Some(copy)) = (last.own.joined(&part.own), last.copy.joined(&part.copy))
        {
            *last = SavedRange { own, copy };
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
        // With zero rows, even index 0 is out of range.
        let empty = fault_in(&report([1, 1, 0, 0, 0, 0, 0]), &reporters);
        assert!(matches!(empty, Some(Error::IndexOutOfRange { index: 0, .. })));
    }
}
