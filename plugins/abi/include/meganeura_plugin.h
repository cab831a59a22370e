/* The C interface between Meganeura and backends in shared objects.
 *
 * Written from the crate meganeura-plugin-abi by `cargo run -p meganeura-plugin-abi --example header`; do not edit.
 * docs/plugin-abi.md explains what is allowed when. The functions at the end read plans.
 */
#ifndef MEGANEURA_PLUGIN_H
#define MEGANEURA_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#define MGN_STATIC_ASSERT(condition) static_assert(condition, #condition)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define MGN_STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#else
#define MGN_STATIC_ASSERT(condition) extern char mgn_static_assert[(condition) ? 1 : -1]
#endif

#if defined(_WIN32)
#define MGN_EXPORT __declspec(dllexport)
#else
#define MGN_EXPORT __attribute__((visibility("default")))
#endif

/* Major version of the interface; different major versions are incompatible. */
#define MGN_ABI_MAJOR 1u
/* Minor version; a higher one only adds fields at the ends of structures. */
#define MGN_ABI_MINOR 0u
/* Version of the format of plans. */
#define MGN_PLAN_VERSION 1u
/* Index that stands for an absent operand, buffer or segment condition. */
#define MGN_NONE 4294967295u
/* IEEE 754 binary32. */
#define MGN_DTYPE_F32 0u
/* IEEE 754 binary16. */
#define MGN_DTYPE_F16 1u
/* bfloat16: the upper half of a binary32. */
#define MGN_DTYPE_BF16 2u
/* Unsigned 32-bit integer. */
#define MGN_DTYPE_U32 3u
/* Signed 32-bit integer. */
#define MGN_DTYPE_I32 4u
/* Kind of a plan: a complete plan. */
#define MGN_PLAN_WHOLE 0u
/* Kind of a plan: one dispatch without buffers, to query whether there is a kernel for it. */
#define MGN_PLAN_CALL 1u
/* Precision: products are computed in `f32`. */
#define MGN_PRECISION_F32 0u
/* Precision: operands of products may be rounded to `f16`. */
#define MGN_PRECISION_MIXED 1u
/* Flag of a buffer: a parameter. */
#define MGN_BUFFER_PARAMETER 1u
/* Flag of a buffer: an input, set by the caller. */
#define MGN_BUFFER_INPUT 2u
/* Flag of a buffer: a state, which is persistent data that is not a parameter; every element is initially `fill`. */
#define MGN_BUFFER_STATE 4u
/* Flag of a buffer: a constant, with data in the plan; no dispatch changes it. */
#define MGN_BUFFER_CONSTANT 8u
/* Flag of a buffer: a scalar, whose value is set for each step. */
#define MGN_BUFFER_SCALAR 16u
/* Flag of a buffer: an output of the graph. */
#define MGN_BUFFER_OUTPUT 32u
/* Flag of a buffer: the gradient of a leaf. */
#define MGN_BUFFER_GRADIENT 64u
/* Flag of a buffer: a parameter or state that a step may write before it detects a fault. After a fault the plugin
 * must restore its contents from the start of the step. */
#define MGN_BUFFER_EXPOSED 128u
/* Kind of an attribute: an integer, in `value` as two's complement. */
#define MGN_ATTR_INT 0u
/* Integers, in `list`: a range of the table `integers`. */
#define MGN_ATTR_INTS 1u
/* A number; `value` has its binary64 bits. */
#define MGN_ATTR_FLOAT 2u
/* A flag, 0 or 1 in `value`. */
#define MGN_ATTR_BOOL 3u
/* A text, in `list`: a range of the table `bytes`. */
#define MGN_ATTR_TEXT 4u
/* An element type, in `value`. */
#define MGN_ATTR_DTYPE 5u
/* A program; `value` is its index in the table `programs`. */
#define MGN_ATTR_PROGRAM 6u
/* Class of a device: the host's processor. */
#define MGN_DEVICE_CPU 0u
/* Class of a device: a GPU with its own memory. */
#define MGN_DEVICE_DISCRETE_GPU 1u
/* Class of a device: a GPU that shares the host's memory. */
#define MGN_DEVICE_INTEGRATED_GPU 2u
/* Class of a device: another accelerator. */
#define MGN_DEVICE_ACCELERATOR 3u
/* Class of a device: emulated in software; never selected automatically. */
#define MGN_DEVICE_SOFTWARE 4u
/* Flag of a device: `numeric_id` contains its identity. */
#define MGN_DEVICE_HAS_ID 1u
/* Flag of a device: host and device share memory. */
#define MGN_DEVICE_UNIFIED 2u
/* Code of a status: any error without a more specific code. */
#define MGN_STATUS_FAILED 1u
/* Code of a status: a dispatch has no kernel; `detail[0]` is its index, or an index beyond the plan if unknown. */
#define MGN_STATUS_UNSUPPORTED 2u
/* Code of a status: the plan is inconsistent; the message describes where. */
#define MGN_STATUS_INVALID_PLAN 3u
/* Code of a status: not enough memory; `detail[0]` is the requested number of bytes, `detail[1]` the available
 * one, if not 0. */
#define MGN_STATUS_OUT_OF_MEMORY 4u
/* Code of a status: dispatch `detail[0]` used index `detail[1]` of a table with `detail[2]` rows. */
#define MGN_STATUS_INDEX_OUT_OF_RANGE 5u
/* Code of a status: a read or write outside of a buffer, or of a missing buffer. */
#define MGN_STATUS_OUT_OF_BOUNDS 6u
/* Code of a status: the device is lost; the executable is no longer usable. */
#define MGN_STATUS_DEVICE_LOST 7u
/* Code of a status: the plugin panicked; the host does not use the executable any more. */
#define MGN_STATUS_PANIC 8u

typedef struct MgnDevice MgnDevice;
typedef struct MgnExecutable MgnExecutable;
typedef struct MgnRange MgnRange;
typedef struct MgnTable MgnTable;
typedef struct MgnPlan MgnPlan;
typedef struct MgnBuffer MgnBuffer;
typedef struct MgnOperand MgnOperand;
typedef struct MgnDispatch MgnDispatch;
typedef struct MgnSegment MgnSegment;
typedef struct MgnAttribute MgnAttribute;
typedef struct MgnProgram MgnProgram;
typedef struct MgnProgramStep MgnProgramStep;
typedef struct MgnSlot MgnSlot;
typedef struct MgnBytes MgnBytes;
typedef struct MgnStatus MgnStatus;
typedef struct MgnExtension MgnExtension;
typedef struct MgnHost MgnHost;
typedef struct MgnDeviceInfo MgnDeviceInfo;
typedef struct MgnScalar MgnScalar;
typedef struct MgnStep MgnStep;
typedef struct MgnProgress MgnProgress;
typedef struct MgnPlugin MgnPlugin;

/* Range of elements in a table of the plan. */
struct MgnRange {
    /* First element. */
    uint32_t first;
    /* Number of elements. */
    uint32_t count;
};
MGN_STATIC_ASSERT(sizeof(MgnRange) == 8);
MGN_STATIC_ASSERT(offsetof(MgnRange, first) == 0);
MGN_STATIC_ASSERT(offsetof(MgnRange, count) == 4);

/* A table of the plan. */
struct MgnTable {
    /* Offset in bytes from the start of the plan, a multiple of 8. Tables do not overlap. */
    uint64_t offset;
    /* Number of elements. */
    uint32_t count;
    /* Stride in bytes between elements, at least the size of the structure in this version; 8 for `integers`, 1
     * for `bytes`. */
    uint32_t stride;
};
MGN_STATIC_ASSERT(sizeof(MgnTable) == 16);
MGN_STATIC_ASSERT(offsetof(MgnTable, offset) == 0);
MGN_STATIC_ASSERT(offsetof(MgnTable, count) == 8);
MGN_STATIC_ASSERT(offsetof(MgnTable, stride) == 12);

/* Header of a plan, at an address that is a multiple of 64. All numbers are little-endian; all offsets are
 * relative to the header. */
struct MgnPlan {
    /* `MGNPLAN` with a terminating NUL. */
    uint8_t magic[8];
    /* Version of the format. */
    uint32_t version;
    /* Size of this structure in bytes, in the writer's version. */
    uint32_t header_size;
    /* Size of the whole plan in bytes. */
    uint64_t total_bytes;
    /* Size in bytes of the arena, which contains buffers at their `offset`. */
    uint64_t arena_bytes;
    /* `PLAN_WHOLE` or `PLAN_CALL`. */
    uint32_t kind;
    /* `PRECISION_...`. */
    uint32_t precision;
    /* Table of `Buffer`. */
    MgnTable buffers;
    /* Table of `Dispatch`, ordered by segment, and by level within a segment. */
    MgnTable dispatches;
    /* Table of `Segment`. */
    MgnTable segments;
    /* Table of `Operand`. */
    MgnTable operands;
    /* Table of `Attribute`. */
    MgnTable attributes;
    /* Table of `Program`. */
    MgnTable programs;
    /* Table of `ProgramStep`. */
    MgnTable steps;
    /* Table of `Slot`. */
    MgnTable slots;
    /* Table of 64-bit integers: dimensions, and lists in attributes. */
    MgnTable integers;
    /* Table of names and labels, in UTF-8, without terminators. */
    MgnTable bytes;
    /* Reserved; 0. */
    uint64_t reserved;
    /* Reserved; 0. */
    uint64_t reserved2;
};
MGN_STATIC_ASSERT(sizeof(MgnPlan) == 216);
MGN_STATIC_ASSERT(offsetof(MgnPlan, magic) == 0);
MGN_STATIC_ASSERT(offsetof(MgnPlan, version) == 8);
MGN_STATIC_ASSERT(offsetof(MgnPlan, header_size) == 12);
MGN_STATIC_ASSERT(offsetof(MgnPlan, total_bytes) == 16);
MGN_STATIC_ASSERT(offsetof(MgnPlan, arena_bytes) == 24);
MGN_STATIC_ASSERT(offsetof(MgnPlan, kind) == 32);
MGN_STATIC_ASSERT(offsetof(MgnPlan, precision) == 36);
MGN_STATIC_ASSERT(offsetof(MgnPlan, buffers) == 40);
MGN_STATIC_ASSERT(offsetof(MgnPlan, dispatches) == 56);
MGN_STATIC_ASSERT(offsetof(MgnPlan, segments) == 72);
MGN_STATIC_ASSERT(offsetof(MgnPlan, operands) == 88);
MGN_STATIC_ASSERT(offsetof(MgnPlan, attributes) == 104);
MGN_STATIC_ASSERT(offsetof(MgnPlan, programs) == 120);
MGN_STATIC_ASSERT(offsetof(MgnPlan, steps) == 136);
MGN_STATIC_ASSERT(offsetof(MgnPlan, slots) == 152);
MGN_STATIC_ASSERT(offsetof(MgnPlan, integers) == 168);
MGN_STATIC_ASSERT(offsetof(MgnPlan, bytes) == 184);
MGN_STATIC_ASSERT(offsetof(MgnPlan, reserved) == 200);
MGN_STATIC_ASSERT(offsetof(MgnPlan, reserved2) == 208);

/* A logical buffer. Buffers that are not live at the same time may overlap in the arena. A backend that allocates
 * each buffer separately can ignore the offsets. */
struct MgnBuffer {
    /* Size in bytes. */
    uint64_t bytes;
    /* Offset in the arena. */
    uint64_t offset;
    /* Offset of its data in the plan, a multiple of 64, if it is a constant. */
    uint64_t data_offset;
    /* Size of these data in bytes. */
    uint64_t data_bytes;
    /* `DTYPE_...`. */
    uint32_t dtype;
    /* Any combination of the flags `BUFFER_...`. */
    uint32_t flags;
    /* Dimensions, in `integers`. */
    MgnRange dims;
    /* Name of a leaf, in `bytes`; empty for other buffers. */
    MgnRange name;
    /* Initial value of each element of a state. */
    float fill;
    /* Reserved; 0. */
    uint32_t reserved;
    /* Reserved; 0. */
    uint64_t reserved2;
};
MGN_STATIC_ASSERT(sizeof(MgnBuffer) == 72);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, bytes) == 0);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, offset) == 8);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, data_offset) == 16);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, data_bytes) == 24);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, dtype) == 32);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, flags) == 36);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, dims) == 40);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, name) == 48);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, fill) == 56);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, reserved) == 60);
MGN_STATIC_ASSERT(offsetof(MgnBuffer, reserved2) == 64);

/* A view of a buffer in a dispatch: views of the same buffer may differ in shape. */
struct MgnOperand {
    /* Index of the buffer; `NONE` only in plans of the kind `PLAN_CALL`. */
    uint32_t buffer;
    /* `DTYPE_...`. */
    uint32_t dtype;
    /* Dimensions, in `integers`. */
    MgnRange dims;
};
MGN_STATIC_ASSERT(sizeof(MgnOperand) == 16);
MGN_STATIC_ASSERT(offsetof(MgnOperand, buffer) == 0);
MGN_STATIC_ASSERT(offsetof(MgnOperand, dtype) == 4);
MGN_STATIC_ASSERT(offsetof(MgnOperand, dims) == 8);

/* One launch of a kernel. */
struct MgnDispatch {
    /* Name of the operator, in `bytes`: `core.matmul`. */
    MgnRange kernel;
    /* Origin of the dispatch, for messages, in `bytes`. */
    MgnRange label;
    /* Version of the operator's definition. */
    uint32_t version;
    /* Level in its segment: dispatches of one level are independent of each other. */
    uint32_t level;
    /* Operands that it reads, in `operands`. */
    MgnRange inputs;
    /* Results that it writes, in `operands`. A result that shares its buffer with an operand is written in place. */
    MgnRange outputs;
    /* In `attributes`. */
    MgnRange attributes;
    /* Operand with indices into a table, or `NONE`. */
    uint32_t index_operand;
    /* Reserved; 0. */
    uint32_t reserved;
    /* Exclusive upper bound of these indices. */
    uint64_t index_rows;
    /* Reserved; 0. */
    uint64_t reserved2;
};
MGN_STATIC_ASSERT(sizeof(MgnDispatch) == 72);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, kernel) == 0);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, label) == 8);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, version) == 16);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, level) == 20);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, inputs) == 24);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, outputs) == 32);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, attributes) == 40);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, index_operand) == 48);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, reserved) == 52);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, index_rows) == 56);
MGN_STATIC_ASSERT(offsetof(MgnDispatch, reserved2) == 64);

/* A range of dispatches that a step can run or skip. */
struct MgnSegment {
    /* Name, in `bytes`. */
    MgnRange name;
    /* First dispatch. */
    uint32_t first;
    /* Number of dispatches. */
    uint32_t count;
    /* Buffer with one `f32`, or `NONE`: if its value is not 0 when the segment begins, the segment writes no
     * parameter and no state. The buffer has 4 bytes. */
    uint32_t skip_if;
    /* Reserved; 0. */
    uint32_t reserved;
};
MGN_STATIC_ASSERT(sizeof(MgnSegment) == 24);
MGN_STATIC_ASSERT(offsetof(MgnSegment, name) == 0);
MGN_STATIC_ASSERT(offsetof(MgnSegment, first) == 8);
MGN_STATIC_ASSERT(offsetof(MgnSegment, count) == 12);
MGN_STATIC_ASSERT(offsetof(MgnSegment, skip_if) == 16);
MGN_STATIC_ASSERT(offsetof(MgnSegment, reserved) == 20);

/* A named, typed attribute of a call. */
struct MgnAttribute {
    /* Name, in `bytes`. */
    MgnRange name;
    /* `ATTR_...`, which determines where the value is stored. */
    uint32_t kind;
    /* Reserved; 0. */
    uint32_t reserved;
    /* The value, or its index. */
    uint64_t value;
    /* Range of a list or a text. */
    MgnRange list;
};
MGN_STATIC_ASSERT(sizeof(MgnAttribute) == 32);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, name) == 0);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, kind) == 8);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, reserved) == 12);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, value) == 16);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, list) == 24);

/* Several calls combined into one: the attribute of `core.fused`. */
struct MgnProgram {
    /* Number of operands. */
    uint32_t operands;
    /* Reserved; 0. */
    uint32_t reserved;
    /* Calls in order, in `steps`. */
    MgnRange steps;
    /* Results, in `slots`. */
    MgnRange results;
};
MGN_STATIC_ASSERT(sizeof(MgnProgram) == 24);
MGN_STATIC_ASSERT(offsetof(MgnProgram, operands) == 0);
MGN_STATIC_ASSERT(offsetof(MgnProgram, reserved) == 4);
MGN_STATIC_ASSERT(offsetof(MgnProgram, steps) == 8);
MGN_STATIC_ASSERT(offsetof(MgnProgram, results) == 16);

/* A call of a program. */
struct MgnProgramStep {
    /* Name of the operator, in `bytes`. */
    MgnRange kernel;
    /* Version of its definition. */
    uint32_t version;
    /* Reserved; 0. */
    uint32_t reserved;
    /* In `attributes`. */
    MgnRange attributes;
    /* Operands, in `slots`. */
    MgnRange inputs;
};
MGN_STATIC_ASSERT(sizeof(MgnProgramStep) == 32);
MGN_STATIC_ASSERT(offsetof(MgnProgramStep, kernel) == 0);
MGN_STATIC_ASSERT(offsetof(MgnProgramStep, version) == 8);
MGN_STATIC_ASSERT(offsetof(MgnProgramStep, reserved) == 12);
MGN_STATIC_ASSERT(offsetof(MgnProgramStep, attributes) == 16);
MGN_STATIC_ASSERT(offsetof(MgnProgramStep, inputs) == 24);

/* A value within a program. */
struct MgnSlot {
    /* Step that computes the value, or `NONE` for an operand of the program. */
    uint32_t step;
    /* Index of the result of the step, or of the operand. */
    uint32_t index;
};
MGN_STATIC_ASSERT(sizeof(MgnSlot) == 8);
MGN_STATIC_ASSERT(offsetof(MgnSlot, step) == 0);
MGN_STATIC_ASSERT(offsetof(MgnSlot, index) == 4);

/* Borrowed bytes, which are valid during the call. */
struct MgnBytes {
    /* First byte; may be null if there are none. */
    const uint8_t *data;
    /* Number of bytes. */
    uint64_t len;
};
MGN_STATIC_ASSERT(sizeof(MgnBytes) == 16);
MGN_STATIC_ASSERT(offsetof(MgnBytes, data) == 0);
MGN_STATIC_ASSERT(offsetof(MgnBytes, len) == 8);

/* An error. A null pointer to a status is success. The receiver passes it to `status_free`. */
struct MgnStatus {
    /* Size of this structure in bytes. */
    uint32_t struct_size;
    /* `STATUS_...`. */
    uint32_t code;
    /* Message, in UTF-8 with a NUL; may be null. */
    const char *message;
    /* Location of the error, in UTF-8 with a NUL; may be null. */
    const char *context;
    /* Numbers with a meaning that depends on the code. */
    uint64_t detail[3];
    /* Data of the plugin for `status_free`; the host ignores it. */
    const uint8_t *owner;
};
MGN_STATIC_ASSERT(sizeof(MgnStatus) == 56);
MGN_STATIC_ASSERT(offsetof(MgnStatus, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnStatus, code) == 4);
MGN_STATIC_ASSERT(offsetof(MgnStatus, message) == 8);
MGN_STATIC_ASSERT(offsetof(MgnStatus, context) == 16);
MGN_STATIC_ASSERT(offsetof(MgnStatus, detail) == 24);
MGN_STATIC_ASSERT(offsetof(MgnStatus, owner) == 48);

/* An element of the list of extensions; unknown ones must be ignored. */
struct MgnExtension {
    /* Name, with a NUL. */
    const char *name;
    /* Next extension; null at the end. */
    const MgnExtension *next;
    /* Size in bytes of the structure that begins with this one. */
    uint32_t struct_size;
    /* Version of the extension. */
    uint32_t version;
};
MGN_STATIC_ASSERT(sizeof(MgnExtension) == 24);
MGN_STATIC_ASSERT(offsetof(MgnExtension, name) == 0);
MGN_STATIC_ASSERT(offsetof(MgnExtension, next) == 8);
MGN_STATIC_ASSERT(offsetof(MgnExtension, struct_size) == 16);
MGN_STATIC_ASSERT(offsetof(MgnExtension, version) == 20);

/* Description of the host. */
struct MgnHost {
    /* Size of this structure in bytes. */
    uint32_t struct_size;
    /* `ABI_MAJOR` of the host. */
    uint16_t abi_major;
    /* `ABI_MINOR` of the host. */
    uint16_t abi_minor;
    /* Oldest version of plans that the host writes. */
    uint32_t plan_oldest;
    /* Newest version of plans that the host writes. */
    uint32_t plan_newest;
    /* List of extensions; null if empty. */
    const MgnExtension *extensions;
    /* Version of Meganeura, with a NUL. */
    const char *version;
    /* Writes a line to the host's log: level 1 error, 2 warning, 3 information, 4 and more debugging. */
    void (*log)(uint32_t level, const char *message);
};
MGN_STATIC_ASSERT(sizeof(MgnHost) == 40);
MGN_STATIC_ASSERT(offsetof(MgnHost, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnHost, abi_major) == 4);
MGN_STATIC_ASSERT(offsetof(MgnHost, abi_minor) == 6);
MGN_STATIC_ASSERT(offsetof(MgnHost, plan_oldest) == 8);
MGN_STATIC_ASSERT(offsetof(MgnHost, plan_newest) == 12);
MGN_STATIC_ASSERT(offsetof(MgnHost, extensions) == 16);
MGN_STATIC_ASSERT(offsetof(MgnHost, version) == 24);
MGN_STATIC_ASSERT(offsetof(MgnHost, log) == 32);

/* Description of a device. Texts are UTF-8 and end with a NUL. */
struct MgnDeviceInfo {
    /* Size of this structure in bytes, set by the host; the plugin must not write beyond it. */
    uint32_t struct_size;
    /* Class of the device, `DEVICE_...`. */
    uint32_t kind;
    /* Flags, such as `DEVICE_HAS_ID`. */
    uint32_t flags;
    /* Supported element types of buffers: one bit `1 << DTYPE_...` for each. */
    uint32_t dtypes;
    /* Identity, as defined by the backend, if the flag is set. */
    uint64_t numeric_id;
    /* Memory in bytes; 0 if unknown. */
    uint64_t memory_bytes;
    /* Maximum size of a buffer in bytes; 0 if unlimited. */
    uint64_t max_buffer_bytes;
    /* Fixed cost of a dispatch. */
    uint64_t launch_nanos;
    /* Memory bandwidth in bytes per second. */
    double bytes_per_second;
    /* FLOP/s of a large matmul in `f32`. */
    double flops_per_second;
    /* FLOP/s of a large matmul with half-precision operands. */
    double half_flops_per_second;
    /* Display name. */
    char name[128];
    /* Driver and its version; empty if there is none. */
    char driver[128];
    /* Reason why the device cannot be used; empty if it can. */
    char rejected[256];
    /* Notes for users; may be empty. */
    char note[256];
    /* Identity of its kernels: when it changes, plans in files are built again. */
    char kernels[32];
};
MGN_STATIC_ASSERT(sizeof(MgnDeviceInfo) == 872);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, kind) == 4);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, flags) == 8);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, dtypes) == 12);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, numeric_id) == 16);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, memory_bytes) == 24);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, max_buffer_bytes) == 32);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, launch_nanos) == 40);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, bytes_per_second) == 48);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, flops_per_second) == 56);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, half_flops_per_second) == 64);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, name) == 72);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, driver) == 200);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, rejected) == 328);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, note) == 584);
MGN_STATIC_ASSERT(offsetof(MgnDeviceInfo, kernels) == 840);

/* Value of a scalar for a step. */
struct MgnScalar {
    /* Index of the buffer. */
    uint32_t buffer;
    /* Bytes as they are stored; two-byte types use the first half. */
    uint8_t bytes[4];
};
MGN_STATIC_ASSERT(sizeof(MgnScalar) == 8);
MGN_STATIC_ASSERT(offsetof(MgnScalar, buffer) == 0);
MGN_STATIC_ASSERT(offsetof(MgnScalar, bytes) == 4);

/* Request for a step. */
struct MgnStep {
    /* Size of this structure in bytes. */
    uint32_t struct_size;
    /* Number of segments. */
    uint32_t segment_count;
    /* Segments to run, in order. */
    const uint32_t *segments;
    /* Scalars to set before the step. */
    const MgnScalar *scalars;
    /* Number of scalars. */
    uint32_t scalar_count;
    /* Reserved; 0. */
    uint32_t reserved;
};
MGN_STATIC_ASSERT(sizeof(MgnStep) == 32);
MGN_STATIC_ASSERT(offsetof(MgnStep, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnStep, segment_count) == 4);
MGN_STATIC_ASSERT(offsetof(MgnStep, segments) == 8);
MGN_STATIC_ASSERT(offsetof(MgnStep, scalars) == 16);
MGN_STATIC_ASSERT(offsetof(MgnStep, scalar_count) == 24);
MGN_STATIC_ASSERT(offsetof(MgnStep, reserved) == 28);

/* Progress of submitted steps. */
struct MgnProgress {
    /* Size of this structure in bytes, set by the host. */
    uint32_t struct_size;
    /* Reserved; 0. */
    uint32_t reserved;
    /* Device time of the step that was waited for; 0 if not measured. */
    uint64_t device_nanos;
    /* Number of accepted steps that may still report a fault. */
    uint64_t unsettled;
    /* Number of accepted steps that were discarded because of a fault in them or in an earlier step. */
    uint64_t given_up;
};
MGN_STATIC_ASSERT(sizeof(MgnProgress) == 32);
MGN_STATIC_ASSERT(offsetof(MgnProgress, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnProgress, reserved) == 4);
MGN_STATIC_ASSERT(offsetof(MgnProgress, device_nanos) == 8);
MGN_STATIC_ASSERT(offsetof(MgnProgress, unsettled) == 16);
MGN_STATIC_ASSERT(offsetof(MgnProgress, given_up) == 24);

/* Functions of a plugin. Each may be called from any thread; calls with one executable never overlap. Functions
 * return null for success. Functions marked as optional may be null. */
struct MgnPlugin {
    /* Size of this structure in bytes. */
    uint32_t struct_size;
    /* `ABI_MAJOR` that the plugin was built with. */
    uint16_t abi_major;
    /* `ABI_MINOR` that the plugin was built with. */
    uint16_t abi_minor;
    /* Oldest version of plans that the plugin reads. */
    uint32_t plan_oldest;
    /* Newest version of plans that the plugin reads. */
    uint32_t plan_newest;
    /* List of extensions; null if empty. */
    const MgnExtension *extensions;
    /* Frees a status that a function of this plugin returned. */
    void (*status_free)(MgnStatus *status);
    /* Returns the number of devices, including rejected ones. Settings are lines `key = value`, as in the section
     * `[backend.NAME]` of the configuration file. */
    MgnStatus *(*device_count)(MgnBytes settings, uint32_t *count);
    /* Describes a device. The host zeroes all of `info` except `struct_size` before the call. Here and below,
     * `index` is less than the number of devices. */
    MgnStatus *(*device_info)(MgnBytes settings, uint32_t index, MgnDeviceInfo *info);
    /* Opens a device. */
    MgnStatus *(*device_open)(MgnBytes settings, uint32_t index, MgnDevice **device);
    /* Closes a device that has no executables left. */
    void (*device_close)(MgnDevice *device);
    /* Checks the kernel for the dispatch of a plan of the kind `PLAN_CALL`: returns null if there is one,
     * otherwise a status with the reason. */
    MgnStatus *(*device_supports)(const MgnDevice *device, MgnBytes call);
    /* Compiles a plan and allocates its buffers: zeroed, with constants and the initial values of states written.
     * The host does not keep the plan after the call. */
    MgnStatus *(*device_compile)(const MgnDevice *device, MgnBytes plan, MgnExecutable **executable);
    /* Frees an executable with its memory. */
    void (*executable_free)(MgnExecutable *executable);
    /* Writes bytes of a buffer before the next step. */
    MgnStatus *(*executable_write)(MgnExecutable *executable, uint32_t buffer, uint64_t offset, MgnBytes bytes);
    /* Reads bytes of a buffer after all submitted steps. */
    MgnStatus *(*executable_read)(MgnExecutable *executable, uint32_t buffer, uint64_t offset, uint8_t *bytes, uint64_t len);
    /* Submits a step, which may still run on return, and returns its number. A step with a fault changes no
     * parameter and no state; neither do steps that are submitted before its error is reported. */
    MgnStatus *(*executable_run)(MgnExecutable *executable, const MgnStep *step, uint64_t *ticket);
    /* Waits for a step. */
    MgnStatus *(*executable_wait)(MgnExecutable *executable, uint64_t ticket, MgnProgress *progress);
    /* Optional: returns the progress of steps; null if steps are complete when `executable_run` returns. */
    void (*executable_progress)(const MgnExecutable *executable, MgnProgress *progress);
    /* Optional: returns the number of dependent launches of a call; see `device_supports`. */
    uint32_t (*device_launches)(const MgnDevice *device, MgnBytes call);
    /* Reserved; null. */
    void (*reserved)(void);
};
MGN_STATIC_ASSERT(sizeof(MgnPlugin) == 144);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, abi_major) == 4);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, abi_minor) == 6);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, plan_oldest) == 8);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, plan_newest) == 12);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, extensions) == 16);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, status_free) == 24);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_count) == 32);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_info) == 40);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_open) == 48);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_close) == 56);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_supports) == 64);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_compile) == 72);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, executable_free) == 80);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, executable_write) == 88);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, executable_read) == 96);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, executable_run) == 104);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, executable_wait) == 112);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, executable_progress) == 120);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, device_launches) == 128);
MGN_STATIC_ASSERT(offsetof(MgnPlugin, reserved) == 136);

/* What a plugin exports: a manifest in TOML, of less than 4096 bytes, and the function. */
extern MGN_EXPORT const char meganeura_plugin_manifest[];
MGN_EXPORT const MgnPlugin *meganeura_plugin_entry(const MgnHost *host);

/* Element i of a table of the plan. */
static inline const void *mgn_at(const MgnPlan *plan, const MgnTable *table, uint32_t i) {
    return (const char *)plan + table->offset + (uint64_t)i * table->stride;
}

static inline const MgnBuffer *mgn_buffer(const MgnPlan *plan, uint32_t i) {
    return (const MgnBuffer *)mgn_at(plan, &plan->buffers, i);
}

static inline const MgnDispatch *mgn_dispatch(const MgnPlan *plan, uint32_t i) {
    return (const MgnDispatch *)mgn_at(plan, &plan->dispatches, i);
}

static inline const MgnSegment *mgn_segment(const MgnPlan *plan, uint32_t i) {
    return (const MgnSegment *)mgn_at(plan, &plan->segments, i);
}

/* Operand i of a range: mgn_operand(plan, dispatch->inputs, 0). */
static inline const MgnOperand *mgn_operand(const MgnPlan *plan, MgnRange range, uint32_t i) {
    return (const MgnOperand *)mgn_at(plan, &plan->operands, range.first + i);
}

/* The integers of a range: dimensions, or a list in an attribute. */
static inline const int64_t *mgn_integers(const MgnPlan *plan, MgnRange range) {
    return (const int64_t *)mgn_at(plan, &plan->integers, range.first);
}

/* The bytes of a range: a name or label of range.count bytes, without an end. */
static inline const char *mgn_text(const MgnPlan *plan, MgnRange range) {
    return (const char *)mgn_at(plan, &plan->bytes, range.first);
}

/* Whether a text of the plan is this word. */
static inline int mgn_is(const MgnPlan *plan, MgnRange range, const char *word) {
    return strlen(word) == range.count && memcmp(mgn_text(plan, range), word, range.count) == 0;
}

/* Number of elements of an operand. */
static inline uint64_t mgn_elements(const MgnPlan *plan, const MgnOperand *operand) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < operand->dims.count; i++)
        product *= (uint64_t)mgn_integers(plan, operand->dims)[i];
    return product;
}

/* The attribute of that name, or NULL. */
static inline const MgnAttribute *mgn_attribute(const MgnPlan *plan, MgnRange attributes, const char *name) {
    for (uint32_t i = 0; i < attributes.count; i++) {
        const MgnAttribute *a = (const MgnAttribute *)mgn_at(plan, &plan->attributes, attributes.first + i);
        if (mgn_is(plan, a->name, name))
            return a;
    }
    return NULL;
}

/* Value of an integer or a flag; the default, if there is no such attribute. */
static inline int64_t mgn_int(const MgnPlan *plan, MgnRange attributes, const char *name, int64_t otherwise) {
    const MgnAttribute *a = mgn_attribute(plan, attributes, name);
    return a ? (int64_t)a->value : otherwise;
}

/* Value of a number; the default, if there is no such attribute. */
static inline double mgn_float(const MgnPlan *plan, MgnRange attributes, const char *name, double otherwise) {
    const MgnAttribute *a = mgn_attribute(plan, attributes, name);
    double value = otherwise;
    if (a)
        memcpy(&value, &a->value, sizeof value);
    return value;
}

/* Whether a plan of len bytes begins like one that this header describes. The host checks everything else. */
static inline int mgn_plan_ok(MgnBytes bytes) {
    const MgnPlan *plan = (const MgnPlan *)(const void *)bytes.data;
    return bytes.len >= sizeof(MgnPlan) && memcmp(plan->magic, "MGNPLAN", 8) == 0 &&
           plan->version == MGN_PLAN_VERSION && plan->total_bytes == bytes.len;
}

#ifdef __cplusplus
}
#endif
#endif
