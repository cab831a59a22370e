//! Translation of the cooperation between threads: barriers, atomic operations, subgroup operations.

use naga::{
    AtomicFunction, Barrier, CollectiveOperation, Direction, Expression, GatherMode, Handle, ScalarKind,
    SubgroupOperation, TypeInner,
};

use super::body::Body;
use super::context::Part;
use super::error::{Result, WriteError};

impl Body<'_> {
    pub(super) fn control_barrier(&mut self, barrier: Barrier) {
        let within_warp = Barrier::SUB_GROUP;
        self.line(if barrier == within_warp {
            "__syncwarp();"
        } else {
            "__syncthreads();"
        });
    }

    pub(super) fn memory_barrier(&mut self, barrier: Barrier) {
        let is_device = barrier.intersects(Barrier::STORAGE | Barrier::TEXTURE);
        self.line(if is_device {
            "__threadfence();"
        } else {
            "__threadfence_block();"
        });
    }

    pub(super) fn uniform_load(&mut self, pointer: Handle<Expression>, result: Handle<Expression>) -> Result<()> {
        self.line("__syncthreads();");
        let place = if self.inner(pointer).is_atomic_pointer(&self.cx.module.types) {
            self.atomic_load(pointer)?
        } else {
            self.place(pointer)?
        };
        self.define(result, &place)?;
        self.line("__syncthreads();");
        Ok(())
    }

    pub(super) fn atomic_load(&self, pointer: Handle<Expression>) -> Result<String> {
        self.cx.needs(Part::Atomics);
        Ok(format!("wgsl::atomic_load({})", self.address(pointer)?))
    }

    pub(super) fn atomic_store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<()> {
        self.cx.needs(Part::Atomics);
        let (at, value) = (self.address(pointer)?, self.value(value)?);
        self.line(&format!("wgsl::atomic_store({at}, {value});"));
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        fun: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<()> {
        self.cx.needs(Part::Atomics);
        let (at, value) = (self.address(pointer)?, self.value(value)?);
        let name = match fun {
            AtomicFunction::Add => "add",
            AtomicFunction::Subtract => "sub",
            AtomicFunction::And => "and",
            AtomicFunction::ExclusiveOr => "xor",
            AtomicFunction::InclusiveOr => "or",
            AtomicFunction::Min => "min",
            AtomicFunction::Max => "max",
            AtomicFunction::Exchange { compare: None } => "exchange",
            AtomicFunction::Exchange { compare: Some(compare) } => {
                let compare = self.value(compare)?;
                let exchange = format!("wgsl::atomic_compare_exchange({at}, {compare}, {value})");
                let Some(result) = result else {
                    self.line(&format!("{exchange};"));
                    return Ok(());
                };
                let ty = self.type_of(result)?;
                let old = self.names.unique("old");
                self.line(&format!("const auto {old} = {exchange};"));
                return self.define(result, &format!("WGSL_make_{ty}({old}, {old} == {compare})"));
            }
        };
        let call = format!("wgsl::atomic_{name}({at}, {value})");
        match result {
            Some(result) => self.define(result, &call)?,
            None => self.line(&format!("{call};")),
        }
        Ok(())
    }

    pub(super) fn ballot(&mut self, result: Handle<Expression>, predicate: Option<Handle<Expression>>) -> Result<()> {
        self.cx.needs(Part::Subgroup);
        let predicate = match predicate {
            Some(predicate) => self.value(predicate)?,
            None => "true".to_owned(),
        };
        self.define(result, &format!("wgsl::subgroup_ballot({predicate})"))
    }

    pub(super) fn gather(
        &mut self,
        mode: GatherMode,
        argument: Handle<Expression>,
        result: Handle<Expression>,
    ) -> Result<()> {
        self.cx.needs(Part::Subgroup);
        let lane = match mode {
            GatherMode::BroadcastFirst => "wgsl::subgroup_first()".to_owned(),
            GatherMode::Broadcast(index) | GatherMode::Shuffle(index) => self.value(index)?,
            GatherMode::ShuffleDown(by) => format!("wgsl::lane_here() + {}", self.value(by)?),
            GatherMode::ShuffleUp(by) => format!("wgsl::lane_here() - {}", self.value(by)?),
            GatherMode::ShuffleXor(mask) => format!("wgsl::lane_here() ^ {}", self.value(mask)?),
            GatherMode::QuadBroadcast(index) => format!("(wgsl::lane_here() & ~3u) | {}", self.value(index)?),
            GatherMode::QuadSwap(Direction::X) => "wgsl::lane_here() ^ 1u".to_owned(),
            GatherMode::QuadSwap(Direction::Y) => "wgsl::lane_here() ^ 2u".to_owned(),
            GatherMode::QuadSwap(Direction::Diagonal) => "wgsl::lane_here() ^ 3u".to_owned(),
        };
        let value = self.value(argument)?;
        self.define(result, &format!("wgsl::subgroup_from({value}, {lane})"))
    }

    pub(super) fn collective(
        &mut self,
        op: SubgroupOperation,
        collective: CollectiveOperation,
        argument: Handle<Expression>,
        result: Handle<Expression>,
    ) -> Result<()> {
        self.cx.needs(Part::Subgroup);
        let value = self.value(argument)?;
        let join = match op {
            SubgroupOperation::All => return self.define(result, &format!("wgsl::subgroup_all({value})")),
            SubgroupOperation::Any => return self.define(result, &format!("wgsl::subgroup_any({value})")),
            SubgroupOperation::Add => "add",
            SubgroupOperation::Mul => "mul",
            SubgroupOperation::Min => "min",
            SubgroupOperation::Max => "max",
            SubgroupOperation::And => "and",
            SubgroupOperation::Or => "or",
            SubgroupOperation::Xor => "xor",
        };
        let call = match collective {
            CollectiveOperation::Reduce => format!("wgsl::subgroup_reduce<wgsl::join_{join}>({value})"),
            CollectiveOperation::InclusiveScan | CollectiveOperation::ExclusiveScan => {
                let own = collective == CollectiveOperation::InclusiveScan;
                let none = self.neutral(op, result)?;
                format!("wgsl::subgroup_scan<wgsl::join_{join}>({value}, {own}, {none})")
            }
        };
        self.define(result, &call)
    }

    /// Returns the neutral element of a sum or product. WGSL has scans only for these operations.
    fn neutral(&self, op: SubgroupOperation, of: Handle<Expression>) -> Result<String> {
        let (size, scalar) = match *self.inner(of) {
            TypeInner::Scalar(scalar) => (None, scalar),
            TypeInner::Vector { size, scalar } => (Some(size as u8), scalar),
            ref other => {
                return Err(WriteError::unsupported(format!(
                    "subgroup operations of the type {other:?}"
                )));
            }
        };
        let number = match op {
            SubgroupOperation::Add => 0,
            SubgroupOperation::Mul => 1,
            other => return Err(WriteError::unsupported(format!("subgroup scans of {other:?}"))),
        };
        let name = self.cx.scalar(scalar)?;
        let one = match scalar.kind {
            ScalarKind::Float => format!("wgsl::to_{name}({number}.0f)"),
            _ => format!("{name}({number})"),
        };
        Ok(match size {
            Some(size) => format!("wgsl::splat<{size}>({one})"),
            None => one,
        })
    }
}
