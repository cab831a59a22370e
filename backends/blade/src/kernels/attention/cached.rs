//! Attention over a cache: its time goes with the valid rows, not with the capacity. Many queries are those of a causal call
//! whose mask begins where a sequence is. Of few, each has a workgroup for every head, which goes over the keys that
//! the query sees in tiles, with the greatest score and the sum of exponentials so far (Milakov and Gimelshein, 2018).

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::super::module::{CompileCx, Compiled, Launch, Module};
use super::{FEWEST_QUERIES, MOST_WIDTH, POSITIONS, Side, position, scale, start, tiled, window};

/// Threads of a workgroup, and keys of a tile, where a thread has a key.
const THREADS: usize = 64;
/// Threads of a workgroup where several share a key.
const MANY_THREADS: usize = 256;
/// Threads that share a key: they read 64 bytes side by side.
const SHARING: usize = 4;
/// Keys of a tile then. Their partial scores are half of the shared memory that every device has.
const KEYS: usize = 512;
/// Most elements of a head whose query is in shared memory.
const MOST_ELEMENTS: usize = 2048;
/// Threads that bring together what all have.
const SOME: usize = 16;
/// Loads of values on their way at a time.
const TOGETHER: usize = 8;
/// Keys of a thread whose vectors are on their way at a time.
const KEYS_TOGETHER: usize = 2;
/// Most vectors of keys on their way.
const MOST_LOADS: usize = 16;

/// Launches for a call; `None` for one that is to be taken apart.
pub(super) fn compile(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let dims = AttentionDims::of_cached(&cx.call())?;
    if cx.kernel.outputs[0].dtype != DType::F32 || dims.head_dim > MOST_ELEMENTS {
        return Ok(None);
    }
    if dims.batch * dims.rows_q == 0 {
        return Ok(Some(Compiled::default()));
    }
    let overwritten = (0..cx.inputs.len()).any(|operand| cx.is_overwritten(operand));
    if dims.rows_q >= FEWEST_QUERIES && dims.head_dim <= MOST_WIDTH && !overwritten {
        return tiled(cx, dims).map(Some);
    }
    let launch = match by_vectors(cx, dims)? {
        Some(launch) => launch,
        None => by_elements(cx, dims)?,
    };
    Ok(Some(Compiled {
        launches: vec![launch],
        scratch: Vec::new(),
    }))
}

/// Code that says which query of which head a workgroup has, and the keys from `start` to before `end` that it sees.
fn place(module: &mut Module, dims: &AttentionDims) -> String {
    let &AttentionDims {
        rows_q,
        heads,
        head_dim,
        ..
    } = dims;
    let own = start(dims, Side::Queries, ["sequence", "row", "head"]);
    let [read, place] = position(module, dims, POSITIONS, "sequence");
    // Without a window the first key is the first row.
    let first = match window(dims) {
        Some(window) => format!("max(end, {window}u) - {window}u"),
        None => "0u".to_owned(),
    };
    format!(
        "let head = group_number % {heads}u;\nlet row = group_number / {heads}u % {rows_q}u;\n\
         let sequence = group_number / {}u;\nlet own = {own};\n\
         let shared_head = head / {}u * {head_dim}u;\n{read}\
         let end = {place} + row + 1u;\nlet start = {first};\n",
        heads * rows_q,
        dims.group(),
    )
}

/// Threads share keys, and read vectors of four elements; `None` where there are none. Scores of a tile come from partial
/// ones in shared memory; of the results, threads have a vector each of every so many keys.
fn by_vectors(cx: &CompileCx, dims: AttentionDims) -> Result<Option<Launch>, String> {
    let AttentionDims { head_dim, rows_k, .. } = dims;
    if !head_dim.is_multiple_of(4) || head_dim > MOST_WIDTH {
        return Ok(None);
    }
    let width = head_dim / 4;
    let across = width.next_power_of_two();
    let parts = MANY_THREADS / across;
    let mut module = Module::new(cx);
    let key_row = |key: &str| {
        let kv_width = dims.kv_heads * width;
        format!("(sequence * {rows_k}u + {key}) * {kv_width}u + shared_head / 4u")
    };
    let query = module.load_vector(0, "own / 4u + e");
    let key = module.load_vector(1, &format!("{} + known_element", key_row("known_key")));
    let value = module.load_vector(2, &format!("{} + piece", key_row("known_key")));
    let (Some(query), Some(key), Some(value)) = (query, key, value) else {
        return Ok(None);
    };
    module.items = format!(
        "var<workgroup> query: array<vec4<f32>, {width}>;\nvar<workgroup> partial: array<f32, {}>;\n\
         var<workgroup> folded: array<vec4<f32>, {MANY_THREADS}>;\nvar<workgroup> few: array<f32, {SOME}>;\n\
         const LEAST: f32 = -3.4028234e38;\n{}",
        SHARING * KEYS,
        module.items
    );
    let mut code = place(&mut module, &dims);
    let _ = write!(
        code,
        "for (var e = local; e < {width}u; e += {MANY_THREADS}u) {{\nquery[e] = {query} * {};\n}}\n\
         let slot = local % {SHARING}u;\nlet piece = min(local % {across}u, {}u);\nlet part = local / {across}u;\n\
         var greatest = LEAST;\nvar total = 0.0;\nvar sum = vec4<f32>();\nworkgroupBarrier();\n\
         for (var tile = start; tile < end; tile += {KEYS}u) {{\nlet count = min(end - tile, {KEYS}u);\n",
        scale(&dims),
        width - 1,
    );
    // The first values are on their way while their weights are computed.
    let values = |code: &mut String, from: &str| {
        for i in 0..TOGETHER {
            let _ = writeln!(code, "let j_{i} = {from} + {}u;", i * parts);
            let known = format!("let known_key = tile + min(j_{i}, count - 1u);");
            let _ = writeln!(code, "var value_{i}: vec4<f32>;\n{{\n{known}\nvalue_{i} = {value};\n}}");
        }
    };
    let add = |code: &mut String| {
        for i in 0..TOGETHER {
            let _ = writeln!(
                code,
                "if (j_{i} < count) {{\nsum = fma(vec4<f32>(partial[j_{i}]), value_{i}, sum);\n}}"
            );
        }
    };
    values(&mut code, "part");
    scores(&mut code, width, &key);
    let _ = write!(
        code,
        "workgroupBarrier();\nvar most = greatest;\n\
         for (var j = local; j < count; j += {MANY_THREADS}u) {{\nvar score = partial[j];\n\
         for (var i = 1u; i < {SHARING}u; i += 1u) {{\nscore += partial[i * {KEYS}u + j];\n}}\n\
         partial[j] = score;\nmost = max(most, score);\n}}\n",
    );
    bring_together(&mut code, "most", |a, b| format!("max({a}, {b})"));
    let _ = write!(
        code,
        "let kept = exp_f32(greatest - most);\ngreatest = most;\ntotal *= kept;\nsum *= kept;\n\
         for (var j = local; j < count; j += {MANY_THREADS}u) {{\nlet weight = exp_f32(partial[j] - most);\n\
         partial[j] = weight;\ntotal += weight;\n}}\nworkgroupBarrier();\n",
    );
    add(&mut code);
    let _ = writeln!(
        code,
        "for (var first = part + {0}u; first < count; first += {0}u) {{",
        TOGETHER * parts
    );
    values(&mut code, "first");
    add(&mut code);
    code.push_str("}\nworkgroupBarrier();\n}\n");
    bring_together(&mut code, "total", |a, b| format!("({a} + {b})"));
    let _ = write!(
        code,
        "workgroupBarrier();\nfolded[local] = sum;\nworkgroupBarrier();\nif (local < {width}u) {{\n\
         for (var i = 1u; i < {parts}u; i += 1u) {{\nsum += folded[i * {across}u + local];\n}}\nsum /= total;\n",
    );
    for c in 0..4 {
        let store = module.store(0, &format!("own + local * 4u + {c}u"), &format!("sum[{c}]"));
        code.push_str(&store);
    }
    code.push_str("}\n");
    let groups = dims.batch * dims.rows_q * dims.heads;
    module.finish(&code, MANY_THREADS, groups).map(Some)
}

/// Code for the parts of the scores of a tile that each of the threads which share a key computes, `partial`, by vectors
/// `key` of the row `known_key`.
fn scores(code: &mut String, width: usize, key: &str) {
    let each = MANY_THREADS / SHARING;
    let pieces = width.div_ceil(SHARING);
    let together = KEYS_TOGETHER.min(MOST_LOADS / pieces).max(1);
    let _ = writeln!(
        code,
        "for (var j = local / {SHARING}u; j < count; j += {}u) {{",
        together * each
    );
    for i in 0..together {
        let _ = writeln!(code, "let key_{i} = tile + min(j + {}u, count - 1u);", i * each);
        for piece in 0..pieces {
            let _ = writeln!(
                code,
                "var key_{i}_{piece}: vec4<f32>;\n{{\nlet known_key = key_{i};\n\
                 let known_element = min(slot + {}u, {}u);\nkey_{i}_{piece} = {key};\n}}",
                piece * SHARING,
                width - 1,
            );
        }
    }
    for i in 0..together {
        let _ = writeln!(code, "if (j + {}u < count) {{\nvar product = vec4<f32>();", i * each);
        for piece in 0..pieces {
            let element = format!("slot + {}u", piece * SHARING);
            let add = format!("product = fma(query[{element}], key_{i}_{piece}, product);");
            let _ = match width.is_multiple_of(SHARING) {
                true => writeln!(code, "{add}"),
                false => writeln!(code, "if ({element} < {width}u) {{\n{add}\n}}"),
            };
        }
        let _ = writeln!(
            code,
            "partial[slot * {KEYS}u + j + {}u] = (product.x + product.y) + (product.z + product.w);\n}}",
            i * each
        );
    }
    code.push_str("}\n");
}

/// Code that brings a variable of every thread together: all have the result then.
fn bring_together(code: &mut String, variable: &str, join: impl Fn(&str, &str) -> String) {
    let each = MANY_THREADS / SOME;
    let all = (0..each).map(|i| format!("folded[local * {each}u + {i}u].x"));
    let few = (0..SOME).map(|i| format!("few[{i}]"));
    let join = |parts: &mut dyn Iterator<Item = String>| parts.reduce(|a, b| join(&a, &b)).unwrap_or_default();
    let (all, few) = (join(&mut { all }), join(&mut { few }));
    let _ = write!(
        code,
        "folded[local].x = {variable};\nworkgroupBarrier();\nif (local < {SOME}u) {{\nfew[local] = {all};\n}}\n\
         workgroupBarrier();\n{variable} = {few};\n",
    );
}

/// A thread has one key of a tile, then some elements of the result: for heads without vectors.
fn by_elements(cx: &CompileCx, dims: AttentionDims) -> Result<Launch, String> {
    let AttentionDims {
        batch,
        rows_q,
        rows_k,
        heads,
        kv_heads,
        head_dim,
        ..
    } = dims;
    let mut module = Module::new(cx);
    module.items = format!(
        "var<workgroup> query: array<f32, {head_dim}>;\nvar<workgroup> scores: array<f32, {THREADS}>;\n\
         const LEAST: f32 = -3.4028234e38;\n"
    );
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
    let code = format!(
        "{}\
         for (var e = local; e < {head_dim}u; e += {THREADS}u) {{\nquery[e] = {q};\n}}\n\
         var sums: array<f32, {parts}>;\nvar greatest = LEAST;\nvar total = 0.0;\nworkgroupBarrier();\n\
         for (var tile = start; tile < end; tile += {THREADS}u) {{\n\
         let count = min(end - tile, {THREADS}u);\nlet key = tile + local;\nvar score = LEAST;\n\
         if (local < count) {{\nvar product = 0.0;\n\
         for (var e = 0u; e < {head_dim}u; e += 1u) {{\nproduct += query[e] * {k};\n}}\nscore = product * {scale};\n}}\n\
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
        place(&mut module, &dims),
        scale = scale(&dims)
    );
    module.finish(&code, THREADS, batch * rows_q * heads)
}
