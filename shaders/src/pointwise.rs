//! Kernels of bodies whose results are computed element by element.

use std::fmt::Write as _;

use meganeura_core::{DType, TensorType};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::kernel::{CompileCx, Compiled, Launch};
use super::location::{self, Base};

/// Number of elements of large results that a thread computes. They are a quarter of the result apart, so that
/// adjacent threads still access adjacent elements. With one element of four bytes per thread, too few loads would be
/// in flight for the memory of large GPUs.
const THREAD_ELEMENTS: usize = 4;
/// A thread computes several elements if the results have at least this number of elements. With fewer elements, there
/// would be too few threads.
const STREAM: usize = 1 << 19;
/// Names of the components of a vector.
const COMPONENTS: [&str; 4] = ["x", "y", "z", "w"];
/// A thread computes several elements if each needs at most this number of variables. More variables would slow down
/// drivers or need too many registers.
const MAX_VARIABLES: usize = 64;

/// Compiles a body without reductions. Results with the same number of elements are computed together.
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
    if let Some(launch) = in_vectors(body, cx, numel, outputs) {
        return Ok(launch);
    }
    let (code, stores, variables) = elements(&mut e, "i", numel, outputs)?;
    // Updates in place have enough memory accesses. If a thread updates several elements that are a quarter apart,
    // gradient descent is slower and Adam is not faster.
    if numel < STREAM || !numel.is_multiple_of(THREAD_ELEMENTS) || variables > MAX_VARIABLES || e.cx.overwrites() {
        return e.module.finish_elements(code + &stores, numel);
    }
    // All reads precede the first write, because drivers do not move reads before writes.
    let threads = numel / THREAD_ELEMENTS;
    let (mut reading, mut writing) = (code, stores);
    for part in 1..THREAD_ELEMENTS {
        let name = format!("i{part}");
        let (code, stores, _) = elements(&mut e, &name, numel, outputs)?;
        // Writing to a string does not fail.
        let _ = writeln!(reading, "let {name} = i + {}u;", part * threads);
        reading += &code;
        writing += &stores;
    }
    e.module.finish_elements(reading + &writing, threads)
}

/// Returns the launch of a large update in place whose threads read and write vectors of four elements. It has a
/// quarter of the memory instructions. Returns `None` if a result is not `f32`, or an operand is read at other
/// elements than the written ones.
fn in_vectors(body: &Body, cx: &CompileCx, numel: usize, outputs: &[usize]) -> Option<Launch> {
    if !cx.overwrites() || numel < STREAM || !numel.is_multiple_of(COMPONENTS.len()) {
        return None;
    }
    let mut e = Emitter::new(body, cx);
    let is_read = |id: &Id| (0..body.nodes.len()).any(|other| body.inputs(other).contains(id));
    let whole: Vec<Id> = (0..body.nodes.len())
        .filter(|&id| body.ty(id).numel() == numel && matches!(body.nodes[id].def, Def::Operand(_)))
        .filter(is_read)
        .collect();
    let mut code = String::new();
    let mut vectors = Vec::with_capacity(whole.len());
    for &id in &whole {
        let Def::Operand(operand) = body.nodes[id].def else {
            continue;
        };
        let loaded = e.module.load_own_vector(operand, "i")?;
        let name = e.fresh();
        // Writing to a string does not fail.
        let _ = writeln!(code, "let {name} = {loaded};");
        vectors.push(name);
    }
    let mut values = vec![Vec::with_capacity(COMPONENTS.len()); outputs.len()];
    for (number, component) in COMPONENTS.iter().enumerate() {
        let index = format!("i{number}");
        let _ = writeln!(code, "let {index} = i * {}u + {number}u;", COMPONENTS.len());
        let (base, before) = (Base::new(&index, numel), e.variables());
        for (&id, vector) in whole.iter().zip(&vectors) {
            let shape = body.ty(id).shape.clone();
            let location = location::split(&base, 1, &shape);
            e.fix_terms(
                id,
                &format!("{vector}.{component}"),
                vec![location::terms(&location, &shape)],
            );
        }
        let computed = e.writing_block(&base, |e| {
            let values = outputs.iter().map(|&output| element(e, &base, output));
            values.collect::<Result<Vec<_>, _>>()
        });
        let (block, elements) = computed.ok()?;
        if e.variables() - before > MAX_VARIABLES {
            return None;
        }
        code += &block;
        values.iter_mut().zip(elements).for_each(|(all, value)| all.push(value));
    }
    for (&output, values) in outputs.iter().zip(values) {
        if cx.stored_output(output) != DType::F32 {
            return None;
        }
        let vector = format!("vec4<f32>({})", values.join(", "));
        code += &e.module.store_vector(output, "i", &vector)?;
    }
    e.module.finish_elements(code, numel / COMPONENTS.len()).ok()
}

/// Returns the code that computes the elements of some results at one index, the code that stores them, and the
/// number of variables of this code.
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

/// Returns the element of a result whose index is the base.
fn element(e: &mut Emitter, base: &Base, output: usize) -> Result<String, String> {
    let id = e.body.results[output];
    let location = location::split(base, 1, &e.body.ty(id).shape.clone());
    e.value(id, &location)
}

/// Returns the code for a word with two elements of a result in half precision.
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
