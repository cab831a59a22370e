//! Storage orders of parameters: the order of a matrix's bytes in memory between steps.
//!
//! A parameter that no dispatch writes can be stored in another order than row by row. It is reordered when the host
//! writes it, and reordered back when the host reads it, so only its kernels see the order. All kernels that read a
//! parameter have to support its order. Each kernel lists the orders that it supports for an operand.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan};

use crate::memory::View;
use crate::pool::ThreadPool;

/// The layout of a matrix with rows in panels. A panel contains some consecutive rows. Each row is cut into *units*
/// of a fixed number of bytes. A panel stores the first unit of each row, then the second unit of each row, and so
/// on. Rows after the last whole panel are stored row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// Number of rows in a panel.
    pub(crate) rows: usize,
    /// Number of units in a row.
    pub(crate) units: usize,
    /// Number of bytes of a unit.
    pub(crate) unit: usize,
    /// Number of panels.
    pub(crate) count: usize,
}

/// The storage orders that a kernel supports for an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The kernel reads the operand only row by row.
    Plain,
    /// The kernel reads the operand row by row, or in any panels with units of `unit` bytes.
    Any { unit: usize },
    /// The kernel reads the operand row by row, but prefers these panels.
    Panels(Panels),
}

impl Order {
    /// Returns `true` if the kernel can read these panels.
    fn accepts(&self, panels: &Panels) -> bool {
        match self {
            Order::Plain => false,
            Order::Any { unit } => *unit == panels.unit,
            Order::Panels(preferred) => preferred == panels,
        }
    }
}

impl Panels {
    /// Creates panels of `rows` rows, for a matrix with rows of `width` bytes. Returns `None` if the matrix cannot be
    /// cut into such panels, or if the order would not change.
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

    /// Returns the offset at which unit `number` is stored. Units are numbered row by row. The offset counts units.
    pub(crate) fn offset(&self, number: usize) -> usize {
        let panel = self.rows * self.units;
        if number >= self.count * panel {
            return number;
        }
        let (row, unit) = (number % panel / self.units, number % self.units);
        number / panel * panel + unit * self.rows + row
    }

    /// Returns the offset of the first of `count` consecutive units of a row, and the distance between the units.
    /// Returns `None` if they are not in one row.
    pub(crate) fn in_row(&self, first: usize, count: usize) -> Option<[usize; 2]> {
        let units_in_panels = self.count * self.rows * self.units;
        match first {
            _ if first >= units_in_panels => Some([first, 1]),
            _ if first % self.units + count <= self.units => Some([self.offset(first), self.rows]),
            _ => None,
        }
    }

    /// Calls `each` with the parts of a range of bytes in row order. Each part is within one unit. The second
    /// argument is its offset in the stored matrix.
    fn pieces(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>, usize)) {
        let mut at = range.start;
        let bytes_in_panels = self.count * self.rows * self.units * self.unit;
        // Neighbouring units of a row are `rows` units apart.
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

    /// Writes bytes to a stored matrix. The bytes are in row order and begin at `offset`.
    pub(crate) fn write(&self, pool: &ThreadPool, bytes: &[u8], offset: usize, matrix: &mut [u8]) {
        let matrix: View<u8> = View::new(matrix.as_mut_ptr(), matrix.len());
        pool.run(bytes.len().div_ceil(TASK_BYTES), &|task, _| {
            let own = task * TASK_BYTES..bytes.len().min((task + 1) * TASK_BYTES);
            self.pieces(offset + own.start..offset + own.end, |piece, to| {
                let from = &bytes[piece.start - offset..piece.end - offset];
                // SAFETY: the exclusive borrow lasts until all tasks have ended, and different bytes have different
                // offsets.
                unsafe { matrix.slice_mut(to..to + from.len()) }.copy_from_slice(from);
            });
        });
    }

    /// Reads bytes from a stored matrix, in row order, beginning at `offset`.
    pub(crate) fn read(&self, matrix: &[u8], offset: usize, bytes: &mut [u8]) {
        self.pieces(offset..offset + bytes.len(), |piece, to| {
            let len = piece.len();
            bytes[piece.start - offset..piece.end - offset].copy_from_slice(&matrix[to..to + len]);
        });
    }
}

/// Minimum number of bytes of a task.
const TASK_BYTES: usize = 1 << 18;

/// The panels of all parameters of a plan that are not stored row by row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders(HashMap<BufferRef, Panels>);

impl Orders {
    /// Selects for each parameter a storage order that all its readers support. `order` returns the orders that a
    /// dispatch supports for an operand. If a dispatch requests panels for several operands, it gets all of them or
    /// none.
    ///
    /// `given` contains the orders of parameters that are stored already. Also returns the parameters whose order the
    /// kernels of the plan cannot read. For these, it selects an order as for other parameters.
    pub(crate) fn new(
        plan: &ExecutionPlan,
        order: impl Fn(&Dispatch, usize) -> Order,
        given: &HashMap<BufferRef, Option<Panels>>,
    ) -> (Self, HashSet<BufferRef>) {
        let (readers, together) = wishes(plan, order);
        let mut unreadable: HashSet<BufferRef> = HashSet::new();
        loop {
            let fixed = |buffer: &BufferRef| given.get(buffer).filter(|_| !unreadable.contains(buffer)).copied();
            let mut refused: Vec<BufferRef> = Vec::new();
            let mut panels: HashMap<BufferRef, Panels> = HashMap::new();
            for (&buffer, orders) in &readers {
                let chosen = match fixed(&buffer) {
                    Some(Some(stored)) if !orders.iter().all(|order| order.accepts(&stored)) => {
                        refused.push(buffer);
                        None
                    }
                    Some(stored) => stored,
                    None => agreed(orders),
                };
                panels.extend(chosen.map(|chosen| (buffer, chosen)));
            }
            // A dispatch gets panels for all of its buffers or for none. Removing the panels of a buffer can affect further
            // dispatches, so this repeats.
            while let Some(buffers) = together.iter().find(|buffers| {
                let there = buffers.iter().filter(|buffer| panels.contains_key(buffer)).count();
                there > 0 && there < buffers.len()
            }) {
                for buffer in buffers {
                    if panels.remove(buffer).is_some() && fixed(buffer).is_some() {
                        refused.push(*buffer);
                    }
                }
            }
            if refused.is_empty() {
                return (Orders(panels), unreadable);
            }
            unreadable.extend(refused);
        }
    }

    /// Returns the panels of a buffer, or `None` if it is stored row by row.
    pub(crate) fn of(&self, buffer: BufferRef) -> Option<Panels> {
        self.0.get(&buffer).copied()
    }
}

/// Returns the orders that the readers of each parameter support, and the operands that each dispatch requests in
/// panels. Parameters that a dispatch writes are stored row by row.
fn wishes(
    plan: &ExecutionPlan,
    order: impl Fn(&Dispatch, usize) -> Order,
) -> (HashMap<BufferRef, Vec<Order>>, Vec<Vec<BufferRef>>) {
    let written = plan.written_buffers();
    let mut readers: HashMap<BufferRef, Vec<Order>> = plan
        .param_buffers
        .iter()
        .map(|(_, buffer)| *buffer)
        .filter(|buffer| !written.contains(buffer))
        .map(|buffer| (buffer, Vec::new()))
        .collect();
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
    (readers, together)
}

/// Returns the panels that one reader requests, if all readers support them.
fn agreed(orders: &[Order]) -> Option<Panels> {
    let wanted = orders.iter().find_map(|order| match order {
        Order::Panels(panels) => Some(*panels),
        Order::Plain | Order::Any { .. } => None,
    })?;
    orders.iter().all(|order| order.accepts(&wanted)).then_some(wanted)
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
        // The matrix has rows of one unit.
        assert_eq!(Panels::new(16, 2, 16, 2), None);
    }

    /// Reading any range returns the written values, and writing ranges gives the same layout as writing the whole
    /// matrix.
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
