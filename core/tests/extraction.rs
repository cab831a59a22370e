//! The extractor against brute force, under budgets, and on graphs of real size.

use std::time::{Duration, Instant};

use meganeura_core::random::SplitMix64 as Random;
use meganeura_core::rewrite::extract::{Budget, ExtractError, SelectionError, extract, greedy_dag, selection_cost};
use meganeura_core::rewrite::problem::{Choice, Problem};

fn choice(label: u32, cost: u64, children: &[u32]) -> Choice {
    let mut children = children.to_vec();
    children.sort_unstable();
    children.dedup();
    Choice { label, cost, children }
}

/// Tries every selection; the least cost.
fn brute_force(problem: &Problem) -> Option<u64> {
    fn go(problem: &Problem, selection: &mut Vec<Option<u32>>, todo: &mut Vec<u32>, best: &mut Option<u64>) {
        while let Some(c) = todo.pop() {
            if selection[c as usize].is_some() {
                continue;
            }
            for (k, choice) in problem.classes[c as usize].iter().enumerate() {
                selection[c as usize] = Some(k as u32);
                let mut more = todo.clone();
                more.extend(&choice.children);
                go(problem, selection, &mut more, best);
                selection[c as usize] = None;
            }
            return;
        }
        if let Ok(cost) = selection_cost(problem, selection) {
            *best = Some(best.map_or(cost, |b| b.min(cost)));
        }
    }
    let mut best = None;
    let mut selection = vec![None; problem.classes.len()];
    go(problem, &mut selection, &mut problem.roots.clone(), &mut best);
    best
}

/// A small e-graph: mostly layered, with edges that go back or to the class itself now and then, zero costs, classes
/// without choices, several roots and exclusive sets.
fn random_problem(random: &mut Random) -> Problem {
    let n = 2 + random.below(10);
    let back = random.below(4);
    let free = random.below(4);
    let mut problem = Problem::default();
    for c in 0..n {
        let count = [0, 1, 1, 2, 2, 2, 3, 3][random.below(8)];
        let choices = (0..count.max(usize::from(c < 2))).map(|_| {
            let mut kids = Vec::new();
            if c >= 2 || random.below(6) == 0 {
                for _ in 0..random.below(4) {
                    let anywhere = random.below(8) < back || c == 0;
                    kids.push(random.below(if anywhere { n } else { c }) as u32);
                }
            }
            let cost = if random.below(8) < free { 0 } else { 1 + random.below(9) as u64 };
            choice(random.below(5) as u32, cost, &kids)
        });
        problem.classes.push(choices.collect());
    }
    problem.roots = (0..1 + random.below(3)).map(|i| (n - 1 - i.min(n - 1)) as u32).collect();
    for _ in 0..random.below(4).saturating_sub(1) {
        let set = (0..2 + random.below(2)).map(|_| random.below(n) as u32);
        problem.exclusive.push(set.collect());
    }
    problem
}

fn seeds() -> u64 {
    std::env::var("EXTRACTION_SEEDS").map_or(3000, |s| s.parse().expect("a number of seeds"))
}

#[test]
fn small_problems_are_solved_as_brute_force_solves_them() {
    let (mut solved, mut impossible, mut searched, mut joined) = (0, 0, 0, 0);
    for seed in 0..seeds() {
        let problem = random_problem(&mut Random::new(seed));
        let best = brute_force(&problem);
        match (extract(&problem, &Budget::default()), best) {
            (Ok(found), Some(best)) => {
                assert_eq!(selection_cost(&problem, &found.selection), Ok(found.cost), "seed {seed}");
                assert_eq!(found.cost, best, "seed {seed}: {problem:?} {found:?}");
                assert!(found.exact, "seed {seed}");
                solved += 1;
                searched += u32::from(found.stats.components > 0);
                joined += u32::from(found.stats.joins > 0);
            }
            (Err(ExtractError::Ungrounded { .. } | ExtractError::Infeasible), None) => impossible += 1,
            (found, best) => panic!("seed {seed}: {found:?}, brute force {best:?}: {problem:?}"),
        }
    }
    println!("{solved} solved, {impossible} impossible, {searched} with components, {joined} with joins");
    assert!(solved > 1000 && impossible > 10 && searched > 10);
}

#[test]
fn without_a_budget_the_selection_is_valid_and_never_too_good() {
    for seed in 0..seeds() {
        let problem = random_problem(&mut Random::new(seed));
        let Some(best) = brute_force(&problem) else { continue };
        match greedy_dag(&problem) {
            Ok(found) => {
                assert_eq!(selection_cost(&problem, &found.selection), Ok(found.cost), "seed {seed}");
                assert!(found.cost >= best && (!found.exact || found.cost == best), "seed {seed}");
            }
            // Exclusive sets alone can hide the solutions from a greedy choice.
            Err(error) => {
                assert_eq!(error, ExtractError::NotFound, "seed {seed}");
                assert!(!problem.exclusive.is_empty(), "seed {seed}");
            }
        }
    }
}
