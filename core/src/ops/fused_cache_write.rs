//! Fused write of a program's result into a cache: a projection (matmul) whose epilogue rotates its rows and writes
//! them.

use super::cache_write::{self, CacheDims};
use super::fused;
use super::paged_cache_write::{self, PagedWriteDims};
use super::rope::RopeScaling;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, registered};
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::program::{Program, Slot, Step};
use crate::shape::TensorType;

pub(super) struct FusedCacheWrite;

/// The operator that writes the result of a [`Program`], its attribute `program`, into a cache.
pub const FUSED_CACHE_WRITE: OpRef = OpRef::new(&FusedCacheWrite);

/// Destination of the rows of a `core.fused_cache_write` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedWriteDims {
    /// Into a cache of each sequence, as `core.cache_write` does it.
    Whole(CacheDims),
    /// Into blocks, as `core.paged_cache_write` does it.
    Paged(PagedWriteDims),
}

impl FusedWriteDims {
    /// Reads the dimensions of a call, and the type of the rows that the program computes.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<(Self, TensorType), String> {
        let [cache, places, ..] = call.inputs else {
            return Err("takes a cache, positions or slots, and what the program reads".into());
        };
        let program = call.attrs.program("program")?;
        let &[result] = program.results() else {
            return Err(format!("the program has {} results, not one", program.results().len()));
        };
        let steps = program.infer(call.inputs)?;
        let rows = program.type_of(result, call.inputs, &steps).clone();
        let write = Call {
            inputs: &[rows.clone(), cache.clone(), places.clone()],
            ..*call
        };
        let dims = if call.attrs.bool("paged")? {
            FusedWriteDims::Paged(PagedWriteDims::of(&write)?)
        } else {
            FusedWriteDims::Whole(CacheDims::of(&write)?)
        };
        Ok((dims, rows))
    }
}

impl Operator for FusedCacheWrite {
    fn name(&self) -> &'static str {
        "core.fused_cache_write"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "cache and positions as core.cache_write has them, or cache and slots as core.paged_cache_write if paged, and what the program reads besides -> as the cache",
            formula: "core.cache_write, or core.paged_cache_write, of what the program computes of all operands, which are its operands too",
            source: "rows of keys and values are written only to the cache; replaces a projection and the calls after it where that is faster",
        }
    }

    fn arity(&self) -> Arity {
        Arity::AtLeast(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("program", AttrKind::Program), ("paged", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        FusedWriteDims::of(call)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn writes(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let bound = match FusedWriteDims::of(call).ok()?.0 {
            FusedWriteDims::Whole(dims) => dims.bound(),
            FusedWriteDims::Paged(dims) => dims.bound(),
        };
        Some((1, bound))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let (dims, _) = cx.with_call(FusedWriteDims::of)?;
            let program = cx.attrs.program("program")?.clone();
            let rows = program.build(cx.graph, cx.inputs)[0];
            let operands = [rows, cx.inputs[0], cx.inputs[1]];
            Ok(vec![match dims {
                FusedWriteDims::Whole(dims) => cache_write::written(cx.graph, operands, &dims),
                FusedWriteDims::Paged(dims) => paged_cache_write::written(cx.graph, operands, &dims),
            }])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        // The rows are written; other rows of the cache are not touched.
        let rows = FusedWriteDims::of(call).map_or(0, |(_, rows)| rows.bytes() as u64);
        let read = call.inputs.iter().skip(2).map(|ty| ty.bytes() as u64);
        Cost {
            flops: fused::flops(call).unwrap_or(0),
            bytes: read.fold(rows, u64::saturating_add),
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (k, wide, heads, half) = (sizes.dim(90), sizes.dim(40), sizes.dim(4), sizes.dim(12));
        let whole = |batch: &[usize], rows, capacity| RowDestination::Whole {
            batch: batch.to_vec(),
            rows,
            capacity,
        };
        let paged = |rows, blocks| RowDestination::Paged { rows, blocks };
        let cases = [
            (whole(&[], 1, 9), k, Projection::plain(wide)),
            (whole(&[3], 1, 5), 64, Projection::plain(48)),
            (whole(&[], 4, 9), 96, Projection::rotated(2, 8)),
            (whole(&[2], 1, 6), 32, Projection::rotated(3, 32)),
            (whole(&[2], 3, 7), k, Projection::rotated(heads, half)),
            (paged(4, [1, 3]), 64, Projection::plain(24)),
            (paged(3, [4, 8]), 40, Projection::rotated(1, 16)),
            (paged(9, [3, 2]), k, Projection::rotated(heads, half)),
        ];
        // Rows of f16 have pairs of elements.
        let has_pairs = |projection: &Projection| projection.width.is_multiple_of(2);
        let dtypes = [DType::F32, DType::F16];
        let all = dtypes
            .into_iter()
            .flat_map(|dtype| cases.iter().map(move |case| (dtype, case)));
        all.filter(|(dtype, (.., projection))| *dtype == DType::F32 || has_pairs(projection))
            .flat_map(|(dtype, (written, k, projection))| {
                // A matrix of f32, and one of f16 after a norm.
                [false, true].map(|norm| sample(dtype, written, *k, projection, norm))
            })
            .flatten()
            .collect()
    }
}

/// Destination of the rows of a sample.
enum RowDestination {
    Whole {
        batch: Vec<usize>,
        rows: usize,
        capacity: usize,
    },
    /// Rows; number of blocks and rows of each.
    Paged { rows: usize, blocks: [usize; 2] },
}

/// Width of a sample's projection, and the head size if its rows are rotated (RoPE).
struct Projection {
    width: usize,
    head_dim: Option<usize>,
}

impl Projection {
    fn plain(width: usize) -> Self {
        Projection { width, head_dim: None }
    }

    fn rotated(heads: usize, half: usize) -> Self {
        Projection {
            width: heads * 2 * half,
            head_dim: Some(2 * half),
        }
    }
}

/// Returns a sample that writes projected rows of `k` elements: with `norm`, after an RMS norm and by `f16` weights;
/// else by a plain `f32` matmul. Returns `None` if an operator is not registered.
fn sample(dtype: DType, written: &RowDestination, k: usize, projection: &Projection, norm: bool) -> Option<Sample> {
    let width = projection.width;
    let (rows, cache, places) = match written {
        RowDestination::Whole { batch, rows, capacity } => {
            let below = SampleInput::below(if batch.is_empty() { &[1] } else { batch }, capacity + 1 - rows);
            let shape = |last: &[usize]| [&batch[..], last].concat();
            (shape(&[*rows, k]), shape(&[*capacity, width]), below)
        }
        &RowDestination::Paged {
            rows,
            blocks: [blocks, block_rows],
        } => {
            let slots = SampleInput::below(&[rows], blocks * block_rows + 1);
            (vec![rows, k], vec![blocks, block_rows, width], slots)
        }
    };
    let is_paged = matches!(written, RowDestination::Paged { .. });
    let mut inputs = vec![
        SampleInput::cache(dtype, &cache).state(),
        places,
        SampleInput::f32(&rows),
    ];
    let mut steps = Vec::new();
    let mut push = |name: &str, attrs: Attrs, operands: &[Slot]| {
        steps.push(Step {
            op: registered::op(name)?,
            attrs,
            inputs: operands.to_vec(),
        });
        Some(Slot::Step(steps.len() as u32 - 1))
    };
    let [x, positions] = [Slot::Operand(2), Slot::Operand(1)];
    let mut last = if norm {
        inputs.push(SampleInput::f32(&[k]));
        inputs.push(SampleInput::filled(DType::F16, &[width, k], Fill::Below(200)));
        let attrs = Attrs::new().with("eps", super::rms_norm::sample_eps(k));
        push(
            "core.rms_norm_quantized_matmul",
            attrs,
            &[x, Slot::Operand(3), Slot::Operand(4)],
        )?
    } else {
        inputs.push(SampleInput::f32(&[width, k]));
        let attrs = Attrs::new().with("transpose_a", false).with("transpose_b", true);
        push("core.matmul", attrs, &[x, Slot::Operand(3)])?
    };
    if let Some(head_dim) = projection.head_dim {
        let attrs = super::rope::dynamic_attrs(10_000.0, head_dim as u32, RopeScaling::None);
        last = if is_paged {
            // Rows of a paged cache are sequences of one row each, with their slots as positions.
            let shape = |dims: &[usize]| Attrs::new().with("shape", dims);
            let single = push("core.reshape", shape(&[rows[0], 1, width]), &[last])?;
            let turned = push("core.rope_dynamic_offset", attrs, &[single, positions])?;
            push("core.reshape", shape(&[rows[0], width]), &[turned])?
        } else {
            push("core.rope_dynamic_offset", attrs, &[last, positions])?
        };
    }
    let program = Program::new(inputs.len(), steps, vec![last]).ok()?;
    let (norm, turned) = (
        if norm { "after a norm, " } else { "" },
        projection.head_dim.unwrap_or(0),
    );
    let place = if is_paged { "blocks" } else { "a cache" };
    let label =
        format!("{norm}{rows:?} times [{width}, {k}], rotated in heads of {turned}, into {place} {cache:?}, {dtype}");
    let attrs = Attrs::new().with("program", program).with("paged", is_paged);
    Some(Sample::new(label, inputs, attrs).written_to_cache(dtype))
}
