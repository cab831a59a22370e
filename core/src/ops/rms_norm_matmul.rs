//! Matrix products with a root-mean-square normalisation as their prologue.

use super::matmul::MatMul;
use super::quantized::QuantizedMatMul;
use super::rms_norm::{self, RmsNorm};
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::attrs::Attrs;
use crate::graph::Value;
use crate::shape::TensorType;

pub(super) struct RmsNormMatMul;
pub(super) struct RmsNormQuantizedMatMul;

/// Returns the attributes of a product without transposition.
fn plain() -> Attrs {
    Attrs::new().with("transpose_a", false).with("transpose_b", false)
}

/// Returns the types of the results of `product` after a normalisation, and of the rstd.
fn infer(call: &Call, product: &dyn Operator, attrs: &Attrs) -> Result<Vec<TensorType>, String> {
    let [x, weight, matrix @ ..] = call.inputs else {
        return Err("takes rows, the norm's weight and a matrix".into());
    };
    let normalised = RmsNorm.infer(&Call {
        inputs: &[x.clone(), weight.clone()],
        ..*call
    })?;
    let [out, rstd] = <[TensorType; 2]>::try_from(normalised).map_err(|_| "has two results")?;
    let mut types = product.infer(&Call {
        attrs,
        inputs: &[&[out], matrix].concat(),
        outputs: &[],
    })?;
    types.push(rstd);
    Ok(types)
}

/// Adds the normalisation of the first operand, and `product` of the result.
fn expand(cx: &mut Expansion, product: OpRef, attrs: Attrs) -> Result<Vec<Value>, String> {
    let [x, weight, matrix @ ..] = cx.inputs else {
        return Err("takes rows, the norm's weight and a matrix".into());
    };
    let rows = cx.graph.call(OpRef::new(&RmsNorm), cx.attrs.clone(), vec![*x, *weight]);
    let out = cx.graph.call(product, attrs, [&[rows.into()], matrix].concat());
    Ok(vec![out.into(), cx.graph.port(rows, 1)])
}

/// Returns the number of operations of a norm of `normed` elements and of the products that follow it.
fn flops(normed: u64, results: u64, others: u64) -> u64 {
    let products = results.saturating_mul(others).saturating_mul(2);
    normed.saturating_mul(4).saturating_add(products)
}

impl Operator for RmsNormMatMul {
    fn name(&self) -> &'static str {
        "core.rms_norm_matmul"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., m, k], weight [k], w [..., k, n] -> out [..., m, n], rstd [..., m, 1] as x",
            formula: "core.matmul of core.rms_norm(x, weight) and w; port 1 is the rstd of the normalisation",
            source: "the normalised rows are not written to memory; a rewrite introduces it where that is faster",
        }
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "rstd"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call, &MatMul, &plain())
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| expand(cx, OpRef::new(&MatMul), plain()))
    }

    fn cost(&self, call: &Call) -> Cost {
        let numel = |i: usize| call.inputs.get(i).map_or(0, |t| t.numel() as u64);
        let results = call.outputs.first().map_or(0, |t| t.numel() as u64);
        Cost {
            flops: flops(numel(0), results, numel(1)),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = sizes.shape(3, 40);
        [vec![1, 7], vec![4, 33], vec![2, 3, 64], varied]
            .iter()
            .map(|s| {
                let (k, n) = (s[s.len() - 1], sizes.dim(40));
                let attrs = Attrs::new().with("eps", rms_norm::sample_eps(k));
                let inputs = [s.as_slice(), &[k], &[k, n]].map(SampleInput::f32).to_vec();
                Sample::new(format!("{s:?} times [{k}, {n}]"), inputs, attrs)
            })
            .collect()
    }
}

impl Operator for RmsNormQuantizedMatMul {
    fn name(&self) -> &'static str {
        "core.rms_norm_quantized_matmul"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., m, k], weight [k], matrix [n, k], or words [n, ...] and scales [n, ...] as core.dequantize has them -> out [..., m, n], rstd [..., m, 1] as x",
            formula: "core.quantized_matmul of core.rms_norm(x, weight) and the matrix; port 1 is the rstd of the normalisation",
            source: "as core.rms_norm_matmul",
        }
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn arity(&self) -> Arity {
        Arity::Between(3, 4)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("eps", AttrKind::Float)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["out", "rstd"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call, &QuantizedMatMul, &Attrs::new())
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| expand(cx, OpRef::new(&QuantizedMatMul), Attrs::new()))
    }

    fn cost(&self, call: &Call) -> Cost {
        let numel = |t: Option<&TensorType>| t.map_or(0, |t| t.numel() as u64);
        let wide = call.inputs.get(1).map_or(0, |t| t.numel() as u64);
        Cost {
            flops: flops(numel(call.inputs.first()), wide, numel(call.outputs.first())),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let with_norm = |sample: Sample| {
            let rows = &sample.inputs[0].shape;
            let k = rows[rows.len() - 1];
            let attrs = Attrs::new().with("eps", rms_norm::sample_eps(k));
            Sample {
                attrs,
                ..sample.with_second(SampleInput::f32(&[k]))
            }
        };
        QuantizedMatMul.samples(sizes).into_iter().map(with_norm).collect()
    }
}
