//! Bindings to cuBLASLt, NVIDIA's library of matmuls.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::driver::sys;
use meganeura_core::DType;
use meganeura_shaders::{LibraryEpilogue, LibraryMatmul, LibraryOperand};

use crate::library::{LibraryRequest, LoadedLibrary, check, version_text};

/// Description of the library, and how it is found.
const WANTED: LibraryRequest = LibraryRequest {
    variable: "MEGANEURA_CUBLASLT",
    names: if cfg!(windows) {
        &["cublasLt64_13.dll", "cublasLt64_12.dll"]
    } else {
        &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"]
    },
    what: "cuBLASLt",
    remedy: "without it large matmuls are slower; install the CUDA toolkit or the package nvidia-cublas-cu12 of PyPI, and let \
             MEGANEURA_CUBLASLT name its libcublasLt.so.12 where the system does not find it",
};

/// Maximum size of the workspace of a matmul in bytes, as NVIDIA recommends for Hopper.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

type Status = c_int;
type Pointer = *mut c_void;
type Create = unsafe extern "C" fn(*mut Pointer) -> Status;
type Destroy = unsafe extern "C" fn(Pointer) -> Status;
type SetAttribute = unsafe extern "C" fn(Pointer, c_int, *const c_void, usize) -> Status;

/// An algorithm in the representation of the library.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Algorithm([u64; 8]);

/// An algorithm and the library's rating of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    status: Status,
    waves: f32,
    reserved: [c_int; 4],
}

// Constants of the library's header.
const COMPUTE_32F: c_int = 68;
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const DESC_POINTER_MODE: c_int = 2;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_TRANSPOSE_B: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_BATCH_STRIDE: c_int = 6;
const PREFERENCE_WORKSPACE: c_int = 1;
const OPERATION_TRANSPOSE: c_int = 1;
const POINTERS_TO_DEVICE: c_int = 1;
const EPILOGUE_RELU: c_int = 2;
const EPILOGUE_BIAS: c_int = 4;
const EPILOGUE_RELU_BIAS: c_int = 6;

/// The loaded library and its handle for a device.
#[derive(Debug)]
pub(crate) struct CublasLt {
    library: LoadedLibrary,
    handle: Pointer,
    version: usize,
    min_flops: usize,
}

// SAFETY: by the library's documentation, several threads may use a handle at a time.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// The layout of a row-major matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// `true` for elements of `f16`, `false` for `f32`.
    pub(crate) half: bool,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Distance between two matrices of a batch, in elements; 0 if all matmuls of the batch use the same matrix.
    pub(crate) stride: usize,
}

/// A matmul `d = a b` with an epilogue, optionally batched. It accumulates in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matmul {
    /// Left operand, stored as `[m, k]`, or as `[k, m]` if it is transposed.
    pub(crate) a: Matrix,
    pub(crate) transpose_a: bool,
    /// Right operand, stored as `[k, n]`, or as `[n, k]` if it is transposed.
    pub(crate) b: Matrix,
    pub(crate) transpose_b: bool,
    /// Result, stored as `[m, n]`.
    pub(crate) d: Matrix,
    pub(crate) batch: usize,
    pub(crate) epilogue: LibraryEpilogue,
    /// Device address of the bias, if the epilogue has one.
    pub(crate) bias: sys::CUdeviceptr,
}

impl Matmul {
    /// Describes a matmul of a plan.
    pub(crate) fn of(matmul: &LibraryMatmul, bias: sys::CUdeviceptr) -> Self {
        let &LibraryMatmul { batch, m, n, k, .. } = matmul;
        let matrix = |operand: usize, rows: usize, columns: usize| {
            let LibraryOperand {
                dtype,
                transposed,
                stride,
            } = matmul.operands[operand];
            let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
            Matrix {
                half: dtype == DType::F16,
                rows,
                columns,
                stride,
            }
        };
        Matmul {
            a: matrix(0, m, k),
            transpose_a: matmul.operands[0].transposed,
            b: matrix(1, k, n),
            transpose_b: matmul.operands[1].transposed,
            d: Matrix {
                half: matmul.result == DType::F16,
                rows: m,
                columns: n,
                stride: m * n,
            },
            batch,
            epilogue: matmul.epilogue,
            bias,
        }
    }
}

/// Device addresses of the operands and results of a matmul.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) a: sys::CUdeviceptr,
    pub(crate) b: sys::CUdeviceptr,
    pub(crate) d: sys::CUdeviceptr,
    /// Address of a workspace of [`WORKSPACE_BYTES`] bytes.
    pub(crate) workspace: sys::CUdeviceptr,
    /// Address of the matrix to add or of the factor, if the epilogue has one.
    pub(crate) epilogue: sys::CUdeviceptr,
    /// Address of the bias, if the epilogue has one.
    pub(crate) bias: sys::CUdeviceptr,
    /// Address of an `f32` zero.
    pub(crate) zero: sys::CUdeviceptr,
}

impl Addresses {
    /// Assigns the addresses of a matmul's buffers: both operands and the result, the workspace, and the operands of the
    /// epilogue. Returns `None` if the epilogue has another number of operands.
    pub(crate) fn of(
        matmul: &LibraryMatmul,
        [a, b, d]: [sys::CUdeviceptr; 3],
        workspace: sys::CUdeviceptr,
        operands: &[sys::CUdeviceptr],
        zero: sys::CUdeviceptr,
    ) -> Option<Self> {
        let (has_matrix, has_bias) = match matmul.epilogue {
            LibraryEpilogue::Sum { addend, bias, .. } => (addend, bias),
            LibraryEpilogue::Scale => (true, false),
        };
        let mut operands = operands.iter().copied();
        let mut next = |has: bool| if has { operands.next() } else { Some(0) };
        let (epilogue, bias) = (next(has_matrix)?, next(has_bias)?);
        operands.next().is_none().then_some(Addresses {
            a,
            b,
            d,
            workspace,
            epilogue,
            bias,
            zero,
        })
    }
}

/// A matmul with the algorithm that the library selected.
pub(crate) struct PreparedMatmul {
    description: Pointer,
    layouts: [Pointer; 3],
    algorithm: Algorithm,
    epilogue: LibraryEpilogue,
    destroy: [Destroy; 2],
}

// SAFETY: this exclusively owns the descriptors. They are host memory, and this does not change them.
unsafe impl Send for PreparedMatmul {}
// SAFETY: as above.
unsafe impl Sync for PreparedMatmul {}

impl CublasLt {
    /// Opens the library for the current context. It is used for matmuls with at least `min_flops` operations, or
    /// with a default minimum.
    ///
    /// # Errors
    /// The library is not found, or does not start.
    pub(crate) fn open(min_flops: Option<usize>) -> Result<Self, String> {
        WANTED.open(|library| {
            let create: Create = library.function(c"cublasLtCreate")?;
            let version: unsafe extern "C" fn() -> usize = library.function(c"cublasLtGetVersion")?;
            let mut handle = ptr::null_mut();
            // SAFETY: the pointer is to a local handle.
            check(unsafe { create(&mut handle) }, "cublasLtCreate")?;
            Ok(CublasLt {
                // SAFETY: the function takes no arguments.
                version: unsafe { version() },
                library,
                handle,
                min_flops: min_flops.unwrap_or(MIN_FLOPS),
            })
        })
    }

    /// Returns the minimum number of operations of a matmul that uses the library.
    pub(crate) fn min_flops(&self) -> usize {
        self.min_flops
    }

    /// Returns the version of the library as text, such as 12.9.1.
    pub(crate) fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// Selects an algorithm for a matmul.
    ///
    /// # Errors
    /// The library has no algorithm for it.
    pub(crate) fn prepare(&self, matmul: &Matmul) -> Result<PreparedMatmul, String> {
        let describe: unsafe extern "C" fn(*mut Pointer, c_int, c_int) -> Status =
            self.library.function(c"cublasLtMatmulDescCreate")?;
        let lay_out: unsafe extern "C" fn(*mut Pointer, c_int, u64, u64, i64) -> Status =
            self.library.function(c"cublasLtMatrixLayoutCreate")?;
        let set_description: SetAttribute = self.library.function(c"cublasLtMatmulDescSetAttribute")?;
        let set_layout: SetAttribute = self.library.function(c"cublasLtMatrixLayoutSetAttribute")?;
        let prefer: Create = self.library.function(c"cublasLtMatmulPreferenceCreate")?;
        let set_preference: SetAttribute = self.library.function(c"cublasLtMatmulPreferenceSetAttribute")?;
        let no_preference: Destroy = self.library.function(c"cublasLtMatmulPreferenceDestroy")?;
        let find: unsafe extern "C" fn(
            Pointer,
            Pointer,
            Pointer,
            Pointer,
            Pointer,
            Pointer,
            Pointer,
            c_int,
            *mut Heuristic,
            *mut c_int,
        ) -> Status = self.library.function(c"cublasLtMatmulAlgoGetHeuristic")?;
        let mut ready = PreparedMatmul {
            description: ptr::null_mut(),
            layouts: [ptr::null_mut(); 3],
            algorithm: Algorithm::default(),
            epilogue: matmul.epilogue,
            destroy: [
                self.library.function(c"cublasLtMatmulDescDestroy")?,
                self.library.function(c"cublasLtMatrixLayoutDestroy")?,
            ],
        };
        // SAFETY: the pointer is to a descriptor field.
        let described = unsafe { describe(&mut ready.description, COMPUTE_32F, R_32F) };
        check(described, "cublasLtMatmulDescCreate")?;
        let set = |set: SetAttribute, of: Pointer, attribute: c_int, value: &[u8]| {
            // SAFETY: the object is valid, and the value has this number of bytes.
            let status = unsafe { set(of, attribute, value.as_ptr().cast(), value.len()) };
            check(status, "setting an attribute")
        };
        // The library is column-major, and our matrices are row-major. Therefore its first operand is our second one.
        for (attribute, transposed) in [
            (DESC_TRANSPOSE_A, matmul.transpose_b),
            (DESC_TRANSPOSE_B, matmul.transpose_a),
        ] {
            if transposed {
                set(
                    set_description,
                    ready.description,
                    attribute,
                    &OPERATION_TRANSPOSE.to_ne_bytes(),
                )?;
            }
        }
        if matmul.epilogue == LibraryEpilogue::Scale {
            set(
                set_description,
                ready.description,
                DESC_POINTER_MODE,
                &POINTERS_TO_DEVICE.to_ne_bytes(),
            )?;
        }
        if let LibraryEpilogue::Sum { bias, relu, .. } = matmul.epilogue
            && (bias || relu)
        {
            let epilogue = match (bias, relu) {
                (true, true) => EPILOGUE_RELU_BIAS,
                (true, false) => EPILOGUE_BIAS,
                _ => EPILOGUE_RELU,
            };
            set(
                set_description,
                ready.description,
                DESC_EPILOGUE,
                &epilogue.to_ne_bytes(),
            )?;
            if bias {
                let pointer = matmul.bias.to_ne_bytes();
                set(set_description, ready.description, DESC_BIAS_POINTER, &pointer)?;
            }
        }
        for (layout, matrix) in ready.layouts.iter_mut().zip([matmul.b, matmul.a, matmul.d]) {
            let kind = if matrix.half { R_16F } else { R_32F };
            let (rows, columns) = (matrix.rows as u64, matrix.columns as u64);
            // SAFETY: the pointer is to a layout field.
            let made = unsafe { lay_out(layout, kind, columns, rows, columns as i64) };
            check(made, "cublasLtMatrixLayoutCreate")?;
            if matmul.batch > 1 {
                let (count, stride) = (matmul.batch as i32, matrix.stride as i64);
                set(set_layout, *layout, LAYOUT_BATCH_COUNT, &count.to_ne_bytes())?;
                set(set_layout, *layout, LAYOUT_BATCH_STRIDE, &stride.to_ne_bytes())?;
            }
        }
        let mut preference = ptr::null_mut();
        // SAFETY: the pointer is to a local preference.
        check(unsafe { prefer(&mut preference) }, "cublasLtMatmulPreferenceCreate")?;
        let room = set(
            set_preference,
            preference,
            PREFERENCE_WORKSPACE,
            &(WORKSPACE_BYTES as u64).to_ne_bytes(),
        );
        let (mut found, mut count) = (Heuristic::default(), 0);
        let [a, b, d] = ready.layouts;
        let looked = room.and_then(|()| {
            // SAFETY: all objects were created above, and `found` has room for one algorithm.
            let status = unsafe {
                find(
                    self.handle,
                    ready.description,
                    a,
                    b,
                    d,
                    d,
                    preference,
                    1,
                    &mut found,
                    &mut count,
                )
            };
            check(status, "cublasLtMatmulAlgoGetHeuristic")
        });
        // SAFETY: the preference was created above, and nothing uses it.
        unsafe { no_preference(preference) };
        looked?;
        if count == 0 || found.status != 0 {
            return Err("the library has no algorithm".into());
        }
        ready.algorithm = found.algorithm;
        Ok(ready)
    }

    /// Enqueues a matmul.
    ///
    /// # Errors
    /// Errors of the library.
    ///
    /// # Safety
    /// The addresses must point to device matrices with the prepared layouts, and to the operand of the epilogue.
    pub(crate) unsafe fn run(
        &self,
        ready: &PreparedMatmul,
        addresses: &Addresses,
        stream: sys::CUstream,
    ) -> Result<(), String> {
        // Scale factors are in host memory, or in device memory with the pointer mode of [`LibraryEpilogue::Scale`].
        type Factor = *const c_void;
        let multiply: unsafe extern "C" fn(
            Pointer,
            Pointer,
            Factor,
            sys::CUdeviceptr,
            Pointer,
            sys::CUdeviceptr,
            Pointer,
            Factor,
            sys::CUdeviceptr,
            Pointer,
            sys::CUdeviceptr,
            Pointer,
            *const Algorithm,
            sys::CUdeviceptr,
            usize,
            sys::CUstream,
        ) -> Status = self.library.function(c"cublasLtMatmul")?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let host = |factor: &f32| ptr::from_ref(factor).cast::<c_void>();
        let device = |address: sys::CUdeviceptr| address as Factor;
        let Addresses {
            a,
            b,
            d,
            workspace,
            epilogue,
            zero: stored_zero,
            ..
        } = *addresses;
        let (alpha, beta, c) = match ready.epilogue {
            LibraryEpilogue::Sum { addend: false, .. } => (host(&one), host(&zero), d),
            LibraryEpilogue::Sum { addend: true, .. } => (host(&one), host(&one), epilogue),
            LibraryEpilogue::Scale => (device(epilogue), device(stored_zero), d),
        };
        let [first, second, result] = ready.layouts;
        // SAFETY: by the contract of this function. The factors outlive the call, or are in device memory.
        let status = unsafe {
            multiply(
                self.handle,
                ready.description,
                alpha,
                b,
                first,
                a,
                second,
                beta,
                c,
                result,
                d,
                result,
                &ready.algorithm,
                workspace,
                WORKSPACE_BYTES,
                stream,
            )
        };
        check(status, "cublasLtMatmul")
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if let Ok(destroy) = self.library.function::<Destroy>(c"cublasLtDestroy") {
            // SAFETY: the library created the handle, and nothing uses it.
            unsafe { destroy(self.handle) };
        }
    }
}

impl Drop for PreparedMatmul {
    fn drop(&mut self) {
        let [description, layout] = self.destroy;
        for (destroy, of) in [
            (description, self.description),
            (layout, self.layouts[0]),
            (layout, self.layouts[1]),
            (layout, self.layouts[2]),
        ] {
            if !of.is_null() {
                // SAFETY: the library created the descriptor, and stays open as long as its device.
                unsafe { destroy(of) };
            }
        }
    }
}

/// Minimum number of operations (multiplications and additions) of a matmul that uses the library.
const MIN_FLOPS: usize = 1 << 24;
/// Minimum number of rows and of columns of the result of such a matmul. For smaller results, kernels that read each
/// matrix once are as fast.
const MIN_SIDE: usize = 64;
/// Vector size of tensor cores, in `f16` elements. Rows whose length is not a multiple of it are slow.
const VECTOR: usize = 8;

impl CublasLt {
    /// Returns true if the library should compute a matmul.
    pub(crate) fn takes(&self, matmul: &LibraryMatmul) -> bool {
        let &LibraryMatmul { batch, m, n, k, .. } = matmul;
        let columns = |operand: usize, [rows, columns]: [usize; 2]| {
            if matmul.operands[operand].transposed {
                rows
            } else {
                columns
            }
        };
        let are_aligned = [columns(0, [m, k]), columns(1, [k, n]), n]
            .iter()
            .all(|c| c.is_multiple_of(VECTOR));
        let flops = batch.saturating_mul(2 * m * n).saturating_mul(k);
        are_aligned && m.min(n) >= MIN_SIDE && flops >= self.min_flops
    }
}
