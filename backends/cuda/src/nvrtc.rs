//! NVIDIA's compiler as a library, NVRTC, which needs no GPU.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use crate::library::{Opened, Wanted};

/// What NVRTC has to be told beside the architecture. Most is what it does by itself, which kernels rely on: divisions and
/// roots round correctly, small numbers stay what they are, and multiplications followed by additions may be one operation.
/// Functions of the prelude that a kernel does not use are no reason for warnings.
pub const NVRTC_OPTIONS: &[&str] = &[
    "--std=c++17",
    "--fmad=true",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--diag-suppress=177",
];

/// Where it is.
const WANTED: Wanted = Wanted {
    variable: "MEGANEURA_NVRTC",
    names: match cfg!(windows) {
        true => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
        false => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
    },
    what: "NVRTC, NVIDIA's compiler,",
    remedy: "install the CUDA toolkit or the package nvidia-cuda-nvrtc-cu12 of PyPI, and let MEGANEURA_NVRTC name its libnvrtc.so.12 \
             where the system does not find it",
};

type Program = *mut c_void;

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    library: Opened,
    version: (u32, u32),
}

impl Nvrtc {
    /// Opens the library: the file that `MEGANEURA_NVRTC` names, else the one that the system or the CUDA toolkit has.
    ///
    /// # Errors
    /// It is not found, with the places that were looked at and how to get it; or it is no NVRTC.
    pub fn open() -> Result<Self, String> {
        WANTED.open(|library| {
            let mut nvrtc = Nvrtc {
                library,
                version: (0, 0),
            };
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = nvrtc.function(c"nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both are places for a number.
            nvrtc.check(unsafe { version(&mut major, &mut minor) }, "nvrtcVersion")?;
            nvrtc.version = (major as u32, minor as u32);
            Ok(nvrtc)
        })
    }

    /// Major and minor number of its version.
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

    /// The architectures that it compiles for, such as 90 for `sm_90`.
    ///
    /// # Errors
    /// It does not tell.
    pub fn architectures(&self) -> Result<Vec<u32>, String> {
        let count: unsafe extern "C" fn(*mut c_int) -> c_int = self.function(c"nvrtcGetNumSupportedArchs")?;
        let list: unsafe extern "C" fn(*mut c_int) -> c_int = self.function(c"nvrtcGetSupportedArchs")?;
        let mut number = 0;
        // SAFETY: it is a place for a number.
        self.check(unsafe { count(&mut number) }, "nvrtcGetNumSupportedArchs")?;
        let mut found = vec![0; usize::try_from(number).unwrap_or_default()];
        // SAFETY: there is as much room as was asked for.
        self.check(unsafe { list(found.as_mut_ptr()) }, "nvrtcGetSupportedArchs")?;
        Ok(found.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
    }

    /// Machine code of a source for an architecture such as `sm_90`.
    ///
    /// # Errors
    /// What the compiler says against it.
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
        // SAFETY: the texts end with zero and outlive the calls; there are no headers.
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
        // SAFETY: there are as many options as it says, which outlive the call.
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
        // SAFETY: the program is there, and nothing of it is used any more.
        self.check(unsafe { destroy(&mut program) }, "nvrtcDestroyProgram")?;
        result
    }

    /// What two functions give: the first its size, the second the bytes.
    fn bytes(&self, program: Program, size: &CStr, get: &CStr) -> Result<Vec<u8>, String> {
        let (size_name, get_name) = (size.to_string_lossy(), get.to_string_lossy());
        let size: unsafe extern "C" fn(Program, *mut usize) -> c_int = self.function(size)?;
        let get: unsafe extern "C" fn(Program, *mut c_char) -> c_int = self.function(get)?;
        let mut length = 0;
        // SAFETY: the program is there, and `length` is a place for a size.
        self.check(unsafe { size(program, &mut length) }, &size_name)?;
        let mut bytes = vec![0_u8; length];
        // SAFETY: there is as much memory as was asked for.
        self.check(unsafe { get(program, bytes.as_mut_ptr().cast()) }, &get_name)?;
        Ok(bytes)
    }
}
