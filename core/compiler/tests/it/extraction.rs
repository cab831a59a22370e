//! Tests of the extractor: against brute force, under budgets, and on graphs of realistic size.

use std::time::{Duration, Instant};

use meganeura_compiler::rewrite::extract::synthetic::layered;
use meganeura_compiler::rewrite::extract::{Budget, ExtractError, SelectionError, extract, greedy_dag, selection_cost};
use meganeura_compiler::rewrite::problem::{Choice, Problem};
use meganeura_core::random::SplitMix64 as Random;

fn choice(label: u32, cost: u64, children: &[u32]) -> Choice {
    let mut children = children.to_vec();
    children.sort_unstable();
    children.dedup();
    Choice { label, cost, children }
}

/// Computes the cost of a selection in the simplest way: marks needed classes, then evaluates them
/// from the leaves.
fn plain_cost(problem: &Problem, selection: &[Option<u32>]) -> Option<u64> {
    let n = problem.classes.len();
    let taken = |c: usize| selection[c].map(|k| &problem.classes[c][k as usize]);
    let mut needed = vec![false; n];
    problem.roots.iter().for_each(|&r| needed[r as usize] = true);
    let mut computed = vec![false; n];
    for _ in 0..n {
        for c in 0..n {
            if needed[c] {
                taken(c)?.children.iter().for_each(|&x| needed[x as usize] = true);
            }
            computed[c] |= taken(c).is_some_and(|t| t.children.iter().all(|&x| computed[x as usize]));
        }
    }
    for set in &problem.exclusive {
        let first = set.iter().find(|c| needed[**c as usize]);
        if set.iter().any(|c| needed[*c as usize] && Some(c) != first) {
            return None;
        }
    }
    let needed = || (0..n).filter(|&c| needed[c]);
    let sum = || needed().map(|c| taken(c).map_or(0, |t| t.cost)).sum();
    needed().all(|c| computed[c]).then(sum)
}

/// Tries every selection, and returns the minimum cost.
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
        if let Some(cost) = plain_cost(problem, selection) {
            *best = Some(best.map_or(cost, |b| b.min(cost)));
        }
    }
    let mut best = None;
    let mut selection = vec![None; problem.classes.len()];
    go(problem, &mut selection, &mut problem.roots.clone(), &mut best);
    best
}

/// Returns a small random problem: mostly layered, with some edges that go back or to the class itself, choices of no
/// cost, classes without choices, several roots and exclusive sets.
fn random_problem(random: &mut Random) -> Problem {
    let n = 2 + random.below(10);
    let back = random.below(4);
    let free = random.below(4);
    let mut problem = Problem::default();
    for c in 0..n {
        let count = [0, 1, 1, 2, 2, 2, 3, 3][random.below(8)];
        let choices = (0..count.max(usize::from(c < 2))).map(|_| {
            let mut children = Vec::new();
            if c >= 2 || random.below(6) == 0 {
                for _ in 0..random.below(4) {
                    let anywhere = random.below(8) < back || c == 0;
                    children.push(random.below(if anywhere { n } else { c }) as u32);
                }
            }
            let cost = if random.below(8) < free {
                0
            } else {
                1 + random.below(9) as u64
            };
            choice(random.below(5) as u32, cost, &children)
        });
        problem.classes.push(choices.collect());
    }
    problem.roots = (0..1 + random.below(3))
        .map(|i| (n - 1 - i.min(n - 1)) as u32)
        .collect();
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
        let valid = |s: &Vec<Option<u32>>, cost| {
            selection_cost(&problem, s) == Ok(cost) && plain_cost(&problem, s) == Some(cost)
        };
        match (extract(&problem, &Budget::default()), best) {
            (Ok(found), Some(best)) => {
                assert!(valid(&found.selection, found.cost), "seed {seed}");
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
                assert_eq!(
                    selection_cost(&problem, &found.selection),
                    Ok(found.cost),
                    "seed {seed}"
                );
                assert!(
                    found.cost >= best && (!found.exact || found.cost == best),
                    "seed {seed}"
                );
            }
            // Only exclusive sets can hide the solutions from a greedy selection.
            Err(error) => {
                assert_eq!(error, ExtractError::NotFound, "seed {seed}");
                assert!(!problem.exclusive.is_empty(), "seed {seed}");
            }
        }
    }
}

/// Returns a problem of `n` classes, each with several choices whose children are any earlier classes, so that only a
/// search decides them.
fn dense(n: usize, exclusive: bool, random: &mut Random) -> Problem {
    let mut problem = Problem::default();
    for c in 0..n {
        let choices = (0..4).map(|k| {
            let children: Vec<u32> = (0..3).map(|_| random.below(if c < 4 { 1 } else { c }) as u32).collect();
            let cost = 10 + random.below(50) as u64;
            choice(k, cost, if c < 4 { &[] } else { &children })
        });
        problem.classes.push(choices.collect());
    }
    // Edges that go back.
    for _ in 0..n / 4 {
        let (c, child) = (random.below(n), random.below(n) as u32);
        problem.classes[c].push(choice(9, 5, &[child]));
    }
    problem.roots = (0..n / 10).map(|i| (n - 1 - i) as u32).collect();
    if exclusive {
        let pair = |i: usize| vec![(4 + 2 * i) as u32, (5 + 2 * i) as u32];
        problem.exclusive = (0..n / 8).map(pair).collect();
    }
    problem
}

#[test]
fn a_spent_budget_stops_the_search_and_still_selects() {
    for (n, exclusive) in [(40, true), (100, false), (1000, false), (1000, true), (6000, false)] {
        let mut random = Random::new(n as u64);
        let problem = dense(n, exclusive, &mut random);
        let budget = Budget {
            steps: 20_000,
            time: None,
        };
        let start = Instant::now();
        match extract(&problem, &budget) {
            Ok(found) => {
                println!("dense {n}: {:?} {:?}", start.elapsed(), found.stats);
                assert_eq!(selection_cost(&problem, &found.selection), Ok(found.cost));
                assert!(!found.exact || n < 1000);
                assert_eq!(extract(&problem, &budget), Ok(found), "the same again");
            }
            Err(error) => assert!(exclusive && error == ExtractError::NotFound, "{error}"),
        }
    }
}

#[test]
fn a_time_limit_holds() {
    let problem = dense(3000, false, &mut Random::new(5));
    let budget = Budget {
        steps: u64::MAX,
        time: Some(Duration::from_millis(200)),
    };
    let start = Instant::now();
    let found = extract(&problem, &budget).expect("a selection");
    println!("time limit: {:?} {:?}", start.elapsed(), found.stats);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(found.stats.budget_spent && !found.exact);
    assert_eq!(selection_cost(&problem, &found.selection), Ok(found.cost));
}

#[test]
fn deep_graphs_need_no_deep_stack() {
    // With skips, all choices form one component; one of 100,000 classes is too large for the
    // search.
    for (n, skips, exact) in [(100_000, false, true), (100, true, true), (100_000, true, false)] {
        let mut problem = Problem::default();
        for c in 0..n {
            let next: Vec<u32> = if c == 0 { vec![] } else { vec![c - 1] };
            let second: Vec<u32> = if c < 2 { vec![] } else { vec![c - 2] };
            let mut choices = vec![choice(0, 1, &next)];
            if skips {
                choices.push(choice(1, 3, &second));
            }
            problem.classes.push(choices);
        }
        problem.roots = vec![n - 1];
        let start = Instant::now();
        let budget = Budget {
            steps: 1_000_000,
            time: None,
        };
        let found = extract(&problem, &budget).expect("a selection");
        println!("chain of {n}: {:?} {:?}", start.elapsed(), found.stats);
        assert_eq!((found.cost, found.exact), (u64::from(n), exact));
        assert_eq!(selection_cost(&problem, &found.selection), Ok(found.cost));
    }
}

#[test]
fn training_graphs_are_solved_exactly_and_repeated_layers_once() {
    let mut solved = Vec::new();
    for layers in [4, 30, 60] {
        let problem = layered(layers);
        let choices: usize = problem.classes.iter().map(Vec::len).sum();
        let mut time = Duration::MAX;
        for _ in 0..10 {
            let start = Instant::now();
            extract(&problem, &Budget::default()).expect("a selection");
            time = time.min(start.elapsed());
        }
        let found = extract(&problem, &Budget::default()).expect("a selection");
        let greedy = greedy_dag(&problem).expect("a selection");
        println!(
            "{layers} layers, {} classes, {choices} choices: {time:?}, {} (greedy {}), {:?}",
            problem.classes.len(),
            found.cost,
            greedy.cost,
            found.stats
        );
        assert!(found.exact && found.cost <= greedy.cost);
        assert_eq!(selection_cost(&problem, &found.selection), Ok(found.cost));
        solved.push(found.stats.solved);
    }
    assert!(solved[2] <= solved[0] + 8, "{solved:?}");
}

#[test]
fn what_is_no_problem_or_no_selection_is_said() {
    let mut problem = Problem {
        classes: vec![
            vec![choice(0, 1, &[])],
            vec![choice(1, 1, &[0])],
            vec![choice(2, 1, &[1, 2])],
        ],
        roots: vec![1],
        exclusive: vec![],
    };
    let run = |p: &Problem| extract(p, &Budget::default());
    assert_eq!(run(&problem).map(|e| e.selection), Ok(vec![Some(0), Some(0), None]));
    assert_eq!(
        selection_cost(&problem, &vec![None, Some(0), None]),
        Err(SelectionError::Missing(0))
    );
    problem.roots = vec![1, 2];
    assert_eq!(run(&problem), Err(ExtractError::Ungrounded { root: 2 }));
    let all = vec![Some(0); 3];
    assert_eq!(selection_cost(&problem, &all), Err(SelectionError::Cycle(vec![2])));
    problem.roots = vec![1];
    problem.exclusive = vec![vec![0, 1]];
    assert_eq!(run(&problem), Err(ExtractError::Infeasible));
    assert_eq!(
        selection_cost(&problem, &all),
        Err(SelectionError::Exclusive(vec![0, 1]))
    );
    for bad in [
        Problem {
            roots: vec![7],
            ..problem.clone()
        },
        Problem {
            exclusive: vec![vec![0, 9]],
            ..problem.clone()
        },
        Problem {
            classes: vec![vec![choice(0, 1, &[5])]],
            ..Problem::default()
        },
    ] {
        assert!(matches!(run(&bad), Err(ExtractError::Malformed(_))), "{bad:?}");
    }
    let nothing = extract(&Problem::default(), &Budget::default()).expect("nothing to compute");
    assert_eq!((nothing.cost, nothing.exact), (0, true));
}

#[test]
fn two_packings_of_one_weight_exclude_each_other() {
    // Three products, and packings of the first two and the last two weights.
    let mut problem = Problem::default();
    for _ in 0..3 {
        problem.classes.push(vec![choice(0, 0, &[])]);
    }
    for i in 0..3 {
        problem.classes.push(vec![choice(1, 10, &[i])]);
    }
    problem.classes.push(vec![choice(2, 0, &[0, 1])]);
    problem.classes.push(vec![choice(2, 0, &[1, 2])]);
    problem.classes.push(vec![choice(1, 12, &[6])]);
    problem.classes.push(vec![choice(1, 11, &[7])]);
    for (class, product) in [(3, 8), (4, 8), (4, 9), (5, 9)] {
        problem.classes[class].push(choice(3, 0, &[product]));
    }
    problem.roots = vec![3, 4, 5];
    problem.exclusive = vec![vec![6, 7]];
    let found = extract(&problem, &Budget::default()).expect("a selection");
    assert_eq!((found.cost, found.exact), (21, true));
    assert_eq!(found.selection[6], None);
}
