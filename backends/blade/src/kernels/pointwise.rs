//! Bodies whose results are computed element by element.

use std::fmt::Write as _;

use meganeura_core::{DType, TensorType};

use super::body::Body;
use super::emit::Emitter;
use super::module::{CompileCx, Compiled, Launch};
use super::place::{self, Base};

/// Launches for a body without reductions: results of equally many elements are computed together.
pub(super) fn compile(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
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
    let launches = groups
        .into_iter()
        .map(|(numel, outputs)| launch(body, cx, numel, &outputs));
    Ok(Compiled {
        launches: launches.collect::<Result<_, _>>()?,
        scratch: Vec::new(),
    })
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
        return e.module.finish_elements(&code, numel.div_ceil(2));
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
    e.module.finish_elements(&code, numel)
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
