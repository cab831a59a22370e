//! Gradient buckets: groups of gradients that are all-reduced together.

use std::collections::HashSet;

use super::{CollectiveFailure, Owners};
use crate::dtype::DType;
use crate::plan::optimizer::final_gradients;
use crate::plan::{BufferRef, ExecutionPlan};

/// Bytes at which a bucket is full. Larger buckets cost memory, smaller ones latency; a gradient is
/// never split.
pub const BUCKET_BYTES: usize = 25 << 20;

/// A gradient in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// Name of the parameter.
    pub name: String,
    /// Buffer of the gradient, or of its average over accumulated steps; `f32`.
    pub buffer: BufferRef,
    /// Number of elements of the gradient.
    pub len: usize,
    /// `true` if the buffer is an input, which the step must find unchanged.
    pub is_input: bool,
}

/// Gradients that are all-reduced together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Gradients in the order in which the bucket stores them.
    pub entries: Vec<BucketEntry>,
    /// Total number of elements.
    pub len: usize,
    /// The rank that all gradients of the bucket are reduced to, where optimizer states are sharded.
    pub owner: Option<usize>,
}

impl Bucket {
    /// Returns a title for messages: the first and the last gradient.
    pub fn title(&self) -> String {
        match &self.entries[..] {
            [] => "no gradients".into(),
            [one] => format!("the gradient of '{}'", one.name),
            [first, .., last] => {
                let count = self.entries.len();
                format!("the gradients of '{}' to '{}' ({count} tensors)", first.name, last.name)
            }
        }
    }
}

/// All gradients of a plan in buckets. Gradients of the last layers come first, because the
/// backward pass computes them first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// The buckets.
    pub buckets: Vec<Bucket>,
}

impl Buckets {
    /// Groups the gradients that the update of a plan reads into buckets of at least `bytes` bytes;
    /// the last may be smaller.
    ///
    /// # Errors
    /// A gradient that is not `f32`, or that is a state instead of a result of the step.
    pub fn of(plan: &ExecutionPlan, bytes: usize) -> Result<Self, CollectiveFailure> {
        Buckets::grouped(plan, bytes, None)
    }

    /// Groups gradients like [`Buckets::of`], but all gradients of a bucket have the same owner.
    ///
    /// # Errors
    /// As [`Buckets::of`].
    pub fn of_owners(plan: &ExecutionPlan, bytes: usize, owners: &Owners) -> Result<Self, CollectiveFailure> {
        Buckets::grouped(plan, bytes, Some(owners))
    }

    fn grouped(plan: &ExecutionPlan, bytes: usize, owners: Option<&Owners>) -> Result<Self, CollectiveFailure> {
        let constants: HashSet<BufferRef> = plan.constants().map(|(buffer, _)| buffer).collect();
        let parameters: HashSet<BufferRef> = plan.param_buffers.iter().map(|(_, buffer)| *buffer).collect();
        let inputs: HashSet<BufferRef> = plan.input_buffers.iter().map(|(_, buffer)| *buffer).collect();
        let written: HashSet<BufferRef> = plan
            .dispatches
            .iter()
            .flat_map(|d| d.outputs.iter().map(|o| o.buffer))
            .collect();
        let mut buckets = Buckets::default();
        let mut seen = HashSet::new();
        for found in final_gradients(plan).into_iter().rev() {
            let (name, buffer) = (found.name, found.gradient);
            // One buffer may be the gradient of several parameters. Constants and parameters are the same on all ranks.
            if !seen.insert(buffer) || constants.contains(&buffer) || parameters.contains(&buffer) {
                continue;
            }
            let ty = &plan.buffer_types[buffer.index()];
            if ty.dtype != DType::F32 {
                let message = format!("the gradient of '{name}' is {}, not f32", ty.dtype);
                return Err(CollectiveFailure::Invalid(message));
            }
            let is_input = inputs.contains(&buffer);
            if !is_input && !written.contains(&buffer) {
                let message = format!(
                    "the gradient of '{name}', {}, is not computed by any step",
                    plan.describe(buffer)
                );
                return Err(CollectiveFailure::Invalid(message));
            }
            let owner = owners.and_then(|owners| owners.owner(found.parameter));
            let len = ty.numel();
            let bucket = buckets.open(owner, bytes);
            bucket.len += len;
            bucket.entries.push(BucketEntry {
                name,
                buffer,
                len,
                is_input,
            });
        }
        Ok(buckets)
    }

    /// Returns the bucket for the next gradient of an owner.
    fn open(&mut self, owner: Option<usize>, bytes: usize) -> &mut Bucket {
        let last = self.buckets.iter().rposition(|bucket| bucket.owner == owner);
        let at = match last.filter(|&at| 4 * self.buckets[at].len < bytes) {
            Some(at) => at,
            None => {
                self.buckets.push(Bucket {
                    owner,
                    ..Bucket::default()
                });
                self.buckets.len() - 1
            }
        };
        &mut self.buckets[at]
    }

    /// Returns the number of elements of the largest bucket.
    pub fn largest(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.len).max().unwrap_or(0)
    }

    /// Returns the bytes of all gradients.
    pub fn bytes(&self) -> usize {
        self.buckets.iter().map(|bucket| 4 * bucket.len).sum()
    }
}
