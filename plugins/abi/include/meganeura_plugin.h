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

/* Major version of the interface; another one is another interface. */
#define MGN_ABI_MAJOR 1u
/* Minor version; a greater one has more fields at the ends of structures, and nothing less. */
#define MGN_ABI_MINOR 0u
/* Version of the plan's format. */
#define MGN_PLAN_VERSION 1u
/* No index: an absent operand, buffer or segment condition. */
#define MGN_NONE 4294967295u
/* IEEE 754 binary32. */
#define MGN_DTYPE_F32 0u
/* IEEE 754 binary16. */
#define MGN_DTYPE_F16 1u
/* The upper half of a binary32. */
#define MGN_DTYPE_BF16 2u
/* Unsigned 32-bit integer. */
#define MGN_DTYPE_U32 3u
/* Signed 32-bit integer. */
#define MGN_DTYPE_I32 4u
/* What a plan is: a whole one. */
#define MGN_PLAN_WHOLE 0u
/* One dispatch without buffers, to ask whether there is a kernel for it. */
#define MGN_PLAN_CALL 1u
/* Products are computed in `f32`. */
#define MGN_PRECISION_F32 0u
/* Operands of products may be rounded to `f16`. */
#define MGN_PRECISION_MIXED 1u
/* Flag of a buffer: a parameter. */
#define MGN_BUFFER_PARAMETER 1u
/* Fed by the caller. */
#define MGN_BUFFER_INPUT 2u
/* Persistent data that is not a parameter; every element is `fill` at first. */
#define MGN_BUFFER_STATE 4u
/* Has data in the plan, which no dispatch changes. */
#define MGN_BUFFER_CONSTANT 8u
/* A number that comes with each step. */
#define MGN_BUFFER_SCALAR 16u
/* A result of the graph. */
#define MGN_BUFFER_OUTPUT 32u
/* The gradient of a leaf. */
#define MGN_BUFFER_GRADIENT 64u
/* A parameter or state that a step writes while it may still meet a fault: whoever meets one has to put back what
 * it held when the step began. */
#define MGN_BUFFER_EXPOSED 128u
/* Kind of an attribute: an integer, in `value` as two's complement. */
#define MGN_ATTR_INT 0u
/* Integers, in `list`, a range of the table `integers`. */
#define MGN_ATTR_INTS 1u
/* A number, whose binary64 bits are in `value`. */
#define MGN_ATTR_FLOAT 2u
/* A flag, 0 or 1 in `value`. */
#define MGN_ATTR_BOOL 3u
/* A text, in `list`, a range of the table `bytes`. */
#define MGN_ATTR_TEXT 4u
/* An element type, in `value`. */
#define MGN_ATTR_DTYPE 5u
/* A program, whose place in the table `programs` is in `value`. */
#define MGN_ATTR_PROGRAM 6u
/* Class of a device: the host's processor. */
#define MGN_DEVICE_CPU 0u
/* A GPU with memory of its own. */
#define MGN_DEVICE_DISCRETE_GPU 1u
/* A GPU that shares the host's memory. */
#define MGN_DEVICE_INTEGRATED_GPU 2u
/* Another accelerator. */
#define MGN_DEVICE_ACCELERATOR 3u
/* Emulated; never chosen automatically. */
#define MGN_DEVICE_SOFTWARE 4u
/* Flag of a device: `numeric_id` holds its identity. */
#define MGN_DEVICE_HAS_ID 1u
/* Host and device share memory. */
#define MGN_DEVICE_UNIFIED 2u
/* Code of a status: anything that no other code says. */
#define MGN_STATUS_FAILED 1u
/* There is no kernel for a dispatch; `detail[0]` is its number, or one that the plan does not have. */
#define MGN_STATUS_UNSUPPORTED 2u
/* The plan is not consistent; the message says where. */
#define MGN_STATUS_INVALID_PLAN 3u
/* Not enough memory; `detail[0]` bytes were asked for, `detail[1]` are there, if not 0. */
#define MGN_STATUS_OUT_OF_MEMORY 4u
/* Dispatch `detail[0]` met index `detail[1]` of a table of `detail[2]` rows. */
#define MGN_STATUS_INDEX_OUT_OF_RANGE 5u
/* A read or write outside of a buffer, or of no buffer. */
#define MGN_STATUS_OUT_OF_BOUNDS 6u
/* The device is gone; the executable cannot be used any more. */
#define MGN_STATUS_DEVICE_LOST 7u
/* The plugin panicked; the host uses the executable no more. */
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

/* Elements of a table of the plan. */
struct MgnRange {
    /* The first one. */
    uint32_t first;
    /* How many. */
    uint32_t count;
};
MGN_STATIC_ASSERT(sizeof(MgnRange) == 8);
MGN_STATIC_ASSERT(offsetof(MgnRange, first) == 0);
MGN_STATIC_ASSERT(offsetof(MgnRange, count) == 4);

/* A table of the plan. */
struct MgnTable {
    /* Bytes from the beginning of the plan, a multiple of 8. Tables do not overlap. */
    uint64_t offset;
    /* Number of elements. */
    uint32_t count;
    /* Bytes from one element to the next, at least the size of the structure as it is known here; of `integers` 8, of
     * `bytes` 1. */
    uint32_t stride;
};
MGN_STATIC_ASSERT(sizeof(MgnTable) == 16);
MGN_STATIC_ASSERT(offsetof(MgnTable, offset) == 0);
MGN_STATIC_ASSERT(offsetof(MgnTable, count) == 8);
MGN_STATIC_ASSERT(offsetof(MgnTable, stride) == 12);

/* The beginning of a plan, at an address that is a multiple of 64. Everything is little-endian, and all places are
 * relative to this one. */
struct MgnPlan {
    /* `MGNPLAN` and a NUL. */
    uint8_t magic[8];
    /* Version of the format. */
    uint32_t version;
    /* Bytes of this structure as the writer knew it. */
    uint32_t header_size;
    /* Bytes of the whole. */
    uint64_t total_bytes;
    /* Bytes of the arena in which buffers have their `offset`. */
    uint64_t arena_bytes;
    /* `PLAN_WHOLE` or `PLAN_CALL`. */
    uint32_t kind;
    /* `PRECISION_...`. */
    uint32_t precision;
    /* Of `Buffer`. */
    MgnTable buffers;
    /* Of `Dispatch`, segment after segment, sorted by level within each. */
    MgnTable dispatches;
    /* Of `Segment`. */
    MgnTable segments;
    /* Of `Operand`. */
    MgnTable operands;
    /* Of `Attribute`. */
    MgnTable attributes;
    /* Of `Program`. */
    MgnTable programs;
    /* Of `ProgramStep`. */
    MgnTable steps;
    /* Of `Slot`. */
    MgnTable slots;
    /* Of 64-bit integers: dimensions, and lists in attributes. */
    MgnTable integers;
    /* Names and labels, in UTF-8, without ends. */
    MgnTable bytes;
    /* 0. */
    uint64_t reserved;
    /* 0. */
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

/* A logical buffer. Those that are not needed at the same time may overlap in the arena; whoever allocates each on
 * its own may ignore where they lie. */
struct MgnBuffer {
    /* Its size in bytes. */
    uint64_t bytes;
    /* Its place in the arena. */
    uint64_t offset;
    /* Place of its data in the plan, a multiple of 64, if it is a constant. */
    uint64_t data_offset;
    /* Bytes of these data. */
    uint64_t data_bytes;
    /* `DTYPE_...`. */
    uint32_t dtype;
    /* `BUFFER_...`, any of them. */
    uint32_t flags;
    /* Dimensions, in `integers`. */
    MgnRange dims;
    /* Name of a leaf, in `bytes`; empty for others. */
    MgnRange name;
    /* What each element of a state is at first. */
    float fill;
    /* 0. */
    uint32_t reserved;
    /* 0. */
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

/* A buffer as a dispatch sees it: aliases may differ in shape. */
struct MgnOperand {
    /* Number of the buffer; `NONE` in a call, and only there. */
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
    /* Where it comes from, for messages, in `bytes`. */
    MgnRange label;
    /* Version of the operator's meaning. */
    uint32_t version;
    /* Position in the order of its segment: dispatches of a level do not depend on each other. */
    uint32_t level;
    /* What it reads, in `operands`. */
    MgnRange inputs;
    /* What it writes, in `operands`. A result that shares its buffer with an operand is written in place. */
    MgnRange outputs;
    /* In `attributes`. */
    MgnRange attributes;
    /* The operand that holds indices into a table, or `NONE`. */
    uint32_t index_operand;
    /* 0. */
    uint32_t reserved;
    /* What these indices must be below. */
    uint64_t index_rows;
    /* 0. */
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

/* Consecutive dispatches that a step may include or leave out. */
struct MgnSegment {
    /* Name, in `bytes`. */
    MgnRange name;
    /* First dispatch. */
    uint32_t first;
    /* How many. */
    uint32_t count;
    /* A buffer with one `f32`, or `NONE`: where it is not 0 when the segment begins, the segment writes no
     * parameter and no state. The buffer has 4 bytes. */
    uint32_t skip_if;
    /* 0. */
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
    /* `ATTR_...`, which says where the value is. */
    uint32_t kind;
    /* 0. */
    uint32_t reserved;
    /* The value, or its place. */
    uint64_t value;
    /* A list or a text. */
    MgnRange list;
};
MGN_STATIC_ASSERT(sizeof(MgnAttribute) == 32);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, name) == 0);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, kind) == 8);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, reserved) == 12);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, value) == 16);
MGN_STATIC_ASSERT(offsetof(MgnAttribute, list) == 24);

/* Several calls as one: the attribute of `core.fused`. */
struct MgnProgram {
    /* Number of operands. */
    uint32_t operands;
    /* 0. */
    uint32_t reserved;
    /* The calls in order, in `steps`. */
    MgnRange steps;
    /* What it yields, in `slots`. */
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
    /* Version of its meaning. */
    uint32_t version;
    /* 0. */
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
    /* The step whose result it is, or `NONE` for an operand of the program. */
    uint32_t step;
    /* Which result of the step, or which operand. */
    uint32_t index;
};
MGN_STATIC_ASSERT(sizeof(MgnSlot) == 8);
MGN_STATIC_ASSERT(offsetof(MgnSlot, step) == 0);
MGN_STATIC_ASSERT(offsetof(MgnSlot, index) == 4);

/* Bytes that somebody else owns; they are valid during the call. */
struct MgnBytes {
    /* The first one; may be null, if there are none. */
    const uint8_t *data;
    /* How many. */
    uint64_t len;
};
MGN_STATIC_ASSERT(sizeof(MgnBytes) == 16);
MGN_STATIC_ASSERT(offsetof(MgnBytes, data) == 0);
MGN_STATIC_ASSERT(offsetof(MgnBytes, len) == 8);

/* What went wrong. A null pointer to one is success. Whoever gets one gives it back to `status_free`. */
struct MgnStatus {
    /* Bytes of this structure. */
    uint32_t struct_size;
    /* `STATUS_...`. */
    uint32_t code;
    /* What is wrong, in UTF-8 with a NUL; may be null. */
    const char *message;
    /* Where it happened, likewise; may be null. */
    const char *context;
    /* Numbers that belong to the code. */
    uint64_t detail[3];
    /* What the plugin likes to find here in `status_free`. */
    const uint8_t *owner;
};
MGN_STATIC_ASSERT(sizeof(MgnStatus) == 56);
MGN_STATIC_ASSERT(offsetof(MgnStatus, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnStatus, code) == 4);
MGN_STATIC_ASSERT(offsetof(MgnStatus, message) == 8);
MGN_STATIC_ASSERT(offsetof(MgnStatus, context) == 16);
MGN_STATIC_ASSERT(offsetof(MgnStatus, detail) == 24);
MGN_STATIC_ASSERT(offsetof(MgnStatus, owner) == 48);

/* A link of the chain of extensions; unknown ones are to be ignored. */
struct MgnExtension {
    /* Its name, with a NUL. */
    const char *name;
    /* The next one; null at the end. */
    const MgnExtension *next;
    /* Bytes of the structure that begins with this one. */
    uint32_t struct_size;
    /* Version of what it means. */
    uint32_t version;
};
MGN_STATIC_ASSERT(sizeof(MgnExtension) == 24);
MGN_STATIC_ASSERT(offsetof(MgnExtension, name) == 0);
MGN_STATIC_ASSERT(offsetof(MgnExtension, next) == 8);
MGN_STATIC_ASSERT(offsetof(MgnExtension, struct_size) == 16);
MGN_STATIC_ASSERT(offsetof(MgnExtension, version) == 20);

/* What the host says of itself. */
struct MgnHost {
    /* Bytes of this structure. */
    uint32_t struct_size;
    /* `ABI_MAJOR` of the host. */
    uint16_t abi_major;
    /* `ABI_MINOR` of the host. */
    uint16_t abi_minor;
    /* Oldest version of plans that it writes. */
    uint32_t plan_oldest;
    /* Newest version of plans that it writes. */
    uint32_t plan_newest;
    /* What else it offers; null, if nothing. */
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

/* A device and what it can do. Texts are UTF-8 and end with a NUL. */
struct MgnDeviceInfo {
    /* Bytes of this structure, set by the host; the plugin writes no further. */
    uint32_t struct_size;
    /* `DEVICE_...`, its class. */
    uint32_t kind;
    /* `DEVICE_HAS_ID` and the like. */
    uint32_t flags;
    /* Element types of buffers: bit `1 << DTYPE_...` for each. */
    uint32_t dtypes;
    /* Identity in the backend's own terms, if the flag says so. */
    uint64_t numeric_id;
    /* Memory in bytes; 0, if not known. */
    uint64_t memory_bytes;
    /* Largest buffer in bytes; 0, if not limited. */
    uint64_t max_buffer_bytes;
    /* Fixed cost of a dispatch. */
    uint64_t launch_nanos;
    /* Bytes a second that memory delivers. */
    double bytes_per_second;
    /* FLOP/s of a large matmul in `f32`. */
    double flops_per_second;
    /* The same of half-precision operands. */
    double half_flops_per_second;
    /* Name for people. */
    char name[128];
    /* Driver and its version; empty, if there is none. */
    char driver[128];
    /* Why the device cannot be used; empty, if it can. */
    char rejected[256];
    /* Anything that users should know; or empty. */
    char note[256];
    /* What tells its kernels from those of another version; plans in files are made anew when it changes. */
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

/* The bytes of a scalar for a step. */
struct MgnScalar {
    /* Number of the buffer. */
    uint32_t buffer;
    /* As they are stored; two-byte types use the first half. */
    uint8_t bytes[4];
};
MGN_STATIC_ASSERT(sizeof(MgnScalar) == 8);
MGN_STATIC_ASSERT(offsetof(MgnScalar, buffer) == 0);
MGN_STATIC_ASSERT(offsetof(MgnScalar, bytes) == 4);

/* What a step shall do. */
struct MgnStep {
    /* Bytes of this structure. */
    uint32_t struct_size;
    /* Number of segments. */
    uint32_t segment_count;
    /* Segments to run, in order. */
    const uint32_t *segments;
    /* Scalars to set before. */
    const MgnScalar *scalars;
    /* Number of scalars. */
    uint32_t scalar_count;
    /* 0. */
    uint32_t reserved;
};
MGN_STATIC_ASSERT(sizeof(MgnStep) == 32);
MGN_STATIC_ASSERT(offsetof(MgnStep, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnStep, segment_count) == 4);
MGN_STATIC_ASSERT(offsetof(MgnStep, segments) == 8);
MGN_STATIC_ASSERT(offsetof(MgnStep, scalars) == 16);
MGN_STATIC_ASSERT(offsetof(MgnStep, scalar_count) == 24);
MGN_STATIC_ASSERT(offsetof(MgnStep, reserved) == 28);

/* What is known of submissions. */
struct MgnProgress {
    /* Bytes of this structure, set by the host. */
    uint32_t struct_size;
    /* 0. */
    uint32_t reserved;
    /* Time that the device spent on the step that was waited for; 0, if not measured. */
    uint64_t device_nanos;
    /* Steps that were accepted and may still turn out to have met a fault. */
    uint64_t unsettled;
    /* Steps that were accepted and given up, because of a fault in them or in one before. */
    uint64_t given_up;
};
MGN_STATIC_ASSERT(sizeof(MgnProgress) == 32);
MGN_STATIC_ASSERT(offsetof(MgnProgress, struct_size) == 0);
MGN_STATIC_ASSERT(offsetof(MgnProgress, reserved) == 4);
MGN_STATIC_ASSERT(offsetof(MgnProgress, device_nanos) == 8);
MGN_STATIC_ASSERT(offsetof(MgnProgress, unsettled) == 16);
MGN_STATIC_ASSERT(offsetof(MgnProgress, given_up) == 24);

/* What a plugin offers. Every function may be called from any thread; calls with one executable never overlap.
 * Functions return null for success. Those marked optional may be null. */
struct MgnPlugin {
    /* Bytes of this structure. */
    uint32_t struct_size;
    /* `ABI_MAJOR` that the plugin was built with. */
    uint16_t abi_major;
    /* `ABI_MINOR` that the plugin was built with. */
    uint16_t abi_minor;
    /* Oldest version of plans that it reads. */
    uint32_t plan_oldest;
    /* Newest version of plans that it reads. */
    uint32_t plan_newest;
    /* What else it offers; null, if nothing. */
    const MgnExtension *extensions;
    /* Frees a status that a function of this plugin returned. */
    void (*status_free)(MgnStatus *status);
    /* Number of devices, the rejected ones included. Settings are lines `key = value`, as in the section
     * `[backend.NAME]` of the configuration file. */
    MgnStatus *(*device_count)(MgnBytes settings, uint32_t *count);
    /* Describes a device. All of `info` but its `struct_size` is 0 before. Here and below, `index` is less than the
     * number of devices. */
    MgnStatus *(*device_info)(MgnBytes settings, uint32_t index, MgnDeviceInfo *info);
    /* Opens a device. */
    MgnStatus *(*device_open)(MgnBytes settings, uint32_t index, MgnDevice **device);
    /* Closes a device, of which no executable is left. */
    void (*device_close)(MgnDevice *device);
    /* Whether there is a kernel for the only dispatch of a plan of the kind `PLAN_CALL`: null if there is, else a
     * status with the reason. */
    MgnStatus *(*device_supports)(const MgnDevice *device, MgnBytes call);
    /* Prepares everything that replaying a plan needs, with memory for its buffers: zeroed, constants and fills of
     * states written. The plan is not kept by the host. */
    MgnStatus *(*device_compile)(const MgnDevice *device, MgnBytes plan, MgnExecutable **executable);
    /* Frees an executable with its memory. */
    void (*executable_free)(MgnExecutable *executable);
    /* Writes bytes of a buffer before the next step. */
    MgnStatus *(*executable_write)(MgnExecutable *executable, uint32_t buffer, uint64_t offset, MgnBytes bytes);
    /* Reads bytes of a buffer after all steps that were submitted. */
    MgnStatus *(*executable_read)(MgnExecutable *executable, uint32_t buffer, uint64_t offset, uint8_t *bytes, uint64_t len);
    /* Submits a step, which need not be over on return, and gives it a number. A step that meets a fault changes no
     * parameter and no state, and neither do those that are submitted after it and before its error is told. */
    MgnStatus *(*executable_run)(MgnExecutable *executable, const MgnStep *step, uint64_t *ticket);
    /* Waits for a step. */
    MgnStatus *(*executable_wait)(MgnExecutable *executable, uint64_t ticket, MgnProgress *progress);
    /* How far the steps are; optional where steps are over when `executable_run` returns. */
    void (*executable_progress)(const MgnExecutable *executable, MgnProgress *progress);
    /* Optional: how many launches that wait for each other a call takes; see `device_supports`. */
    uint32_t (*device_launches)(const MgnDevice *device, MgnBytes call);
    /* Reserved for the future; null. */
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
