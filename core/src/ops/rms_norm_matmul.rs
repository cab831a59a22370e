//! Root-mean-square normalisation as the prologue of matrix products.

use super::matmul::MatMul;
use super::quantized::QuantizedMatMul;
use super::rms_norm::{self, RmsNorm};
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::attrs::Attrs;
use crate::shape::TensorType;

pub(super) struct RmsNormMatMul;
pub(super) struct RmsNormQuantizedMatMul;

/// Attributes of the product.
fn plain() -> Attrs {
    Attrs::new().with("transpose_a", false).with("transpose_b", false)
}

impl Operator for RmsNormMatMul {
    fn name(&self) -> &'static str {
        "core.rms_norm_matmul"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., m, k], weight [k], w [..., k, n] -> out [..., m, n], rstd [..., m, 1] as x",
            formula: "core.matmul of core.rms_norm(x, weight) and w; port 1 is the rstd of the normalisation",
            source: "the normalised rows never leave the chip; a rewrite introduces it where a kernel makes that pay",
        }
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
        let [x, weight, w] = call.inputs else {
            return Err("takes three operands".into());
        };
        let normalised = RmsNorm.infer(&Call {
            inputs: &[x.clone(), weight.clone()],
            ..*call
        })?;
        let [out, rstd] = <[TensorType; 2]>::try_from(normalised).map_err(|_| "has two results")?;
        let mut types = MatMul.infer(&Call {
            attrs: &plain(),
            inputs: &[out, w.clone()],
            outputs: &[],
        })?;
        types.push(rstd);
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[x, weight, w] = cx.inputs else {
                return Err("takes three operands".into());
            };
            let rows = cx.graph.call(OpRef::new(&RmsNorm), cx.attrs.clone(), vec![x, weight]);
            let out = cx.graph.call(OpRef::new(&MatMul), plain(), vec![rows.into(), w]);
            Ok(vec![out.into(), cx.graph.port(rows, 1)])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let numel = |i: usize| call.inputs.get(i).map_or(0, |t| t.numel() as u64);
        let results = call.outputs.first().map_or(0, |t| t.numel() as u64);
        Cost {
            flops: 4 * numel(0) + 2 * results * numel(1),
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
            shapes: "x [..., m, k], weight [k], matrix [n, k], or words [n, ...] and scales [n, k / 32] as core.dequantize has them -> out [..., m, n], rstd [..., m, 1] as x",
            formula: "core.quantized_matmul of core.rms_norm(x, weight) and the matrix; port 1 is the rstd of the normalisation",
            source: "as core.rms_norm_matmul",
        }
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
        let [x, weight, matrix @ ..] = call.inputs else {
            return Err("takes rows, the norm's weight and a matrix".into());
        };
        let normalised = RmsNorm.infer(&Call {
            inputs: &[x.clone(), weight.clone()],
            ..*call
        })?;
        let [out, rstd] = <[TensorType; 2]>::try_from(normalised).map_err(|_| "has two results")?;
        let mut types = QuantizedMatMul.infer(&Call {
            attrs: &Attrs::new(),
            inputs: &[&[out], matrix].concat(),
            outputs: &[],
        })?;
        types.push(rstd);
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let [x, weight, matrix @ ..] = cx.inputs else {
                return Err("takes rows, the norm's weight and a matrix".into());
            };
            let rows = cx.graph.call(OpRef::new(&RmsNorm), cx.attrs.clone(), vec![*x, *weight]);
            let operands = [&[rows.into()], matrix].concat();
            let out = cx.graph.call(OpRef::new(&QuantizedMatMul), Attrs::new(), operands);
            Ok(vec![out.into(), cx.graph.port(rows, 1)])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let numel = |t: Option<&TensorType>| t.map_or(0, |t| t.numel() as u64);
        let wide = call.inputs.get(1).map_or(0, |t| t.numel() as u64);
        Cost {
            flops: 4 * numel(call.inputs.first()) + 2 * wide * numel(call.outputs.first()),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let with_norm = |sample: Sample| {
            let k = *sample.inputs[0].shape.last()?;
            let mut inputs = sample.inputs;
            inputs.insert(1, SampleInput::f32(&[k]));
            let attrs = Attrs::new().with("eps", rms_norm::sample_eps(k));
            Some(Sample::new(sample.label, inputs, attrs))
        };
        QuantizedMatMul
            .samples(sizes)
            .into_iter()
            .filter_map(with_norm)
            .collect()
    }
}
