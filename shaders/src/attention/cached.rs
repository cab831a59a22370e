//! Attention over a cache: its time goes with the valid rows, not with the capacity. Many queries are those of a causal call
//! whose mask begins where a sequence is. Of few, each has a workgroup for every head, which goes over the keys that
//! the query sees in tiles, with the greatest score and the sum of exponentials so far (Milakov and Gimelshein, 2018). A long
//! cache would keep few workgroups busy for long: several share the keys of a query then, and a second launch brings together
//! what they found ("Flash-Decoding": Dao, Haziza, Massa and Sizov, 2023).

use meganeura_core::DType;
use meganeura_core::ops::{AttentionDims, PagedDims};

use super::super::files;
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::schedule::Schedule;
use super::super::template::{KernelFile, Template};
use super::heads::{MAX_WIDTH, POSITIONS, Target, scale, store_body, window};

/// Threads that share a key: they read 64 bytes side by side.
const SHARING: usize = 4;
/// Keys of a tile then. Their partial scores are half of the shared memory that every device has.
const KEYS: usize = 512;
/// Other numbers of both that are tried, as far as partial scores take no more memory.
const ALL_SHARING: [usize; 4] = [2, 4, 8, 16];
const ALL_KEYS: [usize; 4] = [128, 256, 512, 1024];
/// Elements of the keys that a query may see from which on several workgroups share them, and how many workgroups are wanted then.
const MANY_ELEMENTS: usize = 2048 * 64;
const WANTED_GROUPS: usize = 256;
/// Keys of a tile then: a cache that is not full has few tiles, and each is for one workgroup.
const SHARED_KEYS: usize = 128;
/// Fewest keys of a workgroup, if all are valid, where several share them.
const MIN_KEYS: usize = 128;
/// Most elements of a head whose query is in shared memory.
pub(super) const MAX_ELEMENTS: usize = 2048;
/// Most vectors of a key that a thread prefetches.
const MAX_LOADS: usize = 16;

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
        let seen = most_seen(dims);
        let workgroups = match seen * dims.head_dim < MANY_ELEMENTS {
            true => 1,
            false => WANTED_GROUPS
                .div_ceil(queries(dims).max(1))
                .min(seen / SHARED_KEYS)
                .max(1),
        };
        (has_vectors && dims.head_dim <= MAX_WIDTH).then_some(Sharing {
            keys: if workgroups > 1 { SHARED_KEYS } else { KEYS },
            threads: SHARING,
            workgroups,
        })
    }

    /// All that there are.
    pub(super) fn all(cx: &CompileCx, dims: &AttentionDims) -> Vec<Self> {
        let Some(usual) = Sharing::usual(cx, dims) else {
            return Vec::new();
        };
        let width = dims.head_dim / 4;
        let each = ALL_SHARING.into_iter().flat_map(|threads| {
            let few_loads = threads <= width && width.div_ceil(threads) <= MAX_LOADS;
            let sized = ALL_KEYS.into_iter().map(move |keys| Sharing { keys, threads, ..usual });
            sized.filter(move |s| few_loads && s.keys * s.threads <= KEYS * SHARING && s.keys < 2 * dims.rows_k)
        });
        let most = (most_seen(dims) / MIN_KEYS).max(1);
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

/// A kernel file with the sizes of a call.
fn sized(file: KernelFile, dims: &AttentionDims) -> Template {
    Template::new(file).sizes([
        ("ROWS_Q", dims.rows_q),
        ("HEADS", dims.heads),
        ("HEAD_DIM", dims.head_dim),
    ])
}

/// The operator whose cache is in blocks.
pub(super) const PAGED: &str = "core.paged_attention";
/// Its operand that says which.
const BLOCK_TABLE: usize = 4;

/// Launches for a call whose cache is in blocks: every row is a sequence of one query. `None` for one that is to be decomposed.
pub(super) fn paged(cx: &CompileCx) -> Result<Option<Compiled>, String> {
    let PagedDims { dims, .. } = PagedDims::of(&cx.call())?;
    if cx.kernel.outputs[0].dtype != DType::F32 || dims.head_dim > MAX_ELEMENTS {
        return Ok(None);
    }
    if dims.rows_q == 0 {
        return Ok(Some(Compiled::default()));
    }
    let dims = AttentionDims {
        batch: dims.rows_q,
        rows_q: 1,
        ..dims
    };
    let compiled = match Sharing::usual(cx, &dims) {
        Some(sharing) => by_vectors(cx, dims, sharing)?,
        None => by_elements(cx, dims)?.into(),
    };
    Ok(Some(compiled))
}

/// One that reads the cache, with the sizes and functions for this.
fn reading(file: KernelFile, module: &mut Module, dims: &AttentionDims) -> Result<Template, String> {
    module.uses_faults();
    let mut template = sized(file, dims);
    if module.cx().kernel.name == PAGED {
        let paged = PagedDims::of(&module.cx().call())?;
        template = template
            .flag("PAGED", true)
            .sizes([
                ("TABLE_LEN", paged.table_len),
                ("BLOCK_ROWS", paged.block_rows),
                ("BLOCKS", paged.blocks),
            ])
            .returns("load_block", "", &module.load(BLOCK_TABLE, "index"));
    }
    Ok(template
        .sizes([("ROWS_K", dims.rows_k), ("KV_HEADS", dims.kv_heads)])
        .size("WINDOW", window(dims).unwrap_or(0))
        .returns("scale", "", &scale(dims))
        .returns("load_position", "", &module.load(POSITIONS, "sequence")))
}

/// Threads share keys, and read vectors of four elements. Several workgroups that share the keys of a query leave what they
/// find in scratch for a second launch: sums of values, and [two numbers](FOUND_NUMBERS).
pub(super) fn by_vectors(cx: &CompileCx, dims: AttentionDims, sharing: Sharing) -> Result<Compiled, String> {
    let Sharing {
        keys,
        threads,
        workgroups,
    } = sharing;
    let mut module = Module::new(cx);
    let mut template = reading(files::ATTENTION_CACHED, &mut module, &dims)?.sizes([
        ("QUERIES", queries(&dims)),
        ("KEYS", keys),
        ("SHARING", threads),
        ("WORKGROUPS", workgroups),
        ("ACROSS", (dims.head_dim / 4).next_power_of_two()),
    ]);
    for (operand, name) in ["load_q", "load_k", "load_v"].into_iter().enumerate() {
        let value = module.load_vector(operand, "index");
        template = template.returns(name, "", &value.ok_or("an operand has no vectors")?);
    }
    let groups = queries(&dims) * workgroups;
    if workgroups == 1 {
        let stored = store_body(&mut module, &dims, Target::Output(0));
        return Ok(module.finish_template(template.body("store", stored), groups)?.into());
    }
    bind_found(&mut module);
    Ok(Compiled {
        launches: vec![module.finish_template(template, groups)?, join(cx, &dims, workgroups)?],
        scratch: vec![4 * dims.head_dim * groups, 4 * FOUND_NUMBERS * groups],
        ..Compiled::default()
    })
}

/// Numbers that a workgroup finds beside the sum of values: the greatest score, and the sum of exponentials.
const FOUND_NUMBERS: usize = 2;

/// Binds what workgroups find that share the keys of a query.
fn bind_found(module: &mut Module) {
    module.bind("found_sums", module.cx().scratch(0));
    module.bind("found_numbers", module.cx().scratch(1));
}

/// Brings together what workgroups found that share the keys of a query.
fn join(cx: &CompileCx, dims: &AttentionDims, workgroups: usize) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    bind_found(&mut module);
    let template = sized(files::ATTENTION_CACHED_JOIN, dims)
        .sizes([("QUERIES", queries(dims)), ("WORKGROUPS", workgroups)])
        .body("store", store_body(&mut module, dims, Target::Output(0)));
    module.finish_template_elements(template, queries(dims) * dims.head_dim / 4)
}

/// A thread has one key of a tile, then some elements of the result: for heads without vectors.
pub(super) fn by_elements(cx: &CompileCx, dims: AttentionDims) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = reading(files::ATTENTION_CACHED_ELEMENTS, &mut module, &dims)?
        .returns("load_q", "", &module.load(0, "index"))
        .returns("load_k", "", &module.load(1, "index"))
        .returns("load_v", "", &module.load(2, "index"))
        .body("store", module.store(0, "index", "value"));
    module.finish_template(template, queries(&dims))
}
