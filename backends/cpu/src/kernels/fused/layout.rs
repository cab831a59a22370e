//! Where the elements of a program's values are found while the kernel goes over the elements of its results.
//!
//! The kernel goes over a *domain*, a list of factors whose product is the number of elements. A value is read
//! through an [`Access`]: for each of its axes the factors that make up the index, outermost first, none where it
//! is broadcast. Permutations and expansions rearrange accesses; a reshape regroups the factors, and where an
//! axis ends within a factor, the factor is split and the analysis begins anew.

use meganeura_core::Shape;

/// For each axis of a value the factors of the domain that make up its index.
pub(super) type Access = Vec<Vec<usize>>;

/// Why an access could not be found.
#[derive(Debug)]
pub(super) enum Stop {
    /// A factor must be split, the outer part being of this size.
    Split(usize, usize),
    /// It is beyond this kernel.
    No(String),
}

impl Stop {
    pub(super) fn no<T>(message: &str) -> Result<T, Stop> {
        Err(Stop::No(message.to_owned()))
    }
}

/// Groups factors to the axes of a shape.
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

/// The access of an operand that is broadcast to a shape which is read through `access`.
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

/// The access of the operand of a permutation.
pub(super) fn permute(access: &Access, axes: &[i64], operand: &Shape) -> Result<Access, Stop> {
    let mut inner = vec![Vec::new(); operand.rank()];
    for (group, &axis) in access.iter().zip(axes) {
        let axis = operand.axis(axis).map_err(Stop::No)?;
        inner[axis] = group.clone();
    }
    Ok(inner)
}

/// Whether every factor occurs.
pub(super) fn is_whole(access: &Access, factors: &[usize]) -> bool {
    let mut seen = vec![false; factors.len()];
    access.iter().flatten().for_each(|&f| seen[f] = true);
    seen.iter().all(|&s| s)
}

/// Most dimensions of a map.
const MAX_DIMS: usize = 12;

/// Where the elements of a row-major array are found, in the order of the domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    /// Sizes and strides, outermost first, neighbours merged where they step as one.
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

    /// Whether one element stands for all.
    pub(super) fn is_one(&self) -> bool {
        matches!(self.dims[..], [(_, 0)])
    }

    /// Whether elements lie in the order of the domain.
    pub(super) fn is_dense(&self) -> bool {
        matches!(self.dims[..], [(_, 1)])
    }

    /// Calls `visit(at, offset, stride, len)` for the runs of a range of the domain: `len` elements from `at`,
    /// counted from the start of the range, are found from `offset` on in steps of `stride`.
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

    /// Offset and stride of a range of the domain that is one run.
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
