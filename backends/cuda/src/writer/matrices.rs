//! Translation of operations on cooperative matrices.

use naga::{AddressSpace, CooperativeData, CooperativeRole, Expression, Handle, TypeInner};

use super::body::Body;
use super::context::Part;
use super::error::{Result, WriteError};
use super::options::Bounds;

impl Body<'_> {
    /// Returns the arguments of a load or store: the address of the matrix, and the distance between rows (or columns)
    /// in elements.
    fn matrix_memory(&self, data: &CooperativeData) -> Result<(&'static str, String)> {
        // The check would cover only the index of the first element, not the whole matrix.
        if self.cx.bounds == Bounds::Restrict {
            return Err(WriteError::unsupported("bounds checks for cooperative matrices"));
        }
        let space = match self.space(data.pointer)? {
            AddressSpace::WorkGroup => "shared",
            AddressSpace::Storage { .. } => "global",
            other => {
                return Err(WriteError::unsupported(format!(
                    "cooperative matrices in the address space {other:?}"
                )));
            }
        };
        // In WGSL, the stride counts elements of the pointer's type, which may be vectors.
        let numbers = match *self.inner(data.pointer) {
            TypeInner::Pointer { base, .. } => match *self.cx.inner(base) {
                TypeInner::Vector { size, .. } => size as u8,
                _ => 1,
            },
            TypeInner::ValuePointer { size: Some(size), .. } => size as u8,
            _ => 1,
        };
        let stride = self.value(data.stride)?;
        let stride = match numbers {
            1 => stride,
            numbers => format!("{numbers}u * {stride}"),
        };
        Ok((space, format!("{}, {stride}", self.address(data.pointer)?)))
    }

    pub(super) fn load_matrix(&self, role: CooperativeRole, data: &CooperativeData) -> Result<String> {
        self.cx.needs(Part::Matrix);
        let (space, memory) = self.matrix_memory(data)?;
        let rows = data.row_major;
        Ok(match role {
            CooperativeRole::A => format!("wgsl::load_a_{space}<{rows}>({memory})"),
            CooperativeRole::B => format!("wgsl::load_b_{space}<{rows}>({memory})"),
            CooperativeRole::C => format!("wgsl::load_c<{rows}>({memory})"),
        })
    }

    pub(super) fn store_matrix(&mut self, target: Handle<Expression>, data: &CooperativeData) -> Result<()> {
        self.cx.needs(Part::Matrix);
        if self.type_of(target)? != "matrix_c" {
            return Err(WriteError::unsupported(
                "stores of cooperative matrices that are not sums (C)",
            ));
        }
        let (_, memory) = self.matrix_memory(data)?;
        let value = self.value(target)?;
        self.line(&format!("wgsl::store_c<{}>({value}, {memory});", data.row_major));
        Ok(())
    }
}
