//! Labels of a model's results: strings that a graph represents as indices, and names of columns.

use super::{Importer, LabelKind, Operand, OutputLabels};

/// Maximum number of labels in a note.
const MAX_LISTED: usize = 20;

impl Importer<'_> {
    /// Stores the labels of an output of the model, and adds a note that lists them.
    pub(super) fn label_output(&mut self, name: &str, operand: &Operand) {
        let columns = self.columns.remove(name).map(|labels| (LabelKind::Columns, labels));
        let strings = operand
            .strings()
            .map(|strings| (LabelKind::Elements, strings.as_ref().clone()));
        for (kind, labels) in strings.into_iter().chain(columns) {
            let listed: Vec<String> = labels
                .iter()
                .take(MAX_LISTED)
                .map(|label| format!("{label:?}"))
                .collect();
            let more = labels.len().saturating_sub(MAX_LISTED);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let meaning = match kind {
                LabelKind::Elements => "its strings are returned as int64 indices (from 0) of",
                LabelKind::Columns => "its map is returned as a tensor with one column for each of",
            };
            self.notes
                .insert(format!("output `{name}`: {meaning} {}{more}", listed.join(", ")));
            self.labels.push(OutputLabels {
                output: name.to_owned(),
                kind,
                labels,
            });
        }
    }
}
