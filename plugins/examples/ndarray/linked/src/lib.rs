//! The ndarray backend, linked into the program: it implements the traits of the core with the same engine.
//!
//! ```no_run
//! meganeura::link_plugins!(meganeura_ndarray).expect("it is linked");
//! ```

use std::sync::Arc;
use std::time::Duration;

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::backend::{
    Backend, BackendInfo, Capabilities, CostModel, Device, DeviceInfo, DeviceKind, Executable, KernelDesc, StepArgs,
    StepStats, Support, Ticket,
};
use meganeura_core::config::Config;
use meganeura_core::error::MissingKernel;
use meganeura_core::plan::{BufferRef, ExecutionPlan, Operand};
use meganeura_core::shape::TensorType;
use meganeura_core::{DType, Error, Result};
use meganeura_plugin_abi as abi;
use meganeura_plugin_abi::author::Failure;
use meganeura_plugin_abi::view::{self, BufferView, DispatchView, OperandView, PlanView, SegmentView, Value};
use ndarray_engine::Engine;

const NAME: &str = "ndarray";

meganeura_core::register_plugin!(meganeura_core::registry::PluginManifest {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    backends: &[NAME],
    ops: &[],
    rule_sets: &[],
});
meganeura_core::register_backend!(|| Arc::new(NdArray));

/// The backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct NdArray;

struct Processor(Capabilities);

struct Run {
    engine: Engine,
    labels: Vec<String>,
    segments: Vec<u32>,
    scalars: Vec<(u32, [u8; 4])>,
}

impl Backend for NdArray {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            origin: format!("crate {}", env!("CARGO_PKG_NAME")),
        }
    }

    fn devices(&self, _: &Config) -> Result<Vec<DeviceInfo>> {
        Ok(vec![DeviceInfo::new(0, "ndarray on one thread", DeviceKind::Cpu)])
    }

    fn open(&self, index: usize, _: &Config) -> Result<Arc<dyn Device>> {
        if index != 0 {
            return Err(Error::backend(
                NAME,
                format!("there is one device, so no index {index}"),
            ));
        }
        Ok(Arc::new(Processor(Capabilities {
            name: format!("{NAME}:0"),
            dtypes: DType::ALL.to_vec(),
            max_buffer_bytes: None,
            memory_bytes: None,
            unified_memory: true,
            cost: CostModel {
                launch: Duration::from_nanos(500),
                bytes_per_second: 5e9,
                flops_per_second: 20e9,
                half_flops_per_second: 20e9,
                free_views: false,
            },
        })))
    }
}

impl Device for Processor {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let operands = |types: &[TensorType]| types.iter().map(|ty| operand(abi::NONE, ty)).collect();
        let call = attributes(kernel.attrs).map(|attributes| DispatchView {
            kernel: kernel.name.to_owned(),
            version: kernel.version,
            label: String::new(),
            level: 0,
            inputs: operands(kernel.inputs),
            outputs: operands(kernel.outputs),
            attributes,
            index: None,
        });
        match call.and_then(|call| ndarray_engine::supports(&call)) {
            Ok(()) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        let engine = Engine::new(view_of(plan).map_err(Error::plan)?).map_err(|failure| {
            let dispatch = &plan.dispatches[failure.detail[0] as usize];
            Error::MissingKernels {
                device: self.0.name.clone(),
                missing: vec![MissingKernel {
                    kernel: dispatch.kernel.name.clone(),
                    label: dispatch.label.clone(),
                    reason: failure.message,
                }],
            }
        })?;
        Ok(Box::new(Run {
            engine,
            labels: plan.dispatches.iter().map(|d| d.label.clone()).collect(),
            segments: Vec::new(),
            scalars: Vec::new(),
        }))
    }
}

impl Run {
    fn error(&self, failure: Failure) -> Error {
        match failure.code {
            abi::STATUS_INDEX_OUT_OF_RANGE => Error::IndexOutOfRange {
                label: self.labels[failure.detail[0] as usize].clone(),
                index: failure.detail[1] as u32,
                rows: failure.detail[2] as usize,
            },
            _ => Error::backend(NAME, failure.message),
        }
    }
}

impl Executable for Run {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.engine.write(buffer.0, offset, bytes).map_err(|f| self.error(f))
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.engine.read(buffer.0, offset, bytes).map_err(|f| self.error(f))
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        self.segments.clear();
        self.segments.extend(args.segments.iter().map(|&s| s as u32));
        self.scalars.clear();
        self.scalars.extend(args.scalars.iter().map(|(b, bytes)| (b.0, *bytes)));
        let outcome = self.engine.run(&self.segments, &self.scalars);
        outcome.map_err(|f| self.error(f))?;
        Ok(Ticket(0))
    }

    fn wait(&mut self, _: Ticket) -> Result<StepStats> {
        // Steps are complete when `run` returns.
        Ok(StepStats::default())
    }
}

fn dtype(dtype: DType) -> view::DType {
    match dtype {
        DType::F16 => view::DType::F16,
        DType::BF16 => view::DType::BF16,
        DType::U32 => view::DType::U32,
        DType::I32 => view::DType::I32,
        _ => view::DType::F32,
    }
}

fn operand(buffer: u32, ty: &TensorType) -> OperandView {
    OperandView {
        buffer,
        dtype: dtype(ty.dtype),
        dims: ty.shape.dims().to_vec(),
    }
}

fn attributes(attrs: &Attrs) -> std::result::Result<Vec<(String, Value)>, String> {
    let value = |(name, attr): (&str, &Attr)| {
        let value = match attr {
            Attr::Int(v) => Value::Int(*v),
            Attr::Ints(v) => Value::Ints(v.clone()),
            Attr::Float(v) => Value::Float(*v),
            Attr::Bool(v) => Value::Bool(*v),
            Attr::Str(v) => Value::Text(v.clone()),
            Attr::DType(v) => Value::DType(dtype(*v)),
            Attr::Program(_) => return Err("ndarray runs no programs".to_owned()),
        };
        Ok((name.to_owned(), value))
    };
    attrs.iter().map(value).collect()
}

/// Converts a plan of the core to the form that the engine runs.
fn view_of(plan: &ExecutionPlan) -> std::result::Result<PlanView, String> {
    let mut buffers: Vec<BufferView> = (plan.buffers.iter().zip(&plan.buffer_types))
        .map(|(&bytes, ty)| BufferView {
            bytes,
            offset: 0,
            dtype: dtype(ty.dtype),
            dims: ty.shape.dims().to_vec(),
            flags: 0,
            name: String::new(),
            fill: 0.0,
            data: Vec::new(),
        })
        .collect();
    for (buffer, data) in plan.constants() {
        buffers[buffer.index()].data = data;
    }
    for state in &plan.state_buffers {
        let buffer = &mut buffers[state.buffer.index()];
        (buffer.flags, buffer.fill) = (abi::BUFFER_STATE, state.fill);
    }
    let reads = |i: usize| plan.dispatches[i].index_bound().is_some();
    for buffer in plan.exposed_to_faults(&reads) {
        buffers[buffer.index()].flags |= abi::BUFFER_EXPOSED;
    }
    let operands = |list: &[Operand]| list.iter().map(|o| operand(o.buffer.0, &o.ty)).collect();
    let dispatches = plan.dispatches.iter().map(|d| {
        Ok(DispatchView {
            kernel: d.kernel.name.clone(),
            version: d.kernel.version,
            label: d.label.clone(),
            level: d.level,
            inputs: operands(&d.inputs),
            outputs: operands(&d.outputs),
            attributes: attributes(&d.attrs)?,
            index: d.index_operand().map(|(operand, rows)| (operand, rows as u64)),
        })
    });
    let segments = plan.segments.iter().map(|s| SegmentView {
        name: s.name.clone(),
        dispatches: s.range(),
        skip_if: s.skip_if.map(|b| b.0),
    });
    Ok(PlanView {
        arena_bytes: 0,
        mixed_precision: false,
        buffers,
        dispatches: dispatches.collect::<std::result::Result<_, String>>()?,
        segments: segments.collect(),
    })
}
