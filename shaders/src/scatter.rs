//! Scatter operators write elements to, or add them to, the rows that indices select.
//!
//! Sums are reproducible, because no two threads add to the same location. If there are few updates, every element of
//! the result checks all of them. If there are many, the first launches collect the updates of each row in a list,
//! whose order differs between runs. An element of the result then processes its list in the order of the updates.

use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::lanes::around;
use super::module::Module;
use super::scalar::wgsl_type;
use super::template::{KernelFile, Template};

/// Maximum number of updates of a row, or of rows of updates, for which lists are not faster.
const SHORT_LIST: usize = 32;

/// A scatter operator.
pub(super) struct Scatter {
    /// Indices of three operands: the indices, the updates, and the initial values.
    indices: usize,
    updates: usize,
    base: Option<usize>,
    /// Number of indices along the axis.
    count: usize,
    rows: usize,
    inner: usize,
    /// True if every element of the updates has its own index.
    each: bool,
}

impl Scatter {
    pub(super) fn add(cx: &CompileCx, each: bool) -> Result<Self, String> {
        let (inputs, output) = (cx.kernel.inputs, &cx.kernel.outputs[0].shape);
        let axis = cx.kernel.attrs.int("axis")?;
        let [_, rows, inner] = around(output, axis)?;
        let count = if each {
            around(&inputs[0].shape, axis)?[1]
        } else {
            inputs[0].numel()
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
        if self.each || self.count <= SHORT_LIST || nothing {
            return Ok(self.scan(cx)?.into());
        }
        Ok(Compiled {
            launches: vec![self.clear_lists(cx)?, self.build_lists(cx)?, self.apply_lists(cx)?],
            scratch: vec![4 * self.rows, 4 * self.count],
            ..Compiled::default()
        })
    }

    /// Creates a template with the initial value of a result element, and with the function that applies an update.
    fn updating(&self, module: &mut Module, file: KernelFile) -> Template {
        let output = &module.cx().kernel.outputs[0];
        let ty = wgsl_type(output.dtype);
        let base = match self.base {
            Some(base) => module.load(base, "i"),
            None => format!("{ty}()"),
        };
        let joined = if self.base.is_some() {
            "update"
        } else {
            "value + update"
        };
        let store = module.store(0, "i", "value");
        Template::new(file)
            .alias("Value", ty)
            .returns("load_index", "", &module.load(self.indices, "number"))
            .returns("load_update", "", &module.load(self.updates, "number"))
            .returns("load_base", "", &base)
            .returns("join", "", joined)
            .body("store", store)
            .sizes([("ROWS", self.rows), ("INNER", self.inner), ("UPDATES", self.count)])
    }

    fn scan(&self, cx: &CompileCx) -> Result<Launch, String> {
        let (total, indices) = (cx.kernel.outputs[0].numel(), cx.kernel.inputs[self.indices].numel());
        let mut module = Module::new(cx);
        module.uses_faults();
        let template = self.updating(&mut module, files::SCATTER_SCAN);
        let template = template.size("INDICES", indices).flag("PER_ROW", self.each);
        module.finish_template_elements(template.flag("STORES", total > 0), total.max(1))
    }

    fn clear_lists(&self, cx: &CompileCx) -> Result<Launch, String> {
        let mut module = Module::new(cx);
        module.bind("first", cx.scratch(0));
        module.finish_template_elements(Template::new(files::SCATTER_LISTS_CLEAR), self.rows)
    }

    fn build_lists(&self, cx: &CompileCx) -> Result<Launch, String> {
        let mut module = Module::new(cx);
        module.uses_faults();
        module.bind("first", cx.scratch(0));
        module.bind("next", cx.scratch(1));
        let template = Template::new(files::SCATTER_LISTS_BUILD).size("ROWS", self.rows);
        let template = template.returns("load_index", "", &module.load(self.indices, "i"));
        module.finish_template_elements(template, self.count)
    }

    fn apply_lists(&self, cx: &CompileCx) -> Result<Launch, String> {
        let mut module = Module::new(cx);
        module.bind("first", cx.scratch(0));
        module.bind("next", cx.scratch(1));
        let template = self
            .updating(&mut module, files::SCATTER_LISTS_APPLY)
            .size("SHORT", SHORT_LIST);
        module.finish_template_elements(template, cx.kernel.outputs[0].numel())
    }
}
