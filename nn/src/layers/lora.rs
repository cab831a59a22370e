//! Low-rank adapters of linear layers.

use std::fmt;
use std::str::FromStr;

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{Fault, scoped};

/// Layers that may have adapters, by the last parts of their names.
pub const LORA_LAYERS: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// A choice of [`LORA_LAYERS`]. As text a list such as `q,v` or `q_proj,v_proj`, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoraTargets([bool; LORA_LAYERS.len()]);

impl LoraTargets {
    /// All layers.
    pub const ALL: LoraTargets = LoraTargets([true; LORA_LAYERS.len()]);

    /// Selects the layers of these names; the error is an unknown name, or an empty list.
    pub fn named<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        let mut targets = LoraTargets([false; LORA_LAYERS.len()]);
        for name in names {
            let is_meant = |layer: &&str| *layer == name || layer.strip_suffix("_proj") == Some(name);
            let Some(at) = LORA_LAYERS.iter().position(is_meant) else {
                return Err(format!(
                    "there are no adapters for '{name}'; there are for {}",
                    LORA_LAYERS.join(", ")
                ));
            };
            targets.0[at] = true;
        }
        match targets.names().next() {
            Some(_) => Ok(targets),
            None => Err("no layers are named".into()),
        }
    }

    /// Returns the names of the selected layers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        let chosen = LORA_LAYERS.iter().zip(&self.0).filter(|(_, chosen)| **chosen);
        chosen.map(|(name, _)| *name)
    }
}

impl FromStr for LoraTargets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(LoraTargets::ALL),
            _ => LoraTargets::named(text.split(',').map(str::trim)),
        }
    }
}

impl fmt::Display for LoraTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(","))
    }
}

/// Adapters of a model (LoRA; Hu et al., 2021): the product of two narrow trained matrices is added
/// to a frozen weight `W`, `y = x W + s x A B` with `s = alpha / rank`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rank of the adapters: the number of columns of `A`; at least 1.
    pub rank: usize,
    /// Scaling factor, before it is divided by the rank.
    pub alpha: f32,
    /// Layers that have adapters.
    pub targets: LoraTargets,
    /// True if `s` is `alpha / sqrt(rank)`, for high ranks (rsLoRA; Kalajdzievski, 2023).
    pub rank_stabilized: bool,
    /// True if adapters also train the length of each column of the weight (DoRA; Liu et al., 2024): `y = x V`. Column `j` of
    /// `V` is `m_j (W + s A B)_j / |(W + s A B)_j|`. Gradients treat the denominator as a constant, as in PEFT.
    pub dora: bool,
}

impl LoraConfig {
    /// Creates adapters of this rank for the projections to queries and values, with twice the rank
    /// as `alpha`.
    pub fn new(rank: usize) -> Self {
        let mut targets = [false; LORA_LAYERS.len()];
        (targets[0], targets[2]) = (true, true);
        LoraConfig {
            rank,
            alpha: 2.0 * rank as f32,
            targets: LoraTargets(targets),
            rank_stabilized: false,
            dora: false,
        }
    }

    /// Checks rank and factor.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.rank == 0 {
            return Err((
                "the rank of the adapters is 0".into(),
                "a rank is at least 1, usually 4 to 64",
            ));
        }
        if self.alpha.is_finite() {
            Ok(())
        } else {
            Err((
                format!("alpha of the adapters is {}", self.alpha),
                "alpha is finite, usually the rank or twice as much",
            ))
        }
    }

    /// Returns the factor `s` of the product of the two matrices.
    pub fn scale(&self) -> f32 {
        self.scale_of(self.rank, self.alpha)
    }

    /// Returns the factor of an adapter with another rank and alpha.
    pub fn scale_of(&self, rank: usize, alpha: f32) -> f32 {
        let rank = rank.max(1) as f32;
        alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }

    /// Returns true if the layer of this name has an adapter.
    pub fn has(&self, layer: &str) -> bool {
        let own = layer.rsplit('.').next();
        self.targets.names().any(|name| Some(name) == own)
    }
}

/// Input of the graph that replaces the factor of adapters, `f32 [rows, rank]`, if the graph has it.
pub(crate) const ADAPTER_SCALES_INPUT: &str = "adapter_scales";

/// Part of the names of parameters of adapters.
pub(crate) const LORA_PART: &str = ".lora_";

/// Last part of the name of the parameter of DoRA.
pub const LORA_MAGNITUDE: &str = "lora_magnitude_vector";

/// Smallest square of a column's length that DoRA divides by.
const SMALLEST_SQUARE: f64 = 1e-20;

/// The two matrices of an adapter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adapter {
    a: NodeId,
    b: NodeId,
    scale: f32,
    /// Trained lengths of the columns, `f32 [outputs]`.
    magnitude: Option<NodeId>,
}

/// The frozen weight `W [inputs, outputs]` of an adapted layer.
pub(super) trait FrozenWeight {
    /// Returns `x W`.
    fn product(&self, g: &mut Graph, x: Value) -> NodeId;

    /// Returns the squares of the lengths of the columns of `W`, `f32 [outputs]`.
    fn squares(&self, g: &mut Graph) -> NodeId;
}

impl Adapter {
    /// Registers `{name}.lora_A.weight [inputs, rank]`, uniform, and
    /// `{name}.lora_B.weight [rank, outputs]`, zeros, if the layer has an adapter. With DoRA, also
    /// `{name}.lora_magnitude_vector [outputs]`, ones. The caller sets it to the lengths of the weight's columns.
    #[track_caller]
    pub(super) fn of(g: &mut Graph, name: &str, lora: Option<LoraConfig>, sizes: [usize; 2]) -> Option<Self> {
        let config = lora.filter(|lora| lora.has(name))?;
        let [inputs, outputs] = sizes;
        let init = Init::kaiming_uniform(inputs);
        let a = g.parameter_with(&scoped(name, "lora_A.weight"), &[inputs, config.rank], init);
        let b = g.parameter(&scoped(name, "lora_B.weight"), &[config.rank, outputs]);
        let magnitude = |g: &mut Graph| g.parameter_with(&scoped(name, LORA_MAGNITUDE), &[outputs], Init::Ones);
        Some(Adapter {
            a,
            b,
            scale: config.scale(),
            magnitude: config.dora.then(|| magnitude(g)),
        })
    }

    /// Returns the lengths of the columns of `W + s A B`, `f32 [outputs]`, without computing this matrix: its square is
    /// `|W|^2 + 2 s W.AB + s^2 |AB|^2` for each column, and `A` has few columns. If nothing is trained, the plan computes this once.
    fn lengths(&self, g: &mut Graph, weight: &impl FrozenWeight) -> NodeId {
        let squares = weight.squares(g);
        let transposed = g.transpose(self.a);
        let of_columns = |g: &mut Graph, product: NodeId, factor: f32| {
            let products = g.mul(self.b, product);
            let sum = g.sum(products, &[0], false);
            let factor = g.scalar(factor);
            g.mul(sum, factor)
        };
        let cross = weight.product(g, transposed.into());
        let cross = of_columns(g, cross, 2.0 * self.scale);
        let gram = g.matmul(transposed, self.a);
        let gram = g.matmul(gram, self.b);
        let own = of_columns(g, gram, self.scale * self.scale);
        let sum = g.add(squares, cross);
        let sum = g.add(sum, own);
        // Rounding can make the square of a column of zeros negative.
        let least = g.scalar_of(meganeura_core::DType::F32, SMALLEST_SQUARE);
        let sum = g.maximum(sum, least);
        g.sqrt(sum)
    }

    /// Returns `y = x W` plus the adapter's result for `x`, with DoRA times the quotient of the trained and the present lengths.
    #[track_caller]
    pub(super) fn add_to(&self, g: &mut Graph, y: NodeId, x: Value, name: &str, weight: &impl FrozenWeight) -> NodeId {
        let narrow = g.matmul(x, self.a);
        // Scaling the narrow product is cheapest.
        let narrow = match g.leaf_named(ADAPTER_SCALES_INPUT) {
            Some(of_rows) => {
                // Rows may have a further axis, of length 1.
                let shape = g.shape(narrow).to_vec();
                let scale = g.reshape(of_rows, &shape);
                let scaled = g.mul(narrow, scale);
                // Columns of other adapters do not count, even if their product overflows.
                let zero = g.scalar(0.0);
                let is_unused = g.equal(scale, zero);
                g.select(is_unused, zero, scaled)
            }
            None => {
                let scale = g.full(meganeura_core::DType::F32, f64::from(self.scale), &[1]);
                g.mul(narrow, scale)
            }
        };
        let added = g.matmul(narrow, self.b);
        let mut y = g.add(y, added);
        if let Some(magnitude) = self.magnitude {
            let lengths = self.lengths(g, weight);
            let lengths = g.stop_gradient(lengths);
            let factor = g.div(magnitude, lengths);
            y = g.mul(y, factor);
        }
        g.named(y, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_as_text() {
        let targets: LoraTargets = "q, down_proj".parse().expect("a list");
        assert_eq!(targets.to_string(), "q_proj,down_proj");
        assert_eq!("all".parse::<LoraTargets>(), Ok(LoraTargets::ALL));
        assert_eq!(LoraConfig::new(4).targets, "v,q".parse().expect("a list"));
        for (text, said) in [("q,norm", "'norm'"), ("", "''")] {
            let error = text.parse::<LoraTargets>().expect_err(text);
            assert!(error.contains(said) && error.contains("gate_proj"), "{error}");
        }
        assert!(LoraTargets::named([]).is_err());
    }
}
