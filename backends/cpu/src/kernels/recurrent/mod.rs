//! Recurrent layers: all steps of some rows of the batch are one task.
//!
//! The steps depend on each other, so tasks divide the batch, or each step is a phase whose tasks divide the hidden units.
//! Every step multiplies by the recurrent weight, so a phase before them packs it into the panels that tiles read, once for
//! all steps.

mod gru;
mod lstm;
mod rnn;

use std::ops::Range;

use meganeura_core::DType;

use crate::gemm::{Addend, Gemm, GemmSpec, Operands, Strides};
use crate::kernel::{CompileCx, Compiled, Kernel, KernelDef, RunCx, Task, f32_or_integers};
use crate::memory::{View, aligned};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        name: "core.gru",
        supports: f32_or_integers,
        compile: gru::forward,
    },
    KernelDef {
        name: "core.gru_grad",
        supports: f32_or_integers,
        compile: gru::backward,
    },
    KernelDef {
        name: "core.lstm",
        supports: f32_or_integers,
        compile: lstm::forward,
    },
    KernelDef {
        name: "core.lstm_grad",
        supports: f32_or_integers,
        compile: lstm::backward,
    },
    KernelDef {
        name: "core.rnn",
        supports: f32_or_integers,
        compile: rnn::forward,
    },
    KernelDef {
        name: "core.rnn_grad",
        supports: f32_or_integers,
        compile: rnn::backward,
    },
];

/// Rows of a task at least, and tasks at most: each reads the whole weight in every step.
const LEAST_ROWS: usize = 4;
const MAX_TASKS: usize = 8;
/// Multiplications of a step from which on the hidden units of a batch that is one task are divided among tasks, and of each
/// of these at least.
const STEP_PRODUCTS: usize = 1 << 16;
const PART_PRODUCTS: usize = 1 << 15;
/// Units of such a task are a multiple of this, so that they are whole panels.
const UNITS: usize = 64;
/// Steps times rows of a task from which on the weight is brought to panels.
const REUSE: usize = 4;
/// Floating-point operations a nanosecond that one thread is expected to do, and nanoseconds for an element of a state.
const FLOPS_PER_NANO: u64 = 20;
const ELEMENT_NANOS: u64 = 3;

/// Sizes of a call, and how its batch is divided.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    hidden: usize,
    /// Rows of a task.
    rows: usize,
    reverse: bool,
}

impl Sizes {
    /// From the shape of a sequence of states.
    fn new(cx: &CompileCx, states: &[usize]) -> Result<Self, String> {
        let &[steps, batch, hidden] = states else {
            return Err("the states have three axes".into());
        };
        Ok(Sizes {
            steps,
            batch,
            hidden,
            rows: batch.div_ceil(MAX_TASKS).max(LEAST_ROWS).min(batch.max(1)),
            reverse: cx.attrs().bool("reverse")?,
        })
    }

    fn tasks(&self) -> usize {
        self.batch.div_ceil(self.rows)
    }

    /// Hidden units of each task, if a step is divided by units: where the batch is one task and the weight large. There are
    /// as many phases as steps then.
    fn units(&self, weight: usize) -> Option<Vec<Range<usize>>> {
        let products = weight * self.batch;
        if self.tasks() != 1 || products < STEP_PRODUCTS {
            return None;
        }
        let parts = (products / PART_PRODUCTS).min(MAX_TASKS);
        let units = self.hidden.div_ceil(parts).next_multiple_of(UNITS);
        let part = |start: usize| start..(start + units).min(self.hidden);
        Some((0..self.hidden).step_by(units).map(part).collect())
    }

    /// Rows of the batch that a task computes.
    fn of_task(&self, task: usize) -> Range<usize> {
        task * self.rows..((task + 1) * self.rows).min(self.batch)
    }

    /// The steps in the order in which the states follow each other, each with the one before.
    fn order(&self) -> impl DoubleEndedIterator<Item = (usize, Option<usize>)> + use<> {
        let Sizes { steps, reverse, .. } = *self;
        (0..steps).map(move |n| match reverse {
            true => (steps - 1 - n, (n > 0).then(|| steps - n)),
            false => (n, n.checked_sub(1)),
        })
    }

    /// A row of a sequence that is `blocks` states wide.
    fn row(&self, step: usize, row: usize, blocks: usize) -> Range<usize> {
        let width = blocks * self.hidden;
        let start = (step * self.batch + row) * width;
        start..start + width
    }

    /// The state after a step, or the initial one.
    fn state(&self, after: View<f32>, initial: View<f32>, step: Option<usize>, row: usize) -> *const f32 {
        match step {
            Some(step) => after.as_ptr().wrapping_add(self.row(step, row, 1).start),
            None => initial.as_ptr().wrapping_add(row * self.hidden),
        }
    }

    /// Rough duration.
    fn nanos(&self, weight: usize) -> u64 {
        let rows = (self.steps * self.batch) as u64;
        rows * (2 * weight as u64 / FLOPS_PER_NANO + self.hidden as u64 * ELEMENT_NANOS)
    }
}

/// A row of a state that is somewhere in memory.
///
/// # Safety
/// It is there, and nobody writes it during the borrow.
unsafe fn row<'a>(start: *const f32, len: usize) -> &'a [f32] {
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// How many steps each sequence has.
#[derive(Clone, Copy)]
struct Lengths(Option<(View<u32>, bool)>);

impl Lengths {
    /// The last operand, if it has integers.
    fn of(cx: &CompileCx) -> Self {
        let last = cx.call().inputs.len() - 1;
        Lengths(match cx.input_type(last).dtype {
            DType::U32 => Some((cx.input(last), false)),
            DType::I32 => Some((cx.input(last), true)),
            _ => None,
        })
    }

    fn are_given(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a sequence has a step.
    ///
    /// # Safety
    /// The executable is alive, and nobody writes the lengths.
    unsafe fn reach(&self, row: usize, step: usize) -> bool {
        let Some((lengths, signed)) = self.0 else {
            return true;
        };
        // SAFETY: by contract.
        let length = unsafe { lengths.slice(row..row + 1) }[0];
        let negative = signed && length > i32::MAX as u32;
        !negative && step < length as usize
    }
}

/// A multiplication by rows of the weight, for as many rows of the batch as a task has.
#[derive(Clone)]
struct Product {
    whole: Gemm,
    /// Of the last task, if that has fewer rows.
    rest: Option<Gemm>,
    /// Elements of the weight before the first one, where it is not in panels.
    start: usize,
    /// Where its panels are in the shared scratch.
    panels: Option<usize>,
}

/// Rows of the weight that are multiplied by, and where the other operands are.
struct Spec {
    rows: Range<usize>,
    transposed: bool,
    /// Distances between rows of the left operand and of the result.
    from: usize,
    to: usize,
    accumulate: bool,
}

/// A matrix that is brought to panels: `k` columns of these for each result.
#[derive(Clone, Copy)]
struct Packed {
    /// First element in the weight.
    start: usize,
    k: usize,
    n: usize,
    transposed: bool,
    /// Results of a panel.
    width: usize,
    /// First element in the scratch.
    at: usize,
}

impl Packed {
    /// # Safety
    /// The panel exists; the weight is not written, the panel accessed by nobody else.
    unsafe fn pack(&self, weight: View<f32>, shared: *mut f32, panel: usize) {
        let &Packed { start, k, n, width, .. } = self;
        // SAFETY: by contract; panels of a matrix and matrices follow each other in the scratch.
        let (from, to) = unsafe {
            let to = shared.add(self.at + panel * k * width);
            (
                weight.slice(start..start + k * n),
                std::slice::from_raw_parts_mut(to, k * width),
            )
        };
        if self.transposed {
            let rows = &from[panel * width * k..(panel + 1) * width * k];
            for (at, to) in to.chunks_exact_mut(width).enumerate() {
                for (row, to) in to.iter_mut().enumerate() {
                    *to = rows[row * k + at];
                }
            }
        } else {
            for (row, to) in from.chunks_exact(n).zip(to.chunks_exact_mut(width)) {
                to.copy_from_slice(&row[panel * width..(panel + 1) * width]);
            }
        }
    }
}

/// Multiplications of a dispatch, and its scratch.
struct Products {
    sizes: Sizes,
    weight: View<f32>,
    packed: Vec<Packed>,
    shared: usize,
    /// Scratch of one multiplication.
    private: usize,
}

impl Products {
    fn new(sizes: Sizes, weight: View<f32>) -> Self {
        Products {
            sizes,
            weight,
            packed: Vec::new(),
            shared: 0,
            private: 0,
        }
    }

    /// A multiplication `[rows, k] x [k, n]` by rows of the weight (`n = hidden`) or by their transpose (`k = hidden`).
    fn add(&mut self, spec: Spec) -> Product {
        let sizes = self.sizes;
        let (hidden, rows) = (sizes.hidden, spec.rows.len());
        let (k, n) = match spec.transposed {
            true => (hidden, rows),
            false => (rows, hidden),
        };
        let start = spec.rows.start * hidden;
        let reused = sizes.steps * sizes.rows >= REUSE;
        let panels = Gemm::panels([k, n], spec.transposed).filter(|_| reused).map(|panels| {
            let width = if spec.transposed {
                panels.rows
            } else {
                panels.unit / size_of::<f32>()
            };
            let at = self.shared;
            let transposed = spec.transposed;
            self.packed.push(Packed {
                start,
                k,
                n,
                transposed,
                width,
                at,
            });
            self.shared += aligned(k * n);
            at
        });
        let plan = if panels.is_some() { Gemm::by_panels } else { Gemm::new };
        let mut gemm = |m| {
            let gemm = plan(GemmSpec {
                m,
                n,
                k,
                a: Strides { row: spec.from, col: 1 },
                b: match spec.transposed {
                    true => Strides { row: 1, col: hidden },
                    false => Strides { row: hidden, col: 1 },
                },
                ldc: spec.to,
                accumulate: spec.accumulate,
            });
            self.private = self.private.max(aligned(gemm.shared_len()) + gemm.worker_len());
            gemm
        };
        let rest = sizes.batch % sizes.rows;
        Product {
            whole: gemm(sizes.rows),
            rest: (rest > 0).then(|| gemm(rest)),
            start,
            panels,
        }
    }

    /// Where the steps' phases begin: the one that brings the weight to panels.
    fn pack(&self) -> Vec<Box<dyn Kernel>> {
        let (weight, packed) = (self.weight, &self.packed);
        let panels: Vec<(Packed, usize)> = packed
            .iter()
            .flat_map(|packed| (0..packed.n / packed.width).map(|panel| (*packed, panel)))
            .collect();
        let mut phases: Vec<Box<dyn Kernel>> = Vec::new();
        if !panels.is_empty() {
            let elements: usize = packed.iter().map(|packed| packed.k * packed.n).sum();
            phases.push(Box::new(Task {
                tasks: panels.len(),
                nanos: elements as u64 / 2,
                body: move |task: usize, cx: &RunCx| {
                    let (packed, panel) = panels[task];
                    // SAFETY: this task alone writes its panel; the weight is an operand.
                    unsafe { packed.pack(weight, cx.shared, panel) };
                },
            }));
        }
        phases
    }

    /// The dispatch: panels first, then a phase for each step, whose tasks are parts of the hidden units. The body gets the
    /// step, the one before and the part.
    fn compile_steps(
        self,
        parts: usize,
        body: impl Fn(usize, Option<usize>, usize, &Scratch) + Clone + Send + Sync + 'static,
    ) -> Compiled {
        let mut phases = self.pack();
        let (sizes, weight) = (self.sizes, self.weight);
        for (step, before) in sizes.order() {
            let body = body.clone();
            phases.push(Box::new(Task {
                tasks: parts,
                nanos: sizes.nanos(weight.len()) / sizes.steps as u64,
                body: move |part: usize, cx: &RunCx| {
                    let scratch = Scratch {
                        weight: weight.as_ptr(),
                        panels: cx.shared,
                        own: cx.private,
                        gemm: cx.private,
                    };
                    body(step, before, part, &scratch);
                },
            }));
        }
        Compiled {
            phases,
            shared: self.shared,
            private: self.private,
        }
    }

    /// The dispatch: panels first, then all steps of each task's rows. `scratch` is what a task needs for one row of the
    /// batch beside the multiplications; the body gets it, and the multiplications' scratch behind it.
    fn compile(
        self,
        scratch: usize,
        body: impl Fn(Range<usize>, &RunCx, &Scratch) + Send + Sync + 'static,
    ) -> Compiled {
        let mut phases = self.pack();
        let Products {
            sizes,
            weight,
            shared,
            private,
            ..
        } = self;
        let own = aligned(scratch * sizes.rows);
        phases.push(Box::new(Task {
            tasks: sizes.tasks(),
            nanos: sizes.nanos(weight.len()),
            body: move |task: usize, cx: &RunCx| {
                let scratch = Scratch {
                    weight: weight.as_ptr(),
                    panels: cx.shared,
                    own: cx.private,
                    gemm: cx.private.wrapping_add(own),
                };
                body(sizes.of_task(task), cx, &scratch);
            },
        }));
        Compiled {
            phases,
            shared,
            private: own + private,
        }
    }
}

/// What a task works with beside its operands.
struct Scratch {
    weight: *const f32,
    panels: *const f32,
    /// For the task's rows.
    own: *mut f32,
    gemm: *mut f32,
}

impl Scratch {
    /// The `part`-th part of the task's own scratch, of so many elements each.
    ///
    /// # Safety
    /// The parts were asked for; nobody else uses this one during the borrow.
    unsafe fn part<'a>(&self, part: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(self.own.add(part * len), len) }
    }
}

impl Product {
    /// Multiplies so many rows from `a` to `c`.
    ///
    /// # Safety
    /// As [`Gemm::run_task_on`], for all tasks; the panels are filled, the scratch is the caller's.
    unsafe fn run(&self, rows: usize, a: *const f32, c: *mut f32, addend: Addend, scratch: &Scratch) {
        let gemm = match &self.rest {
            Some(rest) if rest.spec().m == rows => rest,
            _ => &self.whole,
        };
        let b = match self.panels {
            Some(at) => scratch.panels.wrapping_add(at),
            None => scratch.weight.wrapping_add(self.start),
        };
        let operands = Operands {
            a,
            b,
            c,
            addend,
            shared: scratch.gemm,
            worker: scratch.gemm.wrapping_add(aligned(gemm.shared_len())),
        };
        for phase in 0..gemm.phases() {
            for task in 0..gemm.tasks(phase) {
                // SAFETY: by contract.
                unsafe { gemm.run_task_on(phase, task, operands) };
            }
        }
    }
}
