use std::sync::Arc;
use std::time::Duration;

use meganeura::backend::{
    Backend, BackendInfo, Capabilities, CostModel, Device, DeviceInfo, DeviceKind, Executable, KernelDesc, StepArgs,
    StepStats, Support, Ticket,
};
use meganeura::config::Config;
use meganeura::plan::{BufferRef, ExecutionPlan, Operand};
use meganeura::{DType, Error, Result};

pub struct Mine;

struct Processor(Capabilities);

struct Run {
    plan: ExecutionPlan,
    buffers: Vec<Vec<u8>>,
}

// Names the backend, lists its devices, and opens them.
impl Backend for Mine {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "mine".into(),
            version: "0.1.0".into(),
            origin: "crate my-backend".into(),
        }
    }

    fn devices(&self, _: &Config) -> Result<Vec<DeviceInfo>> {
        Ok(vec![DeviceInfo::new(0, "two loops", DeviceKind::Software)])
    }

    fn open(&self, index: usize, _: &Config) -> Result<Arc<dyn Device>> {
        if index != 0 {
            return Err(Error::backend("mine", format!("there is no device {index}")));
        }
        Ok(Arc::new(Processor(Capabilities {
            name: "mine:0".into(),
            dtypes: vec![DType::F32, DType::U32, DType::I32],
            max_buffer_bytes: None,
            memory_bytes: None,
            unified_memory: true,
            // Rates for the cost model of rewriting; `meganeura doctor --calibrate` measures them later.
            cost: CostModel {
                launch: Duration::from_nanos(200),
                bytes_per_second: 1e9,
                flops_per_second: 1e9,
                half_flops_per_second: 1e9,
                free_views: false,
            },
        })))
    }
}

// Checks whether there is a kernel. Users see the reason of a refusal.
fn check(kernel: &str, operands: &[&meganeura::TensorType]) -> std::result::Result<(), String> {
    if !["core.add", "core.mul"].contains(&kernel) {
        return Err(format!("there is no loop for {kernel}"));
    }
    let first = operands[0];
    if first.dtype != DType::F32 || operands.iter().any(|o| *o != first) {
        return Err("loops go over f32 of equal shapes".into());
    }
    Ok(())
}

impl Device for Processor {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let operands: Vec<_> = kernel.inputs.iter().chain(kernel.outputs).collect();
        match check(kernel.name, &operands) {
            Ok(()) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        // Plans may come from files: check the whole plan.
        plan.verify()?;
        for d in &plan.dispatches {
            let operands: Vec<_> = d.inputs.iter().chain(&d.outputs).map(|o| &o.ty).collect();
            check(&d.kernel.name, &operands).map_err(|e| Error::plan(format!("{}: {e}", d.label)))?;
        }
        let buffers = plan.buffers.iter().map(|&bytes| vec![0; bytes]).collect();
        let mut run = Run {
            plan: plan.clone(),
            buffers,
        };
        for (buffer, bytes) in plan.constants() {
            run.write(buffer, 0, &bytes)?;
        }
        for state in &plan.state_buffers {
            let count = plan.buffers[state.buffer.index()] / 4;
            run.write(state.buffer, 0, &state.fill.to_le_bytes().repeat(count))?;
        }
        Ok(Box::new(run))
    }
}

impl Run {
    fn range(&mut self, buffer: BufferRef, offset: u64, len: usize) -> Result<&mut [u8]> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let found = self.buffers.get_mut(buffer.index());
        let found = found.and_then(|bytes| bytes.get_mut(range?));
        found.ok_or_else(|| Error::backend("mine", format!("{len} bytes at {offset} are outside of {buffer}")))
    }

    fn dispatch(&mut self, index: usize) {
        let d = &self.plan.dispatches[index];
        let load = |o: &Operand| -> Vec<f32> {
            let words = self.buffers[o.buffer.index()].chunks_exact(4).take(o.ty.numel());
            words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
        };
        let (a, b) = (load(&d.inputs[0]), load(&d.inputs[1]));
        let adds = d.kernel.name == "core.add";
        let result = a.iter().zip(&b).map(|(a, b)| if adds { a + b } else { a * b });
        let bytes: Vec<u8> = result.flat_map(f32::to_le_bytes).collect();
        // The result may share its buffer with an operand, which has been read.
        let target = d.outputs[0].buffer.index();
        self.buffers[target][..bytes.len()].copy_from_slice(&bytes);
    }
}

impl Executable for Run {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.range(buffer, offset, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(self.range(buffer, offset, bytes.len())?);
        Ok(())
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        for (buffer, bytes) in args.scalars {
            let len = self.plan.buffers[buffer.index()].min(4);
            self.write(*buffer, 0, &bytes[..len])?;
        }
        for &segment in args.segments {
            let segment = self.plan.segments[segment].clone();
            // If this number is not 0, the step skips the segment.
            if segment.skip_if.is_some_and(|b| self.buffers[b.index()] != [0; 4]) {
                continue;
            }
            segment.range().for_each(|i| self.dispatch(i));
        }
        Ok(Ticket(0))
    }

    fn wait(&mut self, _: Ticket) -> Result<StepStats> {
        Ok(StepStats::default()) // Steps are over when `run` returns.
    }
}

// Registers the backend under its name.
meganeura::register_plugin!(meganeura::registry::PluginManifest {
    name: "my-backend",
    version: "0.1.0",
    backends: &["mine"],
    ops: &[],
    rule_sets: &[],
});
meganeura::register_backend!(|| Arc::new(Mine));
