//! Contractions of few rows with a matrix, as in the decode phase of a language model. Every element of the matrix is
//! read once, and the memory bandwidth limits the speed.
//!
//! Several threads of a workgroup, the *lanes* of a column, share the sum of the column. Adjacent threads read
//! adjacent memory. If there are too few columns to occupy a device, sums are split into parts.

mod staged;
mod wide;

use super::body::{Body, Id};
use super::contraction::{Contraction, Sizes, contraction_of};
use super::emit::Emitter;
use super::epilogue::{self, Epilogue, Results, SumConsumer};
use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::pointwise::is_half;
use super::roles::Role;
use super::rows::Rows;
use super::schedule::Schedule;
use super::template::Template;
use super::variants::scheduled;
use staged::StagedRowMatmul;
use wide::WideRowMatmul;

/// Maximum number of rows of such a contraction.
const MAX_ROWS: usize = 16;
/// Maximum number of rows if operands are not row-major, and if cooperative matrices are available.
pub(super) const FEW_ROWS: usize = 4;
/// Number of threads of a workgroup.
const THREADS: usize = 256;
/// Number of terms of a vector.
const WIDTH: usize = 4;
/// Maximum number of lanes. If neighbours in memory are columns, the remaining eight columns of a workgroup fill a
/// memory sector.
const MAX_LANES: usize = 32;
/// Minimum number of lanes.
const MIN_LANES: usize = 8;
/// Maximum number of terms, over all rows, that a thread loads before it adds them up.
const MAX_UNROLL: usize = 16;
/// Minimum number of terms of a row that a thread loads before it adds them up.
const MIN_UNROLL: usize = 4;
/// Maximum number of rows of a contraction whose epilogue reads other sums of the workgroup. For more rows,
/// cooperative matrices are faster even with a separate launch for the epilogue.
const MAX_SHARED_ROWS: usize = FEW_ROWS;
/// Maximum number of row elements that are computed once for all columns of a workgroup.
const MAX_STAGED: usize = 3072;
/// Minimum number of terms per lane of a part. With fewer terms, the launch that combines the parts takes longer than
/// the split saves.
const MIN_PART: usize = 32;
/// Minimum number of workgroups that occupies a device.
const GROUPS_THRESHOLD: usize = 256;
/// Number of workgroups from which on a second launch that combines parts takes longer than the split saves.
const GROUPS_WITHOUT_PARTS: usize = 48;

/// Checks that a kernel can compute a contraction of one row that depends on reductions of this row, for example a
/// norm. Every workgroup computes the reductions redundantly, which takes less time than a separate launch.
///
/// # Errors
/// The contraction does not meet these conditions.
pub(super) fn check(body: &Body, id: Id, contraction: &dyn Contraction) -> Result<(), String> {
    let (sizes, total) = (contraction.sizes(), body.ty(id).numel());
    let reductions = body.calls(Role::Reduction);
    let fits = |&r: &Id| !body.depends_on(r, id) && !is_half(body.ty(r));
    if sizes.m != 1 || sizes.batch != 1 || sizes.k == 0 || total == 0 || !reductions.iter().all(fits) {
        Err("it has a contraction together with a reduction".into())
    } else {
        Ok(())
    }
}

/// Returns true if all rows fit into the memory of a workgroup.
pub(super) fn can_stage(sizes: Sizes) -> bool {
    sizes.m <= MAX_ROWS && sizes.batch * sizes.m * sizes.k <= MAX_STAGED
}

/// Name of the function with which an epilogue reads sums of its workgroup.
const PRODUCT_AT: &str = "product_at";

/// Compiles one launch for a contraction of few rows whose epilogue reads several elements of it: adjacent ones, or
/// rotation partners that are `half` columns apart. All elements that `epilogue` needs are in the same workgroup.
///
/// # Errors
/// The operands or sizes are not supported.
pub(super) fn compile_shared(
    body: &Body,
    id: Id,
    cx: &CompileCx,
    contraction: &dyn Contraction,
    half: Option<usize>,
    epilogue: impl FnOnce(&mut Emitter) -> Result<Epilogue, String>,
) -> Result<Launch, String> {
    let sizes = contraction.sizes();
    if sizes.batch != 1 || sizes.m > MAX_SHARED_ROWS || body.ty(id).numel() == 0 {
        return Err("the epilogue reads other elements of a product of many rows".into());
    }
    let vectors = RowMatmul::shared(contraction, cx, SharedSums { half });
    let vectors = vectors.ok_or("the epilogue reads other elements of a product than those of one workgroup")?;
    let mut e = Emitter::new(body, cx);
    e.look_up(id, PRODUCT_AT);
    let sink = SumConsumer::Finish(epilogue(&mut e)?);
    if !body.calls(Role::Reduction).is_empty() {
        check(body, id, contraction)?;
        Rows::before_matmul(body, &[], cx)?.begin(&mut e)?;
        e.share_fixed();
    }
    let launch = vectors.launch(e, &sink)?;
    let mut compiled = scheduled(launch.into(), &vectors.schedule());
    compiled.launches.pop().ok_or_else(|| "there is no launch".into())
}

/// Settings of a kernel that stores the sums of a workgroup in shared memory, for epilogues that read several of
/// them. If they rotate heads, `half` is the distance between the columns of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedSums {
    half: Option<usize>,
}

impl SharedSums {
    /// Sets the constants of a kernel file according to these settings. `None` disables shared sums.
    fn tell(shared: Option<Self>, template: Template) -> Template {
        template
            .flag("SHARED_SUMS", shared.is_some())
            .size("HALF", shared.and_then(|shared| shared.half).unwrap_or(0))
    }

    /// Returns true if workgroups of `tile` columns contain both columns of each pair.
    fn fits(self, tile: usize, n: usize) -> bool {
        self.half
            .is_none_or(|half| n.is_multiple_of(2 * half) && half.is_multiple_of(tile / 2))
    }
}

/// A contraction of few rows.
pub(super) struct RowMatmul<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    lanes: usize,
    parts: usize,
    /// Launch for a large matrix, if supported (it is preferred), and launch for vectors of terms, if supported.
    staged: Option<StagedRowMatmul<'a>>,
    wide: Option<WideRowMatmul<'a>>,
    shared: Option<SharedSums>,
}

impl<'a> RowMatmul<'a> {
    /// Returns the default, or `None` for too many rows.
    pub(super) fn new(contraction: &'a dyn Contraction, total: usize, cx: &CompileCx) -> Option<Self> {
        let sizes = contraction.sizes();
        if sizes.m > RowMatmul::most_rows(contraction) {
            return None;
        }
        let lanes = RowMatmul::usual_lanes(contraction);
        let parts = RowMatmul::usual_parts(&sizes, lanes);
        let limited = RowMatmul::limited(&sizes, total, lanes, parts);
        Some(RowMatmul {
            staged: StagedRowMatmul::new(contraction, cx, limited, None, None),
            wide: WideRowMatmul::new(contraction, cx, limited, None, None),
            ..RowMatmul::of(contraction, total, lanes, parts)
        })
    }

    /// Returns the launch whose workgroups share their sums. Returns `None` if a workgroup cannot contain both
    /// columns of each pair.
    fn shared(contraction: &'a dyn Contraction, cx: &CompileCx, shared: SharedSums) -> Option<Self> {
        let sizes = contraction.sizes();
        let staged = StagedRowMatmul::new(contraction, cx, 1, None, Some(shared));
        let wide = WideRowMatmul::new(contraction, cx, 1, None, Some(shared));
        let usual = RowMatmul::usual_lanes(contraction);
        // With more lanes, a workgroup has fewer columns.
        let fits = |lanes: &usize| shared.fits(THREADS / lanes, sizes.n);
        let lanes = [MIN_LANES, 2 * MIN_LANES, MAX_LANES]
            .into_iter()
            .filter(|&lanes| lanes >= usual);
        let lanes = lanes.into_iter().find(fits);
        if staged.is_none() && wide.is_none() && (lanes.is_none() || sizes.m > RowMatmul::most_rows(contraction)) {
            return None;
        }
        Some(RowMatmul {
            staged,
            wide,
            shared: Some(shared),
            ..RowMatmul::of(contraction, 0, lanes.unwrap_or(usual), 1)
        })
    }

    fn usual_lanes(contraction: &dyn Contraction) -> usize {
        let sizes = contraction.sizes();
        let mut lanes = if contraction.is_along_k(1) {
            MAX_LANES
        } else {
            MIN_LANES
        };
        while lanes < MAX_LANES && RowMatmul::groups(&sizes, lanes) < GROUPS_THRESHOLD {
            lanes *= 2;
        }
        lanes
    }

    /// Returns variants with all numbers of lanes and of columns of a thread, and with fewer and more parts than the
    /// default. Returns none for too many rows.
    pub(super) fn all(contraction: &'a dyn Contraction, total: usize, cx: &CompileCx) -> Vec<Self> {
        let sizes = contraction.sizes();
        if sizes.m > RowMatmul::most_rows(contraction) {
            return Vec::new();
        }
        let parts = |lanes: usize| {
            let (usual, many) = (
                RowMatmul::usual_parts(&sizes, lanes),
                GROUPS_THRESHOLD.div_ceil(RowMatmul::groups(&sizes, lanes).max(1)),
            );
            [usual, 1, many, many / 2].map(|parts| parts.max(1))
        };
        let mut all = Vec::new();
        for lanes in [MIN_LANES, 2 * MIN_LANES, MAX_LANES] {
            all.extend(parts(lanes).map(|parts| RowMatmul::of(contraction, total, lanes, parts)));
        }
        for parts in parts(MAX_LANES) {
            let parts = RowMatmul::limited(&sizes, total, MAX_LANES, parts);
            for columns in wide::COLUMNS {
                all.extend(
                    StagedRowMatmul::new(contraction, cx, parts, Some(columns), None).map(|staged| RowMatmul {
                        staged: Some(staged),
                        ..RowMatmul::of(contraction, total, MAX_LANES, parts)
                    }),
                );
                all.extend(
                    WideRowMatmul::new(contraction, cx, parts, Some(columns), None).map(|wide| RowMatmul {
                        wide: Some(wide),
                        ..RowMatmul::of(contraction, total, MAX_LANES, parts)
                    }),
                );
            }
        }
        all
    }

    /// Creates a variant with `lanes` lanes, and sums in at most `wanted` parts.
    fn of(contraction: &'a dyn Contraction, total: usize, lanes: usize, wanted: usize) -> Self {
        let sizes = contraction.sizes();
        let length = sizes
            .k
            .div_ceil(RowMatmul::limited(&sizes, total, lanes, wanted))
            .max(1);
        RowMatmul {
            contraction,
            sizes,
            lanes,
            staged: None,
            wide: None,
            shared: None,
            // Rounding the length up can reduce the number of parts.
            parts: sizes.k.div_ceil(length).max(1),
        }
    }

    fn most_rows(contraction: &dyn Contraction) -> usize {
        if contraction.is_by_rows() { MAX_ROWS } else { FEW_ROWS }
    }

    fn groups(sizes: &Sizes, lanes: usize) -> usize {
        sizes.batch * sizes.n.div_ceil(THREADS / lanes)
    }

    fn usual_parts(sizes: &Sizes, lanes: usize) -> usize {
        let groups = RowMatmul::groups(sizes, lanes);
        if groups < GROUPS_WITHOUT_PARTS {
            GROUPS_THRESHOLD.div_ceil(groups.max(1))
        } else {
            1
        }
    }

    /// Returns the wanted number of parts. Returns fewer if the parts would be too short or need too much memory.
    fn limited(sizes: &Sizes, total: usize, lanes: usize, wanted: usize) -> usize {
        let room = epilogue::most_parts(total);
        wanted.min(sizes.k / (lanes * MIN_PART)).min(room).max(1)
    }

    /// Compiles the launches of a contraction that depends on reductions. [`check`] must have accepted it.
    pub(super) fn compile(&self, body: &Body, id: Id, cx: &CompileCx, results: &Results) -> Result<Compiled, String> {
        let total = body.ty(id).numel();
        let before = Rows::before_matmul(body, &results.before, cx)?;
        let mut e = Emitter::new(body, cx);
        if self.parts() == 1 {
            // This must come before the reductions have values, because results may depend on the reductions only
            // through the contraction.
            let sink = SumConsumer::Finish(epilogue::epilogue(&mut e, id, &results.of_product, 1)?);
            before.begin(&mut e)?;
            e.share_fixed();
            let launch = self.launch(e, &sink)?;
            return Ok(launch.into());
        }
        let array = e.module.array(cx.scratch(0), epilogue::PARTIAL, true);
        before.begin(&mut e)?;
        e.share_fixed();
        let first = self.launch(e, &SumConsumer::Partial { array, total })?;
        let last = epilogue::join(Emitter::new(body, cx), id, &results.of_product, self.parts())?;
        Ok(Compiled {
            launches: vec![first, last],
            scratch: vec![4 * total * self.parts()],
            ..Compiled::default()
        })
    }

    /// Returns the schedule of the contraction.
    pub(super) fn schedule(&self) -> Schedule {
        match (&self.staged, &self.wide) {
            (Some(staged), _) => staged.schedule(),
            (None, Some(wide)) => wide.schedule(),
            (None, None) => Schedule::of("matmul_rows")
                .with("lanes", [self.lanes])
                .with("split_k", [self.parts]),
        }
    }

    /// Returns the number of parts of a sum.
    pub(super) fn parts(&self) -> usize {
        match (&self.staged, &self.wide) {
            (Some(staged), _) => staged.parts(),
            (None, Some(wide)) => wide.parts(),
            (None, None) => self.parts,
        }
    }

    /// Compiles a launch that passes each sum to `sink`.
    pub(super) fn launch(&self, mut e: Emitter, sink: &SumConsumer) -> Result<Launch, String> {
        if let Some(staged) = &self.staged {
            return staged.launch(e, sink);
        }
        if let Some(wide) = &self.wide {
            return wide.launch(e, sink);
        }
        let before = std::mem::take(&mut e.code);
        let a = e.block(|e| self.contraction.load(e, 0, "line", "k"))?;
        let b = e.block(|e| self.contraction.load(e, 1, "line", "k"))?;
        let template =
            SharedSums::tell(self.shared, sink.finish(Template::new(files::MATMUL_ROWS))).insert("before", before);
        let template = contraction_of(&mut e, template, self.contraction, [a, b])?
            .flag("B_K_MAJOR", self.contraction.is_along_k(1))
            .sizes([("LANES", self.lanes), ("SPLIT_K", self.parts), ("THREADS", THREADS)])
            .sizes([("MAX_UNROLL", MAX_UNROLL), ("MIN_UNROLL", MIN_UNROLL)])
            .flag("STAGED", self.is_staged());
        e.module
            .finish_template(template, RowMatmul::groups(&self.sizes, self.lanes) * self.parts)
    }

    /// Returns true if the elements of rows are computed once, before the sums, instead of once for each column.
    fn is_staged(&self) -> bool {
        self.contraction.stored(0).is_none() && self.sizes.m * self.sizes.k.div_ceil(self.parts) <= MAX_STAGED
    }
}

/// Returns true if an operand is in memory, and its vectors are contiguous along the summed dimension.
fn has_vectors(contraction: &dyn Contraction, cx: &CompileCx, operand: usize) -> bool {
    let stored = contraction.stored(operand).filter(|_| contraction.is_along_k(operand));
    stored.is_some_and(|stored| cx.has_vectors(stored))
}

/// Adds the code that loads the rows to a kernel file: vectors, or single elements if they are computed.
fn load_rows(
    contraction: &dyn Contraction,
    e: &mut Emitter,
    template: Template,
    are_computed: bool,
) -> Result<Template, String> {
    if are_computed {
        let (a, value) = e.block(|e| contraction.load(e, 0, "line", "k"))?;
        let template = template.returns("compute_a", &a, &value);
        return Ok(template.returns("load_a", "", "vec4<f32>()"));
    }
    let (a, value) = vector(contraction, e, 0)?;
    Ok(template.returns("load_a", &a, &value))
}

/// Returns statements that load the vector `k` of a line of an operand, and the value of this vector.
fn vector(contraction: &dyn Contraction, e: &mut Emitter, operand: usize) -> Result<(String, String), String> {
    let (code, found) = e.block(|e| {
        let first = e.bind(&format!("k * {WIDTH}u"))?;
        contraction.number_of(e, operand, "line", &first)
    })?;
    let stored = contraction.stored(operand);
    let vector = stored.and_then(|stored| e.module.load_vector(stored, &found.vector()));
    let vector = vector.ok_or("an operand of a contraction is not read by vectors")?;
    Ok((code, found.guarded("vec4<f32>", vector, None)))
}
