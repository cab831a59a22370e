//! The e-graph of one graph: its construction, the assignment of types, and reading.

use std::sync::Arc;

use egglog::ast::FunctionSubtype;
use egglog::{Core, EGraph, FullState, RawValues, Value as EValue, Write};
use rustc_hash::FxHashMap;

use super::attr::{self, Constructor};
use super::columns;
use super::dialect::{Dialect, END, LEAVES, LIST, MAX_OPAQUE, leaf_constructor, opaque_name, wide_name};
use super::facts::{self, FactName};
use super::scalar::Scalar;
use super::types::{ClassType, Inference, Label, LabelId, Labels, TypeId, Types};
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, NodeId, NodeKind, Value};
use meganeura_core::ops::OpRef;

/// A class in egglog. The flag is `true` for the results of a call with several results, and `false` for a single
/// value.
pub(super) type ClassKey = (bool, EValue);

/// The table of a constructor, with one row for each e-node.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    kind: TableKind,
    /// `true` if a row represents all results of a call with several results.
    pub(super) tuple: bool,
}

#[derive(Clone, Debug)]
enum TableKind {
    Leaf,
    Get,
    Opaque,
    /// A call whose operands are a list.
    Wide,
    Symbol,
}

/// An e-node, as a row of a table.
pub(super) struct Row {
    pub(super) class: ClassKey,
    pub(super) label: LabelId,
    pub(super) children: Vec<ClassKey>,
}

/// Rules that fired, by class, and the number of firings of each rule.
pub(super) type Fired = (FxHashMap<ClassKey, Vec<usize>>, Vec<usize>);

/// An e-graph with its types and labels.
pub(super) struct State {
    pub(super) egraph: EGraph,
    pub(super) dialect: Arc<Dialect>,
    pub(super) types: Types,
    pub(super) labels: Labels,
    pub(super) inference: Inference,
    pub(super) class_types: FxHashMap<ClassKey, ClassType>,
    /// Labels of calls of operators that no rule mentions, by their numbers in the e-graph.
    opaque: Vec<LabelId>,
    opaque_numbers: FxHashMap<LabelId, i64>,
    /// Number of types whose facts are in the e-graph.
    described: usize,
    tables: Vec<Table>,
    /// Labels of calls of operators that rules mention, by the index of the table and the attribute columns.
    symbol_labels: FxHashMap<(usize, Vec<EValue>), LabelId>,
}

fn failed(error: &egglog::Error) -> Error {
    Error::graph(format!("the e-graph could not be built: {error}"), "")
}

/// Returns the operands that a list in the e-graph contains.
fn elements(lists: &FxHashMap<EValue, (EValue, EValue)>, mut list: EValue) -> Vec<EValue> {
    let mut elements = Vec::new();
    while let Some(&(first, rest)) = lists.get(&list) {
        elements.push(first);
        list = rest;
    }
    elements
}

impl State {
    /// Creates the e-graph of a graph.
    pub(super) fn new(graph: &Graph, dialect: Arc<Dialect>, setting: &Setting) -> Result<Self> {
        let mut state = State {
            egraph: dialect.template.clone(),
            dialect,
            types: Types::default(),
            labels: Labels::default(),
            inference: Inference::default(),
            class_types: FxHashMap::default(),
            opaque: Vec::new(),
            opaque_numbers: FxHashMap::default(),
            described: 0,
            tables: Vec::new(),
            symbol_labels: FxHashMap::default(),
        };
        state.insert(graph, setting)?;
        state.tables = state.list_tables();
        Ok(state)
    }

    fn insert(&mut self, graph: &Graph, setting: &Setting) -> Result<()> {
        let order = graph.topological_order()?;
        // Split borrows: the closure writes the e-graph while labels and types grow.
        let mut egraph = std::mem::take(&mut self.egraph);
        let result = egraph.update(|mut fs| {
            for &cap in setting.caps {
                fs.add("cap", (cap,))?;
            }
            let mut values: FxHashMap<Value, EValue> = FxHashMap::default();
            for &id in &order {
                self.insert_node(&mut fs, graph, id, setting, &mut values)?;
            }
            self.describe_types(&mut fs)
        });
        self.egraph = egraph;
        result.map_err(|e| failed(&e))
    }

    fn insert_node(
        &mut self,
        fs: &mut FullState<'_, '_>,
        graph: &Graph,
        id: NodeId,
        setting: &Setting,
        values: &mut FxHashMap<Value, EValue>,
    ) -> std::result::Result<(), egglog::Error> {
        let node = &graph.nodes()[id.index()];
        let number = i64::from(id.0);
        let single = |state: &mut Self,
                      fs: &mut FullState<'_, '_>,
                      values: &mut FxHashMap<Value, EValue>,
                      port: u32,
                      value: EValue| {
            let ty = state.types.id(&node.outputs[port as usize]);
            fs.set("node", (number, i64::from(port)), value)?;
            fs.set("type", (value,), i64::from(ty))?;
            fs.set("ord", (value,), number)?;
            values.insert(Value { node: id, port }, value);
            Ok::<(), egglog::Error>(())
        };
        let Some((op, attrs)) = node.op() else {
            let value = fs.add(leaf_constructor(&node.kind), (number,))?;
            single(self, fs, values, 0, value)?;
            if let NodeKind::Constant(data) = &node.kind {
                for &(name, fact) in facts::OF_CONSTANT {
                    if let Some(number) = facts::of_constant(fact, data, node.outputs[0].shape.dims()) {
                        fs.set(name, (value,), number)?;
                    }
                }
            }
            if let (NodeKind::Parameter { .. }, Some(group)) = (&node.kind, (setting.pack_group)(graph, id)) {
                fs.set("pack-group", (value,), group)?;
            }
            return Ok(());
        };
        let tuple = node.outputs.len() > 1;
        let operands: Vec<EValue> = node.inputs.iter().map(|v| values[v]).collect();
        let constructor = Constructor {
            op,
            operands: operands.len(),
        };
        let name = constructor.name();
        let spelled = self.dialect.symbols.contains_key(name.as_ref()) && attr::literals(op, attrs).is_some();
        let pinned = !op.writes().is_empty();
        let value = if spelled && constructor.is_tuple() == tuple && !pinned {
            let mut row: Vec<EValue> = attrs.iter().map(|(_, a)| columns::to_value(fs, a)).collect();
            row.extend(&operands);
            fs.add(&name, RawValues(row))?
        } else {
            let label = if pinned {
                Label::Pinned(id)
            } else {
                Label::Call(op.get().name(), attrs.clone())
            };
            let label = self.labels.id(label, Some(op));
            let number = self.opaque_number(label);
            let mut row = vec![fs.base_to_value(number)];
            if operands.len() <= MAX_OPAQUE {
                row.extend(&operands);
                fs.add(&opaque_name(operands.len(), tuple), RawValues(row))?
            } else {
                let mut list = fs.add(END, RawValues(Vec::new()))?;
                for &operand in operands.iter().rev() {
                    list = fs.add(LIST, RawValues(vec![operand, list]))?;
                }
                row.push(list);
                fs.add(wide_name(tuple), RawValues(row))?
            }
        };
        if tuple {
            fs.set("tnode", (number,), value)?;
            let ids = node.outputs.iter().map(|ty| self.types.id(ty)).collect();
            self.class_types.insert((true, value), ClassType::Several(ids));
            for port in 0..node.outputs.len() as u32 {
                let result = fs.add("Get", (i64::from(port), value))?;
                single(self, fs, values, port, result)?;
            }
        } else {
            single(self, fs, values, 0, value)?;
        }
        Ok(())
    }

    fn opaque_number(&mut self, label: LabelId) -> i64 {
        if let Some(&number) = self.opaque_numbers.get(&label) {
            return number;
        }
        let number = self.opaque.len() as i64;
        self.opaque.push(label);
        self.opaque_numbers.insert(label, number);
        number
    }

    /// Adds the facts of the types that are new.
    pub(super) fn describe_types(&mut self, fs: &mut FullState<'_, '_>) -> std::result::Result<(), egglog::Error> {
        while self.described < self.types.len() {
            let id = self.described as i64;
            let ty = self.types.get(self.described as TypeId);
            self.described += 1;
            for (name, fact) in facts::OF_TYPE {
                match facts::of_type(*fact, ty, None) {
                    Some(Scalar::Int(v)) => fs.set(name, (id,), v)?,
                    Some(Scalar::Str(v)) => fs.set(name, (id,), v.to_string())?,
                    _ => {}
                }
            }
            for (axis, &dim) in ty.shape.iter().enumerate() {
                fs.set("dim", (id, axis as i64), dim as i64)?;
                if let Some(Scalar::Str(shape)) = facts::of_type(FactName::Along, ty, Some(axis as i64)) {
                    fs.set("along", (id, axis as i64), shape.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Returns the constructor tables, in the order of declaration.
    fn list_tables(&self) -> Vec<Table> {
        self.egraph
            .functions_iter()
            .filter_map(|(name, function)| {
                let ty = function.func_type();
                let tuple = match ty.output.name() {
                    "T" => false,
                    "Tup" => true,
                    _ => return None,
                };
                if function.is_hidden() || function.is_let_binding() || ty.subtype != FunctionSubtype::Constructor {
                    return None;
                }
                let kind = match name.as_str() {
                    "Get" => TableKind::Get,
                    name if LEAVES.iter().any(|(_, leaf)| *leaf == name) => TableKind::Leaf,
                    name if [false, true].map(wide_name).contains(&name) => TableKind::Wide,
                    name if self.dialect.symbols.contains_key(name) => TableKind::Symbol,
                    _ => TableKind::Opaque,
                };
                let name = name.clone();
                Some(Table { name, kind, tuple })
            })
            .collect()
    }

    /// Returns the lists of operands in the e-graph: the head and the tail of each.
    fn lists(&self) -> Result<FxHashMap<EValue, (EValue, EValue)>> {
        let mut lists = FxHashMap::default();
        self.egraph
            .constructor_enodes(LIST, |node| {
                lists.insert(node.eclass, (node.children[0], node.children[1]));
            })
            .map_err(|e| failed(&e))?;
        Ok(lists)
    }

    /// Returns every e-node, table after table.
    pub(super) fn rows(&mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::with_capacity(self.egraph.num_tuples() / 2);
        let lists = self.lists()?;
        for (index, table) in self.tables.iter().enumerate() {
            let symbol = self.dialect.symbols.get(&table.name);
            let (attrs, child_is_tuple) = match table.kind {
                TableKind::Leaf | TableKind::Opaque | TableKind::Wide => (1, false),
                TableKind::Get => (1, true),
                TableKind::Symbol => (symbol.map_or(0, |s| s.op.attributes().len()), false),
            };
            let (labels, opaque, symbol_labels) = (&mut self.labels, &self.opaque, &mut self.symbol_labels);
            let egraph = &self.egraph;
            egraph
                .constructor_enodes(&table.name, |node| {
                    let columns = &node.children[..attrs];
                    let number = || egraph.value_to_base::<i64>(columns[0]);
                    let label = match table.kind {
                        TableKind::Leaf => Some(labels.id(Label::Leaf(NodeId::new(number() as u32)), None)),
                        TableKind::Get => Some(labels.id(Label::Get(number() as u32), None)),
                        TableKind::Opaque | TableKind::Wide => opaque.get(number() as usize).copied(),
                        TableKind::Symbol => symbol_labels.get(&(index, columns.to_vec())).copied().or_else(|| {
                            let symbol = symbol?;
                            // Text that is not a list or an element type cannot come from a graph,
                            // and is skipped.
                            let attrs = columns::attrs(egraph, symbol.op, columns)?;
                            let label = labels.id(Label::Call(symbol.op.get().name(), attrs), Some(symbol.op));
                            symbol_labels.insert((index, columns.to_vec()), label);
                            Some(label)
                        }),
                    };
                    let Some(label) = label else { return };
                    let children = match table.kind {
                        TableKind::Wide => elements(&lists, node.children[attrs]),
                        _ => node.children[attrs..].to_vec(),
                    };
                    let children = children.into_iter().map(|v| (child_is_tuple, v)).collect();
                    let class = (table.tuple, node.eclass);
                    rows.push(Row { class, label, children });
                })
                .map_err(|e| failed(&e))?;
        }
        Ok(rows)
    }

    /// Returns the entries of a function from classes to integers.
    pub(super) fn class_facts(&self, function: &str) -> Result<FxHashMap<ClassKey, i64>> {
        let mut facts = FxHashMap::default();
        self.egraph
            .function_entries(function, |entry| {
                facts.insert((false, entry.inputs[0]), self.egraph.value_to_base::<i64>(entry.output));
            })
            .map_err(|e| failed(&e))?;
        Ok(facts)
    }

    /// Returns the e-class of each value of the graph. A call with several results also has an e-class for the tuple of
    /// its results; its key is the port `u32::MAX` of the node.
    pub(super) fn classes_of_values(&self) -> Result<FxHashMap<Value, ClassKey>> {
        let mut classes = FxHashMap::default();
        let int = |v: EValue| self.egraph.value_to_base::<i64>(v) as u32;
        self.egraph
            .function_entries("node", |entry| {
                let (node, port) = (NodeId::new(int(entry.inputs[0])), int(entry.inputs[1]));
                classes.insert(Value { node, port }, (false, entry.output));
            })
            .map_err(|e| failed(&e))?;
        self.egraph
            .function_entries("tnode", |entry| {
                let node = NodeId::new(int(entry.inputs[0]));
                classes.insert(Value { node, port: u32::MAX }, (true, entry.output));
            })
            .map_err(|e| failed(&e))?;
        Ok(classes)
    }

    /// Returns the rules that fired, by class, and the number of firings of each.
    pub(super) fn fired(&self) -> Result<Fired> {
        let mut by_class: FxHashMap<ClassKey, Vec<usize>> = FxHashMap::default();
        let mut counts = vec![0; self.dialect.rules.len()];
        for (relation, tuple) in [("fired", false), ("fired-tup", true)] {
            self.egraph
                .constructor_enodes(relation, |row| {
                    let rule = self.egraph.value_to_base::<i64>(row.children[0]) as usize;
                    counts[rule] += 1;
                    by_class.entry((tuple, row.children[1])).or_default().push(rule);
                })
                .map_err(|e| failed(&e))?;
        }
        by_class.values_mut().for_each(|rules| rules.sort_unstable());
        Ok((by_class, counts))
    }

    pub(super) fn operator(&self, label: LabelId) -> Option<(OpRef, &meganeura_core::attrs::Attrs)> {
        self.labels.call(label)
    }
}

/// Inputs for constructing an e-graph, in addition to the graph.
pub(super) struct Setting<'a> {
    /// Properties of the build and the device.
    pub(super) caps: &'a [&'a str],
    /// Function that returns the packing group of a parameter: parameters of one group may be stored together.
    pub(super) pack_group: &'a dyn Fn(&Graph, NodeId) -> Option<i64>,
}
