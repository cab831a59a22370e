//! The e-graph's vocabulary: a template e-graph with declarations and rules, created once for each
//! selection of rules and cloned for each graph.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use egglog::EGraph;
use egglog::ast::{Action, Command, Expr, Fact, Literal};

use super::attr::{Constructor, TENSOR, TUPLE};
use super::rule::Rule;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::NodeKind;
use meganeura_core::registry;

/// Declarations of sorts, leaves and facts that every e-graph contains.
const PRELUDE: &str = r#"
(sort T)
(sort Tup)
(constructor Input (i64) T)
(constructor Parameter (i64) T)
(constructor State (i64) T)
(constructor Scalar (i64) T)
(constructor Constant (i64) T)
(constructor Get (i64 Tup) T)
(function node (i64 i64) T :no-merge)
(function tnode (i64) Tup :no-merge)
(function type (T) i64 :merge (min old new))
(function ord (T) i64 :merge (min old new))
(function uniform (T) f64 :merge (min old new))
(function lower-triangle (T) f64 :merge (min old new))
(function upper-triangle (T) f64 :merge (min old new))
(function pack-group (T) i64 :merge (min old new))
(function rank (i64) i64 :no-merge)
(function rows (i64) i64 :no-merge)
(function cols (i64) i64 :no-merge)
(function numel (i64) i64 :no-merge)
(function dim (i64 i64) i64 :no-merge)
(function along (i64 i64) String :no-merge)
(function dtype (i64) String :no-merge)
(function last-axis (i64) String :no-merge)
(function swap-last (i64) String :no-merge)
(relation cap (String))
(relation fired (i64 T))
(relation fired-tup (i64 Tup))
(ruleset rules)
"#;

/// Constructors of the leaves, by their [`NodeKind::noun`](meganeura_core::graph::NodeKind::noun).
pub(super) const LEAVES: &[(&str, &str)] = &[
    ("input", "Input"),
    ("parameter", "Parameter"),
    ("state", "State"),
    ("scalar", "Scalar"),
    ("constant", "Constant"),
];

/// Returns the constructor of a leaf.
pub(super) fn leaf_constructor(kind: &NodeKind) -> &'static str {
    let noun = kind.noun();
    LEAVES.iter().find(|(n, _)| *n == noun).map_or("Constant", |(_, c)| c)
}

/// Maximum number of operands of a call whose constructor is declared in advance.
const DECLARED_ARITY: usize = 8;

/// Declarations and rules of an e-graph.
pub(super) struct Dialect {
    /// An e-graph with all declarations and rules, and without values.
    pub(super) template: EGraph,
    /// Locked while a clone of the template is in use: clones share egglog's counters, including
    /// the timestamp by which it recognizes new rows, so two clones in use at the same time would
    /// lose matches and merges.
    pub(super) in_use: Mutex<()>,
    /// Operators that occur in rules, by the names of their constructors.
    pub(super) symbols: HashMap<String, Constructor>,
    /// The rules. Rows of the relation `fired` in the e-graph record each match with the index of its rule here.
    pub(super) rules: Vec<Arc<Rule>>,
    /// All declarations and rules as text.
    pub(super) program: String,
}

fn declaration(symbol: &Constructor) -> String {
    let output = if symbol.is_tuple() { TUPLE } else { TENSOR };
    format!(
        "(constructor {} ({}) {output})\n",
        symbol.name(),
        symbol.argument_sorts().join(" ")
    )
}

/// Returns the name of the constructor for calls of operators that no rule mentions. Its arguments are a number that
/// represents operator and attributes, and the operands.
pub(super) fn opaque_name(operands: usize, tuple: bool) -> String {
    if !tuple {
        format!("Call/{operands}")
    } else {
        format!("CallTup/{operands}")
    }
}

/// Returns the declaration of [`opaque_name`].
pub(super) fn opaque_declaration(operands: usize, tuple: bool) -> String {
    let output = if tuple { "Tup" } else { "T" };
    let columns = " T".repeat(operands);
    format!(
        "(constructor {} (i64{columns}) {output})\n",
        opaque_name(operands, tuple)
    )
}

/// Maximum number of operands of a call that is represented by [`opaque_name`], with one column for each operand. Calls
/// with more operands use [`wide_name`].
pub(super) const MAX_OPAQUE: usize = DECLARED_ARITY;

/// Returns the name of the constructor for calls with more operands. Its arguments are a number that represents
/// operator and attributes, and a list of operands. A column for each would be slow: the engine's time grows with the
/// square of the number of columns.
pub(super) fn wide_name(tuple: bool) -> &'static str {
    if tuple { "WideTup" } else { "Wide" }
}

/// Constructor of a list of operands: its head and its tail.
pub(super) const LIST: &str = "List";
/// Constructor of the empty list of operands.
pub(super) const END: &str = "End";

/// Declarations of [`wide_name`] and of lists.
const WIDE: &str = "\
(sort Operands)
(constructor End () Operands)
(constructor List (T Operands) Operands)
(constructor Wide (i64 Operands) T)
(constructor WideTup (i64 Operands) Tup)
";

impl Dialect {
    /// Loads rules.
    ///
    /// # Errors
    /// [`Error::RuleSet`] with the rule that does not type-check.
    pub(super) fn new(rules: Vec<Arc<Rule>>) -> Result<Self> {
        let mut program = PRELUDE.to_owned();
        for operands in 0..=DECLARED_ARITY {
            program += &opaque_declaration(operands, false);
            program += &opaque_declaration(operands, true);
        }
        program += WIDE;
        let mut symbols = HashMap::new();
        for rule in &rules {
            for name in names(rule) {
                // Facts and arithmetic also have names; searching for similar operators would take
                // long.
                let base = name.split('/').next().unwrap_or_default();
                if !symbols.contains_key(&name)
                    && registry::op(base).is_some()
                    && let Ok(symbol) = Constructor::resolve(&name, &[])
                {
                    program += &declaration(&symbol);
                    symbols.insert(name, symbol);
                }
            }
        }
        let mut template = EGraph::default();
        template
            .parse_and_run_program(Some("prelude".into()), &program)
            .map_err(|e| Error::graph(format!("the vocabulary of rewriting does not load: {e}"), ""))?;
        for (number, rule) in rules.iter().enumerate() {
            let command = with_provenance(rule, number as i64, &symbols);
            program += &format!("{command}\n");
            template.run_program(vec![command]).map_err(|e| Error::RuleSet {
                set: rule.set.clone(),
                rule: Some(rule.name.clone()),
                span: Some(rule.span.to_string()),
                message: e.to_string(),
            })?;
        }
        Ok(Dialect {
            template,
            in_use: Mutex::new(()),
            symbols,
            rules,
            program,
        })
    }
}

/// Adds an action to each union of a rule. The action records the firing of the rule.
fn with_provenance(rule: &Rule, number: i64, symbols: &HashMap<String, Constructor>) -> Command {
    let tuples = tuple_variables(rule, symbols);
    let mut head = rule.head.clone();
    for action in &rule.head {
        if let Action::Union(span, target, _) = action {
            let relation = if is_tuple(target, &tuples, symbols) {
                "fired-tup"
            } else {
                "fired"
            };
            let number = Expr::Lit(span.clone(), Literal::Int(number));
            let call = Expr::Call(span.clone(), relation.into(), vec![number, target.clone()]);
            head.push(Action::Expr(span.clone(), call));
        }
    }
    rule.command("rules", head)
}

fn is_tuple(expr: &Expr, tuples: &[String], symbols: &HashMap<String, Constructor>) -> bool {
    match expr {
        Expr::Var(_, name) => tuples.contains(name),
        Expr::Call(_, name, _) => symbols.get(name).is_some_and(|s| s.is_tuple()),
        Expr::Lit(..) => false,
    }
}

/// Returns the variables that represent the results of a call with several results.
fn tuple_variables(rule: &Rule, symbols: &HashMap<String, Constructor>) -> Vec<String> {
    let mut tuples = Vec::new();
    let mut note = |expr: &Expr| {
        if let Expr::Var(_, name) = expr {
            tuples.push(name.clone());
        }
    };
    let is_tuple_call =
        |e: &Expr| matches!(e, Expr::Call(_, name, _) if symbols.get(name).is_some_and(|s| s.is_tuple()));
    for fact in &rule.body {
        if let Fact::Eq(_, a, b) = fact {
            if is_tuple_call(b) {
                note(a);
            }
            if is_tuple_call(a) {
                note(b);
            }
        }
    }
    for action in &rule.head {
        if let Action::Let(span, name, value) = action
            && is_tuple_call(value)
        {
            note(&Expr::Var(span.clone(), name.clone()));
        }
    }
    for_each_expr(rule, &mut |expr| {
        if let Expr::Call(_, name, args) = expr
            && name == "Get"
        {
            args.iter().skip(1).for_each(&mut note);
        }
    });
    tuples
}

/// Returns all names that a rule applies, in order of appearance.
fn names(rule: &Rule) -> Vec<String> {
    let mut names = Vec::new();
    for_each_expr(rule, &mut |expr| {
        if let Expr::Call(_, name, _) = expr {
            names.push(name.clone());
        }
    });
    names
}

/// Calls `visit` with every expression of a rule, including subexpressions.
fn for_each_expr(rule: &Rule, visit: &mut dyn FnMut(&Expr)) {
    fn walk(expr: &Expr, visit: &mut dyn FnMut(&Expr)) {
        visit(expr);
        if let Expr::Call(_, _, args) = expr {
            args.iter().for_each(|a| walk(a, visit));
        }
    }
    for fact in &rule.body {
        match fact {
            Fact::Eq(_, a, b) => [a, b].into_iter().for_each(|e| walk(e, visit)),
            Fact::Fact(e) => walk(e, visit),
        }
    }
    for action in &rule.head {
        match action {
            Action::Let(_, _, e) | Action::Expr(_, e) => walk(e, visit),
            Action::Union(_, a, b) => [a, b].into_iter().for_each(|e| walk(e, visit)),
            Action::Set(_, _, args, e) => args.iter().chain([e]).for_each(|e| walk(e, visit)),
            Action::Change(_, _, _, args) => args.iter().for_each(|e| walk(e, visit)),
            Action::Panic(..) => {}
        }
    }
}
