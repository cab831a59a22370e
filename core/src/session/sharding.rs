//! Optimizer states sharded over ranks (ZeRO stage 1): each rank stores the moments of some
//! parameters, updates these parameters, and sends them to all other ranks.
//!
//! Gradients are reduced to the owner of their parameter. Before the update, ranks sum two
//! quantities that each computes for its own gradients: the squares for clipping by the norm, and
//! the number of non-finite elements for the loss scale.

use std::collections::{HashMap, HashSet};

use super::{Session, bytes_of, bytes_of_mut};
use crate::backend::Executable;
use crate::distributed::{
    BUCKET_BYTES, Buckets, Call, Communicator, Owners, PendingCollective, bytes_of_f32, gather_texts,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::host_memory;
use crate::plan::optimizer::{REDUCED_NON_FINITE, REDUCED_SQUARES, final_gradients};
use crate::plan::{BufferRef, ExecutionPlan};
use crate::shape::Shape;
use crate::storage::{decode, scalar_bytes};

/// A state of the optimizer, `f32`, that only some ranks have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedState {
    /// Name of the state.
    pub name: String,
    /// Shape of the state.
    pub shape: Shape,
    /// The ranks that have it, in ascending order; a moment is on one rank.
    pub ranks: Vec<usize>,
}

/// The distribution of optimizer states over all ranks.
#[derive(Debug, Default)]
pub(super) struct Sharding {
    /// States of the optimizer on any rank.
    states: Vec<ShardedState>,
    /// Groups of parameters with the same owner that are sent together.
    packets: Vec<Packet>,
    /// Gradients of this rank's parameters, and the number of parameters that share each gradient.
    own_gradients: HashMap<BufferRef, usize>,
    /// Gradients that are the same on every rank, and therefore in no bucket.
    own_constants: Vec<BufferRef>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Packet {
    owner: usize,
    /// Name, buffer and number of elements of each parameter.
    parameters: Vec<(String, BufferRef, usize)>,
    len: usize,
}

/// Sums over all ranks, as the update needs them.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    squares: f64,
    non_finite: f64,
}

impl Totals {
    fn add(&mut self, gradient: impl Iterator<Item = f64>, times: usize) {
        let mut own = Totals::default();
        for value in gradient {
            own.squares += value * value;
            own.non_finite += f64::from(u8::from(!value.is_finite()));
        }
        self.squares += own.squares * times as f64;
        self.non_finite += own.non_finite * times as f64;
    }
}

impl Sharding {
    fn of(plan: &ExecutionPlan, owners: &Owners, buckets: &Buckets, rank: usize) -> Result<Self> {
        let mut sharding = Sharding::default();
        let reduced: HashSet<BufferRef> = buckets
            .buckets
            .iter()
            .flat_map(|b| &b.entries)
            .map(|e| e.buffer)
            .collect();
        for found in final_gradients(plan) {
            let ty = &plan.buffer_types[found.parameter.index()];
            if ty.dtype != DType::F32 {
                return Err(Error::misuse(
                    format!(
                        "sharding supports only f32, but the parameter '{}' is {}",
                        found.name, ty.dtype
                    ),
                    "train it in f32 (mixed precision keeps f32 parameters), or without sharded optimizer states",
                ));
            }
            let owner = owners.owner(found.parameter).unwrap_or(0);
            if owner == rank {
                *sharding.own_gradients.entry(found.gradient).or_default() += 1;
                if !reduced.contains(&found.gradient) && !sharding.own_constants.contains(&found.gradient) {
                    sharding.own_constants.push(found.gradient);
                }
            }
            sharding.pack(owner, found.name, found.parameter, ty.numel());
        }
        Ok(sharding)
    }

    fn pack(&mut self, owner: usize, name: String, parameter: BufferRef, len: usize) {
        let last = self.packets.iter_mut().rev().find(|packet| packet.owner == owner);
        let packet = match last.filter(|packet| 4 * packet.len < BUCKET_BYTES) {
            Some(packet) => packet,
            None => {
                self.packets.push(Packet {
                    owner,
                    ..Packet::default()
                });
                let last = self.packets.len() - 1;
                &mut self.packets[last]
            }
        };
        packet.len += len;
        packet.parameters.push((name, parameter, len));
    }

    /// Resets the sums, for another update.
    pub(super) fn begin(&mut self) {
        self.totals = Totals::default();
    }

    /// Adds the mean gradient of a parameter of this rank to the sums.
    pub(super) fn note(&mut self, gradient: BufferRef, values: &[f32]) {
        let times = self.own_gradients.get(&gradient).copied().unwrap_or(0);
        self.totals.add(values.iter().copied().map(f64::from), times);
    }
}

impl Packet {
    fn title(&self, number: usize) -> String {
        match &self.parameters[..] {
            [(first, ..), .., (last, ..)] => format!("packet {number}, the parameters '{first}' to '{last}'"),
            [(one, ..)] => format!("packet {number}, the parameter '{one}'"),
            [] => format!("packet {number}"),
        }
    }
}

impl Session {
    /// Shards the optimizer's states over the ranks of the communicator (ZeRO stage 1): each
    /// trained parameter has an owner, the only rank that stores its moments and computes its
    /// update. Gradients are reduced to owners, and owners broadcast updated parameters. Parameters
    /// and losses are the same as without sharding; [`Session::memory_summary`] shows the saved
    /// memory. Accumulated gradients stay on every rank. Owners keep existing moments.
    ///
    /// Every rank calls this after [`Session::try_set_communicator`]. From then on, every rank must
    /// call [`Session::try_set_optimizer`] with another kind of rule at the same time. With one
    /// rank it has no effect.
    ///
    /// # Errors
    /// As [`Session::try_set_communicator`]; trained parameters that are not `f32`.
    pub fn try_shard_optimizer(&mut self) -> Result<()> {
        let Some(distributed) = &mut self.distributed else {
            return Ok(());
        };
        if distributed.owners.is_some() {
            return Ok(());
        }
        distributed.owners = Some(Owners::of(&self.plan, distributed.communicator.size()));
        match self.update().cloned() {
            Some(update) => self.rebuild_with(&update, true),
            None => self.renew_buckets(),
        }
    }

    /// Returns the states of the optimizer that only other ranks have
    /// ([`Session::try_shard_optimizer`]).
    pub fn states_of_other_ranks(&self) -> Vec<ShardedState> {
        let Some(distributed) = &self.distributed else {
            return Vec::new();
        };
        let rank = distributed.communicator.rank();
        let states = distributed.sharding.states.iter();
        states.filter(|state| !state.ranks.contains(&rank)).cloned().collect()
    }

    /// Gathers on the rank `root` the values of [`Session::states_of_other_ranks`], in this order;
    /// other ranks get an empty list. Every rank calls it.
    ///
    /// # Errors
    /// [`Error::Collective`]; errors of the last step.
    pub fn try_gather_states(&mut self, root: usize) -> Result<Vec<(ShardedState, Vec<f32>)>> {
        let Some(communicator) = self.communicator().cloned() else {
            return Ok(Vec::new());
        };
        let states = self.sharded_states();
        let mut gathered = Vec::new();
        for state in states.into_iter().filter(|state| !state.ranks.contains(&root)) {
            let holder = state.ranks.first().copied().unwrap_or(root);
            let mut data = if holder == communicator.rank() {
                self.try_read_state(&state.name)?
            } else {
                vec![0.0; state.shape.numel()]
            };
            communicator.broadcast(&format!("state '{}'", state.name), holder, bytes_of_f32(&mut data))?;
            if communicator.rank() == root {
                gathered.push((state, data));
            }
        }
        Ok(gathered)
    }

    pub(super) fn sharded_states(&self) -> Vec<ShardedState> {
        self.distributed
            .as_ref()
            .map_or_else(Vec::new, |d| d.sharding.states.clone())
    }

    /// Computes the distribution again, after the plan was recompiled.
    pub(super) fn renew_sharding(&mut self) -> Result<()> {
        let Some(distributed) = &mut self.distributed else {
            return Ok(());
        };
        let Some(owners) = &distributed.owners else {
            return Ok(());
        };
        let communicator = &distributed.communicator;
        let mut sharding = Sharding::of(&self.plan, owners, &distributed.buckets, communicator.rank())?;
        sharding.states = gather_states(&**communicator, &self.plan)?;
        distributed.sharding = sharding;
        Ok(())
    }

    /// Sums over ranks the quantities that the update needs of all gradients, and writes them to
    /// the plan's scalars.
    pub(super) fn reduce_totals(&mut self, sharding: &mut Sharding, communicator: &dyn Communicator) -> Result<()> {
        for &buffer in &sharding.own_constants {
            let ty = &self.plan.buffer_types[buffer.index()];
            let mut bytes = host_memory::filled("a copy of a gradient", ty.bytes(), 0)?;
            self.executable.read(buffer, 0, &mut bytes)?;
            let times = sharding.own_gradients.get(&buffer).copied().unwrap_or(0);
            sharding.totals.add(decode(ty.dtype, &bytes).into_iter(), times);
        }
        let own = [sharding.totals.squares, sharding.totals.non_finite];
        let own: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut all = vec![0; own.len() * communicator.size()];
        communicator.all_gather("the norm of the gradients", &own, &mut all)?;
        // In the order of the ranks, so that the sums are the same on each, bit for bit.
        let mut sums = [0.0; 2];
        for (at, bytes) in all.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            sums[at % 2] += f64::from_le_bytes(word);
        }
        let slots = self.plan.scalar_buffers.iter().zip(&mut self.scalars);
        for ((name, buffer), slot) in slots {
            let value = match name.as_str() {
                REDUCED_SQUARES => sums[0],
                REDUCED_NON_FINITE => sums[1],
                _ => continue,
            };
            slot.1 = scalar_bytes(self.plan.buffer_types[buffer.index()].dtype, value);
        }
        Ok(())
    }

    /// Sends updated parameters to every rank after an update.
    pub(super) fn share_parameters(&mut self) -> Result<()> {
        let Some(mut distributed) = self.distributed.take() else {
            return Ok(());
        };
        let shared = match distributed.owners {
            Some(_) => self.share(
                &distributed.sharding,
                &*distributed.communicator,
                &mut distributed.spare,
            ),
            None => Ok(()),
        };
        self.distributed = Some(distributed);
        shared
    }

    fn share(&mut self, sharding: &Sharding, communicator: &dyn Communicator, spare: &mut Vec<Vec<f32>>) -> Result<()> {
        let _share = tracing::debug_span!("share_parameters", packets = sharding.packets.len()).entered();
        let mut started: Option<(&Packet, PendingCollective)> = None;
        for (number, packet) in sharding.packets.iter().enumerate() {
            let mut data = spare.pop().unwrap_or_default();
            data.resize(packet.len, 0.0);
            if packet.owner == communicator.rank() {
                let read = self.read_packet(packet, &mut data);
                read.inspect_err(|error| communicator.abort(&format!("its update failed: {error}")))?;
            }
            let call = Call::Broadcast { root: packet.owner };
            let next = communicator.start(call, &packet.title(number), data);
            if let Some((packet, pending)) = started.replace((packet, next)) {
                spare.push(self.take_packet(packet, pending, communicator.rank())?);
            }
        }
        if let Some((packet, pending)) = started {
            spare.push(self.take_packet(packet, pending, communicator.rank())?);
        }
        Ok(())
    }

    fn read_packet(&mut self, packet: &Packet, data: &mut [f32]) -> Result<()> {
        let mut rest = data;
        for (_, buffer, len) in &packet.parameters {
            let (part, behind) = rest.split_at_mut(*len);
            rest = behind;
            self.executable.read(*buffer, 0, bytes_of_mut(part))?;
        }
        Ok(())
    }

    /// Waits for a packet of parameters that another rank updated, and writes them. Returns the packet's memory for
    /// reuse.
    fn take_packet(&mut self, packet: &Packet, pending: PendingCollective, rank: usize) -> Result<Vec<f32>> {
        let data = pending.wait()?;
        let mut rest = &data[..];
        for (_, buffer, len) in &packet.parameters {
            let (part, behind) = rest.split_at(*len);
            rest = behind;
            if packet.owner != rank {
                self.executable.write(*buffer, 0, bytes_of(part))?;
            }
        }
        Ok(data)
    }
}

/// Returns the optimizer's states on all ranks, in the order of the ranks.
fn gather_states(communicator: &dyn Communicator, plan: &ExecutionPlan) -> Result<Vec<ShardedState>> {
    let of_optimizer: HashSet<BufferRef> = plan
        .state_buffers
        .iter()
        .filter(|s| s.optimizer)
        .map(|s| s.buffer)
        .collect();
    let own: Vec<(String, Vec<usize>)> = plan
        .states()
        .into_iter()
        .filter(|view| of_optimizer.contains(&view.buffer))
        .map(|view| (view.name, view.ty.shape.dims().to_vec()))
        .collect();
    let unreadable = |what: String| Error::plan(format!("the list of optimizer states of a rank: {what}"));
    let text = ron::to_string(&own).map_err(|e| unreadable(e.to_string()))?;
    let mut states: Vec<ShardedState> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (rank, text) in gather_texts(communicator, "the optimizer's states", &text)?
        .iter()
        .enumerate()
    {
        let theirs: Vec<(String, Vec<usize>)> = ron::from_str(text).map_err(|e| unreadable(e.to_string()))?;
        for (name, dims) in theirs {
            if let Some(&at) = places.get(&name) {
                states[at].ranks.push(rank);
                continue;
            }
            places.insert(name.clone(), states.len());
            states.push(ShardedState {
                name,
                shape: Shape::new(&dims).map_err(unreadable)?,
                ranks: vec![rank],
            });
        }
    }
    Ok(states)
}
