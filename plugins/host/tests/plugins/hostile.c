/* Plugins with one fault each, selected by -DCASE=n; -DNAME sets the name. Case 0 has no fault,
 * but computes nothing. With -DHELPER, the names of devices come from a linked library; with
 * -DMAKE_HELPER, this file compiles to that library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "meganeura_plugin.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

#ifdef MAKE_HELPER
const char *helper_name(void) { return TEXT(MAKE_HELPER); }
#else

#ifdef HELPER
const char *helper_name(void);
#else
static const char *helper_name(void) { return "hostile"; }
#endif

#if CASE == 2
#define ABI "2.0"
#else
#define ABI "1.0"
#endif

#if CASE == 1
const char not_a_manifest[] = "";
#elif CASE == 3
const char meganeura_plugin_manifest[] = "name = [[[";
#elif CASE == 4
const char meganeura_plugin_manifest[8192] = {[0 ... 8191] = '#'};
#elif CASE == 5
const char meganeura_plugin_manifest[] = "name = \"../evil\"\nversion = \"1\"\nabi = \"1.0\"\n";
#elif CASE == 29
const char meganeura_plugin_manifest[] = "name = \"x\"\nversion = \"1\\u001b[2J\"\nabi = \"1.0\"\n";
#else
const char meganeura_plugin_manifest[] = "name = \"" TEXT(NAME) "\"\nversion = \"0.1\"\nabi = \"" ABI "\"\n";
#endif

#ifdef MARK
/* Creates a file, which shows that code of the plugin ran. */
__attribute__((constructor)) static void initialise(void) {
    FILE *f = fopen(TEXT(MARK), "w");
    if (f)
        fclose(f);
}
#endif

#if CASE == 40
__attribute__((constructor)) static void ends_the_process(void) { exit(0); }
#elif CASE == 41
__attribute__((constructor)) static void never_comes_back(void) {
    volatile int on = 1;
    while (on)
        ;
}
#elif CASE == 42
__attribute__((constructor)) static void faults(void) { abort(); }
#endif

#if CASE == 27
void nowhere(void);
#endif

static MgnStatus *failure(uint32_t code, const char *message) {
    MgnStatus *s = calloc(1, sizeof *s);
    s->struct_size = sizeof *s;
    s->code = code;
    s->message = message;
    return s;
}

static void status_free(MgnStatus *s) { free(s); }

static MgnStatus *device_count(MgnBytes settings, uint32_t *count) {
    (void)settings;
#if CASE == 43
    exit(0);
#elif CASE == 44
    abort();
#elif CASE == 46
    volatile int on = 1;
    while (on)
        ;
#endif
    *count = CASE == 14 ? 4000000000u : 1;
#if CASE == 15
    static uint32_t garbage[64] = {7};
    return (MgnStatus *)garbage;
#elif CASE == 28
    return (MgnStatus *)((char *)count + 1);
#endif
    return NULL;
}

static MgnStatus *device_info(MgnBytes settings, uint32_t index, MgnDeviceInfo *info) {
    (void)settings, (void)index;
#if CASE == 45
    exit(0);
#endif
    info->kind = CASE == 17 ? 77 : MGN_DEVICE_SOFTWARE;
    info->dtypes = CASE == 26 ? 2 : 31;
    info->bytes_per_second = CASE == 16 ? NAN : 1e9;
    info->flops_per_second = info->half_flops_per_second = 1e9;
    strcpy(info->name, helper_name());
    if (CASE == 18)
        memset(info->name, 'x', sizeof info->name);
    return NULL;
}

static MgnStatus *device_open(MgnBytes settings, uint32_t index, MgnDevice **device) {
    (void)settings, (void)index;
    static char only;
    *device = CASE == 19 ? NULL : (MgnDevice *)(void *)&only;
    return NULL;
}

static void device_close(MgnDevice *device) { (void)device; }

static MgnStatus *device_supports(const MgnDevice *device, MgnBytes call) {
    (void)device, (void)call;
    return NULL;
}

static MgnStatus *device_compile(const MgnDevice *device, MgnBytes plan, MgnExecutable **executable) {
    (void)device, (void)plan;
    static char only;
    *executable = CASE == 21 ? NULL : (MgnExecutable *)(void *)&only;
#if CASE == 20
    return failure(MGN_STATUS_UNSUPPORTED, "I said so, but I have none");
#elif CASE == 32
    return failure(MGN_STATUS_INVALID_PLAN, "it makes no sense to me");
#elif CASE == 33
    MgnStatus *s = failure(MGN_STATUS_UNSUPPORTED, "not on Sundays");
    s->detail[0] = UINT64_MAX;
    return s;
#endif
    return NULL;
}

static void executable_free(MgnExecutable *executable) { (void)executable; }

static MgnStatus *executable_write(MgnExecutable *executable, uint32_t buffer, uint64_t offset, MgnBytes bytes) {
    (void)executable, (void)buffer, (void)offset, (void)bytes;
    return NULL;
}

static MgnStatus *executable_read(MgnExecutable *executable, uint32_t buffer, uint64_t offset, uint8_t *bytes,
                                  uint64_t len) {
    (void)executable, (void)buffer, (void)offset, (void)bytes, (void)len;
    return NULL;
}

static MgnStatus *executable_run(MgnExecutable *executable, const MgnStep *step, uint64_t *ticket) {
    (void)executable, (void)step;
    *ticket = UINT64_MAX;
#if CASE == 22
    return failure(MGN_STATUS_PANIC, "panicked: at the disco");
#elif CASE == 24
    return failure(12345, NULL);
#elif CASE == 25
    MgnStatus *s = failure(MGN_STATUS_INDEX_OUT_OF_RANGE, "an index");
    s->detail[0] = s->detail[1] = s->detail[2] = UINT64_MAX;
    return s;
#elif CASE == 30
    static char text[100000];
    memset(text, '\033', sizeof text - 1);
    return failure(MGN_STATUS_FAILED, text);
#endif
    return NULL;
}

static MgnStatus *executable_wait(MgnExecutable *executable, uint64_t ticket, MgnProgress *progress) {
    (void)executable, (void)ticket, (void)progress;
    return CASE == 23 ? failure(MGN_STATUS_DEVICE_LOST, "the cable was pulled") : NULL;
}

#if CASE == 31
static void executable_progress(const MgnExecutable *executable, MgnProgress *progress) {
    (void)executable;
    progress->unsettled = UINT64_MAX;
    progress->given_up = UINT64_MAX;
}
#endif

#if CASE == 13
static MgnExtension endless = {"again", &endless, sizeof endless, 1};
#endif

#if CASE != 6
const MgnPlugin *meganeura_plugin_entry(const MgnHost *host) {
    static MgnPlugin plugin = {
        .struct_size = CASE == 8 ? 0 : CASE == 9 ? 0xffffffff : sizeof plugin,
        .abi_major = CASE == 10 ? 9 : MGN_ABI_MAJOR,
        .abi_minor = MGN_ABI_MINOR,
        .plan_oldest = CASE == 11 ? 7 : MGN_PLAN_VERSION,
        .plan_newest = CASE == 11 ? 9 : MGN_PLAN_VERSION,
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
        .executable_run = CASE == 12 ? NULL : executable_run,
        .executable_wait = executable_wait,
    };
#if CASE == 13
    plugin.extensions = &endless;
#elif CASE == 31
    plugin.executable_progress = executable_progress;
#elif CASE == 27
    nowhere();
#endif
    (void)host;
    return CASE == 7 ? NULL : &plugin;
}
#endif
#endif
