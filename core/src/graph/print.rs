//! Graphs as text and as DOT.

use std::fmt::{self, Write as _};

use super::{Graph, Node, NodeKind};

impl fmt::Display for Graph {
    /// Writes one line per node: `%5 = core.matmul(%3, %4) {transpose_b=true} : f32[4, 10]  # fc1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in self.node_ids() {
            let node = &self.nodes[id.index()];
            write!(f, "{id} = {}", description(node))?;
            if !node.inputs.is_empty() {
                let inputs: Vec<String> = node.inputs.iter().map(ToString::to_string).collect();
                write!(f, "({})", inputs.join(", "))?;
            }
            if let Some((_, attrs)) = node.op().filter(|(_, a)| !a.is_empty()) {
                write!(f, " {{{attrs}}}")?;
            }
            let types: Vec<String> = node.outputs.iter().map(ToString::to_string).collect();
            write!(f, " : {}", types.join(", "))?;
            if let (Some(name), true) = (&node.name, node.is_op()) {
                write!(f, "  # {name}")?;
            }
            writeln!(f)?;
        }
        let list = |values: Vec<String>| values.join(", ");
        writeln!(
            f,
            "outputs: {}",
            list(self.outputs.iter().map(ToString::to_string).collect())
        )?;
        for (leaf, gradient) in &self.gradients {
            writeln!(f, "gradient of {leaf}: {gradient}")?;
        }
        for effect in &self.effects {
            writeln!(f, "effect: {} becomes {}", effect.target, effect.value)?;
        }
        Ok(())
    }
}

impl Graph {
    /// Returns the graph in Graphviz's DOT language; render it with `dot -Tsvg`.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph meganeura {\n  node [shape=box, fontname=monospace];\n");
        for id in self.node_ids() {
            let node = &self.nodes[id.index()];
            let mut label = description(node);
            if let (Some(name), true) = (&node.name, node.is_op()) {
                let _ = write!(label, "\\n{}", escape(name));
            }
            for ty in &node.outputs {
                let _ = write!(label, "\\n{ty}");
            }
            let style = match node.kind {
                NodeKind::Op { .. } => "",
                NodeKind::Parameter { .. } | NodeKind::State { .. } => ", style=filled, fillcolor=lightyellow",
                _ => ", style=filled, fillcolor=lightgrey",
            };
            let _ = writeln!(dot, "  n{} [label=\"{label}\"{style}];", id.0);
            for v in &node.inputs {
                let port = if v.port == 0 {
                    String::new()
                } else {
                    format!(" [label=\"port {}\"]", v.port)
                };
                let _ = writeln!(dot, "  n{} -> n{}{port};", v.node.0, id.0);
            }
        }
        for (i, v) in self.outputs.iter().enumerate() {
            let _ = writeln!(
                dot,
                "  out{i} [label=\"output {i}\", shape=ellipse];\n  n{} -> out{i};",
                v.node.0
            );
        }
        dot.push_str("}\n");
        dot
    }
}

fn description(node: &Node) -> String {
    match (&node.kind, &node.name) {
        (NodeKind::Op { op, .. }, _) => op.name().to_owned(),
        (NodeKind::Constant(data), _) if data.len() == 1 => {
            format!("constant {}", data.to_f64()[0])
        }
        (kind, Some(name)) => format!("{} {}", kind.noun(), escape(name)),
        (kind, None) => kind.noun().to_owned(),
    }
}

fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}
