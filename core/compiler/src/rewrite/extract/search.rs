//! The search: reduces, splits, and branches for each component; each branch is a smaller problem
//! of the same kind.

use std::collections::HashMap;

use super::components::{Component, signature, split};
use super::extraction::Stats;
use super::flat::{FlatClasses, NONE};
use super::greedy_dag::{Selection, greedy, needed};
use super::meter::Meter;
use super::reduce::{Reduction, reduce};
use super::walk::walk;

/// Maximum number of rounds of reduction of the whole problem. Later reductions happen in the components, once for each
/// distinct one.
const ROUNDS: u32 = 16;
/// Maximum nesting of branches, so that the stack stays small.
const DEPTH: u32 = 128;

/// Maximum number of times that components in a cycle are joined, before a greedy selection is
/// used.
const MAX_JOINS: u32 = 64;

/// Result of a search for solutions that cost less than a bound.
#[derive(Clone)]
pub(super) struct Answer {
    /// The best solution that was found.
    pub best: Option<Selection>,
    /// `true` if no better solution exists.
    pub proven: bool,
}

impl Answer {
    const NONE: Answer = Answer {
        best: None,
        proven: true,
    };
    const UNKNOWN: Answer = Answer {
        best: None,
        proven: false,
    };
}

/// A solved component.
struct SolvedComponent {
    answer: Answer,
    bound: u64,
}

/// Solver of problems, with a cache of solved components.
pub(super) struct Solver {
    pub meter: Meter,
    pub stats: Stats,
    known: HashMap<Vec<u64>, SolvedComponent>,
}

impl Solver {
    pub(super) fn new(meter: Meter) -> Self {
        Solver {
            meter,
            stats: Stats::default(),
            known: HashMap::new(),
        }
    }

    /// Finds the best solution that costs less than `bound`. If the budget is exhausted, depth 0 returns at least a
    /// greedy selection, and greater depths return without a solution.
    pub(super) fn solve(&mut self, flat: &FlatClasses, bound: u64, depth: u32) -> Answer {
        let rounds = if depth == 0 { ROUNDS } else { u32::MAX };
        let Some(r) = reduce(flat, rounds, &mut self.meter) else {
            return Answer::NONE;
        };
        if depth > 0 && self.meter.spent {
            return Answer::UNKNOWN;
        }
        let mut chosen = vec![NONE; flat.len()];
        for (k, _) in r.alive.iter().enumerate().filter(|(_, alive)| **alive) {
            let c = flat.class_of[k] as usize;
            if r.count[c] == 1 {
                chosen[c] = k as u32;
            }
        }
        let settled = |c: &&u32| r.forced[**c as usize] && r.count[**c as usize] == 1;
        let cost_of = |c: &u32| flat.cost[chosen[*c as usize] as usize];
        let fixed = r.walk.order.iter().filter(settled).map(cost_of);
        let fixed = fixed.fold(0u64, u64::saturating_add);
        let mut joined: Vec<Vec<u32>> = Vec::new();
        let mut last = None;
        for _ in 0..MAX_JOINS {
            let components = split(flat, &r, &joined);
            let state = (components.len(), distinct(&joined));
            if last == Some(state) {
                return Answer::UNKNOWN;
            }
            last = Some(state);
            if depth == 0 {
                self.note(&r, &components);
            }
            let (cost, proven) = match self.combine(&components, fixed, bound, depth, &mut chosen) {
                Ok(found) => found,
                Err(answer) => return answer,
            };
            let cycles = cycles(flat, &r, &chosen);
            if cycles.is_empty() {
                let best = Some((cost, chosen));
                return Answer { best, proven };
            }
            self.stats.joins += cycles.len() as u32;
            joined.extend(cycles);
        }
        Answer::UNKNOWN
    }

    fn note(&mut self, r: &Reduction, components: &[Component]) {
        self.stats.rounds = r.rounds;
        self.stats.classes = r.walk.order.len();
        self.stats.forced = r.walk.order.iter().filter(|c| r.forced[**c as usize]).count();
        self.stats.open = components.iter().map(|c| c.classes.len()).sum();
        self.stats.components = components.len();
        self.stats.largest = components.iter().map(|c| c.classes.len()).max().unwrap_or(0);
    }

    /// Solves the components, small ones first, and writes their choices to `chosen`. Returns the total cost and
    /// whether it is proven to be the minimum; or the reason why no solution is below the bound.
    fn combine(
        &mut self,
        components: &[Component],
        fixed: u64,
        bound: u64,
        depth: u32,
        chosen: &mut [u32],
    ) -> Result<(u64, bool), Answer> {
        let lowers = components.iter().map(|c| c.lower);
        let mut rest = lowers.fold(0u64, u64::saturating_add);
        let mut cost = fixed;
        if cost.saturating_add(rest) >= bound {
            return Err(Answer::NONE);
        }
        let mut order: Vec<&Component> = components.iter().collect();
        order.sort_by_key(|c| c.flat.cost.len());
        let mut proven = true;
        for component in order {
            rest = rest.saturating_sub(component.lower);
            let room = bound.saturating_sub(cost).saturating_sub(rest);
            let answer = self.component(component, room, depth);
            let Some((more, choices)) = answer.best else {
                return Err(Answer { best: None, ..answer });
            };
            proven &= answer.proven;
            cost = cost.saturating_add(more);
            for (&c, &k) in component.classes.iter().zip(&choices) {
                chosen[c as usize] = if k == NONE {
                    NONE
                } else {
                    component.flat.origin[k as usize]
                };
            }
        }
        Ok((cost, proven))
    }

    /// Solves a component, or reuses its cached solution.
    fn component(&mut self, component: &Component, bound: u64, depth: u32) -> Answer {
        let key = signature(&component.flat);
        if let Some(known) = self.known.get(&key) {
            let Answer { best, proven } = &known.answer;
            let settled = best.is_some() || known.bound >= bound || !proven;
            if settled {
                self.stats.reused += 1;
                let best = best.clone().filter(|(cost, _)| *cost < bound);
                return Answer { best, proven: *proven };
            }
        }
        self.stats.solved += 1;
        let counting = std::mem::replace(&mut self.meter.counting, true);
        let answer = self.search(component, bound, depth);
        self.meter.counting = counting;
        let known = SolvedComponent {
            answer: answer.clone(),
            bound,
        };
        self.known.insert(key, known);
        answer
    }

    /// Solves a component: first greedily, then by searching both branches of a decision.
    fn search(&mut self, component: &Component, bound: u64, depth: u32) -> Answer {
        let flat = &component.flat;
        let mut limit = bound;
        let mut best = None;
        if depth == 0 || bound > u64::MAX / 2 {
            best = greedy(flat).filter(|(cost, _)| *cost < bound);
            limit = best.as_ref().map_or(bound, |(cost, _)| *cost);
        }
        if component.lower >= limit {
            return Answer { best, proven: true };
        }
        if depth >= DEPTH || !self.meter.tick(flat.cost.len()) {
            return Answer { best, proven: false };
        }
        let mut proven = true;
        let Some(branches) = branches(flat) else {
            return Answer { best, proven: false };
        };
        for branch in branches {
            let answer = self.solve(&branch, limit, depth + 1);
            proven &= answer.proven;
            if let Some((_, chosen)) = answer.best {
                let back = |&k: &u32| if k == NONE { NONE } else { branch.origin[k as usize] };
                let chosen: Vec<u32> = chosen.iter().map(back).collect();
                // A branch may require a class that its solution does not use. The cost of such a class is not counted.
                if let Some(found) = needed(flat, &chosen)
                    && found.0 < limit
                {
                    limit = found.0;
                    best = Some(found);
                }
            }
        }
        Answer { best, proven }
    }
}

/// Returns the number of classes in all sets together, each counted once.
fn distinct(sets: &[Vec<u32>]) -> usize {
    let mut all: Vec<u32> = sets.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

/// Returns for each cycle of the selection the open classes on it.
fn cycles(flat: &FlatClasses, r: &Reduction, chosen: &[u32]) -> Vec<Vec<u32>> {
    let mut alive = vec![false; flat.cost.len()];
    for &k in chosen.iter().filter(|k| **k != NONE) {
        alive[k as usize] = true;
    }
    let walk = walk(flat, &alive, &r.free);
    let mut sets = vec![Vec::new(); walk.group_size.len()];
    for &c in walk.order.iter().filter(|&&c| walk.cyclic(c)) {
        let open = !r.paid[c as usize] || r.count[c as usize] > 1;
        if open {
            sets[walk.group[c as usize] as usize].push(c);
        }
    }
    sets.retain(|s| !s.is_empty());
    sets
}

/// Returns the two branches of a decision, the more promising first. The best decision is whether
/// to use a class that several can share, because then either all of them use it or none: the class
/// with the most possible users. If nothing can be shared, it is whether a root uses its first
/// choice.
fn branches(flat: &FlatClasses) -> Option<[FlatClasses; 2]> {
    if let Some(shared) = most_shared(flat) {
        let avoids = |k: usize| flat.class_of[k] != shared && flat.children(k).binary_search(&shared).is_err();
        return Some([flat.restricted(|_| true, Some(shared)), flat.restricted(avoids, None)]);
    }
    let root = flat.roots.iter().copied().find(|&c| flat.choices(c).len() > 1)?;
    let choices = flat.choices(root);
    let first = choices.start;
    let takes = |k: usize| k == first || !choices.contains(&k);
    Some([flat.restricted(takes, None), flat.restricted(|k| k != first, None)])
}

/// Returns the class with the most possible users, at least two, that is not a root.
fn most_shared(flat: &FlatClasses) -> Option<u32> {
    let mut users = vec![0u32; flat.len()];
    let mut last = vec![NONE; flat.len()];
    for c in 0..flat.len() as u32 {
        for &x in flat.choices(c).flat_map(|k| flat.children(k)) {
            if last[x as usize] != c {
                last[x as usize] = c;
                users[x as usize] += 1;
            }
        }
    }
    flat.roots.iter().for_each(|&c| users[c as usize] = 0);
    let cheapest = |c: u32| flat.cost[flat.choices(c)].iter().min().copied();
    let shared = (0..flat.len() as u32).filter(|&c| users[c as usize] > 1);
    shared.max_by_key(|&c| (users[c as usize], cheapest(c), std::cmp::Reverse(c)))
}

/// Returns the solver's answer for a whole problem.
pub(super) fn whole(solver: &mut Solver, flat: &FlatClasses) -> Answer {
    let answer = solver.solve(flat, u64::MAX, 0);
    match answer.best {
        Some((_, chosen)) => Answer {
            best: needed(flat, &chosen),
            proven: answer.proven,
        },
        // The budget was exhausted before a component had a solution, or costs exceed u64.
        None => greedy(flat).map_or(answer, |best| Answer {
            best: Some(best),
            proven: false,
        }),
    }
}
