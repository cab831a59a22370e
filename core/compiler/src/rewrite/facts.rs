//! Facts about values for rules: types, constants, packing groups.

use meganeura_core::dtype::DType;
use meganeura_core::graph::ConstantData;
use meganeura_core::shape::TensorType;

use super::attr::ints_text;
use super::scalar::{Scalar, Sort};

/// A fact that the text of rules may use. Below, `x` is a value and `t` a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FactName {
    /// `(type x)`: an opaque number, equal for equal types.
    Type,
    /// `(uniform x)`: the value of a constant whose elements are all equal.
    Uniform,
    /// `(lower-triangle x)`: the common value of a constant's elements on and below the diagonal that ends in the
    /// bottom right corner, if all elements above the diagonal are 0.
    LowerTriangle,
    /// `(upper-triangle x)`: the common value of a constant's elements above that diagonal, if all other elements are
    /// 0.
    UpperTriangle,
    /// `(pack-group x)`: equal for parameters that may be stored together.
    PackGroup,
    /// `(ord x)`: the order number of a value. Rules compare these numbers to select one of several symmetric matches.
    Ord,
    /// `(rank t)`: number of axes.
    Rank,
    /// `(rows t)`: size of the last axis but one.
    Rows,
    /// `(cols t)`: size of the last axis.
    Cols,
    /// `(numel t)`: number of elements.
    Numel,
    /// `(dim t axis)`: size of an axis; axes are numbered from 0.
    Dim,
    /// `(along t axis)`: the shape of a vector along that axis, such that it broadcasts against the tensor. Leading axes
    /// of size 1 are left out.
    Along,
    /// `(dtype t)`: element type.
    DType,
    /// `(last-axis t)`: a list that contains only the last axis.
    LastAxis,
    /// `(swap-last t)`: the permutation that swaps the last two axes.
    SwapLast,
    /// `(cap "training")`: a property of the whole build.
    Cap,
}

/// Name, fact, sorts of the arguments, and sort of the value.
type Declaration = (&'static str, FactName, &'static [Sort], Sort);

/// All facts.
pub(super) const FACTS: &[Declaration] = &[
    ("type", FactName::Type, &[Sort::Tensor], Sort::Int),
    ("uniform", FactName::Uniform, &[Sort::Tensor], Sort::Float),
    ("lower-triangle", FactName::LowerTriangle, &[Sort::Tensor], Sort::Float),
    ("upper-triangle", FactName::UpperTriangle, &[Sort::Tensor], Sort::Float),
    ("pack-group", FactName::PackGroup, &[Sort::Tensor], Sort::Int),
    ("ord", FactName::Ord, &[Sort::Tensor], Sort::Int),
    ("rank", FactName::Rank, &[Sort::Int], Sort::Int),
    ("rows", FactName::Rows, &[Sort::Int], Sort::Int),
    ("cols", FactName::Cols, &[Sort::Int], Sort::Int),
    ("numel", FactName::Numel, &[Sort::Int], Sort::Int),
    ("dim", FactName::Dim, &[Sort::Int, Sort::Int], Sort::Int),
    ("along", FactName::Along, &[Sort::Int, Sort::Int], Sort::Str),
    ("dtype", FactName::DType, &[Sort::Int], Sort::Str),
    ("last-axis", FactName::LastAxis, &[Sort::Int], Sort::Str),
    ("swap-last", FactName::SwapLast, &[Sort::Int], Sort::Str),
    ("cap", FactName::Cap, &[Sort::Str], Sort::Unit),
];

/// Facts that depend only on a type, with their names.
pub(super) const OF_TYPE: &[(&str, FactName)] = &[
    ("rank", FactName::Rank),
    ("rows", FactName::Rows),
    ("cols", FactName::Cols),
    ("numel", FactName::Numel),
    ("dtype", FactName::DType),
    ("last-axis", FactName::LastAxis),
    ("swap-last", FactName::SwapLast),
];

/// Facts of the elements of a constant, with their names.
pub(super) const OF_CONSTANT: &[(&str, FactName)] = &[
    ("uniform", FactName::Uniform),
    ("lower-triangle", FactName::LowerTriangle),
    ("upper-triangle", FactName::UpperTriangle),
];

/// Returns a fact about a type; `None` if the type has no such value (for example, the rows of a vector), so that a
/// pattern that uses it does not match. `axis` is the second argument of [`FactName::Dim`] and [`FactName::Along`].
pub(super) fn of_type(fact: FactName, ty: &TensorType, axis: Option<i64>) -> Option<Scalar> {
    let dims = ty.shape.dims();
    let rank = dims.len();
    let from_last = |back: usize| dims.get(rank.checked_sub(back)?).map(|&d| d as i64);
    let int = match fact {
        FactName::Rank => Some(rank as i64),
        FactName::Rows => from_last(2),
        FactName::Cols => from_last(1),
        FactName::Numel => Some(ty.numel() as i64),
        FactName::Dim => dims.get(usize::try_from(axis?).ok()?).map(|&d| d as i64),
        FactName::Along => {
            let axis = usize::try_from(axis?).ok()?;
            let mut shape = vec![*dims.get(axis)? as i64];
            shape.resize(rank - axis, 1);
            return Some(Scalar::Str(ints_text(&shape).into()));
        }
        FactName::DType => return Some(Scalar::Str(ty.dtype.name().into())),
        FactName::LastAxis => {
            let last = rank.checked_sub(1)?;
            return Some(Scalar::Str(ints_text(&[last as i64]).into()));
        }
        FactName::SwapLast => {
            let first = rank.checked_sub(2)?;
            let mut axes: Vec<i64> = (0..rank as i64).collect();
            axes.swap(first, first + 1);
            return Some(Scalar::Str(ints_text(&axes).into()));
        }
        FactName::Type | FactName::PackGroup | FactName::Ord | FactName::Cap => None,
        FactName::Uniform | FactName::LowerTriangle | FactName::UpperTriangle => None,
    };
    int.map(Scalar::Int)
}

/// Returns a fact about the elements of a constant; `None` if it has no value, or if that is NaN. For a float, the
/// value is the shortest decimal that gives the `f32`: 0.1 and not 0.100000001. Integers are exact.
pub(super) fn of_constant(fact: FactName, data: &ConstantData, shape: &[usize]) -> Option<f64> {
    match fact {
        FactName::Uniform => uniform(data),
        FactName::LowerTriangle => triangle(data, shape, false),
        FactName::UpperTriangle => triangle(data, shape, true),
        _ => None,
    }
}

/// Returns a predicate for the elements above the diagonal that ends in the last corner of each matrix, in a constant
/// of this shape. In a causal mask, these are the keys that a query does not see. `None` if there is no such diagonal.
pub(super) fn behind_diagonal(shape: &[usize]) -> Option<impl Fn(usize) -> bool + use<>> {
    let &[.., rows, columns] = shape else { return None };
    let shift = columns.checked_sub(rows)?;
    (rows > 0).then_some(move |at: usize| at % columns > at / columns % rows + shift)
}

/// Returns the value on one side of the diagonal of a causal mask, if the other side is 0 of either
/// sign.
fn triangle(data: &ConstantData, shape: &[usize], upper: bool) -> Option<f64> {
    let behind = behind_diagonal(shape)?;
    let size = data.dtype().block().bytes;
    let sign = if data.dtype().is_float() { 0x80 } else { 0 };
    let zero = |element: &[u8]| match element {
        [low @ .., high] => low.iter().all(|b| *b == 0) && high & !sign == 0,
        [] => true,
    };
    let mut value: Option<&[u8]> = None;
    for (at, element) in data.bytes().chunks_exact(size).enumerate() {
        match value {
            _ if behind(at) != upper => {
                if !zero(element) {
                    return None;
                }
            }
            None => value = Some(element),
            Some(value) if value != element => return None,
            Some(_) => {}
        }
    }
    number(data.dtype(), value?)
}

fn uniform(data: &ConstantData) -> Option<f64> {
    let size = data.dtype().block().bytes;
    let first = data.bytes().get(..size)?;
    if data.bytes().chunks_exact(size).any(|element| element != first) {
        return None;
    }
    number(data.dtype(), first)
}

/// Converts an element to the number that rules use.
fn number(dtype: DType, element: &[u8]) -> Option<f64> {
    let element = ConstantData::from_bytes(dtype, element.to_vec())?.first()?;
    let shortest = match dtype {
        // Every half-precision number is an f32.
        DType::F32 | DType::F16 | DType::BF16 => (element as f32).to_string().parse().ok()?,
        _ => element,
    };
    (!shortest.is_nan()).then_some(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meganeura_core::shape::Shape;

    fn ty(dims: &[usize]) -> TensorType {
        TensorType::f32(Shape::new(dims).unwrap())
    }

    #[test]
    fn facts_of_types() {
        let text = |s: &str| Some(Scalar::Str(s.into()));
        let int = |v| Some(Scalar::Int(v));
        let t = ty(&[2, 3, 5]);
        assert_eq!(of_type(FactName::Rank, &t, None), int(3));
        assert_eq!(of_type(FactName::Rows, &t, None), int(3));
        assert_eq!(of_type(FactName::Cols, &t, None), int(5));
        assert_eq!(of_type(FactName::Numel, &t, None), int(30));
        assert_eq!(of_type(FactName::Dim, &t, Some(0)), int(2));
        assert_eq!(of_type(FactName::Dim, &t, Some(3)), None);
        assert_eq!(of_type(FactName::Dim, &t, Some(-1)), None);
        assert_eq!(of_type(FactName::Along, &t, Some(0)), text("[2, 1, 1]"));
        assert_eq!(of_type(FactName::Along, &t, Some(1)), text("[3, 1]"));
        assert_eq!(of_type(FactName::Along, &t, Some(3)), None);
        assert_eq!(of_type(FactName::SwapLast, &t, None), text("[0, 2, 1]"));
        assert_eq!(of_type(FactName::LastAxis, &t, None), text("[2]"));
        assert_eq!(of_type(FactName::DType, &t, None), text("f32"));
        assert_eq!(of_type(FactName::Rows, &ty(&[7]), None), None);
        assert_eq!(of_type(FactName::Cols, &ty(&[]), None), None);
        assert_eq!(of_type(FactName::SwapLast, &ty(&[7]), None), None);
    }

    #[test]
    fn uniform_constants() {
        let uniform = |data: &ConstantData| of_constant(FactName::Uniform, data, &[data.len()]);
        let f32s = |v: &[f32]| uniform(&ConstantData::from_f32(v.to_vec()));
        assert_eq!(f32s(&[0.1, 0.1]), Some(0.1));
        assert_eq!(f32s(&[0.1, 0.2]), None);
        assert_eq!(f32s(&[0.0, -0.0]), None);
        assert_eq!(f32s(&[]), None);
        assert_eq!(f32s(&[f32::NAN]), None);
        assert_eq!(uniform(&ConstantData::from_u32(vec![4_000_000_000])), Some(4e9));
        assert_eq!(uniform(&ConstantData::splat(DType::F16, 0.5)), Some(0.5));
    }

    #[test]
    fn causal_masks() {
        const LOW: f32 = f32::NEG_INFINITY;
        let of = |fact, v: &[f32], shape: &[usize]| of_constant(fact, &ConstantData::from_f32(v.to_vec()), shape);
        let upper = |v: &[f32], shape: &[usize]| of(FactName::UpperTriangle, v, shape);
        let lower = |v: &[f32], shape: &[usize]| of(FactName::LowerTriangle, v, shape);
        assert_eq!(upper(&[0.0, -1e9, 0.0, 0.0], &[2, 2]), Some(-1e9));
        assert_eq!(upper(&[0.0, LOW, -0.0, 0.0], &[2, 2]), Some(f64::NEG_INFINITY));
        // More keys than queries, and the same for each of several matrices.
        let wide = [0.0, 0.0, LOW, 0.0, 0.0, 0.0];
        assert_eq!(upper(&wide, &[2, 3]), Some(f64::NEG_INFINITY));
        assert_eq!(upper(&[wide, wide].concat(), &[2, 1, 2, 3]), Some(f64::NEG_INFINITY));
        assert_eq!(upper(&[&wide[..], &[0.0; 6]].concat(), &[2, 2, 3]), None);
        // Another diagonal, another value, a nonzero element on the zero side, fewer keys than
        // queries, no matrix.
        assert_eq!(upper(&[0.0, LOW, LOW, 0.0, 0.0, LOW], &[2, 3]), None);
        assert_eq!(upper(&[0.0, -1.0, -2.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0], &[3, 3]), None);
        assert_eq!(upper(&[0.5, LOW, 0.0, 0.0], &[2, 2]), None);
        assert_eq!(upper(&[0.0; 6], &[3, 2]), None);
        assert_eq!(upper(&[0.0, LOW], &[2]), None);
        assert_eq!(lower(&[1.0, 0.0, 1.0, 1.0], &[2, 2]), Some(1.0));
        assert_eq!(lower(&[1.0, 1.0, 1.0, 1.0], &[2, 2]), None);
        assert_eq!(upper(&[0.0, 0.0], &[1, 2]), None);
        let ones = ConstantData::from_u32(vec![1, 0, 1, 1]);
        assert_eq!(of_constant(FactName::LowerTriangle, &ones, &[2, 2]), Some(1.0));
        let sign = ConstantData::from_u32(vec![1, 1 << 31, 1, 1]);
        assert_eq!(of_constant(FactName::LowerTriangle, &sign, &[2, 2]), None);
    }
}
