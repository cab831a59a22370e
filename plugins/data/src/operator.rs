//! An operator of a plugin, as the core sees it: its decomposition is its definition and gives its gradient.

use std::collections::HashMap;

use meganeura_core::attrs::{Attr, AttrKind, Attrs};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::{Fill, Sample, SampleInput, Sizes as Dice};
use meganeura_core::ops::{
    Arity, AttrDecls, Call, Cost, Doc, Expansion, Gradient, OpRef, Operator, Semantics, graph_flops,
};
use meganeura_core::reference::call_operands;
use meganeura_core::{DType, TensorType};

use crate::definition::{Bound, Definition, Element, Values};
use crate::size::{REST, Sizes};
use crate::term::Term;

/// Elements that a value of a decomposition may have for each element of operands and results.
const MOST_GROWTH: usize = 4096;
/// Operations that a decomposition may have for each element of operands and results.
const MOST_WORK: u64 = 1 << 20;
/// Operations that it may have in any case.
const ANY_WORK: u64 = 1 << 26;
/// Elements of the largest operand of a sample.
const LARGEST_SAMPLE: usize = 1 << 18;
/// Elements that it may have in any case.
const ANY_SIZE: usize = 1 << 16;

/// An operator that is its decomposition, which a manifest says.
#[derive(Debug)]
pub(crate) struct DataOp {
    pub(crate) definition: Definition,
    /// Names of the results, kept like operators for the rest of the program.
    ports: &'static [&'static str],
    /// The operators that its decomposition calls, by the names in its text.
    calls: HashMap<String, OpRef>,
    version: u32,
}

impl DataOp {
    /// `find` gives the operator of a name. Raise `version` with everything that changes the plugin.
    ///
    /// # Errors
    /// A name that is no operator.
    pub(crate) fn new(
        definition: Definition,
        version: u32,
        find: impl Fn(&str) -> Option<OpRef>,
    ) -> Result<Self, String> {
        let mut calls = HashMap::new();
        let mut missing = None;
        for (_, term) in &definition.steps {
            term.names(&mut |name, is_call| {
                if is_call && !is_form(name) {
                    match find(base_name(name)) {
                        Some(op) => _ = calls.insert(name.to_owned(), op),
                        None => missing = missing.take().or(Some(name.to_owned())),
                    }
                }
            });
        }
        if let Some(name) = missing {
            return Err(format!("its decomposition calls '{name}', which is no operator"));
        }
        // What persistent data become is nothing that a decomposition says.
        if let Some(op) = calls.values().find(|op| !op.writes().is_empty()) {
            return Err(format!(
                "its decomposition calls '{}', which writes an operand",
                op.name()
            ));
        }
        Ok(DataOp {
            ports: Box::leak(definition.outputs.iter().map(|o| o.name).collect()),
            definition,
            calls,
            version,
        })
    }

    /// The decomposition of a call, on a graph of its own, checked: types of the results, and what its values take.
    fn expand(&self, attrs: &Attrs, inputs: &[TensorType]) -> Result<(Graph, Bound), String> {
        let bound = self.definition.bind(attrs, inputs)?;
        let (mut graph, operands) = call_operands(inputs);
        let values = self.build(&mut graph, &operands, attrs, &bound)?;
        let all = inputs.iter().chain(&bound.outputs).map(TensorType::numel);
        let elements = all.fold(0, usize::saturating_add);
        let most = elements.saturating_mul(MOST_GROWTH).max(ANY_SIZE);
        for node in graph.nodes() {
            if let Some(ty) = node.outputs.iter().find(|ty| ty.numel() > most) {
                return Err(format!(
                    "its decomposition has a value {ty}, far larger than operands and results"
                ));
            }
        }
        let flops = graph_flops(&graph);
        if flops > (elements as u64).saturating_mul(MOST_WORK).max(ANY_WORK) {
            return Err(format!(
                "its decomposition has {flops} operations, far more than go with {elements} elements"
            ));
        }
        for ((value, wanted), name) in values.iter().zip(&bound.outputs).zip(self.ports) {
            match graph.ty(*value) {
                Some(found) if found == wanted => {}
                Some(found) => {
                    return Err(format!(
                        "its decomposition makes '{name}' {found}, but it is declared to be {wanted}"
                    ));
                }
                None => return Err(format!("its decomposition does not make '{name}'")),
            }
        }
        Ok((graph, bound))
    }

    /// Builds the decomposition; one value for each result.
    fn build(&self, graph: &mut Graph, inputs: &[Value], attrs: &Attrs, bound: &Bound) -> Result<Vec<Value>, String> {
        let errors = graph.errors().len();
        let operands = self
            .definition
            .inputs
            .iter()
            .map(|i| i.name)
            .zip(inputs.iter().map(|&v| vec![v]));
        let mut builder = Builder {
            op: self,
            graph,
            attrs,
            bound,
            values: operands.collect(),
        };
        for (name, term) in &self.definition.steps {
            let made = builder
                .ports(term)
                .map_err(|e| format!("in its decomposition, '{name}': {e}"))?;
            builder.values.insert(name, made);
        }
        let values: Vec<Value> = self
            .definition
            .outputs
            .iter()
            .filter_map(|o| builder.values.get(o.name)?.first().copied())
            .collect();
        match graph.errors().get(errors) {
            None => Ok(values),
            Some(error) => Err(format!("in its decomposition, {error}")),
        }
    }

    /// A call that tests make, with random sizes.
    ///
    /// # Errors
    /// Why there is no call with the sizes that came up.
    fn sample(&self, dice: &mut Dice, most: usize, number: usize) -> Result<Sample, String> {
        let mut attrs = Attrs::new();
        let mut sizes = Sizes::default();
        for attribute in &self.definition.attributes {
            let value = &attribute.samples[number % attribute.samples.len()];
            if let Attr::Int(v) = value {
                sizes.by_name.insert(attribute.name.to_owned(), *v);
            }
            attrs = attrs.with(attribute.name, value.clone());
        }
        let rest = dice.below(3);
        sizes.rest = dice.shape(rest, most.min(5));
        for name in self.definition.inputs.iter().flat_map(|i| i.shape.names()) {
            if !sizes.by_name.contains_key(name) {
                sizes.by_name.insert(name.to_owned(), dice.dim(most) as i64);
            }
        }
        let mut inputs = Vec::new();
        for (tensor, values) in self.definition.inputs.iter().zip(&self.definition.values) {
            let shape = tensor.shape.shape(&sizes)?;
            let dtype = match tensor.element {
                Element::Float => DType::F32,
                Element::Exactly(dtype) => dtype,
            };
            let fill = match values {
                Values::Any => Fill::Range(-2.0, 2.0),
                Values::Positive => Fill::Range(0.2, 2.0),
                Values::Distinct => Fill::Distinct,
                Values::Below(bound) => {
                    let bound = u32::try_from(sizes.size(bound)?).map_err(|_| "a bound is too large")?;
                    Fill::Below(bound.max(1))
                }
            };
            inputs.push(SampleInput::filled(dtype, &shape, fill));
        }
        let mut sample = Sample::new("", inputs, attrs);
        let types = sample.input_types()?;
        if types.iter().any(|ty| ty.numel() > LARGEST_SAMPLE) {
            return Err("its operands are too large to be tried".into());
        }
        self.definition.bind(&sample.attrs, &types)?;
        sample.label = types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Ok(sample)
    }

    /// Calls that tests make: some small, some of the size of a tile and more.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn calls(&self, dice: &mut Dice) -> Result<Vec<Sample>, String> {
        const WANTED: usize = 8;
        const TRIES: usize = 400;
        let (mut samples, mut reason) = (Vec::new(), String::new());
        for attempt in 0..TRIES {
            let most = [3, 70, 12][attempt % 3];
            match self.sample(dice, most, samples.len()) {
                Ok(sample) => samples.push(sample),
                Err(e) => reason = e,
            }
            if samples.len() == WANTED {
                break;
            }
        }
        match samples.is_empty() {
            false => Ok(samples),
            true => Err(format!("no shapes were found for which there is a call: {reason}")),
        }
    }
}

/// Whether a form is no call of an operator: one of several results, or a constant of an element type.
fn is_form(name: &str) -> bool {
    name == "Get" || DType::from_name(name).is_some()
}

/// The operator's name in that of a call, which may say how many operands there are: `core.concat/2`.
pub(crate) fn base_name(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(base, _)| base)
}

struct Builder<'a> {
    op: &'a DataOp,
    graph: &'a mut Graph,
    attrs: &'a Attrs,
    bound: &'a Bound,
    /// The results of what has a name.
    values: HashMap<&'a str, Vec<Value>>,
}

impl Builder<'_> {
    fn constant(&mut self, dtype: DType, value: f64) -> Vec<Value> {
        vec![self.graph.scalar_of(dtype, value).into()]
    }

    /// The results of an expression.
    fn ports(&mut self, term: &Term) -> Result<Vec<Value>, String> {
        let float = self.bound.float;
        match term {
            Term::Int(v) => Ok(self.constant(float, *v as f64)),
            Term::Float(v) => Ok(self.constant(float, *v)),
            Term::Name(name) => {
                if let Some(values) = self.values.get(name.as_str()) {
                    return Ok(values.clone());
                }
                let number = self.number(name).ok_or_else(|| format!("'{name}' is no value"))?;
                Ok(self.constant(float, number))
            }
            Term::Call(name, arguments) => self.call(name, arguments),
            Term::Bool(_) | Term::Text(_) => Err(format!("{term} is no tensor")),
        }
    }

    fn value(&mut self, term: &Term) -> Result<Value, String> {
        let ports = self.ports(term)?;
        ports.first().copied().ok_or_else(|| format!("{term} has no result"))
    }

    /// The number that a name stands for.
    fn number(&self, name: &str) -> Option<f64> {
        match self.attrs.get(name) {
            Some(Attr::Float(v)) => Some(*v),
            _ => self.bound.sizes.by_name.get(name).map(|&v| v as f64),
        }
    }

    fn call(&mut self, name: &str, arguments: &[Term]) -> Result<Vec<Value>, String> {
        if name == "Get" {
            let [Term::Int(port), term] = arguments else {
                return Err("'Get' takes a number and a call: (Get 0 (...))".into());
            };
            let ports = self.ports(term)?;
            let port = usize::try_from(*port).ok().and_then(|p| ports.get(p));
            return port
                .map(|&v| vec![v])
                .ok_or_else(|| format!("{term} has {} results", ports.len()));
        }
        if let Some(dtype) = DType::from_name(name) {
            let [term] = arguments else {
                return Err(format!("'{name}' takes a number"));
            };
            let value = match term {
                Term::Int(v) => *v as f64,
                Term::Float(v) => *v,
                Term::Name(name) => self.number(name).ok_or_else(|| format!("'{name}' is no number"))?,
                other => self.bound.sizes.value(other)? as f64,
            };
            return Ok(self.constant(dtype, value));
        }
        let op = *self
            .op
            .calls
            .get(name)
            .ok_or_else(|| format!("'{name}' is no operator"))?;
        let declared = op.attributes();
        if arguments.len() < declared.len() {
            return Err(format!(
                "'{name}' has {} attributes before its operands",
                declared.len()
            ));
        }
        let (given, operands) = arguments.split_at(declared.len());
        let mut attrs = Attrs::new();
        for ((attribute, kind), term) in declared.into_iter().zip(given) {
            let value = self.attribute(kind, term);
            attrs = attrs.with(
                attribute,
                value.map_err(|e| format!("'{name}', its attribute '{attribute}': {e}"))?,
            );
        }
        let operands: Result<Vec<Value>, String> = operands.iter().map(|t| self.value(t)).collect();
        let node = self.graph.call(op, attrs, operands?);
        Ok(self.graph.values(node).collect())
    }

    fn attribute(&self, kind: AttrKind, term: &Term) -> Result<Attr, String> {
        if let Term::Name(name) = term
            && let Some(attr) = self.attrs.get(name)
            && attr.kind() == kind
        {
            return Ok(attr.clone());
        }
        let wrong = || format!("{term} is not {kind:?}");
        match (kind, term) {
            (AttrKind::Int, term) => self.bound.sizes.value(term).map(Attr::Int),
            (AttrKind::Float, Term::Float(v)) => Ok(Attr::Float(*v)),
            (AttrKind::Float, Term::Name(name)) => self.number(name).map(Attr::Float).ok_or_else(wrong),
            (AttrKind::Bool, Term::Bool(v)) => Ok(Attr::Bool(*v)),
            (AttrKind::Str, Term::Text(v)) => Ok(Attr::Str(v.clone())),
            (AttrKind::DType, Term::Text(v)) if v == "float" => Ok(Attr::DType(self.bound.float)),
            (AttrKind::DType, Term::Text(v)) => DType::from_name(v).map(Attr::DType).ok_or_else(wrong),
            (AttrKind::Ints, Term::Text(v)) => self.list(v).map(Attr::Ints),
            _ => Err(wrong()),
        }
    }

    /// A list of integers, whose entries may be names: `[..., n, 2]`.
    fn list(&self, text: &str) -> Result<Vec<i64>, String> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("{text:?} is no list [...]"))?.trim();
        let mut list = Vec::new();
        for entry in inner.split(',').map(str::trim).filter(|_| !inner.is_empty()) {
            if entry == REST {
                list.extend(self.bound.sizes.rest.iter().map(|&n| n as i64));
            } else {
                list.push(self.bound.sizes.value(&Term::parse(entry)?)?);
            }
        }
        Ok(list)
    }
}

impl Operator for DataOp {
    fn name(&self) -> &'static str {
        self.definition.name
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "those that its manifest states",
            formula: self.definition.formula,
            source: self.definition.source,
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(self.definition.inputs.len())
    }

    fn attributes(&self) -> AttrDecls {
        self.definition.attributes.iter().map(|a| (a.name, a.kind)).collect()
    }

    fn ports(&self) -> &'static [&'static str] {
        self.ports
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        self.arity().check(call.inputs.len())?;
        Ok(self.expand(call.attrs, call.inputs)?.1.outputs)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx: &mut Expansion| {
            let types: Vec<TensorType> = cx.inputs.iter().filter_map(|&v| cx.graph.ty(v).cloned()).collect();
            let bound = self.definition.bind(cx.attrs, &types)?;
            self.build(cx.graph, cx.inputs, cx.attrs, &bound)
        })
    }

    /// Operands and results are moved once; the arithmetic is that of the decomposition.
    fn cost(&self, call: &Call) -> Cost {
        let flops = self
            .expand(call.attrs, call.inputs)
            .map_or(0, |(graph, _)| graph_flops(&graph));
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Dice) -> Vec<Sample> {
        // There are some: the operator was tried before it was registered.
        self.calls(sizes).unwrap_or_default()
    }

    fn version(&self) -> u32 {
        self.version
    }
}
