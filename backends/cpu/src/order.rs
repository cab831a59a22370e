//! Parameters in the order in which kernels read them, from one step to the next.
//!
//! A parameter that no dispatch writes is brought to another order when it is written, and back when it is read, so that
//! nobody but its kernels sees it. Its kernels have to agree: each says in which orders it can read an operand.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan};

use crate::memory::View;
use crate::pool::ThreadPool;

/// A matrix whose rows are in panels: of some rows that follow each other first the first unit of each row, then the second
/// ones, and so on. Rows behind the last whole panel lie as they do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// Rows of a panel.
    pub(crate) rows: usize,
    /// Units of a row.
    pub(crate) units: usize,
    /// Bytes of a unit.
    pub(crate) unit: usize,
    /// Number of panels.
    pub(crate) count: usize,
}

/// In which orders a kernel can read an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By rows alone.
    Plain,
    /// By rows, and in all panels with units of so many bytes.
    Any { unit: usize },
    /// By rows, and better in these panels.
    Panels(Panels),
}

impl Panels {
    /// Panels of so many rows, of a matrix with rows of `width` bytes; `None` if there is nothing to change.
    pub(crate) fn new(matrix_rows: usize, width: usize, rows: usize, unit: usize) -> Option<Self> {
        let count = matrix_rows.checked_div(rows)?;
        let fits = width.is_multiple_of(unit) && width > unit && count > 0;
        fits.then_some(Panels {
            rows,
            units: width / unit,
            unit,
            count,
        })
    }

    /// Where the unit lies that has this number in the order of rows.
    pub(crate) fn offset(&self, number: usize) -> usize {
        let panel = self.rows * self.units;
        if number >= self.count * panel {
            return number;
        }
        let (row, unit) = (number % panel / self.units, number % self.units);
        number / panel * panel + unit * self.rows + row
    }

    /// Where units lie that follow each other in the order of rows: the first one, and the distance to each next one. `None`
    /// if they are not in one row.
    pub(crate) fn in_row(&self, first: usize, count: usize) -> Option<[usize; 2]> {
        let units_in_panels = self.count * self.rows * self.units;
        match first {
            _ if first >= units_in_panels => Some([first, 1]),
            _ if first % self.units + count <= self.units => Some([self.offset(first), self.rows]),
            _ => None,
        }
    }

    /// Calls with pieces of a range of bytes in the order of rows, each within one unit, and where they lie.
    fn pieces(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>, usize)) {
        let mut at = range.start;
        let bytes_in_panels = self.count * self.rows * self.units * self.unit;
        // Units of one row are `rows` units apart from each other.
        let step = self.rows * self.unit;
        while at < range.end.min(bytes_in_panels) {
            let row_end = (at / (self.units * self.unit) + 1) * self.units * self.unit;
            let mut to = self.offset(at / self.unit) * self.unit;
            while at < range.end.min(row_end) {
                let within = at % self.unit;
                let end = range.end.min(at - within + self.unit);
                each(at..end, to + within);
                at = end;
                to += step;
            }
        }
        if at < range.end {
            each(at..range.end, at);
        }
    }

    /// Writes bytes to the offset that they have in the order of rows.
    pub(crate) fn write(&self, pool: &ThreadPool, bytes: &[u8], offset: usize, matrix: &mut [u8]) {
        let matrix: View<u8> = View::new(matrix.as_mut_ptr(), matrix.len());
        pool.run(bytes.len().div_ceil(TOGETHER), &|task, _| {
            let own = task * TOGETHER..bytes.len().min((task + 1) * TOGETHER);
            self.pieces(offset + own.start..offset + own.end, |piece, to| {
                let from = &bytes[piece.start - offset..piece.end - offset];
                // SAFETY: the exclusive borrow lasts until all tasks are over; offsets of different bytes are different.
                unsafe { matrix.slice_mut(to..to + from.len()) }.copy_from_slice(from);
            });
        });
    }

    /// Reads bytes from the offset that they have in the order of rows.
    pub(crate) fn read(&self, matrix: &[u8], offset: usize, bytes: &mut [u8]) {
        self.pieces(offset..offset + bytes.len(), |piece, to| {
            let len = piece.len();
            bytes[piece.start - offset..piece.end - offset].copy_from_slice(&matrix[to..to + len]);
        });
    }
}

/// Bytes that are worth a task of their own.
const TOGETHER: usize = 1 << 18;

/// The parameters of a plan that are not in the order of rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders(HashMap<BufferRef, Panels>);

impl Orders {
    /// What the readers of each parameter agree on. `order` says in which orders a dispatch can read an operand; it gets all
    /// the panels that it asks for, or none.
    pub(crate) fn new(plan: &ExecutionPlan, order: impl Fn(&Dispatch, usize) -> Order) -> Self {
        let written: HashSet<BufferRef> = plan
            .dispatches
            .iter()
            .flat_map(|dispatch| &dispatch.outputs)
            .map(|result| result.buffer)
            .collect();
        let mut readers: HashMap<BufferRef, Vec<Order>> = plan
            .param_buffers
            .iter()
            .map(|(_, buffer)| *buffer)
            .filter(|buffer| !written.contains(buffer))
            .map(|buffer| (buffer, Vec::new()))
            .collect();
        // Operands that panels are asked for, by dispatch.
        let mut together: Vec<Vec<BufferRef>> = Vec::new();
        for dispatch in &plan.dispatches {
            let mut asked = Vec::new();
            for (i, operand) in dispatch.inputs.iter().enumerate() {
                if let Some(orders) = readers.get_mut(&operand.buffer) {
                    let is_whole = operand.ty.bytes() == plan.buffers[operand.buffer.index()];
                    let order = if is_whole { order(dispatch, i) } else { Order::Plain };
                    orders.push(order);
                    if matches!(order, Order::Panels(_)) {
                        asked.push(operand.buffer);
                    }
                }
            }
            together.push(asked);
        }
        let agreed = readers
            .into_iter()
            .filter_map(|(buffer, orders)| Some((buffer, agreed(&orders)?)));
        let mut panels: HashMap<BufferRef, Panels> = agreed.collect();
        // One that is left out may be beside others, so as long as there are some.
        while let Some(buffers) = together.iter().find(|buffers| {
            let there = buffers.iter().filter(|buffer| panels.contains_key(buffer)).count();
            there > 0 && there < buffers.len()
        }) {
            buffers.iter().for_each(|buffer| {
                panels.remove(buffer);
            });
        }
        Orders(panels)
    }

    /// The panels of a buffer, if it has some.
    pub(crate) fn of(&self, buffer: BufferRef) -> Option<Panels> {
        self.0.get(&buffer).copied()
    }
}

/// The panels that one reader asks for and all others can read.
fn agreed(orders: &[Order]) -> Option<Panels> {
    let wanted = orders.iter().find_map(|order| match order {
        Order::Panels(panels) => Some(*panels),
        Order::Plain | Order::Any { .. } => None,
    })?;
    let accepts = |order: &Order| match order {
        Order::Plain => false,
        Order::Any { unit } => *unit == wanted.unit,
        Order::Panels(panels) => *panels == wanted,
    };
    orders.iter().all(accepts).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_and_all_others_can() {
        let panels = Panels::new(16, 8, 4, 4).expect("panels");
        let other = Panels::new(16, 8, 2, 4).expect("panels");
        assert_eq!(agreed(&[Order::Any { unit: 4 }, Order::Panels(panels)]), Some(panels));
        assert_eq!(agreed(&[Order::Any { unit: 4 }]), None);
        assert_eq!(agreed(&[Order::Any { unit: 2 }, Order::Panels(panels)]), None);
        assert_eq!(agreed(&[Order::Panels(other), Order::Panels(panels)]), None);
        assert_eq!(agreed(&[Order::Panels(panels), Order::Plain]), None);
        assert_eq!(agreed(&[]), None);
    }

    #[test]
    fn places_are_a_permutation() {
        for (rows, width, panel, unit) in [(5, 12, 2, 4), (32, 576 / 2, 16, 4), (16, 6, 16, 2), (37, 64, 16, 4)] {
            let panels = Panels::new(rows, width, panel, unit).expect("panels");
            let mut offsets: Vec<usize> = (0..rows * width / unit).map(|u| panels.offset(u)).collect();
            assert!(offsets[rows / panel * panel * width / unit..].iter().is_sorted());
            offsets.sort_unstable();
            assert!(offsets.iter().enumerate().all(|(i, &p)| i == p));
            let units = width / unit;
            for (first, count) in [(0, units), (2, units - 2), (panel * units, units), (1, units)] {
                let offsets = (first..first + count).map(|u| panels.offset(u));
                match panels.in_row(first, count) {
                    Some([start, step]) => assert!(offsets.eq((0..count).map(|i| start + i * step))),
                    None => assert_eq!(first, 1),
                }
            }
        }
        assert_eq!(Panels::new(15, 64, 16, 4), None);
        assert_eq!(Panels::new(16, 66, 16, 4), None);
        // A row of one unit.
        assert_eq!(Panels::new(16, 2, 16, 2), None);
    }

    /// Any range goes in and comes out as it was, and is where whole writes have it.
    #[test]
    fn parts_are_written_and_read() {
        let pool = ThreadPool::new(2);
        for (rows, width, panel, unit) in [(37usize, 40usize, 16usize, 4usize), (64, 9_000, 16, 2), (3, 8, 2, 2)] {
            let panels = Panels::new(rows, width, panel, unit).expect("panels");
            let bytes: Vec<u8> = (0..rows * width).map(|i| (i * 31 % 251) as u8).collect();
            let mut whole = vec![0u8; bytes.len()];
            panels.write(&pool, &bytes, 0, &mut whole);
            for (at, &byte) in bytes.iter().enumerate().step_by(7) {
                assert_eq!(whole[panels.offset(at / unit) * unit + at % unit], byte);
            }
            let mut parts = vec![0u8; bytes.len()];
            let mut at = 0;
            for len in (1..).map(|i: usize| i * i % 97 + 1) {
                let end = bytes.len().min(at + len);
                panels.write(&pool, &bytes[at..end], at, &mut parts);
                let mut back = vec![0u8; end - at];
                panels.read(&parts, at, &mut back);
                assert_eq!(back, bytes[at..end]);
                at = end;
                if at == bytes.len() {
                    break;
                }
            }
            assert_eq!(parts, whole);
        }
    }
}
