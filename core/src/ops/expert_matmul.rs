//! Products with a matrix chosen for each row: the linear layers of mixtures of experts.

use super::quantized::{expanded, packed};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::quantization::{BLOCK, BlockFormat};
use crate::shape::{Shape, TensorType};

pub(super) struct ExpertMatMul;
pub(super) struct ExpertMatMulWeightGrad;
pub(super) struct QuantizedExpertMatMul;

/// Sizes of a [`Graph::expert_matmul`] and of its derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertDims {
    /// Number of rows. Each one is multiplied by the matrix of one expert.
    pub rows: usize,
    /// Number of experts, each with one matrix.
    pub experts: usize,
    /// Number of columns of the result.
    pub n: usize,
    /// Size of the summed dimension. For the derivative with respect to the matrices: number of columns of the second
    /// operand.
    pub k: usize,
    /// `true` if the matrices are stored `[n, k]`, not `[k, n]`.
    pub transpose_b: bool,
    /// Format of the matrices; `None` if they are plain floating-point numbers.
    pub format: Option<BlockFormat>,
}

impl ExpertDims {
    /// Reads the sizes of a `core.expert_matmul` or a `core.quantized_expert_matmul`.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let (x, indices, format, weight) = match call.inputs {
            [x, indices, weight] => (x, indices, None, weight.clone()),
            [x, indices, words, scales] => {
                let (format, weight) = expanded(words, scales)?;
                (x, indices, Some(format), weight)
            }
            _ => return Err("takes rows, their experts and weights, which may be words and scales".into()),
        };
        expect_indices(indices)?;
        // A call with packed weights has no attributes.
        let transpose_b = call.attrs.bool("transpose_b").unwrap_or(true);
        let &[experts, first, second] = weight.shape.dims() else {
            return Err(format!(
                "the weights must be a matrix for each expert, [experts, n, k], but are {weight}"
            ));
        };
        let (n, k) = if transpose_b { (first, second) } else { (second, first) };
        let [leading @ .., wide] = x.shape.dims() else {
            return Err(format!("the rows {x} need an axis"));
        };
        let of_rows = indices.shape.dims();
        if *wide != k {
            return Err(format!(
                "the rows {x} have {wide} columns, the matrices of {weight} take {k}"
            ));
        }
        expect_one_each(x, leading, indices, of_rows)?;
        let rows = of_rows.iter().product();
        Ok(ExpertDims {
            rows,
            experts,
            n,
            k,
            transpose_b,
            format,
        })
    }

    /// Reads the sizes of a `core.expert_matmul_weight_grad`.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of_weight_grad(call: &Call) -> Result<Self, String> {
        let [a, indices, b] = call.inputs else {
            return Err("takes rows, their experts and other rows".into());
        };
        expect_indices(indices)?;
        let mut columns = [0; 2];
        for (x, columns) in [a, b].into_iter().zip(&mut columns) {
            let [leading @ .., wide] = x.shape.dims() else {
                return Err(format!("the rows {x} need an axis"));
            };
            expect_one_each(x, leading, indices, indices.shape.dims())?;
            *columns = *wide;
        }
        Ok(ExpertDims {
            rows: indices.numel(),
            experts: call.attrs.size("experts")?,
            n: columns[0],
            k: columns[1],
            transpose_b: true,
            format: None,
        })
    }

    /// Returns the work of a call: each row is multiplied by one matrix, and at most one matrix is read for each row.
    /// `weights` are the operands with the matrices.
    fn cost(&self, call: &Call, weights: std::ops::Range<usize>) -> Cost {
        let streaming = Cost::streaming(call, 0).bytes;
        let all: u64 = call.inputs[weights]
            .iter()
            .map(|ty| ty.bytes() as u64)
            .fold(0, u64::saturating_add);
        let read = match self.experts {
            0 => 0,
            experts => (all / experts as u64).saturating_mul(experts.min(self.rows) as u64),
        };
        let products = (self.rows as u64).saturating_mul(self.n as u64);
        Cost {
            flops: products.saturating_mul(2 * self.k as u64),
            bytes: streaming.saturating_sub(all).saturating_add(read),
        }
    }
}

fn expect_indices(indices: &TensorType) -> Result<(), String> {
    match indices.dtype {
        DType::U32 => Ok(()),
        _ => Err(format!("the experts of the rows must be u32, not {indices}")),
    }
}

/// Checks that there is one expert index for each row.
fn expect_one_each(x: &TensorType, leading: &[usize], indices: &TensorType, of_rows: &[usize]) -> Result<(), String> {
    if leading == of_rows {
        Ok(())
    } else {
        Err(format!(
            "the rows {x} need one expert each: {indices} must have all axes of the rows but the last"
        ))
    }
}

/// Returns the shape of the rows with another number of columns.
fn with_columns(x: &TensorType, columns: usize) -> Result<Shape, String> {
    let rows = &x.shape[..x.shape.rank() - 1];
    Shape::new(&[rows, &[columns]].concat())
}

/// Checks that the two multiplied operands have one element type.
fn expect_same_float(call: &Call, [a, b]: [usize; 2]) -> Result<(), String> {
    expect_float(call, a, "the rows")?;
    if call.inputs[a].dtype == call.inputs[b].dtype {
        Ok(())
    } else {
        Err(format!(
            "the operands {} and {} have different element types; use `cast` to convert one",
            call.inputs[a], call.inputs[b]
        ))
    }
}

impl Operator for ExpertMatMul {
    fn name(&self) -> &'static str {
        "core.expert_matmul"
    }

    fn signature(&self) -> String {
        "g.expert_matmul(x, experts, weight)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [i..., k], experts [i...] (u32), weight [e, n, k] ([e, k, n] without transpose_b), in the dtype of x -> [i..., n]",
            formula: "y[i..., :] = weight[experts[i...]] x[i..., :], with the matrix transposed without transpose_b; an index that is no expert is an error of the step",
            source: "the expert layers of Shazeer et al., 2017 (\"Outrageously Large Neural Networks\"); grouped GEMM, as in Gale et al., 2022 (MegaBlocks)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("transpose_b", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        call.attrs.bool("transpose_b")?;
        let dims = ExpertDims::of(call)?;
        expect_same_float(call, [0, 2])?;
        let x = &call.inputs[0];
        Ok(vec![TensorType::new(x.dtype, with_columns(x, dims.n)?)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, ExpertDims::of(call).ok()?.experts))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let transpose_b = cx.attrs().bool("transpose_b")?;
            let (x, experts, weight) = (cx.operand(0), cx.operand(1), cx.operand(2));
            let count = cx.shape(weight).first().copied().unwrap_or(0);
            let dy = cx.grad(0);
            let dx = cx
                .needs(0)
                .then(|| cx.expert_matmul_with(dy, experts, weight, !transpose_b).into());
            let dw = cx.needs(2).then(|| {
                let (rows, columns) = if transpose_b { (dy, x) } else { (x, dy) };
                cx.expert_matmul_weight_grad(rows, experts, columns, count).into()
            });
            Ok(vec![dx, None, dw])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let (x, indices, weight) = (call.inputs[0], call.inputs[1], call.inputs[2]);
                let transpose_b = call.bool("transpose_b");
                let (experts, size) = (weight.shape()[0], weight.shape()[1] * weight.shape()[2]);
                let n = weight.shape()[if transpose_b { 1 } else { 2 }];
                let k = weight.shape()[if transpose_b { 2 } else { 1 }];
                let mut out = Vec::new();
                for (row, &expert) in indices.data.iter().enumerate() {
                    for j in 0..n {
                        let terms = (0..k).map(|p| {
                            let at = if transpose_b { j * k + p } else { p * n + j };
                            x.data[row * k + p] * weight.data[expert as usize * size + at]
                        });
                        let is_one = (expert as usize) < experts;
                        out.push(if is_one { terms.sum() } else { f64::NAN });
                    }
                }
                vec![out]
            },
            |cx| {
                let &[x, experts, weight] = cx.inputs else {
                    return Err("takes rows, their experts and weights".into());
                };
                let transpose_b = cx.attrs.bool("transpose_b")?;
                let dims = cx.with_call(ExpertDims::of)?;
                let shape = cx.outputs[0].shape.to_vec();
                let g = &mut *cx.graph;
                let experts = g.reshape(experts, &[dims.rows]);
                let weight = g.gather(weight, experts);
                let x = g.reshape(x, &[dims.rows, 1, dims.k]);
                let y = g.matmul_with(x, weight, false, transpose_b);
                Ok(vec![g.reshape(y, &shape).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        ExpertDims::of(call).map_or(Cost::default(), |dims| dims.cost(call, 2..3))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = (vec![sizes.dim(70)], sizes.dim(9), sizes.dim(40), sizes.dim(70));
        let shapes = [
            (vec![1], 1, 1, 1),
            (vec![3], 4, 5, 7),
            (vec![2, 3], 2, 33, 16),
            (vec![], 3, 4, 2),
            // Experts without rows, and one expert with all rows.
            (vec![9], 40, 6, 35),
            // More rows of one expert than kernels multiply at a time.
            (vec![140], 1, 18, 21),
            (vec![150], 3, 70, 65),
            varied,
        ];
        let mut samples = Vec::new();
        for (rows, experts, n, k) in shapes {
            for transpose_b in [true, false] {
                let weight = if transpose_b { [experts, n, k] } else { [experts, k, n] };
                let label = format!("{rows:?} rows by {weight:?}, transposed: {transpose_b}");
                let inputs = vec![
                    SampleInput::f32(&[&rows[..], &[k]].concat()),
                    SampleInput::below(&rows, experts),
                    SampleInput::f32(&weight),
                ];
                samples.push(Sample::new(
                    label,
                    inputs,
                    Attrs::new().with("transpose_b", transpose_b),
                ));
            }
        }
        samples
    }
}

impl Operator for ExpertMatMulWeightGrad {
    fn name(&self) -> &'static str {
        "core.expert_matmul_weight_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "a [i..., n], experts [i...] (u32), b [i..., k] in the dtype of a -> [experts, n, k]",
            formula: "y[e, :, :] = sum of the products a[i..., :] b[i..., :]^T over all i... with experts[i...] = e, 0 without any; an index >= experts is an error of the step",
            source: "the derivative of core.expert_matmul by its weight",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("experts", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dims = ExpertDims::of_weight_grad(call)?;
        expect_same_float(call, [0, 2])?;
        let shape = Shape::new(&[dims.experts, dims.n, dims.k])?;
        Ok(vec![TensorType::new(call.inputs[0].dtype, shape)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, call.attrs.size("experts").ok()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (a, experts, b) = (cx.operand(0), cx.operand(1), cx.operand(2));
            let dy = cx.grad(0);
            let da = cx.needs(0).then(|| cx.expert_matmul_with(b, experts, dy, true).into());
            let db = cx.needs(2).then(|| cx.expert_matmul_with(a, experts, dy, false).into());
            Ok(vec![da, None, db])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let (a, indices, b) = (call.inputs[0], call.inputs[1], call.inputs[2]);
                let [experts, n, k] = [0, 1, 2].map(|axis| call.outputs[0].shape[axis]);
                let mut out = vec![0.0; experts * n * k];
                for (row, &expert) in indices.data.iter().enumerate() {
                    let Some(sum) = out.get_mut(expert as usize * n * k..(expert as usize + 1) * n * k) else {
                        continue;
                    };
                    for (at, sum) in sum.iter_mut().enumerate() {
                        *sum += a.data[row * n + at / k] * b.data[row * k + at % k];
                    }
                }
                vec![out]
            },
            |cx| {
                let &[a, experts, b] = cx.inputs else {
                    return Err("takes rows, their experts and other rows".into());
                };
                let dims = cx.with_call(ExpertDims::of_weight_grad)?;
                let g = &mut *cx.graph;
                let experts = g.reshape(experts, &[dims.rows]);
                let a = g.reshape(a, &[dims.rows, dims.n, 1]);
                let b = g.reshape(b, &[dims.rows, 1, dims.k]);
                let products = g.mul(a, b);
                Ok(vec![g.scatter_add(products, experts, dims.experts).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        let k = ExpertDims::of_weight_grad(call).map_or(0, |dims| dims.k as u64);
        Cost {
            flops: (2 * k).saturating_mul(call.inputs[0].numel() as u64),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = (vec![sizes.dim(70)], sizes.dim(9), sizes.dim(40), sizes.dim(70));
        let shapes = [
            (vec![1], 1, 1, 1),
            (vec![3], 4, 5, 7),
            (vec![2, 3], 2, 33, 16),
            (vec![], 3, 4, 2),
            (vec![9], 40, 6, 35),
            (vec![140], 1, 10, 9),
            (vec![150], 3, 70, 65),
            varied,
        ];
        let sample = |(rows, experts, n, k): (Vec<usize>, usize, usize, usize)| {
            let inputs = vec![
                SampleInput::f32(&[&rows[..], &[n]].concat()),
                SampleInput::below(&rows, experts),
                SampleInput::f32(&[&rows[..], &[k]].concat()),
            ];
            let label = format!("{rows:?} rows of {n} and {k} for {experts} experts");
            Sample::new(label, inputs, Attrs::new().with("experts", experts))
        };
        shapes.into_iter().map(sample).collect()
    }
}

impl Operator for QuantizedExpertMatMul {
    fn name(&self) -> &'static str {
        "core.quantized_expert_matmul"
    }

    fn signature(&self) -> String {
        "g.quantized_expert_matmul(x, experts, weight, scales)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x f32 [i..., k], experts [i...] (u32), weight (any float) [e, n, k], or words [e, n, ...] and scales [e, n, ...] as core.dequantize has them -> f32 [i..., n]",
            formula: "core.expert_matmul of x and the weight, which is converted to f32, or dequantized, inside the kernel; an index that is no expert is an error of the step",
            source: "core.quantized_matmul for mixtures of experts",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Between(3, 4)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dims = ExpertDims::of(call)?;
        let (x, weight) = (&call.inputs[0], &call.inputs[2]);
        if x.dtype != DType::F32 {
            return Err(format!("the rows must be f32, not {x}; use `cast` to convert them"));
        }
        if dims.format.is_none() && !weight.dtype.is_float() {
            return Err(format!("weights without scales must be floating point, not {weight}"));
        }
        Ok(vec![TensorType::new(DType::F32, with_columns(x, dims.n)?)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((1, ExpertDims::of(call).ok()?.experts))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let weight = match *cx.inputs {
                [_, _, weight] => cx.graph.cast(weight, DType::F32),
                [_, _, words, scales] => cx.graph.dequantize(words, scales),
                _ => return Err("takes rows, their experts and weights".into()),
            };
            Ok(vec![cx.graph.expert_matmul(cx.inputs[0], cx.inputs[1], weight).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        ExpertDims::of(call).map_or(Cost::default(), |dims| dims.cost(call, 2..call.inputs.len()))
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        let varied = (vec![sizes.dim(40)], sizes.dim(9), sizes.dim(40), 1 + sizes.below(4));
        let shapes = [
            (vec![1], 1, 1, 1),
            (vec![1], 3, 67, 3),
            (vec![2, 3], 4, 5, 2),
            (vec![8], 20, 32, 9),
            (vec![70], 2, 33, 3),
            (vec![140], 1, 5, 1),
            varied,
        ];
        for (rows, experts, n, blocks) in shapes {
            let k = BLOCK * blocks;
            let x = SampleInput::f32(&[&rows[..], &[k]].concat());
            let indices = SampleInput::below(&rows, experts);
            let label = format!("{rows:?} rows of {k} by [{experts}, {n}]");
            for format in BlockFormat::ALL {
                let [words, scales] = packed(&[experts, n, blocks], format);
                let inputs = vec![x.clone(), indices.clone(), words, scales];
                samples.push(Sample {
                    // Kernels may round rows to integers: the error is relative to the numbers of a
                    // row, not to a result in which they cancel out.
                    tolerance: 5e-5,
                    ..Sample::new(format!("{label} of {format:?}"), inputs, Attrs::new())
                });
            }
            for dtype in [DType::F16, DType::BF16] {
                let weight = SampleInput::filled(dtype, &[experts, n, k], Fill::Below(200));
                let inputs = vec![x.clone(), indices.clone(), weight];
                samples.push(Sample::new(format!("{label} of {dtype}"), inputs, Attrs::new()));
            }
        }
        samples
    }
}

impl Graph {
    #[track_caller]
    fn expert_matmul_with(&mut self, x: Value, experts: Value, weight: Value, transpose_b: bool) -> NodeId {
        let attrs = Attrs::new().with("transpose_b", transpose_b);
        self.call(OpRef::new(&ExpertMatMul), attrs, vec![x, experts, weight])
    }

    #[track_caller]
    fn expert_matmul_weight_grad(&mut self, a: Value, experts: Value, b: Value, count: usize) -> NodeId {
        let attrs = Attrs::new().with("experts", count);
        self.call(OpRef::new(&ExpertMatMulWeightGrad), attrs, vec![a, experts, b])
    }

    /// Multiplies each row of `x [..., k]` by the transposed matrix of one expert, `-> [..., n]`.
    /// `weight [experts, n, k]` contains the matrices, `experts [...]` (`u32`) the expert of each row. `x` and `weight`
    /// have one floating-point dtype, and gradients flow to both. An index that is not an expert is an error of the
    /// step.
    #[track_caller]
    pub fn expert_matmul(
        &mut self,
        x: impl Into<Value>,
        experts: impl Into<Value>,
        weight: impl Into<Value>,
    ) -> NodeId {
        self.expert_matmul_with(x.into(), experts.into(), weight.into(), true)
    }

    /// Computes [`Graph::expert_matmul`] of `x f32 [..., k]` with weights in any float type,
    /// `[experts, n, k]`, or with `scales` the words of [`Graph::dequantize`]. The weights are
    /// dequantized within the product, and only those of selected experts are read. Gradients flow
    /// to `x` and to the floating-point operands.
    #[track_caller]
    pub fn quantized_expert_matmul(
        &mut self,
        x: impl Into<Value>,
        experts: impl Into<Value>,
        weight: impl Into<Value>,
        scales: Option<Value>,
    ) -> NodeId {
        let mut operands = vec![x.into(), experts.into(), weight.into()];
        operands.extend(scales);
        self.call(OpRef::new(&QuantizedExpertMatMul), Attrs::new(), operands)
    }
}
