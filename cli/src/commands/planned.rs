//! The plan of an explained model: its size, its memory, and the time to build it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use meganeura::backend::Device;
use meganeura::builder::{Builder, prepare};
use meganeura::plan::Recomputation;
use meganeura::plan::memory::fit_to_budget;
use meganeura::plan::{FORWARD_BACKWARD, try_compile};
use meganeura::rewrite::{RewriteConfig, SimulatedDevice};
use meganeura::{ExecutionPlan, Graph, Mode, Result, cache};

use crate::output::{line, lines};

/// The plan of a model, and the time to build it.
pub(super) struct TimedPlan {
    pub(super) plan: ExecutionPlan,
    pub(super) build_ms: f64,
    pub(super) cached_load_ms: Option<f64>,
    /// Bytes of workspace that the device needs in addition to the plan's buffers; `None` for a simulated device.
    pub(super) workspace_bytes: Option<u64>,
}

impl TimedPlan {
    /// Builds the plan for a device, and saves it in a file if one is given.
    pub(super) fn on(
        device: &Arc<dyn Device>,
        graph: &Graph,
        mode: Mode,
        config: &RewriteConfig,
        file: Option<&Path>,
    ) -> Result<Self> {
        let mut planned = TimedPlan::new(graph, file, || {
            Ok(Builder::on(device.clone())
                .mode(mode)
                .rewrite(config.clone())
                .plan(graph)?
                .0)
        })?;
        planned.workspace_bytes = Some(device.workspace_bytes(&planned.plan)?);
        Ok(planned)
    }

    /// Builds the plan for a simulated device, which has a kernel for every operator.
    pub(super) fn simulated(
        rates: &SimulatedDevice,
        graph: &Graph,
        mode: Mode,
        config: &RewriteConfig,
        file: Option<&Path>,
    ) -> Result<Self> {
        TimedPlan::new(graph, file, || {
            let plan = try_compile(&prepare(graph, mode, rates, config, None)?.0)?;
            match &config.memory_budget {
                Some(budget) => fit_to_budget(&plan, budget, rates, None, &|plan| plan.place_buffers(None)),
                None => Ok(plan),
            }
        })
    }

    fn new(graph: &Graph, file: Option<&Path>, make: impl FnOnce() -> Result<ExecutionPlan>) -> Result<Self> {
        let start = Instant::now();
        let plan = make()?;
        let build_ms = milliseconds(start);
        let mut cached_load_ms = None;
        if let Some(file) = file {
            // An unreadable file is an error, so that no file with other contents is overwritten.
            if cache::load_plan(graph, file)?.is_none_or(|saved| saved != plan) {
                cache::save_plan(&plan, graph, file)?;
            }
            let start = Instant::now();
            cache::load_plan(graph, file)?;
            cached_load_ms = Some(milliseconds(start));
        }
        Ok(TimedPlan {
            plan,
            build_ms,
            cached_load_ms,
            workspace_bytes: None,
        })
    }

    /// Prints the recomputed dispatches by kernel, the most frequent first.
    fn show_repeated(&self, recomputation: &Recomputation) -> std::io::Result<()> {
        const SHOWN: usize = 8;
        line(format_args!("Recomputation: {recomputation}"))?;
        let mut kernels: BTreeMap<String, usize> = BTreeMap::new();
        for &i in &recomputation.repeated {
            *kernels.entry(self.plan.dispatches[i as usize].title()).or_default() += 1;
        }
        let mut kernels: Vec<(String, usize)> = kernels.into_iter().collect();
        kernels.sort_by_key(|(_, count)| Reverse(*count));
        for (title, count) in kernels.iter().take(SHOWN) {
            line(format_args!("  {title}  x{count}"))?;
        }
        match kernels.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => line(format_args!("  and {more} more kernels")),
        }
    }

    /// Returns the number of levels of a step. (Dispatches of one level are independent of each other.)
    pub(super) fn levels(&self) -> usize {
        let segment = self.plan.segment(FORWARD_BACKWARD);
        segment.map_or(0, |segment| self.plan.levels(segment))
    }

    /// Prints the properties of the plan.
    pub(super) fn show(&self) -> std::io::Result<()> {
        let forecast = self.plan.memory_forecast();
        line(format_args!(
            "\nPlan: {} dispatches in {} levels, built in {:.0} ms",
            self.plan.step_dispatches().count(),
            self.levels(),
            self.build_ms
        ))?;
        match self.plan.prepared_dispatches().count() {
            0 => {}
            once => line(format_args!(
                "  and {once} dispatches that run only after parameters were written (prepared values)"
            ))?,
        }
        if let Some(ms) = self.cached_load_ms {
            line(format_args!("Loaded from its file in {ms:.0} ms"))?;
        }
        lines(format_args!("Memory: {forecast}"), 4)?;
        line(format_args!(
            "  minimum: {:.1} MB live at the peak level",
            forecast.lower_bound as f64 / 1e6
        ))?;
        if let Some(bytes) = self.workspace_bytes {
            let text = "(scratch of kernels, copies for rolling back a failed step)";
            lines(format_args!("  workspace: {:.1} MB {text}", bytes as f64 / 1e6), 4)?;
        }
        self.plan
            .recomputation
            .as_ref()
            .map_or(Ok(()), |r| self.show_repeated(r))
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
