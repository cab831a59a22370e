//! What a backend in Rust implements; [`export_plugin!`](crate::export_plugin) makes a plugin of it.
//!
//! A panic in any of these functions ends the call with [`STATUS_PANIC`](crate::STATUS_PANIC), and the executable that
//! panicked does nothing more.

use crate::types::{
    STATUS_FAILED, STATUS_INDEX_OUT_OF_RANGE, STATUS_INVALID_PLAN, STATUS_OUT_OF_BOUNDS, STATUS_UNSUPPORTED,
};
use crate::view::{DType, DispatchView, PlanView};

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `STATUS_...`.
    pub code: u32,
    /// What is wrong.
    pub message: String,
    /// Numbers that belong to the code.
    pub detail: [u64; 3],
}

/// The number of a dispatch that no plan has.
const NO_DISPATCH: u64 = u64::MAX;

impl Failure {
    /// A failure with a code, of no dispatch in particular; [`Failure::unsupported`] and [`Failure::index`] name one.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        let names_dispatch = matches!(code, STATUS_UNSUPPORTED | STATUS_INDEX_OUT_OF_RANGE);
        Failure {
            code,
            message: message.into(),
            detail: [if names_dispatch { NO_DISPATCH } else { 0 }, 0, 0],
        }
    }

    /// There is no kernel for the dispatch of that number, for this reason.
    pub fn unsupported(dispatch: usize, reason: impl Into<String>) -> Self {
        Failure {
            detail: [dispatch as u64, 0, 0],
            ..Failure::new(STATUS_UNSUPPORTED, reason)
        }
    }

    /// The plan is not consistent.
    pub fn invalid_plan(message: impl Into<String>) -> Self {
        Failure::new(STATUS_INVALID_PLAN, message)
    }

    /// A failure that no code describes.
    pub fn failed(message: impl Into<String>) -> Self {
        Failure::new(STATUS_FAILED, message)
    }

    /// A read or write outside of a buffer.
    pub fn out_of_bounds(buffer: u32, offset: u64, len: usize) -> Self {
        let message = format!("{len} bytes at {offset} are outside of buffer {buffer}");
        Failure::new(STATUS_OUT_OF_BOUNDS, message)
    }

    /// A dispatch met an index outside of a table of so many rows.
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

/// A device and what it can do; see [`DeviceInfo`](crate::DeviceInfo).
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDescription {
    /// Name for people, of at most 127 bytes.
    pub name: String,
    /// `DEVICE_...`, its class.
    pub kind: u32,
    /// Element types of buffers.
    pub dtypes: Vec<DType>,
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Whether host and device share memory.
    pub unified_memory: bool,
    /// Fixed cost of a dispatch in nanoseconds.
    pub launch_nanos: u64,
    /// Bytes a second that memory delivers.
    pub bytes_per_second: f64,
    /// FLOP/s of a large matmul in `f32`.
    pub flops_per_second: f64,
    /// Why it cannot be used, if it cannot.
    pub rejected: Option<String>,
    /// What tells its kernels from those of another version, of at most 31 bytes.
    pub kernels: String,
}

/// A family of devices. Settings are lines `key = value`.
pub trait Backend: Send + Sync + 'static {
    /// Its devices.
    type Device: Device;

    /// All devices.
    ///
    /// # Errors
    /// Settings that make no sense; a search that fails.
    fn devices(&self, settings: &str) -> Result<Vec<DeviceDescription>, Failure>;

    /// Opens the device of that index.
    ///
    /// # Errors
    /// When it does not exist or fails to open.
    fn open(&self, index: u32, settings: &str) -> Result<Self::Device, Failure>;
}

/// An open device.
pub trait Device: Send + Sync + 'static {
    /// Its executables.
    type Executable: Executable;

    /// Whether there is a kernel for a call.
    ///
    /// # Errors
    /// Why there is none.
    fn supports(&self, call: &DispatchView) -> Result<(), String>;

    /// Prepares everything that replaying a plan needs.
    ///
    /// # Errors
    /// Kernels or memory that are not there.
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

    /// Runs segments after setting scalars, and is done on return. A step that meets a fault changes no parameter and no
    /// state.
    ///
    /// # Errors
    /// Those of the step.
    fn run(&mut self, segments: &[u32], scalars: &[(u32, [u8; 4])]) -> Result<(), Failure>;
}
