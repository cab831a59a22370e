//! What is done with sums of products: they are stored as parts of sums, or what follows the product is computed of them.

use std::fmt::Write as _;

use meganeura_core::DType;

use super::body::Id;
use super::emit::Emitter;
use super::kernel::Launch;
use super::place::{self, Base};
use super::tiled::{Products, Sizes};

/// Threads of a workgroup that adds up parts.
const THREADS: usize = 256;
/// Type of partial sums: that of all sums, whatever the products are of.
pub(super) const PARTIAL: DType = DType::F32;

/// Most parts that the sums of so many elements may be cut into: partial sums take memory.
pub(super) fn most_parts(total: usize) -> usize {
    const MOST_BYTES: usize = 16 << 20;
    PARTIAL
        .storage_bytes(total.max(1))
        .map_or(1, |bytes| MOST_BYTES / bytes)
}

/// Where a workgroup's `part` of a sum of `k` terms begins, and how many terms it has, as WGSL expressions. Parts have
/// `length` terms, which are whole steps, but for the last. Where all have as many steps, `length` is said of the last as well, as
/// terms beyond the end are zero: drivers write loops out whose length they know, and their steps are faster then, by a sixth on an H200.
pub(super) fn bounds(k: usize, step: usize, length: usize, parts: usize) -> [String; 2] {
    match parts {
        1 => ["0u".to_owned(), format!("{k}u")],
        _ => {
            let terms = match parts * length == k.next_multiple_of(step) {
                true => format!("{length}u"),
                false => format!("min({length}u, {k}u - part * {length}u)"),
            };
            [format!("part * {length}u"), terms]
        }
    }
}

/// As many parts of so many steps as are wanted, but `most` at most; or about as many, if these have equal lengths.
pub(super) fn even_parts(steps: usize, wanted: usize, most: usize) -> usize {
    let wanted = wanted.min(most).max(1);
    let is_even = |parts: &usize| steps.is_multiple_of(*parts);
    let more = (wanted..=most.min(wanted * 3 / 2)).find(is_even);
    let fewer = || ((wanted * 2).div_ceil(3)..wanted).rev().find(is_even);
    more.or_else(fewer).unwrap_or(wanted)
}

/// An element of the result: WGSL expressions of its number, which is that of some element in any case, and its sum; and
/// a condition where it may be beyond the end.
pub(super) struct Element {
    pub(super) number: String,
    pub(super) sum: String,
    pub(super) within: Option<String>,
}

impl Element {
    /// One that is within the result.
    pub(super) fn new(number: &str, sum: &str) -> Self {
        Element {
            number: number.to_owned(),
            sum: sum.to_owned(),
            within: None,
        }
    }

    /// One of a row and a column, which may be beyond the end unless tiles fit `is_whole` times.
    pub(super) fn within(products: &dyn Products, is_whole: bool, row: &str, column: &str, sum: String) -> Self {
        let Sizes { m, n, .. } = products.sizes();
        let (number, within) = match is_whole {
            true => (products.number(row, column), None),
            false => (
                products.number(
                    &format!("min({row}, {}u)", m - 1),
                    &format!("min({column}, {}u)", n - 1),
                ),
                Some(format!("{row} < {m}u && {column} < {n}u")),
            ),
        };
        Element { number, sum, within }
    }

    /// A statement that is run only if it is within the result.
    fn guard(&self, statement: &str) -> String {
        match &self.within {
            Some(condition) => format!("if ({condition}) {{\n{statement}}}\n"),
            None => statement.to_owned(),
        }
    }
}

/// What is done with the sums.
pub(super) enum Sink {
    /// [`epilogue`]: what follows the product is computed, of so many elements together.
    Finish(usize),
    /// They are stored, as parts of sums, in this array.
    Partial { array: String, total: usize },
}

impl Sink {
    /// Elements that should be given together, so that what is read for them is on its way together.
    pub(super) fn together(&self) -> usize {
        match self {
            Sink::Finish(together) => *together,
            Sink::Partial { .. } => 1,
        }
    }

    /// Statements for some elements, as many as [`Sink::together`] or fewer.
    pub(super) fn take(&self, elements: &[Element]) -> String {
        let each = |element: &Element| {
            let Element { number, sum, .. } = element;
            element.guard(&match self {
                Sink::Finish(_) => format!("finish({number}, {sum});\n"),
                Sink::Partial { array, total } => format!("{array}[part * {total}u + {number}] = {sum};\n"),
            })
        };
        match self {
            Sink::Finish(together) if *together > 1 && elements.len() == *together => {
                let arguments = elements.iter().map(|Element { number, sum, within }| {
                    let within = within.as_deref().unwrap_or("true");
                    format!("{number}, {sum}, {within}")
                });
                format!("finish_together({});\n", arguments.collect::<Vec<_>>().join(", "))
            }
            _ => elements.iter().map(each).collect(),
        }
    }
}

/// Where sums are stored by their numbers if nothing else is done with them: an array, and what is added to the numbers.
pub(super) type Plain = (String, String);

/// Results of a dispatch by what they belong to.
#[derive(Default)]
pub(super) struct Results {
    /// An element for each of the product's.
    pub(super) of_product: Vec<usize>,
    /// What is reduced before it.
    pub(super) before: Vec<usize>,
}

/// Declares the function that stores what becomes of an element of the product, and one that does so of several, which
/// reads all that they need before it stores anything: reads would wait for stores that may be to the same memory.
pub(super) fn epilogue(e: &mut Emitter, id: Id, outputs: &[usize], together: usize) -> Result<(), String> {
    let (code, stores) = finished(e, id, outputs, "i", "product")?;
    let _ = write!(e.module.items, "fn finish(i: u32, product: f32) {{\n{code}{stores}}}\n");
    if together == 1 {
        return Ok(());
    }
    let (mut parameters, mut reads, mut all) = (Vec::new(), String::new(), String::new());
    for q in 0..together {
        let [i, product] = ["i", "product"].map(|name| format!("{name}_{q}"));
        let (code, stores) = finished(e, id, outputs, &i, &product)?;
        parameters.push(format!("{i}: u32, {product}: f32, within_{q}: bool"));
        reads.push_str(&code);
        let _ = write!(all, "if (within_{q}) {{\n{stores}}}\n");
    }
    let parameters = parameters.join(", ");
    let _ = write!(e.module.items, "fn finish_together({parameters}) {{\n{reads}{all}}}\n");
    Ok(())
}

/// Code that computes what becomes of the element `i` of the product, and statements that store it.
fn finished(e: &mut Emitter, id: Id, outputs: &[usize], i: &str, product: &str) -> Result<(String, String), String> {
    let body = e.body;
    let base = Base::new(i, body.ty(id).numel());
    let shape = &body.ty(id).shape;
    e.fix_terms(id, product, vec![place::terms(&place::split(&base, 1, shape), shape)]);
    e.writing_block(&base, |e| {
        let mut stores = String::new();
        for &output in outputs {
            let id = body.results[output];
            let value = e.value(id, &place::split(&base, 1, &body.ty(id).shape))?;
            stores.push_str(&e.module.store(output, i, &value));
        }
        Ok(stores)
    })
}

/// Adds up the parts of each element.
pub(super) fn join(e: Emitter, id: Id, outputs: &[usize], parts: usize) -> Result<Launch, String> {
    let total = e.body.ty(id).numel();
    add_up(e, id, outputs, [total, parts], "finish(i, sum);\n")
}

/// Adds up the parts of so many sums in scratch, one set of parts after the other. `finish` are statements for the number `i` of one,
/// and what it comes to as `sum`.
pub(super) fn add_up(
    mut e: Emitter,
    id: Id,
    outputs: &[usize],
    [total, parts]: [usize; 2],
    finish: &str,
) -> Result<Launch, String> {
    epilogue(&mut e, id, outputs, 1)?;
    let partial = e.module.array(e.cx.scratch(0), PARTIAL, false);
    let code = format!(
        "let i = group_number * {THREADS}u + local;\nif (i >= {total}u) {{\nreturn;\n}}\nvar sum = 0.0;\n\
         for (var part = 0u; part < {parts}u; part += 1u) {{\nsum += {partial}[part * {total}u + i];\n}}\n{finish}"
    );
    e.module.finish(&code, THREADS, total.div_ceil(THREADS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_have_a_known_length() {
        assert_eq!(bounds(1536, 64, 512, 3), ["part * 512u", "512u"]);
        assert_eq!(
            bounds(1000, 64, 512, 2),
            ["part * 512u", "512u"],
            "the last step is not whole"
        );
        assert_eq!(
            bounds(900, 64, 512, 2),
            ["part * 512u", "min(512u, 900u - part * 512u)"]
        );
        assert_eq!(bounds(1000, 64, 1024, 1), ["0u", "1000u"]);
    }

    #[test]
    fn parts_are_as_even_as_can_be() {
        assert_eq!(even_parts(24, 3, 3), 3);
        assert_eq!(even_parts(72, 7, 9), 8, "more before fewer");
        assert_eq!(even_parts(72, 7, 7), 6, "no more");
        assert_eq!(even_parts(17, 3, 8), 3, "a prime");
        assert_eq!(even_parts(16, 9, 0), 1);
        for steps in 1..100 {
            for (wanted, most) in [(1, 1), (2, 5), (5, 2), (7, 12), (40, 30)] {
                let parts = even_parts(steps, wanted, most);
                assert!((1..=most).contains(&parts) && parts <= wanted * 3 / 2);
            }
        }
    }
}
