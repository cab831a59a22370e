//! The context of a device. It may be lost.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::{Error, Result};
use sys::CUresult;

use crate::driver::{Properties, text};

/// Name of the backend in selectors and messages.
pub(crate) const NAME: &str = "cuda";

/// The primary context of a device. Other CUDA code in the process shares it.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    lost: AtomicBool,
}

// SAFETY: contexts of CUDA are not bound to a thread. Each call first makes the context current on its thread.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks internally.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Retains the primary context of a device.
    ///
    /// # Errors
    /// The driver does not create the context.
    pub(crate) fn open(properties: &Properties) -> Result<Self> {
        let device = properties.device;
        // SAFETY: the driver listed the device. The context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context =
            context.map_err(|e| Error::backend(NAME, format!("{} cannot be opened: {}", properties.name, text(e))))?;
        Ok(Gpu {
            device,
            context,
            lost: AtomicBool::new(false),
        })
    }

    /// Returns `true` if the context is unusable.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the context as lost, and returns the error.
    pub(crate) fn lose(&self, why: &str) -> Error {
        self.lost.store(true, Ordering::Release);
        Error::backend(
            NAME,
            format!(
                "{why}; the device is lost for this process, because CUDA does not allow it to use the device again: \
                 restart the program"
            ),
        )
    }

    /// Calls the driver, with this context current on the thread.
    ///
    /// # Errors
    /// Errors of the driver; a device that an earlier call lost. An asynchronous error of the device, such as an
    /// illegal address in a kernel, is returned by the next call of any kind. The device is then lost.
    pub(crate) fn call<T>(&self, doing: &str, work: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        self.attempt(work).map_err(|error| match error {
            None => self.lose("it failed in an earlier call"),
            Some(error) if is_sticky(error) => self.lose(&format!("{doing}: {}", text(error))),
            Some(error) => Error::backend(NAME, format!("{doing}: {}", text(error))),
        })
    }

    /// Calls the driver like [`Gpu::call`], but returns the driver's error. The error is `None` if the device is
    /// already lost.
    pub(crate) fn attempt<T>(&self, work: impl FnOnce() -> Result<T, DriverError>) -> Result<T, Option<DriverError>> {
        if self.is_lost() {
            return Err(None);
        }
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(Some)?;
        work().map_err(Some)
    }

    /// Runs work with this context current on the thread, as libraries require.
    ///
    /// # Errors
    /// A lost device; errors of the work.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.call("entering the context", || Ok(()))?;
        work()
    }

    /// Runs work that frees a resource. Does nothing if the device is lost, because then the driver has freed all of
    /// its resources.
    pub(crate) fn free(&self, work: impl FnOnce() -> Result<(), DriverError>) {
        if let Err(Some(error)) = self.attempt(work) {
            log::debug!("{NAME}: freeing fails: {}", text(error));
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: `open` retained the context, and no object that was created with it is left.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Returns `true` if all calls after this error fail as well, according to CUDA's documentation.
fn is_sticky(DriverError(error): DriverError) -> bool {
    matches!(
        error,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_kernels_lose_the_device_and_others_do_not() {
        assert!(is_sticky(DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)));
        assert!(is_sticky(DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED)));
        assert!(!is_sticky(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
        assert!(!is_sticky(DriverError(CUresult::CUDA_ERROR_INVALID_IMAGE)));
        assert!(!is_sticky(DriverError(CUresult::CUDA_ERROR_NOT_READY)));
    }
}
