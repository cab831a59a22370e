//! Index computation for the values of a fused program while a kernel iterates over the elements of its results.
//!
//! The kernel iterates over a *domain*: a list of factors whose product is the number of elements. A value is read
//! through an [`Access`]. For each axis of the value, it lists the factors that make up the index, outermost first. A
//! broadcast axis has none. Permutations and expansions rearrange accesses, and a reshape regroups the factors. If an
//! axis ends within a factor, the factor is split and the analysis restarts.

use meganeura_core::Shape;

/// Factors of the domain that make up the index of each axis of a value.
pub(super) type Access = Vec<Vec<usize>>;

/// The reason why an access was not found.
#[derive(Debug)]
pub(super) enum Stop {
    /// The factor with the first number as index must be split. The second number is the size of the outer part.
    Split(usize, usize),
    /// This kernel does not support the access; the text gives the reason.
    No(String),
}

impl Stop {
    pub(super) fn no<T>(message: &str) -> Result<T, Stop> {
        Err(Stop::No(message.to_owned()))
    }
}

/// Assigns consecutive factors (`atoms`) to the axes of a shape.
pub(super) fn regroup(
    factors: &[usize],
    atoms: impl IntoIterator<Item = usize>,
    shape: &Shape,
) -> Result<Access, Stop> {
    let mut atoms = atoms.into_iter();
    let mut access = Access::with_capacity(shape.rank());
    for &size in shape.iter() {
        let (mut group, mut product) = (Vec::new(), 1);
        while product < size {
            let Some(atom) = atoms.next() else {
                return Stop::no("a view has more elements than its operand");
            };
            let whole = product * factors[atom];
            if whole > size {
                let outer = size / product;
                if outer * product == size && factors[atom].is_multiple_of(outer) {
                    return Err(Stop::Split(atom, outer));
                }
                return Stop::no("a reshape splits axes where no kernel can");
            }
            product = whole;
            group.push(atom);
        }
        if product != size {
            return Stop::no("a view has other elements than its operand");
        }
        access.push(group);
    }
    Ok(access)
}

/// Returns the access of an operand that is broadcast to a shape. `access` is the access of the broadcast value.
pub(super) fn broadcast(access: &Access, operand: &Shape) -> Access {
    if operand.numel() == 1 {
        return vec![Vec::new(); operand.rank()];
    }
    let skip = access.len() - operand.rank();
    operand
        .iter()
        .zip(&access[skip..])
        .map(|(&size, group)| if size == 1 { Vec::new() } else { group.clone() })
        .collect()
}

/// Returns the access of the operand of a permutation whose result is read through `access`.
pub(super) fn permute(access: &Access, axes: &[i64], operand: &Shape) -> Result<Access, Stop> {
    let mut inner = vec![Vec::new(); operand.rank()];
    for (group, &axis) in access.iter().zip(axes) {
        let axis = operand.axis(axis).map_err(Stop::No)?;
        inner[axis] = group.clone();
    }
    Ok(inner)
}

/// Returns true if every factor occurs in the access: then the value and the domain have equally many elements.
pub(super) fn is_whole(access: &Access, factors: &[usize]) -> bool {
    let mut seen = vec![false; factors.len()];
    access.iter().flatten().for_each(|&f| seen[f] = true);
    seen.iter().all(|&s| s)
}

/// Maximum number of dimensions of a map.
const MAX_DIMS: usize = 12;

/// A map from positions in the domain to elements of a row-major array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    /// Sizes and strides of the dimensions, outermost first. Adjacent dimensions are merged if one stride describes
    /// both.
    dims: Vec<(usize, isize)>,
}

impl Map {
    pub(super) fn new(factors: &[usize], access: &Access, shape: &Shape) -> Result<Self, Stop> {
        let mut strides = vec![0isize; factors.len()];
        for (group, stride) in access.iter().zip(shape.strides()) {
            let mut step = stride as isize;
            for &f in group.iter().rev() {
                strides[f] = step;
                step *= factors[f] as isize;
            }
        }
        let mut dims: Vec<(usize, isize)> = Vec::new();
        for (&size, &stride) in factors.iter().zip(&strides) {
            match dims.last_mut() {
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => dims.push((size, stride)),
            }
        }
        if dims.len() > MAX_DIMS {
            return Stop::no("it has too many axes");
        }
        if dims.is_empty() {
            dims.push((1, 0));
        }
        Ok(Map { dims })
    }

    /// Returns true if a single element is broadcast to the whole domain.
    pub(super) fn is_one(&self) -> bool {
        matches!(self.dims[..], [(_, 0)])
    }

    /// Returns true if the elements are contiguous in the order of the domain.
    pub(super) fn is_dense(&self) -> bool {
        matches!(self.dims[..], [(_, 1)])
    }

    /// Calls `visit(at, offset, stride, len)` for each run of a range of the domain. The run begins at position `at`
    /// of the range and has `len` elements. They are stored from `offset` on, `stride` apart.
    pub(super) fn for_runs(&self, range: std::ops::Range<usize>, mut visit: impl FnMut(usize, usize, isize, usize)) {
        let last = self.dims.len() - 1;
        let (inner, stride) = self.dims[last];
        let mut index = [0usize; MAX_DIMS];
        let (mut offset, mut rest) = (0isize, range.start / inner);
        for axis in (0..last).rev() {
            let (size, step) = self.dims[axis];
            index[axis] = rest % size;
            rest /= size;
            offset += index[axis] as isize * step;
        }
        let mut column = range.start % inner;
        let mut at = 0;
        while at < range.len() {
            let len = (inner - column).min(range.len() - at);
            visit(at, (offset + column as isize * stride) as usize, stride, len);
            at += len;
            column = 0;
            for axis in (0..last).rev() {
                let (size, step) = self.dims[axis];
                index[axis] += 1;
                offset += step;
                if index[axis] < size {
                    break;
                }
                offset -= step * size as isize;
                index[axis] = 0;
            }
        }
    }

    /// Returns the offset and stride of a range of the domain, if it is a single run.
    pub(super) fn run_of(&self, range: &std::ops::Range<usize>) -> Option<(usize, isize)> {
        let (inner, _) = self.dims[self.dims.len() - 1];
        if range.start % inner + range.len() > inner {
            return None;
        }
        let mut found = None;
        self.for_runs(range.clone(), |_, offset, stride, _| found = Some((offset, stride)));
        found
    }
}
