//! Named tensors within buffers: packed parameters, and tensors with their layout.

use serde::{Deserialize, Serialize};

use super::{BufferRef, ExecutionPlan};
use crate::graph::Packing;
use crate::init::Init;
use crate::shape::TensorType;

/// Properties of a packed parameter, in the order of [`ExecutionPlan::derived_params`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DerivedInfo {
    /// Axis along which the sources are concatenated.
    pub axis: usize,
    /// Initializer of each source.
    pub init: Vec<Init>,
}

/// A named tensor of a plan: all of a buffer, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorView {
    /// Name of the tensor. A part of a packed parameter, or of its gradient or moments, is named after the source
    /// parameter.
    pub name: String,
    /// Dtype and shape of this tensor, not of the packed one.
    pub ty: TensorType,
    /// Buffer that contains the tensor.
    pub buffer: BufferRef,
    /// Part of the buffer that contains the tensor; `None` if it is the whole buffer.
    pub part: Option<Part>,
}

/// Location of a tensor that is a slice, along one axis, of a larger tensor in row-major storage: runs of bytes at
/// equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of runs.
    pub runs: usize,
    /// Bytes of a run.
    pub run: usize,
    /// Bytes from the start of a run to that of the next.
    pub stride: usize,
}

impl Part {
    /// Returns the location of the entries `start .. start + size` of an axis. Returns `None` if
    /// they are out of range, or do not begin and end at storage granules.
    pub fn of(whole: &TensorType, axis: usize, start: usize, size: usize) -> Option<Part> {
        let length = *whole.shape.get(axis)?;
        if start.checked_add(size)? > length {
            return None;
        }
        let inner: usize = whole.shape[axis + 1..].iter().product();
        let granule = whole.dtype.block().elements;
        let bytes = |entries: usize| {
            if (entries * inner).is_multiple_of(granule) {
                whole.dtype.storage_bytes(entries * inner)
            } else {
                None
            }
        };
        let (offset, runs, run) = (bytes(start)?, whole.shape[..axis].iter().product(), bytes(size)?);
        Some(Part {
            // An empty part gets offset 0, so that its empty span is within any storage.
            offset: if runs == 0 || run == 0 { 0 } else { offset },
            runs,
            run,
            stride: bytes(length)?,
        })
    }

    /// Returns the number of bytes from its first to its last byte.
    pub fn span(&self) -> usize {
        match (self.runs, self.run) {
            (0, _) | (_, 0) => 0,
            (runs, run) => (runs - 1) * self.stride + run,
        }
    }

    /// Returns `true` if there are no gaps between the runs.
    pub fn is_contiguous(&self) -> bool {
        self.span() == self.runs * self.run
    }

    /// Copies the tensor from `span`, the bytes from its first to its last.
    pub fn gather(&self, span: &[u8], tensor: &mut [u8]) {
        if self.run > 0 {
            let runs = span.chunks(self.stride);
            for (to, from) in tensor.chunks_exact_mut(self.run).zip(runs) {
                to.copy_from_slice(&from[..self.run]);
            }
        }
    }

    /// Copies the tensor to `span`, the bytes from its first to its last, without changing the bytes between its runs.
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
    /// Returns all parameters. A packed parameter is replaced by its sources.
    pub fn parameters(&self) -> Vec<TensorView> {
        let own = self.param_buffers.iter();
        own.flat_map(|(name, buffer)| self.views("", name, *buffer, Some(*buffer)))
            .collect()
    }

    /// Returns all gradients by the names of their parameters and inputs; the gradient of a packed parameter is
    /// replaced by the gradients of its sources.
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

    /// Returns all states, including those of the optimizer. The moment of a packed parameter is
    /// returned as the moments of its sources.
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

    /// Returns the index in [`ExecutionPlan::derived_params`] of the packed parameter in a buffer.
    pub(crate) fn derived(&self, parameter: BufferRef) -> Option<usize> {
        self.derived_params.iter().position(|(b, _)| *b == parameter)
    }

    /// Returns the tensor in a buffer, or its parts if it has the layout of a packed parameter.
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

    /// Returns name, type and location of each source of a packed parameter. Sources that do not
    /// fit into the storage, which [`ExecutionPlan::verify`] rejects, are omitted.
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

    /// Returns the name of the parameter in a buffer.
    pub(crate) fn parameter_name(&self, buffer: BufferRef) -> Option<&str> {
        let found = self.param_buffers.iter().find(|(_, b)| *b == buffer);
        found.map(|(name, _)| name.as_str())
    }

    /// Returns the parameter or input with that name; a packed parameter by its own name.
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
