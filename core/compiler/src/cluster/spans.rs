//! Data structure for the ranges that the units (groups of merged calls) span in the topological order.

/// A segment tree of index ranges. It finds the smallest first index of all ranges that contain an index; ranges are
/// only added.
pub(super) struct Spans {
    /// Smallest first index of the ranges that cover a node of the tree. The second half contains
    /// the leaves, one for each index.
    smallest: Vec<usize>,
}

impl Spans {
    /// Creates a tree over `count` indices without ranges.
    pub(super) fn new(count: usize) -> Self {
        Spans {
            smallest: vec![usize::MAX; 2 * count],
        }
    }

    /// Adds the range from `first` to `last`.
    pub(super) fn add(&mut self, first: usize, last: usize) {
        let count = self.smallest.len() / 2;
        let (mut low, mut high) = (first + count, last + 1 + count);
        while low < high {
            if low % 2 == 1 {
                self.smallest[low] = self.smallest[low].min(first);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.smallest[high] = self.smallest[high].min(first);
            }
            low /= 2;
            high /= 2;
        }
    }

    /// Returns the smallest first index of the ranges that contain `index`, or `index` itself.
    pub(super) fn first(&self, index: usize) -> usize {
        let mut first = index;
        let mut at = index + self.smallest.len() / 2;
        while at > 0 {
            first = first.min(self.smallest[at]);
            at /= 2;
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_from_each_of_their_indices() {
        let ranges = [(3, 5), (0, 0), (4, 9), (10, 12), (11, 11), (2, 3)];
        for count in [13, 16, 31] {
            let mut spans = Spans::new(count);
            for (added, &(first, last)) in ranges.iter().enumerate() {
                spans.add(first, last);
                for index in 0..count {
                    let containing = ranges[..=added].iter().filter(|r| r.0 <= index && index <= r.1);
                    let expected = containing.map(|r| r.0).min().unwrap_or(index);
                    assert_eq!(spans.first(index), expected, "{index} of {count}");
                }
            }
        }
    }
}
