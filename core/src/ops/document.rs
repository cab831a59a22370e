//! The operator reference, derived from the operators themselves.
//!
//! It combines each operator's description ([`Doc`](super::Doc)) with properties that it determines by calling the
//! operator: accepted element types, attributes, results and the kind of gradient.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::sample::{Sample, Sizes};
use super::{Call, Gradient, InferenceForm, OpRef, Operator, Semantics};
use crate::attrs::Attr;
use crate::dtype::DType;
use crate::reference::expand_call;
use crate::shape::TensorType;

/// Returns the reference of these operators as Markdown, one section each, in the given order.
pub fn markdown(ops: &[OpRef]) -> String {
    let mut text = String::from(INTRODUCTION);
    for &op in ops {
        text.push('\n');
        text.push_str(&section(op));
    }
    text
}

const INTRODUCTION: &str = "\
# Operators

Generated from the operators by `meganeura ops --markdown`; a test checks that the page is up to date.

In a call, `g` is a `Graph`. Operands are values (`NodeId` or `Value`). The documentation of `Graph` contains the Rust
types of the other arguments. The name of a method and the order of its arguments may differ from those of the operator:
shapes, examples, rules and kernels have the operands in the operator's order.

A shape like `[rows..., classes]` has any number of axes in the place of the dots. Where several element types are
listed, all operands without a type of their own share one. `f16` and `bf16` are storage types: devices without \
kernels
for them compute in `f32` and round the result. Integer results have no gradient.
";

/// Formats one operator as a section of Markdown.
pub fn section(op: OpRef) -> String {
    let doc = op.doc();
    let samples = op.samples(&mut Sizes::new(0));
    let mut text = format!("## {}\n\n`{}`\n\n", op.name(), doc.formula);
    let mut row = |what: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "- **{what}:** {value}");
        }
    };
    row("Call", call(op));
    row("Shapes", doc.shapes.into());
    row("Element types", element_types(op.get(), &samples));
    row("Attributes", attributes(&samples));
    row("Results", results(op.get()));
    row("Gradient", gradient(op.get()));
    row("Computed as", computed_as(op, &samples));
    row("Indices", indices(op.get(), &samples));
    row("In inference", inference(op.get()));
    row(
        "Example",
        samples.first().map_or_else(String::new, |s| example(op.get(), s)),
    );
    row("Source", doc.source.into());
    text
}

/// Returns the Rust call of the operator.
fn call(op: OpRef) -> String {
    match op.signature() {
        method if method.is_empty() => {
            format!(
                "no method; rules and derivatives make it, or `g.call(registry::op(\"{}\")?, attrs, inputs)`",
                op.name()
            )
        }
        method => format!("`{method}`"),
    }
}

fn types_of(sample: &Sample, float: DType) -> Option<Vec<TensorType>> {
    let mut types = sample.input_types().ok()?;
    for ty in types.iter_mut().filter(|ty| ty.dtype == DType::F32) {
        ty.dtype = float;
    }
    Some(types)
}

fn infer(op: &dyn Operator, sample: &Sample, inputs: &[TensorType]) -> Option<Vec<TensorType>> {
    let call = Call {
        attrs: &sample.attrs,
        inputs,
        outputs: &[],
    };
    op.infer(&call).ok()
}

/// Returns the element types that may replace `f32` in the operands of the samples, and the types of the other
/// operands.
fn element_types(op: &dyn Operator, samples: &[Sample]) -> String {
    let every = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];
    let accepts = |dtype: &DType| {
        let uniform = samples
            .iter()
            .filter(|s| s.inputs.iter().any(|i| i.dtype == DType::F32));
        uniform
            .filter_map(|s| infer(op, s, &types_of(s, *dtype)?))
            .next()
            .is_some()
    };
    let own: BTreeSet<&str> = samples
        .iter()
        .flat_map(|s| s.inputs.iter().enumerate())
        .filter(|(i, input)| {
            // An operand that is an integer in every sample has its own type.
            let same = |s: &Sample| s.inputs.get(*i).is_none_or(|other| other.dtype == input.dtype);
            input.dtype != DType::F32 && samples.iter().all(same)
        })
        .map(|(_, input)| input.dtype.name())
        .collect();
    let floats: Vec<&str> = every.iter().filter(|d| accepts(d)).map(|d| d.name()).collect();
    let own: Vec<&str> = own.into_iter().collect();
    match (floats.is_empty(), own.is_empty()) {
        (true, _) => own.join(", "),
        (false, true) => floats.join(", "),
        (false, false) => format!(
            "{}; indices, masks and other integers {}",
            floats.join(", "),
            own.join(", ")
        ),
    }
}

fn attributes(samples: &[Sample]) -> String {
    let mut seen = Vec::new();
    for sample in samples {
        for (name, value) in sample.attrs.iter() {
            let text = format!("`{name}` ({})", kind(value));
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
    }
    seen.join(", ")
}

fn kind(attr: &Attr) -> &'static str {
    match attr {
        Attr::Int(_) => "integer",
        Attr::Ints(_) => "integers",
        Attr::Float(_) => "number",
        Attr::Bool(_) => "flag",
        Attr::Str(_) => "text",
        Attr::DType(_) => "element type",
        Attr::Program(_) => "program",
    }
}

fn results(op: &dyn Operator) -> String {
    let names: Vec<String> = op.ports().iter().map(|p| format!("`{p}`")).collect();
    let mut text = if names.len() > 1 {
        names.join(", ")
    } else {
        String::new()
    };
    if !op.writes().is_empty() {
        let list = |f: fn(&(usize, usize)) -> usize| {
            let numbers: Vec<String> = op.writes().iter().map(|w| f(w).to_string()).collect();
            numbers.join(", ")
        };
        let written = format!("result {} overwrites operand {} in place", list(|w| w.1), list(|w| w.0));
        text = if text.is_empty() {
            written
        } else {
            format!("{text}; {written}")
        };
    }
    text
}

fn gradient(op: &dyn Operator) -> String {
    match op.gradient() {
        Gradient::Rule(_) => "exact, by a rule of its own".into(),
        Gradient::Decomposed => "exact, that of its decomposition".into(),
        Gradient::Zero => "zero wherever it exists".into(),
        Gradient::NotDifferentiable(reason) => format!("none: {reason}"),
    }
}

/// Returns the names of the operators in the decomposition of the first sample that has one.
fn computed_as(op: OpRef, samples: &[Sample]) -> String {
    if matches!(op.semantics(), Semantics::Primitive(_)) {
        return "a primitive".into();
    }
    let names = samples.iter().find_map(|sample| {
        let inputs = types_of(sample, DType::F32)?;
        let outputs = infer(op.get(), sample, &inputs)?;
        let (graph, _) = expand_call(op, &sample.attrs, &inputs, &outputs).ok()?;
        let called = graph.nodes().iter().filter_map(|n| n.op());
        Some(called.map(|(o, _)| format!("`{}`", o.name())).collect::<BTreeSet<_>>())
    });
    let list: Vec<String> = names.unwrap_or_default().into_iter().collect();
    if list.is_empty() {
        "its operand".into()
    } else {
        format!("one kernel, or a graph of {}", list.join(", "))
    }
}

fn indices(op: &dyn Operator, samples: &[Sample]) -> String {
    let bound = samples.iter().find_map(|sample| {
        let inputs = types_of(sample, DType::F32)?;
        op.index_bound(&Call {
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &[],
        })
    });
    bound.map_or_else(String::new, |(operand, _)| {
        format!("an entry of operand {operand} that is out of range is an error of the step")
    })
}

fn inference(op: &dyn Operator) -> String {
    match op.inference() {
        InferenceForm::Same => String::new(),
        InferenceForm::Rewrite(_) => "replaced by another form".into(),
    }
}

/// Returns the types and attributes of a sample and of its results.
fn example(op: &dyn Operator, sample: &Sample) -> String {
    let list = |types: &[TensorType]| {
        let texts: Vec<String> = types.iter().map(ToString::to_string).collect();
        texts.join(", ")
    };
    let Some(inputs) = types_of(sample, DType::F32) else {
        return String::new();
    };
    let outputs = infer(op, sample, &inputs).unwrap_or_default();
    let attrs = if sample.attrs.is_empty() {
        String::new()
    } else {
        format!(" {{{}}}", sample.attrs)
    };
    format!("`({}){attrs} -> {}`", list(&inputs), list(&outputs))
}
