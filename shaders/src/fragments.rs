//! Fragments: the tiles of cooperative matrices that a subgroup holds in registers, and their layout in shared memory.
//! Matmuls and attention use the same definitions.
//!
//! They are aliases and constants of a kernel file rather than functions. WGSL cannot pass an array in shared memory
//! to a function, so each file loads from its own array.

use super::limits::CoopConfig;
use super::module::{COOP, F16, Module};
use super::template::Template;

impl CoopConfig {
    /// Returns the number of rows and columns of a tile.
    pub(crate) fn tile(&self) -> usize {
        self.tile_size as usize
    }

    /// Returns the number of threads of a subgroup.
    pub(crate) fn subgroup(&self) -> usize {
        self.subgroup_size as usize
    }

    /// Returns the element type of the operands' tiles.
    pub(crate) fn element(&self) -> &'static str {
        if self.use_f16_input { F16 } else { "f32" }
    }

    /// Returns the number of bytes of a vector of four such elements.
    pub(crate) fn vector_bytes(&self) -> usize {
        if self.use_f16_input { 8 } else { 16 }
    }

    /// Returns the stride of rows of `elements` elements in shared memory, in vectors. It includes padding that
    /// avoids bank conflicts between rows.
    pub(crate) fn stride(&self, elements: usize) -> usize {
        elements / 4 + if self.use_f16_input { 2 } else { 1 }
    }

    /// Adds the fragments to a kernel file, and enables the WGSL extensions that they need in the module.
    pub(crate) fn fragments(&self, template: Template, module: &mut Module) -> Template {
        module.enable(COOP);
        if self.use_f16_input {
            module.enable(F16);
        }
        let (tile, element) = (self.tile(), self.element());
        let matrix = |element: &str, role: char| format!("coop_mat{tile}x{tile}<{element},{role}>");
        template
            .sizes([("TILE", tile), ("SUBGROUP", self.subgroup())])
            .size("PADDING", self.stride(0))
            .alias("Element", element)
            .alias("MatrixA", matrix(element, 'A'))
            .alias("MatrixB", matrix(element, 'B'))
            .alias("MatrixC", matrix("f32", 'C'))
    }
}
