//! Measurement of the variants of all calls of some plans on a device.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Instant;

use meganeura_core::backend::{Tune, TuneOptions, TunedClass};
use meganeura_core::plan::{Dispatch, ExecutionPlan};
use meganeura_core::precision::Precision;
use meganeura_core::{Error, Result};

use super::Entry;
use super::comparison::{Decision, comparison};
use super::operands::{Operands, Persistent};
use super::trial::{ForcedVariant, Trial};
use super::validate::text_hash;
use crate::device::BladeDevice;
use crate::gpu::NAME;
use meganeura_shaders::Schedule;
use meganeura_shaders::host::{self, F16Storage, KernelOptions};
use meganeura_shaders::{Class, ScheduleChooser};

/// A class of similar calls of some plans.
pub(super) struct CallClass {
    pub(super) class: Class,
    pub(super) precision: Precision,
    pub(super) variants: Vec<String>,
    /// Example of a call of the class, including fused operations.
    pub(super) dispatch: Dispatch,
    /// Properties of the operands and results of the example in its plan.
    pub(super) operands: Operands,
    pub(super) calls: usize,
}

impl CallClass {
    /// Returns the total work of all calls of the class.
    fn work(&self) -> u128 {
        self.class.work.saturating_mul(self.calls as u128)
    }
}

impl Tune for BladeDevice {
    fn tune(
        &self,
        plans: &[ExecutionPlan],
        options: &TuneOptions,
        progress: &mut dyn FnMut(usize, usize, &TunedClass),
    ) -> Result<Vec<TunedClass>> {
        if options.keep {
            self.tuning().file()?;
        }
        let classes = self.classes(plans)?;
        let mut all = Vec::with_capacity(classes.len());
        let end = Instant::now() + options.time;
        for (number, found) in classes.iter().enumerate() {
            let left = end.saturating_duration_since(Instant::now());
            // Time that a class does not use is available to later classes.
            let until = Instant::now() + left / (classes.len() - number) as u32;
            let tuned = if left.is_zero() {
                skipped(found, "the time limit was reached")
            } else {
                self.tune_class(found, until)?
            };
            if options.keep && tuned.skipped.is_none() {
                self.keep(found, &tuned)?;
            }
            progress(number + 1, classes.len(), &tuned);
            all.push(tuned);
        }
        Ok(all)
    }

    fn forget_tuned(&self) -> Result<bool> {
        self.tuning().forget()
    }

    fn tuned_file(&self) -> Result<&Path> {
        self.tuning().file()
    }
}

impl BladeDevice {
    /// Returns the classes of calls of the plans, in descending order of work.
    pub(super) fn classes(&self, plans: &[ExecutionPlan]) -> Result<Vec<CallClass>> {
        let mut found: Vec<CallClass> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        for plan in plans {
            let asked = QueriedClasses {
                precision: plan.precision,
                found: RefCell::default(),
            };
            let custom = self.custom_kernels_for(plan);
            let with = KernelOptions {
                backend: NAME,
                library: None,
                coop: self.coop_at(plan.precision),
                features: self.handle().features(),
                custom: &custom,
                choices: Some(&asked),
                f16_storage: F16Storage::No,
            };
            let persistent = Persistent::of(plan);
            let f16_storage = if self.f16_storage() {
                host::choose_f16_storage(plan, &host::facts_of(plan, &KernelOptions { choices: None, ..with })?)
            } else {
                HashSet::new()
            };
            host::ask(plan, &with, &mut |dispatch| {
                for (class, variants) in asked.found.take() {
                    let at = *known.entry(class.name.clone()).or_insert_with(|| {
                        found.push(CallClass {
                            class,
                            precision: plan.precision,
                            variants,
                            dispatch: dispatch.clone(),
                            operands: Operands::of(dispatch, &persistent, &f16_storage),
                            calls: 0,
                        });
                        found.len() - 1
                    });
                    found[at].calls += 1;
                }
            })?;
        }
        found.sort_by_key(|f| std::cmp::Reverse(f.work()));
        Ok(found)
    }

    fn tune_class(&self, found: &CallClass, until: Instant) -> Result<TunedClass> {
        let variants = (&found.class, &*found.variants);
        let units = (found.precision, self.coop_at(found.precision));
        let trial = Trial::new(self.handle(), &found.dispatch, &found.operands, units, variants, until);
        let outcome = trial.and_then(|trial| comparison(&trial));
        match outcome {
            Ok(decision) => Ok(tuned(found, decision)),
            Err(error) if self.handle().gpu().is_lost() => Err(Error::misuse(
                format!(
                    "the device failed while variants of {} were measured: {error}",
                    found.class
                ),
                "earlier results are kept; check the driver, and tune other workloads",
            )),
            Err(error) => Ok(skipped(found, &error.to_string())),
        }
    }

    fn keep(&self, found: &CallClass, tuned: &TunedClass) -> Result<()> {
        let hash = tuned.winner.as_deref().and_then(|winner| {
            let forced = ForcedVariant::new(&found.class, Some(winner), found.precision);
            text_hash(&found.dispatch, self.coop_at(found.precision), &forced)
        });
        let entry = Entry {
            sizes: found.class.sizes.clone(),
            usual: tuned.default.clone(),
            winner: tuned.winner.clone(),
            gain: tuned.gain(),
            qualified: hash.into_iter().collect(),
        };
        self.tuning().keep(&found.class.name, entry)
    }
}

fn tuned(found: &CallClass, decision: Decision) -> TunedClass {
    TunedClass {
        class: found.class.name.clone(),
        calls: found.calls,
        default: found.variants.first().cloned().unwrap_or_default(),
        default_seconds: decision.usual,
        best_seconds: match decision.winner {
            Some(_) => decision.best,
            None => decision.usual,
        },
        winner: decision.winner,
        timed: decision.timed,
        untried: decision.untried,
        refused: decision.refused,
        skipped: None,
    }
}

fn skipped(found: &CallClass, why: &str) -> TunedClass {
    let nothing = Decision {
        winner: None,
        usual: 0.0,
        best: 0.0,
        timed: 0,
        untried: found.variants.len().saturating_sub(1),
        refused: Vec::new(),
    };
    TunedClass {
        skipped: Some(why.to_owned()),
        ..tuned(found, nothing)
    }
}

/// A selector that records the classes that kernels request, and selects the default variants.
struct QueriedClasses {
    precision: Precision,
    found: RefCell<Vec<(Class, Vec<String>)>>,
}

impl ScheduleChooser for QueriedClasses {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn choose(&self, class: &Class, candidates: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        let candidates = candidates().iter().map(Schedule::to_string).collect();
        self.found.borrow_mut().push((class.clone(), candidates));
        None
    }
}
