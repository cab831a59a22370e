//! Sessions of several ranks: the gradients of a step are averaged over all ranks before the update.
//!
//! A step with an update is two submissions. The first computes the gradients (and adds them to their averages, if
//! several steps make one update). The host then reads them bucket by bucket, lets the communicator sum them, and
//! writes the mean back; or the communicator averages them in device memory. The second submission checks for
//! non-finite gradients, clips and updates. It uses only the mean, so all ranks make the same decisions.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::sharding::{ShardedState, Sharding};
use super::{Session, bytes_of, bytes_of_mut};
use crate::backend::Executable;
use crate::distributed::{
    BUCKET_BYTES, Bucket, Buckets, Call, Communicator, DeviceTensor, Owners, PendingCollective, agree, bytes_of_f32,
};
use crate::error::{Collective, CollectiveError, CollectiveFailure, Error, Result, TensorKind};
use crate::files::sha256;
use crate::host_memory;
use crate::plan::optimizer::is_accumulation;
use crate::plan::{BufferRef, TensorView};

/// State of data-parallel training over several ranks.
pub(super) struct Distributed {
    pub(super) communicator: Arc<dyn Communicator>,
    pub(super) buckets: Buckets,
    /// Reusable memory for two buckets: one is copied while the other one is reduced.
    pub(super) spare: Vec<Vec<f32>>,
    /// Owner of each parameter, if optimizer states are sharded.
    pub(super) owners: Option<Owners>,
    pub(super) sharding: Sharding,
    /// Inputs that the reduction overwrites because they are also gradients, with their original contents.
    inputs: Vec<(BufferRef, Vec<f32>)>,
    /// `true` if gradients are averaged in device memory.
    on_device: bool,
    /// Events of the device, one for each bucket, that it signals when the bucket's gradients are complete. Empty if
    /// the device has no such events.
    ready: Vec<u64>,
}

impl Distributed {
    /// Returns the collective for a bucket.
    fn call(bucket: &Bucket) -> Call {
        match bucket.owner {
            None => Call::AllReduceSum,
            Some(root) => Call::ReduceSum { root },
        }
    }

    /// Returns the number of flags before the gradients of a bucket. The first bucket that every rank receives begins
    /// with one flag per rank. A rank sets its flag if its step failed, so that the other ranks do not wait for it.
    fn flags(&self, number: usize) -> usize {
        if number == 0 && self.owners.is_none() {
            self.communicator.size()
        } else {
            0
        }
    }

    fn error(&self, operation: Collective, tensor: &str, failure: CollectiveFailure) -> Error {
        Error::collective(CollectiveError {
            rank: self.communicator.rank(),
            size: self.communicator.size(),
            operation,
            tensor: tensor.to_owned(),
            failure,
        })
    }
}

impl Session {
    /// Makes the session one of several ranks, each with a session of the same plan: every update
    /// then uses the mean of all ranks' gradients (of their averages over accumulated steps). If
    /// examples are divided evenly, the mean is the gradient over all examples. Every rank must
    /// call this at the same time, and then run the same steps.
    ///
    /// Compares the plan, its dtypes, the optimizer and the version of the program between the
    /// ranks. Does not change parameters: see [`Session::try_broadcast_parameters`]. With one rank
    /// it has no effect.
    ///
    /// Gradients are reduced in device memory if the communicator supports it; if the device
    /// signals when a bucket is complete, buckets are reduced while the backward pass is still
    /// running. Otherwise they are reduced on the host after the backward pass, one bucket while
    /// the next one is copied. If a collective or the step of a rank fails, this or the next step
    /// of every rank returns an error. Sessions may then differ, and training must resume from a
    /// checkpoint.
    ///
    /// # Errors
    /// [`Error::Collective`] on every rank if a rank has another plan, version, precision or
    /// optimizer, or does not answer; a plan without gradients, or whose gradients are not `f32`.
    pub fn try_set_communicator(&mut self, communicator: Arc<dyn Communicator>) -> Result<()> {
        if self.plan.param_grad_pairs.is_empty() {
            return Err(Error::misuse(
                "the session has no gradients to average over ranks",
                "build a training session (`build_session`, or `Mode::Training`)",
            ));
        }
        if self.distributed.as_ref().is_some_and(|d| d.owners.is_some()) {
            return Err(Error::misuse(
                "the optimizer's states are sharded over the ranks of another communicator",
                "build another session, and load a checkpoint",
            ));
        }
        self.settle();
        let facts = self.facts();
        agree(&*communicator, "the training plan", &facts)?;
        self.distributed = (communicator.size() > 1).then(|| Distributed {
            communicator,
            buckets: Buckets::default(),
            spare: Vec::new(),
            owners: None,
            sharding: Sharding::default(),
            inputs: Vec::new(),
            on_device: false,
            ready: Vec::new(),
        });
        self.renew_buckets()
    }

    /// Returns the communicator, if there are other ranks.
    pub fn communicator(&self) -> Option<&Arc<dyn Communicator>> {
        self.distributed.as_ref().map(|d| &d.communicator)
    }

    /// Returns the buckets in which gradients are reduced, if there are other ranks.
    pub fn gradient_buckets(&self) -> Option<&Buckets> {
        self.distributed.as_ref().map(|d| &d.buckets)
    }

    /// Returns the facts that must be equal on all ranks. Offsets of buffers are not among them, because they may
    /// differ between devices.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let plan = &self.plan;
        let mut parameters = String::new();
        for view in plan.parameters() {
            // Writing to a string does not fail.
            let _ = write!(parameters, "{} {}; ", view.name, view.ty);
        }
        let list = match parameters.len() {
            0..=400 => parameters.clone(),
            _ => format!("{} tensors, SHA-256 {}", plan.parameters().len(), hash(&parameters)),
        };
        let scaling = plan.loss_scaling.map_or_else(|| "none".into(), |s| s.to_string());
        vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("plan format", plan.version.to_string()),
            ("list of parameters", list),
            ("precision", plan.precision.to_string()),
            ("loss scale", scaling),
            (
                "optimizer",
                self.update().map_or_else(|| "none".into(), |u| format!("{u:?}")),
            ),
            ("plan", format!("SHA-256 {}", hash(&plan.to_string()))),
        ]
    }

    /// Divides the gradients into buckets again, for the current plan.
    pub(super) fn renew_buckets(&mut self) -> Result<()> {
        let Some(distributed) = &mut self.distributed else {
            return Ok(());
        };
        let buckets = match &distributed.owners {
            None => Buckets::of(&self.plan, BUCKET_BYTES),
            Some(owners) => Buckets::of_owners(&self.plan, BUCKET_BYTES, owners),
        };
        distributed.buckets = buckets.map_err(|f| distributed.error(Collective::Step, "the gradients", f))?;
        distributed.spare.clear();
        self.renew_sharding()?;
        let Some(mut distributed) = self.distributed.take() else {
            return Ok(());
        };
        let agreed = self.agree_on_device(&mut distributed);
        self.distributed = Some(distributed);
        agreed
    }

    /// Runs the part of a step before the update: runs segments and replaces the gradients by their
    /// means over all ranks.
    pub(super) fn run_and_reduce(&mut self, segments: &[usize]) -> Result<()> {
        let run = self.run_segments(segments);
        let Some(mut distributed) = self.distributed.take() else {
            return run;
        };
        let reduced = self.reduce(&mut distributed, run);
        self.distributed = Some(distributed);
        reduced
    }

    /// Reduces all buckets. While one is reduced, the previous one is written back and the next one
    /// is read.
    fn reduce(&mut self, distributed: &mut Distributed, run: Result<()>) -> Result<()> {
        let _reduce = tracing::debug_span!("reduce", bytes = distributed.buckets.bytes()).entered();
        if distributed.on_device {
            return self.reduce_on_device(distributed, run);
        }
        let mut failed = run.err();
        distributed.inputs.clear();
        distributed.sharding.begin();
        let mut started: Option<(usize, PendingCollective)> = None;
        for number in 0..distributed.buckets.buckets.len() {
            let data = self.read_bucket(distributed, number, &mut failed);
            let bucket = &distributed.buckets.buckets[number];
            let title = format!("bucket {number}, {}", bucket.title());
            let next = distributed.communicator.start(Distributed::call(bucket), &title, data);
            if let Some((before, pending)) = started.replace((number, next)) {
                self.finish_bucket(distributed, before, pending, &mut failed)?;
            }
        }
        if let Some((last, pending)) = started {
            self.finish_bucket(distributed, last, pending, &mut failed)?;
        }
        return_failure(distributed, failed)?;
        let communicator = distributed.communicator.clone();
        match distributed.owners {
            Some(_) => self.reduce_totals(&mut distributed.sharding, &*communicator),
            None => Ok(()),
        }
    }

    /// Decides whether gradients are averaged in device memory: only if all ranks support it. Every
    /// rank calls it.
    fn agree_on_device(&mut self, distributed: &mut Distributed) -> Result<()> {
        distributed.on_device = false;
        distributed.ready.clear();
        let communicator = distributed.communicator.clone();
        if communicator.device().is_none() || distributed.owners.is_some() {
            return Ok(());
        }
        let tensors = self.gradients_on_device(distributed);
        let is = |answer: bool| f32::from(u8::from(answer));
        let mut answers = [is(matches!(tensors, Ok(Some(_)))), is(tensors.is_err())];
        communicator.all_reduce_sum("whether gradients are averaged on the device", &mut answers)?;
        tensors?;
        match answers {
            [_, wrong] if wrong > 0.0 => {
                let failure = CollectiveFailure::Invalid("another rank uses a device that is not its own".into());
                Err(distributed.error(Collective::Agreement, "the devices", failure))
            }
            [able, _] => {
                distributed.on_device = able == communicator.size() as f32;
                if distributed.on_device {
                    let buckets = distributed.buckets.buckets.iter();
                    let groups = buckets.map(|bucket| bucket.entries.iter().map(|entry| entry.buffer).collect());
                    let ready = self.executable.signal_when_done(&groups.collect::<Vec<_>>())?;
                    distributed.ready = ready.unwrap_or_default();
                }
                Ok(())
            }
        }
    }

    /// Averages the gradients in device memory without waiting for the step. A step that fails
    /// later notifies the other ranks, and their next collective fails.
    fn reduce_on_device(&mut self, distributed: &Distributed, run: Result<()>) -> Result<()> {
        return_failure(distributed, run.err())?;
        let tensors = self.gradients_on_device(distributed);
        let tensors = tensors
            .and_then(|tensors| tensors.ok_or_else(|| Error::misuse("a gradient is no longer in device memory", "")));
        match tensors {
            Ok(tensors) => distributed
                .communicator
                .all_reduce_mean_on_device("the gradients", &tensors),
            Err(error) => return_failure(distributed, Some(error)),
        }
    }

    /// Returns the gradients in device memory, if the communicator supports that memory.
    fn gradients_on_device(&mut self, distributed: &Distributed) -> Result<Option<Vec<DeviceTensor>>> {
        let mut tensors = Vec::new();
        let buckets = distributed.buckets.buckets.iter().enumerate();
        for (number, entry) in buckets.flat_map(|(number, bucket)| bucket.entries.iter().map(move |e| (number, e))) {
            if entry.is_input {
                return Ok(None);
            }
            let Some(buffer) = self.executable.device_buffer(entry.buffer)? else {
                return Ok(None);
            };
            if !distributed.communicator.takes_device_memory(&buffer)? {
                return Ok(None);
            }
            tensors.push(DeviceTensor {
                buffer,
                elements: entry.len,
                ready: distributed.ready.get(number).copied(),
            });
        }
        Ok(Some(tensors))
    }

    /// Reads the gradients of a bucket. After an error of the step, it stores the error in `failed` and returns zeros.
    fn read_bucket(&mut self, distributed: &mut Distributed, number: usize, failed: &mut Option<Error>) -> Vec<f32> {
        let flags = distributed.flags(number);
        let Distributed {
            communicator,
            buckets,
            spare,
            inputs,
            ..
        } = distributed;
        let bucket = &buckets.buckets[number];
        let mut data = spare.pop().unwrap_or_default();
        data.clear();
        data.resize(flags + bucket.len, 0.0);
        let mut rest = &mut data[flags..];
        for entry in &bucket.entries {
            let (part, behind) = rest.split_at_mut(entry.len);
            rest = behind;
            if failed.is_none() {
                // Reading waits for the step.
                *failed = self.executable.read(entry.buffer, 0, bytes_of_mut(part)).err();
            }
            if failed.is_some() {
                part.fill(0.0);
            } else if entry.is_input {
                inputs.push((entry.buffer, part.to_vec()));
            }
        }
        if flags > 0 && failed.is_some() {
            data[communicator.rank()] = 1.0;
        }
        data
    }

    /// Waits until a bucket is reduced and, on the ranks that receive it, writes the means of its gradients.
    fn finish_bucket(
        &mut self,
        distributed: &mut Distributed,
        number: usize,
        pending: PendingCollective,
        failed: &mut Option<Error>,
    ) -> Result<()> {
        let sum = pending.wait();
        return_failure(distributed, failed.take())?;
        let mut data = sum?;
        let flags = distributed.flags(number);
        let (rank, size) = (distributed.communicator.rank(), distributed.communicator.size());
        if let Some(peer) = data[..flags].iter().position(|flag| *flag != 0.0) {
            let title = distributed.buckets.buckets[number].title();
            let failure = CollectiveFailure::PeerLost {
                peer,
                reason: "its step failed".into(),
            };
            return Err(distributed.error(Collective::Step, &format!("bucket {number}, {title}"), failure));
        }
        let bucket = &distributed.buckets.buckets[number];
        if bucket.owner.is_none_or(|owner| owner == rank) {
            data[flags..].iter_mut().for_each(|value| *value /= size as f32);
            let mut rest = &data[flags..];
            for entry in &bucket.entries {
                let (part, behind) = rest.split_at(entry.len);
                rest = behind;
                if bucket.owner.is_some() {
                    distributed.sharding.note(entry.buffer, part);
                }
                self.executable.write(entry.buffer, 0, bytes_of(part))?;
            }
        }
        distributed.spare.push(data);
        Ok(())
    }

    /// Restores the contents of inputs that the reduction replaced.
    pub(super) fn restore_inputs(&mut self) -> Result<()> {
        let Some(distributed) = &mut self.distributed else {
            return Ok(());
        };
        for (buffer, data) in distributed.inputs.drain(..) {
            self.executable.write(buffer, 0, bytes_of(&data))?;
        }
        Ok(())
    }

    /// Replaces all parameters and states by those of the rank `root`, including the optimizer's
    /// states, except those that only one rank has. Every rank calls it.
    ///
    /// # Errors
    /// [`Error::Collective`]; a state that is not `f32`; errors of the last step.
    pub fn try_broadcast_parameters(&mut self, root: usize) -> Result<()> {
        let Some(communicator) = self.communicator().cloned() else {
            return Ok(());
        };
        let sharded: HashMap<String, ShardedState> = {
            let states = self.sharded_states().into_iter();
            states.map(|state| (state.name.clone(), state)).collect()
        };
        let is_shared = |view: &TensorView| !sharded.contains_key(&view.name);
        for view in self.plan.parameters() {
            let mut bytes = self.try_read_parameter_bytes(&view.name)?;
            let title = format!("{} '{}'", TensorKind::Parameter, view.name);
            communicator.broadcast(&title, root, &mut bytes)?;
            self.try_set_parameter_bytes(&view.name, &bytes)?;
        }
        for view in self.plan.states().into_iter().filter(is_shared) {
            let mut data = self.try_read_state(&view.name)?;
            let title = format!("{} '{}'", TensorKind::State, view.name);
            communicator.broadcast(&title, root, bytes_of_f32(&mut data))?;
            self.try_set_state(&view.name, &data)?;
        }
        // All ranks use the same order; states that only one rank has are not broadcast.
        for state in self.sharded_states().into_iter().filter(|state| state.ranks.len() > 1) {
            let holds = state.ranks.contains(&communicator.rank());
            let root = if state.ranks.contains(&root) {
                root
            } else {
                state.ranks[0]
            };
            let mut data = if holds {
                self.try_read_state(&state.name)?
            } else {
                vec![0.0; state.shape.numel()]
            };
            let title = format!("{} '{}'", TensorKind::State, state.name);
            communicator.broadcast(&title, root, bytes_of_f32(&mut data))?;
            if holds {
                self.try_set_state(&state.name, &data)?;
            }
        }
        Ok(())
    }

    /// Replaces data that differs between ranks by its mean over all ranks, so that one rank's
    /// session represents all: the model's own states (running statistics, sums of losses) and
    /// gradients of an incomplete update. Every rank calls it. Parameters and moments are equal on
    /// every rank anyway.
    ///
    /// # Errors
    /// [`Error::Collective`]; errors of the last step.
    pub fn try_average_states(&mut self) -> Result<()> {
        let Some(communicator) = self.communicator().cloned() else {
            return Ok(());
        };
        let is_open = self.counters().accumulated > 0;
        let states = self.plan.state_buffers.iter();
        let states = states.filter(|s| !s.optimizer || is_open && is_accumulation(&s.name));
        let buffers: Vec<BufferRef> = states.map(|s| s.buffer).collect();
        if buffers.is_empty() {
            return Ok(());
        }
        let mut all: Vec<f32> = Vec::new();
        let mut lengths = Vec::new();
        for &buffer in &buffers {
            let len = self.plan.buffer_types[buffer.index()].numel();
            let mut data = host_memory::filled("a copy of a state", len, 0.0)?;
            self.executable.read(buffer, 0, bytes_of_mut(&mut data))?;
            lengths.push(data.len());
            all.extend(data);
        }
        communicator.all_reduce_sum("the states", &mut all)?;
        let size = communicator.size() as f32;
        all.iter_mut().for_each(|value| *value /= size);
        let mut rest = &all[..];
        for (&buffer, length) in buffers.iter().zip(lengths) {
            let (data, behind) = rest.split_at(length);
            rest = behind;
            self.executable.write(buffer, 0, bytes_of(data))?;
        }
        Ok(())
    }
}

/// Returns the error of a failed step of this rank, if there is one, after notifying the other ranks.
fn return_failure(distributed: &Distributed, failed: Option<Error>) -> Result<()> {
    match failed {
        None => Ok(()),
        Some(error) => {
            distributed.communicator.abort(&format!("its step failed: {error}"));
            Err(error)
        }
    }
}

fn hash(text: &str) -> String {
    let mut hash = sha256([text.as_bytes()]);
    hash.truncate(16);
    hash
}
