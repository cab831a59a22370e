//! Loops along an axis that the threads of a workgroup share: places of extremes, and running sums. A running sum may
//! overwrite its operand: each element is written by the thread that has read it.

use meganeura_core::Shape;

use super::kernel::{CompileCx, Launch};
use super::module::Module;
use super::rows::{Layout, THREADS};
use super::scalar::{literal, wgsl_type};

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

    /// Code that gives a thread its row, its lane, and the first element of the row.
    fn begin(&self) -> String {
        let Rows { len, inner, .. } = self;
        format!(
            "{}let start = row / {inner}u * {}u + row % {inner}u;\n\
             let slot = lane * {}u + row_here;\n",
            self.layout.row_of(self.rows, "group_number"),
            len * inner,
            self.layout.width
        )
    }

    fn finish(&self, module: Module, code: &str) -> Result<Launch, String> {
        module.finish(code, THREADS, self.rows.div_ceil(self.layout.width))
    }
}

/// The index of the first element that comes before all others by a condition on two values. Of elements neither of
/// which comes before the other, the first counts.
pub(super) fn first_by(cx: &CompileCx, before: &dyn Fn(&str, &str) -> String) -> Result<Launch, String> {
    let rows = Rows::of(cx)?;
    let Rows { len, inner, .. } = rows;
    let Layout { width, lanes, .. } = rows.layout;
    let ty = wgsl_type(cx.kernel.inputs[0].dtype);
    let mut module = Module::new(cx);
    let first = module.load(0, &format!("start + best * {inner}u"));
    let next = module.load(0, &format!("start + k * {inner}u"));
    let store = module.store(0, "row", "best");
    let mut code = format!(
        "{}var best = min(lane, {}u);\nvar most = {first};\n\
         for (var k = lane + {lanes}u; k < {len}u; k += {lanes}u) {{\nlet value = {next};\n\
         if ({}) {{\nbest = k;\nmost = value;\n}}\n}}\n",
        rows.begin(),
        len - 1,
        before("value", "most")
    );
    if lanes > 1 {
        module.items = format!(
            "var<workgroup> all_most: array<{ty}, {THREADS}>;\nvar<workgroup> all_best: array<u32, {THREADS}>;\n"
        );
        code.push_str(&format!(
            "all_most[slot] = most;\nall_best[slot] = best;\nworkgroupBarrier();\n\
             for (var step = {}u; step > 0u; step /= 2u) {{\nif (lane < step) {{\n\
             let value = all_most[slot + step * {width}u];\nlet at = all_best[slot + step * {width}u];\n\
             if ({} || at < best && !({})) {{\nbest = at;\nmost = value;\n\
             all_most[slot] = most;\nall_best[slot] = best;\n}}\n}}\nworkgroupBarrier();\n}}\n",
            lanes / 2,
            before("value", "most"),
            before("most", "value"),
        ));
    }
    code.push_str(&format!("if (exists && lane == 0u) {{\n{store}}}\n"));
    rows.finish(module, &code)
}

/// Running sums: in each round every thread sums up some neighbours, and the threads of a row the sums of those before
/// them, in steps of 1, 2, 4 ... (Hillis and Steele, 1986).
pub(super) fn cumsum(cx: &CompileCx) -> Result<Launch, String> {
    let rows = Rows::of(cx)?;
    let Rows { len, inner, .. } = rows;
    let Layout { width, lanes, .. } = rows.layout;
    let dtype = cx.kernel.inputs[0].dtype;
    let (ty, zero) = (wgsl_type(dtype), literal(dtype, 0));
    let place = match cx.kernel.attrs.bool("reverse")? {
        true => format!("start + ({}u - k) * {inner}u", len - 1),
        false => format!("start + k * {inner}u"),
    };
    let mut module = Module::new(cx);
    let value = module.load(0, &place);
    let store = module.store(0, &place, "sum");
    let add = "sum += values[j];\n";
    let result = match cx.kernel.attrs.bool("exclusive")? {
        true => format!("{store}{add}"),
        false => format!("{add}{store}"),
    };
    module.items = format!("var<workgroup> sums: array<{ty}, {THREADS}>;\n");
    let each = |code: &str| {
        format!(
            "for (var j = 0u; j < {EACH}u; j += 1u) {{\nlet k = first + lane * {EACH}u + j;\n\
             if (k < {len}u) {{\n{code}}}\n}}\n"
        )
    };
    let code = format!(
        "{}var carry = {zero};\nfor (var first = 0u; first < {len}u; first += {}u) {{\n\
         var values: array<{ty}, {EACH}>;\nvar sum = {zero};\n{}sums[slot] = sum;\nworkgroupBarrier();\n\
         for (var step = 1u; step < {lanes}u; step *= 2u) {{\nvar other = {zero};\n\
         if (lane >= step) {{\nother = sums[slot - step * {width}u];\n}}\nworkgroupBarrier();\n\
         sums[slot] += other;\nworkgroupBarrier();\n}}\n\
         sum = carry;\nif (lane > 0u) {{\nsum += sums[slot - {width}u];\n}}\n\
         carry += sums[{}u + row_here];\nif (exists) {{\n{}}}\nworkgroupBarrier();\n}}\n",
        rows.begin(),
        lanes * EACH,
        each(&format!("values[j] = {value};\nsum += values[j];\n")),
        (lanes - 1) * width,
        each(&result),
    );
    rows.finish(module, &code)
}
