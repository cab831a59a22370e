//! Contractions, as matmuls and convolutions describe them to the code that computes them: by tiles, by cooperative matrices or
//! by lanes.

use super::emit::Emitter;
use super::packed::Packed;
use super::template::Template;

/// Sizes of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    /// Of the summed dimension.
    pub(super) k: usize,
}

/// Where an element of an operand is found in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its number.
    pub(super) number: String,
    /// A condition; where it does not hold, the element is zero, and the number that of another one.
    pub(super) inside: Option<String>,
}

impl Found {
    /// An element that is there in any case.
    pub(super) fn always(number: String) -> Self {
        Found { number, inside: None }
    }

    /// The index of the vector of four elements that begins with it, as WGSL.
    pub(super) fn vector(&self) -> String {
        format!("({}) / 4u", self.number)
    }

    /// Such a vector of a type, or zeros where the element is not inside, or another condition does not hold.
    pub(super) fn guarded(&self, ty: &str, vector: String, also: Option<String>) -> String {
        let conditions: Vec<&str> = [&self.inside, &also]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        match conditions.is_empty() {
            true => vector,
            false => format!("select({ty}(), {vector}, {})", conditions.join(" && ")),
        }
    }
}

/// What is summed up, and where the sum belongs. Numbers are WGSL variables; `batch` is one of them.
pub(super) trait Contraction {
    fn sizes(&self) -> Sizes;

    /// What is computed, for the names of classes of products: a word, and what decides how elements are found.
    fn kind(&self) -> String;

    /// Whether neighbours along the summed dimension, rather than along `m` or `n`, are neighbours in the memory of
    /// the first or second operand.
    fn is_along_k(&self, operand: usize) -> bool;

    /// A variable with an element of an operand: `line` is a row for the first, a column for the second.
    fn load(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<String, String>;

    /// Whether neighbours of an operand are found faster [together](Contraction::load_together) than each by itself.
    fn finds_together(&self, operand: usize) -> bool {
        let _ = operand;
        false
    }

    /// Variables with `count` neighbours along the lines or the sum, whichever [`Contraction::is_along_k`] says, from an element
    /// on that may lie behind the last one, of an operand that [is found so](Contraction::finds_together). `line` and `k` of the
    /// first are within the operand but for the direction in which neighbours lie.
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

    /// Gives a kernel file the number of a result's element, unless results lie row by row, as kernel files have it.
    fn element_number(&self, e: &mut Emitter, template: Template) -> Result<Template, String> {
        let _ = e;
        Ok(template)
    }

    /// Whether results lie row by row, so that a tile of them can be stored as it is.
    fn is_by_rows(&self) -> bool {
        false
    }

    /// The operand of the dispatch that an operand of the product is, element by element.
    fn stored(&self, operand: usize) -> Option<usize> {
        let _ = operand;
        None
    }

    /// The packed matrix that an operand of the product is, element by element.
    fn packed(&self, operand: usize) -> Option<Packed> {
        let _ = operand;
        None
    }

    /// Elements from one matrix of an operand that is [stored](Contraction::stored) to the next one of the batch, 0 if all are the
    /// same; `None` where matrices do not lie so.
    fn batch_stride(&self, operand: usize) -> Option<usize> {
        let _ = operand;
        None
    }

    /// Where the element is that [`Contraction::load`] loads, of an operand that is [stored](Contraction::stored) or
    /// [packed](Contraction::packed).
    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<Found, String> {
        let _ = (e, operand, line, k);
        Err("it is computed as it is loaded".into())
    }
}

/// Gives a kernel file its product: sizes, statements and values of both loads, and the order of results.
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
