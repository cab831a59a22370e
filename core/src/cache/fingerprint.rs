//! Hashes of the inputs of a plan: SHA-256 of canonical bytes, equal in every process, build and
//! platform.

use sha2::{Digest, Sha256};

use crate::attrs::{Attr, Attrs};
use crate::files::hex;
use crate::graph::{Graph, Node, NodeKind, Value};
use crate::init::Init;
use crate::program::{Program, Slot};
use crate::shape::TensorType;

/// Returns a hash of everything in a graph that its plan depends on: every node's operator,
/// version, attributes, operands, types and names, the contents of constants, outputs, gradients
/// and effects. Source locations are excluded, so moving a line changes nothing.
pub fn graph_hash(graph: &Graph) -> String {
    let mut c = Canonical::default();
    c.list(graph.nodes(), Canonical::node);
    c.list(graph.outputs(), |c, v| c.value(*v));
    c.list(&graph.wants_gradient, |c, id| c.word(id.index()));
    c.list(graph.gradients(), |c, (leaf, value)| {
        c.word(leaf.index());
        c.value(*value);
    });
    c.list(graph.effects(), |c, effect| {
        c.word(effect.target.index());
        c.value(effect.value);
    });
    // Hash output names only if there are any, so that graphs without names keep their hash.
    if !graph.output_names.is_empty() {
        c.list(&graph.output_names, |c, name| c.text(name));
    }
    c.finish()
}

/// An injective encoding: numbers as eight bytes, little-endian; texts and lists preceded by their
/// length; alternatives preceded by a word.
#[derive(Default)]
struct Canonical {
    hash: Sha256,
    /// Bytes that are not yet hashed: hashing a few at a time is slow.
    pending: Vec<u8>,
}

impl Canonical {
    /// Maximum number of pending bytes.
    const PENDING: usize = 4096;

    fn add(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > Self::PENDING {
            self.hash.update(&self.pending);
            self.pending.clear();
        }
        if bytes.len() > Self::PENDING {
            self.hash.update(bytes);
        } else {
            self.pending.extend_from_slice(bytes);
        }
    }

    fn finish(mut self) -> String {
        self.hash.update(&self.pending);
        hex(self.hash)
    }

    fn word(&mut self, value: usize) {
        self.add(&(value as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len());
        self.add(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.word(items.len());
        for item in items {
            each(self, item);
        }
    }

    fn value(&mut self, value: Value) {
        self.word(value.node.index());
        self.word(value.port as usize);
    }

    fn ty(&mut self, ty: &TensorType) {
        self.text(ty.dtype.name());
        self.list(&ty.shape, |c, d| c.word(*d));
    }

    fn node(&mut self, node: &Node) {
        self.text(node.kind.noun());
        self.text(node.name.as_deref().unwrap_or_default());
        self.list(&node.inputs, |c, v| c.value(*v));
        self.list(&node.outputs, Canonical::ty);
        match &node.kind {
            NodeKind::Input | NodeKind::Scalar | NodeKind::Poison => {}
            NodeKind::Parameter {
                trainable,
                init,
                packing,
            } => {
                self.word(usize::from(*trainable));
                self.init(*init);
                self.word(packing.as_ref().map_or(usize::MAX, |p| p.axis));
                let sources = packing.as_ref().map_or(&[][..], |p| &p.sources);
                self.list(sources, |c, source| {
                    c.text(&source.name);
                    c.word(source.size);
                    c.init(source.init);
                });
            }
            NodeKind::State { fill } => self.bytes(&fill.to_le_bytes()),
            NodeKind::Constant(data) => self.bytes(data.bytes()),
            NodeKind::Op { op, attrs } => {
                self.word(op.version() as usize);
                self.attrs(attrs);
            }
        }
    }

    fn init(&mut self, init: Init) {
        let (word, number) = match init {
            Init::Zeros => ("zeros", 0.0),
            Init::Ones => ("ones", 0.0),
            Init::Constant(c) => ("constant", c),
            Init::Uniform { bound } => ("uniform", bound),
            Init::Normal { std } => ("normal", std),
        };
        self.text(word);
        self.bytes(&number.to_le_bytes());
    }

    fn attrs(&mut self, attrs: &Attrs) {
        self.word(attrs.iter().count());
        for (name, attr) in attrs.iter() {
            self.text(name);
            self.attr(attr);
        }
    }

    fn attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Int(v) => {
                self.text("int");
                self.bytes(&v.to_le_bytes());
            }
            Attr::Ints(list) => {
                self.text("ints");
                self.list(list, |c, v| c.bytes(&v.to_le_bytes()));
            }
            Attr::Float(v) => {
                self.text("float");
                self.bytes(&v.to_bits().to_le_bytes());
            }
            Attr::Bool(v) => {
                self.text("bool");
                self.word(usize::from(*v));
            }
            Attr::Str(v) => {
                self.text("str");
                self.text(v);
            }
            Attr::DType(v) => {
                self.text("dtype");
                self.text(v.name());
            }
            Attr::Program(v) => {
                self.text("program");
                self.program(v);
            }
        }
    }

    fn program(&mut self, program: &Program) {
        self.word(program.operands());
        self.list(program.steps(), |c, step| {
            c.text(step.op.name());
            c.word(step.op.version() as usize);
            c.attrs(&step.attrs);
            c.list(&step.inputs, |c, slot| c.slot(*slot));
        });
        self.list(program.results(), |c, slot| c.slot(*slot));
    }

    fn slot(&mut self, slot: Slot) {
        let (word, index, port) = match slot {
            Slot::Operand(i) => ("operand", i, 0),
            Slot::Step(i) => ("step", i, 0),
            Slot::Port { step, port } => ("port", step, port),
        };
        self.text(word);
        self.word(index as usize);
        self.word(port as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(build: impl Fn(&mut Graph)) -> String {
        let mut g = Graph::new();
        build(&mut g);
        graph_hash(&g)
    }

    #[test]
    fn the_algorithm_is_fixed() {
        let simple = graph(|g| {
            let x = g.input("x", &[2, 3]);
            let y = g.relu(x);
            g.set_outputs(vec![y]);
        });
        // If this hash changes, cached files of earlier versions become stale.
        assert_eq!(&simple[..16], "6452e86d19963968");
    }

    #[test]
    fn everything_that_changes_a_plan_changes_the_hash() {
        type Build = fn(&mut Graph);
        let variants: [Build; 16] = [
            |g| {
                g.input("x", &[2, 3]);
            },
            |g| {
                g.input("y", &[2, 3]);
            },
            |g| {
                g.input("x", &[3, 2]);
            },
            |g| {
                g.input_u32("x", &[2, 3]);
            },
            |g| {
                g.parameter("x", &[2, 3]);
            },
            |g| {
                g.parameter_with("x", &[2, 3], Init::Ones);
            },
            |g| {
                let p = g.parameter("x", &[2, 3]);
                g.trainable(p, false);
            },
            |g| {
                g.state("x", &[2, 3]);
            },
            |g| {
                g.state_filled("x", &[2, 3], 1.0);
            },
            |g| {
                g.constant(vec![0.0; 6], &[2, 3]);
            },
            |g| {
                g.constant(vec![0.0, 0.0, 0.0, 0.0, 0.0, -0.0], &[2, 3]);
            },
            |g| {
                let x = g.input("x", &[2, 3]);
                g.softmax(x, 0);
            },
            |g| {
                let x = g.input("x", &[2, 3]);
                g.softmax(x, 1);
            },
            |g| {
                let x = g.input("x", &[2, 3]);
                let y = g.softmax(x, 1);
                g.set_outputs(vec![y]);
            },
            |g| {
                let x = g.input("x", &[2, 3]);
                let y = g.softmax(x, 1);
                g.set_named_outputs([("y", y)]);
            },
            |g| {
                let x = g.input("x", &[2, 3]);
                let y = g.softmax(x, 1);
                g.set_named_outputs([("z", y)]);
            },
        ];
        let hashes: std::collections::BTreeSet<String> = variants.iter().map(graph).collect();
        assert_eq!(hashes.len(), variants.len());
        for build in &variants {
            assert_eq!(graph(build), graph(build));
        }
    }
}
