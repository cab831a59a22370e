//! Kernels in WGSL that others bring for their operators, for backends whose kernels are WGSL.

use std::sync::{Arc, PoisonError, RwLock};

use super::KernelDesc;
use crate::error::{Error, Result};
use crate::ops::OpRef;

/// Names of the buffers of a [`Shader`], in their order.
pub const SHADER_BUFFERS: [&str; 15] = [
    "buffer_a", "buffer_b", "buffer_c", "buffer_d", "buffer_e", "buffer_f", "buffer_g", "buffer_h", "buffer_i",
    "buffer_j", "buffer_k", "buffer_l", "buffer_m", "buffer_n", "buffer_o",
];

/// Name of the variable by which a [`Shader`] that reports does so: `var<storage, read_write> fault: array<atomic<u32>>`. Where
/// something is wrong, it writes 1 to the first word, and what is wrong to word `1 + 2 * reporter`.
pub const SHADER_FAULT: &str = "fault";
/// Name of its variable `var<uniform> reporter: u32`, its number among those that report.
pub const SHADER_REPORTER: &str = "reporter";
/// What a shader reports that had to end a loop, so that its results are not complete.
pub const ENDED_LOOP: u32 = 2;

/// A tensor of the call that a shader reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShaderBuffer {
    /// An operand, which is only read.
    Operand(usize),
    /// A result.
    Result(usize),
}

/// The kernel of one call: a WGSL module with the entry point `main` and shapes as constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shader {
    /// The module. It declares the buffers that it uses as variables without a binding, with the names of
    /// [`SHADER_BUFFERS`], as arrays of the elements in row-major order, and reaches no byte outside of them, whatever is
    /// behind them.
    pub source: String,
    /// What these are.
    pub buffers: Vec<ShaderBuffer>,
    /// Whether it may report: it then has the variables [`SHADER_FAULT`] and [`SHADER_REPORTER`].
    pub reports: bool,
    /// Workgroups along each axis, 1 to 65535.
    pub groups: [u32; 3],
}

/// What a shader has to know of the device for which it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShaderDevice {
    /// Rounds, of all loops of the threads that it runs in step, after which it leaves every loop without a word, as Mesa's
    /// software driver does. `None`: it does not.
    pub most_rounds: Option<u32>,
}

/// A kernel in WGSL for one operator. It comes from elsewhere, so a device tries it against the operator's definition
/// before it uses it.
pub trait ShaderKernel: Send + Sync {
    /// The operator.
    fn op(&self) -> OpRef;
    /// Who brings it, for messages.
    fn origin(&self) -> String;
    /// What changes with its text, for the keys of cached plans.
    fn content(&self) -> String;
    /// The kernel of a call that has results with elements.
    ///
    /// # Errors
    /// The reason why there is none for these shapes and types.
    fn shader(&self, kernel: &KernelDesc, device: &ShaderDevice) -> std::result::Result<Shader, String>;
}

static KERNELS: RwLock<Vec<Arc<dyn ShaderKernel>>> = RwLock::new(Vec::new());

/// Registers kernels, all or none. Do it before their operators are registered, so that no device is asked in between.
///
/// # Errors
/// [`Error::Plugin`] when an operator has one already.
pub fn register_shader_kernels(kernels: &[Arc<dyn ShaderKernel>]) -> Result<()> {
    let mut known = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    for kernel in kernels {
        if let Some(other) = known.iter().find(|k| k.op() == kernel.op()) {
            return Err(Error::Plugin {
                plugin: kernel.origin(),
                message: format!("'{}' has a kernel already, from {}", kernel.op().name(), other.origin()),
                remedy: "load only one of them".into(),
            });
        }
    }
    known.extend(kernels.iter().cloned());
    known.sort_by_key(|k| k.op().get().name());
    Ok(())
}

/// Removes kernels whose operators could not be registered.
pub fn remove_shader_kernels(ops: &[OpRef]) {
    let mut known = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    known.retain(|k| !ops.contains(&k.op()));
}

/// All registered kernels, by the names of their operators.
pub fn shader_kernels() -> Vec<Arc<dyn ShaderKernel>> {
    KERNELS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The kernel for an operator.
pub fn shader_kernel(op: &str) -> Option<Arc<dyn ShaderKernel>> {
    let known = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|k| k.op().name() == op).cloned()
}
