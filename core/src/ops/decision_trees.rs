//! Traversal of decision trees.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, RefCall, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct DecisionTrees;

/// Bit of a node's feature that is set if NaN counts as true.
pub const NAN_IS_TRUE: u32 = 1 << 31;

/// Checks a call, and returns the shape of the result.
fn check(call: &Call) -> Result<[usize; 2], String> {
    let [x, roots, features, thresholds, children] = [0, 1, 2, 3, 4].map(|i| &call.inputs[i]);
    let (&[rows, width], &[trees], &[nodes]) = (x.shape.dims(), roots.shape.dims(), features.shape.dims()) else {
        return Err(format!(
            "expected examples [rows, features], roots [trees] and features of nodes [nodes], found {x}, {roots} and {features}"
        ));
    };
    if width == 0 || nodes == 0 {
        return Err(format!(
            "expected at least one feature and one node, found {width} and {nodes}"
        ));
    }
    if thresholds.shape.dims() != [nodes] || children.shape.dims() != [nodes, 2] {
        return Err(format!(
            "expected thresholds [{nodes}] and children [{nodes}, 2], found {thresholds} and {children}"
        ));
    }
    let wanted = [DType::F32, DType::U32, DType::U32, DType::F32, DType::U32];
    if call.inputs.iter().zip(wanted).any(|(ty, dtype)| ty.dtype != dtype) {
        return Err(format!(
            "expected f32, u32, u32, f32 and u32, found {x}, {roots}, {features}, {thresholds} and {children}"
        ));
    }
    // Kernels number the children of all nodes with u32.
    if u32::try_from(2 * nodes).is_err() {
        return Err(format!("expected at most {} nodes, found {nodes}", u32::MAX / 2));
    }
    Ok([rows, trees])
}

fn reference(call: &RefCall) -> Vec<f64> {
    let [x, roots, features, thresholds, children] = [0, 1, 2, 3, 4].map(|i| &call.inputs[i].data);
    let width = call.inputs[0].ty.shape[1];
    let (depth, is_strict) = (call.int("depth"), call.bool("strict"));
    let last = features.len() - 1;
    let mut leaves = Vec::new();
    for row in x.chunks_exact(width) {
        for &root in roots.iter() {
            let mut at = (root as usize).min(last);
            for _ in 0..depth {
                let word = features[at] as u32;
                let value = row[((word & !NAN_IS_TRUE) as usize).min(width - 1)];
                let is_true = match (value.is_nan(), is_strict) {
                    (true, _) => word & NAN_IS_TRUE != 0,
                    (false, false) => value <= thresholds[at],
                    (false, true) => value < thresholds[at],
                };
                at = (children[2 * at + usize::from(is_true)] as usize).min(last);
            }
            leaves.push(at as f64);
        }
    }
    leaves
}

/// Gathers the test of each tree's node, level by level: "TreeTraversal" of Nakandala et al. (2020), "A Tensor Compiler for
/// Unified Machine Learning Prediction Serving".
fn decompose(
    g: &mut Graph,
    [x, roots, features, thresholds, children]: [Value; 5],
    depth: usize,
    is_strict: bool,
) -> Value {
    let (rows, width, nodes) = (g.shape(x)[0], g.shape(x)[1], g.shape(features)[0]);
    let trees = g.shape(roots)[0];
    let [last, last_feature, mask, shift, two] = [
        nodes as f64 - 1.0,
        width as f64 - 1.0,
        f64::from(!NAN_IS_TRUE),
        31.0,
        2.0,
    ]
    .map(|number| g.scalar_of(DType::U32, number));
    let children = g.reshape(children, &[2 * nodes]);
    let roots = g.minimum(roots, last);
    let roots = g.reshape(roots, &[1, trees]);
    let mut at = Value::from(g.expand(roots, &[rows, trees]));
    for _ in 0..depth {
        let word = g.gather(features, at);
        let feature = g.bit_and(word, mask);
        let feature = g.minimum(feature, last_feature);
        let value = g.take_along_axis(x, feature, 1);
        let threshold = g.gather(thresholds, at);
        let test = if is_strict {
            g.less_than(value, threshold)
        } else {
            g.less_equal(value, threshold)
        };
        let is_nan = g.not_equal(value, value);
        let of_nan = g.shift_right(word, shift);
        let is_true = g.select(is_nan, of_nan, test);
        let first = g.mul(at, two);
        let place = g.add(first, is_true);
        let child = g.gather(children, place);
        at = g.minimum(child, last).into();
    }
    at
}

impl Operator for DecisionTrees {
    fn name(&self) -> &'static str {
        "core.decision_trees"
    }

    fn signature(&self) -> String {
        "g.decision_trees(x, roots, features, thresholds, children, depth, strict)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x f32 [rows, features], roots u32 [trees], features u32 [nodes], thresholds f32 [nodes], children u32 [nodes, 2] -> u32 [rows, trees]",
            formula: "the node that each tree reaches for each row after depth steps from its root: from node i to children[i, 1] if x[row, features[i]] <= thresholds[i] (< if strict), else to children[i, 0]. Bit 31 of features[i] decides for NaN. A leaf is its own child. Indices beyond the end select the last element",
            source: "TreeEnsemble of ONNX (`ai.onnx.ml`)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("depth", AttrKind::Int), ("strict", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (depth, nodes) = (call.attrs.size("depth")?, call.inputs[2].numel());
        if depth > nodes {
            return Err(format!(
                "expected a depth of at most {nodes}, the number of nodes, found {depth}"
            ));
        }
        call.attrs.bool("strict")?;
        Ok(vec![TensorType::new(DType::U32, Shape::new(&check(call)?)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| vec![reference(call)],
            |cx| {
                let operands: [Value; 5] = cx.inputs.try_into().map_err(|_| "takes five operands")?;
                let (depth, is_strict) = (cx.attrs.size("depth")?, cx.attrs.bool("strict")?);
                Ok(vec![decompose(cx.graph, operands, depth, is_strict)])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        let depth = call.attrs.size("depth").unwrap_or(1) as u64;
        let steps = depth.saturating_mul(call.outputs[0].numel() as u64);
        Cost {
            flops: steps.saturating_mul(6),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 30);
        let cases = [
            ([1, 3, 1, 7], 3, false),
            ([1, 1, 1, 1], 0, false),
            ([40, 5, 9, 130], 4, true),
            ([s[0], s[1], s[2], 60], 5, false),
        ];
        let mut samples = Vec::new();
        for ([rows, features, trees, nodes], depth, is_strict) in cases {
            // Random words also have the bit for NaN, and indices beyond the end.
            for words in [features, u32::MAX as usize] {
                let inputs = vec![
                    SampleInput::f32(&[rows, features]),
                    SampleInput::below(&[trees], nodes + 1),
                    SampleInput::below(&[nodes], words),
                    SampleInput::f32(&[nodes]),
                    SampleInput::below(&[nodes, 2], nodes + 1),
                ];
                let label = format!("[{rows}, {features}], {trees} trees, {nodes} nodes, features below {words}");
                let attrs = Attrs::new().with("depth", depth as usize).with("strict", is_strict);
                samples.push(Sample::new(label, inputs, attrs));
            }
        }
        samples
    }
}

impl Graph {
    /// Returns the leaf that each decision tree reaches for each row of `x`, `f32 [rows, features]`, as `u32 [rows, trees]`.
    ///
    /// `roots`, `u32 [trees]`, are the first nodes. Node `i` compares feature `features[i]`, `u32 [nodes]`, with
    /// `thresholds[i]`, `f32 [nodes]`: if it is at most the threshold (below it if `strict`), the next node is `children[i,
    /// 1]`, else `children[i, 0]`, `u32 [nodes, 2]`. If the feature is NaN, bit 31 of `features[i]` counts instead of the
    /// comparison. A leaf is its own child; `depth` is the number of steps. Indices beyond the end select the last element. No
    /// gradient flows.
    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "the tables of the nodes")]
    pub fn decision_trees(
        &mut self,
        x: impl Into<Value>,
        roots: impl Into<Value>,
        features: impl Into<Value>,
        thresholds: impl Into<Value>,
        children: impl Into<Value>,
        depth: usize,
        strict: bool,
    ) -> NodeId {
        let operands = vec![
            x.into(),
            roots.into(),
            features.into(),
            thresholds.into(),
            children.into(),
        ];
        let attrs = Attrs::new().with("depth", depth).with("strict", strict);
        self.call(OpRef::new(&DecisionTrees), attrs, operands)
    }
}
