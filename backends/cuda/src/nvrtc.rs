//! Bindings to NVRTC, the compiler library of NVIDIA. It needs no GPU.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use crate::library::{LibraryRequest, LoadedLibrary};

/// Options of NVRTC in addition to the architecture. Most of them are defaults on which kernels rely: divisions and
/// square roots round correctly, denormals are kept, and multiplications followed by additions may be fused. Another
/// option disables warnings about unused functions of the prelude.
pub const NVRTC_OPTIONS: &[&str] = &[
    "--std=c++17",
    "--fmad=true",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--diag-suppress=177",
];

/// Description of the library, and how it is found.
const WANTED: LibraryRequest = LibraryRequest {
    variable: "MEGANEURA_NVRTC",
    names: if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]
    },
    what: "NVRTC, NVIDIA's compiler,",
    remedy: "install the CUDA toolkit or the package nvidia-cuda-nvrtc-cu12 of PyPI, and let MEGANEURA_NVRTC name its libnvrtc.so.12 \
             where the system does not find it",
};

type Program = *mut c_void;

/// The loaded compiler library.
#[derive(Debug)]
pub struct Nvrtc {
    library: LoadedLibrary,
    version: (u32, u32),
}

impl Nvrtc {
    /// Opens the library. The environment variable `MEGANEURA_NVRTC` names its file. Otherwise, opens the library of
    /// the system or of the CUDA toolkit.
    ///
    /// # Errors
    /// The library is not found, or the file is not NVRTC. The error lists the searched locations and how to install
    /// NVRTC.
    pub fn open() -> Result<Self, String> {
        WANTED.open(|library| {
            let mut nvrtc = Nvrtc {
                library,
                version: (0, 0),
            };
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = nvrtc.function(c"nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both pointers are to locals.
            nvrtc.check(unsafe { version(&mut major, &mut minor) }, "nvrtcVersion")?;
            nvrtc.version = (major as u32, minor as u32);
            Ok(nvrtc)
        })
    }

    /// Returns the major and the minor version number.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        self.library.function(name)
    }

    fn check(&self, code: c_int, function: &str) -> Result<(), String> {
        match code {
            0 => Ok(()),
            code => Err(format!("{function} fails with code {code}")),
        }
    }

    /// Returns the supported architectures, such as 90 for `sm_90`.
    ///
    /// # Errors
    /// The library does not report them.
    pub fn architectures(&self) -> Result<Vec<u32>, String> {
        let count: unsafe extern "C" fn(*mut c_int) -> c_int = self.function(c"nvrtcGetNumSupportedArchs")?;
        let list: unsafe extern "C" fn(*mut c_int) -> c_int = self.function(c"nvrtcGetSupportedArchs")?;
        let mut number = 0;
        // SAFETY: the pointer is to a local.
        self.check(unsafe { count(&mut number) }, "nvrtcGetNumSupportedArchs")?;
        let mut found = vec![0; usize::try_from(number).unwrap_or_default()];
        // SAFETY: the list has the reported length.
        self.check(unsafe { list(found.as_mut_ptr()) }, "nvrtcGetSupportedArchs")?;
        Ok(found.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
    }

    /// Compiles a source to machine code for an architecture such as `sm_90`.
    ///
    /// # Errors
    /// Errors of the compiler for this source.
    pub fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        let create: unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int = self.function(c"nvrtcCreateProgram")?;
        let compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int =
            self.function(c"nvrtcCompileProgram")?;
        let destroy: unsafe extern "C" fn(*mut Program) -> c_int = self.function(c"nvrtcDestroyProgram")?;

        let text = |text: &str| CString::new(text).map_err(|_| "a text contains a zero".to_owned());
        let source = text(source)?;
        let mut options = vec![text(&format!("--gpu-architecture={architecture}"))?];
        for option in NVRTC_OPTIONS {
            options.push(text(option)?);
        }
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let mut program = ptr::null_mut();
        // SAFETY: the texts are NUL-terminated and outlive the calls; there are no headers.
        let code = unsafe {
            create(
                &mut program,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        self.check(code, "nvrtcCreateProgram")?;
        // SAFETY: there are `pointers.len()` options, which outlive the call.
        let code = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
        let result = match code {
            0 => self.bytes(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN"),
            _ => {
                let log = self.bytes(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog");
                Err(log.map_or_else(
                    |why| why,
                    |log| String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned(),
                ))
            }
        };
        // SAFETY: the program is valid, and is not used afterwards.
        self.check(unsafe { destroy(&mut program) }, "nvrtcDestroyProgram")?;
        result
    }

    /// Returns the bytes of a compilation result. `size` and `get` are the names of the functions that return its size
    /// and its bytes.
    fn bytes(&self, program: Program, size: &CStr, get: &CStr) -> Result<Vec<u8>, String> {
        let (size_name, get_name) = (size.to_string_lossy(), get.to_string_lossy());
        let size: unsafe extern "C" fn(Program, *mut usize) -> c_int = self.function(size)?;
        let get: unsafe extern "C" fn(Program, *mut c_char) -> c_int = self.function(get)?;
        let mut length = 0;
        // SAFETY: the program is valid, and the pointer is to a local.
        self.check(unsafe { size(program, &mut length) }, &size_name)?;
        let mut bytes = vec![0_u8; length];
        // SAFETY: the memory has the reported size.
        self.check(unsafe { get(program, bytes.as_mut_ptr().cast()) }, &get_name)?;
        Ok(bytes)
    }
}
