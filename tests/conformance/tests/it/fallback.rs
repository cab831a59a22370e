//! Tests of fallback devices: they run operators that a device does not support, even by decomposition, with the same
//! results.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_conformance::{Options, ReferenceBackend, Section, run};
use meganeura_core::backend::{Capabilities, Device, Executable, KernelDesc, KernelSource, Support};
use meganeura_core::error::{Error, Result};
use meganeura_core::fallback::WithFallback;
use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{DType, Graph};

/// Device wrapper without some kernels, and without any kernel in half precision.
struct DeviceWithoutKernels(Arc<dyn Device>, &'static [&'static str]);

impl Device for DeviceWithoutKernels {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let mut types = kernel.inputs.iter().chain(kernel.outputs);
        let is_half = types.any(|ty| matches!(ty.dtype, DType::F16 | DType::BF16));
        if is_half || self.1.contains(&kernel.name) {
            Support::No("it was taken away".into())
        } else {
            self.0.supports(kernel)
        }
    }

    /// Returns the names of the plan's kernels as their sources.
    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        let dispatches = plan.dispatches.iter().enumerate();
        let sources = dispatches.map(|(dispatch, d)| KernelSource {
            dispatch,
            part: 0,
            language: "txt",
            text: d.kernel.name.clone(),
            variant: None,
            why: None,
        });
        Ok(sources.collect())
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        let foreign = plan.dispatches.iter().find(|d| self.1.contains(&&*d.kernel.name));
        match foreign {
            Some(d) => Err(Error::backend("lacking", format!("{} is not for it", d.kernel.name))),
            None => self.0.compile(plan),
        }
    }
}

const LACKS: &[&str] = &[
    "core.matmul",
    "core.gather",
    "core.scatter_add",
    "core.sum",
    "core.assign",
    "core.take_along_axis",
    // The only kernel that half precision always needs.
    "core.cast",
];

fn lacking() -> Arc<dyn Device> {
    Arc::new(DeviceWithoutKernels(
        ReferenceBackend::new().primitives_only().device(),
        LACKS,
    ))
}

fn with_fallback() -> Arc<dyn Device> {
    Arc::new(WithFallback::new(lacking(), ReferenceBackend::new().device()))
}

fn product() -> Graph {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[2, 3]), g.parameter("w", &[3, 2]));
    let y = g.matmul(x, w);
    let y = g.tanh(y);
    g.set_outputs(vec![y]);
    g
}

#[test]
fn two_devices_conform_together() {
    for section in [Section::Training, Section::Semantics, Section::Errors] {
        let options = Options {
            sections: vec![section],
            ..Options::default()
        };
        let report = run(with_fallback(), &options);
        assert!(report.is_ok(), "{report}");
    }
    for filter in [
        "core.matmul/",
        "core.embedding/",
        "core.layer_norm/",
        "core.softmax/",
        "core.cast/",
    ] {
        let options = Options {
            filter: Some(filter.into()),
            seeds: 0..1,
            ..Options::default()
        };
        let report = run(with_fallback(), &options);
        assert!(report.failed() == 0, "{report}");
    }
}

#[test]
fn reports_say_what_runs_elsewhere() {
    let (_, report) = Builder::on(with_fallback())
        .inference()
        .build(&product())
        .expect("it builds");
    let name = ReferenceBackend::new().device().capabilities().name.clone();
    assert!(
        report
            .fallback_dispatches
            .iter()
            .any(|(label, device)| label.contains("matmul") && *device == name)
    );
    // The hyperbolic tangent has a decomposition, which is preferred.
    assert!(
        report
            .fallback_dispatches
            .iter()
            .all(|(label, _)| !label.contains("tanh")),
        "{report}"
    );
    assert!(report.to_string().contains("On the fallback device "), "{report}");
}

#[test]
fn texts_of_kernels_have_the_numbers_of_the_whole_plan() {
    let device = with_fallback();
    let (session, _) = Builder::on(device.clone())
        .inference()
        .build(&product())
        .expect("it builds");
    let plan = session.plan();
    let fallback_dispatches: Vec<usize> = device.fallback_dispatches(plan).into_iter().map(|(i, _)| i).collect();
    let sources = device.kernel_sources(plan).expect("texts");
    assert!(!fallback_dispatches.is_empty() && !sources.is_empty());
    for source in &sources {
        assert_eq!(source.text, plan.dispatches[source.dispatch].kernel.name);
        assert!(!fallback_dispatches.contains(&source.dispatch), "{source:?}");
    }
    assert_eq!(sources.len() + fallback_dispatches.len(), plan.dispatches.len());
}

#[test]
fn without_one_it_is_an_error_that_says_why() {
    let error = Builder::on(lacking())
        .inference()
        .build(&product())
        .expect_err("there is no product");
    let text = error.to_string();
    assert!(matches!(error, Error::MissingKernels { .. }), "{text}");
    assert!(
        text.contains("core.matmul") && text.contains("it was taken away"),
        "{text}"
    );
}
