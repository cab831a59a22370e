//! Operators that need loops of their own: nothing is computed together with them.

use meganeura_core::DType;
use meganeura_core::ops::Pool2dDims;

use super::kernel::{CompileCx, Compiled, Launch};
use super::lanes::{self, around};
use super::module::Module;
use super::pointwise::is_half;
use super::scalar::wgsl_type;
use super::scatter::Scatter;

/// Makes the launch of an operator.
type Make = fn(&CompileCx) -> Result<Launch, String>;
/// Makes the launches of an operator, and says what they keep on the way.
type MakeSeveral = fn(&CompileCx) -> Result<Compiled, String>;

/// Operators whose results are looked for, element by element.
const LOOPS: &[(&str, Make)] = &[
    ("core.argmax", |cx| extreme(cx, ">")),
    ("core.argmin", |cx| extreme(cx, "<")),
    ("core.avg_pool2d", avg_pool),
    ("core.avg_pool2d_grad", avg_pool_grad),
    ("core.cumsum", lanes::cumsum),
    ("core.max_pool2d", max_pool),
    ("core.top_k", top_k),
];

/// Operators that look at their indices even where there is no result.
const SCATTERS: &[(&str, MakeSeveral)] = &[
    ("core.put_along_axis", |cx| Scatter::add(cx, true)?.compile(cx)),
    ("core.scatter", |cx| Scatter::replace(cx)?.compile(cx)),
    ("core.scatter_add", |cx| Scatter::add(cx, false)?.compile(cx)),
];

/// Launches for an operator of this file.
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
    match (looping, scattering) {
        (Some((_, make)), _) => Ok(Some(Compiled {
            launches: vec![make(cx)?],
            ..Compiled::default()
        })),
        (None, Some((_, make))) => make(cx).map(Some),
        (None, None) => Ok(None),
    }
}

/// Whether `a` comes before `b` in descending order, NaN first.
fn above(dtype: DType, a: &str, b: &str) -> String {
    ordered(dtype, ">", a, b)
}

/// Whether `a` comes before `b` by a comparison, NaN first.
fn ordered(dtype: DType, compare: &str, a: &str, b: &str) -> String {
    match wgsl_type(dtype) {
        "f32" => format!("({a} {compare} {b} && !is_nan({b}) || is_nan({a}) && !is_nan({b}))"),
        _ => format!("({a} {compare} {b})"),
    }
}

fn extreme(cx: &CompileCx, compare: &str) -> Result<Launch, String> {
    let dtype = cx.kernel.inputs[0].dtype;
    lanes::first_by(cx, &|a, b| ordered(dtype, compare, a, b))
}

/// Every element counts those that come before it, and so knows its own place.
fn top_k(cx: &CompileCx) -> Result<Launch, String> {
    let ty = &cx.kernel.inputs[0];
    let [_, len, inner] = around(&ty.shape, cx.kernel.attrs.int("axis")?)?;
    let k = cx.kernel.attrs.size("k")?;
    let mut module = Module::new(cx);
    let own = module.load(0, "i");
    let other = module.load(0, &format!("start + q * {inner}u"));
    let (before, behind) = (above(ty.dtype, "other", "own"), above(ty.dtype, "own", "other"));
    let target = format!("(outer * {k}u + rank) * {inner}u + i % {inner}u");
    let stores = module.store(0, &target, "own") + &module.store(1, &target, "p");
    let code = format!(
        "let outer = i / {0}u;\nlet p = i / {inner}u % {len}u;\nlet start = outer * {0}u + i % {inner}u;\n\
         let own = {own};\nvar rank = 0u;\nfor (var q = 0u; q < {len}u; q += 1u) {{\nlet other = {other};\n\
         if ({before} || q < p && !({behind})) {{\nrank += 1u;\n}}\n}}\nif (rank < {k}u) {{\n{stores}}}\n",
        len * inner
    );
    module.finish_elements(&code, ty.numel())
}

/// Code that gives a thread its plane and place in a plane of this size.
fn plane([height, width]: [usize; 2]) -> String {
    format!(
        "let plane = i / {0}u;\nlet y = i / {width}u % {height}u;\nlet x = i % {width}u;\n",
        height * width
    )
}

/// A loop over the elements of the window of output `y`, `x` that lie in the image.
fn window(d: &Pool2dDims, inner: &str) -> String {
    let ([h, w], [kh, kw], [sh, sw], [ph, pw]) = (d.input, d.kernel, d.stride, d.padding);
    // Numbers before the first wrap to large ones.
    format!(
        "for (var p = 0u; p < {kh}u; p += 1u) {{\nfor (var q = 0u; q < {kw}u; q += 1u) {{\n\
         let row = y * {sh}u + p - {ph}u;\nlet column = x * {sw}u + q - {pw}u;\n\
         if (row < {h}u && column < {w}u) {{\nlet at = (plane * {h}u + row) * {w}u + column;\n{inner}}}\n}}\n}}\n"
    )
}

fn max_pool(cx: &CompileCx) -> Result<Launch, String> {
    let d = Pool2dDims::of(&cx.kernel.inputs[0].shape, cx.kernel.attrs)?;
    let mut module = Module::new(cx);
    let value = module.load(0, "at");
    let above = above(DType::F32, "value", "most");
    let stores = module.store(0, "i", "most") + &module.store(1, "i", "best");
    let search = window(
        &d,
        &format!("let value = {value};\nif (best == 0xffffffffu || {above}) {{\nbest = at;\nmost = value;\n}}\n"),
    );
    let code = format!(
        "{}var best = 0xffffffffu;\nvar most = 0.0;\n{search}{stores}",
        plane(d.output)
    );
    module.finish_elements(&code, cx.kernel.outputs[0].numel())
}

fn avg_pool(cx: &CompileCx) -> Result<Launch, String> {
    let d = Pool2dDims::of(&cx.kernel.inputs[0].shape, cx.kernel.attrs)?;
    let mut module = Module::new(cx);
    let value = module.load(0, "at");
    let store = module.store(0, "i", &format!("sum / {}.0", d.kernel[0] * d.kernel[1]));
    let sum = window(&d, &format!("sum += {value};\n"));
    let code = format!("{}var sum = 0.0;\n{sum}{store}", plane(d.output));
    module.finish_elements(&code, cx.kernel.outputs[0].numel())
}

fn avg_pool_grad(cx: &CompileCx) -> Result<Launch, String> {
    let d = Pool2dDims::of(&cx.kernel.outputs[0].shape, cx.kernel.attrs)?;
    let ([oh, ow], [kh, kw], [sh, sw], [ph, pw]) = (d.output, d.kernel, d.stride, d.padding);
    let mut module = Module::new(cx);
    let value = module.load(0, &format!("(plane * {oh}u + row) * {ow}u + column"));
    let store = module.store(0, "i", &format!("sum / {}.0", kh * kw));
    // The windows that an element is in, by the tap that meets it.
    let code = format!(
        "{}var sum = 0.0;\nfor (var p = 0u; p < {kh}u; p += 1u) {{\nfor (var q = 0u; q < {kw}u; q += 1u) {{\n\
         let down = y + {ph}u - p;\nlet across = x + {pw}u - q;\nlet row = down / {sh}u;\nlet column = across / {sw}u;\n\
         if (row * {sh}u == down && column * {sw}u == across && row < {oh}u && column < {ow}u) {{\nsum += {value};\n}}\n\
         }}\n}}\n{store}",
        plane(d.input)
    );
    module.finish_elements(&code, cx.kernel.outputs[0].numel())
}
