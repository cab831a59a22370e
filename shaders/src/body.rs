//! The computation of a dispatch as a list of calls, from which kernels are generated. It is a call, a program, or a
//! decomposition that is expanded until a generator supports every call.

use std::collections::HashMap;
use std::sync::Arc;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::graph::{Graph, NodeKind, Value};
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::program::{Program, Slot};
use meganeura_core::reference::{expand_call, operand_name};
use meganeura_core::{DType, TensorType, registry};

use super::roles::{Role, role, stands_for};

/// Maximum number of nodes of a body.
const MAX_NODES: usize = 400;
/// Maximum number of elements of a table of constants.
const MAX_CONSTANTS: usize = 4 << 20;
/// Maximum nesting depth of decompositions.
const MAX_DEPTH: usize = 12;

/// Index of a value of a body.
pub(crate) type Id = usize;

/// A constant, in one of the forms that kernels support.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    /// All elements are this number, given as bits.
    Same(u32),
    /// The elements count upwards from this number.
    Count(u32),
    /// The elements.
    Table(Arc<[u32]>),
}

/// Definition of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Def {
    /// An operand of the dispatch.
    Operand(usize),
    Constant(Constant),
    Call {
        /// Name of the operator. It is a `&str`, not a reference to the operator, because bodies are keys of hash
        /// maps.
        op: &'static str,
        attrs: Attrs,
        inputs: Vec<Id>,
        role: Role,
    },
}

/// A value of a body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) def: Def,
    pub(crate) ty: TensorType,
}

/// Calls in topological order: operands come before their users.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Body {
    pub(crate) nodes: Vec<Node>,
    pub(crate) results: Vec<Id>,
}

impl Body {
    /// Builds the body of a kernel.
    ///
    /// # Errors
    /// No kernel can be generated for the call. The text contains the reason.
    pub(crate) fn of(kernel: &KernelDesc) -> Result<Self, String> {
        let op = registry::op(kernel.name).ok_or("there is no such operator")?;
        let operand = |(i, ty): (usize, &TensorType)| Node {
            def: Def::Operand(i),
            ty: ty.clone(),
        };
        let mut builder = Builder {
            nodes: kernel.inputs.iter().enumerate().map(operand).collect(),
            known: HashMap::new(),
        };
        let inputs: Vec<Id> = (0..kernel.inputs.len()).collect();
        let results = builder.call(op, kernel.attrs, &inputs, kernel.outputs, 0)?;
        let mut body = Body {
            nodes: builder.nodes,
            results,
        };
        body.remove_unused();
        Ok(body)
    }

    /// Returns the type of a value.
    pub(crate) fn ty(&self, id: Id) -> &TensorType {
        &self.nodes[id].ty
    }

    /// Returns the operands of a value.
    pub(crate) fn inputs(&self, id: Id) -> &[Id] {
        match &self.nodes[id].def {
            Def::Call { inputs, .. } => inputs,
            _ => &[],
        }
    }

    /// Returns the role of a value that is a call, or `None` for other values.
    pub(crate) fn role(&self, id: Id) -> Option<Role> {
        match &self.nodes[id].def {
            Def::Call { role, .. } => Some(*role),
            _ => None,
        }
    }

    /// Returns true if a value is a call of an operator whose name satisfies `named`.
    pub(crate) fn is_call(&self, id: Id, named: fn(&str) -> bool) -> bool {
        matches!(&self.nodes[id].def, Def::Call { op, .. } if named(op))
    }

    /// Returns the calls that have this role.
    pub(crate) fn calls(&self, role: Role) -> Vec<Id> {
        (0..self.nodes.len())
            .filter(|&id| self.role(id) == Some(role))
            .collect()
    }

    /// Returns the operands of the dispatch whose elements are used only by `call`.
    pub(crate) fn only_used_by(&self, call: Id) -> Vec<usize> {
        // The operand whose elements a value contains, in any order.
        let mut operand_of: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        let mut used = Vec::new();
        for (id, node) in self.nodes.iter().enumerate() {
            let elements = |&input: &Id| operand_of[input];
            operand_of.push(match &node.def {
                Def::Operand(operand) => Some(*operand),
                Def::Constant(_) => None,
                Def::Call { inputs, role, .. } if *role == Role::View => inputs.iter().find_map(elements),
                Def::Call { inputs, .. } => {
                    let other = inputs.iter().filter(|_| id != call);
                    used.extend(other.filter_map(elements));
                    None
                }
            });
        }
        used.extend(self.results.iter().filter_map(|&result| operand_of[result]));
        let operands = self.nodes.iter().filter_map(|node| match node.def {
            Def::Operand(operand) => Some(operand),
            _ => None,
        });
        operands.filter(|operand| !used.contains(operand)).collect()
    }

    /// Returns true if a value is `other`, or depends on it.
    pub(crate) fn depends_on(&self, id: Id, other: Id) -> bool {
        let mut depends = vec![false; id + 1];
        for at in other.min(id)..=id {
            depends[at] = at == other || self.inputs(at).iter().any(|&i| depends[i]);
        }
        depends[id]
    }

    /// Removes all values except the operands and the values that the results need.
    fn remove_unused(&mut self) {
        let mut used = vec![false; self.nodes.len()];
        self.results.iter().for_each(|&r| used[r] = true);
        for id in (0..self.nodes.len()).rev() {
            if used[id] {
                for &input in self.inputs(id) {
                    used[input] = true;
                }
            }
        }
        let mut new = vec![usize::MAX; self.nodes.len()];
        let mut kept = Vec::new();
        for (id, mut node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            if used[id] || matches!(node.def, Def::Operand(_)) {
                if let Def::Call { inputs, .. } = &mut node.def {
                    inputs.iter_mut().for_each(|i| *i = new[*i]);
                }
                new[id] = kept.len();
                kept.push(node);
            }
        }
        self.nodes = kept;
        self.results.iter_mut().for_each(|r| *r = new[*r]);
    }
}

struct Builder {
    nodes: Vec<Node>,
    /// Ids of the nodes. Equal values exist only once.
    known: HashMap<Node, Id>,
}

impl Builder {
    fn add(&mut self, def: Def, ty: TensorType) -> Id {
        let node = Node { def, ty };
        if let Some(&id) = self.known.get(&node) {
            return id;
        }
        self.known.insert(node.clone(), self.nodes.len());
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn call(
        &mut self,
        op: OpRef,
        attrs: &Attrs,
        inputs: &[Id],
        outputs: &[TensorType],
        depth: usize,
    ) -> Result<Vec<Id>, String> {
        if depth > MAX_DEPTH || self.nodes.len() > MAX_NODES {
            return Err("it is too large for one kernel".into());
        }
        if let Some(operand) = stands_for(op.name()) {
            return Ok(vec![inputs[operand]]);
        }
        let types: Vec<TensorType> = inputs.iter().map(|&i| self.nodes[i].ty.clone()).collect();
        let call = Call {
            attrs,
            inputs: &types,
            outputs,
        };
        if let ([ty], Some(role)) = (outputs, role(op.name(), &call)?) {
            let def = Def::Call {
                op: op.get().name(),
                attrs: attrs.clone(),
                inputs: inputs.to_vec(),
                role,
            };
            return Ok(vec![self.add(def, ty.clone())]);
        }
        if let Ok(program) = attrs.program("program") {
            return self.program(program, inputs, depth);
        }
        if op.semantics().decomposition().is_none() {
            return Err(format!("the blade backend has no kernel for {}", op.name()));
        }
        let (graph, results) = expand_call(op, attrs, &types, outputs).map_err(|e| e.to_string())?;
        self.graph(&graph, &results, inputs, depth)
    }

    fn program(&mut self, program: &Program, operands: &[Id], depth: usize) -> Result<Vec<Id>, String> {
        let types: Vec<TensorType> = operands.iter().map(|&i| self.nodes[i].ty.clone()).collect();
        let outputs = program.infer(&types)?;
        let mut steps: Vec<Vec<Id>> = Vec::new();
        let of = |slot: &Slot, steps: &[Vec<Id>]| match *slot {
            Slot::Operand(i) => operands[i as usize],
            Slot::Step(i) => steps[i as usize][0],
            Slot::Port { step, port } => steps[step as usize][port as usize],
        };
        for (step, types) in program.steps().iter().zip(&outputs) {
            let inputs: Vec<Id> = step.inputs.iter().map(|s| of(s, &steps)).collect();
            steps.push(self.call(step.op, &step.attrs, &inputs, types, depth + 1)?);
        }
        Ok(program.results().iter().map(|s| of(s, &steps)).collect())
    }

    fn graph(&mut self, graph: &Graph, results: &[Value], operands: &[Id], depth: usize) -> Result<Vec<Id>, String> {
        let mut values: HashMap<Value, Id> = HashMap::new();
        for (i, &operand) in operands.iter().enumerate() {
            if let Some(leaf) = graph.leaf_named(&operand_name(i)) {
                values.insert(leaf.into(), operand);
            }
        }
        // Values are built call by call, so operands come before their users.
        for id in graph.node_ids() {
            let node = &graph.nodes()[id.index()];
            if values.contains_key(&id.into()) {
                continue;
            }
            let ids = match &node.kind {
                NodeKind::Constant(data) => {
                    let constant = constant_of(data.dtype(), data.bytes())?;
                    vec![self.add(Def::Constant(constant), node.outputs[0].clone())]
                }
                _ => {
                    let (op, attrs) = node.op().ok_or("its decomposition has leaves of its own")?;
                    let inputs: Vec<Id> = node.inputs.iter().map(|v| values[v]).collect();
                    self.call(op, attrs, &inputs, &node.outputs, depth + 1)?
                }
            };
            values.extend((0u32..).map(|port| Value { node: id, port }).zip(ids));
        }
        Ok(results.iter().map(|v| values[v]).collect())
    }
}

fn constant_of(dtype: DType, bytes: &[u8]) -> Result<Constant, String> {
    if !matches!(dtype, DType::F32 | DType::U32 | DType::I32) {
        return Err(format!("its decomposition has a constant of {dtype}"));
    }
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let Some(&first) = words.first() else {
        return Ok(Constant::Same(0));
    };
    if words.iter().all(|&w| w == first) {
        return Ok(Constant::Same(first));
    }
    if dtype != DType::F32 && words.iter().zip(0u32..).all(|(&w, i)| w == first.wrapping_add(i)) {
        return Ok(Constant::Count(first));
    }
    if words.len() <= MAX_CONSTANTS {
        Ok(Constant::Table(words.into()))
    } else {
        Err("its decomposition has a large table of constants".into())
    }
}
