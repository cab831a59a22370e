//! Rows so short that the few columns of a thread are written out: what it reads for them is on its way together, and is
//! still there when results need it again.

use std::fmt::Write as _;

use super::super::emit::Emitter;
use super::super::place::{self, Base};
use super::{Layout, Reduction, Rows};

/// Most columns of a thread whose code is written out, so that what it reads is on its way together and is read once; and most
/// values that are computed so.
const MOST_WRITTEN_OUT: usize = 16;
const MOST_VALUES: usize = 512;

impl Rows<'_> {
    /// Columns of a thread that are written out: all of them, if they are few.
    pub(super) fn written(&self, layout: &Layout) -> usize {
        let columns = self.columns.div_ceil(layout.lanes);
        let fits = columns <= MOST_WRITTEN_OUT && columns * self.body.nodes.len() <= MOST_VALUES;
        if fits { columns } else { 0 }
    }

    /// The base of the element in one of the columns of a thread that are written out.
    pub(super) fn written_element(&self, number: usize) -> Base {
        Base::new(&format!("element_{number}"), self.rows * self.columns)
    }

    /// Whether such a column exists, unless it always does.
    fn exists(&self, lanes: usize, number: usize) -> Option<String> {
        let first = number * lanes;
        (first + lanes > self.columns).then(|| format!("lane + {first}u < {}u", self.columns))
    }

    /// Code that gives a thread the numbers of its columns; beyond the end it has the last one.
    fn number_columns(&self, e: &mut Emitter, lanes: usize) {
        for number in 0..self.written_out {
            let column = format!("lane + {}u", number * lanes);
            let column = match self.exists(lanes, number) {
                Some(_) => format!("min({column}, {}u)", self.columns.saturating_sub(1)),
                None => column,
            };
            let place = self.place(&format!("column_here_{number}"));
            let _ = writeln!(
                e.code,
                "let column_here_{number} = {column};\nlet element_{number} = {};",
                place::linear(&place, &self.domain)
            );
            self.name_indices(e, &self.written_element(number), place);
        }
    }

    /// Accumulators of some reductions over columns that are written out.
    pub(super) fn accumulate_written(
        &self,
        e: &mut Emitter,
        level: usize,
        lanes: usize,
    ) -> Result<Vec<(Reduction, String)>, String> {
        if level == 0 {
            self.number_columns(e, lanes);
        }
        let mut accumulators = Vec::new();
        for r in self.reductions.iter().filter(|r| r.level == level) {
            let ty = self.body.ty(r.input);
            let mut values = Vec::with_capacity(self.written_out);
            for number in 0..self.written_out {
                let place = place::split(&self.written_element(number), 1, &ty.shape);
                let value = e.value(r.input, &place)?;
                values.push(match self.exists(lanes, number) {
                    Some(exists) => format!("select({}, {value}, {exists})", r.fold.start(ty.dtype)),
                    None => value,
                });
            }
            let value = e.bind(&r.fold.join_all(ty.dtype, values.into_iter()))?;
            accumulators.push((r.clone(), value));
        }
        Ok(accumulators)
    }

    /// Stores what there is for each of these columns.
    pub(super) fn store_written(
        &self,
        e: &mut Emitter,
        lanes: usize,
        store: impl Fn(&mut Emitter, &Base) -> Result<(), String>,
    ) -> Result<(), String> {
        for number in 0..self.written_out {
            let (code, ()) = e.block(|e| store(e, &self.written_element(number)))?;
            let exists = self.exists(lanes, number).map_or(String::new(), |c| format!(" && {c}"));
            let _ = writeln!(e.code, "if (exists{exists}) {{\n{code}}}");
        }
        Ok(())
    }
}
