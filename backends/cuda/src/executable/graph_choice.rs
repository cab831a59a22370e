//! Selection of the faster of two graphs with the same launches.
//!
//! The graphs order the launches in two ways. As branches, independent launches run in parallel. As a chain, each
//! launch begins before its predecessor has ended. Which graph is faster depends on the step, so the first replays
//! use both alternately.

use std::time::Duration;

use crate::graph::Graph;

/// Number of replays of each graph whose times are discarded, because caches are cold and clocks are low.
const WARM_UP: usize = 2;
/// Number of replays of each graph whose times are compared.
const COMPARED: usize = 8;

/// The graphs of the same launches, and the times by which one of them is selected.
pub(super) struct GraphChoice<G = Graph> {
    /// The selected graph, or both graphs while they are used alternately.
    graphs: Vec<G>,
    launched: usize,
    /// Measured times of each graph.
    times: Vec<Vec<Duration>>,
}

impl<G> GraphChoice<G> {
    /// Creates a choice that uses the graphs alternately until it has selected the fastest one.
    pub(super) fn new(graphs: Vec<G>) -> Self {
        GraphChoice {
            times: vec![Vec::new(); graphs.len()],
            launched: 0,
            graphs,
        }
    }

    /// Returns the graph for the next step, and its index if its time should be measured.
    pub(super) fn next(&mut self) -> Option<(&G, Option<usize>)> {
        if self.graphs.len() < 2 {
            return Some((self.graphs.first()?, None));
        }
        let number = self.launched % self.graphs.len();
        let counts = self.launched / self.graphs.len() >= WARM_UP;
        self.launched += 1;
        Some((self.graphs.get(number)?, counts.then_some(number)))
    }

    /// Records a time of a graph. When there are enough times of each graph, keeps only the fastest graph.
    ///
    /// Returns the index of the selected graph if this time completed the measurement.
    pub(super) fn note(&mut self, number: usize, time: Duration) -> Option<usize> {
        self.times.get_mut(number)?.push(time);
        if self.graphs.len() < 2 || self.times.iter().any(|times| times.len() < COMPARED) {
            return None;
        }
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let medians: Vec<Duration> = self.times.iter_mut().map(median).collect();
        let fastest = (0..medians.len()).min_by_key(|&number| medians[number])?;
        log::debug!("{}: graphs take {medians:?}; graph {fastest} is kept", crate::gpu::NAME);
        // The driver keeps a graph alive while it runs.
        self.graphs = vec![self.graphs.swap_remove(fastest)];
        self.times.clear();
        Some(fastest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_take_turns_until_the_fastest_is_known() {
        let mut choice = GraphChoice::new(vec!["branches", "chain"]);
        let (mut measured, mut decided) = (Vec::new(), None);
        for step in 0.. {
            let (graph, number) = choice.next().expect("a graph");
            assert_eq!(*graph, ["branches", "chain"][step % 2], "they take turns");
            let Some(number) = number else {
                assert!(step < 2 * WARM_UP);
                continue;
            };
            measured.push(number);
            // The slower graph has the shortest single time.
            let micros = match (number, measured.len()) {
                (0, 1) => 1,
                (0, _) => 30,
                _ => 20 + step as u64 % 5,
            };
            decided = choice.note(number, Duration::from_micros(micros));
            if decided.is_some() {
                break;
            }
        }
        assert_eq!((decided, measured.len()), (Some(1), 2 * COMPARED));
        for _ in 0..3 {
            assert_eq!(choice.next(), Some((&"chain", None)));
        }
        // A time after the selection has no effect.
        assert_eq!(choice.note(0, Duration::ZERO), None);
        assert_eq!(choice.next(), Some((&"chain", None)));
    }

    #[test]
    fn one_graph_needs_no_times() {
        let mut choice = GraphChoice::new(vec!["branches"]);
        for _ in 0..50 {
            assert_eq!(choice.next(), Some((&"branches", None)));
        }
        assert_eq!(GraphChoice::<()>::new(Vec::new()).next(), None);
    }
}
