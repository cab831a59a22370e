//! Maximum pooling of images in channels-last layout: replaces [`MaxPool2d`](super::pool2d) if the
//! offsets of the maxima are not used.

use super::channels_last::{TO_NCHW, TO_NHWC};
use super::conv2d::ImageLayout;
use super::pool2d::{MaxPool2d, Pool2dDims, cases, cost, dims, window_attributes, y_type};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::dtype::DType;
use crate::shape::TensorType;

pub(super) struct MaxPool2dNhwc;

const LAYOUT: ImageLayout = ImageLayout::Nhwc;

impl Operator for MaxPool2dNhwc {
    fn name(&self) -> &'static str {
        "core.max_pool2d_nhwc"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch, height, width, channels] -> [batch, out height, out width, channels]; sizes as in max_pool2d",
            formula: "largest element of each window of a channel; NaN before all numbers",
            source: "max pooling",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        window_attributes()
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        Ok(vec![y_type(LAYOUT, &call.inputs[0], call.attrs)?])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let x = call.inputs[0];
                let dims: Pool2dDims = dims(LAYOUT, call, x.shape());
                let mut most = vec![f64::NEG_INFINITY; call.outputs[0].numel()];
                dims.for_each_pair(|i, y| {
                    let value = x.data[i];
                    if value > most[y] || value.is_nan() {
                        most[y] = value;
                    }
                });
                vec![most]
            },
            |cx| {
                let x = cx.graph.permute(cx.inputs[0], &TO_NCHW);
                let y = cx.graph.call(OpRef::new(&MaxPool2d), cx.attrs.clone(), vec![x.into()]);
                Ok(vec![cx.graph.permute(y, &TO_NHWC).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        cost(call)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let samples = cases(sizes).into_iter().map(|(x, options)| {
            let x = LAYOUT.of_nchw(x);
            let input = SampleInput::filled(DType::F32, &x, Fill::Distinct);
            Sample::new(format!("{x:?} {}", options.attrs()), vec![input], options.attrs())
        });
        samples.collect()
    }
}
