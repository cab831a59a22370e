//! Structures and numbers of the interface between host and plugin.

use std::ffi::c_char;

use crate::describe::{numbers, structures};

/// Name of the symbol that contains the manifest, a text that ends with a NUL.
pub const MANIFEST_SYMBOL: &str = "meganeura_plugin_manifest";
/// Name of the function that returns the table of functions; see [`EntryFn`].
pub const ENTRY_SYMBOL: &str = "meganeura_plugin_entry";
/// Maximum bytes of a manifest, including its NUL.
pub const MANIFEST_LIMIT: usize = 4096;
/// Magic number at the start of a plan.
pub const PLAN_MAGIC: [u8; 8] = *b"MGNPLAN\0";

/// Type of the function [`ENTRY_SYMBOL`]. The returned table lives as long as the process; null rejects the host.
pub type EntryFn = unsafe extern "C" fn(host: *const Host) -> *const Plugin;

/// An open device. The pointer is opaque to the host.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    _private: [u8; 0],
}

/// A compiled plan with its memory. The pointer is opaque to the host.
#[repr(C)]
#[derive(Debug)]
pub struct Executable {
    _private: [u8; 0],
}

numbers! { NUMBERS;
    /// Major version of the interface; different major versions are incompatible.
    ABI_MAJOR: u16 = 1;
    /// Minor version; a higher one only adds fields at the ends of structures.
    ABI_MINOR: u16 = 0;
    /// Version of the format of plans.
    PLAN_VERSION: u32 = 1;
    /// Index that stands for an absent operand, buffer or segment condition.
    NONE: u32 = 0xffff_ffff;

    /// IEEE 754 binary32.
    DTYPE_F32: u32 = 0;
    /// IEEE 754 binary16.
    DTYPE_F16: u32 = 1;
    /// bfloat16: the upper half of a binary32.
    DTYPE_BF16: u32 = 2;
    /// Unsigned 32-bit integer.
    DTYPE_U32: u32 = 3;
    /// Signed 32-bit integer.
    DTYPE_I32: u32 = 4;

    /// Kind of a plan: a complete plan.
    PLAN_WHOLE: u32 = 0;
    /// Kind of a plan: one dispatch without buffers, to query whether there is a kernel for it.
    PLAN_CALL: u32 = 1;

    /// Precision: products are computed in `f32`.
    PRECISION_F32: u32 = 0;
    /// Precision: operands of products may be rounded to `f16`.
    PRECISION_MIXED: u32 = 1;

    /// Flag of a buffer: a parameter.
    BUFFER_PARAMETER: u32 = 1;
    /// Flag of a buffer: an input, set by the caller.
    BUFFER_INPUT: u32 = 2;
    /// Flag of a buffer: a state, which is persistent data that is not a parameter; every element is initially `fill`.
    BUFFER_STATE: u32 = 4;
    /// Flag of a buffer: a constant, with data in the plan; no dispatch changes it.
    BUFFER_CONSTANT: u32 = 8;
    /// Flag of a buffer: a scalar, whose value is set for each step.
    BUFFER_SCALAR: u32 = 16;
    /// Flag of a buffer: an output of the graph.
    BUFFER_OUTPUT: u32 = 32;
    /// Flag of a buffer: the gradient of a leaf.
    BUFFER_GRADIENT: u32 = 64;
    /// Flag of a buffer: a parameter or state that a step may write before it detects a fault. After a fault the plugin
    /// must restore its contents from the start of the step.
    BUFFER_EXPOSED: u32 = 128;

    /// Kind of an attribute: an integer, in `value` as two's complement.
    ATTR_INT: u32 = 0;
    /// Integers, in `list`: a range of the table `integers`.
    ATTR_INTS: u32 = 1;
    /// A number; `value` has its binary64 bits.
    ATTR_FLOAT: u32 = 2;
    /// A flag, 0 or 1 in `value`.
    ATTR_BOOL: u32 = 3;
    /// A text, in `list`: a range of the table `bytes`.
    ATTR_TEXT: u32 = 4;
    /// An element type, in `value`.
    ATTR_DTYPE: u32 = 5;
    /// A program; `value` is its index in the table `programs`.
    ATTR_PROGRAM: u32 = 6;

    /// Class of a device: the host's processor.
    DEVICE_CPU: u32 = 0;
    /// Class of a device: a GPU with its own memory.
    DEVICE_DISCRETE_GPU: u32 = 1;
    /// Class of a device: a GPU that shares the host's memory.
    DEVICE_INTEGRATED_GPU: u32 = 2;
    /// Class of a device: another accelerator.
    DEVICE_ACCELERATOR: u32 = 3;
    /// Class of a device: emulated in software; never selected automatically.
    DEVICE_SOFTWARE: u32 = 4;

    /// Flag of a device: `numeric_id` contains its identity.
    DEVICE_HAS_ID: u32 = 1;
    /// Flag of a device: host and device share memory.
    DEVICE_UNIFIED: u32 = 2;

    /// Code of a status: any error without a more specific code.
    STATUS_FAILED: u32 = 1;
    /// Code of a status: a dispatch has no kernel; `detail[0]` is its index, or an index beyond the plan if unknown.
    STATUS_UNSUPPORTED: u32 = 2;
    /// Code of a status: the plan is inconsistent; the message describes where.
    STATUS_INVALID_PLAN: u32 = 3;
    /// Code of a status: not enough memory; `detail[0]` is the requested number of bytes, `detail[1]` the available
    /// one, if not 0.
    STATUS_OUT_OF_MEMORY: u32 = 4;
    /// Code of a status: dispatch `detail[0]` used index `detail[1]` of a table with `detail[2]` rows.
    STATUS_INDEX_OUT_OF_RANGE: u32 = 5;
    /// Code of a status: a read or write outside of a buffer, or of a missing buffer.
    STATUS_OUT_OF_BOUNDS: u32 = 6;
    /// Code of a status: the device is lost; the executable is no longer usable.
    STATUS_DEVICE_LOST: u32 = 7;
    /// Code of a status: the plugin panicked; the host does not use the executable any more.
    STATUS_PANIC: u32 = 8;
}

structures! { STRUCTS;
    /// Range of elements in a table of the plan.
    struct Range [8] {
        /// First element.
        first: u32,
        /// Number of elements.
        count: u32,
    }

    /// A table of the plan.
    struct Table [16] {
        /// Offset in bytes from the start of the plan, a multiple of 8. Tables do not overlap.
        offset: u64,
        /// Number of elements.
        count: u32,
        /// Stride in bytes between elements, at least the size of the structure in this version; 8 for `integers`, 1
        /// for `bytes`.
        stride: u32,
    }

    /// Header of a plan, at an address that is a multiple of 64. All numbers are little-endian; all offsets are
    /// relative to the header.
    struct Plan [216] {
        /// `MGNPLAN` with a terminating NUL.
        magic: [u8; 8],
        /// Version of the format.
        version: u32,
        /// Size of this structure in bytes, in the writer's version.
        header_size: u32,
        /// Size of the whole plan in bytes.
        total_bytes: u64,
        /// Size in bytes of the arena, which contains buffers at their `offset`.
        arena_bytes: u64,
        /// `PLAN_WHOLE` or `PLAN_CALL`.
        kind: u32,
        /// `PRECISION_...`.
        precision: u32,
        /// Table of `Buffer`.
        buffers: Table,
        /// Table of `Dispatch`, ordered by segment, and by level within a segment.
        dispatches: Table,
        /// Table of `Segment`.
        segments: Table,
        /// Table of `Operand`.
        operands: Table,
        /// Table of `Attribute`.
        attributes: Table,
        /// Table of `Program`.
        programs: Table,
        /// Table of `ProgramStep`.
        steps: Table,
        /// Table of `Slot`.
        slots: Table,
        /// Table of 64-bit integers: dimensions, and lists in attributes.
        integers: Table,
        /// Table of names and labels, in UTF-8, without terminators.
        bytes: Table,
        /// Reserved; 0.
        reserved: u64,
        /// Reserved; 0.
        reserved2: u64,
    }

    /// A logical buffer. Buffers that are not live at the same time may overlap in the arena. A backend that allocates
    /// each buffer separately can ignore the offsets.
    struct Buffer [72] {
        /// Size in bytes.
        bytes: u64,
        /// Offset in the arena.
        offset: u64,
        /// Offset of its data in the plan, a multiple of 64, if it is a constant.
        data_offset: u64,
        /// Size of these data in bytes.
        data_bytes: u64,
        /// `DTYPE_...`.
        dtype: u32,
        /// Any combination of the flags `BUFFER_...`.
        flags: u32,
        /// Dimensions, in `integers`.
        dims: Range,
        /// Name of a leaf, in `bytes`; empty for other buffers.
        name: Range,
        /// Initial value of each element of a state.
        fill: f32,
        /// Reserved; 0.
        reserved: u32,
        /// Reserved; 0.
        reserved2: u64,
    }

    /// A view of a buffer in a dispatch: views of the same buffer may differ in shape.
    struct Operand [16] {
        /// Index of the buffer; `NONE` only in plans of the kind `PLAN_CALL`.
        buffer: u32,
        /// `DTYPE_...`.
        dtype: u32,
        /// Dimensions, in `integers`.
        dims: Range,
    }

    /// One launch of a kernel.
    struct Dispatch [72] {
        /// Name of the operator, in `bytes`: `core.matmul`.
        kernel: Range,
        /// Origin of the dispatch, for messages, in `bytes`.
        label: Range,
        /// Version of the operator's definition.
        version: u32,
        /// Level in its segment: dispatches of one level are independent of each other.
        level: u32,
        /// Operands that it reads, in `operands`.
        inputs: Range,
        /// Results that it writes, in `operands`. A result that shares its buffer with an operand is written in place.
        outputs: Range,
        /// In `attributes`.
        attributes: Range,
        /// Operand with indices into a table, or `NONE`.
        index_operand: u32,
        /// Reserved; 0.
        reserved: u32,
        /// Exclusive upper bound of these indices.
        index_rows: u64,
        /// Reserved; 0.
        reserved2: u64,
    }

    /// A range of dispatches that a step can run or skip.
    struct Segment [24] {
        /// Name, in `bytes`.
        name: Range,
        /// First dispatch.
        first: u32,
        /// Number of dispatches.
        count: u32,
        /// Buffer with one `f32`, or `NONE`: if its value is not 0 when the segment begins, the segment writes no
        /// parameter and no state. The buffer has 4 bytes.
        skip_if: u32,
        /// Reserved; 0.
        reserved: u32,
    }

    /// A named, typed attribute of a call.
    struct Attribute [32] {
        /// Name, in `bytes`.
        name: Range,
        /// `ATTR_...`, which determines where the value is stored.
        kind: u32,
        /// Reserved; 0.
        reserved: u32,
        /// The value, or its index.
        value: u64,
        /// Range of a list or a text.
        list: Range,
    }

    /// Several calls combined into one: the attribute of `core.fused`.
    struct Program [24] {
        /// Number of operands.
        operands: u32,
        /// Reserved; 0.
        reserved: u32,
        /// Calls in order, in `steps`.
        steps: Range,
        /// Results, in `slots`.
        results: Range,
    }

    /// A call of a program.
    struct ProgramStep [32] {
        /// Name of the operator, in `bytes`.
        kernel: Range,
        /// Version of its definition.
        version: u32,
        /// Reserved; 0.
        reserved: u32,
        /// In `attributes`.
        attributes: Range,
        /// Operands, in `slots`.
        inputs: Range,
    }

    /// A value within a program.
    struct Slot [8] {
        /// Step that computes the value, or `NONE` for an operand of the program.
        step: u32,
        /// Index of the result of the step, or of the operand.
        index: u32,
    }

    /// Borrowed bytes, which are valid during the call.
    struct Bytes [16] {
        /// First byte; may be null if there are none.
        data: *const u8,
        /// Number of bytes.
        len: u64,
    }

    /// An error. A null pointer to a status is success. The receiver passes it to `status_free`.
    struct Status [56] {
        /// Size of this structure in bytes.
        struct_size: u32,
        /// `STATUS_...`.
        code: u32,
        /// Message, in UTF-8 with a NUL; may be null.
        message: *const c_char,
        /// Location of the error, in UTF-8 with a NUL; may be null.
        context: *const c_char,
        /// Numbers with a meaning that depends on the code.
        detail: [u64; 3],
        /// Data of the plugin for `status_free`; the host ignores it.
        owner: *const u8,
    }

    /// An element of the list of extensions; unknown ones must be ignored.
    struct Extension [24] {
        /// Name, with a NUL.
        name: *const c_char,
        /// Next extension; null at the end.
        next: *const Extension,
        /// Size in bytes of the structure that begins with this one.
        struct_size: u32,
        /// Version of the extension.
        version: u32,
    }

    /// Description of the host.
    struct Host [40] {
        /// Size of this structure in bytes.
        struct_size: u32,
        /// `ABI_MAJOR` of the host.
        abi_major: u16,
        /// `ABI_MINOR` of the host.
        abi_minor: u16,
        /// Oldest version of plans that the host writes.
        plan_oldest: u32,
        /// Newest version of plans that the host writes.
        plan_newest: u32,
        /// List of extensions; null if empty.
        extensions: *const Extension,
        /// Version of Meganeura, with a NUL.
        version: *const c_char,
    } functions {
        /// Writes a line to the host's log: level 1 error, 2 warning, 3 information, 4 and more debugging.
        fn log(level: u32, message: *const c_char);
    }

    /// Description of a device. Texts are UTF-8 and end with a NUL.
    struct DeviceInfo [872] {
        /// Size of this structure in bytes, set by the host; the plugin must not write beyond it.
        struct_size: u32,
        /// Class of the device, `DEVICE_...`.
        kind: u32,
        /// Flags, such as `DEVICE_HAS_ID`.
        flags: u32,
        /// Supported element types of buffers: one bit `1 << DTYPE_...` for each.
        dtypes: u32,
        /// Identity, as defined by the backend, if the flag is set.
        numeric_id: u64,
        /// Memory in bytes; 0 if unknown.
        memory_bytes: u64,
        /// Maximum size of a buffer in bytes; 0 if unlimited.
        max_buffer_bytes: u64,
        /// Fixed cost of a dispatch.
        launch_nanos: u64,
        /// Memory bandwidth in bytes per second.
        bytes_per_second: f64,
        /// FLOP/s of a large matmul in `f32`.
        flops_per_second: f64,
        /// FLOP/s of a large matmul with half-precision operands.
        half_flops_per_second: f64,
        /// Display name.
        name: [c_char; 128],
        /// Driver and its version; empty if there is none.
        driver: [c_char; 128],
        /// Reason why the device cannot be used; empty if it can.
        rejected: [c_char; 256],
        /// Notes for users; may be empty.
        note: [c_char; 256],
        /// Identity of its kernels: when it changes, plans in files are built again.
        kernels: [c_char; 32],
    }

    /// Value of a scalar for a step.
    struct Scalar [8] {
        /// Index of the buffer.
        buffer: u32,
        /// Bytes as they are stored; two-byte types use the first half.
        bytes: [u8; 4],
    }

    /// Request for a step.
    struct Step [32] {
        /// Size of this structure in bytes.
        struct_size: u32,
        /// Number of segments.
        segment_count: u32,
        /// Segments to run, in order.
        segments: *const u32,
        /// Scalars to set before the step.
        scalars: *const Scalar,
        /// Number of scalars.
        scalar_count: u32,
        /// Reserved; 0.
        reserved: u32,
    }

    /// Progress of submitted steps.
    struct Progress [32] {
        /// Size of this structure in bytes, set by the host.
        struct_size: u32,
        /// Reserved; 0.
        reserved: u32,
        /// Device time of the step that was waited for; 0 if not measured.
        device_nanos: u64,
        /// Number of accepted steps that may still report a fault.
        unsettled: u64,
        /// Number of accepted steps that were discarded because of a fault in them or in an earlier step.
        given_up: u64,
    }

    /// Functions of a plugin. Each may be called from any thread; calls with one executable never overlap. Functions
    /// return null for success. Functions marked as optional may be null.
    struct Plugin [144] {
        /// Size of this structure in bytes.
        struct_size: u32,
        /// `ABI_MAJOR` that the plugin was built with.
        abi_major: u16,
        /// `ABI_MINOR` that the plugin was built with.
        abi_minor: u16,
        /// Oldest version of plans that the plugin reads.
        plan_oldest: u32,
        /// Newest version of plans that the plugin reads.
        plan_newest: u32,
        /// List of extensions; null if empty.
        extensions: *const Extension,
    } functions {
        /// Frees a status that a function of this plugin returned.
        fn status_free(status: *mut Status);
        /// Returns the number of devices, including rejected ones. Settings are lines `key = value`, as in the section
        /// `[backend.NAME]` of the configuration file.
        fn device_count(settings: Bytes, count: *mut u32) -> *mut Status;
        /// Describes a device. The host zeroes all of `info` except `struct_size` before the call. Here and below,
        /// `index` is less than the number of devices.
        fn device_info(settings: Bytes, index: u32, info: *mut DeviceInfo) -> *mut Status;
        /// Opens a device.
        fn device_open(settings: Bytes, index: u32, device: *mut *mut Device) -> *mut Status;
        /// Closes a device that has no executables left.
        fn device_close(device: *mut Device);
        /// Checks the kernel for the dispatch of a plan of the kind `PLAN_CALL`: returns null if there is one,
        /// otherwise a status with the reason.
        fn device_supports(device: *const Device, call: Bytes) -> *mut Status;
        /// Compiles a plan and allocates its buffers: zeroed, with constants and the initial values of states written.
        /// The host does not keep the plan after the call.
        fn device_compile(device: *const Device, plan: Bytes, executable: *mut *mut Executable) -> *mut Status;
        /// Frees an executable with its memory.
        fn executable_free(executable: *mut Executable);
        /// Writes bytes of a buffer before the next step.
        fn executable_write(executable: *mut Executable, buffer: u32, offset: u64, bytes: Bytes) -> *mut Status;
        /// Reads bytes of a buffer after all submitted steps.
        fn executable_read(executable: *mut Executable, buffer: u32, offset: u64, bytes: *mut u8, len: u64) -> *mut Status;
        /// Submits a step, which may still run on return, and returns its number. A step with a fault changes no
        /// parameter and no state; neither do steps that are submitted before its error is reported.
        fn executable_run(executable: *mut Executable, step: *const Step, ticket: *mut u64) -> *mut Status;
        /// Waits for a step.
        fn executable_wait(executable: *mut Executable, ticket: u64, progress: *mut Progress) -> *mut Status;
        /// Optional: returns the progress of steps; null if steps are complete when `executable_run` returns.
        fn executable_progress(executable: *const Executable, progress: *mut Progress);
        /// Optional: returns the number of dependent launches of a call; see `device_supports`.
        fn device_launches(device: *const Device, call: Bytes) -> u32;
        /// Reserved; null.
        fn reserved();
    }
}
