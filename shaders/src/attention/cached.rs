//! Attention over a cache: its time goes with the valid rows, not with the capacity. Many queries are those of a causal call
//! whose mask begins where a sequence is. Of few, each has a workgroup for every head, which goes over the keys that
//! the query sees in tiles, with the greatest score and the sum of exponentials so far (Milakov and Gimelshein, 2018). A long
//! cache would keep few workgroups busy for long: several share the keys of a query then, and a second launch brings together
//! what they found ("Flash-Decoding": Dao, Haziza, Massa and Sizov, 2023).

use std::fmt::Write as _;

use meganeura_core::DType;
use meganeura_core::ops::AttentionDims;

use super::super::fold::{pairwise, sum};
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::schedule::Schedule;
use super::{MOST_WIDTH, POSITIONS, Side, Target, position, scale, start, store, window};

/// Threads of a workgroup, and keys of a tile, where a thread has a key.
const THREADS: usize = 64;
/// Threads of a workgroup where several share a key.
const MANY_THREADS: usize = 256;
/// Threads that share a key: they read 64 bytes side by side.
const SHARING: usize = 4;
/// Keys of a tile then. Their partial scores are half of the shared memory that every device has.
const KEYS: usize = 512;
/// Other numbers of both that are tried, as far as partial scores take no more memory.
const ALL_SHARING: [usize; 4] = [2, 4, 8, 16];
const ALL_KEYS: [usize; 4] = [128, 256, 512, 1024];
/// Keys that a query may see from which on several workgroups share them, and how many workgroups are wanted then.
const MANY_KEYS: usize = 2048;
const WANTED_GROUPS: usize = 200;
/// Fewest keys of a workgroup, if all are valid, where several share them.
const FEWEST_KEYS: usize = 128;
/// Most elements of a head whose query is in shared memory.
pub(super) const MOST_ELEMENTS: usize = 2048;
/// Threads that bring together what all have.
const SOME: usize = 16;
/// Loads of values on their way at a time.
const TOGETHER: usize = 8;
/// Keys of a thread whose vectors are on their way at a time.
const KEYS_TOGETHER: usize = 2;
/// Most vectors of keys on their way.
const MOST_LOADS: usize = 16;

/// How threads share the keys of a tile, and workgroups the tiles of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    /// Keys of a tile.
    keys: usize,
    /// Threads that share a key.
    threads: usize,
    /// Workgroups that share the keys of a query.
    workgroups: usize,
}

impl Sharing {
    /// What is commonly the best; `None` for a call that has no vectors.
    pub(super) fn usual(cx: &CompileCx, dims: &AttentionDims) -> Option<Self> {
        let has_vectors = dims.head_dim.is_multiple_of(4) && (0..POSITIONS).all(|operand| cx.has_vectors(operand));
        (has_vectors && dims.head_dim <= MOST_WIDTH).then_some(Sharing {
            keys: KEYS,
            threads: SHARING,
            workgroups: match most_seen(dims) {
                seen if seen < MANY_KEYS => 1,
                seen => WANTED_GROUPS.div_ceil(queries(dims).max(1)).min(seen / KEYS),
            },
        })
    }

    /// All that there are.
    pub(super) fn all(cx: &CompileCx, dims: &AttentionDims) -> Vec<Self> {
        let Some(usual) = Sharing::usual(cx, dims) else {
            return Vec::new();
        };
        let width = dims.head_dim / 4;
        let each = ALL_SHARING.into_iter().flat_map(|threads| {
            let few_loads = threads <= width && width.div_ceil(threads) <= MOST_LOADS;
            let sized = ALL_KEYS.into_iter().map(move |keys| Sharing { keys, threads, ..usual });
            sized.filter(move |s| few_loads && s.keys * s.threads <= KEYS * SHARING && s.keys < 2 * dims.rows_k)
        });
        let most = (most_seen(dims) / FEWEST_KEYS).max(1);
        let shared = [1, usual.workgroups / 2, usual.workgroups * 2];
        let shared = shared.map(|workgroups| Sharing {
            workgroups: workgroups.clamp(1, most),
            ..usual
        });
        each.chain(shared).collect()
    }
}

impl Sharing {
    /// The schedule of a kernel that shares keys so.
    pub(super) fn schedule(&self) -> Schedule {
        let schedule = Schedule::of("attention_cached")
            .with("keys", [self.keys])
            .with("sharing", [self.threads]);
        match self.workgroups {
            1 => schedule,
            workgroups => schedule.with("workgroups", [workgroups]),
        }
    }
}

/// Queries of all heads.
fn queries(dims: &AttentionDims) -> usize {
    dims.batch * dims.rows_q * dims.heads
}

/// Keys that a query sees at most.
fn most_seen(dims: &AttentionDims) -> usize {
    window(dims).map_or(dims.rows_k, |window| dims.rows_k.min(window))
}

/// Code that says which query of which head the number `own_query` is: `sequence`, `row`, `head`, and `own`, its first element.
fn place_of_query(dims: &AttentionDims) -> String {
    let &AttentionDims { rows_q, heads, .. } = dims;
    let own = start(dims, Side::Queries, ["sequence", "row", "head"]);
    format!(
        "let head = own_query % {heads}u;\nlet row = own_query / {heads}u % {rows_q}u;\n\
         let sequence = own_query / {}u;\nlet own = {own};\n",
        heads * rows_q
    )
}

/// Code that says which query of which head a workgroup has, and the keys from `start` to before `end` that it goes over; there
/// may be none where workgroups share those that the query sees.
fn place(module: &mut Module, dims: &AttentionDims, sharing: Option<&Sharing>) -> String {
    let [read, place] = position(module, dims, POSITIONS, "sequence");
    // Without a window the first key is the first row.
    let first = match window(dims) {
        Some(window) => format!("max(seen_to, {window}u) - {window}u"),
        None => "0u".to_owned(),
    };
    let (number, range) = match sharing {
        Some(&Sharing { keys, workgroups, .. }) if workgroups > 1 => {
            let range = format!(
                "let share = ((seen_to - seen_from + {}u) / {workgroups}u + {}u) / {keys}u * {keys}u;\n\
                 let start = seen_from + group_number / {}u * share;\nlet end = min(start + share, seen_to);\n",
                workgroups - 1,
                keys - 1,
                queries(dims)
            );
            (format!("group_number % {}u", queries(dims)), range)
        }
        _ => (
            "group_number".to_owned(),
            "let start = seen_from;\nlet end = seen_to;\n".to_owned(),
        ),
    };
    format!(
        "let own_query = {number};\n{}let shared_head = head / {}u * {}u;\n{read}\
         let seen_to = {place} + row + 1u;\nlet seen_from = {first};\n{range}",
        place_of_query(dims),
        dims.group(),
        dims.head_dim
    )
}

/// Threads share keys, and read vectors of four elements. Scores of a tile come from partial ones in shared memory; of the
/// results, threads have a vector each of every so many keys.
pub(super) fn by_vectors(cx: &CompileCx, dims: AttentionDims, sharing: Sharing) -> Result<Compiled, String> {
    let AttentionDims { head_dim, rows_k, .. } = dims;
    let Sharing {
        keys,
        threads,
        workgroups,
    } = sharing;
    let width = head_dim / 4;
    let across = width.next_power_of_two();
    let parts = MANY_THREADS / across;
    let mut module = Module::new(cx);
    let key_row = |key: &str| {
        let kv_width = dims.kv_heads * width;
        format!("(sequence * {rows_k}u + {key}) * {kv_width}u + shared_head / 4u")
    };
    let query = module.load_vector(0, "own / 4u + known_element");
    let key = module.load_vector(1, &format!("{} + known_element", key_row("known_key")));
    let value = module.load_vector(2, &format!("{} + piece", key_row("known_key")));
    let (Some(query), Some(key), Some(value)) = (query, key, value) else {
        return Err("an operand has no vectors".into());
    };
    module.items = format!(
        "var<workgroup> partial: array<f32, {}>;\n\
         var<workgroup> folded: array<vec4<f32>, {MANY_THREADS}>;\nvar<workgroup> few: array<f32, {SOME}>;\n\
         const LEAST: f32 = -3.4028234e38;\n{}",
        threads * keys,
        module.items
    );
    let mut code = place(&mut module, &dims, Some(&sharing));
    let found = (workgroups > 1).then(|| Found::of(&mut module));
    if let Some(found) = &found {
        let nothing = found.store(width, ["vec4<f32>()", "LEAST", "0.0"]);
        let _ = writeln!(code, "if (start >= end) {{\n{nothing}return;\n}}");
    }
    let _ = write!(
        code,
        "let slot = local % {threads}u;\nlet piece = min(local % {across}u, {}u);\nlet part = local / {across}u;\n\
         let scale = {};\nvar greatest = LEAST;\nvar total = 0.0;\nvar sum = vec4<f32>();\nvar tile = start;\nloop {{\n",
        width - 1,
        scale(&dims),
    );
    // What a tile begins with is on its way before it is known how many keys there are: those behind them are read, but
    // not used.
    let values = Values {
        parts,
        keys,
        value: &value,
        rows_k,
    };
    let scores = Scores {
        sharing,
        width,
        query: &query,
        key: &key,
        rows_k,
    };
    values.fetch(&mut code, "part");
    scores.fetch(&mut code, &format!("local / {threads}u"));
    let _ = writeln!(code, "let count = min(end - tile, {keys}u);");
    scores.compute(&mut code, &format!("local / {threads}u"));
    scores.rest(&mut code);
    let _ = write!(
        code,
        "workgroupBarrier();\nvar most = greatest;\n\
         for (var j = local; j < count; j += {MANY_THREADS}u) {{\nvar score = partial[j];\n\
         for (var i = 1u; i < {threads}u; i += 1u) {{\nscore += partial[i * {keys}u + j];\n}}\n\
         partial[j] = score;\nmost = max(most, score);\n}}\n",
    );
    bring_together(&mut code, "most", |a, b| format!("max({a}, {b})"));
    let _ = write!(
        code,
        "let kept = exp_f32(greatest - most);\ngreatest = most;\ntotal *= kept;\nsum *= kept;\n\
         for (var j = local; j < count; j += {MANY_THREADS}u) {{\nlet weight = exp_f32(partial[j] - most);\n\
         partial[j] = weight;\ntotal += weight;\n}}\nworkgroupBarrier();\n",
    );
    values.add(&mut code, "part");
    let _ = writeln!(
        code,
        "for (var first = part + {0}u; first < count; first += {0}u) {{",
        TOGETHER * parts
    );
    values.fetch(&mut code, "first");
    values.add(&mut code, "first");
    let _ = write!(
        code,
        "}}\ntile += {keys}u;\nif (tile >= end) {{\nbreak;\n}}\nworkgroupBarrier();\n}}\n"
    );
    bring_together(&mut code, "total", sum);
    let others = (1..parts).map(|i| format!("folded[local + {}u]", i * across));
    let all = pairwise(std::iter::once("sum".to_owned()).chain(others), sum);
    code.push_str("workgroupBarrier();\nfolded[local] = sum;\nworkgroupBarrier();\n");
    match &found {
        None => {
            let stored = store(&mut module, &dims, Target::Output(0), ["own", "local", "sum"]);
            let _ = writeln!(code, "if (local < {width}u) {{\nsum = {all} / total;\n{stored}}}");
        }
        Some(found) => code.push_str(&found.store(width, [&all, "greatest", "total"])),
    }
    let groups = queries(&dims) * workgroups;
    let mut compiled = Compiled {
        launches: vec![module.finish(&code, MANY_THREADS, groups)?],
        ..Compiled::default()
    };
    if found.is_some() {
        compiled.launches.push(join(cx, &dims, workgroups)?);
        compiled.scratch = vec![4 * head_dim * groups, 4 * FOUND_NUMBERS * groups];
    }
    Ok(compiled)
}

/// Numbers that a workgroup finds beside the sum of values: the greatest score, and the sum of exponentials.
const FOUND_NUMBERS: usize = 2;

/// Where workgroups that share the keys of a query put what they find: scratch buffers of sums of values, and of the other numbers.
struct Found {
    sums: String,
    numbers: String,
}

impl Found {
    fn of(module: &mut Module) -> Self {
        let [sums, numbers] = [0, 1].map(|number| module.cx().scratch(number));
        Found {
            sums: module.scratch_vectors(sums),
            numbers: module.array(numbers, DType::F32, true),
        }
    }

    /// Statements that store what a workgroup found.
    fn store(&self, width: usize, [sum, greatest, total]: [&str; 3]) -> String {
        let Found { sums, numbers } = self;
        format!(
            "if (local < {width}u) {{\n{sums}[group_number * {width}u + local] = {sum};\n}}\n\
             if (local == 0u) {{\n{numbers}[group_number * {FOUND_NUMBERS}u] = {greatest};\n\
             {numbers}[group_number * {FOUND_NUMBERS}u + 1u] = {total};\n}}\n"
        )
    }
}

/// Brings together what workgroups found that share the keys of a query.
fn join(cx: &CompileCx, dims: &AttentionDims, workgroups: usize) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let (width, queries) = (dims.head_dim / 4, queries(dims));
    let Found { sums, numbers } = Found::of(&mut module);
    let stored = store(&mut module, dims, Target::Output(0), ["own", "vector", "sum / total"]);
    let each = format!("for (var w = 0u; w < {workgroups}u; w += 1u) {{\nlet found = w * {queries}u + own_query;\n");
    let code = format!(
        "let own_query = i / {width}u;\nlet vector = i % {width}u;\n{}\
         var most = {numbers}[own_query * {FOUND_NUMBERS}u];\n\
         {each}most = max(most, {numbers}[found * {FOUND_NUMBERS}u]);\n}}\n\
         var total = 0.0;\nvar sum = vec4<f32>();\n\
         {each}let weight = exp_f32({numbers}[found * {FOUND_NUMBERS}u] - most);\n\
         total += weight * {numbers}[found * {FOUND_NUMBERS}u + 1u];\n\
         sum += weight * {sums}[found * {width}u + vector];\n}}\n{stored}",
        place_of_query(dims)
    );
    module.finish_elements(&code, queries * width)
}

/// Code for the values of a tile: of each piece of a head, every thread that has it reads some.
struct Values<'a> {
    /// Threads that have the same piece.
    parts: usize,
    /// Keys of a tile.
    keys: usize,
    /// The piece `piece` of the row `known_key`.
    value: &'a str,
    rows_k: usize,
}

impl Values<'_> {
    /// Reads `value_<i>` from a key of the tile on.
    fn fetch(&self, code: &mut String, from: &str) {
        for i in 0..TOGETHER {
            let known = known_key(&format!("{from} + {}u", i * self.parts), self.rows_k);
            let _ = writeln!(
                code,
                "var value_{i}: vec4<f32>;\n{{\n{known}value_{i} = {};\n}}",
                self.value
            );
        }
    }

    /// Adds them up with their weights.
    fn add(&self, code: &mut String, from: &str) {
        for i in 0..TOGETHER {
            let _ = write!(
                code,
                "{{\nlet j = {from} + {}u;\nlet weight = vec4<f32>(partial[min(j, {}u)]);\n\
                 sum = select(sum, fma(weight, value_{i}, sum), j < count);\n}}\n",
                i * self.parts,
                self.keys - 1
            );
        }
    }
}

/// Code for the scores of a tile: every thread computes a part of some keys', `partial`, which the threads that share these
/// add up.
struct Scores<'a> {
    sharing: Sharing,
    /// Vectors of a head.
    width: usize,
    /// The vector `known_element` of the query.
    query: &'a str,
    /// The same of the key in the row `known_key`.
    key: &'a str,
    rows_k: usize,
}

impl Scores<'_> {
    /// Vectors of a key that a thread reads.
    fn pieces(&self) -> usize {
        self.width.div_ceil(self.sharing.threads)
    }

    /// Keys of a thread whose vectors are on their way at a time.
    fn together(&self) -> usize {
        KEYS_TOGETHER.min(MOST_LOADS / self.pieces()).max(1)
    }

    fn piece(&self, piece: usize) -> String {
        format!(
            "let known_element = min(slot + {}u, {}u);\n",
            piece * self.sharing.threads,
            self.width - 1
        )
    }

    /// Reads `key_<i>_<piece>` from a key of the tile on.
    fn fetch(&self, code: &mut String, from: &str) {
        for i in 0..self.together() {
            let known = known_key(
                &format!("{from} + {}u", i * MANY_THREADS / self.sharing.threads),
                self.rows_k,
            );
            for piece in 0..self.pieces() {
                let _ = write!(
                    code,
                    "var key_{i}_{piece}: vec4<f32>;\n{{\n{known}{}key_{i}_{piece} = {};\n}}\n",
                    self.piece(piece),
                    self.key
                );
            }
        }
    }

    /// Multiplies them with the query.
    fn compute(&self, code: &mut String, from: &str) {
        let together = self.together();
        for i in 0..together {
            let _ = writeln!(code, "var product_{i} = vec4<f32>();");
        }
        for piece in 0..self.pieces() {
            let _ = writeln!(code, "{{\n{}let query = {};", self.piece(piece), self.query);
            for i in 0..together {
                let next = format!("fma(query, key_{i}_{piece}, product_{i})");
                let _ = match self.width.is_multiple_of(self.sharing.threads) {
                    true => writeln!(code, "product_{i} = {next};"),
                    false => writeln!(
                        code,
                        "product_{i} = select(product_{i}, {next}, slot + {}u < {}u);",
                        piece * self.sharing.threads,
                        self.width
                    ),
                };
            }
            code.push_str("}\n");
        }
        for i in 0..together {
            let _ = write!(
                code,
                "{{\nlet j = {from} + {}u;\nif (j < count) {{\nlet halves = product_{i}.xy + product_{i}.zw;\n\
                 partial[slot * {}u + j] = (halves.x + halves.y) * scale;\n}}\n}}\n",
                i * MANY_THREADS / self.sharing.threads,
                self.sharing.keys
            );
        }
    }

    /// Those of the keys behind the first ones.
    fn rest(&self, code: &mut String) {
        let step = self.together() * MANY_THREADS / self.sharing.threads;
        let _ = writeln!(
            code,
            "for (var j = local / {}u + {step}u; j < count; j += {step}u) {{",
            self.sharing.threads
        );
        self.fetch(code, "j");
        let mut inner = String::new();
        self.compute(&mut inner, "first_j");
        let _ = write!(code, "let first_j = j;\n{inner}}}\n");
    }
}

/// Code that finds the row of a tile's key, or the last row of the cache.
fn known_key(key: &str, rows_k: usize) -> String {
    format!("let known_key = min(tile + {key}, {}u);\n", rows_k - 1)
}

/// Code that brings a variable of every thread together: all have the result then.
fn bring_together(code: &mut String, variable: &str, join: impl Fn(&str, &str) -> String) {
    let each = MANY_THREADS / SOME;
    let all = (0..each).map(|i| format!("folded[local * {each}u + {i}u].x"));
    let few = (0..SOME).map(|i| format!("few[{i}]"));
    let (all, few) = (pairwise(all, &join), pairwise(few, &join));
    let _ = write!(
        code,
        "folded[local].x = {variable};\nworkgroupBarrier();\nif (local < {SOME}u) {{\nfew[local] = {all};\n}}\n\
         workgroupBarrier();\n{variable} = {few};\n",
    );
}

/// A thread has one key of a tile, then some elements of the result: for heads without vectors.
pub(super) fn by_elements(cx: &CompileCx, dims: AttentionDims) -> Result<Launch, String> {
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
        place(&mut module, &dims, None),
        scale = scale(&dims)
    );
    module.finish(&code, THREADS, batch * rows_q * heads)
}
