//! Attention over a key-value cache. Its time is proportional to the number of valid rows, not to the capacity. A
//! call with many queries uses the causal kernels, with the mask shifted by the position of the sequence. With few
//! queries, each query of each head has a workgroup. It reads the visible keys in tiles and keeps the running maximum
//! and the running sum of exponentials (Milakov and Gimelshein, 2018). With a long cache, these would be too few
//! workgroups. Several workgroups then share the keys of a query, and a second launch combines their results
//! ("Flash-Decoding": Dao, Haziza, Massa and Sizov, 2023). With a long cache, a workgroup also computes several query heads
//! that share a key-value head, so that keys and values are read less often.

use meganeura_core::DType;
use meganeura_core::ops::{AttentionDims, PagedDims};

use super::super::files;
use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::super::schedule::Schedule;
use super::super::template::{KernelFile, Template};
use super::caches;
use super::coop::forward;
use super::heads::{MAX_WIDTH, POSITIONS, Target, scale, store_body, window, with_sinks};

/// Default number of threads that share a key. They read 64 adjacent bytes.
const KEY_THREADS: usize = 4;
/// Default number of keys of a tile. The partial scores then use half of the shared memory that every device has.
const KEYS: usize = 512;
/// Other candidates for the number of threads that share a key, and for the number of keys of a tile. The partial
/// scores must not need more memory than with the defaults.
const ALL_SHARING: [usize; 4] = [2, 4, 8, 16];
const ALL_KEYS: [usize; 4] = [128, 256, 512, 1024];
/// Minimum number of key elements per query for which several workgroups share the keys, and the desired number of
/// workgroups in this case.
const MANY_ELEMENTS: usize = 2048 * 64;
const WANTED_GROUPS: usize = 256;
/// Number of keys of a tile if workgroups share the keys. It is small, because a cache that is not full has few
/// tiles, and each tile belongs to one workgroup.
const SHARED_KEYS: usize = 128;
/// Minimum number of keys of a workgroup if several workgroups share the keys and all keys are valid.
const MIN_KEYS: usize = 128;
/// Possible numbers of query heads that a workgroup computes together, for long caches. More heads would need more than the
/// shared memory that every device has.
const TOGETHER: [usize; 2] = [4, 2];
/// Number of threads of a workgroup.
const THREADS: usize = 256;
/// Maximum number of elements of a head. The query of a larger head does not fit into shared memory.
pub(super) const MAX_ELEMENTS: usize = 2048;
/// Maximum number of vectors of a key that a thread prefetches.
const MAX_LOADS: usize = 16;

/// Distribution of the keys of a tile over threads, and of the tiles of a query over workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    kernel: SharingKernel,
    /// Number of workgroups that share the keys of a query.
    workgroups: usize,
}

/// The kernel of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingKernel {
    /// One query head in a workgroup: the number of keys of a tile, and of threads that share a key.
    Apart { keys: usize, threads: usize },
    /// The number of query heads in a workgroup, which share a key-value head.
    Grouped(usize),
}

impl Sharing {
    /// Returns the default distribution, or `None` for a call without vector loads.
    pub(super) fn usual(cx: &CompileCx, dims: &AttentionDims) -> Option<Self> {
        let has_vectors =
            dims.head_dim.is_multiple_of(4) && (0..POSITIONS).all(|operand| caches::has_vectors(cx, operand));
        if !has_vectors || dims.head_dim > MAX_WIDTH {
            return None;
        }
        let together = TOGETHER
            .into_iter()
            .find(|together| dims.group().is_multiple_of(*together));
        match together.filter(|_| is_long(dims)) {
            Some(together) => Some(Sharing::grouped(dims, together)),
            None => Some(Sharing::apart(dims)),
        }
    }

    /// Returns the distribution with one query head in a workgroup.
    fn apart(dims: &AttentionDims) -> Self {
        let workgroups = if is_long(dims) {
            wanted_groups(queries(dims)).min(most_seen(dims) / SHARED_KEYS).max(1)
        } else {
            1
        };
        Sharing {
            kernel: SharingKernel::Apart {
                keys: if workgroups > 1 { SHARED_KEYS } else { KEYS },
                threads: KEY_THREADS,
            },
            workgroups,
        }
    }

    /// Returns the distribution with several query heads in a workgroup.
    fn grouped(dims: &AttentionDims, together: usize) -> Self {
        let keys = THREADS / together;
        let workgroups = wanted_groups(queries(dims) / together).min(most_seen(dims) / keys);
        Sharing {
            kernel: SharingKernel::Grouped(together),
            workgroups: workgroups.max(1),
        }
    }

    /// Returns all distributions that are variants of the call.
    pub(super) fn all(cx: &CompileCx, dims: &AttentionDims) -> Vec<Self> {
        let Some(usual) = Sharing::usual(cx, dims) else {
            return Vec::new();
        };
        let (width, apart) = (dims.head_dim / 4, Sharing::apart(dims));
        let each = ALL_SHARING.into_iter().flat_map(|threads| {
            let few_loads = threads <= width && width.div_ceil(threads) <= MAX_LOADS;
            let fits = move |keys: &usize| few_loads && keys * threads <= KEYS * KEY_THREADS && *keys < 2 * dims.rows_k;
            ALL_KEYS.into_iter().filter(fits).map(move |keys| Sharing {
                kernel: SharingKernel::Apart { keys, threads },
                ..apart
            })
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
    /// Returns the number of query heads of a workgroup.
    fn heads(&self) -> usize {
        match self.kernel {
            SharingKernel::Apart { .. } => 1,
            SharingKernel::Grouped(heads) => heads,
        }
    }

    /// Creates the template of the kernel, with its sizes.
    fn template(&self, module: &mut Module, dims: &AttentionDims) -> Result<Template, String> {
        let file = match self.kernel {
            SharingKernel::Apart { .. } => files::ATTENTION_CACHED,
            SharingKernel::Grouped(_) => files::ATTENTION_CACHED_GROUPED,
        };
        let template = reading(file, module, dims)?.sizes([
            ("QUERIES", queries(dims)),
            ("WORKGROUPS", self.workgroups),
            ("VECTOR_THREADS", (dims.head_dim / 4).next_power_of_two()),
        ]);
        Ok(match self.kernel {
            SharingKernel::Apart { keys, threads } => template.sizes([("KEYS", keys), ("KEY_THREADS", threads)]),
            SharingKernel::Grouped(heads) => template.size("TOGETHER", heads),
        })
    }

    /// Returns the schedule of a kernel with this distribution.
    pub(super) fn schedule(&self) -> Schedule {
        let schedule = match self.kernel {
            SharingKernel::Apart { keys, threads } => Schedule::of("attention_cached")
                .with("keys", [keys])
                .with("sharing", [threads]),
            SharingKernel::Grouped(heads) => Schedule::of("attention_cached_grouped").with("heads", [heads]),
        };
        match self.workgroups {
            1 => schedule,
            workgroups => schedule.with("workgroups", [workgroups]),
        }
    }
}

/// Returns true if a query can see at least [`MANY_ELEMENTS`].
fn is_long(dims: &AttentionDims) -> bool {
    most_seen(dims) * dims.head_dim >= MANY_ELEMENTS
}

/// Returns the number of workgroups that should share the keys of one of this many units.
fn wanted_groups(units: usize) -> usize {
    WANTED_GROUPS.div_ceil(units.max(1))
}

/// Returns the total number of queries of all heads.
fn queries(dims: &AttentionDims) -> usize {
    dims.batch * dims.rows_q * dims.heads
}

/// Returns the maximum number of keys that are visible to a query.
fn most_seen(dims: &AttentionDims) -> usize {
    window(dims).map_or(dims.rows_k, |window| dims.rows_k.min(window))
}

/// Creates a template from a kernel file with the sizes of a call.
fn sized(file: KernelFile, dims: &AttentionDims) -> Template {
    Template::new(file).sizes([
        ("ROWS_Q", dims.rows_q),
        ("HEADS", dims.heads),
        ("HEAD_DIM", dims.head_dim),
    ])
}

/// Operator whose cache consists of blocks.
pub(super) const PAGED: &str = "core.paged_attention";
/// Operand of [`PAGED`] with the block table.
const BLOCK_TABLE: usize = 4;

/// Compiles the launches of a call whose cache is paged (consists of blocks). Every row is a query with its own row
/// of the block table. Returns `None` if the call should be decomposed.
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
        Some(sharing) => match tiling(cx, &dims) {
            Some(tiling) => by_tiles(cx, dims, sharing, &tiling)?,
            None => by_vectors(cx, dims, sharing, None)?,
        },
        None => by_elements(cx, dims)?.into(),
    };
    Ok(Some(compiled))
}

/// Minimum number of queries for tiles. Steps with fewer queries usually have one query per sequence.
const MIN_TILED: usize = 32;
/// Index of the scratch buffer that describes the tiles.
const TILES: usize = 2;
/// Size of the description of a tile in bytes.
const TILE_BYTES: usize = 16;

/// Returns the tiling of queries for cooperative matrices, or `None` if there are too few queries. All queries of a
/// prompt belong to one sequence, so a tile reads the keys of the sequence once.
fn tiling(cx: &CompileCx, dims: &AttentionDims) -> Option<forward::Tiling> {
    let together = AttentionDims {
        batch: 1,
        rows_q: dims.batch,
        ..*dims
    };
    let config = cx.coop.filter(|_| dims.batch >= MIN_TILED)?;
    forward::usual(&config, together)
}

/// Compiles the launches of a call in tiles. The first launch finds the tiles whose queries all belong to one
/// sequence. The next one or two launches compute the queries outside of such tiles one by one. The last launch
/// computes the tiles on cooperative matrices.
fn by_tiles(
    cx: &CompileCx,
    dims: AttentionDims,
    sharing: Sharing,
    tiling: &forward::Tiling,
) -> Result<Compiled, String> {
    let tiles = dims.batch.div_ceil(tiling.rows());
    let memory = cx.scratch(TILES);
    let mut module = Module::new(cx);
    module.uses_faults();
    module.bind("tiles", memory);
    let find = in_blocks(Template::new(files::PAGED_TILES), &mut module)?
        .sizes([("ROWS_Q", dims.batch), ("ROWS_K", dims.rows_k)])
        .size("ROWS", tiling.rows())
        .returns("load_position", "", &module.load(POSITIONS, "row"));
    let find = module.finish_template(find, tiles)?;
    let mut compiled = by_vectors(cx, dims, sharing, Some(tiling.rows()))?;
    compiled.launches.insert(0, find);
    compiled
        .launches
        .push(tiling.launch_paged(Module::new(cx), in_blocks, memory)?);
    compiled.scratch.resize(TILES, 0);
    compiled.scratch.push(TILE_BYTES * tiles);
    Ok(compiled)
}

/// Adds the sizes of a paged cache, and the function that reads the block table, to a template.
fn in_blocks(template: Template, module: &mut Module) -> Result<Template, String> {
    let paged = PagedDims::of(&module.cx().call())?;
    Ok(template
        .sizes([
            ("TABLE_LEN", paged.table_len),
            ("BLOCK_ROWS", paged.block_rows),
            ("BLOCKS", paged.blocks),
        ])
        .returns("load_block", "", &module.load(BLOCK_TABLE, "index")))
}

/// Creates a template of a kernel that reads the cache, with the sizes and functions that this requires.
fn reading(file: KernelFile, module: &mut Module, dims: &AttentionDims) -> Result<Template, String> {
    module.uses_faults();
    let mut template = sized(file, dims);
    if module.cx().kernel.name == PAGED {
        template = in_blocks(template, module)?.flag("PAGED", true);
    }
    Ok(template
        .sizes([("ROWS_K", dims.rows_k), ("KV_HEADS", dims.kv_heads)])
        .size("WINDOW", window(dims).unwrap_or(0))
        .returns("scale", "", &scale(dims))
        .returns("load_position", "", &module.load(POSITIONS, "sequence")))
}

/// Compiles the launches of the kernel whose threads share keys and read vectors of four elements. If several
/// workgroups share the keys of a query, they write their results to scratch for a second launch: sums of values, and
/// [two numbers](FOUND_NUMBERS). With `tile_rows`, the kernel skips each tile of this number of queries whose queries
/// all belong to one sequence.
pub(super) fn by_vectors(
    cx: &CompileCx,
    dims: AttentionDims,
    sharing: Sharing,
    tile_rows: Option<usize>,
) -> Result<Compiled, String> {
    let (workgroups, heads) = (sharing.workgroups, sharing.heads());
    let mut module = Module::new(cx);
    let mut template = sharing.template(&mut module, &dims)?;
    if let Some(rows) = tile_rows {
        module.bind("tiles", cx.scratch(TILES));
        template = template.flag("TILED", true).size("TILE_ROWS", rows);
    }
    for (operand, name) in ["load_q", "load_k", "load_v"].into_iter().enumerate() {
        let value = caches::load_vector(&mut module, operand, "index");
        template = template.returns(name, "", &value.ok_or("an operand has no vectors")?);
    }
    let groups = queries(&dims) / heads * workgroups;
    if workgroups == 1 {
        template = with_sinks(template, &mut module);
        let stored = store_body(&mut module, &dims, Target::Output(0));
        return Ok(module.finish_template(template.body("store", stored), groups)?.into());
    }
    bind_found(&mut module);
    let found = queries(&dims) * workgroups;
    Ok(Compiled {
        launches: vec![module.finish_template(template, groups)?, join(cx, &dims, workgroups)?],
        scratch: vec![4 * dims.head_dim * found, 4 * FOUND_NUMBERS * found],
        ..Compiled::default()
    })
}

/// Number of values that a workgroup stores in addition to the sum of values: the maximum score and the sum of
/// exponentials.
const FOUND_NUMBERS: usize = 2;

/// Binds the buffers for the partial results of workgroups that share the keys of a query.
fn bind_found(module: &mut Module) {
    module.bind("found_sums", module.cx().scratch(0));
    module.bind("found_numbers", module.cx().scratch(1));
}

/// Compiles the launch that combines the partial results of workgroups that share the keys of a query.
fn join(cx: &CompileCx, dims: &AttentionDims, workgroups: usize) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    bind_found(&mut module);
    let template = sized(files::ATTENTION_CACHED_JOIN, dims)
        .sizes([("QUERIES", queries(dims)), ("WORKGROUPS", workgroups)])
        .body("store", store_body(&mut module, dims, Target::Output(0)));
    let template = with_sinks(template, &mut module);
    module.finish_template_elements(template, queries(dims) * dims.head_dim / 4)
}

/// Compiles the kernel for heads without vector loads. A thread computes the scores of single keys of a tile, then
/// some elements of the result.
pub(super) fn by_elements(cx: &CompileCx, dims: AttentionDims) -> Result<Launch, String> {
    let mut module = Module::new(cx);
    let template = reading(files::ATTENTION_CACHED_ELEMENTS, &mut module, &dims)?
        .returns("load_q", "", &module.load(0, "index"))
        .returns("load_k", "", &caches::load(&mut module, 1, "index"))
        .returns("load_v", "", &caches::load(&mut module, 2, "index"))
        .body("store", module.store(0, "index", "value"));
    let template = with_sinks(template, &mut module);
    module.finish_template(template, queries(&dims))
}
