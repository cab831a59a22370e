/* A plugin for the first version of the interface: it negates numbers. It is built with the header beside it, and has to
 * load and compute as long as there is a version 1. Neither is ever changed. */
#include <stdlib.h>
#include "meganeura_plugin.h"

const char meganeura_plugin_manifest[] = "name = \"negate\"\nversion = \"1.0.0\"\nabi = \"1.0\"\n";

typedef struct {
    MgnPlan *plan;
    char *arena;
} Negate;

static MgnStatus *failure(uint32_t code, const char *message) {
    MgnStatus *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->struct_size = sizeof *s;
    s->code = code;
    s->message = message;
    return s;
}

static void status_free(MgnStatus *s) { free(s); }

static MgnStatus *device_count(MgnBytes settings, uint32_t *count) {
    (void)settings;
    *count = 1;
    return NULL;
}

static MgnStatus *device_info(MgnBytes settings, uint32_t index, MgnDeviceInfo *info) {
    (void)settings, (void)index;
    info->kind = MGN_DEVICE_SOFTWARE;
    info->flags = MGN_DEVICE_HAS_ID;
    info->numeric_id = 17;
    info->dtypes = 1u << MGN_DTYPE_F32;
    info->bytes_per_second = info->flops_per_second = info->half_flops_per_second = 1e9;
    strcpy(info->name, "negation");
    return NULL;
}

static MgnStatus *device_open(MgnBytes settings, uint32_t index, MgnDevice **device) {
    (void)settings, (void)index;
    static char only;
    *device = (MgnDevice *)(void *)&only;
    return NULL;
}

static void device_close(MgnDevice *device) { (void)device; }

static MgnStatus *check(const MgnPlan *p, const MgnDispatch *d) {
    int known = mgn_is(p, d->kernel, "core.neg") && mgn_operand(p, d->inputs, 0)->dtype == MGN_DTYPE_F32;
    return known ? NULL : failure(MGN_STATUS_UNSUPPORTED, "it only negates f32");
}

static MgnStatus *device_supports(const MgnDevice *device, MgnBytes call) {
    (void)device;
    if (!mgn_plan_ok(call))
        return failure(MGN_STATUS_INVALID_PLAN, "not a plan of this version");
    const MgnPlan *p = (const void *)call.data;
    return check(p, mgn_dispatch(p, 0));
}

static MgnStatus *device_compile(const MgnDevice *device, MgnBytes plan, MgnExecutable **executable) {
    (void)device;
    if (!mgn_plan_ok(plan))
        return failure(MGN_STATUS_INVALID_PLAN, "not a plan of this version");
    const MgnPlan *p = (const void *)plan.data;
    for (uint32_t i = 0; i < p->dispatches.count; i++) {
        MgnStatus *s = check(p, mgn_dispatch(p, i));
        if (s)
            return s;
    }
    Negate *e = calloc(1, sizeof *e);
    e->plan = malloc(plan.len);
    e->arena = calloc(1, p->arena_bytes + 1);
    memcpy(e->plan, p, plan.len);
    for (uint32_t i = 0; i < p->buffers.count; i++) {
        const MgnBuffer *b = mgn_buffer(p, i);
        memcpy(e->arena + b->offset, plan.data + b->data_offset, b->data_bytes);
    }
    *executable = (MgnExecutable *)(void *)e;
    return NULL;
}

static void executable_free(MgnExecutable *executable) {
    Negate *e = (void *)executable;
    free(e->plan);
    free(e->arena);
    free(e);
}

static MgnStatus *executable_write(MgnExecutable *executable, uint32_t buffer, uint64_t offset, MgnBytes bytes) {
    Negate *e = (void *)executable;
    memcpy(e->arena + mgn_buffer(e->plan, buffer)->offset + offset, bytes.data, bytes.len);
    return NULL;
}

static MgnStatus *executable_read(MgnExecutable *executable, uint32_t buffer, uint64_t offset, uint8_t *bytes,
                                  uint64_t len) {
    Negate *e = (void *)executable;
    memcpy(bytes, e->arena + mgn_buffer(e->plan, buffer)->offset + offset, len);
    return NULL;
}

static MgnStatus *executable_run(MgnExecutable *executable, const MgnStep *step, uint64_t *ticket) {
    Negate *e = (void *)executable;
    for (uint32_t s = 0; s < step->segment_count; s++) {
        const MgnSegment *segment = mgn_segment(e->plan, step->segments[s]);
        for (uint32_t i = segment->first; i < segment->first + segment->count; i++) {
            const MgnDispatch *d = mgn_dispatch(e->plan, i);
            const MgnOperand *x = mgn_operand(e->plan, d->inputs, 0), *y = mgn_operand(e->plan, d->outputs, 0);
            const float *from = (const void *)(e->arena + mgn_buffer(e->plan, x->buffer)->offset);
            float *to = (void *)(e->arena + mgn_buffer(e->plan, y->buffer)->offset);
            for (uint64_t k = 0; k < mgn_elements(e->plan, x); k++)
                to[k] = -from[k];
        }
    }
    *ticket = 42;
    return NULL;
}

static MgnStatus *executable_wait(MgnExecutable *executable, uint64_t ticket, MgnProgress *progress) {
    (void)executable;
    progress->device_nanos = 5000;
    return ticket == 42 ? NULL : failure(MGN_STATUS_FAILED, "there was no such step");
}

const MgnPlugin *meganeura_plugin_entry(const MgnHost *host) {
    static const MgnExtension nothing = {"example.nothing", NULL, sizeof(MgnExtension), 1};
    static const MgnPlugin plugin = {
        .struct_size = sizeof plugin,
        .abi_major = MGN_ABI_MAJOR,
        .abi_minor = MGN_ABI_MINOR,
        .plan_oldest = MGN_PLAN_VERSION,
        .plan_newest = MGN_PLAN_VERSION,
        .extensions = &nothing,
        .status_free = status_free,
        .device_count = device_count,
        .device_info = device_info,
        .device_open = device_open,
        .device_close = device_close,
        .device_supports = device_supports,
        .device_compile = device_compile,
        .executable_free = executable_free,
        .executable_write = executable_write,
        .executable_read = executable_read,
        .executable_run = executable_run,
        .executable_wait = executable_wait,
    };
    return host->struct_size >= sizeof(MgnHost) && host->abi_major == MGN_ABI_MAJOR ? &plugin : NULL;
}
