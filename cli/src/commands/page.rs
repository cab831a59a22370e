//! The page of `meganeura explain --html`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::prepare;
use meganeura::files::write_atomically;
use meganeura::optimize::OptimizeReport;
use meganeura::rewrite::{RewriteConfig, Target};
use meganeura::session::Timings;
use meganeura::{ExecutionPlan, Graph, Mode, Session, registry};
use meganeura_bench::feed;
use meganeura_cli::report::{Report, ReportTensor, tensors};

/// Contents of the page.
pub(crate) struct Subject<'a> {
    pub(crate) title: String,
    /// `None` if the device is only simulated.
    pub(crate) device: Option<&'a Arc<dyn Device>>,
    pub(crate) target: &'a dyn Target,
    /// The graph before rewriting.
    pub(crate) graph: &'a Graph,
    pub(crate) rewritten: &'a Graph,
    pub(crate) plan: &'a ExecutionPlan,
    pub(crate) mode: Mode,
    pub(crate) config: &'a RewriteConfig,
    pub(crate) report: &'a OptimizeReport,
}

impl Subject<'_> {
    /// Writes the page; with `profile`, runs this number of steps to show their times.
    pub(crate) fn write(&self, file: &Path, profile: Option<usize>) -> Result<(), Box<dyn Error>> {
        let (before, _) = prepare(self.graph, self.mode, self.target, &RewriteConfig::off(), None)?;
        let (timings, tensors) = match (profile, self.device) {
            (Some(steps), Some(device)) => {
                let (timings, tensors) = measured(device, self.plan, steps)?;
                (Some(timings), tensors)
            }
            _ => (None, Vec::new()),
        };
        let kernels = match self.device {
            Some(device) => device.kernel_sources(self.plan)?,
            None => Vec::new(),
        };
        let page = Report {
            title: self.title.clone(),
            environment: self.environment(),
            before: &before,
            after: self.rewritten,
            optimization: self.report,
            plan: self.plan,
            kernels: &kernels,
            target: self.target,
            timings: timings.as_ref(),
            tensors: &tensors,
        };
        let html = page.html()?;
        write_atomically(file, |out| out.write_all(html.as_bytes()))?;
        Ok(())
    }

    fn environment(&self) -> Vec<(String, String)> {
        let rates = self.target.cost_model();
        let sets = registry::rule_sets();
        let sets = sets.iter().map(|s| {
            let off = self.config.disable.iter().any(|d| s.set.namespace == *d);
            let state = if off { " (left out)" } else { "" };
            format!("{} {}{state}", s.set.namespace, s.set.version)
        });
        let mut facts = vec![
            ("Meganeura", env!("CARGO_PKG_VERSION").to_owned()),
            (
                "system",
                format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH),
            ),
        ];
        if let Some(device) = self.device {
            let capabilities = device.capabilities();
            facts.push(("device", capabilities.name.clone()));
            let dtypes: Vec<&str> = capabilities.dtypes.iter().map(|d| d.name()).collect();
            facts.push(("storage types", dtypes.join(", ")));
            if let Some(bytes) = capabilities.memory_bytes {
                facts.push(("memory", format!("{:.1} GB", bytes as f64 * 1e-9)));
            }
        }
        if let Some(recomputation) = &self.plan.recomputation {
            facts.push(("recomputation", recomputation.to_string()));
        }
        facts.extend([
            ("launch", format!("{:.2} µs", rates.launch.as_secs_f64() * 1e6)),
            ("memory rate", format!("{:.1} GB/s", rates.bytes_per_second * 1e-9)),
            ("f32 rate", format!("{:.2} TFLOP/s", rates.flops_per_second * 1e-12)),
            (
                "half-precision rate",
                format!("{:.2} TFLOP/s", rates.half_flops_per_second * 1e-12),
            ),
            ("rule sets", sets.collect::<Vec<_>>().join(", ")),
        ]);
        facts
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Returns the times of the passes of some steps on random data, and the tensors of one more step.
fn measured(
    device: &Arc<dyn Device>,
    plan: &ExecutionPlan,
    steps: usize,
) -> Result<(Timings, Vec<ReportTensor>), Box<dyn Error>> {
    let mut session = Session::on(device.clone(), plan.clone())?;
    // Ids below 2 are valid for every vocabulary.
    feed(&mut session, 2, &[])?;
    // The first step includes page faults.
    session.try_step()?;
    session.set_profiling(true);
    for _ in 0..steps {
        session.try_step()?;
    }
    session.wait();
    let timings = session.take_timings();
    session.set_profiling(false);
    Ok((timings, tensors(&mut session)?))
}
