//! Greedy choices: what is taken when the budget is spent, and what a search has to beat.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::flat::{Flat, NONE};
use super::walk::walk;

/// Classes above which the sets of the greedy DAG choice would take too much memory.
const MAX_CLASSES: usize = 8192;
/// Words of sets that it may touch.
const WORDS: usize = 1 << 23;
/// Repairs after which all exclusive sets are done without.
const ATTEMPTS: u32 = 32;

/// A choice for each class needed, and what they cost.
pub(super) type Chosen = (u64, Vec<u32>);

/// The best of the greedy choices that uses at most one class of each exclusive set; `None` where none was found.
///
/// Where a greedy choice uses several of a set, one stays, the rest are banned, and it is made again.
pub(super) fn greedy(flat: &Flat) -> Option<Chosen> {
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

/// Members of a set that a choice uses.
fn used<'a>(set: &'a [u32], chosen: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    set.iter().copied().filter(|&c| chosen[c as usize] != NONE)
}

/// All classes of exclusive sets banned but the roots, where that leaves a solution.
fn without_sets(flat: &Flat) -> Option<Vec<bool>> {
    let mut banned = flat.is_exclusive.clone();
    flat.roots.iter().for_each(|&c| banned[c as usize] = false);
    let roots = |set: &Vec<u32>| set.iter().filter(|c| !banned[**c as usize]).count();
    (flat.exclusive.iter().all(|s| roots(s) < 2) && groundable(flat, &banned)).then_some(banned)
}

/// Whether all roots can be computed without the banned classes.
fn groundable(flat: &Flat, banned: &[bool]) -> bool {
    let grounded = flat.ground(&mut vec![true; flat.cost.len()], banned);
    flat.roots.iter().all(|&c| grounded[c as usize])
}

/// The better of both ways, without regard to the exclusive sets.
fn unrestricted(flat: &Flat, banned: &[bool]) -> Option<Chosen> {
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

/// Keeps what the roots need and sums it; `None` where something is missing or on a cycle.
pub(super) fn needed(flat: &Flat, chosen: &[u32]) -> Option<Chosen> {
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

/// For each class the choice of the cheapest tree, nothing shared, cheapest classes first (Knuth). Never a cycle.
fn tree(flat: &Flat, alive: &[bool]) -> Vec<u32> {
    let (first, users) = flat.users();
    let mut missing: Vec<u32> = (0..flat.cost.len()).map(|k| flat.kids(k).len() as u32).collect();
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

/// For each class the choice whose set of needed classes is the cheapest, each counted once, given the sets of
/// its kids: the greedy DAG extraction known from e-graph literature. Gives up where the sets grow too large.
fn dag(flat: &Flat, alive: &[bool]) -> Vec<u32> {
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
    let mut queued: Vec<bool> = (0..flat.cost.len()).map(|k| flat.kids(k).is_empty()).collect();
    let mut queue: VecDeque<u32> = (0..flat.cost.len() as u32).filter(|&k| queued[k as usize]).collect();
    let mut words = 0;
    while let Some(k) = queue.pop_front() {
        queued[k as usize] = false;
        let kids = flat.kids(k as usize);
        if !alive[k as usize] || kids.iter().any(|&x| chosen[x as usize] == NONE) {
            continue;
        }
        words += (kids.len() + 1) * width;
        if words > WORDS {
            break;
        }
        set.fill(0);
        for &x in kids {
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
