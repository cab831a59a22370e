//! Matrix products, with what is computed of their operands on the way in, and of the product on the way out.
//!
//! A workgroup computes a tile of the product. It goes over the summed dimension in steps, for which it copies a
//! piece of both operands to shared memory; every thread sums up some elements of the tile.

use std::fmt::Write as _;

use meganeura_core::TensorType;
use meganeura_core::ops::{Call, MatMulDims};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::module::{CompileCx, Compiled};
use super::place::{self, Base, Index, Place};
use super::pointwise::is_half;
use super::{Role, scalar};

/// Threads along each side of a tile.
const SIDE: usize = 16;
/// Threads of a workgroup.
const THREADS: usize = SIDE * SIDE;
/// Length of a step along the summed dimension.
const STEP: usize = 16;
/// Workgroups from which on the larger of two tiles is better.
const ENOUGH_GROUPS: usize = 64;
/// Elements along each side of the tile of one thread, the largest first.
const TILES: [usize; 3] = [4, 2, 1];

/// Whether an operator is a product.
pub(super) fn is_known(name: &str) -> bool {
    name == "core.matmul"
}

struct Product<'a> {
    body: &'a Body,
    id: Id,
    operands: [Id; 2],
    dims: MatMulDims,
    /// Rows, and columns, of the tile of one thread.
    tile: usize,
}

pub(super) fn compile(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
    let &[id] = &body.calls(Role::Product)[..] else {
        return Err("it has several matrix products".into());
    };
    let product = Product::new(body, id)?;
    let total = body.ty(id).numel();
    for ty in cx.kernel.outputs {
        if is_half(ty) {
            return Err(format!("it has a result of {}", ty.dtype));
        }
        if ty.numel() != total {
            return Err("a result has other elements than the product".into());
        }
    }
    if total == 0 {
        return Ok(Compiled::default());
    }
    Ok(Compiled {
        launches: vec![product.launch(cx, total)?],
        scratch: Vec::new(),
    })
}

impl<'a> Product<'a> {
    fn new(body: &'a Body, id: Id) -> Result<Self, String> {
        let Def::Call { attrs, inputs, .. } = &body.nodes[id].def else {
            return Err("there is no product".into());
        };
        let &[a, b] = &inputs[..] else {
            return Err("a product has two operands".into());
        };
        let types: Vec<TensorType> = inputs.iter().map(|&i| body.ty(i).clone()).collect();
        let dims = MatMulDims::of(&Call {
            attrs,
            inputs: &types,
            outputs: &[],
        })?;
        let batch: usize = dims.batch.iter().product();
        let groups = |tile: usize| batch * dims.m.div_ceil(tile * SIDE) * dims.n.div_ceil(tile * SIDE);
        let tile = TILES.into_iter().find(|&tile| groups(tile) >= ENOUGH_GROUPS).unwrap_or(1);
        Ok(Product {
            body,
            id,
            operands: [a, b],
            dims,
            tile,
        })
    }

    fn launch(&self, cx: &CompileCx, total: usize) -> Result<super::module::Launch, String> {
        if u32::try_from(total).is_err() {
            return Err("it has more elements than a kernel can number".into());
        }
        let MatMulDims { m, n, k, .. } = self.dims;
        let side = self.tile * SIDE;
        let (across, down) = (n.div_ceil(side), m.div_ceil(side));
        let batch: usize = self.dims.batch.iter().product();
        let mut e = Emitter::new(self.body, cx);
        self.epilogue(&mut e, total)?;
        let _ = write!(
            e.module.items,
            "var<workgroup> shared_a: array<f32, {0}>;\nvar<workgroup> shared_b: array<f32, {0}>;\n",
            side * STEP
        );
        let mut code = format!(
            "let batch = group_number / {}u;\nlet first_row = group_number / {across}u % {down}u * {side}u;\n\
             let first_column = group_number % {across}u * {side}u;\nlet y = local / {SIDE}u;\nlet x = local % {SIDE}u;\n",
            across * down
        );
        for (i, j) in self.pairs() {
            let _ = writeln!(code, "var sum_{i}_{j} = 0.0;");
        }
        let _ = writeln!(code, "for (var k = 0u; k < {k}u; k += {STEP}u) {{");
        for operand in 0..2 {
            for piece in 0..self.tile {
                code.push_str(&self.copy(&mut e, operand, piece)?);
            }
        }
        code.push_str("workgroupBarrier();\n");
        code.push_str(&self.multiply());
        code.push_str("workgroupBarrier();\n}\n");
        for (i, j) in self.pairs() {
            let (row, column) = (format!("first_row + y + {}u", i * SIDE), format!("first_column + x + {}u", j * SIDE));
            let _ = writeln!(
                code,
                "if ({row} < {m}u && {column} < {n}u) {{\nfinish((batch * {m}u + {row}) * {n}u + {column}, sum_{i}_{j});\n}}"
            );
        }
        e.module.finish(&code, THREADS, batch * across * down)
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let tile = self.tile;
        (0..tile).flat_map(move |i| (0..tile).map(move |j| (i, j)))
    }

    /// Declares the function that stores what becomes of an element of the product.
    fn epilogue(&self, e: &mut Emitter, total: usize) -> Result<(), String> {
        let base = Base::new("i", total);
        let shape = &self.body.ty(self.id).shape;
        e.fix_terms(self.id, "product", vec![place::terms(&place::split(&base, 1, shape), shape)]);
        let (code, ()) = e.writing_block(&base, |e| {
            let mut stores = String::new();
            for (output, &id) in self.body.results.iter().enumerate() {
                let place = place::split(&base, 1, &self.body.ty(id).shape);
                let value = e.value(id, &place)?;
                stores.push_str(&e.module.store(output, "i", &value));
            }
            e.code.push_str(&stores);
            Ok(())
        })?;
        let _ = write!(e.module.items, "fn finish(i: u32, product: f32) {{\n{code}}}\n");
        Ok(())
    }

    /// Code that copies one element of an operand for each thread to shared memory, by the order in which they are
    /// in memory.
    fn copy(&self, e: &mut Emitter, operand: usize, piece: usize) -> Result<String, String> {
        let MatMulDims { m, n, k, .. } = self.dims;
        let side = self.tile * SIDE;
        let (name, first, count, along_k) = match operand {
            0 => ("a", "first_row", m, !self.dims.transpose_a),
            _ => ("b", "first_column", n, self.dims.transpose_b),
        };
        let (line, depth) = match along_k {
            true => (format!("e / {STEP}u"), format!("e % {STEP}u")),
            false => (format!("e % {side}u"), format!("e / {side}u")),
        };
        let at = format!("at_{name}{piece}");
        let (code, value) = e.block(|e| {
            let place = self.operand_place(operand, &format!("{at}_line"), &format!("{at}_k"));
            e.value(self.operands[operand], &place)
        })?;
        // Beyond the end of the summed dimension nothing may come in, not even NaN.
        let mut text = format!(
            "{{\nlet e = local + {}u;\nlet line = {line};\nlet depth = {depth};\n\
             let {at}_line = min({first} + line, {}u);\nlet {at}_k = min(k + depth, {}u);\n{code}",
            piece * THREADS,
            count - 1,
            k.saturating_sub(1),
        );
        let value = match k % STEP {
            0 => value,
            _ => format!("select(0.0, {value}, k + depth < {k}u)"),
        };
        let _ = writeln!(text, "shared_{name}[depth * {side}u + line] = {value};\n}}");
        Ok(text)
    }

    /// The place in an operand: row or column of the product, and number along the summed dimension.
    fn operand_place(&self, operand: usize, line: &str, k: &str) -> Place {
        let shape = &self.body.ty(self.operands[operand]).shape;
        let of = |size: usize, text: &str| if size == 1 { Index::Zero } else { Index::text(text) };
        let batch_rank = shape.rank() - 2;
        let base = Base::new("batch", self.dims.batch.iter().product());
        let batch = meganeura_core::Shape::new(&self.dims.batch).unwrap_or_else(|_| meganeura_core::Shape::scalar());
        let whole = place::split(&base, 1, &batch);
        let own = meganeura_core::Shape::new(&shape[..batch_rank]).unwrap_or_else(|_| meganeura_core::Shape::scalar());
        let mut found = place::broadcast(&whole, &own);
        let (lines, depth) = match operand {
            0 => (self.dims.m, self.dims.transpose_a),
            _ => (self.dims.n, !self.dims.transpose_b),
        };
        let pair = [of(lines, line), of(self.dims.k, k)];
        // The summed dimension comes last unless the operand is stored the other way.
        match depth {
            true => found.extend([pair[1].clone(), pair[0].clone()]),
            false => found.extend(pair),
        }
        found
    }

    /// Code that goes over the step in shared memory.
    fn multiply(&self) -> String {
        let side = self.tile * SIDE;
        let mut code = format!("for (var d = 0u; d < {STEP}u; d += 1u) {{\n");
        for i in 0..self.tile {
            let _ = write!(
                code,
                "let a_{i} = shared_a[d * {side}u + y + {0}u];\nlet b_{i} = shared_b[d * {side}u + x + {0}u];\n",
                i * SIDE
            );
        }
        for (i, j) in self.pairs() {
            let _ = writeln!(code, "sum_{i}_{j} = fma(a_{i}, b_{j}, sum_{i}_{j});");
        }
        code.push_str("}\n");
        code
    }
}

/// Whether a product of these types can be computed.
pub(super) fn check(call: &Call) -> Result<(), String> {
    match call.inputs.iter().find(|t| scalar::wgsl_type(t.dtype) != "f32") {
        None => Ok(()),
        Some(ty) => Err(format!("there is no matrix product of {ty}")),
    }
}
