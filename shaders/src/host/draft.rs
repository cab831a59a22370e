//! The launches of a plan. The executable records them in each step.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura_core::backend::KernelSource;
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, Segment};
use meganeura_core::{Error, Result};

use super::dispatch::{DispatchContext, F16Storage, KernelOptions, Sources, compile, writes};
use super::f16_storage;
use super::facts::facts_of;
use super::faults::{Reporter, SavedRange, joined, report_bytes};
use super::places::BufferLocation;
use crate::{Binding, Class, Compiled, Launch, Memory};

/// Maximum number of submissions in flight. The index of each of them is its *frame*.
pub const FRAMES: usize = 2;

/// Buffer or number that a variable of a kernel is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A buffer, by its index in [`LaunchPlan::sizes`].
    Buffer(usize),
    /// A 32-bit number.
    Number(u32),
    /// The first scalars of the session.
    Scalars,
}

/// Indices of the executable's buffers that do not belong to the plan. The buffers are in this order.
pub struct ExtraBuffers {
    /// Buffer of the session's scalars, from which launches read the scalars that are not inlined.
    pub scalars: usize,
    /// Buffer of the fault report.
    pub fault: usize,
    /// First buffer for backup copies. There is one for each buffer of [`LaunchPlan::saved`] and each submission in
    /// flight.
    pub copies: usize,
    /// First buffer for [`LaunchPlan::tables`].
    pub tables: usize,
    /// First scratch buffer.
    scratch: usize,
}

/// The reason why a plan has no executable.
#[derive(Debug)]
pub struct CompileFailure {
    /// The error.
    pub error: Box<Error>,
    /// Operator whose custom kernel the driver rejects, and source of this kernel.
    pub custom: Option<(String, String)>,
    /// Class of calls whose selected schedule the driver rejects.
    pub chosen: Option<Arc<Class>>,
}

impl From<Error> for CompileFailure {
    fn from(error: Error) -> Self {
        CompileFailure {
            error: Box::new(error),
            custom: None,
            chosen: None,
        }
    }
}

impl From<CompileFailure> for Error {
    fn from(unmade: CompileFailure) -> Self {
        *unmade.error
    }
}

/// A kernel that a driver rejects.
#[derive(Debug)]
pub struct RejectedKernel {
    /// Error of the driver.
    pub error: Box<Error>,
    /// Source of the kernel, if a single kernel is the cause.
    pub source: Option<String>,
}

/// The kernels of a plan, and the memory that they need.
pub struct LaunchPlan {
    /// Kernels of each dispatch.
    compiled: Vec<Compiled>,
    /// Title of each dispatch. It states whether the dispatch uses cooperative matrices.
    pub titles: Vec<String>,
    /// Sizes of all buffers in bytes: first the buffers of the plan, then [`ExtraBuffers`].
    pub sizes: Vec<u64>,
    /// Indices of the buffers that do not belong to the plan.
    pub extra: ExtraBuffers,
    /// Tables of constants, without duplicates.
    pub tables: Vec<Arc<[u32]>>,
    /// Index of the first scratch buffer of each dispatch.
    scratch: Vec<usize>,
    /// Dispatches that can report a fault, in their order.
    pub reporters: Vec<Reporter>,
    /// Index of each dispatch in `reporters`, if it is one of them.
    reporter: Vec<usize>,
    /// Parameters and states that a step writes before its last possible fault.
    pub saved: Vec<BufferRef>,
    /// The `f32` buffers of the plan that are stored as `f16`.
    pub halves: HashSet<BufferRef>,
}

impl LaunchPlan {
    /// Returns the total size in bytes of all buffers that do not belong to the plan.
    pub fn workspace_bytes(&self) -> u64 {
        self.sizes[self.extra.scalars..].iter().sum()
    }

    /// Generates the kernels of a plan, or uses custom kernels.
    ///
    /// # Errors
    /// A dispatch has no kernel.
    pub fn of(plan: &ExecutionPlan, with: &KernelOptions) -> Result<Self> {
        let sources = Sources::of(plan);
        let persistent: HashSet<BufferRef> = plan.persistent().collect();
        let mut skip_if = vec![None; plan.dispatches.len()];
        for segment in plan.segments.iter().filter(|s| s.skip_if.is_some()) {
            // A segment that is skipped must not write persistent data. Other buffers are unused after the step.
            for i in segment.range().filter(|&i| writes(&plan.dispatches[i], &persistent)) {
                skip_if[i] = segment.skip_if;
            }
        }
        // The host validates indices of inputs before a step.
        let mut host_validated: HashSet<usize> = plan.host_indices().iter().map(|f| f.dispatch).collect();
        // These need no check at all.
        host_validated.extend(plan.proven_indices());
        let f16_storage = match with.f16_storage {
            F16Storage::Chosen if with.coop.is_some_and(|config| config.use_f16_input) => {
                f16_storage::choose(plan, &facts_of(plan, with)?)
            }
            F16Storage::No | F16Storage::Chosen => HashSet::new(),
            F16Storage::Given(buffers) => buffers.clone(),
        };
        let compiled = plan.dispatches.iter().enumerate().map(|(i, dispatch)| {
            let with = KernelOptions {
                coop: with.coop.filter(|_| dispatch.use_coop),
                ..*with
            };
            let known = DispatchContext {
                skip_if: skip_if[i],
                host_validated: host_validated.contains(&i),
                library: !writes(dispatch, &persistent),
                f16_storage: Some(&f16_storage),
            };
            compile(dispatch, &sources, known, &with)
        });
        let mut compiled: Vec<Compiled> = compiled.collect::<Result<_>>()?;
        let (mut reporters, mut reporter) = (Vec::new(), Vec::new());
        for (dispatch, compiled) in plan.dispatches.iter().zip(&compiled) {
            reporter.push(reporters.len());
            if reports(compiled) {
                let is_custom = compiled.launches.iter().any(Launch::is_custom);
                let kernel = with.custom.get(&dispatch.kernel.name).filter(|_| is_custom);
                reporters.push(Reporter {
                    label: dispatch.label.clone(),
                    rows: dispatch.index_bound().unwrap_or_default(),
                    origin: kernel.map(|kernel| kernel.origin()),
                });
            }
        }
        let saved = plan.exposed_to_faults(&|i| may_fault(&compiled[i], host_validated.contains(&i)));
        if !reporters.is_empty() {
            // Writes after the last possible fault are skipped if a fault occurred.
            let mut guarded = persistent.clone();
            saved.iter().for_each(|buffer| _ = guarded.remove(buffer));
            for (i, compiled) in compiled.iter_mut().enumerate() {
                let dispatch = &plan.dispatches[i];
                if writes(dispatch, &guarded) {
                    let mut launches = compiled.launches.iter_mut();
                    launches
                        .try_for_each(Launch::guard)
                        .map_err(|why| with.refused(dispatch, &why))?;
                }
            }
        }
        let mut sizes: Vec<u64> = plan.buffers.iter().map(|&b| b as u64).collect();
        let scalars = sizes.len();
        sizes.extend([
            4 * plan.scalar_buffers.len() as u64,
            report_bytes(reporters.len()) as u64,
        ]);
        let copies = sizes.len();
        for _ in 0..FRAMES {
            sizes.extend(saved.iter().map(|b| plan.buffers[b.index()] as u64));
        }
        let tables = tables_of(&compiled);
        let first_table = sizes.len();
        sizes.extend(tables.iter().map(|table| 4 * table.len() as u64));
        let first = sizes.len();
        let scratch = lay_out_scratch(plan, &compiled, first, &mut sizes);
        let titles = titles_of(plan, &compiled);
        Ok(LaunchPlan {
            compiled,
            halves: f16_storage,
            titles,
            sizes,
            extra: ExtraBuffers {
                scalars,
                fault: scalars + 1,
                copies,
                tables: first_table,
                scratch: first,
            },
            tables,
            scratch,
            reporters,
            reporter,
            saved,
        })
    }

    /// Makes the kernels of consecutive dispatches different even if they are equal. Dispatch `i` gets variant `i %
    /// codes` of its source text.
    pub fn differ(&mut self, codes: usize) {
        for (number, compiled) in (0..codes)
            .cycle()
            .zip(&mut self.compiled)
            .filter(|(number, _)| *number > 0)
        {
            compiled.launches.iter_mut().for_each(|launch| launch.differ(number));
        }
    }

    /// Returns the launches of each dispatch, in order.
    pub fn launches(&self) -> impl Iterator<Item = &[Launch]> {
        self.compiled.iter().map(|compiled| &compiled.launches[..])
    }

    /// Returns all launches with the label of their dispatch, in order.
    pub fn labelled<'a>(&'a self, plan: &'a ExecutionPlan) -> Vec<(&'a str, &'a Launch)> {
        let dispatches = plan.dispatches.iter().zip(self.launches());
        let labelled = dispatches.flat_map(|(d, launches)| launches.iter().map(move |l| (d.label.as_str(), l)));
        labelled.collect()
    }

    /// Returns the error for a rejected kernel, with the operator of a registered kernel and the class of a selected
    /// schedule.
    pub fn unmade(&self, plan: &ExecutionPlan, refused: RejectedKernel) -> CompileFailure {
        let is_it = |launch: &&Launch| Some(&launch.source) == refused.source.as_ref();
        let own = |launch: &Launch| launch.is_custom() && is_it(&launch);
        let custom = self.compiled.iter().position(|c| c.launches.iter().any(own));
        let op = custom.map(|dispatch| plan.dispatches[dispatch].kernel.name.clone());
        let all = self.compiled.iter().flat_map(|c| &c.launches);
        let chosen = all.filter(is_it).find_map(|launch| launch.chosen.clone());
        CompileFailure {
            error: refused.error,
            custom: op.zip(refused.source),
            chosen,
        }
    }

    /// Returns the objects that the variables of a launch are bound to, in the order of its bindings.
    pub fn bound(&self, dispatch: usize, launch: &Launch) -> Vec<Bound> {
        let bound = |binding: &Binding| match *binding {
            Binding::Table(number) => {
                let known = self.tables.iter().position(|t| *t == launch.tables[number]);
                Bound::Buffer(self.extra.tables + known.unwrap_or_default())
            }
            Binding::Memory(Memory::Buffer(buffer)) | Binding::Custom(Memory::Buffer(buffer)) => {
                Bound::Buffer(buffer.index())
            }
            Binding::Memory(Memory::Scratch(number)) | Binding::Custom(Memory::Scratch(number)) => {
                Bound::Buffer(self.extra.scratch + self.scratch[dispatch] + number)
            }
            Binding::InlineScalars => Bound::Scalars,
            Binding::Scalars => Bound::Buffer(self.extra.scalars),
            Binding::Fault | Binding::Guard => Bound::Buffer(self.extra.fault),
            Binding::Reporter => Bound::Number(self.reporter[dispatch] as u32),
        };
        launch.bindings.iter().map(bound).collect()
    }

    /// Returns the source of each kernel.
    pub fn sources(&self) -> Vec<KernelSource> {
        let sources = self.compiled.iter().enumerate().flat_map(|(dispatch, compiled)| {
            let launches = compiled.launches.iter().enumerate();
            launches.map(move |(part, launch)| KernelSource {
                dispatch,
                part,
                language: "wgsl",
                text: match &launch.library {
                    Some(call) => format!("// A call that a library of the device computes:\n// {call:?}\n"),
                    None => launch.source.clone(),
                },
                variant: launch.schedule.as_deref().map(str::to_owned),
                why: why(launch),
            })
        });
        sources.collect()
    }

    /// Returns the ranges of buffers that a step saves at its start, for a frame. `place` returns the location of a buffer.
    pub fn saved_by(&self, frame: usize, place: impl Fn(usize) -> Option<BufferLocation>) -> Vec<SavedRange> {
        let first = self.extra.copies + frame * self.saved.len();
        let parts = self.saved.iter().enumerate().filter_map(|(i, buffer)| {
            let own = place(buffer.index())?;
            let copy = BufferLocation {
                bytes: own.bytes,
                ..place(first + i)?
            };
            Some(SavedRange { own, copy })
        });
        joined(parts)
    }
}

/// Returns the reason why a launch has its schedule, if there are several schedules.
fn why(launch: &Launch) -> Option<String> {
    launch.schedule.as_ref()?;
    Some(match &launch.chosen {
        Some(class) => format!("measured to be faster than the default for {class}"),
        None => "the default for such sizes on this device".to_owned(),
    })
}

/// Returns the tables of constants of all kernels.
fn tables_of(compiled: &[Compiled]) -> Vec<Arc<[u32]>> {
    let mut tables: Vec<Arc<[u32]>> = Vec::new();
    for table in compiled.iter().flat_map(|c| &c.launches).flat_map(|l| &l.tables) {
        if !tables.contains(table) {
            tables.push(table.clone());
        }
    }
    tables
}

fn reports(compiled: &Compiled) -> bool {
    compiled.launches.iter().any(Launch::reports)
}

/// Returns true if a dispatch can report a fault. With `host_validated`, the host checks its indices, but the loops
/// of a custom kernel can still exceed their limit.
fn may_fault(compiled: &Compiled, host_validated: bool) -> bool {
    let found = |launch: &Launch| launch.reports() && (!host_validated || launch.is_custom());
    compiled.launches.iter().any(found)
}

/// Assigns separate scratch buffers to the dispatches of a level. Different levels share them. Returns the first
/// scratch buffer of each dispatch, counted from `first`.
fn lay_out_scratch(plan: &ExecutionPlan, compiled: &[Compiled], first: usize, sizes: &mut Vec<u64>) -> Vec<usize> {
    let mut places = vec![0; compiled.len()];
    for segment in &plan.segments {
        let (mut level, mut next) = (None, 0);
        for index in segment.range() {
            if level != Some(plan.dispatches[index].level) {
                (level, next) = (Some(plan.dispatches[index].level), 0);
            }
            places[index] = next;
            for &bytes in &compiled[index].scratch {
                if sizes.len() == first + next {
                    sizes.push(0);
                }
                sizes[first + next] = sizes[first + next].max(bytes as u64);
                next += 1;
            }
        }
    }
    places
}

/// Returns the launches of a segment by phases, which barriers separate. Phase p of all dispatches of a level runs
/// concurrently. `ready` yields the launches of each dispatch of the segment.
pub fn phases<T>(plan: &ExecutionPlan, segment: &Segment, ready: &mut impl Iterator<Item = Vec<T>>) -> Vec<Vec<T>> {
    let mut phases: Vec<Vec<T>> = Vec::new();
    let (mut level, mut first) = (None, 0);
    for (dispatch, launches) in plan.dispatches[segment.range()].iter().zip(ready) {
        if level != Some(dispatch.level) {
            (level, first) = (Some(dispatch.level), phases.len());
        }
        for (p, launch) in launches.into_iter().enumerate() {
            if phases.len() == first + p {
                phases.push(Vec::new());
            }
            phases[first + p].push(launch);
        }
    }
    phases
}

/// Returns the title of each dispatch. It states whether the dispatch uses cooperative matrices.
fn titles_of(plan: &ExecutionPlan, compiled: &[Compiled]) -> Vec<String> {
    let title = |(dispatch, compiled): (&Dispatch, &Compiled)| {
        if compiled.launches.iter().any(|l| l.coop) {
            format!("{} (units)", dispatch.title())
        } else {
            dispatch.title()
        }
    };
    plan.dispatches.iter().zip(compiled).map(title).collect()
}
