//! Bodies whose results are computed element by element.

use std::fmt::Write as _;

use meganeura_core::{DType, TensorType};

use super::body::Body;
use super::emit::Emitter;
use super::module::{CompileCx, Launch};
use super::place::{self, Base};

/// Threads of a workgroup.
const THREADS: usize = 256;

/// Launches that compute these results of a body: those of equally many elements together.
pub(super) fn launches(body: &Body, cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    let outputs = cx.kernel.outputs;
    for (output, ty) in outputs.iter().enumerate() {
        let fits = |group: &&mut (usize, Vec<usize>)| group.0 == ty.numel() && !is_half(&outputs[group.1[0]]);
        match groups.iter_mut().find(fits) {
            _ if ty.numel() == 0 => {}
            Some((_, group)) if !is_half(ty) => group.push(output),
            _ => groups.push((ty.numel(), vec![output])),
        }
    }
    let overwrites = (0..cx.inputs.len()).any(|i| cx.is_overwritten(i));
    if overwrites && groups.len() > 1 {
        return Err("it overwrites operands in several launches".into());
    }
    groups.into_iter().map(|(numel, outputs)| launch(body, cx, numel, &outputs)).collect()
}

pub(super) fn is_half(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F16 | DType::BF16)
}

fn launch(body: &Body, cx: &CompileCx, numel: usize, outputs: &[usize]) -> Result<Launch, String> {
    let mut e = Emitter::new(body, cx);
    if let [output] = outputs
        && is_half(&cx.kernel.outputs[*output])
    {
        let code = pairs(&mut e, numel, *output)?;
        return finish(e, &code, numel.div_ceil(2));
    }
    let base = Base::new("i", numel);
    let (code, ()) = e.writing_block(&base, |e| {
        let mut stores = String::new();
        for &output in outputs {
            let value = element(e, &base, output)?;
            stores.push_str(&e.module.store(output, "i", &value));
        }
        e.code.push_str(&stores);
        Ok(())
    })?;
    finish(e, &code, numel)
}

/// The element of a result that has the number of a base.
fn element(e: &mut Emitter, base: &Base, output: usize) -> Result<String, String> {
    let id = e.body.results[output];
    let place = place::split(base, 1, &e.body.ty(id).shape.clone());
    e.value(id, &place)
}

/// Two elements of a result of half precision, in one word.
fn pairs(e: &mut Emitter, numel: usize, output: usize) -> Result<String, String> {
    let dtype = e.cx.kernel.outputs[output].dtype;
    let mut code = String::from("var word = 0u;\n");
    for (half, shift) in [("first", 0), ("second", 16)] {
        let base = Base::new(half, numel);
        let (inner, value) = e.block(|e| element(e, &base, output))?;
        // Writing to a string does not fail.
        let _ = writeln!(
            code,
            "let {half} = 2u * i + {}u;\nif ({half} < {numel}u) {{\n{inner}word |= f32_to_{dtype}({value}) << {shift}u;\n}}",
            shift / 16
        );
    }
    let name = e.module.array(e.cx.outputs[output], dtype, true);
    let _ = writeln!(code, "{name}[i] = word;");
    Ok(code)
}

/// One thread for each of `count` numbers `i`.
fn finish(e: Emitter, code: &str, count: usize) -> Result<Launch, String> {
    if u32::try_from(count.next_multiple_of(THREADS)).is_err() {
        return Err("it has more elements than a kernel can number".into());
    }
    let body = format!("let i = group_number * {THREADS}u + local;\nif (i >= {count}u) {{\nreturn;\n}}\n{code}");
    e.module.finish(&body, THREADS, count.div_ceil(THREADS))
}
