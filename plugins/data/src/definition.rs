//! Definition of an operator in a manifest: parsed and checked, but not evaluated.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use meganeura_core::attrs::{Attr, AttrKind, Attrs};
use meganeura_core::{DType, TensorType};

use crate::manifest::{Axis, MAX_AXES, MAX_VALUES, OpEntry};
use crate::size::{NUMEL, Pattern, REST, Sizes, join_rests};
use crate::term::Term;

/// Element type of an operand or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// Floating-point type, the same for all operands and results of this kind.
    Float,
    Exactly(DType),
}

impl Element {
    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "float" => Ok(Element::Float),
            _ => match DType::from_name(name) {
                Some(dtype) => Ok(Element::Exactly(dtype)),
                None => Err(format!("there is no element type '{name}'")),
            },
        }
    }
}

/// Range of the random numbers that tests use for an operand.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// Numbers between -2 and 2.
    Any,
    /// Numbers between 0.2 and 2.
    Positive,
    /// Numbers of which no two are equal.
    Distinct,
    /// Integers below a size.
    Below(Term),
}

#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    pub(crate) kind: AttrKind,
    /// Values that tests use, the default first.
    pub(crate) samples: Vec<Attr>,
}

#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: &'static str,
    pub(crate) element: Element,
    pub(crate) shape: Pattern,
}

/// Definition of an operator.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    /// Name with the namespace of the plugin.
    pub(crate) name: &'static str,
    pub(crate) formula: &'static str,
    pub(crate) source: &'static str,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) inputs: Vec<Tensor>,
    /// Range of test numbers for each input.
    pub(crate) values: Vec<Values>,
    /// For each operand, `true` if the manifest gives a bound for its integers.
    pub(crate) has_bound: Vec<bool>,
    pub(crate) outputs: Vec<Tensor>,
    broadcast: bool,
    conditions: Vec<Term>,
    /// Additional conditions for the kernel.
    pub(crate) kernel_conditions: Vec<Term>,
    /// Named values of the decomposition, sorted by dependency.
    pub(crate) steps: Vec<(String, Term)>,
}

/// Values of the names in a definition for one call.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) sizes: Sizes,
    /// Element type of the operands declared as [`Element::Float`].
    pub(crate) float: DType,
    pub(crate) outputs: Vec<TensorType>,
}

/// Stores a text until the program ends, because operators are never freed. Equal texts are stored once, because a
/// rejected plugin may be tried again.
pub(crate) fn keep(text: String) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    // A panic cannot leave the set half changed.
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match kept.get(text.as_str()) {
        Some(known) => known,
        None => {
            let text: &'static str = Box::leak(text.into_boxed_str());
            kept.insert(text);
            text
        }
    }
}

impl Definition {
    pub(crate) fn new(namespace: &str, entry: &OpEntry) -> Result<Self, String> {
        let mut taken: HashSet<&str> = HashSet::from([NUMEL]);
        let attributes = entry.attributes.iter().map(|a| a.name.as_str());
        for name in attributes.chain(entry.inputs.iter().map(|i| i.name.as_str())) {
            if !taken.insert(name) {
                return Err(format!("two things are called '{name}'"));
            }
        }
        if let Some(name) = entry.steps.keys().find(|name| taken.contains(name.as_str())) {
            return Err(format!("two things are called '{name}'"));
        }
        let tensor = |name: &str, dtype: &str, shape: &[Axis]| -> Result<Tensor, String> {
            let of = |e: String| format!("'{name}': {e}");
            Ok(Tensor {
                name: keep(name.to_owned()),
                element: Element::parse(dtype).map_err(of)?,
                shape: pattern(shape).map_err(of)?,
            })
        };
        let inputs: Result<Vec<Tensor>, String> = entry
            .inputs
            .iter()
            .map(|i| tensor(&i.name, &i.dtype, &i.shape))
            .collect();
        let outputs: Result<Vec<Tensor>, String> = entry
            .outputs
            .iter()
            .map(|o| tensor(&o.name, &o.dtype, &o.shape))
            .collect();
        let (inputs, outputs) = (inputs?, outputs?);
        for axis in inputs.iter().flat_map(|i| i.shape.names()) {
            let is_value = entry.inputs.iter().any(|i| i.name == axis) || entry.steps.contains_key(axis);
            if is_value || axis == NUMEL {
                return Err(format!("an axis is called '{axis}', as something else is"));
            }
        }
        let floats = |tensors: &[Tensor]| tensors.iter().any(|t| t.element == Element::Float);
        if floats(&outputs) && !floats(&inputs) {
            return Err("a result is 'float', but no operand is; name the element type".into());
        }
        if outputs.iter().any(|o| o.shape.rest) && !inputs.iter().any(|i| i.shape.rest) {
            return Err("a result has '...', but no operand has".into());
        }
        let values: Result<_, String> = entry.inputs.iter().map(values).collect();
        let attributes: Result<_, String> = entry.attributes.iter().map(attribute).collect();
        let terms = |all: &[String]| {
            all.iter()
                .map(|c| Term::parse(c))
                .collect::<Result<Vec<Term>, String>>()
        };
        let kernel_conditions = entry.wgsl.as_ref().map_or(&[][..], |wgsl| &wgsl.conditions);
        Ok(Definition {
            name: keep(format!("{namespace}.{}", entry.name)),
            formula: keep(entry.formula.clone()),
            source: keep(if entry.source.is_empty() {
                format!("the plugin '{namespace}'")
            } else {
                entry.source.clone()
            }),
            attributes: attributes?,
            inputs,
            values: values?,
            has_bound: entry.inputs.iter().map(|i| i.below.is_some()).collect(),
            steps: ordered(entry, &outputs)?,
            outputs,
            broadcast: entry.broadcast,
            conditions: terms(&entry.conditions)?,
            kernel_conditions: terms(kernel_conditions)?,
        })
    }

    /// Returns the numbers in the operator's conditions and shapes. Its behaviour may change at these sizes, so tests
    /// use them.
    pub(crate) fn numbers(&self) -> Vec<i64> {
        let mut numbers = Vec::new();
        let axes = self.inputs.iter().flat_map(|i| &i.shape.axes);
        for term in axes.chain(&self.conditions).chain(&self.kernel_conditions) {
            term.integers(&mut numbers);
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Checks a call and binds the names of the definition: to sizes and attributes, and to the types of the results.
    ///
    /// # Errors
    /// Reason why the call is invalid.
    pub(crate) fn bind(&self, attrs: &Attrs, inputs: &[TensorType]) -> Result<Bound, String> {
        if inputs.len() != self.inputs.len() {
            return Err(format!("takes {} operands, got {}", self.inputs.len(), inputs.len()));
        }
        let mut sizes = Sizes::default();
        for attribute in &self.attributes {
            match attrs.get(attribute.name) {
                Some(Attr::Int(v)) if attribute.kind == AttrKind::Int => {
                    sizes.by_name.insert(attribute.name.to_owned(), *v);
                }
                Some(attr) if attr.kind() == attribute.kind => {}
                Some(attr) => return Err(format!("the attribute '{}' is {attr}", attribute.name)),
                None => return Err(format!("the attribute '{}' is absent", attribute.name)),
            }
        }
        let (mut float, mut rests) = (None, Vec::new());
        for (tensor, ty) in self.inputs.iter().zip(inputs) {
            let of = |e: String| format!("'{}': {e}", tensor.name);
            let wanted = match tensor.element {
                Element::Float if ty.dtype.is_float() => *float.get_or_insert(ty.dtype),
                Element::Float => return Err(format!("'{}' is {ty}; expected floating point", tensor.name)),
                Element::Exactly(dtype) => dtype,
            };
            if ty.dtype != wanted {
                return Err(format!("'{}' is {ty}; expected {wanted}", tensor.name));
            }
            tensor.shape.bind(&ty.shape, &mut sizes, &mut rests).map_err(of)?;
        }
        // Any operand may define a name, so bind all names before checking dependent axes.
        for (tensor, ty) in self.inputs.iter().zip(inputs) {
            let of = |e: String| format!("'{}': {e}", tensor.name);
            tensor.shape.check(&ty.shape, &sizes).map_err(of)?;
        }
        sizes.rest = join_rests(&rests, self.broadcast)?;
        sizes.check(&self.conditions)?;
        let float = float.unwrap_or(DType::F32);
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for tensor in &self.outputs {
            let shape = meganeura_core::Shape::new(&tensor.shape.shape(&sizes)?)?;
            let dtype = match tensor.element {
                Element::Float => float,
                Element::Exactly(dtype) => dtype,
            };
            outputs.push(TensorType::new(dtype, shape));
        }
        let numel = outputs.first().map_or(0, TensorType::numel);
        sizes
            .by_name
            .insert(NUMEL.to_owned(), i64::try_from(numel).unwrap_or(i64::MAX));
        Ok(Bound { sizes, float, outputs })
    }
}

fn pattern(axes: &[Axis]) -> Result<Pattern, String> {
    let terms: Result<Vec<Term>, String> = axes.iter().map(Axis::term).collect();
    let terms = terms?;
    for term in &terms {
        if let Term::Name(name) = term
            && name != REST
            && !name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        {
            return Err(format!("'{name}' is not a valid name of an axis"));
        }
    }
    Pattern::parse(&terms, MAX_AXES)
}

fn values(input: &crate::manifest::InputEntry) -> Result<Values, String> {
    let words = input.values.as_deref();
    match (words, &input.below) {
        (None, Some(bound)) => Ok(Values::Below(bound.term()?)),
        (None, None) if matches!(input.dtype.as_str(), "u32" | "i32") => Ok(Values::Below(Term::Int(2))),
        (None | Some("any"), None) => Ok(Values::Any),
        (Some("positive"), None) => Ok(Values::Positive),
        (Some("distinct"), None) => Ok(Values::Distinct),
        _ => Err(format!(
            "'{}': expected values 'any', 'positive' or 'distinct', or 'below'",
            input.name
        )),
    }
}

fn attribute(entry: &crate::manifest::AttributeEntry) -> Result<Attribute, String> {
    let of = |e: String| format!("the attribute '{}': {e}", entry.name);
    let kind = match entry.kind.as_str() {
        "int" => AttrKind::Int,
        "float" => AttrKind::Float,
        "bool" => AttrKind::Bool,
        "ints" => AttrKind::Ints,
        other => return Err(of(format!("there is no kind '{other}'; use int, float, bool or ints"))),
    };
    let all = std::iter::once(&entry.default).chain(&entry.samples);
    let samples: Result<_, String> = all.map(|value| attr(kind, value)).collect();
    Ok(Attribute {
        name: keep(entry.name.clone()),
        kind,
        samples: samples.map_err(of)?,
    })
}

/// Maximum absolute value of an integer attribute.
const MAX_INT: i64 = 1 << 31;

fn attr(kind: AttrKind, value: &toml::Value) -> Result<Attr, String> {
    let int = |v: &toml::Value| v.as_integer().filter(|v| v.abs() <= MAX_INT);
    let found = match kind {
        AttrKind::Int => int(value).map(Attr::Int),
        AttrKind::Float => {
            let number = value.as_float().or(value.as_integer().map(|v| v as f64));
            number.filter(|v| v.is_finite()).map(Attr::Float)
        }
        AttrKind::Bool => value.as_bool().map(Attr::Bool),
        AttrKind::Ints => value
            .as_array()
            .filter(|list| list.len() <= MAX_VALUES)
            .and_then(|list| list.iter().map(int).collect::<Option<Vec<i64>>>())
            .map(Attr::Ints),
        _ => None,
    };
    found.ok_or_else(|| "a value of it is of another kind, or too large".to_owned())
}

/// Returns the named values, sorted by dependency.
///
/// # Errors
/// Values that depend on themselves, and results that are not defined.
fn ordered(entry: &OpEntry, outputs: &[Tensor]) -> Result<Vec<(String, Term)>, String> {
    let mut terms: BTreeMap<&str, Term> = BTreeMap::new();
    for (name, text) in &entry.steps {
        let term = Term::parse(text).map_err(|e| format!("'{name}': {e}"))?;
        terms.insert(name, term);
    }
    for output in outputs {
        if !terms.contains_key(output.name) {
            return Err(format!(
                "its decomposition does not define the result '{}'",
                output.name
            ));
        }
    }
    let mut steps: Vec<(String, Term)> = Vec::with_capacity(terms.len());
    while !terms.is_empty() {
        let ready = terms.iter().find_map(|(name, term)| {
            let mut open = false;
            term.names(&mut |used, is_call| open |= !is_call && terms.contains_key(used));
            (!open).then_some(*name)
        });
        let Some(name) = ready else {
            let names: Vec<&str> = terms.keys().copied().collect();
            return Err(format!(
                "its values depend on each other in a cycle: {}",
                names.join(", ")
            ));
        };
        if let Some(term) = terms.remove(name) {
            steps.push((name.to_owned(), term));
        }
    }
    Ok(steps)
}
