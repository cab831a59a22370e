//! Interface of contractions (matmuls and convolutions) for the modules that generate their kernels: `tiled`, `coop`
//! and `vectors`.

use meganeura_core::quantization::BLOCK;

use super::conv_kinds::StoredConvolution;
use super::emit::Emitter;
use super::packed::Packed;
use super::template::Template;

/// Sizes of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    /// Length of the summed dimension.
    pub(super) k: usize,
}

/// Location of an operand's element in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ElementLocation {
    /// Index of the element, as WGSL.
    pub(super) number: String,
    /// Condition in WGSL, if any. If it is false, the value of the element is zero, and the index refers to another
    /// element.
    pub(super) inside: Option<String>,
}

impl ElementLocation {
    /// Creates the location of an element that always exists.
    pub(super) fn always(number: String) -> Self {
        ElementLocation { number, inside: None }
    }

    /// Returns the index of the vector of four elements that begins with this element, as WGSL.
    pub(super) fn vector(&self) -> String {
        format!("({}) / 4u", self.number)
    }

    /// Returns `vector`. If the element is not inside or the condition `also` is false, returns zeros of the type
    /// `ty`.
    pub(super) fn guarded(&self, ty: &str, vector: String, also: Option<String>) -> String {
        let conditions: Vec<&str> = [&self.inside, &also]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        if conditions.is_empty() {
            vector
        } else {
            format!("select({ty}(), {vector}, {})", conditions.join(" && "))
        }
    }
}

/// A contraction as the kernel generators see it: the code that loads elements of both operands, and the code that
/// computes the indices of the results. Indices are WGSL variables; `batch` is one of them.
pub(super) trait Contraction {
    fn sizes(&self) -> Sizes;

    /// Returns the kind of contraction for the name of a schedule class: a word such as `matmul`, and the properties
    /// that determine how elements are loaded.
    fn kind(&self) -> String;

    /// Returns true if elements of an operand (0 or 1) that are neighbours along the summed dimension are adjacent in
    /// memory. Otherwise neighbours along `m` or `n` are adjacent.
    fn is_along_k(&self, operand: usize) -> bool;

    /// Returns a variable that contains an element of an operand. `line` is a row of the first operand or a column of
    /// the second.
    fn load(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<String, String>;

    /// Returns true if [`Contraction::load_together`] loads adjacent elements of an operand faster than separate loads.
    fn finds_together(&self, operand: usize) -> bool {
        let _ = operand;
        false
    }

    /// Returns variables that contain `count` adjacent elements, for an operand for which
    /// [`Contraction::finds_together`] is true. The elements are adjacent along the lines or along the summed
    /// dimension, as [`Contraction::is_along_k`] specifies. In this direction, even the first one may be past the
    /// end. The other index is valid.
    fn load_together(
        &self,
        e: &mut Emitter,
        operand: usize,
        line: &str,
        k: &str,
        count: usize,
    ) -> Result<Vec<String>, String> {
        let _ = (e, operand, line, k, count);
        Err("its elements are found one by one".into())
    }

    /// Adds the code that computes the index of an element of the result to a kernel file. The default of kernel
    /// files, which needs no code, is to store results row by row.
    fn element_number(&self, e: &mut Emitter, template: Template) -> Result<Template, String> {
        let _ = e;
        Ok(template)
    }

    /// Returns true if results are stored row by row, so that a tile of them can be stored without conversion.
    fn is_by_rows(&self) -> bool {
        false
    }

    /// Returns the index of the dispatch operand that contains the elements of an operand of the contraction. Returns
    /// `None` if the elements are computed when they are loaded.
    fn stored(&self, operand: usize) -> Option<usize> {
        let _ = operand;
        None
    }

    /// Returns the packed matrix from which an operand of the contraction is dequantized, if any.
    fn packed(&self, operand: usize) -> Option<Packed> {
        let _ = operand;
        None
    }

    /// Returns the batch stride of an operand that is [stored](Contraction::stored): 0 if all matrices are the same.
    /// Returns `None` if there is no constant stride.
    fn batch_stride(&self, operand: usize) -> Option<usize> {
        let _ = operand;
        None
    }

    /// Returns the convolution, if images are NHWC and both operands are in memory.
    fn convolution(&self) -> Option<StoredConvolution> {
        None
    }

    /// Returns the location of the element that [`Contraction::load`] loads, for an operand that is [stored](Contraction::stored)
    /// or [packed](Contraction::packed).
    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<ElementLocation, String> {
        let _ = (e, operand, line, k);
        Err("it is computed as it is loaded".into())
    }
}

/// Returns the second operand if it is packed along the summed dimension.
pub(super) fn packed_along_k(contraction: &dyn Contraction) -> Option<Packed> {
    contraction.packed(1).filter(|_| contraction.is_along_k(1))
}

/// Returns the index of a block of the packed second operand: the block `k` of a column.
pub(super) fn packed_block(
    e: &mut Emitter,
    contraction: &dyn Contraction,
    column: &str,
    k: &str,
) -> Result<String, String> {
    let first = e.bind(&format!("{k} * {BLOCK}u"))?;
    let found = contraction.number_of(e, 1, column, &first)?;
    e.bind(&format!("({}) / {BLOCK}u", found.number))
}

/// Adds the contraction to a kernel file: sizes, statements and values of both loads, and the order of results.
pub(super) fn contraction_of(
    e: &mut Emitter,
    template: Template,
    contraction: &dyn Contraction,
    loads: [(String, String); 2],
) -> Result<Template, String> {
    let (Sizes { batch, m, n, k }, [(a, a_value), (b, b_value)]) = (contraction.sizes(), loads);
    let template = template
        .returns("load_a", &a, &a_value)
        .returns("load_b", &b, &b_value)
        .sizes([("BATCH", batch), ("M", m), ("N", n), ("K", k)]);
    contraction.element_number(e, template)
}
