//! Counts of n-grams.

use meganeura_core::graph::Value;

use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::{Tensor, element_count};

type Built = Result<Vec<Operand>, String>;

/// Maximum number of comparisons of elements with n-grams of a node.
const MAX_COMPARISONS: usize = 1 << 24;

pub(super) const OPS: &[OnnxOp] = &[op("TfIdfVectorizer", 9, tf_idf).partly("strings")];

/// The n-grams of one length: their concatenated elements, and the index of each n-gram's count in the result.
struct Grams<'a> {
    length: usize,
    pool: &'a [i64],
    places: &'a [i64],
}

/// Returns the n-grams of the lengths that a node counts.
fn grams<'a>(call: &Call, pool: &'a [i64], places: &'a [i64]) -> Result<Vec<Grams<'a>>, String> {
    let starts = call.ints("ngram_counts")?.ok_or("ngram_counts are missing")?;
    let wanted = call.int("min_gram_length", 1)?..=call.int("max_gram_length", 1)?;
    let (mut found, mut place) = (Vec::new(), 0);
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).map_or(pool.len() as i64, |&end| end);
        let range = usize::try_from(start).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(0);
        let own = pool.get(range).ok_or("ngram_counts do not divide the pool")?;
        let length = i + 1;
        let count = own.len() / length;
        let own_places = places.get(place..place + count);
        let own_places = own_places.ok_or("ngram_indexes are fewer than the n-grams")?;
        place += count;
        if wanted.contains(&(length as i64)) && count > 0 {
            found.push(Grams {
                length,
                pool: &own[..count * length],
                places: own_places,
            });
        }
    }
    Ok(found)
}

/// Counts each n-gram in rows `[rows, size]`, with at most `skips` skipped elements between its elements.
fn counts(call: &mut Call, x: Value, [rows, size]: [usize; 2], grams: &Grams, skips: usize) -> Result<Value, String> {
    let count = grams.places.len();
    if element_count(&[rows.max(1), size.max(1), grams.pool.len(), skips + 1]).is_none_or(|n| n > MAX_COMPARISONS) {
        return Err(format!("{count} n-grams are too many"));
    }
    let pool = Tensor::integers(ElementType::I64, &[count, grams.length], grams.pool.to_vec());
    pool.graph_bytes()?;
    let pool = pool.to_constant()?;
    let graph = call.graph();
    let pool = graph.constant_data(pool, &[count, grams.length]);
    let zero = graph.scalar(0.0);
    let mut sum: Value = graph.expand(zero, &[rows, count]).into();
    // A single element has no gaps.
    let most = if grams.length == 1 { 0 } else { skips };
    for step in 1..=most + 1 {
        let Some(windows) = size.checked_sub((grams.length - 1) * step).filter(|&n| n > 0) else {
            break;
        };
        let at = (0..windows).flat_map(|i| (0..grams.length).map(move |k| (i + k * step) as u32));
        let at = graph.constant_u32(at.collect(), &[windows, 1, grams.length]);
        let found = graph.gather_axis(x, at, 1);
        let equal = graph.equal(found, pool);
        let all = graph.min(equal, &[3], false);
        let hits = graph.sum(all, &[1], false);
        let hits = graph.cast(hits, meganeura_core::DType::F32);
        sum = graph.add(sum, hits).into();
    }
    Ok(sum)
}

/// Counts n-grams in sequences of integers, with weights.
fn tf_idf(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let pool = call
        .ints("pool_int64s")?
        .ok_or("n-grams of strings are not supported")?;
    let places = call.ints("ngram_indexes")?.ok_or("ngram_indexes are missing")?;
    let skips = usize::try_from(call.int("max_skip_count", 0)?)
        .unwrap_or(0)
        .min(1 << 16);
    let (rows, size) = match dims.as_slice() {
        [size] => (1, *size),
        [rows, size] => (*rows, *size),
        _ => return Err(format!("expected [rows, size], found {dims:?}")),
    };
    let width = places.iter().max().map_or(0, |&last| last.saturating_add(1));
    let width = usize::try_from(width).ok().filter(|&n| n > 0 && n <= MAX_COMPARISONS);
    let width = width.ok_or("ngram_indexes do not fit")?;
    let x = call.value(0)?;
    let x = call.as_element(x, ElementType::I64);
    let x: Value = call.graph().reshape(x, &[rows, size]).into();
    let zero = call.graph().scalar(0.0);
    // Column 0 is the value of indices without an n-gram.
    let mut columns: Vec<Value> = vec![call.graph().expand(zero, &[rows, 1]).into()];
    let (mut from, mut next) = (vec![0; width], 1);
    for grams in grams(call, &pool, &places)? {
        columns.push(counts(call, x, [rows, size], &grams, skips)?);
        for &place in grams.places {
            let place = usize::try_from(place).map_err(|_| "an index of ngram_indexes is negative")?;
            if std::mem::replace(&mut from[place], next) != 0 {
                return Err("two n-grams with the same index are not supported".into());
            }
            next += 1;
        }
    }
    let mode = call.string("mode", "TF")?.into_owned();
    let weights = match call.attributes().floats("weights")? {
        Some(list) if list.len() == places.len() => list.to_vec(),
        Some(list) => return Err(format!("{} weights for {} n-grams", list.len(), places.len())),
        None => vec![1.0; places.len()],
    };
    let mut by_place = vec![0.0; width];
    for (&place, &weight) in places.iter().zip(&weights) {
        if let Some(slot) = usize::try_from(place).ok().and_then(|place| by_place.get_mut(place)) {
            *slot = weight;
        }
    }
    let graph = call.graph();
    let all = graph.concat(&columns, 1);
    let from = graph.constant_u32(from, &[width]);
    let mut y = graph.gather_axis(all, from, 1);
    if mode == "IDF" {
        let one = graph.scalar(1.0);
        y = graph.minimum(y, one);
    }
    match mode.as_str() {
        "TF" => {}
        "IDF" | "TFIDF" => {
            let weights = graph.constant(by_place, &[width]);
            y = graph.mul(y, weights);
        }
        other => return Err(format!("mode `{other}` is not known")),
    }
    if dims.len() == 1 {
        y = graph.reshape(y, &[width]);
    }
    call.one(y, ElementType::F32)
}
