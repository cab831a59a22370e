// Has allocations of a process give null, as where there is no more memory. Built together with faults.c, and loaded with it.
// Environment:
//   FAULTS_MEMORY  "count"; "one": an allocation gives null; "all": it and all that are counted do from then on
//   FAULTS_NTH     the number of the allocation, from 1 on
//   FAULTS_LEAST   bytes: smaller ones are not counted
//   FAULTS_SAVING  if it is there, only allocations after the first call that changes files (faults.c) are counted
//   FAULTS_TOLD    a file to which the number of allocations, or the bytes of the first that gave null, is written
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// glibc's own functions: to look for them by dlsym would allocate.
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

int faults_calls(void);

static long allocations, chosen, least;
static int is_counted, fails_for_good, is_saving, is_told;
static const char *told;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

// What is allocated before, by the loader, is not counted.
__attribute__((constructor)) static void begin(void) {
    const char *mode = getenv("FAULTS_MEMORY");
    if (!mode) return;
    told = getenv("FAULTS_TOLD");
    chosen = strcmp(mode, "count") ? number("FAULTS_NTH") : 0;
    fails_for_good = !strcmp(mode, "all");
    least = number("FAULTS_LEAST");
    is_saving = getenv("FAULTS_SAVING") != 0;
    is_counted = 1;
}

// Writes a word and a number, without memory.
static void tell(const char *word, long value) {
    if (!told) return;
    char line[64];
    int length = snprintf(line, sizeof line, "%s %ld\n", word, value);
    int fd = syscall(SYS_openat, AT_FDCWD, told, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_write, fd, line, length) < length) abort();
    syscall(SYS_close, fd);
}

__attribute__((destructor)) static void end(void) {
    if (is_counted && !chosen) tell("allocations", allocations);
}

// Whether an allocation has to give null.
static int gives_null(size_t size) {
    if (!is_counted || size < (size_t)least || (is_saving && !faults_calls())) return 0;
    long at = __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    if (!chosen || (fails_for_good ? at < chosen : at != chosen)) return 0;
    if (!__atomic_exchange_n(&is_told, 1, __ATOMIC_SEQ_CST)) tell("null", (long)size);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return gives_null(size) ? 0 : __libc_malloc(size); }

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || gives_null(bytes)) return 0;
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) { return size && gives_null(size) ? 0 : __libc_realloc(memory, size); }

void *memalign(size_t alignment, size_t size) { return gives_null(size) ? 0 : __libc_memalign(alignment, size); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
    if (gives_null(size)) return ENOMEM;
    void *found = __libc_memalign(alignment, size);
    if (!found) return ENOMEM;
    *memory = found;
    return 0;
}
