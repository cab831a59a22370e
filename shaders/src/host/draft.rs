//! A plan as launches: what the executable records at each step.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura_core::backend::KernelSource;
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, Segment};
use meganeura_core::{Error, Result};

use super::dispatch::{F16Storage, Known, Sources, With, compile, writes};
use super::f16_storage;
use super::facts::facts_of;
use super::faults::{Reporter, Saved, joined, report_bytes};
use super::places::Place;
use crate::{Binding, Class, Compiled, Launch, Memory};

/// Submissions that may be in flight at the same time.
pub const FRAMES: usize = 2;

/// What a variable of a kernel is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A buffer, by its number among [`Draft::sizes`].
    Buffer(usize),
    /// A number of 32 bits.
    Number(u32),
    /// The first scalars of the session.
    Scalars,
}

/// Buffers of the executable beyond those of the plan, in this order.
pub struct Extra {
    /// Scalars of the session, of which launches read those that are not part of them.
    pub scalars: usize,
    /// Report of a fault.
    pub fault: usize,
    /// First of the copies of what is saved, as many as [`Draft::saved`] for each submission in flight.
    pub copies: usize,
    /// First of the tables of constants, as many as [`Draft::tables`].
    pub tables: usize,
    /// First of the scratch buffers.
    scratch: usize,
}

/// Why a plan has no executable.
#[derive(Debug)]
pub struct Unmade {
    /// The reason.
    pub error: Box<Error>,
    /// The operator whose custom kernel the driver refuses, and the kernel's text.
    pub custom: Option<(String, String)>,
    /// The class of calls for which a way was chosen whose kernel the driver refuses.
    pub chosen: Option<Arc<Class>>,
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Unmade {
            error: Box::new(error),
            custom: None,
            chosen: None,
        }
    }
}

impl From<Unmade> for Error {
    fn from(unmade: Unmade) -> Self {
        *unmade.error
    }
}

/// A kernel that a driver refuses.
#[derive(Debug)]
pub struct Refused {
    /// What the driver says.
    pub error: Box<Error>,
    /// The kernel's text, if it is a matter of one.
    pub source: Option<String>,
}

/// Kernels of a plan, and the memory that they need.
pub struct Draft {
    /// For each dispatch.
    compiled: Vec<Compiled>,
    /// What runs, for each dispatch, and whether on cooperative matrices.
    pub titles: Vec<String>,
    /// Bytes of all buffers: the plan's, then [`Extra`].
    pub sizes: Vec<u64>,
    /// Which of them are not the plan's.
    pub extra: Extra,
    /// Tables of constants, each once.
    pub tables: Vec<Arc<[u32]>>,
    /// First scratch buffer of each dispatch.
    scratch: Vec<usize>,
    /// Dispatches that can report a fault, in their order.
    pub reporters: Vec<Reporter>,
    /// Place of each dispatch among them.
    reporter: Vec<usize>,
    /// Parameters and states that are written before the last fault can be found.
    pub saved: Vec<BufferRef>,
}

impl Draft {
    /// Bytes of all buffers that are not the plan's.
    pub fn workspace_bytes(&self) -> u64 {
        self.sizes[self.extra.scalars..].iter().sum()
    }

    /// Generates the kernels of a plan, or takes those that were custom.
    ///
    /// # Errors
    /// A dispatch for which there is none.
    pub fn of(plan: &ExecutionPlan, with: &With) -> Result<Self> {
        let sources = Sources::of(plan);
        let persistent: HashSet<BufferRef> = plan.persistent().collect();
        let mut skip_if = vec![None; plan.dispatches.len()];
        for segment in plan.segments.iter().filter(|s| s.skip_if.is_some()) {
            // What lasts is not written; the rest is nobody's after the step.
            for i in segment.range().filter(|&i| writes(&plan.dispatches[i], &persistent)) {
                skip_if[i] = segment.skip_if;
            }
        }
        // The host looks at indices of inputs before a step.
        let host_validated: HashSet<usize> = plan.host_indices().iter().map(|f| f.dispatch).collect();
        let f16_storage = match with.f16_storage {
            F16Storage::Chosen if with.coop.is_some_and(|config| config.use_f16_input) => {
                f16_storage::choose(plan, &facts_of(plan, with)?)
            }
            F16Storage::No | F16Storage::Chosen => HashSet::new(),
            F16Storage::Given(buffers) => buffers.clone(),
        };
        let compiled = plan.dispatches.iter().enumerate().map(|(i, dispatch)| {
            let with = With {
                coop: with.coop.filter(|_| dispatch.use_coop),
                ..*with
            };
            let known = Known {
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
            // What is written after the last fault can be found is not written after one.
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
        Ok(Draft {
            compiled,
            titles,
            sizes,
            extra: Extra {
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

    /// Gives dispatches in turns so many different codes, though their kernels are equal.
    pub fn differ(&mut self, codes: usize) {
        for (number, compiled) in (0..codes)
            .cycle()
            .zip(&mut self.compiled)
            .filter(|(number, _)| *number > 0)
        {
            compiled.launches.iter_mut().for_each(|launch| launch.differ(number));
        }
    }

    /// The launches of each dispatch, in their order.
    pub fn launches(&self) -> impl Iterator<Item = &[Launch]> {
        self.compiled.iter().map(|compiled| &compiled.launches[..])
    }

    /// All launches with the label of their dispatch, in their order.
    pub fn labelled<'a>(&'a self, plan: &'a ExecutionPlan) -> Vec<(&'a str, &'a Launch)> {
        let dispatches = plan.dispatches.iter().zip(self.launches());
        let labelled = dispatches.flat_map(|(d, launches)| launches.iter().map(move |l| (d.label.as_str(), l)));
        labelled.collect()
    }

    /// Why there is no executable, where the driver refuses a kernel: with the operator for which it was registered, and the
    /// class for which it was chosen.
    pub fn unmade(&self, plan: &ExecutionPlan, refused: Refused) -> Unmade {
        let is_it = |launch: &&Launch| Some(&launch.source) == refused.source.as_ref();
        let own = |launch: &Launch| launch.is_custom() && is_it(&launch);
        let custom = self.compiled.iter().position(|c| c.launches.iter().any(own));
        let op = custom.map(|dispatch| plan.dispatches[dispatch].kernel.name.clone());
        let all = self.compiled.iter().flat_map(|c| &c.launches);
        let chosen = all.filter(is_it).find_map(|launch| launch.chosen.clone());
        Unmade {
            error: refused.error,
            custom: op.zip(refused.source),
            chosen,
        }
    }

    /// What the variables of a launch of a dispatch are bound to, in the order of its bindings.
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

    /// The kernels' texts.
    pub fn sources(&self) -> Vec<KernelSource> {
        let sources = self.compiled.iter().enumerate().flat_map(|(dispatch, compiled)| {
            let launches = compiled.launches.iter().enumerate();
            launches.map(move |(part, launch)| KernelSource {
                dispatch,
                part,
                language: "wgsl",
                text: match &launch.library {
                    Some(matmul) => format!("// A matmul that a library of the device computes:\n// {matmul:?}\n"),
                    None => launch.source.clone(),
                },
                variant: launch.schedule.as_deref().map(str::to_owned),
                why: why(launch),
            })
        });
        sources.collect()
    }

    /// What the step of a frame saves, where buffers have these places.
    pub fn saved_by(&self, frame: usize, place: impl Fn(usize) -> Option<Place>) -> Vec<Saved> {
        let first = self.extra.copies + frame * self.saved.len();
        let parts = self.saved.iter().enumerate().filter_map(|(i, buffer)| {
            let own = place(buffer.index())?;
            let copy = Place {
                bytes: own.bytes,
                ..place(first + i)?
            };
            Some(Saved { own, copy })
        });
        joined(parts)
    }
}

/// Why a launch follows its schedule, where there are several.
fn why(launch: &Launch) -> Option<String> {
    launch.schedule.as_ref()?;
    Some(match &launch.chosen {
        Some(class) => format!("measured to be faster than the default for {class}"),
        None => "the default for such sizes on this device".to_owned(),
    })
}

/// The tables of constants of all kernels.
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

/// Whether a dispatch may meet a fault. The indices of one that is `host_validated` are seen by the host, but not what becomes of the
/// loops of a kernel that was custom.
fn may_fault(compiled: &Compiled, host_validated: bool) -> bool {
    let found = |launch: &Launch| launch.reports() && (!host_validated || launch.is_custom());
    compiled.launches.iter().any(found)
}

/// Scratch of the dispatches of a level lies apart; levels share it. Returns the first scratch buffer of each
/// dispatch, counted from `first`.
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

/// Launches of the dispatches of a segment by phases, between which there are barriers: phase p of every dispatch of a level runs
/// together. `ready` gives the launches of each dispatch of the segment.
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

/// What runs, for each dispatch, and whether on cooperative matrices.
fn titles_of(plan: &ExecutionPlan, compiled: &[Compiled]) -> Vec<String> {
    let title = |(dispatch, compiled): (&Dispatch, &Compiled)| match compiled.launches.iter().any(|l| l.coop) {
        true => format!("{} (units)", dispatch.title()),
        false => dispatch.title(),
    };
    plan.dispatches.iter().zip(compiled).map(title).collect()
}
