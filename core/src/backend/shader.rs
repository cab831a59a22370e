//! Third-party WGSL kernels for operators, for backends whose kernels are WGSL.

use std::sync::{Arc, PoisonError, RwLock};

use super::KernelDesc;
use crate::error::{Error, Result};
use crate::ops::OpRef;

/// Names of a [`Shader`]'s buffers, in the order of [`Shader::buffers`].
pub const SHADER_BUFFERS: [&str; 15] = [
    "buffer_a", "buffer_b", "buffer_c", "buffer_d", "buffer_e", "buffer_f", "buffer_g", "buffer_h", "buffer_i",
    "buffer_j", "buffer_k", "buffer_l", "buffer_m", "buffer_n", "buffer_o",
];

/// Name of the variable with which a [`Shader`] reports faults:
/// `var<storage, read_write> fault: array<atomic<u32>>`. On a fault, the shader writes 1 to the
/// first word and a fault code to word `1 + 2 * reporter`.
pub const SHADER_FAULT: &str = "fault";
/// Name of the variable `var<uniform> reporter: u32`: the shader's index among those that report.
pub const SHADER_REPORTER: &str = "reporter";
/// Fault code of a shader that had to leave a loop early, so that its results are incomplete.
pub const ENDED_LOOP: u32 = 2;

/// A tensor of the call that a shader reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShaderBuffer {
    /// An operand; read-only.
    Operand(usize),
    /// A result.
    Result(usize),
}

/// The kernel of one call: a WGSL module with the entry point `main` and shapes as constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shader {
    /// The WGSL module. It declares the buffers that it uses as variables without a binding, named
    /// as in [`SHADER_BUFFERS`], as arrays of the elements in row-major order. It must not access
    /// memory outside of them, whatever follows them in memory.
    pub source: String,
    /// The tensors of the call that the buffers contain, in order.
    pub buffers: Vec<ShaderBuffer>,
    /// `true` if the shader may report faults: it then has the variables [`SHADER_FAULT`] and
    /// [`SHADER_REPORTER`].
    pub reports: bool,
    /// Workgroups along each axis, 1 to 65535.
    pub groups: [u32; 3],
}

/// Properties of the device for which a shader is generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShaderDevice {
    /// Maximum number of iterations, summed over all loops of threads that run in lockstep. Beyond it, the device
    /// silently leaves every loop, as Mesa's software driver does. `None` if it has no such limit.
    pub most_rounds: Option<u32>,
}

/// A third-party kernel in WGSL for one operator. A device tests it against the operator's
/// definition before using it.
pub trait ShaderKernel: Send + Sync {
    /// Returns the operator that the kernel computes.
    fn op(&self) -> OpRef;
    /// Returns the origin of the kernel (crate or plugin), for messages.
    fn origin(&self) -> String;
    /// Returns a text that changes with the kernel's source, for the keys of cached plans.
    fn content(&self) -> String;
    /// Generates the kernel of a call whose results are not empty.
    ///
    /// # Errors
    /// The reason why there is no kernel for these shapes and types.
    fn shader(&self, kernel: &KernelDesc, device: &ShaderDevice) -> std::result::Result<Shader, String>;
}

static KERNELS: RwLock<Vec<Arc<dyn ShaderKernel>>> = RwLock::new(Vec::new());

/// Registers kernels, all or none. Call it before their operators are registered, so that no device
/// is queried in between.
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

/// Returns all registered kernels, by the names of their operators.
pub fn shader_kernels() -> Vec<Arc<dyn ShaderKernel>> {
    KERNELS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the kernel for an operator.
pub fn shader_kernel(op: &str) -> Option<Arc<dyn ShaderKernel>> {
    let known = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|k| k.op().name() == op).cloned()
}
