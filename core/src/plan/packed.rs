//! Tensors by name, where one buffer may hold several: packed parameters and what has their layout.

use serde::{Deserialize, Serialize};

use super::{BufferRef, ExecutionPlan};
use crate::graph::Packing;
use crate::init::Init;
use crate::shape::TensorType;

/// Facts about a packed parameter, in the order of [`ExecutionPlan::derived_params`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DerivedInfo {
    /// Axis along which the sources stand one after the other.
    pub axis: usize,
    /// How a fresh session may fill each source.
    pub init: Vec<Init>,
}

/// A named tensor of a plan: all of a buffer, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorView {
    /// Name by which users know it.
    pub name: String,
    /// Its own dtype and shape.
    pub ty: TensorType,
    /// Buffer that holds it.
    pub buffer: BufferRef,
    /// Where it lies in the buffer; `None` if it is all of it.
    pub part: Option<Part>,
}

/// Place of a tensor in the row-major storage of a larger one of the same rank, of which it takes consecutive
/// entries of one axis: runs of bytes at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub offset: usize,
    /// Number of runs.
    pub runs: usize,
    /// Bytes of a run.
    pub run: usize,
    /// Bytes from the start of a run to that of the next.
    pub stride: usize,
}

impl Part {
    /// The entries `start .. start + size` of an axis. `None` if they do not lie there, or do not begin and end
    /// at storage granules.
    pub fn of(whole: &TensorType, axis: usize, start: usize, size: usize) -> Option<Part> {
        let length = *whole.shape.get(axis)?;
        if start.checked_add(size)? > length {
            return None;
        }
        let inner: usize = whole.shape[axis + 1..].iter().product();
        let granule = whole.dtype.block().elements;
        let bytes = |entries: usize| match (entries * inner).is_multiple_of(granule) {
            true => whole.dtype.storage_bytes(entries * inner),
            false => None,
        };
        let (offset, runs, run) = (bytes(start)?, whole.shape[..axis].iter().product(), bytes(size)?);
        Some(Part {
            // Nothing begins at the beginning, so that its empty span lies within any storage.
            offset: if runs == 0 || run == 0 { 0 } else { offset },
            runs,
            run,
            stride: bytes(length)?,
        })
    }

    /// Bytes from the first to the last of its own.
    pub fn span(&self) -> usize {
        match (self.runs, self.run) {
            (0, _) | (_, 0) => 0,
            (runs, run) => (runs - 1) * self.stride + run,
        }
    }

    /// Whether it is one run.
    pub fn is_contiguous(&self) -> bool {
        self.span() == self.runs * self.run
    }

    /// Copies the tensor out of its span.
    pub fn gather(&self, span: &[u8], tensor: &mut [u8]) {
        if self.run > 0 {
            let runs = span.chunks(self.stride);
            for (to, from) in tensor.chunks_exact_mut(self.run).zip(runs) {
                to.copy_from_slice(&from[..self.run]);
            }
        }
    }

    /// Copies the tensor into its span, leaving what lies between its runs.
    pub fn scatter(&self, tensor: &[u8], span: &mut [u8]) {
        if self.run > 0 {
            let runs = span.chunks_mut(self.stride);
            for (from, to) in tensor.chunks_exact(self.run).zip(runs) {
                to[..self.run].copy_from_slice(from);
            }
        }
    }
}

impl ExecutionPlan {
    /// All parameters by the names that users know, with the sources of a packed one in its place.
    pub fn parameters(&self) -> Vec<TensorView> {
        let own = self.param_buffers.iter();
        own.flat_map(|(name, buffer)| self.views("", name, *buffer, Some(*buffer)))
            .collect()
    }

    /// All gradients by the names of their parameters and inputs, likewise.
    pub fn gradients(&self) -> Vec<TensorView> {
        let own = self.gradient_buffers.iter().flat_map(|(name, buffer)| {
            let leaf = self.leaf(name);
            // A gradient may be an alias of a buffer of another shape; its own shape is the leaf's.
            let mut views = self.views("", name, *buffer, leaf);
            if let (Some(leaf), [TensorView { part: None, ty, .. }]) = (leaf, &mut views[..]) {
                ty.clone_from(&self.buffer_types[leaf.index()]);
            }
            views
        });
        own.collect()
    }

    /// All states, those of the optimizer included. Where a packed parameter has one moment, it is that of its
    /// sources.
    pub fn states(&self) -> Vec<TensorView> {
        let own = self.state_buffers.iter().flat_map(|state| {
            let packed = state.packed.and_then(|p| self.parameter_name(p).map(|name| (p, name)));
            match packed.and_then(|(p, name)| Some((p, state.name.strip_suffix(name)?))) {
                Some((parameter, prefix)) => self.views(prefix, &state.name, state.buffer, Some(parameter)),
                None => self.views("", &state.name, state.buffer, None),
            }
        });
        own.collect()
    }

    /// Position in [`ExecutionPlan::derived_params`] of the packed parameter in a buffer.
    pub(crate) fn derived(&self, parameter: BufferRef) -> Option<usize> {
        self.derived_params.iter().position(|(b, _)| *b == parameter)
    }

    /// The tensor in a buffer, or the parts of it if it has the layout of a packed parameter.
    fn views(&self, prefix: &str, name: &str, buffer: BufferRef, layout: Option<BufferRef>) -> Vec<TensorView> {
        let Some(derived) = layout.and_then(|parameter| self.derived(parameter)) else {
            return vec![TensorView {
                name: name.to_owned(),
                ty: self.buffer_types[buffer.index()].clone(),
                buffer,
                part: None,
            }];
        };
        let part = |(source, ty, part): (&str, TensorType, Part)| TensorView {
            name: format!("{prefix}{source}"),
            ty,
            buffer,
            part: Some(part),
        };
        self.sources(derived).into_iter().map(part).collect()
    }

    /// Name, type and place of each source of a packed parameter. Sources that the storage cannot hold, which
    /// [`ExecutionPlan::verify`] rejects, are missing.
    pub(crate) fn sources(&self, derived: usize) -> Vec<(&str, TensorType, Part)> {
        let (buffer, sources) = &self.derived_params[derived];
        let axis = self.derived_info.get(derived).map_or(usize::MAX, |info| info.axis);
        let whole = &self.buffer_types[buffer.index()];
        let mut start = 0usize;
        let mut found = Vec::with_capacity(sources.len());
        for (name, size) in sources {
            let ty = Packing::source_type(whole, axis, *size);
            let part = Part::of(whole, axis, start, *size);
            if let (Some(ty), Some(part)) = (ty, part) {
                found.push((name.as_str(), ty, part));
            }
            start = start.saturating_add(*size);
        }
        found
    }

    /// Name of the parameter in a buffer.
    pub(crate) fn parameter_name(&self, buffer: BufferRef) -> Option<&str> {
        let found = self.param_buffers.iter().find(|(_, b)| *b == buffer);
        found.map(|(name, _)| name.as_str())
    }

    /// The parameter or input of that name, a packed parameter by its own.
    fn leaf(&self, name: &str) -> Option<BufferRef> {
        let mut leaves = self.param_buffers.iter().chain(&self.input_buffers);
        leaves.find(|(n, _)| n == name).map(|(_, b)| *b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn floats(shape: &[usize]) -> TensorType {
        TensorType::f32(Shape::new(shape).expect("small"))
    }

    #[test]
    fn parts_cover_the_whole_and_nothing_twice() {
        for (shape, axis, sizes) in [
            (vec![6], 0, vec![1, 2, 3]),
            (vec![3, 7], 1, vec![3, 4]),
            (vec![3, 7], 0, vec![1, 2]),
            (vec![2, 5, 3], 1, vec![2, 0, 3]),
            (vec![2, 1, 4], 2, vec![1, 3]),
            (vec![0, 4], 1, vec![1, 3]),
        ] {
            let whole = floats(&shape);
            let mut storage = vec![0u8; whole.bytes()];
            let mut start = 0;
            let mut written = Vec::new();
            for (i, &size) in sizes.iter().enumerate() {
                let part = Part::of(&whole, axis, start, size).expect("it lies there");
                let mut dims = shape.clone();
                dims[axis] = size;
                let bytes = vec![i as u8 + 1; floats(&dims).bytes()];
                assert_eq!(part.runs * part.run, bytes.len(), "{shape:?} {axis} {i}");
                part.scatter(&bytes, &mut storage[part.offset..part.offset + part.span()]);
                written.push((part, bytes));
                start += size;
            }
            assert!(storage.iter().all(|&b| b != 0), "{shape:?} {axis}: {storage:?}");
            for (part, bytes) in written {
                let mut read = vec![0; bytes.len()];
                part.gather(&storage[part.offset..part.offset + part.span()], &mut read);
                assert_eq!(read, bytes, "{shape:?} {axis}");
            }
        }
    }

    #[test]
    fn parts_outside_of_the_whole_do_not_exist() {
        let whole = floats(&[2, 3]);
        assert_eq!(Part::of(&whole, 2, 0, 1), None);
        assert_eq!(Part::of(&whole, 1, 2, 2), None);
        assert_eq!(Part::of(&whole, 1, usize::MAX, 2), None);
    }
}
