//! Kernels of recurrent layers. Usually, one task computes all steps of some rows of the batch.
//!
//! Steps depend on each other. Therefore either tasks divide the batch, or each step is a phase whose tasks divide
//! the hidden units. Every step multiplies by the recurrent weight. The first phase packs the weight into the panels
//! that matmul tiles read, once for all steps.

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

/// Minimum number of batch rows of a task, and maximum number of tasks. Each task reads the whole weight in every
/// step.
const LEAST_ROWS: usize = 4;
const MAX_TASKS: usize = 8;
/// Minimum number of multiplications of a step for which tasks divide the hidden units, if the batch is a single
/// task; and minimum number of multiplications of each of these tasks.
const STEP_PRODUCTS: usize = 1 << 16;
const PART_PRODUCTS: usize = 1 << 15;
/// Divisor of the number of hidden units of such a task, so that the task has whole panels.
const UNITS: usize = 64;
/// The weight is packed if the product of steps and rows of a task is at least this number.
const REUSE: usize = 4;
/// Expected number of floating-point operations per nanosecond of one thread, and nanoseconds per element of a state.
const FLOPS_PER_NANO: u64 = 20;
const ELEMENT_NANOS: u64 = 3;

/// Sizes of a call, and the division of its batch.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    hidden: usize,
    /// Number of batch rows of a task.
    rows: usize,
    reverse: bool,
}

impl Sizes {
    /// Reads the sizes from `states`, the shape of a sequence of states: `[steps, batch, hidden]`.
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

    /// Returns the range of hidden units of each task. Returns `None` unless the batch is a single task and the
    /// weight is large. If tasks divide the hidden units, each step is a phase.
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

    /// Returns the range of batch rows that a task computes.
    fn of_task(&self, task: usize) -> Range<usize> {
        task * self.rows..((task + 1) * self.rows).min(self.batch)
    }

    /// Returns the steps in the order of the recurrence, each with its previous step.
    fn order(&self) -> impl DoubleEndedIterator<Item = (usize, Option<usize>)> + use<> {
        let Sizes { steps, reverse, .. } = *self;
        (0..steps).map(move |n| {
            if reverse {
                (steps - 1 - n, (n > 0).then(|| steps - n))
            } else {
                (n, n.checked_sub(1))
            }
        })
    }

    /// Returns the range of elements of a batch row in a step of a sequence. A row of the sequence has the length of
    /// `blocks` states.
    fn row(&self, step: usize, row: usize, blocks: usize) -> Range<usize> {
        let width = blocks * self.hidden;
        let start = (step * self.batch + row) * width;
        start..start + width
    }

    /// Returns the address of a row's state after step `step`. If `step` is `None`, returns the address of its
    /// initial state.
    fn state(&self, after: View<f32>, initial: View<f32>, step: Option<usize>, row: usize) -> *const f32 {
        match step {
            Some(step) => after.as_ptr().wrapping_add(self.row(step, row, 1).start),
            None => initial.as_ptr().wrapping_add(row * self.hidden),
        }
    }

    /// Returns the estimated time of the dispatch in nanoseconds.
    fn nanos(&self, weight: usize) -> u64 {
        let rows = (self.steps * self.batch) as u64;
        rows * (2 * weight as u64 / FLOPS_PER_NANO + self.hidden as u64 * ELEMENT_NANOS)
    }
}

/// Returns the `len` elements of a state from address `start` on.
///
/// # Safety
/// The row must be valid, and must not be written during the borrow.
unsafe fn row<'a>(start: *const f32, len: usize) -> &'a [f32] {
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// The number of steps of each sequence, and true if these numbers are `i32`. `None` if all sequences have all steps.
#[derive(Clone, Copy)]
struct Lengths(Option<(View<u32>, bool)>);

impl Lengths {
    /// Reads the lengths from the last operand, if its dtype is an integer.
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

    /// Returns true if the sequence of a batch row is long enough to contain this step.
    ///
    /// # Safety
    /// The executable must be alive, and the lengths must not be written meanwhile.
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

/// A matmul by some rows of the weight, planned for the number of batch rows of a task.
#[derive(Clone)]
struct Product {
    whole: Gemm,
    /// Matmul of the last task, if it has fewer rows.
    rest: Option<Gemm>,
    /// Index of the first element in the weight, if the weight is not in panels.
    start: usize,
    /// Offset of the panels in the shared scratch, if the weight is in panels.
    panels: Option<usize>,
}

/// The rows of the weight that a matmul uses, and the layout of the matmul's other operands.
struct Spec {
    rows: Range<usize>,
    transposed: bool,
    /// Distance between rows of the left operand (`from`), and of the result (`to`).
    from: usize,
    to: usize,
    accumulate: bool,
}

/// A `[k, n]` matrix in the weight that is packed into panels.
#[derive(Clone, Copy)]
struct Packed {
    /// Index of the first element in the weight.
    start: usize,
    k: usize,
    n: usize,
    transposed: bool,
    /// Number of columns of a panel.
    width: usize,
    /// Index of the first element in the scratch.
    at: usize,
}

impl Packed {
    /// Packs one panel.
    ///
    /// # Safety
    /// The panel must exist. Meanwhile, the weight must not be written, and no other code may access the panel.
    unsafe fn pack(&self, weight: View<f32>, shared: *mut f32, panel: usize) {
        let &Packed { start, k, n, width, .. } = self;
        // SAFETY: by contract. The panels of a matrix are consecutive in the scratch, and so are the matrices.
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

/// The matmuls of a dispatch, and the scratch that they need.
struct Products {
    sizes: Sizes,
    weight: View<f32>,
    packed: Vec<Packed>,
    shared: usize,
    /// Number of `f32`s of the scratch of one matmul.
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

    /// Adds a matmul `[rows, k] x [k, n]` with rows of the weight (`n = hidden`), or with their transpose (`k =
    /// hidden`).
    fn add(&mut self, spec: Spec) -> Product {
        let sizes = self.sizes;
        let (hidden, rows) = (sizes.hidden, spec.rows.len());
        let (k, n) = if spec.transposed {
            (hidden, rows)
        } else {
            (rows, hidden)
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
                b: if spec.transposed {
                    Strides { row: 1, col: hidden }
                } else {
                    Strides { row: hidden, col: 1 }
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

    /// Returns the first phase, which packs the weight into panels.
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
                    // SAFETY: only this task writes its panel, and the weight is an operand.
                    unsafe { packed.pack(weight, cx.shared, panel) };
                },
            }));
        }
        phases
    }

    /// Compiles the dispatch to a phase that packs panels, and a phase for each step. The tasks of a step are the
    /// `parts` ranges of hidden units. The body receives the step, its previous step and the index of the range.
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

    /// Compiles the dispatch to a phase that packs panels, and a phase whose tasks compute all steps of some batch
    /// rows. `scratch` is the number of `f32`s that a task needs for each of its rows, in addition to the scratch of
    /// the matmuls. The body receives this scratch, followed by that of the matmuls.
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

/// The addresses of the weight and of the scratch of a running task.
struct Scratch {
    weight: *const f32,
    panels: *const f32,
    /// Scratch for the task's batch rows.
    own: *mut f32,
    gemm: *mut f32,
}

impl Scratch {
    /// Returns slice `part` of the task's own scratch. All slices have `len` elements.
    ///
    /// # Safety
    /// The slices must have been requested, and no other code may use this slice during the borrow.
    unsafe fn part<'a>(&self, part: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(self.own.add(part * len), len) }
    }
}

impl Product {
    /// Multiplies the `rows` rows at `a`, and writes the result to `c`.
    ///
    /// # Safety
    /// As [`Gemm::run_task_on`], for all tasks. The panels must be filled, and no other code may use the scratch.
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
