//! Epilogues of contractions: results are stored as parts of sums, or the following calls are computed from them.

use std::fmt::Write as _;

use meganeura_core::DType;

use super::body::Id;
use super::emit::Emitter;
use super::files;
use super::kernel::{Launch, Memory};
use super::location::{self, Base};
use super::template::Template;

/// Type of partial sums: that of all sums, whatever the products are of.
pub(super) const PARTIAL: DType = DType::F32;

/// Most parts that the sums of so many elements may be cut into: partial sums take memory.
pub(super) fn most_parts(total: usize) -> usize {
    const MAX_BYTES: usize = 16 << 20;
    PARTIAL.storage_bytes(total.max(1)).map_or(1, |bytes| MAX_BYTES / bytes)
}

/// Whether the last of the parts of a sum of `k` terms, which have `length` terms each, has fewer steps than the others. Where all
/// have as many, `length` is said of the last as well, as terms beyond the end are zero: drivers unroll loops of a known length,
/// and their steps are faster then, by a sixth on an H200.
pub(super) fn last_is_short(k: usize, step: usize, length: usize, parts: usize) -> bool {
    parts > 1 && parts * length != k.next_multiple_of(step)
}

/// As many parts of so many steps as are wanted, but `most` at most; or about as many, if these have equal lengths.
pub(super) fn even_parts(steps: usize, wanted: usize, most: usize) -> usize {
    let wanted = wanted.min(most).max(1);
    let is_even = |parts: &usize| steps.is_multiple_of(*parts);
    let more = (wanted..=most.min(wanted * 3 / 2)).find(is_even);
    let fewer = || ((wanted * 2).div_ceil(3)..wanted).rev().find(is_even);
    more.or_else(fewer).unwrap_or(wanted)
}

/// What is done with the sums, as bodies of the functions `finish` and `finish_together` of kernel files.
pub(super) enum Sink {
    /// What follows the product is computed.
    Finish(Epilogue),
    /// They are stored, as parts of sums, in this array.
    Partial { array: String, total: usize },
}

/// Statements that store what becomes of an element `i` of the product, whose sum is `product`, and such for several
/// elements, which read all that they need before they store anything: reads would wait for stores that may be to the same memory.
pub(super) struct Epilogue {
    one: String,
    several: String,
    together: usize,
}

impl Epilogue {
    /// Statements for one element at a time.
    pub(super) fn of_one(one: String) -> Self {
        Epilogue {
            one,
            several: String::new(),
            together: 1,
        }
    }
}

impl Sink {
    /// Elements that are given together, so that what is loaded for them is in flight together.
    pub(super) fn together(&self) -> usize {
        match self {
            Sink::Finish(epilogue) => epilogue.together,
            Sink::Partial { .. } => 1,
        }
    }

    /// Gives a kernel file its `finish`.
    pub(super) fn finish(&self, template: Template) -> Template {
        match self {
            Sink::Finish(epilogue) => template.body("finish", &*epilogue.one),
            Sink::Partial { array, total } => {
                template.body("finish", format!("{array}[part * {total}u + i] = product;\n"))
            }
        }
    }

    /// The same, and `finish_together`.
    pub(super) fn finish_together(&self, template: Template) -> Template {
        let template = self.finish(template).size("TOGETHER", self.together());
        match self {
            Sink::Finish(epilogue) if epilogue.together > 1 => template.body("finish_together", &*epilogue.several),
            _ => template,
        }
    }
}

/// A buffer where sums are stored by their numbers, part by part, if nothing else is done with them.
pub(super) type Plain = Memory;

/// Results of a dispatch by what they belong to.
#[derive(Default)]
pub(super) struct Results {
    /// An element for each of the product's.
    pub(super) of_product: Vec<usize>,
    /// What is reduced before it.
    pub(super) before: Vec<usize>,
}

/// What follows the product, for so many elements together.
pub(super) fn epilogue(e: &mut Emitter, id: Id, outputs: &[usize], together: usize) -> Result<Epilogue, String> {
    let (code, stores) = finished(e, id, outputs, "i", "product")?;
    let (mut reads, mut all) = (String::new(), String::new());
    for q in (0..together).filter(|_| together > 1) {
        let (code, stores) = finished(e, id, outputs, &format!("i_{q}"), &format!("product_{q}"))?;
        reads.push_str(&code);
        let _ = write!(all, "if (within_{q}) {{\n{stores}}}\n");
    }
    Ok(Epilogue {
        one: code + &stores,
        several: reads + &all,
        together,
    })
}

/// What follows a product any of whose elements [can be looked up](Emitter::look_up).
pub(super) fn of_looked_up(e: &mut Emitter, id: Id, outputs: &[usize]) -> Result<Epilogue, String> {
    let (code, stores) = stored(e, id, outputs, "i")?;
    Ok(Epilogue::of_one(code + &stores))
}

/// Code that computes what becomes of the element `i` of the product, and statements that store it.
fn finished(e: &mut Emitter, id: Id, outputs: &[usize], i: &str, product: &str) -> Result<(String, String), String> {
    let body = e.body;
    let base = Base::new(i, body.ty(id).numel());
    let shape = &body.ty(id).shape;
    e.fix_terms(
        id,
        product,
        vec![location::terms(&location::split(&base, 1, shape), shape)],
    );
    stored(e, id, outputs, i)
}

/// The same for a product whose element is known where it is needed.
fn stored(e: &mut Emitter, id: Id, outputs: &[usize], i: &str) -> Result<(String, String), String> {
    let body = e.body;
    let base = Base::new(i, body.ty(id).numel());
    e.writing_block(&base, |e| {
        let mut stores = String::new();
        for &output in outputs {
            let id = body.results[output];
            let value = e.value(id, &location::split(&base, 1, &body.ty(id).shape))?;
            stores.push_str(&e.module.store(output, i, &value));
        }
        Ok(stores)
    })
}

/// Adds up the parts of each element.
pub(super) fn join(mut e: Emitter, id: Id, outputs: &[usize], parts: usize) -> Result<Launch, String> {
    let total = e.body.ty(id).numel();
    let sink = Sink::Finish(epilogue(&mut e, id, outputs, 1)?);
    add_up(e, &sink, Template::new(files::SPLIT_K_JOIN), [total, parts])
}

/// Adds up the parts of so many sums in scratch, one set of parts after the other.
pub(super) fn add_up(
    mut e: Emitter,
    sink: &Sink,
    template: Template,
    [total, parts]: [usize; 2],
) -> Result<Launch, String> {
    e.module.bind("partial", e.cx.scratch(0));
    let template = sink.finish(template).size("PARTS", parts);
    e.module.finish_template_elements(template, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_have_a_known_length() {
        assert!(!last_is_short(1536, 64, 512, 3));
        assert!(!last_is_short(1000, 64, 512, 2), "the last step is not whole");
        assert!(last_is_short(900, 64, 512, 2));
        assert!(!last_is_short(1000, 64, 1024, 1));
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
