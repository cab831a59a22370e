//! Saturation: applies the rules and assigns types, in turn, within budgets.

use std::time::{Duration, Instant};

use egglog::Write;
use rustc_hash::FxHashMap;

use super::state::{ClassKey, Row, State};
use super::types::{ClassType, Label, TypeId};
use meganeura_core::config::RewriteConfig;
use meganeura_core::error::{Error, Result};

/// Limits of saturation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of rounds of all rules.
    pub iterations: usize,
    /// Maximum number of rows of the e-graph's tables.
    pub tuples: usize,
    /// Maximum time of saturation; checked between rounds.
    pub time: Duration,
}

impl Limits {
    pub(super) fn of(config: &RewriteConfig) -> Self {
        Limits {
            iterations: config.iterations,
            tuples: config.tuples,
            time: Duration::from_millis(config.time_ms),
        }
    }
}

/// Result of saturation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Saturation {
    pub(super) iterations: usize,
    /// The budget that ended it, if one did.
    pub(super) budget: Option<String>,
}

/// Runs the rules until nothing changes or a budget is exhausted. Every new class has a type
/// afterwards.
///
/// # Errors
/// [`Error::RuleSet`] when a rule created a call that its operator rejects, or merged values of two
/// types into one class.
pub(super) fn saturate(state: &mut State, limits: &Limits) -> Result<Saturation> {
    let start = Instant::now();
    let mut outcome = Saturation::default();
    loop {
        let typed = assign_types(state)?;
        let tuples = state.egraph.num_tuples();
        let spent = |what: &str, limit: String| Some(format!("{what} ({limit})"));
        if tuples > limits.tuples {
            outcome.budget = spent("tuples", limits.tuples.to_string());
        } else if start.elapsed() > limits.time {
            outcome.budget = spent("time", format!("{} ms", limits.time.as_millis()));
        } else if outcome.iterations >= limits.iterations {
            outcome.budget = spent("iterations", limits.iterations.to_string());
        }
        if outcome.budget.is_some() {
            return Ok(outcome);
        }
        let step = state
            .egraph
            .step_rules("rules")
            .map_err(|e| Error::graph(e.to_string(), ""))?;
        outcome.iterations += 1;
        log::trace!(
            "rewriting, round {}: {tuples} rows before, {:.1} ms since the start; times of rules, least first:\n{step}",
            outcome.iterations,
            start.elapsed().as_secs_f64() * 1e3
        );
        if step.can_stop && !typed {
            return Ok(outcome);
        }
    }
}

/// Assigns types to all classes without one, by the shape rules of their e-nodes, and checks all other types. Returns
/// whether a type was assigned.
fn assign_types(state: &mut State) -> Result<bool> {
    let rows = state.rows()?;
    read_types(state)?;
    let mut fresh: Vec<(ClassKey, ClassType)> = Vec::new();
    let mut open: Vec<&Row> = rows.iter().collect();
    loop {
        let before = open.len();
        let mut rest = Vec::new();
        for row in open {
            match type_of(state, row)? {
                None => rest.push(row),
                Some(ty) => match state.class_types.get(&row.class) {
                    Some(known) if *known == ty => {}
                    Some(known) => return Err(mixed_types(state, row, known, &ty)),
                    None => {
                        state.class_types.insert(row.class, ty.clone());
                        fresh.push((row.class, ty));
                    }
                },
            }
        }
        if rest.is_empty() || rest.len() == before {
            break;
        }
        open = rest;
    }
    if fresh.is_empty() {
        return Ok(false);
    }
    record(state, &rows, &fresh)?;
    Ok(true)
}

/// Reads the type of each class from the e-graph, as the last round may have merged classes.
fn read_types(state: &mut State) -> Result<()> {
    let mut types: FxHashMap<ClassKey, ClassType> = state
        .class_facts("type")?
        .into_iter()
        .map(|(class, id)| (class, ClassType::One(id as TypeId)))
        .collect();
    // Results of a call with several results have no type fact in the e-graph. Their types are inferred again if
    // classes were merged.
    types.extend(state.class_types.drain().filter(|((tuple, _), _)| *tuple));
    state.class_types = types;
    Ok(())
}

/// Returns the type of an e-node; `None` while an operand has none.
fn type_of(state: &mut State, row: &Row) -> Result<Option<ClassType>> {
    let mut operands = Vec::with_capacity(row.children.len());
    for child in &row.children {
        match state.class_types.get(child) {
            Some(ClassType::One(id)) => operands.push(*id),
            Some(several @ ClassType::Several(_)) => operands.extend(several.as_list()),
            None => return Ok(None),
        }
    }
    match *state.labels.get(row.label) {
        // Leaves and pinned calls come from the graph, and so do their types.
        Label::Leaf(_) | Label::Pinned(_) => Ok(state.class_types.get(&row.class).cloned()),
        Label::Get(port) => match operands.get(port as usize) {
            Some(&id) => Ok(Some(ClassType::One(id))),
            None => Err(ill_typed(state, row, &format!("there is no result {port}"))),
        },
        Label::Call(..) => {
            let results = state
                .inference
                .results(&state.labels, &mut state.types, row.label, &operands);
            match results {
                Ok(ids) if row.class.0 => Ok(Some(ClassType::Several(ids))),
                Ok(ids) => match ids.first() {
                    Some(&id) => Ok(Some(ClassType::One(id))),
                    None => Err(ill_typed(state, row, "it has no result")),
                },
                Err(message) => Err(ill_typed(state, row, &message)),
            }
        }
    }
}

/// Writes new types into the e-graph, and other facts that follow from the operands.
fn record(state: &mut State, rows: &[Row], fresh: &[(ClassKey, ClassType)]) -> Result<()> {
    let ords = order_numbers(state, rows, fresh)?;
    let mut egraph = std::mem::take(&mut state.egraph);
    let result = egraph.update(|mut fs| {
        for ((tuple, value), ty) in fresh {
            if let (false, ClassType::One(id)) = (tuple, ty) {
                fs.set("type", (*value,), i64::from(*id))?;
                if let Some(&ord) = ords.get(&(false, *value)) {
                    fs.set("ord", (*value,), ord)?;
                }
            }
        }
        state.describe_types(&mut fs)
    });
    state.egraph = egraph;
    result.map_err(|e| Error::graph(e.to_string(), ""))
}

/// Returns the numbers of new classes for the fact `ord`: the minimum of their operands' numbers.
fn order_numbers(state: &State, rows: &[Row], fresh: &[(ClassKey, ClassType)]) -> Result<FxHashMap<ClassKey, i64>> {
    let mut ords = state.class_facts("ord")?;
    let mut open: FxHashMap<ClassKey, Vec<&Row>> = fresh.iter().map(|(class, _)| (*class, Vec::new())).collect();
    for row in rows {
        if let Some(list) = open.get_mut(&row.class) {
            list.push(row);
        }
    }
    // Classes are ordered so that operands have types first.
    for (class, _) in fresh {
        let smallest = open[class]
            .iter()
            .flat_map(|row| row.children.iter().filter_map(|c| ords.get(c)))
            .min()
            .copied();
        if let Some(smallest) = smallest {
            ords.entry(*class).or_insert(smallest);
        }
    }
    Ok(ords)
}

fn mixed_types(state: &State, row: &Row, known: &ClassType, found: &ClassType) -> Error {
    let list = |ty: &ClassType| {
        let types: Vec<String> = ty.as_list().iter().map(|&id| state.types.get(id).to_string()).collect();
        types.join(", ")
    };
    let message = format!(
        "it equates {} with {}, which comes from {}",
        list(known),
        list(found),
        describe(state, row)
    );
    blame(state, row, message)
}

fn ill_typed(state: &State, row: &Row, why: &str) -> Error {
    let operands: Vec<String> = row
        .children
        .iter()
        .filter_map(|c| state.class_types.get(c))
        .flat_map(|ty| ty.as_list().iter().map(|&id| state.types.get(id).to_string()))
        .collect();
    let message = format!("it builds {} from {}: {why}", describe(state, row), operands.join(", "));
    blame(state, row, message)
}

fn describe(state: &State, row: &Row) -> String {
    match (state.labels.get(row.label), state.operator(row.label)) {
        (_, Some((op, attrs))) if attrs.is_empty() => op.name().to_owned(),
        (_, Some((op, attrs))) => format!("{}[{attrs}]", op.name()),
        (label, None) => format!("{label:?}"),
    }
}

/// Returns the error of the rule that created an e-node: one that fired on its class, else one that
/// creates such calls.
fn blame(state: &State, row: &Row, message: String) -> Error {
    let rules = &state.dialect.rules;
    let fired = state.fired().unwrap_or_default();
    let on_class = fired.0.get(&row.class).and_then(|rules| rules.last()).copied();
    let name = state.operator(row.label).map(|(op, _)| op.get().name());
    let makes = |&i: &usize| {
        let text = rules[i].head.iter().map(ToString::to_string).collect::<String>();
        fired.1[i] > 0 && name.is_some_and(|n| text.contains(n))
    };
    match on_class.or_else(|| (0..rules.len()).find(makes)) {
        Some(i) => Error::RuleSet {
            set: rules[i].set.clone(),
            rule: Some(rules[i].name.clone()),
            span: Some(rules[i].span.to_string()),
            message,
        },
        None => Error::graph(
            format!("a rewrite rule is unsound: {message}"),
            "disable rule sets one by one to find it",
        ),
    }
}
