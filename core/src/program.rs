//! Programs: several calls fused into one; a program is an attribute of the fused operator.
//!
//! A program is a list of calls, each on operands of the program or on results of earlier calls, and a list of results.
//! It is data: compared, hashed, printed and serialised like any attribute. A program is checked when it is created or
//! read from a file. So every program is well formed: slots exist, operators are registered, no step writes data, and
//! no step contains a program.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::attrs::{Attr, Attrs};
use crate::graph::{Graph, NodeId, Value};
use crate::ops::registered;
use crate::ops::{Call, OpRef};
use crate::shape::TensorType;

/// Maximum number of operands of a program.
pub const MAX_OPERANDS: usize = 64;
/// Maximum number of steps of a program.
pub const MAX_STEPS: usize = 256;
/// Maximum number of results of a program.
pub const MAX_RESULTS: usize = 64;

/// A value within a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Slot {
    /// An operand of the program.
    Operand(u32),
    /// The first result of a step.
    Step(u32),
    /// A further result of a step; `port` is 1 or more.
    Port {
        /// Index of the step.
        step: u32,
        /// Index of the result among the results of the step.
        port: u32,
    },
}

impl Slot {
    /// Returns a result of a step.
    pub fn result(step: u32, port: u32) -> Self {
        match port {
            0 => Slot::Step(step),
            _ => Slot::Port { step, port },
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slot::Operand(i) => write!(f, "{i}"),
            Slot::Step(i) => write!(f, "%{i}"),
            Slot::Port { step, port } => write!(f, "%{step}.{port}"),
        }
    }
}

/// One call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operator.
    pub op: OpRef,
    /// Attributes of the call.
    pub attrs: Attrs,
    /// Operands of the call.
    pub inputs: Vec<Slot>,
}

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.op.name(), &self.attrs, &self.inputs).hash(state);
    }
}

/// Several calls fused into one; see the [module documentation](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "StoredProgram", into = "StoredProgram")]
pub struct Program {
    operands: usize,
    steps: Vec<Step>,
    results: Vec<Slot>,
}

/// Serialized form of a program, with operators by name.
#[derive(Serialize, Deserialize)]
struct StoredProgram {
    operands: usize,
    steps: Vec<(String, Attrs, Vec<Slot>)>,
    results: Vec<Slot>,
}

impl From<Program> for StoredProgram {
    fn from(program: Program) -> Self {
        let steps = program.steps.into_iter();
        StoredProgram {
            operands: program.operands,
            steps: steps.map(|s| (s.op.name().to_owned(), s.attrs, s.inputs)).collect(),
            results: program.results,
        }
    }
}

impl TryFrom<StoredProgram> for Program {
    type Error = String;

    fn try_from(stored: StoredProgram) -> Result<Self, String> {
        let steps = stored.steps.into_iter().map(|(name, attrs, inputs)| {
            let op = registered::op(&name).ok_or_else(|| format!("a program calls '{name}', which does not exist"))?;
            Ok(Step { op, attrs, inputs })
        });
        Program::new(stored.operands, steps.collect::<Result<_, String>>()?, stored.results)
    }
}

impl Program {
    /// Creates a program with this number of operands.
    ///
    /// # Errors
    /// A message if a slot is used before it exists, an operator writes data, a step contains a
    /// program, or the number of operands, steps or results is zero or too large.
    pub fn new(operands: usize, steps: Vec<Step>, results: Vec<Slot>) -> Result<Self, String> {
        let counts = [
            ("operands", operands, MAX_OPERANDS),
            ("steps", steps.len(), MAX_STEPS),
            ("results", results.len(), MAX_RESULTS),
        ];
        for (what, count, most) in counts {
            if count == 0 || count > most {
                return Err(format!("a program has 1 to {most} {what}, not {count}"));
            }
        }
        let exists = |slot: Slot, before: usize| match slot {
            Slot::Operand(i) if (i as usize) < operands => Ok(()),
            Slot::Step(i) if (i as usize) < before => Ok(()),
            Slot::Port { step, port } if (step as usize) < before && has_port(&steps[step as usize], port) => Ok(()),
            _ => Err(format!("value {slot} is not defined at this point of the program")),
        };
        for (at, step) in steps.iter().enumerate() {
            let fail = |message: String| format!("step {at} of a program, {}: {message}", step.op.name());
            step.op.arity().check(step.inputs.len()).map_err(fail)?;
            for &slot in &step.inputs {
                exists(slot, at).map_err(fail)?;
            }
            if !step.op.writes().is_empty() {
                return Err(fail("it must not write operands".into()));
            }
            if step.attrs.iter().any(|(_, attr)| matches!(attr, Attr::Program(_))) {
                return Err(fail("a program must not contain another".into()));
            }
        }
        for &slot in &results {
            exists(slot, steps.len())?;
            if matches!(slot, Slot::Operand(_)) {
                return Err(format!("the operand {slot} cannot be a result of a program"));
            }
        }
        if (1..results.len()).any(|i| results[..i].contains(&results[i])) {
            return Err("a program yields a value twice".into());
        }
        Ok(Program {
            operands,
            steps,
            results,
        })
    }

    /// Returns the number of operands.
    pub fn operands(&self) -> usize {
        self.operands
    }

    /// Returns the calls in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the slots of the results.
    pub fn results(&self) -> &[Slot] {
        &self.results
    }

    /// Infers the types of the results of each step for operands of these types.
    ///
    /// # Errors
    /// A wrong number of operands, an error of a step's shape rule, or a result that a step does
    /// not have.
    pub fn infer(&self, operands: &[TensorType]) -> Result<Vec<Vec<TensorType>>, String> {
        if operands.len() != self.operands {
            return Err(format!(
                "the program takes {} operands, got {}",
                self.operands,
                operands.len()
            ));
        }
        let mut types: Vec<Vec<TensorType>> = Vec::with_capacity(self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            let inputs = self.inputs_of(step, operands, &types);
            let call = Call {
                attrs: &step.attrs,
                inputs: &inputs,
                outputs: &[],
            };
            let fail = |message: String| format!("{} in the program: {message}", step.op.name());
            let outputs = step.op.infer(&call).map_err(fail)?;
            if outputs.len() <= self.last_port(at) {
                return Err(fail(format!("it has {} results", outputs.len())));
            }
            types.push(outputs);
        }
        Ok(types)
    }

    /// Returns the index of the last used result of a step.
    fn last_port(&self, at: usize) -> usize {
        let used = self.steps.iter().flat_map(|step| &step.inputs).chain(&self.results);
        let ports = used.filter_map(|&slot| match slot {
            Slot::Port { step, port } if step as usize == at => Some(port as usize),
            _ => None,
        });
        ports.max().unwrap_or(0)
    }

    /// Returns the operand types of a step, from the operands of the program and the results of
    /// earlier steps.
    pub fn inputs_of(&self, step: &Step, operands: &[TensorType], steps: &[Vec<TensorType>]) -> Vec<TensorType> {
        let types = step.inputs.iter().map(|&slot| self.type_of(slot, operands, steps));
        types.cloned().collect()
    }

    /// Returns the type of a slot.
    pub fn type_of<'a>(&self, slot: Slot, operands: &'a [TensorType], steps: &'a [Vec<TensorType>]) -> &'a TensorType {
        match slot {
            Slot::Operand(i) => &operands[i as usize],
            Slot::Step(i) => &steps[i as usize][0],
            Slot::Port { step, port } => &steps[step as usize][port as usize],
        }
    }

    /// Adds the calls to a graph, and returns the program's results.
    pub fn build(&self, graph: &mut Graph, operands: &[Value]) -> Vec<Value> {
        let mut steps: Vec<NodeId> = Vec::with_capacity(self.steps.len());
        let value = |slot: &Slot, steps: &[NodeId]| match *slot {
            Slot::Operand(i) => operands[i as usize],
            Slot::Step(i) => steps[i as usize].into(),
            Slot::Port { step, port } => Value {
                node: steps[step as usize],
                port,
            },
        };
        for step in &self.steps {
            let inputs = step.inputs.iter().map(|slot| value(slot, &steps)).collect();
            steps.push(graph.call(step.op, step.attrs.clone(), inputs));
        }
        self.results.iter().map(|slot| value(slot, &steps)).collect()
    }
}

impl Program {
    /// Returns the names of the calls in order, for labels: `matmul, add, relu`; for a long
    /// program, the first names and the number of the rest.
    pub fn title(&self) -> String {
        const SHOWN: usize = 6;
        let names = self.steps.iter().map(|step| short_name(step.op));
        let mut title = names.take(SHOWN).collect::<Vec<_>>().join(", ");
        if self.steps.len() > SHOWN {
            title += &format!(" and {} more", self.steps.len() - SHOWN);
        }
        title
    }
}

/// Returns `true` if a step may have a further result with this index; types are not inferred here.
fn has_port(step: &Step, port: u32) -> bool {
    port > 0 && (port as usize) < MAX_RESULTS && step.op.get().ports().len() != 1
}

/// Returns an operator's name without its namespace.
fn short_name(op: OpRef) -> &'static str {
    let name = op.get().name();
    name.split_once('.').map_or(name, |(_, short)| short)
}

/// Writes the short form: `matmul(0, 1); add(%0, 2); relu(%1) -> %2`.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |slots: &[Slot]| slots.iter().map(Slot::to_string).collect::<Vec<_>>().join(", ");
        for (i, step) in self.steps.iter().enumerate() {
            let semicolon = if i == 0 { "" } else { "; " };
            write!(f, "{semicolon}{}({}", short_name(step.op), list(&step.inputs))?;
            if !step.attrs.is_empty() {
                write!(f, ", {}", step.attrs)?;
            }
            f.write_str(")")?;
        }
        write!(f, " -> {}", list(&self.results))
    }
}
