//! Operators with special loops. They are never fused with other operators.

use meganeura_core::DType;
use meganeura_core::ops::{ImageLayout, Pool2dDims};

use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::lanes::{self, around};
use super::module::Module;
use super::pointwise::is_half;
use super::rows::THREADS;
use super::scalar::wgsl_type;
use super::scatter::Scatter;
use super::template::{KernelFile, Template};

/// Function that compiles an operator to its launches and scratch.
type CompileFn = fn(&CompileCx) -> Result<Compiled, String>;

/// Operators whose loops compute each result element separately.
const LOOPS: &[(&str, CompileFn)] = &[
    ("core.argmax", |cx| extreme(cx, ">")),
    ("core.argmin", |cx| extreme(cx, "<")),
    ("core.avg_pool2d", |cx| Ok(avg_pool(cx, ImageLayout::Nchw)?.into())),
    ("core.avg_pool2d_grad", |cx| {
        Ok(avg_pool_grad(cx, ImageLayout::Nchw)?.into())
    }),
    ("core.avg_pool2d_nhwc", |cx| Ok(avg_pool(cx, ImageLayout::Nhwc)?.into())),
    ("core.avg_pool2d_nhwc_grad", |cx| {
        Ok(avg_pool_grad(cx, ImageLayout::Nhwc)?.into())
    }),
    ("core.cumsum", |cx| Ok(lanes::cumsum(cx)?.into())),
    ("core.decision_trees", |cx| Ok(decision_trees(cx)?.into())),
    ("core.max_pool2d", |cx| max_pool(cx, ImageLayout::Nchw)),
    ("core.max_pool2d_nhwc", |cx| max_pool(cx, ImageLayout::Nhwc)),
    ("core.sampling_threshold", |cx| Ok(sampling_threshold(cx)?.into())),
    ("core.top_k", |cx| Ok(top_k(cx)?.into())),
];

/// Operators that check their indices even if the result is empty.
const SCATTERS: &[(&str, CompileFn)] = &[
    ("core.put_along_axis", |cx| Scatter::add(cx, true)?.compile(cx)),
    ("core.scatter", |cx| Scatter::replace(cx)?.compile(cx)),
    ("core.scatter_add", |cx| Scatter::add(cx, false)?.compile(cx)),
];

/// Compiles the launches of an operator of this module.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let looping = LOOPS.iter().find(|(name, _)| *name == cx.kernel.name);
    let scattering = SCATTERS.iter().find(|(name, _)| *name == cx.kernel.name);
    let half = cx.kernel.outputs.iter().find(|t| is_half(t));
    if let Some(ty) = half.filter(|_| looping.is_some() || scattering.is_some()) {
        return Err(format!("it has a result of {}", ty.dtype));
    }
    if looping.is_some() && cx.kernel.outputs.iter().all(|t| t.numel() == 0) {
        return Ok(Some(Compiled::default()));
    }
    let make = looping.or(scattering).map(|(_, make)| make(cx));
    make.transpose()
}

/// Returns the condition that `a` comes before `b`, for elements of a dtype. It uses a comparison, and NaN comes
/// first.
fn comes_before(dtype: DType, compare: &str) -> String {
    match wgsl_type(dtype) {
        "f32" => format!("a {compare} b && !is_nan(b) || is_nan(a) && !is_nan(b)"),
        _ => format!("a {compare} b"),
    }
}

fn extreme(cx: &CompileCx, compare: &str) -> Result<Compiled, String> {
    lanes::arg_reduce(cx, &comes_before(cx.kernel.inputs[0].dtype, compare))
}

fn top_k(cx: &CompileCx) -> Result<Launch, String> {
    let ty = &cx.kernel.inputs[0];
    let [_, len, inner] = around(&ty.shape, cx.kernel.attrs.int("axis")?)?;
    let mut module = Module::new(cx);
    let template = Template::new(files::TOP_K)
        .alias("Value", wgsl_type(ty.dtype))
        .returns("load", "", &module.load(0, "at"))
        .returns("comes_before", "", &comes_before(ty.dtype, ">"))
        .body(
            "store",
            module.store(0, "at", "value") + &module.store(1, "at", "location"),
        )
        .sizes([("LENGTH", len), ("INNER", inner), ("K", cx.kernel.attrs.size("k")?)]);
    module.finish_template_elements(template, ty.numel())
}

/// Compiles the traversal of decision trees, with one thread for each row and tree.
fn decision_trees(cx: &CompileCx) -> Result<Launch, String> {
    let inputs = cx.kernel.inputs;
    let mut module = Module::new(cx);
    let mut template = Template::new(files::DECISION_TREES).returns("load", "", &module.load(0, "at"));
    for (operand, function) in [
        (1, "load_root"),
        (2, "load_feature"),
        (3, "load_threshold"),
        (4, "load_child"),
    ] {
        template = template.returns(function, "", &module.load(operand, "at"));
    }
    let template = template
        .body("store", module.store(0, "at", "leaf"))
        .sizes([("FEATURES", inputs[0].shape[1]), ("TREES", inputs[1].numel())])
        .sizes([("NODES", inputs[2].numel()), ("DEPTH", cx.kernel.attrs.size("depth")?)])
        .flag("STRICT", cx.kernel.attrs.bool("strict")?);
    module.finish_template_elements(template, cx.kernel.outputs[0].numel())
}

/// Compiles the search for the smallest logit that sampling keeps, with one workgroup for each row.
fn sampling_threshold(cx: &CompileCx) -> Result<Launch, String> {
    let len = cx.kernel.inputs[0].shape.dims().last().copied().unwrap_or(1);
    let mut module = Module::new(cx);
    let mut template = Template::new(files::SAMPLING_THRESHOLD).returns("load", "", &module.load(0, "at"));
    for (operand, function) in [
        (1, "load_temperature"),
        (2, "load_top_k"),
        (3, "load_top_p"),
        (4, "load_min_p"),
    ] {
        template = template.returns(function, "", &module.load(operand, "row"));
    }
    let template = template
        .body("store", module.store(0, "row", "threshold"))
        .sizes([("LENGTH", len), ("THREADS", THREADS)]);
    module.finish_template(template, cx.kernel.outputs[0].numel())
}

/// Number of channels that a thread of maximum pooling loads together.
const VECTOR: usize = 4;

/// Creates a template of a kernel with a window that moves over an image.
fn pooling(file: KernelFile, d: &Pool2dDims) -> Template {
    let ([h, w], [out_h, out_w], [kh, kw]) = (d.input, d.output, d.kernel);
    let ([sh, sw], [ph, pw]) = (d.stride, d.padding);
    Template::new(file)
        .sizes([("H", h), ("W", w), ("OUT_H", out_h), ("OUT_W", out_w)])
        .sizes([("KERNEL_H", kh), ("KERNEL_W", kw), ("STRIDE_H", sh), ("STRIDE_W", sw)])
        .sizes([("PADDING_H", ph), ("PADDING_W", pw), ("CHANNELS", d.channels)])
}

/// Compiles a kernel that returns the maximum of each window and, for NCHW, its index.
fn max_pool(cx: &CompileCx, layout: ImageLayout) -> Result<Compiled, String> {
    let d = Pool2dDims::of_layout(layout, &cx.kernel.inputs[0].shape, cx.kernel.attrs)?;
    let mut module = Module::new(cx);
    let numel = cx.kernel.outputs[0].numel();
    let launch = if cx.kernel.outputs.len() == 1
        && d.channels.is_multiple_of(VECTOR)
        && let Some(load) = module.load_vector(0, "at")
        && let Some(store) = module.store_vector(0, "i", "most")
    {
        let template = pooling(files::POOL_MAX_CHANNELS, &d)
            .size("CHANNELS", d.channels / VECTOR)
            .returns("load", "", &load)
            .body("store", store);
        module.finish_template_elements(template, numel / VECTOR)?
    } else {
        let mut module = Module::new(cx);
        let mut stores = module.store(0, "i", "most");
        if cx.kernel.outputs.len() > 1 {
            stores += &module.store(1, "i", "best");
        }
        let template = pooling(files::POOL_MAX, &d)
            .returns("load", "", &module.load(0, "at"))
            .body("store", stores);
        module.finish_template_elements(template, numel)?
    };
    Ok(Compiled {
        launches: vec![launch],
        // The result consists of elements of the image.
        rounded_with_result: vec![0],
        ..Compiled::default()
    })
}

fn avg_pool(cx: &CompileCx, layout: ImageLayout) -> Result<Launch, String> {
    let d = Pool2dDims::of_layout(layout, &cx.kernel.inputs[0].shape, cx.kernel.attrs)?;
    averages(cx, pooling(files::POOL_AVG, &d))
}

fn avg_pool_grad(cx: &CompileCx, layout: ImageLayout) -> Result<Launch, String> {
    let d = Pool2dDims::of_layout(layout, &cx.kernel.outputs[0].shape, cx.kernel.attrs)?;
    averages(cx, pooling(files::POOL_AVG_GRAD, &d))
}

fn averages(cx: &CompileCx, template: Template) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = template
        .returns("load", "", &module.load(0, "at"))
        .body("store", module.store(0, "i", "value"));
    module.finish_template_elements(template, cx.kernel.outputs[0].numel())
}
