//! A slow backend that is correct by construction: it evaluates plans dispatch by dispatch with the
//! operators' own definitions. The suite is tested with it, and it is an example of a complete
//! backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use half::f16;
use meganeura_core::DType;
use meganeura_core::backend::{
    Backend, BackendInfo, Capabilities, CostModel, Device, DeviceInfo, DeviceKind, Executable, KernelDesc, StepArgs,
    StepStats, Support, Ticket,
};
use meganeura_core::config::Config;
use meganeura_core::error::{Error, MissingKernel, Result};
use meganeura_core::ops::{Call, OpRef, Semantics};
use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, Operand};
use meganeura_core::precision::Precision;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{RefTensor, evaluate_call};
use meganeura_core::registry;
use meganeura_core::shape::TensorType;

use crate::storage::{decode, encode};

/// Function that receives every dispatch with its outcome before it is stored, and may change it,
/// to inject faults. Results that it omits are not stored.
pub type Hook = Arc<dyn Fn(&Dispatch, Result<Vec<RefTensor>>) -> Result<Vec<RefTensor>> + Send + Sync>;

/// Computation of matmuls and convolutions ("products") in plans of mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Products {
    /// Operands are rounded to `f16`.
    Rounded,
    /// Results are changed by the maximum effect of rounding: `2^-10 sum |a| |b|`, with random signs from this seed.
    Perturbed(u64),
}

/// Magnitude below which the absolute rounding error is constant.
const MIN_NORMAL: f64 = 1.0 / 16_384.0;

/// Operators without arithmetic that have kernels for 16-bit floats: casts, and writes to a state.
const HALF_STORAGE: [&str; 2] = ["core.cast", "core.assign"];

/// The operators that [`Products`] affects.
const PRODUCTS: [&str; 4] = [
    "core.matmul",
    "core.conv2d",
    "core.conv2d_input_grad",
    "core.conv2d_weight_grad",
];

/// Reference backend; see the documentation of the module.
#[derive(Clone, Default)]
pub struct ReferenceBackend {
    primitives_only: bool,
    products: Option<Products>,
    no_half_arithmetic: bool,
    hook: Option<Hook>,
}

impl ReferenceBackend {
    /// Creates a backend that has a kernel for every registered operator.
    pub fn new() -> Self {
        ReferenceBackend::default()
    }

    /// Removes kernels of operators that have a decomposition.
    #[must_use]
    pub fn primitives_only(mut self) -> Self {
        self.primitives_only = true;
        self
    }

    /// Rounds the operands of products to `f16` in mixed precision, as cooperative matrices do: a
    /// value beyond 65,504 becomes infinite, and one below 2^-25 zero. Products are not fused with
    /// other operators.
    #[must_use]
    pub fn rounding_products(self) -> Self {
        ReferenceBackend {
            products: Some(Products::Rounded),
            ..self.primitives_only()
        }
    }

    /// Changes the result of every product in mixed precision by the maximum effect of rounding its
    /// operands to `f16`: each operand changes by up to 2^-11 of its value, so a sum by up to
    /// `2^-10 sum |a| |b|`. Signs are random.
    #[must_use]
    pub fn perturbing_products(self, seed: u64) -> Self {
        ReferenceBackend {
            products: Some(Products::Perturbed(seed)),
            ..self.primitives_only()
        }
    }

    /// Removes kernels on 16-bit floats, except conversions and copies into states.
    #[must_use]
    pub fn without_half_arithmetic(mut self) -> Self {
        self.no_half_arithmetic = true;
        self
    }

    /// Sets a hook that is called after each dispatch.
    #[must_use]
    pub fn with_hook(mut self, hook: Hook) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Returns its only device.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::new(ReferenceDevice {
            backend: self.clone(),
            capabilities: Capabilities {
                name: "reference:0".into(),
                dtypes: DType::ALL.to_vec(),
                max_buffer_bytes: None,
                memory_bytes: None,
                unified_memory: true,
                cost: CostModel {
                    launch: Duration::from_micros(1),
                    bytes_per_second: 1e9,
                    flops_per_second: 1e8,
                    half_flops_per_second: 1e8,
                    free_views: false,
                },
            },
        })
    }
}

impl fmt::Debug for ReferenceBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceBackend")
            .field("primitives_only", &self.primitives_only)
            .field("products", &self.products)
            .field("no_half_arithmetic", &self.no_half_arithmetic)
            .field("hooked", &self.hook.is_some())
            .finish()
    }
}

impl Backend for ReferenceBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "reference".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            origin: env!("CARGO_PKG_NAME").into(),
        }
    }

    fn devices(&self, _: &Config) -> Result<Vec<DeviceInfo>> {
        // Not a processor, so that the automatic choice does not select it.
        Ok(vec![DeviceInfo::new(0, "reference loops", DeviceKind::Software)])
    }

    fn open(&self, index: usize, _: &Config) -> Result<Arc<dyn Device>> {
        match index {
            0 => Ok(self.device()),
            _ => Err(failed(format!("there is no device {index}"))),
        }
    }
}

fn failed(message: String) -> Error {
    Error::backend("reference", message)
}

struct ReferenceDevice {
    backend: ReferenceBackend,
    capabilities: Capabilities,
}

impl Device for ReferenceDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let Some(op) = registry::op(kernel.name).filter(|op| op.version() == kernel.version) else {
            return Support::No("there is no such operator".into());
        };
        if self.backend.primitives_only && !matches!(op.semantics(), Semantics::Primitive(_)) {
            return Support::No("this device has primitives only".into());
        }
        let is_half = |t: &TensorType| matches!(t.dtype, DType::F16 | DType::BF16);
        let half = kernel.inputs.iter().chain(kernel.outputs).any(is_half);
        if self.backend.no_half_arithmetic && half && !HALF_STORAGE.contains(&kernel.name) {
            return Support::No("this device has no half-precision arithmetic".into());
        }
        Support::Yes
    }

    fn has_mixed_precision(&self) -> bool {
        self.backend.products == Some(Products::Rounded)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let rounds = self.has_mixed_precision() && plan.precision == Precision::Mixed;
        for dispatch in &mut plan.dispatches {
            dispatch.use_coop = rounds && PRODUCTS.contains(&&*dispatch.kernel.name);
        }
        Ok(())
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        let mut ops = Vec::with_capacity(plan.dispatches.len());
        let mut missing = Vec::new();
        for d in &plan.dispatches {
            match registry::op(&d.kernel.name) {
                Some(op) => ops.push(op),
                None => missing.push(MissingKernel {
                    kernel: d.kernel.name.clone(),
                    label: d.label.clone(),
                    reason: "there is no such operator".into(),
                }),
            }
        }
        if !missing.is_empty() {
            let device = self.capabilities.name.clone();
            return Err(Error::MissingKernels { device, missing });
        }
        let mut executable = ReferenceExecutable {
            buffers: plan.buffers.iter().map(|&bytes| vec![0; bytes]).collect(),
            plan: plan.clone(),
            ops,
            hook: self.backend.hook.clone(),
            products: self.backend.products.filter(|_| plan.precision == Precision::Mixed),
            submitted: 0,
        };
        for (buffer, bytes) in plan.constants() {
            executable.write(buffer, 0, &bytes)?;
        }
        for state in &plan.state_buffers {
            let count = plan.buffer_types[state.buffer.index()].numel();
            executable.write(state.buffer, 0, &state.fill.to_le_bytes().repeat(count))?;
        }
        Ok(Box::new(executable))
    }
}

struct ReferenceExecutable {
    plan: ExecutionPlan,
    /// Operator of each dispatch.
    ops: Vec<OpRef>,
    buffers: Vec<Vec<u8>>,
    hook: Option<Hook>,
    products: Option<Products>,
    submitted: u64,
}

impl ReferenceExecutable {
    fn range(&mut self, buffer: BufferRef, offset: u64, len: usize) -> Result<&mut [u8]> {
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|s| s.checked_add(len));
        let found = self.buffers.get_mut(buffer.index());
        match (found, start, end) {
            (Some(bytes), Some(start), Some(end)) if end <= bytes.len() => Ok(&mut bytes[start..end]),
            _ => Err(failed(format!("{len} bytes at {offset} of {buffer} are out of bounds"))),
        }
    }

    fn dispatch(&mut self, index: usize) -> Result<()> {
        let dispatch = &self.plan.dispatches[index];
        let load = |o: &Operand| {
            let bytes = &self.buffers[o.buffer.index()][..o.ty.bytes()];
            Ok(RefTensor {
                ty: o.ty.clone(),
                data: decode(o.ty.dtype, bytes)?,
            })
        };
        let mut inputs = dispatch.inputs.iter().map(load).collect::<Result<Vec<_>>>()?;
        let products = self.products.filter(|_| PRODUCTS.contains(&&*dispatch.kernel.name));
        if products == Some(Products::Rounded) {
            let values = inputs.iter_mut().flat_map(|tensor| &mut tensor.data);
            values.for_each(|v| *v = f64::from(f16::from_f64(*v)));
        }
        let types: Vec<TensorType> = dispatch.outputs.iter().map(|o| o.ty.clone()).collect();
        let evaluate = |inputs: &[RefTensor]| {
            let inputs: Vec<&RefTensor> = inputs.iter().collect();
            check_indices(self.ops[index], dispatch, &inputs)
                .and_then(|()| evaluate_call(self.ops[index], &dispatch.attrs, &inputs, &types))
        };
        let mut results = evaluate(&inputs);
        if let (Some(Products::Perturbed(seed)), Ok(results)) = (products, &mut results) {
            let values = inputs.iter_mut().flat_map(|tensor| &mut tensor.data);
            values.filter(|v| **v != 0.0).for_each(|v| *v = v.abs().max(MIN_NORMAL));
            perturb(results, &evaluate(&inputs)?, &mut SplitMix64::new(seed ^ index as u64));
        }
        if let Some(hook) = &self.hook {
            results = hook(dispatch, results);
        }
        for (operand, tensor) in dispatch.outputs.iter().zip(results?) {
            let bytes = encode(operand.ty.dtype, &tensor.data)?;
            self.buffers[operand.buffer.index()][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Runs a segment level by level. Dispatches within a level run in reverse order, so that a plan that wrongly
    /// relies on their order fails.
    fn segment(&mut self, index: usize) -> Result<()> {
        let Some(segment) = self.plan.segments.get(index) else {
            return Err(failed(format!("there is no segment {index}")));
        };
        if segment.skip_if.is_some_and(|b| self.buffers[b.index()] != [0; 4]) {
            return Ok(());
        }
        let range = segment.range();
        let levels: Vec<u32> = self.plan.dispatches[range.clone()].iter().map(|d| d.level).collect();
        let mut start = range.start;
        for level in levels.chunk_by(|a, b| a == b) {
            for i in (start..start + level.len()).rev() {
                self.dispatch(i)?;
            }
            start += level.len();
        }
        Ok(())
    }
}

impl Executable for ReferenceExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.range(buffer, offset, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(self.range(buffer, offset, bytes.len())?);
        Ok(())
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        for &(buffer, bytes) in args.scalars {
            let len = self.plan.buffers.get(buffer.index()).map_or(0, |&b| b.min(bytes.len()));
            self.write(buffer, 0, &bytes[..len])?;
        }
        let persistent: Vec<BufferRef> = self.plan.persistent().collect();
        let before: Vec<Vec<u8>> = persistent.iter().map(|b| self.buffers[b.index()].clone()).collect();
        if let Err(error) = args.segments.iter().try_for_each(|&s| self.segment(s)) {
            // A failed step has no effect.
            for (buffer, bytes) in persistent.iter().zip(before) {
                self.buffers[buffer.index()] = bytes;
            }
            return Err(error);
        }
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        if ticket.0 > self.submitted {
            return Err(failed(format!("{ticket:?} was never submitted")));
        }
        Ok(StepStats::default())
    }
}

/// Adds the maximum effect of rounding to results, with random signs. `sums` are the products of the operands'
/// magnitudes.
fn perturb(results: &mut [RefTensor], sums: &[RefTensor], rng: &mut SplitMix64) {
    let sums = sums.iter().flat_map(|tensor| &tensor.data);
    let results = results.iter_mut().flat_map(|tensor| &mut tensor.data);
    for (result, sum) in results.zip(sums) {
        let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
        *result += sign * sum * 2f64.powi(-10);
    }
}

/// Checks that indices are within their table. The operators' own definitions ignore invalid ones, but a device must
/// report them.
fn check_indices(op: OpRef, dispatch: &Dispatch, inputs: &[&RefTensor]) -> Result<()> {
    let types: Vec<TensorType> = inputs.iter().map(|t| t.ty.clone()).collect();
    let call = Call {
        attrs: &dispatch.attrs,
        inputs: &types,
        outputs: &[],
    };
    let Some((operand, rows)) = op.index_bound(&call) else {
        return Ok(());
    };
    match inputs[operand].data.iter().find(|&&i| i >= rows as f64) {
        Some(&index) => Err(Error::IndexOutOfRange {
            label: dispatch.label.clone(),
            index: index as u32,
            rows,
        }),
        None => Ok(()),
    }
}
