//! Several calls fused into one.

use super::rms_norm::sample_eps;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::ops::registered;
use crate::program::{Program, Slot, Step};
use crate::shape::TensorType;

pub(super) struct Fused;

/// The operator that runs a [`Program`], its attribute `program`. A program contains several calls that run in one
/// kernel.
pub const FUSED: OpRef = OpRef::new(&Fused);

impl Operator for Fused {
    fn name(&self) -> &'static str {
        "core.fused"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "as many operands as the program takes -> what the program yields",
            formula: "the calls of the program one after the other",
            source: "Meganeura's own: what clustering makes of neighbouring calls",
        }
    }

    fn arity(&self) -> Arity {
        Arity::AtLeast(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("program", AttrKind::Program)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let program = call.attrs.program("program")?;
        let steps = program.infer(call.inputs)?;
        let results = program.results().iter();
        Ok(results
            .map(|&r| program.type_of(r, call.inputs, &steps).clone())
            .collect())
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let program = cx.attrs.program("program")?.clone();
            Ok(program.build(cx.graph, cx.inputs))
        })
    }

    /// Counts the operations of all steps, but the memory traffic of operands and results only.
    fn cost(&self, call: &Call) -> Cost {
        Cost {
            // A call whose operands do not match has no cost here; type inference rejects it.
            flops: flops(call).unwrap_or(0),
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        samples(sizes)
    }
}

/// Returns the work of all steps of a call's program.
///
/// # Errors
/// Operands that do not match.
pub(super) fn flops(call: &Call) -> Result<u64, String> {
    let program = call.attrs.program("program")?;
    let types = program.infer(call.inputs)?;
    let steps = program.steps().iter().zip(&types).map(|(step, outputs)| {
        let step_call = Call {
            attrs: &step.attrs,
            inputs: &program.inputs_of(step, call.inputs, &types),
            outputs,
        };
        step.op.cost(&step_call).flops
    });
    Ok(steps.fold(0, u64::saturating_add))
}

/// Builder of programs for samples.
struct ProgramBuilder {
    steps: Vec<Step>,
}

/// Returns an operand of a sample's program.
const fn operand(i: u32) -> Slot {
    Slot::Operand(i)
}

impl ProgramBuilder {
    fn new() -> Self {
        ProgramBuilder { steps: Vec::new() }
    }

    /// Adds a call of an operator of this crate.
    fn call(&mut self, name: &str, attrs: Attrs, inputs: &[Slot]) -> Slot {
        let at = self.steps.len() as u32;
        // All names below are operators of this crate. An unknown name would be skipped, and tests
        // would notice.
        if let Some(op) = registered::op(name) {
            self.steps.push(Step {
                op,
                attrs,
                inputs: inputs.to_vec(),
            });
        }
        Slot::Step(at)
    }

    fn of(&mut self, name: &str, inputs: &[Slot]) -> Slot {
        self.call(name, Attrs::new(), inputs)
    }

    /// Returns the sample of the program with these results, if there is such a program.
    fn sample(self, label: &str, inputs: Vec<SampleInput>, results: &[Slot]) -> Option<Sample> {
        let program = Program::new(inputs.len(), self.steps, results.to_vec()).ok()?;
        Some(Sample::new(label, inputs, Attrs::new().with("program", program)))
    }
}

fn samples(sizes: &mut Sizes) -> Vec<Sample> {
    let [m, k, n] = [sizes.dim(40), sizes.dim(30), sizes.dim(50)];
    let mut all = vec![bias_and_activation(m, n), gradient_of_relu(m, n)];
    all.extend([[m, k, n], [1, 5, 7]].map(product_with_bias));
    // One row, few rows, and more rows than a kernel recomputes for every column; long sums that
    // are split.
    for [m, k, n] in [[1, k, n], [3, 70, 33], [40, k, n], [1, 2500, 5]] {
        all.extend([product_of_a_gate([m, k, n]), packed_product_of_a_gate([m, k, n])]);
    }
    all.push(transposed_sum(m, n));
    all.extend([vec![0], vec![1], vec![0, 1]].map(|axes| folded(m, n, axes)));
    all.push(through_views(sizes.dim(6), sizes.dim(7), sizes.dim(9)));
    // The last row is longer than what a kernel processes at once.
    for [m, n] in [[m, n], [1, 1], [2, 1531]] {
        all.extend([around_a_softmax(m, n), around_a_norm(m, n)]);
    }
    all.into_iter().flatten().collect()
}

fn bias_and_activation(m: usize, n: usize) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let sum = d.of("core.add", &[operand(0), operand(1)]);
    let y = d.of("core.gelu_tanh", &[sum]);
    let scaled = d.of("core.mul", &[y, operand(2)]);
    let inputs = vec![
        SampleInput::f32(&[m, n]),
        SampleInput::f32(&[n]),
        SampleInput::f32(&[m, 1]),
    ];
    d.sample("bias, activation and a factor for each row", inputs, &[sum, scaled])
}

fn gradient_of_relu(m: usize, n: usize) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let positive = d.of("core.greater_than", &[operand(0), operand(2)]);
    let dx = d.of("core.select", &[positive, operand(1), operand(2)]);
    let inputs = vec![
        SampleInput::f32(&[m, n]),
        SampleInput::f32(&[m, n]),
        SampleInput::filled(DType::F32, &[], Fill::Constant(0.0)),
    ];
    d.sample("the gradient of a rectifier", inputs, &[dx])
}

fn product_with_bias([m, k, n]: [usize; 3]) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let attrs = Attrs::new().with("transpose_a", false).with("transpose_b", true);
    let product = d.call("core.matmul", attrs, &[operand(0), operand(1)]);
    let sum = d.of("core.add", &[product, operand(2)]);
    let y = d.of("core.relu", &[sum]);
    let inputs = vec![
        SampleInput::f32(&[m, k]),
        SampleInput::f32(&[n, k]),
        SampleInput::f32(&[n]),
    ];
    d.sample("a product, its bias and activation", inputs, &[sum, y])
}

fn product_of_a_gate([m, k, n]: [usize; 3]) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let gated = d.of("core.swiglu_concat", &[operand(0)]);
    let attrs = Attrs::new().with("transpose_a", false).with("transpose_b", false);
    let y = d.call("core.matmul_add", attrs, &[gated, operand(1), operand(2)]);
    let inputs = [[m, 2 * k], [k, n], [m, n]].map(|shape| SampleInput::f32(&shape));
    d.sample(&format!("a product of a gate's [{m}, {k}]"), inputs.to_vec(), &[y])
}

fn packed_product_of_a_gate([m, k, n]: [usize; 3]) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let gated = d.of("core.swiglu", &[operand(0), operand(1)]);
    let y = d.of("core.quantized_matmul", &[gated, operand(2)]);
    let [gate, weight] = [[m, k], [n, k]];
    let inputs = vec![
        SampleInput::f32(&gate),
        SampleInput::f32(&gate),
        SampleInput::filled(DType::F16, &weight, Fill::Below(200)),
    ];
    d.sample(
        &format!("a product of a gate's {gate:?} with a weight of f16"),
        inputs,
        &[y],
    )
}

fn transposed_sum(m: usize, n: usize) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let attrs = Attrs::new().with("axes", vec![1i64, 0]);
    let turned = d.call("core.permute", attrs, &[operand(0)]);
    let sum = d.of("core.sub", &[turned, operand(1)]);
    let inputs = vec![SampleInput::f32(&[m, n]), SampleInput::f32(&[n, m])];
    d.sample("a transposed operand", inputs, &[sum])
}

fn folded(m: usize, n: usize, axes: Vec<i64>) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let product = d.of("core.mul", &[operand(0), operand(1)]);
    let label = format!("the sum of a product over {axes:?}");
    let attrs = Attrs::new().with("axes", axes).with("keep_dims", true);
    let sum = d.call("core.sum", attrs, &[product]);
    let inputs = vec![SampleInput::f32(&[m, n]), SampleInput::f32(&[m, n])];
    d.sample(&label, inputs, &[sum, product])
}

fn through_views(a: usize, b: usize, c: usize) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let exp = d.of("core.exp", &[operand(0)]);
    let flat = d.call(
        "core.reshape",
        Attrs::new().with("shape", vec![(a * b) as i64, c as i64]),
        &[exp],
    );
    let shape = vec![(a * b) as i64, c as i64];
    let wide = d.call("core.expand", Attrs::new().with("shape", shape), &[operand(1)]);
    let sum = d.of("core.add", &[flat, wide]);
    let inputs = vec![SampleInput::f32(&[a, b, c]), SampleInput::f32(&[1, c])];
    d.sample("a reshaped and an expanded value", inputs, &[sum])
}

fn around_a_softmax(m: usize, n: usize) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let scores = d.of("core.mul", &[operand(0), operand(1)]);
    let scores = d.of("core.add", &[scores, operand(2)]);
    let weights = d.call("core.softmax", Attrs::new().with("axis", -1i64), &[scores]);
    let gated = d.of("core.mul", &[weights, operand(3)]);
    let inputs = vec![
        SampleInput::f32(&[m, n]),
        SampleInput::f32(&[]),
        SampleInput::f32(&[m, n]),
        SampleInput::f32(&[m, 1]),
    ];
    d.sample(
        "a softmax of scaled scores, and a factor for each row",
        inputs,
        &[gated],
    )
}

fn around_a_norm(m: usize, n: usize) -> Option<Sample> {
    let mut d = ProgramBuilder::new();
    let sum = d.of("core.add", &[operand(0), operand(1)]);
    let eps = Attrs::new().with("eps", sample_eps(n));
    let norm = d.call("core.layer_norm", eps, &[sum, operand(2), operand(3)]);
    let y = d.of("core.silu", &[norm]);
    let y = d.of("core.add", &[y, sum]);
    let inputs = vec![
        SampleInput::f32(&[m, n]),
        SampleInput::f32(&[m, n]),
        SampleInput::f32(&[n]),
        SampleInput::f32(&[n]),
    ];
    let Slot::Step(step) = norm else { return None };
    let rstd = Slot::result(step, 2);
    d.sample("a norm of a sum, and its activation", inputs, &[sum, rstd, y])
}
