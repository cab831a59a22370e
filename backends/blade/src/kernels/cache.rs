//! Key-value caches: rows written in place, and attention whose time goes with the valid rows, not with the capacity.

use meganeura_core::DType;
use meganeura_core::ops::{AttentionDims, CacheDims};

use super::module::{CompileCx, Compiled, Launch, Module};

/// Threads of a workgroup, and keys of a tile of attention.
const THREADS: usize = 64;

/// Launches for an operator of this file; half precision is left to decompositions.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let is_f32 = cx.kernel.outputs.iter().all(|t| t.dtype == DType::F32);
    let launches = match cx.kernel.name {
        "core.cache_write" if is_f32 => write(cx)?,
        "core.cached_attention" if is_f32 => attend(cx)?,
        _ => return Ok(None),
    };
    Ok(Some(Compiled {
        launches,
        scratch: Vec::new(),
    }))
}

/// One thread for each element of the new rows; the others are copied first, unless they are there already.
fn write(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let dims = CacheDims::of(&cx.call())?;
    let CacheDims {
        rows, capacity, width, ..
    } = dims;
    let mut launches = Vec::new();
    if !cx.is_overwritten(1) {
        let mut copy = Module::new(cx);
        let value = copy.load(1, "i");
        let store = copy.store(0, "i", &value);
        launches.push(copy.finish_elements(&store, cx.kernel.outputs[0].numel())?);
    }
    let mut module = Module::new(cx);
    let raw = module.load(2, "sequence");
    let position = module.checked_index("given", dims.bound());
    let value = module.load(0, "i");
    let target = format!("(sequence * {capacity}u + position) * {width}u + i % {}u", rows * width);
    let store = module.store(0, &target, &value);
    let code = format!(
        "let sequence = i / {}u;\nlet given = {raw};\nlet position = {position};\n\
         if (given != position) {{\nreturn;\n}}\n{store}",
        rows * width
    );
    launches.push(module.finish_elements(&code, cx.kernel.inputs[0].numel())?);
    Ok(launches)
}

/// A workgroup for each query of each head goes over the keys that it sees in tiles, with the greatest score and the
/// sum of exponentials so far (Milakov and Gimelshein, 2018): a thread has one key of a tile, then some elements of
/// the result.
fn attend(cx: &CompileCx) -> Result<Vec<Launch>, String> {
    let dims = AttentionDims::of_cached(&cx.call())?;
    let AttentionDims {
        batch,
        rows_q,
        rows_k,
        heads,
        kv_heads,
        head_dim,
        window,
        scale,
        ..
    } = dims;
    if batch == 0 || rows_q == 0 {
        return Ok(Vec::new());
    }
    let bound = rows_k + 1 - rows_q;
    let mut module = Module::new(cx);
    module.items = format!(
        "var<workgroup> query: array<f32, {head_dim}>;\nvar<workgroup> scores: array<f32, {THREADS}>;\n\
         const LEAST: f32 = -3.4028234e38;\n"
    );
    let raw = module.load(3, "sequence");
    let checked = module.checked_index("given", bound);
    let q = module.load(0, "own + e");
    let k = module.load(
        1,
        &format!(
            "(sequence * {rows_k}u + key) * {0}u + shared_head + e",
            kv_heads * head_dim
        ),
    );
    let v = module.load(
        2,
        &format!(
            "(sequence * {rows_k}u + tile + j) * {0}u + shared_head + element",
            kv_heads * head_dim
        ),
    );
    let parts = head_dim.div_ceil(THREADS);
    let store = module.store(0, "own + element", "sums[part] / total");
    // Without a window the first key is the first row.
    let window = match u32::try_from(window) {
        Ok(0) | Err(_) => "0u".to_owned(),
        Ok(window) => format!("max(end, {window}u) - {window}u"),
    };
    let group = dims.group();
    let code = format!(
        "let head = group_number % {heads}u;\nlet row = group_number / {heads}u % {rows_q}u;\n\
         let sequence = group_number / {}u;\nlet own = ((sequence * {rows_q}u + row) * {heads}u + head) * {head_dim}u;\n\
         let shared_head = head / {group}u * {head_dim}u;\nlet given = {raw};\n\
         if (local == 0u) {{\nlet reported = {checked};\n}}\n\
         let end = min(given, {}u) + row + 1u;\nlet start = {window};\n\
         for (var e = local; e < {head_dim}u; e += {THREADS}u) {{\nquery[e] = {q};\n}}\n\
         var sums: array<f32, {parts}>;\nvar greatest = LEAST;\nvar total = 0.0;\nworkgroupBarrier();\n\
         for (var tile = start; tile < end; tile += {THREADS}u) {{\n\
         let count = min(end - tile, {THREADS}u);\nlet key = tile + local;\nvar score = LEAST;\n\
         if (local < count) {{\nvar product = 0.0;\n\
         for (var e = 0u; e < {head_dim}u; e += 1u) {{\nproduct += query[e] * {k};\n}}\nscore = product * {scale:?};\n}}\n\
         scores[local] = score;\nworkgroupBarrier();\n\
         var most = greatest;\nfor (var j = 0u; j < count; j += 1u) {{\nmost = max(most, scores[j]);\n}}\n\
         workgroupBarrier();\nif (local < count) {{\nscores[local] = exp_f32(score - most);\n}}\nworkgroupBarrier();\n\
         let kept = exp_f32(greatest - most);\ngreatest = most;\ntotal *= kept;\n\
         for (var j = 0u; j < count; j += 1u) {{\ntotal += scores[j];\n}}\n\
         for (var part = 0u; part < {parts}u; part += 1u) {{\nlet element = part * {THREADS}u + local;\n\
         if (element < {head_dim}u) {{\nvar sum = sums[part] * kept;\n\
         for (var j = 0u; j < count; j += 1u) {{\nsum += scores[j] * {v};\n}}\nsums[part] = sum;\n}}\n}}\n\
         workgroupBarrier();\n}}\n\
         for (var part = 0u; part < {parts}u; part += 1u) {{\nlet element = part * {THREADS}u + local;\n\
         if (element < {head_dim}u) {{\n{store}}}\n}}\n",
        heads * rows_q,
        bound - 1,
        scale = scale as f32
    );
    Ok(vec![module.finish(&code, THREADS, batch * rows_q * heads)?])
}
