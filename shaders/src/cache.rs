//! Key-value caches: rows written in place, as they are or transposed, into whole caches or into blocks.

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{CacheDims, PagedWriteDims};

use super::body::{Body, Def, Node};
use super::emit::Emitter;
use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::location::{self, Base};
use super::module::Module;
use super::template::Template;

/// Operators of this file, with what the new rows and their positions become before they are written.
const WRITES: [(&str, Option<&str>); 2] = [
    ("core.cache_write", None),
    ("core.rope_cache_write", Some("core.rope_dynamic_offset")),
];

/// The operator that writes into blocks.
const PAGED_WRITE: &str = "core.paged_cache_write";

/// Launches for an operator of this file, with a cache of `f32`, or of `f16` for rows of `f32`; others are left to decompositions.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let has_kernel = match (cx.kernel.inputs, cx.kernel.outputs) {
        // Rows of f16 have pairs of elements.
        ([new, ..], [cache]) => new.dtype == DType::F32 && matches!(cache.dtype, DType::F32 | DType::F16),
        _ => false,
    };
    if cx.kernel.name == PAGED_WRITE && has_kernel {
        return Ok(Some(Compiled {
            launches: write_blocks(cx)?,
            ..Compiled::default()
        }));
    }
    let found = WRITES.iter().find(|(name, _)| *name == cx.kernel.name);
    let Some((_, before)) = found.filter(|_| has_kernel) else {
        return Ok(None);
    };
    Ok(Some(Compiled {
        launches: write(cx, *before)?,
        ..Compiled::default()
    }))
}

/// Whether the cache is of half precision, with two neighbours in a word.
fn has_pairs(cx: &CompileCx) -> bool {
    cx.kernel.outputs[0].dtype.is_half()
}

/// How elements are stored: one by one, or in pairs.
fn stores(template: Template, module: &mut Module) -> Template {
    let cx = module.cx();
    if !has_pairs(cx) {
        return template.body("store", module.store(0, "at", "value"));
    }
    let dtype = cx.kernel.outputs[0].dtype;
    let name = module.array(cx.outputs[0], dtype, true);
    let word = format!("f32_to_{dtype}(first) | (f32_to_{dtype}(second) << 16u)");
    template
        .flag("PAIRS", true)
        .body("store_pair", format!("{name}[at >> 1u] = {word};\n"))
}

/// One thread for each element of the new rows, or each pair of them; the others are copied first, unless they are there already.
fn write(cx: &CompileCx, before: Option<&str>) -> Result<Vec<Launch>, String> {
    let dims = CacheDims::of(&cx.call())?;
    let CacheDims {
        rows, capacity, width, ..
    } = dims;
    let mut launches = copied(cx)?;
    // The rows and their positions alone.
    let types = [0, 2].map(|operand| cx.kernel.inputs[operand].clone());
    let kernel = KernelDesc {
        inputs: &types,
        ..cx.kernel
    };
    let inputs = vec![cx.inputs[0], cx.inputs[2]];
    let rows_cx = cx.part(kernel, inputs, cx.outputs.clone(), cx.first_scratch);
    let body = new_rows(&kernel, before)?;
    let mut e = Emitter::new(&body, &rows_cx);
    let base = Base::new("i", types[0].numel());
    let location = location::split(&base, 1, &types[0].shape);
    let (code, value) = e.writing_block(&base, |e| e.value(body.results[0], &location))?;
    e.module.uses_faults();
    let template = Template::new(files::CACHE_WRITE)
        .returns("load_position", "", &e.module.load(1, "sequence"))
        .returns("new_element", &code, &value)
        .sizes([("ROWS", rows), ("CAPACITY", capacity), ("WIDTH", width)])
        .size("POSITIONS", dims.bound());
    let template = stores(template, &mut e.module);
    let threads = if has_pairs(cx) {
        types[0].numel() / 2
    } else {
        types[0].numel()
    };
    launches.push(e.module.finish_template_elements(template, threads)?);
    Ok(launches)
}

/// What copies the cache to where it is written, unless it is there already.
fn copied(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    if cx.is_overwritten(1) {
        return Ok(Vec::new());
    }
    let mut copy = Module::new(cx);
    if has_pairs(cx) {
        let words = copy.load_words(1, 1, "i").ok_or("the cache has no memory of its own")?;
        let name = copy.array(cx.outputs[0], cx.kernel.outputs[0].dtype, true);
        let code = format!("{name}[i] = {words};\n");
        return Ok(vec![copy.finish_elements(code, cx.kernel.outputs[0].numel() / 2)?]);
    }
    let value = copy.load(1, "i");
    let store = copy.store(0, "i", &value);
    Ok(vec![copy.finish_elements(store, cx.kernel.outputs[0].numel())?])
}

/// A workgroup for each of the rows that go into blocks.
fn write_blocks(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let PagedWriteDims { rows, width, slots } = PagedWriteDims::of(&cx.call())?;
    let mut launches = copied(cx)?;
    let mut module = Module::new(cx);
    module.uses_faults();
    let template = Template::new(files::PAGED_CACHE_WRITE)
        .returns("load_slot", "", &module.load(2, "row"))
        .returns("load_new", "", &module.load(0, "i"))
        .sizes([("ROWS", rows), ("WIDTH", width), ("SLOTS", slots)]);
    let template = stores(template, &mut module);
    launches.push(module.finish_template(template, rows)?);
    Ok(launches)
}

/// What is written, of the new rows and their positions.
fn new_rows(kernel: &KernelDesc, before: Option<&str>) -> Result<Body, String> {
    let [new, _] = kernel.inputs else {
        return Err("takes new rows and positions".into());
    };
    match before {
        None => Ok(Body {
            nodes: vec![Node {
                def: Def::Operand(0),
                ty: new.clone(),
            }],
            results: vec![0],
        }),
        Some(name) => Body::of(&KernelDesc {
            name,
            outputs: std::slice::from_ref(new),
            ..*kernel
        }),
    }
}
