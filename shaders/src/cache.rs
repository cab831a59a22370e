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

/// Launches for an operator of this file; half precision is left to decompositions.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    if cx.kernel.name == PAGED_WRITE && cx.kernel.outputs[0].dtype == DType::F32 {
        return Ok(Some(Compiled {
            launches: write_blocks(cx)?,
            ..Compiled::default()
        }));
    }
    let found = WRITES.iter().find(|(name, _)| *name == cx.kernel.name);
    let Some((_, before)) = found.filter(|_| cx.kernel.outputs[0].dtype == DType::F32) else {
        return Ok(None);
    };
    Ok(Some(Compiled {
        launches: write(cx, *before)?,
        ..Compiled::default()
    }))
}

/// One thread for each element of the new rows; the others are copied first, unless they are there already.
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
        .body("store", e.module.store(0, "at", "value"))
        .sizes([("ROWS", rows), ("CAPACITY", capacity), ("WIDTH", width)])
        .size("POSITIONS", dims.bound());
    launches.push(e.module.finish_template_elements(template, types[0].numel())?);
    Ok(launches)
}

/// What copies the cache to where it is written, unless it is there already.
fn copied(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    if cx.is_overwritten(1) {
        return Ok(Vec::new());
    }
    let mut copy = Module::new(cx);
    let value = copy.load(1, "i");
    let store = copy.store(0, "i", &value);
    Ok(vec![copy.finish_elements(store, cx.kernel.outputs[0].numel())?])
}

/// One thread for each element of rows that go into blocks.
fn write_blocks(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let PagedWriteDims { rows, width, slots } = PagedWriteDims::of(&cx.call())?;
    let mut launches = copied(cx)?;
    let mut module = Module::new(cx);
    module.uses_faults();
    let template = Template::new(files::PAGED_CACHE_WRITE)
        .returns("load_slot", "", &module.load(2, "row"))
        .returns("load_new", "", &module.load(0, "i"))
        .body("store", module.store(0, "at", "value"))
        .sizes([("ROWS", rows), ("WIDTH", width), ("SLOTS", slots)]);
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
