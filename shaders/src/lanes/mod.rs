//! Kernels whose workgroups share loops along an axis: argmax, argmin, and running sums. A running sum may overwrite
//! its operand, because the thread that has read an element also writes it.

mod schedules;

use meganeura_core::Shape;

use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::module::Module;
use super::rows::{Layout, THREADS};
use super::scalar::wgsl_type;
use super::template::{KernelFile, Template};
use super::variants;
use schedules::ArgReduction;

/// Number of consecutive elements that a thread processes in each round of a running sum.
const THREAD_ELEMENTS: usize = 8;

/// Returns the number of elements before an axis, along it, and after it.
pub(super) fn around(shape: &Shape, axis: i64) -> Result<[usize; 3], String> {
    let axis = shape.axis(axis)?;
    Ok([
        shape[..axis].iter().product(),
        shape[axis],
        shape[axis + 1..].iter().product(),
    ])
}

/// Rows along an axis, and their distribution over threads.
struct Rows {
    layout: Layout,
    rows: usize,
    len: usize,
    /// Distance in memory between neighbouring elements of a row.
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

    /// Creates a template with the rows and their distribution over threads.
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

/// Compiles the search for the index of the first element in an order. `comes_before` is the order's condition on two
/// values, `a` and `b`. Among elements of equal rank, the first one is returned.
pub(super) fn arg_reduce(cx: &CompileCx, comes_before: &str) -> Result<Compiled, String> {
    let rows = Rows::of(cx)?;
    let extremes = ArgReduction { cx, rows, comes_before };
    variants::compile(
        cx,
        |precision| extremes.class(precision),
        &extremes.usual(),
        || extremes.all(),
        |variant| extremes.compile(variant),
    )
}

/// Compiles running sums.
pub(super) fn cumsum(cx: &CompileCx) -> Result<Launch, String> {
    let rows = Rows::of(cx)?;
    let mut module = Module::new(cx);
    let template = rows
        .template(files::CUMSUM)
        .alias("Value", wgsl_type(cx.kernel.inputs[0].dtype))
        .returns("load", "", &module.load(0, "at"))
        .body("store", module.store(0, "at", "sum"))
        .size("THREAD_ELEMENTS", THREAD_ELEMENTS)
        .flag("REVERSE", cx.kernel.attrs.bool("reverse")?)
        .flag("EXCLUSIVE", cx.kernel.attrs.bool("exclusive")?);
    rows.finish(module, template)
}
