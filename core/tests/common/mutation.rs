//! Invalid calls: sample cases whose attributes, shapes and types are changed at random.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use meganeura_core::DType;
use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::ops::sample::{Fill, Sample};
use meganeura_core::random::SplitMix64;

const INTS: [i64; 22] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    -1,
    -2,
    -3,
    100,
    1 << 20,
    i32::MAX as i64,
    u32::MAX as i64,
    1 << 32,
    (1 << 32) + 1,
    1 << 61,
    1 << 62,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

const SIZES: [usize; 14] = [
    0,
    0,
    1,
    2,
    3,
    4,
    5,
    8,
    1 << 20,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 60,
    (1 << 61) - 1,
];

const FLOATS: [f64; 11] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-40,
    1e308,
    -1e308,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
];

const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32];

fn pick<T: Copy>(rng: &mut SplitMix64, all: &[T]) -> T {
    all[rng.below(all.len())]
}

fn change_list(rng: &mut SplitMix64, list: &mut Vec<i64>) {
    match rng.below(5) {
        0 => list.push(pick(rng, &INTS)),
        1 => drop(list.pop()),
        2 => list.reverse(),
        _ if list.is_empty() => {}
        _ => {
            let at = rng.below(list.len());
            list[at] = pick(rng, &INTS);
        }
    }
}

fn change_attr(rng: &mut SplitMix64, attrs: &Attrs) -> Attrs {
    let count = attrs.iter().count();
    let (at, remove) = (rng.below(count.max(1)), rng.below(12) == 0);
    let mut next = Attrs::new();
    for (i, (name, value)) in attrs.iter().enumerate() {
        let mut value = value.clone();
        if i == at {
            match &mut value {
                _ if remove => continue,
                Attr::Int(v) => *v = pick(rng, &INTS),
                Attr::Ints(list) => change_list(rng, list),
                Attr::Float(v) => *v = pick(rng, &FLOATS),
                Attr::Bool(v) => *v = !*v,
                Attr::Str(v) => v.push('x'),
                Attr::DType(v) => *v = pick(rng, &DTYPES),
                // A changed program would be rejected when it is created.
                Attr::Program(_) => {}
            }
        }
        next = next.with(for_ever(name), value);
    }
    next
}

/// Returns a name as a static string, as attributes require; equal names share one string, so that no memory leaks (a
/// sanitizer would report a leak).
fn for_ever(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(name);
            name
        }
    }
}

fn change_input(rng: &mut SplitMix64, sample: &mut Sample) {
    let count = sample.inputs.len();
    if count == 0 {
        return;
    }
    let at = rng.below(count);
    let input = &mut sample.inputs[at];
    let rank = input.shape.len();
    match rng.below(10) {
        0 => input.shape.insert(rng.below(rank + 1), pick(rng, &SIZES)),
        1 if rank > 0 => drop(input.shape.remove(rng.below(rank))),
        2 if !input.state => input.dtype = pick(rng, &DTYPES),
        3 => {
            let another = sample.inputs[rng.below(count)].clone();
            sample.inputs.push(another);
        }
        4 => drop(sample.inputs.remove(at)),
        // Changes all occurrences of the size, so that operands still match.
        5..=7 if rank > 0 => {
            let (old, new) = (input.shape[rng.below(rank)], pick(rng, &SIZES));
            for d in sample.inputs.iter_mut().flat_map(|i| &mut i.shape) {
                if *d == old {
                    *d = new;
                }
            }
        }
        _ if rank > 0 => input.shape[rng.below(rank)] = pick(rng, &SIZES),
        _ => {}
    }
}

/// Returns the sample with one to three changes.
pub(crate) fn mutated(sample: &Sample, rng: &mut SplitMix64) -> Sample {
    let mut sample = sample.clone();
    for _ in 0..1 + rng.below(3) {
        if !sample.attrs.is_empty() && rng.below(2) == 0 {
            sample.attrs = change_attr(rng, &sample.attrs);
        } else {
            change_input(rng, &mut sample);
        }
    }
    for input in &mut sample.inputs {
        if !input.dtype.is_float() && !matches!(input.fill, Fill::Below(_) | Fill::Mask | Fill::Constant(_)) {
            input.fill = Fill::Below(5);
        }
    }
    let shapes: Vec<String> = sample
        .inputs
        .iter()
        .map(|i| format!("{}{:?}", i.dtype, i.shape))
        .collect();
    sample.label = format!("{shapes:?} {}", sample.attrs);
    sample
}
