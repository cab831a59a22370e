//! Greedy selection. It gives the result if the budget is exhausted, and the initial bound of a search.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::flat::{FlatClasses, NONE};
use super::walk::walk;

/// Number of classes above which the sets of the greedy DAG extraction would take too much memory.
const MAX_CLASSES: usize = 8192;
/// Maximum number of 64-bit words that the greedy DAG extraction may process in its sets.
const WORDS: usize = 1 << 23;
/// Number of repairs after which all exclusive sets are avoided.
const ATTEMPTS: u32 = 32;

/// A choice for each needed class, and the total cost.
pub(super) type Selection = (u64, Vec<u32>);

/// Returns the best greedy selection that uses at most one class of each exclusive set; `None` if none was found.
///
/// If a greedy selection uses several classes of a set, one is kept, the rest are banned, and the
/// selection is repeated.
pub(super) fn greedy(flat: &FlatClasses) -> Option<Selection> {
    let mut banned = vec![false; flat.len()];
    for attempt in 0.. {
        let chosen = unrestricted(flat, &banned)?;
        let Some(set) = flat.exclusive.iter().find(|s| used(s, &chosen.1).nth(1).is_some()) else {
            return Some(chosen);
        };
        let members: Vec<u32> = used(set, &chosen.1).collect();
        let possible = members.iter().find_map(|keep| {
            let mut banned = banned.clone();
            set.iter()
                .filter(|c| *c != keep)
                .for_each(|&c| banned[c as usize] = true);
            groundable(flat, &banned).then_some(banned)
        });
        banned = possible.filter(|_| attempt < ATTEMPTS).or_else(|| without_sets(flat))?;
    }
    None
}

/// Returns the members of a set that a selection uses.
fn used<'a>(set: &'a [u32], chosen: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    set.iter().copied().filter(|&c| chosen[c as usize] != NONE)
}

/// Returns the set of banned classes that contains all classes of exclusive sets except roots; `None` if that leaves no
/// solution.
fn without_sets(flat: &FlatClasses) -> Option<Vec<bool>> {
    let mut banned = flat.is_exclusive.clone();
    flat.roots.iter().for_each(|&c| banned[c as usize] = false);
    let roots = |set: &Vec<u32>| set.iter().filter(|c| !banned[**c as usize]).count();
    (flat.exclusive.iter().all(|s| roots(s) < 2) && groundable(flat, &banned)).then_some(banned)
}

/// Returns `true` if all roots can be computed without the banned classes.
fn groundable(flat: &FlatClasses, banned: &[bool]) -> bool {
    let grounded = flat.ground(&mut vec![true; flat.cost.len()], banned);
    flat.roots.iter().all(|&c| grounded[c as usize])
}

/// Returns the better result of both greedy methods, which ignore exclusive sets.
fn unrestricted(flat: &FlatClasses, banned: &[bool]) -> Option<Selection> {
    let mut alive = vec![true; flat.cost.len()];
    let grounded = flat.ground(&mut alive, banned);
    if !flat.roots.iter().all(|&c| grounded[c as usize]) {
        return None;
    }
    let tree = needed(flat, &tree(flat, &alive));
    let dag = needed(flat, &dag(flat, &alive));
    match (tree, dag) {
        (Some(tree), Some(dag)) => Some(if dag.0 <= tree.0 { dag } else { tree }),
        (tree, dag) => tree.or(dag),
    }
}

/// Returns the choices that the roots need, and their total cost; `None` if a choice is missing or on a cycle.
pub(super) fn needed(flat: &FlatClasses, chosen: &[u32]) -> Option<Selection> {
    let mut alive = vec![false; flat.cost.len()];
    for &k in chosen.iter().filter(|k| **k != NONE) {
        alive[k as usize] = true;
    }
    let walk = walk(flat, &alive, &vec![false; flat.len()]);
    let mut kept = vec![NONE; flat.len()];
    let mut cost = 0u64;
    for &c in &walk.order {
        let k = chosen[c as usize];
        if k == NONE || walk.cyclic(c) {
            return None;
        }
        kept[c as usize] = k;
        cost = cost.saturating_add(flat.cost[k as usize]);
    }
    Some((cost, kept))
}

/// Returns for each class the choice of the cheapest tree, without sharing, computed from the
/// cheapest classes up (Knuth). It has no cycles.
fn tree(flat: &FlatClasses, alive: &[bool]) -> Vec<u32> {
    let (first, users) = flat.users();
    let mut missing: Vec<u32> = (0..flat.cost.len()).map(|k| flat.children(k).len() as u32).collect();
    let mut cost: Vec<u64> = flat.cost.clone();
    let mut chosen = vec![NONE; flat.len()];
    let mut heap: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    let leaves = (0..flat.cost.len()).filter(|&k| alive[k] && missing[k] == 0);
    heap.extend(leaves.map(|k| Reverse((flat.cost[k], k as u32))));
    while let Some(Reverse((total, k))) = heap.pop() {
        let c = flat.class_of[k as usize] as usize;
        if chosen[c] != NONE {
            continue;
        }
        chosen[c] = k;
        for &user in &users[first[c] as usize..first[c + 1] as usize] {
            let u = user as usize;
            missing[u] -= 1;
            cost[u] = cost[u].saturating_add(total);
            if missing[u] == 0 && alive[u] {
                heap.push(Reverse((cost[u], user)));
            }
        }
    }
    chosen
}

/// Returns for each class the choice with the cheapest set of needed classes, each counted once,
/// given the sets of its children: the greedy DAG extraction of the e-graph literature. Gives up if the
/// sets grow too large.
fn dag(flat: &FlatClasses, alive: &[bool]) -> Vec<u32> {
    let n = flat.len();
    let mut chosen = vec![NONE; n];
    if n > MAX_CLASSES {
        return chosen;
    }
    let width = n.div_ceil(64);
    let (first, users) = flat.users();
    let mut own = vec![0u64; n];
    let mut total = vec![u64::MAX; n];
    let mut sets = vec![0u64; n * width];
    let mut set = vec![0u64; width];
    let mut queued: Vec<bool> = (0..flat.cost.len()).map(|k| flat.children(k).is_empty()).collect();
    let mut queue: VecDeque<u32> = (0..flat.cost.len() as u32).filter(|&k| queued[k as usize]).collect();
    let mut words = 0;
    while let Some(k) = queue.pop_front() {
        queued[k as usize] = false;
        let children = flat.children(k as usize);
        if !alive[k as usize] || children.iter().any(|&x| chosen[x as usize] == NONE) {
            continue;
        }
        words += (children.len() + 1) * width;
        if words > WORDS {
            break;
        }
        set.fill(0);
        for &x in children {
            let other = &sets[x as usize * width..(x as usize + 1) * width];
            set.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
        }
        let c = flat.class_of[k as usize] as usize;
        if set[c / 64] >> (c % 64) & 1 == 1 {
            continue;
        }
        let mut cost = flat.cost[k as usize];
        for (i, &word) in set.iter().enumerate() {
            let mut word = word;
            while word != 0 {
                cost = cost.saturating_add(own[i * 64 + word.trailing_zeros() as usize]);
                word &= word - 1;
            }
        }
        if cost < total[c] || chosen[c] == NONE {
            set[c / 64] |= 1 << (c % 64);
            sets[c * width..(c + 1) * width].copy_from_slice(&set);
            (total[c], own[c], chosen[c]) = (cost, flat.cost[k as usize], k);
            for &user in &users[first[c] as usize..first[c + 1] as usize] {
                if !queued[user as usize] {
                    queued[user as usize] = true;
                    queue.push_back(user);
                }
            }
        }
    }
    chosen
}
