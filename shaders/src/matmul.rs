//! Matmuls: plain, transposed or batched, with operands that may be computed when they are loaded.

use meganeura_core::ops::{Call, MatMulDims};
use meganeura_core::{DType, Shape, TensorType};

use super::body::{Body, Def, Id};
use super::contraction::{Contraction, ElementLocation, Sizes};
use super::emit::Emitter;
use super::kernel::{CompileCx, Compiled};
use super::location::{self, Base, Index, Location};
use super::packed::Packed;
use super::tiled;

pub(super) fn compile(body: &Body, id: Id, cx: &CompileCx) -> Result<Compiled, String> {
    tiled::compile(body, id, cx, &product(body, id, cx)?)
}

/// Returns the matmul of a body.
pub(super) fn product(body: &Body, id: Id, cx: &CompileCx) -> Result<MatMul, String> {
    let Def::Call { attrs, inputs, .. } = &body.nodes[id].def else {
        return Err("there is no matmul".into());
    };
    let &[a, b] = &inputs[..] else {
        return Err("a matmul has two operands".into());
    };
    let types: Vec<TensorType> = inputs.iter().map(|&i| body.ty(i).clone()).collect();
    let dims = MatMulDims::of(&Call {
        attrs,
        inputs: &types,
        outputs: &[],
    })?;
    let [a, b] = [a, b].map(|id| uncast(body, id));
    let batches_of_b = &types[1].shape[..types[1].shape.rank() - 2];
    let product = MatMul {
        one_matrix: !dims.transpose_a && batches_of_b.iter().all(|&size| size == 1),
        stored: [a, b].map(|id| match body.nodes[id].def {
            Def::Operand(operand) => Some(operand),
            _ => None,
        }),
        packed: [a, b].map(|id| Packed::of(body, cx, id)),
        batch: Shape::new(&dims.batch)?,
        shapes: [types[0].shape.clone(), types[1].shape.clone()],
        operands: [a, b],
        dims,
    };
    tiled::check_prologue(body, cx, a, Some(product.sizes()))?;
    if product.packed[1].is_none() {
        tiled::check_prologue(body, cx, b, None)?;
    }
    Ok(product)
}

/// Returns `id`, or the dispatch operand that it casts from another float type to `f32`. Loads convert elements to
/// `f32` anyway.
fn uncast(body: &Body, id: Id) -> Id {
    let is_float = |id: Id| body.ty(id).dtype.is_float();
    match &body.nodes[id].def {
        Def::Call {
            op: "core.cast",
            inputs,
            ..
        } if body.ty(id).dtype == DType::F32
            && is_float(inputs[0])
            && matches!(body.nodes[inputs[0]].def, Def::Operand(_)) =>
        {
            inputs[0]
        }
        _ => id,
    }
}

/// A matmul as a [`Contraction`].
pub(super) struct MatMul {
    dims: MatMulDims,
    batch: Shape,
    /// True if all matrices of the batch are multiplied by the same matrix. The batch can then be treated as more
    /// rows.
    one_matrix: bool,
    operands: [Id; 2],
    shapes: [Shape; 2],
    /// Index of each operand of the matmul among the operands of the dispatch, if it is in memory.
    stored: [Option<usize>; 2],
    /// Packed matrix of each operand of the matmul, if it is packed.
    packed: [Option<Packed>; 2],
}

impl MatMul {
    /// Returns the location of an element of an operand.
    fn location(&self, operand: usize, line: &str, k: &str) -> Result<Location, String> {
        let shape = &self.shapes[operand];
        let of = |size: usize, text: &str| if size == 1 { Index::Zero } else { Index::text(text) };
        let lines = if operand == 0 { self.dims.m } else { self.dims.n };
        let mut batch = location::split(&Base::new("batch", self.batch.numel()), 1, &self.batch);
        let mut index = of(lines, line);
        if self.one_matrix && operand == 0 {
            let rows = Shape::new(&[&self.batch[..], &[lines]].concat())?;
            batch = location::split(&Base::new(line, rows.numel()), 1, &rows);
            index = batch.pop().unwrap_or(Index::Zero);
        }
        let mut at = location::broadcast(&batch, &Shape::new(&shape[..shape.rank() - 2])?);
        let k = of(self.dims.k, k);
        at.extend(if self.is_along_k(operand) {
            [index, k]
        } else {
            [k, index]
        });
        Ok(at)
    }
}

impl Contraction for MatMul {
    fn sizes(&self) -> Sizes {
        let MatMulDims { m, n, k, .. } = self.dims;
        let (batch, m) = if self.one_matrix {
            (1, self.batch.numel() * m)
        } else {
            (self.batch.numel(), m)
        };
        Sizes { batch, m, n, k }
    }

    fn kind(&self) -> String {
        "matmul".into()
    }

    fn is_along_k(&self, operand: usize) -> bool {
        match operand {
            0 => !self.dims.transpose_a,
            _ => self.dims.transpose_b,
        }
    }

    fn load(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<String, String> {
        let at = self.location(operand, line, k)?;
        e.value(self.operands[operand], &at)
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn stored(&self, operand: usize) -> Option<usize> {
        self.stored[operand]
    }

    fn packed(&self, operand: usize) -> Option<Packed> {
        self.packed[operand]
    }

    fn batch_stride(&self, operand: usize) -> Option<usize> {
        let Sizes { batch, m, n, k } = self.sizes();
        let shape = &self.shapes[operand];
        let matrix = k * if operand == 0 { m } else { n };
        match shape.numel() {
            all if all == matrix => Some(0),
            all if all == batch * matrix => Some(matrix),
            _ => None,
        }
    }

    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<ElementLocation, String> {
        let at = self.location(operand, line, k)?;
        Ok(ElementLocation::always(e.linear(&at, &self.shapes[operand])?))
    }
}
