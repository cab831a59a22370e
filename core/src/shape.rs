//! Static shapes of any rank, and tensor types (dtype and shape).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// The dimensions of a tensor, outermost first; a scalar has rank 0.
///
/// The product of the dimensions times 4 bytes fits in `isize`, which [`Shape::new`] checks, so
/// [`Shape::numel`] cannot overflow.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Shape(Arc<[usize]>);

/// Maximum number of elements of a tensor: 4 times it must fit in `isize`.
pub const MAX_ELEMENTS: usize = isize::MAX as usize / 4;

impl Shape {
    /// Creates a shape, if the number of elements is representable.
    ///
    /// # Errors
    /// A message naming the dimensions when their product overflows.
    pub fn new(dims: &[usize]) -> Result<Self, String> {
        let mut product = 1usize;
        for &d in dims {
            // A zero dimension must not hide an overflow of the other dimensions: strides use them.
            product = product
                .checked_mul(d.max(1))
                .filter(|&p| p <= MAX_ELEMENTS)
                .ok_or_else(|| format!("the shape {dims:?} has more elements than memory can address"))?;
        }
        Ok(Shape(dims.into()))
    }

    /// Returns the shape `[]` of a scalar.
    pub fn scalar() -> Self {
        Shape(Arc::new([]))
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.0.iter().product()
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the dimensions as a slice.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Returns the row-major strides in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.0.len()];
        for i in (1..self.0.len()).rev() {
            strides[i - 1] = strides[i] * self.0[i].max(1);
        }
        strides
    }

    /// Resolves a possibly negative axis (`-1` is the last).
    ///
    /// # Errors
    /// A message with the valid range when the axis is out of range.
    pub fn axis(&self, axis: i64) -> Result<usize, String> {
        let rank = self.rank() as i64;
        let resolved = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&resolved) {
            Ok(resolved as usize)
        } else {
            Err(format!(
                "axis {axis} is out of range for shape {self}, which has axes {}..{rank}",
                -rank
            ))
        }
    }

    /// Resolves a list of axes, sorted and without repetition; an empty list means all axes.
    ///
    /// # Errors
    /// A message when an axis is out of range or named twice.
    pub fn axes(&self, axes: &[i64]) -> Result<Vec<usize>, String> {
        if axes.is_empty() {
            return Ok((0..self.rank()).collect());
        }
        let mut resolved = axes.iter().map(|&a| self.axis(a)).collect::<Result<Vec<_>, _>>()?;
        resolved.sort_unstable();
        if resolved.windows(2).any(|w| w[0] == w[1]) {
            return Err(format!("the axes {axes:?} name one axis twice"));
        }
        Ok(resolved)
    }

    /// Applies NumPy's broadcasting to two shapes: they are aligned at the last axis, and size 1 is expanded.
    ///
    /// # Errors
    /// A message naming both shapes when they do not broadcast.
    pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Shape, String> {
        let rank = a.len().max(b.len());
        let at = |s: &[usize], i: usize| {
            let missing = rank - s.len();
            if i < missing { 1 } else { s[i - missing] }
        };
        let mut dims = Vec::with_capacity(rank);
        for i in 0..rank {
            let (x, y) = (at(a, i), at(b, i));
            dims.push(match (x, y) {
                _ if x == y => x,
                (1, _) => y,
                (_, 1) => x,
                _ => {
                    return Err(format!(
                        "the shapes {a:?} and {b:?} do not broadcast: {x} against {y}, counted from the last axis"
                    ));
                }
            });
        }
        Shape::new(&dims)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl TryFrom<Vec<usize>> for Shape {
    type Error = String;
    fn try_from(dims: Vec<usize>) -> Result<Self, String> {
        Shape::new(&dims)
    }
}

impl From<Shape> for Vec<usize> {
    fn from(shape: Shape) -> Self {
        shape.0.to_vec()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Dtype and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
}

impl TensorType {
    /// Creates a tensor type.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        TensorType { dtype, shape }
    }

    /// Returns an `f32` tensor type.
    pub fn f32(shape: Shape) -> Self {
        TensorType::new(DType::F32, shape)
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Returns the bytes of the tensor in row-major storage.
    pub fn bytes(&self) -> usize {
        // Cannot overflow: `Shape::new` bounds the elements so that four bytes each still fit.
        self.dtype.storage_bytes(self.numel()).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
