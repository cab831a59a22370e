//! Contractions of few rows with a matrix, as in a language model that generates one token after the other: every element
//! of the matrix is read once, and reading it bounds the time.
//!
//! A workgroup has some columns of some threads each, its *lanes*, which share the sum of the column; neighbouring
//! threads read neighbours in memory. Where there are too few columns for a device, sums are cut into parts.

mod staged;
mod wide;

use super::body::{Body, Id};
use super::contraction::{Contraction, Sizes, contraction_of};
use super::emit::Emitter;
use super::epilogue::{self, Epilogue, Results, Sink};
use super::files;
use super::kernel::{CompileCx, Compiled, Launch};
use super::pointwise::is_half;
use super::roles::Role;
use super::rows::Rows;
use super::schedule::Schedule;
use super::template::Template;
use super::variants::scheduled;
use staged::Staged;
use wide::Wide;

/// Most rows.
const MAX_ROWS: usize = 16;
/// Most rows of products whose operands do not lie in rows, and of those that are left to cooperative matrices otherwise.
pub(super) const FEW_ROWS: usize = 4;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Terms of a vector.
const WIDTH: usize = 4;
/// Most lanes: eight columns of them are a sector of memory where neighbours there are columns.
const MAX_LANES: usize = 32;
/// Fewest lanes.
const MIN_LANES: usize = 8;
/// Most terms, of all rows, that a thread reads before it adds them up.
const MAX_TOGETHER: usize = 16;
/// Terms of a row that it reads in any case.
const TOGETHER: usize = 4;
/// Most rows of a product whose epilogue reads other sums of the workgroup: cooperative matrices multiply more rows faster, by more than
/// a launch for the epilogue takes.
const MAX_SHARED_ROWS: usize = FEW_ROWS;
/// Most elements of rows that are computed once, for all columns of a workgroup.
const MAX_STAGED: usize = 3072;
/// Terms of a part for each lane, at least: a launch that puts parts together takes longer than fewer terms.
const MIN_PART: usize = 32;
/// Workgroups from which on a device has enough to do.
const GROUPS_THRESHOLD: usize = 256;
/// Workgroups from which on a second launch, which puts parts together, takes longer than it saves.
const GROUPS_WITHOUT_PARTS: usize = 48;

/// Whether there can be a kernel for a product of one row that depends on reductions of that row, as of a norm: every
/// workgroup computes these for itself, which takes less time than a launch of its own.
///
/// # Errors
/// It is no such product.
pub(super) fn check(body: &Body, id: Id, contraction: &dyn Contraction) -> Result<(), String> {
    let (sizes, total) = (contraction.sizes(), body.ty(id).numel());
    let reductions = body.calls(Role::Reduction);
    let fits = |&r: &Id| !body.depends_on(r, id) && !is_half(body.ty(r));
    match sizes.m != 1 || sizes.batch != 1 || sizes.k == 0 || total == 0 || !reductions.iter().all(fits) {
        true => Err("it has a contraction together with a reduction".into()),
        false => Ok(()),
    }
}

/// Whether all rows fit into the memory of a workgroup.
pub(super) fn can_stage(sizes: Sizes) -> bool {
    sizes.m <= MAX_ROWS && sizes.batch * sizes.m * sizes.k <= MAX_STAGED
}

/// Name of the function by which an epilogue reads sums of its workgroup.
const PRODUCT_AT: &str = "product_at";

/// One launch for a product of few rows whose epilogue reads other elements of it: neighbours, or those `half` columns away that
/// they are rotated with. All that `epilogue` makes of an element is in the same workgroup then.
///
/// # Errors
/// Operands or sizes for which there is no such launch.
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
    let vectors = Vectors::shared(contraction, cx, Shared { half });
    let vectors = vectors.ok_or("the epilogue reads other elements of a product than those of one workgroup")?;
    let mut e = Emitter::new(body, cx);
    e.look_up(id, PRODUCT_AT);
    let sink = Sink::Finish(epilogue(&mut e)?);
    if !body.calls(Role::Reduction).is_empty() {
        check(body, id, contraction)?;
        Rows::before_matmul(body, &[], cx)?.begin(&mut e)?;
        e.share_fixed();
    }
    let launch = vectors.launch(e, &sink)?;
    let mut compiled = scheduled(launch.into(), &vectors.schedule());
    compiled.launches.pop().ok_or_else(|| "there is no launch".into())
}

/// The sums of a workgroup are kept for epilogues that read others than the one at hand, of pairs of columns so far apart, if they
/// rotate heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    half: Option<usize>,
}

impl Shared {
    /// Tells a kernel file.
    fn tell(shared: Option<Self>, template: Template) -> Template {
        template
            .flag("SHARED_SUMS", shared.is_some())
            .size("HALF", shared.and_then(|shared| shared.half).unwrap_or(0))
    }

    /// Whether workgroups of so many columns can have both columns of each pair.
    fn fits(self, tile: usize, n: usize) -> bool {
        self.half
            .is_none_or(|half| n.is_multiple_of(2 * half) && half.is_multiple_of(tile / 2))
    }
}

/// A product of few rows.
pub(super) struct Vectors<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    lanes: usize,
    parts: usize,
    /// The launch for a large matrix, or the one by vectors of terms, where there are such.
    staged: Option<Staged<'a>>,
    wide: Option<Wide<'a>>,
    shared: Option<Shared>,
}

impl<'a> Vectors<'a> {
    /// What is commonly the best; `None` for more rows.
    pub(super) fn new(contraction: &'a dyn Contraction, total: usize, cx: &CompileCx) -> Option<Self> {
        let sizes = contraction.sizes();
        if sizes.m > Vectors::most_rows(contraction) {
            return None;
        }
        let lanes = Vectors::usual_lanes(contraction);
        let parts = Vectors::usual_parts(&sizes, lanes);
        let limited = Vectors::limited(&sizes, total, lanes, parts);
        Some(Vectors {
            staged: Staged::new(contraction, cx, limited, None, None),
            wide: Wide::new(contraction, cx, limited, None, None),
            ..Vectors::of(contraction, total, lanes, parts)
        })
    }

    /// The launch whose workgroups share their sums; `None` where they cannot have both columns of each pair.
    fn shared(contraction: &'a dyn Contraction, cx: &CompileCx, shared: Shared) -> Option<Self> {
        let sizes = contraction.sizes();
        let staged = Staged::new(contraction, cx, 1, None, Some(shared));
        let wide = Wide::new(contraction, cx, 1, None, Some(shared));
        let usual = Vectors::usual_lanes(contraction);
        // More lanes are fewer columns of a workgroup.
        let fits = |lanes: &usize| shared.fits(THREADS / lanes, sizes.n);
        let lanes = [MIN_LANES, 2 * MIN_LANES, MAX_LANES]
            .into_iter()
            .filter(|&lanes| lanes >= usual);
        let lanes = lanes.into_iter().find(fits);
        if staged.is_none() && wide.is_none() && (lanes.is_none() || sizes.m > Vectors::most_rows(contraction)) {
            return None;
        }
        Some(Vectors {
            staged,
            wide,
            shared: Some(shared),
            ..Vectors::of(contraction, 0, lanes.unwrap_or(usual), 1)
        })
    }

    fn usual_lanes(contraction: &dyn Contraction) -> usize {
        let sizes = contraction.sizes();
        let mut lanes = if contraction.is_along_k(1) {
            MAX_LANES
        } else {
            MIN_LANES
        };
        while lanes < MAX_LANES && Vectors::groups(&sizes, lanes) < GROUPS_THRESHOLD {
            lanes *= 2;
        }
        lanes
    }

    /// All numbers of lanes, and of columns of a thread, with fewer and more parts than usual; none for more rows.
    pub(super) fn all(contraction: &'a dyn Contraction, total: usize, cx: &CompileCx) -> Vec<Self> {
        let sizes = contraction.sizes();
        if sizes.m > Vectors::most_rows(contraction) {
            return Vec::new();
        }
        let parts = |lanes: usize| {
            let (usual, many) = (
                Vectors::usual_parts(&sizes, lanes),
                GROUPS_THRESHOLD.div_ceil(Vectors::groups(&sizes, lanes).max(1)),
            );
            [usual, 1, many, many / 2].map(|parts| parts.max(1))
        };
        let mut all = Vec::new();
        for lanes in [MIN_LANES, 2 * MIN_LANES, MAX_LANES] {
            all.extend(parts(lanes).map(|parts| Vectors::of(contraction, total, lanes, parts)));
        }
        for parts in parts(MAX_LANES) {
            let parts = Vectors::limited(&sizes, total, MAX_LANES, parts);
            for columns in wide::COLUMNS {
                all.extend(
                    Staged::new(contraction, cx, parts, Some(columns), None).map(|staged| Vectors {
                        staged: Some(staged),
                        ..Vectors::of(contraction, total, MAX_LANES, parts)
                    }),
                );
                all.extend(
                    Wide::new(contraction, cx, parts, Some(columns), None).map(|wide| Vectors {
                        wide: Some(wide),
                        ..Vectors::of(contraction, total, MAX_LANES, parts)
                    }),
                );
            }
        }
        all
    }

    /// So many lanes, and sums in as many parts as are wanted, or fewer.
    fn of(contraction: &'a dyn Contraction, total: usize, lanes: usize, wanted: usize) -> Self {
        let sizes = contraction.sizes();
        let length = sizes.k.div_ceil(Vectors::limited(&sizes, total, lanes, wanted)).max(1);
        Vectors {
            contraction,
            sizes,
            lanes,
            staged: None,
            wide: None,
            shared: None,
            // Rounding their length up may leave fewer.
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
        let groups = Vectors::groups(sizes, lanes);
        match groups < GROUPS_WITHOUT_PARTS {
            true => GROUPS_THRESHOLD.div_ceil(groups.max(1)),
            false => 1,
        }
    }

    /// As many parts as are wanted, unless they were too short, or too many to keep.
    fn limited(sizes: &Sizes, total: usize, lanes: usize, wanted: usize) -> usize {
        let room = epilogue::most_parts(total);
        wanted.min(sizes.k / (lanes * MIN_PART)).min(room).max(1)
    }

    /// Launches for a product that depends on reductions, which [`check`] has found to be possible.
    pub(super) fn compile(&self, body: &Body, id: Id, cx: &CompileCx, results: &Results) -> Result<Compiled, String> {
        let total = body.ty(id).numel();
        let before = Rows::before_matmul(body, &results.before, cx)?;
        let mut e = Emitter::new(body, cx);
        if self.parts() == 1 {
            // Before the reductions have values: results may depend on these through the product only.
            let sink = Sink::Finish(epilogue::epilogue(&mut e, id, &results.of_product, 1)?);
            before.begin(&mut e)?;
            e.share_fixed();
            let launch = self.launch(e, &sink)?;
            return Ok(launch.into());
        }
        let array = e.module.array(cx.scratch(0), epilogue::PARTIAL, true);
        before.begin(&mut e)?;
        e.share_fixed();
        let first = self.launch(e, &Sink::Partial { array, total })?;
        let last = epilogue::join(Emitter::new(body, cx), id, &results.of_product, self.parts())?;
        Ok(Compiled {
            launches: vec![first, last],
            scratch: vec![4 * total * self.parts()],
            ..Compiled::default()
        })
    }

    /// How it computes the product.
    pub(super) fn schedule(&self) -> Schedule {
        match (&self.staged, &self.wide) {
            (Some(staged), _) => staged.schedule(),
            (None, Some(wide)) => wide.schedule(),
            (None, None) => Schedule::of("matmul_rows")
                .with("lanes", [self.lanes])
                .with("split_k", [self.parts]),
        }
    }

    /// Parts into which sums are cut.
    pub(super) fn parts(&self) -> usize {
        match (&self.staged, &self.wide) {
            (Some(staged), _) => staged.parts(),
            (None, Some(wide)) => wide.parts(),
            (None, None) => self.parts,
        }
    }

    /// A launch that gives each sum to a sink.
    pub(super) fn launch(&self, mut e: Emitter, sink: &Sink) -> Result<Launch, String> {
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
            Shared::tell(self.shared, sink.finish(Template::new(files::MATMUL_ROWS))).insert("before", before);
        let template = contraction_of(&mut e, template, self.contraction, [a, b])?
            .flag("B_ALONG_K", self.contraction.is_along_k(1))
            .sizes([("LANES", self.lanes), ("PARTS", self.parts), ("THREADS", THREADS)])
            .sizes([("MAX_TOGETHER", MAX_TOGETHER), ("MIN_TOGETHER", TOGETHER)])
            .flag("STAGED", self.is_staged());
        e.module
            .finish_template(template, Vectors::groups(&self.sizes, self.lanes) * self.parts)
    }

    /// Whether rows are computed before the sums, so that columns do not each do so.
    fn is_staged(&self) -> bool {
        self.contraction.stored(0).is_none() && self.sizes.m * self.sizes.k.div_ceil(self.parts) <= MAX_STAGED
    }
}

/// Returns true if an operand is in memory, and its vectors lie along K.
fn has_vectors(contraction: &dyn Contraction, cx: &CompileCx, operand: usize) -> bool {
    let stored = contraction.stored(operand).filter(|_| contraction.is_along_k(operand));
    stored.is_some_and(|stored| cx.has_vectors(stored))
}

/// Gives a kernel file the vectors of its rows, or their elements if these are computed.
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

/// Statements that load the vector `k` of a line of an operand, and its value.
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
