//! Kernels of bodies with reductions over some axes, such as decomposed norms, softmaxes and losses. They also
//! compute the operands of the reductions, and results for the same row.
//!
//! A *row* contains the elements that one reduction combines. The kept axes of its operand index the rows, and the
//! reduced axes index the *columns*. `kernels/reduce.wgsl` distributes both over threads. `inserts.rs` generates the
//! code that is inserted into this file.

mod inserts;
mod layout;
mod schedules;
mod written;

use meganeura_core::{Shape, TensorType};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::fold::Fold;
use super::kernel::{CompileCx, Compiled};
use super::location::{self, Base, Index, Location};
use super::pointwise::is_half;
use super::roles::Role;
use super::variants;
pub(super) use layout::Layout;

/// Number of threads of a workgroup.
pub(super) const THREADS: usize = 256;
/// Minimum number of threads that occupies a device. With fewer threads, rows are split into parts.
const THREADS_THRESHOLD: usize = 65_536;
/// Minimum number of columns of a part.
const MIN_PART: usize = 2_048;
/// Maximum number of parts of a row.
const MAX_PARTS: usize = 256;
/// Maximum length of a row that every workgroup of a matmul may reduce redundantly.
const MAX_PROLOGUE_COLUMNS: usize = 16_384;

/// A reduction of a body.
#[derive(Clone, Debug)]
struct Reduction {
    /// Index of the reduction in the body. It numbers the array and the functions of the reduction in the kernel
    /// file.
    number: usize,
    id: Id,
    input: Id,
    fold: Fold,
    /// Level of the reduction: one more than the highest level of the reductions that it depends on.
    level: usize,
}

/// Properties that all reductions of a body share.
#[derive(Clone)]
pub(super) struct Rows<'a> {
    body: &'a Body,
    reductions: Vec<Reduction>,
    /// Shape of the reduced values.
    domain: Shape,
    reduced: Vec<bool>,
    rows: usize,
    columns: usize,
    /// Number of columns of a thread whose code is unrolled; 0 for a loop.
    written_out: usize,
    /// Results with one element for each row, and results with one element for each element of the domain.
    by_row: Vec<usize>,
    by_element: Vec<usize>,
}

/// Compiles the launches of a body with reductions.
pub(super) fn compile(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
    let mut rows = Rows::of(body)?;
    for (output, ty) in cx.kernel.outputs.iter().enumerate() {
        rows.classify(output, ty)?;
    }
    if rows.rows == 0 {
        return Ok(Compiled::default());
    }
    // A body that does not fit into one kernel has no variants. It is split into stages.
    variants::compile(
        cx,
        |precision| rows.class(cx, precision),
        &rows.usual(),
        || rows.all(),
        |variant| rows.compile(cx, variant),
    )
}

impl<'a> Rows<'a> {
    /// Collects the reductions of a body. The results of the body are not classified yet.
    pub(super) fn of(body: &'a Body) -> Result<Self, String> {
        let mut levels = vec![0; body.nodes.len()];
        let mut reductions = Vec::new();
        let mut common: Option<(Shape, Vec<bool>)> = None;
        for id in 0..body.nodes.len() {
            let below = body.inputs(id).iter().map(|&i| levels[i]).max().unwrap_or(0);
            levels[id] = below;
            let Def::Call {
                op,
                attrs,
                inputs,
                role,
            } = &body.nodes[id].def
            else {
                continue;
            };
            if *role != Role::Reduction {
                continue;
            }
            let domain = body.ty(inputs[0]).shape.clone();
            let axes = domain.axes(attrs.ints("axes")?)?;
            let reduced = (0..domain.rank()).map(|a| axes.contains(&a)).collect();
            let one = (domain, reduced);
            if common.get_or_insert_with(|| one.clone()) != &one {
                return Err("its reductions are over different axes".into());
            }
            reductions.push(Reduction {
                number: reductions.len(),
                id,
                input: inputs[0],
                fold: Fold::of(op)?,
                level: below,
            });
            levels[id] = below + 1;
        }
        let (domain, reduced) = common.ok_or("there is nothing to reduce")?;
        let size = |of: bool| -> usize {
            (0..domain.rank())
                .filter(|&a| reduced[a] == of)
                .map(|a| domain[a])
                .product()
        };
        let (rows, columns) = (size(false), size(true));
        Ok(Rows {
            body,
            reductions,
            rows,
            columns,
            written_out: 0,
            by_row: Vec::new(),
            by_element: Vec::new(),
            domain,
            reduced,
        })
    }

    /// Collects the reductions of a single row that a matmul depends on. Every workgroup of the matmul computes them
    /// redundantly and stores `results`.
    pub(super) fn before_matmul(body: &'a Body, results: &[usize], cx: &CompileCx) -> Result<Self, String> {
        let mut rows = Rows::of(body)?;
        if rows.rows != 1 || rows.columns > MAX_PROLOGUE_COLUMNS {
            return Err("the reduction before the contraction is too long to repeat it in every workgroup".into());
        }
        for &output in results {
            rows.classify(output, &cx.kernel.outputs[output])?;
        }
        rows.written_out = rows.written(&Layout::of_one_row());
        if rows.by_element.is_empty() {
            Ok(rows)
        } else {
            Err("it stores what it multiplies".into())
        }
    }

    fn classify(&mut self, output: usize, ty: &TensorType) -> Result<(), String> {
        if is_half(ty) {
            return Err(format!("it has a result of {}", ty.dtype));
        }
        match ty.numel() {
            0 => {}
            n if n == self.rows => self.by_row.push(output),
            n if n == self.rows * self.columns => self.by_element.push(output),
            _ => return Err("a result has neither a row's nor an element's location".into()),
        }
        Ok(())
    }

    /// Returns true if rows can be split into parts. The result of a reduction is available in the last launch only, so no
    /// other reduction and no element may depend on it.
    fn can_be_cut(&self) -> bool {
        let depends = |output: &usize| {
            let result = self.body.results[*output];
            self.reductions.iter().any(|r| self.body.depends_on(result, r.id))
        };
        !self.by_element.iter().any(depends) && self.reductions.iter().all(|r| r.level == 0)
    }

    /// Returns the number of parts of a row.
    fn parts(&self, layout: &Layout) -> usize {
        let threads = self.rows * layout.lanes;
        if !self.can_be_cut() || threads >= THREADS_THRESHOLD {
            return 1;
        }
        let wanted = THREADS_THRESHOLD.div_ceil(threads.max(1)).min(MAX_PARTS);
        wanted.min(self.columns / MIN_PART).max(1)
    }

    /// Sets the variables that contain the indices of the domain's elements.
    fn name_indices(&self, e: &mut Emitter, base: &Base, known: Location) {
        let whole = location::split(base, 1, &self.domain);
        for (index, name) in whole.into_iter().zip(known) {
            if index != Index::Zero && !name.wgsl().contains(' ') {
                e.name_index(index, &name.wgsl());
            }
        }
    }

    /// Returns the location of an element of the domain, given the index of its row and the variable of its column.
    fn location(&self, column: &str) -> Location {
        let dims = |of: bool| -> Vec<usize> { self.axes(of).map(|a| self.domain[a]).collect() };
        let location = |name: &str, of: bool| {
            let shape = Shape::new(&dims(of)).unwrap_or_else(|_| Shape::scalar());
            location::split(&Base::new(name, shape.numel()), 1, &shape).into_iter()
        };
        let (mut rows, mut columns) = (location("row", false), location(column, true));
        let mut next = |&reduced: &bool| if reduced { columns.next() } else { rows.next() };
        self.reduced.iter().map(|r| next(r).unwrap_or(Index::Zero)).collect()
    }

    fn axes(&self, reduced: bool) -> impl Iterator<Item = usize> + '_ {
        (0..self.domain.rank()).filter(move |&a| self.reduced[a] == reduced)
    }

    /// Returns the base for the elements of the domain.
    fn element(&self) -> Base {
        Base::new("i", self.rows * self.columns)
    }

    fn row(&self) -> Base {
        Base::new("row", self.rows)
    }

    /// Sets the variable that contains a value with one element for each row.
    fn fix(&self, e: &mut Emitter, id: Id, variable: &str) {
        let shape = self.body.ty(id).shape.clone();
        let by_row = location::split(&self.row(), 1, &shape);
        // For an element of the domain, the location of the value omits the reduced axes.
        let dims: Vec<usize> = self.axes(false).map(|a| self.domain[a]).collect();
        let by_element = |base: Base| {
            let whole = location::split(&base, 1, &self.domain);
            let kept: Location = self.axes(false).map(|a| whole[a].clone()).collect();
            Shape::new(&dims)
                .map(|s| location::terms(&kept, &s))
                .unwrap_or_default()
        };
        let mut locations = vec![location::terms(&by_row, &shape), by_element(self.element())];
        locations.extend((0..self.written_out).map(|number| by_element(self.written_element(number))));
        e.fix_terms(id, variable, locations);
    }
}
