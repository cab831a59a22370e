//! An open device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blade_graphics as bg;
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::{Capabilities, CostModel, Device, Executable, KernelDesc, Support};
use meganeura_core::{ExecutionPlan, Result, TensorType};

use crate::executable::BladeExecutable;
use crate::gpu::Gpu;
use crate::kernels;
use crate::pipeline::Pipelines;
use crate::probe::{self, Limits, Probed};

/// A kernel that was asked about: name, attributes, types of operands and results.
type Asked = (String, Attrs, Vec<TensorType>, Vec<TensorType>);

/// A GPU, or software that acts as one.
pub struct BladeDevice {
    gpu: Arc<Gpu>,
    limits: Limits,
    capabilities: Capabilities,
    pipelines: Pipelines,
    /// Answers that were given, because the same calls are asked about again and again.
    answers: Mutex<HashMap<Asked, Support>>,
}

impl BladeDevice {
    /// A device on a context of the host application.
    pub fn from_context(context: Arc<bg::Context>) -> Self {
        let name = context.device_information().device_name.clone();
        let probed = probe::probe().into_iter().find(|p| p.name == name);
        Self::named(context, name, probed)
    }

    pub(crate) fn named(context: Arc<bg::Context>, name: String, probed: Option<Probed>) -> Self {
        let software = context.device_information().is_software_emulated;
        let limits = probed.map(|p| p.limits).unwrap_or_default();
        BladeDevice {
            capabilities: Capabilities {
                name,
                dtypes: kernels::DTYPES.to_vec(),
                max_buffer_bytes: Some(limits.binding_bytes),
                memory_bytes: limits.memory_bytes,
                unified_memory: limits.discrete == Some(false),
                cost: cost_model(software, limits.discrete),
            },
            gpu: Arc::new(Gpu::new(context)),
            limits,
            pipelines: Pipelines::default(),
            answers: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.capabilities.name
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }
}

/// Rough rates of a class of devices.
fn cost_model(software: bool, discrete: Option<bool>) -> CostModel {
    let (launch_ns, bytes, flops) = match (software, discrete) {
        (true, _) => (10_000, 8e9, 10e9),
        (_, Some(true)) => (2_500, 1e12, 20e12),
        _ => (4_000, 100e9, 3e12),
    };
    CostModel {
        launch: Duration::from_nanos(launch_ns),
        bytes_per_second: bytes,
        flops_per_second: flops,
        // Half precision is computed in single precision.
        half_flops_per_second: flops,
        free_views: false,
    }
}

impl Device for BladeDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let asked = (
            kernel.name.to_owned(),
            kernel.attrs.clone(),
            kernel.inputs.to_vec(),
            kernel.outputs.to_vec(),
        );
        // A panic cannot leave the map half changed.
        let lock = || self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = lock().get(&asked) {
            return answer.clone();
        }
        let answer = match kernels::supports(kernel) {
            Ok(()) => Support::Yes,
            Err(reason) => Support::No(reason),
        };
        lock().insert(asked, answer.clone());
        answer
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        Ok(Box::new(BladeExecutable::new(self, plan)?))
    }
}
