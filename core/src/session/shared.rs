//! Weights in device memory that several sessions use.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::Session;
use super::weights::listed;
use crate::backend::{Device, Executable, SharedBuffer, SharedBuffers, StepArgs};
use crate::debug::DebugOptions;
use crate::error::{Error, Result, TensorKind};
use crate::host_memory;
use crate::plan::{BufferRef, ExecutionPlan};

/// The weights of a session, in the memory of its device, for any number of further sessions
/// ([`Session::with_weights`]): parameters, constants, states that steps only read, and values that are prepared from
/// them. Nothing is copied. The memory is freed with the last session and the last clone of this value.
#[derive(Clone)]
pub struct SharedWeights {
    inner: Arc<Inner>,
}

struct Inner {
    device: Arc<dyn Device>,
    /// Buffers by [key](ExecutionPlan::lasting_contents).
    buffers: BTreeMap<String, SharedBuffer>,
}

impl SharedWeights {
    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Returns the number of bytes that sessions share.
    pub fn bytes(&self) -> usize {
        self.inner.buffers.values().map(|buffer| buffer.bytes).sum()
    }

    /// Returns the buffers of a plan that are shared and that its kernels can use.
    fn of(&self, plan: &ExecutionPlan) -> SharedBuffers {
        let own = plan.lasting_contents().into_iter();
        let mut found: SharedBuffers = own
            .filter_map(|(key, buffer)| Some((buffer, self.inner.buffers.get(&key)?.clone())))
            .collect();
        let usable: HashSet<BufferRef> = self.inner.device.usable_buffers(plan, &found).into_iter().collect();
        found.retain(|buffer, _| usable.contains(buffer));
        found
    }
}

impl fmt::Debug for SharedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWeights")
            .field("device", &self.inner.device.capabilities().name)
            .field("buffers", &self.inner.buffers.len())
            .field("bytes", &self.bytes())
            .finish()
    }
}

impl Session {
    /// Makes the weights of this session available to other sessions of its device, without a copy. From then on, its
    /// parameters, and the states that steps only read, cannot be changed. Set or load them before. States that steps
    /// write, such as caches, belong to each session.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] if a step changes parameters, such as training, or if the device does not share memory
    /// between sessions; a lost device.
    pub fn share_weights(&mut self) -> Result<SharedWeights> {
        self.share_weights_if_supported()?.ok_or_else(|| {
            Error::misuse(
                format!(
                    "{} does not share memory between sessions",
                    self.device.capabilities().name
                ),
                "give each session its own weights",
            )
        })
    }

    /// Shares the weights like [`Session::share_weights`]. Returns `None` if the device does not share memory between
    /// sessions; parameters can then still be changed.
    ///
    /// # Errors
    /// As [`Session::share_weights`].
    pub fn share_weights_if_supported(&mut self) -> Result<Option<SharedWeights>> {
        if let Some(shared) = &self.shared {
            return Ok(Some(shared.clone()));
        }
        if !self.device.shares_memory() {
            return Ok(None);
        }
        let contents = self.plan.lasting_contents();
        let lasting: HashSet<BufferRef> = contents.values().copied().collect();
        if let Some((name, _)) = self.plan.param_buffers.iter().find(|(_, b)| !lasting.contains(b)) {
            return Err(Error::misuse(
                format!("a step of this session changes '{name}', so its weights cannot be shared"),
                "share the weights of a session for inference; keep caches in states",
            ));
        }
        self.settle();
        let stale = self.executable.stale_segments();
        if !stale.is_empty() {
            let ticket = self.executable.run(&StepArgs {
                segments: &stale,
                scalars: &[],
            })?;
            self.executable.wait(ticket)?;
        }
        let changing = self.prepared_from_states(&lasting);
        let contents = contents.into_iter().filter(|(_, buffer)| !changing.contains(buffer));
        let (keys, buffers): (Vec<String>, Vec<BufferRef>) = contents.unzip();
        let shared = self.executable.share(&buffers)?;
        let buffers: BTreeMap<String, SharedBuffer> = keys
            .into_iter()
            .zip(shared)
            .filter_map(|(key, buffer)| Some((key, buffer?)))
            .collect();
        let shared = SharedWeights {
            inner: Arc::new(Inner {
                device: self.device.clone(),
                buffers,
            }),
        };
        self.shared = Some(shared.clone());
        Ok(Some(shared))
    }

    /// Returns `true` if a parameter is in memory that other sessions use, too, so that it cannot be changed.
    pub fn shares_parameter(&self, name: &str) -> bool {
        let found = self.tensors.find(TensorKind::Parameter, name);
        found.is_ok_and(|tensor| self.executable.is_frozen(tensor.buffer))
    }

    /// Returns the results of segments that also prepare values from states. Such a segment may run again, and then
    /// writes all of its results.
    fn prepared_from_states(&self, lasting: &HashSet<BufferRef>) -> HashSet<BufferRef> {
        let segments = self.plan.segments.iter().filter(|s| s.once);
        let changing = segments.filter(|s| !self.plan.sources_of(s).is_subset(lasting));
        let dispatches = changing.flat_map(|s| &self.plan.dispatches[s.range()]);
        dispatches.flat_map(|d| &d.outputs).map(|o| o.buffer).collect()
    }

    /// Creates a session that uses the weights of another one, for instance for another batch size. Parameters are
    /// found by their names and types. The plan is built for the same device.
    ///
    /// Some parameters may be packed differently in this plan, or be stored in an order that its kernels do not read.
    /// [`Session::unshared`] lists them. The session has memory of its own for them; set them before the first step, or
    /// copy them by [`Session::copy_unshared`].
    ///
    /// # Errors
    /// As [`Session::on`].
    pub fn with_weights(plan: ExecutionPlan, weights: &SharedWeights) -> Result<Self> {
        Session::debugged_with(plan, weights, DebugOptions::from_environment()?)
    }

    /// Calls [`Session::with_weights`] with debug options.
    ///
    /// # Errors
    /// As [`Session::with_weights`]; a folder for kernels that cannot be written.
    pub fn debugged_with(mut plan: ExecutionPlan, weights: &SharedWeights, debug: DebugOptions) -> Result<Self> {
        plan.verify()?;
        if !plan.memory.borrowed.is_empty() {
            return Err(Error::misuse(
                "this plan is that of a session which already shares weights",
                "use the plan that the builder made",
            ));
        }
        let device = weights.device().clone();
        let shared = weights.of(&plan);
        let views = plan.parameters().into_iter().chain(plan.read_only_states());
        let unshared = views.filter(|view| !shared.contains_key(&view.buffer));
        let unshared = unshared.map(|view| view.name).collect();
        plan.borrow_buffers(shared.keys().copied(), device.capabilities().max_buffer_bytes)?;
        let mut session = Session::compiled(device, plan, debug, &shared)?;
        session.parameters_set = true;
        session.unshared = unshared;
        session.shared = Some(weights.clone());
        Ok(session)
    }

    /// Returns the parameters and states of a session with shared weights that could not be shared and have no values yet.
    pub fn unshared(&self) -> impl Iterator<Item = &str> {
        self.unshared.iter().map(String::as_str)
    }

    /// Copies the parameters and states that are not [shared](Session::unshared) from another session.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`] if the other session lacks a parameter, [`Error::WrongLength`] if it has another size there;
    /// a lost device.
    pub fn copy_unshared(&mut self, from: &mut Session) -> Result<()> {
        for name in std::mem::take(&mut self.unshared) {
            let is_parameter = self.tensors.find(TensorKind::Parameter, &name).is_ok();
            let kind = if is_parameter {
                TensorKind::Parameter
            } else {
                TensorKind::State
            };
            self.copy_tensor(kind, &name, from)?;
        }
        Ok(())
    }

    /// Copies all parameters, and the states that steps only read, from another session with the same parameters, which may
    /// be on another device.
    ///
    /// # Errors
    /// As [`Session::copy_unshared`].
    pub fn copy_weights(&mut self, from: &mut Session) -> Result<()> {
        for view in self.plan.parameters() {
            self.copy_tensor(TensorKind::Parameter, &view.name, from)?;
        }
        for view in self.plan.read_only_states() {
            self.copy_tensor(TensorKind::State, &view.name, from)?;
        }
        self.parameters_set = true;
        self.unshared.clear();
        Ok(())
    }

    fn copy_tensor(&mut self, kind: TensorKind, name: &str, from: &mut Session) -> Result<()> {
        let source = from.tensors.find(kind, name)?;
        let target = self.tensors.find(kind, name)?;
        target.checked_bytes(source.ty.bytes())?;
        let mut bytes = host_memory::filled(&format!("a copy of '{name}'"), source.ty.bytes(), 0)?;
        source.read(&mut *from.executable, &mut bytes)?;
        target.write(&mut *self.executable, &bytes)
    }

    /// Records that a parameter has a value.
    pub(super) fn note_set(&mut self, name: &str) {
        self.parameters_set = true;
        self.unshared.remove(name);
    }

    /// Rejects a step if parameters that are not shared have no values.
    pub(super) fn check_unshared_set(&self) -> Result<()> {
        if self.unshared.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.unshared.iter().cloned().collect();
        Err(Error::misuse(
            format!("these parameters are not among the shared weights: {}", listed(&names)),
            "set them in this session, too: its plan packs or stores them differently",
        ))
    }
}
