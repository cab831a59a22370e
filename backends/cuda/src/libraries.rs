//! NVIDIA's libraries of matmuls and convolutions, where they are installed and enabled.

use std::sync::Arc;

use cudarc::driver::{DriverError, sys};
use meganeura_core::{Error, Result};
use meganeura_shaders::{DeviceLibrary, LibraryCall};

use crate::cublaslt::{self, CublasLt};
use crate::cudnn::{self, Cudnn};
use crate::gpu::{Gpu, NAME};
use crate::settings::Settings;

/// The libraries of a device.
pub(crate) struct Libraries {
    gpu: Arc<Gpu>,
    cublaslt: Option<CublasLt>,
    cudnn: Option<Cudnn>,
}

/// A prepared call of a library.
pub(crate) enum PreparedCall {
    Matmul(cublaslt::PreparedMatmul, cublaslt::Addresses),
    Convolution(cudnn::PreparedConvolution),
}

/// Device addresses of the buffers of a call.
pub(crate) struct CallAddresses {
    /// Both operands and the result.
    pub(crate) tensors: [sys::CUdeviceptr; 3],
    pub(crate) workspace: sys::CUdeviceptr,
    /// Operands of the epilogue.
    pub(crate) epilogue: Vec<sys::CUdeviceptr>,
    /// Address of an `f32` zero.
    pub(crate) zero: sys::CUdeviceptr,
}

impl Libraries {
    /// Opens the libraries that the settings enable. Reports missing ones as a message of the log.
    ///
    /// # Errors
    /// A lost device.
    pub(crate) fn open(gpu: &Arc<Gpu>, device: &str, settings: &Settings) -> Result<Option<Self>> {
        let report = |why: &String| log::info!("{device}: {why}");
        let libraries = gpu.within(|| {
            let cublaslt = settings.cublaslt.then(|| CublasLt::open(settings.cublaslt_min_flops));
            let cudnn = settings.cudnn.then(|| Cudnn::open(settings.cudnn_min_flops));
            Ok(Libraries {
                gpu: gpu.clone(),
                cublaslt: cublaslt.and_then(|opened| opened.inspect_err(report).ok()),
                cudnn: cudnn.and_then(|opened| opened.inspect_err(report).ok()),
            })
        })?;
        let has_any = libraries.cublaslt.is_some() || libraries.cudnn.is_some();
        Ok(has_any.then_some(libraries))
    }

    /// Returns a text that differs between sets of libraries that take different calls.
    pub(crate) fn fingerprint(&self) -> String {
        let cudnn = self
            .cudnn
            .as_ref()
            .map(|cudnn| (cudnn.version_text(), cudnn.min_flops()));
        format!(
            "cuBLASLt {:?}, cuDNN {cudnn:?}",
            self.cublaslt.as_ref().map(CublasLt::min_flops)
        )
    }

    /// Returns true if there is a library of convolutions.
    pub(crate) fn has_convolutions(&self) -> bool {
        self.cudnn.is_some()
    }

    /// Prepares a call with its buffers.
    ///
    /// # Errors
    /// A lost device; errors of the library.
    pub(crate) fn prepare(&self, call: &LibraryCall, addresses: &CallAddresses) -> Result<PreparedCall> {
        let CallAddresses {
            tensors,
            workspace,
            epilogue,
            zero,
        } = addresses;
        self.gpu.within(|| match (call, &self.cublaslt, &self.cudnn) {
            (LibraryCall::Matmul(matmul), Some(library), _) => {
                let addresses = cublaslt::Addresses::of(matmul, *tensors, *workspace, epilogue, *zero)
                    .ok_or_else(|| Error::plan("a matmul lacks an operand of its epilogue"))?;
                let prepared = library.prepare(&cublaslt::Matmul::of(matmul, addresses.bias));
                let prepared =
                    prepared.map_err(|why| Error::backend(NAME, format!("cuBLASLt rejects a matmul: {why}")))?;
                Ok(PreparedCall::Matmul(prepared, addresses))
            }
            (LibraryCall::Convolution(convolution), _, Some(library)) => {
                let prepared = library.prepare(convolution, *tensors, *workspace, epilogue);
                let prepared =
                    prepared.map_err(|why| Error::backend(NAME, format!("cuDNN rejects a convolution: {why}")))?;
                Ok(PreparedCall::Convolution(prepared))
            }
            _ => Err(Error::plan("the library of a call is not open")),
        })
    }

    /// Enqueues a call.
    ///
    /// # Errors
    /// Errors of the library.
    ///
    /// # Safety
    /// The addresses of the call must point to device memory of the prepared sizes.
    pub(crate) unsafe fn run(&self, call: &PreparedCall, stream: sys::CUstream) -> Result<(), DriverError> {
        let enqueued = match (call, &self.cublaslt, &self.cudnn) {
            (PreparedCall::Matmul(matmul, addresses), Some(library), _) => {
                // SAFETY: by the contract of this function.
                unsafe { library.run(matmul, addresses, stream) }
            }
            (PreparedCall::Convolution(convolution), _, Some(library)) => {
                // SAFETY: by the contract of this function.
                unsafe { library.run(convolution, stream) }
            }
            _ => Err("the library is not open".into()),
        };
        enqueued.map_err(|why| {
            log::error!("{NAME}: {why}");
            DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED)
        })
    }
}

impl DeviceLibrary for Libraries {
    fn takes(&self, call: &LibraryCall, _: usize, _: bool) -> bool {
        match call {
            LibraryCall::Matmul(matmul) => self.cublaslt.as_ref().is_some_and(|library| library.takes(matmul)),
            LibraryCall::Convolution(convolution) => self.cudnn.as_ref().is_some_and(|library| {
                // Engines are built for the device of the current context.
                self.gpu.within(|| Ok(library.takes(convolution))).unwrap_or(false)
            }),
        }
    }

    fn workspace_bytes(&self) -> usize {
        cublaslt::WORKSPACE_BYTES.max(cudnn::WORKSPACE_BYTES)
    }
}
