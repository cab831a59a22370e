//! The expansion of [`export_plugin!`](crate::export_plugin).

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

/// The backend of a plugin, as a static object. [`export_plugin!`](crate::export_plugin) implements this trait.
pub trait ExportedBackend: 'static {
    /// Type of the backend.
    type Backend: Backend;

    /// Returns the backend.
    fn backend() -> &'static Self::Backend;
}

/// Creates a plugin from a backend:
/// `export_plugin!(name: "mine", backend: MyBackend, MyBackend::new());`, in a crate of the type
/// `cdylib`. Selectors use the name; version and description are those of the crate. The expression
/// has to be constant.
///
/// A name that is invalid in selectors, or a description that is too long for a manifest, is a
/// compile error.
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
            struct ThisPlugin;
            impl $crate::export::ExportedBackend for ThisPlugin {
                type Backend = $ty;
                fn backend() -> &'static $ty {
                    &BACKEND
                }
            }
            /// Returns the table of functions.
            ///
            /// # Safety
            /// `host` must be null or point to the host's description of itself.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn meganeura_plugin_entry(host: *const $crate::Host) -> *const $crate::Plugin {
                $crate::export::entry::<ThisPlugin>(host)
            }
        };
    };
}

/// Returns the table of functions of a backend.
pub fn entry<E: ExportedBackend>(_host: *const Host) -> *const Plugin {
    &const { table::<E>() }
}

const fn table<E: ExportedBackend>() -> Plugin {
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

type DeviceOf<E> = <<E as ExportedBackend>::Backend as Backend>::Device;
type ExecutableOf<E> = <DeviceOf<E> as crate::author::Device>::Executable;

/// An executable of the plugin's author, and a flag that is set if it panicked.
struct GuardedExecutable<T> {
    poisoned: bool,
    inner: T,
}

/// A status, together with the texts that it points to.
#[repr(C)]
struct OwnedStatus {
    status: Status,
    message: CString,
}

fn status(failure: &Failure) -> *mut Status {
    let message = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    let owned = Box::new(OwnedStatus {
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

/// Converts a panic to a failure.
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

/// Drops the payload of a panic. The drop may panic, too; that panic is caught, because C code may not unwind.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // The payload of that panic could panic again, so it is never dropped.
        std::mem::forget(another);
    }
}

/// Drops a value of the plugin's author. A panic of the drop is caught and ignored.
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

/// Runs a function with an executable that has not panicked yet.
///
/// # Safety
/// `executable` must come from `device_compile` of the same plugin, and no other code may use it
/// meanwhile.
unsafe fn with<E: ExportedBackend>(
    executable: *mut Executable,
    run: impl FnOnce(&mut ExecutableOf<E>) -> Result<(), Failure>,
) -> *mut Status {
    // SAFETY: by contract.
    let guarded = unsafe { &mut *executable.cast::<GuardedExecutable<ExecutableOf<E>>>() };
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

/// Converts bytes borrowed from the host to a slice.
///
/// # Safety
/// The bytes must be valid for the lifetime `'a`.
unsafe fn lent<'a>(bytes: Bytes) -> &'a [u8] {
    if bytes.data.is_null() {
        &[]
    } else {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(bytes.data, bytes.len as usize) }
    }
}

/// Converts settings borrowed from the host to text.
///
/// # Safety
/// As [`lent`].
unsafe fn settings<'a>(bytes: Bytes) -> Result<&'a str, Failure> {
    // SAFETY: forwarded.
    let bytes = unsafe { lent(bytes) };
    std::str::from_utf8(bytes).map_err(|_| Failure::failed("the settings are not UTF-8"))
}

unsafe extern "C" fn status_free(status: *mut Status) {
    if !status.is_null() {
        // SAFETY: every status of this plugin is an `OwnedStatus`, which begins with the status; the host frees it once.
        drop(unsafe { Box::from_raw(status.cast::<OwnedStatus>()) });
    }
}

unsafe extern "C" fn device_count<E: ExportedBackend>(bytes: Bytes, count: *mut u32) -> *mut Status {
    guard(|| {
        // SAFETY: the host lends the bytes for the call.
        let devices = E::backend().devices(unsafe { settings(bytes) }?)?;
        // SAFETY: the host provides memory for the number.
        unsafe { *count = devices.len() as u32 };
        Ok(())
    })
}

unsafe extern "C" fn device_info<E: ExportedBackend>(bytes: Bytes, index: u32, info: *mut DeviceInfo) -> *mut Status {
    guard(|| {
        // SAFETY: the host lends the bytes for the call.
        let devices = E::backend().devices(unsafe { settings(bytes) }?)?;
        let missing = || Failure::failed(format!("device {index} does not exist"));
        let device = devices.get(index as usize).ok_or_else(missing)?;
        // SAFETY: the host provides memory for its version of `DeviceInfo`, with the size in
        // `struct_size`.
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

/// Copies as much of a text as fits, followed by a NUL.
fn copy_text(target: &mut [c_char], text: &str) {
    let mut len = text.len().min(target.len() - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    for (to, from) in target.iter_mut().zip(text.as_bytes()[..len].iter().chain([&0])) {
        *to = *from as c_char;
    }
}

unsafe extern "C" fn device_open<E: ExportedBackend>(
    bytes: Bytes,
    index: u32,
    device: *mut *mut Device,
) -> *mut Status {
    guard(|| {
        // SAFETY: the host lends the bytes for the call.
        let opened = E::backend().open(index, unsafe { settings(bytes) }?)?;
        // SAFETY: the host provides memory for the pointer.
        unsafe { *device = Box::into_raw(Box::new(opened)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn device_close<E: ExportedBackend>(device: *mut Device) {
    // SAFETY: `device_open` made it, and the host closes it once.
    discard_value(unsafe { Box::from_raw(device.cast::<DeviceOf<E>>()) });
}

unsafe extern "C" fn device_supports<E: ExportedBackend>(device: *const Device, call: Bytes) -> *mut Status {
    guard(|| {
        // SAFETY: `device_open` made it, and it is not closed; the host lends the bytes.
        let (device, call) = unsafe { (&*device.cast::<DeviceOf<E>>(), lent(call)) };
        let call = PlanView::read_call(call)?;
        device.supports(&call).map_err(|reason| Failure::unsupported(0, reason))
    })
}

unsafe extern "C" fn device_compile<E: ExportedBackend>(
    device: *const Device,
    plan: Bytes,
    executable: *mut *mut Executable,
) -> *mut Status {
    guard(|| {
        // SAFETY: `device_open` made it, and it is not closed; the host lends the bytes.
        let (device, plan) = unsafe { (&*device.cast::<DeviceOf<E>>(), lent(plan)) };
        let guarded = GuardedExecutable {
            poisoned: false,
            inner: device.compile(PlanView::read(plan)?)?,
        };
        // SAFETY: the host provides memory for the pointer.
        unsafe { *executable = Box::into_raw(Box::new(guarded)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn executable_free<E: ExportedBackend>(executable: *mut Executable) {
    // SAFETY: `device_compile` made it, and the host frees it once.
    discard_value(unsafe { Box::from_raw(executable.cast::<GuardedExecutable<ExecutableOf<E>>>()) });
}

unsafe extern "C" fn executable_write<E: ExportedBackend>(
    executable: *mut Executable,
    buffer: u32,
    offset: u64,
    bytes: Bytes,
) -> *mut Status {
    // SAFETY: the host lends the bytes, and uses the executable from one thread at a time.
    unsafe { with::<E>(executable, |e| e.write(buffer, offset, lent(bytes))) }
}

unsafe extern "C" fn executable_read<E: ExportedBackend>(
    executable: *mut Executable,
    buffer: u32,
    offset: u64,
    bytes: *mut u8,
    len: u64,
) -> *mut Status {
    let run = |e: &mut ExecutableOf<E>| {
        let bytes = if bytes.is_null() {
            &mut []
        } else {
            // SAFETY: the host provides `len` bytes.
            unsafe { std::slice::from_raw_parts_mut(bytes, len as usize) }
        };
        e.read(buffer, offset, bytes)
    };
    // SAFETY: the host uses the executable from one thread at a time.
    unsafe { with::<E>(executable, run) }
}

unsafe extern "C" fn executable_run<E: ExportedBackend>(
    executable: *mut Executable,
    step: *const Step,
    ticket: *mut u64,
) -> *mut Status {
    let run = |e: &mut ExecutableOf<E>| {
        // SAFETY: the host lends the step with its lists, and provides memory for the number.
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

/// Converts an array of the host to a slice.
///
/// # Safety
/// There must be `count` elements, which are valid for the lifetime.
unsafe fn list<'a, T>(first: *const T, count: u32) -> &'a [T] {
    if first.is_null() {
        &[]
    } else {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(first, count as usize) }
    }
}

/// Returns immediately, because steps are complete when `executable_run` returns.
unsafe extern "C" fn executable_wait(_: *mut Executable, ticket: u64, _: *mut Progress) -> *mut Status {
    match ticket {
        0 => ptr::null_mut(),
        _ => status(&Failure::new(STATUS_FAILED, format!("step {ticket} does not exist"))),
    }
}
