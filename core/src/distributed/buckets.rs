//! Gradients in buckets: what one all-reduce takes together.

use std::collections::HashSet;

use super::{CollectiveFailure, Owners};
use crate::dtype::DType;
use crate::plan::optimizer::final_gradients;
use crate::plan::{BufferRef, ExecutionPlan};

/// Bytes from which on a bucket is full. Larger ones cost memory, smaller ones latency; a gradient is never split.
pub const BUCKET_BYTES: usize = 25 << 20;

/// A gradient in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// Name of the parameter.
    pub name: String,
    /// The gradient, or its average over accumulated steps: `f32`.
    pub buffer: BufferRef,
    /// Number of elements.
    pub len: usize,
    /// Whether the buffer is an input, which the step must find as it was.
    pub is_input: bool,
}

/// Gradients that one all-reduce takes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// In the order in which they lie in the bucket.
    pub entries: Vec<BucketEntry>,
    /// Number of elements of all.
    pub len: usize,
    /// The rank that all gradients of the bucket are reduced to, where optimizer states are sharded.
    pub owner: Option<usize>,
}

impl Bucket {
    /// What it holds, for messages: its first and last gradient.
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

/// All gradients of a plan in buckets. Gradients of the last layers come first, as the backward pass makes them in this
/// order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// The buckets.
    pub buckets: Vec<Bucket>,
}

impl Buckets {
    /// The gradients that the update of a plan reads, in buckets of at least `bytes` bytes but for the last.
    ///
    /// # Errors
    /// A gradient that is not `f32`, or that is no result of the step but a state.
    pub fn of(plan: &ExecutionPlan, bytes: usize) -> Result<Self, CollectiveFailure> {
        Buckets::grouped(plan, bytes, None)
    }

    /// [`Buckets::of`] with gradients of one owner in each bucket.
    ///
    /// # Errors
    /// As there.
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
                    "the gradient of '{name}' is {}, which no step computes",
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

    /// The bucket that takes the next gradient of an owner.
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

    /// Elements of the largest bucket.
    pub fn largest(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.len).max().unwrap_or(0)
    }

    /// Bytes of all gradients.
    pub fn bytes(&self) -> usize {
        self.buckets.iter().map(|bucket| 4 * bucket.len).sum()
    }
}
