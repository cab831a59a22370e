//! Key-value caches. Rows are written in place, unchanged or rotated, into contiguous caches or into blocks.

mod fused;
mod quantized;

use meganeura_core::DType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::{CacheDims, FUSED_CACHE_WRITE, PagedWriteDims};

use super::body::{Body, Def, Node};
use super::emit::Emitter;
use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::location::{self, Base};
use super::module::Module;
use super::template::Template;

/// Operators of this module. The second operator, if any, is applied to the new rows and their positions before the
/// write.
const WRITES: [(&str, Option<&str>); 2] = [
    ("core.cache_write", None),
    ("core.rope_cache_write", Some("core.rope_dynamic_offset")),
];

/// The operator that writes into blocks.
const PAGED_WRITE: &str = "core.paged_cache_write";

/// Compiles the launches of an operator of this module, for a cache of `f32`, of `f16` or of quantized rows, and new rows
/// of `f32`. Returns `None` for any other call. Such a call is decomposed.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    if cx.kernel.name == quantized::NAME {
        return quantized::compile(cx).map(Some);
    }
    let has_kernel = has_cache(cx) && cx.kernel.inputs.first().is_some_and(|new| new.dtype == DType::F32);
    if cx.kernel.name == PAGED_WRITE && has_kernel {
        return Ok(Some(Compiled {
            launches: write_blocks(cx)?,
            ..Compiled::default()
        }));
    }
    if cx.kernel.name == FUSED_CACHE_WRITE.name() && has_cache(cx) {
        return fused::compile(cx).map(Some);
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

/// Returns true if the dtype of the cache is supported. The cache is the result.
fn has_cache(cx: &CompileCx) -> bool {
    matches!(cx.kernel.outputs, [cache] if matches!(cache.dtype, DType::F32 | DType::F16))
}

/// Returns true if the cache is in half precision, so that a word contains two neighbours.
fn has_pairs(cx: &CompileCx) -> bool {
    cx.kernel.outputs[0].dtype.is_half()
}

/// Adds the function that stores elements one by one or in pairs.
fn stores(template: Template, module: &mut Module) -> Template {
    if !has_pairs(module.cx()) {
        template.body("store", store_one(module))
    } else {
        template.flag("PAIRS", true).body("store_pair", store_pair(module))
    }
}

/// Returns a statement that stores `value` as element `at` of the cache.
fn store_one(module: &mut Module) -> String {
    module.store(0, "at", "value")
}

/// Returns a statement that stores `first` as element `at` and `second` as element `at + 1` of a cache in half
/// precision. `at` must be even.
fn store_pair(module: &mut Module) -> String {
    let cx = module.cx();
    let dtype = cx.kernel.outputs[0].dtype;
    let name = module.array(cx.outputs[0], dtype, true);
    let word = format!("f32_to_{dtype}(first) | (f32_to_{dtype}(second) << 16u)");
    format!("{name}[at >> 1u] = {word};\n")
}

/// Compiles the write. There is one thread for each element (or pair of elements) of the new rows. The other rows are
/// copied first, unless the cache is written in place.
fn write(cx: &CompileCx, before: Option<&str>) -> Result<Vec<Launch>, String> {
    let dims = CacheDims::of(&cx.call())?;
    let CacheDims {
        rows, capacity, width, ..
    } = dims;
    let mut launches: Vec<Launch> = copied(cx, 1, 0)?.into_iter().collect();
    // The kernel reads only the new rows and their positions.
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

/// Compiles a copy of an operand, the cache, to a result. Returns no launch if the cache is overwritten in place, or empty.
fn copied(cx: &CompileCx, cache: usize, output: usize) -> Result<Option<Launch>, String> {
    let ty = &cx.kernel.outputs[output];
    if cx.is_overwritten(cache) || ty.numel() == 0 {
        return Ok(None);
    }
    let mut copy = Module::new(cx);
    if ty.dtype.is_half() {
        let words = copy
            .load_words(cache, 1, "i")
            .ok_or("the cache has no memory of its own")?;
        let name = copy.array(cx.outputs[output], ty.dtype, true);
        let code = format!("{name}[i] = {words};\n");
        return copy.finish_elements(code, ty.numel() / 2).map(Some);
    }
    let value = copy.load(cache, "i");
    let store = copy.store(output, "i", &value);
    copy.finish_elements(store, ty.numel()).map(Some)
}

/// Compiles a write into blocks, with a workgroup for each row.
fn write_blocks(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let PagedWriteDims { rows, width, slots } = PagedWriteDims::of(&cx.call())?;
    let mut launches: Vec<Launch> = copied(cx, 1, 0)?.into_iter().collect();
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

/// Builds the body that computes the written rows from the new rows and their positions.
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
