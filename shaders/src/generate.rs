//! Kernels of a standalone call: its schedules, and the kernels of one schedule.

use std::cell::{Cell, RefCell};

use meganeura_core::backend::KernelDesc;
use meganeura_core::precision::Precision;

use super::compile::{check_scratch, compile};
use super::kernel::{CompileCx, Compiled};
use super::limits::Limits;
use super::schedule::{Class, Schedule, ScheduleChooser};

/// Returns the schedules of a call, the default one first. The list is empty if the call has at most one kernel
/// variant.
///
/// For a call that is split into several contractions or reductions, the list contains the schedules of the first one
/// that has several schedules.
pub fn candidates(kernel: &KernelDesc, limits: &Limits) -> Vec<Schedule> {
    let chooser = Chooser::default();
    // Only the candidates matter here. An error means that no kernel exists.
    let _ = compile(&CompileCx {
        coop: limits.coop,
        features: limits.features,
        choices: Some(&chooser),
        ..CompileCx::standalone(*kernel)
    });
    chooser.candidates.take()
}

/// Generates the kernels of a call, with one of its [`candidates`] or with the default schedule. Every operand and
/// result has its own buffer. Operand `i` has [`BufferRef`](meganeura_core::plan::BufferRef) `i`, and the buffers of
/// the results follow.
///
/// # Errors
/// The operator has no kernels, the call does not have the schedule, or the scratch buffers exceed the limits.
pub fn generate(kernel: &KernelDesc, schedule: Option<&Schedule>, limits: &Limits) -> Result<Compiled, String> {
    let chooser = Chooser {
        wanted: schedule.cloned(),
        ..Chooser::default()
    };
    let compiled = compile(&CompileCx {
        coop: limits.coop,
        features: limits.features,
        choices: Some(&chooser),
        ..CompileCx::standalone(*kernel)
    })?;
    match schedule {
        Some(schedule) if !chooser.used.get() => Err(format!("the call has no schedule '{schedule}'")),
        _ => check_scratch(compiled, limits.max_buffer_bytes),
    }
}

/// A schedule chooser that records the candidates and selects one of them.
#[derive(Default)]
struct Chooser {
    candidates: RefCell<Vec<Schedule>>,
    wanted: Option<Schedule>,
    used: Cell<bool>,
}

impl ScheduleChooser for Chooser {
    fn precision(&self) -> Precision {
        Precision::Mixed
    }

    fn choose(&self, _: &Class, candidates: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        let candidates = candidates();
        let wanted = self.wanted.clone().filter(|wanted| candidates.contains(wanted));
        self.used.set(self.used.get() || wanted.is_some());
        let mut first = self.candidates.borrow_mut();
        if first.is_empty() {
            *first = candidates;
        }
        wanted
    }

    fn missing(&self, _: &Class, _: &Schedule) {
        self.used.set(false);
    }
}

#[cfg(test)]
mod tests {
    use meganeura_core::attrs::Attrs;
    use meganeura_core::{DType, Shape, TensorType};

    use super::*;

    #[test]
    fn long_rows_in_which_an_extreme_is_looked_for_can_be_cut() {
        let ty = |dims: &[usize]| TensorType::f32(Shape::new(dims).expect("a shape"));
        let (inputs, outputs) = ([ty(&[3, 5000])], [TensorType::new(DType::U32, ty(&[3]).shape)]);
        let attrs = Attrs::new().with("axis", 1i64);
        let kernel = KernelDesc {
            name: "core.argmax",
            version: 1,
            attrs: &attrs,
            inputs: &inputs,
            outputs: &outputs,
        };
        let limits = Limits::default();
        let all = candidates(&kernel, &limits);
        let names: Vec<String> = all.iter().map(Schedule::to_string).collect();
        // The default schedule splits the rows because there are few of them.
        assert_eq!(names, ["arg_reduce.v1 split=4", "arg_reduce.v1 split=1"]);
        let made = |i: usize| generate(&kernel, Some(&all[i]), &limits).expect("kernels");
        assert_eq!([made(0).launches.len(), made(1).launches.len()], [2, 1]);
        assert_eq!([made(0).scratch, made(1).scratch], [vec![4 * 3 * 4], vec![]]);
    }

    #[test]
    fn every_candidate_of_a_product_has_kernels() {
        let ty = |dims: &[usize]| TensorType::f32(Shape::new(dims).expect("a shape"));
        let (inputs, outputs) = ([ty(&[64, 256]), ty(&[256, 96])], [ty(&[64, 96])]);
        let attrs = Attrs::new().with("transpose_a", false).with("transpose_b", false);
        let kernel = KernelDesc {
            name: "core.matmul",
            version: 1,
            attrs: &attrs,
            inputs: &inputs,
            outputs: &outputs,
        };
        let limits = Limits::default();
        let all = candidates(&kernel, &limits);
        assert!(all.len() > 4, "{all:?}");
        let default = generate(&kernel, None, &limits).expect("kernels");
        assert_eq!(default.launches[0].schedule.as_deref(), Some(&*all[0].to_string()));
        for schedule in &all {
            let made = generate(&kernel, Some(schedule), &limits).expect("kernels");
            assert_eq!(made.launches[0].schedule.as_deref(), Some(&*schedule.to_string()));
        }
        let other = "matmul_tiled.v2 each=8 split_k=77".parse().expect("a schedule");
        let error = generate(&kernel, Some(&other), &limits).expect_err("no such schedule");
        assert!(
            error.contains("no schedule 'matmul_tiled.v2 each=8 split_k=77'"),
            "{error}"
        );
        let small = Limits {
            max_buffer_bytes: 64,
            ..limits
        };
        let split = all.iter().find(|s| s.get("split_k").is_some_and(|parts| parts[0] > 1));
        let error = generate(&kernel, split, &small).expect_err("too little room");
        assert!(error.contains("largest buffer has 64"), "{error}");
    }
}
