//! What [`export_plugin!`](crate::export_plugin) expands to.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::author::{Backend, Device as _, DeviceDescription, Executable as _, Failure};
use crate::types::{
    ABI_MAJOR, ABI_MINOR, Bytes, DEVICE_UNIFIED, Device, DeviceInfo, Executable, Host, PLAN_VERSION, Plugin, Progress,
    STATUS_FAILED, STATUS_PANIC, Scalar, Status, Step,
};
use crate::view::PlanView;

pub use crate::manifest::Manifest;

/// A backend that exists once in a plugin.
pub trait Exported: 'static {
    /// Its type.
    type Backend: Backend;

    /// The backend.
    fn backend() -> &'static Self::Backend;
}

/// Makes a plugin of a backend: `export_plugin!(name: "mine", backend: MyBackend, MyBackend::new());`, in a crate of the
/// type `cdylib`. The name is that of selectors; version and description are those of the crate. The expression has to be
/// constant.
///
/// A name that selectors cannot have, or a description that is too long for a manifest, is an error of compilation.
#[macro_export]
macro_rules! export_plugin {
    (name: $name:literal, backend: $ty:ty, $make:expr $(,)?) => {
        const _: () = {
            const MANIFEST: $crate::export::Manifest = $crate::export::Manifest {
                name: $name,
                version: env!("CARGO_PKG_VERSION"),
                description: env!("CARGO_PKG_DESCRIPTION"),
            };
            const _: () = assert!(
                $crate::is_backend_name($name),
                "a backend's name has up to 32 lower-case letters, digits, '-' and '_', and is not 'auto'"
            );
            const SIZE: usize = MANIFEST.size();
            const _: () = assert!(
                SIZE <= $crate::MANIFEST_LIMIT,
                "the description is too long for a manifest"
            );
            #[unsafe(no_mangle)]
            #[used]
            #[allow(non_upper_case_globals)]
            pub static meganeura_plugin_manifest: [u8; SIZE] = MANIFEST.bytes();

            static BACKEND: $ty = $make;
            struct This;
            impl $crate::export::Exported for This {
                type Backend = $ty;
                fn backend() -> &'static $ty {
                    &BACKEND
                }
            }
            /// The table of functions.
            ///
            /// # Safety
            /// `host` is null or what the host says of itself.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn meganeura_plugin_entry(host: *const $crate::Host) -> *const $crate::Plugin {
                $crate::export::entry::<This>(host)
            }
        };
    };
}

/// The table of functions of a backend.
pub fn entry<E: Exported>(_host: *const Host) -> *const Plugin {
    &const { table::<E>() }
}

const fn table<E: Exported>() -> Plugin {
    Plugin {
        struct_size: size_of::<Plugin>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        plan_oldest: PLAN_VERSION,
        plan_newest: PLAN_VERSION,
        extensions: ptr::null(),
        status_free: Some(status_free),
        device_count: Some(device_count::<E>),
        device_info: Some(device_info::<E>),
        device_open: Some(device_open::<E>),
        device_close: Some(device_close::<E>),
        device_supports: Some(device_supports::<E>),
        device_compile: Some(device_compile::<E>),
        executable_free: Some(executable_free::<E>),
        executable_write: Some(executable_write::<E>),
        executable_read: Some(executable_read::<E>),
        executable_run: Some(executable_run::<E>),
        executable_wait: Some(executable_wait),
        executable_progress: None,
        device_launches: None,
        reserved: None,
    }
}

type DeviceOf<E> = <<E as Exported>::Backend as Backend>::Device;
type ExecutableOf<E> = <DeviceOf<E> as crate::author::Device>::Executable;

/// An executable of the author, and whether it panicked.
struct Guarded<T> {
    poisoned: bool,
    inner: T,
}

/// A status with its texts.
#[repr(C)]
struct Owned {
    status: Status,
    message: CString,
}

fn status(failure: &Failure) -> *mut Status {
    let message = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    let owned = Box::new(Owned {
        status: Status {
            struct_size: size_of::<Status>() as u32,
            code: failure.code,
            message: message.as_ptr(),
            context: ptr::null(),
            detail: failure.detail,
            owner: ptr::null(),
        },
        message,
    });
    debug_assert_eq!(owned.status.message, owned.message.as_ptr());
    Box::into_raw(owned).cast()
}

/// The failure that a panic is.
fn panicked(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let failure = Failure::new(
        STATUS_PANIC,
        format!("panicked: {}", text.unwrap_or("without a message")),
    );
    discard(payload);
    failure
}

/// Drops what a panic carried, which may panic itself; that must not leave a function that C calls, either.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // There is no end to payloads that panic; this one is never dropped.
        std::mem::forget(another);
    }
}

/// Drops a value of the author. Whether that panics is nobody's concern.
fn discard_value<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        discard(payload);
    }
}

fn answer(outcome: Result<(), Failure>) -> *mut Status {
    match outcome {
        Ok(()) => ptr::null_mut(),
        Err(failure) => status(&failure),
    }
}

fn guard(run: impl FnOnce() -> Result<(), Failure>) -> *mut Status {
    answer(catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(panicked(payload))))
}

/// Runs something with an executable that has not panicked yet.
///
/// # Safety
/// `executable` is one that `device_compile` of the same plugin made, and nobody else uses it.
unsafe fn with<E: Exported>(
    executable: *mut Executable,
    run: impl FnOnce(&mut ExecutableOf<E>) -> Result<(), Failure>,
) -> *mut Status {
    // SAFETY: by contract.
    let guarded = unsafe { &mut *executable.cast::<Guarded<ExecutableOf<E>>>() };
    if guarded.poisoned {
        return status(&Failure::new(
            STATUS_PANIC,
            "an earlier step panicked; the executable cannot be used any more",
        ));
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut guarded.inner)));
    answer(outcome.unwrap_or_else(|payload| {
        guarded.poisoned = true;
        Err(panicked(payload))
    }))
}

/// The bytes that the host lends.
///
/// # Safety
/// They are valid for the lifetime.
unsafe fn lent<'a>(bytes: Bytes) -> &'a [u8] {
    match bytes.data.is_null() {
        true => &[],
        // SAFETY: by contract.
        false => unsafe { std::slice::from_raw_parts(bytes.data, bytes.len as usize) },
    }
}

/// # Safety
/// As [`lent`].
unsafe fn settings<'a>(bytes: Bytes) -> Result<&'a str, Failure> {
    // SAFETY: forwarded.
    let bytes = unsafe { lent(bytes) };
    std::str::from_utf8(bytes).map_err(|_| Failure::failed("the settings are not UTF-8"))
}

unsafe extern "C" fn status_free(status: *mut Status) {
    if !status.is_null() {
        // SAFETY: every status of this plugin is an `Owned`, which begins with the status; the host frees it once.
        drop(unsafe { Box::from_raw(status.cast::<Owned>()) });
    }
}

unsafe extern "C" fn device_count<E: Exported>(bytes: Bytes, count: *mut u32) -> *mut Status {
    guard(|| {
        // SAFETY: the host lends the bytes for the call.
        let devices = E::backend().devices(unsafe { settings(bytes) }?)?;
        // SAFETY: the host gives a place for the number.
        unsafe { *count = devices.len() as u32 };
        Ok(())
    })
}

unsafe extern "C" fn device_info<E: Exported>(bytes: Bytes, index: u32, info: *mut DeviceInfo) -> *mut Status {
    guard(|| {
        // SAFETY: the host lends the bytes for the call.
        let devices = E::backend().devices(unsafe { settings(bytes) }?)?;
        let missing = || Failure::failed(format!("there is no device {index}"));
        let device = devices.get(index as usize).ok_or_else(missing)?;
        // SAFETY: the host gives a place for what it calls a `DeviceInfo`, whose size says how much of it it knows.
        let info = unsafe { &mut *info };
        if (info.struct_size as usize) < size_of::<DeviceInfo>() {
            return Err(Failure::failed(
                "the host's description of a device is shorter than the plugin's",
            ));
        }
        describe(info, device);
        Ok(())
    })
}

fn describe(info: &mut DeviceInfo, device: &DeviceDescription) {
    info.kind = device.kind;
    info.flags = if device.unified_memory { DEVICE_UNIFIED } else { 0 };
    info.dtypes = device.dtypes.iter().fold(0, |bits, dtype| bits | 1 << dtype.number());
    info.memory_bytes = device.memory_bytes.unwrap_or(0);
    info.launch_nanos = device.launch_nanos;
    info.bytes_per_second = device.bytes_per_second;
    info.flops_per_second = device.flops_per_second;
    info.half_flops_per_second = device.flops_per_second;
    copy_text(&mut info.name, &device.name);
    copy_text(&mut info.rejected, device.rejected.as_deref().unwrap_or_default());
    copy_text(&mut info.kernels, &device.kernels);
}

/// Copies as much of a text as there is room for before a NUL.
fn copy_text(target: &mut [c_char], text: &str) {
    let mut len = text.len().min(target.len() - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    for (to, from) in target.iter_mut().zip(text.as_bytes()[..len].iter().chain([&0])) {
        *to = *from as c_char;
    }
}

unsafe extern "C" fn device_open<E: Exported>(bytes: Bytes, index: u32, device: *mut *mut Device) -> *mut Status {
    guard(|| {
        // SAFETY: the host lends the bytes for the call.
        let opened = E::backend().open(index, unsafe { settings(bytes) }?)?;
        // SAFETY: the host gives a place for the pointer.
        unsafe { *device = Box::into_raw(Box::new(opened)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn device_close<E: Exported>(device: *mut Device) {
    // SAFETY: `device_open` made it, and the host closes it once.
    discard_value(unsafe { Box::from_raw(device.cast::<DeviceOf<E>>()) });
}

unsafe extern "C" fn device_supports<E: Exported>(device: *const Device, call: Bytes) -> *mut Status {
    guard(|| {
        // SAFETY: `device_open` made it, and it is not closed; the host lends the bytes.
        let (device, call) = unsafe { (&*device.cast::<DeviceOf<E>>(), lent(call)) };
        let call = PlanView::read_call(call)?;
        device.supports(&call).map_err(|reason| Failure::unsupported(0, reason))
    })
}

unsafe extern "C" fn device_compile<E: Exported>(
    device: *const Device,
    plan: Bytes,
    executable: *mut *mut Executable,
) -> *mut Status {
    guard(|| {
        // SAFETY: `device_open` made it, and it is not closed; the host lends the bytes.
        let (device, plan) = unsafe { (&*device.cast::<DeviceOf<E>>(), lent(plan)) };
        let guarded = Guarded {
            poisoned: false,
            inner: device.compile(PlanView::read(plan)?)?,
        };
        // SAFETY: the host gives a place for the pointer.
        unsafe { *executable = Box::into_raw(Box::new(guarded)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn executable_free<E: Exported>(executable: *mut Executable) {
    // SAFETY: `device_compile` made it, and the host frees it once.
    discard_value(unsafe { Box::from_raw(executable.cast::<Guarded<ExecutableOf<E>>>()) });
}

unsafe extern "C" fn executable_write<E: Exported>(
    executable: *mut Executable,
    buffer: u32,
    offset: u64,
    bytes: Bytes,
) -> *mut Status {
    // SAFETY: the host lends the bytes, and uses the executable from one thread at a time.
    unsafe { with::<E>(executable, |e| e.write(buffer, offset, lent(bytes))) }
}

unsafe extern "C" fn executable_read<E: Exported>(
    executable: *mut Executable,
    buffer: u32,
    offset: u64,
    bytes: *mut u8,
    len: u64,
) -> *mut Status {
    let run = |e: &mut ExecutableOf<E>| {
        let bytes = match bytes.is_null() {
            true => &mut [],
            // SAFETY: the host gives so many bytes.
            false => unsafe { std::slice::from_raw_parts_mut(bytes, len as usize) },
        };
        e.read(buffer, offset, bytes)
    };
    // SAFETY: the host uses the executable from one thread at a time.
    unsafe { with::<E>(executable, run) }
}

unsafe extern "C" fn executable_run<E: Exported>(
    executable: *mut Executable,
    step: *const Step,
    ticket: *mut u64,
) -> *mut Status {
    let run = |e: &mut ExecutableOf<E>| {
        // SAFETY: the host lends the step with its lists, and gives a place for the number.
        let (segments, scalars) = unsafe {
            *ticket = 0;
            let step = &*step;
            let scalars: &[Scalar] = list(step.scalars, step.scalar_count);
            (list(step.segments, step.segment_count), scalars)
        };
        if scalars.len() <= 16 {
            let mut few = [(0, [0; 4]); 16];
            few.iter_mut()
                .zip(scalars)
                .for_each(|(to, s)| *to = (s.buffer, s.bytes));
            return e.run(segments, &few[..scalars.len()]);
        }
        let scalars: Vec<_> = scalars.iter().map(|s| (s.buffer, s.bytes)).collect();
        e.run(segments, &scalars)
    };
    // SAFETY: the host uses the executable from one thread at a time.
    unsafe { with::<E>(executable, run) }
}

/// # Safety
/// There are so many elements, which are valid for the lifetime.
unsafe fn list<'a, T>(first: *const T, count: u32) -> &'a [T] {
    match first.is_null() {
        true => &[],
        // SAFETY: by contract.
        false => unsafe { std::slice::from_raw_parts(first, count as usize) },
    }
}

/// Steps are over when they were run.
unsafe extern "C" fn executable_wait(_: *mut Executable, ticket: u64, _: *mut Progress) -> *mut Status {
    match ticket {
        0 => ptr::null_mut(),
        _ => status(&Failure::new(STATUS_FAILED, format!("there was no step {ticket}"))),
    }
}
