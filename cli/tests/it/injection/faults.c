// Counts the calls of a process that change files below a folder, and has one of them fail, all from one on, or the process die before it.
// Loaded with LD_PRELOAD. Environment:
//   FAULTS_BELOW  the folder, without a slash at its end
//   FAULTS_MODE   "count"; "fail": the call fails; "full": it and all that need space fail from then on; "kill": the process is killed
//   FAULTS_AT     the number of the call, from 1 on
//   FAULTS_LOG    a file (elsewhere) to which a line is added for each call
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int calls;

// For allocations.c.
int faults_calls(void) { return __atomic_load_n(&calls, __ATOMIC_SEQ_CST); }

static const char *below(void) { return getenv("FAULTS_BELOW"); }

// Whether a path is below the folder. Tests give absolute ones.
static int is_below(const char *path) {
    const char *folder = below();
    if (!folder || !path) return 0;
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

// The path of an open file, or 0.
static const char *path_of(int fd, char *place) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, place, PATH_MAX - 1);
    if (length < 0) return 0;
    place[length] = 0;
    return place;
}

// A path as seen from an open folder, or 0.
static const char *path_at(int fd, const char *path, char *place) {
    if (!path || path[0] == '/' || fd == AT_FDCWD) return path;
    char folder[PATH_MAX];
    if (!path_of(fd, folder)) return 0;
    return snprintf(place, 2 * PATH_MAX, "%s/%s", folder, path) > 0 ? place : 0;
}

// Notes a call. Returns an error number if it has to fail, else 0. `needs` is whether it needs space on the disk.
static int fault(const char *call, const char *path, int needs, int error) {
    if (!is_below(path)) return 0;
    int number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    const char *log = getenv("FAULTS_LOG");
    if (log) {
        char line[2 * PATH_MAX];
        int length = snprintf(line, sizeof line, "%d %s %s\n", number, call, path);
        int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0 && syscall(SYS_write, fd, line, length) < length) abort();
        syscall(SYS_close, fd);
    }
    const char *mode = getenv("FAULTS_MODE"), *at = getenv("FAULTS_AT");
    int chosen = at ? atoi(at) : 0;
    if (!mode || !chosen) return 0;
    if (!strcmp(mode, "kill") && number == chosen) kill(getpid(), SIGKILL);
    if (!strcmp(mode, "fail") && number == chosen) return error;
    if (!strcmp(mode, "full") && number >= chosen && needs) return ENOSPC;
    return 0;
}

#define NEXT(name) __typeof__(name) *next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL_IF(error)         \
    do {                       \
        int found_ = (error);  \
        if (found_) {          \
            errno = found_;    \
            return -1;         \
        }                      \
    } while (0)

static int fault_at(const char *call, int fd, const char *path, int needs, int error) {
    char place[2 * PATH_MAX];
    return fault(call, path_at(fd, path, place), needs, error);
}

static int fault_of(const char *call, int fd, int needs, int error) {
    char place[PATH_MAX];
    return fault(call, path_of(fd, place), needs, error);
}

// Opening counts where it makes a file or empties one.
#define CHANGES(flags) ((flags) & (O_CREAT | O_TRUNC))
#define MODE(flags)                                               \
    mode_t mode = 0;                                              \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                             \
        va_start(rest, flags);                                    \
        mode = va_arg(rest, mode_t);                              \
        va_end(rest);                                             \
    }

int open(const char *path, int flags, ...) {
    NEXT(open);
    MODE(flags)
    if (CHANGES(flags)) FAIL_IF(fault("open", path, 1, EACCES));
    return next(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    NEXT(open64);
    MODE(flags)
    if (CHANGES(flags)) FAIL_IF(fault("open", path, 1, EACCES));
    return next(path, flags, mode);
}

int openat(int fd, const char *path, int flags, ...) {
    NEXT(openat);
    MODE(flags)
    if (CHANGES(flags)) FAIL_IF(fault_at("open", fd, path, 1, EACCES));
    return next(fd, path, flags, mode);
}

int openat64(int fd, const char *path, int flags, ...) {
    NEXT(openat64);
    MODE(flags)
    if (CHANGES(flags)) FAIL_IF(fault_at("open", fd, path, 1, EACCES));
    return next(fd, path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    NEXT(write);
    FAIL_IF(fault_of("write", fd, 1, ENOSPC));
    return next(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev);
    FAIL_IF(fault_of("write", fd, 1, ENOSPC));
    return next(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    NEXT(pwrite64);
    FAIL_IF(fault_of("write", fd, 1, ENOSPC));
    return next(fd, bytes, count, offset);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *place, size_t count, unsigned flags) {
    NEXT(copy_file_range);
    FAIL_IF(fault_of("write", to, 1, ENOSPC));
    return next(from, at, to, place, count, flags);
}

int ftruncate64(int fd, off64_t length) {
    NEXT(ftruncate64);
    FAIL_IF(fault_of("truncate", fd, 1, ENOSPC));
    return next(fd, length);
}

int fsync(int fd) {
    NEXT(fsync);
    FAIL_IF(fault_of("fsync", fd, 0, EIO));
    return next(fd);
}

int fdatasync(int fd) {
    NEXT(fdatasync);
    FAIL_IF(fault_of("fsync", fd, 0, EIO));
    return next(fd);
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    FAIL_IF(fault("rename", to, 0, EIO));
    return next(from, to);
}

int unlink(const char *path) {
    NEXT(unlink);
    FAIL_IF(fault("unlink", path, 0, EIO));
    return next(path);
}

int unlinkat(int fd, const char *path, int flags) {
    NEXT(unlinkat);
    FAIL_IF(fault_at("unlink", fd, path, 0, EIO));
    return next(fd, path, flags);
}

int rmdir(const char *path) {
    NEXT(rmdir);
    FAIL_IF(fault("rmdir", path, 0, EIO));
    return next(path);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    FAIL_IF(fault("mkdir", path, 1, ENOSPC));
    return next(path, mode);
}

int link(const char *from, const char *to) {
    NEXT(link);
    FAIL_IF(fault("link", to, 1, EIO));
    return next(from, to);
}

// Folders are exchanged by a call that the C library may not have.
long syscall(long number, ...) {
    NEXT(syscall);
    va_list rest;
    va_start(rest, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_renameat2) FAIL_IF(fault("exchange", (const char *)a[3], 0, EIO));
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
