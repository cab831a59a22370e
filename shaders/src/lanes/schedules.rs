//! Variants of argmax and argmin. They differ in the number of parts of each row.

use meganeura_core::DType;
use meganeura_core::precision::Precision;

use super::super::files;
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::scalar::wgsl_type;
use super::super::schedule::{Class, Schedule};
use super::super::template::Template;
use super::super::variants::{Candidate, range};
use super::{Rows, THREADS};

/// Possible numbers of parts of a row.
const PARTS: [usize; 4] = [4, 16, 64, 256];
/// Minimum number of elements of a part.
const MIN_PART: usize = 1024;
/// Minimum total number of parts of all rows that occupies a device.
const MIN_WORKGROUPS: usize = 256;

/// A variant with this number of parts of each row.
pub(super) struct Parts(usize);

impl Candidate for Parts {
    fn schedule(&self) -> Schedule {
        Schedule::of("arg_reduce").with("split", [self.0])
    }
}

/// Search in each row for the first element that comes before all others.
pub(super) struct ArgReduction<'a> {
    pub(super) cx: &'a CompileCx<'a>,
    pub(super) rows: Rows,
    pub(super) comes_before: &'a str,
}

impl ArgReduction<'_> {
    /// Returns the numbers of parts for which parts are long enough.
    fn possible(&self) -> impl Iterator<Item = usize> {
        let long = |parts: &usize| self.rows.len / parts >= MIN_PART;
        std::iter::once(1).chain(PARTS.into_iter().filter(long))
    }

    /// Returns the default number of parts: the smallest number that occupies the device, or else the largest
    /// possible number. The loads of a thread wait for each other: one part of 49,152 elements takes 62 to 81 us on
    /// an H100, for one row as well as for 64 rows.
    pub(super) fn usual(&self) -> Parts {
        let Rows { rows, layout, .. } = self.rows;
        let groups = rows.div_ceil(layout.width);
        let enough = self.possible().find(|parts| groups * parts >= MIN_WORKGROUPS);
        Parts(enough.or(self.possible().last()).unwrap_or(1))
    }

    /// Returns all variants, the default one first.
    pub(super) fn all(&self) -> Vec<Parts> {
        let usual = self.usual();
        let others = self.possible().filter(|parts| *parts != usual.0).map(Parts);
        std::iter::once(Parts(usual.0)).chain(others).collect()
    }

    /// Returns the class of calls that share the fastest variant. It depends on the dtype, sizes, and memory layout
    /// of rows.
    pub(super) fn class(&self, precision: Precision) -> Class {
        let Rows { rows, len, .. } = self.rows;
        let dtype = self.cx.kernel.inputs[0].dtype;
        let along = if self.rows.layout.rows_first { "rows" } else { "columns" };
        Class {
            name: format!("extreme {dtype} {}x{len} by {along} {precision}", range(rows)),
            sizes: vec![rows, len],
            work: rows as u128 * len as u128,
        }
    }

    /// Compiles the launches of a variant.
    pub(super) fn compile(&self, &Parts(parts): &Parts) -> Result<Compiled, String> {
        let ArgReduction { cx, rows, .. } = self;
        let mut module = Module::new(cx);
        let template = rows.template(files::ARG_REDUCE).size("PARTS", parts);
        let template = self.reading(template, &mut module);
        let store = match parts {
            1 => module.store(0, "row", "best"),
            _ => {
                let found = module.array(cx.scratch(0), DType::U32, true);
                format!("{found}[row * PARTS + part] = best;\n")
            }
        };
        let groups = rows.rows.div_ceil(rows.layout.width) * parts;
        let mut compiled = Compiled::from(module.finish_template(template.body("store", store), groups)?);
        if parts > 1 {
            compiled.launches.push(self.join(parts)?);
            compiled.scratch.push(4 * rows.rows * parts);
        }
        Ok(compiled)
    }

    /// Compiles the launch that combines the results of the parts of each row.
    fn join(&self, parts: usize) -> Result<Launch, String> {
        let ArgReduction { cx, rows, .. } = self;
        let mut module = Module::new(cx);
        module.bind("found", cx.scratch(0));
        let template = rows.sized(files::ARG_REDUCE_JOIN).size("PARTS", parts);
        let template = self
            .reading(template, &mut module)
            .size("THREADS", THREADS)
            .body("store", module.store(0, "row", "best"));
        module.finish_template(template, rows.rows.div_ceil(THREADS))
    }

    fn reading(&self, template: Template, module: &mut Module) -> Template {
        template
            .alias("Value", wgsl_type(self.cx.kernel.inputs[0].dtype))
            .returns("load", "", &module.load(0, "at"))
            .returns("comes_before", "", self.comes_before)
    }
}
