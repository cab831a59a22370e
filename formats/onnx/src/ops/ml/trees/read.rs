//! Trees in the attributes of nodes.

use std::collections::HashMap;

use super::forest::{Branch, Forest, MODES, Mode, Node};
use crate::import::Call;
use crate::ops::limits;
use crate::ops::ml::{expect_len, floats, ints};

/// Returns the numbers of the attribute `NAME`, or of the tensor `NAME_as_tensor`.
pub(super) fn numbers(call: &Call, name: &str) -> Result<Vec<f64>, String> {
    let list = floats(call, name)?;
    let tensor = call.attributes().tensor(&format!("{name}_as_tensor"))?;
    match tensor {
        Some(_) if !list.is_empty() => Err(format!("expected {name} or {name}_as_tensor, found both")),
        Some(proto) => Ok(call.read(proto)?.to_f64()),
        None => Ok(list.iter().map(|&v| v.into()).collect()),
    }
}

fn missing_tracks(call: &Call, nodes: usize) -> Result<Vec<bool>, String> {
    let list = ints(call, "nodes_missing_value_tracks_true")?;
    if list.is_empty() {
        return Ok(vec![false; nodes]);
    }
    expect_len("nodes_missing_value_tracks_true", list.len(), nodes)?;
    Ok(list.iter().map(|&v| v != 0).collect())
}

/// Checks the number of nodes.
fn check_count(nodes: usize) -> Result<(), String> {
    if nodes == 0 {
        return Err("expected at least one tree, found none".into());
    }
    limits::elements(&[2, nodes], "nodes").map(drop)
}

fn feature(id: i64) -> Result<usize, String> {
    let found = usize::try_from(id).ok();
    found.ok_or_else(|| format!("nodes_featureids: expected at least 0, found {id}"))
}

fn target(name: &str, id: i64, targets: usize) -> Result<usize, String> {
    let found = usize::try_from(id).ok().filter(|&n| n < targets);
    found.ok_or_else(|| format!("{name}: expected numbers below {targets}, found {id}"))
}

/// Reads the trees of TreeEnsembleClassifier and TreeEnsembleRegressor. The attributes of the weights begin with `prefix`:
/// `class` or `target`.
pub(super) fn older(call: &Call, prefix: &str, targets: usize) -> Result<Forest, String> {
    let (trees, ids) = (ints(call, "nodes_treeids")?, ints(call, "nodes_nodeids")?);
    let count = trees.len();
    check_count(count)?;
    let features = ints(call, "nodes_featureids")?;
    let (yes, no) = (ints(call, "nodes_truenodeids")?, ints(call, "nodes_falsenodeids")?);
    let modes = call.attributes().strings("nodes_modes")?.unwrap_or_default();
    let values = numbers(call, "nodes_values")?;
    let nan_is_true = missing_tracks(call, count)?;
    for (name, found) in [
        ("nodes_nodeids", ids.len()),
        ("nodes_featureids", features.len()),
        ("nodes_truenodeids", yes.len()),
        ("nodes_falsenodeids", no.len()),
        ("nodes_modes", modes.len()),
        ("nodes_values", values.len()),
    ] {
        expect_len(name, found, count)?;
    }
    let mut places = HashMap::new();
    let mut forest = Forest::default();
    let mut previous = HashMap::new();
    for (i, (&tree, &id)) in trees.iter().zip(ids).enumerate() {
        if places.insert((tree, id), i).is_some() {
            return Err(format!("expected one node {id} of tree {tree}, found two"));
        }
        // The first node of a tree is its root.
        previous.entry(tree).or_insert_with(|| forest.roots.push(i));
    }
    for i in 0..count {
        let child = |name: &str, id: i64| {
            let place = places.get(&(trees[i], id)).copied();
            place.ok_or_else(|| format!("{name}: expected a node of tree {}, found {id}", trees[i]))
        };
        forest.nodes.push(if modes[i] == "LEAF" {
            Node::Leaf(Vec::new())
        } else {
            let found = MODES
                .iter()
                .find(|(mode, name)| *name == modes[i] && *mode != Mode::Member);
            let &(mode, _) = found.ok_or_else(|| {
                let known: Vec<&str> = MODES[..6].iter().map(|(_, name)| *name).collect();
                format!(
                    "nodes_modes: expected LEAF or one of {}, found `{}`",
                    known.join(", "),
                    modes[i]
                )
            })?;
            Node::Branch(Branch {
                feature: feature(features[i])?,
                mode,
                threshold: values[i],
                set: 0,
                children: [child("nodes_falsenodeids", no[i])?, child("nodes_truenodeids", yes[i])?],
                nan_is_true: nan_is_true[i],
            })
        });
    }
    let [tree_name, node_name, id_name] = ["treeids", "nodeids", "ids"].map(|name| format!("{prefix}_{name}"));
    let (weight_trees, weight_nodes) = (ints(call, &tree_name)?, ints(call, &node_name)?);
    let weight_ids = ints(call, &id_name)?;
    let weights = numbers(call, &format!("{prefix}_weights"))?;
    expect_len(&node_name, weight_nodes.len(), weights.len())?;
    expect_len(&tree_name, weight_trees.len(), weights.len())?;
    expect_len(&id_name, weight_ids.len(), weights.len())?;
    for (i, &weight) in weights.iter().enumerate() {
        let (tree, node) = (weight_trees[i], weight_nodes[i]);
        let place = places.get(&(tree, node));
        let &place = place.ok_or_else(|| format!("{node_name}: expected a node of tree {tree}, found {node}"))?;
        let target = target(&id_name, weight_ids[i], targets)?;
        // Weights of nodes with children have no effect.
        if let Node::Leaf(list) = &mut forest.nodes[place] {
            list.push((target, weight));
        }
    }
    Ok(forest)
}

/// Returns the numbers of a tensor attribute, which must exist.
fn tensor(call: &Call, name: &str) -> Result<Vec<f64>, String> {
    match call.attributes().tensor(name)? {
        Some(proto) => Ok(call.read(proto)?.to_f64()),
        None => Err(format!("attribute `{name}` is missing")),
    }
}

/// Returns the sets of members. In the attribute, NaN separates the sets.
fn sets(call: &Call, count: usize) -> Result<Vec<Vec<f64>>, String> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut values = tensor(call, "membership_values")?;
    if values.last().is_some_and(|v| v.is_nan()) {
        values.pop();
    }
    let sets: Vec<Vec<f64>> = values.split(|v| v.is_nan()).map(<[f64]>::to_vec).collect();
    if sets.len() == count {
        Ok(sets)
    } else {
        let found = sets.len();
        Err(format!(
            "membership_values: expected {count} sets (nodes with BRANCH_MEMBER), found {found}"
        ))
    }
}

/// Reads the trees of TreeEnsemble.
pub(super) fn newer(call: &Call, targets: usize) -> Result<Forest, String> {
    let features = ints(call, "nodes_featureids")?;
    let count = features.len();
    check_count(count)?;
    let (yes, no) = (ints(call, "nodes_truenodeids")?, ints(call, "nodes_falsenodeids")?);
    let (yes_leaf, no_leaf) = (ints(call, "nodes_trueleafs")?, ints(call, "nodes_falseleafs")?);
    let (values, modes) = (tensor(call, "nodes_splits")?, tensor(call, "nodes_modes")?);
    let nan_is_true = missing_tracks(call, count)?;
    for (name, found) in [
        ("nodes_truenodeids", yes.len()),
        ("nodes_falsenodeids", no.len()),
        ("nodes_trueleafs", yes_leaf.len()),
        ("nodes_falseleafs", no_leaf.len()),
        ("nodes_splits", values.len()),
        ("nodes_modes", modes.len()),
    ] {
        expect_len(name, found, count)?;
    }
    let (leaf_targets, weights) = (ints(call, "leaf_targetids")?, tensor(call, "leaf_weights")?);
    expect_len("leaf_targetids", leaf_targets.len(), weights.len())?;
    limits::elements(&[weights.len()], "leaf_weights")?;
    let place = |name: &str, id: i64, is_leaf: bool| {
        let (size, start, kind) = if is_leaf {
            (weights.len(), count, "leaves")
        } else {
            (count, 0, "nodes")
        };
        let found = usize::try_from(id).ok().filter(|&n| n < size);
        let wrong = || format!("{name}: expected {kind} below {size}, found {id}");
        found.map(|n| start + n).ok_or_else(wrong)
    };
    let mut forest = Forest::default();
    let mut members = 0;
    for i in 0..count {
        let known = MODES.iter().enumerate().find(|(number, _)| *number as f64 == modes[i]);
        let Some((_, &(mode, _))) = known else {
            return Err(format!("nodes_modes: expected 0 to 6, found {}", modes[i]));
        };
        let set = members;
        members += usize::from(mode == Mode::Member);
        forest.nodes.push(Node::Branch(Branch {
            feature: feature(features[i])?,
            mode,
            threshold: values[i],
            set: if mode == Mode::Member { set } else { 0 },
            children: [
                place("nodes_falsenodeids", no[i], no_leaf[i] != 0)?,
                place("nodes_truenodeids", yes[i], yes_leaf[i] != 0)?,
            ],
            nan_is_true: nan_is_true[i],
        }));
    }
    for (&id, &weight) in leaf_targets.iter().zip(&weights) {
        let target = target("leaf_targetids", id, targets)?;
        forest.nodes.push(Node::Leaf(vec![(target, weight)]));
    }
    for &root in ints(call, "tree_roots")? {
        forest.roots.push(place("tree_roots", root, false)?);
    }
    forest.sets = sets(call, members)?;
    Ok(forest)
}
