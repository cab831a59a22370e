//! The traits of a backend written in Rust; [`export_plugin!`](crate::export_plugin) creates a plugin from it.
//!
//! A panic in any of these functions ends the call with [`STATUS_PANIC`](crate::STATUS_PANIC), and the executable that
//! panicked does nothing more.

use crate::types::{
    STATUS_FAILED, STATUS_INDEX_OUT_OF_RANGE, STATUS_INVALID_PLAN, STATUS_OUT_OF_BOUNDS, STATUS_UNSUPPORTED,
};
use crate::view::{DType, DispatchView, PlanView};

/// An error of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Code, one of `STATUS_...`.
    pub code: u32,
    /// Error message.
    pub message: String,
    /// Numbers whose meaning depends on the code.
    pub detail: [u64; 3],
}

/// Dispatch index that no plan contains, for failures without a dispatch.
const NO_DISPATCH: u64 = u64::MAX;

impl Failure {
    /// Creates a failure with a code that belongs to no dispatch. [`Failure::unsupported`] and [`Failure::index`] name
    /// one.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        let names_dispatch = matches!(code, STATUS_UNSUPPORTED | STATUS_INDEX_OUT_OF_RANGE);
        Failure {
            code,
            message: message.into(),
            detail: [if names_dispatch { NO_DISPATCH } else { 0 }, 0, 0],
        }
    }

    /// Creates the failure of a dispatch without a kernel, with the reason.
    pub fn unsupported(dispatch: usize, reason: impl Into<String>) -> Self {
        Failure {
            detail: [dispatch as u64, 0, 0],
            ..Failure::new(STATUS_UNSUPPORTED, reason)
        }
    }

    /// Creates the failure of an inconsistent plan.
    pub fn invalid_plan(message: impl Into<String>) -> Self {
        Failure::new(STATUS_INVALID_PLAN, message)
    }

    /// Creates a failure without a specific code.
    pub fn failed(message: impl Into<String>) -> Self {
        Failure::new(STATUS_FAILED, message)
    }

    /// Creates the failure of a read or write outside of a buffer.
    pub fn out_of_bounds(buffer: u32, offset: u64, len: usize) -> Self {
        let message = format!("{len} bytes at {offset} are outside of buffer {buffer}");
        Failure::new(STATUS_OUT_OF_BOUNDS, message)
    }

    /// Creates the failure of a dispatch that found an index outside of a table with this number of
    /// rows.
    pub fn index(dispatch: usize, index: u32, rows: u64) -> Self {
        Failure {
            detail: [dispatch as u64, index.into(), rows],
            ..Failure::new(STATUS_INDEX_OUT_OF_RANGE, "an index is out of range")
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// A device and its capabilities; see [`DeviceInfo`](crate::DeviceInfo).
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDescription {
    /// Name for users, at most 127 bytes.
    pub name: String,
    /// Class of the device, one of `DEVICE_...`.
    pub kind: u32,
    /// Element types of buffers.
    pub dtypes: Vec<DType>,
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// True if host and device share memory.
    pub unified_memory: bool,
    /// Fixed cost of a dispatch in nanoseconds.
    pub launch_nanos: u64,
    /// Memory bandwidth in bytes per second.
    pub bytes_per_second: f64,
    /// FLOP/s of a large matmul in `f32`.
    pub flops_per_second: f64,
    /// Reason why the device cannot be used, if it cannot.
    pub rejected: Option<String>,
    /// Identifier of the kernels' version, at most 31 bytes.
    pub kernels: String,
}

/// Backend of a plugin: a family of devices. Settings are passed as lines `key = value`.
pub trait Backend: Send + Sync + 'static {
    /// Type of its devices.
    type Device: Device;

    /// Returns all devices.
    ///
    /// # Errors
    /// Invalid settings; a search that fails.
    fn devices(&self, settings: &str) -> Result<Vec<DeviceDescription>, Failure>;

    /// Opens the device with this index.
    ///
    /// # Errors
    /// The device does not exist or fails to open.
    fn open(&self, index: u32, settings: &str) -> Result<Self::Device, Failure>;
}

/// An open device.
pub trait Device: Send + Sync + 'static {
    /// Type of its executables.
    type Executable: Executable;

    /// Checks that there is a kernel for a call.
    ///
    /// # Errors
    /// The reason why there is none.
    fn supports(&self, call: &DispatchView) -> Result<(), String>;

    /// Compiles a plan: prepares its kernels and allocates its buffers.
    ///
    /// # Errors
    /// Missing kernels; not enough memory.
    fn compile(&self, plan: PlanView) -> Result<Self::Executable, Failure>;
}

/// A compiled plan with its memory.
pub trait Executable: Send + 'static {
    /// Writes bytes of a buffer.
    ///
    /// # Errors
    /// Out of bounds; a lost device.
    fn write(&mut self, buffer: u32, offset: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// Reads bytes of a buffer after all steps.
    ///
    /// # Errors
    /// Out of bounds; a lost device; the error of a step.
    fn read(&mut self, buffer: u32, offset: u64, bytes: &mut [u8]) -> Result<(), Failure>;

    /// Sets scalars, runs segments, and returns when they are complete. A step with a fault changes no parameter and no
    /// state.
    ///
    /// # Errors
    /// The errors of the step.
    fn run(&mut self, segments: &[u32], scalars: &[(u32, [u8; 4])]) -> Result<(), Failure>;
}
