//! The ndarray backend as a plugin in a shared object, for programs that were built without it.

use meganeura_plugin_abi::author::{Backend, Device, DeviceDescription, Executable, Failure};
use meganeura_plugin_abi::view::{DType, DispatchView, PlanView};
use meganeura_plugin_abi::{DEVICE_CPU, export_plugin};
use ndarray_engine::Engine;

struct NdArray;

struct Processor;

struct Run(Engine);

impl Backend for NdArray {
    type Device = Processor;

    fn devices(&self, _: &str) -> Result<Vec<DeviceDescription>, Failure> {
        Ok(vec![DeviceDescription {
            name: "ndarray on one thread".into(),
            kind: DEVICE_CPU,
            dtypes: vec![DType::F32, DType::F16, DType::BF16, DType::U32, DType::I32],
            memory_bytes: None,
            unified_memory: true,
            launch_nanos: 500,
            bytes_per_second: 5e9,
            flops_per_second: 20e9,
            rejected: None,
            kernels: "1".into(),
        }])
    }

    fn open(&self, index: u32, _: &str) -> Result<Processor, Failure> {
        match index {
            0 => Ok(Processor),
            _ => Err(Failure::failed(format!("there is one device, so no index {index}"))),
        }
    }
}

impl Device for Processor {
    type Executable = Run;

    fn supports(&self, call: &DispatchView) -> Result<(), String> {
        ndarray_engine::supports(call)
    }

    fn compile(&self, plan: PlanView) -> Result<Run, Failure> {
        Engine::new(plan).map(Run)
    }
}

impl Executable for Run {
    fn write(&mut self, buffer: u32, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: u32, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        self.0.read(buffer, offset, bytes)
    }

    fn run(&mut self, segments: &[u32], scalars: &[(u32, [u8; 4])]) -> Result<(), Failure> {
        self.0.run(segments, scalars)
    }
}

export_plugin!(name: "ndarray-loaded", backend: NdArray, NdArray);
