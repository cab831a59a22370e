//! A factor of queries that grows with their position.

use meganeura_core::{DType, Graph, NodeId};

use super::Fault;

/// A factor of queries that grows with their position: `1 + beta ln(1 + floor(position / context))`. It sharpens the attention
/// beyond the context that a model was first trained in (Ministral 3; Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Factor of the logarithm.
    pub beta: f32,
    /// Number of positions without a change, at least 1.
    pub context: usize,
}

impl QueryGrowth {
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let QueryGrowth { beta, context } = self;
        if beta.is_finite() && *context > 0 {
            return Ok(());
        }
        Err((
            format!("the growth of queries is {beta} for {context} positions"),
            "the factor is finite, and there is at least one position",
        ))
    }

    /// Multiplies queries `[..., rows, width]` by the factors of their positions. `from` is the position of the first row, of each
    /// sequence or of all; 0 if `None`.
    pub(super) fn apply(&self, g: &mut Graph, q: NodeId, from: Option<NodeId>) -> NodeId {
        let &QueryGrowth { beta, context } = self;
        let rows = g.shape(q).iter().nth_back(1).copied().unwrap_or_default();
        let numbers: Vec<u32> = (0..rows).map(|row| row as u32).collect();
        let Some(from) = from else {
            let factor = |number: u32| {
                1.0 + f64::from(beta) * f64::from(number / u32::try_from(context).unwrap_or(u32::MAX)).ln_1p()
            };
            let factors = numbers.into_iter().map(|number| factor(number) as f32).collect();
            let factors = g.constant(factors, &[rows, 1]);
            return g.mul(q, factors);
        };
        let leading = g
            .shape(q)
            .split_last_chunk::<2>()
            .map_or(Vec::new(), |(l, _)| l.to_vec());
        // One position for each sequence, or one for all.
        let of_sequences = leading.iter().product::<usize>() == g.shape(from).iter().product::<usize>();
        let shape = if of_sequences {
            [leading.as_slice(), &[1, 1]].concat()
        } else {
            vec![1, 1]
        };
        let first = g.reshape(from, &shape);
        let numbers = g.constant_u32(numbers, &[rows, 1]);
        let positions = g.add(first, numbers);
        // Exact for positions below 2^24.
        let positions = g.cast(positions, DType::F32);
        let context = g.scalar(context as f32);
        let turns = g.div(positions, context);
        let turns = g.floor(turns);
        let logarithm = g.log1p(turns);
        let beta = g.scalar(beta);
        let growth = g.mul(logarithm, beta);
        let one = g.scalar(1.0);
        let factor = g.add(growth, one);
        g.mul(q, factor)
    }
}
