//! Code that is inserted into `kernels/reduce.wgsl`: the computation of elements and rows.

use std::fmt::Write as _;

use super::super::body::{Def, Id};
use super::super::emit::Emitter;
use super::super::files;
use super::super::kernel::{CompileCx, Launch};
use super::super::location::{self, Base};
use super::super::roles::Role;
use super::super::scalar::{compute_type, wgsl_type};
use super::super::template::Template;
use super::{Layout, Reduction, Rows, THREADS};

/// Number of columns of a thread whose loads are in flight together if rows are long.
const UNROLL: usize = 4;
/// Number of threads that combine the partial results of the lanes of a row. Each thread combines some lanes.
const JOIN_LANES: usize = 16;
/// Maximum number of reductions of a kernel. Each reduction has an array in shared memory.
const MAX_REDUCTIONS: usize = 12;

impl Rows<'_> {
    fn check_size(&self) -> Result<(), String> {
        // Indices of threads past the last row or column must not overflow, although these threads read no elements.
        let numbers = self.rows.saturating_mul(self.columns).saturating_add(UNROLL * THREADS);
        if u32::try_from(numbers).is_err() {
            return Err("it has more elements than a kernel can number".into());
        }
        match self.reductions.len() {
            0..=MAX_REDUCTIONS => Ok(()),
            _ => Err("it has more reductions than a kernel joins".into()),
        }
    }

    /// Compiles the reductions to one launch.
    pub(super) fn whole(&self, cx: &CompileCx, layout: &Layout) -> Result<Launch, String> {
        let mut e = Emitter::new(self.body, cx);
        let template = self.template(&mut e, layout)?;
        let template = self.store_elements(&mut e, template)?;
        let template = self.store_rows(&mut e, "store_row", template)?;
        e.module.finish_template(template, self.rows.div_ceil(layout.width))
    }

    /// Adds the statements that compute the reductions of a single row to the start of another kernel.
    pub(in super::super) fn begin(&self, e: &mut Emitter) -> Result<(), String> {
        let layout = Layout::of_one_row();
        let template = self.template(e, &layout)?.flag("PROLOGUE", true);
        let [declarations, statements] = self.store_rows(e, "store_row", template)?.prologue()?;
        e.module.declare(&declarations);
        e.code = statements;
        Ok(())
    }

    /// Compiles the reductions of parts of the rows, and the results with one element for each element of the domain.
    pub(super) fn partial(&self, cx: &CompileCx, layout: &Layout, parts: usize) -> Result<Launch, String> {
        let mut e = Emitter::new(self.body, cx);
        let template = self.template(&mut e, layout)?;
        let mut stores = String::new();
        for (number, r) in self.reductions.iter().enumerate() {
            // This is the dtype of the computation, even if the sum is in half precision.
            let array = e
                .module
                .array(cx.scratch(number), compute_type(self.body.ty(r.id).dtype), true);
            let value = e.fixed(r.id).ok_or("a reduction has no value")?;
            assign(&mut stores, &format!("{array}[row * PARTS + part]"), value);
        }
        let template = template
            .sizes([("PARTS", parts), ("PART_LENGTH", self.columns.div_ceil(parts))])
            .flag("BY_ROW", true)
            .insert("store_row", stores);
        let template = self.store_elements(&mut e, template)?;
        e.module
            .finish_template(template, self.rows.div_ceil(layout.width) * parts)
    }

    /// Compiles the launch that combines the parts, with one thread for each row.
    pub(super) fn join_parts(&self, cx: &CompileCx, parts: usize) -> Result<Launch, String> {
        let mut e = Emitter::new(self.body, cx);
        let (mut start, mut join) = (String::new(), String::new());
        for (number, r) in self.reductions.iter().enumerate() {
            let (name, dtype) = (e.fresh(), compute_type(self.body.ty(r.id).dtype));
            let array = e.module.array(cx.scratch(number), dtype, false);
            let joined = r.fold.join(dtype, &name, &format!("{array}[row * PARTS + part]"));
            declare(&mut start, &name, &r.fold.start(dtype));
            assign(&mut join, &name, &joined);
            self.fix(&mut e, r.id, &name);
        }
        let template = Template::new(files::REDUCE_JOIN)
            .sizes([("ROWS", self.rows), ("PARTS", parts), ("THREADS", THREADS)])
            .insert("start", start)
            .insert("join", join);
        let template = self.store_rows(&mut e, "store", template)?;
        e.module.finish_template(template, self.rows.div_ceil(THREADS))
    }

    /// Creates the template with all reductions, in the order of their dependencies, and with the values that have
    /// one element per row.
    fn template(&self, e: &mut Emitter, layout: &Layout) -> Result<Template, String> {
        self.check_size()?;
        let unroll = if self.columns >= 2 * UNROLL * layout.lanes {
            UNROLL
        } else {
            1
        };
        let levels = self.reductions.iter().map(|r| r.level + 1).max().unwrap_or(0);
        let mut template = Template::new(files::REDUCE)
            .sizes([("ROWS", self.rows), ("COLUMNS", self.columns)])
            .sizes([("REDUCTIONS", self.reductions.len()), ("LEVELS", levels)])
            .sizes([
                ("THREADS", THREADS),
                ("LANES", layout.lanes),
                ("JOIN_LANES", JOIN_LANES),
            ])
            .flag("ROWS_FIRST", layout.rows_first)
            .sizes([("WRITTEN", self.written_out), ("UNROLL", unroll)])
            .flag("BY_ROW", !self.by_row.is_empty());
        for (number, r) in self.reductions.iter().enumerate() {
            let dtype = self.body.ty(r.id).dtype;
            let lanes =
                (0..layout.lanes.min(JOIN_LANES)).map(|lane| format!("shared_{number}[{lane}u * WIDTH + row_here]"));
            template = template
                .alias(numbered("Value", number), wgsl_type(dtype))
                .returns(numbered("combine", number), "", &r.fold.join(dtype, "a", "b"))
                .returns(numbered("joined", number), "", &r.fold.join_all(dtype, lanes));
        }
        template = match self.written_out {
            0 => template.insert("element", self.number("i", "column")),
            _ => self.number_columns(e, template),
        };
        for level in 0..levels {
            let accumulators = match self.written_out {
                0 => {
                    let accumulators;
                    (template, accumulators) = self.accumulate(e, level, unroll, template)?;
                    accumulators
                }
                _ => {
                    let accumulators = self.accumulate_written(e, level, layout.lanes)?;
                    template = template.insert(numbered("reduce_written", level), std::mem::take(&mut e.code));
                    accumulators
                }
            };
            template = self.join_lanes(e, layout, level, &accumulators, template)?;
        }
        Ok(template)
    }

    /// Returns a statement that assigns the index of the element in a column to the variable `name`.
    pub(super) fn number(&self, name: &str, column: &str) -> String {
        let number = location::linear(&self.location(column), &self.domain);
        format!("let {name} = {number};\n")
    }

    /// Returns the code for the value of an element within a loop over columns.
    fn in_loop(
        &self,
        e: &mut Emitter,
        make: impl FnOnce(&mut Emitter, &Base) -> Result<(), String>,
    ) -> Result<String, String> {
        let base = self.element();
        let (code, ()) = e.block(|e| {
            self.name_indices(e, &base, self.location("column"));
            make(e, &base)
        })?;
        Ok(code)
    }

    /// Adds the accumulators of the reductions of a level, and the statements that update them for each column.
    fn accumulate(
        &self,
        e: &mut Emitter,
        level: usize,
        unroll: usize,
        mut template: Template,
    ) -> Result<(Template, Vec<(Reduction, String)>), String> {
        let mut accumulators = Vec::new();
        for r in self.reductions.iter().filter(|r| r.level == level) {
            let names: Vec<String> = (0..unroll).map(|_| e.fresh()).collect();
            for name in &names {
                declare(&mut e.code, name, &r.fold.start(self.body.ty(r.id).dtype));
            }
            accumulators.push((r.clone(), names));
        }
        template = template.insert(numbered("start", level), std::mem::take(&mut e.code));
        for own in 0..unroll {
            let code = self.in_loop(e, |e, base| {
                for (r, names) in &accumulators {
                    let ty = self.body.ty(r.input).clone();
                    let value = e.value(r.input, &location::split(base, 1, &ty.shape))?;
                    assign(&mut e.code, &names[own], &r.fold.join(ty.dtype, &names[own], &value));
                }
                Ok(())
            })?;
            template = template.insert(numbered(&numbered("reduce", level), own), code);
        }
        let mut joined = Vec::with_capacity(accumulators.len());
        for (r, mut names) in accumulators {
            let first = names.remove(0);
            for name in names {
                assign(
                    &mut e.code,
                    &first,
                    &r.fold.join(self.body.ty(r.id).dtype, &first, &name),
                );
            }
            joined.push((r, first));
        }
        let template = template.insert(numbered("join_unrolled", level), std::mem::take(&mut e.code));
        Ok((template, joined))
    }

    /// Combines the lanes of each row, so that every thread has the results. Computes the values that depend on the
    /// results.
    fn join_lanes(
        &self,
        e: &mut Emitter,
        layout: &Layout,
        level: usize,
        accumulators: &[(Reduction, String)],
        mut template: Template,
    ) -> Result<Template, String> {
        let (mut share, mut join) = (String::new(), String::new());
        for (r, accumulator) in accumulators {
            let number = r.number;
            assign(
                &mut share,
                &format!("shared_{number}[lane * WIDTH + row_here]"),
                accumulator,
            );
            let _ = writeln!(join, "join_some_{number}(lane, row_here);");
            let value = match layout.lanes {
                1 => e.bind(accumulator)?,
                _ => e.bind(&format!("joined_{number}(row_here)"))?,
            };
            self.fix(e, r.id, &value);
        }
        self.hoist(e)?;
        if layout.lanes > 1 {
            template = template.insert(numbered("share", level), share);
        }
        if layout.lanes > JOIN_LANES {
            template = template.insert(numbered("join", level), join);
        }
        Ok(template.insert(numbered("results", level), std::mem::take(&mut e.code)))
    }

    /// Computes values with one element per row as soon as their operands are available.
    fn hoist(&self, e: &mut Emitter) -> Result<(), String> {
        let count = self.body.nodes.len();
        let (mut depends, mut overwritten) = (vec![false; count], vec![false; count]);
        for id in 0..count {
            let inputs = self.body.inputs(id);
            depends[id] = inputs.iter().any(|&i| depends[i]);
            overwritten[id] = match self.body.nodes[id].def {
                Def::Operand(operand) => e.cx.is_overwritten(operand),
                _ => inputs.iter().any(|&i| overwritten[i]),
            };
            let is_reduction = self.body.role(id) == Some(Role::Reduction);
            depends[id] |= is_reduction;
            let ready = self.body.ty(id).numel() == self.rows && depends[id] && !overwritten[id];
            if is_reduction || !ready || self.body.role(id) != Some(Role::Pointwise) || !self.is_ready(e, id) {
                continue;
            }
            let location = location::split(&self.row(), 1, &self.body.ty(id).shape);
            let value = e.value(id, &location)?;
            self.fix(e, id, &value);
        }
        Ok(())
    }

    /// Returns true if all reductions that a value depends on have been computed.
    fn is_ready(&self, e: &Emitter, id: Id) -> bool {
        // A contraction after the reductions has a variable, but only in its epilogue.
        if e.fixed(id).is_some() && self.body.role(id) != Some(Role::Contraction) {
            return true;
        }
        !matches!(self.body.role(id), Some(Role::Reduction | Role::Contraction))
            && self.body.inputs(id).iter().all(|&i| self.is_ready(e, i))
    }

    /// Adds the statements that store some results at the element of a base.
    fn stores(&self, e: &mut Emitter, base: &Base, outputs: &[usize]) -> Result<(), String> {
        let mut stores = String::new();
        for &output in outputs {
            let id = self.body.results[output];
            let location = location::split(base, 1, &self.body.ty(id).shape);
            let value = e.value(id, &location)?;
            stores += &e.module.store(output, &base.name, &value);
        }
        e.code += &stores;
        Ok(())
    }

    /// Stores the results that have one element for each row.
    fn store_rows(&self, e: &mut Emitter, location: &str, template: Template) -> Result<Template, String> {
        if self.by_row.is_empty() {
            return Ok(template);
        }
        let base = self.row();
        let (code, ()) = e.writing_block(&base, |e| self.stores(e, &base, &self.by_row))?;
        Ok(template.insert(location, code))
    }

    /// Stores the results that have one element for each element of the domain.
    fn store_elements(&self, e: &mut Emitter, template: Template) -> Result<Template, String> {
        if self.by_element.is_empty() {
            return Ok(template);
        }
        let template = template.flag("BY_ELEMENT", true);
        if self.written_out == 0 {
            let code = self.in_loop(e, |e, base| self.stores(e, base, &self.by_element))?;
            return Ok(template.insert("store_element", code));
        }
        (0..self.written_out).try_fold(template, |template, number| {
            let base = self.written_element(number);
            let (code, ()) = e.block(|e| self.stores(e, &base, &self.by_element))?;
            Ok(template.insert(numbered("store", number), code))
        })
    }
}

/// Returns a name in the kernel file that ends with a number.
pub(super) fn numbered(name: &str, number: usize) -> String {
    format!("{name}_{number}")
}

/// Adds the declaration of a mutable variable. Writing to a string does not fail.
fn declare(code: &mut String, name: &str, value: &str) {
    let _ = writeln!(code, "var {name} = {value};");
}

/// Adds an assignment to a variable or an element.
fn assign(code: &mut String, name: &str, value: &str) {
    let _ = writeln!(code, "{name} = {value};");
}
