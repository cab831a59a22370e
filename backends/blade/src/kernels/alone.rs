//! Operators that need loops of their own: nothing is computed together with them.

use meganeura_core::DType;
use meganeura_core::ops::Pool2dDims;

use super::lanes::{self, around};
use super::module::{CompileCx, Compiled, Launch, Module};
use super::pointwise::is_half;
use super::scalar::wgsl_type;

/// Makes the launch of an operator.
type Make = fn(&CompileCx) -> Result<Launch, String>;
/// Makes the launches of an operator, one after the other.
type MakeSeveral = fn(&CompileCx) -> Result<Vec<Launch>, String>;

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
    ("core.put_along_axis", |cx| scatter(cx, Scatter::add(cx, true)?)),
    ("core.scatter", |cx| scatter(cx, Scatter::replace(cx)?)),
    ("core.scatter_add", |cx| scatter(cx, Scatter::add(cx, false)?)),
];

/// Launches for an operator of this file.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let looping = LOOPS.iter().find(|(name, _)| *name == cx.kernel.name);
    let scattering = SCATTERS.iter().find(|(name, _)| *name == cx.kernel.name);
    if looping.is_none() && scattering.is_none() {
        return Ok(None);
    }
    if let Some(ty) = cx.kernel.outputs.iter().find(|t| is_half(t)) {
        return Err(format!("it has a result of {}", ty.dtype));
    }
    if looping.is_some() && cx.kernel.outputs.iter().all(|t| t.numel() == 0) {
        return Ok(Some(Compiled::default()));
    }
    let launches = match (looping, scattering) {
        (Some((_, make)), _) => vec![make(cx)?],
        (None, Some((_, make))) => make(cx)?,
        (None, None) => Vec::new(),
    };
    Ok(Some(Compiled {
        launches,
        scratch: Vec::new(),
    }))
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

/// Elements that go to rows which indices name.
struct Scatter {
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
    fn add(cx: &CompileCx, each: bool) -> Result<Self, String> {
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

    fn replace(cx: &CompileCx) -> Result<Self, String> {
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
}

/// Elements of the result are looked for by whichever are fewer, their own threads or those of the updates.
fn scatter(cx: &CompileCx, s: Scatter) -> Result<Vec<Launch>, String> {
    let nothing = cx.kernel.outputs[0].numel() == 0 || cx.kernel.inputs[s.updates].numel() == 0;
    if s.each || s.rows < s.count || nothing {
        return Ok(vec![gather_updates(cx, s)?]);
    }
    let mut module = Module::new(cx);
    let start = match s.base {
        Some(base) => module.load(base, "i"),
        None => format!("{}(0)", wgsl_type(cx.kernel.outputs[0].dtype)),
    };
    let store = module.store(0, "i", &start);
    let first = module.finish_elements(&store, cx.kernel.outputs[0].numel())?;
    Ok(vec![first, bring_updates(cx, &s)?])
}

/// One thread for each element of the first update of a row adds up, or puts down, all updates of the row in their
/// order; what the row was before is there already.
fn bring_updates(cx: &CompileCx, s: &Scatter) -> Result<Launch, String> {
    let &Scatter { count, rows, inner, .. } = s;
    let updates = cx.kernel.inputs[s.updates].numel();
    let mut module = Module::new(cx);
    let own = module.load(s.indices, "k");
    let own = module.checked_index(&own, rows);
    let raw = module.load(s.indices, "k");
    let other = module.load(s.indices, "j");
    let update = module.load(s.updates, &format!("(outer * {count}u + j) * {inner}u + column"));
    let join = if s.base.is_some() { "=" } else { "+=" };
    let store = module.store(0, &format!("(outer * {rows}u + row) * {inner}u + column"), "value");
    let zero = format!("{}(0)", wgsl_type(cx.kernel.outputs[0].dtype));
    let code = format!(
        "let outer = i / {0}u;\nlet k = i / {inner}u % {count}u;\nlet column = i % {inner}u;\nlet row = {own};\n\
         if ({raw} != row) {{\nreturn;\n}}\nfor (var j = 0u; j < k; j += 1u) {{\nif ({other} == row) {{\nreturn;\n}}\n}}\n\
         var value = {zero};\nfor (var j = k; j < {count}u; j += 1u) {{\nif ({other} == row) {{\nvalue {join} {update};\n}}\n}}\n\
         {store}",
        count * inner
    );
    module.finish_elements(&code, updates)
}

/// One thread for each element of the result looks for the updates of its row, in their order.
fn gather_updates(cx: &CompileCx, s: Scatter) -> Result<Launch, String> {
    let Scatter { count, rows, inner, .. } = s;
    let (total, indices) = (cx.kernel.outputs[0].numel(), cx.kernel.inputs[s.indices].numel());
    let mut module = Module::new(cx);
    let checked = {
        let index = module.load(s.indices, "number");
        module.checked_index(&index, rows)
    };
    // Together the threads look at every index.
    let mut code = format!(
        "for (var number = i; number < {indices}u; number += {}u) {{\nlet found = {checked};\n}}\n",
        total.max(1)
    );
    if total > 0 {
        let update = format!("(outer * {count}u + k) * {inner}u + column");
        let index = if s.each { &update } else { "k" };
        let index = module.load(s.indices, index);
        let update = module.load(s.updates, &update);
        let (start, join) = match s.base {
            Some(base) => (module.load(base, "i"), "="),
            None => (format!("{}(0)", wgsl_type(cx.kernel.outputs[0].dtype)), "+="),
        };
        let store = module.store(0, "i", "value");
        code.push_str(&format!(
            "let outer = i / {0}u;\nlet row = i / {inner}u % {rows}u;\nlet column = i % {inner}u;\nvar value = {start};\n\
             for (var k = 0u; k < {count}u; k += 1u) {{\nif ({index} == row) {{\nvalue {join} {update};\n}}\n}}\n{store}",
            rows * inner
        ));
    }
    module.finish_elements(&code, total.max(1))
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
