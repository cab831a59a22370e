//! Scatters: elements that go to rows which indices name.
//!
//! Sums are the same at every run, so no two threads add to one place. Where there are few updates, every element of the
//! result looks at all of them. Where there are many, the updates of each row are put into a list of its own first, whose
//! order depends on the run; an element of the result goes through its list in the order of the updates.

use meganeura_core::DType;

use super::kernel::{CompileCx, Compiled, Launch};
use super::lanes::around;
use super::module::Module;
use super::scalar::wgsl_type;

/// Updates of a row, or rows of updates, up to which lists do not pay.
const FEW: usize = 32;

/// A scatter.
pub(super) struct Scatter {
    /// Operands: the indices, the updates, and what is there otherwise.
    indices: usize,
    updates: usize,
    base: Option<usize>,
    /// Number of indices along the axis.
    count: usize,
    rows: usize,
    inner: usize,
    /// Whether every element of the updates has an index of its own.
    each: bool,
}

impl Scatter {
    pub(super) fn add(cx: &CompileCx, each: bool) -> Result<Self, String> {
        let (inputs, output) = (cx.kernel.inputs, &cx.kernel.outputs[0].shape);
        let axis = cx.kernel.attrs.int("axis")?;
        let [_, rows, inner] = around(output, axis)?;
        let count = match each {
            true => around(&inputs[0].shape, axis)?[1],
            false => inputs[0].numel(),
        };
        Ok(Scatter {
            indices: 0,
            updates: 1,
            base: None,
            count,
            rows,
            inner,
            each,
        })
    }

    pub(super) fn replace(cx: &CompileCx) -> Result<Self, String> {
        let [_, rows, inner] = around(&cx.kernel.outputs[0].shape, cx.kernel.attrs.int("axis")?)?;
        Ok(Scatter {
            indices: 1,
            updates: 2,
            base: Some(0),
            count: cx.kernel.inputs[1].numel(),
            rows,
            inner,
            each: false,
        })
    }

    pub(super) fn compile(&self, cx: &CompileCx) -> Result<Compiled, String> {
        let nothing = cx.kernel.outputs[0].numel() == 0 || cx.kernel.inputs[self.updates].numel() == 0;
        if self.each || self.count <= FEW || nothing {
            return Ok(Compiled {
                launches: vec![self.look_at_all(cx)?],
                ..Compiled::default()
            });
        }
        Ok(Compiled {
            launches: vec![self.empty_lists(cx)?, self.fill_lists(cx)?, self.follow_lists(cx)?],
            scratch: vec![4 * self.rows, 4 * self.count],
            ..Compiled::default()
        })
    }

    /// Names and the number of the element `i` of the result.
    fn places(&self) -> String {
        let Scatter { rows, inner, .. } = self;
        format!(
            "let outer = i / {0}u;\nlet row = i / {inner}u % {rows}u;\nlet column = i % {inner}u;\n",
            rows * inner
        )
    }

    /// What an element of the result is before the first update.
    fn start(&self, cx: &CompileCx, module: &mut Module) -> String {
        match self.base {
            Some(base) => module.load(base, "i"),
            None => format!("{}(0)", wgsl_type(cx.kernel.outputs[0].dtype)),
        }
    }

    /// The number of the element of update `k` that goes to the element at hand.
    fn update(&self) -> String {
        format!("(outer * {}u + k) * {}u + column", self.count, self.inner)
    }

    /// A loop over all updates, for those of the row.
    fn all_updates(&self, module: &mut Module) -> String {
        let number = self.update();
        let index = if self.each { &number } else { "k" };
        let index = module.load(self.indices, index);
        let update = module.load(self.updates, &number);
        let join = self.join();
        format!(
            "for (var k = 0u; k < {}u; k += 1u) {{\nif ({index} == row) {{\nvalue {join} {update};\n}}\n}}\n",
            self.count
        )
    }

    fn join(&self) -> &'static str {
        if self.base.is_some() { "=" } else { "+=" }
    }

    /// One thread for each element of the result looks for the updates of its row, in their order.
    fn look_at_all(&self, cx: &CompileCx) -> Result<Launch, String> {
        let (total, indices) = (cx.kernel.outputs[0].numel(), cx.kernel.inputs[self.indices].numel());
        let mut module = Module::new(cx);
        let checked = {
            let index = module.load(self.indices, "number");
            module.checked_index(&index, self.rows)
        };
        // Together the threads look at every index.
        let mut code = format!(
            "for (var number = i; number < {indices}u; number += {}u) {{\nlet found = {checked};\n}}\n",
            total.max(1)
        );
        if total > 0 {
            let (start, updates) = (self.start(cx, &mut module), self.all_updates(&mut module));
            let store = module.store(0, "i", "value");
            code.push_str(&format!("{}var value = {start};\n{updates}{store}", self.places()));
        }
        module.finish_elements(&code, total.max(1))
    }

    fn empty_lists(&self, cx: &CompileCx) -> Result<Launch, String> {
        let mut module = Module::new(cx);
        let first = module.array(cx.scratch(0), DType::U32, true);
        module.finish_elements(&format!("{first}[i] = 0xffffffffu;\n"), self.rows)
    }

    /// Every update is put before those that are in the list of its row.
    fn fill_lists(&self, cx: &CompileCx) -> Result<Launch, String> {
        let mut module = Module::new(cx);
        let index = module.load(self.indices, "i");
        let row = module.checked_index("index", self.rows);
        let (first, next) = (
            module.atomics(cx.scratch(0)),
            module.array(cx.scratch(1), DType::U32, true),
        );
        let code = format!(
            "let index = {index};\nlet row = {row};\nif (row == index) {{\n{next}[i] = atomicExchange(&{first}[row], i);\n}}\n"
        );
        module.finish_elements(&code, self.count)
    }

    /// One thread for each element of the result goes through the list of its row, from the least number to the
    /// greatest. That takes the square of the list's length; rows of long lists look at all updates instead.
    fn follow_lists(&self, cx: &CompileCx) -> Result<Launch, String> {
        let mut module = Module::new(cx);
        let first = module.array(cx.scratch(0), DType::U32, false);
        let next = module.array(cx.scratch(1), DType::U32, false);
        let start = self.start(cx, &mut module);
        let update = module.load(self.updates, &self.update());
        let (join, all) = (self.join(), self.all_updates(&mut module));
        let store = module.store(0, "i", "value");
        let code = format!(
            "{}var value = {start};\nvar length = 0u;\n\
             for (var k = {first}[row]; k != 0xffffffffu && length <= {FEW}u; k = {next}[k]) {{\nlength += 1u;\n}}\n\
             if (length <= {FEW}u) {{\nvar least = 0u;\nfor (var done = 0u; done < length; done += 1u) {{\n\
             var k = 0xffffffffu;\n\
             for (var other = {first}[row]; other != 0xffffffffu; other = {next}[other]) {{\n\
             if (other >= least && other < k) {{\nk = other;\n}}\n}}\nvalue {join} {update};\nleast = k + 1u;\n}}\n\
             }} else {{\n{all}}}\n{store}",
            self.places()
        );
        module.finish_elements(&code, cx.kernel.outputs[0].numel())
    }
}
