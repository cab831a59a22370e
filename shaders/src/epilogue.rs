//! Epilogues of contractions. They store partial sums, or compute and store the calls that follow the contraction.

use std::fmt::Write as _;

use meganeura_core::DType;

use super::body::Id;
use super::emit::Emitter;
use super::files;
use super::kernel::{Launch, Memory};
use super::location::{self, Base};
use super::template::Template;

/// Dtype of partial sums. It does not depend on the dtype of the operands.
pub(super) const PARTIAL: DType = DType::F32;

/// Returns the maximum number of parts for `total` sums. It is limited by the memory of the partial sums.
pub(super) fn most_parts(total: usize) -> usize {
    const MAX_BYTES: usize = 16 << 20;
    PARTIAL.storage_bytes(total.max(1)).map_or(1, |bytes| MAX_BYTES / bytes)
}

/// Returns true if the last part of a sum of `k` terms has fewer steps than the previous parts of `length` terms
/// each. Otherwise kernels use `length` for the last part, too, because terms past the end are zero. Drivers unroll
/// loops of constant length, which makes their steps faster, by a sixth on an H200.
pub(super) fn last_is_short(k: usize, step: usize, length: usize, parts: usize) -> bool {
    parts > 1 && parts * length != k.next_multiple_of(step)
}

/// Returns the number of parts of `steps` steps, at most `most`. If possible, it is a number near `wanted` with which
/// the parts have equal lengths; otherwise it is `wanted`.
pub(super) fn even_parts(steps: usize, wanted: usize, most: usize) -> usize {
    let wanted = wanted.min(most).max(1);
    let is_even = |parts: &usize| steps.is_multiple_of(*parts);
    let more = (wanted..=most.min(wanted * 3 / 2)).find(is_even);
    let fewer = || ((wanted * 2).div_ceil(3)..wanted).rev().find(is_even);
    more.or_else(fewer).unwrap_or(wanted)
}

/// Consumer of the sums. It provides the bodies of the functions `finish` and `finish_together` of kernel files.
pub(super) enum SumConsumer {
    /// Epilogue that computes the calls after the contraction.
    Finish(Epilogue),
    /// The sums are partial sums. They are stored in this array.
    Partial { array: String, total: usize },
}

/// Statements that compute and store the results of element `i` of the contraction, whose sum is `product`. The
/// statements for several elements read all their operands before the first store, because reads would wait for
/// stores that may alias.
pub(super) struct Epilogue {
    one: String,
    several: String,
    together: usize,
}

impl Epilogue {
    /// Creates an epilogue for one element at a time.
    pub(super) fn of_one(one: String) -> Self {
        Epilogue {
            one,
            several: String::new(),
            together: 1,
        }
    }
}

impl SumConsumer {
    /// Returns the number of elements that are processed together, so that their loads are in flight at the same
    /// time.
    pub(super) fn together(&self) -> usize {
        match self {
            SumConsumer::Finish(epilogue) => epilogue.together,
            SumConsumer::Partial { .. } => 1,
        }
    }

    /// Adds the body of `finish` to a kernel file.
    pub(super) fn finish(&self, template: Template) -> Template {
        match self {
            SumConsumer::Finish(epilogue) => template.body("finish", &*epilogue.one),
            SumConsumer::Partial { array, total } => {
                template.body("finish", format!("{array}[part * {total}u + i] = product;\n"))
            }
        }
    }

    /// Adds the bodies of `finish` and `finish_together` to a kernel file.
    pub(super) fn finish_together(&self, template: Template) -> Template {
        let template = self.finish(template).size("FINISH_WIDTH", self.together());
        match self {
            SumConsumer::Finish(epilogue) if epilogue.together > 1 => {
                template.body("finish_together", &*epilogue.several)
            }
            _ => template,
        }
    }
}

/// A buffer for sums that are stored without an epilogue: the sums of the first part in order, then the sums of the
/// next part, and so on.
pub(super) type RawSums = Memory;

/// Results of a dispatch, grouped by the value that they are computed from.
#[derive(Default)]
pub(super) struct Results {
    /// Results that have one element for each element of the contraction.
    pub(super) of_product: Vec<usize>,
    /// Reductions before the contraction.
    pub(super) before: Vec<usize>,
}

/// Creates the epilogue of a contraction, for `together` elements at a time.
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

/// Creates the epilogue of a contraction whose elements [can be looked up](Emitter::look_up).
pub(super) fn of_looked_up(e: &mut Emitter, id: Id, outputs: &[usize]) -> Result<Epilogue, String> {
    let (code, stores) = stored(e, id, outputs, "i")?;
    Ok(Epilogue::of_one(code + &stores))
}

/// Returns the code that computes the results of element `i` of the contraction, and the statements that store them.
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

/// Returns the same code and statements as `finished`, for a contraction whose elements the emitter can already read
/// from a variable or with a function.
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

/// Compiles the launch that adds up the parts of each element.
pub(super) fn join(mut e: Emitter, id: Id, outputs: &[usize], parts: usize) -> Result<Launch, String> {
    let total = e.body.ty(id).numel();
    let sink = SumConsumer::Finish(epilogue(&mut e, id, outputs, 1)?);
    add_up(e, &sink, Template::new(files::SPLIT_K_JOIN), [total, parts])
}

/// Compiles the launch that adds up the parts of `total` sums. They are stored in scratch, part by part.
pub(super) fn add_up(
    mut e: Emitter,
    sink: &SumConsumer,
    template: Template,
    [total, parts]: [usize; 2],
) -> Result<Launch, String> {
    e.module.bind("partial", e.cx.scratch(0));
    let template = sink.finish(template).size("SPLIT_K", parts);
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
