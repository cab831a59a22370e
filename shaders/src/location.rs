//! Location of an element of a value: an index for each axis, in a form that can still be simplified.
//!
//! A kernel iterates over the elements of a domain with a variable, the *base*. The indices of values are parts of
//! the base, `base / div % size`, and keep this form through reshapes and permutations. Therefore adjacent parts can
//! be merged again. If all parts are merged, the linear index of the element equals the base.

use std::rc::Rc;

use meganeura_core::Shape;

/// A number in a kernel: a variable, with its exclusive upper bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Base {
    /// The WGSL variable.
    pub(crate) name: Rc<str>,
    pub(crate) extent: usize,
}

impl Base {
    pub(crate) fn new(name: &str, extent: usize) -> Self {
        Base {
            name: name.into(),
            extent,
        }
    }
}

/// The index of an element along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Index {
    /// The constant 0.
    Zero,
    /// `base / div % size`.
    Part { base: Base, div: usize, size: usize },
    /// A WGSL expression.
    Text(Rc<str>),
}

impl Index {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Index::Text(text.into().into())
    }

    /// Returns the index as WGSL, in parentheses unless it is one word.
    pub(crate) fn wgsl(&self) -> String {
        match self {
            Index::Zero => "0u".to_owned(),
            Index::Text(text) => text.to_string(),
            Index::Part { base, div, size } => {
                let name = &base.name;
                let whole = div * size >= base.extent;
                match (*div, whole) {
                    (1, true) => name.to_string(),
                    (1, false) => format!("({name} % {size}u)"),
                    (_, true) => format!("({name} / {div}u)"),
                    (_, false) => format!("({name} / {div}u % {size}u)"),
                }
            }
        }
    }
}

/// An index for each axis of a value.
pub(crate) type Location = Vec<Index>;

/// Returns the location of element `base / div` in a shape.
pub(crate) fn split(base: &Base, div: usize, shape: &Shape) -> Location {
    let strides = shape.strides();
    let part = |(&size, stride): (&usize, usize)| match size {
        0 | 1 => Index::Zero,
        _ => Index::Part {
            base: base.clone(),
            div: div * stride,
            size,
        },
    };
    shape.iter().zip(strides).map(part).collect()
}

/// Returns the location, in an operand that is broadcast, of the element at `location`.
pub(crate) fn broadcast(location: &[Index], operand: &Shape) -> Location {
    let skip = location.len() - operand.rank();
    let index = |(&size, index): (&usize, &Index)| if size == 1 { Index::Zero } else { index.clone() };
    operand.iter().zip(&location[skip..]).map(index).collect()
}

/// Returns the linear index of a location as a sum of indices times strides. Adjacent parts of one base are merged.
pub(crate) fn terms(location: &[Index], shape: &Shape) -> Vec<(Index, usize)> {
    let mut terms: Vec<(Index, usize)> = Vec::new();
    for (index, stride) in location.iter().zip(shape.strides()) {
        if *index == Index::Zero {
            continue;
        }
        if let Some((last, last_stride)) = terms.last_mut()
            && let Some(joined) = join(last, *last_stride, index, stride)
        {
            *last = joined;
            *last_stride = stride;
            continue;
        }
        terms.push((index.clone(), stride));
    }
    terms
}

/// Merges two parts of one base that are adjacent in the base and in memory.
fn join(outer: &Index, outer_stride: usize, inner: &Index, stride: usize) -> Option<Index> {
    let (
        Index::Part { base, div, size },
        Index::Part {
            base: other,
            div: inner_div,
            size: inner_size,
        },
    ) = (outer, inner)
    else {
        return None;
    };
    let follows = base == other && *div == inner_div * inner_size && outer_stride == stride * inner_size;
    follows.then(|| Index::Part {
        base: base.clone(),
        div: *inner_div,
        size: size * inner_size,
    })
}

/// Returns the linear index of a location, as WGSL.
pub(crate) fn linear(location: &[Index], shape: &Shape) -> String {
    sum(terms(location, shape)
        .iter()
        .map(|(index, stride)| (index.wgsl(), *stride)))
}

/// Returns the sum of expressions that are multiplied by numbers, as WGSL.
pub(crate) fn sum(terms: impl Iterator<Item = (String, usize)>) -> String {
    let product = |(text, stride): (String, usize)| match stride {
        1 => text,
        _ => format!("{text} * {stride}u"),
    };
    match terms.map(product).collect::<Vec<_>>() {
        terms if terms.is_empty() => "0u".to_owned(),
        terms => terms.join(" + "),
    }
}

/// Returns the location in the shape `to` of the element at a location in the shape `from`. Returns `None` if the
/// linear index has to be computed in a variable.
pub(crate) fn reshape(location: &[Index], from: &Shape, to: &Shape) -> Option<Location> {
    match &terms(location, from)[..] {
        [] => Some(vec![Index::Zero; to.rank()]),
        [(Index::Part { base, div, size }, 1)] if *size == to.numel() => Some(split(base, *div, to)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).expect("a shape")
    }

    #[test]
    fn the_whole_is_its_base() {
        let s = shape(&[4, 5, 6]);
        let location = split(&Base::new("i", 120), 1, &s);
        assert_eq!(linear(&location, &s), "i");
        let other = reshape(&location, &s, &shape(&[20, 6])).expect("regrouped");
        assert_eq!(linear(&other, &shape(&[20, 6])), "i");
    }

    #[test]
    fn permuted_and_broadcast_indices_are_parts() {
        let s = shape(&[4, 5]);
        let location = split(&Base::new("i", 20), 1, &s);
        let turned = vec![location[1].clone(), location[0].clone()];
        assert_eq!(linear(&turned, &shape(&[5, 4])), "(i % 5u) * 4u + (i / 5u)");
        assert_eq!(linear(&broadcast(&location, &shape(&[5])), &shape(&[5])), "(i % 5u)");
        assert_eq!(
            linear(&broadcast(&location, &shape(&[4, 1])), &shape(&[4, 1])),
            "(i / 5u)"
        );
        assert!(reshape(&turned, &shape(&[5, 4]), &shape(&[20])).is_none());
    }

    #[test]
    fn axes_of_one_element_are_no_obstacle() {
        let s = shape(&[4, 1, 5]);
        let location = split(&Base::new("i", 20), 1, &s);
        assert_eq!(linear(&location, &s), "i");
        assert_eq!(reshape(&location, &s, &shape(&[])), None);
    }
}
