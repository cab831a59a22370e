//! Sessions of several ranks: the gradients of a step are averaged over all ranks before the update.
//!
//! A step whose update is due is two submissions. The first computes the gradients (and adds them to their averages, where
//! several steps make one update). The host then reads them bucket by bucket, has the communicator sum them up, and writes
//! the mean back; or the communicator averages them in the memory of the device. The second looks for gradients that are not finite, clips and updates: it sees the mean alone, so that all
//! ranks decide alike.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::sharding::{ShardedState, Sharding};
use super::{Session, bytes_of, bytes_of_mut};
use crate::backend::Executable;
use crate::distributed::{
    BUCKET_BYTES, Bucket, Buckets, Call, Communicator, DeviceTensor, Owners, Pending, agree, bytes_of_f32,
};
use crate::error::{Collective, CollectiveError, CollectiveFailure, Error, Result, TensorKind};
use crate::files::sha256;
use crate::host_memory;
use crate::plan::optimizer::is_accumulation;
use crate::plan::{BufferRef, TensorView};

/// What a session knows of the other ranks.
pub(super) struct Distributed {
    pub(super) communicator: Arc<dyn Communicator>,
    pub(super) buckets: Buckets,
    /// Memory of buckets that is used again: of two, as one is copied while another is reduced.
    pub(super) spare: Vec<Vec<f32>>,
    /// Who updates what, where optimizer states are sharded.
    pub(super) owners: Option<Owners>,
    pub(super) sharding: Sharding,
    /// What inputs held that are gradients themselves.
    inputs: Vec<(BufferRef, Vec<f32>)>,
    /// Whether gradients are averaged in the memory of the device.
    on_device: bool,
    /// The event that tells when the gradients of a bucket are complete, for each bucket, where the device has such events.
    ready: Vec<u64>,
}

impl Distributed {
    /// What is called for a bucket.
    fn call(bucket: &Bucket) -> Call {
        match bucket.owner {
            None => Call::AllReduceSum,
            Some(root) => Call::ReduceSum { root },
        }
    }

    /// Numbers in front of the gradients of a bucket: the first one that every rank gets also tells whose step failed, so
    /// that no rank waits for one that has given up.
    fn flags(&self, number: usize) -> usize {
        match number == 0 && self.owners.is_none() {
            true => self.communicator.size(),
            false => 0,
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
    /// Makes the session one of several ranks, each with a session of the same plan: every update is then made from the
    /// mean of all ranks' gradients (of their averages over accumulated steps). With examples divided evenly, the mean is
    /// the gradient of all examples. Every rank calls this at the same time, and then makes the same steps.
    ///
    /// It compares the plan, its dtypes, the optimizer and the version of the program between the ranks, and changes
    /// no parameter: [`Session::try_broadcast_parameters`] does. With one rank nothing changes.
    ///
    /// Gradients are reduced in the memory of the device if the communicator takes it there, bucket by bucket beside the rest of the
    /// backward pass where the device tells when a bucket is complete; else on the host after the backward pass, one bucket while the next
    /// one is copied. Where a collective or the step of a rank fails, the step of every rank is an error, or
    /// the next one; sessions may then differ, and training goes on from a checkpoint.
    ///
    /// # Errors
    /// [`Error::Collective`] where a rank has another plan, version, precision or optimizer, on every rank, or does not
    /// answer; a plan without gradients, or whose gradients are not `f32`.
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
                "build another session, and load what a checkpoint has",
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

    /// The communicator, if there are other ranks.
    pub fn communicator(&self) -> Option<&Arc<dyn Communicator>> {
        self.distributed.as_ref().map(|d| &d.communicator)
    }

    /// The buckets in which gradients are reduced, if there are other ranks.
    pub fn gradient_buckets(&self) -> Option<&Buckets> {
        self.distributed.as_ref().map(|d| &d.buckets)
    }

    /// What must be the same on every rank. Placement of buffers is a device's own matter.
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

    /// The buckets of the present plan.
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

    /// The part of a step before the update: runs segments and replaces the gradients by their means over all ranks.
    pub(super) fn run_and_reduce(&mut self, segments: &[usize]) -> Result<()> {
        let run = self.run_segments(segments);
        let Some(mut distributed) = self.distributed.take() else {
            return run;
        };
        let reduced = self.reduce(&mut distributed, run);
        self.distributed = Some(distributed);
        reduced
    }

    /// While a bucket is reduced, the one before it is written back and the next one is read.
    fn reduce(&mut self, distributed: &mut Distributed, run: Result<()>) -> Result<()> {
        let _reduce = tracing::debug_span!("reduce", bytes = distributed.buckets.bytes()).entered();
        if distributed.on_device {
            return self.reduce_on_device(distributed, run);
        }
        let mut failed = run.err();
        distributed.inputs.clear();
        distributed.sharding.begin();
        let mut started: Option<(usize, Pending)> = None;
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
        give_up(distributed, failed)?;
        let communicator = distributed.communicator.clone();
        match distributed.owners {
            Some(_) => self.reduce_totals(&mut distributed.sharding, &*communicator),
            None => Ok(()),
        }
    }

    /// Whether gradients are averaged in the memory of the device: if all ranks can. Every rank calls it.
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
                let failure = CollectiveFailure::Invalid("another rank works on a device that is not its own".into());
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

    /// Averages the gradients in the memory of the device. Nothing waits for the step: one that fails later tells the other ranks, whose
    /// next collective is an error.
    fn reduce_on_device(&mut self, distributed: &Distributed, run: Result<()>) -> Result<()> {
        give_up(distributed, run.err())?;
        let tensors = self.gradients_on_device(distributed);
        let tensors = tensors.and_then(|tensors| {
            tensors.ok_or_else(|| Error::misuse("a gradient is not in the memory of the device any more", ""))
        });
        match tensors {
            Ok(tensors) => distributed
                .communicator
                .all_reduce_mean_on_device("the gradients", &tensors),
            Err(error) => give_up(distributed, Some(error)),
        }
    }

    /// The gradients in the memory of the device, if the communicator takes them there.
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

    /// The gradients of a bucket; zeros after an error of the step, which is noted.
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

    /// Waits for a bucket and writes the means of its gradients, on the rank that gets them.
    fn finish_bucket(
        &mut self,
        distributed: &mut Distributed,
        number: usize,
        pending: Pending,
        failed: &mut Option<Error>,
    ) -> Result<()> {
        let sum = pending.wait();
        give_up(distributed, failed.take())?;
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

    /// Gives inputs back what they held, which the reduction replaced.
    pub(super) fn restore_inputs(&mut self) -> Result<()> {
        let Some(distributed) = &mut self.distributed else {
            return Ok(());
        };
        for (buffer, data) in distributed.inputs.drain(..) {
            self.executable.write(buffer, 0, bytes_of(&data))?;
        }
        Ok(())
    }

    /// Replaces all parameters and states (the optimizer's included, but for those that one rank alone has) by those of the
    /// rank `root`. Every rank calls it.
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
        // In the order that all ranks know; what one rank alone has is its own.
        for state in self.sharded_states().into_iter().filter(|state| state.ranks.len() > 1) {
            let holds = state.ranks.contains(&communicator.rank());
            let root = match state.ranks.contains(&root) {
                true => root,
                false => state.ranks[0],
            };
            let mut data = match holds {
                true => self.try_read_state(&state.name)?,
                false => vec![0.0; state.shape.numel()],
            };
            let title = format!("{} '{}'", TensorKind::State, state.name);
            communicator.broadcast(&title, root, bytes_of_f32(&mut data))?;
            if holds {
                self.try_set_state(&state.name, &data)?;
            }
        }
        Ok(())
    }

    /// Replaces what differs between ranks by its mean over all of them, so that one rank's session stands for all: the
    /// model's own states (running statistics, sums of losses) and gradients of an update that is not complete. Every rank
    /// calls it. Parameters and moments are the same on every rank anyway.
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

/// Tells the other ranks where this one's step failed.
fn give_up(distributed: &Distributed, failed: Option<Error>) -> Result<()> {
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
