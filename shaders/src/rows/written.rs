//! Unrolled code for rows with few columns per thread. The loads of these columns are in flight together, and results
//! reuse the loaded values.

use super::super::emit::Emitter;
use super::super::location::{self, Base};
use super::super::template::Template;
use super::inserts::numbered;
use super::{Layout, Reduction, Rows};

/// Maximum number of unrolled columns of a thread, and maximum number of values that are computed for them. The loads
/// of these columns are in flight together and are not repeated.
const MAX_UNROLLED: usize = 16;
const MAX_VALUES: usize = 512;

impl Rows<'_> {
    /// Returns the number of unrolled columns of a thread: all of its columns if they are few, else 0.
    pub(super) fn written(&self, layout: &Layout) -> usize {
        let columns = self.columns.div_ceil(layout.lanes);
        let fits = columns <= MAX_UNROLLED && columns * self.body.nodes.len() <= MAX_VALUES;
        if fits { columns } else { 0 }
    }

    /// Returns the base for the element in one of the unrolled columns of a thread.
    pub(super) fn written_element(&self, number: usize) -> Base {
        Base::new(&numbered("element", number), self.rows * self.columns)
    }

    /// Returns true if some threads do not have this column.
    fn is_short(&self, lanes: usize, number: usize) -> bool {
        (number + 1) * lanes > self.columns
    }

    /// Adds the indices of the elements in the columns of a thread.
    pub(super) fn number_columns(&self, e: &mut Emitter, template: Template) -> Template {
        (0..self.written_out).fold(template, |template, number| {
            let (base, column) = (self.written_element(number), numbered("column", number));
            self.name_indices(e, &base, self.location(&column));
            template.insert(&*base.name, self.number(&base.name, &column))
        })
    }

    /// Returns the accumulators of some reductions over unrolled columns.
    pub(super) fn accumulate_written(
        &self,
        e: &mut Emitter,
        level: usize,
        lanes: usize,
    ) -> Result<Vec<(Reduction, String)>, String> {
        let mut accumulators = Vec::new();
        for r in self.reductions.iter().filter(|r| r.level == level) {
            let ty = self.body.ty(r.input);
            let mut values = Vec::with_capacity(self.written_out);
            for number in 0..self.written_out {
                let location = location::split(&self.written_element(number), 1, &ty.shape);
                let value = e.value(r.input, &location)?;
                values.push(if self.is_short(lanes, number) {
                    format!("select({}, {value}, within_{number})", r.fold.start(ty.dtype))
                } else {
                    value
                });
            }
            let value = e.bind(&r.fold.join_all(ty.dtype, values.into_iter()))?;
            accumulators.push((r.clone(), value));
        }
        Ok(accumulators)
    }
}
