//! Leaves of the graphs on which rules are tried.

use crate::rewrite::facts::{FactName, behind_diagonal, of_constant};
use crate::rewrite::pattern::{LeafKind, VarId};
use meganeura_core::graph::ConstantData;
use meganeura_core::shape::TensorType;

/// A leaf of a witness.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// The variable that it stands for.
    pub(super) var: VarId,
    /// What it is.
    pub(super) kind: LeafKind,
    /// Its type.
    pub(super) ty: TensorType,
    /// What the rule asks of a constant: which elements have the value, the others being 0.
    pub(super) asked: FactName,
    /// Value of a constant.
    pub(super) value: f64,
    /// Its place among the leaves.
    pub(super) slot: usize,
}

impl Leaf {
    /// The elements of a constant.
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

    /// A fact of a constant.
    pub(super) fn fact(&self, fact: FactName) -> Option<f64> {
        let data = match self.asked {
            // Elements that are all equal need not all be made.
            FactName::Uniform if fact == FactName::Uniform => ConstantData::splat(self.ty.dtype, self.value),
            _ => self.data(),
        };
        of_constant(fact, &data, self.ty.shape.dims()).filter(|_| self.kind == LeafKind::Constant)
    }
}
