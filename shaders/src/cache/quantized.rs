//! Writing of rows into a quantized cache.

use meganeura_core::ops::{QuantizedWriteDims, SequenceRows};

use super::super::files;
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::template::Template;
use super::copied;

pub(super) const NAME: &str = "core.quantized_cache_write";

/// Compiles the write, with a workgroup for each row. Words and scales are copied first, unless they are written in place.
pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = QuantizedWriteDims::of(&cx.call())?;
    let QuantizedWriteDims { rows, width, slots, .. } = dims;
    let copies = [copied(cx, 1, 0)?, copied(cx, 2, 1)?];
    let mut launches: Vec<Launch> = copies.into_iter().flatten().collect();
    if rows * width == 0 {
        return Ok(Compiled {
            launches,
            ..Compiled::default()
        });
    }
    let mut module = Module::new(cx);
    module.uses_faults();
    let new = module.load_vector(0, "vector").unwrap_or_else(|| {
        let element = |c: usize| module.load(0, &format!("vector * 4u + {c}u"));
        format!("vec4<f32>({})", [0, 1, 2, 3].map(element).join(", "))
    });
    let scales = module.array(cx.outputs[1], cx.kernel.outputs[1].dtype, true);
    let mut template = Template::new(files::QUANTIZED_CACHE_WRITE)
        .returns("load_place", "", &module.load(3, "index"))
        .returns("load_new", "", &new)
        .body("store_word", module.store(0, "at", "value"))
        .body("store_scales", format!("{scales}[at] = value;\n"))
        .sizes([("ROWS", rows), ("WIDTH", width), ("SLOTS", slots)]);
    template = match dims.sequence {
        Some(SequenceRows { rows, capacity }) => template.sizes([("SEQUENCE_ROWS", rows), ("CAPACITY", capacity)]),
        None => template.flag("PAGED", true),
    };
    launches.push(module.finish_template(template, rows)?);
    Ok(Compiled {
        launches,
        ..Compiled::default()
    })
}
