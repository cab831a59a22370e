//! Operators whose result shapes depend on the data, or that reinterpret bits that a graph cannot access. Their operands must be
//! known at import.

use std::cmp::Ordering;

use super::fold::{MAX_FOLDED, strides};
use super::{OnnxOp, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::small::SmallFloat;
use crate::tensor::{Data, Tensor};

type Built = Result<Vec<Operand>, String>;
type Folded = Result<Option<Vec<Tensor>>, String>;

const KNOWN: &str = "operands that are not known when importing";

/// Maximum number of box comparisons at import.
const MAX_COMPARISONS: usize = 1 << 26;

pub(super) const OPS: &[OnnxOp] = &[
    op("BitCast", 26, bit_cast)
        .folding(fold_bit_cast)
        .partly("between floats and integers of operands that are not known when importing"),
    op("NonMaxSuppression", 10, |c| Err(c.not_known(0, "which boxes are left")))
        .folding(fold_non_max_suppression)
        .partly(KNOWN),
    op("Unique", 11, |c| Err(c.not_known(0, "which elements differ")))
        .folding(fold_unique)
        .partly(KNOWN),
];

fn bit_cast(call: &mut Call) -> Built {
    let (from, to) = (call.element(0)?, ElementType::from_number(call.int("to", 0)?)?);
    if from.bits() != to.bits() {
        return Err(format!("{from} and {to} differ in their number of bits"));
    }
    let x = call.value(0)?;
    if from == to {
        return call.one(x, to);
    }
    if from.is_float() || to.is_float() || to == ElementType::Bool {
        return Err(call.not_known(0, "what the bits say"));
    }
    let y = super::cast::convert(call, x, from, to);
    call.one(y, to)
}

/// Returns the bits of the elements of a tensor.
fn bits_of(x: &Tensor) -> Option<Vec<u64>> {
    use half::{bf16, f16};
    if SmallFloat::of(x.element()).is_some() {
        return None;
    }
    Some(match (&x.data, x.element()) {
        (Data::Int(data), element) if element.bits() >= 8 => {
            let mask = u64::MAX >> (64 - element.bits());
            data.iter().map(|&v| v as u64 & mask).collect()
        }
        (Data::F64(data), _) => data.iter().map(|v| v.to_bits()).collect(),
        (Data::F32(data), ElementType::F16) => data.iter().map(|&v| f16::from_f32(v).to_bits().into()).collect(),
        (Data::F32(data), ElementType::BF16) => data.iter().map(|&v| bf16::from_f32(v).to_bits().into()).collect(),
        (Data::F32(data), _) => data.iter().map(|v| v.to_bits().into()).collect(),
        _ => return None,
    })
}

fn fold_bit_cast(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    use half::{bf16, f16};
    let [Some(x)] = operands else { return Ok(None) };
    let to = ElementType::from_number(call.int("to", 0)?)?;
    if SmallFloat::of(to).is_some() {
        return Ok(None);
    }
    let (true, Some(bits)) = (x.element().bits() == to.bits(), bits_of(x)) else {
        return Ok(None);
    };
    let floats = |f: fn(u64) -> f64| Tensor::floats(to, x.dims(), bits.iter().map(|&b| f(b)).collect());
    Ok(Some(vec![match to {
        ElementType::F64 => floats(f64::from_bits),
        ElementType::F32 => floats(|b| f32::from_bits(b as u32).into()),
        ElementType::F16 => floats(|b| f16::from_bits(b as u16).into()),
        ElementType::BF16 => floats(|b| bf16::from_bits(b as u16).into()),
        _ => {
            let result = Tensor::integers(to, x.dims(), bits.iter().map(|&b| b as i64).collect());
            // Larger numbers would be rounded to the nearest number of the graph's type.
            result.graph_bytes()?;
            result
        }
    }]))
}

/// Returns the unique elements, or unique slices along an axis.
fn fold_unique(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let [Some(x)] = operands else { return Ok(None) };
    let axis = match call.attributes().int("axis")? {
        Some(axis) => Some(call.axis(axis, x.dims().len())?),
        None => None,
    };
    // Positions of the elements of each part, and the shape without the number of parts.
    let (outer, count, inner) = match axis {
        Some(axis) => (
            x.dims()[..axis].iter().product::<usize>(),
            x.dims()[axis],
            x.dims()[axis + 1..].iter().product::<usize>(),
        ),
        None => (1, x.len(), 1),
    };
    if outer.max(count).max(inner) > MAX_FOLDED {
        return Err(format!("parts of {:?} are too many", x.dims()));
    }
    let places = |part: usize| (0..outer).flat_map(move |o| (0..inner).map(move |i| (o * count + part) * inner + i));
    let compare = comparison(x);
    let by_content = |a: &usize, b: &usize| {
        let pairs = places(*a).zip(places(*b));
        let differ = pairs.map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
        differ.unwrap_or(Ordering::Equal)
    };
    let mut order: Vec<usize> = (0..count).collect();
    // Equal parts keep their order, so that the first occurrence comes first.
    order.sort_by(by_content);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for part in order {
        match groups.last_mut() {
            Some(group) if by_content(&group[0], &part).is_eq() => group.push(part),
            _ => groups.push(vec![part]),
        }
    }
    if call.int("sorted", 1)? == 0 {
        groups.sort_by_key(|group| group[0]);
    }
    let mut inverse = vec![0; count];
    for (i, group) in groups.iter().enumerate() {
        group.iter().for_each(|&part| inverse[part] = i as i64);
    }
    let dims = match axis {
        Some(axis) => {
            let mut dims = x.dims().to_vec();
            dims[axis] = groups.len();
            dims
        }
        None => vec![groups.len()],
    };
    let chosen = (0..outer).flat_map(|o| {
        let groups = &groups;
        groups
            .iter()
            .flat_map(move |group| (0..inner).map(move |i| (o * count + group[0]) * inner + i))
    });
    let list = |data: Vec<i64>| Tensor::i64(&[data.len()], data);
    Ok(Some(vec![
        x.pick(&dims, chosen),
        list(groups.iter().map(|group| group[0] as i64).collect()),
        list(inverse),
        list(groups.iter().map(|group| group.len() as i64).collect()),
    ]))
}

/// Returns the comparison of two elements; NaN is greater than all numbers.
fn comparison(x: &Tensor) -> impl Fn(usize, usize) -> Ordering {
    let (ints, floats) = match x.ints() {
        Some(ints) => (ints.to_vec(), Vec::new()),
        None => (Vec::new(), x.to_f64()),
    };
    move |a, b| {
        if !ints.is_empty() {
            ints[a].cmp(&ints[b])
        } else {
            let (a, b) = (floats[a], floats[b]);
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
    }
}

/// Returns two opposite corners of a box, the lower one first.
fn corners(numbers: &[f64], centered: bool) -> [f64; 4] {
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| numbers.get(i).copied().unwrap_or(0.0));
    if centered {
        [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0]
    } else {
        [a.min(c), b.min(d), a.max(c), b.max(d)]
    }
}

/// Returns the area of the intersection of two boxes, divided by the area of their union.
fn overlap(a: [f64; 4], b: [f64; 4]) -> f64 {
    let side = |i: usize| a[i + 2].min(b[i + 2]) - a[i].max(b[i]);
    if side(0) <= 0.0 || side(1) <= 0.0 {
        return 0.0;
    }
    let area = |c: [f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
    let shared = side(0) * side(1);
    let total = area(a) + area(b) - shared;
    if area(a) <= 0.0 || area(b) <= 0.0 || total <= 0.0 {
        return 0.0;
    }
    shared / total
}

/// Selects boxes of each class in the order of their scores, except boxes that overlap a selected one too much.
fn fold_non_max_suppression(call: &Call, operands: &[Option<&Tensor>]) -> Folded {
    let (Some(Some(boxes)), Some(Some(scores))) = (operands.first(), operands.get(1)) else {
        return Ok(None);
    };
    let number = |i: usize| {
        let tensor = operands.get(i).copied().flatten();
        tensor.and_then(|t| t.to_f64().first().copied())
    };
    let most = number(2).unwrap_or(0.0).max(0.0) as usize;
    let (limit, threshold) = (number(3).unwrap_or(0.0), number(4));
    let centered = call.int("center_point_box", 0)? != 0;
    let ([batch, classes, count], [b, n, 4]) = (scores.dims(), boxes.dims()) else {
        return Err(format!("operands {} are not supported", call.types()));
    };
    if b != batch || n != count {
        return Err(format!("operands {} do not fit", call.types()));
    }
    let work = batch
        .saturating_mul(*classes)
        .saturating_mul(*count)
        .saturating_mul(most.min(*count));
    if work.max(*batch).max(*count).max(batch.saturating_mul(*classes)) > MAX_COMPARISONS {
        return Err(format!("{count} boxes are too many"));
    }
    let (coordinates, points) = (boxes.to_f64(), scores.to_f64());
    let steps = strides(scores.dims());
    let mut found = Vec::new();
    for image in 0..*batch {
        let all: Vec<[f64; 4]> = (0..*count)
            .map(|i| corners(&coordinates[(image * count + i) * 4..][..4], centered))
            .collect();
        for class in 0..*classes {
            let of = |i: usize| points[image * steps[0] + class * steps[1] + i];
            let mut order: Vec<usize> = (0..*count).filter(|&i| threshold.is_none_or(|t| of(i) > t)).collect();
            order.sort_by(|&a, &b| of(b).total_cmp(&of(a)));
            let mut kept: Vec<usize> = Vec::new();
            for i in order {
                if kept.len() >= most {
                    break;
                }
                if kept.iter().all(|&k| overlap(all[k], all[i]) <= limit) {
                    kept.push(i);
                    found.extend([image as i64, class as i64, i as i64]);
                }
            }
        }
    }
    Ok(Some(vec![Tensor::i64(&[found.len() / 3, 3], found)]))
}
