//! The structures that cross the border, and the numbers in them.

use std::ffi::c_char;

use crate::describe::{numbers, structures};

/// Name of the symbol with the manifest, a text that ends with a NUL.
pub const MANIFEST_SYMBOL: &str = "meganeura_plugin_manifest";
/// Name of the function that returns the table of functions; see [`EntryFn`].
pub const ENTRY_SYMBOL: &str = "meganeura_plugin_entry";
/// Most bytes of a manifest, its NUL included.
pub const MANIFEST_LIMIT: usize = 4096;
/// The first bytes of a plan.
pub const PLAN_MAGIC: [u8; 8] = *b"MGNPLAN\0";

/// Type of [`ENTRY_SYMBOL`]. What it returns lives as long as the process; null is a refusal.
pub type EntryFn = unsafe extern "C" fn(host: *const Host) -> *const Plugin;

/// An open device; what is behind the pointer is the plugin's.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    _private: [u8; 0],
}

/// A compiled plan with its memory; what is behind the pointer is the plugin's.
#[repr(C)]
#[derive(Debug)]
pub struct Executable {
    _private: [u8; 0],
}

numbers! { NUMBERS;
    /// Major version of the interface; another one is another interface.
    ABI_MAJOR: u16 = 1;
    /// Minor version; a greater one has more fields at the ends of structures, and nothing less.
    ABI_MINOR: u16 = 0;
    /// Version of the plan's format.
    PLAN_VERSION: u32 = 1;
    /// No index: an absent operand, buffer or segment condition.
    NONE: u32 = 0xffff_ffff;

    /// IEEE 754 binary32.
    DTYPE_F32: u32 = 0;
    /// IEEE 754 binary16.
    DTYPE_F16: u32 = 1;
    /// The upper half of a binary32.
    DTYPE_BF16: u32 = 2;
    /// Unsigned 32-bit integer.
    DTYPE_U32: u32 = 3;
    /// Signed 32-bit integer.
    DTYPE_I32: u32 = 4;

    /// What a plan is: a whole one.
    PLAN_WHOLE: u32 = 0;
    /// One dispatch without buffers, to ask whether there is a kernel for it.
    PLAN_CALL: u32 = 1;

    /// Products are computed in `f32`.
    PRECISION_F32: u32 = 0;
    /// Operands of products may be rounded to `f16`.
    PRECISION_MIXED: u32 = 1;

    /// Flag of a buffer: a parameter.
    BUFFER_PARAMETER: u32 = 1;
    /// Fed by the caller.
    BUFFER_INPUT: u32 = 2;
    /// Persistent data that is not a parameter; every element is `fill` at first.
    BUFFER_STATE: u32 = 4;
    /// Has data in the plan, which no dispatch changes.
    BUFFER_CONSTANT: u32 = 8;
    /// A number that comes with each step.
    BUFFER_SCALAR: u32 = 16;
    /// A result of the graph.
    BUFFER_OUTPUT: u32 = 32;
    /// The gradient of a leaf.
    BUFFER_GRADIENT: u32 = 64;
    /// A parameter or state that a step writes while it may still meet a fault: whoever meets one has to put back what
    /// it held when the step began.
    BUFFER_EXPOSED: u32 = 128;

    /// Kind of an attribute: an integer, in `value` as two's complement.
    ATTR_INT: u32 = 0;
    /// Integers, in `list`, a range of the table `integers`.
    ATTR_INTS: u32 = 1;
    /// A number, whose binary64 bits are in `value`.
    ATTR_FLOAT: u32 = 2;
    /// A flag, 0 or 1 in `value`.
    ATTR_BOOL: u32 = 3;
    /// A text, in `list`, a range of the table `bytes`.
    ATTR_TEXT: u32 = 4;
    /// An element type, in `value`.
    ATTR_DTYPE: u32 = 5;
    /// A program, whose place in the table `programs` is in `value`.
    ATTR_PROGRAM: u32 = 6;

    /// Class of a device: the host's processor.
    DEVICE_CPU: u32 = 0;
    /// A GPU with memory of its own.
    DEVICE_DISCRETE_GPU: u32 = 1;
    /// A GPU that shares the host's memory.
    DEVICE_INTEGRATED_GPU: u32 = 2;
    /// Another accelerator.
    DEVICE_ACCELERATOR: u32 = 3;
    /// Emulated; never chosen automatically.
    DEVICE_SOFTWARE: u32 = 4;

    /// Flag of a device: `numeric_id` holds its identity.
    DEVICE_HAS_ID: u32 = 1;
    /// Host and device share memory.
    DEVICE_UNIFIED: u32 = 2;

    /// Code of a status: anything that no other code says.
    STATUS_FAILED: u32 = 1;
    /// There is no kernel for a dispatch; `detail[0]` is its number, or one that the plan does not have.
    STATUS_UNSUPPORTED: u32 = 2;
    /// The plan is not consistent; the message says where.
    STATUS_INVALID_PLAN: u32 = 3;
    /// Not enough memory; `detail[0]` bytes were asked for, `detail[1]` are there, if not 0.
    STATUS_OUT_OF_MEMORY: u32 = 4;
    /// Dispatch `detail[0]` met index `detail[1]` of a table of `detail[2]` rows.
    STATUS_INDEX_OUT_OF_RANGE: u32 = 5;
    /// A read or write outside of a buffer, or of no buffer.
    STATUS_OUT_OF_BOUNDS: u32 = 6;
    /// The device is gone; the executable cannot be used any more.
    STATUS_DEVICE_LOST: u32 = 7;
    /// The plugin panicked; the host uses the executable no more.
    STATUS_PANIC: u32 = 8;
}

structures! { STRUCTS;
    /// Elements of a table of the plan.
    struct Range [8] {
        /// The first one.
        first: u32,
        /// How many.
        count: u32,
    }

    /// A table of the plan.
    struct Table [16] {
        /// Bytes from the beginning of the plan, a multiple of 8. Tables do not overlap.
        offset: u64,
        /// Number of elements.
        count: u32,
        /// Bytes from one element to the next, at least the size of the structure as it is known here; of `integers` 8, of
        /// `bytes` 1.
        stride: u32,
    }

    /// The beginning of a plan, at an address that is a multiple of 64. Everything is little-endian, and all places are
    /// relative to this one.
    struct Plan [216] {
        /// `MGNPLAN` and a NUL.
        magic: [u8; 8],
        /// Version of the format.
        version: u32,
        /// Bytes of this structure as the writer knew it.
        header_size: u32,
        /// Bytes of the whole.
        total_bytes: u64,
        /// Bytes of the arena in which buffers have their `offset`.
        arena_bytes: u64,
        /// `PLAN_WHOLE` or `PLAN_CALL`.
        kind: u32,
        /// `PRECISION_...`.
        precision: u32,
        /// Of `Buffer`.
        buffers: Table,
        /// Of `Dispatch`, segment after segment, sorted by level within each.
        dispatches: Table,
        /// Of `Segment`.
        segments: Table,
        /// Of `Operand`.
        operands: Table,
        /// Of `Attribute`.
        attributes: Table,
        /// Of `Program`.
        programs: Table,
        /// Of `ProgramStep`.
        steps: Table,
        /// Of `Slot`.
        slots: Table,
        /// Of 64-bit integers: dimensions, and lists in attributes.
        integers: Table,
        /// Names and labels, in UTF-8, without ends.
        bytes: Table,
        /// 0.
        reserved: u64,
        /// 0.
        reserved2: u64,
    }

    /// A logical buffer. Those that are not needed at the same time may overlap in the arena; whoever allocates each on
    /// its own may ignore where they lie.
    struct Buffer [72] {
        /// Its size in bytes.
        bytes: u64,
        /// Its place in the arena.
        offset: u64,
        /// Place of its data in the plan, a multiple of 64, if it is a constant.
        data_offset: u64,
        /// Bytes of these data.
        data_bytes: u64,
        /// `DTYPE_...`.
        dtype: u32,
        /// `BUFFER_...`, any of them.
        flags: u32,
        /// Dimensions, in `integers`.
        dims: Range,
        /// Name of a leaf, in `bytes`; empty for others.
        name: Range,
        /// What each element of a state is at first.
        fill: f32,
        /// 0.
        reserved: u32,
        /// 0.
        reserved2: u64,
    }

    /// A buffer as a dispatch sees it: aliases may differ in shape.
    struct Operand [16] {
        /// Number of the buffer; `NONE` in a call, and only there.
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
        /// Where it comes from, for messages, in `bytes`.
        label: Range,
        /// Version of the operator's meaning.
        version: u32,
        /// Position in the order of its segment: dispatches of a level do not depend on each other.
        level: u32,
        /// What it reads, in `operands`.
        inputs: Range,
        /// What it writes, in `operands`. A result that shares its buffer with an operand is written in place.
        outputs: Range,
        /// In `attributes`.
        attributes: Range,
        /// The operand that holds indices into a table, or `NONE`.
        index_operand: u32,
        /// 0.
        reserved: u32,
        /// What these indices must be below.
        index_rows: u64,
        /// 0.
        reserved2: u64,
    }

    /// Consecutive dispatches that a step may include or leave out.
    struct Segment [24] {
        /// Name, in `bytes`.
        name: Range,
        /// First dispatch.
        first: u32,
        /// How many.
        count: u32,
        /// A buffer with one `f32`, or `NONE`: where it is not 0 when the segment begins, the segment writes no
        /// parameter and no state. The buffer has 4 bytes.
        skip_if: u32,
        /// 0.
        reserved: u32,
    }

    /// A named, typed attribute of a call.
    struct Attribute [32] {
        /// Name, in `bytes`.
        name: Range,
        /// `ATTR_...`, which says where the value is.
        kind: u32,
        /// 0.
        reserved: u32,
        /// The value, or its place.
        value: u64,
        /// A list or a text.
        list: Range,
    }

    /// Several calls as one: the attribute of `core.fused`.
    struct Program [24] {
        /// Number of operands.
        operands: u32,
        /// 0.
        reserved: u32,
        /// The calls in order, in `steps`.
        steps: Range,
        /// What it yields, in `slots`.
        results: Range,
    }

    /// A call of a program.
    struct ProgramStep [32] {
        /// Name of the operator, in `bytes`.
        kernel: Range,
        /// Version of its meaning.
        version: u32,
        /// 0.
        reserved: u32,
        /// In `attributes`.
        attributes: Range,
        /// Operands, in `slots`.
        inputs: Range,
    }

    /// A value within a program.
    struct Slot [8] {
        /// The step whose result it is, or `NONE` for an operand of the program.
        step: u32,
        /// Which result of the step, or which operand.
        index: u32,
    }

    /// Bytes that somebody else owns; they are valid during the call.
    struct Bytes [16] {
        /// The first one; may be null, if there are none.
        data: *const u8,
        /// How many.
        len: u64,
    }

    /// What went wrong. A null pointer to one is success. Whoever gets one gives it back to `status_free`.
    struct Status [56] {
        /// Bytes of this structure.
        struct_size: u32,
        /// `STATUS_...`.
        code: u32,
        /// What is wrong, in UTF-8 with a NUL; may be null.
        message: *const c_char,
        /// Where it happened, likewise; may be null.
        context: *const c_char,
        /// Numbers that belong to the code.
        detail: [u64; 3],
        /// What the plugin likes to find here in `status_free`.
        owner: *const u8,
    }

    /// A link of the chain of extensions; unknown ones are to be ignored.
    struct Extension [24] {
        /// Its name, with a NUL.
        name: *const c_char,
        /// The next one; null at the end.
        next: *const Extension,
        /// Bytes of the structure that begins with this one.
        struct_size: u32,
        /// Version of what it means.
        version: u32,
    }

    /// What the host says of itself.
    struct Host [40] {
        /// Bytes of this structure.
        struct_size: u32,
        /// `ABI_MAJOR` of the host.
        abi_major: u16,
        /// `ABI_MINOR` of the host.
        abi_minor: u16,
        /// Oldest version of plans that it writes.
        plan_oldest: u32,
        /// Newest version of plans that it writes.
        plan_newest: u32,
        /// What else it offers; null, if nothing.
        extensions: *const Extension,
        /// Version of Meganeura, with a NUL.
        version: *const c_char,
    } functions {
        /// Writes a line to the host's log: level 1 error, 2 warning, 3 information, 4 and more debugging.
        fn log(level: u32, message: *const c_char);
    }

    /// A device and what it can do. Texts are UTF-8 and end with a NUL.
    struct DeviceInfo [872] {
        /// Bytes of this structure, set by the host; the plugin writes no further.
        struct_size: u32,
        /// `DEVICE_...`, its class.
        kind: u32,
        /// `DEVICE_HAS_ID` and the like.
        flags: u32,
        /// Element types of buffers: bit `1 << DTYPE_...` for each.
        dtypes: u32,
        /// Identity in the backend's own terms, if the flag says so.
        numeric_id: u64,
        /// Memory in bytes; 0, if not known.
        memory_bytes: u64,
        /// Largest buffer in bytes; 0, if not limited.
        max_buffer_bytes: u64,
        /// Fixed cost of a dispatch.
        launch_nanos: u64,
        /// Bytes a second that memory delivers.
        bytes_per_second: f64,
        /// FLOP/s of a large matmul in `f32`.
        flops_per_second: f64,
        /// The same of half-precision operands.
        half_flops_per_second: f64,
        /// Name for people.
        name: [c_char; 128],
        /// Driver and its version; empty, if there is none.
        driver: [c_char; 128],
        /// Why the device cannot be used; empty, if it can.
        rejected: [c_char; 256],
        /// Anything that users should know; or empty.
        note: [c_char; 256],
        /// What tells its kernels from those of another version; plans in files are made anew when it changes.
        kernels: [c_char; 32],
    }

    /// The bytes of a scalar for a step.
    struct Scalar [8] {
        /// Number of the buffer.
        buffer: u32,
        /// As they are stored; two-byte types use the first half.
        bytes: [u8; 4],
    }

    /// What a step shall do.
    struct Step [32] {
        /// Bytes of this structure.
        struct_size: u32,
        /// Number of segments.
        segment_count: u32,
        /// Segments to run, in order.
        segments: *const u32,
        /// Scalars to set before.
        scalars: *const Scalar,
        /// Number of scalars.
        scalar_count: u32,
        /// 0.
        reserved: u32,
    }

    /// What is known of submissions.
    struct Progress [32] {
        /// Bytes of this structure, set by the host.
        struct_size: u32,
        /// 0.
        reserved: u32,
        /// Time that the device spent on the step that was waited for; 0, if not measured.
        device_nanos: u64,
        /// Steps that were accepted and may still turn out to have met a fault.
        unsettled: u64,
        /// Steps that were accepted and given up, because of a fault in them or in one before.
        given_up: u64,
    }

    /// What a plugin offers. Every function may be called from any thread; calls with one executable never overlap.
    /// Functions return null for success. Those marked optional may be null.
    struct Plugin [144] {
        /// Bytes of this structure.
        struct_size: u32,
        /// `ABI_MAJOR` that the plugin was built with.
        abi_major: u16,
        /// `ABI_MINOR` that the plugin was built with.
        abi_minor: u16,
        /// Oldest version of plans that it reads.
        plan_oldest: u32,
        /// Newest version of plans that it reads.
        plan_newest: u32,
        /// What else it offers; null, if nothing.
        extensions: *const Extension,
    } functions {
        /// Frees a status that a function of this plugin returned.
        fn status_free(status: *mut Status);
        /// Number of devices, the rejected ones included. Settings are lines `key = value`, as in the section
        /// `[backend.NAME]` of the configuration file.
        fn device_count(settings: Bytes, count: *mut u32) -> *mut Status;
        /// Describes a device. All of `info` but its `struct_size` is 0 before. Here and below, `index` is less than the
        /// number of devices.
        fn device_info(settings: Bytes, index: u32, info: *mut DeviceInfo) -> *mut Status;
        /// Opens a device.
        fn device_open(settings: Bytes, index: u32, device: *mut *mut Device) -> *mut Status;
        /// Closes a device, of which no executable is left.
        fn device_close(device: *mut Device);
        /// Whether there is a kernel for the only dispatch of a plan of the kind `PLAN_CALL`: null if there is, else a
        /// status with the reason.
        fn device_supports(device: *const Device, call: Bytes) -> *mut Status;
        /// Prepares everything that replaying a plan needs, with memory for its buffers: zeroed, constants and fills of
        /// states written. The plan is not kept by the host.
        fn device_compile(device: *const Device, plan: Bytes, executable: *mut *mut Executable) -> *mut Status;
        /// Frees an executable with its memory.
        fn executable_free(executable: *mut Executable);
        /// Writes bytes of a buffer before the next step.
        fn executable_write(executable: *mut Executable, buffer: u32, offset: u64, bytes: Bytes) -> *mut Status;
        /// Reads bytes of a buffer after all steps that were submitted.
        fn executable_read(executable: *mut Executable, buffer: u32, offset: u64, bytes: *mut u8, len: u64) -> *mut Status;
        /// Submits a step, which need not be over on return, and gives it a number. A step that meets a fault changes no
        /// parameter and no state, and neither do those that are submitted after it and before its error is told.
        fn executable_run(executable: *mut Executable, step: *const Step, ticket: *mut u64) -> *mut Status;
        /// Waits for a step.
        fn executable_wait(executable: *mut Executable, ticket: u64, progress: *mut Progress) -> *mut Status;
        /// How far the steps are; optional where steps are over when `executable_run` returns.
        fn executable_progress(executable: *const Executable, progress: *mut Progress);
        /// Optional: how many launches that wait for each other a call takes; see `device_supports`.
        fn device_launches(device: *const Device, call: Bytes) -> u32;
        /// Reserved for the future; null.
        fn reserved();
    }
}
