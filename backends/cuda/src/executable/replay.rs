//! The graph of a combination of segments. Its launches have one of two orders: as branches independent ones run side by side, as a
//! chain each begins before the one in front of it has ended. Which is faster depends on the step, so the first replays take turns.

use std::time::Duration;

use crate::graph::Graph;

/// Replays of each order that do not count: caches are cold, and clocks low.
const WARM_UP: usize = 2;
/// Replays of each order that are compared.
const COMPARED: usize = 8;

/// Graphs of the same launches, and which of them is replayed.
pub(super) struct Replay<G = Graph> {
    /// One, or two that take turns.
    graphs: Vec<G>,
    launched: usize,
    /// Times of each.
    times: Vec<Vec<Duration>>,
}

impl<G> Replay<G> {
    /// Of graphs that take turns until it is known which is the fastest.
    pub(super) fn new(graphs: Vec<G>) -> Self {
        Replay {
            times: vec![Vec::new(); graphs.len()],
            launched: 0,
            graphs,
        }
    }

    /// The graph for the next step, and its number where its time is wanted.
    pub(super) fn next(&mut self) -> Option<(&G, Option<usize>)> {
        if self.graphs.len() < 2 {
            return Some((self.graphs.first()?, None));
        }
        let number = self.launched % self.graphs.len();
        let counts = self.launched / self.graphs.len() >= WARM_UP;
        self.launched += 1;
        Some((self.graphs.get(number)?, counts.then_some(number)))
    }

    /// Notes a time, and keeps the fastest graph alone once there are enough of each.
    ///
    /// Returns the number of that graph where this decided.
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
        log::debug!(
            "{}: graphs take {medians:?}, number {fastest} is kept",
            crate::gpu::NAME
        );
        // The driver keeps what is still running.
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
        let mut replay = Replay::new(vec!["branches", "chain"]);
        let (mut measured, mut decided) = (Vec::new(), None);
        for step in 0.. {
            let (graph, number) = replay.next().expect("a graph");
            assert_eq!(*graph, ["branches", "chain"][step % 2], "they take turns");
            let Some(number) = number else {
                assert!(step < 2 * WARM_UP);
                continue;
            };
            measured.push(number);
            // The one that is slower has the shortest time once.
            let micros = match (number, measured.len()) {
                (0, 1) => 1,
                (0, _) => 30,
                _ => 20 + step as u64 % 5,
            };
            decided = replay.note(number, Duration::from_micros(micros));
            if decided.is_some() {
                break;
            }
        }
        assert_eq!((decided, measured.len()), (Some(1), 2 * COMPARED));
        for _ in 0..3 {
            assert_eq!(replay.next(), Some((&"chain", None)));
        }
        // A time that comes late changes nothing.
        assert_eq!(replay.note(0, Duration::ZERO), None);
        assert_eq!(replay.next(), Some((&"chain", None)));
    }

    #[test]
    fn one_graph_needs_no_times() {
        let mut replay = Replay::new(vec!["branches"]);
        for _ in 0..50 {
            assert_eq!(replay.next(), Some((&"branches", None)));
        }
        assert_eq!(Replay::<()>::new(Vec::new()).next(), None);
    }
}
