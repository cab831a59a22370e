//! Loops along an axis that the threads of a workgroup share: locations of extremes, and running sums. A running sum may
//! overwrite its operand: each element is written by the thread that has read it.

mod schedules;

use meganeura_core::Shape;

use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::module::Module;
use super::rows::{Layout, THREADS};
use super::scalar::wgsl_type;
use super::template::{KernelFile, Template};
use super::variants;
use schedules::Extremes;

/// Consecutive elements of a thread in each round of a running sum.
const EACH: usize = 8;

/// Elements before an axis, along it, and after it.
pub(super) fn around(shape: &Shape, axis: i64) -> Result<[usize; 3], String> {
    let axis = shape.axis(axis)?;
    Ok([
        shape[..axis].iter().product(),
        shape[axis],
        shape[axis + 1..].iter().product(),
    ])
}

/// Rows along an axis, and who works on them.
struct Rows {
    layout: Layout,
    rows: usize,
    len: usize,
    /// Distance of neighbours in a row.
    inner: usize,
}

impl Rows {
    fn of(cx: &CompileCx) -> Result<Self, String> {
        let [outer, len, inner] = around(&cx.kernel.inputs[0].shape, cx.kernel.attrs.int("axis")?)?;
        if len == 0 {
            return Err("there is nothing along the axis".into());
        }
        Ok(Rows {
            layout: Layout::new(len, inner > 1),
            rows: outer * inner,
            len,
            inner,
        })
    }

    /// Gives a kernel file its rows, and who works on them.
    fn template(&self, file: KernelFile) -> Template {
        let Layout {
            width,
            lanes,
            rows_first,
        } = self.layout;
        self.sized(file)
            .sizes([("WIDTH", width), ("LANES", lanes), ("THREADS", THREADS)])
            .flag("ROWS_FIRST", rows_first)
    }

    fn sized(&self, file: KernelFile) -> Template {
        Template::new(file).sizes([("ROWS", self.rows), ("LENGTH", self.len), ("INNER", self.inner)])
    }

    fn finish(&self, module: Module, template: Template) -> Result<Launch, String> {
        module.finish_template(template, self.rows.div_ceil(self.layout.width))
    }
}

/// The index of the first element that comes before all others by a condition on two values, `a` and `b`. Of elements neither of
/// which comes before the other, the first counts.
pub(super) fn arg_reduce(cx: &CompileCx, comes_before: &str) -> Result<Compiled, String> {
    let rows = Rows::of(cx)?;
    let extremes = Extremes { cx, rows, comes_before };
    variants::compile(
        cx,
        |precision| extremes.class(precision),
        &extremes.usual(),
        || extremes.all(),
        |variant| extremes.compile(variant),
    )
}

/// Running sums.
pub(super) fn cumsum(cx: &CompileCx) -> Result<Launch, String> {
    let rows = Rows::of(cx)?;
    let mut module = Module::new(cx);
    let template = rows
        .template(files::CUMSUM)
        .alias("Value", wgsl_type(cx.kernel.inputs[0].dtype))
        .returns("load", "", &module.load(0, "at"))
        .body("store", module.store(0, "at", "sum"))
        .size("EACH", EACH)
        .flag("REVERSE", cx.kernel.attrs.bool("reverse")?)
        .flag("EXCLUSIVE", cx.kernel.attrs.bool("exclusive")?);
    rows.finish(module, template)
}
