//! Verification of a whole graph, after every stage of the pipeline.

use super::{Graph, NodeKind, Value, infer};
use crate::error::{Error, Result};

impl Graph {
    /// Checks the graph: no builder call was rejected, all operands and ports exist, all types equal those that the
    /// operators infer, there is no cycle, and there are outputs.
    ///
    /// # Errors
    /// The first error in builder order.
    pub fn verify(&self) -> Result<()> {
        if let Some(error) = self.errors.first() {
            return Err(error.clone());
        }
        if self.outputs.is_empty() && self.effects.is_empty() {
            return Err(Error::NoOutputs);
        }
        self.topological_order()?;
        for id in self.node_ids() {
            self.verify_node(id)?;
        }
        for value in self.roots() {
            self.verify_value(value, || "the graph's roots".to_owned())?;
        }
        Ok(())
    }

    fn verify_node(&self, id: super::NodeId) -> Result<()> {
        let node = &self.nodes[id.index()];
        let mut types = Vec::with_capacity(node.inputs.len());
        for &value in &node.inputs {
            self.verify_value(value, || self.label(id).0)?;
            types.extend(self.ty(value).cloned());
        }
        match &node.kind {
            NodeKind::Op { op, attrs } => {
                let inferred = infer(*op, attrs, &types).map_err(|message| Error::InvalidOp {
                    node: self.label(id),
                    message,
                    remedy: String::new(),
                })?;
                if inferred != node.outputs {
                    let list = |t: &[crate::shape::TensorType]| {
                        t.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
                    };
                    return Err(Error::graph(
                        format!(
                            "{} is recorded with results {}, but its operands give {}",
                            self.label(id),
                            list(&node.outputs),
                            list(&inferred)
                        ),
                        "a pass changed an operand without renewing the types",
                    ));
                }
            }
            NodeKind::Poison => {
                return Err(Error::graph(
                    format!("{} is the result of a rejected call", self.label(id)),
                    "",
                ));
            }
            _ => {
                if let (Some(packing), Some(ty)) = (node.packing(), node.outputs.first()) {
                    packing
                        .check(ty)
                        .map_err(|message| Error::graph(format!("{}: {message}", self.label(id)), ""))?;
                }
            }
        }
        Ok(())
    }

    /// Verifies one operand. `user` is called only for errors, as graphs are verified after every
    /// pass.
    fn verify_value(&self, value: Value, user: impl Fn() -> String) -> Result<()> {
        self.try_type(value)
            .map(|_| ())
            .map_err(|message| Error::graph(format!("{}: {message}", user()), "values belong to one graph"))
    }
}
