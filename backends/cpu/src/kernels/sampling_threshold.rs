//! Kernel that finds the smallest logit that sampling keeps.

use meganeura_core::DType;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, rows_per_task};
use crate::vmath::{self, Level, Unary};

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
        // Copies of a row that are reordered: its logits, and their weights.
        private: 2 * len,
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
                    // SAFETY: the scratch of the thread has two rows.
                    let scratch = unsafe { std::slice::from_raw_parts_mut(cx.private, 2 * len) };
                    out[0] = threshold(level, logits, options, scratch);
                }
            },
        })
    })
}

/// Returns the threshold of a row; `scratch` has twice its length.
fn threshold(level: Level, logits: &[f32], options: Options, scratch: &mut [f32]) -> f32 {
    let Options {
        temperature,
        top_k,
        top_p,
        min_p,
    } = options;
    if temperature == 0.0 {
        return f32::NEG_INFINITY;
    }
    let (sorted, weights) = scratch.split_at_mut(logits.len());
    let most = vmath::max(level, logits);
    let mut least = f32::NEG_INFINITY;
    if (1..=logits.len()).contains(&(top_k as usize)) {
        sorted.copy_from_slice(logits);
        least = *sorted
            .select_nth_unstable_by(top_k as usize - 1, |a, b| b.total_cmp(a))
            .1;
    }
    if top_p < 1.0 {
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            *weight = if logit < least {
                f32::NEG_INFINITY
            } else {
                (logit - most) / temperature
            };
        }
        vmath::unary_in_place(Unary::Exp, level, weights);
        sorted.copy_from_slice(weights);
        let limit = f64::from(top_p) * total(weights);
        let lightest = least_weight(sorted, limit);
        let kept = logits.iter().zip(&*weights).filter(|(_, weight)| **weight >= lightest);
        least = kept.map(|(logit, _)| *logit).fold(f32::INFINITY, f32::min).max(least);
    }
    if min_p > 0.0 {
        least = least.max(most + temperature * min_p.ln());
    }
    least
}

fn total(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight)).sum()
}

/// Returns the weight at which the sum of the largest weights reaches `limit`, or the smallest weight if their sum is less.
/// Changes the order. Each round halves the range that contains the result, so the time is linear.
fn least_weight(weights: &mut [f32], limit: f64) -> f32 {
    let (mut rest, mut before, mut least) = (weights, 0.0, 0.0);
    while !rest.is_empty() {
        let middle = rest.len() / 2;
        let (larger, &mut pivot, smaller) = rest.select_nth_unstable_by(middle, |a, b| b.total_cmp(a));
        let sum = before + total(larger);
        if sum >= limit && !larger.is_empty() {
            rest = larger;
        } else {
            least = pivot;
            before = sum + f64::from(pivot);
            if before >= limit {
                break;
            }
            rest = smaller;
        }
    }
    least
}
