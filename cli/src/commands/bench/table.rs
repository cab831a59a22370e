//! Table of suites, with the columns that fit into the terminal.

use meganeura_bench::{Measurement, metric};

use crate::output::shortened;

/// Width of the names of workloads, and the minimum before columns are dropped.
const NAME: usize = 60;
const MIN_NAME: usize = 26;

struct Column {
    head: &'static str,
    width: usize,
    is_left: bool,
    cell: fn(&Measurement) -> String,
}

static COLUMNS: [Column; 10] = [
    Column::left(DEVICE, 10, |m| m.device.clone()),
    Column::left("", 5, |m| m.precision.to_string()),
    Column::right("time", 8, |m| with_unit(Some(m.seconds.median), "s")),
    Column::right("±", 6, |m| format!("{:.0} %", m.seconds.scatter() * 100.0)),
    Column::right(SYNCHRONIZED, 12, |m| with_unit(m.synchronized_seconds, "s")),
    Column::right(DIFFERENCE, 14, |m| {
        m.difference.map_or_else(|| "-".to_owned(), |off| format!("{off:.0e}"))
    }),
    Column::right(FLOPS, 12, |m| with_unit(m.flops_per_second(), "FLOP/s")),
    Column::right(BYTES, 9, |m| with_unit(m.bytes_per_second(), "B/s")),
    Column::right("of peak", 7, |m| {
        m.share()
            .map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
    }),
    Column::left(BOUND, 11, |m| {
        m.roofline
            .map(|roofline| roofline.bound.to_string())
            .unwrap_or_default()
    }),
];

const DEVICE: &str = "device";
const SYNCHRONIZED: &str = "synchronized";
const DIFFERENCE: &str = "max rel. error";
const FLOPS: &str = "FLOP/s";
const BYTES: &str = "B/s";
const BOUND: &str = "bound";

/// Columns in the order in which they are dropped if the terminal is too narrow.
const DISPENSABLE: [&str; 5] = [SYNCHRONIZED, BYTES, FLOPS, DIFFERENCE, BOUND];

impl Column {
    const fn left(head: &'static str, width: usize, cell: fn(&Measurement) -> String) -> Self {
        Column {
            head,
            width,
            is_left: true,
            cell,
        }
    }

    const fn right(head: &'static str, width: usize, cell: fn(&Measurement) -> String) -> Self {
        Column {
            head,
            width,
            is_left: false,
            cell,
        }
    }

    fn padded(&self, text: &str) -> String {
        let width = self.width;
        if self.is_left {
            format!(" {text:<width$}")
        } else {
            format!(" {text:>width$}")
        }
    }
}

/// Columns that are printed.
pub(super) struct Table {
    name: usize,
    shown: Vec<&'static Column>,
    dropped: Vec<&'static str>,
}

impl Table {
    /// Creates a table for a maximum line width. The device column is needed for several devices.
    pub(super) fn new(columns: Option<usize>, several: bool) -> Self {
        let mut table = Table {
            name: NAME,
            shown: COLUMNS.iter().collect(),
            dropped: Vec::new(),
        };
        let Some(columns) = columns else {
            return table;
        };
        let device = (!several).then_some(DEVICE);
        let mut dispensable = device.into_iter().chain(DISPENSABLE);
        loop {
            let taken: usize = table.shown.iter().map(|c| c.width + 1).sum();
            let left = columns.saturating_sub(taken);
            table.name = left.clamp(MIN_NAME, NAME);
            if left >= MIN_NAME {
                return table;
            }
            let Some(head) = dispensable.next() else {
                return table;
            };
            table.shown.retain(|c| c.head != head);
            // The only device is printed above the table.
            if head != DEVICE {
                table.dropped.push(head);
            }
        }
    }

    /// Returns a note with the dropped columns, if there are any.
    pub(super) fn left_out(&self) -> Option<String> {
        match &self.dropped[..] {
            [] => None,
            dropped => Some(format!(
                "columns that need a wider terminal: {}\n(--json and --html contain all columns)",
                dropped.join(", ")
            )),
        }
    }

    pub(super) fn head(&self) -> String {
        let cells: String = self.shown.iter().map(|c| c.padded(c.head)).collect();
        self.line("workload", &cells)
    }

    pub(super) fn row(&self, m: &Measurement) -> String {
        let cells: String = self.shown.iter().map(|c| c.padded(&(c.cell)(m))).collect();
        self.line(&m.workload, &cells)
    }

    fn line(&self, name: &str, cells: &str) -> String {
        let width = self.name;
        let text = format!("{:<width$}{cells}", shortened(name, width));
        text.trim_end().to_owned()
    }
}

fn with_unit(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{}{unit}", metric(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_left_out_until_the_line_fits() {
        let all = Table::new(None, false);
        assert!(all.left_out().is_none());
        for head in [DEVICE, "time", SYNCHRONIZED, DIFFERENCE, FLOPS, BYTES, "of peak", BOUND] {
            assert!(all.head().contains(head), "{head}");
        }
        for several in [false, true] {
            let narrow = Table::new(Some(80), several);
            let head = narrow.head();
            assert!(head.chars().count() <= 80, "{head}");
            for column in ["time", "±", "of peak", BOUND] {
                assert!(head.contains(column), "{column} in {head}");
            }
            assert_eq!(head.contains(DEVICE), several, "{head}");
            assert!(narrow.left_out().is_some_and(|note| note.contains(SYNCHRONIZED)));
        }
        assert_eq!(Table::new(Some(400), true).head(), all.head());
    }
}
