//! Bodies whose results are computed element by element.

use std::fmt::Write as _;

use meganeura_core::TensorType;

use super::body::Body;
use super::emit::Emitter;
use super::kernel::{CompileCx, Compiled, Launch};
use super::location::{self, Base};

/// Elements of large results that a thread computes, a quarter of the result apart, so that threads beside each other still access
/// neighbours. With one of four bytes, too few are in flight for the memory of large GPUs.
const EACH: usize = 4;
/// Results that are as large have enough threads with several elements each.
const STREAM: usize = 1 << 19;
/// Variables of an element up to which several of them are no burden for drivers, and have registers.
const MAX_VARIABLES: usize = 64;

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
    if cx.overwrites() && groups.len() > 1 {
        return Err("it overwrites operands in several launches".into());
    }
    let launches = groups
        .into_iter()
        .map(|(numel, outputs)| launch(body, cx, numel, &outputs));
    Ok(Compiled {
        launches: launches.collect::<Result<_, _>>()?,
        ..Compiled::default()
    })
}

pub(super) fn is_half(ty: &TensorType) -> bool {
    ty.dtype.is_half()
}

fn launch(body: &Body, cx: &CompileCx, numel: usize, outputs: &[usize]) -> Result<Launch, String> {
    let mut e = Emitter::new(body, cx);
    if let [output] = outputs
        && is_half(&cx.kernel.outputs[*output])
    {
        let code = pairs(&mut e, numel, *output)?;
        return e.module.finish_elements(code, numel.div_ceil(2));
    }
    let (code, stores, variables) = elements(&mut e, "i", numel, outputs)?;
    // Updates in place have accesses enough: gradient descent is slower with several elements, Adam no faster.
    if numel < STREAM || !numel.is_multiple_of(EACH) || variables > MAX_VARIABLES || e.cx.overwrites() {
        return e.module.finish_elements(code + &stores, numel);
    }
    // All are read before the first is written: drivers do not read ahead of writes.
    let threads = numel / EACH;
    let (mut reading, mut writing) = (code, stores);
    for part in 1..EACH {
        let name = format!("i{part}");
        let (code, stores, _) = elements(&mut e, &name, numel, outputs)?;
        // Writing to a string does not fail.
        let _ = writeln!(reading, "let {name} = i + {}u;", part * threads);
        reading += &code;
        writing += &stores;
    }
    e.module.finish_elements(reading + &writing, threads)
}

/// Code that computes the elements of some results with one number, code that writes them, and how many variables it has.
fn elements(e: &mut Emitter, name: &str, numel: usize, outputs: &[usize]) -> Result<(String, String, usize), String> {
    let (base, before) = (Base::new(name, numel), e.variables());
    let (code, values) = e.writing_block(&base, |e| {
        let values = outputs.iter().map(|&output| element(e, &base, output));
        values.collect::<Result<Vec<_>, _>>()
    })?;
    let stores = outputs.iter().zip(&values);
    let stores = stores.map(|(&output, value)| e.module.store(output, name, value));
    Ok((code, stores.collect(), e.variables() - before))
}

/// The element of a result that has the number of a base.
fn element(e: &mut Emitter, base: &Base, output: usize) -> Result<String, String> {
    let id = e.body.results[output];
    let location = location::split(base, 1, &e.body.ty(id).shape.clone());
    e.value(id, &location)
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
