//! Kernel that finds the smallest logit that sampling keeps.

use meganeura_core::DType;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, rows_per_task};
use crate::vmath::{self, Level};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.sampling_threshold",
    supports: |call| match call.inputs[0].dtype {
        DType::F32 => Ok(()),
        other => Err(format!("the logits are {other}")),
    },
    compile,
}];

/// Options of a row.
#[derive(Clone, Copy)]
struct Options {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let (logits, out, level) = (cx.input::<f32>(0), cx.output::<f32>(0), cx.level);
    let (temperature, top_k) = (cx.input::<f32>(1), cx.input::<u32>(2));
    let (top_p, min_p) = (cx.input::<f32>(3), cx.input::<f32>(4));
    let rows = out.len();
    let len = cx.input_type(0).shape.dims().last().copied().unwrap_or(1);
    let per_task = rows_per_task(len);
    Ok(Compiled {
        // A copy of a row that is reordered.
        private: len,
        ..Compiled::one(Task {
            tasks: rows.div_ceil(per_task),
            nanos: 10 * logits.len() as u64,
            body: move |task: usize, cx: &RunCx| {
                for row in task * per_task..((task + 1) * per_task).min(rows) {
                    // SAFETY: no task writes the operands, and only this task writes this row.
                    let (logits, options, out) = unsafe {
                        let options = Options {
                            temperature: temperature.slice(row..row + 1)[0],
                            top_k: top_k.slice(row..row + 1)[0],
                            top_p: top_p.slice(row..row + 1)[0],
                            min_p: min_p.slice(row..row + 1)[0],
                        };
                        (
                            logits.slice(row * len..(row + 1) * len),
                            options,
                            out.slice_mut(row..row + 1),
                        )
                    };
                    // SAFETY: the scratch of the thread has one row.
                    let sorted = unsafe { std::slice::from_raw_parts_mut(cx.private, len) };
                    out[0] = threshold(level, logits, options, sorted);
                }
            },
        })
    })
}

/// Returns the threshold of a row; `sorted` has its length.
fn threshold(level: Level, logits: &[f32], options: Options, sorted: &mut [f32]) -> f32 {
    let Options {
        temperature,
        top_k,
        top_p,
        min_p,
    } = options;
    if temperature == 0.0 {
        return f32::NEG_INFINITY;
    }
    let most = vmath::max(level, logits);
    let mut least = f32::NEG_INFINITY;
    if (1..=logits.len()).contains(&(top_k as usize)) {
        sorted.copy_from_slice(logits);
        least = *sorted
            .select_nth_unstable_by(top_k as usize - 1, |a, b| b.total_cmp(a))
            .1;
    }
    if top_p < 1.0 {
        let mut count = 0;
        for &logit in logits.iter().filter(|logit| **logit >= least) {
            sorted[count] = logit;
            count += 1;
        }
        let weight = |logit: f32| f64::from(((logit - most) / temperature).exp());
        least = least_logit(&mut sorted[..count], f64::from(top_p), weight).max(least);
    }
    if min_p > 0.0 {
        least = least.max(most + temperature * min_p.ln());
    }
    least
}

/// Adds weights of logits from the largest logit down, until the sum is at least `top_p` of the total weight. Returns the last
/// logit. Changes the order of the logits. Each round halves the range that contains the result, so the time is linear.
fn least_logit(logits: &mut [f32], top_p: f64, weight: impl Fn(f32) -> f64) -> f32 {
    let total = |logits: &[f32]| logits.iter().map(|&logit| weight(logit)).sum::<f64>();
    // The most likely token is kept in any case; its weight is 1.
    let limit = (top_p * total(logits)).max(1e-30);
    let (mut rest, mut before, mut least) = (logits, 0.0, f32::NEG_INFINITY);
    while !rest.is_empty() {
        let middle = rest.len() / 2;
        let (larger, &mut pivot, smaller) = rest.select_nth_unstable_by(middle, |a, b| b.total_cmp(a));
        let sum = before + total(larger);
        if sum >= limit && !larger.is_empty() {
            rest = larger;
        } else {
            least = pivot;
            before = sum + weight(pivot);
            if before >= limit {
                break;
            }
            rest = smaller;
        }
    }
    least
}
