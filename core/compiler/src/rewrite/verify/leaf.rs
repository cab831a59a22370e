//! Leaves of the graphs on which rules are tested.

use crate::rewrite::facts::{FactName, behind_diagonal, of_constant};
use crate::rewrite::pattern::{LeafKind, VarId};
use meganeura_core::graph::ConstantData;
use meganeura_core::shape::TensorType;

/// A leaf of a graph for testing a rule.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// The variable that it binds.
    pub(super) var: VarId,
    /// Kind of the leaf.
    pub(super) kind: LeafKind,
    /// Type of the leaf.
    pub(super) ty: TensorType,
    /// For a constant, the fact that the rule requires; it determines the elements that have the value. All other
    /// elements are 0.
    pub(super) asked: FactName,
    /// For a constant, the value of these elements.
    pub(super) value: f64,
    /// Index of the leaf among all leaves.
    pub(super) slot: usize,
}

impl Leaf {
    /// Returns the elements of the leaf, a constant.
    pub(super) fn data(&self) -> ConstantData {
        let (dtype, len) = (self.ty.dtype, self.ty.numel());
        let upper = self.asked == FactName::UpperTriangle;
        let triangle = upper || self.asked == FactName::LowerTriangle;
        let whole = ConstantData::repeated(dtype, self.value, len);
        let Some(behind) = behind_diagonal(self.ty.shape.dims()).filter(|_| triangle) else {
            return whole;
        };
        let mut bytes = whole.bytes().to_vec();
        for (at, element) in bytes.chunks_exact_mut(dtype.block().bytes).enumerate() {
            if behind(at) != upper {
                element.fill(0);
            }
        }
        ConstantData::from_bytes(dtype, bytes).unwrap_or(whole)
    }

    /// Returns a fact about the leaf, a constant.
    pub(super) fn fact(&self, fact: FactName) -> Option<f64> {
        let data = match self.asked {
            // If all elements are equal, one is enough.
            FactName::Uniform if fact == FactName::Uniform => ConstantData::splat(self.ty.dtype, self.value),
            _ => self.data(),
        };
        of_constant(fact, &data, self.ty.shape.dims()).filter(|_| self.kind == LeafKind::Constant)
    }
}
