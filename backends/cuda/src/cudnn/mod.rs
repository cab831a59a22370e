//! Bindings to cuDNN, NVIDIA's library of convolutions, through its graph API.
//!
//! A convolution and its epilogue form an operation graph. The library's heuristics list engines for the graph, the
//! fastest first by their estimate. The first engine that can be built and needs little enough workspace is used.

mod descriptor;
mod graph;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys::{cudnnBackendAttributeName_t as Attribute, cudnnBackendDescriptorType_t as Kind};
use cudarc::driver::sys;
use meganeura_shaders::{LibraryConvolution, LibraryEpilogue};

use crate::library::{LibraryRequest, LoadedLibrary, check, version_text};
use descriptor::{Descriptor, Functions};
use graph::Tensor;

/// Description of the library, and how it is found.
const WANTED: LibraryRequest = LibraryRequest {
    variable: "MEGANEURA_CUDNN",
    names: if cfg!(windows) {
        &["cudnn64_9.dll"]
    } else {
        &["libcudnn.so.9", "libcudnn.so"]
    },
    what: "cuDNN",
    remedy: "without it convolutions are slower; install the package nvidia-cudnn-cu12 or nvidia-cudnn-cu13 of PyPI, and let \
             MEGANEURA_CUDNN name its libcudnn.so.9 where the system does not find it",
};

/// First version with the graph API of this module.
const MIN_VERSION: usize = 90_000;
/// Maximum size of the workspace of a convolution in bytes.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;
/// Minimum number of operations of a convolution that uses the library. For smaller ones, our kernels are as fast, and
/// need no launch that rounds the weights.
const MIN_FLOPS: usize = 1 << 29;
/// Number of channels that tensor cores multiply together. Other numbers are slow.
const VECTOR: usize = 8;

type Pointer = *mut c_void;

/// The loaded library.
pub(crate) struct Cudnn {
    functions: Functions,
    /// Handle of the library. Only one thread may use it at a time.
    handle: Mutex<Handle>,
    version: usize,
    min_flops: usize,
    /// Plans of earlier requests; `None` for convolutions that no engine supports.
    plans: Mutex<HashMap<LibraryConvolution, Option<Arc<Plan>>>>,
}

struct Handle {
    raw: Pointer,
    destroy: unsafe extern "C" fn(Pointer) -> c_int,
}

// SAFETY: a handle is not bound to a thread, and its mutex permits only one at a time.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the library created the handle, and nothing uses it.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// An engine that is built for a convolution, and the descriptors that it refers to.
struct Plan {
    plan: Descriptor,
    _graph: graph::OperationGraph,
    _engine: Descriptor,
}

/// A convolution with its buffers, ready to be enqueued.
pub(crate) struct PreparedConvolution {
    plan: Arc<Plan>,
    buffers: Descriptor,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cudnn {
    /// Opens the library for the current context. It is used for convolutions with at least `min_flops` operations, or
    /// with a default minimum.
    ///
    /// # Errors
    /// The library is not found, is too old, or does not start.
    pub(crate) fn open(min_flops: Option<usize>) -> Result<Self, String> {
        WANTED.open(|library| {
            let version = version_of(&library)?;
            if version < MIN_VERSION {
                return Err(format!(
                    "version {} is too old; install 9.0 or newer",
                    version_text(version)
                ));
            }
            let create: unsafe extern "C" fn(*mut Pointer) -> c_int = library.function(c"cudnnCreate")?;
            let functions = Functions::of(&library)?;
            let mut handle = Handle {
                raw: std::ptr::null_mut(),
                destroy: library.function(c"cudnnDestroy")?,
            };
            // SAFETY: the pointer is to a local handle.
            check(unsafe { create(&mut handle.raw) }, "cudnnCreate")?;
            Ok(Cudnn {
                functions,
                handle: Mutex::new(handle),
                version,
                min_flops: min_flops.unwrap_or(MIN_FLOPS),
                plans: Mutex::default(),
            })
        })
    }

    /// Returns the version of the library that [`Cudnn::open`] would open, as text. Needs no device.
    ///
    /// # Errors
    /// The library is not found.
    pub(crate) fn available_version() -> Result<String, String> {
        WANTED.open(|library| Ok(version_text(version_of(&library)?)))
    }

    /// Returns the version of the library as text, such as 9.19.0.
    pub(crate) fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// Returns the minimum number of operations of a convolution that uses the library.
    pub(crate) fn min_flops(&self) -> usize {
        self.min_flops
    }

    /// Returns true if the library should compute a convolution. The first question about a convolution builds it.
    pub(crate) fn takes(&self, convolution: &LibraryConvolution) -> bool {
        let dims = &convolution.dims;
        // With four channels, as in the first layer of a network, only convolutions without an epilogue are fast.
        let is_first = dims.c == VECTOR / 2 && convolution.epilogue == LibraryEpilogue::PLAIN;
        let has_vectors = dims.o.is_multiple_of(VECTOR) && (dims.c.is_multiple_of(VECTOR) || is_first);
        dims.groups == 1
            && has_vectors
            && dims.flops() >= self.min_flops as u64
            && self
                .plan(convolution)
                .inspect_err(|why| log::debug!("cuDNN: {convolution:?}: {why}"))
                .is_ok()
    }

    /// Returns the plan of a convolution.
    fn plan(&self, convolution: &LibraryConvolution) -> Result<Arc<Plan>, String> {
        let mut plans = lock(&self.plans);
        if let Some(known) = plans.get(convolution) {
            return known.clone().ok_or_else(|| "no engine supports it".into());
        }
        let plan = self.build(convolution).map(Arc::new);
        plans.insert(*convolution, plan.as_ref().ok().cloned());
        plan
    }

    fn build(&self, convolution: &LibraryConvolution) -> Result<Plan, String> {
        let handle = lock(&self.handle);
        let graph = graph::OperationGraph::of(self.functions, handle.raw, convolution)?;
        let mut why = String::from("there are no engines");
        for engine in graph.engines()? {
            match graph.plan(handle.raw, &engine, WORKSPACE_BYTES) {
                Ok(plan) => {
                    return Ok(Plan {
                        plan,
                        _graph: graph,
                        _engine: engine,
                    });
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Prepares a convolution with the device addresses of its buffers: both operands and the result, a workspace of
    /// [`WORKSPACE_BYTES`] bytes, and the operands of the epilogue (the addend, then the bias).
    ///
    /// # Errors
    /// No engine supports it.
    pub(crate) fn prepare(
        &self,
        convolution: &LibraryConvolution,
        tensors: [sys::CUdeviceptr; 3],
        workspace: sys::CUdeviceptr,
        epilogue: &[sys::CUdeviceptr],
    ) -> Result<PreparedConvolution, String> {
        let plan = self.plan(convolution)?;
        let mut ids = vec![Tensor::A as i64, Tensor::B as i64, Tensor::Result as i64];
        if let LibraryEpilogue::Sum { addend, bias, .. } = convolution.epilogue {
            ids.extend(addend.then_some(Tensor::Addend as i64));
            ids.extend(bias.then_some(Tensor::Bias as i64));
        }
        let pointers = [&tensors, epilogue].concat();
        if ids.len() != pointers.len() {
            return Err(format!("expected {} buffers, found {}", ids.len(), pointers.len()));
        }
        let mut buffers = self.functions.descriptor(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        buffers.set_pointers(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?;
        buffers.set_ints(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &ids)?;
        buffers.set_pointers(Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace])?;
        buffers.finalize()?;
        Ok(PreparedConvolution { plan, buffers })
    }

    /// Enqueues a convolution.
    ///
    /// # Errors
    /// Errors of the library.
    ///
    /// # Safety
    /// The addresses of `ready` must point to device memory with the tensors of the convolution.
    pub(crate) unsafe fn run(&self, ready: &PreparedConvolution, stream: sys::CUstream) -> Result<(), String> {
        let handle = lock(&self.handle);
        // SAFETY: by the contract of this function.
        unsafe {
            self.functions
                .execute(handle.raw, stream, &ready.plan.plan, &ready.buffers)
        }
    }
}

fn version_of(library: &LoadedLibrary) -> Result<usize, String> {
    let version: unsafe extern "C" fn() -> usize = library.function(c"cudnnGetVersion")?;
    // SAFETY: the function takes no arguments.
    Ok(unsafe { version() })
}
