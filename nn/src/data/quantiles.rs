//! Bins of the features of a data set.

use super::Dataset;

/// Returns ascending edges of at most `bins` bins for each feature: quantiles of its values, so that all bins have about as
/// many examples. A feature with at most two different values has no bins, and its list is empty.
pub fn quantile_edges(data: &Dataset, bins: usize) -> Vec<Vec<f32>> {
    let width = data.feature_len();
    let of_feature = |feature: usize| -> Vec<f32> {
        let mut values: Vec<f32> = data.features().iter().skip(feature).step_by(width).copied().collect();
        values.sort_by(f32::total_cmp);
        let last = values.len().saturating_sub(1);
        let quantiles = (0..=bins).filter_map(|bin| values.get(last * bin / bins.max(1)).copied());
        let mut edges: Vec<f32> = quantiles.collect();
        // The difference of closer numbers is mostly rounding.
        edges.dedup_by(|next, edge| *next - *edge < 1e-6);
        if edges.len() > 2 { edges } else { Vec::new() }
    };
    (0..width).map(of_feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_have_as_many_examples() {
        // The second feature has two values, the third one few different ones, and the last one is constant.
        let rows = (0..100).flat_map(|i: u16| [f32::from(i), f32::from(i % 2), f32::from(i / 40), 7.0]);
        let data = Dataset::regression("t", rows.collect(), vec![4], vec![0.0; 100], 1).expect("a data set");
        let edges = quantile_edges(&data, 4);
        assert_eq!(edges[0], [0.0, 24.0, 49.0, 74.0, 99.0]);
        assert!(edges[1].is_empty());
        assert_eq!(edges[2], [0.0, 1.0, 2.0]);
        assert!(edges[3].is_empty());
    }
}
